"""The vocabulary of a turn and the pure rules over it. No I/O; standard library only."""

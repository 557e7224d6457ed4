"""What can be seen of turns: journal, replay, logs, metrics and traces."""

"""What backends that are whole agents have in common: a run that outlives its requests, the history as an agent is told it, and sessions that wait.

run.py      the run: owned by a background task, calls parked until the client answers
history.py  Turn → what a fresh agent is told; what a conversation is known by
idle.py     sessions between two turns
"""

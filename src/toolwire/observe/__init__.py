"""Observing turns: journal, replay, logs, metrics and traces."""

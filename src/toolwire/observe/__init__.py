"""Observing turns: the journal, replay, logs, metrics and traces.

The journal, in the order in which a turn passes through it:
trace.py             what the gateway records while a turn runs
journal.py           keeps the last turns, and writes one line for each
journal_files.py     the fields of a line (`TurnRecord`), and the files of the journal
recording.py         a whole turn as plain data, with the steps between backend and client computed again
recorded_servers.py  replaces the MCP servers of a recorded turn
fixture.py           writes and reads recorded turns as files, and masks them
replay.py            runs a recorded turn with the current code
masking.py           finds secrets and masks them

logs.py is the access log, metrics.py is Prometheus, tracing.py is OpenTelemetry.
"""

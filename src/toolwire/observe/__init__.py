"""Observing turns: the journal, replay, logs, metrics and traces.

The journal, in the order in which a turn passes through it:
trace.py             what the gateway notes while a turn runs, such as the calls of a parked run
journal.py           keeps the last turns, and writes one line for each
journal_files.py     the fields of a line (`TurnRecord`), and the files
recording.py         a whole turn as data, computed again from what came in and went out
fixture.py           a recorded turn as a file; replay.py runs it again
masking.py           finds secrets and masks them

logs.py is the access log, metrics.py is Prometheus, tracing.py is OpenTelemetry.
"""

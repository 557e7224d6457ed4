"""Cursor as a backend: its published bridge protocol, `sdk.v1`, spoken to a local `cursor-sdk-bridge`.

options.py   the keys of [models.ID]
find.py      where the bridge is
home.py      the private folder that it lives in
process.py   the bridge's process
connect.py   Connect without I/O: envelopes and errors
client.py    Connect over loopback HTTP
callback.py  the server that the bridge brings the agent's tool calls to
bridge.py    a bridge that runs, or is started again, and serves many agents
wire.py      Turn → what the bridge takes; a client's result → what an agent gets
reading.py   what the bridge streams → the run
failures.py  what can go wrong → one kind of `errors.KINDS`
session.py   one agent
models.py    the models that Cursor has
backend.py   the backend
source.py    all of Cursor's models
doctor.py    what there is on this machine
"""

from toolwire.backends.cursor.backend import CursorBackend, inspect
from toolwire.backends.cursor.options import CursorOptions

__all__ = ["CursorBackend", "CursorOptions", "inspect"]

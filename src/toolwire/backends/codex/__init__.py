"""Codex as a backend: the real `codex app-server` behind the gateway.

options.py   the keys of [models.ID]
aliases.py   other names of a model
version.py   what a version can do
settings.py  Codex's config.toml and model catalog, as data
home.py      the private folder that Codex lives in
rpc.py       JSON-RPC without I/O
wire.py      the shapes of what Codex sends
worker.py    one app-server process
pool.py      several of them
thread.py    one thread of one process
items.py     Turn → what Codex takes
reading.py   what Codex sends → events
failures.py  what can go wrong → one kind of `errors.KINDS`
login.py     who is logged in
dynamic.py   a run with native tools, which can be parked
text.py      a run of text alone
backend.py   the backend
doctor.py    what there is on this machine
"""

from toolwire.backends.codex.backend import CodexBackend, inspect
from toolwire.backends.codex.options import CodexOptions

__all__ = ["CodexBackend", "CodexOptions", "inspect"]

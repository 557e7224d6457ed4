"""What backends that are whole agents have in common: a run that outlives its requests, the history as an agent is told it, and sessions that wait.

run.py         the run: owned by a background task, calls parked until the client answers
history.py     Turn → what a fresh agent is told; what a conversation is known by
idle.py        sessions between two turns
children.py    an agent's process: its group, its last words, its end
folders.py     the private folders that processes live in
loopback.py    a web server on loopback
options.py     checks of numbers in options
mcp_server.py  the client's tools as an MCP server
native.py      what an agent asks for by kinds of its own → the client's tools
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# --- options ------------------------------------------------------------
#
# What the options of all agents have in common. Standard library only.


def check_numbers(options: object, at_least: Mapping[str, int], above_zero: Sequence[str]) -> None:
    """Raises `ValueError` with one line that names the first key whose number is too small."""
    for key, least in at_least.items():
        if getattr(options, key) < least:
            raise ValueError(f"{key}: expected at least {least}")
    for key in above_zero:
        if not getattr(options, key) > 0:
            raise ValueError(f"{key}: expected a number above 0")

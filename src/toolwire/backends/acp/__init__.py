"""Agents that speak the Agent Client Protocol as backends: OpenCode, Gemini CLI, Codex, Claude Code, Cursor's `agent acp`, and any other.

options.py      the keys of [models.ID]
profiles.py     what is known of each agent, as data
launch.py       profile × options → command, environment, files
place.py        the private folder that an agent lives in
process.py      one agent's process, as a transport
updates.py      what an agent tells of its work
permissions.py  what it may do: call the client's tools
asked.py        what the agent asks of its client
terminals.py    terminals that are calls of the client's shell tool
failures.py     what can go wrong → one kind of `errors.KINDS`
session.py      process, place and MCP server of one conversation
backend.py      the backend
doctor.py       what there is on this machine
"""

from toolwire.backends.acp.backend import AcpBackend, inspect
from toolwire.backends.acp.profiles import AcpOptions

__all__ = ["AcpBackend", "AcpOptions", "inspect"]

"""Agents of the Agent Client Protocol as backends: OpenCode, Gemini CLI, Codex and others."""

from toolwire.backends.acp.backend import AcpBackend, inspect, lacking
from toolwire.backends.acp.profiles import AcpOptions

__all__ = ["AcpBackend", "AcpOptions", "inspect", "lacking"]

"""Codex as a backend: runs the real `codex app-server`."""

from toolwire.backends.codex.backend import CodexBackend, inspect, lacking
from toolwire.backends.codex.options import CodexOptions

__all__ = ["CodexBackend", "CodexOptions", "inspect", "lacking"]

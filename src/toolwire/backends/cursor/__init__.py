"""Cursor as a backend, through a local `cursor-sdk-bridge` (protocol `sdk.v1`)."""

from toolwire.backends.cursor.backend import CursorBackend, inspect, lacking
from toolwire.backends.cursor.options import CursorOptions

__all__ = ["CursorBackend", "CursorOptions", "inspect", "lacking"]

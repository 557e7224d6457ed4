"""Cursor as a backend: speaks the published bridge protocol `sdk.v1` to a local `cursor-sdk-bridge`."""

from toolwire.backends.cursor.backend import CursorBackend, inspect
from toolwire.backends.cursor.options import CursorOptions

__all__ = ["CursorBackend", "CursorOptions", "inspect"]

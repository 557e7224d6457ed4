"""Dialects whose calls have their name in a header of markers, and then the arguments as JSON. Standard library only."""

from __future__ import annotations

from toolwire.emulate.dialects.shapes import Dialect

HEADED: tuple[Dialect, ...] = ()

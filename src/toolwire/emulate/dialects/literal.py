"""Dialects with a value grammar of their own: Python calls, and Gemma's literals. Standard library only."""

from __future__ import annotations

from toolwire.emulate.dialects.shapes import Dialect

LITERAL: tuple[Dialect, ...] = ()

"""Calls with value grammars of their own, written. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

RENDER_LITERAL: dict[str, Callable[[str, str, Mapping[str, Any]], str]] = {}

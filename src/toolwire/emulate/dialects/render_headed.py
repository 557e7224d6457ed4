"""Calls with their name in a header, written. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

RENDER_HEADED: dict[str, Callable[[str, str, Mapping[str, Any]], str]] = {}

"""How models write tool calls in text: every format is data, and one kernel (`emulate/scanner.py`) reads them all.

A dialect has openers: literal markers that may begin a block, each with the grammar of what follows. An opener is a candidate, not a commitment: a
block that does not keep its grammar up to a known tool's name goes back to being text. No opener is the beginning of another. Standard library
only.
"""

from __future__ import annotations

from collections.abc import Iterable

from toolwire.emulate.dialects.formats import ENVELOPED, HEADED, LITERAL, TAGGED
from toolwire.emulate.dialects.shapes import NONCE, Dialect, JsonBlock, Opener, TagBlock

__all__ = ["DEFAULT", "DIALECTS", "NONCE", "Dialect", "JsonBlock", "Opener", "TagBlock", "select"]

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (*ENVELOPED, *HEADED, *TAGGED, *LITERAL)}

DEFAULT = ("sentinel", "hermes", "use_tool")


def select(names: Iterable[str] | None) -> list[Dialect]:
    """Dialects by name, in the order given. An unknown name is a ValueError that lists the known ones."""
    chosen = []
    for name in DEFAULT if names is None else names:
        if name not in DIALECTS:
            raise ValueError(f"unknown dialect {name!r}; known: {', '.join(DIALECTS)}")
        chosen.append(DIALECTS[name])
    return chosen

"""How models write tool calls in text. Every format is data, and one scanner (`emulate/scanner.py`) reads
them all.

A dialect has openers: markers that may begin a block, each with the shape of what follows. An opener is only
a candidate: a block that breaks its grammar before a known tool's name is text. No opener is the beginning of
another.

shapes.py    the data types: openers and the shapes of blocks
formats.py   the formats themselves
families.py  which model family writes which format
render.py    writes calls in each format
"""

from __future__ import annotations

from collections.abc import Iterable

from toolwire.emulate.dialects.formats import ENVELOPED, HEADED, LITERAL, TAGGED
from toolwire.emulate.dialects.shapes import NONCE, Dialect, JsonBlock, Opener, TagBlock

__all__ = ["DEFAULT", "DIALECTS", "NONCE", "Dialect", "JsonBlock", "Opener", "TagBlock", "select"]

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (*ENVELOPED, *HEADED, *TAGGED, *LITERAL)}

DEFAULT = ("sentinel", "hermes", "use_tool")


def select(names: Iterable[str] | None) -> list[Dialect]:
    """The dialects with these names, in this order; raises a ValueError that lists the known names."""
    chosen = []
    for name in DEFAULT if names is None else names:
        if name not in DIALECTS:
            raise ValueError(f"unknown dialect {name!r}; known: {', '.join(DIALECTS)}")
        chosen.append(DIALECTS[name])
    return chosen

"""The shapes that a dialect's data is written in: what an opener looks like, and the grammars that may follow it.

Every grammar is a frozen table of facts; the generator that reads it is named in `emulate/scanner.py`'s table `GRAMMARS`. Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Protocol

NONCE = "{nonce}"
"""Stands for the request's own token in the sentinel's markers."""

_ENVELOPE = frozenset({"name", "arguments", "parameters", "type", "id", "function"})


@dataclass(frozen=True, slots=True)
class JsonBlock:
    """One or several `{"name": …, "arguments": …}`, in any key order, also as an array; then a closer."""

    closers: tuple[str, ...] = ()
    name_keys: frozenset[str] = frozenset({"name"})
    arguments_keys: frozenset[str] = frozenset({"arguments", "parameters"})
    exact: bool = False
    """Only the keys of an envelope, and arguments must be there: for formats whose marker is ordinary JSON."""
    known_keys: frozenset[str] = _ENVELOPE
    first: str = "{["


@dataclass(frozen=True, slots=True)
class TagBlock:
    """Calls as tags, values as text between tags; `{…}` in place of the tags is the arguments as JSON.

    `call_tag` and `parameter_tag` match one whole tag and name the call or the key in group 1; `name_child` is the tag that holds the name where
    the call tag has none.
    """

    call_tag: re.Pattern[str]
    call_close: str
    parameter_tag: re.Pattern[str]
    parameter_close: str
    wrapper_closers: tuple[str, ...] = ()
    name_child: str | None = None
    entities: bool = False
    trim_newline: bool = False
    """One newline behind the opening and one before the closing tag of a value belong to the markup."""
    first: str = "<"


class Grammar(Protocol):
    """What follows an opener. `first`: the characters that may stand first, white space apart; they tell apart what shares a marker."""

    @property
    def first(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Opener:
    """`whole`: the marker is itself the beginning of the call's tag. `line_start`: only white space may stand before it on its line."""

    marker: str
    block: Grammar
    whole: bool = False
    line_start: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """`recovery`: what models write by habit, not what Toolwire taught: bound by law 12's rules on quotations."""

    name: str
    openers: tuple[Opener, ...]
    recovery: bool = True
    note: str = field(default="", compare=False)

"""The shapes that a dialect's data is written in: what an opener looks like, and the grammars that may follow it.

Every grammar is a frozen table of facts; the generator that reads it is named in `emulate/scanner.py`'s table `GRAMMARS`. Standard library only.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, field
from typing import Protocol

NONCE = "{nonce}"
"""Stands for the request's own token in the sentinel's markers."""
TOOL = "{tool}"
"""Stands for the name of every declared tool, where the name is the marker."""

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
    separators: str = ","
    """What may stand between two objects."""
    separated: bool = False
    """An object follows another only behind a separator."""
    open_ended: bool = False
    """The closer is seldom written: arguments that are no JSON end with their line."""
    first: str = "{["


@dataclass(frozen=True, slots=True)
class TagBlock:
    """Calls as tags, values as text between tags; `{…}` in place of the tags is the arguments as JSON.

    `call_tag` and `parameter_tag` match one whole tag and name the call or the key in group 1; `name_child` is the tag that holds the name where
    the call tag has none. A second group of `parameter_tag`, where it has one and it matched, is the value's type as the model says: `true` and
    `string` for text as it stands, anything else for JSON.
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
    bare_name: bool = False
    """The name is the text before the first tag; there is no call tag."""
    key_tags: tuple[str, str] | None = None
    """The key stands behind `parameter_tag`: what closes it, and what opens the value."""
    tag_starts: tuple[str, ...] = ("<",)
    tag_end: str = ">"
    body_tags: tuple[re.Pattern[str], str] | None = None
    """What stands around the arguments as JSON."""
    attribute_entities: bool = False
    parameter_start: str = ""
    """How every parameter tag begins. A value that holds one may have lost its closer; empty: closers bear their parameter's name."""
    not_inside: tuple[str, ...] = ()
    """What no value holds: one that does has lost a tag. `{key}` stands for the parameter's name."""
    first: str = "<"


@dataclass(frozen=True, slots=True)
class ElementBlock:
    """`<NAME>` … `</NAME>`: inside it children with the arguments, a YAML mapping, or a JSON object. Its opener is the whole tag."""

    children: TagBlock
    first: str = "<"

    @property
    def call_close(self) -> str:
        return self.children.call_close

    @property
    def wrapper_closers(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class PythonBlock:
    """Python calls with keyword arguments, `NAME(key=value, …)`: in a list, or one after another; also envelopes of JSON in their place."""

    wrapper_closers: tuple[str, ...] = ()
    exact: bool = False
    """Only a list, and no envelopes: for a marker that is ordinary text. A call is held until it is whole."""
    call_close: str = ")"
    first: str = "[{_" + string.ascii_letters


@dataclass(frozen=True, slots=True)
class GemmaBlock:
    """`call:NAME{key:value, …}` in Gemma's own literals."""

    quote: str
    """Stands on both sides of a string, which has no escapes."""
    wrapper_closers: tuple[str, ...]
    untyped: bool = False
    """Numbers and objects stand between quotes as well: the schema tells."""
    call_close: str = "}"
    first: str = "c"


@dataclass(frozen=True, slots=True)
class HeadedBlock:
    """Calls with their name in a header, then JSON: `functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`, one or several.

    A header is made of what `words` matches and of `marks`, each at most once; it ends where neither stands. The first of `headers` that matches all
    of it, with a known tool as `name`, tells name and, where it has such a group, `id`.
    """

    headers: tuple[re.Pattern[str], ...]
    words: re.Pattern[str]
    marks: tuple[str, ...]
    call_close: str
    wrapper_closers: tuple[str, ...] = ()
    """What else may stand behind a call, each at most once, in any order; all closers may be missing."""
    call_openers: tuple[str, ...] = ()
    """What must stand before every call but the first."""
    open_ended: bool = False
    """The closer is seldom written: arguments that are no JSON end with their line."""
    first: str = ""


class Grammar(Protocol):
    """What follows an opener. `first`: the characters that may stand first, white space apart; they tell apart what shares a marker."""

    @property
    def first(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Opener:
    """`whole`: the marker is itself the beginning of the call's tag. `line_start`: only white space may stand before it on its line; `answer_start`:
    in the whole answer, so that ordinary words can be a marker there and cost nothing behind it.
    """

    marker: str
    block: Grammar
    whole: bool = False
    line_start: bool = False
    answer_start: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """`recovery`: what models write by habit, not what Toolwire taught: bound by law 12's rules on quotations."""

    name: str
    openers: tuple[Opener, ...]
    recovery: bool = True
    note: str = field(default="", compare=False)

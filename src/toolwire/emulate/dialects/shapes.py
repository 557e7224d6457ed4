"""The data types of dialects: openers, and the shapes of the blocks that follow them.

Each shape holds the facts of one format. The table `GRAMMARS` in `emulate/scanner.py` names the grammar that
reads it.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, field
from typing import Protocol

NONCE = "{nonce}"
"""Placeholder for the request's token in the sentinel's markers."""
TOOL = "{tool}"
"""Placeholder for the name of each declared tool, in markers that contain it."""

_ENVELOPE = frozenset({"name", "arguments", "parameters", "type", "id", "function"})


@dataclass(frozen=True, slots=True)
class JsonBlock:
    """One or several `{"name": …, "arguments": …}`, in any key order, also as an array, and a closer."""

    closers: tuple[str, ...] = ()
    name_keys: frozenset[str] = frozenset({"name"})
    arguments_keys: frozenset[str] = frozenset({"arguments", "parameters"})
    exact: bool = False
    """Accept only an envelope's keys, and require arguments: for a marker that is ordinary JSON."""
    known_keys: frozenset[str] = _ENVELOPE
    separators: str = ","
    """What may be between two objects."""
    separated: bool = False
    """Another object must follow a separator."""
    open_ended: bool = False
    """Models seldom write the closer: arguments that are not JSON end with their line."""
    first: str = "{["


@dataclass(frozen=True, slots=True)
class TagBlock:
    """Calls as tags, with values as text between tags. The arguments may also be one JSON object.

    `call_tag` and `parameter_tag` match one whole tag; group 1 is the name of the call or the key.
    `name_child` is the tag around the name if the call tag has none. Group 2 of `parameter_tag`, if it
    matched, is the value's type: `true` and `string` mean text, anything else JSON.
    """

    call_tag: re.Pattern[str]
    call_close: str
    parameter_tag: re.Pattern[str]
    parameter_close: str
    wrapper_closers: tuple[str, ...] = ()
    name_child: str | None = None
    entities: bool = False
    trim_newline: bool = False
    """One newline after the opening tag and one before the closing tag of a value belong to the markup."""
    bare_name: bool = False
    """The name is the text before the first tag; there is no call tag."""
    key_tags: tuple[str, str] | None = None
    """The key follows `parameter_tag`. The tags that close the key and open the value."""
    tag_starts: tuple[str, ...] = ("<",)
    tag_end: str = ">"
    body_tags: tuple[re.Pattern[str], str] | None = None
    """The tags around arguments that are one JSON object."""
    attribute_entities: bool = False
    parameter_start: str = ""
    """How every parameter tag begins. A value with one inside may have lost its closer.

    Empty: the closer contains the parameter's name.
    """
    not_inside: tuple[str, ...] = ()
    """Texts that no value contains: a value with one has lost a tag. `{key}` is the parameter's name."""
    first: str = "<"


@dataclass(frozen=True, slots=True)
class ElementBlock:
    """`<NAME>` … `</NAME>` around child elements, a YAML mapping or a JSON object.

    The opener is the whole tag.
    """

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
    """Python calls `NAME(key=value, …)`, in a list or one after another. JSON envelopes are accepted too."""

    wrapper_closers: tuple[str, ...] = ()
    exact: bool = False
    """Accept only a list, without envelopes, and hold calls until complete: for an ordinary marker."""
    call_close: str = ")"
    first: str = "[{_" + string.ascii_letters


@dataclass(frozen=True, slots=True)
class GemmaBlock:
    """`call:NAME{key:value, …}` in Gemma's own literals."""

    quote: str
    """The mark on both sides of a string. Strings have no escapes."""
    wrapper_closers: tuple[str, ...]
    untyped: bool = False
    """Numbers and objects are in quotes too, so the schema decides the type."""
    call_close: str = "}"
    first: str = "c"


@dataclass(frozen=True, slots=True)
class HeadedBlock:
    """The name in a header, then JSON: `functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`.

    A header consists of `words` and of `marks`, each mark at most once. The first of `headers` that matches
    all of it with a known tool as `name` gives the name and, if it has such a group, the `id`.
    """

    headers: tuple[re.Pattern[str], ...]
    words: re.Pattern[str]
    marks: tuple[str, ...]
    call_close: str
    wrapper_closers: tuple[str, ...] = ()
    """Further closers, each at most once and in any order. All closers may be missing."""
    call_openers: tuple[str, ...] = ()
    """What must come before every call except the first."""
    open_ended: bool = False
    """Models seldom write the closer: arguments that are not JSON end with their line."""
    first: str = ""


class Grammar(Protocol):
    """A shape.

    `first`: the characters that may come first after white space; they separate shapes with one marker.
    """

    @property
    def first(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Opener:
    """A marker that may begin a block.

    `whole`: the marker is itself the beginning of the call's tag. `line_start`: only white space may come
    before it on its line. `answer_start`: only white space may come before it in the answer, so that ordinary
    words can be a marker there and cost nothing later.
    """

    marker: str
    block: Grammar
    whole: bool = False
    line_start: bool = False
    answer_start: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """One format of calls.

    `recovery`: the prompt does not teach it, so law 12's rules on quotations apply.
    """

    name: str
    openers: tuple[Opener, ...]
    recovery: bool = True
    note: str = field(default="", compare=False)

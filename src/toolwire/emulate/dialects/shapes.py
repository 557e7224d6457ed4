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
"""Placeholder for the request's token in the markers of the dialect `sentinel`."""
TOOL = "{tool}"
"""Placeholder for a tool's name. A marker that contains it becomes one marker for each declared tool."""

_ENVELOPE = frozenset({"name", "arguments", "parameters", "type", "id", "function"})


@dataclass(frozen=True, slots=True)
class JsonBlock:
    """One or more objects `{"name": …, "arguments": …}`, or an array of them, and a closer.

    The keys of an object may be in any order.
    """

    closers: tuple[str, ...] = ()
    name_keys: frozenset[str] = frozenset({"name"})
    arguments_keys: frozenset[str] = frozenset({"arguments", "parameters"})
    exact: bool = False
    """Whether to accept only the keys in `known_keys`, and to require arguments.

    Used for markers that may also be part of ordinary JSON, such as `{`.
    """
    known_keys: frozenset[str] = _ENVELOPE
    separators: str = ","
    """Characters that may be between two objects."""
    separated: bool = False
    """Whether a separator must come before each further object."""
    open_ended: bool = False
    """Whether models seldom write the closer.

    If so, arguments that are not valid JSON end at the end of their line.
    """
    first: str = "{["


@dataclass(frozen=True, slots=True)
class TagBlock:
    """Calls as tags. Arguments are texts between tags, or one JSON object.

    `call_tag` and `parameter_tag` match one whole tag; group 1 is the tool's name or the parameter's key.
    Group 2 of `parameter_tag`, if the dialect has it, is the value's type: `true` and `string` mean text,
    anything else JSON. `wrapper_closers` are the closing tags of the element around all calls. `name_child`
    is the tag around the tool's name, in dialects where the call tag does not contain it. `entities`: values
    may contain XML entities. `attribute_entities`: the attributes of tags may contain XML entities.
    """

    call_tag: re.Pattern[str]
    call_close: str
    parameter_tag: re.Pattern[str]
    parameter_close: str
    wrapper_closers: tuple[str, ...] = ()
    name_child: str | None = None
    entities: bool = False
    trim_newline: bool = False
    """Whether newlines after the opening tag and before the closing tag do not belong to the value."""
    bare_name: bool = False
    """Whether the tool's name is the text before the first tag, without a tag for the call."""
    key_tags: tuple[str, str] | None = None
    """The tags that close the key and open the value.

    Used for dialects in which the key is text after `parameter_tag`.
    """
    tag_starts: tuple[str, ...] = ("<",)
    tag_end: str = ">"
    body_tags: tuple[re.Pattern[str], str] | None = None
    """The tags around arguments that are one JSON object."""
    attribute_entities: bool = False
    parameter_start: str = ""
    """How every parameter tag begins; empty if the closing tag contains the parameter's name.

    If a value contains this text, the value's closing tag may be missing.
    """
    not_inside: tuple[str, ...] = ()
    """Texts that cannot be part of a value: if one is found, a tag is missing.

    `{key}` is replaced by the parameter's name.
    """
    first: str = "<"


@dataclass(frozen=True, slots=True)
class ElementBlock:
    """A call as an XML element with the tool's name, such as `<read_note>…</read_note>`.

    The element contains the arguments: child elements, a YAML mapping or a JSON object. `children` is the
    shape of the child elements. The opening tag is the marker of the `Opener`.
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
    """Python calls `NAME(key=value, …)`, in a list or one after another.

    Unless the block is `exact`, JSON objects with a name and arguments are accepted too.
    """

    wrapper_closers: tuple[str, ...] = ()
    exact: bool = False
    """Whether to accept only a list of Python calls, and to hold each call until it is complete.

    Used for markers that ordinary text may contain too.
    """
    call_close: str = ")"
    first: str = "[{_" + string.ascii_letters


@dataclass(frozen=True, slots=True)
class GemmaBlock:
    """A call as `call:NAME{key:value, …}`, in Gemma's own literals."""

    quote: str
    """The mark before and after a string. Strings have no escapes."""
    wrapper_closers: tuple[str, ...]
    untyped: bool = False
    """Whether numbers and objects are in quotes too.

    If so, the tool's schema decides the type of each value.
    """
    call_close: str = "}"
    first: str = "c"


@dataclass(frozen=True, slots=True)
class HeadedBlock:
    """A header with the tool's name, then the arguments as JSON.

    For example `functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`. A header consists of
    `words` and of `marks`, each mark at most once. A pattern of `headers` matches a whole header; its groups
    are `name` and, in some dialects, `id`. A match with the name of a known tool is preferred.
    """

    headers: tuple[re.Pattern[str], ...]
    words: re.Pattern[str]
    marks: tuple[str, ...]
    call_close: str
    wrapper_closers: tuple[str, ...] = ()
    """Further closers, each at most once and in any order. Any closer of the block may be missing."""
    call_openers: tuple[str, ...] = ()
    """Every call except the first must begin with one of these markers."""
    open_ended: bool = False
    """Whether models seldom write the closer.

    If so, arguments that are not valid JSON end at the end of their line.
    """
    first: str = ""


class Grammar(Protocol):
    """The members that all shapes of blocks have in common.

    `first`: the characters with which a block may begin, after white space. If openers with different shapes
    have the same marker, the first character of the block decides which shape is read.
    """

    @property
    def first(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Opener:
    """A marker that may begin a block.

    `whole`: the marker is itself the beginning of the call. `line_start`: only white space may come before
    the marker on its line. `answer_start`: only white space may come before the marker in the answer.
    """

    marker: str
    block: Grammar
    whole: bool = False
    line_start: bool = False
    answer_start: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """One format of calls.

    `recovery`: the prompt does not teach this format. A block in this format is not a call if it is in code
    or is copied from the request. `note`: which models write this format.
    """

    name: str
    openers: tuple[Opener, ...]
    recovery: bool = True
    note: str = field(default="", compare=False)

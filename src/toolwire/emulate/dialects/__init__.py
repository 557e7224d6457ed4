"""How models write tool calls in text: every format is data, and one kernel (`emulate/scanner.py`) reads them all.

A dialect has openers: literal markers that may begin a block, each with the grammar of what follows. An opener is a candidate, not a commitment: a
block that does not keep its grammar up to a known tool's name goes back to being text. No opener is the beginning of another. Standard library
only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class Opener:
    """`whole`: the marker is itself the beginning of the call's tag. `line_start`: only white space may stand before it on its line."""

    marker: str
    block: JsonBlock | TagBlock
    whole: bool = False
    line_start: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """`recovery`: what models write by habit, not what Toolwire taught: bound by law 12's rules on quotations."""

    name: str
    openers: tuple[Opener, ...]
    recovery: bool = True
    note: str = field(default="", compare=False)


_NAME_ATTRIBUTE = r"""\s+name\s*=\s*["']([^"'<>]+)["']\s*>"""

_QWEN = TagBlock(
    call_tag=re.compile(r"<function=\s*[\"']?([^\"'<>\s]+)[\"']?\s*>"),
    call_close="</function>",
    parameter_tag=re.compile(r"<parameter=\s*([^<>\n]+?)\s*>"),
    parameter_close="</parameter>",
    wrapper_closers=("</tool_call>",),
    trim_newline=True,
)
_ANTHROPIC = TagBlock(
    call_tag=re.compile(r"<invoke" + _NAME_ATTRIBUTE),
    call_close="</invoke>",
    parameter_tag=re.compile(r"<parameter" + _NAME_ATTRIBUTE),
    parameter_close="</parameter>",
    wrapper_closers=("</function_calls>",),
)
_USE_TOOL = TagBlock(
    call_tag=re.compile(r"""<use_tool(?:\s+name\s*=\s*["']([^"'<>]+)["'])?\s*>"""),
    call_close="</use_tool>",
    parameter_tag=re.compile(r"<([A-Za-z_][\w.-]*)\s*>"),
    parameter_close="</{key}>",
    name_child="name",
    entities=True,
)
_FENCED = JsonBlock(closers=("```",), exact=True)
_FENCE_WORDS = ("json", "tool_call", "tool_calls", "tool", "")

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect(
            "sentinel",
            (Opener(f"<tool_call:{NONCE}>", JsonBlock(closers=(f"</tool_call:{NONCE}>", "</tool_call>"))),),
            recovery=False,
            note="what Toolwire teaches; its token is fresh for every request",
        ),
        Dialect("hermes", (Opener("<tool_call>", JsonBlock(closers=("</tool_call>",))),), note="Hermes 2/3, Qwen2.5, Qwen3 and many fine-tunes"),
        Dialect(
            "use_tool",
            (Opener("<use_tool>", _USE_TOOL, whole=True), Opener("<use_tool ", _USE_TOOL, whole=True)),
            note="older Obsidian Copilot prompts",
        ),
        Dialect(
            "qwen_xml",
            (Opener("<tool_call>", _QWEN), Opener("<function=", _QWEN, whole=True)),
            note="Qwen3-Coder, Qwen3.5, Nemotron 3, MiMo",
        ),
        Dialect(
            "anthropic",
            (Opener("<function_calls>", _ANTHROPIC), Opener("<invoke ", _ANTHROPIC, whole=True)),
            note="Claude-trained habit",
        ),
        Dialect("bare", (Opener("{", JsonBlock(exact=True), whole=True, line_start=True),), note="small models that leave the markers out"),
        Dialect(
            "fenced",
            tuple(Opener(f"```{word}\n", _FENCED, line_start=True) for word in _FENCE_WORDS),
            note="a call in a code fence",
        ),
    )
}

DEFAULT = ("sentinel", "hermes", "use_tool")
TAUGHT = ("sentinel",)


def select(names: Iterable[str] | None) -> list[Dialect]:
    """Dialects by name, in the order given. An unknown name is a ValueError that lists the known ones."""
    chosen = []
    for name in DEFAULT if names is None else names:
        if name not in DIALECTS:
            raise ValueError(f"unknown dialect {name!r}; known: {', '.join(DIALECTS)}")
        chosen.append(DIALECTS[name])
    return chosen

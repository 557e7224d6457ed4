"""Measures the scanner: the CPU time for each piece of four characters, about a token.

Measures pieces of prose and pieces of a call, and whether the cost grows with the length of the text before
the piece. Two baselines run in the same process: a method call that appends to a list, and `json.loads` of
the whole text. The figures are medians of the CPU times of several rounds.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from time import process_time_ns
from typing import Any

from bench.report import Row, figure
from toolwire.emulate.dialects import DIALECTS
from toolwire.emulate.scanner import ToolCallParser

PIECE = 4
SIZES = {"1 KB": 1_000, "10 KB": 10_000, "100 KB": 100_000, "1 MB": 1_000_000}
MARK_US = 3.0
"""The maximum cost of a piece on the reference machine."""
FLAT_PERCENT = 20.0
TOOLS: list[dict[str, Any]] = [
    {"name": "look", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}
]
WORDS = "The quick brown fox jumps over the lazy dog, and 2 < 3; then it sleeps. "
STRING = 'He said \\"no\\", then left.\\nThe next line has a tab\\t and a caf\\u00e9. '


def _filled(sentence: str, size: int) -> str:
    return (sentence * (size // len(sentence) + 1))[:size]


def _text_arguments(size: int) -> str:
    """Returns one long string with escapes, like the argument of a tool that writes a file."""
    return f'{{"text": "{STRING * max(1, size // len(STRING))}"}}'


def _member_arguments(size: int) -> str:
    """Returns an object with many small members, which has the most JSON tokens for its length."""
    return (
        "{" + ", ".join(f'"k{number}": [{number}, true, "v"]' for number in range(max(1, size // 28))) + "}"
    )


Stream = tuple[str, str, str]
"""The text before the measured text, the measured text, and the end of the block."""
ENVELOPE = '<tool_call>{"name": "look", "arguments": '
STREAMS: dict[str, Callable[[int], Stream]] = {
    "prose": lambda size: ("", _filled(WORDS, size), ""),
    "call, eager": lambda size: (ENVELOPE, _text_arguments(size), "}</tool_call>"),
    "call, validated": lambda size: (ENVELOPE, _text_arguments(size), "}</tool_call>"),
    "call with many small members, eager": lambda size: (ENVELOPE, _member_arguments(size), "}</tool_call>"),
    "tagged call, eager": lambda size: (
        "<tool_call><function=look><parameter=text>",
        _filled(WORDS, size),
        "</parameter></function></tool_call>",
    ),
}
DIALECTS_OF = {"tagged call, eager": ("hermes", "qwen_xml")}


class _Empty:
    """The baseline: a parser whose `feed` only appends to a list."""

    def __init__(self) -> None:
        self.out: list[str] = []

    def feed(self, text: str) -> list[str]:
        self.out.append(text)
        return []


def _pieces(text: str) -> list[str]:
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def _cost(make: Callable[[], Any], pieces: Sequence[str], rounds: int) -> float:
    """Returns the CPU microseconds for each piece.

    Short texts are read repeatedly, each time by a new parser.
    """
    again = max(1, 12_500 // max(1, len(pieces)))
    found = []
    for _ in range(rounds if len(pieces) < 100_000 else min(rounds, 3)):
        parsers = [make() for _ in range(again)]
        gc.collect()
        began = process_time_ns()
        for parser in parsers:
            feed = parser.feed
            for piece in pieces:
                feed(piece)
        found.append((process_time_ns() - began) / 1e3 / again / len(pieces))
    return median(found)


def _opened(kind: str, before: str) -> ToolCallParser:
    parser = ToolCallParser(
        TOOLS, DIALECTS_OF.get(kind), arguments="validated" if "validated" in kind else "eager"
    )
    parser.feed(before)
    return parser


def _checked(kind: str, stream: Stream) -> None:
    """Checks the parser's result: figures of a wrong result would be worthless."""
    before, inside, behind = stream
    parser = _opened(kind, "")
    events = parser.feed(before + inside + behind) + parser.finish()
    statuses = [event.status for event in events if hasattr(event, "status")]
    if kind != "prose" and statuses != ["ok"]:
        raise RuntimeError(f"{kind}: expected one good call, got {statuses}")


# --- all dialects against one ---

ALL_MARK = 1.5
"""The maximum cost of a piece with all dialects enabled, relative to a single dialect."""
MARKDOWN = (
    "- [ ] See [the notes](notes.md), [[Links]] and [1]: f(x)[0] is `a[i]` <b>or</b> {set}, 2 < 3.\n"
    "> [!note] *[look](look.md)*, [tool_7](b)\n"
)
MANY = [*TOOLS, *({"name": f"tool_{number}", "parameters": TOOLS[0]["parameters"]} for number in range(127))]
COMPARED: dict[str, tuple[str, Stream]] = {
    "prose": ("hermes", ("", _filled(WORDS, 50_000), "")),
    "Markdown with brackets": ("hermes", ("", _filled(MARKDOWN, 50_000), "")),
    "JSON call": ("hermes", (ENVELOPE, _text_arguments(50_000), "}</tool_call>")),
    "tagged call": ("qwen_xml", STREAMS["tagged call, eager"](50_000)),
}
"""For each kind of text, the text and the single dialect with which all dialects are compared."""


def _feeding(make: Callable[[], ToolCallParser], pieces: Sequence[str]) -> float:
    """Returns the CPU microseconds for each piece."""
    feed = make().feed
    gc.collect()
    began = process_time_ns()
    for piece in pieces:
        feed(piece)
    return (process_time_ns() - began) / 1e3 / len(pieces)


def against_one(quick: bool = False) -> list[Row]:
    """Compares all dialects with a single one.

    They are measured in turns, so that a disturbance affects both. The median of these pairs counts.
    """
    rows = []
    for tools, many in ((TOOLS, "1 tool"), (MANY, "128 tools")):
        for kind, (one, (before, inside, _)) in COMPARED.items():
            pieces = _pieces(inside)

            def opened(*dialects: str, tools: Any = tools, before: str = before) -> ToolCallParser:
                parser = ToolCallParser(tools, dialects, nonce="k7Qz")
                parser.feed(before)
                return parser

            pairs = []
            for _ in range(5 if quick else 15):
                alone = _feeding(lambda one=one: opened(one), pieces)  # type: ignore[misc]
                pairs.append((_feeding(lambda: opened(*DIALECTS), pieces), alone))
            ratio = median(every / alone for every, alone in pairs)
            detail = (
                f"{figure(median(pair[0] for pair in pairs))} against "
                f"{figure(median(pair[1] for pair in pairs))} µs per chunk with {one} alone"
            )
            rows.append(
                Row(
                    f"all {len(DIALECTS)} dialects, compared with one: {kind}, {many}",
                    ratio,
                    detail,
                    "at most",
                    ALL_MARK,
                )
            )
    return rows


def costs(quick: bool = False) -> list[Row]:
    """Returns rows with the cost for each kind of text, and rows on how much it depends on the length."""
    rows: list[Row] = []
    rounds = 3 if quick else 5
    _cost(lambda: _opened("prose", ""), _pieces(_filled(WORDS, 100_000)), 3)  # the interpreter warms up
    empty = _cost(_Empty, _pieces(_filled(WORDS, 100_000)), rounds)
    rows.append(Row("baseline: append each chunk to a list", empty, "per chunk", unit="µs"))
    whole = _text_arguments(100_000)
    again = [process_time_ns()]
    for _ in range(20):
        json.loads(whole)
        again.append(process_time_ns())
    loads = median(after - before for before, after in pairwise(again)) / 1e3 / (len(whole) / PIECE)
    rows.append(
        Row("for comparison: json.loads of the whole text", loads, "100 KB; per 4 characters", unit="µs")
    )
    sizes = {name: size for name, size in SIZES.items() if not quick or size < 1_000_000}
    for kind, stream_of in STREAMS.items():
        by_size: dict[str, float] = {}
        for name, size in sizes.items():
            stream = stream_of(size)
            _checked(kind, stream)
            by_size[name] = _cost(partial(_opened, kind, stream[0]), _pieces(stream[1]), rounds)
        middle = median(by_size.values())
        spread = max(abs(cost / middle - 1) for cost in by_size.values()) * 100
        detail = ", ".join(f"{name} {figure(cost)}" for name, cost in by_size.items())
        rows.append(
            Row(
                f"{kind}: cost per chunk",
                middle,
                f"{detail}; {figure(middle / empty)} × the baseline",
                "at most",
                MARK_US,
                "µs",
            )
        )
        rows.append(
            Row(
                f"{kind}: cost per chunk, difference between sizes",
                spread,
                "largest difference from the median",
                "at most",
                FLAT_PERCENT,
                "%",
            )
        )
    return rows


ADVERSE: dict[str, tuple[str, int]] = {
    "`<` × 1 M": ("<", 1_000_000),
    "`{` × 1 M": ("{", 1_000_000),
    "`<tool_call>` × 100 k": ("<tool_call>", 100_000),
    '`<tool_call>{"name": "` × 50 k': ('<tool_call>{"name": "', 50_000),
    "newline and brace × 500 k": ("\n{", 500_000),
    "backticks × 1 M": ("`", 1_000_000),
    "`<use_tool ` × 90 k": ("<use_tool ", 90_000),
    "`[` × 1 M": ("[", 1_000_000),
    "`<look>` × 100 k": ("<look>", 100_000),
    "`<｜tool▁call▁begin｜>` × 100 k": ("<｜tool▁call▁begin｜>", 100_000),
    "`<|channel|>a` × 100 k": ("<|channel|>a", 100_000),
}


def _adverse_cost(text: str, piece: int) -> float:
    """Returns the microseconds for each 4 characters, including the end of the text."""
    parser = ToolCallParser(TOOLS, tuple(DIALECTS), nonce="k7Qz")
    pieces = [text[start : start + piece] for start in range(0, len(text), piece)]
    kept = 0
    gc.collect()
    began = process_time_ns()
    for each in pieces:
        kept += sum(len(event.text) for event in parser.feed(each) if hasattr(event, "text"))
    kept += sum(len(event.text) for event in parser.finish() if hasattr(event, "text"))
    took = (process_time_ns() - began) / 1e3
    if kept != len(text):
        raise RuntimeError(f"{len(text) - kept} characters were lost of {text[:40]!r}…")
    return took / (len(text) / PIECE)


def adverse(quick: bool = False, rounds: int = 1) -> list[Row]:
    """Measures texts that are made to be expensive, in pieces of 4 characters and in one piece.

    Compares the cost per character at the full length with the cost at a tenth of this length, in turns.
    """
    rows = []
    for name, (unit, times) in ADVERSE.items():
        if quick:
            name, times = f"{name}, a tenth of it", times // 10
        text, tenth = unit * times, unit * (times // 10)
        for piece, how in ((PIECE, "in chunks of 4"), (len(text), "in one chunk")):
            pairs = [
                (median(_adverse_cost(tenth, piece) for _ in range(3)), _adverse_cost(text, piece))
                for _ in range(rounds)
            ]
            growth = median(full / short for short, full in pairs)
            detail = (
                f"{figure(median(pair[0] for pair in pairs))} → "
                f"{figure(median(pair[1] for pair in pairs))} µs per 4 characters"
            )
            rows.append(
                Row(
                    f"{name}, {how}: cost compared with a text of a tenth of the length",
                    growth,
                    detail,
                    "at most",
                    1 + FLAT_PERCENT / 100,
                )
            )
    text = f'<tool_call>{{"name": "look", "arguments": {_text_arguments(SIZES["1 MB"])}}}</tool_call>'
    began = process_time_ns()
    parser = ToolCallParser(TOOLS)
    events = parser.feed(text) + parser.finish()
    took = (process_time_ns() - began) / 1e6
    rows.append(Row("one call of 1 MB in one chunk", took, f"{len(events)} events", unit="ms"))
    return rows


def run(quick: bool = False, rounds: int = 1) -> list[Row]:
    """Runs all measurements. `rounds`: how often `adverse` measures each text, which takes seconds."""
    return costs(quick) + against_one(quick) + adverse(quick, rounds)

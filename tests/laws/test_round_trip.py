"""Any JSON arguments survive every dialect, however the text is split.

This includes arguments with markers inside strings. The text around a call does not change, and a call that
was cut off is never completed. `bench/dialects.py` runs the same checks on many more cases.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from toolwire.core.events import CallArgs, CallEnd, Text
from toolwire.emulate.dialects import DIALECTS
from toolwire.emulate.dialects.render import render
from toolwire.emulate.scanner import ToolCallParser

ROOT = Path(__file__).resolve().parents[2]


def load(module: str) -> Any:
    """Imports a module of the fuzzer by its path, because it is not part of the package."""
    package, _, _ = module.partition(".")
    if package not in sys.modules:
        folder = ROOT / package
        spec = importlib.util.spec_from_file_location(
            package, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None and spec.loader is not None
        sys.modules[package] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[package])
    return importlib.import_module(module)


laws = load("fuzz.dialect_laws")
accidents = load("fuzz.mutation_laws")
NONCE = load("fuzz.generate").TOKEN
MARKERS = [
    *load("fuzz.generate").MARKERS,
    "</a>",
    "<f>",
    "</f>",
    "[f(",
    "\\u003c",
    '"',
    "'",
    "\\",
    "\n",
    "\r\n",
    "\x00",
    "\u2028",
    "😀",
]
texts = st.text(max_size=12) | st.lists(st.sampled_from(MARKERS) | st.text(max_size=4), max_size=6).map(
    "".join
)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
plain_keys = st.sampled_from(["a", "b", "name", "city_2", "x-y", "input"])
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "city_2": {"type": "string"}}}


@st.composite
def argument_objects(draw: st.DrawFn) -> dict[str, Any]:
    """Draws arguments that fit the schema: `a` and `city_2` are strings, others have any value."""
    out: dict[str, Any] = draw(st.dictionaries(plain_keys | texts, values, max_size=4))
    return {key: (draw(texts) if key in ("a", "city_2") else value) for key, value in out.items()}


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(sorted(DIALECTS)),
    argument_objects(),
    st.booleans(),
    st.sampled_from(["eager", "validated"]),
    st.lists(st.integers(0, 400), max_size=8),
)
@example("qwen_xml", {"a": '"quoted"', "b": "5"}, False, "eager", [])
@example("use_tool", {"a": "</a> & <b>", "b": "null"}, False, "eager", [3, 9])
def test_any_arguments_survive_every_dialect(
    dialect: str, arguments: dict[str, Any], ascii_only: bool, mode: Any, cuts: list[int]
) -> None:
    written = render(dialect, "f", json.dumps(arguments, ensure_ascii=ascii_only), schema=SCHEMA, nonce=NONCE)
    text = "Before it.\n" + written + "\nBehind it."
    parser = ToolCallParser([{"type": "function", "name": "f", "parameters": SCHEMA}], [dialect], mode, NONCE)
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    events = [
        event for start, end in pairwise(places) for event in parser.feed(text[start:end])
    ] + parser.finish()
    assert [event.status for event in events if isinstance(event, CallEnd)] == ["ok"]
    assert json.loads("".join(event.delta for event in events if isinstance(event, CallArgs))) == arguments
    assert "".join(event.text for event in events if isinstance(event, Text)) == "Before it.\n\nBehind it."


def test_the_markers_are_those_of_every_dialect() -> None:
    for wanted in (
        "<|channel|>",
        "<｜tool▁sep｜>",
        "[ARGS]",
        "</look>",
        "[look(",
        "<escape>",
        "<|tool_call_begin|>",
        "<|close|>argument<|sep|>",
    ):
        assert wanted in MARKERS


@pytest.mark.parametrize("dialect", DIALECTS)
def test_random_calls_at_random_splits_come_back_exactly(dialect: str) -> None:
    for number in range(20):
        laws.judge_round_trip(laws.draw_calls(Random(f"short/{dialect}/{number}"), dialect))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_call_cut_at_any_position_ends_with_length_and_is_never_completed(dialect: str) -> None:
    """Until its tool is known, the cut call is text. After that, it is a truncated call.

    It is complete only with all of its arguments.
    """
    for number in range(2):
        text, truncated, _ = laws.judge_every_cut(laws.draw_cut(Random(f"short/{dialect}/{number}"), dialect))
        assert text and truncated


@pytest.mark.parametrize("dialect", DIALECTS)
def test_one_error_in_the_markup_never_gives_other_arguments(dialect: str) -> None:
    """The outcome is the same call, or text, or a call that is marked as invalid."""
    for number in range(60):
        accidents.judge(accidents.draw(Random(f"short/{dialect}/{number}"), dialect))


def test_a_json_call_that_was_cut_inside_its_closing_tag_is_truncated() -> None:
    parser = ToolCallParser([{"name": "look"}], ["tag_is_tool"])
    events = parser.feed('<look>{"q": 1}</lo') + parser.finish("length")
    assert [(event.status if isinstance(event, CallEnd) else event) for event in events[1:]] == [
        CallArgs(0, '{"q": 1}'),
        "truncated",
    ]

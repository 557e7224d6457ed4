"""Reasoning in a model's text: what is thought, what is answer, and which calls count."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwire.core.events import CallArgs, CallBegin, CallEnd, Event, Text, Thought
from toolwire.emulate.dialects import DIALECTS
from toolwire.emulate.scanner import ScanLimits, ToolCallParser
from toolwire.emulate.thoughts import THOUGHTS, Markers

TOOLS = [{"name": "look", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}]
CALL = '<tool_call>\n{"name": "look", "arguments": {"q": "x"}}\n</tool_call>'
MADE = ["call", "look", '{"q": "x"}', "ok"]


def rows(events: list[Event]) -> list[list[str]]:
    out: list[list[str]] = []
    for event in events:
        if isinstance(event, Text | Thought):
            kind = "text" if isinstance(event, Text) else "thought"
            if out and out[-1][0] == kind:
                out[-1][1] += event.text
            else:
                out.append([kind, event.text])
        elif isinstance(event, CallBegin):
            out.append(["call", event.name, "", ""])
        elif isinstance(event, CallArgs):
            out[-1][2] += event.delta
        elif isinstance(event, CallEnd):
            out[-1][3] = event.status
    return out


def read(
    pieces: list[str],
    *,
    reason: str = "eof",
    tools: Any = TOOLS,
    dialects: Any = None,
    mentions: bool = False,
    **options: Any,
) -> list[list[str]]:
    parser = ToolCallParser(tools, dialects, nonce="k7", thoughts=lambda _: mentions, **options)
    return rows([event for piece in pieces for event in parser.feed(piece)] + parser.finish(reason))


def agreed(text: str, **options: Any) -> list[list[str]]:
    """The result, which must not depend on the splits."""
    whole = read([text], **options)
    assert read(list(text), **options) == whole
    for cut in range(1, len(text)):
        assert read([text[:cut], text[cut:]], **options) == whole, cut
    return whole


@pytest.mark.parametrize("markers", THOUGHTS, ids=lambda markers: markers.opener)
@pytest.mark.parametrize("tools", [TOOLS, ()], ids=["tools", "none"])
def test_every_family_s_thoughts_are_split_from_the_answer(markers: Markers, tools: Any) -> None:
    for then in ("", *markers.then):
        text = f" \n{markers.opener}\nI see 1 < 2.\n{markers.closer}{then}\n\nThe answer."
        assert agreed(text, tools=tools, dialects=tuple(DIALECTS)) == [
            ["thought", "I see 1 < 2."],
            ["text", "The answer."],
        ]


@pytest.mark.parametrize("markers", THOUGHTS, ids=lambda markers: markers.opener)
def test_a_call_in_a_closed_thought_is_a_part_of_the_thought(markers: Markers) -> None:
    text = f"{markers.opener}I could call {CALL} but I know it.{markers.closer}\nSunny."
    assert (
        read([text])
        == read(list(text))
        == [["thought", f"I could call {CALL} but I know it."], ["text", "Sunny."]]
    )


def test_a_call_in_a_thought_that_never_closes_is_made_if_the_model_ended_its_answer() -> None:
    text = f"<think>I call it: {CALL}"
    assert agreed(text) == [["thought", "I call it: "], MADE]
    for reason in ("length", "cancelled"):
        assert (
            read([text], reason=reason)
            == read(list(text), reason=reason)
            == [["thought", text.removeprefix("<think>")]]
        )


@pytest.mark.parametrize(
    ("text", "out"),
    [
        pytest.param(
            f"<think>a</think>{CALL}\n<think>b</think>{CALL}",
            [["thought", "a"], MADE, ["thought", "b"], MADE],
            id="around calls",
        ),
        pytest.param(
            "<think>a</think>\n<think>b</think>c", [["thought", "ab"], ["text", "c"]], id="one after another"
        ),
        pytest.param("<think>\n\n</think>\n\nHi", [["text", "Hi"]], id="an empty one"),
        pytest.param(
            '<think>a</think>\n\n{"b": 1}', [["thought", "a"], ["text", '{"b": 1}']], id="before JSON"
        ),
        pytest.param(
            "<think>a mention of <tool_call> only",
            [["thought", "a mention of <tool_call> only"]],
            id="a marker that is no call",
        ),
        pytest.param(
            f"<think>a\n```\n{CALL}\n```\n",
            [["thought", f"a\n```\n{CALL}\n```\n"]],
            id="a call in a fence in a thought",
        ),
        pytest.param("Say <think>x</think>.", [["text", "Say <think>x</think>."]], id="in prose"),
        pytest.param("`<think>`x</think>", [["text", "`<think>`x</think>"]], id="in code"),
        pytest.param(
            "```\n<think>\n</think>\n```", [["text", "```\n<think>\n</think>\n```"]], id="in a fence"
        ),
        pytest.param("I think.</think>Yes.", [["text", "I think.</think>Yes."]], id="a closer alone"),
        pytest.param("<thin", [["text", "<thin"]], id="half of a marker"),
        pytest.param(" \n", [["text", " \n"]], id="blanks"),
        pytest.param("<think>a </thin", [["thought", "a </thin"]], id="half of a closer"),
    ],
)
def test_where_thoughts_open_and_close(text: str, out: list[list[str]]) -> None:
    assert agreed(text) == out


@pytest.mark.parametrize("tag", ["thinking", "thought", "reasoning"])
def test_a_tag_that_the_request_asks_for_stays_text(tag: str) -> None:
    text = f"<{tag}>a</{tag}><answer>b</answer>"
    assert agreed(text, mentions=True) == [["text", text]]
    assert read([text]) == [["thought", "a"], ["text", "<answer>b</answer>"]]


def test_a_request_that_mentions_think_gets_thoughts_all_the_same() -> None:
    assert read(["<think>a</think>b"], mentions=True) == [["thought", "a"], ["text", "b"]]


def test_a_thought_comes_while_it_is_written() -> None:
    parser = ToolCallParser(TOOLS, thoughts=lambda _: False)
    assert rows([event for piece in ("<think>", "One", " two", " <") for event in parser.feed(piece)]) == [
        ["thought", "One two"]
    ]
    assert rows(parser.feed("b> three")) == [["thought", " <b> three"]]


def test_without_an_opener_the_splitter_stops_after_the_first_word() -> None:
    parser = ToolCallParser((), (), thoughts=lambda _: False)
    assert parser.feed("\n") == [] and not parser.transparent
    assert parser.feed("Hi") == [Text("\nHi")] and parser.transparent


def test_what_is_held_of_a_thought_is_bounded() -> None:
    text = f"<think>{CALL}" + "x" * 500
    small = ScanLimits(held=300)
    assert (
        read([text], limits=small)
        == read(list(text), limits=small)
        == [["thought", text.removeprefix("<think>")]]
    )
    assert read([text], limits=ScanLimits(held=900))[0] == MADE


def test_the_quoted_request_makes_no_call_in_an_unclosed_thought() -> None:
    assert read([f"<think>{CALL}"], quoted=[f"The note says {CALL}"]) == [["thought", CALL]]


PARTS = st.sampled_from(
    [
        *(mark for one in THOUGHTS for mark in (one.opener, one.closer)),
        CALL,
        "\n",
        " ",
        "a",
        "<",
        "```\n",
        "`",
        "I think so. ",
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(PARTS | st.text(max_size=3), max_size=8).map("".join),
    st.lists(st.integers(0, 300), max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_the_cuts_never_show(text: str, cuts: list[int], native: bool, cut_off: bool) -> None:
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    options: dict[str, Any] = {"tools": () if native else TOOLS, "reason": "length" if cut_off else "eof"}
    whole = read([text], **options)
    assert read([text[start:end] for start, end in pairwise(places)], **options) == whole
    assert read(list(text), **options) == whole


def test_a_long_thought_costs_the_same_for_every_character(growth: Callable[..., float]) -> None:
    """Markers inside a thought, closed and unclosed."""

    def read(size: int) -> None:
        text = "<think>" + ("x < y <tool_call> " * (size // 18)) + json.dumps({"a": 1})
        parser = ToolCallParser(TOOLS, tuple(DIALECTS), thoughts=lambda _: False)
        for start in range(0, len(text), 64):
            parser.feed(text[start : start + 64])
        parser.finish()

    assert growth(read, 40_000, 400_000) < 20

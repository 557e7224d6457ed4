"""Fragments of calls, in every shape that upstreams send, become the same calls."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.core.assemble import CallAssembler, Fragment
from toolwire.core.events import CallArgs, CallBegin, CallEnd, Dropped, Event

ONE = '{"q":"Rust","n":1000}'
TWO = '{"path":"a/b.md"}'


def run(*fragments: Fragment, reason: str = "stop", **options: Any) -> list[Event]:
    assembler = CallAssembler(**options)
    out = [event for fragment in fragments for event in assembler.add(fragment)]
    return out + assembler.finish(reason)


Seen = tuple[str | None, str, str, str]


def calls(events: list[Event]) -> list[Seen]:
    """The calls as a client sees them. Checks that they come one at a time, numbered without a gap."""
    out: list[Seen] = []
    begun: CallBegin | None = None
    text = ""
    for event in events:
        if isinstance(event, CallBegin):
            assert begun is None and event.index == len(out)
            begun, text = event, ""
        elif isinstance(event, CallArgs):
            assert begun is not None and event.index == begun.index and event.delta
            text += event.delta
        elif isinstance(event, CallEnd):
            assert begun is not None and event.index == begun.index
            out.append((begun.id, begun.name, text, event.status))
            begun = None
    assert begun is None
    return out


def pieces(text: str, size: int = 3) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


EXPECTED: list[Seen] = [("c1", "search", ONE, "ok"), ("c2", "read", TWO, "ok")]
NO_IDS: list[Seen] = [(None, "search", ONE, "ok"), (None, "read", TWO, "ok")]


def standard(first: int = 0, step: int = 1) -> list[Fragment]:
    out = [Fragment(first, "c1", "search", "")]
    out += [Fragment(first, arguments=piece) for piece in pieces(ONE)]
    out += [Fragment(first + step, "c2", "read", "")]
    return out + [Fragment(first + step, arguments=piece) for piece in pieces(TWO)]


def interleaved() -> list[Fragment]:
    out = [Fragment(0, "c1", "search", ""), Fragment(1, "c2", "read", "")]
    for at in range(max(len(pieces(ONE)), len(pieces(TWO)))):
        out += [
            Fragment(index, arguments=pieces(text)[at])
            for index, text in ((1, TWO), (0, ONE))
            if at < len(pieces(text))
        ]
    return out


SHAPES: dict[str, tuple[list[Fragment], list[Seen]]] = {
    "as OpenAI sends it": (standard(), EXPECTED),
    "index from 1": (standard(1), EXPECTED),
    "index with gaps": (standard(3, 4), EXPECTED),
    "no index": (
        [
            Fragment(id="c1", name="search", arguments=""),
            *[Fragment(arguments=p) for p in pieces(ONE)],
            Fragment(id="c2", name="read", arguments=""),
            *[Fragment(arguments=p) for p in pieces(TWO)],
        ],
        EXPECTED,
    ),
    "no index and no id": (
        [
            Fragment(name="search", arguments=""),
            *[Fragment(arguments=p) for p in pieces(ONE)],
            Fragment(name="read"),
            *[Fragment(arguments=p) for p in pieces(TWO)],
        ],
        NO_IDS,
    ),
    "no index, id with every delta": (
        [
            Fragment(id="c1", name="search"),
            *[Fragment(id="c1", arguments=p) for p in pieces(ONE)],
            Fragment(id="c2", name="read", arguments=TWO),
        ],
        EXPECTED,
    ),
    "whole calls": ([Fragment(0, "c1", "search", ONE), Fragment(1, "c2", "read", TWO)], EXPECTED),
    "whole calls, every index 0": (
        [Fragment(0, "c1", "search", ONE), Fragment(0, "c2", "read", TWO)],
        EXPECTED,
    ),
    "whole calls without ids, every index 0": (
        [Fragment(0, None, "search", ONE), Fragment(0, None, "read", TWO)],
        NO_IDS,
    ),
    "whole calls in one list, no index": (
        [
            Fragment(id="c1", name="search", arguments=ONE, position=0),
            Fragment(id="c2", name="read", arguments=TWO, position=1),
        ],
        EXPECTED,
    ),
    "name and id repeated": (
        [
            *[Fragment(0, "c1", "search", p) for p in pieces(ONE)],
            *[Fragment(1, "c2", "read", p) for p in pieces(TWO)],
        ],
        EXPECTED,
    ),
    "name repeated, no ids": (
        [
            *[Fragment(0, None, "search", p) for p in pieces(ONE)],
            *[Fragment(1, None, "read", p) for p in pieces(TWO)],
        ],
        NO_IDS,
    ),
    "a fresh id with every delta": (
        [
            Fragment(0, "c1", "search", ""),
            *[Fragment(0, f"x{n}", None, p) for n, p in enumerate(pieces(ONE))],
            Fragment(1, "c2", "read", ""),
            *[Fragment(1, f"y{n}", None, p) for n, p in enumerate(pieces(TWO))],
        ],
        EXPECTED,
    ),
    "empty strings instead of nothing": (
        [
            Fragment(0, "c1", "search", ""),
            *[Fragment(0, "", "", p) for p in pieces(ONE)],
            Fragment(1, "c2", "read", ""),
            *[Fragment(1, "", "", p) for p in pieces(TWO)],
            Fragment(1, "", "", ""),
        ],
        EXPECTED,
    ),
    "id that comes late": (
        [
            Fragment(0, None, "search"),
            Fragment(0, "c1"),
            Fragment(0, None, None, ONE),
            Fragment(1, "c2", "read", TWO),
        ],
        EXPECTED,
    ),
    "name in pieces": (
        [
            Fragment(0, "c1", "sea"),
            Fragment(0, None, "rch"),
            Fragment(0, arguments=ONE),
            Fragment(1, "c2", "re"),
            Fragment(1, "c2", "ad", TWO),
        ],
        EXPECTED,
    ),
    "arguments as an object": (
        [Fragment(0, "c1", "search", json.loads(ONE)), Fragment(1, "c2", "read", json.loads(TWO))],
        EXPECTED,
    ),
    "arguments null in the opener": (
        [Fragment(0, "c1", "search", None), Fragment(0, arguments=ONE), Fragment(1, "c2", "read", TWO)],
        EXPECTED,
    ),
    "the whole call repeated at the end": ([*standard(), Fragment(1, "c2", "read", TWO)], EXPECTED),
    "interleaved": (interleaved(), EXPECTED),
    "both openers in front, one after the other": (
        [
            Fragment(0, "c1", "search", ""),
            Fragment(1, "c2", "read", ""),
            Fragment(0, arguments=ONE),
            Fragment(1, arguments=TWO),
        ],
        EXPECTED,
    ),
    "two lists without index or ids": (
        [
            Fragment(name="search", position=0),
            Fragment(name="read", position=1),
            Fragment(arguments=ONE[:5], position=0),
            Fragment(arguments=TWO[:5], position=1),
            Fragment(arguments=ONE[5:], position=0),
            Fragment(arguments=TWO[5:], position=1),
        ],
        NO_IDS,
    ),
    "the tool's name as id": (
        [Fragment(0, "read", "read", '{"p":1}'), Fragment(1, "read", "read", '{"p":2}')],
        [("read", "read", '{"p":1}', "ok"), (None, "read", '{"p":2}', "ok")],
    ),
    "one tool twice, no index, no ids": (
        [Fragment(name="read", arguments='{"p":1}'), Fragment(name="read", arguments='{"p":2}')],
        [(None, "read", '{"p":1}', "ok"), (None, "read", '{"p":2}', "ok")],
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_the_same_calls_comes_out_the_same(shape: str) -> None:
    fragments, expected = SHAPES[shape]
    assert calls(run(*fragments)) == expected


@pytest.mark.parametrize("shape", SHAPES)
def test_knowing_the_declared_names_changes_no_call(shape: str) -> None:
    fragments, expected = SHAPES[shape]
    assert calls(run(*fragments, names=frozenset({"search", "read", "reader"}))) == expected


def test_equal_pieces_are_both_kept() -> None:
    assert calls(
        run(
            Fragment(0, "c", "f", '{"n":1'),
            Fragment(0, arguments="0"),
            Fragment(0, arguments="0"),
            Fragment(0, arguments="}"),
        )
    ) == [("c", "f", '{"n":100}', "ok")]


def test_a_piece_that_is_a_prefix_of_the_buffer_is_appended() -> None:
    text = '{"a":{"b":1},"n":1000}'
    assert calls(run(Fragment(0, "c", "f", ""), *[Fragment(0, arguments=sign) for sign in text])) == [
        ("c", "f", text, "ok")
    ]


def test_a_declared_name_begins_its_call_at_once() -> None:
    assembler = CallAssembler(names=frozenset({"search"}))
    assert assembler.add(Fragment(0, "c1", "search")) == [CallBegin(0, "search", "c1")]


def test_a_name_that_may_still_grow_waits_for_its_arguments() -> None:
    assembler = CallAssembler(names=frozenset({"read", "read_all"}))
    assert assembler.add(Fragment(0, "c1", "read")) == []
    assert assembler.add(Fragment(0, None, "_all")) == [CallBegin(0, "read_all", "c1")]


def test_a_second_call_waits_until_the_first_is_closed_and_then_continues() -> None:
    assembler = CallAssembler()
    assembler.add(Fragment(0, "c1", "search", '{"a":'))
    assert assembler.add(Fragment(1, "c2", "read", '{"b"')) == []
    assert assembler.add(Fragment(1, arguments=":2")) == []
    assert assembler.add(Fragment(0, arguments="1}")) == [
        CallArgs(0, "1}"),
        CallEnd(0),
        CallBegin(1, "read", "c2"),
        CallArgs(1, '{"b":2'),
    ]
    assert assembler.add(Fragment(1, arguments="}")) == [CallArgs(1, "}")]
    assert assembler.finish() == [CallEnd(1)]


def test_brackets_inside_strings_do_not_close_a_call() -> None:
    text = '{"a":"}\\"}","b":[{}]}'
    for at in range(1, len(text)):
        events = run(
            Fragment(0, "c1", "f", text[:at]), Fragment(1, "c2", "g", "{}"), Fragment(0, arguments=text[at:])
        )
        assert calls(events) == [("c1", "f", text, "ok"), ("c2", "g", "{}", "ok")]


def test_arguments_after_the_end_of_a_call_are_counted() -> None:
    events = run(
        Fragment(0, "c1", "f", "{}"),
        Fragment(1, "c2", "g", "{}"),
        Fragment(0, arguments=" "),
        Fragment(0, arguments="xyz"),
    )
    assert [event for event in events if isinstance(event, Dropped)] == [Dropped("late", 3)]
    assert calls(events) == [("c1", "f", "{}", "ok"), ("c2", "g", "{}", "ok")]


def test_a_call_that_never_gets_a_name_is_dropped_and_counted() -> None:
    events = run(Fragment(0, "c1", None, "{}"), Fragment(1, "c2", "g", "{}"))
    assert events == [Dropped("phantom"), CallBegin(0, "g", "c2"), CallArgs(0, "{}"), CallEnd(0)]


def test_an_empty_fragment_is_nothing() -> None:
    assert run(Fragment(0), Fragment()) == []


@pytest.mark.parametrize(
    ("arguments", "reason", "status", "issues"),
    [
        ("", "stop", "ok", ()),
        (" ", "stop", "ok", ()),
        ('{"a":1}', "length", "ok", ()),
        ('{"a":', "length", "truncated", ("arguments_not_json",)),
        ('{"a":', "content_filter", "truncated", ("arguments_not_json",)),
        ('{"a":', "stop", "invalid", ("arguments_not_json",)),
        ('{"a":NaN}', "stop", "invalid", ("arguments_not_json",)),
        ("[1]", "stop", "invalid", ("arguments_not_object",)),
        ("[" * 100_000, "stop", "invalid", ("arguments_not_json",)),
        ('{"n":' + "9" * 5000 + "}", "stop", "ok", ()),
    ],
)
def test_a_call_says_how_it_ended(arguments: str, reason: str, status: str, issues: tuple[str, ...]) -> None:
    end = run(Fragment(0, "c", "f", arguments), reason=reason)[-1]
    assert end == CallEnd(0, status, issues)  # type: ignore[arg-type]


def test_a_custom_call_is_not_judged_as_json() -> None:
    events = run(Fragment(0, "c", "patch", "*** Begin", kind="custom"), Fragment(0, arguments=" Patch"))
    assert events == [
        CallBegin(0, "patch", "c", "custom"),
        CallArgs(0, "*** Begin"),
        CallArgs(0, " Patch"),
        CallEnd(0),
    ]


def test_cumulative_arguments_are_sent_as_increments_where_the_setting_says_so() -> None:
    whole = [Fragment(0, "c", "f", ONE[:at]) for at in (0, 4, 4, 9, len(ONE))]
    events = run(*whole, cumulative=True)
    assert calls(events) == [("c", "f", ONE, "ok")]
    assert [event.delta for event in events if isinstance(event, CallArgs)] == [ONE[:4], ONE[4:9], ONE[9:]]


def test_a_cumulative_text_that_contradicts_what_was_sent_makes_the_call_invalid() -> None:
    events = run(
        Fragment(0, "c", "f", '{"a":1'),
        Fragment(0, None, None, '{"b":1}'),
        Fragment(0, None, None, '{"a":1}'),
        cumulative=True,
    )
    assert events[-1] == CallEnd(0, "invalid", ("arguments_contradicted",))
    assert calls(events)[0][2] == '{"a":1}'


def test_a_complete_fragment_adds_what_is_missing_and_never_erases() -> None:
    assert calls(run(Fragment(0, "c", "f", ONE[:5]), Fragment(0, "c", None, ONE, complete=True))) == [
        ("c", "f", ONE, "ok")
    ]
    assert calls(run(Fragment(0, "c", "f", ONE), Fragment(0, "c", None, "", complete=True))) == [
        ("c", "f", ONE, "ok")
    ]
    assert calls(run(Fragment(0, "c", "f", ONE), Fragment(0, "c", None, None, complete=True))) == [
        ("c", "f", ONE, "ok")
    ]


def test_a_complete_call_ends_at_once() -> None:
    assembler = CallAssembler()
    assert assembler.add(Fragment(0, "c", "f", "{}", complete=True)) == [
        CallBegin(0, "f", "c"),
        CallArgs(0, "{}"),
        CallEnd(0),
    ]
    assert not assembler.open
    assert assembler.add(Fragment(0, "c", "f", "{}", complete=True)) == []


def test_settling_ends_a_closed_call_and_leaves_an_open_one() -> None:
    assembler = CallAssembler()
    assembler.add(Fragment(0, "c", "f", '{"a"'))
    assert assembler.settle() == [] and assembler.open
    assembler.add(Fragment(0, arguments=":1}"))
    assert assembler.settle() == [CallEnd(0)] and not assembler.open
    assert assembler.add(Fragment(0, arguments="!")) == [Dropped("late", 1)]


def test_an_alias_leads_to_the_call() -> None:
    events = run(
        Fragment(alias="fc_1", id="call_1", name="f"),
        Fragment(alias="fc_1", arguments="{"),
        Fragment(alias="fc_1", arguments="}"),
    )
    assert calls(events) == [("call_1", "f", "{}", "ok")]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
argument_texts = st.dictionaries(st.text(max_size=5), json_values, max_size=4).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)


def split(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


@given(argument_texts, st.lists(st.integers(0, 500), max_size=12))
def test_any_split_of_the_arguments_reassembles(text: str, cuts: list[int]) -> None:
    events = run(Fragment(0, "c", "f", ""), *[Fragment(0, arguments=piece) for piece in split(text, cuts)])
    assert calls(events) == [("c", "f", text, "ok")]


@given(
    st.lists(st.tuples(argument_texts, st.lists(st.integers(0, 500), max_size=6)), min_size=1, max_size=4),
    st.data(),
)
def test_any_interleaving_keeps_the_order_of_appearance_and_every_character(
    texts: list[tuple[str, list[int]]], data: st.DataObject
) -> None:
    queues = [
        [Fragment(n, f"c{n}", f"f{n}", ""), *[Fragment(n, arguments=p) for p in split(text, cuts)]]
        for n, (text, cuts) in enumerate(texts)
    ]
    fragments: list[Fragment] = []
    while any(queues):
        at = data.draw(st.sampled_from([n for n, queue in enumerate(queues) if queue]))
        fragments.append(queues[at].pop(0))
    appearance = list(dict.fromkeys(fragment.index for fragment in fragments))
    assert calls(run(*fragments)) == [(f"c{n}", f"f{n}", texts[n or 0][0], "ok") for n in appearance]


def test_a_long_call_is_assembled_even_when_every_delta_repeats_the_name_and_another_call_waits() -> None:
    body = "x" * 200_000  # were the cost not linear, the test's time limit would end it
    fragments = [Fragment(0, "c1", "f", '{"a":"'), Fragment(1, "c2", "g", "{}")] + [
        Fragment(0, "c1", "f", sign) for sign in body
    ]
    made = calls(run(*fragments, Fragment(0, "c1", "f", '"}')))
    assert [call[1] for call in made] == ["f", "g"] and len(made[0][2]) == len(body) + 8


# --- what strangers send ---


def test_fragments_of_their_own_never_meet() -> None:
    one = [
        Fragment(0, "x", "search", ONE, complete=True, own=True),
        Fragment(0, "x", "search", ONE, complete=True, own=True),
    ]
    assert calls(run(*one)) == [("x", "search", ONE, "ok"), (None, "search", ONE, "ok")]


def test_arguments_that_cannot_be_written_are_an_invalid_call() -> None:
    loop: list[Any] = []
    loop.append(loop)
    for value in ({1, 2}, loop, {"n": 10**5000}, {(1, 2): 3}, object()):
        assert calls(run(Fragment(0, "c", "search", value))) == [("c", "search", "", "invalid")]


def test_what_waits_and_what_is_kept_is_counted() -> None:
    assembler = CallAssembler()
    assembler.add(Fragment(0, "a", "search", '{"a'))
    assert assembler.held == 0
    assembler.add(Fragment(1, "b", "read", "x" * 1000))
    assembler.add(Fragment(1, arguments="x" * 1000))
    assert assembler.held == 2000 and assembler.size > 3000
    assembler.add(Fragment(0, arguments='":1}'))
    assert assembler.held == 0 and assembler.size > 3000
    assembler.add(Fragment(1, arguments="x" * 1000))
    assembler.finish()
    assert assembler.held == 0 and assembler.size > 4000


def test_a_custom_tools_input_may_be_white_space() -> None:
    assert calls(run(Fragment(0, "c", "patch", " ", kind="custom"))) == [("c", "patch", " ", "ok")]

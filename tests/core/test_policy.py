"""Policy: which calls and texts pass under each rule, and that everything dropped is counted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.core.events import (
    CallArgs,
    CallBegin,
    CallEnd,
    Dropped,
    Event,
    Failure,
    Finish,
    Refusal,
    Text,
    Thought,
    Usage,
)
from toolwire.core.policy import Policy, PolicyRules


def call(index: int, name: str = "f", arguments: str = "") -> list[Event]:
    return [CallBegin(index, name), CallArgs(index, arguments or f"[{index}]"), CallEnd(index)]


def run(policy: Policy, *events: Event) -> list[Event]:
    """The events that reach the encoder if the caller obeys the cut."""
    out = policy.feed(list(events))
    return out + policy.end() if policy.cut else out


def short(events: list[Event]) -> str:
    """Calls as `name index`, texts unchanged, drops as `-kind count`, the end as its reason."""
    out = []
    for event in events:
        match event:
            case CallBegin(index, name):
                out.append(f"{name}{index}")
            case Text(text) | Refusal(text) | Thought(text):
                out.append(repr(text))
            case Dropped(kind, count):
                out.append(f"-{kind}{count}")
            case Finish(reason):
                out.append(reason)
            case Failure():
                out.append("failure")
    return " ".join(out)


THREE: list[Event] = [Text("a"), *call(0), *call(1, "g"), *call(2, "h"), Finish()]
TAIL: list[Event] = [
    Text("a"),
    *call(0),
    Text("\n"),
    *call(1, "g"),
    Text(" tail"),
    *call(2, "h"),
    Text("more"),
    Finish(),
]

TABLE: list[tuple[str, dict[str, Any], list[Event], str, dict[str, int], bool]] = [
    ("no rule: all passes", {}, TAIL, "'a' f0 '\\n' g1 ' tail' h2 'more' stop", {}, False),
    ("first", {"stop_after": "first"}, THREE, "'a' f0 tool_calls", {"first": 2}, True),
    ("first with one call", {"stop_after": "first"}, [*call(0), Finish()], "f0 tool_calls", {}, False),
    ("first without a call", {"stop_after": "first"}, [Text("a"), Finish()], "'a' stop", {}, False),
    (
        "first: text after the call is tail",
        {"stop_after": "first"},
        [*call(0), Text("abc")],
        "f0 tool_calls",
        {"tail": 3},
        False,
    ),
    (
        "first: an open call ends with the next",
        {"stop_after": "first"},
        [CallBegin(0, "f"), *call(1)],
        "f0 tool_calls",
        {"first": 1},
        True,
    ),
    (
        "first: length is kept",
        {"stop_after": "first"},
        [CallBegin(0, "f"), Finish("length")],
        "f0 length",
        {},
        False,
    ),
    ("burst without a tail", {"stop_after": "burst"}, THREE, "'a' f0 g1 h2 stop", {}, False),
    (
        "burst: blanks go on, text cuts",
        {"stop_after": "burst"},
        TAIL,
        "'a' f0 '\\n' g1 ' ' -tail4 tool_calls",
        {"tail": 8, "late": 1},
        True,
    ),
    (
        "burst with the tail suppressed",
        {"stop_after": "burst", "suppress_tail": True},
        TAIL,
        "'a' f0 -tail1 g1 -tail1 -tail4 tool_calls",
        {"tail": 10, "late": 1},
        True,
    ),
    (
        "burst: thoughts do not cut",
        {"stop_after": "burst"},
        [*call(0), Thought("t"), *call(1), Finish()],
        "f0 't' f1 stop",
        {},
        False,
    ),
    (
        "burst: a refusal cuts",
        {"stop_after": "burst"},
        [*call(0), Refusal("no"), Finish()],
        "f0 -tail2 tool_calls",
        {"tail": 2},
        False,
    ),
    (
        "burst: a failure passes",
        {"stop_after": "burst"},
        [*call(0), Failure("backend", "x")],
        "f0 failure",
        {},
        False,
    ),
    (
        "suppressed tail alone",
        {"suppress_tail": True},
        TAIL,
        "'a' f0 -tail1 g1 -tail5 h2 -tail4 stop",
        {"tail": 10},
        False,
    ),
    ("cap", {"max_calls": 2}, THREE, "'a' f0 g1 -cap1 tool_calls", {"cap": 1}, True),
    ("cap that is not reached", {"max_calls": 3}, THREE, "'a' f0 g1 h2 stop", {}, False),
    (
        "cap: text after the last call passes",
        {"max_calls": 1},
        [*call(0), Text("a"), Finish()],
        "f0 'a' stop",
        {},
        False,
    ),
    (
        "cap: all calls too many are counted",
        {"max_calls": 1},
        THREE,
        "'a' f0 -cap1 tool_calls",
        {"cap": 2},
        True,
    ),
    ("no parallel calls", {"parallel": False}, THREE, "'a' f0 -parallel1 tool_calls", {"parallel": 2}, True),
    ("legacy functions", {"legacy": True}, THREE, "'a' f0 -parallel1 tool_calls", {"parallel": 2}, True),
    (
        "duplicates",
        {"dedup": True},
        [*call(0, "f", "1"), *call(1, "f", "1"), *call(2, "f", "2"), Finish()],
        "f0 -duplicate1 f1 stop",
        {"duplicate": 1},
        False,
    ),
    (
        "same arguments, other name",
        {"dedup": True},
        [*call(0, "f", "1"), *call(1, "g", "1"), Finish()],
        "f0 g1 stop",
        {},
        False,
    ),
    (
        "duplicates do not fill the cap",
        {"dedup": True, "max_calls": 2},
        [*call(0, "f", "1"), *call(1, "f", "1"), *call(2, "g", "1"), *call(3, "h", "1"), Finish()],
        "f0 -duplicate1 g1 -cap1 tool_calls",
        {"duplicate": 1, "cap": 1},
        True,
    ),
    (
        "dedup and first",
        {"dedup": True, "stop_after": "first"},
        THREE,
        "'a' f0 tool_calls",
        {"first": 2},
        True,
    ),
    (
        "dedup: a held call is not lost at the end",
        {"dedup": True},
        [CallBegin(0, "f"), CallArgs(0, "x"), Finish("length")],
        "f0 length",
        {},
        False,
    ),
    (
        "dedup and burst: text releases the held call",
        {"dedup": True, "stop_after": "burst"},
        [*call(0)[:2], Text("t")],
        "f0 -tail1 tool_calls",
        {"tail": 1},
        False,
    ),
]


@pytest.mark.parametrize(
    ("rules", "events", "expected", "report", "truncated"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
@pytest.mark.parametrize("batched", [True, False], ids=["one batch", "event by event"])
def test_rules(
    batched: bool,
    rules: dict[str, Any],
    events: list[Event],
    expected: str,
    report: dict[str, int],
    truncated: bool,
) -> None:
    policy = Policy(PolicyRules(**rules))
    out: list[Event] = []
    for batch in [events] if batched else [[event] for event in events]:
        out += policy.feed(batch)
    out += policy.end() if policy.cut else []
    assert short(out) == expected
    assert policy.dropped == report
    count = sum(isinstance(event, CallBegin) for event in out)
    mode = rules.get("stop_after", "off")
    assert (len(policy.names), policy.truncated, policy.rules.stop_after) == (count, truncated, mode)


def test_without_rules_the_very_list_passes_and_is_counted() -> None:
    policy = Policy(PolicyRules())
    events: list[Event] = [Text("a"), *call(0), *call(1, "g"), Dropped("phantom", 2), Finish()]
    assert policy.feed(events) is events
    assert policy.names == ["f", "g"] and policy.dropped == {"phantom": 2}
    assert not policy.cut


def test_with_rules_batches_before_the_first_call_pass_as_they_are() -> None:
    policy = Policy(PolicyRules("burst", suppress_tail=True))
    events: list[Event] = [Text("a"), Thought("t"), Dropped("phantom")]
    assert policy.feed(events) is events
    assert policy.dropped == {"phantom": 1}


def test_a_cut_run_ends_once_in_tool_calls() -> None:
    policy = Policy(PolicyRules("first"))
    policy.feed(call(0))
    assert policy.cut
    assert policy.end() == [Finish("tool_calls")]
    assert policy.end() == []


def test_usage_passes_after_the_cut() -> None:
    policy = Policy(PolicyRules("first"))
    assert run(policy, *call(0), Text("x"), Usage(1, 2), Finish())[-2:] == [Usage(1, 2), Finish("tool_calls")]


def test_drops_of_the_backend_are_counted_before_and_after_the_cut() -> None:
    policy = Policy(PolicyRules("first"))
    assert (
        short(run(policy, CallBegin(0, "f"), Dropped("phantom"), CallEnd(0), Dropped("phantom")))
        == "f0 -phantom1 tool_calls"
    )
    assert policy.dropped == {"phantom": 2}


def test_a_run_that_ended_by_itself_is_not_ended_again() -> None:
    policy = Policy(PolicyRules(dedup=True, max_calls=1))
    out = policy.feed([*call(0), CallBegin(1, "g"), CallArgs(1, "x"), Finish("length")])
    assert short(out) == "f0 -cap1 length" and policy.end() == []


def test_arguments_go_on_under_the_new_number_and_piece_by_piece() -> None:
    policy = Policy(PolicyRules(dedup=True))
    twice: list[Event] = [*call(0, "f", "1"), *call(1, "f", "1")]
    out = policy.feed(
        [*twice, CallBegin(2, "g", "own"), CallArgs(2, "a"), CallArgs(2, "b"), CallEnd(2, "repaired")]
    )
    assert out[-4:] == [CallBegin(1, "g", "own"), CallArgs(1, "a"), CallArgs(1, "b"), CallEnd(1, "repaired")]


def test_a_call_is_sent_eagerly_when_duplicates_do_not_matter() -> None:
    policy = Policy(PolicyRules("burst"))
    assert policy.feed([CallBegin(0, "f"), CallArgs(0, "{")]) == [CallBegin(0, "f"), CallArgs(0, "{")]


def test_arguments_of_a_call_that_never_began_are_counted() -> None:
    policy = Policy(PolicyRules("burst"))
    assert short(run(policy, *call(0), CallArgs(5, "abc"), CallEnd(5), Finish())) == "f0 -late3 stop"


def test_the_run_may_be_stopped_only_between_calls() -> None:
    for rules in (PolicyRules("burst"), PolicyRules("burst", dedup=True), PolicyRules()):
        policy = Policy(rules)
        assert not policy.between_calls
        policy.feed([CallBegin(0, "f")])
        assert not policy.between_calls
        policy.feed([CallArgs(0, "1"), CallEnd(0)])
        assert policy.between_calls
    assert policy.end() == [Finish("tool_calls")] and policy.cut


texts = st.sampled_from(["", " ", "\n\n", "a", " b ", "c d"])
moves: st.SearchStrategy[list[Event]] = st.one_of(
    texts.map(lambda text: [Text(text)]),
    st.just([Thought("t")]),
    st.tuples(st.sampled_from("fg"), st.sampled_from("12"), st.booleans()).map(
        lambda made: [CallBegin(-1, made[0]), CallArgs(-1, made[1]), *([CallEnd(-1)] if made[2] else [])]
    ),
)
rule_sets = st.builds(
    PolicyRules,
    st.sampled_from(["off", "first", "burst"]),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


def numbered(moves: list[list[Event]]) -> list[Event]:
    events: list[Event] = []
    index = -1
    for event in (event for move in moves for event in move):
        match event:
            case CallBegin(_, name):
                index += 1
                events.append(CallBegin(index, name))
            case CallArgs(_, delta):
                events.append(CallArgs(index, delta))
            case CallEnd():
                events.append(CallEnd(index))
            case _:
                events.append(event)
    return events


@given(rule_sets, st.lists(moves, max_size=8).map(numbered), st.data())
def test_calls_and_characters_are_sent_or_counted_and_numbers_have_no_gap(
    rules: PolicyRules, events: list[Event], data: st.DataObject
) -> None:
    policy = Policy(rules)
    cut = data.draw(st.integers(0, len(events)))
    out = policy.feed(events[:cut]) + policy.feed([*events[cut:], Finish()])
    out += policy.end() if policy.cut else []
    begun = [event for event in out if isinstance(event, CallBegin)]
    assert [event.index for event in begun] == list(range(len(begun)))
    report = policy.dropped
    calls = sum(isinstance(event, CallBegin) for event in events)
    assert calls == len(begun) + sum(
        report.get(kind, 0) for kind in ("cap", "duplicate", "parallel", "first", "late")
    )

    def characters(some: list[Event]) -> int:
        return sum(len(event.text) for event in some if isinstance(event, Text | Thought))

    assert characters(events) == characters(out) + report.get("tail", 0)
    assert sum(isinstance(event, Finish) for event in out) == 1 and isinstance(out[-1], Finish)


@given(st.sampled_from(["off", "burst"]), st.booleans(), st.lists(texts, max_size=5))
def test_how_the_tail_is_split_makes_no_difference(stop: Any, suppress: bool, pieces: list[str]) -> None:
    def sent(tail: list[str]) -> tuple[str, dict[str, int]]:
        policy = Policy(PolicyRules(stop, suppress_tail=suppress))
        out = policy.feed([*call(0), *map(Text, tail), Finish()])
        return "".join(event.text for event in out if isinstance(event, Text)), policy.dropped

    assert sent(pieces) == sent(["".join(pieces)])

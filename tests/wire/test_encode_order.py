"""The table of legal order: the steps of every kind of run, well-behaved or not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.core.events import (
    Block,
    Border,
    CallArgs,
    CallBegin,
    CallEnd,
    Citation,
    Dropped,
    Event,
    Failure,
    Finish,
    McpAsk,
    McpCall,
    McpResult,
    McpTools,
    Refusal,
    Signature,
    Text,
    Thought,
    Usage,
)
from toolwire.core.ids import counting_ids
from toolwire.wire.order import EMPTY_ARGUMENTS, TABLE, Close, Delta, End, Fail, Item, Open, Order, Step


def run(*events: Event, single_call: bool = False) -> tuple[Order, str]:
    """The steps of a run in short form.

    `text[ab c]` is an item with two deltas, `!` marks an incomplete item, and the end comes last.
    """
    order = Order(counting_ids(), single_call=single_call)
    out = ""
    for step in [*order.feed(events), *order.finish()]:
        match step:
            case Open(item):
                out += f"{item.kind}{':' + item.name if item.name else ''}["
            case Delta(_, text):
                out += f"{text}|"
            case Close(_, status):
                out += "] " if status == "completed" else "]! "
            case End(reason):
                out += reason
            case Fail(failure):
                out += f"failure:{failure.kind}"
    return order, out


CASES: list[tuple[str, list[Event], str]] = [
    ("pieces of text are one item", [Text("a"), Text("b"), Finish()], "text[a|b|] stop"),
    ("an answer may be empty", [Finish()], "stop"),
    ("empty pieces are no steps", [Text(""), Thought(""), Refusal(""), Finish()], "stop"),
    ("thoughts close when text begins", [Thought("t"), Text("a"), Finish()], "thought[t|] text[a|] stop"),
    (
        "a summary and raw thoughts are different items",
        [Thought("s", summary=True), Thought("t"), Finish()],
        "summary[s|] thought[t|] stop",
    ),
    (
        "a call closes open text",
        [Text("a"), CallBegin(0, "f"), CallArgs(0, "{}"), CallEnd(0), Finish()],
        "text[a|] function:f[{}|] tool_calls",
    ),
    (
        "text after a call is a new item",
        [CallBegin(0, "f"), CallEnd(0), Text("a"), Finish()],
        "function:f[{}|] text[a|] tool_calls",
    ),
    (
        "a call without arguments gets an empty object",
        [CallBegin(0, "f"), CallEnd(0), Finish()],
        "function:f[{}|] tool_calls",
    ),
    (
        "empty arguments count as none",
        [CallBegin(0, "f"), CallArgs(0, ""), CallEnd(0), Finish()],
        "function:f[{}|] tool_calls",
    ),
    (
        "a custom call without input stays empty",
        [CallBegin(0, "f", kind="custom"), CallEnd(0), Finish()],
        "custom:f[] tool_calls",
    ),
    ("the end completes an open call", [CallBegin(0, "f"), Finish()], "function:f[{}|] tool_calls"),
    (
        "the next call completes an open one",
        [CallBegin(0, "f"), CallBegin(1, "g"), Finish()],
        "function:f[{}|] function:g[{}|] tool_calls",
    ),
    ("length leaves the open text incomplete", [Text("a"), Finish("length")], "text[a|]! length"),
    (
        "a filter leaves the open text incomplete",
        [Text("a"), Finish("content_filter")],
        "text[a|]! content_filter",
    ),
    (
        "length is kept although there are calls",
        [CallBegin(0, "f"), CallArgs(0, '{"x'), Finish("length")],
        'function:f[{"x|]! length',
    ),
    (
        "a truncated call is incomplete when length ends the run",
        [CallBegin(0, "f"), CallArgs(0, '{"x'), CallEnd(0, "truncated"), Finish("length")],
        'function:f[{"x|]! length',
    ),
    (
        "a truncated call is complete when the run goes on",
        [CallBegin(0, "f"), CallArgs(0, '{"x'), CallEnd(0, "truncated"), Text("a"), Finish()],
        'function:f[{"x|] text[a|] tool_calls',
    ),
    (
        "a truncated call gets no invented arguments",
        [CallBegin(0, "f"), CallEnd(0, "truncated"), Finish("length")],
        "function:f[]! length",
    ),
    (
        "whatever completes has arguments",
        [CallBegin(0, "f"), CallEnd(0, "truncated"), Finish()],
        "function:f[{}|] tool_calls",
    ),
    ("tool_calls without a call is a stop", [Text("a"), Finish("tool_calls")], "text[a|] stop"),
    (
        "a failure leaves the open item incomplete",
        [Text("a"), Failure("backend", "x")],
        "text[a|]! failure:backend",
    ),
    (
        "a failed call gets no invented arguments",
        [CallBegin(0, "f"), Failure("timeout", "x")],
        "function:f[]! failure:timeout",
    ),
    ("a failure of an unknown kind is the server's", [Failure("no such kind", "x")], "failure:server"),
    ("a run that never ends is a failure", [Text("a")], "text[a|]! failure:backend_cut"),
    ("a run without any event is a failure", [], "failure:backend_cut"),
]


@pytest.mark.parametrize(
    ("events", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_steps_of_a_run(events: list[Event], expected: str) -> None:
    order, steps = run(*events)
    assert steps == expected
    assert order.row is TABLE["ended"]
    assert order.dropped == {}


def test_arguments_of_a_call_that_is_not_open_are_dropped_and_counted() -> None:
    order, steps = run(
        CallBegin(0, "f"),
        CallArgs(0, "a"),
        CallBegin(1, "g"),
        CallArgs(0, "late"),
        CallArgs(1, "b"),
        CallEnd(0),
        Finish(),
    )
    assert steps == "function:f[a|] function:g[b|] tool_calls"
    assert order.dropped == {"late": 4}


def test_events_after_the_end_are_dropped_and_counted() -> None:
    order, steps = run(Finish(), Text("four"), CallBegin(0, "f"), Finish(), Failure("server", "x"))
    assert steps == "stop"
    assert order.dropped == {"late": 7}


def test_the_last_usage_counts_even_after_the_end() -> None:
    order, steps = run(Usage(1, 1), Text("a"), Finish(), Usage(2, 3))
    assert steps == "text[a|] stop"
    assert order.usage == Usage(2, 3)


def test_drops_of_others_are_counted() -> None:
    order, _ = run(Dropped("tail", 5), Dropped("cap"), Dropped("tail", 2), Finish())
    assert order.dropped == {"tail": 7, "cap": 1}


def test_a_wire_for_one_call_drops_the_others() -> None:
    order, steps = run(
        CallBegin(0, "f"),
        CallEnd(0),
        CallBegin(1, "g"),
        CallArgs(1, "xy"),
        CallEnd(1),
        Finish(),
        single_call=True,
    )
    assert steps == "function:f[{}|] tool_calls"
    assert order.dropped == {"parallel": 1, "late": 2}


def test_ids_are_minted_only_where_the_backend_gave_none() -> None:
    order = Order(counting_ids())
    opened = [
        step.item
        for step in order.feed([CallBegin(0, "f", "own"), CallBegin(1, "g")])
        if isinstance(step, Open)
    ]
    assert opened == [Item("function", 0, 0, "own", "f"), Item("function", 1, 1, "call_1", "g")]


def test_the_table_has_an_answer_for_every_state_and_symbol() -> None:
    kinds = {"text", "refusal", "thought", "summary", "redacted", "block", "function", "custom"}
    kinds |= {"mcp", "mcp_call"}
    assert set(TABLE) == {"idle", *kinds, "ended"}
    assert len({frozenset(row) for row in TABLE.values()}) == 1


texts = st.text(
    st.characters(exclude_characters="{}"), max_size=4
)  # braces only where the order itself fills in arguments
indexes = st.integers(0, 2)
wild_events: st.SearchStrategy[Event] = st.one_of(
    texts.map(Text),
    st.builds(Thought, texts, st.booleans()),
    texts.map(Refusal),
    st.builds(CallBegin, indexes, st.sampled_from("fg"), st.none(), st.sampled_from(["function", "custom"])),
    st.builds(CallArgs, indexes, texts),
    st.builds(CallEnd, indexes, st.sampled_from(["ok", "truncated", "invalid"])),
    st.just(Usage(1, 1)),
)
ends: st.SearchStrategy[Event] = st.sampled_from(
    [
        Finish("stop"),
        Finish("length"),
        Finish("tool_calls"),
        Finish("content_filter"),
        Failure("backend", "x"),
    ]
)


def letters(steps: list[Step]) -> str:
    return "".join(type(step).__name__[0] if not isinstance(step, Fail) else "F" for step in steps)


@given(st.lists(st.one_of(wild_events, wild_events, wild_events, ends), max_size=20))
def test_every_run_gives_a_legal_order(events: list[Event]) -> None:
    order = Order(counting_ids())
    steps = [*order.feed(events), *order.finish()]
    assert re.fullmatch("(OD*C)*[EF]", letters(steps))
    opened = [step.item for step in steps if isinstance(step, Open)]
    assert [item.index for item in opened] == list(range(len(opened)))
    calls = [item for item in opened if item.call_index >= 0]
    assert [item.call_index for item in calls] == list(range(len(calls))) and order.calls == len(calls)
    holder = None
    for step in steps:
        if isinstance(step, Open):
            holder = step.item
        elif isinstance(step, Delta | Close):
            assert step.item is holder
    assert not any(isinstance(step, Delta) and not step.text for step in steps)


own_events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Signature, texts, st.booleans()), st.sampled_from([Block("{}"), Citation("{}"), Border()])
)


@given(st.lists(st.one_of(wild_events, own_events, own_events, ends), max_size=20))
def test_every_run_with_anthropics_own_events_gives_a_legal_order(events: list[Event]) -> None:
    steps = Order(counting_ids(), signed=True).feed([*events, Finish("stop")])
    assert re.fullmatch("(O[DS]*C)*[EF]", letters(steps))
    others = Order(counting_ids()).feed([*events, Finish("stop")])
    assert re.fullmatch("(OD*C)*[EF]", letters(others))


served_events: st.SearchStrategy[Event] = st.sampled_from(
    [
        *(McpTools("mcpl_1", "s", ()), McpAsk("mcpr_1", "s", "t", "{}"), McpCall("mcp_1", "s", "t", "{}")),
        *(McpResult("x"), McpResult(None, {"type": "http_error", "code": 500, "message": "x"})),
    ]
)


@given(st.lists(st.one_of(wild_events, served_events, served_events, ends), max_size=20))
def test_every_run_with_served_calls_gives_a_legal_order_and_only_a_result_completes_a_call(
    events: list[Event],
) -> None:
    steps = Order(counting_ids()).feed([*events, Finish("stop")])
    assert re.fullmatch("(OD*C)*[EF]", letters(steps))
    for step in steps:
        if isinstance(step, Close) and step.item.kind == "mcp_call":
            assert (step.status == "completed") is (step.result is not None)


@given(st.lists(wild_events, max_size=20), ends)
def test_every_character_is_sent_or_counted(events: list[Event], end: Event) -> None:
    order = Order(counting_ids())
    steps = order.feed([*events, end])
    sent = sum(len(step.text) for step in steps if isinstance(step, Delta))
    got = sum(len(getattr(event, "text", getattr(event, "delta", ""))) for event in events)
    filled = sum(len(step.text) for step in steps if isinstance(step, Delta) and step.text == EMPTY_ARGUMENTS)
    assert sent + order.dropped.get("late", 0) == got + filled


@given(st.lists(st.one_of(wild_events, ends), max_size=20), st.data())
def test_how_events_are_batched_makes_no_difference(events: list[Event], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(events)))
    whole, split = Order(counting_ids()), Order(counting_ids())
    assert whole.feed(events) == split.feed(events[:cut]) + split.feed(events[cut:])


@given(st.lists(wild_events, max_size=6), texts, st.sampled_from([[], [Usage(1, 2)], [Text("more")]]), ends)
def test_a_text_and_its_end_make_the_same_steps_at_once_and_one_by_one(
    before: list[Event], text: str, between: list[Event], end: Event
) -> None:
    at_once, one_by_one = Order(counting_ids()), Order(counting_ids())
    assert at_once.feed(before) == one_by_one.feed(before)
    events = [Text(text), *between, end]
    assert at_once.feed(events) == [step for event in events for step in one_by_one.feed([event])]
    assert vars(at_once) | {"_ids": None} == vars(one_by_one) | {"_ids": None}

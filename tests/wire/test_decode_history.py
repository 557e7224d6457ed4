"""Calls and results are paired by the rules that stand at the head of `history.py`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Call, Item, Message, Reasoning, Result, TextPart
from toolwire.wire.history import LEGACY_ID, NO_RESULT, pair

# A history is written as words: `A` is a call with the id A, `a` its result, `a2` another one, `u` a user
# message, `s` an assistant's, `r` reasoning, `-a` the result that pairing inserts.


def item(word: str) -> Item:
    if word == "u":
        return Message("user", (TextPart("u"),))
    if word == "s":
        return Message("assistant", (TextPart("s"),))
    if word == "r":
        return Reasoning(("r",))
    if word[0] == "-":
        return Result(word[1].upper(), (TextPart(NO_RESULT),))
    return Call(word, f"tool_{word}", "{}") if word.isupper() else Result(word[0].upper(), (TextPart(word),))


def history(words: str) -> list[Item]:
    return [item(word) for word in words.split()]


def paths(items: Sequence[Item]) -> list[str]:
    return [f"input[{i}].call_id" for i in range(len(items))]


RULES = [
    # sent, paired, repairs
    ("u", "u", ""),
    ("u s u u", "u s u u", ""),
    ("u A a s", "u A a s", ""),
    ("u A a B b", "u A a B b", ""),
    ("u A B a b s", "u A B a b s", ""),
    ("u A B b a s", "u A B a b s", ""),
    ("u r A r B a b s", "u r A r B a b s", ""),
    # one step of the assistant: texts and reasoning anywhere between its calls
    ("u A B s a b", "u A B s a b", ""),
    ("u A s B a b", "u A s B a b", ""),
    ("u s A s B a b", "u s A s B a b", ""),
    ("u A s r B s b a s", "u A s r B s a b s", ""),
    ("u A s a u", "u A s a u", ""),
    ("u A r a", "u A r a", ""),
    # the last step may stay open
    ("u A", "u A", ""),
    ("u A B", "u A B", ""),
    ("A", "A", ""),
    ("u A r", "u A r", ""),
    ("u A s", "u A s", ""),
    # missing results
    ("u A u", "u A -a u", "missing_result"),
    ("u A s u", "u A s -a u", "missing_result"),
    ("u A B a u", "u A B a -b u", "missing_result"),
    ("u A B a", "u A B a -b", "missing_result"),
    ("u A B u C u", "u A B -a -b u C -c u", "missing_result:3"),
    ("u A u B", "u A -a u B", "missing_result"),
    # a result stays where it was sent, and its call moves down to it
    ("u A u a", "u u A a", "moved_call"),
    ("u A u a s", "u u A a s", "moved_call"),
    ("u A B u b a", "u u A B a b", "moved_call:2"),
    ("u A B a u b", "u A a u B b", "moved_call"),
    ("u A B u a u b", "u u A a u B b", "moved_call:2"),
    ("u A B u a", "u B -b u A a", "moved_call missing_result"),
    ("u s r A u a", "u s u r A a", "moved_call"),
    ("u A s u a", "u s u A a", "moved_call"),
    ("u A B a s b", "u A a B s b", "moved_call"),
    ("u A u B a b", "u u A B a b", "moved_call"),
    ("u A u s a", "u u A s a", "moved_call"),
    # a result before its call
    ("a u A s", "u A s a", "moved_result"),
    ("a A", "A a", "moved_result"),
    ("u A b B a", "u A B a b", "moved_result"),
    ("b A B", "A B -a b", "moved_result missing_result"),
    # several results
    ("u A a a2 s", "u A a2 s", "duplicate_result"),
    ("u A a a2 a3 s", "u A a3 s", "duplicate_result:2"),
    ("u A B a b a2 s", "u A B a2 b s", "duplicate_result"),
    ("u A a s a2", "u A s a2", "duplicate_result"),
    ("u A a u a2", "u u A a2", "duplicate_result moved_call"),
    ("u A a s a u", "u A a s u", "duplicate_result"),
    ("a u A a", "u A a", "duplicate_result"),
    # several calls
    ("u A A a s", "u A a s", "duplicate_call"),
    ("u A u A", "u A -a u", "duplicate_call missing_result"),
]


@pytest.mark.parametrize(("sent", "paired", "heals"), RULES, ids=[rule[0] for rule in RULES])
def test_a_history_is_paired_by_the_rules(sent: str, paired: str, heals: str) -> None:
    items = history(sent)
    before = tuple(items)
    result = pair(items, paths(items))
    assert list(result.items) == history(paired)
    assert result.notes == tuple(("input", f"healed:{heal}") for heal in heals.split())
    assert tuple(items) == before


@pytest.mark.parametrize(
    ("sent", "where", "repairs"),
    [
        ("s A a", "0 0 1", ""),
        ("s A B a b", "0 0 0 1 2", ""),
        ("A s a", "0 1 2", "joined_message"),
        ("A s B a b", "0 1 1 2 3", "joined_message"),
        ("A B a b", "0 1 2 3", "joined_message"),
        ("A B s a b", "0 1 2 3 4", "joined_message:2"),
        ("A a s B b", "0 1 2 2 3", ""),
    ],
)
def test_on_chat_the_messages_of_one_step_are_joined_and_reported(
    sent: str, where: str, repairs: str
) -> None:
    """`where` is the number of the message that each item came from."""
    items = history(sent)
    of_calls = [
        f"messages[{n}].tool_calls[0].id" if type(one) is not Message else ""
        for n, one in zip(where.split(), items, strict=True)
    ]
    result = pair(items, of_calls, "messages")
    assert list(result.items) == items
    assert result.notes == tuple(("messages", f"healed:{repair}") for repair in repairs.split())


def refused(items: list[Item], where: list[str], field: str = "input") -> tuple[str, str | None]:
    with pytest.raises(ToolwireError) as caught:
        pair(items, where, field)
    assert caught.value.failure.kind in ("invalid_request", "invalid_value")
    return caught.value.failure.message, caught.value.failure.param


def test_an_orphan_result_is_refused_with_its_path() -> None:
    assert refused(history("u a"), ["", "input[1].call_id"]) == (
        "No tool call found for function call output with call_id A.",
        "input[1].call_id",
    )
    message, param = refused(history("u a"), ["", "messages[1].tool_call_id"], "messages")
    assert "must be a response to a preceding message with 'tool_calls'" in message
    assert param == "messages[1].tool_call_id"
    message, _ = refused([Result("X", (), "custom")], ["input[0].call_id"])
    assert message == "No tool call found for custom tool call output with call_id X."


def test_an_orphan_in_the_store_is_blamed_on_the_chain() -> None:
    assert refused(history("a u"), ["", ""])[1] == "previous_response_id"


@pytest.mark.parametrize(
    "other",
    [
        Call("A", "tool_A", '{"a": true}'),
        Call("A", "tool_A", "not json"),
        Call("A", "other", '{"a": 1}'),
        Call("A", "tool_A", '{"a": 1}', "custom"),
        Call("A", "tool_A", '{"a": 1}', namespace="crm"),
    ],
)
def test_one_id_for_two_different_calls_is_refused_with_the_path_of_the_later_one(other: Call) -> None:
    message, param = refused(
        [Call("A", "tool_A", '{"a": 1}'), other], ["input[0].call_id", "input[1].call_id"]
    )
    assert param == "input[1].call_id"
    assert "'A'" in message


def test_a_call_that_was_written_anew_is_the_same_call() -> None:
    items = [Call("A", "tool_A", '{"a": 1, "b": [2]}'), Call("A", "tool_A", '{"b":[2],"a":1}')]
    assert pair(items, ["", ""]).items == (items[0],)


def test_a_result_takes_the_kind_of_its_call() -> None:
    items: list[Item] = [Call("A", "patch", "x", "custom"), Result("A", (TextPart("ok"),))]
    assert pair(items, ["", ""], "messages").items[1] == Result("A", (TextPart("ok"),), "custom")
    assert pair([items[0], item("u")], ["", ""]).items[1] == Result("A", (TextPart(NO_RESULT),), "custom")


def test_a_legacy_result_answers_the_nearest_unanswered_call_of_its_name() -> None:
    def legacy(text: str) -> Result:
        return Result(LEGACY_ID, (TextPart(text),), name="look")

    one, two, by_id = Call("L0", "look", "{}"), Call("L1", "look", "{}"), Call("C", "look", "{}")
    items: list[Item] = [one, legacy("1"), two, by_id, legacy("2"), Result("C", (TextPart("3"),))]
    assert pair(items, paths(items), "messages").items == (
        one,
        Result("L0", (TextPart("1"),), name="look"),
        two,
        by_id,
        Result("L1", (TextPart("2"),), name="look"),
        Result("C", (TextPart("3"),)),
    )


def test_a_legacy_result_never_answers_a_later_call_or_another_name() -> None:
    orphan = Result(LEGACY_ID, (), name="look")
    histories: list[list[Item]] = [[orphan, Call("L0", "look", "{}")], [Call("L0", "other", "{}"), orphan]]
    for items in histories:
        message, param = refused(items, ["messages[9].name"] * 2, "messages")
        assert param == "messages[9].name"
        assert "'look'" in message


words = st.sampled_from(["u", "s", "r", "A", "B", "C", "D", "a", "b", "c", "d", "a2", "b2"])


@settings(max_examples=300, deadline=None)
@given(st.lists(words, max_size=14))
def test_whatever_was_sent_is_legal_afterwards_or_refused(sent: list[str]) -> None:
    items = [item(word) for word in sent]
    calls = {one.call_id for one in items if isinstance(one, Call)}
    answered = {one.call_id for one in items if isinstance(one, Result)}
    if not answered <= calls:
        refused(items, paths(items))
        return
    result = pair(items, paths(items))
    paired = list(result.items)
    assert_legal(paired)
    assert [one for one in paired if isinstance(one, Message)] == [
        one for one in items if isinstance(one, Message)
    ]
    assert paired.count(item("r")) == items.count(item("r"))
    ids = [one.call_id for one in paired if isinstance(one, Call)]
    assert len(ids) == len(set(ids)) and {id[0] for id in ids} == calls
    sent_results = [one.parts for one in items if isinstance(one, Result)]
    for one in paired:
        if isinstance(one, Result) and one.parts != (TextPart(NO_RESULT),):
            assert one.parts in sent_results
    again = pair(paired, paths(paired))
    assert list(again.items) == paired and again.notes == ()
    if is_legal(items):
        assert paired == items and result.notes == ()
    if items and isinstance(items[-1], Result) and items[-1] not in items[:-1]:
        assert isinstance(paired[-1], Result)


def is_legal(items: list[Item]) -> bool:
    ids = [one.call_id for one in items if isinstance(one, Call)]
    try:
        assert_legal(items)
    except AssertionError:
        return False
    return len(ids) == len(set(ids))


def assert_legal(items: list[Item]) -> None:
    """Each step (reasoning, texts, calls) is followed by the results of its calls, in call order, unless it
    ends the history.
    """
    waiting: list[str] = []
    answering = False
    for one in items:
        if isinstance(one, Result):
            assert waiting and waiting.pop(0) == one.call_id
            answering = True
        elif isinstance(one, Message) and one.role != "assistant":
            assert not waiting
            answering = False
        else:
            assert not (answering and waiting)
            answering = False
            if isinstance(one, Call):
                waiting.append(one.call_id)
    assert not (waiting and answering)


def test_an_id_that_is_used_again_after_its_result_names_another_call() -> None:
    def turn(arguments: str, result: str) -> list[Item]:
        return [Call("call_0", "f", arguments), Result("call_0", (TextPart(result),))]

    items = [*turn('{"x":1}', "one"), *turn('{"x":2}', "two"), *turn('{"x":2}', "three")]
    paired = pair(items, ["input"] * len(items))
    assert [item.call_id for item in paired.items if isinstance(item, Call)] == [
        "call_0",
        "call_0.1",
        "call_0.2",
    ]
    answers = {item.call_id: item.parts[0] for item in paired.items if isinstance(item, Result)}
    assert answers == {"call_0": TextPart("one"), "call_0.1": TextPart("two"), "call_0.2": TextPart("three")}
    assert paired.notes == (("input", "healed:reused_id:2"),)

"""Calls and results are paired by the rules that stand at the head of `history.py`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwire.decode.history import LEGACY_ID, NO_RESULT, pair
from toolwire.errors import ToolwireError
from toolwire.turn import Call, Item, Message, Reasoning, Result, TextPart

# A history is written as words: `A` is a call with the id A, `a` its result, `a2` another one, `u` a user message, `s` an assistant's, `r` reasoning,
# `-a` the result that pairing inserts.


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
    # sent, paired, heals
    ("u", "u", ""),
    ("u s u u", "u s u u", ""),
    ("u A a s", "u A a s", ""),
    ("u A a B b", "u A a B b", ""),
    ("u A B a b s", "u A B a b s", ""),
    ("u A B b a s", "u A B a b s", ""),
    ("u r A r B a b s", "u r A r B a b s", ""),
    ("u A", "u A", ""),
    ("u A B", "u A B", ""),
    ("A", "A", ""),
    ("u A u", "u A -a u", "missing_result"),
    ("u A B a u", "u A B a -b u", "missing_result"),
    ("u A B a", "u A B a -b", "missing_result"),
    ("u A B u C u", "u A B -a -b u C -c u", "missing_result:3"),
    ("u A r", "u A -a r", "missing_result"),
    ("u A u B", "u A -a u B", "missing_result"),
    ("u A u a s", "u A a u s", "moved_result"),
    ("a u A s", "u A a s", "moved_result"),
    ("u A s B a b", "u A a s B b", ""),
    ("u A s r B s b a s", "u A a s r B b s s", ""),
    ("u A s a u", "u A a s u", ""),
    ("u A s u a", "u A a s u", "moved_result"),
    ("u A B a s b", "u A B a b s", "moved_result"),
    ("u A b B a", "u A a B b", "moved_result:2"),
    ("u A r a", "u A a r", ""),
    ("u A a a2 s", "u A a2 s", "duplicate_result"),
    ("u A a a2 a3 s", "u A a3 s", "duplicate_result:2"),
    ("u A B a b a2 s", "u A B a2 b s", "duplicate_result"),
    ("u A a s a2", "u A a2 s", "duplicate_result moved_result"),
    ("u A A a s", "u A a s", "duplicate_call"),
    ("u A u A", "u A -a u", "duplicate_call missing_result"),
    ("a A", "A a", "moved_result"),
]


@pytest.mark.parametrize(("sent", "paired", "heals"), RULES, ids=[rule[0] for rule in RULES])
def test_a_history_is_paired_by_the_rules(sent: str, paired: str, heals: str) -> None:
    items = history(sent)
    before = tuple(items)
    result = pair(items, paths(items))
    assert list(result.items) == history(paired)
    assert result.notes == tuple(("input", f"healed:{heal}") for heal in heals.split())
    assert tuple(items) == before


@pytest.mark.parametrize(("sent", "paired", "heals"), [("A s B a b", "A a s B b", "moved_result"), ("A r a", "A a r", "moved_result")])
def test_in_messages_a_result_stands_directly_behind_its_calls(sent: str, paired: str, heals: str) -> None:
    items = history(sent)
    result = pair(items, paths(items), "messages")
    assert list(result.items) == history(paired)
    assert result.notes == (("messages", f"healed:{heals}"),)


def refused(items: list[Item], where: list[str], field: str = "input") -> tuple[str, str | None]:
    with pytest.raises(ToolwireError) as caught:
        pair(items, where, field)
    assert caught.value.failure.kind in ("invalid_request", "invalid_value")
    return caught.value.failure.message, caught.value.failure.param


def test_an_orphan_result_is_refused_with_its_path() -> None:
    assert refused(history("u a"), ["", "input[1].call_id"]) == ("No tool call found for function call output with call_id A.", "input[1].call_id")
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
    message, param = refused([Call("A", "tool_A", '{"a": 1}'), other], ["input[0].call_id", "input[1].call_id"])
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
    paired = list(pair(items, paths(items)).items)
    assert_legal(paired)
    assert [one for one in paired if isinstance(one, Message | Reasoning)] == [one for one in items if isinstance(one, Message | Reasoning)]
    ids = [one.call_id for one in paired if isinstance(one, Call)]
    assert len(ids) == len(set(ids)) and {id[0] for id in ids} == calls
    sent_results = [one.parts for one in items if isinstance(one, Result)]
    for result in paired:
        if isinstance(result, Result) and result.parts != (TextPart(NO_RESULT),):
            assert result.parts in sent_results
    again = pair(paired, paths(paired))
    assert list(again.items) == paired and again.notes == ()


def assert_legal(items: list[Item]) -> None:
    """Each run of calls, reasoning between them aside, is followed at once by exactly its results in call order, unless it ends the history."""
    waiting: list[str] = []
    answering = reasoned = False
    for one in items:
        if isinstance(one, Call):
            assert not (answering and waiting)
            waiting.append(one.call_id)
            answering = reasoned = False
        elif isinstance(one, Result):
            assert waiting and waiting.pop(0) == one.call_id and not reasoned
            answering = True
        elif isinstance(one, Reasoning) and waiting and not answering:
            reasoned = True
        else:
            assert not waiting
            answering = reasoned = False
    assert not (waiting and (answering or reasoned))


def test_an_id_that_is_used_again_after_its_result_names_another_call() -> None:
    def turn(arguments: str, result: str) -> list[Item]:
        return [Call("call_0", "f", arguments), Result("call_0", (TextPart(result),))]

    items = [*turn('{"x":1}', "one"), *turn('{"x":2}', "two"), *turn('{"x":2}', "three")]
    paired = pair(items, ["input"] * len(items))
    assert [item.call_id for item in paired.items if isinstance(item, Call)] == ["call_0", "call_0.1", "call_0.2"]
    answers = {item.call_id: item.parts[0] for item in paired.items if isinstance(item, Result)}
    assert answers == {"call_0": TextPart("one"), "call_0.1": TextPart("two"), "call_0.2": TextPart("three")}
    assert paired.notes == (("input", "healed:reused_id:2"),)

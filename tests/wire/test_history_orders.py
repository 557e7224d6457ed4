"""Whatever order of texts, reasoning, calls and results a client sends, the upstream gets a legal
conversation.

Each history is sent through the decoder of its API and through the renderer for OpenAI-compatible servers.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from toolwire.backends.openai.options import OpenAIOptions
from toolwire.backends.openai.render import render
from toolwire.core.turn import Turn
from toolwire.wire.chat import decode as chat
from toolwire.wire.responses import decode as responses

Body = dict[str, Any]
CALLS = "ABC"
OTHERS = ["user", "user", "text", "text", "reasoning"]


@st.composite
def orders(draw: st.DrawFn) -> list[str]:
    """Words such as `A` (a call), `a` (its result), `text1`; every result follows its call."""
    calls = CALLS[: draw(st.integers(0, 3))]
    others = [f"{kind}{n}" for n, kind in enumerate(OTHERS[: draw(st.integers(0, 5))])]
    order = draw(st.permutations([*calls, *calls.lower(), *others]))
    for call in calls:
        one, other = sorted((order.index(call), order.index(call.lower())))
        order[one], order[other] = call, call.lower()
    return order


def on_responses(order: list[str]) -> tuple[Turn, str]:
    def item(word: str) -> Body:
        if word.startswith("reasoning"):
            return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": word}]}
        if word.startswith(("user", "text")):
            return {"role": "user" if word.startswith("user") else "assistant", "content": word}
        if word.isupper():
            return {"type": "function_call", "call_id": word, "name": "look", "arguments": "{}"}
        return {"type": "function_call_output", "call_id": word.upper(), "output": f"result {word}"}

    return responses.decode(
        {"model": "m", "input": [{"role": "user", "content": "go"}, *map(item, order)]}
    ), "input"


def on_chat(order: list[str]) -> tuple[Turn, str]:
    def message(word: str) -> Body:
        if word.startswith("reasoning"):
            return {"role": "assistant", "content": f"said with {word}", "reasoning_content": word}
        if word.startswith(("user", "text")):
            return {"role": "user" if word.startswith("user") else "assistant", "content": word}
        if word.isupper():
            return {"role": "assistant", "content": None, "tool_calls": [called(word)]}
        return {"role": "tool", "tool_call_id": word.upper(), "content": f"result {word}"}

    return chat.decode(
        {"model": "m", "messages": [{"role": "user", "content": "go"}, *map(message, order)]}
    ), "messages"


def called(id: str) -> Body:
    return {"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}}


def assert_legal(messages: list[Body]) -> None:
    """OpenAI's rule: the results of a message's calls directly follow it.

    Only the last message may wait for its results.
    """
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert waiting and waiting.pop(0) == message["tool_call_id"]
        else:
            assert not waiting
            waiting = [call["id"] for call in message.get("tool_calls", ())]
    assert not waiting or messages[-1].get("tool_calls")


def texts(messages: list[Body]) -> list[str]:
    """The words of the conversation in order; joined texts are separate ones again."""
    return [
        text
        for message in messages
        if message["role"] != "tool"
        for text in (message["content"] or "").split("\n\n")
        if text
    ]


@settings(max_examples=200, deadline=None)
@given(orders())
@example(["A", "B", "text1", "a", "b"])
@example(["A", "text1", "B", "a", "b"])
@example(["text1", "A", "text2", "B", "a", "b"])
@example(["A", "user1", "a"])
@example(["A", "text1", "user1", "a"])
@example(["reasoning1", "A", "reasoning2", "text1", "a"])
def test_any_order_gives_a_legal_conversation_that_keeps_every_word(order: list[str]) -> None:
    for decoded in (on_responses, on_chat):
        turn, field = decoded(order)
        messages = render(turn, "m", OpenAIOptions(reasoning_history=True))["messages"]
        assert_legal(messages)
        said = {word: word for word in order if word.startswith(("user", "text"))}
        if decoded is on_chat:
            said |= {word: f"said with {word}" for word in order if word.startswith("reasoning")}
        assert texts(messages) == ["go", *(said[word] for word in order if word in said)]
        results = {
            message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"
        }
        assert results == {word.upper(): f"result {word}" for word in order if word in CALLS.lower()}
        assert sum(len(message.get("tool_calls", ())) for message in messages) == len(results)
        thoughts = "".join(message.get("reasoning_content", "") for message in messages)
        assert all(
            word in thoughts for word in order if word.startswith("reasoning") and follows(order, word)
        )
        if order and order[-1] in CALLS.lower():
            assert messages[-1]["role"] == "tool"
        assert {name for name, _ in turn.notes} <= {field}
        assert bool(turn.notes) == (not legal_already(order, field)), (order, turn.notes)


def follows(order: list[str], word: str) -> bool:
    """Whether an assistant's item is next to the reasoning, so that a message can carry it."""
    rest = order[order.index(word) + 1 :]
    return bool(rest) and (rest[0].isupper() or rest[0].startswith("text"))


def legal_already(order: list[str], field: str) -> bool:
    """Whether each call's result follows its step: on Responses a step is any run of the assistant's items,
    on chat one message.
    """
    waiting: set[str] = set()
    answering = False
    for word in order:
        if word in CALLS:
            if waiting and (answering or field == "messages"):
                return False
            waiting.add(word)
            answering = False
        elif word.upper() in CALLS:
            if word.upper() not in waiting:
                return False
            waiting.remove(word.upper())
            answering = True
        elif waiting and (answering or field == "messages" or word.startswith("user")):
            return False
    return not waiting


@pytest.mark.parametrize("decoded", [on_responses, on_chat])
def test_texts_and_calls_of_one_step_are_one_message(decoded: Any) -> None:
    for order in (
        ["A", "B", "text1", "a", "b"],
        ["A", "text1", "B", "a", "b"],
        ["text1", "A", "B", "a", "b"],
    ):
        messages = render(decoded(order)[0], "m")["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
        assert messages[1] == {
            "role": "assistant",
            "content": "text1",
            "tool_calls": [called("A"), called("B")],
        }
        assert [message["content"] for message in messages[2:]] == ["result a", "result b"]


@pytest.mark.parametrize(("decoded", "report"), [(on_responses, "input"), (on_chat, "messages")])
def test_a_conversation_that_ends_with_a_result_still_does(decoded: Any, report: str) -> None:
    """Semantic Kernel asks again before it sends the result; a simple model that finds the question last
    calls for ever.
    """
    turn, _ = decoded(["A", "user1", "a"])
    messages = render(turn, "m")["messages"]
    assert [message["content"] for message in messages] == ["go", "user1", None, "result a"]
    assert turn.notes == ((report, "healed:moved_call"),)


def test_an_answer_that_goes_on_after_its_calls_is_one_step_in_a_stored_chain() -> None:
    """What Toolwire itself answered, continued by `previous_response_id`."""
    body = {"model": "m", "input": "go"}
    output = [
        {"type": "function_call", "call_id": "A", "name": "look", "arguments": "{}"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Let me look."}],
        },
    ]
    stored = responses.stored_items(body, output)
    result = {"type": "function_call_output", "call_id": "A", "output": "sunny"}
    turn = responses.decode({"model": "m", "previous_response_id": "resp_1", "input": [result]}, stored)
    messages = render(turn, "m")["messages"]
    assert messages[1] == {"role": "assistant", "content": "Let me look.", "tool_calls": [called("A")]}
    assert messages[2] == {"role": "tool", "tool_call_id": "A", "content": "sunny"}
    assert turn.notes == ()

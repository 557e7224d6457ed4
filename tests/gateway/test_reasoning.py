"""Reasoning that a backend writes in its text. Also: long texts do not block other turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from toolwire.backends.base import Batch
from toolwire.core.events import CallArgs, CallBegin, CallEnd, Event, Finish, Text, Thought, Usage
from toolwire.core.ids import counting_ids
from toolwire.core.turn import Message, TextPart, ToolSpec, Turn
from toolwire.emulate.dialects import DIALECTS
from toolwire.gateway.account import Account
from toolwire.gateway.interpret import Interpreter
from toolwire.gateway.plan import Plan, make_plan
from toolwire.gateway.stages import SLICE, Stages
from toolwire.settings.types import ToolSettings
from toolwire.testing import ScriptedBackend, ScriptedOptions

CALL = '<tool_call>{"name": "look", "arguments": {"q": "x"}}</tool_call>'


def plan_of(tools: str = "native", asked: str = "Hi", **settings: Any) -> Plan:
    turn = Turn("chat", "m", (Message("user", (TextPart(asked),)),), tools=(ToolSpec("look"),))
    backend = ScriptedBackend("m", ScriptedOptions(tools=tools))  # type: ignore[arg-type]
    return make_plan(turn, backend, ToolSettings(**settings), counting_ids())


def fed(plan: Plan, batches: list[list[Event]]) -> list[Event]:
    interpreter = Interpreter(plan, counting_ids())
    return [event for batch in batches for event in interpreter.feed(batch)]


@pytest.mark.parametrize("tools", ["native", "emulated"])
def test_thoughts_are_split_whether_tools_are_native_or_not(tools: str) -> None:
    batches: list[list[Event]] = [
        [Text("<thi")],
        [Text("nk>a")],
        [Text("</think>\n")],
        [Text('{"b": 1}')],
        [Finish()],
    ]
    assert fed(plan_of(tools), batches) == [Thought("a"), Text('{"b": 1}'), Finish()]


@pytest.mark.parametrize("tools", ["native", "emulated"])
def test_the_setting_leaves_thoughts_in_the_text(tools: str) -> None:
    out = fed(plan_of(tools, reasoning="text"), [[Text("<think>a</think>b"), Finish()]])
    assert out == [Text("<think>a</think>b"), Finish()]


@pytest.mark.parametrize("tools", ["native", "emulated"])
def test_a_backend_that_separates_reasoning_itself_keeps_its_text(tools: str) -> None:
    batches: list[list[Event]] = [[Usage(1, 0)], [Thought("a")], [Text("<think>b</think>"), Finish()]]
    assert fed(plan_of(tools), batches) == [Usage(1, 0), Thought("a"), Text("<think>b</think>"), Finish()]


def test_a_native_call_follows_the_text_held_before_it() -> None:
    call: list[Event] = [CallBegin(0, "look", "c1"), CallArgs(0, "{}"), CallEnd(0)]
    assert fed(plan_of(), [[Text("\n<thi")], call, [Finish()]])[0] == Text("\n<thi")
    assert fed(plan_of(), [[Text("<think>a </")], call, [Finish()]])[:2] == [Thought("a"), Thought(" </")]


def test_a_native_answer_without_thoughts_passes_unchanged_after_its_first_word() -> None:
    interpreter = Interpreter(plan_of(), counting_ids())
    batch: list[Event] = [Text("Hello")]
    assert not interpreter.as_it_is
    assert interpreter.feed(batch) == batch and interpreter.as_it_is
    assert interpreter.feed(batch) == batch


def test_tags_that_the_client_asked_for_stay_text() -> None:
    written = "<thinking>a</thinking><answer>b</answer>"
    assert fed(plan_of(asked="Write <thinking> first."), [[Text(written), Finish()]]) == [
        Text(written),
        Finish(),
    ]
    assert fed(plan_of(), [[Text(written), Finish()]])[0] == Thought("a")


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_reasoning_is_sent_in_the_form_of_each_api(table: Any, api: str) -> None:
    table.play("say <think>I could call " + CALL + " but no.</think> Sunny.", tools="emulated")
    body = {"messages": [{"role": "user", "content": "?"}]} if api == "chat" else {"input": "?"}
    tool = {"type": "function", "name": "look"}
    answer = await table.body(
        api,
        {
            **body,
            "tools": [tool if api == "responses" else {"type": "function", "function": {"name": "look"}}],
        },
    )
    if api == "chat":
        message = answer["choices"][0]["message"]
        assert (message["content"], message.get("tool_calls")) == ("Sunny.", None)
        assert message["reasoning_content"] == f"I could call {CALL} but no."
    else:
        assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
        assert answer["output"][1]["content"][0]["text"] == "Sunny."


class Long(ScriptedBackend):
    """A model that sends one long text in one batch."""

    text = ""

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        yield [Text(self.text), Finish()]


async def test_other_turns_run_while_a_long_text_is_read(table: Any) -> None:
    """Other tasks still run about once per millisecond.

    Brackets at the start of lines are the text that takes longest to scan.
    """
    backend = Long("m", ScriptedOptions(tools="emulated", dialects=tuple(DIALECTS)))
    backend.text = "{\n" * (100 * SLICE)
    ticks, done = 0, False

    async def tick() -> None:
        nonlocal ticks
        while not done:
            ticks += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(tick())
    tool = {"type": "function", "function": {"name": "look"}}
    body = await table.serve(backend).body(
        "chat", {"messages": [{"role": "user", "content": "?"}], "tools": [tool]}
    )
    done = True
    await other
    assert body["choices"][0]["message"]["content"] == backend.text
    assert ticks >= 50


def test_a_long_native_text_is_not_cut_once_its_first_words_open_no_thought() -> None:
    text, out = " " * SLICE + "x" * (100 * SLICE), list[list[Event]]()

    class Kept:
        def feed(self, events: list[Event], choice: int) -> bytes:
            return b""

        def say(self, text: str) -> bytes:
            return b""

    stages = Stages(plan_of(), Kept(), Account(0.0, None), counting_ids())
    stages.begin()
    for part in stages.slices([Text(text), Finish()]):
        out.append(part)
        stages.feed(part)
    assert out == [
        [Text(text[:SLICE])],
        [Text(text[SLICE : 2 * SLICE])],
        [Text(text[2 * SLICE :])],
        [Finish()],
    ]

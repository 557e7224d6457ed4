"""The whole gateway with Cursor's agents: both APIs, streamed and not, parked, continued, failing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doubles.cursor_bridge import FakeCursorBridge, Refused
from doubles.judges import Judge
from toolwire.backends.cursor import CursorBackend
from toolwire.conform.judge import fold
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Api
from toolwire.gateway.parked import Parking
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.extras import add_extra
from toolwire.settings.types import ModelSettings, ParkedSettings, Settings

Make = Callable[..., CursorBackend]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NAMES = ("get_weather", "get_time", "write")
CHAT_TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"It can {name}.", "parameters": SCHEMA}}
    for name in NAMES
]
FLAT_TOOLS = [{"type": "function", "name": name, "parameters": SCHEMA} for name in NAMES]
EVERYWHERE = [(api, stream) for api in ("chat", "responses") for stream in (False, True)]
PARIS = {"call": "get_weather", "args": {"city": "Paris"}}
TIME = {"call": "get_time", "args": {"city": "Rome"}}
USAGE = {
    "inputTokens": "20",
    "outputTokens": "7",
    "cacheReadTokens": "5",
    "cacheWriteTokens": "0",
    "totalTokens": "27",
    "reasoningTokens": "2",
}


def ask(api: Api, question: str = "Weather?", **extra: Any) -> dict[str, Any]:
    if api == "chat":
        return {
            "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": question}],
            "tools": CHAT_TOOLS,
            **extra,
        }
    return {
        "instructions": "Be kind.",
        "input": [{"role": "user", "content": question}],
        "tools": FLAT_TOOLS,
        "store": False,
        **extra,
    }


def calls_of(api: Api, body: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """Id, name and arguments of the calls."""
    if api == "chat":
        found = body["choices"][0]["message"].get("tool_calls") or []
        return [
            (one["id"], one["function"]["name"], json.loads(one["function"]["arguments"])) for one in found
        ]
    return [
        (item["call_id"], item["name"], json.loads(item["arguments"]))
        for item in body["output"]
        if item["type"] == "function_call"
    ]


def text_of(api: Api, body: dict[str, Any]) -> str:
    if api == "chat":
        return body["choices"][0]["message"]["content"] or ""
    return "".join(
        part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"]
    )


def follow_up(api: Api, request: dict[str, Any], body: dict[str, Any], *results: str) -> dict[str, Any]:
    """The next request as clients write it, with the arguments serialized again."""
    calls = calls_of(api, body)
    answers = list(zip(calls, results, strict=False))
    if api == "chat":
        message = body["choices"][0]["message"]
        made = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for id, name, given in calls
        ]
        assistant = {
            "role": "assistant",
            "content": message["content"] or "",
            **({"tool_calls": made} if made else {}),
        }
        outputs = [{"role": "tool", "tool_call_id": id, "content": result} for (id, _, _), result in answers]
        return {**request, "messages": [*request["messages"], assistant, *outputs]}
    outputs = [
        {"type": "function_call_output", "call_id": id, "output": result} for (id, _, _), result in answers
    ]
    return {**request, "input": [*request["input"], *body["output"], *outputs]}


def next_question(api: Api, request: dict[str, Any], body: dict[str, Any], question: str) -> dict[str, Any]:
    following = follow_up(api, request, body)
    key = "messages" if api == "chat" else "input"
    return {**following, key: [*following[key], {"role": "user", "content": question}]}


async def send(
    table: Any, judge: Judge, api: Api, request: dict[str, Any], stream: bool
) -> tuple[dict[str, Any], str]:
    """The judged answer, and the turn's kind in the response header."""
    answer = await table.answer(api, {**request, "stream": stream})
    kind = dict(answer.headers)[b"x-toolwire-turn"].decode()
    if not stream:
        body: dict[str, Any] = json.loads(answer.body)
        judge.body(body, api)
        return body, kind
    raw = b"".join([block async for block in answer.stream])
    judge.stream(raw, api)
    return fold(raw, api), kind


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def refused(table: Any, request: dict[str, Any]) -> Any:
    with pytest.raises(ToolwireError) as caught:
        await table.body("chat", request)
    return caught.value.failure


# --- the loop ---


@pytest.mark.parametrize(("api", "stream"), EVERYWHERE)
async def test_a_tool_loop_with_parallel_calls_is_one_run_over_two_requests(
    table: Any, judge: Judge, make: Make, bridge: FakeCursorBridge, api: Api, stream: bool
) -> None:
    bridge.play(
        [{"text": "Let me look."}, {"calls": [PARIS, TIME]}, {"usage": USAGE}, {"text": "It is {results}."}]
    )
    table.serve(make())
    request = ask(api)
    first, kind = await send(table, judge, api, request, stream)
    assert (kind, text_of(api, first)) == ("new", "Let me look.")
    assert [call[1:] for call in calls_of(api, first)] == [
        ("get_weather", {"city": "Paris"}),
        ("get_time", {"city": "Rome"}),
    ]
    second, kind = await send(table, judge, api, follow_up(api, request, first, "sunny", "noon"), stream)
    assert (kind, text_of(api, second)) == ("resumed", "It is sunny noon.")
    assert len(bridge.bodies("Send")) == 1, "one run"


@pytest.mark.parametrize("stream", [False, True])
async def test_several_steps_one_after_the_other_stay_in_one_run(
    table: Any, judge: Judge, make: Make, bridge: FakeCursorBridge, stream: bool
) -> None:
    bridge.play(
        [
            PARIS,
            {"text": "Then "},
            TIME,
            {"call": "write", "args": {"city": "x"}},
            {"text": "done: {results}"},
        ]
    )
    table.serve(make())
    request = ask("chat")
    body, _ = await send(table, judge, "chat", request, stream)
    for name, result in (("get_weather", "a"), ("get_time", "b"), ("write", "c")):
        assert [call[1] for call in calls_of("chat", body)] == [name]
        request = follow_up("chat", request, body, result)
        body, kind = await send(table, judge, "chat", request, stream)
        assert kind == "resumed"
    assert text_of("chat", body) == "done: a b c" and len(bridge.bodies("Send")) == 1


async def test_the_agent_gets_the_clients_tools_and_nothing_else(
    table: Any, judge: Judge, make: Make, bridge: FakeCursorBridge
) -> None:
    table.serve(make())
    await send(table, judge, "chat", ask("chat"), False)
    options = bridge.bodies("CreateAgent")[-1]["options"]
    assert options["tools"] == {"names": ["mcp"]} and options["model"] == {"id": "auto"}
    assert options["local"]["customTools"] == {
        name: {"description": f"It can {name}.", "inputSchema": SCHEMA} for name in NAMES
    }
    folder = Path(options["local"]["cwd"][0])
    assert (
        list(folder.iterdir()) == []
        and "settingSources" not in options["local"]
        and options["local"]["sandboxOptions"] == {"enabled": True}
    )
    await send(table, judge, "chat", ask("chat", tools=[]), False)
    options = bridge.bodies("CreateAgent")[-1]["options"]
    assert options["tools"] == {"names": []} and "customTools" not in options["local"]
    await send(table, judge, "chat", ask("chat", tool_choice="none"), False)
    assert bridge.bodies("CreateAgent")[-1]["options"]["tools"] == {"names": []}


async def test_thoughts_and_real_token_counts_are_passed_on(
    table: Any, judge: Judge, make: Make, bridge: FakeCursorBridge
) -> None:
    bridge.play([{"think": "Hmm. "}, {"think": "Yes."}, {"text": "Hello, you."}, {"usage": USAGE}])
    table.serve(make())
    body, _ = await send(table, judge, "chat", ask("chat"), False)
    assert (
        body["choices"][0]["message"]["reasoning_content"] == "Hmm. Yes."
        and text_of("chat", body) == "Hello, you."
    )
    assert (
        body["usage"]["prompt_tokens"],
        body["usage"]["completion_tokens"],
        body["usage"]["total_tokens"],
    ) == (20, 7, 27)
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 5
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2


async def test_each_response_of_a_run_reports_its_own_tokens(
    table: Any, judge: Judge, make: Make, bridge: FakeCursorBridge
) -> None:
    bridge.play(
        [
            {"usage": {"inputTokens": 10, "outputTokens": 1}},
            PARIS,
            {"usage": {"inputTokens": 30, "outputTokens": 2}},
            {"text": "ok"},
        ]
    )
    table.serve(make())
    request = ask("chat")
    first, _ = await send(table, judge, "chat", request, False)
    second, _ = await send(table, judge, "chat", follow_up("chat", request, first, "x"), False)
    assert [body["usage"]["prompt_tokens"] for body in (first, second)] == [10, 30]


async def test_images_travel_with_the_question_and_with_results(
    table: Any, judge: Judge, make: Make, bridge: FakeCursorBridge
) -> None:
    bridge.play([PARIS, {"text": "{result}"}])
    table.serve(make())
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    request = ask("chat")
    request["messages"][-1] = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, picture]}
    first, _ = await send(table, judge, "chat", request, False)
    assert bridge.bodies("Send")[0]["message"]["images"] == [
        {"data": {"data": "iVBORw0KGgo=", "mimeType": "image/png"}}
    ]
    following = follow_up("chat", request, first, "x")
    following["messages"][-1]["content"] = [{"type": "text", "text": "see"}, picture]
    second, _ = await send(table, judge, "chat", following, False)
    assert text_of("chat", second).split() == ["see", "image/png"]


async def test_a_fresh_agent_gets_the_images_of_the_whole_conversation(
    table: Any, judge: Judge, make: Make, bridge: FakeCursorBridge
) -> None:
    bridge.play([PARIS, {"text": "A cat."}])
    backend = make()
    table.serve(backend)
    request = ask("chat")
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    request["messages"][-1] = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, picture]}
    first, _ = await send(table, judge, "chat", request, False)
    table.serve(backend)  # a gateway that does not have the parked run
    _, kind = await send(table, judge, "chat", follow_up("chat", request, first, "x"), False)
    message = bridge.bodies("Send")[-1]["message"]
    assert kind == "replayed" and "[image]" in message["text"]
    assert message["images"] == [{"data": {"data": "iVBORw0KGgo=", "mimeType": "image/png"}}]


async def test_the_agent_that_saw_another_image_is_not_asked(
    table: Any, judge: Judge, make: Make, bridge: FakeCursorBridge
) -> None:
    bridge.play([{"text": "A cat."}])
    backend = make()
    table.serve(backend)
    for data in ("iVBORw0KGgo=", "iVBORw0KGgp="):
        request = ask("chat")
        content = [
            {"type": "text", "text": "What is it?"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
        ]
        request["messages"][-1] = {"role": "user", "content": content}
        if data.endswith("o="):
            first, _ = await send(table, judge, "chat", request, False)
            await until(lambda: len(backend.idle) == 1)
    await send(table, judge, "chat", next_question("chat", request, first, "And its colour?"), False)
    assert (
        len(bridge.bodies("CreateAgent")) == 2
        and bridge.bodies("Send")[-1]["message"]["images"][0]["data"]["data"] == "iVBORw0KGgp="
    )


# --- sessions ---


@pytest.mark.parametrize(("api", "stream"), EVERYWHERE)
async def test_a_follow_up_sends_the_same_agent_only_the_new_messages(
    table: Any, judge: Judge, make: Make, bridge: FakeCursorBridge, api: Api, stream: bool
) -> None:
    bridge.play([PARIS, {"text": "It is {result}."}], [{"text": "Rain."}])
    backend = make()
    table.serve(backend)
    request = ask(api)
    first, _ = await send(table, judge, api, request, stream)
    request = follow_up(api, request, first, "sunny")
    second, _ = await send(table, judge, api, request, stream)
    await until(lambda: len(backend.idle) == 1)
    third, kind = await send(table, judge, api, next_question(api, request, second, "And tomorrow?"), stream)
    assert (text_of(api, third), kind) == ("Rain.", "new")
    assert len(bridge.bodies("CreateAgent")) == 1
    prompts = [body["message"]["text"] for body in bridge.bodies("Send")]
    assert "Be kind." in prompts[0] and prompts[1] == "And tomorrow?"


async def test_a_changed_history_or_changed_tools_start_a_fresh_agent(
    table: Any, judge: Judge, make: Make, bridge: FakeCursorBridge
) -> None:
    bridge.play([{"text": "One."}])
    backend = make()
    table.serve(backend)
    request = ask("chat")
    first, _ = await send(table, judge, "chat", request, False)
    await until(lambda: len(backend.idle) == 1)
    following = next_question("chat", request, first, "And two?")
    edited = json.loads(json.dumps(following).replace("Weather?", "Weather now?"))
    await send(table, judge, "chat", edited, False)
    await send(table, judge, "chat", {**following, "tools": CHAT_TOOLS[:1]}, False)
    assert len(bridge.bodies("CreateAgent")) == 3
    text = bridge.bodies("Send")[1]["message"]["text"]
    assert [
        words in text for words in ("Be kind.", "User: Weather now?", "Assistant: One.", "User: And two?")
    ] == [True] * 4


async def test_the_agent_of_one_key_is_not_anothers(
    table: Any, judge: Judge, make: Make, bridge: FakeCursorBridge
) -> None:
    bridge.play([{"text": "One."}])
    backend = make()
    table.serve(backend)
    request = ask("chat")
    first = await table.body("chat", request, key_id="one")
    await until(lambda: len(backend.idle) == 1)
    following = next_question("chat", request, first, "And two?")
    await table.body("chat", following, key_id="other")
    assert len(bridge.bodies("CreateAgent")) == 2
    await table.body("chat", following, key_id="one")
    assert (
        len(bridge.bodies("CreateAgent")) == 2 and bridge.bodies("Send")[-1]["message"]["text"] == "And two?"
    )


async def test_an_agent_that_the_bridge_forgot_is_replaced_within_the_same_request(
    table: Any, judge: Judge, make: Make, bridge: FakeCursorBridge
) -> None:
    bridge.play([{"text": "One."}])
    backend = make()
    table.serve(backend)
    request = ask("chat")
    first, _ = await send(table, judge, "chat", request, False)
    await until(lambda: len(backend.idle) == 1)
    bridge.agents.clear()
    second, _ = await send(table, judge, "chat", next_question("chat", request, first, "And two?"), True)
    assert text_of("chat", second) == "One." and len(bridge.bodies("CreateAgent")) == 2


async def test_agents_without_a_next_turn_are_closed(
    table: Any, judge: Judge, make: Make, bridge: FakeCursorBridge
) -> None:
    backend = make(sessions=1)
    table.serve(backend)
    for question in "ab":
        await send(table, judge, "chat", ask("chat", question), False)
    await until(lambda: len(bridge.agents) == 1)
    assert len(backend.idle) == 1
    short = make(idle_s=0.05)
    table.serve(short)
    await send(table, judge, "chat", ask("chat", "c"), False)
    await until(lambda: len(short.idle) == 0 and len(bridge.agents) == 1)


# --- parked runs ---


async def test_a_long_park_goes_on_with_signs_of_life_in_between(
    table: Any, judge: Judge, make: Make, launcher: Any
) -> None:
    wait = float(os.environ.get("TOOLWIRE_LONG_PARK_S", "5"))
    backend = make(
        bridge_bin=launcher([PARIS, {"text": "It is {result}."}], flags="--keepalive-s 1"), timeout_s=3
    )
    table.serve(backend)
    request = ask("responses")
    first, _ = await send(table, judge, "responses", request, True)
    await asyncio.sleep(wait)
    second, kind = await send(
        table, judge, "responses", follow_up("responses", request, first, "sunny"), True
    )
    assert (text_of("responses", second), kind, len(launcher.bodies("Send"))) == (
        "It is sunny.",
        "resumed",
        1,
    )


def _edited(request: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    changed = follow_up("chat", request, body, "sunny", "noon")
    return {
        **changed,
        "messages": [
            changed["messages"][0],
            {"role": "user", "content": "Weather, please?"},
            *changed["messages"][2:],
        ],
    }


COLD: dict[str, Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]] = {
    "edited history": _edited,
    "a missing result": lambda request, body: follow_up("chat", request, body, "sunny"),
    "no tools any more": lambda request, body: {
        name: value
        for name, value in follow_up("chat", request, body, "sunny", "noon").items()
        if name != "tools"
    },
}


@pytest.mark.parametrize("why", [*COLD, "expired", "dead bridge", "dead launcher", "restarted gateway"])
async def test_a_run_that_cannot_continue_is_replayed_from_its_history(
    table: Any, judge: Judge, make: Make, launcher: Any, why: str
) -> None:
    script = [
        {"when": "result of tool get_weather.*sunny", "steps": [{"text": "Both are there."}]},
        [{"calls": [PARIS, TIME]}],
    ]
    backend = make(bridge_bin=launcher(*script))
    table.serve(backend)
    if why == "expired":
        table.gateway.parking = Parking(ParkedSettings(ttl_s=0.05))
    request = ask("chat")
    first, _ = await send(table, judge, "chat", request, False)
    if why == "expired":
        await until(lambda: len(table.gateway.parking) == 0)
        await until(lambda: bool(launcher.bodies("CancelRun")))
    elif why.startswith("dead"):
        process = backend.bridge.process
        assert process is not None
        (os.killpg if why == "dead bridge" else os.kill)(process.pid, signal.SIGKILL)
        await until(process.gone.is_set)
    elif why == "restarted gateway":
        await table.gateway.close()
        table.serve(make(bridge_bin=launcher(*script)))
    following = (
        COLD[why](request, first) if why in COLD else follow_up("chat", request, first, "sunny", "noon")
    )
    second, kind = await send(table, judge, "chat", following, False)
    assert (text_of("chat", second), kind) == ("Both are there.", "replayed")
    assert len(table.gateway.parking) == 0


async def test_a_result_that_comes_after_the_agent_gave_up_does_no_harm(
    table: Any, judge: Judge, make: Make, bridge: FakeCursorBridge
) -> None:
    bridge.play([{**PARIS, "within": 0.3}, {"text": "I could not wait: {result}."}])
    table.serve(make())
    request = ask("chat")
    first, _ = await send(table, judge, "chat", request, True)
    assert [call[1] for call in calls_of("chat", first)] == ["get_weather"]
    await until(lambda: all(run.status == "FINISHED" for run in bridge.runs.values()))
    second, kind = await send(table, judge, "chat", follow_up("chat", request, first, "sunny"), True)
    assert (text_of("chat", second), kind) == ("I could not wait: gave up.", "resumed")


async def test_sixteen_turns_at_once_on_one_bridge_are_neither_lost_nor_mixed(
    table: Any, judge: Judge, make: Make, launcher: Any
) -> None:
    backend = make(
        bridge_bin=launcher(
            [{"call": "write", "args": {"city": "{prompt}"}}, {"text": "{prompt} got {result}"}]
        ),
        settle_ms=100,
    )
    table.serve(backend)

    async def loop(number: int) -> tuple[str, str]:
        request = {"messages": [{"role": "user", "content": f"number {number}"}], "tools": CHAT_TOOLS}
        first, _ = await send(table, judge, "chat", request, number % 2 == 0)
        second, kind = await send(
            table, judge, "chat", follow_up("chat", request, first, f"r{number}"), number % 2 == 1
        )
        return text_of("chat", second), kind

    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*(loop(number) for number in range(16)))
    assert outcomes == [(f"number {number} got r{number}", "resumed") for number in range(16)]
    assert backend.bridge.starts == 1 and len(table.gateway.parking) == 0


# --- what the agent may not do ---


STRANGERS: dict[str, tuple[dict[str, Any], str]] = {
    "a tool of nobody's": (
        {"call": "format_disk", "args": {"disk": "/"}},
        "There is no tool 'format_disk' here. There are: get_time, get_weather, write.",
    ),
    "another agent": ({**PARIS, "agent": "agent-of-somebody"}, "This agent has no tools here any more."),
    "another token": ({**PARIS, "token": "guessed"}, "unauthenticated: Unauthorized"),
}


@pytest.mark.parametrize("who", STRANGERS)
async def test_a_call_that_is_not_the_clients_to_answer_gets_an_error_at_once(
    table: Any, judge: Judge, make: Make, bridge: FakeCursorBridge, who: str
) -> None:
    call, words = STRANGERS[who]
    bridge.play([call, {"text": "{result}"}])
    table.serve(make())
    body, _ = await send(table, judge, "chat", ask("chat"), False)
    assert text_of("chat", body) == words and not calls_of("chat", body)


@pytest.mark.parametrize("name", ["shell", "shell_tool_call", "writeShellStdin", "Read"])
async def test_an_agent_that_uses_its_own_tool_is_stopped(
    table: Any, make: Make, bridge: FakeCursorBridge, name: str
) -> None:
    bridge.play([{"own": name}, {"hang": True}])
    table.serve(make())
    failure = await refused(table, ask("chat"))
    assert failure.kind == "backend" and f"'{name}'" in failure.message
    await until(lambda: len(bridge.cancelled) == 1 and not bridge.agents)


async def test_a_client_may_have_tools_that_are_called_like_cursors_own(
    table: Any, judge: Judge, make: Make, bridge: FakeCursorBridge
) -> None:
    bridge.play([{"call": "read", "args": {"filePath": "x"}}, {"text": "ok"}])
    table.serve(make())
    request = ask("chat", tools=[{"type": "function", "function": {"name": "read", "parameters": {}}}])
    assert [call[1] for call in calls_of("chat", (await send(table, judge, "chat", request, False))[0])] == [
        "read"
    ]


async def test_the_same_call_over_and_over_is_ended_with_an_error_that_says_so(
    table: Any, judge: Judge, make: Make, bridge: FakeCursorBridge
) -> None:
    bridge.play([PARIS] * 10)
    table.serve(make(repeats=2))
    request = ask("chat")
    for _ in range(2):
        body, _ = await send(table, judge, "chat", request, False)
        request = follow_up("chat", request, body, "sunny")
    with pytest.raises(ToolwireError, match="same arguments 3 times") as caught:
        await send(table, judge, "chat", request, False)
    assert caught.value.failure.kind == "invalid_tool_call"
    await until(lambda: not bridge.agents)


async def test_a_required_call_is_asked_for_in_words_and_once_more(
    table: Any, judge: Judge, make: Make, bridge: FakeCursorBridge
) -> None:
    bridge.play([{"text": "I would rather talk."}], [PARIS, {"text": "ok"}])
    table.serve(make())
    body, _ = await send(table, judge, "chat", ask("chat", tool_choice="required"), False)
    assert [call[1] for call in calls_of("chat", body)] == ["get_weather"] and text_of("chat", body) == ""
    prompts = [sent["message"]["text"] for sent in bridge.bodies("Send")]
    assert "must call" in prompts[0] and "did not make the tool call" in prompts[1]
    bridge.play([{"text": "No."}])
    named = ask("chat", tool_choice={"type": "function", "function": {"name": "write"}})
    failure = await refused(table, named)
    assert failure.kind == "no_tool_call"
    assert list(bridge.bodies("CreateAgent")[-1]["options"]["local"]["customTools"]) == ["write"]
    assert len(bridge.bodies("CreateAgent")) == 2, "each question has one agent, which is asked twice"


# --- cancellation ---


async def test_a_client_that_hangs_up_cancels_the_run(
    table: Any, make: Make, bridge: FakeCursorBridge
) -> None:
    bridge.play([{"text": "Once upon a time"}, {"hang": True}])
    table.serve(make())
    answer = await table.answer("chat", {**ask("chat"), "stream": True})
    assert answer.stream is not None
    await anext(answer.stream)
    await answer.stream.aclose()
    await until(
        lambda: (
            bridge.cancelled == list(bridge.bodies("CancelRun")[0].values())[:1]
            if bridge.bodies("CancelRun")
            else False
        )
    )
    await until(lambda: not bridge.agents)


async def test_a_run_cancelled_before_its_first_message_is_found_and_cancelled(
    make: Make, bridge: FakeCursorBridge
) -> None:
    from toolwire.core.turn import Message, TextPart, Turn

    bridge.play([{"hang": True}])
    backend = make()
    live = backend.open(Turn("chat", "m", (Message("user", (TextPart("hi"),)),)))
    segment = live.segment()
    waiting = asyncio.ensure_future(anext(segment))
    await until(lambda: bool(bridge.bodies("Send")))
    await live.cancel()
    await waiting
    await segment.aclose()
    await until(lambda: len(bridge.cancelled) == 1 and not bridge.agents)


# --- failures ---

FAILURES: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    "error status": (
        [{"status": "ERROR", "message": "[internal] The model broke."}],
        "backend",
        "The model broke.",
    ),
    "rate limit": (
        [
            {
                "error": "resource_exhausted",
                "message": "slow down",
                "sdk": "SDK_ERROR_CODE_RATE_LIMIT_EXCEEDED",
            }
        ],
        "rate_limit",
        "slow down",
    ),
    "usage limit": (
        [
            {
                "error": "resource_exhausted",
                "message": "all used",
                "sdk": "SDK_ERROR_CODE_USAGE_LIMIT_EXCEEDED",
            }
        ],
        "quota",
        "all used",
    ),
    "bad key in the run": (
        [{"status": "ERROR", "message": "[unauthenticated] nope"}],
        "backend_auth",
        "nope",
    ),
    "no network": (
        [{"status": "ERROR", "message": "[unknown] Failed to connect: fetch failed"}],
        "backend_unavailable",
        "could not be reached",
    ),
    "cancelled there": ([{"status": "CANCELLED"}], "backend_cut", "cancelled"),
    "expired there": ([{"status": "EXPIRED"}], "timeout", "expire"),
    "busy": (
        [{"error": "failed_precondition", "message": "busy", "sdk": "SDK_ERROR_CODE_AGENT_BUSY"}],
        "overloaded",
        "busy",
    ),
    "broken stream": ([{"drop": True}], "backend_cut", "too early"),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_run_that_fails_is_one_clear_error(
    table: Any, make: Make, bridge: FakeCursorBridge, name: str
) -> None:
    steps, kind, words = FAILURES[name]
    bridge.play(steps)
    table.serve(make())
    failure = await refused(table, ask("chat"))
    assert failure.kind == kind and words in failure.message


async def test_a_rate_limit_says_when_to_come_again(table: Any, make: Make, bridge: FakeCursorBridge) -> None:
    bridge.play(
        [
            {
                "error": "resource_exhausted",
                "message": "slow",
                "sdk": "SDK_ERROR_CODE_RATE_LIMIT_EXCEEDED",
                "retry": "2.5s",
            }
        ]
    )
    table.serve(make())
    assert (await refused(table, ask("chat"))).retry_after_s == 2.5


async def test_a_failure_after_the_first_text_ends_the_stream(table: Any, make: Make, launcher: Any) -> None:
    table.serve(make(bridge_bin=launcher([{"text": "Once upon"}, {"sleep": 0.1}, {"die": True}])))
    raw = await table.stream("chat", ask("chat"))
    assert b"Once" in raw and b'"stream_interrupted"' in raw and b"killed by signal 9" in raw


async def test_an_agent_that_waits_for_somebodys_consent_is_not_waited_for(
    table: Any, make: Make, bridge: FakeCursorBridge
) -> None:
    bridge._keepalive_s = 0.05
    bridge.play([{"request": "r1"}, {"hang": True}])
    table.serve(make(timeout_s=0.4))
    assert (await refused(table, ask("chat"))).kind == "timeout"


async def test_keep_alives_keep_a_thinking_agent_from_timing_out(
    table: Any, judge: Judge, make: Make, bridge: FakeCursorBridge
) -> None:
    bridge._keepalive_s = 0.05
    bridge.play([{"sleep": 3.0}, {"text": "At last."}])
    table.serve(make(timeout_s=2.0))
    assert text_of("chat", (await send(table, judge, "chat", ask("chat"), False))[0]) == "At last."


async def test_a_missing_setup_is_reported_with_its_fix(
    table: Any, make: Make, bridge: FakeCursorBridge, launcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.serve(make(bridge_token="guessed"))
    failure = await refused(table, ask("chat"))
    assert failure.kind == "backend_auth" and "token" in failure.message and "guessed" not in failure.message
    table.serve(make(api_key="crsr_wrong0123456789"))
    failure = await refused(table, ask("chat"))
    assert failure.kind == "backend_auth" and "crsr_wrong" not in failure.message
    table.serve(make(api_key="", bridge_bin=launcher()))
    failure = await refused(table, ask("chat"))
    assert failure.kind == "backend_auth" and "CURSOR_API_KEY" in failure.message
    backend = make(model="gpt-nonsense")
    table.serve(backend)
    assert (await refused(table, ask("chat"))).kind == "model_not_found"
    assert backend.bridge.agents == {}
    monkeypatch.setattr("toolwire.backends.cursor.options.bundled", lambda: None)
    monkeypatch.setenv("PATH", "/nonexistent")
    backend = CursorBackend("m")
    table.serve(backend)
    failure = await refused(table, ask("chat"))
    assert failure.kind == "backend_unavailable" and add_extra("cursor") in failure.message
    assert not await backend.ready()


# --- models ---


async def test_all_of_cursors_models_are_offered_and_share_one_bridge(
    table: Any, launcher: Any, judge: Judge
) -> None:
    command = launcher([{"text": "Hello."}], flags="--models auto,composer-2,gpt-5")
    options = {"model": "*", "bridge_bin": command, "api_key": "crsr_0123456789abcdef"}
    gateway = Gateway(Settings(models=(ModelSettings("cursor", "cursor", options),)))
    table.gateway = gateway
    try:
        await gateway.catalog.start()
        await until(lambda: gateway.catalog.listed() == ["cursor/auto", "cursor/composer-2", "cursor/gpt-5"])
        for name in ("cursor/composer-2", "cursor/gpt-5"):
            body = await table.body("chat", {"model": name, "messages": [{"role": "user", "content": "?"}]})
            assert text_of("chat", body) == "Hello." and body["model"] == name
        assert [body["options"]["model"]["id"] for body in launcher.bodies("CreateAgent")] == [
            "composer-2",
            "gpt-5",
        ]
        assert len(launcher.bodies("GetVersion")) == 1, "one bridge for all"
    finally:
        await gateway.close()


async def test_the_list_of_models_is_requested_at_most_every_five_minutes(bridge: FakeCursorBridge) -> None:
    from toolwire.backends.cursor.backend import CursorSource

    now = 0.0
    options = {"model": "*", "api_key": "crsr_0123456789abcdef"}
    source = CursorSource("m", {**options, "bridge_url": bridge.url, "bridge_token": bridge.token})
    source.clock = lambda: now
    try:
        assert await source.names() == ("auto", "composer-2", "gpt-4o")
        bridge.models.append("new")
        now = 299
        assert "new" not in await source.names()
        now = 301
        assert "new" in await source.names()
        bridge.refusing = Refused("internal", "Network request failed")
        now = 700
        with pytest.raises(ToolwireError, match="could not be reached"):
            await source.names()
    finally:
        await source.close()

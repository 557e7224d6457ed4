"""The Open Responses compliance suite: each of its ids has a test against the real server.

The suite itself is only on GitHub; docs/websocket.md explains how to run it. `IDS` is its list of ids.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from doubles.judges import Judge

Body = dict[str, Any]
IDS = (
    *(
        "basic-response",
        "assistant-phase",
        "response-output-phase-schema",
        "streaming-response",
        "system-prompt",
        "tool-calling",
        "image-input",
    ),
    *("multi-turn", "compact-response", "compact-missing-model"),
    *(
        "websocket-response",
        "websocket-sequential-responses",
        "websocket-continuation",
        "websocket-reconnect-store-false-recovery",
    ),
    *(
        "websocket-previous-response-not-found",
        "websocket-failed-continuation-evicts-cache",
        "websocket-compact-new-chain",
    ),
)
DEMANDED = frozenset(
    "id object created_at completed_at status incomplete_details model previous_response_id instructions "
    "output error tools tool_choice truncation "
    "parallel_tool_calls text top_p presence_penalty frequency_penalty top_logprobs temperature reasoning "
    "usage max_output_tokens max_tool_calls "
    "store background service_tier metadata safety_identifier prompt_cache_key".split()
)
"""Keys that the specification's Response must have, and that OpenAI's may lack."""
HEART = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)


def user(text: Any) -> Body:
    return {"type": "message", "role": "user", "content": text}


def assistant(text: str, **more: Any) -> Body:
    return {"type": "message", "role": "assistant", "content": text, **more}


def complete(response: Body) -> Body:
    assert DEMANDED <= response.keys(), DEMANDED - response.keys()
    assert response["status"] == "completed" and response["output"]
    return response


async def ask(place: Callable[..., Any], judge: Judge, body: Body, script: str = "") -> Body:
    async with place(script, open_responses=True) as it:
        status, response = await it.post("/v1/responses", {"model": "m", **body})
        assert status == 200, response
        judge.body(response, "responses")
        return complete(response)


def final_response(events: list[Body], judge: Judge) -> Body:
    """The response at the end of a socket's events."""
    frames = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    judge.stream(frames.encode(), "responses")
    assert all(DEMANDED <= event["response"].keys() for event in events if "response" in event)
    return complete(events[-1]["response"])


def code(events: list[Body]) -> str:
    assert events[-1]["type"] == "error" and isinstance(events[-1]["status"], int)
    return str(events[-1]["error"]["code"])


def test_every_id_of_the_suite_has_its_test() -> None:
    here = vars(sys.modules[__name__])
    assert [id for id in IDS if f"test_{id.replace('-', '_')}" not in here] == [] and len(IDS) == 17


async def test_basic_response(place: Callable[..., Any], judge: Judge) -> None:
    await ask(place, judge, {"input": [user("Say hello in exactly 3 words.")]})


async def test_assistant_phase(place: Callable[..., Any], judge: Judge) -> None:
    said = [
        assistant("I should answer.", phase="commentary"),
        assistant("Four.", phase="final_answer"),
        user("Repeat the number."),
    ]
    await ask(place, judge, {"input": said})


async def test_response_output_phase_schema(place: Callable[..., Any], judge: Judge) -> None:
    """The suite checks a sample here. The server's own output must fit the same schema."""
    response = await ask(place, judge, {"input": "Hello"})
    assert all(item.get("phase") in (None, "commentary", "final_answer") for item in response["output"])


async def test_streaming_response(place: Callable[..., Any], judge: Judge) -> None:
    async with place(open_responses=True) as it:
        body = {"model": "m", "input": [user("Count from 1 to 5.")], "stream": True}
        async with it.client.post(f"http://127.0.0.1:{it.port}/v1/responses", json=body) as response:
            raw = await response.read()
        judge.stream(raw, "responses")
        assert b'"usage":null' in raw and b"event: response.completed" in raw


async def test_system_prompt(place: Callable[..., Any], judge: Judge) -> None:
    await ask(
        place,
        judge,
        {
            "input": [
                {"type": "message", "role": "system", "content": "You are a pirate."},
                user("Say hello."),
            ]
        },
    )


async def test_tool_calling(place: Callable[..., Any], judge: Judge) -> None:
    schema = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
    tool = {
        "type": "function",
        "name": "get_weather",
        "description": "Get the current weather for a location",
        "parameters": schema,
    }
    response = await ask(
        place, judge, {"input": [user("What's the weather like in San Francisco?")], "tools": [tool]}
    )
    assert [item["type"] for item in response["output"]] == ["function_call"] and response["tools"][0][
        "strict"
    ] is False


async def test_image_input(place: Callable[..., Any], judge: Judge) -> None:
    await ask(
        place,
        judge,
        {
            "input": [
                user(
                    [
                        {"type": "input_text", "text": "What is it?"},
                        {"type": "input_image", "image_url": HEART},
                    ]
                )
            ]
        },
    )


async def test_multi_turn(place: Callable[..., Any], judge: Judge) -> None:
    await ask(
        place,
        judge,
        {"input": [user("My name is Alice."), assistant("Hello Alice!"), user("What is my name?")]},
    )


async def test_compact_response(place: Callable[..., Any]) -> None:
    async with place() as it:
        said = [user("We agreed to launch on Tuesday."), assistant("Understood.")]
        status, body = await it.post(
            "/v1/responses/compact", {"model": "m", "prompt_cache_key": "k", "input": said}
        )
        assert (status, body["object"], body["output"][-1]["type"]) == (
            200,
            "response.compaction",
            "compaction",
        )
        assert (
            body["id"]
            and body["created_at"]
            and body["usage"]["total_tokens"] >= 0
            and body["output"][-1]["id"]
        )


async def test_compact_missing_model(place: Callable[..., Any]) -> None:
    async with place() as it:
        status, body = await it.post("/v1/responses/compact", {"input": [user("Compact this conversation.")]})
        assert (status, body["error"]["param"]) == (400, "model")


# --- over a WebSocket ---


async def test_websocket_response(place: Callable[..., Any], judge: Judge) -> None:
    async with place() as it, it.socket() as client:
        final_response(await client.turn([user("Count from 1 to 3.")]), judge)


async def test_websocket_sequential_responses(place: Callable[..., Any], judge: Judge) -> None:
    async with place() as it, it.socket() as client:
        first, second = [
            final_response(await client.turn(f"Reply with exactly: {word}", store=False), judge)
            for word in ("first", "second")
        ]
        assert first["id"] != second["id"] and second["previous_response_id"] is None


async def test_websocket_continuation(place: Callable[..., Any], judge: Judge) -> None:
    async with place() as it, it.socket() as client:
        first = final_response(await client.turn("Remember: cobalt.", store=False), judge)
        final_response(await client.turn("Which word?", store=False, previous_response_id=first["id"]), judge)
        assert [item.parts[0].text for item in it.backend.seen[-1].items if item.role == "user"] == [
            "Remember: cobalt.",
            "Which word?",
        ]


async def test_websocket_reconnect_store_false_recovery(place: Callable[..., Any], judge: Judge) -> None:
    async with place() as it:
        async with it.socket() as client:
            first = final_response(await client.turn("Remember: copper.", store=False), judge)
        async with it.socket() as client:
            assert (
                code(await client.turn("Which word?", store=False, previous_response_id=first["id"]))
                == "previous_response_not_found"
            )
            final_response(await client.turn([user("Start again.")], store=False), judge)


async def test_websocket_previous_response_not_found(place: Callable[..., Any]) -> None:
    async with place() as it, it.socket() as client:
        missing = f"resp_missing_{time.time_ns()}"
        assert (
            code(await client.turn("Go on.", store=False, previous_response_id=missing))
            == "previous_response_not_found"
        )


async def test_websocket_failed_continuation_evicts_cache(place: Callable[..., Any], judge: Judge) -> None:
    async with place() as it, it.socket() as client:
        first = final_response(await client.turn("Remember: ember.", store=False), judge)
        orphan = [{"type": "function_call_output", "call_id": "call_missing", "output": "none"}]
        failed = await client.turn(orphan, store=False, previous_response_id=first["id"])
        assert failed[-1]["type"] == "error" and failed[-1]["status"] == 400
        assert (
            code(await client.turn("Again.", store=False, previous_response_id=first["id"]))
            == "previous_response_not_found"
        )


async def test_websocket_compact_new_chain(place: Callable[..., Any], judge: Judge) -> None:
    async with place() as it:
        said = [user("Remember: slate."), assistant("OK."), user("Compress this conversation.")]
        _, compacted = await it.post("/v1/responses/compact", {"model": "m", "input": said})
        async with it.socket() as client:
            final_response(
                await client.turn([*compacted["output"], user("Continue.")], store=False, tools=[]), judge
            )


async def test_by_default_http_answers_have_the_keys_of_openais_schema_only(
    place: Callable[..., Any], judge: Judge
) -> None:
    async with place() as it:
        body = {"model": "m", "input": "Hi", "stream": True}
        async with it.client.post(f"http://127.0.0.1:{it.port}/v1/responses", json=body) as response:
            raw = await response.read()
        judge.stream(raw, "responses")
        assert b'"usage":null' not in raw and b"penalty" not in raw

"""Clients of Anthropic's API in front of Claude: what they send and what they get is Anthropic's own."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import httpx2
import pytest
from anthropic import AsyncAnthropic

from doubles import anthropic as a
from doubles import google as g
from toolwire.backends.hosted.messages import MessagesReader
from toolwire.core.capabilities import Capabilities
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Border, Failure, Finish, Usage
from toolwire.gateway.pipeline import Gateway
from toolwire.gateway.records import Caller
from toolwire.observe.replay import replay
from toolwire.settings.types import Settings
from toolwire.testing.upstream import Reply
from toolwire.wire.fields import report
from toolwire.wire.messages.decode import decode

Json = dict[str, Any]
CACHED = {"cache_control": {"type": "ephemeral"}}
LONG = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
SCHEMA = {"$schema": "x", "type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "Tells the weather.", "input_schema": SCHEMA}
ASKED: Json = {"max_tokens": 4000, "messages": [{"role": "user", "content": "Paris?"}]}
WITH_TOOL: Json = {**ASKED, "tools": [WEATHER]}
THOUGHT = a.Thinking("Two cities.", "EqQBfirst==")
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
MODEL = "claude-opus-5-5"


async def folded(raw: bytes) -> Json:
    """The message that Anthropic's own SDK reads from a stream."""

    def served(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=raw)

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(served)) as client:
        sdk = AsyncAnthropic(api_key="x", http_client=client, max_retries=0)
        given: Any = [{"role": "user", "content": "?"}]
        async with sdk.beta.messages.stream(model="m", max_tokens=9, messages=given) as stream:
            message = await stream.get_final_message()
    return message.model_dump(mode="json", exclude_unset=True)


async def both(table: Any, request: Json) -> tuple[Json, Json]:
    """The answer as the SDK reads it from a stream, and as a body."""
    return await folded(await table.stream("messages", request)), await table.body("messages", request)


# --- the request ---


def everything() -> Json:
    """A request with everything that has no place in other APIs."""
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    deferred = {**WEATHER, "name": "forecast", "defer_loading": True, "input_examples": [{"city": "Rome"}]}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
    image = {"type": "url", "url": "https://example.org/a.png"}
    failed = [{"type": "tool_reference", "tool_name": "forecast"}, {"type": "text", "text": "Tool loaded."}]
    searched = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    return {
        "max_tokens": 4000,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=1;"},
            {"type": "text", "text": "You are careful.", **LONG},
        ],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>x</system-reminder>"},
                    {"type": "document", "source": pdf, "title": "T", "citations": {"enabled": True}},
                    {"type": "image", "source": image},
                    {"type": "text", "text": "Paris?\n", **CACHED},
                ],
            },
            {"role": "system", "content": [], "output_config": {"effort": "low"}},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Two cities.", "signature": "EqQBfirst=="},
                    {"type": "redacted_thinking", "data": a.Redacted().data},
                    searched,
                    found,
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Zürich"}},
                    {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": failed},
                    {"type": "tool_result", "tool_use_id": "toolu_2", "content": "No.", "is_error": True},
                    {"type": "text", "text": "Go on.", **CACHED},
                ],
            },
        ],
        "tools": [WEATHER, {**deferred, **CACHED}, search],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "adaptive", "display": "summarized"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": '{"session": "x"}'},
        "service_tier": "auto",
        "container": "container_1",
        "mcp_servers": [{"type": "url", "name": "x", "url": "https://example.com/mcp"}],
        "stop_sequences": ["END"],
        "inference_geo": "eu",
    }


@pytest.mark.parametrize("stream", [True, False])
async def test_the_request_reaches_claude_block_for_block(table: Any, serving: Any, stream: bool) -> None:
    first = a.Answer(THOUGHT, a.Redacted(), a.Use("toolu_1", "weather"))  # what the request repeats
    async with serving("anthropic", first, a.Answer(a.Said("Sunny.")), model=MODEL) as (backend, server):
        await table.serve(backend).body("messages", WITH_TOOL)
        answer = await table.answer("messages", {**everything(), "stream": stream})
        if answer.stream is not None:
            _ = [block async for block in answer.stream]
    assert not server.refused
    wanted = {"model": MODEL, **everything(), "stream": True}
    got = server.requests[1].body
    assert got == wanted
    for name in ("system", "messages", "tools"):
        assert json.dumps(got[name]) == json.dumps(wanted[name])
    assert dict(answer.headers)[b"x-toolwire-report"] == b""


async def test_version_and_betas_of_the_client_reach_claude_and_its_key_does_not(
    serving: Any, on_a_socket: Any
) -> None:
    import aiohttp

    async with serving("anthropic", a.Answer(a.Said("Hello."))) as (backend, server):
        gateway = Gateway(Settings(), backends={"m": backend})
        headers = [
            ("anthropic-version", "2023-06-01"),
            ("anthropic-beta", "context-management-2025-06-27,effort-2025-11-24"),
            ("anthropic-beta", "interleaved-thinking-2025-05-14"),
            ("x-api-key", "the-clients-own"),
        ]
        async with on_a_socket(gateway, Settings()) as url, aiohttp.ClientSession() as session:
            body = {"model": "m", **ASKED}
            async with session.post(f"{url}/v1/messages?beta=true", json=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
    got = {name.lower(): value for name, value in server.requests[0].headers.items()}
    betas = "context-management-2025-06-27,effort-2025-11-24,interleaved-thinking-2025-05-14"
    assert (got["anthropic-version"], got["anthropic-beta"]) == ("2023-06-01", betas)
    assert "the-clients-own" not in str(got) and server.key in str(got)


async def test_signatures_survive_a_tool_loop(table: Any, serving: Any) -> None:
    calls = (THOUGHT, a.Redacted(), a.Said("I look."), a.Use("toolu_1", "weather", '{"city": "Paris"}'))
    async with serving("anthropic", a.Answer(*calls), a.Answer(a.Said("Sunny."))) as (backend, server):
        table.serve(backend)
        for ask in (table.body, lambda *given: _streamed(table, *given)):
            request = {**WITH_TOOL, **THINKING}
            said = await ask("messages", request)
            assert [block["type"] for block in said["content"]] == [
                "thinking",
                "redacted_thinking",
                "text",
                "tool_use",
            ]
            result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Sunny"}
            history = [
                {"role": "assistant", "content": said["content"]},
                {"role": "user", "content": [result]},
            ]
            await ask("messages", {**request, "messages": [*request["messages"], *history]})
            assert server.requests[-1].body["messages"][1:] == history and not server.refused
            server.answers[:] = [a.Answer(*calls), a.Answer(a.Said("Sunny."))]


async def _streamed(table: Any, api: Any, request: Json) -> Json:
    return await folded(await table.stream(api, request))


async def test_a_model_with_emulated_tools_gets_them_in_the_prompt(table: Any, serving: Any) -> None:
    async with serving("anthropic", a.Answer(a.Said("Hello.")), tools="emulated") as (backend, server):
        answer = await table.serve(backend).answer("messages", WITH_TOOL)
    assert "tools" not in server.requests[0].body and "weather" in json.dumps(server.requests[0].body)
    assert b"tools=emulated" in dict(answer.headers)[b"x-toolwire-report"]


@pytest.mark.parametrize("choice", [{"type": "tool", "name": "web_search"}, {"type": "any"}])
async def test_a_server_tool_may_be_required_of_claude_alone(table: Any, serving: Any, choice: Json) -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    request = {**ASKED, "tools": [search], "tool_choice": choice}
    async with serving("anthropic", a.Answer(a.Said("Found."))) as (backend, server):
        table.serve(backend)
        await table.body("messages", request)
        await table.body("messages", {**request, "tools": [search, WEATHER]})
    assert [sent.body["tool_choice"] for sent in server.requests] == [choice, choice]
    with pytest.raises(ToolwireError) as refused:
        await table.play("say hello").body("messages", request)
    assert str(refused.value.failure.param).startswith("tool_choice")


@pytest.mark.parametrize(
    ("choice", "first"),
    [
        ({"type": "any"}, a.Answer(a.Said("No."))),
        ({"type": "tool", "name": "weather"}, a.Answer(a.Said("No."))),
        ({"type": "tool", "name": "weather"}, a.Answer(a.Use("toolu_0", "time"))),
    ],
)
async def test_a_required_call_that_claude_does_not_make_is_asked_for_again(
    table: Any, serving: Any, choice: Json, first: a.Answer
) -> None:
    tools = [WEATHER, {**WEATHER, "name": "time", **CACHED}]
    request = {**ASKED, "tools": tools, "tool_choice": choice}
    async with serving("anthropic", first, a.Answer(a.Use("toolu_1", "weather"))) as (backend, server):
        answer = await table.serve(backend).answer("messages", request)
    body = json.loads(answer.body)
    assert body["stop_reason"] == "tool_use" and body["content"][-1]["name"] == "weather"
    assert b"tool_choice=retried" in dict(answer.headers)[b"x-toolwire-report"]
    asked, again = (recorded.body for recorded in server.requests)
    *before, said, correction = again["messages"]
    assert before == asked["messages"] and said["role"] == "assistant" and correction["role"] == "user"
    assert {**again, "messages": before} == asked


async def test_gemini_learns_that_a_tool_failed(table: Any, serving: Any) -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "No such city.", "is_error": True}
    called = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}
    history = [{"role": "assistant", "content": [called]}, {"role": "user", "content": [result]}]
    async with serving("google", g.Answer(g.Said("Hm."))) as (backend, server):
        await table.serve(backend).body("messages", {**WITH_TOOL, "messages": [*ASKED["messages"], *history]})
    answered = server.requests[0].body["contents"][-1]["parts"][0]["functionResponse"]["response"]
    assert answered == {"error": "No such city."}


# --- the answer ---


def delta(index: int, kind: str, **members: Any) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **members}}


def start(usage: Json | None = None) -> Json:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "x", "content": []}
    counted = {"input_tokens": 25, "output_tokens": 1, **(usage or {})}
    return {
        "type": "message_start",
        "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": counted},
    }


def block(index: int, content: Json, *deltas: Json) -> list[Json]:
    begin = {"type": "content_block_start", "index": index, "content_block": content}
    return [begin, *deltas, {"type": "content_block_stop", "index": index}]


def text(index: int, *pieces: str) -> list[Json]:
    return block(
        index, {"type": "text", "text": ""}, *(delta(index, "text_delta", text=piece) for piece in pieces)
    )


def use(index: int, id: str, *pieces: str, kind: str = "tool_use", name: str = "weather") -> list[Json]:
    begin = {"type": kind, "id": id, "name": name, "input": {}}
    return block(index, begin, *(delta(index, "input_json_delta", partial_json=piece) for piece in pieces))


def thinking(index: int, said: str, *signatures: str) -> list[Json]:
    deltas = [delta(index, "thinking_delta", thinking=said)] if said else []
    signed = [delta(index, "signature_delta", signature=signature) for signature in signatures]
    return block(index, {"type": "thinking", "thinking": "", "signature": ""}, *deltas, *signed)


def end(reason: str, usage: Json | None = None, **members: Any) -> list[Json]:
    ended = {"stop_reason": reason, "stop_sequence": None, **members}
    counted = {"output_tokens": 15, **(usage or {})}
    return [{"type": "message_delta", "delta": ended, "usage": counted}, {"type": "message_stop"}]


PING = {"type": "ping"}
REDACTED = {"type": "redacted_thinking", "data": "EmwKA"}
RESULT = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {
            "type": "web_search_result",
            "url": "https://example.org/",
            "title": "Weather",
            "encrypted_content": "Eo8",
            "page_age": None,
        }
    ],
}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "Zürich"}}
CITED = {
    "type": "char_location",
    "cited_text": "Zürich",
    "document_index": 0,
    "document_title": "T",
    "start_char_index": 0,
    "end_char_index": 6,
    "file_id": None,
}
DETAILS = {"type": "refusal", "category": "cyber", "explanation": "No."}


def said(words: str) -> Json:
    return {"type": "text", "text": words}


def called(id: str, **input: Any) -> Json:
    return {"type": "tool_use", "id": id, "name": "weather", "input": input}


def thought(words: str, signature: str) -> Json:
    return {"type": "thinking", "thinking": words, "signature": signature}


SCENARIOS: dict[str, tuple[list[Json], list[Json], str]] = {
    # the events between message_start and message_stop, the content, the stop reason
    "text": ([*text(0, "Hel", "lo."), *end("end_turn")], [said("Hello.")], "end_turn"),
    "unicode": ([*text(0, "Zür", "ich 🌧"), *end("end_turn")], [said("Zürich 🌧")], "end_turn"),
    "empty": (end("end_turn"), [], "end_turn"),
    "pings": ([PING, *text(0, "Hello."), PING, *end("end_turn")], [said("Hello.")], "end_turn"),
    "a call": (
        [*use(0, "toolu_1", "", '{"ci', 'ty": "Paris"}'), *end("tool_use")],
        [called("toolu_1", city="Paris")],
        "tool_use",
    ),
    "a call without arguments": ([*use(0, "toolu_1"), *end("tool_use")], [called("toolu_1")], "tool_use"),
    "two calls with text between them": (
        [
            *text(0, "One."),
            *use(1, "toolu_1", '{"city": "Paris"}'),
            *text(2, "Two."),
            *use(3, "toolu_2", '{"city": "Rome"}'),
            *end("tool_use"),
        ],
        [said("One."), called("toolu_1", city="Paris"), said("Two."), called("toolu_2", city="Rome")],
        "tool_use",
    ),
    "thoughts between calls": (
        [
            *thinking(0, "First.", "EqQB=="),
            *use(1, "toolu_1", '{"city": "Paris"}'),
            *thinking(2, "And Rome.", "EqQBsecond=="),
            *use(3, "toolu_2", '{"city": "Rome"}'),
            *end("tool_use"),
        ],
        [
            thought("First.", "EqQB=="),
            called("toolu_1", city="Paris"),
            thought("And Rome.", "EqQBsecond=="),
            called("toolu_2", city="Rome"),
        ],
        "tool_use",
    ),
    "two thoughts, and a signature that is replaced": (
        [*thinking(0, "A", "one", "two"), *thinking(1, "B", "three"), *text(2, "C"), *end("end_turn")],
        [thought("A", "two"), thought("B", "three"), said("C")],
        "end_turn",
    ),
    "a thought that is not shown": (
        [*thinking(0, "", "EqQB=="), *text(1, "Hello."), *end("end_turn")],
        [thought("", "EqQB=="), said("Hello.")],
        "end_turn",
    ),
    "an unsigned thought": (
        [*thinking(0, "Hm."), *use(1, "toolu_1", "{}"), *end("tool_use")],
        [thought("Hm.", ""), called("toolu_1")],
        "tool_use",
    ),
    "redacted thoughts": (
        [*block(0, REDACTED), *block(1, REDACTED), *text(2, "Hello."), *end("end_turn")],
        [REDACTED, REDACTED, said("Hello.")],
        "end_turn",
    ),
    "the limit": ([*text(0, "Hel"), *end("max_tokens")], [said("Hel")], "max_tokens"),
    "the limit in a call": (
        [*use(0, "toolu_1", '{"city": "Paris", "co', 'untry": "Fr'), *end("max_tokens")],
        [called("toolu_1", city="Paris")],
        "max_tokens",
    ),
    "a full window": (
        [*text(0, "Hel"), *end("model_context_window_exceeded")],
        [said("Hel")],
        "model_context_window_exceeded",
    ),
    "a stop sequence": (
        [*text(0, "Hello"), *end("stop_sequence", stop_sequence="END")],
        [said("Hello")],
        "stop_sequence",
    ),
    "a refusal": ([*text(0, "I can"), *end("refusal", stop_details=DETAILS)], [said("I can")], "refusal"),
    "a tool of Anthropic's server": (
        [
            *use(0, "srvtoolu_1", '{"query": "Zü', 'rich"}', kind="server_tool_use", name="web_search"),
            *block(1, RESULT),
            *text(2, "It is sunny."),
            *end("end_turn", {"server_tool_use": {"web_search_requests": 1}}),
        ],
        [SEARCH, RESULT, said("It is sunny.")],
        "end_turn",
    ),
    "texts with citations": (
        [
            *text(0, "One."),
            *block(
                1,
                {"type": "text", "text": "", "citations": []},
                delta(1, "citations_delta", citation=CITED),
                delta(1, "text_delta", text="Two."),
            ),
            *text(2, "Three."),
            *end("end_turn"),
        ],
        [said("One."), {**said("Two."), "citations": [CITED]}, said("Three.")],
        "end_turn",
    ),
    "a pause": (
        [
            *text(0, "I search."),
            *use(1, "srvtoolu_1", '{"query": "Zürich"}', kind="server_tool_use", name="web_search"),
            *end("pause_turn"),
        ],
        [said("I search."), SEARCH],
        "pause_turn",
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_what_claude_answers_reaches_the_client(table: Any, serving: Any, name: str) -> None:
    events, content, reason = SCENARIOS[name]
    async with serving("anthropic", a.Played(start(), *events)) as (backend, _):
        for got in await both(table.serve(backend), WITH_TOOL):
            if name != "the limit in a call":  # the SDK shows the cut member too
                assert got["content"] == content
            assert [one["type"] for one in got["content"]] == [one["type"] for one in content]
            assert got["stop_reason"] == reason
            assert got["stop_sequence"] == ("END" if reason == "stop_sequence" else None)
            assert got.get("stop_details") == (DETAILS if reason == "refusal" else None)


async def test_a_recorded_turn_gives_the_same_answer_again(table: Any, serving: Any) -> None:
    events = [event for name in ("texts with citations", "a pause") for event in SCENARIOS[name][0][:-2]]
    answer = a.Played(start(), *events, *end("pause_turn", container={"id": "container_1"}))
    async with serving("anthropic", answer) as (backend, _):
        gateway = table.serve(backend).gateway
        raw = await table.stream("messages", WITH_TOOL)
        assert b"citations_delta" in raw and b"server_tool_use" in raw and b"container_1" in raw
        recording = await gateway.journal.recording(gateway.journal.records()[0].id)
        again = await asyncio.to_thread(replay, recording)
    assert again.same and again.wire_now == raw.decode(), again.differences


async def test_counted_tokens_come_back(table: Any, serving: Any) -> None:
    cached = {"cache_read_input_tokens": 100, "cache_creation_input_tokens": 7}
    late = {"input_tokens": 77, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 5}
    for first, last, wanted in ((cached, {}, (25, 100, 7, 15)), ({"input_tokens": 0}, late, (77, 5, 2, 15))):
        answer = a.Played(start(first), *text(0, "Hello."), *end("end_turn", last))
        async with serving("anthropic", answer) as (backend, _):
            for got in await both(table.serve(backend), ASKED):
                usage = got["usage"]
                names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
                assert (*(usage[name] for name in names), usage["output_tokens"]) == wanted
    details = {"cache_creation": {"ephemeral_1h_input_tokens": 7}, "service_tier": "standard"}
    edits = {"applied_edits": [{"type": "clear_thinking_20251015", "cleared_input_tokens": 3}]}
    last, stop = end("end_turn")
    answer = a.Played(start(details), *text(0, "Hello."), {**last, "context_management": edits}, stop)
    async with serving("anthropic", answer) as (backend, _):
        streamed, body = await both(table.serve(backend), ASKED)
    assert body["usage"].items() >= details.items() and body["context_management"] == edits
    assert streamed["usage"].items() >= details.items() and streamed["context_management"] == edits
    raw = await _raw_start(table, serving, cached)
    assert raw["cache_read_input_tokens"] == 100  # at the start already


async def _raw_start(table: Any, serving: Any, usage: Json) -> Json:
    answer = a.Played(start(usage), *text(0, "Hello."), *end("end_turn"))
    async with serving("anthropic", answer) as (backend, _):
        raw: bytes = await table.serve(backend).stream("messages", ASKED)
    found: Json = json.loads(raw.split(b"data: ", 2)[1].split(b"\n")[0])["message"]["usage"]
    return found


def test_input_tokens_include_cached_ones_and_thoughts_are_counted() -> None:
    reader = MessagesReader()
    counted = {"cache_read_input_tokens": 100, "cache_creation_input_tokens": 7}
    assert reader.feed(start(counted)) == [Usage(132, 1, 100, 0, 7)]
    last, _ = end("end_turn", {"output_tokens_details": {"thinking_tokens": 9}})
    details = {"output_tokens_details": {"thinking_tokens": 9}}
    assert reader.feed(last) == [Usage(132, 15, 100, 9, 7, details)]
    assert reader.finish() == [Finish("stop")]


def test_text_that_comes_while_a_call_is_open_follows_it() -> None:
    reader = MessagesReader()
    opened, grown, closed = use(0, "toolu_1", '{"city": "Paris"}')
    mixed = [start(), opened, *text(1, "Hello."), grown, closed, *end("tool_use")]
    events = [event for one in mixed for event in reader.feed(one)] + reader.finish()
    names = [type(event).__name__ for event in events if not isinstance(event, Usage | Border)]
    assert names == ["CallBegin", "CallArgs", "CallEnd", "Text", "Finish"]


# --- errors ---

KEY = a.DEFAULT_KEY


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (a.error(400, "messages.3: no such thing"), "invalid_request", "messages.3: no such thing"),
        (a.error(400, "prompt is too long: 9 tokens > 8 maximum"), "context_length", "9 tokens > 8 maximum"),
        (a.error(400, "Your credit balance is too low."), "quota", "no quota"),
        (a.error(401, f"invalid x-api-key {KEY}"), "backend_auth", "credentials"),
        (a.error(402, "Pay."), "quota", "no quota"),
        (a.error(403, f"not for {KEY}"), "backend_auth", "credentials"),
        (a.error(404, "model: x"), "model_not_found", "model: x"),
        (a.error(413, "Too large."), "body_too_large", "Too large."),
        (a.error(429, "Slow.", headers={"retry-after": "7"}), "rate_limit", "Slow."),
        (a.error(500, f"Oops {KEY}"), "backend", "Oops …"),
        (a.error(504, "Late."), "timeout", "too long"),
        (a.error(529, "Overloaded"), "overloaded", "Overloaded"),
        (Reply.body("<html>", 502), "backend", "The provider failed (HTTP 502)."),
        (Reply.body("<html>", 503), "overloaded", "The provider failed (HTTP 503)."),
        (Reply.body("", 200), "backend_cut", "broke off"),
        (a.Answer(error=("overloaded_error", "Overloaded")), "overloaded", "while streaming"),
        (a.Answer(error=("api_error", f"Oops {KEY}")), "backend", "while streaming"),
        (a.Answer(error=("something_new", "Hm.")), "backend", "while streaming"),
    ],
)
async def test_errors_have_their_kind_and_no_secret(
    table: Any, serving: Any, reply: Any, kind: str, words: str
) -> None:
    async with serving("anthropic", reply) as (backend, server):
        table.serve(backend)
        for stream in (True, False):
            with pytest.raises(ToolwireError) as failed:
                await table.answer("messages", {**ASKED, "stream": stream})
            failure = failed.value.failure
            assert (failure.kind, KEY in failure.message) == (kind, False)
            assert words in failure.message
            assert failure.retry_after_s == (7 if kind == "rate_limit" else None)
        assert len(server.requests) == 2  # nothing is sent again


async def test_an_unreachable_provider_is_reported(table: Any, serving: Any) -> None:
    async with serving("anthropic", a.Answer(a.Said("Hello."))) as (backend, server):
        table.serve(backend)
        await server.__aexit__(None, None, None)
        with pytest.raises(ToolwireError) as failed:
            await table.body("messages", ASKED)
        await server.__aenter__()
    assert failed.value.failure == Failure("backend_unavailable", "The provider could not be reached.")


@pytest.mark.parametrize("ending", ["eof", "cut", "reset"])
@pytest.mark.parametrize("events", [text(0, "Half")[:-1], use(0, "toolu_1", '{"ci')[:-1], []])
async def test_a_cut_stream_is_a_failure(table: Any, serving: Any, events: list[Json], ending: str) -> None:
    async with serving("anthropic", a.Played(start(), *events, ending=ending)) as (backend, _):
        table.serve(backend)
        with pytest.raises(ToolwireError) as failed:
            await table.body("messages", WITH_TOOL)
        assert failed.value.failure.kind == "backend_cut"
        if events:
            raw = await table.stream("messages", WITH_TOOL)
            assert b"event: error" in raw and b"message_stop" not in raw and b'stop_reason":"' not in raw


async def test_an_error_in_the_middle_ends_the_stream(table: Any, serving: Any) -> None:
    broken = a.Answer(a.Said("Half"), error=("overloaded_error", "Overloaded"))
    async with serving("anthropic", broken) as (backend, _):
        raw = await table.serve(backend).stream("messages", ASKED)
    assert raw.rstrip().split(b"\n\n")[-1].startswith(b"event: error") and b"overloaded_error" in raw


async def test_a_connection_closed_while_idle_is_opened_again(table: Any, serving: Any) -> None:
    answers = (a.Answer(a.Said("One.")), a.Answer(a.Said("Two."), refuse_reused=True))
    async with serving("anthropic", *answers) as (backend, _):
        table.serve(backend)
        said = [(await table.body("messages", ASKED))["content"][0]["text"] for _ in range(2)]
    assert said == ["One.", "Two."]


async def test_a_client_that_disconnects_ends_the_run(table: Any, serving: Any) -> None:
    async with serving("anthropic", a.Answer(a.Said("Half"), stop="", ending="hang")) as (backend, server):
        answer = await table.serve(backend).answer("messages", {**ASKED, "stream": True})
        async with aclosing(answer.stream) as stream:
            await anext(stream)
        async with asyncio.timeout(5):
            await server.gone.wait()


# --- counting ---


async def counted(gateway: Gateway, api: Any, body: Json, **caller: Any) -> tuple[int, bytes]:
    answer = await gateway.count(api, json.dumps({"model": "m", **body}).encode(), Caller(**caller))
    assert answer.body is not None
    return json.loads(answer.body)["input_tokens"], dict(answer.headers)[b"x-toolwire-report"]


async def test_claude_counts_tokens_itself(table: Any, serving: Any) -> None:
    asked = {name: value for name, value in WITH_TOOL.items() if name != "max_tokens"}
    betas = {"anthropic-beta": "token-counting-2024-11-01"}
    async with serving("anthropic", a.Answer(a.Said("Hello."))) as (backend, server):
        gateway = table.serve(backend).gateway
        assert await counted(gateway, "messages", asked, headers=betas) == (a.TOKENS, b"")
        assert await counted(gateway, "responses", {"input": "Paris?"}) == (a.TOKENS, b"")
    first, second = server.requests
    assert first.body == {"model": "claude-haiku-4-5", **asked}
    assert {name.lower(): value for name, value in first.headers.items()}["anthropic-beta"] in betas.values()
    assert second.body["messages"][0]["content"] == [{"type": "text", "text": "Paris?"}]


async def test_an_error_while_counting_is_reported(table: Any, serving: Any) -> None:
    async with serving("anthropic", a.Answer(), key="wrong") as (backend, _):
        with pytest.raises(ToolwireError) as failed:
            await counted(table.serve(backend).gateway, "messages", ASKED)
    assert failed.value.failure.kind == "backend_auth"


async def test_a_model_that_cannot_count_is_estimated(table: Any) -> None:
    gateway = table.play("say hello").gateway
    tokens, report = await counted(gateway, "messages", ASKED)
    assert tokens > 0 and report == b"input_tokens=estimated"


def test_models_that_a_request_names_as_fallbacks_never_reach_anthropic() -> None:
    turn = decode(
        {
            "model": "m",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "x"}],
            "fallbacks": [{"model": "claude-opus-5-5"}],
        }
    )
    assert turn.body is not None
    assert "fallbacks" not in turn.body
    assert report(turn, Capabilities(speaks=frozenset({"messages"})), "none") == (("fallbacks", "ignored"),)

"""`tool_choice` is enforced for models with native tools, even if their server ignores it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from doubles.judges import Judge
from toolwire.backends.openai import OpenAIBackend
from toolwire.conform.judge import fold
from toolwire.core.capabilities import Capabilities
from toolwire.core.errors import ToolwireError, status_of
from toolwire.core.ids import counting_ids
from toolwire.core.turn import Api, Message, OutputFormat, TextPart, Turn
from toolwire.gateway import stages
from toolwire.gateway.plan import make_plan
from toolwire.observe.recording import Offer
from toolwire.settings.types import ToolSettings
from toolwire.testing.upstream import FakeUpstream, Recorded, Reply, Script, answer, chunk, completion

APIS: list[Api] = ["chat", "responses"]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
NAMES = ("get_weather", "delete_all")
PARIS = '{"city": "Paris"}'
CALL, OTHER = ("c1", "get_weather", PARIS), ("c2", "delete_all", "{}")
TALK = answer("I would rather talk.", usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})


def tools(api: Api) -> list[Any]:
    flat = [{"name": name, "parameters": CITY} for name in NAMES]
    return [
        {"type": "function", "function": one} if api == "chat" else {"type": "function", **one}
        for one in flat
    ]


def named(api: Api) -> Any:
    return (
        {"type": "function", "function": {"name": "get_weather"}}
        if api == "chat"
        else {"type": "function", "name": "get_weather"}
    )


def allowed(api: Api, mode: str) -> Any:
    inner = {"mode": mode, "tools": [named(api)]}
    return (
        {"type": "allowed_tools", "allowed_tools": inner}
        if api == "chat"
        else {"type": "allowed_tools", **inner}
    )


def choices(api: Api) -> dict[str, Any]:
    return {"required": "required", "named": named(api), "allowed": allowed(api, "required")}


def question(api: Api, choice: Any, **fields: Any) -> dict[str, Any]:
    asked = [{"role": "user", "content": "Weather?"}]
    return {
        "messages" if api == "chat" else "input": asked,
        "tools": tools(api),
        "tool_choice": choice,
        **fields,
    }


def reply(chunks: Sequence[Any]) -> Script:
    """Returns a script that answers with these chunks: streamed or whole, as the request asks."""

    def say(request: Recorded) -> Reply:
        return Reply.stream(chunks) if request.body["stream"] else Reply.body(completion(chunks))

    return say


@asynccontextmanager
async def serving(*script: Script, **options: Any) -> AsyncIterator[tuple[OpenAIBackend, FakeUpstream]]:
    async with FakeUpstream(*script) as upstream:
        backend = OpenAIBackend("m", {"base_url": upstream.base_url, "profile": "generic", **options})
        try:
            yield backend, upstream
        finally:
            await backend.close()


async def whole(
    table: Any, judge: Judge, api: Api, body: dict[str, Any], stream: bool
) -> tuple[dict[str, Any], str]:
    """Returns the body of the answer and its report. A stream is combined into a body."""
    said = await table.answer(api, {**body, "stream": stream})
    report = dict(said.headers)[b"x-toolwire-report"].decode()
    if not stream:
        judge.body(json.loads(said.body), api)
        return json.loads(said.body), report
    raw = b"".join([block async for block in said.stream])
    judge.stream(raw, api)
    return fold(raw, api), report


def calls_of(body: dict[str, Any], api: Api) -> list[tuple[str, str]]:
    if api == "chat":
        calls = body["choices"][0]["message"].get("tool_calls") or []
        return [(one["function"]["name"], one["function"]["arguments"]) for one in calls]
    return [(item["name"], item["arguments"]) for item in body["output"] if item["type"] == "function_call"]


def text_of(body: dict[str, Any], api: Api) -> str:
    if api == "chat":
        return body["choices"][0]["message"].get("content") or ""
    return "".join(
        part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"]
    )


BOTH = [pytest.param(True, id="streamed"), pytest.param(False, id="whole")]
KINDS = ["required", "named", "allowed"]
DISOBEYS = {
    "text": TALK,
    "nothing": answer(""),
    "another tool": answer(calls=[("c9", "unheard_of", "{}")]),
    "a tool that is not allowed": answer("Hm.", calls=[OTHER]),
}
CASES = [
    (kind, first)
    for kind in KINDS
    for first in DISOBEYS
    if (kind, first) != ("required", "a tool that is not allowed")
]


@pytest.mark.parametrize("stream", BOTH)
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("kind", "first"), CASES)
async def test_a_required_call_is_asked_for_once_more(
    table: Any, judge: Judge, kind: str, first: str, api: Api, stream: bool
) -> None:
    async with serving(reply(DISOBEYS[first]), reply(answer(calls=[CALL]))) as (backend, upstream):
        body, report = await whole(
            table.serve(backend), judge, api, question(api, choices(api)[kind]), stream
        )
        assert calls_of(body, api) == [CALL[1:]] and text_of(body, api) == ""
        assert report == "tool_choice=retried"
        before, after = (request.body for request in upstream.requests)
        assert after["messages"][: len(before["messages"])] == before["messages"]
        corrective = after["messages"][-1]
        assert corrective["role"] == "user" and "required" in corrective["content"]
        assert ("get_weather" in corrective["content"]) == (kind == "named")
        offered = [tool["function"]["name"] for tool in after["tools"]]
        assert offered == (["get_weather"] if kind != "required" else list(NAMES))
        assert after["tool_choice"] == (named("chat") if kind == "named" else "required")


@pytest.mark.parametrize("stream", BOTH)
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_required_call_that_does_not_come_is_an_error(
    table: Any, kind: str, api: Api, stream: bool
) -> None:
    async with serving(reply(TALK)) as (backend, upstream):
        with pytest.raises(ToolwireError) as failed:
            await table.serve(backend).answer(api, question(api, choices(api)[kind], stream=stream))
        assert (failed.value.failure.kind, status_of(failed.value.failure)) == ("no_tool_call", 502)
        assert failed.value.failure.param == "tool_choice" and len(upstream.requests) == 2


@pytest.mark.parametrize("stream", BOTH)
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("choice", ["allowed, auto", "allowed, required", "named", "none"])
@pytest.mark.parametrize("unknown", ["text", "forward"])
async def test_a_call_that_the_choice_rules_out_never_reaches_the_client(
    table_with: Any, judge: Judge, unknown: str, choice: str, api: Api, stream: bool
) -> None:
    forms = {
        "allowed, auto": allowed(api, "auto"),
        "allowed, required": allowed(api, "required"),
        "named": named(api),
        "none": "none",
    }
    said = answer("Hm.", calls=[OTHER, CALL])
    async with serving(reply(said)) as (backend, _):
        body, report = await whole(
            table_with(unknown_tool=unknown).serve(backend), judge, api, question(api, forms[choice]), stream
        )
        assert calls_of(body, api) == ([] if choice == "none" else [CALL[1:]])
        assert "delete_all" in text_of(body, api), "nothing is lost: the call is shown as text"
        assert report == ("tool_choice=emulated" if choice.startswith("allowed") else "")
        if api == "chat":
            assert body["choices"][0]["finish_reason"] == ("stop" if choice == "none" else "tool_calls")


@pytest.mark.parametrize("api", APIS)
async def test_an_undeclared_tool_is_still_forwarded_if_the_setting_says_so(
    table_with: Any, judge: Judge, api: Api
) -> None:
    async with serving(reply(answer(calls=[("c1", "new_one", "{}")]))) as (backend, _):
        body, _ = await whole(
            table_with(unknown_tool="forward").serve(backend), judge, api, question(api, "required"), False
        )
        assert calls_of(body, api) == [("new_one", "{}")]


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_only_allowed_tools_are_offered_except_to_openai_which_gets_the_list(
    table: Any, mode: str
) -> None:
    for profile in ("generic", "openai"):
        async with serving(reply(answer(calls=[CALL])), profile=profile) as (backend, upstream):
            said = await table.serve(backend).answer("chat", question("chat", allowed("chat", mode)))
            sent = upstream.requests[-1].body
            offered = [tool["function"]["name"] for tool in sent["tools"]]
            if profile == "openai":
                assert (offered, sent["tool_choice"]) == (list(NAMES), allowed("chat", mode))
            else:
                assert (offered, sent["tool_choice"]) == (["get_weather"], mode)
            report = dict(said.headers)[b"x-toolwire-report"]
            assert report == (b"" if profile == "openai" else b"tool_choice=emulated")


async def test_if_openai_refuses_allowed_tools_only_those_tools_are_offered(table: Any) -> None:
    def script(request: Recorded) -> Reply:
        if isinstance(request.body.get("tool_choice"), dict):
            return Reply.error(
                400,
                "Unsupported value: 'tool_choice' does not support 'allowed_tools' with this model.",
                param="tool_choice",
            )
        return Reply.body(completion(answer(calls=[CALL])))

    async with serving(script, profile="openai") as (backend, upstream):
        for mode in ("auto", "required"):
            body = await table.serve(backend).body("chat", question("chat", allowed("chat", mode)))
            assert calls_of(body, "chat") == [CALL[1:]]
        assert [request.body["tool_choice"] for request in upstream.requests][1:] == ["auto", "required"]


@pytest.mark.parametrize("stream", BOTH)
@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_an_answer_cut_by_length_or_filter_is_passed_on(
    table: Any, judge: Judge, reason: str, stream: bool
) -> None:
    async with serving(reply(answer("I would", finish=reason))) as (backend, upstream):
        body, report = await whole(table.serve(backend), judge, "chat", question("chat", "required"), stream)
        assert (text_of(body, "chat"), body["choices"][0]["finish_reason"], report) == ("I would", reason, "")
        assert len(upstream.requests) == 1


async def test_tokens_of_both_attempts_count(table: Any, judge: Judge) -> None:
    used = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}
    async with serving(reply(TALK), reply(answer(calls=[CALL], usage=used))) as (backend, _):
        body, _ = await whole(table.serve(backend), judge, "chat", question("chat", "required"), False)
        assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (13, 6)


async def test_legacy_function_call_is_enforced_too(table: Any, judge: Judge) -> None:
    functions = [tool["function"] for tool in tools("chat")]
    asked = {
        "messages": [{"role": "user", "content": "?"}],
        "functions": functions,
        "function_call": {"name": "get_weather"},
    }
    async with serving(reply(TALK), reply(answer(calls=[CALL]))) as (backend, _):
        said = await table.serve(backend).answer("chat", asked)
        assert json.loads(said.body)["choices"][0]["message"]["function_call"]["name"] == "get_weather"
        assert dict(said.headers)[b"x-toolwire-report"] == b"function_call=retried"


async def test_a_named_custom_tool_is_enforced(table: Any, judge: Judge) -> None:
    custom = {"type": "custom", "custom": {"name": "run"}}
    asked = {
        "messages": [{"role": "user", "content": "?"}],
        "tools": [*tools("chat"), custom],
        "tool_choice": custom,
    }
    async with serving(
        reply(answer(calls=[OTHER])), reply(answer(calls=[("c1", "run", '{"input": "ls"}')]))
    ) as (backend, _):
        body = await table.serve(backend).body("chat", asked)
        assert [one["custom"] for one in body["choices"][0]["message"]["tool_calls"]] == [
            {"name": "run", "input": "ls"}
        ]


# --- what is held ---


async def test_a_required_call_streams_and_text_is_held_until_it_begins(table: Any) -> None:
    gate = asyncio.Event()
    pieces = [
        chunk({"content": "Let me look. "}),
        chunk(
            {
                "tool_calls": [
                    {"index": 0, "id": "c1", "function": {"name": "get_weather", "arguments": PARIS[:6]}}
                ]
            }
        ),
    ]
    end = [
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": PARIS[6:]}}]}),
        chunk({}, "tool_calls"),
    ]
    async with serving(Reply.stream([*pieces, *end], write_size=0, gate=gate)) as (backend, _):
        said = await asyncio.wait_for(
            table.serve(backend).answer("chat", question("chat", "required", stream=True)), 5
        )
        first = await asyncio.wait_for(anext(said.stream), 5)  # the upstream still waits at the gate
        assert b"Let me look. " in first and b"get_weather" in first
        gate.set()
        rest = b"".join([block async for block in said.stream])
        assert b"tool_calls" in rest


async def test_without_a_required_call_text_is_not_held(table: Any) -> None:
    gate = asyncio.Event()
    for choice in ("auto", allowed("chat", "auto")):
        gate.clear()
        async with serving(Reply.stream(answer("Hello"), gate=gate)) as (backend, _):
            said = await asyncio.wait_for(
                table.serve(backend).answer("chat", question("chat", choice, stream=True)), 5
            )
            seen = b""
            while b'"Hell"' not in seen:  # the upstream still waits at the gate
                seen += await asyncio.wait_for(anext(said.stream), 5)
            gate.set()
            _ = [block async for block in said.stream]


async def test_the_text_held_for_a_required_call_is_limited(
    table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "HELD_LIMIT", 5000)
    async with serving(reply(answer("x" * 8000, calls=[CALL], size=1000))) as (backend, _):
        with pytest.raises(ToolwireError) as failed:
            await table.serve(backend).answer("chat", question("chat", "required", stream=True))
        assert failed.value.failure.kind == "no_tool_call"


@pytest.mark.parametrize("schema", [True, False])
def test_a_format_that_a_backend_cannot_hold_is_asked_for_in_words(schema: bool) -> None:
    """The request has no tools."""
    offer: Any = Offer("native", Capabilities(tools=True, schema=schema))
    turn = Turn("chat", "m", (Message("user", (TextPart("Hi"),)),), output=OutputFormat("json_object"))
    plan = make_plan(turn, offer, ToolSettings(), counting_ids())
    assert (plan.turn.output.type, len(plan.turn.items)) == (("json_object", 1) if schema else ("text", 2))

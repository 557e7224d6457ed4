"""The hosted backend against fake providers: events, requests to the provider, failures, cancellation."""

from __future__ import annotations

import asyncio
import base64
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from doubles import anthropic as a
from doubles import google as g
from toolwire.backends.hosted import HostedBackend, HostedOptions
from toolwire.backends.hosted import backend as hosted_backend
from toolwire.backends.hosted.backend import HostedSource
from toolwire.backends.hosted.thinking import CallMemory, Signed, SignedThought
from toolwire.backends.registry import check
from toolwire.core.errors import KINDS, ToolwireError
from toolwire.core.events import CallArgs, CallBegin, CallEnd, Event, Failure, Finish, Text, Thought, Usage
from toolwire.core.turn import (
    Call,
    ImagePart,
    Item,
    Message,
    OtherPart,
    OutputFormat,
    Reasoning,
    Result,
    Sampling,
    TextPart,
    ToolChoice,
    ToolSpec,
    Turn,
)
from toolwire.settings.extras import add_extra, add_packages
from toolwire.testing.upstream import Reply

SCHEMA = {
    "type": "object",
    "properties": {"q": {"type": "string"}},
    "required": ["q"],
    "additionalProperties": False,
}
TOOLS = (ToolSpec("search", "Searches.", SCHEMA), ToolSpec("read", parameters={}))
ARGUMENTS = '{"q": "Rüst 👋",  "n": 1.50}'
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n not really").decode()


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def said(text: str) -> Message:
    return Message("assistant", (TextPart(text),))


def result(call_id: str, text: str = "sunny") -> Result:
    return Result(call_id, (TextPart(text),))


def turn(*items: Item, tools: tuple[ToolSpec, ...] = TOOLS, **fields: Any) -> Turn:
    choice = fields.pop("tool_choice", ToolChoice("auto" if tools else "none"))
    return Turn("chat", "m", items or (user("hi"),), tools=tools, tool_choice=choice, stream=True, **fields)


async def events(backend: HostedBackend, asked: Turn | None = None) -> list[Event]:
    return [event async for batch in backend.run(asked or turn()) for event in batch]


def summary(run: list[Event]) -> dict[str, Any]:
    """The events of a run, after checking their order: one open call at a time, numbered from 0, one end."""
    out: dict[str, Any] = {"text": "", "thought": "", "calls": []}
    open_call: int | None = None
    for event in run[:-1]:
        assert not isinstance(event, Finish | Failure)
        if isinstance(event, CallBegin):
            assert open_call is None and event.index == len(out["calls"])
            open_call = event.index
            out["calls"].append([event.id, event.name, ""])
        elif isinstance(event, CallArgs):
            assert event.index == open_call
            out["calls"][event.index][2] += event.delta
        elif isinstance(event, CallEnd):
            assert event == CallEnd(event.index) and event.index == open_call
            open_call = None
        elif isinstance(event, Text | Thought):
            assert open_call is None
            out[type(event).__name__.lower()] += event.text
    assert open_call is None and isinstance(run[-1], Finish | Failure)
    out["calls"] = [tuple(call) for call in out["calls"]]
    return out


# --- events ---


async def test_a_claude_answer_comes_out_in_its_order_with_verbatim_increments(serving: Any) -> None:
    answer = a.Answer(
        a.Thinking("Hm, well."),
        a.Said("Let me look."),
        a.Use("toolu_1", "search", ARGUMENTS),
        a.Use("toolu_2", "read"),
        usage={
            "input_tokens": 9,
            "cache_read_input_tokens": 4,
            "output_tokens": 70,
            "output_tokens_details": {"thinking_tokens": 30},
        },
        size=3,
    )
    async with serving("anthropic", answer) as (backend, _):
        run = await events(backend)
    calls = [("toolu_1", "search", ARGUMENTS), ("toolu_2", "read", "{}")]
    assert summary(run) == {"text": "Let me look.", "thought": "Hm, well.", "calls": calls}
    assert run[-2:] == [Usage(13, 70, 4, 30), Finish("tool_calls")]
    assert len([event for event in run if isinstance(event, CallArgs)]) > 8
    kinds = [type(event) for event in run]
    assert kinds.index(Thought) < kinds.index(Text) < kinds.index(CallBegin)
    assert Thought("Hm,", summary=True) in run


@pytest.mark.parametrize("together", [False, True])
async def test_a_gemini_answer_comes_out_in_its_order(serving: Any, together: bool) -> None:
    answer = g.Answer(
        g.Thought("Hm, well."),
        g.Said("Let me look."),
        g.Call("search", {"q": "Rüst 👋", "n": 1.5}, id="c1"),
        g.Call("read", {}, id="c2"),
        usage={
            "promptTokenCount": 25,
            "candidatesTokenCount": 15,
            "thoughtsTokenCount": 30,
            "cachedContentTokenCount": 4,
        },
        together=together,
    )
    async with serving("google", answer) as (backend, _):
        run = await events(backend)
    calls = [("c1", "search", '{"q":"Rüst 👋","n":1.5}'), ("c2", "read", "{}")]
    assert summary(run) == {"text": "Let me look.", "thought": "Hm, well.", "calls": calls}
    assert run[-2:] == [Usage(25, 45, 4, 30), Finish("stop")]


async def test_calls_without_ids_get_different_ones(serving: Any) -> None:
    async with serving("google", g.Answer(g.Call("search", {"q": "a"}), g.Call("search", {"q": "a"}))) as (
        backend,
        _,
    ):
        one, two = summary(await events(backend))["calls"]
    assert one[0] and two[0] and one[0] != two[0]


@pytest.mark.parametrize("write_size", [1, 7, 1000])
async def test_it_does_not_matter_how_the_bytes_are_cut(serving: Any, write_size: int) -> None:
    blocks = (a.Thinking("Hm …"), a.Said("Grüße 👋"), a.Use("toolu_1", "search", ARGUMENTS))
    async with serving("anthropic", a.Answer(*blocks, size=2, write_size=write_size)) as (backend, _):
        assert summary(await events(backend))["calls"] == [("toolu_1", "search", ARGUMENTS)]
    parts = (g.Thought("Hm …"), g.Said("Grüße 👋"))
    async with serving("google", g.Answer(*parts, size=2, write_size=write_size)) as (backend, _):
        assert summary(await events(backend)) == {"text": "Grüße 👋", "thought": "Hm …", "calls": []}


CLAUDE_ENDS = [
    ("end_turn", "stop"),
    ("stop_sequence", "stop"),
    ("max_tokens", "length"),
    ("refusal", "content_filter"),
    ("pause_turn", "stop"),
]
GEMINI_ENDS = [
    ("STOP", "stop"),
    ("MAX_TOKENS", "length"),
    ("SAFETY", "content_filter"),
    ("RECITATION", "content_filter"),
    ("OTHER", "stop"),
]


@pytest.mark.parametrize(("word", "reason"), CLAUDE_ENDS)
async def test_claudes_words_for_the_end(serving: Any, word: str, reason: Any) -> None:
    async with serving("anthropic", a.Answer(a.Said("Hi"), stop=word)) as (backend, _):
        run = await events(backend)
    assert summary(run)["text"] == "Hi" and run[-1] == Finish(reason)


@pytest.mark.parametrize(("word", "reason"), GEMINI_ENDS)
async def test_geminis_words_for_the_end(serving: Any, word: str, reason: Any) -> None:
    async with serving("google", g.Answer(g.Said("Hi"), finish=word)) as (backend, _):
        run = await events(backend)
    assert summary(run)["text"] == "Hi" and run[-1] == Finish(reason)


async def test_a_call_cut_by_the_token_limit_is_truncated_never_completed(serving: Any) -> None:
    async with serving("anthropic", a.Answer(a.Use("toolu_1", "search", '{"q": "Ru'), stop="max_tokens")) as (
        backend,
        _,
    ):
        run = await events(backend)
    assert isinstance(run[-3], CallEnd) and run[-3].status == "truncated" and run[-1] == Finish("length")


async def test_a_malformed_gemini_call_and_a_blocked_prompt_are_failures(serving: Any) -> None:
    async with serving(
        "google", g.Answer(finish="MALFORMED_FUNCTION_CALL"), g.Answer(blocked="PROHIBITED_CONTENT")
    ) as (backend, _):
        malformed, blocked = (await events(backend))[-1], (await events(backend))[-1]
    assert isinstance(malformed, Failure) and malformed.kind == "backend" and "tool call" in malformed.message
    assert blocked == Failure("content_filter", "The provider refused the request (PROHIBITED_CONTENT).")


# --- requests to the provider ---


async def asked_of(serving: Any, provider: str, asked: Turn, **options: Any) -> dict[str, Any]:
    answer = a.Answer(a.Said("ok")) if provider == "anthropic" else g.Answer(g.Said("ok"))
    async with serving(provider, answer, **options) as (backend, server):
        run = await events(backend, asked)
        assert run[-1] == Finish("stop"), (run, server.refused)
        body: dict[str, Any] = server.requests[-1].body
        return body if provider == "anthropic" else dict(g.camel(body))


HARD = (
    said("Hello, I am here."),
    Message("system", (TextPart("Be kind."),)),
    user(""),
    user("One."),
    user(" \n"),
    user("Two."),
    Message("assistant", ()),
    said("Looking."),
    Reasoning(content=("secret thoughts",)),
    Call("functions.search:0", "search", '{"q": "a"}'),
    Call("call_2", "read", "not json"),
    Result("functions.search:0", ()),
    Result("call_2", (TextPart("x"), ImagePart(f"data:image/png;base64,{PNG}"))),
    said("Let me think."),
    said("Done? "),
)


async def test_a_hard_history_becomes_one_that_claude_takes(serving: Any) -> None:
    body = await asked_of(serving, "anthropic", turn(*HARD, instructions="Be brief."))
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["user", "assistant"] * 3 + ["user"]
    assert body["system"] == "Be brief.\n\nBe kind."
    first, _, third, calls, results, last, end = body["messages"]
    assert (
        first["content"][0]["text"] == "(The conversation starts here.)"
        and end["content"][0]["text"] == "Continue."
    )
    assert [block["text"] for block in third["content"]] == ["One.", "Two."]
    assert [block["type"] for block in calls["content"]] == ["text", "tool_use", "tool_use"]
    assert [block["input"] for block in calls["content"][1:]] == [{"q": "a"}, {"INVALID_JSON": "not json"}]
    ids = [block["id"] for block in calls["content"][1:]]
    assert [block["tool_use_id"] for block in results["content"]] == ids and ids[1] == "call_2"
    assert results["content"][0]["content"] == "" and [
        part["type"] for part in results["content"][1]["content"]
    ] == ["text", "image"]
    assert [block["text"] for block in last["content"]] == ["Let me think.", "Done? "]
    assert "secret thoughts" not in str(body)


@pytest.mark.parametrize("model", ["gemini-2.5-flash", "gemini-3-pro-preview"])
async def test_a_hard_history_becomes_one_that_gemini_takes(serving: Any, model: str) -> None:
    body = await asked_of(serving, "google", turn(*HARD, instructions="Be brief."), model=model)
    assert [part["text"] for part in body["systemInstruction"]["parts"]] == ["Be brief.", "Be kind."]
    calls = [part for content in body["contents"] for part in content["parts"] if "functionCall" in part]
    assert [part["functionCall"]["name"] for part in calls] == ["search", "read"]
    assert base64.b64decode(calls[0]["thoughtSignature"]) == b"skip_thought_signature_validator"
    assert body["contents"][-1] == {"role": "user", "parts": [{"text": "Continue."}]}


@pytest.mark.parametrize("provider", ["anthropic", "google"])
async def test_calls_without_results_tools_or_anything_to_say_are_taken(serving: Any, provider: str) -> None:
    body = await asked_of(serving, provider, turn(user("?"), Call("call_1", "search", "{}")))
    assert "No result was returned" in str(body)
    await asked_of(
        serving, provider, turn(user("?"), Call("call_1", "gone", "{}"), result("call_1"), tools=())
    )
    await asked_of(serving, provider, turn(Message("system", (TextPart("Be."),)), tools=()))
    await asked_of(serving, provider, turn(user("  "), tools=()))


async def test_claude_with_calls_in_the_history_gets_tools_that_it_may_not_call(serving: Any) -> None:
    body = await asked_of(
        serving, "anthropic", turn(user("?"), Call("call_1", "gone", "{}"), result("call_1"), tools=())
    )
    assert [tool["name"] for tool in body["tools"]] == ["gone"] and body["tool_choice"] == {"type": "none"}


CHOICES: list[tuple[dict[str, Any], Any, Any, list[str]]] = [
    ({}, {"type": "auto"}, {"mode": "VALIDATED"}, ["search", "read"]),
    ({"tool_choice": ToolChoice("none")}, {"type": "none"}, {"mode": "NONE"}, ["search", "read"]),
    ({"tool_choice": ToolChoice("required")}, {"type": "any"}, {"mode": "ANY"}, ["search", "read"]),
    (
        {"tool_choice": ToolChoice("required", name="read")},
        {"type": "tool", "name": "read"},
        {"mode": "ANY", "allowedFunctionNames": ["read"]},
        ["search", "read"],
    ),
    (
        {"tool_choice": ToolChoice("auto", allowed=("read",))},
        {"type": "auto"},
        {"mode": "VALIDATED"},
        ["read"],
    ),
    ({"tool_choice": ToolChoice("required", allowed=("read",))}, {"type": "any"}, {"mode": "ANY"}, ["read"]),
    (
        {"parallel": False},
        {"type": "auto", "disable_parallel_tool_use": True},
        {"mode": "VALIDATED"},
        ["search", "read"],
    ),
]


@pytest.mark.parametrize(("fields", "claude", "gemini", "names"), CHOICES)
async def test_tools_and_choices_reach_the_provider(
    serving: Any, fields: Any, claude: Any, gemini: Any, names: list[str]
) -> None:
    body = await asked_of(serving, "anthropic", turn(**fields))
    assert body["tool_choice"] == claude and [tool["name"] for tool in body["tools"]] == names
    body = await asked_of(serving, "google", turn(**fields))
    assert body["toolConfig"]["functionCallingConfig"] == gemini
    assert [function["name"] for tool in body["tools"] for function in tool["functionDeclarations"]] == names


async def test_a_claude_that_cannot_be_forced_is_asked_in_words(serving: Any) -> None:
    asked = turn(tool_choice=ToolChoice("required", name="read"))
    body = await asked_of(serving, "anthropic", asked, model="claude-sonnet-5-5")
    assert body["tool_choice"] == {"type": "auto"} and [tool["name"] for tool in body["tools"]] == ["read"]
    assert "Answer with a call of the tool `read`" in body["system"]
    async with serving("anthropic", a.Answer(), model="claude-sonnet-5-5") as (backend, _):
        await backend.prepare()
        assert (
            not backend.capabilities.tool_choice
            and not {"temperature", "top_p"} & backend.capabilities.fields
        )


async def test_strict_tools_and_schemas_are_held_by_the_provider_where_it_can(serving: Any) -> None:
    strict = ToolSpec("search", "Searches.", SCHEMA, strict=True)
    output = OutputFormat("json_schema", "found", SCHEMA, True)
    body = await asked_of(serving, "anthropic", turn(tools=(strict,), output=output))
    assert (
        body["tools"][0]["strict"] is True
        and body["tools"][0]["input_schema"]["additionalProperties"] is False
    )
    assert (
        body["output_config"]["format"]["schema"]["properties"] == SCHEMA["properties"]
        and "system" not in body
    )
    body = await asked_of(serving, "google", turn(tools=(), output=output))
    assert body["generationConfig"]["responseMimeType"] == "application/json"
    assert body["generationConfig"]["responseJsonSchema"]["properties"]["q"]["type"] == "string"


@pytest.mark.parametrize(
    ("provider", "fields"),
    [
        ("anthropic", {"output": OutputFormat("json_schema", "open", {"type": "object"}, False)}),
        ("anthropic", {"output": OutputFormat("json_object")}),
        (
            "google",
            {"output": OutputFormat("json_schema", "found", SCHEMA, True)},
        ),  # with tools, which Gemini 2.5 does not support together with a schema
        ("google", {"output": OutputFormat("json_object"), "tools": ()}),
    ],
)
async def test_a_schema_that_the_provider_cannot_enforce_is_described_in_words(
    serving: Any, provider: str, fields: Any
) -> None:
    assert "JSON" in str(
        (await asked_of(serving, provider, turn(**fields)))[
            "system" if provider == "anthropic" else "systemInstruction"
        ]
    )


SAMPLING = Sampling(
    temperature=0.3,
    top_p=1.0,
    max_tokens=77,
    stop=("END",),
    seed=5,
    presence_penalty=0.5,
    frequency_penalty=0.25,
)


async def test_sampling_reaches_the_provider_as_the_capabilities_say(serving: Any) -> None:
    body = await asked_of(serving, "anthropic", turn(sampling=SAMPLING))
    assert body | {"temperature": 0.3, "max_tokens": 77, "stop_sequences": ["END"]} == body and not {
        "top_p",
        "seed",
    } & set(body)
    config = (await asked_of(serving, "google", turn(sampling=SAMPLING)))["generationConfig"]
    expected = {
        "temperature": 0.3,
        "topP": 1.0,
        "maxOutputTokens": 77,
        "stopSequences": ["END"],
        "seed": 5,
        "presencePenalty": 0.5,
    }
    assert config | expected | {"frequencyPenalty": 0.25} == config
    for provider, fields in (("anthropic", {"seed"}), ("google", {"logit_bias"})):
        async with serving(provider, a.Answer()) as (backend, _):
            await backend.prepare()
            assert (
                not fields & backend.capabilities.fields
                and {"temperature", "stop", "max_tokens"} <= backend.capabilities.fields
            )


async def test_images_and_files_reach_the_provider(serving: Any) -> None:
    image, linked = ImagePart(f"data:image/png;base64,{PNG}"), ImagePart("https://example.com/a.png")
    file = OtherPart("file", {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERg=="}})
    message = Message("user", (TextPart("What is it?"), image, linked, file))
    blocks = (await asked_of(serving, "anthropic", turn(message)))["messages"][0]["content"]
    assert [block["type"] for block in blocks] == ["text", "image", "image", "document"]
    assert blocks[1]["source"] == {"type": "base64", "media_type": "image/png", "data": PNG}
    assert blocks[2]["source"] == {"type": "url", "url": "https://example.com/a.png"}
    parts = (await asked_of(serving, "google", turn(Message("user", (TextPart("?"), image, file)))))[
        "contents"
    ][0]["parts"]
    assert [part.get("inlineData", {}).get("mimeType") for part in parts] == [
        None,
        "image/png",
        "application/pdf",
    ]
    async with serving("google", g.Answer()) as (backend, _):
        assert not backend.capabilities.image_urls  # the gateway downloads them


@pytest.mark.parametrize(
    "part",
    [
        ImagePart(None, file_id="file-1"),
        ImagePart("data:image/png;base64,%%%"),
        ImagePart("data:nonsense"),
        OtherPart("input_audio", {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
        OtherPart("video", {"type": "video"}),
    ],
)
async def test_content_that_the_provider_cannot_take_is_refused_by_name(serving: Any, part: Any) -> None:
    async with serving("anthropic", a.Answer(a.Said("ok"))) as (backend, server):
        run = await events(backend, turn(Message("user", (part,))))
    assert isinstance(run[-1], Failure) and KINDS[run[-1].kind].status == 400 and not server.requests


async def test_the_cache_is_asked_for_where_the_options_say_so(serving: Any) -> None:
    assert "cache_control" in str(await asked_of(serving, "anthropic", turn(), cache=True))
    assert "cache_control" not in str(await asked_of(serving, "anthropic", turn()))


# --- thinking ---

THINKING: list[tuple[str, str, dict[str, Any], str | None, Any]] = [
    ("anthropic", "claude-haiku-4-5", {}, None, None),
    ("anthropic", "claude-haiku-4-5", {}, "low", {"type": "enabled", "budget_tokens": 2048}),
    (
        "anthropic",
        "claude-haiku-4-5",
        {"thinking": "high"},
        None,
        {"type": "enabled", "budget_tokens": 16384},
    ),
    (
        "anthropic",
        "claude-haiku-4-5",
        {"thinking_budget": 3000},
        None,
        {"type": "enabled", "budget_tokens": 3000},
    ),
    ("anthropic", "claude-haiku-4-5", {"thinking": "high"}, "none", None),
    ("anthropic", "claude-opus-4-6", {}, "medium", {"type": "adaptive", "display": "summarized"}),
    ("anthropic", "claude-opus-5", {}, "none", {"type": "disabled"}),
    ("google", "gemini-2.5-flash", {}, None, None),
    ("google", "gemini-2.5-flash", {}, "low", {"includeThoughts": True, "thinkingBudget": 2048}),
    (
        "google",
        "gemini-2.5-flash",
        {"thinking_budget": 3000},
        None,
        {"includeThoughts": True, "thinkingBudget": 3000},
    ),
    ("google", "gemini-2.5-flash", {"thinking": "off"}, None, {"thinkingBudget": 0}),
    ("google", "gemini-3-pro-preview", {}, "low", {"includeThoughts": True, "thinkingLevel": "LOW"}),
]


@pytest.mark.parametrize(("provider", "model", "options", "effort", "expected"), THINKING)
async def test_effort_and_options_say_how_much_is_thought(
    serving: Any, provider: str, model: str, options: Any, effort: str | None, expected: Any
) -> None:
    body = await asked_of(serving, provider, turn(sampling=Sampling(effort=effort)), model=model, **options)
    found = (
        body.get("thinking") if provider == "anthropic" else body["generationConfig"].get("thinkingConfig")
    )
    assert found == expected
    if model == "claude-opus-4-6":
        assert body["output_config"] == {"effort": "medium"}


async def test_claude_does_not_think_where_it_may_not(serving: Any) -> None:
    thinks = {"type": "enabled", "budget_tokens": 1999}
    body = await asked_of(serving, "anthropic", turn(sampling=Sampling(effort="high", max_tokens=2000)))
    assert body["thinking"] == thinks and body["max_tokens"] == 2000
    for asked in (
        turn(sampling=Sampling(effort="high", max_tokens=500)),
        turn(sampling=Sampling(effort="high"), tool_choice=ToolChoice("required")),
        turn(user("?"), Call("call_1", "search", "{}"), result("call_1"), sampling=Sampling(effort="high")),
        turn(
            user("?"),
            Call("call_1", "search", "{}"),
            result("call_1"),
            user("And?"),
            sampling=Sampling(effort="high"),
        ),
    ):
        assert "thinking" not in await asked_of(serving, "anthropic", asked)
    later = turn(
        user("?"),
        Call("call_1", "search", "{}"),
        result("call_1"),
        said("Sunny."),
        user("And?"),
        sampling=Sampling(effort="high"),
    )
    assert (await asked_of(serving, "anthropic", later))["thinking"]["type"] == "enabled"


async def test_a_temperature_beside_thoughts_is_refused_or_reported_never_dropped_in_silence(
    serving: Any,
) -> None:
    async with serving("anthropic", a.Answer(a.Said("ok"))) as (backend, server):
        run = await events(backend, turn(sampling=Sampling(effort="low", temperature=0.2)))
        assert run == [
            Failure(
                "unsupported_value",
                "temperature cannot be set together with reasoning_effort for this model.",
                "temperature",
            )
        ]
        assert not server.requests
    async with serving("anthropic", a.Answer(a.Said("ok")), thinking="low") as (backend, server):
        await backend.prepare()
        assert "temperature" not in backend.capabilities.fields
        assert (await events(backend, turn(sampling=Sampling(temperature=0.2))))[-1] == Finish("stop")
        assert "temperature" not in server.requests[0].body


async def test_an_unknown_effort_is_refused(serving: Any) -> None:
    async with serving("anthropic", a.Answer(a.Said("ok"))) as (backend, _):
        run = await events(backend, turn(sampling=Sampling(effort="enormous")))
    assert isinstance(run[-1], Failure) and (run[-1].kind, run[-1].param) == (
        "unsupported_value",
        "reasoning_effort",
    )


async def test_claudes_signed_thoughts_go_back_in_a_tool_loop(serving: Any) -> None:
    first = a.Answer(
        a.Redacted(),
        a.Thinking("Hm.", "sig-1"),
        a.Said("Let me look."),
        a.Use("toolu_1", "search", '{"q":"a"}'),
        a.Use("toolu_2", "read"),
    )
    second = a.Answer(a.Said("And then:"), a.Use("toolu_3", "read"))
    async with serving("anthropic", first, second, a.Answer(a.Said("Sunny."))) as (backend, server):
        thinks = Sampling(effort="low")
        loop: list[Item] = [
            user("?"),
            said("Let me look."),
            Call("toolu_1", "search", '{"q": "a"}'),
            Call("toolu_2", "read", "{}"),
        ]
        loop += [result("toolu_1"), result("toolu_2")]
        assert (await events(backend, turn(sampling=thinks)))[-1] == Finish("tool_calls")
        assert (await events(backend, turn(*loop, sampling=thinks)))[-1] == Finish("tool_calls"), (
            server.refused
        )
        body = server.requests[-1].body
        types = [block["type"] for block in body["messages"][1]["content"]]
        assert (
            types == ["redacted_thinking", "thinking", "text", "tool_use", "tool_use"]
            and body["thinking"]["type"] == "enabled"
        )
        loop += [said("And then:"), Call("toolu_3", "read", "{}"), result("toolu_3")]
        assert (await events(backend, turn(*loop, sampling=thinks)))[-1] == Finish("stop"), server.refused
        assert server.requests[-1].body["thinking"]["type"] == "enabled"
        # without thoughts, none are sent back
        assert (await events(backend, turn(*loop)))[-1] == Finish("stop"), server.refused
        assert "thinking" not in str(server.requests[-1].body)


async def test_thoughts_between_words_and_calls_go_back_where_they_stood(serving: Any) -> None:
    blocks = (
        a.Said("Well."),
        a.Thinking("One.", "sig-1"),
        a.Use("toolu_1", "read"),
        a.Thinking("Two.", "sig-2"),
        a.Use("toolu_2", "read"),
    )
    async with serving(
        "anthropic", a.Answer(*blocks), a.Answer(a.Said("Done.")), model="claude-opus-4-6"
    ) as (backend, server):
        thinks = Sampling(effort="high")
        await events(backend, turn(sampling=thinks))
        loop = (
            user("?"),
            said("Well."),
            Call("toolu_1", "read", "{}"),
            Call("toolu_2", "read", "{}"),
            result("toolu_1"),
            result("toolu_2"),
        )
        assert (await events(backend, turn(*loop, sampling=thinks)))[-1] == Finish("stop"), server.refused
        content = server.requests[-1].body["messages"][1]["content"]
        assert [block["type"] for block in content] == [
            "text",
            "thinking",
            "tool_use",
            "thinking",
            "tool_use",
        ]
        backend.memory = CallMemory()  # a model with adaptive thinking continues without them
        assert (await events(backend, turn(*loop, sampling=thinks)))[-1] == Finish("stop"), server.refused
        assert server.requests[-1].body["thinking"]["type"] == "adaptive"


async def test_geminis_signatures_go_back_with_their_calls(serving: Any) -> None:
    first = g.Answer(g.Call("search", {"q": "a"}, signature=g.SIGNATURE), g.Call("read", {}))
    async with serving("google", first, g.Answer(g.Said("Sunny.")), model="gemini-3-pro-preview") as (
        backend,
        server,
    ):
        one, two = summary(await events(backend))["calls"]
        loop = (
            user("?"),
            Call(one[0], "search", one[2]),
            Call(two[0], "read", two[2]),
            result(one[0]),
            result(two[0]),
        )
        assert (await events(backend, turn(*loop)))[-1] == Finish("stop"), server.refused
        parts = g.camel(server.requests[-1].body)["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [g.SIGNATURE, None]


def test_the_memory_of_calls_has_limits() -> None:
    class Part:
        content, signature = "x" * 1000, "y" * 100

    memory = CallMemory(most_calls=3, most_characters=3000)
    for number in range(5):
        memory.keep(f"call_{number}", Signed("search", details={"thought_signature": "s"}))
    assert len(memory) == 3 and memory.recall("call_1", "search") is None
    assert memory.recall("call_2", "search") is not None and memory.recall("call_2", "read") is None
    memory.keep("call_9", Signed("search"))  # call_3 is the least recently used one
    assert memory.recall("call_3", "search") is None and memory.recall("call_2", "search") is not None
    for number in range(3):
        memory.keep(f"big_{number}", Signed("search", (SignedThought(Part()),)))
    assert len(memory) == 2


# --- failures ---

TOO_LONG = "prompt is too long: 208310 tokens > 200000 maximum"
TOO_MANY = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
RETRY = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37s"}]
FAILURES: list[tuple[str, Any, Failure]] = [
    ("anthropic", a.error(400, "max_tokens: too large"), Failure("invalid_request", "max_tokens: too large")),
    ("anthropic", a.error(400, TOO_LONG), Failure("context_length", TOO_LONG)),
    (
        "anthropic",
        a.error(400, "Your credit balance is too low"),
        Failure("quota", "The account at the provider has no quota left (HTTP 400)."),
    ),
    (
        "anthropic",
        a.error(401, "bad key"),
        Failure("backend_auth", "The provider did not accept the gateway's credentials (HTTP 401)."),
    ),
    (
        "anthropic",
        a.error(403, "no"),
        Failure("backend_auth", "The provider did not accept the gateway's credentials (HTTP 403)."),
    ),
    ("anthropic", a.error(404, "model: claude-x"), Failure("model_not_found", "model: claude-x")),
    (
        "anthropic",
        a.error(413, "Request exceeds the maximum size"),
        Failure("body_too_large", "Request exceeds the maximum size"),
    ),
    (
        "anthropic",
        a.error(429, "slow down", headers={"retry-after": "12"}),
        Failure("rate_limit", "Provider (HTTP 429): slow down", retry_after_s=12.0),
    ),
    (
        "anthropic",
        a.error(500, "Internal server error"),
        Failure("backend", "Provider (HTTP 500): Internal server error"),
    ),
    ("anthropic", a.error(529, "Overloaded"), Failure("overloaded", "Provider (HTTP 529): Overloaded")),
    (
        "anthropic",
        Reply.body("<html>bad gateway</html>", 502),
        Failure("backend", "Provider (HTTP 502): <html>bad gateway</html>"),
    ),
    ("google", g.error(400, "Invalid value"), Failure("invalid_request", "Invalid value")),
    ("google", g.error(400, TOO_MANY), Failure("context_length", TOO_MANY)),
    (
        "google",
        g.error(403, "denied"),
        Failure("backend_auth", "The provider did not accept the gateway's credentials (HTTP 403)."),
    ),
    ("google", g.error(404, "models/x is not found"), Failure("model_not_found", "models/x is not found")),
    (
        "google",
        g.error(429, "quota", RETRY),
        Failure("rate_limit", "Provider (HTTP 429): quota", retry_after_s=37.0),
    ),
    (
        "google",
        g.error(500, "An internal error"),
        Failure("backend", "Provider (HTTP 500): An internal error"),
    ),
    (
        "google",
        g.error(503, "The model is overloaded."),
        Failure("overloaded", "Provider (HTTP 503): The model is overloaded."),
    ),
]


@pytest.mark.parametrize(
    ("provider", "reply", "expected"),
    FAILURES,
    ids=[f"{row[0]} {row[2].kind} {row[2].message[:20]}" for row in FAILURES],
)
async def test_an_error_response_fails_at_once_with_its_kind(
    serving: Any, provider: str, reply: Any, expected: Failure
) -> None:
    async with serving(provider, reply) as (backend, server):
        async with asyncio.timeout(5):  # an SDK that retries would wait longer
            run = await events(backend)
        assert run == [expected] and len(server.requests) == 1


@pytest.mark.parametrize("provider", ["anthropic", "google"])
async def test_a_key_that_is_refused_is_not_shown(serving: Any, provider: str) -> None:
    async with serving(provider, key="sk-ant-very-secret-0123456789") as (backend, _):
        run = await events(backend)
    assert isinstance(run[0], Failure) and run[0].kind == "backend_auth" and "secret" not in repr(run)


async def test_words_of_the_provider_never_show_the_key(serving: Any) -> None:
    async with serving("anthropic", a.error(400, f"bad {a.DEFAULT_KEY} and\n{'x' * 2000}")) as (backend, _):
        run = await events(backend)
    assert (
        isinstance(run[0], Failure)
        and a.DEFAULT_KEY not in run[0].message
        and "\n" not in run[0].message
        and len(run[0].message) <= 500
    )


IN_STREAM: list[tuple[str, Any, str, str]] = [
    (
        "anthropic",
        a.Answer(a.Said("Half"), error=("overloaded_error", "Overloaded")),
        "overloaded",
        "while streaming",
    ),
    (
        "anthropic",
        a.Answer(a.Said("Half"), error=("rate_limit_error", "slow")),
        "rate_limit",
        "while streaming",
    ),
    ("anthropic", a.Answer(a.Said("Half"), error=("api_error", "oops")), "backend", "while streaming"),
    ("anthropic", a.Answer(a.Said("Half"), stop=""), "backend_cut", "broke off"),
    ("anthropic", a.Answer(a.Said("Half"), stop="", ending="cut"), "backend_cut", "broke off"),
    ("anthropic", a.Answer(a.Said("Half"), stop="", ending="reset"), "backend_cut", "broke off"),
    (
        "google",
        g.Answer(g.Said("Half"), error=(503, "The model is overloaded.")),
        "overloaded",
        "while streaming",
    ),
    ("google", g.Answer(g.Said("Half"), finish=""), "backend_cut", "broke off"),
    ("google", g.Answer(g.Said("Half"), finish="", ending="cut"), "backend_cut", "broke off"),
    ("google", g.Answer(g.Said("Half"), finish="", ending="reset"), "backend_cut", "broke off"),
]


@pytest.mark.parametrize(("provider", "answer", "kind", "words"), IN_STREAM)
async def test_a_stream_that_fails_is_a_failure_and_never_a_stop(
    serving: Any, provider: str, answer: Any, kind: str, words: str
) -> None:
    async with serving(provider, answer) as (backend, _):
        run = await events(backend)
    assert Text("Half") in run or summary(run)["text"] == "Half"
    assert isinstance(run[-1], Failure) and run[-1].kind == kind and words in run[-1].message
    assert not any(isinstance(event, Finish) for event in run)


@pytest.mark.parametrize("provider", ["anthropic", "google"])
async def test_half_a_call_is_never_ended(serving: Any, provider: str) -> None:
    half: Any = (
        a.Answer(a.Use("toolu_1", "search", '{"q": "Ru'), stop="")
        if provider == "anthropic"
        else g.Answer(g.Said("Hi"), finish="")
    )
    async with serving(provider, half) as (backend, _):
        run = await events(backend)
    assert (
        isinstance(run[-1], Failure)
        and run[-1].kind == "backend_cut"
        and not any(event == CallEnd(0) for event in run)
    )


@pytest.mark.parametrize("provider", ["anthropic", "google"])
async def test_a_silent_provider_is_a_timeout(serving: Any, provider: str) -> None:
    answer: Any = (
        a.Answer(a.Said("Half"), stop="", ending="hang")
        if provider == "anthropic"
        else g.Answer(g.Said("Half"), finish="", ending="hang")
    )
    async with serving(provider, answer, timeout_s=0.3) as (backend, _):
        run = await events(backend)
    assert isinstance(run[-1], Failure) and run[-1].kind == "timeout"


@pytest.mark.parametrize("provider", ["anthropic", "google"])
async def test_a_provider_that_is_not_there_is_unavailable(serving: Any, provider: str) -> None:
    async with serving(provider, base_url="http://127.0.0.1:9") as (backend, _):
        run = await events(backend)
    assert run == [Failure("backend_unavailable", "The provider could not be reached.")]


@pytest.mark.parametrize("provider", ["anthropic", "google"])
async def test_a_kept_connection_that_was_closed_is_tried_again_once(serving: Any, provider: str) -> None:
    answer: Any = (
        a.Answer(a.Said("Hi"), refuse_reused=True)
        if provider == "anthropic"
        else g.Answer(g.Said("Hi"), refuse_reused=True)
    )
    async with serving(provider, answer) as (backend, server):
        for _ in range(3):
            assert (await events(backend))[-1] == Finish("stop")
        assert server.connections == 3


@pytest.mark.parametrize("provider", ["anthropic", "google"])
async def test_closing_the_run_closes_the_connection(serving: Any, provider: str) -> None:
    answer: Any = (
        a.Answer(a.Said("Half"), stop="", ending="hang")
        if provider == "anthropic"
        else g.Answer(g.Said("Half"), finish="", ending="hang")
    )
    async with serving(provider, answer) as (backend, server):
        run = backend.run(turn())
        assert (await anext(run))[0] == Text("Half")
        await run.aclose()
        async with asyncio.timeout(5):
            await server.gone.wait()


@pytest.mark.parametrize("provider", ["anthropic", "google"])
async def test_cancelling_a_run_that_waits_closes_the_connection(serving: Any, provider: str) -> None:
    answer: Any = (
        a.Answer(a.Said("Half"), stop="", ending="hang")
        if provider == "anthropic"
        else g.Answer(g.Said("Half"), finish="", ending="hang")
    )
    async with serving(provider, answer) as (backend, server):
        task = asyncio.create_task(events(backend))
        await server.sending.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            await server.gone.wait()


async def test_many_runs_at_once_do_not_mix(serving: Any) -> None:
    async with serving("anthropic", *[a.Answer(a.Said(f"Answer {number}.")) for number in range(20)]) as (
        backend,
        _,
    ):
        texts = [summary(run)["text"] for run in await asyncio.gather(*(events(backend) for _ in range(20)))]
    assert sorted(texts) == sorted(f"Answer {number}." for number in range(20))


# --- options, loading, listing ---


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, 'expected "provider:name"'),
        ({"model": "claude"}, 'expected "provider:name"'),
        ({"model": "nobody:x"}, "unknown provider 'nobody'; known: anthropic, google"),
        ({"model": "anthropic:x", "base_url": "ftp://x"}, "base_url: expected an address"),
        ({"model": "anthropic:x", "base_url": "https://me:pw@x"}, "must not contain a user"),
        ({"model": "anthropic:x", "api_key": "a b"}, "api_key: contains a character"),
        ({"model": "anthropic:x", "thinking_budget": 5}, "thinking_budget: expected 1024"),
        ({"model": "anthropic:x", "thinking": "off", "thinking_budget": 2000}, "thinking is"),
        ({"model": "anthropic:x", "timeout_s": 0}, "timeout_s"),
        ({"model": "anthropic:x", "dialects": ("nonsense",)}, "dialects: "),
        ({"model": "anthropic:x", "colour": 1}, "unknown key 'colour'"),
    ],
)
def test_bad_options_are_one_clear_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        check("hosted", options)
    assert "\n" not in str(caught.value)


def test_the_key_is_not_in_the_words_of_the_options() -> None:
    assert "hush" not in repr(HostedOptions("anthropic:x", api_key="hush"))


async def test_a_missing_extra_is_said_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosted_backend, "installed", lambda: False)
    backend = HostedBackend("m", HostedOptions(model="anthropic:claude-haiku-4-5", api_key="k"))
    with pytest.raises(ToolwireError, match=re.escape(add_extra("hosted"))) as caught:
        await backend.prepare()
    assert caught.value.failure.kind == "backend_unavailable" and not await backend.ready()


async def test_a_missing_sdk_is_said_with_its_own_extra() -> None:
    backend = HostedBackend("m", HostedOptions(model="cohere:command-a", api_key="k"))
    with pytest.raises(ToolwireError, match=re.escape(add_packages("pydantic-ai-slim[cohere]"))):
        await backend.prepare()


async def test_the_key_comes_from_the_environment_and_a_missing_one_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    backend = HostedBackend("m", HostedOptions(model="google:gemini-2.5-flash"))
    assert not await backend.ready()
    with pytest.raises(ToolwireError, match="set api_key, or GOOGLE_API_KEY"):
        await backend.prepare()
    monkeypatch.setenv("GEMINI_API_KEY", "k")
    assert await backend.ready() and backend.key() == "k"


async def test_the_event_loop_is_not_blocked_while_the_library_loads(serving: Any) -> None:
    async with serving("anthropic", a.Answer(a.Said("Hi"))) as (backend, _):
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticking = asyncio.create_task(tick())
        await backend.prepare()
        ticking.cancel()
        assert ticks > 0


def test_nothing_but_a_first_turn_imports_the_provider_library() -> None:
    program = (
        "import sys; from toolwire.backends import registry; "
        "registry.build('m', 'hosted', {'model': 'anthropic:claude-haiku-4-5'}).capabilities; "
        "registry.build_source('m', 'hosted', {'model': 'google:*'}); "
        "print([name for name in ('pydantic_ai', 'anthropic', 'google.genai') if name in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


async def test_emulated_tools_are_the_gateways_work() -> None:
    backend = HostedBackend("m", HostedOptions(model="anthropic:claude-haiku-4-5", tools="emulated"))
    assert backend.strategy == "emulated" and not backend.capabilities.tools


@pytest.fixture(params=["anthropic", "google"])
async def source(request: pytest.FixtureRequest) -> AsyncIterator[tuple[HostedSource, tuple[str, ...]]]:
    names = ("claude-a", "claude-b") if request.param == "anthropic" else ("gemini-a", "gemini-b")
    fake: Any = a.FakeAnthropic if request.param == "anthropic" else g.FakeGoogle
    async with fake(models=names) as server:
        yield (
            HostedSource("p", {"model": f"{request.param}:*", "base_url": server.base_url, "api_key": "k"}),
            names,
        )


async def test_every_model_of_a_provider_is_listed(source: Any) -> None:
    listed, names = source
    assert tuple(await listed.names()) == names
    model = listed.model(names[0])
    assert (model.id, model.options.name) == (f"p/{names[0]}", names[0])


async def test_a_provider_without_a_model_list_reports_it() -> None:
    with pytest.raises(ValueError, match="cannot list the models"):
        HostedSource("p", {"model": "groq:*"})
    with pytest.raises(ToolwireError, match="anthropic did not list its models"):
        await HostedSource(
            "p", {"model": "anthropic:*", "base_url": "http://127.0.0.1:9", "api_key": "k"}
        ).names()

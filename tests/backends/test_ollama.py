"""Ollama by its own API: the context length is chosen, and a prompt that was not read whole is an error."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.ollama import FakeOllama
from toolwire.backends.openai import OpenAIBackend, context, ollama
from toolwire.backends.openai.failures import http_failure
from toolwire.backends.openai.read import AnswerReader
from toolwire.core.errors import ToolwireError
from toolwire.core.events import CallArgs, CallBegin, CallEnd, Event, Failure, Finish, Text, Thought, Usage
from toolwire.core.turn import Call, Message, Result, Sampling, TextPart, ToolChoice, ToolSpec, Turn

TOOL = ToolSpec("clock", "The time.", {"type": "object", "properties": {"city": {"type": "string"}}})


def said(role: Any, text: str) -> Message:
    return Message(role, (TextPart(text),))


def turn(*items: Any, stream: bool = True, **fields: Any) -> Turn:
    return Turn(api="chat", model="m", items=items or (said("user", "Hello"),), stream=stream, **fields)


@asynccontextmanager
async def serving(fake: FakeOllama, **options: Any) -> AsyncIterator[OpenAIBackend]:
    async with fake.upstream as upstream:
        backend = OpenAIBackend("m", {"base_url": upstream.base_url, "profile": "ollama", **options})
        await backend.prepare()
        yield backend
        await backend.close()


async def events(backend: OpenAIBackend, request: Turn) -> list[Event]:
    return [event async for batch in backend.run(request) for event in batch]


def sent(fake: FakeOllama) -> list[Any]:
    return [request.body for request in fake.upstream.requests if request.path == "/api/chat"]


LONG = said("user", "one two three four " * 4000)  # 16,000 tokens


@pytest.mark.parametrize("stream", [True, False])
async def test_a_long_prompt_gets_a_window_that_holds_it(stream: bool) -> None:
    fake = FakeOllama()
    async with serving(fake) as backend:
        out = await events(backend, turn(said("system", "Be brief."), LONG, stream=stream))
        assert "".join(event.text for event in out if isinstance(event, Text)) == "I read it all."
        assert isinstance(out[-1], Finish) and len(fake.read) == 2
        assert sent(fake)[0]["options"]["num_ctx"] == 32_768
        await events(backend, turn())  # keeps the window: another one would load the model again
        assert sent(fake)[1]["options"]["num_ctx"] == 32_768


@pytest.mark.parametrize("strict", [True, False], ids=["0.12.6", "older"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("route", ["own", "openai"])
async def test_a_prompt_that_does_not_fit_is_never_answered_as_if_it_did(
    route: str, stream: bool, strict: bool
) -> None:
    """16,000 tokens for a model with 4,096. Ollama's OpenAI endpoint would drop most of them silently."""
    fake = FakeOllama(2048, 4096, strict)
    if route == "openai":  # a proxy that shows only /v1
        fake.upstream.pages["/api/show"] = None
    async with serving(fake) as backend:
        out = await events(backend, turn(LONG, said("user", "What was first?"), stream=stream))
    assert isinstance(out[-1], Failure) and out[-1].kind == "context_length", out
    assert not any(isinstance(event, Finish) for event in out)


async def test_ollama_itself_refuses_what_only_it_can_count() -> None:
    """Symbols are tokens but not words: only the server knows that they do not fit."""
    async with serving(FakeOllama(4096, 4096)) as backend:
        out = await events(backend, turn(said("user", "+-*/" * 2000)))
    assert isinstance(out[0], Failure) and out[0].kind == "context_length" and len(out) == 1


async def test_the_context_that_is_configured_or_loaded_is_kept() -> None:
    fake = FakeOllama()
    async with serving(fake, context=16_384) as backend:
        await events(backend, turn())
        assert sent(fake)[0]["options"]["num_ctx"] == 16_384
    fake = FakeOllama()
    fake.upstream.pages["/api/ps"] = {"models": [{"model": "m", "context_length": 20_000}]}
    async with serving(fake) as backend:
        await events(backend, turn())
        assert sent(fake)[0]["options"]["num_ctx"] == 20_000
    with pytest.raises(ValueError, match="context: expected a whole number from 0"):
        OpenAIBackend("m", {"context": -1})


async def test_a_large_limit_of_the_answer_does_not_make_a_huge_window() -> None:
    """Claude Code allows answers of 32,000 tokens. Ollama would need the memory for them at once."""
    fake = FakeOllama(4096, 262_144)
    async with serving(fake) as backend:
        await events(backend, turn(sampling=Sampling(max_tokens=32_000)))
        assert sent(fake)[0]["options"] == {"num_predict": 32_000, "num_ctx": 16_384}
    fake = FakeOllama(4096, 262_144)
    async with serving(fake) as backend:
        await events(backend, turn())
        assert sent(fake)[0]["options"]["num_ctx"] == 8192, "a thinking model needs more than 2,048 tokens"


@pytest.mark.parametrize(("words", "think"), [(["completion"], None), (["completion", "thinking"], "high")])
async def test_a_model_that_cannot_think_is_not_asked_to(words: list[str], think: str | None) -> None:
    """Ollama answers `think` for such a model with HTTP 400. Claude Code and Codex send an effort."""
    fake = FakeOllama()
    fake.upstream.pages["/api/show"]["capabilities"] = words
    async with serving(fake) as backend:
        await events(backend, turn(sampling=Sampling(effort="high")))
        assert sent(fake)[0].get("think") == think
        assert ("reasoning_effort" in backend.capabilities.fields) == (think is not None), (
            "the report says so"
        )


async def test_a_tool_loop_in_ollamas_words() -> None:
    call = {"id": "call_1", "function": {"index": 0, "name": "clock", "arguments": {"city": "Rom\u00e9"}}}
    fake = FakeOllama(4096, 8192, True, {"thinking": "Hm."}, {"tool_calls": [call, {**call, "id": "call_2"}]})
    history = (
        said("user", "What time is it?"),
        Call("c1", "clock", '{"city":"Rome"}'),
        Call("c2", "clock", "[not an object"),
        Result("c1", (TextPart("noon"),)),
        Result("c2", (TextPart("bad arguments"),)),
    )
    sampling = Sampling(temperature=0.5, max_tokens=77, stop=("END",), effort="minimal")
    streamed: list[Event] = []
    whole: list[Event] = []
    async with serving(fake) as backend:
        for stream, out in ((True, streamed), (False, whole)):
            out += await events(
                backend,
                turn(
                    *history, tools=(TOOL,), tool_choice=ToolChoice("auto"), sampling=sampling, stream=stream
                ),
            )
    body = sent(fake)[0]
    assert body["truncate"] is False and body["shift"] is False and body["think"] == "low"
    options = body["options"]
    assert (options["temperature"], options["num_predict"], options["stop"]) == (0.5, 77, ["END"])
    assert body["messages"][1]["tool_calls"] == [
        {"id": "c1", "function": {"name": "clock", "arguments": {"city": "Rome"}}},
        {"id": "c2", "function": {"name": "clock", "arguments": {"arguments": "[not an object"}}},
    ]
    assert body["messages"][2] == {
        "role": "tool",
        "content": "noon",
        "tool_call_id": "c1",
        "tool_name": "clock",
    }
    assert body["tools"][0]["function"]["name"] == "clock"
    for out in (streamed, whole):
        assert [event.text for event in out if isinstance(event, Thought)] == ["Hm."]
        assert [event.name for event in out if isinstance(event, CallBegin)] == ["clock", "clock"]
        arguments = [event.delta for event in out if isinstance(event, CallArgs)]
        assert list(map(json.loads, arguments)) == [{"city": "Rom\u00e9"}] * 2
        assert all(event.status == "ok" for event in out if isinstance(event, CallEnd))
        assert isinstance(out[-2], Usage) and out[-2].output_tokens == 4
        assert out[-1] == Finish("tool_calls")


async def test_options_that_only_the_own_api_has_reach_the_model() -> None:
    fake = FakeOllama()
    async with serving(fake) as backend:
        assert "top_k" in backend.capabilities.passes and "guided_json" not in backend.capabilities.passes
        await events(backend, turn(rest={"top_k": 5}))
    assert sent(fake)[0]["options"]["top_k"] == 5
    fake = FakeOllama()
    fake.upstream.pages["/api/show"] = None
    async with serving(fake) as backend:
        assert "top_k" not in backend.capabilities.passes


async def test_images_are_sent_as_base64_and_files_are_refused() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    body = {"model": "m", "stream": False}
    parts = [{"type": "text", "text": "Look"}, image]
    made = ollama.request({**body, "messages": [{"role": "user", "content": parts}]}, None)
    assert made["messages"] == [{"role": "user", "content": "Look", "images": ["QUJD"]}]
    assert "num_ctx" not in made["options"]
    parts = [{"type": "file", "file": {"file_id": "f"}}]
    with pytest.raises(ToolwireError, match="only text and images"):
        ollama.request({**body, "messages": [{"role": "user", "content": parts}]}, None)


LINES = (
    b'{"message":{"role":"assistant","content":"a \\u00e9"},"done":false}\n'
    b'{"message":{"content":"","tool_calls":[{"function":{"name":"clock","arguments":{"n":1.50}}}]},"done":false}\n'
    b'{"message":{"content":""},"done":true,"done_reason":"stop","prompt_eval_count":9,"eval_count":3}\n'
)


def _read(blocks: list[bytes]) -> list[Event]:
    reader = ollama.OllamaReader(AnswerReader(turn(tools=(TOOL,))))
    out = [event for block in blocks for event in reader.feed(block)]
    return out if reader.ended else out + reader.finish()


@given(st.lists(st.integers(0, len(LINES)), max_size=8))
def test_however_the_lines_are_split_the_events_are_the_same(cuts: list[int]) -> None:
    edges = sorted({0, *cuts, len(LINES)})
    assert _read([LINES[a:b] for a, b in pairwise(edges)]) == _read([LINES])
    out = _read([LINES])
    assert CallArgs(0, '{"n":1.50}') in out and out[-1] == Finish("tool_calls")


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (LINES[:90], "backend_cut"),
        (LINES.replace(b'"done":true', b'"done":false'), "backend_cut"),
        (b'{"error":"model runner has unexpectedly stopped"}\n', "backend"),
        (b'{"message":{"content":"x"},"done":false}\n{"message":{"cont\n', "backend"),
    ],
)
def test_an_answer_that_breaks_off_or_fails_is_a_failure(lines: bytes, kind: str) -> None:
    out = _read([lines])
    assert isinstance(out[-1], Failure) and out[-1].kind == kind


def test_words_never_exceed_tokens_and_scripts_without_spaces_count() -> None:
    body = {"messages": [{"role": "user", "content": "a b\nc"}, {"role": "assistant", "content": "x y"}]}
    assert context.fitting(body, None) == 3
    assert context.fitting({"messages": [{"role": "user", "content": "\u6f22\u5b57" * 30}]}, None) == 1 + 10
    assert context.window_for(5000, 0, None) == 8192 and context.window_for(5000, 0, 6000) == 6000
    assert context.window_for(10, 5000, None) == 5000


def test_an_error_of_llama_cpp_inside_ollamas_error_is_readable() -> None:
    said = "request (351 tokens) exceeds the available context size (256 tokens), try increasing it"
    inner = json.dumps({"error": {"code": 400, "message": said, "type": "exceed_context_size_error"}})
    found = http_failure(400, {}, json.dumps({"error": inner}).encode())
    assert (found.kind, found.message) == ("context_length", said)


def test_cached_tokens_are_part_of_the_prompt() -> None:
    done = b'"prompt_eval_count":9,"prompt_eval_cached_count":7'
    usage = _read([LINES.replace(b'"prompt_eval_count":9', done)])[-2]
    assert isinstance(usage, Usage) and (usage.input_tokens, usage.cached_tokens) == (9, 7)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("profile", ["lmstudio", "llamacpp"])
async def test_other_servers_that_read_only_a_part_are_found_out(profile: str, stream: bool) -> None:
    fake = FakeOllama(4096, 32_768, strict=False)
    async with fake.upstream as upstream:
        backend = OpenAIBackend("m", {"base_url": upstream.base_url, "profile": profile})
        out = await events(backend, turn(LONG, said("user", "What was first?"), stream=stream))
        assert isinstance(out[-1], Failure) and out[-1].kind == "context_length"
        out = await events(backend, turn(stream=stream))
        assert isinstance(out[-1], Finish)
        await backend.close()


@pytest.mark.parametrize(
    ("profile", "pages"),
    [
        ("lmstudio", {"/api/v0/models/m": {"id": "m", "loaded_context_length": 4096}}),
        (
            "lmstudio",  # 0.4
            {
                "/api/v1/models": {
                    "models": [
                        {"key": "other", "loaded_instances": [{"id": "o", "config": {"context_length": 9}}]},
                        {"key": "m", "loaded_instances": [{"id": "m", "config": {"context_length": 4096}}]},
                    ]
                }
            },
        ),
        (
            "llamacpp",
            {
                "/props": {"default_generation_settings": {"n_ctx": 4096}},
                "/completion": {"generation_settings": {"grammar": ""}},
            },
        ),
    ],
)
async def test_lm_studio_and_llama_cpp_say_their_window(profile: str, pages: dict[str, Any]) -> None:
    fake = FakeOllama()
    fake.upstream.pages |= pages
    async with fake.upstream as upstream:
        backend = OpenAIBackend("m", {"base_url": upstream.base_url, "profile": profile})
        await backend.prepare()
        out = await events(backend, turn(LONG))
        assert isinstance(out[0], Failure) and "context length is 4096 tokens" in out[0].message
        assert not fake.read
        larger = json.loads(json.dumps(pages).replace("4096", "32768"))
        fake.upstream.pages |= larger  # the person loads the model again, with a longer context
        fake.window = 32_768
        out = await events(backend, turn(LONG))
        assert isinstance(out[-1], Finish), "the server was asked again"
        await backend.close()


async def test_lm_studio_is_asked_again_until_it_has_loaded_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It loads a model with the first request, and only then has the model a context length."""
    monkeypatch.setattr("toolwire.backends.openai.backend.ASK_AGAIN_S", 0.0)
    fake = FakeOllama(4096)
    fake.upstream.pages["/api/v0/models/m"] = {"id": "m", "state": "not-loaded", "max_context_length": 32_768}
    async with fake.upstream as upstream:
        options = {"base_url": upstream.base_url, "profile": "lmstudio", "tools": "native"}
        backend = OpenAIBackend("m", options)
        await backend.prepare()
        assert isinstance((await events(backend, turn()))[-1], Finish)
        fake.upstream.pages["/api/v0/models/m"] = {"id": "m", "loaded_context_length": 4096}
        await backend.prepare()
        out = await events(backend, turn(LONG))
        assert isinstance(out[0], Failure) and "context length is 4096 tokens" in out[0].message
        await backend.close()

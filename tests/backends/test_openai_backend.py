"""The OpenAI backend against a well-behaved server on a socket, and one with every known quirk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.backends.openai import OpenAIBackend, OpenAIOptions
from toolwire.backends.openai.options import OPTIONS
from toolwire.backends.openai.read import FINISH_REASONS, AnswerReader
from toolwire.backends.openai.render import render
from toolwire.core.errors import ToolwireError
from toolwire.core.events import (
    CallArgs,
    CallBegin,
    CallEnd,
    Event,
    Failure,
    Finish,
    Refusal,
    Text,
    Thought,
    Usage,
)
from toolwire.core.turn import (
    Call,
    ImagePart,
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
from toolwire.testing.upstream import (
    QUIRKS,
    Chunk,
    FakeUpstream,
    Reply,
    Script,
    answer,
    chunk,
    completion,
    with_quirk,
)

KEY = "secret-key-0123456789"
ONE, TWO = '{"query":"Rust","n":1000}', '{"path":"a/b.md"}'
CALLS = [("call_1", "search", ONE), ("call_2", "read_note", TWO)]
SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}}
TOOLS = (ToolSpec("search", "Searches.", SCHEMA), ToolSpec("read_note", parameters=SCHEMA, strict=True))
USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def turn(*, stream: bool = True, tools: tuple[ToolSpec, ...] = TOOLS, **fields: Any) -> Turn:
    items = fields.pop("items", (Message("user", (TextPart("hi"),)),))
    return Turn(
        "chat",
        "m",
        items,
        tools=tools,
        tool_choice=fields.pop("tool_choice", ToolChoice()),
        stream=stream,
        **fields,
    )


@asynccontextmanager
async def serving(*script: Script, **options: Any) -> AsyncIterator[tuple[OpenAIBackend, FakeUpstream]]:
    async with FakeUpstream(*script) as upstream:
        backend = OpenAIBackend("m", {"base_url": upstream.base_url, "api_key": KEY, **options})
        try:
            yield backend, upstream
        finally:
            await backend.close()


async def events(backend: OpenAIBackend, request: Turn | None = None) -> list[Event]:
    return [event async for batch in backend.run(request or turn()) for event in batch]


async def play(reply: Reply, request: Turn | None = None, **options: Any) -> list[Event]:
    async with serving(reply, **options) as (backend, _):
        return await events(backend, request)


def seen(run: list[Event]) -> dict[str, Any]:
    """The events of a run as a client sees them, after checking their order."""
    out: dict[str, Any] = {"text": "", "thought": "", "refusal": "", "calls": []}
    open_call: CallBegin | None = None
    for event in run[:-1]:
        assert not isinstance(event, Finish | Failure)
        if isinstance(event, CallBegin):
            assert open_call is None and event.index == len(out["calls"])
            open_call = event
            out["calls"].append([event.id, event.name, ""])
        elif isinstance(event, CallArgs):
            assert open_call is not None and event.index == open_call.index
            out["calls"][event.index][2] += event.delta
        elif isinstance(event, CallEnd):
            assert event.status == "ok"
            open_call = None
        elif isinstance(event, Text | Thought | Refusal):
            assert open_call is None
            out[type(event).__name__.lower()] += event.text
    assert isinstance(run[-1], Finish | Failure)
    out["calls"] = [tuple(call) for call in out["calls"]]
    return out


# --- quirks ---

WITHOUT_IDS = ("missing_ids", "legacy_function_call")
BY_EVIDENCE = {"stop_with_calls": "stop"}


@pytest.mark.parametrize("quirk", QUIRKS)
async def test_every_quirk_is_repaired_in_a_stream(quirk: str) -> None:
    chunks = with_quirk(quirk, answer("Let me look. ", CALLS))
    run = await play(Reply.stream(chunks), cumulative_arguments=quirk == "cumulative_arguments")
    calls = [
        (None if quirk in WITHOUT_IDS else call_id, name, arguments) for call_id, name, arguments in CALLS
    ]
    assert seen(run) | {"calls": calls, "text": "Let me look. "} == seen(run)
    assert run[-1] == Finish(BY_EVIDENCE.get(quirk, "tool_calls"))  # type: ignore[arg-type]


@pytest.mark.parametrize("quirk", QUIRKS)
async def test_every_quirk_is_harmless_to_plain_text(quirk: str) -> None:
    run = await play(Reply.stream(with_quirk(quirk, answer("Hello, wörld 👋"))))
    assert seen(run)["text"] == "Hello, wörld 👋" and run[-1] == Finish("stop")


@pytest.mark.parametrize("write_size", [1, 2, 7, 100_000])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
async def test_it_does_not_matter_how_the_bytes_are_cut(write_size: int, newline: str) -> None:
    chunks = answer("Grüße 👋", CALLS, thought="hm…", usage=USAGE)
    reply = Reply.stream(chunks, newline=newline, write_size=write_size)
    assert await play(reply) == await play(Reply.stream(chunks))


async def test_comments_pings_and_named_events_are_skipped() -> None:
    frames = [
        b": ping\n\n",
        b"event: message\ndata: " + json.dumps(chunk({"content": "a"})).encode() + b"\n\n",
        b"data: ping\n\n",
        b"data:\n\n",
    ]
    reply = Reply(tuple(frames) + Reply.stream([chunk({}, "stop")]).frames)
    assert await play(reply) == [Text("a"), Finish("stop")]


async def test_a_stream_may_end_without_its_end_mark_once_the_finish_reason_has_come() -> None:
    assert (await play(Reply.stream(answer("Hi"), done=False)))[-1] == Finish("stop")
    assert (await play(Reply.stream(answer("Hi"), done=False, ending="cut")))[-1] == Finish("stop")


@pytest.mark.parametrize("ending", ["eof", "cut", "reset"])
@pytest.mark.parametrize("calls", [(), CALLS])
async def test_a_stream_that_breaks_off_is_a_failure_and_never_a_stop(
    ending: str, calls: list[tuple[str, str, str]]
) -> None:
    chunks = answer("Let me look.", calls)[:-1]
    run = await play(Reply.stream(chunks, done=False).but(ending=ending))
    assert isinstance(run[-1], Failure) and run[-1].kind == "backend_cut"
    assert not any(isinstance(event, Finish) for event in run)


async def test_an_end_mark_after_half_a_call_or_nothing_is_a_failure() -> None:
    half = answer("", CALLS[:1])[:-2]
    for chunks in (half, [], [chunk({"role": "assistant"})]):
        run = await play(Reply.stream(chunks))
        assert isinstance(run[-1], Failure) and run[-1].kind == "backend_cut"


async def test_a_call_cut_by_the_token_limit_is_truncated_and_the_reason_stays() -> None:
    chunks = [*answer("", CALLS[:1])[:-2], chunk({}, "length")]
    run = await play(Reply.stream(chunks))
    assert run[-2:] == [CallEnd(0, "truncated", ("arguments_not_json",)), Finish("length")]


async def test_lone_surrogates_become_replacement_characters() -> None:
    frames = [
        json.dumps(chunk({"content": "a\ud83d"})),
        json.dumps(chunk({"content": "👋"})),
        json.dumps(chunk({}, "stop")),
    ]
    assert await play(Reply.stream(frames)) == [Text("a"), Text("\ufffd👋"), Finish("stop")]


async def test_a_finish_reason_of_tool_calls_without_a_call_is_a_stop() -> None:
    assert (await play(Reply.stream(answer("Hi", finish="tool_calls"))))[-1] == Finish("stop")


@pytest.mark.parametrize("word", ["max_tokens", "MAX_TOKENS", "safety", "end_turn", "something new"])
async def test_words_for_the_finish_are_understood(word: str) -> None:
    assert (await play(Reply.stream(answer("Hi", finish=word))))[-1] == Finish(
        FINISH_REASONS.get(word.lower(), "stop")
    )


async def test_thoughts_refusals_and_usage_come_through() -> None:
    run = await play(Reply.stream(answer("", thought="hm hm", refusal="I can't.", usage=USAGE)))
    assert seen(run) == {"text": "", "thought": "hm hm", "refusal": "I can't.", "calls": []}
    assert run[-2:] == [Usage(9, 5, 4, 2), Finish("stop")]
    other = [
        chunk({"reasoning": "a", "content": None}),
        chunk({"reasoning": "b", "reasoning_content": "b"}),
        chunk({}, "stop"),
    ]
    assert await play(Reply.stream(other)) == [Thought("a"), Thought("b"), Finish("stop")]


async def test_usage_that_comes_with_every_chunk_is_said_once() -> None:
    chunks = [
        {**entry, "usage": {"prompt_tokens": 1, "completion_tokens": n}}
        for n, entry in enumerate(answer("Hello"))
    ]
    run = await play(Reply.stream(chunks))
    assert [event for event in run if isinstance(event, Usage)] == [Usage(1, len(chunks) - 1)]


async def test_text_inside_a_call_is_sent_after_it() -> None:
    chunks = answer("", CALLS[:1])
    chunks.insert(4, chunk({"content": "by the way"}))
    run = await play(Reply.stream(chunks))
    assert seen(run)["calls"] == CALLS[:1] and seen(run)["text"] == "by the way"
    after = [*answer("", CALLS[:1])[:-1], chunk({"content": "done"}), chunk({}, "tool_calls")]
    assert (await play(Reply.stream(after)))[-3:] == [CallEnd(0), Text("done"), Finish("tool_calls")]


async def test_a_call_after_the_finish_reason_is_not_lost() -> None:
    late = [
        chunk({"content": "Hi"}),
        chunk({}, "stop"),
        chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "search", "arguments": "{}"}}]}),
    ]
    assert seen(await play(Reply.stream(late)))["calls"] == [("c", "search", "{}")]


async def test_a_second_call_that_waited_streams_on() -> None:
    async with serving(Reply.stream(with_quirk("interleaved", answer("", CALLS, size=3)))) as (backend, _):
        run = await events(backend)
    assert seen(run)["calls"] == CALLS


# --- not streamed ---


async def test_a_client_that_does_not_stream_gets_one_body_and_one_batch_of_the_same_calls() -> None:
    chunks = answer("Let me look.", CALLS, thought="hm", usage=USAGE)
    async with serving(Reply.body(completion(chunks))) as (backend, upstream):
        batches = [batch async for batch in backend.run(turn(stream=False))]
    assert upstream.requests[0].body["stream"] is False and "stream_options" not in upstream.requests[0].body
    assert len(batches) == 1
    assert seen(batches[0]) == seen(await play(Reply.stream(chunks)))
    assert batches[0][-2:] == [Usage(9, 5, 4, 2), Finish("tool_calls")]


async def test_a_body_for_a_stream_and_a_stream_for_a_body_are_understood() -> None:
    chunks = answer("Hi", CALLS)
    assert seen(await play(Reply.body(completion(chunks)))) == seen(
        await play(Reply.stream(chunks), turn(stream=False))
    )


@pytest.mark.parametrize(
    "body", ["<html>oops</html>", b"{", {"object": "chat.completion"}, {"choices": []}, "null"]
)
async def test_a_body_without_an_answer_is_a_failure(body: Any) -> None:
    run = await play(Reply.body(body), turn(stream=False))
    assert len(run) == 1 and isinstance(run[0], Failure) and run[0].kind == "backend"


async def test_odd_bodies_are_read() -> None:
    message = {
        "content": [{"type": "text", "text": "Hi"}],
        "tool_calls": {"id": 7, "function": {"name": "search", "arguments": {"query": "a"}}},
    }
    run = await play(
        Reply.body({"choices": [{"message": message, "finish_reason": "stop"}]}), turn(stream=False)
    )
    assert run == [
        Text("Hi"),
        CallBegin(0, "search", "7"),
        CallArgs(0, '{"query":"a"}'),
        CallEnd(0),
        Finish("stop"),
    ]


# --- failures ---

REFUSALS: list[tuple[Reply, Failure]] = [
    (
        Reply.error(400, "Bad temperature", "bad_value", "temperature"),
        Failure("invalid_request", "Bad temperature", "temperature", "bad_value"),
    ),
    (
        Reply.error(400, "This model's maximum context length is 8192 tokens."),
        Failure("context_length", "This model's maximum context length is 8192 tokens."),
    ),
    (Reply.error(400, "too long", "context_length_exceeded"), Failure("context_length", "too long")),
    (
        Reply.error(401, f"Incorrect API key provided: {KEY}"),
        Failure("backend_auth", "The upstream server did not accept the gateway's credentials (HTTP 401)."),
    ),
    (
        Reply.error(403, "no"),
        Failure("backend_auth", "The upstream server did not accept the gateway's credentials (HTTP 403)."),
    ),
    (Reply.error(404, "model 'x' not found"), Failure("model_not_found", "model 'x' not found")),
    (
        Reply.body("404 page not found", 404),
        Failure("backend", "The upstream server does not know this address (HTTP 404). Check base_url."),
    ),
    (
        Reply.error(429, "Slow down", headers={"Retry-After": "7"}),
        Failure("rate_limit", "Upstream (HTTP 429): Slow down", retry_after_s=7.0),
    ),
    (
        Reply.error(429, "Pay", "insufficient_quota"),
        Failure("quota", "The upstream account has no quota left (HTTP 429)."),
    ),
    (Reply.error(500, f"boom {KEY}"), Failure("backend", "Upstream (HTTP 500): boom …")),
    (
        Reply.body("<html><style>p{}</style><h1>502</h1>\n<p>Bad  Gateway</p></html>", 502),
        Failure("backend", "Upstream (HTTP 502): 502 Bad Gateway"),
    ),
    (Reply.body({"detail": [{"loc": ["n"]}]}, 422), Failure("invalid_request", '[{"loc": ["n"]}]')),
    (Reply.body(b"", 503), Failure("backend", "The upstream server failed (HTTP 503).")),
    (
        Reply.body("", 302, headers={"Location": "http://elsewhere.invalid/"}),
        Failure(
            "backend",
            "The upstream server answered with a redirect (HTTP 302), which is not followed. Check base_url.",
        ),
    ),
]


@pytest.mark.parametrize(
    ("reply", "failure"), REFUSALS, ids=lambda value: getattr(value, "kind", None) or str(value.status)
)
@pytest.mark.parametrize("stream", [True, False])
async def test_refusals_are_mapped(reply: Reply, failure: Failure, stream: bool) -> None:
    assert await play(reply, turn(stream=stream)) == [failure]


async def test_a_long_message_is_cut() -> None:
    (failure,) = await play(Reply.error(400, "x" * 2000))
    assert isinstance(failure, Failure) and len(failure.message) == 500


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        ({"error": {"message": "Overloaded", "type": "overloaded_error", "code": None}}, "overloaded"),
        ({"error": {"message": "Slow down", "code": 429}}, "rate_limit"),
        ({"error": "plain words"}, "backend"),
        ({"object": "error", "message": "bad", "code": 400}, "invalid_request"),
        ({"error": {"message": "Requested tokens exceed context window", "code": 400}}, "context_length"),
        ('{"choices":[{"delta":{"content":"a', "backend"),
        (chunk({}, "error"), "backend"),
    ],
)
async def test_an_error_inside_a_stream_is_a_failure(frame: Any, kind: str) -> None:
    run = await play(Reply.stream([*answer("Hello")[:-1], frame]))
    assert seen(run)["text"] == "Hello"
    assert isinstance(run[-1], Failure) and run[-1].kind == kind


async def test_a_named_error_event_without_json_is_a_failure() -> None:
    run = await play(Reply((b"event: error\ndata: out of memory\n\n",)))
    assert run == [Failure("backend", "Upstream (while streaming): out of memory")]


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    async with FakeUpstream() as upstream:
        url = upstream.base_url
    backend = OpenAIBackend("m", {"base_url": url})
    (failure,) = await events(backend)
    assert isinstance(failure, Failure) and failure.kind == "backend_unavailable"
    assert not await backend.ready()
    await backend.close()


async def test_silence_is_a_timeout_before_and_after_the_first_byte() -> None:
    for frames in ((), Reply.stream(answer("Hello")[:3], done=False).frames):
        run = await play(Reply(frames, ending="hang"), timeout_s=0.05)
        assert isinstance(run[-1], Failure) and run[-1].kind == "timeout"


async def test_silence_after_the_finish_reason_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolwire.backends.openai.backend.END_MARK_S", 0.05)
    assert (await play(Reply.stream(answer("Hello"), done=False, ending="hang")))[-1] == Finish("stop")


# --- the connection ---


async def test_closing_the_iterator_closes_the_connection_at_once() -> None:
    async with serving(Reply.stream(answer("Hello"), done=False, ending="hang")) as (backend, upstream):
        run = backend.run(turn())
        assert await anext(run)
        await run.aclose()
        async with asyncio.timeout(5):
            await upstream.gone.wait()


async def test_cancelling_the_task_closes_the_connection_at_once() -> None:
    async with serving(Reply((), ending="hang")) as (backend, upstream):
        task = asyncio.create_task(events(backend))
        while not upstream.requests:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            await upstream.gone.wait()


async def test_a_batch_is_sent_before_the_answer_is_complete() -> None:
    gate = asyncio.Event()
    async with serving(Reply.stream(answer("Hello"), gate=gate)) as (backend, _):
        run = backend.run(turn())
        batch = await anext(run)
        gate.set()
        rest = [event async for more in run for event in more]
    assert any(isinstance(event, Text) for event in batch) and rest[-1] == Finish("stop")


async def test_connections_are_kept_and_shared_by_the_models_of_a_process() -> None:
    async with serving(Reply.stream(answer("Hi"))) as (backend, upstream):
        other = OpenAIBackend("n", {"base_url": upstream.base_url})
        for one in (backend, other, backend):
            assert (await events(one))[-1] == Finish("stop")
        await other.close()
        assert (await events(backend))[-1] == Finish("stop")
        assert upstream.connections == 1
    assert [request.body["model"] for request in upstream.requests] == ["m", "n", "m", "m"]


async def test_the_connection_of_a_stream_is_kept_if_its_last_chunk_follows_the_end_mark() -> None:
    connections, read, closed = 0, asyncio.Event(), asyncio.Event()
    stream = b'data: {"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with suppress(asyncio.IncompleteReadError, OSError):
            while sent := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(sent.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
                writer.write(head + b"%x\r\n%b\r\n" % (len(stream), stream))
                await read.wait()
                writer.write(b"0\r\n\r\n")
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
        closed.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        backend = OpenAIBackend(
            "m", {"base_url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"}
        )
        for _ in range(2):
            read.clear()
            assert (await events(backend))[-1] == Finish("stop")
            read.set()
            client = backend._connected()._client
            async with asyncio.timeout(5):
                while client is not None and client.ending:
                    await asyncio.sleep(0.01)
        await backend.close()
        await closed.wait()
    assert connections == 1


async def test_a_stale_connection_is_tried_again_once() -> None:
    async with serving(Reply.stream(answer("Hi"), refuse_reused=True)) as (backend, upstream):
        for _ in range(3):
            assert (await events(backend))[-1] == Finish("stop")
        assert upstream.connections == 3 and len(upstream.requests) == 3


async def test_a_fresh_connection_that_is_closed_without_an_answer_is_not_tried_again() -> None:
    connections = 0

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        backend = OpenAIBackend(
            "m", {"base_url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"}
        )
        (failure,) = await events(backend)
        await backend.close()
    assert isinstance(failure, Failure) and failure.kind == "backend_unavailable" and connections == 1


async def test_the_key_and_own_headers_are_sent_and_cookies_are_not_kept() -> None:
    reply = Reply.stream(answer("Hi")).but(headers={"Content-Type": "text/event-stream", "Set-Cookie": "a=b"})
    async with serving(reply, headers={"X-Own": "1"}) as (backend, upstream):
        await events(backend)
        await events(backend)
    headers = upstream.requests[1].headers
    assert headers["Authorization"] == f"Bearer {KEY}" and headers["X-Own"] == "1" and "Cookie" not in headers


async def test_ready_asks_for_the_models_only() -> None:
    async with serving() as (backend, upstream):
        assert await backend.ready()
    assert [(request.method, request.path) for request in upstream.requests] == [("GET", "/v1/models")]


async def test_the_backend_works_again_on_another_event_loop() -> None:
    def run_once(backend: OpenAIBackend) -> list[Event]:
        async def main() -> list[Event]:
            async with FakeUpstream(Reply.stream(answer("Hi"))) as upstream:
                fresh = OpenAIBackend("m", {"base_url": upstream.base_url})
                out = await events(fresh)
                await fresh.close()
                return out

        return asyncio.run(main())

    backend = OpenAIBackend("m", {})
    for _ in range(2):
        assert (await asyncio.to_thread(run_once, backend))[-1] == Finish("stop")


# --- options ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_ulr": "x"}, "unknown key base_ulr; did you mean base_url?"),
        ({"base_url": "localhost:11434"}, "base_url: expected an address"),
        ({"base_url": "http://user:pw@host/v1"}, "base_url: must not hold a user"),
        ({"profile": "olama"}, "profile: expected one of auto, openai, openrouter, ollama"),
        ({"tools": "maybe"}, "tools: expected one of auto, native, emulated, constrained"),
        ({"timeout_s": "long"}, "timeout_s: expected a number"),
        ({"timeout_s": 0}, "timeout_s: expected a number above 0"),
        ({"stream_usage": 1}, "stream_usage: expected true or false"),
        ({"headers": {"a": 1}}, "headers: expected a table of strings"),
        ({"dialects": "hermes"}, "dialects: expected a list of strings"),
        ({"api_key": 5}, "api_key: expected a string"),
    ],
)
def test_the_error_of_a_bad_option_explains_it(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        OpenAIBackend("m", options)
    assert message in str(caught.value)


def test_options_that_contradict_each_other_are_refused_however_they_are_made() -> None:
    for options in (
        {"profile": "none"},
        {"base_url": "ftp://host"},
        {"connect_timeout_s": -1.0},
        {"headers": {"a": 1}},
    ):
        with pytest.raises(ValueError):
            OpenAIOptions(**options)


def test_options_are_a_table_and_never_show_the_key() -> None:
    options = OpenAIOptions.parse(
        {"api_key": KEY, "dialects": ["hermes"], "timeout_s": 5, "headers": {"x": KEY}}
    )
    assert options.dialects == ("hermes",) and options.timeout_s == 5.0
    assert KEY not in repr(options)
    assert set(OPTIONS) >= {
        "base_url",
        "api_key",
        "model",
        "tools",
        "dialects",
        "cumulative_arguments",
        "headers",
        "timeout_s",
        "stream_usage",
    }
    assert OpenAIOptions().timeout_s == 300.0


def test_strategy_and_capabilities_follow_the_setting() -> None:
    native, emulated, constrained = (
        OpenAIBackend("m", {"tools": tools}) for tools in ("auto", "emulated", "constrained")
    )
    assert (native.strategy, emulated.strategy, constrained.strategy) == ("native", "emulated", "constrained")
    assert (
        native.capabilities.tools
        and {"temperature", "tools", "max_output_tokens", "parallel_tool_calls"} <= native.capabilities.fields
    )
    assert (
        not emulated.capabilities.tools
        and "tools" not in emulated.capabilities.fields
        and "temperature" in emulated.capabilities.fields
    )


# --- the request ---


def messages(*items: Any, **fields: Any) -> list[dict[str, Any]]:
    options = OpenAIOptions(**fields.pop("options", {}))
    out: list[dict[str, Any]] = render(turn(items=items, **fields), "m", options)["messages"]
    return out


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def test_a_plain_turn_sends_nothing_that_the_client_did_not_send() -> None:
    assert render(turn(tools=(), stream=False), "up") == {
        "model": "up",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": False,
    }
    assert render(turn(tools=()), "up")["stream_options"] == {"include_usage": True}
    assert "stream_options" not in render(turn(tools=()), "up", OpenAIOptions(stream_usage=False))


def test_history_becomes_messages_with_calls_and_results_paired() -> None:
    items = (
        user("q"),
        Reasoning(("thinking",)),
        Message("assistant", (TextPart("Let me look."),)),
        Call("c1", "search", ONE),
        Call("c2", "read_note", ""),
        Message("assistant", (TextPart("And more."),)),
        Result("c1", (TextPart("found"),)),
        Result("c2", (TextPart("a"), ImagePart("data:image/png;base64,AA"))),
        user("thanks"),
        Call("c3", "search", "{}"),
        Result("c3", ()),
    )
    tool_calls = [
        {"id": "c1", "type": "function", "function": {"name": "search", "arguments": ONE}},
        {"id": "c2", "type": "function", "function": {"name": "read_note", "arguments": "{}"}},
    ]
    assert messages(*items, instructions="Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "Let me look.\n\nAnd more.", "tool_calls": tool_calls},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "tool", "tool_call_id": "c2", "content": "a"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Attached to the result of tool call c2:"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
            ],
        },
        {"role": "user", "content": "thanks"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c3", "type": "function", "function": {"name": "search", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c3", "content": ""},
    ]


def test_reasoning_is_sent_back_only_if_the_setting_allows_it() -> None:
    items = (user("q"), Reasoning(content=("raw",)), Call("c", "search", "{}"), Result("c", (TextPart("r"),)))
    assert "reasoning_content" not in messages(*items)[1]
    assert messages(*items, options={"reasoning_history": True})[1]["reasoning_content"] == "raw"


def test_a_file_by_its_url_is_refused_since_chat_completions_has_no_place_for_it() -> None:
    with pytest.raises(ToolwireError, match="no file by its URL") as refused:
        messages(
            Message("user", (OtherPart("input_file", {"type": "input_file", "file_url": "https://x/y.pdf"}),))
        )
    assert refused.value.failure.kind == "unsupported_value"


def test_parts_roles_names_and_refusals() -> None:
    items = (
        Message("developer", (TextPart("d"),)),
        Message("user", (TextPart("a"), ImagePart("https://x/y.png", "low")), name="ann"),
        Message(
            "user",
            (
                OtherPart("input_file", {"type": "input_file", "filename": "f.pdf", "file_data": "data:…"}),
                ImagePart(None, file_id="file-1"),
            ),
        ),
        Message("assistant", (), refusal="no"),
        Message("assistant", (TextPart("ok"),)),
    )
    assert messages(*items) == [
        {"role": "system", "content": "d"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
            ],
            "name": "ann",
        },
        {
            "role": "user",
            "content": [
                {"type": "file", "file": {"file_data": "data:…", "filename": "f.pdf"}},
                {"type": "file", "file": {"file_id": "file-1"}},
            ],
        },
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "assistant", "content": "ok"},
    ]
    assert messages(*items, options={"system_role": "keep"})[0]["role"] == "developer"
    assert messages(instructions="i", options={"system_role": "developer"})[0] == {
        "role": "developer",
        "content": "i",
    }


def test_tools_and_the_choice_among_them() -> None:
    body = render(turn(), "m")
    assert body["tools"] == [
        {
            "type": "function",
            "function": {"name": "search", "description": "Searches.", "parameters": SCHEMA},
        },
        {"type": "function", "function": {"name": "read_note", "parameters": SCHEMA, "strict": True}},
    ]
    assert "tool_choice" not in body and "parallel_tool_calls" not in body
    assert render(turn(tool_choice=ToolChoice("required", "search")), "m")["tool_choice"] == {
        "type": "function",
        "function": {"name": "search"},
    }
    assert render(turn(tool_choice=ToolChoice("none")), "m")["tool_choice"] == "none"
    choice = turn(tool_choice=ToolChoice("required", allowed=("search",)), parallel=False)
    allowed = render(choice, "m", OpenAIOptions(base_url="http://127.0.0.1/v1"))
    assert [tool["function"]["name"] for tool in allowed["tools"]] == ["search"]
    assert allowed["tool_choice"] == "required" and allowed["parallel_tool_calls"] is False
    named = {"type": "function", "function": {"name": "search"}}
    allowed = render(choice, "m")  # OpenAI itself accepts it
    assert [tool["function"]["name"] for tool in allowed["tools"]] == ["search", "read_note"]
    assert allowed["tool_choice"] == {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [named]},
    }
    sent = render(turn(sent=frozenset({"tool_choice", "parallel_tool_calls"})), "m")
    assert sent["tool_choice"] == "auto" and sent["parallel_tool_calls"] is True
    assert "tool_choice" not in render(
        turn(tools=(), tool_choice=ToolChoice("none"), sent=frozenset({"tool_choice"})), "m"
    )


def test_sampling_and_format_fields_are_passed_on() -> None:
    sampling = Sampling(0.5, 0.9, 100, ("END",), 7, 0.1, 0.2, {"50256": -100.0}, "low", None, "high")
    output = OutputFormat("json_schema", "answer", {"type": "object"}, True, "d")
    body = render(
        turn(sampling=sampling, output=output, user="u"), "m", OpenAIOptions(base_url="http://127.0.0.1/v1")
    )
    assert {
        key: body[key]
        for key in (
            "temperature",
            "top_p",
            "max_tokens",
            "stop",
            "seed",
            "presence_penalty",
            "frequency_penalty",
        )
    } == {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 100,
        "stop": ["END"],
        "seed": 7,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
    }
    assert (body["logit_bias"], body["reasoning_effort"], body["verbosity"], body["user"]) == (
        {"50256": -100.0},
        "low",
        "high",
        "u",
    )
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True, "description": "d"},
    }
    assert "n" not in body
    assert "max_completion_tokens" in render(turn(sampling=sampling), "m", OpenAIOptions())
    assert render(turn(output=OutputFormat("json_object")), "m")["response_format"] == {"type": "json_object"}


# --- the reader alone ---


@given(
    st.text(max_size=40), st.sampled_from([*QUIRKS]), st.lists(st.integers(1, 60), min_size=1, max_size=20)
)
def test_any_cut_of_any_stream_with_a_quirk_gives_the_same_events(
    text: str, quirk: str, sizes: list[int]
) -> None:
    chunks: list[Chunk] = with_quirk(quirk, answer(text.encode("utf-8", "replace").decode(), CALLS))
    wire = b"".join(Reply.stream(chunks).frames)

    def read(blocks: list[bytes]) -> list[Event]:
        reader = AnswerReader(turn(), cumulative=quirk == "cumulative_arguments")
        return [event for block in blocks for event in reader.feed(block)] + (
            [] if reader.ended else reader.finish()
        )

    blocks: list[bytes] = []
    at = 0
    while at < len(wire):
        size = sizes[len(blocks) % len(sizes)]
        blocks.append(wire[at : at + size])
        at += size
    assert read(blocks) == read([wire])


@given(
    st.lists(
        st.binary(max_size=60)
        | st.sampled_from(
            [b"data: {}\n\n", b"data: [DONE]\n\n", b"data: [1]\n\n", b'data: {"choices":[null]}\n\n']
        ),
        max_size=8,
    )
)
def test_no_bytes_whatever_raise_and_every_run_ends_once(blocks: list[bytes]) -> None:
    reader = AnswerReader(turn())
    run: list[Event] = [event for block in blocks for event in reader.feed(block)]
    if not reader.ended:
        run += reader.finish()
    assert sum(isinstance(event, Finish | Failure) for event in run) == 1 and isinstance(
        run[-1], Finish | Failure
    )

"""The OpenAI backend against servers that lie, flood, stall, or send invalid data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from toolwire.backends.openai import OpenAIBackend, OpenAIOptions, read
from toolwire.backends.openai import backend as connection
from toolwire.backends.openai.failures import RETRY_LIMIT_S, http_failure, stream_failure
from toolwire.backends.openai.read import AnswerReader
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
from toolwire.core.turn import Message, TextPart, ToolSpec, Turn
from toolwire.testing.upstream import FakeUpstream, Reply, answer, chunk

TOOLS = (ToolSpec("look"), ToolSpec("read_note"))
LIMITS = "The upstream server's tool calls need too much memory until they can be sent in order."


def turn(stream: bool = True) -> Turn:
    return Turn("chat", "m", (Message("user", (TextPart("hi"),)),), tools=TOOLS, stream=stream)


def entry(call_id: str | None, name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def body(message: dict[str, Any], finish: str | None = "stop", **more: Any) -> bytes:
    return json.dumps(
        {"choices": [{"index": 0, "message": message, "finish_reason": finish}], **more}
    ).encode()


def whole(raw: bytes) -> list[Event]:
    return AnswerReader(turn(stream=False)).read_body(raw)


def streamed(*chunks: Any, **options: Any) -> list[Event]:
    """The events of a stream with these chunks, each in its own read."""
    reader = AnswerReader(turn(), **options)
    out = [event for frame in Reply.stream(chunks).frames for event in reader.feed(frame)]
    return out if reader.ended else out + reader.finish()


def calls(run: list[Event]) -> list[tuple[str | None, str, str, str]]:
    begun = [event for event in run if isinstance(event, CallBegin)]
    ends = {event.index: event.status for event in run if isinstance(event, CallEnd)}
    text = {
        begin.index: "".join(
            event.delta for event in run if isinstance(event, CallArgs) and event.index == begin.index
        )
        for begin in begun
    }
    return [(begin.id, begin.name, text[begin.index], ends[begin.index]) for begin in begun]


def said(run: list[Event], kind: type[Text | Thought | Refusal] = Text) -> str:
    return "".join(event.text for event in run if isinstance(event, kind))


async def play(reply: Reply, request: Turn, **options: Any) -> list[Event]:
    async with FakeUpstream(reply) as upstream:
        backend = OpenAIBackend("m", {"base_url": upstream.base_url, **options})
        try:
            return [event async for batch in backend.run(request) for event in batch]
        finally:
            await backend.close()


# --- calls in a whole body ---


@pytest.mark.parametrize("more", [{}, {"index": 0}])
def test_in_a_body_every_entry_is_a_separate_call_even_if_ids_repeat(more: dict[str, Any]) -> None:
    same = [entry("look", "look", '{"a":1}', **more), entry("look", "look", '{"a":2}', **more)]
    assert calls(whole(body({"tool_calls": same}, "tool_calls"))) == [
        ("look", "look", '{"a":1}', "ok"),
        (None, "look", '{"a":2}', "ok"),
    ]
    mixed = [
        entry("x", "look", "{}", **more),
        entry("x", "read_note", "{}", **more),
        entry("x", "look", "{}", **more),
    ]
    assert [call[:3] for call in calls(whole(body({"tool_calls": mixed})))] == [
        ("x", "look", "{}"),
        (None, "read_note", "{}"),
        (None, "look", "{}"),
    ]


def test_a_call_that_the_token_limit_cut_is_truncated_in_a_body_as_in_a_stream() -> None:
    cut = entry("x", "look", '{"a": "unfin')
    run = whole(body({"tool_calls": [entry("w", "look", "{}"), cut]}, "length"))
    assert [call[3] for call in calls(run)] == ["ok", "truncated"] and run[-1] == Finish("length")
    assert (
        calls(streamed(chunk({"tool_calls": [{**cut, "index": 0}]}), chunk({}, "length"))) == calls(run)[1:]
    )
    run = whole(body({"tool_calls": [cut]}, "tool_calls"))  # whatever the server says, the call is incomplete
    assert [call[3] for call in calls(run)] == ["truncated"] and run[-1] == Finish("length")
    assert calls(streamed(chunk({"tool_calls": [{**cut, "index": 0}]}), chunk({}, "tool_calls"))) == calls(
        run
    )


@pytest.mark.parametrize("arguments", ["", " ", "\r\n", " \t\n "])
def test_arguments_of_white_space_are_no_arguments(arguments: str) -> None:
    assert calls(whole(body({"tool_calls": [entry("x", "look", arguments)]}))) == [("x", "look", "", "ok")]
    one = chunk({"tool_calls": [entry("x", "look", arguments, index=0)]})
    more = chunk({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]})
    assert calls(streamed(one, more, chunk({}, "tool_calls"))) == [("x", "look", "", "ok")]


def test_white_space_before_arguments_is_kept() -> None:
    pieces = [
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
        for piece in (" ", "\n", '{"a"', ":1}", " ")
    ]
    run = streamed(chunk({"tool_calls": [entry("x", "look", "", index=0)]}), *pieces, chunk({}, "tool_calls"))
    assert calls(run) == [("x", "look", ' \n{"a":1} ', "ok")]


# --- names ---


@pytest.mark.parametrize("written", ["functions.look:0", "functions.look", "look:12", "Look", "look"])
def test_a_declared_name_is_known_in_its_habitual_disguises(written: str) -> None:
    assert [call[1] for call in calls(whole(body({"tool_calls": [entry("x", written, "{}")]})))] == ["look"]
    run = streamed(
        chunk({"tool_calls": [entry("x", written, "", index=0)]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
    )
    assert [call[1] for call in calls(run)] == ["look"]


@pytest.mark.parametrize(
    "written", ["functions.other:0", "look up", "búsqueda", "n" * 300, "look:", "look:0:x"]
)
def test_any_other_name_is_passed_on_as_it_is(written: str) -> None:
    assert calls(whole(body({"tool_calls": [entry("x", written, "{}")]}))) == [("x", written, "{}", "ok")]


# --- numbers ---


@pytest.mark.parametrize(
    "bad", [-1, -(10**30), 10**30, True, "x", "-5", float("nan"), float("inf"), 1e300, [1], None]
)
def test_an_absurd_count_of_tokens_is_none(bad: Any) -> None:
    details = {
        "prompt_tokens_details": {"cached_tokens": bad},
        "completion_tokens_details": {"reasoning_tokens": bad},
    }
    run = whole(body({"content": "a"}, usage={"prompt_tokens": bad, "completion_tokens": 2, **details}))
    assert run == [Text("a"), Usage(0, 2), Finish("stop")]
    last = {**chunk({}, "stop"), "usage": {"prompt_tokens": 3, "completion_tokens": bad, **details}}
    assert streamed(chunk({"content": "a"}), last) == [Text("a"), Usage(3, 0), Finish("stop")]


@pytest.mark.parametrize("value", ["9" * 400, "9" * 30, "86401", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_long_time_to_wait_is_a_day(value: str) -> None:
    headers = {"retry-after": value, "date": "Mon, 01 Jan 2024 00:00:00 GMT"}
    assert http_failure(429, headers, b"{}").retry_after_s == RETRY_LIMIT_S


@pytest.mark.parametrize(
    "value",
    ["-5", "nan", "inf", "1e9", "", "Fri, 31 Dec 9999 23:59:59 -9999", "Mon, 01 Jan 0001 00:00:00 +2359"],
)
def test_a_time_to_wait_that_is_none_is_ignored(value: str) -> None:
    assert http_failure(
        429, {"retry-after": value, "date": "Mon, 01 Jan 2024 00:00:00 -0000"}, b"{}"
    ).retry_after_s in (None, 0.0)


# --- errors ---


def test_an_error_with_lone_surrogates_can_be_sent_on() -> None:
    raw = (
        b'{"error":{"message":"bad \\ud800 '
        b'thing","param":"x\\udfff","code":"a\\ud801","type":"invalid_request_error\\ud800"}}'
    )
    for failure in (
        http_failure(400, {}, raw),
        stream_failure({**json.loads(raw)["error"], "type": "invalid_request_error"}),
    ):
        assert (failure.kind, failure.message, failure.param, failure.code) == (
            "invalid_request",
            "bad \ufffd thing",
            "x\ufffd",
            "a\ufffd",
        )
    assert stream_failure("bad \ud800").message.encode().endswith("bad \ufffd".encode())


def test_param_and_code_of_an_error_are_short_and_hold_no_secret() -> None:
    raw = json.dumps(
        {"error": {"message": "m", "param": "p" * 9999, "code": "the key hunter22hunter"}}
    ).encode()
    failure = http_failure(400, {}, raw, ("hunter22hunter",))
    assert failure.param is not None and len(failure.param) <= 500 and failure.code == "the key …"


@pytest.mark.parametrize(
    "error",
    [{"code": [[1]], "type": {"a": 1}, "message": [[[["x"]]]]}, [["x"]], 7, {"message": float("nan")}],
)
def test_an_error_of_any_shape_is_a_failure(error: Any) -> None:
    assert stream_failure(error).kind == "backend"


def test_an_error_that_cannot_be_encoded_is_a_failure_without_its_text() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for error in (deep, {"message": deep, "code": deep, "type": deep}):
        failure = stream_failure(error)
        assert (failure.kind, failure.message) == ("backend", "The upstream server failed (while streaming).")


@pytest.mark.parametrize("depth", [900, 100_000])
def test_content_that_is_nested_too_deeply_is_one_clear_failure(depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    outcomes: list[list[Event]] = [[Failure("backend", "The upstream server's answer is nested too deeply.")]]
    if depth < 1000:
        outcomes.append([Finish("stop")])  # newer interpreters parse it and find no text
    assert (
        whole(b'{"choices":[{"index":0,"message":{"content":' + nested + b'},"finish_reason":"stop"}]}')
        in outcomes
    )
    assert (
        streamed(b'{"choices":[{"index":0,"delta":{"content":' + nested + b'},"finish_reason":"stop"}]}')
        in outcomes
    )


# --- surrogate pairs ---

HALVES = (r"a\ud83d", r"\ude00b")


def delta(key: str, escaped: str) -> str:
    return json.dumps(chunk({key: "TEXT"})).replace("TEXT", escaped)


def arguments(escaped: str, index: int = 0) -> str:
    return json.dumps(chunk({"tool_calls": [{"index": index, "function": {"arguments": "TEXT"}}]})).replace(
        "TEXT", escaped
    )


@pytest.mark.parametrize(
    ("key", "kind"),
    [("content", Text), ("reasoning_content", Thought), ("reasoning", Thought), ("refusal", Refusal)],
)
def test_a_surrogate_pair_cut_between_two_chunks_is_joined(
    key: str, kind: type[Text | Thought | Refusal]
) -> None:
    run = streamed(
        delta(key, HALVES[0]), chunk({"role": "assistant"}), delta(key, HALVES[1]), chunk({}, "stop")
    )
    assert said(run, kind) == "a😀b" and run[-1] == Finish("stop")


def test_a_half_that_stays_alone_becomes_a_replacement_character_in_its_place() -> None:
    first, second = HALVES
    end = chunk({}, "stop")
    assert said(streamed(delta("content", first), end)) == "a\ufffd"
    assert said(streamed(delta("content", second), end)) == "\ufffdb"
    assert said(streamed(delta("content", first), chunk({"content": "plain"}), end)) == "a\ufffdplain"
    assert said(streamed(delta("content", first), delta("content", first), end)) == "a\ufffda\ufffd"
    other = streamed(delta("content", first), chunk({"refusal": "no"}), delta("content", second), end)
    assert other[:-1] == [Text("a"), Text("\ufffd"), Refusal("no"), Text("\ufffdb")]
    call = streamed(delta("content", first), chunk({"tool_calls": [entry("x", "look", "{}", index=0)]}), end)
    assert said(call) == "a\ufffd" and calls(call) == [("x", "look", "{}", "ok")]
    assert said(streamed(chunk({}, "stop"), delta("content", first))) == "a\ufffd"
    assert said(whole(b'{"choices":[{"message":{"content":"a\\ud83d"}}]}')) == "a\ufffd"


def test_a_surrogate_pair_cut_inside_arguments_is_joined_in_its_own_call() -> None:
    openers = [chunk({"tool_calls": [entry(f"c{at}", "look", '{"a":"', index=at)]}) for at in (0, 1)]
    interleaved = [
        arguments(r"x\ud83d", 0),
        arguments(r"y\ud83e", 1),
        arguments(r"\ude00", 0),
        arguments(r"\udd16", 1),
    ]
    closers = [chunk({"tool_calls": [{"index": at, "function": {"arguments": '"}'}}]}) for at in (0, 1)]
    run = streamed(*openers, *interleaved, *closers, chunk({}, "tool_calls"))
    assert calls(run) == [("c0", "look", '{"a":"x😀"}', "ok"), ("c1", "look", '{"a":"y🤖"}', "ok")]


def test_a_half_that_stays_alone_in_arguments_becomes_a_replacement_character() -> None:
    opener = chunk({"tool_calls": [entry("c", "look", '{"a":"', index=0)]})
    run = streamed(
        opener,
        arguments(r"x\ud83d"),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"}'}}]}),
        chunk({}, "tool_calls"),
    )
    assert calls(run) == [("c", "look", '{"a":"x\ufffd"}', "ok")]
    assert calls(streamed(opener, arguments(r"x\ud83d"), chunk({}, "length"))) == [
        ("c", "look", '{"a":"x\ufffd', "truncated")
    ]
    raw = (
        r'{"choices":[{"message":{"tool_calls":[{"id":"c","function":{"name":"look",'
        r'"arguments":{"a":"\ud800"}}}]}}]}'
    )
    assert calls(whole(raw.encode())) == [("c", "look", '{"a":"\ufffd"}', "ok")]


def test_cumulative_arguments_may_be_cut_inside_a_surrogate_pair() -> None:
    opener = chunk({"tool_calls": [entry("c", "look", "", index=0)]})
    pieces = [arguments(r"{\"a\":\"x\ud83d"), arguments(r"{\"a\":\"x\ud83d\ude00\"}")]
    assert calls(streamed(opener, *pieces, chunk({}, "tool_calls"), cumulative=True)) == [
        ("c", "look", '{"a":"x😀"}', "ok")
    ]


# --- floods and stalls ---


@asynccontextmanager
async def pinging() -> AsyncIterator[str]:
    """The address of a server that sends an answer with its finish reason, then pings until disconnected."""
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        writer.write(b"".join(Reply.stream(answer("Hello"), done=False).frames))
        try:
            while not writer.is_closing():
                writer.write(b": ping\n\n")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            pass
        finally:
            writer.close()
            left.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        await asyncio.wait_for(left.wait(), 5)


@pytest.mark.parametrize("stream", [True, False])
async def test_pings_after_the_finish_reason_do_not_delay_the_answer_forever(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "END_MARK_S", 0.2)
    async with pinging() as address, asyncio.timeout(5):
        backend = OpenAIBackend("m", {"base_url": address})
        run = [event async for batch in backend.run(turn(stream)) for event in batch]
        await backend.close()
    assert said(run) == "Hello" and run[-1] == Finish("stop")


OPEN_CALL = chunk({"tool_calls": [entry("a", "look", '{"a":"', index=0)]})


@pytest.mark.parametrize(
    "flood",
    [
        {"content": "x" * 1000},
        {"tool_calls": [entry("b", "look", "x" * 1000, index=1)]},
        {"content": "", "reasoning": "x" * 1000},
    ],
)
def test_output_held_back_by_an_open_call_is_limited(
    flood: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "HELD_LIMIT", 20_000)
    run = streamed(OPEN_CALL, *[chunk(flood)] * 40, chunk({}, "stop"))
    assert (
        run[-1] == Failure("backend", LIMITS)
        and sum(isinstance(event, Finish | Failure) for event in run) == 1
    )
    within = streamed(
        OPEN_CALL,
        *[chunk(flood)] * 10,
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"}'}}]}),
        chunk({}, "stop"),
    )
    assert within[-1] == Finish("stop") and calls(within)[0][2] == '{"a":""}'


@pytest.mark.parametrize(
    "flood",
    [
        lambda at: {"tool_calls": [{"index": 0, "function": {"arguments": "x" * 500}}]},
        lambda at: {"tool_calls": [entry(f"c{at}", "look", "{}", index=at)]},
        lambda at: {"tool_calls": [{"index": 0, "id": f"{at}" * 50, "function": {"arguments": "x" * 50}}]},
        lambda at: {"tool_calls": [{"index": 5, "id": "n", "function": {"name": f"part{at}"}}]},
    ],
)
def test_what_is_kept_of_calls_is_limited(flood: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "CALLS_LIMIT", 20_000)
    run = streamed(OPEN_CALL, *[chunk(flood(at)) for at in range(300)], chunk({}, "stop"))
    assert run[-1] == Failure("backend", LIMITS)


async def test_a_stream_that_answers_a_request_for_a_body_is_limited_like_a_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "BODY_LIMIT", 20_000)
    flood = Reply.stream(answer("x" * 1000, size=4))
    run = await play(flood, turn(stream=False))
    assert run[-1] == Failure("backend", "The upstream server's answer is larger than 20000 bytes.")
    assert said(await play(flood, turn(stream=True))) == "x" * 1000


# --- options ---


@pytest.mark.parametrize(
    "bad",
    [
        {"dialects": ["nope"]},
        {"dialects": ["sentinel", "no\npe"]},
        {"api_key": "a\nb"},
        {"api_key": "a\x00b"},
        {"api_key": "schlüssel…"},
        {"headers": {"X-A": "x\r\ny"}},
        {"headers": {"X-A": "x\x7fy"}},
        {"headers": {"X-A": "日本"}},
        {"headers": {"a b": "x"}},
        {"headers": {"": "x"}},
        {"headers": {"a:b\n": "x"}},
        {"base_url": "http://127.0.0.1/v1?key=SECRET"},
        {"base_url": "http://127.0.0.1/v1?"},
        {"base_url": "http://127.0.0.1/v1#SECRET"},
        {"base_url": "ftp://127.0.0.1/v1?key=SECRET"},
        {"base_url": "http://user:SECRET@[::1/v1"},
        {"base_url": "http://127.0.0.1:99999/v1"},
        {"base_url": "http://127.0.0.1/v\n1"},
        {"timeout_s": 10**400},
        {"timeout_s": float("nan")},
    ],
)
def test_invalid_options_are_refused_in_one_line_without_secrets(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as refused:
        OpenAIOptions.parse({"base_url": "http://127.0.0.1/v1", **bad})
    said = str(refused.value)
    assert said.startswith(next(iter(bad))) and len(said.splitlines()) == 1 and "SECRET" not in said


def test_options_that_work_are_taken() -> None:
    options = OpenAIOptions.parse(
        {
            "api_key": " key\n",
            "headers": {"X-Title": "Grüße", "x_y.z": ""},
            "dialects": ["hermes"],
            "base_url": "http://[::1]:8080/v1",
        }
    )
    assert options.api_key == "key" and options.dialects == ("hermes",)


# --- the typed decoder and the tolerant parser ---

DELTAS = some.fixed_dictionaries(
    {},
    optional={
        "content": some.sampled_from(
            ["a", "", None, "\ud83d", "\ude00", "é😀", 7, ["x"], [{"type": "text", "text": "p"}]]
        ),
        "role": some.just("assistant"),
        "tool_calls": some.sampled_from(
            [None, [], [{"index": 0, "id": "c", "function": {"name": "look", "arguments": "{"}}]]
        ),
        "reasoning_content": some.sampled_from([None, "", "t"]),
        "reasoning": some.sampled_from([None, "", "t"]),
        "refusal": some.sampled_from([None, "", "no"]),
        "function_call": some.sampled_from([None, {"name": "look", "arguments": "{}"}]),
        "padding": some.just("x"),
    },
)
CHOICES = some.fixed_dictionaries(
    {"delta": some.one_of(DELTAS, some.none())},
    optional={
        "index": some.sampled_from([0, 0, 0, 1, "0", None]),
        "finish_reason": some.sampled_from([None, None, None, "", "stop", "null", "length"]),
        "logprobs": some.none(),
        "message": some.sampled_from([None, {"content": "m"}]),
    },
)
CHUNKS = some.fixed_dictionaries(
    {"choices": some.one_of(some.lists(CHOICES, max_size=2), some.none())},
    optional={
        "id": some.just("c"),
        "usage": some.sampled_from([None, {}, {"prompt_tokens": 1, "completion_tokens": 2}]),
        "error": some.sampled_from([None, "", "broken", {"message": "no"}]),
    },
)
TEXT = {"choices": [{"index": 0, "delta": {"content": "w "}, "finish_reason": None}]}


def _fed(blocks: list[bytes]) -> list[list[Event]]:
    reader = AnswerReader(turn())
    return [
        *(reader.feed(block) for block in blocks if not reader.ended),
        [] if reader.ended else reader.finish(),
    ]


@given(some.lists(some.one_of(CHUNKS, some.just(TEXT)), max_size=8), some.sets(some.integers(0, 8)))
def test_the_typed_decoder_gives_what_the_tolerant_parser_gives(
    chunks: list[dict[str, Any]], alone: set[int]
) -> None:
    blocks = [b""]
    for place, one in enumerate(chunks):
        blocks[-1] += b"data: " + json.dumps(one).encode() + b"\n\n"
        if place not in alone:
            blocks.append(b"")
    typed = _fed([block for block in blocks if block])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read, "decode", msgspec.json.Decoder(int).decode)  # refuses all of them
        assert typed == _fed([block for block in blocks if block])


# --- a whole body with only text and its end ---

USED: dict[str, Any] = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
TEXT_BODIES: tuple[tuple[dict[str, Any], Usage | None], ...] = (
    ({}, None),
    ({"usage": None, "error": None}, None),
    ({"usage": USED}, Usage(3, 2)),
    (
        {
            "usage": {
                **USED,
                "prompt_tokens_details": None,
                "completion_tokens_details": {"reasoning_tokens": None},
            }
        },
        Usage(3, 2),
    ),
    (
        {
            "usage": {
                **USED,
                "prompt_tokens_details": {"cached_tokens": 2},
                "completion_tokens_details": {"reasoning_tokens": 1},
            }
        },
        Usage(3, 2, 2, 1),
    ),
)


@pytest.mark.parametrize(("more", "used"), TEXT_BODIES)
def test_a_body_of_text_becomes_the_text_its_usage_and_its_end(
    more: dict[str, Any], used: Usage | None
) -> None:
    raw = body(
        {"role": "assistant", "content": "hi", "refusal": None, "annotations": []},
        id="c",
        object="chat.completion",
        **more,
    )
    assert whole(raw) == [event for event in (Text("hi"), used, Finish("stop")) if event is not None]

"""Log probabilities, from an OpenAI-compatible server to the client of either API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from doubles.judges import Judge, same
from toolwire.backends.openai.backend import OpenAIBackend
from toolwire.conform.judge.fold import fold
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Api
from toolwire.observe.fixture import masked, read, write
from toolwire.observe.recording import RecordingError
from toolwire.observe.replay import replay
from toolwire.testing.upstream import FakeUpstream, Recorded, Reply, Script, answer, chunk, completion

APIS: tuple[Api, ...] = ("chat", "responses")
LOOK = {"name": "look", "parameters": {"type": "object", "properties": {}}}
WORDS = ("Hel", "lo", " wörld", "!")


def entry(token: str, logprob: float = -0.5) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


def token(text: str, top: int = 2) -> dict[str, Any]:
    """Returns a token as the server sends it, with `top` alternatives."""
    return {**entry(text), "top_logprobs": [entry(f"{text}{n}", -1.0 - n) for n in range(top)]}


def logged(
    delta: dict[str, Any], content: Sequence[Any] | None = None, refusal: Sequence[Any] | None = None
) -> Any:
    """Returns a chunk with log probabilities."""
    made = chunk(delta)
    made["choices"][0]["logprobs"] = {"content": content, "refusal": refusal}
    return made


def said(*words: str, top: int = 2, after: Sequence[Any] = ()) -> list[Any]:
    """Returns the chunks of an answer, one token per chunk."""
    texts = [logged({"content": word}, [token(word, top)]) for word in words]
    return [chunk({"role": "assistant", "content": ""}), *texts, *after, chunk({}, "stop")]


def reply(chunks: Sequence[Any], **options: Any) -> Script:
    def say(request: Recorded) -> Reply:
        streamed = request.body["stream"]
        return Reply.stream(chunks, **options) if streamed else Reply.body(completion(chunks), **options)

    return say


@asynccontextmanager
async def serving(table: Any, *script: Script, **options: Any) -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream(*script) as upstream:
        backend = OpenAIBackend("m", {"base_url": upstream.base_url, "profile": "generic", **options})
        table.serve(backend)
        try:
            yield upstream
        finally:
            await backend.close()


def question(api: Api, top: int | None = 2, tools: bool = False, **more: Any) -> dict[str, Any]:
    """Returns a request for log probabilities."""
    body: dict[str, Any] = {"messages" if api == "chat" else "input": [{"role": "user", "content": "Hi"}]}
    body |= {"logprobs": True} if api == "chat" else {"include": ["message.output_text.logprobs"]}
    if top is not None:
        body["top_logprobs"] = top
    if tools:
        body["tools"] = [
            {"type": "function", "function": LOOK} if api == "chat" else {"type": "function", **LOOK}
        ]
    return {**body, **more}


async def both(table: Any, judge: Judge, api: Api, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Sends a request with and without streaming. Returns the body and its report.

    Checks that the stream and the body follow the API exactly and have the same content.
    """
    whole = await table.answer(api, {**body, "stream": False})
    found = json.loads(whole.body)
    judge.body(found, api)
    streamed = await table.answer(api, {**body, "stream": True})
    raw = b"".join([block async for block in streamed.stream])
    judge.stream(raw, api)
    assert same(raw, found, api) == []
    assert logprobs_of(fold(raw, api), api) == logprobs_of(found, api)
    reports = {dict(one.headers)[b"x-toolwire-report"].decode() for one in (whole, streamed)}
    assert len(reports) == 1
    return found, reports.pop()


def logprobs_of(body: dict[str, Any], api: Api) -> list[Any]:
    """Returns the log probabilities of every choice (chat) or of every text (responses)."""
    if api == "chat":
        return [choice["logprobs"] for choice in body["choices"]]
    parts = [part for item in body["output"] for part in item.get("content") or ()]
    return [part["logprobs"] for part in parts if part["type"] == "output_text"]


def due(api: Api, *words: str, top: int = 2) -> Any:
    tokens = [token(word, top) for word in words]
    return {"content": tokens, "refusal": None} if api == "chat" else tokens


@pytest.mark.parametrize("write_size", [0, 1, 7])
@pytest.mark.parametrize("api", APIS)
async def test_the_body_and_the_stream_have_every_token(
    table: Any, judge: Judge, api: Api, write_size: int
) -> None:
    async with serving(table, reply(said(*WORDS), write_size=write_size)) as upstream:
        body, report = await both(table, judge, api, question(api))
        assert logprobs_of(body, api) == [due(api, *WORDS)]
        assert report == ""
        sent = upstream.requests[-1].body
        assert (sent["logprobs"], sent["top_logprobs"]) == (True, 2)
        assert "include" not in sent


async def test_a_chunk_has_the_tokens_of_its_text(table: Any) -> None:
    async with serving(table, reply(said(*WORDS))):
        raw = await table.stream("chat", question("chat"))
    frames = [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: {")]
    texts = [frame["choices"][0] for frame in frames if frame["choices"][0]["delta"].get("content")]
    assert [one["delta"]["content"] for one in texts] == list(WORDS)
    assert [one["logprobs"] for one in texts] == [due("chat", word) for word in WORDS]
    others = [frame["choices"][0]["logprobs"] for frame in frames if frame["choices"][0] not in texts]
    assert others == [None] * len(others)


async def test_the_events_of_a_response_have_tokens_without_their_bytes(table: Any) -> None:
    async with serving(table, reply(said("Hi"))):
        raw = await table.stream("responses", question("responses"))
    frames = [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: {")]
    of_text = [frame for frame in frames if frame["type"].startswith("response.output_text.")]
    top = [{"token": "Hi0", "logprob": -1.0}, {"token": "Hi1", "logprob": -2.0}]
    brief = [{"token": "Hi", "logprob": -0.5, "top_logprobs": top}]
    assert [frame["logprobs"] for frame in of_text] == [brief, brief]


@pytest.mark.parametrize("api", APIS)
async def test_a_server_may_send_more_alternatives_than_asked(table: Any, judge: Judge, api: Api) -> None:
    async with serving(table, reply(said(*WORDS, top=5))) as upstream:
        body, _ = await both(table, judge, api, question(api, top=None))
        assert logprobs_of(body, api) == [due(api, *WORDS, top=0)]
        assert "top_logprobs" not in upstream.requests[-1].body


@pytest.mark.parametrize("api", APIS)
async def test_a_server_that_sends_none(table: Any, judge: Judge, api: Api) -> None:
    async with serving(table, reply(answer(text="Hello"))):
        body, report = await both(table, judge, api, question(api))
    assert logprobs_of(body, api) == [None if api == "chat" else []]
    assert report == ""


@pytest.mark.parametrize("api", APIS)
async def test_what_nobody_asked_for_is_dropped(table: Any, judge: Judge, api: Api) -> None:
    plain: dict[str, Any] = {"messages" if api == "chat" else "input": [{"role": "user", "content": "Hi"}]}
    if api == "chat":
        plain |= {"logprobs": False, "top_logprobs": 0}
    async with serving(table, reply(said(*WORDS))) as upstream:
        body, _ = await both(table, judge, api, plain)
        assert logprobs_of(body, api) == [None if api == "chat" else []]
        assert not upstream.requests[-1].body.keys() & {"logprobs", "top_logprobs"}


async def test_each_choice_has_its_own(table: Any, judge: Judge) -> None:
    async with serving(table, reply(said(*WORDS))):
        body, _ = await both(table, judge, "chat", question("chat", n=3))
    assert logprobs_of(body, "chat") == [due("chat", *WORDS)] * 3


@pytest.mark.parametrize("api", APIS)
async def test_a_refusal_has_tokens_in_chat_completions(table: Any, judge: Judge, api: Api) -> None:
    chunks = [
        chunk({"role": "assistant", "content": None, "refusal": ""}),
        logged({"refusal": "I "}, None, [token("I ")]),
        logged({"refusal": "won't"}, None, [token("won"), token("'t")]),
        chunk({}, "stop"),
    ]
    async with serving(table, reply(chunks)):
        body, _ = await both(table, judge, api, question(api))
    refusal = {"content": None, "refusal": [token("I "), token("won"), token("'t")]}
    assert logprobs_of(body, api) == ([refusal] if api == "chat" else [])


@pytest.mark.parametrize("api", APIS)
async def test_native_tools_leave_them_to_the_text(table: Any, judge: Judge, api: Api) -> None:
    """Tokens of reasoning and of calls are dropped, even if the server sends them."""
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    chunks = [
        chunk({"role": "assistant", "content": ""}),
        logged({"reasoning_content": "Hm"}, [token("Hm")]),
        *said("I ", "look.")[1:-1],
        logged({"tool_calls": [call]}, [token("<tool>")]),
        logged({}, [token("<eos>")]),
        chunk({}, "tool_calls"),
    ]
    async with serving(table, Reply.stream(chunks)) as upstream:
        raw = await table.stream(api, question(api, tools=True))
        judge.stream(raw, api, tools=["look"])
        assert logprobs_of(fold(raw, api), api) == [due(api, "I ", "look.")]
        assert upstream.requests[-1].body["tools"]


@pytest.mark.parametrize("api", APIS)
async def test_tokens_that_end_inside_a_character(table: Any, judge: Judge, api: Api) -> None:
    """They are sent with the text that completes the character, or at the end of the text."""
    halves = [{**token("\\xf0\\x9f"), "bytes": [240, 159]}, {**token("\\x98\\x80"), "bytes": [152, 128]}]
    chunks = [
        chunk({"role": "assistant", "content": ""}),
        logged({"content": ""}, halves[:1]),
        logged({"content": "😀"}, halves[1:]),
        logged({"content": ""}, [token("")]),
        chunk({}, "length"),
    ]
    async with serving(table, reply(chunks)):
        raw = await table.stream(api, question(api))
        judge.stream(raw, api)
        found = logprobs_of(fold(raw, api), api)[0]
        assert (found["content"] if api == "chat" else found) == [*halves, token("")]


@pytest.mark.parametrize("api", APIS)
async def test_a_server_with_other_shapes(table: Any, judge: Judge, api: Api) -> None:
    """Members are missing or invalid, a probability is infinite, and entries are no tokens."""
    odd = '[{"token":"a","logprob":-Infinity},{"token":"b","logprob":null,"bytes":"x","id":7},{"x":1},5]'
    sent = json.dumps(completion(said("ab"))).replace(json.dumps([token("ab")]), odd)
    assert odd in sent
    async with serving(table, Reply.body(json.loads(sent))):
        body = await table.body(api, question(api))
    judge.body(body, api)
    tokens = [{**entry(text, -9999.0), "top_logprobs": []} for text in "ab"]
    assert logprobs_of(body, api) == [{"content": tokens, "refusal": None} if api == "chat" else tokens]


@pytest.mark.parametrize("kind", [None, 7, "x", [], {}, {"content": 3}, {"content": {}}, {"refusal": "x"}])
async def test_no_log_probabilities_at_all(table: Any, kind: Any) -> None:
    whole = completion(answer(text="Hello"))
    whole["choices"][0]["logprobs"] = kind
    async with serving(table, Reply.body(whole)):
        assert logprobs_of(await table.body("chat", question("chat")), "chat") == [None]


# --- where the text is interpreted ---


@pytest.mark.parametrize("tools", ["emulated", "constrained"])
@pytest.mark.parametrize("api", APIS)
async def test_scanned_text_has_none_and_the_report_says_so(
    table: Any, judge: Judge, api: Api, tools: str
) -> None:
    async with serving(table, reply(said(*WORDS)), tools=tools) as upstream:
        body, report = await both(table, judge, api, question(api, tools=True))
        assert logprobs_of(body, api) == [None if api == "chat" else []]
        field = "logprobs" if api == "chat" else "include.message.output_text.logprobs"
        assert {f"{field}=ignored", "top_logprobs=ignored"} <= set(report.split("; "))
        assert "logprobs" not in upstream.requests[-1].body
        plain, report = await both(table, judge, api, question(api))
        assert (logprobs_of(plain, api), report) == ([due(api, *WORDS)], "")


@pytest.mark.parametrize("api", APIS)
async def test_a_thought_in_the_text_drops_them_and_the_report_says_so(
    table: Any, judge: Judge, api: Api
) -> None:
    async with serving(table, reply(said("<th", "ink>", "hm</think>", "Hello", " you"))):
        body, report = await both(table, judge, api, question(api))
        assert b'"logprobs":"ignored"}' in await table.stream(api, question(api))
    assert logprobs_of(body, api) == [None if api == "chat" else []]
    field = "logprobs" if api == "chat" else "include.message.output_text.logprobs"
    assert set(report.split("; ")) == {f"{field}=ignored", "top_logprobs=ignored"}


@pytest.mark.parametrize("words", [("<", "b>bold"), ("\n", " ", "<thi", "s"), ("<", "think", "er>")])
@pytest.mark.parametrize("api", APIS)
async def test_text_that_only_might_have_been_a_thought_keeps_them(
    table: Any, judge: Judge, api: Api, words: tuple[str, ...]
) -> None:
    async with serving(table, reply(said(*words))):
        body, report = await both(table, judge, api, question(api))
    assert (logprobs_of(body, api), report) == ([due(api, *words)], "")


async def test_thoughts_that_stay_in_the_text_keep_them(table_with: Any, judge: Judge) -> None:
    table = table_with(reasoning="text")
    async with serving(table, reply(said("<think>", "hm", "</think>", "Hi"))):
        body, report = await both(table, judge, "chat", question("chat"))
    assert (logprobs_of(body, "chat"), report) == ([due("chat", "<think>", "hm", "</think>", "Hi")], "")


@pytest.mark.parametrize("words", [WORDS, ("<think>", "</think>", "Hi")])
@pytest.mark.parametrize("api", APIS)
async def test_a_recorded_turn_is_replayed_with_them(table: Any, api: Api, words: tuple[str, ...]) -> None:
    async with serving(table, reply(said(*words))):
        await table.stream(api, question(api))
    recording = await table.gateway.journal.recording(table.gateway.journal.records()[0].id)
    found = await asyncio.to_thread(replay, read("".join(write(recording)).splitlines()))
    assert found.same, found.differences


async def test_a_masked_recording_of_them_cannot_be_compared(table: Any) -> None:
    async with serving(table, reply(said(*WORDS))):
        await table.stream("chat", question("chat"))
    recording = await table.gateway.journal.recording(table.gateway.journal.records()[0].id)
    with pytest.raises(RecordingError, match="tokens with log probabilities"):
        await asyncio.to_thread(replay, masked(recording, table.gateway.journal.mask))


async def test_text_before_a_required_call_keeps_them(table: Any, judge: Judge) -> None:
    """The text is held back until the call, and its tokens with it."""
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    chunks = [*said("I ", "look.")[:-1], chunk({"tool_calls": [call]}), chunk({}, "tool_calls")]
    async with serving(table, reply(chunks)):
        body, _ = await both(table, judge, "chat", question("chat", tools=True, tool_choice="required"))
    assert logprobs_of(body, "chat") == [due("chat", "I ", "look.")]


async def test_a_repeated_prefill_keeps_the_tokens_of_the_rest(table: Any, judge: Judge) -> None:
    """llama.cpp repeats the beginning of the answer, and sends no tokens for it."""
    chunks = [chunk({"role": "assistant", "content": ""}), chunk({"content": "Once "}), *said("upon")[1:]]
    asked = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Once "}]
    async with serving(table, reply(chunks), profile="llamacpp"):
        body, _ = await both(table, judge, "chat", question("chat", messages=asked))
    assert body["choices"][0]["message"]["content"] == "upon"
    assert logprobs_of(body, "chat") == [due("chat", "upon")]


# --- the request ---


@pytest.mark.parametrize("fields", [{}, {"logprobs": False}, {"logprobs": None}])
async def test_top_logprobs_needs_logprobs(table: Any, fields: dict[str, Any]) -> None:
    table.play("say x")
    with pytest.raises(ToolwireError) as refused:
        await table.body(
            "chat", {"messages": [{"role": "user", "content": "Hi"}], "top_logprobs": 2, **fields}
        )
    failure = refused.value.failure
    assert failure.message == "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled."
    assert (failure.kind, failure.param, failure.code) == ("invalid_request", "top_logprobs", None)


async def test_a_response_has_them_only_if_they_are_included(table: Any, judge: Judge) -> None:
    async with serving(table, reply(said(*WORDS))) as upstream:
        body, report = await both(table, judge, "responses", {"input": "Hi", "top_logprobs": 3})
        assert (logprobs_of(body, "responses"), report) == ([[]], "top_logprobs=ignored")
        assert body["top_logprobs"] == 3
        assert "logprobs" not in upstream.requests[-1].body
        include = ["reasoning.encrypted_content", "message.output_text.logprobs"]
        body, report = await both(table, judge, "responses", question("responses", include=include))
        assert (logprobs_of(body, "responses"), report) == ([due("responses", *WORDS)], "include=ignored")


async def test_llamacpp_does_not_stream_them_with_tools(table: Any, judge: Judge) -> None:
    async with serving(table, reply(said(*WORDS)), profile="llamacpp", tools="native") as upstream:
        raw = await table.stream("chat", question("chat", tools=True))
        judge.stream(raw, "chat")
        assert upstream.requests[-1].body["stream"] is False
        assert logprobs_of(fold(raw, "chat"), "chat") == [due("chat", *WORDS)]
        await table.stream("chat", question("chat"))
        assert upstream.requests[-1].body["stream"] is True


async def test_a_server_that_does_not_read_them(table: Any, judge: Judge) -> None:
    async with serving(table, reply(said(*WORDS)), profile="lmstudio") as upstream:
        body, report = await both(table, judge, "chat", question("chat"))
        assert logprobs_of(body, "chat") == [None]
        assert report == "logprobs=ignored; top_logprobs=ignored"
        assert "logprobs" not in upstream.requests[-1].body

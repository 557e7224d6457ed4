"""One path: what a client accumulates from the stream equals the body, for every run and for real clients."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.core.errors import ToolwireError, error_object
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
from toolwire.core.ids import counting_ids
from toolwire.core.turn import Turn
from toolwire.wire.chat.encode import ChatBody, ChatEncoder
from toolwire.wire.responses.encode import ResponsesEncoder
from toolwire.wire.sse import EMPTY_LINE, SseEvent, SseReader

texts = st.text(st.characters(), max_size=4)
indexes = st.integers(0, 2)
runs: st.SearchStrategy[list[Event]] = st.lists(
    st.one_of(
        texts.map(Text),
        texts.map(Text),
        st.builds(Thought, texts, st.booleans()),
        texts.map(Refusal),
        st.builds(
            CallBegin,
            indexes,
            texts,
            st.one_of(st.none(), st.just("own")),
            st.sampled_from(["function", "custom"]),
        ),
        st.builds(CallArgs, indexes, texts),
        st.builds(CallArgs, indexes, texts),
        st.builds(CallEnd, indexes, st.sampled_from(["ok", "truncated"])),
        st.builds(Usage, st.integers(0, 9), st.integers(0, 9)),
        st.sampled_from(
            [Finish("stop"), Finish("length"), Finish("content_filter"), Failure("backend", "x")]
        ),
    ),
    max_size=16,
)


def batches(data: st.DataObject, events: list[Event]) -> list[list[Event]]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=4)))
    return [events[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(events)], strict=True)]


@given(runs)
def test_a_piece_that_is_said_is_what_it_is_when_it_is_fed(events: list[Event]) -> None:
    turn = Turn("responses", "m", ())
    for make in (
        lambda: ChatEncoder("m", id="c", created=1, ids=counting_ids()),
        lambda: ResponsesEncoder(turn, id="r", created=1, ids=counting_ids(), clock=lambda: 1.0),
    ):
        fed, said = make(), make()
        for event in events:
            assert (said.say(event.text) if isinstance(event, Text) else said.feed([event])) == fed.feed(
                [event]
            )
        assert said.finish() == fed.finish()


TEXTS = {"function": "arguments", "custom": "input"}


def chat_client(stream: bytes) -> dict[str, Any]:
    """Accumulates a chat stream: texts and arguments concatenated, id and name taken once."""
    reader = SseReader()
    frames = [data for data in reader.feed(stream) + reader.feed(EMPTY_LINE) if isinstance(data, bytes)]
    got: dict[str, Any] = {
        "content": None,
        "refusal": None,
        "reasoning_content": None,
        "calls": [],
        "done": False,
    }
    for data in frames:
        assert not got["done"] and "error" not in got
        if data == b"[DONE]":
            got["done"] = True
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            got["error"] = chunk
            continue
        if not chunk["choices"]:
            got["usage"] = chunk["usage"]
            continue
        [choice] = chunk["choices"]
        delta = choice["delta"]
        assert "reason" not in got, "nothing may follow the finish chunk"
        assert ("role" in delta) == ("role" not in got), "the role comes first and once"
        got.setdefault("role", delta.get("role"))
        for field in ("content", "refusal", "reasoning_content"):
            if delta.get(field):
                got[field] = (got[field] or "") + delta[field]
        if "function_call" in delta:
            held = got.setdefault("function_call", {"arguments": ""})
            assert ("name" in held) != ("name" in delta["function_call"]), "the name comes first and once"
            held.setdefault("name", delta["function_call"].get("name"))
            held["arguments"] += delta["function_call"]["arguments"]
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(got["calls"]):
                kind = call["type"]
                got["calls"].append({"id": call["id"], "type": kind, kind: {**call[kind], TEXTS[kind]: ""}})
            else:
                kind = got["calls"][-1]["type"]
                assert set(call) == {"index", kind} and call["index"] == len(got["calls"]) - 1
            got["calls"][-1][kind][TEXTS[kind]] += call[kind][TEXTS[kind]]
        if choice["finish_reason"]:
            got["reason"] = choice["finish_reason"]
    return got


@given(runs, st.booleans(), st.data())
def test_a_chat_body_is_what_the_client_accumulates(
    events: list[Event], legacy: bool, data: st.DataObject
) -> None:
    encoder = ChatEncoder("m", id="i", created=1, ids=counting_ids(), include_usage=True, legacy=legacy)
    fold = ChatBody("m", id="i", created=1, ids=counting_ids(), legacy=legacy)
    stream = b""
    for batch in batches(data, events):
        stream += encoder.feed(batch)
    fold.feed(events)
    got = chat_client(stream + encoder.finish())
    try:
        body = fold.body()
    except ToolwireError as failed:
        assert got["error"] == error_object(failed.failure) and not got["done"]
        return
    [choice] = body["choices"]
    message = choice["message"]
    assert got["done"] and got["reason"] == choice["finish_reason"]
    for field in ("content", "refusal", "reasoning_content"):
        assert (got[field] or "") == (message.get(field) or "")
    kept = message.get("tool_calls", [])
    assert got["calls"] == kept and got.get("function_call") == message.get("function_call")
    assert not (legacy and kept)
    assert got["usage"] == body.get("usage", got["usage"])


def responses_client(stream: bytes) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Accumulates a Responses stream: the items from their deltas alone, and the terminal response."""
    reader = SseReader()
    items: list[dict[str, Any]] = []
    terminal: dict[str, Any] = {}
    for number, event in enumerate(reader.feed(stream) + reader.feed(EMPTY_LINE)):
        assert isinstance(event, SseEvent) and not terminal
        data = json.loads(event.data)
        assert data["sequence_number"] == number
        stem, _, verb = event.name.removeprefix("response.").rpartition(".")
        if event.name == "response.output_item.added":
            assert data["output_index"] == len(items) and not any(item["open"] for item in items)
            items.append(
                {
                    "id": data["item"]["id"],
                    "type": data["item"]["type"],
                    "name": data["item"].get("name"),
                    "text": "",
                    "open": True,
                }
            )
        elif event.name == "response.output_item.done":
            items[-1]["open"] = False
            assert data["item"]["id"] == items[-1]["id"] and data["item"].get("status") != "in_progress"
        elif verb == "delta":
            assert (
                data["item_id"] == items[-1]["id"]
                and data["output_index"] == len(items) - 1
                and items[-1]["open"]
            )
            items[-1]["text"] += data["delta"]
        elif verb == "done" and "part" not in stem:
            whole = [data[field] for field in ("text", "refusal", "arguments", "input") if field in data]
            assert whole == [items[-1]["text"]]
        elif verb in ("completed", "failed", "incomplete"):
            terminal = data["response"]
            assert terminal["status"] == verb
    return items, terminal


def text_of(item: dict[str, Any]) -> str:
    for part in item.get("content") or item.get("summary") or ():
        return str(part.get("text", part.get("refusal")))
    return str(item.get("arguments", item.get("input")))


@given(runs, st.data())
def test_a_response_is_what_the_client_accumulates(events: list[Event], data: st.DataObject) -> None:
    encoder = ResponsesEncoder(Turn("responses", "m", ()), id="resp_1", created=1, ids=counting_ids())
    stream = b""
    for batch in batches(data, events):
        stream += encoder.feed(batch)
    items, terminal = responses_client(stream + encoder.finish())
    assert terminal == encoder.response()
    assert [(item["id"], item["type"], item["name"], item["text"]) for item in items] == [
        (item["id"], item["type"], item.get("name"), text_of(item)) for item in terminal["output"]
    ]
    assert not any(item["open"] for item in items)


# --- a real client ---

RUNS: dict[str, list[Event]] = {
    "text": [Text("Hel"), Text("lo né😀"), Usage(3, 4), Finish()],
    "text and calls": [
        Text("Look."),
        CallBegin(0, "f"),
        CallArgs(0, '{"x":'),
        CallArgs(0, "1}"),
        CallEnd(0),
        CallBegin(1, "g"),
        Finish(),
    ],
    "thoughts, text, call": [
        Thought("hm"),
        Thought("so", True),
        Text("a"),
        CallBegin(0, "f"),
        CallEnd(0),
        Text("b"),
        Finish(),
    ],
    "refusal": [Refusal("no"), Finish()],
}


def client(stream: bytes) -> openai.OpenAI:
    answer = httpx2.MockTransport(
        lambda request: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream)
    )
    return openai.OpenAI(api_key="k", base_url="http://test/v1", http_client=httpx2.Client(transport=answer))


@pytest.mark.parametrize("name", RUNS)
def test_the_openai_sdk_accumulates_a_chat_stream_into_the_body(name: str) -> None:
    encoder = ChatEncoder("m", id="i", created=1, ids=counting_ids(), include_usage=True)
    fold = ChatBody("m", id="i", created=1, ids=counting_ids())
    fold.feed(RUNS[name])
    with (
        client(encoder.feed(RUNS[name]) + encoder.finish("c")) as sdk,
        sdk.chat.completions.stream(model="m", messages=[]) as stream,
    ):
        message = stream.get_final_completion().choices[0].message
    body = fold.body()["choices"][0]["message"]
    assert (message.content or None, message.refusal or None) == (body["content"] or None, body["refusal"])
    calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    assert calls == [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in body.get("tool_calls", ())
    ]


@pytest.mark.parametrize("name", RUNS)
def test_the_openai_sdk_accumulates_a_responses_stream_into_the_response(name: str) -> None:
    encoder = ResponsesEncoder(Turn("responses", "m", ()), id="resp_1", created=1, ids=counting_ids())
    with (
        client(encoder.feed(RUNS[name]) + encoder.finish("c")) as sdk,
        sdk.responses.stream(model="m", input="x") as stream,
    ):
        done = []
        for event in stream:
            if event.type == "response.output_item.done":
                done.append(getattr(event.item, "id", None))
        final = stream.get_final_response()
    ids = [item["id"] for item in encoder.response()["output"]]
    assert done == ids and [getattr(item, "id", None) for item in final.output] == ids
    assert final.status == "completed"

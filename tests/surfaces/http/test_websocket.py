"""/v1/responses over WebSocket: what one connection does, refuses and survives."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode

from doubles.judges import Judge
from toolwire.gateway.records import Memory as _Memory
from toolwire.surfaces.http import exchange, socket_protocol, websocket
from toolwire.surfaces.http.websocket import MOST_WAITING

Body = dict[str, Any]
TOOLS = [
    {
        "type": "function",
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
LOOP = 'say Let me look.\ncall get_weather {"city": "Paris"}\n---\nsay It is {result}.\nusage 9 5'


def text_of(events: list[Body]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def as_stream(events: list[Body]) -> bytes:
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def problem(events: list[Body]) -> tuple[int, str]:
    assert [event["type"] for event in events] == ["error"], events
    return events[0]["status"], events[0]["error"]["code"]


# --- turns ---


@pytest.mark.parametrize("tools", ["native", "emulated", "parked"])
@pytest.mark.parametrize("store", [True, False])
async def test_a_tool_loop_over_one_connection_sends_only_what_is_new(
    place: Callable[..., Any], judge: Judge, tools: str, store: bool
) -> None:
    async with place(LOOP, tools=tools) as it, it.socket() as client:
        first = await client.turn("Paris?", tools=TOOLS, store=store)
        judge.stream(as_stream(first), "responses")
        call = first[-1]["response"]["output"][-1]
        assert (call["type"], json.loads(call["arguments"])) == ("function_call", {"city": "Paris"})
        result = [{"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}]
        second = await client.turn(
            result, tools=TOOLS, store=store, previous_response_id=first[-1]["response"]["id"]
        )
        judge.stream(as_stream(second), "responses")
        assert text_of(second) == "It is sunny."
        assert second[-1]["response"]["previous_response_id"] == first[-1]["response"]["id"]
        assert [event["sequence_number"] for event in second] == list(range(len(second)))


async def test_the_events_are_those_of_the_post_route(place: Callable[..., Any]) -> None:
    async with place("say Hello\nusage 3 2", open_responses=True) as it, it.socket() as client:
        over_socket = await client.turn("Hi")
        body = {"model": "m", "input": "Hi", "stream": True}
        async with it.client.post(f"http://127.0.0.1:{it.port}/v1/responses", json=body) as response:
            frames = [
                line.removeprefix(b"data: ") async for line in response.content if line.startswith(b"data: ")
            ]
        over_http = [json.loads(frame) for frame in frames]
        assert [event["type"] for event in over_socket] == [event["type"] for event in over_http]
        ids = ("id", "created_at", "completed_at", "item_id")

        def plain(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: plain(one) for key, one in value.items() if key not in ids}
            return [plain(one) for one in value] if isinstance(value, list) else value

        assert plain(over_socket) == plain(over_http)


async def test_a_stored_response_is_continued_by_any_connection_and_by_post(
    place: Callable[..., Any],
) -> None:
    async with place("say One\n---\nsay Two\n---\nsay Three") as it:
        async with it.socket() as client:
            first = (await client.turn("a"))[-1]["response"]["id"]
        async with it.socket("/responses") as client:
            second = await client.turn("b", previous_response_id=first)
            assert text_of(second) == "Two"
        status, third = await it.post(
            "/v1/responses",
            {"model": "m", "input": "c", "previous_response_id": second[-1]["response"]["id"]},
        )
        assert (status, third["output"][0]["content"][0]["text"]) == (200, "Three")


async def test_only_the_last_response_is_remembered_where_nothing_is_stored(
    place: Callable[..., Any],
) -> None:
    async with place("say One\n---\nsay Two") as it, it.socket() as client:
        first = (await client.turn("a", store=False))[-1]["response"]["id"]
        second = await client.turn("b", store=False, previous_response_id=first)
        assert text_of(second) == "Two" and len(it.backend.seen[-1].items) == 3
        assert problem(await client.turn("c", store=False, previous_response_id=first)) == (
            400,
            "previous_response_not_found",
        )
        status, body = await it.post(
            "/v1/responses",
            {"model": "m", "input": "c", "previous_response_id": second[-1]["response"]["id"]},
        )
        assert (status, body["error"]["code"]) == (400, "previous_response_not_found")  # nothing was stored


@pytest.mark.parametrize("generate", [True, False])
async def test_a_stored_response_after_an_unstored_one_can_be_continued_anywhere(
    place: Callable[..., Any], generate: bool
) -> None:
    async with place("say One\n---\nsay Two\n---\nsay Three") as it:
        async with it.socket() as client:
            first = (await client.turn("a", store=False, generate=generate))[-1]["response"]["id"]
            second = (await client.turn("b", previous_response_id=first))[-1]["response"]
            third = (await client.turn("c", previous_response_id=second["id"]))[-1]["response"]
            here = it.backend.seen[-1].items
            assert second["previous_response_id"] == first
        status, _ = await it.post(
            "/v1/responses", {"model": "m", "input": "c", "previous_response_id": second["id"]}
        )
        assert status == 200 and it.backend.seen[-1].items == here
        status, _ = await it.post(
            "/v1/responses", {"model": "m", "input": "d", "previous_response_id": third["id"]}
        )
        assert status == 200 and it.backend.seen[-1].items[: len(here)] == here  # nothing is repeated


async def test_what_has_grown_too_large_is_not_remembered(
    place: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "Memory", lambda: _Memory(100))
    async with place("say One") as it, it.socket() as client:
        first = (await client.turn("a" * 200, store=False))[-1]["response"]["id"]
        assert problem(await client.turn("b", store=False, previous_response_id=first)) == (
            400,
            "previous_response_not_found",
        )


async def test_a_response_that_generates_nothing_prepares_the_next(
    place: Callable[..., Any], judge: Judge
) -> None:
    async with place("say Here") as it, it.socket() as client:
        warm = await client.turn("The setting.", store=False, generate=False)
        judge.stream(as_stream(warm), "responses")
        assert warm[-1]["response"]["output"] == [] and not it.backend.seen
        assert (
            text_of(await client.turn("Now.", store=False, previous_response_id=warm[-1]["response"]["id"]))
            == "Here"
        )
        assert [item.parts[0].text for item in it.backend.seen[-1].items] == ["The setting.", "Now."]


async def test_messages_that_come_early_are_answered_in_their_order(place: Callable[..., Any]) -> None:
    async with place("chunk 1\nsay {user}") as it, it.socket() as client:
        for number in range(4):
            await client.send({"type": "response.create", "model": "m", "input": f"number {number}"})
        assert [text_of(await client.answer()) for _ in range(4)] == [
            f"number {number}" for number in range(4)
        ]


async def test_a_request_over_the_queue_limit_is_refused_after_the_waiting_ones(
    place: Callable[..., Any],
) -> None:
    async with place("pause 300ms\nsay {user}") as it, it.socket() as client:
        for number in range(MOST_WAITING + 3):
            lane = {"stream_id": "late"} if number > MOST_WAITING else {}
            await client.send(
                {"type": "response.create", "model": "m", "input": str(number), "store": False, **lane}
            )
        answers = [await client.answer() for _ in range(MOST_WAITING + 3)]
        assert [text_of(answer) for answer in answers[: MOST_WAITING + 1]] == [
            str(number) for number in range(MOST_WAITING + 1)
        ]
        assert [(problem(answer)[0], answer[0]["stream_id"]) for answer in answers[MOST_WAITING + 1 :]] == [
            (429, "late")
        ] * 2
        assert text_of(await client.turn("after")) == "after"


async def test_lanes_keep_their_conversations_apart_and_can_be_forked(place: Callable[..., Any]) -> None:
    async with place("say {user}\n---\nsay again {user}") as it, it.socket() as client:
        one = await client.turn("a", store=False, stream_id="one")
        two = await client.turn("b", store=False, stream_id="two")
        assert {event["stream_id"] for event in one} == {"one"} and {event["stream_id"] for event in two} == {
            "two"
        }
        more = await client.turn(
            "c", store=False, stream_id="one", previous_response_id=one[-1]["response"]["id"]
        )
        assert text_of(more) == "again c"
        fork = await client.turn(
            "d", store=False, stream_id="three", previous_response_id=two[-1]["response"]["id"]
        )
        assert text_of(fork) == "again d" and fork[-1]["stream_id"] == "three"
        gone = await client.turn(
            "e", store=False, stream_id="one", previous_response_id=one[-1]["response"]["id"]
        )
        assert problem(gone) == (400, "previous_response_not_found") and gone[0]["stream_id"] == "one"
        for number in range(websocket.MOST_LANES - 3):
            await client.turn("x", generate=False, stream_id=f"lane {number}")
        assert problem(await client.turn("x", stream_id="one too many")) == (
            400,
            "websocket_stream_limit_reached",
        )


async def test_two_connections_do_not_wait_for_each_other(place: Callable[..., Any]) -> None:
    async with place("say {user}\n---\nsay again {user}") as it, it.socket() as one, it.socket() as other:
        first, second = await asyncio.gather(one.turn("a", store=False), other.turn("b", store=False))
        assert (text_of(first), text_of(second)) == ("a", "b")
        stolen = await other.turn("c", store=False, previous_response_id=first[-1]["response"]["id"])
        assert problem(stolen) == (400, "previous_response_not_found")


class Elsewhere:
    """Other nodes, which are asked for the response and do not have it."""

    def __init__(self) -> None:
        self.asked: list[Body] = []
        self.nodes = self

    async def answer(self, api: str, exchange: Any, raw: bytes, key_id: str) -> None:
        assert (exchange.scope["type"], exchange.scope["method"]) == ("http", "POST")
        assert not [
            name
            for name, _ in exchange.scope["headers"]
            if name.startswith(b"sec-websocket") or name == b"upgrade"
        ]
        self.asked.append(json.loads(raw))

    async def leave(self) -> None: ...

    async def close(self) -> None: ...


async def test_another_node_is_asked_for_what_it_could_know_and_for_nothing_else(
    place: Callable[..., Any],
) -> None:
    async with place("say One\n---\nsay Two\n---\nsay Three") as it, it.socket() as client:
        it.app.forwarding = others = Elsewhere()
        first = await client.turn("a")
        assert [(body["input"], body["stream"], "type" in body) for body in others.asked] == [
            ("a", True, False)
        ]
        await client.turn("b", store=False)  # no other node could continue it
        await client.turn("c", previous_response_id=first[-1]["response"]["id"])
        assert [body["input"] for body in others.asked] == ["a", "c"]


# --- invalid messages ---

WRONG: dict[str, tuple[Any, int, str]] = {
    "no JSON": ("nonsense", 400, "invalid_json"),
    "a list": ([], 400, "invalid_type"),
    "too deep": (
        '{"type":"response.create","model":"m","input":' + "[" * 300 + "]" * 300 + "}",
        400,
        "invalid_json",
    ),
    "deeper than any stack": ('{"type":' + "[" * 100_000, 400, "invalid_json"),
    "no type": ({"model": "m", "input": "a"}, 400, "missing_required_parameter"),
    "another type": ({"type": "response.cancel"}, 400, "invalid_value"),
    "a type that is no text": ({"type": ["response.create"]}, 400, "invalid_value"),
    "binary": (b'{"type":"response.create","model":"m","input":"a"}', 400, "invalid_request_error"),
    "no model": ({"type": "response.create", "input": "a"}, 400, "missing_required_parameter"),
    "an unknown model": ({"type": "response.create", "model": "x", "input": "a"}, 404, "model_not_found"),
    "in the background": (
        {"type": "response.create", "model": "m", "input": "a", "background": True},
        400,
        "unsupported_parameter",
    ),
    "a lane without a name": (
        {"type": "response.create", "model": "m", "input": "a", "stream_id": ""},
        400,
        "invalid_value",
    ),
    "a lone surrogate": ('{"type":"response.create","model":"m","input":"\\ud800"}', 400, "invalid_json"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_message_gets_one_error_and_the_connection_lives_on(
    place: Callable[..., Any], name: str
) -> None:
    message, status, code = WRONG[name]
    async with place("say fine") as it, it.socket() as client:
        await client.send(message)
        error = await client.event()
        assert (error["type"], error["status"], error["error"]["code"]) == ("error", status, code)
        assert error["error"]["message"] and "param" in error["error"]
        assert text_of(await client.turn()) == "fine"


async def test_what_only_http_needs_is_taken_and_means_nothing(place: Callable[..., Any]) -> None:
    async with place("say fine") as it, it.socket() as client:
        assert (
            text_of(
                await client.turn(
                    stream=False, background=False, stream_options={"include_obfuscation": False}
                )
            )
            == "fine"
        )


async def test_a_failing_model_is_reported_in_band_and_its_response_forgotten(
    place: Callable[..., Any],
) -> None:
    async with (
        place("say One\n---\nsay half\nfail backend It broke.\n---\nsay never") as it,
        it.socket() as client,
    ):
        first = (await client.turn("a", store=False))[-1]["response"]["id"]
        failed = await client.turn("b", store=False, previous_response_id=first)
        assert (
            failed[-1]["type"] == "response.failed"
            and failed[-1]["response"]["error"]["message"] == "It broke."
        )
        assert problem(await client.turn("c", store=False, previous_response_id=first)) == (
            400,
            "previous_response_not_found",
        )


async def test_a_fault_of_ours_is_an_error_event_without_a_traceback(
    place: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with place("say fine") as it, it.socket() as client:

        async def broken(*_: Any) -> Any:
            raise RuntimeError("secret detail")

        it.gateway.respond, whole = broken, it.gateway.respond
        assert problem(answer := await client.turn()) == (500, "server_error") and "secret" not in json.dumps(
            answer
        )
        it.gateway.respond = whole
        assert text_of(await client.turn()) == "fine"


# --- authentication ---


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"X-Forwarded-For": "203.0.113.9"}, 403),
    ],
)
async def test_another_site_cannot_open_a_connection(
    place: Callable[..., Any], headers: dict[str, str], status: int
) -> None:
    async with place() as it:
        host = headers.pop("Host", "localhost")
        head = (
            f"GET /v1/responses HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\n"
        )
        head += "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in headers.items()
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        writer.write(head.encode() + b"\r\n")
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        assert (
            answer.startswith(b"HTTP/1.1 %d" % status)
            and b"application/json" in answer
            and b'{"error":' in answer
        )


@pytest.mark.parametrize("origin", ["app://obsidian.md", "http://localhost:3000"])
async def test_an_allowed_origin_may(place: Callable[..., Any], origin: str) -> None:
    async with place("say fine") as it, it.socket(origin=origin) as client:
        assert text_of(await client.turn()) == "fine"


async def test_no_node_forwards_a_handshake_and_a_forwarded_one_is_refused(place: Callable[..., Any]) -> None:
    async with place(keys=("right",)) as it:
        headers = {"Authorization": "Bearer right", "x-toolwire-hop": "forged"}
        with pytest.raises(InvalidStatus) as refused:
            async with it.socket(additional_headers=headers):
                pass
        assert refused.value.response.status_code == 403


async def test_a_key_opens_a_connection_and_none_does_not(place: Callable[..., Any]) -> None:
    async with place("say fine", keys=("right",)) as it:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(InvalidStatus) as refused:
                async with it.socket(additional_headers=headers):
                    pass
            assert refused.value.response.status_code == 401 and b"invalid_api_key" in (
                refused.value.response.body or b""
            )
        async with it.socket(additional_headers={"Authorization": "Bearer right"}) as client:
            assert text_of(await client.turn()) == "fine"


async def test_a_keys_limit_holds_for_messages_as_for_posts(place: Callable[..., Any]) -> None:
    async with place("say fine", keys=("right",), requests_per_minute=2) as it:
        async with it.socket(additional_headers={"Authorization": "Bearer right"}) as client:
            assert [text_of(await client.turn()) for _ in range(2)] == ["fine", "fine"]
            refused = await client.turn()
            assert (
                problem(refused) == (429, "rate_limit_exceeded")
                and int(refused[0]["error"]["headers"]["retry-after"]) >= 1
            )


async def test_the_connections_of_a_key_are_limited(
    place: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "MOST_PER_KEY", 1)
    async with place("say fine") as it:
        async with it.socket():
            with pytest.raises(InvalidStatus) as refused:
                async with it.socket():
                    pass
            assert refused.value.response.status_code == 429
        for _ in range(100):  # until the server has seen the end of the first one
            try:
                async with it.socket() as client:
                    assert text_of(await client.turn()) == "fine"
                    return
            except InvalidStatus:
                await asyncio.sleep(0.01)
        pytest.fail("the place of a connection that ended was not given back")


async def test_a_turn_is_logged_and_counted_as_a_post_is(
    place: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "toolwire.access")
    async with place("say fine") as it:
        async with it.socket() as client:
            await client.turn()
        for _ in range(200):
            lines = [getattr(record, "fields", {}) for record in caplog.records]
            if len(lines) == 2:
                break
            await asyncio.sleep(0.01)
        turn, connection = lines
        assert (turn["event"], turn["api"], turn["status"], turn["stream"]) == (
            "turn",
            "responses",
            200,
            True,
        )
        assert (connection["event"], connection["method"], connection["path"], connection["status"]) == (
            "request",
            "GET",
            "/v1/responses",
            101,
        )
        async with it.client.get(f"http://127.0.0.1:{it.port}/metrics") as response:
            page = await response.text()
        assert 'toolwire_requests_total{api="responses",model="m",status="200",strategy="none"} 1.0' in page


# --- ends of connections ---


async def test_a_client_that_leaves_cancels_its_run(place: Callable[..., Any]) -> None:
    async with place("say begun\nhang") as it:
        ended: list[Any] = []
        it.gateway.observers.append(ended.append)
        async with it.socket() as client:
            await client.send({"type": "response.create", "model": "m", "input": "a"})
            assert (await client.event())["type"] == "response.created"
        for _ in range(500):
            if ended:
                break
            await asyncio.sleep(0.01)
        assert [summary.cancelled for summary in ended] == [True]


async def test_a_connection_that_is_cut_cancels_its_run(place: Callable[..., Any]) -> None:
    async with place("say begun\nhang") as it:
        ended: list[Any] = []
        it.gateway.observers.append(ended.append)
        async with it.socket() as client:
            await client.send({"type": "response.create", "model": "m", "input": "a"})
            await client.event()
            client.connection.transport.abort()
            for _ in range(500):
                if ended:
                    break
                await asyncio.sleep(0.01)
            assert [summary.cancelled for summary in ended] == [True]


async def test_a_connection_ends_with_its_time_but_not_within_a_response(
    place: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "LIFETIME_S", 0.3)
    async with place("pause 600ms\nsay late") as it, it.socket() as client:
        assert text_of(await client.turn()) == "late"
        assert problem([await client.event()]) == (400, "websocket_connection_limit_reached")
        assert (await client.closed())[0] == 1001


async def test_a_connection_without_a_message_is_closed(
    place: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "IDLE_S", 0.1)
    async with place() as it, it.socket() as client:
        code, reason = await client.closed()
        assert code == 1001 and "no message" in (reason or "")


async def test_a_server_that_drains_ends_the_answer_first(place: Callable[..., Any]) -> None:
    async with place("say begun\npause 500ms\nsay done") as it, it.socket() as busy, it.socket() as idle:
        await busy.send({"type": "response.create", "model": "m", "input": "a"})
        assert (await busy.event())["type"] == "response.created"
        await busy.send({"type": "response.create", "model": "m", "input": "b", "stream_id": "other"})
        await busy.send({"type": "nonsense"})
        await idle.turn(generate=False)
        await asyncio.sleep(0)
        draining = asyncio.ensure_future(it.server.shutdown())
        assert (await idle.closed())[0] == 1012
        assert text_of(await busy.answer()) == "begundone"
        refused = [await busy.answer() for _ in range(2)]
        assert [problem(one) for one in refused] == [(503, "overloaded")] * 2
        assert [one[0].get("stream_id") for one in refused] == ["other", None]
        assert (await busy.closed())[0] == 1012
        await draining


# --- hostile clients ---


async def test_a_message_above_the_body_limit_ends_the_connection(place: Callable[..., Any]) -> None:
    async with place("say fine", max_body_mb=0.1) as it, it.socket() as client:
        assert text_of(await client.turn("a" * 60_000)) == "fine"
        with pytest.raises(ConnectionClosed):
            await client.turn("a" * 200_000)
        assert (await client.closed())[0] == 1009


async def test_text_that_is_not_utf_8_ends_the_connection(place: Callable[..., Any]) -> None:
    async with place("say fine") as it, it.socket() as client:
        await client.connection.send(b"\xff\xfe", text=True)
        assert (await client.closed())[0] == 1007


async def test_fragments_are_one_message_and_cost_what_they_hold(place: Callable[..., Any]) -> None:
    async with place("say fine", max_body_mb=1) as it, it.socket() as client:
        message = json.dumps({"type": "response.create", "model": "m", "input": "x" * 5000})
        await client.connection.send(iter(message))  # one frame per character
        assert text_of(await client.answer()) == "fine"
        protocol = client.connection.protocol
        protocol.send_text(b"{", fin=False)
        for _ in range(socket_protocol.MOST_EMPTY // 2):
            protocol.send_continuation(b"", fin=False)
        protocol.send_continuation(message[1:].encode(), fin=True)
        client.connection.transport.write(b"".join(protocol.data_to_send()))
        assert text_of(await client.answer()) == "fine"


async def test_a_message_that_stops_arriving_ends_the_connection(
    place: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_protocol, "BODY_IDLE_S", 0.1)
    async with place("say fine") as it, it.socket() as client:
        client.connection.transport.write(Frame(Opcode.TEXT, b"x" * 100).serialize(mask=True)[:-10])
        assert (await client.closed())[0] == 1008


async def test_messages_take_room_like_bodies_and_give_it_back(
    place: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "MOST_ARRIVING", 0)
    async with place("say fine", max_body_mb=0.25) as it:  # room for four of these
        before = it.app.room.left
        half = Frame(Opcode.TEXT, b"x" * 260_000).serialize(mask=True)[:-10]
        async with (
            it.socket() as a,
            it.socket() as b,
            it.socket() as c,
            it.socket() as d,
            it.socket() as last,
        ):
            clients = [a, b, c, d]
            for client in clients:
                client.connection.transport.write(half)
            while it.app.room.left > before - 4 * 250_000:
                await asyncio.sleep(0.01)
            last.connection.transport.write(half)
            assert (await last.closed())[0] == 1013
            assert text_of(await _fresh(it)) == "fine"
            for client in clients:
                client.connection.transport.abort()
        while it.app.room.left != before:
            await asyncio.sleep(0.01)


async def _fresh(it: Any) -> list[Body]:
    async with it.socket() as client:
        answer: list[Body] = await client.turn()
        return answer


async def test_a_client_that_reads_nothing_is_cut_off(
    place: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "toolwire.http")
    async with place("say fine", slow_reader_s=1) as it:
        raw = socket.create_connection(("127.0.0.1", it.port))
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = (
            b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
            b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        )
        raw.sendall(head + b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
        loop = asyncio.get_running_loop()
        assert b" 101 " in await loop.run_in_executor(None, raw.recv, 4096)
        message = json.dumps(
            {
                "type": "response.create",
                "model": "m",
                "generate": False,
                "input": "y" * 200_000,
                "instructions": "z" * 3_000_000,
            }
        )
        for _ in range(3):  # each answer repeats its instructions three times
            await loop.run_in_executor(
                None, raw.sendall, Frame(Opcode.TEXT, message.encode()).serialize(mask=True)
            )
        async with asyncio.timeout(30):
            while it.server.server_state.connections:
                await asyncio.sleep(0.05)
        raw.close()
        assert "it read nothing for 1 s" in caplog.text


async def test_a_handshake_pipelined_after_another_request_is_not_accepted(place: Callable[..., Any]) -> None:
    async with place("pause 200ms\nsay fine") as it:
        body = b'{"model":"m","input":"a"}'
        post = (
            b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        shake = (
            b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
            b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        writer.write(post + shake + b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
        answer = await asyncio.wait_for(reader.readuntil(b"method_not_supported"), 20)
        writer.close()
        assert (
            answer.startswith(b"HTTP/1.1 200") and b"HTTP/1.1 405" in answer and b"HTTP/1.1 101" not in answer
        )


async def test_another_path_speaks_no_websocket(place: Callable[..., Any]) -> None:
    async with place() as it:
        for path, status in (("/v1/chat/completions", 405), ("/v1/nothing", 404), ("/healthz", 200)):
            with pytest.raises(InvalidStatus) as refused:
                async with it.socket(path):
                    pass
            assert refused.value.response.status_code == status


# --- the serving process ---


def served(tmp_path: Path, script: str) -> tuple[subprocess.Popen[str], str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TOOLWIRE_", "PROXY_"))
    }
    environment |= {
        "HOME": str(tmp_path),
        "TOOLWIRE_MODELS": json.dumps({"m": {"backend": "scripted", "script": script}}),
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "toolwire", "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert child.stdout is not None
    return child, child.stdout.readline().split()[2]


@pytest.mark.filterwarnings(
    "ignore:connect\\(\\) must be used as a context manager:DeprecationWarning"
)  # as the SDK does it
def test_the_official_sdk_loops_over_one_connection(tmp_path: Path) -> None:
    from openai import OpenAI

    child, url = served(tmp_path, LOOP)
    try:
        with OpenAI(base_url=url, api_key="x").responses.connect(max_retries=0) as opened:
            connection: Any = opened
            connection.send(
                {"type": "response.create", "model": "m", "input": "Paris?", "tools": TOOLS, "store": False}
            )
            done: Any = _until(connection, "response.completed")
            call = done.response.output[-1]
            assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Paris"}
            result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
            connection.send(
                {
                    "type": "response.create",
                    "model": "m",
                    "input": [result],
                    "store": False,
                    "previous_response_id": done.response.id,
                }
            )
            assert _until(connection, "response.completed").response.output_text == "It is sunny."
            connection.send(
                {"type": "response.create", "model": "m", "input": "x", "previous_response_id": "resp_none"}
            )
            error: Any = connection.recv()
            assert (error.type, error.status, error.error.code) == (
                "error",
                400,
                "previous_response_not_found",
            )
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.communicate()


def _until(connection: Any, kind: str) -> Any:
    while (event := connection.recv()).type != kind:
        assert event.type != "error", event
    return event


def test_a_server_that_is_killed_leaves_stored_turns_whole_and_unfinished_ones_nowhere(
    tmp_path: Path,
) -> None:
    from websockets.sync.client import connect

    def answer(client: Any) -> Body:
        while (event := json.loads(client.recv(timeout=20)))["type"] not in ("response.completed", "error"):
            pass
        return dict(event)

    script = "say One\n---\nsay half\nhang"
    child, url = served(tmp_path, script)
    try:
        with connect(url.replace("http", "ws") + "/responses") as client:
            client.send(json.dumps({"type": "response.create", "model": "m", "input": "a"}))
            first = answer(client)["response"]["id"]
            client.send(
                json.dumps(
                    {"type": "response.create", "model": "m", "input": "b", "previous_response_id": first}
                )
            )
            begun = json.loads(client.recv(timeout=20))["response"]["id"]
            child.kill()
            child.wait(20)
            with pytest.raises(ConnectionClosed):
                while True:
                    client.recv(timeout=20)
    finally:
        child.kill()
        child.communicate()
    child, url = served(tmp_path, "say One\n---\nsay Two")
    try:
        with connect(url.replace("http", "ws") + "/responses") as client:
            client.send(
                json.dumps(
                    {"type": "response.create", "model": "m", "input": "b", "previous_response_id": first}
                )
            )
            assert answer(client)["response"]["output"][0]["content"][0]["text"] == "Two"
            client.send(
                json.dumps(
                    {"type": "response.create", "model": "m", "input": "b", "previous_response_id": begun}
                )
            )
            assert answer(client)["error"]["code"] == "previous_response_not_found"
    finally:
        child.kill()
        child.communicate()


def test_a_server_that_starts_does_not_load_what_only_websockets_need() -> None:
    program = (
        "import sys, toolwire.surfaces.http.server as s; print([m for m in sys.modules if m.split('.')[0] "
        "== 'websockets'])"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )

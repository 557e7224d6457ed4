"""JSON-RPC without I/O: the same messages however the bytes are cut, and nothing that Codex could write is fatal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.backends.codex.protocol import Fault, Notification, Response, RpcPeer, ServerRequest

_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8), lambda v: st.lists(v, max_size=3)
)
_lines = st.one_of(
    st.builds(
        lambda id, result: json.dumps({"id": id, "result": result}).encode(), st.integers(0, 99), _values
    ),
    st.builds(
        lambda method, params: json.dumps({"method": method, "params": params, "emittedAtMs": 1}).encode(),
        st.text(max_size=9),
        _values,
    ),
    st.builds(
        lambda id, params: json.dumps({"id": id, "method": "ask", "params": params}).encode(),
        st.integers(0, 9) | st.text(max_size=4),
        _values,
    ),
    st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"")),
    st.sampled_from(
        [b"", b"{", b"[]", b"{}", b'{"id":null}', b'{"method":7}', b"\xff\xfe", b'{"error":{}}', b"x" * 200]
    ),
)


@given(st.lists(_lines, max_size=8), st.lists(st.integers(1, 40), max_size=30))
def test_any_cut_of_the_bytes_gives_the_same_messages(lines: list[bytes], cuts: list[int]) -> None:
    data = b"\n".join(lines) + b"\n"
    whole, cut = RpcPeer(line_limit=150), RpcPeer(line_limit=150)
    expected = whole.feed(data)
    got, place = [], 0
    for size in cuts:
        got += cut.feed(data[place : place + size])
        place += size
    got += cut.feed(data[place:])
    assert got == expected


def test_lines_become_responses_requests_and_notifications() -> None:
    peer = RpcPeer()
    got = peer.feed(
        b'{"id":1,"result":{"a":[1]}}\n{"id":2,"error":{"code":-32001,"message":"busy"}}\n'
        b'{"method":"item/tool/call","id":0,"params":{"x":1}}\n{"method":"turn/started","params":{"y":2},"emittedAtMs":5}\n'
    )
    assert got == [
        Response(1, b'{"a":[1]}'),
        Response(2, b"null", Fault(-32001, "busy")),
        ServerRequest(0, "item/tool/call", b'{"x":1}'),
        Notification("turn/started", b'{"y":2}'),
    ]


@pytest.mark.parametrize("line", [b"hello", b"[1]", b"7", b"{}", b'{"id":{}}', b"\xff", b"[" * 5000])
def test_a_line_that_is_no_message_is_skipped_and_the_next_one_is_read(line: bytes) -> None:
    peer = RpcPeer()
    assert peer.feed(line + b'\n{"id":1,"result":2}\n') == [Response(1, b"2")]


def test_a_line_beyond_the_limit_is_not_kept_and_the_next_one_is_read() -> None:
    peer = RpcPeer(line_limit=100)
    for _ in range(50):
        assert peer.feed(b"x" * 60) == []
    assert peer.feed(b'\n{"id":1,"result":2}\n') == [Response(1, b"2")]


def test_what_is_sent_has_no_jsonrpc_field_and_fresh_ids() -> None:
    peer = RpcPeer()
    first, line = peer.request("thread/start", {"model": "m"})
    second, _ = peer.request("thread/start", {})
    assert json.loads(line) == {"method": "thread/start", "id": first, "params": {"model": "m"}}
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert second != first
    assert json.loads(peer.reply(0, {"ok": 1})) == {"id": 0, "result": {"ok": 1}}
    assert json.loads(peer.refuse("a", -32601, "no")) == {
        "id": "a",
        "error": {"code": -32601, "message": "no"},
    }
    assert json.loads(peer.notify("initialized")) == {"method": "initialized"}

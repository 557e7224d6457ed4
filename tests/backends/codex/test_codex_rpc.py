"""JSON-RPC without I/O: splits of the bytes do not matter, and no output of Codex is fatal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.backends.agents.processes import Lines
from toolwire.backends.codex.protocol import Fault, RpcMessage, read_message
from toolwire.backends.codex.protocol import line as encoded

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


def read(lines: Lines, data: bytes) -> list[RpcMessage]:
    return [message for message in map(read_message, lines.feed(data)) if message is not None]


@given(st.lists(_lines, max_size=8), st.lists(st.integers(1, 40), max_size=30))
def test_any_cut_of_the_bytes_gives_the_same_messages(lines: list[bytes], cuts: list[int]) -> None:
    data = b"\n".join(lines) + b"\n"
    expected = read(Lines(150), data)
    cut, got, start = Lines(150), [], 0
    for size in cuts:
        got += read(cut, data[start : start + size])
        start += size
    got += read(cut, data[start:])
    assert list(map(shown, got)) == list(map(shown, expected))


def shown(message: RpcMessage) -> tuple[Any, ...]:
    return message.id, message.method, bytes(message.params), bytes(message.result), message.fault


def test_lines_become_responses_requests_and_notifications() -> None:
    got = read(
        Lines(),
        b'{"id":1,"result":{"a":[1]}}\n{"id":2,"error":{"code":-32001,"message":"busy"}}\n'
        b'{"method":"item/tool/call","id":0,"params":{"x":1}}\n'
        b'{"method":"turn/started","params":{"y":2},"emittedAtMs":5}\n',
    )
    assert list(map(shown, got)) == [
        (1, "", b"null", b'{"a":[1]}', None),
        (2, "", b"null", b"null", Fault(-32001, "busy")),
        (0, "item/tool/call", b'{"x":1}', b"null", None),
        (None, "turn/started", b'{"y":2}', b"null", None),
    ]


@pytest.mark.parametrize("line", [b"hello", b"[1]", b"7", b"{}", b'{"id":{}}', b"\xff", b"[" * 5000])
def test_a_line_that_is_no_message_is_skipped_and_the_next_one_is_read(line: bytes) -> None:
    (message,) = read(Lines(), line + b'\n{"id":1,"result":2}\n')
    assert (message.id, bytes(message.result)) == (1, b"2")


def test_a_line_beyond_the_limit_is_not_kept_and_the_next_one_is_read() -> None:
    lines = Lines(100)
    for _ in range(50):
        assert read(lines, b"x" * 60) == []
    (message,) = read(lines, b'\n{"id":1,"result":2}\n')
    assert (message.id, bytes(message.result)) == (1, b"2")


def test_a_sent_message_is_one_line_without_a_jsonrpc_field() -> None:
    sent = encoded(method="thread/start", id=1, params={"model": "m\n"})
    assert json.loads(sent) == {"method": "thread/start", "id": 1, "params": {"model": "m\n"}}
    assert sent.endswith(b"\n") and sent.count(b"\n") == 1

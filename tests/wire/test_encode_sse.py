"""Server-sent events: frames are always valid, and the reader does not depend on how bytes are cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.core.errors import ToolwireError
from toolwire.wire.sse import (
    EMPTY_LINE,
    SseEvent,
    SseReader,
    comment_frame,
    data_frame,
    encode,
    joined,
    scrub,
)


def read(*blocks: bytes, limit: int = 1 << 20) -> list[bytes | SseEvent]:
    reader = SseReader(limit)
    events: list[bytes | SseEvent] = []
    for block in blocks:
        events += reader.feed(block)
    return events + reader.feed(EMPTY_LINE)


CASES: list[tuple[str, bytes, list[bytes | SseEvent]]] = [
    ("data alone", b'data: {"a":1}\n\ndata: [DONE]\n\n', [b'{"a":1}', b"[DONE]"]),
    ("only the first space is not data", b"data:  x\n\ndata:y\n\n", [b" x", b"y"]),
    ("lines end in CR LF", b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    ("lines end in CR", b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    ("data of several lines", b"data: a\ndata: b\n\n", [b"a\nb"]),
    ("a name", b"event: ping\ndata: 1\n\ndata: 2\n\n", [SseEvent("ping", b"1"), b"2"]),
    ("a name without data is no event", b"event: ping\n\ndata: 2\n\n", [b"2"]),
    ("comments are skipped", b": keep-alive\n\n:\n\ndata: a\n: between\ndata: b\n\n", [b"a\nb"]),
    ("ids and retry times are skipped", b"id: 7\nretry: 10\ndata: a\n\n", [b"a"]),
    ("a field without a colon", b"data\n\n", [b""]),
    ("an unknown field", b"database: x\ndata: a\n\n", [b"a"]),
    ("many blank lines", b"\n\n\ndata: a\n\n\n\n\ndata: b\n\n\n", [b"a", b"b"]),
    ("a byte order mark", b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
    ("a last event that is not closed", b"data: a\n\ndata: b", [b"a", b"b"]),
    ("a last event that lacks its blank line", b"event: e\ndata: b\n", [SseEvent("e", b"b")]),
    ("characters of several bytes", "data: né😀\n\n".encode(), ["né😀".encode()]),
    ("nothing", b"", []),
    ("half a byte order mark", b"\xef\xbb", []),
]


@pytest.mark.parametrize(
    ("stream", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_reading_a_stream_whole_and_byte_by_byte(stream: bytes, expected: list[bytes | SseEvent]) -> None:
    assert read(stream) == expected
    assert read(*(stream[at : at + 1] for at in range(len(stream)))) == expected


def test_events_are_given_as_soon_as_they_are_complete() -> None:
    reader = SseReader()
    assert reader.feed(b"data: a\n") == []
    assert reader.feed(b"\ndata: b\n\nda") == [b"a", b"b"]
    assert reader.feed(b"ta: c\r\n\r") == [b"c"]
    assert reader.feed(b"\ndata: d\r\n\r\n") == [b"d"]
    assert reader.feed(EMPTY_LINE) == []


pieces = st.sampled_from(
    [
        b"data: x",
        b"data:",
        b"data",
        b"event: e",
        b": c",
        b"\n",
        b"\n\n",
        b"\r\n",
        b"\r",
        b"id: 1",
        b" ",
        "é😀".encode(),
        b"\xef\xbb\xbf",
    ]
)


@given(st.lists(pieces, max_size=14).map(b"".join), st.data())
def test_how_the_bytes_are_cut_makes_no_difference(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    blocks = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert read(*blocks) == read(stream)


@pytest.mark.parametrize(
    "stream",
    [b"data: " + b"x" * 100 + b"\n\n", b"data: xxxx\n" * 30, b"x" * 100, b": " + b"x" * 100 + b"\n\n"],
    ids=["line", "event", "partial", "comment"],
)
def test_an_event_over_the_limit_is_the_backends_failure(stream: bytes) -> None:
    for blocks in ([stream], [stream[at : at + 7] for at in range(0, len(stream), 7)]):
        with pytest.raises(ToolwireError) as caught:
            read(*blocks, limit=64)
        assert caught.value.failure.kind == "backend"


@pytest.mark.parametrize(
    ("pending", "expected"),
    [
        (b"", [b"b"]),
        (b"data: a", [b"adata: b"]),
        (b"data: a\n", [b"a\nb"]),
        (b"event: x\n", [SseEvent("x", b"b")]),
        (b"\xef", []),
        (b"\xef\xbb", []),
        (b"\xef\xbb\xbf", [b"b"]),
        (b"data: a\r", [b"a\nb"]),
    ],
)
def test_a_block_of_whole_events_continues_a_pending_one(
    pending: bytes, expected: list[bytes | SseEvent]
) -> None:
    """Such blocks are read by a shortcut, which must not apply while an earlier event is incomplete."""
    assert read(pending, b"data: b\n\n") == read(pending + b"data: b\n\n") == expected
    both = [*expected, b"c"]
    assert read(pending, b"data: b\n\ndata: c\n\n") == both


def test_a_line_feed_after_a_carriage_return_is_swallowed_once() -> None:
    """This also holds if a block of whole events comes between the two: that line feed ends an event."""
    reader = SseReader()
    assert reader.feed(b"data: a\r\r") == [b"a"]
    assert reader.feed(b"data: b\n\n") == [b"b"]
    assert not reader._after_cr, "the carriage return has been handled"


def test_a_byte_order_mark_counts_only_at_the_start() -> None:
    assert read(b"data: a\n\n", b"\xef\xbb\xbfdata: b\n\n") == [b"a"]


def test_many_events_under_the_limit_pass_it_together() -> None:
    assert len(read(b"data: xxxxxxxxxx\n\n" * 50 + b": c\n" * 50, limit=64)) == 50


def test_a_comment_cannot_end_a_frame() -> None:
    frame = comment_frame("a\n\ndata: b\r\nc")
    assert (
        frame.startswith(b": ") and frame.endswith(b"\n\n") and b"\n" not in frame[:-2] and b"\r" not in frame
    )
    assert read(frame, data_frame({"x": 1})) == [b'{"x":1}']


def test_texts_that_utf8_can_not_carry_never_raise() -> None:
    assert scrub("a\ud800b") == "a\ufffdb"
    assert scrub("\ud83d\ude00") == "😀"
    assert json.loads(encode({"\udfff": ["x\ud800", 1, None]})) == {"\ufffd": ["x\ufffd", 1, None]}


@given(st.lists(st.text(st.characters(), max_size=5)))
def test_joined_parts_are_what_a_client_concatenates(parts: list[str]) -> None:
    assert joined(parts) == "".join(json.loads(encode(part)) for part in parts)


@given(st.text(st.characters()))
def test_any_text_survives_a_frame_or_is_scrubbed(text: str) -> None:
    [data] = read(data_frame({"t": text}))
    assert isinstance(data, bytes) and json.loads(data)["t"] == scrub(text)

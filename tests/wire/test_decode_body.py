"""`body.parse` returns only JSON objects that all later code can walk and encode."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwire.core.errors import ToolwireError
from toolwire.wire import body


def refused(raw: bytes) -> str:
    with pytest.raises(ToolwireError) as caught:
        body.parse(raw)
    return caught.value.failure.message


def nested(depth: int) -> bytes:
    """An object whose deepest container is `depth` levels down; the body itself is the first."""
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def test_an_object_is_parsed_unchanged() -> None:
    assert body.parse(b' {"a": [1, 2.5, true, null, "\\ud83d\\ude00"]}\n') == {
        "a": [1, 2.5, True, None, "\U0001f600"]
    }


def test_of_duplicate_keys_the_last_one_holds() -> None:
    assert body.parse(b'{"a": 1, "a": 2}') == {"a": 2}


def test_nesting_is_allowed_up_to_the_limit_and_refused_beyond_it() -> None:
    assert body.parse(nested(body.MAX_DEPTH))
    for depth in (body.MAX_DEPTH + 1, 900, 5_000, 1_000_000):
        assert "nested deeper than 200 levels" in refused(nested(depth))


def test_a_wide_body_is_not_mistaken_for_a_deep_one() -> None:
    assert len(body.parse(json.dumps({"a": [[]] * 5000}).encode())["a"]) == 5000


def test_brackets_inside_strings_do_not_count_as_nesting() -> None:
    assert body.parse(json.dumps({"a": "[" * 5000}).encode())


@pytest.mark.parametrize(
    "escape", ["\\ud800", "\\ud800abc", "\\udc00", "\\ud800\\ud800", "\\ud83dxxxxxxxxxxxx", "\\ude00\\ud83d"]
)
def test_a_lone_surrogate_is_refused_by_name(escape: str) -> None:
    assert "lone surrogate" in refused(f'{{"a": "{escape}"}}'.encode())


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "the body is empty"),
        (b"  \n", "the body is empty"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"a": "\xff"}', "not valid UTF-8"),
        (b'{"a": 1e999}', "a number is out of range"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "a number is out of range"),
        (b'{"a": [', "truncated"),
        (b"[]", "expected an object, but got an array instead"),
        (b"true", "expected an object, but got a boolean instead"),
        (b"1.5", "expected an object, but got a decimal number instead"),
    ],
)
def test_the_message_says_in_one_line_what_is_wrong(raw: bytes, reason: str) -> None:
    message = refused(raw)
    assert reason in message
    assert "\n" not in message


pieces = st.sampled_from(
    [
        b'{"a":',
        b"[",
        b"]",
        b"}",
        b'"',
        b"\\ud8",
        b"00",
        b"\\udc00",
        b"\xff",
        b"1e9",
        b"99",
        b",",
        b":",
        b"null",
        b"\xc3\xa9",
        b"-",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=60), st.lists(pieces, max_size=20).map(b"".join)))
def test_any_bytes_give_an_encodable_object_or_a_refusal(raw: bytes) -> None:
    try:
        parsed = body.parse(raw)
    except ToolwireError as error:
        assert error.failure.message.isprintable()
    else:
        assert msgspec.json.decode(msgspec.json.encode(parsed)) == parsed

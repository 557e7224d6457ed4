"""Parses the bytes of a request body as a JSON object.

A body that passes is safe for all later code: it is valid UTF-8 (no lone surrogates), its numbers are finite,
and it is nested at most `MAX_DEPTH` levels deep, so that recursion never exhausts the stack. Values are
counted before they are created, because a body of tiny values needs a hundred times its size in memory. If a
key is repeated, its last value counts.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from toolwire.core.errors import ToolwireError
from toolwire.wire.checks import json_type

MAX_DEPTH = 200

_MARKS = (b",", b"[", b"{")
_other = re.compile(rb"[^\\]")
_decoder = msgspec.json.Decoder()
_surrogate = re.compile(rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|[c-fC-F][0-9a-fA-F]{2})")


WINDOW = 1024 * 1024
"""The number of bytes that are examined at once. Other threads can run between two of these steps."""


def parse(raw: bytes, *, nodes: int = 0, messages: int = 0, tools: int = 0) -> dict[str, Any]:
    """Returns the request body as a dict. Raises `ToolwireError` with a one-line message.

    Limits (0 means no limit):

    - `nodes`: the maximum number of JSON values.
    - `messages`: the maximum number of entries in `messages` or `input`.
    - `tools`: the maximum number of entries in `tools` or `functions`.
    """
    if nodes and len(raw) > nodes and _bound(raw, nodes) > nodes and _values(raw, nodes) > nodes:
        limit = f"{nodes:,} JSON values, this server's limit (limits.body_nodes)"
        raise ToolwireError("body_too_large", f"The request's body holds more than {limit}.")
    try:
        body: dict[str, Any] = _decoder.decode(raw)
    except (UnicodeDecodeError, RecursionError, msgspec.MsgspecError) as error:
        raise _unreadable(raw, error) from error
    if type(body) is not dict:
        found = f"expected an object, but got {json_type(body)} instead."
        raise ToolwireError("invalid_type", f"Invalid type for the request body: {found}")
    # The number of brackets bounds the depth: only a body with many brackets has to be walked.
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _deeper_than(body, MAX_DEPTH):
        raise _too_deep()
    for name, most in (("messages", messages), ("input", messages), ("tools", tools), ("functions", tools)):
        given = body.get(name)
        if type(given) is list and len(given) > most > 0:
            length = f"maximum length {most}, but got an array with length {len(given)} instead"
            message = f"Invalid '{name}': array too long. Expected an array with {length}."
            raise ToolwireError("invalid_value", message, param=name, code="array_above_max_length")
    return body


def _bound(raw: bytes, limit: int) -> int:
    """Returns an upper bound of the number of JSON values. Stops counting above `limit`.

    Fast, but it also counts commas and brackets inside strings.
    """
    found = 0
    for place in range(0, len(raw), WINDOW):
        found += sum(raw.count(mark, place, place + WINDOW) for mark in _MARKS)
        if found > limit:
            break
    return found


def _values(raw: bytes, limit: int) -> int:
    """Returns the number of JSON values without looking inside strings.

    Stops counting above `limit`.
    """
    found, start, inside = 0, 0, False
    while start < len(raw) and found <= limit:
        end = min(start + WINDOW, len(raw))
        if raw[end - 1] == 0x5C:  # do not cut an escape in two
            whole = _other.search(raw, end)
            end = whole.end() if whole is not None else len(raw)
        pieces = raw[start:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(pieces[inside::2])
        found += sum(outside.count(mark) for mark in _MARKS)
        inside ^= len(pieces) % 2 == 0
        start = end
    return found


def _unreadable(raw: bytes, error: Exception) -> ToolwireError:
    """Returns the error for a body that the decoder refused."""
    if isinstance(error, UnicodeDecodeError):
        return _invalid("the body is not valid UTF-8")
    if isinstance(error, RecursionError):
        return _too_deep()
    if isinstance(error, msgspec.ValidationError):
        return _invalid("a number is out of range")
    return _invalid(_reason(raw, error))


def _deeper_than(root: dict[str, Any], limit: int) -> bool:
    level: list[Any] = [root]
    for _ in range(limit):
        below = []
        for container in level:
            for value in container.values() if type(container) is dict else container:
                if type(value) is dict or type(value) is list:
                    below.append(value)
        if not below:
            return False
        level = below
    return True


def _reason(raw: bytes, error: Exception) -> str:
    """Returns why the body is not JSON.

    msgspec reports a lone surrogate near the end as truncation, and a byte order mark as an invalid
    character. This function recognizes both.
    """
    if not raw.strip():
        return "the body is empty"
    if raw.startswith(b"\xef\xbb\xbf"):
        return "the body begins with a byte order mark"
    text = str(error)
    if "surrogate" in text or (
        text == "Input data was truncated"
        and raw.rstrip().endswith((b"}", b"]", b'"'))
        and _surrogate.search(raw)
    ):
        return "a string holds a lone surrogate escape"
    return text.removeprefix("JSON is malformed: ")


def _invalid(reason: str) -> ToolwireError:
    return ToolwireError("invalid_json", f"We could not parse the JSON body of your request: {reason}.")


def _too_deep() -> ToolwireError:
    return _invalid(f"it is nested deeper than {MAX_DEPTH} levels")

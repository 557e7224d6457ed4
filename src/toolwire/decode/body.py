"""The client's bytes → a JSON object.

Whatever passes here is safe for everything behind it: valid UTF-8 throughout (no lone surrogates), finite numbers, and at most `MAX_DEPTH` levels of
nesting, so that no later walk over the request can run out of stack. Duplicate keys: the last one holds, as in every JSON library clients use.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from toolwire.decode.fields import json_type
from toolwire.errors import ToolwireError

MAX_DEPTH = 200

_decoder = msgspec.json.Decoder()
_surrogate = re.compile(rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|[c-fC-F][0-9a-fA-F]{2})")


def parse(raw: bytes) -> dict[str, Any]:
    """The request body as a dict, or a `ToolwireError` whose message is one line."""
    try:
        body = _decoder.decode(raw)
    except UnicodeDecodeError as error:
        raise _invalid("the body is not valid UTF-8") from error
    except RecursionError as error:
        raise _too_deep() from error
    except msgspec.ValidationError as error:
        raise _invalid("a number is out of range") from error
    except msgspec.DecodeError as error:
        raise _invalid(_reason(raw, error)) from error
    if type(body) is not dict:
        raise ToolwireError("invalid_type", f"Invalid type for the request body: expected an object, but got {json_type(body)} instead.")
    # Counting brackets is a bound that nearly every request stays under; only the others are walked.
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _deeper_than(body, MAX_DEPTH):
        raise _too_deep()
    return body


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


def _reason(raw: bytes, error: msgspec.DecodeError) -> str:
    """msgspec reports a lone surrogate near the end of the body as truncation, and a byte order mark as an invalid character."""
    if not raw.strip():
        return "the body is empty"
    if raw.startswith(b"\xef\xbb\xbf"):
        return "the body begins with a byte order mark"
    text = str(error)
    if "surrogate" in text or (text == "Input data was truncated" and raw.rstrip().endswith((b"}", b"]", b'"')) and _surrogate.search(raw)):
        return "a string holds a lone surrogate escape"
    return text.removeprefix("JSON is malformed: ")


def _invalid(reason: str) -> ToolwireError:
    return ToolwireError("invalid_json", f"We could not parse the JSON body of your request: {reason}.")


def _too_deep() -> ToolwireError:
    return _invalid(f"it is nested deeper than {MAX_DEPTH} levels")

"""Every malformed request is refused with the status, type, param and code of the table, in one line."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from toolwire.core.errors import ToolwireError, error_object, status_of
from toolwire.wire import body
from toolwire.wire.chat import decode as chat
from toolwire.wire.responses import decode as responses


def load_table() -> Any:
    spec = importlib.util.spec_from_file_location(
        "malformed_table", Path(__file__).with_name("malformed_table.py")
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


TABLE = load_table()


@pytest.mark.parametrize("case", TABLE.CASES, ids=lambda case: case.id)
def test_a_malformed_request_gets_the_error_of_the_table(case: Any) -> None:
    with pytest.raises(ToolwireError) as caught:
        parsed = body.parse(case.body)
        chat.decode(parsed) if case.path == TABLE.CHAT else responses.decode(parsed)
    failure = caught.value.failure
    error = error_object(failure)["error"]
    assert (status_of(failure), error["type"], error["param"], error["code"]) == (
        case.status,
        case.type,
        case.param,
        case.code,
    )
    assert error["message"].isprintable()
    assert len(error["message"]) < 400


def test_the_table_has_a_name_for_each_case_and_covers_both_endpoints() -> None:
    ids = [case.id for case in TABLE.CASES]
    assert len(ids) == len(set(ids))
    for path in (TABLE.CHAT, TABLE.RESPONSES):
        assert sum(case.path == path for case in TABLE.CASES) >= 60


def _decode(path: str, fields: dict[str, Any]) -> None:
    if path == TABLE.CHAT:
        chat.decode({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields})
    else:
        responses.decode({"model": "m", "input": "x", **fields})


@pytest.mark.parametrize(
    ("path", "name", "low", "high"),
    [
        (TABLE.CHAT, "n", 1, 128),
        (TABLE.CHAT, "max_tokens", 1, None),
        (TABLE.CHAT, "max_completion_tokens", 1, None),
        (TABLE.CHAT, "top_logprobs", 0, 20),
        (TABLE.CHAT, "seed", -(2**63), 2**63 - 1),
        (TABLE.CHAT, "temperature", 0, 2),
        (TABLE.CHAT, "top_p", 0, 1),
        (TABLE.CHAT, "presence_penalty", -2, 2),
        (TABLE.CHAT, "frequency_penalty", -2, 2),
        (TABLE.RESPONSES, "max_output_tokens", 1, None),
        (TABLE.RESPONSES, "max_tool_calls", 1, None),
        (TABLE.RESPONSES, "top_logprobs", 0, 20),
    ],
)
def test_a_number_is_accepted_at_its_limits_and_refused_beyond_them(
    path: str, name: str, low: int, high: int | None
) -> None:
    for value, beyond in [(low, low - 1)] + ([(high, high + 1)] if high is not None else []):
        beside = {"logprobs": True} if (path, name) == (TABLE.CHAT, "top_logprobs") else {}
        _decode(path, {**beside, name: value})
        with pytest.raises(ToolwireError) as caught:
            _decode(path, {**beside, name: beyond})
        assert caught.value.failure.param == name


def test_a_client_value_in_a_message_is_shortened_and_escaped() -> None:
    with pytest.raises(ToolwireError) as caught:
        chat.decode(
            {
                "model": "m",
                "messages": [{"role": "bad\r\nSet-Cookie: a=b\x1b[2J\u202e" + "x" * 500, "content": ""}],
            }
        )
    message = caught.value.failure.message
    assert "bad\\r\\nSet-Cookie" in message
    assert "\\x1b[2J\\u202e" in message
    assert "x" * 64 not in message


def test_a_client_key_never_appears_in_a_param_or_message() -> None:
    for request in ({"metadata": {"my secret key": 1}}, {"logit_bias": {"my secret key": "high"}}):
        with pytest.raises(ToolwireError) as caught:
            chat.decode({"model": "m", "messages": [{"role": "user", "content": "x"}], **request})
        assert "secret" not in f"{caught.value.failure.message} {caught.value.failure.param}"

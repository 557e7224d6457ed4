"""Law 10 for requests in the shapes that the real clients of the Messages API send.

Each is accepted, and each value in it is in the decoded turn, or its field is named in the report.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from doubles.messages_requests import COUNTED, REQUESTS, THREADS
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Call, Message, Result, TextPart, Turn
from toolwire.testing import ScriptedBackend
from toolwire.wire.fields import report
from toolwire.wire.messages.decode import decode

Leaf = tuple[str, Any]
SAID_BY_ITS_PLACE = ("type", "role")
WHOLE = ("input", "input_schema", "schema")
"""Objects that the client's tools or schemas define: they are compared whole."""


def leaves(value: Any, path: str = "") -> Iterator[Leaf]:
    """Every value of a request with its path, without positions in arrays."""
    name = path.rpartition(".")[2]
    if name in SAID_BY_ITS_PLACE:
        return
    if isinstance(value, list):
        for inner in value:
            yield from leaves(inner, path)
    elif isinstance(value, dict) and name not in WHOLE:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}".lstrip("."))
    else:
        yield path, value


def values(value: Any) -> Iterator[Any]:
    """Everything that a turn holds, except the request itself."""
    if isinstance(value, Call):
        yield json.loads(value.arguments)
    if is_dataclass(value):
        for one in fields(value):
            if one.name not in ("body", "sent", "notes"):
                yield from values(getattr(value, one.name))
    elif isinstance(value, tuple | frozenset):
        for inner in value:
            yield from values(inner)
    else:
        yield value
        yield from values(tuple(value.values()) if isinstance(value, dict) else ())


READ: dict[str, Callable[[Turn], Any]] = {
    "model": lambda turn: turn.model,
    "stream": lambda turn: turn.stream,
    "max_tokens": lambda turn: turn.sampling.max_tokens,
    "temperature": lambda turn: turn.sampling.temperature,
    "messages.output_config.effort": lambda turn: turn.sampling.effort,
    "output_config.effort": lambda turn: turn.sampling.effort,
    "tools.defer_loading": lambda turn: bool(turn.hidden_tools),
}
"""Settings that could equal another value of the turn by chance."""
NAMED = {
    "thinking": "thinking",
    "context_management": "context_management",
    "safeguards": "safeguards",
    "tools.max_uses": "tools.web_search_20250305",
    "tools.name": "tools.web_search_20250305",
}
"""Fields, and the names by which the report says that they are ignored."""


def check_leaf(path: str, value: Any, turn: Turn, named: dict[str, str]) -> None:
    if "cache_control" in path:
        assert named["cache_control"] == "ignored"
    elif path in READ:
        assert READ[path](turn) == value
    elif path.endswith("is_error"):
        assert value in [item.is_error for item in turn.items if isinstance(item, Result)]
    elif isinstance(value, str) and value.startswith("x-anthropic-billing-header"):
        assert named["system.billing_header"] == "ignored"
    elif (name := NAMED.get(path) or NAMED.get(path.partition(".")[0])) in named:
        assert named[str(name)] == "ignored"
    elif isinstance(value, str):
        assert any(value in one for one in values(turn) if isinstance(one, str)), path
    else:
        assert value in values(turn), path


@pytest.mark.parametrize("name", REQUESTS)
def test_nothing_of_a_request_is_dropped_in_silence(name: str) -> None:
    body = REQUESTS[name]
    turn = decode(body)
    named = dict(report(turn, ScriptedBackend("m").capabilities, "native"))
    assert not any("unknown" in field for field in named)
    for path, value in leaves(body):
        check_leaf(path, value, turn, named)


def test_system_messages_stay_in_their_place_and_loaded_tools_are_shown() -> None:
    messages = [item for item in decode(REQUESTS["system message last"]).items if isinstance(item, Message)]
    assert [message.role for message in messages] == ["user", "user"]
    for message in messages:
        last = message.parts[-1]
        assert isinstance(last, TextPart)
        assert last.text.startswith("<system-reminder>")
    loaded = decode(REQUESTS["after loading tools"])
    assert {"WebFetch", "NotebookEdit"} <= {tool.name for tool in loaded.tools}
    assert [tool.name for tool in loaded.hidden_tools] == ["DeferredToolPlaceholder"]


def test_an_effort_that_only_a_message_sets_is_reported_too() -> None:
    body = {name: value for name, value in REQUESTS["first"].items() if name != "output_config"}
    named = dict(report(decode(body), ScriptedBackend("m").capabilities, "native"))
    assert named["output_config.effort"] == "ignored"


@pytest.mark.parametrize("name", COUNTED)
def test_a_request_that_is_only_counted_needs_no_limit(name: str) -> None:
    assert decode(COUNTED[name], count=True).items
    with pytest.raises(ToolwireError, match="max_tokens"):
        decode(COUNTED[name])


@pytest.mark.parametrize("name", THREADS)
def test_threads_are_refused_in_the_words_that_make_a_tool_runner_do_without(name: str) -> None:
    with pytest.raises(ToolwireError) as caught:
        decode(THREADS[name])
    assert caught.value.failure.code == "thread_unsupported_request"


@pytest.mark.parametrize("tools", ["native", "emulated", "constrained", "parked"])
async def test_every_request_is_answered_on_every_strategy(tools: str, table: Any) -> None:
    table.play("think Easy.\nsay Yes.", tools)
    for name, body in REQUESTS.items():
        asked = {**body, "model": "m"}
        whole = await table.body("messages", asked)
        assert whole["content"][-1] == {"type": "text", "text": "Yes."}, name
        raw = await table.stream("messages", asked)
        assert raw.count(b"event: message_start\n") == raw.count(b"event: message_stop\n") == 1, name

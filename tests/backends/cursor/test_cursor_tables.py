"""The pure parts: envelopes, errors, results, options, and the search for a bridge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolwire.backends.agents.history import inline
from toolwire.backends.agents.mcp_server import tool_result
from toolwire.backends.cursor.bridge import read_ready
from toolwire.backends.cursor.client import (
    END,
    SDK_KINDS,
    ConnectError,
    Envelopes,
    Malformed,
    envelope,
    run_failure,
)
from toolwire.backends.cursor.options import CursorOptions, find_bridge
from toolwire.backends.cursor.session import create_agent
from toolwire.backends.registry import OptionError, check, is_source
from toolwire.core.errors import KINDS, ToolwireError
from toolwire.core.turn import ImagePart, OtherPart, Result, TextPart, ToolSpec

# --- Connect ---


@pytest.mark.parametrize("size", [1, 2, 5, 7, 1000])
def test_envelopes_are_read_however_they_are_cut(size: int) -> None:
    messages: list[dict[str, Any]] = [{"a": 1}, {}, {"text": "ü" * 300}]
    raw = b"".join(map(envelope, messages)) + envelope({}, END)
    reader = Envelopes()
    assert [one for at in range(0, len(raw), size) for one in reader.feed(raw[at : at + size])] == messages
    assert reader.ended


def test_a_stream_that_ends_with_an_error_raises_it_with_its_details() -> None:
    detail = {
        "type": "sdk.v1.SdkErrorDetails",
        "debug": {"message": "exactly this", "sdkErrorCode": "SDK_ERROR_CODE_AGENT_BUSY"},
        "value": "aaa",
    }
    raw = envelope(
        {"error": {"code": "internal", "message": "vaguely", "details": [None, {"debug": 5}, detail]}}, END
    )
    with pytest.raises(ConnectError, match="exactly this") as caught:
        list(Envelopes().feed(raw))
    assert (caught.value.code, caught.value.failure.kind) == ("internal", "overloaded")


@pytest.mark.parametrize(
    "raw", [b"\x01\x00\x00\x00\x02{}", b"\x00\xff\xff\xff\xff", envelope([1]), b"\x00\x00\x00\x00\x03{{{"]
)
def test_invalid_connect_messages_are_refused(raw: bytes) -> None:
    with pytest.raises(Malformed):
        list(Envelopes().feed(raw))


# --- failures ---


def test_every_code_of_the_bridge_has_a_kind_that_exists() -> None:
    assert set(SDK_KINDS.values()) <= set(KINDS)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": "unauthenticated", "message": "x"}, "backend_auth"),
        ({"code": "permission_denied", "message": "x"}, "backend_auth"),
        ({"code": "resource_exhausted", "message": "x"}, "rate_limit"),
        ({"code": "invalid_argument", "message": "x"}, "invalid_request"),
        ({"code": "invalid_argument", "message": "Unknown model: x"}, "model_not_found"),
        ({"code": "internal", "message": "Network request failed"}, "backend_unavailable"),
        ({"code": "internal", "message": "x"}, "backend"),
        ({"code": "deadline_exceeded", "message": "x"}, "timeout"),
        ({}, "backend"),
        (
            {
                "code": "internal",
                "details": [{"debug": {"sdkErrorCode": "SDK_ERROR_CODE_PLAN_REQUIRED", "message": "x"}}],
            },
            "backend_auth",
        ),
    ],
)
def test_errors_of_the_bridge_have_kinds(error: dict[str, Any], kind: str) -> None:
    assert ConnectError.read(error).failure.kind == kind


def test_a_message_contains_no_key_and_no_address() -> None:
    failure = run_failure(
        "", "[unauthenticated] key crsr_0123456789abcdef refused by https://api2.cursor.sh/auth?x=1"
    )
    assert (
        failure.kind == "backend_auth"
        and "crsr_" not in failure.message
        and "cursor.sh" not in failure.message
    )
    assert run_failure("", "").message and len(run_failure("", "x" * 9999).message) < 1000
    assert run_failure("usage_limit_exceeded", "x").kind == "quota"


# --- the wire ---


def test_a_tools_schema_goes_in_verbatim() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/x"}},
        "$defs": {"x": {"type": "string"}},
        "additionalProperties": False,
    }
    made = create_agent(
        "a1",
        CursorOptions(params={"effort": "high"}),
        "",
        (ToolSpec("a.b-c", "", schema), ToolSpec("plain")),
        Path("/empty"),
    )["options"]
    assert made["local"]["customTools"] == {
        "a.b-c": {"inputSchema": schema},
        "plain": {"inputSchema": {"type": "object", "properties": {}}},
    }
    assert (
        made["model"] == {"id": "auto", "params": [{"id": "effort", "value": "high"}]}
        and "apiKey" not in made
        and made["agentId"] == "a1"
    )


def test_a_result_keeps_its_parts() -> None:
    parts = (
        TextPart("a"),
        ImagePart("data:image/gif;base64,R0lG"),
        ImagePart("https://x/y.png"),
        OtherPart("file", {}),
    )
    made = tool_result(Result("c", parts))
    assert [part["type"] for part in made["content"]] == ["text", "image", "text", "text"] and made[
        "isError"
    ] is False
    assert tool_result(Result("c", ()))["content"] == [{"type": "text", "text": ""}]
    assert tool_result(Result("c", parts, is_error=True))["isError"] is True


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("data:image/png;base64,AAAA", ("AAAA", "image/png")),
        ("data:image/svg+xml,%3Csvg/%3E", ("PHN2Zy8+", "image/svg+xml")),
        ("data:image/png;base64,!!!", None),
        ("https://example.org/x.png", None),
        (None, None),
    ],
)
def test_inline_images_are_extracted(url: str | None, found: tuple[str, str] | None) -> None:
    assert inline(ImagePart(url)) == found


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{}",
        '{"schemaVersion":1,"transport":"tcp","protocol":"connect","url":"http://127.0.0.1:1",'
        '"authTokenFile":"/nonexistent"}',
        '{"schemaVersion":1,"transport":"tcp","protocol":"connect","url":"http://10.0.0.1:1",'
        '"authToken":"secret-token"}',
        '{"schemaVersion":1,"transport":"tcp","protocol":"connect","url":"http://127.0.0.1:1",'
        '"authToken":" "}',
        '{"schemaVersion":1,"transport":"unix","protocol":"connect","url":"http://127.0.0.1:1",'
        '"authToken":"secret-token"}',
    ],
)
def test_a_ready_line_that_is_not_known_is_refused_without_its_secret(line: str) -> None:
    with pytest.raises(ToolwireError) as caught:
        read_ready(line)
    assert "secret" not in str(caught.value)


def test_a_ready_line_without_url_is_put_together() -> None:
    facts = {
        "schemaVersion": 1,
        "transport": "tcp",
        "protocol": "connect",
        "host": "::1",
        "port": 5,
        "authToken": "secret\n",
    }
    ready = read_ready(json.dumps(facts))
    assert (ready.url, ready.token) == ("http://[::1]:5", "secret") and "secret" not in repr(ready)


# --- options and discovery ---


@pytest.mark.parametrize(
    "options",
    [
        {"settle_ms": -1},
        {"repeats": 0},
        {"timeout_s": 0},
        {"model": ""},
        {"bridge_url": "https://bridge.example"},
        {"bridge_url": "http://u:p@127.0.0.1:1"},
    ],
)
def test_bad_options_name_their_key(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        CursorOptions(**options)


def test_the_registry_knows_cursor_and_its_keys() -> None:
    assert check("cursor", {"model": "auto", "timeout_s": 5}).timeout_s == 5.0
    assert is_source("cursor", {"model": "*"}) and not is_source("cursor", {"model": "auto"})
    with pytest.raises(OptionError, match="bridge_url"):
        check("cursor", {"bridge_uri": "x"})


def test_where_a_bridge_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, other = tmp_path / "named", tmp_path / "cursor-sdk-bridge"
    for file in (named, other):
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
    monkeypatch.setattr("toolwire.backends.cursor.options.bundled", lambda: None)
    path = {"PATH": str(tmp_path)}
    attach = {"CURSOR_SDK_BRIDGE_URL": "http://127.0.0.1:1/", "CURSOR_SDK_BRIDGE_TOKEN": "t"}
    binary = {"CURSOR_SDK_BRIDGE_BIN": str(named)}
    assert find_bridge(CursorOptions(), path).command == str(other)
    assert find_bridge(CursorOptions(), {**path, **binary}).command == str(named)
    assert find_bridge(CursorOptions(), {**path, **binary, **attach}).url == "http://127.0.0.1:1"
    assert find_bridge(CursorOptions(bridge_bin="cursor-sdk-bridge"), {**path, **attach}).command == str(
        other
    )
    assert (
        find_bridge(
            CursorOptions(bridge_url="http://localhost:2", bridge_token="x"), {**path, **attach}
        ).token
        == "x"
    )
    monkeypatch.setattr("toolwire.backends.cursor.options.bundled", lambda: "/bundled/bridge")
    assert find_bridge(CursorOptions(), path).command == "/bundled/bridge"
    for options, environ in (
        (CursorOptions(bridge_url="http://127.0.0.1:1"), {}),
        (CursorOptions(bridge_bin="/nonexistent"), {}),
        (CursorOptions(), {"CURSOR_SDK_BRIDGE_URL": "http://10.0.0.1:1", "CURSOR_SDK_BRIDGE_TOKEN": "t"}),
    ):
        with pytest.raises(ToolwireError):
            find_bridge(options, environ)
    assert "t'" not in repr(find_bridge(CursorOptions(), {**attach}))

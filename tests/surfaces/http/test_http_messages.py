"""The Messages API over HTTP: keys, errors, headers, keep-alives, models and counting."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from toolwire.conform.judge import fold, judge_error, judge_sse

Body = dict[str, Any]
VERSION = {"anthropic-version": "2023-06-01"}


def body(**fields: Any) -> Body:
    return {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], **fields}


async def sent(
    it: Any, path: str = "/v1/messages", asked: Any = None, method: str = "POST", **headers: str
) -> tuple[int, Any, bytes]:
    """Returns status, headers and body of the response."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    data = json.dumps(asked) if asked is not None else None
    url, typed = f"http://127.0.0.1:{it.port}{path}", {"content-type": "application/json"} if asked else {}
    async with it.client.request(method, url, data=data, headers={**typed, **names}) as response:
        return response.status, response.headers, await response.read()


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages?beta=true", "/messages", "//v1/messages"])
async def test_any_query_string_and_prefix_is_accepted(place: Callable[..., Any], path: str) -> None:
    async with place("say Hi") as it:
        status, headers, raw = await sent(it, path, body(), **VERSION)
    assert (status, json.loads(raw)["content"]) == (200, [{"type": "text", "text": "Hi"}])
    assert headers["request-id"] == headers["x-request-id"]


async def test_a_stream_is_named_events(place: Callable[..., Any]) -> None:
    async with place("say Hi") as it:
        _, headers, raw = await sent(it, asked=body(stream=True))
    assert headers["content-type"].startswith("text/event-stream")
    assert judge_sse(raw, "messages") == []
    assert fold(raw)["content"][0]["text"] == "Hi"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x_api_key": "right"}, 200),
        ({"authorization": "Bearer right"}, 200),
        ({"x_api_key": "right", "authorization": "Bearer another"}, 200),
        ({"x_api_key": "another", "authorization": "Bearer right"}, 200),
        ({"x_api_key": "wrong"}, 401),
        ({}, 401),
    ],
)
async def test_a_key_in_either_header_counts(
    place: Callable[..., Any], headers: dict[str, str], status: int
) -> None:
    async with place("say Hi", keys=("right",)) as it:
        got, sent_headers, raw = await sent(it, asked=body(), **headers)
    assert got == status
    if status == 401:
        error = json.loads(raw)
        assert judge_error(401, error, "messages") == []
        assert error["error"]["type"] == "authentication_error"
        assert error["request_id"] == sent_headers["request-id"]
        assert sent_headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("script", "asked", "status", "type"),
    [
        ("say Hi", body(model="other"), 404, "not_found_error"),
        ("say Hi", body(max_tokens="x"), 400, "invalid_request_error"),
        ("say Hi", body(thread={"type": "create"}), 400, "invalid_request_error"),
        ("fail overloaded Busy.", body(), 529, "overloaded_error"),
        ("fail overloaded Busy.", body(stream=True), 529, "overloaded_error"),
        ("fail rate_limit Slow down.", body(), 429, "rate_limit_error"),
        ("fail timeout Late.", body(), 504, "timeout_error"),
        ("fail backend Broken.", body(), 502, "api_error"),
        ("fail context_length Full.", body(), 400, "invalid_request_error"),
    ],
)
async def test_errors_before_the_first_byte_are_anthropic_errors(
    place: Callable[..., Any], script: str, asked: Body, status: int, type: str
) -> None:
    async with place(script) as it:
        got, _, raw = await sent(it, asked=asked)
    error = json.loads(raw)
    assert (got, error["error"]["type"]) == (status, type)
    assert judge_error(got, error, "messages") == []
    if "thread" in asked:
        assert error["error"]["details"] == {"error_code": "thread_unsupported_request"}
    if "context_length" in script:
        assert error["error"]["message"].startswith("prompt is too long")


async def test_an_error_in_the_stream_is_its_last_event(place: Callable[..., Any]) -> None:
    async with place("say Half\nfail backend Broken.") as it:
        status, _, raw = await sent(it, asked=body(stream=True))
    assert status == 200
    assert judge_sse(raw, "messages") == []
    assert fold(raw)["error"]["type"] == "api_error"


async def test_a_silent_stream_is_kept_alive_with_pings(place: Callable[..., Any]) -> None:
    async with place("pause 300ms\nsay Hi", keep_alive_s=0.05, commit_after_s=0.01) as it:
        _, _, raw = await sent(it, asked=body(stream=True))
    assert raw.count(b"event: ping\n") >= 2
    assert b": keep-alive" not in raw
    assert judge_sse(raw, "messages") == []


async def test_limits_are_reported_under_anthropic_names(place: Callable[..., Any]) -> None:
    async with place("say Hi", keys=("k",), requests_per_minute=10) as it:
        _, headers, _ = await sent(it, asked=body(), x_api_key="k")
        _, openai, _ = await sent(it, "/v1/models", method="GET", authorization="Bearer k")
    assert headers["anthropic-ratelimit-requests-limit"] == "10"
    assert headers["anthropic-ratelimit-requests-remaining"] == "9"
    assert headers["anthropic-ratelimit-requests-reset"].endswith("Z")
    assert not [name for name in headers if name.startswith("x-ratelimit")]
    assert openai["x-ratelimit-limit-requests"] == "10"


async def test_models_have_anthropic_shape_for_anthropic_clients(place: Callable[..., Any]) -> None:
    async with place("say Hi") as it:
        page = json.loads((await sent(it, "/v1/models?limit=1000", method="GET", **VERSION))[2])
        one = json.loads((await sent(it, "/v1/models/m", method="GET", **VERSION))[2])
        bad = await sent(it, "/v1/models?limit=0", method="GET", **VERSION)
        openai = json.loads((await sent(it, "/v1/models", method="GET"))[2])
    assert page == {"data": [one], "has_more": False, "first_id": "m", "last_id": "m"}
    assert (one["type"], one["id"], one["display_name"]) == ("model", "m", "m")
    assert (bad[0], json.loads(bad[2])["error"]["type"]) == (400, "invalid_request_error")
    assert openai["object"] == "list"


async def test_tokens_are_counted_without_a_limit_of_the_answer(place: Callable[..., Any]) -> None:
    async with place("say Hi") as it:
        asked = {"model": "m", "messages": [{"role": "user", "content": "four words of text"}]}
        status, headers, raw = await sent(it, "/v1/messages/count_tokens?beta=true", asked)
        none = await sent(it, "/v1/messages/count_tokens", {"model": "m", "messages": []})
    assert (status, json.loads(raw)) == (200, {"input_tokens": 5})
    assert headers["x-toolwire-report"] == "input_tokens=estimated"
    assert none[0] == 400


async def test_the_first_requests_of_claude_code_are_answered(place: Callable[..., Any]) -> None:
    async with place("say Hi") as it:
        assert (await sent(it, "/", method="HEAD"))[0] == 200
        assert (await sent(it, "/api/hello", method="HEAD", **VERSION))[0] == 404
        assert (await sent(it, method="GET", **VERSION))[0] == 405

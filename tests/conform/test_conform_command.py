"""`toolwire conform` as a command: the table, JSON, JUnit, exit status, keys, misbehaving endpoints."""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
import subprocess
import sys
import xml.etree.ElementTree as XML
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from aiohttp import web

from toolwire.cli.main import main
from toolwire.conform.engine import CATALOGUE
from toolwire.conform.probe import AddressError, base_of, shown
from toolwire.testing.upstream import FakeUpstream, Reply, answer, completion, with_quirk

KEY = "sk-very-secret-7f3a"


Done = subprocess.CompletedProcess[str]


async def run(*arguments: str, **environment: str) -> Done:
    """Runs the command in a thread of this process: a process of its own takes longer than most runs."""
    out, error = io.StringIO(), io.StringIO()

    def command() -> int | str | None:
        try:
            return main(["conform", *arguments])
        except SystemExit as ended:
            return ended.code

    with redirect_stdout(out), redirect_stderr(error), patch.dict(os.environ, environment):
        status = await asyncio.to_thread(command)
    assert isinstance(status, int)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), error.getvalue())


async def run_as_a_process(*arguments: str) -> Done:
    command = [sys.executable, "-m", "toolwire", "conform", *arguments]
    return await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=100, check=False
    )


@asynccontextmanager
async def serving(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """The base URL of an endpoint that always answers in one way."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


CALL = answer(calls=[("call_1", "get_weather", '{"city": "Paris"}')])


def reply(request: Any, chunks: list[dict[str, Any]] = CALL) -> Reply:
    """Answers everything with the same call, even invalid requests."""
    if not isinstance(request.body, dict):
        return Reply.error(400, "no JSON")
    if "/responses" in request.path:
        return Reply.body("not here", 404)
    return Reply.stream(chunks) if request.body.get("stream") else Reply.body(completion(chunks))


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream(reply) as made:
        yield made


# --- output ---


@pytest.mark.check("chat.stream.names-once")
async def test_the_table_shows_the_demand_the_observation_and_the_frame() -> None:
    async with FakeUpstream(lambda request: reply(request, with_quirk("repeated_names", CALL))) as upstream:
        done = await run_as_a_process(upstream.base_url, "--only", "chat.stream.names-once,chat.stream.done")
    assert done.returncode == 1 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == f"{upstream.base_url}  model fake"
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("pass  chat.stream.done ") for line in lines)
    [at] = [number for number, line in enumerate(lines) if line.startswith("FAIL  chat.stream.names-once ")]
    assert lines[at + 1].strip().startswith("demands id and name of a call are sent once")
    assert "id 'call_1' of a call is sent again" in lines[at + 2]
    assert "chat.call.stream:" in lines[at + 3]
    assert lines[-1] == "score 50 %: 1 of 2 checks pass (1 of 2 required), 1 fail, 0 not run"


async def test_a_missing_api_is_reported_once(upstream: FakeUpstream) -> None:
    done = await run(upstream.base_url, "--only", "responses,chat.stream.index")
    assert done.returncode == 0
    lines = [line for line in done.stdout.splitlines() if "responses" in line]
    assert len(lines) == 1 and "the endpoint has no /responses: HTTP 404" in lines[0]


NOT_HERE: dict[str, Reply] = {
    "an error that is a text": Reply.body({"error": "Unexpected endpoint or method. (POST /v1/responses)"}),
    "an error object": Reply.body({"error": {"message": "Unexpected endpoint or method."}}),
    "another object": Reply.body({"status": "ok"}),
    "a web page": Reply.body("<html>app</html>"),
}


@pytest.mark.parametrize("name", NOT_HERE)
async def test_an_api_that_answers_with_foreign_objects_counts_as_missing(name: str) -> None:
    def respond(request: Any) -> Reply:
        return NOT_HERE[name] if "/responses" in request.path else reply(request)

    async with FakeUpstream(respond) as upstream:
        one = await run(upstream.base_url, "--only", "responses,chat.stream.index")
    async with FakeUpstream(NOT_HERE[name]) as upstream:
        none = await run(upstream.base_url)
    lines = [line for line in one.stdout.splitlines() if "responses" in line]
    assert one.returncode == 0 and len(lines) == 1 and "the endpoint has no /responses: HTTP 200" in lines[0]
    assert (
        none.returncode == 2
        and none.stdout == ""
        and "no API can be judged: the endpoint has no" in none.stderr
        and none.stderr.count("\n") == 1
    )


async def test_json_and_junit_hold_every_check(upstream: FakeUpstream, tmp_path: Path) -> None:
    file = tmp_path / "conform.xml"
    done = await run_as_a_process(upstream.base_url, "--json", "--junit", str(file))
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert [row["id"] for row in report["checks"]] == [check.id for check in CATALOGUE]
    assert set(report) == {"toolwire", "url", "model", "score", "summary", "absent", "requests", "checks"}
    assert set(report["checks"][0]) == {
        "id",
        "api",
        "level",
        "result",
        "demands",
        "source",
        "fails",
        "asks",
        "seen",
        "question",
        "excerpt",
    }
    assert report["model"] == "fake" and set(report["absent"]) == {"responses", "messages"}
    assert sum(report["summary"][result] for result in ("pass", "fail", "not-run")) == len(CATALOGUE)
    suites = XML.parse(file).getroot()
    assert len(suites.findall(".//testcase")) == len(CATALOGUE)
    assert len(suites.findall(".//failure")) == report["summary"]["fail"]
    assert len(suites.findall(".//skipped")) == report["summary"]["not-run"]


@pytest.mark.parametrize("more", [(), ("--json",)])
async def test_a_closed_output_is_not_an_error(upstream: FakeUpstream, more: tuple[str, ...]) -> None:
    def read_little() -> tuple[int, str]:
        command = [sys.executable, "-m", "toolwire", "conform", upstream.base_url, "--only", "chat", *more]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None and child.stderr is not None
            child.stdout.close()
            return child.wait(60), child.stderr.read()

    assert await asyncio.to_thread(read_little) == (141, "")


async def test_a_model_that_makes_no_call_is_reported_and_fails_no_check() -> None:
    text = answer("I would rather not.")
    async with FakeUpstream(lambda request: reply(request, text)) as upstream:
        done = await run(
            upstream.base_url, "--only", "chat.parallel,chat.stream.index,chat.call.ids-fresh", "--json"
        )
        asked = len(upstream.requests)
    rows = {row["id"]: row for row in json.loads(done.stdout)["checks"]}
    assert done.returncode == 1  # this fake always uses the same ids
    assert rows["chat.parallel"]["result"] == "not-run"
    assert rows["chat.parallel"]["seen"] == "the model did not make two calls in one turn, in 3 attempts"
    assert rows["chat.stream.index"]["result"] == "not-run"
    assert asked < 40


# --- keys ---


async def test_the_key_is_sent_and_never_shown(tmp_path: Path) -> None:
    def respond(request: Any) -> Reply:
        return Reply.error(400, f"bad key {request.headers.get('Authorization')}")

    file = tmp_path / "conform.xml"
    async with FakeUpstream(respond) as upstream:
        runs = [
            await run(
                upstream.base_url,
                "--only",
                "chat.answers,chat.tools",
                "--api-key",
                "env:THE_KEY",
                "--junit",
                str(file),
                THE_KEY=KEY,
            ),
            await run(upstream.base_url, "--only", "chat.answers", "--json", "--api-key", KEY),
        ]
        sent = {request.headers.get("Authorization") for request in upstream.requests}
    assert sent == {f"Bearer {KEY}"}
    for done in runs:
        assert done.returncode == 1 and "bad key Bearer ***" in done.stdout
        assert KEY not in done.stdout + done.stderr
    assert KEY not in file.read_text()


async def test_messages_requests_have_the_headers_of_its_clients() -> None:
    def respond(request: Any) -> Reply:
        return Reply.body({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}, 400)

    async with FakeUpstream(respond) as upstream:
        done = await run(
            upstream.base_url, "--api", "messages", "--only", "messages.answers", "--api-key", KEY
        )
        sent = [request for request in upstream.requests if request.path == "/v1/messages"]
    assert done.returncode == 1 and "messages.answers" in done.stdout and "HTTP 400: no" in done.stdout
    for request in sent:
        headers = {name.lower(): value for name, value in request.headers.items()}
        assert headers["x-api-key"] == KEY and headers["anthropic-version"] == "2023-06-01"
        assert "authorization" not in headers
    assert sent and KEY not in done.stdout + done.stderr


@pytest.mark.parametrize("status", [200, 400, 401, 404])
async def test_an_escaped_key_is_not_shown_either(status: int) -> None:
    spelled = "".join(f"\\u{ord(letter):04x}" for letter in KEY)

    def respond(request: Any) -> Reply:
        raw = f'{{"error": {{"message": "bad key {spelled}", "type": "x", "param": null, "code": null}}}}'
        return Reply((raw.encode(),), status, {"Content-Type": "application/json"})

    async with FakeUpstream(respond) as upstream:
        done = await run(upstream.base_url, "--only", "chat,http", "--model", "m", "--json", "--api-key", KEY)
    assert done.returncode == (2 if status == 401 else 1)
    assert KEY not in done.stdout + done.stderr and KEY not in json.dumps(
        json.loads(done.stdout or "{}"), ensure_ascii=False
    )


REFUSALS = [
    (
        401,
        "application/json",
        '{"error": {"message": "Incorrect API key", "type": "t", "param": null, "code": null}}',
    ),
    (403, "text/html", "<h1>no</h1>"),
]


@pytest.mark.parametrize(("status", "kind", "text"), REFUSALS)
@pytest.mark.parametrize("more", [(), ("--model", "m"), ("--model", "m", "--only", "chat.answers")])
async def test_a_refused_key_prevents_the_run(
    status: int, kind: str, text: str, more: tuple[str, ...]
) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=status, content_type=kind, text=text)

    async with serving(refuse) as base:
        wrong, none = await run(base, *more, "--api-key", KEY), await run(base, *more)
    for done, words in ((wrong, "the key is refused"), (none, "a request without a key is refused")):
        assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
        assert words in done.stderr and f"HTTP {status}" in done.stderr and "with --api-key" in done.stderr


async def test_an_api_that_refuses_the_key_is_reported_once() -> None:
    def respond(request: Any) -> Reply:
        return Reply.error(403, "not in your plan") if "/responses" in request.path else reply(request)

    async with FakeUpstream(respond) as upstream:
        done = await run(upstream.base_url, "--only", "responses,chat.stream.index", "--api-key", KEY)
    lines = [line for line in done.stdout.splitlines() if "responses" in line]
    assert (
        done.returncode == 0
        and len(lines) == 1
        and "the key is refused at /responses (HTTP 403: not in" in lines[0]
    )


async def test_an_endpoint_that_is_always_busy_cannot_be_judged() -> None:
    async with FakeUpstream(Reply.body("busy", 503)) as upstream:
        done = await run(upstream.base_url)
    assert done.returncode == 2 and "the endpoint is busy: /chat/completions: HTTP 503" in done.stderr


def busy_from(first: int, until: int, **headers: str) -> Any:
    """An endpoint that is busy from the first to the last of these requests."""
    count = iter(range(10_000))

    def respond(request: Any) -> Reply:
        if first <= next(count) < until:
            return Reply.error(429, "slow down", headers=headers)
        return reply(request)

    return respond


CHECKED = ("--only", "chat.stream.index,chat.stream.names-once,chat.body.finish", "--model", "fake")


async def test_a_rate_limit_is_waited_for() -> None:
    async with FakeUpstream(busy_from(1, 3, **{"retry-after": "0.1"})) as upstream:
        done = await run(upstream.base_url, *CHECKED)
    waits = "toolwire: busy (HTTP 429): waiting 0.1 s, as Retry-After says\n"
    assert done.returncode == 0 and done.stderr == waits * 2
    assert "3 of 3 checks pass" in done.stdout


@pytest.mark.parametrize(
    ("headers", "waits"), [({}, 0), ({"retry-after": "900"}, 0), ({"retry-after-ms": "20"}, 6)]
)
async def test_an_incomplete_run_does_not_pass(headers: dict[str, str], waits: int) -> None:
    """A busy server is not retried without a Retry-After, after a long one, or forever."""
    async with FakeUpstream(busy_from(2, 10_000, **headers)) as upstream:
        done = await run(upstream.base_url, *CHECKED)
    *waited, last = done.stderr.splitlines()
    assert done.returncode == 2 and len(waited) == waits
    assert last.endswith("of the checks: the score is not complete") and " was too busy for " in last
    assert "0 fail" in done.stdout and " pass" in done.stdout


async def test_a_flood_of_events_is_reported_in_one_sentence() -> None:
    def respond(request: Any) -> Reply:
        return Reply((b"data: {}\n\n" * 6_000,))

    async with FakeUpstream(respond) as upstream:
        done = await run(upstream.base_url, "--only", "chat.stream", "--model", "m")
    assert done.returncode == 1 and "more than 5,000 events" in " ".join(done.stdout.split())


# --- it cannot run ---


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ftp://example/v1",), "expected an address such as"),
        (("http://127.0.0.1:99999/v1",), "99999"),
        (("http://[::1",), "http://[::1: Invalid IPv6 URL"),
        (("http://me:pass-word@[::1",), "[::1: Invalid IPv6 URL"),
        (
            ("http://127.0.0.1:1/v1", "--api-key", "env:NOT_SET_ANYWHERE"),
            "the environment variable NOT_SET_ANYWHERE is not set",
        ),
        (("http://127.0.0.1:1/v1", "--only", "chat.nothing"), "no check is called 'chat.nothing'"),
        (
            ("http://127.0.0.1:1/v1", "--api", "messages", "--only", "chat.stream"),
            "no check of messages is called 'chat.stream'",
        ),
        (("http://127.0.0.1:1/v1", "--timeout", "0"), "--timeout"),
        (("http://user:pass-word@127.0.0.1:CLOSED/v1",), "could not connect"),
    ],
)
async def test_a_run_that_cannot_start_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    done = await run(*(word.replace("CLOSED", str(closed_port())) for word in arguments))
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and done.stderr.count("\n") == 1
    assert "pass-word" not in done.stderr


async def test_an_endpoint_without_models_needs_one_named() -> None:
    async with FakeUpstream(reply, pages={"/v1/models": {"object": "list", "data": []}}) as upstream:
        without = await run_as_a_process(upstream.base_url)
        named = await run(upstream.base_url, "--only", "chat.stream.index", "--model", "fake")
    assert without.returncode == 2 and "name one with --model" in without.stderr
    assert named.returncode == 0


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("127.0.0.1:8788", "http://127.0.0.1:8788/v1"),
        ("http://h:1/", "http://h:1/v1"),
        ("https://h/openai/v1/", "https://h/openai/v1"),
        ("http://h/v1/chat/completions", "http://h/v1"),
        ("http://h/v1/messages", "http://h/v1"),
        ("http://h/v1?x=1", "http://h/v1"),
    ],
)
def test_the_base_is_read_from_what_people_paste(given: str, base: str) -> None:
    assert base_of(given) == base


def test_an_address_is_shown_without_its_secrets() -> None:
    assert shown("http://me:secret@h:1/v1?key=secret") == "http://h:1/v1"
    with pytest.raises(AddressError):
        base_of("http:///v1")


# --- endpoints that misbehave ---

DEEP = b'{"choices":' * 20_000 + b"1" + b"}" * 20_000
HOSTILE: dict[str, Reply] = {
    "garbage": Reply((b"\xff\xfe\x00garbage\x1b[2J",)),
    "nothing": Reply(()),
    "deep": Reply((DEEP,), headers={"Content-Type": "application/json"}),
    "deep frames": Reply((b"data: " + DEEP + b"\n\n",)),
    "numbers": Reply.stream(
        [
            1,
            None,
            [],
            "x",
            {"choices": 7},
            {"choices": [None, 3, {"delta": 3}]},
            {"choices": [{"delta": {"tool_calls": [4]}}]},
        ]
    ),
    "wrong insides": Reply.stream(
        [{"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": 3, "id": []}]}}]}]
    ),
    "wrong types": Reply.stream(
        [{"type": [], "response": 3}, {"type": "response.output_item.added", "output_index": "x", "item": []}]
    ),
    "a body of wrong types": Reply.body(
        {
            "choices": [{"message": {"tool_calls": [{"function": []}, 3], "content": []}}],
            "output": [3],
            "usage": [],
        }
    ),
    "too large": Reply(tuple(b"data: " + b"x" * 65536 + b"\n\n" for _ in range(64))),
    "cut": Reply.stream(CALL[:2]).but(ending="cut"),
    "reset": Reply.stream(CALL[:2]).but(ending="reset"),
    "html": Reply.body("<html>busy</html>", 502),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_endpoint_is_judged_to_the_end(name: str, tmp_path: Path) -> None:
    async with FakeUpstream(lambda request: HOSTILE[name]) as upstream:
        done = await run(upstream.base_url, "--junit", str(tmp_path / "out.xml"), "--timeout", "5")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stdout + done.stderr and "\x1b" not in done.stdout
    assert "cannot be judged" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    XML.parse(tmp_path / "out.xml")


async def test_an_endpoint_that_hangs_is_asked_no_more_after_three_times() -> None:
    async with FakeUpstream(Reply.stream(CALL[:1]).but(ending="hang")) as upstream:
        done = await run(upstream.base_url, "--only", "chat", "--timeout", "0.3")
        asked = len(upstream.requests)
    assert done.returncode == 1
    assert "the answer did not end within 0.3 s" in done.stdout
    assert "not asked, because 3 answers in a row took" in done.stdout
    assert asked <= 6


async def test_a_server_that_redirects_is_not_followed() -> None:
    async def away(request: web.Request) -> web.Response:
        raise web.HTTPFound("http://127.0.0.1:1/elsewhere")

    async with serving(away) as base:
        done = await run(base, "--model", "m", "--only", "chat.answers", "--api-key", KEY)
    assert done.returncode == 1 and "HTTP 302" in done.stdout

"""The log has one line per request: what is in it, what is not, and how it is written."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolwire.access.keys import key_id_of
from toolwire.gateway.pipeline import Gateway
from toolwire.gateway.records import TurnSummary
from toolwire.observe import logs
from toolwire.observe.masking import Mask
from toolwire.settings.types import ModelSettings, ServerSettings, Settings, TelemetrySettings
from toolwire.testing import ScriptedBackend, ScriptedOptions

CALLS = 'call get_weather {"city":"Paris"} id=call_one\ncall get_time {}\nusage 12 3'
OnASocket = Callable[..., AbstractAsyncContextManager[str]]
CHAT = {"model": "m", "messages": [{"role": "user", "content": "the user's own words"}]}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("get_weather", "get_time")
]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """The lines of the access log so far."""
    with caplog.at_level(logging.INFO, "toolwire.access"):
        yield lambda: [
            json.loads(record.getMessage()) for record in caplog.records if record.name == "toolwire.access"
        ]


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def gateway_of(script: str, settings: Settings) -> Gateway:
    return Gateway(
        settings, backends={"m": ScriptedBackend("m", ScriptedOptions(script=script, tools="native"))}
    )


async def asked(
    client: aiohttp.ClientSession, url: str, body: dict[str, Any], **headers: str
) -> tuple[int, str]:
    async with client.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_with_calls_is_one_line_with_its_outcome(
    on_a_socket: OnASocket,
    client: aiohttp.ClientSession,
    lines: Callable[[], list[dict[str, Any]]],
    stream: bool,
) -> None:
    settings = Settings(
        server=ServerSettings(keys=("the-only-key",)), models=(ModelSettings("m", "scripted"),)
    )
    async with on_a_socket(gateway_of(CALLS, settings), settings) as url:
        body = {**CHAT, "tools": TOOLS, "stream": stream, "seed": 7}
        status, said = await asked(
            client, url, body, **{"authorization": "Bearer the-only-key", "x-request-id": "mine-1"}
        )
    assert status == 200
    (line,) = lines()
    assert (
        line["event"] == "turn"
        and line["request_id"] == "mine-1"
        and line["key"] == key_id_of("the-only-key")
    )
    assert (line["api"], line["model"], line["strategy"], line["turn"], line["stream"]) == (
        "chat",
        "m",
        "native",
        "new",
        stream,
    )
    assert (line["status"], line["finish"], line["error"], line["cancelled"]) == (200, "stop", None, False)
    assert line["has_tool_calls"] is True and line["tool_call_count"] == 2
    assert line["tool_call_names"] == ["get_weather", "get_time"]
    assert len(line["tool_call_ids"]) == 2 and all(id in said for id in line["tool_call_ids"] if id)
    assert line["tool_call_truncated"] is False and line["output_mode"] == "openai-json"
    assert (line["input_tokens"], line["output_tokens"]) == (12, 3)
    assert (
        0 < line["first_byte_ms"] <= line["duration_ms"]
        and line["answer_id"] in said
        and "seed=" in line["report"]
    )
    assert (
        "own words" not in json.dumps(line)
        and "Paris" not in json.dumps(line)
        and "the-only-key" not in json.dumps(line)
    )


async def test_refusals_are_logged_too_with_the_refused_client(
    on_a_socket: OnASocket, client: aiohttp.ClientSession, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    settings = Settings(
        server=ServerSettings(keys=("the-only-key",)), models=(ModelSettings("m", "scripted"),)
    )
    async with on_a_socket(gateway_of("say hi", settings), settings) as url:
        await asked(client, url, CHAT, authorization="Bearer a-wrong-key-of-somebody")
        async with client.get(f"{url}/nowhere?token=in-the-query"):
            pass
        async with client.post(
            f"{url}/v1/chat/completions",
            data=b"x",
            headers={"content-type": "text/plain", "authorization": "Bearer the-only-key"},
        ):
            pass
    wrong_key, wrong_path, wrong_type = lines()
    assert (wrong_key["event"], wrong_key["status"], wrong_key["error"]) == ("refused", 401, "authentication")
    assert wrong_key["client"] == "127.0.0.1" and wrong_key["key"] == ""
    assert (wrong_path["path"], wrong_path["status"]) == ("/nowhere", 404)
    assert (wrong_type["status"], wrong_type["key"]) == (415, key_id_of("the-only-key"))
    assert not any(
        word in json.dumps(lines()) for word in ("a-wrong-key-of-somebody", "in-the-query", "the-only-key")
    )


async def test_a_turn_that_fails_is_one_line_with_the_kind_of_its_error(
    on_a_socket: OnASocket, client: aiohttp.ClientSession, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    settings = Settings(models=(ModelSettings("m", "scripted"),))
    async with on_a_socket(gateway_of("say hi", settings), settings) as url:
        assert (await asked(client, url, {**CHAT, "model": "made-up\nname"}))[0] == 404
        assert (await asked(client, url, {**CHAT, "messages": "none"}))[0] == 400
    unknown, malformed = lines()
    assert (unknown["event"], unknown["status"], unknown["error"], unknown["model"]) == (
        "turn",
        404,
        "model_not_found",
        "",
    )
    assert (malformed["status"], malformed["has_tool_calls"]) == (400, False)


async def test_other_requests_are_lines_and_those_of_machines_only_at_debug(
    on_a_socket: OnASocket,
    client: aiohttp.ClientSession,
    lines: Callable[[], list[dict[str, Any]]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = Settings(models=(ModelSettings("m", "scripted"),))
    async with on_a_socket(gateway_of("say hi", settings), settings) as url:
        for path in ("/v1/models", "/healthz", "/metrics"):
            async with client.get(url + path) as answer:
                assert answer.status == 200
        assert [(line["event"], line["path"], line["status"]) for line in lines()] == [
            ("request", "/v1/models", 200)
        ]
        with caplog.at_level(logging.DEBUG, "toolwire.access"):
            async with client.get(url + "/healthz"):
                pass
    assert lines()[-1]["path"] == "/healthz"


async def test_contents_are_logged_at_debug_only(
    on_a_socket: OnASocket, client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(models=(ModelSettings("m", "scripted"),))
    body = {**CHAT, "stream": True}
    with caplog.at_level(logging.DEBUG, "toolwire.access"):
        async with on_a_socket(gateway_of("say the model's own words", settings), settings) as url:
            await asked(client, url, body)
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "toolwire.access"]
    (contents,) = [line for line in lines if line["event"] == "contents"]
    assert contents["input"] == [
        {"role": "user", "parts": [{"type": "text", "content": "the user's own words"}]}
    ]
    assert contents["output"] == [
        {"role": "assistant", "parts": [{"type": "text", "content": "the model's own words"}]}
    ]
    assert all("own words" not in json.dumps(line) for line in lines if line["event"] != "contents")


# --- how lines are written ----------------------------------------------


def written(
    patch: pytest.MonkeyPatch, format: logs.LogFormat, mask: Mask, log: Callable[[], None]
) -> list[str]:
    """The lines that `log` causes on stderr."""
    root, out = logging.getLogger(), io.StringIO()
    patch.setattr("sys.stderr", out)
    level, handlers = root.level, root.handlers[:]
    root.handlers.clear()
    try:
        logs.configure("info", format, mask)
        log()
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
    return out.getvalue().splitlines()


def summary(**made: Any) -> TurnSummary:
    asked = {
        "request_id": "req_1",
        "key_id": "",
        "api": "chat",
        "model": "m",
        "backend": "openai",
        "strategy": "none",
        "stream": False,
    }
    ended = {
        "status": 200,
        "finish": "stop",
        "error_kind": None,
        "cancelled": False,
        "output_mode": "openai-json",
        "report": "",
    }
    called = {"tool_call_count": 0, "tool_call_names": (), "tool_call_ids": (), "tool_call_truncated": False}
    used = {"input_tokens": 9, "output_tokens": 3, "first_byte_s": 0.25, "duration_s": 0.5}
    return TurnSummary(
        **{**asked, **ended, **called, **used, "turn_id": "turn_1", "answer_id": "chatcmpl-1", **made}
    )


def log_everything() -> None:
    log = logs.RequestLog()
    log.node = "node_1"
    fields = {"event": "request", "request_id": "r", "path": 'a "b"\nc=d', "status": 200, "error": None}
    log._log(logging.INFO, {**fields, "names": ["x", "y"]})
    url = "postgresql://toolwire:s3cret-of-the-store@db/toolwire"
    logging.getLogger("toolwire.store").warning("can not reach %s", url)
    try:
        raise ValueError("Bearer abcdefghijklmnopqrstuvwx")
    except ValueError:
        logging.getLogger("toolwire.http").exception("it broke with node-secret-canary")


MASK = Mask(("node-secret-canary",))


def test_as_json_every_line_is_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    request, warning, broken = map(json.loads, written(monkeypatch, "json", MASK, log_everything))
    assert list(request) == ["time", "node", "event", "request_id", "path", "status", "error", "names"]
    assert request["node"] == "node_1" and request["path"] == 'a "b"\nc=d' and request["names"] == ["x", "y"]
    assert (warning["event"], warning["level"], warning["logger"]) == ("log", "warning", "toolwire.store")
    assert warning["message"] == "can not reach postgresql://toolwire:***@db/toolwire"
    assert "Traceback" in broken["error"] and broken["message"] == "it broke with ***"
    assert "abcdefghijklmnop" not in json.dumps(broken)


def test_as_text_a_request_is_one_line_whatever_a_client_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    request, warning, *broken = written(monkeypatch, "text", MASK, log_everything)
    assert request.endswith(r'INFO request node=node_1 request_id=r path="a \"b\"\nc=d" status=200 names=x,y')
    assert warning.endswith("WARNING toolwire.store: can not reach postgresql://toolwire:***@db/toolwire")
    assert not any("canary" in line or "abcdefghijklmnop" in line for line in broken)


@pytest.mark.parametrize(
    "words",
    [
        {"request_id": "node-secret-canary"},
        {"model": "node-secret-canary"},
        {"model": "m/sk-0123456789abcdefghij"},
        {"key_name": "node-secret-canary"},
        {"report": "node-secret-canary"},
        {"tool_call_count": 1, "tool_call_names": ("node-secret-canary",)},
        {"tool_call_count": 1, "tool_call_ids": ("node-secret-canary",)},
    ],
)
def test_a_secret_among_a_clients_own_names_is_masked_too(
    monkeypatch: pytest.MonkeyPatch, words: dict[str, Any]
) -> None:
    for format in logs.LOG_FORMATS:
        (line,) = written(monkeypatch, format, MASK, lambda: logs.RequestLog().turn(summary(**words)))
        assert "***" in line and "canary" not in line and "0123456789" not in line


MINIMAL = (
    "request_id=req_1 api=chat model=m backend=openai strategy=none turn=new status=200 finish=stop"
    " output_mode=openai-json turn_id=turn_1 answer_id=chatcmpl-1 input_tokens=9 output_tokens=3"
    " first_byte_ms=250.00 duration_ms=500.00"
)
TWO_CALLS = {"tool_call_count": 2, "tool_call_names": ("a", "b"), "tool_call_ids": ("x", "y z")}


@pytest.mark.parametrize(
    ("made", "changed"),
    [
        ({}, {}),
        (
            {"key_id": "k1", "key_name": 'a "b"', "model": "two words\nand \ud800 more", "stream": True},
            {
                "api=chat": r'key=k1 key_name="a \"b\"" api=chat',
                "model=m": r'model="two words\nand � more"',
                "turn=new": "turn=new stream=true",
            },
        ),
        (
            {
                "error_kind": "backend",
                "status": 502,
                "finish": None,
                "first_byte_s": None,
                "report": "seed=ignored",
            },
            {
                "status=200 finish=stop": "status=502 error=backend",
                "openai-json": 'openai-json report="seed=ignored"',
                "first_byte_ms=250.00 ": "",
            },
        ),
        (
            {
                "cancelled": True,
                "input_tokens": 0,
                "output_tokens": 0,
                "kind": "resumed",
                "first_byte_s": 0.0,
            },
            {
                "turn=new": "turn=resumed",
                "finish=stop": "finish=stop cancelled=true",
                "input_tokens=9 output_tokens=3 ": "",
                "first_byte_ms=250.00": "first_byte_ms=0.00",
            },
        ),
        (
            {**TWO_CALLS, "dropped": {"tail": 3}, "cached_tokens": 3, "reasoning_tokens": 2},
            {
                "output_tokens=3": "cached_tokens=3 output_tokens=3 reasoning_tokens=2 has_tool_calls=true"
                r' tool_call_count=2 tool_call_names=a,b tool_call_ids="x,y z" dropped="{\"tail\":3}"'
            },
        ),
    ],
)
@pytest.mark.parametrize("node", ["", "node_1"])
def test_a_turn_is_one_line_of_text_without_its_empty_fields(
    monkeypatch: pytest.MonkeyPatch, made: dict[str, Any], changed: dict[str, str], node: str
) -> None:
    log, expected = logs.RequestLog(), MINIMAL
    log.node = node
    for before, after in changed.items():
        assert before in expected
        expected = expected.replace(before, after)
    (line,) = written(monkeypatch, "text", MASK, lambda: log.turn(summary(**made)))
    assert line.partition(" INFO turn ")[2] == ("node=node_1 " if node else "") + expected


def test_as_json_a_turn_has_all_its_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = summary(key_name="lone \ud800")
    (line,) = written(monkeypatch, "json", MASK, lambda: logs.RequestLog().turn(turn))
    fields = json.loads(line)
    assert list(fields) == ["time", *logs.turn_fields(turn)]
    assert {"time", "event", *logs.TURN_TEXT_ORDER} == {"node", *fields}
    assert fields["key_name"] == "lone \ufffd" and fields["first_byte_ms"] == 250.0
    assert fields["tool_call_names"] == []


WORDS = st.one_of(
    st.sampled_from(["", "m", "a b", "node-secret-canary"]),
    st.sampled_from(["Bearer abcdefghijklmnopqrstuvwx", "pwd=x1", "\ud800"]),
    st.text(max_size=150),
)
FEW_WORDS = st.lists(WORDS, max_size=3).map(tuple)
COUNTS = st.integers(0, 2**40)
SECONDS = st.floats(0, 1e6)
SUMMARIES = st.builds(
    lambda **fields: TurnSummary(**fields),
    **dict.fromkeys(("request_id", "key_id", "model", "backend", "strategy", "output_mode", "report"), WORDS),
    **dict.fromkeys(("kind", "key_name", "turn_id", "answer_id"), WORDS),
    **dict.fromkeys(("finish", "error_kind"), st.none() | WORDS),
    **dict.fromkeys(("stream", "cancelled", "tool_call_truncated"), st.booleans()),
    **dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"), COUNTS),
    **dict.fromkeys(("tool_call_names", "tool_call_ids"), FEW_WORDS),
    api=st.sampled_from(["chat", "responses"]),
    status=st.sampled_from([200, 400, 502]),
    tool_call_count=st.integers(0, 3),
    dropped=st.dictionaries(WORDS, COUNTS, max_size=2),
    first_byte_s=st.none() | SECONDS,
    duration_s=SECONDS,
)


@pytest.mark.parametrize("mask", [None, MASK], ids=["not masked", "masked"])
@pytest.mark.parametrize("formatter", [logs.TextFormatter, logs.JsonFormatter])
@given(turn=SUMMARIES, node=WORDS, at=st.floats(1e9, 4e9))
@example(turn=summary(), node="", at=1_700_000_000.9999)
def test_a_turns_line_is_the_same_with_and_without_a_record(
    formatter: type[logs.TextFormatter | logs.JsonFormatter],
    mask: Mask | None,
    turn: TurnSummary,
    node: str,
    at: float,
) -> None:
    fields = {"node": node, **logs.turn_fields(turn)} if node else logs.turn_fields(turn)
    record = logging.LogRecord("toolwire.access", logging.INFO, "", 0, "", (), None)
    record.created, record.msecs, record.fields = at, int((at - int(at)) * 1000) + 0.0, fields
    assert formatter(mask).turn_line(turn, node, at) == formatter(mask).format(record)


@pytest.mark.parametrize("where", ["toolwire", "toolwire.access"])
def test_other_handlers_see_a_turn_as_json(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    seen: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(self.format(record))

    listener = Listener()
    logging.getLogger(where).addHandler(listener)
    try:
        assert len(written(monkeypatch, "text", MASK, lambda: logs.RequestLog().turn(summary()))) == 1
    finally:
        logging.getLogger(where).removeHandler(listener)
    assert [json.loads(line)["turn_id"] for line in seen] == ["turn_1"]


def test_a_filter_sees_the_record_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(record: logging.LogRecord) -> bool:
        return False

    logs.access.addFilter(nothing)
    try:
        assert written(monkeypatch, "text", MASK, lambda: logs.RequestLog().turn(summary())) == []
    finally:
        logs.access.removeFilter(nothing)


def test_contents_are_kept_only_if_the_settings_ask_for_them() -> None:
    assert not Gateway(Settings()).contents_wanted
    assert not Gateway(Settings(telemetry=TelemetrySettings(with_contents=True))).contents_wanted
    assert Gateway(
        Settings(telemetry=TelemetrySettings("http://127.0.0.1:4318", with_contents=True))
    ).contents_wanted


# --- when lines are written ---------------------------------------------


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    root, stream = logging.getLogger(), io.StringIO()
    before, level = list(root.handlers), root.level
    monkeypatch.setattr("sys.stderr", stream)
    logs.configure("info")
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


async def test_a_line_is_written_at_once_and_in_order(stderr: io.StringIO) -> None:
    log = logging.getLogger("toolwire.http")
    log.info("one")
    assert stderr.getvalue().endswith("one\n")
    log.warning("two")
    log.info("three")
    assert [line.rpartition(" ")[2] for line in stderr.getvalue().splitlines()] == ["one", "two", "three"]


def without_other_handlers() -> None:
    """Removes the handlers that pytest adds for every test."""
    root = logging.getLogger()
    root.handlers[:] = [one for one in root.handlers if isinstance(one, logs.Handler)]


async def test_the_lines_of_turns_are_written_together_and_before_any_other_line(stderr: io.StringIO) -> None:
    def events() -> list[str]:
        return [line.split()[3] for line in stderr.getvalue().splitlines()]

    without_other_handlers()
    log = logs.RequestLog()
    log.turn(summary())
    log.turn(summary())
    assert events() == []
    await asyncio.sleep(0)
    assert events() == ["turn", "turn"]
    log.turn(summary())
    log.passed_on("req_1", "", "chat", "node_2", "ok")
    assert events() == ["turn", "turn", "turn", "passed_on"]
    log.turn(summary())
    logging.getLogger().handlers[0].flush()
    assert events()[4:] == ["turn"]
    log.turn(summary())
    logs.configure("info")
    assert events()[5:] == ["turn"]


async def test_lines_of_turns_that_cannot_be_written_are_lost(stderr: io.StringIO) -> None:
    without_other_handlers()
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    logs.RequestLog().turn(summary())
    stderr.close()
    await asyncio.sleep(0)
    logs.RequestLog().turn(summary())
    await asyncio.sleep(0)
    assert problems == [] and stderr.closed


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), BrokenPipeError(32, "Broken pipe")]
)
def test_a_log_that_cannot_be_written_costs_nothing_else(
    stderr: io.StringIO, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def failing(text: str) -> int:
        raise error

    log = logging.getLogger("toolwire.http")
    with monkeypatch.context() as patched:
        patched.setattr(stderr, "write", failing)
        log.info("lost")
        logs.RequestLog().turn(summary())
    log.info("kept")
    (line,) = stderr.getvalue().splitlines()
    assert line.endswith("kept")
    stderr.close()
    log.info("lost too")


def test_a_message_that_cannot_be_formatted_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = written(
        monkeypatch, "text", MASK, lambda: logging.getLogger("toolwire").info("%d", "not a number")
    )
    assert "--- Logging error ---" in lines


def test_what_is_said_at_any_level_is_text_or_an_object_and_configuring_again_replaces_the_handler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def say() -> None:
        logs.configure("warning", "json", MASK)
        logs.say("as text", event="pages", url="http://node-secret-canary/")
        logging.getLogger("toolwire.http").warning("once")
        logs.configure("warning")
        logs.say("as text", event="pages")

    pages, once, text = written(monkeypatch, "text", MASK, say)
    assert (json.loads(pages)["event"], json.loads(pages)["url"]) == ("pages", "http://***/")
    assert json.loads(once)["message"] == "once" and text == "as text"

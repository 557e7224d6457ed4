"""One line a request: what stands in it, what does not, and how it is written."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
import pytest

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
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("get_weather", "get_time")]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """The lines of the access log so far."""
    with caplog.at_level(logging.INFO, "toolwire.access"):
        yield lambda: [json.loads(record.getMessage()) for record in caplog.records if record.name == "toolwire.access"]


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def gateway_of(script: str, settings: Settings) -> Gateway:
    return Gateway(settings, backends={"m": ScriptedBackend("m", ScriptedOptions(script=script, tools="native"))})


async def asked(client: aiohttp.ClientSession, url: str, body: dict[str, Any], **headers: str) -> tuple[int, str]:
    async with client.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_with_calls_is_one_line_that_says_how_it_went(
    on_a_socket: OnASocket, client: aiohttp.ClientSession, lines: Callable[[], list[dict[str, Any]]], stream: bool
) -> None:
    settings = Settings(server=ServerSettings(keys=("the-only-key",)), models=(ModelSettings("m", "scripted"),))
    async with on_a_socket(gateway_of(CALLS, settings), settings) as url:
        body = {**CHAT, "tools": TOOLS, "stream": stream, "seed": 7}
        status, said = await asked(client, url, body, **{"authorization": "Bearer the-only-key", "x-request-id": "mine-1"})
    assert status == 200
    (line,) = lines()
    assert line["event"] == "turn" and line["request_id"] == "mine-1" and line["key"] == key_id_of("the-only-key")
    assert (line["api"], line["model"], line["strategy"], line["turn"], line["stream"]) == ("chat", "m", "native", "new", stream)
    assert (line["status"], line["finish"], line["error"], line["cancelled"]) == (200, "stop", None, False)
    assert line["has_tool_calls"] is True and line["tool_call_count"] == 2
    assert line["tool_call_names"] == ["get_weather", "get_time"]
    assert len(line["tool_call_ids"]) == 2 and all(id in said for id in line["tool_call_ids"] if id)
    assert line["tool_call_truncated"] is False and line["output_mode"] == "openai-json"
    assert (line["input_tokens"], line["output_tokens"]) == (12, 3)
    assert 0 < line["first_byte_ms"] <= line["duration_ms"] and line["answer_id"] in said and "seed=" in line["report"]
    assert "own words" not in json.dumps(line) and "Paris" not in json.dumps(line) and "the-only-key" not in json.dumps(line)


async def test_refusals_are_lines_too_with_who_was_refused(
    on_a_socket: OnASocket, client: aiohttp.ClientSession, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    settings = Settings(server=ServerSettings(keys=("the-only-key",)), models=(ModelSettings("m", "scripted"),))
    async with on_a_socket(gateway_of("say hi", settings), settings) as url:
        await asked(client, url, CHAT, authorization="Bearer a-wrong-key-of-somebody")
        async with client.get(f"{url}/nowhere?token=in-the-query"):
            pass
        async with client.post(
            f"{url}/v1/chat/completions", data=b"x", headers={"content-type": "text/plain", "authorization": "Bearer the-only-key"}
        ):
            pass
    wrong_key, wrong_path, wrong_type = lines()
    assert (wrong_key["event"], wrong_key["status"], wrong_key["error"]) == ("refused", 401, "authentication")
    assert wrong_key["client"] == "127.0.0.1" and wrong_key["key"] == ""
    assert (wrong_path["path"], wrong_path["status"]) == ("/nowhere", 404)
    assert (wrong_type["status"], wrong_type["key"]) == (415, key_id_of("the-only-key"))
    assert not any(word in json.dumps(lines()) for word in ("a-wrong-key-of-somebody", "in-the-query", "the-only-key"))


async def test_a_turn_that_fails_is_one_line_with_the_kind_of_its_error(
    on_a_socket: OnASocket, client: aiohttp.ClientSession, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    settings = Settings(models=(ModelSettings("m", "scripted"),))
    async with on_a_socket(gateway_of("say hi", settings), settings) as url:
        assert (await asked(client, url, {**CHAT, "model": "made-up\nname"}))[0] == 404
        assert (await asked(client, url, {**CHAT, "messages": "none"}))[0] == 400
    unknown, malformed = lines()
    assert (unknown["event"], unknown["status"], unknown["error"], unknown["model"]) == ("turn", 404, "model_not_found", "")
    assert (malformed["status"], malformed["has_tool_calls"]) == (400, False)


async def test_other_requests_are_lines_and_those_of_machines_only_at_debug(
    on_a_socket: OnASocket, client: aiohttp.ClientSession, lines: Callable[[], list[dict[str, Any]]], caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(models=(ModelSettings("m", "scripted"),))
    async with on_a_socket(gateway_of("say hi", settings), settings) as url:
        for path in ("/v1/models", "/healthz", "/metrics"):
            async with client.get(url + path) as answer:
                assert answer.status == 200
        assert [(line["event"], line["path"], line["status"]) for line in lines()] == [("request", "/v1/models", 200)]
        with caplog.at_level(logging.DEBUG, "toolwire.access"):
            async with client.get(url + "/healthz"):
                pass
    assert lines()[-1]["path"] == "/healthz"


async def test_what_was_said_stands_in_the_log_at_debug_only_and_masked(
    on_a_socket: OnASocket, client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(models=(ModelSettings("m", "scripted"),))
    body = {**CHAT, "stream": True}
    with caplog.at_level(logging.DEBUG, "toolwire.access"):
        async with on_a_socket(gateway_of("say the model's own words", settings), settings) as url:
            await asked(client, url, body)
    told = [json.loads(record.getMessage()) for record in caplog.records if record.name == "toolwire.access"]
    (contents,) = [line for line in told if line["event"] == "contents"]
    assert contents["input"] == [{"role": "user", "parts": [{"type": "text", "content": "the user's own words"}]}]
    assert contents["output"] == [{"role": "assistant", "parts": [{"type": "text", "content": "the model's own words"}]}]
    assert all("own words" not in json.dumps(line) for line in told if line["event"] != "contents")


# --- how lines are written ---------------------------------------------------------------------------------------------------------------------


def written(monkeypatch: pytest.MonkeyPatch, format: logs.LogFormat, mask: Mask, tell: Callable[[], None], alone: bool = False) -> list[str]:
    """`alone`: as in a server, where no other handler than ours sees a line."""
    root, out = logging.getLogger(), io.StringIO()
    monkeypatch.setattr("sys.stderr", out)
    level, handlers = root.level, root.handlers[:]
    try:
        if alone:
            root.handlers.clear()
        logs.configure("info", format, mask)
        tell()
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
    return out.getvalue().splitlines()


def summary(**made: Any) -> TurnSummary:
    asked = {"request_id": "req_1", "key_id": "", "api": "chat", "model": "m", "backend": "openai", "strategy": "none", "stream": False}
    ended = {"status": 200, "finish": "stop", "error_kind": None, "cancelled": False, "output_mode": "openai-json", "report": ""}
    called = {"tool_call_count": 0, "tool_call_names": (), "tool_call_ids": (), "tool_call_truncated": False}
    used = {"input_tokens": 9, "output_tokens": 3, "first_byte_s": 0.25, "duration_s": 0.5}
    return TurnSummary(**{**asked, **ended, **called, **used, "turn_id": "turn_1", "answer_id": "chatcmpl-1", **made})


def twice(log: logs.RequestLog, told: TurnSummary) -> Callable[[], None]:
    def tell() -> None:
        log.turn(told)
        log.turn(told)

    return tell


def tell_everything() -> None:
    log = logs.RequestLog()
    log.node = "node_1"
    log._tell(logging.INFO, {"event": "turn", "request_id": "r", "path": 'a "b"\nc=d', "status": 200, "tool_call_names": ["x", "y"], "error": None})
    logging.getLogger("toolwire.store").warning("can not reach %s", "postgresql://toolwire:s3cret-of-the-store@db/toolwire")
    try:
        raise ValueError("Bearer abcdefghijklmnopqrstuvwx")
    except ValueError:
        logging.getLogger("toolwire.http").exception("it broke with node-secret-canary")


MASK = Mask(("node-secret-canary",))


def test_as_json_every_line_is_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    turn, warning, broken = map(json.loads, written(monkeypatch, "json", MASK, tell_everything))
    assert turn["event"] == "turn" and turn["node"] == "node_1" and turn["path"] == 'a "b"\nc=d' and turn["tool_call_names"] == ["x", "y"]
    assert (warning["event"], warning["level"], warning["logger"]) == ("log", "warning", "toolwire.store")
    assert warning["message"] == "can not reach postgresql://toolwire:***@db/toolwire"
    assert "Traceback" in broken["error"] and broken["message"] == "it broke with ***" and "abcdefghijklmnop" not in json.dumps(broken)


def test_as_text_a_request_is_one_line_whatever_a_client_called_its_things(monkeypatch: pytest.MonkeyPatch) -> None:
    turn, warning, *broken = written(monkeypatch, "text", MASK, tell_everything)
    assert turn.endswith(r'INFO turn node=node_1 request_id=r path="a \"b\"\nc=d" status=200 tool_call_names=x,y')
    assert warning.endswith("WARNING toolwire.store: can not reach postgresql://toolwire:***@db/toolwire")
    assert not any("canary" in line or "abcdefghijklmnop" in line for line in broken)


@pytest.mark.parametrize(
    "words",
    [
        {"request_id": "node-secret-canary"},
        {"model": "node-secret-canary"},
        {"model": "m/sk-0123456789abcdefghij"},
        {"tool_call_count": 1, "tool_call_names": ("node-secret-canary",)},
        {"tool_call_count": 1, "tool_call_ids": ("node-secret-canary",)},
    ],
)
def test_a_secret_among_a_clients_own_names_is_masked_too(monkeypatch: pytest.MonkeyPatch, words: dict[str, Any]) -> None:
    log = logs.RequestLog()
    for format in logs.LOG_FORMATS:
        lines = written(monkeypatch, format, MASK, twice(log, summary(**words)))
        assert len(lines) == 2 and all("***" in line and "canary" not in line and "0123456789" not in line for line in lines)


@pytest.mark.parametrize(
    "made",
    [
        {},
        {"key_id": "k1", "key_name": 'a "b"', "model": "two words\nand \ud800 more", "stream": True, "cached_tokens": 3},
        {"error_kind": "backend", "status": 502, "finish": None, "first_byte_s": None, "report": "seed=ignored; stop=emulated"},
        {"cancelled": True, "input_tokens": 0, "output_tokens": 0, "kind": "resumed"},
        {"tool_call_count": 2, "tool_call_names": ("a", "b"), "tool_call_ids": ("x", "y")},
        {"dropped": {"tail": 3}},
    ],
)
@pytest.mark.parametrize("node", ["", "node_1"])
def test_a_turns_line_of_text_tells_what_its_fields_tell(monkeypatch: pytest.MonkeyPatch, made: dict[str, Any], node: str) -> None:
    log, told = logs.RequestLog(), summary(**made)
    log.node = node
    first, second = written(monkeypatch, "text", MASK, twice(log, told))
    fields = {"node": node, **logs.turn_fields(told)}
    wanted = set(logs._shown((name, value) for name, value in fields.items() if name != "event" and not name.endswith("_ms")))
    for line in (first, second):
        assert " INFO turn " in line
        body = line.partition(" INFO turn ")[2]
        assert all(f" {one} " in f" {body} " for one in wanted)
        assert f"duration_ms={fields['duration_ms']:g}" in body and ("first_byte_ms=" in body) == (told.first_byte_s is not None)
        assert len(body) == len(" ".join([*wanted, *(word for word in body.split() if "_ms=" in word)]))


@pytest.mark.parametrize("format", logs.LOG_FORMATS)
@pytest.mark.parametrize("made", [{}, {"model": "node-secret-canary", "tool_call_count": 1, "tool_call_names": ("a b",)}])
def test_a_turns_line_is_the_same_whether_others_see_it_or_not(monkeypatch: pytest.MonkeyPatch, format: logs.LogFormat, made: dict[str, Any]) -> None:
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.25)
    log = logs.RequestLog()
    log.node = "node_1"
    seen, records, handle = list[list[str]](), list[logging.LogRecord](), logging.Logger.handle

    def watched(self: logging.Logger, record: logging.LogRecord) -> None:
        records.append(record)
        handle(self, record)

    monkeypatch.setattr(logging.Logger, "handle", watched)
    for alone in (False, True):
        seen.append(written(monkeypatch, format, MASK, twice(log, summary(**made)), alone))
    assert seen[0] == seen[1] and len(seen[0]) == 2
    assert len(records) == 2  # of the turns that others saw


@pytest.mark.parametrize("where", ["toolwire", "toolwire.access"])
def test_whoever_listens_between_sees_a_turns_line_too(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    seen: list[logging.LogRecord] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    listener = Listener()
    logging.getLogger(where).addHandler(listener)
    try:
        assert len(written(monkeypatch, "text", MASK, twice(logs.RequestLog(), summary()), alone=True)) == 2
    finally:
        logging.getLogger(where).removeHandler(listener)
    assert [record.name for record in seen] == ["toolwire.access"] * 2


def test_contents_are_kept_for_nobody_unless_somebody_wants_them() -> None:
    assert not Gateway(Settings()).contents_wanted
    assert not Gateway(Settings(telemetry=TelemetrySettings(with_contents=True))).contents_wanted
    assert Gateway(Settings(telemetry=TelemetrySettings("http://127.0.0.1:4318", with_contents=True))).contents_wanted


# --- when lines are written ----------------------------------------------------------------------------------------------------------------------


class Writes(io.StringIO):
    """A stream that remembers each write."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def write(self, text: str) -> int:
        self.seen.append(text)
        return len(text)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Writes]:
    root = logging.getLogger()
    before, level, stream = list(root.handlers), root.level, Writes()
    monkeypatch.setattr("sys.stderr", stream)
    logs.configure("info")
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


async def test_lines_of_one_turn_of_the_loop_are_one_write_and_a_warning_waits_for_nothing(writes: Writes) -> None:
    log = logging.getLogger("toolwire.http")
    log.info("one")
    log.info("two")
    assert writes.seen == []
    await asyncio.sleep(0)
    assert len(writes.seen) == 1 and writes.seen[0].splitlines()[0].endswith("one") and writes.seen[0].splitlines()[1].endswith("two")
    log.info("three")
    log.warning("four")
    assert [line.rpartition(" ")[2] for line in writes.seen[1].splitlines()] == ["three", "four"]
    await asyncio.sleep(0)
    assert len(writes.seen) == 2


def test_outside_of_the_loop_a_line_is_written_at_once(writes: Writes) -> None:
    logging.getLogger("toolwire.http").info("one")
    assert len(writes.seen) == 1 and writes.seen[0].endswith("one\n")


async def test_a_line_that_comes_while_another_thread_writes_is_written_too(writes: Writes, monkeypatch: pytest.MonkeyPatch) -> None:
    (handler,) = (one for one in logging.getLogger().handlers if isinstance(one, logs._Handler))
    log, writing, go_on = logging.getLogger("toolwire.http"), threading.Event(), threading.Event()

    class Waiting(deque[str]):
        def popleft(self) -> str:
            writing.set()
            go_on.wait(5)
            return super().popleft()

    monkeypatch.setattr(handler, "_waiting", Waiting())
    other = threading.Thread(target=log.info, args=("one",))
    other.start()
    await asyncio.to_thread(writing.wait, 5)
    log.info("two")
    go_on.set()
    await asyncio.to_thread(other.join, 5)
    log.info("three")
    await asyncio.sleep(0)
    assert [line.rpartition(" ")[2] for line in "".join(writes.seen).splitlines()] == ["one", "two", "three"]


async def test_a_log_that_can_not_be_written_costs_nothing_else(writes: Writes, monkeypatch: pytest.MonkeyPatch) -> None:
    troubles: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: troubles.append(context))

    def full(text: str) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(writes, "write", full)
        logging.getLogger("toolwire.http").info("lost")
        await asyncio.sleep(0)
    logging.getLogger("toolwire.http").info("kept")
    await asyncio.sleep(0)
    assert troubles == [] and len(writes.seen) == 1 and writes.seen[0].endswith("kept\n")

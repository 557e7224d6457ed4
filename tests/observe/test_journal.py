"""The journal: records turns within limits, without affecting them, and masks secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import stat
from collections.abc import AsyncGenerator
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from toolwire.backends.agents.run import AgentRun
from toolwire.backends.base import Batch, frame_tap, frames
from toolwire.backends.openai import OpenAIBackend
from toolwire.core.errors import ToolwireError
from toolwire.core.events import CallArgs, CallBegin, CallEnd, Finish, Text, Usage
from toolwire.core.turn import Api, Result, TextPart, Turn
from toolwire.gateway.pipeline import Caller, Gateway
from toolwire.gateway.plan import Plan, make_plan
from toolwire.observe import journal as journals
from toolwire.observe import recording as recordings
from toolwire.observe import trace as tracing
from toolwire.observe.fixture import masked, write
from toolwire.observe.journal import Journal
from toolwire.observe.journal_files import Segments, TurnRecord
from toolwire.observe.masking import Mask, secrets_of
from toolwire.observe.recording import Recording, got, wrote
from toolwire.observe.trace import FRAME
from toolwire.settings.types import JournalSettings, ModelSettings, ParkedSettings, ServerSettings, Settings
from toolwire.store.store import Store
from toolwire.testing import ScriptedBackend, ScriptedOptions
from toolwire.testing.upstream import FakeUpstream, Reply, answer, chunk, completion

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SCRIPT = 'chunk 4\nsay Let me look outside.\ncall get_weather {"city": "Paris"}\n---\nsay It is {result}.'


def scripted(
    script: str = SCRIPT,
    tools: Any = "native",
    *,
    store: Store | None = None,
    contents: Any = "memory",
    **settings: Any,
) -> Gateway:
    backend = ScriptedBackend("m", ScriptedOptions(script=script, tools=tools))
    chosen = JournalSettings(contents=contents, max_mb=settings.pop("max_mb", 256))
    return Gateway(Settings(journal=chosen, **settings), backends={"m": backend}, store=store)


async def ask(
    gateway: Gateway,
    content: str = "Weather?",
    *,
    tools: bool = True,
    stream: bool = True,
    key: str = "key",
    **extra: Any,
) -> bytes:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": content}],
        "stream": stream,
        **({"tools": [TOOL]} if tools else {}),
        **extra,
    }
    reply = await gateway.respond("chat", json.dumps(body).encode(), Caller(key, "req_1"))
    return reply.body or b"" if reply.stream is None else b"".join([block async for block in reply.stream])


def journal_of(gateway: Gateway) -> Journal:
    assert gateway.journal is not None
    return gateway.journal


async def last(gateway: Gateway) -> tuple[TurnRecord, Recording]:
    record = journal_of(gateway).records()[0]
    recording = await journal_of(gateway).recording(record.id)
    assert recording is not None
    return record, recording


# --- what is recorded ---


@pytest.mark.parametrize("tools", ["native", "emulated", "constrained", "parked"])
async def test_a_turn_is_recorded_completely(tools: str) -> None:
    gateway = scripted(tools=tools)
    raw = await ask(gateway)
    record, recording = await last(gateway)
    assert (record.state, record.status, record.calls, record.strategy) == (
        "ended",
        200,
        ("get_weather",),
        tools,
    )
    assert (record.request_id, record.key, record.model, record.stream) == ("req_1", "key", "m", True)
    assert "".join(text for _, _, text in recording.wire).encode() == raw
    assert recording.request["body"]["messages"][0]["content"] == "Weather?"
    assert got(recording)["text"].strip() == "Let me look outside."
    assert [(call["name"], json.loads(call["arguments"])) for call in got(recording)["calls"]] == [
        ("get_weather", {"city": "Paris"})
    ]
    assert "Let me look outside." in wrote(recording) and "Paris" in wrote(recording)
    times = [row[0] for row in recording.batches]
    assert times == sorted(times) and times[-1] <= (record.duration_ms or 0)


async def test_what_the_model_wrote_and_what_the_client_got_differ_where_calls_are_text() -> None:
    gateway = scripted(tools="emulated")
    await ask(gateway)
    _, recording = await last(gateway)
    nonce = recording.plans[-1]["nonce"]
    assert f"<tool_call:{nonce}>" in wrote(recording)
    assert nonce not in got(recording)["text"]
    assert {
        "field": "tools",
        "how": "emulated",
        "note": "done by Toolwire instead of the backend",
    } in recording.plans[-1]["report"]
    assert recording.plans[-1]["asked"]["items"] != recording.request["turn"]["items"]


async def test_a_body_is_recorded_as_one_block() -> None:
    gateway = scripted()
    raw = await ask(gateway, stream=False)
    _, recording = await last(gateway)
    assert [(label, text.encode()) for _, label, text in recording.wire] == [("body", raw)]


async def test_a_refused_request_is_recorded_with_its_error() -> None:
    gateway = scripted()
    with pytest.raises(ToolwireError):
        await ask(gateway, temperature="hot")
    record, recording = await last(gateway)
    assert (record.status, record.error, record.state) == (400, "invalid_type", "ended")
    assert [label for _, label, _ in recording.wire] == ["error"]


async def test_a_running_turn_is_listed_and_a_disconnect_marks_it_cancelled() -> None:
    gateway = scripted("chunk 3\nsay Hello there.\nhang")
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    reply = await gateway.respond("chat", json.dumps(body).encode(), Caller())
    assert reply.stream is not None
    await anext(reply.stream)
    record, recording = await last(gateway)
    assert (record.state, record.model, record.status) == ("running", "m", None)
    assert got(recording)["text"].startswith("Hel")
    await reply.stream.aclose()  # type: ignore[attr-defined]
    record, _ = await last(gateway)
    assert (record.state, record.cancelled) == ("ended", True)


async def test_a_resumed_turn_names_its_parked_turn_and_the_wait() -> None:
    gateway = scripted(tools="parked", parked=ParkedSettings())
    first = json.loads(await ask(gateway, stream=False))
    message = first["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
    history = [{"role": "user", "content": "Weather?"}, message, result]
    assert b"sunny" in await ask(gateway, messages=history)
    later, earlier = journal_of(gateway).records()
    assert (earlier.parked, earlier.kind, earlier.resumed_from) == (True, "new", None)
    assert (later.parked, later.kind, later.resumed_from) == (False, "resumed", earlier.id)
    assert later.parked_ms is not None and later.parked_ms >= 0
    await gateway.close()


async def test_listeners_are_called_when_a_turn_is_planned_and_when_it_ends() -> None:
    gateway = scripted()
    told: list[dict[str, Any]] = []
    journal_of(gateway).listeners.append(lambda turn: told.append(turn()))
    await ask(gateway)
    assert [(turn["state"], turn["model"], turn["strategy"]) for turn in told] == [
        ("running", "m", "native"),
        ("ended", "m", "native"),
    ]
    assert told[0]["id"] == told[1]["id"] and told[1]["calls"] == ["get_weather"]


async def test_the_journal_can_be_disabled(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/store.db")
    gateway = scripted(contents="off", store=store)
    await ask(gateway)
    await gateway.close()
    await store.close()
    assert gateway.journal is None and not (tmp_path / "journal").exists()


# --- frames ---


async def test_raw_bytes_from_a_server_are_recorded_and_its_key_is_not() -> None:
    async with FakeUpstream(Reply.stream(answer(text="Hello there, person."))) as upstream:
        backend = OpenAIBackend(
            "m", {"base_url": upstream.base_url, "api_key": "sesame-sesame-sesame", "profile": "openai"}
        )
        gateway = Gateway(Settings(), backends={"m": backend})
        await ask(gateway)
        _, recording = await last(gateway)
        await gateway.close()
    labels = [label for _, label, _ in recording.frames]
    assert labels[0] == "sent" and set(labels[1:]) == {"read"}
    assert json.loads(recording.frames[0][2])["messages"][0]["content"] == "Weather?"
    assert '"content":"Hell"' in "".join(text for _, _, text in recording.frames).replace('": "', '":"')
    assert not any("sesame" in line for line in write(recording))


class Framed(ScriptedBackend):
    """Reads two frames per batch, half of them long after the first block was sent."""

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        tap = frame_tap()
        for piece in ("one ", "two ", "three"):
            if tap is not None:
                tap("half", piece[:2])
                tap("half", piece[2:].encode())
            yield [Text(piece)]
            await asyncio.sleep(0)
        yield [Finish()]


@pytest.mark.parametrize("choices", [1, 2])
async def test_concurrent_requests_do_not_mix_their_frames(choices: int) -> None:
    gateway = Gateway(Settings(), backends={"m": Framed("m")})
    await asyncio.gather(*(ask(gateway, f"question {number}", tools=False, n=choices) for number in range(3)))
    recordings = [await journal_of(gateway).recording(record.id) for record in journal_of(gateway).records()]
    assert [len(recording.frames) for recording in recordings if recording is not None] == [6 * choices] * 3
    assert frame_tap() is None


class Connecting(ScriptedBackend):
    """Starts something in every request that outlives it, and so keeps the request's context.

    A connection, a process or a timer does the same.
    """

    def __init__(self) -> None:
        super().__init__("m", ScriptedOptions(script="say hello"))
        self.contexts: list[Context] = []

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        self.contexts.append(copy_context())
        async for batch in super().run(turn):
            yield batch


async def test_background_tasks_do_not_keep_the_contents_of_a_request() -> None:
    backend = Connecting()
    gateway = Gateway(Settings(), backends={"m": backend})
    journal_of(gateway)._most_traces = 1
    for number in range(4):
        await ask(gateway, f"question {number}", tools=False)
    assert journal_of(gateway).held_bytes
    kept = [context.run(frame_tap) for context in backend.contexts]
    assert [trace is not None for trace in kept] == [False, False, False, True]


async def test_an_agents_frames_go_to_the_request_that_reads_them() -> None:
    async def work(run: AgentRun) -> None:
        for place, name in enumerate(("first", "second")):
            assert run.tap is not None
            run.tap(name, {"place": place})
            run.text(f"{name}.")
            if not place:
                await run.call("get_weather", "{}")

    async def stop() -> None:
        pass

    run = AgentRun(Turn("chat", "m", ()), work, stop, settle_s=0.01, repeats=3, timeout_s=5)
    traces = [
        tracing.Trace(f"turn_{number}", "chat", b"{}", Caller(), 0.0, lambda trace, size: True)
        for number in range(2)
    ]
    for trace in traces:
        token = frames.set(ref(trace))
        segment = run.segment()
        await anext(segment)
        frames.reset(token)  # what comes later is read by another task
        [batch async for batch in segment]
        trace.end()
        await run.answer({id: Result(id, (TextPart("sunny"),)) for id in run.pending})
    assert [[what[0] for _, kind, what in trace.rows if kind == FRAME] for trace in traces] == [
        ["first"],
        ["second"],
    ]
    await run.cancel()


# --- what a trace keeps ---


def _trace(id: str = "turn_1", raw: bytes = b"{}") -> tracing.Trace:
    return tracing.Trace(id, "chat", raw, Caller(), 0.0, lambda trace, size: True)


def test_a_trace_that_stops_keeps_only_earlier_records() -> None:
    trace = _trace()
    for number in range(1000):
        if number == 20:
            trace.grown = lambda trace, size: False
            trace.weigh()
        trace.sent(b"<%d>" % number)
    trace.end()
    assert [what for _, _, what in trace.rows] == [b"<%d>" % number for number in range(20)] and trace.cut


def test_a_dropped_trace_is_empty() -> None:
    trace = _trace()
    trace.sent(b"secret")
    shown = trace.snapshot()
    trace.forget()
    trace.sent(b"secret again")
    assert not trace.rows and not trace.snapshot().rows and [what for _, _, what in shown.rows] == [b"secret"]


@pytest.mark.parametrize("kind", ["sent", "received", "frame"])
def test_large_pieces_count_at_once(kind: str) -> None:
    trace = _trace()
    run = trace.begin_run("run", 0)
    piece = "x" * 4_000_000
    tell = {
        "sent": lambda: trace.sent(piece.encode()),
        "received": lambda: trace.received(run, [Text(piece)]),
        "frame": lambda: trace.frame("read", piece),
    }
    for _ in range(15):
        tell[kind]()
    assert not trace.recording and trace.cut and len(trace.rows) == 3


STRANGE: Batch = [CallBegin(0, "strange", "c1"), CallArgs(0, "{}"), CallEnd(0)]
TOLD: dict[str, tuple[list[Batch], str]] = {
    "text": ([[Text("a"), Text("b")], [Text("c"), Usage(1, 1), Finish()]], "abc"),
    "an undeclared call at the end": ([[*STRANGE, Usage(1, 1), Finish()]], "[call strange] {}"),
    "an undeclared call and text": (
        [[*STRANGE, Text("x"), Text("y")], [Text("z")], [Usage(1, 1), Finish()]],
        "[call strange] {}xyz",
    ),
    "an undeclared call around text": (
        [STRANGE[:1], [Text("x")], STRANGE[1:], [Text("y")], [Finish()]],
        "[call strange] x{}y",
    ),
}


@pytest.mark.parametrize("name", TOLD)
@pytest.mark.parametrize("stream", [False, True])
async def test_backend_output_is_recorded_once(name: str, stream: bool) -> None:
    batches, expected = TOLD[name]

    class Saying(ScriptedBackend):
        async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
            for batch in batches:
                yield list(batch)

    gateway = Gateway(Settings(), backends={"m": Saying("m")})
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    answer = await gateway.respond("chat", json.dumps(body).encode(), Caller())
    if answer.stream is not None:
        [block async for block in answer.stream]
    recording = await journal_of(gateway).recording(journal_of(gateway).records()[0].id)
    assert recording is not None and wrote(recording).replace("\n", "") == expected


# --- limits ---


async def test_memory_is_bounded_by_bytes_and_the_oldest_turns_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway = scripted("chunk 4\nsay " + "word " * 1000)
    gateway.journal = journal = Journal(gateway.settings, None, most_bytes=1_500_000)
    for number in range(6):
        await ask(gateway, f"question {number}", tools=False)
        assert journal.held_bytes <= 1_500_000
    kept = [journal.contents(record.id) for record in journal.records()]
    assert kept[0] == "memory" and kept[-1] == "gone" and kept == sorted(kept, reverse=True)
    assert await journal.recording(journal.records()[-1].id) is None


async def test_memory_is_bounded_by_the_number_of_turns() -> None:
    gateway = scripted()
    gateway.journal = journal = Journal(gateway.settings, None, most_traces=3)
    for _ in range(5):
        await ask(gateway)
    assert [journal.contents(record.id) for record in journal.records()] == ["memory"] * 3 + ["gone"] * 2
    assert len(journal.records()) == 5


@pytest.mark.parametrize("bound", [{"most_traces": 8}, {"most_bytes": 2_000_000}])
async def test_a_key_with_many_turns_displaces_only_its_own(bound: dict[str, int]) -> None:
    gateway = scripted("chunk 4\nsay " + "word " * 400)
    gateway.journal = journal = Journal(gateway.settings, None, **bound)
    for key, count in (("quiet", 2), ("noisy", 30), ("quiet", 1)):
        for _ in range(count):
            await ask(gateway, tools=False, key=key)
    held = [(record.key, journal.contents(record.id)) for record in journal.records()]
    assert [where for key, where in held if key == "quiet"] == ["memory"] * 3
    assert [where for key, where in held if key == "noisy"].count("gone") >= 10
    assert journal.held_bytes <= bound.get("most_bytes", 10**9)
    assert sum(journal._bytes_by_key.values()) == journal.held_bytes
    assert sum(journal._turns_by_key.values()) == len(journal._kept)


async def test_running_turns_of_one_key_do_not_displace_those_of_another() -> None:
    gateway = scripted("chunk 4\nsay " + "word " * 400)
    gateway.journal = journal = Journal(gateway.settings, None, most_bytes=1_850_000)
    large = [journal.begin("chat", b"x" * 100_000, Caller("noisy")) for _ in range(6)]
    assert all(trace is not None and trace.recording for trace in large)
    await ask(gateway, tools=False, key="quiet")
    record = next(record for record in journal.records() if record.key == "quiet")
    recording = await journal.recording(record.id)
    assert recording is not None and not recording.end["cut"]
    assert journal.held_bytes <= 1_850_000


async def test_concurrent_turns_share_the_limit() -> None:
    gateway = scripted("chunk 4\nsay " + "word " * 2000)
    gateway.journal = journal = Journal(gateway.settings, None, most_bytes=1_000_000)
    streams = await asyncio.gather(*(ask(gateway, tools=False) for _ in range(5)))
    assert len({len(stream) for stream in streams}) == 1
    assert journal.held_bytes <= 1_000_000
    assert all(record.status == 200 for record in journal.records())


async def test_a_turn_with_too_many_rows_is_marked_as_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MOST_ROWS", 256)
    gateway = scripted("chunk 1\nsay " + "x" * 2000)
    raw = await ask(gateway, tools=False)
    _, recording = await last(gateway)
    assert raw.count(b'"content":"x"') == 2000
    assert recording.end["cut"] and 128 <= len(recording.events) <= 512


async def test_a_request_too_large_to_record_is_still_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MOST_BYTES", 30_000)
    gateway = scripted("say Hello.")
    assert b"Hello." in await ask(gateway, "x" * 40_000, tools=False)
    record, recording = await last(gateway)
    assert record.status == 200 and recording.end["cut"] and "body" not in recording.request
    assert not any("xxxx" in line for line in write(recording))


# --- recording changes nothing ---


def _fail(*given: Any, **named: Any) -> Any:
    raise RuntimeError("the journal is broken")


@pytest.mark.parametrize("what", ["Trace", "_record", "random_id"])
async def test_an_error_in_the_journal_fails_no_turn(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    untouched = await ask(scripted(contents="off"))
    monkeypatch.setattr(journals, what, _fail)
    gateway = scripted()
    broken = await ask(gateway)
    assert _anonymous(broken) == _anonymous(untouched)
    assert "the journal is broken" in caplog.text


@pytest.mark.parametrize("what", ["_grown", "_make_room"])
async def test_an_error_in_the_journal_during_a_turn_does_not_fail_it(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = scripted("chunk 1\nsay " + "x" * 1000)
    reply = await gateway.respond(
        "chat",
        json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}).encode(),
        Caller(),
    )
    assert reply.stream is not None
    blocks = [await anext(reply.stream)]
    monkeypatch.setattr(Journal, what, _fail)
    for trace in journal_of(gateway)._running.values():
        trace.grown = getattr(journal_of(gateway), "_grown")  # noqa: B009 - as it is now
    blocks += [block async for block in reply.stream]
    assert b"".join(blocks).count(b'"content":"x"') == 1000 and blocks[-1].endswith(b"[DONE]\n\n")


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("chat", {}),
    "tools": (
        "chat",
        {
            "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
            "seed": 7,
        },
    ),
    "custom tool": ("chat", {"tools": [{"type": "custom", "custom": {"name": "write"}}]}),
    "format": (
        "chat",
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "object"}},
            }
        },
    ),
    "calls in the history": (
        "chat",
        {
            "messages": [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c", "content": "seen"},
            ]
        },
    ),
    "responses": ("responses", {"input": "hi", "instructions": "be short", "metadata": {"a": "b"}}),
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("tools", ["native", "emulated"])
async def test_turn_and_plan_are_computed_again_as_they_were(
    name: str, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, more = REQUESTS[name]
    served: list[tuple[Turn, Plan]] = []

    def noted(turn: Turn, *rest: Any) -> Plan:
        served.append((turn, make_plan(turn, *rest)))
        return served[-1][1]

    monkeypatch.setattr("toolwire.gateway.run.make_plan", noted)
    gateway = Gateway(
        Settings(), backends={"m": ScriptedBackend("m", ScriptedOptions(script="say hello", tools=tools))}
    )
    asked = {
        "model": "m",
        **({} if api == "responses" else {"messages": [{"role": "user", "content": "hi"}]}),
        **more,
    }
    await gateway.respond(api, json.dumps(asked).encode(), Caller())  # type: ignore[arg-type]
    [(turn, plan)] = served
    recording = await journal_of(gateway).recording(journal_of(gateway).records()[0].id)
    assert recording is not None and recording.request["turn"] == recordings.turn_json(turn)
    assert recording.plans == [recordings._plan(plan, turn)]


async def test_a_failing_listener_fails_no_turn(caplog: pytest.LogCaptureFixture) -> None:
    gateway = scripted()
    journal_of(gateway).listeners.append(_fail)
    assert b"[DONE]" in await ask(gateway)
    assert len(journal_of(gateway).records()) == 1 and "a listener of the journal failed" in caplog.text


def _anonymous(raw: bytes) -> bytes:
    return re.sub(rb'"created":\d+', b"", re.sub(rb"(chatcmpl-|call_)[0-9a-f]{24}", b"", raw))


# --- on disk ---


async def served(tmp_path: Path, *contents: str, **settings: Any) -> Gateway:
    store = Store(f"sqlite:///{tmp_path}/store.db")
    gateway = scripted(store=store, **settings)
    await gateway.start()
    for content in contents:
        await ask(gateway, content)
    await gateway.close()
    await store.close()
    return gateway


async def test_the_file_has_one_line_per_turn_without_contents(tmp_path: Path) -> None:
    await served(tmp_path, "the first private words", "the second private words")
    folder = tmp_path / "journal"
    (segment,) = folder.iterdir()
    header, *lines = segment.read_text().splitlines()
    assert json.loads(header) == {"format": "toolwire-journal", "version": 1}
    assert [json.loads(line)["calls"] for line in lines] == [["get_weather"], ["get_weather"]]
    assert not any(word in segment.read_text() for word in ("private", "look outside", "Paris"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and stat.S_IMODE(segment.stat().st_mode) == 0o600


async def test_whole_turns_are_written_only_if_the_settings_say_so(tmp_path: Path) -> None:
    gateway = await served(tmp_path, "the private words", contents="disk")
    (record,) = journal_of(gateway).records()
    path = tmp_path / "journal" / "turns" / f"{record.id}.jsonl"
    assert "the private words" in path.read_text() and stat.S_IMODE(path.stat().st_mode) == 0o600
    later = scripted(contents="disk", store=Store(f"sqlite:///{tmp_path}/store.db"))
    await later.start()
    await journal_of(later).loaded()
    assert journal_of(later).contents(record.id) == "disk"
    recording = await journal_of(later).shown(record.id)
    assert recording is not None and got(recording)["text"] == "Let me look outside."
    await later.close()


async def test_a_store_in_memory_has_no_journal_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store("sqlite://")
    gateway = scripted(store=store, contents="disk")
    await ask(gateway)
    await gateway.close()
    await store.close()
    assert journal_of(gateway).folder is None and list(tmp_path.iterdir()) == []


async def test_another_process_reads_the_lines_and_skips_invalid_ones(tmp_path: Path) -> None:
    earlier = await served(tmp_path, "one", "two")
    (segment,) = (tmp_path / "journal").iterdir()
    with segment.open("a") as file:
        file.write('{"id":"turn_ab","at":1')  # incomplete after a crash
    newer = tmp_path / "journal" / "segment-9999999999999-1.jsonl"
    newer.write_text('{"format":"toolwire-journal","version":2}\n{"who":"knows"}\n')
    gateway = await served(tmp_path, "three")
    known = [record.id for record in journal_of(gateway).records()]
    assert known[1:] == [record.id for record in journal_of(earlier).records()] and len(known) == 3
    assert newer.read_text().endswith('{"who":"knows"}\n')


def test_all_files_together_stay_below_the_limit(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "journal", 20_000)
    for number in range(400):
        segments.append([TurnRecord(f"turn_{number:x}", float(number), model="m" * 100)])
        if number % 10 == 0:
            segments.keep(f"turn_{number:x}", ["x" * 500])
    sizes = [path.stat().st_size for path in (tmp_path / "journal").rglob("*.jsonl")]
    assert sum(sizes) <= 20_000 and len(sizes) > 3
    assert segments.load(1000)[-1].id == f"turn_{399:x}"


async def test_a_disk_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "journal").write_text("in the way")
    with caplog.at_level(logging.WARNING, "toolwire.journal"):
        gateway = await served(tmp_path, "one", "two", "three", contents="disk")
    assert [record.status for record in journal_of(gateway).records()] == [200] * 3
    assert len([record for record in caplog.records if record.name == "toolwire.journal"]) == 1


async def test_an_invalid_id_reaches_no_file(tmp_path: Path) -> None:
    gateway = await served(tmp_path, "one", contents="disk")
    (tmp_path / "other.jsonl").write_text("secret")
    for id in ("../../other", "/etc/passwd", "turn_../../../other", ""):
        assert journal_of(gateway).contents(id) == "gone" and await journal_of(gateway).recording(id) is None


# --- secrets ---

KEYS = ("a-key-of-the-server", "an-admin-key-of-the-server")
SECRETS = Settings(
    server=ServerSettings(keys=KEYS[:1], admin_keys=KEYS[1:]),
    models=(
        ModelSettings(
            "m",
            "openai",
            {
                "base_url": "http://h/v1",
                "api_key": "provider-key-0123",
                "headers": {"X-Own": "Bearer header-secret-1"},
            },
        ),
        ModelSettings(
            "n", "acp", {"env": {"TOKEN": "from-a-file-0123"}, "command": "agent"}, frozenset({"env"})
        ),
    ),
)


def test_secrets_in_the_settings_are_known() -> None:
    known = set(secrets_of(SECRETS))
    assert {
        *KEYS,
        "provider-key-0123",
        "Bearer header-secret-1",
        "header-secret-1",
        "from-a-file-0123",
    } <= known
    assert not known & {"http://h/v1", "agent"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("say a-key-of-the-server now", "say *** now"),
        ("Authorization: Bearer abcdefgh12345678.x", "Authorization: ***"),
        ("export KEY=sk-proj-abcdefghijklmnop1234", "export KEY=***"),
        ('{"api_key": "x", "b": 1}', '{"api_key": "***", "b": 1}'),
        (
            '{"input":"{\\"password\\": \\"p\\\\\\"q\\", \\"user\\": \\"u\\"}"}',
            '{"input":"{\\"password\\": \\"***\\", \\"user\\": \\"u\\"}"}',
        ),
        ("https://me:hunter2@example.com/x", "https://me:***@example.com/x"),
        ('{"authorization":"Basic abc"}', '{"authorization":"***"}'),
        (
            '{"accessToken": "x", "clientSecret": "y", "private_key": "z"}',
            '{"accessToken": "***", "clientSecret": "***", "private_key": "***"}',
        ),
        ("authorization: basic dTpwYXNz", "***"),
        ("git clone with ghp_abcdefghijklmnopqrstuvwxyz0123456789", "git clone with ***"),
        ("key=AIzaabcdefghijklmnopqrstuvwxyz012345678;", "key=***;"),
        ("AKIAABCDEFGHIJKLMNOP and gsk_abcdefghijklmnopqrstuvwxyz0123456789", "*** and ***"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTYifQ.c2lnbmF0dXJlLW9mLWl0", "***"),
        ('{"token": {"type": "string"}, "max_tokens": 5}', '{"token": {"type": "string"}, "max_tokens": 5}'),
        (
            "the bearer of this note, the ask-me-anything task-force-of-many-words",
            "the bearer of this note, the ask-me-anything task-force-of-many-words",
        ),
    ],
)
def test_a_text_is_shown_without_its_secrets(text: str, shown: str) -> None:
    assert Mask.of(SECRETS).text(text) == shown


def test_a_value_keeps_its_shape() -> None:
    given = {
        "messages": [{"content": "use a-key-of-the-server"}],
        "password": "p",
        "max_tokens": 5,
        "tools": [{"token": {"type": "string"}}],
    }
    given["refreshToken"] = "r"
    assert Mask.of(SECRETS).value(given) == {
        "messages": [{"content": "use ***"}],
        "password": "***",
        "max_tokens": 5,
        "tools": [{"token": {"type": "string"}}],
        "refreshToken": "***",
    }


def test_masking_is_linear() -> None:
    mask = Mask.of(SECRETS)
    names = ('"' + "a" * 200_000, '"a' * 100_000)
    for text in (
        *names,
        "\\" * 200_000,
        '"token":"' * 20_000,
        "a_" * 100_000 + '"',
        "://" * 60_000,
        '\\"token\\":' * 20_000,
    ):
        mask.text(text)


@pytest.mark.parametrize("tools", ["native", "emulated"])
@pytest.mark.parametrize("size", [0, 1, 3, 7])
async def test_a_secret_that_the_model_writes_in_pieces_is_masked_everywhere(tools: str, size: int) -> None:
    script = f"chunk {size}\nsay Take a-key-of-the-server and go. PGPASSWORD=hunter22again it."
    script += '\ncall get_weather {"city": "x", "password": "hunter22hunter"}'
    backend = ScriptedBackend("m", ScriptedOptions(script=script, tools=tools))  # type: ignore[arg-type]
    gateway = Gateway(Settings(server=SECRETS.server), backends={"m": backend})
    await ask(gateway, "my key is an-admin-key-of-the-server")
    _, recording = await last(gateway)
    shown = masked(recording, journal_of(gateway).mask)
    fixture = "".join(write(shown))
    told = "".join([*(text for _, _, text in shown.wire), wrote(shown), json.dumps(got(shown))])
    for secret in ("a-key-of-the-server", "an-admin-key", "hunter22"):
        assert secret not in fixture and secret not in told
    assert "Take *** and go." in got(shown)["text"]
    assert json.loads(got(shown)["calls"][0]["arguments"]) == {"city": "x", "password": "***"}
    deltas = re.findall(r'"content":"([^"]*)"', "".join(text for _, _, text in shown.wire))
    assert "a-key-of-the-server" not in "".join(deltas)


async def test_a_turns_line_leaves_memory_without_secrets(tmp_path: Path) -> None:
    """A client chooses the request's id and the names of its tools.

    Each may be a key by mistake.
    """
    name = "sk-proj-abcdefghijklmnopqrstuvwxyz012345"
    store = Store(f"sqlite:///{tmp_path}/store.db")
    backend = ScriptedBackend("m", ScriptedOptions(script=f"call {name} {{}}", tools="native"))
    gateway = Gateway(Settings(server=SECRETS.server), backends={"m": backend}, store=store)
    told: list[dict[str, Any]] = []
    journal_of(gateway).listeners.append(lambda turn: told.append(turn()))
    tool = {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [tool]}
    await gateway.respond("chat", json.dumps(body).encode(), Caller("key", KEYS[0]))
    await gateway.close()
    await store.close()
    (segment,) = (tmp_path / "journal").iterdir()
    line = json.loads(segment.read_text().splitlines()[1])
    assert (line["request_id"], line["model"], line["calls"]) == ("***", "m", ["***"])
    assert len(told) == 2 and told[1] == {**TurnRecord("", 0).as_json(), **line}
    for secret in (name, KEYS[0]):
        assert secret not in segment.read_text() and secret not in json.dumps(told)


async def test_frames_with_a_part_of_a_secret_are_masked() -> None:
    chunks = answer(text="Take a-key-of-the-server and go.", size=5)
    async with FakeUpstream(Reply.stream(chunks)) as upstream:
        backend = OpenAIBackend("m", {"base_url": upstream.base_url, "profile": "openai"})
        gateway = Gateway(Settings(server=SECRETS.server), backends={"m": backend})
        await ask(gateway)
        _, recording = await last(gateway)
        await gateway.close()
    shown = masked(recording, journal_of(gateway).mask)
    deltas = re.findall(
        r'"content": ?"([^"]*)"', "".join(text for _, label, text in shown.frames if label == "read")
    )
    assert "key-of-the" not in "".join(deltas) and len(shown.frames) == len(recording.frames)


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("stream", [True, False])
async def test_log_probabilities_do_not_spell_a_secret(api: Api, stream: bool) -> None:
    words = ["Take", " a", "-key", "-of", "-the", "-server", " and", " go", "."]
    chunks = [chunk({"content": word}) for word in words]
    for word, one in zip(words, chunks, strict=True):
        token = {"token": word, "logprob": -1.0, "bytes": list(word.encode()), "top_logprobs": []}
        one["choices"][0]["logprobs"] = {"content": [token], "refusal": None}
    chunks.append(chunk({}, "stop"))
    reply = Reply.stream(chunks) if stream else Reply.body(completion(chunks))
    body: dict[str, Any] = {"model": "m", "stream": stream}
    if api == "chat":
        body |= {"messages": [{"role": "user", "content": "hi"}], "logprobs": True}
    else:
        body |= {"input": "hi", "include": ["message.output_text.logprobs"]}
    async with FakeUpstream(reply) as upstream:
        backend = OpenAIBackend("m", {"base_url": upstream.base_url, "profile": "openai"})
        gateway = Gateway(Settings(server=SECRETS.server), backends={"m": backend})
        said = await gateway.respond(api, json.dumps(body).encode(), Caller("key", "r"))
        sent = said.body if said.stream is None else b"".join([block async for block in said.stream])
        _, recording = await last(gateway)
        await gateway.close()
    assert sent is not None and b'"-server"' in sent
    shown = "".join(write(masked(recording, journal_of(gateway).mask)))
    assert "-server" not in shown and str(list(b"-server")) not in shown

"""Replays: a recorded turn produces the same bytes, or the difference is reported."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toolwire.backends.base import Batch
from toolwire.cli.main import main
from toolwire.core.capabilities import Capabilities
from toolwire.core.errors import ToolwireError
from toolwire.core.events import CallBegin, CallEnd, Failure, Finish, Text, Usage
from toolwire.core.turn import Api, Turn
from toolwire.gateway.pipeline import Caller, Gateway
from toolwire.observe.fixture import masked, read, write
from toolwire.observe.recording import Recording, RecordingError
from toolwire.observe.replay import Replay, replay
from toolwire.settings.types import ServerSettings, Settings, ToolSettings
from toolwire.store.store import Store
from toolwire.testing import ScriptedBackend, ScriptedOptions

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT_TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
RESPONSES_TOOL = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
CALLS = 'call get_weather {"city": "Paris"}\ncall get_weather {"city": "Rome"}'
SCRIPT = f"chunk 4\nthink Hm.\nsay Let me look outside: ünï☃.\n{CALLS}\n---\nsay It is {{result}}."


def request(api: Api, **extra: Any) -> dict[str, Any]:
    if api == "chat":
        return {
            "model": "m",
            "messages": [{"role": "user", "content": "Weather?"}],
            "tools": [CHAT_TOOL],
            **extra,
        }
    return {"model": "m", "input": "Weather?", "tools": [RESPONSES_TOOL], **extra}


def scripted(
    script: str = SCRIPT,
    tools: Any = "native",
    *,
    store: Store | None = None,
    settings: ToolSettings | None = None,
    **options: Any,
) -> Gateway:
    backend = ScriptedBackend("m", ScriptedOptions(script=script, tools=tools, **options))
    return Gateway(Settings(tools=settings or ToolSettings()), backends={"m": backend}, store=store)


async def ask(gateway: Gateway, api: Api, body: dict[str, Any], **caller: Any) -> bytes:
    """Returns what the client receives, or b"" if the request is refused."""
    try:
        answer = await gateway.respond(api, json.dumps(body).encode(), Caller(**caller))
    except ToolwireError:
        return b""
    return answer.body or b"" if answer.stream is None else b"".join([block async for block in answer.stream])


async def recorded(gateway: Gateway) -> Recording:
    """Returns the last turn, written as a fixture and read again."""
    assert gateway.journal is not None
    recording = await gateway.journal.recording(gateway.journal.records()[0].id)
    assert recording is not None
    return read("".join(write(recording)).splitlines())


async def again(gateway: Gateway) -> Replay:
    return await asyncio.to_thread(replay, await recorded(gateway))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("tools", ["native", "emulated", "constrained", "parked"])
async def test_a_replay_produces_the_same_bytes(tools: str, api: Api, stream: bool) -> None:
    gateway = scripted(tools=tools)
    raw = await ask(gateway, api, request(api, stream=stream))
    told = await again(gateway)
    assert told.differences == [] and told.wire_then.encode() == told.wire_now.encode() == raw
    await gateway.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("tools", ["native", "emulated", "parked"])
async def test_several_choices_are_replayed_in_the_recorded_order(tools: str, stream: bool) -> None:
    gateway = scripted("chunk 2\nsay Let me see what there is.\npause 1ms\n" + SCRIPT, tools=tools)
    raw = await ask(
        gateway,
        "chat",
        request("chat", stream=stream, n=3, stream_options={"include_usage": True} if stream else None),
    )
    told = await again(gateway)
    assert raw and told.differences == [] and told.wire_now.encode() == raw
    await gateway.close()


@pytest.mark.parametrize(
    ("script", "tools", "settings", "extra"),
    [
        ("say I will not.\n---\nsay No.", "emulated", ToolSettings(), {"tool_choice": "required"}),
        (
            'say No call.\n---\ncall get_weather {"city": "Paris"}',
            "emulated",
            ToolSettings(),
            {"tool_choice": "required"},
        ),
        (SCRIPT, "native", ToolSettings(max_calls=1), {}),
        (SCRIPT, "native", ToolSettings(stop_after="first"), {}),
        (
            SCRIPT + "\nsay and then some",
            "emulated",
            ToolSettings(stop_after="burst", stop_grace_ms=5000, suppress_tail="on"),
            {},
        ),
        (SCRIPT, "native", ToolSettings(unknown_tool="forward", arguments="validated"), {}),
        (SCRIPT, "native", ToolSettings(output_mode="obsidian-xml"), {}),
        ("chunk 2\nsay Hello.\nfail overloaded Too much.", "native", ToolSettings(), {}),
        ("fail rate_limit Slow down.", "native", ToolSettings(), {}),
        ("say Hello.\ncut", "native", ToolSettings(), {}),
        ("say one two STOP three", "emulated", ToolSettings(), {"stop": "STOP"}),
        ("refuse I can not.", "native", ToolSettings(), {"response_format": {"type": "json_object"}}),
        ("say Hello.", "native", ToolSettings(), {"temperature": "hot"}),
        ("say Hello.", "native", ToolSettings(), {"model": "another"}),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_every_kind_of_end_is_replayed(
    script: str, tools: str, settings: ToolSettings, extra: dict[str, Any], stream: bool
) -> None:
    gateway = scripted(script, tools, settings=settings)
    raw = await ask(gateway, "chat", request("chat", stream=stream, **extra))
    told = await again(gateway)
    assert told.differences == []
    assert told.wire_now.encode() == raw or (not raw and json.loads(told.wire_now)["error"])


async def test_a_call_that_the_grace_time_ended_is_replayed() -> None:
    gateway = scripted(
        SCRIPT.replace("\n---", "\nhang\n---"),
        "emulated",
        settings=ToolSettings(stop_after="burst", stop_grace_ms=30),
    )
    raw = await ask(gateway, "chat", request("chat", stream=True))
    told = await again(gateway)
    assert raw.endswith(b"[DONE]\n\n") and told.differences == []


async def test_resumed_runs_and_lost_parked_runs_are_replayed() -> None:
    gateway = scripted(tools="parked")
    for dies in (False, True):
        first = json.loads(await ask(gateway, "chat", request("chat")))
        message = first["choices"][0]["message"]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "sunny"} for call in message["tool_calls"]
        ]
        if dies:
            await gateway.models["m"].live[-1].cancel()  # type: ignore[attr-defined]
        body = request("chat", stream=True)
        raw = await ask(gateway, "chat", {**body, "messages": [*body["messages"], message, *results]})
        recording = await recorded(gateway)
        assert [run["how"] for run in recording.end["runs"]] == (["resume", "open"] if dies else ["resume"])
        told = await asyncio.to_thread(replay, recording)
        assert b"sunny" in raw and told.differences == [] and told.wire_now.encode() == raw
    await gateway.close()


async def test_stored_conversations_are_replayed_without_the_store(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/store.db")
    gateway = scripted("say My name is Ada.\n---\nsay You asked: {user}", store=store)
    first = json.loads(await ask(gateway, "responses", request("responses", store=True)))
    followed: dict[str, Any] = {
        "model": "m",
        "previous_response_id": first["id"],
        "input": [{"role": "user", "content": "And now?"}],
        "stream": True,
    }
    raw = await ask(gateway, "responses", {**followed, "store": True})
    told = await again(gateway)
    assert b"And now?" in raw and told.differences == [] and told.wire_now.encode() == raw
    referring = [
        {"type": "item_reference", "id": first["output"][0]["id"]},
        {"role": "user", "content": "Again?"},
    ]
    raw = await ask(gateway, "responses", {"model": "m", "input": referring})
    told = await again(gateway)
    assert b"Again?" in raw and told.differences == []
    await gateway.close()
    await store.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_could_not_be_stored_is_replayed(tmp_path: Path, stream: bool) -> None:
    store = Store(f"sqlite:///{tmp_path}/store.db")

    async def full(stored: object) -> None:
        raise ToolwireError("overloaded", "The disk is full.")

    store.put = full  # type: ignore[method-assign]
    gateway = scripted("say hi", store=store)
    raw = await ask(gateway, "responses", request("responses", stream=stream))
    told = await again(gateway)
    assert (b'{"stored":false}' in raw) is stream and told.differences == [] and told.wire_now.encode() == raw
    await gateway.close()
    await store.close()


class Refusing(ScriptedBackend):
    """A model that refuses tools only when it runs."""

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        if turn.tools:
            self.options = replace(self.options, tools="emulated")
            yield [Failure("tools_unsupported", "no tools here")]
            return
        async for batch in super().run(turn):
            yield batch


async def test_a_turn_that_was_planned_twice_is_replayed() -> None:
    gateway = Gateway(Settings(), backends={"m": Refusing("m", ScriptedOptions(script=SCRIPT))})
    raw = await ask(gateway, "chat", request("chat", stream=True))
    recording = await recorded(gateway)
    assert [plan["strategy"] for plan in recording.plans] == ["native", "emulated"]
    told = await asyncio.to_thread(replay, recording)
    assert b"get_weather" in raw and told.differences == []


class Slow(ScriptedBackend):
    """Sends nothing until the stream has started without it, and then fails."""

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        await asyncio.sleep(0.05)
        yield [Failure("overloaded", "Too much.")]


async def test_a_failure_in_the_stream_is_replayed() -> None:
    gateway = Gateway(Settings(server=ServerSettings(commit_after_s=0.01)), backends={"m": Slow("m")})
    raw = await ask(gateway, "chat", request("chat", stream=True))
    told = await again(gateway)
    assert b"Too much." in raw and told.differences == [] and told.wire_now.encode() == raw


async def test_a_turn_is_compared_up_to_the_clients_disconnect() -> None:
    gateway = scripted("chunk 3\nsay Hello there, you.\nhang")
    answer = await gateway.respond("chat", json.dumps(request("chat", stream=True)).encode(), Caller())
    assert answer.stream is not None
    for _ in range(4):
        await anext(answer.stream)
    await answer.stream.aclose()  # type: ignore[attr-defined]
    assert (await again(gateway)).differences == []


class Unpaired(ScriptedBackend):
    """Sends text that is not valid in UTF-8, and its own ids."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, fields=frozenset({"temperature"}))

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        yield [Text("a\ud83d")]
        yield [Text("\ude00b"), CallBegin(0, "get_weather", "own-id")]
        yield [CallEnd(0), Usage(3, 4, 1, 2), Finish("tool_calls")]


async def test_texts_and_ids_of_the_backend_are_preserved() -> None:
    gateway = Gateway(Settings(), backends={"m": Unpaired("m")})
    raw = await ask(gateway, "chat", request("chat", stream=True, temperature=1))
    told = await again(gateway)
    assert b"own-id" in raw and told.differences == [] and told.wire_now.encode() == raw


# --- differences ---


async def test_a_difference_is_shown_with_its_position() -> None:
    gateway = scripted("chunk 5\nsay Hello there.")
    await ask(gateway, "chat", request("chat", stream=True))
    recording = await recorded(gateway)
    place = next(place for place, (_, _, text) in enumerate(recording.wire) if " ther" in text)
    ms, label, text = recording.wire[place]
    recording.wire[place] = (ms, label, text.replace(" ther", " THER"))
    told = await asyncio.to_thread(replay, recording)
    (difference,) = told.differences
    assert not told.same and difference["where"].startswith("wire ")
    assert " THER" in difference["then"] and " ther" in difference["now"]


async def test_a_difference_in_a_body_names_the_member() -> None:
    gateway = scripted("say Hello.")
    await ask(gateway, "chat", request("chat"))
    recording = await recorded(gateway)
    ms, label, text = recording.wire[-1]
    recording.wire[-1] = (ms, label, text.replace("Hello.", "Bye."))
    told = await asyncio.to_thread(replay, recording)
    assert told.differences == [
        {"where": "body.choices[0].message.content", "then": '"Bye."', "now": '"Hello."'}
    ]


async def test_a_masked_fixture_can_be_compared_if_its_secrets_were_not_split() -> None:
    settings = Settings(server=ServerSettings(keys=("a-key-of-the-server",)))
    gateway = Gateway(
        settings, backends={"m": ScriptedBackend("m", ScriptedOptions(script="say You said {user}"))}
    )
    body = request("chat", stream=True, messages=[{"role": "user", "content": "a-key-of-the-server"}])
    await ask(gateway, "chat", body)
    assert gateway.journal is not None
    fixture = "".join(write(masked(await recorded(gateway), gateway.journal.mask)))
    assert "a-key-of-the-server" not in fixture and "You said ***" in fixture
    told = await asyncio.to_thread(replay, read(fixture.splitlines()))
    assert told.differences == []


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_masked_fixture_with_a_split_secret_cannot_be_compared(
    api: Api, tmp_path: Path, capsys: Any
) -> None:
    """The pieces are masked, so they must not count as a difference."""
    settings = Settings(server=ServerSettings(keys=("a-key-of-the-server",)))
    script = "chunk 7\nsay Take a-key-of-the-server and go."
    gateway = Gateway(settings, backends={"m": ScriptedBackend("m", ScriptedOptions(script=script))})
    assert gateway.journal is not None
    for stream, status in ((True, 2), (False, 0)):
        await ask(gateway, api, request(api, stream=stream))
        path = tmp_path / "turn.jsonl"
        path.write_text("".join(write(masked(await recorded(gateway), gateway.journal.mask))))
        assert await asyncio.to_thread(main, ["replay", str(path)]) == status
    assert "a secret that was sent in pieces" in capsys.readouterr().err


async def test_a_turn_that_was_cut_cannot_be_replayed() -> None:
    gateway = scripted("say Hello.")
    await ask(gateway, "chat", request("chat"))
    recording = await recorded(gateway)
    recording.end["cut"] = True
    with pytest.raises(RecordingError, match="too large"):
        await asyncio.to_thread(replay, recording)


# --- the command ---


async def fixture_of(tmp_path: Path, change: tuple[str, str] = ("", "")) -> str:
    gateway = scripted("chunk 5\nsay Hello there.")
    await ask(gateway, "chat", request("chat", stream=True))
    path = tmp_path / "turn.jsonl"
    lines = list(write(await recorded(gateway)))
    path.write_text(
        "".join(line.replace(*change) if change[0] and '"kind":"wire"' in line else line for line in lines)
    )
    return str(path)


async def test_the_command_says_that_nothing_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = await fixture_of(tmp_path)
    assert await asyncio.to_thread(main, ["replay", path]) == 0
    assert capsys.readouterr().out.startswith("same")


async def test_the_command_shows_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = await fixture_of(tmp_path, (" ther", " THER"))
    assert await asyncio.to_thread(main, ["replay", path]) == 1
    shown = capsys.readouterr().out
    assert " THER" in shown and " ther" in shown and shown.endswith("different: 1 place\n")
    assert await asyncio.to_thread(main, ["replay", path, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["same"] is False


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("", "contains no request"),
        ("not json\n", "line 1"),
        ('{"other":"thing"}\n', "not a fixture"),
        ('{"toolwire":"journal","version":99}\n', "version 99"),
        ('{"toolwire":"journal","version":1}\n{"kind":"request","api":"chat"}\n', "is incomplete"),
        (
            '{"toolwire":"journal","version":1}\n{"kind":"request","api":"chat","body":{}}\n'
            '{"kind":"end","turn":{}}\n',
            "incomplete or invalid",
        ),
    ],
)
def test_an_unreadable_file_is_one_line_and_status_2(
    content: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "turn.jsonl"
    if content is not None:
        path.write_text(content)
    assert main(["replay", str(path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and words in shown.err and shown.err.count("\n") == 1


HOSTILE: dict[str, Any] = {
    "runs that wait for each other": {
        "batches": [(0.0, 1, [{"type": "Text", "text": "b"}]), (0.0, 0, [{"type": "Text", "text": "a"}])]
    },
    "bytes that are no text": {"wire": [(0.0, "stream", 5)]},
    "a plan without words": {"plans": [{}]},
    "an answer without end": {"wire": [(0.0, "body", "[" * 100_000 + "]" * 100_000)]},
    "runs that are none": {"end": {"runs": 5}},
}


@pytest.mark.parametrize("how", HOSTILE)
async def test_an_invalid_recording_is_refused_and_does_not_hang(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolwire.observe.replay.LONGEST_S", 0.2)
    gateway = scripted("say Hi.")
    await ask(gateway, "chat", request("chat", stream=how != "an answer without end"))
    recording = await recorded(gateway)
    changed = HOSTILE[how]
    end = {**recording.end, "runs": ["run", "run"], **changed.get("end", {})}
    hostile = replace(recording, **{**changed, "end": end})
    with pytest.raises(RecordingError):
        await asyncio.to_thread(replay, hostile)


async def test_a_recording_cannot_make_a_replay_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolwire.observe.replay.LONGEST_S", 0.1)
    monkeypatch.setattr("toolwire.observe.replay.STALLED_S", 0.1)
    gateway = scripted("say Hi.")
    await ask(gateway, "chat", request("chat", stream=True))
    recording = await recorded(gateway)
    endless = replace(
        recording,
        request={**recording.request, "tools": {"stop_grace_ms": 1e15}},
        batches=recording.batches[:1],
    )
    async with asyncio.timeout(10):
        assert not (await asyncio.to_thread(replay, endless)).same

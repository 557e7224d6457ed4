"""The bridge's process and folder: its environment, readiness, death and cleanup."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import sys
import tempfile
import textwrap
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from toolwire.backends.agents.processes import sweep
from toolwire.backends.base import Batch
from toolwire.backends.cursor import CursorBackend, inspect
from toolwire.backends.cursor.bridge import PREFIX, BridgeProcess
from toolwire.core.errors import ToolwireError
from toolwire.core.events import CallBegin, Event, Failure, Finish, Text
from toolwire.core.turn import Message, Result, TextPart, ToolChoice, ToolSpec, Turn

Make = Callable[..., CursorBackend]
Living = Callable[[int], set[int]]
TURN = Turn(
    "chat",
    "m",
    (Message("user", (TextPart("hi"),)),),
    tools=(ToolSpec("look"),),
    tool_choice=ToolChoice("auto"),
)
KEY = "crsr_0123456789abcdef"


async def gather(batches: AsyncGenerator[Batch, None]) -> list[Event]:
    async with asyncio.timeout(30), aclosing(batches):
        return [event async for batch in batches for event in batch]


def said(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def folders() -> set[Path]:
    """What the bridges of this process have on disk or in memory."""
    return {
        path
        for parent in ("/dev/shm", tempfile.gettempdir())
        for path in Path(parent).glob(f"{PREFIX}{os.getpid()}-*")
    }


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def leader_of(backend: CursorBackend) -> int:
    assert backend.bridge.process is not None
    return backend.bridge.process.pid


# --- environment ---


async def test_the_bridge_has_its_own_folder_and_sees_no_secret(
    make: Make,
    launcher: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    living: Living,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("CURSOR_API_KEY", KEY)
    backend = make(bridge_bin=launcher(), api_key="")
    assert said(await gather(backend.run(TURN))) == "Hello from the fake bridge."
    process = backend.bridge.process
    assert process is not None and process.home is not None
    seen = Path(f"/proc/{process.pid}/environ").read_text()
    assert f"HOME={process.home.home}" in seen and f"TMPDIR={process.home.temporary}" in seen
    for pid in living(process.pid):
        facts = Path(f"/proc/{pid}/environ").read_text() + Path(f"/proc/{pid}/cmdline").read_text()
        assert KEY not in facts and "a-secret-of-ours" not in facts
    assert list(process.home.work.iterdir()) == [] and os.readlink(f"/proc/{process.pid}/cwd") == str(
        process.home.work
    )
    assert process.home.path.stat().st_mode & 0o777 == 0o700
    token = next(process.home.temporary.glob("*/auth-token")).read_text()
    assert launcher.bodies("CreateAgent")[0]["options"]["apiKey"] == KEY
    callback = launcher.bodies("SetToolCallback")[0]["authToken"]
    assert not any(secret in caplog.text for secret in (token, callback, KEY, "auth-token"))


# --- readiness ---


@pytest.mark.parametrize("how", ["file", "inline", "noisy"])
async def test_every_format_of_the_ready_line_is_accepted(make: Make, launcher: Any, how: str) -> None:
    backend = make(bridge_bin=launcher(flags=f"--ready {how}"))
    assert said(await gather(backend.run(TURN))) == "Hello from the fake bridge."


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--ready garbage", "unknown format"),
        ("--ready schema", "unknown protocol"),
        ("--ready never", "not ready within"),
        ("--ready exit", "exit status 1. It said: no licence file was found"),
        ("--protocol sdk.v2", "speaks sdk.v2"),
    ],
)
async def test_a_bridge_that_cannot_be_used_is_one_clear_error_and_is_ended(
    make: Make, launcher: Any, flags: str, words: str
) -> None:
    backend = make(bridge_bin=launcher(flags=flags), start_timeout_s=1.5 if "never" in flags else 20)
    events = await gather(backend.run(TURN))
    assert (
        len(events) == 1
        and isinstance(events[0], Failure)
        and events[0].kind == "backend_unavailable"
        and words in events[0].message
    )
    assert not folders()
    again = await gather(backend.run(TURN))
    assert isinstance(again[0], Failure) and "next attempt" in again[0].message and again[0].retry_after_s


async def test_the_facts_for_the_doctor(make: Make, launcher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options = make(bridge_bin=launcher()).options
    assert await inspect(options) == {"path": options.bridge_bin, "key": True, "problem": None}
    facts = await inspect(make(bridge_bin="no-such-bridge").options)
    assert not facts["path"] and "no-such-bridge" in facts["problem"]
    facts = await inspect(make(bridge_bin=launcher(), api_key="").options)
    assert facts["path"] and not facts["key"] and "CURSOR_API_KEY" in facts["problem"]


# --- death ---


async def test_when_the_bridge_is_killed_every_run_fails_once_and_the_next_one_works(
    make: Make, launcher: Any, living: Living, caplog: pytest.LogCaptureFixture
) -> None:
    script = ({"when": "again", "steps": [{"text": "Fine."}]}, [{"text": "Once upon"}, {"hang": True}])
    backend = make(bridge_bin=launcher(*script, flags="--ready noisy"))
    runs = [backend.run(TURN) for _ in range(3)]
    for run in runs:
        assert said(await anext(run)).startswith("Once")
    leader = leader_of(backend)
    os.killpg(leader, signal.SIGKILL)
    for run in runs:
        events = [event for event in await gather(run) if not isinstance(event, Text)]
        assert len(events) == 1 and isinstance(events[0], Failure)
        assert (
            events[0].kind == "backend_cut" and events[0].message == "Cursor's bridge was killed by signal 9."
        )
    assert (
        caplog.text.count("Cursor's bridge was killed by signal 9. It said: ") == 1
    )  # logged for the operator, once
    again = Turn("chat", "m", (Message("user", (TextPart("again"),)),))
    assert said(await gather(backend.run(again))) == "Fine."
    assert leader_of(backend) != leader and backend.bridge.starts == 2
    assert not living(leader) and len(folders()) == 1


async def test_agents_that_wait_on_a_dead_bridge_are_not_asked(make: Make, launcher: Any) -> None:
    backend = make(bridge_bin=launcher([{"text": "One."}]))
    await gather(backend.run(TURN))
    assert len(backend.idle) == 1
    os.killpg(leader_of(backend), signal.SIGKILL)
    await until(lambda: not backend.bridge.alive)
    history = (*TURN.items, Message("assistant", (TextPart("One."),)), Message("user", (TextPart("and?"),)))
    assert (
        said(
            await gather(
                backend.run(Turn("chat", "m", history, tools=TURN.tools, tool_choice=TURN.tool_choice))
            )
        )
        == "One."
    )
    assert len(launcher.bodies("CreateAgent")) == 2
    await until(lambda: len(backend.bridge.agents) == 1)


async def test_a_parked_run_whose_bridge_died_fails_when_it_is_resumed(make: Make, launcher: Any) -> None:
    backend = make(bridge_bin=launcher([{"call": "look"}, {"text": "never"}]))
    live = backend.open(TURN)
    assert (await gather(live.segment()))[-1] == Finish("tool_calls")
    os.killpg(leader_of(backend), signal.SIGKILL)
    await until(lambda: not backend.bridge.alive)
    await live.answer({id: Result(id, (TextPart("x"),)) for id in live.pending})
    events = await gather(live.segment())
    assert len(events) == 1 and isinstance(events[0], Failure) and events[0].kind == "backend_cut"
    await live.cancel()


async def test_nothing_outlives_a_gateway_that_is_killed(
    launcher: Any, tmp_path: Path, living: Living
) -> None:
    program = tmp_path / "gateway.py"
    program.write_text(
        textwrap.dedent(f"""
        import asyncio
        from toolwire.backends.cursor import CursorBackend, CursorOptions

        async def main():
            backend = CursorBackend("m", CursorOptions(bridge_bin={launcher()!r}, api_key="crsr_x"))
            await backend.bridge.connect()
            print(backend.bridge.process.pid, flush=True)
            await asyncio.Event().wait()

        asyncio.run(main())
        """)
    )
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, str(program), stdout=asyncio.subprocess.PIPE
    )
    assert gateway.stdout is not None
    leader = int(await gateway.stdout.readline())
    assert len(living(leader)) >= 3, "launcher, bridge and watcher"
    gateway.kill()
    await gateway.wait()
    await until(lambda: not living(leader))
    for parent in ("/dev/shm", tempfile.gettempdir()):
        sweep(PREFIX, Path(parent))
        assert not list(Path(parent).glob(f"{PREFIX}{gateway.pid}-*")), "the next gateway clears up"


async def test_rounds_of_starting_and_killing_leave_no_process_and_no_folder(
    make: Make, launcher: Any, living: Living
) -> None:
    rounds = int(os.environ.get("TOOLWIRE_CURSOR_ROUNDS", "5"))
    chance = random.Random(5)
    command = launcher([{"text": "Once upon a time"}, {"call": "look"}, {"hang": True}])
    leaders: set[int] = set()
    ways: dict[str, int] = {}
    for number in range(rounds):
        backend = make(bridge_bin=command)
        way = ("close", "kill the group", "kill the launcher", "close at once", "cancel")[number % 5]
        ways[way] = ways.get(way, 0) + 1
        if way == "close at once":
            starting = asyncio.ensure_future(backend.bridge.connect())
            await asyncio.sleep(chance.uniform(0, 0.3))
            await backend.close()
            await asyncio.gather(starting, return_exceptions=True)
            continue
        live = backend.open(TURN)
        await gather(live.segment())
        leaders.add(leader_of(backend))
        if way.startswith("kill"):
            (os.killpg if way == "kill the group" else os.kill)(leader_of(backend), signal.SIGKILL)
        if way != "close":
            await live.cancel()
        await backend.close()
        await live.cancel()
    await until(lambda: not any(living(leader) for leader in leaders))
    assert len(leaders) >= rounds * 4 // 5 and not folders()
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    assert [
        pid for pid in children if "cursor" in Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    ] == []
    print("rounds:", ways)


async def test_memory_does_not_grow_with_the_turns(make: Make, launcher: Any) -> None:
    turns = int(os.environ.get("TOOLWIRE_CURSOR_TURNS", "60"))
    backend = make(
        bridge_bin=launcher([{"call": "look"}, {"text": "It was {result}. " + "x" * 500}]),
        sessions=4,
        settle_ms=5,
    )

    def memory() -> float:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    async def one(number: int) -> None:
        asked = Turn(
            "chat",
            "m",
            (Message("user", (TextPart(f"number {number} " + "y" * 20_000),)),),
            tools=TURN.tools,
            tool_choice=TURN.tool_choice,
        )
        live = backend.open(asked)
        assert (await gather(live.segment()))[-1] == Finish("tool_calls")
        if number % 5:
            await live.answer({id: Result(id, (TextPart("z" * 500),)) for id in live.pending})
            assert (await gather(live.segment()))[-1] == Finish("stop")
        await live.cancel()

    for number in range(20):
        await one(number)
    before, tasks = memory(), len(asyncio.all_tasks())
    for number in range(turns):
        await one(number)
    grown = memory() - before
    print(f"memory: {before:.1f} MB, {grown:+.1f} MB after {turns} turns")
    await until(lambda: len(asyncio.all_tasks()) <= tasks + 2)
    assert grown < 6 and len(backend.idle) == 4 and len(backend.bridge.agents) == 4
    connection = await backend.bridge.connect()
    assert connection.alive and backend.bridge.starts == 1


async def test_closing_twice_and_asking_afterwards_is_clear(make: Make, launcher: Any) -> None:
    backend = make(bridge_bin=launcher())
    bridge = backend.bridge
    await bridge.connect()
    await backend.close()
    await backend.close()
    with pytest.raises(ToolwireError, match="closing"):
        await bridge.connect()
    events = await gather(backend.run(TURN))
    assert len(events) == 1 and isinstance(events[0], Failure) and "closing" in events[0].message
    assert not folders()


async def test_a_start_that_is_cancelled_at_any_moment_leaves_no_folder() -> None:
    for moments in range(1, 8):
        process = BridgeProcess("/bin/true", {"PATH": "/bin:/usr/bin"})
        starting = asyncio.ensure_future(process.start(5))
        for _ in range(moments):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        assert not folders()


async def test_a_first_turn_that_is_cancelled_at_any_moment_does_not_cost_the_next_ones_their_tools(
    make: Make, bridge: Any
) -> None:
    for moments in range(1, 12):
        bridge.play([{"call": "look", "args": {}}])
        backend = make()
        first = backend.open(TURN)
        reading = asyncio.ensure_future(gather(first.segment()))
        for _ in range(moments):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await first.cancel()
        second = backend.open(TURN)
        assert [event.name for event in await gather(second.segment()) if isinstance(event, CallBegin)] == [
            "look"
        ]
        await second.cancel()
        await backend.close()


async def test_an_agent_whose_run_was_stopped_does_not_wait_for_a_next_turn(make: Make, bridge: Any) -> None:
    """It was busy with something, so its state is unknown."""
    bridge.play([{"call": "look", "args": {}}, {"call": "look", "args": {}}, {"text": "Done."}])
    backend = make(repeats=1)
    run = backend.open(TURN)
    await gather(run.segment())
    await run.answer({id: Result(id, (TextPart("x"),)) for id in run.pending})
    assert isinstance((await gather(run.segment()))[-1], Failure)
    await run.cancel()
    assert not run.finished and len(backend.idle) == 0
    await until(lambda: len(bridge.cancelled) == 1 and not bridge.agents)

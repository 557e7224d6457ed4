"""The lifetime of an agent's process: nothing outlives its session, and nothing of ours leaks into it.

The long versions run in `make evidence`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from toolwire.backends.acp import AcpBackend, AcpOptions, inspect
from toolwire.backends.acp.process import PREFIX, AgentProcess, Launch, Workspace

Agent = Callable[..., AcpBackend]
Talks = Callable[..., Any]
Living = Callable[[int], set[int]]
Gone = Callable[[int], Awaitable[bool]]
LOOP = [
    {"say": "Let me look."},
    {"call": "get_weather", "arguments": {"city": "Oslo"}},
    {"say": "It is {result}."},
]


@pytest.fixture
def gone(living: Living) -> Gone:
    """`await gone(group)` returns when no process of the group is left."""

    async def gone(group: int) -> bool:
        async with asyncio.timeout(10.0):
            while living(group):
                await asyncio.sleep(0.02)
        return True

    return gone


@pytest.mark.timeout(1800)
async def test_no_process_and_no_folder_is_left_after_rounds_of_starts_and_kills(
    agent: Agent, talk: Talks, tmp_path: Path, living: Living, gone: Gone
) -> None:
    """Each round ends an agent with children differently: its own exit, a kill, a signal, the backend."""
    rounds = int(os.environ.get("TOOLWIRE_ACP_ROUNDS", "5"))
    chance = random.Random(5)
    groups, folders = [], []
    for number in range(rounds):
        backend = agent(LOOP, [{"say": "x"}, {"crash": 3}])
        client = talk(backend)
        await client.say("Weather?")
        (session,) = backend.live
        groups.append(session.pid)
        folders.append(session.folder)
        assert len(living(session.pid)) >= 2  # the agent, and its guard
        way = number % 4
        if way == 0:
            await client.answer("sunny")
            with pytest.raises(Exception, match="exit status 3"):
                await client.say("More?")
        elif way == 1:
            os.kill(session.pid, signal.SIGKILL)
        elif way == 2:
            os.killpg(session.pid, chance.choice([signal.SIGTERM, signal.SIGSTOP]))
        await backend.close()
    for group in groups:
        assert await gone(group)
    assert not any(folder.exists() for folder in folders)


@pytest.mark.timeout(1800)
async def test_memory_is_flat_over_many_turns(agent: Agent, talk: Talks) -> None:
    """Runs tool loops in one session after another."""
    turns = int(os.environ.get("TOOLWIRE_ACP_TURNS", "12"))
    backend = agent(LOOP, sessions=1)
    page = os.sysconf("SC_PAGE_SIZE")
    sizes = []
    for number in range(turns):
        client = talk(backend, "chat", number % 2 == 1)
        await client.say(f"Weather? {number}")
        assert (await client.answer("sunny")).text == "It is sunny."
        sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * page / 2**20)
        assert len(backend.live) <= 1 + len(backend.idle)
    grown = sizes[-1] - sizes[len(sizes) // 5]
    print(f"{turns} turns: {sizes[0]:.1f} MB, {sizes[len(sizes) // 5]:.1f} MB, {sizes[-1]:.1f} MB")
    assert grown < 16
    assert len(os.listdir("/proc/self/fd")) < 200


OWNER = """
import asyncio, json, sys
from doubles import acp_agent
from toolwire.backends.acp import AcpBackend, AcpOptions
from toolwire.core.turn import Message, TextPart, ToolChoice, ToolSpec, Turn

async def main():
    backend = AcpBackend("m", AcpOptions((sys.executable, acp_agent.__file__, sys.argv[1])))
    messages = (Message("user", (TextPart("x"),)),)
    turn = Turn("chat", "m", messages, tools=(ToolSpec("get_weather"),), tool_choice=ToolChoice("auto"))
    live = backend.open(turn)
    async for batch in live.segment():
        pass
    (session,) = backend.live
    print(json.dumps([session.pid, str(session.folder)]), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_an_agent_dies_with_toolwire_however_that_dies(
    tmp_path: Path, living: Living, gone: Gone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one that ignores the end of its stdin and every signal that can be ignored."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"prompts": [LOOP]}))
    # A folder of its own for temporary files: in a shared one, any other Toolwire cleans up too.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, str(script), stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    group, folder = json.loads(await owner.stdout.readline())
    for pid in living(group):
        os.kill(pid, 0)
    os.kill(group, signal.SIGSTOP)  # it cannot notice anything now
    owner.kill()
    await owner.wait()
    assert await gone(group)
    assert Path(folder).exists()  # nobody could clean up …
    Workspace().close()  # … so the next process does
    assert not Path(folder).exists()


async def test_an_agent_gets_a_small_environment_and_empty_private_folders(
    agent: Agent, talk: Talks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLWIRE_API_KEY", "a-secret-of-ours")
    backend = agent([{"say": "ok"}], env={"MINE": "1"})
    await talk(backend).say("Hello.")
    (session,) = backend.live
    words = Path(f"/proc/{session.pid}/environ").read_bytes().decode().split("\0")
    env = dict(word.split("=", 1) for word in words if word)
    assert (
        env["MINE"] == "1" and "TOOLWIRE_API_KEY" not in env and env["HOME"] == str(session.folder / "home")
    )
    assert os.readlink(f"/proc/{session.pid}/cwd") == str(session.folder / "work") and not list(
        (session.folder / "work").iterdir()
    )
    assert session.folder.stat().st_mode & 0o777 == 0o700 and session.folder.name.startswith(
        f"{PREFIX}{os.getpid()}-"
    )
    command = Path(f"/proc/{session.pid}/cmdline").read_bytes()
    assert b"Bearer" not in command and not any("Bearer" in value for value in env.values())


async def test_a_login_is_linked_and_one_that_was_renewed_is_put_back(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / ".x").mkdir(parents=True)
    (own / ".x" / "auth.json").write_text("old")
    place = Workspace()
    place.link((".x/auth.json", ".x/none.json"), own)
    link = place.home / ".x" / "auth.json"
    assert link.is_symlink() and link.read_text() == "old" and not (place.home / ".x" / "none.json").exists()
    renewed = place.home / "new"
    renewed.write_text("new")
    renewed.replace(link)
    place.close()
    assert (own / ".x" / "auth.json").read_text() == "new" and not place.path.exists()


async def test_the_operators_own_folder_is_used_and_left_alone(
    agent: Agent, talk: Talks, log: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "note.txt").write_text("x")
    backend = agent([{"say": "ok"}], cwd=str(folder))
    await talk(backend).say("Hello.")
    assert log.sent("session/new")[0]["cwd"] == str(folder)
    await backend.close()
    assert (folder / "note.txt").read_text() == "x"


async def test_abandoned_sessions_end(agent: Agent, talk: Talks, gone: Gone) -> None:
    backend = agent([{"say": "ok"}], idle_s=0.2)
    await talk(backend).say("Hello.")
    (session,) = backend.live
    async with asyncio.timeout(30):
        while backend.live:
            await asyncio.sleep(0.02)
    assert await gone(session.pid)
    assert len(backend.idle) == 0


async def test_the_doctor_opens_a_session_and_closes_it(agent: Agent) -> None:
    backend = agent([{"say": "ok"}])
    assert await inspect(backend.options) == ("OpenCode", "")
    _, problem = await inspect(AcpOptions(("no-such-agent",)))
    assert "not found" in problem


async def test_a_backend_that_closes_waits_for_a_session_that_is_being_closed(
    agent: Agent, talk: Talks
) -> None:
    """A run whose agent died closes its session in its own task."""
    backend = agent(LOOP)
    await talk(backend).say("Weather?")
    (session,) = backend.live
    closing = asyncio.ensure_future(backend.end(session))
    await asyncio.sleep(0)
    await backend.close()
    assert not session.folder.exists()
    await closing


async def test_a_backend_that_closes_while_agents_start_leaves_none_running(
    agent: Agent, talk: Talks
) -> None:
    backend = agent([{"say": "ok"}])
    starting = [asyncio.ensure_future(talk(backend).say(f"Hello {number}.")) for number in range(3)]
    while len(backend.live) < 3:
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    sessions = list(backend.live)
    await backend.close()
    assert all(isinstance(one, Exception) for one in await asyncio.gather(*starting, return_exceptions=True))
    assert not any(session.alive for session in sessions)
    failure = await talk(backend).failure("Hello.")
    assert (failure.kind, failure.message) == ("backend_unavailable", "The gateway is closing.")


async def test_a_start_that_is_cancelled_at_any_moment_leaves_no_process_and_no_pipe() -> None:
    before = len(os.listdir("/dev/fd"))
    for moments in range(1, 8):
        process = AgentProcess(Launch(("/bin/sleep", "100"), {}, {}, frozenset()), "sleep")
        starting = asyncio.ensure_future(process.start("/"))
        for _ in range(moments):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await process.end()
    async with asyncio.timeout(10):
        while len(os.listdir("/dev/fd")) != before:
            await asyncio.sleep(0.02)

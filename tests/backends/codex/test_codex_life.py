"""Codex processes and homes: crashes, missing binaries, old versions, logins and cleanup."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from toolwire.backends.base import Batch
from toolwire.backends.codex import CodexBackend, CodexOptions, inspect
from toolwire.backends.codex.home import scratch
from toolwire.backends.codex.worker import CodexWorker
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Event, Failure, Finish, Text, Usage
from toolwire.core.turn import Message, Result, TextPart, ToolChoice, ToolSpec, Turn

Make = Callable[..., CodexBackend]
Living = Callable[[int], set[int]]
TURN = Turn(
    "chat",
    "codex",
    (Message("user", (TextPart("hi"),)),),
    tools=(ToolSpec("look"),),
    tool_choice=ToolChoice("auto"),
)


async def gather(batches: AsyncGenerator[Batch, None]) -> list[Event]:
    async with aclosing(batches):
        return [event async for batch in batches for event in batch]


def said(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


async def ready(make: Make, binary: str, **options: Any) -> CodexBackend:
    backend = make(binary, **options)
    await backend.prepare()
    return backend


async def until(condition: Callable[[], bool], seconds: float = 5) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def worker_of(backend: CodexBackend) -> CodexWorker:
    assert backend.pool is not None
    return backend.pool.workers[0]


# --- death ---


async def test_when_the_process_is_killed_every_run_fails_once_and_the_next_one_works(
    make: Make, new_codex: str, provider: Any, caplog: pytest.LogCaptureFixture
) -> None:
    provider.play(provider.stalled(provider.text("Once upon")[:-1]))
    backend = await ready(make, new_codex)
    runs = [backend.run(TURN) for _ in range(3)]
    for run in runs:
        assert said(await anext(run)).startswith("Once")
    leader = worker_of(backend).pid
    os.killpg(leader, signal.SIGKILL)
    for run in runs:
        events = [event for event in await gather(run) if not isinstance(event, Text)]
        assert len(events) == 1 and isinstance(events[0], Failure)
        assert (events[0].kind, events[0].message) == ("backend_cut", "Codex was killed by signal 9.")
    assert (
        caplog.text.count("Codex was killed by signal 9. It said: ") == 1
    )  # real Codex warns about the test's folder at every start
    provider.play(provider.text("Fine."))
    assert said(await gather(backend.run(TURN))) == "Fine."
    assert worker_of(backend).pid != leader


async def test_when_only_the_starter_script_is_killed_codex_does_not_live_on(
    make: Make, new_codex: str, provider: Any, living: Living
) -> None:
    provider.play(provider.text("Fine."))
    backend = await ready(make, new_codex)
    await gather(backend.run(TURN))
    leader = worker_of(backend).pid
    os.kill(leader, signal.SIGKILL)
    await until(lambda: not living(leader))
    assert said(await gather(backend.run(TURN))) == "Fine."


async def test_a_process_that_died_unnoticed_is_replaced_before_a_model_is_asked(
    make: Make, new_codex: str, provider: Any
) -> None:
    provider.play(provider.text("Fine."))
    backend = await ready(make, new_codex)
    await gather(backend.run(TURN))
    os.killpg(worker_of(backend).pid, signal.SIGKILL)
    assert worker_of(backend).alive, "nothing has been read since"
    assert said(await gather(backend.run(TURN))) == "Fine."
    assert len(provider.seen) == 2


async def test_a_parked_run_whose_process_died_fails_when_it_is_resumed(
    make: Make, new_codex: str, provider: Any
) -> None:
    provider.play(provider.call("look", "{}", "call_a"))
    live = (backend := await ready(make, new_codex)).open(TURN)
    assert (await gather(live.segment()))[-1] == Finish("tool_calls")
    os.killpg(worker_of(backend).pid, signal.SIGKILL)
    await live.answer({"call_a": Result("call_a", (TextPart("x"),))})
    events = await gather(live.segment())
    assert len(events) == 1 and isinstance(events[0], Failure) and events[0].kind == "backend_cut"
    await live.cancel()


async def test_closing_leaves_no_process_running(
    make: Make, new_codex: str, old_codex: str, provider: Any, living: Living
) -> None:
    for binary in (new_codex, old_codex):
        provider.play(provider.stalled(provider.text("Once upon")[:-1]))
        backend = await ready(make, binary)
        run = backend.run(TURN)
        await anext(run)
        leader = worker_of(backend).pid
        assert living(leader)
        await backend.close()
        assert not living(leader)
        events = [event for event in await gather(run) if isinstance(event, Failure)]
        assert len(events) == 1


async def test_what_codex_logs_is_removed_with_its_process(
    make: Make, new_codex: str, provider: Any, tmp_path: Path
) -> None:
    provider.play(provider.text("Fine."))
    backend = await ready(make, new_codex, home=str(tmp_path))
    await gather(backend.run(TURN))
    logs = worker_of(backend)._scratch
    assert logs is not None and list(logs.glob("*.sqlite"))
    assert stat.S_IMODE(logs.stat().st_mode) == 0o700
    assert not list(tmp_path.rglob("*.sqlite*"))
    await backend.close()
    assert not logs.exists()


def test_folders_of_a_killed_gateway_are_removed() -> None:
    child = subprocess.run(
        [sys.executable, "-c", "from toolwire.backends.codex.home import scratch; print(scratch())"],
        capture_output=True,
        text=True,
    )
    left = Path(child.stdout.strip())
    assert left.is_dir()
    own = scratch()
    assert not left.exists() and own.is_dir()
    own.rmdir()


async def test_codex_ends_when_the_gateway_is_killed(homes: Path, new_codex: str, living: Living) -> None:
    program = f"""
        import asyncio, os, sys
        from toolwire.backends.codex import CodexOptions
        from toolwire.backends.codex.home import prepare_home
        from toolwire.backends.codex.worker import CodexWorker

        async def main():
            provider = {{"base_url": "http://127.0.0.1:9/v1"}}
            home = {str(homes / "killed")!r}
            options = CodexOptions(bin={new_codex!r}, home=home, provider=provider)
            worker = CodexWorker(await prepare_home(options))
            await worker.start(20)
            print(worker.pid, flush=True)
            await asyncio.Event().wait()

        asyncio.run(main())
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        leader = int(await asyncio.to_thread(process.stdout.readline))
        assert living(leader)
        process.kill()
    await until(lambda: not living(leader))


async def test_the_servers_own_event_loop_serves_as_well(
    homes: Path, new_codex: str, provider: Any, living: Living
) -> None:
    provider.play(provider.call("look", "{}", "call_a"), provider.text("Fine."))
    program = f"""
        import uvloop
        from toolwire.backends.codex import CodexBackend, CodexOptions
        from toolwire.core.turn import *

        async def main():
            provider = {{"base_url": {provider.base_url!r}}}
            home = {str(homes / "uvloop")!r}
            options = CodexOptions(bin={new_codex!r}, home=home, provider=provider)
            backend = CodexBackend("codex", options)
            await backend.prepare()
            messages = (Message("user", (TextPart("hi"),)),)
            turn = Turn("chat", "m", messages, tools=(ToolSpec("look"),), tool_choice=ToolChoice("auto"))
            live = backend.open(turn)
            print([event async for batch in live.segment() for event in batch])
            await live.answer({{"call_a": Result("call_a", (TextPart("x"),))}})
            print([event async for batch in live.segment() for event in batch])
            print("leader", backend.pool.workers[0].pid)
            await backend.close()

        uvloop.run(main())
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        textwrap.dedent(program),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, errors = (text.decode() for text in await child.communicate())
    assert child.returncode == 0 and errors == ""
    assert "Finish(reason='tool_calls'" in said and "Text(text='Fine')" in said
    assert not living(int(said.split()[-1]))


# --- requests of Codex ---


@pytest.fixture
def imitation(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """A program in place of Codex, for what the real one cannot be made to do."""

    def write(body: str, version: str = "0.166.0") -> str:
        path = tmp_path / "codex"
        head = f"#!{sys.executable}\nimport json, os, sys, time\n"
        head += f"if '--version' in sys.argv: print('codex-cli {version}'); sys.exit()\n"
        head += "if 'debug' in sys.argv: sys.exit('no catalog')\n"
        head += "def say(**message): print(json.dumps(message), flush=True)\n"
        head += "def hear(): return json.loads(sys.stdin.readline())\n"
        path.write_text(head + textwrap.dedent(body))
        path.chmod(0o700)
        return str(path)

    yield write


async def test_an_approval_that_codex_asks_for_is_refused_at_once(
    imitation: Callable[[str], str], tmp_path: Path, make: Make
) -> None:
    binary = imitation("""
        hello = hear()
        say(id=hello["id"], result={"userAgent": "toolwire/0.166.0"})
        hear()
        command = {"threadId": "t", "command": "rm -rf /"}
        say(id=7, method="item/commandExecution/requestApproval", params=command)
        say(id="x", method="item/tool/call", params={"threadId": "nobody's", "callId": "c"})
        heard = [hear(), hear(), hear()]
        ask = next(one for one in heard if "method" in one)
        heard.remove(ask)
        say(id=ask["id"], result={"account": heard})
        hear()
    """)
    backend = await ready(make, binary, home=str(tmp_path / "home"))
    assert backend.pool is not None
    lease = await backend.pool.lease()
    answers = (await lease.worker.account()).account
    assert [answer["id"] for answer in answers] == [7, "x"] and all("error" in answer for answer in answers)
    lease.release(True)


async def test_an_overloaded_codex_is_asked_again(
    imitation: Callable[[str], str], tmp_path: Path, make: Make
) -> None:
    binary = imitation("""
        say(id=hear()["id"], result={"userAgent": "toolwire/0.166.0"})
        hear()
        for _ in range(2):
            say(id=hear()["id"], error={"code": -32001, "message": "Server overloaded; retry later."})
        say(id=hear()["id"], result={"account": "there"})
        hear()
    """)
    backend = await ready(make, binary, home=str(tmp_path / "home"))
    assert backend.pool is not None
    lease = await backend.pool.lease()
    assert (await lease.worker.account()).account == "there"
    lease.release(True)


async def test_a_codex_that_cannot_start_reports_why_and_is_retried_later(
    imitation: Callable[[str], str], tmp_path: Path, make: Make
) -> None:
    mark = tmp_path / "healed"
    binary = imitation(f"""
        if not os.path.exists({str(mark)!r}):
            sys.exit("the state is broken")
        say(id=hear()["id"], result={{"userAgent": "toolwire/0.166.0"}})
        sys.stdin.read()
    """)
    backend = await ready(make, binary, home=str(tmp_path / "home"))
    pool = backend.pool
    assert pool is not None
    now = 1000.0
    pool._backoff.clock = lambda: now
    pauses = []
    for _ in range(8):
        with pytest.raises(ToolwireError, match="the state is broken") as first:
            await pool.lease()
        assert first.value.failure.kind == "backend_unavailable"
        with pytest.raises(ToolwireError, match=r"the state is broken.*next attempt") as second:
            await pool.lease()
        assert second.value.failure.retry_after_s is not None
        pauses.append(second.value.failure.retry_after_s)
        now += second.value.failure.retry_after_s + 0.01
    assert pauses == pytest.approx([0.5, 1, 2, 4, 8, 16, 30, 30], abs=0.01)
    mark.touch()
    lease = await pool.lease()
    assert lease.worker.alive
    lease.release(True)


async def test_output_of_a_serving_codex_is_only_logged(
    imitation: Callable[[str], str], tmp_path: Path, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    binary = imitation("""
        say(id=hear()["id"], result={"userAgent": "toolwire/0.166.0"})
        hear()
        sys.stderr.write("another client's words, and sk-scripted\\n"); sys.stderr.flush()
        hear(), hear()
        sys.exit(3)
    """)
    backend = await ready(make, binary, home=str(tmp_path / "home"))
    assert backend.pool is not None
    worker = (await backend.pool.lease()).worker
    with pytest.raises(ToolwireError) as silent:
        await worker.request("model/list", {}, 0.3)
    assert silent.value.failure.message == "Codex did not answer model/list within 0.3 s."
    worker.notify("model/list", {})
    await worker.gone.wait()
    assert worker.failure == Failure("backend_unavailable", "Codex ended with exit status 3.")
    assert caplog.text.count("It said: another client's words, and ***") == 2


async def test_a_codex_that_cannot_start_shows_a_client_no_paths(
    imitation: Callable[[str], str], tmp_path: Path, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    binary = imitation("""
        long = "/home/alice/" + "x" * 300
        home = os.environ["CODEX_HOME"]
        seen = f"{home}/config.toml:3 and https://a.example/b/c, ~/x or w/o it"
        sys.exit(f'WARN {long}\\nno "/home/alice/.ssh": see {seen}')
    """)
    backend = await ready(make, binary, home=str(tmp_path / "home"))
    assert backend.pool is not None
    with pytest.raises(ToolwireError) as why:
        await backend.pool.lease()
    words = 'no "(path)": see $CODEX_HOME/config.toml:3 and https://a.example/b/c, (path) or w/o it'
    assert why.value.failure.message == f"Codex ended with exit status 1. It said: {words}"
    assert "/home/alice/.ssh" in caplog.text and str(tmp_path / "home") in caplog.text


async def test_a_codex_that_does_not_answer_is_an_error(
    imitation: Callable[[str], str], tmp_path: Path, make: Make
) -> None:
    binary = imitation("""
        sys.stderr.write("still thinking\\n"); sys.stderr.flush()
        time.sleep(60)
    """)
    backend = await ready(make, binary, home=str(tmp_path / "home"), start_timeout_s=0.5)
    assert backend.pool is not None
    with pytest.raises(ToolwireError, match="still thinking"):
        await backend.pool.lease()


@pytest.mark.parametrize(("more", "version"), [(False, "0.89.0"), (True, "0.89.0"), (False, "0.126.0")])
async def test_an_answer_whose_end_codex_never_reports_is_complete_and_its_process_is_replaced(
    imitation: Callable[..., str],
    tmp_path: Path,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    more: bool,
    version: str,
) -> None:
    monkeypatch.setattr("toolwire.backends.codex.runs.AFTER_ANSWER_S", 0.2)
    binary = imitation(
        f"""
        open({str(tmp_path / "pids")!r}, "a").write(f"{{os.getpid()}} ")
        say(id=hear()["id"], result={{"userAgent": "toolwire/{version}"}})
        hear()
        say(id=hear()["id"], result={{"thread": {{"id": "t"}}}})
        say(id=hear()["id"], result={{"turn": {{"id": "0"}}}})
        def news(method, **params): say(method=method, params={{"threadId": "t", "turnId": "0", **params}})
        def item(type, **fields): news("rawResponseItem/completed", item={{"type": type, **fields}})
        def counted(n):
            total = {{"inputTokens": n, "outputTokens": n}}
            news("thread/tokenUsage/updated", tokenUsage={{"total": total}})
        news("turn/started", turn={{"id": "0"}})
        item("message", role="user")
        news("item/agentMessage/delta", itemId="a", delta="I plan.")
        item("message", role="assistant")
        if {more}:  # the model's response asks for something: Codex goes on by itself, and takes its time
            item("function_call", name="update_plan", arguments="{{}}", call_id="c")
            counted(1)
            item("function_call_output", call_id="c")
            time.sleep(1)
            news("item/agentMessage/delta", itemId="b", delta="Done.")
            item("message", role="assistant")
        counted(2)
        if {version != "0.89.0"}:  # a response may say that there is more to come: silence is no end
            time.sleep(1)
            news("item/agentMessage/delta", itemId="b", delta="More.")
            news("turn/completed", turn={{"id": "0", "status": "completed"}})
        sys.stdin.read()
        """,
        version=version,
    )
    backend = await ready(make, binary, home=str(tmp_path / "home"))
    asked = Turn("chat", "codex", (Message("user", (TextPart("hi"),)),))
    pids = tmp_path / "pids"
    for times in (1, 2):
        events = await gather(backend.run(asked))
        assert said(events) == {"0.126.0": "I plan.\n\nMore."}.get(
            version, "I plan.\n\nDone." if more else "I plan."
        )
        assert events[-2:] == [Usage(2, 2), Finish("stop")]
        if version == "0.126.0":
            return
        assert len(pids.read_text().split()) == times
    first, _ = map(int, pids.read_text().split())
    await until(lambda: not Path(f"/proc/{first}").exists())


async def test_a_codex_that_was_updated_meanwhile_gets_a_home_of_its_version(
    imitation: Callable[[str], str], tmp_path: Path, make: Make
) -> None:
    binary = imitation("""
        say(id=hear()["id"], result={"userAgent": "toolwire/0.166.0"})
        for line in sys.stdin:
            asked = json.loads(line)
            if "id" in asked: say(id=asked["id"], error={"code": 1, "message": "enough"})
    """)
    backend = await ready(make, binary, home=str(tmp_path / "home"))
    assert backend.home is not None and str(backend.home.version) == "0.166.0"
    old = Path(binary)
    new = old.with_name("next")
    new.write_text(old.read_text().replace("0.166.0", "0.167.1"))
    new.chmod(0o700)
    new.replace(old)
    events = await gather(backend.run(TURN))
    assert isinstance(events[0], Failure) and "enough" in events[0].message
    assert str(backend.home.version) == "0.167.1"


# --- age ---


async def test_an_old_process_finishes_its_threads_and_ends(
    make: Make, new_codex: str, provider: Any, living: Living
) -> None:
    provider.play(provider.call("look", "{}", "call_a"))
    backend = await ready(make, new_codex, max_threads=2)
    parked = backend.open(TURN)
    await gather(parked.segment())
    first = worker_of(backend).pid
    provider.play(provider.text("Fine."))
    await gather(backend.run(TURN))
    assert backend.pool is not None and backend.pool.workers == ()
    assert said(await gather(backend.run(TURN))) == "Fine."
    assert worker_of(backend).pid != first
    assert living(first), "a parked run still needs its process"
    await parked.answer({"call_a": Result("call_a", (TextPart("x"),))})
    assert said(await gather(parked.segment())) == "Fine."
    await until(lambda: not living(first))


async def test_a_process_that_holds_too_much_memory_is_replaced(
    make: Make, new_codex: str, provider: Any
) -> None:
    provider.play(provider.text("Fine."))
    backend = await ready(make, new_codex, max_rss_mb=1)
    for _ in range(2):
        assert said(await gather(backend.run(TURN))) == "Fine."
    assert backend.pool is not None and backend.pool.workers == ()


async def test_more_workers_start_one_after_another_in_a_fresh_home(
    make: Make, new_codex: str, provider: Any, tmp_path: Path
) -> None:
    provider.play(provider.call("look", "{}", "call_a"))
    backend = await ready(make, new_codex, workers=2, home=str(tmp_path / "home"))
    runs = [backend.open(TURN) for _ in range(3)]
    for events in await asyncio.gather(*(gather(run.segment()) for run in runs)):
        assert events[-1] == Finish("tool_calls")
    assert backend.pool is not None and len(backend.pool.workers) == 2
    for run in runs:
        await run.cancel()


# --- home and login ---


async def test_a_missing_binary_is_one_clear_line(tmp_path: Path) -> None:
    backend = CodexBackend("codex", CodexOptions(bin=str(tmp_path / "nothing")))
    assert not await backend.ready()
    with pytest.raises(ToolwireError, match="npm install"):
        await backend.prepare()
    facts = await inspect(CodexOptions(bin=str(tmp_path / "nothing")))
    assert facts["installed"] is False and "npm install" in facts["problem"]


async def test_the_home_is_private_and_the_persons_own_is_not_touched(
    new_codex: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "config.toml").write_text('model = "mine"\n')
    (own / "auth.json").write_text(json.dumps({"OPENAI_API_KEY": "sk-of-the-person"}))
    monkeypatch.setenv("CODEX_HOME", str(own))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for home in ("", str(own)):
        backend = CodexBackend("codex", CodexOptions(bin=new_codex, home=home))
        await backend.prepare()
        made = backend.home
        assert made is not None and made.path.is_relative_to(tmp_path / "state")
        assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
        assert stat.S_IMODE((made.path / "config.toml").stat().st_mode) == 0o600
        assert (made.path / "auth.json").is_symlink() and os.readlink(made.path / "auth.json") == str(
            own / "auth.json"
        )
        config = tomllib.loads((made.path / "config.toml").read_text())
        assert config["model_providers"]["toolwire"]["requires_openai_auth"] is True
        assert config["features"]["shell_tool"] is False
        assert made.env["CODEX_HOME"] == str(made.path)
    assert sorted(file.name for file in own.iterdir()) == ["auth.json", "config.toml"]
    assert (own / "config.toml").read_text() == 'model = "mine"\n'


async def test_codex_gets_its_providers_key_and_no_other_secret(make: Make, new_codex: str) -> None:
    backend = await ready(make, new_codex)
    assert backend.home is not None
    assert backend.home.env["SCRIPTED_KEY"] == "sk-scripted"
    assert set(backend.home.env) <= {"PATH", "HOME", "CODEX_HOME", "SCRIPTED_KEY"} | {
        name for name in os.environ if "proxy" in name.lower()
    }
    assert not (backend.home.path / "auth.json").exists()


async def test_the_error_without_a_login_explains_how_to_log_in(
    new_codex: str, old_codex: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "nobody"))
    for binary in (new_codex, old_codex):
        options = CodexOptions(bin=binary, home=str(tmp_path / Path(binary).parents[2].name))
        facts = await inspect(options)
        assert facts["installed"] and facts["logged_in"] is False and "codex login" in facts["problem"]
        backend = CodexBackend("codex", options)
        try:
            events = await gather(backend.run(TURN))
        finally:
            await backend.close()
        assert len(events) == 1 and isinstance(events[0], Failure) and events[0].kind == "backend_auth"
        assert "codex login" in events[0].message and "https://auth.openai.com/" in events[0].message


async def test_a_login_of_the_persons_own_is_seen(
    new_codex: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "auth.json").write_text(json.dumps({"OPENAI_API_KEY": "sk-of-the-person"}))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "own"))
    facts = await inspect(CodexOptions(bin=new_codex, home=str(tmp_path / "home")))
    assert facts["logged_in"] is True and facts["problem"] is None
    assert facts["version"] == "0.166.0" and facts["strategy"] == "parked"


async def test_a_login_that_comes_while_the_gateway_runs_is_used_by_the_next_request(
    new_codex: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setenv("CODEX_HOME", str(own))
    backend = CodexBackend("codex", CodexOptions(bin=new_codex, home=str(tmp_path / "home")))
    try:
        with pytest.raises(ToolwireError, match="not logged in"):
            await backend._thread()
        (own / "auth.json").write_text(json.dumps({"OPENAI_API_KEY": "sk-of-the-person"}))
        thread = await backend._thread()
        assert thread is not None
    finally:
        await backend.close()

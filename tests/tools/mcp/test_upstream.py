"""A connection to a server that breaks the protocol or its process: every wait ends, nothing is repeated."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from tools.mcp.conftest import hostile, lag, lives, processes, until
from toolwire.tools.mcp import upstream as module
from toolwire.tools.mcp.stdio import MOST_HELD, ServerProcess
from toolwire.tools.mcp.upstream import Upstream, UpstreamFailed

pytestmark = pytest.mark.process
Make = Callable[..., Upstream]


def words(result: types.CallToolResult) -> str:
    return "".join(one.text for one in result.content if isinstance(one, types.TextContent))


async def fails(upstream: Upstream, **arguments: Any) -> UpstreamFailed:
    with pytest.raises(UpstreamFailed) as caught:
        await upstream.call("t", arguments)
    assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value) + caught.value.said
    return caught.value


# --- answers ---


@pytest.mark.parametrize("mode", ["half-answer", "bad-utf8"])
async def test_an_answer_that_cannot_be_read_ends_its_call_at_once(upstream_to: Make, mode: str) -> None:
    upstream = upstream_to(mode)
    await upstream.tools()
    began = time.monotonic()
    failure = await fails(upstream)
    assert "cannot be read" in str(failure) and failure.may_have_run
    assert time.monotonic() - began < 2
    assert (await upstream.tools())[0].name == "t", "the connection lives on"


@pytest.mark.parametrize("mode", ["not-a-result", "nan"])
async def test_an_answer_that_is_no_result_ends_its_call(upstream_to: Make, mode: str) -> None:
    upstream = upstream_to(mode)
    failure = await fails(upstream)
    assert failure.may_have_run
    assert (await upstream.tools())[0].name == "t"


async def test_answers_with_other_ids_or_for_the_second_time_are_dropped(upstream_to: Make) -> None:
    upstream = upstream_to("other-ids")
    assert [words(await upstream.call("t", {})) for _ in range(3)] == ["right"] * 3


async def test_a_nul_character_in_a_result_stays_what_it_is(upstream_to: Make) -> None:
    assert words(await upstream_to("nul").call("t", {})) == "a\0b"


async def test_arguments_arrive_exactly_as_they_were_given(upstream_to: Make, tmp_path: Path) -> None:
    log = tmp_path / "log"
    upstream = upstream_to("echo", log)
    given: dict[str, Any] = {
        "a": None,
        "b": [1.0, 1, True, None, {"c": None}],
        "big": 2**70,
        "text": "é\0\u202e",
        "e": {},
    }
    assert json.loads(words(await upstream.call("t", given))) == given
    (sent,) = [json.loads(line) for line in log.read_bytes().splitlines() if b"tools/call" in line]
    assert sent["params"]["arguments"] == given
    assert json.dumps(sent["params"]["arguments"]["b"][:2]) == "[1.0, 1]"


async def test_a_result_is_not_judged_by_the_schema_of_its_server(upstream_to: Make) -> None:
    """The call has run already; and the server's own regular expression would stop the process."""
    assert words(await upstream_to("output-mismatch").call("t", {})) == "done"
    upstream = upstream_to("backtracking")
    await upstream.tools()
    calling = asyncio.ensure_future(upstream.call("t", {}))
    assert await lag(calling) < 0.3
    assert calling.result().structured_content == {"x": "a" * 40 + "!"}


async def test_a_large_result_arrives_and_a_larger_one_ends_the_server(upstream_to: Make) -> None:
    upstream = upstream_to("big")
    assert len(words(await upstream.call("t", {"n": 7_000_000}))) == 7_000_000
    failure = await fails(upstream, n=9_000_000)
    assert "more than 8.4 MB" in str(failure) and failure.may_have_run
    assert len(words(await upstream.call("t", {"n": 10}))) == 10, "the next call starts it again"


async def test_a_line_without_an_end_takes_no_more_memory_than_the_largest_message(upstream_to: Make) -> None:
    upstream = upstream_to("endless-line")
    await upstream.tools()
    before = resident()
    failure = await fails(upstream)
    assert "more than" in str(failure)
    assert resident() - before < 60 * 2**20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_servers_own_error_is_passed_on_without_secrets_and_control_characters(
    upstream_to: Make,
) -> None:
    upstream = upstream_to("secret-error", env={"TOKEN": "s3cret-value"}, secret=("s3cret-value",))
    failure = await fails(upstream)
    assert "s3cret" not in str(failure) and "token *** is wrong" in str(failure)
    assert failure.error is not None and failure.error.code == -32000 and not failure.may_have_run
    assert failure.error.message.startswith("token *** is wrong"), "an MCP client gets this one"


async def test_empty_lines_are_not_read_faster_than_they_are_handled() -> None:
    paused = []

    class Pipe:
        def get_pipe_transport(self, fd: int) -> Any:
            return self

        def pause_reading(self) -> None:
            paused.append(True)

    process = ServerProcess("evil")
    process._transport = Pipe()  # type: ignore[assignment]
    process._read(b"\n" * (MOST_HELD + 1))
    assert paused


# --- time ---


async def test_a_server_that_does_not_answer_costs_the_time_of_the_call_and_lives_on(
    upstream_to: Make, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    upstream = upstream_to("hang", log, call_s=0.3)
    await upstream.tools()
    failure = await fails(upstream)
    assert "did not answer within 0.3 s" in str(failure) and failure.may_have_run
    assert upstream.state == "ready"
    await until(lambda: b"notifications/cancelled" in log.read_bytes())


async def test_progress_extends_a_call_but_not_without_end(
    upstream_to: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_CALL_S", 1.0)
    upstream = upstream_to("progress-without-end", call_s=0.4)
    await upstream.tools()
    seen: list[float] = []

    async def report(done: float, total: float | None, message: str | None) -> None:
        seen.append(done)

    began = time.monotonic()
    with pytest.raises(UpstreamFailed, match="did not answer"):
        await upstream.call("t", {}, progress=report)
    assert 0.9 < time.monotonic() - began < 5
    assert len(seen) > 10 and seen == sorted(seen)


async def test_a_cancelled_call_is_cancelled_at_the_server(upstream_to: Make, tmp_path: Path) -> None:
    log = tmp_path / "log"
    upstream = upstream_to("hang", log)
    await upstream.tools()
    calling = asyncio.ensure_future(upstream.call("t", {}))
    await until(lambda: b"tools/call" in log.read_bytes())
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await until(lambda: b"notifications/cancelled" in log.read_bytes())
    assert upstream.state == "ready"


async def test_a_server_that_does_not_read_is_ended(upstream_to: Make) -> None:
    upstream = upstream_to("deaf", call_s=0.5)
    await upstream.tools()
    first = asyncio.ensure_future(upstream.call("t", {}))
    await asyncio.sleep(0)
    failure = await fails(upstream, text="x" * 500_000)
    assert failure.may_have_run
    await asyncio.gather(first, return_exceptions=True)
    await until(lambda: upstream.state == "failed")
    assert "does not read" in upstream.error


async def test_a_server_that_is_slow_to_start_fails_in_time(upstream_to: Make, tmp_path: Path) -> None:
    upstream = upstream_to("silent-start", tmp_path / "log", start_s=0.3)
    began = time.monotonic()
    with pytest.raises(UpstreamFailed, match=r"did not start within 0\.3 s"):
        await upstream.tools()
    assert time.monotonic() - began < 5
    assert upstream.state == "failed" and not processes(f"{tmp_path}/log")


async def test_a_server_that_ignores_the_first_question_is_asked_only_once(
    upstream_to: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr("toolwire.tools.mcp.connection.SLOW_PROBE_S", 0.2)
    log = tmp_path / "log"
    upstream = upstream_to("ignores-discover", log)
    await upstream.tools()
    await upstream.restart()
    await upstream.tools()
    assert log.read_bytes().count(b'"server/discover"') == 1
    assert log.read_bytes().count(b'"initialize"') == 2


# --- the process ---


async def test_a_server_that_dies_in_a_call_fails_every_call_at_once_and_the_next_one_starts_it_again(
    upstream_to: Make, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    upstream = upstream_to("die", log)
    await upstream.tools()
    began = time.monotonic()
    failures = await asyncio.gather(*(fails(upstream) for _ in range(5)))
    assert time.monotonic() - began < 3
    assert all(one.may_have_run for one in failures)
    assert all("exit status 9" in str(one) and "a last word" in one.said for one in failures)
    calls = sum(b"tools/call" in line for line in log.read_bytes().splitlines())
    assert calls <= 5, "no call is repeated"
    assert (await upstream.tools())[0].name == "t"


async def test_a_server_that_ends_at_its_start_is_not_started_again_at_once(
    upstream_to: Make, tmp_path: Path
) -> None:
    upstream = upstream_to("exit-at-start")
    for _ in range(2):
        with pytest.raises(UpstreamFailed, match="exit status 3") as caught:
            await upstream.tools()
        assert caught.value.said == "no configuration"
    with pytest.raises(UpstreamFailed, match=r"The next attempt is possible in \d\.\d s"):
        await upstream.tools()
    await upstream.restart()
    with pytest.raises(UpstreamFailed, match=r"exit status 3\.$"):
        await upstream.tools()


async def test_a_program_that_does_not_exist_is_named(upstream_to: Make) -> None:
    for command in (("no-such-program",), ("/no/such/program",)):
        with pytest.raises(UpstreamFailed, match=f"there is no program {command[0]}"):
            await upstream_to("", command=command).tools()


@pytest.mark.parametrize("mode", ["noise", "stderr-flood"])
async def test_noise_does_not_disturb(upstream_to: Make, mode: str) -> None:
    upstream = upstream_to(mode)
    assert json.loads(words(await upstream.call("t", {"a": 1}))) == {"a": 1}


@pytest.mark.parametrize("mode", ["child", "ignores-signals"])
async def test_closing_ends_the_whole_process_group(
    upstream_to: Make, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolwire.tools.mcp.stdio.ServerProcess.END", ((0.2, 15), (0.2, 9)))
    before = processes("4242") | processes(mode)
    upstream = upstream_to(mode)
    await upstream.tools()
    started = (processes("4242") | processes(mode)) - before
    assert len(started) >= (2 if mode == "child" else 1)
    await upstream.close()
    await until(lambda: not any(map(lives, started)))


KILLED = """
import asyncio, sys
from tools.mcp.conftest import hostile
from toolwire.tools.mcp.upstream import Upstream

async def main():
    upstream = Upstream(hostile(sys.argv[1]))
    await upstream.tools()
    print("ready", flush=True)
    await upstream.call("t", {})

asyncio.run(main())
"""


@pytest.mark.parametrize("mode", ["child", "ignores-eof", "hang"])
async def test_nothing_of_a_server_outlives_toolwire_when_it_is_killed(mode: str) -> None:
    """Its whole process group dies. A child that made a session of its own stays: SECURITY.md says so."""
    words = {"child": "4242"}.get(mode, mode)
    before = processes(words)
    paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    toolwire = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, mode, stdout=asyncio.subprocess.PIPE, env=environ
    )
    assert toolwire.stdout is not None
    assert await toolwire.stdout.readline() == b"ready\n"
    started = processes(words) - before - {toolwire.pid}
    assert started and all(map(lives, started))
    toolwire.kill()
    await toolwire.wait()
    await until(lambda: not any(map(lives, started)))


async def test_a_call_that_is_bound_to_a_connection_that_is_over_does_not_run(
    upstream_to: Make, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    upstream = upstream_to("echo", log)
    connection, _ = await upstream.listing()
    await upstream.restart()
    with pytest.raises(UpstreamFailed, match="the call did not run") as caught:
        await upstream.call("t", {}, on=connection)
    assert not caught.value.may_have_run and b"tools/call" not in log.read_bytes()


async def test_a_list_that_is_too_large_in_all_is_not_kept(upstream_to: Make, tmp_path: Path) -> None:
    log = tmp_path / "log"
    upstream = upstream_to("large-pages", log)
    with pytest.raises(UpstreamFailed, match=r"a list of tools that is larger than 8\.4 MB"):
        await upstream.tools()
    assert upstream.listed is None and log.read_bytes().count(b"tools/list") == 3


async def test_a_call_after_the_end_is_refused(upstream_to: Make) -> None:
    upstream = upstream_to("echo")
    await upstream.close()
    assert "not in use any more" in str(await fails(upstream))


async def test_closing_in_the_middle_of_a_start_leaves_nothing(upstream_to: Make, tmp_path: Path) -> None:
    upstream = upstream_to("silent-start", tmp_path / "log")
    listing = asyncio.ensure_future(upstream.tools())
    await until(lambda: processes(f"{tmp_path}/log"))
    started = processes(f"{tmp_path}/log")
    await upstream.close()
    with pytest.raises(UpstreamFailed):
        await listing
    await until(lambda: not any(map(lives, started)))


async def test_a_caller_that_gives_up_during_the_start_does_not_end_the_start(upstream_to: Make) -> None:
    upstream = upstream_to("echo")
    first = asyncio.ensure_future(upstream.tools())
    await asyncio.sleep(0)
    second = asyncio.ensure_future(upstream.tools())
    await asyncio.sleep(0)
    first.cancel()
    assert (await second)[0].name == "t"


async def test_the_environment_is_what_was_handed_over_and_path_and_language(
    upstream_to: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET_OF_TOOLWIRE", "x")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    upstream = upstream_to("environment", env={"TOKEN": "mine"}, folder=str(tmp_path))
    told = json.loads(words(await upstream.call("t", {})))
    assert told["env"]["TOKEN"] == "mine" and told["cwd"] == str(tmp_path)
    shells = {"PWD", "SHLVL", "_", "OLDPWD"}  # set by /bin/sh
    allowed = {"TOKEN", "PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "TZ"} | shells
    assert set(told["env"]) <= allowed


# --- lists ---


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("pages", "does not end its list"),
        ("same-page", "does not end its list"),
        ("thousands", "more than 1000 tools"),
        ("twice", "lists the tool t twice"),
    ],
)
async def test_a_list_that_cannot_be_used_is_refused(upstream_to: Make, mode: str, problem: str) -> None:
    upstream = upstream_to(mode)
    with pytest.raises(UpstreamFailed, match=problem):
        await upstream.tools()
    assert words(await upstream.call("t", {"a": 1})) == '{"a": 1}'


async def test_tools_are_listed_again_only_after_a_change(upstream_to: Make, tmp_path: Path) -> None:
    log = tmp_path / "log"
    upstream = upstream_to("grows", log)
    for _ in range(3):
        assert [one.name for one in await upstream.tools()] == ["t"]
    await upstream.call("t", {})
    await until(lambda: upstream.listed is None)
    assert [one.name for one in await upstream.tools()] == ["t", "new"]
    assert log.read_bytes().count(b'"tools/list"') == 2


async def test_a_flood_of_progress_and_changes_is_bounded() -> None:
    changes: list[None] = []
    upstream = Upstream(hostile("flood"), changed=lambda: changes.append(None))
    seen: list[float] = []

    async def slowly(done: float, total: float | None, message: str | None) -> None:
        seen.append(done)
        await asyncio.sleep(0.05)

    try:
        await upstream.tools()
        before = resident()
        calling = asyncio.ensure_future(upstream.call("t", {}, progress=slowly))
        longest = await lag(calling)
        assert words(calling.result()) == "done"
        assert 0 < len(seen) < 1000 and 0 < len(changes) < 300
        assert resident() - before < 60 * 2**20
        assert longest < 1
    finally:
        await upstream.close()


async def test_a_server_that_elicits_samples_or_wants_roots_is_refused(
    upstream_to: Make, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    upstream = upstream_to("asks", log)
    codes = json.loads(words(await upstream.call("t", {})))
    assert len(codes) == 3 and all(isinstance(code, int) and code < 0 for code in codes)
    first = json.loads(log.read_bytes().splitlines()[1])
    assert first["method"] == "initialize" and first["params"]["capabilities"] == {}

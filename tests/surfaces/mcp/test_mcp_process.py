"""`toolwire mcp` as the process that a client starts, over stdio and HTTP."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from doubles.mcp_peer import __file__ as PEER
from doubles.mcp_proxied import received
from toolwire.cli.main import main
from toolwire.cli.mcp import mcp_arguments, run_mcp
from toolwire.settings.types import ConfigError
from toolwire.surfaces.mcp.server import NO_CODE_YET
from toolwire.tools.contract import Decision


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_over_stdio_a_client_searches_and_reads_with_consent(
    process: Any, form: Any, data: Any, mode: str
) -> None:
    person = form(
        {"approve": True}, {"approve": True, "share_1": True}, {"approve": True, "share_1": True}, "decline"
    )
    async with Client(process.parameters(), mode=mode, elicitation_callback=person) as client:
        found = data(await client.call_tool("vault_search", {"query": '"launch code"'}))
        read = data(
            await client.call_tool("file_read", {"filePaths": [found["result"]["results"][0]["path"]]})
        )
        assert "Zulu-4711" in read["result"][0]["content"]
        assert (await client.call_tool("note_write", {"filePath": "Diary.md", "content": "gone"})).is_error
    assert "Zulu-4711" in (process.vault / "Diary.md").read_text()


async def test_over_stdio_a_second_process_decides_in_the_inbox(process: Any, inbox: Any, data: Any) -> None:
    async with Client(process.parameters("--inbox")) as client:
        calling = asyncio.ensure_future(client.call_tool("file_read", {"filePaths": ["Diary.md"]}))
        approval = await inbox.next()
        decide = [sys.executable, "-c", _DECIDE, process.store_url, approval.id]
        done = await asyncio.to_thread(subprocess.run, decide, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "Zulu-4711" in data(await calling)["result"][0]["content"]


_DECIDE = """
import asyncio, sys
from toolwire.store.store import Store
from toolwire.tools.approvals import Approvals
from toolwire.tools.consent import Proofs
from toolwire.tools.contract import Decision

async def decide(url, id):
    store = Store(url)
    approvals = Approvals(store, proofs=Proofs(store, unproven=True))
    found = await approvals.records.get(id)
    picked = tuple(one.key for one in found.shown.touched)
    await approvals.decide(found, Decision(True, picked=picked), by="shell")
    await store.close()

asyncio.run(decide(*sys.argv[1:]))
"""


async def test_a_question_expires_if_its_client_closes_stdin(process: Any, inbox: Any) -> None:
    async with Client(process.parameters()) as client:
        calling = asyncio.ensure_future(client.call_tool("file_read", {"filePaths": ["Diary.md"]}))
        approval = await inbox.next()
    assert isinstance((await asyncio.gather(calling, return_exceptions=True))[0], BaseException)
    found = await inbox.approvals.records.get(approval.id)
    assert found is not None and found.status == "expired"


async def test_the_questions_of_a_stopped_server_expire_and_it_exits_cleanly(
    process: Any, inbox: Any
) -> None:
    server = await asyncio.create_subprocess_exec(
        *process.command(),
        env=process.environment,
        cwd=process.tmp_path,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert server.stdin is not None and server.stdout is not None
    hello = (
        b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":'
        b'{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}\n'
    )
    server.stdin.write(hello)
    assert b'"serverInfo"' in await server.stdout.readline()
    server.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    server.stdin.write(
        b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"vault_tags","arguments":{}}}\n'
    )
    approval = await inbox.next()
    server.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(server.wait(), 20) == 0
    server.stdin.close()
    found = await inbox.approvals.records.get(approval.id)
    assert found is not None and found.status == "expired"


def test_at_a_terminal_it_explains_itself_and_ends_on_ctrl_c(process: Any) -> None:
    master, slave = os.openpty()
    server = subprocess.Popen(
        process.command(),
        env=process.environment,
        cwd=process.tmp_path,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    shown = ""
    while "Ctrl-C ends the server." not in shown:
        assert select.select([master], [], [], 30)[0], shown
        shown += os.read(master, 65536).decode()
    assert "this is an MCP server: it waits for a client's messages on standard input." in shown
    assert '"args": ["mcp", "--vault"' in shown
    os.write(master, b"\x03")
    assert server.wait(20) == 0
    os.close(master)


async def test_a_question_in_the_inbox_without_an_approval_code_warns(process: Any, inbox: Any) -> None:
    server = await asyncio.create_subprocess_exec(
        *process.command("--inbox"),
        env=process.environment,
        cwd=process.tmp_path,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert server.stdin is not None and server.stderr is not None
    for line in ASKING:
        server.stdin.write(line + b"\n")
    approval = await inbox.next()
    first = (await asyncio.wait_for(server.stderr.readline(), 20)).decode()
    second = (await asyncio.wait_for(server.stderr.readline(), 20)).decode()
    assert first.endswith(f"waiting for a decision: toolwire approvals show {approval.id}\n")
    assert second == f"toolwire mcp: {NO_CODE_YET}\n"
    server.stdin.close()
    assert await asyncio.wait_for(server.wait(), 20) == 0


ASKING = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
    b'"capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}',
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
    b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"vault_tags","arguments":{}}}',
)


async def test_a_killed_server_loses_no_question(process: Any, inbox: Any) -> None:
    server = await asyncio.create_subprocess_exec(
        *process.command("--lifetime", "5"),
        env=process.environment,
        cwd=process.tmp_path,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert server.stdin is not None
    server.stdin.write(
        b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
        b'"capabilities":{},'
        b'"clientInfo":{"name":"raw","version":"1"}}}\n'
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
        b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"vault_tags","arguments":{}}}\n'
    )
    approval = await inbox.next()
    server.kill()
    await server.wait()
    server.stdin.close()
    found = await inbox.approvals.records.get(approval.id)
    assert found is not None and (found.status, found.arguments) == ("pending", approval.arguments)
    while (await inbox.approvals.pending()) != []:
        await asyncio.sleep(0.05)
    found = await inbox.approvals.records.get(approval.id)
    assert found is not None and found.status == "expired"


async def test_over_http_the_bearer_is_printed_once_to_stderr_and_grants_access(
    process: Any, connect: Any, inbox: Any, data: Any
) -> None:
    server = await asyncio.create_subprocess_exec(
        *process.command("--http", "--port", "0"),
        env=process.environment,
        cwd=process.tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert server.stdout is not None and server.stderr is not None
    line = (await asyncio.wait_for(server.stdout.readline(), 30)).decode()
    url = line.removeprefix("listening on ").strip()
    assert url.startswith("http://127.0.0.1:") and url.endswith("/mcp")
    bearer = (
        (await server.stderr.readline()).decode().strip().removeprefix("toolwire mcp: bearer for this run: ")
    )
    async with connect(url, bearer=bearer) as client:
        calling = asyncio.ensure_future(client.call_tool("vault_tags", {}))
        await inbox.decide(await inbox.next(), Decision(True))
        assert data(await calling)["result"] == {"tags": []}
    server.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(server.wait(), 20) == 0
    rest = (await server.stderr.read()).decode()
    assert bearer not in rest and (await server.stdout.read()) == b""


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--http", "--bearer", "secret"], "env:NAME or file:PATH"),
        (["--http", "--bearer", "env:TOOLWIRE_NO_SUCH_BEARER"], "not set"),
        (["--bearer", "env:HOME"], "--bearer: only with --http"),
        (["--port", "8789"], "--port: only with --http"),
        (["--host", "127.0.0.1"], "--host: only with --http"),
        (["--lifetime", "0"], "--lifetime"),
    ],
)
def test_an_invalid_setup_is_a_config_error(vault: Path, more: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run_mcp(_parsed("--vault", str(vault), *more))


def test_both_channel_options_at_once_are_an_error(vault: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["mcp", "--vault", str(vault), "--inbox", "--no-inbox"])
    said = capsys.readouterr().err
    assert (
        ended.value.code == 2
        and said.count("\n") == 1
        and "--no-inbox: not allowed with argument --inbox" in said
    )


def test_a_vault_that_is_not_a_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        run_mcp(_parsed("--vault", str(tmp_path / "nowhere")))


def _parsed(*written: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    mcp_arguments(parser)
    return parser.parse_args(written)


def _living(word: str) -> list[int]:
    """The processes whose command line contains this word."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if word.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("end", "tool"),
    [(signal.SIGKILL, "slow"), (signal.SIGKILL, "add_note"), (signal.SIGTERM, "slow"), (None, "slow")],
    ids=["kill -9, running", "kill -9, waiting", "SIGTERM", "stdin closed"],
)
async def test_no_server_outlives_toolwire_and_no_call_runs_twice(
    process: Any, inbox: Any, end: signal.Signals | None, tool: str
) -> None:
    log = process.tmp_path / f"stdin-{tool}.log"
    command = [
        sys.executable,
        "-m",
        "toolwire",
        "mcp",
        "--allow",
        "slow",
        "--wait",
        "30",
        "--",
        sys.executable,
    ]
    server = await asyncio.create_subprocess_exec(
        *command,
        str(PEER),
        str(log),
        env=process.environment,
        cwd=process.tmp_path,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert server.stdin is not None
    call = ASKING[2].replace(b"vault_tags", b"peer__" + tool.encode())
    for line in (*ASKING[:2], call):
        server.stdin.write(line + b"\n")
    if tool == "slow":  # allowed: it runs
        while not received(log):
            await asyncio.sleep(0.02)
    else:
        await inbox.next()
    assert _living(str(log))
    if end is None:
        server.stdin.close()
    else:
        server.send_signal(end)
    await asyncio.wait_for(server.wait(), 30)
    async with asyncio.timeout(30):
        while _living(str(log)):
            await asyncio.sleep(0.05)
    waiting = await inbox.approvals.pending()
    assert [one.tool for one in waiting] == ([] if tool == "slow" else ["peer__add_note"])
    assert len(received(log)) == (1 if tool == "slow" else 0)

"""`toolwire mcp`: what is offered, by which name and under which rules."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from doubles.mcp_peer import __file__ as PEER
from doubles.mcp_proxied import received
from toolwire.cli.main import main
from toolwire.cli.mcp import run_mcp, server_name
from toolwire.settings.types import ConfigError


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("npx -y @modelcontextprotocol/server-filesystem@2026.8.31 /srv", "filesystem"),
        ("npx @playwright/mcp@latest --headless", "playwright"),
        ("uvx mcp-server-git --repository .", "git"),
        ("uv tool run mcp-server-time", "time"),
        ("docker run -i --rm ghcr.io/github/github-mcp-server", "github"),
        ("/opt/bin/weather-mcp", "weather"),
        ("python3 servers/my_notes.py", "my-notes"),
        ("node dist/index.js", "index"),
        ("npx -y tavily-mcp", "tavily"),
        ("mcp-server", "server"),
        ("https://mcp.example.com/mcp", "example-com"),
        ("npx", "npx"),
        ("./…", "server"),
        (f"./{'long-' * 20}name", "long-long-long-long-long-long-lo"),
    ],
)
def test_a_server_gets_a_name_from_its_command(command: str, name: str) -> None:
    assert server_name(command.split()) == name


SETTINGS = """
[mcp.files]
command = ["files"]
[mcp.tracker]
url = "https://mcp.example.com/mcp"
[mcp.broken]
command = ["broken"]
share = "never"
"""


def parsed(tmp_path: Path, *words: str) -> argparse.Namespace:
    from toolwire.cli.main import build_parser

    config = tmp_path / "given.toml"
    config.write_text(SETTINGS)
    return build_parser("mcp").parse_args(["mcp", "--config", str(config), *words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name what to offer: --vault DIR, --server NAME, or -- COMMAND"),
        (("--server", "file"), "did you mean files?"),
        (("--server", "broken"), "--server broken: it cannot be used: "),
        (("--server", "x"), "known: files, tracker"),
        (("--allow", "*", "--server", "files"), "--allow: only for a server whose command follows --"),
        (("--name", "x", "--server", "files"), "--name: only for a server whose command follows --"),
        (("--env", "TOOLWIRE_NO_SUCH", "--", "x"), "--env TOOLWIRE_NO_SUCH: this variable is not set"),
        (("--name", "a__b", "--", "x"), "--name a__b: use at most 32 letters"),
        (("--name", "", "--", "x"), "use at most 32 letters"),
        (("--", "/opt/files"), "[mcp.files] is another server of your settings; use --server files"),
        (("--wait", "0", "--", "x"), "--wait: expected more than 0"),
        (("--wait", "600", "--", "x"), "less than 600 seconds (--lifetime)"),
        (("--wait", "5", "--no-inbox", "--", "x"), "which --no-inbox turns off"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else "",
)
def test_options_that_do_not_fit_are_one_clear_error(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        run_mcp(parsed(tmp_path, *words))
    assert said in str(raised.value)


def test_a_command_without_two_dashes_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["mcp", "npx", "-y", "server"])
    assert ended.value.code == 2
    assert "write the command of a server after --" in capsys.readouterr().err


def test_everything_after_the_dashes_belongs_to_the_command(tmp_path: Path) -> None:
    words = ("--vault", "notes", "--", "npx", "-y", "--", "list", "--server", "x", "--http")
    found = parsed(tmp_path, *words)
    assert found.command == ["npx", "-y", "--", "list", "--server", "x", "--http"]
    assert (found.vault, found.server, found.http) == ("notes", [], False)


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    own = {"HOME": str(tmp_path), "TOOLWIRE_STORE__URL": f"sqlite:///{tmp_path}/toolwire.db"}
    return {**os.environ, **own, **more}


@pytest.mark.process
async def test_a_server_after_the_dashes_is_offered_under_the_rules_of_the_command_line(
    tmp_path: Path,
) -> None:
    log = tmp_path / "stdin.log"
    rules = ["--allow", "echo *", "--deny", "echo text=*secret*", "--no-inbox"]
    command = ["-m", "toolwire", "mcp", *rules, "--", sys.executable, PEER, str(log)]
    parameters = StdioServerParameters(
        command=sys.executable, args=command, env=environment(tmp_path), cwd=tmp_path
    )
    async with Client(parameters) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        answers = [
            await client.call_tool(name, arguments)
            for name, arguments in (
                ("peer__echo", {"text": "a word"}),
                ("peer__echo", {"text": "a secret"}),
                ("peer__fail", {}),
            )
        ]
    assert "peer__echo" in names
    assert [one.is_error for one in answers] == [False, True, True]
    assert [one["arguments"] for one in received(log)] == [{"text": "a word"}]


REPORT_ENVIRONMENT = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        about = {"name": "environment", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": about}
    elif asked.get("method") == "tools/list":
        result = {"tools": [{"name": "environment", "inputSchema": {"type": "object"}}]}
    elif asked.get("method") == "tools/call":
        result = {"content": [{"type": "text", "text": json.dumps(dict(os.environ))}]}
    else:
        result = None
    if "id" in asked:
        answer = {"result": result} if result else {"error": {"code": -32601, "message": "no"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


@pytest.mark.process
async def test_a_server_gets_only_the_variables_that_are_named(tmp_path: Path) -> None:
    import json

    program = tmp_path / "environment.py"
    program.write_text(REPORT_ENVIRONMENT)
    more = {"GIVEN_TOKEN": "given", "OTHER_TOKEN": "other", "TOOLWIRE_API_KEY": "key"}
    command = ["-m", "toolwire", "mcp", "--env", "GIVEN_TOKEN", "--allow", "*", "--", sys.executable]
    parameters = StdioServerParameters(
        command=sys.executable, args=[*command, str(program)], env=environment(tmp_path, **more), cwd=tmp_path
    )
    async with Client(parameters) as client:
        told: Any = (await client.call_tool("environment__environment", {})).content[0]
    seen = json.loads(told.text)
    assert seen["GIVEN_TOKEN"] == "given"
    assert not {"OTHER_TOKEN", "TOOLWIRE_API_KEY", "HOME", "TOOLWIRE_STORE__URL"} & seen.keys()

"""The reference servers of MCP in `toolwire chat`: each call waits for the person at the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doubles.mcp_real import calls_of_each, every_server

pytestmark = pytest.mark.timeout(120)


def until_ready(one: Any, names: list[str]) -> None:
    """Waits until these servers are ready: some take longer than a list of tools waits for them."""
    while not all(f"{name}  ready" in one.shown for name in names):
        one.say("/servers")
        one.rest(0.3)


def test_each_reference_server_is_called_only_with_consent(
    place: Any, terminal: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    servers = every_server(folder)
    place.environment["TOOLWIRE_MCP"] = json.dumps(
        {one.name: {"command": one.command, "env": dict(one.env)} for one in servers}
    )
    calls = calls_of_each(folder)
    write = {"path": str(folder / "new.md"), "content": "as asked"}
    asked = [*((name, arguments) for name, arguments, _ in calls), *[("files__write_file", write)] * 2]
    rounds = "\n---\nsay It says: {result}\n".join(f"call {name} {json.dumps(it)}" for name, it in asked)
    place.script(f"say Ready.\n---\n{rounds}\n---\nsay That was all.")
    one = terminal("chat", columns=250, lines=200)
    one.say("Hi")
    one.see("Ready.")
    until_ready(one, [server.name for server in servers])
    one.say("Go")
    for name, _, said in calls:
        one.answer(f"{name}?  a Run", "a")
        one.see(f"{name}: approved", said)
    one.answer("a Run", "d")
    one.see("Reason")
    one.press("\r")
    one.answer("a Run", "e")
    assert not (folder / "new.md").exists()
    one.see("Arguments (JSON")
    one.press("\x15" + json.dumps({**write, "content": "as edited"}) + "\r")
    one.see("as edited")
    one.answer("a Run", "a")
    one.see("That was all.")
    assert (folder / "new.md").read_text() == "as edited"

"""Tools of MCP servers in `toolwire chat`, `ask` and `note`, with a scripted model and a real server."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DOUBLES = Path(__file__).parents[2] / "doubles"
CALL = 'call peer__echo {"text": "hi"}'
ANSWER = "---\nsay I was told {result}"
Start = Callable[..., Any]


@pytest.fixture
def log(place: Any) -> Path:
    """Settings with a server, and one that does not start; the log of what the first receives."""
    log: Path = place.folder / "peer.log"
    log.touch()
    peer = {"command": [sys.executable, str(DOUBLES / "mcp_peer.py"), str(log)], "tools": ["echo", "die"]}
    dead = {"command": [sys.executable, str(DOUBLES / "hostile_mcp.py"), "exit-at-start"]}
    place.environment["TOOLWIRE_MCP"] = json.dumps({"peer": peer, "dead": dead})
    return log


def calls(log: Path) -> list[Any]:
    lines = [json.loads(line) for line in log.read_text().splitlines() if '"tools/call"' in line]
    return [line["params"]["arguments"] for line in lines]


def test_ask_calls_a_server_that_a_rule_allows(place: Any, log: Path) -> None:
    place.script(f"{CALL}\n{ANSWER}")
    done = place.run("ask", "Hi", "--allow", "peer__echo *")
    assert "I was told [untrusted data" in done.stdout and "from the MCP server peer" in done.stdout
    assert "MCP server dead: dead ended with exit status 3. It said: no configuration" in done.stderr
    assert calls(log) == [{"text": "hi"}]


def test_in_a_pipe_a_call_that_no_rule_covers_does_not_reach_the_server(place: Any, log: Path) -> None:
    place.script(f"{CALL}\n{ANSWER}")
    done = place.run("ask", "Hi")
    assert "User cancelled tool execution" in done.stdout
    assert calls(log) == []


def test_at_a_terminal_the_question_shows_the_server_and_its_words(
    place: Any, log: Path, terminal: Start
) -> None:
    place.script(f"{CALL}\n{ANSWER}")
    one = terminal("chat", columns=200)
    one.see("MCP servers: peer, dead")
    one.say("Hi")
    one.see("peer: echo", "Server: peer", "mcp_peer.py", "Returns its text.", 'text: "hi"')
    one.see("Nothing has been sent to the server yet.", "MCP server dead:")
    assert calls(log) == []
    one.answer("a Run", "a")
    one.see("I was told")
    assert calls(log) == [{"text": "hi"}]
    one.say("/servers")
    one.see("peer  ready  2 tools", "peer__echo", "dead  failed  0 tools")
    one.prompted()
    one.press("\x04")
    assert one.end() == 0


def test_a_denied_call_does_not_reach_the_server_and_an_edited_one_arrives_edited(
    place: Any, log: Path, terminal: Start
) -> None:
    place.script(f'{CALL}\n---\n{CALL[:-1]}, "n": 1}}\n---\nsay Done.')
    one = terminal("chat", columns=200)
    one.say("Hi")
    one.answer("a Run", "d")
    one.see("Reason")
    one.press("\r")
    one.answer("a Run", "e")
    one.see("Arguments (JSON")
    one.press("\x15" + '{"text": "hi", "n": true}' + "\r")
    one.see("as edited")
    one.answer("a Run", "a")
    one.see("Done.")
    assert json.dumps(calls(log)) == '[{"text": "hi", "n": true}]'  # Python takes this for the same


def test_a_server_that_dies_does_not_end_the_conversation(place: Any, log: Path, terminal: Start) -> None:
    place.script(f"call peer__die {{}}\n---\nsay It is gone.\n---\n{CALL}\n{ANSWER}")
    one = terminal("chat", columns=200)
    one.say("Hi")
    one.answer("a Run", "a")
    one.see("It is gone.", "the call may have run")
    one.say("Again")
    one.answer("a Run", "a")
    one.see("I was told")
    assert calls(log) == [{}, {"text": "hi"}]

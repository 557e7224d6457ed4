"""`toolwire mcp list` and `agree`: servers, tools, what is wrong, and what has changed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from toolwire.cli import mcp_agree
from toolwire.cli.main import main

pytestmark = pytest.mark.process
DOUBLE = Path(__file__).parents[1] / "doubles" / "hostile_mcp.py"


def settings(tmp_path: Path, **modes: str) -> str:
    text = f'[store]\nurl = "sqlite:///{tmp_path}/t.db"\n'
    for name, mode in modes.items():
        command = json.dumps([sys.executable, "-S", str(DOUBLE), mode])
        text += f'[mcp.{name}]\ncommand = {command}\nallow = ["nothing_of_this_name"]\n'
    file = tmp_path / "toolwire.toml"
    file.write_text(text)
    return str(file)


def test_servers_are_listed_with_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = settings(tmp_path, good="echo", dead="exit-at-start")
    assert main(["mcp", "list", "--config", config]) == 1
    shown = capsys.readouterr().out
    assert "good: ready, 1 tool\n" in shown and "dead: failed, 0 tools\n" in shown
    assert "problem: dead ended with exit status 3. It said: no configuration" in shown
    assert 'rule without effect: allow "nothing_of_this_name"' in shown
    assert main(["mcp", "list", "good", "--json", "--config", config]) == 0
    (state,) = json.loads(capsys.readouterr().out)
    assert (state["name"], state["state"], state["tools"]) == ("good", "ready", ["t"])
    assert main(["mcp", "list", "god", "--config", config]) == 2
    assert "did you mean good?" in capsys.readouterr().err


def test_without_servers_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "list", "--config", settings(tmp_path)]) == 0
    assert "no MCP server is configured" in capsys.readouterr().out


def test_a_changed_tool_is_offered_once_the_person_agrees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["mcp", "list", "--config", settings(tmp_path, files="echo")]) == 0
    config = settings(tmp_path, files="strict")
    main(["mcp", "list", "--config", config])
    assert "t  not offered: changed; toolwire mcp agree files" in capsys.readouterr().out
    for answer, words in (("no\n", "you agreed to 0 tools"), ("yes\n", "you agreed to 1 tool: t")):
        monkeypatch.setattr(mcp_agree, "_answer", lambda question, said=answer: said)
        assert main(["mcp", "agree", "files", "--config", config]) == 0
        shown = capsys.readouterr().out
        assert '+    "required": [' in shown and words in shown
    assert main(["mcp", "agree", "files", "--config", config]) == 0
    assert "no tool is new or has changed since you agreed" in capsys.readouterr().out


def test_agreeing_needs_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main(["mcp", "list", "--config", settings(tmp_path, files="echo")])
    real = open

    def no_terminal(file: object, *given: object, **more: object) -> object:
        if file == "/dev/tty":
            raise OSError("no terminal")
        return real(file, *given, **more)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", no_terminal)
    assert main(["mcp", "agree", "files", "--config", settings(tmp_path, files="strict")]) == 2

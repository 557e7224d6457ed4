"""The real Claude Code as a client: a real file server behind rules, and a person at the inbox."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from doubles import mcp_real as real
from doubles.claude_code import desk_with
from toolwire.testing import ScriptedBackend, ScriptedOptions
from toolwire.tools.contract import Decision

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


def script(folder: Path) -> str:
    plan, key = f'{{"path": "{folder}/plan.md"}}', f'{{"path": "{folder}/key"}}'
    write = f'{{"path": "{folder}/plan.md", "content": "asked"}}'
    return f"""
    call mcp__behind__files__read_text_file {plan}
    ---
    call mcp__behind__files__read_text_file {key}
    ---
    call mcp__behind__files__write_file {write}
    ---
    say Done: {{result}}
    """


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "docs"
    made.mkdir()
    (made / "plan.md").write_text("# The plan\n")
    (made / "key").write_text("Zulu-4711")
    return made


async def test_rules_and_a_person_decide_about_the_calls_of_claude_code(
    tmp_path: Path, folder: Path, inbox: Any
) -> None:
    command = real.filesystem(folder).command
    settings = tmp_path / "toolwire.toml"
    settings.write_text(
        f"[mcp.files]\ncommand = {json.dumps(command)}\n"
        f'allow = ["read_text_file path={folder}/**"]\ndeny = ["* path={folder}/key"]\n'
    )
    own = {
        "PATH": os.environ["PATH"],
        "TOOLWIRE_STORE__URL": f"sqlite:///{tmp_path}/state/toolwire.db",
        "TOOLWIRE_APPROVALS__COMMAND_LINE": "open",
    }
    words = ["-m", "toolwire", "mcp", "--config", str(settings), "--server", "files", "--inbox"]
    server = {"command": sys.executable, "args": words, "env": own}
    config = json.dumps({"mcpServers": {"behind": server}})
    flags = ("--mcp-config", config, "--strict-mcp-config", "--allowedTools", "mcp__behind")
    backend = ScriptedBackend("m", ScriptedOptions(script=script(folder)))
    async with desk_with(backend, ["m"], tmp_path / "desk") as desk:
        running = asyncio.ensure_future(desk.ask(question="Look after my files.", flags=flags))
        question = await inbox.next()
        assert (question.tool, question.source) == ("files__write_file", "mcp:files")
        assert "claude" in question.model.lower()
        edited = Decision(True, arguments={**question.arguments, "content": "edited"})
        await inbox.decide(question, edited)
        session = await running
    results = [json.dumps(block["content"]) for block in session.blocks("user", "tool_result")]
    assert len(results) == 3, session.events
    assert "# The plan" in results[0]
    assert "Refused by a rule" in results[1]
    assert "Successfully wrote" in results[2]
    assert "Zulu-4711" not in json.dumps(session.events)
    assert (folder / "plan.md").read_text() == "edited"

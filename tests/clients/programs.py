"""OpenCode, Codex and Claude Code as users run them, with a question on the command line.

Each job has its own home and folder. The folder contains weather.txt, which the model reads with the
program's own tool. The JSON that the programs print becomes the steps of a result.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jobs import PROMPT, Job, Step

NPM = {"chat": "@ai-sdk/openai-compatible", "responses": "@ai-sdk/openai"}
LIMIT_S = 100


def opencode_settings(job: Job) -> str:
    options = {"baseURL": job["baseURL"], "apiKey": "unused"}
    provider = {
        "npm": NPM[job["api"]],
        "name": "Toolwire",
        "options": options,
        "models": {job["model"]: {"name": job["model"]}},
    }
    return json.dumps({"$schema": "https://opencode.ai/config.json", "provider": {"toolwire": provider}})


def codex_settings(job: Job) -> str:
    return f"""\
model = "{job["model"]}"
model_provider = "toolwire"

[model_providers.toolwire]
name = "Toolwire"
base_url = "{job["baseURL"]}"
wire_api = "responses"
"""


def run_opencode(program: str, jobs: list[Job], folder: Path) -> list[dict[str, Any]]:
    """A job may have another `question`, and `settings`, the text of opencode.json."""

    def one(job: Job, work: Path, home: Path) -> dict[str, Any]:
        (work / "opencode.json").write_text(job.get("settings") or opencode_settings(job), "utf-8")
        command = [program, "run", "--format", "json", "--model", f"toolwire/{job['model']}"]
        return _result(
            _opencode_steps, *_output(command, work, home, job.get("question", PROMPT))
        )  # an argument would be quoted again

    return _all(one, jobs, folder / "opencode")


def run_codex(program: str, jobs: list[Job], folder: Path) -> list[dict[str, Any]]:
    """Runs Codex, with config.toml as `settings`."""

    def one(job: Job, work: Path, home: Path) -> dict[str, Any]:
        (home / "config.toml").write_text(job.get("settings") or codex_settings(job), "utf-8")
        command = [
            program,
            "exec",
            "--json",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            job.get("question", PROMPT),
        ]
        return _result(_codex_steps, *_output(command, work, home))

    return _all(one, jobs, folder / "codex")


def run_claude_code(program: str, jobs: list[Job], folder: Path) -> list[dict[str, Any]]:
    """Runs Claude Code without a terminal. Its tools need no permission here.

    A job may have `flags` of the command line, `variables` of the environment, and `files` of its folder. A
    result has Claude Code's `events`, the last of which is its own `result`, and the `folder` of the job.
    """

    def one(job: Job, work: Path, home: Path) -> dict[str, Any]:
        for name, text in job.get("files", {}).items():
            (work / name).write_text(text, "utf-8")
        command = [program, "-p", job.get("question", PROMPT), "--model", job["model"]]
        command += ["--allowedTools", "Read,Write,Edit,Bash", "--output-format", "stream-json", "--verbose"]
        variables = {
            "ANTHROPIC_BASE_URL": job["baseURL"].removesuffix("/v1"),
            "ANTHROPIC_API_KEY": job.get("apiKey", "unused"),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "0",
            "DISABLE_TELEMETRY": "1",
            **job.get("variables", {}),
        }
        status, events, said = _output([*command, *job.get("flags", ())], work, home, variables=variables)
        result = _result(_claude_code_steps, status, events, said)
        return {**result, "events": events, "folder": work}

    return _all(one, jobs, folder / "claude-code")


def _all(
    one: Callable[[Job, Path, Path], dict[str, Any]], jobs: list[Job], folder: Path
) -> list[dict[str, Any]]:
    def start(numbered: tuple[int, Job]) -> dict[str, Any]:
        work, home = folder / str(numbered[0]) / "work", folder / str(numbered[0]) / "home"
        work.mkdir(parents=True)
        home.mkdir()
        (work / "weather.txt").write_text("rain in Paris", "utf-8")
        return one(numbered[1], work, home)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(start, enumerate(jobs)))


def _output(
    command: list[str], work: Path, home: Path, given: str = "", variables: Mapping[str, str] | None = None
) -> tuple[int, list[dict[str, Any]], str]:
    """Exit status, the lines of JSON, and the whole output."""
    quiet = {
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    }
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home), **quiet}
    environment |= variables or {}
    child = subprocess.Popen(
        command,
        cwd=work,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said = child.communicate(given, timeout=LIMIT_S)[0]
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    return child.returncode, [json.loads(line) for line in said.splitlines() if line.startswith("{")], said


def _result(
    read: Callable[[list[dict[str, Any]]], list[Step]], status: int, events: list[dict[str, Any]], said: str
) -> dict[str, Any]:
    steps = read(events)
    return {
        "steps": steps,
        "error": None
        if status == 0 and steps
        else {"name": f"exit {status}", "status": None, "message": said[-2000:]},
    }


def _opencode_steps(events: list[dict[str, Any]]) -> list[Step]:
    steps: list[Step] = []
    for event in events:
        part = event.get("part", {})
        if event["type"] == "step_start":
            steps.append({"text": "", "calls": []})
        elif event["type"] == "text":
            steps[-1]["text"] += part["text"]
        elif event["type"] == "tool_use":
            steps[-1]["calls"].append(
                {"id": part["callID"], "name": part["tool"], "arguments": part["state"]["input"]}
            )
        elif event["type"] == "step_finish":
            steps[-1]["finish"] = part["reason"]
    return steps


def _codex_steps(events: list[dict[str, Any]]) -> list[Step]:
    """Codex reports items and not answers, so each item is a step."""
    steps: list[Step] = []
    for item in (event["item"] for event in events if event["type"] == "item.completed"):
        if item["type"] == "command_execution":
            steps.append(
                {
                    "text": "",
                    "calls": [
                        {"id": item["id"], "name": item["type"], "arguments": {"command": item["command"]}}
                    ],
                }
            )
        elif item["type"] == "agent_message":
            steps.append({"text": item["text"], "calls": []})
    return steps


def _claude_code_steps(events: list[dict[str, Any]]) -> list[Step]:
    """Claude Code reports each content block of a message as an event."""
    steps: dict[str, Step] = {}
    for message in (event["message"] for event in events if event["type"] == "assistant"):
        step = steps.setdefault(message["id"], {"text": "", "calls": []})
        for block in message["content"]:
            if block["type"] == "text":
                step["text"] += block["text"]
            elif block["type"] == "tool_use":
                call = {"id": block["id"], "name": block["name"], "arguments": block["input"]}
                step["calls"].append(call)
    return list(steps.values())

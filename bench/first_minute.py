"""Measures a new user's first steps: clone, `make serve`, and the first tool call by an SDK.

    python bench/first_minute.py [--from REPOSITORY] [--json FILE]

Everything happens in a temporary folder. It has a clone of this checkout's last commit (or of REPOSITORY)
with its virtual environment, a home folder without any settings, and the openai package in a separate
environment, as for a program of the user. The program is the tool loop of the README. Needs what the user
needs: Python, git, make, and a package index that pip can reach. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 900

PROGRAM = """
import json, sys, time
from openai import OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="unused")
model = client.models.list().data[0].id
city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
weather = {"name": "get_weather", "description": "The weather in a city", "parameters": city}
tools = [{"type": "function", "function": weather}]
messages = [{"role": "user", "content": "What is the weather in Paris?"}]
begun = time.monotonic()
create = client.chat.completions.create
message = create(model=model, messages=messages, tools=tools, tool_choice="required").choices[0].message
called = time.monotonic()
call = message.tool_calls[0]
result = {"role": "tool", "tool_call_id": call.id, "content": "18 degrees and sunny"}
messages += [message, result]
answer = create(model=model, messages=messages, tools=tools, max_tokens=40).choices[0].message
ended = time.monotonic()
function = call.function
report = {"model": model, "call": [function.name, json.loads(function.arguments)], "answer": answer.content}
print(json.dumps({**report, "call_s": called - begun, "answer_s": ended - called}))
"""


def main() -> int:
    options = argparse.ArgumentParser(description="Times a new user's first steps, from a fresh clone on.")
    options.add_argument(
        "--from",
        dest="source",
        default=str(ROOT),
        metavar="REPOSITORY",
        help="the repository to clone; default: this checkout",
    )
    options.add_argument("--json", metavar="FILE", type=Path, help="write the times as JSON too")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        report = walk(given.source, Path(scratch))
    print(table(report))
    if given.json:
        given.json.write_text(json.dumps(report, ensure_ascii=False) + "\n")
    return 0


def walk(source: str, scratch: Path) -> dict[str, Any]:
    clone, home, client = scratch / "toolwire", scratch / "home", scratch / "client"
    home.mkdir()
    begun = time.monotonic()
    subprocess.run(["git", "clone", "-q", source, clone], check=True)
    cloned = time.monotonic()
    with serving(make_serve, clone, home, r"listening on (\S+)") as url:
        listening = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", client], check=True)
        subprocess.run(
            [client / "bin" / "pip", "install", "-q", "--disable-pip-version-check", f"openai=={pinned()}"],
            check=True,
        )
        installed = time.monotonic()
        done = subprocess.run(
            [client / "bin" / "python", "-c", PROGRAM, url], capture_output=True, text=True, timeout=LIMIT_S
        )
        assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    steps = {
        "git clone": cloned - begun,
        "make serve, until the server listens": listening - cloned,
        "install the package openai": installed - listening,
        "first tool call": report.pop("call_s"),
        "answer that uses the result": report.pop("answer_s"),
    }
    return {"steps": {name: round(seconds, 2) for name, seconds in steps.items()}, **report}


def pinned() -> str:
    return str(
        tomllib.loads((ROOT / "tests" / "clients" / "versions.toml").read_text("utf-8"))["python"]["openai"]
    )


def make_serve(port: int) -> list[str]:
    return ["make", "serve", f"PYTHON={sys.executable}", f"ARGS=--port {port}"]


@contextmanager
def serving(command: Callable[[int], list[str]], folder: Path, home: Path, ready: str) -> Iterator[str]:
    """Runs a server as a user does. Yields group 1 of the first match of `ready` in the server's output.

    `command` returns the server's command for a free port. This machine's settings are not used.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = re.compile(r"(TOOLWIRE_|PROXY_|XDG_|VIRTUAL_ENV|PYTHONPATH|MAKE|MFLAGS|PORT$)")
    kept = {name: value for name, value in os.environ.items() if not settings.match(name)}
    child = subprocess.Popen(
        command(port),
        cwd=folder,
        env={**kept, "HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    try:
        for line in child.stdout:
            print(line, end="", file=sys.stderr)
            if found := re.search(ready, line):
                threading.Thread(target=child.stdout.read, daemon=True).start()
                yield found[1]
                break
        else:
            raise SystemExit(f"{command(port)[0]} ended before it was ready")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        child.wait(timeout=60)


def table(report: dict[str, Any]) -> str:
    steps: dict[str, float] = report["steps"]
    lines = [f"| {name} | {seconds:.1f} s |" for name, seconds in steps.items()]
    head = ["| step | time |", "|---|---|"]
    called, arguments = report["call"]
    said = (
        f"The model `{report['model']}` called `{called}({json.dumps(arguments)})` and answered: "
        f"{report['answer'][:200]}"
    )
    return "\n".join([*head, *lines, f"| **together** | **{sum(steps.values()):.1f} s** |", "", said])


if __name__ == "__main__":
    sys.exit(main())

"""Counts how many calls of the embedded model fit the schemas of the tools, over many different tools.

`python -m bench.local_calls --count 200 --json FILE`. Every request has one tool and requires a call. For
comparison, the same requests are sent to llama.cpp's own server with the same model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jsonschema_rs

from bench import report
from bench.report import Row
from doubles.schemas import tools
from toolwire.backends.local import LocalBackend, LocalOptions
from toolwire.backends.local.model import LocalModel, give_back, take
from toolwire.backends.local.pull import available
from toolwire.core.turn import ToolSpec
from toolwire.gateway.pipeline import Caller, Gateway
from toolwire.settings.extras import add_extra, own_command
from toolwire.settings.types import Settings

CUT = 300
"""The token limit of llama.cpp's answers.

Without this limit, a text instead of a call would continue to the end of the context.
"""


def request(tool: ToolSpec, seed: int) -> dict[str, Any]:
    declared = {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }
    asked = f"Please use {tool.name} for me."
    return {
        "model": "local",
        "messages": [{"role": "user", "content": asked}],
        "tools": [declared],
        "tool_choice": "required",
        "seed": seed,
    }


def problem(tool: ToolSpec, body: dict[str, Any]) -> str:
    """Returns what is wrong with an answer; empty if it is a valid call."""
    if "choices" not in body:
        return f"error: {body.get('error', {}).get('message', '')[:80]}"
    choice = body["choices"][0]
    calls = choice["message"].get("tool_calls") or []
    if len(calls) != 1 or calls[0]["function"]["name"] != tool.name:
        return f"{len(calls)} calls, finish_reason {choice['finish_reason']}"
    try:
        arguments = json.loads(calls[0]["function"]["arguments"])
    except ValueError:
        return f"arguments are no JSON, finish_reason {choice['finish_reason']}"
    found = next(jsonschema_rs.validator_for(dict(tool.parameters)).iter_errors(arguments), None)
    return found.message[:120] if found else ""


async def count(number: int) -> tuple[list[Row], list[str]]:
    options = LocalOptions()
    model = take(options)
    gateway = Gateway(Settings(), backends={"local": LocalBackend("local", options)}, store=None)
    varied = tools(number)
    ours, theirs = [], []
    began = time.perf_counter()
    for place, tool in enumerate(varied):
        answer = await gateway.respond("chat", json.dumps(request(tool, place)).encode(), Caller())
        ours.append(problem(tool, json.loads(answer.body or b"{}")))
        print(f"\r{place + 1} of {number}: {ours.count('')} fit", end="", file=sys.stderr, flush=True)
    took = time.perf_counter() - began
    for place, tool in enumerate(varied):
        theirs.append(
            problem(
                tool, await asyncio.to_thread(_by_llama, model, {**request(tool, place), "max_tokens": CUT})
            )
        )
        print(
            f"\r{place + 1} of {number}: {theirs.count('')} of llama.cpp's own fit",
            end="",
            file=sys.stderr,
            flush=True,
        )
    print(file=sys.stderr)
    await gateway.close()
    await give_back(model)
    rows = [
        Row(
            "required calls that fit their schema, through Toolwire",
            ours.count(""),
            f"{number} varied tools in {took:,.0f} s",
            "at least",
            number,
            "",
        ),
        Row(
            "required calls that fit their schema, llama.cpp's own `tools`",
            theirs.count(""),
            f"answers of at most {CUT} tokens",
            unit="",
        ),
    ]
    notes = [
        f"through Toolwire, {tool.name}: {wrong}" for tool, wrong in zip(varied, ours, strict=True) if wrong
    ][:10]
    common = max(set(theirs) - {""}, key=theirs.count, default="")
    return rows, notes + (
        [f"The most frequent failure of llama.cpp's own `tools`: {common} ({theirs.count(common)} times)."]
        if common
        else []
    )


def _by_llama(model: LocalModel, body: dict[str, Any]) -> dict[str, Any]:
    reply: dict[str, Any] = model.server.handle_chat_completions({**body, "temperature": 0.2, "top_p": 0.9})
    return reply


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.local_calls",
        description="Counts the calls of the embedded model that fit their schema.",
    )
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON")
    arguments = parser.parse_args(argv)
    if available():
        rows, notes = asyncio.run(count(arguments.count))
    else:
        rows, notes = (
            [],
            [f"the embedded model is not here: {add_extra('local')}, then {own_command('local pull')}"],
        )
    print(report.table(rows))
    for note in notes:
        print(f"- {note}")
    if arguments.json:
        Path(arguments.json).write_text(
            json.dumps({"rows": [asdict(row) for row in rows], "notes": notes}, indent=1) + "\n"
        )
    return 0 if rows and rows[0].verdict == "pass" else 1


if __name__ == "__main__":
    sys.exit(main())

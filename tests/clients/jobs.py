"""Shared by the Python programs: the tools, and how jobs are read and results written.

The same as jobs.mjs, which documents the protocol. The programs run in an environment without Toolwire: they
are clients and know only its address.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

Job = dict[str, Any]
Step = dict[str, Any]
Api = Callable[[Job, str, list[Step]], None]
"""`(job, base_url, steps)` fills `steps` and raises what the client raises."""

PROMPT = "What is the weather?"
MAX_STEPS = 5
DESCRIPTIONS = {"get_weather": "The weather in a city", "list_notes": "All notes"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "A city"}, "days": {"type": "array"}},
        "required": ["city"],
    },
    "list_notes": {"type": "object", "properties": {}},
}


def run_tool(name: str, given: dict[str, Any], job: Job | None = None) -> str:
    """Runs a tool. With a job, `ran` records the arguments that the client really passed to the tool."""
    if job is not None:
        job.setdefault("ran", []).append({"name": name, "arguments": given})
    if name == "get_weather":
        return f"rain in {given['city']}"
    if name != "list_notes":
        raise LookupError(f"the model called a tool that is not there: {name}")
    return "too many arguments" if given else "one note, Ideas.md"


def await_on(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> None:
    """For asynchronous clients: their jobs share one event loop, and so connections."""
    asyncio.run_coroutine_threadsafe(coroutine, loop).result()


def running_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def _described(error: BaseException) -> dict[str, Any]:
    status = getattr(error, "status_code", None)
    return {
        "name": type(error).__name__,
        "status": status,
        "message": getattr(error, "message", None) or str(error),
    }


def _result(job: Job, apis: dict[str, Api], base_url: str) -> dict[str, Any]:
    steps: list[Step] = []
    try:
        apis[job["api"]](job, job.get("baseURL", base_url), steps)
    except Exception as error:
        return {"steps": steps, "error": _described(error), "ran": job.get("ran")}
    return {"steps": steps, "error": None, "ran": job.get("ran")}


def main(apis: dict[str, Api]) -> None:
    """Runs every job from stdin, a few at a time."""
    # Most clients load all CA certificates for each client object, although the jobs use plain HTTP. Load
    # them once.
    ssl.create_default_context = cache(ssl.create_default_context)  # type: ignore[assignment]
    given = json.load(sys.stdin)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda job: _result(job, apis, given["baseURL"]), given["jobs"]))
    json.dump(results, sys.stdout)

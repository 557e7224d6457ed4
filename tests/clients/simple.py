"""The simplest model: it calls its tools until the history ends with their results, then reports them.

A scripted model only counts the answers before. This one reads its history: it repeats its calls if the
results are not at the end, reports the results in the order of the history, and reports the text next to its
calls.

As a server with tools it refuses, as OpenAI does, a history in which results do not follow their calls.
Without tools it only writes text and makes calls as the prompt describes.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from typing import Any

from toolwire.testing.upstream import CallScript, FakeUpstream, Recorded, Reply, answer, completion

Planned = tuple[str, dict[str, str]]
PARIS: Planned = ("get_weather", {"city": "Paris"})
OSLO: Planned = ("get_weather", {"city": "Oslo"})
NOTES: Planned = ("list_notes", {})
SPOKEN = "Let me look outside."
PLANS: dict[str, tuple[str, list[list[Planned]]]] = {
    "simple_parallel": ("", [[PARIS, OSLO]]),
    "simple_spoken_parallel": (SPOKEN, [[PARIS, OSLO]]),
    "simple_twice": (SPOKEN, [[PARIS], [NOTES]]),
}
"""The text next to its calls, and the calls of each round. The last result shows the round."""

_BLOCK = re.compile(r"<tool_result:(\w+) [^>]*>\n(.*?)\n</tool_result:\1>", re.DOTALL)
_CALL = re.compile(r"\s*<tool_call:(\w+)>.*?</tool_call:\1>\s*", re.DOTALL)


def reported(said: str, results: list[str]) -> str:
    """The last answer, from the history."""
    return f"I had said: {said!r}. The tools said: {'; '.join(results)}."


def reply(request: Recorded) -> Reply:
    body = request.body
    if "tools" in body:
        problem = misplaced(body["messages"])
        if problem is not None:
            return Reply.error(400, problem)
    said, results = (native if "tools" in body else written)(body["messages"])
    spoken, rounds = PLANS[body["model"]]
    made = sorted(map(_made, results), key=str)
    done = next((number for number, calls in enumerate(rounds) if made == sorted(calls, key=str)), -1)
    wanted = rounds[done + 1] if done + 1 < len(rounds) else []
    if not wanted:
        chunks = answer(reported(said, results))
    elif "tools" in body:
        chunks = answer(
            spoken, [_call(number, name, given, body) for number, (name, given) in enumerate(wanted)]
        )
    else:
        chunks = answer(spoken + "\n".join(_block(name, given, body) for name, given in wanted))
    return Reply.stream(chunks) if body.get("stream") else Reply.body(completion(chunks))


def _made(result: str) -> Planned:
    """The call that has this result: the tools are those of jobs.py."""
    city = re.fullmatch(r"rain in (\w+)", result)
    return ("get_weather", {"city": city[1]}) if city else NOTES


def misplaced(messages: list[dict[str, Any]]) -> str | None:
    """OpenAI's error for a history whose results do not follow their calls."""
    open_calls: list[str] = []
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return (
                    f"messages[{number}]: messages with role 'tool' must be a response to a preceding "
                    "message with 'tool_calls'."
                )
            open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            return (
                f"messages[{number}]: an assistant message with 'tool_calls' must be followed by tool "
                f"messages for {open_calls}."
            )
        open_calls = [call["id"] for call in message.get("tool_calls") or ()]
    return f"the history ends without tool messages for {open_calls}." if open_calls else None


def native(messages: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """The text of the last message with calls, and the results at the end, in order."""
    results: list[str] = []
    for message in reversed(messages):
        if message["role"] != "tool":
            return (_text(message) if results else ""), results
        results.insert(0, _text(message))
    return "", results


def written(messages: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """The same for a model that only writes text: results are blocks at the end of the last message."""
    text, results = _text(messages[-1]), list[str]()
    for block in reversed(list(_BLOCK.finditer(text))):
        if text[block.end() :].strip():
            break
        results.insert(0, block[2])
        text = text[: block.start()]
    said = _CALL.sub("", _text(messages[-2])).strip() if results else ""
    return said, results


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _call(number: int, name: str, given: dict[str, str], body: dict[str, Any]) -> CallScript:
    named, arguments = _fitted(name, given, [tool["function"] for tool in body["tools"]])
    return f"call_{len(body['messages'])}_{number}", named, arguments


def _block(name: str, given: dict[str, str], body: dict[str, Any]) -> str:
    """A call in the format of the prompt, of a tool that the prompt lists."""
    prompt = _text(body["messages"][0])
    listing = prompt.partition("<tools>\n")[2].partition("\n</tools>")[0]
    (example,) = [paragraph for paragraph in prompt.split("\n\n") if "TOOL_NAME" in paragraph]
    named, arguments = _fitted(name, given, [json.loads(line) for line in listing.splitlines()])
    return example.replace("TOOL_NAME", named).replace('{"KEY": "VALUE"}', arguments)


def _fitted(name: str, given: dict[str, str], offered: list[dict[str, Any]]) -> tuple[str, str]:
    """The tool's name as the client spells it, and the arguments with null for other required ones."""
    tool = next(tool for tool in offered if tool["name"].endswith(name))
    required = dict.fromkeys(tool["parameters"].get("required", ()))
    return tool["name"], json.dumps(required | given)


def start() -> str:
    """Serves until this process ends, and returns the base URL."""
    loop, upstream = asyncio.new_event_loop(), FakeUpstream(reply)
    threading.Thread(target=loop.run_forever, daemon=True).start()
    asyncio.run_coroutine_threadsafe(upstream.__aenter__(), loop).result()
    return upstream.base_url

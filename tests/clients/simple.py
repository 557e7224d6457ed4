"""The simplest model: it calls its tools until the conversation ends with their results, and then it reports
them.

A scripted model answers by the number of answers before, whatever else it is told. This one reads its
history. It repeats its calls for ever where the results do not come last, it reports the results in the order
in which it found them, and it reports what it had said beside the calls.

As a server with tools it refuses, like OpenAI's, a history where a message with calls is not followed by
their results. Asked without tools it is a model that only writes text, and does what the prompt teaches.
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
"""What it says beside its calls, and the calls of each round.

Which round it is it knows from the last result.
"""

_BLOCK = re.compile(r"<tool_result:(\w+) [^>]*>\n(.*?)\n</tool_result:\1>", re.DOTALL)
_CALL = re.compile(r"\s*<tool_call:(\w+)>.*?</tool_call:\1>\s*", re.DOTALL)


def told(said: str, results: list[str]) -> str:
    """The last answer, from what it reads in the history."""
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
        chunks = answer(told(said, results))
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
    """What OpenAI's server says of a history whose calls and results do not stand together."""
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
    """What the last calling message said, and the results at the end, in their order."""
    results: list[str] = []
    for message in reversed(messages):
        if message["role"] != "tool":
            return (_text(message) if results else ""), results
        results.insert(0, _text(message))
    return "", results


def written(messages: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """The same as a model reads it that only writes text: results are blocks of the last message, at its very
    end.
    """
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
    """A call as the prompt shows it, of a tool that the prompt lists."""
    prompt = _text(body["messages"][0])
    listing = prompt.partition("<tools>\n")[2].partition("\n</tools>")[0]
    (example,) = [paragraph for paragraph in prompt.split("\n\n") if "TOOL_NAME" in paragraph]
    named, arguments = _fitted(name, given, [json.loads(line) for line in listing.splitlines()])
    return example.replace("TOOL_NAME", named).replace('{"KEY": "VALUE"}', arguments)


def _fitted(name: str, given: dict[str, str], offered: list[dict[str, Any]]) -> tuple[str, str]:
    """The tool's name as the client spells it, and the arguments, with null for each other required one."""
    tool = next(tool for tool in offered if tool["name"].endswith(name))
    required = dict.fromkeys(tool["parameters"].get("required", ()))
    return tool["name"], json.dumps(required | given)


def start() -> str:
    """Serves for as long as this process lives. The base URL."""
    loop, upstream = asyncio.new_event_loop(), FakeUpstream(reply)
    threading.Thread(target=loop.run_forever, daemon=True).start()
    asyncio.run_coroutine_threadsafe(upstream.__aenter__(), loop).result()
    return upstream.base_url

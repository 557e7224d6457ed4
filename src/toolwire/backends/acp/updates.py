"""Reads an agent's session updates: text, usage, failures and calls in progress.

The agent reports each call twice, in either order:

- It makes the call at the MCP server, where the call waits for its result.
- It announces the call in an update. The announcements show the order of the calls.

`AgentCalls` finds the announcement of each call by name and arguments.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toolwire.backends.agents.backend import kind_by_words
from toolwire.backends.agents.processes import clean
from toolwire.core.events import Failure, FinishReason, Usage

Json = Any
STOP_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "max_tokens": "length",
    "max_turn_requests": "length",
    "refusal": "content_filter",
}
_USAGES: tuple[tuple[str, ...], ...] = (("usage",), ("_meta", "usage"), ("_meta", "quota", "token_count"))
"""Where the result of a prompt may contain the token counts. The last path is Gemini CLI's."""
OVER = ("completed", "failed", "cancelled")
AUTH_REQUIRED = -32000
EXPLANATIONS: dict[str, str] = {
    "backend_auth": "{title} is not logged in, or its key was not accepted. Log in with: {log_in}.",
    "backend_unavailable": "{title} cannot reach its model.",
}


def text_of(update: Mapping[str, Json]) -> str:
    """Returns the text of a chunk, or a placeholder for other content."""
    content = update.get("content")
    if not isinstance(content, Mapping):
        return ""
    if content.get("type") == "text":
        text = content.get("text")
        return text if isinstance(text, str) else ""
    if content.get("type") == "resource_link":
        return str(content.get("uri") or "")
    return f"[{content.get('type')}]"


def usage_of(result: Mapping[str, Json]) -> Usage | None:
    """Returns the token counts of a prompt, or None if there are none.

    The input includes cached tokens, and the output includes thought tokens. If an agent counts these tokens
    separately, this function adds them to the input and the output.
    """
    given = next((found for path in _USAGES if (found := _inner(result, path)) is not None), {})
    read, written = _number(given, "cachedReadTokens"), _number(given, "cachedWriteTokens")
    thought, total = _number(given, "thoughtTokens"), _number(given, "totalTokens", "total_tokens")
    input = _number(given, "inputTokens", "input_tokens")
    output = _number(given, "outputTokens", "output_tokens")
    if not input and not output:
        return None
    if total >= input + output + read + written + thought:
        return Usage(input + read + written, output + thought, read, thought)
    return Usage(input, output, min(read, input), min(thought, output))


def _inner(given: Mapping[str, Json], path: tuple[str, ...]) -> Mapping[str, Json] | None:
    found: Json = given
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else None


def _number(given: Mapping[str, Json], *keys: str) -> int:
    value = next((given[key] for key in keys if key in given), 0)
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53
    return int(value) if usable else 0


@dataclass(slots=True)
class Announced:
    """A tool call that an update announced.

    `tool`: the name of the client's tool, or "" if the agent calls a tool of its own.
    """

    id: str
    order: int
    tool: str = ""
    kind: str = ""
    title: str = ""
    arguments: str = ""
    called: bool = False
    over: bool = False

    @property
    def expected(self) -> bool:
        """Whether a call of a client's tool was announced, but has not reached the MCP server yet."""
        return bool(self.tool) and not self.called and not self.over


class AgentCalls:
    """The calls of one prompt. `names` maps the agent's name for a tool to the client's name."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._announced: dict[str, Announced] = {}
        self._early: list[tuple[str, str, int]] = []
        """Calls that arrived before their announcement: tool, arguments and order."""
        self._numbers = itertools.count(1)

    def announce(self, update: Mapping[str, Json]) -> None:
        """Records an update that announces a call (`tool_call`) or says more about it."""
        id = str(update.get("toolCallId") or "")
        known = self._announced.setdefault(id, Announced(id, 0))
        title = update.get("title")
        if isinstance(title, str) and title:
            known.title = title
            known.tool = known.tool or self._names.get(title, "")
        known.kind = str(update.get("kind") or known.kind)
        given = update.get("rawInput")
        if isinstance(given, Mapping) and given:
            if set(given) == {"server", "tool", "arguments"} and isinstance(given["arguments"], Mapping):
                given = given["arguments"]  # Codex wraps the arguments with the server and the tool
            known.arguments = _canonical(given)
        known.over = known.over or update.get("status") in OVER
        early = [one for one in self._early if one[0] == known.tool] if not known.called else []
        if early:  # prefer equal arguments, but agents may add or omit some
            found = next((one for one in early if one[1] == known.arguments), early[0])
            self._early.remove(found)
            known.called, known.order = True, known.order or found[2]
        known.order = known.order or next(self._numbers)

    def called(self, tool: str, arguments: Mapping[str, Json]) -> tuple[str | None, int]:
        """Records a call at the MCP server. Returns its id and its position among the calls.

        The id is None if the agent has not announced the call yet.
        """
        wanted = _canonical(arguments)
        waiting = [one for one in self._announced.values() if one.expected and one.tool == tool]
        equal = [one for one in waiting if one.arguments == wanted]
        fitting = equal or [one for one in waiting if not one.arguments] or waiting
        if fitting:
            found = min(fitting, key=lambda one: one.order)
            found.called = True
            return found.id, found.order
        order = next(self._numbers)
        self._early.append((tool, wanted, order))
        return None, order

    @property
    def expected(self) -> bool:
        """Whether a call was made but not announced yet, or announced but not made yet."""
        return bool(self._early) or any(one.expected for one in self._announced.values())

    def seen(self, id: str) -> Announced | None:
        return self._announced.get(id)


def _canonical(arguments: Mapping[str, Json]) -> str:
    return json.dumps(arguments, sort_keys=True, default=str)


def failure_of(
    code: int, message: str, data: Json, title: str, log_in: str, scrub: Callable[[str], str] = str
) -> Failure:
    """Returns the failure for an agent's JSON-RPC error. `scrub` removes secrets from a text."""
    texts = dict.fromkeys(filter(None, (message, *_texts(data))))
    words = " ".join(" ".join(texts).split())
    kind = "backend_auth" if code == AUTH_REQUIRED else kind_by_words(words) or "backend"
    words = clean(scrub(words.removeprefix("Internal error: ")), 400)
    summary = EXPLANATIONS.get(kind, "").format(title=title, log_in=log_in or "its own command")
    if summary and words:
        return Failure(kind, f"{summary} It said: {words}")
    return Failure(kind, summary or (f"{title} failed: {words}" if words else f"{title} failed."))


def _texts(data: Json, depth: int = 0) -> list[str]:
    if isinstance(data, str):
        return [data]
    if not isinstance(data, dict) or depth > 3:
        return []
    keys = ("name", "message", "details", "error", "data", "errorKind")
    return [text for key in keys for text in _texts(data.get(key), depth + 1)]

"""Session updates → text, thoughts, usage and the calls in progress. Pure.

A call arrives twice, in either order: at the MCP server, where it waits for its result, and as an update,
which shows its position among the others. `AgentCalls` matches the two by name and arguments.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolwire.core.events import Failure, FinishReason, Usage

Json = Any
STOP_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "max_tokens": "length",
    "max_turn_requests": "length",
    "refusal": "content_filter",
}
"""How a prompt ended. `cancelled`, and what is not known, is no end of its own."""
_USAGES: tuple[tuple[str, ...], ...] = (("usage",), ("_meta", "usage"), ("_meta", "quota", "token_count"))
"""Where the tokens of a prompt may stand in its result; the last is Gemini CLI's."""
OVER = ("completed", "failed", "cancelled")


def text_of(update: Mapping[str, Json]) -> str:
    """The text of a chunk; what is no text is named."""
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
    """The tokens of a prompt. Only the total shows if cached and thought tokens are included in the rest."""
    given = next((found for path in _USAGES if (found := _inner(result, path)) is not None), None)
    if given is None:
        return None
    read, written, thought = (
        _number(given, key) for key in ("cachedReadTokens", "cachedWriteTokens", "thoughtTokens")
    )
    told, said = (
        _number(given, "inputTokens", "input_tokens"),
        _number(given, "outputTokens", "output_tokens"),
    )
    total = _number(given, "totalTokens", "total_tokens")
    if not told and not said:
        return None
    if total >= told + said + read + written + thought:
        return Usage(told + read + written, said + thought, read, thought)
    return Usage(told, said, min(read, told), min(thought, said))


def _inner(given: Mapping[str, Json], path: tuple[str, ...]) -> Mapping[str, Json] | None:
    found: Json = given
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else None


def _number(given: Mapping[str, Json], *keys: str) -> int:
    value = next((given[key] for key in keys if key in given), 0)
    return (
        int(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53
        else 0
    )


# --- calls ---


@dataclass(slots=True)
class Announced:
    """A tool call as an update told it. `tool` is the client's, "" for any other."""

    id: str
    place: int
    tool: str = ""
    kind: str = ""
    title: str = ""
    arguments: str = ""
    called: bool = False
    over: bool = False


class AgentCalls:
    """The calls of one prompt. `names`: the client's tools by what the agent calls them."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._announced: dict[str, Announced] = {}
        self._early: list[tuple[str, str, int]] = []
        self._places = itertools.count(1)

    def announce(self, update: Mapping[str, Json]) -> None:
        """`tool_call` or `tool_call_update`: what is told later adds to what was told before."""
        id = str(update.get("toolCallId") or "")
        known = self._announced.get(id)
        if known is None:
            known = self._announced[id] = Announced(id, 0)
        title = update.get("title")
        if isinstance(title, str) and title:
            known.title = title
            known.tool = known.tool or self._names.get(title, "")
        known.kind = str(update.get("kind") or known.kind)
        given = update.get("rawInput")
        if isinstance(given, Mapping) and given:
            nested = (
                given.get("arguments") if set(given) == {"server", "tool", "arguments"} else None
            )  # Codex names the server beside them
            known.arguments = _canonical(nested if isinstance(nested, Mapping) else given)
        known.over = known.over or update.get("status") in OVER
        early = [one for one in self._early if one[0] == known.tool] if not known.called else []
        if early:  # the same arguments are best, but agents may fill in or leave out some
            found = next((one for one in early if one[1] == known.arguments), early[0])
            self._early.remove(found)
            known.called, known.place = True, known.place or found[2]
        known.place = known.place or next(self._places)

    def called(self, tool: str, arguments: Mapping[str, Json]) -> tuple[str | None, int]:
        """A call has come by MCP: its id, where it is known, and its place among the others."""
        wanted = _canonical(arguments)
        waiting = [
            one for one in self._announced.values() if one.tool == tool and not one.called and not one.over
        ]
        fitting = (
            [one for one in waiting if one.arguments == wanted]
            or [one for one in waiting if not one.arguments]
            or waiting
        )
        if fitting:
            found = min(fitting, key=lambda one: one.place)
            found.called = True
            return found.id, found.place
        place = next(self._places)
        self._early.append((tool, wanted, place))
        return None, place

    @property
    def expected(self) -> bool:
        """A call has come that was not announced yet, or one was announced that has not come."""
        return bool(self._early) or any(
            one.tool and not one.called and not one.over for one in self._announced.values()
        )

    def seen(self, id: str) -> Announced | None:
        return self._announced.get(id)


def _canonical(arguments: Mapping[str, Json]) -> str:
    return json.dumps(arguments, sort_keys=True, default=str)


# --- failures ---
#
# What an agent's error means → one kind of `errors.KINDS`. The first row that fits holds. Pure.

AUTH_REQUIRED = -32000
MESSAGE_LIMIT = 400

WORD_KINDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"insufficient.quota|quota|usage limit|credit balance|billing", "quota"),
        (r"rate.?limit|too many requests|\b429\b|resource.?exhausted", "rate_limit"),
        (r"context.?(?:window|length)|prompt is too long|maximum context", "context_length"),
        (
            r"\b401\b|\b403\b|unauthori[sz]ed|authenticat|api.?key|not logged in|log ?in\b|credential",
            "backend_auth",
        ),
        (
            r"model.{0,60}(?:not found|does not exist|unknown|not supported)|unknown model"
            r"|ProviderModelNotFound",
            "model_not_found",
        ),
        (r"overloaded|\b503\b|\b529\b|at capacity", "overloaded"),
        (r"content.?filter|safety|blocked", "content_filter"),
        (r"timed? ?out|timeout", "timeout"),
        (
            r"econnrefused|enotfound|connection (?:refused|failed|error)|unable to connect|cannot connect"
            r"|fetch failed|dns",
            "backend_unavailable",
        ),
    )
)
OWN_WORDS: dict[str, str] = {
    "backend_auth": "{title} is not logged in, or its key was not accepted. Log in with: {log_in}.",
    "backend_unavailable": "{title} cannot reach its model.",
}
_URL = re.compile(r"https?://[^\s,)\"']+")


def kind_of(code: int, words: str) -> str:
    if code == AUTH_REQUIRED:
        return "backend_auth"
    return next((kind for pattern, kind in WORD_KINDS if pattern.search(words)), "backend")


def words_of(message: str, data: Any) -> str:
    """All that an error says, as one line."""
    told = [message, *_texts(data)]
    return " ".join(" ".join(dict.fromkeys(filter(None, told))).split())


def _texts(data: Any, depth: int = 0) -> list[str]:
    if isinstance(data, str):
        return [data]
    if depth > 3:
        return []
    if isinstance(data, dict):
        wanted = [
            data[key] for key in ("name", "message", "details", "error", "data", "errorKind") if key in data
        ]
        return [text for value in wanted for text in _texts(value, depth + 1)]
    return []


def failure_of(code: int, message: str, data: Any, title: str, log_in: str) -> Failure:
    """`message` and `data` are those of the JSON-RPC error, without secrets."""
    words = words_of(message, data)
    kind = kind_of(code, words)
    said = _URL.sub("(address)", words).removeprefix("Internal error: ")[:MESSAGE_LIMIT]
    own = OWN_WORDS.get(kind, "").format(title=title, log_in=log_in or "its own command")
    return Failure(
        kind,
        f"{own} It said: {said}"
        if own and said
        else f"{title} failed: {said}"
        if said
        else own or f"{title} failed.",
    )

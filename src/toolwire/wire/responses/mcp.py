"""Reads the tool `mcp` of the Responses API and its items, and creates items and events for the answer.

| item                  | becomes                                                                         |
|-----------------------|---------------------------------------------------------------------------------|
| mcp_list_tools        | nothing for the model; the gateway does not list the server's tools again       |
| mcp_call              | a Call and its Result; after an approval request, only the Result               |
| mcp_approval_request  | a Call that has the id of the approval request                                  |
| mcp_approval_response | the Result of that Call, which says that the call did not run. If the client    |
|                       | approved the call, the gateway runs it and replaces this Result                 |

Two approval requests with the same id are one request, so their contents must be equal. Clients must send an
approval request back unchanged, because the gateway compares it with its own record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from toolwire.core.events import McpAsk, McpCall, McpResult, McpTools
from toolwire.core.items import StoredItem
from toolwire.core.marks import mark_of, marked
from toolwire.core.mcp import McpAnswer, McpFilter, McpListed, McpPart, McpQuestion, McpServer, call_name
from toolwire.core.turn import Call, Item, Result, TextPart
from toolwire.wire.checks import (
    Note,
    boolean,
    invalid,
    leftover,
    not_one_of,
    note,
    object_,
    optional,
    required,
    required_id,
    required_string,
    shown,
    strings,
    wrong_type,
)

LISTS, CALLS = "mcp_list_tools", "mcp_call"
QUESTIONS, ANSWERS = "mcp_approval_request", "mcp_approval_response"
ITEMS = frozenset({LISTS, CALLS, QUESTIONS, ANSWERS})
LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
MOST_HEADERS = 64
_TRANSPORTS = re.compile(
    "host|content-length|content-encoding|transfer-encoding|accept-encoding|connection|keep-alive|upgrade|te|"
    "trailer|expect|(proxy|mcp)-.*",
    re.IGNORECASE,
)
"""Headers of the connection and the protocol. Clients cannot set them; `Host` could choose another site."""
READ = frozenset(
    "type server_label server_url authorization headers allowed_tools require_approval connector_id "
    "tunnel_id".split()
)
"""The members of the tool that are read. Any other member gets a note."""
DENIED = "The user did not approve this call; it did not run."
_APPROVED = (TextPart("The user approved this call, but it did not run."),)
"""The result of an approved call, until the call has run."""

# --- the tool ---


def read_server(tool: Mapping[str, Any], path: str, notes: list[Note]) -> McpServer | None:
    """Returns the server that a tool of the type `mcp` names; None for a connector or tunnel of OpenAI."""
    label = required_string(tool, "server_label", path)
    if LABEL.fullmatch(label) is None:
        raise invalid(f"{path}.server_label", f"expected a string that matches '^{LABEL.pattern}$'.")
    leftover(tool, READ, "tools.mcp", notes)
    if tool.get("connector_id") is not None or tool.get("tunnel_id") is not None:
        return None
    url = optional(tool, "server_url", path) or ""
    headers = _headers(tool, path)
    if headers and not url:  # a server of the settings gets only the operator's headers
        for name in ("headers", "authorization"):
            if tool.get(name):
                note(notes, f"tools.mcp.{name}", "ignored")
        headers = {}
    allowed = tool.get("allowed_tools")
    always, never = _approval(tool.get("require_approval"), f"{path}.require_approval")
    filter = None if allowed is None else _filter(allowed, f"{path}.allowed_tools")
    return McpServer(label, path, url, headers, filter, always, never)


def _headers(tool: Mapping[str, Any], path: str) -> dict[str, str]:
    headers = dict(optional(tool, "headers", path, object_) or {})
    if (token := optional(tool, "authorization", path)) is not None:
        headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
        headers["Authorization"] = f"Bearer {token.removeprefix('Bearer ')}"
    for name, value in headers.items():
        plain = isinstance(value, str) and value.isascii() and value.isprintable()
        if not plain or _HEADER.fullmatch(name) is None or len(headers) > MOST_HEADERS:
            reason = f"expected at most {MOST_HEADERS} headers with valid names and printable ASCII values."
            raise invalid(f"{path}.headers", reason)
        if _TRANSPORTS.fullmatch(name):
            raise invalid(f"{path}.headers", f"'{name}' cannot be set by a client; leave it out.")
    return headers


def _filter(value: Any, path: str) -> McpFilter:
    if type(value) is list:
        strings(path, value)
        return McpFilter(tuple(value))
    if type(value) is not dict:
        raise wrong_type(path, "one of an array of strings or an object", value)
    if unknown := value.keys() - {"tool_names", "read_only"}:
        raise invalid(path, f"expected only 'tool_names' and 'read_only', got {len(unknown)} other members.")
    names = optional(value, "tool_names", path, strings)
    return McpFilter(None if names is None else tuple(names), optional(value, "read_only", path, boolean))


_ALL = McpFilter()


def _approval(value: Any, path: str) -> tuple[McpFilter | None, McpFilter | None]:
    """Returns the tools whose calls always need the client's approval, and those whose calls never do."""
    if value is None or value == "always":
        return _ALL, None
    if value == "never":
        return None, _ALL
    if type(value) is str:
        raise not_one_of(path, value, ("always", "never"))
    if type(value) is not dict:
        raise wrong_type(path, "one of a string or an object", value)
    if unknown := value.keys() - {"always", "never"}:
        raise invalid(path, f"expected only 'always' and 'never', got {len(unknown)} other members.")
    given = [optional(value, name, path, object_) for name in ("always", "never")]
    always, never = (
        None if one is None else _filter(one, f"{path}.{name}")
        for name, one in zip(("always", "never"), given, strict=True)
    )
    return always, never


def echo(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tool as a response repeats it: without headers, token and the URL's query."""
    out = {"allowed_tools": None, "require_approval": "always", **tool, "headers": None}
    out.pop("authorization", None)
    if type(url := out.get("server_url")) is str:
        out["server_url"] = url.partition("?")[0]
    return out


# --- items of a conversation ---


class McpItems:
    """Reads the items about MCP servers, and matches approval requests with their answers and calls."""

    def __init__(self) -> None:
        self._listed: set[str] = set()
        self._questions: dict[str, McpQuestion] = {}
        self._answers: dict[str, McpAnswer] = {}
        self._called: set[str] = set()

    def read(self, entry: Mapping[str, Any], kind: str, path: str) -> Iterator[tuple[Item, str]]:
        """Yields the items for the model, each with the path of the field that holds its id."""
        if kind == LISTS:
            self._listed.add(required_string(entry, "server_label", path))
        elif kind == QUESTIONS:
            yield from self._question(entry, path)
        elif kind == ANSWERS:
            id = required_id(entry, "approval_request_id", path)
            reason = optional(entry, "reason", path)
            answer = McpAnswer(id, required(entry, "approve", path, boolean), f"{path}.approval_request_id")
            if self._answers.setdefault(id, answer).approve is not answer.approve:
                raise invalid(answer.path, "this approval request has two different answers.")
            words = f"{DENIED} The reason: {reason}" if reason else DENIED
            parts = _APPROVED if answer.approve else (TextPart(words),)
            yield Result(id, parts, is_error=True), answer.path
        else:
            yield from self._call(entry, path)

    def _question(self, entry: Mapping[str, Any], path: str) -> Iterator[tuple[Item, str]]:
        server, name, arguments = (required_string(entry, it, path) for it in _OF_CALL)
        question = McpQuestion(required_id(entry, "id", path), server, name, arguments, path)
        first = self._questions.setdefault(question.id, question)
        if (first.server, first.name, first.arguments) != (server, name, arguments):
            raise invalid(f"{path}.id", "two different approval requests have this id.")
        if first is question:
            yield Call(question.id, call_name(server, name), arguments), f"{path}.id"

    def _call(self, entry: Mapping[str, Any], path: str) -> Iterator[tuple[Item, str]]:
        server, name, arguments = (required_string(entry, it, path) for it in _OF_CALL)
        asked = optional(entry, "approval_request_id", path)
        id = asked or required_id(entry, "id", path)
        if id not in self._questions and id not in self._answers:  # else the approval request is the Call
            yield Call(id, call_name(server, name), arguments), f"{path}.id"
        if asked:
            self._called.add(asked)
        error = entry.get("error")
        output = optional(entry, "output", path)
        text = output if output is not None and error is None else error_text(error)
        yield Result(id, (TextPart(for_model(id, server, text)),), is_error=error is not None), f"{path}.id"

    def settle(self, items: Sequence[Item], paths: Sequence[str]) -> tuple[list[Item], list[str]]:
        """Removes superfluous items. Returns the other items and their paths.

        Keeps only the first Call of each approval request. Drops the placeholder result `_APPROVED` of each
        call that has run since, because `items` has its real result. Raises an error if an answer names an
        approval request that this conversation does not have.
        """
        seen: set[str] = set()
        out: list[Item] = []
        kept: list[str] = []
        for item, path in zip(items, paths, strict=True):
            if type(item) is Call and item.call_id.startswith(PREFIX):
                if item.call_id in seen:
                    continue
                seen.add(item.call_id)
            elif type(item) is Result and item.parts is _APPROVED and item.call_id in self._called:
                continue
            out.append(item)
            kept.append(path)
        for answer in self._answers.values():
            if answer.id not in seen:
                raise invalid(answer.path, f"this conversation has no approval request '{shown(answer.id)}'.")
        return out, kept

    def part(
        self,
        servers: Sequence[McpServer],
        chosen: Sequence[tuple[str, str | None]],
        before: Sequence[StoredItem],
    ) -> McpPart | None:
        """Returns what the request says about MCP servers. `before`: the items of earlier responses."""
        listed = self._listed.union(one.server for one in before if isinstance(one, McpListed))
        answers = tuple(one for one in self._answers.values() if one.id not in self._called)
        questions = tuple(one for one in self._questions.values() if one.id not in self._called)
        if not (servers or answers or questions):
            return None
        return McpPart(tuple(servers), frozenset(listed), questions, answers, tuple(chosen))

    def stored(self, items: Sequence[Item]) -> Iterator[StoredItem]:
        """Yields the items to store for later turns of the conversation."""
        yield from map(McpListed, sorted(self._listed))
        yield from (item for item in items if type(item) is not Result or item.parts is not _APPROVED)


_OF_CALL = ("server_label", "name", "arguments")


MOST_READ = 100_000
"""The maximum number of characters of a result that the model reads."""
SHORT_DATA = 256
_DATA = ("data", "blob")
PREFIX = "mcpr_"
"""How the ids of approval requests begin."""


def error_text(error: Any) -> str:
    """Returns the message of a call's error, for the model."""
    if isinstance(error, str):
        return error
    if isinstance(error, Mapping):
        content = error.get("content")
        blocks = content if isinstance(content, list) else [error]
        texts = (one.get("text") or one.get("message") for one in blocks if isinstance(one, Mapping))
        return "\n".join(text for text in texts if isinstance(text, str)) or "The call failed."
    return "The call has no result."


def for_model(id: str, server: str, text: str) -> str:
    """Returns a result as the model reads it: as data, between marks (`core/marks.py`).

    Images and sounds are left out, and a long result is cut. The client gets the whole result.
    """
    if text.startswith("[{"):
        with suppress(ValueError, RecursionError):
            text = json.dumps(_without_data(json.loads(text)), ensure_ascii=False)
    if len(text) > MOST_READ:
        text = f"{text[:MOST_READ]}\n[cut: the result has {len(text):,} characters]"
    return marked(text, f"from the MCP server {server}", mark_of(id))


def _without_data(value: Any) -> Any:
    """Returns content blocks without the data of images and sounds."""
    if isinstance(value, list):
        return [_without_data(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: f"[{len(one):,} characters, not shown]"
        if name in _DATA and isinstance(one, str) and len(one) > SHORT_DATA
        else _without_data(one)
        for name, one in value.items()
    }


# --- items of an answer, and their events ---

Frames = Iterator[tuple[str, dict[str, Any]]]
"""Events, each as its type and its members. The members `item_id` and `output_index` are left out."""


def added(event: McpTools | McpAsk | McpCall) -> dict[str, Any]:
    """Returns the item in the form for the event `response.output_item.added`."""
    if isinstance(event, McpTools):
        return {"id": event.id, "type": LISTS, "server_label": event.server, "tools": []}
    if isinstance(event, McpAsk):
        return {
            "id": event.id,
            "type": QUESTIONS,
            "arguments": event.arguments,
            "name": event.name,
            "server_label": event.server,
        }
    return {
        "id": event.id,
        "type": CALLS,
        "status": "in_progress",
        "approval_request_id": event.approval,
        "arguments": "",
        "error": None,
        "name": event.name,
        "output": None,
        "server_label": event.server,
    }


def opening(event: McpTools | McpAsk | McpCall) -> Frames:
    """Yields the events between the item's first event and its result."""
    if isinstance(event, McpTools):
        yield "response.mcp_list_tools.in_progress", {}
        yield "response.mcp_list_tools.completed", {}
    elif isinstance(event, McpCall):
        yield "response.mcp_call.in_progress", {}
        yield "response.mcp_call_arguments.delta", {"delta": event.arguments}
        yield "response.mcp_call_arguments.done", {"arguments": event.arguments}


def done(
    item: Mapping[str, Any], event: McpTools | McpAsk | McpCall, result: McpResult | None, status: str
) -> tuple[dict[str, Any], Frames]:
    """Returns the complete item, and the events that come before its `response.output_item.done`."""
    if isinstance(event, McpTools):
        return {**item, "tools": list(event.tools)}, iter(())
    if isinstance(event, McpAsk):
        return dict(item), iter(())
    whole = {**item, "arguments": event.arguments}
    if result is None:
        return {**whole, "status": status}, iter(())
    ended = "completed" if result.error is None else "failed"
    error = None if result.error is None else dict(result.error)
    return {**whole, "status": ended, "output": result.output, "error": error}, iter(
        [(f"response.mcp_call.{ended}", {})]
    )

"""How the demo model uses the tools on notes (a vault): its calls, and its words about results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from toolwire.backends.scripted.script import Step
from toolwire.core.display import counted
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import ToolSpec
from toolwire.emulate.schemas.constrain import compile_schema

DENIED = "User cancelled tool execution"
ABOUT = "I am Toolwire's demo model: a script that lists what a tool returned, and understands none of it."
_DATA = re.compile(r"\A\[untrusted data (\w+):[^\n]*\]\n(.*)\n\[end of data \1\]\Z", re.DOTALL)
_MOST = 10
"""The maximum number of results, tasks or tags that an answer lists."""
_QUERY = 200

# Questions that the chat page suggests, and similar ones: pattern, tool, arguments.
_QUESTIONS: tuple[tuple[re.Pattern[str], str, Callable[[re.Match[str]], dict[str, Any]]], ...] = (
    (
        re.compile(r"\bopen tasks?\b|\btasks? (?:are|is) open\b", re.I),
        "vault_tasks",
        lambda found: {"status": "open"},
    ),
    (re.compile(r"\btags\b", re.I), "vault_tags", lambda found: {}),
    (
        re.compile(r"\A(?:read|show|summari[sz]e|what is in)(?: me)?(?: the note)? `?([\w/ -]+\.md)\b", re.I),
        "file_read",
        lambda found: {"filePaths": [found[1]]},
    ),
    (
        re.compile(r"\bnotes? (?:(?:say|are|talk) about|mentions?) +(\S.*?)[\s?.!]*\Z", re.I),
        "vault_search",
        lambda found: {"query": found[1][:_QUERY]},
    ),
)


def unmarked(text: str) -> dict[str, Any] | None:
    """Returns the JSON object between the two marks in a vault tool's result, or None."""
    marked = _DATA.match(text.strip())
    try:
        value = json.loads(marked[2]) if marked else None
    except ValueError:
        value = None
    return value if isinstance(value, dict) else None


def vault_call(tools: Sequence[ToolSpec], user: str) -> Step | None:
    """Returns the call of a vault tool that answers the user's question, or None if no tool does."""
    offered = {tool.name: tool for tool in tools if tool.kind == "function"}
    for pattern, name, arguments in _QUESTIONS:
        tool, found = offered.get(name), pattern.search(user.strip())
        if tool is not None and found is not None and _fits(tool, given := arguments(found)):
            return Step("call", json.dumps(given, ensure_ascii=False), name)
    return None


def _fits(tool: ToolSpec, arguments: dict[str, Any]) -> bool:
    """Returns whether the arguments match the schema. A client may have another tool of this name."""
    try:
        return bool(compile_schema(tool.parameters, "").is_valid(arguments))
    except (ToolwireError, RecursionError):
        return False


def vault_answer(tool: str, text: str) -> str | None:
    """Returns a vault tool's result in prose; None if the text is not the result of a vault tool."""
    result = unmarked(text)
    if result is None:
        return None
    if result.get("error") == DENIED:
        reason = f" Your reason: {result['reason']}" if result.get("reason") else ""
        return f"You denied {tool}, so it did not run, and I know nothing more.{reason}"
    if result.get("error"):
        return f"{tool} failed: {result['error']}"
    value, write = result.get("result"), _PROSE.get(tool)
    try:
        words = write(value, result) if write is not None else ""
    except (KeyError, TypeError, AttributeError):  # a result of another version of the tool
        words = ""
    listed = words or f"{tool} returned:\n\n```json\n{json.dumps(value, ensure_ascii=False, indent=1)}\n```"
    note = f"\n\n{result['note']}" if result.get("note") else ""
    return listed + note


def _search(value: Any, result: dict[str, Any]) -> str:
    found, shared = int(result["found"]), value["results"]
    if not found:
        return f"No note matches *{value['query']}*."
    head = f"{counted(found, 'note matches', 'notes match')} *{value['query']}*"
    if not shared:
        return f"{head}. You shared none of them with me."
    rows = [f"`{one['path']}`: {one['preview']}" for one in shared]
    return f"{head}. You shared {len(shared)} with me:\n\n{_list(rows)}"


def _tasks(value: Any, result: dict[str, Any]) -> str:
    tasks = value["tasks"]
    if not tasks:
        return "None of your notes has such a task."
    rows = [f"{one['text']} (`{one['path']}`, line {one['line']})" for one in tasks]
    notes = len({one["path"] for one in tasks})
    head = f"{counted(len(tasks), 'task')} in {counted(notes, 'note')}"
    return f"{head}:\n\n{_list(rows)}"


def _tags(value: Any, result: dict[str, Any]) -> str:
    if "tag" in value:
        return (
            f"These notes have the tag #{value['tag']}:\n\n{_list([f'`{path}`' for path in value['notes']])}"
        )
    if not value["tags"]:
        return "Your notes have no tags."
    rows = [f"#{one['tag']}: {counted(one['notes'], 'note')}" for one in value["tags"]]
    return f"Your most used tag is #{value['tags'][0]['tag']}. By number of notes:\n\n{_list(rows)}"


def _read(value: Any, result: dict[str, Any]) -> str:
    if not value:
        return "You let me read none of the notes."
    texts = [f"`{one['path']}`:\n\n{_quoted(str(one['content']))}" for one in value]
    return "You let me read this:\n\n" + "\n\n".join(texts)


_PROSE: dict[str, Callable[[Any, dict[str, Any]], str]] = {
    "vault_search": _search,
    "vault_tasks": _tasks,
    "vault_tags": _tags,
    "file_read": _read,
}


def _list(rows: Sequence[str]) -> str:
    more = [f"… and {len(rows) - _MOST} more"] if len(rows) > _MOST else []
    return "\n".join(f"- {' '.join(row.split())}" for row in [*rows[:_MOST], *more])


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.strip().splitlines())

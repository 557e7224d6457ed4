"""Reads the tools and the tool choice of a Messages request.

| wire tool                            | becomes                                                     |
|--------------------------------------|-------------------------------------------------------------|
| custom, with or without its type     | ToolSpec                                                    |
| bash_…, text_editor_… (client runs)  | ToolSpec with a schema that this module adds                |
| any other type (the server runs it)  | skipped, with a note                                        |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure
from toolwire.core.turn import ToolChoice, ToolSpec
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
    required_name,
    required_string,
    shown,
)

CHOICES = ("auto", "any", "tool", "none")
OF_TOOL = frozenset({"type", "name", "description", "input_schema", "strict", "defer_loading"})
CLIENT_TOOLS: dict[str, dict[str, Any]] = {
    "bash": {
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "The bash command to run."},
            "restart": {"type": "boolean", "description": "True: restart the shell instead."},
        },
    },
    "text_editor": {
        "type": "object",
        "properties": {
            "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
            "path": {"type": "string", "description": "Absolute path of the file or directory."},
            "view_range": {"type": "array", "items": {"type": "integer"}},
            "file_text": {"type": "string", "description": "For `create`: the content of the file."},
            "old_str": {"type": "string", "description": "For `str_replace`: the text to replace."},
            "new_str": {"type": "string", "description": "For `str_replace`: the new text."},
            "insert_line": {"type": "integer", "description": "For `insert`: the line to insert after."},
            "insert_text": {"type": "string", "description": "For `insert`: the text to insert."},
        },
        "required": ["command", "path"],
    },
}
"""Types of tools that the client runs and whose schema only Anthropic's models know (`bash_20250124`, …)."""
DESCRIPTIONS = {
    "bash": "Runs a command in a persistent bash shell and returns its output.",
    "text_editor": "Views, creates and edits text files.",
}


def read_tools(
    tools: Any, loaded: set[str], notes: list[Note]
) -> tuple[tuple[ToolSpec, ...], tuple[ToolSpec, ...]]:
    """Returns the tools that the model sees, and the tools that are hidden from it.

    `loaded`: names of tools that the conversation has already made visible.
    """
    seen: dict[str, ToolSpec] = {}
    hidden: dict[str, ToolSpec] = {}
    for i, tool in enumerate(tools):
        path = f"tools[{i}]"
        object_(path, tool)
        kind = optional(tool, "type", path) or "custom"
        spec = _custom(tool, path) if kind == "custom" else _client_tool(kind, tool, path)
        if spec is None:
            note(notes, f"tools.{kind if kind.replace('_', '').isalnum() else 'unknown'}"[:96], "ignored")
            continue
        if kind == "custom":
            leftover(tool, OF_TOOL | {"cache_control"}, "tools", notes)
        else:
            note(notes, f"tools.{kind}", "emulated")
        if spec.name in seen or spec.name in hidden:
            raise invalid(f"{path}.name", f"duplicate name '{shown(spec.name)}'. Tool names must be unique.")
        deferred = optional(tool, "defer_loading", path, boolean) is True and spec.name not in loaded
        (hidden if deferred else seen)[spec.name] = spec
    return tuple(seen.values()), tuple(hidden.values())


def _custom(tool: dict[str, Any], path: str) -> ToolSpec:
    name, description = required_name(tool, path), optional(tool, "description", path) or ""
    schema = required(tool, "input_schema", path, object_)
    return ToolSpec(name, description, schema, optional(tool, "strict", path, boolean) is True)


def _client_tool(kind: str, tool: dict[str, Any], path: str) -> ToolSpec | None:
    """Returns a tool that Anthropic defines and the client runs; None if the server runs it."""
    family = kind.rpartition("_")[0]
    if family not in CLIENT_TOOLS:
        return None
    return ToolSpec(required_name(tool, path), DESCRIPTIONS[family], CLIENT_TOOLS[family])


def read_choice(
    choice: Any, tools: tuple[ToolSpec, ...], given: Iterable[Mapping[str, Any]]
) -> tuple[ToolChoice, bool, Failure | None]:
    """Returns the tool choice, whether parallel calls are allowed, and an error or None.

    The error is for backends that do not speak this API (`Turn.only_spoken`). `tools`: the tools that every
    backend can show to the model. `given`: all tools of the request.
    """
    default = ToolChoice("auto" if tools else "none")
    if choice is None:
        return default, True, None
    kind = required_string(choice, "type", "tool_choice")
    parallel = optional(choice, "disable_parallel_tool_use", "tool_choice", boolean) is not True
    if kind not in CHOICES:
        raise not_one_of("tool_choice.type", kind, CHOICES)
    if kind == "auto":
        return default, parallel, None
    if kind == "none":
        return ToolChoice("none"), parallel, None
    if kind == "any":
        if tools:
            return ToolChoice("required"), parallel, None
        why = "to require a call, declare at least one tool in 'tools' that this server can offer."
        error = invalid("tool_choice", why)
    else:
        name = required_string(choice, "name", "tool_choice")
        if any(tool.name == name for tool in tools):
            return ToolChoice("required", name), parallel, None
        message = f"Tool '{shown(name)}' not found in provided tools."
        error = ToolwireError("invalid_value", message, param="tool_choice.name")
        given = [tool for tool in given if tool.get("name") == name]
    if not given:
        raise error
    return default, parallel, error.failure

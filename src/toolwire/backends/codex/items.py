"""Converts a `Turn` for Codex: to Responses items, dynamic tools, an output schema, or text.

Codex silently drops items with the role `system`, so they get the role `developer`. Content that Codex cannot
send to the provider raises an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from toolwire.backends.agents.history import SPEAKERS
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import (
    Call,
    ImagePart,
    Item,
    Message,
    OutputFormat,
    Part,
    Result,
    TextPart,
    ToolSpec,
    Turn,
)
from toolwire.emulate.prompt import output_prompt

Json = dict[str, Any]


def history(turn: Turn, extra: Iterable[str] = ()) -> list[Json]:
    """Returns the whole conversation as Responses items.

    `extra`: Toolwire's own instructions, which are added at the end.
    """
    out = [_developer(turn.instructions)] if turn.instructions else []
    out += [entry for item in turn.items for entry in item_json(item)]
    return [*out, *(_developer(words) for words in extra if words)]


def item_json(item: Item) -> list[Json]:
    if isinstance(item, Message):
        role = "developer" if item.role == "system" else item.role
        kind = "output_text" if role == "assistant" else "input_text"
        parts = [_part(part, kind) for part in item.parts]
        if item.refusal:
            parts.append({"type": kind, "text": item.refusal})
        return [{"type": "message", "role": role, "content": parts}] if parts else []
    if isinstance(item, Call):
        arguments = item.arguments or "{}"
        return [{"type": "function_call", "call_id": item.call_id, "name": item.name, "arguments": arguments}]
    if isinstance(item, Result):
        return [{"type": "function_call_output", "call_id": item.call_id, "output": _output(item.parts)}]
    if item.encrypted is None:  # a provider can only read reasoning that it encrypted itself
        return []
    summary = [{"type": "summary_text", "text": text} for text in item.summary]
    sealed = {"type": "reasoning", "summary": summary, "encrypted_content": item.encrypted}
    return [{**sealed, "id": item.id} if item.id else sealed]


def _developer(text: str) -> Json:
    return {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": text}]}


def _content(part: Part, text_type: str, image_type: str, image_key: str) -> Json:
    if isinstance(part, TextPart):
        return {"type": text_type, "text": part.text}
    if not isinstance(part, ImagePart):
        problem = f"Codex cannot take content of the type {part.kind!r}: text and images only."
        raise ToolwireError("unsupported_value", problem)
    if part.url is None or not part.url.startswith("data:"):
        problem = "Codex takes images as data: URLs only; send the image itself, base64-encoded."
        raise ToolwireError("unsupported_value", problem)
    return {"type": image_type, image_key: part.url}


def _part(part: Part, text_type: str) -> Json:
    out = _content(part, text_type, "input_image", "image_url")
    return {**out, "detail": part.detail} if isinstance(part, ImagePart) and part.detail else out


def _output(parts: tuple[Part, ...]) -> str | list[Json]:
    """Returns a result as a list of parts, or as a string if it is a single text."""
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return [_part(part, "input_text") for part in parts] or ""


def answer_json(result: Result | None) -> Json:
    if result is None:
        return refusal_json("The tool call was not answered.")
    parts = result.parts or (TextPart(""),)
    items = [_content(part, "inputText", "inputImage", "imageUrl") for part in parts]
    return {"contentItems": items, "success": not result.is_error}


def refusal_json(words: str) -> Json:
    return {"contentItems": [{"type": "inputText", "text": words}], "success": False}


# --- a turn as text, for versions of Codex without native tools ---


def split(turn: Turn) -> tuple[str, tuple[Item, ...], list[Json]]:
    """Splits a turn into three parts: the system text, the history, and the input of the Codex turn."""
    rest = list(turn.items)
    system = [turn.instructions]
    while rest and isinstance(first := rest[0], Message) and first.role in ("system", "developer"):
        system.append(_words(first))
        rest.pop(0)
    input = [{"type": "text", "text": "Go on."}]
    if rest and isinstance(last := rest[-1], Message) and last.role == "user":
        input = [_content(part, "text", "image", "url") for part in last.parts]
        rest.pop()
    return "\n\n".join(filter(None, [*system, output_words(turn.output)])), tuple(rest), input


def as_text(history: Iterable[Item]) -> str:
    """Returns the history as text, for a version of Codex that does not accept items."""
    lines = [f"{SPEAKERS[item.role]}: {_words(item)}" for item in history if isinstance(item, Message)]
    return "\n\n".join(["The conversation so far:", *lines, "The person's next message follows."])


def _words(message: Message) -> str:
    return "\n\n".join(part.text for part in message.parts if isinstance(part, TextPart))


# --- tools and output ---


def tool_json(tool: ToolSpec) -> Json:
    schema = dict(tool.parameters)
    if schema.get("type") != "object":
        schema = {"properties": {}, **schema, "type": "object"}
    return {"type": "function", "name": tool.name, "description": tool.description, "inputSchema": schema}


def output_schema(output: OutputFormat) -> Mapping[str, Any] | None:
    """Returns the schema to send, or None if the prompt must describe the output format.

    Codex sends every schema as strict, and providers refuse a strict schema whose objects allow additional
    properties.
    """
    if output.type != "json_schema" or output.schema is None:
        return None
    return output.schema if output.strict or _closed(output.schema) else None


def output_words(output: OutputFormat) -> str:
    """Returns a prompt that describes the output format, or "" if the schema can be sent."""
    return "" if output.type == "text" or output_schema(output) is not None else output_prompt(output)


def _closed(schema: Any) -> bool:
    """Returns whether every object in the schema requires all its keys and allows no others."""
    if isinstance(schema, list):
        return all(map(_closed, schema))
    if not isinstance(schema, Mapping):
        return True
    properties = schema.get("properties")
    if schema.get("type") == "object" or isinstance(properties, Mapping):
        names = set(properties) if isinstance(properties, Mapping) else set()
        if schema.get("additionalProperties") is not False or set(schema.get("required") or ()) != names:
            return False
    return all(map(_closed, schema.values()))


# --- tool names that Codex does not accept ---

OWN = frozenset({"exec_command", "shell_command"})
"""Names of client tools that Codex 0.166 silently drops.

Codex also refuses names that begin with `mcp__` or contain characters that `_TAKEN` does not allow.
"""
_TAKEN = re.compile(r"(?!mcp__)[a-zA-Z0-9_-]{1,64}\Z")
_STRANGE = re.compile(r"[^a-zA-Z0-9_-]")


def renamed(turn: Turn) -> tuple[Turn, Mapping[str, str]]:
    """Returns the turn with tool names that Codex accepts, and a mapping from new to old names."""
    names = {tool.name for tool in turn.tools}
    there = {name: _other(name, names) for name in sorted(names) if name in OWN or not _TAKEN.match(name)}
    if not there:
        return turn, {}
    choice = turn.tool_choice
    tools = tuple(replace(tool, name=there.get(tool.name, tool.name)) for tool in turn.tools)
    allowed = choice.allowed and tuple(there.get(name, name) for name in choice.allowed)
    choice = replace(choice, name=choice.name and there.get(choice.name, choice.name), allowed=allowed)
    items = tuple(
        replace(item, name=there[item.name]) if isinstance(item, Call) and item.name in there else item
        for item in turn.items
    )
    changed = replace(turn, tools=tools, tool_choice=choice, items=items)
    return changed, {other: name for name, other in there.items()}


def _other(name: str, names: set[str]) -> str:
    base = other = "client_" + _STRANGE.sub("_", name)[:48]
    number = 2
    while other in names:
        other, number = f"{base}_{number}", number + 1
    names.add(other)
    return other

"""A `Turn` as Codex takes it: raw Responses items, dynamic tools, an output schema. Pure.

Codex drops items with the role `system` without a word, so they become `developer`. What it can not pass on is refused here, with a clear error.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import replace
from typing import Any

from toolwire.backends.base import Batch, LiveRun
from toolwire.core.errors import ToolwireError
from toolwire.core.events import CallBegin
from toolwire.core.turn import Call, ImagePart, Item, Message, OutputFormat, Part, Reasoning, Result, TextPart, ToolChoice, ToolSpec, Turn
from toolwire.emulate.prompt import output_prompt

Json = dict[str, Any]
_ROLES = {"system": "developer", "developer": "developer", "user": "user", "assistant": "assistant"}


def history(turn: Turn, extra: Iterable[str] = ()) -> list[Json]:
    """The whole conversation; `extra` are our own words to the model, at its end."""
    out = [_message("developer", [_text("developer", turn.instructions)])] if turn.instructions else []
    out += [entry for item in turn.items for entry in item_json(item)]
    return [*out, *(_message("developer", [_text("developer", words)]) for words in extra if words)]


def item_json(item: Item) -> list[Json]:
    if isinstance(item, Message):
        role = _ROLES[item.role]
        parts = [_part(role, part) for part in item.parts]
        if item.refusal:
            parts.append(_text(role, item.refusal))
        return [_message(role, parts)] if parts else []
    if isinstance(item, Call):
        return [{"type": "function_call", "call_id": item.call_id, "name": item.name, "arguments": item.arguments or "{}"}]
    if isinstance(item, Result):
        return [{"type": "function_call_output", "call_id": item.call_id, "output": _output(item.parts)}]
    return _reasoning(item)


def _reasoning(item: Reasoning) -> list[Json]:
    """Only what the provider sealed itself means something to it."""
    if item.encrypted is None:
        return []
    summary = [{"type": "summary_text", "text": text} for text in item.summary]
    return [{"type": "reasoning", "summary": summary, "encrypted_content": item.encrypted, **({"id": item.id} if item.id else {})}]


def _message(role: str, content: list[Json]) -> Json:
    return {"type": "message", "role": role, "content": content}


def _text(role: str, text: str) -> Json:
    return {"type": "output_text" if role == "assistant" else "input_text", "text": text}


def _part(role: str, part: Part) -> Json:
    if isinstance(part, TextPart):
        return _text(role, part.text)
    if isinstance(part, ImagePart):
        return {"type": "input_image", "image_url": image_url(part), **({"detail": part.detail} if part.detail else {})}
    raise ToolwireError("unsupported_value", f"Codex can not take content of the type {part.kind!r}: text and images only.")


def image_url(part: ImagePart) -> str:
    """The image as a data: URL; Codex fetches nothing."""
    if part.url is None or not part.url.startswith("data:"):
        raise ToolwireError("unsupported_value", "Codex takes images as data: URLs only; send the image itself, base64-encoded.")
    return part.url


def _output(parts: tuple[Part, ...]) -> str | list[Json]:
    """One text is a string, which every model knows; more are parts."""
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return [_part("user", part) for part in parts] or ""


def answer_json(result: Result | None) -> Json:
    """The answer to item/tool/call."""
    if result is None:
        return refusal_json("The tool call was not answered.")
    items: list[Json] = []
    for part in result.parts or (TextPart(""),):
        if isinstance(part, TextPart):
            items.append({"type": "inputText", "text": part.text})
        elif isinstance(part, ImagePart):
            items.append({"type": "inputImage", "imageUrl": image_url(part)})
        else:
            raise ToolwireError("unsupported_value", f"Codex can not take a tool result of the type {part.kind!r}: text and images only.")
    return {"contentItems": items, "success": True}


def refusal_json(words: str) -> Json:
    return {"contentItems": [{"type": "inputText", "text": words}], "success": False}


# --- tools -------------------------------------------------------------------------------------------------------------------------------------


def tool_json(tool: ToolSpec) -> Json:
    schema = dict(tool.parameters) if tool.parameters.get("type") == "object" else {"properties": {}, **tool.parameters, "type": "object"}
    return {"type": "function", "name": tool.name, "description": tool.description, "inputSchema": schema}


def demand(choice: ToolChoice) -> str:
    """What stands in for `tool_choice: required`."""
    if choice.mode != "required":
        return ""
    return f"You must call the tool {choice.name} now." if choice.name else "You must call at least one of your tools now."


# --- the form of the answer ----------------------------------------------------------------------------------------------------------------------


def output_schema(output: OutputFormat) -> Mapping[str, Any] | None:
    """The schema that the provider can be held to. Codex always asks for it strictly, which providers refuse for a schema with open objects."""
    if output.type != "json_schema" or output.schema is None:
        return None
    return output.schema if output.strict or _closed(output.schema) else None


def output_words(output: OutputFormat) -> str:
    """What the model is told where it can not be held to a schema."""
    return "" if output.type == "text" or output_schema(output) is not None else output_prompt(output)


def _closed(schema: Any) -> bool:
    """Whether every object lists all its keys as required and takes no others."""
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


# --- names ------------------------------------------------------------
#
# Tool names that Codex does not take: some it refuses, some it drops without a word because they are its
# own. They travel under another name, there and back. Pure. Measured on 0.166: `exec_command` and
# `shell_command` as dynamic tools never reach the provider; `mcp__…` is refused; the rest must fit its
# pattern.

OWN = frozenset({"exec_command", "shell_command"})
_TAKEN = re.compile(r"(?!mcp__)[a-zA-Z0-9_-]{1,64}\Z")
_STRANGE = re.compile(r"[^a-zA-Z0-9_-]")


def renamed(turn: Turn) -> tuple[Turn, Mapping[str, str]]:
    """The turn with names that Codex takes, and the client's names by these."""
    names = {tool.name for tool in turn.tools}
    there = {name: _other(name, names) for name in sorted(names) if name in OWN or not _TAKEN.match(name)}
    if not there:
        return turn, {}
    choice = turn.tool_choice
    allowed = None if choice.allowed is None else tuple(there.get(name, name) for name in choice.allowed)
    return (
        replace(
            turn,
            tools=tuple(replace(tool, name=there.get(tool.name, tool.name)) for tool in turn.tools),
            tool_choice=replace(choice, name=there.get(choice.name, choice.name) if choice.name else None, allowed=allowed),
            items=tuple(_item(item, there) for item in turn.items),
        ),
        {other: name for name, other in there.items()},
    )


def _other(name: str, names: set[str]) -> str:
    base = other = "client_" + _STRANGE.sub("_", name)[:48]
    number = 2
    while other in names:
        other, number = f"{base}_{number}", number + 1
    names.add(other)
    return other


def _item(item: Item, there: Mapping[str, str]) -> Item:
    return replace(item, name=there[item.name]) if isinstance(item, Call) and item.name in there else item


class RenamedRun:
    """A live run whose calls bear the client's own names again."""

    def __init__(self, live: LiveRun, back: Mapping[str, str]) -> None:
        self._live = live
        self._back = back

    @property
    def pending(self) -> tuple[str, ...]:
        return self._live.pending

    async def segment(self) -> AsyncGenerator[Batch, None]:
        segment = self._live.segment()
        try:
            async for batch in segment:
                yield [
                    replace(event, name=self._back[event.name]) if isinstance(event, CallBegin) and event.name in self._back else event
                    for event in batch
                ]
        finally:
            await segment.aclose()

    async def answer(self, results: Mapping[str, Result]) -> None:
        await self._live.answer(results)

    async def cancel(self) -> None:
        await self._live.cancel()

"""Turn → what the bridge takes, and a client's result → what an agent gets. Pure.

The client's tools go in as they are, as custom tools. Cursor's own tools are left out: the group `mcp` is what reaches custom tools, and without
tools the list is empty. No settings of the person's are read, and the folder is empty.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from toolwire.backends.agents.history import words
from toolwire.backends.cursor.options import CursorOptions
from toolwire.turn import ImagePart, Part, Result, ToolSpec

CUSTOM_TOOLS = "mcp"
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_DATA = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+-]+=[^;,]*)*(;base64)?,(.*)", re.DOTALL)


def create_agent(id: str, options: CursorOptions, key: str, tools: Iterable[ToolSpec], work: Path) -> dict[str, Any]:
    """The body of CreateAgent. The agent's id is ours, so that its calls are known from the first on."""
    custom = {tool.name: _tool(tool) for tool in tools}
    model: dict[str, Any] = {"id": options.model}
    if options.params:
        model["params"] = [{"id": id, "value": value} for id, value in options.params.items()]
    local: dict[str, Any] = {"cwd": [str(work)], "sandboxOptions": {"enabled": options.sandbox}}
    if custom:
        local["customTools"] = custom
    agent = {"agentId": id, "model": model, "local": local, "tools": {"names": [CUSTOM_TOOLS] if custom else []}}
    return {"options": {**agent, "apiKey": key} if key else agent}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    definition: dict[str, Any] = {"inputSchema": dict(tool.parameters) or dict(NO_PARAMETERS)}
    if tool.description:
        definition["description"] = tool.description
    return definition


def send(agent: str, text: str, images: Iterable[ImagePart] = ()) -> dict[str, Any]:
    """The body of Send."""
    message: dict[str, Any] = {"text": text}
    pictures = [{"data": {"data": data, "mimeType": kind}} for data, kind in filter(None, map(inline, images))]
    if pictures:
        message["images"] = pictures
    return {"agentId": agent, "message": message, "options": {"enableDeltas": True}}


def content(result: Result) -> dict[str, Any]:
    """What the agent gets as its call's result."""
    return {"content": [_part(part) for part in result.parts] or [_text("")], "isError": False}


def refusal(message: str) -> dict[str, Any]:
    """The error result of a call that is not the client's to answer."""
    return {"content": [_text(message)], "isError": True}


def _part(part: Part) -> dict[str, Any]:
    found = inline(part) if isinstance(part, ImagePart) else None
    return {"type": "image", "data": found[0], "mimeType": found[1]} if found else _text(words((part,)))


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def inline(image: ImagePart) -> tuple[str, str] | None:
    """Base64 and MIME type of an image that is there; None for one that lies elsewhere."""
    found = _DATA.fullmatch(image.url or "")
    if found is None:
        return None
    if found[2]:
        try:
            base64.b64decode(found[3], validate=True)
        except (binascii.Error, ValueError):
            return None
        return found[3], found[1]
    return base64.b64encode(unquote_to_bytes(found[3])).decode(), found[1]

"""Writes a conversation as a prompt for an agent, and computes the conversation's fingerprint. Pure.

A new session gets one prompt: the instructions, the conversation so far, and what to answer now. A session
that already has the conversation, found by its fingerprint, gets only the new messages.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote_to_bytes

from toolwire.core.turn import (
    Call,
    ImagePart,
    Item,
    Message,
    OtherPart,
    Part,
    Reasoning,
    Result,
    TextPart,
    ToolChoice,
    Turn,
)

SPEAKERS = {"user": "User", "assistant": "Assistant", "system": "System", "developer": "System"}
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+-]+=[^;,]*)*(;base64)?,(.*)", re.DOTALL)


def plain_text(parts: Iterable[Part]) -> str:
    """The text of a message or a result, with a placeholder for everything else."""
    out = []
    for part in parts:
        if isinstance(part, TextPart):
            out.append(part.text)
        else:
            out.append(f"[{part.kind}]" if isinstance(part, OtherPart) else "[image]")
    return "\n".join(out)


def images(items: Iterable[Item]) -> list[ImagePart]:
    """The images in the order in which `plain_text` mentions them."""
    spoken = (item for item in items if isinstance(item, Message | Result))
    return [part for item in spoken for part in item.parts if isinstance(part, ImagePart)]


def inline(image: ImagePart) -> tuple[str, str] | None:
    """Base64 and MIME type of a data URL; None for any other image."""
    found = _DATA_URL.fullmatch(image.url or "")
    if found is None:
        return None
    kind, encoded, data = found.groups()
    if not encoded:
        return base64.b64encode(unquote_to_bytes(data)).decode(), kind
    try:
        base64.b64decode(data, validate=True)
    except ValueError:
        return None
    return data, kind


# --- prompts ---


def news(items: Sequence[Item]) -> tuple[Item, ...]:
    """The items after the assistant's last one."""
    for index in range(len(items) - 1, -1, -1):
        item = items[index]
        if isinstance(item, Call | Reasoning) or (isinstance(item, Message) and item.role == "assistant"):
            return tuple(items[index + 1 :])
    return tuple(items)


def fresh_prompt(turn: Turn) -> str:
    system, spoken = [turn.instructions], []
    for item in turn.items:
        if isinstance(item, Message) and item.role in ("system", "developer"):
            system.append(plain_text(item.parts))
        else:
            spoken.append(item)
    instructions = "\n\n".join(filter(None, (*system, demand(turn.tool_choice))))
    blocks = [f"<instructions>\n{instructions}\n</instructions>"] if instructions else []
    if len(spoken) == 1 and isinstance(spoken[0], Message):
        return "\n\n".join([*blocks, plain_text(spoken[0].parts)])
    blocks += ["The conversation so far:", *_transcript(spoken)]
    if spoken and isinstance(spoken[-1], Result):
        blocks.append("Go on from these results.")
    return "\n\n".join(blocks)


def next_prompt(turn: Turn) -> str:
    """What is new, for a session that had the rest."""
    fresh = [plain_text(item.parts) for item in news(turn.items) if isinstance(item, Message)]
    return "\n\n".join(filter(None, [*fresh, demand(turn.tool_choice)]))


def _transcript(items: Iterable[Item]) -> Iterable[str]:
    names: dict[str, str] = {}
    for item in items:
        if isinstance(item, Message):
            text = plain_text(item.parts) or item.refusal
            if text:
                yield f"{SPEAKERS[item.role]}: {text}"
        elif isinstance(item, Call):
            names[item.call_id] = item.name
            yield f"Assistant: [called tool {item.name}, id {item.call_id}: {item.arguments or '{}'}]"
        elif isinstance(item, Result):
            name = item.name or names.get(item.call_id, "?")
            yield f"[result of tool {name}, id {item.call_id}]: {plain_text(item.parts)}"


def demand(choice: ToolChoice) -> str:
    """Asks for a call in words, because agents have no `tool_choice`."""
    if choice.mode != "required":
        return ""
    return f"You must call {f'the tool {choice.name}' if choice.name else 'one of your tools'} now."


# --- fingerprints ---

Entry = tuple[str, ...]


def entries(items: Iterable[Item]) -> list[Entry]:
    """The conversation without ids, reasoning and message boundaries, which clients do not repeat exactly.

    Clients differ in how they order the texts and calls of one step: here the texts come first.
    """
    out: list[Entry] = []
    calls: list[Entry] = []
    for item in items:
        if isinstance(item, Call):
            calls.append(call_entry(item.name, item.arguments))
            continue
        if isinstance(item, Result) or (isinstance(item, Message) and item.role != "assistant"):
            out += calls
            calls.clear()
        if isinstance(item, Message):
            _add(out, "system" if item.role == "developer" else item.role, _content(item.parts))
        elif isinstance(item, Result):
            out.append(result_entry(item))
    return [*out, *calls]


def _add(entries: list[Entry], role: str, text: str) -> None:
    if text and entries and entries[-1][0] == role:
        entries[-1] = (role, entries[-1][1] + "\n" + text)
    elif text:
        entries.append((role, text))


def _content(parts: Iterable[Part]) -> str:
    """Like `plain_text`, but different images differ."""
    return "\n".join(
        part.text if isinstance(part, TextPart) else f"[{_hash(asdict(part))}]" for part in parts
    )


def result_entry(result: Result) -> Entry:
    return ("result", _content(result.parts))


def call_entry(name: str, arguments: str) -> Entry:
    with suppress(ValueError, RecursionError):
        arguments = json.dumps(json.loads(arguments or "{}"), sort_keys=True)
    return ("call", name, arguments)


def known_part(turn: Turn) -> list[Entry]:
    """The conversation that a session must have had to get only the news."""
    return entries(turn.items[: len(turn.items) - len(news(turn.items))])


def fingerprint(turn: Turn, conversation: Sequence[Entry]) -> str:
    """Identifies a conversation with the turn's caller, model, instructions, tools and output."""
    tools = sorted(
        (tool.name, tool.description, json.dumps(tool.parameters, sort_keys=True, default=str))
        for tool in turn.offered()
    )
    sampling = (turn.sampling.effort, turn.output.type, turn.output.schema)
    return _hash([turn.caller, turn.model, turn.instructions, tools, sampling, list(conversation)])


def _hash(facts: Any) -> str:
    encoded = json.dumps(facts, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    return hashlib.sha256(encoded).hexdigest()

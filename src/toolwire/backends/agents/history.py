"""Writes a conversation as a prompt for an agent, and computes the conversation's fingerprint.

A new session gets one prompt: the instructions, the conversation so far, and the message to answer. A session
that already has the conversation is found by the fingerprint, and gets only the new messages. The functions
have no side effects.
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
    """Returns the text of the parts, with a placeholder for each image or other part."""
    out = []
    for part in parts:
        if isinstance(part, TextPart):
            out.append(part.text)
        else:
            out.append(f"[{part.kind}]" if isinstance(part, OtherPart) else "[image]")
    return "\n".join(out)


def images(items: Iterable[Item]) -> list[ImagePart]:
    """Returns the images of messages and results, in the order of their placeholders in `plain_text`."""
    spoken = (item for item in items if isinstance(item, Message | Result))
    return [part for item in spoken for part in item.parts if isinstance(part, ImagePart)]


def inline(image: ImagePart) -> tuple[str, str] | None:
    """Returns the base64 data and MIME type of a data URL, or None for any other image."""
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
    """Returns the items after the last message, call or reasoning of the assistant."""
    for index in range(len(items) - 1, -1, -1):
        item = items[index]
        if isinstance(item, Call | Reasoning) or (isinstance(item, Message) and item.role == "assistant"):
            return tuple(items[index + 1 :])
    return tuple(items)


def fresh_prompt(turn: Turn) -> str:
    """Returns the first prompt of a new session, with the whole conversation."""
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
    """Returns the new messages as a prompt, for a session that already has the earlier ones."""
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
    """Returns a sentence that asks for a tool call, because agents have no `tool_choice`.

    Returns "" if no call is required.
    """
    if choice.mode != "required":
        return ""
    return f"You must call {f'the tool {choice.name}' if choice.name else 'one of your tools'} now."


# --- fingerprints ---

Entry = tuple[str, ...]


def entries(items: Iterable[Item]) -> list[Entry]:
    """Returns the conversation in a form that stays the same when a client sends the conversation again.

    The form has no ids, no reasoning and no message boundaries, because clients do not repeat them exactly.
    Clients also change the order of texts and calls within a step, so the form always has the texts first.
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
    """Returns the text of the parts like `plain_text`, but with a hash of each image as its placeholder."""
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
    """Returns the earlier part of the conversation, without the new messages.

    A session that has exactly this part can continue the conversation.
    """
    return entries(turn.items[: len(turn.items) - len(news(turn.items))])


def fingerprint(turn: Turn, conversation: Sequence[Entry]) -> str:
    """Returns a hash of everything that must be equal to continue a conversation in its session.

    The hash covers the conversation itself, and the turn's caller, model, instructions, tools and output
    options.
    """
    tools = sorted(
        (tool.name, tool.description, json.dumps(tool.parameters, sort_keys=True, default=str))
        for tool in turn.offered()
    )
    sampling = (turn.sampling.effort, turn.output.type, turn.output.schema)
    return _hash([turn.caller, turn.model, turn.instructions, tools, sampling, list(conversation)])


def _hash(facts: Any) -> str:
    encoded = json.dumps(facts, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    return hashlib.sha256(encoded).hexdigest()

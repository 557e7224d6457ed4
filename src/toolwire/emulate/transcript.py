"""The history as a model without tools reads it: messages only, calls and results as text with their ids.

Calls stand in the assistant's own words, in the form that the prompt teaches; results come as the user's messages, in call order. Our own
markers inside a tool's output are broken, so that a model that copies them copies no call. Pure; standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from toolwire.emulate.dialects import DIALECTS
from toolwire.emulate.form import Form
from toolwire.emulate.freeform import wrap
from toolwire.turn import Call, ImagePart, Message, OtherPart, Part, Reasoning, Result, Role, TextPart, Turn

_MARKERS = re.compile(r"<(?=/?(?:tool_call|tool_result|use_tool)\b)")
_SHORT = 3  # markers up to this long, such as a brace, are ordinary text
_PLAIN = re.compile(r"[\w.:|-]+\Z")  # what may stand between the quotes of an attribute


def broken(text: str, dialect: str = "sentinel") -> str:
    """A tool's output with every marker that could begin a call, ours or one of the dialect that is taught, broken by a backslash."""
    text = _MARKERS.sub(r"<\\", text)
    for opener in DIALECTS[dialect].openers if dialect in DIALECTS else ():
        if len(opener.marker) > _SHORT and "{" not in opener.marker:
            text = text.replace(opener.marker, opener.marker[0] + "\\" + opener.marker[1:])
    return text


def _result_parts(result: Result, name: str | None, form: Form) -> Iterator[Part]:
    """One result as one block; images follow it, since text can only point at them."""
    words = []
    images: list[Part] = []
    for part in result.parts:
        if isinstance(part, TextPart):
            words.append(broken(part.text, form.dialect))
        elif isinstance(part, ImagePart):
            images.append(part)
            words.append("[image]")
        elif isinstance(part, OtherPart):
            words.append(f"[{part.kind}]")
    named = f' name="{name}"' if name and _PLAIN.match(name) else ""
    id = result.call_id if _PLAIN.match(result.call_id) else "?"
    yield TextPart(f'<tool_result:{form.nonce} id="{id}"{named}>\n' + "\n".join(words) + f"\n</tool_result:{form.nonce}>")
    yield from images


def _messages(turn: Turn, form: Form) -> Iterator[Message]:
    names: dict[str, str] = {}
    schemas = {tool.name: tool.parameters for tool in turn.tools if tool.kind == "function"}
    for item in turn.items:
        if isinstance(item, Message):
            role: Role = "system" if item.role == "developer" else item.role
            parts = item.parts
            if item.refusal:
                parts = (*parts, TextPart(item.refusal))
            if parts:
                yield Message(role, parts)
        elif isinstance(item, Call):
            names[item.call_id] = item.name
            arguments = wrap(item.arguments) if item.kind == "custom" else item.arguments
            yield Message("assistant", (TextPart(form.write(item.name, arguments, schemas.get(item.name))),))
        elif isinstance(item, Result):
            yield Message("user", tuple(_result_parts(item, item.name or names.get(item.call_id), form)))
        else:
            assert isinstance(item, Reasoning)  # thoughts of an earlier turn are not repeated: only the provider that made them could use them


def _join(parts: list[Part]) -> tuple[Part, ...]:
    """Neighbouring texts become one, a blank line between them."""
    out: list[Part] = []
    for part in parts:
        last = out[-1] if out else None
        if isinstance(part, TextPart) and isinstance(last, TextPart):
            out[-1] = TextPart(f"{last.text}\n\n{part.text}" if last.text and part.text else last.text + part.text)
        else:
            out.append(part)
    return tuple(out)


def transcript(turn: Turn, prompts: Iterable[str], form: Form) -> tuple[Message, ...]:
    """The whole request as alternating messages: one system message with the client's own words first, then what Toolwire adds."""
    head: list[Part] = [TextPart(turn.instructions)] if turn.instructions else []
    groups: list[tuple[Role, list[Part]]] = []
    for message in _messages(turn, form):
        if message.role == "system" and not groups:
            head += message.parts
        elif groups and groups[-1][0] == message.role:
            groups[-1][1].extend(message.parts)
        else:
            groups.append((message.role, list(message.parts)))
    head += [TextPart(prompt) for prompt in prompts if prompt]
    system = [Message("system", _join(head))] if head else []
    return (*system, *(Message(role, _join(parts)) for role, parts in groups))


def text_only(turn: Turn, messages: tuple[Message, ...]) -> Turn:
    """The turn as a backend without tools gets it."""
    return replace(turn, instructions=None, items=messages, tools=(), tool_choice=replace(turn.tool_choice, mode="none", name=None, allowed=None))

"""What was said in a turn, for those who are allowed to see it: the debug log, and traces whose settings ask for it.

Nobody keeps it unless somebody wants it (`Gateway.contents_wanted`). It is bounded: beyond `MOST` characters the rest is counted, not kept.
"""

from __future__ import annotations

from typing import Any

from toolwire.backends.base import Batch
from toolwire.events import CallArgs, CallBegin, Text, Thought
from toolwire.turn import Call, ImagePart, Message, Part, Reasoning, Result, TextPart, Turn

MOST = 64 * 1024


class Contents:
    """One turn's. `saw` is told every batch that goes out; `asked` and `said` are lists of messages in the form of OpenTelemetry's conventions."""

    def __init__(self) -> None:
        self.left_out = 0
        self._room = MOST
        self._texts: dict[tuple[int, str], list[str]] = {}
        self._calls: dict[tuple[int, int], dict[str, Any]] = {}

    def saw(self, batch: Batch, choice: int) -> None:
        for event in batch:
            if isinstance(event, Text | Thought):
                self._texts.setdefault((choice, "text" if isinstance(event, Text) else "reasoning"), []).append(self._kept(event.text))
            elif isinstance(event, CallBegin):
                self._calls[(choice, event.index)] = {"type": "tool_call", "id": event.id, "name": event.name, "arguments": []}
            elif isinstance(event, CallArgs) and (choice, event.index) in self._calls:
                self._calls[(choice, event.index)]["arguments"].append(self._kept(event.delta))

    def said(self) -> list[dict[str, Any]]:
        choices: dict[int, list[dict[str, Any]]] = {}
        for (choice, kind), pieces in self._texts.items():
            choices.setdefault(choice, []).append({"type": kind, "content": "".join(pieces)})
        for (choice, _), call in self._calls.items():
            choices.setdefault(choice, []).append({**call, "arguments": "".join(call["arguments"])})
        return [{"role": "assistant", "parts": parts} for _, parts in sorted(choices.items())]

    def asked(self, turn: Turn) -> list[dict[str, Any]]:
        """The request's own messages, the last ones first to be kept."""
        out: list[dict[str, Any]] = []
        room = MOST
        for item in reversed(turn.items):
            message = _message(item)
            room -= len(str(message))
            if room < 0:
                break
            out.append(message)
        return out[::-1]

    def _kept(self, text: str) -> str:
        kept = text[: self._room]
        self._room -= len(kept)
        self.left_out += len(text) - len(kept)
        return kept


def _message(item: Any) -> dict[str, Any]:
    if isinstance(item, Message):
        return {"role": item.role, "parts": [_part(part) for part in item.parts]}
    if isinstance(item, Call):
        return {"role": "assistant", "parts": [{"type": "tool_call", "id": item.call_id, "name": item.name, "arguments": item.arguments}]}
    if isinstance(item, Result):
        said = "".join(part.text for part in item.parts if isinstance(part, TextPart))
        return {"role": "tool", "parts": [{"type": "tool_call_response", "id": item.call_id, "response": said}]}
    assert isinstance(item, Reasoning)
    return {"role": "assistant", "parts": [{"type": "reasoning", "content": "".join((*item.summary, *item.content))}]}


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "content": part.text}
    if isinstance(part, ImagePart):
        url = part.url or ""
        return {"type": "uri", "modality": "image", "uri": url if not url.startswith("data:") else f"data:… ({len(url)} characters)"}
    return {"type": part.kind}

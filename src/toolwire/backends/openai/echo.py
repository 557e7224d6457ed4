"""The beginning of an answer that was given to the server as the assistant's last message. Some servers (llama.cpp since 2026) repeat it in front of
what they add, others do not: it is taken away where it stands."""

from __future__ import annotations

from toolwire.events import Event, Text
from toolwire.turn import Message, TextPart, Turn


def given_beginning(turn: Turn) -> str:
    """What the turn's last message makes the answer begin with."""
    last = turn.items[-1] if turn.items else None
    if not isinstance(last, Message) or last.role != "assistant":
        return ""
    return "".join(part.text for part in last.parts if isinstance(part, TextPart))


class Echo:
    """Holds text back only as long as it may be the beginning that was given."""

    def __init__(self, beginning: str) -> None:
        self._beginning = beginning
        self._held = ""

    def feed(self, batch: list[Event]) -> list[Event]:
        if not self._beginning:
            return batch
        out: list[Event] = []
        for at, event in enumerate(batch):
            if isinstance(event, Text):
                self._held += event.text
                if len(self._held) < len(self._beginning) and self._beginning.startswith(self._held):
                    continue
                out += self._release(self._held.removeprefix(self._beginning))
            else:
                out += self._release(self._held)
            return [*out, *(batch[at + 1 :] if isinstance(event, Text) else batch[at:])]
        return out

    def _release(self, text: str) -> list[Event]:
        self._beginning = self._held = ""
        return [Text(text)] if text else []

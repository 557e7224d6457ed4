"""Stop sequences of a turn whose calls are text: they end the answer's text and never a call, which the backend could not tell apart.

The first sequence to be complete holds, of two that end together the longer one, so that it does not matter how the text was cut into pieces. Only
what may be the beginning of one waits. Pure; standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable

from toolwire.events import CallArgs, CallEnd, Event, Finish, Text, Usage

_PASSING = (Usage, CallArgs, CallEnd)


class Stops:
    def __init__(self, sequences: Iterable[str]) -> None:
        self._sequences = tuple(filter(None, sequences))
        self._held = ""

    def feed(self, batch: list[Event]) -> list[Event]:
        """The events that go on; where a sequence is found, `Finish` is the last of them."""
        out: list[Event] = []
        for place, event in enumerate(batch):
            if isinstance(event, Text):
                text, found = self._read(event.text)
                out += [Text(text)] if text else []
                if found:
                    return [*out, *(later for later in batch[place:] if isinstance(later, Usage)), Finish("stop")]
                continue
            if self._held and not isinstance(event, _PASSING):
                out.append(Text(self._held))
                self._held = ""
            out.append(event)
        return out

    def _read(self, text: str) -> tuple[str, bool]:
        text = self._held + text
        ends = [(start + len(one), start) for one in self._sequences if (start := text.find(one)) >= 0]
        if ends:
            self._held = ""
            return text[: min(ends)[1]], True
        wait = max((size for one in self._sequences for size in range(1, len(one)) if text.endswith(one[:size])), default=0)
        self._held = text[len(text) - wait :]
        return text[: len(text) - wait], False

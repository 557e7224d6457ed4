"""Signed thoughts, kept until their call comes back.

Anthropic and Google sign what a model thought before a call, and want it back, unchanged, beside the call and its result. OpenAI's wire has no place
for it, so the backend remembers it by the call's id, in memory, with limits: the calls that came back least recently go first. What is forgotten is
made up for in `thinking.py` (Anthropic) and by the library's documented dummy signature (Google). Standard library only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_CALLS = 4096
MOST_CHARACTERS = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SignedThought:
    """A thought of the library's kind. `after_text`: the model had said something before it, since its last call."""

    part: Any
    after_text: bool = False

    @property
    def size(self) -> int:
        return len(self.part.content) + len(self.part.signature or "")


@dataclass(frozen=True, slots=True)
class Signed:
    """What was signed for a call: the thoughts before it, and details of the call itself. `name` is the tool's, which must be the same again."""

    name: str
    thoughts: tuple[SignedThought, ...] = ()
    details: Mapping[str, Any] | None = None
    provider_name: str | None = None

    @property
    def size(self) -> int:
        return 200 + sum(thought.size for thought in self.thoughts) + sum(len(str(value)) for value in (self.details or {}).values())


class CallMemory:
    """By call id. One for each configured model, so that a key of one provider never meets a signature of another."""

    def __init__(self, most_calls: int = MOST_CALLS, most_characters: int = MOST_CHARACTERS) -> None:
        self._kept: OrderedDict[str, Signed] = OrderedDict()
        self._most_calls, self._most_characters = most_calls, most_characters
        self._size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, call_id: str, signed: Signed) -> None:
        old = self._kept.pop(call_id, None)
        self._size += signed.size - (old.size if old is not None else 0)
        self._kept[call_id] = signed
        while self._kept and (len(self._kept) > self._most_calls or self._size > self._most_characters):
            self._size -= self._kept.popitem(last=False)[1].size

    def recall(self, call_id: str, name: str) -> Signed | None:
        found = self._kept.get(call_id)
        if found is None or found.name != name:
            return None
        self._kept.move_to_end(call_id)
        return found

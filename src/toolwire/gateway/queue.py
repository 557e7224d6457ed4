"""Bounded queues for models that run a limited number of turns at once, fair to all keys.

A turn that finds a free slot runs at once. Waiting turns are admitted one key after the other, and in order
of arrival within a key. So a key with many waiting turns delays only itself. When the queue is full and a key
with few waiting turns sends a turn, the gateway accepts this turn, and refuses the last waiting turn of the
key with the most waiting turns. A turn that ends or is cancelled frees its slot at once. Each process has its
own queues.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from toolwire.core.display import counted
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure
from toolwire.settings.types import LimitSettings

LONGEST_RETRY_S = 60.0
RECENT = 0.2
"""The weight of the last turn in the moving average of turn durations."""


@dataclass(slots=True)
class ModelQueue:
    """The queue of one model: the number of running turns, and the waiting turns by key.

    The first key in `keys` is admitted next. `took_s` is the average duration of a turn.
    """

    running: int = 0
    keys: OrderedDict[str, deque[QueueSlot]] = field(default_factory=OrderedDict)
    waiting: int = 0
    took_s: float = 1.0

    def add(self, place: QueueSlot) -> None:
        self.keys.setdefault(place.key_id, deque()).append(place)
        self.waiting += 1

    def remove(self, place: QueueSlot) -> None:
        places = self.keys[place.key_id]
        places.remove(place)
        self.waiting -= 1
        if not places:
            del self.keys[place.key_id]

    def following(self) -> QueueSlot:
        """Removes and returns the turn that is admitted next.

        If the key of this turn has more waiting turns, the key moves to the end of `keys`.
        """
        key_id, places = self.keys.popitem(last=False)
        place = places.popleft()
        self.waiting -= 1
        if places:
            self.keys[key_id] = places
        return place

    def of(self, key_id: str) -> int:
        return len(self.keys.get(key_id, ()))


class Queues:
    """The queues of all models.

    Call `join` before a turn runs, then `await slot.admitted()`, and `slot.leave()` when the turn has ended
    in any way.
    """

    def __init__(self, limits: LimitSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._at_once = limits.backend_concurrent
        self._most = limits.queue
        self._clock = clock
        self._lines: dict[str, ModelQueue] = {}

    def join(self, model: str, key_id: str) -> QueueSlot | None:
        """Returns a slot in the queue of `model`; None if there is no limit.

        If the queue is full, refuses a waiting turn of another key that has more waiting turns than this key
        would have. If there is no such key, raises an error: with status 429 if turns of this key already
        wait, otherwise with 503.
        """
        if not self._at_once:
            return None
        line = self._lines.setdefault(model, ModelQueue())
        place = QueueSlot(self, model, key_id)
        if line.running < self._at_once:
            self._start(line, place)
            return place
        if line.waiting >= self._most:
            self._crowd_out(line, place)
        line.add(place)
        return place

    def waiting(self, model: str) -> int:
        line = self._lines.get(model)
        return 0 if line is None else line.waiting

    def running(self, model: str) -> int:
        line = self._lines.get(model)
        return 0 if line is None else line.running

    def lines(self) -> list[tuple[str, int, int]]:
        """Returns the id of every busy model, and how many of its turns run and wait."""
        return [(model, line.running, line.waiting) for model, line in self._lines.items()]

    def _crowd_out(self, line: ModelQueue, newcomer: QueueSlot) -> None:
        """Makes room for `newcomer` by refusing the last waiting turn of the key with the most waiting turns.

        Raises an error if no other key has more waiting turns than the key of `newcomer` would have.
        """
        own = line.of(newcomer.key_id)
        longest = max(line.keys.values(), key=len, default=None)
        if longest is None or len(longest) <= own + 1:
            raise ToolwireError.of(self._refusal(line, newcomer.model, own))
        last = longest[-1]
        last.refuse(self._refusal(line, last.model, len(longest)))
        line.remove(last)

    def _refusal(self, line: ModelQueue, model: str, own: int) -> Failure:
        wait_s = min(LONGEST_RETRY_S, max(1.0, line.took_s * (line.waiting + 1) / self._at_once))
        runs = counted(line.running, "request runs", "requests run")
        waits = f"{line.waiting} {'waits' if line.waiting == 1 else 'wait'}"
        message = f"The model '{model[:80]}' is busy: {runs} and {waits}"
        message += f", {own} of them with this API key" if own else ""
        return Failure(
            "rate_limit" if own else "overloaded",
            f"{message}. Please try again in {math.ceil(wait_s)} s.",
            retry_after_s=wait_s,
        )

    def _start(self, line: ModelQueue, place: QueueSlot) -> None:
        line.running += 1
        place.start(self._clock())

    def left(self, place: QueueSlot, began: float | None) -> None:
        """Updates the queue after a turn has left; `began` is None if the turn was still waiting."""
        line = self._lines[place.model]
        if began is None:
            line.remove(place)
        else:
            line.running -= 1
            line.took_s += RECENT * (self._clock() - began - line.took_s)
        while line.waiting and line.running < self._at_once:
            self._start(line, line.following())
        if not line.running and not line.waiting:
            del self._lines[place.model]


class QueueSlot:
    """The slot of one turn in the queue of a model."""

    __slots__ = ("_began", "_changed", "_gone", "_queues", "_refused", "key_id", "model")

    def __init__(self, queues: Queues, model: str, key_id: str) -> None:
        self.model = model
        self.key_id = key_id
        self._queues = queues
        self._began: float | None = None
        self._refused: Failure | None = None
        self._gone = False
        self._changed: asyncio.Future[None] | None = None

    async def admitted(self) -> None:
        """Waits until the turn may run. Raises an error if the queue refused it in favour of another key."""
        if self._began is None and self._refused is None:
            self._changed = asyncio.get_running_loop().create_future()
            await self._changed
        if self._refused is not None:
            raise ToolwireError.of(self._refused)

    def leave(self) -> None:
        """Frees the slot. May be called more than once."""
        if not self._gone:
            self._gone = True
            self._queues.left(self, self._began)

    def again(self) -> QueueSlot | None:
        """Joins the same queue again, after `leave`. Raises the same errors as `Queues.join`."""
        return self._queues.join(self.model, self.key_id)

    def start(self, now: float) -> None:
        self._began = now
        self._wake()

    def refuse(self, failure: Failure) -> None:
        """Takes the slot away: the turn is no longer in the queue, and `admitted` raises `failure`."""
        self._refused, self._gone = failure, True
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

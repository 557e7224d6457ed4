"""The events of a turn whose backend holds its calls open: opened or resumed, and parked again when it ends with calls.

A resumed run that turns out to be dead before it said anything is replayed cold: the client can not tell, except by the header `x-toolwire-turn`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from toolwire.backends.base import Backend, Batch, LiveRun, ParkingBackend
from toolwire.core.events import CallBegin, Failure, Finish, Text
from toolwire.core.ids import IdFactory
from toolwire.core.turn import Result, Turn
from toolwire.gateway.attempts import interpreted
from toolwire.gateway.interpret import Interpreter
from toolwire.gateway.parked import Claim, Parking
from toolwire.gateway.plan import Plan
from toolwire.gateway.timeouts import Timeouts
from toolwire.observe.trace import Trace


@dataclass(frozen=True, slots=True)
class LiveTurn:
    """One choice of a turn on a parking backend. `turn` is the client's own; `tell` learns whether it was resumed or replayed."""

    plan: Plan
    backend: Backend
    parking: Parking
    turn: Turn
    key_id: str
    siblings: object
    ids: IdFactory
    tell: Callable[[str], None]
    trace: Trace | None = None
    timeouts: Timeouts | None = None

    async def events(self, claim: Claim | None) -> AsyncGenerator[Batch, None]:
        """What the client's answer is made of."""
        if claim is not None:
            alive = ended = False
            try:
                async with aclosing(self._segment(claim.live, claim.results)) as batches:
                    async for batch in batches:
                        if not alive and isinstance(batch[0], Failure) and batch[0].kind != "timeout":
                            break  # the run died while it was parked
                        alive = True
                        self.tell("resumed")
                        yield batch
                    ended = True
            finally:
                claim.park.given_up = not ended
                self.parking.release(claim.park)
            if alive:
                return
            self.tell("replayed")
        async with aclosing(self._segment(cast(ParkingBackend, self.backend).open(self.plan.turn), None)) as batches:
            async for batch in batches:
                yield batch

    async def _segment(self, live: LiveRun, results: Mapping[str, Result] | None) -> AsyncGenerator[Batch, None]:
        """One response of a live run. It is parked before its end goes out, so that the fastest client finds it; otherwise it is cancelled."""
        interpreter = Interpreter(self.plan, self.ids, mint=True)
        said: list[str] = []
        names: dict[str, str] = {}
        parked = False
        try:
            how = "open" if results is None else "resume"
            run = interpreted(_answered(live, results), interpreter, self.turn.model, self.trace, how, self.timeouts)
            async with aclosing(run) as batches:
                async for out in batches:
                    for event in out:
                        if isinstance(event, Text):
                            said.append(event.text)
                        elif isinstance(event, CallBegin):
                            names[event.id or ""] = event.name
                    if interpreter.ended and live.pending and isinstance(out[-1], Finish):
                        waiting = {own: backends for own, backends in interpreter.minted.items() if backends in live.pending}
                        turn_id = self.trace.id if self.trace is not None else ""
                        self.parking.park(live, waiting, self.key_id, self.turn, "".join(said), names, self.siblings, turn_id)
                        parked = True
                        if self.trace is not None:
                            self.trace.parks(list(waiting))
                        await self.parking.announce(waiting, self.key_id)
                    yield out
        finally:
            if not parked:
                await live.cancel()


async def _answered(live: LiveRun, results: Mapping[str, Result] | None) -> AsyncGenerator[Batch, None]:
    """The next segment, once the calls of the last one have their results."""
    if results is not None:
        await live.answer(results)
    async with aclosing(live.segment()) as batches:
        async for batch in batches:
            yield batch

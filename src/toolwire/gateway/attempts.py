"""One run, or two where a required call did not come or a strict call did not fit its schema.

`tool_choice` is enforced here for every backend that is not parked, whether the model's server was told of it
or not. While a call is required, nothing is sent before the first permitted call is seen. An answer without one is
asked for again once, with a corrective message; then the turn fails. A call is never invented. The tokens of both
attempts count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import perf_counter

from toolwire.backends.base import Backend, Batch
from toolwire.core.errors import ToolwireError
from toolwire.core.events import CallArgs, CallBegin, CallEnd, Dropped, Event, Failure, Finish, Text, Usage
from toolwire.core.ids import IdFactory
from toolwire.gateway.interpret import Interpreter
from toolwire.gateway.plan import Plan
from toolwire.gateway.timeouts import Timeouts
from toolwire.observe.tape import FULL, LARGE, passing
from toolwire.observe.trace import Trace

log = logging.getLogger("toolwire.gateway")
HELD_LIMIT = 4 * 1024 * 1024
"""Characters that may wait for a required call. A model that writes more does not make one."""
EVENT_SIZE = 100
"""What an event counts for besides its text."""
SLICE, LONGEST_S = 256, 0.001
"""A longer text is read in slices of so many characters; after so many seconds of it other turns run."""
CUT = Failure("backend_cut", "The model's answer broke off before it was complete.")


async def interpreted(
    run: AsyncGenerator[Batch, None],
    interpreter: Interpreter,
    model: str,
    trace: Trace | None = None,
    how: str = "run",
    timeouts: Timeouts | None = None,
) -> AsyncGenerator[Batch, None]:
    """A backend's run as the client's events, with every way to end badly turned into a `Failure`; nothing comes behind its end."""
    traced = trace.begin_run(how) if trace is not None else None
    run = run if timeouts is None else timeouts.watch(run)
    through = traced is None or traced.through
    failure, passes = CUT, interpreter.as_it_is and through
    pieces = None if through or trace is None or traced is None else trace.lane(traced.kind)
    try:
        try:
            async for batch in run:
                piece = len(batch) == 1 and type(batch[0]) is Text  # nearly always
                if piece and passes:
                    yield batch
                    continue
                kept = trace is not None and traced is not None and not (passes and passing(batch))
                if kept and piece and pieces is not None:
                    text: str = batch[0].text  # type: ignore[union-attr]
                    pieces += (perf_counter(), text, b"")
                    if len(pieces) >= FULL or len(text) > LARGE:
                        trace.pack(pieces)  # type: ignore[union-attr]
                elif kept:
                    trace.batch(traced, batch)  # type: ignore[union-attr, arg-type]
                out = await _in_slices(interpreter, batch) if any(map(_is_long, batch)) else interpreter.feed(batch)
                if kept and through and out and passing(out):
                    trace.remade += (perf_counter(),)  # type: ignore[union-attr]
                passes = through and interpreter.as_it_is
                if out:
                    yield out
                if interpreter.ended:
                    return
        finally:
            await run.aclose()
    except ToolwireError as error:
        failure = error.failure
    except Exception:
        log.exception("the run of model %s failed", model)
        failure = Failure("backend", "The model's backend failed.")
    if not interpreter.ended:
        if trace is not None and traced is not None:
            trace.batch(traced, [failure])
        yield interpreter.feed([failure])


def _is_long(event: Event) -> bool:
    return type(event) is Text and len(event.text) > SLICE


async def _in_slices(interpreter: Interpreter, batch: Batch) -> list[Event]:
    """Reads a batch with a long text in it. Other turns run in between: what reads calls may take several microseconds for a character."""
    out: list[Event] = []
    began = perf_counter()
    for event in batch:
        if isinstance(event, Text):
            for start in range(0, len(event.text), SLICE):
                if interpreter.as_it_is:  # the rest passes unread
                    out.append(Text(event.text[start:]))
                    break
                out += interpreter.feed([Text(event.text[start : start + SLICE])])
                if perf_counter() - began > LONGEST_S:
                    await asyncio.sleep(0)
                    began = perf_counter()
        else:
            out += interpreter.feed([event])
        if interpreter.ended:
            break
    return out


def attempts(
    plan: Plan, backend: Backend, ids: IdFactory, trace: Trace | None = None, timeouts: Timeouts | None = None
) -> AsyncGenerator[Batch, None]:
    """The events of a turn. Most turns have a single attempt, whose events pass as they come."""
    if plan.required or (plan.scanner is not None and any(tool.strict for tool in plan.scanner().registry.tools.values())):
        return _judged(plan, backend, ids, trace, timeouts)
    return interpreted(backend.run(plan.turn), Interpreter(plan, ids), plan.turn.model, trace, timeouts=timeouts)


class _Attempt:
    """Decides which events of an attempt are sent.

    Everything but usage waits while a call is required. In text that is scanned for calls, a strict call that does
    not fit ends the attempt.
    """

    def __init__(self, plan: Plan, before: Usage) -> None:
        """`before`: what earlier attempts used."""
        self._waiting = plan.required
        self._checks = plan.scanner is not None  # such calls come complete, in one batch
        self._before = self.used = before
        self._held: list[Event] = []
        self._size = 0
        self.answer: list[str] = []
        self.sent = False
        self.issues: tuple[str, ...] = ()
        self.without_call = False

    def feed(self, batch: list[Event]) -> list[Event]:
        out: list[Event] = []
        counted = [event for event in batch if isinstance(event, Usage)]
        if counted:
            batch = [event for event in batch if not isinstance(event, Usage)]
            self.used = self._before + counted[-1]
        for place, event in enumerate(batch):
            if isinstance(event, Text):
                self.answer.append(event.text)
            if isinstance(event, CallBegin):
                end = next((one for one in batch[place:] if isinstance(one, CallEnd) and one.index == event.index), None)
                if self._checks and end is not None and end.status == "invalid":
                    arguments = "".join(one.delta for one in batch[place:] if isinstance(one, CallArgs) and one.index == event.index)
                    self.answer.append(f'{{"name": "{event.name}", "arguments": {arguments}}}')
                    self.issues = end.issues or ("the arguments are not a JSON object",)
                    break
                self._waiting = False
                out += self._held
                self._held = []
            elif isinstance(event, Finish) and self._waiting:
                if event.reason == "stop" or event.reason == "tool_calls":
                    self.without_call = True
                    break
                self._waiting = False  # cut by length or a filter: what there is, is the answer
                out += self._held
            elif isinstance(event, Failure):
                self._waiting = False
            (self._held if self._waiting else out).append(event)
            if self._waiting:
                self._size += EVENT_SIZE + len(getattr(event, "text", ""))
                if self._size > HELD_LIMIT:
                    self.without_call = True
                    break
        self.sent = self.sent or bool(out)
        return [self.used, *out] if counted else out

    @property
    def rejected(self) -> bool:
        return self.without_call or bool(self.issues)


async def _judged(plan: Plan, backend: Backend, ids: IdFactory, trace: Trace | None, timeouts: Timeouts | None) -> AsyncGenerator[Batch, None]:
    turn, used = plan.turn, Usage(0, 0)
    for last in (False, True):
        interpreter, attempt = Interpreter(plan, ids), _Attempt(plan, used)
        async with aclosing(interpreted(backend.run(turn), interpreter, turn.model, trace, timeouts=timeouts)) as source:
            async for batch in source:
                out = attempt.feed(batch)
                if out:
                    yield out
                if attempt.rejected:
                    break
        if not attempt.rejected:
            return
        if last or attempt.sent:
            yield [_failure(plan, attempt)]
            return
        answer = "".join(attempt.answer)
        yield [Dropped("retry", max(1, len(answer)))]
        turn, used = plan.retry(answer, attempt.issues), attempt.used


def _failure(plan: Plan, attempt: _Attempt) -> Failure:
    if attempt.issues:
        return Failure("invalid_tool_call", f"The model's tool call does not fit the tool's strict schema: {attempt.issues[0]}")
    wanted = f"the tool '{plan.choice.name}'" if plan.choice.name else "a tool"
    return Failure("no_tool_call", f"tool_choice requires a call, but the model did not call {wanted}, also when asked again.", param="tool_choice")

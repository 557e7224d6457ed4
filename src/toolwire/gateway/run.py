"""Serves one turn: the only loop between a backend's run and the client.

    batch = await source.pull()  ─▶  block = stages.feed(batch)  ─▶  yield block

The loop reads one `RunSource` at a time. This is a run of the backend, or a round of calls that the gateway
runs itself (`rounds.py`). Another source follows in these cases:

- The first attempt lacks a required call, or its call does not fit a strict schema: a second attempt.
- The backend refuses the strategy: a run with another strategy.
- The model fails before the first byte: a run of a fallback model.
- The model calls tools that the gateway runs itself: the round of these calls, then the model's next run.

A failure before the first byte of the answer is an HTTP error. A later failure is sent in the stream.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar, cast

from toolwire.backends.base import Backend, Batch, LiveRun, ParkingBackend
from toolwire.core.errors import FALLS_BACK, ToolwireError
from toolwire.core.events import Failure
from toolwire.core.turn import Api, Turn
from toolwire.gateway.account import Account, headers, summary
from toolwire.gateway.answers import Answering, EventsAnswer, open_answer
from toolwire.gateway.parked import Claim, brings_results
from toolwire.gateway.plan import Plan, make_plan
from toolwire.gateway.queue import QueueSlot
from toolwire.gateway.records import Answer, Caller, OnSlow, TurnSummary
from toolwire.gateway.rounds import ServedTurn
from toolwire.gateway.served import TakenCalls
from toolwire.gateway.serving import go_on, serve
from toolwire.gateway.source import Opened, RunSource, Timeouts, failed, nothing, read_slowly, side_by_side
from toolwire.gateway.stages import NOTHING, RequiredCall, Stages
from toolwire.observe.trace import Trace
from toolwire.observe.tracing import Contents
from toolwire.wire.obsidian import ObsidianXml

if TYPE_CHECKING:
    from toolwire.gateway.pipeline import Gateway

log = logging.getLogger("toolwire.gateway")
T = TypeVar("T")


class Run:
    """One turn from its request to its summary: the state, the loop, and the answer it returns."""

    place: QueueSlot | None = None
    """The turn's slot in the model's queue; None if the model has no limit."""
    turn: Turn | None = None
    backend: Backend | None = None
    plan: Plan | None = None
    answer: Answering | None = None
    answering: EventsAnswer | None = None
    body: dict[str, Any]
    claim: Claim | None = None
    fell_back = False
    """Whether another model than the requested one answers."""
    model = backend_kind = _report = ""
    kind = "new"
    """The value of the header `x-toolwire-turn`: `new`, `resumed` or `replayed`."""
    first_byte: float | None = None
    served: ServedTurn | None = None
    """The MCP servers that the request names; None for nearly all requests."""
    committed = _observed = _asked_again = False
    used = NOTHING
    """The usage of the runs before the current one."""
    _ended: TurnSummary | None = None
    """The summary of the turn; None until the turn has ended."""
    _others: list[str] | None = None
    _asked = ""
    """The id of the requested model."""
    _decoded: Turn | None = None
    """The turn as it was decoded, before it was fitted to a backend."""
    _recorded = (0, 0)
    """How many ids and clock readings the trace had before the turn was planned."""

    def __init__(self, gateway: Gateway, api: Api, caller: Caller, trace: Trace | None = None) -> None:
        self._gateway, self.trace, self.caller = gateway, trace, caller
        self.api: Api = api
        if trace is None:
            self.ids, self.clock = gateway.ids, gateway.clock
            self.started, self.started_at = perf_counter(), time.time()
        else:
            self.ids, self.clock = trace.mint, trace.now
            self.started, self.started_at = trace.started, trace.at
        gateway.catalog.users.add(self)
        limits = gateway.settings.limits
        has_limits = limits.first_token_s or limits.idle_s or limits.total_s
        self.timeouts = Timeouts(limits) if has_limits else None
        self.account = Account(self.started, Contents() if gateway.contents_wanted else None)
        self.output_mode = caller.output_mode or gateway.settings.tools.output_mode
        self._siblings = object()  # the parked runs of all choices of this turn share this object

    def asks(self, turn: Turn, id: str) -> None:
        """Sets the requested model. Even if the turn is refused later, it counts for this model."""
        self.turn, self.model = turn, id if self.fell_back else turn.model
        self._asked = self._asked or id
        self.backend_kind = self._gateway.catalog.kind(id)
        if self.trace is not None:
            self.trace.backend_id, self.trace.backend_kind = id, self.backend_kind

    async def plans(self, turn: Turn, backend: Backend | None, failure: Failure | None) -> Plan:
        """Plans the turn, opens its answer and joins the model's queue.

        If the model is not available (`backend` is None) or not ready, the turn goes to the first fallback
        that is ready. If there is none, raises the last failure. `failure`: why there is no `backend`.
        """
        gateway, trace, key_id = self._gateway, self.trace, self.caller.key_id
        if trace is not None and self._decoded is None:
            self._recorded = len(trace.minted), len(trace.clock_readings)
        self._decoded = turn
        while True:
            if backend is not None:
                self.backend = backend
                try:
                    fitted = await gateway.fitted(self, turn, backend)
                    plan = self.planned(fitted)
                    self.answer = answer = open_answer(
                        fitted, self.body, gateway.store, key_id, self.ids, self.clock, self.caller.memory
                    )
                    if self.answering is not None:
                        self.answer = self.answering.beside(answer)
                    if gateway.settings.limits.backend_concurrent:
                        self.place = gateway.queues.join(backend.id, key_id)
                    return plan
                except ToolwireError as error:
                    failure = error.failure
            assert failure is not None
            backend = self._other(failure)
            if backend is None:
                raise ToolwireError.of(failure)

    def _other(self, failure: Failure) -> Backend | None:
        """Returns the next model to try after this failure; None if no model is left."""
        assert self._decoded is not None
        while failure.kind in FALLS_BACK and self._fallbacks():
            id = self._fallbacks().pop(0)
            found = self._gateway.catalog.find(id)
            if found is not None:
                log.info("model %s failed (%s): trying %s", self.model, failure.kind, id)
                self.fell_back, self.account.model = True, found.id
                if self.trace is not None:
                    self.trace.restart(*self._recorded)
                self.asks(self._decoded, found.id)
                return found
        return None

    def _fallbacks(self) -> list[str]:
        """Returns the ids of the models that may still answer instead of the requested one, in order."""
        if self._others is None:
            self._others = self._gateway.fallbacks(self._asked, self.caller.grant)
        return self._others

    def planned(self, turn: Turn) -> Plan:
        """Plans the turn. Called again after the backend refused a strategy, and after a round of calls."""
        assert self.backend is not None
        self.turn = turn
        plan = make_plan(turn, self.backend, self._gateway.settings.tools, self.ids)
        self.plan = plan = plan.by_fallback() if self.fell_back else plan
        if self.served is None or not self.served.has_run:  # later, the headers may have been sent already
            self._report = plan.report_header() if plan.report else ""
        if self.trace is not None:
            self.trace.planned(turn, plan, self._report)
        return plan

    def resume(self, claim: Claim | None, awaited: bool) -> None:
        """Sets the parked run that the turn continues, or None if the turn runs from its history.

        `awaited`: a parked run waited for a result in this request.
        """
        assert self.turn is not None
        self.claim = claim
        replayed = awaited or brings_results(self.turn.items)
        self._is("resumed" if claim is not None else "replayed" if replayed else "new")
        if claim is not None and self.trace is not None:
            self.trace.resumes(claim.park.turn_id, claim.waited_s)

    def _is(self, kind: str) -> None:
        self.kind = kind
        if self.trace is not None:
            self.trace.kind = kind

    def in_time(self, work: Awaitable[T]) -> Awaitable[T]:
        """Runs `work` within the time limit of the whole turn."""
        return work if self.timeouts is None else self.timeouts.whole(work)

    # --- the loop ---

    async def _loop(self, choice: int = 0, alone: bool = True) -> AsyncGenerator[bytes, None]:
        """Yields the blocks of one choice.

        `alone`: the answer has only this choice, so this loop also sends the end of the answer.
        """
        trace, grace_s = self.trace, self._gateway.settings.tools.stop_grace_ms / 1000
        try:
            refusal = await self.admission() if alone and self.place is not None else None
            source, stages = self._first(choice, refusal)
            stages.begin(parks=source.live is not None)
            try:
                while not stages.over:
                    following: tuple[RunSource, Stages] | None = None
                    batch: Batch | None
                    try:
                        batch = await (
                            source.pull(grace_s if stages.is_between_calls else 0.0)
                            if stages.is_between_calls or not source.is_plain
                            else anext(source.batches)
                        )
                    except Exception as error:
                        batch = source.ended_by(error)
                    if trace is not None:
                        trace.received(source.number, batch)
                    if batch is None:
                        block = stages.stop()
                    elif source.is_silent and batch and type(batch[0]) is Failure:
                        following, batch = await self._instead(source, batch[0], stages)
                        block = stages.feed(batch)
                    elif stages.is_direct or stages.is_quick(batch):
                        block = stages.feed(batch)
                    else:
                        block = await read_slowly(stages, batch)
                    source.is_silent = source.is_silent and not batch
                    if stages.over:
                        following, more = await self._over(source, stages)
                        block += more
                    if block:
                        self.first_byte = self.first_byte or perf_counter()
                        if trace is not None:
                            trace.sent(block)
                        yield block
                    if following is not None:
                        ended, (source, stages) = source, following
                        await ended.close()
                source.is_complete = stages.is_complete
            finally:
                await source.close()
            if alone:  # with several choices, `_loops` ends the turn once for all
                yield await self._end()
                assert self.answer is not None
                self.observe(self.answer.failure)
        except BaseException as error:
            if alone:
                self._broke_off(error)
            raise

    async def _loops(self, choices: int) -> AsyncGenerator[bytes, None]:
        """Yields the blocks of several choices as they arrive, then the end of the answer."""
        answer = self.answer
        assert answer is not None
        try:
            refusal = await self.admission() if self.place is not None else None
            if refusal is None:
                loops = side_by_side(partial(self._loop, alone=False), choices, answer)
                async with aclosing(loops) as blocks:
                    async for block in blocks:
                        yield block
            elif self.committed:
                answer.feed([refusal], 0)
            else:
                raise ToolwireError.of(refusal)
            yield await self._end()
            self.observe(answer.failure)
        except BaseException as error:
            self._broke_off(error)
            raise

    async def _end(self) -> bytes:
        """Returns the last block of the answer, after the answer was stored."""
        answer = self.answer
        assert answer is not None and self.turn is not None
        last = answer.finish(self.account.comment() if self.turn.stream else "")
        if answer.keep is not None:
            last = await answer.keep(last)
        self.first_byte = self.first_byte or perf_counter()
        if self.trace is not None:
            self.trace.sent(last)
        return last

    def stages(self, plan: Plan, choice: int) -> Stages:
        assert self.answer is not None
        tools = self._gateway.settings.tools
        xml = ObsidianXml(tools.delimiter) if self.output_mode == "obsidian-xml" else None
        alone = self.turn is not None and self.turn.n == 1
        if (served := self.served) is None:
            return Stages(plan, self.answer, self.account, self.ids, choice, alone, xml)
        more = (TakenCalls(served.names), served.opening, self.used, served.rounds)
        return Stages(plan, self.answer, self.account, self.ids, choice, alone, xml, *more)

    # --- which source is read ---

    def _first(self, choice: int, refusal: Failure | None) -> tuple[RunSource, Stages]:
        """Returns the turn's first `RunSource` with its stages. `refusal`: why the queue refused the turn."""
        assert self.plan is not None
        served = self.served
        if refusal is None and served is not None and served.approved is not None:
            return serve(self, served, served.approved, choice)
        stages = self.stages(self.plan, choice)
        if refusal is not None:
            return failed(refusal), stages
        return self.source(self.plan, self.plan.turn, choice, claim=self.claim), stages

    async def admission(self) -> Failure | None:
        """Waits for the queue. Returns None if the turn is admitted, or the failure if it is refused."""
        assert self.place is not None
        try:
            await self.in_time(self.place.admitted())
        except ToolwireError as error:
            return error.failure
        return None

    def source(
        self, plan: Plan, turn: Turn, choice: int, how: str = "", claim: Claim | None = None
    ) -> RunSource:
        """Starts a run of the backend, or continues the parked run of `claim`.

        `how` is the run's label in the journal.
        """
        assert self.backend is not None
        live = None
        if claim is not None:
            self.claim, live, how = None, claim.live, "resume"
        elif plan.strategy == "parked" and turn.generate:
            live, how = cast(ParkingBackend, self.backend).open(turn), how or "open"
        if live is not None:
            batches = live.segment()
        else:
            batches = self.backend.run(turn) if turn.generate else nothing()
        number = 0 if self.trace is None else self.trace.begin_run(how or "run", choice)
        return RunSource(turn.model, batches, number, live, claim, self.timeouts)

    async def _instead(
        self, source: RunSource, failure: Failure, stages: Stages
    ) -> tuple[tuple[RunSource, Stages] | None, Batch]:
        """Replaces a run that failed before its first event: returns another run with its `Stages`.

        If no other run is possible, returns None and a batch with the failure.
        """
        found = await self._replacement(source, failure, stages)
        if isinstance(found, Failure):
            return None, [found]
        instead, read_by = found
        read_by.begin(parks=instead.live is not None)
        return found, []

    async def _replacement(
        self, source: RunSource, failure: Failure, stages: Stages
    ) -> tuple[RunSource, Stages] | Failure:
        """Returns another run with its `Stages` after a failure, or the failure that the client gets."""
        assert self.turn is not None
        plan, choice = stages.plan, stages.choice
        if source.claim is not None and failure.kind != "timeout":  # the run died while it was parked
            self._is("replayed")
            return self.source(plan, plan.turn, choice), stages
        if failure.kind != "tools_unsupported":
            return await self._fall_back(failure, choice)
        try:
            again = self.planned(self.turn)
        except ToolwireError as error:  # the other strategy cannot serve the request
            return error.failure
        if (again.strategy, again.report) == (plan.strategy, plan.report):
            self.plan = plan
            return failure
        return self.source(again, again.turn, choice), self.stages(again, choice)

    async def _fall_back(self, failure: Failure, choice: int) -> tuple[RunSource, Stages] | Failure:
        """Returns a run of the next model that may answer instead; the failure if no model is left.

        The model changes only before the first byte: a client must not get the beginning of one model's
        answer and the end of another's. For the same reason, a turn with several choices keeps its model.
        """
        assert self.turn is not None and self._decoded is not None
        ran = self.served is not None and self.served.has_run
        sent = self.first_byte is not None or self._asked_again or ran
        if sent or self.turn.n > 1 or failure.kind not in FALLS_BACK or not self._fallbacks():
            return failure
        if self.place is not None:
            self.place.leave()
            self.place = None
        try:
            plan = await self.plans(self._decoded, None, failure)
        except ToolwireError as error:
            return error.failure
        refusal = await self.admission() if self.place is not None else None
        if refusal is not None:
            return await self._fall_back(refusal, choice)
        return self.source(plan, plan.turn, choice), self.stages(plan, choice)

    def _ask_again(self, rejected: RequiredCall, stages: Stages) -> RunSource:
        """Starts the second attempt, after a call was missing or did not fit its strict schema."""
        assert self.plan is not None
        self._asked_again = True
        self.plan = self.plan.retried()
        self._report = self.plan.report_header()
        if self.trace is not None:
            self.trace.report = self._report
        turn = stages.plan.retry(rejected.answer, rejected.issues)
        return self.source(stages.plan, turn, stages.choice, "retry")

    async def _over(self, source: RunSource, stages: Stages) -> tuple[tuple[RunSource, Stages] | None, bytes]:
        """Handles the end of a run: parks it, tries again, runs calls of MCP servers, or fails.

        Returns the next source with its stages (None if there is none) and a last block for the client. If
        the answer has failed and nothing of it was sent yet, raises the failure.
        """
        following, block = None, b""
        if (rejected := stages.rejected) is None:
            if (taken := stages.taken) is not None and taken.held is not None:
                following = await go_on(self, source, stages, taken)
            elif source.live is not None:
                await self._park(source, source.live, stages)
        elif stages.may_ask_again:
            again = self._ask_again(rejected, stages)
            following, block = (again, stages), stages.ask_again(again.live is not None)
        else:
            block = stages.fail(rejected.failure)
        assert self.answer is not None
        failure = self.answer.failure
        if failure is not None and self.first_byte is None and not self.committed:
            raise ToolwireError.of(failure)
        return following, block

    async def _park(self, source: RunSource, live: LiveRun, stages: Stages) -> None:
        """Parks the run if it has calls that wait for results.

        This happens before the end of the response is sent: a fast client may send the results at once.
        """
        if not stages.is_parkable or not live.pending:
            return
        assert self.turn is not None
        parking, key_id, trace = self._gateway.parking, self.caller.key_id, self.trace
        waiting = {own: theirs for own, theirs in stages.minted.items() if theirs in live.pending}
        turn_id = trace.id if trace is not None else ""
        parking.park(live, waiting, key_id, self.turn, stages.said, stages.names, self._siblings, turn_id)
        source.is_parked = True
        if trace is not None:
            trace.parks(list(waiting))
        await parking.announce(waiting, key_id)

    # --- a whole body, a stream ---

    async def answers(self, on_slow: OnSlow | None) -> Answer:
        """Returns the whole answer; for a stream, returns when its first block is known.

        If the model is slow, `on_slow` gets the headers of the stream before that.
        """
        assert self.turn is not None
        blocks = self._loop() if self.turn.n == 1 else self._loops(self.turn.n)
        if not self.turn.stream:
            body = b""
            async for block in blocks:
                body += block  # almost always one block, at the end
            return Answer(headers(self, self._ended), body=body)
        timer = asyncio.get_running_loop().call_later(
            self._gateway.settings.server.commit_after_s, self._commit, on_slow
        )
        try:
            first = await anext(blocks)
        finally:
            timer.cancel()
        return Answer(headers(self), stream=Opened(first, blocks))

    def _commit(self, on_slow: OnSlow | None) -> None:
        """Sends the headers of a stream whose first block is late.

        From now on, a failure is sent in the stream and not as an HTTP error.
        """
        if self.answer is not None and self.answer.failure is not None:
            return  # the failure becomes an HTTP error, and the run is being closed
        self.committed = True
        if self.trace is not None:
            self.trace.committed = True
        if on_slow is not None:
            on_slow(headers(self))

    # --- the end of a turn ---

    def _broke_off(self, error: BaseException) -> None:
        """Ends a turn whose answer is not complete, because `error` ended the loop."""
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            self.observe(None, cancelled=True)
        elif self.first_byte is not None:  # earlier failures are observed by `respond`
            self.observe(Failure("server", "The server had an error."))

    def final_report(self) -> str:
        """Returns the report, with the entries that are only known after the answer."""
        drops, repeats = self.account.drops_logprobs, self.account.repeats
        if (drops or repeats) and self.plan is not None:
            self._report = self.plan.as_answered(drops, repeats).report_header()
            if self.trace is not None:
                self.trace.report = self._report
        return self._report

    def observe(self, failure: Failure | None, cancelled: bool = False) -> None:
        """Ends the turn: releases what it holds, settles its limits and calls the observers.

        Only the first call has an effect.
        """
        if self._observed:
            return
        self._observed = True
        self._gateway.catalog.users.discard(self)
        if self.claim is not None:  # no source has read the parked run
            self._gateway.parking.drop(self.claim.park)
        if self.place is not None:
            self.place.leave()
        ran = self.plan is not None and (failure is None or self.first_byte is not None)
        usage = self.account.settled(ran, answered=failure is None)
        self._ended = ended = summary(self, failure, cancelled, usage)
        self._gateway.observed(ended)

"""One turn under way: the backend's events through policy into the encoder, as a whole body or as a stream, and what is told of it at the end.

Before the first byte of an answer a failure is an HTTP error (`ToolwireError`); after it, it is told in-band. Closing the stream cancels the run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from toolwire.backends.base import Backend, Batch
from toolwire.core.errors import ToolwireError, status_of
from toolwire.core.events import Dropped, Failure, Finish, Text, Usage
from toolwire.core.policy import Policy
from toolwire.core.turn import Api, Turn
from toolwire.gateway.account import Account
from toolwire.gateway.answers import ChatAnswer, ResponsesAnswer
from toolwire.gateway.attempts import attempts
from toolwire.gateway.choices import merged
from toolwire.gateway.grace import with_grace
from toolwire.gateway.live import LiveTurn
from toolwire.gateway.opened import Opened
from toolwire.gateway.parked import Claim, brings_results
from toolwire.gateway.plan import Plan, make_plan
from toolwire.gateway.queue import Place
from toolwire.gateway.records import Answer, Caller, OnSlow, TurnSummary
from toolwire.gateway.timeouts import Timeouts
from toolwire.observe.tape import FULL, LARGE, OUT
from toolwire.observe.trace import Trace
from toolwire.observe.tracing import Contents
from toolwire.wire.obsidian import ObsidianXml

if TYPE_CHECKING:
    from toolwire.gateway.pipeline import Gateway

log = logging.getLogger("toolwire.gateway")
T = TypeVar("T")


class Run:
    """One turn under way: what it needs on its path, and what is told about it at the end."""

    def __init__(self, gateway: Gateway, api: Api, caller: Caller, trace: Trace | None = None) -> None:
        self._gateway = gateway
        self.trace = trace
        self.ids, self.clock = (gateway.ids, gateway.clock) if trace is None else trace.watch(gateway.ids, gateway.clock)
        self._api: Api = api
        self._caller = caller
        self._started, self._started_at = (perf_counter(), time.time()) if trace is None else (trace.started, trace.at)
        self._timeouts = Timeouts.of(gateway.settings.limits)
        self.account = Account(self._started, Contents() if gateway.contents_wanted else None)
        self._output_mode = caller.output_mode or gateway.settings.tools.output_mode
        self._siblings = object()  # what the parks of all choices of this turn have in common
        self._first_byte: float | None = None
        self._committed = self._observed = False
        self.place: Place | None = None
        """Its place in the line of the model; None where the model takes as many turns as come."""
        self.turn: Turn | None = None
        self.plan: Plan | None = None
        self.answer: ChatAnswer | ResponsesAnswer | None = None
        self.claim: Claim | None = None
        self.model = self.backend_kind = ""
        self.kind = "new"
        """`new`, `resumed` or `replayed`, as the header `x-toolwire-turn` tells."""

    def decoded(self, turn: Turn) -> Turn:
        self.turn = turn
        if self.trace is not None:
            self.trace.decoded = turn
        return turn

    def asks(self, turn: Turn, backend: Backend) -> None:
        """The model that the turn names is there: from now on the turn is told as one of this model's, also where it is refused."""
        self.turn, self.model, self.backend_kind = turn, turn.model, self._gateway.catalog.kind(backend.id)

    def planned(self, turn: Turn, backend: Backend) -> Plan:
        """Decides how the turn is served, also when the way that was decided before was refused."""
        self.turn, trace = turn, self.trace
        if trace is not None:
            trace.offers += ((backend.strategy, backend.capabilities),)
        self.plan = plan = make_plan(turn, backend, self._gateway.settings.tools, self.ids)
        if trace is not None:
            trace.planned(turn, plan, plain=self._output_mode == "openai-json")
        return plan

    def resume(self, claim: Claim | None, awaited: bool) -> None:
        """The turn goes on with a parked run, or is run from its own history. `awaited`: a run waited for results that it brought."""
        assert self.turn is not None
        self.claim = claim
        self._tell("resumed" if claim is not None else "replayed" if awaited or brings_results(self.turn.items) else "new")
        if claim is not None and self.trace is not None:
            self.trace.resumes(claim.park.turn_id, claim.waited_s)

    # --- events: backend, attempts, policy -----------------------------------------------------------------------------------------------------

    async def _events(self, plan: Plan, backend: Backend, choice: int) -> AsyncGenerator[tuple[int, Batch], None]:
        """What one choice of the answer is made of. A backend that refuses tools, and knows another way from then on, is asked again in that way."""
        if self.turn is not None and not self.turn.generate:
            yield choice, [Usage(0, 0), Finish("stop")]
            return
        while True:
            refused = False
            policy = Policy(plan.rules)
            self.account.policies.append(policy)
            xml = ObsidianXml(self._gateway.settings.tools.delimiter) if self._output_mode == "obsidian-xml" else None
            grace = self._gateway.settings.tools.stop_grace_ms / 1000 if plan.rules.stop_after == "burst" else 0
            source = self._live(plan, backend) if plan.strategy == "parked" else attempts(plan, backend, self.ids, self.trace, self._timeouts)
            batches = with_grace(source, policy, grace) if grace else source
            try:
                async for batch in batches:
                    if policy.lets_text and xml is None and len(batch) == 1 and type(batch[0]) is Text:  # nearly always
                        yield choice, batch
                        continue
                    if batch and type(batch[0]) is Failure and batch[0].kind == "tools_unsupported":
                        try:
                            refused = self._replan(plan, backend)
                        except ToolwireError as error:  # the other way can not take what was sent
                            batch = [error.failure]
                        if refused:
                            break
                    elif batch and type(batch[0]) is Dropped and batch[0].kind == "retry":
                        self._retried()
                    batch = policy.feed(batch)
                    if policy.cut:
                        batch = [*batch, *policy.end()]
                    if xml is not None:
                        batch = xml.feed(batch)
                    yield choice, batch
                    if policy.cut:
                        return
            finally:
                await batches.aclose()
            if not refused:
                return
            self.account.policies.remove(policy)
            assert self.plan is not None
            plan = self.plan

    def _replan(self, plan: Plan, backend: Backend) -> bool:
        """Whether the backend now offers another way than the one it refused, be it the same one without a `tool_choice`."""
        assert self.turn is not None
        again = self.planned(self.turn, backend)
        if (again.strategy, again.report) == (plan.strategy, plan.report):
            self.plan = plan
            return False
        return True

    def _retried(self) -> None:
        """The model is asked once more: the report says so."""
        assert self.plan is not None
        self.plan = self.plan.retried()
        if self.trace is not None and self.trace.plans:
            self.trace.plans += (self.trace.plans[-1].retried(),)

    def _live(self, plan: Plan, backend: Backend) -> AsyncGenerator[Batch, None]:
        assert self.turn is not None
        claim, self.claim = self.claim, None
        key_id, parking = self._caller.key_id, self._gateway.parking
        return LiveTurn(plan, backend, parking, self.turn, key_id, self._siblings, self.ids, self._tell, self.trace, self._timeouts).events(claim)

    def abandon(self) -> None:
        """A parked run that was claimed and never went on is given up."""
        claim, self.claim = self.claim, None
        if claim is not None:
            self._gateway.parking.drop(claim.park)

    def _tell(self, kind: str) -> None:
        self.kind = kind
        if self.trace is not None:
            self.trace.kind = kind

    def _all_events(self, plan: Plan, backend: Backend, choices: int) -> AsyncGenerator[tuple[int, Batch], None]:
        all_events = merged([self._events(plan, backend, choice) for choice in range(choices)])
        return all_events if self.place is None else self._in_line(self.place, all_events)

    async def _in_line(self, place: Place, events: AsyncGenerator[tuple[int, Batch], None]) -> AsyncGenerator[tuple[int, Batch], None]:
        """The events, once the turn is admitted. The next one is when the last event is there, however long the client takes to read it."""
        try:
            async with aclosing(events):
                try:
                    await self.in_time(place.admitted())
                except ToolwireError as error:
                    yield 0, [error.failure]
                    return
                async for event in events:
                    yield event
        finally:
            place.leave()

    def in_time(self, work: Awaitable[T]) -> Awaitable[T]:
        """Work of this turn, within what the whole turn may take."""
        return work if self._timeouts is None else self._timeouts.whole(work)

    # --- a whole body --------------------------------------------------------------------------------------------------------------------------

    async def whole(self, plan: Plan, backend: Backend) -> Answer:
        answer, trace, account, abreast = self.answer, self.trace, self.account, self._gateway.abreast
        assert self.turn is not None and answer is not None
        abreast.turns += 1
        try:
            await abreast.step()
            with self._gateway.catalog.using(backend):
                batches = self._all_events(plan, backend, self.turn.n)
                try:
                    async for choice, batch in batches:
                        account.saw(batch, choice)
                        answer.fold(batch, choice)
                        if trace is not None:
                            trace.sent(choice, batch)
                finally:
                    await batches.aclose()
            if answer.failure is not None:
                raise ToolwireError.of(answer.failure)
            await abreast.step()
        finally:
            abreast.turns -= 1
        body = await answer.body()
        self._first_byte = perf_counter()
        if trace is not None:
            trace.whole = body
        self.observe(None)
        return Answer(self._headers(whole=True), body=body)

    # --- a stream ------------------------------------------------------------------------------------------------------------------------------

    async def stream(self, plan: Plan, backend: Backend, on_slow: OnSlow | None) -> Answer:
        """The stream, once its first block is there. Where the model is slow, `on_slow` gets the headers: from then on failures are in-band."""
        blocks = self._blocks(plan, backend)
        timer = asyncio.get_running_loop().call_later(self._gateway.settings.server.commit_after_s, self._commit, on_slow)
        try:
            first = await anext(blocks)
        finally:
            timer.cancel()
        return Answer(self._headers(whole=False), stream=Opened(first, blocks))

    def _commit(self, on_slow: OnSlow | None) -> None:
        if self.answer is not None and self.answer.failure is not None:
            return  # an HTTP error: its run is being closed
        self._committed = True
        if self.trace is not None:
            self.trace.committed = True
        if on_slow is not None:
            on_slow(self._headers(whole=False))

    async def _blocks(self, plan: Plan, backend: Backend) -> AsyncGenerator[bytes, None]:
        answer, trace, account = self.answer, self.trace, self.account
        assert self.turn is not None and answer is not None
        feed, say = answer.writer, answer.say
        alone, text_is_seen = self.turn.n == 1, account.wants_text
        pieces = None if trace is None else trace.lane(OUT)
        with self._streaming():
            with self._gateway.catalog.using(backend):
                batches = self._all_events(plan, backend, self.turn.n)
                try:
                    async for choice, batch in batches:
                        if alone and len(batch) == 1 and type(batch[0]) is Text and self._first_byte is not None:  # nearly always
                            text = batch[0].text
                            if text_is_seen:
                                account.saw(batch, choice)
                            block = say(text)
                            if pieces is not None:
                                pieces += (perf_counter(), text, block)
                                if len(pieces) >= FULL or len(block) > LARGE:
                                    trace.pack(pieces)  # type: ignore[union-attr]
                            if block:
                                yield block
                            continue
                        account.saw(batch, choice)
                        block, failure = feed(batch, choice), answer.failure
                        refused = failure is not None and not self._committed and self._first_byte is None
                        if trace is not None:
                            trace.sent(choice, batch, b"" if refused else block)
                        if failure is not None and refused:
                            raise ToolwireError.of(failure)
                        if block:
                            if self._first_byte is None:
                                self._first_byte = perf_counter()
                            yield block
                        if failure is not None:
                            break
                finally:
                    await batches.aclose()
            last = await answer.end(account.comment())
            if trace is not None:
                trace.sent(0, [], last)
            yield last
        self.observe(answer.failure)

    @contextmanager
    def _streaming(self) -> Iterator[None]:
        """Whatever ends a stream early is told, and a run that was claimed and did not go on, because its turn never came, is given up."""
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self.observe(None, cancelled=True)
            raise
        except Exception:
            if self._first_byte is not None:  # who waits for the first byte tells what went wrong before it
                self.observe(Failure("server", "The server had an error."))
            raise
        finally:
            self.abandon()

    # --- what is told ----------------------------------------------------------------------------------------------------------------------------

    def _headers(self, whole: bool) -> list[tuple[bytes, bytes]]:
        assert self.plan is not None
        report = self.plan.report_header()
        if whole and self.answer is not None and not self.answer.kept:
            report = "; ".join(filter(None, (report, "store=failed")))
        headers = [(b"x-toolwire-report", report.encode()), (b"x-toolwire-turn", self.kind.encode())]
        return [*headers, *self.account.headers()] if whole else headers

    def observe(self, failure: Failure | None, cancelled: bool = False) -> None:
        """The turn is over: its limits are settled, and who observes turns will be told, once."""
        if self._observed:
            return
        self._observed = True
        if self.place is not None:
            self.place.leave()
        ran = self.plan is not None and (failure is None or self._first_byte is not None)
        usage = self.account.settled(ran, answered=failure is None)
        took_s = perf_counter() - self._started
        self._gateway.told.soon(partial(self._summary, failure, cancelled, usage, took_s))

    def _summary(self, failure: Failure | None, cancelled: bool, usage: Usage, took_s: float) -> TurnSummary:
        account, turn, plan, caller, trace = self.account, self.turn, self.plan, self._caller, self.trace
        answer, first_byte = self.answer, self._first_byte
        count, truncated, _ = account.called()
        if trace is not None:
            trace.failure = failure
        return TurnSummary(
            request_id=caller.request_id,
            key_id=caller.key_id,
            api=self._api,
            model=self.model,
            backend=self.backend_kind,
            strategy="none" if plan is None else plan.strategy,
            stream=turn is not None and turn.stream,
            status=status_of(failure) if failure is not None and first_byte is None and not self._committed else 200,
            finish=account.finish,
            error_kind=failure.kind if failure is not None else None,
            tool_call_count=count,
            tool_call_names=account.call_names if count else (),
            tool_call_ids=tuple(account.call_ids),
            tool_call_truncated=truncated,
            output_mode=self._output_mode,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            first_byte_s=None if first_byte is None else first_byte - self._started,
            duration_s=took_s,
            report="" if plan is None else plan.report_header(),
            cancelled=cancelled,
            dropped=account.dropped,
            cached_tokens=usage.cached_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            kind=self.kind,
            key_name=caller.key_name,
            turn_id="" if trace is None else trace.id,
            answer_id="" if answer is None else answer.id,
            started_at=self._started_at,
            tool_call_s=tuple(account.call_times),
            trace_parent=caller.trace_parent,
            turn=turn,
            contents=account.contents,
            trace=trace,
            hold=None if account.ticket is None else account.ticket.hold,
        )

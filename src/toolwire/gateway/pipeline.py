"""The gateway: takes a request's bytes and returns the answer.

    bytes ─▶ decode ─▶ Turn ─▶ plan ─▶ backend run ─▶ events ─▶ stages ─▶ encode ─▶ bytes

`Gateway.respond` contains everything up to the run; the loop that reads the run is in `run.py`. A whole body
is built from the same events as a stream, so the two cannot disagree (law 3 in docs/architecture.md).
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import ref

from toolwire.access.keys import KeyGrant, no_model, not_available
from toolwire.access.limits import RateLimits, Ticket, estimate
from toolwire.access.usage import UsageBook
from toolwire.backends.base import Backend, CountingBackend, frames
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Event, Failure
from toolwire.core.ids import IdFactory, random_id
from toolwire.core.items import StoredItem
from toolwire.core.turn import Api, Turn
from toolwire.gateway.answers import EventsAnswer
from toolwire.gateway.approval_requests import ApprovalRequests, RequestTable
from toolwire.gateway.catalog import Catalog
from toolwire.gateway.compaction import Compaction, Seals, check_input
from toolwire.gateway.images import ImageFetcher, checked, fetched_images
from toolwire.gateway.parked import Parking
from toolwire.gateway.plan import make_plan
from toolwire.gateway.queue import Queues
from toolwire.gateway.records import JSON, Answer, Caller, OnSlow, TurnSummary
from toolwire.gateway.rounds import ServedTurn, unserved
from toolwire.gateway.run import Run
from toolwire.gateway.served import ServedTools
from toolwire.observe.journal import Journal
from toolwire.observe.trace import Trace
from toolwire.observe.tracing import Tracing, tracing_of
from toolwire.settings.types import ModelSettings, Settings
from toolwire.store.store import Store
from toolwire.wire import body as request_body
from toolwire.wire.chat import decode as decode_chat
from toolwire.wire.messages import decode as decode_messages
from toolwire.wire.responses import decode as decode_responses
from toolwire.wire.sse import encode

log = logging.getLogger("toolwire.gateway")
LARGE_BODY = 128 * 1024
CLAUDE = re.compile(r"(?i)claude|haiku\Z|sonnet\Z|opus\Z")
"""Matches the names of Anthropic's models.

If a request to the Messages API names such a model and the settings do not have it, the first model answers.
"""
__all__ = ["Answer", "Caller", "Gateway", "TurnSummary"]


class Gateway:
    """Serves turns with the configured models.

    A process has one gateway. Call `start` first and `close` last.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        store: Store | None = None,
        backends: Mapping[str, Backend] | None = None,
        ids: IdFactory = random_id,
        clock: Callable[[], float] = time.time,
        discover: Callable[[], Awaitable[Sequence[ModelSettings]]] | None = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.parking = Parking(settings.parked)
        self.images = ImageFetcher()
        self.seals = Seals(store)
        self.catalog = Catalog(settings.models, backends, settings.aliases, discover)
        self.usage = UsageBook(store, self.catalog)
        """Usage by key, model and hour."""
        self.limits = RateLimits(settings, self.usage)
        self.queues = Queues(settings.limits)
        self.served_tools: ServedTools | None = None
        """Runs the tools of MCP servers for clients; None if clients may use no such server."""
        self.approval_requests: RequestTable | None = None if store is None else ApprovalRequests(store)
        self.observers: list[Callable[[TurnSummary], None]] = [self.usage.observe]
        self.journal = Journal.of(settings, store.path if store is not None else None)
        """Records of the last turns; None if the settings disable the journal."""
        self.contents_wanted = settings.telemetry.with_contents and bool(settings.telemetry.otlp)
        """Whether the texts of turns are collected, for telemetry or the log."""
        self.tracing: Tracing | None = None
        self.ids = ids
        self.clock = clock
        limits = settings.limits
        self._parse = partial(
            request_body.parse, nodes=limits.body_nodes, messages=limits.messages, tools=limits.tools
        )

    @property
    def models(self) -> Mapping[str, Backend]:
        """The models from the settings, by id. Models of servers (`ID/NAME`) are not included."""
        return self.catalog.models

    async def start(self) -> None:
        if self.journal is not None:
            self.journal.start()
        if self.tracing is None and (tracing := tracing_of(self.settings)) is not None:
            self.tracing = tracing
            self.observers.append(tracing.observe)
        await self.limits.start()
        await self.catalog.start()

    def drain(self) -> None:
        """Drops all parked runs.

        When a client sends the results for such a run to another node, that node starts a new run from the
        history in the request.
        """
        self.parking.drop_all()

    async def close(self) -> None:
        await self.parking.close()
        await self.catalog.close()
        await self.limits.close()
        await self.usage.close()
        if self.journal is not None:
            await self.journal.close()
        if self.tracing is not None:
            await self.tracing.close()

    async def ready(self) -> bool:
        self.catalog.listed()  # refreshes the lists of servers that were not available at the start
        if any(self.catalog.listed_of(id) for id in self.catalog.sources):
            return True
        for backend in self.catalog.all():
            if await backend.ready():
                return True
        return False

    # --- one turn ---

    async def respond(
        self,
        api: Api,
        raw: bytes,
        caller: Caller,
        on_slow: OnSlow | None = None,
        answering: EventsAnswer | None = None,
    ) -> Answer:
        """Answers one request. Returns when the first byte of the answer is known.

        Raises `ToolwireError` for any failure before that. If a stream has no first byte after
        `server.commit_after_s`, it begins anyway: `on_slow` gets its headers, and a later failure is sent in
        the stream. `answering` collects the events as well, for callers in this process.
        """
        trace = (
            self.journal.begin(api, raw, caller, self.store is not None, self.ids, self.clock)
            if self.journal is not None
            else None
        )
        run = Run(self, api, caller, trace)
        tapped = frames.set(None if trace is None else ref(trace))
        try:
            body = await self._parsed(raw)
            if api == "responses":
                body = await self._with_references(body, caller, trace)
            run.turn = await self._decode(api, body, caller, len(raw), trace)
            turn, id, backend = self._backend(run.turn)
            run.asks(turn, id)
            if caller.grant is not None:
                run.account.ticket = await self._admit(caller.grant, turn, id, caller.key_id)
            run.body, run.answering = body, answering
            if turn.mcp is not None:
                turn = await self._with_servers(run, turn)
            plan = await run.plans(turn, backend, self._missing(turn, id) if backend is None else None)
            assert run.turn is not None
            turn = run.turn
            awaited = bool(self.parking.parks) and self.parking.awaits(turn, caller.key_id)
            if turn.generate and (awaited or plan.offer[0] == "parked"):
                run.resume(
                    await self.parking.claim_once_free(
                        turn, caller.key_id, resumable=plan.strategy == "parked"
                    ),
                    awaited,
                )
            if trace is not None and self.journal is not None and self.journal.listeners:
                self.journal.planned(trace)
            return await run.answers(on_slow)
        except ToolwireError as error:
            if run.account.ticket is None and caller.grant is not None:
                self.limits.fault(caller.key_id, caller.grant.limits, error.failure)
            run.observe(error.failure)
            raise
        except asyncio.CancelledError:
            run.observe(None, cancelled=True)
            raise
        except Exception:
            run.observe(Failure("server", "The server had an error."))
            raise
        finally:
            frames.reset(tapped)

    async def events(self, raw: bytes, caller: Caller) -> AsyncGenerator[list[Event], None]:
        """Yields the events of a streamed chat turn in batches, for callers in this process.

        Raises `ToolwireError` if the turn fails before its first event.
        """
        answering = EventsAnswer()
        answer = await self.respond("chat", raw, caller, answering=answering)
        assert answer.stream is not None
        async with aclosing(answer.stream) as blocks:  # type: ignore[type-var]
            async for _ in blocks:
                if batch := answering.taken():
                    yield batch
        if batch := answering.taken():
            yield batch

    def observed(self, summary: TurnSummary) -> None:
        """Adds an ended turn to the journal and calls every observer, even if one of them fails."""
        if self.journal is not None:
            self.journal.end(summary)
        for observer in tuple(self.observers):
            try:
                observer(summary)
            except Exception:  # a failing observer must not affect the turn
                log.exception("an observer of turns failed")

    async def compaction(self, raw: bytes, caller: Caller) -> Compaction:
        """Decodes and checks a request to compact a conversation. `Compaction.answer` then runs it."""
        body = await self._parsed(raw)
        check_input(body)
        asked = {
            name: value for name, value in body.items() if name in ("model", "input", "previous_response_id")
        }
        turn = await self._decode("responses", await self._with_references(asked, caller), caller, len(raw))
        return Compaction(self, body, turn.items, caller)

    async def count(self, api: Api, raw: bytes, caller: Caller) -> Answer:
        """Returns the size of a request's input in tokens.

        Serves `/responses/input_tokens` and `/messages/count_tokens`. If the backend cannot count without
        running the turn, the size is the estimate that the rate limits use, and the report header says so.
        """
        body = await self._parsed(raw)
        if api == "messages":
            turn = decode_messages.decode(body, caller.key_id, caller.headers, count=True)
        else:
            if body.get("input") is None and not body.get("previous_response_id"):
                body = {**body, "input": ""}  # instructions and tools alone have a size too
            body = await self._with_references(body, caller)
            turn = await self._decode("responses", body, caller, len(raw))
        turn, id, backend = self._backend(turn)
        if caller.grant is not None:
            caller.grant.check(turn, id)
        if backend is None:
            others = map(self.catalog.find, self.fallbacks(id, caller.grant))
            backend = next(filter(None, others), None)
        if backend is None:
            raise ToolwireError.of(self._missing(turn, id))
        tokens, report = await self._counted(turn, backend), b""
        if tokens is None:
            tokens, report = estimate(turn).input_tokens, b"input_tokens=estimated"
        counted: dict[str, Any] = {"input_tokens": tokens}
        if api == "responses":
            counted = {"object": "response.input_tokens", **counted}
        return Answer([JSON, (b"x-toolwire-report", report)], encode(counted))

    async def _counted(self, turn: Turn, backend: Backend) -> int | None:
        """Returns the number of input tokens as the backend counts them; None if it cannot."""
        if not isinstance(backend, CountingBackend):
            return None
        await backend.prepare()
        if turn.images() and not backend.capabilities.image_urls:
            return None  # the images would have to be fetched first
        plan = make_plan(checked(turn), backend, self.settings.tools, self.ids)
        return await backend.count(plan.turn)

    def fallbacks(self, id: str, grant: KeyGrant | None) -> list[str]:
        """Returns the ids of the models that may answer instead of this model, if the key may use them."""
        return [other for other in self.catalog.fallbacks(id) if grant is None or grant.may_use(other)]

    def _missing(self, turn: Turn, id: str) -> Failure:
        return not_available(turn.model, self.catalog.problem(id)).failure

    async def fitted(self, run: Run, turn: Turn, backend: Backend) -> Turn:
        """Prepares the backend. Returns the turn in the form that the backend takes."""
        await run.in_time(backend.prepare())
        capabilities = backend.capabilities
        if turn.has_media():
            if not capabilities.image_urls:
                turn = await run.in_time(self._with_images(turn, run.trace))
            turn = checked(turn)
        if turn.api in capabilities.speaks:
            turn = replace(turn, thoughts="shown")  # the backend itself shows or hides thoughts
        return turn

    async def _admit(self, grant: KeyGrant, turn: Turn, model: str, key_id: str) -> Ticket | None:
        """Reserves a part of the key's limits for the turn; returns None if the key has no limits.

        Raises an error if the key may not run this turn.
        """
        grant.check(turn, model)
        self.parking.allow(key_id, grant.limits.parked)
        return await self.limits.admit(key_id, grant.limits, turn) if grant.limited else None

    async def _with_images(self, turn: Turn, trace: Trace | None) -> Turn:
        """Returns the turn with all images inline, for a backend that takes no image URLs."""
        inlined = await self.images.inline(turn)
        if trace is not None and inlined is not turn:
            trace.looked_up(images=fetched_images(turn, inlined))
        return inlined

    async def _with_references(
        self, body: dict[str, Any], caller: Caller, trace: Trace | None = None
    ) -> dict[str, Any]:
        """Returns the body with references and compactions resolved.

        A reference is replaced by the stored item, and a compaction by its summary. Raises an error if a
        compaction cannot be opened.
        """
        references = decode_responses.references(body) if self.store is not None else None
        compactions = decode_responses.compactions(body)
        if not references and not compactions:
            return body
        found = (
            await self.store.referenced(references, caller.key_id)
            if self.store is not None and references
            else {}
        )
        for sealed, path in compactions.items():
            summary = await self.seals.open(sealed, caller.key_id)
            if summary is None:
                message = (
                    "This server did not make this compaction for this API key. Send the whole conversation."
                )
                raise ToolwireError("invalid_value", message, param=path, code="invalid_encrypted_content")
            found[sealed] = decode_responses.opened(summary)
        if trace is not None:
            trace.looked_up(references=found)
        return decode_responses.resolved(body, found)

    async def _with_servers(self, run: Run, turn: Turn) -> Turn:
        """Returns the turn with the tools of the MCP servers that the request names."""
        if self.served_tools is None or self.approval_requests is None or not turn.generate:
            return unserved(turn)
        run.served = ServedTurn(self.served_tools, self.approval_requests, run.caller, run.ids, run.clock)
        return await run.in_time(run.served.begin(turn, run.trace))

    async def _parsed(self, raw: bytes) -> dict[str, Any]:
        """Parses the JSON object of a request.

        A large request is parsed in a thread, so that other turns go on.
        """
        return await asyncio.to_thread(self._parse, raw) if len(raw) >= LARGE_BODY else self._parse(raw)

    async def _decode(
        self, api: Api, body: dict[str, Any], caller: Caller, size: int, trace: Trace | None = None
    ) -> Turn:
        if api == "chat":
            decode = partial(decode_chat.decode, body, caller.key_id)
        elif api == "messages":
            decode = partial(decode_messages.decode, body, caller.key_id, caller.headers)
        else:
            id = decode_responses.previous_id(body)
            previous = await self._previous(id, caller, trace)
            if caller.memory is not None:
                caller.memory.begin(previous, id)
            is_open = self.settings.server.open_responses or caller.memory is not None
            decode = partial(decode_responses.decode, body, previous, caller.key_id, is_open)
        return await asyncio.to_thread(decode) if size >= LARGE_BODY else decode()

    async def _previous(self, id: str | None, caller: Caller, trace: Trace | None) -> tuple[StoredItem, ...]:
        if id is None:
            return ()
        chain = caller.memory.recall(id) if caller.memory is not None else None
        if chain is None and self.store is not None:
            chain = await self.store.chain(id, caller.key_id)
        if chain is None:
            raise ToolwireError(
                "previous_response",
                f"Previous response with id '{id[:80]}' not found.",
                param="previous_response_id",
            )
        if trace is not None:
            trace.looked_up(previous=chain)
        return chain

    def _backend(self, turn: Turn) -> tuple[Turn, str, Backend | None]:
        """Finds the requested model by its id or an alias. Returns the turn, the model's id and its backend.

        The backend is None if the model is not available. An alias may set the turn's reasoning effort.
        Raises an error if no model has this name.
        """
        backend = self.catalog.find(turn.model)
        if backend is not None:
            return turn, backend.id, backend
        if self.catalog.problem(turn.model):
            return turn, self.catalog.serving(turn.model), None
        for other in self.models.values():
            effort = other.alias(turn.model)
            if effort is not None:
                named = (
                    turn.sampling
                    if turn.sampling.effort or not effort
                    else replace(turn.sampling, effort=effort)
                )
                return replace(turn, sampling=named), other.id, other
        first = next((one for id, one in self.models.items() if id not in self.catalog.found), None)
        if turn.api == "messages" and CLAUDE.match(turn.model) and first is not None:
            # Claude Code requests models by Anthropic's names, whichever model serves them here.
            return replace(turn, notes=(*turn.notes, ("model", "ignored"))), first.id, first
        raise no_model(turn.model)

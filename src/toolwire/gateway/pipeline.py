"""The whole flow of a turn, on one screen: bytes → decode → Turn → plan → backend run → events → policy → encode → bytes.

    respond ── parse, decode ──▶ Turn ── make_plan ──▶ Plan ── attempts ──▶ events ── Policy ──▶ ChatEncoder / ResponsesEncoder ──▶ bytes

`Gateway.respond` is the flow up to the run; `run.py` has the run itself. Law 3, one path: a body is the fold of the same events that a stream is
written from.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import ref

from toolwire.access.keys import KeyGrant, no_model
from toolwire.access.limits import RateLimits, Ticket, estimate
from toolwire.access.usage import UsageBook
from toolwire.backends.base import Backend
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure
from toolwire.core.ids import IdFactory, random_id
from toolwire.core.turn import Api, Item, Turn
from toolwire.gateway.abreast import Abreast
from toolwire.gateway.answers import open_answer
from toolwire.gateway.catalog import Catalog
from toolwire.gateway.compaction import Compaction, Seals, check_input
from toolwire.gateway.images import ImageFetcher, checked
from toolwire.gateway.parked import Parking
from toolwire.gateway.queue import Queues
from toolwire.gateway.records import Answer, Caller, OnSlow, TurnSummary
from toolwire.gateway.run import Run
from toolwire.gateway.told import Told
from toolwire.observe.journal import Journal
from toolwire.observe.trace import current, traced
from toolwire.observe.tracing import Tracing, tracing_of
from toolwire.settings.types import Settings
from toolwire.store.store import Store
from toolwire.wire import body as request_body
from toolwire.wire.chat import decode as decode_chat
from toolwire.wire.responses import decode as decode_responses
from toolwire.wire.sse import encode

LARGE_BODY = 128 * 1024
__all__ = ["Answer", "Caller", "Gateway", "TurnSummary"]


class Gateway:
    """Serves turns with the configured models. One per process; `start` and `close` bracket its life."""

    def __init__(
        self,
        settings: Settings,
        *,
        store: Store | None = None,
        backends: Mapping[str, Backend] | None = None,
        ids: IdFactory = random_id,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.store = store
        self.parking = Parking(settings.parked)
        self.images = ImageFetcher()
        self.seals = Seals(store)
        self.catalog = Catalog(settings.models, backends)
        self.usage = UsageBook(store, self.catalog)
        """What was used, by key, model and hour."""
        self.limits = RateLimits(settings, self.usage)
        self.queues = Queues(settings.limits)
        self.observers: list[Callable[[TurnSummary], None]] = [self._keep, self.usage.observe]
        self.told = Told(self.observers)
        self.abreast = Abreast()
        """The turns whose whole answers are on their way."""
        self.journal = Journal.of(settings, store.path if store is not None else None)
        """What the last turns were made of; None where the settings say that nothing is kept."""
        if self.journal is not None:
            self.journal.catch_up = self.told.now
        self.contents_wanted = settings.telemetry.with_contents and bool(settings.telemetry.otlp)
        """Whether somebody who may see it wants to know what was said in turns."""
        self.tracing: Tracing | None = None
        self.ids = ids
        self.clock = clock
        limits = settings.limits
        self._parse = partial(request_body.parse, nodes=limits.body_nodes, messages=limits.messages, tools=limits.tools)

    @property
    def models(self) -> Mapping[str, Backend]:
        """The models that the settings name."""
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
        """No more turns will come: parked runs are given up, so that their continuations replay elsewhere."""
        self.parking.drop_all()

    async def close(self) -> None:
        await self.parking.close()
        self.told.now()
        await self.catalog.close()
        await self.limits.close()
        await self.usage.close()
        if self.journal is not None:
            await self.journal.close()
        if self.tracing is not None:
            await self.tracing.close()

    async def ready(self) -> bool:
        self.catalog.listed()  # a server that was not there at the start is looked for again, also where nobody lists its models
        if any(self.catalog.listed_of(id) for id in self.catalog.sources):
            return True
        for backend in self.catalog.all():
            if await backend.ready():
                return True
        return False

    # --- one turn ------------------------------------------------------------------------------------------------------------------------------

    async def respond(self, api: Api, raw: bytes, caller: Caller, on_slow: OnSlow | None = None) -> Answer:
        """Answers one request, once the first byte is there. Raises `ToolwireError` for whatever goes wrong before it; a stream that has been waited
        for as long as `server.commit_after_s` counts as begun, and `on_slow` is told so."""
        trace = self.journal.begin(api, raw, caller, stored=self.store is not None) if self.journal is not None else None
        run, watched = Run(self, api, caller, trace), current.set(None if trace is None else ref(trace))
        large = len(raw) >= LARGE_BODY
        try:
            body = self._parse(raw) if not large else await asyncio.to_thread(self._parse, raw)
            if api == "responses":
                body = await self._with_references(body, caller)
            is_small_chat = api == "chat" and not large
            turn = run.decoded(decode_chat.decode(body, caller.key_id) if is_small_chat else await self._decode(api, body, caller, large))
            turn, backend = self._backend(turn)
            run.asks(turn, backend)
            if caller.grant is not None:
                run.account.ticket = await self._admit(caller.grant, turn, backend, caller.key_id)
            if trace is not None:
                trace.asks(backend, run.backend_kind)
            await run.in_time(backend.prepare())
            turn = checked(turn if backend.capabilities.image_urls else await run.in_time(self.images.inline(turn)))
            plan = run.planned(turn, backend)
            run.answer = open_answer(turn, body, self.store, caller.key_id, run.ids, run.clock, caller.memory)
            run.place = self.queues.join(backend.id, caller.key_id)
            if turn.generate and ((awaited := self.parking.awaits(turn, caller.key_id)) or backend.strategy == "parked"):
                run.resume(await self.parking.claim_once_free(turn, caller.key_id, resumable=plan.strategy == "parked"), awaited)
            if trace is not None and self.journal is not None:
                self.journal.planned(trace)
            return await (run.stream(plan, backend, on_slow) if turn.stream else run.whole(plan, backend))
        except ToolwireError as error:
            run.abandon()
            if run.account.ticket is None and caller.grant is not None:
                self.limits.fault(caller.key_id, caller.grant.limits, error.failure)
            run.observe(error.failure)
            raise
        except asyncio.CancelledError:
            run.abandon()
            run.observe(None, cancelled=True)
            raise
        except Exception:
            run.abandon()
            run.observe(Failure("server", "The server had an error."))
            raise
        finally:
            current.reset(watched)

    def _keep(self, summary: TurnSummary) -> None:
        if summary.trace is not None and self.journal is not None:
            self.journal.end(summary.trace, summary)

    async def compaction(self, raw: bytes, caller: Caller) -> Compaction:
        """A request to make a conversation short, ready to be answered. Raises where it asks for what can not be."""
        body = self._parse(raw) if len(raw) < LARGE_BODY else await asyncio.to_thread(self._parse, raw)
        check_input(body)
        asked = {name: value for name, value in body.items() if name in ("model", "input", "previous_response_id")}
        turn = await self._decode("responses", await self._with_references(asked, caller), caller, len(raw) >= LARGE_BODY)
        return Compaction(self, body, turn.items, caller)

    async def count(self, raw: bytes, caller: Caller) -> Answer:
        """The size of a Responses request's input, as OpenAI's `/responses/input_tokens` gives it. No backend counts without running, so
        it is the same estimate that limits use.
        """
        large = len(raw) >= LARGE_BODY
        body = self._parse(raw) if not large else await asyncio.to_thread(self._parse, raw)
        if body.get("input") is None and not body.get("previous_response_id"):
            body = {**body, "input": ""}  # instructions and tools alone have a size too
        turn = await self._decode("responses", await self._with_references(body, caller), caller, large)
        turn, backend = self._backend(turn)
        if caller.grant is not None:
            caller.grant.check(turn, backend.id)
        counted = {"object": "response.input_tokens", "input_tokens": estimate(turn).input_tokens}
        return Answer([(b"x-toolwire-report", b"input_tokens=estimated")], encode(counted))

    async def _admit(self, grant: KeyGrant, turn: Turn, backend: Backend, key_id: str) -> Ticket | None:
        """Whether the key may run this turn, and what it takes of the key's limits."""
        grant.check(turn, backend.id)
        self.parking.allow(key_id, grant.limits.parked)
        return await self.limits.admit(key_id, grant.limits, turn) if grant.limited else None

    async def _with_references(self, body: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """The body with stored items in place of the references that name them, and summaries in place of the compactions that hold them."""
        references = decode_responses.references(body) if self.store is not None else None
        compactions = decode_responses.compactions(body)
        if not references and not compactions:
            return body
        found = await self.store.referenced(references, caller.key_id) if self.store is not None and references else {}
        for sealed, path in compactions.items():
            summary = await self.seals.open(sealed, caller.key_id)
            if summary is None:
                told = "This compaction was not made by this server for this key. Send the conversation itself."
                raise ToolwireError("invalid_value", told, param=path, code="invalid_encrypted_content")
            found[sealed] = decode_responses.opened(summary)
        if (trace := traced()) is not None:
            trace.references = found
        return decode_responses.resolved(body, found)

    async def _decode(self, api: Api, body: dict[str, Any], caller: Caller, large: bool) -> Turn:
        """What takes a thread, or a look into the store."""
        if api == "chat":
            return await asyncio.to_thread(decode_chat.decode, body, caller.key_id)
        id = decode_responses.previous_id(body)
        previous = await self._previous(id, caller)
        if caller.memory is not None:
            caller.memory.begin(previous, id)
        given = (body, previous, caller.key_id, self.settings.server.open_responses or caller.memory is not None)
        return await asyncio.to_thread(decode_responses.decode, *given) if large else decode_responses.decode(*given)

    async def _previous(self, id: str | None, caller: Caller) -> tuple[Item, ...]:
        if id is None:
            return ()
        chain = caller.memory.recall(id) if caller.memory is not None else None
        if chain is None and self.store is not None:
            chain = await self.store.chain(id, caller.key_id)
        if chain is None:
            raise ToolwireError("previous_response", f"Previous response with id '{id[:80]}' not found.", param="previous_response_id")
        if (trace := traced()) is not None:
            trace.previous = chain
        return chain

    def _backend(self, turn: Turn) -> tuple[Turn, Backend]:
        """The backend of the model that was asked for, by its id or another name of it, which may stand for a reasoning effort."""
        backend = self.catalog.find(turn.model)
        if backend is not None:
            return turn, backend
        for other in self.models.values():
            effort = other.alias(turn.model)
            if effort is not None:
                named = turn.sampling if turn.sampling.effort or not effort else replace(turn.sampling, effort=effort)
                return replace(turn, sampling=named), other
        raise no_model(turn.model)

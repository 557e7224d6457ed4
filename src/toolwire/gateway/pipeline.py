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
from typing import Any

from toolwire.backends.base import Backend
from toolwire.config import Settings
from toolwire.decode import body as request_body
from toolwire.decode import chat as decode_chat
from toolwire.decode import responses as decode_responses
from toolwire.errors import ToolwireError
from toolwire.events import Failure
from toolwire.gateway.answers import open_answer
from toolwire.gateway.catalog import Catalog
from toolwire.gateway.images import ImageFetcher
from toolwire.gateway.journal import Journal
from toolwire.gateway.parked import Parking
from toolwire.gateway.records import Answer, Caller, TurnSummary
from toolwire.gateway.run import Run
from toolwire.gateway.store import Store
from toolwire.ids import IdFactory, random_id
from toolwire.trace import current
from toolwire.turn import Api, Item, Turn

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
        self.catalog = Catalog(settings.models, backends)
        self.observers: list[Callable[[TurnSummary], None]] = []
        self.journal = Journal.of(settings, store.path if store is not None else None)
        """What the last turns were made of; None where the settings say that nothing is kept."""
        self.ids = ids
        self.clock = clock

    @property
    def models(self) -> Mapping[str, Backend]:
        """The models that the settings name."""
        return self.catalog.models

    async def start(self) -> None:
        if self.journal is not None:
            self.journal.start()
        await self.catalog.start()

    def drain(self) -> None:
        """No more turns will come: parked runs are given up, so that their continuations replay elsewhere."""
        self.parking.drop_all()

    async def close(self) -> None:
        await self.parking.close()
        await self.catalog.close()
        if self.journal is not None:
            await self.journal.close()

    async def ready(self) -> bool:
        self.catalog.listed()  # a server that was not there at the start is looked for again, also where nobody lists its models
        if any(self.catalog.listed_of(id) for id in self.catalog.sources):
            return True
        for backend in self.catalog.all():
            if await backend.ready():
                return True
        return False

    # --- one turn ------------------------------------------------------------------------------------------------------------------------------

    async def respond(self, api: Api, raw: bytes, caller: Caller) -> Answer:
        """Answers one request. Raises `ToolwireError` for whatever goes wrong before the first byte."""
        trace = self.journal.begin(api, raw, caller, stored=self.store is not None) if self.journal is not None else None
        run, watched = Run(self, api, caller, trace), current.set(trace)
        try:
            body = await self._with_references(api, request_body.parse(raw), caller)
            turn = run.decoded(replace(await self._decode(api, body, caller), caller=caller.key_id))
            turn, backend = self._backend(turn)
            run.turn = turn
            if trace is not None:
                trace.asks(backend, self.catalog.kind(backend.id))
            await backend.prepare()
            if not backend.capabilities.image_urls:
                turn = await self.images.inline(turn)
            plan = run.planned(turn, backend)
            run.answer = open_answer(turn, body, self.store, caller.key_id, run.ids, run.clock)
            if backend.strategy == "parked" and turn.items:
                run.resume(self.parking.claim(turn, caller.key_id, resumable=plan.strategy == "parked"))
            if trace is not None and self.journal is not None:
                self.journal.planned(trace)
            return await (run.stream(plan, backend) if turn.stream else run.whole(plan, backend))
        except ToolwireError as error:
            run.abandon()
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

    async def _with_references(self, api: Api, body: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """The body with stored items in place of the references that name them."""
        references = decode_responses.references(body) if api == "responses" and self.store is not None else None
        if not references:
            return body
        assert self.store is not None
        found = await self.store.referenced(references, caller.key_id)
        if (trace := current.get()) is not None:
            trace.references = found
        return decode_responses.resolved(body, found)

    async def _decode(self, api: Api, body: dict[str, Any], caller: Caller) -> Turn:
        if api == "chat":
            return decode_chat.decode(body)
        return decode_responses.decode(body, await self._previous(decode_responses.previous_id(body), caller))

    async def _previous(self, id: str | None, caller: Caller) -> tuple[Item, ...]:
        if id is None:
            return ()
        chain = await self.store.chain(id, caller.key_id) if self.store is not None else None
        if chain is None:
            raise ToolwireError("previous_response", f"Previous response with id '{id[:80]}' not found.", param="previous_response_id")
        if (trace := current.get()) is not None:
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
        raise ToolwireError("model_not_found", f"The model '{turn.model[:80]}' does not exist or you do not have access to it.", param="model")

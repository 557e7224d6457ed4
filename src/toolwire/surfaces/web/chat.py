"""The API of the chat page: conversations, their turns, and the models."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, OrderedDict
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from toolwire.backends.scripted.tour import MODEL, OPENING
from toolwire.core.errors import ToolwireError
from toolwire.core.ids import random_id
from toolwire.surfaces.conversation_note import render
from toolwire.surfaces.tables import model_rows
from toolwire.surfaces.web.context import PageApi, Row, Web, body, field, invalid, number
from toolwire.surfaces.web.talk import TITLE, Conversations, StoredChat, Talk

OPEN = 64
"""The most conversations in memory, unless more have a running turn."""
MOST_LISTED = 500
MOST_TEXT = 1_000_000


class ChatApi(PageApi):
    def __init__(self, web: Web) -> None:
        super().__init__(web)
        self._rows = Conversations(web.store)
        self._talks: OrderedDict[str, Talk] = OrderedDict()
        self._opening = asyncio.Lock()
        web.tools.users.append(self._stop_with_tools)

    def routes(self) -> list[Row]:
        return [
            ("GET", "/models", self.models),
            ("GET", "/conversations", self.listed),
            ("POST", "/conversations", self.create),
            ("GET", "/conversations/{id}", self.one),
            ("PATCH", "/conversations/{id}", self.change),
            ("DELETE", "/conversations/{id}", self.delete),
            ("POST", "/tours", self.tour),
            ("POST", "/conversations/{id}/turns", self.turn),
            ("POST", "/conversations/{id}/retry", self.retry),
            ("POST", "/conversations/{id}/stop", self.stop),
            ("GET", "/conversations/{id}/note", self.note),
        ]

    async def start(self) -> None:
        await self._web.approvals.lapse()

    async def close(self) -> None:
        await asyncio.gather(*(talk.stop() for talk in self._talks.values()))

    async def _stop_with_tools(self) -> None:
        await asyncio.gather(*(talk.stop() for talk in self._talks.values() if talk.with_tools))

    # --- reading

    async def models(self, request: Request) -> dict[str, Any]:
        catalog = self._web.gateway.catalog
        catalog.listed()  # refreshes old lists of models in the background
        return {"models": [{**row, **self._about(row["id"])} for row in model_rows(catalog)]}

    def _about(self, id: str) -> dict[str, Any]:
        about = self._web.gateway.catalog.about(id)
        return {
            "title": about.title,
            "use": about.use,
            "trial": about.is_trial,
            "no_tools": about.no_tools,
            "may_use_tools": self._web.may_use_tools(id),
        }

    async def listed(self, request: Request) -> dict[str, Any]:
        words, limit = request.query_params.get("q", "")[:200], number(request, "limit", 100, MOST_LISTED)
        rows = await self._rows.listed(words, limit)
        waiting = Counter(approval.session for approval in await self._web.approvals.pending())
        running = {id for id, talk in self._talks.items() if talk.running}
        for row in rows:
            row.update(running=row["id"] in running, waiting=waiting[row["id"]])
        return {"conversations": rows}

    async def one(self, request: Request) -> dict[str, Any]:
        return (await self._talk(request)).state()

    async def note(self, request: Request) -> Response:
        kept = (await self._talk(request)).kept
        name = " ".join(re.sub(r"[^\w .-]+", " ", kept.title).split()).strip(".")[:60] or "conversation"
        names = f"filename=\"conversation.md\"; filename*=UTF-8''{quote(name)}.md"
        headers = {"content-disposition": f"attachment; {names}"}
        text = render(kept.messages, kept.model, kept.edited()).encode("utf-8", "replace")
        return Response(text, media_type="text/markdown", headers=headers)

    # --- changing

    async def create(self, request: Request) -> Response:
        model = self._model(field(await body(request), "model", str, required=True))
        talk = self._new(random_id("web_"), model)
        await talk.keep()
        return JSONResponse(talk.state(), 201)

    async def tour(self, request: Request) -> Response:
        """Starts a tour: a conversation with the scripted model, on a new sample vault."""
        talk = self._new(self._web.tours.new_id(), MODEL)
        await talk.begin(OPENING)
        return JSONResponse(talk.state(), 201)

    def _new(self, id: str, model: str) -> Talk:
        now = time.time()
        talk = Talk(self._web, self._rows, StoredChat(id, "New chat", model, now, now))
        self._remember(talk)
        return talk

    async def change(self, request: Request) -> dict[str, Any]:
        given = await body(request)  # before `_talk`: the conversation may be deleted while the body arrives
        talk = await self._talk(request)
        title = field(given, "title", str)
        if title is not None:
            talk.rename(" ".join(title.split())[: TITLE * 2] or talk.kept.title)
        self._use_model(talk, given)
        await talk.keep()
        return talk.state()

    async def delete(self, request: Request) -> dict[str, Any]:
        talk = await self._talk(request)
        async with self._opening:  # no other request may open it in the meantime
            await talk.stop()
            self._talks.pop(talk.kept.id, None)
            await self._rows.delete(talk.kept.id)
            await self._web.tours.forget(talk.kept.id)
        self._web.hub.publish("conversations", {})
        return {}

    async def turn(self, request: Request) -> Response:
        given = await body(request)
        talk = await self._idle(request)
        text = field(given, "text", str, required=True)
        if not text.strip() or len(text) > MOST_TEXT:
            raise invalid(f"A message must have from 1 to {MOST_TEXT:,} characters.", "text")
        self._use_model(talk, given)
        await talk.begin(text.encode("utf-8", "replace").decode())
        return JSONResponse({}, 202)

    async def retry(self, request: Request) -> Response:
        given = await body(request)
        talk = await self._idle(request)
        if not talk.kept.entries:
            raise ToolwireError("invalid_request", "This conversation has no question to answer again.")
        self._use_model(talk, given)
        await talk.retry()
        return JSONResponse({}, 202)

    async def stop(self, request: Request) -> dict[str, Any]:
        await (await self._talk(request)).stop()
        return {}

    # --- finding

    async def _talk(self, request: Request) -> Talk:
        id = request.path_params["id"]
        async with self._opening:
            talk = self._talks.get(id)
            if talk is None:
                kept = await self._rows.get(id)
                if kept is None:
                    raise ToolwireError("not_found", f"There is no conversation {id[:80]}.")
                talk = Talk(self._web, self._rows, kept)
            self._remember(talk)
        return talk

    async def _idle(self, request: Request) -> Talk:
        talk = await self._talk(request)
        if talk.running:
            message = "The model is still answering in this conversation. Stop the answer first."
            raise ToolwireError("conflict", message)
        return talk

    def _remember(self, talk: Talk) -> None:
        self._talks[talk.kept.id] = talk
        self._talks.move_to_end(talk.kept.id)
        idle = (id for id, one in self._talks.items() if not one.running and one is not talk)
        if len(self._talks) > OPEN and (oldest := next(idle, None)) is not None:
            del self._talks[oldest]

    def _use_model(self, talk: Talk, given: dict[str, Any]) -> None:
        model = field(given, "model", str)
        if talk.is_tour and model not in (None, talk.kept.model):
            raise invalid("The tour has its own scripted model. To use another model, start a chat.", "model")
        if model is not None and not talk.is_tour:
            talk.kept.model = self._model(model)

    def _model(self, name: str) -> str:
        gateway = self._web.gateway
        is_alias = any(backend.alias(name) is not None for backend in gateway.models.values())
        if gateway.catalog.find(name) is None and not is_alias:
            raise ToolwireError("model_not_found", f"There is no model {name[:80]}.", param="model")
        return name

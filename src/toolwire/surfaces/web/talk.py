"""An open conversation. Its turns run on the server, even if no tab is open.

Every change is a numbered operation: `Talk` applies it and then sends it to the tabs. A tab that missed an
operation loads the whole conversation again. `Talk` stores each step, so a crash loses at most the current
answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from toolwire.core.ids import random_id
from toolwire.gateway.pipeline import Caller
from toolwire.store.store import Store
from toolwire.surfaces.web.context import Web
from toolwire.tools.contract import Approval, Asking, Outcome, ToolCall, source_of_vault, system_prompt
from toolwire.tools.executor import Executor, Toolbox
from toolwire.tools.loop import (
    Called,
    Conversation,
    Did,
    Ended,
    GatewayModel,
    Happening,
    SaidText,
    ThoughtText,
)

# --- stored conversations: the page shows `entries`, the model gets `messages`, the search reads `words`

Entry = dict[str, Any]
_COLUMNS = "id, owner, title, model, created_at, updated_at, entries, messages, words"
_REPLACED = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS.split(", ")[1:])
_PUT = f"INSERT INTO conversations ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
_PUT += f"ON CONFLICT (id) DO UPDATE SET {_REPLACED}"
_LISTED = "id, title, model, created_at, updated_at"
SNIPPET = 120


@dataclass(slots=True)
class StoredChat:
    """A conversation as it is stored."""

    id: str
    title: str
    model: str
    created_at: float
    updated_at: float
    entries: list[Entry] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    owner: str = ""

    def words(self) -> str:
        """Returns the title and all text, for the search."""
        said = [self.title]
        for entry in self.entries:
            texts = [entry] if entry["kind"] == "user" else entry["parts"]
            said += [one["text"] for one in texts if one.get("type", "text") == "text"]
        return "\n".join(said)

    def edited(self) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
        """Returns the arguments of edited calls, by call id: as the model wrote them, and as they ran."""
        parts = [part for entry in self.entries for part in entry.get("parts", ())]
        return {part["id"]: tuple(part["edited"]) for part in parts if part.get("edited")}


class Conversations:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(self, kept: StoredChat) -> None:
        head = (getattr(kept, name) for name in _COLUMNS.split(", ")[:-3])
        row = (*head, json.dumps(kept.entries), json.dumps(kept.messages), _plain(kept.words()))
        await self._store.run(lambda c: c.execute(_PUT, row), "write")

    async def get(self, id: str) -> StoredChat | None:
        query = f"SELECT {_LISTED}, entries, messages, owner FROM conversations WHERE id = ?"
        row = await self._store.run(lambda c: c.execute(query, (id,)).fetchone(), "read")
        if row is None:
            return None
        id, title, model, created, updated, entries, messages, owner = row
        return StoredChat(
            id, title, model, created, updated, json.loads(entries), json.loads(messages), owner
        )

    async def delete(self, id: str) -> bool:
        query = "DELETE FROM conversations WHERE id = ?"
        return await self._store.run(lambda c: c.execute(query, (id,)).rowcount == 1, "write")

    async def listed(self, words: str, limit: int) -> list[dict[str, Any]]:
        """Returns the conversations that contain all the words, newest first."""
        wanted = _plain(words).split()[:8]
        where = " AND ".join(["words LIKE ? ESCAPE '\\'"] * len(wanted)) or "1 = 1"
        text = "words" if wanted else "''"  # long, and only needed for a search
        query = f"SELECT {_LISTED}, {text} FROM conversations WHERE {where} "
        query += "ORDER BY updated_at DESC, id LIMIT ?"
        values = (*(f"%{_literal(word)}%" for word in wanted), limit)
        rows = await self._store.run(lambda c: c.execute(query, values).fetchall(), "read")
        names = (*_LISTED.split(", "), "snippet")
        return [dict(zip(names, (*row[:-1], _snippet(row[-1], wanted)), strict=True)) for row in rows]


def _plain(text: str) -> str:
    return text.casefold().replace("\0", " ")  # databases end a text at NUL


def _literal(word: str) -> str:
    return word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _snippet(words: str, wanted: Sequence[str]) -> str:
    if not wanted:
        return ""
    at = max(0, words.find(wanted[0]) - SNIPPET // 3)
    return " ".join(words[at : at + SNIPPET].split())


log = logging.getLogger("toolwire.web")
TITLE = 64


class Talk:
    def __init__(self, web: Web, rows: Conversations, kept: StoredChat) -> None:
        self._web = web
        self._rows = rows
        self.kept = kept
        self.seq = int(time.time() * 1_000_000)  # larger than every number that an earlier process has used
        self._task: asyncio.Task[None] | None = None
        self._tail: list[str] = []
        self.with_tools = False
        """Whether the last turn had the tools of `WebTools`. False for a tour, which has its own tools."""
        self._toolbox: Toolbox | None = None
        _close_entries(kept.entries)

    @property
    def running(self) -> bool:
        """Whether an answer is being written.

        False once the answer has ended, even if it is not stored yet.
        """
        active = self._task is not None and not self._task.done()
        return active and self.kept.entries[-1].get("ended", True) is None

    def state(self) -> dict[str, Any]:
        """Returns the conversation for a tab that opens it."""
        self._settle()
        shown = {name: getattr(self.kept, name) for name in (*_LISTED.split(", "), "entries")}
        return {**shown, "running": self.running, "seq": self.seq, "tour": self.is_tour}

    @property
    def is_tour(self) -> bool:
        return self._web.tours.is_tour(self.kept.id)

    # --- operations

    def op(self, name: str, **data: Any) -> None:
        """Sends a change to the tabs. The caller has already applied it to this conversation."""
        before, self.seq = self.seq, self.seq + 1
        head = {"conversation": self.kept.id, "prev": before, "seq": self.seq, "op": name}
        self._web.hub.publish("chat", {**head, **data})

    def _add(self, entry: Entry) -> None:
        self.kept.entries.append(entry)
        self.op(entry["kind"], entry={**entry, "parts": []} if entry["kind"] == "answer" else entry)

    def _add_text(self, type: str, text: str) -> None:
        parts = self.kept.entries[-1]["parts"]
        if not parts or parts[-1]["type"] != type:
            self._settle()
            parts.append({"type": type, "text": ""})
        self._tail.append(text)
        self.op(type, text=text)

    def _settle(self) -> None:
        """Appends the buffered pieces of text to the last part of the answer."""
        if self._tail:
            self.kept.entries[-1]["parts"][-1]["text"] += "".join(self._tail)
            self._tail.clear()

    def rename(self, title: str) -> None:
        self.kept.title = title
        self.op("titled", title=title)

    # --- turns

    async def begin(self, text: str) -> None:
        """Adds the person's message, and starts the turn that answers it."""
        if not self.kept.entries:
            self.rename(" ".join(text.split())[:TITLE] or "New chat")
        self._add({"kind": "user", "at": time.time(), "text": text})
        self.kept.messages.append({"role": "user", "content": text})
        await self._answer()

    async def retry(self) -> None:
        """Removes the last answer, and answers the person's last message again."""
        entries, messages = self.kept.entries, self.kept.messages
        while entries[-1]["kind"] != "user":
            entries.pop()
        while messages and messages[-1]["role"] != "user":
            messages.pop()
        if self.is_tour and len(messages) == 1:
            await self._web.tours.forget(self.kept.id)  # the tour begins again, with a new sample vault
        self.op("cut", entries=len(entries))
        await self._answer()

    async def _answer(self) -> None:
        """Starts the turn and stores the conversation, so that a retry is possible after a crash."""
        model = self.kept.model
        answer = {"kind": "answer", "at": time.time(), "model": model, "parts": [], "ended": None}
        if label := self._web.scripted(model, self.kept.id):
            answer["scripted"] = label
        self._add(answer)
        self._task = asyncio.ensure_future(self._turn())
        await self.keep()

    async def stop(self) -> None:
        task = self._task
        await asyncio.sleep(0)  # a task that is cancelled before its first step could not end its answer
        if task is not None and not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _turn(self) -> None:
        ended = _ended("stopped", "")
        conversation: Conversation | None = None
        try:
            async with self._tools() as (toolbox, vault):
                conversation = self._conversation(toolbox, vault)
                async with aclosing(conversation.turn(None)) as happenings:
                    async for happening in happenings:
                        if isinstance(happening, Ended):
                            ended = _ended(happening.why, happening.words, happening.usage)
                        else:
                            await self._show(happening, conversation)
        except asyncio.CancelledError:
            pass  # the person stopped the answer; the text so far is kept
        except Exception as error:
            log.exception("a turn of the conversation %s failed", self.kept.id)
            ended = _ended("failed", f"The server had an error: {type(error).__name__}.")
        if conversation is not None:
            self._take(conversation)
        answer = self.kept.entries[-1]
        for part in _asked(answer):
            part["state"] = "stopped"
            self.op("call", id=part["id"], state="stopped")
        answer["ended"] = ended
        self.op("ended", ended=ended)
        await asyncio.shield(self.keep())

    @asynccontextmanager
    async def _tools(self) -> AsyncIterator[tuple[Toolbox | None, str]]:
        """Yields the tools of a turn (or None) and the path of their vault (or "")."""
        web, model = self._web, self.kept.model
        self.with_tools = False
        if self.is_tour:
            async with web.tours.using(self.kept.id) as sample:
                yield sample.toolbox, str(sample.root)
        elif web.tools.enabled and web.may_use_tools(model):
            self.with_tools = True
            tools = await web.tools.all()
            yield tools, str(web.tools.root.resolve()) if web.tools.toolbox is not None else ""
        else:
            yield None, ""

    def _conversation(self, toolbox: Toolbox | None, vault: str) -> Conversation:
        web, kept = self._web, self.kept
        self._toolbox = toolbox
        executor, messages = None, kept.messages
        if toolbox is not None:
            executor = Executor(toolbox, web.approvals, WebSurface(web))
            messages = [{"role": "system", "content": system_prompt(toolbox.tools.values())}, *messages]
        model = GatewayModel(web.gateway, Caller(request_id=random_id("req_")))
        asking = Asking(kept.id, kept.model, "web", source=source_of_vault(vault))
        return Conversation(model, kept.model, executor, asking, messages=messages)

    def _take(self, conversation: Conversation) -> None:
        self._settle()
        self.kept.messages = [message for message in conversation.messages if message["role"] != "system"]

    async def _show(self, happening: Happening, conversation: Conversation) -> None:
        if isinstance(happening, SaidText):
            self._add_text("text", happening.text)
        elif isinstance(happening, ThoughtText):
            self._add_text("thought", happening.text)
        elif isinstance(happening, Called):
            self._settle()
            parts = [self._called(call) for call in happening.calls]
            self.kept.entries[-1]["parts"] += parts
            self.op("calls", parts=parts)
        elif isinstance(happening, Did):
            self._show_outcome(happening.outcome)
        if isinstance(happening, Called | Did):
            self._take(conversation)
            await self.keep()

    def _called(self, call: ToolCall) -> dict[str, Any]:
        tool = self._toolbox.tools.get(call.name) if self._toolbox is not None else None
        title = tool.title if tool is not None else call.name
        part = {"type": "call", "id": call.id, "name": call.name, "title": title, "arguments": call.arguments}
        return {
            **part,
            "state": "asked",
            "result": None,
            "notice": "",
            "shared": [],
            "unread": {},
            "edited": None,
        }

    def _show_outcome(self, outcome: Outcome) -> None:
        changed = {
            "state": outcome.status,
            "result": _as_json(outcome.result),
            "notice": outcome.notice,
            "shared": list(outcome.shared),
            "unread": dict(outcome.unread),
            "edited": _as_json(outcome.edited),
        }
        asked = _asked(self.kept.entries[-1])
        part = next((part for part in asked if part["id"] == outcome.call.id), None)
        if part is not None:
            part.update(changed)
        self.op("call", id=outcome.call.id, **changed)

    # --- storing

    async def keep(self) -> None:
        self._settle()
        self.kept.updated_at = time.time()
        await self._rows.put(self.kept)
        self._web.hub.publish("conversations", {})


class WebSurface:
    """Shows questions in every tab and in the inbox. Closing a tab does not answer them."""

    def __init__(self, web: Web) -> None:
        self._web = web

    async def ask(self, approvals: Sequence[Approval]) -> bool:
        pending = await self._web.approvals.pending()
        self._web.hub.publish("approvals", {"pending": len(pending)})
        return True


def _as_json(result: Any) -> Any:
    """Returns the result of a tool as the model gets it."""
    return json.loads(json.dumps(result, ensure_ascii=False, default=str).encode("utf-8", "replace"))


def _close_entries(entries: list[Entry]) -> None:
    """Marks the unfinished answers of an earlier process as stopped."""
    for entry in entries:
        if entry["kind"] == "answer":
            for part in _asked(entry):
                part["state"] = "stopped"
            entry["ended"] = entry["ended"] or _ended("stopped", "The server stopped during the answer.")


def _asked(answer: Entry) -> list[dict[str, Any]]:
    """Returns the calls of an answer that have no result yet."""
    return [part for part in answer["parts"] if part["type"] == "call" and part["state"] == "asked"]


def _ended(why: str, words: str, usage: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"why": why, "words": words, "usage": usage or {}}

"""A conversation that is open: its turn runs here, whoever looks on or goes away.

Everything that changes it is an operation with a number, applied here first and then told to the tabs; a tab that missed one asks for the whole.
What was said is kept in the store at every step, so that a crash loses at most the answer that was being written.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from toolwire.core.ids import random_id
from toolwire.gateway.pipeline import Caller
from toolwire.store.store import Store
from toolwire.surfaces.web.context import Web
from toolwire.tools.contract import WITH_TOOLS, Approval, Asking, Outcome, ToolCall
from toolwire.tools.executor import Executor
from toolwire.tools.loop import Called, Conversation, Did, Ended, GatewayModel, Happening, SaidText, ThoughtText

# --- conversations ------------------------------------------------------------
#
# The pages' conversations as rows of the store: what was shown (`entries`), what the model is sent
# (`messages`), and the words to find it by.

Entry = dict[str, Any]
_COLUMNS = "id, owner, title, model, created_at, updated_at, entries, messages, words"
_REPLACED = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS.split(", ")[1:])
SNIPPET = 120


@dataclass(slots=True)
class Kept:
    id: str
    title: str
    model: str
    created_at: float
    updated_at: float
    entries: list[Entry] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    owner: str = ""

    def words(self) -> str:
        """All that was said, in one text."""
        said = [entry["text"] if entry["kind"] == "user" else _said(entry) for entry in self.entries]
        return "\n".join([self.title, *said])


def _said(entry: Entry) -> str:
    return "\n".join(part["text"] for part in entry["parts"] if part["type"] == "text")


class Conversations:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(self, kept: Kept) -> None:
        entries, messages = json.dumps(kept.entries), json.dumps(kept.messages)
        row = (kept.id, kept.owner, kept.title, kept.model, kept.created_at, kept.updated_at, entries, messages, _plain(kept.words()))
        query = f"INSERT INTO conversations ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET {_REPLACED}"
        await self._store.run(lambda c: c.execute(query, row), "write")

    async def get(self, id: str) -> Kept | None:
        query = "SELECT id, title, model, created_at, updated_at, entries, messages, owner FROM conversations WHERE id = ?"
        row = await self._store.run(lambda c: c.execute(query, (id,)).fetchone(), "read")
        if row is None:
            return None
        id, title, model, created_at, updated_at, entries, messages, owner = row
        return Kept(id, title, model, created_at, updated_at, json.loads(entries), json.loads(messages), owner)

    async def delete(self, id: str) -> bool:
        return await self._store.run(lambda c: c.execute("DELETE FROM conversations WHERE id = ?", (id,)).rowcount == 1, "write")

    async def listed(self, words: str, limit: int) -> list[dict[str, Any]]:
        """Newest first; of those only that hold all the words."""
        wanted = _plain(words).split()[:8]
        where = " AND ".join(["words LIKE ? ESCAPE '\\'"] * len(wanted)) or "1 = 1"
        said = "words" if wanted else "''"  # long, and of no use where nothing is looked for
        query = f"SELECT id, title, model, created_at, updated_at, {said} FROM conversations WHERE {where} ORDER BY updated_at DESC, id LIMIT ?"
        values = (*(f"%{_literal(word)}%" for word in wanted), limit)
        rows = await self._store.run(lambda c: c.execute(query, values).fetchall(), "read")
        names = ("id", "title", "model", "created_at", "updated_at")
        return [{**dict(zip(names, row[:5], strict=True)), "snippet": _snippet(row[5], wanted)} for row in rows]


def _plain(text: str) -> str:
    return text.casefold().replace("\0", " ")  # to a database a NUL is where a text ends


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
    def __init__(self, web: Web, rows: Conversations, kept: Kept) -> None:
        self._web = web
        self._rows = rows
        self.kept = kept
        self.seq = int(time.time() * 1_000_000)  # beyond every number of an earlier process, or of an earlier opening
        self._task: asyncio.Task[None] | None = None
        self._tail: list[str] = []
        self.with_tools = False
        """The turn that runs, or ran last, was offered tools."""
        _close_entries(kept.entries, "the server ended")

    @property
    def running(self) -> bool:
        """Until its end is told: whoever answers at once is not held up by what is still being kept."""
        return self._task is not None and not self._task.done() and self.kept.entries[-1].get("ended", True) is None

    def state(self) -> dict[str, Any]:
        """As a tab is shown it that comes now."""
        self._settle()
        kept = self.kept
        told = {name: getattr(kept, name) for name in ("id", "title", "model", "created_at", "updated_at", "entries")}
        return {**told, "running": self.running, "seq": self.seq}

    # --- operations ----------------------------------------------------------------------------------------------------------------------------

    def op(self, name: str, **data: Any) -> None:
        """One change, told to the tabs. The change itself has been made."""
        before, self.seq = self.seq, self.seq + 1
        self._web.hub.publish("chat", {"conversation": self.kept.id, "prev": before, "seq": self.seq, "op": name, **data})

    def _add(self, entry: Entry) -> None:
        self.kept.entries.append(entry)
        self.op(entry["kind"], entry={**entry, "parts": []} if entry["kind"] == "answer" else entry)

    def _words(self, type: str, text: str) -> None:
        parts = self.kept.entries[-1]["parts"]
        if not parts or parts[-1]["type"] != type:
            self._settle()
            parts.append({"type": type, "text": ""})
        self._tail.append(text)
        self.op(type, text=text)

    def _settle(self) -> None:
        """The pieces that came become text of the last part."""
        if self._tail:
            self.kept.entries[-1]["parts"][-1]["text"] += "".join(self._tail)
            self._tail.clear()

    def rename(self, title: str) -> None:
        self.kept.title = title
        self.op("titled", title=title)

    # --- turns ---------------------------------------------------------------------------------------------------------------------------------

    async def begin(self, text: str) -> None:
        """The person's words, and the turn that answers them, in the background."""
        if not self.kept.entries:
            self.rename(" ".join(text.split())[:TITLE] or "New chat")
        self._add({"kind": "user", "at": time.time(), "text": text})
        self.kept.messages.append({"role": "user", "content": text})
        await self._answer()

    async def retry(self) -> None:
        """The last question again, as if its answer had not been given."""
        entries, messages = self.kept.entries, self.kept.messages
        last = max((place for place, entry in enumerate(entries) if entry["kind"] == "user"), default=None)
        if last is None:
            return
        del entries[last + 1 :]
        asked = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=len(messages))
        del messages[asked + 1 :]
        self.op("cut", entries=last + 1)
        await self._answer()

    async def _answer(self) -> None:
        """The turn begins, and is kept with its question before anything is said: a crash leaves an answer that can be asked for again."""
        self._add({"kind": "answer", "at": time.time(), "model": self.kept.model, "parts": [], "ended": None})
        self._task = asyncio.ensure_future(self._turn())
        await self.keep()

    async def stop(self) -> None:
        task = self._task
        await asyncio.sleep(0)  # a turn that is stopped before its first step could not end its answer
        if task is not None and not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _turn(self) -> None:
        ended: dict[str, Any] = {"why": "stopped", "words": "", "usage": {}}
        conversation = self._conversation()
        try:
            async with aclosing(conversation.turn(None)) as happenings:
                async for happening in happenings:
                    if isinstance(happening, Ended):
                        ended = {"why": happening.why, "words": happening.words, "usage": happening.usage}
                    else:
                        await self._tell(happening, conversation)
        except asyncio.CancelledError:
            pass  # the person stopped it: what was said stays
        except Exception as error:
            log.exception("a turn of the conversation %s failed", self.kept.id)
            ended = {"why": "failed", "words": f"The server had an error: {type(error).__name__}.", "usage": {}}
        self._take(conversation)
        answer = self.kept.entries[-1]
        for part in answer["parts"]:
            if part["type"] == "call" and part["state"] == "asked":
                part["state"] = "stopped"
                self.op("call", id=part["id"], state="stopped")
        answer["ended"] = ended
        self.op("ended", ended=ended)
        await asyncio.shield(self.keep())

    def _conversation(self) -> Conversation:
        web, kept = self._web, self.kept
        toolbox = web.toolroom.toolbox if web.toolroom.enabled and web.toolroom.may_use_tools(kept.model) else None
        executor = Executor(toolbox, web.approvals, WebSurface(web)) if toolbox is not None else None
        self.with_tools = executor is not None
        told = [{"role": "system", "content": WITH_TOOLS}] if executor is not None else []
        asking = Asking(kept.id, kept.model, "web", vault=str(web.toolroom.root.resolve()) if executor is not None else "")
        model = GatewayModel(web.gateway, Caller(request_id=random_id("req_")))
        return Conversation(model, kept.model, executor, asking, messages=[*told, *kept.messages])

    def _take(self, conversation: Conversation) -> None:
        self._settle()
        self.kept.messages = [message for message in conversation.messages if message["role"] != "system"]

    async def _tell(self, happening: Happening, conversation: Conversation) -> None:
        if isinstance(happening, SaidText | ThoughtText):
            self._words("text" if isinstance(happening, SaidText) else "thought", happening.text)
        elif isinstance(happening, Called):
            self._settle()
            parts = [self._called(call) for call in happening.calls]
            self.kept.entries[-1]["parts"] += parts
            self.op("calls", parts=parts)
            await self._keep_at(conversation)
        elif isinstance(happening, Did):
            self._did(happening.outcome)
            await self._keep_at(conversation)

    def _called(self, call: ToolCall) -> dict[str, Any]:
        tool = self._web.toolroom.toolbox.tools.get(call.name) if self._web.toolroom.toolbox is not None else None
        told = {"type": "call", "id": call.id, "name": call.name, "title": tool.title if tool is not None else call.name}
        return {**told, "arguments": call.arguments, "state": "asked", "result": None, "notice": "", "shared": [], "unread": {}}

    def _did(self, outcome: Outcome) -> None:
        read = {"shared": list(outcome.shared), "unread": dict(outcome.unread)}
        changed = {"state": outcome.status, "result": _as_json(outcome.result), "notice": outcome.notice, **read}
        asked = (part for part in self.kept.entries[-1]["parts"] if part["type"] == "call" and part["id"] == outcome.call.id)
        for part in asked:
            if part["state"] == "asked":
                part.update(changed)
                break
        self.op("call", id=outcome.call.id, **changed)

    # --- keeping -------------------------------------------------------------------------------------------------------------------------------

    async def _keep_at(self, conversation: Conversation) -> None:
        self._take(conversation)
        await self.keep()

    async def keep(self) -> None:
        self._settle()
        self.kept.updated_at = time.time()
        await self._rows.put(self.kept)
        self._listed()

    def _listed(self) -> None:
        self._web.hub.publish("conversations", {})


class WebSurface:
    """The pages ask: every tab that looks at the conversation, and the inbox. Nobody decides here by leaving."""

    def __init__(self, web: Web) -> None:
        self._web = web

    async def ask(self, approvals: Sequence[Approval]) -> bool:
        pending = await self._web.approvals.pending()
        self._web.hub.publish("approvals", {"pending": len(pending)})
        return True


def _as_json(result: Any) -> Any:
    """As the model was told it, whatever the tool gave."""
    return json.loads(json.dumps(result, ensure_ascii=False, default=str).encode("utf-8", "replace"))


def _close_entries(entries: list[Entry], words: str) -> None:
    """What an earlier process left open is over."""
    for entry in entries:
        if entry["kind"] != "answer":
            continue
        for part in entry["parts"]:
            if part["type"] == "call" and part["state"] == "asked":
                part["state"] = "stopped"
        if entry["ended"] is None:
            entry["ended"] = {"why": "stopped", "words": words, "usage": {}}

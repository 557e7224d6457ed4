"""The pages' conversations as rows of the store: what was shown (`entries`), what the model is sent (`messages`), and the words to find it by."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from toolwire.gateway.store import Store

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

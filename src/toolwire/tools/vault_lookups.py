"""`Library` (an open vault), and the tools that list a vault's folders, tags, tasks and more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any, TypeVar

from toolwire.core.display import counted
from toolwire.tools.contract import Arguments, Effect, Preview, Ran, Tool, ToolFailed
from toolwire.vault.edits import Edits
from toolwire.vault.graph import Graph, daily_path
from toolwire.vault.index import Index
from toolwire.vault.paths import Vault
from toolwire.vault.policy import PathRefused

MOST_LISTED = 500
T = TypeVar("T")


class Library:
    """An open vault with its index.

    `refresh` updates the index from the files. A refresh needs no grant, because the index stays on this
    machine.
    """

    def __init__(
        self, root: Path, include: Sequence[str] = (), exclude: Sequence[str] = (), cache: Path | None = None
    ) -> None:
        self.vault = Vault(root, include, exclude)
        try:
            self.index = Index(self.vault, cache)
        except BaseException:
            self.vault.close()
            raise
        self.edits = Edits(self.vault)
        self.graph = Graph(self.index)

    async def refresh(self) -> None:
        await in_thread(self.index.refresh)

    def close(self) -> None:
        self.index.close()
        self.vault.close()


async def in_thread(do: Callable[[], T]) -> T:
    """Runs `do` in a thread and returns its result. Raises `ToolFailed` instead of `PathRefused`.

    If the index cannot be used, the error for the person contains the index's path; the error for the model
    does not.
    """
    try:
        return await asyncio.to_thread(do)
    except PathRefused as refused:
        if refused.kind == "index":
            raise ToolFailed(refused.reason, person=str(refused)) from None
        raise ToolFailed(not_found(refused) or str(refused)) from None


def not_found(refused: PathRefused) -> str:
    return f"File not found: {refused.path}" if refused.kind == "missing" else ""


def schema(required: Sequence[str] = (), **properties: dict[str, Any]) -> dict[str, Any]:
    closed = {"required": list(required), "additionalProperties": False}
    return {"type": "object", "properties": properties, **closed}


def text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", **more, "description": description}


PATH = text("Path of a note in the vault, such as folder/note.md.")
_FOLDER = text("A folder of the vault; empty: the whole vault.", default="")


class VaultTool:
    def __init__(self, library: Library) -> None:
        self._library = library

    def share(self, ran: Ran, picked: Sequence[str]) -> Any:
        """Returns the whole result. Among the vault tools, only a search lets the person pick results."""
        return ran.value


# --- what the index knows ---


class _IndexTool(VaultTool):
    """A tool that answers from the index.

    `about` describes the answer for the person. `look` returns the answer.
    """

    effect: Effect = "read"
    title: str

    def about(self, given: Arguments) -> str:
        raise NotImplementedError

    def look(self, given: Arguments) -> Any:
        raise NotImplementedError

    async def preview(self, arguments: Arguments) -> Preview:
        return Preview(summary=self.about(arguments), action=self.title)

    async def run(self, arguments: Arguments, picked: Sequence[str] | None, shown: Preview) -> Ran:
        await self._library.refresh()
        return Ran(await in_thread(lambda: self.look(arguments)))

    def _existing(self, path: str) -> str:
        if self._library.vault.size(path) is None:
            raise PathRefused(path, "not found", "missing")
        return path


class VaultList(_IndexTool):
    name = "vault_list"
    title = "List a folder"
    purpose = "Shows the names and sizes of folders and notes, not their contents."
    description = "List the folders and notes of a vault folder, with sizes."
    parameters = schema(folder=_FOLDER, depth={"type": "integer", "minimum": 1, "maximum": 8, "default": 1})

    def about(self, given: Arguments) -> str:
        where = f"in the folder {given['folder']}" if given["folder"] else "in the whole vault"
        return f"names of folders and notes {where}, {counted(int(given['depth']), 'level')} deep"

    def look(self, given: Arguments) -> Any:
        return self._library.graph.listing(given["folder"].strip("/"), int(given["depth"]), MOST_LISTED)


class VaultTags(_IndexTool):
    name = "vault_tags"
    title = "List tags"
    purpose = "Shows all tags with their number of notes, or the names of the notes with one tag."
    description = "List all tags with their number of notes, or, with `tag`, the notes that have it."
    parameters = schema(tag=text("Only the notes with this tag or one nested in it."))

    def about(self, given: Arguments) -> str:
        return f"names of the notes with #{given['tag']}" if given.get("tag") else "all tags of the vault"

    def look(self, given: Arguments) -> Any:
        graph, tag = self._library.graph, given.get("tag")
        if tag:
            return {"tag": tag, "notes": graph.tagged(tag, MOST_LISTED)}
        return {"tags": graph.tags(MOST_LISTED)}


class NoteLinks(_IndexTool):
    name = "note_links"
    title = "List links of a note"
    purpose = "Shows which notes a note links to, and which link to it."
    description = "List the outgoing links and the backlinks of a note."
    parameters = schema(("filePath",), filePath=PATH)

    def about(self, given: Arguments) -> str:
        return f"links and backlinks of {given['filePath']}"

    def look(self, given: Arguments) -> Any:
        graph, path = self._library.graph, self._existing(given["filePath"])
        links, backlinks = graph.links(path, MOST_LISTED), graph.backlinks(path, MOST_LISTED)
        return {"path": path, "links": links, "backlinks": backlinks}


class NoteProperties(_IndexTool):
    name = "note_properties"
    title = "Read properties"
    purpose = "Shows the frontmatter of a note, or the names of all properties."
    description = (
        "Read the properties (frontmatter) of a note; without a path, list the names of all properties."
    )
    parameters = schema(filePath=PATH)

    def about(self, given: Arguments) -> str:
        path = given.get("filePath")
        return f"frontmatter of {path}" if path else "names of all properties"

    def look(self, given: Arguments) -> Any:
        graph = self._library.graph
        if not given.get("filePath"):
            return {"names": graph.property_names(MOST_LISTED)}
        path = self._existing(given["filePath"])
        return {"path": path, "properties": graph.properties(path)}


class VaultTasks(_IndexTool):
    name = "vault_tasks"
    title = "List tasks"
    purpose = "Shows the tasks (- [ ] …) in notes, with their text."
    description = "List tasks of the vault, a folder or a note, with their notes and lines."
    parameters = schema(
        folder=text("A folder or a note of the vault; empty: the whole vault.", default=""),
        status={"type": "string", "enum": ["open", "done", "all"], "default": "open"},
    )

    def about(self, given: Arguments) -> str:
        return f"the text of {given['status']} tasks in {given['folder'] or 'the whole vault'}"

    def look(self, given: Arguments) -> Any:
        folder = given["folder"].strip("/")
        return {"tasks": self._library.graph.tasks(given["status"], folder, MOST_LISTED)}


class DailyNote(_IndexTool):
    name = "daily_note"
    title = "Find a daily note"
    purpose = "Shows the path of a day's note and whether it exists."
    description = "Find the path of the daily note of a day; it may not exist yet."
    parameters = schema(date=text("today, yesterday, tomorrow or YYYY-MM-DD.", default="today"))

    def about(self, given: Arguments) -> str:
        return f"the path of the daily note of {given['date']}"

    def look(self, given: Arguments) -> Any:
        days, asked = {"today": 0, "yesterday": -1, "tomorrow": 1}, given["date"]
        try:
            day = date.today() + timedelta(days[asked]) if asked in days else date.fromisoformat(asked)
        except ValueError:
            expected = "expected today, yesterday, tomorrow or a date such as 2026-11-15"
            raise ToolFailed(f"{asked}: {expected}") from None
        vault = self._library.vault
        path = daily_path(vault, day)
        vault.policy.segments(path)  # the vault's settings may name any path
        return {"date": day.isoformat(), "path": path, "exists": vault.size(path) is not None}


def lookups(library: Library) -> list[Tool]:
    return [
        tool(library) for tool in (VaultList, VaultTags, NoteLinks, NoteProperties, VaultTasks, DailyNote)
    ]

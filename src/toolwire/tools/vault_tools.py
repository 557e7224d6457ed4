"""The tools of a vault: their schemas, their previews, and what they do after a grant.

Previews use only the index: no note is opened before its grant, except for the old text that a change is
compared with. Only the person sees that text and everything derived from it, unless they approve. Blocking
work runs in threads. The first two tools have the names and schemas that vault plugins already use.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from toolwire.settings.types import Settings
from toolwire.tools.contract import Arguments, Effect, Preview, Ran, Tool, ToolFailed, Touched
from toolwire.tools.open_vault import Library, in_thread
from toolwire.tools.rules import compiled, fits
from toolwire.vault import Change, Found, Hit, NoteText, PathRefused
from toolwire.vault.daily import daily_path, daily_settings
from toolwire.vault.index import watch
from toolwire.vault.paths import size_shown, too_large
from toolwire.vault.policy import shown as shown_path
from toolwire.vault.search import search

MOST_LISTED = 500
SNIPPET = 240


def _schema(required: Sequence[str] = (), **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


_PATH = {"type": "string", "description": "Path of a note in the vault, such as folder/note.md."}
_BASE = {
    "type": "string",
    "description": "The sha256 that file_read gave when it read the whole note; the change is refused if the note has changed since.",
}
_FOLDER = {"type": "string", "default": "", "description": "A folder of the vault; empty: the whole vault."}


# --- search and read -----------------------------------------------------------------------------


class VaultSearch:
    name = "vault_search"
    title = "Search the vault"
    purpose = "Looks for notes by name, heading, tag and text. Nothing is shared before you have picked from what was found."
    description = (
        "Search the Obsidian vault for files by name or content. Returns file paths, names, and content previews. "
        "Use this to find relevant notes before reading them."
    )
    effect: Effect = "search"
    parameters = _schema(
        ("query",),
        query={"type": "string", "minLength": 1, "description": 'Words, a "phrase", tag:name or path:folder to look for in names and contents.'},
        limit={"type": "integer", "minimum": 1, "maximum": 50, "default": 10, "description": "How many results at most. Default 10, maximum 50."},
    )

    def __init__(self, library: Library, patterns: Sequence[str] = ()) -> None:
        self._library = library
        self._patterns = tuple(patterns)

    def within(self, patterns: Sequence[str]) -> VaultSearch:
        return VaultSearch(self._library, patterns)

    async def preview(self, arguments: Arguments) -> Preview:
        return Preview(summary=f'looks through the index of the vault for "{arguments["query"]}"')

    async def run(self, arguments: Arguments, picked: Sequence[str] | None, shown: Preview) -> Ran:
        await self._library.refresh()
        patterns = [compiled(glob) for glob in self._patterns]
        within = (lambda path: any(fits(one, path) for one in patterns)) if patterns else None
        found: Found = await in_thread(lambda: search(self._library.index, arguments["query"], int(arguments["limit"]), within))
        touched = tuple(Touched(str(place), hit.path, hit.size, _snippet(hit)) for place, hit in enumerate(found.hits))
        where = f" within {' or '.join(self._patterns)}" if patterns else ""
        return Ran(found, Preview(touched, summary=f"{found.total} notes match{where}", pick=True))

    def share(self, ran: Ran, picked: Sequence[str]) -> Any:
        found: Found = ran.value
        told = {"query": found.query, "results": [_told(hit) for place, hit in enumerate(found.hits) if str(place) in picked]}
        return {**told, **({"relaxed": True} if found.relaxed and told["results"] else {}), **({"hint": found.hint} if found.hint else {})}


def _snippet(hit: Hit) -> str:
    return f"{' › '.join(hit.headings)}: {hit.preview}" if hit.headings else hit.preview


def _told(hit: Hit) -> dict[str, Any]:
    told = {"path": hit.path, "basename": hit.basename, "matches": hit.matches, "preview": hit.preview}
    return {
        **told,
        "heading": list(hit.headings),
        "lines": [hit.first_line, hit.last_line],
        "line": hit.line,
        "score": hit.score,
        "tags": list(hit.tags),
    }


class FileRead:
    name = "file_read"
    title = "Read notes"
    purpose = "Reads notes and shares their contents with the model. Only the ones that you pick are read."
    description = (
        "Read the full contents of specific files from the vault. User will be asked to approve which files to share. "
        "Use this after searching to get complete file contents. With `ranges` only some lines of a file are read. "
        "A file that is read whole comes with its sha256, for the baseHash of a change."
    )
    effect: Effect = "read"
    parameters = _schema(
        ("filePaths",),
        filePaths={
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "maxItems": 50,
            "description": "Paths, as vault_search returns them.",
        },
        ranges={
            "type": "array",
            "description": "Lines to read of some of the files, counted from 1, both included.",
            "items": _schema(
                ("filePath",),
                filePath={"type": "string"},
                startLine={"type": "integer", "minimum": 1},
                endLine={"type": "integer", "minimum": 1},
            ),
        },
    )

    def __init__(self, library: Library) -> None:
        self._library = library

    def paths(self, arguments: Arguments) -> tuple[str, ...]:
        return tuple(dict.fromkeys(arguments["filePaths"]))

    async def preview(self, arguments: Arguments) -> Preview:
        paths = self.paths(arguments)
        sizes = await in_thread(lambda: self._library.sizes(paths))
        return Preview(tuple(self._touched(path, sizes.get(path)) for path in paths), pick=True)

    def _touched(self, path: str, size: int | None) -> Touched:
        most = self._library.vault.limits.file_bytes
        reason = too_large(size, most) if size is not None and size > most else ""
        return Touched(path, path, size, missing=size is None or bool(reason), reason=reason)

    async def run(self, arguments: Arguments, picked: Sequence[str] | None, shown: Preview) -> Ran:
        wanted = [one.path for one in shown.touched if picked is not None and one.key in picked]
        ranges = {one["filePath"]: (_line(one.get("startLine")), _line(one.get("endLine"))) for one in arguments.get("ranges") or ()}
        left = self._library.vault.limits.call_bytes
        read: dict[str, NoteText | PathRefused] = {}
        for path in wanted:
            read[path] = note = await asyncio.to_thread(self._read, path, *ranges.get(path, (None, None)), left)
            if isinstance(note, NoteText):
                left = 0 if note.truncated else left - len(note.text.encode("utf-8", "replace"))
        for one in shown.touched:  # unreadable, so it could not be picked: saying so shares nothing
            if one.missing and one.path not in read:
                read[one.path] = PathRefused(one.path, one.reason or "not found", "size" if one.reason else "missing")
        unread = tuple((path, note.reason) for path, note in read.items() if isinstance(note, PathRefused))
        shared = tuple(path for path, note in read.items() if isinstance(note, NoteText))
        return Ran([_content(path, note) for path, note in read.items()], shared=shared, unread=unread)

    def _read(self, path: str, first: int | None, last: int | None, left: int) -> NoteText | PathRefused:
        try:
            if left <= 0:
                raise PathRefused(path, f"not read: one call reads at most {size_shown(self._library.vault.limits.call_bytes)}", "limit")
            return self._library.vault.read(path, first, last, left)
        except PathRefused as refused:
            return refused

    def share(self, ran: Ran, picked: Sequence[str]) -> Any:
        return ran.value


def _line(number: float | None) -> int | None:
    """The value as an int: in JSON, `3.0` is an integer too."""
    return None if number is None else int(number)


def _content(path: str, note: NoteText | PathRefused) -> dict[str, Any]:
    """A file for the model.

    It has the hash only with the whole text: otherwise the model could confirm guesses.
    """
    if isinstance(note, PathRefused):
        return {"path": path, "content": f"File not found: {path}" if note.kind == "missing" else f"Error reading file: {note.reason}", "size": 0}
    told: dict[str, Any] = {"path": note.path, "content": note.text, "size": note.size}
    if (note.start_line, note.end_line) != (1, note.total_lines):
        told |= {"lines": [note.start_line, note.end_line], "total_lines": note.total_lines}
    elif not note.truncated:
        told["sha256"] = note.sha256
    return {**told, "truncated": True} if note.truncated else told


# --- what the index knows ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Looked:
    """A tool that answers from the index. `look`: its answer. `about`: what it answers, for the person."""

    name: str
    title: str
    purpose: str
    description: str
    parameters: dict[str, Any]
    library: Library
    look: Callable[[Library, Arguments], Any]
    about: Callable[[Arguments], str]
    effect: Effect = "read"

    async def preview(self, arguments: Arguments) -> Preview:
        return Preview(summary=self.about(arguments))

    async def run(self, arguments: Arguments, picked: Sequence[str] | None, shown: Preview) -> Ran:
        await self.library.refresh()
        return Ran(await in_thread(lambda: self.look(self.library, arguments)))

    def share(self, ran: Ran, picked: Sequence[str]) -> Any:
        return ran.value


def _where(arguments: Arguments) -> str:
    return f"folder {arguments['folder']}" if arguments.get("folder") else "whole vault"


def _listing(library: Library, arguments: Arguments) -> Any:
    found = library.graph.listing(arguments["folder"].strip("/"), int(arguments["depth"]), MOST_LISTED)
    files = [{"path": one.path, "size": one.size} for one in found.files]
    return {"folders": [asdict(one) for one in found.folders], "files": files, "truncated": found.truncated}


def _tags(library: Library, arguments: Arguments) -> Any:
    if arguments.get("tag"):
        return {"tag": arguments["tag"], "notes": library.graph.tagged(arguments["tag"], MOST_LISTED)}
    return {"tags": [asdict(one) for one in library.graph.tags(MOST_LISTED)]}


def _links(library: Library, arguments: Arguments) -> Any:
    path = arguments["filePath"]
    if path not in library.sizes([path]):
        raise PathRefused(path, "not found", "missing")
    return {
        "path": path,
        "links": [asdict(one) for one in library.graph.links(path, MOST_LISTED)],
        "backlinks": [asdict(one) for one in library.graph.backlinks(path, MOST_LISTED)],
    }


def _properties(library: Library, arguments: Arguments) -> Any:
    if not arguments.get("filePath"):
        return {"names": [{"name": name, "notes": count} for name, count in library.graph.property_names(MOST_LISTED)]}
    path = arguments["filePath"]
    if path not in library.sizes([path]):
        raise PathRefused(path, "not found", "missing")
    return {"path": path, "properties": library.graph.properties(path)}


def _tasks(library: Library, arguments: Arguments) -> Any:
    wanted = {"open": False, "done": True, "all": None}[arguments["status"]]
    found = library.graph.tasks(wanted, None, arguments["folder"].strip("/"), MOST_LISTED)
    return {"tasks": [{"path": path, "line": task.line, "text": task.text, "done": task.done} for path, task in found]}


def _daily(library: Library, arguments: Arguments) -> Any:
    days = {"today": 0, "yesterday": -1, "tomorrow": 1}
    asked = arguments["date"]
    try:
        day = date.today() + timedelta(days[asked]) if asked in days else date.fromisoformat(asked)
    except ValueError:
        raise ToolFailed(f"{asked}: expected today, yesterday, tomorrow or a date such as 2026-11-15") from None
    path = daily_path(daily_settings(library.vault), day)
    library.vault.policy.segments(path)  # the vault's settings may name any path
    return {"date": day.isoformat(), "path": path, "exists": path in library.sizes([path])}


def _looks(library: Library) -> list[Tool]:
    """Name, title, purpose, description, schema, answer, and what it answers, for the person."""
    rows: tuple[tuple[Any, ...], ...] = (
        (
            "vault_list",
            "List a folder",
            "Tells the names and sizes of folders and notes, not their contents.",
            "List the folders and notes of a vault folder, with sizes.",
            _schema((), folder=_FOLDER, depth={"type": "integer", "minimum": 1, "maximum": 8, "default": 1}),
            _listing,
            lambda arguments: f"names of folders and notes, {_where(arguments)}, {arguments['depth']} deep",
        ),
        (
            "vault_tags",
            "List tags",
            "Tells the tags of the vault with how many notes have them, or the names of the notes with one tag.",
            "List all tags with their number of notes, or, with `tag`, the notes that have it.",
            _schema((), tag={"type": "string", "description": "Only the notes with this tag or one nested in it."}),
            _tags,
            lambda arguments: f"names of the notes with #{arguments['tag']}" if arguments.get("tag") else "all tags of the vault",
        ),
        (
            "note_links",
            "List links of a note",
            "Tells which notes a note links to, and which link to it.",
            "List the outgoing links and the backlinks of a note.",
            _schema(("filePath",), filePath=_PATH),
            _links,
            lambda arguments: f"links and backlinks of {arguments['filePath']}",
        ),
        (
            "note_properties",
            "Read properties",
            "Tells the frontmatter of a note, or the names of all properties.",
            "Read the properties (frontmatter) of a note; without a path, list the names of all properties.",
            _schema((), filePath=_PATH),
            _properties,
            lambda arguments: f"frontmatter of {arguments['filePath']}" if arguments.get("filePath") else "names of all properties",
        ),
        (
            "vault_tasks",
            "List tasks",
            "Tells the tasks (- [ ] …) in notes, with their text.",
            "List tasks of the vault or a folder with the notes and lines they stand in.",
            _schema((), folder=_FOLDER, status={"type": "string", "enum": ["open", "done", "all"], "default": "open"}),
            _tasks,
            lambda arguments: f"the text of {arguments['status']} tasks, {_where(arguments)}",
        ),
        (
            "daily_note",
            "Find a daily note",
            "Tells the path of a day's note and whether it exists.",
            "Find the path of the daily note of a day; it may not exist yet.",
            _schema((), date={"type": "string", "default": "today", "description": "today, yesterday, tomorrow or YYYY-MM-DD."}),
            _daily,
            lambda arguments: f"the path of the daily note of {arguments['date']}",
        ),
    )
    return [Looked(name, title, purpose, told, schema, library, look, about) for name, title, purpose, told, schema, look, about in rows]


# --- changes -------------------------------------------------------------------------------------


_CHANGED = "the note has changed since the person was asked"


@dataclass(frozen=True, slots=True)
class Changing:
    """A tool that changes a note. It writes exactly the diff that was shown: it plans again and compares the
    diffs.

    `check` judges a call by its text alone; the model gets its refusals at once. `plan` reads the note; its
    refusals are for the person (`Preview.problem`). `hashed`: whether the result has the note's new hash.
    `asserts`: whether the call requires a certain old text. Such a call is a problem if it changes nothing:
    under a standing grant its success would confirm a guess and leave no trace.
    """

    name: str
    title: str
    purpose: str
    description: str
    parameters: dict[str, Any]
    library: Library
    check: Callable[[Library, Arguments], None]
    plan: Callable[[Library, Arguments], Change]
    hashed: Callable[[Arguments], bool]
    asserts: Callable[[Arguments], bool]
    effect: Effect = "write"

    def paths(self, arguments: Arguments) -> tuple[str, ...]:
        try:
            self.check(self.library, arguments)
        except PathRefused as refused:
            raise ToolFailed(str(refused)) from None
        return (arguments["filePath"],)

    async def preview(self, arguments: Arguments) -> Preview:
        change = await in_thread(lambda: self.plan(self.library, arguments))
        path = arguments["filePath"]  # not the disk's spelling: the choice of grant must not depend on the note
        same = not change.creates and not change.diff
        if same and self.asserts(arguments):
            raise ToolFailed(f"{shown_path(path)}: the note is already as asked for; nothing would change")
        what = f"{'creates' if change.creates else 'changes'} {change.path}: {change.added} lines added, {change.removed} removed"
        summary = f"writes {change.path}: its text stays as it is" if same else what
        return Preview((Touched(path, path, len(change.content)),), change.diff, summary)

    async def run(self, arguments: Arguments, picked: Sequence[str] | None, shown: Preview) -> Ran:
        def write() -> dict[str, Any]:
            try:
                change = self.plan(self.library, arguments)
            except PathRefused as refused:  # the reason is about text that the person did not see
                raise PathRefused(refused.path, _CHANGED, "changed") from None
            if change.diff != shown.diff:
                raise PathRefused(change.path, _CHANGED, "changed")
            done = {"path": self.library.edits.apply(change), "created": change.creates}
            return {**done, **({"sha256": change.after_sha256} if self.hashed(arguments) else {})}

        done = await in_thread(write)
        await self.library.refresh()
        return Ran(done)

    def share(self, ran: Ran, picked: Sequence[str]) -> Any:
        return ran.value


def _changes(library: Library) -> list[Tool]:
    return [
        Changing(
            "note_write",
            "Write a note",
            "Creates a note, or replaces all of its text. You see the difference first.",
            "Create a note or replace its whole text. Give baseHash when you replace a note that you have read.",
            _schema(("filePath", "content"), filePath=_PATH, content={"type": "string"}, baseHash=_BASE),
            library,
            lambda library, arguments: library.edits.check_write(arguments["filePath"], arguments["content"]),
            lambda library, arguments: library.edits.plan_write(arguments["filePath"], arguments["content"], arguments.get("baseHash")),
            lambda arguments: True,
            lambda arguments: arguments.get("baseHash") is not None,
        ),
        Changing(
            "note_edit",
            "Edit a note",
            "Replaces passages of a note. You see the difference first.",
            "Edit a note by replacing passages. Each oldText must occur in the note exactly once. Read the note first.",
            _schema(
                ("filePath", "edits"),
                filePath=_PATH,
                edits={
                    "type": "array",
                    "minItems": 1,
                    "items": _schema(("oldText", "newText"), oldText={"type": "string", "minLength": 1}, newText={"type": "string"}),
                },
                baseHash=_BASE,
            ),
            library,
            lambda library, arguments: library.edits.check_edit(arguments["filePath"], _edits(arguments)),
            lambda library, arguments: library.edits.plan_edit(arguments["filePath"], _edits(arguments), arguments.get("baseHash")),
            lambda arguments: arguments.get("baseHash") is not None,  # else the hash would be of text that the model has not read
            lambda arguments: True,
        ),
    ]


def _edits(arguments: Arguments) -> list[tuple[str, str]]:
    return [(one["oldText"], one["newText"]) for one in arguments["edits"]]


# --- all of them ---------------------------------------------------------------------------------


def tools_of(library: Library) -> list[Tool]:
    return [VaultSearch(library), FileRead(library), *_looks(library), *_changes(library)]


def described() -> dict[str, Tool]:
    """The tools by name, without a vault, for callers that only describe them."""
    return {tool.name: tool for tool in tools_of(None)}  # type: ignore[arg-type]


@asynccontextmanager
async def opened(settings: Settings, root: Path) -> AsyncIterator[list[Tool]]:
    """The tools of the vault at `root`. Its index follows the files while they are open."""
    library = await asyncio.to_thread(Library, root, settings.vault.include, settings.vault.exclude)
    watching = asyncio.ensure_future(watch(library.index))
    try:
        yield tools_of(library)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await asyncio.to_thread(library.close)

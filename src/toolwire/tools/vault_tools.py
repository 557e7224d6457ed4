"""The tools of a vault: their schemas, their previews, and what they do after a grant.

No note is opened before its grant, except for the old text that a change is compared with. Only the person
sees that text and everything derived from it, unless they approve. The first two tools have the names and
schemas that vault plugins already use.
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


def _schema(required: Sequence[str] = (), **properties: dict[str, Any]) -> dict[str, Any]:
    closed = {"required": list(required), "additionalProperties": False}
    return {"type": "object", "properties": properties, **closed}


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", **more, "description": description}


_PATH = _text("Path of a note in the vault, such as folder/note.md.")
_BASE = _text(
    "The sha256 that file_read gave when it read the whole note; "
    "the change is refused if the note has changed since."
)
_FOLDER = _text("A folder of the vault; empty: the whole vault.", default="")


# --- search and read -----------------------------------------------------------------------------


class VaultSearch:
    name = "vault_search"
    title = "Search the vault"
    purpose = (
        "Looks for notes by name, heading, tag and text. "
        "Nothing is shared before you have picked from what was found."
    )
    description = (
        "Search the Obsidian vault for files by name or content. "
        "Returns file paths, names, and content previews. Use this to find relevant notes before "
        "reading them."
    )
    effect: Effect = "search"
    parameters = _schema(
        ("query",),
        query=_text(
            'Words, a "phrase", tag:name or path:folder to look for in names and contents.', minLength=1
        ),
        limit={
            "type": "integer",
            "minimum": 1,
            "maximum": 50,
            "default": 10,
            "description": "How many results at most. Default 10, maximum 50.",
        },
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
        found: Found = await in_thread(
            lambda: search(self._library.index, arguments["query"], int(arguments["limit"]), within)
        )
        touched = tuple(
            Touched(str(number), hit.path, hit.size, _snippet(hit)) for number, hit in enumerate(found.hits)
        )
        where = f" within {' or '.join(self._patterns)}" if patterns else ""
        return Ran(found, Preview(touched, summary=f"{found.total} notes match{where}", pick=True))

    def share(self, ran: Ran, picked: Sequence[str]) -> Any:
        found: Found = ran.value
        results = [_result(hit) for number, hit in enumerate(found.hits) if str(number) in picked]
        shared: dict[str, Any] = {"query": found.query, "results": results}
        if found.relaxed and results:
            shared["relaxed"] = True
        return shared | ({"hint": found.hint} if found.hint else {})


def _snippet(hit: Hit) -> str:
    return f"{' › '.join(hit.headings)}: {hit.preview}" if hit.headings else hit.preview


def _result(hit: Hit) -> dict[str, Any]:
    return {
        "path": hit.path,
        "basename": hit.basename,
        "matches": hit.matches,
        "preview": hit.preview,
        "heading": list(hit.headings),
        "lines": [hit.first_line, hit.last_line],
        "line": hit.line,
        "score": hit.score,
        "tags": list(hit.tags),
    }


class _SharesAll:
    """A tool whose run needs no second grant."""

    def share(self, ran: Ran, picked: Sequence[str]) -> Any:
        return ran.value


class FileRead(_SharesAll):
    name = "file_read"
    title = "Read notes"
    purpose = "Reads notes and shares their contents with the model. Only the ones that you pick are read."
    description = (
        "Read the full contents of specific files from the vault. "
        "User will be asked to approve which files to share. "
        "Use this after searching to get complete file contents. "
        "With `ranges` only some lines of a file are read. A file that is read whole comes with its "
        "sha256, for the baseHash of a change."
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
        ranges = {
            one["filePath"]: (_line(one.get("startLine")), _line(one.get("endLine")))
            for one in arguments.get("ranges") or ()
        }
        left = self._library.vault.limits.call_bytes
        read: dict[str, NoteText | PathRefused] = {}
        for path in wanted:
            lines = ranges.get(path, (None, None))
            read[path] = note = await asyncio.to_thread(self._read, path, *lines, left)
            if isinstance(note, NoteText):
                left = 0 if note.truncated else left - len(note.text.encode("utf-8", "replace"))
        for one in shown.touched:  # unreadable, so it could not be picked: saying so shares nothing
            if one.missing and one.path not in read:
                kind = "size" if one.reason else "missing"
                read[one.path] = PathRefused(one.path, one.reason or "not found", kind)
        unread = tuple((path, note.reason) for path, note in read.items() if isinstance(note, PathRefused))
        shared = tuple(path for path, note in read.items() if isinstance(note, NoteText))
        return Ran([_content(path, note) for path, note in read.items()], shared=shared, unread=unread)

    def _read(self, path: str, first: int | None, last: int | None, left: int) -> NoteText | PathRefused:
        if left <= 0:
            most = size_shown(self._library.vault.limits.call_bytes)
            return PathRefused(path, f"not read: one call reads at most {most}", "limit")
        try:
            return self._library.vault.read(path, first, last, left)
        except PathRefused as refused:
            return refused


def _line(number: float | None) -> int | None:
    """The value as an int: in JSON, `3.0` is an integer too."""
    return None if number is None else int(number)


def _content(path: str, note: NoteText | PathRefused) -> dict[str, Any]:
    """A file for the model. A partial text has no hash: it would let the model confirm guesses."""
    if isinstance(note, PathRefused):
        missing = note.kind == "missing"
        content = f"File not found: {path}" if missing else f"Error reading file: {note.reason}"
        return {"path": path, "content": content, "size": 0}
    shared: dict[str, Any] = {"path": note.path, "content": note.text, "size": note.size}
    if (note.start_line, note.end_line) != (1, note.total_lines):
        shared |= {"lines": [note.start_line, note.end_line], "total_lines": note.total_lines}
    elif not note.truncated:
        shared["sha256"] = note.sha256
    return {**shared, "truncated": True} if note.truncated else shared


# --- what the index knows ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Looked(_SharesAll):
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


def _existing(library: Library, arguments: Arguments) -> str:
    path: str = arguments["filePath"]
    if path not in library.sizes([path]):
        raise PathRefused(path, "not found", "missing")
    return path


def _links(library: Library, arguments: Arguments) -> Any:
    path = _existing(library, arguments)
    return {
        "path": path,
        "links": [asdict(one) for one in library.graph.links(path, MOST_LISTED)],
        "backlinks": [asdict(one) for one in library.graph.backlinks(path, MOST_LISTED)],
    }


def _properties(library: Library, arguments: Arguments) -> Any:
    if not arguments.get("filePath"):
        names = library.graph.property_names(MOST_LISTED)
        return {"names": [{"name": name, "notes": count} for name, count in names]}
    path = _existing(library, arguments)
    return {"path": path, "properties": library.graph.properties(path)}


def _tasks(library: Library, arguments: Arguments) -> Any:
    wanted = {"open": False, "done": True, "all": None}[arguments["status"]]
    found = library.graph.tasks(wanted, None, arguments["folder"].strip("/"), MOST_LISTED)
    tasks = [{"path": path, "line": one.line, "text": one.text, "done": one.done} for path, one in found]
    return {"tasks": tasks}


def _daily(library: Library, arguments: Arguments) -> Any:
    days = {"today": 0, "yesterday": -1, "tomorrow": 1}
    asked = arguments["date"]
    try:
        day = date.today() + timedelta(days[asked]) if asked in days else date.fromisoformat(asked)
    except ValueError:
        expected = "expected today, yesterday, tomorrow or a date such as 2026-11-15"
        raise ToolFailed(f"{asked}: {expected}") from None
    path = daily_path(daily_settings(library.vault), day)
    library.vault.policy.segments(path)  # the vault's settings may name any path
    return {"date": day.isoformat(), "path": path, "exists": path in library.sizes([path])}


def _looks(library: Library) -> list[Tool]:
    tag = _text("Only the notes with this tag or one nested in it.")
    depth = {"type": "integer", "minimum": 1, "maximum": 8, "default": 1}
    status = {"type": "string", "enum": ["open", "done", "all"], "default": "open"}
    day = _text("today, yesterday, tomorrow or YYYY-MM-DD.", default="today")
    return [
        Looked(
            "vault_list",
            "List a folder",
            "Shows the names and sizes of folders and notes, not their contents.",
            "List the folders and notes of a vault folder, with sizes.",
            _schema(folder=_FOLDER, depth=depth),
            library,
            _listing,
            lambda given: f"names of folders and notes, {_where(given)}, {given['depth']} deep",
        ),
        Looked(
            "vault_tags",
            "List tags",
            "Shows the tags with how many notes have them, or the names of the notes with one tag.",
            "List all tags with their number of notes, or, with `tag`, the notes that have it.",
            _schema(tag=tag),
            library,
            _tags,
            lambda given: (
                f"names of the notes with #{given['tag']}" if given.get("tag") else "all tags of the vault"
            ),
        ),
        Looked(
            "note_links",
            "List links of a note",
            "Shows which notes a note links to, and which link to it.",
            "List the outgoing links and the backlinks of a note.",
            _schema(("filePath",), filePath=_PATH),
            library,
            _links,
            lambda given: f"links and backlinks of {given['filePath']}",
        ),
        Looked(
            "note_properties",
            "Read properties",
            "Shows the frontmatter of a note, or the names of all properties.",
            "Read the properties (frontmatter) of a note; without a path, list the names of all properties.",
            _schema(filePath=_PATH),
            library,
            _properties,
            lambda given: (
                f"frontmatter of {given['filePath']}" if given.get("filePath") else "names of all properties"
            ),
        ),
        Looked(
            "vault_tasks",
            "List tasks",
            "Shows the tasks (- [ ] …) in notes, with their text.",
            "List tasks of the vault or a folder with the notes and lines they stand in.",
            _schema(folder=_FOLDER, status=status),
            library,
            _tasks,
            lambda given: f"the text of {given['status']} tasks, {_where(given)}",
        ),
        Looked(
            "daily_note",
            "Find a daily note",
            "Shows the path of a day's note and whether it exists.",
            "Find the path of the daily note of a day; it may not exist yet.",
            _schema(date=day),
            library,
            _daily,
            lambda given: f"the path of the daily note of {given['date']}",
        ),
    ]


# --- changes -------------------------------------------------------------------------------------


_CHANGED = "the note has changed since the person was asked"


@dataclass(frozen=True, slots=True)
class Changing(_SharesAll):
    """A tool that changes a note. To write exactly the diff that was shown, it plans again and compares.

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
        path = arguments["filePath"]  # not the disk's spelling: grants must not depend on the note
        same = not change.creates and not change.diff
        if same and self.asserts(arguments):
            raise ToolFailed(f"{shown_path(path)}: the note is already as asked for; nothing would change")
        verb = "creates" if change.creates else "changes"
        summary = f"{verb} {change.path}: {change.added} lines added, {change.removed} removed"
        if same:
            summary = f"writes {change.path}: its text stays as it is"
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
            return done | ({"sha256": change.after_sha256} if self.hashed(arguments) else {})

        done = await in_thread(write)
        await self.library.refresh()
        return Ran(done)


def _changes(library: Library) -> list[Tool]:
    edit = _schema(
        ("oldText", "newText"), oldText={"type": "string", "minLength": 1}, newText={"type": "string"}
    )
    edits = {"type": "array", "minItems": 1, "items": edit}
    return [
        Changing(
            "note_write",
            "Write a note",
            "Creates a note, or replaces all of its text. You see the difference first.",
            "Create a note or replace its whole text. "
            "Give baseHash when you replace a note that you have read.",
            _schema(("filePath", "content"), filePath=_PATH, content={"type": "string"}, baseHash=_BASE),
            library,
            lambda library, given: library.edits.check_write(given["filePath"], given["content"]),
            lambda library, given: library.edits.plan_write(
                given["filePath"], given["content"], given.get("baseHash")
            ),
            hashed=lambda given: True,
            asserts=lambda given: given.get("baseHash") is not None,
        ),
        Changing(
            "note_edit",
            "Edit a note",
            "Replaces passages of a note. You see the difference first.",
            "Edit a note by replacing passages. "
            "Each oldText must occur in the note exactly once. Read the note first.",
            _schema(("filePath", "edits"), filePath=_PATH, edits=edits, baseHash=_BASE),
            library,
            lambda library, given: library.edits.check_edit(given["filePath"], _edits(given)),
            lambda library, given: library.edits.plan_edit(
                given["filePath"], _edits(given), given.get("baseHash")
            ),
            # Without baseHash, the hash would be of text that the model has not read.
            hashed=lambda given: given.get("baseHash") is not None,
            asserts=lambda given: True,
        ),
    ]


def _edits(arguments: Arguments) -> list[tuple[str, str]]:
    return [(one["oldText"], one["newText"]) for one in arguments["edits"]]


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

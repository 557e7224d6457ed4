"""The vault tools that search, read and change notes. `vault_lookups.py` has the other tools.

No note is opened before its call is granted, with one exception: for a change, the old text is read to show a
diff. Before the approval, only the person sees this diff. `vault_search` and `file_read` have the names and
schemas that vault plugins already use.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from toolwire.core.display import counted
from toolwire.settings.types import Settings
from toolwire.tools.contract import Arguments, Effect, Preview, Ran, Tool, ToolFailed, Touched
from toolwire.tools.rules import compiled, fits
from toolwire.tools.vault_lookups import PATH, Library, VaultTool, in_thread, lookups, not_found, schema, text
from toolwire.vault.edits import Change, Edit
from toolwire.vault.index import watch
from toolwire.vault.paths import NoteText, readable_size, too_large
from toolwire.vault.policy import PathRefused, printable
from toolwire.vault.results import Found, Hit
from toolwire.vault.search import search

BASE_HASH = text(
    "Leave this out, unless file_read gave a sha256 of this note: then that value. "
    "The change is refused if the note has changed since."
)
FIND_IT = "Call vault_search to find the path of a note."
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
NO_HASH = "baseHash is not a sha256 that file_read gave; leave it out, or read the whole note first"


# --- search and read ---


class VaultSearch(VaultTool):
    name = "vault_search"
    title = "Search the vault"
    purpose = (
        "Looks for notes by name, heading, tag and text. Nothing is shared until you pick from the results."
    )
    description = (
        "Search the Obsidian vault for files by name or content. "
        "Returns file paths, names, and content previews. Use this to find relevant notes before "
        "reading them."
    )
    effect: Effect = "search"
    parameters = schema(
        ("query",),
        query=text(
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
        super().__init__(library)
        self._patterns = tuple(patterns)

    def within(self, patterns: Sequence[str]) -> VaultSearch:
        return VaultSearch(self._library, patterns)

    async def preview(self, arguments: Arguments) -> Preview:
        summary = f'looks through the index of the vault for "{arguments["query"]}"'
        return Preview(summary=summary, action="Search")

    async def run(self, arguments: Arguments, picked: Sequence[str] | None, shown: Preview) -> Ran:
        await self._library.refresh()
        query, limit = arguments["query"], int(arguments["limit"])
        patterns = [compiled(glob) for glob in self._patterns]
        within = (lambda path: any(fits(one, path) for one in patterns)) if patterns else None
        found = await in_thread(lambda: search(self._library.index, query, limit, within))
        touched = tuple(
            Touched(str(number), hit.path, _size(_result(hit)), _snippet(hit), marked=hit.marked)
            for number, hit in enumerate(found.hits)
        )
        where = f" within {' or '.join(self._patterns)}" if patterns else ""
        summary = f"{counted(found.total, 'note matches', 'notes match')}{where}"
        return Ran(found, Preview(touched, summary=summary, pick=True))

    def share(self, ran: Ran, picked: Sequence[str]) -> Any:
        found: Found = ran.value
        results = [_result(hit) for number, hit in enumerate(found.hits) if str(number) in picked]
        shared: dict[str, Any] = {"query": found.query, "results": results}
        if found.relaxed and results:
            shared["relaxed"] = True
        return shared | ({"hint": found.hint} if found.hint else {})


def _snippet(hit: Hit) -> str:
    """Returns a result's headings and its excerpt.

    A single heading is left out if the excerpt begins with it.
    """
    begins = len(hit.headings) == 1 and hit.excerpt.lstrip("# ").startswith(hit.headings[0])
    return hit.excerpt if begins or not hit.headings else f"{' › '.join(hit.headings)}\n\n{hit.excerpt}"


def _size(result: dict[str, Any]) -> int:
    """Returns how many bytes of a search result would be shared."""
    return len(json.dumps(result, ensure_ascii=False).encode("utf-8", "replace"))


def _result(hit: Hit) -> dict[str, Any]:
    shared = {name: getattr(hit, name) for name in ("path", "basename", "matches", "preview")}
    where = {"heading": list(hit.headings), "lines": [hit.first_line, hit.last_line], "line": hit.line}
    return {**shared, **where, "score": hit.score, "tags": list(hit.tags)}


class FileRead(VaultTool):
    name = "file_read"
    title = "Read notes"
    purpose = "Reads notes and shares their contents with the model. Notes that you do not pick are not read."
    description = (
        "Read the full contents of specific files from the vault. "
        "User will be asked to approve which files to share. "
        "Use this after searching to get complete file contents. "
        "With `ranges` only some lines of a file are read. A file that is read whole comes with its "
        "sha256, for the baseHash of a change."
    )
    effect: Effect = "read"
    parameters = schema(
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
            "items": schema(
                ("filePath",),
                filePath={"type": "string"},
                startLine={"type": "integer", "minimum": 1},
                endLine={"type": "integer", "minimum": 1},
            ),
        },
    )

    def paths(self, arguments: Arguments) -> tuple[str, ...]:
        return tuple(dict.fromkeys(arguments["filePaths"]))

    async def preview(self, arguments: Arguments) -> Preview:
        paths = self.paths(arguments)
        return Preview(await in_thread(lambda: tuple(map(self._touched, paths))), pick=True)

    def _touched(self, path: str) -> Touched:
        size, most = self._library.vault.size(path), self._library.vault.limits.file_bytes
        reason = too_large(size, most) if size is not None and size > most else ""
        return Touched(path, path, size, missing=size is None or bool(reason), reason=reason)

    async def run(self, arguments: Arguments, picked: Sequence[str] | None, shown: Preview) -> Ran:
        ranges = {one["filePath"]: one for one in arguments.get("ranges") or ()}
        left = self._library.vault.limits.call_bytes
        read: dict[str, NoteText | PathRefused] = {}
        for one in shown.touched:
            if one.key in (picked or ()):
                note = await asyncio.to_thread(self._read, one.path, ranges.get(one.path, {}), left)
                read[one.path] = note
                if isinstance(note, NoteText):
                    left = 0 if note.truncated else left - len(note.text.encode("utf-8", "replace"))
        # The person could not pick these files, because they are unreadable. To say so reveals no content.
        for one in shown.touched:
            if one.missing and one.path not in read:
                kind = "size" if one.reason else "missing"
                read[one.path] = PathRefused(one.path, one.reason or "not found", kind)
        unread = tuple((path, note.reason) for path, note in read.items() if isinstance(note, PathRefused))
        shared = tuple(path for path, note in read.items() if isinstance(note, NoteText))
        return Ran([_content(path, note) for path, note in read.items()], shared=shared, unread=unread)

    def _read(self, path: str, lines: Arguments, left: int) -> NoteText | PathRefused:
        if left <= 0:
            most = readable_size(self._library.vault.limits.call_bytes)
            return PathRefused(path, f"not read: one call reads at most {most}", "limit")
        # In JSON, `3.0` is an integer too.
        first, last = (int(lines[name]) if name in lines else None for name in ("startLine", "endLine"))
        try:
            return self._library.vault.read(path, first, last, left)
        except PathRefused as refused:
            return refused


def _content(path: str, note: NoteText | PathRefused) -> dict[str, Any]:
    """Returns a file for the model.

    A partial text has no hash, because the model could use the hash to confirm guesses about the rest.
    """
    if isinstance(note, PathRefused):
        if missing := not_found(note):
            return {"path": path, "content": missing, "size": 0, "hint": FIND_IT}
        return {"path": path, "content": f"Error reading file: {note.reason}", "size": 0}
    shared: dict[str, Any] = {"path": note.path, "content": note.text, "size": note.size}
    if (note.start_line, note.end_line) != (1, note.total_lines):
        shared |= {"lines": [note.start_line, note.end_line], "total_lines": note.total_lines}
    elif not note.truncated:
        shared["sha256"] = note.sha256
    return {**shared, "truncated": True} if note.truncated else shared


# --- changes ---

_CHANGED = "the note has changed since the person was asked"


class _ChangeTool(VaultTool):
    """A tool that changes a note.

    When it runs, it plans the change again and compares the plan with the diff that was shown, so that
    exactly this diff is written.
    """

    effect: Effect = "write"
    whole: bool
    """Whether a call replaces the whole text of the note."""

    def check(self, given: Arguments) -> None:
        """Checks a call by its text alone. Raises `PathRefused`; the model sees the reason at once."""
        raise NotImplementedError

    def plan(self, given: Arguments) -> Change:
        """Reads the note and plans the change.

        If the change is refused, the model gets the reason (`Preview.problem`) only after an approval.
        """
        raise NotImplementedError

    def paths(self, arguments: Arguments) -> tuple[str, ...]:
        try:
            self.check(arguments)
        except PathRefused as refused:
            raise ToolFailed(str(refused)) from None
        if (hash := _base(arguments)) is not None and not _SHA256.fullmatch(hash):
            raise ToolFailed(NO_HASH)
        return (arguments["filePath"],)

    async def preview(self, arguments: Arguments) -> Preview:
        change = await in_thread(lambda: self.plan(arguments))
        path = arguments["filePath"]  # as the call spells it, so that grants do not depend on the files
        same = not change.creates and not change.diff
        # A call that expects a certain old text must change something. Otherwise its success under a standing
        # grant would confirm a guess about the note without leaving a trace.
        if same and (not self.whole or _base(arguments) is not None):
            raise ToolFailed(f"{printable(path)}: the note already has this text; nothing would change")
        verb = "creates" if change.creates else "changes"
        added = counted(change.count("+"), "line")
        summary = f"{verb} {change.path}: {added} added, {change.count('-'):,} removed"
        if same:
            summary = f"writes {change.path}: its text does not change"
        action = "Create note" if change.creates else "Replace note" if self.whole else "Change note"
        return Preview((Touched(path, path, len(change.content)),), change.diff, summary, action=action)

    async def run(self, arguments: Arguments, picked: Sequence[str] | None, shown: Preview) -> Ran:
        def write() -> dict[str, Any]:
            try:
                change = self.plan(arguments)
            except PathRefused as refused:  # the reason is about text that the person did not see
                raise PathRefused(refused.path, _CHANGED, "changed") from None
            if change.diff != shown.diff:
                raise PathRefused(change.path, _CHANGED, "changed")
            done = {"path": self._library.edits.apply(change), "created": change.creates}
            # Without baseHash, the hash after an edit would be of text that the model has not read.
            known = self.whole or _base(arguments) is not None
            return done | ({"sha256": change.after_sha256} if known else {})

        done = await in_thread(write)
        await self._library.refresh()
        return Ran(done)


class NoteWrite(_ChangeTool):
    whole = True
    name = "note_write"
    title = "Write a note"
    purpose = "Creates a note, or replaces all of its text. You see the difference first."
    description = (
        "Create a note or replace its whole text. Give baseHash when you replace a note that you have read."
    )
    parameters = schema(
        ("filePath", "content"), filePath=PATH, content={"type": "string"}, baseHash=BASE_HASH
    )

    def check(self, given: Arguments) -> None:
        self._library.edits.check_write(given["filePath"], given["content"])

    def plan(self, given: Arguments) -> Change:
        return self._library.edits.plan_write(given["filePath"], given["content"], _base(given))


class NoteEdit(_ChangeTool):
    whole = False
    name = "note_edit"
    title = "Edit a note"
    purpose = "Replaces passages of a note. You see the difference first."
    description = (
        "Edit a note by replacing passages. "
        "Each oldText must occur in the note exactly once. Read the note first."
    )
    _EDIT = schema(
        ("oldText", "newText"), oldText={"type": "string", "minLength": 1}, newText={"type": "string"}
    )
    parameters = schema(
        ("filePath", "edits"),
        filePath=PATH,
        edits={"type": "array", "minItems": 1, "items": _EDIT},
        baseHash=BASE_HASH,
    )

    def check(self, given: Arguments) -> None:
        self._library.edits.check_edit(given["filePath"], _edits(given))

    def plan(self, given: Arguments) -> Change:
        return self._library.edits.plan_edit(given["filePath"], _edits(given), _base(given))


def _base(given: Arguments) -> str | None:
    """Returns the hash that the note must have; None if the call gives none.

    An empty string counts as none, because small models send "" in place of a missing value.
    """
    return given.get("baseHash") or None


def _edits(given: Arguments) -> list[Edit]:
    return [(one["oldText"], one["newText"]) for one in given["edits"]]


def tools_of(library: Library) -> list[Tool]:
    return [VaultSearch(library), FileRead(library), *lookups(library), NoteWrite(library), NoteEdit(library)]


def described() -> dict[str, Tool]:
    """Returns the tools by name, without a vault, for callers that only describe the tools."""
    return {tool.name: tool for tool in tools_of(None)}  # type: ignore[arg-type]


@asynccontextmanager
async def opened(settings: Settings, root: Path, cache: Path | None = None) -> AsyncIterator[list[Tool]]:
    """Yields the tools of the vault at `root`, and keeps its index up to date while they are used.

    `cache`: the folder of the index; None for the user's cache.
    """
    library = await asyncio.to_thread(Library, root, settings.vault.include, settings.vault.exclude, cache)
    watching = asyncio.ensure_future(watch(library.index))
    try:
        yield tools_of(library)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await asyncio.to_thread(library.close)

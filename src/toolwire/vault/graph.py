"""Queries of the index beyond words: links and backlinks, tags, folders, tasks, properties. Read only.

A link means the note at its path, from the root or from the folder of the linking note; else the notes whose
path ends with it, those nearest to the root first, as Obsidian's shortest links do. Every answer is ordered,
has at most `most` entries, and leaves out what the vault's policy does not serve.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from toolwire.vault.frontmatter import Value
from toolwire.vault.index import Index
from toolwire.vault.notes import Task
from toolwire.vault.policy import SEARCHED, extension, key, link_ends, link_key, link_name, link_order
from toolwire.vault.words import sayable

MOST = 1000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TagCount:
    tag: str
    notes: int


@dataclass(frozen=True, slots=True)
class LinkOut:
    """A link of a note.

    `path`: the linked note, or None. `attachment`: the target is a file that is not a note.
    """

    target: str
    heading: str
    alias: str
    line: int
    embed: bool
    path: str | None
    attachment: bool = False


@dataclass(frozen=True, slots=True)
class Backlink:
    path: str
    line: int
    alias: str
    heading: str
    embed: bool


@dataclass(frozen=True, slots=True)
class FileLine:
    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class FolderLine:
    """A folder with the number of notes in it and in its subfolders."""

    path: str
    notes: int


@dataclass(frozen=True, slots=True)
class FolderListing:
    folders: tuple[FolderLine, ...]
    files: tuple[FileLine, ...]
    truncated: bool = False


class Graph:
    """The queries of one index."""

    def __init__(self, index: Index) -> None:
        self.index = index

    def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        found: T = self.index.ask(question)
        return found

    def _allowed(self, path: str) -> bool:
        return self.index.vault.policy.allows(path)

    # --- links -----------------------------------------------------------------------------------

    def resolve(self, name: str, source: str = "") -> list[str]:
        """The notes that a link may mean, the best first."""
        return self._ask(
            lambda connection: [path for path in resolved(connection, name, source) if self._allowed(path)]
        )

    def links(self, path: str, most: int = MOST) -> list[LinkOut]:
        """The links of a note, in order."""

        def question(connection: sqlite3.Connection) -> list[LinkOut]:
            asked = "SELECT target, heading, alias, line, embed FROM links JOIN notes ON notes.id = note WHERE path = ? ORDER BY number LIMIT ?"
            found = []
            for target, heading, alias, line, embed in connection.execute(asked, (path, most)).fetchall():
                leads = (
                    next((one for one in resolved(connection, target, path) if self._allowed(one)), None)
                    if target
                    else path
                )
                found.append(
                    LinkOut(
                        target,
                        heading,
                        alias,
                        line,
                        bool(embed),
                        leads,
                        leads is None and _attachment(target),
                    )
                )
            return found

        return self._ask(question) if self._allowed(path) else []

    def backlinks(self, path: str, most: int = MOST) -> list[Backlink]:
        """The links to a note, ordered by path and line."""

        def question(connection: sqlite3.Connection) -> list[Backlink]:
            asked = """SELECT path, target, line, alias, heading, embed FROM links JOIN notes ON notes.id = note
                       WHERE links.name_key = ? ORDER BY path, number"""
            leads: dict[tuple[str, str], bool] = {}
            found = []
            for source, target, line, alias, heading, embed in connection.execute(
                asked, (link_name(sayable(path)),)
            ):
                link = (target, source.rpartition("/")[0])
                if link not in leads:
                    leads[link] = next(iter(resolved(connection, target, source)), None) == path
                if leads[link] and source != path and self._allowed(source):
                    found.append(Backlink(source, line, alias, heading, bool(embed)))
                    if len(found) >= most:
                        break
            return found

        return self._ask(question)

    def _some(self, rows: sqlite3.Cursor, most: int) -> Iterator[str]:
        number = 0
        for (path,) in rows:
            if number >= most:
                return
            if self._allowed(path):
                number += 1
                yield path

    # --- tags, folders, tasks, properties --------------------------------------------------------

    def tags(self, most: int = MOST) -> list[TagCount]:
        """All tags, the most used first, regardless of case."""
        asked = "SELECT min(tag), count(*) FROM tags GROUP BY key ORDER BY count(*) DESC, key LIMIT ?"
        return self._ask(lambda connection: [TagCount(*row) for row in connection.execute(asked, (most,))])

    def tagged(self, tag: str, most: int = MOST) -> list[str]:
        """The notes with a tag or a tag nested in it."""
        wanted = key(sayable(tag).strip().lstrip("#").strip("/"))
        asked = "SELECT DISTINCT path FROM tags JOIN notes ON notes.id = note WHERE key = ? OR (key > ? AND key < ?) ORDER BY path"
        return self._ask(
            lambda connection: list(
                self._some(connection.execute(asked, (wanted, f"{wanted}/", f"{wanted}0")), most)
            )
        )

    def listing(self, folder: str = "", depth: int = 1, most: int = MOST) -> FolderListing:
        """The content of a folder and its subfolders down to `depth`; deeper notes are only counted."""
        self.index.vault.policy.segments(folder, folder=True)
        prefix = f"{folder}/" if folder else ""

        def question(connection: sqlite3.Connection) -> FolderListing:
            asked = "SELECT path, size, mtime_ns FROM notes WHERE path >= ? AND path < ? ORDER BY path"
            counts: dict[str, int] = {}
            files: list[FileLine] = []
            shown = 0
            for path, size, mtime_ns in connection.execute(
                asked, (prefix, prefix[:-1] + "0" if prefix else "\U0010ffff")
            ):
                names = path[len(prefix) :].split("/")
                for level in range(1, min(len(names) - 1, depth) + 1):
                    inner = prefix + "/".join(names[:level])
                    counts[inner] = counts.get(inner, 0) + 1
                if len(names) <= depth and self._allowed(path):
                    shown += 1
                    if shown <= most:
                        files.append(FileLine(path, size, mtime_ns))
            folders = tuple(FolderLine(path, count) for path, count in sorted(counts.items()))
            return FolderListing(folders[:most], tuple(files), shown > most or len(folders) > most)

        return self._ask(question)

    def tasks(
        self, done: bool | None = None, path: str | None = None, under: str = "", most: int = MOST
    ) -> list[tuple[str, Task]]:
        """Tasks with the paths of their notes. `done` None: all."""
        prefix = f"{sayable(under).rstrip('/')}/" if under else ""
        asked = "SELECT path, status, text, line FROM tasks JOIN notes ON notes.id = note"
        asked += " WHERE path = ?" if path is not None else " WHERE substr(path, 1, ?) = ?"
        asked += "" if done is None else " AND status IN ('x', 'X')" if done else " AND status = ' '"
        values: tuple[Any, ...] = (sayable(path),) if path is not None else (len(prefix), prefix)

        def question(connection: sqlite3.Connection) -> list[tuple[str, Task]]:
            rows = connection.execute(f"{asked} ORDER BY path, line LIMIT ?", (*values, most))
            return [
                (where, Task(status, text, line))
                for where, status, text, line in rows
                if self._allowed(where)
            ]

        return self._ask(question)

    def properties(self, path: str) -> dict[str, Value]:
        """A note's frontmatter."""
        asked = (
            "SELECT name, value FROM properties JOIN notes ON notes.id = note WHERE path = ? ORDER BY name"
        )
        if not self._allowed(path):
            return {}
        return self._ask(
            lambda connection: {name: json.loads(value) for name, value in connection.execute(asked, (path,))}
        )

    def property_names(self, most: int = MOST) -> list[tuple[str, int]]:
        """The names of properties with the number of notes that have them."""
        asked = "SELECT name, count(*) FROM properties GROUP BY name ORDER BY count(*) DESC, name LIMIT ?"
        return self._ask(
            lambda connection: [(name, count) for name, count in connection.execute(asked, (most,))]
        )


def resolved(connection: sqlite3.Connection, name: str, source: str = "") -> list[str]:
    """The notes that a link in `source` may mean, the best first."""
    folder = source.rpartition("/")[0]
    wanted = link_key(sayable(name))
    if not wanted:
        return []
    named = [
        path
        for (path,) in connection.execute("SELECT path FROM notes WHERE name_key = ?", (link_name(wanted),))
    ]
    if wanted.startswith(("./", "../")):
        joined = _joined(key(folder), wanted)
        return sorted(path for path in named if joined is not None and link_order(path, joined)[0] is False)
    beside = _joined(key(folder), wanted)
    found = [path for path in named if link_ends(path, wanted)]
    return sorted(
        found,
        key=lambda path: (
            link_order(path, wanted)[0],
            link_order(path, beside or wanted)[0],
            *link_order(path, wanted)[1:],
        ),
    )


def _joined(folder: str, target: str) -> str | None:
    """The path of a target relative to a folder; None if it would leave the vault."""
    names = folder.split("/") if folder else []
    for name in target.split("/"):
        if name == "..":
            if not names:
                return None
            names.pop()
        elif name not in ("", "."):
            names.append(name)
    return "/".join(names)


def _attachment(target: str) -> bool:
    found = extension(target.rpartition("/")[2])
    return found != "" and found not in SEARCHED and found[1:].isalnum() and len(found) <= 6

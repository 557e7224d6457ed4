"""The tables of the index, and one pass that updates them from the files.

- The rows of a note are written in one transaction. A refresh of up to `BATCH` changes is one transaction. A
  first build has one for each `BATCH` notes, so that a killed build continues where it stopped.
- A refresh walks the vault and the table side by side, both ordered by path, and keeps neither in memory. A
  file is read again if its time, size or inode differs, or if it changed shortly before it was read.
- The full-text table stores no text. To delete a row, its words are computed again from the stored text, by
  the same code. `FORMAT` and the fingerprint of a sample note show when that code has changed; then the index
  is rebuilt.
- The id of a row consists of the note's id and the chunk's number.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from toolwire.vault.notes import Note, parse
from toolwire.vault.paths import Entry, Raw, Vault, decoded, unix
from toolwire.vault.policy import SEARCHED, PathRefused, extension, key, link_name
from toolwire.vault.words import composed, indexed

FORMAT = 3
"""Increase it when `notes.py`, `frontmatter.py` or `words.py` reads any note differently."""
BATCH = 4000
FLUSH = 200
HELD = 2_000_000
"""Characters of notes that are written together, and `FLUSH` notes."""
PAGE = 1000
RACY_NS = 1_000_000_000
"""A file that changed less than this before it was read is read again: a later change may have the same time."""
SHIFT = 13
"""Bits of a row's id for the chunk's number."""
INCOMPLETE = "a note has no text"
COLUMNS = ("title", "aliases", "headings", "tags", "path", "body")

SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE notes (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, path_key TEXT NOT NULL, name_key TEXT NOT NULL, title TEXT NOT NULL,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, inode INTEGER NOT NULL, racy INTEGER NOT NULL, sha256 BLOB NOT NULL, aliases TEXT NOT NULL
);
CREATE INDEX notes_by_name ON notes (name_key);
CREATE TABLE texts (id INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE chunks (id INTEGER PRIMARY KEY, headings TEXT NOT NULL, first_line INTEGER, last_line INTEGER, start INTEGER, stop INTEGER);
CREATE TABLE tags (note INTEGER NOT NULL, key TEXT NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (note, key)) WITHOUT ROWID;
CREATE INDEX notes_by_tag ON tags (key, note);
CREATE TABLE links (
    note INTEGER NOT NULL, number INTEGER NOT NULL, target TEXT NOT NULL, name_key TEXT NOT NULL, heading TEXT NOT NULL, alias TEXT NOT NULL,
    line INTEGER NOT NULL, embed INTEGER NOT NULL, PRIMARY KEY (note, number)
) WITHOUT ROWID;
CREATE INDEX links_by_name ON links (name_key);
CREATE TABLE tasks (
    note INTEGER NOT NULL, line INTEGER NOT NULL, status TEXT NOT NULL, text TEXT NOT NULL, PRIMARY KEY (note, line)
) WITHOUT ROWID;
CREATE TABLE properties (note INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (note, name)) WITHOUT ROWID;
CREATE INDEX properties_by_name ON properties (name);
CREATE VIRTUAL TABLE words USING fts5 ({", ".join(COLUMNS)}, content='', tokenize="unicode61 remove_diacritics 2");
"""
_TABLES: dict[str, str] = {
    "notes": "INSERT INTO notes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "texts": "INSERT INTO texts VALUES (?, ?)",
    "words": f"INSERT INTO words (rowid, {', '.join(COLUMNS)}) VALUES (?, ?, ?, ?, ?, ?, ?)",
    "chunks": "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?)",
    "tags": "INSERT OR IGNORE INTO tags VALUES (?, ?, ?)",
    "links": "INSERT INTO links VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    "tasks": "INSERT OR IGNORE INTO tasks VALUES (?, ?, ?, ?)",
    "properties": "INSERT INTO properties VALUES (?, ?, ?)",
}
_DELETE = f"INSERT INTO words (words, rowid, {', '.join(COLUMNS)}) VALUES ('delete', ?, ?, ?, ?, ?, ?, ?)"
_OF_NOTE = ("tags", "links", "tasks", "properties")
_SAMPLE = (
    "---\ntags: [a/b]\naliases: Ä, ß\n---\nx #t `c`\n# H1 #\n日本 ไทย [[L#h|a]]\n```\n# no\n```\nUnder\n---\n"
    + "word\n" * 2000
)


def words_rows(path: str, text: str, note: Note) -> Iterator[tuple[str, str, str, str, str, str]]:
    """The row of each chunk in the full-text table.

    Every row has the note's own fields, so that a query can match a word of the title and one of the body.
    """
    folder, _, name = path.rpartition("/")
    name = name[: -len(extension(name))]
    title = indexed(composed(name if not note.title or note.title == name else f"{name} {note.title}"))
    aliases, tags = indexed(composed(" ".join(note.aliases))), indexed(composed(" ".join(note.tags)))
    folder = indexed(composed(folder))
    for chunk in note.chunks:
        yield (
            title,
            aliases,
            indexed(" ".join(chunk.headings)),
            tags,
            folder,
            indexed(text[chunk.start : chunk.end]),
        )


def fingerprint() -> str:
    """A hash that changes when the same note gets other rows in the full-text table."""
    rows = list(words_rows("a/b.md", _SAMPLE, parse(_SAMPLE)))
    return hashlib.sha256(repr((FORMAT, unicodedata.unidata_version, rows)).encode()).hexdigest()


@dataclass(slots=True)
class Refresh:
    """The result of a refresh.

    `skipped`: files that cannot be indexed (too large, binary, not UTF-8, unreadable) and unreadable folders.
    `reasons`: why, for the first of them.
    """

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    skipped: int = 0
    seconds: float = 0.0
    rebuilt: bool = False
    cancelled: bool = False
    busy: bool = False
    reasons: tuple[str, ...] = ()

    @property
    def touched(self) -> int:
        return self.added + self.changed + self.removed


Progress = Callable[[int, int], None]
"""Called with the number of files seen and the total."""


class Refresher:
    """One refresh. The caller holds the lock."""

    def __init__(
        self,
        vault: Vault,
        connection: sqlite3.Connection,
        done: Refresh,
        progress: Progress | None,
        cancelled: Callable[[], bool] | None,
    ) -> None:
        self.vault = vault
        self.connection = connection
        self.done = done
        self.progress = progress
        self.cancelled = cancelled
        self.pending = 0
        self.rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in _TABLES}
        self.next = 1
        self.held = 0

    def run(self) -> None:
        connection = self.connection
        connection.execute("PRAGMA wal_autocheckpoint = 4000")
        known = self._known()
        row = next(known, None)
        total = (
            max(1, sum(1 for _ in self.vault.walk(extensions=SEARCHED)))
            if self.progress and row is None
            else self._count()
        )
        self.next = int(connection.execute("SELECT coalesce(max(id), 0) + 1 FROM notes").fetchone()[0])
        connection.execute("BEGIN IMMEDIATE")
        try:
            seen = 0
            for entry, folder in self.vault.scan(extensions=SEARCHED, left_out=self._skip):
                while row is not None and row[0] < entry.path:
                    self._remove(row)
                    row = next(known, None)
                if row is not None and row[0] == entry.path:
                    self._compare(entry, folder, row)
                    row = next(known, None)
                else:
                    self._read(entry, folder, None)
                seen += 1
                if self.progress and (seen % 100 == 0):
                    self.progress(seen, max(total, seen))
                if self.pending >= BATCH:
                    self._commit()
                if self.cancelled is not None and self.cancelled():
                    self.done.cancelled = True
                    break
            while row is not None and not self.done.cancelled:
                self._remove(row)
                row = next(known, None)
            self._flush()
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        if self.done.touched:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        if self.progress and not self.done.cancelled:
            self.progress(seen, max(1, seen))

    def _flush(self) -> None:
        """Writes the collected rows; many at a time cost less."""
        for table, rows in self.rows.items():
            if rows:
                self.connection.executemany(_TABLES[table], rows)
                rows.clear()
        self.held = 0

    def _commit(self) -> None:
        self._flush()
        self.connection.execute("COMMIT")
        self.connection.execute("BEGIN IMMEDIATE")
        self.pending = 0

    def _count(self) -> int:
        return int(self.connection.execute("SELECT count(*) FROM notes").fetchone()[0])

    def _known(self) -> Iterator[tuple[Any, ...]]:
        """The notes ordered by path, a page at a time, because the table changes meanwhile."""
        after = ""
        while True:
            rows = self.connection.execute(
                "SELECT path, id, size, mtime_ns, inode, racy, sha256 FROM notes WHERE path > ? ORDER BY path LIMIT ?",
                (after, PAGE),
            ).fetchall()
            yield from rows
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def _compare(self, entry: Entry, folder: int, row: tuple[Any, ...]) -> None:
        if (entry.size, entry.mtime_ns, entry.inode) == row[2:5] and not row[5]:
            self.done.unchanged += 1
        else:
            self._read(entry, folder, row)

    def _read(self, entry: Entry, folder: int, row: tuple[Any, ...] | None) -> None:
        try:
            raw = self.vault.read_found(entry, folder)
            text = composed(unix(decoded(entry.path, raw.data)))
        except PathRefused as refused:
            self._skip(refused, row)
            return
        racy = not raw.settled or abs(time.time_ns() - raw.stat.st_mtime_ns) < RACY_NS
        digest = hashlib.sha256(raw.data).digest()
        if row is not None and row[6] == digest:
            values = (raw.stat.st_size, raw.stat.st_mtime_ns, raw.stat.st_ino, racy, row[1])
            self.connection.execute(
                "UPDATE notes SET size = ?, mtime_ns = ?, inode = ?, racy = ? WHERE id = ?", values
            )
            self.done.unchanged += 1
            return
        if row is not None:
            self._take_out(row[1], row[0])
            self.done.changed += 1
        else:
            self.done.added += 1
        self._put_in(entry.path, raw, text, racy, digest, None if row is None else row[1])

    def _skip(self, refused: PathRefused, row: tuple[Any, ...] | None = None) -> None:
        if row is not None:
            self._remove(row)
        if refused.kind != "missing":
            self.done.skipped += 1
            self.done.reasons = (*self.done.reasons, str(refused))[:20]

    def _remove(self, row: tuple[Any, ...]) -> None:
        self._take_out(row[1], row[0])
        self.done.removed += 1

    def _take_out(self, number: int, path: str) -> None:
        found = self.connection.execute("SELECT text FROM texts WHERE id = ?", (number,)).fetchone()
        if found is None:
            raise sqlite3.DatabaseError(INCOMPLETE)
        rows = words_rows(path, found[0], parse(found[0]))
        self.connection.executemany(
            _DELETE, ((number << SHIFT | chunk, *row) for chunk, row in enumerate(rows))
        )
        self.connection.execute(
            "DELETE FROM chunks WHERE id >= ? AND id < ?", (number << SHIFT, (number + 1) << SHIFT)
        )
        for table in _OF_NOTE:
            self.connection.execute(f"DELETE FROM {table} WHERE note = ?", (number,))
        self.connection.execute("DELETE FROM texts WHERE id = ?", (number,))
        self.connection.execute("DELETE FROM notes WHERE id = ?", (number,))
        self.pending += 1

    def _put_in(self, path: str, raw: Raw, text: str, racy: bool, digest: bytes, number: int | None) -> None:
        note = parse(text)
        if number is None:
            number, self.next = self.next, self.next + 1
        name = path.rpartition("/")[2]
        bare = name[: -len(extension(name))]
        found, rows, base = raw.stat, self.rows, number << SHIFT
        aliases = "\n".join(alias.replace("\n", " ") for alias in note.aliases)
        own = (number, path, key(path), link_name(name), note.title or bare)
        rows["notes"].append((*own, found.st_size, found.st_mtime_ns, found.st_ino, racy, digest, aliases))
        rows["texts"].append((number, text))
        rows["words"] += [(base | place, *row) for place, row in enumerate(words_rows(path, text, note))]
        rows["chunks"] += [
            (base | place, "\n".join(chunk[0]), *chunk[1:]) for place, chunk in enumerate(note.chunks)
        ]
        rows["tags"] += [(number, key(tag), tag) for tag in note.tags]
        rows["links"] += [
            (number, place, link[0], link_name(link[0]), *link[1:]) for place, link in enumerate(note.links)
        ]
        rows["tasks"] += [(number, task.line, task.status, task.text) for task in note.tasks]
        rows["properties"] += [
            (number, name, json.dumps(value, ensure_ascii=False)) for name, value in note.properties.items()
        ]
        self.pending += 1
        self.held += len(text)
        if len(rows["notes"]) >= FLUSH or self.held >= HELD:
            self._flush()

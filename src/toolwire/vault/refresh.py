"""The tables of the index, and `Refresher`, which updates them from the files.

- All rows of a note are written in one transaction. A refresh commits after about `BATCH` changes and at its
  end. So if the first build of an index is killed, the next refresh continues it.
- A refresh walks the vault and the table of notes side by side, both ordered by path, and keeps neither list
  in memory. A file is read again if its time, size or inode differs from the table, or if the file changed
  shortly before it was read.
- The full-text table stores no text. To delete a row from it, Toolwire computes the row's words again from
  the table `texts`. This works only as long as the code that computes the words does not change. `FORMAT` and
  the fingerprint of a sample note show such a change, and the index is then rebuilt.
- The id of a full-text row consists of the note's id and the chunk's number.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from toolwire.vault.notes import Note, link_name, parse
from toolwire.vault.paths import Entry, Vault, decoded, unix
from toolwire.vault.policy import SEARCHED, PathRefused, extension, key
from toolwire.vault.words import composed, indexed

FORMAT = 3
"""Increase this if a change to `notes.py`, `frontmatter.py` or `words.py` alters how any note is read."""
BATCH = 4000
FLUSH = 200
HELD = 2_000_000
"""Collected rows are written when they have this many characters or belong to `FLUSH` notes."""
PAGE = 1000
RACY_NS = 1_000_000_000
"""If a file changed less than one second before it was read, the next refresh reads it again.

The file may have changed again after it was read, with the same time stamp.
"""
SHIFT = 13
"""The number of bits in a row's id that hold the chunk's number."""
INCOMPLETE = "a note has no text"
COLUMNS = ("title", "aliases", "headings", "tags", "path", "body")

SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE notes (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, path_key TEXT NOT NULL, name_key TEXT NOT NULL,
    title TEXT NOT NULL, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, inode INTEGER NOT NULL,
    racy INTEGER NOT NULL, sha256 BLOB NOT NULL, aliases TEXT NOT NULL
);
CREATE INDEX notes_by_name ON notes (name_key);
CREATE TABLE texts (id INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, headings TEXT NOT NULL, first_line INTEGER, last_line INTEGER, start INTEGER,
    stop INTEGER
);
CREATE TABLE tags (
    note INTEGER NOT NULL, key TEXT NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (note, key)
) WITHOUT ROWID;
CREATE INDEX notes_by_tag ON tags (key, note);
CREATE TABLE links (
    note INTEGER NOT NULL, number INTEGER NOT NULL, target TEXT NOT NULL, name_key TEXT NOT NULL,
    heading TEXT NOT NULL, alias TEXT NOT NULL, line INTEGER NOT NULL, embed INTEGER NOT NULL,
    PRIMARY KEY (note, number)
) WITHOUT ROWID;
CREATE INDEX links_by_name ON links (name_key);
CREATE TABLE tasks (
    note INTEGER NOT NULL, line INTEGER NOT NULL, status TEXT NOT NULL, text TEXT NOT NULL,
    PRIMARY KEY (note, line)
) WITHOUT ROWID;
CREATE TABLE properties (
    note INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (note, name)
) WITHOUT ROWID;
CREATE INDEX properties_by_name ON properties (name);
CREATE VIRTUAL TABLE words USING fts5 (
    {", ".join(COLUMNS)}, content='', tokenize="unicode61 remove_diacritics 2"
);
"""
_INSERT = {
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
_BY_NOTE = ("tags", "links", "tasks", "properties")
_SAMPLE = (
    "---\ntags: [a/b]\naliases: Ä, ß\n---\nx #t `c`\n# H1 #\n日本 ไทย [[L#h|a]]\n```\n# no\n```\nUnder\n---\n"
    + "word\n" * 2000
)


def words_rows(path: str, text: str, note: Note) -> Iterator[tuple[str, str, str, str, str, str]]:
    """Yields the row of each chunk for the full-text table.

    Every row repeats the note's title, aliases, tags and folder, so that a query can match one word in the
    title and another word in the body.
    """
    folder, _, name = path.rpartition("/")
    name = name[: -len(extension(name))]
    title = indexed(composed(name if not note.title or note.title == name else f"{name} {note.title}"))
    aliases, tags = indexed(composed(" ".join(note.aliases))), indexed(composed(" ".join(note.tags)))
    folder = indexed(composed(folder))
    for chunk in note.chunks:
        headings, body = indexed(" ".join(chunk.headings)), indexed(text[chunk.start : chunk.end])
        yield title, aliases, headings, tags, folder, body


def fingerprint() -> str:
    """Returns a hash that changes if the same note would get different rows in the full-text table."""
    rows = list(words_rows("a/b.md", _SAMPLE, parse(_SAMPLE)))
    return hashlib.sha256(repr((FORMAT, unicodedata.unidata_version, rows)).encode()).hexdigest()


@dataclass(slots=True)
class Refresh:
    """The result of a refresh.

    `skipped`: the number of files that cannot be indexed (too large, binary, not UTF-8, unreadable) and of
    unreadable folders. `reasons`: messages about the first skipped files and folders.
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
"""A function that is called with the number of files seen and the number of all files."""
Cancelled = Callable[[], bool]


class _Known(NamedTuple):
    """A note that is in the index already."""

    path: str
    id: int
    size: int
    mtime_ns: int
    inode: int
    racy: bool
    sha256: bytes


@dataclass(slots=True)
class Refresher:
    """One refresh of the index. The caller holds the lock of the index.

    `pending`: changes since the last commit. `next`: the id of the next new note. `held`: the number of
    characters in the rows that are not written yet.
    """

    vault: Vault
    connection: sqlite3.Connection
    done: Refresh
    progress: Progress | None
    cancelled: Cancelled
    pending: int = 0
    next: int = 1
    rows: dict[str, list[tuple[Any, ...]]] = field(default_factory=lambda: {table: [] for table in _INSERT})
    held: int = 0

    def run(self) -> None:
        connection = self.connection
        connection.execute("PRAGMA wal_autocheckpoint = 4000")
        known = self._known()
        row = next(known, None)
        counted = connection.execute("SELECT count(*), coalesce(max(id), 0) + 1 FROM notes")
        total, self.next = counted.fetchone()
        if self.progress and row is None:
            total = sum(1 for _ in self.vault.scan(SEARCHED))
        connection.execute("BEGIN IMMEDIATE")
        try:
            seen = 0
            for entry, folder in self.vault.scan(SEARCHED, self._skip):
                while row is not None and row.path < entry.path:
                    self._remove(row)
                    row = next(known, None)
                if row is not None and row.path == entry.path:
                    self._compare(entry, folder, row)
                    row = next(known, None)
                else:
                    self._read(entry, folder, None)
                seen += 1
                if self.progress and seen % 100 == 0:
                    self.progress(seen, max(total, seen))
                if self.pending >= BATCH:
                    self._commit()
                if self.cancelled():
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
        """Writes the collected rows: one write of many rows is faster than many writes."""
        for table, rows in self.rows.items():
            if rows:
                self.connection.executemany(_INSERT[table], rows)
                rows.clear()
        self.held = 0

    def _commit(self) -> None:
        self._flush()
        self.connection.execute("COMMIT")
        self.connection.execute("BEGIN IMMEDIATE")
        self.pending = 0

    def _known(self) -> Iterator[_Known]:
        """Yields the notes in the index, sorted by path.

        Reads at most `PAGE` rows at a time, because the table changes meanwhile.
        """
        page = f"SELECT {', '.join(_Known._fields)} FROM notes WHERE path > ? ORDER BY path LIMIT ?"
        rows: list[Any] = [("",)]
        while rows:
            rows = self.connection.execute(page, (rows[-1][0], PAGE)).fetchall()
            yield from map(_Known._make, rows)

    def _compare(self, entry: Entry, folder: int, row: _Known) -> None:
        if entry[1:] == (row.size, row.mtime_ns, row.inode) and not row.racy:
            self.done.unchanged += 1
        else:
            self._read(entry, folder, row)

    def _read(self, entry: Entry, folder: int, row: _Known | None) -> None:
        try:
            raw = self.vault.read_found(entry, folder)
            text = composed(unix(decoded(entry.path, raw.data)))
        except PathRefused as refused:
            self._skip(refused, row)
            return
        racy = not raw.settled or abs(time.time_ns() - raw.stat.st_mtime_ns) < RACY_NS
        digest = hashlib.sha256(raw.data).digest()
        status = (raw.stat.st_size, raw.stat.st_mtime_ns, raw.stat.st_ino, racy)
        if row is None:
            self.done.added += 1
            self._insert(self.next, entry.path, text, (*status, digest))
            self.next += 1
        elif row.sha256 == digest:
            self.done.unchanged += 1
            query = "UPDATE notes SET size = ?, mtime_ns = ?, inode = ?, racy = ? WHERE id = ?"
            self.connection.execute(query, (*status, row.id))
        else:
            self.done.changed += 1
            self._delete(row)
            self._insert(row.id, entry.path, text, (*status, digest))

    def _skip(self, refused: PathRefused, row: _Known | None = None) -> None:
        if row is not None:
            self._remove(row)
        if refused.kind != "missing":
            self.done.skipped += 1
            self.done.reasons = (*self.done.reasons, str(refused))[:20]

    def _remove(self, row: _Known) -> None:
        self._delete(row)
        self.done.removed += 1

    def _delete(self, row: _Known) -> None:
        execute, id = self.connection.execute, row.id
        found = execute("SELECT text FROM texts WHERE id = ?", (id,)).fetchone()
        if found is None:
            raise sqlite3.DatabaseError(INCOMPLETE)
        for chunk, words in enumerate(words_rows(row.path, found[0], parse(found[0]))):
            execute(_DELETE, (id << SHIFT | chunk, *words))
        execute("DELETE FROM chunks WHERE id >= ? AND id < ?", (id << SHIFT, (id + 1) << SHIFT))
        for table in _BY_NOTE:
            execute(f"DELETE FROM {table} WHERE note = ?", (id,))
        execute("DELETE FROM texts WHERE id = ?", (id,))
        execute("DELETE FROM notes WHERE id = ?", (id,))
        self.pending += 1

    def _insert(self, id: int, path: str, text: str, status: tuple[Any, ...]) -> None:
        note = parse(text)
        name = path.rpartition("/")[2]
        title = note.title or name[: -len(extension(name))]
        aliases = "\n".join(alias.replace("\n", " ") for alias in note.aliases)
        rows, first = self.rows, id << SHIFT
        rows["notes"].append((id, path, key(path), link_name(name), title, *status, aliases))
        rows["texts"].append((id, text))
        rows["words"] += [(first | chunk, *row) for chunk, row in enumerate(words_rows(path, text, note))]
        for number, (headings, *lines) in enumerate(note.chunks):
            rows["chunks"].append((first | number, "\n".join(headings), *lines))
        rows["tags"] += [(id, key(tag), tag) for tag in note.tags]
        for number, (target, *link) in enumerate(note.links):
            rows["links"].append((id, number, target, link_name(target), *link))
        rows["tasks"] += [(id, task.line, task.status, task.text) for task in note.tasks]
        for property, value in note.properties.items():
            rows["properties"].append((id, property, json.dumps(value, ensure_ascii=False)))
        self.pending += 1
        self.held += len(text)
        if len(rows["notes"]) >= FLUSH or self.held >= HELD:
            self._flush()

"""Search: ranked notes for a query, each with its best chunk, its lines, the number of matches and a preview.

Each step runs only if the steps before it did not fill the answer:

1. All words in one chunk, ranked by BM25. Title, aliases, headings, tags and path count as part of the chunk.
2. The same, with the last word as a prefix.
3. All words in one note, in different chunks.
4. If nothing is found: one word within the names of notes, then any of the words (`relaxed`).

Terms without words (signs, emoji) are compared with the stored texts. Results are ordered by step, rank and
path, so that the same index gives the same answer. For a word that most rows have, FTS5 uses `FLOOR` as its
idf. If all words are such, the ranks are tiny but still ordered by the columns' weights. Their score counts
that idf as `LEAST_IDF`.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from toolwire.vault.frontmatter import frontmatter
from toolwire.vault.index import COLUMNS, SHIFT, Index
from toolwire.vault.policy import key
from toolwire.vault.preview import Excerpt, beginning, excerpt
from toolwire.vault.query import PREFIX_LETTERS, Group, Query, Term, expression, parse_query
from toolwire.vault.words import composed, folded, occurs, unspaced

WEIGHTS = {"title": 10.0, "aliases": 8.0, "headings": 3.0, "tags": 6.0, "path": 2.0, "body": 1.0}
RANK = f"bm25(words, {', '.join(str(WEIGHTS[name]) for name in COLUMNS)})"
DEFAULT_LIMIT = 10
MOST_RESULTS = 50
MOST_ROWS = 6_000
"""Rows that are ranked.

If more match, those with a match in title, aliases, headings or tags, and some others, are.
"""
MOST_CANDIDATES = 2000
MOST_SCANNED = 500
HALF = 8.0
"""The rank that gives a score of one half."""
FLOOR = 1e-6
"""FTS5's idf of a word that half of the rows or more have."""
LEAST_IDF = 0.25
"""The idf of such a word for the score: without it every score in a small vault would be zero."""
MOST_OF_A_WORD = 2.2
"""The upper bound of the rank of a word with idf 1: FTS5's k1 + 1."""
STEPS = {"chunk": 1.0, "prefix": 0.9, "note": 0.7, "scan": 0.7, "name": 0.6, "filter": 0.5, "any": 0.5}
_NOTE = "SELECT path, title, size, mtime_ns, aliases FROM notes WHERE id = ?"
_CHUNK = "SELECT headings, first_line, last_line, start, stop FROM chunks WHERE id = ?"


@dataclass(frozen=True, slots=True)
class Hit:
    """A note that was found.

    `matches`: how often the query's words and phrases occur in its name and text. `line`: the line of the
    preview's best match. `first_line` and `last_line`: those of its chunk.
    """

    path: str
    basename: str
    matches: int
    preview: str
    title: str
    headings: tuple[str, ...]
    line: int
    first_line: int
    last_line: int
    score: float
    fields: tuple[str, ...]
    tags: tuple[str, ...]
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to a search.

    `total`: at least this many notes match. `truncated`: there are more than `hits`. `relaxed`: no note has
    all words, so notes with any of them are shown.
    """

    query: str
    hits: tuple[Hit, ...]
    total: int = 0
    truncated: bool = False
    relaxed: bool = False
    seconds: float = 0.0
    hint: str = field(default="")


def search(
    index: Index, query: str, limit: int = DEFAULT_LIMIT, within: Callable[[str], bool] | None = None
) -> Found:
    """Searches the index in its current state. `within`: which paths are searched and counted."""
    began = time.perf_counter()
    asked = parse_query(query)
    limit = max(1, min(limit, MOST_RESULTS))
    finder: _Search = index.ask(lambda connection: _Search(connection, index, asked, limit, within).run())
    total = max(finder.total, len(finder.hits))
    return Found(
        query,
        tuple(finder.hits),
        total,
        total > len(finder.hits),
        finder.relaxed,
        time.perf_counter() - began,
        finder.hint,
    )


class _Search:
    """One search within one state of the index."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        index: Index,
        query: Query,
        limit: int,
        within: Callable[[str], bool] | None = None,
    ) -> None:
        self.connection = connection
        self.allows = index.vault.policy.allows
        self.query = query
        self.limit = limit
        self.order: dict[int, tuple[int, float, str]] = {}
        """Note → its best row, rank and step."""
        self.patterns: dict[str, list[re.Pattern[str]]] = {}
        self.total = 0
        self.relaxed = False
        self.hint = ""
        self.hits: list[Hit] = []
        self.where, self.values = self._filters(within)
        self.where_note = self.where.replace(f"rowid >> {SHIFT}", "id")

    def run(self) -> _Search:
        if not self.query.groups:
            if self.query.filtered:
                self._only_filters()
            else:
                self.hint = "the query has no words"
        elif not any(term.words for term in self.query.terms):
            self._scan()
        else:
            self._steps()
        ranked = sorted(self.order.items(), key=lambda item: (-STEPS[item[1][2]], item[1][1]))
        found = [
            (-STEPS[step], rank, hit)
            for note, (row, rank, step) in ranked[: self.limit]
            if (hit := self._hit(note, row, rank, step))
        ]
        self.hits = _settled(
            [hit for *_, hit in sorted(found, key=lambda one: (*one[:2], key(one[2].path), one[2].path))]
        )
        self.total = max(self.total, len(self.order))
        return self

    # --- steps -----------------------------------------------------------------------------------

    def _steps(self) -> None:
        query = self.query
        self._ranked(expression(query.groups, query.without), "chunk")
        longer = query.with_prefix()
        last = query.groups[-1][-1].words
        if self._wants() and longer and len(last[-1]) >= PREFIX_LETTERS:
            self._ranked(expression(longer.groups, query.without), "prefix")
        if self._wants() and len(query.groups) > 1:
            self._across(longer or query)
        if not self.order and longer and len(last[-1]) < PREFIX_LETTERS:
            self._ranked(expression(longer.groups, query.without), "prefix")
        if not self.order and len(query.groups) == 1:
            self._names(query.groups[0])
        if not self.order and any(term.literal for term in query.terms):
            self._scan()
        if not self.order:
            self._any(longer or query)

    def _wants(self) -> bool:
        return len(self.order) < self.limit

    def _ranked(self, match: str, step: str, verified: bool = True) -> None:
        """Adds notes in the order of their best rows until the answer is full."""
        if not match:
            return
        seen: set[int] = set()
        for row, rank in self._rows(match):
            note = row >> SHIFT
            if note not in self.order and note not in seen:
                seen.add(note)
                if self._passes(note, verified):
                    self.order[note] = (row, rank, step)
                    if not self._wants():
                        break
        if not self._wants():
            inner = f"SELECT rowid >> {SHIFT} AS note FROM words WHERE words MATCH ?{self.where} LIMIT {MOST_ROWS}"
            self.total = int(
                self.connection.execute(
                    f"SELECT count(DISTINCT note) FROM ({inner})", (match, *self.values)
                ).fetchone()[0]
            )

    def _rows(self, match: str) -> Iterator[tuple[int, float]]:
        """The matching rows, the best first: a few, and all only if they were not enough."""
        if self._number_of_rows(match) > MOST_ROWS:
            telling = self._best(f"{{title aliases headings tags}} : ({match})", MOST_ROWS)
            yield from sorted(
                {*telling, *self._best(match, MOST_ROWS // 4)}, key=lambda row: (row[1], row[0])
            )
            return
        few = self.limit * 8
        first = self._best(match, MOST_ROWS, few)
        yield from first
        if len(first) == few:
            yield from self._best(match, MOST_ROWS)[few:]

    def _best(self, match: str, most: int, shown: int = -1) -> list[tuple[int, float]]:
        inner = f"SELECT rowid AS row, {RANK} AS rank FROM words WHERE words MATCH ?{self.where} LIMIT {most}"
        return self.connection.execute(
            f"SELECT row, rank FROM ({inner}) ORDER BY rank, row LIMIT {shown}", (match, *self.values)
        ).fetchall()

    def _number_of_rows(self, match: str) -> int:
        inner = f"SELECT 1 FROM words WHERE words MATCH ?{self.where} LIMIT {MOST_ROWS + 1}"
        return int(
            self.connection.execute(f"SELECT count(*) FROM ({inner})", (match, *self.values)).fetchone()[0]
        )

    def _across(self, query: Query) -> None:
        """Adds notes that match all groups in any of their chunks, by checking the notes of the rarest group."""
        matches = [expression((group,)) for group in query.groups]
        counted = sorted((self._number_of_rows(match), match) for match in matches if match)
        if not counted or counted[0][0] > MOST_CANDIDATES:
            return
        held = [self._notes_with(match) if number < MOST_ROWS else match for number, match in counted[1:]]
        for row, rank in self._best(counted[0][1], MOST_CANDIDATES):
            note = row >> SHIFT
            if (
                note not in self.order
                and all(self._has(note, match) for match in held)
                and self._passes(note)
            ):
                self.order[note] = (row, rank, "note")

    def _notes_with(self, match: str) -> set[int]:
        return {
            row >> SHIFT
            for (row,) in self.connection.execute("SELECT rowid FROM words WHERE words MATCH ?", (match,))
        }

    def _has(self, note: int, match: str | set[int]) -> bool:
        """Whether any chunk of a note matches."""
        if isinstance(match, set):
            return note in match
        inside = "SELECT 1 FROM words WHERE words MATCH ? AND rowid >= ? AND rowid < ? LIMIT 1"
        return (
            self.connection.execute(inside, (match, note << SHIFT, (note + 1) << SHIFT)).fetchone()
            is not None
        )

    def _names(self, group: Group) -> None:
        """Adds notes whose name contains the text."""
        for term in group:
            text = term.literal or " ".join(term.words)
            if len(text) >= PREFIX_LETTERS:
                names = "SELECT id FROM notes INDEXED BY notes_by_name WHERE instr(name_key, ?) > 0"  # the index is far smaller than the table
                asked = f"SELECT id FROM notes WHERE id IN ({names}){self.where_note} ORDER BY length(name_key), path LIMIT ?"
                for (note,) in self.connection.execute(asked, (text, *self.values, self.limit * 2)):
                    if len(self.order) < self.limit and self._passes(note, verified=False):
                        self.order.setdefault(note, (note << SHIFT, -1.0, "name"))

    def _any(self, query: Query) -> None:
        """Adds notes with any of the words; very frequent words count only if there are no others."""
        words = tuple((term,) for term in loosened(query))
        if len(words) < 2:
            return
        rare = tuple(group for group in words if 0 < self._number_of_rows(expression((group,))) <= MOST_ROWS)
        self.relaxed = True
        self._ranked(expression(rare or words, query.without, "OR"), "any", verified=False)
        if not self.order:
            self.relaxed = False

    def _scan(self) -> None:
        """Adds notes by comparing the stored texts, for signs and emoji."""
        compared = [
            [term.literal for term in group]
            for group in self.query.groups
            if all(term.literal for term in group)
        ]
        if not compared:
            return
        literals = [literal for group in compared for literal in group]
        column = (
            "text"
            if not any(letter.isalpha() for literal in literals for letter in literal)
            else "lower(text)"
        )
        test = " AND ".join(
            f"({' OR '.join([f'instr({column}, ?) > 0'] * len(group))})" for group in compared
        )
        asked = f"SELECT id FROM texts WHERE {test}{self.where_note} ORDER BY id LIMIT {MOST_SCANNED + 1}"
        others = [
            match
            for group in self.query.groups
            if not all(term.literal for term in group) and (match := expression((group,)))
        ]
        for (note,) in self.connection.execute(asked, (*literals, *self.values)):
            if self._passes(note) and all(self._has(note, match) for match in others):
                text = self._text(note)[0]
                counted = sum(text.count(literal) for literal in literals)
                place = min((found for literal in literals if (found := text.find(literal)) >= 0), default=0)
                self.order[note] = (self._row_at(note, place), -1.0 - counted / (counted + 10), "scan")

    def _only_filters(self) -> None:
        asked = f"SELECT id FROM notes WHERE 1{self.where_note} ORDER BY path"
        found = [note for (note,) in self.connection.execute(asked, self.values)]
        self.total = len(found)
        for number, note in enumerate(found[: self.limit]):
            self.order[note] = (note << SHIFT, -1.0 + number * 1e-6, "filter")

    # --- filters ---------------------------------------------------------------------------------

    def _filters(self, within: Callable[[str], bool] | None) -> tuple[str, tuple[Any, ...]]:
        out, values = "", []
        if within is not None:
            inside = [
                note for note, path in self.connection.execute("SELECT id, path FROM notes") if within(path)
            ]
            out += f" AND rowid >> {SHIFT} IN (SELECT value FROM json_each(?))"
            values.append(json.dumps(inside))
        for tags, word in ((self.query.tags, "IN"), (self.query.without_tags, "NOT IN")):
            for tag in tags:
                out += f" AND rowid >> {SHIFT} {word} (SELECT note FROM tags WHERE key = ? OR (key > ? AND key < ?))"
                values += [tag, f"{tag}/", f"{tag}0"]
        for paths, word in ((self.query.paths, "IN"), (self.query.without_paths, "NOT IN")):
            for path in paths:
                out += f" AND rowid >> {SHIFT} {word} (SELECT id FROM notes WHERE instr(path_key, ?) > 0)"
                values.append(path)
        return out, tuple(values)

    def _passes(self, note: int, verified: bool = True) -> bool:
        """Whether a note contains the literal texts of the query and none of the excluded terms."""
        if any(
            self._has(note, term.expression) for term in self.query.without if term.words and not term.literal
        ):
            return False
        if not any(term.literal for term in (*(self.query.terms if verified else ()), *self.query.without)):
            return True
        text, path, _ = self._text(note)
        where = f"{text}\n{path}"
        if any(term.literal in where for term in self.query.without if term.literal):
            return False
        return not verified or all(
            any(not term.literal or term.literal in where for term in group) for group in self.query.groups
        )

    def _text(self, note: int) -> tuple[str, str, str]:
        """The folded text, the folded path and the text."""
        asked = "SELECT text, path FROM texts JOIN notes USING (id) WHERE id = ?"
        text, path = self.connection.execute(asked, (note,)).fetchone()
        return folded(text), folded(composed(path)), text

    def _row_at(self, note: int, place: int) -> int:
        asked = "SELECT max(id) FROM chunks WHERE id >= ? AND id < ? AND start <= ?"
        return (
            self.connection.execute(asked, (note << SHIFT, (note + 1) << SHIFT, max(0, place))).fetchone()[0]
            or note << SHIFT
        )

    # --- results ---------------------------------------------------------------------------------

    def _hit(self, note: int, row: int, rank: float, step: str) -> Hit | None:
        path, title, size, mtime_ns, aliases = self.connection.execute(_NOTE, (note,)).fetchone()
        if not self.allows(path):
            return None
        tags = tuple(
            tag for (tag,) in self.connection.execute("SELECT tag FROM tags WHERE note = ?", (note,))
        )
        compared, _, text = self._text(note)
        basename = path.rpartition("/")[2]
        basename = basename[: basename.rfind(".")]
        patterns = self._patterns(step)
        headings, first, last, start, stop = self._chunk(row)
        head = start or min(frontmatter(text).end, stop)
        said = 0 if any(pattern.search(compared, head, stop) for pattern in patterns) else beginning(text)
        if said >= stop:  # the chunk is only frontmatter or headings
            headings, first, last, start, stop = self._chunk(self._row_at(note, said))
        shown: Excerpt = excerpt(text, compared, start, stop, patterns)
        named = folded(composed(path[: path.rfind(".")]))
        counted = sum(1 for pattern in patterns for _ in pattern.finditer(compared)) + sum(
            1 for pattern in patterns for _ in pattern.finditer(named)
        )
        fields = {
            "title": f"{basename}\n{title}",
            "aliases": aliases,
            "headings": headings,
            "tags": " ".join(tags),
            "path": path.rpartition("/")[0],
        }
        matched = [
            name
            for name, value in fields.items()
            if value and any(pattern.search(folded(composed(value))) for pattern in patterns)
        ]
        matched += ["body"] if any(pattern.search(compared, start, stop) for pattern in patterns) else []
        score = STEPS[step] * (strength := self._strength(rank)) / (strength + HALF)
        above = tuple(headings.split("\n")) if headings else ()
        lines = (first + shown.lines, first, last)
        return Hit(
            path,
            basename,
            max(1, counted),
            shown.text,
            title,
            above,
            *lines,
            round(score, 4),
            tuple(matched),
            tags,
            size,
            mtime_ns,
        )

    def _chunk(self, row: int) -> tuple[str, int, int, int, int]:
        """Headings, first and last line, start and stop."""
        return self.connection.execute(_CHUNK, (row,)).fetchone() or ("", 1, 1, 0, 0)

    def _strength(self, rank: float) -> float:
        """The strength of a rank for the score.

        Monotonic, also for ranks that contain only the floor's idf.
        """
        common = min(-rank / FLOOR, MOST_OF_A_WORD * max(1, len(self.query.terms)))
        return max(0.0, -rank + LEAST_IDF * common)

    def _patterns(self, step: str) -> list[re.Pattern[str]]:
        """The patterns, for folded text, of what counts as a match."""
        if step not in self.patterns:
            self.patterns[step] = self._made_patterns(step)
        return self.patterns[step]

    def _made_patterns(self, step: str) -> list[re.Pattern[str]]:
        query = (self.query.with_prefix() if step in ("prefix", "note", "any") else None) or self.query
        if step == "any":
            return [occurs(list(term.words), term.prefix) for term in loosened(query)]
        if step == "name":
            return [re.compile(re.escape(term.literal or " ".join(term.words))) for term in query.terms]
        return [
            re.compile(re.escape(term.literal)) if term.literal else occurs(list(term.words), term.prefix)
            for term in dict.fromkeys(query.terms)
        ]


def loosened(query: Query) -> list[Term]:
    """The terms of which any is enough: single words; quoted and unspaced terms stay together."""
    found: dict[Term, None] = {}
    for term in query.terms:
        if term.quoted or any(unspaced(word) for word in term.words):
            found.update({Term(term.words, prefix=term.prefix): None} if term.words else {})
        else:
            found.update(
                {Term((word,), prefix=term.prefix and word == term.words[-1]): None for word in term.words}
            )
    return list(found)


def _settled(hits: list[Hit]) -> list[Hit]:
    """The hits with scores that never rise."""
    found: list[Hit] = []
    ceiling = 1.0
    for hit in hits:
        ceiling = min(ceiling, hit.score)
        found.append(hit if hit.score == ceiling else replace(hit, score=ceiling))
    return found

"""Search: ranked notes for a query.

The search looks for, in this order, until it has enough notes:

1. All words in one chunk (a section of a note), ranked by BM25. Title, aliases, headings, tags and path count
   as part of the chunk.
2. All words in one chunk, where the last word may be the beginning of a longer word.
3. All words in one note, in different chunks.
4. If nothing is found so far and the query has only one term: notes whose names contain this term.
5. If nothing is found so far: notes with any of the words (`relaxed`).

Terms without words (signs, emoji) are searched in the stored texts. Results are ordered by step, rank and
path, so that the same index gives the same answer.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from toolwire.vault.index import Index
from toolwire.vault.policy import key
from toolwire.vault.refresh import COLUMNS, SHIFT
from toolwire.vault.results import Found, Hit, Patterns, hit, row_at
from toolwire.vault.words import PREFIX_LETTERS, Group, Query, composed, expression, folded, parse_query

WEIGHTS = {"title": 10.0, "aliases": 8.0, "headings": 3.0, "tags": 6.0, "path": 2.0, "body": 1.0}
RANK = f"bm25(words, {', '.join(str(WEIGHTS[name]) for name in COLUMNS)})"
DEFAULT_LIMIT = 10
MOST_RESULTS = 50
MOST_ROWS = 6_000
"""How many matching rows a search ranks.

If more rows match, the search ranks two selections: at most `MOST_ROWS` of the rows that match in title,
aliases, headings or tags, and at most `MOST_ROWS // 4` of all matching rows.
"""
MOST_CANDIDATES = 2000
MOST_SCANNED = 500
HALF = 8.0
"""A match of this strength (see `_Search._score`) gets half of the highest score of its search step."""
FLOOR = 1e-6
"""The idf that FTS5 uses for a word that is in half of the rows or more."""
LEAST_IDF = 0.25
"""The idf (inverse document frequency) in the score of a word that is in half of the rows or more.

With the idf of FTS5 (`FLOOR`), every score in a small vault would be zero.
"""
MOST_OF_A_WORD = 2.2
"""The highest possible rank of a word with idf 1: FTS5's k1 + 1."""
STEPS = {"chunk": 1.0, "prefix": 0.9, "note": 0.7, "scan": 0.7, "name": 0.6, "filter": 0.5, "any": 0.5}
"""The weight of each search step in the score."""


def search(
    index: Index, query: str, limit: int = DEFAULT_LIMIT, within: Callable[[str], bool] | None = None
) -> Found:
    """Searches the index in its current state.

    `within`: a function that returns whether a path is searched and counted; None for all paths.
    """
    began = time.perf_counter()
    parsed = parse_query(query)
    limit = max(1, min(limit, MOST_RESULTS))
    done = index.ask(lambda connection: _Search(connection, parsed, limit, within).run())
    total = max(done.total, len(done.order))
    truncated = total > len(done.hits)
    return Found(query, done.hits, total, truncated, done.relaxed, time.perf_counter() - began, done.hint)


class _Search:
    """One search within one state of the index."""

    def __init__(
        self, connection: sqlite3.Connection, query: Query, limit: int, within: Callable[[str], bool] | None
    ) -> None:
        self.connection = connection
        self.query = query
        self.limit = limit
        self.order: dict[int, tuple[int, float, str]] = {}
        """For each note found: its best row, the rank of this row, and the step that found the note."""
        self.total = 0
        self.relaxed = False
        self.hint = ""
        self.hits: tuple[Hit, ...] = ()
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
        best = sorted(self.order.values(), key=lambda found: (-STEPS[found[2]], found[1]))[: self.limit]
        patterns = {step: self._patterns(step) for step in {step for _, _, step in best}}
        hits = [
            (-STEPS[step], rank, hit(self.connection, row, patterns[step], self._score(rank, step)))
            for row, rank, step in best
        ]
        hits.sort(key=lambda found: (*found[:2], key(found[2].path), found[2].path))
        self.hits = _falling([one for *_, one in hits])
        return self

    def _score(self, rank: float, step: str) -> float:
        """Returns the score of a rank: the better the rank, the higher the score.

        If all words of the query are very frequent, all ranks are tiny; they still get different scores.
        """
        common = min(-rank / FLOOR, MOST_OF_A_WORD * max(1, len(self.query.terms)))
        strength = max(0.0, -rank + LEAST_IDF * common)
        return STEPS[step] * strength / (strength + HALF)

    def _patterns(self, step: str) -> Patterns:
        """Returns patterns that find what counts as a match in this step of the search."""
        query = (self.query.with_prefix() if step in ("prefix", "note", "any") else None) or self.query
        if step == "any":
            return [term.pattern for term in query.loosened()]
        if step == "name":
            return [re.compile(re.escape(term.literal or " ".join(term.words))) for term in query.terms]
        return [term.pattern for term in dict.fromkeys(query.terms)]

    # --- steps ---

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
        """Adds notes in the order of their best chunks until there are `limit` notes.

        `match`: an FTS5 expression. `verified`: add only notes that contain the query's literal texts.
        """
        if not match:
            return
        seen = set(self.order)
        for row, rank in self._rows(match):
            note = row >> SHIFT
            if note not in seen:
                seen.add(note)
                if self._passes(note, verified):
                    self.order[note] = (row, rank, step)
                    if not self._wants():
                        self.total = self._count(match, f"DISTINCT rowid >> {SHIFT}")
                        return

    def _rows(self, match: str) -> Iterator[tuple[int, float]]:
        """Returns the rows (one for each chunk) that match, with their ranks, the best first.

        If too many match, returns only some: matches in titles, aliases, headings and tags are preferred.
        """
        if self._count(match) <= MOST_ROWS:
            return self._best(match, MOST_ROWS)
        specific = self._best(f"{{title aliases headings tags}} : ({match})", MOST_ROWS)
        rows = {*specific, *self._best(match, MOST_ROWS // 4)}
        return iter(sorted(rows, key=lambda row: (row[1], row[0])))

    def _best(self, match: str, most: int) -> Iterator[tuple[int, float]]:
        inner = f"SELECT rowid AS row, {RANK} AS rank FROM words WHERE words MATCH ?{self.where} LIMIT {most}"
        # LIMIT -1 keeps SQLite from merging the two queries and ranking all rows.
        query = f"SELECT row, rank FROM ({inner}) ORDER BY rank, row LIMIT -1"
        return self.connection.execute(query, (match, *self.values))

    def _count(self, match: str, what: str = "*") -> int:
        """Returns how many rows match an FTS5 expression. Stops counting at `MOST_ROWS` + 1.

        `what`: the argument of SQL's `count`.
        """
        inner = f"SELECT rowid FROM words WHERE words MATCH ?{self.where} LIMIT {MOST_ROWS + 1}"
        query = f"SELECT count({what}) FROM ({inner})"
        return int(self.connection.execute(query, (match, *self.values)).fetchone()[0])

    def _across(self, query: Query) -> None:
        """Adds notes that match all groups of the query, no matter in which of their chunks.

        A group consists of terms that are joined by `OR`. Checks only the notes that match the rarest group.
        """
        matches = [expression((group,)) for group in query.groups]
        counted = sorted((self._count(match), match) for match in matches if match)
        if not counted or counted[0][0] > MOST_CANDIDATES:
            return
        others = [self._notes_with(match) if number < MOST_ROWS else match for number, match in counted[1:]]
        for row, rank in self._best(counted[0][1], MOST_CANDIDATES):
            note = row >> SHIFT
            if note in self.order or not all(self._has(note, match) for match in others):
                continue
            if self._passes(note):
                self.order[note] = (row, rank, "note")

    def _notes_with(self, match: str) -> set[int]:
        rows = self.connection.execute("SELECT rowid FROM words WHERE words MATCH ?", (match,))
        return {row >> SHIFT for (row,) in rows}

    def _has(self, note: int, match: str | set[int]) -> bool:
        """Whether any chunk of a note matches.

        `match`: an FTS5 expression, or the set of all notes that match the expression.
        """
        if isinstance(match, set):
            return note in match
        inside = "SELECT 1 FROM words WHERE words MATCH ? AND rowid >= ? AND rowid < ? LIMIT 1"
        found = self.connection.execute(inside, (match, note << SHIFT, (note + 1) << SHIFT)).fetchone()
        return found is not None

    def _names(self, group: Group) -> None:
        """Adds notes whose name contains a term of the group (terms that are joined by `OR`)."""
        # SQLite's index on the names is far smaller than the table, so reading it is faster.
        names = "SELECT id FROM notes INDEXED BY notes_by_name WHERE instr(name_key, ?) > 0"
        query = f"SELECT id FROM notes WHERE id IN ({names}){self.where_note} ORDER BY length(name_key), path"
        for term in group:
            text = term.literal or " ".join(term.words)
            if len(text) >= PREFIX_LETTERS:
                values = (text, *self.values, self.limit * 2)
                for (note,) in self.connection.execute(f"{query} LIMIT ?", values):
                    if self._wants() and self._passes(note, verified=False):
                        self.order.setdefault(note, (note << SHIFT, -1.0, "name"))

    def _any(self, query: Query) -> None:
        """Adds notes with any of the words.

        Very frequent words count only if there are no rarer words.
        """
        words = tuple((term,) for term in query.loosened())
        if len(words) < 2:
            return
        counted = [(group, self._count(expression((group,)))) for group in words]
        rare = tuple(group for group, count in counted if 0 < count <= MOST_ROWS)
        self._ranked(expression(rare or words, query.without, "OR"), "any", verified=False)
        self.relaxed = bool(self.order)

    def _scan(self) -> None:
        """Adds notes whose stored text contains the terms.

        Used for terms of signs or emoji, which are not in the full-text table.
        """
        groups = self.query.groups
        compared = [group for group in groups if all(term.literal for term in group)]
        if not compared:
            return
        literals = [term.literal for group in compared for term in group]
        column = "lower(text)" if any(map(str.isalpha, "".join(literals))) else "text"
        tests = [" OR ".join([f"instr({column}, ?) > 0"] * len(group)) for group in compared]
        query = f"SELECT id FROM texts WHERE ({') AND ('.join(tests)}){self.where_note}"
        others = [expression((group,)) for group in groups if group not in compared]
        values = (*literals, *self.values)
        for (note,) in self.connection.execute(f"{query} ORDER BY id LIMIT {MOST_SCANNED + 1}", values):
            if self._passes(note) and all(self._has(note, match) for match in others if match):
                text = self._text(note)[0]
                counted = sum(text.count(literal) for literal in literals)
                position = min((found for one in literals if (found := text.find(one)) >= 0), default=0)
                row = row_at(self.connection, note, position)
                self.order[note] = (row, -1.0 - counted / (counted + 10), "scan")

    def _only_filters(self) -> None:
        query = f"SELECT id FROM notes WHERE 1{self.where_note} ORDER BY path"
        found = self.connection.execute(query, self.values).fetchall()
        self.total = len(found)
        for number, (note,) in enumerate(found[: self.limit]):
            self.order[note] = (note << SHIFT, -1.0 + number * 1e-6, "filter")

    # --- filters ---

    def _filters(self, within: Callable[[str], bool] | None) -> tuple[str, tuple[Any, ...]]:
        """Returns the SQL condition for the query's tags and paths and for `within`, and its values."""
        query, note = self.query, f" AND rowid >> {SHIFT}"
        out, values = "", []
        if within is not None:
            rows = self.connection.execute("SELECT id, path FROM notes")
            out += f"{note} IN (SELECT value FROM json_each(?))"
            values.append(json.dumps([id for id, path in rows if within(path)]))
        for word, tags, paths in (
            ("IN", query.tags, query.paths),
            ("NOT IN", query.without_tags, query.without_paths),
        ):
            for tag in tags:
                out += f"{note} {word} (SELECT note FROM tags WHERE key = ? OR (key > ? AND key < ?))"
                values += [tag, f"{tag}/", f"{tag}0"]
            for path in paths:
                out += f"{note} {word} (SELECT id FROM notes WHERE instr(path_key, ?) > 0)"
                values.append(path)
        return out, tuple(values)

    def _passes(self, note: int, verified: bool = True) -> bool:
        """Whether a note contains none of the excluded terms.

        `verified`: the note must also contain all literal texts of the query.
        """
        query = self.query
        if any(self._has(note, term.expression) for term in query.without if term.words and not term.literal):
            return False
        wanted = query.terms if verified else ()
        if not any(term.literal for term in (*wanted, *query.without)):
            return True
        where = "\n".join(self._text(note))
        if any(term.literal in where for term in query.without if term.literal):
            return False
        return not verified or all(any(term.literal in where for term in group) for group in query.groups)

    def _text(self, note: int) -> tuple[str, str]:
        """Returns the text and the path of a note, both without case and accents (`folded`)."""
        query = "SELECT text, path FROM texts JOIN notes USING (id) WHERE id = ?"
        text, path = self.connection.execute(query, (note,)).fetchone()
        return folded(text), folded(composed(path))


def _falling(hits: list[Hit]) -> tuple[Hit, ...]:
    """Lowers scores where necessary, so that no hit has a higher score than the hit before it."""
    found: list[Hit] = []
    ceiling = 1.0
    for one in hits:
        ceiling = min(ceiling, one.score)
        found.append(one if one.score == ceiling else replace(one, score=ceiling))
    return tuple(found)

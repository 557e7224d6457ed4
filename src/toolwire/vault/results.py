"""The results of a search: each note with its best chunk (a section of the note) and a preview."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from toolwire.vault.frontmatter import frontmatter
from toolwire.vault.refresh import SHIFT
from toolwire.vault.words import composed, folded

WIDTH = 200
MOST_MATCHES = 200
Patterns = Sequence[re.Pattern[str]]
_SPACE = re.compile(r"\s+")
_TEXT = re.compile(r"^(?!#{1,6}[ \t])(?=[ \t]*\S)", re.M)
_ANYTHING = re.compile(r"\S")
_NOTE = "SELECT path, title, size, mtime_ns, aliases, text FROM notes JOIN texts USING (id) WHERE id = ?"
_CHUNK = "SELECT headings, first_line, last_line, start, stop FROM chunks WHERE id = ?"
_ROW = "SELECT max(id) FROM chunks WHERE id >= ? AND id < ? AND start <= ?"


@dataclass(frozen=True, slots=True)
class Hit:
    """A note that was found.

    `excerpt`: the preview with its line breaks. `matches`: how often the query's words and phrases occur in
    the note's name and text. `marked`: the texts in the preview that match, as whole words. `line`: the
    number of the note's line with the best match. `first_line` and `last_line`: the first and last line of
    the chunk. `fields`: the parts of the note that match, such as `title` or `body`.
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
    excerpt: str = ""
    marked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search.

    `total`: at least this many notes match. `truncated`: more notes match than `hits` has. `relaxed`: no note
    has all words, so `hits` has notes with any of the words.
    """

    query: str
    hits: tuple[Hit, ...]
    total: int = 0
    truncated: bool = False
    relaxed: bool = False
    seconds: float = 0.0
    hint: str = ""


def row_at(connection: sqlite3.Connection, note: int, position: int) -> int:
    """Returns the row id of the chunk at a position in a note's text."""
    first = note << SHIFT
    found = connection.execute(_ROW, (first, (note + 1) << SHIFT, position)).fetchone()[0]
    return found or first


def hit(connection: sqlite3.Connection, row: int, patterns: Patterns, score: float) -> Hit:
    """Returns the note that contains a chunk, as a search result.

    `row`: the chunk's row id. `patterns`: what counts as a match, searched in the text without case and
    accents (`folded`).
    """
    note = row >> SHIFT
    path, title, size, mtime_ns, aliases, text = connection.execute(_NOTE, (note,)).fetchone()
    tags = tuple(tag for (tag,) in connection.execute("SELECT tag FROM tags WHERE note = ?", (note,)))
    compared = folded(text)
    headings, first, last, start, stop = _chunk(connection, row)
    head = start or min(frontmatter(text).end, stop)
    if not _any_in(patterns, compared, head, stop):
        position = beginning(text)
        if position >= stop:  # the chunk is only frontmatter or headings
            headings, first, last, start, stop = _chunk(connection, row_at(connection, note, position))
    lines, position = excerpt(text, compared, start, stop, patterns)
    preview = _SPACE.sub(" ", lines)
    folder, _, name = path.rpartition("/")
    basename = name[: name.rfind(".")]
    fields = {
        "title": f"{basename}\n{title}",
        "aliases": aliases,
        "headings": headings,
        "tags": " ".join(tags),
        "path": folder,
        "body": text[start:stop],
    }
    matched = [name for name, value in fields.items() if _any_in(patterns, folded(composed(value)))]
    named = folded(composed(path[: path.rfind(".")]))
    matches = sum(1 for pattern in patterns for where in (compared, named) for _ in pattern.finditer(where))
    return Hit(
        path,
        basename,
        max(1, matches),
        preview,
        title,
        tuple(headings.split("\n")) if headings else (),
        first + text.count("\n", start, position),
        first,
        last,
        round(score, 4),
        tuple(matched),
        tags,
        size,
        mtime_ns,
        lines,
        _marked(preview, patterns),
    )


def _marked(preview: str, patterns: Patterns) -> tuple[str, ...]:
    """Returns the texts in a preview that match, each once. A match inside a word becomes the whole word."""
    compared = folded(preview)
    found: dict[str, None] = {}
    for pattern in patterns:
        for match in pattern.finditer(compared):
            begin, end = match.span()
            while begin < end and begin and _in_word(preview, begin):
                begin -= 1
            while begin < end < len(preview) and _in_word(preview, end):
                end += 1
            found[preview[begin:end]] = None
    return tuple(text for text in found if text)


def _in_word(text: str, position: int) -> bool:
    """Whether a position is inside a word of ASCII letters and digits.

    Words of other scripts do not count, because such scripts may have no spaces between words.
    """
    around = text[position - 1 : position + 1]
    return around.isascii() and around.isalnum()


def _chunk(connection: sqlite3.Connection, row: int) -> tuple[str, int, int, int, int]:
    """Returns a chunk's headings, first and last line, start and stop."""
    return connection.execute(_CHUNK, (row,)).fetchone() or ("", 1, 1, 0, 0)


def _any_in(patterns: Patterns, text: str, start: int = 0, stop: int | None = None) -> bool:
    return any(pattern.search(text, start, len(text) if stop is None else stop) for pattern in patterns)


def beginning(text: str) -> int:
    """Returns the position where a note's text begins, after frontmatter and headings.

    If the note has only headings, returns the position of the first one.
    """
    head = frontmatter(text).end
    found = _TEXT.search(text, head) or _ANYTHING.search(text, head)
    return found.start() if found else 0


def excerpt(text: str, compared: str, start: int, stop: int, patterns: Patterns) -> tuple[str, int]:
    """Returns a preview: the best piece of `text` between `start` and `stop`.

    Also returns the position in `text` of the best match in this piece. `compared`: the text without case and
    accents (`folded`), in which the patterns are searched.
    """
    best = _best_match(compared, start, stop, patterns)
    if best is None:  # found by title, tags or headings: show the beginning of the chunk
        found = _ANYTHING.search(text, start or frontmatter(text).end, stop)
        left = begin = end = found.start() if found else start
    else:
        begin, end = best
        left = begin - max(0, WIDTH - (end - begin)) // 2
        left = max(start, min(left, stop - WIDTH))
    right = min(stop, left + WIDTH)
    if start < left < begin:
        space = text.find(" ", left, begin)
        left = space + 1 if 0 <= space < left + 20 else left
    if right < stop:
        space = text.rfind(" ", max(end, right - 20), right)
        right = space if space > left else right
    before = "..." if text[start:left].strip() else ""
    after = "..." if text[right:stop].strip() else ""
    return f"{before}{text[left:right].strip()}{after}", begin


def _best_match(compared: str, start: int, stop: int, patterns: Patterns) -> tuple[int, int] | None:
    """Returns the match that the preview should show first, or None if nothing matches.

    It begins the passage (of `WIDTH * 3 // 4` characters) in which the most different patterns match. If
    several passages are equal, it begins the one with the most matches.
    """
    matches: list[tuple[int, int, int]] = []
    for number, pattern in enumerate(patterns):
        for _, match in zip(range(MOST_MATCHES), pattern.finditer(compared, start, stop), strict=False):
            matches.append((*match.span(), number))
    matches.sort()
    best, most, until = None, (0, 0), 0
    counts: Counter[int] = Counter()
    for begin, end, number in matches:
        while until < len(matches) and matches[until][0] - begin < WIDTH * 3 // 4:
            counts[matches[until][2]] += 1
            until += 1
        counted = (sum(count > 0 for count in counts.values()), counts.total())
        if counted > most:
            best, most = (begin, end), counted
        counts[number] -= 1
    return best

"""Parses a note: frontmatter, headings, chunks, tags, aliases, links and tasks.

Parsing takes linear time and never fails. The rules are Obsidian's. Code (fenced blocks and spans) contains
no headings, tags, links or tasks. A tag begins after white space and has at least one character that is not a
digit. `[[Note#Heading|alias]]` and `[alias](Note.md)` are links; with a `!` before them they are embeds.
Links in properties count too.

Chunks cover the whole text without a gap: one for each heading and one for the text before the first heading.
A long chunk is split between lines. Lines count from 1 and end in `\\n`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from urllib.parse import unquote

from toolwire.vault.frontmatter import Frontmatter, Value, frontmatter, texts
from toolwire.vault.policy import NOTES, SEARCHED, extension, key
from toolwire.vault.words import composed, folded

CHUNK = 6000
"""A chunk has at most this many characters, unless one line is longer or the note has very many chunks."""
MOST_CHUNKS = 1 << 12


class Heading(NamedTuple):
    level: int
    text: str
    line: int
    start: int


class NoteChunk(NamedTuple):
    """A piece of the text, from `start` to `end`. `headings`: the chunk's heading and those above it."""

    headings: tuple[str, ...]
    first_line: int
    last_line: int
    start: int
    end: int


class Link(NamedTuple):
    """A link.

    `target`: the target as written, but without heading and alias; empty for a link within the note.
    """

    target: str
    heading: str
    alias: str
    line: int
    embed: bool


class Task(NamedTuple):
    """A task. `status`: the character in the brackets; a space is open, `x` is done."""

    status: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Note:
    title: str
    """The title in the frontmatter; empty if there is none."""
    properties: Mapping[str, Value]
    headings: list[Heading]
    chunks: list[NoteChunk]
    tags: list[str]
    aliases: list[str]
    links: list[Link]
    tasks: list[Task]


# Each pattern begins with a literal character, and the text before a match is checked afterwards: `re` finds
# such patterns many times faster.
_HEADING = re.compile(r"#(#{0,5})[ \t]+([^\n]+)")
_UNDERLINE = re.compile(r"\n {0,3}(=+|-{3,})[ \t]*(?=\n|\Z)")
_UNDERLINED = re.compile(r" {0,3}([^\s#>\-*+=`~|<\d][^\n]*)")
_INDENT = re.compile(r" {0,3}")
_FENCE = re.compile(r"^([ \t>]*(?:[-*+][ \t]+)?)(`{3,}(?=[^`\n]*$)|~{3,})[^\n]*$", re.M)
_TICKS = re.compile(r"`+")
_TAG = re.compile(
    r"#(?<!\S#)([^\u2000-\u200c\u200e-\u206f\u2e00-\u2e7f'!\"#$%&()*+,.:;<=>?@^`{|}~\[\]\\\s]+)"
)
_WIKI = re.compile(r"\[\[([^\[\]|#\n]*)(?:#([^\[\]|\n]*))?(?:\|([^\[\]\n]*))?\]\]")
_MARKDOWN = re.compile(
    r"\[([^\[\]\n]*)\]\((?:<([^<>\n]*)>|([^()\s]*(?:\([^()\s]*\)[^()\s]*)*))(?:[ \t]+\"[^\"\n]*\")?\)"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//")
_TASK = re.compile(r"\[([^\[\]\n])\][ \t]+([^\n]*)")
_MARKER = re.compile(r"[ \t>]*(?:[-*+]|\d{1,9}[.)])[ \t]+")
_NOT_NEWLINE = re.compile(r"[^\n]+")


def parse(text: str) -> Note:
    """Parses a note whose lines end in `\\n`."""
    head = frontmatter(text)
    plain = without_code(text, head.end)
    lines = _Lines(plain)
    headings = list(_headings(plain, head.end, lines))
    properties = head.properties
    title = next(iter(texts(properties.get("title"))), "")
    aliases = [alias for name in ("aliases", "alias") for alias in texts(properties.get(name), ",")]
    links = _links(plain, lines) if "[" in plain else []
    tasks = _tasks(plain, head.end, lines) if "[" in plain else []
    chunks = _chunks(text, headings, lines)
    return Note(title, properties, headings, chunks, _tags(plain, head), aliases, links, tasks)


class _Lines:
    """Finds the line number of a position in a text."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _starts(self) -> list[int]:
        return [found.end() for found in re.finditer("\n", self._text)]

    def at(self, position: int) -> int:
        return bisect_right(self._starts, position) + 1


# --- code ---


def without_code(text: str, start: int = 0) -> str:
    """Returns the text with spaces instead of code. The length and the lines stay the same."""
    if "`" not in text and "~~~" not in text:
        return text
    out = [text[:start]]
    place = start
    while True:
        fence = _FENCE.search(text, place)
        out.append(_without_spans(text[place : fence.start()] if fence else text[place:]))
        if fence is None:
            return "".join(out)
        mark = fence[2]
        end = re.compile(rf"^[ \t>]*{mark[0]}{{{len(mark)},}}[ \t]*$", re.M)
        closing = end.search(text, fence.end())
        place = closing.end() if closing else len(text)
        out.append(_blank(text[fence.start() : place]))


def _blank(text: str) -> str:
    return _NOT_NEWLINE.sub(lambda found: " " * len(found[0]), text)


def _without_spans(text: str) -> str:
    """Replaces inline code by spaces.

    Inline code begins and ends with the same number of backticks, in one paragraph.
    """
    runs = list(_TICKS.finditer(text))
    if len(runs) < 2:
        return text
    following: dict[int, int] = {}
    partner = [-1] * len(runs)
    for number in range(len(runs) - 1, -1, -1):
        length = len(runs[number][0])
        partner[number] = following.get(length, -1)
        following[length] = number
    out: list[str] = []
    place = number = 0
    paragraph = -1  # where the paragraph of the last run ends
    while number < len(runs):
        other = partner[number]
        begin = runs[number].start()
        if other >= 0:
            if begin >= paragraph:
                blank = text.find("\n\n", begin)
                paragraph = len(text) if blank < 0 else blank
            if runs[other].end() <= paragraph:
                end = runs[other].end()
                out += [text[place:begin], _blank(text[begin:end])]
                place, number = end, other + 1
                continue
        number += 1
    return "".join([*out, text[place:]])


# --- parts ---


def _headings(plain: str, start: int, lines: _Lines) -> Iterator[Heading]:
    found = []
    for match in _HEADING.finditer(plain, start):
        begin = plain.rfind("\n", 0, match.start()) + 1
        if match.start() - begin <= 3 and _INDENT.fullmatch(plain, begin, match.start()):
            found.append((begin, len(match[1]) + 1, _without_closing(match[2]).strip()))
    for match in _UNDERLINE.finditer(plain, start):
        begin = max(start, plain.rfind("\n", 0, match.start()) + 1)
        above = _UNDERLINED.fullmatch(plain, begin, match.start())
        if above:
            found.append((begin, 1 if match[1][0] == "=" else 2, above[1].strip()))
    for start, level, text in sorted(found):
        if text:
            yield Heading(level, text, lines.at(start), start)


def _without_closing(text: str) -> str:
    """Returns the text of a heading without the `#` at its end."""
    bare = text.rstrip(" \t").rstrip("#")
    return bare if bare[-1:] in ("", " ", "\t") else text


def _chunks(text: str, headings: list[Heading], lines: _Lines) -> list[NoteChunk]:
    found: list[NoteChunk] = []
    above: list[Heading] = []
    starts = [heading.start for heading in headings[: MOST_CHUNKS // 2]]
    if not starts or starts[0] > 0:
        _cut(text, (), 0, starts[0] if starts else len(text), 1, found)
    for number, start in enumerate(starts):
        heading = headings[number]
        while above and above[-1].level >= heading.level:
            above.pop()
        above.append(heading)
        end = starts[number + 1] if number + 1 < len(starts) else len(text)
        _cut(text, tuple(one.text for one in above), start, end, heading.line, found)
    return found


def _cut(
    text: str, headings: tuple[str, ...], start: int, end: int, line: int, found: list[NoteChunk]
) -> None:
    """Adds the text from `start` to `end` to `found`, in chunks that end between lines."""
    while True:
        stop = end
        if end - start > CHUNK and len(found) < MOST_CHUNKS - 1 - MOST_CHUNKS // 2:
            paragraph = text.rfind("\n\n", start + CHUNK // 2, start + CHUNK)
            stop = paragraph + 2 if paragraph >= 0 else text.rfind("\n", start + 1, start + CHUNK) + 1
            stop = stop if stop > start else text.find("\n", start + CHUNK, end) + 1 or end
        newlines = text.count("\n", start, stop)
        last = line + newlines - (newlines > 0 and text[stop - 1] == "\n")
        found.append(NoteChunk(headings, line, last, start, stop))
        if stop >= end:
            return
        start, line = stop, line + newlines


def _tags(plain: str, head: Frontmatter) -> list[str]:
    """Returns the tags without `#`, those of the frontmatter first.

    Tags that differ only in case are returned once.
    """
    found: dict[str, str] = {}
    written = [tag for name in ("tags", "tag") for tag in texts(head.properties.get(name), ", \t\n")]
    written += [match[1] for match in _TAG.finditer(plain, head.end)]
    for tag in written:
        tag = tag.strip().lstrip("#").strip("/")
        if tag and not tag.isdigit():
            found.setdefault(tag.casefold(), tag)
    return list(found.values())


def _links(plain: str, lines: _Lines) -> list[Link]:
    found = []
    for match in _WIKI.finditer(plain):
        target, heading = match[1].strip(), match[2] or ""
        if target or heading:
            found.append((match.start(), target, heading, match[3] or ""))
    for match in _MARKDOWN.finditer(plain):
        written = match[2] if match[2] is not None else match[3]
        if written and not _SCHEME.match(written):
            target, _, heading = unquote(written).partition("#")
            found.append((match.start(), target, heading, match[1]))
    found.sort()
    return [
        Link(target, heading.strip(), alias.strip(), lines.at(place), plain[place - 1 : place] == "!")
        for place, target, heading, alias in found
    ]


def _tasks(plain: str, start: int, lines: _Lines) -> list[Task]:
    found = []
    for match in _TASK.finditer(plain, start):
        if _MARKER.fullmatch(plain, plain.rfind("\n", 0, match.start()) + 1, match.start()):
            found.append(Task(match[1], match[2].strip(), lines.at(match.start())))
    return found


# --- how the target of a link and the path of a note are compared ---


def link_key(name: str) -> str:
    """Returns the target of a link in a form that can be compared.

    Removes the heading, the alias and a note's extension, and ignores case.
    """
    target = key(name.split("|")[0].split("#")[0].strip().removeprefix("/"))
    return target if extension(target) not in NOTES else target[: target.rfind(".")]


def link_name(target: str) -> str:
    """Returns the name without folders, extension, case and accents.

    A note and every link to it have this name in common.
    """
    name = target.rpartition("/")[2].strip()
    return folded(composed(name[: -len(extension(name))] if extension(name) in SEARCHED else name))

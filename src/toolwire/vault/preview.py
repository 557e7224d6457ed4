"""The preview of a found note: about 200 characters around the best match. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from toolwire.vault.frontmatter import frontmatter

WIDTH = 200
MOST_PLACES = 200
_SPACE = re.compile(r"\s+")
_SAID = re.compile(r"^(?!#{1,6}[ \t])(?=[ \t]*\S)", re.M)
_ANYTHING = re.compile(r"\S")


class Excerpt(NamedTuple):
    """A preview. `lines`: how many lines of the chunk come before the best match."""

    text: str
    lines: int


def excerpt(text: str, compared: str, start: int, stop: int, patterns: list[re.Pattern[str]]) -> Excerpt:
    """The best piece of `text` between `start` and `stop`.

    `compared`: the folded text, which the patterns search.
    """
    places = _places(compared, start, stop, patterns)
    if places:
        best = _best(places)
        begin, end = places[best][0], places[best][1]
    else:  # found by title, tags or headings: show the beginning
        found = _ANYTHING.search(text, max(start, frontmatter(text).end if start == 0 else 0), stop)
        begin = end = found.start() if found else start
    left = max(start, begin - (WIDTH - min(WIDTH, end - begin)) // 2) if places else begin
    right = min(stop, left + WIDTH)
    left = max(start, min(left, right - WIDTH)) if places else left
    if left > start and places:
        space = text.find(" ", left, begin)
        left = space + 1 if 0 <= space < left + 20 else left
    if right < stop:
        space = text.rfind(" ", max(end, right - 20), right)
        right = space if space > left else right
    shown = _SPACE.sub(" ", text[left:right]).strip()
    before = "..." if text[start:left].strip() else ""
    after = "..." if right < stop and text[right:stop].strip() else ""
    return Excerpt(f"{before}{shown}{after}", text.count("\n", start, begin))


def beginning(text: str) -> int:
    """Where a note's text begins, after frontmatter and headings; if it has only headings, where they begin."""
    head = frontmatter(text).end
    found = _SAID.search(text, head) or _ANYTHING.search(text, head)
    return found.start() if found else 0


def _places(
    compared: str, start: int, stop: int, patterns: list[re.Pattern[str]]
) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for number, pattern in enumerate(patterns):
        for count, match in enumerate(pattern.finditer(compared, start, stop)):
            if count >= MOST_PLACES:
                break
            found.append((match.start(), match.end(), number))
    return sorted(found)


def _best(places: list[tuple[int, int, int]]) -> int:
    """The index of the match from which most different patterns, then most matches, fit in the preview."""
    best, best_worth = 0, (0, 0)
    end = 0
    counts: dict[int, int] = {}
    for begin, place in enumerate(places):
        while end < len(places) and places[end][0] - place[0] < WIDTH * 3 // 4:
            counts[places[end][2]] = counts.get(places[end][2], 0) + 1
            end += 1
        worth = (len(counts), sum(counts.values()))
        if worth > best_worth:
            best, best_worth = begin, worth
        counts[place[2]] -= 1
        if not counts[place[2]]:
            del counts[place[2]]
    return best

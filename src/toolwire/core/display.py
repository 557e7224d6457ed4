"""Makes untrusted text safe to show: no control sequences, nothing invisible or reordered.

Text of a model, a note or a server may contain characters that are not visible: controls, characters without
a glyph, and characters that change the direction of writing. A person who approves a text must see them, so
each such character is replaced by a visible code. The web pages replace the same characters (`invisible.js`).
"""

from __future__ import annotations

import json
import re
from typing import Any

INVISIBLE: tuple[tuple[int, int], ...] = (
    (0x00, 0x08),  # controls, except tab and line feed
    (0x0B, 0x1F),
    (0x7F, 0x9F),
    (0xAD, 0xAD),  # soft hyphen
    (0x34F, 0x34F),  # combining grapheme joiner
    (0x61C, 0x61C),  # Arabic letter mark
    (0x70F, 0x70F),  # Syriac abbreviation mark
    (0x115F, 0x1160),  # Hangul fillers
    (0x17B4, 0x17B5),  # Khmer inherent vowels
    (0x180B, 0x180F),  # Mongolian variation selectors and vowel separator
    (0x200B, 0x200F),  # zero width space and joiners, direction marks
    (0x2028, 0x202E),  # line and paragraph separator, direction embeddings and overrides
    (0x2060, 0x206F),  # word joiner, invisible operators, direction isolates
    (0x2800, 0x2800),  # braille blank
    (0x3164, 0x3164),  # Hangul filler
    (0xD800, 0xF8FF),  # surrogates, private use
    (0xFDD0, 0xFDEF),  # noncharacters
    (0xFE00, 0xFE0F),  # variation selectors
    (0xFEFF, 0xFEFF),  # byte order mark
    (0xFFA0, 0xFFA0),  # halfwidth Hangul filler
    (0xFFF0, 0xFFFC),  # unassigned, interlinear annotation, object replacement
    (0xFFFE, 0xFFFF),  # noncharacters
    (0x13430, 0x13442),  # Egyptian format controls and blanks
    (0x16FE4, 0x16FE4),  # Khitan filler
    (0x1BCA0, 0x1BCA3),  # shorthand format controls
    (0x1D159, 0x1D159),  # null notehead
    (0x1D173, 0x1D17A),  # musical format controls
    *((plane + 0xFFFE, plane + 0xFFFF) for plane in range(0x10000, 0xF0000, 0x10000)),  # noncharacters
    (0xE0000, 0xE0FFF),  # tags and variation selectors
    (0xF0000, 0x10FFFF),  # private use
)
"""First and last code point of each range: Unicode's Default_Ignorable_Code_Point and other blanks."""

_JOINERS = "\u200c\u200d" + "".join(map(chr, range(0xFE00, 0xFE10)))
"""Joiners and variation selectors. Emoji and some scripts need them, so `prose` keeps them."""


def _pattern(without: str = "") -> re.Pattern[str]:
    kept = f"(?![{without}])" if without else ""
    return re.compile(kept + "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in INVISIBLE) + "]")


_UNSEEN, _UNSEEN_IN_PROSE = _pattern(), _pattern(_JOINERS)
_PICTURES = {**{chr(code): chr(0x2400 + code) for code in range(0x20)}, "\x7f": "␡"}
UNITS = ("B", "kB", "MB", "GB")
LONGEST = len("⟨U+10FFFF⟩")
"""The maximum number of characters that replace one invisible character."""


def clean(text: str) -> str:
    """Returns the text with invisible characters replaced by visible codes (`␛`, `⟨U+200B⟩`).

    Newlines and tabs are kept.
    """
    return _UNSEEN.sub(_written_out, text.replace("\r\n", "\n"))


def hides(text: str) -> bool:
    """Whether the text has invisible characters, which `clean` would replace."""
    return _UNSEEN.search(text) is not None


def prose(text: str) -> str:
    """Does what `clean` does, but keeps the joiners inside emoji and words.

    Do not use it for text that a person approves.
    """
    return _UNSEEN_IN_PROSE.sub(_written_out, text.replace("\r\n", "\n"))


def _written_out(found: re.Match[str]) -> str:
    return _PICTURES.get(found[0]) or f"⟨U+{ord(found[0]):04X}⟩"


def one_line(text: str, width: int = 200) -> str:
    """Returns the cleaned text on one line, cut to at most `width` characters."""
    flat = clean(text).replace("\n", " ⏎ ").replace("\t", " ")
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def as_json(value: Any) -> str:
    """Returns the value as JSON on one line, with invisible characters escaped."""
    return escaped(json.dumps(value, ensure_ascii=False))


def escaped(text: str) -> str:
    """Returns JSON text with invisible characters as escapes."""
    return text if text.isascii() and "\x7f" not in text else _UNSEEN.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]


def counted(number: int, one: str, several: str = "") -> str:
    """Returns a number with its noun: `counted(2, "note")` is "2 notes"."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def size(count: int) -> str:
    """Returns a number of bytes in readable form: `17 B`, `4.2 kB`."""
    amount = float(count)
    for unit in UNITS:
        if amount < 1000 or unit == UNITS[-1]:
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"

"""Splits text into words as the full-text index does (FTS5's `unicode61 remove_diacritics 2`). Pure.

A word is a run of letters and digits, without case and without the accents of Latin letters. Scripts without
spaces (Chinese, Japanese, Thai, …, and Korean with its particles) are indexed letter by letter and searched
as a phrase of letters, so that any part of a text is found, however short.

`folded` keeps the length: a position in the folded text is the same position in the text.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"  # Tibetan, Burmese, Khmer
    "\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"  # Chinese, Japanese
    "\uac00-\ud7a3"  # Korean
    "\U00020000-\U0003fffd"
)
_UNSPACED = re.compile(f"[{UNSPACED}]")
_SIGNS = re.compile(f"[^\\x00-\\x7f\\w{UNSPACED}]+")
_UNSAYABLE = re.compile("[\\0\\ud800-\\udfff]")
_TOKEN = re.compile(f"[{UNSPACED}]|[^\\W_{UNSPACED}]+")


class _Fold(dict[int, int]):
    """Maps a code point to the one it is compared as; filled on demand."""

    def __missing__(self, code: int) -> int:
        letter = chr(code)
        parts = unicodedata.normalize("NFD", letter)
        if len(parts) > 1 and parts[0].isascii() and parts[0].isalpha():
            letter = parts[0]
        lower = letter.casefold()
        lower = lower if len(lower) == 1 else letter.lower()
        self[code] = found = ord(lower) if len(lower) == 1 else code
        return found


_FOLD = _Fold()


def sayable(text: str) -> str:
    """The text with spaces instead of what SQLite cannot store: NUL and lone surrogates."""
    return _UNSAYABLE.sub(" ", text)


def composed(text: str) -> str:
    """The text as it is indexed: letters and their accents are one character (NFC)."""
    return (
        text
        if text.isascii() or unicodedata.is_normalized("NFC", text)
        else unicodedata.normalize("NFC", text)
    )


def folded(text: str) -> str:
    """The text as it is compared, of the same length."""
    return text.lower() if text.isascii() else text.translate(_FOLD)


def indexed(text: str) -> str:
    """The text for the index: folded, with spaces around each letter of scripts without spaces.

    Signs are left out, because FTS5's old Unicode tables treat newer ones, such as emoji, as letters.
    """
    return text if text.isascii() else _UNSPACED.sub(" \\g<0> ", _SIGNS.sub(" ", folded(text)))


def tokens(text: str) -> list[str]:
    """The words of a folded text."""
    return _TOKEN.findall(text)


def unspaced(word: str) -> bool:
    """Whether a word is a letter of a script without spaces."""
    return _UNSPACED.match(word) is not None


def occurs(words: list[str], prefix: bool) -> re.Pattern[str]:
    """A pattern of these words in this order, without letters between them.

    `prefix`: the last may continue.
    """
    if not words:
        return re.compile(r"(?!)")
    letter = f"[^\\W_{UNSPACED}]"
    first = re.escape(words[0])
    # The character before the word is checked after it: `re` is much faster if a pattern begins with letters.
    out = first if _UNSPACED.match(words[0]) else f"{first}(?<!{letter}{first})"
    for before, word in pairwise(words):
        apart = "*" if _UNSPACED.match(before) or _UNSPACED.match(word) else "+"
        out += f"[\\W_]{apart}{re.escape(word)}"
    return re.compile(out if prefix or _UNSPACED.match(words[-1]) else f"{out}(?!{letter})")

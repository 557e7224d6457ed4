"""Splits texts and search queries into words as the full-text index does (FTS5's `unicode61`).

A word is a run of letters and digits. Case and the accents of Latin letters are ignored. Chinese, Japanese,
Thai and other text without spaces is indexed letter by letter and searched as a phrase of letters, so that
any part of it is found. Korean is indexed letter by letter too, because its words have particles attached.

A query has words, "phrases", `-without`, `tag:` or `#tag`, `path:` and `OR`; any text is a valid query. Terms
that are joined by `OR` form a group. A note matches if it matches at least one term of every group. A term is
a sequence of words: `node.js` is the phrase "node js". A term with a meaningful sign, such as `C++` or `$x`,
is first looked up by its words; the notes that are found must then contain the term itself, with its signs. A
term without words, such as `->`, is searched in the stored texts.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace
from itertools import pairwise

from toolwire.vault.policy import key

UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"  # Tibetan, Burmese, Khmer
    "\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"  # Chinese, Japanese
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\uac00-\ud7a3"  # Korean
    "\U00020000-\U0003fffd"
)
_UNSPACED = re.compile(f"[{UNSPACED}]")
_SIGNS = re.compile(f"[^\\x00-\\x7f\\w{UNSPACED}]+")
_UNSTORABLE = re.compile("[\\0\\ud800-\\udfff]")
_TOKEN = re.compile(f"[{UNSPACED}]|[^\\W_{UNSPACED}]+")


class _Fold(dict[int, int]):
    """Maps the code point of a letter to that of the letter without case and accent. Filled on demand."""

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


def storable(text: str) -> str:
    """Returns the text with spaces instead of NUL and lone surrogates: SQLite cannot store them."""
    return _UNSTORABLE.sub(" ", text)


def composed(text: str) -> str:
    """Returns the text in the form that is indexed: a letter and its accent are one character (NFC)."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def folded(text: str) -> str:
    """Returns the text without case and accents, for comparisons.

    The length stays the same, so that a position in the result is also the position in `text`.
    """
    return text.lower() if text.isascii() else text.translate(_FOLD)


def indexed(text: str) -> str:
    """Prepares a text for FTS5: removes case, accents (`folded`) and signs.

    Letters of scripts without spaces (Chinese, Thai, …) are set apart by spaces. Signs are removed because
    FTS5's old Unicode tables treat newer signs, such as emoji, as letters. ASCII text is returned unchanged:
    FTS5 itself ignores its case and signs.
    """
    return text if text.isascii() else _UNSPACED.sub(" \\g<0> ", _SIGNS.sub(" ", folded(text)))


def tokens(text: str) -> list[str]:
    """Returns the words of `text`, which must already be without case and accents (`folded`)."""
    return _TOKEN.findall(text)


# --- queries ---

MOST_LETTERS = 1000
MOST_TERMS = 32
PREFIX_LETTERS = 3
"""A last word with fewer letters is searched as a prefix only if the query finds nothing else."""
_PART = re.compile(r'(-(?=[\w"#]))?(?:(tag|path|file|folder):)?(?:"([^"]*)(?:"|\Z)|(\S+))', re.I)
_WRAPPING = ".,;:!?\"'`’‘“”«»()[]{}…、。，！？「」"
_MEANINGFUL = re.compile(rf"[^\w\s{re.escape(_WRAPPING)}\-–—/]")
"""Signs that distinguish a term, as in `C++`."""


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a query.

    `words`: the words as they are in the index. `literal`: a text without case and accents (`folded`) that
    the note must contain; may be empty. `prefix`: the last word may be the beginning of a longer word.
    """

    words: tuple[str, ...]
    literal: str = ""
    quoted: bool = False
    prefix: bool = False

    @property
    def expression(self) -> str:
        return f'"{" ".join(self.words)}"' + (" *" if self.prefix else "")

    @property
    def pattern(self) -> re.Pattern[str]:
        """Returns a pattern that finds the term in a `folded` text.

        The pattern matches `literal`, or the words with no letters or digits between them.
        """
        if self.literal:
            return re.compile(re.escape(self.literal))
        letter = f"[^\\W_{UNSPACED}]"
        first = re.escape(self.words[0])
        # The character before a word is checked after it: `re` is faster if a pattern begins with letters.
        out = first if _UNSPACED.match(self.words[0]) else f"{first}(?<!{letter}{first})"
        for before, word in pairwise(self.words):
            apart = "*" if _UNSPACED.match(before) or _UNSPACED.match(word) else "+"
            out += f"[\\W_]{apart}{re.escape(word)}"
        return re.compile(out if self.prefix or _UNSPACED.match(self.words[-1]) else f"{out}(?!{letter})")

    def loosened(self) -> list[Term]:
        """Returns one term for each word; a note matches if it contains one of them.

        A quoted term, or one in a script without spaces, stays whole.
        """
        if not self.words:
            return []
        if self.quoted or any(_UNSPACED.match(word) for word in self.words):
            return [Term(self.words, prefix=self.prefix)]
        return [Term((word,), prefix=self.prefix and word == self.words[-1]) for word in self.words]


Group = tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Query:
    groups: tuple[Group, ...] = ()
    without: tuple[Term, ...] = ()
    tags: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    without_tags: tuple[str, ...] = ()
    without_paths: tuple[str, ...] = ()

    @property
    def terms(self) -> tuple[Term, ...]:
        return tuple(term for group in self.groups for term in group)

    @property
    def filtered(self) -> bool:
        return bool(self.tags or self.paths or self.without_tags or self.without_paths)

    def with_prefix(self) -> Query | None:
        """Returns the query with its last word as a prefix; None if that word cannot be a prefix."""
        if not self.groups:
            return None
        last = self.groups[-1][-1]
        if last.quoted or not last.words or last.literal or last.prefix:
            return None
        group = (*self.groups[-1][:-1], replace(last, prefix=True))
        return replace(self, groups=(*self.groups[:-1], group))

    def loosened(self) -> list[Term]:
        return list(dict.fromkeys(loose for term in self.terms for loose in term.loosened()))


def _term(text: str, quoted: bool) -> Term | None:
    """Returns the term of one part of the query; None if it has neither words nor signs."""
    text = text.strip()
    compared = folded(composed(text if quoted else text.strip(_WRAPPING) or text))
    words = tuple(tokens(compared))
    literal = compared if not words or _MEANINGFUL.search(compared) else ""
    return Term(words, literal, quoted) if words or literal else None


def parse_query(text: str) -> Query:
    filters: dict[str, tuple[str, ...]] = {}
    groups: list[list[Term]] = []
    without: list[Term] = []
    either = negated = False
    for part in list(_PART.finditer(storable(text)[:MOST_LETTERS]))[:MOST_TERMS]:
        minus, operator, quote, word = part.groups()
        if word in ("AND", "OR", "NOT") and not minus and not operator:
            either, negated = word == "OR", word == "NOT"
            continue
        value = word if quote is None else quote
        no, negated = bool(minus) or negated, False
        if not operator and quote is None and re.match(r"#[^\W\d]", value):
            operator = "tag"
        if operator:
            name = "tags" if operator.lower() == "tag" else "paths"
            cleaned = value.strip().lstrip("#").strip("/") if name == "tags" else value.strip()
            if cleaned:
                name = f"without_{name}" if no else name
                filters[name] = (*filters.get(name, ()), key(cleaned))
            continue
        term = _term(value, quote is not None)
        if term is None:
            continue
        if no:
            without.append(term)
        elif either and groups:
            groups[-1].append(term)
        else:
            groups.append([term])
        either = False
    return Query(tuple(tuple(group) for group in groups), tuple(without), **filters)


def expression(groups: tuple[Group, ...], without: tuple[Term, ...] = (), joined: str = "AND") -> str:
    """Returns the FTS5 expression of a query; empty if no group has words."""
    parts = []
    for group in groups:
        alternatives = [one.expression for one in group if one.words]
        if alternatives:
            parts.append(f"({' OR '.join(alternatives)})" if len(alternatives) > 1 else alternatives[0])
    if not parts:
        return ""
    positive = f" {joined} ".join(parts)
    excluded = [one.expression for one in without if one.words and not one.literal]
    return f"({positive}) NOT ({' OR '.join(excluded)})" if excluded else positive

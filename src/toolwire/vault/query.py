"""Parses search queries: words, "phrases", `-without`, `tag:` or `#tag`, `path:`, `OR`. Pure.

Any text is a query. All groups must match (AND); within a group one term is enough (OR). A term is a sequence
of words: `node.js` is the phrase "node js". A term with a meaningful sign (`C++`, `$x`, `->`) is looked up by
its words and then compared letter by letter; a term without words is only compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from toolwire.vault.policy import key
from toolwire.vault.words import composed, folded, sayable, tokens

MOST_LETTERS = 1000
MOST_TERMS = 32
PREFIX_LETTERS = 3
"""A shorter last word counts as a prefix only if nothing else is found."""
_PART = re.compile(r'(-(?=[\w"#]))?(?:(tag|path|file|folder):)?(?:"([^"]*)(?:"|\Z)|(\S+))', re.I)
_WRAPPING = ".,;:!?\"'`’‘“”«»()[]{}…、。，！？「」"
_MEANT = re.compile(r"[^\w\s.,;:!?\"'`’‘“”«»()\[\]{}…、。，！？「」\-–—/]")
"""Signs that are meaningful among letters."""


@dataclass(frozen=True, slots=True)
class Term:
    """One term.

    `words`: as the index has them. `literal`: folded text that the note must contain, or empty.
    """

    words: tuple[str, ...]
    literal: str = ""
    quoted: bool = False
    prefix: bool = False

    @property
    def expression(self) -> str:
        return f'"{" ".join(self.words)}"' + (" *" if self.prefix else "")


Group = tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Query:
    text: str
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
        """The query with its last word as a prefix; None if that is the same query."""
        if not self.groups:
            return None
        last = self.groups[-1][-1]
        if last.quoted or not last.words or last.literal or last.prefix:
            return None
        return replace(self, groups=(*self.groups[:-1], (*self.groups[-1][:-1], replace(last, prefix=True))))


def term(text: str, quoted: bool = False) -> Term | None:
    """The term of one part of the query; None if it has neither words nor signs."""
    compared = folded(composed(text.strip() if quoted else text.strip().strip(_WRAPPING) or text.strip()))
    words = tuple(tokens(compared))
    literal = compared if compared and (not words or _MEANT.search(compared)) else ""
    return Term(words, literal, quoted) if words or literal else None


def parse_query(text: str) -> Query:
    """Parses a query."""
    text = sayable(text)
    found: dict[str, list[str]] = {"tags": [], "paths": [], "without_tags": [], "without_paths": []}
    groups: list[list[Term]] = []
    without: list[Term] = []
    either = negated = False
    for part in list(_PART.finditer(text[:MOST_LETTERS]))[:MOST_TERMS]:
        minus, operator, quote, word = part.groups()
        if word in ("AND", "OR", "NOT") and not minus and not operator:
            either, negated = word == "OR", word == "NOT"
            continue
        value, is_quoted = (quote, True) if quote is not None else (word, False)
        no = bool(minus) or negated
        negated = False
        if (
            not operator
            and not is_quoted
            and len(value) > 1
            and value[0] == "#"
            and re.match(r"#[^\W\d]", value)
        ):
            operator, value = "tag", value[1:]
        if operator:
            name = "tags" if operator.lower() == "tag" else "paths"
            cleaned = value.strip().lstrip("#").strip("/") if name == "tags" else value.strip()
            if cleaned:
                found[f"without_{name}" if no else name].append(key(cleaned))
            continue
        made = term(value, is_quoted)
        if made is None:
            continue
        if no:
            without.append(made)
        elif either and groups:
            groups[-1].append(made)
        else:
            groups.append([made])
        either = False
    filters = {name: tuple(values) for name, values in found.items()}
    return Query(text, tuple(tuple(group) for group in groups), tuple(without), **filters)


def expression(groups: tuple[Group, ...], without: tuple[Term, ...] = (), joined: str = "AND") -> str:
    """The FTS5 expression of a query; empty if no group has words."""
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

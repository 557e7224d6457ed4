"""What the request itself contains: a block that stands there is a quotation, not a call (law 12).

Compared are not the bare characters but what a reader sees: a note reaches the model as JSON, as HTML, in a block quote, with other line ends, cut
into several parts, and comes back as plain text. So both sides are stripped of white space, escapes, entities and quote marks before they are
compared. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_BLANKS = re.compile(r"\\+[nrt]|[\s\u200b\u200c\u200d\ufeff]+|^[>\s]+", re.MULTILINE)
_CODES = re.compile(r"\\+u00([23])([0-9a-fA-F])")
_ENTITIES = (("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&apos;", "'"), ("&#39;", "'"), ("&#34;", '"'))
_ODD = re.compile(r"[^\w<>{}:=/]+")


def seen(text: str) -> str:
    """The text as a reader sees it: without white space, escapes, entities, and the marks around words."""
    for _ in range(2):
        if "&" in text:
            for entity, character in _ENTITIES:
                text = text.replace(entity, character)
    if "\\" in text:
        text = _CODES.sub(lambda found: chr(int(found[1] + found[2], 16)), text)
    return _ODD.sub("", _BLANKS.sub("", text))


class Quotations:
    """The texts of a request. Prepared when the first block asks; texts without anything like a marker do not count."""

    def __init__(self, texts: Iterable[str], markers: Sequence[str]) -> None:
        words = {max(re.findall(r"\w+", marker), key=len, default=marker) for marker in markers}
        self._texts = [text for text in texts if any(word in text for word in words) or "{" in text]
        self._seen: str | None = None

    def __bool__(self) -> bool:
        return bool(self._texts)

    def __contains__(self, block: str) -> bool:
        if self._seen is None:
            self._seen = seen("\n".join(self._texts))
        return seen(block) in self._seen

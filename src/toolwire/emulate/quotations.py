"""What the request itself contains: a block that stands there is a quotation, not a call (law 12).

Compared are not the bare characters but what a reader sees: a note reaches the model as JSON, as HTML, in a block quote, with other line ends, cut
into several parts, and comes back as plain text. So both sides are stripped of white space, escapes, entities and quote marks before they are
compared. Brackets stay: a name in a sentence is no call of it. Linear. Standard library only.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

_NESTED = 3  # so deep may text stand in HTML, or in JSON whose backslashes are codes too
_CODES = re.compile(r"(?<!\\)(?:\\+u[0-9a-fA-F]{4})+")
_CODE = re.compile(r"\\+u")
_ENTITIES = re.compile(r"&(?:#0*([0-9]{1,7})|#[xX]0*([0-9a-fA-F]{1,6})|[A-Za-z][A-Za-z0-9]{1,31});?")
_SPACES = re.compile(r"(?<!\\)\\+([nrt])")
_MARGINS = re.compile(r"(?:^|[\r\n])[>\\\s\u200b\u200c\u200d\ufeff]+")
_ODD = re.compile(r"[^\w<>{}:=/()\[\]]+")
_ENCODED = re.compile(r"\\u|&#|&\w+;")


def seen(text: str) -> str:
    """The text as a reader sees it: without white space, escapes, entities, and the marks around words."""
    for _ in range(_NESTED):
        if "\\" in text:
            text = _CODES.sub(_decoded, text)
        if "&" in text:
            text = _ENTITIES.sub(_character, text)
    if "\\" in text:
        text = _SPACES.sub(lambda found: "\t" if found[1] == "t" else "\n", text)
    return _ODD.sub("", _MARGINS.sub("", text))


def _decoded(codes: re.Match[str]) -> str:
    """JSON's codes, which are UTF-16: two may be one character."""
    return bytes.fromhex(_CODE.sub("", codes.group())).decode("utf-16-be", "replace")


def _character(entity: re.Match[str]) -> str:
    decimal, hexadecimal = entity.groups()
    return html.unescape(f"&#{decimal};" if decimal else f"&#x{hexadecimal};" if hexadecimal else entity.group())


class Quotations:
    """The texts of a request. Prepared when the first block asks; texts without anything like a marker do not count."""

    def __init__(self, texts: Iterable[str], markers: Sequence[str]) -> None:
        words = {max(re.findall(r"\w+", marker), key=len, default=marker) for marker in markers}
        self._texts = [text for text in texts if any(word in text for word in words) or "{" in text or _ENCODED.search(text)]
        self._seen: str | None = None

    def __bool__(self) -> bool:
        return bool(self._texts)

    def __contains__(self, block: str) -> bool:
        if self._seen is None:
            self._seen = seen("\n".join(self._texts))
        return seen(block) in self._seen

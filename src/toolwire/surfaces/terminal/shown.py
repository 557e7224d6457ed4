"""Foreign text, made safe to show: what a model or a note says can not move the cursor, change colours, or hide or reorder what is decided on."""

from __future__ import annotations

import re

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_INVISIBLE = (
    *range(0x80, 0xA0),  # the second set of controls
    0x061C,
    *range(0x200E, 0x2010),
    *range(0x2028, 0x202F),  # line separators and overrides of direction
    *range(0x2061, 0x2065),
    *range(0x2066, 0x2070),
    0xFEFF,
    *range(0xFFF9, 0xFFFC),
    *range(0xE0000, 0xE1000),  # letters and marks that are not seen
    *range(0xD800, 0xE000),
)
_TABLE: dict[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "␡",
    **dict.fromkeys(_INVISIBLE, _REPLACEMENT),
}
_UNSAFE = re.compile("[" + "".join(re.escape(chr(code)) for code in _TABLE) + "]")
UNITS = ("B", "kB", "MB", "GB")


def clean(text: str) -> str:
    """The text with every control made visible, but for line ends and tabs."""
    if _UNSAFE.search(text) is None:
        return text
    return text.replace("\r\n", "\n").translate(_TABLE)


def one_line(text: str, width: int = 200) -> str:
    """The text on one line, cut at `width` characters."""
    flat = clean(text).replace("\n", " ⏎ ").replace("\t", " ")
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def size(count: int) -> str:
    """A number of bytes as people write it: `17 B`, `4.2 kB`."""
    amount = float(count)
    for unit in UNITS:
        if amount < 1000 or unit == UNITS[-1]:
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"

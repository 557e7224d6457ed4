"""Other names of a Codex model: one per reasoning effort, and the names that older Codex proxies gave out. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Sequence

# The names of codex-completions-api and its successor, with the effort that each stands for.
_EFFORTS = {"l": "low", "low": "low", "m": "medium", "medium": "medium", "h": "high", "high": "high", "xh": "xhigh", "xhigh": "xhigh", "local": "low"}
_KNOWN = re.compile(r"(?:code[xv]-5(?:\.\d)?|gpt-5(?:\.\d)?(?:-code[xv])?)(?:-(l|m|h|xh|low|medium|high|xhigh|local))?", re.IGNORECASE)


def efforts_of(id: str, efforts: Sequence[str]) -> dict[str, str]:
    """`codex-low`, `codex-medium` …: listed beside the model itself."""
    return {f"{id}-{effort}": effort for effort in efforts}


def known_effort(name: str) -> str | None:
    """The effort that an older proxy's model name stands for ("" for none); None when it is no such name."""
    found = _KNOWN.fullmatch(name)
    if found is None:
        return None
    return _EFFORTS[found[1].lower()] if found[1] else ""

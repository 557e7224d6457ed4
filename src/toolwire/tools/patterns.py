"""Patterns of paths, as rules have them: `*` and `?` stay within one folder, `**` crosses folders, case counts. Pure."""

from __future__ import annotations

import re

_PIECES = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def compiled(glob: str) -> re.Pattern[str]:
    pieces = re.split(r"(\*\*/|\*\*|\*|\?)", glob)
    return re.compile("".join(_PIECES.get(piece) or re.escape(piece) for piece in pieces), re.DOTALL)


def fits(pattern: re.Pattern[str], path: str) -> bool:
    """Whether the pattern names the path; one that steps out of its folder fits none."""
    return not {"", ".", ".."} & set(path.split("/")) and "\\" not in path and pattern.fullmatch(path) is not None

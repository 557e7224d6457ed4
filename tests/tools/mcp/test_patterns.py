"""The regular expressions of globs say the same as a plain, slow reading of the glob."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from toolwire.tools.mcp.patterns import glob, path_glob


def fits(pattern: str, text: str) -> bool:
    """`*` is any text, `?` any letter."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(fits(pattern[1:], text[cut:]) for cut in range(len(text) + 1))
    return bool(text) and pattern[0] in ("?", text[0]) and fits(pattern[1:], text[1:])


def path_fits(pattern: list[str], names: list[str]) -> bool:
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(path_fits(pattern[1:], names[cut:]) for cut in range(len(names) + 1))
    return bool(names) and fits(pattern[0], names[0]) and path_fits(pattern[1:], names[1:])


@given(st.text("ab*?.", max_size=8), st.text("ab.", max_size=10))
@settings(max_examples=2000)
def test_a_glob_of_text_matches_what_it_says(pattern: str, text: str) -> None:
    found = re.compile(glob(pattern), re.DOTALL).fullmatch(text) is not None
    assert found == fits(re.sub(r"\*+", "*", pattern), text)


NAME_PATTERNS = st.one_of(
    st.just("**"), st.text("ab?", min_size=1, max_size=3), st.sampled_from(["*", "a*", "*b", "a*b", "*a*"])
)


@given(st.lists(NAME_PATTERNS, max_size=6), st.lists(st.text("ab", min_size=1, max_size=3), max_size=6))
@settings(max_examples=3000)
def test_a_glob_of_paths_matches_what_it_says(pattern: list[str], names: list[str]) -> None:
    regex = path_glob("".join("/" + name for name in pattern))
    assert (regex.fullmatch("".join("/" + name for name in names)) is not None) == path_fits(pattern, names)

"""The YAML reader: strict rules for arguments, loose rules for notes, and no text raises an exception."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.core.yaml import read_mapping, read_member, read_value, without_comment

YAML: list[tuple[str, Any]] = [
    (
        "a: 1\nb: 1.5\nc: -2e3\nd: 007\ne: 1_000\nf: .5",
        {"a": 1, "b": 1.5, "c": -2e3, "d": "007", "e": "1_000", "f": ".5"},
    ),
    (
        "a: true\nb: False\nc: null\nd: ~\ne:\nf: yes",
        {"a": True, "b": False, "c": None, "d": None, "e": None, "f": "yes"},
    ),
    (
        "a: \"x\\n\\u00e9: #\"\nb: 'it''s'\n'c d': 1\n\"e\": 2",
        {"a": "x\né: #", "b": "it's", "c d": 1, "e": 2},
    ),
    ("url: http://x.org:80/#a\ntime: 10:30", {"url": "http://x.org:80/#a", "time": "10:30"}),
    ("a: |\n  one\n   two\n\n  three\n\nb: 1", {"a": "one\n two\n\nthree\n", "b": 1}),
    (
        "a: |-\n  one\nb: |+\n  two\n\nc: >\n  three\n  four\n\n  five\n",
        {"a": "one", "b": "two\n\n", "c": "three four\nfive\n"},
    ),
    ("a:\n  b:\n    c: 1\n  d: 2", {"a": {"b": {"c": 1}, "d": 2}}),
    (
        "a:\n  - 1\n  - b: 2\n    c: 3\n  - - x\n    - y\n  -\n    d: 4",
        {"a": [1, {"b": 2, "c": 3}, ["x", "y"], {"d": 4}]},
    ),
    ("a:\n- 1\n- two\nb: 3", {"a": [1, "two"], "b": 3}),
    (
        "a: [1, 'x', two words, {k: v, \"q\": null}]\nb: {}\nc: []",
        {"a": [1, "x", "two words", {"k": "v", "q": None}], "b": {}, "c": []},
    ),
    ("# first\na: 1\n\n# last\n", {"a": 1}),
    ("a: 1\r\nb: 2\r\n", {"a": 1, "b": 2}),
    ('a: "\\ud83d\\ude00 \\x41"\nb: "\\ud800"', {"a": "😀 A", "b": "\ufffd"}),
]
NO_YAML = [
    *("", "just text", "- a\n- b", "a: 1\na: 2", "a: &x 1", "a: *x", "a: !!str 1", "a: 1 # one", "a: b: c"),
    *("a: x\n  more", "a:\n\tb: 1", "? a\n: b", "---\na: 1", "a: 'open", "a: [1, 2", "a: {b}", "a: @x"),
    *("a: |2\n    x", "a: 1\n  b: 2", "a: 1e999", "  a: 1\n b: 2", "a: 'x' y", "a: - 1", 'a: "\\q"'),
]


@pytest.mark.parametrize(("text", "expected"), YAML)
def test_strict_yaml_is_read(text: str, expected: Any) -> None:
    assert read_mapping(text) == expected


@pytest.mark.parametrize("text", NO_YAML)
def test_yaml_outside_the_strict_rules_is_none(text: str) -> None:
    assert read_mapping(text) is None


def test_yaml_that_is_too_deep_is_none_and_raises_nothing() -> None:
    assert read_mapping("a: " + "[" * 5000) is None
    assert read_mapping("\n".join(" " * depth + f"k{depth}:" for depth in range(2000))) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("+3", 3),
        ("1e5", "1e5"),
        ("TRUE", True),
        ("", None),
        ("'it''s'  # quoted", "it's"),
        ("[a, #b, , 'c, d'] # list", ["a", "#b", None, "c, d"]),
        ('"C:\\Users"', "C:\\Users"),
        ('"unclosed', '"unclosed'),
        ("[a, b", "[a, b"),
        ("a: b", "a: b"),
        ("@home", "@home"),
        ("[" * 5000, "[" * 5000),
    ],
)
def test_a_value_under_the_loose_rules(text: str, value: Any) -> None:
    assert read_value(text) == value


def test_a_comment_after_a_plain_value_is_cut() -> None:
    assert without_comment("text # comment") == "text"
    assert without_comment("https://x.org/#a") == "https://x.org/#a"
    assert without_comment("'text # here'") == "'text # here'"


@pytest.mark.parametrize(
    ("line", "member"),
    [
        ("dc:title: x", ("dc:title", "x")),
        ("'a: b' : c", ("a: b", "c")),
        ("Issue #: 12", ("Issue #", "12")),
        ("key:", ("key", "")),
        ("no key", None),
        (" a: 1", None),
        ("- a: 1", None),
        ("'open: 1", None),
    ],
)
def test_the_key_of_a_line_under_the_loose_rules(line: str, member: tuple[str, str] | None) -> None:
    assert read_member(line) == member


PIECES = st.sampled_from(
    [
        *"ab:#-[]{},'\"\\|>&*!?%@`~+.019 \t\n\r",
        ": ",
        "- ",
        "\n  ",
        "\\u",
        "\\ud800",
        "1e999",
        "9" * 5000,
        "true",
    ]
)


@given(st.lists(PIECES, max_size=30).map("".join))
def test_no_text_raises(text: str) -> None:
    read_mapping(text)
    read_value(text)
    read_member(text)
    without_comment(text)

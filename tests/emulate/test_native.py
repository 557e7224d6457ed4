"""Arguments of native calls: valid ones are verbatim, known deviations are repaired, for all splits."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from toolwire.emulate.native import EMPTY_FIRST, ENCODED, MOST_EMPTY, NULL, NativeArguments, normalized

PARIS = '{"city": "Paris"}'
values = some.recursive(
    some.none()
    | some.booleans()
    | some.integers()
    | some.floats(allow_nan=False, allow_infinity=False)
    | some.text(max_size=8),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
objects = some.dictionaries(some.text(max_size=4), values, max_size=4)
blanks = some.text(" \t\r\n", max_size=3)
# JSON, its slips and its wrappers, combined in any order
scraps = some.lists(
    some.sampled_from(
        [
            "{",
            "}",
            "[",
            "]",
            '"',
            "'",
            ",",
            ":",
            "\\",
            "u00",
            " ",
            "\n",
            "null",
            "None",
            "tru",
            "a",
            "1",
            ".",
            "é",
        ]
    ),
    max_size=14,
)


def fed(pieces: list[str]) -> tuple[str, NativeArguments]:
    flow = NativeArguments()
    out = [flow.feed(piece) for piece in pieces]
    return "".join([*out, flow.finish()]), flow


def cut_at(text: str, places: list[int]) -> list[str]:
    marks = [0, *sorted({place % (len(text) + 1) for place in places}), len(text)]
    return [text[start:end] for start, end in pairwise(marks)]


def wrapped(value: dict[str, Any], how: str) -> str:
    text = json.dumps(value, ensure_ascii=how != "escaped")
    return {
        "twice": json.dumps(text),
        "thrice": json.dumps(json.dumps(text)),
        "empty first": "{}" + text,
        "null first": "null " + text,
    }.get(how, text)


@given(
    objects,
    some.sampled_from(["plain", "escaped", "indented"]),
    blanks,
    blanks,
    some.lists(some.integers(0), max_size=12),
)
def test_a_valid_object_passes_verbatim_however_it_is_cut(
    value: dict[str, Any], how: str, before: str, after: str, places: list[int]
) -> None:
    text = (
        before
        + json.dumps(value, ensure_ascii=how == "escaped", indent=2 if how == "indented" else None)
        + after
    )
    out, flow = fed(cut_at(text, places))
    assert out == text and not flow.issues and not flow.cut


@given(
    objects.filter(bool),
    some.sampled_from(["twice", "thrice", "empty first", "null first"]),
    some.lists(some.integers(0), max_size=12),
)
def test_wrapped_arguments_come_out_as_the_object(value: dict[str, Any], how: str, places: list[int]) -> None:
    out, flow = fed(cut_at(wrapped(value, how), places))
    assert json.loads(out) == value and flow.issues and not flow.cut


@given(scraps.map("".join), some.lists(some.integers(0), max_size=12))
def test_whatever_comes_the_splits_do_not_matter(text: str, places: list[int]) -> None:
    whole, by_pieces = fed([text]), fed(cut_at(text, places))
    assert by_pieces[0] == whole[0] == normalized(text)
    assert (by_pieces[1].issues, by_pieces[1].cut) == (whole[1].issues, whole[1].cut)
    if not whole[1].issues:
        assert whole[0] == text, "what was not repaired passes as it is"


@given(objects, some.data())
def test_arguments_that_break_off_are_cut_and_pass_as_far_as_they_came(
    value: dict[str, Any], data: Any
) -> None:
    text = json.dumps(value)
    stop = data.draw(some.integers(1, len(text) - 1))
    out, flow = fed([text[:stop]])
    assert out == text[:stop] and flow.cut


@pytest.mark.parametrize(
    ("text", "out", "issues"),
    [
        ("", "", ()),
        ("  ", "  ", ()),
        ("null", "{}", (NULL,)),
        (" None ", "{}", (NULL,)),
        ("{}", "{}", ()),
        ("{ }\n", "{ }\n", ()),
        ("{}{}", "{}", (EMPTY_FIRST,)),
        ('""', "{}", (ENCODED,)),
        ('"null"', "{}", (ENCODED,)),
        ("{}" + PARIS, PARIS, (EMPTY_FIRST,)),
        (json.dumps(PARIS), PARIS, (ENCODED,)),
        ("{}" + json.dumps(PARIS), PARIS, (ENCODED,)),
        ('{"city": "Paris",}', PARIS, ("trailing_comma",)),
        ("{'city': 'Paris'}", PARIS, ("single_quotes",)),
        ('{"on": True, "at": None}', '{"on": true, "at": null}', ("python_literal",)),
        # ambiguous, so left unchanged
        ("Paris", "Paris", ()),
        ("[1]", "[1]", ()),
        ('"Paris"', '"Paris"', ()),
        ("nullable", "nullable", ()),
        ("{}nope", "{}nope", ()),
        ("{} and more", "{} and more", ()),
        (PARIS + PARIS, PARIS + PARIS, ()),
        ("{}" * (MOST_EMPTY + 1) + PARIS, "{}" * (MOST_EMPTY + 1) + PARIS, ()),
    ],
)
def test_each_deviation(text: str, out: str, issues: tuple[str, ...]) -> None:
    for pieces in ([text], list(text)):
        found, flow = fed(pieces)
        assert (found, flow.issues) == (out, issues)


def test_arguments_are_live() -> None:
    """Only text that may still change its meaning is held back."""
    flow = NativeArguments()
    assert [flow.feed(char) for char in '{"a": "b", "c": 1}'] == [
        *("", '{"', "a", '"', ":", " ", '"', "b", '"', "", "", ', "', "c", '"', ":", " ", "1", "}")
    ]


def test_a_flood_of_small_pieces_costs_no_more_than_its_size() -> None:
    for piece in ("{}", " ", "{ ", '"', "n"):
        flow = NativeArguments()
        for _ in range(20_000):
            flow.feed(piece)
        assert flow.finish() is not None

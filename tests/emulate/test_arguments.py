"""JSON as models write it: valid JSON is verbatim, known slips are repaired, the rest is refused exactly."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.emulate.arguments import MAX_DEPTH, JsonFlow, load_object
from toolwire.emulate.grammars.json_block import StringFlow

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
cut_places = st.lists(st.integers(0, 200), max_size=8)


def pieces(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


def flow(text: str, cuts: list[int]) -> tuple[str, int, str, tuple[str, ...]]:
    """The output, the consumed length, the end, and the repairs."""
    one, buffer, position, consumed, out = JsonFlow(), "", 0, 0, ""
    for piece in pieces(text, cuts):
        consumed += position
        buffer = buffer[position:] + piece
        position = one.run(buffer, 0)
        out += one.take()
        if one.done or one.failed:
            break
    return (
        out,
        consumed + position,
        "done" if one.done else "failed" if one.failed else "open",
        tuple(one.issues),
    )


@given(json_values, st.sampled_from([None, 1, "\t"]), st.booleans(), cut_places)
def test_strict_json_passes_verbatim(
    value: Any, indent: int | str | None, ascii_only: bool, cuts: list[int]
) -> None:
    text = json.dumps([value], indent=indent, ensure_ascii=ascii_only)
    assert flow(text + " tail", cuts) == (text, len(text), "done", ())


@given(
    st.text(alphabet=st.sampled_from("{}[],:\"'\\/ubtn0123eE+-.truefalsNoneab \n\x01é"), max_size=40),
    cut_places,
)
def test_any_text_gives_the_same_however_it_is_cut_and_valid_json_when_done(
    text: str, cuts: list[int]
) -> None:
    whole = flow(text, [])
    assert flow(text, cuts) == whole
    if whole[2] == "done":
        json.loads(whole[0])


@pytest.mark.parametrize(
    ("written", "strict", "issue"),
    [
        ('{"a": "x\ny\t"}', '{"a": "x\\ny\\t"}', "control_character"),
        ('{"a": "\\d \\u12"}', '{"a": "\\\\d \\\\u12"}', "bad_escape"),
        ('{"a": "it\\\'s"}', '{"a": "it\'s"}', "bad_escape"),
        ("{'a': 'say \"hi\"'}", '{"a": "say \\"hi\\""}', "single_quotes"),
        ("{a_1: 1}", '{"a_1": 1}', "unquoted_key"),
        ("[1, 2 , ]", "[1, 2  ]", "trailing_comma"),
        ('{"a": {},}', '{"a": {}}', "trailing_comma"),
        ("[True, False, None]", "[true, false, null]", "python_literal"),
    ],
)
def test_known_slips_are_repaired(written: str, strict: str, issue: str) -> None:
    for cuts in ([], list(range(len(written)))):
        assert flow(written, cuts) == (strict, len(written), "done", (issue,))
    json.loads(strict)


@pytest.mark.parametrize(
    ("written", "stops_at"),
    [
        ('{"a" 1}', 5),
        ("[01]", 2),
        ("[1 2]", 3),
        ("[,]", 1),
        ("[1,,2]", 3),
        ("[tru]", 4),
        ('{"a":}', 5),
        ("[-]", 2),
        ("[1.]", 3),
        ('{"":null,\r]', 10),
    ],
)
def test_a_violation_stops_at_its_character(written: str, stops_at: int) -> None:
    whole = flow(written, [])
    assert whole[1:3] == (stops_at, "failed") and whole[0] == written[:stops_at]
    assert flow(written, list(range(len(written)))) == whole


def test_depth_is_bounded_without_recursion() -> None:
    assert flow("[" * MAX_DEPTH + "]" * MAX_DEPTH, [])[2] == "done"
    assert flow("[" * (MAX_DEPTH + 1), [])[2:] == ("failed", ("too_deep",))


@given(st.dictionaries(st.text(), json_values, max_size=4), st.booleans(), st.booleans(), cut_places)
def test_a_string_of_json_is_unescaped_once(
    value: dict[str, Any], inner_ascii: bool, outer_ascii: bool, cuts: list[int]
) -> None:
    inner = json.dumps(value, ensure_ascii=inner_ascii)
    outer = json.dumps(inner, ensure_ascii=outer_ascii)[1:]
    one, buffer, position, out = StringFlow(), "", 0, ""
    for piece in pieces(outer, cuts):
        buffer = buffer[position:] + piece
        position = one.run(buffer, 0)
        out += one.take()
    assert one.done and not one.bad
    assert out == inner


def test_lone_surrogate_escapes_stay_escapes() -> None:
    one = StringFlow()
    text = r'{\"a\": \"\ud800x\"}"'
    assert one.run(text, 0) == len(text)
    assert one.take() == '{"a": "\\ud800x"}' and not one.bad
    two = StringFlow()
    two.run(r'\udc00\udc00\ud83d"', 0)
    assert two.take() == r"\udc00\udc00\ud83d" and two.bad


def test_a_string_without_json_is_reported() -> None:
    one = StringFlow()
    one.run('Paris"', 0)
    assert one.done and one.bad


@pytest.mark.parametrize(
    ("text", "value"), [('{"a":1}', {"a": 1}), ("[1]", None), ("", None), ("{", None), ("[" * 100_000, None)]
)
def test_only_objects_are_arguments(text: str, value: dict[str, Any] | None) -> None:
    assert load_object(text) == value

"""Malformed calls are repaired if only one reading is possible, and are text otherwise.

No call with other arguments is ever reported as good.
"""

from __future__ import annotations

from typing import Any

import pytest

TOOLS: list[dict[str, Any]] = [
    {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string"}, "tags": {"type": "array"}},
            "required": ["city"],
        },
    },
    {"name": "free"},
]
CITY = '{"city": "Paris"}'
BOTH = '{"city": "Paris", "unit": "C"}'


def qwen(body: str, name: str = "look") -> str:
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


REPAIRED = [
    pytest.param(
        qwen("<parameter=city>\nParis\n<parameter=unit>\nC\n</parameter>\n"),
        BOTH,
        id="a value ends at the next parameter",
    ),
    pytest.param(
        qwen("<parameter=city>\nParis\n"), CITY, id="the last value ends at the call's closing tags"
    ),
    pytest.param(
        "<tool_call>\n<function=look>\n<parameter=city>\nParis\n</parameter>\n</tool_call>",
        CITY,
        id="the wrapper closes the call",
    ),
    pytest.param(
        '<tool_call>{"name": "look", "arguments": {"city": "Paris"}</tool_call>',
        CITY,
        id="the last brace is missing",
    ),
    pytest.param(
        "<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>",
        CITY,
        id="only closing tags are missing",
    ),
]
TEXT = [
    pytest.param(
        qwen("<parameter=city>\nParis\n</parameter>\n<parameter=city>\nRome\n</parameter>\n"),
        id="a parameter twice",
    ),
    pytest.param(
        qwen("<parameter=city>Paris<parameter=unit>C</parameter>\n"), id="a parameter inside of a line"
    ),
    pytest.param(
        qwen("<parameter=city>\nParis\n</paramter>\n<parameter=unit>\nC\n</parameter>\n"),
        id="a misspelt closer",
    ),
    pytest.param(
        qwen("<parameter=a>\n1\n<parameter=b>\n2\n</parameter>\n", "free"),
        id="a closer missing before an undeclared parameter",
    ),
    pytest.param(
        qwen('<parameter=city>\nParis\n</parameter>\n<parameter=tags>\n["a",, "b"]\n</parameter>\n'),
        id="an array that is no JSON",
    ),
    pytest.param(
        "<tool_call>\n<function=look>\n<parameter=unit>\nC\n</parameter>\n</tool_call>",
        id="a required parameter and the closer missing",
    ),
    pytest.param(
        '<tool_call>{"name":"look","arguments":{"city":"the "}" sign"}}</tool_call>',
        id="a quotation mark inside arguments",
    ),
    pytest.param(
        '<tool_call>{"name":"look","arguments":{"city":"the "}} sign"}}</tool_call>',
        id="a quotation mark that closes the envelope too",
    ),
    pytest.param(
        '<tool_call>{"name": "look", "argments": {"city": "Paris"}}</tool_call>',
        id="arguments under a misspelt key",
    ),
    pytest.param('<tool_call>{"name": "look", "city": "Paris"}</tool_call>', id="arguments beside the name"),
    pytest.param(
        '<tool_call>{"name": "look", "arguments": {"city": "Paris", "city": "Rome"}}</tool_call>',
        id="a key twice",
    ),
    pytest.param(
        '<tool_call>{"name": "look", "arguments": {"city": "P", "\\u0063ity": "R"}}</tool_call>',
        id="a key twice, once escaped",
    ),
    pytest.param(
        '<tool_call>{"name": "look", "arguments": {"city": "P"}, "unit": "C"}}</tool_call>',
        id="a brace too many",
    ),
    pytest.param(
        '<tool_call>{"name": "look", "arguments": {"x": {"y": 1, "city": "P"}}</tool_call>',
        id="a brace missing, and not clear which",
    ),
    pytest.param('[TOOL_CALLS]look[ARGS]{"city":"the "}" sign"}', id="a quotation mark behind a header"),
    pytest.param('[look(city="the ")" sign")]', id="a quotation mark in Python"),
    pytest.param('[look(city="P", city="R")]', id="a keyword twice"),
    pytest.param(
        '<|tool_call>call:look{city:<|"|>P<|"|>,city:<|"|>R<|"|>}<tool_call|>',
        id="a key twice in Gemma's literals",
    ),
    pytest.param("<use_tool><name>look</name><city>P</city><city>R</city></use_tool>", id="an element twice"),
    pytest.param(
        "<look>\n<city>P</cty>\n</look>\n<look>\n<city>R</city>\n</look>",
        id="a misspelt closer before another call",
    ),
]


@pytest.mark.parametrize(("written", "arguments"), REPAIRED)
@pytest.mark.parametrize("mode", ["eager", "validated"])
def test_what_has_one_reading_only_is_repaired(agreed: Any, written: str, arguments: str, mode: str) -> None:
    assert agreed(written, arguments=mode) == [("look", arguments, "repaired")]


def test_a_parameter_s_name_may_be_quoted(agreed: Any) -> None:
    assert agreed(
        '<tool_call>\n<function="look">\n<parameter="city">\nParis\n</parameter>\n</function>\n</tool_call>'
    ) == [("look", CITY, "ok")]


@pytest.mark.parametrize("written", TEXT)
def test_what_is_not_certain_is_text(agreed: Any, written: str) -> None:
    rows = agreed(written, arguments="validated")
    assert "".join(row[1] for row in rows if row[0] == "text") == written or [
        row[2] for row in rows if row[0] != "text"
    ] == ["ok"]
    assert all(row[0] == "text" or row[1] == '{"city": "R"}' for row in rows)


@pytest.mark.parametrize("written", TEXT)
def test_what_was_sent_already_is_marked_as_broken(agreed: Any, written: str) -> None:
    rows = agreed(written, arguments="eager")
    assert all(
        row[0] == "text" or row[2] in ("invalid", "truncated") or row[1] == '{"city": "R"}' for row in rows
    )


NESTED = '{"name": "look", "arguments": {"city": "R", "where": {"days": 7}, "tags": []}}'


@pytest.mark.parametrize("lost", [NESTED.index("}"), len(NESTED) - 1])
@pytest.mark.parametrize("mode", ["eager", "validated"])
def test_a_missing_brace_that_may_be_a_nested_object_s_is_not_guessed(
    agreed: Any, lost: int, mode: str
) -> None:
    """Both texts lack one brace at the end, and nothing shows which."""
    seen = agreed(NESTED[:lost] + NESTED[lost + 1 :], arguments=mode)
    assert all(row[0] == "text" or row[2] == "truncated" for row in seen)

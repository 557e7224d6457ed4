"""Dialects with their own literals (Python's and Gemma's): model output and results, for all splits."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from typing import Any

import pytest

from toolwire.core.events import CallArgs, CallEnd
from toolwire.emulate.dialects import DIALECTS
from toolwire.emulate.dialects.render import render
from toolwire.emulate.scanner import ToolCallParser

MINE = ("pythonic", "lfm2", "gemma")
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "where": {"type": "object"},
            },
        },
    },
    {"type": "function", "name": "write"},
    {"type": "function", "name": "music.play-song"},
]
Rows = list[tuple[str, ...]]
Reads = Callable[..., Rows]


def call(
    arguments: str = '{"city": "Paris"}', name: str = "get_weather", status: str = "ok"
) -> tuple[str, ...]:
    return (name, arguments, status)


PARIS = call()
EMPTY = call("{}", "write")

CALLS = [
    # model output, expected result
    pytest.param('[get_weather(city="Paris")]', [PARIS], id="a list of one"),
    pytest.param("[get_weather(city='Paris'), write()]", [PARIS, EMPTY], id="a list of two"),
    pytest.param(
        "[get_weather(city='Paris'),\n write(),\n]\nDone",
        [PARIS, EMPTY, ("text", "\nDone")],
        id="a list over lines",
    ),
    pytest.param(
        "So:\n  [write( )] ok", [("text", "So:\n  "), EMPTY, ("text", " ok")], id="indented amid text"
    ),
    pytest.param(
        "[music.play-song(n = 1 , )]",
        [call('{"n": 1}', "music.play-song")],
        id="a name with a dot and a dash",
    ),
    pytest.param(
        '[write(**{"odd key": 1, "": 2})]',
        [call('{"odd key": 1, "": 2}', "write")],
        id="keys that are no keywords",
    ),
    pytest.param("[write(**{}, )]", [EMPTY], id="an empty dict of keywords"),
    pytest.param('<|python_start|>[get_weather(city="Paris")]<|python_end|>', [PARIS], id="Llama 4's marks"),
    pytest.param(
        '<|python_start|>get_weather(city="Paris")<|python_end|>.',
        [PARIS, ("text", ".")],
        id="Llama 4's marks without a list",
    ),
    pytest.param('<|python_start|>[get_weather(city="Paris")]', [PARIS], id="Llama 4's first mark alone"),
    pytest.param(
        '<|python_start|>{"type": "function", "name": "get_weather", "parameters": {"city": '
        '"Paris"}}<|python_end|>',
        [PARIS],
        id="JSON between marks",
    ),
    pytest.param(
        "<function_calls>\nget_weather(city='Paris')\nwrite()\n</function_calls>",
        [PARIS, EMPTY],
        id="OLMo 3, one call a line",
    ),
    pytest.param(
        '<function_calls><invoke name="write"></invoke></function_calls>',
        [EMPTY],
        id="Anthropic's, which shares OLMo's marker",
    ),
    pytest.param('<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>', [PARIS], id="LFM2"),
    pytest.param(
        "Hi <|tool_call_start|>\n[write(), write()]\n<|tool_call_end|> x",
        [("text", "Hi "), EMPTY, EMPTY, ("text", " x")],
        id="LFM2, two calls",
    ),
    pytest.param(
        '<|tool_call_start|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|tool_call_end|>',
        [PARIS],
        id="LFM2 in JSON",
    ),
    pytest.param('<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>', [PARIS], id="Gemma 4"),
    pytest.param("<|tool_call>call:write{}<tool_call|>", [EMPTY], id="Gemma 4 without arguments"),
    pytest.param(
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<turn|>', [PARIS], id="Gemma 4 that ends its turn"
    ),
    pytest.param(
        '<|tool_call>call:get_weather{"city": "Paris"}<tool_call|>', [PARIS], id="Gemma 4 with JSON"
    ),
    pytest.param(
        'A<|tool_call>call:write{}<tool_call|><|tool_call>call:get_weather{city:<|"|>Paris<|"|>}'
        "<tool_call|>B",
        [("text", "A"), EMPTY, PARIS, ("text", "B")],
        id="Gemma 4, two calls",
    ),
    pytest.param(
        '<|tool_call>call:write{n:42,f:-1.5,t:true,z:null,l:[1,<|"|>a,]}<|"|>,[]],o:{k:<|"|><|"|>,<|"|>q '
        'r<|"|>:{}}}<tool_call|>',
        [
            call(
                '{"n": 42, "f": -1.5, "t": true, "z": null, "l": [1, "a,]}", []], "o": {"k": "", "q r": {}}}',
                "write",
            )
        ],
        id="Gemma 4's literals",
    ),
    pytest.param(
        "<|tool_call>call:get_weather{city:New York}<tool_call|>",
        [call('{"city": "New York"}', status="repaired")],
        id="a string without marks",
    ),
    pytest.param(
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:<escape>3<escape>}"
        "<end_function_call>",
        [call('{"city": "Paris", "days": 3}')],
        id="FunctionGemma, typed by the schema",
    ),
    pytest.param(
        "<start_function_call>call:write{n:<escape>3<escape>,m:3}<end_function_call>",
        [call('{"n": "3", "m": 3}', "write")],
        id="FunctionGemma without a schema",
    ),
]


@pytest.mark.parametrize(("text", "expected"), CALLS)
def test_a_call_as_a_model_writes_it(text: str, expected: Rows, agreed: Reads) -> None:
    assert agreed(text) == expected
    assert agreed(text, arguments="validated") == expected


LITERALS = [
    "'it\\'s'",
    '"a\\n\\t\\\\\\"\\x41\\101\\u00e9\\U0001F600\\N{BULLET}\\0"',
    "r'\\d\\n'",
    'u"é"',
    '"""a "quoted" \n line\\n"""',
    "'''it's ''two'' '''",
    '""',
    "''''''",
    "'a' \"b\" r'\\c'",
    '("long "\n "text")',
    "1",
    "-1",
    "+1",
    "1_000",
    "0x1F",
    "0b101",
    "0o17",
    "1.5",
    "-.5",
    "1.",
    "1e3",
    "1_0.5E-3",
    "True",
    "None",
    "[]",
    "()",
    "(1,)",
    "(1)",
    "((1, 2), [3,], {})",
    "{'a': [True, {'b': None}], \"c\": (\"d\",), 5: 6,}",
    "[[[]], [(), (())]]",
]


@pytest.mark.parametrize("literal", LITERALS)
def test_a_literal_has_the_value_that_python_gives_it(literal: str, agreed: Reads) -> None:
    expected = json.loads(json.dumps({"v": ast.literal_eval(literal)}))
    for text in (f"[write(v={literal})]", f"<|tool_call_start|>[write(v={literal})]<|tool_call_end|>"):
        got = agreed(text)
        assert [(each[0], json.loads(each[1]), each[2]) for each in got] == [("write", expected, "ok")]


REPAIRED = [
    ('"a\nb"', '"a\\nb"', "repaired"),
    ('"\\xZZ"', '"\\\\xZZ"', "repaired"),
    ('"\\N{nothing of that name}"', '"\\\\N{nothing of that name}"', "repaired"),
    ('"\\ud83d\\ude00"', '"\\ud83d\\ude00"', "ok"),
    ("[true, null]", "[true, null]", "ok"),
    ('"\\d \\8 \\/"', '"\\\\d \\\\8 \\\\/"', "ok"),
]


@pytest.mark.parametrize(("literal", "expected", "status"), REPAIRED)
def test_a_literal_that_python_would_not_read_is_repaired(
    literal: str, expected: str, status: str, agreed: Reads
) -> None:
    assert agreed(f"[write(v={literal})]") == [call(f'{{"v": {expected}}}', "write", status)]


TEXTS = [
    # text that only looks like a call
    "[nobody(a=1)]",
    "[write](https://example.org)",
    "[write(1)]",
    "[write(a)]",
    "[write(a==1)]",
    '[write("a")]',
    "[write(*a)]",
    "[write(**a)]",
    "[write (a=1)]",
    "see [write(a=1)]",
    "[write(a=b)]",
    "[write(a=1 + 2)]",
    "[write(a=1, 2)]",
    "[write(a=f'x')]",
    "[write(a=b'x')]",
    "[write(a={1, 2})]",
    "[write(a=007)]",
    "[write(a=1j)]",
    "[write(a=nan)]",
    "[write(a=[1)]",
    "[write(a=1",
    "[write(a='x",
    "[write(",
    "[write(a",
    "`[write(a=1)]`",
    "```python\n[write(a=1)]\n```",
    "<|python_start|>print(1)<|python_end|>",
    "<|tool_call_start|>[nobody(a=1)]<|tool_call_end|>",
    "<|tool_call_start|>[]<|tool_call_end|>",
    "<|tool_call_start|> is how it begins",
    "<function_calls>none of these</function_calls>",
    "<|tool_call>call:nobody{a:1}<tool_call|>",
    "<|tool_call>call me",
    "<|tool_call>call:write",
    "<|tool_call>call:write(a=1)<tool_call|>",
]


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_no_call_stays_text(text: str, agreed: Reads) -> None:
    assert agreed(text, dialects=MINE) == [("text", text)]


BROKEN = [
    pytest.param("[write()]]", [EMPTY, ("text", "]")], id="a list closed twice"),
    pytest.param("[write() and so on", [EMPTY, ("text", " and so on")], id="a list that goes on as text"),
    pytest.param(
        "[write(), nobody(a=1)]\nx", [EMPTY, ("text", ", nobody(a=1)]\nx")], id="one unknown of two"
    ),
    pytest.param(
        "<|tool_call_start|>[write(a=1, 2)]<|tool_call_end|> on",
        [call('{"a": 12)]', "write", "invalid"), ("text", " on")],
        id="LFM2 with a position",
    ),
    pytest.param("<|tool_call_start|>[write()<|tool_call_end|>", [EMPTY], id="LFM2 without its bracket"),
    pytest.param(
        "<|tool_call_start|>[write()]<|tool_call_end|><|tool_call_end|>",
        [EMPTY, ("text", "<|tool_call_end|>")],
        id="LFM2 closed twice",
    ),
    pytest.param("<|tool_call>call:write{}", [EMPTY], id="Gemma without its end"),
    pytest.param("<|tool_call>call:write{} on", [EMPTY, ("text", " on")], id="Gemma that goes on as text"),
    pytest.param(
        "<|tool_call>call:write{}<tool_call|><tool_call|>",
        [EMPTY, ("text", "<tool_call|>")],
        id="Gemma closed twice",
    ),
    pytest.param(
        "<|tool_call>call:write{a:[1}<tool_call|>x",
        [call('{"a": [1}', "write", "invalid"), ("text", "x")],
        id="Gemma's brackets crossed",
    ),
]


@pytest.mark.parametrize(("text", "expected"), BROKEN)
def test_a_broken_call_is_reported_as_broken(text: str, expected: Rows, agreed: Reads) -> None:
    assert agreed(text, dialects=MINE) == expected


@pytest.mark.parametrize("dialect", ["pythonic", "lfm2"])
def test_an_integer_of_more_digits_than_python_writes_is_no_value_and_no_key(
    dialect: str, read: Reads
) -> None:
    for literal in ("0x" + "f" * 4000, "{0x" + "f" * 4000 + ": 1}", "{1: 2, -0x" + "f" * 4000 + ": 1}"):
        text = render(dialect, "write", '{"v": 5}').replace("5", literal)
        got = read([text], dialects=(dialect,))
        assert got == read(list(text), dialects=(dialect,)) and (
            got == [("text", text)] or got[0][2] == "invalid"
        )


FULL = {
    "pythonic": "[get_weather(city='Pa\\x72is', days=12)]",
    "pythonic between marks": "<|python_start|>[get_weather(city='Pa\\x72is', days=12)]<|python_end|>",
    "lfm2": '<|tool_call_start|>[get_weather(**{\'city\': """Paris""", \'days\': 1_2})]<|tool_call_end|>',
    "gemma": '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:12}<tool_call|>',
    "FunctionGemma": "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:<escape>12"
    "<escape>}"
    "<end_function_call>",
}


@pytest.mark.parametrize("mode", ["eager", "validated"])
@pytest.mark.parametrize("dialect", FULL)
def test_a_call_that_was_cut_off_is_never_completed(dialect: str, mode: str, read: Reads) -> None:
    text = FULL[dialect]
    whole = call('{"city": "Paris", "days": 12}')
    assert read([text], arguments=mode) == [whole]
    for cut in range(len(text)):
        for reason in ("length", "eof", "cancelled"):
            got = read([text[:cut]], reason=reason, arguments=mode, dialects=MINE)
            assert read(list(text[:cut]), reason=reason, arguments=mode, dialects=MINE) == got
            if not cut or got == [("text", text[:cut])]:
                continue
            assert got[0] == whole or (
                len(got) == 1 and got[0][0] == "get_weather" and got[0][2] == "truncated"
            )
            assert got[0] == whole or whole[1].startswith(got[0][1]) or text[:cut].endswith(got[0][1][-1])


@pytest.mark.parametrize("dialect", FULL)
def test_a_call_with_a_name_that_was_cut_by_length_is_truncated(dialect: str, read: Reads) -> None:
    text = FULL[dialect]
    for cut in range(text.index("get_weather") + len("get_weather") + 1, text.rindex("2")):
        assert [each[2] for each in read([text[:cut]], reason="length", dialects=MINE)] == ["truncated"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<|tool_call_start|>[get_weather(city='", "')]<|tool_call_end|>"),
        ('<|python_start|>[get_weather(where={"a": ["""', '"""]})]<|python_end|>'),
        ('<|tool_call>call:get_weather{where:{a:<|"|>', '<|"|>}}<tool_call|>'),
        ("<start_function_call>call:get_weather{city:<escape>", "<escape>}<end_function_call>"),
    ],
)
def test_the_text_of_a_string_is_sent_while_it_is_written(before: str, after: str) -> None:
    parser = ToolCallParser(TOOLS, MINE)
    parser.feed(before)
    sent = "".join(
        event.delta
        for letter in "a long story, " * 20
        for event in parser.feed(letter)
        if isinstance(event, CallArgs)
    )
    assert len(sent) > 250
    events = parser.feed(after) + parser.finish()
    assert [event.status for event in events if isinstance(event, CallEnd)] == ["ok"]


def test_what_comes_of_one_piece_is_sent_as_one() -> None:
    parser = ToolCallParser(TOOLS, ["lfm2"])
    events = parser.feed("<|tool_call_start|>[write(a=[1, 2, ('x', {'y': None})])]<|tool_call_end|>")
    assert [event.delta for event in events if isinstance(event, CallArgs)] == [
        '{"a": [1, 2, ["x", {"y": null}]]}'
    ]


def test_a_literal_as_deep_as_it_likes_is_refused_and_not_a_failure(read: Reads) -> None:
    for opened in ("[", "(", "{'a': ", "[("):
        text = "<|tool_call_start|>[write(a=" + opened * 3000
        assert read([text])[0][2] == read(list(text))[0][2] == "invalid"


HARD = {
    "plain": "x",
    "all markers": " ".join(
        opener.marker for dialect in DIALECTS.values() for opener in dialect.openers
    ).replace("{tool}", "write"),
    "all_ends": '<tool_call|><|"|>}<|tool_call_end|>)]<|python_end|></function_calls>\'\'\'"""\\',
    "": ["", {"": None}, [[]], 1e-9, -0.0, True],
    "odd key <b>\n": {"a b": "c\\d\u2028\x00", '<|"|>': "\ud83d"},
}


@pytest.mark.parametrize("dialect", MINE)
@pytest.mark.parametrize(
    "keys", [["plain"], ["all markers", "all_ends"], ["all_ends"], [""], ["odd key <b>\n"], list(HARD), []]
)
def test_adverse_arguments_survive(dialect: str, keys: list[str], agreed: Reads, read: Reads) -> None:
    arguments = {key: HARD[key] for key in keys}
    text = "So:\n" + render(dialect, "write", json.dumps(arguments, ensure_ascii=False)) + "\nthen"
    got = agreed(text, dialects=(dialect,)) if len(text) < 500 else read(list(text), dialects=(dialect,))
    assert [got[0], got[2]] == [("text", "So:\n"), ("text", "\nthen")]
    assert got[1][2] == "ok" and json.loads(got[1][1]) == arguments


def test_a_quoted_call_is_no_call(agreed: Reads) -> None:
    text = '[get_weather(city="Paris")]'
    assert agreed(text, quoted=[f"The page says {text}."]) == [("text", text)]

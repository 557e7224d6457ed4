"""Dialects with tags: model output and results, whole, by character, and cut once anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from toolwire.core.events import CallArgs, CallEnd
from toolwire.emulate.dialects import DIALECTS
from toolwire.emulate.dialects.render import render
from toolwire.emulate.scanner import ScanLimits, ToolCallParser

MINE = ("glm", "minimax", "dsml", "kimi_k3", "tag_is_tool")
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
                "zip": {"type": "string"},
            },
        },
    },
    {"type": "function", "name": "write"},
]
Rows = list[tuple[str, ...]]
Reads = Callable[..., Rows]


def call(
    arguments: str = '{"city": "Paris"}', name: str = "get_weather", status: str = "ok"
) -> tuple[str, ...]:
    return (name, arguments, status)


PARIS = call()
EMPTY = call("{}", "write")

K3 = '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
K3_CITY = '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>'
K3_END = "<|close|>call<|sep|><|close|>tools<|sep|>"
DSML = '<｜DSML｜function_calls><｜DSML｜invoke name="get_weather">'
DSML_CITY = '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>'
DSML_END = "</｜DSML｜invoke></｜DSML｜function_calls>"
M2_CITY = '<parameter name="city">Paris</parameter>'

CALLS = [
    # model output, expected result
    pytest.param(
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
        [PARIS],
        id="GLM in one line",
    ),
    pytest.param(
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
        [PARIS],
        id="GLM in lines",
    ),
    pytest.param("<tool_call>write</tool_call>", [EMPTY], id="GLM without arguments"),
    pytest.param("<tool_call>\nwrite\n</tool_call>", [EMPTY], id="GLM without arguments, in lines"),
    pytest.param('<tool_call>get_weather\n{"city": "Paris"}\n</tool_call>', [PARIS], id="GLM with JSON"),
    pytest.param(
        "<tool_call>get_weather<arg_key>days</arg_key><arg_value>3</arg_value><arg_key>where</arg_key>"
        "<arg_value>{'a': None}</arg_value></tool_call>",
        [call('{"days": 3, "where": {"a": null}}', status="repaired")],
        id="GLM typed by the schema, and repaired",
    ),
    pytest.param(
        "Yes.\n<tool_call>write</tool_call>\n"
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call> Done",
        [("text", "Yes.\n"), EMPTY, ("text", "\n"), PARIS, ("text", " Done")],
        id="GLM twice amid text",
    ),
    pytest.param('<tool_call>{"name": "write"}</tool_call>', [EMPTY], id="Hermes, which shares GLM's marker"),
    pytest.param(
        "<tool_call><function=write></function></tool_call>", [EMPTY], id="Qwen, which shares GLM's marker"
    ),
    pytest.param(
        f'<minimax:tool_call><invoke name="get_weather">{M2_CITY}</invoke></minimax:tool_call>',
        [PARIS],
        id="MiniMax",
    ),
    pytest.param(
        "<minimax:tool_call>\n<invoke name=get_weather>\n<parameter name='city'>Paris</parameter>\n"
        "</invoke>\n</minimax:tool_call>",
        [PARIS],
        id="MiniMax with other quotes",
    ),
    pytest.param(
        '<minimax:tool_call>\n<invoke name="write">\n</invoke>\n'
        f'<invoke name="get_weather">{M2_CITY}</invoke>\n</minimax:tool_call>.',
        [EMPTY, PARIS, ("text", ".")],
        id="MiniMax, two calls",
    ),
    pytest.param(DSML + DSML_CITY + DSML_END, [PARIS], id="DSML"),
    pytest.param(
        (DSML + DSML_CITY + DSML_END).replace("function_calls", "tool_calls"), [PARIS], id="DSML of V4"
    ),
    pytest.param(DSML + '\n{"city": "Paris"}\n' + DSML_END, [PARIS], id="DSML with JSON"),
    pytest.param(
        DSML.removeprefix("<｜DSML｜function_calls>") + DSML_CITY + "</｜DSML｜invoke>",
        [PARIS],
        id="DSML without its wrapper",
    ),
    pytest.param(
        '<｜DSML｜tool_calls><｜DSML｜invoke name="write"/></｜DSML｜tool_calls>',
        [EMPTY],
        id="DSML that closes itself",
    ),
    pytest.param(
        DSML + '<｜DSML｜parameter name="note" string="true">"5"\n'
        '</｜DSML｜parameter><｜DSML｜parameter name="days" string="false">5</｜DSML｜parameter>' + DSML_END,
        [call('{"note": "\\"5\\"\\n", "days": 5}')],
        id="DSML typed by its attribute, text as it stands",
    ),
    pytest.param(
        DSML + DSML_CITY + '</｜DSML｜invoke>\n<｜DSML｜invoke name="write">\n' + DSML_END,
        [PARIS, EMPTY],
        id="DSML, two calls",
    ),
    pytest.param(K3 + K3_CITY + K3_END, [PARIS], id="K3"),
    pytest.param(
        K3 + K3_CITY + K3_END.removesuffix("<|close|>tools<|sep|>") + " ok",
        [PARIS, ("text", " ok")],
        id="K3 without the wrapper's end",
    ),
    pytest.param(
        K3.removeprefix("<|open|>tools<|sep|>") + K3_CITY + "<|close|>call<|sep|>",
        [PARIS],
        id="K3 without its wrapper",
    ),
    pytest.param(
        K3 + '<|open|>json type="object"<|sep|>{"city": "Paris"}<|close|>json<|sep|>' + K3_END,
        [PARIS],
        id="K3 with JSON",
    ),
    pytest.param(
        K3 + '<|open|>argument type="string" key="a &quot;b&quot; &amp;"<|sep|>"5"<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>5<|close|>argument<|sep|>' + K3_END,
        [call('{"a \\"b\\" &": "\\"5\\"", "days": 5}')],
        id="K3 typed by its attribute, in any order",
    ),
    pytest.param(
        K3
        + K3_CITY
        + '<|close|>call<|sep|><|open|>call index="2" tool="write"<|sep|>'
        + K3_END
        + "<|close|>message<|sep|>",
        [PARIS, EMPTY, ("text", "<|close|>message<|sep|>")],
        id="K3, two calls",
    ),
    pytest.param("<get_weather>\ncity: Paris\n</get_weather>", [PARIS], id="a tag that is the tool, in YAML"),
    pytest.param(
        "<get_weather>\n  <city>Paris</city>\n</get_weather>",
        [PARIS],
        id="a tag that is the tool, with children",
    ),
    pytest.param(
        '<get_weather>{"city": "Paris"}</get_weather>', [PARIS], id="a tag that is the tool, in JSON"
    ),
    pytest.param("<write></write>", [EMPTY], id="a tag that is the tool, empty"),
    pytest.param(
        "<get_weather><city>R&amp;D &lt; &#65;&x;</city></get_weather>",
        [call('{"city": "R&D < A&x;"}')],
        id="entities in children",
    ),
    pytest.param(
        "Now:\n<get_weather>\n  city: Paris\n  days: 3\n  zip: 01234\n</get_weather>\n"
        "<write><a>1</a></write>!",
        [
            ("text", "Now:\n"),
            call('{"city": "Paris", "days": 3, "zip": "01234"}'),
            ("text", "\n"),
            call('{"a": 1}', "write"),
            ("text", "!"),
        ],
        id="a tag that is the tool, twice amid text",
    ),
    pytest.param(
        "<write>\npath: a.md\ncontent: |\n  # Head\n\n    code\nlist:\n- 1\n- two: [x, 'y']\n</write>",
        [
            call(
                '{"path": "a.md", "content": "# Head\\n\\n  code\\n", "list": [1, {"two": ["x", "y"]}]}',
                "write",
            )
        ],
        id="YAML with a block and a list",
    ),
]


@pytest.mark.parametrize(("text", "expected"), CALLS)
def test_a_call_as_a_model_writes_it(text: str, expected: Rows, agreed: Reads) -> None:
    assert agreed(text) == expected
    assert agreed(text, arguments="validated") == expected


TEXTS = [
    # text that only looks like a call
    "<tool_call>is a tag that opens a call.</tool_call>",
    "<tool_call>nobody</tool_call>",
    "<tool_call>nobody\n<arg_key>a</arg_key><arg_value>b</arg_value></tool_call> end",
    "<tool_call>write</tool_",
    "<minimax:tool_call> is how MiniMax begins",
    '<minimax:tool_call><invoke name="nobody"></invoke></minimax:tool_call>',
    (DSML + DSML_CITY + DSML_END).replace("get_weather", "nobody"),
    "<｜DSML｜invoke is a word",
    '<|open|>tools<|sep|><|open|>call tool="nobody" '
    'index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
    "<|open|>call me <|sep|>",
    "<write>down what he says</write>",
    "<write>note: this is it, see: that</write>",
    "<write>\nnote: |1\n  a\n</write>",
    "<write>{not JSON}</write>",
    '<write>{"a": 1} and so on</write>',
    "<write>\na: 1",
    '<write>{"a": 1}',
    "<writer>\na: 1\n</writer>",
    "`<write>\na: 1\n</write>`",
]


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_no_call_stays_text(text: str, agreed: Reads) -> None:
    assert agreed(text, dialects=MINE) == [("text", text)]


BROKEN = [
    pytest.param(
        "<tool_call>write</tool_call></tool_call>", [EMPTY, ("text", "</tool_call>")], id="GLM closed twice"
    ),
    pytest.param(
        "<tool_call>get_weather<arg_key>city</arg_key>Paris</tool_call> on",
        [call("Paris", status="invalid"), ("text", " on")],
        id="GLM without the value's tag",
    ),
    pytest.param(
        DSML + DSML_CITY + "</｜DSML｜invoke> on",
        [PARIS, ("text", " on")],
        id="DSML without the wrapper's end",
    ),
    pytest.param(DSML + DSML_CITY + DSML_END + DSML_END, [PARIS, ("text", DSML_END)], id="DSML closed twice"),
    pytest.param(
        K3 + "<|open|>json<|sep|>[1]<|close|>json<|sep|>" + K3_END,
        [call("[1]<|close|>json<|sep|>", status="invalid")],
        id="K3 without an object",
    ),
    pytest.param(
        "<get_weather><city>Paris</city> so </get_weather>.",
        [call('{"city": "Paris"so ', status="invalid"), ("text", ".")],
        id="words in it",
    ),
    pytest.param(
        "<write><b>x</b> so </write>.", [("text", "<write><b>x</b> so </write>.")], id="ordinary markup"
    ),
    pytest.param("<write></write></write>", [EMPTY, ("text", "</write>")], id="a tag closed twice"),
]


@pytest.mark.parametrize(("text", "expected"), BROKEN)
def test_a_broken_call_is_reported_as_broken(text: str, expected: Rows, agreed: Reads) -> None:
    assert agreed(text, dialects=MINE) == expected


FULL = {
    "glm": "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>12</arg_value>\n</tool_call>",
    "minimax": f'<minimax:tool_call>\n<invoke name="get_weather">{M2_CITY}<parameter '
    'name="days">12</parameter></invoke>\n</minimax:tool_call>',
    "dsml": DSML
    + DSML_CITY
    + '<｜DSML｜parameter name="days" string="false">12</｜DSML｜parameter>'
    + DSML_END,
    "kimi_k3": K3
    + K3_CITY
    + '<|open|>argument key="days" type="number"<|sep|>12<|close|>argument<|sep|>'
    + K3_END,
    "tag_is_tool": "<get_weather><city>Paris</city><days>12</days></get_weather>",
    "tag_is_tool yaml": "<get_weather>\ncity: Paris\ndays: 12\n</get_weather>",
    "tag_is_tool json": '<get_weather>\n{"city": "Paris", "days": 12}\n</get_weather>',
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
            assert len(got) == 1 or (got[0] == whole and text[:cut].endswith(got[1][1]))
            name, arguments, status = got[0]
            assert name == "get_weather"
            if status == "ok":  # only markup after the call is missing
                assert arguments == whole[1]
            elif status == "repaired":  # the model stopped between two parameters
                assert reason != "length" and json.loads(arguments).items() <= json.loads(whole[1]).items()
            else:
                assert status == "truncated"


@pytest.mark.parametrize("dialect", [*FULL])
def test_a_call_with_a_name_that_was_cut_by_length_is_truncated(dialect: str, read: Reads) -> None:
    text = FULL[dialect]
    cut = text.index("12") + 1
    assert [each[2] for each in read([text[:cut]], reason="length", dialects=MINE)] == ["truncated"]


@pytest.mark.parametrize("dialect", ["glm", "minimax", "dsml", "kimi_k3", "tag_is_tool"])
def test_the_text_of_a_string_is_sent_while_it_is_written(dialect: str) -> None:
    before, after = FULL[dialect].split("Paris")
    parser = ToolCallParser(TOOLS, [dialect])
    parser.feed(before)
    sent = "".join(
        event.delta
        for letter in "a long story, " * 20
        for event in parser.feed(letter)
        if isinstance(event, CallArgs)
    )
    assert len(sent) > 200
    events = parser.feed(after) + parser.finish()
    assert [event.status for event in events if isinstance(event, CallEnd)] == ["ok"]


HARD = {
    "plain": "x",
    "all markers": " ".join(
        opener.marker for dialect in DIALECTS.values() for opener in dialect.openers
    ).replace("{tool}", "write"),
    "all ends": "</arg_value></tool_call></invoke></｜DSML｜parameter><|close|>argument<|sep|></a>"
    '</write>&lt;<|"|>',
    "": ["", {"": None}, [[]], 1e-9, -0.0, True],
    "odd key <b>\n": {"a b": "c\\d\u2028\x00"},
}


@pytest.mark.parametrize("dialect", MINE)
@pytest.mark.parametrize(
    "keys", [["plain"], ["all markers", "all ends"], [""], ["odd key <b>\n"], list(HARD), []]
)
def test_adverse_arguments_survive(dialect: str, keys: list[str], agreed: Reads, read: Reads) -> None:
    arguments = {key: HARD[key] for key in keys}
    written = render(dialect, "write", json.dumps(arguments, ensure_ascii=False))
    got = (
        agreed("So:\n" + written + "\nthen", dialects=(dialect,))
        if len(written) < 900
        else read(list("So:\n" + written + "\nthen"), dialects=(dialect,))
    )
    assert [got[0], got[2]] == [("text", "So:\n"), ("text", "\nthen")]
    assert got[1][2] == "ok" and json.loads(got[1][1]) == arguments


def test_only_declared_tools_open_a_block_by_their_name(rows: Reads) -> None:
    parser = ToolCallParser([{"name": f"tool_{number}"} for number in range(128)], ["tag_is_tool"])
    text = "<tool_500>\na: 1\n</tool_500> <tool_77>\na: 1\n</tool_77>"
    assert rows(parser.feed(text) + parser.finish()) == [
        ("text", "<tool_500>\na: 1\n</tool_500> "),
        ("tool_77", '{"a": 1}', "ok"),
    ]


def test_a_tool_that_is_called_like_a_marker_does_not_hide_it(rows: Reads) -> None:
    parser = ToolCallParser([{"name": "tool_call"}, {"name": "write"}], ["tag_is_tool", "hermes"])
    assert rows(parser.feed('<tool_call>{"name": "write"}</tool_call>') + parser.finish()) == [EMPTY]


def test_a_quoted_element_is_no_call(agreed: Reads) -> None:
    text = "<get_weather>\ncity: Paris\n</get_weather>"
    assert agreed(text, quoted=[f"The page says {text}."]) == [("text", text)]


def test_what_exceeds_its_limit_is_text(agreed: Reads) -> None:
    text = "<write>\na: " + "x" * 300 + "\n</write>"
    assert agreed(text, limits=ScanLimits(header=100, held=200), dialects=("tag_is_tool",)) == [
        ("text", text)
    ]

"""The scanner: a table of model output and results for every dialect, whole and by character."""

from __future__ import annotations

import html
import json
from typing import Any

import pytest

from toolwire.core.events import CallArgs, CallBegin, CallEnd, Event, Text
from toolwire.emulate.dialects import DIALECTS
from toolwire.emulate.scanner import ScanLimits, ToolCallParser, parse

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "where": {"type": "object"},
                    "ok": {"type": "boolean"},
                },
            },
        },
    },
    {"type": "function", "name": "write"},
]
EVERY = tuple(DIALECTS)
ARGS = '{"city": "Paris"}'


def text_and_calls(events: list[Event]) -> tuple[str, list[tuple[str, str, str]]]:
    """The text and the calls (name, arguments, status)."""
    text = "".join(event.text for event in events if isinstance(event, Text))
    calls: list[tuple[str, str, str]] = [
        (
            begin.name,
            "".join(
                event.delta for event in events if isinstance(event, CallArgs) and event.index == begin.index
            ),
            next(
                event.status for event in events if isinstance(event, CallEnd) and event.index == begin.index
            ),
        )
        for begin in events
        if isinstance(begin, CallBegin)
    ]
    return text, calls


def read(
    text: str, *, reason: str = "eof", size: int = 0, **options: Any
) -> tuple[str, list[tuple[str, str, str]]]:
    parser = ToolCallParser(
        TOOLS, options.pop("dialects", EVERY), nonce=options.pop("nonce", "k7"), **options
    )
    pieces = [text[i : i + size] for i in range(0, len(text), size)] if size else [text]
    return text_and_calls([event for piece in pieces for event in parser.feed(piece)] + parser.finish(reason))


def both(text: str, **options: Any) -> tuple[str, list[tuple[str, str, str]]]:
    """The result, which must not depend on the splits."""
    whole = read(text, **options)
    assert read(text, size=1, **options) == whole
    assert read(text, size=7, **options) == whole
    return whole


OK = [("get_weather", ARGS, "ok")]

CALLS = [
    # model output, remaining text, calls
    pytest.param(
        '<tool_call:k7>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call:k7>',
        "",
        OK,
        id="sentinel",
    ),
    pytest.param(
        '<tool_call:k7>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>',
        "",
        OK,
        id="sentinel with the habitual closer",
    ),
    pytest.param(
        '<tool_call:zz>{"name": "get_weather", "arguments": {}}</tool_call:zz>', None, [], id="another token"
    ),
    pytest.param(
        'Hi <tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call> bye',
        "Hi  bye",
        OK,
        id="hermes amid text",
    ),
    pytest.param(
        '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>',
        "",
        OK,
        id="arguments before the name",
    ),
    pytest.param(
        '<tool_call>{"arguments": {"name": "bob"}, "name": "get_weather"}</tool_call>',
        "",
        [("get_weather", '{"name": "bob"}', "ok")],
        id="a name inside the arguments",
    ),
    pytest.param(
        '<tool_call>{"type":"tool_call","id":"call_1","name":"get_weather","arguments":"{\\"city\\": '
        '\\"Paris\\"}"}</tool_call>',
        "",
        OK,
        id="the object with a string of arguments",
    ),
    pytest.param(
        '<tool_call>{"type":"function","function":{"name":"get_weather","arguments":{"city": '
        '"Paris"}}}</tool_call>',
        "",
        OK,
        id="OpenAI's own shape",
    ),
    pytest.param(
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}, "why": [1, {"a": '
        '"}"}]}</tool_call>',
        "",
        OK,
        id="a further key",
    ),
    pytest.param(
        '<tool_call>{"name": "get_weather", "arguments": {"city": "a</tool_call>b"}}</tool_call>',
        "",
        [("get_weather", '{"city": "a</tool_call>b"}', "ok")],
        id="the closer inside a string",
    ),
    pytest.param('<tool_call>{"name": "write"}</tool_call>', "", [("write", "{}", "ok")], id="no arguments"),
    pytest.param(
        '<tool_call>{"name": "write", "arguments": null}</tool_call>',
        "",
        [("write", "{}", "ok")],
        id="null arguments",
    ),
    pytest.param(
        '<tool_call>{"name": "write", "arguments": ""}</tool_call>',
        "",
        [("write", "{}", "ok")],
        id="an empty string of arguments",
    ),
    pytest.param(
        '<tool_call>[{"name": "write"}, {"name": "get_weather", "arguments": {"city": "Paris"}}]</tool_call>',
        "",
        [("write", "{}", "ok"), *OK],
        id="an array of calls",
    ),
    pytest.param(
        '<tool_call>{"name": "write"}\n{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>.',
        ".",
        [("write", "{}", "ok"), *OK],
        id="two objects in one block",
    ),
    pytest.param(
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}}</tool_call>',
        "",
        OK,
        id="a brace too many",
    ),
    pytest.param(
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}',
        "",
        OK,
        id="no closer at the end",
    ),
    pytest.param(
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}} and so on',
        " and so on",
        OK,
        id="text in place of the closer",
    ),
    pytest.param(
        '<tool_call>{"name": "write"}<tool_call>{"name": "write"}</tool_call>',
        "",
        [("write", "{}", "ok")] * 2,
        id="an opener in place of the closer",
    ),
    pytest.param(
        '<tool_call>{"name": "functions.get-weather", "arguments": {"city": "Paris"}}</tool_call>',
        "",
        OK,
        id="a name that is known anyway",
    ),
    pytest.param(
        "<tool_call>{'name': 'get_weather', 'arguments': {city: 'Paris', \"ok\": True,}}</tool_call>",
        "",
        [("get_weather", '{"city": "Paris", "ok": true}', "repaired")],
        id="JSON as people write it",
    ),
    pytest.param(
        '<tool_call>{"name": "write", "arguments": {"t": "a\nb"}}</tool_call>',
        "",
        [("write", '{"t": "a\\nb"}', "repaired")],
        id="a raw newline",
    ),
    pytest.param(
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n"
        "</tool_call>!",
        "!",
        OK,
        id="qwen_xml",
    ),
    pytest.param(
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>",
        "",
        OK,
        id="qwen_xml without its wrapper",
    ),
    pytest.param(
        "<tool_call><function=get_weather><parameter=days>3</parameter><parameter=ok>True</parameter>"
        '<parameter=where>{"a": [1]}</parameter></function></tool_call>',
        "",
        [("get_weather", '{"days": 3, "ok": true, "where": {"a": [1]}}', "repaired")],
        id="typed by the schema",
    ),
    pytest.param(
        "<function=write><parameter=text>\nif a < b && c:\n    pass\n\n</parameter></function>",
        "",
        [("write", '{"text": "if a < b && c:\\n    pass\\n"}', "ok")],
        id="code between tags",
    ),
    pytest.param(
        '<function=write>{"a": 1}</function>', "", [("write", '{"a": 1}', "ok")], id="JSON between tags"
    ),
    pytest.param("<function=write></function>", "", [("write", "{}", "ok")], id="no parameters"),
    pytest.param(
        '<function_calls>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n'
        '<invoke name="write"></invoke>\n</function_calls>',
        "",
        [*OK, ("write", "{}", "ok")],
        id="anthropic, two calls",
    ),
    pytest.param(
        "<use_tool>\n  <name>get_weather</name>\n  <city>Paris</city>\n</use_tool>", "", OK, id="use_tool"
    ),
    pytest.param(
        '<use_tool name="get_weather">{"city": "Paris"}</use_tool>', "", OK, id="use_tool with an attribute"
    ),
    pytest.param(
        '<use_tool>{"name": "get_weather", "arguments": {"city": "Paris"}}</use_tool>',
        "",
        OK,
        id="use_tool with JSON",
    ),
    pytest.param(
        "<use_tool><name>get_weather</name><city>a &lt;b&gt; &amp; &#65;</city></use_tool>",
        "",
        [("get_weather", '{"city": "a <b> & A"}', "ok")],
        id="entities",
    ),
    pytest.param('{"name": "get_weather", "arguments": {"city": "Paris"}}', "", OK, id="bare"),
    pytest.param(
        'Sure:\n{"name": "get_weather", "arguments": {"city": "Paris"}}\nDone.',
        "Sure:\n\nDone.",
        OK,
        id="bare on a line of its own",
    ),
    pytest.param(
        '```json\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n```', "", OK, id="fenced"
    ),
]


@pytest.mark.parametrize(("written", "text", "calls"), CALLS)
@pytest.mark.parametrize("arguments", ["eager", "validated"])
def test_what_models_write_becomes_calls(
    written: str, text: str | None, calls: list[tuple[str, str, str]], arguments: str
) -> None:
    assert both(written, arguments=arguments) == (written if text is None else text, calls)


TEXTS = [
    "Use <tool_call> to call a tool.",
    "a < b and <tool",
    "<tool_call>",
    "<tool_call>{",
    '<tool_call>{"name": "get_weather"',
    '<tool_call>{"name": "nobody", "arguments": {"x": "<tool_call>{\\"name\\": '
    '\\"write\\"}</tool_call>"}}</tool_call>',
    '<tool_call>{"arguments": {"a": 1}}</tool_call>',
    '<tool_call>{"name": 5}</tool_call>',
    '<tool_call>{"name": "write", "name": "get_weather"}</tool_call>',
    "<function=nobody><parameter=a>1</parameter></function>",
    "<use_tool><city>Paris</city></use_tool>",
    "<use_tool</use_tool>",
    '<function_calls><invoke name="nobody"></invoke></function_calls>',
    'x {"name": "get_weather", "arguments": {}}',
    '{"name": "get_weather"}',
    '{"name": "get_weather", "arguments": {}, "other": 1}',
    '{"answer": 42}',
    '```python\nprint("hi")\n```',
    "<",
    "{" * 50,
    "<tool_call>" * 20,
    "\ud800 lone \udfff surrogates <tool_call>",
    "\x00\x01 <tool_call>\x00",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("arguments", ["eager", "validated"])
def test_what_is_no_call_stays_text_to_the_last_character(text: str, arguments: str) -> None:
    assert both(text, arguments=arguments) == (text, [])


def test_arguments_beyond_repair_are_text_when_held_and_invalid_when_already_sent() -> None:
    written = '<tool_call>{"name": "write", "arguments": {"a": nonsense}}</tool_call> after'
    assert both(written, arguments="validated") == (written, [])
    text, calls = both(written, arguments="eager")
    assert text == " after"
    assert calls == [("write", '{"a": nonsense}}', "invalid")]


def test_a_held_block_that_breaks_is_not_searched_for_calls_inside_it() -> None:
    inner = '<tool_call>{\\"name\\": \\"write\\", \\"arguments\\": {}}'
    written = f'<tool_call>{{"name": "write", "arguments": {{"t": "{inner}" oops}}}}</tool_call>'
    assert both(written, arguments="validated") == (written, [])


@pytest.mark.parametrize("mode", ["eager", "validated"])
def test_a_call_cut_by_the_length_limit_is_reported_as_truncated(mode: str) -> None:
    for written in (
        '<tool_call>{"name": "write", "arguments": {"t": "half',
        "<function=get_weather><parameter=city>half",
        '<function=write>{"t": "half',
    ):
        text, calls = both(written, reason="length", arguments=mode)
        assert text == "" and len(calls) == 1 and calls[0][2] == "truncated"
        assert "half" in calls[0][1]
        with pytest.raises(json.JSONDecodeError):
            json.loads(calls[0][1])


def test_a_held_call_that_the_model_never_finished_is_text() -> None:
    written = '<tool_call>{"name": "write", "arguments": {"t": "half'
    assert both(written, arguments="validated") == (written, [])
    assert both(written, arguments="eager") == ("", [("write", '{"t": "half', "truncated")])


# --- law 12: untrusted text cannot call tools ---

BLOCK = '<tool_call>{"name": "write", "arguments": {"a": 1}}</tool_call>'


@pytest.mark.parametrize(
    "fence", ["```\n{}\n```\n", "```xml\n{}\n```", "~~~\n{}\n~~~", "text\n  ```\n{}\n", "`{}`"]
)
def test_recovery_dialects_do_not_fire_in_code(fence: str) -> None:
    written = fence.replace("{}", BLOCK)
    assert both(written, dialects=("hermes", "use_tool")) == (written, [])


def test_calls_after_a_closed_fence_count() -> None:
    assert both("```\ncode\n```\n" + BLOCK, dialects=("hermes",))[1] == [("write", '{"a": 1}', "ok")]


@pytest.mark.parametrize(
    "block",
    [
        BLOCK,
        "<use_tool><name>write</name><a>1</a></use_tool>",
        "<function=write><parameter=a>1</parameter></function>",
        '<invoke name="write"><parameter name="a">1</parameter></invoke>',
        '{"name": "write", "arguments": {"a": 1}}',
    ],
)
@pytest.mark.parametrize("mode", ["eager", "validated"])
def test_a_block_that_appears_in_the_input_is_a_quotation(block: str, mode: str) -> None:
    note = f"A note that says: {block} and more."
    assert both(block, quoted=[note], arguments=mode) == (block, [])
    assert both(block, quoted=["another note"], arguments=mode)[1] != []


def test_the_sentinel_fires_anywhere_because_nothing_else_knows_its_token() -> None:
    block = BLOCK.replace("tool_call>", "tool_call:k7>")
    assert both(f"```\n{block}\n```", quoted=[block])[1] == [("write", '{"a": 1}', "ok")]


def test_without_a_token_there_is_no_sentinel() -> None:
    written = '<tool_call:k7>{"name": "write"}</tool_call:k7>'
    assert text_and_calls(parse(written, TOOLS, ("sentinel",))) == (written, [])


def test_the_sentinel_alone_leaves_every_other_dialect_text() -> None:
    for written in (BLOCK, "<function=write></function>", "<use_tool><name>write</name></use_tool>"):
        assert both(written, dialects=("sentinel",)) == (written, [])


# --- policies and limits ---


def test_unknown_tools_can_be_forwarded() -> None:
    written = '<tool_call>{"name": "nobody", "arguments": {"a": 1}}</tool_call>'
    assert both(written, unknown_tool="forward") == ("", [("nobody", '{"a": 1}', "ok")])


def test_unknown_tools_are_remembered() -> None:
    parser = ToolCallParser(TOOLS)
    parser.feed('<tool_call>{"name": "nobody", "arguments": {}}</tool_call>')
    assert parser.unknown == ["nobody"]


def test_without_tools_text_passes_untouched() -> None:
    parser = ToolCallParser([])
    assert parser.feed(BLOCK) == [Text(BLOCK)]
    assert parser.finish() == []


def test_plain_text_leaves_in_the_same_feed() -> None:
    parser = ToolCallParser(TOOLS, nonce="k7")
    for piece in ("Hello", " wor", "ld.\n", "a > b"):
        assert parser.feed(piece) == [Text(piece)]


def test_only_what_may_become_a_marker_is_held_back() -> None:
    parser = ToolCallParser(TOOLS, ("hermes",))
    assert text_and_calls(parser.feed("look <tool_"))[0] == "look "
    assert text_and_calls(parser.feed("x"))[0] == "<tool_x"


def test_a_held_call_beyond_its_limit_is_text() -> None:
    written = '<tool_call>{"name": "write", "arguments": {"t": "' + "x" * 500 + '"}}</tool_call>'
    limits = ScanLimits(header=64, held=200)
    assert both(written, arguments="validated", limits=limits) == (written, [])
    assert both(written, arguments="eager", limits=limits)[1][0][2] == "ok"


def test_a_header_beyond_its_limit_is_text() -> None:
    written = '<tool_call>{"why": "' + "x" * 500 + '", "name": "write"}</tool_call>'
    assert both(written, limits=ScanLimits(header=100)) == (written, [])


def test_calls_beyond_their_limit_are_text() -> None:
    text, calls = both(BLOCK * 3, limits=ScanLimits(calls=2))
    assert len(calls) == 2 and text == BLOCK
    several = '<tool_call>{"name": "write"}{"name": "write"}{"name": "write"}</tool_call>'
    text, calls = both(several, limits=ScanLimits(calls=2))
    assert len(calls) == 2 and text == '{"name": "write"}</tool_call>'
    assert (
        len(both("<function=write></function><function=write></function>", limits=ScanLimits(calls=1))[1])
        == 1
    )


def test_strict_tools_are_held_and_checked() -> None:
    tool = {"type": "function", "name": "write", "strict": True, "parameters": {"type": "object"}}
    parser = ToolCallParser(
        [tool], check=lambda tool, arguments: ["schema: wrong"] if "bad" in arguments else []
    )
    assert parser.feed('<tool_call>{"name": "write", "arguments": {"a": "bad') == []
    events = parser.feed('"}}</tool_call>')
    assert CallEnd(0, "invalid", ("schema: wrong",)) in events


def test_unknown_dialects_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown dialect 'klingon'; known: sentinel"):
        ToolCallParser(TOOLS, ["klingon"])


def test_no_opener_is_the_beginning_of_another() -> None:
    markers = {opener.marker for dialect in DIALECTS.values() for opener in dialect.openers}
    assert not [
        (one, other) for one in markers for other in markers if one != other and other.startswith(one)
    ]


def test_feeding_after_the_end_returns_text_and_never_raises() -> None:
    parser = ToolCallParser(TOOLS)
    parser.finish()
    assert parser.feed(BLOCK) == [Text(BLOCK)]
    assert parser.finish() == []


NOTE_BLOCK = '<use_tool>\n<name>write</name>\n<a>"x" & y</a>\n</use_tool>'


@pytest.mark.parametrize(
    "source",
    [
        NOTE_BLOCK,
        json.dumps({"content": f"My note: {NOTE_BLOCK}"}),
        json.dumps(json.dumps({"content": NOTE_BLOCK})),
        json.dumps({"content": NOTE_BLOCK}).replace("<", "\\u003c"),
        NOTE_BLOCK.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"),
        NOTE_BLOCK.replace("\n", "\r\n"),
        "> " + NOTE_BLOCK.replace("\n", "\n> "),
        NOTE_BLOCK.replace("\n", "\n      "),
    ],
    ids=["plain", "JSON", "JSON in JSON", "escaped JSON", "HTML", "CRLF", "block quote", "indented"],
)
def test_a_quotation_is_known_in_every_spelling_of_its_source(source: str) -> None:
    assert both(NOTE_BLOCK, quoted=[source]) == (NOTE_BLOCK, [])


FOREIGN_BLOCK = '<tool_call>\n{"name": "write", "arguments": {"a": "Café 𝒳 & <b>\\n> x"}}\n</tool_call>'
_PAGE = html.escape(FOREIGN_BLOCK)
_GO = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


@pytest.mark.parametrize(
    "source",
    [
        json.dumps({"note": FOREIGN_BLOCK}),
        json.dumps(json.dumps({"note": FOREIGN_BLOCK})),
        json.dumps(json.dumps({"note": FOREIGN_BLOCK})[1:-1]).replace("\\\\", "\\u005c"),
        "".join(f"&#{ord(char)};" if not char.isalnum() else char for char in FOREIGN_BLOCK),
        "".join(f"&#x{ord(char):05X};" for char in FOREIGN_BLOCK),
        FOREIGN_BLOCK.replace("<", "&#60").replace('"', "&#x27;"),
        _PAGE.replace("é", "&eacute;").replace("{", "&lbrace;").replace("_", "&lowbar;"),
        html.escape(html.escape(_PAGE)),
        json.dumps(_PAGE),
        json.dumps(_PAGE).translate(_GO),
        html.escape(json.dumps(FOREIGN_BLOCK)),
        json.dumps("> " + FOREIGN_BLOCK.replace("\n", "  \n > ")),
    ],
    ids=[
        *(
            "JSON",
            "JSON in JSON",
            "a backslash as a code",
            "decimal",
            "hexadecimal, all of it",
            "no semicolon",
            "named",
        ),
        *(
            "HTML three times",
            "HTML in JSON",
            "HTML in JSON as Go writes it",
            "JSON in HTML",
            "block quote in JSON",
        ),
    ],
)
def test_a_quotation_is_known_in_every_code_for_its_characters(source: str) -> None:
    coded = (
        json.dumps(FOREIGN_BLOCK)[1:-1]
        .replace('\\"', '"')
        .replace("\\n<", "\n<")
        .replace("\\n{", "\n{")
        .replace("\\\\", "\\")
    )
    assert "\\u00e9" in coded
    for block in (FOREIGN_BLOCK, coded):
        assert both(block, dialects=("hermes",), quoted=[source]) == (block, [])
        other = block.replace("write", "get_weather")
        assert len(both(other, dialects=("hermes",), quoted=[source])[1]) == 1


def test_a_sentence_that_names_a_tool_quotes_no_call_of_it() -> None:
    for sentence in ("please write {it} down", "write() {", "[write]() {", "write: a = 1 {"):
        assert both("[write()]", dialects=("pythonic",), quoted=[sentence])[1] == [("write", "{}", "ok")]


@pytest.mark.parametrize(
    "odd",
    ["\\", "&#", "&#x" + "f" * 5000, "&#" + "9" * 5000, "&#0", "&lt", "\\u005c", "\\ud835", "\n>", "\\u"],
    ids=lambda odd: odd[:6],
)
def test_what_only_looks_like_a_code_never_raises_and_costs_no_more_than_it_is_long(odd: str) -> None:
    assert both(BLOCK, dialects=("hermes",), quoted=["{" + odd * (200_000 // len(odd))])[1] == [
        ("write", '{"a": 1}', "ok")
    ]


def test_a_quotation_is_known_when_its_source_is_cut_into_parts() -> None:
    assert both(NOTE_BLOCK, quoted=[NOTE_BLOCK[:20], NOTE_BLOCK[20:]]) == (NOTE_BLOCK, [])


@pytest.mark.parametrize(
    "written",
    [
        f"> ```\n> {BLOCK}\n> ```\n",
        f"- ```\n  {BLOCK}\n  ```\n",
        f"1. item\n\n    ```\n    {BLOCK}\n    ```\n",
        f"write `x = {BLOCK}` to call",
        f"``{BLOCK}``",
        f"Write ``a ` {BLOCK}``.",
        f"``a ` {BLOCK} ` b``",
        f"```a ` {BLOCK}``` on one line",
        f"```a`` b` {BLOCK}```",
        f"a ` b `` {BLOCK}",
        f"~`{BLOCK}`",
        f"as in `\n{BLOCK}`",
        f"`\n{BLOCK} `",
        f"as in `\nsee `{BLOCK}`",
        f"> ``  \r\n> so\r\n> {BLOCK} ` ``",
    ],
)
def test_code_is_code_in_quotes_lists_and_lines(written: str) -> None:
    assert both(written, dialects=("hermes",)) == (written, [])


def test_it_fires_again_after_closed_code() -> None:
    closed = (
        "> ```\n> code\n> ```\n",
        "use `code` and `more` now: ",
        "``a ` b`` and ",
        "```a ` b``` and ",
        "~`code`: ",
        "`\ncode\n`\n",
        "as `\nx` is\n",
    )
    for before in (*closed, "- item\n- item\n", "don't; it's "):
        assert both(before + BLOCK, dialects=("hermes",))[1] == [("write", '{"a": 1}', "ok")]


def test_a_backtick_that_is_never_closed_hides_no_call_of_another_line_or_paragraph() -> None:
    for before in (
        "the ` key\n",
        "``so'' he said\n",
        "`a``\n",
        "as `\n\n",
        "> `\n>\n> ",
        "as `\r\n\r\n",
        "```js\nx = `\n```\n",
    ):
        assert both(before + BLOCK, dialects=("hermes",))[1] == [("write", '{"a": 1}', "ok")]

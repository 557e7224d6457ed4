"""Dialects with markers around JSON: valid, malformed and hostile output, for all splits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolwire.core.events import CallArgs, CallBegin, CallEnd, Event, Text
from toolwire.emulate.dialects import DIALECTS
from toolwire.emulate.dialects.render import render
from toolwire.emulate.grammars.reading import LONGEST
from toolwire.emulate.scanner import ScanLimits, ToolCallParser

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
    {"type": "function", "name": "get_time"},
    {"type": "function", "name": "get"},
]
HERE = (
    "llama_json",
    "mistral",
    "mistral_compact",
    "deepseek_v3",
    "deepseek_v31",
    "kimi",
    "harmony",
    "cohere",
    "granite",
)
EVERY = tuple(DIALECTS)
PARIS = '{"city": "Paris"}'

Rows = list[tuple[str, ...]]
"""Events as a reader sees them: ("text", …) and ("call", name, arguments, status)."""


def rows(events: list[Event]) -> Rows:
    out: Rows = []
    for event in events:
        if isinstance(event, Text) and out and out[-1][0] == "text":
            out[-1] = ("text", out[-1][1] + event.text)
        elif isinstance(event, Text):
            out.append(("text", event.text))
        elif isinstance(event, CallBegin):
            out.append(("call", event.name, "", "open"))
        elif isinstance(event, CallArgs):
            out[-1] = (*out[-1][:2], out[-1][2] + event.delta, "open")
        else:
            assert isinstance(event, CallEnd)
            out[-1] = (*out[-1][:3], event.status)
    return out


def read(pieces: list[str], reason: str = "eof", dialects: tuple[str, ...] = EVERY, **options: Any) -> Rows:
    parser = ToolCallParser(TOOLS, dialects, **options)
    return rows([event for piece in pieces for event in parser.feed(piece)] + parser.finish(reason))


def anyhow(text: str, reason: str = "eof", **options: Any) -> Rows:
    """The result, which must not depend on the splits: whole, by character, and cut once anywhere."""
    whole = read([text], reason, **options)
    assert read(list(text), reason, **options) == whole
    for place in range(1, len(text)):
        assert read([text[:place], text[place:]], reason, **options) == whole
    return whole


def call(arguments: str = PARIS, name: str = "get_weather", status: str = "ok") -> tuple[str, ...]:
    return ("call", name, arguments, status)


BOTH = [call(), call('{"zone": 1}', "get_time")]
CASES: list[Any] = [
    # dialect, model output, expected result
    (
        "llama_json",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}',
        [call()],
        "with its tag",
    ),
    (
        "llama_json",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}<|eom_id|>',
        [call()],
        "with the end of the message",
    ),
    (
        "llama_json",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}<|eot_id|>',
        [call()],
        "without its tag",
    ),
    (
        "llama_json",
        '{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}',
        [call()],
        "with a type",
    ),
    (
        "llama_json",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "get_time", '
        '"parameters": {"zone": 1}}<|eot_id|>',
        BOTH,
        "two behind the tag",
    ),
    (
        "llama_json",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "get_time", "parameters": '
        '{"zone": 1}}',
        BOTH,
        "two without a tag",
    ),
    (
        "llama_json",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; so',
        [call(), ("text", "; so")],
        "a semicolon of prose",
    ),
    (
        "llama_json",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}; {"a": 1}',
        [call(), ("text", '; {"a": 1}')],
        "no call behind it",
    ),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        [call()],
        "an array",
    ),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "VvvODy9mT"}]</s>',
        [call()],
        "with an id",
    ),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"arguments": {"zone": 1}, '
        '"name": "get_time"}]\n\nDone.',
        [*BOTH, ("text", "\n\nDone.")],
        "two and prose",
    ),
    (
        "mistral",
        '[TOOL_CALLS]{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}',
        [call()],
        "an object with a string",
    ),
    ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}', [call()], "written compactly"),
    ("mistral_compact", '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}', [call()], "the plain form"),
    (
        "mistral_compact",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}</s>',
        [call()],
        "with the end of the answer",
    ),
    (
        "mistral_compact",
        '[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{"city": "Paris"}',
        [call()],
        "with an id",
    ),
    (
        "mistral_compact",
        '[TOOL_CALLS]get_weather{"city": "Paris"}',
        [call()],
        "without a marker before the arguments",
    ),
    ("mistral_compact", '[TOOL_CALLS] get_weather [ARGS] {"city": "Paris"}', [call()], "with spaces"),
    (
        "mistral_compact",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time[ARGS]{"zone": 1}',
        BOTH,
        "two",
    ),
    ("mistral_compact", "[TOOL_CALLS]get_time</s>", [call("{}", "get_time")], "without arguments"),
    (
        "mistral_compact",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        [call()],
        "written as an array",
    ),
    (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [call()],
        "the plain form",
    ),
    (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n'
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{"zone": 1}\n'
        "```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
        BOTH,
        "two",
    ),
    (
        "deepseek_v3",
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Paris"}\n'
        "```<｜tool▁call▁end｜>",
        [call()],
        "without the outer markers",
    ),
    (
        "deepseek_v3",
        '<｜tool▁calls▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Paris"}\n'
        "```<｜tool▁calls▁end｜>",
        [call()],
        "without the inner markers",
    ),
    (
        "deepseek_v3",
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n{"city": "Paris"}<｜tool▁call▁end｜>',
        [call()],
        "without a fence",
    ),
    (
        "deepseek_v3",
        '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>',
        [call()],
        "written as its successor does",
    ),
    (
        "deepseek_v31",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": '
        '"Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [call()],
        "the plain form",
    ),
    (
        "deepseek_v31",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}'
        '<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{"zone": 1}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        BOTH,
        "two",
    ),
    (
        "deepseek_v31",
        '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}',
        [call()],
        "without any closer",
    ),
    (
        "deepseek_v31",
        "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜><｜tool▁call▁end｜>",
        [call("{}", "get_time")],
        "without arguments",
    ),
    (
        "deepseek_v31",
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Paris"}\n'
        "```<｜tool▁call▁end｜>",
        [call()],
        "as its ancestor",
    ),
    (
        "kimi",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|>'
        "<|tool_calls_section_end|>",
        [call()],
        "the plain form",
    ),
    (
        "kimi",
        "<|tool_calls_section_begin|>\n<|tool_call_begin|> functions.get_weather:0 "
        '<|tool_call_argument_begin|> {"city": "Paris"} <|tool_call_end|>\n'
        '<|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{"zone": 1}<|tool_call_end|>\n'
        "<|tool_calls_section_end|>",
        BOTH,
        "two, with white space",
    ),
    (
        "kimi",
        "<|tool_call_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|>'
        "<|tool_call_section_end|>",
        [call()],
        "a section of one",
    ),
    (
        "kimi",
        '<|tool_call_begin|>get_weather:3<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|>',
        [call()],
        "without a section and a prefix",
    ),
    (
        "kimi",
        '<|tool_call_begin|>get_weather<|tool_call_argument_begin|>{"city": "Paris"}',
        [call()],
        "without a number",
    ),
    (
        "kimi",
        '<|tool_call_begin|>functions_get_weather_1<|tool_call_argument_begin|>{"city": '
        '"Paris"}<|tool_call_end|>',
        [call()],
        "an id that a client made safe",
    ),
    (
        "harmony",
        '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": '
        '"Paris"}<|call|>',
        [call()],
        "the plain form",
    ),
    (
        "harmony",
        '<|channel|>commentary to=functions.get_weather<|message|>{"city": "Paris"}',
        [call()],
        "without a constraint",
    ),
    (
        "harmony",
        "<|start|>assistant<|channel|>commentary to=functions.get_weather "
        '<|constrain|>json<|message|>{"city": "Paris"}<|call|>',
        [call()],
        "with its start",
    ),
    (
        "harmony",
        '<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"city": '
        '"Paris"}<|end|>',
        [call()],
        "the recipient with the role",
    ),
    (
        "harmony",
        ' to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>{"city": '
        '"Paris"}<|call|>',
        [("text", " "), call()],
        "the recipient first of all",
    ),
    (
        "harmony",
        '<|channel|>analysis to=functions.get_weather code<|message|>\n{"city": "Paris"}<|call|>',
        [call()],
        "on another channel",
    ),
    (
        "harmony",
        '<|channel|>commentary to=get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>',
        [call()],
        "without a prefix",
    ),
    (
        "harmony",
        "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|><|call|>",
        [call("{}", "get_time")],
        "without arguments",
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant"
        '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>'
        "<|start|>assistant<|channel|>commentary to=functions.get_time "
        '<|constrain|>json<|message|>{"zone": 1}<|call|>',
        [("text", "<|channel|>analysis<|message|>Look it up.<|end|>"), *BOTH],
        "behind a thought, two",
    ),
    (
        "cohere",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": '
        '"Paris"}}\n]<|END_ACTION|>',
        [call()],
        "the plain form",
    ),
    (
        "cohere",
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": '
        '"Paris"}},\n'
        '{"tool_call_id": "1", "tool_name": "get_time", "parameters": {"zone": 1}}]<|END_ACTION|>',
        BOTH,
        "two",
    ),
    (
        "cohere",
        '<|START_ACTION|>{"tool_name": "get_weather", "parameters": {"city": "Paris"}}<|END_ACTION|>',
        [call()],
        "without an array",
    ),
    (
        "granite",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        [call()],
        "the plain form",
    ),
    (
        "granite",
        '<|tool_call|> [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_time", '
        '"arguments": {"zone": 1}}]<|end_of_text|>',
        BOTH,
        "two",
    ),
    (
        "granite",
        '<tool_call>[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        [call()],
        "with the later marker",
    ),
]
WRITTEN = [pytest.param(*case[:3], id=f"{case[0]}, {case[3]}") for case in CASES]


@pytest.mark.parametrize(("dialect", "written", "out"), WRITTEN)
def test_what_models_write_becomes_calls(dialect: str, written: str, out: Rows) -> None:
    assert anyhow(written, dialects=(dialect,)) == out
    assert read(list(written), arguments="validated") == read([written]) == out, (
        "and no other dialect is in the way"
    )


@pytest.mark.parametrize(("dialect", "written", "out"), WRITTEN)
def test_text_before_and_after_a_call_is_unchanged(dialect: str, written: str, out: Rows) -> None:
    if written.startswith(" to="):
        return  # only the beginning of an answer can be that
    after = "\n\nThat is all; 1 < 2."
    if out[-1][0] == "text":
        out = [*out[:-1], ("text", out[-1][1] + after)]
    else:
        out = [*out, ("text", after)]
    head = "Let me see.\n" + (out[0][1] if out[0][0] == "text" else "")
    assert read(list("Let me see.\n" + written + after), dialects=(dialect,)) == [
        ("text", head),
        *(out[1:] if out[0][0] == "text" else out),
    ]


def test_the_id_in_the_text_is_the_id_of_the_call() -> None:
    for written, id in (
        (
            "<|tool_call_begin|>functions.get_weather:4<|tool_call_argument_begin|>{}<|tool_call_end|>",
            "functions.get_weather:4",
        ),
        ("<|tool_call_begin|>get_weather<|tool_call_argument_begin|>{}<|tool_call_end|>", None),
        ("[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{}", "a1B2c3D4e"),
        ("[TOOL_CALLS]get_weather[CALL_ID][ARGS]{}", None),
    ):
        for mode in ("eager", "validated"):
            parser = ToolCallParser(TOOLS, EVERY, mode)
            begins = [
                event for event in parser.feed(written) + parser.finish() if isinstance(event, CallBegin)
            ]
            assert begins == [CallBegin(0, "get_weather", id)]


def test_a_known_name_decides_how_an_id_reads() -> None:
    tools = [{"type": "function", "name": name} for name in ("get_1", "functions.look", "a:b")]
    for written, name in (
        ("functions_get_1", "get_1"),
        ("functions.get_1:0", "get_1"),
        ("functions.functions.look:0", "functions.look"),
        ("a:b:2", "a:b"),
    ):
        parser = ToolCallParser(tools, ("kimi",))
        events = (
            parser.feed(f"<|tool_call_begin|>{written}<|tool_call_argument_begin|>{{}}<|tool_call_end|>")
            + parser.finish()
        )
        assert rows(events) == [("call", name, "{}", "ok")]


# --- malformed output ---

PLAIN = [(name, render(name, "get_weather", '{"city": "Par}is", "n": [1]}')) for name in HERE]


@pytest.mark.parametrize(("dialect", "written"), PLAIN, ids=HERE)
def test_a_call_cut_anywhere_is_never_completed_by_invention(dialect: str, written: str) -> None:
    stop = written.rindex("]}") + 2  # the arguments are complete from here on
    begin = written.index('{"city"')
    for place in range(len(written)):
        cut = written[:place]
        for mode in ("eager", "validated"):
            for reason in ("eof", "length", "cancelled"):
                out = read([cut], reason, (dialect,), arguments=mode)
                assert read(list(cut), reason, (dialect,), arguments=mode) == out
                calls = [each for each in out if each[0] == "call"]
                if place < stop:
                    assert all(each[3] == "truncated" for each in calls)
                    assert calls or out == ([("text", cut)] if cut else [])
                if begin < place < stop and reason == "length":
                    sent = written[begin:place].rstrip(", ")  # a comma waits for the next value
                    assert [(*out[0][:2], out[0][2].rstrip(", "), out[0][3])] == [
                        ("call", "get_weather", sent, "truncated")
                    ] and len(out) == 1


@pytest.mark.parametrize(
    "mark",
    [
        "<|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|>",
        "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>",
    ],
)
def test_a_name_without_arguments_is_truncated_by_length_and_else_text(mark: str) -> None:
    assert anyhow(mark, "length") == [("call", "get_time", "", "truncated")]
    assert anyhow(mark) == [("text", mark)]
    assert anyhow("[TOOL_CALLS]get", "length") == [("text", "[TOOL_CALLS]get")], "the name itself may be cut"
    assert (
        anyhow("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "length", unknown_tool="forward")[0][0]
        == "text"
    )


@pytest.mark.parametrize("dialect", HERE)
def test_a_doubled_closer_is_text_or_markup_and_never_a_call(dialect: str) -> None:
    written = render(dialect, "get_weather", PARIS)
    for closer in (
        "<|call|>",
        "<|tool_call_end|>",
        "<｜tool▁call▁end｜>",
        "<|END_ACTION|>",
        "</s>",
        "]",
        "}",
        "```",
    ):
        out = anyhow(written + closer + closer + " tail", dialects=(dialect,))
        assert (
            out[0] == call()
            and len(out) == 2
            and (closer + closer + " tail").endswith(out[1][1])
            and out[1][1].endswith(" tail")
        )


@pytest.mark.parametrize("dialect", HERE)
@pytest.mark.parametrize("mode", ["eager", "validated"])
def test_an_unknown_tool_is_text_and_nothing_is_lost(dialect: str, mode: str) -> None:
    written = render(dialect, "nobody", '{"a": "<|call|>"}') + " tail"
    assert anyhow(written, dialects=(dialect,), arguments=mode) == [("text", written)]
    assert anyhow(written, dialects=(dialect,), arguments=mode, unknown_tool="forward")[0][:2] == (
        "call",
        "nobody",
    )


def test_an_unknown_tool_after_a_known_one_is_text_from_its_marker_on() -> None:
    first = (
        '<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": '
        '"Paris"}<|tool_call_end|>'
    )
    second = (
        "<|tool_call_begin|>functions.nobody:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>"
    )
    assert anyhow(f"<|tool_calls_section_begin|>{first}\n{second}") == [call(), ("text", "\n" + second)]


TEXTS = [
    "[TOOL_CALLS]",
    "[TOOL_CALLS] is what Mistral writes. Then {a: 1} follows",
    "[TOOL_CALLS]get_weather, then",
    "[TOOL_CALLS]get_weather[ARGS]oops",
    "[TOOL_CALLS]get_weather[CALL_ID]x[CALL_ID]y[ARGS]{}",
    "[TOOL_CALLS] []",
    "<|python_tag|>print(1)",
    "<|python_tag|>get_weather.call(city='Paris')",
    "<|channel|>analysis<|message|>Well.<|end|><|start|>assistant<|channel|>final<|message|>Hello.<|return|>",
    "<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>{}<|end|>",
    "to=functions.",
    "to=functions.get_weather",
    "I write to=functions.get_weather<|channel|>commentary<|message|>{} here",
    "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>get_weather{}",
    "<｜tool▁call▁begin｜>get_weather\n<｜tool▁call▁end｜>",
    "<|tool_call_begin|>functions.get_weather:0{}",
    "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>null<|tool_call_end|>",
    "<|tool_call_begin|>" + "x" * 2 * LONGEST + "<|tool_call_argument_begin|>{}",
    "<|START_ACTION|>[]<|END_ACTION|>",
    "<|tool_call|>nothing",
]


@pytest.mark.parametrize("text", TEXTS, ids=[text[:40] for text in TEXTS])
@pytest.mark.parametrize("mode", ["eager", "validated"])
def test_what_is_no_call_stays_text_to_the_last_character(text: str, mode: str) -> None:
    assert anyhow(text, arguments=mode) == [("text", text)]
    assert anyhow(text, arguments=mode, unknown_tool="forward")[0][0] == "text" or "nobody" in text


@pytest.mark.parametrize("dialect", HERE)
def test_arguments_beyond_repair_are_invalid_where_they_were_sent_and_text_where_they_were_held(
    dialect: str,
) -> None:
    written = render(dialect, "get_weather", PARIS).replace('"Paris"', "nonsense") + "\n tail"
    assert anyhow(written, dialects=(dialect,), arguments="validated") == [("text", written)]
    out = anyhow(written, dialects=(dialect,))
    assert out[0][1] == "get_weather" and out[0][2].startswith('{"city": nonsense') and out[0][3] == "invalid"
    assert written.endswith(out[1][1]) if len(out) > 1 else out[0][2].endswith(" tail")


def test_sloppy_json_after_a_header_is_repaired_too() -> None:
    written = "[TOOL_CALLS]get_weather[ARGS]{'city': 'Paris', n: True,}"
    assert anyhow(written) == [call('{"city": "Paris", "n": true}', status="repaired")]


# --- hostile output ---

MARKERS = sorted({opener.marker for dialect in DIALECTS.values() for opener in dialect.openers})
STRINGS = [
    "".join(MARKERS),
    "<|call|><|end|><|message|><｜tool▁call▁end｜><｜tool▁calls▁end｜>```<|tool_call_end|><|END_ACTION|>"
    "</s>[ARGS]{}]}",
    'a "quoted \\"twice\\"" word, \\\\ and \\u0022',
    "\ud83d \ude00 😀 \x00\x1f\u2028",
    "]}\n```\n{",
]


@pytest.mark.parametrize("dialect", HERE)
@pytest.mark.parametrize("string", STRINGS)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_no_string_ends_a_call(dialect: str, string: str, ascii_only: bool) -> None:
    arguments = json.dumps({"city": string, string: [{"deep": string}]}, ensure_ascii=ascii_only)
    written = render(dialect, "get_weather", arguments) + "\nbehind"
    for dialects in ((dialect,), EVERY):
        for pieces in ([written], list(written)):
            assert read(pieces, dialects=dialects) == [call(arguments), ("text", "\nbehind")]


@pytest.mark.parametrize("dialect", HERE)
@pytest.mark.parametrize("mode", ["eager", "validated"])
def test_a_block_in_code_or_in_the_input_is_no_call(dialect: str, mode: str) -> None:
    block = render(dialect, "get_weather", PARIS)
    for written in (f"```\n{block}\n```\n", f"write `x {block}` here"):
        assert read(list(written), dialects=(dialect,), arguments=mode) == [("text", written)]
    assert read(list(block), dialects=(dialect,), arguments=mode, quoted=[f"A note: {block}!"]) == [
        ("text", block)
    ]


@pytest.mark.parametrize("dialect", HERE)
def test_calls_beyond_their_limit_are_text(dialect: str) -> None:
    block = render(dialect, "get_weather", PARIS)
    out = anyhow(f"{block}\n{block}", dialects=(dialect,), limits=ScanLimits(calls=1))
    assert out == [call(), ("text", f"\n{block}")]


def test_an_answer_that_has_begun_is_not_searched_for_its_first_words() -> None:
    parser = ToolCallParser(TOOLS, ("harmony",))
    assert parser.feed(" ") == [Text(" ")]
    assert parser.feed("to=fun") == []
    assert rows(parser.feed("ny. ")) == [("text", "to=funny. ")]
    for piece in ("a to", "=fun", "ctio", "ns.g", "et t"):
        assert parser.feed(piece) == [Text(piece)], "nothing is held back any more"

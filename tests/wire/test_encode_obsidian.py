"""The output mode obsidian-xml: one block per completed call, and no argument is lost."""

from __future__ import annotations

import html
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.core.events import CallArgs, CallBegin, CallEnd, CallStatus, Event, Failure, Finish, Text, Usage
from toolwire.core.ids import counting_ids
from toolwire.wire.chat.encode import ChatBody
from toolwire.wire.obsidian import ObsidianXml, to_obsidian_xml


def test_a_block_has_the_name_and_each_argument_in_its_order() -> None:
    assert (
        to_obsidian_xml("get_user", '{"id":"42", "a": 1}')
        == "<use_tool>\n  <name>get_user</name>\n  <id>42</id>\n  <a>1</a>\n</use_tool>"
    )


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (r'"a & <b> \"c\" ' "'d'" '"', "a &amp; &lt;b&gt; &quot;c&quot; &apos;d&apos;"),
        ("1.50", "1.50"),
        ("12345678901234567890123", "12345678901234567890123"),
        ("true", "true"),
        ("null", "null"),
        ("[1, 2]", "[1, 2]"),
        ('{"b": "<"}', "{&quot;b&quot;: &quot;&lt;&quot;}"),
        (r'"n\u00e9\n"', "né\n"),
    ],
)
def test_a_value_is_shown_as_the_model_wrote_it(written: str, shown: str) -> None:
    assert f"  <k>{shown}</k>\n" in to_obsidian_xml("f", f'{{"k":{written}}}')


@pytest.mark.parametrize(
    ("arguments", "inside"),
    [
        ('{"name":"x"}', '{"name":"x"}'),
        ('{"two words":1}', '{"two words":1}'),
        ('{"a":"</use_tool>","1":2}', r'{"a":"\u003c/use_tool\u003e","1":2}'),
        ("[1]", "[1]"),
        ('{"a":1', "{&quot;a&quot;:1"),
        ("*** Begin <Patch>", "*** Begin &lt;Patch&gt;"),
        ('{"a":1,}', "{&quot;a&quot;:1,}"),
        ('{"a":1} and more', "{&quot;a&quot;:1} and more"),
    ],
)
def test_arguments_that_have_no_tags_stand_whole_in_the_block(arguments: str, inside: str) -> None:
    assert to_obsidian_xml("f", arguments) == f'<use_tool name="f">{inside}</use_tool>'


def test_deep_nesting_is_no_error() -> None:
    assert to_obsidian_xml("f", '{"a":' + "[" * 100_000).startswith('<use_tool name="f">')


keys = st.one_of(
    st.sampled_from(["a", "b_c", "x-1", "name", "args", "1", "", "é", "a b"]), st.text(max_size=3)
)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=6))
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=4)


@given(st.text(max_size=6), st.dictionaries(keys, values, max_size=4))
def test_every_argument_can_be_read_back(name: str, arguments: dict[str, object]) -> None:
    block = to_obsidian_xml(name, json.dumps(arguments))
    assert block.count("<use_tool") == block.count("</use_tool>") == 1 and block.endswith("</use_tool>")
    if whole := re.fullmatch(r'<use_tool name="([^"]*)">(.*)</use_tool>', block, re.DOTALL):
        assert html.unescape(whole[1]) == name and json.loads(whole[2]) == arguments
        return
    members = re.findall(r"  <([\w.-]+)>(.*?)</\1>\n", block, re.DOTALL)
    shown = [(key, html.unescape(value)) for key, value in members]
    assert shown == [("name", name)] + [
        (key, value if isinstance(value, str) else json.dumps(value)) for key, value in arguments.items()
    ]


@given(st.text(st.characters()), st.text(st.characters()))
def test_no_arguments_raise(name: str, arguments: str) -> None:
    assert to_obsidian_xml(name, arguments).endswith("</use_tool>")


def blocks(*events: Event, delimiter: str = "") -> list[str]:
    mode = ObsidianXml(delimiter)
    out = mode.feed(list(events))
    assert [event for event in out if not isinstance(event, Text)] == [
        event for event in events if not isinstance(event, Text)
    ]
    return [event.text for event in out if isinstance(event, Text)]


F = "<use_tool>\n  <name>f</name>\n  <x>1</x>\n</use_tool>"
G = "<use_tool>\n  <name>g</name>\n</use_tool>"


def test_each_completed_call_is_followed_by_its_block() -> None:
    mode = ObsidianXml()
    begin, args, end = CallBegin(0, "f"), CallArgs(0, '{"x":1}'), CallEnd(0)
    assert mode.feed([Text("a"), begin]) == [Text("a"), begin]
    assert mode.feed([args]) == [args]
    assert mode.feed([end, Usage(1, 1), Finish()]) == [end, Text(F), Usage(1, 1), Finish()]


def test_the_delimiter_stands_between_blocks_only() -> None:
    events: list[Event] = [
        CallBegin(0, "f"),
        CallArgs(0, '{"x":'),
        CallArgs(0, "1}"),
        CallEnd(0),
        CallBegin(1, "g"),
        CallEnd(1),
        Finish(),
    ]
    assert blocks(*events, delimiter="\n\n") == [F, "\n\n" + G]


def test_a_call_that_the_next_one_or_the_end_completes_has_its_block() -> None:
    assert blocks(CallBegin(0, "f"), CallArgs(0, '{"x":1}'), CallBegin(1, "g"), Finish()) == [F, G]


@pytest.mark.parametrize("end", [Finish("length"), Failure("backend", "x")])
def test_a_call_that_was_cut_off_has_none(end: Event) -> None:
    assert blocks(CallBegin(0, "f"), CallArgs(0, '{"x'), end) == []


@pytest.mark.parametrize(("status", "count"), [("ok", 1), ("repaired", 1), ("invalid", 1), ("truncated", 0)])
def test_only_a_truncated_call_has_no_block(status: CallStatus, count: int) -> None:
    assert len(blocks(CallBegin(0, "f"), CallEnd(0, status), Finish())) == count


def test_in_a_chat_body_text_and_calls_stand_side_by_side() -> None:
    fold = ChatBody("m", id="i", created=1, ids=counting_ids())
    fold.feed(
        ObsidianXml().feed([Text("Look. "), CallBegin(0, "f"), CallArgs(0, '{"x":1}'), CallEnd(0), Finish()])
    )
    [choice] = fold.body()["choices"]
    assert choice["message"]["content"] == "Look. " + F and len(choice["message"]["tool_calls"]) == 1
    assert choice["finish_reason"] == "tool_calls"

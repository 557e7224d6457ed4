"""The aggregator: payloads of every known shape become immutable records, and deltas a client can
concatenate.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.wire.aggregator import (
    TextBlock,
    ToolCallAggregator,
    ToolCallDelta,
    ToolCallRecord,
    Update,
    extract_use_tool_blocks,
    register_text_pattern,
    to_obsidian_xml,
)

ARGUMENTS = '{"a":{"b":1},"n":1000}'


def chat(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"tool_calls": list(entries), **more}, "finish_reason": None}]}


def opener(
    index: int = 0, call_id: str | None = "call_a", name: str = "f", arguments: str = ""
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "index": index,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    return entry if call_id is None else {**entry, "id": call_id}


def more(text: str, index: int = 0) -> dict[str, Any]:
    return {"index": index, "function": {"arguments": text}}


def codex(method: str, **params: Any) -> dict[str, Any]:
    return {"method": method, "params": {"threadId": "T", "turnId": "U", **params}}


def item(arguments: str = ARGUMENTS, **fields: Any) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_a",
        "name": "f",
        "arguments": arguments,
        **fields,
    }


RESPONSES = [
    {"type": "response.output_item.added", "output_index": 1, "item": item("", status="in_progress")},
    *[
        {
            "type": "response.function_call_arguments.delta",
            "item_id": "fc_1",
            "output_index": 1,
            "delta": sign,
        }
        for sign in ARGUMENTS
    ],
    {
        "type": "response.function_call_arguments.done",
        "item_id": "fc_1",
        "output_index": 1,
        "name": "f",
        "arguments": ARGUMENTS,
    },
    {"type": "response.output_item.done", "output_index": 1, "item": item(status="completed")},
    {"type": "response.completed", "response": {"output": [item(status="completed")]}},
]

SHAPES: dict[str, list[Any]] = {
    "chat chunks": [chat(opener()), *[chat(more(sign)) for sign in ARGUMENTS]],
    "bare deltas": [{"tool_calls": [opener()]}, {"tool_calls": [more(ARGUMENTS)]}],
    "camel case": [
        {
            "toolCalls": [
                {
                    "toolCallIndex": "0",
                    "toolCallId": "call_a",
                    "function": {"name": "f", "argumentsChunk": ARGUMENTS},
                }
            ]
        }
    ],
    "arguments beside the function": [
        {"delta": {"tool_calls": [{"id": "call_a", "function": {"name": "f"}, "arguments": ARGUMENTS}]}}
    ],
    "legacy function_call": [
        {"delta": {"function_call": {"id": "call_a", "name": "f", "arguments": ""}}},
        {"function_call": {"arguments": ARGUMENTS}},
    ],
    "Responses events": RESPONSES,
    "Responses events in a JSON-RPC notification": [
        {"method": "codex/event/x", "params": {"msg": event}} for event in RESPONSES
    ],
    "the output of a response": [
        {"type": "response.completed", "response": {"output": [{"type": "message", "content": []}, item()]}}
    ],
    "Codex raw item": [codex("rawResponseItem/completed", item=item())],
    "Codex legacy raw item": [
        {
            "method": "codex/event/raw_response_item",
            "params": {"id": "0", "msg": {"type": "raw_response_item", "item": item()}},
        }
    ],
    "Codex raw item, then the request for it": [
        codex("rawResponseItem/completed", item=item()),
        codex(
            "item/started",
            item={
                "type": "dynamicToolCall",
                "id": "call_a",
                "tool": "f",
                "arguments": json.loads(ARGUMENTS),
                "status": "inProgress",
            },
        ),
        {**codex("item/tool/call", callId="call_a", tool="f", arguments=json.loads(ARGUMENTS)), "id": 0},
    ],
    "Codex item/tool/call": [
        {
            **codex(
                "item/tool/call", callId="call_a", namespace=None, tool="f", arguments=json.loads(ARGUMENTS)
            ),
            "id": 0,
        }
    ],
    "Codex dynamic_tool_call_request": [
        {
            "method": "codex/event/dynamic_tool_call_request",
            "params": {"msg": {"callId": "call_a", "tool": "f", "arguments": json.loads(ARGUMENTS)}},
        }
    ],
    "deep envelopes": [
        {
            "msg": {
                "message": {"deltas": [{"items": [{"delta": {"tool_calls": [opener(arguments=ARGUMENTS)]}}]}]}
            }
        }
    ],
}


def heard(updates: list[Update]) -> list[tuple[str, str, str]]:
    """What a client that concatenates deltas ends up with."""
    calls: dict[int, list[str]] = {}
    for delta in (delta for update in updates for delta in update.deltas):
        if delta.index in calls:
            assert delta.id is None and delta.name is None
            calls[delta.index][2] += delta.arguments
        else:
            assert delta.id is not None and delta.name is not None and delta.index == len(calls)
            calls[delta.index] = [delta.id, delta.name, delta.arguments]
    return [(call_id, name, text) for call_id, name, text in calls.values()]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_the_same_record_and_deltas_that_concatenate_to_it(shape: str) -> None:
    aggregator = ToolCallAggregator()
    updates = [aggregator.ingest_delta(payload) for payload in SHAPES[shape]]
    assert aggregator.snapshot() == (ToolCallRecord(0, "call_a", "f", ARGUMENTS),)
    assert heard(updates) == [("call_a", "f", ARGUMENTS)]
    assert updates[0].updated


@pytest.mark.parametrize("shape", SHAPES)
def test_no_payload_is_mutated(shape: str) -> None:
    payloads = SHAPES[shape]
    before = copy.deepcopy(payloads)
    aggregator = ToolCallAggregator()
    for payload in payloads:
        aggregator.ingest_delta(payload)
        aggregator.ingest_message(payload, emit_if_missing=True)
    assert payloads == before


def test_deltas_are_increments_and_records_are_cumulative() -> None:
    aggregator = ToolCallAggregator()
    deltas = [
        aggregator.ingest_delta(payload).deltas
        for payload in [chat(opener()), chat(more('{"a"')), chat(more(":1}"))]
    ]
    assert deltas == [
        (ToolCallDelta(0, "call_a", "f"),),
        (ToolCallDelta(0, arguments='{"a"'),),
        (ToolCallDelta(0, arguments=":1}"),),
    ]
    assert aggregator.snapshot()[0].arguments == '{"a":1}'


def test_equal_pieces_are_both_kept_and_a_prefix_never_replaces() -> None:
    aggregator = ToolCallAggregator()
    updates = [aggregator.ingest_delta(chat(opener()))] + [
        aggregator.ingest_delta(chat(more(sign))) for sign in ARGUMENTS
    ]
    assert all(update.updated for update in updates)
    assert aggregator.snapshot()[0].arguments == ARGUMENTS == heard(updates)[0][2]


def test_text_deltas_are_not_its_business_and_change_nothing() -> None:
    aggregator = ToolCallAggregator()
    for text in ("ha", "ha", "ha", "bo", "ok"):
        assert aggregator.ingest_delta({"choices": [{"delta": {"content": text}}]}) == Update()
    assert not aggregator.has_calls()


def test_the_wire_forms_are_openai_s() -> None:
    aggregator = ToolCallAggregator()
    first = aggregator.ingest_delta(chat(opener(arguments="{"))).deltas[0]
    second = aggregator.ingest_delta(chat(more("}"))).deltas[0]
    assert first.wire() == {
        "index": 0,
        "id": "call_a",
        "type": "function",
        "function": {"name": "f", "arguments": "{"},
    }
    assert second.wire() == {"index": 0, "function": {"arguments": "}"}}
    assert aggregator.snapshot()[0].wire() == {
        "id": "call_a",
        "type": "function",
        "function": {"name": "f", "arguments": "{}"},
    }


def test_records_stand_in_order_of_creation_and_are_numbered_by_it() -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta(chat(opener(1, "b", "second"), opener(0, "a", "first")))
    assert [(record.index, record.name) for record in aggregator.snapshot()] == [(0, "second"), (1, "first")]


def test_interleaved_calls_are_told_apart_at_once() -> None:
    aggregator = ToolCallAggregator()
    payloads = [chat(opener(0, "a", "f"), opener(1, "b", "g"))] + [
        chat(more(text, index)) for text, index in (("{", 0), ("{", 1), ("}", 1), ("}", 0))
    ]
    updates = [aggregator.ingest_delta(payload) for payload in payloads]
    assert [delta.index for update in updates for delta in update.deltas] == [0, 1, 0, 1, 1, 0]
    assert heard(updates) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_ids_come_from_the_factory_where_the_upstream_has_none() -> None:
    aggregator = ToolCallAggregator(lambda choice, number: f"id-{choice}-{number}")
    aggregator.ingest_delta({"tool_calls": [opener(0, None, "f"), opener(1, None, "g")]}, choice=2)
    assert [record.id for record in aggregator.snapshot(2)] == ["id-2-0", "id-2-1"]


def test_minted_ids_never_repeat_across_aggregators() -> None:
    ids = set()
    for _ in range(50):
        aggregator = ToolCallAggregator()
        aggregator.ingest_delta({"tool_calls": [opener(0, None)]})
        ids.add(aggregator.snapshot()[0].id)
    assert len(ids) == 50 and all(call_id.startswith("call_") for call_id in ids)


def test_an_id_that_was_said_is_not_contradicted_by_a_late_one() -> None:
    aggregator = ToolCallAggregator(lambda choice, number: "minted")
    said = aggregator.ingest_delta({"tool_calls": [opener(0, None)]}).deltas[0].id
    aggregator.ingest_delta({"tool_calls": [{"index": 0, "id": "late", "function": {"arguments": "{"}}]})
    aggregator.ingest_delta({"tool_calls": [{"id": "late", "function": {"arguments": "}"}}]})
    assert aggregator.snapshot() == (ToolCallRecord(0, "minted", "f", "{}"),) and said == "minted"


def test_a_call_is_said_when_its_name_is_known_and_recorded_before() -> None:
    aggregator = ToolCallAggregator()
    first = aggregator.ingest_delta(
        {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "delta": "{}"}
    )
    assert first == Update(True) and aggregator.snapshot() == (ToolCallRecord(0, "fc_1", "", "{}"),)
    second = aggregator.ingest_delta({"type": "response.output_item.done", "item": item("{}")})
    assert [(delta.name, delta.arguments) for delta in second.deltas] == [("f", "{}")]


@pytest.mark.parametrize("done", ["", None, 7])
def test_a_closing_event_never_erases(done: Any) -> None:
    aggregator = ToolCallAggregator()
    for event in RESPONSES[:-3]:
        aggregator.ingest_delta(event)
    assert (
        aggregator.ingest_delta(
            {"type": "response.function_call_arguments.done", "item_id": "fc_1", "arguments": done}
        )
        == Update()
    )
    assert aggregator.snapshot()[0].arguments == ARGUMENTS


def test_a_closing_event_adds_what_was_missing() -> None:
    aggregator = ToolCallAggregator()
    for event in RESPONSES[:5]:
        aggregator.ingest_delta(event)
    update = aggregator.ingest_delta(RESPONSES[-3])
    assert update.deltas == (ToolCallDelta(0, arguments=ARGUMENTS[4:]),)


def test_a_custom_tool_keeps_its_input_as_it_is() -> None:
    aggregator = ToolCallAggregator()
    opened = {
        "type": "custom_tool_call",
        "id": "ctc_0",
        "call_id": "call_a",
        "name": "apply_patch",
        "input": "",
    }
    updates = [
        aggregator.ingest_delta({"type": "response.output_item.added", "output_index": 0, "item": opened}),
        aggregator.ingest_delta(
            {"type": "response.custom_tool_call_input.delta", "item_id": "ctc_0", "delta": "*** Begin"}
        ),
        aggregator.ingest_delta(
            {"type": "response.custom_tool_call_input.done", "item_id": "ctc_0", "input": "*** Begin Patch"}
        ),
    ]
    assert aggregator.snapshot() == (ToolCallRecord(0, "call_a", "apply_patch", "*** Begin Patch", "custom"),)
    assert heard(updates) == [("call_a", "apply_patch", "*** Begin Patch")]


def test_a_final_message_fills_the_records_and_says_nothing_unless_asked() -> None:
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [opener(arguments="{}"), {**opener(arguments="[]"), "index": 1, "id": "b"}],
    }
    aggregator = ToolCallAggregator()
    assert aggregator.ingest_message(message) == Update(True)
    assert [record.arguments for record in aggregator.snapshot()] == ["{}", "[]"]
    update = aggregator.ingest_message(message, emit_if_missing=True)
    assert not update.updated and heard([update]) == [("call_a", "f", "{}"), ("b", "f", "[]")]
    assert aggregator.ingest_message(message, emit_if_missing=True) == Update()


def test_a_final_message_says_only_what_the_stream_did_not() -> None:
    aggregator = ToolCallAggregator()
    said = [aggregator.ingest_delta(chat(opener(arguments='{"a"')))]
    said.append(
        aggregator.ingest_message(
            {"message": {"tool_calls": [opener(arguments='{"a":1}')]}}, emit_if_missing=True
        )
    )
    assert heard(said) == [("call_a", "f", '{"a":1}')]


def test_a_final_message_with_ids_joins_calls_that_streamed_without() -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta({"tool_calls": [opener(0, None, "f", "{}")]})
    aggregator.ingest_delta({"tool_calls": [opener(1, None, "g", "{}")]})
    entries = [
        {"id": f"c{name}", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in "fg"
    ]
    aggregator.ingest_message({"tool_calls": entries}, emit_if_missing=True)
    assert [record.name for record in aggregator.snapshot()] == ["f", "g"]


def test_a_message_with_two_calls_and_a_function_call_has_three_records() -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest_message(
        {
            "tool_calls": [opener(0, "a", "f"), opener(1, "b", "g")],
            "function_call": {"name": "h", "arguments": "{}"},
        }
    )
    assert [record.name for record in aggregator.snapshot()] == ["f", "g", "h"]


def test_choices_never_meet() -> None:
    aggregator = ToolCallAggregator()
    payload = {
        "choices": [
            {"index": index, "delta": {"tool_calls": [opener(0, f"c{index}", f"f{index}")]}}
            for index in (0, 1)
        ]
    }
    assert [(delta.choice, delta.index) for delta in aggregator.ingest_delta(payload).deltas] == [
        (0, 0),
        (1, 0),
    ]
    assert [record.name for record in aggregator.snapshot(1)] == ["f1"]
    aggregator.ingest_delta({"tool_calls": [opener()]}, choice=-3)
    assert len(aggregator.snapshot(0)) == 2
    assert aggregator.has_calls(1) and not aggregator.has_calls(2)


def test_a_reset_forgets_a_choice_or_everything_but_not_the_text_patterns() -> None:
    aggregator = ToolCallAggregator()
    remove = register_text_pattern("at", lambda text: [TextBlock("at", "{}")] if "@" in text else [])
    try:
        for choice in (0, 1):
            aggregator.ingest_delta({"tool_calls": [opener()]}, choice)
        aggregator.reset_turn(0)
        assert not aggregator.has_calls(0) and aggregator.has_calls(1)
        aggregator.reset_turn()
        assert not aggregator.has_calls()
        assert aggregator.ingest_message({"content": "@"}, emit_if_missing=True).deltas[0].name == "at"
    finally:
        remove()


def test_parallel_calls_are_supported_until_a_payload_forbids_them() -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta({"params": {"msg": {"parallel_tool_calls": True}}})
    assert aggregator.supports_parallel_calls()
    aggregator.ingest_delta({"params": {"msg": {"parallelToolCalls": False}}})
    assert not aggregator.supports_parallel_calls()


def test_results_are_no_calls_and_start_up_probes_are_counted() -> None:
    aggregator = ToolCallAggregator()
    noise = "resources/list failed: unknown MCP server 'obsidian'"
    results = [
        codex(
            "rawResponseItem/completed",
            item={"type": "function_call_output", "call_id": "c", "output": noise},
        ),
        {
            "method": "codex/event/function_call_output",
            "params": {"msg": {"tool_calls": [opener()], "output": noise}},
        },
        codex(
            "rawResponseItem/completed", item={"type": "function_call_output", "call_id": "c", "output": "42"}
        ),
    ]
    assert [aggregator.ingest_delta(result) for result in results] == [Update()] * 3
    assert aggregator.phantoms == 2 and not aggregator.has_calls()


def test_history_that_codex_echoes_is_not_a_call() -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta(
        {"method": "rawResponseItem/completed", "params": {"turnId": "auto-compact-0", "item": item()}}
    )
    assert not aggregator.has_calls()


def test_an_object_that_contains_itself_is_visited_once() -> None:
    payload: dict[str, Any] = {"delta": {"tool_calls": [opener(arguments="{}")]}}
    payload["message"] = payload
    payload["items"] = [payload["delta"], payload]
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta(payload)
    assert [record.arguments for record in aggregator.snapshot()] == ["{}"]


def test_records_and_deltas_are_immutable() -> None:
    aggregator = ToolCallAggregator()
    delta = aggregator.ingest_delta(chat(opener())).deltas[0]
    for value in (delta, aggregator.snapshot()[0]):
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.arguments = "x"  # type: ignore[misc]
    earlier = aggregator.snapshot()
    aggregator.ingest_delta(chat(more("{}")))
    assert earlier[0].arguments == "" and aggregator.snapshot()[0].arguments == "{}"


# --- text ---

BLOCK = "<use_tool>\n  <name>localSearch</name>\n  <query>Rust &amp; C</query>\n</use_tool>"


def test_blocks_are_found_with_their_place() -> None:
    text = f"Let me look.\n{BLOCK}\nand {BLOCK}"
    blocks, position = extract_use_tool_blocks(text)
    assert [block.name for block in blocks] == ["localSearch", "localSearch"]
    assert [text[block.start : block.end] for block in blocks] == [BLOCK, BLOCK]
    assert position == len(text)
    assert "Rust & C" in json.loads(blocks[0].arguments).values()


def test_a_block_that_is_not_closed_is_left_for_later() -> None:
    text = f"{BLOCK}<use_tool><name>x</na"
    blocks, position = extract_use_tool_blocks(text)
    assert len(blocks) == 1 and position == len(BLOCK)
    assert extract_use_tool_blocks(text, position) == ((), position)
    assert extract_use_tool_blocks("no block", 3) == ((), 3)


def test_calls_in_text_count_only_where_there_is_no_other_call() -> None:
    aggregator = ToolCallAggregator()
    assert (
        aggregator.ingest_message({"role": "assistant", "content": [{"type": "text", "text": BLOCK}]})
        == Update()
    )
    update = aggregator.ingest_message({"message": {"content": BLOCK}}, emit_if_missing=True)
    assert [delta.name for delta in update.deltas] == ["localSearch"]
    assert aggregator.ingest_message({"message": {"content": BLOCK}}, emit_if_missing=True) == Update()
    structured = ToolCallAggregator()
    structured.ingest_message(
        {"content": BLOCK, "tool_calls": [opener(arguments="{}")]}, emit_if_missing=True
    )
    assert [record.name for record in structured.snapshot()] == ["f"]


def test_a_pattern_of_one_s_own_is_used_until_it_is_removed_and_may_fail() -> None:
    def broken(text: str) -> list[TextBlock]:
        raise RuntimeError("no")

    removes = [
        register_text_pattern("broken", broken),
        register_text_pattern("call:", lambda text: ([TextBlock(text[5:], "{}")], len(text))),
    ]
    aggregator = ToolCallAggregator()
    try:
        assert aggregator.ingest_message("call:look", emit_if_missing=True).deltas[0].name == "look"
        assert aggregator.matcher_failures == 1
    finally:
        for remove in removes:
            remove()
    assert not ToolCallAggregator().ingest_message("call:look", emit_if_missing=True).updated
    register_text_pattern("", lambda text: [])()
    register_text_pattern("not callable", None)()  # type: ignore[arg-type]


def test_a_record_can_be_written_as_a_block_and_read_back() -> None:
    xml = to_obsidian_xml(ToolCallRecord(0, "c", "localSearch", '{"query":"a < b"}'))
    (block,), _ = extract_use_tool_blocks(xml)
    assert block.name == "localSearch" and json.loads(block.arguments) == {"query": "a < b"}


# --- properties ---

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.sampled_from(["", "f", "c1", "{", "{}", "function_call", "response.output_item.done", ARGUMENTS])
)
keys = st.sampled_from(
    "type id call_id item_id index name arguments function tool_calls function_call delta message item "
    "items choices params msg content output tool "
    "custom parallel_tool_calls".split()
)
payloads = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=14,
)


@given(st.lists(payloads, max_size=4))
def test_no_payload_whatever_is_mutated_or_raises_and_deltas_never_contradict_the_records(
    sequence: list[Any],
) -> None:
    before = copy.deepcopy(sequence)
    aggregator = ToolCallAggregator()
    said: dict[tuple[int, int], str] = {}
    for payload in sequence:
        for update in (
            aggregator.ingest_delta(payload),
            aggregator.ingest_message(payload, emit_if_missing=True),
        ):
            for delta in update.deltas:
                said[delta.choice, delta.index] = said.get((delta.choice, delta.index), "") + delta.arguments
    assert sequence == before
    for (choice, index), text in said.items():
        assert aggregator.snapshot(choice)[index].arguments == text


@given(st.text(max_size=30), st.lists(st.integers(0, 30), max_size=6))
def test_any_split_of_any_text_reassembles(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    aggregator = ToolCallAggregator()
    updates = [aggregator.ingest_delta(chat(opener()))]
    updates += [aggregator.ingest_delta(chat(more(text[start:end]))) for start, end in pairwise(places)]
    assert aggregator.snapshot()[0].arguments == text == heard(updates)[0][2]


# --- what strangers send ---


def _nested(depth: int, wrap: str | None = None) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value] if wrap is None else {wrap: value}
    return value


def _loop() -> list[Any]:
    loop: list[Any] = ["a", {"role": "assistant"}]
    loop += [loop, loop, {"content": loop, "message": loop}]
    return loop


class _Endless(dict[str, Any]):
    """An object that has more of itself under every key."""

    def get(self, key: str, default: Any = None) -> Any:
        return _Endless() if key in ("message", "content", "output") else default

    def __contains__(self, key: object) -> bool:
        return key in ("message", "content")

    def __getitem__(self, key: str) -> Any:
        return _Endless()


class _Raising(dict[str, Any]):
    def get(self, key: str, default: Any = None) -> Any:
        raise RuntimeError("no")


LOOP = _loop()
ONLY_ITSELF: list[Any] = []
ONLY_ITSELF.append(ONLY_ITSELF)
STRANGE: dict[str, Any] = {
    "a list that contains itself": LOOP,
    "a list of nothing but itself": ONLY_ITSELF,
    "an index of many digits": chat({**opener(), "index": "9" * 5000}),
    "an index of many digits, as a number": chat({**opener(), "index": 10**5000}),
    "a choice of many digits": {"choices": [{"index": "9" * 5000, "delta": {"tool_calls": [opener()]}}]},
    "deep content": {"content": _nested(5000)},
    "deep objects as content": _nested(5000, "content"),
    "deep envelopes": _nested(5000, "message"),
    "content that contains itself": {"content": LOOP},
    "endless objects": _Endless(),
    "an object that raises": {"message": _Raising()},
    "arguments that are a set": chat({"index": 0, "id": "a", "function": {"name": "f", "arguments": {1, 2}}}),
    "arguments that contain themselves": chat(
        {"index": 0, "id": "a", "function": {"name": "f", "arguments": LOOP}}
    ),
    "arguments with a number of many digits": chat(
        {"index": 0, "id": "a", "function": {"name": "f", "arguments": {"n": 10**5000}}}
    ),
    "deep arguments": chat({"index": 0, "id": "a", "function": {"name": "f", "arguments": _nested(100_000)}}),
    "an item whose arguments are an object of its own": item(object()),  # type: ignore[arg-type]
    "a tool request whose arguments contain themselves": codex(
        "item/tool/call", callId="c", tool="f", arguments=LOOP
    ),
    "a deep result": {"type": "function_call_output", "output": _nested(100_000)},
    "a result with a number of many digits": {"type": "function_call_output", "output": 10**5000},
    "a deep turn id": {"turnId": _nested(100_000), "method": _nested(100_000)},
    "nothing": None,
    "a number": 7,
    "bytes": b"x",
}


@pytest.mark.parametrize("name", STRANGE)
def test_no_payload_whatever_makes_it_raise_or_loop(name: str) -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta(STRANGE[name])
    aggregator.ingest_message(STRANGE[name], emit_if_missing=True)
    assert all(isinstance(record.arguments, str) and record.name == "f" for record in aggregator.snapshot())
    aggregator.ingest_delta(chat(opener(index=7, call_id="later", name="g", arguments=ARGUMENTS)))
    assert aggregator.snapshot()[-1] == ToolCallRecord(
        len(aggregator.snapshot()) - 1, "later", "g", ARGUMENTS
    )


def test_a_probe_is_recognised_however_deep_its_words_stand() -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta(
        {"type": "function_call_output", "output": [{"content": [{"text": "resources/list failed: x"}]}]}
    )
    aggregator.ingest_delta({"type": "function_call_output", "output": _nested(5000)})
    assert aggregator.phantoms == 1


@pytest.mark.parametrize("more", [{}, {"index": 0}])
def test_entries_of_a_message_that_share_an_id_are_calls_of_their_own(more: dict[str, Any]) -> None:
    entries = [
        {"id": "look", "function": {"name": "look", "arguments": arguments}, **more}
        for arguments in ('{"a":1}', '{"a":2}')
    ]
    aggregator = ToolCallAggregator(id_factory=lambda choice, number: f"minted_{number}")
    aggregator.ingest_message({"tool_calls": entries}, emit_if_missing=True)
    expected = [("look", '{"a":1}'), ("minted_1", '{"a":2}')]
    assert [(record.id, record.arguments) for record in aggregator.snapshot()] == expected
    aggregator.ingest_message({"tool_calls": entries}, emit_if_missing=True)
    assert [(record.id, record.arguments) for record in aggregator.snapshot()] == expected


def test_parts_that_are_the_same_object_are_all_read() -> None:
    part = {"type": "text", "text": "<use_tool><name>f</name><a>1</a></use_tool>"}
    aggregator = ToolCallAggregator()
    aggregator.ingest_message({"content": [part, {"type": "text", "text": "\n"}, part]}, emit_if_missing=True)
    assert [record.name for record in aggregator.snapshot()] == ["f", "f"]

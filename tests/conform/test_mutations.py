"""Every golden stream is rejected after each damage of a table."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from doubles.damage import (
    DROP,
    Frames,
    Mutate,
    Mutation,
    consistently_invalid,
    cumulative_arguments,
    cumulative_deltas,
    doubled,
    error_event_only,
    everywhere,
    field,
    finish_wrong,
    finishes,
    fragments_interleaved,
    is_fragment,
    is_opener,
    is_terminal,
    items_interleaved,
    moved,
    other,
    parse,
    render,
    renumbered,
    second_call,
    structural,
    text_after_finish,
    typed,
    without,
)
from doubles.judges import Judge
from toolwire.conform.judge import DONE, JudgeOptions, fold
from toolwire.core.turn import Api

GOLDEN = {path.stem: path.read_bytes() for path in sorted((Path(__file__).parent / "golden").glob("*.sse"))}


def api_of(golden: str) -> Api:
    return "chat" if golden.startswith("chat") else "responses"


def options_of(golden: str) -> JudgeOptions:
    return {"include_usage": "usage" in golden, "legacy": "legacy" in golden}


def damaged_by(mutation: Mutation, golden: str) -> Frames | None:
    return mutation.on(frames_of(golden), api_of(golden))


@cache
def frames_of(golden: str) -> Frames:
    return parse(GOLDEN[golden])


# --- damages to a field ---

CALL = "choices.0.delta.tool_calls.0"
CHOICE = "choices.0"
LEGACY = "choices.0.delta.function_call"
ADDED, ITEM_DONE = "response.output_item.added", "response.output_item.done"
PLACE = ("output_index", "item_id", "content_index", "summary_index")
REQUIRED_OF_RESPONSE = (
    *(
        "id",
        "object",
        "created_at",
        "error",
        "incomplete_details",
        "instructions",
        "model",
        "tools",
        "output",
    ),
    *("parallel_tool_calls", "metadata", "tool_choice", "temperature", "top_p"),
)

CHAT_FIELDS: dict[str, Mutate] = {
    **{f"{key} dropped": field(key, DROP) for key in ("id", "object", "created", "model", "choices")},
    **{f"{key} changes midway": field(key, other, at=1) for key in ("id", "created", "model", "object")},
    **{f"{key} differs in the last chunk": field(key, other, at=-1) for key in ("id", "created", "model")},
    "object wrong everywhere": lambda frames: [
        {**frame, "object": "chat.completion"} if "object" in frame else frame for frame in frames
    ],
    "id empty": lambda frames: [{**frame, "id": ""} if "id" in frame else frame for frame in frames],
    "created a string": field("created", "1"),
    "unknown key in a chunk": field("sequence_number", 3, add=True),
    "unknown key in a choice": field(f"{CHOICE}.message", {}, add=True),
    "unknown key in a delta": field(f"{CHOICE}.delta.text", "x", add=True),
    "choice index dropped": field(f"{CHOICE}.index", DROP),
    "choice index off at first": field(f"{CHOICE}.index", 1),
    "choice index off at last": field(f"{CHOICE}.index", 1, at=-1),
    "choice index a string": field(f"{CHOICE}.index", "0"),
    "delta null": field(f"{CHOICE}.delta", None),
    "delta dropped": field(f"{CHOICE}.delta", DROP),
    "finish_reason dropped early": field(f"{CHOICE}.finish_reason", DROP),
    "finish_reason early": field(f"{CHOICE}.finish_reason", "stop"),
    "finish null at last": field(f"{CHOICE}.finish_reason", None, at=-1),
    "finish unknown": field(f"{CHOICE}.finish_reason", "done", at=-1),
    "role missing": field(f"{CHOICE}.delta.role", DROP),
    "role wrong": field(f"{CHOICE}.delta.role", "user"),
    "role twice": field(f"{CHOICE}.delta.role", "assistant", at=1, add=True),
    "role late": field(f"{CHOICE}.delta.role", "assistant", at=-1, add=True),
    "content a number": field(f"{CHOICE}.delta.content", 7),
    "content null in a later delta": field(f"{CHOICE}.delta.content", None, at=1),
    "refusal a list": field(f"{CHOICE}.delta.refusal", []),
    "content in the finish chunk": field(f"{CHOICE}.delta.content", "tail", at=-1, add=True),
    "logprobs a string": field(f"{CHOICE}.logprobs", "none"),
    "call index dropped": field(f"{CALL}.index", DROP),
    "call index dropped in a fragment": field(f"{CALL}.index", DROP, at=1),
    "call index starts at 1": field(f"{CALL}.index", 1),
    "call index null": field(f"{CALL}.index", None),
    "call index off in the last fragment": field(f"{CALL}.index", other, at=-1),
    "call id dropped": field(f"{CALL}.id", DROP),
    "call id empty": field(f"{CALL}.id", ""),
    "call id null": field(f"{CALL}.id", None),
    "call id repeated in a fragment": field(f"{CALL}.id", "call_a", at=1, add=True),
    "call ids the same": field(f"{CALL}.id", "call_a", at=1),
    "call type dropped": field(f"{CALL}.type", DROP),
    "call type wrong": field(f"{CALL}.type", "tool"),
    "call type repeated in a fragment": field(f"{CALL}.type", "function", at=1, add=True),
    "call name dropped": field(f"{CALL}.function.name", DROP),
    "call name empty": field(f"{CALL}.function.name", ""),
    "call name repeated in a fragment": field(f"{CALL}.function.name", "f", at=1, add=True),
    "arguments dropped in the opener": field(f"{CALL}.function.arguments", DROP),
    "arguments beside function": field(f"{CALL}.arguments", "{}", add=True),
    "arguments beside function in a fragment": field(f"{CALL}.arguments", "{}", at=1, add=True),
    "arguments an object": field(f"{CALL}.function.arguments", {}, at=1),
    "arguments null in a fragment": field(f"{CALL}.function.arguments", None, at=1),
    "arguments altered": field(f"{CALL}.function.arguments", "}{", at=1),
    "function dropped in a fragment": field(f"{CALL}.function", DROP, at=1),
    "tool_calls an object": field(f"{CHOICE}.delta.tool_calls", {}),
    "tool_calls empty": field(f"{CHOICE}.delta.tool_calls", []),
    "tool_calls null": field(f"{CHOICE}.delta.tool_calls", None, at=1),
    "legacy call for a client with tools": field(LEGACY, {"name": "f", "arguments": "{}"}, add=True),
    "legacy name repeated": field(f"{LEGACY}.name", "f", at=1, add=True),
    "legacy name dropped": field(f"{LEGACY}.name", DROP),
    "legacy call with an id": field(f"{LEGACY}.id", "call_a", add=True),
    "legacy arguments null": field(f"{LEGACY}.arguments", None, at=1),
    "usage where not asked, or early": field(
        "usage", {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}, add=True
    ),
    "usage null dropped": field("usage", DROP),
    "usage total wrong": field("usage.total_tokens", 99),
    "usage tokens a string": field("usage.prompt_tokens", "9"),
    "usage key unknown": field("usage.input_tokens", 9, add=True),
    "usage detail unknown": field("usage.prompt_tokens_details.tokens", 9, add=True),
    "error without message": field("error.message", DROP),
    "error without type": field("error.type", DROP),
    "error without param": field("error.param", DROP),
    "error with an empty message": field("error.message", ""),
    "error a string": field("error", "backend died"),
    "error with a status": field("error.status", 500, add=True),
    "error inside an envelope": lambda frames: [
        {**frames[0], **frame} if "error" in frame else frame for frame in frames
    ],
}

MCP_ENDS: dict[str, str] = {
    "response.mcp_call.completed": "response.mcp_call.failed",
    "response.mcp_call.failed": "response.mcp_call.completed",
    "response.mcp_list_tools.completed": "response.mcp_list_tools.failed",
}

RESPONSES_FIELDS: dict[str, Mutate] = {
    **{
        f"{key} of the response dropped": field(f"response.{key}", DROP, at=-1)
        for key in (*REQUIRED_OF_RESPONSE, "status")
    },
    **{
        f"{key} of the response changes": field(f"response.{key}", other, at=-1)
        for key in ("id", "created_at", "model", "object")
    },
    **{
        f"{key} of the response changes early": field(f"response.{key}", other, at=1)
        for key in ("id", "created_at", "model")
    },
    **{f"{key} dropped": field(key, DROP) for key in ("type", "sequence_number", "delta", *PLACE)},
    **{f"{key} wrong at first": field(key, other) for key in PLACE},
    **{f"{key} wrong at last": field(key, other, at=-1) for key in PLACE},
    "echo changes": field("response.tool_choice", "none", at=-1),
    "metadata a string": field("response.metadata", "", at=-1),
    "sequence number skips": lambda frames: [
        {**frame, "sequence_number": frame["sequence_number"] + (n > 1)} for n, frame in enumerate(frames)
    ],
    "sequence number from 1": lambda frames: [
        {**frame, "sequence_number": frame["sequence_number"] + 1} for frame in frames
    ],
    "sequence number repeats": field("sequence_number", 0, at=1),
    "unknown event": field("type", "response.function_call.delta", at=2),
    "unknown key in an event": field("choices", [], add=True),
    "unknown key in the response": field("response.finish_reason", "stop", add=True),
    "unknown key in an item": field("item.index", 0, add=True),
    "unknown key in a part": field("part.index", 0, add=True),
    "status wrong at first": field("response.status", "completed"),
    "status wrong at last": field("response.status", "in_progress", at=-1),
    "status swapped at last": field(
        "response.status", lambda old: "incomplete" if old == "completed" else "completed", at=-1
    ),
    "output early": field("response.output", [{}]),
    "output empty at last": field("response.output", [], at=-1),
    "output longer at last": field("response.output", lambda old: [*old, *old] or [{}], at=-1),
    "usage early": field("response.usage", {}, add=True),
    "usage lost": field("response.usage", DROP),
    "usage total wrong": field("response.usage.total_tokens", 99),
    "usage without details": field("response.usage.input_tokens_details", DROP),
    "usage detail dropped": field("response.usage.input_tokens_details.cache_write_tokens", DROP),
    "usage by chat's names": field("response.usage.prompt_tokens", 9, add=True),
    "error set or emptied": field(
        "response.error", lambda old: None if old else {"code": "server_error", "message": "x"}, at=-1
    ),
    "error early": field("response.error", {"code": "server_error", "message": "x"}),
    "error without message": field("response.error.message", DROP),
    "error without code": field("response.error.code", DROP),
    "incompleteness set or emptied": field(
        "response.incomplete_details", lambda old: None if old else {"reason": "max_output_tokens"}, at=-1
    ),
    "incompleteness unknown": field("response.incomplete_details.reason", "length"),
    "item id dropped": field("item.id", DROP, kind=ADDED),
    "item id empty": field("item.id", "", kind=ADDED),
    "item id changes": field("item.id", other, kind=ITEM_DONE),
    "item type unknown": field("item.type", "tool_call", kind=ADDED),
    "item type changes": field(
        "item.type", lambda old: "message" if old == "reasoning" else "reasoning", kind=ITEM_DONE
    ),
    "item status dropped at last": field("item.status", DROP, kind=ITEM_DONE),
    "item status open at last": field("item.status", "in_progress", kind=ITEM_DONE),
    "item status swapped": field(
        "item.status", lambda old: "incomplete" if old == "completed" else "completed", kind=ITEM_DONE
    ),
    "item opens completed": field("item.status", "completed", kind=ADDED),
    "item role dropped": field("item.role", DROP, kind=ADDED),
    "item role wrong": field("item.role", "user", kind=ITEM_DONE),
    "item opens with arguments": field("item.arguments", "{}", kind=ADDED),
    "item opens with input": field("item.input", "x", kind=ADDED),
    "item opens with content": field(
        "item.content", lambda old: [{"type": "output_text", "text": "x"}], kind=ADDED
    ),
    "call_id dropped": field("item.call_id", DROP, kind=ADDED),
    "call_id empty": field("item.call_id", "", kind=ADDED),
    "call_id changes": field("item.call_id", other, kind=ITEM_DONE),
    "name dropped": field("item.name", DROP, kind=ADDED),
    "name changes": field("item.name", other, kind=ITEM_DONE),
    "name dropped at arguments done": field("name", DROP, kind="response.function_call_arguments.done"),
    "name differs at arguments done": field("name", other, kind="response.function_call_arguments.done"),
    "arguments differ when done": field("arguments", other),
    "arguments differ in the item": field("item.arguments", other, kind=ITEM_DONE),
    "arguments differ at last": field("response.output.0.arguments", other),
    "arguments an object": field("arguments", {}),
    "input differs when done": field("input", other),
    "input differs in the item": field("item.input", other, kind=ITEM_DONE),
    "text differs when done": field("text", other),
    "text differs in the part": field("part.text", other, at=-1),
    "text differs in the item": field("item.content.0.text", other),
    "text differs at last": field("response.output.0.content.0.text", other),
    "summary differs in the item": field("item.summary.0.text", other),
    "summary differs at last": field("response.output.0.summary.0.text", other),
    "refusal differs when done": field("refusal", other),
    "refusal differs in the part": field("part.refusal", other, at=-1),
    "part opens with text": field("part.text", "x"),
    "part type unknown": field("part.type", "text"),
    "part type changes": field("part.type", "reasoning_text", at=-1),
    "annotations dropped": field("part.annotations", DROP),
    "logprobs dropped": field("logprobs", DROP),
    "delta null": field("delta", None),
    "delta altered": field("delta", other),
    "server label dropped": field("item.server_label", DROP, kind=ADDED),
    "server label changes": field("item.server_label", other, kind=ITEM_DONE),
    "a listed tool without its schema": field("item.tools.0.input_schema", DROP),
    "listed tools an object": field("item.tools", {}, kind=ITEM_DONE),
    "an approval request changes": field(
        "item.arguments", lambda old: old if old == "" else old + " ", kind=ITEM_DONE
    ),
    "output of a failed or completed call swapped": field(
        "item.output", lambda old: None if old else "x", kind=ITEM_DONE
    ),
    "error of a call without type": field("item.error.type", DROP, kind=ITEM_DONE),
    "error of a call of an unknown type": field("item.error.type", "oops", kind=ITEM_DONE),
    "a call says another end than its event": lambda frames: [
        {**frame, "type": MCP_ENDS.get(frame["type"], frame["type"])} for frame in frames
    ],
}


# --- damages to the order ---

ANY_ORDER: dict[str, Mutate] = {
    "nothing at all": lambda frames: [],
    "cut in half": lambda frames: frames[: len(frames) // 2],
    "sent twice": lambda frames: [*frames, *frames],
    "reversed": lambda frames: frames[::-1],
}

CHAT_ORDER: dict[str, Mutate] = {
    "finish dropped": without(finishes),
    "finish twice": doubled(finishes),
    "finish wrong": finish_wrong,
    "finish first": moved(finishes, 0),
    "finish last": moved(finishes, -1),
    "text after finish": text_after_finish,
    "[DONE] missing": lambda frames: [frame for frame in frames if frame != DONE],
    "[DONE] doubled": lambda frames: [*frames, DONE] if frames[-1] == DONE else None,
    "[DONE] first": lambda frames: [DONE, *frames[:-1]] if frames[-1] == DONE else None,
    "[DONE] after an error": lambda frames: [*frames, DONE] if frames[-1] != DONE else None,
    "[DONE] in the middle": lambda frames: [*frames[:1], DONE, *frames[1:]],
    "a chunk after the end": lambda frames: [*frames, frames[0]],
    "an error after the end": lambda frames: [
        *frames,
        {"error": {"message": "x", "type": "server_error", "param": None, "code": None}},
    ],
    "empty choices": lambda frames: [frames[0], {**frames[0], "choices": []}, *frames[1:]],
    "empty delta": lambda frames: [
        frames[0],
        {**frames[0], "choices": [{"index": 0, "delta": {}, "finish_reason": None}]},
        *frames[1:],
    ],
    "not an object": lambda frames: [frames[0], [], *frames[1:]],
    "usage chunk missing": without(lambda frame: frame.get("choices") == []),
    "usage chunk doubled": doubled(lambda frame: frame.get("choices") == []),
    "usage chunk first": moved(lambda frame: frame.get("choices") == [], 0),
    "usage chunk after [DONE]": moved(lambda frame: frame.get("choices") == [], -1),
    "fragments dropped": without(is_fragment, every=True),
    "fragment before its opener": moved(is_fragment, 0),
    "fragment after [DONE]": moved(is_fragment, -1),
    "fragment doubled": doubled(is_fragment),
    "opener dropped": without(is_opener),
    "opener doubled": doubled(is_opener),
    "arguments cumulative": cumulative_arguments,
    "second call under the first's index": second_call(index=0),
    "second call skips an index": second_call(index=2),
    "fragments interleaved": fragments_interleaved,
    "error dropped": without(lambda frame: "error" in frame),
    "error doubled": doubled(lambda frame: "error" in frame),
    "error first": moved(lambda frame: "error" in frame, 0),
}

ENDINGS = (
    *("created", "in_progress", "output_item.added", "output_item.done", "part.added", "part.done"),
    *("_text.done", "arguments.done", "input.done", "refusal.done", ".delta"),
    *("mcp_list_tools.in_progress", "mcp_list_tools.completed"),
    *("mcp_call.in_progress", "mcp_call.completed", "mcp_call.failed"),
)
RESPONSES_ORDER: dict[str, Mutate] = {
    **{f"{ending} dropped": without(typed(ending)) for ending in ENDINGS},
    **{f"{ending} doubled": doubled(typed(ending)) for ending in ENDINGS},
    **{
        f"{ending} first": moved(typed(ending), 0)
        for ending in ("in_progress", "output_item.added", "output_item.done", ".delta")
    },
    **{
        f"{ending} last": moved(typed(ending), -1)
        for ending in ("created", "output_item.added", "output_item.done", ".delta", "part.done")
    },
    "all deltas dropped": without(typed(".delta"), every=True),
    "all item ends dropped": without(typed("output_item.done"), every=True),
    "deltas cumulative": cumulative_deltas,
    "terminal dropped": without(is_terminal),
    "terminal doubled": doubled(is_terminal),
    "terminal first": moved(is_terminal, 0),
    "two terminals": lambda frames: [*frames, {**frames[-1], "type": "response.failed"}],
    "terminal of another kind": lambda frames: [
        *frames[:-1],
        {
            **frames[-1],
            "type": "response.completed" if frames[-1]["type"] != "response.completed" else "response.failed",
        },
    ],
    "error event in place of the terminal": error_event_only,
    "error event before a completed response": lambda frames: (
        [*error_event_only(frames), frames[-1]] if frames[-1]["type"] == "response.completed" else None
    ),
    "[DONE] at the end": lambda frames: [*frames, DONE],
    "items interleaved": items_interleaved,
    "call_id is the item's id": everywhere(
        "call_id", lambda item: item["id"], ("function_call", "custom_tool_call")
    ),
    "arguments no JSON, told alike": consistently_invalid,
}


MUTATIONS = [
    *(Mutation(f"chat: {name}", "chat", mutate) for name, mutate in (CHAT_FIELDS | CHAT_ORDER).items()),
    *(Mutation(f"responses: {name}", "responses", mutate) for name, mutate in RESPONSES_FIELDS.items()),
    *(
        Mutation(f"responses: {name}", "responses", structural(mutate))
        for name, mutate in RESPONSES_ORDER.items()
    ),
    *(Mutation(name, None, structural(mutate)) for name, mutate in ANY_ORDER.items()),
]

# --- damages to the bytes ---

RAW: dict[str, Callable[[bytes], bytes]] = {
    "last blank line missing": lambda raw: raw[:-1],
    "cut inside the last event": lambda raw: raw[:-12],
    "blank line between two events missing": lambda raw: raw.replace(b"\n\n", b"\n", 1),
    "comment inside an event": lambda raw: raw.replace(b"\n", b"\n: ping\n", 1),
    "data without its field name": lambda raw: raw.replace(b"data: ", b"", 1),
    "field unknown": lambda raw: b"retry: 3\n" + raw,
    "event name differs, or is there on chat": lambda raw: (
        raw.replace(b"event: response.in_progress", b"event: response.progress", 1)
        if raw.startswith(b"event")
        else b"event: message\n" + raw
    ),
    "event name missing, or is there at last on chat": lambda raw: (
        raw.replace(b"event: response.in_progress\n", b"", 1)
        if raw.startswith(b"event")
        else b"\nevent: done\ndata:".join(raw.rsplit(b"\ndata:", 1))
    ),
    "JSON broken": lambda raw: raw.replace(b"{", b"", 1),
    "two data lines": lambda raw: (
        raw.replace(b"\ndata: ", b"\ndata: \ndata: ", 1) if raw.startswith(b"event") else b"data: \n" + raw
    ),
    "not UTF-8": lambda raw: raw.replace(b'"model": "m"', b'"model": "\xff"'),
}

CASES = [
    pytest.param(golden, mutation, id=f"{golden} {mutation.name}")
    for golden in GOLDEN
    for mutation in MUTATIONS
    if damaged_by(mutation, golden) is not None
]


def rejected(judge: Judge, golden: str, raw: bytes) -> bool:
    """Whether any judge objects. Stops at the first objection."""
    verdicts = judge.stream_verdicts(raw, api_of(golden), fold(GOLDEN[golden]), **options_of(golden))
    return any(problems for _, problems in verdicts)


@pytest.mark.parametrize(("golden", "mutation"), CASES)
def test_a_damaged_stream_is_rejected(judge: Judge, golden: str, mutation: Mutation) -> None:
    damaged = damaged_by(mutation, golden)
    assert damaged is not None
    assert rejected(judge, golden, render(damaged)), render(damaged).decode()


@pytest.mark.parametrize("golden", GOLDEN)
@pytest.mark.parametrize("damage", RAW)
def test_damaged_bytes_are_rejected(judge: Judge, golden: str, damage: str) -> None:
    raw = RAW[damage](GOLDEN[golden])
    assert raw != GOLDEN[golden]
    assert rejected(judge, golden, raw), raw.decode("utf-8", "replace")


@pytest.mark.parametrize("golden", GOLDEN)
def test_a_frame_dropped_doubled_or_swapped_anywhere_is_rejected(judge: Judge, golden: str) -> None:
    frames = parse(GOLDEN[golden])
    for position in range(len(frames)):
        before, frame, after = frames[:position], frames[position], frames[position + 1 :]
        variants = [
            [*before, *after],
            [*before, frame, frame, *after],
            [*before, *after[:1], frame, *after[1:]],
        ]
        for variant in variants:
            if variant != frames:
                assert rejected(judge, golden, render(renumbered(variant))), (
                    f"frame {position}: {render(variant).decode()}"
                )


def test_every_damage_of_the_table_is_used() -> None:
    unused = [
        mutation.name
        for mutation in MUTATIONS
        if not any(damaged_by(mutation, golden) is not None for golden in GOLDEN)
    ]
    assert unused == []


@pytest.mark.parametrize("golden", GOLDEN)
def test_each_golden_stream_has_at_least_thirty_damages(golden: str) -> None:
    damaged = [
        render(frames) for mutation in MUTATIONS if (frames := damaged_by(mutation, golden)) is not None
    ]
    assert len(set(damaged)) >= 30

"""Laws of the wire: encoders, fragments, decoders and the SSE reader.

`toolwire.conform.judge`, which is independent of the encoders, judges their streams.
"""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random
from typing import Any

from doubles.judges import same
from fuzz import generate, generate_wire
from fuzz.law import Broken, Case, Law, holds
from toolwire.conform.judge import judge_body, judge_error, judge_sse
from toolwire.core import events as vocabulary
from toolwire.core.assemble import CallAssembler, Fragment
from toolwire.core.errors import ToolwireError, error_object, status_of
from toolwire.core.events import CallArgs, CallBegin, CallEnd, Event
from toolwire.core.ids import counting_ids
from toolwire.core.turn import Api, Turn
from toolwire.wire import body
from toolwire.wire.aggregator import ToolCallAggregator, extract_use_tool_blocks
from toolwire.wire.chat import decode as chat
from toolwire.wire.chat.encode import ChatBody, ChatEncoder
from toolwire.wire.messages import decode as messages
from toolwire.wire.messages.encode import MessagesBody, MessagesEncoder
from toolwire.wire.messages.encode import error_object as messages_error
from toolwire.wire.obsidian import to_obsidian_xml
from toolwire.wire.responses import decode as responses
from toolwire.wire.responses.encode import ResponsesEncoder
from toolwire.wire.sse import EMPTY_LINE, SseReader, encode

# --- encoders ---

FAULTS_OF_THE_RUN = frozenset(
    {"invalid_arguments", "cumulative_arguments", "call_id_repeated", "id_repeated"}
)
"""Problems that the checker may report for a wild run.

The encoder forwards the backend's arguments and ids unchanged.
"""


def events_of(written: list[list[Any]]) -> list[Event]:
    return [
        getattr(vocabulary, entry[0])(
            *(tuple(value) if isinstance(value, list) else value for value in entry[1:])
        )
        for entry in written
    ]


def draw_run(rng: Random, custom: bool) -> Case:
    wild = rng.random() < 0.3
    runs = [generate_wire.run_events(rng, wild, custom) for _ in range(1 if rng.random() < 0.85 else 2)]
    return {
        "wild": wild,
        "runs": runs,
        "cuts": sorted(rng.randint(0, 20) for _ in range(rng.randint(0, 4))),
        "include_usage": rng.random() < 0.5,
        "legacy": rng.random() < 0.2,
        "comment": generate.text(rng, 2) if rng.random() < 0.3 else None,
    }


def draw_chat_run(rng: Random) -> Case:
    return draw_run(rng, custom=False)


def draw_responses_run(rng: Random) -> Case:
    return draw_run(rng, custom=True)


def _accepted(what: str, problems: list[Any], wild: bool) -> None:
    left = [str(problem) for problem in problems if not (wild and problem.code in FAULTS_OF_THE_RUN)]
    if left:
        raise Broken(what, [], left)


def judge_chat_run(case: Case) -> None:
    runs = [events_of(run) for run in case["runs"]] or [[]]
    options = {"id": "chatcmpl-1", "created": 1, "legacy": case["legacy"], "choices": len(runs)}
    encoder = ChatEncoder("m", ids=counting_ids(), include_usage=case["include_usage"], **options)
    fold = ChatBody("m", ids=counting_ids(), **options)
    stream = b""
    for choice, run in enumerate(runs):
        for batch in generate.batches(run, case["cuts"]):
            stream += encoder.feed(batch, choice)
        fold.feed(run, choice)
    stream += encoder.finish(case["comment"])
    judged = {"include_usage": case["include_usage"], "legacy": case["legacy"]}
    problems = judge_sse(stream, "chat", **judged)
    if len(runs) > 1:  # the checker cannot know of a choice that fails before its first event
        problems = [
            problem for problem in problems if problem.code not in ("error_after_finish", "choice_index")
        ]
    _accepted("the judge accepts the stream", problems, case["wild"])
    try:
        answer = json.loads(fold.finish())
    except ToolwireError as error:
        answer = json.loads(encode(error_object(error.failure)))
        _accepted("the judge accepts the error", judge_error(status_of(error.failure), answer), False)
    else:
        _accepted(
            "the judge accepts the body", judge_body(answer, "chat", legacy=case["legacy"]), case["wild"]
        )
        if encoder.usage is None and "usage" not in answer and case["include_usage"]:
            answer = {
                **answer,
                "usage": json.loads(stream.rsplit(b"data: ", 2)[1])["usage"],
            }  # a stream that must report usage reports zeros if it is unknown
    _accepted("the stream folds to the body", same(stream, answer, "chat"), False)


def judge_responses_run(case: Case) -> None:
    run = events_of(case["runs"][0]) if case["runs"] else []
    encoder = ResponsesEncoder(
        Turn(api="responses", model="m", items=()), id="resp_1", created=1, ids=counting_ids()
    )
    stream = b"".join(encoder.feed(batch) for batch in generate.batches(run, case["cuts"])) + encoder.finish(
        case["comment"]
    )
    answer = json.loads(encode(encoder.response()))
    whole = ResponsesEncoder(
        Turn(api="responses", model="m", items=()), id="resp_1", created=1, ids=counting_ids()
    )
    whole.feed(run)
    whole.finish()
    holds("batches do not show", json.loads(encode(whole.response())), answer)
    _accepted("the judge accepts the stream", judge_sse(stream, "responses"), case["wild"])
    _accepted("the judge accepts the body", judge_body(answer, "responses"), case["wild"])
    _accepted("the stream folds to the body", same(stream, answer, "responses"), False)


def judge_messages_run(case: Case) -> None:
    run = events_of(case["runs"][0]) if case["runs"] else []
    options: dict[str, Any] = {
        "id": "msg_1",
        "thoughts": "hidden" if case["legacy"] else "signed" if case["include_usage"] else "shown",
    }
    encoder = MessagesEncoder("m", ids=counting_ids(), **options)
    stream = b"".join(encoder.feed(batch) for batch in generate.batches(run, case["cuts"]))
    stream += encoder.finish(case["comment"])
    fold = MessagesBody("m", ids=counting_ids(), **options)
    fold.feed(run)
    _accepted("the judge accepts the stream", judge_sse(stream, "messages"), case["wild"])
    try:
        answer = json.loads(fold.finish())
    except ToolwireError as error:
        answer = json.loads(encode(messages_error(error.failure)))
        status = status_of(error.failure, "messages")
        _accepted("the judge accepts the error", judge_error(status, answer, "messages"), False)
    else:
        _accepted("the judge accepts the body", judge_body(answer, "messages"), case["wild"])
    _accepted("the stream folds to the body", same(stream, answer, "messages"), False)


# --- fragments ---


def draw_fragments(rng: Random) -> Case:
    """Draws calls and the order of their pieces: one call after another, or interleaved."""
    calls = []
    for number in range(rng.randint(1, 3)):
        written = generate.dumped(rng, generate.arguments(rng))
        places = sorted(rng.randint(0, len(written)) for _ in range(rng.randint(0, 5)))
        calls.append(
            [
                f"call_{number}",
                rng.choice(("look", "get_weather", "a")),
                [piece for piece in generate.pieces(written, places) if piece],
            ]
        )
    order = [number for number, call in enumerate(calls) for _ in call[2]]
    if rng.random() < 0.5:
        rng.shuffle(order)
    return {
        "calls": calls,
        "order": order,
        "shape": rng.choice(("chat", "responses", "chat_by_id")),
        "repeat_name": rng.random() < 0.1,
    }


def _arrivals(case: Case) -> list[tuple[int, str | None, str | None, str]]:
    """Returns (number, id, name, piece) for each fragment.

    First the beginnings of all calls in order, then the pieces in the order of the case.
    """
    out: list[tuple[int, str | None, str | None, str]] = [
        (number, call[0], call[1], "") for number, call in enumerate(case["calls"])
    ]
    waiting = [list(call[2]) for call in case["calls"]]
    for number in case["order"]:
        if number < len(waiting) and waiting[number]:
            out.append((number, None, None, waiting[number].pop(0)))
    for number, rest in enumerate(waiting):
        out += [(number, None, None, piece) for piece in rest]
    return out


def _payload(case: Case, number: int, id: str | None, name: str | None, piece: str) -> dict[str, Any]:
    call_id = case["calls"][number][0]
    if case["shape"] == "responses":
        item_id = f"fc_{number}"
        if name is None:
            return {
                "type": "response.function_call_arguments.delta",
                "item_id": item_id,
                "output_index": number,
                "delta": piece,
            }
        item = {
            "type": "function_call",
            "id": item_id,
            "call_id": id,
            "name": name,
            "arguments": "",
            "status": "in_progress",
        }
        return {"type": "response.output_item.added", "output_index": number, "item": item}
    function = {"arguments": piece} if name is None else {"name": name, "arguments": piece}
    entry: dict[str, Any] = {"index": number, "function": function}
    if name is not None or case["shape"] == "chat_by_id":
        entry |= {"id": call_id, "type": "function"}
    return {"choices": [{"index": 0, "delta": {"tool_calls": [entry]}, "finish_reason": None}]}


def judge_aggregator(case: Case) -> None:
    aggregator = ToolCallAggregator(lambda choice, number: f"minted_{choice}_{number}")
    sent: dict[int, str] = {}
    named: dict[int, tuple[str | None, str | None]] = {}
    for arrival in _arrivals(case):
        payload = _payload(case, *arrival)
        before = json.dumps(payload)
        for delta in aggregator.ingest_delta(payload).deltas:
            sent[delta.index] = sent.get(delta.index, "") + delta.arguments
            if delta.id is not None or delta.name is not None:
                holds("a call is named once", False, delta.index in named)
                named[delta.index] = (delta.id, delta.name)
        holds("the input is not changed", before, json.dumps(payload))
    wanted = [(number, call[0], call[1], "".join(call[2])) for number, call in enumerate(case["calls"])]
    holds(
        "records hold the whole",
        wanted,
        [(record.index, record.id, record.name, record.arguments) for record in aggregator.snapshot()],
    )
    holds(
        "deltas add up to the whole",
        {number: whole for number, _, _, whole in wanted},
        {number: sent.get(number, "") for number, *_ in wanted},
    )
    holds("every call was named", {number: (id, name) for number, id, name, _ in wanted}, named)


def judge_assembler(case: Case) -> None:
    assembler = CallAssembler(names=frozenset({"look", "get_weather", "a"}))
    out: list[Event] = []
    for number, id, name, piece in _arrivals(case):
        out += assembler.add(Fragment(number, id, name, piece if piece or name else None))
    out += assembler.finish()
    got: list[list[Any]] = []
    open_call = -1
    for event in out:
        if isinstance(event, CallBegin):
            holds("calls come out one at a time, from 0", (-1, len(got)), (open_call, event.index))
            open_call = event.index
            got.append([event.id, event.name, ""])
        elif isinstance(event, CallArgs):
            holds("arguments belong to the open call", open_call, event.index)
            got[-1][2] += event.delta
        elif isinstance(event, CallEnd):
            holds("the call ends well", (open_call, "ok", ()), (event.index, event.status, event.issues))
            open_call = -1
        else:
            raise Broken("nothing else comes out", "events of calls", event)
    holds("every call comes out whole", [[call[0], call[1], "".join(call[2])] for call in case["calls"]], got)


# --- requests ---


def draw_chat_request(rng: Random) -> Case:
    return _draw_request(rng, generate_wire.CHAT_BODY if rng.random() < 0.75 else generate_wire.LEGACY_BODY)


def draw_responses_request(rng: Random) -> Case:
    return _draw_request(rng, generate_wire.RESPONSES_BODY)


def draw_messages_request(rng: Random) -> Case:
    return _draw_request(rng, generate_wire.MESSAGES_BODY)


def _draw_request(rng: Random, valid: Case) -> Case:
    raw = json.dumps(generate_wire.strange_body(rng, valid)).encode()
    return {"raw": generate_wire.strange_bytes(rng, raw) if rng.random() < 0.3 else raw}


def _judge_request(case: Case, decode: Any, api: Api = "chat") -> None:
    try:
        turn = decode(body.parse(case["raw"]))
    except ToolwireError as error:
        answer = (messages_error if api == "messages" else error_object)(error.failure)
        problems = judge_error(status_of(error.failure, api), answer, api)
        _accepted("a refusal is an error of the API", problems, False)
        holds("a refusal is one printable line", True, answer["error"]["message"].isprintable())
        return
    holds("a request is a turn", True, isinstance(turn, Turn))
    turn.texts()


def judge_chat_request(case: Case) -> None:
    _judge_request(case, chat.decode)


def judge_responses_request(case: Case) -> None:
    _judge_request(case, responses.decode)


def judge_messages_request(case: Case) -> None:
    _judge_request(case, messages.decode, "messages")


# --- SSE, and calls as XML ---


def draw_bytes(rng: Random) -> Case:
    lines = [
        "data: x\n\n",
        "data: é😀\n",
        "data:\n",
        "data",
        "data: [DONE]\n\n",
        "event: e\n",
        "id: 1\n",
        "retry: 5\n\n",
    ]
    lines += ["\n", "\r\n", "\r", ": note\n", "\ufeff", ":", " "]
    raw = "".join(rng.choice(lines) for _ in range(rng.randint(0, 12))).encode()
    return {"raw": raw, "cuts": generate.cuts(rng, len(raw))}


def _read(blocks: list[bytes]) -> list[Any]:
    reader = SseReader()
    out: list[Any] = []
    for block in blocks:
        out += reader.feed(block)
    return out + reader.feed(EMPTY_LINE)


def judge_sse_reader(case: Case) -> None:
    raw = case["raw"]
    bounds = [0, *(min(cut, len(raw)) for cut in case["cuts"]), len(raw)]
    whole = _read([raw])
    holds("the cuts do not show", whole, _read([raw[start:stop] for start, stop in pairwise(bounds)]))
    holds(
        "bytes one by one give the same", whole, _read([raw[place : place + 1] for place in range(len(raw))])
    )


def draw_record(rng: Random) -> Case:
    name = rng.choice(("look", "get_weather", "a"))
    return {
        "name": name,
        "value": generate.arguments(rng),
        "before": generate.prose(rng),
        "behind": generate.prose(rng),
    }


def judge_obsidian(case: Case) -> None:
    """Judges that a call written as XML is found again in a text, with its name and its keys."""
    block = to_obsidian_xml(case["name"], json.dumps(case["value"], ensure_ascii=False))
    text = case["before"] + block + case["behind"]
    found, behind = extract_use_tool_blocks(text)
    holds(
        "the block is found",
        [(case["name"], block)],
        [(entry.name, text[entry.start : entry.end]) for entry in found],
    )
    holds("reading goes on behind it", len(case["before"] + block), behind)
    holds(
        "the arguments are an object with the same keys",
        sorted(case["value"]),
        sorted(json.loads(found[0].arguments)),
    )


RUN, PIECES, RAW = ("runs", "cuts"), ("calls", "order"), ("raw",)
LAWS: dict[str, Law] = {
    "chat_encoder": Law(
        draw_chat_run,
        judge_chat_run,
        "any run gives a valid chat stream, and its chunks add up to the body",
        RUN,
    ),
    "responses_encoder": Law(
        draw_responses_run,
        judge_responses_run,
        "any run gives a valid Responses stream, and its events add up to the body",
        RUN,
    ),
    "messages_encoder": Law(
        draw_responses_run,
        judge_messages_run,
        "any run gives a valid Messages stream, and its events add up to the body",
        RUN,
    ),
    "aggregator": Law(
        draw_fragments,
        judge_aggregator,
        "the arguments of a call are complete, however they are split",
        PIECES,
    ),
    "assembler": Law(
        draw_fragments,
        judge_assembler,
        "calls come out complete and one at a time, however their fragments are mixed",
        PIECES,
    ),
    "decode_chat": Law(
        draw_chat_request, judge_chat_request, "any chat request gives a turn or an OpenAI error", RAW
    ),
    "decode_responses": Law(
        draw_responses_request,
        judge_responses_request,
        "any Responses request gives a turn or an OpenAI error",
        RAW,
    ),
    "decode_messages": Law(
        draw_messages_request,
        judge_messages_request,
        "any Messages request gives a turn or an Anthropic error",
        RAW,
    ),
    "sse_reader": Law(
        draw_bytes, judge_sse_reader, "however bytes are split, the same events are read", ("raw", "cuts")
    ),
    "obsidian_xml": Law(
        draw_record,
        judge_obsidian,
        "a call that is written as XML can be read back",
        ("value", "before", "behind"),
    ),
}

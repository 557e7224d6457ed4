"""Every check of `toolwire conform` passes on Toolwire, and each one can fail.

`DAMAGES` has a fault for each check, which must find it. The manifest test ensures that no check is left out.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from doubles.damage import (
    DROP,
    Mutate,
    cumulative_arguments,
    doubled,
    field,
    finish_wrong,
    is_terminal,
    other,
    parse,
    render,
    structural,
    text_after_finish,
    typed,
    without,
)
from doubles.nodes import Node
from doubles.relay import Damage, DamagingRelay, Passing
from toolwire.conform.engine import BY_ID, CATALOGUE, ConformOutcome, conform
from toolwire.conform.judge import DONE
from toolwire.conform.probe import Probe
from toolwire.core.turn import Api

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = "sk-conform-of-the-tests"
CODEX = Path(__file__).resolve().parents[1] / "codex" / "new" / "node_modules" / ".bin" / "codex"
SETTINGS = f"""
[server]
keys = ["{KEY}"]
[models.native]
backend = "scripted"
[models.emulated]
backend = "scripted"
tools = "emulated"
[models.parked]
backend = "scripted"
tools = "parked"
[models.constrained]
backend = "scripted"
tools = "constrained"
[models."gpt-5.5"]
backend = "scripted"
"""


@pytest.fixture(scope="module")
def toolwire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("toolwire"), SETTINGS).start()
    yield node
    node.end()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def relay(toolwire: Node) -> AsyncIterator[DamagingRelay]:
    async with DamagingRelay(toolwire.url) as made:
        yield made


async def outcome_of(base: str, model: str, *ids: str) -> ConformOutcome:
    async with Probe(base, KEY, limit_s=30) as probe:
        return await conform(probe, model, [BY_ID[id] for id in ids] if ids else CATALOGUE)


def failures(outcome: ConformOutcome) -> list[str]:
    return [
        f"{one.check.id}: {one.verdict.result}: {one.verdict.seen} {one.verdict.excerpt}"
        for one in outcome.findings
        if one.verdict.result != "pass"
    ]


# --- checks pass ---


@pytest.mark.parametrize("model", ["native", "emulated", "parked", "constrained"])
async def test_toolwire_passes_every_check(toolwire: Node, model: str) -> None:
    outcome = await outcome_of(f"{toolwire.url}/v1", model)
    assert failures(outcome) == []
    assert len(outcome.findings) == len(CATALOGUE)


@pytest.mark.parametrize("tools", ["parked", "replay"])
async def test_toolwire_before_the_real_codex_passes_every_check(
    toolwire: Node, tmp_path: Path, tools: str
) -> None:
    if not CODEX.exists() or shutil.which("node") is None:
        pytest.skip("Codex is missing: npm ci --prefix tests/codex/new")
    provider = f'{{ base_url = "{toolwire.url}/v1", env_key = "PROVIDER_KEY", name = "demo" }}'
    model = (
        f'[models.codex]\nbackend = "codex"\nbin = "{CODEX}"\nhome = "{tmp_path / "codex"}"\n'
        f'model = "gpt-5.5"\ntools = "{tools}"\n'
    )
    node = Node(
        tmp_path, f'[server]\nkeys = ["{KEY}"]\n{model}provider = {provider}\n', {"PROVIDER_KEY": KEY}
    )
    await asyncio.to_thread(node.start)
    try:
        outcome = await outcome_of(f"{node.url}/v1", "codex")
    finally:
        await asyncio.to_thread(node.end)
    assert failures(outcome) == []


# --- checks fail ---


def stream(mutate: Mutate) -> Damage:
    """Damages every stream to which it applies."""

    def damage(passing: Passing) -> None:
        frames = parse(passing.raw) if passing.streamed else None
        mutated = mutate(frames) if frames else None
        if mutated is not None:
            passing.raw = render(mutated)

    return damage


def body(change: Callable[[dict[str, Any]], None], method: str = "POST") -> Damage:
    """Damages every body that is not streamed."""

    def damage(passing: Passing) -> None:
        value = passing.json if passing.method == method else None
        if isinstance(value, dict):
            change(value)
            passing.raw = json.dumps(value).encode()

    return damage


def where(
    test: Callable[[Passing], Any], status: int, answer: Any = None, content_type: str = "application/json"
) -> Damage:
    """Replaces the answer if the test holds."""

    def damage(passing: Passing) -> None:
        if test(passing):
            passing.answer(status, REFUSAL if answer is None else answer, content_type)

    return damage


def header(name: str, value: str | None, streamed: bool | None = None) -> Damage:
    def damage(passing: Passing) -> None:
        if streamed is None or passing.streamed is streamed:
            passing.headers.pop(name, None)
            if value is not None:
                passing.headers[name] = value

    return damage


def raw(old: bytes, new: bytes, count: int = -1) -> Damage:
    def damage(passing: Passing) -> None:
        passing.raw = passing.raw.replace(old, new, count)

    return damage


def every(key: str, value: Any) -> Callable[[Any], None]:
    """Sets the key to this value everywhere."""

    def change(entry: Any) -> None:
        for inner in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
            change(inner)
        if isinstance(entry, dict) and key in entry:
            entry[key] = value

    return change


def at(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Sets the value at a path of keys and indexes; DROP deletes it."""

    def change(entry: Any) -> None:
        *steps, last = path.split(".")
        for step in steps:
            entry = entry[int(step)] if step.isdigit() else entry.get(step, {})
            if not entry:
                return
        if value is DROP:
            entry.pop(last, None)
        else:
            entry[last] = value(entry.get(last)) if callable(value) else value

    return change


REFUSAL = {"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": None}}
NO_OBJECT = where(lambda passing: passing.status >= 400, 400, {"detail": "no"})
AS_STREAM = where(
    lambda passing: passing.status >= 400 and passing.asked.get("stream"),
    200,
    b'data: {"error": "no"}\n\n',
    "text/event-stream",
)
CALL = "choices.0.delta.tool_calls.0"
CHAT_CALL = {
    "id": "call_new",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
}
FLAT_CALL = {
    "type": "function_call",
    "id": "fc_new",
    "call_id": "call_new",
    "status": "completed",
    "name": "get_weather",
    "arguments": '{"city":"Paris"}',
}
TOOL_USE = {"type": "tool_use", "id": "toolu_new", "name": "get_weather", "input": {"city": "Paris"}}
MESSAGE = {
    "id": "msg_new",
    "type": "message",
    "role": "assistant",
    "model": "native",
    "content": [TOOL_USE],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}
MISFIT = {"town": 1}
DECLINED = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}
MARKUP = '<tool_call>{"name": "get_weather"}</tool_call>'
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def calling(api: Api, legacy: bool = False) -> Damage:
    """Adds a call that the model did not make."""

    def change(value: dict[str, Any]) -> None:
        if api == "responses":
            value["output"] = [*value.get("output", ()), FLAT_CALL]
        elif api == "messages":
            value["content"] = [*value.get("content", ()), TOOL_USE]
        elif "choices" in value:
            message = value["choices"][0]["message"]
            message |= (
                {"function_call": CHAT_CALL["function"]}
                if legacy
                else {"tool_calls": [*message.get("tool_calls", ()), CHAT_CALL]}
            )

    return body(change)


def without_calls(api: Api) -> Damage:
    def change(value: dict[str, Any]) -> None:
        if api == "responses":
            value["output"] = [item for item in value.get("output", ()) if item["type"] != "function_call"]
        elif api == "messages":
            value["content"] = [block for block in value.get("content", ()) if block["type"] != "tool_use"]
        elif "choices" in value:
            value["choices"][0]["message"].pop("tool_calls", None)

    return body(change)


def saying(api: Api, words: str) -> Damage:
    """Replaces the model's text."""

    def change(value: dict[str, Any]) -> None:
        if api == "chat":
            at("choices.0.message.content", words)(value)
        elif api == "messages":
            calls = [block for block in value.get("content", ()) if block["type"] == "tool_use"]
            value["content"] = [{"type": "text", "text": words}, *calls]
        else:
            part = {"type": "output_text", "text": words, "annotations": [], "logprobs": []}
            message = {
                "id": "msg_new",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [part],
            }
            value["output"] = [
                message,
                *(item for item in value.get("output", ()) if item["type"] != "message"),
            ]

    return body(change)


def dying_after_a_stream() -> Damage:
    gone: list[bool] = []

    def damage(passing: Passing) -> None:
        if passing.asked.get("stream"):
            gone.append(True)
        elif gone and passing.method == "POST":
            passing.answer(500, REFUSAL)

    return damage


def same_ids(value: dict[str, Any]) -> None:
    for item in value.get("output", ()):
        if "call_id" in item:
            item["call_id"] = item["id"]


def says(passing: Passing, *words: str) -> bool:
    return all(word in json.dumps(passing.asked) for word in words)


def declining(*words: str) -> Damage:
    """Declines requests that hold all these words, with Anthropic's error object."""
    return where(lambda passing: says(passing, *words), 400, DECLINED)


def alike(api: Api) -> dict[str, Damage]:
    """The faults that every API can have."""
    arguments: tuple[tuple[str, Any], ...] = (("arguments", "city=Paris"), ("arguments", '{"town": 1}'))
    broken: Mutate = structural(without(typed("content_part.added")))
    as_clients_do = ("function_call_output", "input_text")
    everything = "developer"
    if api == "chat":
        broken, as_clients_do = finish_wrong, ('"role": "tool"', '"type": "text"')
    elif api == "messages":
        arguments = (("input", "city=Paris"), ("input", MISFIT))
        broken, as_clients_do = without(typed("content_block_stop")), ("tool_result", '"is_error": false')
        everything = "context_management"
    return {
        "answers": where(lambda passing: passing.method == "POST" and "tools" not in passing.asked, 500),
        "tools.answers": where(lambda passing: "tools" in passing.asked, 400),
        "body.content-type": header("content-type", "text/plain", streamed=False),
        "stream.content-type": header("content-type", "application/json", streamed=True),
        "stream.sse": raw(b"data: {", b"data: x{", 1),
        "call.arguments": body(every(*arguments[0])),
        "call.arguments-fit": body(every(*arguments[1])),
        "call.declared": body(every("name", "run_shell")),
        "call.no-markup": saying(api, MARKUP),
        "call.ids-fresh": body(every("call_id" if api == "responses" else "id", "call_0")),
        "parallel": body(every("id", "call_0")),
        "parallel.off": calling(api),
        "text-and-call": stream(broken),
        "choice.none": calling(api),
        "choice.auto": calling(api),
        "choice.required": without_calls(api),
        "choice.named": body(every("name", "get_weather")),
        "loop": saying(api, "I do not know."),
        "loop.clients": where(lambda passing: says(passing, *as_clients_do), 400),
        "request.clients": where(lambda passing: says(passing, everything), 400),
        "structured": saying(api, "Paris has many inhabitants."),
        "stream-is-body": without_calls(api),
        "errors.bad-json": NO_OBJECT,
        "errors.unknown-model": NO_OBJECT,
        "errors.bad-field": where(lambda passing: passing.status == 400, 200, {}),
        "errors.before-stream": AS_STREAM,
        "errors.in-stream": stream(lambda frames: frames[:-2]),
        "disconnect": dying_after_a_stream(),
    }


DAMAGES: dict[str, Damage] = {
    "http.models.list": body(at("data.0.owned_by", DROP), "GET"),
    "http.models.one": body(at("id", "another"), "GET"),
    "http.models.unknown": NO_OBJECT,
    "http.cors.preflight": header("access-control-allow-headers", "content-type"),
    "http.cors.answers": header("access-control-allow-origin", None),
    "http.cors.errors": header("access-control-allow-origin", "https://elsewhere.example"),
    "http.errors.no-key": where(lambda passing: passing.status == 401, 401, b"no", "text/plain"),
    **{f"chat.{name}": damage for name, damage in alike("chat").items()},
    "chat.choice.allowed": body(every("name", "get_weather")),
    "chat.body.shape": body(at("choices.0.logprobs", DROP)),
    "chat.body.calls": body(at("choices.0.message.tool_calls.0.id", DROP)),
    "chat.body.finish": body(at("choices.0.finish_reason", "stop")),
    "chat.body.usage": body(at("usage.total_tokens", 1)),
    "chat.body.no-extras": body(at("choices.0.message.function_call", None)),
    "chat.stream.shape": stream(field("choices.0.finish_reason", DROP)),
    "chat.stream.envelope": stream(field("id", other, at=1)),
    "chat.stream.no-event-names": raw(b"data: {", b"event: message\ndata: {"),
    "chat.stream.role": stream(field("choices.0.delta.role", DROP)),
    "chat.stream.role-once": stream(field("choices.0.delta.role", "assistant", at=1, add=True)),
    "chat.stream.opener": stream(field(f"{CALL}.function.arguments", DROP)),
    "chat.stream.index": stream(field(f"{CALL}.index", DROP)),
    "chat.stream.ids": stream(field(f"{CALL}.id", "")),
    "chat.stream.names-once": stream(field(f"{CALL}.function.name", "get_weather", at=1, add=True)),
    "chat.stream.increments": stream(cumulative_arguments),
    "chat.stream.finish-once": stream(text_after_finish),
    "chat.stream.finish": stream(finish_wrong),
    "chat.stream.finish-empty": stream(field("choices.0.delta.content", "tail", at=-1, add=True)),
    "chat.stream.done": stream(lambda frames: [frame for frame in frames if frame != DONE]),
    "chat.stream.no-extras": stream(field("choices.0.delta.tool_calls", None, add=True)),
    "chat.usage.asked": stream(without(lambda frame: frame.get("choices") == [])),
    "chat.usage.null": stream(field("usage", DROP)),
    "chat.usage.unasked": stream(field("usage", USAGE, add=True)),
    "chat.legacy": body(at("choices.0.finish_reason", "tool_calls")),
    "chat.legacy.none": calling("chat", legacy=True),
    "chat.legacy.loop": where(lambda passing: says(passing, '"role": "function"'), 400),
    **{f"responses.{name}": damage for name, damage in alike("responses").items()},
    "responses.choice.allowed": body(every("name", "get_weather")),
    "responses.input.string": where(lambda passing: isinstance(passing.asked.get("input"), str), 400),
    "responses.body.shape": body(at("metadata", DROP)),
    "responses.body.status": body(at("status", "in_progress")),
    "responses.body.ids": body(same_ids),
    "responses.body.usage": body(at("usage.total_tokens", 1)),
    "responses.body.usage-details": body(at("usage.input_tokens_details.cached_tokens", DROP)),
    "responses.body.no-extras": body(at("finish_reason", "stop")),
    "responses.stream.event-names": raw(b"event: response.output_item.added\n", b""),
    "responses.stream.events": stream(field("type", "response.function_call.delta", at=3)),
    "responses.stream.opening": stream(structural(without(typed("response.created")))),
    "responses.stream.sequence": stream(field("sequence_number", other, at=2)),
    "responses.stream.nesting": stream(structural(without(typed("output_item.done")))),
    "responses.stream.indexes": stream(field("output_index", 5)),
    "responses.stream.ids": stream(field("item_id", other)),
    "responses.stream.increments": stream(field("delta", "x")),
    "responses.stream.terminal": stream(without(is_terminal)),
    "responses.stream.final": stream(field("response.output", [], at=-1)),
    "responses.stream.echo": stream(field("response.model", other, at=-1)),
    "responses.stream.usage": stream(field("response.usage", DROP, at=-1)),
    "responses.stream.no-extras": stream(field("choices", [], add=True)),
    "responses.custom": stream(field("delta", "x")),
    "responses.previous": body(at("previous_response_id", "resp_another")),
    "responses.previous.unknown": where(lambda passing: passing.status >= 400, 200, {"id": "resp_1"}),
    "responses.store.get": body(at("output", []), "GET"),
    "responses.store.items": body(at("data", []), "GET"),
    "responses.store.delete": where(
        lambda passing: passing.method == "GET" and passing.status == 404, 200, {"id": "resp_1"}
    ),
    "responses.store.off": where(
        lambda passing: passing.method == "GET" and passing.status == 404, 200, {"id": "resp_1"}
    ),
    **{f"messages.{name}": damage for name, damage in alike("messages").items()},
    "messages.body.shape": body(at("stop_sequence", DROP)),
    "messages.body.stop": body(at("stop_reason", "end_turn")),
    "messages.body.usage": body(at("usage.input_tokens", DROP)),
    "messages.body.no-extras": body(at("provider", "other")),
    "messages.call.ids": body(every("id", "toolu_0")),
    "messages.stream.event-names": raw(b"event: content_block_delta\n", b""),
    "messages.stream.events": stream(field("type", "content_block", at=2)),
    "messages.stream.start": stream(doubled(typed("message_start"))),
    "messages.stream.blocks": stream(without(typed("content_block_stop"))),
    "messages.stream.deltas": stream(field("content_block", {"type": "text", "text": ""})),
    "messages.stream.content": stream(field("content_block.input", {"city": "Paris"})),
    "messages.stream.increments": stream(field("delta.partial_json", "x")),
    "messages.stream.stop": stream(field("delta.stop_reason", "end_turn")),
    "messages.stream.finish-once": stream(doubled(typed("message_delta"))),
    "messages.stream.end": stream(without(typed("message_stop"))),
    "messages.stream.usage": stream(field("usage", DROP)),
    "messages.stream.no-extras": stream(field("provider", "other", at=1, add=True)),
    "messages.thinking": saying("messages", "<think>Clouds are light.</think>"),
    "messages.thinking.returned": declining('"type": "thinking"'),
    "messages.system.inline": declining('"role": "system"'),
    "messages.cache": declining("cache_control"),
    "messages.cache.counted": body(at("usage.cache_read_input_tokens", DROP)),
    "messages.result.failed": declining('"is_error": true'),
    "messages.tools.deferred": declining("defer_loading"),
    "messages.tools.server": declining("web_search_20250305"),
    "messages.threads": declining('"thread"'),
    "messages.key.bearer": where(
        lambda passing: "authorization" in passing.sent_headers,
        401,
        {"type": "error", "error": {"type": "authentication_error", "message": "x-api-key is missing"}},
    ),
    "messages.errors.no-key": where(lambda passing: passing.status == 401, 401, b"no", "text/plain"),
    "messages.count": where(lambda passing: passing.path.endswith("/count_tokens"), 200, {"tokens": 9}),
    "messages.models": body(at("data.0.display_name", DROP), "GET"),
}
"""For each check, the fault that it must find."""


ERROR_TEXT = {"error": "Unexpected endpoint or method. (POST)"}


def asking(test: Callable[[dict[str, Any]], Any], damage: Damage) -> Damage:
    """The damage, limited to requests of this kind."""
    return lambda passing: damage(passing) if test(passing.asked) else None


def in_streams(answer: bytes) -> Damage:
    return where(lambda passing: passing.streamed, 200, answer, "text/event-stream")


def without_tools(asked: dict[str, Any]) -> bool:
    return "messages" in asked and "tools" not in asked


def objects(value: Any) -> None:
    """Turns all arguments into objects."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        objects(inner)
    if isinstance(value, dict) and isinstance(value.get("arguments"), str):
        value["arguments"] = json.loads(value["arguments"])


OTHER_ITEMS = {
    "object": "list",
    "data": [{"id": "msg_1", "type": "message", "role": "user", "content": "Something else."}],
    "has_more": False,
}
OTHER_FAULTS: dict[str, tuple[str, Damage, str]] = {
    "an error that is a text": (
        "chat.answers",
        asking(without_tools, where(lambda passing: passing.status == 200, 200, ERROR_TEXT)),
        "Unexpected",
    ),
    "a stream of an error": ("chat.answers", in_streams(b'data: {"error": "boom"}\n\n'), "boom"),
    "an error event": (
        "responses.answers",
        in_streams(b'event: error\ndata: {"type": "error", "message": "boom"}\n\n'),
        "boom",
    ),
    "no choices": ("chat.answers", body(at("choices", [])), "contains no choices"),
    "no output": ("responses.answers", body(at("output", [])), "contains no output"),
    "an empty stream": ("chat.answers", in_streams(b""), "empty"),
    "chat arguments as objects": ("chat.call.arguments", body(objects), "arguments must be a string"),
    "arguments as objects": ("responses.call.arguments", body(objects), "arguments must be a string"),
    "an error event of Messages": (
        "messages.answers",
        in_streams(b"event: error\ndata: " + json.dumps(DECLINED).encode() + b"\n\n"),
        "ends in an error: no",
    ),
    "no content": ("messages.answers", body(at("content", [])), "contains no content"),
    "arguments lost on Messages": ("messages.call.arguments-fit", body(every("input", {})), "do not fit"),
    "arguments lost in a stream": (
        "messages.call.arguments-fit",
        stream(without(typed("content_block_delta"), every=True)),
        "do not fit",
    ),
    "thoughts in a text block": (
        "messages.thinking",
        stream(field("content_block", {"type": "text", "text": ""})),
        "a thinking_delta in a text block",
    ),
    "thoughts without a signature": ("messages.thinking", body(every("signature", None)), "signature"),
    "a thread that is ignored": (
        "messages.threads",
        where(lambda passing: says(passing, '"thread"', '"create"'), 200, MESSAGE),
        "HTTP 400",
    ),
    "items of another request": (
        "responses.store.items",
        where(lambda passing: passing.path.endswith("/input_items"), 200, OTHER_ITEMS),
        "Something",
    ),
}
"""Faults in addition to `DAMAGES`, each with the check that must find it and its message."""


@pytest.mark.check(
    "chat.answers",
    "responses.answers",
    "chat.call.arguments",
    "responses.call.arguments",
    "responses.store.items",
    "messages.answers",
    "messages.call.arguments-fit",
    "messages.thinking",
    "messages.threads",
)
@pytest.mark.parametrize("name", OTHER_FAULTS)
async def test_invalid_answers_fail_their_check(relay: DamagingRelay, name: str) -> None:
    id, relay.damage, words = OTHER_FAULTS[name]
    [finding] = (await outcome_of(relay.base_url, "native", id)).findings
    assert finding.verdict.result == "fail" and words in finding.verdict.seen, finding.verdict


@pytest.mark.check(
    "chat.stream.done",
    "chat.stream.shape",
    "chat.errors.in-stream",
    "responses.stream.terminal",
    "responses.errors.in-stream",
    "messages.stream.end",
    "messages.errors.in-stream",
)
async def test_rules_of_streams_do_not_pass_where_no_stream_came(relay: DamagingRelay) -> None:
    relay.damage = in_streams(b"")
    rules = [
        check.id
        for check in CATALOGUE
        if ".stream." in check.id or check.id.startswith("chat.usage") or check.id.endswith("stream-is-body")
    ]
    outcome = await outcome_of(relay.base_url, "native", *rules)
    assert outcome.count("pass") == 0
    failed = {finding.check.id for finding in outcome.findings if finding.verdict.result == "fail"}
    assert failed == {
        *("chat.stream.done", "chat.stream.shape", "responses.stream.terminal"),
        *("messages.stream.end", "messages.stream.finish-once"),
    }


def stops_if_named(passing: Passing) -> None:
    if (
        isinstance(passing.asked.get("tool_choice"), dict)
        and passing.asked["tool_choice"].get("type") == "function"
    ):
        passing.raw = passing.raw.replace(b'"finish_reason":"tool_calls"', b'"finish_reason":"stop"')


def events(passing: Passing) -> None:
    if passing.streamed:
        passing.raw = b"\xef\xbb\xbfretry: 3000\n\n" + passing.raw.replace(b"data: ", b"id: 7\ndata: ")


@pytest.mark.check(
    "chat.body.finish", "chat.stream.finish", "chat.choice.named", "chat.stream.sse", "responses.stream.sse"
)
@pytest.mark.parametrize("habit", [stops_if_named, events])
async def test_behaviour_that_openai_or_the_standard_allows_passes_every_check(
    relay: DamagingRelay, habit: Damage
) -> None:
    changed: list[bool] = []

    def damage(passing: Passing) -> None:
        before = passing.raw
        habit(passing)
        changed.append(passing.raw != before)

    relay.damage = damage
    assert failures(await outcome_of(relay.base_url, "native")) == []
    assert any(changed)


@pytest.mark.check("chat.body.no-extras", "chat.body.usage", "chat.usage.asked")
async def test_details_of_usage_that_are_null_fail_the_check_on_extras_alone(relay: DamagingRelay) -> None:
    null = field("usage.prompt_tokens_details", None, at=-1, add=True)

    def damage(passing: Passing) -> None:
        body(lambda value: at("usage.prompt_tokens_details", None)(value) if "choices" in value else None)(
            passing
        )
        stream(lambda frames: null(frames) if passing.asked.get("stream_options") else None)(passing)

    relay.damage = damage
    outcome = await outcome_of(relay.base_url, "native")
    failed = {finding.check.id for finding in outcome.findings if finding.verdict.result == "fail"}
    assert failed == {"chat.body.no-extras", "chat.stream.no-extras"}


@pytest.mark.check("chat.answers", "chat.errors.bad-json", "chat.choice.none")
@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_endpoint_is_not_judged(relay: DamagingRelay, status: int) -> None:
    count = iter(range(10_000))
    relay.damage = where(
        lambda passing: passing.method == "POST" and next(count) > 30, status, {"error": "slow down"}
    )
    outcome = await outcome_of(relay.base_url, "native")
    assert outcome.count("fail") == 0 < outcome.count("pass")
    unasked = {finding.verdict.seen for finding in outcome.findings if finding.verdict.result == "not-run"}
    assert f"the endpoint is busy: HTTP {status}: slow down" in unasked


@pytest.mark.parametrize("id", [pytest.param(id, marks=pytest.mark.check(id)) for id in DAMAGES])
async def test_a_check_finds_its_fault_and_nothing_else_makes_it_fail(relay: DamagingRelay, id: str) -> None:
    relay.damage = lambda passing: None
    clean = await outcome_of(relay.base_url, "native", id)
    relay.damage = DAMAGES[id]
    damaged = await outcome_of(relay.base_url, "native", id)
    assert failures(clean) == []
    [finding] = damaged.findings
    assert finding.verdict.result == "fail", finding.verdict
    assert finding.verdict.seen and finding.verdict.question in BY_ID[id].asks

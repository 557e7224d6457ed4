"""Models that cannot answer: which error a client gets, and when a model of the fallback list answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from toolwire.access.keys import KeyGrant, KeyLimits
from toolwire.backends.base import Batch
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure, Text
from toolwire.core.turn import Api, Turn
from toolwire.gateway.pipeline import Answer, Caller, Gateway
from toolwire.gateway.records import TurnSummary
from toolwire.observe.fixture import read, write
from toolwire.observe.replay import replay
from toolwire.settings.types import LimitSettings, ModelSettings, Settings
from toolwire.testing import ScriptedBackend, ScriptedOptions

APIS: tuple[Api, ...] = ("chat", "responses", "messages")


class Failing(ScriptedBackend):
    """A model whose runs fail, after `says` was sent."""

    def __init__(self, id: str, failure: Failure, says: str = "", unready: bool = False) -> None:
        super().__init__(id, ScriptedOptions())
        self.failure, self.says, self.unready = failure, says, unready
        self.ran = 0

    async def prepare(self) -> None:
        if self.unready:
            raise ToolwireError.of(self.failure)

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        self.ran += 1
        if self.says:
            yield [Text(self.says)]
        yield [self.failure]


def gateway(
    first: ScriptedBackend | None, *others: ScriptedBackend, problem: str = "", **sections: Any
) -> tuple[Gateway, list[TurnSummary]]:
    ids = tuple(other.id for other in others)
    models = [ModelSettings("first", "scripted", fallback=ids, problem=problem)]
    models += [ModelSettings(id, "scripted") for id in ids]
    given = {one.id: one for one in (first, *others) if one is not None}
    made = Gateway(Settings(models=tuple(models), **sections), backends=given)
    ended: list[TurnSummary] = []
    made.observers.append(ended.append)
    return made, ended


def says(id: str, text: str) -> ScriptedBackend:
    return ScriptedBackend(id, ScriptedOptions(script=f"say {text}"))


def request(api: Api, stream: bool = False, **more: Any) -> bytes:
    asked = [{"role": "user", "content": "hi"}]
    body: dict[str, Any] = {"model": "first", "stream": stream, **more}
    if api == "responses":
        return json.dumps({**body, "input": asked, "store": False}).encode()
    return json.dumps({**body, "messages": asked, "max_tokens": 100}).encode()


async def text_of(answer: Answer) -> str:
    if answer.stream is None:
        return (answer.body or b"").decode()
    return b"".join([block async for block in answer.stream]).decode()


def header(answer: Answer, name: str) -> str:
    return dict(answer.headers).get(name.encode(), b"").decode()


DOWN = Failure("backend_unavailable", "Nothing listens there.")


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "kind", ["backend_unavailable", "rate_limit", "quota", "overloaded", "backend", "timeout", "backend_auth"]
)
async def test_the_next_model_answers_before_the_first_byte(api: Api, stream: bool, kind: str) -> None:
    made, ended = gateway(Failing("first", Failure(kind, "No.")), says("second", "I am the second."))
    answer = await made.respond(api, request(api, stream), Caller())
    text = await text_of(answer)
    assert "I am the second." in text and "No." not in text
    assert header(answer, "x-toolwire-model") == "second"
    assert "model=fallback" in header(answer, "x-toolwire-report")
    if stream:
        assert '"model":"second"' in text
    assert [(one.model, one.status, one.error_kind) for one in ended] == [("second", 200, None)]
    await made.close()


@pytest.mark.parametrize(
    "kind", ["invalid_value", "context_length", "content_filter", "unsupported", "model_not_found"]
)
async def test_an_error_of_the_request_does_not_fall_back(kind: str) -> None:
    second = says("second", "never")
    made, ended = gateway(Failing("first", Failure(kind, "Your mistake.")), second)
    with pytest.raises(ToolwireError, match="Your mistake"):
        await made.respond("chat", request("chat"), Caller())
    assert not second.seen and ended[0].model == "first"
    await made.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_not_after_the_first_byte(stream: bool) -> None:
    second = says("second", "never")
    made, _ = gateway(Failing("first", DOWN, says="I begin"), second)
    if stream:
        text = await text_of(await made.respond("chat", request("chat", True), Caller()))
        assert "I begin" in text and "Nothing listens there" in text
    else:
        with pytest.raises(ToolwireError, match="Nothing listens there"):
            await made.respond("chat", request("chat"), Caller())
    assert not second.seen
    await made.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choices", [1, 2])
@pytest.mark.parametrize("ends", ["answered", "fell back", "failed", "not ready", "left", "refused"])
async def test_however_a_turn_ends_no_model_is_kept_open_for_it(
    ends: str, choices: int, stream: bool
) -> None:
    others = [says("second", "I am the second.")] if ends == "fell back" else []
    works = ends in ("answered", "left", "refused")
    failing = Failing("first", DOWN, unready=ends in ("fell back", "not ready"))
    made, _ = gateway(says("first", "Hello.") if works else failing, *others)
    more = {"tools": "none"} if ends == "refused" else {} if choices == 1 else {"n": choices}
    try:
        answer = await made.respond("chat", request("chat", stream, **more), Caller())
        assert ends not in ("failed", "not ready", "refused")
        if answer.stream is not None and ends == "left":
            assert made.catalog.users
            await answer.stream.aclose()  # type: ignore[attr-defined]
        else:
            await text_of(answer)
    except ToolwireError:
        assert ends in ("failed", "not ready", "refused")
    assert not made.catalog.users
    await made.close()


async def test_a_model_that_is_not_ready_and_several_in_a_row() -> None:
    made, ended = gateway(
        Failing("first", DOWN, unready=True), Failing("second", DOWN), says("third", "I am the third.")
    )
    answer = await made.respond("chat", request("chat"), Caller())
    assert "I am the third." in await text_of(answer) and header(answer, "x-toolwire-model") == "third"
    assert ended[0].model == "third"
    await made.close()


async def test_if_every_model_fails_the_last_failure_is_the_answer() -> None:
    made, ended = gateway(Failing("first", DOWN), Failing("second", Failure("rate_limit", "Too fast.")))
    with pytest.raises(ToolwireError, match="Too fast"):
        await made.respond("chat", request("chat", True), Caller())
    assert [(one.model, one.error_kind) for one in ended] == [("second", "rate_limit")]
    await made.close()


async def test_fallbacks_of_a_fallback_are_tried_too() -> None:
    backends = {
        one.id: one for one in (Failing("first", DOWN), Failing("second", DOWN), says("third", "3rd"))
    }
    models = (
        ModelSettings("first", "scripted", fallback=("second",)),
        ModelSettings("second", "scripted", fallback=("third",)),
        ModelSettings("third", "scripted"),
    )
    made = Gateway(Settings(models=models), backends=backends)
    assert "3rd" in await text_of(await made.respond("chat", request("chat"), Caller()))
    await made.close()


@pytest.mark.parametrize("api", APIS)
async def test_an_unavailable_model_gets_its_reason_or_its_fallback(api: Api) -> None:
    reason = "api_key: the environment variable KEY is not set"
    made, _ = gateway(None, says("second", "I am the second."), problem=reason)
    assert made.catalog.listed() == ["second", "first"]
    answer = await made.respond(api, request(api), Caller())
    assert "I am the second." in await text_of(answer) and header(answer, "x-toolwire-model") == "second"
    await made.close()
    models = (ModelSettings("first", "scripted", problem=reason), ModelSettings("demo", "scripted"))
    made = Gateway(Settings(models=models, aliases=(("other", "first"),)))
    assert made.catalog.listed() == ["demo"]
    for name in ("first", "other"):
        with pytest.raises(
            ToolwireError, match="is not available: api_key: the environment variable"
        ) as error:
            await made.respond(api, request(api).replace(b"first", name.encode()), Caller())
        assert error.value.failure.kind == "backend_unavailable"
    await made.close()


async def test_a_key_uses_only_fallbacks_that_it_may_use() -> None:
    def caller(*models: str) -> Caller:
        return Caller("k", grant=KeyGrant(models=models))

    third = says("third", "I am the third.")
    made, _ = gateway(Failing("first", DOWN), says("second", "I am the second."), third)
    assert "third" in await text_of(await made.respond("chat", request("chat"), caller("first", "third")))
    with pytest.raises(ToolwireError, match="Nothing listens"):
        await made.respond("chat", request("chat"), caller("first"))
    with pytest.raises(ToolwireError, match="does not exist"):
        await made.respond("chat", request("chat"), caller("second"))
    await made.close()
    made, _ = gateway(None, says("second", "x"), problem="secret place")
    with pytest.raises(ToolwireError, match="does not exist"):
        await made.respond("chat", request("chat"), caller("second"))
    await made.close()


async def test_the_queue_and_the_limits_count_the_model_that_ran() -> None:
    limits = LimitSettings(backend_concurrent=1)
    made, ended = gateway(Failing("first", DOWN), says("second", "Two."), limits=limits)
    grant = KeyGrant(limits=KeyLimits(concurrent=1, requests_per_minute=100))
    for _ in range(3):
        answer = await made.respond("chat", request("chat", True), Caller("k", grant=grant))
        lines = made.queues.lines()
        assert lines == [("second", 1, 0)]
        assert "Two." in await text_of(answer)
        assert made.queues.lines() == []
    assert [one.model for one in ended] == ["second"] * 3
    await made.close()


async def test_a_turn_with_several_choices_keeps_its_model() -> None:
    second = says("second", "never")
    made, _ = gateway(Failing("first", DOWN), second)
    with pytest.raises(ToolwireError, match="Nothing listens"):
        await made.respond("chat", request("chat", n=2), Caller())
    assert not second.seen
    await made.close()


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


async def test_a_parked_run_of_a_fallback_continues() -> None:
    """The run is parked under the requested name, and the next request continues it on its own model."""
    parking = ScriptedBackend("second", ScriptedOptions(script="call look {}\nsay Seen.", tools="parked"))
    first = Failing("first", DOWN)
    made, _ = gateway(first, parking)
    body = json.loads((await made.respond("chat", request("chat", tools=[TOOL]), Caller())).body or b"")
    call = body["choices"][0]["message"]
    assert call["tool_calls"][0]["function"]["name"] == "look"
    asked = [
        {"role": "user", "content": "hi"},
        call,
        {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "a"},
    ]
    again = json.dumps({"model": "first", "messages": asked, "tools": [TOOL]}).encode()
    answer = await made.respond("chat", again, Caller())
    assert "Seen." in await text_of(answer)
    await made.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tools", ["native", "emulated"])
async def test_a_turn_that_fell_back_can_be_replayed(stream: bool, tools: Any) -> None:
    options = ScriptedOptions(script="call look {}", tools=tools)
    made, _ = gateway(Failing("first", DOWN), ScriptedBackend("second", options))
    await text_of(await made.respond("chat", request("chat", stream, tools=[TOOL]), Caller()))
    assert made.journal is not None
    recording = await made.journal.recording(made.journal.records()[0].id)
    assert recording is not None
    lines = "".join(write(recording)).splitlines()
    assert (await asyncio.to_thread(replay, read(lines))).differences == []
    await made.close()


class Hanging(ScriptedBackend):
    """A model that never answers."""

    def __init__(self, id: str) -> None:
        super().__init__(id, ScriptedOptions())
        self.running = asyncio.Event()

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        self.running.set()
        await asyncio.Event().wait()
        yield []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_request_uses_no_other_model(stream: bool) -> None:
    first, second = Hanging("first"), says("second", "never")
    made, _ = gateway(first, second)
    asking = asyncio.ensure_future(made.respond("chat", request("chat", stream), Caller()))
    await first.running.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert asking.cancelled() and not second.seen
    await made.close()


REQUIRED: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required"}


async def test_a_required_call_may_come_from_the_next_model() -> None:
    made, _ = gateway(
        Failing("first", DOWN), ScriptedBackend("second", ScriptedOptions(script="call look {}"))
    )
    answer = await made.respond("chat", request("chat", **REQUIRED), Caller())
    assert '"name":"look"' in await text_of(answer) and header(answer, "x-toolwire-model") == "second"
    await made.close()


async def test_a_model_that_does_not_make_a_required_call_is_not_replaced() -> None:
    second = says("second", "never")
    made, _ = gateway(says("first", "No call."), second)
    with pytest.raises(ToolwireError) as error:
        await made.respond("chat", request("chat", **REQUIRED), Caller())
    assert error.value.failure.kind == "no_tool_call" and not second.seen
    await made.close()

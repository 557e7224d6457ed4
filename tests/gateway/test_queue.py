"""The queue of a model, and the time limits of a turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.backends.base import Batch
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Finish, Text
from toolwire.core.turn import Api, Turn
from toolwire.gateway.pipeline import Answer, Caller, Gateway
from toolwire.gateway.queue import Queues, QueueSlot
from toolwire.settings.types import LimitSettings, ServerSettings, Settings
from toolwire.testing import ScriptedBackend, ScriptedOptions

Socket = Callable[..., AbstractAsyncContextManager[str]]


def queues(at_once: int = 1, most: int = 64) -> Queues:
    return Queues(LimitSettings(backend_concurrent=at_once, queue=most))


def joined(line: Queues, key_id: str, model: str = "m") -> QueueSlot:
    place = line.join(model, key_id)
    assert place is not None
    return place


async def order(line: Queues, places: dict[str, QueueSlot]) -> list[str]:
    """Returns the names of the slots in the order of admission. Each slot is released at once."""
    seen: list[str] = []

    async def wait(name: str, place: QueueSlot) -> None:
        await place.admitted()
        seen.append(name)
        place.leave()

    await asyncio.gather(*(wait(name, place) for name, place in places.items()))
    return seen


# --- the queue ---


async def test_without_a_limit_there_is_no_queue() -> None:
    assert Queues(LimitSettings()).join("m", "a") is None


async def test_a_key_with_many_turns_delays_only_itself() -> None:
    line = queues()
    running = joined(line, "noisy")
    places = {f"noisy {number}": joined(line, "noisy") for number in range(4)}
    places |= {f"quiet {number}": joined(line, "quiet") for number in range(2)}
    waiting = asyncio.ensure_future(order(line, places))
    await asyncio.sleep(0)
    running.leave()
    assert await waiting == ["noisy 0", "quiet 0", "noisy 1", "quiet 1", "noisy 2", "noisy 3"]


async def test_queues_of_two_models_are_independent() -> None:
    line = queues()
    joined(line, "a", "one")
    await asyncio.wait_for(joined(line, "a", "two").admitted(), 1)
    assert (line.running("one"), line.running("two"), line.waiting("one")) == (1, 1, 0)


async def test_a_turn_that_leaves_while_waiting_gives_up_its_slot() -> None:
    line = queues()
    running, impatient, patient = (joined(line, "a") for _ in range(3))
    waiting = asyncio.ensure_future(impatient.admitted())
    await asyncio.sleep(0)
    waiting.cancel()
    impatient.leave()
    impatient.leave()
    assert line.waiting("m") == 1
    running.leave()
    await asyncio.wait_for(patient.admitted(), 1)
    assert (line.running("m"), line.waiting("m")) == (1, 0)


async def test_a_key_that_fills_the_queue_gets_429_with_retry_after() -> None:
    line = queues(most=2)
    for _ in range(3):
        joined(line, "a")
    with pytest.raises(ToolwireError) as refused:
        line.join("m", "a")
    assert refused.value.failure.kind == "rate_limit" and refused.value.failure.retry_after_s is not None


async def test_a_busy_model_without_a_queue_is_overloaded() -> None:
    line = queues(most=0)
    joined(line, "a")
    with pytest.raises(ToolwireError) as refused:
        line.join("m", "a")
    assert refused.value.failure.kind == "overloaded" and refused.value.failure.retry_after_s is not None


async def test_a_full_queue_makes_room_for_a_key_with_fewer_turns_in_it() -> None:
    line = queues(most=3)
    running = joined(line, "noisy")
    noisy = [joined(line, "noisy") for _ in range(3)]
    last = asyncio.ensure_future(noisy[-1].admitted())
    await asyncio.sleep(0)
    quiet = joined(line, "quiet")
    with pytest.raises(ToolwireError) as refused:
        await last
    assert refused.value.failure.kind == "rate_limit"
    assert "1 request runs and 3 wait, 3 of them with this API key" in refused.value.failure.message
    assert line.waiting("m") == 3
    running.leave()
    noisy[0].leave()
    await asyncio.wait_for(quiet.admitted(), 1)


Step = tuple[str, int]
STEPS = st.lists(st.tuples(st.sampled_from(["join", "leave"]), st.integers(0, 30)), max_size=80)


@given(steps=STEPS, at_once=st.integers(1, 3), most=st.integers(0, 6))
def test_in_any_order_of_arrivals_the_limits_hold_and_every_turn_is_admitted(
    steps: list[Step], at_once: int, most: int
) -> None:
    line, inside = queues(at_once, most), []
    for word, number in steps:
        if word == "join":
            try:
                inside.append(joined(line, f"key {number % 4}"))
            except ToolwireError:
                assert line.waiting("m") == most
        elif inside:
            inside.pop(number % len(inside)).leave()
        running, waiting = line.running("m"), line.waiting("m")
        assert running <= at_once and waiting <= most
        assert not waiting or running == at_once
        assert sum(place._began is not None for place in inside) == running
        assert sum(place._began is None and place._refused is None for place in inside) == waiting
    for place in inside:
        place.leave()
    assert line._lines == {}


# --- turns in the queue ---


class Gated:
    """A model that answers when `open` is set. It counts its runs and cancellations."""

    def __init__(self, *parts: str) -> None:
        self.open = asyncio.Event()
        self.asked = asyncio.Event()
        self.now = self.most = self.cancelled = 0
        self._parts = parts

    async def __call__(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        self.now += 1
        self.most = max(self.most, self.now)
        self.asked.set()
        try:
            for part in self._parts:
                yield [Text(part)]
            await self._opened()
            yield [Text("done"), Finish("stop")]
        finally:
            self.now -= 1

    async def _opened(self) -> None:
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


def gateway(
    gated: Callable[[Turn], AsyncGenerator[Batch, None]], commit_after_s: float = 5, **limits: Any
) -> Gateway:
    backend = ScriptedBackend("m")
    backend.run = gated  # type: ignore[method-assign, assignment]
    settings = Settings(server=ServerSettings(commit_after_s=commit_after_s), limits=LimitSettings(**limits))
    return Gateway(settings, backends={"m": backend})


def request(stream: bool = False, **extra: Any) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "?"}], "stream": stream, **extra}
    ).encode()


async def ask(to: Gateway, key_id: str = "", stream: bool = False, api: Api = "chat", **extra: Any) -> bytes:
    asked = {"model": "m", "input": "?", "stream": stream} if api == "responses" else None
    answer: Answer = await to.respond(
        api, json.dumps(asked).encode() if asked else request(stream, **extra), Caller(key_id)
    )
    if answer.stream is None:
        return answer.body or b""
    try:
        return b"".join([block async for block in answer.stream])
    finally:
        await answer.stream.aclose()  # type: ignore[attr-defined]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_model_never_runs_more_turns_at_once_than_its_limit() -> None:
    gated = Gated()
    served = gateway(gated, backend_concurrent=3)
    turns = [
        asyncio.ensure_future(ask(served, f"key {number % 2}", stream=number % 3 == 0))
        for number in range(12)
    ]
    await until(lambda: served.queues.waiting("m") == 9)
    gated.open.set()
    answers = await asyncio.gather(*turns)
    assert gated.most == 3 and all(b"done" in answer for answer in answers)
    assert (served.queues.running("m"), served.queues.waiting("m")) == (0, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_waiting_turn_whose_client_leaves_never_runs(stream: bool) -> None:
    gated = Gated()
    served = gateway(gated, backend_concurrent=1)
    first = asyncio.ensure_future(ask(served))
    await gated.asked.wait()
    waiting = asyncio.ensure_future(ask(served, stream=stream))
    await until(lambda: served.queues.waiting("m") == 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert served.queues.waiting("m") == 0
    gated.open.set()
    await first
    assert gated.most == 1 and gated.cancelled == 0 and served.queues.running("m") == 0


async def test_a_waiting_stream_is_begun_in_time_and_kept_alive(on_a_socket: Socket) -> None:
    gated = Gated()
    served = gateway(gated, backend_concurrent=1)
    settings = Settings(
        server=ServerSettings(commit_after_s=0.02, keep_alive_s=0.02), limits=served.settings.limits
    )
    served.settings = settings
    async with on_a_socket(served, settings) as url, aiohttp.ClientSession() as client:
        first = asyncio.ensure_future(ask(served))
        await gated.asked.wait()
        async with client.post(
            url + "/v1/chat/completions",
            data=request(stream=True),
            headers={"Content-Type": "application/json"},
        ) as response:
            assert response.status == 200 and served.queues.waiting("m") == 1
            assert (await response.content.readline()).startswith(b":")
            gated.open.set()
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        await first


@pytest.mark.parametrize("choices", [1, 2])
async def test_a_stream_that_loses_its_slot_after_it_has_begun_gets_the_error_in_the_stream(
    choices: int,
) -> None:
    gated = Gated()
    served = gateway(gated, commit_after_s=0.01, backend_concurrent=1, queue=2)
    first = asyncio.ensure_future(ask(served, "noisy"))
    await gated.asked.wait()
    noisy = [asyncio.ensure_future(ask(served, "noisy", stream=True, n=choices)) for _ in range(2)]
    await until(lambda: served.queues.waiting("m") == 2)
    await asyncio.sleep(0.03)  # longer than `commit_after_s`, so the stream has begun
    quiet = asyncio.ensure_future(ask(served, "quiet"))
    assert b"rate_limit_exceeded" in await noisy[1]
    gated.open.set()
    assert b"done" in await quiet and b"done" in await noisy[0] and b"done" in await first


async def test_a_batch_without_events_changes_nothing() -> None:
    async def pauses(turn: Turn) -> AsyncGenerator[Batch, None]:
        yield []
        yield [Text("done")]
        yield []
        yield [Finish()]

    assert b"done" in await ask(gateway(pauses)) and b"done" in await ask(gateway(pauses), stream=True, n=2)


async def test_a_failed_turn_frees_its_slot() -> None:
    async def fails(turn: Turn) -> AsyncGenerator[Batch, None]:
        raise RuntimeError("broken")
        yield []

    served = gateway(fails, backend_concurrent=1)
    for _ in range(3):
        with pytest.raises(ToolwireError):
            await ask(served)
    assert served.queues.running("m") == 0


# --- timeouts ---

LIMITS = [
    pytest.param((), {"first_token_s": 0.05}, "first_token_s", id="first token"),
    pytest.param((), {"total_s": 0.05}, "total_s", id="total"),
    pytest.param((), {"first_token_s": 9, "idle_s": 9, "total_s": 0.05}, "total_s", id="the shortest counts"),
    pytest.param(("some",), {"first_token_s": 9, "idle_s": 0.05}, "idle_s", id="idle"),
]


@pytest.mark.parametrize(("parts", "limits", "named"), LIMITS)
async def test_a_body_that_takes_too_long_is_one_timeout_and_the_run_is_cancelled(
    parts: tuple[str], limits: Any, named: str
) -> None:
    gated = Gated(*parts)
    with pytest.raises(ToolwireError) as failed:
        await ask(gateway(gated, **limits))
    assert failed.value.failure.kind == "timeout" and named in failed.value.failure.message
    assert (gated.cancelled, gated.now) == (1, 0)


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_stream_that_never_begins_is_an_error_before_its_first_byte(api: Api) -> None:
    gated = Gated()
    with pytest.raises(ToolwireError) as failed:
        await ask(gateway(gated, first_token_s=0.05), stream=True, api=api)
    assert failed.value.failure.kind == "timeout" and (gated.cancelled, gated.now) == (1, 0)


@pytest.mark.parametrize("limits", [{"idle_s": 0.05}, {"total_s": 0.05}])
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_stream_that_stops_ends_with_the_timeout_in_the_stream(api: Api, limits: Any) -> None:
    gated = Gated("some")
    body = await ask(gateway(gated, **limits), stream=True, api=api)
    assert b"some" in body and b"(limits." in body and body.count(b"(limits.") == 1
    assert (gated.cancelled, gated.now) == (1, 0)


async def test_a_stream_that_was_begun_for_a_slow_model_gets_the_timeout_in_the_stream() -> None:
    body = await ask(gateway(Gated(), commit_after_s=0.01, first_token_s=0.06), stream=True)
    assert b'"code":"timeout"' in body and body.count(b"data: ") <= 2


async def test_a_slow_reader_does_not_count_as_an_idle_model() -> None:
    gated = Gated("some", "more")
    gated.open.set()
    answer = await gateway(gated, idle_s=0.05, first_token_s=0.05).respond(
        "chat", request(stream=True), Caller()
    )
    assert answer.stream is not None
    blocks = []
    async for block in answer.stream:
        blocks.append(block)
        await asyncio.sleep(0.08)  # longer than `idle_s`, the limit for a silent model
    assert b"done" in b"".join(blocks) and b"timeout" not in b"".join(blocks)


async def test_waiting_counts_for_the_total_timeout_and_not_for_the_first_token() -> None:
    gated = Gated()
    served = gateway(gated, backend_concurrent=1, first_token_s=0.5, total_s=0.05)
    first = asyncio.ensure_future(ask(served))
    await gated.asked.wait()
    with pytest.raises(ToolwireError) as failed:
        await ask(served)
    assert "total_s" in failed.value.failure.message and served.queues.waiting("m") == 0
    assert isinstance((await asyncio.gather(first, return_exceptions=True))[0], ToolwireError)


async def test_text_held_for_a_required_call_does_not_count_as_an_idle_model() -> None:
    """Until the call, the client gets nothing, but the model writes all the time."""
    script = "\n".join(f"say word{number}\npause 150ms" for number in range(8)) + '\ncall look {"a": 1}'
    backend = ScriptedBackend("m", ScriptedOptions(script=script, tools="emulated"))
    served = Gateway(Settings(limits=LimitSettings(first_token_s=1, idle_s=1)), backends={"m": backend})
    tool = {"type": "function", "function": {"name": "look"}}
    body = await ask(served, stream=True, tools=[tool], tool_choice="required")
    assert b'"name":"look"' in body and b"timeout" not in body


async def test_a_resumed_run_that_times_out_is_not_replayed() -> None:
    script = 'call look {"a": 1}\n---\nhang'
    backend = ScriptedBackend("m", ScriptedOptions(script=script, tools="parked"))
    served = Gateway(Settings(limits=LimitSettings(first_token_s=0.1)), backends={"m": backend})
    tools = [{"type": "function", "function": {"name": "look"}}]
    called = json.loads(await ask(served, tools=tools))["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "seen"}
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": called["tool_calls"]},
        result,
    ]
    with pytest.raises(ToolwireError) as failed:
        await ask(served, tools=tools, messages=messages)
    assert failed.value.failure.kind == "timeout" and len(backend.seen) == 1
    assert backend.live[0].cancelled
    await served.close()

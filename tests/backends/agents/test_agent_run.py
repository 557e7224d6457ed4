"""A run of an agent: its text and calls become responses, however slow the client is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

import pytest

from toolwire.backends.agents import run as agent_run
from toolwire.backends.agents.backend import IdleSessions
from toolwire.backends.agents.history import entries, fingerprint, fresh_prompt, known_part, next_prompt
from toolwire.backends.agents.run import AgentRun
from toolwire.core.errors import ToolwireError
from toolwire.core.events import CallArgs, CallBegin, Event, Failure, Finish, Text, Usage
from toolwire.core.turn import (
    Call,
    ImagePart,
    Item,
    Message,
    OtherPart,
    Part,
    Result,
    TextPart,
    ToolChoice,
    ToolSpec,
    Turn,
)

Work = Callable[[AgentRun], Awaitable[None]]


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def assistant(text: str) -> Message:
    return Message("assistant", (TextPart(text),))


def result(id: str, text: str) -> Result:
    return Result(id, (TextPart(text),))


def turn(*items: Item, choice: ToolChoice | None = None) -> Turn:
    return Turn(
        "chat",
        "m",
        items or (user("hi"),),
        tools=(ToolSpec("look"), ToolSpec("write")),
        tool_choice=choice or ToolChoice("auto"),
    )


class Stops:
    """Counts how often the agent was interrupted."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> None:
        self.count += 1


def made(
    work: Work,
    asked: Turn | None = None,
    stop: Stops | None = None,
    settle_s: float = 0.02,
    timeout_s: float = 5,
) -> AgentRun:
    return AgentRun(asked or turn(), work, stop or Stops(), settle_s=settle_s, repeats=3, timeout_s=timeout_s)


async def segment(run: AgentRun) -> list[Event]:
    async with asyncio.timeout(10), aclosing(run.segment()) as batches:
        return [event async for batch in batches for event in batch]


def calls(events: list[Event]) -> list[str]:
    return [event.name for event in events if isinstance(event, CallBegin)]


def said(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def failure(events: list[Event]) -> Failure:
    found = events[-1]
    assert isinstance(found, Failure)
    return found


async def test_a_call_ends_the_response_and_its_result_continues_the_same_run() -> None:
    async def work(run: AgentRun) -> None:
        run.text("Let me look. ")
        found = await run.call("look", '{"a": 1}', "c1")
        run.text(f"It was {found.parts}")

    run = made(work)
    first = await segment(run)
    assert said(first) == "Let me look. " and calls(first) == ["look"] and first[-1] == Finish("tool_calls")
    assert run.pending == ("c1",)
    await run.answer({"c1": result("c1", "sunny")})
    second = await segment(run)
    assert "sunny" in said(second) and second[-1] == Finish("stop") and run.finished


async def test_calls_made_together_go_out_together_in_the_order_of_their_places() -> None:
    async def work(run: AgentRun) -> None:
        await asyncio.gather(run.call("write", "{}", "b", order=2), run.call("look", "{}", "a", order=1))

    run = made(work)
    assert calls(await segment(run)) == ["look", "write"]
    assert run.pending == ("a", "b")
    await run.answer({"a": result("a", "1"), "b": result("b", "2")})
    assert run.conversation[-2:] == [("result", "1"), ("result", "2")]
    await run.cancel()


async def test_a_client_that_wants_one_call_at_a_time_gets_them_one_after_the_other_in_the_same_run() -> None:
    async def work(run: AgentRun) -> None:
        found = await asyncio.gather(
            run.call("write", "{}", "b", order=2), run.call("look", "{}", "a", order=1)
        )
        run.text(" ".join(str(one.parts) for one in found))

    run = made(work, replace(turn(), parallel=False))
    assert calls(await segment(run)) == ["look"] and run.pending == ("a",)
    await run.answer({"a": result("a", "first")})
    assert calls(await segment(run)) == ["write"] and run.pending == ("b",)
    await run.answer({"b": result("b", "second")})
    answer = said(await segment(run))
    assert "first" in answer and "second" in answer
    assert [entry[0] for entry in run.conversation] == [
        "user",
        "call",
        "result",
        "call",
        "result",
        "assistant",
    ]


async def test_a_call_that_comes_while_another_is_parked_waits_for_the_next_response() -> None:
    later = asyncio.Event()
    results: dict[str, str] = {}

    async def second(run: AgentRun) -> None:
        await later.wait()
        results["b"] = str((await run.call("write", "{}", "b")).parts)

    async def work(run: AgentRun) -> None:
        other = asyncio.ensure_future(second(run))
        results["a"] = str((await run.call("look", "{}", "a")).parts)
        await other

    run = made(work)
    assert calls(await segment(run)) == ["look"]
    later.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert run.pending == ("a",)
    await run.answer({"a": result("a", "first")})
    assert calls(await segment(run)) == ["write"] and run.pending == ("b",)
    await run.answer({"b": result("b", "second")})
    assert (await segment(run))[-1] == Finish("stop")
    assert "first" in results["a"] and "second" in results["b"]


async def test_a_call_that_the_agent_cancelled_is_not_sent() -> None:
    async def work(run: AgentRun) -> None:
        waiting = asyncio.ensure_future(run.call("look", "{}"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0.1)
        run.text("never mind")

    events = await segment(made(work, settle_s=0.05))
    assert calls(events) == [] and said(events) == "never mind" and events[-1] == Finish("stop")


async def test_two_calls_with_one_id_are_kept_apart() -> None:
    async def work(run: AgentRun) -> None:
        one, two = await asyncio.gather(run.call("look", "{}", "same"), run.call("write", "{}", "same"))
        run.text(f"{one.parts} {two.parts}")

    run = made(work)
    await segment(run)
    assert len(set(run.pending)) == 2
    await run.answer({id: result(id, f"r{place}") for place, id in enumerate(run.pending)})
    text = said(await segment(run))
    assert "r0" in text and "r1" in text


async def test_a_missing_result_becomes_an_error() -> None:
    async def work(run: AgentRun) -> None:
        run.text(str((await run.call("look", "{}", "a")).parts))

    run = made(work)
    await segment(run)
    await run.answer({})
    assert "no result" in said(await segment(run))


async def test_the_same_call_over_and_over_ends_the_run_with_an_error() -> None:
    async def work(run: AgentRun) -> None:
        while True:
            await run.call("look", '{"a": 1}')

    stopped = Stops()
    run = made(work, stop=stopped)
    for _ in range(3):
        assert calls(await segment(run)) == ["look"]
        await run.answer({id: result(id, "x") for id in run.pending})
    end = failure(await segment(run))
    assert end.kind == "invalid_tool_call" and "4 times" in end.message
    await run.cancel()
    assert stopped.count == 1


async def test_calls_that_the_history_already_holds_count_as_repeated() -> None:
    before = [
        item
        for number in range(3)
        for item in (Call(f"c{number}", "look", '{ "a":1 }'), result(f"c{number}", "x"))
    ]

    async def work(run: AgentRun) -> None:
        await run.call("look", '{"a": 1}')

    assert failure(await segment(made(work, turn(user("go"), *before)))).kind == "invalid_tool_call"
    assert calls(await segment(made(work, turn(user("go"), *before, user("again, please"))))) == ["look"]


async def test_a_call_on_a_run_that_is_over_is_refused_at_once() -> None:
    async def work(run: AgentRun) -> None:
        run.text("done")

    run = made(work)
    await segment(run)
    async with asyncio.timeout(5):
        with pytest.raises(ToolwireError, match="over"):
            await run.call("look", "{}")


async def test_silence_of_an_agent_is_a_timeout_and_signs_of_life_are_not_silence() -> None:
    async def silent(run: AgentRun) -> None:
        await asyncio.Event().wait()

    async def slow(run: AgentRun) -> None:
        for _ in range(10):
            await asyncio.sleep(0.15)
            run.alive()
        run.text("there")

    stopped = Stops()
    run = made(silent, stop=stopped, timeout_s=0.05)
    assert failure(await segment(run)).kind == "timeout"
    await run.cancel()
    assert stopped.count == 1
    assert said(await segment(made(slow, timeout_s=1.2))) == "there"


@pytest.mark.parametrize(
    "noise", [lambda run: run.alive(), lambda run: run.thought("hm ")], ids=["signs of life", "thoughts"]
)
async def test_an_agent_that_never_falls_silent_does_not_hold_its_calls_back(
    noise: Callable[[AgentRun], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_run, "LONGEST_SETTLE_S", 0.2)

    async def work(run: AgentRun) -> None:
        calling = asyncio.ensure_future(run.call("look", "{}", "c1"))
        while not calling.done():
            noise(run)
            await asyncio.sleep(0)

    run = made(work)
    events = await segment(run)
    assert calls(events) == ["look"] and events[-1] == Finish("tool_calls") and run.pending == ("c1",)
    await run.cancel()


async def test_unread_output_is_bounded_and_ends_the_run_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_run, "UNREAD_LIMIT", 10_000)
    flooded = asyncio.Event()

    async def work(run: AgentRun) -> None:
        calling = asyncio.ensure_future(run.call("look", "{}", "c1"))
        await reported.wait()
        for _ in range(1000):
            run.text("x" * 100)
        flooded.set()
        await calling

    reported = asyncio.Event()
    run = made(work)
    await segment(run)
    reported.set()
    await flooded.wait()
    await run.answer({"c1": result("c1", "sunny")})
    events = await segment(run)
    assert 0 < len(said(events)) <= 10_000 and "read" in failure(events).message and run.failed
    await run.cancel()


async def test_an_error_in_the_work_is_the_failure_of_the_run(caplog: pytest.LogCaptureFixture) -> None:
    async def known(run: AgentRun) -> None:
        raise ToolwireError("rate_limit", "slowly", retry_after_s=3)

    async def unknown(run: AgentRun) -> None:
        raise RuntimeError("a secret of the inside")

    assert failure(await segment(made(known))).retry_after_s == 3
    end = failure(await segment(made(unknown)))
    assert end.kind == "backend" and "secret" not in end.message and "a secret of the inside" in caplog.text


async def test_cancelling_ends_the_work_its_calls_and_the_agent_once() -> None:
    ended: list[str] = []

    async def work(run: AgentRun) -> None:
        try:
            await run.call("look", "{}")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    stopped = Stops()
    run = made(work, stop=stopped)
    await segment(run)
    await asyncio.gather(run.cancel(), run.cancel())
    assert ended == ["cancelled"] and stopped.count == 1 and run.pending == ()
    assert failure(await segment(run)).kind == "backend_cut"


@pytest.mark.parametrize("how", ["parked", "not told yet", "called too often", "called while it is stopped"])
async def test_an_agent_hears_nothing_of_its_calls_before_it_is_stopped(how: str) -> None:
    """Any answer to a call, even a refusal, would make the agent ask its model to continue."""
    agent: list[asyncio.Future[Result]] = []
    heard: list[bool] = []

    def calls_tool(run: AgentRun) -> None:
        agent.append(asyncio.ensure_future(run.call("look", "{}")))

    async def work(run: AgentRun) -> None:
        for _ in range(4 if how == "called too often" else 1):
            calls_tool(run)
        await asyncio.Event().wait()

    async def stop() -> None:
        if how == "called while it is stopped":
            calls_tool(run)
        await asyncio.sleep(0.01)
        heard.extend(call.done() for call in agent)

    run = AgentRun(turn(), work, stop, settle_s=60 if how == "not told yet" else 0.02, repeats=3, timeout_s=5)
    reading = asyncio.ensure_future(segment(run))
    await asyncio.sleep(0.01)
    if how != "not told yet":
        events = await reading
        assert events[-1] == Finish("tool_calls") or failure(events).kind == "invalid_tool_call"
    await run.cancel()
    await asyncio.gather(reading, *agent, return_exceptions=True)
    assert heard == [False] * len(agent)
    assert all(call.cancelled() for call in agent) and run.pending == ()
    with pytest.raises(ToolwireError, match="over"):
        await run.call("look", "{}")


async def test_a_run_that_came_to_its_end_is_let_go_without_interrupting_the_agent() -> None:
    async def work(run: AgentRun) -> None:
        run.text("done")

    stopped = Stops()
    run = made(work, stop=stopped)
    await segment(run)
    await run.cancel()
    assert stopped.count == 0


async def test_a_run_knows_whether_its_required_call_was_made() -> None:
    seen: list[bool] = []

    async def work(run: AgentRun) -> None:
        run.text("First, some words.")
        seen.append(run.lacks_call)
        await run.call("look", "{}")

    run = made(work, turn(choice=ToolChoice("required")))
    events = await segment(run)
    assert (
        calls(events) == ["look"]
        and said(events) == "First, some words."
        and seen == [True]
        and not run.lacks_call
    )
    await run.cancel()


async def test_arguments_and_usage_go_out_as_they_came() -> None:
    async def work(run: AgentRun) -> None:
        run.usage(Usage(3, 4))
        await run.call("look", '{"a":  1}')

    run = made(work)
    events = await segment(run)
    assert Usage(3, 4) in events and CallArgs(0, '{"a":  1}') in events
    await run.cancel()


async def test_the_conversation_of_a_run_is_recognized_in_the_clients_next_request() -> None:
    async def work(run: AgentRun) -> None:
        run.text("Let me ")
        run.text("look.")
        await run.call("look", '{"a":1}', "c1")
        run.text("It is ")
        run.text("sunny.")

    asked = turn(user("weather?"))
    run = made(work, asked)
    await segment(run)
    await run.answer({"c1": result("c1", "sun")})
    await segment(run)
    history = (
        user("weather?"),
        assistant("Let me look."),
        Call("x9", "look", '{ "a": 1 }'),
        result("x9", "sun"),
        assistant("It is sunny."),
    )
    following = turn(*history, user("and tomorrow?"))
    assert fingerprint(asked, run.conversation) == fingerprint(following, known_part(following))
    assert next_prompt(following) == "and tomorrow?"
    edited = turn(user("weather now?"), *history[1:], user("and tomorrow?"))
    assert fingerprint(asked, run.conversation) != fingerprint(edited, known_part(edited))
    assert entries(history) == run.conversation


@pytest.mark.parametrize(
    "parts",
    [
        (ImagePart("data:image/png;base64,AAAA"), ImagePart("data:image/png;base64,BBBB")),
        (OtherPart("file", {"file_id": "a"}), OtherPart("file", {"file_id": "b"})),
    ],
)
def test_conversations_about_other_images_or_files_are_other_conversations(parts: tuple[Part, Part]) -> None:
    one, other = (
        turn(Message("user", (TextPart("What is it?"), part)), assistant("A cat."), user("And its colour?"))
        for part in parts
    )
    assert fingerprint(one, known_part(one)) != fingerprint(other, known_part(other))
    again = turn(*one.items)
    assert fingerprint(one, known_part(one)) == fingerprint(again, known_part(again))


async def test_a_long_answer_in_small_pieces_costs_no_more_per_piece_than_a_short_one() -> None:
    async def work(run: AgentRun) -> None:
        for _ in range(200_000):
            run.text("abcd")

    run = made(work)
    async with asyncio.timeout(20):
        events = await segment(run)
    assert len(said(events)) == 800_000 and run.conversation[-1] == ("assistant", "abcd" * 200_000)


def test_a_fresh_agent_gets_names_and_ids_of_earlier_calls() -> None:
    prompt = fresh_prompt(
        turn(
            Message("system", (TextPart("Be kind."),)),
            user("go"),
            Call("c1", "look", '{"a":1}'),
            result("c1", "sun"),
        )
    )
    for words in ("Be kind.", "User: go", "look", "c1", '{"a":1}', "sun"):
        assert words in prompt
    assert prompt.index("Be kind.") < prompt.index("User: go") < prompt.index("sun")


async def test_sessions_wait_up_to_a_number_and_a_time() -> None:
    closed: list[str] = []

    async def close(session: str) -> None:
        closed.append(session)

    idle: IdleSessions[str] = IdleSessions(close, 2, 60)
    for name in "abc":
        idle.keep(name, name)
    assert len(idle) == 2 and idle.take("a") is None and idle.take("b") == "b"
    await idle.close()
    assert closed == ["a", "c"]
    short: IdleSessions[str] = IdleSessions(close, 2, 0.01)
    short.keep("d", "d")
    async with asyncio.timeout(5):
        while len(short):
            await asyncio.sleep(0.005)
    await short.close()
    assert closed[-1] == "d"

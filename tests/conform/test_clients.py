"""Library clients in many kinds of turns against the running gateway: successes and failures.

The programs in tests/clients run the loops and report what their client returned. Assertions are about that,
not about bytes. The first question to a client runs all its jobs in one process. tests/clients/matrix.py has
the table of clients and scenarios, tests/clients/scripts what the models do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from matrix import BROAD, Case
from simple import PLANS, reported

Ask = Callable[[Case, str], dict[str, Any]]

CALLED, ENDED, SHORT = "called", "ended", "short"
_CHAT = {CALLED: "tool_calls", ENDED: "stop", SHORT: "length"}
_RESPONSES = {CALLED: "completed", ENDED: "completed", SHORT: "incomplete"}
_MESSAGES = {CALLED: "tool_use", ENDED: "end_turn", SHORT: "max_tokens"}
_AI_SDK = {CALLED: "tool-calls", ENDED: "stop", SHORT: "length"}


def finish(case: Case, how: str) -> str | None:
    """The client's name for how an answer ended."""
    if case.client == "pydantic-ai":
        return "tool_call" if how == CALLED and case.wire == "chat" else {SHORT: "length"}.get(how, "stop")
    if case.client == "openai-agents" or (
        case.client == "semantic-kernel" and case.wire == "responses" and case.stream
    ):
        return None  # not reported
    if case.wire == "messages":
        return _MESSAGES[how]
    if case.client in ("haystack", "tanstack-ai"):
        return _CHAT[how]  # also on Responses
    return (_AI_SDK if case.client == "ai-sdk" else _RESPONSES if case.wire == "responses" else _CHAT)[how]


def steps_of(result: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The answers of a successful loop: the client accepts every call, and every id is unique."""
    assert result["error"] is None, result["error"]
    steps: list[dict[str, Any]] = result["steps"]
    assert len(steps) == count, steps
    ids = [call["id"] for step in steps for call in step["calls"]]
    assert all(ids) and len(set(ids)) == len(ids)
    for step in steps:
        assert not any(call.get("invalid") for call in step["calls"]) and not step.get("invalid")
        if step.get("gathered") is not None:
            assert step["gathered"] == step["calls"], (
                "put together by index, with names and ids appended, it is the same"
            )
    if result["ran"] is not None:
        ran = [(call["name"], call["arguments"]) for call in result["ran"]]
        assert in_any_order(ran) == in_any_order(call for step in steps for call in calls_of(step)), (
            "the tools got what the model meant"
        )
    return steps


def in_any_order(calls: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return sorted(calls, key=str)


def ordered(case: Case, calls: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The calls of an answer in comparable order: Haystack sorts those of a streamed Response by item id."""
    return (
        in_any_order(calls)
        if (case.client, case.wire, case.stream) == ("haystack", "responses", True)
        else calls
    )


def calls_of(step: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(call["name"], call["arguments"]) for call in step["calls"]]


# --- successes ---

every_case = pytest.mark.parametrize("case", BROAD, ids=str)


@every_case
def test_two_calls_of_one_answer_stay_two_calls_and_find_their_results(case: Case, ask: Ask) -> None:
    first, last = steps_of(ask(case, "parallel"), 2)
    made = calls_of(first)
    assert ordered(case, made) == ordered(
        case, [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Oslo"})]
    )
    assert last["text"] == f"The last tool said: rain in {made[-1][1]['city']}."


@every_case
def test_a_call_without_arguments_has_an_empty_object_for_them(case: Case, ask: Ask) -> None:
    first, last = steps_of(ask(case, "nothing"), 2)
    assert calls_of(first) == [("list_notes", {})]
    assert last["text"] == "The tool said: one note, Ideas.md."


@every_case
def test_text_before_a_call_is_shown_and_the_call_is_made(case: Case, ask: Ask) -> None:
    first, last = steps_of(ask(case, "spoken"), 2)
    assert first["text"] == "Let me look outside."
    assert calls_of(first) == [("get_weather", {"city": "Paris"})]
    assert first["finish"] == finish(case, CALLED)
    assert last["text"] == "The tool said: rain in Paris."


@every_case
def test_thoughts_do_not_get_between_a_call_and_its_result(case: Case, ask: Ask) -> None:
    first, last = steps_of(ask(case, "thoughtful"), 2)
    assert not first["text"]
    assert calls_of(first) == [("get_weather", {"city": "Paris"})]
    assert last["text"] == "The tool said: rain in Paris."
    if (case.client, case.api) == ("ai-sdk", "chat"):
        assert first["thought"] == "A person asks about the weather."


@every_case
def test_a_loop_may_take_several_rounds(case: Case, ask: Ask) -> None:
    first, second, last = steps_of(ask(case, "twice"), 3)
    assert calls_of(first) + calls_of(second) == [("get_weather", {"city": "Paris"}), ("list_notes", {})]
    assert last["text"] == "The last tool said: one note, Ideas.md."


@every_case
def test_arguments_arrive_as_the_model_meant_them(case: Case, ask: Ask) -> None:
    first, last = steps_of(ask(case, "unicode"), 2)
    city = 'São "Paulo"\n\\ ☃ 🌧 </tool_call>'
    assert calls_of(first) == [("get_weather", {"city": city, "days": [1, 2.5, {"a": None}]})]
    assert last["text"].startswith('Said: rain in São "Paulo"\n\\ ☃ 🌧 ')


@every_case
def test_a_conversation_continues_with_its_history(case: Case, ask: Ask) -> None:
    first, second = (step["text"] for step in steps_of(ask(case, "conversation"), 2))
    assert first == "The first answer."
    if (case.client, case.api, case.stream) == ("semantic-kernel", "stateless", True):
        assert second == first, "it does not keep an answer that it streamed"
    elif (case.client, case.api) == ("semantic-kernel", "stateless"):
        assert second in (
            f"The second answer to: {asked}" for asked in ("And now?", "And now?\n\nAnd now?")
        ), "it asks twice"
    else:
        assert second == "The second answer to: And now?"


@every_case
def test_an_answer_that_reached_the_token_limit_reports_it(case: Case, ask: Ask) -> None:
    result = ask(case, "short")
    if (case.client, case.api) == ("openai-node", "runner") and (
        not case.stream or result["error"]
    ):  # since version 7 of the package, also streamed
        assert result["error"]["name"] == "LengthFinishReasonError", "the runner takes no answer that was cut"
        return
    if (case.client, case.api) == ("openai-agents", "responses"):
        assert (
            "response.incomplete" in result["error"]["message"]
            and "max_output_tokens" in result["error"]["message"]
        ), "nor does this package"
        return
    if case.wire == "responses" and (
        case.client == "tanstack-ai" or (case.client == "semantic-kernel" and not case.stream)
    ):
        assert "max_output_tokens" in result["error"]["message"], "nor do these"
        return
    (only,) = steps_of(result, 1)
    assert (only["text"], only["finish"]) == ("This sentence has no", finish(case, SHORT))


# --- the history that a model reads ---


def beside(case: Case, plan: str) -> str:
    """The model's own text that it reads next to its last calls.

    semantic-kernel drops it, except that its agent, without streaming, sends all of it with every request.
    """
    spoken, rounds = PLANS[plan]
    if case.api == "rewritten":
        return ""  # like some clients, it rewrites the message with the calls
    if case.client != "semantic-kernel" or (case.api, case.stream) == ("stateless", False):
        return spoken
    again = spoken and (case.api, case.stream) == ("responses", False)
    return "\n\n".join(spoken for _ in rounds) if again else ""


@every_case
@pytest.mark.parametrize("plan", PLANS)
def test_a_model_that_calls_until_the_history_ends_with_results_is_given_such_a_history(
    case: Case, plan: str, ask: Ask
) -> None:
    spoken, rounds = PLANS[plan]
    *calling, last = steps_of(ask(case, plan), len(rounds) + 1)
    assert [ordered(case, calls_of(step)) for step in calling] == [
        ordered(case, list(calls)) for calls in rounds
    ]
    assert [step["text"] or "" for step in calling] == [spoken for _ in rounds]
    results = [
        f"rain in {given['city']}" if given else "one note, Ideas.md" for _, given in calls_of(calling[-1])
    ]
    assert last["text"] == reported(beside(case, plan), results)


@pytest.mark.parametrize("case", [case for case in BROAD if not case.stream], ids=str)
@pytest.mark.parametrize("scenario", ["spoken", "twice", "unicode", *PLANS])
def test_streamed_and_not_the_loop_is_the_same(case: Case, scenario: str, ask: Ask) -> None:
    streamed = replace(case, stream=True)

    def loop(case: Case) -> list[tuple[str, list[tuple[str, Any]]]]:
        return [
            (step["text"] or "", ordered(streamed, calls_of(step))) for step in ask(case, scenario)["steps"]
        ]

    *whole, last = loop(case)
    *other, ending = loop(streamed)
    assert whole == other
    reordered = (case.client, case.wire) == ("haystack", "responses") and "parallel" in scenario
    if not reordered and (scenario not in PLANS or beside(case, scenario) == beside(streamed, scenario)):
        assert last == ending


# --- failures ---

FAILED_UNSEEN = (
    "reads over response.failed: only a stream event with an `error` object of its own makes it throw"
)
UNSEEING = ("langchain-node", "haystack", "semantic-kernel")


def broken(case: Case) -> Any:
    unseen = case.stream and case.wire == "responses" and case.client in UNSEEING
    return pytest.param(case, marks=pytest.mark.xfail(strict=True, reason=FAILED_UNSEEN) if unseen else ())


@pytest.mark.parametrize("case", [broken(case) for case in BROAD], ids=str)
@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("breaks", "The engine lost power."),
        ("breaks_after_call", "The engine lost power."),
        ("cut", "The model's answer broke off before it was complete."),
    ],
)
def test_an_answer_that_breaks_off_is_an_error_at_the_client(
    case: Case, scenario: str, message: str, ask: Ask
) -> None:
    result = ask(case, scenario)
    assert result["error"] is not None and message in result["error"]["message"], result
    assert all(step["finish"] == "failed" for step in result["steps"]) and len(result["steps"]) <= 1, (
        "the loop does not go on"
    )
    if not case.stream and case.client != "tanstack-ai":  # which always streams
        assert result["error"]["status"] == 502


@every_case
@pytest.mark.parametrize(
    ("scenario", "status", "message"),
    [("refuses", 429, "Too many questions today."), ("missing", 404, "does not exist")],
)
def test_an_error_before_the_first_word_has_its_status_and_message(
    case: Case, scenario: str, status: int, message: str, ask: Ask
) -> None:
    result = ask(case, scenario)
    assert result["steps"] == []
    found = result["error"]["status"]
    if case.client == "tanstack-ai":  # which shows the status only in the message
        found = int(result["error"]["message"].partition(" ")[0])
    assert found == status and message in result["error"]["message"], result

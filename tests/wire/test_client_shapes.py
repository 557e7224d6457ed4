"""The histories that Haystack, semantic-kernel and TanStack AI send are decoded so that a model can continue.

captures/clients holds the requests of whole tool loops, recorded by tests/clients/capture.py; on Responses
also the responses that the server stores. Each loop has text next to its calls. Some clients send the text
after the calls, and semantic-kernel's agent repeats the question before the results. The clients themselves
run in tests/conform; here their shapes are tested without them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from matrix import BY_NAME, VERSIONS
from simple import PLANS, SPOKEN, misplaced, native, written
from toolwire.backends.openai.render import render
from toolwire.core.items import StoredItem
from toolwire.core.turn import Turn
from toolwire.emulate.prompt import Form, text_only, transcript
from toolwire.wire.chat import decode as chat
from toolwire.wire.responses import decode as responses

CAPTURES = {
    path.stem: json.loads(path.read_text("utf-8"))
    for path in sorted((Path(__file__).parent / "captures" / "clients").glob("*.json"))
}
LOOPS = [(name, loop) for name, capture in CAPTURES.items() for loop in capture["loops"]]
every_loop = pytest.mark.parametrize(
    ("client", "loop"),
    LOOPS,
    ids=[f"{name}-{loop['api']}-{loop['stream']}-{loop['plan']}" for name, loop in LOOPS],
)


def decoded(loop: dict[str, Any]) -> list[Turn]:
    """The turns of a loop, each with what the server has stored before it."""
    if loop["wire"] == "chat":
        return [chat.decode(one["request"]) for one in loop["turns"]]
    stored: dict[str | None, tuple[StoredItem, ...]] = {None: ()}
    out: list[Turn] = []
    for one in loop["turns"]:
        request = one["request"]
        before = stored[request.get("previous_response_id")]
        out.append(responses.decode(request, before))
        stored[one["id"]] = before + responses.stored_items(request, one["output"])
    return out


def messages_of(turn: Turn) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = render(turn, "m")["messages"]
    return messages


def texts_of(turn: Turn) -> list[dict[str, Any]]:
    """The same for a model that only writes text."""
    return messages_of(text_only(turn, transcript(turn, ["You have tools."], Form("sentinel", "abc"))))


def results_of(calls: list[tuple[str, dict[str, str]]]) -> list[str]:
    return [f"rain in {given['city']}" if given else "one note, Ideas.md" for _, given in calls]


@every_loop
def test_each_request_after_the_first_ends_with_the_results_of_the_last_calls(
    client: str, loop: dict[str, Any]
) -> None:
    _, rounds = PLANS[loop["plan"]]
    first, *later = decoded(loop)
    assert len(later) == len(rounds)
    assert messages_of(first)[-1]["role"] == "user" and misplaced(messages_of(first)) is None
    for turn, calls in zip(later, rounds, strict=True):
        assert misplaced(messages_of(turn)) is None
        for said, results in (native(messages_of(turn)), written(texts_of(turn))):
            assert sorted(results) == sorted(results_of(calls))
            assert said in ("", SPOKEN, f"{SPOKEN}\n\n{SPOKEN}")


@pytest.mark.parametrize("client", ["haystack", "tanstack-ai"])
def test_words_that_come_after_the_calls_stand_beside_them(client: str) -> None:
    """One message has the text and the calls, on both APIs; no other assistant message follows it."""
    for loop in CAPTURES[client]["loops"]:
        *_, last = decoded(loop)
        assert native(messages_of(last))[0] == written(texts_of(last))[0] == SPOKEN
        roles = [message["role"] for message in messages_of(last) if message["role"] != "tool"]
        assert roles == ["user", *["assistant" for _ in PLANS[loop["plan"]][1]]]


def test_a_question_that_is_sent_again_does_not_come_after_the_results() -> None:
    """semantic-kernel's agent with the server's store sends the question last before the calls, and a result
    last.
    """
    loops = [loop for loop in CAPTURES["semantic-kernel"]["loops"] if loop["api"] == "responses"]
    assert len(loops) == 4
    for loop in loops:
        sent = loop["turns"][-1]["request"]
        assert (
            sent["previous_response_id"]
            and sent["input"][0]["role"] == "user"
            and sent["input"][-1]["type"] == "function_call_output"
        )
        *_, last = decoded(loop)
        assert messages_of(last)[-1]["role"] == "tool"
        assert any("healed:moved_call" in how for _, how in last.notes), last.notes


def test_the_captures_hold_the_orders_that_they_are_kept_for() -> None:
    """If a client changes what it sends, this fails, and the other tests here may have lost their subject."""

    def shapes(client: str, api: str) -> set[str]:
        letters = {"function_call": "C", "function_call_output": "R"}
        last = [
            loop["turns"][1]["request"]
            for loop in CAPTURES[client]["loops"]
            if loop["api"] == api and loop["plan"] == "simple_spoken_parallel"
        ]
        return {
            "".join(letters.get(item.get("type"), item.get("role", "?")[0]) for item in request["input"])
            for request in last
        }

    assert shapes("haystack", "responses") == {"uCCaRR"}
    assert shapes("tanstack-ai", "responses") == shapes("tanstack-ai", "openai_responses") == {"uCCaRR"}
    assert shapes("semantic-kernel", "responses") == {"uaRR", "uRR"}
    assert shapes("semantic-kernel", "stateless") == {"uuCCaRR", "uuCCRR"}


def test_the_captures_are_of_the_pinned_versions() -> None:
    """After a change in versions.toml, tests/clients/capture.py must record the requests again."""
    for name, capture in CAPTURES.items():
        client = BY_NAME[name]
        assert capture["versions"] == {package: VERSIONS[client.kind][package] for package in client.packages}

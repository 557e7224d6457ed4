"""The running gateway accepts and answers requests in the shapes of Obsidian Copilot, on both APIs."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from doubles import obsidian
from doubles.judges import Judge
from toolwire.conform.judge import fold
from toolwire.core.turn import Api

HEADERS = {
    "content-type": "application/json",
    "authorization": "Bearer unused",
    "origin": "app://obsidian.md",
}
BACKENDS = ("native", "emulated", "codex")
QUESTION = {"role": "user", "content": "What did I write about tea?"}
SEARCHED = json.dumps({"query": "tea", "salientTerms": ["tea"]})


@pytest.fixture
def send(gateway: str, codex_gateway: str, judge: Judge) -> Any:
    """Sends a body unchanged except for the model, and judges the answer."""

    def go(api: Api, backend: str, script: str, body: dict[str, Any]) -> dict[str, Any]:
        base = codex_gateway if backend == "codex" else gateway
        raw = json.dumps({**body, "model": f"{script}-{backend}"}).encode()
        request = urllib.request.Request(
            base + {"chat": "/chat/completions", "responses": "/responses"}[api], raw, HEADERS
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (
                200,
                "app://obsidian.md",
            )
            received = answer.read()
        judge.stream(received, api)
        folded: dict[str, Any] = fold(received, api)
        return folded

    return go


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_question_is_answered_with_a_call_of_one_of_its_tools(send: Any, backend: str) -> None:
    body = obsidian.QUESTION
    answer = send("responses", backend, "obsidian", body)
    (call,) = [item for item in answer["output"] if item["type"] == "function_call"]
    assert (call["name"], json.loads(call["arguments"])) == ("localSearch", json.loads(SEARCHED))
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "a note about green tea"}
    answer = send(
        "responses", backend, "obsidian", {**body, "input": [*body["input"], *answer["output"], result]}
    )
    assert _text(answer) == "The tool said: a note about green tea."


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_request_with_a_tools_result_gets_an_answer_that_uses_it(send: Any, backend: str) -> None:
    answer = _text(send("responses", backend, "obsidian", obsidian.RESULT))
    assert answer.startswith("The tool said: The shop opens at nine.")


@pytest.mark.parametrize("backend", BACKENDS)
def test_its_tools_go_through_a_loop_on_chat_completions(send: Any, backend: str) -> None:
    body = {"temperature": 0.1, "stream": True, "tools": obsidian.TOOLS}
    (choice,) = send("chat", backend, "obsidian", {**body, "messages": [QUESTION]})["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], choice["finish_reason"]) == ("localSearch", "tool_calls")
    result = {
        "role": "tool",
        "content": "a note about green tea",
        "name": "localSearch",
        "tool_call_id": call["id"],
    }
    assistant = {"role": "assistant", "content": "", "tool_calls": [call]}
    (choice,) = send("chat", backend, "obsidian", {**body, "messages": [QUESTION, assistant, result]})[
        "choices"
    ]
    assert choice["message"]["content"] == "The tool said: a note about green tea."


def _text(answer: dict[str, Any]) -> str:
    return "".join(
        part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"]
    )

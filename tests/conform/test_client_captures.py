"""What Obsidian Copilot really sent is accepted and answered by the running gateway, on both APIs.

The captures are kept in tests/wire/captures: two requests on Responses, a new question and one that brings a tool's result, and the tools as it
sends them on chat completions.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from doubles.judges import Judge
from toolwire.conform.judge import fold
from toolwire.core.turn import Api

CAPTURES = Path(__file__).parents[1] / "wire" / "captures"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "obsidian-copilot"
HEADERS = {
    "content-type": "application/json",
    "authorization": "Bearer unused",
    "origin": "app://obsidian.md",
}
BACKENDS = ("native", "emulated", "codex")
QUESTION = {"role": "user", "content": "What did I write about tea?"}
SEARCHED = json.dumps({"query": "tea", "salientTerms": ["tea"]})


def capture(name: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((CAPTURES / name).read_text("utf-8"))["request"]["body"]
    return body


@pytest.fixture
def send(gateway: str, codex_gateway: str, judge: Judge) -> Any:
    """Sends a body as it is, but for the model; the answer is judged."""

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
            told = answer.read()
        judge.stream(told, api)
        folded: dict[str, Any] = fold(told, api)
        return folded

    return go


def test_the_captures_here_are_those_that_are_shared() -> None:
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is not on this machine")
    assert {path.name: path.read_bytes() for path in SHARED.glob("*.json")} == {
        path.name: path.read_bytes() for path in CAPTURES.glob("*.json")
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_captured_question_is_answered_with_a_call_of_one_of_its_tools(send: Any, backend: str) -> None:
    body = capture("responses-stream-tool.json")
    answer = send("responses", backend, "obsidian", body)
    (call,) = [item for item in answer["output"] if item["type"] == "function_call"]
    assert (call["name"], json.loads(call["arguments"])) == ("localSearch", json.loads(SEARCHED))
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "a note about green tea"}
    answer = send(
        "responses", backend, "obsidian", {**body, "input": [*body["input"], *answer["output"], result]}
    )
    assert _text(answer) == "The tool said: a note about green tea."


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_captured_request_with_a_tools_result_gets_an_answer_that_uses_it(
    send: Any, backend: str
) -> None:
    body = capture("responses-stream-text.json")
    (result,) = [item["output"] for item in body["input"] if item["type"] == "function_call_output"]
    answer = _text(send("responses", backend, "obsidian", body))
    assert answer.startswith("The tool said: ") and result.strip()[:40] in answer


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_captured_tools_go_through_a_loop_on_chat_completions(send: Any, backend: str) -> None:
    body: dict[str, Any] = {
        "temperature": 0.1,
        "stream": True,
        "tools": json.loads((CAPTURES / "tools.json").read_text("utf-8")),
    }
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

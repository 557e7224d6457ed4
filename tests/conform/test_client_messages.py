"""Anthropic's own SDKs, on every kind of answer of the Messages API, streamed and not.

tests/clients/golden.py has the answers. Tool loops and conversations are in test_client_matrix.py and
test_clients.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import pytest
from anthropic.lib.tools import beta_async_tool

from golden import GOLDEN
from toolwire.core.turn import Reasoning
from toolwire.gateway.pipeline import Gateway
from toolwire.gateway.records import TurnSummary
from toolwire.settings.types import Settings
from toolwire.testing import ScriptedBackend, ScriptedOptions

pytestmark = [pytest.mark.timeout(300), pytest.mark.process]
CLIENTS = ("anthropic-python", "anthropic-node")
CASES = [(name, tools) for name, golden in GOLDEN.items() for tools in golden.tools]
Run = Callable[..., list[dict[str, Any]]]
Results = dict[tuple[str, str, bool], dict[str, Any]]


@pytest.fixture(scope="module", params=CLIENTS)
def results(request: pytest.FixtureRequest, gateway: str, run_client: Run) -> Results:
    """What an SDK got for each answer, by name, strategy, and whether it was streamed."""
    keys = [(name, tools, stream) for name, tools in CASES for stream in (False, True)]
    jobs = [
        {
            "api": "messages",
            "model": f"golden_{name}-{tools}",
            "stream": stream,
            "more": GOLDEN[name].more,
            "once": True,
        }
        for name, tools, stream in keys
    ]
    return dict(zip(keys, run_client(request.param, gateway, jobs), strict=True))


def message_of(result: dict[str, Any]) -> dict[str, Any]:
    """The message as the SDK has it, without what differs between any two answers."""
    assert result["error"] is None, result["error"]
    (step,) = result["steps"]
    message: dict[str, Any] = {**present(step["message"]), "id": "", "model": ""}
    message["content"] = [{**present(block), "id": ""} for block in message["content"]]
    return message


def present(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that are set: the SDKs add some of their own to what they streamed."""
    return {name: value for name, value in fields.items() if value is not None}


@pytest.mark.parametrize(("name", "tools"), CASES, ids=map("-".join, CASES))
def test_an_sdk_gets_the_answer_whole_and_streamed(name: str, tools: str, results: Results) -> None:
    golden = GOLDEN[name]
    whole, streamed = (results[name, tools, stream] for stream in (False, True))
    if golden.error is not None:
        status, kind, message = golden.error
        assert whole["error"]["status"] == status
        for result in (whole, streamed):
            assert kind in result["error"]["message"] and message in result["error"]["message"]
        assert whole["steps"] == streamed["steps"] == []
        if name == "error_first":
            assert streamed["error"]["status"] == status
        return
    got = message_of(whole)
    assert got["content"] == [{**block, "id": ""} for block in golden.content]
    assert (got["stop_reason"], got.get("stop_sequence")) == (golden.stop_reason, golden.stop_sequence)
    assert (got["type"], got["role"]) == ("message", "assistant")
    assert message_of(streamed) == got
    usage = whole["steps"][0]["usage"]
    assert usage == {"input": 25, "output": 15}


@pytest.mark.parametrize("client", CLIENTS)
def test_an_sdk_counts_tokens_and_lists_models_in_pages(client: str, gateway: str, run_client: Run) -> None:
    jobs = [
        {"api": "count", "model": "demo"},
        {"api": "models", "model": "demo", "limit": 7},
        {"api": "models", "model": "nobody", "limit": 1000},
    ]
    counted, listed, missing = run_client(client, gateway, jobs)
    assert counted["error"] is None and counted["steps"][0]["tokens"] > 10
    assert listed["error"] is None, listed["error"]
    (step,) = listed["steps"]
    names = step["models"]
    assert len(names) == len(set(names)) > 7, "there are several pages, and no model is on two of them"
    assert {"demo", "golden_text-native"} <= {*names}
    assert step["one"]["id"] == "demo" and step["one"]["type"] == "model"
    assert missing["error"]["status"] == 404


# --- in this process, to see what arrives ---


@beta_async_tool
async def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


LOOP = 'think Easy.\nsign sealed==\nredact c2VhbGVk\ncall get_weather {"city": "Paris"}\n---\nsay {result}'


@pytest.mark.parametrize("tools", ["native", "parked"])
async def test_a_tool_runner_goes_on_without_threads_and_sends_thoughts_back_as_they_were(
    tools: Any, on_a_socket: Callable[..., Any]
) -> None:
    """It first asks for a thread on the server. The refusal makes it send the whole history."""
    backend = ScriptedBackend("m", ScriptedOptions(script=LOOP, tools=tools))
    gateway = Gateway(Settings(), backends={"m": backend})
    turns: list[TurnSummary] = []
    gateway.observers.append(turns.append)
    async with (
        on_a_socket(gateway, Settings()) as url,
        anthropic.AsyncAnthropic(base_url=url, api_key="unused", max_retries=0) as client,
    ):
        runner = client.beta.messages.tool_runner(
            model="m",
            max_tokens=1000,
            messages=[{"role": "user", "content": "Paris?"}],
            tools=[get_weather],
            thinking={"type": "adaptive"},
        )
        last = await runner.until_done()
    assert last.content[-1].to_dict() == {"type": "text", "text": "rain in Paris"}
    refused, *served = turns
    assert (refused.status, {turn.status for turn in served}) == (400, {200})
    assert [turn.kind for turn in served] == ["new", "resumed" if tools == "parked" else "new"]
    if tools == "native":
        assert [item for item in backend.seen[-1].items if isinstance(item, Reasoning)] == [
            Reasoning(content=("Easy.",), signature="sealed=="),
            Reasoning(redacted="c2VhbGVk"),
        ]

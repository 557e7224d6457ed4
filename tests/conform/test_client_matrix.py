"""Every real client runs a two-step tool loop: each API, streamed and not, each kind of model.

One test per cell of the table in tests/clients/matrix.py. The models are scripted, emulated and Codex.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from browser import OBSIDIAN, Browsed, run_browser
from matrix import BY_NAME, CASES, CLIENT_TABLE, Case, chromium

pytestmark = pytest.mark.timeout(300)
Ask = Callable[..., dict[str, Any]]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_tool_loop_ends_in_an_answer_with_the_tools_result(case: Case, ask: Ask) -> None:
    result = ask(case)
    assert result["error"] is None, result["error"]
    first, last = result["steps"]
    ((name, arguments, id),) = [(call["name"], call["arguments"], call["id"]) for call in first["calls"]]
    assert (name, arguments) == BY_NAME[case.client].call and id
    assert not first["text"] and not last["calls"]
    assert last["text"].startswith("The tool said: ") and "rain in Paris" in last["text"]
    silent = (
        case.client == "semantic-kernel" and case.wire == "responses" and case.stream
    )  # it reports no usage when it streams
    if BY_NAME[case.client].program and not silent:
        assert [step["usage"] for step in (first, last)] == [
            {"input": 11, "output": 7},
            {"input": 23, "output": 9},
        ]


def test_the_table_holds_every_client_api_and_backend() -> None:
    libraries = {
        "openai-python",
        "openai-node",
        "ai-sdk",
        "langchain-node",
        "langchain-python",
        "openai-agents",
        "pydantic-ai",
    }
    libraries |= {"haystack", "semantic-kernel", "tanstack-ai"}
    anthropic = {"anthropic-python", "anthropic-node", "claude-code"}
    assert {client.name for client in CLIENT_TABLE} == libraries | anthropic | {
        "opencode",
        "codex",
        "browser",
    }
    spoken = {
        wire: {case.client for case in CASES if case.wire == wire}
        for wire in ("chat", "responses", "messages")
    }
    assert spoken["messages"] == anthropic
    assert spoken["responses"] == {client.name for client in CLIENT_TABLE} - anthropic
    assert spoken["responses"] - spoken["chat"] == {"codex"}, "Codex speaks only Responses"
    whole = {case.client for case in CASES if not case.stream}
    assert {client.name for client in CLIENT_TABLE} - whole == {"opencode", "codex", "claude-code"}, (
        "these always stream"
    )
    assert all(
        {(c.client, c.api, c.stream, backend) for backend in ("native", "emulated", "codex")}
        <= {*map(_key, CASES)}
        for c in CASES
    )


def _key(case: Case) -> tuple[str, str, bool, str]:
    return case.client, case.api, case.stream, case.backend


# --- the preflight ---


def browse(gateway: str, **more: Any) -> Browsed:
    program = chromium()
    if program is None:
        pytest.skip("Chromium is missing")  # if clients must be installed, the cells above have failed
    case = Case("browser", "chat", True, "native")
    return run_browser(program, [{**case.job(), "baseURL": gateway}], **more)


def test_chromium_asks_before_it_sends_and_obsidians_origin_is_admitted_with_its_headers(
    gateway: str,
) -> None:
    browsed = browse(gateway)
    assert [result["error"] for result in browsed.results] == [None]
    assert browsed.preflights
    for preflight in browsed.preflights:
        assert (
            preflight.status,
            preflight.asked["origin"],
            preflight.asked["access-control-request-method"],
        ) == (204, OBSIDIAN, "POST")
        asked = {name.strip() for name in preflight.asked["access-control-request-headers"].split(",")}
        assert {"authorization", "content-type", "x-stainless-lang", "x-stainless-runtime-version"} <= asked
        assert asked <= {
            name.strip().lower() for name in preflight.answered["access-control-allow-headers"].split(",")
        }
        assert preflight.answered["access-control-allow-origin"] == OBSIDIAN


def test_chromium_refuses_to_send_where_the_origin_is_not_admitted(gateway: str) -> None:
    browsed = browse(gateway, origin="https://elsewhere.example")
    (result,) = browsed.results
    assert result["steps"] == [] and result["error"]["name"] == "TypeError"
    assert all("access-control-allow-origin" not in preflight.answered for preflight in browsed.preflights)

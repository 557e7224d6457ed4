"""JavaScript clients as people install them, each through whole tool loops against the running gateway.

The programs in tests/clients run the loops and tell what their client gave them; every assertion here is about that, not about bytes. All jobs of a
client run in one Node process. `tests/clients/scripts` holds what the models do.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

CLIENTS = Path(__file__).parents[1] / "clients"
PACKAGES: dict[str, str] = json.loads((CLIENTS / "package.json").read_text("utf-8"))["dependencies"]

APIS = {
    "openai_node": ("chat", "rewritten", "runner", "responses", "chained"),
    "ai_sdk": ("chat", "responses"),
    "langchain": ("chat", "responses"),
}
ON_RESPONSES = ("responses", "chained")
SCENARIOS: dict[str, dict[str, Any]] = {
    "weather": {},
    "parallel": {},
    "nothing": {},
    "spoken": {},
    "thoughtful": {},
    "twice": {},
    "unicode": {},
    "conversation": {"then": ["And now?"]},
    "short": {},
    "breaks": {},
    "breaks_after_call": {},
    "cut": {},
    "refuses": {},
    "missing": {},
}
"""Each is the name of a script; `missing` is none."""


class Case(NamedTuple):
    client: str
    api: str
    tools: str
    stream: bool

    def job(self, scenario: str) -> dict[str, Any]:
        return {"api": self.api, "model": f"{scenario}-{self.tools}", "stream": self.stream, **SCENARIOS[scenario]}

    def __str__(self) -> str:
        return f"{self.client}-{self.api}-{self.tools}-{'stream' if self.stream else 'body'}"


CASES = [Case(client, *rest) for client, apis in APIS.items() for rest in product(apis, ("native", "emulated"), (False, True))]

CALLED, ENDED, SHORT = "called", "ended", "short"
_CHAT = {CALLED: "tool_calls", ENDED: "stop", SHORT: "length"}
_RESPONSES = {CALLED: "completed", ENDED: "completed", SHORT: "incomplete"}
_AI_SDK = {CALLED: "tool-calls", ENDED: "stop", SHORT: "length"}


def finish(case: Case, how: str) -> str:
    """The client's own word for how an answer ended."""
    return (_AI_SDK if case.client == "ai_sdk" else _RESPONSES if case.api in ON_RESPONSES else _CHAT)[how]


# --- the gateway and the programs --------------------------------------------------------------------------------------------------------------


def lacking() -> str | None:
    """What must be installed before these tests can run, in one line."""
    if shutil.which("node") is None:
        return "Node.js is not installed (20 or newer is needed)"
    for name, version in PACKAGES.items():
        manifest = CLIENTS / "node_modules" / name / "package.json"
        if not manifest.exists() or json.loads(manifest.read_text("utf-8"))["version"] != version:
            return f"tests/clients/node_modules lacks {name} {version}: run `npm ci` in tests/clients"
    return None


@pytest.fixture(scope="session")
def ask(gateway: str) -> Callable[[Case, str], dict[str, Any]]:
    """`ask(case, scenario)`: what the client gave. The first question to a client runs all of its jobs."""
    missing = lacking()
    if missing is not None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)
    answers: dict[str, dict[str, Any]] = {}

    def result(case: Case, scenario: str) -> dict[str, Any]:
        if case.client not in answers:
            jobs = [each.job(name) for each in CASES if each.client == case.client for name in SCENARIOS]
            answers[case.client] = dict(zip(map(_key, jobs), _run(case.client, gateway, jobs), strict=True))
        found: dict[str, Any] = answers[case.client][_key(case.job(scenario))]
        return found

    return result


def _key(job: dict[str, Any]) -> str:
    return json.dumps(job, sort_keys=True)


def _run(client: str, base_url: str, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = subprocess.run(
        ["node", f"{client}.mjs"], input=json.dumps({"baseURL": base_url, "jobs": jobs}), capture_output=True, text=True, cwd=CLIENTS, timeout=80
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


Ask = Callable[[Case, str], dict[str, Any]]


def steps_of(result: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The answers of a loop that went well: every call one that the client takes, every id its own."""
    assert result["error"] is None, result["error"]
    steps: list[dict[str, Any]] = result["steps"]
    assert len(steps) == count, steps
    ids = [call["id"] for step in steps for call in step["calls"]]
    assert all(ids) and len(set(ids)) == len(ids)
    for step in steps:
        assert not any(call.get("invalid") for call in step["calls"]) and not step.get("invalid")
        if step.get("gathered") is not None:
            assert step["gathered"] == step["calls"], "put together by index, with names and ids appended, it is the same"
    return steps


def calls_of(step: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(call["name"], call["arguments"]) for call in step["calls"]]


# --- what works ----------------------------------------------------------------------------------------------------------------------------------

every_case = pytest.mark.parametrize("case", CASES, ids=str)


@every_case
def test_a_tool_loop_ends_in_an_answer_that_tells_the_tools_result(case: Case, ask: Ask) -> None:
    first, last = steps_of(ask(case, "weather"), 2)
    assert calls_of(first) == [("get_weather", {"city": "Paris"})]
    assert not first["text"]
    assert (last["text"], last["calls"]) == ("The tool said: rain in Paris.", [])
    assert (first["finish"], last["finish"]) == (finish(case, CALLED), finish(case, ENDED))
    assert [step["usage"] for step in (first, last)] == [{"input": 11, "output": 7}, {"input": 23, "output": 9}]


@every_case
def test_two_calls_of_one_answer_stay_two_calls_and_find_their_results(case: Case, ask: Ask) -> None:
    first, last = steps_of(ask(case, "parallel"), 2)
    assert calls_of(first) == [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Oslo"})]
    assert last["text"] == "The last tool said: rain in Oslo."


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
    if (case.client, case.api) == ("ai_sdk", "chat"):
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
def test_a_conversation_goes_on_with_what_was_said(case: Case, ask: Ask) -> None:
    first, second = steps_of(ask(case, "conversation"), 2)
    assert (first["text"], second["text"]) == ("The first answer.", "The second answer to: And now?")


@every_case
def test_an_answer_that_ran_out_of_room_says_so(case: Case, ask: Ask) -> None:
    result = ask(case, "short")
    if case.api == "runner" and not case.stream:
        assert result["error"]["name"] == "LengthFinishReasonError", "the runner takes no answer that was cut"
        return
    (only,) = steps_of(result, 1)
    assert (only["text"], only["finish"]) == ("This sentence has no", finish(case, SHORT))


# --- what fails ----------------------------------------------------------------------------------------------------------------------------------

FAILED_UNSEEN = "LangChain reads over response.failed: only a stream event with an `error` object of its own makes it throw"


def broken(case: Case) -> Any:
    unseen = case.stream and (case.client, case.api) == ("langchain", "responses")
    return pytest.param(case, marks=pytest.mark.xfail(strict=True, reason=FAILED_UNSEEN) if unseen else ())


@pytest.mark.parametrize("case", [broken(case) for case in CASES], ids=str)
@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("breaks", "The engine lost power."),
        ("breaks_after_call", "The engine lost power."),
        ("cut", "The model's answer broke off before it was complete."),
    ],
)
def test_an_answer_that_breaks_off_is_an_error_at_the_client(case: Case, scenario: str, message: str, ask: Ask) -> None:
    result = ask(case, scenario)
    assert result["error"] is not None and message in result["error"]["message"], result
    assert all(step["finish"] == "failed" for step in result["steps"]) and len(result["steps"]) <= 1, "the loop does not go on"
    if not case.stream:
        assert result["error"]["status"] == 502


@every_case
@pytest.mark.parametrize(("scenario", "status", "message"), [("refuses", 429, "Too many questions today."), ("missing", 404, "does not exist")])
def test_an_error_before_the_first_word_has_its_status_and_message(case: Case, scenario: str, status: int, message: str, ask: Ask) -> None:
    result = ask(case, scenario)
    assert result["steps"] == []
    assert result["error"]["status"] == status and message in result["error"]["message"], result


# --- the packages --------------------------------------------------------------------------------------------------------------------------------


def test_every_package_is_pinned_to_one_version() -> None:
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in PACKAGES.values())
    locked = json.loads((CLIENTS / "package-lock.json").read_text("utf-8"))["packages"]
    assert {name: locked[f"node_modules/{name}"]["version"] for name in PACKAGES} == PACKAGES


def test_the_lock_file_names_no_registry() -> None:
    locked = json.loads((CLIENTS / "package-lock.json").read_text("utf-8"))["packages"]
    assert [name for name, package in locked.items() if "resolved" in package] == []
    assert all("integrity" in package for name, package in locked.items() if name)

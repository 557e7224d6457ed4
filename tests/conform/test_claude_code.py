"""The real Claude Code on every strategy: what its tools did, what arrived at the gateway, what it answered.

Claude Code runs without a terminal, in a folder of its own, against a gateway of this process. `make test`
runs a few cells of strategy × scenario × look; `make evidence` sets TOOLWIRE_CLAUDE_CODE=all and runs every
cell. The fifth strategy is the real Codex, which waits while Claude Code runs its calls.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from doubles.claude_code import Desk, desk_with
from doubles.relay import DamagingRelay, Passing
from matrix import BY_NAME, installed
from toolwire.backends.base import Batch
from toolwire.backends.codex import CodexBackend, CodexOptions
from toolwire.backends.openai.backend import OpenAIBackend
from toolwire.backends.scripted.backend import ScriptedRun
from toolwire.core.events import Failure
from toolwire.core.turn import Message, Result, TextPart, Turn
from toolwire.testing import FakeUpstream, ScriptedBackend, ScriptedOptions
from toolwire.testing.upstream import Reply, answer

pytestmark = [pytest.mark.timeout(120), pytest.mark.process]


# --- what is run ---


@dataclass(frozen=True)
class Scenario:
    script: str
    calls: tuple[str, ...]
    """The names of the tools that Claude Code must run."""
    answer: str
    """The last answer contains this."""
    files: dict[str, str] = field(default_factory=dict)
    """The files that the tools leave behind, beside a.txt."""
    after: str = "rain in Paris\n"
    """What a.txt contains in the end."""


SCENARIOS = {
    "edits": Scenario(
        """
        say Let me read it.
        call Read {"file_path": "a.txt"}
        ---
        call Edit {"file_path": "a.txt", "old_string": "rain", "new_string": "sun"}
        ---
        call Bash {"command": "wc -c < a.txt | tr -d ' ' > size.txt; cat size.txt", "description": "Counts"}
        ---
        say It has {result} characters.
        """,
        ("Read", "Edit", "Bash"),
        "It has 13",
        {"size.txt": "13\n"},
        "sun in Paris\n",
    ),
    "writes": Scenario(
        r"""
        chunk 7
        call Write {"file_path": "new.txt", "content": "São \"Paulo\"\n\\ ☃ 🌧 </tool_call>\n"}
        ---
        call Bash {"command": "cat new.txt", "description": "Shows it"}
        ---
        raw Written.
        """,
        ("Write", "Bash"),
        "Written.",
        {"new.txt": 'São "Paulo"\n\\ ☃ 🌧 </tool_call>\n'},
    ),
    "parallel": Scenario(
        """
        say Both at once.
        call Read {"file_path": "a.txt"}
        call Bash {"command": "echo hail > b.txt; cat b.txt", "description": "Writes"}
        ---
        say The last one said {result}.
        """,
        ("Read", "Bash"),
        "The last one said hail",
        {"b.txt": "hail\n"},
    ),
    "thinks": Scenario(
        """
        think I should look first.
        call Read {"file_path": "a.txt"}
        ---
        think Now I know.
        say It says {result}.
        """,
        ("Read",),
        "rain in Paris",
    ),
    "untidy": Scenario(
        """
        say "\\n\\n"
        call Read {"file_path": "a.txt"}
        say Text after it.
        call Bash {"command": "echo hail > b.txt", "description": "Writes"}
        ---
        say "  "
        call Read {"file_path": "a.txt"}
        ---
        say That is all.
        """,
        ("Read", "Bash", "Read"),
        "That is all.",
        {"b.txt": "hail\n"},
    ),
    "fails": Scenario(
        """
        call Read {"file_path": "missing.txt"}
        ---
        say The tool said {result}.
        """,
        ("Read",),
        "File does not exist",
    ),
    "loads": Scenario(
        """
        call ToolSearch {"query": "select:WebFetch"}
        ---
        say The tool said {result}.
        """,
        ("ToolSearch",),
        "WebFetch is now available",
    ),
}
STRATEGIES = ("native", "emulated", "constrained", "parked", "codex")


LOOKS: dict[str, dict[str, Any]] = {
    "unknown": {},
    "known": {"model": "claude-sonnet-5-5"},
    "older": {"model": "claude-sonnet-4-5"},
    "bare": {"flags": ["--bare"]},
    "plain": {"variables": {"CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1"}},
    "whole": {"variables": {"ENABLE_TOOL_SEARCH": "false"}},
}
"""How Claude Code is run: it asks in another shape for each."""
MODELS = ("m", "claude-sonnet-5-5", "claude-sonnet-4-5")
NO_SEARCH = ("bare", "plain", "whole")
"""Looks in which tools are never hidden, and so never loaded."""
EVERY_CELL = [
    (strategy, scenario, look)
    for strategy in STRATEGIES
    for scenario in SCENARIOS
    for look in LOOKS
    if not (scenario == "loads" and (look in NO_SEARCH or look == "older"))
    if not (scenario == "writes" and look == "bare")  # which has no tool to write with
    # what a model writes after a call that is text is dropped on purpose
    if not (scenario == "untidy" and strategy in ("emulated", "constrained"))
]
FEW_CELLS = [
    *((strategy, "edits", "unknown") for strategy in ("native", "emulated", "constrained", "parked")),
    ("parked", "parallel", "known"),
    ("parked", "thinks", "older"),
    ("emulated", "writes", "plain"),
    ("native", "fails", "bare"),
    ("parked", "loads", "known"),
    ("parked", "untidy", "unknown"),
    ("codex", "edits", "known"),
]
CELLS = EVERY_CELL if os.environ.get("TOOLWIRE_CLAUDE_CODE") == "all" else FEW_CELLS


# --- where it runs ---


Sit = Callable[..., AbstractAsyncContextManager[Desk]]


@pytest.fixture
def sit(tmp_path: Path) -> Sit:
    """`async with sit(backend, **server) as desk`"""
    lacking = installed().lacking(BY_NAME["claude-code"])
    if lacking is not None:
        pytest.skip(lacking)
    return lambda backend, **server: desk_with(backend, MODELS, tmp_path, **server)


def scripted(script: str, tools: Any = "native") -> ScriptedBackend:
    return ScriptedBackend("m", ScriptedOptions(script=script, tools=tools))


@asynccontextmanager
async def serving(strategy: str, script: str, sit: Sit, tmp_path: Path) -> AsyncIterator[Desk]:
    """A gateway with this strategy. With `codex`, the script is the model behind the real Codex."""
    if strategy != "codex":
        async with sit(scripted(script, strategy)) as desk:
            yield desk
        return
    program = installed().codex
    if not program.exists():
        pytest.skip("Codex is missing: npm ci --prefix tests/codex/new")
    async with sit(scripted(script)) as provider:
        options: Any = {"model": "m", "home": str(tmp_path / "codex"), "bin": str(program)}
        codex = CodexBackend("m", CodexOptions(**options, provider={"base_url": f"{provider.url}/v1"}))
        async with sit(codex) as desk:
            yield desk


# --- tools ---


@pytest.mark.parametrize(("strategy", "scenario", "look"), CELLS, ids=map("-".join, CELLS))
async def test_claude_code_works_with_its_tools(
    strategy: str, scenario: str, look: str, sit: Sit, tmp_path: Path
) -> None:
    wanted = SCENARIOS[scenario]
    async with serving(strategy, wanted.script, sit, tmp_path) as desk:
        session = await desk.ask(**LOOKS[look])
    assert (session.status, session.result["is_error"]) == (0, False), session.result
    assert wanted.answer in session.answer
    calls = session.blocks("assistant", "tool_use")
    assert tuple(call["name"] for call in calls) == wanted.calls
    results = {block["tool_use_id"]: block for block in session.blocks("user", "tool_result")}
    assert results.keys() == {call["id"] for call in calls}
    assert [bool(result.get("is_error")) for result in results.values()] == [
        scenario == "fails" for _ in calls
    ]
    assert session.file("a.txt") == wanted.after
    assert {name: session.file(name) for name in wanted.files} == wanted.files
    if scenario == "thinks":
        assert [block["thinking"] for block in session.blocks("assistant", "thinking")][:1] == [
            "I should look first."
        ]
    check_turns(desk, wanted, strategy, scenario)


def check_turns(desk: Desk, wanted: Scenario, strategy: str, scenario: str) -> None:
    """Each answer is one turn. A run that waits for its results gets them, unless the tools have changed."""
    assert {(turn.api, turn.status) for turn in desk.turns} == {("messages", 200)}
    answers = wanted.script.count("---") + 1
    assert len(desk.turns) == answers
    assert all("unknown" not in turn.report for turn in desk.turns)
    first, *later = (turn.kind for turn in desk.turns)
    parks = strategy in ("parked", "codex")
    kind = "new" if not parks else "replayed" if scenario == "loads" else "resumed"
    assert (first, {*later}) == ("new", {kind})
    if parks and scenario != "loads":
        assert desk.parked == {"resumed": answers - 1, "expired": 0, "dropped": 0}


async def test_a_tool_that_failed_is_known_to_have_failed_and_a_loaded_tool_to_the_model(sit: Sit) -> None:
    backend = scripted(SCENARIOS["fails"].script)
    async with sit(backend) as desk:
        await desk.ask()
    (failed,) = [item for item in backend.seen[-1].items if isinstance(item, Result)]
    assert failed.is_error
    backend = scripted(SCENARIOS["loads"].script)
    async with sit(backend) as desk:
        await desk.ask()
    before, after = ({tool.name for tool in turn.tools} for turn in backend.seen)
    assert after - before == {"WebFetch"}


async def test_a_hidden_tool_that_the_model_calls_at_once_is_run(sit: Sit) -> None:
    """Its name is in the text of a message alone."""
    script = 'call TaskStop {"task_id": "none"}\n---\nsay The tool said {result}.'
    async with sit(scripted(script, "parked")) as desk:
        session = await desk.ask()
    assert [call["name"] for call in session.blocks("assistant", "tool_use")] == ["TaskStop"]
    assert session.status == 0 and "none" in session.answer


class WithSubagent(ScriptedBackend):
    """Another script answers the subagent, whose conversation begins with this prompt."""

    prompt = "Count the clouds."

    def __init__(self) -> None:
        ask = f'{{"description": "counts", "prompt": "{self.prompt}", "subagent_type": "general-purpose"}}'
        script = f"call Agent {ask}\n---\nsay The agent works."
        super().__init__("m", ScriptedOptions(script=script, tools="parked"))
        self.subagent = scripted(SCENARIOS["parallel"].script, "parked")

    def open(self, turn: Turn) -> ScriptedRun:
        first = turn.items[0]
        assert isinstance(first, Message)
        is_own = any(part == TextPart(self.prompt) for part in first.parts)
        return self.subagent.open(turn) if is_own else super().open(turn)


async def test_runs_of_a_session_and_of_its_subagent_wait_side_by_side(sit: Sit) -> None:
    backend = WithSubagent()
    async with sit(backend) as desk:
        session = await desk.ask()
    assert session.status == 0
    assert session.file("b.txt") == "hail\n"
    assert desk.parked == {"resumed": 2, "expired": 0, "dropped": 0}
    assert len(backend.subagent.seen) == 1, "its run was opened once, and continued"


async def test_claude_code_counts_its_context(sit: Sit) -> None:
    async with sit(scripted("say Never.")) as desk:
        session = await desk.ask(question="/context")
    assert (session.status, desk.turns) == (0, [])
    assert "POST /v1/messages/count_tokens" in desk.app.requests
    assert "Context Usage" in session.answer


async def test_a_slow_answer_is_waited_for(sit: Sit) -> None:
    """The stream begins with pings."""
    async with sit(scripted("pause 1s\nsay Late."), commit_after_s=0.1, keep_alive_s=0.1) as desk:
        session = await desk.ask()
    assert session.answer == "Late."
    assert [turn.stream for turn in desk.turns] == [True]


# --- failures ---


async def test_a_slow_failure_is_an_event_and_asked_again_without_streaming(sit: Sit) -> None:
    slow = scripted("pause 1s\nfail server The engine lost power.")
    async with sit(slow, commit_after_s=0.1) as desk:
        session = await desk.ask()
    assert session.status == 1 and "The engine lost power." in session.answer
    assert [turn.stream for turn in desk.turns] == [True, False]


async def test_a_model_that_is_overloaded_is_reported_as_such(sit: Sit) -> None:
    async with sit(scripted("fail overloaded The engine is busy.")) as desk:
        session = await desk.ask()
    assert session.status == 1
    assert session.result["api_error_status"] == 529
    assert "The engine is busy." in session.answer
    assert [turn.status for turn in desk.turns] == [529]


@pytest.mark.parametrize("end", ["fail server The engine lost power.", "cut"])
async def test_after_a_broken_answer_claude_code_asks_once_more_without_streaming(end: str, sit: Sit) -> None:
    async with sit(scripted(f"say Half an answer\n{end}")) as desk:
        session = await desk.ask()
    assert session.status == 1
    assert [turn.stream for turn in desk.turns] == [True, False]
    assert session.result["api_error_status"] == (502 if end == "cut" else 500)
    said = "The model's answer broke off" if end == "cut" else "The engine lost power."
    assert said in session.answer


async def test_a_call_that_a_failure_breaks_off_is_never_run(sit: Sit) -> None:
    """Nor is it answered with an error, after which Claude Code would ask without end."""
    script = 'chunk 3\ncall Bash {"command": "touch ran.txt\nfail server The engine lost power.'
    async with sit(scripted(script)) as desk:
        session = await desk.ask()
    assert session.status == 1
    assert session.blocks("user", "tool_result") == []
    assert not (session.folder / "ran.txt").exists()
    assert [turn.stream for turn in desk.turns] == [True, False]


async def test_a_run_that_fails_after_its_results_is_asked_again_from_the_history(sit: Sit) -> None:
    """The non-streamed repeat brings the same results: there is no run left that waits for them."""
    script = 'call Read {"file_path": "a.txt"}\n---\nsay Half\nfail server The engine lost power.'
    async with sit(scripted(script, "parked")) as desk:
        session = await desk.ask()
    assert session.status == 1 and "The engine lost power." in session.answer
    assert [(turn.kind, turn.stream) for turn in desk.turns] == [
        ("new", True),
        ("resumed", True),
        ("replayed", False),
    ]


@pytest.mark.parametrize("strategy", ["native", "parked"])
async def test_a_stream_that_is_cut_on_its_way_is_asked_for_again(strategy: str, sit: Sit) -> None:
    """The calls that Claude Code never saw are not run, and do not hold up the next run."""

    def cut_the_first(passing: Passing) -> None:
        if passing.streamed and not cut:
            cut.append(passing.path)
            passing.raw = passing.raw[: len(passing.raw) * 2 // 3]

    cut: list[str] = []
    async with sit(scripted(SCENARIOS["writes"].script, strategy)) as desk, DamagingRelay(desk.url) as relay:
        relay.damage = cut_the_first
        session = await desk.ask(baseURL=relay.base_url)
    assert cut == ["/messages"]
    assert session.status == 0 and session.answer == "Written."
    assert len(session.blocks("assistant", "tool_use")) == 2
    kind = "resumed" if strategy == "parked" else "new"
    assert [turn.kind for turn in desk.turns] == ["new", "new", kind, kind]


# --- an OpenAI-compatible server behind the gateway ---

READ = ("call_1", "Read", '{"file_path": "a.txt"}')


async def test_reasoning_and_calls_of_an_upstream_reach_claude_code_and_come_back(sit: Sit) -> None:
    asks = Reply.stream(answer("Let me look.", [READ], thought="I should look."))
    async with FakeUpstream(asks, Reply.stream(answer("It rains."))) as upstream:
        async with sit(openai_backend(upstream)) as desk:
            session = await desk.ask()
        first, second = upstream.requests
    assert session.answer == "It rains."
    assert [block["thinking"] for block in session.blocks("assistant", "thinking")] == ["I should look."]
    assert {"Read", "Bash"} <= {tool["function"]["name"] for tool in first.body["tools"]}
    *_, made, brought = second.body["messages"]
    assert [call["id"] for call in made["tool_calls"]] == ["call_1"]
    assert brought["tool_call_id"] == "call_1" and "rain in Paris" in brought["content"]


@pytest.mark.parametrize(
    ("reply", "streams"),
    [
        (Reply.error(503, "The engine is cold."), [True]),
        (Reply.stream(answer("Half an answer"), done=False).but(ending="reset"), [True, False]),
    ],
    ids=["before", "within"],
)
async def test_a_failing_upstream_ends_the_run_with_its_error(
    reply: Reply, streams: list[bool], sit: Sit
) -> None:
    cut = reply.but(frames=reply.frames[:-2]) if len(streams) > 1 else reply
    async with FakeUpstream(cut) as upstream, sit(openai_backend(upstream)) as desk:
        session = await desk.ask()
    assert session.status == 1 and session.result["is_error"]
    assert [turn.stream for turn in desk.turns] == streams
    assert session.result["api_error_status"] in (502, 503)


def openai_backend(upstream: FakeUpstream) -> OpenAIBackend:
    return OpenAIBackend("m", {"base_url": upstream.base_url, "profile": "generic"})


# --- a window that is too small, keys, models ---


class Narrow(ScriptedBackend):
    """The second request is longer than its context window."""

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        if len(self.seen) == 1:
            self.seen.append(turn)
            yield [Failure("context_length", "The request has 9000 tokens, and the model takes 8192.")]
            return
        async for batch in super().run(turn):
            yield batch


async def test_a_context_that_overflows_makes_claude_code_compact_the_conversation(sit: Sit) -> None:
    script = 'call Read {"file_path": "a.txt"}\n---\nsay <summary>It says {result}</summary>'
    backend = Narrow("m", ScriptedOptions(script=script))
    async with sit(backend) as desk:
        session = await desk.ask()
    assert session.status == 0, session.result
    assert "rain in Paris" in session.answer
    assert any(event.get("subtype") == "compact_boundary" for event in session.events)
    refused, summary, anew = list(backend.seen)[1:4]
    assert len(summary.items) == len(refused.items) + 1, "the request for a summary has the whole history"
    assert not any(isinstance(item, Result) for item in anew.items), "then the summary is the history"
    assert any("It says 1\train in Paris" in text for text in anew.words())


async def test_a_wrong_key_ends_the_run_at_once(sit: Sit) -> None:
    """Claude Code would try ten times over minutes."""
    async with sit(scripted("say Never."), keys=("right",)) as desk:
        session = await desk.ask(apiKey="wrong", variables={"CLAUDE_CODE_MAX_RETRIES": "10"})
        assert session.status == 1
        assert session.result["api_error_status"] == 401
        assert desk.turns == [] and desk.app.requests.count("POST /v1/messages") == 1
        session = await desk.ask(apiKey="right", question="Say it.")
        assert session.answer == "Never."
        session = await desk.ask(apiKey="wrong", variables={"ANTHROPIC_AUTH_TOKEN": "right"})
        assert session.answer == "Never.", "it sends both, and one of them is right"


async def test_claude_code_discovers_the_models_of_the_gateway(sit: Sit) -> None:
    variables = {
        "CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "",
    }
    async with sit(scripted("say Hello.")) as desk:
        session = await desk.ask(variables=variables)
    assert session.answer == "Hello."
    assert "GET /v1/models" in desk.app.requests

"""The demo model with the vault's tools: it does what the page suggests, and says that it is a script."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import toolwire
from doubles.notes import Person
from toolwire.backends.scripted.demo_vault import ABOUT, vault_answer, vault_call
from toolwire.core.turn import ToolSpec
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.types import Settings
from toolwire.testing import ScriptedBackend, ScriptedOptions
from toolwire.tools.approvals import Approvals
from toolwire.tools.contract import Asking, Decision
from toolwire.tools.executor import Executor
from toolwire.tools.loop import Called, Conversation, GatewayModel, SaidText, marked
from toolwire.tools.tour import SampleVault, sample_vault

WELCOME = Path(toolwire.__file__).parent / "surfaces" / "web" / "static" / "welcome.js"
YES = Decision(True)
BOTH = Decision(True, picked=("0", "1"))
# What the demo does with a suggestion: the tool, the person's decisions, words of the answer.
ANSWERS: dict[str, tuple[str, tuple[Decision, ...], tuple[str, ...]]] = {
    "What do my notes say about ": (
        "vault_search",
        (YES, BOTH),
        ("4 notes match *Lisbon*. You shared 2 with me:", "- `Travel/Lisbon"),
    ),
    "Which of my notes have open tasks?": (
        "vault_tasks",
        (YES,),
        ("3 tasks in 2 notes:", "- Choose a hotel (`Travel/Lisbon plan.md`, line 9)", "- Buy rye flour"),
    ),
    "Which tags do I use most?": (
        "vault_tags",
        (YES,),
        ("Your most used tag is #recipe.", "- #travel: 2 notes", "- #spring: 1 note"),
    ),
}


def suggestions() -> list[str]:
    """The ideas in welcome.js."""
    block = re.search(r"const IDEAS = \[(.*?)\n\]", WELCOME.read_text("utf-8"), re.DOTALL)
    assert block is not None
    return re.findall(r"'([^'\n]+)'", block[1])


@pytest.fixture
async def vault() -> AsyncIterator[SampleVault]:
    async with sample_vault() as opened:
        yield opened


async def asked(
    approvals: Approvals, vault: SampleVault, question: str, *decisions: Any, tools: str = "native"
) -> tuple[list[str], str]:
    """Asks the demo; returns the tools that it called, and its answer."""
    backend = ScriptedBackend("demo", ScriptedOptions(tools=tools))  # type: ignore[arg-type]
    gateway = Gateway(Settings(), backends={"demo": backend})
    executor = Executor(vault.toolbox, approvals, Person(approvals, *decisions))
    one = Conversation(GatewayModel(gateway), "demo", executor, Asking("s", "demo", "test"))
    called, said = [], []
    async with aclosing(one.turn(question)) as happenings:
        async for happening in happenings:
            if isinstance(happening, Called):
                called += [call.name for call in happening.calls]
            elif isinstance(happening, SaidText):
                said.append(happening.text)
    return called, "".join(said)


def test_each_suggestion_of_the_page_has_an_answer() -> None:
    assert sorted(suggestions()) == sorted(ANSWERS)


@pytest.mark.parametrize("tools", ["native", "emulated"])
@pytest.mark.parametrize("idea", suggestions())
async def test_the_demo_does_what_the_page_suggests(
    approvals: Approvals, vault: SampleVault, idea: str, tools: str
) -> None:
    tool, decisions, words = ANSWERS[idea]
    question = f"{idea}Lisbon?" if idea.endswith(" ") else idea
    called, said = await asked(approvals, vault, question, *decisions, tools=tools)
    assert called == [tool]
    assert all(one in said for one in words), said
    assert said.strip().endswith(ABOUT) and "untrusted data" not in said and "{" not in said


async def test_a_denied_call_is_answered_in_prose(approvals: Approvals, vault: SampleVault) -> None:
    _, said = await asked(approvals, vault, "Which tags do I use most?", Decision(False, reason="Not now."))
    assert said.startswith("You denied vault_tags, so it did not run, and I know nothing more.")
    assert "Not now." in said and ABOUT in said


async def test_none_shared_none_read_and_a_question_that_fits_no_suggestion(
    approvals: Approvals, vault: SampleVault
) -> None:
    none = Decision(True, picked=())
    _, said = await asked(approvals, vault, "What do my notes say about Lisbon?", YES, none)
    assert said.startswith("4 notes match *Lisbon*. You shared none of them with me.")
    called, said = await asked(approvals, vault, "Good morning!")
    assert called == [] and said.startswith("You said: Good morning!\n\nI am Toolwire's demo model.")


def test_results_of_other_tools_are_shown_as_they_are() -> None:
    assert vault_answer("note_links", marked({"result": {"links": []}})) == (
        'note_links returned:\n\n```json\n{\n "links": []\n}\n```'
    )
    assert vault_answer("vault_tags", marked({"result": 5})) == "vault_tags returned:\n\n```json\n5\n```"
    assert vault_answer("get_weather", "18 degrees") is None
    assert vault_answer("vault_search", '{"result": {}}') is None, "a client's own tool of this name"


def test_a_tool_with_the_same_name_and_another_schema_is_not_called_this_way() -> None:
    other = ToolSpec("vault_tasks", "", {"type": "object", "required": ["owner"]})
    assert vault_call([other], "Which of my notes have open tasks?") is None


@pytest.mark.parametrize(
    ("question", "tool", "arguments"),
    [
        ("Which tasks are open?", "vault_tasks", {"status": "open"}),
        ("Summarize Travel/Lisbon plan.md", "file_read", {"filePaths": ["Travel/Lisbon plan.md"]}),
        ("What is in `Diary.md`?", "file_read", {"filePaths": ["Diary.md"]}),
    ],
)
def test_the_demo_understands_a_few_other_words(question: str, tool: str, arguments: dict[str, Any]) -> None:
    call = vault_call([ToolSpec(tool, "", {"type": "object"})], question)
    assert call is not None and call.name == tool and json.loads(call.text) == arguments

"""The checklist of the first specification of the vault tools, tested end to end."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from toolwire.core.turn import Call, Message, Result
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.types import Settings, ToolSettings
from toolwire.surfaces import cards
from toolwire.testing import ScriptedBackend, ScriptedOptions
from toolwire.tools.approvals import Approvals
from toolwire.tools.contract import Approval, Asking, Decision
from toolwire.tools.executor import Executor, Toolbox
from toolwire.tools.loop import Called, Conversation, Did, Ended, GatewayModel, Happening, SaidText
from toolwire.tools.vault_lookups import Library
from toolwire.tools.vault_tools import tools_of

NOTES = {
    "Programming/TypeScript Basics.md": "TypeScript is a typed superset of JavaScript.\n",
    "Programming/Vue.md": "Vue is another framework.\n",
    "Notes/React.md": "# React\n\nReact is a JavaScript library for machine learning dashboards.\n",
}
YES = Decision(True)


class Modal:
    """A scripted person. Records what the screen would show, and what had been sent to the model by then."""

    def __init__(self, approvals: Approvals, answers: Sequence[Any]) -> None:
        self.approvals = approvals
        self.answers = list(answers)
        self.shown: list[Approval] = []
        self.rounds: list[int] = []

    async def ask(self, approvals: Sequence[Approval]) -> bool:
        self.rounds.append(len(approvals))
        for approval in approvals:
            self.shown.append(approval)
            answer = self.answers.pop(0)
            await self.approvals.decide(
                approval, answer(approval) if callable(answer) else answer, by="the person"
            )
        return False


class Chat:
    def __init__(
        self,
        library: Library,
        approvals: Approvals,
        script: str,
        answers: Sequence[Any],
        tools: Any,
        unknown: Any,
    ) -> None:
        self.toolbox = Toolbox(tools_of(library))
        self.backend = ScriptedBackend("m", ScriptedOptions(script=script, tools=tools))
        self.gateway = Gateway(
            Settings(tools=ToolSettings(unknown_tool=unknown)), backends={"m": self.backend}
        )
        self.modal = Modal(approvals, answers)
        executor = Executor(self.toolbox, approvals, self.modal)
        self.conversation = Conversation(
            GatewayModel(self.gateway), "m", executor, Asking("chat_1", "m", "test")
        )

    async def send(self, text: str) -> list[Happening]:
        async with aclosing(self.conversation.turn(text)) as happenings:
            return [happening async for happening in happenings]

    def card(self, number: int = -1) -> str:
        """The question as a screen shows it."""
        approval = self.modal.shown[number]
        return cards.plain(cards.card(approval, self.toolbox.tools[approval.tool]))

    def told(self, number: int = -1) -> Any:
        """The result of a tool, read from the history of the model."""
        results = [message["content"] for message in self.conversation.messages if message["role"] == "tool"]
        found = re.fullmatch(
            r"\[untrusted data (\w+): .*\]\n(.*)\n\[end of data \1\]", results[number], re.DOTALL
        )
        assert found is not None
        return json.loads(found[2])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "vault"
    for path, text in NOTES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.fixture
async def chat(folder: Path, tmp_path: Path, approvals: Approvals) -> AsyncIterator[Callable[..., Chat]]:
    library = Library(folder, cache=tmp_path / "cache")
    made: list[Chat] = []

    def make(script: str, *answers: Any, tools: str = "native", unknown: str = "text") -> Chat:
        made.append(Chat(library, approvals, script, answers, tools, unknown))
        return made[-1]

    yield make
    for one in made:
        await one.gateway.close()
    library.close()


def everything(approval: Approval) -> Decision:
    return Decision(True, picked=tuple(one.key for one in approval.shown.touched if not one.missing))


def only(path: str) -> Callable[[Approval], Decision]:
    return lambda approval: Decision(
        True, picked=tuple(one.key for one in approval.shown.touched if one.path == path)
    )


def said(happenings: Sequence[Happening]) -> str:
    return "".join(one.text for one in happenings if isinstance(one, SaidText))


def search(query: str, **more: Any) -> str:
    return f"call vault_search {json.dumps({'query': query, **more})}"


def read(*paths: str) -> str:
    return f"call file_read {json.dumps({'filePaths': paths})}"


# --- Functional Validation ----------------------------------------------------------------------


async def test_vault_search_finds_files_by_name(chat: Callable[..., Chat]) -> None:
    one = chat(f"{search('typescript', limit=5)}\n---\nsay Found.", YES, everything)
    await one.send("What do I have on TypeScript?")
    (first,) = one.told()["result"]["results"]
    assert (first["path"], first["basename"]) == ("Programming/TypeScript Basics.md", "TypeScript Basics")
    assert first["preview"].startswith("TypeScript is a typed superset of JavaScript.")


async def test_vault_search_finds_files_by_content(chat: Callable[..., Chat]) -> None:
    one = chat(f"{search('machine learning')}\n---\nsay Found.", YES, everything)
    await one.send("What do I have on machine learning?")
    assert [result["path"] for result in one.told()["result"]["results"]] == ["Notes/React.md"]


async def test_file_read_returns_content(chat: Callable[..., Chat]) -> None:
    one = chat(f"{read('Notes/React.md')}\n---\nsay Read.", everything)
    await one.send("Read my note on React.")
    (file,) = one.told()["result"]
    assert (file["path"], file["content"], file["size"]) == (
        "Notes/React.md",
        NOTES["Notes/React.md"],
        len(NOTES["Notes/React.md"]),
    )


async def test_the_approval_appears_before_anything_happens(chat: Callable[..., Chat]) -> None:
    one = chat(f"{read('Notes/React.md')}\n---\nsay Read.", everything)

    def look_first(approval: Approval) -> Decision:
        assert len(one.backend.seen) == 1
        assert "JavaScript library" not in repr(list(one.backend.seen))
        return everything(approval)

    one.modal.answers = [look_first]
    await one.send("Read my note on React.")
    assert [(approval.tool, approval.stage, approval.model) for approval in one.modal.shown] == [
        ("file_read", "run", "m")
    ]
    assert len(one.backend.seen) == 2


async def test_the_approval_shows_correct_info(chat: Callable[..., Chat]) -> None:
    one = chat(
        f"{search('machine learning', limit=10)}\n---\n{read('Notes/React.md', 'Gone.md')}\n---\nsay Done.",
        YES,
        everything,
        everything,
    )
    await one.send("Go.")
    asked, shared, reading = (one.card(number) for number in range(3))
    assert "vault_search: Search the vault" in asked
    assert 'query: "machine learning"' in asked and "limit: 10" in asked
    assert "asked by m" in asked
    assert "Notes/React.md" in shared and "machine learning dashboards" in shared
    assert (
        f"Notes/React.md  ({len(NOTES['Notes/React.md'])} B)" in reading and "Gone.md  (not found)" in reading
    )
    assert "Nothing has been read yet" in reading


async def test_file_selection_works(chat: Callable[..., Chat]) -> None:
    one = chat(f"{read('Notes/React.md', 'Programming/Vue.md')}\n---\nsay Read.", only("Notes/React.md"))
    await one.send("Compare React and Vue.")
    assert [file["path"] for file in one.told()["result"]] == ["Notes/React.md"]
    assert one.told()["note"] == "The person allowed 1 of the 2 that were asked for."
    assert "another framework" not in repr(list(one.backend.seen))


async def test_nothing_is_selected_beforehand(chat: Callable[..., Chat]) -> None:
    one = chat(f"{read('Notes/React.md')}\n---\nsay Read.", Decision(True, picked=()))
    await one.send("Read my note on React.")
    assert one.told()["result"] == []


async def test_approve_executes_the_tool(chat: Callable[..., Chat], folder: Path) -> None:
    write = json.dumps({"filePath": "Notes/New.md", "content": "hello\n"})
    one = chat(f"call note_write {write}\n---\nsay Written.", YES)
    happened = await one.send("Write a note.")
    assert (folder / "Notes/New.md").read_text() == "hello\n"
    assert [step.outcome.status for step in happened if isinstance(step, Did)] == ["done"]


@pytest.mark.parametrize(
    "call",
    [
        search("typescript"),
        read("Notes/React.md"),
        'call note_write {"filePath": "Notes/New.md", "content": "x"}',
    ],
)
async def test_cancel_prevents_execution(chat: Callable[..., Chat], folder: Path, call: str) -> None:
    one = chat(f"{call}\n---\nsay Understood.", Decision(False))
    happened = await one.send("Go.")
    (did,) = [step.outcome for step in happened if isinstance(step, Did)]
    assert one.told() == {"error": "User cancelled tool execution"}
    assert did.notice == f"Tool execution cancelled: {did.call.name}"
    assert not (folder / "Notes/New.md").exists()
    assert "superset" not in repr(list(one.backend.seen)) and "library for" not in repr(
        list(one.backend.seen)
    )


async def test_multiple_tools_work_in_sequence(chat: Callable[..., Chat]) -> None:
    script = (
        f"{search('typescript')}\n---\n{read('Programming/TypeScript Basics.md')}\n---\n"
        "call vault_list {}\n---\nsay All done."
    )
    one = chat(script, YES, everything, everything, YES)
    happened = await one.send("Look around.")
    assert [call.name for step in happened if isinstance(step, Called) for call in step.calls] == [
        "vault_search",
        "file_read",
        "vault_list",
    ]
    assert [step.outcome.status for step in happened if isinstance(step, Did)] == ["done", "done", "done"]
    assert said(happened) == "All done."


async def test_several_calls_of_one_answer_are_shown_together_and_run_in_order(
    chat: Callable[..., Chat],
) -> None:
    one = chat(
        f"{read('Notes/React.md')}\n{read('Programming/Vue.md')}\n---\nsay Done.",
        everything,
        Decision(False, reason="only React"),
    )
    happened = await one.send("Read both.")
    assert one.modal.rounds == [2]
    assert [step.outcome.status for step in happened if isinstance(step, Did)] == ["done", "denied"]
    assert one.told(0)["result"][0]["path"] == "Notes/React.md"
    assert one.told(1) == {"error": "User cancelled tool execution", "reason": "only React"}


# --- Error Handling -----------------------------------------------------------------------------


async def test_an_unknown_tool_is_reported_to_model_and_person_without_asking(
    chat: Callable[..., Chat],
) -> None:
    one = chat("call delete_everything {}\n---\nsay Sorry.", unknown="forward")
    happened = await one.send("Go.")
    (did,) = [step.outcome for step in happened if isinstance(step, Did)]
    assert one.told() == {"error": "Unknown tool: delete_everything"}
    assert did.notice == "Unknown tool: delete_everything"
    assert one.modal.shown == []


async def test_a_tool_error_is_reported_and_the_conversation_continues(chat: Callable[..., Chat]) -> None:
    one = chat('call note_links {"filePath": "Gone.md"}\n---\nsay It is gone.', YES)
    happened = await one.send("Go.")
    (did,) = [step.outcome for step in happened if isinstance(step, Did)]
    assert one.told() == {"error": "File not found: Gone.md"}
    assert did.notice == "Tool execution error: File not found: Gone.md"
    assert said(happened) == "It is gone."


async def test_a_file_that_is_not_found_is_a_partial_result(chat: Callable[..., Chat]) -> None:
    one = chat(f"{read('Gone.md', 'Notes/React.md')}\n---\nsay Done.", everything)
    await one.send("Go.")
    assert sorted(
        (file["path"], file["content"][:14], file["size"] > 0) for file in one.told()["result"]
    ) == [("Gone.md", "File not found", False), ("Notes/React.md", "# React\n\nReact", True)]


async def test_an_unreadable_file_is_a_partial_result(chat: Callable[..., Chat], folder: Path) -> None:
    (folder / "Broken.md").write_bytes(b"\xff\xfe")
    one = chat(f"{read('Broken.md', 'Notes/React.md')}\n---\nsay Done.", everything)
    await one.send("Go.")
    told = {file["path"]: file for file in one.told()["result"]}
    assert told["Broken.md"]["content"].startswith("Error reading file: ") and told["Broken.md"]["size"] == 0
    assert told["Notes/React.md"]["size"] > 0


# --- the flow, end to end -----------------------------------------------------------------------


@pytest.mark.parametrize("tools", ["native", "emulated", "constrained", "parked"])
async def test_the_conversation_continues_with_the_results_of_the_whole_flow(
    chat: Callable[..., Chat], approvals: Approvals, tools: str
) -> None:
    """Message, tools, call, decision, run, answer with the result, and the next message."""
    script = f"say Let me look.\n{search('javascript library')}\n---\n{read('Notes/React.md')}\n---\n"
    script += "say React is a library.\n---\nsay You are welcome."
    one = chat(script, YES, only("Notes/React.md"), everything, tools=tools)
    happened = await one.send("What is React?")
    kinds = [type(step).__name__ for step in happened if not isinstance(step, SaidText)]
    assert kinds == ["Called", "Did", "Called", "Did", "Ended"]
    assert said(happened).endswith("React is a library.")
    assert isinstance(happened[-1], Ended) and happened[-1].why == "done"

    roles = [message["role"] for message in one.conversation.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    calls = [call["id"] for message in one.conversation.messages for call in message.get("tool_calls", ())]
    assert calls == [
        message["tool_call_id"] for message in one.conversation.messages if message["role"] == "tool"
    ]
    assert "machine learning dashboards" in repr(
        one.backend.live[-1]._turn if tools == "parked" else one.backend.seen[-1]
    )

    assert [
        (approval.tool, approval.stage, approval.status)
        for approval in reversed(await approvals.records.listed())
    ] == [
        ("vault_search", "run", "approved"),
        ("vault_search", "share", "approved"),
        ("file_read", "run", "approved"),
    ]
    audit = [entry["event"] for entry in reversed(await approvals.records.audit())]
    assert audit == ["approved", "approved", "ran", "approved", "ran"]
    assert "JavaScript" not in repr(await approvals.records.audit())

    thanks = await one.send("Thank you.")
    assert said(thanks) == "You are welcome."


async def test_the_results_go_back_in_the_tool_role_of_the_same_calls(chat: Callable[..., Chat]) -> None:
    one = chat(f"{read('Notes/React.md')}\n---\nsay Read.", everything)
    await one.send("Read it.")
    second = one.backend.seen[-1]
    assert [type(item) for item in second.items] == [Message, Call, Result]
    call, result = second.items[1:]
    assert isinstance(call, Call) and isinstance(result, Result) and result.call_id == call.call_id


async def test_tools_are_offered_only_if_they_are_enabled(chat: Callable[..., Chat]) -> None:
    assert Settings().vault.enabled is False
    one = chat("say Hello.")
    await one.send("Hi")
    assert {tool.name for tool in one.backend.seen[-1].tools} >= {"vault_search", "file_read"}
    one.conversation.executor = None
    await one.send("Hi again")
    assert one.backend.seen[-1].tools == ()

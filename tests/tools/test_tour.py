"""The tour's script reacts to what the person decided, through the real executor, approvals and loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from doubles.notes import Person
from toolwire.backends.scripted import demo_vault, tour
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.types import Settings
from toolwire.tools import executor
from toolwire.tools.approvals import Approvals
from toolwire.tools.contract import Asking, Decision
from toolwire.tools.executor import Executor
from toolwire.tools.loop import Conversation, Did, Ended, GatewayModel, SaidText
from toolwire.tools.tour import SampleVault, hint, sample_vault

YES, NO = Decision(True), Decision(False)
ALL = Decision(True, picked=("0", "1", "2", "3"))
BOTH = Decision(True, picked=(tour.HOTELS, tour.PLAN))


class Visitor:
    """A person on the tour, with their decisions."""

    def __init__(self, approvals: Approvals, vault: SampleVault, *decisions: Any) -> None:
        gateway = Gateway(Settings(), backends={tour.MODEL: tour.tour_model()})
        self.person = Person(approvals, *decisions)
        self.vault = vault
        self.outcomes: list[str] = []
        asking = Asking("tour_1", tour.MODEL, "test", source=f"vault:{vault.root}")
        tools = Executor(vault.toolbox, approvals, self.person)
        self.conversation = Conversation(GatewayModel(gateway), tour.MODEL, tools, asking)

    async def send(self, text: str = tour.OPENING) -> str:
        """Sends a message and returns what the script says."""
        said = []
        async with aclosing(self.conversation.turn(text)) as happenings:
            async for happening in happenings:
                if isinstance(happening, SaidText):
                    said.append(happening.text)
                elif isinstance(happening, Did):
                    self.outcomes.append(f"{happening.outcome.call.name} {happening.outcome.status}")
                elif isinstance(happening, Ended):
                    assert happening.why == "done", happening
        return "".join(said)

    def note(self, path: str) -> str:
        return (self.vault.root / path).read_text("utf-8")

    @property
    def hints(self) -> list[str]:
        return [hint(one).partition(":")[0] for asked in self.person.shown for one in asked]


@pytest.fixture
async def vault() -> AsyncIterator[SampleVault]:
    async with sample_vault() as opened:
        yield opened


def results(found: Any) -> dict[str, str]:
    """The keys of a search's results, by path."""
    return {one.path: one.key for one in found.shown.touched}


class Chooser(Person):
    """Shares the plan and the hotels, but not the diary."""

    async def ask(self, approvals: Any) -> bool:
        if approvals[0].stage == "share":
            keys = results(approvals[0])
            assert set(keys) >= {tour.PLAN, tour.HOTELS, tour.DIARY}
            self.decisions.insert(0, Decision(True, picked=(keys[tour.PLAN], keys[tour.HOTELS])))
        return await super().ask(approvals)


async def test_the_tour_as_suggested(approvals: Approvals, vault: SampleVault) -> None:
    one = Visitor(approvals, vault)
    why = Decision(False, reason="It is my diary.")
    one.conversation.executor.surface = one.person = Chooser(approvals, YES, BOTH, YES, why)  # type: ignore[union-attr]
    said = await one.send()
    assert one.outcomes == ["vault_search done", "file_read done", "note_edit done", "note_write denied"]
    assert one.hints == [
        f"Step {number} of 5, {name}"
        for number, name in enumerate(("search", "share", "read", "edit", "deny"), 1)
    ]
    assert "You shared 2 of 4 results" in said and "there are 2 more, but not which" in said
    assert "The best offer is Casa do Rio, 84 a night." in said
    assert "- [x] Choose a hotel: Casa do Rio, 84 a night" in one.note(tour.PLAN)
    assert one.note(tour.DIARY) == tour.NOTES[tour.DIARY]
    assert "everything that I received" in said and "It is my diary." in said and tour.END in said
    assert said.startswith("I am a **script**")
    sent = [
        json.loads(call["function"]["arguments"])
        for m in one.conversation.messages
        for call in m.get("tool_calls", ())
    ]
    assert "baseHash" in sent[2], "the edit relies on the text that was read"


async def test_every_call_denied(approvals: Approvals, vault: SampleVault) -> None:
    one = Visitor(approvals, vault, NO, NO, NO, NO)
    said = await one.send()
    assert [outcome.split()[1] for outcome in one.outcomes] == ["denied"] * 4
    assert said.count(f'"error": "{executor.CANCELLED}"') == 4 and tour.END in said
    assert "A real model would not know their names now." in said
    assert {path: one.note(path) for path in tour.NOTES} == tour.NOTES


async def test_results_that_are_not_shared_and_arguments_that_are_edited(
    approvals: Approvals, vault: SampleVault
) -> None:
    query = Decision(True, arguments={"query": "custard"})
    edit = {"oldText": "- [ ] Choose a hotel", "newText": "- [x] A hotel with a view"}
    edited = Decision(True, arguments={"filePath": tour.PLAN, "edits": [edit]})
    one = Visitor(approvals, vault, query, Decision(True, picked=()), Decision(True, picked=()), edited, YES)
    said = await one.send()
    assert "You shared none of 1 result." in said
    assert (
        'You changed my call, and the result says so: *The person changed the arguments to: {"query"' in said
    )
    assert "I have read none of the notes." in said
    assert "- [x] A hotel with a view" in one.note(tour.PLAN)
    assert "You allowed it" in said and one.note(tour.DIARY) == "# Diary\n\nTidied up.\n"
    assert tour.END in said


async def test_a_search_that_finds_nothing(approvals: Approvals, vault: SampleVault) -> None:
    one = Visitor(
        approvals,
        vault,
        Decision(True, arguments={"query": "zeppelin"}),
        Decision(True, picked=()),
        BOTH,
        NO,
        NO,
    )
    assert "The search found nothing." in await one.send()


async def test_the_script_reads_what_was_shared(approvals: Approvals, vault: SampleVault) -> None:
    one = Visitor(approvals, vault, Decision(True, arguments={"query": "rye"}), Decision(True, picked=("0",)))
    await one.send()
    (read,) = one.person.shown[2]
    assert (read.tool, read.arguments["filePaths"]) == ("file_read", ["Kitchen/Bread.md"])


async def test_a_question_that_expires_is_asked_again_after_the_next_message(
    approvals: Approvals, vault: SampleVault
) -> None:
    one = Visitor(approvals, vault, YES, ALL)  # the reading is not decided
    said = await one.send()
    assert one.outcomes[-1] == "file_read expired"
    assert "silence is never consent" in said and "Step 4" not in said
    one.person.decisions = [Decision(True, picked=()), NO, NO]
    assert tour.END in await one.send("Go on.")
    assert one.outcomes[2:] == ["file_read done", "note_edit denied", "note_write denied"]
    assert "The tour is over" in await one.send("And now?")


async def test_a_stopped_tour_goes_on_with_the_same_step(approvals: Approvals, vault: SampleVault) -> None:
    one = Visitor(approvals, vault, "leave")
    task = asyncio.ensure_future(one.send())
    while not one.person.shown:
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    one.person.decisions = [NO, NO, NO, NO]
    assert tour.END in await one.send("Go on.")
    assert [asked[0].tool for asked in one.person.shown] == [
        "vault_search",
        "vault_search",
        "file_read",
        "note_edit",
        "note_write",
    ]


async def test_without_tools_the_script_says_so(approvals: Approvals, vault: SampleVault) -> None:
    one = Visitor(approvals, vault)
    one.conversation.executor = None
    assert "I cannot call a tool of the sample vault now." in await one.send()


async def test_the_sample_vault_is_new_each_time_and_deleted_at_the_end() -> None:
    async with sample_vault() as one, sample_vault() as other:
        assert one.root != other.root
        (one.root / tour.DIARY).unlink()
        assert (other.root / tour.DIARY).exists()
        roots: list[Path] = [one.root, other.root]
    assert not any(root.parent.exists() for root in roots)


def test_the_script_knows_the_errors_of_the_executor() -> None:
    assert (demo_vault.DENIED, tour.EXPIRED) == (executor.CANCELLED, executor.NO_DECISION)

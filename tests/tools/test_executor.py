"""The executor: nothing runs before its grant, what is granted is what runs, and results are correct."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from msgspec import convert

from doubles.notes import Notes, Person
from toolwire.tools.approvals import Approvals
from toolwire.tools.contract import Approval, Asking, Decision, Outcome, Preview, Ran, ToolCall, ToolFailed
from toolwire.tools.executor import (
    CANCELLED,
    NO_DECISION,
    NOT_CHANGED,
    TOO_MANY,
    UNEXPECTED,
    Executor,
    Toolbox,
)

ASKING = Asking("session-1", "model-1", "test")
YES, NO = Decision(True), Decision(False)


def call(name: str, number: int = 1, **arguments: Any) -> ToolCall:
    return ToolCall(f"call_{number}", name, json.dumps(arguments))


class Desk:
    """An executor over a folder of notes, and a person who decides."""

    def __init__(self, approvals: Approvals, notes: Notes) -> None:
        self.approvals = approvals
        self.notes = notes
        self.person = Person(approvals)
        self.steps_when_asked: list[list[str]] = []

    async def run(self, calls: Sequence[ToolCall], *decisions: Decision) -> list[Outcome]:
        self.person = Person(
            self.approvals, *decisions, before=lambda: self.steps_when_asked.append(list(self.notes.steps))
        )
        return await Executor(Toolbox(self.notes.tools()), self.approvals, self.person).execute(calls, ASKING)

    async def one(self, one: ToolCall, *decisions: Decision) -> Outcome:
        return (await self.run([one], *decisions))[0]

    async def events(self) -> list[str]:
        return [entry["event"] for entry in reversed(await self.approvals.records.audit())]


@pytest.fixture
def desk(approvals: Approvals, notes: Notes) -> Desk:
    return Desk(approvals, notes)


BOTH = ["Projects/Alpha.md", "Diary.md"]


async def test_nothing_runs_before_the_grant(desk: Desk) -> None:
    outcome = await desk.one(call("file_read", filePaths=BOTH), Decision(True, picked=tuple(BOTH)))
    assert desk.steps_when_asked == [[]]
    assert desk.notes.steps == ["read Projects/Alpha.md", "read Diary.md"]
    assert [one["content"] for one in outcome.result["result"]] == ["The alpha plan.", "alpha was hard"]
    assert (outcome.status, outcome.shared, outcome.notice) == ("done", tuple(BOTH), "")


async def test_a_denied_call_touches_nothing_and_the_model_gets_the_reason(desk: Desk) -> None:
    outcome = await desk.one(call("file_read", filePaths=BOTH), Decision(False, reason="my diary is private"))
    assert desk.notes.steps == []
    assert (
        outcome.result == {"error": CANCELLED, "reason": "my diary is private"}
        and CANCELLED == "User cancelled tool execution"
    )
    assert (outcome.status, outcome.notice, outcome.shared) == (
        "denied",
        "Tool execution cancelled: file_read",
        (),
    )
    assert await desk.events() == ["denied"]


async def test_a_denial_without_a_reason_has_none(desk: Desk) -> None:
    assert (await desk.one(call("vault_search", query="alpha"), NO)).result == {"error": CANCELLED}


async def test_a_missing_decision_is_not_reported_as_a_denial(desk: Desk) -> None:
    outcome = await desk.one(call("vault_search", query="alpha"))
    assert (outcome.status, outcome.result) == ("expired", {"error": NO_DECISION})
    assert desk.notes.steps == [] and await desk.events() == ["expired"]


async def test_only_picked_files_are_read_and_the_model_is_informed(desk: Desk) -> None:
    outcome = await desk.one(
        call("file_read", filePaths=[*BOTH, "Gone.md"]), Decision(True, picked=("Diary.md",))
    )
    assert desk.notes.steps == ["read Diary.md"]
    assert outcome.shared == ("Diary.md",)
    assert outcome.result["note"] == "The person allowed 1 of the 2 that were asked for."
    missing = {"path": "Gone.md", "content": "File not found: Gone.md", "size": 0}
    assert outcome.result["result"][1] == missing


async def test_no_note_is_added_if_all_existing_files_are_picked(desk: Desk) -> None:
    outcome = await desk.one(
        call("file_read", filePaths=[*BOTH, "Gone.md"]), Decision(True, picked=tuple(BOTH))
    )
    assert "note" not in outcome.result


async def test_edited_arguments_run_as_edited_and_the_model_is_informed(desk: Desk) -> None:
    outcome = await desk.one(
        call("file_read", filePaths=BOTH), Decision(True, arguments={"filePaths": ["Projects/Beta.md"]})
    )
    assert desk.notes.steps == ["read Projects/Beta.md"]
    assert (
        outcome.result["note"] == 'The person changed the arguments to: {"filePaths": ["Projects/Beta.md"]}'
    )


async def test_invalid_edited_arguments_run_nothing(desk: Desk) -> None:
    outcome = await desk.one(call("file_read", filePaths=BOTH), Decision(True, arguments={"filePaths": 3}))
    assert desk.notes.steps == [] and outcome.status == "failed" and "filePaths" in outcome.result["error"]


async def test_a_search_needs_a_second_grant_and_shares_what_was_picked(desk: Desk) -> None:
    outcome = await desk.one(call("vault_search", query="alpha"), YES, Decision(True, picked=("1",)))
    assert desk.steps_when_asked == [[], ["search alpha"]]
    assert [[one.stage for one in shown] for shown in desk.person.shown] == [["run"], ["share"]]
    assert [one["path"] for one in outcome.result["result"]] == ["Projects/Alpha.md"]
    assert (outcome.result["found"], outcome.result["shared"]) == (3, 1)


async def test_the_second_question_of_a_search_shows_exactly_what_would_be_shared(desk: Desk) -> None:
    await desk.one(call("vault_search", query="plan"), YES, Decision(True, picked=("0",)))
    (found,) = desk.person.shown[1][0].shown.touched
    assert (found.path, found.snippet) == ("Projects/Alpha.md", "The alpha plan.") and desk.person.shown[1][
        0
    ].shown.pick


async def test_the_model_learns_nothing_about_results_that_are_not_shared(desk: Desk) -> None:
    outcome = await desk.one(call("vault_search", query="alpha"), YES, Decision(False, reason="no"))
    assert outcome.result == {"error": CANCELLED, "reason": "no"} and outcome.shared == ()
    assert await desk.events() == ["approved", "denied", "ran"]


async def test_sharing_no_results_is_reported_as_such(desk: Desk) -> None:
    outcome = await desk.one(call("vault_search", query="alpha"), YES, Decision(True, picked=()))
    assert outcome.result == {"result": [], "found": 3, "shared": 0}


async def test_the_schema_s_defaults_are_shown_and_used(desk: Desk) -> None:
    await desk.one(call("vault_search", query="alpha"), NO)
    assert desk.person.shown[0][0].arguments == {"query": "alpha", "limit": 10}


async def test_a_write_is_shown_as_a_diff_and_done_once_granted(desk: Desk) -> None:
    outcome = await desk.one(call("note_write", path="Diary.md", content="alpha was easy"), YES)
    assert desk.person.shown[0][0].shown.diff.splitlines()[-2:] == ["-alpha was hard", "+alpha was easy"]
    assert (desk.notes.folder / "Diary.md").read_text() == "alpha was easy"
    assert outcome.shared == ("Diary.md",)


# --- several calls ------------------------------------------------------------------------------


async def test_the_calls_of_one_turn_are_asked_for_together_and_run_in_order(desk: Desk) -> None:
    calls = [
        call("note_write", 1, path="New.md", content="x"),
        call("file_read", 2, filePaths=["New.md"]),
        call("nothing", 3),
    ]
    outcomes = await desk.run(calls, YES, Decision(False))
    assert [[one.tool for one in shown] for shown in desk.person.shown] == [["note_write", "file_read"]]
    assert [(one.call.id, one.status) for one in outcomes] == [
        ("call_1", "done"),
        ("call_2", "denied"),
        ("call_3", "unknown"),
    ]
    assert desk.notes.steps == ["write New.md"]


async def test_calls_run_one_after_the_other(desk: Desk) -> None:
    names = [f"{number}.md" for number in range(5)]
    await desk.run(
        [call("note_write", number, path=name, content=name) for number, name in enumerate(names)], *[YES] * 5
    )
    assert desk.notes.steps == [f"write {name}" for name in names]


# --- what goes wrong ----------------------------------------------------------------------------


async def test_an_unknown_tool_is_reported_without_asking(desk: Desk) -> None:
    outcome = await desk.one(call("rm_rf", path="/"))
    assert (outcome.result, outcome.notice) == ({"error": "Unknown tool: rm_rf"}, "Unknown tool: rm_rf")
    assert outcome.status == "unknown" and desk.person.shown == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        ("{}", "query"),
        ('{"query": 3}', "query"),
        ('{"query": "x", "limit": 99}', "limit"),
    ],
)
async def test_invalid_arguments_are_an_error_for_the_model_without_asking(
    desk: Desk, arguments: str, words: str
) -> None:
    outcome = await desk.one(ToolCall("call_1", "vault_search", arguments))
    assert outcome.status == "failed" and words in outcome.result["error"] and desk.person.shown == []
    assert outcome.notice == f"Tool execution error: {outcome.result['error']}"


async def test_a_tool_error_is_returned_as_text(desk: Desk) -> None:
    outcome = await desk.one(call("fails", how="told"), YES)
    assert (outcome.status, outcome.result, outcome.notice) == (
        "failed",
        {"error": "the disk is full"},
        "Tool execution error: the disk is full",
    )
    assert await desk.events() == ["approved", "failed"]


async def test_only_the_person_sees_the_text_of_an_unexpected_tool_error(desk: Desk) -> None:
    """An unexpected error may contain text that nobody granted, for example results of a search."""
    outcome = await desk.one(call("fails", how="badly"), YES)
    assert (outcome.result, outcome.notice) == ({"error": UNEXPECTED}, "Tool execution error: a bug")


@pytest.mark.parametrize(
    ("how", "problem"), [("preview", "it can not be planned"), ("preview badly", UNEXPECTED)]
)
async def test_a_call_that_cannot_be_planned_is_asked_about_like_any_other(
    desk: Desk, how: str, problem: str
) -> None:
    denied = await desk.one(call("fails", how=how), NO)
    assert [one.shown.problem for one in desk.person.shown[0]] == [problem]
    assert denied.result == {"error": CANCELLED}
    assert (await desk.one(call("fails", how=how))).result == {"error": NO_DECISION}
    approved = await desk.one(call("fails", how=how), YES)
    assert (approved.status, approved.result) == ("failed", {"error": problem})
    assert desk.notes.steps == []
    assert await desk.events() == ["denied", "expired", "approved", "failed"]


async def test_the_text_of_an_unexpected_error_is_not_in_the_question(desk: Desk) -> None:
    await desk.one(call("fails", how="preview badly"), NO)
    assert "a bug" not in str(desk.person.shown)


# --- what is refused without a question ---------------------------------------------------------


@pytest.mark.parametrize(
    "one", [call("rm_rf", path="/"), ToolCall("c", "vault_search", "{"), call("vault_search", query=3)]
)
async def test_a_call_that_is_refused_without_a_question_is_in_the_audit_log(
    desk: Desk, one: ToolCall
) -> None:
    await desk.one(one)
    (line,) = await desk.approvals.records.audit()
    assert (line["event"], line["tool"], line["session"], line["model"]) == (
        "refused",
        one.name,
        "session-1",
        "model-1",
    )
    assert len(line["arguments_sha256"]) == 64 and desk.person.shown == []


async def test_the_number_of_waiting_questions_of_a_session_is_limited(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolwire.tools.approvals.MOST_WAITING", 3)
    outcomes = await desk.run([call("vault_search", number, query="x") for number in range(5)], *[NO] * 5)
    assert [one.result for one in outcomes] == [{"error": CANCELLED}] * 3 + [{"error": TOO_MANY}] * 2
    assert len(desk.person.shown[0]) == 3
    assert sorted(await desk.events()) == ["denied"] * 3 + ["refused"] * 2
    assert (await desk.one(call("vault_search", query="x"), NO)).result == {
        "error": CANCELLED
    }  # those that were decided wait no longer


async def test_the_limit_is_per_session_and_ignores_calls_that_a_grant_covers(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.one(
        call("file_read", filePaths=["Diary.md"]), Decision(True, picked=("Diary.md",), remember="tool")
    )
    monkeypatch.setattr("toolwire.tools.approvals.MOST_WAITING", 1)
    executor = Executor(Toolbox(desk.notes.tools()), desk.approvals, None)
    waiting = asyncio.ensure_future(executor.execute([call("vault_search", query="x")], ASKING))
    while not await desk.approvals.pending():
        await asyncio.sleep(0.01)
    assert (await desk.one(call("vault_search", query="x"), NO)).result == {"error": TOO_MANY}
    assert (await desk.one(call("file_read", filePaths=["Diary.md"]))).status == "done"
    other = Executor(Toolbox(desk.notes.tools()), desk.approvals, Person(desk.approvals, NO))
    (denied,) = await other.execute([call("vault_search", query="x")], Asking("session-2", "model-1", "test"))
    assert denied.result == {"error": CANCELLED}
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_search_results_are_not_shared_if_too_many_questions_wait(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.one(call("vault_search", query="x"), Decision(True, remember="tool"), NO)
    monkeypatch.setattr("toolwire.tools.approvals.MOST_WAITING", 0)
    for query in ("alpha", "nowhere at all"):
        assert (await desk.one(call("vault_search", query=query), YES)).result == {"error": TOO_MANY}


# --- grants that were given beforehand ----------------------------------------------------------


async def test_under_a_standing_grant_a_failed_change_has_no_reason(desk: Desk) -> None:
    class Refuses:
        name, title, purpose, description, effect = "change", "Change", "Changes.", "Changes.", "write"
        parameters: ClassVar[dict[str, Any]] = {"type": "object"}

        async def preview(self, arguments: Any) -> Preview:
            if arguments["when"] == "preview":
                raise ToolFailed("line 3 is not what you said")
            return Preview(summary="Changes.")

        async def run(self, arguments: Any, picked: Any, shown: Preview) -> Ran:
            raise (
                ToolFailed("line 4 is not what you said")
                if arguments["when"] == "run"
                else RuntimeError("line 5")
            )

        def share(self, ran: Ran, picked: Any) -> Any:
            return ran.value

    toolbox = Toolbox([Refuses()])  # type: ignore[list-item]

    async def told(when: str, *decisions: Decision) -> Outcome:
        return (
            await Executor(toolbox, desk.approvals, Person(desk.approvals, *decisions)).execute(
                [call("change", when=when)], ASKING
            )
        )[0]

    assert (await told("preview", YES)).result == {"error": "line 3 is not what you said"}
    assert (await told("run", Decision(True, remember="tool"))).result == {
        "error": "line 4 is not what you said"
    }
    granted = [await told(when) for when in ("preview", "run", "badly")]
    assert [one.result for one in granted] == [{"error": NOT_CHANGED}] * 3
    assert "line 3" in granted[0].notice and "line 4" in granted[1].notice  # the person's own


async def test_arguments_edited_without_a_preview_get_no_reason_either(desk: Desk) -> None:
    """`toolwire approvals approve --arguments` shows no preview of the edited arguments."""
    outcome = await desk.one(
        call("vault_search", query="x"), Decision(True, arguments={"query": "alpha"}), NO
    )
    assert outcome.status == "denied"
    outcome = await desk.one(call("fails", how="told"), Decision(True, arguments={"how": "preview"}))
    assert outcome.result == {"error": UNEXPECTED} and desk.notes.steps == ["search alpha"]


async def test_a_question_stored_before_the_problem_field_existed_is_read() -> None:
    assert convert({"touched": [], "diff": "", "summary": "s", "pick": False}, Preview) == Preview(
        summary="s"
    )


async def test_the_other_calls_run_even_if_one_fails(desk: Desk) -> None:
    outcomes = await desk.run(
        [call("fails", 1, how="told"), call("vault_search", 2, query="nowhere")],
        YES,
        YES,
        Decision(True, picked=()),
    )
    assert [one.status for one in outcomes] == ["failed", "done"]


async def test_every_run_is_in_the_audit_log_by_hash_and_size(desk: Desk) -> None:
    await desk.one(call("file_read", filePaths=["Diary.md"]), Decision(True, picked=("Diary.md",)))
    ran = (await desk.approvals.records.audit())[0]
    assert (
        ran["event"] == "ran"
        and ran["bytes"] > 0
        and len(ran["result_sha256"]) == 64
        and "alpha was hard" not in str(ran)
    )


async def test_stopping_during_a_question_runs_nothing_and_leaves_nothing_pending(
    approvals: Approvals, notes: Notes
) -> None:
    asked = asyncio.Event()

    class Waits:
        async def ask(self, approvals: Sequence[Approval]) -> bool:
            asked.set()
            await asyncio.Event().wait()
            return False

    executor = Executor(Toolbox(notes.tools()), approvals, Waits())
    task = asyncio.ensure_future(executor.execute([call("file_read", filePaths=BOTH)], ASKING))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert notes.steps == [] and [one.status for one in await approvals.records.listed()] == ["expired"]


async def test_a_remembered_grant_runs_without_asking_and_is_logged(desk: Desk) -> None:
    await desk.one(
        call("file_read", filePaths=["Projects/Alpha.md"]),
        Decision(True, picked=("Projects/Alpha.md",), remember="folder", folder="Projects"),
    )
    outcome = await desk.one(call("file_read", filePaths=["Projects/Beta.md"]))
    assert outcome.status == "done" and desk.person.shown == []
    outside = await desk.one(call("file_read", filePaths=["Projects/Beta.md", "Diary.md"]))
    assert outside.status == "expired" and len(desk.person.shown) == 1


async def test_the_tools_are_offered_in_the_form_of_a_chat_request(notes: Notes) -> None:
    offered = Toolbox(notes.tools()).definitions()
    assert [one["function"]["name"] for one in offered] == [
        "vault_search",
        "file_read",
        "note_write",
        "fails",
    ]
    assert all(
        one["type"] == "function" and one["function"]["parameters"]["type"] == "object" for one in offered
    )


async def test_a_call_that_is_stopped_while_it_runs_is_in_the_audit_log(desk: Desk) -> None:
    running = asyncio.Event()

    class Slow:
        name, title, purpose, description, effect = "slow", "Slow", "Takes its time.", "Slow.", "read"
        parameters: ClassVar[dict[str, Any]] = {"type": "object"}

        async def preview(self, arguments: Any) -> Preview:
            return Preview()

        async def run(self, arguments: Any, picked: Any, shown: Preview) -> Ran:
            running.set()
            await asyncio.Event().wait()
            raise AssertionError

        def share(self, ran: Ran, picked: Any) -> Any:
            return ran.value

    toolbox = Toolbox([Slow()])  # type: ignore[list-item]
    executor = Executor(toolbox, desk.approvals, Person(desk.approvals, YES))
    task = asyncio.ensure_future(executor.execute([call("slow")], ASKING))
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await desk.events() == ["approved", "stopped"]


async def test_an_edited_call_does_not_run_if_its_preview_has_changed(desk: Desk) -> None:
    asked = call("file_read", filePaths=["Diary.md"])
    edited = {"filePaths": ["Projects/Alpha.md"]}
    seen = (await desk.notes.tools()[1].preview(edited)).digest
    assert (await desk.one(asked, Decision(True, arguments=edited, seen=seen))).status == "done"
    outcome = await desk.one(asked, Decision(True, arguments=edited, seen="another"))
    assert outcome.status == "failed" and "has changed since" in outcome.result["error"]


async def test_a_lone_surrogate_in_the_arguments_is_refused_without_asking(desk: Desk) -> None:
    outcome = await desk.one(ToolCall("c", "vault_search", '{"query": "\\ud800"}'), YES)
    assert (
        outcome.status == "failed"
        and "half a character" in outcome.result["error"]
        and await desk.events() == ["refused"]
    )


async def test_the_reason_of_a_failure_is_sent_to_the_model_and_not_stored(desk: Desk) -> None:
    outcome = await desk.one(
        call("vault_search", query="x"), Decision(True, arguments={"query": {"secret": "diary"}})
    )
    assert "diary" in outcome.result["error"] and "diary" not in str(await desk.approvals.records.audit())

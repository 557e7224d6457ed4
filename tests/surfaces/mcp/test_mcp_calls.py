"""The vault over MCP with the official SDK's client: by form, by inbox or by neither."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from toolwire.surfaces.mcp import results
from toolwire.surfaces.mcp import server as mcp_server
from toolwire.tools.contract import Decision

both_eras = pytest.mark.parametrize("mode", ["legacy", "auto"])
YES = {"approve": True}
PATHS = ["Programming/TypeScript Basics.md", "Programming/React.md", "Diary.md"]


async def test_the_tools_are_listed_with_their_schemas_and_correct_hints(serve: Callable[..., Any]) -> None:
    async with serve().client() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) >= {
        "vault_search",
        "file_read",
        "vault_list",
        "vault_tags",
        "note_links",
        "note_write",
        "note_edit",
    }
    assert tools["vault_search"].input_schema["required"] == ["query"]
    hints = {
        name: (tool.annotations.read_only_hint, tool.annotations.destructive_hint)
        for name, tool in tools.items()
        if tool.annotations
    }
    assert hints["file_read"] == (True, False)
    assert hints["note_write"] == hints["note_edit"] == (False, True)


# --- by form ------------------------------------------------------------------------------------


@both_eras
async def test_a_search_is_asked_for_twice_and_shares_what_was_picked(
    serve: Any, form: Any, data: Any, mode: str
) -> None:
    person = form(YES, {**YES, "share_2": True})
    async with serve().client(mode, person) as client:
        result = await client.call_tool("vault_search", {"query": "javascript"})
    told = data(result)
    assert len(person.shown) == 2
    assert "Nothing has been searched yet" in person.shown[0].message
    assert "share_1" not in person.fields(0)
    picked = person.fields(1)["share_2"]["title"]
    assert [one["path"] for one in told["result"]["results"]] == [path for path in PATHS if path in picked]
    assert (told["found"], told["shared"]) == (3, 1)


@both_eras
async def test_a_read_shares_the_files_that_were_ticked_and_no_other(
    serve: Any, form: Any, data: Any, text: Any, mode: str
) -> None:
    person = form({**YES, "share_1": True})
    async with serve().client(mode, person) as client:
        result = await client.call_tool(
            "file_read", {"filePaths": ["Programming/React.md", "Diary.md", "gone.md"]}
        )
    told = data(result)
    assert [(one["path"], one["content"]) for one in told["result"]] == [
        ("Programming/React.md", "# React\n\nReact is a JavaScript library.\n"),
        ("gone.md", "File not found: gone.md"),
    ]
    assert told["note"] == "The person allowed 1 of the 2 that were asked for."
    assert "Zulu-4711" not in text(result)
    assert [name for name in person.fields() if name.startswith("share")] == ["share_1", "share_2"]


@both_eras
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("decline", "User cancelled tool execution"),
        ("cancel", "User cancelled tool execution"),
        ({"approve": False, "reason": "too private"}, "User cancelled tool execution\nReason: too private"),
    ],
)
async def test_a_refusal_is_an_error_with_the_same_message_as_on_every_surface(
    serve: Any, form: Any, text: Any, mode: str, answer: Any, words: str
) -> None:
    served = serve()
    async with served.client(mode, form(answer)) as client:
        result = await client.call_tool("file_read", {"filePaths": ["Diary.md"]})
    assert result.is_error
    assert text(result) == words
    assert [one.status for one in await served.approvals.records.listed()] == ["denied"]


@both_eras
async def test_a_search_that_ran_may_still_share_nothing(serve: Any, form: Any, text: Any, mode: str) -> None:
    async with serve().client(mode, form(YES, "decline")) as client:
        result = await client.call_tool("vault_search", {"query": "launch code"})
    assert result.is_error and "Zulu-4711" not in text(result)


@both_eras
async def test_a_change_shows_its_diff_and_is_written_as_shown(
    serve: Any, form: Any, data: Any, mode: str
) -> None:
    served = serve()
    before = (served.vault / "Diary.md").read_bytes()
    person = form(YES)
    edit = {
        "filePath": "Diary.md",
        "edits": [{"oldText": "Zulu-4711", "newText": "0815"}],
        "baseHash": hashlib.sha256(before).hexdigest(),
    }
    async with served.client(mode, person) as client:
        told = data(await client.call_tool("note_edit", edit))
    assert "-Learned some JavaScript today. The launch code is Zulu-4711." in person.shown[0].message
    assert "+Learned some JavaScript today. The launch code is 0815." in person.shown[0].message
    after = (served.vault / "Diary.md").read_bytes()
    assert after == before.replace(b"Zulu-4711", b"0815")
    assert told["result"] == {
        "path": "Diary.md",
        "sha256": hashlib.sha256(after).hexdigest(),
        "created": False,
    }


@both_eras
async def test_a_denied_change_changes_nothing(serve: Any, form: Any, mode: str) -> None:
    served = serve()
    async with served.client(mode, form("decline")) as client:
        result = await client.call_tool("note_write", {"filePath": "New.md", "content": "x"})
    assert result.is_error
    assert not (served.vault / "New.md").exists()


async def test_a_form_is_cancelled_when_the_question_is_decided_elsewhere(
    serve: Any, form: Any, data: Any, inbox: Any
) -> None:
    async with serve().client("legacy", form("hang")) as client:
        calling = asyncio.ensure_future(client.call_tool("file_read", {"filePaths": ["Diary.md"]}))
        await inbox.decide(await inbox.next(), Decision(True, picked=("Diary.md",)))
        assert "Zulu-4711" in data(await calling)["result"][0]["content"]


async def test_an_unknown_tool_and_wrong_arguments_are_error_results(
    serve: Any, form: Any, text: Any
) -> None:
    served = serve()
    person = form()
    async with served.client("auto", person) as client:
        unknown = await client.call_tool("rm", {})
        wrong = await client.call_tool("vault_search", {"query": "x", "limit": 1000})
        missing = await client.call_tool("note_links", {"filePath": "gone.md"})
    assert unknown.is_error and text(unknown) == "Unknown tool: rm"
    assert wrong.is_error and text(wrong).startswith("limit: ")
    assert missing.is_error  # put away by the person: nothing is told of a note that was not granted
    assert text(missing) == "User cancelled tool execution"
    assert len(person.shown) == 1


async def test_the_person_sees_the_client_s_name_as_the_requester(serve: Any, form: Any) -> None:
    person = form("decline")
    async with serve().client("auto", person) as client:
        await client.call_tool("vault_tags", {})
    assert "asked by test-client 1.0" in person.shown[0].message


async def test_a_client_with_an_endless_hidden_name_fills_neither_the_form_nor_the_log(
    serve: Any, form: Any
) -> None:
    person, tools = form("decline"), serve()
    name = "Toolwire\n\x1b[2J\u202e" + "x" * 100_000
    told = types.Implementation(name=name, version="1")
    async with Client(tools.server.server, elicitation_callback=person, client_info=told) as client:
        await client.call_tool("vault_tags", {})
    assert "asked by Toolwire ⏎ ␛[2J⟨U+202E⟩xx" in person.shown[0].message
    assert {len(row["model"]) for row in await tools.approvals.records.audit()} == {200}


# --- since 2026-07-28: a request ends with its question -----------------------------------------


async def _first_round(client: Any, arguments: dict[str, Any]) -> Any:
    return await client.session.call_tool("file_read", arguments, allow_input_required=True)


async def test_a_request_state_is_valid_for_one_answer_to_the_same_call(
    serve: Any, form: Any, text: Any
) -> None:
    served = serve()
    async with served.client("auto", form()) as client:
        asked = await _first_round(client, {"filePaths": ["Diary.md"]})
        (id,) = asked.input_requests
        yes = {id: types.ElicitResult(action="accept", content={"approve": True, "share_1": True})}
        other = await client.session.call_tool(
            "file_read",
            {"filePaths": ["Programming/React.md"]},
            input_responses=yes,
            request_state=asked.request_state,
        )
        assert other.is_error and text(other) == mcp_server.OVER
        forged = await client.session.call_tool(
            "file_read", {"filePaths": ["Diary.md"]}, input_responses=yes, request_state="guessed"
        )
        assert forged.is_error and text(forged) == mcp_server.OVER
        again = {"input_responses": yes, "request_state": asked.request_state}
        first = await client.session.call_tool("file_read", {"filePaths": ["Diary.md"]}, **again)
        assert not first.is_error and "Zulu-4711" in text(first)
        second = await client.session.call_tool("file_read", {"filePaths": ["Diary.md"]}, **again)
        assert second.is_error and text(second) == mcp_server.OVER


async def test_an_answer_to_another_question_is_ignored(serve: Any, form: Any) -> None:
    served = serve()
    async with served.client("auto", form()) as client:
        asked = await _first_round(client, {"filePaths": ["Diary.md"]})
        wrong = {
            "appr_other": types.ElicitResult(action="accept", content={"approve": True, "share_1": True})
        }
        again = await client.session.call_tool(
            "file_read",
            {"filePaths": ["Diary.md"]},
            input_responses=wrong,
            request_state=asked.request_state,
            allow_input_required=True,
        )
        assert list(again.input_requests) == list(asked.input_requests)
        assert again.request_state == asked.request_state
        assert [one.status for one in await served.approvals.records.listed()] == ["pending"]


async def test_the_first_decision_counts_if_a_form_comes_back_too_late(
    serve: Any, form: Any, inbox: Any, text: Any
) -> None:
    async with serve().client("auto", form()) as client:
        asked = await _first_round(client, {"filePaths": ["Diary.md"]})
        await inbox.decide(await inbox.next(), Decision(False, reason="not now"))
        yes = dict.fromkeys(
            asked.input_requests,
            types.ElicitResult(action="accept", content={"approve": True, "share_1": True}),
        )
        late = await client.session.call_tool(
            "file_read", {"filePaths": ["Diary.md"]}, input_responses=yes, request_state=asked.request_state
        )
    assert late.is_error and text(late) == "User cancelled tool execution\nReason: not now"


# --- by inbox -----------------------------------------------------------------------------------


@both_eras
async def test_without_elicitation_the_question_waits_in_the_inbox(
    serve: Any, inbox: Any, data: Any, mode: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(mcp_server, "PROGRESS_EVERY_S", 0.05)
    heard: list[str] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    served = serve()
    async with served.client(mode) as client:
        calling = asyncio.ensure_future(
            client.call_tool("vault_search", {"query": "launch"}, progress_callback=progress)
        )
        run = await inbox.next()
        while not any(run.id in words for words in heard):
            await asyncio.sleep(0.01)
        await inbox.decide(run, Decision(True))
        share = await inbox.next([run.id])
        assert (run.stage, share.stage) == ("run", "share")
        await inbox.decide(share, Decision(True, picked=("0",)))
        told = data(await calling)
    assert told["result"]["results"][0]["path"] == "Diary.md"
    assert any(run.id in line for line in served.told)


@both_eras
async def test_a_question_without_a_decision_expires_and_the_result_names_the_inbox(
    serve: Any, text: Any, mode: str
) -> None:
    served = serve(lifetime_s=0.3)
    async with served.client(mode) as client:
        result = await client.call_tool("file_read", {"filePaths": ["Diary.md"]})
    assert result.is_error
    assert "toolwire approvals" in text(result) and "did not run" in text(result)
    assert [one.status for one in await served.approvals.records.listed()] == ["expired"]


async def test_the_inbox_is_used_if_the_client_s_forms_fail(
    serve: Any, form: Any, inbox: Any, data: Any
) -> None:
    async with serve().client("legacy", form("error")) as client:
        calling = asyncio.ensure_future(client.call_tool("vault_list", {}))
        await inbox.decide(await inbox.next(), Decision(True))
        assert data(await calling)["result"]["files"] == [{"path": "Diary.md", "size": 61}]


async def test_the_inbox_can_be_the_only_channel(serve: Any, form: Any, inbox: Any, data: Any) -> None:
    person = form(YES)
    async with serve(form=False).client("auto", person) as client:
        calling = asyncio.ensure_future(client.call_tool("vault_tags", {}))
        await inbox.decide(await inbox.next(), Decision(True))
        assert data(await calling)["result"] == {"tags": []}
    assert person.shown == []


# --- not at all ---------------------------------------------------------------------------------


@both_eras
async def test_without_elicitation_and_without_inbox_the_call_is_refused(
    serve: Any, text: Any, mode: str
) -> None:
    served = serve(inbox=False)
    async with served.client(mode) as client:
        result = await client.call_tool("file_read", {"filePaths": ["Diary.md"]})
    assert result.is_error
    assert text(result) == results.NO_CHANNEL
    assert [one.status for one in await served.approvals.records.listed()] == ["expired"]


async def test_a_remembered_grant_counts_if_nobody_can_be_asked(
    serve: Any, form: Any, data: Any, text: Any
) -> None:
    asked = serve()
    async with asked.client("auto") as client:
        calling = asyncio.ensure_future(client.call_tool("vault_tags", {}))
        while not (pending := await asked.approvals.pending()):
            await asyncio.sleep(0.02)
        await asked.approvals.decide(pending[0], Decision(True, remember="tool"), by="test")
        await calling
    silent = serve(inbox=False)
    async with silent.client("auto") as client:
        assert data(await client.call_tool("vault_tags", {}))["result"] == {"tags": []}
        (grant,) = await silent.approvals.records.grants()
        assert await silent.approvals.revoke(grant.id)
        assert text(await client.call_tool("vault_tags", {})) == results.NO_CHANNEL


@both_eras
async def test_a_question_expires_if_its_client_disconnects(
    serve: Any, form: Any, inbox: Any, mode: str
) -> None:
    served = serve()
    async with served.client(mode, form("hang")) as client:
        calling = asyncio.ensure_future(client.call_tool("file_read", {"filePaths": ["Diary.md"]}))
        approval = await inbox.next()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
    await served.server.calls.close()
    async with asyncio.timeout(20):  # it is written by whoever was stopped, in its own time
        while (
            found := await inbox.approvals.records.get(approval.id)
        ) is not None and found.status == "pending":
            await asyncio.sleep(0.02)
    assert found is not None and found.status == "expired"


async def test_the_number_of_waiting_calls_is_limited(
    serve: Any, text: Any, monkeypatch: Any, inbox: Any
) -> None:
    monkeypatch.setattr("toolwire.surfaces.mcp.calls.MOST_OPEN", 2)
    async with serve().client("auto") as client:
        waiting = [asyncio.ensure_future(client.call_tool("vault_tags", {})) for _ in range(2)]
        while len(await inbox.approvals.pending()) < 2:
            await asyncio.sleep(0.02)
        assert text(await client.call_tool("vault_tags", {})) == mcp_server.TOO_MANY
        for one in await inbox.approvals.pending():
            await inbox.decide(one, Decision(False))
        assert all(one.is_error for one in await asyncio.gather(*waiting))

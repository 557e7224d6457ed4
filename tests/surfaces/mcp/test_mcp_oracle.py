"""A client without any grant tries to read a note by the errors of its calls to `toolwire mcp --inbox`."""

from __future__ import annotations

import asyncio
import hashlib
import string
from typing import Any

from mcp import Client

from toolwire.tools.contract import Decision
from toolwire.tools.executor import CANCELLED

SECRET = "PIN: 4711\n"
NOTE = "Bank.md"
ABSENT = "☠ no such text ☠"
TOGETHER = 40
"""Calls at once; fewer than the questions that may wait."""


def edit(*edits: tuple[str, str]) -> tuple[str, dict[str, Any]]:
    return "note_edit", {"filePath": NOTE, "edits": [{"oldText": old, "newText": new} for old, new in edits]}


def probes() -> list[tuple[str, dict[str, Any]]]:
    """For each guess of the next letter, a call that would fail differently if it is right."""
    guesses = ["PIN: " + letter for letter in string.digits + "abcx"]
    calls = [edit((guess, guess + "☃"), (ABSENT, "x")) for guess in guesses]
    calls += [edit((guess, guess + "☃"), (guess + "☃", guess)) for guess in guesses]
    for text in (SECRET, "PIN: 4712\n", ""):
        digest = hashlib.sha256(text.encode()).hexdigest()
        calls += [
            ("note_write", {"filePath": NOTE, "content": text}),
            ("note_write", {"filePath": NOTE, "content": text, "baseHash": digest}),
        ]
        calls += [("note_edit", {**edit(("4711", "0000"))[1], "baseHash": digest})]
    calls += [("vault_search", {"query": guess}) for guess in ("4711", "4712")]
    calls += [
        ("file_read", {"filePaths": [NOTE], "ranges": [{"filePath": NOTE, "startLine": line}]})
        for line in (1, 9)
    ]
    return calls


async def answers(client: Client, text: Any, calls: list[tuple[str, dict[str, Any]]]) -> list[str]:
    told: list[str] = []
    for first in range(0, len(calls), TOGETHER):
        results = await asyncio.gather(*(client.call_tool(*call) for call in calls[first : first + TOGETHER]))
        assert all(result.is_error for result in results)
        told += [text(result) for result in results]
    return told


async def test_failures_reveal_nothing_about_a_note(process: Any, inbox: Any, text: Any) -> None:
    (process.vault / NOTE).write_text(SECRET)
    calls = probes()

    async def deny() -> None:
        while True:
            for approval in await inbox.approvals.pending():
                await inbox.decide(approval, Decision(False))
            await asyncio.sleep(0.02)

    denying = asyncio.ensure_future(deny())
    try:
        async with Client(process.parameters("--inbox")) as client:
            told = await answers(client, text, calls)
    finally:
        denying.cancel()
        await asyncio.gather(denying, return_exceptions=True)
    assert set(told) == {CANCELLED}
    lines = await inbox.approvals.records.audit(1000)
    assert [line["event"] for line in lines] == ["denied"] * len(calls)
    assert (process.vault / NOTE).read_text() == SECRET


async def test_calls_without_a_decision_reveal_nothing_about_a_note(
    process: Any, inbox: Any, text: Any
) -> None:
    (process.vault / NOTE).write_text(SECRET)
    calls = probes()[:TOGETHER]
    async with Client(process.parameters("--inbox", "--lifetime", "2")) as client:
        told = await answers(client, text, calls)
    assert len(set(told)) == 1 and "Nobody decided" in told[0]
    assert [line["event"] for line in await inbox.approvals.records.audit(1000)] == ["expired"] * len(calls)

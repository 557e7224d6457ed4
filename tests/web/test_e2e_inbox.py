"""The inbox in Chromium: questions of a chat and of another process, decisions, grants and the log."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

READ = {"m": {"script": 'call file_read {"filePaths": ["Tea.md", "Coffee.md"]}\n---\nsay I have read it.'}}

REQUESTER = """
import asyncio, json, sys
from toolwire.store.store import Store
from toolwire.tools.approvals import Approvals, Question
from toolwire.tools.contract import Asking, Preview, Touched

given = json.loads(sys.argv[1])

async def main():
    store = Store(given["store"])
    shown = Preview((Touched("Tea.md", "Tea.md", 40), Touched("Milk.md", "Milk.md", 60)), pick=True)
    asking = Asking("mcp_session", given["model"], "mcp", source="vault:/home/ada/Other vault")
    question = Question("file_read", "run", {"filePaths": ["Tea.md", "Milk.md"]}, shown)
    (decided,) = await Approvals(store, lifetime_s=given["lifetime_s"]).ask(asking, [question], None)
    decision = decided.decision.to_json() if decided.decision else {}
    print(json.dumps({"status": decided.status, "by": decided.decided_by, **decision}))
    await store.close()

asyncio.run(main())
"""


class Requester:
    """Another process on the same store, like an MCP server: it asks one question and waits."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def decision(self) -> dict[str, Any]:
        """The decision it received."""
        out, errors = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, errors
        found: dict[str, Any] = json.loads(out)
        return found


@pytest.fixture
def ask() -> Iterator[Callable[..., Requester]]:
    started: list[Requester] = []

    def begin(site: Any, model: str = "claude", lifetime_s: float = 600) -> Requester:
        given = json.dumps({"store": site.config["store"]["url"], "model": model, "lifetime_s": lifetime_s})
        requester = Requester(
            subprocess.Popen(
                [sys.executable, "-c", REQUESTER, given],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        started.append(requester)
        return requester

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def case(page: Page, words: str) -> Locator:
    return page.get_by_role("tabpanel").get_by_role("listitem").filter(has_text=words)


CODE = "a code of the person"


def approve(page: Page, name: str, code: str = "") -> None:
    """Presses the button of the open dialog, once the dialog is no longer inert.

    `code`: "Choose" or "Enter" if the page asks for the approval code first.
    """
    button = page.get_by_role("dialog").get_by_role("button", name=name, exact=True)
    expect(button).to_have_attribute("aria-disabled", "false")
    button.click()
    if code:
        asked = page.get_by_role("dialog", name=f"{code} ")
        asked.get_by_label("Approval code", exact=True).fill(CODE)
        page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)


def go(page: Page, tab: str) -> None:
    page.get_by_role("tab", name=tab).click()
    expect(page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")


def tab_to(page: Page, wanted: Locator) -> None:
    """With the Tab key only."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if wanted.evaluate("node => node === document.activeElement"):
            return
    raise AssertionError("the keyboard does not get there")


def test_questions_of_a_chat_and_of_another_process_come_live_and_are_decided_in_the_inbox(
    site: Any, browse: Any, ask: Any
) -> None:
    here = site(READ)
    browsing = browse(here)
    page, chat = browsing.tab("/ui/inbox"), browsing.tab()
    expect(page.get_by_role("heading", name="Nothing is waiting for you")).to_be_visible()
    chat.get_by_role("textbox", name="Message").fill("Read my notes")
    chat.keyboard.press("Enter")
    expect(chat.get_by_role("dialog")).to_be_visible()
    expect(case(page, "Web chat")).to_contain_text("Read notes")
    page.bring_to_front()
    other = ask(here)
    expect(case(page, "MCP")).to_contain_text("claude")
    expect(case(page, "MCP")).to_contain_text("Tea.md, Milk.md")
    expect(case(page, "MCP")).to_contain_text("Other vault")
    expect(case(page, "MCP")).to_contain_text(re.compile(r"(10:00|9:\d\d) left"))
    expect(page.get_by_role("link", name="Inbox 2 waiting")).to_be_visible()
    expect(page.get_by_role("tab", name="Pending 2 requests wait")).to_be_visible()
    expect(page).to_have_title("(2) Inbox · Toolwire")

    case(page, "MCP").get_by_role("button", name="Deny Read notes").click()
    asked = page.get_by_role("dialog", name="Deny this call?")
    asked.get_by_label("Reason").fill("Not <b>those</b> notes")
    asked.get_by_role("button", name="Deny").click()
    decision = other.decision()
    assert (decision["status"], decision["by"]) == ("denied", "web")
    assert decision["reason"] == "Not <b>those</b> notes"
    expect(case(page, "MCP")).to_have_count(0)
    expect(page.get_by_role("link", name="Inbox 1 waiting")).to_be_visible()

    case(page, "Web chat").get_by_role("button", name="Review Read notes").click()
    page.get_by_role("dialog").get_by_role("checkbox", name=re.compile("Coffee.md")).uncheck()
    approve(page, "Read 1 note")
    expect(page.get_by_role("heading", name="Nothing is waiting for you")).to_be_visible()
    expect(chat.get_by_role("dialog")).to_have_count(0)
    expect(chat.get_by_text("I have read it.", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="Inbox", exact=True)).to_be_visible()

    go(page, "Decided")
    expect(case(page, "MCP")).to_contain_text("“Not <b>those</b> notes”")
    expect(case(page, "MCP")).to_contain_text("Denied on these pages")
    expect(case(page, "Web chat")).to_contain_text("1 of 2: Tea.md")
    expect(case(page, "Web chat")).to_contain_text("Approved on these pages")
    case(page, "Web chat").get_by_text("Details").click()
    expect(case(page, "Web chat")).to_contain_text("Not granted: Coffee.md")
    expect(case(page, "Web chat")).to_contain_text('"filePaths"')

    go(page, "Audit")
    lines = page.get_by_role("table").get_by_role("row")
    expect(page.get_by_text("3 lines, newest first")).to_be_visible()
    assert [event.strip() for event in lines.locator("[data-label=Event]").all_inner_texts()] == [
        "ran",
        "approved",
        "denied",
    ]
    page.get_by_role("searchbox", name="Filter the log").fill("CLAUDE")
    expect(page.get_by_text("1 of 3 lines")).to_be_visible()
    expect(lines).to_have_count(2)
    page.get_by_role("searchbox", name="Filter the log").fill("")
    page.get_by_role("combobox", name="Event").select_option("ran")
    expect(lines).to_have_count(2)
    expect(lines.last).to_contain_text("file_read")
    assert "degrees" not in page.get_by_role("table").inner_text()  # hashes and sizes, never contents


def test_a_remembered_grant_approves_automatically_until_it_is_revoked(
    site: Any, browse: Any, ask: Any
) -> None:
    here = site()
    browsing = browse(here)
    page, settings = browsing.tab("/ui/inbox"), browsing.tab("/ui/settings")
    expect(
        settings.get_by_text(
            "None. Each call in the chat needs your approval, unless a rule that you set for an MCP server "
            "allows it."
        )
    ).to_be_visible()
    page.bring_to_front()
    first = ask(here)
    case(page, "MCP").get_by_role("button", name="Review").click()
    page.get_by_text("Remember this approval").first.click()
    page.get_by_role("radio", name="For every call of Read notes by claude").check()
    expect(page.get_by_role("dialog")).to_contain_text("claude via MCP wants to use this tool:")
    expect(page.get_by_role("dialog")).to_contain_text("This call comes from another program.")
    approve(page, "Read 2 notes", code="Choose")
    assert sorted(first.decision()["picked"]) == ["Milk.md", "Tea.md"]

    again = ask(here).decision()
    assert again["status"] == "approved" and again["by"].startswith("grant ")
    go(page, "Decided")
    expect(case(page, "Approved by a remembered grant")).to_have_count(1)
    expect(case(page, "remembered for all calls of the tool")).to_have_count(1)
    expect(settings.get_by_role("button", name="Revoke the grant for file_read")).to_be_visible()

    go(page, "Grants")
    assert "tab=grants" in page.url
    expect(case(page, "All calls of the tool")).to_contain_text("/home/ada/Other vault")
    revoke = page.get_by_role("button", name="Revoke the grant for file_read")
    revoke.click()
    page.get_by_role("dialog", name="Revoke this grant?").get_by_role("button", name="Cancel").click()
    expect(revoke).to_be_focused()
    revoke.click()
    page.get_by_role("dialog", name="Revoke this grant?").get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("heading", name="No remembered grants")).to_be_visible()
    expect(
        settings.get_by_text(
            "None. Each call in the chat needs your approval, unless a rule that you set for an MCP server "
            "allows it."
        )
    ).to_be_visible()
    ask(here)
    expect(page.get_by_role("tab", name="Pending 1 request waits")).to_be_visible()


def test_an_unanswered_question_moves_from_pending_to_expired_and_a_link_leads_there(
    site: Any, browse: Any, ask: Any
) -> None:
    here = site()
    browsing = browse(here)
    page = browsing.tab("/ui/inbox?tab=nonsense")
    expect(page.get_by_role("tab", name="Pending")).to_have_attribute("aria-selected", "true")
    requester = ask(here, lifetime_s=5)
    expect(case(page, "claude")).to_be_visible()
    case(page, "claude").get_by_role("button", name="Review").click()
    expect(page.get_by_role("dialog", name="Tool Approval Request")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(
        0, timeout=20_000
    )  # an expired question cannot be approved
    expect(page.get_by_role("heading", name="Nothing is waiting for you")).to_be_visible()
    assert requester.decision()["status"] == "expired"
    late = browsing.tab("/ui/inbox?tab=expired")
    expect(late.get_by_role("tab", name="Expired")).to_have_attribute("aria-selected", "true")
    expect(case(late, "claude")).to_contain_text("Expired, ")
    late.get_by_role("link", name="Wire", exact=True).click()
    expect(late.get_by_role("heading", name="Wire", exact=True)).to_be_visible()
    late.go_back()
    expect(case(late, "claude")).to_contain_text("expired")


def test_the_inbox_works_by_keyboard_alone(site: Any, browse: Any, ask: Any) -> None:
    here = site()
    page = browse(here).tab("/ui/inbox")
    first = ask(here, model="first")
    review = case(page, "first").get_by_role("button", name="Review")
    expect(review).to_be_visible()
    tab_to(page, review)
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Tool Approval Request")
    expect(dialog.get_by_role("heading", name="Tool Approval Request")).to_be_focused()
    tab_to(page, dialog.get_by_role("checkbox", name=re.compile("Milk.md")))
    page.keyboard.press("Space")
    button = dialog.get_by_role("button", name="Read 1 note", exact=True)
    expect(button).to_have_attribute("aria-disabled", "false")
    tab_to(page, button)
    page.keyboard.press("Enter")
    code = page.get_by_role("dialog", name="Choose an approval code")
    field = code.get_by_label("Approval code", exact=True)
    expect(field).to_be_focused()
    page.keyboard.type(CODE)
    page.keyboard.press("Escape")  # decides nothing, and closes only the dialog on top
    expect(code).to_have_count(0)
    expect(button).to_be_focused()
    expect(button).to_have_attribute("aria-disabled", "false")
    page.keyboard.press("Enter")
    expect(field).to_be_focused()
    page.keyboard.type(CODE)
    page.keyboard.press("Enter")
    assert first.decision()["picked"] == ["Tea.md"]

    second = ask(here, model="second")
    deny = case(page, "second").get_by_role("button", name="Deny")
    expect(deny).to_be_visible()
    tab_to(page, deny)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_label("Reason", exact=True)).to_be_focused()
    page.keyboard.type("no")
    page.keyboard.press("Enter")
    decision = second.decision()
    assert (decision["status"], decision["reason"]) == ("denied", "no")
    expect(page.get_by_role("heading", name="Nothing is waiting for you")).to_be_visible()

    tab_to(page, page.get_by_role("tab", name="Pending"))
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Decided")).to_be_focused()
    expect(case(page, "second")).to_contain_text("denied")
    page.keyboard.press("End")
    expect(page.get_by_role("tab", name="Audit")).to_be_focused()
    expect(page.get_by_text("2 lines, newest first")).to_be_visible()
    page.keyboard.press("Home")
    expect(page.get_by_role("tab", name="Pending")).to_have_attribute("aria-selected", "true")

"""The approval dialog in Chromium: nothing runs that a person did not see and approve."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import APIResponse, Locator, Page, Route, expect

READ = 'call file_read {"filePaths": ["Tea.md"]}\n---\nsay Told: {result}'
READ_ALL = 'call file_read {"filePaths": ["Tea.md", "Journal/Monday.md", "Gone.md"]}\n---\nsay Told: {result}'
WRITE = 'call note_write {"filePath": "Cup.md", "content": "# Cup\\n\\nOne cup.\\n"}\n---\nsay Told: {result}'


def send(page: Page, words: str = "Go on.") -> None:
    box = page.get_by_role("textbox", name="Message")
    box.fill(words)
    box.press("Enter")


def asked(page: Page) -> Locator:
    """The open dialog."""
    dialog = page.get_by_role("dialog", name="Tool Approval Request")
    expect(dialog).to_be_visible()
    return dialog


def button(dialog: Locator, name: str) -> Locator:
    return dialog.get_by_role("button", name=name, exact=True)


def approve(dialog: Locator, name: str) -> None:
    """Presses the approving button, which must have this name."""
    button(dialog, name).click()  # waits until it is no longer inert


def gone(page: Page) -> None:
    expect(page.get_by_role("dialog")).to_have_count(0)


def card(page: Page, title: str, place: int = 0) -> Locator:
    return page.get_by_role("region", name=f"Tool call: {title}", include_hidden=True).nth(place)


def answer(page: Page, place: int = -1) -> Locator:
    return page.get_by_role("article", name=re.compile("^Answer from")).nth(place)


def model_reports(page: Page, words: str, place: int = -1) -> None:
    """What the model reports of its results."""
    expect(answer(page, place)).to_contain_text(words)
    expect(page.get_by_role("button", name="Retry")).to_be_visible()


def approvals(page: Page, status: str) -> list[dict[str, Any]]:
    key = page.evaluate("localStorage.getItem('toolwire-page')")
    found: list[dict[str, Any]] = page.request.get(
        f"{_origin(page)}/ui/api/approvals?status={status}&page={key}"
    ).json()["approvals"]
    return found


def _origin(page: Page) -> str:
    return "/".join(page.url.split("/")[:3])


@pytest.mark.parametrize("width", [1280, 390])
def test_what_is_asked_is_shown_and_runs_once_it_is_approved(site: Any, browse: Any, width: int) -> None:
    page = browse(site(models={"m": {"script": READ}}), width=width).tab()
    send(page, "How hot?")
    dialog = asked(page)
    for words in (
        "m (scripted) in this chat wants to use this tool:",
        "Read notes",
        "file_read",
        "Notes that you do not pick are not read.",
        "35 B",
    ):
        expect(dialog).to_contain_text(words)
    expect(dialog).to_contain_text(
        "Privacy Note: This tool will access your vault data. Only approve if you understand and trust "
        "this action. "
        "Nothing has been read yet. m sees what you approve, and nothing else."
    )
    expect(dialog).to_contain_text("Expires in 10 min")
    expect(dialog.get_by_role("checkbox", name=re.compile("^Tea.md"))).to_be_checked()
    expect(page).to_have_title(re.compile(r"^\(1\)"))
    expect(card(page, "Read notes")).to_contain_text("waiting for your decision")
    for name in ("Read 1 note", "Deny", "Decide later", "Close and decide later"):
        expect(button(dialog, name)).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert approvals(page, "decided") == []
    approve(dialog, "Read 1 note")
    gone(page)
    model_reports(page, "Green tea wants 80 degrees.")
    expect(card(page, "Read notes")).to_contain_text("done")
    expect(page).to_have_title(re.compile(r"^How hot\?"))
    decided = approvals(page, "decided")
    assert [(one["status"], one["decided_by"], one["decision"]["picked"]) for one in decided] == [
        ("approved", "web", ["Tea.md"])
    ]


@pytest.mark.parametrize("later", ["Decide later", "Close and decide later", "Escape"])
def test_escape_the_x_and_decide_later_decide_nothing(site: Any, browse: Any, later: str) -> None:
    page = browse(site(models={"m": {"script": READ}})).tab()
    send(page)
    dialog = asked(page)
    expect(button(dialog, "Deny")).to_be_enabled()
    if later == "Escape":
        page.keyboard.press("Escape")
    else:
        button(dialog, later).click()
    gone(page)
    assert [one["status"] for one in approvals(page, "pending")] == ["pending"]
    assert approvals(page, "decided") == []
    expect(card(page, "Read notes")).to_contain_text("waiting for your decision")
    expect(page).to_have_title(re.compile(r"^\(1\)"))
    card(page, "Read notes").get_by_role("button", name="Review").click()
    approve(asked(page), "Read 1 note")
    gone(page)
    model_reports(page, "Green tea wants 80 degrees.")


def test_deny_denies_and_the_model_receives_the_reason(site: Any, browse: Any) -> None:
    here = site(models={"m": {"script": WRITE}})
    page = browse(here).tab()
    send(page)
    dialog = asked(page)
    reason = dialog.get_by_label("Reason, if you deny")
    reason.fill("Not <b>now</b>")
    reason.press("Enter")  # in a text field, Enter decides nothing
    assert approvals(page, "decided") == []
    button(dialog, "Deny").click()
    gone(page)
    model_reports(page, '"reason": "Not <b>now</b>"')
    expect(card(page, "Write a note")).to_contain_text("denied")
    assert not (here.vault / "Cup.md").exists()


def test_edited_arguments_are_shown_again_and_run_as_edited(site: Any, browse: Any) -> None:
    here = site(models={"m": {"script": WRITE}})
    browsing = browse(here)
    browsing.expected.append("400")
    page = browsing.tab()
    send(page)
    dialog = asked(page)
    changes = dialog.get_by_role("group", name=re.compile("^Changes:"))
    expect(changes).to_contain_text("One cup.")
    path, content = dialog.get_by_label("filePath"), dialog.get_by_label("content")
    path.fill("../outside.md")  # refused by the tool itself, with its message
    expect(dialog.get_by_role("status").filter(has_text="outside.md")).to_be_visible()
    expect(button(dialog, "Create note")).to_be_disabled()
    button(dialog, "Restore the model’s arguments").click()
    expect(path).to_have_value("Cup.md")
    expect(button(dialog, "Restore the model’s arguments")).to_be_hidden()
    path.fill("Drinks/Mug.md")
    content.fill("# Mug\n\nTwo mugs.\n")
    expect(changes).to_contain_text("Two mugs.")
    expect(changes).to_contain_text("Drinks/Mug.md")
    expect(changes).not_to_contain_text("One cup.")
    expect(dialog).to_contain_text("You edited the arguments.")
    approve(dialog, "Create note")
    gone(page)
    model_reports(page, "The person changed the arguments to")
    expect(card(page, "Write a note").get_by_role("deletion")).to_have_text(
        ["The model asked for: Cup.md", re.compile("One cup")]
    )
    expect(card(page, "Write a note").get_by_role("insertion")).to_have_text(
        ["This ran: Drinks/Mug.md", re.compile("Two mugs")]
    )
    page.reload()
    expect(card(page, "Write a note").get_by_role("deletion").first).to_have_text(re.compile("Cup.md$"))
    key = page.evaluate("localStorage.getItem('toolwire-page')")
    id = page.url.rpartition("/")[2]
    note = page.request.get(f"{_origin(page)}/ui/api/conversations/{id}/note?page={key}").text()
    assert '- filePath: ~~"Cup.md"~~ "Drinks/Mug.md"' in note
    page.goto(f"{_origin(page)}/ui/inbox?tab=decided")
    row = page.get_by_role("listitem", name="Write a note, asked by m in a web chat, approved")
    expect(row.get_by_role("deletion").first).to_have_text("The model asked for: Cup.md")
    expect(row.get_by_role("insertion").first).to_have_text("This ran: Drinks/Mug.md")
    assert (here.vault / "Drinks/Mug.md").read_text() == "# Mug\n\nTwo mugs.\n"
    assert not (here.vault / "Cup.md").exists()
    assert not (here.vault.parent / "outside.md").exists()


def test_only_the_picked_files_are_read_and_missing_ones_cannot_be_picked(site: Any, browse: Any) -> None:
    page = browse(site(models={"m": {"script": f"{READ_ALL}\n---\n{READ_ALL}"}})).tab()
    send(page)
    dialog = asked(page)
    boxes = dialog.get_by_role("group", name="Select the notes").get_by_role("checkbox")
    expect(boxes).to_have_count(3)
    tea, monday, missing = (
        dialog.get_by_role("checkbox", name=re.compile(f"^{name}"))
        for name in ("Tea.md", "Monday.md", "Gone.md")
    )
    expect(missing).to_be_disabled()
    expect(missing).not_to_be_checked()
    expect(dialog.get_by_text("not found")).to_be_visible()
    expect(dialog.get_by_text("Journal/Monday.md", exact=True)).to_be_visible()
    expect(dialog.get_by_text("2 of 3 selected, 59 B")).to_be_visible()
    button(dialog, "Deselect all").click()
    expect(tea).not_to_be_checked()
    expect(monday).not_to_be_checked()
    expect(dialog.get_by_text("0 of 3 selected: select at least one, or deny")).to_be_visible()
    expect(button(dialog, "Read notes")).to_be_disabled()
    button(dialog, "Select all").click()
    expect(button(dialog, "Read 2 notes")).to_be_enabled()
    expect(tea).to_be_checked()
    expect(monday).to_be_checked()
    expect(missing).not_to_be_checked()
    tea.uncheck()
    approve(dialog, "Read 1 note")
    model_reports(page, "Tea with Ada.")
    expect(answer(page)).to_contain_text("The person allowed 1 of the 2 that were asked for.")
    expect(answer(page)).not_to_contain_text("80 degrees")
    expect(card(page, "Read notes").get_by_role("list")).to_have_text(
        [re.compile("^Journal/Monday.md$"), re.compile("^Gone.md: not found$")]
    )
    expect(card(page, "Read notes").get_by_text("Not read", exact=True)).to_be_visible()
    send(page)
    dialog = asked(page)
    button(dialog, "Deselect all").click()
    dialog.get_by_label("Reason, if you deny").fill("These are private.")
    button(dialog, "Deny").click()
    gone(page)
    model_reports(page, "These are private.")
    expect(answer(page)).not_to_contain_text("Ada")


def test_of_what_a_search_found_only_the_picked_results_reach_the_model(site: Any, browse: Any) -> None:
    page = browse(
        site(models={"m": {"script": 'call vault_search {"query": "tea"}\n---\nsay Told: {result}'}})
    ).tab()
    send(page)
    dialog = asked(page)
    expect(dialog).to_contain_text(
        "Nothing has been searched yet. You choose afterwards which results m may see."
    )
    expect(dialog.get_by_role("group", name="Select the results")).to_have_count(0)
    approve(dialog, "Search")
    expect(dialog).to_contain_text("The search is done. Nothing of it has been shared with m yet.")
    results = dialog.get_by_role("group", name="Select the results").get_by_role("checkbox")
    expect(results).to_have_count(2)
    for place in range(2):
        expect(results.nth(place)).not_to_be_checked()  # nothing is shared by default
    expect(button(dialog, "Share results")).to_be_disabled()
    expect(dialog).to_contain_text("Green tea wants 80 degrees.")
    expect(dialog.locator("mark").filter(has_text="tea").first).to_be_visible()
    expect(dialog).to_contain_text("2 notes match")
    dialog.get_by_role("checkbox", name=re.compile("^Monday.md")).check()
    expect(dialog.get_by_label("query")).to_be_hidden()
    dialog.get_by_text("What was searched for").click()
    expect(dialog.get_by_label("query")).not_to_be_editable()  # it has run
    shown = re.search(r"(\d+) B", dialog.get_by_text("1 of 2 selected, ").inner_text())
    approve(dialog, "Share 1 result")
    gone(page)
    model_reports(page, "Journal/Monday.md")
    expect(answer(page)).to_contain_text('"found": 2, "shared": 1')
    shared = re.search(r'"results": \[(.*)\]\}', answer(page).inner_text().replace("\n", " "))
    assert shown and shared and int(shown[1]) == len(shared[1].encode())
    expect(answer(page)).not_to_contain_text("Green tea")


def test_a_change_is_shown_as_a_diff_of_the_note_and_nothing_else_is_written(site: Any, browse: Any) -> None:
    edit = {"filePath": "Tea.md", "edits": [{"oldText": "80 degrees", "newText": "75 degrees"}]}
    write = {"filePath": "Coffee.md", "content": "# Coffee\n\nCoffee wants 94 degrees.\nAnd sugar.\n"}
    here = site(
        models={
            "m": {
                "script": f"call note_edit {json.dumps(edit)}\n---\ncall note_write {json.dumps(write)}\n"
                "---\n"
                "say Told: {result}"
            }
        }
    )
    page = browse(here).tab()
    send(page)
    dialog = asked(page)
    expect(dialog).to_contain_text("Nothing has been changed yet.")
    changes = dialog.get_by_role("group", name="Changes: 1 line added, 1 line removed")
    expect(changes).to_contain_text("removed: Green tea wants 80 degrees.")
    expect(changes).to_contain_text("added: Green tea wants 75 degrees.")
    expect(changes).to_contain_text("# Tea")
    assert "80" in (here.vault / "Tea.md").read_text()
    approve(dialog, "Change note")
    changes = dialog.get_by_role("group", name="Changes: 1 line added, 0 lines removed")
    expect(changes).to_contain_text("added: And sugar.")
    assert (here.vault / "Tea.md").read_text() == "# Tea\n\nGreen tea wants 75 degrees.\n"
    (here.vault / "Coffee.md").write_text(
        "# Coffee\n\nNone left.\n"
    )  # the note differs from the one that was shown
    approve(dialog, "Replace note")
    gone(page)
    model_reports(page, "changed since the person was asked")
    expect(card(page, "Write a note")).to_contain_text("failed")
    assert (here.vault / "Coffee.md").read_text() == "# Coffee\n\nNone left.\n"


def test_a_yes_for_this_conversation_is_not_asked_again_in_it_but_in_another(site: Any, browse: Any) -> None:
    read = (
        'call file_read {"filePaths": ["Tea.md"]}\n---\ncall file_read {"filePaths": ["Coffee.md"]}\n---\n'
        "say Told: {result}"
    )
    page = browse(site(models={"m": {"script": f"{read}\n---\n{read}"}})).tab()
    send(page)
    dialog = asked(page)
    dialog.get_by_text("Remember this approval").click()
    expect(dialog.get_by_role("radio", name="Only this once")).to_be_checked()
    dialog.get_by_role("radio", name="In this conversation").check()
    approve(dialog, "Read 1 note")
    gone(page)
    model_reports(page, "Coffee wants 94 degrees.")
    send(page, "Once more.")
    expect(page.get_by_role("article", name=re.compile("^Answer from"))).to_have_count(2)
    model_reports(page, "Coffee wants 94 degrees.")
    gone(page)
    by = [one["decided_by"].split()[0] for one in approvals(page, "decided")]
    assert sorted(by) == ["grant", "grant", "grant", "web"]
    page.get_by_role("link", name="New chat").click()
    expect(page.get_by_role("article")).to_have_count(0)
    send(page)
    button(asked(page), "Deny").click()


def test_for_half_a_second_no_click_and_no_key_decides_anything(site: Any, browse: Any) -> None:
    here = site(models={"m": {"script": WRITE}})
    page = browse(here).tab()
    expect(page.get_by_role("button", name=re.compile("^Model: m"))).to_be_visible()
    page.clock.install()
    page.clock.pause_at(datetime.now() + timedelta(seconds=2))
    send(page)
    dialog = asked(page)
    names = ("Create note", "Deny", "Decide later", "Close and decide later")
    yes, *others = (button(dialog, name) for name in names)

    def hurry() -> None:
        for one in (yes, *others):
            one.click(force=True)
            one.focus()
            page.keyboard.press("Enter")
            page.keyboard.press("Space")
        page.keyboard.press("Escape")
        expect(yes).to_be_disabled()
        assert len(approvals(page, "pending")) == 1

    hurry()
    page.clock.run_for(499)
    hurry()
    page.clock.run_for(2)
    expect(yes).to_be_enabled()
    dialog.get_by_label("filePath").fill("Mug.md")
    page.clock.run_for(400)
    expect(dialog).to_contain_text(
        "You edited the arguments."
    )  # another change is shown and must be seen first
    hurry()
    page.clock.run_for(501)
    yes.focus()
    page.keyboard.press("Enter")
    gone(page)
    expect(card(page, "Write a note")).to_contain_text("done")
    assert (here.vault / "Mug.md").exists() and not (here.vault / "Cup.md").exists()


INSIDE = (
    "() => { const held = document.activeElement; return held === document.body || held.closest('dialog') "
    "!== null }"
)


def test_everything_is_decided_by_keyboard_and_the_focus_stays_inside_and_returns(
    site: Any, browse: Any
) -> None:
    page = browse(site(models={"m": {"script": READ_ALL}})).tab()
    box = page.get_by_role("textbox", name="Message")
    expect(box).to_be_focused()
    page.keyboard.type("Go on.")
    page.keyboard.press("Enter")
    dialog = asked(page)
    expect(dialog.get_by_role("heading", name="Tool Approval Request")).to_be_focused()

    def tab_to(wanted: Locator) -> None:
        for _ in range(30):
            page.keyboard.press("Tab")
            assert page.evaluate(INSIDE)
            if wanted.evaluate("node => node === document.activeElement"):
                return
        raise AssertionError(f"no way to {wanted}")

    tab_to(button(dialog, "Read 2 notes"))
    tab_to(button(dialog, "Deselect all"))  # once around
    page.keyboard.press("Enter")
    tea = dialog.get_by_role("checkbox", name=re.compile("^Tea.md"))
    tab_to(tea)
    page.keyboard.press("Space")
    expect(tea).to_be_checked()
    expect(dialog.get_by_text("1 of 3 selected")).to_be_visible()
    tab_to(button(dialog, "Deny"))
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(INSIDE)
    tab_to(button(dialog, "Read 1 note"))
    expect(button(dialog, "Read 1 note")).to_be_enabled()
    page.keyboard.press("Space")
    gone(page)
    expect(box).to_be_focused()
    model_reports(page, "The person allowed 1 of the 2")


def test_two_calls_of_one_turn_share_a_dialog_and_are_decided_one_by_one(site: Any, browse: Any) -> None:
    here = site(
        models={
            "m": {"script": f"{READ.splitlines()[0]}\n{WRITE.splitlines()[0]}\n---\nsay Told: {{result}}"}
        }
    )
    page = browse(here).tab()
    send(page)
    dialog = asked(page)
    expect(dialog).to_contain_text("m (scripted) in this chat wants to make 2 calls:")
    expect(button(dialog, "Run 2 calls")).to_be_enabled()
    expect(button(dialog, "Deny all")).to_be_enabled()
    read, write = (
        dialog.get_by_role("region", name=re.compile(name)) for name in ("Read notes", "Write a note")
    )
    expect(read.get_by_role("checkbox", name="Run this call")).to_be_checked()
    write.get_by_role("checkbox", name="Run this call").uncheck()
    approve(dialog, "Read 1 note, deny 1")
    gone(page)
    expect(card(page, "Read notes")).to_contain_text("done")
    expect(card(page, "Write a note")).to_contain_text("denied")
    model_reports(page, "User cancelled tool execution")
    assert not (here.vault / "Cup.md").exists()
    assert {one["tool"]: one["status"] for one in approvals(page, "decided")} == {
        "file_read": "approved",
        "note_write": "denied",
    }


def test_a_question_outlives_a_reload_and_a_second_tab_may_decide_it(site: Any, browse: Any) -> None:
    browsing = browse(site(models={"m": {"script": f"{READ}\n---\n{READ}"}}))
    page = browsing.tab()
    send(page)
    asked(page)
    page.reload()
    dialog = asked(page)
    expect(dialog).to_contain_text("Tea.md")
    assert len(approvals(page, "pending")) == 1
    other = browsing.tab(page.url.removeprefix(browsing.site.url))
    approve(asked(other), "Read 1 note")
    gone(other)
    gone(page)
    expect(
        page.get_by_role("status").filter(has_text="Read notes: Approved elsewhere on these pages.")
    ).to_be_visible()
    for tab in (page, other):
        model_reports(tab, "Green tea wants 80 degrees.")
        expect(card(tab, "Read notes")).to_contain_text("done")
    send(other, "Again.")
    button(asked(page), "Deny").click()  # and the reverse
    gone(other)
    model_reports(other, "User cancelled tool execution")


def test_a_question_that_comes_while_the_page_looks_for_others_is_asked(site: Any, browse: Any) -> None:
    page = browse(site(models={"m": {"script": f"say Hello.\n---\n{READ}"}})).tab()
    send(page, "Hello?")
    expect(page.get_by_role("button", name="Retry")).to_be_visible()
    held: list[tuple[Route, APIResponse]] = []

    def hold(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append((route, route.fetch()))

    page.route("**/ui/api/approvals?status=pending&limit=200", hold)
    page.reload()
    expect(answer(page)).to_contain_text("Hello.")
    page.evaluate(
        """const events = new EventSource('/ui/api/events?page=' + localStorage.getItem('toolwire-page'))
        window.heard = 0
        events.addEventListener('approvals', () => { window.heard += 1 })"""
    )
    send(page)
    expect(page).to_have_title(re.compile(r"^\(1\)"))
    page.wait_for_function(
        "() => window.heard >= 2"
    )  # the requester and the watcher of the store both notify, so no further event will come
    route, nothing = held[0]
    assert nothing.json()["pending"] == 0
    route.fulfill(response=nothing)
    approve(asked(page), "Read 1 note")
    model_reports(page, "Green tea wants 80 degrees.")


def test_a_shell_decides_while_the_dialog_is_open(site: Any, browse: Any) -> None:
    here = site(models={"m": {"script": READ}})
    page = browse(here).tab()
    send(page)
    asked(page)

    def shell(*arguments: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TOOLWIRE_")}
        command = [sys.executable, "-m", "toolwire", "approvals", *arguments, "--config", "toolwire.toml"]
        return subprocess.run(
            command, cwd=here.folder, env=environment, check=True, capture_output=True, text=True
        ).stdout

    id = approvals(page, "pending")[0]["id"]
    assert id in shell("list")
    shell("deny", id, "--reason", "Not now.")  # an approval would need the approval code
    gone(page)
    expect(
        page.get_by_role("status").filter(has_text="Read notes: Denied with toolwire approvals.")
    ).to_be_visible()
    model_reports(page, "Not now.")
    assert approvals(page, "decided")[0]["decided_by"] == "shell"


def test_a_question_that_nobody_decides_expires_and_nothing_runs(site: Any, browse: Any) -> None:
    here = site(models={"m": {"script": WRITE}})
    page = browse(here).tab()
    send(page)
    asked(page)
    with sqlite3.connect(here.folder / "toolwire.db") as store:
        store.execute("UPDATE approvals SET expires_at = ?", (time.time(),))
    store.close()
    gone(page)
    expect(
        page.get_by_role("status").filter(has_text="Write a note: Expired. The call did not run.")
    ).to_be_visible()
    expect(card(page, "Write a note")).to_contain_text("expired")
    model_reports(page, "Nobody decided about this tool call in time; it did not run")
    assert [one["status"] for one in approvals(page, "expired")] == ["expired"]
    assert not (here.vault / "Cup.md").exists()


# --- a call that cannot work ---

ABSENT = {"filePath": "Tea.md", "edits": [{"oldText": "no such\u200b text", "newText": "x"}]}
EDIT_ABSENT = f"call note_edit {json.dumps(ABSENT)}\n---\nsay Told: {{result}}"


@pytest.mark.parametrize(
    ("name", "words"),
    [("Tell the model why", "is not in the note"), ("Deny", "User cancelled tool execution")],
)
def test_a_call_that_cannot_work_needs_approval_before_the_model_learns_why(
    site: Any, browse: Any, name: str, words: str
) -> None:
    page = browse(site(models={"m": {"script": EDIT_ABSENT}})).tab()
    send(page)
    dialog = asked(page)
    problem = dialog.get_by_role("note")
    expect(problem).to_contain_text("This call cannot work: Tea.md: the text to replace is not in the note")
    expect(problem).to_contain_text("If you approve, nothing is run or changed, and m gets this reason.")
    expect(dialog).to_contain_text("no such⟨U+200B⟩ text")
    button(dialog, name).click()
    model_reports(page, words)
    if name == "Deny":
        expect(answer(page)).not_to_contain_text("is not in the note")


def test_editing_a_call_that_cannot_work_shows_what_the_edited_one_would_do(site: Any, browse: Any) -> None:
    page = browse(site(models={"m": {"script": EDIT_ABSENT}})).tab()
    send(page)
    dialog = asked(page)
    edits = dialog.get_by_role("textbox", name="edits")
    edits.fill(json.dumps([{"oldText": "# ", "newText": "## "}]))
    expect(dialog.get_by_role("note")).to_have_count(0)
    expect(button(dialog, "Change note")).to_be_visible()
    edits.fill(json.dumps([{"oldText": "still absent", "newText": "x"}]))
    expect(dialog.get_by_role("note")).to_contain_text("This call cannot work")
    button(dialog, "Tell the model why").click()
    model_reports(page, "is not in the note")


def test_the_inbox_shows_why_a_call_cannot_work(site: Any, browse: Any) -> None:
    browser = browse(site(models={"m": {"script": EDIT_ABSENT}}))
    send(browser.tab())
    page = browser.tab("/ui/inbox")
    expect(
        page.get_by_text("Cannot work: Tea.md: the text to replace is not in the note").first
    ).to_be_visible()

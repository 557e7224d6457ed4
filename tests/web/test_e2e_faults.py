"""What a person sees when the server crashes, stops or forgets them, in a real Chromium."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Locator, Page, expect

CODE = "a code of the person"
GONE = [
    "ERR_CONNECTION_REFUSED",
    "ERR_CONNECTION_RESET",
    "ERR_CONTENT_LENGTH_MISMATCH",
    "ERR_EMPTY_RESPONSE",
    "ERR_INCOMPLETE_CHUNKED_ENCODING",
    "ERR_SOCKET_NOT_CONNECTED",
]
"""What a browser logs about a killed server, at any point of an answer."""
WRITE = 'call note_write {"filePath": "Cup.md", "content": "One cup."}\n---\nsay Told: {result}'


def send(page: Page, words: str) -> None:
    box = page.get_by_role("textbox", name="Message")
    box.fill(words)
    box.press("Enter")


def answer(page: Page, place: int = -1) -> Locator:
    return page.get_by_role("article", name=re.compile("^Answer from")).nth(place)


def warned(page: Page) -> Locator:
    return page.get_by_role("status").filter(
        has_text="The server does not answer. Trying again… Your drafts are kept."
    )


def back(page: Page) -> None:
    """The page found the server without help."""
    expect(warned(page)).to_have_count(0, timeout=15_000)
    expect(page.get_by_text("Connected", exact=True)).to_be_visible()


def test_a_server_that_dies_in_the_middle_of_an_answer_is_found_again_and_loses_no_draft(
    site: Any, browse: Any
) -> None:
    here = site(
        models={
            "m": {"script": "say Hello.\n---\nsay I begin\nhang"},
            "n": {"script": "say I know of nothing.\n---\nsay Asked: {user}"},
        }
    )
    browsing = browse(here)
    browsing.expected += GONE
    page = browsing.tab()
    send(page, "Hello?")
    expect(page.get_by_role("button", name="Retry")).to_be_visible()
    send(page, "First?")
    expect(answer(page)).to_contain_text("I begin")
    box = page.get_by_role("textbox", name="Message")
    box.fill("My next thought")
    here.kill()
    expect(warned(page)).to_be_visible()
    expect(box).to_have_value("My next thought")
    expect(answer(page)).to_contain_text("I begin")  # what was read remains readable
    here.start()
    back(page)
    expect(page.get_by_role("article", name="You")).to_have_count(2)
    expect(answer(page)).to_contain_text("The server stopped during the answer.")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(box).to_have_value("My next thought")
    page.get_by_role("button", name=re.compile("^Model:")).click()
    page.get_by_role("option", name=re.compile("^n")).click()
    page.get_by_role("button", name="Retry").click()  # the question was not lost either, nor what precedes it
    expect(answer(page)).to_contain_text("Asked: First?")
    box.press("Enter")
    expect(answer(page)).to_contain_text("Asked: My next thought")
    expect(box).to_have_value("")


def test_a_question_whose_server_died_has_expired_and_cannot_be_approved(site: Any, browse: Any) -> None:
    here = site(models={"m": {"script": WRITE}})
    browsing = browse(here)
    browsing.expected += GONE
    page = browsing.tab("/ui/settings")
    page.get_by_role("button", name="Set code").click()
    page.get_by_label("Approval code", exact=True).fill(CODE)
    page.get_by_role("dialog").get_by_role("button", name="Set code").click()
    expect(page.get_by_text("An approval code is set.")).to_be_visible()
    page.goto(here.url)
    send(page, "Write it down.")
    dialog = page.get_by_role("dialog", name="Tool Approval Request")
    expect(dialog).to_be_visible()
    here.kill()
    dialog.get_by_role("button", name="Create note").click()
    expect(dialog.get_by_role("alert")).to_have_count(1)
    expect(dialog.get_by_role("alert")).to_contain_text("The server does not answer.")
    here.start()
    expect(dialog).to_have_count(0, timeout=15_000)
    back(page)
    expect(page.get_by_role("status").filter(has_text="Expired. The call did not run.")).to_be_visible()
    expect(page.get_by_role("region", name="Tool call: Write a note")).to_contain_text("stopped")
    expect(answer(page)).to_contain_text("The server stopped during the answer.")
    expect(page).not_to_have_title(re.compile(r"^\(\d"))  # nothing waits any more
    key = page.evaluate("localStorage.getItem('toolwire-page')")
    asked = [
        f"{here.url}/ui/api/approvals?page={key}&status={status}"
        for status in ("pending", "decided", "expired")
    ]
    listed = [page.request.get(address).json()["approvals"] for address in asked]
    assert [len(one) for one in listed] == [0, 0, 1]
    assert not (here.vault / "Cup.md").exists()
    page.get_by_role("button", name="Retry").click()  # it can be after it is asked again
    expect(dialog).to_contain_text(
        "This browser session cannot approve anything yet."
    )  # the server is another one
    dialog.get_by_role("button", name="Create note").click()
    page.get_by_label("Approval code", exact=True).fill(CODE)
    page.keyboard.press("Enter")
    expect(answer(page)).to_contain_text('"created": true')
    assert (here.vault / "Cup.md").read_text() == "One cup."


def test_sending_while_the_server_is_down_reports_it_once_and_nothing_is_lost(site: Any, browse: Any) -> None:
    here = site(models={"m": {"script": "say Asked: {user}"}})
    browsing = browse(here)
    browsing.expected += GONE
    page = browsing.tab()
    send(page, "First?")
    expect(answer(page)).to_contain_text("Asked: First?")
    page.evaluate(
        "Math.random = () => 1e5"
    )  # the next automatic retry is hours away, so only the button can bring it back
    here.kill()
    expect(warned(page)).to_be_visible()
    send(page, "Second?")
    trouble = page.get_by_role("alert")
    expect(trouble).to_have_text(
        re.compile("^The server does not answer. Your message is kept; send it again later.")
    )
    box = page.get_by_role("textbox", name="Message")
    expect(box).to_have_value("Second?")
    box.press("Enter")
    expect(trouble).to_have_count(1)
    expect(answer(page)).to_contain_text("Asked: First?")
    expect(page.get_by_role("article", name="You")).to_have_count(1)
    here.start()
    page.get_by_role("button", name="Try now").click()
    back(page)
    expect(box).to_have_value("Second?")
    box.press("Enter")
    expect(answer(page)).to_contain_text("Asked: Second?")
    expect(trouble).to_have_count(0)
    expect(page.get_by_role("article", name="You")).to_have_count(2)


def test_a_session_that_ended_in_another_tab_leaves_the_sign_in_page_and_the_draft(
    site: Any, browse: Any
) -> None:
    here = site(
        models={"m": {"script": "say Asked: {user}\nhang"}},
        server={"admin_keys": ["an-admin-key-of-some-length"]},
    )
    browsing = browse(here)
    browsing.expected.append("401")
    page = browsing.tab()
    send(page, "Secret?")
    expect(answer(page)).to_contain_text("Asked: Secret?")
    page.get_by_role("textbox", name="Message").fill("A thought")
    other = browsing.tab("/ui/settings")
    other.get_by_role("button", name="Sign out").click()
    other.get_by_role("dialog").get_by_role("button", name="Sign out").click()
    expect(other.get_by_role("heading", name="Sign in to Toolwire")).to_be_visible()
    expect(
        page.get_by_role("heading", name="Sign in to Toolwire")
    ).to_be_visible()  # at once, without an action
    assert "Secret" not in page.content()
    page.get_by_label("Admin key").fill("an-admin-key-of-some-length")
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="Message")).to_have_value("A thought")
    expect(answer(page)).to_contain_text("Asked: Secret?")

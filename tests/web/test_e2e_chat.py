"""The chat in a real Chromium, used as a person uses it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect

from toolwire.surfaces.conversation_note import parse

MARKDOWN = """## Teas

Some are **hot**, see [the list](https://example.org/teas) and `kettle()`.

1. green
2. black

| tea | degrees |
|---|---|
| green | 80 |
"""


def send(page: Page, words: str) -> None:
    box = page.get_by_role("textbox", name="Message")
    box.fill(words)
    box.press("Enter")


def answer(page: Page, place: int = -1) -> Locator:
    return page.get_by_role("article", name=re.compile("^Answer from")).nth(place)


def ended(page: Page) -> None:
    expect(page.get_by_role("button", name="Retry")).to_be_visible()


def settled(page: Page, title: str) -> None:
    """The conversation is listed under its title."""
    expect(
        page.get_by_role("complementary", name="Conversations").get_by_role(
            "link", name=re.compile(re.escape(title))
        )
    ).to_be_visible()


def test_an_answer_becomes_elements_while_it_streams_and_its_thoughts_are_folded(
    site: Any, browse: Any
) -> None:
    script = (
        f"think **Which** tea?\nchunk 3\nsay {json.dumps(MARKDOWN)}\nchunk 0\n"
        f"say {json.dumps('```python' + chr(10) + 'brew(80)')}\nhang"
    )
    page = browse(site(models={"m": {"script": script}})).tab()
    send(page, "Which **teas** are there?")
    shown = answer(page)
    expect(shown.get_by_role("heading", name="Teas")).to_be_visible()
    expect(shown.get_by_text("brew(80)")).to_be_visible()  # an unclosed fence is already code
    expect(
        page.get_by_role("button", name="Stop")
    ).to_be_visible()  # all this while the answer is being written
    expect(shown.get_by_role("strong")).to_have_text("hot")
    expect(shown.get_by_role("link", name="the list")).to_have_attribute("href", "https://example.org/teas")
    expect(shown.get_by_role("listitem")).to_have_text(["green", "black"])
    expect(shown.get_by_role("columnheader")).to_have_text(["tea", "degrees"])
    expect(shown.get_by_role("cell", name="80")).to_be_visible()
    assert "**" not in shown.inner_text() and "##" not in shown.inner_text()
    expect(
        page.get_by_role("article", name="You").get_by_text("Which **teas** are there?")
    ).to_be_visible()  # the person's text stays as written
    expect(shown.get_by_text("Which tea?")).to_be_hidden()
    shown.get_by_text("Thoughts", exact=True).click()
    expect(shown.get_by_text("Which tea?")).to_be_visible()


def test_an_answer_is_stopped_and_asked_again_of_another_model_chosen_by_keyboard(
    site: Any, browse: Any
) -> None:
    models = {
        "slow/one": {"script": "say I begin\nhang"},
        "quick/one": {"script": "say Done by {model}, asked: {user}", "tools": "emulated"},
        "quick/two": {"script": "say Done by {model}, asked: {user}", "tools": "constrained"},
        "parked": {"tools": "parked"},
    }
    page = browse(site(models=models)).tab()
    picker = page.get_by_role("button", name=re.compile("^Model:"))
    expect(picker).to_contain_text("native")
    expect(picker).to_contain_text("slow/one")
    send(page, "Which tea?")
    expect(answer(page)).to_contain_text("I begin")
    page.get_by_role("button", name="Stop").press("Enter")
    expect(answer(page)).to_contain_text("Stopped.")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    box = page.get_by_role("textbox", name="Message")
    expect(box).to_be_focused()  # the focused button was removed
    page.keyboard.press("Tab")
    expect(picker).to_be_focused()
    page.keyboard.press("Enter")
    search = page.get_by_role("combobox", name="Search models")
    expect(search).to_be_focused()
    options = page.get_by_role("listbox", name="Models").get_by_role("option")
    expect(options).to_have_count(4)
    badges = {
        "slow/one": "native",
        "quick/one": "emulated",
        "quick/two": "constrained",
        "parked": "an agent that waits for the results of its calls",
    }
    for model, words in badges.items():
        expect(options.filter(has_text=model)).to_contain_text(words)
    expect(page.get_by_role("option", selected=True)).to_contain_text("slow/one")
    page.keyboard.type("quick")
    expect(options).to_have_count(2)
    page.keyboard.press("Escape")
    expect(picker).to_be_focused()
    expect(picker).to_contain_text("slow/one")  # nothing was chosen
    page.keyboard.press("Enter")
    page.keyboard.type("quick")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(picker).to_contain_text("quick/two")
    expect(picker).to_contain_text("constrained")
    expect(picker).to_be_focused()
    page.get_by_role("button", name="Retry").press("Enter")
    expect(answer(page)).to_contain_text("Done by quick/two, asked: Which tea?")
    expect(page.get_by_role("article")).to_have_count(
        2
    )  # the stopped answer was removed, the question appears once
    page.reload()
    expect(answer(page)).to_contain_text("Done by quick/two")
    expect(picker).to_contain_text("quick/two")


def test_addresses_in_a_message_of_the_person_are_links_and_nothing_else_is(site: Any, browse: Any) -> None:
    page = browse(site(models={"m": {"script": "say Seen."}})).tab()
    words = "See https://example.com/a(b), <b>not this</b>, javascript:alert(1) or [x](https://x.example)."
    send(page, words)
    mine = page.get_by_role("article", name="You")
    expect(mine).to_contain_text(words)
    links = mine.get_by_role("link")
    expect(links).to_have_text(["https://example.com/a(b)", "https://x.example"])
    expect(links.first).to_have_attribute("href", "https://example.com/a(b)")
    expect(links.first).to_have_attribute("rel", "noopener noreferrer nofollow")
    expect(links.first).to_have_attribute("target", "_blank")
    expect(mine.locator("b")).to_have_count(0)


def test_a_tool_call_is_a_card_with_its_arguments_state_and_result(site: Any, browse: Any) -> None:
    calls = [
        'call file_read {"filePaths": ["Tea.md"]}',
        'call note_links {"file": 1}',
        'call vault_search {"query": ',
    ]
    page = browse(site(models={"m": {"script": "\n".join([*calls, "---", "say That was all."])}})).tab()
    send(page, "Look.")
    dialog = page.get_by_role("dialog", name="Tool Approval Request")
    read = page.get_by_role("region", name="Tool call: Read notes", include_hidden=True)
    expect(read).to_contain_text("waiting for your decision")
    dialog.get_by_role("button", name="Read 1 note").click()
    expect(read).to_contain_text("done")
    for words in ("file_read", "filePaths", "Tea.md", "Shared with m"):
        expect(read).to_contain_text(words)
    expect(read.get_by_text("Green tea wants 80 degrees.")).to_be_hidden()
    read.get_by_text("Result", exact=True).click()
    expect(read.get_by_role("code").filter(has_text="Green tea wants 80 degrees.")).to_be_visible()
    for tool, words in (
        ("List links of a note", "'file' was unexpected"),
        ("Search the vault", "not valid JSON"),
    ):
        failed = page.get_by_role("region", name=f"Tool call: {tool}")
        expect(failed).to_contain_text("failed")
        expect(failed).to_contain_text(words)
    expect(answer(page)).to_contain_text("That was all.")
    page.reload()
    expect(answer(page)).to_contain_text("That was all.")
    for tool, state in (
        ("Read notes", "done"),
        ("List links of a note", "failed"),
        ("Search the vault", "failed"),
    ):
        expect(page.get_by_role("region", name=f"Tool call: {tool}")).to_contain_text(state)


def test_conversations_are_kept_searched_renamed_and_deleted(site: Any, browse: Any) -> None:
    here = site(models={"m": {"script": "say You asked: {user}"}})
    browsing = browse(here)
    page = browsing.tab()
    listed = page.get_by_role("complementary", name="Conversations")
    for words in ("How is tea made?", "Where is my bicycle?"):
        page.get_by_role("link", name="New chat").click()
        expect(page.get_by_role("heading", name="New chat")).to_be_visible()
        send(page, words)
        expect(answer(page)).to_contain_text(f"You asked: {words}")
        ended(page)
        settled(page, words)
    expect(page.get_by_role("heading", level=1)).to_have_text("Where is my bicycle?")
    expect(page).to_have_title(re.compile("bicycle"))
    links = listed.get_by_role("listitem").get_by_role("link")
    expect(links).to_have_count(2)
    search = page.get_by_role("searchbox", name="Search conversations")
    search.fill("TEA asked")  # of what was said, in any case
    expect(links).to_have_count(1)
    search.fill("nowhere said")
    expect(listed.get_by_text("No conversation matches.")).to_be_visible()
    search.fill("")
    expect(links).to_have_count(2)
    other = browsing.tab("/")
    expect(other.get_by_role("link", name=re.compile("Where is my bicycle"))).to_be_visible()
    links.filter(has_text="How is tea made?").click()
    expect(answer(page)).to_contain_text("You asked: How is tea made?")
    page.get_by_role("button", name="Rename this conversation").click()
    page.get_by_role("dialog").get_by_label("Title").fill("All about tea")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("All about tea")
    expect(
        other.get_by_role("link", name=re.compile("All about tea"))
    ).to_be_visible()  # every tab is notified
    page.get_by_role("button", name="Delete this conversation").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", level=1)).to_have_text("All about tea")
    page.get_by_role("button", name="Delete this conversation").click()
    page.get_by_role("dialog", name="Delete the conversation?").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("New chat")
    expect(links).to_have_count(1)
    expect(other.get_by_role("link", name=re.compile("All about tea"))).to_have_count(0)
    page.go_back()
    expect(page.get_by_text("This conversation does not exist")).to_be_visible()
    browsing.expected.append("404")


def test_an_export_is_a_note_that_a_terminal_can_continue_and_a_draft_outlives_a_reload(
    site: Any, browse: Any, tmp_path: Path
) -> None:
    said = "Tea:\n\nrole::user\n\nis no person's word.\n"
    page = browse(site(models={"m": {"script": f"think Hm.\nsay {json.dumps(said)}\n---\nsay Nine."}})).tab()
    for words in ("How is tea made?", "And when?"):
        send(page, words)
        ended(page)
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Export as a Markdown note").click()
    assert waiting.value.suggested_filename == "How is tea made.md"
    waiting.value.save_as(tmp_path / "note.md")
    note = parse((tmp_path / "note.md").read_text("utf-8"))
    assert note.model == "m"
    assert [(one["role"], one["content"].replace("\\", "")) for one in note.messages] == [
        ("user", "How is tea made?"),
        ("assistant", said.strip()),
        ("user", "And when?"),
        ("assistant", "Nine."),
    ]
    box = page.get_by_role("textbox", name="Message")
    box.fill("A thought of\ntwo lines")
    page.reload()
    expect(answer(page)).to_contain_text("Nine.")
    expect(box).to_have_value("A thought of\ntwo lines")
    page.get_by_role("link", name="New chat").click()
    expect(box).to_have_value("")  # every conversation has its own
    box.fill("Another")
    page.go_back()
    expect(box).to_have_value("A thought of\ntwo lines")
    box.press("Shift+Enter")
    expect(box).to_have_value("A thought of\ntwo lines\n")
    expect(page.get_by_role("article", name="You")).to_have_count(2)  # nothing was sent
    box.press("Enter")
    expect(page.get_by_role("article", name="You")).to_have_count(3)
    expect(box).to_have_value("")


def test_the_view_follows_an_answer_until_the_person_scrolls_up(site: Any, browse: Any) -> None:
    lines = [f'say "Line {number} of many.\\n\\n"\npause 25ms' for number in range(400)]
    page = browse(site(models={"m": {"script": "\n".join(lines)}}), height=500).tab()
    send(page, "Tell me a lot.")
    view = page.get_by_role("region", name="Conversation")
    from_end = "node => node.scrollHeight - node.scrollTop - node.clientHeight"
    handle = view.element_handle()
    expect(answer(page)).to_contain_text("Line 15 of many.")  # the empty chat page can be scrolled too
    page.wait_for_function(f"node => ({from_end})(node) < 60 && node.scrollTop > 100", arg=handle)
    expect(page.get_by_role("button", name="Jump to the end")).to_be_hidden()
    view.hover()
    page.mouse.wheel(0, -400)
    jump = page.get_by_role("button", name="Jump to the end")
    expect(jump).to_be_visible()
    page.wait_for_function(
        "node => { const was = node.dataset.was; node.dataset.was = node.scrollTop; return was === "
        "node.dataset.was }",
        arg=handle,
    )
    place, height = view.evaluate("node => [node.scrollTop, node.scrollHeight]")
    page.wait_for_function(
        "([node, height]) => node.scrollHeight > height + 300", arg=[handle, height]
    )  # it grew by several lines
    assert view.evaluate("node => node.scrollTop") == place
    jump.click()
    page.wait_for_function(f"node => ({from_end})(node) < 60", arg=handle)
    expect(jump).to_be_hidden()
    height = view.evaluate("node => node.scrollHeight")
    page.wait_for_function(
        f"([node, height]) => node.scrollHeight > height + 100 && ({from_end})(node) < 60",
        arg=[handle, height],
    )  # it follows again
    view.hover()
    page.mouse.wheel(0, -30)  # a small distance is enough
    expect(jump).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(answer(page)).to_contain_text("Stopped.")


def test_a_slow_word_of_the_server_does_not_take_a_person_back_to_the_end(site: Any, browse: Any) -> None:
    lines = [f'say "Line {number} of many.\\n\\n"\npause 25ms' for number in range(400)]
    page = browse(site(models={"m": {"script": "\n".join(lines)}}), height=500).tab()
    held: list[tuple[Any, Any]] = []
    page.route("**/turns*", lambda route: held.append((route, route.fetch())))
    send(page, "Tell me a lot.")
    view = page.get_by_role("region", name="Conversation")
    expect(answer(page)).to_contain_text("Line 15 of many.")
    page.wait_for_function("node => node.scrollTop > 300", arg=view.element_handle())
    view.hover()
    page.mouse.wheel(0, -200)
    jump = page.get_by_role("button", name="Jump to the end")
    expect(jump).to_be_visible()
    route, response = held[0]
    route.fulfill(response=response)
    expect(page.get_by_role("textbox", name="Message")).to_have_value("")
    expect(jump).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(answer(page)).to_contain_text("Stopped.")

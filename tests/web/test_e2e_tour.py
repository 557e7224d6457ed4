"""The tour in Chromium: every step, whatever the person decides, and nothing of the person's is touched."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from doubles import tour_walk as walk
from doubles.axe import LOOKS, RUN

LABEL = "scripted, for this tour"


def begin(page: Page) -> None:
    page.get_by_role("link", name="Take the tour").click()
    expect(page).to_have_url(re.compile("/ui/chat/tour_"))


def answer(page: Page) -> Locator:
    return page.get_by_role("article", name=re.compile("^Answer from")).last


def edit_query(page: Page, dialog: Locator) -> None:
    dialog.get_by_label("query").fill("hotel")
    expect(dialog.get_by_text("You edited the arguments.")).to_be_visible()
    expect(walk.approving(dialog)).to_have_attribute("aria-disabled", "false")
    walk.approve(page, dialog)


def share_one(page: Page, dialog: Locator) -> None:
    dialog.get_by_role("checkbox", name=re.compile(f"^{walk.PLAN}")).check()
    walk.approve(page, dialog)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_tour_as_suggested_from_the_empty_page(site: Any, browse: Any, width: int) -> None:
    here = site(on=False)
    before = {path: path.read_bytes() for path in here.vault.rglob("*") if path.is_file()}
    page = browse(here, width=width, height=844).tab()
    expect(page.get_by_text("Two minutes with a sample vault and a scripted model")).to_be_visible()
    begin(page)
    dialog = walk.question(page, 1)
    expect(dialog).to_contain_text(f"scripted-tour ({LABEL}) in this chat")
    for control in (walk.approving(dialog), walk.denying(dialog)):
        expect(control).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    walk.finish(page)
    expect(answer(page)).to_contain_text(f"scripted-tour {LABEL}")
    expect(answer(page)).to_contain_text("You shared 2 of 4 results")
    expect(answer(page)).to_contain_text("there are 2 more, but not which")
    expect(answer(page)).to_contain_text("The best offer is Casa do Rio, 84 a night.")
    expect(answer(page)).to_contain_text("The note now has exactly the change that you saw.")
    expect(answer(page)).to_contain_text('"error": "User cancelled tool execution"')
    expect(page.get_by_text(LABEL).last).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^Model:"))).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert {path: path.read_bytes() for path in here.vault.rglob("*") if path.is_file()} == before
    page.goto(f"{here.url}/ui/inbox?tab=audit")
    expect(page.get_by_text("scripted-tour").first).to_be_visible()


def test_denied_edited_left_and_decided_after_coming_back(site: Any, browse: Any) -> None:
    browsing = browse(site())
    page = browsing.tab()
    begin(page)
    edit_query(page, walk.question(page, 1))
    share_one(page, walk.question(page, 2))
    walk.question(page, 3)
    address = page.url
    page.close()  # the question waits
    page = browsing.tab("/ui/chat/" + address.rpartition("/")[2])
    walk.deny(page, walk.question(page, 3))
    dialog = walk.question(page, 4)
    expect(dialog.get_by_role("group", name=re.compile("^Changes:"))).to_contain_text(
        "Casa do Rio, 84 a night"
    )
    page.reload()
    walk.deny(page, walk.question(page, 4))
    walk.approve(page, walk.question(page, 5))
    expect(page.get_by_text("That was the tour.")).to_be_visible()
    expect(answer(page)).to_contain_text('The person changed the arguments to: {"query": "hotel"')
    expect(answer(page)).to_contain_text("You denied the reading.")
    expect(answer(page)).to_contain_text("You denied the change, so the note is as it was.")
    expect(answer(page)).to_contain_text("You allowed it, so the diary of the sample vault now has one line.")


def test_a_stopped_tour_goes_on_after_the_next_message(site: Any, browse: Any) -> None:
    page = browse(site()).tab("/ui/tour")
    walk.approve(page, walk.question(page, 1))
    walk.question(page, 2)
    page.evaluate("document.querySelector('.composer-stop').click()")  # the dialog covers the button
    expect(page.get_by_role("dialog")).to_have_count(0)
    message = page.get_by_role("textbox", name="Message")
    message.fill("Go on.")
    message.press("Enter")
    walk.finish(page)
    message.fill("And now?")
    message.press("Enter")
    expect(answer(page)).to_contain_text("The tour is over")


def test_retry_begins_again_with_a_new_sample_vault(site: Any, browse: Any) -> None:
    page = browse(site()).tab("/ui/tour")
    for _ in range(2):
        walk.finish(page)
        expect(answer(page)).to_contain_text("The note now has exactly the change that you saw.")
        page.get_by_role("button", name="Retry").click()
    walk.question(page, 1)


def test_the_tour_by_keyboard_only(site: Any, browse: Any) -> None:
    page = browse(site()).tab()
    link = page.get_by_role("link", name="Take the tour")
    expect(link).to_be_visible()
    for _ in range(40):
        if link.evaluate("node => node === document.activeElement"):
            break
        page.keyboard.press("Shift+Tab")  # the message field has the focus at first
    expect(link).to_be_focused()
    page.keyboard.press("Enter")

    def press(control: Locator, key: str) -> None:
        assert page.evaluate("document.activeElement.closest('dialog') !== null")
        for _ in range(60):
            if control.evaluate("node => node === document.activeElement"):
                break
            page.keyboard.press("Tab")
        expect(control).to_be_focused()
        page.keyboard.press(key)

    def approve(page: Page, dialog: Locator) -> None:
        press(walk.approving(dialog), "Enter")

    def share(page: Page, dialog: Locator) -> None:
        press(dialog.get_by_role("checkbox", name=re.compile(f"^{walk.PLAN}")), "Space")
        approve(page, dialog)

    def deny(page: Page, dialog: Locator) -> None:
        press(walk.denying(dialog), "Enter")

    walk.finish(page, (approve, share, approve, approve, deny))
    expect(answer(page)).to_contain_text("You shared 1 of 4 results")


def test_axe_finds_no_violation_at_any_step(site: Any, browse: Any, axe: str) -> None:
    page = browse(site(on=False)).tab()
    found: list[str] = []

    def check(where: str) -> None:
        page.evaluate(axe)
        for size, theme in LOOKS:
            page.set_viewport_size(size)
            page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            found.extend(f"{where}, {size['width']} {theme}: {one}" for one in page.evaluate(RUN))

    expect(page.get_by_role("link", name="Take the tour")).to_be_visible()
    check("the empty page")
    begin(page)
    for number, step in enumerate(walk.SUGGESTED, 1):
        dialog = walk.question(page, number)
        check(f"step {number}")
        step(page, dialog)
    expect(page.get_by_text("That was the tour.")).to_be_visible()
    check("the end")
    assert not found, "\n".join(found)


def test_a_tour_ends_with_its_conversation(site: Any, browse: Any) -> None:
    page = browse(site()).tab()
    begin(page)
    walk.finish(page)
    page.get_by_role("button", name="Delete this conversation").click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("^Delete")).click()
    expect(page.get_by_role("link", name="Take the tour")).to_be_visible()


# --- the command


def test_the_command_has_its_own_gateway_and_leaves_nothing(chromium: Any, tmp_path: Path) -> None:
    home, scratch = tmp_path / "home", tmp_path / "tmp"
    for folder in (home, scratch):
        folder.mkdir()
    (home / "toolwire.toml").write_text("this is not TOML")  # the person's settings are not read
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TOOLWIRE_", "XDG_"))},
        "HOME": str(home),
        "TMPDIR": str(scratch),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "toolwire", "tour", "--no-open"],
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
    )
    try:
        page = chromium.new_context().new_page()
        link = _link(process)
        page.goto(link)
        walk.finish(page)
        assert "/ui/chat/tour_" in page.url
        page.goto(link)  # used, but this browser is signed in: a new tour
        walk.question(page, 1)
        page.context.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
    assert [path.name for path in home.rglob("*")] == ["toolwire.toml"]
    assert list(scratch.glob("toolwire-tour-*")) == []


def _link(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    seen, until = b"", time.monotonic() + 30
    while time.monotonic() < until:
        if select.select([process.stdout], [], [], 0.1)[0]:
            seen += os.read(process.stdout.fileno(), 65536)
            if found := re.search(rb"the tour: (http://127\.0\.0\.1:\d+/ui/enter\?token=\S+)", seen):
                return found[1].decode()
    raise AssertionError(seen.decode())

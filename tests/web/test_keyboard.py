"""The pages by keyboard only: everything is reachable, focus is visible, only dialogs trap it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

PAGES = {
    "/": "Message",
    "/ui/inbox": "Nothing is waiting for you",
    "/ui/inbox?tab=audit": "newest first",
    "/ui/wire": "Time to first byte",
    "/ui/connect": "Does it work?",
    "/ui/settings": "Settings in use",
}
SCRIPT = 'think Hm.\nsay Let me **read** it.\ncall file_read {"filePaths": ["Tea.md", "Coffee.md"]}\n---\n'
SCRIPT += 'raw "Told: 80 degrees.\\n\\n```sh\\nboil\\n```"'

# The focused element: whether its focus is visible (an outline, border or shadow of it or a parent), and
# which of the page's tab stops it is.
FOCUSED = """() => {
  const node = document.activeElement
  if (!node || node === document.body) return null
  const box = node.getBoundingClientRect()
  const place = window.stops().indexOf(node) // computed now, because lists may have been redrawn
  const inside = box.right > 0 && box.bottom > 0 && box.left < innerWidth && box.top < innerHeight
  const label = node.getAttribute('aria-label') ?? node.textContent.trim().slice(0, 40)
  const name = `${node.tagName.toLowerCase()} ${label}`
  const ring = window.lookOf(node) !== window.looks[place]
  const sized = box.width > 0 && box.height > 0
  return {name, ring, inside, sized, dialog: node.closest('dialog') !== null, place}
}"""
STOPS = """() => {
  const able = 'a[href], button, input, select, textarea, summary, [tabindex]'
  const held = (node) => [[node], [node, '::after'], [node.parentElement], [node.parentElement.parentElement]]
  window.lookOf = (node) => held(node).map((one) => {
    const style = getComputedStyle(...one)
    return [style.outlineStyle, style.outlineWidth, style.boxShadow, style.borderColor].join()
  }).join()
  document.activeElement.blur()
  window.stops = () => [...document.querySelectorAll(able)].filter((node) => {
    if (node.tabIndex < 0 || node.disabled || node.closest('[inert]')) return false
    if (!node.checkVisibility({visibilityProperty: true})) return false
    if (node.type !== 'radio') return true
    const chosen = document.querySelector(`input[name="${CSS.escape(node.name)}"]:checked`)
    return chosen === null || chosen === node // of a group, the one that is chosen
  })
  window.looks = window.stops().map(window.lookOf)
  const reordered = document.querySelectorAll('[tabindex]:not([tabindex="0"]):not([tabindex="-1"])')
  return {count: window.looks.length, ordered: reordered.length === 0}
}"""


def pressed(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def walk(page: Page, where: str) -> list[dict[str, Any]]:
    """Tabs once around the page: every stop is visible and in page order, and none traps the focus."""
    stops: dict[str, Any] = {"count": 0}
    seen: list[dict[str, Any]] = []
    # A page that was still loading is walked again.
    while stops["count"] != page.evaluate("window.stops?.().length"):
        stops, seen = page.evaluate(STOPS), []
        for _ in range(stops["count"]):
            page.keyboard.press("Tab")
            if (now := page.evaluate(FOCUSED)) is None:  # the browser itself may be a stop
                page.keyboard.press("Tab")
                now = page.evaluate(FOCUSED)
            seen.append(now)
    first = min(range(len(seen)), key=lambda at: int(seen[at]["place"]))
    around = seen[first:] + seen[:first]
    assert stops["ordered"], where
    assert [one["place"] for one in around] == list(range(stops["count"])), (
        where,
        [one["name"] for one in around],
    )
    unseen = [one for one in around if not (one["ring"] and one["sized"] and one["inside"])]
    assert not unseen, (where, unseen)
    return around


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_tab_reaches_everything_in_order_and_what_has_the_focus_is_seen(
    site: Any, browse: Any, width: int, theme: str
) -> None:
    here = site(models={"m": {"script": SCRIPT}, "other": {"script": "say Hello."}})
    browsing = browse(here, width=width, theme=theme)
    page = browsing.tab()
    chat(page)
    chatted = page.url.removeprefix(here.url)
    for path, words in {**PAGES, chatted: "Told"}.items():
        page.goto(here.url + path)
        expect(
            page.get_by_role("main").get_by_text(words).or_(page.get_by_label(words)).first
        ).to_be_visible()
        expect(page.get_by_text("Connected")).to_be_attached()
        stops = walk(page, path)
        assert "Skip to the content" in stops[0]["name"]
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Wire", exact=True).click()
    page.get_by_role("row").nth(1).get_by_role("link").click()
    for tab in ("Overview", "Request", "From backend", "Events", "To client", "Side by side"):
        page.get_by_role("tab", name=re.compile(f"^{tab}")).click()
        walk(page, f"turn, {tab}")


def chat(page: Page) -> None:
    """A question, its dialog and the answer, by keys only."""
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    page.keyboard.type("How hot?")
    pressed(page, "Enter")
    dialog = page.get_by_role("dialog", name="Tool Approval Request")
    expect(dialog).to_be_visible()
    assert page.evaluate("document.activeElement.closest('dialog') !== null"), "the dialog takes the focus"
    approve = dialog.locator("button.primary")
    expect(approve).to_be_enabled()
    pressed(page, *["Shift+Tab"] * 2)  # backwards from the first stop, through the browser: the last one
    for _ in range(30):
        if page.evaluate("document.activeElement.matches('dialog .primary')"):
            break
        page.keyboard.press("Tab")
    expect(approve).to_be_focused()
    pressed(page, "Enter")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("article", name="Answer from m")).to_contain_text("Told: 80 degrees.")
    expect(page.get_by_role("button", name="Retry")).to_be_visible()
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()


def test_the_dialog_keeps_the_focus_and_picks_and_edits_by_keys(site: Any, browse: Any) -> None:
    page = browse(site(models={"m": {"script": SCRIPT.replace('"Told: 80 degrees.', '"Told.')}})).tab()
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    page.keyboard.type("How hot?")
    pressed(page, "Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("button.primary")).to_be_enabled()
    page.evaluate(STOPS)
    seen = []
    for _ in range(40):
        page.keyboard.press("Tab")
        if now := page.evaluate(
            FOCUSED
        ):  # between the last and the first stop, the browser's own have the focus
            assert now["dialog"] and now["ring"] and now["inside"], now
            seen.append(now["name"])
    assert len(set(seen)) >= 8 and len(seen) > len(set(seen))
    box = dialog.get_by_role("checkbox", name=re.compile("^Coffee.md"))
    while not box.evaluate("node => node === document.activeElement"):
        page.keyboard.press("Tab")
    pressed(page, "Space")
    expect(box).not_to_be_checked()
    expect(dialog).to_contain_text("1 of 2 selected")
    pressed(page, "Escape")  # decides nothing
    expect(dialog).to_have_count(0)
    call = page.get_by_role("region", name="Tool call: Read notes")
    expect(call).to_contain_text("waiting for your decision")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    call.get_by_role("button", name="Review").focus()
    pressed(page, "Enter")
    reason = dialog.get_by_label("Reason, if you deny")
    while not reason.evaluate("node => node === document.activeElement"):
        page.keyboard.press("Tab")
    page.keyboard.type("Not now.")
    deny = dialog.get_by_role("button", name="Deny", exact=True)
    while not deny.evaluate("node => node === document.activeElement"):
        page.keyboard.press("Tab")
    expect(deny).to_be_enabled()
    pressed(page, "Enter")
    expect(dialog).to_have_count(0)
    expect(call).to_contain_text("denied")


def test_the_skip_link_tabs_pickers_and_lists_work_by_keys(site: Any, browse: Any) -> None:
    here = site(
        models={"m": {"script": "chunk 2\nsay Hello to all of you."}, "other": {"script": "say Other."}},
        on=False,
    )
    browsing = browse(here)
    page = browsing.tab()
    message = page.get_by_role("textbox", name="Message")
    expect(message).to_be_focused()
    pressed(page, "Tab", "Enter")  # the picker follows the field
    expect(page.get_by_role("combobox", name="Search models")).to_be_focused()
    expect(page.get_by_role("option", name="other")).to_be_visible()
    pressed(page, "End", "Enter")
    picker = page.get_by_role("button", name="Model:")
    expect(picker).to_be_focused()
    expect(picker).to_contain_text("other")
    pressed(page, "Enter", "Escape")
    expect(picker).to_be_focused()
    pressed(page, "Shift+Tab")
    page.keyboard.type("Hello")
    pressed(page, "Shift+Enter")
    expect(message).to_have_value("Hello\n")
    pressed(page, "Enter")
    expect(page.get_by_role("article", name="Answer from other")).to_contain_text("Other.")

    page.reload()
    expect(page.get_by_role("article", name="Answer from other")).to_be_visible()
    pressed(page, "Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport(ratio=1)
    pressed(page, "Enter")
    expect(page.get_by_role("main")).to_be_focused()
    pressed(page, "Tab")
    assert page.evaluate(
        "document.querySelector('main').contains(document.activeElement) && document.activeElement !== "
        "document.querySelector('main')"
    )

    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Inbox").focus()
    pressed(page, "Enter")
    expect(page.get_by_role("heading", name="Inbox", level=1)).to_be_focused()
    page.get_by_role("tab", name="Pending").focus()
    for name in ("Decided", "Expired", "Grants", "Audit", "Pending"):
        pressed(page, "ArrowRight")
        expect(page.get_by_role("tab", name=name)).to_be_focused()
        expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
        expect(page.get_by_role("tabpanel", name=name)).to_be_visible()

    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Settings").focus()
    pressed(page, "Enter")
    switch = page.get_by_role("switch", name="Tools in the chat")
    switch.focus()
    pressed(page, "Space")
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.get_by_role("dialog").get_by_role("button", name="Cancel")).to_be_focused()
    pressed(page, "Tab", "Enter")
    expect(switch).to_be_checked()
    expect(switch).to_be_focused()

    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Wire", exact=True).focus()
    pressed(page, "Enter")
    page.get_by_role("row").nth(1).get_by_role("link").focus()
    pressed(page, "Enter")
    page.get_by_role("tab", name="Overview").focus()
    pressed(page, "ArrowRight", "ArrowRight", "ArrowRight")
    expect(page.get_by_role("tab", name=re.compile("^Events"))).to_be_focused()
    rows = page.get_by_role("listbox")
    rows.focus()
    pressed(page, "End")
    chosen = page.get_by_role("option", selected=True)
    last = chosen.get_attribute("aria-setsize")
    assert last is not None and chosen.get_attribute("aria-posinset") == last
    pressed(page, "ArrowUp", "Home", "ArrowDown")
    expect(page.get_by_role("option", selected=True)).to_have_attribute("aria-posinset", "2")
    expect(rows).to_be_focused()

    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Connect").focus()
    pressed(page, "Enter")
    tabs = page.get_by_role("tablist").get_by_role("tab")
    tabs.first.focus()
    pressed(page, "ArrowDown")
    expect(tabs.nth(1)).to_be_focused()
    expect(page.get_by_role("tabpanel")).to_contain_text(tabs.nth(1).inner_text())


def test_typing_before_the_page_has_loaded_is_kept(site: Any, browse: Any) -> None:
    page = browse(site(models={"m": {"script": "say Hello."}})).tab()
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    page.keyboard.type("One")
    pressed(page, "Enter")
    answers = page.get_by_role("article", name="Answer from m")
    expect(answers.get_by_role("button", name="Retry")).to_be_visible()
    held: list[Route] = []
    page.route("**/ui/api/conversations/*", lambda route: held.append(route))
    page.reload()
    page.get_by_role("textbox", name="Message").focus()
    page.keyboard.type("Two")
    with page.expect_request("**/ui/api/conversations?*"):  # the page continues meanwhile
        pressed(page, "Enter")
        page.get_by_role("searchbox", name="Search conversations").fill("One")
    assert held
    page.unroute("**/ui/api/conversations/*")  # releases what is held
    expect(answers).to_have_count(2)

"""No page violates an axe-core rule, in any state, in both themes, on a wide screen and a phone.

The states are the scenes of docs/screenshots.py and some more. TOOLWIRE_AXE_LOOKS=4 checks every theme on
every screen; the short version checks light on the wide screen and dark on the phone.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from doubles.axe import LOOKS, RUN, WIDE


def loaded() -> Any:
    """docs/screenshots.py, which is a script and not part of a package."""
    spec = importlib.util.spec_from_file_location(
        "screenshots", Path(__file__).parents[2] / "docs" / "screenshots.py"
    )
    assert spec is not None and spec.loader is not None
    sys.modules["screenshots"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


shots = loaded()
Act = Callable[[Any], None]


def at(path: str, *acts: Callable[[Page], Any]) -> Act:
    """A page, and what a person does there."""

    def scene(stage: Any) -> None:
        page = stage.go(path.format(**stage.ids))
        for act in acts:
            act(page)

    return scene


def press(name: str, role: Any = "button", place: int = 0) -> Callable[[Page], None]:
    return lambda page: page.get_by_role(role, name=re.compile(name)).nth(place).click()


def sees(words: str) -> Callable[[Page], None]:
    return lambda page: expect(page.get_by_text(words).first).to_be_visible()


def asks(page: Page) -> None:
    expect(page.get_by_role("dialog")).to_be_visible()


def hangs(stage: Any) -> None:
    """An answer in progress, and the list of conversations, which covers it on a phone."""
    stage.ids["hangs"] = stage.ask("hangs", "Are you there?")
    page = stage.go(f"/ui/chat/{stage.ids['hangs']}")
    expect(page.get_by_text("I am thinking about")).to_be_visible()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()


def drawer(stage: Any) -> None:
    toggle = stage.page.get_by_role("button", name="Conversations")
    if toggle.is_visible() and toggle.get_attribute("aria-expanded") == "false":
        toggle.click()
        expect(stage.page.get_by_role("searchbox", name="Search conversations")).to_be_focused()


def wrong(page: Page) -> None:
    page.get_by_role("dialog").get_by_label("filePaths").fill("[")
    expect(page.get_by_text("are not valid yet")).to_be_visible()


def edited(page: Page) -> None:
    page.get_by_role("dialog").get_by_label("filePaths").fill('["Garden/Tomatoes.md"]')
    expect(page.get_by_text("This is what the edited call would touch")).to_be_visible()


def gone(stage: Any) -> None:
    expect(stage.go("/ui/inbox").get_by_text("Connected")).to_be_visible()
    stage.site.kill()
    expect(stage.page.get_by_text("The server does not answer. Trying again")).to_be_visible()


def signed_in_by_a_wrong_key(stage: Any) -> None:
    shots.signin(stage)
    field = stage.page.get_by_label("Admin key")
    field.fill("wrong")
    field.press("Enter")
    expect(stage.page.get_by_role("alert")).to_be_visible()


def unfolded(page: Page) -> None:
    """Expands everything that can be expanded."""
    page.evaluate("() => { for (const one of document.querySelectorAll('main details')) one.open = true }")


STATES = (
    ("chat-failed", at("/ui/chat/{failed}", sees("Too Many Requests"))),
    ("chat-denied", at("/ui/chat/{denied}", sees("denied"))),
    ("chat-unfolded", at("/ui/chat/{answer}", sees("order by"), unfolded)),
    ("chat-none", at("/ui/chat/none", sees("This conversation does not exist"))),
    ("rename", at("/ui/chat/{answer}", press("^Rename this"), asks)),
    ("delete", at("/ui/chat/{answer}", press("^Delete this"), asks)),
    (
        "models-none",
        at(
            "/",
            press("^Model:"),
            lambda page: page.get_by_label("Search models").fill("nothing like it"),
            sees("No model matches"),
        ),
    ),
    ("approve-wrong", at("/ui/chat/{read}", asks, wrong)),
    ("approve-edited", at("/ui/chat/{read}", asks, edited)),
    ("inbox-deny", at("/ui/inbox", press("^Deny"), asks)),
    ("inbox-revoke", at("/ui/inbox?tab=grants", press("^Revoke"), asks)),
    (
        "settings-unfolded",
        at("/ui/settings", press("Link for another browser"), sees("The link works once"), unfolded),
    ),
    (
        "settings-changed",
        at(
            "/ui/settings",
            lambda page: page.get_by_label("One model or pattern per line").fill("qwen*"),
            sees("1 of 8 models"),
        ),
    ),
    ("wire-unfolded", at("/ui/wire?tool=note_write&window=1h", sees("Calls by tool"), unfolded)),
    ("wire-none", at("/ui/wire?model=nothing", sees("No turn"))),
    ("turn-none", at("/ui/wire/turn_0", sees("not in the journal"))),
)


@pytest.fixture(scope="module")
def stage(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with everything that the scenes show, and a signed-in tab."""
    shots.MODELS["hangs"] = {"script": "say I am thinking about **this**.\nhang"}
    site = shots.opened(tmp_path_factory.mktemp("scenes"))
    try:
        context = chromium.new_context(viewport=WIDE)
        context.set_default_timeout(15_000)
        yield shots.begin(context.new_page(), site)
        context.close()
    finally:
        site.stop()


def check(stage: Any, scene: Any, axe: str) -> None:
    """Plays a scene, and runs axe-core in every look.

    The debugger runs it, so the pages keep their content security policy.
    """
    stage.page.set_viewport_size(WIDE)
    scene.act(stage)
    stage.page.evaluate(axe)
    found = []
    for size, theme in LOOKS:
        stage.page.set_viewport_size(size)
        stage.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        scene.look(stage)
        found += [f"{size['width']} {theme}: {one}" for one in stage.page.evaluate(RUN)]
    scene.after(stage)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("name", "act"), STATES, ids=[name for name, _ in STATES])
def test_axe_finds_no_violation_in_a_state(stage: Any, axe: str, name: str, act: Act) -> None:
    check(stage, shots.Scene(name, act), axe)


@pytest.mark.parametrize("scene", shots.SCENES, ids=lambda scene: scene.name)
def test_axe_finds_no_violation_in_a_scene(stage: Any, axe: str, scene: Any) -> None:
    check(stage, scene, axe)


BADGES = """() => ['running', 'parked', 'warn', 'ok', 'bad'].map((kind) => {
  const badge = document.createElement('span')
  badge.className = `badge ${kind}`
  document.body.append(badge)
  const {color, backgroundColor} = getComputedStyle(badge)
  badge.remove()
  return `${color} on ${backgroundColor}`
})"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_runs_what_is_parked_and_what_waits_for_the_person_have_different_colours(
    stage: Any, theme: Any
) -> None:
    page = stage.go("/ui/wire")
    page.emulate_media(color_scheme=theme)
    expect(page.get_by_role("figure").first).to_be_visible()
    assert len(set(page.evaluate(BADGES))) == 5


def test_every_row_of_the_inbox_and_the_wire_page_has_a_name(stage: Any) -> None:
    stage.asked(stage.ask("codex", "Read the plan and begin today's note"))
    page = stage.go("/ui/inbox")
    rows = page.get_by_role("tabpanel").get_by_role("listitem")
    for name in ("Write a note, asked by codex in a web chat", "Read notes, asked by claude-desktop via MCP"):
        expect(page.get_by_role("listitem", name=name).first).to_be_visible()
    names = rows.evaluate_all("rows => rows.map((row) => row.getAttribute('aria-label'))")
    assert all(page.get_by_role("button", name=f"Deny {name}").count() for name in names)
    page = stage.go("/ui/wire?model=qwen3-8b")
    link = page.get_by_role("row").nth(1).get_by_role("link")
    expect(link).to_have_accessible_name(re.compile(r"\d\d:\d\d:\d\d, qwen3-8b, (done|tool calls)$"))


def test_axe_finds_no_violation_with_any_client(stage: Any, axe: str) -> None:
    clients = [one["id"] for one in stage.call("GET", "/connect")["clients"]]
    assert len(clients) >= 7
    for client in clients:
        check(stage, shots.Scene(client, at(f"/ui/connect?client={client}", sees("Does it work?"))), axe)


def test_axe_finds_no_violation_while_a_turn_runs_or_the_server_is_down(stage: Any, axe: str) -> None:
    check(stage, shots.Scene("running", hangs, look=drawer), axe)
    running = stage.call("GET", "/turns?status=running")["turns"]
    check(stage, shots.Scene("turn-running", at(f"/ui/wire/{running[0]['id']}", sees("Timeline"))), axe)
    check(stage, shots.Scene("wrong-key", signed_in_by_a_wrong_key), axe)
    check(stage, shots.Scene("gone", gone), axe)

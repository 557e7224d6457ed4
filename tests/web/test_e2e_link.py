"""The page of a link in Chromium, phone width first: what it shows, what decides, and what does not."""

from __future__ import annotations

import json
import re
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from doubles.axe import PHONE, RUN
from web.conftest import Site

REQUESTER = """
import asyncio, json, sys
from toolwire.store.store import Store
from toolwire.tools.approvals import Approvals, Question
from toolwire.tools.contract import Asking, Preview, Touched
from toolwire.tools.links import Links

PLAN = {"path": "Garden/Plan.md", "content": "# Plan\\n\\nTomatoes by the south wall."}
DIFF = "@@ -0,0 +1,3 @@\\n+# Plan\\n+\\n+Tomatoes by the south wall."
NOTES = Preview((Touched("a", "Notes/Tea.md", 40), Touched("b", "Milk.md", 60)), pick=True)
HOSTILE = {"path": "<img src=x onerror=alert(1)>", "content": "a\\u200bb\\u2066 " + "long " * 4000}
KINDS = {
    "write": Question("note_create", "run", PLAN, Preview(diff=DIFF, action="Create note")),
    "read": Question("file_read", "run", {"filePaths": ["Tea.md", "Milk.md"]}, NOTES),
    "server": Question(
        "files__write_file", "run", {"path": "/srv/docs/a.md", "content": "new"}, Preview(),
        source="mcp:files", pin="sha256:0",
    ),
    "hostile": Question("note\\u202ecreate", "run", HOSTILE, Preview()),
}

def say(number, **facts):
    print(json.dumps({"number": number, **facts}), flush=True)

async def ask(store, approvals, number, kind):
    class Surface:
        async def ask(self, asked):
            key = await Links(store, approvals).add(asked[0], "link", "phone", approves=True)
            say(number, link=f"/ui/link/{key.id}#{key.secret}")
            return True

    (decided,) = await approvals.ask(Asking("s", "claude-desktop", "mcp"), [KINDS[kind]], Surface())
    decision = decided.decision.to_json() if decided.decision else {}
    say(number, decided={"status": decided.status, "by": decided.decided_by, **decision})

async def main():
    store, tasks = Store(sys.argv[1]), []
    approvals = Approvals(store)
    while line := await asyncio.to_thread(sys.stdin.readline):
        given = json.loads(line)
        tasks.append(asyncio.ensure_future(ask(store, approvals, **given)))

asyncio.run(main())
"""


class Requester:
    """Another process on the same store, like an MCP server: it asks questions and has links to them."""

    def __init__(self, store: str) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", REQUESTER, store]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0)
        self._rest = b""  # the start of a line whose end has not arrived
        self._heard: dict[int, dict[str, Any]] = {}

    def ask(self, kind: str = "write") -> Asked:
        assert self._process.stdin is not None
        number = len(self._heard)
        self._heard[number] = {}
        self._process.stdin.write(json.dumps({"number": number, "kind": kind}).encode() + b"\n")
        return Asked(self, number, self.told(number, "link"))

    def told(self, number: int, what: str) -> Any:
        """What the process says of a question: its link, or how it was decided."""
        while what not in self._heard[number]:
            assert self._read(20), "the process says nothing"
        return self._heard[number][what]

    def is_open(self, number: int) -> bool:
        """Whether the question has not been decided, as far as the process has said until now."""
        while self._read(0):
            pass
        return "decided" not in self._heard[number]

    def _read(self, timeout: float) -> bool:
        """Reads what has arrived, which may be several lines. Returns whether it was anything."""
        out = self._process.stdout
        assert out is not None
        if not select.select([out], [], [], timeout)[0]:
            return False
        said = out.read(65536)
        *lines, self._rest = (self._rest + said).split(b"\n")
        for line in lines:
            facts = json.loads(line)
            self._heard[facts["number"]] |= facts
        return bool(said)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass
class Asked:
    requester: Requester
    number: int
    link: str

    @property
    def is_open(self) -> bool:
        return self.requester.is_open(self.number)

    def decision(self) -> dict[str, Any]:
        found: dict[str, Any] = self.requester.told(self.number, "decided")
        return found


Ask = Callable[..., Asked]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One server for all tests of this file."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "vault").mkdir()
    config = {
        "server": {"host": "127.0.0.1", "drain_s": 2},
        "models": {"m": {"backend": "scripted", "script": "say Hello."}},
        "store": {"url": f"sqlite:///{folder}/toolwire.db"},
    }
    site = Site(folder, config).start()
    yield site
    site.stop()


@pytest.fixture(scope="module")
def ask(here: Site) -> Iterator[Ask]:
    requester = Requester(here.config["store"]["url"])
    yield requester.ask
    requester.close()


def phone(browse: Any, site: Site, link: str, theme: str = "light", **more: Any) -> Page:
    """Opens a link on a phone that has no session."""
    browsing = browse(site, width=PHONE["width"], height=PHONE["height"], theme=theme, sign_in=False, **more)
    browsing.expected += ["status of 410", "status of 403"]
    page: Page = browsing.tab(link)
    return page


def shoot(page: Page, tmp_path: Path, name: str) -> None:
    page.screenshot(path=tmp_path / f"{name}.png")


def test_a_person_approves_on_a_phone_without_a_session(
    here: Site, browse: Any, ask: Ask, tmp_path: Path
) -> None:
    one = ask()
    page = phone(browse, here, one.link)
    expect(page.get_by_role("heading", name="Tool approval request")).to_be_focused()
    expect(page.get_by_text("claude-desktop")).to_be_visible()
    expect(page.get_by_text("Tomatoes by the south wall.").first).to_be_visible()
    assert "#" not in page.url and one.is_open
    expect(page.get_by_text("Remember this approval")).to_have_count(0)
    shoot(page, tmp_path, "question")
    approve = page.get_by_role("button", name="Create note")
    expect(approve).to_have_attribute("aria-disabled", "false")
    approve.click()
    expect(page.get_by_role("heading", name="Approved")).to_be_focused()
    shoot(page, tmp_path, "approved")
    decided = one.decision()
    assert (decided["status"], decided["by"], decided["remember"]) == ("approved", "link phone", "once")
    page.goto(here.url + one.link)  # only the fragment differs: the page loads itself again
    expect(page.get_by_role("heading", name="This link is no longer valid")).to_be_visible()
    expect(page.get_by_text("already approved (link phone)")).to_be_visible()
    shoot(page, tmp_path, "over")


def test_a_person_denies_with_a_reason_by_keyboard(here: Site, browse: Any, ask: Ask) -> None:
    one = ask()
    page = phone(browse, here, one.link)
    expect(page.get_by_role("button", name="Deny")).to_have_attribute("aria-disabled", "false")
    page.get_by_label("Reason, if you deny").focus()
    page.keyboard.type("not the garden")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Deny")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Create note")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Denied")).to_be_visible()
    assert {"status": "denied", "reason": "not the garden"}.items() <= one.decision().items()


def test_the_first_half_second_and_opening_the_page_decide_nothing(here: Site, browse: Any, ask: Ask) -> None:
    one = ask()
    page = phone(browse, here, one.link)
    clicks = """() => new Promise((done) => {
      const look = setInterval(() => {
        const buttons = document.querySelectorAll('.link-foot button')
        if (buttons.length < 2) return
        clearInterval(look)
        for (const button of buttons) button.click()
        done([...buttons].map((button) => button.getAttribute('aria-disabled')))
      }, 0)
    })"""
    page.reload()
    assert page.evaluate(clicks) == ["true", "true"]  # a reload keeps the secret
    expect(page.get_by_role("button", name="Create note")).to_have_attribute("aria-disabled", "false")
    assert one.is_open
    page.get_by_role("button", name="Deny").click()
    assert one.decision()["status"] == "denied"


def test_the_person_picks_notes(here: Site, browse: Any, ask: Ask, tmp_path: Path) -> None:
    one = ask("read")
    page = phone(browse, here, one.link, theme="dark")
    page.get_by_label("Milk.md").uncheck()
    shoot(page, tmp_path, "picks")
    page.get_by_role("button", name="Read 1 note").click()
    expect(page.get_by_role("heading", name="Approved")).to_be_visible()
    assert one.decision()["picked"] == ["a"]


def test_a_call_to_an_mcp_server_is_shown_whole_and_approved_once(
    here: Site, browse: Any, ask: Ask, tmp_path: Path
) -> None:
    one = ask("server")
    page = phone(browse, here, one.link)
    expect(page.get_by_text("files__write_file").first).to_be_visible()
    assert "/srv/docs/a.md" in page.inner_text("main") + " ".join(
        page.evaluate("[...document.querySelectorAll('input, textarea')].map((one) => one.value)")
    )
    expect(page.get_by_text("Remember this approval")).to_have_count(0)
    shoot(page, tmp_path, "server")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("heading", name="Approved")).to_be_visible()
    assert one.decision()["remember"] == "once"


def test_a_question_that_is_decided_elsewhere_closes_the_page(here: Site, browse: Any, ask: Ask) -> None:
    one = ask()
    page = phone(browse, here, one.link)
    expect(page.get_by_role("button", name="Create note")).to_be_visible()
    other = phone(browse, here, one.link)
    other.get_by_role("button", name="Deny").click()
    expect(page.get_by_role("heading", name="This link is no longer valid")).to_be_visible()
    expect(page.get_by_text("already denied (link phone)")).to_be_visible()


@pytest.mark.parametrize(
    ("change", "title", "said"),
    [
        (lambda link: link[:-1] + ("A" if link[-1] != "A" else "B"), "This link does not work", "not valid"),
        (lambda link: link.partition("#")[0], "This link does not work", "part of the address is missing"),
        (lambda link: "/ui/link/link_0#x", "This link does not work", "not valid"),
        (lambda link: "/ui/link/test", "The link works", "only a test"),
    ],
    ids=["wrong", "cut", "unknown", "test"],
)
def test_other_links_say_what_is_wrong(
    here: Site, browse: Any, ask: Ask, change: Any, title: str, said: str
) -> None:
    one = ask()
    page = phone(browse, here, change(one.link))
    expect(page.get_by_role("heading", name=title)).to_be_visible()
    expect(page.get_by_text(re.compile(said))).to_be_visible()
    assert one.is_open


def test_a_hostile_call_is_shown_as_text_and_fits_a_phone(
    here: Site, browse: Any, ask: Ask, tmp_path: Path
) -> None:
    one = ask("hostile")
    page = phone(browse, here, one.link)
    expect(page.get_by_role("button", name="Run")).to_be_visible()
    text = page.inner_text("main")
    assert "⟨U+202E⟩" in text and "\u202e" not in text
    assert page.evaluate("document.querySelectorAll('img[src=x]').length") == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    box = page.get_by_role("button", name="Run").bounding_box()
    assert box is not None and box["y"] + box["height"] <= PHONE["height"]  # the buttons stay visible
    shoot(page, tmp_path, "hostile")


def test_the_end_violates_no_axe_rule(here: Site, browse: Any, ask: Ask, axe: str) -> None:
    """The question itself is a scene of docs/screenshots.py, which test_axe.py checks."""
    page = phone(browse, here, ask().link, theme="dark")
    deny = page.get_by_role("button", name="Deny")
    expect(deny).to_have_attribute("aria-disabled", "false")
    deny.click()
    expect(page.get_by_role("heading", name="Denied")).to_be_visible()
    page.evaluate(axe)
    assert page.evaluate(RUN) == []


def test_the_page_without_the_server_says_so_and_can_try_again(here: Site, browse: Any, ask: Ask) -> None:
    one = ask()
    browsing = browse(here, width=390, height=844, sign_in=False)
    browsing.expected += ["ERR_", "status of 404"]
    page = browsing.tab("/ui/static/favicon.svg")
    page.route("**/ui/api/link/*", lambda route: route.abort())
    page.goto(here.url + one.link)
    expect(page.get_by_text("Toolwire does not answer")).to_be_visible()
    page.unroute("**/ui/api/link/*")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("button", name="Create note")).to_be_visible()

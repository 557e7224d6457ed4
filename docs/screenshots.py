"""`make screenshots`: takes screenshots of the web pages for docs/screenshots/.

A real server has a small vault, scripted models and a day of traffic. Debian's Chromium visits the scenes,
which are data, at widths of 390, 1024 and 1920 pixels: all in the light theme, those of 1024 pixels also in
the dark one. Scenes for the guides are taken at 1024 pixels only. `approval.png` is animated, see
animation.py. `--all` takes every width in both themes, `--only NAME` takes one scene. The accessibility tests
visit the same scenes.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import random
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "tests" / "web"), str(ROOT / "tests")]

import animation  # noqa: E402
from animation import chunk, packed  # noqa: E402

from conftest import CHROMIUM, QUIET, Site  # noqa: E402
from toolwire.observe.journal_files import Segments, TurnRecord  # noqa: E402
from toolwire.store.store import Store  # noqa: E402
from toolwire.surfaces.web.clients import CLIENTS  # noqa: E402
from toolwire.tools.approvals import LIFETIME_S, Approvals  # noqa: E402
from toolwire.tools.contract import Approval, Preview, Touched  # noqa: E402
from toolwire.tools.links import Links  # noqa: E402

FOLDER = Path(__file__).with_name("screenshots")
SIZES = {390: 844, 1024: 768, 1920: 1080}
WAIT_S = 20.0
USUAL_PORT = 8788

# --- what the server has ---

NOTES = {
    "Projects/Greenhouse/Plan.md": """---
tags: [project, garden]
status: active
---
# Greenhouse

A lean-to of 2.4 m on the south wall.

## Budget

- Glass: 640
- Timber: 310
- Foundation: 180

## Open

- [ ] Order the glass before March
- [ ] Ask Jonas about the foundation
- [x] Measure the wall

See [[Glazing offers]].
""",
    "Projects/Greenhouse/Glazing offers.md": "# Glazing offers\n\nFor toughened glass.\n\n"
    "- Halden: 690, three weeks\n"
    "- Brandt: 612, five weeks\n",
    "Projects/Greenhouse/Foundation.md": "# Foundation\n\nStrip foundation, 30 cm deep. Jonas has the "
    "mixer in April.\n",
    "Projects/Reading list.md": "# Reading list\n\n- [ ] The Death and Life of Great American Cities\n"
    "- [x] The Timeless Way of Building\n",
    "Garden/Tomatoes.md": "# Tomatoes\n\nSow in the greenhouse in late February. Needs 18 degrees to "
    "germinate.\n",
    "Garden/Watering.md": "# Watering\n\nThe greenhouse wants water every second day in May, daily in "
    "July.\n",
    "Journal/2026-11-12.md": "# Thursday\n\nWalked along the river. Called Halden about the greenhouse "
    "glass.\n",
    "Journal/2026-11-13.md": "# Friday\n\nJonas can lend the mixer in April.\n",
    "Kitchen/Bread.md": "# Bread\n\n70 percent water, a night in the cold.\n",
    "Kitchen/Green tea.md": "# Green tea\n\nEighty degrees, two minutes.\n",
}

ANSWER = """The greenhouse project is **active**, and two things are open:

1. **Order the glass** before March. There are two offers:

| Supplier | Price | Delivery |
|:--|--:|--:|
| Halden | 690 | three weeks |
| Brandt | 612 | five weeks |

2. **Ask Jonas** about the foundation. According to your journal he can lend the mixer in *April*.

With Brandt the budget holds:

```python
budget = {"glass": 612, "timber": 310, "foundation": 180}
print(sum(budget.values()))  # 1102, of 1130
```

> Brandt needs five weeks: order by **22 January** to have the glass in March.

The plan itself is in [[Projects/Greenhouse/Plan]]."""


def paced(word: str, text: str, pieces: int, pause: int) -> str:
    """Returns the steps of a script that write a text in several pieces.

    `pause` is the number of milliseconds between them.
    """
    size = -(-len(text) // pieces)
    return "".join(
        f"pause {pause}ms\n{word} {json.dumps(text[at : at + size])}\n" for at in range(0, len(text), size)
    )


PLAN, GLASS = "Projects/Greenhouse/Plan.md", "Projects/Greenhouse/Glazing offers.md"
SEARCH = 'call vault_search {"query": "greenhouse", "limit": 10}'
READ = (
    "call file_read "
    f"{json.dumps({'filePaths': [PLAN, GLASS, 'Journal/2026-11-13.md', 'Projects/Greenhouse/Permit.md']})}"
)
PRICE = {"oldText": "- Glass: 640", "newText": "- Glass: 612 (Brandt)"}
DATE = {
    "oldText": "- [ ] Order the glass before March",
    "newText": "- [ ] Order the glass at Brandt by 22 January\n- [ ] Clear the south wall",
}
EDIT = f"call note_edit {json.dumps({'filePath': PLAN, 'edits': [PRICE, DATE]})}"
NEW = "# Monday\n\nDecided for the glass of Brandt.\n"
WRITE = f"call note_write {json.dumps({'filePath': 'Journal/2026-11-16.md', 'content': NEW})}"
THOUGHT = "The person asks about a project. I should look into the vault first."
LOOKS = (
    paced("think", THOUGHT, 6, 12)
    + paced("say", "Let me look through your notes.", 4, 15)
    + f"pause 20ms\nchunk 7\n{SEARCH}\nusage 812 64\n---\npause 60ms\n"
    + paced("raw", ANSWER, 24, 6)
    + "usage 1460 231\n"
)
MODELS: dict[str, dict[str, Any]] = {
    "qwen3-8b": {"tools": "emulated", "script": f"pause 90ms\n{LOOKS}"},
    "llama-3.1-8b": {
        "script": f"think Four notes seem to matter.\nsay I would like to read these notes.\n{READ}\n---\n"
        "say The plan needs two things."
    },
    "gemma-3-4b": {
        "tools": "constrained",
        "script": f"say I will note the new price.\n{EDIT}\n---\nsay Done: the plan has the new price.",
    },
    "codex": {
        "tools": "parked",
        "script": f"say First the plan, then today's note.\n{READ}\n{WRITE}\n---\nsay Both are done.",
    },
    "demo": {"tools": "emulated"},
    "mistral-small": {
        "script": "chunk 5\npause 40ms\nsay Green tea wants eighty degrees and two minutes.\nusage 38 11"
    },
    "phi-4-mini": {
        "tools": "emulated",
        "script": "fail rate_limit The upstream is busy: 429 Too Many Requests, try again in 20 s.",
    },
}
TOOLS = ("vault_search", "file_read", "note_edit", "vault_tasks", "get_weather")


def history(folder: Path) -> None:
    """Writes a day of traffic into the journal: one line for each turn, as the server does."""
    chance, now, records = random.Random(7), time.time(), []
    usual = (
        ("qwen3-8b", "emulated", 420),
        ("llama-3.1-8b", "native", 260),
        ("gemma-3-4b", "constrained", 310),
        ("codex", "parked", 1400),
    )
    for minute in range(24 * 60, 3, -1):
        hour = time.localtime(now - minute * 60).tm_hour
        if chance.random() > (0.24 if 8 <= hour < 22 else 0.03):
            continue
        model, strategy, typical = chance.choices(usual, (6, 5, 3, 2))[0]
        first = typical * chance.lognormvariate(0, 0.35)
        called = tuple(chance.sample(TOOLS, chance.choices((0, 1, 2), (5, 6, 1))[0]))
        failed = chance.random() < 0.035
        records.append(
            TurnRecord(
                f"turn_{chance.getrandbits(96):024x}",
                now - minute * 60 + chance.random() * 40,
                api=chance.choice(("chat", "chat", "responses")),
                model=model,
                backend="scripted",
                strategy=strategy if called else "none",
                kind="resumed" if strategy == "parked" and chance.random() < 0.4 else "new",
                stream=True,
                status=502 if failed else 200,
                finish=None if failed else "tool_calls" if called else "stop",
                error="backend_error" if failed else None,
                calls=() if failed else called,
                input_tokens=chance.randrange(180, 2600),
                output_tokens=0 if failed else chance.randrange(20, 420),
                first_byte_ms=None if failed else first,
                duration_ms=first + chance.randrange(100, 2600),
                parked=strategy == "parked" and bool(called) and not failed,
            )
        )
    Segments(folder / "journal", 1 << 26).append(records)


LINK = "link.txt"
"""The file with the address of a link to a question."""


async def elsewhere(folder: Path, vault: str) -> None:
    """Stores questions that were asked elsewhere, by an MCP client and in a terminal, and a link to one."""
    store = Store(f"sqlite:///{folder}/toolwire.db")
    now = time.time()
    tomatoes = Preview((Touched("Garden/Tomatoes.md", "Garden/Tomatoes.md", 84),), pick=True)
    asked: tuple[tuple[int, str, str, str, dict[str, Any], Preview], ...] = (
        (80, "mcp", "claude-desktop", "file_read", {"filePaths": ["Garden/Tomatoes.md"]}, tomatoes),
        (
            212,
            "chat",
            "qwen3-8b",
            "vault_tasks",
            {"folder": "Projects", "status": "open"},
            Preview(summary="the text of open tasks in Projects"),
        ),
    )
    approvals, made = Approvals(store), []
    for place, (since, surface, model, tool, arguments, shown) in enumerate(asked):
        when, who = (now - since, now - since + LIFETIME_S), ("", f"{surface}-1", surface, model)
        one = Approval(
            f"appr_{place:024x}", *when, *who, tool, "run", arguments, shown, "", source=f"vault:{vault}"
        )
        made.append(replace(one, token=approvals.proofs.token(one)))
    await approvals.records.add(made)
    key = await Links(store, approvals).add(made[0], "link", "phone", approves=True)
    (folder / LINK).write_text(f"/ui/link/{key.id}#{key.secret}")
    await store.close()


# --- a person at the pages ---


@dataclass
class Stage:
    """A signed-in tab.

    `call` uses the API to prepare what the scenes show.
    """

    page: Page
    site: Site
    key: str = ""
    ids: dict[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.time)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        request = self.page.context.request
        self.key = self.key or self.page.evaluate("localStorage.getItem('toolwire-page')")
        answer = request.fetch(
            f"{self.site.url}/ui/api{path}", method=method, data=body, headers={"x-toolwire-page": self.key}
        )
        assert answer.ok, (method, path, answer.status, answer.text())
        return answer.json()

    def until(self, look: Callable[[], Any]) -> Any:
        end = time.monotonic() + WAIT_S
        while not (found := look()):
            assert time.monotonic() < end, "nothing came"
            time.sleep(0.02)
        return found

    def ask(self, model: str, text: str, id: str = "") -> str:
        """Sends a message to a model, by default in a new conversation. Returns the conversation's id."""
        id = id or self.call("POST", "/conversations", {"model": model})["id"]
        self.call("POST", f"/conversations/{id}/turns", {"text": text, "model": model})
        return id

    def asked(self, id: str, stage: str = "run") -> list[dict[str, Any]]:
        """Waits for the questions of a conversation and returns them."""

        def look() -> list[dict[str, Any]]:
            waiting = self.call("GET", "/approvals?status=pending&limit=200")["approvals"]
            return [one for one in waiting if one["session"] == id and one["stage"] == stage]

        found: list[dict[str, Any]] = self.until(look)
        return found

    def decide(self, id: str, stage: str = "run", approved: bool = True, **more: Any) -> None:
        for one in self.asked(id, stage):
            there = [touched["key"] for touched in one["shown"]["touched"] if not touched["missing"]]
            picked = {"picked": there} if approved and one["shown"]["pick"] else {}
            self.call(
                "POST",
                f"/approvals/{one['id']}/decision",
                {"token": one["token"], "approved": approved, **picked, **more},
            )

    def ended(self, id: str) -> str:
        self.until(lambda: not self.call("GET", f"/conversations/{id}")["running"])
        return id

    def go(self, path: str) -> Page:
        self.page.goto(self.site.url + path)
        return self.page

    def dialog(self, conversation: str) -> None:
        page = self.go(f"/ui/chat/{self.ids[conversation]}")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.wait_for_function(
            "() => document.querySelector('dialog .button.danger').getAttribute('aria-disabled') === 'false'"
        )
        if conversation == "search":
            for note in ("Plan.md", "Glazing offers.md"):
                page.get_by_role("dialog").get_by_role("checkbox", name=note).check()
            page.get_by_role("dialog").get_by_text("The search is done.").first.scroll_into_view_if_needed()

    def turn(self, model: str, calls: bool) -> str:
        turns = self.call("GET", f"/turns?model={model}&limit=50")["turns"]
        found: str = next(
            one["id"] for one in turns if bool(one["calls"]) == calls and one["at"] > self.began
        )
        return found


def prepare(stage: Stage) -> None:
    """Creates conversations, waiting questions, a question that nobody answered, and grants."""
    ids = stage.ids
    tea = stage.ask("mistral-small", "How hot should green tea be?")
    failed = stage.ask("phi-4-mini", "Summarise my journal of this week")
    stage.ended(tea)
    stage.ended(failed)
    lapsed = stage.ask("codex", "Tidy up the reading list")
    stage.asked(lapsed)
    stage.call("POST", f"/conversations/{lapsed}/stop")
    denied = stage.ask("gemma-3-4b", "Write the new glass price into the plan")
    stage.decide(denied, approved=False, reason="Not before Brandt has confirmed it.")
    stage.ended(denied)
    read = stage.ask("llama-3.1-8b", "What does the plan say about glass?")
    stage.decide(read, remember="session")
    stage.ended(read)
    answer = stage.ask("qwen3-8b", "What is still open for the greenhouse?")
    stage.decide(answer, remember="tool")
    stage.decide(answer, "share")
    ids.update(tea=tea, failed=failed, denied=denied, answer=stage.ended(answer))
    ids["search"] = stage.ask("qwen3-8b", "Which notes mention the greenhouse?")
    stage.asked(ids["search"], "share")
    ids["edit"] = stage.ask("gemma-3-4b", "Put the offer of Brandt into the plan")
    ids["two"] = stage.ask("codex", "Read the plan and begin today's note")
    ids["read"] = stage.ask("llama-3.1-8b", "What do I still have to do for the greenhouse?")
    for name in ("edit", "two", "read"):
        stage.asked(ids[name])


# --- the scenes ---


def signin(stage: Stage) -> None:
    context = stage.page.context
    cookies = context.cookies()
    context.clear_cookies()
    expect(stage.go("/").get_by_role("heading", name="Sign in")).to_be_visible()
    for one in cookies:
        context.add_cookies(
            [
                {
                    "name": one["name"],
                    "value": one["value"],
                    "url": stage.site.url,
                    "httpOnly": True,
                    "sameSite": "Strict",
                }
            ]
        )


def chat_empty(stage: Stage) -> None:
    expect(stage.go("/").get_by_role("heading", name="What would you like to know?")).to_be_visible()
    expect(stage.page.get_by_role("link", name="What is still open for the greenhouse?")).to_be_attached()


def chat(stage: Stage) -> None:
    page = stage.go(f"/ui/chat/{stage.ids['answer']}")
    expect(page.get_by_text("order by 22 January")).to_be_attached()
    page.get_by_text("Thoughts").first.click()


def top(stage: Stage) -> None:
    stage.page.get_by_role("region", name="Conversation").evaluate("node => { node.scrollTop = 0 }")


def chat_end(stage: Stage) -> None:
    page = stage.go(f"/ui/chat/{stage.ids['answer']}")
    expect(page.get_by_role("button", name="Retry")).to_be_visible()


def picker(stage: Stage) -> None:
    page = stage.go("/")
    page.get_by_role("button", name="Model:").click()
    expect(page.get_by_role("option", name="llama-3.1-8b")).to_be_visible()


def inbox(tab: str, shows: str, unfold: bool = False) -> Callable[[Stage], None]:
    def scene(stage: Stage) -> None:
        page = stage.go(f"/ui/inbox?tab={tab}")
        expect(page.get_by_role("tabpanel").get_by_text(shows).first).to_be_visible()
        if unfold:
            page.locator("summary", has_text="Details").first.click()

    return scene


def link(stage: Stage) -> None:
    stage.go((stage.site.folder / LINK).read_text())
    expect(stage.page.get_by_role("button", name="Read 1 note")).to_have_attribute("aria-disabled", "false")


def settings(stage: Stage) -> None:
    expect(stage.go("/ui/settings").get_by_role("switch", name="Tools in the chat")).to_be_checked()


def settings_confirm(stage: Stage) -> None:
    settings(stage)
    switch = stage.page.get_by_role("switch", name="Tools in the chat")
    switch.click()
    expect(stage.page.get_by_text("Off: models in the chat cannot use")).to_be_visible()
    switch.click()
    expect(stage.page.get_by_role("dialog")).to_be_visible()


def settings_again(stage: Stage) -> None:
    """Turns on again what the scene before turned off."""
    stage.call("PUT", "/settings", {"tool_calling": True})


def connect(stage: Stage) -> None:
    page = stage.go("/ui/connect?client=obsidian-copilot")
    page.get_by_label("Model", exact=True).select_option("qwen3-8b")
    expect(page.get_by_role("tabpanel").get_by_role("heading", level=2)).to_be_visible()


def connect_to(client: str) -> Callable[[Stage], None]:
    def scene(stage: Stage) -> None:
        page = stage.go(f"/ui/connect?client={client}")
        page.get_by_label("Model", exact=True).select_option("demo")
        expect(page.get_by_role("tabpanel").get_by_role("heading", level=2)).to_be_visible()

    return scene


def connect_test(stage: Stage) -> None:
    page = stage.go("/ui/connect?client=codex")
    page.get_by_label("Model", exact=True).select_option("demo")
    expect(page.get_by_role("tabpanel").get_by_text('model = "demo"')).to_be_visible()
    page.get_by_role("button", name="Test the round trip").click()
    expect(page.get_by_text("It works")).to_be_visible()


def tester(stage: Stage) -> None:
    stage.page.get_by_role("region", name="Test of").evaluate("node => node.scrollIntoView({block: 'end'})")


def wire(stage: Stage) -> None:
    page = stage.go("/ui/wire")
    expect(page.get_by_role("figure").first).to_be_visible()
    expect(page.get_by_role("cell", name="qwen3-8b").first).to_be_attached()


def turn(tab: str, model: str = "qwen3-8b", calls: bool = True) -> Callable[[Stage], None]:
    def scene(stage: Stage) -> None:
        page = stage.go(f"/ui/wire/{stage.turn(model, calls)}#{tab}")
        expect(page.get_by_role("tab", selected=True)).to_have_id(f"turn-tab-{tab}")
        if tab in ("frames", "events", "wire"):
            page.get_by_role("option").nth(2).click()
            expect(page.get_by_role("region", name="whole")).to_be_visible()

    return scene


def below(stage: Stage) -> None:
    """Scrolls the tabs to the top, because the scene shows their contents."""
    stage.page.get_by_role("tab", selected=True).scroll_into_view_if_needed()
    stage.page.get_by_role("tablist").evaluate("node => node.scrollIntoView({block: 'start'})")


def nothing(stage: Stage) -> None: ...


@dataclass(frozen=True)
class Scene:
    """A scene. `act` prepares it.

    `look` runs after each change of the window's size, `after` when the scene is over.
    """

    name: str
    act: Callable[[Stage], None]
    look: Callable[[Stage], None] = nothing
    after: Callable[[Stage], None] = nothing


SCENES = (
    Scene("signin", signin),
    Scene("chat-empty", chat_empty),
    Scene("chat", chat, top),
    Scene("chat-end", chat_end),
    Scene("models", picker),
    *(
        Scene(f"approve-{name}", lambda stage, name=name: stage.dialog(name))
        for name in ("read", "search", "edit", "two")
    ),
    Scene("inbox", inbox("pending", "left")),
    Scene("inbox-decided", inbox("decided", "approved", unfold=True)),
    Scene("inbox-expired", inbox("expired", "expired")),
    Scene("inbox-grants", inbox("grants", "One conversation")),
    Scene("inbox-audit", inbox("audit", "newest first")),
    Scene("link", link),
    Scene("settings", settings),
    Scene("connect", connect),
    Scene("connect-test", connect_test, tester),
    Scene("wire", wire),
    Scene("turn", turn("overview")),
    *(Scene(f"turn-{tab}", turn(tab), below) for tab in ("request", "frames", "events", "wire", "sides")),
    Scene("settings-confirm", settings_confirm, after=settings_again),  # last: ends the questions
)

GUIDES = (
    *(Scene(f"connect-{client.id}", connect_to(client.id)) for client in CLIENTS),
    *(
        Scene(f"strategy-{name}", turn("overview", model))
        for name, model in (("native", "llama-3.1-8b"), ("constrained", "gemma-3-4b"), ("parked", "codex"))
    ),
)
"""More scenes for the guides, in one width: the same pages with other contents."""


def opened(folder: Path, port: int = 0, models: dict[str, dict[str, Any]] = MODELS) -> Site:
    """Starts the server of the scenes in this folder, with a vault and a day of traffic."""
    vault = folder / "Notes"
    for path, text in NOTES.items():
        (vault / path).parent.mkdir(parents=True, exist_ok=True)
        (vault / path).write_text(text)
    history(folder)
    with ThreadPoolExecutor() as threads:  # Playwright runs an event loop in this thread
        threads.submit(asyncio.run, elsewhere(folder, str(vault.resolve()))).result()
    config = {
        "server": {"host": "127.0.0.1", "drain_s": 1},
        "models": {id: {"backend": "scripted", **options} for id, options in models.items()},
        "vault": {"root": "~/Notes", "enabled": True, "exclude": ["Private/**"]},
        "store": {"url": f"sqlite:///{folder}/toolwire.db"},
    }
    return Site(folder, config, port).start()


def usual_port() -> int:
    """Returns the port that the guides use, or 0 if it is taken."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", USUAL_PORT))
        except OSError:
            return 0
    return USUAL_PORT


def begin(page: Page, site: Site) -> Stage:
    """Signs in and prepares everything that the scenes show."""
    page.goto(site.link)
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    stage = Stage(page, site)
    prepare(stage)
    return stage


# --- pictures ---

# Reduces pictures of one size to the same 256 colours: the most frequent ones, then those that differ most.
# Each pixel gets the nearest colour. The browser does this, because it can read its own pictures.
QUANTISE = """async (pictures) => {
  const blobs = pictures.map(async (one) => (await fetch(`data:image/png;base64,${one}`)).blob())
  const bitmaps = await Promise.all(blobs.map(async (blob) => createImageBitmap(await blob)))
  const [{width, height}] = bitmaps
  const canvas = new OffscreenCanvas(width, height * bitmaps.length).getContext('2d')
  bitmaps.forEach((bitmap, at) => canvas.drawImage(bitmap, 0, at * height))
  const pixels = new Uint32Array(canvas.getImageData(0, 0, width, height * bitmaps.length).data.buffer)
  const counts = new Map()
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1)
  const colours = [...counts].sort((one, other) => other[1] - one[1])
    .map(([pixel, count]) => {
      const rgb = [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255]
      return {pixel, count, rgb, far: Infinity, place: 0}
    })
  const palette = []
  const choose = ({rgb: [red, green, blue]}) => {
    const place = palette.push([red, green, blue]) - 1
    for (const one of colours) {
      const far = 2 * (red - one.rgb[0]) ** 2 + 4 * (green - one.rgb[1]) ** 2 + 3 * (blue - one.rgb[2]) ** 2
      if (far < one.far) Object.assign(one, {far, place})
    }
  }
  colours.slice(0, 64).forEach(choose)
  const wrong = (one) => one.far * Math.sqrt(one.count)
  while (palette.length < 256) {
    const worst = colours.reduce((one, other) => (wrong(other) > wrong(one) ? other : one))
    if (!wrong(worst)) break
    choose(worst)
  }
  const places = new Map(colours.map(({pixel, place}) => [pixel, place]))
  const indices = Uint8Array.from(pixels, (pixel) => places.get(pixel)).toBase64()
  return {width, height, palette, indices}
}"""


def small(image: dict[str, Any]) -> bytes:
    """Returns the picture as a PNG with a palette."""
    width, height, indices = image["width"], image["height"], base64.b64decode(image["indices"])
    rows = [indices[row * width : (row + 1) * width] for row in range(height)]
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    colours = bytes(part for colour in image["palette"] for part in colour)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"PLTE", colours)
        + chunk(b"IDAT", packed(rows))
        + chunk(b"IEND", b"")
    )


ANIMATED = "approval"

FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><include ignore_missing="yes">/etc/fonts/fonts.conf</include>
<match target="pattern"><test qual="any" name="family" compare="not_contains"><string>Mono</string></test>
<edit name="family" mode="prepend" binding="strong">
<string>Inter</string><string>Noto Sans</string><string>Liberation Sans</string></edit></match>
</fontconfig>"""


def take(stage: Stage, easel: Page, scenes: list[Scene], looks: list[tuple[int, str]], folder: Path) -> int:
    """Takes every scene in every look. Returns their size in bytes."""
    total = 0
    for scene in scenes:
        stage.page.set_viewport_size({"width": 1280, "height": 800})
        scene.act(stage)
        for width, theme in [look for look in looks if look[0] == 1024 or scene not in GUIDES]:
            stage.page.set_viewport_size({"width": width, "height": SIZES[width]})
            stage.page.emulate_media(
                color_scheme="dark" if theme == "dark" else "light", reduced_motion="reduce"
            )
            scene.look(stage)
            stage.page.evaluate(
                "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
            )
            taken = stage.page.screenshot(animations="disabled", caret="hide")
            content = small(easel.evaluate(QUANTISE, [base64.b64encode(taken).decode()]))
            name = f"{scene.name}-{width}{'-dark' if theme == 'dark' else ''}.png"
            (folder / name).write_bytes(content)
            total += len(content)
        scene.after(stage)
        print(scene.name, flush=True)
    return total


def main(argv: list[str] | None = None) -> int:
    names = [scene.name for scene in (*GUIDES, *SCENES)] + [ANIMATED]
    parser = argparse.ArgumentParser(description="Takes pictures of the pages, into docs/screenshots/.")
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help=f"one of {', '.join(names)}"
    )
    parser.add_argument("--all", action="store_true", help="every width in both themes")
    parser.add_argument("--to", type=Path, default=FOLDER, help="the folder to write")
    arguments = parser.parse_args(argv)
    if CHROMIUM is None:
        print("Chromium is missing; make screenshots installs it where it may", file=sys.stderr)
        return 1
    looks = [(width, "light") for width in SIZES] + [
        (width, "dark") for width in (SIZES if arguments.all else (1024,))
    ]
    scenes = [scene for scene in (*GUIDES, *SCENES) if not arguments.only or scene.name in arguments.only]
    arguments.to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ada-") as made, sync_playwright() as playwright:
        folder = Path(made)
        (folder / "fonts.conf").write_text(FONTS)
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[*QUIET, "--font-render-hinting=none"],
            env={**os.environ, "FONTCONFIG_FILE": str(folder / "fonts.conf")},
        )
        site = opened(folder, usual_port())
        try:
            context = browser.new_context(viewport={"width": 1280, "height": 800}, locale="en-GB")
            stage = begin(context.new_page(), site)
            total = take(stage, browser.new_page(), scenes, looks, arguments.to) if scenes else 0
        finally:
            site.stop()
        if not arguments.only or ANIMATED in arguments.only:
            content = animation.take(browser, opened, QUANTISE)
            (arguments.to / f"{ANIMATED}.png").write_bytes(content)
            total += len(content)
            print(ANIMATED, flush=True)
        browser.close()
    print(f"{len(scenes)} scenes, {total / 1e6:.1f} MB, in {arguments.to}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

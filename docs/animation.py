"""The animated picture of an approval, for `make screenshots`: from the real page, as an animated PNG.

A person asks, approves a search, picks two results, shares them, and reads the answer. The model follows a
script, and the page says so; its answer uses only what was shared. Every frame has the same palette, and
holds only what differs from the frame before it.
"""

from __future__ import annotations

import base64
import json
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Locator, Page, expect

SIZE = {"width": 1000, "height": 700}
QUESTION = "Which glass fits the budget of the greenhouse?"
PICKED = ("Plan.md", "Glazing offers.md")
ANSWER = """Only the offer of **Brandt** fits the 640 that your plan has for glass:

| Supplier | Price | Delivery |
|:--|--:|:--|
| Brandt | 612 | five weeks |
| Halden | 690 | three weeks |
"""
SCRIPT = f"""say I will look for the offers in your notes.
call vault_search {{"query": "glass"}}
---
raw {json.dumps(ANSWER)}
"""
MODELS = {"assistant": {"tools": "emulated", "script": SCRIPT}}


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame: its pixels as indices into the palette, and how long it is shown."""

    pixels: bytes
    width: int
    height: int
    ms: int


# --- the file ---


def chunk(kind: bytes, data: bytes) -> bytes:
    """Returns a chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def packed(rows: Sequence[bytes]) -> bytes:
    return zlib.compress(b"".join(b"\0" + row for row in rows), 9)


def animated(frames: Sequence[Frame], palette: Sequence[Sequence[int]]) -> bytes:
    """Returns the frames as an animated PNG that repeats."""
    first = frames[0]
    out = [
        b"\x89PNG\r\n\x1a\n",
        chunk(b"IHDR", struct.pack(">IIBBBBB", first.width, first.height, 8, 3, 0, 0, 0)),
        chunk(b"acTL", struct.pack(">II", len(frames), 0)),
        chunk(b"PLTE", bytes(part for colour in palette for part in colour)),
    ]
    number, before = 0, None
    for frame in frames:
        left, top, width, height = _changed(before, frame)
        place = struct.pack(">IIIIIHHBB", number, width, height, left, top, frame.ms, 1000, 0, 0)
        rows = [
            frame.pixels[row * frame.width + left : row * frame.width + left + width]
            for row in range(top, top + height)
        ]
        data = packed(rows)
        out.append(chunk(b"fcTL", place))
        number += 1
        if before is None:
            out.append(chunk(b"IDAT", data))
        else:
            out.append(chunk(b"fdAT", struct.pack(">I", number) + data))
            number += 1
        before = frame
    return b"".join([*out, chunk(b"IEND", b"")])


def _changed(before: Frame | None, frame: Frame) -> tuple[int, int, int, int]:
    """Returns the box that differs from the frame before: left, top, width, height."""
    width, height = frame.width, frame.height
    if before is None:
        return 0, 0, width, height
    pairs = [
        (before.pixels[row * width : (row + 1) * width], frame.pixels[row * width : (row + 1) * width])
        for row in range(height)
    ]
    rows = [row for row, (old, new) in enumerate(pairs) if old != new] or [0]
    columns = [
        column
        for row in rows
        for column, (old, new) in enumerate(zip(*pairs[row], strict=True))
        if old != new
    ] or [0]
    left, top = min(columns), rows[0]
    return left, top, max(columns) + 1 - left, rows[-1] + 1 - top


# --- what is shown ---


def approval(page: Page) -> Iterator[int]:
    """Plays the approval. Yields at each frame, with its time in milliseconds."""
    box = page.get_by_role("textbox", name="Message")
    box.fill(QUESTION)
    page.mouse.move(SIZE["width"] - 1, SIZE["height"] - 1)
    yield 1500
    box.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("Nothing has been searched yet")).to_be_visible()
    _ready(dialog)
    yield 2500
    dialog.get_by_role("button", name="Search", exact=True).press("Enter")
    expect(dialog.get_by_text("The search is done.").first).to_be_visible()
    _ready(dialog)
    yield 2000
    for name in PICKED:
        dialog.get_by_role("checkbox", name=name).focus()
        page.keyboard.press("Space")
    share = dialog.get_by_role("button", name=f"Share {len(PICKED)} results", exact=True)
    expect(share).to_have_attribute("aria-disabled", "false")
    dialog.get_by_role("group", name="Tool calls to approve").evaluate("node => { node.scrollTop = 0 }")
    yield 2500
    share.press("Enter")
    expect(page.get_by_role("button", name="Retry")).to_be_visible()
    yield 4000


def _ready(dialog: Locator) -> None:
    """Waits for the half second in which nothing can be decided."""
    expect(dialog.get_by_role("button", name="Deny", exact=True)).to_have_attribute("aria-disabled", "false")


def take(browser: Browser, opened: Callable[[Path], Any], quantise: str) -> bytes:
    """Returns the animated picture, from a server of its own.

    `opened` starts the server. `quantise`: the script that reduces pictures to one palette.
    """
    with tempfile.TemporaryDirectory(prefix="ada-") as folder:
        site = opened(Path(folder), models=MODELS)
        try:
            context = browser.new_context(viewport=SIZE, locale="en-GB", reduced_motion="reduce")  # type: ignore[arg-type]
            page = context.new_page()
            page.goto(site.link)
            expect(page.get_by_role("textbox", name="Message")).to_be_visible()
            times, pictures = [], []
            for ms in approval(page):
                times.append(ms)
                taken = page.screenshot(animations="disabled", caret="hide")
                pictures.append(base64.b64encode(taken).decode())
            easel = context.new_page()
            image: dict[str, Any] = easel.evaluate(quantise, pictures)
            context.close()
        finally:
            site.stop()
    pixels, size = base64.b64decode(image["indices"]), SIZE["width"] * SIZE["height"]
    frames = [
        Frame(pixels[at * size : (at + 1) * size], SIZE["width"], SIZE["height"], ms)
        for at, ms in enumerate(times)
    ]
    return animated(frames, image["palette"])

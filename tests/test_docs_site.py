"""The site that `make docs` builds: strict, complete, and readable without a network."""

from __future__ import annotations

import importlib.util
import math
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
WITHOUT_A_HEAD = {
    "index.md",
    "clients.md",
    "supported.md",
    "evidence.md",
    "conform.md",
    "benchmarks.md",
    "websocket.md",
}
"""The first page, and those that a command writes or that say it in their own way."""
ASSETS = {
    ("script", "src"),
    ("img", "src"),
    ("source", "src"),
    ("iframe", "src"),
    ("video", "src"),
    ("img", "srcset"),
    ("object", "data"),
}


@cache
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_builder", DOCS / "site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Page(HTMLParser):
    """What a page links to, loads, and can be linked to by."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.assets: list[str] = []
        self.ids: set[str] = set()
        self.images_without_words: list[str] = []
        self.source = file.read_text("utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        if "id" in told:
            self.ids.add(told["id"])
        if tag == "a" and "href" in told:
            self.links.append(told["href"])
        self.assets += [told[name] for kind, name in ASSETS if kind == tag and name in told]
        if tag == "link" and set(told.get("rel", "").split()) & {
            "stylesheet",
            "icon",
            "preconnect",
            "preload",
            "modulepreload",
            "manifest",
            "dns-prefetch",
        }:
            self.assets.append(told.get("href", ""))
        if tag == "img" and not told.get("alt"):
            self.images_without_words.append(told.get("src", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("zensical") is None:
        pytest.skip("zensical is missing")
    work = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, str(DOCS / "site.py"), "--out", str(work / "out"), "--work", str(work / "laid-out")],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return work / "out"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    return {file.name: Page(file) for file in site.glob("*.html") if file.name != "404.html"}


def test_every_page_of_the_documents_is_a_page_of_the_site(pages: dict[str, Page]) -> None:
    assert set(pages) == {name.removesuffix(".md") + ".html" for name in builder().sources()}


def test_every_page_can_be_reached_by_the_navigation(pages: dict[str, Page]) -> None:
    navigation = re.search(
        r'(?s)<nav class="md-nav md-nav--primary.*?</nav>\s*</div>', pages["index.html"].source
    )
    assert navigation is not None
    reached = set(re.findall(r'href="\.?/?([\w-]+\.html)', navigation[0]))
    assert set(pages) - {"index.html"} <= reached


def test_nothing_is_loaded_from_another_host(pages: dict[str, Page], site: Path) -> None:
    for name, page in pages.items():
        assert [asset for asset in page.assets if urlsplit(asset).netloc] == [], name
        assert "@import" not in page.source, name
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"url\(['\"]?(?:https?:)?//[^)]+\)|@import", sheet.read_text("utf-8")), sheet


def test_every_link_and_every_file_is_there(pages: dict[str, Page], site: Path) -> None:
    for name, page in pages.items():
        for target in (*page.links, *page.assets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                assert parts.scheme in ("https", "http", "data", "mailto"), (name, target)
                continue
            file = (site / unquote(parts.path)).resolve() if parts.path else site / name
            file = file / "index.html" if file.is_dir() else file
            assert file.is_relative_to(site.resolve()) and file.is_file(), (name, target)
            if parts.fragment and file.suffix == ".html":
                assert unquote(parts.fragment) in pages[file.name].ids, (name, target)


def test_every_picture_is_told_in_words(pages: dict[str, Page]) -> None:
    assert {
        name: page.images_without_words for name, page in pages.items() if page.images_without_words
    } == {}
    for file in (DOCS / "pictures").glob("*.svg"):
        assert re.search(r"<title id=", picture := file.read_text("utf-8")) and "<desc id=" in picture, file


def test_no_page_names_a_development_machine_or_a_registry(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        assert (
            re.findall(
                r"(?<!bench)/work/|/root/|/tmp/|/home/\w|pypi\.org|registry\.npmjs|file://", page.source
            )
            == []
        ), name


def test_a_cell_of_a_table_carries_the_name_of_its_column() -> None:
    """On a phone, a row is a card and its header is not shown."""
    table = "<table><thead><tr><th>key</th><th><code>a</code> b</th></tr></thead>"
    table += "<tbody><tr><td>1</td><td style='x'><em>2</em></td></tr></tbody></table>"
    found = re.findall(
        r'data-column="([^"]*)"><span>(.*?)</span>', builder().TABLE.sub(builder().with_columns, table)
    )
    assert found == [("key", "1"), ("a b", "<em>2</em>")]


def test_search_knows_every_page(site: Path, pages: dict[str, Page]) -> None:
    index = (site / "search.json").read_text("utf-8")
    assert all(name in index for name in set(pages) - {"index.html"})


def test_each_guide_begins_with_what_you_get_and_when_to_use_it() -> None:
    for path in sorted(DOCS.glob("*.md")):
        if path.name not in WITHOUT_A_HEAD:
            head = path.read_text("utf-8")[:1500]
            assert re.match(
                r"# .+\n\n> \*\*What you get:\*\* (?s:.+?)\n>\n> \*\*(?:Use it when|To use it)\*\* ", head
            ), path.name


# --- what makes a build fail ---


@pytest.fixture
def nav() -> list[dict[str, object]]:
    told: list[dict[str, object]] = tomllib.loads((DOCS / "zensical.toml").read_text("utf-8"))["project"][
        "nav"
    ]
    return told


def test_a_page_that_the_navigation_does_not_name_is_an_error(nav: list[dict[str, object]]) -> None:
    with pytest.raises(builder().SiteError, match=r"does not name: new\.md"):
        builder().checked(nav, {*builder().sources(), "new.md"})


def test_a_page_that_is_gone_is_an_error_unless_a_command_writes_it(nav: list[dict[str, object]]) -> None:
    there = set(builder().sources())
    with pytest.raises(builder().SiteError, match=r"not there: vault\.md"):
        builder().checked(nav, there - {"vault.md"})
    assert "benchmarks.md" in builder().checked(nav, there - {"benchmarks.md"})


def test_a_page_that_is_named_twice_is_an_error(nav: list[dict[str, object]]) -> None:
    with pytest.raises(builder().SiteError, match=r"twice: vault\.md"):
        builder().checked([*nav, {"Again": "vault.md"}], set(builder().sources()))


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A site of two pages."""
    docs = tmp_path / "docs"
    (docs / "assets").mkdir(parents=True)
    (docs / "zensical.toml").write_text(
        '[project]\nsite_name = "x"\ndocs_dir = "pages"\nnav = [{ "A" = "index.md" }, { "B" = "b.md" }]\n',
        "utf-8",
    )
    (docs / "index.md").write_text("# A\n\n[B](b.md#there)\n", "utf-8")
    (docs / "b.md").write_text("# B\n\n## There\n", "utf-8")
    monkeypatch.setattr(builder(), "DOCS", docs)
    monkeypatch.setattr(builder(), "ROOT_PAGES", ())
    monkeypatch.setattr(builder(), "SETTINGS", docs / "zensical.toml")
    yield docs


@pytest.mark.parametrize("link", ["b.md#nowhere", "nowhere.md"])
def test_a_dead_link_is_an_error_that_says_where(
    small: Path, tmp_path: Path, link: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("zensical") is None:
        pytest.skip("zensical is missing")
    arguments = ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    assert builder().main(arguments) == 0
    (small / "index.md").write_text(f"# A\n\n[B]({link})\n", "utf-8")
    assert builder().main(arguments) == 1
    assert "index.md:3" in capsys.readouterr().err


# --- in a browser ---


SIDEWAYS = """() => [...document.querySelectorAll('.md-content :is(pre > code, .md-typeset__scrollwrap)')]
  .filter(box => box.scrollWidth > box.clientWidth + 1)
  .map(box => [box.querySelectorAll('th').length, box.textContent.trim().slice(0, 40)])"""
"""Code and tables that a reader has to scroll sideways: the number of columns, and how they begin."""
MANY = 10
"""Tables with at least so many columns may scroll on a wide screen. On a phone, their rows become cards."""


def test_from_the_disk_every_page_fits_a_phone_and_asks_no_other_host_and_search_finds(
    site: Path, pages: dict[str, Page]
) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is missing")
    from playwright.sync_api import expect, sync_playwright

    asked: list[str] = []
    broken: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
        page.on(
            "request",
            lambda request: (
                asked.append(request.url) if not request.url.startswith(("file:", "data:", "blob:")) else None
            ),
        )
        page.on("pageerror", lambda error: broken.append(str(error)))
        for name in sorted(pages):
            page.goto((site / name).as_uri(), wait_until="domcontentloaded")
            for width, columns in ((390, math.inf), (1280, MANY)):
                page.set_viewport_size({"width": width, "height": 860})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} is too wide"
                assert [box for box in page.evaluate(SIDEWAYS) if box[0] < columns] == [], name
        assert page.evaluate("document.body.dataset.mdColorScheme") == "slate", (
            "the system's dark is followed"
        )
        page.goto((site / "index.html").as_uri())
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent").strip() == "Skip to content"
        page.get_by_role("button", name="Search").first.click()
        page.get_by_role("combobox").or_(page.get_by_placeholder("Search")).first.fill("parked turns")
        expect(page.get_by_role("link", name="Parked turns").last).to_be_visible()
        browser.close()
    assert (asked, broken) == ([], [])

"""`make docs`: builds the pages of docs/ as a site in site/.

The Markdown is written for readers of the repository. This module prepares it for Zensical (build/docs/pages)
and adds what only a site can show: dark variants of screenshots, and diagrams whose colours follow the theme.
A dead link or anchor fails the build, and so does a page that is not exactly once in the navigation of
docs/zensical.toml. The site needs no network and no server: open site/index.html.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
SETTINGS = DOCS / "zensical.toml"
ROOT_PAGES = ("SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md")
ROOT_FILES = {
    "toolwire.example.toml": "toolwire.example.toml",
    ".env.example": "env.example",
    "LICENSE": "LICENSE.txt",
}
LOGO = ROOT / "src" / "toolwire" / "surfaces" / "web" / "static" / "favicon.svg"
MADE_BY_COMMANDS = ("benchmarks.md", "conform.md", "websocket.md")
"""Pages that may be missing. The navigation omits them until they exist."""

OWN_SCRIPT = (re.compile(r"https://[^\"]*/iframe-worker/shim"), "assets/worker.js")
"""The only file that Zensical's pages would load from another host, and the local replacement."""

FENCED = re.compile(r"(?ms)^(`{3,}|~{3,}).*?^\1[ \t]*$")
COMMENT = re.compile(r"(?ms)^<!--.*?-->\n?")
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FILE_NAME = re.compile(r"\[(?:docs/)?([\w-]+\.md)\](?=\(\1[)#])")


TABLE = re.compile(r"(?s)<table>.*?</table>")
TAG = re.compile(r"<[^>]+>")


class SiteError(Exception):
    """A problem with the site. The message is one line."""


# --- navigation ---


def named(nav: list[Any]) -> list[tuple[str, str]]:
    """Returns the titles and pages of a navigation, in its order."""
    out: list[tuple[str, str]] = []
    for entry in nav:
        for title, value in entry.items():
            out += named(value) if isinstance(value, list) else [(title, value)]
    return out


def sources() -> dict[str, Path]:
    """Returns every page of the site by its name in the site."""
    return {path.name: path for path in [*sorted(DOCS.glob("*.md")), *(ROOT / name for name in ROOT_PAGES)]}


def checked(nav: list[Any], there: set[str]) -> set[str]:
    """Returns the pages that the navigation names and that do not exist yet.

    Raises `SiteError` if the pages and the navigation do not match.
    """
    pages = [page for _, page in named(nav)]
    if twice := sorted({page for page in pages if pages.count(page) > 1}):
        raise SiteError(f"{SETTINGS.name} names twice: {', '.join(twice)}")
    if unnamed := sorted(there - set(pages)):
        raise SiteError(f"{SETTINGS.name} does not name: {', '.join(unnamed)}")
    absent = set(pages) - there
    if lost := sorted(absent - set(MADE_BY_COMMANDS)):
        raise SiteError(f"{SETTINGS.name} names what is not there: {', '.join(lost)}")
    return absent


# --- pages ---


def outside_fences(text: str, change: Any) -> str:
    """Applies `change` to everything in the text that is not in a fenced block."""
    out, end = [], 0
    for fence in FENCED.finditer(text):
        out += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*out, change(text[end:])])


def laid_out(text: str, pages: Path, titles: dict[str, str]) -> str:
    """Returns a page as the site shows it, and copies the pictures and files that it needs.

    A link whose text is a file name gets the title of the page instead.
    """

    def link(match: re.Match[str]) -> str:
        target, _, anchor = match[2].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        name = re.sub(r"^(?:\.\./|docs/)+", "", target)
        if name == "README.md":
            name = "quick-start.md"
        elif name in ROOT_FILES:
            copy(ROOT / name, pages / (name := ROOT_FILES[name]))
        elif not name.endswith(".md") and (DOCS / name).is_file():
            copy(DOCS / name, pages / name)
        return f"{match[1]}{name}{'#' + anchor if anchor else ''}{match[3]}"

    def image(match: re.Match[str]) -> str:
        alt, name = match[1], match[2].removeprefix("docs/")
        if name.endswith(".svg"):
            return (
                f'<div class="picture" tabindex="0" role="group" aria-label="{alt}">\n'
                f"{(DOCS / name).read_text('utf-8').strip()}\n</div>"
            )
        copy(DOCS / name, pages / name)
        dark = name.replace(".png", "-dark.png")
        if not (DOCS / dark).is_file():
            return f"![{alt}]({name}){{ loading=lazy }}"
        copy(DOCS / dark, pages / dark)
        return f"![{alt}]({name}#only-light){{ loading=lazy }}\n![{alt}]({dark}#only-dark){{ loading=lazy }}"

    def change(prose: str) -> str:
        prose = LINK.sub(link, COMMENT.sub("", prose))
        return IMAGE.sub(image, FILE_NAME.sub(lambda match: f"[{titles.get(match[1], match[1])}]", prose))

    return outside_fences(text, change)


def with_columns(table: re.Match[str]) -> str:
    """Returns a table whose cells carry the names of their columns, for phones: see assets/site.css."""
    names = [TAG.sub("", name).strip() for name in re.findall(r"(?s)<th[^>]*>(.*?)</th>", table[0])]

    def row(match: re.Match[str]) -> str:
        column = iter(names)
        return re.sub(
            r"(?s)<td([^>]*)>(.*?)</td>",
            lambda cell: f'<td{cell[1]} data-column="{next(column, "")}"><span>{cell[2]}</span></td>',
            match[0],
        )

    return re.sub(r"(?s)<tr>.*?</tr>", row, table[0])


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


# --- the build ---


def without(settings: str, absent: set[str]) -> str:
    """Returns the settings without the navigation's entries for absent pages."""
    return (
        "\n".join(line for line in settings.splitlines() if not any(f'"{page}"' in line for page in absent))
        + "\n"
    )


def build(folder: Path, out: Path) -> None:
    """Prepares the pages in `folder`, builds the site, and moves it to `out`."""
    pages = folder / "pages"
    shutil.rmtree(folder, ignore_errors=True)
    pages.mkdir(parents=True)
    settings = SETTINGS.read_text("utf-8")
    found = sources()
    nav = tomllib.loads(settings)["project"]["nav"]
    absent, titles = checked(nav, set(found)), {page: title for title, page in named(nav)}
    for name, path in found.items():
        (pages / name).write_text(laid_out(path.read_text("utf-8"), pages, titles), "utf-8")
    shutil.copytree(DOCS / "assets", pages / "assets")
    copy(LOGO, pages / "assets" / "logo.svg")
    (folder / SETTINGS.name).write_text(without(settings, absent), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"], cwd=folder, capture_output=True, text=True
    )
    if done.returncode:
        raise SiteError(
            re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr).partition("Traceback")[0].strip()
        )
    for page in (folder / "site").glob("*.html"):
        text = OWN_SCRIPT[0].sub(OWN_SCRIPT[1], page.read_text("utf-8"))
        page.write_text(TABLE.sub(with_columns, text), "utf-8")
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(folder / "site", out)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="where the site goes")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "docs", help="a folder for what is laid out"
    )
    options = parser.parse_args(arguments)
    try:
        build(options.work, options.out)
    except SiteError as error:
        print(error, file=sys.stderr)
        return 1
    print(
        f"{options.out}: {len(list(options.out.glob('*.html')))} pages; open index.html, no server is needed"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

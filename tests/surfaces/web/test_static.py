"""Rules for the shell's files: no text becomes markup, nothing is loaded from elsewhere, files are small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

STATIC = Path(__file__).resolve().parents[3] / "src" / "toolwire" / "surfaces" / "web" / "static"
SCRIPTS = sorted(STATIC.glob("*.js"))
FILES = sorted(file for file in STATIC.iterdir() if file.suffix in (".js", ".css", ".html", ".svg"))
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|setHTML|"
    r"\.srcdoc|\beval\b|new Function|javascript:"
)
ELSEWHERE = re.compile(r"""(?:src|href|url\(|import|from|fetch\()\s*=?\s*['"(]?\s*(?:https?:)?//""")
MOST_LINES = 410
SHELLS = ("index.html", "link.html")


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_no_script_can_turn_text_into_markup_or_code(file: Path) -> None:
    code = re.sub(r"(?m)//.*$|/\*.*?\*/", "", file.read_text("utf-8"))
    assert MARKUP.findall(code) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_file_loads_anything_from_elsewhere(file: Path) -> None:
    assert ELSEWHERE.findall(file.read_text("utf-8")) == []


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_every_script_can_be_read(file: Path) -> None:
    lines = file.read_text("utf-8").splitlines()
    assert len(lines) <= MOST_LINES
    assert [line for line in lines if len(line) > 110 and file.name != "icons.js"] == []


@pytest.mark.parametrize("name", SHELLS)
def test_the_html_files_have_no_inline_scripts_or_styles(name: str) -> None:
    shell = (STATIC / name).read_text("utf-8")
    assert re.findall(r"<script[^>]*>", shell) and all(
        " src=" in tag for tag in re.findall(r"<script[^>]*>", shell)
    )
    assert "<style" not in shell and " style=" not in shell and not re.search(r"\son\w+=", shell)


def test_every_imported_module_exists_and_every_module_is_used() -> None:
    named = {
        name
        for file in SCRIPTS
        for name in re.findall(r"""(?:from|import\(?)\s*['"]\./([\w.-]+)['"]""", file.read_text("utf-8"))
    }
    pages = "".join((STATIC / name).read_text("utf-8") for name in SHELLS)
    shell = set(re.findall(r"/ui/static/([\w.-]+)", pages))
    assert named | shell == {file.name for file in FILES} - set(SHELLS)

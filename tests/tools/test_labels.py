"""The words of the buttons, and who asks. The page has the same table: `approval.test.js` reads it too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from doubles import __path__ as doubles
from toolwire.surfaces.web import __path__ as web
from toolwire.tools.contract import FOREIGN, Preview, Touched, approve_label, place_of
from toolwire.tools.vault_lookups import Library
from toolwire.tools.vault_tools import tools_of

LABELS = json.loads((Path(doubles[0]) / "labels.json").read_text())


@pytest.mark.parametrize("case", LABELS, ids=[f"{one['stage']}: {one['label']}" for one in LABELS])
def test_an_approval_is_named_by_what_it_does(case: dict[str, Any]) -> None:
    files = [Touched(str(place), f"{place}.md", 10) for place in range(case["there"])]
    gone = Touched("gone", "gone.md", missing=True)
    shown = Preview((*files, gone), "", "", case["pick"], case.get("problem", ""), case["action"])
    assert approve_label(shown, case["stage"], case["picked"]) == case["label"]


def test_the_pages_know_the_labels_of_a_servers_own_words() -> None:
    script = (Path(web[0]) / "static" / "facts.js").read_text("utf-8")
    assert f"new Set({[*FOREIGN]!r})" in script


@pytest.fixture
def library(tmp_path: Path) -> Any:
    (tmp_path / "vault").mkdir()
    (tmp_path / "vault" / "Tea.md").write_text("# Tea\n\n*Green* tea wants 80 degrees. Teapots, teas, TEA.\n")
    library = Library(tmp_path / "vault", cache=tmp_path / "cache")
    yield library
    library.close()


@pytest.mark.parametrize(
    ("name", "arguments", "label"),
    [
        ("vault_search", {"query": "tea", "limit": 10}, "Search"),
        ("file_read", {"filePaths": ["Tea.md"]}, "Read 1 note"),
        ("note_write", {"filePath": "New.md", "content": "x"}, "Create note"),
        ("note_write", {"filePath": "Tea.md", "content": "x"}, "Replace note"),
        ("note_edit", {"filePath": "Tea.md", "edits": [{"oldText": "80", "newText": "75"}]}, "Change note"),
        ("vault_tags", {}, "List tags"),
        ("vault_list", {"folder": "", "depth": 1}, "List a folder"),
    ],
)
async def test_every_tool_names_its_approval(library: Library, name: str, arguments: Any, label: str) -> None:
    tool = {one.name: one for one in tools_of(library)}[name]
    shown = await tool.preview(arguments)
    assert approve_label(shown, "run", len(shown.pickable)) == label


async def test_one_level_and_one_line_are_singular(library: Library) -> None:
    tools = {one.name: one for one in tools_of(library)}
    assert "1 level deep" in (await tools["vault_list"].preview({"folder": "", "depth": 1})).summary
    written = await tools["note_write"].preview({"filePath": "New.md", "content": "x\n"})
    assert written.summary == "creates New.md: 1 line added, 0 removed"


async def test_a_result_shows_the_size_of_what_is_shared_and_marks_the_matches(library: Library) -> None:
    await library.refresh()
    search = {one.name: one for one in tools_of(library)}["vault_search"]
    arguments = {"query": "tea", "limit": 10}
    ran = await search.run(arguments, None, await search.preview(arguments))
    assert ran.found is not None and ran.found.summary == "1 note matches"
    (one,) = ran.found.touched
    (result,) = search.share(ran, ["0"])["results"]
    assert one.size == len(json.dumps(result, ensure_ascii=False).encode())
    assert one.snippet == "# Tea\n\n*Green* tea wants 80 degrees. Teapots, teas, TEA."
    assert set(one.marked) == {"Tea", "tea", "TEA"}
    assert result["preview"] == "# Tea *Green* tea wants 80 degrees. Teapots, teas, TEA."


def test_who_asks_is_named_with_the_place() -> None:
    assert [place_of("mcp"), place_of("web"), place_of("chat", here=True)] == [
        "via MCP",
        "in a web chat",
        "in this chat",
    ]

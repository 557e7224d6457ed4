"""Links, tags, folders, tasks and properties of the index, and daily notes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from toolwire.vault.graph import Graph, daily_path, formatted, resolved
from toolwire.vault.index import Index
from toolwire.vault.paths import Vault
from toolwire.vault.policy import PathRefused

NOTES = {
    "Home.md": "---\nstatus: open\nrank: 3\n---\n"
    "[[Plan]] [[Work/Plan|work plan]] [[Nowhere]] [[Nowhere]] ![[pic.png]] #Area/One\n- [ ] call\n"
    "- [x] mail\n",
    "Plan.md": "[[Home#Top]] #area/one #area\n",
    "Work/Plan.md": "[home](../Home.md) [beside](Detail.md) [[./Detail]]\n- [ ] work task\n",
    "Work/Detail.md": "---\nstatus: done\n---\n[[PLAN]]\n",
    "Work/Deep/Café.md": "[[café]] nothing else\n",
    "Lonely.md": "text",
    "board.canvas": "{}",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path, text in NOTES.items():
        (tmp_path / "vault" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "vault" / path).write_text(text)
    return tmp_path / "vault"


@pytest.fixture
def graph(root: Path, tmp_path: Path) -> Iterator[Graph]:
    with Vault(root) as vault, Index(vault, tmp_path / "cache") as index:
        index.refresh()
        yield Graph(index)


@pytest.mark.parametrize(
    ("name", "source", "found"),
    [
        ("Plan", "", ["Plan.md", "Work/Plan.md"]),
        ("plan.md", "", ["Plan.md", "Work/Plan.md"]),
        ("Work/Plan", "", ["Work/Plan.md"]),
        ("Detail", "", ["Work/Detail.md"]),
        ("Detail.md", "Work/Plan.md", ["Work/Detail.md"]),
        ("./Plan", "Work/Detail.md", ["Work/Plan.md"]),
        ("../Home.md", "Work/Plan.md", ["Home.md"]),
        ("../Home.md", "Plan.md", []),
        ("../../../etc/passwd", "Work/Plan.md", []),
        ("cafe\u0301", "", ["Work/Deep/Café.md"]),
        ("cafe", "", []),
        ("ork/Plan", "", []),
        ("", "", []),
        ("Nowhere\ud800", "", []),
    ],
)
def test_a_link_leads_to_its_note(graph: Graph, name: str, source: str, found: list[str]) -> None:
    assert graph.index.ask(lambda connection: resolved(connection, name, source)) == found


def test_the_links_of_a_note_and_where_they_lead(graph: Graph) -> None:
    names = ("target", "path", "line", "embed", "attachment")
    assert [tuple(link[name] for name in names) for link in graph.links("Home.md")] == [
        ("Plan", "Plan.md", 5, False, False),
        ("Work/Plan", "Work/Plan.md", 5, False, False),
        ("Nowhere", None, 5, False, False),
        ("Nowhere", None, 5, False, False),
        ("pic.png", None, 5, True, True),
    ]
    assert graph.links("none.md") == [] and graph.links("../x.md") == []


def backlinks(graph: Graph, path: str) -> list[tuple[object, ...]]:
    """Path, line, alias, heading and embed of the links to a note."""
    return [tuple(link.values()) for link in graph.backlinks(path)]


def test_backlinks_lead_to_this_note_and_not_to_another_of_the_same_name(graph: Graph) -> None:
    assert backlinks(graph, "Plan.md") == [
        ("Home.md", 5, "", "", False),
        ("Work/Detail.md", 4, "", "", False),
    ]
    assert backlinks(graph, "Work/Plan.md") == [("Home.md", 5, "work plan", "", False)]
    assert [(link["path"], link["heading"]) for link in graph.backlinks("Home.md")] == [
        ("Plan.md", "Top"),
        ("Work/Plan.md", ""),
    ]
    assert graph.backlinks("Lonely.md") == []


def test_tags_are_counted_without_case(graph: Graph) -> None:
    assert graph.tags() == [{"tag": "Area/One", "notes": 2}, {"tag": "area", "notes": 1}]
    assert graph.tagged("#AREA") == ["Home.md", "Plan.md"] == graph.tagged("area/one/")
    assert graph.tagged("are") == []


def test_folders_are_listed_by_depth(graph: Graph) -> None:
    top = graph.listing()
    assert top["folders"] == [{"path": "Work", "notes": 3}]
    assert [file["path"] for file in top["files"]] == ["Home.md", "Lonely.md", "Plan.md"]
    deep = graph.listing("Work", depth=2)
    assert [folder["path"] for folder in deep["folders"]] == ["Work/Deep"]
    assert [file["path"] for file in deep["files"]] == ["Work/Deep/Café.md", "Work/Detail.md", "Work/Plan.md"]
    assert graph.listing(most=1)["truncated"] and not top["truncated"]
    with pytest.raises(PathRefused):
        graph.listing("..")


def test_tasks_and_properties(graph: Graph) -> None:
    assert graph.tasks("open") == [
        {"path": "Home.md", "line": 6, "text": "call", "done": False},
        {"path": "Work/Plan.md", "line": 2, "text": "work task", "done": False},
    ]
    assert graph.tasks("done") == [{"path": "Home.md", "line": 7, "text": "mail", "done": True}]
    assert len(graph.tasks()) == 3 and len(graph.tasks(under="Work")) == 1
    assert graph.properties("Home.md") == {"rank": 3, "status": "open"}
    assert graph.properties("Lonely.md") == {}
    assert graph.property_names() == [{"name": "status", "notes": 2}, {"name": "rank", "notes": 1}]


def test_links_lead_to_another_note_after_a_rename(root: Path, graph: Graph) -> None:
    os.rename(root / "Plan.md", root / "Other.md")
    graph.index.refresh()
    assert [(link["path"], link["alias"]) for link in graph.backlinks("Work/Plan.md")] == [
        ("Home.md", ""),
        ("Home.md", "work plan"),
        ("Work/Detail.md", ""),
    ]


# --- the note of a day --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("YYYY-MM-DD", "2024-03-02"),
        ("YYYY/MM/DD dddd", "2024/03/02 Saturday"),
        ("D. MMMM YY", "2. March 24"),
        ("[Day] Do MMM", "Day 2nd Mar"),
        ("GGGG-[W]WW", "2024-W09"),
        ("DDDD Q", "062 1"),
    ],
)
def test_a_date_is_formatted_by_obsidians_pattern(pattern: str, text: str) -> None:
    assert formatted(pattern, date(2024, 3, 2)) == text


def test_a_daily_note_has_the_path_that_obsidian_uses(root: Path, tmp_path: Path) -> None:
    day = date(2024, 3, 2)
    with Vault(root) as vault:
        assert daily_path(vault, day) == "2024-03-02.md"
        (root / ".obsidian").mkdir()
        setting = root / ".obsidian" / "daily-notes.json"
        setting.write_text('{"folder": "Journal/", "format": "YYYY/MM-DD", "template": "T"}')
        assert daily_path(vault, day) == "Journal/2024/03-02.md"
        for broken in ("[]", "{", '{"folder": 3, "format": null}', ""):
            setting.write_text(broken)
            assert daily_path(vault, day) == "2024-03-02.md"
        setting.unlink()
        (tmp_path / "secret.json").write_text('{"folder": "Outside"}')
        os.symlink(tmp_path / "secret.json", setting)
        assert daily_path(vault, day) == "2024-03-02.md"
        setting.unlink()
        os.mkfifo(setting)
        assert daily_path(vault, day) == "2024-03-02.md"

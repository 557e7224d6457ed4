"""The vault's tools: their previews, their results after a grant, and their refusals."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from doubles.notes import Person
from toolwire.surfaces.terminal.surface import RuleSurface
from toolwire.tools import rules
from toolwire.tools.approvals import Approvals
from toolwire.tools.contract import Asking, Decision, Outcome, ToolCall
from toolwire.tools.executor import NOT_CHANGED, Executor, Toolbox
from toolwire.tools.vault_lookups import Library
from toolwire.tools.vault_tools import FIND_IT, NO_HASH, opened, tools_of

ASKING = Asking("session-1", "model-1", "test")
YES, NO = Decision(True), Decision(False)
LONG = "The quiet river runs past the mill. " * 30
NOTES = {
    "Programming/TypeScript Basics.md": "---\naliases: [TS]\nstatus: draft\nrating: 5\n---\n"
    "# TypeScript\n\nTypeScript is a typed superset of JavaScript.\n\n## Generics\n\n"
    "Generics let types vary. #typing\n",
    "Programming/React.md": "# React\n\nReact is a JavaScript library. See [[TypeScript Basics]] and "
    "[[Nowhere]].\n\n"
    "- [ ] write a hook\n- [x] read the docs\n",
    "Rivers/Mill.md": f"# Mill\n\n{LONG}\n\n## Wheel\n\n{LONG} The waterwheel turns. {LONG}\n",
    "Diary/2026-01-02.md": "# Friday\n\nwaterwheel waterwheel waterwheel\n\n- [ ] mend the wheel\n",
    "Boards/Plan.canvas": '{"nodes": []}',
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "vault"
    for path, text in NOTES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.fixture
async def library(folder: Path, tmp_path: Path) -> AsyncIterator[Library]:
    made = Library(folder, cache=tmp_path / "cache")
    yield made
    made.close()


Use = Callable[..., Any]


@pytest.fixture
def use(library: Library, approvals: Approvals) -> Use:
    """`await use(tool, decision, …, argument=…)`: one call, decided like this (or by a callable)."""

    async def used(name: str, *decisions: Any, **arguments: Any) -> Outcome:
        person = Deciding(approvals, *decisions)
        call = ToolCall("call_1", name, json.dumps(arguments))
        (outcome,) = await Executor(Toolbox(tools_of(library)), approvals, person).execute([call], ASKING)
        outcomes.append((outcome, person))
        return outcome

    outcomes: list[tuple[Outcome, Person]] = []
    used.asked = lambda: outcomes[-1][1].shown  # type: ignore[attr-defined]
    return used


class Deciding(Person):
    """A person whose decisions may depend on what is shown."""

    def __init__(self, approvals: Approvals, *decisions: Any) -> None:
        super().__init__(approvals)
        self.decisions = list(decisions)

    async def ask(self, approvals: Any) -> bool:
        self.decisions = [
            one(approvals[0]) if callable(one) and number == 0 else one
            for number, one in enumerate(self.decisions)
        ]
        return await super().ask(approvals)


def everything(approval: Any) -> Decision:
    return Decision(True, picked=tuple(one.key for one in approval.shown.touched if not one.missing))


def only(*paths: str) -> Callable[[Any], Decision]:
    return lambda approval: Decision(
        True, picked=tuple(one.key for one in approval.shown.touched if one.path in paths)
    )


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def problem(use: Use) -> str:
    """The problem of the last call, as the person saw it."""
    (approval,) = use.asked()[0]  # type: ignore[attr-defined]
    return str(approval.shown.problem)


# --- search -------------------------------------------------------------------------------------


async def found(use: Use, query: str, **arguments: Any) -> list[dict[str, Any]]:
    outcome = await use("vault_search", YES, everything, query=query, **arguments)
    results: list[dict[str, Any]] = outcome.result["result"]["results"]
    return results


async def test_a_search_returns_path_basename_matches_and_preview(use: Use) -> None:
    (first,) = await found(use, "superset")
    assert (first["path"], first["basename"], first["matches"]) == (
        "Programming/TypeScript Basics.md",
        "TypeScript Basics",
        1,
    )
    assert "typed superset of JavaScript" in first["preview"]


async def test_notes_are_found_by_their_name(use: Use) -> None:
    assert (await found(use, "mill"))[0]["path"] == "Rivers/Mill.md"


async def test_the_number_of_matches_is_exact(use: Use) -> None:
    counted = {one["path"]: one["matches"] for one in await found(use, "waterwheel")}
    assert counted == {"Diary/2026-01-02.md": 3, "Rivers/Mill.md": 1}


async def test_a_preview_is_about_200_characters_around_the_match(use: Use) -> None:
    preview = next(
        one["preview"] for one in await found(use, "waterwheel") if one["path"] == "Rivers/Mill.md"
    )
    assert "waterwheel" in preview
    assert 150 <= len(preview) <= 230
    assert preview.startswith("...") and preview.endswith("...")


async def test_a_result_has_headings_lines_and_a_score(use: Use) -> None:
    (first,) = await found(use, "vary")
    assert first["heading"] == ["TypeScript", "Generics"]
    lines = NOTES[first["path"]].splitlines()
    assert "vary" in lines[first["line"] - 1]
    assert first["lines"][0] <= first["line"] <= first["lines"][1]
    assert 0 <= first["score"] <= 1
    assert first["tags"] == ["typing"]


async def test_a_search_returns_at_most_limit_results(use: Use) -> None:
    assert len(await found(use, "the", limit=1)) == 1


@pytest.mark.parametrize(
    "wrong",
    [{"query": "x", "limit": 51}, {"query": "x", "limit": 0}, {"query": ""}, {}, {"query": "x", "path": "/"}],
)
async def test_invalid_arguments_are_refused_without_asking(use: Use, wrong: dict[str, Any]) -> None:
    outcome = await use("vault_search", **wrong)
    assert outcome.status == "failed"
    assert use.asked() == []  # type: ignore[attr-defined]


async def test_a_search_has_two_grants_and_shows_in_the_second_what_it_would_share(use: Use) -> None:
    outcome = await use("vault_search", YES, only("Diary/2026-01-02.md"), query="waterwheel")
    run, share = (shown[0] for shown in use.asked())  # type: ignore[attr-defined]
    assert (run.stage, run.shown.touched) == ("run", ())
    assert share.stage == "share" and share.shown.pick
    assert {one.path for one in share.shown.touched} == {"Diary/2026-01-02.md", "Rivers/Mill.md"}
    assert all("waterwheel" in one.snippet for one in share.shown.touched)
    assert [one["path"] for one in outcome.result["result"]["results"]] == ["Diary/2026-01-02.md"]
    assert (outcome.result["found"], outcome.result["shared"]) == (2, 1)
    assert outcome.shared == ("Diary/2026-01-02.md",)


async def test_the_model_learns_nothing_of_results_that_are_not_shared(use: Use) -> None:
    outcome = await use("vault_search", YES, NO, query="waterwheel")
    assert outcome.result == {"error": "User cancelled tool execution"}


async def test_picking_no_result_differs_from_finding_none(use: Use) -> None:
    kept_back = await use("vault_search", YES, Decision(True, picked=()), query="waterwheel")
    none_there = await use("vault_search", YES, everything, query="zeppelin")
    assert (kept_back.result["found"], kept_back.result["result"]["results"]) == (2, [])
    assert (none_there.result["found"], none_there.result["result"]["results"]) == (0, [])


async def test_a_note_that_was_just_written_is_found(use: Use, folder: Path) -> None:
    (folder / "New.md").write_text("a brand new zeppelin")
    assert [one["path"] for one in await found(use, "zeppelin")] == ["New.md"]


async def ruled(library: Library, approvals: Approvals, *written: str, **arguments: Any) -> Outcome:
    """Runs a search that only rules decide about."""
    toolbox = Toolbox(tools_of(library))
    surface = RuleSurface(approvals, rules.parse(written, toolbox.tools), lambda: toolbox)
    (outcome,) = await Executor(toolbox, approvals, surface).execute(
        [ToolCall("call_1", "vault_search", json.dumps(arguments))], ASKING
    )
    return outcome


async def test_a_rule_for_a_folder_finds_its_notes_even_if_others_match_better(
    library: Library, approvals: Approvals, folder: Path
) -> None:
    for number in range(12):
        (folder / f"Garden {number}.md").write_text("garden garden\n")
    (folder / "Projekte").mkdir()
    for name in ("A", "B"):
        (folder / "Projekte" / f"{name}.md").write_text("far from any garden\n")
    outcome = await ruled(library, approvals, "vault_search:Projekte/**", query="garden")
    assert outcome.status == "done" and sorted(outcome.shared) == ["Projekte/A.md", "Projekte/B.md"]
    assert (outcome.result["found"], outcome.result["shared"]) == (2, 2)
    assert outcome.result["note"] == "Only notes that match Projekte/** were searched."
    share, run = await approvals.records.listed()
    assert (run.decision and run.decision.within) == (
        "Projekte/**",
    ) and share.shown.summary == "2 notes match within Projekte/**"
    assert {one.path for one in share.shown.touched} == {"Projekte/A.md", "Projekte/B.md"}


async def test_a_rule_for_a_folder_without_matches_returns_no_results_and_no_refusal(
    library: Library, approvals: Approvals
) -> None:
    outcome = await ruled(library, approvals, "vault_search:Rivers/**", query="superset")
    assert (outcome.status, outcome.shared) == ("done", ())
    assert (outcome.result["found"], outcome.result["shared"], outcome.result["result"]["results"]) == (
        0,
        0,
        [],
    )


async def test_rules_for_other_tools_do_not_allow_a_search(library: Library, approvals: Approvals) -> None:
    assert (await ruled(library, approvals, "file_read:Rivers/**", query="superset")).status == "denied"


async def test_an_unusable_index_folder_fails_the_call_with_one_line(
    use: Use, library: Library, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("toolwire.vault.index.connect", full)
    for name, arguments in (("vault_search", {"query": "x"}), ("vault_tags", {})):
        outcome = await use(name, YES, **arguments)
        assert (
            outcome.status == "failed"
            and "No space left on device (XDG_CACHE_HOME" in outcome.result["error"]
        )
        assert (
            str(library.index.location.folder)[:100] in outcome.notice
            and str(library.index.location.folder)[:20] not in outcome.result["error"]
        )
    assert caplog.records == []


async def test_a_rule_for_a_folder_counts_no_results_outside_of_it(
    library: Library, approvals: Approvals, use: Use
) -> None:
    """A remembered grant allowed a search of the whole vault; the rule shares results of one folder."""
    await use("vault_search", Decision(True, remember="tool"), NO, query="waterwheel")
    toolbox = Toolbox(tools_of(library))
    allowed = rules.parse(["vault_search:Rivers/**"], toolbox.tools)
    executor = Executor(toolbox, approvals, RuleSurface(approvals, allowed, lambda: toolbox))
    (outcome,) = await executor.execute([ToolCall("1", "vault_search", '{"query": "waterwheel"}')], ASKING)
    assert [one["path"] for one in outcome.result["result"]["results"]] == ["Rivers/Mill.md"]
    assert (outcome.result["found"], outcome.result["shared"]) == (1, 1)


async def test_relaxed_is_reported_only_with_results(use: Use) -> None:
    query = "waterwheel superset"
    assert (await use("vault_search", YES, everything, query=query)).result["result"]["relaxed"]
    nothing = Decision(True, picked=())
    assert "relaxed" not in (await use("vault_search", YES, nothing, query=query)).result["result"]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("note_edit", {"filePath": "Mill.md", "edits": [{"oldText": "absent", "newText": "x"}]}),
        ("note_edit", {"filePath": "Mill.md", "edits": [{"oldText": "l", "newText": "x"}]}),
        (
            "note_edit",
            {
                "filePath": "Mill.md",
                "edits": [{"oldText": "mill", "newText": "MILL"}, {"oldText": "MILL", "newText": "mill"}],
            },
        ),
        (
            "note_edit",
            {"filePath": "Mill.md", "edits": [{"oldText": "mill", "newText": "x"}], "baseHash": "0" * 64},
        ),
        ("note_edit", {"filePath": "Gone.md", "edits": [{"oldText": "mill", "newText": "x"}]}),
        ("note_edit", {"filePath": "Latin.md", "edits": [{"oldText": "mill", "newText": "x"}]}),
        ("note_write", {"filePath": "Mill.md", "content": "x", "baseHash": "0" * 64}),
        ("note_write", {"filePath": "Mill.md", "content": "The mill.\n", "baseHash": sha(b"The mill.\n")}),
    ],
)
@pytest.mark.parametrize("by", ["grant", "rule"])
async def test_under_a_standing_grant_all_failed_changes_get_the_same_answer(
    library: Library,
    approvals: Approvals,
    use: Use,
    folder: Path,
    tool: str,
    arguments: dict[str, Any],
    by: str,
) -> None:
    (folder / "Mill.md").write_text("The mill.\n")
    (folder / "Latin.md").write_bytes(b"caf\xe9")
    toolbox = Toolbox(tools_of(library))
    surface: Any = Person(approvals)
    if by == "grant":
        await use(tool, Decision(True, remember="tool"), **{**arguments, "filePath": "Other.md"})
    else:
        surface = RuleSurface(approvals, rules.parse([tool], toolbox.tools), lambda: toolbox)
    (outcome,) = await Executor(toolbox, approvals, surface).execute(
        [ToolCall("1", tool, json.dumps(arguments))], ASKING
    )
    assert outcome.result == {"error": NOT_CHANGED}
    assert (folder / "Mill.md").read_text() == "The mill.\n"


# --- reading ------------------------------------------------------------------------------------


async def test_a_file_is_read_unchanged_with_its_size_and_hash(use: Use, folder: Path) -> None:
    outcome = await use("file_read", everything, filePaths=["Programming/React.md"])
    data = (folder / "Programming/React.md").read_bytes()
    assert outcome.result == {
        "result": [
            {"path": "Programming/React.md", "content": data.decode(), "size": len(data), "sha256": sha(data)}
        ]
    }


async def test_only_the_files_that_were_picked_are_read(use: Use) -> None:
    outcome = await use(
        "file_read", only("Programming/React.md"), filePaths=["Programming/React.md", "Rivers/Mill.md"]
    )
    assert [one["path"] for one in outcome.result["result"]] == ["Programming/React.md"]
    assert outcome.result["note"] == "The person allowed 1 of the 2 that were asked for."


async def test_the_question_shows_files_with_sizes_and_missing_files(use: Use, folder: Path) -> None:
    await use("file_read", NO, filePaths=["Rivers/Mill.md", "Nowhere.md"])
    (approval,) = use.asked()[0]  # type: ignore[attr-defined]
    size = (folder / "Rivers/Mill.md").stat().st_size
    assert [(one.path, one.size, one.missing) for one in approval.shown.touched] == [
        ("Rivers/Mill.md", size, False),
        ("Nowhere.md", None, True),
    ]


async def test_only_files_that_were_read_count_as_shared_and_the_others_have_a_reason(
    use: Use, folder: Path
) -> None:
    (folder / "latin1.md").write_bytes(b"caf\xe9")
    (folder / "linkfile.md").symlink_to("/etc/hosts")
    asked = ["latin1.md", "Rivers/Mill.md", "linkfile.md", "/etc/passwd", "Nowhere.md"]
    all_of_them = Decision(True, picked=tuple(asked))  # as a rule picks, or numbers that a person types
    outcome = await use("file_read", all_of_them, filePaths=asked)
    assert outcome.shared == ("Rivers/Mill.md",)
    assert dict(outcome.unread) == {
        "latin1.md": "not valid UTF-8 (byte 3)",
        "linkfile.md": "a symbolic link; links are not followed",
        "/etc/passwd": "a path must be relative to the vault",
        "Nowhere.md": "not found",
    }
    assert [one["path"] for one in outcome.result["result"] if "sha256" in one] == ["Rivers/Mill.md"]


async def test_a_file_over_the_size_limit_cannot_be_picked(use: Use, folder: Path) -> None:
    (folder / "big.md").write_text("x" * 5_000_000)
    outcome = await use("file_read", everything, filePaths=["big.md", "Rivers/Mill.md"])
    (approval,) = use.asked()[0]  # type: ignore[attr-defined]
    big, mill = approval.shown.touched
    assert (big.size, big.missing, big.reason) == (
        5_000_000,
        True,
        "too large: 4.8 MB, the limit is 4.0 MB",
    ) and not mill.missing
    assert outcome.shared == ("Rivers/Mill.md",) and outcome.unread == (("big.md", big.reason),)
    assert {one["path"]: one["content"] for one in outcome.result["result"]}[
        "big.md"
    ] == f"Error reading file: {big.reason}"
    assert "note" not in outcome.result


async def test_a_missing_file_is_a_partial_result(use: Use) -> None:
    outcome = await use("file_read", everything, filePaths=["Nowhere.md", "Programming/React.md"])
    told = {one["path"]: one for one in outcome.result["result"]}
    assert told["Nowhere.md"] == {
        "path": "Nowhere.md",
        "content": "File not found: Nowhere.md",
        "size": 0,
        "hint": FIND_IT,
    }
    assert "JavaScript library" in told["Programming/React.md"]["content"]


@pytest.mark.parametrize(
    "path",
    [
        "../secret.md",
        "/etc/passwd",
        ".obsidian/app.json",
        "a\\..\\b.md",
        "Programming/../../secret.md",
        "~/x.md",
    ],
)
async def test_a_path_outside_the_vault_is_not_found(use: Use, folder: Path, path: str) -> None:
    (folder.parent / "secret.md").write_text("secret")
    outcome = await use("file_read", everything, filePaths=[path])
    assert outcome.result["result"] == [
        {"path": path, "content": f"File not found: {path}", "size": 0, "hint": FIND_IT}
    ]


async def test_unreadable_files_are_partial_results_with_a_reason(use: Use, folder: Path) -> None:
    (folder / "Binary.md").write_bytes(b"\0\1\2")
    (folder / "Latin.md").write_bytes(b"caf\xe9")
    with (folder / "Huge.md").open("wb") as file:
        file.truncate(5 * 1024 * 1024)
    outcome = await use(
        "file_read", everything, filePaths=["Binary.md", "Latin.md", "Huge.md", "Programming/React.md"]
    )
    told = {one["path"]: one for one in outcome.result["result"]}
    assert told["Binary.md"] == {
        "path": "Binary.md",
        "content": "Error reading file: a binary file, not text",
        "size": 0,
    }
    assert told["Latin.md"]["content"] == "Error reading file: not valid UTF-8 (byte 3)"
    assert told["Huge.md"]["content"].startswith("Error reading file: too large: 5.0 MB")
    assert "JavaScript library" in told["Programming/React.md"]["content"]


async def test_a_file_that_was_removed_after_the_grant_is_a_partial_result(use: Use, folder: Path) -> None:
    def approve_and_remove(approval: Any) -> Decision:
        (folder / "Rivers/Mill.md").unlink()
        return everything(approval)

    outcome = await use("file_read", approve_and_remove, filePaths=["Rivers/Mill.md", "Programming/React.md"])
    assert [one["content"][:14] for one in outcome.result["result"]] == ["File not found", "# React\n\nReact"]


async def test_a_file_that_became_a_link_after_the_grant_is_not_followed(use: Use, folder: Path) -> None:
    (folder.parent / "secret.md").write_text("the secret")

    def approve_and_swap(approval: Any) -> Decision:
        (folder / "Rivers/Mill.md").unlink()
        (folder / "Rivers/Mill.md").symlink_to(folder.parent / "secret.md")
        return everything(approval)

    outcome = await use("file_read", approve_and_swap, filePaths=["Rivers/Mill.md"])
    assert outcome.result["result"][0]["content"].startswith("Error reading file: a symbolic link")


async def test_a_canvas_can_be_read_but_is_not_indexed(use: Use) -> None:
    outcome = await use("file_read", everything, filePaths=["Boards/Plan.canvas"])
    assert outcome.result["result"][0]["content"] == NOTES["Boards/Plan.canvas"]


async def test_a_name_is_found_with_composed_and_decomposed_accents(use: Use, folder: Path) -> None:
    (folder / "Cafe\u0301.md").write_text("open")
    outcome = await use("file_read", everything, filePaths=["Caf\u00e9.md"])
    assert outcome.result["result"][0]["content"] == "open"


async def test_a_range_of_lines_can_be_read(use: Use) -> None:
    path = "Programming/React.md"
    outcome = await use(
        "file_read", everything, filePaths=[path], ranges=[{"filePath": path, "startLine": 3, "endLine": 5}]
    )
    (told,) = outcome.result["result"]
    assert told["content"] == "".join(line + "\n" for line in NOTES[path].split("\n")[2:5])
    assert (told["lines"], told["total_lines"]) == ([3, 5], 6)


async def test_lines_beyond_the_end_are_an_error_of_that_file(use: Use) -> None:
    path = "Programming/React.md"
    outcome = await use(
        "file_read", everything, filePaths=[path], ranges=[{"filePath": path, "startLine": 90}]
    )
    assert outcome.result["result"] == [
        {"path": path, "content": "Error reading file: the file has 6 lines", "size": 0}
    ]


async def test_a_call_reads_at_most_its_limit_and_reports_the_rest(use: Use, folder: Path) -> None:
    for number in range(4):
        (folder / f"Big{number}.md").write_text(("y" * 79 + "\n") * 39_000)
    outcome = await use("file_read", everything, filePaths=[f"Big{number}.md" for number in range(4)])
    told = outcome.result["result"]
    assert sum(len(one["content"]) for one in told) <= 8 * 1024 * 1024 + 100
    assert told[2]["truncated"] is True and told[2]["lines"][1] < told[2]["total_lines"]
    assert told[3]["content"].startswith("Error reading file: not read: one call reads at most")


async def test_edited_paths_are_read_and_the_model_is_informed(use: Use) -> None:
    edited = Decision(True, arguments={"filePaths": ["Programming/React.md"]})
    outcome = await use("file_read", edited, filePaths=["Rivers/Mill.md"])
    assert [one["path"] for one in outcome.result["result"]] == ["Programming/React.md"]
    assert "Programming/React.md" in outcome.result["note"]


async def test_edited_paths_grant_no_more_than_was_picked(use: Use) -> None:
    edited = Decision(
        True, arguments={"filePaths": ["Programming/React.md", "Rivers/Mill.md"]}, picked=("Rivers/Mill.md",)
    )
    outcome = await use("file_read", edited, filePaths=["Rivers/Mill.md"])
    assert [one["path"] for one in outcome.result["result"]] == ["Rivers/Mill.md"]


# --- what the index knows -----------------------------------------------------------------------


async def test_a_folder_is_listed_with_sizes(use: Use, folder: Path) -> None:
    top = (await use("vault_list", YES)).result["result"]
    assert {one["path"] for one in top["folders"]} >= {"Programming", "Rivers", "Diary"}
    inner = (await use("vault_list", YES, folder="Programming")).result["result"]
    size = (folder / "Programming/React.md").stat().st_size
    assert {"path": "Programming/React.md", "size": size} in inner["files"]
    deep = (await use("vault_list", YES, depth=3)).result["result"]
    assert {one["path"] for one in deep["files"]} >= {path for path in NOTES if path.endswith(".md")}


async def test_a_folder_outside_the_vault_is_refused(use: Use) -> None:
    outcome = await use("vault_list", YES, folder="../..")
    assert outcome.status == "failed" and "segments" in outcome.result["error"]


async def test_tags_are_listed_and_the_notes_that_have_one(use: Use) -> None:
    assert (await use("vault_tags", YES)).result["result"] == {"tags": [{"tag": "typing", "notes": 1}]}
    tagged = (await use("vault_tags", YES, tag="#typing")).result["result"]
    assert tagged["notes"] == ["Programming/TypeScript Basics.md"]


async def test_links_and_backlinks_are_listed(use: Use) -> None:
    out = (await use("note_links", YES, filePath="Programming/React.md")).result["result"]
    assert [(one["target"], one["path"]) for one in out["links"]] == [
        ("TypeScript Basics", "Programming/TypeScript Basics.md"),
        ("Nowhere", None),
    ]
    back = (await use("note_links", YES, filePath="Programming/TypeScript Basics.md")).result["result"]
    assert [one["path"] for one in back["backlinks"]] == ["Programming/React.md"]


async def test_properties_of_a_note_and_the_names_of_all(use: Use) -> None:
    own = (await use("note_properties", YES, filePath="Programming/TypeScript Basics.md")).result["result"]
    assert own["properties"] == {"aliases": ["TS"], "rating": 5, "status": "draft"}
    names = (await use("note_properties", YES)).result["result"]["names"]
    assert {"name": "status", "notes": 1} in names


async def test_tasks_are_listed_by_their_state(use: Use) -> None:
    open_ones = (await use("vault_tasks", YES)).result["result"]["tasks"]
    assert [(one["path"], one["text"], one["done"]) for one in open_ones] == [
        ("Diary/2026-01-02.md", "mend the wheel", False),
        ("Programming/React.md", "write a hook", False),
    ]
    done = (await use("vault_tasks", YES, status="done", folder="Programming")).result["result"]["tasks"]
    assert [one["text"] for one in done] == ["read the docs"]
    assert NOTES["Programming/React.md"].splitlines()[done[0]["line"] - 1] == "- [x] read the docs"
    of_note = await use("vault_tasks", YES, folder="Programming/React.md")
    assert [one["text"] for one in of_note.result["result"]["tasks"]] == ["write a hook"]


async def test_tasks_of_a_folder_or_note_that_does_not_exist_are_an_error_and_not_an_empty_list(
    use: Use,
) -> None:
    for path in ("Nowhere", "Programming/Reac", "Programming/React"):
        assert (await use("vault_tasks", YES, folder=path)).result == {"error": f"File not found: {path}"}


async def test_the_daily_note_is_found_by_the_vaults_own_setting(use: Use, folder: Path) -> None:
    assert (await use("daily_note", YES, date="2026-01-02")).result["result"] == {
        "date": "2026-01-02",
        "path": "2026-01-02.md",
        "exists": False,
    }
    (folder / ".obsidian").mkdir()
    (folder / ".obsidian" / "daily-notes.json").write_text('{"folder": "Diary", "format": "YYYY-MM-DD"}')
    assert (await use("daily_note", YES, date="2026-01-02")).result["result"] == {
        "date": "2026-01-02",
        "path": "Diary/2026-01-02.md",
        "exists": True,
    }
    yesterday = (date.today() - timedelta(1)).isoformat()
    assert (await use("daily_note", YES, date="yesterday")).result["result"][
        "path"
    ] == f"Diary/{yesterday}.md"
    assert (await use("daily_note", YES, date="someday")).result["error"].startswith("someday: expected")


async def test_a_missing_note_is_reported_as_not_found(use: Use) -> None:
    for tool in ("note_links", "note_properties"):
        assert (await use(tool, YES, filePath="Nowhere.md")).result == {"error": "File not found: Nowhere.md"}


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("vault_list", {"folder": "Rivers"}, "folder Rivers"),
        ("vault_tags", {"tag": "typing"}, "#typing"),
        ("note_links", {"filePath": "Rivers/Mill.md"}, "Rivers/Mill.md"),
        ("note_properties", {"filePath": "Rivers/Mill.md"}, "Rivers/Mill.md"),
        ("vault_tasks", {"folder": "Diary"}, "open tasks in Diary"),
        ("daily_note", {}, "today"),
    ],
)
async def test_every_tool_previews_its_answer_and_returns_nothing_when_denied(
    use: Use, tool: str, arguments: dict[str, Any], words: str
) -> None:
    outcome = await use(tool, Decision(False, reason="private"), **arguments)
    (approval,) = use.asked()[0]  # type: ignore[attr-defined]
    assert words in approval.shown.summary
    assert outcome.result == {"error": "User cancelled tool execution", "reason": "private"}


# --- changes ------------------------------------------------------------------------------------


async def test_a_new_note_is_shown_as_a_diff_and_written(use: Use, folder: Path) -> None:
    outcome = await use("note_write", YES, filePath="Ideas/New.md", content="# New\n\nA thought.\n")
    (approval,) = use.asked()[0]  # type: ignore[attr-defined]
    assert "+A thought." in approval.shown.diff
    assert approval.shown.summary == "creates Ideas/New.md: 3 lines added, 0 removed"
    assert (folder / "Ideas/New.md").read_text() == "# New\n\nA thought.\n"
    assert outcome.result["result"] == {
        "path": "Ideas/New.md",
        "sha256": sha(b"# New\n\nA thought.\n"),
        "created": True,
    }
    assert [one["path"] for one in await found(use, "thought")] == ["Ideas/New.md"]


async def test_a_note_is_replaced_only_if_it_has_the_hash_that_was_read(use: Use, folder: Path) -> None:
    read = (await use("file_read", everything, filePaths=["Diary/2026-01-02.md"])).result["result"][0]
    (folder / "Diary/2026-01-02.md").write_text("somebody else's words\n")
    outcome = await use(
        "note_write", YES, filePath="Diary/2026-01-02.md", content="mine\n", baseHash=read["sha256"]
    )
    assert outcome.status == "failed" and "has changed since it was read" in outcome.result["error"]
    assert "has changed since it was read" in problem(use)
    assert (folder / "Diary/2026-01-02.md").read_text() == "somebody else's words\n"


@pytest.mark.parametrize("hash", ["sha256 of the note", "ef2bd2b92072", "g" * 64, "0" * 65])
async def test_an_invented_hash_is_refused_without_a_question_and_says_what_to_do(
    use: Use, folder: Path, hash: str
) -> None:
    """Small models fill in every argument. The text of the call decides, so the model sees the reason."""
    outcome = await use("note_write", YES, filePath="Ideas/New.md", content="# New\n", baseHash=hash)
    assert outcome.result == {"error": NO_HASH} and use.asked() == []  # type: ignore[attr-defined]
    assert not (folder / "Ideas/New.md").exists()


async def test_an_empty_hash_is_no_hash(use: Use, folder: Path) -> None:
    await use("note_write", YES, filePath="Ideas/New.md", content="# New\n", baseHash="")
    assert (folder / "Ideas/New.md").read_text() == "# New\n"
    edits = [{"oldText": "New", "newText": "Old"}]
    outcome = await use("note_edit", YES, filePath="Ideas/New.md", edits=edits, baseHash="")
    assert outcome.status == "done" and "sha256" not in outcome.result["result"]
    assert (folder / "Ideas/New.md").read_text() == "# Old\n"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("note_write", {"content": "mine\n"}),
        ("note_edit", {"edits": [{"oldText": "waterwheel waterwheel waterwheel", "newText": "one wheel"}]}),
    ],
)
async def test_a_note_that_changed_between_question_and_grant_is_not_overwritten(
    use: Use, folder: Path, tool: str, arguments: dict[str, Any]
) -> None:
    note = folder / "Diary/2026-01-02.md"

    def approve_too_late(approval: Any) -> Decision:
        note.write_text("somebody else's words\n")
        return YES

    outcome = await use(tool, approve_too_late, filePath="Diary/2026-01-02.md", **arguments)
    assert outcome.result == {"error": "Diary/2026-01-02.md: the note has changed since the person was asked"}
    assert note.read_text() == "somebody else's words\n"


async def test_an_edit_changes_its_passage_and_no_other_byte(use: Use, folder: Path) -> None:
    note = folder / "Windows.md"
    note.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n")
    os.chmod(note, 0o640)
    outcome = await use(
        "note_edit", YES, filePath="Windows.md", edits=[{"oldText": "two", "newText": "2\nand a half"}]
    )
    assert outcome.status == "done"
    assert note.read_bytes() == b"\xef\xbb\xbfone\r\n2\r\nand a half\r\nthree\r\n"
    assert note.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("old", "words"), [("zeppelin", "is not in the note"), ("waterwheel", "more than once")]
)
async def test_the_old_text_of_an_edit_must_occur_exactly_once(use: Use, old: str, words: str) -> None:
    outcome = await use(
        "note_edit", YES, filePath="Diary/2026-01-02.md", edits=[{"oldText": old, "newText": "x"}]
    )
    assert outcome.status == "failed" and words in outcome.result["error"]
    assert words in problem(use)


@pytest.mark.parametrize(
    "path",
    ["../out.md", ".obsidian/plugins/x.md", "run.sh", "Boards/Plan.canvas", "/tmp/x.md", "a/../../x.md", ""],
)
async def test_a_write_outside_the_policy_is_refused_without_asking(
    use: Use, folder: Path, path: str
) -> None:
    outcome = await use("note_write", YES, filePath=path, content="x")
    assert outcome.status == "failed"
    assert use.asked() == []  # type: ignore[attr-defined]
    assert (folder / "Boards/Plan.canvas").read_text() == NOTES["Boards/Plan.canvas"]
    assert not (folder.parent / "out.md").exists()


async def test_a_write_that_changes_nothing_is_a_write_like_any_other(use: Use, folder: Path) -> None:
    same = (folder / "Programming/React.md").read_text()
    outcome = await use("note_write", YES, filePath="Programming/React.md", content=same)
    assert outcome.result == {
        "result": {"path": "Programming/React.md", "created": False, "sha256": sha(same.encode())}
    }
    (approval,) = use.asked()[0]  # type: ignore[attr-defined]
    assert approval.shown.summary == "writes Programming/React.md: its text does not change"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        (
            "note_edit",
            {"edits": [{"oldText": "mill", "newText": "MILL"}, {"oldText": "MILL", "newText": "mill"}]},
        ),
        ("note_write", {"content": "The mill.\n", "baseHash": sha(b"The mill.\n")}),
    ],
)
async def test_a_change_of_an_expected_text_that_changes_nothing_is_a_problem(
    use: Use, folder: Path, tool: str, arguments: dict[str, Any]
) -> None:
    """Under a standing grant it would confirm a guess of the note's text and leave no trace."""
    (folder / "Mill.md").write_text("The mill.\n")
    outcome = await use(tool, YES, filePath="Mill.md", **arguments)
    assert "already has this text" in outcome.result["error"] and "already has this text" in problem(use)


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("note_edit", {"edits": [{"oldText": "mill", "newText": "mill"}]}, "are the same"),
        (
            "note_edit",
            {"edits": [{"oldText": "a", "newText": "b"}, {"oldText": "x\r\ny", "newText": "x\ny"}]},
            "edit 2",
        ),
        ("note_edit", {"edits": [{"oldText": "", "newText": "b"}]}, "edits/0/oldText"),
        ("note_write", {"content": "x\0"}, "NUL"),
        ("note_write", {"content": "x" * 5_000_000}, "too large"),
    ],
)
async def test_a_write_that_no_note_can_hold_is_refused_without_asking(
    use: Use, tool: str, arguments: dict[str, Any], words: str
) -> None:
    for path in ("Rivers/Mill.md", "Nowhere.md"):
        outcome = await use(tool, YES, filePath=path, **arguments)
        assert outcome.status == "failed" and words in outcome.result["error"]
        assert use.asked() == []  # type: ignore[attr-defined]


async def test_a_hash_is_returned_only_with_the_whole_text(use: Use, folder: Path) -> None:
    """The hash of a note that was read in part would confirm guesses of the rest."""
    (folder / "Two.md").write_text("open\nsecret\n")
    whole = (await use("file_read", everything, filePaths=["Two.md"])).result["result"][0]
    assert whole["sha256"] == sha(b"open\nsecret\n")
    for ranges in ([{"filePath": "Two.md", "endLine": 1}], [{"filePath": "Two.md", "startLine": 2}]):
        part = (await use("file_read", everything, filePaths=["Two.md"], ranges=ranges)).result["result"][0]
        assert "secret" in part["content"] or "open" in part["content"]
        assert "sha256" not in part
    edits = [{"oldText": "open", "newText": "public"}]
    blind = (await use("note_edit", YES, filePath="Two.md", edits=edits)).result["result"]
    assert blind == {"path": "Two.md", "created": False}
    (folder / "Two.md").write_text("open\nsecret\n")
    known = (await use("note_edit", YES, filePath="Two.md", edits=edits, baseHash=whole["sha256"])).result[
        "result"
    ]
    assert known == {"path": "Two.md", "created": False, "sha256": sha(b"public\nsecret\n")}


async def test_a_truncated_note_has_no_hash(
    use: Use, library: Library, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "Long.md").write_text("x" * 100 + "\n" + "y" * 100 + "\n")
    monkeypatch.setattr(library.vault, "limits", replace(library.vault.limits, call_bytes=120))
    part = (await use("file_read", everything, filePaths=["Long.md"])).result["result"][0]
    assert part["truncated"] and "sha256" not in part


async def test_a_file_is_read_even_if_the_index_folder_is_unusable(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("toolwire.vault.index.connect", full)
    assert (await use("file_read", everything, filePaths=["Rivers/Mill.md"])).status == "done"


async def test_a_denied_change_leaves_no_trace(use: Use, folder: Path) -> None:
    before = sorted(str(path) for path in folder.rglob("*"))
    outcome = await use("note_write", NO, filePath="Ideas/New.md", content="x")
    assert outcome.status == "denied"
    assert sorted(str(path) for path in folder.rglob("*")) == before


async def test_the_second_change_to_a_note_in_one_turn_fails_because_the_note_has_changed(
    library: Library, approvals: Approvals, folder: Path
) -> None:
    calls = [
        ToolCall(f"call_{text}", "note_write", json.dumps({"filePath": "Rivers/Mill.md", "content": text}))
        for text in ("first", "second")
    ]
    first, second = await Executor(
        Toolbox(tools_of(library)), approvals, Person(approvals, YES, YES)
    ).execute(calls, ASKING)
    assert (first.status, second.status) == ("done", "failed")
    assert "has changed since the person was asked" in second.result["error"]
    assert (folder / "Rivers/Mill.md").read_text() == "first"


# --- all of them --------------------------------------------------------------------------------


async def test_the_tools_of_a_vault_open_with_the_settings_patterns(
    folder: Path, tmp_path: Path, approvals: Approvals, monkeypatch: Any
) -> None:
    from toolwire.settings.types import Settings, VaultSettings

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    async with opened(Settings(vault=VaultSettings(exclude=("Diary/",))), folder) as tools:
        toolbox = Toolbox(tools)
        person = Deciding(approvals, YES, everything, everything)
        calls = [ToolCall("1", "vault_search", '{"query": "waterwheel"}')]
        (searched,) = await Executor(toolbox, approvals, person).execute(calls, ASKING)
        assert [one["path"] for one in searched.result["result"]["results"]] == ["Rivers/Mill.md"]
        calls = [ToolCall("2", "file_read", '{"filePaths": ["Diary/2026-01-02.md"]}')]
        (read,) = await Executor(toolbox, approvals, person).execute(calls, ASKING)
        assert read.result["result"][0]["content"] == "File not found: Diary/2026-01-02.md"


def test_every_tool_has_texts_for_the_person_and_a_closed_schema_for_the_model(library: Library) -> None:
    for tool in tools_of(library):
        assert tool.title and tool.purpose and tool.description
        assert tool.parameters["additionalProperties"] is False
        assert tool.effect in ("search", "read", "write")

"""`toolwire vault index` and `toolwire vault search`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from toolwire.cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("TOOLWIRE_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "notes"
    folder.mkdir()
    for number in range(18):
        (folder / f"{number:02}.md").write_text(
            f"garden {'plan' if number < 3 else 'shed'} {'tools' if number == 0 else ''} hello\n"
        )
    return folder


@pytest.fixture
def vault(notes: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """`vault("search", …)` returns the exit status, stdout and stderr."""

    def run(action: str, *arguments: str) -> tuple[int, str, str]:
        try:
            status = main(["vault", action, *arguments])
        except SystemExit as ended:
            status = int(ended.code or 0)
        return status, *capsys.readouterr()

    return run


def found(out: str) -> list[str]:
    return sorted(line.partition(":")[0] for line in out.splitlines() if not line.startswith(" "))


@pytest.mark.parametrize(
    "arguments",
    [
        ("DIR", "garden", "plan", "--limit", "5"),
        ("DIR", "--limit", "5", "garden", "plan"),
        ("--limit", "5", "DIR", "garden", "plan"),
        ("DIR", "garden", "--limit=5", "plan"),
        ("DIR", "garden", "--limit", "5", "plan", "--debug"),
    ],
)
def test_query_words_may_come_before_and_after_options(
    vault: Run, notes: Path, arguments: tuple[str, ...]
) -> None:
    status, out, err = vault("search", *(str(notes) if one == "DIR" else one for one in arguments))
    assert (status, found(out), err) == (0, ["00.md", "01.md", "02.md"], "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("garden", "plan", "-tools"), ["01.md", "02.md"]),
        (("-tools", "plan"), ["01.md", "02.md"]),
        (("--limit", "9", "plan", "-tools", "--debug"), ["01.md", "02.md"]),
        (("plan -tools",), ["01.md", "02.md"]),
        (("plan", "-path:01"), ["00.md", "02.md"]),
    ],
)
def test_a_word_may_begin_with_a_minus(
    vault: Run, notes: Path, words: tuple[str, ...], expected: list[str]
) -> None:
    status, out, err = vault("search", str(notes), *words)
    assert (status, found(out), err) == (0, expected, "")


def test_a_word_that_begins_as_the_option_for_help_is_a_word(vault: Run, notes: Path) -> None:
    assert vault("search", str(notes), "plan", "-hello") == (1, "", "no note matches\n")
    assert vault("search", "-h")[1].startswith("usage:")


def test_an_unknown_option_is_still_refused(vault: Run, notes: Path) -> None:
    status, out, err = vault("search", str(notes), "garden", "--limits", "5")
    assert (status, out) == (2, "") and "--limits" in err and err.count("\n") == 1


def test_no_result_and_more_results_than_shown_are_reported(vault: Run, notes: Path) -> None:
    assert vault("search", str(notes), "zeppelin") == (1, "", "no note matches\n")
    assert vault("search", str(notes), "?!") == (1, "", "no note matches\n")
    status, out, err = vault("search", str(notes), "garden")
    assert (status, len(found(out)), err) == (0, 10, "10 of 18 results; --limit N shows more\n")
    assert vault("search", str(notes), "garden", "--limit", "18")[2] == ""


def test_the_hint_offers_no_limit_above_the_highest(vault: Run, notes: Path) -> None:
    for number in range(50):
        (notes / f"more {number}.md").write_text("garden")
    assert vault("search", str(notes), "garden", "--limit", "50")[2] == "50 of 68 results\n"


@pytest.mark.parametrize("query", ["garden", "zeppelin"])
def test_with_json_only_json_is_printed(vault: Run, notes: Path, query: str) -> None:
    status, out, err = vault("search", str(notes), query, "--json")
    found = json.loads(out)
    assert err == "" and status == (0 if found["hits"] else 1) and found["truncated"] is (query == "garden")


def test_an_index_that_cannot_be_written_is_one_line_without_a_traceback(
    vault: Run, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(notes / "00.md"))
    for arguments in (("search", str(notes), "garden"), ("index", str(notes))):
        status, out, err = vault(*arguments)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert str(notes / "00.md") in err and "XDG_CACHE_HOME" in err and "unexpected" not in err

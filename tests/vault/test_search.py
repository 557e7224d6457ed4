"""Search: which notes are found, in which order, and what the answer says about them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.vault.index import Index
from toolwire.vault.paths import Vault
from toolwire.vault.results import Found
from toolwire.vault.search import search
from toolwire.vault.words import composed, folded, indexed, parse_query, tokens

NOTES = {
    "Programming/TypeScript Basics.md": "# TypeScript\n\nTypeScript is a typed superset of JavaScript.\n\n"
    "## Tooling\n\nThe compiler is called tsc.\n",
    "Programming/Python.md": "---\naliases: [Snake, CPython]\ntags: [lang/python]\n---\nA language.\n\n"
    "## Gateway\n\nA gateway in Python with typed code.\n",
    "Programming/Cpp.md": "I like C++ and C# but not C.\nUse `foo_bar()` and node.js -> done.\n",
    "Journal/2024-05-01.md": "Met Zoë at the café about the gateway. 🎉\n",
    "Journal/2024-05-02.md": "The gateway is running. The gateway is fast. #work/gateway\n",
    "Recipes/Soup.md": "carrots and celery\n\n## Method\n\nSimmer the onions for an hour.\n",
    "日本語.md": "東京は日本の首都です。ラーメンが好き。\n",
    "ไทย.md": "ภาษาไทยเป็นภาษาที่มีเสียงวรรณยุกต์\n",
    "한국.md": "저는 한국어를 공부합니다.\n",
    "long.md": "# Start\n\n"
    + "filler words here. " * 60
    + "the needle lies here "
    + "more filler text. " * 60
    + "\n",
    "gateway notes.txt": "plain text\n",
    "robots.md": "robot🤖party „Zitat“ – Straße ΣΊΣΥΦΟΣ\n",
}

Ask = Callable[..., Found]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    root = tmp_path_factory.mktemp("vault")
    for path, text in NOTES.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(text)
    with Vault(root) as vault, Index(vault, tmp_path_factory.mktemp("cache")) as index:
        index.refresh()
        yield lambda query, limit=10: search(index, query, limit)


def paths(found: Found) -> list[str]:
    return [hit.path for hit in found.hits]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("superset", ["Programming/TypeScript Basics.md"]),
        ("SUPERSET", ["Programming/TypeScript Basics.md"]),
        ("typed superset", ["Programming/TypeScript Basics.md"]),
        ("superset typed", ["Programming/TypeScript Basics.md"]),
        ('"typed superset"', ["Programming/TypeScript Basics.md"]),
        ('"superset typed"', []),
        ("snake", ["Programming/Python.md"]),
        ("zoe cafe", ["Journal/2024-05-01.md"]),
        ("Zoë CAFÉ", ["Journal/2024-05-01.md"]),
        ("simm", ["Recipes/Soup.md"]),
        ("celery onions", ["Recipes/Soup.md"]),
        ("recipes onions", ["Recipes/Soup.md"]),
        ("Soup celery", ["Recipes/Soup.md"]),
        ("日本", ["日本語.md"]),
        ("東京", ["日本語.md"]),
        ("首", ["日本語.md"]),
        ("ラーメン", ["日本語.md"]),
        ("京日", []),
        ("ไทย", ["ไทย.md"]),
        ("วรรณ", ["ไทย.md"]),
        ("한국", ["한국.md"]),
        ("국어", ["한국.md"]),
        ("C++", ["Programming/Cpp.md"]),
        ("c#", ["Programming/Cpp.md"]),
        ("->", ["Programming/Cpp.md"]),
        ("🎉", ["Journal/2024-05-01.md"]),
        ("foo_bar", ["Programming/Cpp.md"]),
        ("🤖", ["robots.md"]),
        ("party", ["robots.md"]),
        ("robot🤖", ["robots.md"]),
        ("zitat", ["robots.md"]),
        ("STRAßE", ["robots.md"]),
        ("σίσυφος", ["robots.md"]),
        ("node.js", ["Programming/Cpp.md"]),
        ("#work/gateway", ["Journal/2024-05-02.md"]),
        ("tag:work", ["Journal/2024-05-02.md"]),
        ("tag:lang gateway", ["Programming/Python.md"]),
        ("path:journal gateway", ["Journal/2024-05-02.md", "Journal/2024-05-01.md"]),
        ("gateway -running -path:txt -python", ["Journal/2024-05-01.md"]),
        ("onions OR superset", ["Programming/TypeScript Basics.md", "Recipes/Soup.md"]),
        ("script", ["Programming/TypeScript Basics.md"]),
        ("zzyzx", []),
        ("zzyzx qwrtp", []),
        ("?!", []),
        ("", []),
        ("   ", []),
        ('"', []),
        ("-gateway", []),
    ],
)
def test_a_query_finds(ask: Ask, query: str, expected: list[str]) -> None:
    assert sorted(paths(ask(query))) == sorted(expected)


def test_a_title_counts_more_than_a_text(ask: Ask) -> None:
    assert paths(ask("gateway"))[0] == "gateway notes.txt"
    assert paths(ask("typescript"))[0] == "Programming/TypeScript Basics.md"


def test_the_best_comes_first_and_scores_are_between_0_and_1(ask: Ask) -> None:
    scores = [hit.score for hit in ask("gateway").hits]
    assert len(scores) == 4
    assert all(0 <= score <= 1 for score in scores)
    assert scores == sorted(scores, reverse=True) and len(set(scores)) > 1


def test_matches_is_the_exact_number_of_occurrences(ask: Ask) -> None:
    counted = {hit.path: hit.matches for hit in ask("gateway").hits}
    assert counted == {
        "Journal/2024-05-02.md": 3,
        "Journal/2024-05-01.md": 1,
        "Programming/Python.md": 2,
        "gateway notes.txt": 1,
    }
    assert ask("filler").hits[0].matches == 120
    assert ask('"the gateway is"').hits[0].matches == 2
    assert ask("日本").hits[0].matches == 2


def test_the_preview_is_about_two_hundred_characters_around_the_match(ask: Ask) -> None:
    hit = ask("needle").hits[0]
    assert "the needle lies here" in hit.preview
    assert hit.preview.startswith("...") and hit.preview.endswith("...")
    assert 150 <= len(hit.preview) <= 210
    assert ask("celery").hits[0].preview == "carrots and celery"


def test_a_hit_has_its_headings_and_lines(ask: Ask) -> None:
    hit = ask("compiler").hits[0]
    assert (hit.headings, hit.line, hit.first_line, hit.last_line) == (("TypeScript", "Tooling"), 7, 5, 7)
    assert (hit.basename, hit.title, hit.fields) == ("TypeScript Basics", "TypeScript Basics", ("body",))
    assert NOTES[hit.path].split("\n")[hit.line - 1] == "The compiler is called tsc."
    snake = ask("snake").hits[0]
    assert "aliases" in snake.fields and snake.tags == ("lang/python",)


def test_words_in_different_chunks_of_a_note_are_found_together(ask: Ask) -> None:
    found = ask("carrots simmer")
    assert paths(found) == ["Recipes/Soup.md"] and not found.relaxed


def test_if_no_note_has_all_words_notes_with_any_are_returned_as_relaxed(ask: Ask) -> None:
    found = ask("superset onions unheard")
    assert found.relaxed and set(paths(found)) == {"Programming/TypeScript Basics.md", "Recipes/Soup.md"}
    assert not ask("superset").relaxed and not ask("zzyzx qwrtp").relaxed


def test_the_limit_is_respected_and_more_matches_are_reported(ask: Ask) -> None:
    found = ask("gateway", 2)
    assert len(found.hits) == 2 and found.truncated and found.total == 4
    assert not ask("gateway", 4).truncated
    assert paths(ask("gateway", 0)) == paths(ask("gateway", 1))
    assert paths(ask("gateway", 10**9)) == paths(ask("gateway", 50))


def test_the_same_query_gives_the_same_results(ask: Ask) -> None:
    for query in ("gateway", "the", "a OR the", "superset onions unheard"):
        assert ask(query).hits == ask(query).hits


def test_equal_notes_are_ordered_by_path(tmp_path: Path) -> None:
    (tmp_path / "vault").mkdir()
    for name in ("c", "a", "b"):
        (tmp_path / "vault" / f"{name}.md").write_text("same words here")
    with Vault(tmp_path / "vault") as vault, Index(vault, tmp_path / "cache") as index:
        index.refresh()
        assert paths(search(index, "same")) == ["a.md", "b.md", "c.md"]


def test_for_a_very_frequent_word_titles_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolwire.vault.search.MOST_ROWS", 20)
    (tmp_path / "vault").mkdir()
    for number in range(100):
        (tmp_path / "vault" / f"n{number}.md").write_text("common words")
    (tmp_path / "vault" / "z common.md").write_text("nothing")
    with Vault(tmp_path / "vault") as vault, Index(vault, tmp_path / "cache") as index:
        index.refresh()
        found = search(index, "common", 5)
        assert found.hits[0].path == "z common.md" and len(found.hits) == 5 and found.truncated
        assert not search(index, "common absent", 5).hits[0].path.endswith(".txt")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[[dict[str, str]], Index]]:
    """`small(notes)`: the index of a vault with these notes."""
    with ExitStack() as stack:

        def made(notes: dict[str, str]) -> Index:
            for path, text in notes.items():
                (tmp_path / "vault" / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / "vault" / path).write_text(text)
            index = stack.enter_context(
                Index(stack.enter_context(Vault(tmp_path / "vault")), tmp_path / "cache")
            )
            index.refresh()
            return index

        yield made


GARDEN = {
    "A shopping list.md": "Bread, and something for the garden.\n",
    "Garden.md": "---\ntitle: The garden\ntags: [garden]\n---\n# The garden\n\n"
    "The garden has a wall, and a garden has a door.\n",
    "Work.md": "Nothing but work.\n",
}


@pytest.mark.parametrize(
    "others",
    [{}, {"Work.md": "Work, far from the garden.\n"}, {f"{number}.md": "a garden" for number in range(30)}],
)
def test_the_best_comes_first_if_most_notes_have_the_word(
    small: Callable[..., Index], others: dict[str, str]
) -> None:
    found = search(small({**GARDEN, **others}), "garden")
    assert found.hits[0].path == "Garden.md" and found.hits[0].matches == 6
    scores = [hit.score for hit in found.hits]
    assert (
        all(0 < score <= 1 for score in scores)
        and scores == sorted(scores, reverse=True)
        and scores[0] > scores[1]
    )


def test_weights_count_if_all_words_are_in_most_notes(small: Callable[..., Index]) -> None:
    index = small(
        {
            "a.md": "plan of the garden",
            "b.md": "#garden and a plan",
            "c/garden/plan.md": "a plan",
            "d.md": "# Plan\n\nthe garden",
            "Garden plan.md": "soon",
        }
    )
    assert paths(search(index, "garden plan")) == [
        "Garden plan.md",
        "c/garden/plan.md",
        "b.md",
        "d.md",
        "a.md",
    ]


def test_within_limits_results_and_counts_before_the_limit_applies(small: Callable[..., Index]) -> None:
    notes = {f"Outside/Garden {number}.md": "garden garden" for number in range(20)} | {
        "In/A.md": "a garden #t",
        "In/B.md": "a garden",
    }
    index = small(notes)

    def inside(query: str) -> Found:
        return search(index, query, 10, lambda path: path.startswith("In/"))

    assert {hit.path for hit in search(index, "garden").hits}.isdisjoint({"In/A.md", "In/B.md"})
    assert sorted(paths(inside("garden"))) == ["In/A.md", "In/B.md"] and inside("garden").total == 2
    assert (
        paths(inside("tag:t")) == ["In/A.md"]
        and paths(inside("arden")) == []
        and paths(inside("Outside")) == []
    )


@pytest.mark.parametrize(
    ("text", "preview", "line"),
    [
        ("---\ntags: [t]\n---\n# Title\n\nThe words.\n", "# Title The words.", 4),
        ("---\ntags: [t]\n---\n# Title\n\n## Inner\n\nThe words.\n", "## Inner The words.", 6),
        ("---\ntags: [t]\n---\n\nThe words.\n", "...The words.", 5),
        ("---\ntags: [t]\n---\n", "--- tags: [t] ---", 1),
        ("---\ntags: [t]\n---\n# Title\n", "# Title", 4),
        ("#t The words.\n", "#t The words.", 1),
    ],
)
@pytest.mark.parametrize("query", ["tag:t", "path:name", "name"])
def test_a_note_found_by_tag_or_path_shows_its_first_words(
    small: Callable[..., Index], text: str, preview: str, line: int, query: str
) -> None:
    (hit,) = search(small({"name.md": text}), query).hits
    assert (hit.preview, hit.line) == (preview, line) and hit.first_line <= hit.line <= hit.last_line


def test_the_preview_of_a_note_found_by_tag_is_from_its_text(small: Callable[..., Index]) -> None:
    index = small(
        {
            "Garden.md": "---\ntags: [garden]\n---\n# Garden\n\nThe garden plan.\n",
            "B.md": "A gate of the garden.",
        }
    )
    hit = search(index, "garden").hits[0]
    assert (hit.path, hit.line) == ("Garden.md", 4) and hit.preview == "# Garden The garden plan."


# --- what holds for any query -------------------------------------------------------------------

PIECES = [
    *"ab \"-*()^:+#{}[]/\\'~.,;ORANDNT日é🎉\0\n\ud800",
    "tag:",
    "path:",
    " OR ",
    "NEAR(",
    "gateway",
    " the ",
]
QUERIES = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@given(QUERIES)
def test_any_text_is_a_query(ask: Ask, query: str) -> None:
    found = ask(query)
    assert len(found.hits) <= 10
    assert all(hit.matches >= 1 and hit.first_line <= hit.line <= hit.last_line for hit in found.hits)


@given(st.text(max_size=60))
def test_any_text_is_read_as_a_query(text: str) -> None:
    query = parse_query(text)
    assert all(term.words or term.literal for term in query.terms)


LETTERS = st.one_of(st.characters(max_codepoint=0x24F), st.sampled_from("日本ラ한ไทยКирЁλΣςßſǠ🎉🤖🫠€„“’—·Ა"))


@given(st.text(LETTERS, max_size=40))
def test_words_are_those_of_the_full_text_index(text: str) -> None:
    text = composed(text.replace("\0", " "))
    with sqlite3.connect(":memory:") as connection:
        connection.execute(
            """CREATE VIRTUAL TABLE words USING fts5 (body, tokenize="unicode61 remove_diacritics 2")"""
        )
        connection.execute("CREATE VIRTUAL TABLE vocabulary USING fts5vocab (words, instance)")
        connection.execute("INSERT INTO words VALUES (?)", (indexed(text),))
        found = [term for (term,) in connection.execute("SELECT term FROM vocabulary ORDER BY offset")]
    connection.close()
    assert tokens(folded(text)) == found
    assert len(folded(text)) == len(text)

"""Parsing a note as Obsidian does: headings, chunks, tags, links, tasks and properties, with their lines."""

from __future__ import annotations

import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.vault.frontmatter import Value, frontmatter
from toolwire.vault.notes import CHUNK, MOST_CHUNKS, Link, Task, parse


def lines_of(text: str, first: int, last: int) -> str:
    return "\n".join(text.split("\n")[first - 1 : last])


def test_headings_make_chunks_with_their_lines() -> None:
    text = "intro\n\n# One\ntext\n## Two\nmore\n### Three\n# Four\nend"
    note = parse(text)
    assert [(chunk.headings, chunk.first_line, chunk.last_line) for chunk in note.chunks] == [
        ((), 1, 2),
        (("One",), 3, 4),
        (("One", "Two"), 5, 6),
        (("One", "Two", "Three"), 7, 7),
        (("Four",), 8, 9),
    ]
    assert [lines_of(text, chunk.first_line, chunk.last_line).strip() for chunk in note.chunks] == [
        text[chunk.start : chunk.end].strip() for chunk in note.chunks
    ]


@pytest.mark.parametrize(
    ("text", "headings"),
    [
        ("# A #", ["A"]),
        ("   ## B ##", ["B"]),
        ("    # four spaces", []),
        ("#no space", []),
        ("####### seven", []),
        ("a # b", []),
        ("Title\n===", ["Title"]),
        ("Title\n---\ntext", ["Title"]),
        ("- item\n---", []),
        ("\n---\n", []),
        ("```\n# code\n```\n# real", ["real"]),
        ("~~~\n# code\n```\n# still\n~~~\n# real", ["real"]),
        ("````\n```\n# code\n````\n# real", ["real"]),
        ("> ```\n> # code\n> ```\n# real", ["real"]),
        ("```\n# never closed", []),
        ("``` not ` a fence\n# real", ["real"]),
        ("---\n# comment\na: 1\n---\n# real", ["real"]),
    ],
)
def test_what_is_a_heading(text: str, headings: list[str]) -> None:
    assert [heading.text for heading in parse(text).headings] == headings


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("#a #b/c", ["a", "b/c"]),
        ("#Work and #work", ["Work"]),
        ("#1984 #y1984 #2024-01", ["y1984", "2024-01"]),
        ("a#b (#c) x,#d", []),
        ("`#code` ``#c `x` #d`` #real", ["real"]),
        ("```\n#code\n```\n#real", ["real"]),
        ("#日本 #über #🎉", ["日本", "über", "🎉"]),
        ("#trailing/ #dot. #comma, #x#y", ["trailing", "dot", "comma", "x"]),
        ("# heading #in-heading", ["in-heading"]),
        ("---\ntags: [a, '#b']\n---\n#c", ["a", "b", "c"]),
        ("---\ntags: a, b c\n---", ["a", "b", "c"]),
        ("---\ntag: one\ntags:\n- two\n- three/four\n---", ["two", "three/four", "one"]),
        ("https://x.org/#anchor", []),
    ],
)
def test_what_is_a_tag(text: str, tags: list[str]) -> None:
    assert parse(text).tags == tags


def test_links_and_embeds_with_their_lines() -> None:
    text = (
        "---\nrelated: '[[Prop]]'\n---\n[[Note#Heading|alias]]\n"
        "![[pic.png]] [md](Some%20Note.md#h) [ang](<a b.md>)\n"
    )
    text += "[web](https://x.org) `[[code]]`\n"
    assert parse(text).links == [
        Link("Prop", "", "", 2, False),
        Link("Note", "Heading", "alias", 4, False),
        Link("pic.png", "", "", 5, True),
        Link("Some Note.md", "h", "md", 5, False),
        Link("a b.md", "", "ang", 5, False),
    ]
    assert parse("[[#Here]] [[|x]] [[a\nb]] [[]]").links == [Link("", "Here", "", 1, False)]


def test_tasks_with_their_state() -> None:
    text = (
        "- [ ] open\n* [x] done\n1. [X] also\n  - [/] half\n> - [ ] quoted\n- [] none\ntext [ ] none\n```\n"
        "- [ ] code\n```"
    )
    assert parse(text).tasks == [
        Task(" ", "open", 1),
        Task("x", "done", 2),
        Task("X", "also", 3),
        Task("/", "half", 4),
        Task(" ", "quoted", 5),
    ]


@pytest.mark.parametrize(
    ("head", "properties"),
    [
        (
            "a: 1\nb: 2.5\nc: true\nd: null\ne:\nf: text # comment",
            {"a": 1, "b": 2.5, "c": True, "d": None, "e": None, "f": "text"},
        ),
        ("a: \"x: \\\"y\\\" \\u00e9\"\nb: 'it''s'", {"a": 'x: "y" é', "b": "it's"}),
        ("a: [x, \"y, z\", 3, 'q']\nb: []", {"a": ["x", "y, z", 3, "q"], "b": []}),
        ("a:\n- x\n- 2\n  - 'z'", {"a": ["x", 2, "z"]}),
        (
            "date: 2024-01-02\ntime: 12:30\nurl: https://x.org/#a",
            {"date": "2024-01-02", "time": "12:30", "url": "https://x.org/#a"},
        ),
        ("a: [[Link]]\nb: '[[Link]]'", {"a": "[[Link]]", "b": "[[Link]]"}),
        ("a:\n  b: 1\n  c: 2\nd: 3", {"a": "b: 1\nc: 2", "d": 3}),
        ("a: |\n  one\n  two\nd: 3", {"a": "one\ntwo", "d": 3}),
        ("a:\n- x: 1\n  y: 2\nd: 3", {"a": "- x: 1\ny: 2", "d": 3}),
        ("my key: 1\n'quoted key': 2\n# comment\n\nz: 3", {"my key": 1, "quoted key": 2, "z": 3}),
        ("a: 1\na: 2", {"a": 1}),
        ("a: [x, [y]]\nb: {c: 1}", {"a": "[x, [y]]", "b": "{c: 1}"}),
        (
            "a: 007\nb: 1e5\nc: +3\nd: 99999999999999999999",
            {"a": "007", "b": "1e5", "c": 3, "d": "99999999999999999999"},
        ),
        ('a: "\\ud800"', {"a": "\ufffd"}),
    ],
)
def test_frontmatter_of_the_known_shapes(head: str, properties: dict[str, Value]) -> None:
    found = frontmatter(f"---\n{head}\n---\nbody")
    assert found.properties == properties
    assert f"---\n{head}\n---\nbody"[found.end :] == "body"


@pytest.mark.parametrize(
    "text",
    [
        "---\na: 1\n",
        "---\nno colon\n---\n",
        "--- x\na: 1\n---\n",
        " ---\na: 1\n---\n",
        "text\n---\na: 1\n---\n",
        "----\na: 1\n----\n",
        "---\n? a\n---\n",
        "---\n- a\n---\n",
    ],
)
def test_malformed_frontmatter_is_text(text: str) -> None:
    assert frontmatter(text).end == 0
    assert parse(text).properties == {}


def test_aliases_and_title() -> None:
    note = parse("---\ntitle: The Title\naliases: [One, Two]\nalias: Three, Four\n---\n")
    assert (note.title, note.aliases) == ("The Title", ["One", "Two", "Three", "Four"])


def test_a_long_section_is_split_between_lines() -> None:
    text = "# H\n" + "\n\n".join(f"paragraph {number} " + "word " * 50 for number in range(200))
    chunks = parse(text).chunks
    assert len(chunks) > 5
    assert all(chunk.end - chunk.start <= CHUNK for chunk in chunks)
    assert all(chunk.headings == ("H",) for chunk in chunks)
    assert all(text[chunk.start - 1] == "\n" for chunk in chunks[1:])


def test_a_note_of_headings_only_has_a_bounded_number_of_chunks() -> None:
    text = "# a\n" * 200_000
    chunks = parse(text).chunks
    assert len(chunks) <= MOST_CHUNKS
    assert chunks[-1].end == len(text)


MARKUP = st.lists(
    st.sampled_from(
        [
            "#",
            "# ",
            "`",
            "```",
            "~~~",
            "\n",
            "\n\n",
            "---\n",
            "[[",
            "]]",
            "](",
            "[",
            ")",
            "- [ ] ",
            "a",
            "b: ",
            " ",
            "===",
            "\t",
            "é",
            "日",
            "|",
            "!",
            "> ",
        ]
    )
).map("".join)


@given(MARKUP)
def test_any_text_is_a_note_and_its_chunks_cover_it(text: str) -> None:
    note = parse(text)
    place, line = 0, 1
    for chunk in note.chunks:
        assert (chunk.start, chunk.first_line) == (place, line)
        place, line = chunk.end, line + text.count("\n", chunk.start, chunk.end)
    assert place == len(text)
    total = text.count("\n") + 1
    assert all(
        1 <= thing.line <= total for things in (note.headings, note.links, note.tasks) for thing in things
    )


@pytest.mark.parametrize(
    "piece",
    [
        "`",
        "` ",
        "`a``b ",
        "```a\n",
        "[[",
        "[](",
        "[a](b(",
        "#a ",
        "# a\n",
        "- [ ] x\n",
        "a\n---\n",
        "> ```\n",
        "[x] ",
        "a: b\n",
        "\n ",
    ],
)
def test_the_cost_is_linear(piece: str) -> None:
    """Ten times the text takes about ten times as many steps of the interpreter."""

    def steps(size: int) -> int:
        count, before = 0, sys.gettrace()

        def trace(*_: object) -> object:
            nonlocal count
            count += 1
            return trace

        text = "---\n" + piece * size
        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            parse(text)
        finally:
            sys.settrace(before)
        return count

    assert steps(2000) <= 12 * steps(200) + 2000


@pytest.mark.parametrize(
    "text",
    [
        "# x" + " " * 40_000 + "y",
        "---\ntags: [1," + " " * 1500 + "{]\n---\n",
        "---\ntags: [a" + " " * 20_000 + "{]\n---\n",
    ],
    ids=["a heading with a gap", "an empty item of a list", "an item with a gap"],
)
def test_a_hostile_line_does_not_delay_the_index(text: str) -> None:
    began = time.process_time()
    parse(text)
    assert time.process_time() - began < 2

"""Live Markdown: the screen ends with the whole text, however it was cut, and nothing is painted twice."""

from __future__ import annotations

import io

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from toolwire.surfaces.terminal.painter import Blocks, Painter, renderer

TEXT = """# A heading

A paragraph with **bold**, `code` and 漢字 that is long enough to be wrapped at the end of a \
narrow line, 😀 included.

- one
- two

  still two
- three

```python
for x in y:

    print(x)
```
After the code.

1. first
2. second

| 名前 | value |
|------|-------|
| 漢字 | 1 |
| ab | 22 |

The end."""


class Glass:
    """A terminal with a painter."""

    def __init__(self, columns: int = 60, lines: int = 24) -> None:
        self.screen = pyte.HistoryScreen(columns, lines, history=5000)
        self._stream = pyte.Stream(self.screen)
        self.written: list[str] = []
        self.later: list[object] = []
        self.now = 0.0
        console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=columns)
        self.painter = Painter(
            self.write,
            lambda: (self.screen.columns, self.screen.lines),
            renderer(console),
            self._later,
            lambda: self.now,
        )

    def _later(self, seconds: float, call: object) -> None:
        self.later.append(call)

    def write(self, text: str) -> None:
        self.written.append(text)
        self._stream.feed(text.replace("\n", "\r\n"))

    def paint(self, *pieces: str, pause: float = 1.0) -> Glass:
        for piece in pieces:
            self.painter.feed(piece)
            self.now += pause
        return self

    @property
    def shown(self) -> list[str]:
        above = [
            "".join(line[column].data for column in range(self.screen.columns))
            for line in self.screen.history.top
        ]
        lines = [line.rstrip() for line in (*above, *self.screen.display)]
        while lines and not lines[-1]:
            lines.pop()
        return lines


def at_once(text: str, columns: int = 60, lines: int = 200) -> list[str]:
    glass = Glass(columns, lines).paint(text)
    glass.painter.finish()
    return glass.shown


def test_a_whole_page_is_painted_in_order() -> None:
    shown = at_once(TEXT)
    order = [
        "A heading",
        "A paragraph with bold",
        " • one",
        "still two",
        "for x in y:",
        "print(x)",
        "After the code.",
        " 1 first",
        " 22",
        "The end.",
    ]
    places = [next(place for place, line in enumerate(shown) if words in line) for words in order]
    assert places == sorted(places) and "**" not in "\n".join(shown) and "```" not in "\n".join(shown)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("lines", [200, 12])
def test_the_final_screen_is_the_same_for_any_chunks(size: int, lines: int) -> None:
    glass = Glass(lines=lines).paint(*(TEXT[place : place + size] for place in range(0, len(TEXT), size)))
    glass.painter.finish()
    assert glass.shown == at_once(TEXT)


@given(
    st.lists(
        st.sampled_from(
            [
                "word ",
                "**b** ",
                "\n",
                "\n\n",
                "- item\n",
                "```\n",
                "    x\n",
                "漢字 ",
                "1. n\n",
                "> q\n",
                "# h\n",
                "😀",
            ]
        ),
        max_size=30,
    )
)
def test_any_text_is_shown_completely_for_any_chunks(pieces: list[str]) -> None:
    glass = Glass(columns=40, lines=200).paint(*pieces)
    glass.painter.finish()
    blocks = Blocks()
    cut = [*blocks.feed("".join(pieces)), *blocks.finish()]
    assert "".join(cut).split() == "".join(pieces).split()
    assert glass.shown == at_once("".join(pieces), columns=40)


def test_a_complete_block_is_never_painted_again() -> None:
    glass = Glass().paint("First paragraph.\n\n", "Second ", "paragraph ", "grows.")
    assert sum("First" in written for written in glass.written) == 1


def test_only_the_lines_that_changed_are_painted() -> None:
    glass = Glass(columns=40).paint("word " * 30, "and more")
    assert glass.written[-1].count("word") < 10 and "\x1b[1A\r\x1b[J" in glass.written[-1]


def test_text_that_arrives_too_fast_is_painted_a_little_later() -> None:
    glass = Glass().paint("one ", pause=0)
    glass.now += 0.0001
    glass.painter.feed("two ")
    glass.painter.feed("three")
    assert glass.shown == ["one"] and len(glass.later) == 1
    glass.later[0]()  # type: ignore[operator]
    assert glass.shown == ["one two three"]


def test_a_block_that_is_longer_than_the_screen_loses_nothing() -> None:
    code = "```\n" + "".join(f"line {number}\n" for number in range(60)) + "```\n"
    glass = Glass(lines=10).paint(*code.splitlines(keepends=True))
    glass.painter.finish()
    assert [line.strip() for line in glass.shown if line.strip()] == [
        f"line {number}" for number in range(60)
    ]


def test_a_terminal_that_is_resized_meanwhile_loses_nothing() -> None:
    glass = Glass(columns=60).paint("A long paragraph that " + "goes on " * 20)
    glass.screen.resize(24, 40)
    glass.paint("to the very end.")
    glass.painter.finish()
    assert (
        " ".join(glass.shown[-6:]).endswith("to the very end.")
        and glass.shown.count("A long paragraph that goes on goes on go") == 1
    )


def test_untrusted_text_cannot_send_terminal_escapes() -> None:
    glass = Glass().paint("before \x1b[2J\x1b]0;title\x07\u202eafter\u202c")
    glass.painter.finish()
    assert "\x1b[2J\x1b]" not in "".join(glass.written) and "before ␛[2J␛]0;title␇" in glass.shown[0]

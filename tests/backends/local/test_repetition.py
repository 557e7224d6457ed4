"""The repetition guard ends what repeats without end, and nothing that a person could have wanted."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.backends.local.repetition import OTHER, PROSE, WINDOW, RepetitionGuard

SENTENCE = "I am sorry, but I cannot help with that. "
PARAGRAPH = (
    "The sea is wide and the sea is deep, and the sailors know it. They sail out in the morning and they "
    "come home in the evening. The sea is wide and the sea is calm, and the sailors love it.\n\n"
)
ENDLESS = {
    "a sentence": SENTENCE,
    "a paragraph with a repeated phrase": PARAGRAPH,
    "a short list": "1. Read the note.\n2. Write the note.\n3. Close the note and start again.\n",
    "a Chinese sentence": "我很抱歉，我不能帮助你做这件事情，请你再试一次。",
    "exclamation marks": "!",
    "a word": "the ",
    "zeros": "0, ",
    "an empty row": "| | | |\n",
    "a line of code": "    x = x + 1\n",
}


def fed(text: str, size: int = 5) -> int | None:
    """How much of a text the guard lets through; None: all of it."""
    guard = RepetitionGuard()
    for begin in range(0, len(text), size):
        if guard.feed(text[begin : begin + size]):
            return begin + size
    return None


@pytest.mark.parametrize("passage", ENDLESS.values(), ids=ENDLESS)
def test_a_passage_without_end_is_noticed(passage: str) -> None:
    text = "Here is my answer.\n" + passage * (20_000 // len(passage))
    found = fed(text)
    assert found is not None and found < max(OTHER[0], OTHER[1] * len(passage)) + 2 * len(passage) + 100


@pytest.mark.parametrize("passage", [SENTENCE, PARAGRAPH])
def test_prose_is_ended_soon(passage: str) -> None:
    found = fed(passage * 100)
    assert found is not None and found < max(PROSE[0], PROSE[1] * len(passage)) + 2 * len(passage)


def _table() -> str:
    rows = [f"| {number} | item {number} | in stock | 0.00 |" for number in range(300)]
    return "\n".join(["| id | name | state | price |", "|---|---|---|---|", *rows])


def _code() -> str:
    tests = "\n".join(f"    assert add({one}, 1) == {one + 1}" for one in range(200))
    return f"```python\ndef test_add():\n{tests}\n\n\nprint('done')\n```\n"


CHORUS = (
    "Row, row, row your boat,\nGently down the stream,\n"
    "Merrily, merrily, merrily, merrily,\nLife is but a dream.\n\n"
)
WANTED = {
    "a table": _table(),
    "a table of equal rows": "| yes | no |\n|---|---|\n" + "| yes | no |\n" * 200,
    "code": _code(),
    "code with equal lines": "```\n" + "    pass  # nothing to do here\n" * 100 + "```\n",
    "numbers": ", ".join(map(str, range(2000))),
    "a multiplication table": "\n".join(f"{a} x {b} = {a * b}" for a in range(20) for b in range(20)),
    "a matrix of zeros": "\n".join(["[" + ", ".join(["0"] * 30) + "]"] * 30),
    "an identity matrix": "\n".join(" ".join("1" if a == b else "0" for a in range(40)) for b in range(40)),
    "equal JSON objects": "[" + ", ".join(['{"ok": true, "value": 0}'] * 100) + "]",
    "an HTML table": "<table>" + "<tr><td></td><td></td></tr>\n" * 100 + "</table>",
    "a line of dashes": "Title\n" + "-" * 500 + "\nText",
    "a picture": "\n".join(" " * (40 - row) + "*" * (2 * row + 1) for row in range(40)),
    "a song": "".join(f"{verse}. verse\n{CHORUS}" for verse in range(1, 5)) + CHORUS * 3,
    "the same sentence twenty times": "I will not talk in class.\n" * 20,
    "a checklist": "\n".join(
        f"- [ ] Read chapter {number} and write a summary of it" for number in range(200)
    ),
    "digits": "".join(random.Random(3).choices("0123456789", k=6000)),
    "a gene": "".join(random.Random(4).choices("ACGT", k=6000)),
}


@pytest.mark.parametrize("text", WANTED.values(), ids=WANTED)
def test_repetition_that_can_be_wanted_is_not_cut(text: str) -> None:
    assert fed(text) is None
    assert fed(text, 1) is None


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_the_pieces_do_not_matter(sizes: list[int]) -> None:
    text = "Well. " + SENTENCE * 40
    guard, at = RepetitionGuard(), 0
    for size in itertools.cycle(sizes):
        at += size
        if guard.feed(text[at - size : at]):
            break
        assert at < len(text)
    expected = fed(text, 1)
    assert expected is not None and expected <= at < expected + max(sizes)


def test_memory_is_bounded_and_the_cost_linear() -> None:
    guard = RepetitionGuard()
    words = random.Random(5)
    for _ in range(3000):
        guard.feed("".join(words.choices("abcdefghij ", k=20)))
    assert len(guard._text) <= 2 * WINDOW + 20 and len(guard._seen) <= WINDOW + 1
    times = []
    for count in (20_000, 80_000):
        text = "".join(words.choices("ab", k=count))  # many grams are found again
        began = time.process_time()
        fed(text)
        times.append((time.process_time() - began) / count)
    assert times[1] < 4 * times[0]

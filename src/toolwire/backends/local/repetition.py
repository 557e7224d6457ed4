"""Notices that a model repeats the same passage without end.

Small models do this, and would continue until their token limit. `RepetitionGuard` looks for a passage
that is followed by exact copies of itself. Prose may repeat a passage a few times. Other text, such as
tables, code and numbers, may repeat for much longer, because such repetitions are often intended.

The cost of a piece of text depends only on its length, and the guard's memory is bounded.
"""

from __future__ import annotations

GRAM = 16
"""How many characters must be equal before a repetition is noticed."""
WINDOW = 4096
"""The longest passage whose repetition is noticed, in characters."""
PROSE = (1000, 4)
"""How much repeated prose is allowed: a number of characters, and a number of repetitions of the passage.

The limit that allows more text is used.
"""
OTHER = (4000, 15)
"""The same two numbers as in `PROSE`, for text that is not prose."""
_SYMBOLS = frozenset("|{}[]<>;=`\\/_")
_FENCE = "```"
_IDEOGRAPHS = "\u2e80"


class RepetitionGuard:
    def __init__(self) -> None:
        self._text = ""
        self._seen: dict[str, int] = {}
        """The last position of each text of `GRAM` characters in the window, oldest first."""
        self._position = 0
        """How many characters `feed` has received."""
        self._period = 0
        """The length of the passage that is being repeated, in characters, or 0 if no text is repeated."""
        self._run = 0
        """How many characters in a row have repeated earlier text."""
        self._limit = 0
        """How many repeated characters are allowed."""
        self._is_other = False
        """Whether `_limit` is the limit for text that is not prose."""
        self._is_code = False

    def feed(self, piece: str) -> bool:
        """Takes the next piece of the answer. Returns True if the answer should end."""
        before = len(self._text)
        self._text += piece
        found = any(self._step(end) for end in range(before + 1, len(self._text) + 1))
        if len(self._text) > 2 * WINDOW:
            self._text = self._text[-WINDOW:]
        return found

    def _step(self, end: int) -> bool:
        """Handles the character before the position `end`. Returns True if the answer should end."""
        text = self._text
        self._position += 1
        if text[max(0, end - 3) : end] == _FENCE:
            self._is_code = not self._is_code
        last = self._remember(text[end - GRAM : end]) if end >= GRAM else 0
        if self._period and end > self._period and text[end - 1] == text[end - 1 - self._period]:
            self._run += 1
        elif last and self._position - last < end:
            self._period, self._run, self._is_other = self._position - last, 1, False
            self._limit = max(PROSE[0], PROSE[1] * self._period)
        else:
            self._period = self._run = 0
        return self._run > self._limit and self._is_endless(text[end - self._period : end])

    def _remember(self, gram: str) -> int:
        """Stores the position of a text of `GRAM` characters. Returns its previous position, or 0."""
        seen = self._seen
        last = seen.pop(gram, 0)
        seen[gram] = self._position
        oldest = next(iter(seen))
        if seen[oldest] <= self._position - WINDOW:
            del seen[oldest]
        return last

    def _is_endless(self, passage: str) -> bool:
        """Returns whether a repetition above the limit ends the answer.

        A repetition of prose ends the answer. For other text, the first call raises the limit (`OTHER`), and
        the second call ends the answer.
        """
        if self._is_other or (not self._is_code and _is_prose(passage)):
            return True
        self._is_other, self._limit = True, max(OTHER[0], OTHER[1] * self._period)
        return False


def _is_prose(passage: str) -> bool:
    """Returns whether a passage consists of words in sentences."""
    has_words = " " in passage or any(character > _IDEOGRAPHS for character in passage)
    letters = sum(map(str.isalpha, passage))
    return (
        has_words
        and letters >= 0.6 * len(passage)
        and len(set(passage)) >= 10
        and _SYMBOLS.isdisjoint(passage)
    )

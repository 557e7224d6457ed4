"""A text that grows by increments, and the verdict on it once it is complete.

Arguments are increments: concatenated they are one JSON text. A sender that repeats what it already sent is found out when the concatenation is
not JSON although a fragment began with everything before it.
"""

from __future__ import annotations

import json
from typing import NoReturn


class Growing:
    def __init__(self, text: str = "") -> None:
        self.text = text
        self._repeats = False

    def add(self, fragment: str) -> None:
        if self.text and len(fragment) > len(self.text) and fragment.startswith(self.text):
            self._repeats = True
        self.text += fragment

    def verdict(self, *, json_expected: bool, cut: bool) -> tuple[str, str] | None:
        """What is wrong with the whole text, as (code, message). `cut`: the model was stopped, so that the end may be missing."""
        if not json_expected:
            return None
        if self.text == "":
            return None if cut else ("empty_arguments", "a function call has no arguments; the least is {}")
        if is_json(self.text):
            return None
        if self._repeats and not (cut and self._may_nest()):
            return "cumulative_arguments", f"a fragment repeats what was sent before it: {self.text[:80]!r}"
        return None if cut else ("invalid_arguments", f"the arguments are not JSON: {self.text[:80]!r}")

    def _may_nest(self) -> bool:
        # `{"a":` followed by `{"a":1` is a nested object that was cut, not a repetition
        half = self.text[: self.text.find(self.text[0], 1)].rstrip()
        return half.endswith((":", ",", "["))


def is_json(text: str) -> bool:
    """Whether the text is one JSON value by the standard: Python's own NaN and Infinity are none."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)

"""The bounds of numbers in a JSON schema, exact, and never without an end. Pure; standard library only.

A multiple that must be below zero is one of a list, since llguidance knows none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

LARGEST = 10**15 - 1
"""What every reader of JSON keeps exactly."""
FINEST = Fraction(1, 10**6)
MOST_LISTED = 64
"""So many numbers are named one by one where a grammar can not say them otherwise."""


class Numbers:
    """Bounds of a number: no more digits than every reader of JSON keeps, and six behind the point where nothing else is asked."""

    def __init__(self, keywords: Mapping[str, Any]) -> None:
        low, above = _fraction(keywords.get("minimum")), _fraction(keywords.get("exclusiveMinimum"))
        high, below = _fraction(keywords.get("maximum")), _fraction(keywords.get("exclusiveMaximum"))
        self.open_low = above is not None and (low is None or above >= low)
        self.open_high = below is not None and (high is None or below <= high)
        low = above if self.open_low else low
        high = below if self.open_high else high
        self.low = Fraction(-LARGEST if high is None or high >= -LARGEST else high * 10) if low is None else low
        self.high = Fraction(LARGEST if self.low <= LARGEST else self.low * 10) if high is None else high
        step = _fraction(keywords.get("multipleOf"))
        self.step = step if step and step > 0 else None

    def whole(self) -> dict[str, Any] | None:
        step = self.step.numerator if self.step else 1
        low, high = self._multiples(Fraction(step))
        if low > high:
            return None
        if high < 0 and step > 1:
            return _listed(low, high, Fraction(step))
        return {"type": "integer", "minimum": low * step, "maximum": high * step, **({"multipleOf": step} if step > 1 else {})}

    def any(self, portable: bool) -> dict[str, Any] | None:
        step = self.step or FINEST
        low, high = self._multiples(step)
        if low > high and self.step:
            return None
        empty = self.low > self.high or (self.low == self.high and (self.open_low or self.open_high))
        if empty:
            return None
        if low <= high < 0 and not portable:
            return _listed(low, high, step)
        out: dict[str, Any] = {"type": "number"}
        out["exclusiveMinimum" if self.open_low else "minimum"] = _plain(self.low)
        out["exclusiveMaximum" if self.open_high else "maximum"] = _plain(self.high)
        if low <= high and (self.step or not portable):
            out["multipleOf"] = _plain(step)
        return out

    def _multiples(self, step: Fraction) -> tuple[int, int]:
        """The first and the last multiple of the step within the bounds."""
        low, high = math.ceil(self.low / step), math.floor(self.high / step)
        return low + (self.open_low and low * step == self.low), high - (self.open_high and high * step == self.high)


def _listed(low: int, high: int, step: Fraction) -> dict[str, Any] | None:
    """Multiples of a step, all of them or some from one end to the other. llguidance finds no multiple below zero, and then holds nothing at all.

    A fraction that no reader keeps is not named.
    """
    count = min(high - low + 1, MOST_LISTED)
    places = {low + (high - low) * place // max(1, count - 1) for place in range(count)}
    multiples = [place * step for place in sorted(places, reverse=True)]
    named = [_plain(one) for one in multiples if one.denominator == 1 or one >= -LARGEST]
    return {"enum": named} if named else None


def _fraction(value: Any) -> Fraction | None:
    return None if value is None or isinstance(value, bool) else Fraction(str(value))


def _plain(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)

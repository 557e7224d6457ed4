"""What a law is to the driver: a way to draw a case and a way to judge it. A failed case is judged again, smaller, by the same judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

Case = dict[str, Any]


class Broken(AssertionError):
    """A law did not hold. `rule` says which sentence of it; a smaller case counts as the same failure when it breaks the same rule."""

    def __init__(self, rule: str, expected: Any = None, got: Any = None) -> None:
        super().__init__(f"{rule}\n  expected: {expected!r}\n  got:      {got!r}")
        self.rule = rule


def holds(rule: str, expected: Any, got: Any) -> None:
    if expected != got:
        raise Broken(rule, expected, got)


@dataclass(frozen=True, slots=True)
class Law:
    """`law(rng)` draws one case and judges it. `shrinks`: the keys of a case that may be made smaller; the others are choices, not material.

    `cost`: how many cases of other laws one case stands for. A costly law is tried less often.
    """

    draw: Callable[[Random], Case]
    judge: Callable[[Case], None]
    says: str
    shrinks: tuple[str, ...] = ("text", "cuts")
    cost: int = 1

    def __call__(self, rng: Random) -> None:
        self.judge(self.draw(rng))

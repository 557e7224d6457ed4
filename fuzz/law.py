"""A law: a function that draws a random case, and a function that judges whether the law holds in it.

A case in which the law does not hold is judged again in smaller versions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

Case = dict[str, Any]


class Broken(AssertionError):
    """A law did not hold. `rule` says which part of the law is broken.

    A smaller case counts as the same failure if it breaks the same rule.
    """

    def __init__(self, rule: str, expected: Any = None, got: Any = None) -> None:
        super().__init__(f"{rule}\n  expected: {expected!r}\n  got:      {got!r}")
        self.rule = rule


def holds(rule: str, expected: Any, got: Any) -> None:
    if expected != got:
        raise Broken(rule, expected, got)


@dataclass(frozen=True, slots=True)
class Law:
    """A property that must hold. `law(rng)` draws one case and judges it.

    `says`: the law in words. `shrinks`: the keys of a case that may be made smaller. `cost`: how many cases
    of other laws one case counts for; a costly law is tried less often.
    """

    draw: Callable[[Random], Case]
    judge: Callable[[Case], None]
    says: str
    shrinks: tuple[str, ...] = ("text", "cuts")
    cost: int = 1

    def __call__(self, rng: Random) -> None:
        self.judge(self.draw(rng))

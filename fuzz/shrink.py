"""Makes a failing case smaller as long as it breaks the same rule.

Cuts pieces out of texts, bytes and lists.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from fuzz.law import Broken, Case, Law

Failure = tuple[str, str]


def failure_of(judge: Callable[[Case], None], case: Case) -> tuple[Failure, BaseException] | None:
    """Returns how the case fails, or None if it passes.

    This is the rule of the law that is broken, or the type of an exception and the function that raised it.
    """
    try:
        judge(case)
    except Broken as error:
        return ("broken", error.rule), error
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return (type(error).__name__, f"{place.filename}:{place.name}"), error
    return None


def shrink(law: Law, case: Case, seconds: float = 5.0) -> Case:
    """Returns the smallest failing case that is found in this time."""
    judge = law.judge
    found = failure_of(judge, case)
    if found is None:
        return case
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for smaller in ({**case, key: less} for key in law.shrinks for less in _smaller(case[key])):
            if time.monotonic() > deadline:
                return case
            again = failure_of(judge, smaller)
            if again is not None and again[0] == found[0]:
                case = smaller
                break
        else:
            break
    return case


def _smaller(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key in value:
            yield {other: inner for other, inner in value.items() if other != key}
        for key, inner in value.items():
            for less in _smaller(inner):
                yield {**value, key: less}
    elif isinstance(value, str | bytes | list):
        whole: Any = value
        size = step = len(whole)
        while step:
            for start in range(0, size, step):
                yield whole[:start] + whole[start + step :]
            step //= 2
        if isinstance(value, list):
            for place, inner in enumerate(value):
                for less in _smaller(inner):
                    yield [*value[:place], less, *value[place + 1 :]]

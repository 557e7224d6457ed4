"""The checks. Each is a row: its id, what it demands, where the demand comes from, how a client suffers when it fails, what is asked, how it is
judged.

A row of level `required` breaks clients when it fails; `optional` rows are the finish. The tests use the same
table as their manifest: every row has a test that it passes and a test that it can fail.
"""

from __future__ import annotations

from toolwire.conform.check import Check
from toolwire.conform.checks_both import alike
from toolwire.conform.checks_chat import CHAT
from toolwire.conform.checks_http import HTTP
from toolwire.conform.checks_responses import RESPONSES
from toolwire.conform.questions import QUESTIONS

CATALOGUE: tuple[Check, ...] = (*HTTP, *alike("chat"), *CHAT, *alike("responses"), *RESPONSES)
BY_ID = {check.id: check for check in CATALOGUE}
assert len(BY_ID) == len(CATALOGUE)
assert all(name in QUESTIONS for check in CATALOGUE for name in check.asks)


def chosen(patterns: str) -> tuple[Check, ...]:
    """The checks whose id is named, or begins with what is named and a dot: `chat.stream,http`. Raises KeyError for what fits none."""
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    for pattern in wanted:
        if not any(_fits(check.id, pattern) for check in CATALOGUE):
            raise KeyError(pattern)
    return tuple(check for check in CATALOGUE if not wanted or any(_fits(check.id, pattern) for pattern in wanted))


def _fits(id: str, pattern: str) -> bool:
    return id == pattern or id.startswith(pattern.removesuffix("*").removesuffix(".") + ".")

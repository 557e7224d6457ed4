"""Fixtures for several backends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


def _living(leader: int) -> set[int]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = entry.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(group) == leader and state != "Z":
            found.add(int(entry.parent.name))
    return found


@pytest.fixture(scope="session")
def living() -> Callable[[int], set[int]]:
    """`living(leader)`: the living processes of a group."""
    return _living

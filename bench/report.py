"""The rows of a benchmark, with baseline, target and verdict, as text and as Markdown."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

Sense = Literal["at most", "at least", ""]
SHOWN = ("toolwire", "uvicorn", "uvloop", "httptools", "aiohttp", "msgspec", "starlette")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a benchmark's table.

    `number` (mostly a ratio) is compared with `target`. If `sense` is empty, `number` is only shown.
    """

    measure: str
    number: float | None
    detail: str = ""
    sense: Sense = ""
    target: float = 0.0
    unit: str = "×"

    @property
    def verdict(self) -> str:
        if not self.sense:
            return ""
        if self.number is None:
            return "not measured"
        return (
            "pass"
            if (self.number <= self.target if self.sense == "at most" else self.number >= self.target)
            else "MISS"
        )

    def cells(self) -> tuple[str, str, str, str, str]:
        number = "–" if self.number is None else f"{figure(self.number)} {self.unit}".strip()
        target = (
            f"{'≤' if self.sense == 'at most' else '≥'} {self.target:g} {self.unit}".strip()
            if self.sense
            else ""
        )
        return self.measure, number, target, self.verdict, self.detail


HEADINGS = ("measure", "result", "target", "verdict", "figures")


def figure(number: float) -> str:
    """Returns the number with three significant digits, without powers of ten."""
    size = abs(number)
    return (
        f"{number:,.0f}"
        if size >= 100
        else f"{number:.1f}"
        if size >= 10
        else f"{number:.2f}"
        if size >= 0.1
        else f"{number:.3f}"
    )


def table(rows: Sequence[Row]) -> str:
    """Returns the rows as a table for the terminal."""
    cells = [HEADINGS, *(row.cells() for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def markdown(rows: Sequence[Row]) -> str:
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    return "\n".join([*lines, *("| " + " | ".join(row.cells()) + " |" for row in rows)])


def missed(rows: Iterable[Row]) -> int:
    return sum(row.verdict == "MISS" for row in rows)


def machine() -> str:
    """Returns the machine and the versions in one line, without names and paths."""
    name = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    memory = next(
        (
            int(line.split()[1]) // 1024 // 1024
            for line in _lines("/proc/meminfo")
            if line.startswith("MemTotal")
        ),
        0,
    )
    versions = ", ".join(f"{package} {found}" for package in SHOWN if (found := _version(package)))
    python = f"Python {sys.version.split()[0]}"
    return (
        f"{name}, {len(os.sched_getaffinity(0))} cores, {memory} GB, {platform.system()} "
        f"{platform.release().split('-')[0]}; {python}; {versions}"
    )


def today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""

"""Compares the cost of a vault search with ripgrep and with a scan of names and contents.

The vaults are generated in a temporary folder. Their notes have about two kilobytes: words by Zipf's law from
a fixed seed, headings, tags, links and frontmatter. The figure of a kind of query is the median over several
queries, each run several times. All three programs have warm caches. The index is built in a separate
process, whose peak memory is reported.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

from bench.report import Row, figure
from toolwire.vault.index import Index
from toolwire.vault.paths import Vault
from toolwire.vault.search import search

SIZES = (10_000, 100_000)
QUICK = (5_000,)
VOCABULARY = 30_000
LIMIT = 10
CHANGED = 100
TIMES = {"ours": 7, "scan": 1, "ripgrep": 3}
KINDS = ("rare word", "two words", "no hits")
NOT_MEASURED = "ripgrep is not installed here (Debian: apt install ripgrep)"


# --- the vault ---


def vocabulary() -> list[str]:
    """Returns made-up words, the most common first."""
    rng = Random(1)
    found: dict[str, None] = {}
    while len(found) < VOCABULARY:
        syllables = "".join(
            rng.choice("bcdfghjklmnprstvz") + rng.choice("aeiou") for _ in range(rng.randint(1, 5))
        )
        found[syllables + rng.choice(("", "n", "r", "s"))] = None
    return list(found)


def generate(root: Path, notes: int) -> None:
    """Creates a vault of `notes` notes. The same number always results in the same notes."""
    rng = Random(notes)
    words = vocabulary()
    weights = list(accumulate(1 / (rank + 2.7) for rank in range(len(words))))
    for number in range(notes):
        folder = root / f"area{number % 50:02}" / f"topic{number // 50 % 40:02}"
        if number < 2000:
            folder.mkdir(parents=True, exist_ok=True)
        chosen = rng.choices(words, cum_weights=weights, k=rng.randint(60, 340))
        parts = []
        if number % 3 == 0:
            parts.append(
                f"---\ntags: [{chosen[0]}, {chosen[1]}/{chosen[2]}]\naliases: [{chosen[3]} {chosen[4]}]\n"
                "---\n"
            )
        place = 0
        while place < len(chosen):
            size = rng.randint(40, 160)
            text = " ".join(chosen[place + 3 : place + size])
            parts.append(
                f"## {' '.join(chosen[place : place + 3])}\n\n"
                f"{text}. See [[note {rng.randrange(notes)}]] #{chosen[place]}\n\n"
            )
            place += size
        (folder / f"note {number} {chosen[5]}.md").write_text("".join(parts))


def queries() -> dict[str, list[str]]:
    words = vocabulary()
    return {
        "rare word": [words[rank] for rank in (12_000, 16_000, 20_000, 24_000, 28_000)],
        "two words": [
            f"{words[first]} {words[second]}"
            for first, second in ((300, 500), (150, 2000), (1000, 1200), (80, 4000), (600, 700))
        ],
        "no hits": ["zzyzx", "qwrtpsdfg", "xylophonic", "zzyzx qwrtp", "jjjjj kkkkk"],
    }


# --- the programs that are compared ---


def linear_scan(root: Path, query: str, limit: int = LIMIT) -> list[str]:
    """Returns up to `limit` notes whose name or content contains the query, in upper or lower case.

    Reads one note after the other.
    """
    wanted = query.lower()
    found: list[str] = []
    for path in sorted(root.rglob("*.md")):
        if wanted in path.stem.lower() or wanted in path.read_text().lower():
            found.append(str(path))
            if len(found) >= limit:
                break
    return found


def ripgrep() -> str | None:
    """Returns the path of ripgrep: the system's, or that of the tests' Codex package, or None."""
    bundled = Path(__file__).resolve().parent.parent / "tests" / "codex" / "new" / "node_modules" / "@openai"
    return shutil.which("rg") or next(
        (
            str(path)
            for path in bundled.glob("codex-linux-*/vendor/*/codex-path/rg")
            if os.access(path, os.X_OK)
        ),
        None,
    )


def asked_by_ripgrep(program: str, root: Path, query: str) -> list[str]:
    return subprocess.run(
        [program, "-i", "-l", "-F", "--", query, str(root)], capture_output=True, text=True, check=False
    ).stdout.splitlines()


def timed(action: Callable[[str], object], asked: list[str], times: int) -> float:
    """Runs each query `times` times. Returns the median of their medians, in milliseconds."""
    found = []
    for query in asked:
        rounds = []
        for _ in range(times):
            began = time.perf_counter()
            action(query)
            rounds.append(time.perf_counter() - began)
        found.append(median(rounds))
    return median(found) * 1000


# --- building ---

BUILD = """
import json, resource, sys, time
from pathlib import Path
from toolwire.vault.index import Index
from toolwire.vault.paths import Vault
with Vault(sys.argv[1]) as vault, Index(vault, Path(sys.argv[2])) as index:
    began = time.process_time()
    done = index.refresh()
spent = time.process_time() - began
try:  # `ru_maxrss` would include the memory of the parent, from before this program was loaded
    memory = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
except OSError:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([done.seconds, spent, done.added, done.changed, memory / 1024]))
"""


class Built(NamedTuple):
    """The result of building an index. `memory` is the peak, in megabytes."""

    seconds: float
    processor_s: float
    added: int
    changed: int
    memory: float


def build(root: Path, cache: Path) -> Built:
    return Built(*json.loads(subprocess.check_output([sys.executable, "-c", BUILD, str(root), str(cache)])))


def change(root: Path, number: int) -> None:
    for path in sorted(root.rglob("*.md"))[:: max(1, len(list(root.rglob("*.md"))) // number)][:number]:
        path.write_text(path.read_text() + "\nA changed line.\n")


def rows_of(notes: int, quick: bool, memories: dict[int, float]) -> Iterator[Row]:
    size = f"{notes:,} notes"
    with tempfile.TemporaryDirectory(prefix="toolwire-bench-") as folder:
        root, cache = Path(folder) / "vault", Path(folder) / "cache"
        generate(root, notes)
        total = sum(path.stat().st_size for path in root.rglob("*.md"))
        time.sleep(1.1)  # so that no note looks as if it had just changed
        first = build(root, cache)
        assert first.added == notes
        memories[notes] = first.memory
        stored = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
        detail = (
            f"{figure(first.seconds)} s, of which {figure(first.processor_s)} s CPU "
            f"({notes / first.processor_s:,.0f} notes per CPU second); "
        )
        detail += (
            f"{total / 1e6:,.0f} MB of text, index {stored / 1e6:,.0f} MB, at most {first.memory:,.0f} MB "
            "of memory"
        )
        yield Row(f"{size}: index built", notes / first.seconds, detail, "at least", 2000, "notes/s")
        touched = min(CHANGED, notes // 100)
        change(root, touched)
        time.sleep(1.1)
        again = build(root, cache)
        assert again.changed == touched
        share = 100 * again.seconds / first.seconds
        detail = f"{figure(again.seconds)} s, of which {figure(again.processor_s)} s CPU"
        yield Row(
            f"{size}: index refreshed after {touched} notes changed",
            share,
            detail,
            "at most",
            10,
            "% of a build",
        )
        yield from _query_rows(size, root, cache, quick)


def _query_rows(size: str, root: Path, cache: Path, quick: bool) -> Iterator[Row]:
    program = ripgrep()
    with Vault(root) as vault, Index(vault, cache) as index:
        for kind, asked in queries().items():
            asked = asked[:2] if quick else asked
            ours = timed(lambda query: search(index, query, LIMIT), asked, TIMES["ours"])
            scan = timed(lambda query: linear_scan(root, query), asked, TIMES["scan"])
            mine = f"{figure(ours)} ms"
            yield Row(
                f"{size}: {kind}, compared with a linear scan",
                scan / ours,
                f"{mine}, the scan {figure(scan)} ms",
                "at least",
                50,
            )
            beside = f"{size}: {kind}, compared with ripgrep"
            if program is None:
                yield Row(beside, None, f"{mine}; {NOT_MEASURED}", "at least", 20)
                continue
            theirs = timed(partial(asked_by_ripgrep, program, root), asked, TIMES["ripgrep"])
            yield Row(beside, theirs / ours, f"{mine}, ripgrep {figure(theirs)} ms", "at least", 20)


def run(quick: bool = False, sizes: tuple[int, ...] | None = None) -> tuple[list[Row], list[str]]:
    """Returns the rows, and notes on how they were measured."""
    rows: list[Row] = []
    memories: dict[int, float] = {}
    for notes in sizes or (QUICK if quick else SIZES):
        rows += rows_of(notes, quick, memories)
    if len(memories) > 1:
        small, large = memories[min(memories)], memories[max(memories)]
        detail = f"{small:,.0f} MB for {min(memories):,} notes, {large:,.0f} MB for {max(memories):,}"
        rows.append(
            Row(
                "memory while the index is built: the large vault, compared with the small one",
                large / small,
                detail,
                "at most",
                1.5,
            )
        )
    program = ripgrep()
    version = (
        subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[
            0
        ]
        if program
        else NOT_MEASURED
    )
    return rows, [
        f"Vault: {version}. The notes are generated, and a search returns at most {LIMIT}. Toolwire ranks "
        "its results and adds previews; the scan and ripgrep only return paths."
    ]

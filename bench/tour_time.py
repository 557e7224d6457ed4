"""Measures how long a new user needs to the end of the tour, from a fresh clone and from the built wheel.

    python bench/tour_time.py [--from REPOSITORY] [--only clone|wheel] [--json FILE]

Everything happens in a temporary folder, with a home folder without any settings. `make serve` serves the
clone. The wheel is installed into an empty environment. Then Chromium opens the link that the server printed,
chooses *Take the tour* on the empty chat page, and takes a decision at every step. The exit status is 1 if
the clone or the wheel takes 3 minutes or more. Needs this checkout's test environment, Chromium, git, make,
and a package index.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from bench.first_minute import make_serve, serving  # noqa: E402
from doubles import tour_walk  # noqa: E402

LIMIT_S = 180
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LINK = r"(http://\S+/ui/enter\?token=\S+)"
Steps = dict[str, float]


class Clock:
    def __init__(self) -> None:
        self.steps: Steps = {}
        self._last = time.monotonic()

    def did(self, step: str) -> None:
        now = time.monotonic()
        self.steps[step], self._last = round(now - self._last, 1), now


def from_clone(source: str, scratch: Path, home: Path) -> Steps:
    clock, clone = Clock(), scratch / "toolwire"
    subprocess.run(["git", "clone", "-q", source, clone], check=True)
    clock.did("git clone")
    with serving(make_serve, clone, home, LINK) as link:
        clock.did("make serve, until it listens")
        take_tour(link, clock)
    return clock.steps


def from_wheel(source: str, scratch: Path, home: Path) -> Steps:
    """Times the steps with the wheel, without the time to build it, because a user downloads it."""
    clone, empty = scratch / "source", scratch / "empty"
    subprocess.run(["git", "clone", "-q", source, clone], check=True)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", scratch, clone], check=True)
    wheel = next(scratch.glob("toolwire-*.whl"))
    clock = Clock()
    venv.create(empty)
    into = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(empty / "bin" / "python"),
        "-q",
        "install",
        str(wheel),
    ]
    subprocess.run(into, check=True)
    clock.did("pip install of the wheel")

    def command(port: int) -> list[str]:
        return [str(empty / "bin" / "toolwire"), "serve", "--port", str(port)]

    with serving(command, scratch, home, LINK) as link:
        clock.did("toolwire serve, until it listens")
        take_tour(link, clock)
    return clock.steps


def take_tour(link: str, clock: Clock) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(link)
        start = page.get_by_role("link", name="Take the tour")
        expect(start).to_be_visible()
        clock.did("the page in Chromium")
        start.click()
        tour_walk.finish(page)
        clock.did("the tour, all five steps")
        browser.close()


WAYS: dict[str, Callable[[str, Path, Path], Steps]] = {"clone": from_clone, "wheel": from_wheel}


def main() -> int:
    options = argparse.ArgumentParser(description="Times the tour from a fresh clone and from the wheel.")
    options.add_argument("--from", dest="source", default=str(ROOT), metavar="REPOSITORY")
    options.add_argument("--only", choices=WAYS, help="default: both")
    options.add_argument("--json", metavar="FILE", type=Path, help="write the times as JSON too")
    given = options.parse_args()
    if CHROMIUM is None:
        print("Chromium is missing; `make tour-time` tries to install it", file=sys.stderr)
        return 2
    report: dict[str, Steps] = {}
    for name in [given.only] if given.only else WAYS:
        with tempfile.TemporaryDirectory() as scratch:
            home = Path(scratch) / "home"
            home.mkdir()
            report[name] = WAYS[name](given.source, Path(scratch), home)
        total = sum(report[name].values())
        rows = [f"| {step} | {seconds:.1f} s |" for step, seconds in report[name].items()]
        print(
            "\n".join(
                [f"| from the {name} | time |", "|---|---|", *rows, f"| **together** | **{total:.1f} s** |"]
            )
        )
    if given.json:
        given.json.write_text(json.dumps(report) + "\n")
    return int(any(sum(steps.values()) >= LIMIT_S for steps in report.values()))


if __name__ == "__main__":
    sys.exit(main())

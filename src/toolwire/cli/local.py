"""`toolwire local`: lists and downloads the models that run inside Toolwire."""

from __future__ import annotations

import argparse
import json
import sys
import time

from toolwire.backends.local.pull import DEFAULT, MODELS, Known, importable, known_model, megabytes, pull
from toolwire.settings.extras import add_extra

BAR = 30
PAINT_EVERY_S = 0.1
LINES = 10
"""How many lines a download prints if standard error is not a terminal."""
PULL_EXAMPLE = "examples: toolwire local pull; toolwire local pull qwen2.5-coder-1.5b"
LIST_EXAMPLE = "examples: toolwire local list; toolwire local list --json"


def local_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    about = "download a model, or continue an interrupted download"
    one = actions.add_parser("pull", help=about, description=about, epilog=PULL_EXAMPLE)
    name = f"one of: {', '.join(MODELS)}; default: {DEFAULT}"
    one.add_argument("name", nargs="?", metavar="NAME", help=name)
    about = "show the models that can be downloaded: size, memory, licence, state"
    listed = actions.add_parser("list", help=about, description=about, epilog=LIST_EXAMPLE)
    listed.add_argument("--json", action="store_true", help="a JSON list, for scripts")


def run_local(arguments: argparse.Namespace) -> int:
    return _list(arguments.json) if arguments.action == "list" else _pull(arguments.name)


# --- list


def _list(as_json: bool) -> int:
    from toolwire.surfaces.tables import table

    if as_json:
        rows = [
            {
                "name": name,
                "id": one.id,
                "title": one.title,
                "use": one.use,
                "size": one.size,
                "memory": one.memory_mb * 1_000_000,
                "licence": one.licence,
                "pulled": one.path.is_file(),
                "path": str(one.path),
            }
            for name, one in MODELS.items()
        ]
        print(json.dumps(rows))
        return 0
    cells = [
        (name, megabytes(one.size), _memory(one), one.licence, _state(one), f"{one.title}, {one.use}")
        for name, one in MODELS.items()
    ]
    print("\n".join(table([("MODEL", "SIZE", "MEMORY", "LICENCE", "STATE", "ABOUT"), *cells])))
    if not importable():
        print(f"these models need llama.cpp, which is not installed: {add_extra('local')}")
    return 0


def _memory(known: Known) -> str:
    return megabytes(known.memory_mb * 1_000_000)


def _state(known: Known) -> str:
    if known.path.is_file():
        return "downloaded"
    try:
        return f"{100 * known.part_path.stat().st_size // known.size} % downloaded"
    except OSError:
        return "not downloaded"


# --- pull


def _pull(name: str | None) -> int:
    known = known_model(name)
    painter = _Bar(known) if sys.stderr.isatty() else _Lines(known)
    try:
        path = pull(name, progress=painter.show)
    except KeyboardInterrupt:
        painter.end()
        _say("stopped; the same command continues the download")
        raise
    finally:
        painter.end()
    if painter.downloaded:
        _say(f"{known.title}: {megabytes(known.size)}, sha256 {known.sha256[:12]}…, licence {known.licence}")
    else:
        _say(f"{known.file} is already downloaded, and its hash is correct")
    if not importable():
        _say(f"to use it, install llama.cpp: {add_extra('local')}")
    else:
        _say(f"toolwire serve offers it as the model {known.id}")
    print(path)
    return 0


class _Painter:
    """Shows the progress of a download on standard error."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.downloaded = False
        self._first = 0
        self._began = 0.0

    def show(self, phase: str, done: int, total: int) -> None:
        if phase == "download" and not self.downloaded:
            self.downloaded, self._first, self._began = True, done, time.monotonic()
        self.paint(phase, done, total)

    def left(self, done: int, total: int) -> str:
        """Returns the remaining time as text; "" while it is unknown."""
        passed, got = time.monotonic() - self._began, done - self._first
        if not self.downloaded or passed < 1 or not got:
            return ""
        seconds = round((total - done) * passed / got)
        return f"{seconds // 60}:{seconds % 60:02d} left"

    def paint(self, phase: str, done: int, total: int) -> None:
        raise NotImplementedError

    def end(self) -> None:
        pass


class _Bar(_Painter):
    """Shows a progress bar on one line of a terminal."""

    _painted = 0.0

    def paint(self, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._painted < PAINT_EVERY_S and done != total:
            return
        self._painted = now
        filled = BAR * done // total
        bar = "█" * filled + " " * (BAR - filled)
        verb = "checking" if phase == "check" else "downloading"
        line = f"{verb} [{bar}] {done // 1_000_000}/{total // 1_000_000} MB {self.left(done, total)}"
        print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._painted:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._painted = 0.0


class _Lines(_Painter):
    """Prints a line for every tenth of a download."""

    _shown = -1

    def paint(self, phase: str, done: int, total: int) -> None:
        step = LINES * done // total
        if phase == "download" and step != self._shown:
            self._shown = step
            _say(f"downloading {self.known.file}: {done // 1_000_000}/{total // 1_000_000} MB")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

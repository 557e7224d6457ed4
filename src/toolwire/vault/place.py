"""Where an index lies: a folder of its owner's alone in the user's cache, named after the vault and the policy it was made by.

A database's name is never used twice: to rebuild is to begin a new file and to point `current` at it. So a process that still has the old file
open reads on undisturbed, and can not harm the new one. One process writes at a time, by a lock on the file `lock`, which a killed process lets
go of.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from toolwire.vault.paths import Vault
from toolwire.vault.policy import PathRefused

_GENERATION = re.compile(r"index-[0-9a-f]{16}\.db")
FORGOTTEN_S = 7 * 24 * 3600.0
"""The age at which the index of another policy over the same vault is removed: it may hold notes that are excluded now."""
LOOK_S = 0.05


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "toolwire" / "vaults"


class Place:
    """The folder of one index."""

    def __init__(self, vault: Vault, cache: Path | None = None) -> None:
        root = hashlib.sha256(os.fsencode(vault.root)).hexdigest()[:20]
        policy = hashlib.sha256(vault.policy.described().encode()).hexdigest()[:8]
        self.folder = (cache or cache_folder()) / f"{root}-{policy}"
        self._root = root
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.chmod(self.folder, 0o700)
        except OSError as error:
            raise self.unusable(error) from None

    def unusable(self, error: Exception) -> PathRefused:
        """What a person is told when the folder does not let an index be kept in it."""
        why = getattr(error, "strerror", None) or error
        return PathRefused(str(self.folder), f"the index can not be kept here: {why} (XDG_CACHE_HOME may name another folder)", "index")

    def current(self) -> Path | None:
        """The database in force; None when there is none yet."""
        try:
            name = (self.folder / "current").read_text().strip()
        except (OSError, ValueError):
            return None
        return self.folder / name if _GENERATION.fullmatch(name) else None

    def begin(self) -> Path:
        """An empty file for a new database, readable by its owner only. Not in force before `publish`."""
        path = self.folder / f"index-{secrets.token_hex(8)}.db"
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        return path

    def drop(self, path: Path) -> None:
        """Removes a database that did not come to be."""
        with suppress(OSError):
            for file in self.folder.glob(f"{path.name}*"):
                file.unlink(missing_ok=True)

    def publish(self, path: Path) -> None:
        """Puts a database in force and removes the others. Call it under the lock."""
        pointer = self.folder / f"current-{secrets.token_hex(4)}"
        fd = os.open(pointer, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(path.name)
            file.flush()
            os.fsync(file.fileno())
        os.replace(pointer, self.folder / "current")
        for other in self.folder.iterdir():
            if other.name not in ("current", "lock") and not other.name.startswith(path.name):
                other.unlink(missing_ok=True)
        self._forget()

    def _forget(self) -> None:
        for other in self.folder.parent.glob(f"{self._root}-*"):
            if other != self.folder and time.time() - _newest(other) > FORGOTTEN_S:
                shutil.rmtree(other, ignore_errors=True)

    @contextmanager
    def writing(self, wait: bool = True, cancelled: Callable[[], bool] | None = None) -> Iterator[bool]:
        """Holds the lock; gives False when another process has it and it is not waited for, or the wait was cancelled."""
        fd = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            yield self._lock(fd, wait, cancelled)
        finally:
            os.close(fd)

    @staticmethod
    def _lock(fd: int, wait: bool, cancelled: Callable[[], bool] | None) -> bool:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if not wait or (cancelled is not None and cancelled()):
                    return False
                time.sleep(LOOK_S)


def _newest(folder: Path) -> float:
    return max((file.stat().st_mtime for file in folder.glob("*") if file.exists()), default=0.0)

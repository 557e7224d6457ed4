"""Where an agent lives: a private folder per session with a home, a place for scratch files and an empty folder to work in, removed with the session.

The person's login is linked into the home, never read and never copied into anything that stays. Where the agent has renewed it by putting a new file
in the link's place, that file is put where the link led. Folders of gateways that were killed are swept away by the next one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from toolwire.backends.agents.folders import private_folder

PREFIX = "toolwire-acp-"


class Place:
    """`close` removes it."""

    def __init__(self, cwd: str = "") -> None:
        self.path = private_folder(PREFIX, Path(tempfile.gettempdir()))
        self.home, self.tmp = self.path / "home", self.path / "tmp"
        self.cwd = Path(cwd).expanduser().absolute() if cwd else self.path / "work"
        for folder in (self.home, self.tmp, self.path / "work"):
            folder.mkdir(mode=0o700)
        self._links: list[tuple[Path, Path]] = []

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = Path(name)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            path.chmod(0o600)

    def link(self, files: Sequence[str], own: Path) -> None:
        """Links those of the person's files that there are."""
        for name in files:
            target, link = own / name, self.home / name
            if target.is_file():
                link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                link.symlink_to(target)
                self._links.append((link, target))

    def close(self) -> None:
        for link, target in self._links:
            with suppress(OSError):
                if link.is_file() and not link.is_symlink():
                    shutil.copyfile(link, target)
        shutil.rmtree(self.path, ignore_errors=True)

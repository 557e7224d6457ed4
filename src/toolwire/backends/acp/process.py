"""One agent's process: its life, and its messages as a transport of the ACP package.

A guard in the agent's process group waits on a pipe whose other end the gateway holds. When the gateway
dies, the pipe closes and the guard kills the whole group.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolwire.backends.acp.profiles import Launch
from toolwire.backends.agents.processes import Talker, end_words, private_folder
from toolwire.core.errors import ToolwireError

END = ((0.5, signal.SIGTERM), (1.5, signal.SIGKILL), (5.0, signal.SIGKILL))
"""Seconds to wait after stdin is closed, then after each signal, and the signal that follows."""
LINE_LIMIT = 64 * 1024 * 1024
GUARD = '(read -r _ <"$0"; kill -s KILL -- -$$) </dev/null >/dev/null 2>&1 & exec "$@"'
"""For /bin/sh: the agent takes the shell's place, and so leads the group; $0 is the pipe."""
_KEY = re.compile(r"\b(?:sk|pk|key)[-_][A-Za-z0-9_\-*]{8,}")


class AgentProcess(Talker):
    """`start` before anything else; `end` at the end, whatever happened."""

    LOG = logging.getLogger("toolwire.acp")
    ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # agents are made for terminals, and may hide the cursor too

    def __init__(self, launch: Launch, title: str, on_message: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._launch = launch
        self._title = title
        self._on_message = on_message
        self._rest = bytearray()
        self._messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._guard = -1
        self.garbage = 0
        """How many lines were no messages."""

    async def start(self, cwd: str) -> None:
        theirs, self._guard = os.pipe()
        try:
            words = ("/bin/sh", "-c", GUARD, f"/dev/fd/{theirs}", *self._launch.command)
            await self._spawn(*words, env=dict(self._launch.env), cwd=cwd, pass_fds=(theirs,))
        except BaseException as error:
            self._release()
            if not isinstance(error, OSError):
                raise
            raise ToolwireError(
                "backend_unavailable", f"{self._title} could not be started: {error.strerror or error}"
            ) from error
        finally:
            os.close(theirs)

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self.gone.is_set()

    def clean(self, words: str) -> str:
        """Without what the operator's variables hold."""
        for secret in sorted(self._launch.secrets, key=len, reverse=True):
            words = words.replace(secret, "***")
        return _KEY.sub("***", words)

    def _without_secrets(self, words: str) -> str:
        return self.clean(words)

    def end_words(self) -> str:
        """How it ended, as a client may know it."""
        code = self._transport.get_returncode() if self._transport is not None else None
        how = "was cut off" if code is None else end_words(code)
        return self.told(f"{self._title} {how}.")

    async def end(self) -> None:
        """Ends the process: stdin first, then SIGTERM and SIGKILL to its group."""
        if self._transport is not None:
            await self._end(END)  # the guard too, and what the agent may have left behind
            self._release()

    def _release(self) -> None:
        guard, self._guard = self._guard, -1
        if guard >= 0:
            os.close(guard)

    async def send(self, message: dict[str, Any]) -> None:
        self._write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        return await self._messages.get()

    async def close(self) -> None:
        """Closes the connection; `end` ends the process."""

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        if fd == 2:
            self._hear(data)
            return
        self._rest += data
        if b"\n" in data:
            whole, _, rest = bytes(self._rest).rpartition(b"\n")
            self._rest = bytearray(rest)
            for one in whole.split(b"\n"):
                self._line(one)
        if len(self._rest) > LINE_LIMIT:
            self._rest.clear()
            self.garbage += 1

    def _line(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or not isinstance(message.get("method", ""), str):
            self.garbage += 1
            return
        if "method" not in message and "id" not in message:
            self.garbage += 1
            return
        self._on_message()
        self._messages.put_nowait(message)

    def _over(self) -> None:
        self._messages.put_nowait(None)
        self._release()


PREFIX = "toolwire-acp-"


class Workspace:
    """A session's private folder: home, temporary files, and an empty folder to work in.

    The person's login is linked into the home, never read. If the agent replaces the link by a renewed
    file, `close` copies that file back. `close` removes the folder.
    """

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
        """Links the person's files that exist."""
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

"""Processes of agents, from their start to their end.

- A child leads a process group of its own. Whatever ends it, the whole group ends with it.
- It may say its last words while it dies: it is gone when its pipes are closed, or a moment after its death where others hold them open.
- The last lines of its stderr are the operator's: the log has them. A client gets them only where nothing else says what is wrong, without paths of
  this machine; of a child that serves many it gets none.
- It sees of our environment only what it is handed: nothing is inherited, least of all a key of the gateway's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import signal
import tempfile
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

LAST_WORDS_S = 1.0
TAIL_LINES, TAIL_CHARACTERS = 20, 400
_STAMP = re.compile(r"^\S*\d\d:\d\d:\d\d\S*\s+")
_PATH = re.compile(r"(?<![\w/$:.])(?:~|[A-Za-z]:)?/[^\s\"'`()<>,;]+")


class Child(asyncio.SubprocessProtocol):
    """`_over` is what is to be done, once, when it is gone."""

    ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
    LOG = logging.getLogger("toolwire.agents")
    """Where the operator reads what it said."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self._transport: asyncio.SubprocessTransport | None = None
        self._dying = False
        """It is dead, but its last words may still be on their way."""
        self._closing = False
        """We end it: nobody has to be told why."""
        self._logged = ""
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._serves_many = False
        """What it says may be about anybody's turn."""

    async def _spawn(
        self, *words: str, env: Mapping[str, str], **options: Any
    ) -> asyncio.SubprocessTransport:
        """Starts it with this whole environment; `options` are those of `subprocess_exec`."""
        transport, _ = await asyncio.get_running_loop().subprocess_exec(
            lambda: self, *words, start_new_session=True, env=dict(env), **options
        )
        return transport

    def _over(self) -> None: ...

    def _without_secrets(self, words: str) -> str:
        return words

    def _without_paths(self, words: str) -> str:
        return _PATH.sub("(path)", words)

    @property
    def pid(self) -> int:
        assert self._transport is not None
        return self._transport.get_pid()

    @property
    def _last_words(self) -> str:
        """Of its stderr: one line, bounded, as they were said, from the beginning of what was said in one."""
        words = ""
        for line in list(self._tail)[:-4:-1]:
            if words and len(line) + 1 + len(words) > TAIL_CHARACTERS:
                break
            words = f"{line} {words}" if words else line
        return words

    def told(self, what: str) -> str:
        """`what` happened, as a client may know it; the log gets all that was said."""
        if self._closing:
            return what
        heard, said = self._without_secrets(" ".join(self._tail)), self._without_secrets(self._last_words)
        if self._logged != what:  # once for all whom it served
            self._logged = what
            self.LOG.warning("%s It said: %s" if heard else "%s%s", what, heard)
        return what if self._serves_many or not said else f"{what} It said: {self._without_paths(said)}"

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)  # uvloop's is no subclass of it

    def process_exited(self) -> None:
        """What is left of the group goes too, and with it whoever else holds the pipes."""
        self._dying = True
        self._signal(signal.SIGKILL)
        asyncio.get_running_loop().call_later(LAST_WORDS_S, self._is_over)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over()

    def _is_over(self) -> None:
        if not self.gone.is_set():
            self._dying = True
            self.gone.set()
            self._over()


class Talker(Child):
    """A child that is talked with over its stdin and stdout."""

    def __init__(self) -> None:
        super().__init__()
        self._stdin: asyncio.WriteTransport | None = None

    async def _spawn(
        self, *words: str, env: Mapping[str, str], **options: Any
    ) -> asyncio.SubprocessTransport:
        transport = await super()._spawn(*words, env=env, **options)
        self._stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        return transport

    def _write(self, line: bytes) -> None:
        """Written to a process that is gone, a line is lost: who waits for an answer learns of the end otherwise."""
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(line)

    def _hear(self, data: bytes) -> None:
        """What it says on stderr, without colours and times."""
        for line in self.ANSI.sub("", data.decode("utf-8", "replace")).splitlines():
            if line.strip():
                self._tail.append(_STAMP.sub("", line.strip())[:TAIL_CHARACTERS])

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1 and not self.gone.is_set():  # without its voice the process is of no use, even if it lives
            self._signal(signal.SIGTERM)

    async def _end(self, steps: Iterable[tuple[float, signal.Signals]]) -> None:
        """Closes its stdin; each step is how long it may take to end now, and the signal that its group gets if it does not."""
        assert self._transport is not None
        self._closing = True
        if self._stdin is not None:
            self._stdin.close()
        for seconds, next_signal in steps:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.gone.wait()
            if self.gone.is_set():
                break
            self._signal(next_signal)
        self._signal(signal.SIGKILL)  # what the leader may have left behind
        self._transport.close()


def end_words(code: int) -> str:
    """How a process ended, by its return code."""
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"


# --- folders ------------------------------------------------------------
#
# Private folders of processes. A folder is named after its gateway's process id: so those of gateways that
# were killed are known, and swept away.


def in_memory() -> Path:
    """Where folders lie in memory, where the system has such a place."""
    return Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())


def private_folder(prefix: str, parent: Path) -> Path:
    """A fresh one, for its owner alone; what others have left is swept away."""
    sweep(prefix, parent)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))


def sweep(prefix: str, parent: Path) -> None:
    """Removes the folders of gateways that were killed."""
    for left in parent.glob(f"{prefix}*"):
        owner = left.name.removeprefix(prefix).partition("-")[0]
        if owner.isdigit() and not _lives(int(owner)):
            shutil.rmtree(left, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

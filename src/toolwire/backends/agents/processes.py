"""Child processes of agents, from start to end, and their private folders.

- A child leads its own process group. The whole group is killed when the child ends.
- A child gets only the environment variables that are passed to it, never the gateway's API keys.
- When a child fails, the last lines of its stderr are logged. The error for the client contains the end of
  these lines, without paths of this machine. If the child serves several clients, the error contains no
  stderr.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from toolwire.core.errors import ToolwireError

PROXIES = tuple("HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy".split())
PASSED_ON = (*"PATH LANG LC_ALL TZ SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS".split(), *PROXIES)
"""The gateway's environment variables that a child process gets.

API keys are not among them, because every process that an agent starts would inherit them.
"""
LAST_OUTPUT_S = 1.0
TAIL_LINES, TAIL_CHARACTERS = 20, 400
LINE_LIMIT = 64 * 2**20
GUARD = '(read -r _ <"$0"; kill -s KILL -- -$$) </dev/null >/dev/null 2>&1 & exec "$@"'
"""A script for /bin/sh, which starts a guard process and then becomes the child.

The guard reads from a pipe (`$0`) that closes when the gateway dies. The guard then kills the process group.
"""
_URL = re.compile(r",? ?(?:url: )?\(?https?://[^\s,)\"']+\)?")
_KEY = re.compile(r"\b(?:sk|pk|key|crsr|cursor)[-_][A-Za-z0-9_\-*]{8,}")
_STAMP = re.compile(r"^\S*\d\d:\d\d:\d\d\S*\s+")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PATH = re.compile(r"(?<![\w/$:.])(?:~|[A-Za-z]:)?/[^\s\"'`()<>,;]+")


def without_keys(text: str) -> str:
    return _KEY.sub("***", text)


def clean(text: str, limit: int = 500) -> str:
    """Returns the text as one short line without URLs and keys, for a client."""
    return without_keys(_URL.sub("", " ".join(text.split())))[:limit].strip()


class Lines:
    """Splits bytes that arrive in chunks into lines. Lines longer than the limit are skipped."""

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._rest: list[bytes] = []
        self._held = 0

    def feed(self, data: bytes) -> list[bytes]:
        out = []
        *ends, rest = data.split(b"\n")
        for end in ends:
            if self._held + len(end) <= self._limit:
                out.append(b"".join((*self._rest, end)))
            self._rest.clear()
            self._held = 0
        self._held += len(rest)
        if self._held > self._limit:
            self._rest.clear()
        elif rest:
            self._rest.append(rest)
        return out


class Child(asyncio.SubprocessProtocol):
    """A child process. Subclasses read its stdout in `_read` and handle its end in `_over`."""

    LOG = logging.getLogger("toolwire.agents")
    END: tuple[tuple[float, signal.Signals], ...] = ()
    """The steps of `end`: how many seconds to wait for the process, and which signal to send after that."""

    def __init__(self, title: str, secrets: Iterable[str] = ()) -> None:
        self.title = title
        self._secrets = sorted(secrets, key=len, reverse=True)
        self.gone = asyncio.Event()
        """Set when the process is dead and its pipes are closed, or `LAST_OUTPUT_S` after it died."""
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._guard = -1
        self._dying = False
        self._closing = False
        self._logged = ""
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._serves_many = False

    async def _spawn(
        self, *command: str, env: Mapping[str, str], guarded: bool = False, **options: Any
    ) -> None:
        """Starts the process. `guarded`: its process group is killed if the gateway dies."""
        pipe = -1
        try:
            if guarded:
                pipe, self._guard = os.pipe()
                command = ("/bin/sh", "-c", GUARD, f"/dev/fd/{pipe}", *command)
                options["pass_fds"] = (pipe,)
            transport, _ = await asyncio.get_running_loop().subprocess_exec(
                lambda: self, *command, start_new_session=True, env=dict(env), **options
            )
        except BaseException:
            self._release()
            raise
        finally:
            if guarded:
                os.close(pipe)
        self._stdin = cast(asyncio.WriteTransport | None, transport.get_pipe_transport(0))

    def _read(self, data: bytes) -> None: ...

    def _over(self) -> None: ...

    def clean(self, text: str) -> str:
        """Removes this child's secrets, and everything that looks like a key, from the text."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return without_keys(text)

    def _without_paths(self, text: str) -> str:
        return _PATH.sub("(path)", text)

    @property
    def pid(self) -> int:
        assert self._transport is not None
        return self._transport.get_pid()

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._dying

    def report(self, problem: str) -> str:
        """Logs a problem together with the last output of the process. Returns a message for the client."""
        if self._closing:
            return problem
        output = self.clean(" ".join(self._tail))
        last = self.clean(self._last_output)
        if self._logged != problem:  # log it once, even if it affects several clients
            self._logged = problem
            self.LOG.warning("%s It said: %s" if output else "%s%s", problem, output)
        return problem if self._serves_many or not last else f"{problem} It said: {self._without_paths(last)}"

    @property
    def _last_output(self) -> str:
        """The last lines of stderr: at most three, and only whole lines."""
        text = ""
        for line in list(self._tail)[:-4:-1]:
            if text and len(line) + 1 + len(text) > TAIL_CHARACTERS:
                break
            text = f"{line} {text}" if text else line
        return text

    def end_message(self) -> str:
        code = self._transport.get_returncode() if self._transport is not None else None
        if code is None:
            return self.report(f"{self.title} was disconnected.")
        if 128 < code <= 192:  # a launcher reports in this form that a signal ended its child
            code = 128 - code
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
        return self.report(f"{self.title} {how}.")

    async def end(self) -> None:
        """Closes stdin. If the process does not end, sends the signals in `END` to its group."""
        self._closing = True
        if self._transport is None:
            return
        if self._stdin is not None:
            self._stdin.close()
        for seconds, number in self.END:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.gone.wait()
            if self.gone.is_set():
                break
            self._signal(number)
        self._signal(signal.SIGKILL)  # kill what remains of the group
        self._transport.close()
        self._release()

    def _release(self) -> None:
        guard, self._guard = self._guard, -1
        if guard >= 0:
            os.close(guard)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _write(self, line: bytes) -> None:
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(line)

    # --- asyncio's callbacks ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is not a subclass of `asyncio.SubprocessTransport`
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        if fd == 1:
            self._read(data)
        else:
            for line in data.decode("utf-8", "replace").splitlines():
                self._stderr_line(line)

    def _stderr_line(self, line: str) -> None:
        """Keeps a line of stderr, without colour codes and timestamp."""
        line = _ANSI.sub("", line).strip()
        if line:
            self._tail.append(_STAMP.sub("", line)[:TAIL_CHARACTERS])

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1 and not self.gone.is_set():  # a process that has closed its stdout cannot be used any more
            self._signal(signal.SIGTERM)

    def process_exited(self) -> None:
        self._dying = True
        self._signal(signal.SIGKILL)  # kill the rest of the group, which may keep the pipes open
        asyncio.get_running_loop().call_later(LAST_OUTPUT_S, self._is_over)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over()

    def _is_over(self) -> None:
        if not self.gone.is_set():
            self._dying = True
            self.gone.set()
            self._release()
            self._over()


class Backoff:
    """A growing pause between attempts to start a process that fails to start or dies."""

    FIRST_S, LONGEST_S = 0.5, 30.0

    def __init__(self) -> None:
        self.clock = time.monotonic
        self._failures = 0
        self._problem = ""
        self._not_before = 0.0

    def check(self) -> None:
        """Raises an error with the last problem if a pause is not over yet."""
        wait = self._not_before - self.clock()
        if wait > 0:
            problem = f"{self._problem} The next attempt is possible in {wait:.1f} s."
            raise ToolwireError("backend_unavailable", problem, retry_after_s=wait)

    def failed(self, problem: str, free: int = 0) -> None:
        """Records a failure and starts a pause. The first `free` failures cause no pause."""
        self._problem = problem
        self._failures += 1
        pauses = self._failures - free
        if pauses > 0:
            self._not_before = self.clock() + min(self.LONGEST_S, self.FIRST_S * 2 ** min(pauses - 1, 16))

    def succeeded(self) -> None:
        self._failures = 0
        self._not_before = 0.0


# --- folders ---
#
# The name of a private folder contains the gateway's process id, so that another gateway can remove the
# folders of a gateway that was killed.


def in_memory() -> Path:
    """Returns a folder in memory if there is one, otherwise the folder for temporary files."""
    return Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())


def private_folder(prefix: str, parent: Path) -> Path:
    sweep(prefix, parent)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))


def sweep(prefix: str, parent: Path) -> None:
    """Removes private folders of gateway processes that do not run any more."""
    for folder in parent.glob(f"{prefix}*"):
        owner = folder.name.removeprefix(prefix).partition("-")[0]
        if owner.isdigit() and not _lives(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True

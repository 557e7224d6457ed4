"""The bridge's process.

- It runs in a process group of its own, with a minimal environment, in a private folder that goes with it.
- A watcher in the same group reads a pipe that we hold: when it closes, for whatever reason, the whole group is killed. Nothing outlives the gateway.
- Its stderr is read for ever. The line that says it is ready holds where its token lies: it is parsed, never kept and never logged.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolwire.backends.agents.processes import TAIL_CHARACTERS, Child, end_words, in_memory, private_folder
from toolwire.backends.cursor.client import clean
from toolwire.backends.cursor.options import check_address
from toolwire.core.errors import ToolwireError

# --- home ------------------------------------------------------------
#
# The private folder that a bridge lives in: a home, an empty workspace, its state and its temporary files.
# Gone with the bridge. The bridge keeps what was said in databases below its home: they lie in memory
# where the system has such a place. Of our environment it sees only what it needs to start and to reach
# the network; the API key is not in it, for what an agent starts would inherit it.

PREFIX = "toolwire-cursor-"
PASSED_ON = (
    *("PATH", "LANG", "LC_ALL", "TZ"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"),
)


class BridgeHome:
    """`work` is the empty folder that agents live in."""

    def __init__(self) -> None:
        self.path = private_folder(PREFIX, in_memory())
        self.work, self.home, self.state, self.temporary = (self.path / name for name in ("work", "home", "state", "tmp"))
        for folder in (self.work, self.home, self.state, self.temporary):
            folder.mkdir(mode=0o700)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        return {
            **{name: environ[name] for name in PASSED_ON if name in environ},
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
        }

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


READY = "cursor-sdk-bridge ready "
GUARD = 'exec 3<&0 </dev/null; { while read -r _ <&3; do :; done; kill -KILL 0; } >/dev/null 2>&1 & exec 3<&-; exec "$@"'
"""The shell becomes the bridge; the watcher stays beside it."""
TERM_S, KILL_S = 1.0, 5.0
LONGEST_LINE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Ready:
    """Where a bridge listens, and what it wants to see."""

    url: str
    token: str = field(repr=False)


class Process(Child):
    """`start` before anything else; `close` at the end, whatever happened."""

    LOG = logging.getLogger("toolwire.cursor")

    def __init__(self, command: str, environ: Mapping[str, str]) -> None:
        super().__init__()
        self._command = command
        self._environ = environ
        self.home: BridgeHome | None = None
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._rest = b""

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._dying

    async def start(self, timeout_s: float) -> Ready:
        """Starts the bridge and waits until it is ready; raises a clear error, with what it said, where that fails."""
        try:
            self.home = BridgeHome()
            words = ("--workspace", str(self.home.work), "--state-root", str(self.home.state), "--host", "127.0.0.1", "--port", "0")
            await self._spawn(
                *("/bin/sh", "-c", GUARD, "toolwire", self._command, *words),
                env=self.home.environment(self._environ),
                cwd=self.home.work,
                stdout=asyncio.subprocess.DEVNULL,
            )
        except BaseException as error:
            await self.close()
            if not isinstance(error, OSError):
                raise
            raise ToolwireError("backend_unavailable", f"Cursor's bridge could not be started: {error.strerror or error}") from error
        try:
            async with asyncio.timeout(timeout_s):
                ready = await self._ready
        except TimeoutError:
            late = self.told(f"Cursor's bridge was not ready within {timeout_s:g} s.")
            await self.close()
            raise ToolwireError("backend_unavailable", late) from None
        except BaseException:
            await self.close()
            raise
        self._serves_many = True
        return ready

    def _without_secrets(self, words: str) -> str:
        return clean(words)

    def how(self) -> str:
        """How it ended, as a client may know it."""
        code = self._transport.get_returncode() if self._transport is not None else None
        if code is None:
            return self.told("Cursor's bridge ended.")
        killed = -code if code < 0 else code - 128 if 128 < code <= 192 else 0  # a launcher tells its child's signal like this
        return self.told(f"Cursor's bridge {end_words(-killed or code)}.")

    async def close(self) -> None:
        """Ends the whole group; twice does no harm."""
        self._closing = True
        if self._transport is not None:
            for number, seconds in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
                if self._dying:
                    break
                self._signal(number)
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self.gone.wait()
            self._signal(signal.SIGKILL)
            self._transport.close()
        if not self._ready.cancel() and not self._ready.cancelled():
            self._ready.exception()  # looked at, whether or not anybody waited for it
        if self.home is not None:
            self.home.remove()

    # --- what the process says -----------------------------------------------------------------------------------------------------------------

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-LONGEST_LINE:]
        for line in lines:
            self._line(line.decode("utf-8", "replace"))

    def _over(self) -> None:
        self._line(self._rest.decode("utf-8", "replace"))
        if not self._ready.done():
            self._ready.set_exception(ToolwireError("backend_unavailable", self.how()))

    def _line(self, line: str) -> None:
        if line.startswith(READY):
            if not self._ready.done():
                try:
                    self._ready.set_result(read_ready(line[len(READY) :]))
                except ToolwireError as error:
                    self._ready.set_exception(error)
        elif line.strip():
            self._tail.append(self.ANSI.sub("", line.strip())[:TAIL_CHARACTERS])


def read_ready(words: str) -> Ready:
    """What stands behind `cursor-sdk-bridge ready`."""
    try:
        told: Any = json.loads(words)
        facts = (told["schemaVersion"], told["transport"], told["protocol"])
        if facts != (1, "tcp", "connect"):
            raise ToolwireError("backend_unavailable", f"Cursor's bridge speaks in a way that is not known here: {facts}.")
        host = str(told.get("host") or "")
        url = str(told.get("url") or f"http://{f'[{host}]' if ':' in host else host}:{told['port']}").rstrip("/")
        check_address(url)
        token = str(told.get("authToken") or "") or Path(told["authTokenFile"]).read_text("utf-8")
    except (ValueError, KeyError, TypeError, OSError):  # never what it said: a token may be in it
        raise ToolwireError("backend_unavailable", "Cursor's bridge is ready, but does not say where and how in a way that is known here.") from None
    if not token.strip():
        raise ToolwireError("backend_unavailable", "Cursor's bridge is ready, but gave no token.")
    return Ready(url, token.strip())

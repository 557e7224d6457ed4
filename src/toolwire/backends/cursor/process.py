"""The bridge's process, in a process group, environment and private folder of its own.

A watcher in the same group reads a pipe that the gateway holds. When the pipe closes, for whatever reason,
the watcher kills the whole group, so nothing outlives the gateway.
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

PREFIX = "toolwire-cursor-"
PASSED_ON = (
    "PATH LANG LC_ALL TZ SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS "
    "HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy"
).split()
"""The gateway's variables that the bridge gets. No API key: whatever an agent starts would inherit it."""


class BridgeHome:
    """A bridge's private folder, in memory where possible: the bridge writes conversations below its home.

    `work` is the empty folder that agents work in.
    """

    def __init__(self) -> None:
        self.path = private_folder(PREFIX, in_memory())
        self.work, self.home, self.state, self.temporary = folders = [
            self.path / name for name in ("work", "home", "state", "tmp")
        ]
        for folder in folders:
            folder.mkdir(mode=0o700)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        passed_on = {name: environ[name] for name in PASSED_ON if name in environ}
        return {**passed_on, "HOME": str(self.home), "TMPDIR": str(self.temporary)}

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


READY = "cursor-sdk-bridge ready "
GUARD = (
    "exec 3<&0 </dev/null; { while read -r _ <&3; do :; done; kill -KILL 0; } >/dev/null 2>&1 & "
    'exec 3<&-; exec "$@"'
)
"""The shell becomes the bridge; the watcher stays beside it."""
TERM_S, KILL_S = 1.0, 5.0
LONGEST_LINE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Ready:
    """The address and token of a bridge that has started."""

    url: str
    token: str = field(repr=False)


class BridgeProcess(Child):
    """`start` it first; `close` it at the end, whatever happened."""

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
        """Returns when the bridge is ready; raises an error with the bridge's own words where that fails."""
        try:
            self.home = home = BridgeHome()
            folders = ("--workspace", str(home.work), "--state-root", str(home.state))
            await self._spawn(
                *("/bin/sh", "-c", GUARD, "toolwire", self._command, *folders),
                *("--host", "127.0.0.1", "--port", "0"),
                env=home.environment(self._environ),
                cwd=home.work,
                stdout=asyncio.subprocess.DEVNULL,
            )
            async with asyncio.timeout(timeout_s):
                ready = await self._ready
        except TimeoutError:
            problem = self.told(f"Cursor's bridge was not ready within {timeout_s:g} s.")
            await self.close()
            raise ToolwireError("backend_unavailable", problem) from None
        except OSError as error:
            await self.close()
            problem = f"Cursor's bridge could not be started: {error.strerror or error}"
            raise ToolwireError("backend_unavailable", problem) from error
        except BaseException:
            await self.close()
            raise
        self._serves_many = True
        return ready

    def _without_secrets(self, words: str) -> str:
        return clean(words)

    def end_message(self) -> str:
        """How the process ended, for a client."""
        code = self._transport.get_returncode() if self._transport is not None else None
        if code is None:
            return self.told("Cursor's bridge ended.")
        if 128 < code <= 192:  # a launcher reports its child's signal like this
            code = 128 - code
        return self.told(f"Cursor's bridge {end_words(code)}.")

    async def close(self) -> None:
        """Ends the whole group; safe to call twice."""
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
            self._ready.exception()  # retrieved, so that asyncio does not warn where nobody waited
        if self.home is not None:
            self.home.remove()

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-LONGEST_LINE:]
        for line in lines:
            self._line(line.decode("utf-8", "replace"))

    def _over(self) -> None:
        self._line(self._rest.decode("utf-8", "replace"))
        if not self._ready.done():
            self._ready.set_exception(ToolwireError("backend_unavailable", self.end_message()))

    def _line(self, line: str) -> None:
        """The ready line leads to a token: it is parsed, never kept and never logged."""
        if line.startswith(READY):
            if not self._ready.done():
                try:
                    self._ready.set_result(read_ready(line[len(READY) :]))
                except ToolwireError as error:
                    self._ready.set_exception(error)
        elif line.strip():
            self._tail.append(self.ANSI.sub("", line.strip())[:TAIL_CHARACTERS])


def read_ready(words: str) -> Ready:
    """Parses what follows `cursor-sdk-bridge ready`."""
    try:
        given: Any = json.loads(words)
        version = (given["schemaVersion"], given["transport"], given["protocol"])
        if version != (1, "tcp", "connect"):
            problem = f"Cursor's bridge speaks an unknown protocol: {version}."
            raise ToolwireError("backend_unavailable", problem)
        host = str(given.get("host") or "")
        url = str(given.get("url") or f"http://{f'[{host}]' if ':' in host else host}:{given['port']}")
        check_address(url)
        token = str(given.get("authToken") or "") or Path(given["authTokenFile"]).read_text("utf-8")
    except (ValueError, KeyError, TypeError, OSError):  # never quote the line: a token may be in it
        problem = "Cursor's bridge is ready, but its ready line is in an unknown format."
        raise ToolwireError("backend_unavailable", problem) from None
    if not token.strip():
        raise ToolwireError("backend_unavailable", "Cursor's bridge is ready, but gave no token.")
    return Ready(url.rstrip("/"), token.strip())

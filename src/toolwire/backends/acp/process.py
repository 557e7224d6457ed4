"""One agent's process: its life, and its messages as a transport of the ACP package.

- It runs in a process group of its own. A guard in that group waits on a pipe whose other end only this process holds: when Toolwire dies, however it
  dies, the pipe closes and the guard kills the whole group. Agents need not notice the end of their stdin.
- What it prints that is no JSON-RPC message is passed over; stderr is drained for ever, and its last lines are kept for messages.
- When it ends, whoever waits for it learns that at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from toolwire.backends.acp.launch import Launch
from toolwire.errors import ToolwireError

STDIN_S, TERM_S, KILL_S = 0.5, 1.5, 5.0
"""How long the process may take to end after its stdin closed, after SIGTERM, after SIGKILL."""
LAST_WORDS_S = 1.0
LINE_LIMIT = 64 * 1024 * 1024
TAIL_LINES, TAIL_CHARACTERS = 20, 400
GUARD = '(read -r _ <"$0"; kill -s KILL -- -$$) </dev/null >/dev/null 2>&1 & exec "$@"'
"""For /bin/sh: the agent takes the shell's place, and so leads the group; $0 is the pipe."""
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STAMP = re.compile(r"^\S*\d\d:\d\d:\d\d\S*\s+")
_KEY = re.compile(r"\b(?:sk|pk|key)[-_][A-Za-z0-9_\-*]{8,}")


class AgentProcess(asyncio.SubprocessProtocol):
    """`start` before anything else; `end` at the end, whatever happened."""

    def __init__(self, launch: Launch, title: str, on_message: Callable[[], None] = lambda: None) -> None:
        self._launch = launch
        self._title = title
        self._on_message = on_message
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._rest = bytearray()
        self._messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._exited = asyncio.Event()
        self._guard = -1
        self.garbage = 0
        """How many lines were no messages."""

    async def start(self, cwd: str) -> None:
        loop = asyncio.get_running_loop()
        theirs, self._guard = os.pipe()
        try:
            words = ("/bin/sh", "-c", GUARD, f"/dev/fd/{theirs}", *self._launch.command)
            transport, _ = await loop.subprocess_exec(
                lambda: self, *words, env=dict(self._launch.env), cwd=cwd, start_new_session=True, pass_fds=(theirs,)
            )
        except BaseException as error:
            self._release()
            if not isinstance(error, OSError):
                raise
            raise ToolwireError("backend_unavailable", f"{self._title} could not be started: {error.strerror or error}") from error
        finally:
            os.close(theirs)
        self._stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))

    @property
    def pid(self) -> int:
        assert self._transport is not None
        return self._transport.get_pid()

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._exited.is_set()

    @property
    def said(self) -> str:
        """The last words on stderr, for messages: one line, bounded, without what the operator's variables hold."""
        words = " ".join(list(self._tail)[-3:])[-TAIL_CHARACTERS:]
        return self.clean(words)

    def clean(self, words: str) -> str:
        for secret in sorted(self._launch.secrets, key=len, reverse=True):
            words = words.replace(secret, "***")
        return _KEY.sub("***", words)

    @property
    def end_words(self) -> str:
        """How it ended."""
        code = self._transport.get_returncode() if self._transport is not None else None
        how = "was cut off" if code is None else f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
        return f"{self._title} {how}." + (f" It said: {self.said}" if self.said else "")

    async def end(self) -> None:
        """Ends the process: stdin first, then SIGTERM and SIGKILL to its group."""
        if self._transport is None:
            return
        if self._stdin is not None:
            self._stdin.close()
        for seconds, next_signal in ((STDIN_S, signal.SIGTERM), (TERM_S, signal.SIGKILL), (KILL_S, signal.SIGKILL)):
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._exited.wait()
            if self._exited.is_set():
                break
            self._signal(next_signal)
        self._signal(signal.SIGKILL)  # the guard, and what the agent may have left behind
        self._release()
        self._transport.close()

    def _release(self) -> None:
        guard, self._guard = self._guard, -1
        if guard >= 0:
            os.close(guard)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    # --- as a transport of the ACP package -------------------------------------------------------------------------------------------------------

    async def send(self, message: dict[str, Any]) -> None:
        """Sent to a process that is gone, a message is lost: who waits for an answer learns of the end otherwise."""
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        return await self._messages.get()

    async def close(self) -> None:
        """Of the connection; the process is ended by `end`."""

    # --- what the process says -------------------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)  # uvloop's is no subclass of it

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        if fd == 2:
            for line in _ANSI.sub("", data.decode("utf-8", "replace")).splitlines():
                if line.strip():
                    self._tail.append(_STAMP.sub("", line.strip())[:TAIL_CHARACTERS])
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
        if not isinstance(message, dict) or not ("method" in message or "id" in message):
            self.garbage += 1
            return
        if "method" in message and not isinstance(message["method"], str):
            self.garbage += 1
            return
        self._on_message()
        self._messages.put_nowait(message)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1 and not self._exited.is_set():  # without its voice the process is of no use, even if it lives
            self._signal(signal.SIGTERM)

    def process_exited(self) -> None:
        """What it said last may still be on its way; whoever else holds its pipes is ended with it."""
        self._signal(signal.SIGKILL)
        asyncio.get_running_loop().call_later(LAST_WORDS_S, self._is_over)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over()

    def _is_over(self) -> None:
        if not self._exited.is_set():
            self._exited.set()
            self._messages.put_nowait(None)
            self._release()

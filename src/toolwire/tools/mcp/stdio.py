"""The stdio transport: an MCP server as a child process. The server may be hostile.

- The child leads its own process group. The whole group is killed when the server ends, when Toolwire ends
  it, and when Toolwire is killed: a guard in the group waits for the end of a pipe (`processes.GUARD`).
- The child gets only the environment variables in `env`, and a working folder.
- A message of more than `LARGEST` bytes ends the connection. An answer that cannot be read becomes an error,
  so that no call waits for it.
- Reading pauses while too many bytes wait to be handled. Writing pauses while the server does not read.
- The last lines of the server's stderr are kept, to explain why the server ended. Nothing of its stderr
  reaches Toolwire's own terminal.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from toolwire.backends.agents.processes import Child
from toolwire.core.display import one_line, size

LARGEST = 8 * 2**20
"""The most bytes of one message."""
MOST_HELD = 2**20
"""How many bytes of unread messages are held before Toolwire stops reading from the server."""
GRACE_S = 1.0
"""How long a server may take to end after its stdin was closed."""
UNREADABLE = "the server's answer cannot be read"

Item = SessionMessage | Exception


class ServerProcess(Child):
    """The process of a server."""

    END = ((GRACE_S, signal.SIGTERM), (1.0, signal.SIGKILL))

    def __init__(self, title: str, secrets: Sequence[str] = ()) -> None:
        super().__init__(title, secrets)
        self.problem = ""
        """Why Toolwire ended the connection; "" if Toolwire has not ended it."""
        self._lines: deque[bytes] = deque()
        self._rest: list[bytes] = []
        self._rest_size = self._held = 0
        self._paused = False
        self.ended = asyncio.Event()
        """Set when nothing more can be read from the server."""
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    async def start(self, command: Sequence[str], env: Mapping[str, str], folder: str) -> None:
        await self._spawn(*command, env=env, guarded=True, cwd=folder)

    def report(self, problem: str) -> str:
        """Returns why the server ended, for a person. Logs nothing, because the callers show this text."""
        return self.problem or problem

    @property
    def said(self) -> str:
        """The last lines of stderr, as one line that is safe to show."""
        return one_line(self.clean(self._last_output), 300)

    # --- reading ---

    def _read(self, data: bytes) -> None:
        if self.ended.is_set():
            return
        first, *others = data.split(b"\n")
        self._rest.append(first)
        self._rest_size += len(first)
        for line in others:
            if self._rest_size > LARGEST:
                break
            self._lines.append(b"".join(self._rest))
            self._held += self._rest_size + 1
            self._rest, self._rest_size = [line], len(line)
        if self._rest_size > LARGEST:
            self.end_because(f"it sent a message of more than {size(LARGEST)}")
        elif self._held > MOST_HELD and not self._paused:
            self._paused = True
            self._reading().pause_reading()
        self._news.set()

    def _reading(self) -> asyncio.ReadTransport:
        assert self._transport is not None
        return cast(asyncio.ReadTransport, self._transport.get_pipe_transport(1))

    async def lines(self) -> AsyncIterator[bytes]:
        """Yields the lines that the server writes, until it ends."""
        while True:
            while self._lines:
                line = self._lines.popleft()
                self._held -= len(line) + 1
                if self._paused and self._held <= MOST_HELD // 2 and not self.ended.is_set():
                    self._paused = False
                    self._reading().resume_reading()
                yield line
            if self.ended.is_set():
                return
            self._news.clear()
            await self._news.wait()

    def _over(self) -> None:
        self.ended.set()
        self._news.set()
        self._writable.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:  # the server closed its stdout and cannot answer any more
            self.ended.set()
            self._news.set()
        super().pipe_connection_lost(fd, exc)

    def end_because(self, problem: str) -> None:
        """Ends the connection. Messages that were already read are still handled."""
        self.problem = self.problem or problem
        self.ended.set()
        self._news.set()
        self._writable.set()
        self._signal(signal.SIGKILL)

    # --- writing ---

    async def write(self, line: bytes) -> None:
        self._write(line)
        await self._writable.wait()

    @property
    def is_stuck(self) -> bool:
        """Whether the server has stopped reading its stdin."""
        return not self._writable.is_set()

    def pause_writing(self) -> None:
        if not self.ended.is_set():
            self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()


def parsed(line: bytes) -> Item:
    """Returns the message in a line.

    If the line is an answer that cannot be read, returns an error as the answer to the same request. If any
    other line cannot be read, returns the exception.
    """
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        problem: Exception = error
    with suppress(ValueError, RecursionError):
        said = json.loads(line.decode("utf-8", "replace"))
        id = said.get("id") if isinstance(said, dict) and "method" not in said else None
        if isinstance(id, int | str) and not isinstance(id, bool):
            failed = types.ErrorData(code=types.PARSE_ERROR, message=UNREADABLE)
            return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=id, error=failed))
    return problem


@asynccontextmanager
async def stdio(
    process: ServerProcess, command: Sequence[str], env: Mapping[str, str], folder: str
) -> AsyncIterator[Any]:
    """Starts the process, and yields its streams of messages. At the end the whole process group is dead."""
    program = os.path.join(folder, os.path.expanduser(command[0])) if "/" in command[0] else command[0]
    if shutil.which(program, path=env.get("PATH")) is None:
        raise FileNotFoundError(f"there is no program {one_line(command[0])}")
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"its working folder {one_line(folder)} does not exist")
    heard, reading = anyio.create_memory_object_stream[Item](0)
    writing, to_send = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with heard:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                async for line in process.lines():
                    if line.strip():
                        await heard.send(parsed(line))

    async def write() -> None:
        async with to_send:
            async for message in to_send:
                try:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await process.write(text.encode() + b"\n")
                except ValueError as error:
                    process.end_because(f"a message to it could not be written: {type(error).__name__}")

    tasks: list[asyncio.Task[None]] = []
    try:
        await process.start((program, *command[1:]), env, folder)
        tasks = [asyncio.ensure_future(one()) for one in (read, write)]
        yield reading, writing
    finally:
        with anyio.CancelScope(shield=True):
            await process.end()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in (heard, reading, writing, to_send):
                stream.close()

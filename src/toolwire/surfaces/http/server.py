"""The serving process: binds, says one line when ready, drains on SIGTERM or the first Ctrl-C, exits at once on the second.

Draining: no new connections, idle ones close, running requests may end within `server.drain_s`, then they are cancelled. Exit status 0.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

from uvicorn.config import Config
from uvicorn.server import Server

from toolwire.config import ConfigError, Settings
from toolwire.gateway.pipeline import Gateway
from toolwire.gateway.store import Store
from toolwire.surfaces.http.app import App, create_app
from toolwire.surfaces.http.protocol import GuardedProtocol
from toolwire.surfaces.web.routes import EVENTS_PATH, enter_path

KEEP_ALIVE_S = 75
BACKLOG = 2048
CANCEL_WITHIN_S = 3.0
FORCED = 130

log = logging.getLogger("toolwire.http")


def serve(
    settings: Settings, make_gateway: Callable[[Settings, Store], Gateway] | None = None, announce: Callable[[Gateway], None] | None = None
) -> int:
    """Serves until told to stop; gives the exit status. Raises ConfigError or ToolwireError where it can not start.

    `announce` tells the person what is there, before the line that says where.
    """
    if settings.server.workers > 1:
        raise ConfigError("server.workers: more than one worker process is not supported yet; run several servers behind a load balancer")
    sockets = bind(settings.server.host, settings.server.port)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(settings, sockets, make_gateway or _gateway, announce or _silent))
    finally:
        for each in sockets:
            each.close()


def _gateway(settings: Settings, store: Store) -> Gateway:
    return Gateway(settings, store=store)


def _silent(gateway: Gateway) -> None:
    pass


async def _serve(
    settings: Settings, sockets: list[socket.socket], make_gateway: Callable[[Settings, Store], Gateway], announce: Callable[[Gateway], None]
) -> int:
    store = Store(settings.store.url)
    try:
        await store.open()
        gateway = make_gateway(settings, store)
        await gateway.start()
        try:
            app = create_app(gateway, settings, store)
            try:
                announce(gateway)
                server = DrainingServer(app, settings.server.drain_s, lambda: _say_where(app, settings.server.host, sockets[0].getsockname()[1]))
                await server.serve(sockets=sockets)
                if server.force_exit:
                    return FORCED
            finally:
                await _close(app, "pages")
        finally:
            await _close(gateway, "backends")
    finally:
        await store.close()
    return 0


def _say_where(app: App, host: str, port: int) -> None:
    """The API's address to stdout, for programs; the pages' one-time link to stderr, for the person."""
    print(f"listening on {base_url(host, port)}", flush=True)
    if app.pages is not None:
        here = "127.0.0.1" if host == "0.0.0.0" else "::1" if host in ("::", "[::]") else host
        link = base_url(here, port).removesuffix("/v1") + enter_path(app.pages.sessions.link())
        print(f"chat, approvals and the wire: {link}  (works once)", file=sys.stderr, flush=True)


async def _close(what: App | Gateway, name: str) -> None:
    try:
        await asyncio.wait_for(what.close(), CANCEL_WITHIN_S)
    except TimeoutError:
        log.warning("%s did not close within %g s", name, CANCEL_WITHIN_S)


def base_url(host: str, port: int) -> str:
    return f"http://[{host.strip('[]')}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on every address of the host, all with the same port. Port 0 picks a free one."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"server.host: {host} can not be resolved: {error.strerror or error}") from error
    sockets: list[socket.socket] = []
    for family, kind, protocol, _, address in sorted(dict.fromkeys(found), key=lambda entry: entry[0] != socket.AF_INET):
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address[0], sockets[0].getsockname()[1] if sockets else port, *address[2:]))
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            if sockets and (port == 0 or error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)):
                continue  # a name's second address, which this machine does not have or has given away
            for each in sockets:
                each.close()
            raise ConfigError(_bind_complaint(host, port, error)) from error
        sockets.append(listener)
    return sockets


def _bind_complaint(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use by another program; choose another with --port, or 0 for a free one"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} is not allowed for this user; choose one from 1024 up with --port"
    return f"can not listen on {host} port {port}: {error.strerror}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


class DrainingServer(Server):
    """uvicorn's server with this module's rules for start and end."""

    def __init__(self, app: App, drain_s: float, on_ready: Callable[[], None]) -> None:
        super().__init__(
            Config(
                app,
                http=GuardedProtocol,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                backlog=BACKLOG,
            )
        )
        self._app = app
        self._drain_s = drain_s
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """As uvicorn's, but a signal that was obeyed is not raised again: a drained server ends with status 0."""
        previous = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.force_exit:
            os._exit(FORCED)
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.drain()
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
            if isinstance(connection, GuardedProtocol) and _is_unread_tab(connection):
                connection.transport.abort()  # it would be waited for in vain
        deadline = time.monotonic() + self._drain_s
        while (self.server_state.connections or self.server_state.tasks) and time.monotonic() < deadline and not self.force_exit:
            await asyncio.sleep(0.05)
        running = set(self.server_state.tasks)
        if running:
            log.warning("cancelling %d running request(s)", len(running))
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=CANCEL_WITHIN_S)
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.close()


def _is_unread_tab(connection: GuardedProtocol) -> bool:
    """Whether a page's live stream is under way here that nobody reads."""
    cycle = connection.cycle
    return cycle is not None and not cycle.response_complete and cycle.scope["path"] == EVENTS_PATH and connection.flow.write_paused

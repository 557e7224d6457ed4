"""The server process: binds its sockets, prints one line when it is ready, and drains when stopped.

SIGTERM or Ctrl-C starts draining: the other nodes are notified, no new connections are accepted, and idle
ones are closed. Running requests may take up to `server.drain_s` to end; then they are cancelled. The exit
status is 0. A second Ctrl-C exits at once.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import secrets
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from uvicorn.config import Config
from uvicorn.server import Server

from toolwire.access.gate import Proxies
from toolwire.cluster import running
from toolwire.cluster.forward import ALONE, WorkerContext, join
from toolwire.cluster.nodes import advertised, check, worker_address
from toolwire.cluster.running import RunningServer
from toolwire.cluster.workers import Report, Workers
from toolwire.core.display import counted
from toolwire.gateway.pipeline import Gateway
from toolwire.observe.logs import say
from toolwire.settings.discover import beside
from toolwire.settings.types import ConfigError, ServerSettings, Settings
from toolwire.store.store import Store
from toolwire.surfaces.http.app import App, create_app
from toolwire.surfaces.http.protocol import GuardedProtocol, guard
from toolwire.surfaces.web.routes import EVENTS_PATH, enter_path
from toolwire.tools.consent import hide_memory, server_key

KEEP_ALIVE_S = 75
BACKLOG = 2048
PING_EVERY_S = 20.0
CANCEL_WITHIN_S = 3.0
DATE_EVERY_S = 1.0
LOOK_EVERY_S = 0.05
COLLECT_AFTER = (50_000, 20, 50)
FORCED = 130

log = logging.getLogger("toolwire.http")
MakeGateway = Callable[[Settings, Store], Gateway]
Announce = Callable[[Gateway], None]
OnLink = Callable[[str], None]


def serve(
    settings: Settings,
    make_gateway: MakeGateway | None = None,
    announce: Announce | None = None,
    lifeline: int = -1,
    on_link: OnLink | None = None,
) -> int:
    """Serves until stopped and returns the exit status.

    `make_gateway` creates the gateway (default: `Gateway`). `announce` prints the configuration before the
    line with the address is printed. `on_link` gets the one-time link instead of the terminal.

    `lifeline`: the read end of a pipe to the process that needs this server. When that process ends, the pipe
    closes and the server drains. A server with a lifeline prints no link to its web pages, because nobody
    reads its output.

    Raises ConfigError or ToolwireError if the server cannot start.
    """
    hide_memory()
    server_key(settings.server)  # before any workers are forked: they share it
    check(settings)
    Proxies(settings.server.trusted_proxies)
    tls_files(settings.server)
    _warn(settings)
    sockets = bind(settings.server.host, settings.server.port)
    make, announce = make_gateway or _gateway, announce or _silent
    ready = _Ready(settings.server, sockets[0].getsockname()[1], lifeline >= 0, on_link)
    part = replace(ALONE, lifeline=lifeline, secret=ready.record.secret)
    try:
        if settings.server.workers > 1 and lifeline < 0:
            return _serve_by_workers(settings, sockets, make, announce, ready)
        return _run(settings, sockets, make, announce, part, ready.say)
    finally:
        ready.end()
        for each in sockets:
            each.close()


def _warn(settings: Settings) -> None:
    """Warns about settings without effect. Called once, before any workers are started."""
    if settings.page_problem:
        log.warning("settings page: %s", settings.page_problem)
    journal = settings.journal
    if journal.contents == "disk" and (not journal.max_mb or Store(settings.store.url).path == ":memory:"):
        no_file = "the journal needs a store that is a file, because it is written beside this file"
        why = no_file if journal.max_mb else "journal.max_mb is 0"
        log.warning('journal.contents = "disk": nothing is written, because %s', why)


def _serve_by_workers(
    settings: Settings, sockets: list[socket.socket], make: MakeGateway, announce: Announce, ready: _Ready
) -> int:
    server = settings.server
    among = [bind("127.0.0.1", 0) for _ in range(server.workers)]
    addresses = [f"http://127.0.0.1:{each[0].getsockname()[1]}" for each in among]

    def work(number: int, report: Report, lifeline: int) -> int:
        for other, listeners in enumerate(among):
            if other != number:
                for each in listeners:
                    each.close()
        own = bind(*worker_address(server, number))
        address, private = advertised(server, own[0].getsockname()[1]), (*own, *among[number])
        part = WorkerContext(number, addresses, address, private, lifeline, ready.record.secret)
        return _run(settings, sockets, make, announce if number == 0 else _silent, part, report)

    def let_go() -> None:
        for each in (*sockets, *(listener for listeners in among for listener in listeners)):
            each.close()

    try:
        return Workers(server.workers, work, ready.say, let_go).run(server.drain_s)
    finally:
        let_go()


def _run(
    settings: Settings,
    sockets: list[socket.socket],
    make: MakeGateway,
    announce: Announce,
    part: WorkerContext,
    report: Report,
) -> int:
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(settings, sockets, make, announce, part, report))


def _gateway(settings: Settings, store: Store) -> Gateway:
    return Gateway(settings, store=store, discover=beside(settings))


def _silent(gateway: Gateway) -> None:
    pass


async def _serve(
    settings: Settings,
    sockets: list[socket.socket],
    make: MakeGateway,
    announce: Announce,
    part: WorkerContext,
    report: Report,
) -> int:
    """Serves in this process.

    When the server is ready, `report` gets the path of the one-time link to the web pages.
    """
    async with Store(settings.store.url, retention_days=settings.store.retention_days) as store:
        gateway = make(settings, store)
        await gateway.start()
        try:
            app = create_app(gateway, settings, store)
            try:
                nodes = join(app, gateway, settings, sockets[0].getsockname()[1], part)
                if nodes is not None:
                    await nodes.start()
                announce(gateway)
                link = ""
                if app.pages is not None:
                    app.pages.secret = part.secret
                    await app.pages.web.approvals.proofs.code.pin()
                    if part.number == 0:
                        link = enter_path(await app.pages.sessions.link())
                server = DrainingServer(
                    app,
                    settings.server.drain_s,
                    lambda: report({"link": link}),
                    part.private,
                    tls_files(settings.server),
                )
                settle_memory()
                lighten_generators()
                if part.lifeline >= 0:
                    asyncio.get_running_loop().add_reader(part.lifeline, _orphaned, part.lifeline)
                await server.serve(sockets=sockets)
                if server.force_exit:
                    return FORCED
            finally:
                await _close(app, "pages")
        finally:
            await _close(gateway, "backends")
    return 0


def settle_memory() -> None:
    """Tunes the garbage collector for a server.

    Objects that exist now are kept until the end, so they are not scanned again. The collector runs less
    often, because the journal keeps many small objects alive, and scanning them took a sixth of a request's
    time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def lighten_generators() -> None:
    """Stops the event loop from tracking every asynchronous generator.

    The loop tracks them to close forgotten ones when it ends. Here, every generator is closed by its creator,
    and tracking would cost more time per request than the generators themselves.
    """
    sys.set_asyncgen_hooks(firstiter=None)


def _orphaned(lifeline: int) -> None:
    """Starts draining, because the process that needs this server has ended and closed its `lifeline`."""
    asyncio.get_running_loop().remove_reader(lifeline)
    log.warning("the process that started this server has ended: the server drains")
    os.kill(os.getpid(), signal.SIGTERM)


class _Ready:
    """Writes the record of the server and prints its addresses when the server is ready."""

    def __init__(
        self, server: ServerSettings, port: int, temporary: bool, on_link: OnLink | None = None
    ) -> None:
        host, tls = server.host, bool(server.tls_cert)
        here = "127.0.0.1" if host == "0.0.0.0" else "::1" if host in ("::", "[::]") else host
        self._api = base_url(host, port, tls)
        self._path: Path | None = None
        self._on_link = on_link
        pages = base_url(here, port, tls).removesuffix("/v1")
        self.record = RunningServer(os.getpid(), pages, time.time(), secrets.token_urlsafe(32), temporary)

    def say(self, facts: dict[str, Any]) -> None:
        """Prints the API's address to stdout, and the one-time link to the web pages to stderr.

        So no JSON log contains the link.
        """
        self._path = running.write(self.record)
        print(f"listening on {self._api}", flush=True)
        if facts.get("link") and not self.record.temporary:
            pages = self.record.url
            if self._on_link is not None:
                self._on_link(f"{pages}{facts['link']}")
                return
            say(
                f"web pages (chat, approvals, request inspector): {pages}{facts['link']}  (works once)",
                event="pages",
                url=f"{pages}/",
            )

    def end(self) -> None:
        running.remove(self._path)


async def _close(what: App | Gateway, name: str) -> None:
    try:
        await asyncio.wait_for(what.close(), CANCEL_WITHIN_S)
    except TimeoutError:
        log.warning("%s did not close within %g s", name, CANCEL_WITHIN_S)


def base_url(host: str, port: int, tls: bool = False) -> str:
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host.strip('[]')}]:{port}/v1" if ":" in host else f"{scheme}://{host}:{port}/v1"


def tls_files(server: ServerSettings) -> tuple[str, str] | None:
    """Checks the TLS files. Returns the paths of the certificate and of its key; None without TLS."""
    if not server.tls_cert and not server.tls_key:
        return None
    if not server.tls_cert or not server.tls_key:
        raise ConfigError("server.tls_cert and server.tls_key: TLS needs both files")
    certificate, key = (os.path.expanduser(path) for path in (server.tls_cert, server.tls_key))
    try:
        # With an explicit password, Python does not ask for the password of an encrypted key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: b"")
    except ssl.SSLError as error:
        problem = f"{certificate} and {key} are not a certificate and its key, or the key has a password"
        raise ConfigError(f"server.tls_cert: {problem} ({error.reason or error})") from None
    except OSError as error:
        raise ConfigError(
            f"server.tls_cert: {certificate} or {key} cannot be read: {error.strerror or error}"
        ) from None
    return certificate, key


def bind(host: str, port: int) -> list[socket.socket]:
    """Returns listening sockets on every address of the host, all with the same port.

    Port 0 picks a free port.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a valid host name"
        raise ConfigError(f"server.host: {host} cannot be resolved: {reason}") from error
    sockets: list[socket.socket] = []
    for family, kind, protocol, _, address in sorted(
        dict.fromkeys(found), key=lambda entry: entry[0] != socket.AF_INET
    ):
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
                continue  # another address of the host, which this machine lacks or whose port is in use
            for each in sockets:
                each.close()
            raise ConfigError(_bind_complaint(host, port, error)) from error
        sockets.append(listener)
    return sockets


def _bind_complaint(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use by {_user_of(host, port)}"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} is not allowed for this user; choose one from 1024 up with --port"
    return f"cannot listen on {host} port {port}: {error.strerror}"


def _user_of(host: str, port: int) -> str:
    """Returns a phrase that says which program uses a port, and what a person can do about it."""
    other = "choose another port with --port, or 0 for a free one"
    found = next((server for server in running.running() if server.port == port), None)
    if found is not None:
        return f"another Toolwire (process {found.pid}): toolwire open opens its pages; or {other}"
    here = "127.0.0.1" if host in ("0.0.0.0", "::", "[::]") else host
    urls = (base_url(here, port, tls).removesuffix("/v1") for tls in (False, True))
    program = "another Toolwire" if any(map(running.is_toolwire, urls)) else "another program"
    return f"{program}; {other}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


class DrainingServer(Server):
    """uvicorn's server, which starts and drains as described at the top of this module."""

    def __init__(
        self,
        app: App,
        drain_s: float,
        on_ready: Callable[[], None],
        private: Sequence[socket.socket] = (),
        tls: tuple[str, str] | None = None,
    ) -> None:
        """`private` are listeners for other nodes and workers, without TLS.

        `tls` has the paths of the certificate and the key for the public listeners.
        """
        super().__init__(
            Config(
                app,
                http=GuardedProtocol,
                ws="none",  # the HTTP protocol loads WebSocket support with the first handshake
                ws_max_size=getattr(app, "body_limit", 0),
                ws_ping_interval=PING_EVERY_S,
                ws_ping_timeout=None,
                ws_per_message_deflate=False,  # needs more memory per connection than everything else
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                backlog=BACKLOG,
                ssl_certfile=tls[0] if tls is not None else None,
                ssl_keyfile=tls[1] if tls is not None else None,
            )
        )
        self._app = app
        self._drain_s = drain_s
        self._on_ready = on_ready
        self._private = private
        self._stopped_by = 0
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for each in (*(sockets or ()), *self._private):
            guard(each, getattr(self._app, "slow_reader_s", 0))
        await super().startup(sockets)
        for each in self._private:
            self.servers.append(
                await asyncio.get_running_loop().create_server(self._protocol, sock=each, backlog=BACKLOG)
            )
        self._on_ready()

    async def main_loop(self) -> None:
        """Waits until the server is stopped.

        Meanwhile it renews the header `Date` once a second. uvicorn's own loop would check ten times a second
        whether it must stop, even if the server has nothing to do.
        """
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), DATE_EVERY_S)

    def _protocol(self) -> asyncio.Protocol:
        return GuardedProtocol(self.config, self.server_state, self.lifespan.state)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handles signals as uvicorn does, but does not raise them again afterwards.

        So a drained server ends with status 0.
        """
        previous = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
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
        self._stopped_by = self._stopped_by or sig
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._app.leave()
        self._app.drain()
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
            if isinstance(connection, GuardedProtocol) and _is_unread_tab(connection):
                connection.transport.abort()  # the client does not read the stream, so it would never end
        deadline = time.monotonic() + self._drain_s
        is_logged = self._stopped_by != signal.SIGINT
        while (
            (self.server_state.connections or self.server_state.tasks)
            and time.monotonic() < deadline
            and not self.force_exit
        ):
            await asyncio.sleep(LOOK_EVERY_S)
            if (
                not is_logged and self.server_state.tasks
            ):  # not earlier: draining ends some requests after a moment
                is_logged, count = True, len(self.server_state.tasks)
                say(
                    f"waiting for {counted(count, 'answer')}; Ctrl-C again stops now",
                    event="draining",
                    running=count,
                )
        running = set(self.server_state.tasks)
        if running:
            log.warning("cancelling %s", counted(len(running), "running request"))
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=CANCEL_WITHIN_S)
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.close()


def _is_unread_tab(connection: GuardedProtocol) -> bool:
    """Whether this connection is a web page's event stream that the client does not read."""
    cycle = connection.cycle
    return (
        cycle is not None
        and not cycle.response_complete
        and cycle.scope["path"] == EVENTS_PATH
        and connection.flow.write_paused
    )

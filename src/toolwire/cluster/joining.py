"""How a serving process joins the other nodes: its settings, its address, and what it knows of them.

A node is one process. Each of several workers has a listener of its own for requests of other nodes, because
a connection to the shared sockets could reach any worker. It has one more, which the parent keeps open, for
requests of the other workers.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

from toolwire.cluster.forward import Forwarding, Siblings
from toolwire.cluster.nodes import Nodes
from toolwire.gateway.pipeline import Gateway
from toolwire.observe.logs import RequestLog
from toolwire.observe.metrics import Metrics
from toolwire.settings.types import ConfigError, ServerSettings, Settings, is_loopback
from toolwire.store.engine import IN_MEMORY

ANY = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """One worker's own things. `siblings` are the addresses of all workers, including this one."""

    number: int = 0
    siblings: Sequence[str] = ()
    address: str = ""
    private: Sequence[socket.socket] = ()
    lifeline: int = -1
    """A pipe that closes when the parent ends."""


ALONE = WorkerContext()


class NodeApp(Protocol):
    """The application on this node, as far as the other nodes are concerned."""

    log: RequestLog
    metrics: Metrics
    forwarding: Forwarding | None
    siblings: Siblings | None


def check(settings: Settings) -> None:
    """Raises if these settings cannot work with several workers or nodes."""
    server, store = settings.server, settings.store
    problem = ""
    if server.workers > 1:
        if not hasattr(os, "fork"):
            problem = "several workers need a system with fork; run several servers behind a load balancer"
        elif not store.redis:
            problem = "several workers find each other through Redis; set store.redis, "
            problem += 'e.g. "redis://127.0.0.1:6379/0"'
        elif store.url in IN_MEMORY:
            problem = "several workers need a store that they share; store.url is one in memory"
    if problem:
        raise ConfigError(f"server.workers: {problem}")
    if store.redis and not server.node_secret:
        host = "127.0.0.1" if server.workers > 1 else server.host
        if not is_loopback(_host(server.advertise) if server.advertise else host):
            problem = 'nodes that share a Redis need a secret, e.g. "env:TOOLWIRE_NODE_SECRET"'
            raise ConfigError(f"server.node_secret: {problem}")


def join(app: NodeApp, gateway: Gateway, settings: Settings, port: int, part: WorkerContext) -> Nodes | None:
    """Connects the application with the other nodes; the caller starts the result. None: there are none."""
    if not settings.store.redis:
        return None
    address = part.address or node_address(settings, port)
    nodes = Nodes(settings.store.redis, address, settings.server.node_secret, gateway.parking.waiting)
    gateway.parking.board = nodes
    own = part.siblings[part.number : part.number + 1]
    app.log.node = nodes.id
    app.forwarding = Forwarding(nodes, gateway.parking, app.metrics.registry, own, app.log)
    app.metrics.watch_nodes(nodes)
    if part.siblings:
        app.siblings = Siblings(part.number, part.siblings, app.forwarding.client)
    return nodes


# --- addresses ----------------------------------------------------------------------------------------------


def node_address(settings: Settings, port: int) -> str:
    """Where other nodes reach this one: as advertised, or by host and port."""
    server = settings.server
    if server.advertise:
        scheme = _split(server.advertise).scheme
        return f"{scheme}://{_bracketed(_host(server.advertise))}:{_port(server.advertise)}"
    host = server.host.strip("[]")
    if host in ANY:
        host = _address_towards(settings.store.redis)
    return f"{'https' if server.tls_cert else 'http'}://{_bracketed(host)}:{port}"


def worker_address(server: ServerSettings, number: int) -> tuple[str, int]:
    """Where a worker listens for other nodes: on loopback, or at a port after the advertised one."""
    if not server.advertise:
        return "127.0.0.1", 0
    return server.host, _port(server.advertise) + 1 + number


def advertised(server: ServerSettings, port: int) -> str:
    """A worker's own address, for other nodes."""
    host = _bracketed(_host(server.advertise)) if server.advertise else "127.0.0.1"
    return f"http://{host}:{port}"


def _split(address: str) -> SplitResult:
    return urlsplit(address if "://" in address else f"http://{address}")


def _host(address: str) -> str:
    host = _split(address).hostname
    if not host:
        raise _invalid(address)
    return host


def _port(address: str) -> int:
    parts = _split(address)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or parts.path not in ("", "/") or port == 0:
        raise _invalid(address)
    return port or (443 if parts.scheme == "https" else 80)


def _invalid(address: str) -> ConfigError:
    return ConfigError(f'server.advertise: expected "host:port" or a URL, got "{address}"')


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _address_towards(redis: str) -> str:
    """This machine's address on the route to Redis, which all nodes can reach. Sends nothing."""
    host = urlsplit(redis).hostname or "127.0.0.1"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        message = "set host:port where the other nodes reach this one; server.host does not show it"
        raise ConfigError(f"server.advertise: {message}") from None

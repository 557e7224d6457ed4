"""How a serving process finds its place among others: what its settings must say, where it is reached, and which of them it knows.

A node is one process. Where `server.workers` makes several on one host, each has a listener of its own for what other nodes pass on, because a
connection to the shared sockets could reach any of them, and one more that the parent keeps open, by which the workers know each other.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from toolwire.cluster.forward import Forwarding
from toolwire.cluster.nodes import Nodes
from toolwire.cluster.siblings import Siblings
from toolwire.gateway.pipeline import Gateway
from toolwire.observe.logs import RequestLog
from toolwire.observe.metrics import Metrics
from toolwire.settings.types import ConfigError, ServerSettings, Settings, is_loopback

ANY = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What is one worker's own. `siblings` are the addresses by which the workers know each other, this one's among them."""

    number: int = 0
    siblings: Sequence[str] = ()
    address: str = ""
    private: Sequence[socket.socket] = ()
    lifeline: int = -1
    """A pipe that ends with the parent."""


ALONE = WorkerContext()


class NodeApp(Protocol):
    """The application that serves on this node, as far as the other nodes concern it."""

    log: RequestLog
    metrics: Metrics
    forwarding: Forwarding | None
    siblings: Siblings | None


def check(settings: Settings) -> None:
    """Raises unless the settings fit for several nodes, or are those of a single one."""
    server, store = settings.server, settings.store
    if server.workers > 1:
        if not hasattr(os, "fork"):
            raise ConfigError(
                "server.workers: several workers need a system that can fork; run several servers behind a load balancer"
            )
        if not store.redis:
            raise ConfigError(
                'server.workers: several workers find each other through Redis; set store.redis, e.g. "redis://127.0.0.1:6379/0"'
            )
        if store.url in ("sqlite://", "sqlite:///:memory:", ":memory:"):
            raise ConfigError(
                "server.workers: several workers need a store that they share; store.url names one that lives in a single process"
            )
    if store.redis:
        at = (
            _host(server.advertise)
            if server.advertise
            else "127.0.0.1"
            if server.workers > 1
            else server.host
        )
        if not server.node_secret and not is_loopback(at):
            raise ConfigError(
                'server.node_secret: nodes that share a Redis need a secret of their own, e.g. "env:TOOLWIRE_NODE_SECRET"'
            )


def join(app: NodeApp, gateway: Gateway, settings: Settings, port: int, part: WorkerContext) -> Nodes | None:
    """Gives the application what it needs to know of the others. The node still has to be started. None: it is alone."""
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
        app.siblings = Siblings(part.number, part.siblings, app.forwarding.seals, app.forwarding.courier)
    return nodes


def node_address(settings: Settings, port: int) -> str:
    """Where other nodes reach this one: as advertised, or by host and port."""
    server = settings.server
    if server.advertise:
        return _base_url(server.advertise)
    host = server.host.strip("[]")
    if host in ANY:
        host = _address_towards(settings.store.redis)
    scheme = "https" if getattr(server, "tls_cert", "") else "http"
    return f"{scheme}://{_bracketed(host)}:{port}"


def worker_address(server: ServerSettings, number: int) -> tuple[str, int]:
    """Where a worker listens for other nodes: on this machine only, unless an address is advertised; then at the ports that follow that one's."""
    if not server.advertise:
        return "127.0.0.1", 0
    return server.host, _port(server.advertise) + 1 + number


def advertised(server: ServerSettings, port: int) -> str:
    """A worker's own address, for other nodes."""
    return f"http://{_bracketed(_host(server.advertise)) if server.advertise else '127.0.0.1'}:{port}"


def _base_url(text: str) -> str:
    parts = urlsplit(text if "://" in text else f"http://{text}")
    return f"{parts.scheme}://{_bracketed(_host(text))}:{_port(text)}"


def _host(text: str) -> str:
    host = urlsplit(text if "://" in text else f"http://{text}").hostname
    if not host:
        raise ConfigError(f'server.advertise: expected "host:port" or a URL, got "{text}"')
    return host


def _port(text: str) -> int:
    parts = urlsplit(text if "://" in text else f"http://{text}")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or parts.path not in ("", "/") or port == 0:
        raise ConfigError(f'server.advertise: expected "host:port" or a URL, got "{text}"')
    return port or (443 if parts.scheme == "https" else 80)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _address_towards(redis: str) -> str:
    """This machine's address on the way to Redis, which all nodes can reach. Nothing is sent."""
    host = urlsplit(redis).hostname or "127.0.0.1"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            found: str = probe.getsockname()[0]
            return found
    except OSError:
        raise ConfigError(
            "server.advertise: set where the other nodes reach this one, host:port; it can not be told from server.host"
        ) from None

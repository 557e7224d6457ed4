"""The servers that the faults affect, as real processes on loopback.

Two nodes behind nginx that share PostgreSQL and Redis, an upstream, and a single node with an SQLite file on
a small disk.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.fault_load import Place
from bench.fault_upstream import SWIFT, script
from doubles.nodes import Nginx, Node, RedisServer, Server, free_port, missing, wait_for_port
from doubles.postgres import Postgres, binaries
from toolwire.access.keys import KeyRecords
from toolwire.store.store import Store

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "docs" / "deploy" / "nginx.conf"
LOAD_KEYS = tuple(f"load-key-{number}" for number in range(4))
DISK_MB = 32
STORE, FILLER = "toolwire.db", "filler"


def lacking() -> list[str]:
    """Returns the names of the programs that are not installed."""
    return [
        *missing(),
        *(["PostgreSQL"] if binaries() is None else []),
        *(["libfaketime"] if faketime() is None else []),
    ]


def faketime() -> Path | None:
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


class Upstream(Server):
    """A model server in a separate process, on a fixed port."""

    def __init__(self, pause_ms: int) -> None:
        super().__init__()
        self.port = free_port()
        self._pause_ms = pause_ms

    def start(self) -> Upstream:
        command = [sys.executable, "-m", "bench.fault_upstream", str(self.port), str(self._pause_ms)]
        self.process = subprocess.Popen(command, cwd=ROOT)
        wait_for_port(self.port, self.process)
        return self


class Disk:
    """A small disk for one node. If it cannot be mounted, a limit on the node's file size replaces it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        apart = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
        mounted = [
            *apart,
            "sh",
            "-c",
            f'mount -t tmpfs -o size={DISK_MB}m none "$0" && exec "$@"',
            str(folder),
        ]
        works = subprocess.run([*mounted, "true"], capture_output=True, check=False).returncode == 0
        self.before = mounted if works else []

    @property
    def name(self) -> str:
        return f"a tmpfs of {DISK_MB} MB" if self.before else "RLIMIT_FSIZE"

    def fill(self, pid: int) -> None:
        if not self.before:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
            return
        place = self._place(pid)
        with contextlib.closing(sqlite3.connect(place / STORE)) as store:
            store.execute(
                "PRAGMA wal_checkpoint(TRUNCATE)"
            )  # otherwise SQLite would first write into the space of its log
        with (place / FILLER).open("ab", buffering=0) as filler:
            for size in (1 << 20, 1 << 12):
                try:
                    while True:
                        filler.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self, pid: int) -> None:
        if self.before:
            (self._place(pid) / FILLER).unlink()
        else:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def _place(self, pid: int) -> Path:
        """Returns the path of the disk as the node sees it."""
        return Path(f"/proc/{pid}/root{self.folder}")


class Clock:
    """The wall clock of one node. It can be set, and then advances at the normal rate."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)
        self.environment = {
            "LD_PRELOAD": str(faketime()),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",  # otherwise every wait for a lock uses the CPU
        }

    def set(self, seconds: int) -> None:
        """Sets the clock this many seconds ahead of the correct time, or behind it if negative.

        The node sees the change within a second.
        """
        self.ahead = seconds
        written = self._file.with_suffix(".new")
        written.write_text(f"{seconds:+d}\n")
        written.replace(self._file)


class Servers:
    def __init__(self, folder: Path, pause_ms: int) -> None:
        bin = binaries()
        assert bin is not None
        self.folder = folder
        self.postgres = Postgres(bin)
        self.redis = RedisServer(folder)
        self.upstream = Upstream(pause_ms)
        self.disk = Disk(folder / "alone" / "disk")
        self.clock = Clock(folder / "clock")
        self._pause_ms = pause_ms
        self.nodes: list[Node] = []
        self.alone: Node
        self.nginx: Nginx

    @property
    def places(self) -> dict[Place, str]:
        return {"balanced": self.nginx.url, "alone": self.alone.url}

    @contextlib.contextmanager
    def running(self) -> Iterator[Servers]:
        try:
            self._start()
            yield self
        finally:
            for server in (
                getattr(self, "nginx", None),
                *self.nodes,
                getattr(self, "alone", None),
                self.redis,
                self.upstream,
            ):
                if server is not None:
                    server.kill()
            self.postgres.close()

    def _start(self) -> None:
        self.postgres.start()  # PostgreSQL ends with the thread that starts it
        with ThreadPoolExecutor() as at_once:
            for ready in [at_once.submit(start) for start in (self.redis.start, self.upstream.start)]:
                ready.result()
            self.store = self.postgres.create()
            shared = self._settings(self.store, self.redis.url)
            for name, clock in (("first", {}), ("second", self.clock.environment)):
                self.nodes.append(Node(self.folder / name, shared, {"SECRET": "of the nodes", **clock}))
            own = self._settings(f"sqlite:///{self.disk.folder / STORE}", "")
            self.alone = Node(self.folder / "alone", own, {"SECRET": "of nobody"}, self.disk.before)
            for started in [at_once.submit(node.start) for node in (*self.nodes, self.alone)]:
                started.result()
        self.nginx = Nginx(self.folder / "nginx", SITE, [node.port for node in self.nodes])
        self.nginx.start()

    def _settings(self, store: str, redis: str) -> str:
        lines = [
            "[server]",
            f"keys = {json.dumps(LOAD_KEYS)}",
            'node_secret = "env:SECRET"',
            "[parked]",
            "max_per_key = 1000",
        ]
        lines += [
            "[store]",
            f"url = {json.dumps(store)}",
            f'redis = "{redis}"',
            "[journal]",
            'contents = "disk"',
            "max_mb = 4",
        ]
        scripts = {name: (name, script(self._pause_ms)) for name in ("parked", "native", "emulated")}
        for name, (tools, steps) in {
            **scripts,
            SWIFT: ("parked", script(0)),
            "quick": ("native", "say done"),
        }.items():
            lines += [
                f"[models.{name}]",
                'backend = "scripted"',
                f'tools = "{tools}"',
                f"script = {json.dumps(steps)}",
            ]
        for name in ("upstream", f"upstream-{SWIFT}"):
            model = "paced" if name == "upstream" else SWIFT
            lines += [
                f"[models.{name}]",
                'backend = "openai"',
                f'base_url = "http://127.0.0.1:{self.upstream.port}/v1"',
                f'model = "{model}"',
            ]
        return "\n".join(lines)

    async def limited_key(self, rate: int) -> str:
        """Creates a key in the store with this limit of requests per minute. Returns the key."""
        store = Store(self.store)
        try:
            return (await KeyRecords(store).add("limited", {}, {"requests_per_minute": rate}))[1]
        finally:
            await store.close()

    def ended(self) -> list[str]:
        """Returns the names of the processes that have ended by themselves."""
        servers = {"nginx": self.nginx, "redis": self.redis, "upstream": self.upstream, "alone": self.alone}
        servers |= {f"node {place}": node for place, node in enumerate(self.nodes)}
        return [
            name
            for name, server in servers.items()
            if server.process is None or server.process.poll() is not None
        ]

    def tracebacks(self) -> int:
        return sum(node.log.read_text().count("Traceback") for node in (*self.nodes, self.alone))

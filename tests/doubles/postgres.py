"""A real PostgreSQL server on loopback for tests, with a password and its own folder.

It does not run as root. It can be stopped, killed, paused, and restarted on the same port with the same data.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from doubles.nodes import free_port

USER = "toolwire"
READY_S = 30.0
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",  # safe, because tests kill the server but not the machine
    "max_connections": "60",
    "shared_buffers": "32MB",
    "log_min_messages": "panic",
}


def binaries() -> Path | None:
    """Returns the folder of `postgres` and `initdb`, or None if they are not installed."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    on_path = shutil.which("postgres")
    if on_path is not None:
        found.append(Path(on_path).parent)
    return max(found, key=lambda path: [int(part) for part in path.parts if part.isdigit()], default=None)


class Postgres:
    def __init__(self, bin: Path) -> None:
        self._bin = bin
        self._folder = Path(tempfile.mkdtemp(prefix="toolwire-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._made = 0
        self.password = f"s3cr:t/@ {secrets.token_hex(8)}"
        self.port = free_port()
        self._initialise()

    def url(self, database: str) -> str:
        from urllib.parse import quote

        return f"postgresql://{USER}:{quote(self.password, safe='')}@127.0.0.1:{self.port}/{database}"

    def create(self, encoding: str = "UTF8") -> str:
        """Creates a new, empty database and returns its URL."""
        self._made += 1
        name = f"fresh_{self._made}"
        self._admin(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}'")
        return self.url(name)

    def drop(self, url: str) -> None:
        self._admin(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} WITH (FORCE)")

    # --- start and stop ---

    def start(self) -> None:
        """Starts the server, unless it runs already, and returns when it is ready."""
        import psycopg

        until = time.monotonic() + READY_S
        while True:
            if (
                self._process is None or self._process.poll() is not None
            ):  # a killed server may still use the data for a moment
                self._process = self._spawn()
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                if time.monotonic() > until:
                    raise AssertionError(f"PostgreSQL did not start: {error}") from None
                time.sleep(0.02)

    def stop(self) -> None:
        """Stops the server, which closes every connection."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """Kills the server, as in a crash. Returns when its child processes have ended too."""
        children = _children(self._process.pid) if self._process is not None else []
        self._signal(signal.SIGKILL)
        until = time.monotonic() + READY_S
        while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < until:
            time.sleep(0.005)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses the server: it accepts connections but does not answer."""
        assert self._process is not None
        among = [self._process.pid, *_children(self._process.pid)]
        for pid in among:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in among:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- processes ---

    def _initialise(self) -> None:
        secret = self._folder / "password"
        secret.write_text(self.password)
        if os.geteuid() == 0:
            for path in (self._folder, secret):
                shutil.chown(path, "postgres", "postgres")
        options = [
            "-U",
            USER,
            f"--pwfile={secret}",
            "-A",
            "scram-sha-256",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ]
        command = [*self._as_user(), str(self._bin / "initdb"), "-D", str(self._folder / "data"), *options]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def _spawn(self) -> subprocess.Popen[bytes]:
        settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = [
            *self._as_user(),
            str(self._bin / "postgres"),
            "-D",
            str(self._folder / "data"),
            "-p",
            str(self.port),
            *settings,
        ]
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _as_user(self) -> list[str]:
        """Returns the beginning of a command that runs the rest as another user, if the tests run as root.

        PostgreSQL refuses to run as root. The command also ends when the tests end, even if they are killed.
        """
        other = ["--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        return ["setpriv", *other, "--pdeathsig=INT"] if shutil.which("setpriv") else []

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(number)
            self._process.wait(READY_S)
            self._process = None

    def _admin(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())


_running: list[Postgres] = []
_users = 0


@contextlib.contextmanager
def shared(bin: Path) -> Iterator[Postgres]:
    """Yields the PostgreSQL server that all users in this process share. It stops after the last user."""
    global _users
    if not _running:
        _running.append(Postgres(bin))
        _running[0].start()
    _users += 1
    try:
        yield _running[0]
    finally:
        _users -= 1
        if _users == 0:
            _running.pop().close()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

"""Real servers on loopback for tests of several nodes: Redis, nginx and Toolwire.

nginx uses the configuration file that Toolwire ships. Each server is a process with its own folder, and is
ended by its process id. Ports are chosen in advance, so that a restarted server has the same port.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

READY_S = 30.0


def missing() -> list[str]:
    """Returns the names of the programs that are not installed."""
    return [program for program in ("redis-server", "nginx", "openssl") if _program(program) is None]


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def free_port() -> int:
    """Returns a port that stays free while its server is down.

    The system gives ports from 32768 on to outgoing connections. If a server with such a port restarts, an
    outgoing connection could have taken its port, or could even connect to itself. So this function returns
    a lower port.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + READY_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"no server came up on port {port}") from None
            time.sleep(0.02)


class Server:
    """A process that can be started, stopped, killed and restarted."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits for the end of the process. Returns the exit status."""
        process, self.process = self.process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
        try:
            return process.wait(READY_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait(READY_S)
        finally:
            if process.stdout is not None:
                process.stdout.close()

    def kill(self) -> None:
        self.end(signal.SIGKILL)


class RedisServer(Server):
    """Redis without persistence. A restart loses all data."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> RedisServer:
        program = _program("redis-server")
        assert program is not None
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "save": "",
            "appendonly": "no",
            "dir": self._folder,
            "loglevel": "warning",
        }
        arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self.process = subprocess.Popen(
            [program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for_port(self.port, self.process)
        return self


class Nginx(Server):
    """nginx with the shipped file `site`. Only its addresses and certificate are replaced."""

    def __init__(self, folder: Path, site: Path, nodes: Sequence[int]) -> None:
        super().__init__()
        self._folder = folder
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        folder.mkdir(parents=True, exist_ok=True)
        key, certificate = folder / "key.pem", folder / "fullchain.pem"
        asked = [
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=127.0.0.1",
        ]
        subprocess.run(
            [str(_program("openssl")), *asked, "-keyout", key, "-out", certificate],
            check=True,
            capture_output=True,
        )
        text = site.read_text()
        for place, port in enumerate(nodes):
            text = text.replace(f"10.0.0.{11 + place}:8788", f"127.0.0.1:{port}")
        text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{self.port} ssl").replace(
            "/etc/toolwire/tls", str(folder)
        )
        assert not re.search(r"10\.0\.0\.|/etc/", text.split("\n", 1)[1]), (
            "the shipped file has an address or a path that this test does not replace"
        )
        (folder / "site.conf").write_text(text)
        paths = "".join(
            f"{kind}_temp_path {folder / kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (folder / "nginx.conf").write_text(
            f"daemon off; pid {folder / 'pid'}; error_log {folder / 'error.log'} warn; "
            f"{'user root;' if os.getuid() == 0 else ''}"
            f"worker_processes 1; events {{ worker_connections 2048; }} http {{ access_log off; {paths} "
            f"include {folder / 'site.conf'}; }}\n"
        )

    def start(self) -> Nginx:
        command = [
            str(_program("nginx")),
            "-p",
            str(self._folder),
            "-c",
            str(self._folder / "nginx.conf"),
            "-e",
            str(self._folder / "error.log"),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_port(self.port, self.process)
        return self

    def reload(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)


class Node(Server):
    """`toolwire serve` with these settings (TOML), on a fixed port.

    `before`: words before the command, for a program such as `env` that runs the rest of its arguments.
    """

    def __init__(
        self,
        folder: Path,
        settings: str,
        environment: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._before = before
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._settings = settings
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TOOLWIRE_", "PROXY_")) and name != "PORT"
        }
        self._environment = {**inherited, "HOME": str(folder), **(environment or {})}
        self.log = folder / "log.txt"

    def start(self) -> Node:
        """Starts the server and returns when it is ready."""
        (self._folder / "toolwire.toml").write_text(self._settings)
        served = [
            sys.executable,
            "-m",
            "toolwire",
            "serve",
            "--config",
            "toolwire.toml",
            "--port",
            str(self.port),
            "--log-level",
            "info",
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._before, *served],
                cwd=self._folder,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().decode()
        if not self.said.startswith("listening on"):
            self.kill()
            raise RuntimeError(f"the node did not start: {self.log.read_text()[-2000:]}")
        return self

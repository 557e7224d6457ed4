"""A server process whose resources can be measured, by its own counts and by /proc.

For soak tests and tests with hostile clients. `python -m doubles.watched CONFIG` is a `toolwire serve` that
prints one line after each SIGUSR1: the numbers of tasks, of parked runs, and of turns that run or wait.
`Watched` starts this process and reads its output. Linux only.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolwire.gateway.pipeline import Gateway
from toolwire.settings.load import load
from toolwire.settings.types import Settings
from toolwire.store.store import Store

READY = "listening on "


@dataclass(frozen=True, slots=True)
class Held:
    """The resources that the process uses at the moment."""

    tasks: int
    parks: int
    in_line: int
    descriptors: int
    children: int


class WatchedGateway(Gateway):
    async def start(self) -> None:
        await super().start()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._report)

    def _report(self) -> None:
        gc.collect()
        in_line = sum(self.queues.waiting(id) + self.queues.running(id) for id in self.models)
        print(
            json.dumps({"tasks": len(asyncio.all_tasks()), "parks": len(self.parking), "in_line": in_line}),
            flush=True,
        )


class Watched:
    """A running process `doubles.watched`. `settings` is TOML.

    The process listens on a free port, and `folder` is its home.
    """

    def __init__(self, folder: Path, settings: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "toolwire.toml").write_text(settings)
        self.log = folder / "log.txt"
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TOOLWIRE_", "PROXY_")) and name != "PORT"
        }
        command = [sys.executable, "-m", "doubles.watched", "toolwire.toml"]
        with self.log.open("wb") as log:
            environment = {**inherited, "HOME": str(folder)}
            self._process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        said = self._line()
        if not said.startswith(READY):
            self.end()
            raise RuntimeError(f"the server did not start: {self.logged()[-2000:]}")
        self.port = int(said.removeprefix(READY).removesuffix("/v1\n").rpartition(":")[2])

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    @property
    def pid(self) -> int:
        return self._process.pid

    def pin(self, cores: Sequence[int]) -> None:
        """Limits the process to these CPU cores."""
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), cores)

    def held(self) -> Held:
        self._process.send_signal(signal.SIGUSR1)
        counted = json.loads(self._line())
        children = sum(
            len(task.joinpath("children").read_text().split())
            for task in Path(f"/proc/{self.pid}/task").iterdir()
        )
        return Held(**counted, descriptors=len(os.listdir(f"/proc/{self.pid}/fd")), children=children)

    def rss_mb(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1024 / 1024

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def loop_cpu_s(self) -> float:
        """Returns the CPU seconds of the event loop's thread, with a resolution of nanoseconds."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9

    def logged(self) -> str:
        """Returns the log so far."""
        return self.log.read_text(errors="replace")

    def end(self) -> int:
        """Drains and ends the server. Returns the exit status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait(20)
        finally:
            if self._process.stdout is not None:
                self._process.stdout.close()


def main(argv: Sequence[str]) -> int:
    from toolwire.surfaces.http.server import serve

    def make(settings: Settings, store: Store) -> Gateway:
        return WatchedGateway(settings, store=store)

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    return serve(load(argv[0], os.environ, {"server.port": 0}), make)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

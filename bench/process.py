"""Processes that are measured: started on one core, watched through /proc, stopped by id.

CPU time is read from `schedstat`, in nanoseconds, for a process and all its children. With two cores or more,
gateways run on the first core. The upstream and the load generator run on the second core, so that they take
no time from the gateways. Linux only.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WORK = HERE / "work"
_CORES = sorted(os.sched_getaffinity(0))
GATEWAY_CORE, LOAD_CORE = ({_CORES[0]}, {_CORES[1]}) if len(_CORES) > 1 else (set(_CORES), set(_CORES))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def tool(name: str) -> list[str]:
    """Returns the command of `upstream` or `load`.

    If there is a C compiler, this is the compiled C program, otherwise the Python program.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    source, binary = HERE / f"{name}.c", WORK / name
    WORK.mkdir(exist_ok=True)
    if compiler and (not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime):
        subprocess.run([compiler, "-O2", "-o", str(binary), str(source)], check=False, capture_output=True)
    return [str(binary)] if compiler and binary.exists() else [sys.executable, str(HERE / f"{name}.py")]


def is_compiled() -> bool:
    return len(tool("upstream")) == 1 and len(tool("load")) == 1


class Process:
    """A started program in a separate session. `stop` ends it and the processes that it started."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        core: set[int],
        log: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        WORK.mkdir(exist_ok=True)
        self.log = WORK / f"{log}.log"
        self.began = time.monotonic()
        with self.log.open("wb") as out:
            self._popen = subprocess.Popen(
                list(command),
                stdout=out,
                stderr=out,
                cwd=cwd,
                env={
                    **os.environ,
                    **(env or {}),
                    "PYTHONDONTWRITEBYTECODE": "",
                },  # as installed: compiled once, not at every start
                start_new_session=True,
                preexec_fn=lambda: os.sched_setaffinity(0, core),
            )

    def wait_until(self, ready: Callable[[], bool], seconds: float = 20.0) -> float:
        """Waits until the program is ready. Returns the seconds since its start."""
        while not ready():
            if self._popen.poll() is not None or time.monotonic() - self.began > seconds:
                raise RuntimeError(
                    f"{self.log.stem} did not start: {self.log.read_text(errors='replace')[-800:]}"
                )
            time.sleep(0.005)
        return time.monotonic() - self.began

    def cpu_s(self) -> float:
        total = 0
        for pid in self._tree():
            for task in _entries(f"/proc/{pid}/task"):
                total += int((_read(f"/proc/{pid}/task/{task}/schedstat") or "0").split()[0])
        return total / 1e9

    def rss_mb(self) -> float:
        total = 0
        for pid in self._tree():
            for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
                if line.startswith("Rss:"):
                    total += int(line.split()[1])
        return total / 1024

    def _tree(self) -> list[int]:
        found = [self._popen.pid]
        for pid in found:
            for task in _entries(f"/proc/{pid}/task"):
                found += map(int, _read(f"/proc/{pid}/task/{task}/children").split())
        return found

    def stop(self) -> None:
        for sign, patience in ((signal.SIGTERM, 8), (signal.SIGKILL, 5)):
            try:
                os.killpg(self._popen.pid, sign)  # a separate session: only what it started
                self._popen.wait(patience)
                return
            except ProcessLookupError:
                self._popen.poll()
                return
            except subprocess.TimeoutExpired:
                continue


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _entries(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def answers(port: int, path: str, headers: Mapping[str, str] | None = None, body: Any = None) -> bool:
    """Returns True if a request is now answered with status 200."""
    return answer(port, path, headers, body)[0] == 200


def answer(
    port: int, path: str, headers: Mapping[str, str] | None = None, body: Any = None
) -> tuple[int, str]:
    """Sends one request. Returns the status and text of the response; status 0: no response."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        sent = json.dumps(body) if body is not None else None
        connection.request(
            "POST" if sent else "GET", path, sent, {"Content-Type": "application/json", **(headers or {})}
        )
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    except (OSError, HTTPException):
        return 0, ""
    finally:
        connection.close()

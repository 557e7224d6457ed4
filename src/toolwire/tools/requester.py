"""Identifies the process that waits for a decision.

A question records this process as `HOST/PID/STARTED`, so that the questions of a dead process can be closed.
`HOST` includes the namespace of process ids, because each container can have its own.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path


@cache
def this_process() -> str:
    return f"{_host()}/{os.getpid()}/{_started(os.getpid())}"


def has_ended(requester: str) -> bool:
    """Whether a process has certainly ended; False if that is unknown.

    `requester`: the process as `this_process` describes it.
    """
    host_and_process, _, started = requester.rpartition("/")
    host, _, process = host_and_process.rpartition("/")
    if not host or host != _host() or not process.isdigit():
        return False
    pid = int(process)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # the process of another user
    now = _started(pid)
    return bool(now and started) and now != started


def _host() -> str:
    try:
        return f"{socket.gethostname()}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> str:
    """Returns the kernel's start time of a process; "" if it is unknown.

    The start time distinguishes the process from a later process with the same id.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""

"""Which process asks a question, so that one that died in the middle leaves no question behind that nobody waits for.

An asker is `HOST/PID/STARTED`; the host's name is that of its space of process ids too, as containers have them. Only the machine that ran it can say
that it is gone; elsewhere its questions wait for their time to end.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path


@cache
def this_process() -> str:
    return f"{_host()}/{os.getpid()}/{_started(os.getpid())}"


def is_gone(asker: str) -> bool:
    """Whether it is certain that nobody of that name waits any more."""
    host, _, process = asker.rpartition("/")[0].rpartition("/")
    started = asker.rpartition("/")[2]
    if not host or host != _host() or not process.isdigit():
        return False
    pid = int(process)
    if pid == os.getpid():
        return asker != this_process()
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # another user's
    now = _started(pid)
    return bool(now and started) and now != started


def _host() -> str:
    try:
        return f"{socket.gethostname()}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> str:
    """When, in the kernel's count: a number that another process of the same id does not have. Empty where the system does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""

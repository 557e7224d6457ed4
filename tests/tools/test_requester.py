"""A question of a process that has ended expires; one that a living process waits for stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from toolwire.store.store import Store
from toolwire.tools.approvals import Approvals
from toolwire.tools.requester import has_ended, this_process

ASKS = """
import asyncio, sys
from toolwire.store.store import Store
from toolwire.tools.approvals import Approvals, Question
from toolwire.tools.requester import this_process
from toolwire.tools.contract import Asking, Preview

async def main():
    asking = Asking("s", "m", "web")
    question = Question("file_read", "run", {"path": "a.md"}, Preview())
    task = asyncio.ensure_future(Approvals(Store(sys.argv[1])).ask(asking, [question], None))
    approvals = Approvals(Store(sys.argv[1]))
    while not task.done() and not any(one.requester == this_process() for one in await approvals.pending()):
        await asyncio.sleep(0.01)
    print("asked" if not task.done() else task, flush=True)
    await task

asyncio.run(main())
"""

HERE = this_process().rpartition("/")[0].rpartition("/")[0]


def test_this_process_has_not_ended() -> None:
    assert not has_ended(this_process())


def test_a_process_on_another_machine_or_unknown_is_not_taken_as_ended() -> None:
    assert (
        not has_ended("")
        and not has_ended("elsewhere/1/1")
        and not has_ended(f"{HERE}/x/1")
        and not has_ended("a/b")
    )


@pytest.mark.process
def test_an_ended_process_is_detected_even_if_its_id_is_reused() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert has_ended(f"{HERE}/{ended.pid}/1")
    assert has_ended(f"{HERE}/{os.getppid()}/1")
    assert has_ended(f"{HERE}/{os.getpid()}/1")


@pytest.mark.process
async def test_a_new_process_expires_the_questions_of_killed_processes_only(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    living, killed = (
        subprocess.Popen([sys.executable, "-c", ASKS, url], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    )
    store = Store(url)
    try:
        for process in (living, killed):
            assert process.stdout is not None and process.stdout.readline() == "asked\n"
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        approvals = Approvals(store)
        assert len(await approvals.pending()) == 2
        await approvals.lapse()
        left = await approvals.pending()
        assert [one.requester.split("/")[-2] for one in left] == [str(living.pid)]
    finally:
        await store.close()
        for process in (living, killed):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

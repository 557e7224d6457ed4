"""`make check` starts no process and contacts no other machine.

A test that does so must be marked, and is then left out. An unmarked one fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
UNMARKED = {
    "a process": "import subprocess, sys\ndef test_it():\n    subprocess.run([sys.executable, '-c', ''])\n",
    "a process, with the refusal swallowed": (
        "import subprocess, sys\ndef test_it():\n"
        "    try:\n        subprocess.run([sys.executable, '-c', ''])\n"
        "    except Exception:\n        pass\n"
    ),
    "a process of a fixture": (
        "import os, pytest\n@pytest.fixture(scope='session')\ndef started():\n    os.system('true')\n"
        "def test_it(started): ...\n"
    ),
    "another machine": (
        "import socket\ndef test_it():\n    with socket.socket() as one:\n"
        "        one.settimeout(0.1)\n        one.connect(('192.0.2.1', 80))\n"
    ),
}
MARKED = "import pytest\n@pytest.mark.process\ndef test_left_out():\n    assert False\ndef test_run(): ...\n"


def run(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_one.py").write_text(program)
    command = [sys.executable, "-m", "pytest", "-q", "--quick", "-p", "conftest", "-c", os.devnull]
    command += ["--rootdir", str(folder), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.process
@pytest.mark.parametrize("what", UNMARKED)
def test_an_unmarked_test_that_uses_more_than_this_process_fails(tmp_path: Path, what: str) -> None:
    done = run(tmp_path, UNMARKED[what])
    expected = "connects to" if what == "another machine" else "starts a process; mark it"
    assert done.returncode == pytest.ExitCode.TESTS_FAILED and expected in done.stdout, (
        done.stdout + done.stderr
    )


@pytest.mark.process
def test_a_marked_test_is_left_out(tmp_path: Path) -> None:
    done = run(tmp_path, MARKED)
    assert "1 passed, 1 deselected" in done.stdout, done.stdout + done.stderr

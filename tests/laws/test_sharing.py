"""Tests of one file run in one pytest worker, as do files that share an expensive fixture."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
FILES = (
    "gateway/test_one.py",
    "gateway/test_other.py",
    "service/test_nodes.py",
    "service/test_workers.py",
    "tools/test_last.py",
)
NOTES_ITS_WORKER = """
import os
import pathlib
import pytest

@pytest.mark.parametrize("number", range(6))
def test_it(number):
    with pathlib.Path("seen").open("a") as seen:
        print(pathlib.Path(__file__).name, os.environ["PYTEST_XDIST_WORKER"], file=seen)
"""


@pytest.mark.process
def test_every_file_runs_in_one_worker_and_related_files_run_in_the_same_one(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).write_text(NOTES_ITS_WORKER)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "--dist",
        "loadgroup",
        "-p",
        "conftest",
        "--import-mode=importlib",
        "-c",
        os.devnull,
    ]
    environment = {
        **{name: value for name, value in os.environ.items() if "XDIST" not in name},
        "PYTHONPATH": str(TESTS),
    }
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "tests"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{6 * len(FILES)} passed" in done.stdout, done.stdout + done.stderr
    workers = defaultdict(set)
    for line in (tmp_path / "seen").read_text().splitlines():
        file, worker = line.split()
        workers[file].add(worker)
    assert [len(found) for found in workers.values()] == [1] * len(FILES), workers
    assert workers["test_nodes.py"] == workers["test_workers.py"]
    assert len(set.union(*workers.values())) == 2, workers

"""In CI, a skipped test is a failure, and its message says what is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
SKIPS = {
    "in the test": "import pytest\n\ndef test_it():\n    pytest.skip('no engine')\n",
    "in a fixture": "import pytest\n\n@pytest.fixture\ndef engine():\n    pytest.skip('no engine')\n\n"
    "def test_it(engine): ...\n",
    "by a mark": "import pytest\n\n@pytest.mark.skipif(True, reason='no engine')\ndef test_it(): ...\n",
    "of a whole file": "import pytest\n\npytest.skip('no engine', allow_module_level=True)\n",
}


@pytest.mark.parametrize("where", SKIPS)
@pytest.mark.parametrize("ci", ["true", ""])
@pytest.mark.process
def test_a_skipped_test_fails_in_ci_and_names_what_is_missing(tmp_path: Path, where: str, ci: str) -> None:
    (tmp_path / "test_engine.py").write_text(SKIPS[where])
    environment = {**os.environ, "CI": ci, "PYTHONPATH": str(TESTS)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rs",
        "-p",
        "conftest",
        "--rootdir",
        str(tmp_path),
        "-c",
        os.devnull,
        str(tmp_path),
    ]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    left_out = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    assert (done.returncode not in left_out) == (ci == "true") and "no engine" in done.stdout, (
        done.stdout + done.stderr
    )


def test_the_workflows_run_the_targets_of_the_makefile_and_nothing_else() -> None:
    root = TESTS.parent
    targets = re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE)
    for path in [*(root / ".github" / "workflows").glob("*.yml"), root / ".ci" / "run"]:
        commands = re.findall(r"^(?: +- run: |(?=make))(.+)$", path.read_text(), re.MULTILINE)
        assert commands, path
        for command in commands:
            make, *wanted = command.split()
            assert make == "make" and set(wanted) <= set(targets), (path, command)

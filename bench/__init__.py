"""The side-by-side benchmarks: `python -m bench` runs them, `bench/evidence.py` runs their long versions."""

import os
import sys
from pathlib import Path

_TESTS = str(Path(__file__).resolve().parent.parent / "tests")
# The benchmarks share servers and clients with the tests, and so do the processes that they start.
sys.path.append(_TESTS)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_TESTS, os.environ.get("PYTHONPATH"))))

"""Benchmarks of Toolwire, compared with other servers and gateways.

`python -m bench` runs the benchmarks, `bench/evidence.py` runs their long versions.
"""

import os
import sys
from pathlib import Path

_TESTS = str(Path(__file__).resolve().parent.parent / "tests")
# The benchmarks, and the processes that they start, use the tests' servers and clients.
sys.path.append(_TESTS)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_TESTS, os.environ.get("PYTHONPATH"))))

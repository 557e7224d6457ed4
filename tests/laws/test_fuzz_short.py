"""Runs every law of the fuzzer on a few hundred random cases.

`make fuzz` and `make evidence` run the same laws on many more cases.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2] / "fuzz"
CASES = 300


def load_laws() -> dict[str, Any]:
    """Imports the fuzzer by its path, because it is not part of the package."""
    if "fuzz" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "fuzz", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
        )
        assert spec is not None and spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules["fuzz"] = package
        spec.loader.exec_module(package)
    laws: dict[str, Any] = importlib.import_module("fuzz.properties").PROPERTIES
    return laws


LAWS = load_laws()


@pytest.mark.parametrize("name", LAWS)
def test_a_law_holds_for_random_cases(name: str) -> None:
    for number in range(CASES // LAWS[name].cost):
        try:
            LAWS[name](Random(f"short/{name}/{number}"))
        except Exception as error:
            raise AssertionError(
                f"case {number} of {name}: {error}\ncase = "
                f"{LAWS[name].draw(Random(f'short/{name}/{number}'))!r}"
            ) from error


def test_a_case_that_breaks_a_law_is_shrunk() -> None:
    shrink = importlib.import_module("fuzz.shrink")
    law = importlib.import_module("fuzz.law")

    def no_seven(case: dict[str, Any]) -> None:
        law.holds("there is no 7", False, "7" in case["text"])

    broken = law.Law(
        lambda rng: {"text": "a long text with a 7 in it", "cuts": [1, 2, 3]}, no_seven, "there is no 7"
    )
    assert shrink.shrink(broken, broken.draw(Random(0))) == {"text": "7", "cuts": []}

"""Cases of the Berkeley Function Calling Leaderboard (BFCL v4): reads them, draws some, grades answers.

The cases come from the package `bfcl-eval` (Apache-2.0), which is downloaded once and never installed. This
repository contains no part of the package. An answer is right if it consists of the expected calls, in any
order: the names are equal, and each argument has one of the values that the case allows. As in BFCL's own
grader, upper or lower case, spaces and some punctuation of texts do not count.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

PACKAGE, VERSION, LICENCE = "bfcl-eval", "2026.3.23", "Apache-2.0"
SHA256 = "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a"
FOLDER = "bfcl_eval/data"
CATEGORIES: dict[str, str] = {
    "simple": "simple_python",
    "multiple": "multiple",
    "parallel": "parallel",
    "live simple": "live_simple",
    "live multiple": "live_multiple",
    "irrelevance": "irrelevance",
}
"""The categories that are measured, and the names of their files."""
NO_CALL = "irrelevance"
"""The category whose tools do not fit the question: the right answer is text."""
MOST_CHARACTERS = 8_000
"""The maximum length of a case's tools as JSON. Longer cases are not drawn: they take minutes."""

Call = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Case:
    id: str
    category: str
    messages: tuple[dict[str, str], ...]
    tools: tuple[dict[str, Any], ...]
    """The tools as a chat completions request has them."""
    expected: tuple[dict[str, dict[str, list[Any]]], ...]
    """For each call its name, and for each argument the allowed values; "" means that it may be absent."""

    def right(self, calls: Sequence[Call]) -> bool:
        """Grades an answer by its calls."""
        required = {
            tool["function"]["name"]: tool["function"]["parameters"].get("required", ())
            for tool in self.tools
        }
        if len(calls) != len(self.expected):
            return False
        left = list(calls)
        for one in self.expected:
            ((name, allowed),) = one.items()
            fits = (call for call in left if call[0] == name and _fits(call[1], allowed, required[name]))
            found = next(fits, None)
            if found is None:
                return False
            left.remove(found)
        return True


# --- reading ---


def wheel(folder: Path) -> Path:
    """Returns the package's file in `folder`. Downloads the file if it is missing, and checks its hash."""
    file = folder / f"{PACKAGE.replace('-', '_')}-{VERSION}-py3-none-any.whl"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        with tempfile.TemporaryDirectory(dir=folder) as work:
            subprocess.run([*command, "-d", work, f"{PACKAGE}=={VERSION}"], check=True)
            next(Path(work).glob("*.whl")).rename(file)
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != SHA256:
        raise SystemExit(f"{file} is not the {PACKAGE} {VERSION} that was measured before: delete it")
    return file


def read(file: Path) -> dict[str, list[Case]]:
    """Returns all cases of the package, by category."""
    with zipfile.ZipFile(file) as archive:

        def lines(member: str) -> list[dict[str, Any]]:
            text = archive.read(f"{FOLDER}/{member}").decode()
            return [json.loads(line) for line in text.splitlines() if line.strip()]

        cases: dict[str, list[Case]] = {}
        for category, name in CATEGORIES.items():
            answers: dict[str, list[Any]] = {}
            if category != NO_CALL:
                given = lines(f"possible_answer/BFCL_v4_{name}.json")
                answers = {one["id"]: one["ground_truth"] for one in given}
            questions = lines(f"BFCL_v4_{name}.json")
            cases[category] = [case_of(category, one, answers.get(one["id"], [])) for one in questions]
    return cases


def case_of(category: str, question: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> Case:
    tools = tuple(
        {
            "type": "function",
            "function": {
                "name": renamed(one["name"]),
                "description": one["description"],
                "parameters": schema_of(one["parameters"]),
            },
        }
        for one in question["function"]
    )
    expected = tuple({renamed(name): dict(values) for name, values in one.items()} for one in answers)
    return Case(question["id"], category, tuple(question["question"][0]), tools, expected)


def renamed(name: str) -> str:
    """Returns a function's name as OpenAI's APIs allow it: without dots, as in BFCL itself."""
    return name.replace(".", "_")


_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}


def schema_of(given: Any) -> Any:
    """Returns a BFCL schema, which has Python's names of types, as a JSON schema."""
    if isinstance(given, list):
        return [schema_of(one) for one in given]
    if not isinstance(given, dict):
        return given
    out = {}
    for key, value in given.items():
        if key == "properties":
            out[key] = {name: schema_of(one) for name, one in value.items()}
        elif key == "type" and isinstance(value, str):
            named = _TYPES.get(value, value)
            out |= {key: named} if named else {}
        elif key == "items":
            out[key] = schema_of(value)
        elif key != "optional":
            out[key] = value
    return out


def sample(cases: Mapping[str, Sequence[Case]], per: int, seed: int) -> list[Case]:
    """Draws at most `per` cases of each category, in turns. The same seed always draws the same cases.

    A larger `per` draws the same cases first, and then more.
    """
    drawn = []
    for category, all_of_it in cases.items():
        short = [case for case in all_of_it if len(json.dumps(case.tools)) <= MOST_CHARACTERS]
        random.Random(f"{seed} {category}").shuffle(short)
        drawn.append(short[:per])
    return [case for turn in zip_longest(*drawn) for case in turn if case is not None]


# --- grading ---

_IGNORED = re.compile(r"[ ,./\-_*^]")


def _fits(given: Mapping[str, Any], allowed: Mapping[str, list[Any]], required: Sequence[str]) -> bool:
    """Whether all arguments (or members of an object) have allowed values, and no required one is missing."""
    if any(name not in allowed for name in given) or any(name not in given for name in required):
        return False
    return all(
        any(_same(given[name], one) for one in values) if name in given else "" in values
        for name, values in allowed.items()
    )


def _same(given: Any, allowed: Any) -> bool:
    """Whether a value is the allowed one. In an object, each member has a list of allowed values."""
    if isinstance(given, bool) or isinstance(allowed, bool):
        return given is allowed
    if isinstance(given, str) and isinstance(allowed, str):
        return _plain(given) == _plain(allowed)
    if isinstance(given, dict) and isinstance(allowed, dict):
        listed = {name: one if isinstance(one, list) else [one] for name, one in allowed.items()}
        return _fits(given, listed, ())
    if isinstance(given, list) and isinstance(allowed, list):
        return len(given) == len(allowed) and all(map(_same, given, allowed))
    return bool(given == allowed)


def _plain(text: str) -> str:
    return _IGNORED.sub("", text).lower().replace("'", '"')

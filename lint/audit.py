"""The dependencies, looked over. Run by `make lint`.

- Every dependency and every extra that people install has a lowest version and an upper bound.
- What the tests, the linters and the builds use is pinned exactly, and is what is installed here.
- What is installed fits together (`pip check`).
- Nothing that is installed has a known vulnerability, by the data that PyPI publishes (and pip-audit reads). Where PyPI can not be reached, that step
  is left out, and says so: everything else works without a network.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any

from pip._internal.models.index import PyPI

ROOT = Path(__file__).resolve().parents[1]
PINNED = ("test", "lint", "dist", "docs")
"""Extras for those who work on Toolwire; all others are for those who use it."""
ACCEPTED: dict[str, str] = {}
"""Vulnerabilities that do not touch Toolwire, by their id, each with the reason."""
SOURCE = PyPI.url.rstrip("/") + "/pypi/{name}/{version}/json"
WITHIN_S = 5.0
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*([^;]*?)\s*(?:;.*)?")


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    problems = [*ranges(project), *pins(project), *fitting()]
    found, skipped = vulnerabilities()
    for line in (*problems, *found):
        print(f"audit: {line}", file=sys.stderr)
    if skipped:
        print(f"audit: known vulnerabilities were not looked up: {skipped}")
    return 1 if problems or found else 0


def ranges(project: dict[str, Any]) -> Iterator[str]:
    """Complaints about what people install."""
    groups = {"dependencies": project["dependencies"], **project["optional-dependencies"]}
    for group, requirements in groups.items():
        if group in PINNED:
            continue
        for requirement in requirements:
            name, wanted = parsed(requirement)
            bounds = [bound.strip() for bound in wanted.split(",")]
            if not any(bound.startswith((">=", "==", "~=")) for bound in bounds):
                yield f"{group}: {name} has no lowest version: {requirement}"
            if not any(bound.startswith(("<", "==", "~=")) for bound in bounds):
                yield f"{group}: {name} has no upper bound: {requirement}"


def pins(project: dict[str, Any]) -> Iterator[str]:
    """Complaints about what we work with."""
    for group in PINNED:
        for requirement in project["optional-dependencies"].get(group, ()):
            name, wanted = parsed(requirement)
            exact = re.fullmatch(r"==\s*([^*,\s]+)", wanted)
            if exact is None:
                yield f"{group}: {name} is not pinned exactly: {requirement}"
                continue
            try:
                here = version(name)
            except PackageNotFoundError:
                continue  # each make target installs its own group
            if here != exact[1]:
                yield f"{group}: {name} is pinned to {exact[1]}, and {here} is installed"


def parsed(requirement: str) -> tuple[str, str]:
    """The name, and which versions are wanted."""
    match = _REQUIREMENT.fullmatch(requirement.strip())
    if match is None:
        raise SystemExit(f"audit: {requirement!r} can not be read")
    return match[1], match[2]


def fitting() -> list[str]:
    told = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    return [] if told.returncode == 0 else [line for line in (told.stdout or told.stderr).splitlines() if line.strip()]


def vulnerabilities() -> tuple[list[str], str]:
    """What is known of what is installed; and why nothing could be asked, where nothing could."""
    installed = sorted({(one.metadata["Name"], one.version) for one in distributions() if one.metadata["Name"] not in (None, "toolwire")})
    try:
        urllib.request.urlopen(SOURCE.format(name="pip", version=version("pip")), timeout=WITHIN_S).close()
    except urllib.error.HTTPError as error:
        return [], f"PyPI answered {error.code}"
    except (OSError, PackageNotFoundError) as error:
        return [], f"PyPI can not be reached ({getattr(error, 'reason', error)})"
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda one: known(*one), installed))
    missing = sum(answer is None for answer in answers)
    found = [line for answer in answers for line in answer or ()]
    return found, f"{missing} of {len(installed)} packages" if missing else ""


def known(name: str, release: str) -> list[str] | None:
    """The vulnerabilities of a release; None: they could not be asked for."""
    try:
        with urllib.request.urlopen(SOURCE.format(name=name, version=release), timeout=WITHIN_S) as answer:
            listed = json.load(answer).get("vulnerabilities") or []
    except (OSError, ValueError):
        return None
    living = [one for one in listed if not one.get("withdrawn") and not {one["id"], *one.get("aliases", ())} & set(ACCEPTED)]
    return [f"{name} {release}: {one['id']} ({', '.join(one.get('fixed_in') or ['no release'])} mends it)" for one in living]


if __name__ == "__main__":
    sys.exit(main())

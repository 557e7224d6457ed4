"""Checks the dependencies. Run by `make lint`.

- Every package that users of Toolwire install has a lower and an upper bound for its version.
- Every package that the tests, the linters and the builds use is pinned to one version, and this version is
  installed here.
- The installed packages are compatible with each other (`pip check`).
- constraints.txt has every version that pyproject.toml pins, and a hash of every package.
- Every package of an npm lock file has an integrity hash, and no lock file or requirements file names a
  registry.
- No installed package has a known vulnerability, according to the data that PyPI publishes (and pip-audit
  reads).

Only the last check needs a network: PyPI's JSON API. If PyPI cannot be reached, or a mirror does not serve
this API, the audit prints `NOT CHECKED` and passes. With `AUDIT=required`, missing data is a failure. In CI
(`CI=true`), data that arrives but is empty, unreadable or incomplete is a failure.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any

from pip._internal.models.index import PyPI

ROOT = Path(__file__).resolve().parents[1]
LOCKED = ("test", "lint", "docs", "dist")
"""Extras whose versions and hashes are in constraints.txt."""
PINNED = (*LOCKED, "lock")
"""Extras for developers of Toolwire. All other extras are for its users."""
ACCEPTED: dict[str, str] = {}
"""Vulnerabilities that do not affect Toolwire: for each id, the reason."""
SOURCE = PyPI.url.rstrip("/") + "/pypi/{name}/{version}/json"
WITHIN_S = 5.0
CANARY = ("jinja2", "2.4.1")
"""A release with known vulnerabilities. If the data has no vulnerability of it, the data is empty."""
UNHASHED = {
    "tests/acp-agents/opencode/package-lock.json": re.compile(
        r"node_modules/opencode-(?:darwin|windows|linux-arm64|linux-x64(?:-baseline)?-musl)\b.*"
    )
}
"""By lock file, packages without a hash: for other platforms, and not in the registry that was used."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*([^;]*?)\s*(?:;.*)?")


class NoData(Exception):
    """There is no vulnerability data: PyPI cannot be reached, or a mirror does not serve this data."""


class BadData(Exception):
    """There is vulnerability data, but it cannot be read or cannot be right."""


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    constraints = (ROOT / "constraints.txt").read_text("utf-8")
    problems = [*ranges(project), *pins(project), *locked(project, constraints), *fitting(), *locks(ROOT)]
    found, unchecked, is_bad = checked(installed())
    for line in (*problems, *found):
        print(f"audit: {line}", file=sys.stderr)
    if unchecked:
        print(f"audit: NOT CHECKED for known vulnerabilities: {unchecked}", file=sys.stderr)
    needed = os.environ.get("AUDIT") == "required" or (
        is_bad and os.environ.get("CI", "").lower() in ("1", "true")
    )
    return 1 if problems or found or (unchecked and needed) else 0


def ranges(project: dict[str, Any]) -> Iterator[str]:
    """Yields a message for each package that users install without a lower or an upper bound."""
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
    """Yields a message for each package in `PINNED` that is not pinned, or not the installed version."""
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


def locked(project: dict[str, Any], constraints: str) -> Iterator[str]:
    """Yields a message for each problem in constraints.txt."""
    blocks = re.split(r"\n(?=\S)", constraints.strip())
    there = {block.split()[0] for block in blocks}
    for group in LOCKED:
        for requirement in project["optional-dependencies"].get(group, ()):
            name, wanted = parsed(requirement)
            if f"{re.sub(r'[-_.]+', '-', name).lower()}{wanted}" not in there:
                yield f"constraints.txt lacks {name}{wanted}; run make lock"
    for block in blocks:
        if "--hash=sha256:" not in block:
            yield f"constraints.txt: no hash of {block.split()[0]}; run make lock"
    if "://" in constraints or "--index" in constraints:
        yield "constraints.txt names a registry"


def parsed(requirement: str) -> tuple[str, str]:
    """Returns the name of the package, and the versions that the requirement allows."""
    match = _REQUIREMENT.fullmatch(requirement.strip())
    if match is None:
        raise SystemExit(f"audit: {requirement!r} cannot be read")
    return match[1], match[2]


def fitting() -> list[str]:
    told = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    return (
        []
        if told.returncode == 0
        else [line for line in (told.stdout or told.stderr).splitlines() if line.strip()]
    )


def locks(root: Path) -> Iterator[str]:
    """Yields a message for each problem in npm lock files and requirements files."""
    for path in sorted(root.glob("tests/**/package-lock.json")):
        name = path.relative_to(root).as_posix()
        if "node_modules" in path.parts:
            continue
        for place, package in json.loads(path.read_text("utf-8")).get("packages", {}).items():
            excused = UNHASHED.get(name)
            if (
                place
                and "integrity" not in package
                and not package.get("link")
                and not (excused and excused.fullmatch(place))
            ):
                yield (
                    f"{name}: {place} has no integrity hash; npm view "
                    f"{place.rpartition('node_modules/')[2]} dist.integrity"
                )
            if "://" in str(package.get("resolved", "")):
                yield f"{name}: {place} names a registry: remove its `resolved`"
    for path in sorted(root.glob("tests/**/requirements*.txt")):
        for line in path.read_text("utf-8").splitlines():
            if re.search(r"://|^\s*(?:-i|-f|--(?:extra-)?index-url|--find-links)\b", line.partition("#")[0]):
                yield f"{path.relative_to(root).as_posix()}: names a registry: {line.strip()}"


def installed() -> list[tuple[str, str]]:
    return sorted(
        {
            (one.metadata["Name"], one.version)
            for one in distributions()
            if one.metadata["Name"] not in (None, "toolwire")
        }
    )


Fetch = Callable[[str, str], bytes]


def checked(packages: list[tuple[str, str]], fetch: Fetch | None = None) -> tuple[list[str], str, bool]:
    """Returns the known vulnerabilities, what was not checked and why, and whether bad data is the reason."""
    fetch = fetch or fetched
    try:
        if not vulnerabilities(CANARY, fetch):
            return [], f"the data of PyPI is empty: it knows nothing of {' '.join(CANARY)}", True
    except NoData as error:
        return [], str(error), False
    except BadData as error:
        return [], f"the data of PyPI cannot be read: {error}", True
    found: list[str] = []
    unknown, unread = [], []
    with ThreadPoolExecutor(8) as threads:
        for package, answer in zip(
            packages, threads.map(lambda one: _asked(one, fetch), packages), strict=True
        ):
            if isinstance(answer, NoData):
                unknown.append(package[0])
            elif isinstance(answer, BadData):
                unread.append(package[0])
            else:
                found += answer
    missing = [
        f"{len(names)} of {len(packages)} packages {why} ({', '.join(names[:5])} …)"
        for names, why in ((unknown, "are not known to PyPI"), (unread, "could not be read"))
        if names
    ]
    return found, "; ".join(missing), bool(unread) or len(unknown) > len(packages) // 2


def _asked(package: tuple[str, str], fetch: Fetch) -> list[str] | NoData | BadData:
    try:
        return vulnerabilities(package, fetch)
    except (NoData, BadData) as error:
        return error


def fetched(name: str, release: str) -> bytes:
    with urllib.request.urlopen(SOURCE.format(name=name, version=release), timeout=WITHIN_S) as answer:
        return bytes(answer.read())


def vulnerabilities(package: tuple[str, str], fetch: Fetch) -> list[str]:
    name, release = package
    try:
        listed = json.loads(fetch(name, release))["vulnerabilities"]
        living = [
            one
            for one in listed
            if not one.get("withdrawn") and not {one["id"], *one.get("aliases", ())} & set(ACCEPTED)
        ]
        return [
            f"{name} {release}: {one['id']} (fixed in {', '.join(one.get('fixed_in') or ['no release'])})"
            for one in living
        ]
    except urllib.error.HTTPError as error:
        if error.code in (403, 404, 405):
            raise NoData(
                f"this registry answers {error.code} for {name} {release}: it has no vulnerability data"
            ) from None
        raise BadData(f"{name} {release}: status {error.code}") from None
    except OSError as error:
        raise NoData(f"PyPI cannot be reached ({getattr(error, 'reason', error)})") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadData(f"{name} {release}: {type(error).__name__}") from None


if __name__ == "__main__":
    sys.exit(main())

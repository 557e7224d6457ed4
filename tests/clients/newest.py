"""Tests the newest releases of the real clients, in a separate folder, and prints what changed.

    python tests/clients/newest.py [--keep FOLDER] [--only NAME …] [--lock KIND]

The checkout does not change. The exit status is 1 if a client fails, for scheduled jobs. Codex as a backend
keeps its pinned version, so that only the client can be the cause. `--lock python` instead prints
requirements.txt for the versions of versions.toml, and `--lock semantic-kernel`
requirements-semantic-kernel.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from matrix import CLAUDE_CODE, CLIENT_TABLE, CLIENTS, ENVIRONMENTS, ROOT, VERSIONS

TESTS = (
    "tests/conform/test_client_matrix.py",
    "tests/conform/test_client_messages.py",
    "tests/conform/test_clients.py",
)
PACKAGES = {"@anthropic-ai/claude-code": CLAUDE_CODE}
"""Packages that are installed for this machine only."""
EXTRAS = {"pydantic-ai-slim": "[openai]"}


def main() -> int:
    options = argparse.ArgumentParser(description="The real clients in their newest releases.")
    options.add_argument("--keep", metavar="FOLDER", help="install into this folder, and leave it")
    options.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        choices=[client.name for client in CLIENT_TABLE],
        help="only this client; may be repeated",
    )
    options.add_argument(
        "--lock",
        choices=ENVIRONMENTS,
        help="print the requirements of this environment for the pinned versions",
    )
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(given.keep or scratch).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if given.lock:
            print(lock(folder, given.lock))
            return 0
        kinds: set[str] = {
            client.kind for client in CLIENT_TABLE if not given.only or client.name in given.only
        }
        found = install(folder, kinds)
        return report(found, run_tests(folder, given.only or [client.name for client in CLIENT_TABLE]))


# --- installing ---


def environment(folder: Path, requirements: list[str]) -> Path:
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirements], check=True
    )
    return python


def lock(folder: Path, kind: str) -> str:
    python = environment(
        folder / kind,
        [f"{name}{EXTRAS.get(name, '')}=={version}" for name, version in VERSIONS[kind].items()],
    )
    frozen = subprocess.run(
        [python, "-m", "pip", "freeze"], check=True, capture_output=True, text=True
    ).stdout
    head = (
        "# Every package of this environment: what versions.toml names and what it needs. Printed by: "
        f"newest.py --lock {kind}"
    )
    return f"{head}\n{frozen}".rstrip()


def install(folder: Path, kinds: set[str]) -> dict[str, dict[str, str]]:
    """The installed versions."""
    found: dict[str, dict[str, str]] = {}
    for kind in sorted(kinds & ENVIRONMENTS.keys()):
        names = list(VERSIONS[kind])
        python = environment(folder / kind, [name + EXTRAS.get(name, "") for name in names])
        program = (
            "import json, sys; from importlib.metadata import version; print(json.dumps({n: version(n) for "
            "n in sys.argv[1:]}))"
        )
        printed = subprocess.run(
            [python, "-c", program, *names], check=True, capture_output=True, text=True
        ).stdout
        found[kind] = json.loads(printed)
    (folder / "node").mkdir(exist_ok=True)
    for source in (*CLIENTS.glob("*.mjs"), *CLIENTS.glob("*.py")):  # packages are searched next to a program
        shutil.copy(source, folder / "node")
    for kind in sorted(kinds & {"node", "opencode", "codex", "claude-code"}):
        found[kind] = npm(folder / kind, list(VERSIONS[kind]))
    if "browser" in kinds:
        found["browser"] = dict(VERSIONS["browser"])
    return found


def npm(folder: Path, names: list[str]) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    # AI SDK packages of different majors do not work together, so use the newest of the pinned major.
    wanted = [
        f"{name}@{VERSIONS['node'][name].partition('.')[0]}"
        if name == "ai" or name.startswith("@ai-sdk/")
        else f"{PACKAGES.get(name, name)}@latest"
        for name in names
    ]
    subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder), *wanted],
        check=True,
    )
    installed = {name: folder / "node_modules" / PACKAGES.get(name, name) for name in names}
    return {
        name: json.loads((package / "package.json").read_text("utf-8"))["version"]
        for name, package in installed.items()
    }


# --- running and reporting ---


def run_tests(folder: Path, names: list[str]) -> dict[str, list[str]]:
    """The failures of each client. The last line begins with the number of passed tests."""
    file = folder / "results.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *TESTS,
        "-k",
        " or ".join(names),
        f"--junitxml={file}",
    ]
    subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "TOOLWIRE_CLIENTS": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=sys.stderr,
    )
    outcomes: dict[str, list[str]] = {name: [] for name in names}
    passed = dict.fromkeys(names, 0)
    for case in ElementTree.parse(file).iter("testcase"):
        test = case.get("name", "")
        owner = next((name for name in names if f"[{name}-" in test or f"-{name}-" in test), None)
        if owner is None:
            continue
        if any(case.find(tag) is not None for tag in ("failure", "error")):
            outcomes[owner].append(test)
        elif case.find("skipped") is None:
            passed[owner] += 1
    return {name: [*failed, f"{passed[name]}"] for name, failed in outcomes.items()}


def report(found: dict[str, dict[str, str]], outcomes: dict[str, list[str]]) -> int:
    width = max(len(client.name) for client in CLIENT_TABLE)
    for client in CLIENT_TABLE:
        if client.name not in outcomes:
            continue
        *failed, passed = outcomes[client.name]
        changes = []
        for name in client.packages:
            old, new = VERSIONS[client.kind][name], found[client.kind][name]
            kept = "the system's Chromium" if client.kind == "browser" else "newest"
            changes.append(f"{name} {old}" + (f" → {new}" if new != old else f" ({kept})"))
        verdict = (
            f"FAIL ({len(failed)} of {len(failed) + int(passed)})"
            if failed
            else f"pass ({passed})"
            if int(passed)
            else "FAIL (nothing ran)"
        )
        print(f"{client.name.ljust(width)}  {verdict.ljust(18)}  {', '.join(changes)}")
        for test in failed[:10]:
            print(f"{' ' * width}    {test}")
    return int(any(len(lines) > 1 or lines[-1] == "0" for lines in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())

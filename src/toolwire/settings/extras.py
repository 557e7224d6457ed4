"""Shell commands that fit this installation: to add an extra, and to run Toolwire itself.

If this Toolwire did not come from a package index, the commands never install a package called `toolwire`
from an index, because that may be another program.

- pip and pipx add packages to an environment, so their commands name the packages of the extra.
- `uvx`, `uv tool` and `pipx run` build the environment again, so their commands name this Toolwire: the exact
  version from an index, or the wheel, folder or repository that `direct_url.json` records.
- For a container image, the command builds the image again with the extra.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from importlib.metadata import Distribution

DEVELOPMENT = frozenset({"test", "lint", "dist", "docs", "lock"})
"""Extras for work on Toolwire itself."""
IMAGE_MARK = "built-by-dockerfile"
"""The file with which the Dockerfile marks the environment of its image."""
_EXTRA = re.compile(r"""\bextra\s*==\s*["']([\w.-]+)["']""")
_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class Installation:
    """How this Toolwire was installed."""

    kind: str
    """`image`, `uvx`, `uv tool`, `pipx`, `pipx run`, `uv` (an environment without pip), `system` or `pip`."""
    python: str
    folder: str = ""
    """The checkout from which the code runs; "" if it does not run from a checkout."""
    source: str = ""
    """The URL of the installed wheel, folder or repository; "" if Toolwire came from an index."""
    available: bool = True
    """False if `source` is a path on this machine that no longer exists."""
    name: str = "toolwire"
    """The name of the environment, which pipx needs."""
    version: str = ""
    extras: dict[str, list[str]] = field(default_factory=dict)
    """The requirements of each extra, by name."""
    present: tuple[str, ...] = ()
    """Extras whose packages are all installed."""

    def requirement(self, extras: Iterable[str] = ()) -> str:
        """Returns a requirement that names this Toolwire, with its present extras and the new ones."""
        names = sorted({*self.present, *extras})
        name = f"toolwire[{','.join(names)}]" if names else "toolwire"
        return f"{name} @ {self.source}" if self.source else f"{name}=={self.version}"

    def add(self, extra: str) -> str:
        """Returns the shell command that adds an extra, or an instruction if no command is known."""
        if self.folder:
            return shlex.join([*self._pip(), "-e", f"{_shown(self.folder)}[{extra}]"])
        if self.kind == "image":
            names = ",".join(sorted({*self.present, extra}))
            return f"TOOLWIRE_EXTRAS={names} docker compose up --build --detach"
        if self.kind in ("uvx", "pipx run"):
            return self.run(_subcommand(), [extra])
        if self.kind == "uv tool" and self.available:
            return shlex.join(["uv", "tool", "install", "--force", self.requirement([extra])])
        if extra in self.extras:
            return self.add_packages(self.extras[extra])
        return f"install the packages of Toolwire's extra {extra!r} for {_shown(self.python)}"

    def add_packages(self, packages: Iterable[str]) -> str:
        """Returns the shell command that adds packages."""
        if self.kind in ("uvx", "pipx run"):
            with_each = [word for one in packages for word in ("--with", one)]
            return shlex.join([*self._runner(), *with_each, "toolwire", _subcommand()])
        if self.kind == "pipx":
            return shlex.join(["pipx", "inject", self.name, *packages])
        return shlex.join([*self._pip(), *packages])

    def run(self, arguments: str, extras: Iterable[str] = ()) -> str:
        """Returns the shell command that runs `toolwire ARGUMENTS` again."""
        if self.kind in ("uvx", "pipx run"):
            return f"{shlex.join([*self._runner(extras), 'toolwire'])} {arguments}"
        script = Path(self.python).with_name("toolwire")
        if not script.is_file():
            return f"{shlex.join([_shown(self.python), '-m', 'toolwire'])} {arguments}"
        found = shutil.which("toolwire")
        if found is not None and os.path.realpath(found) == os.path.realpath(script):
            return f"toolwire {arguments}"
        return f"{shlex.quote(_shown(str(script)))} {arguments}"

    def _runner(self, extras: Iterable[str] = ()) -> list[str]:
        words = ["uvx", "--from"] if self.kind == "uvx" else ["pipx", "run", "--spec"]
        return [*words, self.requirement(extras)]

    def _pip(self) -> list[str]:
        python = _shown(self.python)
        if self.kind in ("uv", "uv tool"):
            return ["uv", "pip", "install", "--python", python]
        words = [python, "-m", "pip", "install"]
        return [*words, "--break-system-packages"] if self.kind == "system" else words


def installation() -> Installation:
    """Returns how the running Toolwire was installed."""
    from importlib import metadata  # takes 20 ms to import

    prefix = Path(sys.prefix)
    python = sys.executable or "python3"
    folder = Path(__file__).parents[3]
    checkout = str(folder) if (folder / "pyproject.toml").is_file() else ""
    try:
        distribution = metadata.distribution("toolwire")
    except metadata.PackageNotFoundError:
        return Installation(_kind(prefix), python, checkout)
    origin = _origin(distribution)
    path = _path(origin)
    extras = _extras(distribution)
    return Installation(
        kind=_kind(prefix),
        python=python,
        folder=checkout,
        source=_source(origin),
        available=not path or os.path.exists(path),
        name=prefix.name,
        version=distribution.version,
        extras=extras,
        present=tuple(one for one, packages in extras.items() if all(map(_present, packages))),
    )


def add_extra(extra: str) -> str:
    """Returns the shell command that adds an extra to this installation, or an instruction."""
    return installation().add(extra)


def add_packages(*packages: str) -> str:
    """Returns the shell command that adds packages to this installation."""
    return installation().add_packages(packages)


def own_command(arguments: str) -> str:
    """Returns the shell command that runs `toolwire ARGUMENTS` from this installation."""
    return installation().run(arguments)


def _kind(prefix: Path) -> str:
    if (prefix / IMAGE_MARK).is_file():
        return "image"
    if (prefix / "uv-receipt.toml").is_file():
        return "uv tool"
    if (prefix / "pipx_metadata.json").is_file():
        return "pipx" if prefix.parent.name == "venvs" else "pipx run"
    if prefix.parent.name.startswith(("archive-v", "environments-v")):  # uv's cache
        return "uvx"
    if util.find_spec("pip") is None:
        return "uv"
    managed = Path(os.__file__).with_name("EXTERNALLY-MANAGED").is_file()
    return "system" if sys.prefix == sys.base_prefix and managed else "pip"


def _origin(distribution: Distribution) -> dict[str, Any]:
    try:
        value = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _path(origin: dict[str, Any]) -> str:
    """Returns the path of a `file:` URL, or ""."""
    parts = urlsplit(str(origin.get("url", "")))
    return unquote(parts.path) if parts.scheme == "file" else ""


def _source(origin: dict[str, Any]) -> str:
    """Returns the URL with which a requirement names this Toolwire; "" if `origin` has no URL.

    `origin`: the content of `direct_url.json`.
    """
    url = str(origin.get("url", ""))
    vcs = origin.get("vcs_info")
    if url and vcs:
        url = f"{vcs.get('vcs', 'git')}+{url}@{vcs.get('requested_revision') or vcs.get('commit_id', '')}"
    subdirectory = origin.get("subdirectory")
    return f"{url}#subdirectory={subdirectory}" if url and subdirectory else url


def _extras(distribution: Distribution) -> dict[str, list[str]]:
    """Returns the requirements of each extra that is for users."""
    found: dict[str, list[str]] = {}
    for line in distribution.requires or ():
        requirement, _, marker = line.partition(";")
        for extra in _EXTRA.findall(marker):
            if extra not in DEVELOPMENT:
                found.setdefault(extra, []).append(requirement.strip())
    return found


def _present(requirement: str) -> bool:
    from importlib import metadata

    name = _NAME.match(requirement)
    try:
        return bool(name and metadata.version(name.group()))
    except metadata.PackageNotFoundError:
        return False


def _shown(path: str) -> str:
    """Returns the path relative to the working directory if it is inside, otherwise unchanged."""
    try:
        return os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else path
    except OSError:  # the working directory no longer exists
        return path


def _subcommand() -> str:
    """Returns the subcommand with which this process was started; `serve` if there is none."""
    return sys.argv[1] if len(sys.argv) > 1 and sys.argv[1].isalpha() else "serve"

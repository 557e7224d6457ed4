"""Builds and runs an image without Docker: a Debian root in namespaces, and the steps of a Dockerfile in it.

debootstrap creates the root, which takes minutes. So an archive of the root is kept in the user's cache
folder, for all checkouts. The steps of the Dockerfile can reach the network. Programs that are started later
have only a loopback interface of their own, so that a server may listen on all addresses.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolwire-tests"
SUITES = {"debian:12-slim": "bookworm", "debian:13-slim": "trixie"}
PROGRAMS = ("debootstrap", "chroot", "nsenter", "setpriv", "tar", "unshare")
NEW_NETWORK = 0x40000000  # CLONE_NEWNET
LOOPBACK_UP = (
    "import fcntl, socket, struct, sys\n"
    "up = struct.pack('16sh', b'lo', 0x49)\n"
    "fcntl.ioctl(socket.socket(), 0x8914, up)\n"  # SIOCSIFFLAGS
    "print('ready', flush=True)\n"
    "sys.stdin.read()\n"
)
T = TypeVar("T")


def missing() -> str:
    """Returns what this machine lacks to run a Debian root, or ""."""
    if programs := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"{', '.join(programs)} is missing; `make test` tries to install it"
    if os.geteuid() != 0:
        return "only root can create a Debian root"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True
    )
    return f"namespaces are not allowed here: {tried.stderr.strip()}" if tried.returncode else ""


# --- the Debian root ---


def base(image: str) -> Path:
    """Returns the archive of a fresh Debian root, which debootstrap makes once."""
    suite = SUITES[image]
    archive = CACHE / f"{suite}.tar"
    if not archive.exists():
        root = CACHE / f"{suite}-{os.getpid()}"
        CACHE.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run(
                ["debootstrap", "--variant=minbase", suite, root], check=True, capture_output=True, text=True
            )
            partial = archive.with_suffix(f".{os.getpid()}")
            subprocess.run(["tar", "-C", root, "-cf", partial, "."], check=True)
            partial.rename(archive)
        finally:
            shutil.rmtree(root, ignore_errors=True)
    return archive


class Machine:
    """A Debian root in memory, with its own processes and mounts, which all end with it."""

    def __init__(self, folder: Path, image: str) -> None:
        archive, here = base(image), shlex.quote(str(folder))
        folder.mkdir()
        # The shell becomes process 1. It is in a network of its own and ends with the tests.
        script = (
            f"mount -t tmpfs tmpfs {here} && tar -C {here} -xpf {shlex.quote(str(archive))} && "
            f"mount -t proc proc {here}/proc && "
            f"exec unshare --net {shlex.quote(sys.executable)} -c {shlex.quote(LOOPBACK_UP)}"
        )
        self._process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None and self._process.stdout.readline() == "ready\n"
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        self._first = int(children.read_text())
        self._folder = folder
        self.root = Path(f"/proc/{self._first}/root{folder}")
        """The root as this process sees it."""
        self._inside = ThreadPoolExecutor(1, initializer=self._enter_network)

    def close(self) -> None:
        self._inside.shutdown()
        self._process.communicate("")

    def _enter_network(self) -> None:
        with open(f"/proc/{self._first}/ns/net") as network:
            assert ctypes.CDLL(None).setns(network.fileno(), NEW_NETWORK) == 0

    def bind(self, source: Path, target: str) -> None:
        """Mounts a folder of this machine at a path of the root, as a cache mount does."""
        source.mkdir(parents=True, exist_ok=True)
        (self.root / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
        script = 'mountpoint -q "$1" || mount --bind "$0" "$1"'
        enter = ["nsenter", f"--target={self._first}", "--mount"]
        subprocess.run([*enter, "sh", "-c", script, source, f"{self._folder}{target}"], check=True)

    def inside(self, call: Callable[..., T], *arguments: object) -> T:
        """Calls a function in a thread that is in the network of the root."""
        return self._inside.submit(call, *arguments).result(100)

    def beside(self, command: Sequence[str]) -> list[str]:
        """Returns a command that runs a program of this machine in the network of the root."""
        return ["nsenter", f"--target={self._first}", "--net", "--pid", *command]

    def command(
        self, words: Sequence[str], user: str, folder: str, *, network: bool, limits: Sequence[str] = ()
    ) -> list[str]:
        """Returns the command that runs `words` in the root."""
        own = ["--net"] if not network else []
        found = re.search(rf"(?m)^{user}:[^:]*:(\d+):(\d+):", (self.root / "etc/passwd").read_text())
        assert found, f"{user} is not a user of the image"
        privileges = ["--reuid", found[1], "--regid", found[2], "--clear-groups", *limits]
        changed = ["sh", "-c", 'cd "$0" && exec "$@"', folder, *words]
        return [
            *("nsenter", f"--target={self._first}", "--mount", "--pid", *own, "chroot", str(self._folder)),
            *("setpriv", *privileges, "--", *changed),
        ]


@contextmanager
def machine(root: Path, image: str) -> Iterator[Machine]:
    made = Machine(root, image)
    try:
        yield made
    finally:
        made.close()


# --- the Dockerfile ---


@dataclass
class Image:
    """What a Dockerfile says about its image, and how its containers start."""

    base: str = ""
    user: str = "root"
    folder: str = "/"
    environment: dict[str, str] = field(
        default_factory=lambda: {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    )
    volumes: list[str] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


def steps(text: str) -> list[tuple[str, str]]:
    """Returns the instructions of a Dockerfile: a name and the rest of its logical line."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    logical = [line.strip() for line in lines.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.split()[0], line.split(None, 1)[1]) for line in logical]


def context(folder: Path) -> list[str]:
    """Returns the top-level names that `.dockerignore` leaves in the build context.

    `.dockerignore` ignores everything, except for the names after `!`.
    """
    lines = [
        line for line in (folder / ".dockerignore").read_text().splitlines() if line[:1] not in ("", "#")
    ]
    assert lines[0] == "*"
    return [line[1:] for line in lines if line.startswith("!")]


def build(machine: Machine, folder: Path, arguments: Mapping[str, str] | None = None) -> Image:
    """Runs the steps of the Dockerfile in `folder`, as `docker build` does."""
    image, passed = Image(), dict(arguments or {})
    known = {"PATH": image.environment["PATH"]}
    for name, rest in steps((folder / "Dockerfile").read_text()):
        value = _expanded(rest, image.environment) if name in ("ENV", "USER", "WORKDIR", "EXPOSE") else rest
        if name == "FROM":
            assert not image.base, "only one stage is understood"
            image.base = rest
        elif name == "ARG":
            variable, _, default = rest.partition("=")
            known[variable] = passed.pop(variable, default)
        elif name == "ENV":
            variable, _, content = value.partition("=")
            image.environment[variable] = known[variable] = content
        elif name == "RUN":
            _run(machine, image, known, rest)
        elif name == "COPY":
            _copy(machine, image, folder, rest.split())
        elif name == "WORKDIR":
            image.folder = value
            if not (machine.root / value.lstrip("/")).exists():
                (machine.root / value.lstrip("/")).mkdir(parents=True)
        elif name == "USER":
            image.user = value
        elif name == "VOLUME":
            image.volumes.append(rest)
        elif name == "EXPOSE":
            image.ports.append(int(value))
        elif name == "HEALTHCHECK":
            image.healthcheck = json.loads(rest.partition("CMD ")[2])
        elif name in ("ENTRYPOINT", "CMD"):
            setattr(image, {"ENTRYPOINT": "entrypoint", "CMD": "command"}[name], json.loads(rest))
        else:
            raise AssertionError(f"the test does not understand {name}")
    assert not passed, f"the Dockerfile has no ARG {', '.join(passed)}"
    return image


def _expanded(text: str, known: Mapping[str, str]) -> str:
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda found: known[found[1] or found[2]], text)


def _copy(machine: Machine, image: Image, folder: Path, words: list[str]) -> None:
    *sources, target = words
    into = machine.root / os.path.join(image.folder, target).lstrip("/")
    for source in sources:
        assert source in context(folder), f".dockerignore hides {source}"
        if (folder / source).is_dir():
            hidden = shutil.ignore_patterns("__pycache__")
            shutil.copytree(folder / source, into, dirs_exist_ok=True, ignore=hidden)
        else:
            shutil.copy(folder / source, into)


def _run(machine: Machine, image: Image, known: Mapping[str, str], rest: str) -> None:
    """Runs a step with this machine's settings for the network, as Docker does."""
    mounts = []
    while (option := rest.split()[0]).startswith("--"):
        found = re.fullmatch(r"--mount=type=cache,target=(\S+)", option)
        assert found, f"the test does not understand {option}"
        mounts.append(found[1])
        rest = rest.removeprefix(option).strip()
    for number, target in enumerate(mounts):
        machine.bind(CACHE / f"mount-{number}", target)
    shutil.copy("/etc/resolv.conf", machine.root / "etc" / "resolv.conf")
    names = re.compile(r"(PIP_.*|\w*_proxy)", re.IGNORECASE)
    environment = {name: value for name, value in os.environ.items() if names.fullmatch(name)}
    if certificates := environment.get("PIP_CERT"):
        shutil.copy(certificates, machine.root / "run" / "certificates.crt")
        environment["PIP_CERT"] = "/run/certificates.crt"
    command = machine.command(["sh", "-c", rest], image.user, image.folder, network=True)
    done = subprocess.run(
        command,
        env={**environment, **known, "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"RUN {rest}\n{done.stdout[-3000:]}"


# --- the compose file ---


def composed(file: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """Reads a compose file with its variables filled in, as `docker compose` does."""
    import yaml  # type: ignore[import-untyped]

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(one) for name, one in value.items()}
        if isinstance(value, list):
            return [filled(one) for one in value]
        return re.sub(r"\$\{(\w+)(:[-?])([^}]*)\}", fill, value) if isinstance(value, str) else value

    def fill(found: re.Match[str]) -> str:
        name, kind, rest = found.groups()
        assert variables.get(name) or kind == ":-", f"required variable {name} is missing a value: {rest}"
        return variables.get(name) or rest

    services = filled(yaml.safe_load(file.read_text()))
    assert isinstance(services, dict)
    return services

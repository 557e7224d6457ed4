"""Toolwire's own Codex home: a private folder with a config.toml of ours, the patched model catalog, and the person's login by a link.

- The person's own home is never written. Where the option `home` names one, its login is used, nothing else.
- The login (auth.json) is linked, never copied, never read, never logged; with another provider than OpenAI's it is not linked at all.
- Files are written atomically and are readable by the person alone.
- Codex logs what tools answered into databases of its own: they lie in a scratch folder per process, in memory where the system has such a place, and
  are removed with the process.
- A fresh home must be warmed by one process before others start: `warming` lets one in at a time, also of several gateways.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from toolwire.backends.agents.processes import in_memory, private_folder
from toolwire.backends.codex.config import ANY_MODEL, MODEL_DROPPED, MODEL_PATCH, config_toml, patched_catalog
from toolwire.backends.codex.options import CodexOptions, Features, Version, features_of, parse_version
from toolwire.core.errors import ToolwireError

COMMAND_S = 20.0
LEFT_OVER_S = 3600.0
SCRATCH = "toolwire-codex-"
PASSED_ON = (
    "PATH",
    "HOME",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
)
"""What Codex gets to see of our environment, beside its home and its provider's key."""
INSTALL = "npm install -g @openai/codex"


@dataclass(frozen=True, slots=True)
class CodexHome:
    """A prepared home, and the binary that it was prepared for."""

    path: Path
    binary: str
    version: Version
    features: Features
    env: Mapping[str, str]

    @property
    def cwd(self) -> Path:
        """The empty folder that threads live in."""
        return self.path / "empty"

    @asynccontextmanager
    async def warming(self) -> AsyncIterator[None]:
        """Only one process at a time starts in this home."""
        with open(self.path / ".toolwire.lock", "w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(0.05)
            yield


def scratch() -> Path:
    """A fresh private folder for one process's databases; those of gateways that were killed are swept away."""
    return private_folder(SCRATCH, in_memory())


def find_binary(options: CodexOptions) -> str:
    """The command's path, or a clear error."""
    found = shutil.which(os.path.expanduser(options.bin))
    if found is None:
        raise ToolwireError(
            "backend_unavailable",
            f"Codex is not installed: the command {options.bin!r} was not found. Install it with: {INSTALL}",
        )
    return os.path.abspath(found)


def home_path(options: CodexOptions, binary: str) -> tuple[Path, Path]:
    """Toolwire's home for Codex, and the person's own, whose login is used. Codex reads its config anew for every thread, so that models with
    different providers must not share a home."""
    own = Path(os.environ.get("CODEX_HOME") or "~/.codex").expanduser().absolute()
    parent = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "toolwire" / "codex"
    if options.home:
        wanted = Path(options.home).expanduser().absolute()
        if wanted == own or _is_foreign(wanted):
            own = wanted
        else:
            parent = wanted
    facts = json.dumps([binary, options.provider, str(own)], sort_keys=True)
    return parent.absolute() / hashlib.sha256(facts.encode()).hexdigest()[:16], own


def environment(options: CodexOptions, path: Path) -> dict[str, str]:
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    env["CODEX_HOME"] = str(path)
    key = (options.provider or {}).get("env_key", "")
    if key and key in os.environ:
        env[key] = os.environ[key]
    return env


async def prepare_home(options: CodexOptions) -> CodexHome:
    """Finds the binary and its version, and writes the home for them."""
    binary = find_binary(options)
    path, own = home_path(options, binary)
    env = environment(options, path)
    try:
        for folder in (path, path / "empty"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
        output = await command(binary, "--version", env=env)
        version = parse_version(output)
        if version is None:
            raise ToolwireError(
                "backend_unavailable", f"{options.bin!r} does not say which version of Codex it is."
            )
        features = features_of(version)
        home = CodexHome(path, binary, version, features, env)
        catalog = await _catalog(options, home) if features.model_catalog else ""
        write(path / "config.toml", config_toml(options, version, home=str(path), catalog=catalog))
        _link_login(path, own, needed=options.provider is None)
        _sweep(path)
    except OSError as error:
        raise ToolwireError(
            "backend_unavailable", f"Codex's home {path} cannot be prepared: {error.strerror or error}"
        ) from error
    return home


def write(path: Path, text: str) -> None:
    """The whole file or nothing, readable by its owner alone."""
    with suppress(FileNotFoundError):
        if path.read_text("utf-8") == text:
            return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _is_foreign(path: Path) -> bool:
    """Whether this is someone's own Codex home."""
    return (path / "config.toml").exists() or (path / "auth.json").exists()


def _sweep(path: Path) -> None:
    """Removes conversations that a killed process has left on disk; older versions of Codex write them there."""
    before = time.time() - LEFT_OVER_S
    for folder in ("sessions", "archived_sessions"):
        for file in (path / folder).rglob("rollout-*"):
            with suppress(OSError):
                if file.stat().st_mtime < before:
                    file.unlink()


def _link_login(path: Path, own: Path, needed: bool) -> None:
    link, target = path / "auth.json", own / "auth.json"
    if link.is_symlink():
        if needed and os.readlink(link) == str(target):
            return
        link.unlink()
    if (
        needed and not link.exists()
    ):  # also before the person has logged in: the link leads there as soon as they have
        link.symlink_to(target)


async def _catalog(options: CodexOptions, home: CodexHome) -> str:
    """The path of the patched model catalog; empty where this Codex does not tell its own."""
    foreign = options.provider is not None
    facts = json.dumps([MODEL_PATCH, MODEL_DROPPED, ANY_MODEL, foreign], sort_keys=True)
    path = home.path / f"models-{home.version}-{hashlib.sha256(facts.encode()).hexdigest()[:8]}.json"
    if not path.exists():
        try:
            catalog = json.loads(await command(home.binary, "debug", "models", "--bundled", env=home.env))
            write(path, json.dumps(patched_catalog(catalog, foreign)))
        except (ToolwireError, ValueError, KeyError, TypeError):
            return ""
    return str(path)


async def command(binary: str, *words: str, env: Mapping[str, str]) -> str:
    """What a short command prints."""
    process = await asyncio.create_subprocess_exec(
        binary,
        *words,
        env=dict(env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(COMMAND_S):
            output, errors = await process.communicate()
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if isinstance(error, TimeoutError):
            raise ToolwireError(
                "backend_unavailable", f"codex {' '.join(words)} did not answer within {COMMAND_S:g} s."
            ) from None
        raise
    if process.returncode != 0:
        said = errors.decode("utf-8", "replace").strip().splitlines()
        raise ToolwireError(
            "backend_unavailable",
            f"codex {' '.join(words)} failed: {said[-1] if said else f'exit status {process.returncode}'}",
        )
    return output.decode("utf-8", "replace")

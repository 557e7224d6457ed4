"""Starts an agent: its command, environment, files, private folder and process."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolwire.backends.acp.profiles import AcpOptions, AgentProfile
from toolwire.backends.agents.processes import PASSED_ON, Child, Lines, private_folder
from toolwire.core.errors import unavailable
from toolwire.emulate.arguments import load_object

LOOPBACK = "127.0.0.1,localhost"
PREFIX = "toolwire-acp-"


@dataclass(frozen=True, slots=True)
class Launch:
    """The command, environment and files of an agent.

    `secrets`: values that no message may contain.
    """

    command: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]
    secrets: frozenset[str]


def find(options: AcpOptions, profile: AgentProfile) -> str:
    program = os.path.expanduser(options.command[0])
    found = shutil.which(program, path=options.env.get("PATH"))
    if found is None:
        how = f" Install it with: {profile.install}" if profile.install else ""
        problem = f"{profile.title} is not installed: the command {program!r} was not found.{how}"
        raise unavailable(problem)
    return os.path.abspath(found)


def launch(
    options: AcpOptions,
    profile: AgentProfile,
    program: str,
    home: str,
    tmp: str,
    environ: Mapping[str, str],
    tools: Sequence[str] = (),
) -> Launch:
    """Returns how to start the agent, without starting it.

    `home` and `tmp` are the agent's private folders; `tools` are the names of the client's tools. If a
    setting of the operator would enable the agent's own tools, Toolwire's value overrides it.
    """
    env = {name: environ[name] for name in PASSED_ON if name in environ}
    env |= {"HOME": home, "TMPDIR": tmp}
    env |= {name: value.format(home=home) for name, value in profile.environment.items()}
    env |= options.env
    for name in ("NO_PROXY", "no_proxy"):  # the MCP server with the client's tools is on loopback
        env[name] = ",".join(filter(None, (env.get(name, ""), LOOPBACK)))
    command = [program, *options.command[1:], *profile.arguments]
    config: dict[str, Any] = {}
    where, words = profile.model_by
    if options.model and where == "arguments":
        command += [word.format(model=options.model) for word in words]
    elif options.model and where == "environment":
        env[words[0]] = options.model
    elif options.model and where == "config":
        config[words[0]] = options.model
    if profile.config is not None:
        variable, ours = profile.config
        theirs = without(_json_variable(variable, options.env), profile.config_dropped)
        env[variable] = json.dumps(merged(theirs, {**ours, **config}))
    files = {
        f"{home}/{path}": json.dumps(_for_each(content, tools)) for path, content in profile.files.items()
    }
    secrets = frozenset(value for value in options.env.values() if len(value) >= 8)
    return Launch(tuple(command), env, files, secrets)


def _for_each(value: Any, tools: Sequence[str]) -> Any:
    """Replaces each list entry that contains {tool} by one entry per tool."""
    if isinstance(value, Mapping):
        return {key: _for_each(one, tools) for key, one in value.items()}
    if not isinstance(value, list):
        return value
    patterns = [one for one in value if isinstance(one, str) and "{tool}" in one]
    repeated = [pattern.replace("{tool}", tool) for pattern in patterns for tool in tools]
    return [one for one in value if one not in patterns] + repeated


def _json_variable(name: str, env: Mapping[str, str]) -> dict[str, Any]:
    value = load_object(env.get(name) or "{}")
    if value is None:
        raise unavailable(f"env.{name} of the model is not a JSON object.")
    return value


def merged(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Merges two nested tables. A value in `ours` overrides the one in `theirs`.

    The keys of `ours` come last in the result, because in some agents the last rule decides.
    """
    out = {key: value for key, value in theirs.items() if key not in ours}
    for key, value in ours.items():
        other = theirs.get(key)
        if isinstance(other, Mapping) and isinstance(value, Mapping):
            value = merged(other, value)
        out[key] = value
    return out


def without(given: Mapping[str, Any], dropped: Sequence[str]) -> dict[str, Any]:
    """Returns the table without the keys at the paths in `dropped`, such as `a`, `a.b` or `a.*.b`."""
    out = dict(given)
    for path in dropped:
        head, _, rest = path.partition(".")
        for key in list(out) if head == "*" else [head] if head in out else []:
            if not rest:
                del out[key]
            elif isinstance(out[key], Mapping):
                out[key] = without(out[key], (rest,))
    return out


class Workspace:
    """A session's private folder: home, temporary files, and an empty working folder.

    The home contains links to the person's login files, which Toolwire does not read. `close` removes the
    folder. If the agent has replaced a link with a new file, `close` first copies this file to the person's
    login file.
    """

    def __init__(self, cwd: str = "") -> None:
        self.path = private_folder(PREFIX, Path(tempfile.gettempdir()))
        self.home, self.tmp = self.path / "home", self.path / "tmp"
        self.cwd = Path(cwd).expanduser().absolute() if cwd else self.path / "work"
        for folder in (self.home, self.tmp, self.path / "work"):
            folder.mkdir(mode=0o700)
        self._links: list[tuple[Path, Path]] = []

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = Path(name)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            path.chmod(0o600)

    def link(self, files: Sequence[str], own: Path) -> None:
        for name in files:
            target, link = own / name, self.home / name
            if target.is_file():
                link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                link.symlink_to(target)
                self._links.append((link, target))

    def close(self) -> None:
        for link, target in self._links:
            with suppress(OSError):
                if link.is_file() and not link.is_symlink():
                    shutil.copyfile(link, target)
        shutil.rmtree(self.path, ignore_errors=True)


class AgentProcess(Child):
    """An agent's process, as a transport of the ACP package.

    Call `start` first. Always call `end` at the end.
    """

    LOG = logging.getLogger("toolwire.acp")
    END = ((0.5, signal.SIGTERM), (1.5, signal.SIGKILL), (5.0, signal.SIGKILL))

    def __init__(self, launch: Launch, title: str, on_message: Callable[[], None] = lambda: None) -> None:
        super().__init__(title, launch.secrets)
        self._launch = launch
        self._on_message = on_message
        self._lines = Lines()
        self._messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def start(self, cwd: str) -> None:
        try:
            await self._spawn(*self._launch.command, env=self._launch.env, guarded=True, cwd=cwd)
        except OSError as error:
            problem = f"{self.title} could not be started: {error.strerror or error}"
            raise unavailable(problem) from error

    async def send(self, message: dict[str, Any]) -> None:
        self._write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        return await self._messages.get()

    async def close(self) -> None:
        """Does nothing. The ACP package calls this method, but only `end` ends the process."""

    def _read(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if not isinstance(message, dict) or not isinstance(message.get("method", ""), str):
                continue
            if "method" in message or "id" in message:
                self._on_message()
                self._messages.put_nowait(message)

    def _over(self) -> None:
        self._messages.put_nowait(None)

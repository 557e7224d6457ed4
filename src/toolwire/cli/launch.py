"""`toolwire launch CLIENT`: starts an installed coding agent, set up to use the gateway.

The setup is for this one process; the client's configuration files are not changed. If no gateway runs,
`launch` starts one in the background, with a temporary key, and ends it when the client ends.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import secrets
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from toolwire.cli.launchers import BY_ID, KEY_VARIABLE, LAUNCHERS, Launcher, Setup, Target
from toolwire.cli.open import chosen
from toolwire.cluster.running import RunningServer, ask, data_folder, request, running
from toolwire.settings.load import load, secret
from toolwire.settings.types import ConfigError, Settings, is_loopback
from toolwire.surfaces.tables import table
from toolwire.surfaces.web.clients import OPEN_KEY

START_S = 120.0
STOP_S = 10.0
LOG, LARGEST_LOG = "launch.log", 1 << 20
HIDDEN = "********"
LAST_CHOICE = ("local", "scripted")
"""Backends whose models are the default only if no other backend has a model, in order of preference."""
FORWARDED = (signal.SIGTERM, signal.SIGHUP)
AT_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Signals that the terminal also sends to the client."""


def launch_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("client", nargs="?", metavar="CLIENT", help=f"{', '.join(BY_ID)}; without CLIENT: list them")
    add("--model", metavar="M", help="the model; default: the first that is neither embedded nor scripted")
    add("--print", action="store_true", help="show the command and its environment, and start nothing")
    add("--url", metavar="URL", help="the gateway's address; default: the running gateway, or a new one")
    key = f"the gateway's key, as env:NAME or file:PATH; default: {KEY_VARIABLE}, or server.keys"
    add("--key", metavar="K", help=key)
    add("arguments", nargs="*", metavar="-- ARGS", help="arguments for the client")
    parse = parser.parse_known_args

    def parsed(given: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Passes all words after "--" to the client. argparse alone would parse some of them."""
        words = list(given or ())
        at = words.index("--") if "--" in words else len(words)
        found, others = parse(words[:at], namespace)
        found.arguments = [*found.arguments, *words[at + 1 :]]
        return found, others

    parser.parse_known_args = parsed  # type: ignore[method-assign, assignment]


def run_launch(arguments: argparse.Namespace) -> int:
    if arguments.client is None:
        rows = [(one.id, one.title, one.path or f"not installed: {one.install}") for one in LAUNCHERS]
        print("\n".join(table([("CLIENT", "NAME", "COMMAND"), *rows])))
        return 0
    launcher = BY_ID.get(arguments.client)
    if launcher is None:
        raise ConfigError(f"launch: there is no client {arguments.client!r}; known: {', '.join(BY_ID)}")
    if launcher.path is None and not arguments.print:
        raise ConfigError(f"{launcher.title} is not installed; install it with: {launcher.install}")
    with tempfile.TemporaryDirectory(prefix="toolwire-launch-") as folder:
        gateway = _found(arguments)
        if gateway is None and arguments.print:
            gateway = Gateway("http://127.0.0.1:PORT", "THROWAWAY", ["MODEL"], secret=False)
            note = "no gateway runs: launch would start one on a free port, and stop it when the client ends"
            print(f"# {note}", file=sys.stderr)
        if gateway is not None:
            return _launched(launcher, arguments, gateway, Path(folder))
        with _started(arguments.config) as gateway:
            return _launched(launcher, arguments, gateway, Path(folder))


def _launched(launcher: Launcher, arguments: argparse.Namespace, gateway: Gateway, folder: Path) -> int:
    model = arguments.model or gateway.default_model(launcher)
    if arguments.model and not gateway.offers(arguments.model):
        close = get_close_matches(arguments.model, gateway.models, 1)
        hint = f"; did you mean {close[0]}?" if close else "; toolwire models lists them"
        said = f"the gateway lists no model {arguments.model}{hint}"
        if gateway.kinds and "/" not in arguments.model:
            raise ConfigError(said)
        # Not an error: this may be a model of a server, or an alias of a gateway on another machine.
        print(f"toolwire: {said}", file=sys.stderr)
    setup = launcher.setup(Target(gateway.root, model, gateway.models, gateway.key, folder), os.environ)
    environment = {**setup.environment, **_without_proxy(gateway.root)}
    command = [launcher.path or launcher.command, *setup.arguments, *arguments.arguments]
    if arguments.print:
        shown = _shown(setup, environment, command)
        print(shown.replace(gateway.key, HIDDEN) if gateway.secret else shown)
        return 0
    setup.write(folder)
    kept = {name: value for name, value in os.environ.items() if name not in environment}
    return run_client(
        command, {**kept, **{name: value for name, value in environment.items() if value is not None}}
    )


def _without_proxy(root: str) -> dict[str, str]:
    """Returns the variables that keep requests to this machine from being sent to a proxy."""
    names = ("http_proxy", "https_proxy", "all_proxy")
    if not is_loopback(urlsplit(root).hostname or "") or not any(
        os.environ.get(name) or os.environ.get(name.upper()) for name in names
    ):
        return {}
    others = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    both = ",".join(filter(None, (others, "127.0.0.1,localhost,::1")))
    return {"NO_PROXY": both, "no_proxy": both}


def _shown(setup: Setup, environment: Mapping[str, str | None], command: Sequence[str]) -> str:
    """Returns the setup as shell commands, with the temporary files as comments."""
    removed = [name for name, value in environment.items() if value is None]
    lines = [f"unset {' '.join(removed)}"] if removed else []
    lines += [
        f"export {name}={shlex.quote(value)}" for name, value in environment.items() if value is not None
    ]
    lines += [f"# temporary file {name}: {text}" for name, text in setup.files.items()]
    lines += [f"# temporary file {name}: a copy of {source}" for name, source in setup.copies.items()]
    lines += [f"# temporary link {name} to {target}" for name, target in setup.links.items()]
    return "\n".join([*lines, shlex.join(command)])


# --- the gateway


@dataclass(slots=True)
class Gateway:
    """A gateway that has answered. `secret`: whether its key must not be shown."""

    root: str
    key: str
    models: list[str]
    secret: bool = True
    kinds: dict[str, str] = field(default_factory=dict)
    """The backend of each model, if the gateway runs on this machine."""
    aliases: Sequence[str] = ()

    def learn(self, server: RunningServer) -> None:
        """Asks a gateway on this machine for facts that its list of models does not contain."""
        answer = ask(server) or {}
        self.kinds, self.aliases = answer.get("models", {}), answer.get("aliases", ())

    def offers(self, model: str) -> bool:
        return model in self.models or any(fnmatchcase(model, pattern) for pattern in self.aliases)

    def default_model(self, launcher: Launcher) -> str:
        """Returns the id of the model that the client uses without --model.

        This is the first model whose backend is not in `LAST_CHOICE`. If there is none, it is a model of the
        first backend in `LAST_CHOICE` that has a model. Returns "" if an alias of the gateway matches
        `launcher.own_models`: the client then requests models by its own names.
        """
        own = launcher.own_models
        if own and any(fnmatchcase(own, pattern) for pattern in self.aliases):
            return ""
        if not self.models:
            raise ConfigError(f"the gateway at {self.root} offers no model; toolwire doctor shows why")

        def rank(model: str) -> int:
            kind = self.kinds.get(model, "scripted" if model == "demo" else model)
            return LAST_CHOICE.index(kind) + 1 if kind in LAST_CHOICE else 0

        return min(self.models, key=rank)


def _found(arguments: argparse.Namespace) -> Gateway | None:
    """Returns the gateway at --url.

    Without --url, returns the gateway that runs on this machine, or None if none runs.
    """
    if arguments.url:
        root = arguments.url.rstrip("/").removesuffix("/v1")
        if urlsplit(root).scheme not in ("http", "https") or not urlsplit(root).hostname:
            raise ConfigError(f"--url: expected an address such as http://127.0.0.1:8788, got {root}")
        return _connected(root, _named_keys(arguments))
    server = chosen([one for one in running() if not one.temporary], arguments.config, None)
    if server is None:
        return None
    settings = _settings(arguments.config)
    keys = [*_named_keys(arguments), *(settings.server.keys if settings is not None else ())]
    gateway = _connected(server.url, keys)
    gateway.learn(server)
    return gateway


def _settings(config: str | None) -> Settings | None:
    try:
        return load(config, os.environ, {}, exposed=False)
    except ConfigError:
        return None


def _named_keys(arguments: argparse.Namespace) -> list[str]:
    if arguments.key:
        return [secret(arguments.key, "--key", os.environ) or arguments.key]
    return [os.environ[KEY_VARIABLE]] if os.environ.get(KEY_VARIABLE) else []


def _connected(root: str, keys: Sequence[str]) -> Gateway:
    """Connects to the gateway, first without a key, then with each key until the gateway accepts one."""
    for key in (None, *keys):
        status, value = _models(root, key)
        if status == 200:
            return Gateway(root, key or OPEN_KEY, _ids(value), secret=key is not None)
        if status not in (401, 403):
            raise ConfigError(
                f"the gateway at {root} answered with HTTP {status} to a request for its models"
            )
    if keys:
        raise ConfigError(f"the gateway at {root} refuses the key; name another with --key or {KEY_VARIABLE}")
    new = "toolwire keys add NAME creates one"
    raise ConfigError(f"the gateway at {root} needs a key: use --key or {KEY_VARIABLE}; {new}")


def _models(root: str, key: str | None) -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        status, raw = request(f"{root}/v1/models", headers=headers, timeout_s=30)
        return status, json.loads(raw)
    except (OSError, http.client.HTTPException) as error:
        from toolwire.backends.openai.failures import connection_error

        reason = connection_error(error)
        raise ConfigError(f"the gateway at {root} cannot be reached: {reason}; is it running?") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"the server at {root} is not a Toolwire gateway") from None


def _ids(value: Any) -> list[str]:
    rows = value.get("data") if isinstance(value, dict) else None
    return [str(row["id"]) for row in rows or () if isinstance(row, dict) and "id" in row]


@contextmanager
def _started(config: str | None) -> Iterator[Gateway]:
    """Starts a gateway on a free loopback port, with a temporary key, and ends it afterwards.

    The gateway reads from the pipe `--lifeline`. If this process is killed, the pipe closes and the gateway
    ends.
    """
    settings = load(config, os.environ, {}, exposed=False)
    key = secrets.token_urlsafe(24)
    environment = {
        **os.environ,
        "TOOLWIRE_SERVER__KEYS": json.dumps([*settings.server.keys, key]),
        "TOOLWIRE_SERVER__TLS_CERT": "",
        "TOOLWIRE_SERVER__TLS_KEY": "",
        "TOOLWIRE_SERVER__DRAIN_S": "2",
    }
    theirs, ours = os.pipe()
    command = [sys.executable, "-m", "toolwire", "serve", "--host", "127.0.0.1", "--port", "0"]
    command += ["--lifeline", str(theirs), *(["--config", config] if config else [])]
    with _log() as log:
        begin, path = log.tell(), log.name
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=(theirs,),
            start_new_session=True,  # Ctrl-C must not reach the gateway
        )
        os.close(theirs)
    try:
        root = _ready(child, Path(path), begin)
        print(f"toolwire: started a gateway at {root}/v1 for this client; its log: {path}", file=sys.stderr)
        gateway = Gateway(root, key, _ids(_models(root, key)[1]), secret=False)
        own = next((one for one in running() if one.pid == child.pid), None)
        if own is not None:
            gateway.learn(own)
        yield gateway
    finally:
        child.terminate()
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        os.close(ours)
        if child.stdout is not None:
            child.stdout.close()


@contextmanager
def _log() -> Iterator[Any]:
    """Opens the log of the gateways that `launch` starts, emptied if it is larger than `LARGEST_LOG`."""
    path = data_folder() / LOG
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        if path.exists() and path.stat().st_size > LARGEST_LOG:
            flags |= os.O_TRUNC
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise ConfigError(f"{path}: the log cannot be written: {error.strerror}") from None
    with open(path, "a", encoding="utf-8", opener=lambda *_: descriptor) as file:
        yield file


def _ready(child: subprocess.Popen[bytes], log: Path, begin: int) -> str:
    """Waits until the gateway listens, and returns its address. Raises an error if it cannot start."""
    assert child.stdout is not None
    deadline, line = time.monotonic() + START_S, b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([child.stdout], [], [], left)[0]:
            raise ConfigError(f"the gateway did not start within {START_S:g} s; its log: {log}")
        piece = os.read(child.stdout.fileno(), 4096)
        if not piece:
            said = log.read_bytes()[begin:].decode("utf-8", "replace").strip().splitlines()
            reason = said[-1].removeprefix("toolwire: ") if said else f"its log is {log}"
            raise ConfigError(f"the gateway could not start: {reason}")
        line += piece
    return line.decode().partition("listening on ")[2].strip().removesuffix("/v1")


# --- the client


def run_client(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the client in this terminal and returns its exit status.

    This process ignores Ctrl-C and Ctrl-\\, because the terminal also sends them to the client. It passes the
    signals in `FORWARDED` on to the client.
    """
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def passed_on(number: int, frame: FrameType | None) -> None:
        if child is not None:
            child.send_signal(number)
        else:
            early.append(number)

    def ignored(number: int, frame: FrameType | None) -> None:
        """Does nothing. The handler is not SIG_IGN, because the client would inherit SIG_IGN."""

    handlers = {**dict.fromkeys(FORWARDED, passed_on), **dict.fromkeys(AT_TERMINAL, ignored)}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        try:
            child = subprocess.Popen(command, env=dict(environment))
        except OSError as error:
            raise ConfigError(f"{command[0]} cannot be started: {error.strerror}") from None
        for number in early:
            child.send_signal(number)
        status = child.wait()
        return status if status >= 0 else 128 - status
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

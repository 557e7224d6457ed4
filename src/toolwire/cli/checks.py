"""The checks of `toolwire doctor`, which runs them in the order of `CHECKS`.

A check is quick, changes nothing and sends no request to a model.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from toolwire.backends.openai.discover import trouble
from toolwire.core.display import counted
from toolwire.settings.discover import KEYS, SERVERS, address, is_key, key_in
from toolwire.settings.extras import add_extra
from toolwire.settings.types import ConfigError, Settings
from toolwire.settings.values import noted
from toolwire.store.engine import first_line

if TYPE_CHECKING:
    from toolwire.backends.base import Backend
    from toolwire.gateway.catalog import Catalog

Mark = Literal["ok", "missing", "problem"]
MODEL_S = 15.0
LISTEN_S = 1.0
SHOWN = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check. `text`: what the check found. `fix`: what to do, often a command."""

    subject: str
    mark: Mark
    text: str
    fix: str = ""


def ok(subject: str, text: str) -> Finding:
    return Finding(subject, "ok", text)


def missing(subject: str, text: str, fix: str = "") -> Finding:
    return Finding(subject, "missing", text, fix)


def problem(subject: str, text: str, fix: str = "") -> Finding:
    return Finding(subject, "problem", text, fix)


Findings = AsyncIterator[Finding]
OWN_CHECK = ("local", "codex", "cursor", "acp")
"""Backends for which `CHECKS` has a separate check."""


async def _configured(settings: Settings) -> Findings:
    """Checks whether each model in the settings could answer a request now."""
    from toolwire.gateway.catalog import Catalog

    catalog = Catalog(settings.models)
    try:
        for model in settings.models:
            if reason := catalog.unavailable.get(model.id):
                fix = f"correct [models.{model.id}] in {model.where or 'the settings'}"
                fix = f"set the variable, or {fix}" if "environment variable" in reason else fix
                yield problem(f"model {model.id}", reason, fix)
        ids = [id for id in (*catalog.models, *catalog.sources) if catalog.kind(id) not in OWN_CHECK]
        for finding in await asyncio.gather(*(_model(catalog, id, catalog.models.get(id)) for id in ids)):
            yield finding
    finally:
        await catalog.close()


async def _model(catalog: Catalog, id: str, backend: Backend | None) -> Finding:
    """Checks one model of the settings.

    In the settings, `model = "*"` means all models of a server. `backend` is then None, and the check lists
    the models of the server.
    """
    subject, kind = f"model {id}", catalog.kind(id)
    try:
        async with asyncio.timeout(MODEL_S):
            if lacks := catalog.lacking(id):
                return problem(subject, *lacks)
            options = (catalog.sources[id] if backend is None else backend).options  # type: ignore[union-attr]
            if kind == "openai" and (wrong := await trouble(options, getattr(backend, "model", ""))):
                return problem(subject, *wrong)
            if backend is None:
                return ok(subject, f"{kind}, {_listed(id, await catalog.sources[id].names())}")
            await backend.prepare()
            about = f"{kind}, tools: {backend.strategy}"
            fix = "look into the log of the model's server"
            return (
                ok(subject, about) if await backend.ready() else problem(subject, f"{about}: not ready", fix)
            )
    except TimeoutError:
        return problem(subject, f"no answer within {MODEL_S:g} s", "start its server again")
    except Exception as error:
        return problem(subject, first_line(error), "correct its settings, or start its server")


def _of_backend(settings: Settings, backend: str) -> dict[str, Any]:
    """Returns the options of all models with this backend. The keys have the form "model ID"."""
    from toolwire.backends.registry import check

    models = (one for one in settings.models if one.backend == backend and not one.problem)
    return {f"model {one.id}": check(backend, one.options) for one in models}


def _listed(id: str, names: Sequence[str]) -> str:
    shown = ", ".join(f"{id}/{name}" for name in names[:SHOWN])
    return f"{counted(len(names), 'model')}: {shown}{', …' if len(names) > SHOWN else ''}"


async def _codex(settings: Settings) -> Findings:
    """Checks Codex for every model that uses it. If no model does, checks the Codex on PATH."""
    from toolwire.backends.codex import CodexOptions, inspect

    models = _of_backend(settings, "codex")
    absent = problem if models else missing
    for subject, options in (models or {"codex": CodexOptions()}).items():
        facts = await inspect(options)
        about = f"codex {facts['version']}, tools: {facts['strategy']}"
        if not facts["installed"]:
            text = f"the command {options.bin!r} was not found"
            yield absent(subject, text, "npm install -g @openai/codex")
        elif facts["logged_in"] is False:
            yield absent(subject, f"{about}, not logged in", "codex login")
        elif facts["problem"]:
            yield absent(subject, facts["problem"], "correct the model's setting bin, or install Codex again")
        else:
            yield ok(subject, f"{about}, {'logged in' if facts['logged_in'] else 'uses another provider'}")


async def _local(settings: Settings) -> Findings:
    """Checks every model that uses the embedded backend. If there is none, checks the downloaded model."""
    from toolwire.backends.local.model import LocalOptions, key_of, lacking

    models = _of_backend(settings, "local")
    absent = problem if models else missing
    for subject, options in (models or {"embedded model": LocalOptions()}).items():
        if lacks := lacking(options):
            yield absent(subject, *lacks)
        elif not _is_gguf(file := key_of(options)[0]):
            yield problem(
                subject, f"{file} is not a GGUF file that you can read", "correct the model's setting gguf"
            )
        else:
            yield ok(subject, f"{os.path.basename(file)}, tools: constrained")


def _is_gguf(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False


async def _servers(settings: Settings) -> Findings:
    """Looks for model servers on this machine."""
    for finding in await asyncio.gather(*(_server(*row) for row in SERVERS)):
        yield finding


async def _server(id: str, profile: str, variable: str) -> Finding:
    from toolwire.backends.openai.backend import OpenAISource, answers
    from toolwire.backends.openai.profiles import PROFILES
    from toolwire.core.errors import ToolwireError

    known = PROFILES[profile]
    base_url = address(os.environ.get(variable, ""), known.base_url)
    if not await answers(base_url, LISTEN_S):
        fix = f"start {known.title}, or set {variable} to its address"
        return missing(known.title, f"nothing answers at {base_url}", fix)
    try:
        names = await OpenAISource(id, {"profile": profile, "base_url": base_url, "model": "*"}).names()
    except ToolwireError:
        return problem(known.title, f"{base_url} answers, but has no model", "pull or load a model there")
    return ok(known.title, _listed(id, names))


async def _keys(settings: Settings) -> Findings:
    """Looks for API keys in the environment."""
    for id, variables, backend, _ in KEYS:
        found, key = key_in(os.environ, variables)
        if not found:
            yield missing(id, f"no key: {' or '.join(variables)} is not set")
        elif not is_key(key):
            yield problem(
                id,
                f"{found} is set, but contains a character that a key cannot contain",
                f"set {found} again",
            )
        elif backend == "hosted" and importlib.util.find_spec("pydantic_ai") is None:
            library = f"{found} is set, but the provider library is not installed"
            yield problem(id, library, add_extra("hosted"))
        else:
            yield ok(id, f"{found} is set; its models are offered as {id}/NAME")


async def _cursor(settings: Settings) -> Findings:
    """Checks Cursor for every model that uses it. If no model does, checks the installed Cursor bridge."""
    from toolwire.backends.cursor import CursorOptions, inspect

    models = _of_backend(settings, "cursor")
    for subject, options in (models or {"Cursor": CursorOptions()}).items():
        facts = await inspect(options)
        if facts["problem"]:
            reason, _, fix = facts["problem"].partition(" Install it with: ")
            fix = fix or "set the key, or correct the model's settings"
            yield (problem if models or facts["key"] else missing)(subject, reason, fix)
        else:
            yield ok(subject, f"bridge at {facts['path']}, tools: parked")


async def _agents(settings: Settings) -> Findings:
    """Starts the ACP agents of models in the settings. Looks for other agents only on PATH."""
    from toolwire.backends.acp import inspect
    from toolwire.backends.acp.profiles import PROFILES

    for subject, options in _of_backend(settings, "acp").items():
        try:
            async with asyncio.timeout(MODEL_S):
                title, failed = await inspect(options)
        except TimeoutError:
            title, failed = "", f"{options.command[0]} does not answer as an ACP agent within {MODEL_S:g} s"
        if failed:
            reason, _, fix = failed.partition(" Install it with: ")
            yield problem(subject, reason, fix or "install the agent, or correct the model's setting command")
        else:
            yield ok(subject, f"{title}, tools: parked")
    for profile in PROFILES.values():
        if not profile.start:
            continue
        title, command = f"{profile.title} (ACP)", profile.start
        if shutil.which(command[0]):
            yield ok(
                title, f'{command[0]} is installed; to use it, set backend = "acp", command = {list(command)}'
            )
        else:
            yield missing(title, f"the command {command[0]!r} was not found", profile.install)


async def _vault(settings: Settings) -> Findings:
    """Checks the folder of notes if the settings enable the vault."""
    if not settings.vault.enabled:
        fix = "set vault.root and vault.enabled, or name a folder: toolwire chat --vault DIR"
        yield missing("vault", "no vault is enabled", fix)
        return
    root = os.path.expanduser(settings.vault.root)
    try:
        os.scandir(root).close()
    except OSError as error:
        fix = "create the folder, or correct vault.root"
        yield problem("vault", f"{root or 'vault.root'} cannot be read: {error.strerror or error}", fix)
    else:
        yield ok("vault", f"{root}, for the models {', '.join(settings.vault.models) or '(none)'}")


async def _mcp(settings: Settings) -> Findings:
    """Checks the settings, the programs and the rules of MCP servers, without starting the servers.

    A rule is a problem if it has no effect on any tool that the person last agreed to.
    """
    from toolwire.tools.mcp.known import known_tools
    from toolwire.tools.mcp.policy import Policy

    if settings.mcp.servers and importlib.util.find_spec("mcp_types") is None:
        yield missing(
            "mcp", "MCP servers are configured, but the extra mcp is not installed", add_extra("mcp")
        )
    for server in settings.mcp.servers:
        subject, table = f"mcp {server.name}", f"[mcp.{server.name}] in {server.where or 'the settings'}"
        try:
            policy = Policy.of(server)
        except ConfigError as error:
            yield problem(subject, str(error).removeprefix(f"[mcp.{server.name}] "), f"correct {table}")
            continue
        program = server.command[0] if server.command else ""
        paths = os.environ.get("PATH"), server.env.get("PATH")
        here = os.path.join(server.folder, program)  # a relative path is relative to the server's folder
        if server.problem:
            yield problem(subject, server.problem, f"correct {table}")
        elif program and not any((*(shutil.which(program, path=one) for one in paths), shutil.which(here))):
            yield problem(subject, f"there is no program {program}", f"install it, or correct {table}")
        else:
            tools = await asyncio.to_thread(known_tools, settings.store.url, server.source)
            for line in policy.dead(tools) if tools else ():
                yield problem(subject, f"a rule has no effect: {line}", f"correct {table}")
            known = f"{counted(len(tools), 'known tool')}, " if tools else ""
            yield ok(subject, f"{known}not started here; toolwire mcp list starts it")


async def _address(settings: Settings) -> Findings:
    """Checks what `toolwire serve` checks before it listens.

    This is the address, the port, the TLS files, the trusted proxies, and the settings for several nodes.
    """
    from toolwire.access.gate import Proxies
    from toolwire.cluster.nodes import check
    from toolwire.settings.load import check_exposure
    from toolwire.surfaces.http.server import base_url, bind, tls_files

    server = settings.server
    wrong: list[str] = []
    with noted(wrong):
        check_exposure(server)
    with noted(wrong):
        check(settings)
    with noted(wrong):
        Proxies(server.trusted_proxies)
    with noted(wrong):
        tls_files(server)
    for line in wrong:
        yield problem("server", line, f"correct [server] in {settings.file or 'the settings'}")
    try:
        for each in bind(server.host, server.port):
            each.close()
    except ConfigError as error:
        if "another Toolwire" in str(error):
            yield ok("address", f"a Toolwire runs at {base_url(server.host, server.port)}")
        else:
            fix = "stop that program, or set another server.port" if "in use" in str(error) else ""
            yield problem("address", str(error), fix or "set another server.host or server.port")
    else:
        if not wrong:
            yield ok("address", f"{base_url(server.host, server.port)} is free")


async def _tracing(settings: Settings) -> Findings:
    """Checks the settings for traces, without sending one."""
    from toolwire.observe.tracing import tracing_of

    if tracing := tracing_of(settings):
        await tracing.close()
        yield ok("tracing", "traces are sent to the collector in telemetry.otlp")


async def _notices(settings: Settings) -> Findings:
    """Checks the settings of each notice, without sending a message.

    A notice informs a phone or a webhook that a call waits for approval.
    """
    from toolwire.cli.notices import warnings

    for notice in settings.notices:
        subject = f"notice {notice.name}"
        if notice.problem:
            yield problem(subject, notice.problem, f"correct [notices.{notice.name}] in {notice.where}")
            continue
        wrong = await warnings(settings, notice)
        for text, fix in wrong:
            yield problem(subject, text, fix)
        if not wrong:
            how = f"toolwire notices test {notice.name} sends a test message"
            yield ok(subject, f"{notice.kind}, level {notice.level}; {how}")


PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


async def _proxies(settings: Settings) -> Findings:
    """Checks the proxies in the environment. Values are not shown, because they may contain passwords."""
    for name in (one for variable in PROXY_VARIABLES for one in (variable, variable.lower())):
        text = os.environ.get(name, "").strip()
        try:
            url = urlsplit(text if "://" in text else f"http://{text}")
            valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
        except ValueError:
            valid = False
        if text and not (valid and " " not in text):
            fix = f"set {name} to http://HOST:PORT, or unset it"
            yield problem("proxy", f"{name} is not the address of an HTTP proxy", fix)


async def _store(settings: Settings) -> Findings:
    """Checks the store without creating or migrating it."""
    from toolwire.core.errors import ToolwireError
    from toolwire.store.store import Store

    try:
        yield ok("store", await asyncio.to_thread(Store(settings.store.url).check))
    except ToolwireError as error:
        fix = "make the file readable and writable for you, or set another store.url"
        if "store.url: " in str(error):
            fix = "correct store.url"
        elif not settings.store.url.startswith("sqlite:"):
            fix = "start PostgreSQL, or correct store.url"
        yield problem("store", str(error).removeprefix("store "), fix)


async def _redis(settings: Settings) -> Findings:
    """Checks whether the Redis in the settings answers."""
    from toolwire.cluster.nodes import connect

    if not settings.store.redis:
        return
    redis = connect(settings.store.redis)
    try:
        await redis.ping()
        yield ok("redis", "answers")
    except Exception as error:
        fix = "start Redis, or correct store.redis"
        yield problem("redis", f"store.redis cannot be reached: {first_line(error)}", fix)
    finally:
        await redis.aclose()


CHECKS: tuple[Callable[[Settings], Findings], ...] = (
    _configured,
    _local,
    _codex,
    _cursor,
    _agents,
    _servers,
    _keys,
    _mcp,
    _vault,
    _store,
    _redis,
    _tracing,
    _notices,
    _address,
    _proxies,
)

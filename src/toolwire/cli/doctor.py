"""`toolwire doctor`: what is there, what works, what is missing, and the command that fixes it.

Each check is a row of `CHECKS`. A check is quick, changes nothing of the user's and sends nothing to a model.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from toolwire.core.display import one_line
from toolwire.settings.discover import KEYS, SERVERS, address, is_key, key_in
from toolwire.settings.types import Settings

if TYPE_CHECKING:
    from toolwire.gateway.catalog import Catalog

Mark = Literal["ok", "missing", "problem"]
LOOK_S = 30.0
LISTEN_S = 1.0
SHOWN = 4
WIDEST = 1000


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `fix` is a command, or what to do in words."""

    subject: str
    mark: Mark
    told: str
    fix: str = ""


async def _configured(settings: Settings) -> list[Finding]:
    """The configured models: could each serve now?"""
    from toolwire.gateway.pipeline import Gateway

    out = []
    gateway = Gateway(settings)
    try:
        for id, backend in gateway.models.items():
            kind = gateway.catalog.kind(id)
            if kind in CLOSER:
                continue  # has a check of its own below
            try:
                await backend.prepare()
                ready = await backend.ready()
            except Exception as error:
                out.append(Finding(f"model {id}", "problem", _first_line(error)))
                continue
            told = f"{kind}, tools {backend.strategy}"
            down = Finding(f"model {id}", "problem", f"{told}: does not answer", _REPAIR.get(kind, ""))
            out.append(Finding(f"model {id}", "ok", told) if ready else down)
        for id in gateway.catalog.sources:
            if gateway.catalog.kind(id) not in CLOSER:
                out.append(await _source(gateway.catalog, id))
    finally:
        await gateway.close()
    return out


async def _source(catalog: Catalog, id: str) -> Finding:
    """A server with models of its own."""
    kind = catalog.kind(id)
    try:
        names = await catalog.sources[id].names()
    except Exception as error:
        return Finding(f"model {id}", "problem", _first_line(error), _REPAIR.get(kind, ""))
    return Finding(f"model {id}", "ok", f"{kind}, {_listed(id, names)}")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _of_backend(settings: Settings, backend: str) -> dict[str, Any]:
    """The options of every configured model with this backend."""
    from toolwire.backends.registry import check

    return {
        f"model {one.id}": check(backend, one.options) for one in settings.models if one.backend == backend
    }


def _listed(id: str, names: Sequence[str]) -> str:
    shown = ", ".join(f"{id}/{name}" for name in names[:SHOWN])
    return f"{len(names)} models: {shown}{', …' if len(names) > SHOWN else ''}"


CLOSER = ("local", "codex", "cursor", "acp")
_REPAIR = {"openai": "start its server, or correct base_url and api_key of the model"}


async def _codex(settings: Settings) -> list[Finding]:
    """Codex: every model that uses it, or the one on PATH."""
    from toolwire.backends.codex import CodexOptions

    models = _of_backend(settings, "codex") or {"codex": CodexOptions()}
    return [await _one_codex(subject, options) for subject, options in models.items()]


async def _one_codex(subject: str, options: Any) -> Finding:
    from toolwire.backends.codex import inspect

    facts = await inspect(options)
    if not facts["installed"]:
        mark: Mark = "problem" if subject != "codex" else "missing"
        return Finding(subject, mark, f"no command {options.bin!r}", "npm install -g @openai/codex")
    told = f"codex {facts['version']}, tools {facts['strategy']}"
    if facts["logged_in"] is False:
        return Finding(subject, "problem", f"{told}, not logged in", "codex login")
    if facts["problem"]:
        return Finding(subject, "problem", f"{told}: {facts['problem']}")
    return Finding(subject, "ok", told + (", logged in" if facts["logged_in"] else ", another provider"))


async def _local(settings: Settings) -> list[Finding]:
    """The embedded model: every model that uses it, or the one that was pulled."""
    from toolwire.backends.local.model import LocalOptions, key_of, lacking

    models = _of_backend(settings, "local")
    mark: Mark = "problem" if models else "missing"
    return [
        Finding(subject, mark, *lacks)
        if (lacks := lacking(options))
        else Finding(subject, "ok", f"{os.path.basename(key_of(options)[0])}, tools constrained")
        for subject, options in (models or {"embedded model": LocalOptions()}).items()
    ]


async def _servers(settings: Settings) -> list[Finding]:
    """Servers of models on this machine."""
    return list(await asyncio.gather(*(_server(id, profile, variable) for id, profile, variable in SERVERS)))


async def _server(id: str, profile: str, variable: str) -> Finding:
    from toolwire.backends.openai.backend import OpenAISource, answers
    from toolwire.backends.openai.profiles import PROFILES
    from toolwire.core.errors import ToolwireError

    known = PROFILES[profile]
    base_url = address(os.environ.get(variable, ""), known.base_url)
    if not await answers(base_url, LISTEN_S):
        fix = f"start {known.title}, or set {variable} to its address"
        return Finding(known.title, "missing", f"nothing answers at {base_url}", fix)
    try:
        names = await OpenAISource(id, {"profile": profile, "base_url": base_url, "model": "*"}).names()
    except ToolwireError:
        told = f"{base_url} answers, but has no model"
        return Finding(known.title, "problem", told, "pull or load a model there")
    return Finding(known.title, "ok", _listed(id, names))


async def _keys(settings: Settings) -> list[Finding]:
    """Keys in the environment, and what they open."""
    out = []
    for id, variables, backend, _ in KEYS:
        found, key = key_in(os.environ, variables)
        if not found:
            out.append(Finding(id, "missing", f"no key: {' or '.join(variables)} is not set"))
        elif not is_key(key):
            told = f"{found} is set, but holds a character that no key has"
            out.append(Finding(id, "problem", told, f"set {found} again"))
        elif backend == "hosted" and importlib.util.find_spec("pydantic_ai") is None:
            told = f"{found} is set, but the provider library is not installed"
            out.append(Finding(id, "problem", told, "pip install 'toolwire[hosted]'"))
        else:
            out.append(Finding(id, "ok", f"{found} is set; its models are offered as {id}/NAME"))
    return out


async def _cursor(settings: Settings) -> list[Finding]:
    """Cursor: every model that uses it, or the bridge that is found."""
    from toolwire.backends.cursor import CursorOptions, inspect

    out = []
    for subject, options in (_of_backend(settings, "cursor") or {"Cursor": CursorOptions()}).items():
        facts = await inspect(options)
        wanted = subject != "Cursor" or facts["key"]
        if facts["problem"]:
            words, _, fix = facts["problem"].partition(" Install it with: ")
            out.append(Finding(subject, "problem" if wanted else "missing", words, fix))
        else:
            out.append(Finding(subject, "ok", f"bridge at {facts['path']}, tools parked"))
    return out


async def _agents(settings: Settings) -> list[Finding]:
    """Agents that speak ACP: every model that is one is started, those on PATH are only looked for."""
    from toolwire.backends.acp import inspect
    from toolwire.backends.acp.profiles import PROFILES

    out = []
    for subject, options in _of_backend(settings, "acp").items():
        title, problem = await inspect(options)
        words, _, fix = (problem or f"{title}, tools parked").partition(" Install it with: ")
        out.append(Finding(subject, "problem" if problem else "ok", words, fix))
    for profile in PROFILES.values():
        if not profile.start:
            continue
        title, command = f"{profile.title} (ACP)", profile.start
        if shutil.which(command[0]):
            told = f'{command[0]} is there; serve it with backend = "acp", command = {list(command)}'
            out.append(Finding(title, "ok", told))
        else:
            out.append(Finding(title, "missing", f"no command {command[0]!r}", profile.install))
    return out


async def _vault(settings: Settings) -> list[Finding]:
    """The folder of notes, where the settings enable one."""
    if not settings.vault.enabled:
        fix = "set vault.root and vault.enabled, or name a folder: toolwire chat --vault DIR"
        return [Finding("vault", "missing", "none is enabled", fix)]
    root = os.path.expanduser(settings.vault.root)
    try:
        os.scandir(root).close()
    except OSError as error:
        told = f"{root} cannot be read: {error.strerror or error}"
        return [Finding("vault", "problem", told, "make the folder, or correct vault.root")]
    return [Finding("vault", "ok", f"{root}, for {', '.join(settings.vault.models) or 'no model'}")]


async def _store(settings: Settings) -> list[Finding]:
    """Checks the store without creating or migrating it."""
    from toolwire.core.errors import ToolwireError
    from toolwire.store.store import Store

    try:
        return [Finding("store", "ok", await asyncio.to_thread(Store(settings.store.url).check))]
    except ToolwireError as error:
        return [Finding("store", "problem", str(error).removeprefix("store "))]


CHECKS: tuple[Callable[[Settings], Awaitable[list[Finding]]], ...] = (
    _configured,
    _local,
    _codex,
    _cursor,
    _agents,
    _servers,
    _keys,
    _vault,
    _store,
)


async def examine(settings: Settings) -> list[Finding]:
    """Every finding, in the order of the checks. A check that fails or takes too long is a finding."""
    out: list[Finding] = []
    for look in CHECKS:
        name = look.__name__.strip("_")
        try:
            async with asyncio.timeout(LOOK_S):
                out += await look(settings)
        except TimeoutError:
            out.append(Finding(name, "problem", f"no answer within {LOOK_S:g} s"))
        except Exception as error:
            out.append(Finding(name, "problem", f"{type(error).__name__}: {error}".splitlines()[0]))
    return out


def report(findings: list[Finding]) -> str:
    """The findings as text. Names and errors come from servers, so they are made safe for a terminal."""
    signs = {"ok": "✓", "missing": "–", "problem": "✗"}
    subjects = [one_line(finding.subject) for finding in findings]
    width = max(map(len, subjects), default=0)
    lines = []
    for subject, finding in zip(subjects, findings, strict=True):
        lines.append(f"{signs[finding.mark]} {subject.ljust(width)}  {one_line(finding.told, WIDEST)}")
        if finding.fix:
            lines.append(f"  {' ' * width}  → {one_line(finding.fix, WIDEST)}")
    return "\n".join(lines)

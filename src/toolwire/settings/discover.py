"""Finds models on this machine that the settings do not contain.

Each function in `LOOKS` is quick and sends no request to a model. A downloaded model comes first. The
small default model and the scripted demo are for trials and come last. The demo is always there.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

from toolwire.backends.registry import SHORTHANDS
from toolwire.settings.types import DEFAULT_MODELS, ModelSettings, Settings, is_loopback

LOOK_S = 1.0
Found = list[ModelSettings]
Environment = Mapping[str, str]

# Servers on this machine: id, profile, and the environment variable that may contain another address.
SERVERS = tuple((id, row.options["profile"], row.host) for id, row in SHORTHANDS.items() if row.host)

# Keys in the environment: id, variables (the first one that is set is used), backend, options.
KEYS: tuple[tuple[str, tuple[str, ...], str, dict[str, str]], ...] = (
    ("openai", ("OPENAI_API_KEY",), "openai", {"profile": "openai", "model": "*"}),
    *(
        (id, row.keys, row.backend, {**row.options, "model": f"{row.provider}:*" if row.provider else "*"})
        for id, row in SHORTHANDS.items()
        if row.keys
    ),
)


def embedded() -> Found:
    """Returns the downloaded models that run inside Toolwire, with the small default model last."""
    from toolwire.backends.local.pull import DEFAULT, MODELS, available

    better = [name for name in MODELS if name != DEFAULT and available(name)]
    found = [ModelSettings(MODELS[name].id, "local", {"gguf": name}) for name in better]
    return [*found, ModelSettings(MODELS[DEFAULT].id, "local")] if available(DEFAULT) else found


async def _embedded(environ: Environment) -> Found:
    return [model for model in embedded() if model.options]


async def _small(environ: Environment) -> Found:
    return [model for model in embedded() if not model.options]


async def _codex(environ: Environment) -> Found:
    """Finds Codex on PATH if it has a login. `doctor` checks whether the login still works."""
    home = Path(environ.get("CODEX_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".codex")
    found = shutil.which("codex", path=environ.get("PATH")) and (home / "auth.json").is_file()
    return [ModelSettings("codex", "codex")] if found else []


async def _servers(environ: Environment) -> Found:
    found = await asyncio.gather(*(_server(*row, environ) for row in SERVERS))
    return [one for one in found if one is not None]


async def _server(id: str, profile: str, variable: str, environ: Environment) -> ModelSettings | None:
    from toolwire.backends.openai.backend import answers
    from toolwire.backends.openai.profiles import PROFILES

    base_url = address(environ.get(variable, ""), PROFILES[profile].base_url)
    if not await answers(base_url, LOOK_S):
        return None
    return ModelSettings(id, "openai", {"profile": profile, "base_url": base_url, "model": "*"})


def address(named: str, default: str) -> str:
    """Returns the base URL for the value of a variable such as OLLAMA_HOST.

    The value may be a host, a host with a port, or a URL.
    """
    named = named.strip().rstrip("/")
    if not named:
        return default
    scheme, _, host = named.rpartition("://")
    if ":" not in host.rpartition("]")[2]:
        host += ":" + default.rpartition(":")[2].partition("/")[0]
    host = host.replace("0.0.0.0", "127.0.0.1")
    return f"{scheme or 'http'}://{host.partition('/')[0]}/v1"


def key_in(environ: Environment, variables: tuple[str, ...]) -> tuple[str, str]:
    """Returns the name and value of the first variable that is set, or two empty strings."""
    for name in variables:
        if key := environ.get(name, "").strip():
            return name, key
    return "", ""


def is_key(text: str) -> bool:
    """Returns whether the text can be a key: it must fit into an HTTP header."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


async def _keys(environ: Environment) -> Found:
    out = []
    for id, variables, backend, options in KEYS:
        _, key = key_in(environ, variables)
        if is_key(key) and (backend != "hosted" or importlib.util.find_spec("pydantic_ai") is not None):
            out.append(ModelSettings(id, backend, {**options, "api_key": key}, frozenset({"api_key"})))
    return out


async def _cursor(environ: Environment) -> Found:
    """Finds Cursor's models if there is a key, and a bridge (the program that runs Cursor's agents)."""
    from toolwire.backends.cursor import CursorOptions
    from toolwire.backends.cursor.options import find_bridge
    from toolwire.core.errors import ToolwireError

    if not environ.get("CURSOR_API_KEY"):
        return []
    try:
        find_bridge(CursorOptions(), environ)
    except ToolwireError:
        return []
    return [ModelSettings("cursor", "cursor", {"model": "*"})]


LOOKS: tuple[Callable[[Environment], Awaitable[Found]], ...] = (
    *(_embedded, _codex, _cursor, _servers, _keys),
    _small,
)


async def discover(environ: Environment | None = None) -> tuple[ModelSettings, ...]:
    """Returns the models that can be used on this machine without settings."""
    found = await asyncio.gather(*(look(os.environ if environ is None else environ) for look in LOOKS))
    return (*(model for models in found for model in models), *DEFAULT_MODELS)


def with_discovered(settings: Settings) -> Settings:
    """Returns the settings with the models that were found on this machine.

    If no model is configured, the found models replace `DEFAULT_MODELS`, unless `server.discover` is "off".
    If models are configured, the found models are added to them if the settings permit this (`beside`).
    """
    if settings.models is not DEFAULT_MODELS:
        look = beside(settings)
        found = [] if look is None else asyncio.run(_all(look))
        return replace(settings, models=(*settings.models, *found)) if found else settings
    if settings.server.discover == "off":
        return settings
    return replace(settings, models=tuple(replace(one, found=True) for one in asyncio.run(discover())))


Look = Callable[[], Awaitable[Found]]


async def _all(look: Look) -> Found:
    return await look()


def beside(settings: Settings) -> Look | None:
    """Returns a function that finds models to offer beside the configured models.

    Returns None if the settings do not permit this. With `discover = "auto"`, only a server for one person
    may offer such models: it listens on loopback and has no keys, trusted proxies or Redis. A found model is
    left out if a configured model has the same id or the same options.
    """
    server, configured = settings.server, settings.models
    shared = server.keys or server.admin_keys or server.trusted_proxies or settings.store.redis
    alone = is_loopback(server.host) and not shared
    if any(model.found for model in configured) or configured is DEFAULT_MODELS:
        return None  # no model is configured: `with_discovered` decides about found models
    if server.discover == "off" or (server.discover == "auto" and not alone):
        return None
    ids = {model.id for model in configured}
    same = [(model.backend, model.options) for model in configured]

    async def look() -> Found:
        found = [model for model in await discover() if model not in DEFAULT_MODELS and model.id not in ids]
        return [replace(model, found=True) for model in found if (model.backend, model.options) not in same]

    return look

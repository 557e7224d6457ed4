"""Creates the backend of a model from the settings in its table `[models.ID]`.

Each backend has its own class of options. A backend is imported only when a model needs it.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib import import_module
from typing import Any, Literal, Union, get_args, get_origin

from toolwire.backends.base import About, Backend, Source

# name → (module, options class, backend class)
BACKENDS: dict[str, tuple[str, str, str]] = {
    "scripted": ("toolwire.backends.scripted", "ScriptedOptions", "ScriptedBackend"),
    "codex": ("toolwire.backends.codex", "CodexOptions", "CodexBackend"),
    "openai": ("toolwire.backends.openai", "OpenAIOptions", "OpenAIBackend"),
    "acp": ("toolwire.backends.acp", "AcpOptions", "AcpBackend"),
    "cursor": ("toolwire.backends.cursor", "CursorOptions", "CursorBackend"),
    "hosted": ("toolwire.backends.hosted", "HostedOptions", "HostedBackend"),
    "local": ("toolwire.backends.local", "LocalOptions", "LocalBackend"),
}


@dataclass(frozen=True, slots=True)
class Shorthand:
    """A value of the setting `backend` that selects a backend and some of its options."""

    backend: str
    options: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    """Environment variables that are read if `api_key` is not set. The first one that is set has the key."""
    provider: str = ""
    """The provider that is added to `model` as a prefix, as in `PROVIDER:MODEL`."""
    host: str = ""
    """The environment variable that is read for the server's address if `base_url` is not set."""


def _server(profile: str, keys: tuple[str, ...] = (), host: str = "") -> Shorthand:
    return Shorthand("openai", {"profile": profile}, keys, host=host)


SHORTHANDS: dict[str, Shorthand] = {
    "ollama": _server("ollama", host="OLLAMA_HOST"),
    "lmstudio": _server("lmstudio", host="LMSTUDIO_HOST"),
    "openrouter": _server("openrouter", ("OPENROUTER_API_KEY",)),
    "vllm": _server("vllm"),
    "sglang": _server("sglang"),
    "llamacpp": _server("llamacpp"),
    "litellm": _server("litellm"),
    "anthropic": Shorthand("hosted", keys=("ANTHROPIC_API_KEY",), provider="anthropic"),
    "google": Shorthand("hosted", keys=("GEMINI_API_KEY", "GOOGLE_API_KEY"), provider="google"),
}

EVERY = "*"
"""The value of `model` that selects every model of a server. Each model gets the id `ID/NAME`."""

# backends whose servers offer several models: name → (module, source class)
SOURCES: dict[str, tuple[str, str]] = {
    "openai": ("toolwire.backends.openai.backend", "OpenAISource"),
    "hosted": ("toolwire.backends.hosted.backend", "HostedSource"),
    "cursor": ("toolwire.backends.cursor.backend", "CursorSource"),
}


class OptionError(ValueError):
    """An option that the backend does not accept. The message is one line."""


def _load(backend: str) -> tuple[Any, Any]:
    if backend not in BACKENDS:
        raise OptionError(f"unknown backend {backend!r}; known: {', '.join(BACKENDS)}")
    module, options, made = BACKENDS[backend]
    loaded = import_module(module)
    return getattr(loaded, options), getattr(loaded, made)


def check(backend: str, options: dict[str, Any]) -> Any:
    """Returns the settings of a model as the backend's options object.

    Raises an OptionError that names the wrong key.
    """
    kind, _ = _load(backend)
    known = {one.name: one for one in fields(kind)}
    hints = typing.get_type_hints(kind)
    for key in options:
        if key not in known:
            import difflib

            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise OptionError(f"unknown key {key!r}; {hint}")
    values = {key: _fitted(key, value, hints[key]) for key, value in options.items()}
    for name, one in known.items():
        if one.default is MISSING and one.default_factory is MISSING and name not in values:
            raise OptionError(f"the key {name!r} is missing")
    return kind.parse(values) if hasattr(kind, "parse") else kind(**values)


def _fitted(key: str, value: Any, hint: Any) -> Any:
    try:
        return fitted(value, hint)
    except OptionError as error:
        shown = repr(str(value)[:40]) if get_origin(hint) is Literal else _shown(value)
        raise OptionError(f"{key}: {error}, got {shown}") from None


_TYPE_NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}


def fitted(value: Any, hint: Any) -> Any:
    """Returns the value converted to the type `hint`. Raises an OptionError that says what is expected."""
    origin = get_origin(hint)
    if origin is Literal:
        if value not in get_args(hint):
            raise OptionError(f"expected one of {', '.join(map(str, get_args(hint)))}")
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in get_args(hint):
            return None
        return fitted(value, next(one for one in get_args(hint) if one is not type(None)))
    if origin is tuple:
        if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
            raise OptionError("expected a list of strings")
        return tuple(value)
    if origin is not None:
        if not isinstance(value, list if origin is list else dict):
            raise OptionError("expected a table")
        return value
    if hint is float and type(value) is int:
        value = float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)) or value != value:
        raise OptionError(f"expected {_TYPE_NAMES.get(hint, hint.__name__)}")
    return value


def _shown(value: Any) -> str:
    """Returns a phrase for the type of a value. The value itself is not shown, because it may be a secret."""
    return {
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "a table",
    }.get(type(value), "something else")


def lacking(backend: str, options: Any) -> tuple[str, str] | None:
    """Returns what a model lacks on this machine and how to get it; None if nothing is known to be missing.

    `options`: the result of `check`. Starts nothing and sends no request.
    """
    module, _, _ = BACKENDS[backend]
    look = getattr(import_module(module), "lacking", None)
    found: tuple[str, str] | None = None if look is None else look(options)
    return found


def about(backend: str, options: Any) -> About:
    """Returns what a person should know about a model. `options`: the result of `check`."""
    module, _, _ = BACKENDS[backend]
    look = getattr(import_module(module), "about", None)
    return About() if look is None else look(options)


def build(id: str, backend: str, options: dict[str, Any]) -> Backend:
    """Creates the backend of one configured model."""
    checked = check(backend, options)
    made: Backend = _load(backend)[1](id, checked)
    return made


def is_source(backend: str, options: dict[str, Any]) -> bool:
    """Returns True if these settings select all models of a server."""
    name = options.get("model")
    return backend in SOURCES and isinstance(name, str) and name.rpartition(":")[2] == EVERY


def build_source(id: str, backend: str, options: dict[str, Any]) -> Source:
    """Creates the `Source` for settings that select all models of a server."""
    check(backend, options)
    module, kind = SOURCES[backend]
    made: Source = getattr(import_module(module), kind)(id, options)
    return made

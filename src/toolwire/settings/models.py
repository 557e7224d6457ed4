"""Reads the tables `[models.ID]`: backends, shorthands, options, fallbacks.

A mistake in one model makes this model unavailable (`ModelSettings.problem`), so that the others can serve.
"""

from __future__ import annotations

import difflib
import importlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from toolwire.backends import registry
from toolwire.backends.registry import BACKENDS, SHORTHANDS
from toolwire.settings.discover import address, key_in
from toolwire.settings.types import ConfigError, ModelSettings
from toolwire.settings.values import NAMELESS, Given, check_known, convert, noted, read_text, resolve, shown


def read_models(
    given: Mapping[tuple[str, ...], Given], environ: Mapping[str, str], problems: list[str] | None
) -> tuple[ModelSettings, ...]:
    tables: dict[str, dict[str, Given]] = {}
    for path, entry in given.items():
        if path[0] == "models":
            tables.setdefault(path[1], {})[path[2]] = entry
    models: list[ModelSettings] = []
    for name, table in tables.items():
        with noted(problems):
            models.append(_model(name, table, environ))
    return _with_fallbacks(models)


def page_model(id: str, table: Mapping[str, Any], where: str, environ: Mapping[str, str]) -> ModelSettings:
    """Returns a model of the settings page, checked in the same way as a model in a settings file."""
    return _model(id, {key: Given(value, where) for key, value in table.items()}, environ)


def _model(name: str, table: dict[str, Given], environ: Mapping[str, str]) -> ModelSettings:
    """Returns a model. A mistake in its table is the model's `problem`."""
    where = next(iter(table.values())).where
    if not name.strip() or not name.isprintable():
        raise ConfigError(f"{where}: a model needs a printable name: [models.NAME]")
    whole, backend, fallback = table.pop("", None), table.pop("backend", None), table.pop("fallback", None)
    problems: list[str] = []
    kind, options, secret, others = "", {}, set[str](), ()
    with noted(problems):
        if whole is not None and not isinstance(whole.value, dict):
            raise ConfigError(f"expected a table [models.{name}], got {shown(whole.value)}")
        inner = next((key for key, entry in table.items() if _is_model(entry.value)), None)
        if backend is None and inner is not None:
            quoted = json.dumps(f"{name}.{inner}", ensure_ascii=False)
            raise ConfigError(f"a name with a dot needs quotes: write [models.{quoted}]")
        kind = _backend(backend)
    short = SHORTHANDS.get(kind)
    hints = _option_hints(short.backend if short else kind) if kind and _has_text(table) else {}
    for key, entry in table.items():
        value = _read_option(entry.value, hints.get(key)) if entry.text else entry.value
        options[key] = value  # if the secret is missing, the option keeps the reference to it
        with noted(problems):
            options[key], found = resolve(value, key, entry.folder, environ)
            if found:
                secret.add(key)
    with noted(problems):
        others = () if fallback is None else convert(replace(fallback, where=""), tuple[str, ...], "fallback")
    with noted(problems):
        if short is not None:
            kind = short.backend
            _expand(short, name, options, secret, environ)
        if not problems:
            _check_options(kind, options)
    problem = "; ".join(problems)
    return ModelSettings(name, kind, options, frozenset(secret), others, problem, where)


def _is_model(value: Any) -> bool:
    return isinstance(value, dict) and ("backend" in value or any(map(_is_model, value.values())))


def _backend(entry: Given | None) -> str:
    known = [*BACKENDS, *SHORTHANDS]
    if entry is None:
        raise ConfigError(f"backend is missing: one of {', '.join(known)}")
    if not isinstance(entry.value, str):
        raise ConfigError(f"backend: expected a string, got {shown(entry.value)}")
    check_known(entry.value, known, "", "backend")
    return entry.value


def _check_options(backend: str, options: dict[str, Any]) -> None:
    try:
        registry.check(backend, options)
    except ImportError as error:
        raise ConfigError(f"backend {backend} cannot be loaded: {error}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(" ".join(str(error).split())) from error


def _expand(
    short: registry.Shorthand,
    name: str,
    options: dict[str, Any],
    secret: set[str],
    environ: Mapping[str, str],
) -> None:
    """Adds the options that a shorthand implies. Options that are already set stay."""
    for key, value in short.options.items():
        options.setdefault(key, value)
    if short.host and environ.get(short.host) and "base_url" not in options:
        from toolwire.backends.openai.profiles import PROFILES

        options["base_url"] = address(environ[short.host], PROFILES[short.options["profile"]].base_url)
    named = options.get("model", "") or name
    if short.provider and isinstance(named, str) and not named.startswith(f"{short.provider}:"):
        options["model"] = f"{short.provider}:{named}"
    if short.keys and not {"api_key", "base_url", "headers"} & set(options):
        _, key = key_in(environ, short.keys)
        if not key:
            raise ConfigError(f"there is no key: set {' or '.join(short.keys)}, or api_key")
        options["api_key"] = key
        secret.add("api_key")


def _with_fallbacks(models: list[ModelSettings]) -> tuple[ModelSettings, ...]:
    """Returns the models. A model gets a `problem` if a fallback is unknown or leads back to the model."""
    known = {model.id: model for model in models}
    out = []
    for model in models:
        unknown = [id for id in model.fallback if id not in known and id.partition("/")[0] not in known]
        problem, fallback = model.problem, model.fallback
        if unknown:
            near = difflib.get_close_matches(unknown[0], known, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            problem, fallback = problem or f"fallback: there is no model {unknown[0] or NAMELESS}; {hint}", ()
        elif circle := _circle(model.id, known):
            problem = (
                problem or f"fallback: {' → '.join(circle)} leads back to {model.id}; remove one of them"
            )
            fallback = ()
        out.append(replace(model, problem=problem, fallback=fallback))
    return tuple(out)


def _circle(id: str, known: Mapping[str, ModelSettings]) -> list[str]:
    """Returns the path of fallbacks that leads from a model back to itself, or [] if there is none."""
    paths, seen = [[id]], set[str]()
    while paths:
        path = paths.pop()
        for other in known[path[-1]].fallback if path[-1] in known else ():
            if other == id:
                return [*path, id]
            if other not in seen:
                seen.add(other)
                paths.append([*path, other])
    return []


def _has_text(table: Mapping[str, Given]) -> bool:
    return any(entry.text for entry in table.values())


def _option_hints(backend: str) -> dict[str, Any]:
    """Returns the types of the backend's options, from its options class."""
    module, options, _ = BACKENDS[backend]
    return get_type_hints(getattr(importlib.import_module(module), options))


def _read_option(text: str, hint: Any) -> Any:
    """Converts text from the environment to the option's type.

    For types other than strings, booleans and numbers, a text that looks like JSON is parsed.
    """
    kinds = set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}
    if str in kinds or any(get_origin(kind) is Literal for kind in kinds):
        return text
    for kind in (bool, int, float):
        if kind in kinds:
            return read_text(text, kind)
    if re.fullmatch(r"\s*(\[.*\]|\{.*\}|true|false|-?\d+(\.\d+)?)\s*", text, re.DOTALL):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text

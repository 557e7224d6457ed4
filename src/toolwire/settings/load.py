"""Loads the settings: reads file and environment, checks every value, resolves secrets.

Each layer (file, `PROXY_…` variables of older proxies, `TOOLWIRE_…` variables, command line) is a dict of
`Given` values by path, such as ("server", "port"). A later layer overrides earlier ones. `TOOLWIRE_MODELS`
replaces the file's models, `TOOLWIRE_MODELS__ID` sets one model, `TOOLWIRE_MODELS__ID__KEY` one option.
"""

from __future__ import annotations

import difflib
import importlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from toolwire.backends import registry
from toolwire.backends.registry import BACKENDS
from toolwire.settings.types import (
    DEFAULT_MODELS,
    SECTIONS,
    ConfigError,
    ModelSettings,
    ServerSettings,
    Settings,
    is_loopback,
)

FILE_NAME = "toolwire.toml"
ENVIRONMENT_PREFIX = "TOOLWIRE_"
Key = tuple[str, ...]

TRUE = ("true", "1", "yes", "on")
FALSE = ("false", "0", "no", "off")


@dataclass(frozen=True, slots=True)
class Given:
    """A value and where it is written.

    `text`: whether it is a string that must still be converted to the type of its key.
    """

    value: Any
    where: str
    text: bool = False
    folder: Path | None = None


# --- flags of older proxies: environment name, path, meanings
#
# `meanings` translates the flag's values; None: the text is converted to the setting's type. Later rows
# override earlier ones, but a stop flag that is off stays off.

_SWITCH = {**dict.fromkeys(TRUE, "true"), **dict.fromkeys(FALSE, "false")}
_TAIL = {**dict.fromkeys(TRUE, "on"), **dict.fromkeys(FALSE, "off"), "auto": "auto"}
_STOP_MODE = {"burst": "burst", "first": "first"}
_STOP = {**dict.fromkeys(TRUE, "burst"), **dict.fromkeys(FALSE, "off"), **_STOP_MODE}

SEED_FLAGS: tuple[tuple[str, Key, dict[str, str] | None], ...] = (
    ("PROXY_STOP_AFTER_TOOLS", ("tools", "stop_after"), _STOP),
    ("PROXY_STOP_AFTER_TOOLS_MODE", ("tools", "stop_after"), _STOP_MODE),
    ("PROXY_STOP_AFTER_TOOLS_GRACE_MS", ("tools", "stop_grace_ms"), None),
    ("PROXY_SUPPRESS_TAIL_AFTER_TOOLS", ("tools", "suppress_tail"), _TAIL),
    ("PROXY_ENABLE_PARALLEL_TOOL_CALLS", ("tools", "parallel"), _SWITCH),
    ("PROXY_TOOL_BLOCK_MAX", ("tools", "max_calls"), None),
    ("PROXY_TOOL_BLOCK_DEDUP", ("tools", "dedup"), _SWITCH),
    ("PROXY_TOOL_BLOCK_DELIMITER", ("tools", "delimiter"), None),
    ("PROXY_OUTPUT_MODE", ("tools", "output_mode"), None),
    ("PROXY_API_KEY", ("server", "keys"), None),
    ("PORT", ("server", "port"), None),
    ("PROXY_HOST", ("server", "host"), None),
)


TABLES = [*SECTIONS, "models", "aliases"]
"""The tables of the settings file."""


def load(
    path: str | None, environ: Mapping[str, str], overrides: Mapping[str, Any], exposed: bool = True
) -> Settings:
    """Loads the settings. `path`: value of --config. `overrides`: such as {"server.port": 0}.

    `exposed`: raise if other machines could reach the server and it has no keys.
    """
    given: dict[Key, Given] = {}
    file = find_file(path, environ)
    if file is not None:
        given.update(_from_file(file))
    given.update(_from_seed_flags(environ))
    _add_environment(given, environ)
    _add_codex_flags(given, environ)
    for dotted, value in overrides.items():
        given[tuple(dotted.split("."))] = Given(value, "command line")
    sections = {name: _section(name, cls, given, environ) for name, cls in SECTIONS.items()}
    models = _models(given, environ) or DEFAULT_MODELS
    settings = Settings(
        **sections,
        models=models,
        aliases=_aliases(given, [model.id for model in models]),
        file=str(file.resolve()) if file is not None else "",
    )
    if exposed:
        check_exposure(settings.server)
    return settings


def find_file(path: str | None, environ: Mapping[str, str]) -> Path | None:
    """Returns the path of the settings file, or None if there is none.

    The order is: `--config`, TOOLWIRE_CONFIG, the working directory, the user's config directory.
    """
    for named, by in ((path, "--config"), (environ.get("TOOLWIRE_CONFIG"), "TOOLWIRE_CONFIG")):
        if named:
            file = Path(named).expanduser()
            if not file.is_file():
                raise ConfigError(f"{by}: there is no file {named}")
            return file
    candidates = [Path(FILE_NAME)]
    if environ.get("XDG_CONFIG_HOME"):
        candidates.append(Path(environ["XDG_CONFIG_HOME"], "toolwire", FILE_NAME))
    elif environ.get("HOME"):
        candidates.append(Path(environ["HOME"], ".config", "toolwire", FILE_NAME))
    return next((file for file in candidates if file.is_file()), None)


# --- layers


def _from_file(file: Path) -> dict[Key, Given]:
    try:
        document = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    out: dict[Key, Given] = {}
    folder = file.resolve().parent
    for section, table in document.items():
        _check_known(section, TABLES, str(file), "section")
        if not isinstance(table, dict):
            raise ConfigError(f"{file}: {section}: expected a table [{section}], got {_show(table)}")
        out.update(_flatten((section,), table, str(file), folder))
    return out


def _flatten(path: Key, table: Mapping[str, Any], where: str, folder: Path | None = None) -> dict[Key, Given]:
    """Returns the values of a table by path. Each option of a model has its own path."""
    if path != ("models",):
        return {(*path, key): Given(value, where, folder=folder) for key, value in table.items()}
    out: dict[Key, Given] = {}
    for model, options in table.items():
        name = f"models.{model}"
        if not isinstance(options, dict):
            raise ConfigError(f"{where}: {name}: expected a table [{name}], got {_show(options)}")
        out.update(_flatten(("models", model), options, where, folder))
    return out


def _from_seed_flags(environ: Mapping[str, str]) -> dict[Key, Given]:
    out: dict[Key, Given] = {}
    for name, path, meanings in SEED_FLAGS:
        text = environ.get(name, "").strip()
        if not text:
            continue
        if meanings is not None:
            if text.lower() not in meanings:
                expected = f"expected one of {', '.join(meanings)}"
                raise ConfigError(f"environment {name}: {expected}, got {_show(text)}")
            text = meanings[text.lower()]
        if name == "PROXY_STOP_AFTER_TOOLS_MODE" and path in out and out[path].value == "off":
            continue
        value: Any = text
        if name == "PROXY_API_KEY":
            value = [text]
        elif name == "PROXY_TOOL_BLOCK_DELIMITER":
            value = "\n\n" if text.lower() == "true" else environ[name].replace("\\n", "\n")
        out[path] = Given(value, f"environment {name}", text=isinstance(value, str))
    return out


CODEX_FLAGS = {"CODEX_BIN": "bin", "CODEX_HOME": "home", "CODEX_MODEL": "model"}


def _add_codex_flags(given: dict[Key, Given], environ: Mapping[str, str]) -> None:
    """Adds Codex's own variables to all its models.

    They override the file, but not `TOOLWIRE_…`.
    """
    backends = [path for path in given if path[0] == "models" and path[2] == "backend"]
    for _, model, _ in (path for path in backends if given[path].value == "codex"):
        for name, option in CODEX_FLAGS.items():
            path = ("models", model, option)
            own = path in given and given[path].where.startswith(f"environment {ENVIRONMENT_PREFIX}")
            if environ.get(name) and not own:
                given[path] = Given(environ[name], f"environment {name}", text=True)


def _add_environment(given: dict[Key, Given], environ: Mapping[str, str]) -> None:
    """Adds the `TOOLWIRE_…` variables. A single key overrides a whole table."""
    names = [name for name in environ if name.startswith(ENVIRONMENT_PREFIX)]
    for name in sorted(names, key=lambda n: (n.count("__"), n)):
        parts = name[len(ENVIRONMENT_PREFIX) :].split("__")
        section = parts[0].lower()
        where = f"environment {name}"
        if len(parts) == 1 and section not in TABLES:
            continue  # TOOLWIRE_CONFIG, TOOLWIRE_API_KEY and other variables of the user's
        _check_known(section, TABLES, where, "section")
        if len(parts) == 1:
            table = _json(environ[name], dict, "a JSON object", where)
            if section == "models":
                _remove(given, ("models",))
            given.update(_flatten((section,), table, where))
        elif section == "models":
            _add_model_environment(given, parts[1:], environ[name], where)
        elif len(parts) == 2:
            given[(section, parts[1].lower())] = Given(environ[name], where, text=True)
        else:
            raise ConfigError(f"{where}: unknown key; the names are TOOLWIRE_SECTION__KEY")


def _add_model_environment(given: dict[Key, Given], parts: list[str], text: str, where: str) -> None:
    known = {path[1] for path in given if path[0] == "models"}
    named = (id for id in known if id == parts[0] or re.sub(r"\W", "_", id).upper() == parts[0].upper())
    model = next(named, parts[0].lower())
    if len(parts) == 1:
        _remove(given, ("models", model))
        given.update(_flatten(("models",), {model: _json(text, dict, "a JSON object", where)}, where))
    elif len(parts) == 2:
        given[("models", model, parts[1].lower())] = Given(text, where, text=True)
    else:
        names = "the names are TOOLWIRE_MODELS__ID__KEY, a table is written as JSON"
        raise ConfigError(f"{where}: unknown key; {names}")


def _remove(given: dict[Key, Given], start: Key) -> None:
    for path in [path for path in given if path[: len(start)] == start]:
        del given[path]


# --- sections

KEY_LISTS = ("server.keys", "server.admin_keys")
SECRET_KEYS = (*KEY_LISTS, "store.url", "store.redis", "server.node_secret", "telemetry.otlp")


def _section(name: str, cls: type[Any], given: Mapping[Key, Given], environ: Mapping[str, str]) -> Any:
    hints = get_type_hints(cls, include_extras=True)
    values: dict[str, Any] = {}
    for path, entry in given.items():
        if path[0] == name:
            _check_known(path[1], list(hints), entry.where, "key", f"{name}.")
            values[path[1]] = _value(entry, hints[path[1]], f"{name}.{path[1]}", environ)
    return cls(**values)


def _value(entry: Given, hint: Any, key: str, environ: Mapping[str, str]) -> Any:
    hint, limits = get_args(hint) if get_origin(hint) is Annotated else (hint, None)
    value = convert(entry, hint, key)
    if key in SECRET_KEYS:
        value = _resolve(value, entry, key, environ)[0]
    if limits is not None and not limits.low <= value <= limits.high:
        expected = f"expected a number from {limits.low:g} to {limits.high:g}"
        raise ConfigError(f"{entry.where}: {key}: {expected}, got {value:g}")
    if key in KEY_LISTS and any(not each.strip() for each in value):
        raise ConfigError(f"{entry.where}: {key}: a key cannot be empty")
    return value


def convert(entry: Given, hint: Any, key: str) -> Any:
    """Converts a value to its key's type. Raises ConfigError.

    The types are str, int, float, bool, tuple[str, ...] and Literal.
    """
    value, where = entry.value, f"{entry.where}: {key}"
    if get_origin(hint) is Literal and isinstance(value, bool):
        value = "on" if value else "off"
    elif get_origin(hint) is tuple and entry.text:
        value = _json(value, list, 'a JSON list of strings, such as ["a", "b"]', where)
    elif entry.text:
        value = _read_text(value, hint)
    try:
        return registry.fitted(value, hint)
    except registry.OptionError as error:
        shown = "something else" if key in SECRET_KEYS else _show(entry.value)  # never show a secret
        raise ConfigError(f"{where}: {error}, got {shown}") from None


def _read_text(text: str, hint: Any) -> Any:
    """Converts text from the environment. Invalid text stays text, which `fitted` then refuses."""
    if hint is bool:
        lowered = text.strip().lower()
        return True if lowered in TRUE else False if lowered in FALSE else text
    if hint in (int, float):
        try:
            return hint(text.strip())
        except ValueError:
            return text
    return text


# --- models


def _models(given: Mapping[Key, Given], environ: Mapping[str, str]) -> tuple[ModelSettings, ...]:
    tables: dict[str, dict[str, Given]] = {}
    for path, entry in given.items():
        if path[0] == "models":
            tables.setdefault(path[1], {})[path[2]] = entry
    return tuple(_model(name, table, environ) for name, table in tables.items())


def _aliases(given: Mapping[Key, Given], models: list[str]) -> tuple[tuple[str, str], ...]:
    found = []
    for path, entry in given.items():
        if path[0] == "aliases":
            model = convert(entry, str, f"aliases.{path[1]}")
            if model not in models and model.partition("/")[0] not in models:
                known = f"known: {', '.join(models)}"
                raise ConfigError(f"{entry.where}: aliases.{path[1]}: there is no model {model}; {known}")
            found.append((path[1], model))
    return tuple(found)


def _model(name: str, table: dict[str, Given], environ: Mapping[str, str]) -> ModelSettings:
    first = next(iter(table.values()))
    backend = table.pop("backend", None)
    if not name.strip():
        raise ConfigError(f"{first.where}: a model needs a name: [models.NAME]")
    if backend is None:
        raise ConfigError(f"{first.where}: models.{name}: backend is missing: one of {', '.join(BACKENDS)}")
    where = f"{backend.where}: models.{name}"
    if not isinstance(backend.value, str):
        raise ConfigError(f"{where}.backend: expected a string, got {_show(backend.value)}")
    _check_known(backend.value, list(BACKENDS), where, "backend")
    options: dict[str, Any] = {}
    secret: set[str] = set()
    hints = _option_hints(backend.value) if any(entry.text for entry in table.values()) else {}
    for key, entry in table.items():
        value = _read_option(entry.value, hints.get(key)) if entry.text else entry.value
        options[key], found = _resolve(value, entry, f"models.{name}.{key}", environ)
        if found:
            secret.add(key)
    try:
        registry.check(backend.value, options)
    except (ValueError, TypeError, KeyError) as error:
        first = next(iter(table.values()), backend)
        raise ConfigError(f"{first.where}: models.{name}: {error}") from error
    return ModelSettings(name, backend.value, options, frozenset(secret))


def _option_hints(backend: str) -> dict[str, Any]:
    """Returns the types of the backend's options, from its options class."""
    module, options, _ = BACKENDS[backend]
    return get_type_hints(getattr(importlib.import_module(module), options))


def _read_option(text: str, hint: Any) -> Any:
    """Converts text from the environment to the option's type.

    For other types than str, bool and numbers, the text is parsed if it looks like JSON.
    """
    kinds = set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}
    if str in kinds or any(get_origin(kind) is Literal for kind in kinds):
        return text
    for kind in (bool, int, float):
        if kind in kinds:
            return _read_text(text, kind)
    if re.fullmatch(r"\s*(\[.*\]|\{.*\}|true|false|-?\d+(\.\d+)?)\s*", text, re.DOTALL):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


# --- secrets and exposure


def _resolve(value: Any, entry: Given, key: str, environ: Mapping[str, str]) -> tuple[Any, bool]:
    """Replaces every `env:NAME` and `file:PATH` in a value by the secret.

    Also returns whether there was one.
    """
    if isinstance(value, str):
        found = secret(value, f"{entry.where}: {key}", environ, entry.folder)
        return (value, False) if found is None else (found, True)
    if isinstance(value, dict):
        pairs = {k: _resolve(v, entry, f"{key}.{k}", environ) for k, v in value.items()}
        return {k: v for k, (v, _) in pairs.items()}, any(is_secret for _, is_secret in pairs.values())
    if isinstance(value, list | tuple):
        entries = [_resolve(v, entry, key, environ) for v in value]
        return type(value)(v for v, _ in entries), any(is_secret for _, is_secret in entries)
    return value, False


def secret(written: str, where: str, environ: Mapping[str, str], folder: Path | None = None) -> str | None:
    """Returns the secret that `env:NAME` or `file:PATH` refers to, or None for any other text.

    A relative path is relative to `folder`. Raises ConfigError if the variable or file does not exist or is
    empty.
    """
    kind, colon, name = written.partition(":")
    if not colon or kind not in ("env", "file"):
        return None
    if kind == "env":
        if found := environ.get(name, "").strip():
            return found
        problem = "empty" if name in environ else "not set"
        raise ConfigError(f"{where}: the environment variable {name} is {problem}")
    file = Path(folder or "", Path(name).expanduser())
    try:
        text = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"{where}: the secret file {file} cannot be read: {why}") from error
    if not text:
        raise ConfigError(f"{where}: the secret file {file} is empty")
    return text


def check_exposure(server: ServerSettings) -> None:
    """Raises if other machines, or any web page, could reach a server without keys."""
    if server.keys or server.admin_keys:
        return
    add = 'at least one key: server.keys = ["env:TOOLWIRE_API_KEY"], or toolwire keys add'
    if not is_loopback(server.host):
        raise ConfigError(f"server.host: {server.host} can be reached from other machines, which needs {add}")
    if "*" in server.origins:
        raise ConfigError(f'server.origins: "*" admits every web page, which needs {add}')


# --- messages


def _check_known(word: str, known: list[str], where: str, what: str, prefix: str = "") -> None:
    if word in known:
        return
    near = difflib.get_close_matches(word, known, 1, 0.5)
    hint = f"did you mean {prefix}{near[0]}?" if near else f"known: {', '.join(known)}"
    raise ConfigError(f"{where}: unknown {what} {prefix}{word}; {hint}")


def _json(text: str, cls: type[Any], expected: str, where: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, cls):
        raise ConfigError(f"{where}: expected {expected}")
    return value


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "…"

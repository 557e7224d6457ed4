"""Loads the settings: reads file and environment, checks every value, resolves secrets.

Each layer (the settings page's file, the settings file, `PROXY_…` variables of older proxies, `TOOLWIRE_…`
variables, command line) is a dict of `Given` values by path, such as ("server", "port"). A later layer
overrides earlier ones. A model in the settings file replaces the model with the same id in the page's file.
`TOOLWIRE_MODELS` replaces the models of both files. `TOOLWIRE_MODELS__ID` sets one model,
`TOOLWIRE_MODELS__ID__KEY` sets one option of a model.

A mistake in one model, MCP server or notice makes only this one unavailable (`problem` in its settings). Any
other mistake is an error.
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from toolwire.settings import page_file
from toolwire.settings.mcp import read_mcp, with_page_rules
from toolwire.settings.models import read_models
from toolwire.settings.notices import read_notices
from toolwire.settings.types import (
    DEFAULT_MODELS,
    SECTIONS,
    ConfigError,
    ServerSettings,
    Settings,
    StoreSettings,
    is_loopback,
)
from toolwire.settings.values import (
    FALSE,
    KEY_LISTS,
    SECRET_KEYS,
    TRUE,
    Given,
    check_known,
    convert,
    noted,
    read_json,
    resolve,
    secret,
    shown,
)

log = logging.getLogger(__name__)
__all__ = ["load", "secret"]
FILE_NAME = "toolwire.toml"
ENVIRONMENT_PREFIX = "TOOLWIRE_"
Key = tuple[str, ...]


# --- flags of older proxies: environment name, path, meanings
#
# `meanings` translates the flag's values. If it is None, the text is converted to the setting's type. A later
# row overrides an earlier one, but PROXY_STOP_AFTER_TOOLS_MODE is ignored if PROXY_STOP_AFTER_TOOLS is off.

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


TABLES = [*SECTIONS, "mcp", "models", "aliases", "notices"]
"""The tables of the settings file."""
NAMED = ("models", "mcp", "notices")
"""Tables that contain one table for each name that the user chooses, such as `[models.ID]`."""

HARMLESS: dict[Key, tuple[Any, ...]] = {("approvals", "command_line"): ("code",), ("mcp", "urls"): ([],)}
"""The values of keys about consent that are accepted from a settings file in the working folder.

Such a file may belong to somebody else, because the user has not named it.
"""


def load(
    path: str | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, Any],
    exposed: bool = True,
    problems: list[str] | None = None,
) -> Settings:
    """Loads the settings. `path`: the value of --config.

    `overrides`: the keys that the command line sets, such as {"server.port": 0}.

    `exposed`: whether to raise an error if other machines or any web page could reach a server without keys.
    `problems`: if this list is given, mistakes are added to it instead of being raised, and each wrong value
    is replaced by its default.
    """
    file: Path | None = None
    in_file: dict[Key, Given] = {}
    with noted(problems):
        file = find_file(path, environ)
    if file is not None:
        with noted(problems):
            in_file = _from_file(file, problems)
    given = _layered({}, in_file, environ, overrides, problems)
    unnamed = "" if path or environ.get("TOOLWIRE_CONFIG") else FILE_NAME
    if unnamed:
        _drop_consent(given, in_file, problems)
    url = _section("store", StoreSettings, given, environ, [] if problems is not None else None).url
    page, page_where, page_problem, page_rules = _from_page(url, environ)
    if unnamed and ("store", "url") in given and given["store", "url"].where == FILE_NAME:
        page_rules = {}  # the unnamed file chose the store, and so the folder of the file with these rules
    if page:
        given = _layered(page, in_file, environ, overrides, [] if problems is not None else None)
    sections = {name: _section(name, cls, given, environ, problems) for name, cls in SECTIONS.items()}
    models = read_models(given, environ, problems) or DEFAULT_MODELS
    if page:
        models = tuple(sorted(models, key=lambda model: model.where == page_where))  # the page's models last
    mcp = with_page_rules(read_mcp(given, environ, problems, unnamed=unnamed), page_rules)
    notices = read_notices(given, environ, problems, unnamed=unnamed)
    ids = None if page_problem else [model.id for model in models]
    settings = Settings(
        **sections,
        mcp=mcp,
        notices=notices,
        models=models,
        aliases=_aliases(given, ids, problems),
        file=str(file.resolve()) if file is not None else "",
        page_file=page_where,
        page_problem=page_problem,
        origins=_origins(given, page_where),
    )
    if exposed:
        with noted(problems):
            check_exposure(settings.server)
    return settings


def _layered(
    page: dict[Key, Given],
    file: dict[Key, Given],
    environ: Mapping[str, str],
    overrides: Mapping[str, Any],
    problems: list[str] | None,
) -> dict[Key, Given]:
    """Returns the value of every key, from the highest layer that sets it."""
    own_models = {key[:2] for key in file if key[0] == "models"}
    given = {key: value for key, value in page.items() if key[:2] not in own_models}
    given.update(file)
    with noted(problems):
        given.update(_from_seed_flags(environ))
    _add_environment(given, environ, problems)
    _add_codex_flags(given, environ)
    for dotted, value in overrides.items():
        given[tuple(dotted.split("."))] = Given(value, "command line")
    return given


def _drop_consent(given: dict[Key, Given], in_file: dict[Key, Given], problems: list[str] | None) -> None:
    """Drops settings about consent from a settings file in the working folder, and reports them.

    Such a file may belong to somebody else. Keeps values that `HARMLESS` contains.
    """
    dropped = [
        key
        for key, harmless in HARMLESS.items()
        if key in given and given[key].where == FILE_NAME and given[key].value not in harmless
    ]
    for key in dropped:
        del given[key], in_file[key]
    if not dropped:
        return
    names = ", ".join(".".join(key) for key in dropped)
    what = f"{FILE_NAME}: {names}: not used, because this file is in the working folder and may not be yours"
    line = f"{what}; if it is yours, name it with --config or TOOLWIRE_CONFIG"
    if problems is None:
        log.warning("%s", line)
    else:
        problems.append(line)


def _from_page(
    store_url: str, environ: Mapping[str, str]
) -> tuple[dict[Key, Given], str, str, Mapping[str, Sequence[str]]]:
    """Returns the settings page's file: its values, its path, why it is ignored, and its MCP rules.

    The path is "" if the page cannot have a file. The reason is "" if the file is not ignored.
    """
    path = page_file.path_beside(store_url, environ)
    if path is None:
        return {}, "", "", {}
    out: dict[Key, Given] = {}
    try:
        page = page_file.read(path)
    except page_file.PageFileError as error:
        return {}, str(path), f"{path} {error}; it is ignored", {}
    for section, table in page.tables().items():
        out.update(_flatten((section,), table, str(path), path.parent))
    return out, str(path), "", page.rules


def _origins(given: Mapping[Key, Given], page_where: str) -> dict[str, str]:
    """Returns where the vault's folder and each model is set.

    If the environment changes a model of the settings page, the result names the environment variable.
    """
    out: dict[str, str] = {}
    for path, entry in given.items():
        name = ".".join(path[:2])
        if name == "vault.root" or (path[0] == "models" and out.get(name, page_where) == page_where):
            out[name] = entry.where
    return out


def find_file(path: str | None, environ: Mapping[str, str]) -> Path | None:
    """Returns the path of the settings file, or None if no file exists.

    A file that `--config` or TOOLWIRE_CONFIG names must exist; `--config` takes precedence. If neither names
    a file, the file in the working directory is used, or else the file in the user's config directory.
    """
    for named, by in ((path, "--config"), (environ.get("TOOLWIRE_CONFIG"), "TOOLWIRE_CONFIG")):
        if named:
            file = Path(os.path.expanduser(named))
            if os.path.isdir(file):
                raise ConfigError(f"{by}: {named} is a folder; name the settings file in it")
            if not os.path.isfile(file):
                raise ConfigError(f"{by}: there is no file {named}")
            return file
    candidates = [Path(FILE_NAME)]
    if environ.get("XDG_CONFIG_HOME"):
        candidates.append(Path(environ["XDG_CONFIG_HOME"], "toolwire", FILE_NAME))
    elif environ.get("HOME"):
        candidates.append(Path(environ["HOME"], ".config", "toolwire", FILE_NAME))
    return next((file for file in candidates if os.path.isfile(file)), None)


# --- layers


def _from_file(file: Path, problems: list[str] | None = None) -> dict[Key, Given]:
    try:
        document = tomllib.loads(file.read_text("utf-8-sig"))  # with or without a byte order mark
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}: line {line} is not UTF-8 text; save the file as UTF-8") from error
    except ValueError as error:  # not only TOMLDecodeError: a number may have too many digits
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{file}: not valid TOML: tables are nested too deeply") from error
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    out: dict[Key, Given] = {}
    folder = file.resolve().parent
    for section, table in document.items():
        with noted(problems):
            owner = "" if section in TABLES else _owner(section)
            if not isinstance(table, dict) and owner:
                raise ConfigError(f"{file}: {section}: write this key below [{owner}]")
            check_known(section, TABLES, str(file), "section")
            if not isinstance(table, dict):
                raise ConfigError(f"{file}: {section}: expected a table [{section}], got {shown(table)}")
            out.update(_flatten((section,), table, str(file), folder))
    return out


def _owner(key: str) -> str:
    """Returns the section that has a key of this name; "" if no section has one."""
    return next((name for name, cls in SECTIONS.items() if key in cls.__dataclass_fields__), "")


def _flatten(path: Key, table: Mapping[str, Any], where: str, folder: Path | None = None) -> dict[Key, Given]:
    """Returns the values of a table by path. Each option of a table in `NAMED` has its own path.

    An empty table in `NAMED`, and a value in place of a table, have a path that ends with an empty string,
    such as ("models", ID, "").
    """
    if path[0] not in NAMED or len(path) > 1:
        return {(*path, key): Given(value, where, folder=folder) for key, value in table.items()}
    out: dict[Key, Given] = {}
    for name, options in table.items():
        if path == ("mcp",) and name == "urls":
            out["mcp", name] = Given(options, where)
        elif isinstance(options, dict) and options:
            out.update(_flatten((*path, name), options, where, folder))
        else:
            out[*path, name, ""] = Given(options, where)
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
                raise ConfigError(f"environment {name}: {expected}, got {shown(text)}")
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
    """Adds Codex's own environment variables to all models that use Codex.

    They override the settings file, but not `TOOLWIRE_…` variables.
    """
    backends = [path for path in given if path[0] == "models" and path[2] == "backend"]
    for _, model, _ in (path for path in backends if given[path].value == "codex"):
        for name, option in CODEX_FLAGS.items():
            path = ("models", model, option)
            own = path in given and given[path].where.startswith(f"environment {ENVIRONMENT_PREFIX}")
            if environ.get(name) and not own:
                given[path] = Given(environ[name], f"environment {name}", text=True)


def _add_environment(given: dict[Key, Given], environ: Mapping[str, str], problems: list[str] | None) -> None:
    """Adds the `TOOLWIRE_…` variables. A variable for one key overrides a variable for a whole table."""
    names = [name for name in environ if name.startswith(ENVIRONMENT_PREFIX)]
    for name in sorted(names, key=lambda n: (n.count("__"), n)):
        with noted(problems):
            _add_variable(given, name, environ[name])


def _add_variable(given: dict[Key, Given], name: str, text: str) -> None:
    parts = name[len(ENVIRONMENT_PREFIX) :].split("__")
    section = parts[0].lower()
    where = f"environment {name}"
    if len(parts) == 1 and section not in TABLES:
        return  # not a setting: TOOLWIRE_CONFIG, TOOLWIRE_API_KEY or a variable of the user
    check_known(section, TABLES, where, "section")
    if len(parts) == 1:
        table = read_json(text, dict, "a JSON object", where)
        if section in NAMED:
            _remove(given, (section,))
        given.update(_flatten((section,), table, where))
    elif section in NAMED and not (section == "mcp" and parts[1:] == ["URLS"]):
        _add_named_environment(given, section, parts[1:], text, where)
    elif len(parts) == 2:
        given[(section, parts[1].lower())] = Given(text, where, text=True)
    else:
        raise ConfigError(f"{where}: unknown key; the names are TOOLWIRE_SECTION__KEY")


def _add_named_environment(
    given: dict[Key, Given], section: str, parts: list[str], text: str, where: str
) -> None:
    """Adds a variable for a named table, such as a model.

    The variable sets the whole table or one key of the table.
    """
    known = {path[1] for path in given if path[0] == section and len(path) > 2}
    named = (id for id in known if id == parts[0] or re.sub(r"\W", "_", id).upper() == parts[0].upper())
    name = next(named, parts[0].lower())
    if len(parts) == 1:
        _remove(given, (section, name))
        given.update(_flatten((section,), {name: read_json(text, dict, "a JSON object", where)}, where))
    elif len(parts) == 2:
        given[(section, name, parts[1].lower())] = Given(text, where, text=True)
    else:
        names = f"the names are TOOLWIRE_{section.upper()}__NAME__KEY, a table is written as JSON"
        raise ConfigError(f"{where}: unknown key; {names}")


def _remove(given: dict[Key, Given], start: Key) -> None:
    for path in [path for path in given if path[: len(start)] == start]:
        del given[path]


# --- sections


def _section(
    name: str,
    cls: type[Any],
    given: Mapping[Key, Given],
    environ: Mapping[str, str],
    problems: list[str] | None,
) -> Any:
    hints = get_type_hints(cls, include_extras=True)
    values: dict[str, Any] = {}
    for path, entry in given.items():
        if path[0] == name:
            with noted(problems):
                check_known(path[1], list(hints), entry.where, "key", f"{name}.")
                values[path[1]] = _value(entry, hints[path[1]], f"{name}.{path[1]}", environ)
    return cls(**values)


def _value(entry: Given, hint: Any, key: str, environ: Mapping[str, str]) -> Any:
    hint, limits = get_args(hint) if get_origin(hint) is Annotated else (hint, None)
    value = convert(entry, hint, key)
    if key in SECRET_KEYS:
        value = resolve(value, f"{entry.where}: {key}", entry.folder, environ)[0]
    if limits is not None and not limits.low <= value <= limits.high:
        expected = f"expected a number from {limits.low:g} to {limits.high:g}"
        raise ConfigError(f"{entry.where}: {key}: {expected}, got {value:g}")
    if key in KEY_LISTS and any(not each.strip() for each in value):
        raise ConfigError(f"{entry.where}: {key}: a key cannot be empty")
    if key == "server.host" and not value.strip():
        raise ConfigError(f"{entry.where}: {key}: an address is needed, such as 127.0.0.1")
    return value


def _aliases(
    given: Mapping[Key, Given], models: list[str] | None, problems: list[str] | None
) -> tuple[tuple[str, str], ...]:
    """Returns the aliases.

    `models`: the ids that an alias may name. None: an alias may name any id, because the models in the
    settings page's file are not known.
    """
    found = []
    for path, entry in given.items():
        if path[0] == "aliases":
            with noted(problems):
                model = convert(entry, str, f"aliases.{path[1]}")
                if models and model not in models and model.partition("/")[0] not in models:
                    known = f"known: {', '.join(models)}"
                    raise ConfigError(f"{entry.where}: aliases.{path[1]}: there is no model {model}; {known}")
                found.append((path[1], model))
    return tuple(found)


# --- exposure


def check_exposure(server: ServerSettings) -> None:
    """Raises an error if other machines, or any web page, could reach a server without keys."""
    if server.keys or server.admin_keys:
        return
    add = 'at least one key: server.keys = ["env:TOOLWIRE_API_KEY"], or toolwire keys add'
    if not is_loopback(server.host):
        raise ConfigError(f"server.host: {server.host} can be reached from other machines, which needs {add}")
    if "*" in server.origins:
        raise ConfigError(f'server.origins: "*" admits every web page, which needs {add}')

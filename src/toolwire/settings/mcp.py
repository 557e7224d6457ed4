"""Reads the tables `[mcp.NAME]`: MCP servers, and the rules for calls of their tools.

A mistake in one server makes this server unavailable (`McpServerSettings.problem`), so that the others can be
used. Rules are checked where they are applied, in `tools/mcp`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import urlsplit

from toolwire.settings.types import ConfigError, McpServerSettings, McpSettings, Range
from toolwire.settings.values import Given, check_known, convert, noted, read_json, resolve, shown

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,30}[A-Za-z0-9])?")
NAMES = "use at most 32 letters, digits, - and single _, with a letter or digit at both ends"
_KEYS = [
    one.name
    for one in fields(McpServerSettings)
    if one.name not in ("name", "page_allow", "ad_hoc", "folder", "secret", "problem", "where")
]
_HINTS = get_type_hints(McpServerSettings)
_RANGES: dict[str, Range] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(McpServerSettings, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}
_TABLES = ("env", "headers")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def read_mcp(
    given: Mapping[tuple[str, ...], Given],
    environ: Mapping[str, str],
    problems: list[str] | None,
    unnamed: str = "",
) -> McpSettings:
    """Returns the MCP servers.

    `unnamed`: a settings file in the working folder that the user has not named. It may belong to somebody
    else, so the servers in it are not available.
    """
    urls: tuple[str, ...] = ()
    tables: dict[str, dict[str, Given]] = {}
    for path, entry in given.items():
        if path == ("mcp", "urls"):
            with noted(problems):
                urls = convert(entry, tuple[str, ...], "mcp.urls")
        elif path[0] == "mcp":
            tables.setdefault(path[1], {})[path[2] if len(path) > 2 else ""] = entry
    servers = []
    for name, table in tables.items():
        with noted(problems):
            servers.append(_server(name, table, environ, unnamed))
    return McpSettings(tuple(servers), urls)


def _server(
    name: str, table: Mapping[str, Given], environ: Mapping[str, str], unnamed: str
) -> McpServerSettings:
    first = next(iter(table.values()))
    if not NAME.fullmatch(name) or "__" in name:
        raise ConfigError(f"{first.where}: mcp.{shown(name)}: this name of a server cannot be used; {NAMES}")
    problems: list[str] = []
    values: dict[str, Any] = {}
    secret: set[str] = set()
    for key, entry in table.items():
        with noted(problems):
            if key == "":
                raise ConfigError(f"expected a table [mcp.{name}] with a command or a url")
            check_known(key, _KEYS, "", "key")
            values[key] = _value(Given(entry.value, "", entry.text, entry.folder), key, environ, secret)
    with noted(problems):
        if not problems:
            _check_address(values.get("command", ()), values.get("url", ""))
        if unnamed and any(entry.where == unnamed for entry in table.values()):
            how = "a server in it is only used if you name the file, with --config or TOOLWIRE_CONFIG"
            raise ConfigError(f"{unnamed} is in the working folder, and may not be yours; {how}")
    command = table.get("command", first)
    return McpServerSettings(
        name,
        **values,
        folder=str(command.folder or ""),
        secret=tuple(sorted(secret)),
        problem="; ".join(problems),
        where=first.where,
    )


def _value(entry: Given, key: str, environ: Mapping[str, str], secret: set[str]) -> Any:
    if key in _TABLES:
        return _table(entry, key, environ, secret)
    value = convert(entry, _HINTS[key], key)
    limits = _RANGES.get(key)
    if limits is not None and not limits.low <= value <= limits.high:
        raise ConfigError(f"{key}: expected a number from {limits.low:g} to {limits.high:g}, got {value:g}")
    return value


def _table(entry: Given, key: str, environ: Mapping[str, str], secret: set[str]) -> dict[str, str]:
    """Returns environment variables or headers, with secrets in place of references to them."""
    value = read_json(entry.value, dict, "a JSON object", key) if entry.text else entry.value
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise ConfigError(f"{key}: expected a table of strings")
    found: dict[str, str] = {}
    for name, written in value.items():
        text, is_secret = resolve(written, f"{key}.{name}", entry.folder, environ)
        bad = (
            not _HEADER.fullmatch(name) or _CONTROL.search(text)
            if key == "headers"
            else not name or "=" in name
        )
        if bad or "\0" in name:
            raise ConfigError(f"{key}.{name}: this cannot be a name or value in {key}")
        found[name] = text
        if is_secret or key == "headers":
            secret.add(text)
    return found


def _check_address(command: tuple[str, ...], url: str) -> None:
    if bool(command) == bool(url):
        problem = "command and url: set only one of them" if url else "set a command, or a url"
        raise ConfigError(problem)
    if command and not command[0].strip():
        raise ConfigError("command: the name of the program is empty")
    if url:
        try:
            parts = urlsplit(url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            fits = False
        if not fits or _CONTROL.search(url) or " " in url:
            raise ConfigError("url: expected an address such as https://mcp.example.com/mcp")


def with_page_rules(settings: McpSettings, rules: Mapping[str, Sequence[str]]) -> McpSettings:
    """Returns the settings with the allow rules from the settings page's file. `rules`: by server name."""
    servers = (replace(one, page_allow=tuple(rules.get(one.name, ()))) for one in settings.servers)
    return replace(settings, servers=tuple(servers))


def stated_folder(server: McpServerSettings) -> Path:
    """Returns the working folder of a server's command."""
    return Path(server.folder) if server.folder else Path.home()

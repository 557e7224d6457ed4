"""Reads the tables `[notices.NAME]`: where to send messages about waiting approval requests.

A mistake in one table makes only this notice unavailable (`NoticeSettings.problem`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints
from urllib.parse import urlsplit

from toolwire.settings.types import ConfigError, NoticeSettings, Range, is_loopback
from toolwire.settings.values import Given, check_known, convert, noted, resolve, shown

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
TOPIC = re.compile(r"[A-Za-z0-9_-]{1,64}")
PUBLIC_NTFY = "ntfy.sh"
SHORTEST_SECRET = 16
_KEYS = [one.name for one in fields(NoticeSettings)][1:-3]
_SECRETS = ("url", "secret", "topic", "token")
"""Keys whose value may be `env:NAME` or `file:PATH`."""
_FOREIGN = {"webhook": ("topic", "token"), "ntfy": ("secret",)}
"""For each kind of notice, the keys that a notice of this kind cannot have."""
_HINTS = get_type_hints(NoticeSettings)
_RANGES: dict[str, Range] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(NoticeSettings, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f]")


def read_notices(
    given: Mapping[tuple[str, ...], Given],
    environ: Mapping[str, str],
    problems: list[str] | None,
    unnamed: str = "",
) -> tuple[NoticeSettings, ...]:
    """Returns the notices.

    `unnamed`: a settings file in the working folder that the user has not named. It may belong to somebody
    else, who must not receive messages, so the notices in it are not available.
    """
    tables: dict[str, dict[str, Given]] = {}
    for path, entry in given.items():
        if path[0] == "notices":
            tables.setdefault(path[1], {})[path[2] if len(path) > 2 else ""] = entry
    notices = []
    for name, table in tables.items():
        with noted(problems):
            notices.append(_notice(name, table, environ, unnamed))
    return tuple(notices)


def _notice(
    name: str, table: Mapping[str, Given], environ: Mapping[str, str], unnamed: str
) -> NoticeSettings:
    where = next(iter(table.values())).where
    if not NAME.fullmatch(name):
        names = "use at most 32 letters, digits, _ and -"
        raise ConfigError(f"{where}: notices.{shown(name)}: this name of a notice cannot be used; {names}")
    problems: list[str] = []
    values: dict[str, Any] = {}
    hidden: set[str] = set()
    for key, entry in table.items():
        with noted(problems):
            if key == "":
                raise ConfigError(f"expected a table [notices.{name}] with kind and url")
            check_known(key, _KEYS, "", "key")
            values[key] = _value(key, entry, environ, hidden)
    with noted(problems):
        if unnamed and any(entry.where == unnamed for entry in table.values()):
            how = "a notice in it is only used if you name the file, with --config or TOOLWIRE_CONFIG"
            raise ConfigError(f"{unnamed} is in the working folder, and may not be yours; {how}")
    with noted(problems):
        if not problems:
            _check(NoticeSettings(name, **values))
    ends = {key: values[key].rstrip("/") for key in ("url", "pages") if key in values and not problems}
    if values.get("kind") == "webhook":
        ends.pop("url", None)
    hiding = tuple(sorted(hidden))
    return NoticeSettings(name, **values | ends, hidden=hiding, problem="; ".join(problems), where=where)


def _value(key: str, entry: Given, environ: Mapping[str, str], hidden: set[str]) -> Any:
    value = convert(Given(entry.value, "", entry.text), _HINTS[key], key)
    if key in _SECRETS:
        value, found = resolve(value, key, entry.folder, environ)
        if value and (found or key != "url"):
            hidden.add(value)
    limits = _RANGES.get(key)
    if limits is not None and not limits.low <= value <= limits.high:
        raise ConfigError(f"{key}: expected a number from {limits.low:g} to {limits.high:g}, got {value:g}")
    return value


def _check(notice: NoticeSettings) -> None:
    """Raises an error if the settings of a notice do not fit together."""
    for key in _FOREIGN[notice.kind]:
        if getattr(notice, key):
            raise ConfigError(f'{key}: a notice with kind = "{notice.kind}" cannot have this key')
    host = _host("url", notice.url, origin=notice.kind == "ntfy")
    if notice.kind == "webhook" and len(notice.secret) < SHORTEST_SECRET:
        raise ConfigError(f"secret: a webhook needs a secret of at least {SHORTEST_SECRET} characters")
    if notice.kind == "ntfy" and not TOPIC.fullmatch(notice.topic):
        raise ConfigError("topic: expected at most 64 letters, digits, _ and -")
    if notice.pages:
        _host("pages", notice.pages, origin=True)
    if notice.approve and (notice.level, notice.detail) != ("buttons", "full"):
        raise ConfigError('approve: needs level = "buttons" and detail = "full"')
    if notice.level == "notice":
        return
    if not notice.pages:
        raise ConfigError(f'pages: level = "{notice.level}" needs the address of the web pages')
    if notice.kind == "ntfy" and (host == PUBLIC_NTFY or host.endswith(f".{PUBLIC_NTFY}")):
        raise ConfigError(f'level: {PUBLIC_NTFY} can read every message, so use level = "notice" there')
    if notice.kind == "ntfy" and not notice.token:
        raise ConfigError(f'token: level = "{notice.level}" needs an access token that protects the topic')


def _host(key: str, url: str, *, origin: bool) -> str:
    """Returns the host of an address. `origin`: the address must have no path.

    Errors do not quote the address, because it may be a secret.
    """
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fits = False
    if not fits or _UNPRINTABLE.search(url):
        raise ConfigError(f"{key}: expected an address such as https://toolwire.example.com")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"{key}: an address with a password is not accepted; use token or secret")
    if parts.fragment or (origin and (parts.path.strip("/") or parts.query)):
        raise ConfigError(f"{key}: expected an address without {'a path' if origin else 'a fragment'}")
    return (parts.hostname or "").lower().rstrip(".")


def unencrypted(url: str) -> bool:
    """Returns whether others in the network can read what is sent to this address."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")

"""`toolwire keys`: API keys with names, scopes, limits and budgets, in the store that the server reads."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from typing import Any

from toolwire.access.keyring import FRESH_S
from toolwire.access.keys import KeyLimits, KeyRecords, StoredKey
from toolwire.core.display import as_json, one_line
from toolwire.settings.load import load
from toolwire.settings.types import ConfigError
from toolwire.store.store import Store
from toolwire.surfaces.tables import table

ACTIONS = ("add", "list", "revoke", "rotate")
GRACE = "24h"
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
LIMITS: dict[str, str] = {
    "requests_per_minute": "requests a minute",
    "tokens_per_minute": "tokens a minute",
    "concurrent": "requests at once",
    "parked": "runs that wait for a tool's result",
    "budget_requests": "requests a month",
    "budget_tokens": "tokens a month",
}
SHORT = {
    "requests_per_minute": "req/min",
    "tokens_per_minute": "tok/min",
    "concurrent": "at once",
    "parked": "parked",
    "budget_requests": "req/month",
    "budget_tokens": "tok/month",
}
assert set(LIMITS) == {field.name for field in fields(KeyLimits)} == set(SHORT)


def keys_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=ACTIONS, default="list", help="default: list")
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="the key's name; revoke and rotate also take its id, or the beginning of it",
    )
    parser.add_argument(
        "--models", metavar="PATTERN", nargs="+", help="add: only these models, ids or patterns with *"
    )
    parser.add_argument("--no-tools", action="store_true", help="add: requests that bring tools are refused")
    parser.add_argument(
        "--admin", action="store_true", help="add: it opens the web pages and sees the usage of all keys"
    )
    for name, what in LIMITS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", metavar="N", type=int, help=f"add: so many {what}; 0: any number"
        )
    parser.add_argument(
        "--grace",
        metavar="TIME",
        default=GRACE,
        help=f"rotate: so long the old key works on: 90s, 30m, 24h, 7d; default {GRACE}",
    )
    parser.add_argument("--all", action="store_true", help="list: those that were revoked too")
    parser.add_argument("--json", action="store_true", help="JSON, for scripts")


def run_keys(arguments: argparse.Namespace) -> int:

    if arguments.action != "list" and not arguments.name:
        raise ConfigError(f"keys {arguments.action}: a name is missing")
    return asyncio.run(
        _run(arguments, Store(load(arguments.config, os.environ, {}, exposed=False).store.url))
    )


async def _run(arguments: argparse.Namespace, store: Store) -> int:
    async with store:
        value, lines = await _DO[arguments.action](KeyRecords(store), arguments)
    print(as_json(value) if arguments.json else "\n".join(lines))
    return 0


Told = tuple[Any, Sequence[str]]


async def _add(records: KeyRecords, arguments: argparse.Namespace) -> Told:
    models = [one.strip() for given in arguments.models or () for one in given.split(",") if one.strip()]
    scopes = {"models": models or ["*"], "tools": not arguments.no_tools, "admin": arguments.admin}
    limits = {name: getattr(arguments, name) for name in LIMITS if getattr(arguments, name) is not None}
    for name, value in limits.items():
        if value < 0:
            raise ConfigError(f"--{name.replace('_', '-')}: expected a number from 0, got {value}")
    return _made(*await records.add(arguments.name, scopes, limits))


async def _rotate(records: KeyRecords, arguments: argparse.Namespace) -> Told:
    grace_s = _seconds(arguments.grace)
    living = [key for key in await _living(records, arguments.name) if key.revoked_at is None]
    if len({key.id for key in living}) != 1:
        raise ConfigError(
            f"key {arguments.name}: {'there is none to rotate' if not living else 'several begin like this'}"
        )
    value, lines = _made(*await records.rotate(living[0].id, grace_s))
    return value, [
        *lines,
        f"the old one, {living[0].id}, works for {arguments.grace} more; "
        f"toolwire keys revoke {living[0].id} ends it now",
    ]


def _made(key: StoredKey, text: str) -> Told:
    lines = [
        f"{key.id} {one_line(key.name)}: {_scopes(key)}; {_limits(key)}",
        "",
        f"  {text}",
        "",
        "shown this once; only its hash is kept",
    ]
    return {**key.public(), "key": text}, lines


async def _list(records: KeyRecords, arguments: argparse.Namespace) -> Told:
    now = time.time()
    every = await records.all()
    keys = [key for key in every if arguments.all or key.lives(now)]
    newest = {key.identity: key.id for key in sorted(every, key=lambda key: key.created_at)}
    rows = [("ID", "NAME", "KEY", "SCOPES", "LIMITS", "USED", "STATE")]
    for key in keys:
        told = (
            _scopes(key),
            _limits(key),
            _ago(key.last_used_at, now),
            _state(key, now, replaced=newest[key.identity] != key.id),
        )
        rows.append((key.id, one_line(key.name, 40), f"{key.prefix}…", *told))
    return [key.public() for key in keys], table(rows) if keys else [
        "there are no keys; toolwire keys add NAME makes one"
    ]


async def _revoke(records: KeyRecords, arguments: argparse.Namespace) -> Told:
    ended = await _living(records, arguments.name)
    if not ended:
        raise ConfigError(f"key {arguments.name}: there is none")
    if len({key.name for key in ended}) > 1:
        raise ConfigError(f"key {arguments.name}: {len(ended)} begin like this")
    for key in ended:
        await records.revoke(key.id)
    ids = [key.id for key in ended]
    return {"revoked": ids}, [f"{id}: revoked; every server knows within {FRESH_S:g} s" for id in ids]


_DO: dict[str, Callable[[KeyRecords, argparse.Namespace], Awaitable[Told]]] = {
    "add": _add,
    "list": _list,
    "revoke": _revoke,
    "rotate": _rotate,
}


async def _living(records: KeyRecords, named: str) -> list[StoredKey]:
    """By name: the key and its rotated predecessor. By id or the start of an id: that key alone."""
    now = time.time()
    keys = [key for key in await records.all() if key.lives(now)]
    by_name = [key for key in keys if key.name == named]
    exact = [key for key in keys if key.id == named]
    return (
        by_name
        or exact
        or [key for key in keys if key.id.startswith(named) or key.id.removeprefix("key_").startswith(named)]
    )


# --- words


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d{1,9})([smhd]?)", text.strip())
    if match is None:
        raise ConfigError(f"--grace {text}: expected a time such as 90s, 30m, 24h or 7d")
    return float(int(match[1]) * UNITS[match[2]])


def _scopes(key: StoredKey) -> str:
    models = ", ".join(one_line(pattern, 40) for pattern in key.scopes.get("models") or ["*"])
    words = ["all models" if models == "*" else models]
    words += ["no tools"] * (not key.scopes.get("tools", True)) + ["admin"] * bool(key.scopes.get("admin"))
    return ", ".join(words)


def _limits(key: StoredKey) -> str:
    return (
        ", ".join(f"{key.limits[name]:,} {word}" for name, word in SHORT.items() if name in key.limits)
        or "the settings' limits"
    )


def _state(key: StoredKey, now: float, replaced: bool) -> str:
    """`replaced`: a rotation made a newer one of it."""
    if key.revoked_at is None:
        return "active"
    word = "replaced" if replaced else "revoked"
    return f"{word}, ends in {_span(key.revoked_at - now)}" if key.lives(now) else word


def _ago(at: float | None, now: float) -> str:
    return "never" if at is None else f"{_span(now - at)} ago"


def _span(seconds: float) -> str:
    whole = max(0, int(seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if whole >= size:
            return f"{whole // size} {unit}"
    return f"{whole} s"

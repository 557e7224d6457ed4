"""`toolwire keys`: manages the API keys in the store, where a running server also reads them."""

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

GRACE = "24h"
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
LIMITS = {
    "requests_per_minute": ("requests a minute", "req/min"),
    "tokens_per_minute": ("tokens a minute", "tok/min"),
    "concurrent": ("requests at once", "at once"),
    "parked": ("runs that wait for a tool's result", "parked"),
    "budget_requests": ("requests a month", "req/month"),
    "budget_tokens": ("tokens a month", "tok/month"),
}
"""For each limit: its text in the help, and its unit in the list of keys."""
assert set(LIMITS) == {field.name for field in fields(KeyLimits)}


def keys_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    actions = "list (default) shows the keys; add creates, rotate replaces, and revoke ends a key"
    add("action", nargs="?", choices=tuple(_ACTIONS), default="list", help=actions)
    name = "the key's name; revoke and rotate also accept the key's id, or the beginning of the id"
    add("name", nargs="?", metavar="NAME", help=name)
    add(
        "--models",
        metavar="PATTERN",
        nargs="+",
        help="add: the key works only for these models: ids, or patterns with *",
    )
    add("--no-tools", action="store_true", help="add: the key cannot be used for requests with tools")
    add(
        "--admin", action="store_true", help="add: the key opens the web pages and sees the usage of all keys"
    )
    yes = "add: the key's client may itself approve the calls of MCP tools (the Responses tool mcp)"
    add("--approve", action="store_true", help=yes)
    for limit, (what, _) in LIMITS.items():
        add(_option(limit), metavar="N", type=int, help=f"add: at most N {what}; 0: no limit")
    grace = f"rotate: how long the old key still works, such as 90s, 30m or 7d; default {GRACE}"
    add("--grace", metavar="TIME", default=GRACE, help=grace)
    add("--all", action="store_true", help="list: also show revoked keys")
    add("--json", action="store_true", help="JSON, for scripts")


def run_keys(arguments: argparse.Namespace) -> int:
    if arguments.action != "list" and not arguments.name:
        raise ConfigError(f"keys {arguments.action}: a name is missing")
    settings = load(arguments.config, os.environ, {}, exposed=False)
    return asyncio.run(_run(arguments, Store(settings.store.url)))


async def _run(arguments: argparse.Namespace, store: Store) -> int:
    async with store:
        value, lines = await _ACTIONS[arguments.action](KeyRecords(store), arguments)
    print(as_json(value) if arguments.json else "\n".join(lines))
    return 0


# --- actions

Output = tuple[Any, Sequence[str]]
"""What a command prints: the value for --json, and the lines without --json."""


async def _add(records: KeyRecords, arguments: argparse.Namespace) -> Output:
    models = [one.strip() for given in arguments.models or () for one in given.split(",") if one.strip()]
    scopes = {"models": models or ["*"], "tools": not arguments.no_tools, "admin": arguments.admin}
    if arguments.approve:
        scopes["approve"] = True
    limits = {name: getattr(arguments, name) for name in LIMITS if getattr(arguments, name) is not None}
    for name, value in limits.items():
        if value < 0:
            raise ConfigError(f"{_option(name)}: expected 0 or a larger number, got {value}")
    return _created(*await records.add(arguments.name, scopes, limits))


async def _rotate(records: KeyRecords, arguments: argparse.Namespace) -> Output:
    grace_s = _seconds(arguments.grace)
    active = [key for key in await _found(records, arguments.name) if key.revoked_at is None]
    if len(active) != 1:
        many = "several active keys match; use the id of one key"
        problem = many if active else "there is no active key to rotate"
        raise ConfigError(f"key {arguments.name}: {problem}")
    old = active[0].id
    value, lines = _created(*await records.rotate(old, grace_s))
    more = f"the old one, {old}, works for {arguments.grace} more; toolwire keys revoke {old} ends it now"
    return value, [*lines, more]


def _created(key: StoredKey, text: str) -> Output:
    head = f"{key.id} {one_line(key.name)}: {_scopes(key)}; {_limits(key)}"
    return {**key.public(), "key": text}, [
        head,
        "",
        f"  {text}",
        "",
        "the key is shown only this once; Toolwire keeps only its hash",
    ]


async def _list(records: KeyRecords, arguments: argparse.Namespace) -> Output:
    now = time.time()
    every = await records.all()
    keys = [key for key in every if arguments.all or key.lives(now)]
    newest = {key.identity: key.id for key in sorted(every, key=lambda key: key.created_at)}
    rows = [("ID", "NAME", "KEY", "SCOPES", "LIMITS", "USED", "STATE")]
    for key in keys:
        used = "never" if key.last_used_at is None else f"{_span(now - key.last_used_at)} ago"
        state = _state(key, now, replaced=newest[key.identity] != key.id)
        name = one_line(key.name, 40)
        rows.append((key.id, name, f"{key.prefix}…", _scopes(key), _limits(key), used, state))
    none = ["there are no keys; toolwire keys add NAME creates one"]
    return [key.public() for key in keys], table(rows) if keys else none


async def _revoke(records: KeyRecords, arguments: argparse.Namespace) -> Output:
    keys = await _found(records, arguments.name)
    if not keys:
        raise ConfigError(f"key {arguments.name}: there is no active key with this name or id")
    if len({key.name for key in keys}) > 1:
        raise ConfigError(f"key {arguments.name}: {len(keys)} keys match; use the full id of one key")
    for key in keys:
        await records.revoke(key.id)
    ids = [key.id for key in keys]
    return {"revoked": ids}, [f"{id}: revoked; every server knows within {FRESH_S:g} s" for id in ids]


_ACTIONS: dict[str, Callable[[KeyRecords, argparse.Namespace], Awaitable[Output]]] = {
    "add": _add,
    "list": _list,
    "revoke": _revoke,
    "rotate": _rotate,
}


async def _found(records: KeyRecords, text: str) -> list[StoredKey]:
    """Returns the active keys that `text` identifies.

    A name identifies every active key of this name: after a rotation, that can be the new and the old key. An
    id identifies one key. The beginning of an id identifies every key whose id begins with it.
    """
    now = time.time()
    keys = [key for key in await records.all() if key.lives(now)]
    return (
        [key for key in keys if key.name == text]
        or [key for key in keys if key.id == text]
        or [key for key in keys if key.id.startswith((text, f"key_{text}"))]
    )


# --- text


def _option(limit: str) -> str:
    return f"--{limit.replace('_', '-')}"


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d{1,9})([smhd]?)", text.strip())
    if match is None:
        raise ConfigError(f"--grace {text}: expected a time such as 90s, 30m, 24h or 7d")
    return float(int(match[1]) * UNITS[match[2]])


def _scopes(key: StoredKey) -> str:
    models = ", ".join(one_line(pattern, 40) for pattern in key.scopes.get("models") or ["*"])
    scopes = ["all models" if models == "*" else models]
    if not key.scopes.get("tools", True):
        scopes.append("no tools")
    scopes += [name for name in ("admin", "approve") if key.scopes.get(name)]
    return ", ".join(scopes)


def _limits(key: StoredKey) -> str:
    limits = (f"{key.limits[name]:,} {short}" for name, (_, short) in LIMITS.items() if name in key.limits)
    return ", ".join(limits) or "the settings' limits"


def _state(key: StoredKey, now: float, replaced: bool) -> str:
    """Returns the key's state for the list. `replaced`: a rotation has created a newer key."""
    if key.revoked_at is None:
        return "active"
    state = "replaced" if replaced else "revoked"
    return f"{state}, ends in {_span(key.revoked_at - now)}" if key.lives(now) else state


def _span(seconds: float) -> str:
    whole = max(0, int(seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if whole >= size:
            return f"{whole // size} {unit}"
    return f"{whole} s"

"""`toolwire notices`: lists the notices of the settings, and sends a test message."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from urllib.parse import urlsplit

from toolwire.settings.load import load
from toolwire.settings.notices import unencrypted
from toolwire.settings.types import ConfigError, NoticeSettings, ServerSettings, Settings, is_loopback
from toolwire.settings.values import check_known
from toolwire.surfaces.notices import delivery, messages
from toolwire.surfaces.tables import table


def notices_arguments(parser: argparse.ArgumentParser) -> None:
    actions = "list (default) shows the notices; test sends a test message and shows the result"
    parser.add_argument("action", nargs="?", choices=("list", "test"), default="list", help=actions)
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="test: the name of a notice, [notices.NAME] in the settings"
    )
    parser.add_argument("--json", action="store_true", help="JSON, for scripts")


def run_notices(arguments: argparse.Namespace) -> int:
    settings = load(arguments.config, os.environ, {}, exposed=False)
    if arguments.action == "test":
        return asyncio.run(_test(settings, _named(settings, arguments.name), arguments.json))
    rows = [
        {"name": one.name, "kind": one.kind, "level": one.level, "detail": one.detail, "problem": one.problem}
        for one in settings.notices
    ]
    if arguments.json:
        print(json.dumps(rows))
    elif not rows:
        print("there are no notices: docs/notices.md shows how to set one up")
    else:
        shown = [
            (one["name"], one["kind"], one["level"], one["detail"], one["problem"] or "ok") for one in rows
        ]
        print("\n".join(table([("NAME", "KIND", "LEVEL", "DETAIL", "STATE"), *shown])))
    return 0


def _named(settings: Settings, name: str | None) -> NoticeSettings:
    known = {one.name: one for one in settings.notices}
    if not known:
        raise ConfigError("there are no notices in the settings; add a table [notices.NAME]")
    if name is None and len(known) > 1:
        raise ConfigError(f"notices test: name one of {', '.join(known)}")
    name = name or next(iter(known))
    check_known(name, list(known), "", "notice")
    return known[name]


async def _test(settings: Settings, notice: NoticeSettings, as_json: bool) -> int:
    """Sends a test message. Returns exit status 1 if it was not accepted."""
    if notice.problem:
        raise ConfigError(f"notices.{notice.name}: {notice.problem}")
    async with delivery.client() as session:
        sent = await delivery.deliver(session, notice, messages.test(notice, time.time()))
    wrong = await warnings(settings, notice)
    host = urlsplit(notice.url).hostname
    if as_json:
        facts = {
            "name": notice.name,
            "sent": not sent.problem,
            "status": sent.status,
            "problem": sent.problem,
        }
        print(json.dumps({**facts, "warnings": [text for text, _ in wrong]}))
        return 1 if sent.problem else 0
    if sent.problem:
        print(f"✗ {notice.name}: not sent: {sent.problem}")
    else:
        print(f"✓ {notice.name}: {host} accepted the message ({sent.status}, {sent.took_s * 1000:.0f} ms)")
        if notice.level != "notice":
            print("  Open the message's link on your phone: the page must say that the link works.")
    for text, fix in wrong:
        print(f"! {text}\n  → {fix}")
    return 1 if sent.problem else 0


async def warnings(settings: Settings, notice: NoticeSettings) -> list[tuple[str, str]]:
    """Returns the minor problems of a notice, which is sent nevertheless, each with what to do about it."""
    out: list[tuple[str, str]] = []
    if notice.level == "notice":
        return out
    for key in ("url", "pages"):
        if unencrypted(getattr(notice, key)):
            text = f"{key} is not https: others in the network can read the links and approve calls"
            out.append(
                (text, f'use an https address, or a VPN; or set level = "notice" in [notices.{notice.name}]')
            )
    if problem := _unreachable(settings.server, notice.pages):
        out.append(problem)
    if notice.kind == "ntfy":
        async with delivery.client() as session:
            readable = await delivery.can_read(session, notice)
        if readable:
            text = (
                "the token can also read the topic: a program that finds the token can read the links and "
                "approve calls"
            )
            fix = "on the ntfy server, give Toolwire a user of its own: ntfy access USER TOPIC write-only"
            out.append((text, fix))
    return out


def _unreachable(server: ServerSettings, pages: str) -> tuple[str, str] | None:
    """Returns why a phone could not open the address `pages`, with what to do; None if it could."""
    host = (urlsplit(pages).hostname or "").lower()
    names = {one.lower().partition(":")[0] for one in server.hosts}
    if is_loopback(server.host) and not is_loopback(host) and host not in names:
        return f"pages: the server does not accept the host name {host}", f'add "{host}" to server.hosts'
    if is_loopback(host):
        return (
            f"pages is {host}, which a phone cannot reach",
            "set pages to an address that the phone can open",
        )
    return None

"""The law of consent: without a grant, the model learns nothing about the notes' contents.

A case is two vaults with the same names and different contents, and the same calls over both. The model must
get the same results. No call is granted: the person denies it, nobody decides, or remembered grants and rules
apply to other tools only.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from fuzz.law import Case, Law, holds
from toolwire.store.engine import Connection
from toolwire.store.store import Store
from toolwire.surfaces.terminal.surface import RuleSurface
from toolwire.tools import rules
from toolwire.tools.approvals import Approvals
from toolwire.tools.contract import Approval, Asking, Decision, Grant, ToolCall
from toolwire.tools.executor import Executor, Toolbox
from toolwire.tools.vault_lookups import Library
from toolwire.tools.vault_tools import tools_of

NAMES = ("Bank.md", "a/Plan.md", "é.md", "list.txt")
MISSING = ("Nowhere.md", "a", "../out.md", ".obsidian/x.md", "board.canvas", "")
MOST_BYTES = 300
"""The size limit of a file in these vaults. It is small, so that cases with too large notes are cheap."""
WORDS = (
    "PIN:",
    "4711",
    "the",
    "launch",
    "code",
    "is",
    "not",
    "Ä",
    "日本",
    "#tag",
    "[[Plan]]",
    "- [ ] task",
    "status: draft",
    "---",
    "# Head",
)
ENDS = ("\n", "\n", "\n", "\r\n", "\r", " ")
ABSENT = "☠ no such text ☠"
ASKING = Asking("session", "model", "test", source="vault:v")


# --- cases ---


def _text(rng: Random) -> str:
    return "".join(rng.choice(WORDS) + rng.choice(ENDS) for _ in range(rng.randrange(12)))


def _content(rng: Random) -> bytes:
    kind = rng.random()
    if kind < 0.08:
        return b"\xff\xfe" + _text(rng).encode()
    if kind < 0.12:
        return _text(rng).encode() + b"\0"
    if kind < 0.2:
        return (_text(rng) + "long ").encode() * MOST_BYTES
    return (b"\xef\xbb\xbf" if kind > 0.95 else b"") + _text(rng).encode()


def _pair(rng: Random) -> tuple[bytes, bytes]:
    """Returns a note's contents in both vaults: the same, nearly the same, or different."""
    one = _content(rng)
    kind = rng.random()
    if kind < 0.15:
        return one, one
    if kind < 0.5:
        place = rng.randrange(len(one) + 1)
        return one, one[:place] + rng.choice((b"4711", b"\n", b"x", b"4711 4711")) + one[place:]
    return one, _content(rng)


class _Arguments:
    """Draws arguments: texts and hashes that occur in one of the vaults, and some that occur in no vault."""

    def __init__(self, rng: Random, files: Sequence[dict[str, Any]]) -> None:
        self.rng = rng
        self.contents = [content for file in files for content in (file["one"], file["two"])]
        self.texts = [content.decode("utf-8", "ignore") for content in self.contents]

    def path(self) -> str:
        return self.rng.choice(NAMES if self.rng.random() < 0.85 else MISSING)

    def probe(self) -> str:
        """Returns a passage of a note, or a text that no note contains."""
        text = self.rng.choice(self.texts)
        if not text or self.rng.random() < 0.2:
            return self.rng.choice((ABSENT, "x", ""))
        start = self.rng.randrange(len(text))
        return text[start : start + self.rng.randrange(1, 20)]

    def whole(self) -> str:
        if self.rng.random() < 0.7:
            return self.rng.choice(self.texts)
        return self.rng.choice(("", "new\n", "y" * 2 * MOST_BYTES, "a\0"))

    def base(self) -> dict[str, str]:
        digest = hashlib.sha256(self.rng.choice(self.contents)).hexdigest()
        return (
            {"baseHash": self.rng.choice((digest, digest.upper(), "0" * 64))}
            if self.rng.random() < 0.4
            else {}
        )

    def edit(self) -> dict[str, str]:
        old = self.probe()
        return {"oldText": old, "newText": self.rng.choice((old + "☃", old, "", self.probe()))}

    def edits(self) -> list[dict[str, str]]:
        if self.rng.random() < 0.2:  # two edits that undo each other
            probe = self.probe()
            return [{"oldText": probe, "newText": probe + "☃"}, {"oldText": probe + "☃", "newText": probe}]
        return [self.edit() for _ in range(self.rng.choice((1, 1, 2, 3)))]

    def ranges(self) -> list[dict[str, Any]]:
        drawn = self.rng.randrange
        return [
            {"filePath": self.path(), "startLine": drawn(1, 9), "endLine": drawn(1, 9)}
            for _ in range(drawn(3))
        ]


DRAWN: dict[str, Callable[[_Arguments], dict[str, Any]]] = {
    "vault_search": lambda one: {"query": one.probe() or "x", "limit": one.rng.randrange(1, 51)},
    "file_read": lambda one: {
        "filePaths": [one.path() for _ in range(one.rng.randrange(1, 4))],
        "ranges": one.ranges(),
    },
    "vault_list": lambda one: {"folder": one.rng.choice(("", "a", "b")), "depth": one.rng.randrange(1, 5)},
    "vault_tags": lambda one: {"tag": one.probe()},
    "note_links": lambda one: {"filePath": one.path()},
    "note_properties": lambda one: {"filePath": one.path()},
    "vault_tasks": lambda one: {"status": one.rng.choice(("open", "done", "all"))},
    "daily_note": lambda one: {"date": one.rng.choice(("today", "2026-11-15", "never"))},
    "note_write": lambda one: {"filePath": one.path(), "content": one.whole(), **one.base()},
    "note_edit": lambda one: {"filePath": one.path(), "edits": one.edits(), **one.base()},
}
CHANGES = ("note_write", "note_edit")


def _draw(rng: Random) -> Case:
    files = [{"name": name, "one": one, "two": two} for name in NAMES for one, two in (_pair(rng),)]
    arguments = _Arguments(rng, files)
    mode = rng.choice(("denied", "expired", "grants", "rules"))
    granted = rng.sample(sorted(DRAWN), rng.randrange(1, 8)) if mode in ("grants", "rules") else []
    asked = [name for name in DRAWN if name not in granted]
    asked += [name for name in CHANGES if name in asked] * 3  # these read a note before anybody is asked
    calls = [
        {"name": name, "arguments": DRAWN[name](arguments)}
        for name in (rng.choice(asked) for _ in range(rng.randrange(4, 13)))
    ]
    # A search may run, but its results must not be shared: the model must not learn more than without it.
    runs = mode == "grants" and "vault_search" not in granted and rng.random() < 0.5
    return {
        "files": files,
        "calls": calls,
        "mode": mode,
        "granted": granted,
        "search_runs": runs,
        "round": rng.randrange(1, 5),
    }


# --- judging ---


class _Person:
    """A person who denies every question, or who leaves every question undecided."""

    def __init__(self, approvals: Approvals, denies: bool) -> None:
        self._approvals = approvals
        self._denies = denies

    async def ask(self, approvals: Sequence[Approval]) -> bool:
        for approval in approvals if self._denies else ():
            await self._approvals.decide(approval, Decision(False), by="test")
        return False


async def _seen(case: Case, which: str, folder: Path) -> tuple[list[Any], int]:
    """Returns what the model gets for each call over one vault, and the length of the audit log."""
    root = folder / "vault"
    for file in case["files"]:
        path = root / file["name"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file[which])
    library = Library(root, cache=folder / "cache")
    library.vault.policy.limits = library.vault.limits = replace(library.vault.limits, file_bytes=MOST_BYTES)
    store = Store("sqlite:///:memory:")
    try:
        approvals = Approvals(store)
        toolbox = Toolbox(tools_of(library))
        held = [(name, "run") for name in case["granted"]] + [
            (name, "share") for name in toolbox.tools if name != "vault_search"
        ]
        held += [("vault_search", "run")] if case["search_runs"] else []
        surface: Any = _Person(approvals, case["mode"] != "expired")
        if case["mode"] == "rules":
            surface = RuleSurface(approvals, rules.parse(case["granted"], toolbox.tools), lambda: toolbox)
        elif case["mode"] == "grants":
            await _grant(store, held)
        executor = Executor(toolbox, approvals, surface)
        calls = [
            ToolCall(f"call_{number}", one["name"], json.dumps(one["arguments"]))
            for number, one in enumerate(case["calls"])
        ]
        outcomes = []
        for first in range(0, len(calls), case["round"]):
            outcomes += await executor.execute(calls[first : first + case["round"]], ASKING)
        return [(one.status, one.result) for one in outcomes], len(await approvals.records.audit())
    finally:
        library.close()
        await store.close()


def _insert(connection: Connection, insert: str, row: tuple[Any, ...]) -> None:
    connection.execute(insert, row)


async def _grant(store: Store, held: Sequence[tuple[str, Any]]) -> None:
    """Stores grants for other tools and other stages, as approved questions do."""
    for number, (tool, stage) in enumerate(held):
        grant = Grant(
            f"grant_{number}", 0.0, "", "tool", tool, stage, "", "", source=ASKING.source, model=ASKING.model
        )
        row = tuple(getattr(grant, field.name) for field in fields(Grant))
        insert = (
            f"INSERT INTO grants ({', '.join(field.name for field in fields(Grant))}) VALUES "
            f"({', '.join('?' * len(row))})"
        )
        await store.run(partial(_insert, insert=insert, row=row), "write")


async def _both(case: Case) -> list[tuple[list[Any], int]]:
    seen = []
    for which in ("one", "two"):
        with tempfile.TemporaryDirectory(prefix="toolwire-consent-") as folder:
            seen.append(await _seen(case, which, Path(folder)))
    return seen


def _judge(case: Case) -> None:
    (one, lines), (two, _) = asyncio.run(_both(case))
    for call, here, there in zip(case["calls"], one, two, strict=True):
        holds(
            f"what the model sees of {call['name']} before a grant does not depend on the notes", here, there
        )
        holds("nothing runs without a grant", False, here[0] == "done")
    holds("every call is in the audit log", True, lines >= len(case["calls"]))


LAWS: dict[str, Law] = {
    "consent": Law(
        _draw,
        _judge,
        "what a model sees before a grant does not depend on the contents of notes",
        ("calls", "files"),
        cost=10,
    )
}

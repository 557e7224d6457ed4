"""Simple tools for a folder of notes, and a person who decides, for tests of approvals.

`Notes(folder).tools()` are `vault_search`, `file_read`, `note_write` and `fails`. `Notes.steps` lists what
the tools did, in order; a file `log` gets the same lines, so that another process can read them. Unlike
Toolwire's own vault tools, these tools do not confine paths and do not rank results. `Person` is a surface
that answers questions with given decisions, in order, and records what it was shown.
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from toolwire.tools.approvals import Approvals
from toolwire.tools.contract import (
    Approval,
    Arguments,
    Decision,
    Effect,
    Preview,
    Ran,
    Tool,
    ToolFailed,
    Touched,
)

PREVIEW = 200


class Notes:
    def __init__(self, folder: Path, log: Path | None = None) -> None:
        self.folder = folder
        self.steps: list[str] = []
        self._log = log

    def tools(self) -> list[Tool]:
        return [Search(self), Read(self), Write(self), Fails(self)]

    def step(self, words: str) -> None:
        self.steps.append(words)
        if self._log is not None:
            with self._log.open("a", encoding="utf-8") as file:
                file.write(words + "\n")

    def text(self, path: str) -> str | None:
        file = self.folder / path
        return file.read_text("utf-8") if file.is_file() else None


class Person:
    """Answers questions with the given decisions, in order.

    "leave" leaves a question undecided. Questions after the last decision also stay undecided.
    """

    def __init__(
        self,
        approvals: Approvals,
        *decisions: Decision | Literal["leave"],
        before: Callable[[], object] = lambda: None,
    ) -> None:
        self.approvals = approvals
        self.decisions = list(decisions)
        self.shown: list[list[Approval]] = []
        self._before = before

    async def ask(self, approvals: Sequence[Approval]) -> bool:
        self.shown.append(list(approvals))
        left = False
        for approval in approvals:
            decision = self.decisions.pop(0) if self.decisions else None
            self._before()
            if isinstance(decision, Decision):
                await self.approvals.decide(approval, decision, by="test")
            left = left or decision == "leave"
        return left


@asynccontextmanager
async def opened(settings: object, folder: Path) -> AsyncIterator[Sequence[Tool]]:
    """Yields the tools of a folder, as a chat opens them. A file next to the folder logs their steps."""
    yield Notes(folder, folder.with_name(folder.name + ".steps")).tools()


def _object(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


@dataclass
class _Tool:
    notes: Notes

    async def preview(self, arguments: Arguments) -> Preview:
        raise NotImplementedError

    def share(self, ran: Ran, picked: Sequence[str]) -> Any:
        raise NotImplementedError


class Search(_Tool):
    name = "vault_search"
    title = "Search the vault"
    purpose = "Looks for notes by name or content."
    description = "Search the vault for files by name or content."
    parameters: Mapping[str, Any] = _object(
        {"query": {"type": "string"}, "limit": {"type": "integer", "default": 10, "maximum": 50}}, "query"
    )
    effect: Effect = "search"

    async def preview(self, arguments: Arguments) -> Preview:
        return Preview(summary=f"Searches for {arguments['query']!r}.")

    async def run(self, arguments: Arguments, picked: Sequence[str] | None, shown: Preview) -> Ran:
        self.notes.step(f"search {arguments['query']}")
        query = str(arguments["query"]).lower()
        found: list[dict[str, Any]] = []
        for file in sorted(self.notes.folder.rglob("*.md")):
            text = file.read_text("utf-8")
            at = text.lower().find(query)
            if at >= 0 or query in file.stem.lower():
                path = file.relative_to(self.notes.folder).as_posix()
                preview = text[max(0, at - PREVIEW // 2) :][:PREVIEW]
                found.append(
                    {
                        "path": path,
                        "basename": file.stem,
                        "matches": max(1, text.lower().count(query)),
                        "preview": preview,
                    }
                )
        found = found[: arguments["limit"]]
        touched = tuple(
            Touched(str(place), one["path"], None, one["preview"]) for place, one in enumerate(found)
        )
        return Ran(found, Preview(touched, pick=True))

    def share(self, ran: Ran, picked: Sequence[str]) -> Any:
        return [one for place, one in enumerate(ran.value) if str(place) in picked]


class Read(_Tool):
    name = "file_read"
    title = "Read notes"
    purpose = "Reads whole notes and shares them with the model."
    description = "Read the full contents of specific files from the vault."
    parameters: Mapping[str, Any] = _object(
        {"filePaths": {"type": "array", "items": {"type": "string"}}}, "filePaths"
    )
    effect: Effect = "read"

    async def preview(self, arguments: Arguments) -> Preview:
        touched = []
        for path in arguments["filePaths"]:
            file = self.notes.folder / path
            touched.append(
                Touched(path, path, file.stat().st_size)
                if file.is_file()
                else Touched(path, path, missing=True)
            )
        return Preview(tuple(touched), pick=True)

    async def run(self, arguments: Arguments, picked: Sequence[str] | None, shown: Preview) -> Ran:
        out: list[dict[str, Any]] = []
        for one in shown.touched:
            if one.missing:
                out.append({"path": one.path, "content": f"File not found: {one.path}", "size": 0})
            elif picked is not None and one.key in picked:
                self.notes.step(f"read {one.path}")
                text = self.notes.text(one.path) or ""
                out.append({"path": one.path, "content": text, "size": len(text.encode())})
        unread = tuple((one.path, "not found") for one in shown.touched if one.missing)
        return Ran(
            out,
            shared=tuple(one["path"] for one in out if (one["path"], "not found") not in unread),
            unread=unread,
        )


class Write(_Tool):
    name = "note_write"
    title = "Write a note"
    purpose = "Creates a note, or replaces its text."
    description = "Write a note."
    parameters: Mapping[str, Any] = _object(
        {"path": {"type": "string"}, "content": {"type": "string"}}, "path", "content"
    )
    effect: Effect = "write"

    async def preview(self, arguments: Arguments) -> Preview:
        path = arguments["path"]
        before = (self.notes.text(path) or "").splitlines()
        diff = "\n".join(
            difflib.unified_diff(before, arguments["content"].splitlines(), path, path, lineterm="")
        )
        return Preview((Touched(path, path, len(arguments["content"].encode())),), diff)

    async def run(self, arguments: Arguments, picked: Sequence[str] | None, shown: Preview) -> Ran:
        self.notes.step(f"write {arguments['path']}")
        file = self.notes.folder / arguments["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(arguments["content"], "utf-8")
        return Ran({"path": arguments["path"], "written": True})


class Fails(_Tool):
    name = "fails"
    title = "Fail"
    purpose = "Fails, in the way that it is asked to."
    description = "A tool that fails."
    parameters: Mapping[str, Any] = _object({"how": {"type": "string"}}, "how")
    effect: Effect = "read"

    async def preview(self, arguments: Arguments) -> Preview:
        if arguments["how"] == "preview":
            raise ToolFailed("it can not be planned")
        if arguments["how"] == "preview badly":
            raise RuntimeError("a bug")
        return Preview(summary="Fails.")

    async def run(self, arguments: Arguments, picked: Sequence[str] | None, shown: Preview) -> Ran:
        self.notes.step(f"fail {arguments['how']}")
        raise ToolFailed("the disk is full") if arguments["how"] == "told" else RuntimeError("a bug")

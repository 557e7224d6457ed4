"""Codex as a backend: the real `codex app-server`, on the person's own login or another Responses provider.

How tools are served depends on the installed version, which `prepare` finds out: nothing is assumed.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from os.path import expanduser
from typing import Any

from toolwire.backends.agents.run import one_response
from toolwire.backends.base import Batch, LiveRun
from toolwire.backends.codex.home import CodexHome, find_binary, prepare_home
from toolwire.backends.codex.options import CodexOptions, Features
from toolwire.backends.codex.pool import Outdated, Pool, Seat
from toolwire.backends.codex.runs import CodexRun
from toolwire.backends.codex.thread import Thread
from toolwire.backends.codex.worker import HOW, CodexWorker
from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Turn

_KNOWN = re.compile(
    r"(?:code[xv]-5(?:\.\d)?|gpt-5(?:\.\d)?(?:-code[xv])?)(?:-(l|m|h|xh|low|medium|high|xhigh|local))?",
    re.IGNORECASE,
)
"""The model names of codex-completions-api and its successor. Their last part is a reasoning effort."""
_SHORT = {"l": "low", "m": "medium", "h": "high", "xh": "xhigh", "local": "low"}

FIELDS = frozenset(
    {"reasoning_effort", "reasoning", "reasoning.summary", "response_format", "text", "verbosity"}
)
_TEXT_ONLY = Capabilities(
    schema=True, images=True, image_urls=False, reasoning=True, fields=FIELDS, recalls=frozenset({"sealed"})
)
_NATIVE = replace(_TEXT_ONLY, tools=True, tool_choice=True, parallel=True)
STRATEGIES: dict[str, Strategy] = {"parked": "parked", "replay": "native", "emulated": "emulated"}


def strategy_of(options: CodexOptions, features: Features) -> Strategy:
    """The best that both the version and the options allow."""
    return STRATEGIES[options.tools] if features.native_tools else "emulated"


class CodexBackend:
    """One configured model. `open` is for the strategy `parked`; `run` serves all of them."""

    def __init__(self, id: str, options: CodexOptions | None = None) -> None:
        self.id = id
        self._text_only = replace(_TEXT_ONLY, dialects=(options.dialects if options else None) or ())
        self.options = options or CodexOptions()
        self.home: CodexHome | None = None
        self.pool: Pool | None = None
        self._left: list[Pool] = []
        self._preparing = asyncio.Lock()

    @property
    def strategy(self) -> Strategy:
        return (
            strategy_of(self.options, self.home.features)
            if self.home is not None
            else STRATEGIES[self.options.tools]
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._text_only if self.strategy == "emulated" else _NATIVE

    @property
    def aliases(self) -> Sequence[str]:
        return tuple(f"{self.id}-{effort}" for effort in self.options.efforts)

    def alias(self, name: str) -> str | None:
        if name in self.aliases:
            return name.removeprefix(f"{self.id}-")
        found = _KNOWN.fullmatch(name)
        effort = (found[1] or "").lower() if found else None
        return effort and _SHORT.get(effort, effort)

    async def prepare(self) -> None:
        """Finds the version and writes the home; processes start with the first turn."""
        if self.pool is not None:
            return
        async with self._preparing:
            if self.pool is None:
                self.home = await prepare_home(self.options)
                self.pool = Pool(self.options, self.home)

    async def _renewed(self, outdated: Pool) -> Pool:
        """Codex was updated: the home is written anew. Runs on old processes go on until they end."""
        async with self._preparing:
            if self.pool is None or self.pool is outdated:
                self.home = await prepare_home(self.options)
                self.pool = Pool(self.options, self.home)
                self._left.append(outdated)
            return self.pool

    async def ready(self) -> bool:
        if self.pool is not None and self.pool.workers:
            return True
        return shutil.which(expanduser(self.options.bin)) is not None

    async def close(self) -> None:
        pool, self.pool = self.pool, None
        for one in (*self._left, *([pool] if pool is not None else [])):
            await one.close()
        self._left.clear()

    def open(self, turn: Turn) -> LiveRun:
        """A run that can be parked. `prepare` comes first."""
        home = self._prepared()
        if not home.features.native_tools:
            raise ToolwireError("backend", f"Codex {home.version} has no tools that could be parked.")
        return self._run(turn)

    def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        return one_response(self._run, turn, self.prepare)

    def _run(self, turn: Turn) -> LiveRun:
        return CodexRun(turn, self.options, self._prepared(), self._thread)

    def _prepared(self) -> CodexHome:
        if self.home is None:
            raise ToolwireError("backend_unavailable", "Codex is not prepared yet.")
        return self.home

    async def _thread(self) -> Thread:
        """A thread on a worker that is logged in."""
        for last in (False, True):
            seat = await self._lease()
            try:
                if self.options.provider is None:
                    await seat.worker.require_login()
                return Thread(seat)
            except BaseException as error:
                # A process does not notice a login that is newer than itself: a fresh one does.
                again = isinstance(error, ToolwireError) and (self._prepared().path / "auth.json").exists()
                seat.retired = seat.retired or (again and not last)
                seat.release(False)
                if last or not again:
                    raise
        raise AssertionError("unreachable")

    async def _lease(self) -> Seat:
        await self.prepare()
        pool = self.pool
        assert pool is not None
        try:
            return await pool.lease()
        except Outdated:
            return await (await self._renewed(pool)).lease()


# --- doctor ------------------------------------------------------------
#
# What there is of Codex on this machine: the facts that `toolwire doctor` tells.


async def inspect(options: CodexOptions) -> dict[str, Any]:
    """`installed`, `path`, `version`, `home`, `strategy`, `logged_in` (None: not known, or another provider's business), and in `problem` one line
    where something is missing. Nothing is asked of a model."""
    facts: dict[str, Any] = dict.fromkeys(("path", "version", "home", "strategy", "logged_in", "problem"))
    facts["installed"] = False
    try:
        facts["path"] = find_binary(options)
        facts["installed"] = True
        home = await prepare_home(options)
        facts.update(
            version=str(home.version), home=str(home.path), strategy=strategy_of(options, home.features)
        )
        worker = CodexWorker(home)
        try:
            async with home.warming():
                await worker.start(options.start_timeout_s)
            if options.provider is None:
                account = await worker.account()
                facts["logged_in"] = account.account is not None
                if not facts["logged_in"]:
                    facts["problem"] = f"Codex is not logged in. {HOW}"
        finally:
            await worker.close()
    except ToolwireError as error:
        facts["problem"] = error.failure.message
    return facts

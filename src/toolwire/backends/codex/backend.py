"""Codex as a backend: the real `codex app-server`, on the person's own login or another Responses provider.

How tools are served depends on the installed version, which `prepare` finds out: nothing is assumed.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from os.path import expanduser
from typing import Any

from toolwire.backends.agents.run import one_response
from toolwire.backends.base import Batch, LiveRun
from toolwire.backends.codex.home import CodexHome, find_binary, prepare_home
from toolwire.backends.codex.items import RenamedRun, renamed
from toolwire.backends.codex.options import CodexOptions, Features
from toolwire.backends.codex.pool import Lease, Outdated, Pool
from toolwire.backends.codex.runs import DynamicRun, run_text
from toolwire.backends.codex.thread import Thread
from toolwire.backends.codex.worker import HOW, CodexWorker, require_login
from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Turn

# --- aliases ------------------------------------------------------------
#
# Other names of a Codex model: one per reasoning effort, and the names that older Codex proxies gave out.
# Standard library only.

# The names of codex-completions-api and its successor, with the effort that each stands for.
_EFFORTS = {"l": "low", "low": "low", "m": "medium", "medium": "medium", "h": "high", "high": "high", "xh": "xhigh", "xhigh": "xhigh", "local": "low"}
_KNOWN = re.compile(r"(?:code[xv]-5(?:\.\d)?|gpt-5(?:\.\d)?(?:-code[xv])?)(?:-(l|m|h|xh|low|medium|high|xhigh|local))?", re.IGNORECASE)


def efforts_of(id: str, efforts: Sequence[str]) -> dict[str, str]:
    """`codex-low`, `codex-medium` …: listed beside the model itself."""
    return {f"{id}-{effort}": effort for effort in efforts}


def known_effort(name: str) -> str | None:
    """The effort that an older proxy's model name stands for ("" for none); None when it is no such name."""
    found = _KNOWN.fullmatch(name)
    if found is None:
        return None
    return _EFFORTS[found[1].lower()] if found[1] else ""


FIELDS = frozenset({"reasoning_effort", "reasoning", "reasoning.summary", "response_format", "text", "verbosity"})
_TEXT_ONLY = Capabilities(schema=True, images=True, image_urls=False, reasoning=True, fields=FIELDS, recalls=frozenset({"sealed"}))
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
        self._home: CodexHome | None = None
        self._pool: Pool | None = None
        self._left: list[Pool] = []
        self._preparing = asyncio.Lock()

    @property
    def strategy(self) -> Strategy:
        return strategy_of(self.options, self._home.features) if self._home is not None else STRATEGIES[self.options.tools]

    @property
    def capabilities(self) -> Capabilities:
        return self._text_only if self.strategy == "emulated" else _NATIVE

    @property
    def aliases(self) -> Sequence[str]:
        return tuple(efforts_of(self.id, self.options.efforts))

    def alias(self, name: str) -> str | None:
        effort = efforts_of(self.id, self.options.efforts).get(name)
        return effort if effort is not None else known_effort(name)

    @property
    def home(self) -> CodexHome | None:
        return self._home

    @property
    def pool(self) -> Pool | None:
        return self._pool

    async def prepare(self) -> None:
        """Finds the version and writes the home; processes start with the first turn."""
        if self._pool is not None:
            return
        async with self._preparing:
            if self._pool is None:
                self._home = await prepare_home(self.options)
                self._pool = Pool(self.options, self._home)

    async def _renewed(self, outdated: Pool) -> Pool:
        """Codex was updated: the home is written anew. Runs on old processes go on until they end."""
        async with self._preparing:
            if self._pool is None or self._pool is outdated:
                self._home = await prepare_home(self.options)
                self._pool = Pool(self.options, self._home)
                self._left.append(outdated)
            return self._pool

    async def ready(self) -> bool:
        if self._pool is not None and self._pool.workers:
            return True
        return shutil.which(expanduser(self.options.bin)) is not None

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        for one in (*self._left, *([pool] if pool is not None else [])):
            await one.close()
        self._left.clear()

    def open(self, turn: Turn) -> LiveRun:
        """A run that can be parked. `prepare` comes first."""
        home = self._prepared()
        if not home.features.native_tools:
            raise ToolwireError("backend", f"Codex {home.version} has no tools that could be parked.")
        turn, back = renamed(turn)
        live = DynamicRun(turn, self.options, home.features, str(home.cwd), self._thread)
        return RenamedRun(live, back) if back else live

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        await self.prepare()
        home = self._prepared()
        if home.features.native_tools:
            answer = one_response(self.open, turn)
        else:
            answer = run_text(turn, self.options, home.features, str(home.cwd), self._thread)
        async with aclosing(answer) as batches:
            async for batch in batches:
                yield batch

    def _prepared(self) -> CodexHome:
        if self._home is None:
            raise ToolwireError("backend_unavailable", "Codex is not prepared yet.")
        return self._home

    async def _thread(self) -> Thread:
        """A place for one thread, on a worker that is logged in."""
        lease = await self._lease()
        if self.options.provider is not None:
            return Thread(lease)
        try:
            await require_login(lease.worker)
        except ToolwireError:
            if not (self._prepared().path / "auth.json").exists():
                lease.release(False)
                raise
            lease.retire()  # the person has logged in since this process began, and it does not look again
            lease.release(False)
            lease = await self._lease()
            try:
                await require_login(lease.worker)
            except BaseException:
                lease.release(False)
                raise
        except BaseException:
            lease.release(False)
            raise
        return Thread(lease)

    async def _lease(self) -> Lease:
        await self.prepare()
        pool = self._pool
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
        facts.update(version=str(home.version), home=str(home.path), strategy=strategy_of(options, home.features))
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

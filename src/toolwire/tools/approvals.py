"""Asking a person, and keeping what was asked and decided.

Law 11, consent comes first: a question is written down before it is asked; the answer must carry the token of exactly what was shown; no answer
within its time, a lost surface and an error all mean no, kept as `expired`, which is not `denied`. Whoever asks waits here; whoever decides (the same
surface, the inbox, a shell) decides here, in this process or another.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from toolwire.core.errors import ToolwireError
from toolwire.core.ids import IdFactory, random_id
from toolwire.store.store import Store
from toolwire.tools.contract import Approval, Arguments, Asking, Decision, Grant, Preview, Stage
from toolwire.tools.records import Records

# --- asker ------------------------------------------------------------
#
# Which process asks a question, so that one that died in the middle leaves no question behind that nobody
# waits for. An asker is `HOST/PID/STARTED`; the host's name is that of its space of process ids too, as
# containers have them. Only the machine that ran it can say that it is gone; elsewhere its questions wait
# for their time to end.


@cache
def this_process() -> str:
    return f"{_host()}/{os.getpid()}/{_started(os.getpid())}"


def is_gone(asker: str) -> bool:
    """Whether it is certain that nobody of that name waits any more."""
    host, _, process = asker.rpartition("/")[0].rpartition("/")
    started = asker.rpartition("/")[2]
    if not host or host != _host() or not process.isdigit():
        return False
    pid = int(process)
    if pid == os.getpid():
        return asker != this_process()
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # another user's
    now = _started(pid)
    return bool(now and started) and now != started


def _host() -> str:
    try:
        return f"{socket.gethostname()}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> str:
    """When, in the kernel's count: a number that another process of the same id does not have. Empty where the system does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


LIFETIME_S = 600.0
KEPT_S = 30 * 86400.0
"""How long a decided question is kept, with what was shown of the person's notes."""
LOOK_EVERY_S = 0.25
"""How often a waiting surface looks for a decision that another process made."""
MOST_WAITING = 50
"""Questions of one session that may wait for a decision at once."""


class Surface(Protocol):
    """Where a person is asked. It decides by `Approvals.decide`, or leaves the questions to whoever else looks at the inbox."""

    async def ask(self, approvals: Sequence[Approval]) -> bool:
        """Shows the questions of one turn together, and decides them. Of what is left undecided: True, somebody else may decide it; False, nobody."""
        ...


class Approvals:
    def __init__(self, store: Store, *, lifetime_s: float = LIFETIME_S, clock: Callable[[], float] = time.time, ids: IdFactory = random_id) -> None:
        self.records = Records(store)
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._ids = ids
        self._news: dict[str, asyncio.Event] = {}
        self._deciding = asyncio.Lock()

    # --- asking --------------------------------------------------------------------------------------------------------------------------------

    async def ask(self, asking: Asking, questions: Sequence[tuple[str, Stage, Arguments, Preview]], surface: Surface | None) -> list[Approval]:
        """Asks several questions at once, and returns them decided, in their order. What a remembered grant covers is not asked.

        `refused`: too many questions of this session wait already, so this one was not asked. Nothing else decides that.
        """
        approvals = [self._made(asking, *question) for question in questions]
        try:
            return await self._asked(approvals, surface)
        except BaseException:
            await asyncio.shield(self._lapse(approvals))  # wherever it was stopped, nothing stays pending that nobody waits for
            raise

    async def _asked(self, approvals: Sequence[Approval], surface: Surface | None) -> list[Approval]:
        await self.records.forget(self._clock() - KEPT_S)
        grants = await self.records.grants()
        covered = {one.id: grant for one in approvals if (grant := next((each for each in grants if each.covers(one)), None)) is not None}
        known, asked = [one for one in approvals if one.id in covered], [one for one in approvals if one.id not in covered]
        if asked:
            asked = asked[: await self.records.add(asked, MOST_WAITING)]
        if known:
            await self.records.add(known)
        for approval in known:
            picked = tuple(one.key for one in approval.shown.touched if not one.missing) if approval.shown.pick else None
            try:
                await self.decide(approval.id, approval.token, Decision(True, picked=picked, standing=True), by=f"grant {covered[approval.id].id}")
            except ToolwireError as error:
                if error.failure.kind != "conflict":  # else: decided in the inbox, a moment before
                    raise
        if asked:
            await self._settle(asked, surface)
        written = {one.id for one in (*known, *asked)}
        return [await self.records.get(one.id) or one if one.id in written else replace(one, status="refused") for one in approvals]

    def _made(self, asking: Asking, tool: str, stage: Stage, arguments: Arguments, shown: Preview) -> Approval:
        now = self._clock()
        id = self._ids("appr_")
        who = (asking.owner, asking.session, asking.surface, asking.model)
        approval = Approval(id, now, now + self._lifetime_s, *who, tool, stage, dict(arguments), shown, "", vault=asking.vault, asker=this_process())
        return replace(approval, token=token_of(approval, self._ids("")))

    async def _settle(self, approvals: Sequence[Approval], surface: Surface | None) -> None:
        """Until all are decided, or their time is over. A surface that fails, or that is cancelled, leaves nothing pending."""
        others = asyncio.ensure_future(self._decided(approvals))
        try:
            if surface is not None:
                asking = asyncio.ensure_future(surface.ask(approvals))
                try:
                    await asyncio.wait({asking, others}, return_when=asyncio.FIRST_COMPLETED)
                    async with self._deciding:
                        pass  # the surface that decided the last one has yet to say so
                    if asking.done() and not asking.result():
                        return
                finally:
                    asking.cancel()
                    await asyncio.gather(asking, return_exceptions=True)
            await others
        finally:
            others.cancel()
            await asyncio.gather(others, return_exceptions=True)
            await asyncio.shield(self._lapse(approvals))

    async def _decided(self, approvals: Sequence[Approval]) -> None:
        """Returns once none is pending, whoever decides them."""
        news = asyncio.Event()
        for approval in approvals:
            self._news[approval.id] = news
        while True:
            news.clear()
            await self.records.expire(self._clock(), self._line)
            current = [await self.records.get(approval.id) for approval in approvals]
            if all(one is None or one.status != "pending" for one in current):
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await news.wait()

    async def _lapse(self, approvals: Sequence[Approval]) -> None:
        """What nobody decided is over."""
        for approval in approvals:
            await self.records.decide(approval.id, approval.token, "expired", self._clock(), "", None, self._line)
            self._news.pop(approval.id, None)

    # --- deciding ------------------------------------------------------------------------------------------------------------------------------

    async def decide(self, id: str, token: str, decision: Decision, *, by: str) -> Approval:
        """A person's decision. Raises `ToolwireError` when there is nothing to decide, or when something else was shown."""
        async with self._deciding:
            return await self._decide(id, token, decision, by)

    async def _decide(self, id: str, token: str, decision: Decision, by: str) -> Approval:
        approval = await self.records.get(id)
        if approval is None:
            raise ToolwireError("not_found", f"There is no approval {id}.")
        if not hmac.compare_digest(approval.token.encode(), token.encode("utf-8", "replace")):
            raise ToolwireError("conflict", "The decision does not belong to what was shown; look at the approval again.")
        _check(approval, decision)
        now = self._clock()
        late = now >= approval.expires_at
        grant = self._grant(approval, decision) if decision.approved and decision.remember != "once" else None
        if late or not await self.records.decide(id, token, "approved" if decision.approved else "denied", now, by, decision, self._line, grant):
            current = "expired" if late else (await self.records.get(id) or approval).status
            raise ToolwireError("conflict", f"The approval {id} is {current} already.")
        self._announce(id)
        return await self.records.get(id) or approval

    def _grant(self, approval: Approval, decision: Decision) -> Grant:
        target = {"session": approval.session, "folder": decision.folder.strip("/")}.get(decision.remember, "")
        what = (approval.owner, decision.remember, approval.tool, approval.stage, target, approval.id)
        return Grant(self._ids("grant_"), self._clock(), *what, vault=approval.vault, model=approval.model)

    def _announce(self, id: str) -> None:
        if id in self._news:
            self._news[id].set()

    # --- looking -------------------------------------------------------------------------------------------------------------------------------

    async def pending(self) -> list[Approval]:
        await self.records.expire(self._clock(), self._line)
        return await self.records.listed("pending")

    async def lapse(self) -> None:
        """What a process asked that is gone, as after a crash, is over: nobody waits for it any more."""
        await self._lapse([one for one in await self.pending() if is_gone(one.asker)])

    async def revoke(self, grant_id: str) -> bool:
        return await self.records.revoke(grant_id, self._clock())

    async def refused(self, asking: Asking, tool: str, arguments: str, note: str) -> None:
        """Records a call that was refused without a question, as a line of the audit log. `arguments` is the call's text."""
        who = ("", asking.session, asking.surface, asking.model, tool[:80])
        await self.records.note((self._clock(), asking.owner, "refused", *who, _sha(arguments), "", 0, note[:200]))

    async def tell(self, approval: Approval, event: str, result: Any = None, note: str = "") -> None:
        """What became of a call that was granted, as a line of the audit log."""
        await self.records.note(self._line(approval, event, result, note))

    def _line(self, approval: Approval, event: str = "", result: Any = None, note: str = "") -> Sequence[Any]:
        """One line of the audit log: hashes and sizes, never contents. Without an event: what was decided."""
        written = "" if result is None else json.dumps(result, sort_keys=True, ensure_ascii=False, default=str)
        arguments = approval.decision.arguments if approval.decision and approval.decision.arguments is not None else approval.arguments
        who = (approval.id, approval.session, approval.surface, approval.model, approval.tool)
        sizes = (_sha(canonical(arguments)), _sha(written) if written else "", len(written.encode("utf-8", "replace")))
        return (self._clock(), approval.owner, event or approval.status, *who, *sizes, note[:200])


def canonical(arguments: Arguments) -> str:
    return json.dumps(dict(arguments), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def token_of(approval: Approval, secret: str) -> str:
    """Bound to the question: to who asks, its tool, stage, arguments and everything that is shown with it."""
    who = [approval.owner, approval.session, approval.surface, approval.model, approval.vault]
    asked = [approval.id, *who, approval.tool, approval.stage, canonical(approval.arguments), approval.shown.to_json(), secret]
    return _sha(json.dumps(asked, sort_keys=True, ensure_ascii=False))


def _check(approval: Approval, decision: Decision) -> None:
    """What was not shown can not be granted."""
    if not decision.approved:
        return
    known = {one.key for one in approval.shown.touched}
    if approval.stage == "share" and decision.arguments is not None:
        raise ToolwireError("invalid_value", "The search has run already; its arguments can not be changed any more.", param="arguments")
    if not approval.shown.pick and decision.arguments is None and decision.picked is not None:
        raise ToolwireError("invalid_value", "There is nothing to pick from: approve or deny the whole.", param="picked")
    if approval.shown.pick and decision.arguments is None and decision.picked is None:
        raise ToolwireError("invalid_value", "Say which of the things shown are meant: pick some, all or none of them.", param="picked")
    if decision.picked is not None and decision.arguments is None and not known.issuperset(decision.picked):  # of edited ones the run itself judges
        raise ToolwireError("invalid_value", "Something was picked that was not shown.", param="picked")
    if decision.remember == "folder":
        folder = decision.folder.strip("/")
        if not folder or ".." in PurePosixPath(folder).parts:
            raise ToolwireError("invalid_value", "A grant for a folder needs the folder's path in the vault.", param="folder")

"""Asks a person whether a tool call may run, waits for the decision, and stores both.

Consent comes first (law 11 in `docs/architecture.md`). A question is stored before it is asked, and a
decision is about exactly what was shown. If no decision comes in time, if the surface is lost or if an error
occurs, the question expires, and the call does not run. The decision may come from the surface that asked,
the inbox or a command, in this process or another. An approval or a grant in the store counts only with a
proof (`consent.py`), because other programs can write to the store.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from pathlib import PurePosixPath
from typing import Any, Protocol

from toolwire.core.errors import ToolwireError
from toolwire.core.ids import IdFactory, random_id
from toolwire.store.store import Store
from toolwire.tools.consent import LinkKey, Proofs, Signer, is_as_shown, shown_token
from toolwire.tools.contract import Approval, Arguments, Asking, Decision, Grant, Preview, Stage, Status
from toolwire.tools.records import Records
from toolwire.tools.requester import has_ended, this_process

log = logging.getLogger("toolwire.approvals")

LIFETIME_S = 600.0
KEPT_S = 30 * 86400.0
"""How long a decided question is kept, including what it showed of the person's notes."""
FORGET_EVERY_S = 60.0
LOOK_EVERY_S = 0.25
"""How often a waiting process checks whether another process has stored a decision."""
MOST_WAITING = 50
"""How many questions of one session may wait for a decision at once."""
AGREED, KEPT = "agreed", "kept"
"""Events of the audit log: a person agreed to a tool's definition, or decided to withhold the tool."""
NOT_AS_SHOWN = "The decision does not match what was shown. Open the approval request again."
MOST_NOTE = 200
"""The maximum length, in the audit log, of a note and of the name of the person or rule that decided."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about one call.

    `source` and `pin`: where the tool of an MCP server comes from, and the hash of its definition. If
    `source` is empty, the `source` and `pin` of `Asking` apply. `rule`: the rule that allows the call, so
    that nobody is asked.
    """

    tool: str
    stage: Stage
    arguments: Arguments
    shown: Preview
    source: str = ""
    pin: str = ""
    rule: str = ""


class Surface(Protocol):
    """A place where a person is asked, such as a terminal.

    A surface calls `Approvals.decide`, or leaves the questions in the inbox.
    """

    async def ask(self, approvals: Sequence[Approval]) -> bool:
        """Shows the questions of one turn together.

        Returns True if undecided questions wait in the inbox afterwards, False if they expire at once.
        """
        ...


class Notifier(Protocol):
    """Sends notices about waiting questions (`surfaces/notices`). Never delays a question, never raises."""

    def asked(self, approvals: Sequence[Approval]) -> None:
        """Called when questions begin to wait."""
        ...

    def over(self, approvals: Sequence[Approval]) -> None:
        """Called when this process no longer waits for the decisions about these questions."""
        ...


class Approvals:
    """Asks a person for approvals, and records the decisions, in one store."""

    def __init__(
        self,
        store: Store,
        *,
        lifetime_s: float = LIFETIME_S,
        clock: Callable[[], float] = time.time,
        ids: IdFactory = random_id,
        proofs: Proofs | None = None,
    ) -> None:
        self.records = Records(store)
        self.proofs = proofs or Proofs(store)
        self.notices: Notifier | None = None
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._ids = ids
        self._news = asyncio.Event()
        """Set when a decision was stored, and then replaced by a new event."""
        self._revoked: set[str] = set()
        """Grants that were revoked in this process. They never count again, whatever the store says."""
        self._forgot_at = -inf
        self._taken: set[str] = set()
        """The ids of questions whose decision a call in this process has used. No later call can use it."""
        self._deciding = asyncio.Lock()
        self._finding = asyncio.Lock()

    # --- asking ---

    async def ask(
        self,
        asking: Asking,
        questions: Sequence[Question],
        surface: Surface | None,
        wait_s: float | None = None,
    ) -> list[Approval]:
        """Asks several questions at once. Returns them in order, with the decisions.

        Rules and remembered grants answer without asking. A question has the status `refused` if too many
        questions of this session already wait.

        `wait_s`: how long to wait for a decision. After this time, a question about running a call stays
        `pending`, and a later, identical call can use the decision (`_kept`). A question about sharing a
        result expires after this time.
        """
        approvals = [self._made(asking, question, wait_s) for question in questions]
        rules = {one.id: it.rule for one, it in zip(approvals, questions, strict=True) if it.rule}
        try:
            return await self._asked(approvals, rules, surface, wait_s)
        except BaseException:
            # No question stays pending if nobody waits for its decision, unless a later call can find it.
            await asyncio.shield(self._lapse([one for one in approvals if one.requester]))
            raise

    async def _asked(
        self,
        approvals: Sequence[Approval],
        rules: Mapping[str, str],
        surface: Surface | None,
        wait_s: float | None,
    ) -> list[Approval]:
        """Returns these questions with their decisions.

        Asks a person only the questions that neither a rule nor a remembered grant answers. `rules`: the rule
        that answers a question, by the id of the question.
        """
        await self._forget()
        grants = await self.valid_grants() if len(rules) < len(approvals) else []
        covered = {id: f"rule {rule}" for id, rule in rules.items()} | {
            one.id: f"grant {grant.id}"
            for one in approvals
            if (grant := next((each for each in grants if each.covers(one)), None)) is not None
        }
        known = [self._granted(one, covered[one.id]) for one in approvals if one.id in covered]
        kept = [one for one in approvals if one.id not in covered and not one.requester]
        asked = [one for one in approvals if one.id not in covered and one.requester]
        if asked:
            asked = asked[: await self.records.add(asked, MOST_WAITING)]
        if known:
            await self.records.add_decided(known, self._line)
        if asked:
            await self._settle(asked, surface)
        decided = {one.id: one for one in known} | {one.id: await self._decided(one) for one in asked}
        decided |= {one.id: await self._kept(one, surface, wait_s or 0.0) for one in kept}
        return [decided.get(one.id) or replace(one, status="refused") for one in approvals]

    async def _forget(self) -> None:
        """Deletes old decisions, at most once in `FORGET_EVERY_S`."""
        now = self._clock()
        if not self._forgot_at <= now < self._forgot_at + FORGET_EVERY_S:
            self._forgot_at = now
            await self.records.forget(now - KEPT_S)

    async def _decided(self, asked: Approval) -> Approval:
        """Returns the question with its stored decision.

        Only the decision is read from the store. The question itself is the one that this process has asked.
        A stored approval without a valid proof does not count: the question expires.
        """
        found = await self.records.get(asked.id)
        if found is None or found.status == "pending":
            return asked
        if found.status == "approved" and not await self.proofs.proves_decision(asked, found):
            log.warning(
                "the store says that %s was approved, but without a proof: this does not count", asked.id
            )
            await self.records.void(asked.id, self._clock(), self._forged)
            return replace(asked, status="expired", decided_at=self._clock())
        given = ("status", "decided_at", "decided_by", "decision", "proof")
        return replace(asked, **{name: getattr(found, name) for name in given})

    def _forged(self, approval: Approval) -> Sequence[Any]:
        return self._line(approval, "forged", note="the stored approval had no proof")

    async def valid_grants(self) -> list[Grant]:
        """Returns the remembered grants that are valid: not revoked, and with a valid proof."""
        grants = [one for one in await self.records.grants() if one.id not in self._revoked]
        return [one for one in grants if await self.proofs.proves_grant(one)]

    def _granted(self, approval: Approval, by: str) -> Approval:
        """Returns the approval as decided by a grant or a rule.

        Such an approval is never stored as pending, because a page that lists pending questions would ask the
        person again.
        """
        picked = approval.shown.pickable if approval.shown.pick else None
        decision = Decision(True, picked=picked, standing=True)
        _check(approval, decision)
        return replace(
            approval, status="approved", decided_at=self._clock(), decided_by=by, decision=decision
        )

    def _made(self, asking: Asking, question: Question, wait_s: float | None = None) -> Approval:
        if question.source:
            asking = replace(asking, source=question.source, pin=question.pin)
        outlives = wait_s is not None and question.stage == "run"
        lifetime_s = self._lifetime_s if wait_s is None or outlives else min(wait_s, self._lifetime_s)
        approval = Approval(
            id="",
            created_at=0.0,
            expires_at=lifetime_s,
            tool=question.tool,
            stage=question.stage,
            arguments=dict(question.arguments),
            shown=question.shown,
            token="",
            requester="" if outlives else this_process(),
            **asdict(asking),
        )
        return self._anew(approval)

    def _anew(self, approval: Approval) -> Approval:
        """Returns the same question, asked now, with a new id and a new token."""
        now, lifetime_s = self._clock(), approval.expires_at - approval.created_at
        asked = replace(approval, id=self._ids("appr_"), created_at=now, expires_at=now + lifetime_s)
        return replace(asked, token=self.proofs.token(asked))

    # --- questions that outlive their request ---

    async def _kept(self, made: Approval, surface: Surface | None, wait_s: float) -> Approval:
        """Waits at most `wait_s` for the decision, and leaves the question pending if there is none.

        An identical call, at the same time or later, waits for the same question. A denial answers all calls
        that wait for the question. An approval counts only for the first call that uses it: one UPDATE in the
        store marks it as used, so that two processes cannot both use it. A process also remembers which
        decisions it has used, because other programs can change the store.
        """
        until = asyncio.get_running_loop().time() + wait_s
        while True:
            async with self._finding:  # identical calls at the same time share one question
                asked = await self._found_again(made)
                if asked is None and not await self.records.add([made], MOST_WAITING):
                    return replace(made, status="refused")
                asked = asked or made
            try:
                async with asyncio.timeout_at(until):
                    await self._shown([asked], surface)
            except TimeoutError:
                return asked
            decided = await self._decided(asked)
            if decided.status not in ("approved", "denied"):
                return decided
            taken = asked.id not in self._taken and await self.records.take(asked.id, self._clock())
            self._taken.add(asked.id)
            if taken or decided.status == "denied":  # a denial answers every call that waits for it
                return decided
            made = self._anew(made)

    async def _found_again(self, made: Approval) -> Approval | None:
        """Returns the question of an earlier, identical call, if no call has used its decision yet.

        An approval counts only with a proof that this process accepts.
        """
        for found in await self.records.kept(made, self._clock()):
            is_same = _content(found) == _content(made) and found.id not in self._taken
            if is_same and (found.status != "approved" or await self.proofs.proves_decision(found, found)):
                return found
        return None

    async def _settle(self, approvals: Sequence[Approval], surface: Surface | None) -> None:
        """Asks on the surface, waits for the decisions, and expires the questions without a decision.

        If the surface fails, the questions expire too.
        """
        try:
            await self._shown(approvals, surface)
        finally:
            await asyncio.shield(self._lapse(approvals))

    async def _shown(self, approvals: Sequence[Approval], surface: Surface | None) -> None:
        """Asks on the surface, and waits until all questions are decided or have expired.

        Stops waiting if `Surface.ask` returns False. The caller then expires the undecided questions.
        """
        others = asyncio.ensure_future(self.decided(approvals))
        if self.notices is not None:
            self.notices.asked(approvals)
        try:
            if surface is not None:
                asking = asyncio.ensure_future(surface.ask(approvals))
                try:
                    await asyncio.wait({asking, others}, return_when=asyncio.FIRST_COMPLETED)
                    async with self._deciding:
                        pass  # wait until a decision in progress is finished
                    if asking.done() and not asking.result():
                        return
                finally:
                    asking.cancel()
                    await asyncio.gather(asking, return_exceptions=True)
            await others
        finally:
            if self.notices is not None:
                self.notices.over(approvals)
            others.cancel()
            await asyncio.gather(others, return_exceptions=True)

    async def decided(self, approvals: Sequence[Approval]) -> None:
        """Waits until every question has expired or was decided by some process."""
        while True:
            news = self._news
            await self.records.expire(self._clock(), self._line)
            current = [await self.records.get(approval.id) for approval in approvals]
            if all(one is None or one.status != "pending" for one in current):
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await news.wait()

    async def _lapse(self, approvals: Sequence[Approval]) -> None:
        """Expires the questions that were not decided."""
        for one in approvals:
            await self.records.decide(one.id, one.token, "expired", self._clock(), "", None, self._line)

    # --- deciding ---

    async def decide_unless_decided(self, shown: Approval, decision: Decision, *, by: str) -> None:
        """Decides a question as it was shown, unless another surface has just decided it."""
        try:
            await self.decide(shown, decision, by=by)
        except ToolwireError as error:
            if error.failure.kind != "conflict":
                raise

    async def decide(
        self, shown: Approval, decision: Decision, *, by: str, signer: Signer | LinkKey | None = None
    ) -> Approval:
        """Stores a decision about exactly the question that was shown, and returns the decided approval.

        `signer`: the signer of the approval code, or a link. Needed to approve a call of another process.

        Raises `ToolwireError` if the question is no longer pending, if the question in the store has changed,
        if the approval code is missing, or if the link was used.
        """
        async with self._deciding:
            return await self._decide(shown, decision, by, signer)

    async def _decide(
        self, approval: Approval, decision: Decision, by: str, signer: Signer | LinkKey | None
    ) -> Approval:
        id = approval.id
        found = await self.records.get(id)
        if found is None:
            raise ToolwireError("not_found", f"There is no approval {id}.")
        if not is_as_shown(found, shown_token(approval)):
            raise ToolwireError("conflict", NOT_AS_SHOWN)
        _check(approval, decision)
        now = self._clock()
        if now >= found.expires_at or found.status != "pending":
            ended = "expired" if found.status == "pending" else found.status
            raise ToolwireError("conflict", f"The approval {id} is already {ended}.")
        proof = self.proofs.of_decision(approval, decision, by, signer)
        link = signer if isinstance(signer, LinkKey) else None
        code = signer if isinstance(signer, Signer) else None
        grant = self._grant(approval, decision) if decision.approved and decision.remember != "once" else None
        if grant is not None:
            grant = replace(grant, proof=self.proofs.of_grant(grant, code))
        status: Status = "approved" if decision.approved else "denied"
        decided = (id, approval.token, status, now, by, decision, self._line, grant, proof, link)
        if not await self.records.decide(*decided):
            current = (await self.records.get(id) or approval).status
            raise ToolwireError("conflict", f"The approval {id} is already {current}.")
        self._news.set()
        self._news = asyncio.Event()
        return await self.records.get(id) or approval

    def _grant(self, approval: Approval, decision: Decision) -> Grant:
        targets = {"session": approval.session, "folder": decision.folder.strip("/")}
        target = targets.get(decision.remember, "")
        what = (approval.owner, decision.remember, approval.tool, approval.stage, target, approval.id)
        where = (approval.source, approval.pin, approval.model)
        return Grant(self._ids("grant_"), self._clock(), *what, None, *where)

    # --- looking ---

    async def pending(self) -> list[Approval]:
        await self.records.expire(self._clock(), self._line)
        return await self.records.listed("pending")

    async def lapse(self) -> None:
        """Expires the questions of processes that have ended, for example by a crash."""
        await self._lapse([one for one in await self.pending() if has_ended(one.requester)])

    async def revoke(self, grant_id: str) -> bool:
        self._revoked.add(grant_id)
        return await self.records.revoke(grant_id, self._clock())

    async def noted(self, asking: Asking, event: str, tool: str) -> None:
        """Adds a decision about the definition of a tool to the audit log."""
        call = ("", asking.session, asking.surface, asking.model, tool[:80], "")
        where = ("", asking.source, asking.pin, asking.surface)
        await self.records.note((self._clock(), asking.owner, event, *call, "", 0, *where))

    async def refused(self, asking: Asking, tool: str, arguments: str, note: str, by: str = "") -> None:
        """Adds a call that was refused without a question to the audit log. `by`: the rule that denies it."""
        call = ("", asking.session, asking.surface, asking.model, tool[:80], _sha(arguments))
        where = (note[:MOST_NOTE], asking.source, asking.pin, by[:MOST_NOTE])
        await self.records.note((self._clock(), asking.owner, "refused", *call, "", 0, *where))

    async def log_result(self, approval: Approval, event: str, result: Any = None, note: str = "") -> None:
        """Adds the result of a granted call to the audit log."""
        await self.records.note(self._line(approval, event, result, note))

    def _line(self, approval: Approval, event: str = "", result: Any = None, note: str = "") -> Sequence[Any]:
        """Returns one line of the audit log: hashes and sizes, never content.

        Without an `event`, the line is about the decision.
        """
        written = "" if result is None else _dumps(result)
        edited = approval.decision.arguments if approval.decision else None
        arguments = dict(approval.arguments if edited is None else edited)
        asked = _sha(_dumps(arguments, separators=(",", ":")))
        call = (approval.id, approval.session, approval.surface, approval.model, approval.tool, asked)
        returned = (_sha(written) if written else "", len(written.encode("utf-8", "replace")))
        by = (approval.decided_by or "")[:MOST_NOTE]
        where = (note[:MOST_NOTE], approval.source, approval.pin, by)
        return (self._clock(), approval.owner, event or approval.status, *call, *returned, *where)


_dumps = partial(json.dumps, sort_keys=True, ensure_ascii=False, default=str)


def _content(approval: Approval) -> str:
    """Returns a text that is the same for identical calls: the arguments, and what the person is shown."""
    return _dumps([dict(approval.arguments), approval.shown.to_json()])


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _check(approval: Approval, decision: Decision) -> None:
    """Raises an error if a decision grants more than was shown.

    If the arguments were edited, the picked files or results are checked only when the call runs.
    """
    if not decision.approved:
        return
    shown, picked, folder = approval.shown, decision.picked, decision.folder.strip("/")
    param, message = "picked", ""
    if decision.arguments is not None:
        if approval.stage == "share":
            param, message = "arguments", "The call has already run; its arguments cannot be changed."
    elif not shown.pick and picked is not None:
        message = "There is nothing to pick from: approve or deny the whole call."
    elif shown.pick and picked is None:
        message = "Choose what to share: pick some, all or none of the shown files or results."
    elif not {one.key for one in shown.touched}.issuperset(picked or ()):
        message = "The pick contains a file or result that was not shown."
    if decision.remember == "folder" and (not folder or ".." in PurePosixPath(folder).parts):
        param, message = "folder", "A grant for a folder needs the folder's path in the vault."
    if message:
        raise ToolwireError("invalid_value", message, param=param)

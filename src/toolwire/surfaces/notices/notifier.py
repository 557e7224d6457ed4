"""Sends messages about the questions of one process to the receivers in the settings (`[notices.NAME]`).

When a question has waited for `after_s` seconds, each receiver gets a message about it. One task for each
receiver sends its messages one after another, so a slow receiver delays only its own messages. A message that
the receiver did not accept is sent again, after longer and longer pauses, as long as the question waits. If
many questions are due at once, one message is about all of them. Sending messages never delays a question or
makes it fail.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp

from toolwire.core.errors import ToolwireError
from toolwire.settings.types import NoticeSettings
from toolwire.store.store import Store
from toolwire.surfaces.notices import delivery, messages
from toolwire.surfaces.notices.messages import Keys, Message
from toolwire.tools.approvals import Approvals
from toolwire.tools.contract import Approval
from toolwire.tools.links import LinkKind, Links

log = logging.getLogger("toolwire.notices")

MOST_WAITING = 200
"""How many waiting questions one notice keeps. It sends no messages about further questions."""
MOST_SINGLE = 5
"""If more questions than this are due at once, one message is about all of them."""
GATHER_S = 0.25
"""How long a notice waits for other questions that become due, before it sends its messages."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0
IN_A_TERMINAL = ("chat", "ask", "note", "tour")


def notices_of(
    settings: Sequence[NoticeSettings],
    store: Store,
    approvals: Approvals,
    lines: Callable[[str], None] = log.warning,
) -> Notices | None:
    """Returns the `Notices` that sends the notices of the settings; None if no notice is available.

    `lines` is called with a line for each notice that is not available.
    """
    for one in settings:
        if one.problem:
            lines(f"notice {one.name} is not available: {one.problem} ({one.where})")
    usable = [one for one in settings if not one.problem]
    return Notices(usable, store, approvals) if usable else None


@dataclass(slots=True)
class _Waiting:
    """A waiting question. `due`: when to send the next message about it. `keys`: its links, once created."""

    approval: Approval
    due: float
    tries: int = 0
    keys: Keys | None = None


class Notices:
    """Sends all notices of the settings. Implements `Notifier` of `tools/approvals.py`."""

    def __init__(
        self,
        settings: Sequence[NoticeSettings],
        store: Store,
        approvals: Approvals,
        clock: Callable[[], float] = time.time,
        send_s: float = delivery.SEND_S,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self._outboxes = [
            _Outbox(one, Links(store, approvals, clock), approvals, clock, send_s, first_pause_s)
            for one in settings
        ]

    def asked(self, approvals: Sequence[Approval]) -> None:
        for outbox in self._outboxes:
            outbox.add(approvals)

    def over(self, approvals: Sequence[Approval]) -> None:
        for outbox in self._outboxes:
            outbox.remove(approvals)

    async def close(self) -> None:
        """Ends the tasks. Messages that were not sent are dropped."""
        await asyncio.gather(*(outbox.close() for outbox in self._outboxes))


class _Outbox:
    """The questions of one notice, and the task that sends its messages."""

    def __init__(
        self,
        notice: NoticeSettings,
        links: Links,
        approvals: Approvals,
        clock: Callable[[], float],
        send_s: float,
        first_pause_s: float,
    ) -> None:
        self._notice = notice
        self._links = links
        self._approvals = approvals
        self._clock = clock
        self._send_s = send_s
        self._first_pause_s = first_pause_s
        self._waiting: dict[str, _Waiting] = {}
        self._reported: dict[str, float] = {}
        """The ids of questions that need no second message, and when these questions expire.

        These are questions without a requester: a later, identical call may ask them again.
        """
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, approvals: Sequence[Approval]) -> None:
        now = self._clock()
        self._reported = {id: until for id, until in self._reported.items() if until > now}
        for one in approvals:
            if one.surface in IN_A_TERMINAL and not self._notice.terminal:
                continue
            if one.id in self._waiting or one.id in self._reported:
                continue  # an identical call waits for the same question
            if len(self._waiting) >= MOST_WAITING:
                log.warning("notice %s: too many questions wait; no message about more", self._notice.name)
                break
            self._waiting[one.id] = _Waiting(one, now + self._notice.after_s)
        self._changed.set()
        if self._waiting and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._work())

    def remove(self, approvals: Sequence[Approval]) -> None:
        """Drops questions that nobody waits for any more.

        Keeps questions without a requester: they stay pending, so their messages are still sent.
        """
        for one in approvals:
            if one.requester:
                self._waiting.pop(one.id, None)
        self._changed.set()

    async def close(self) -> None:
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        """Sends messages until no question waits."""
        async with delivery.client(self._send_s) as session:
            while self._waiting:
                await self._until_due()
                await asyncio.sleep(GATHER_S)
                now = self._clock()
                due = [one for one in self._waiting.values() if one.due <= now]
                try:
                    await self._send_all(session, due)
                except Exception as error:  # for example: the store does not answer
                    unexpected = None if isinstance(error, ToolwireError) else error
                    log.warning("notice %s: not sent: %s", self._notice.name, error, exc_info=unexpected)
                    for one in due:
                        self._later(one, 0.0)

    async def _until_due(self) -> None:
        while self._waiting:
            self._changed.clear()
            wait_s = min(one.due for one in self._waiting.values()) - self._clock()
            if wait_s <= 0:
                return
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                return

    async def _send_all(self, session: aiohttp.ClientSession, due: Sequence[_Waiting]) -> None:
        stored = {one.approval.id: await self._approvals.records.get(one.approval.id) for one in due}
        still = []
        for one in due:
            found = stored[one.approval.id]
            if found is not None and found.status == "pending" and self._clock() < one.approval.expires_at:
                still.append(one)
            else:
                self._waiting.pop(one.approval.id, None)
        if len(still) > MOST_SINGLE:
            asked = [one.approval for one in still]
            await self._send(session, still, messages.about_many(self._notice, asked, self._clock()))
            return
        for one in still:
            if one.approval.id in self._waiting:  # not decided while the others were sent
                if one.keys is None:
                    one.keys = await self._made(one.approval)
                message = messages.about(self._notice, one.approval, one.keys, self._clock())
                await self._send(session, [one], message)

    async def _made(self, approval: Approval) -> Keys:
        """Creates the links of a message about this question."""
        notice, add = self._notice, self._links.add
        if notice.level == "notice":
            return Keys()
        link = await add(approval, "link", notice.name, approves=True)
        if notice.level == "link":
            return Keys(link)
        kind: LinkKind = "webhook" if notice.kind == "webhook" else "button"
        approves = messages.fits_button(notice, approval)
        return Keys(link, await add(approval, kind, notice.name, approves=approves))

    async def _send(
        self, session: aiohttp.ClientSession, about: Sequence[_Waiting], message: Message
    ) -> None:
        sent = await delivery.deliver(session, self._notice, message)
        name = self._notice.name
        note = f"{name}: {sent.problem}" if sent.problem else name
        for one in about:
            last = one.approval.id not in self._waiting or not sent.again
            if sent.problem and not last:
                self._later(one, sent.retry_after_s)
                if one.tries > 1:
                    continue
            else:
                self._waiting.pop(one.approval.id, None)
                if not one.approval.requester:
                    self._reported[one.approval.id] = one.approval.expires_at
            event = "not notified" if sent.problem else "notified"
            await self._approvals.log_result(one.approval, event, note=note)
        if sent.problem:
            log.warning("notice %s: not sent: %s", name, sent.problem)

    def _later(self, one: _Waiting, at_least_s: float) -> None:
        """Makes a question due again after a pause. If it expires before that, drops the question."""
        pause_s = min(self._first_pause_s * 2**one.tries, LONGEST_PAUSE_S)
        one.tries += 1
        one.due = self._clock() + max(pause_s, at_least_s)
        if one.due >= one.approval.expires_at:
            self._waiting.pop(one.approval.id, None)

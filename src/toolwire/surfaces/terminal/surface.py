"""How a question is put: by keys, by lines, or by rules alone. Each is a `Surface` of the approvals; all decide by `Approvals.decide`.

Law 11: a yes carries the token of what was shown, and remembering takes keys of its own. Ctrl-C is no decision: the turn stops, and what was asked
lapses.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from toolwire.core.display import as_json, one_line
from toolwire.core.errors import ToolwireError
from toolwire.surfaces import cards
from toolwire.surfaces.terminal.screen import Screen, drop_typed_ahead, has_extra
from toolwire.tools import rules
from toolwire.tools.approvals import Approvals
from toolwire.tools.contract import Approval, Arguments, Decision, Preview, Scope, Tool, ToolFailed, folder_of
from toolwire.tools.executor import Toolbox

T = TypeVar("T")
LOOK_EVERY_S = 0.3
SETTLE_S = 0.5


class _Elsewhere(Exception):
    """Somebody else decided, or the time is over."""


class RuleSurface:
    """Nobody is there to be asked: the rules decide, and what they do not cover is denied."""

    by = "ask"

    def __init__(
        self, approvals: Approvals, allowed: Sequence[rules.Rule], toolbox: Callable[[], Toolbox | None]
    ) -> None:
        self.approvals = approvals
        self.allowed = allowed
        self._toolbox = toolbox

    async def ask(self, approvals: Sequence[Approval]) -> bool:
        for approval in approvals:
            decision, by = rules.decision(
                self.allowed, approval, tool.effect if (tool := self.tool(approval)) else None
            )
            await self.by_rule(approval, decision, by)
        return False

    async def by_rule(self, approval: Approval, decision: Decision, by: str) -> None:
        try:
            await self.decide(approval, decision, by)
        except ToolwireError as error:
            if error.failure.kind != "conflict":  # else: decided elsewhere, a moment before
                raise

    def tool(self, approval: Approval) -> Tool | None:
        toolbox = self._toolbox()
        return toolbox.tools.get(approval.tool) if toolbox is not None else None

    async def decide(self, approval: Approval, decision: Decision, by: str) -> None:
        await self.approvals.decide(approval.id, approval.token, decision, by=by)


class _PersonSurface(RuleSurface):
    """Somebody is there. Rules decide what they cover; the rest is asked."""

    def __init__(
        self,
        approvals: Approvals,
        allowed: Sequence[rules.Rule],
        toolbox: Callable[[], Toolbox | None],
        screen: Screen,
        stop: Callable[[], object],
        by: str,
    ) -> None:
        super().__init__(approvals, allowed, toolbox)
        self.screen = screen
        self.by = by
        self._stop = stop

    async def ask(self, approvals: Sequence[Approval]) -> bool:
        asked = []
        for approval in approvals:
            decision, by = rules.decision(
                self.allowed, approval, tool.effect if (tool := self.tool(approval)) else None
            )
            if decision.approved and (
                decision.picked or not approval.shown.pick or not approval.shown.touched
            ):
                await self.by_rule(approval, decision, by)
            else:  # also where a rule would share nothing of what was found
                asked.append(approval)
        for number, approval in enumerate(asked, 1):
            self.screen.card(
                cards.card(
                    approval, self.tool(approval), place=f"{number} of {len(asked)}" if len(asked) > 1 else ""
                )
            )
        for number, approval in enumerate(asked, 1):
            try:
                await self.put(approval, f"{number} of {len(asked)} " if len(asked) > 1 else "")
            except _Elsewhere:
                self.screen.rows(
                    [("dim", f"{one_line(approval.tool, 80)}: decided elsewhere, or its time is over")]
                )
        return False

    async def put(self, approval: Approval, place: str) -> None:
        """Asks, and decides."""
        raise NotImplementedError

    async def unless_decided(self, approval: Approval, asking: Coroutine[Any, Any, T]) -> T:
        """The person's answer. Raises `_Elsewhere` when the question was settled before they gave it; Ctrl-C stops the turn."""
        settled = asyncio.ensure_future(self._settled(approval))
        answer = asyncio.ensure_future(asking)
        try:
            await asyncio.wait({settled, answer}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise _Elsewhere
            return answer.result()
        finally:
            settled.cancel()
            answer.cancel()
            await asyncio.gather(settled, answer, return_exceptions=True)

    async def _settled(self, approval: Approval) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            current = await self.approvals.records.get(approval.id)
            if current is None or current.status != "pending":
                return

    async def stopped(self) -> None:
        """Ctrl-C: the turn is cancelled from outside."""
        self._stop()
        await asyncio.Event().wait()

    async def settle(self, approval: Approval, decision: Decision) -> None:
        """Decides, and says so."""
        try:
            await self.decide(approval, decision, self.by)
        except ToolwireError as error:
            self.screen.rows([("warning", str(error))])
            return
        told = "approved" if decision.approved else "denied"
        told += (
            f", remembered for {_scope_words(decision.remember, decision.folder)}"
            if decision.remember != "once"
            else ""
        )
        told += f": {one_line(decision.reason)}" if decision.reason else ""
        self.screen.rows([("dim", f"{one_line(approval.tool, 80)}: {told}")])


class KeySurface(_PersonSurface):
    """By keys. Needs the extra `chat`."""

    async def put(self, approval: Approval, place: str) -> None:
        from toolwire.surfaces.terminal import keyboard

        question = _Question(approval)
        try:
            while not question.done:
                if question.fresh:
                    self.screen.card(cards.card(question.now(), self.tool(approval), place="as edited"))
                    question.fresh = False
                key = await self.unless_decided(
                    approval, keyboard.choose(question.text(place), question.keys())
                )
                await {
                    "a": self._approve,
                    "d": self._deny,
                    "e": self._edit,
                    "r": self._remember,
                    "v": self._view,
                }[key](question)
        except keyboard.Stopped:
            await self.stopped()

    async def _approve(self, question: _Question) -> None:
        from toolwire.surfaces.terminal.keyboard import Picker

        picked: tuple[str, ...] | None = None
        if question.approval.shown.pick and question.edited is None:
            picked = await self.unless_decided(
                question.approval, Picker(question.approval.shown.touched).run()
            )
            if picked is None:
                return
        seen = question.shown.digest if question.edited is not None else ""
        decision = Decision(
            True,
            arguments=question.edited,
            picked=picked,
            remember=question.remember,
            folder=question.folder,
            seen=seen,
        )
        await self.settle(question.approval, decision)
        question.done = True

    async def _deny(self, question: _Question) -> None:
        from toolwire.surfaces.terminal.keyboard import line

        reason = await self.unless_decided(question.approval, line("Reason (optional; esc: back): "))
        if reason is not None:
            await self.settle(question.approval, Decision(False, reason=reason.strip()))
            question.done = True

    async def _edit(self, question: _Question) -> None:
        from toolwire.surfaces.terminal.keyboard import line

        tool, toolbox = self.tool(question.approval), self._toolbox()
        if tool is None or toolbox is None:
            return

        def check(text: str) -> Arguments:
            return toolbox.arguments(tool.name, text or "not JSON")

        before = as_json(dict(question.now().arguments))
        written = await self.unless_decided(
            question.approval, line("Arguments (JSON; esc: back): ", before, check)
        )
        if written is None or written == before:
            return
        try:
            arguments = check(written)
            question.edit(arguments, await toolbox.preview(tool.name, arguments))
        except ToolFailed as error:
            self.screen.rows([("warning", one_line(str(error), 300))])

    async def _remember(self, question: _Question) -> None:
        from toolwire.surfaces.terminal.keyboard import ESCAPE, choose

        folder = folder_of(question.now().shown)
        choices: dict[str, Scope] = {"s": "session", **({"f": "folder"} if folder else {}), "t": "tool"}
        told = " · ".join(f"{key} {_scope_words(scope, folder)}" for key, scope in choices.items())
        text = f"Remember, once you approve, for: {told} · o only once · esc back"
        key = await self.unless_decided(question.approval, choose(text, {*choices, "o", ESCAPE}))
        if key != ESCAPE:
            question.remember = choices.get(key, "once")
            question.folder = folder if question.remember == "folder" else ""

    async def _view(self, question: _Question) -> None:
        self.screen.card(cards.card(question.now(), self.tool(question.approval), place="whole", whole=True))


class _Question:
    """A question on its way to a decision."""

    def __init__(self, approval: Approval) -> None:
        self.approval = approval
        self.edited: Arguments | None = None
        self.shown: Preview = approval.shown
        self.remember: Scope = "once"
        self.folder = ""
        self.fresh = False
        self.done = False

    def edit(self, arguments: Arguments, shown: Preview) -> None:
        self.edited = None if dict(arguments) == dict(self.approval.arguments) else arguments
        self.shown, self.fresh = shown, True

    def now(self) -> Approval:
        """The question as it would be approved."""
        return replace(
            self.approval,
            shown=self.shown,
            arguments=self.approval.arguments if self.edited is None else self.edited,
        )

    def keys(self) -> set[str]:
        return {
            "a",
            "d",
            "r",
            *("e" if self.approval.stage == "run" else ""),
            *("v" if cards.clipped(self.now()) else ""),
        }

    def text(self, place: str) -> str:
        approve = "pick and approve" if self.approval.shown.pick and self.edited is None else "approve"
        if self.shown.problem:
            approve = "approve, only to tell the reason"
        if self.remember != "once":
            approve += f", remembered for {_scope_words(self.remember, self.folder)}"
        words = {"a": approve, "d": "deny", "e": "edit", "r": "remember…", "v": "view all"}
        told = " · ".join(f"{key} {word}" for key, word in words.items() if key in self.keys())
        return f"{place}{one_line(self.approval.tool, 80)}?  {told} · ctrl-c stop"


def _scope_words(scope: Scope, folder: str) -> str:
    return {
        "session": "this session",
        "folder": f"the folder {one_line(folder, 80)}/",
        "tool": "this tool, always",
    }.get(scope, "only once")


class LineSurface(_PersonSurface):
    """By lines, for a terminal without the extra `chat`: `a`, `d REASON`, and numbers or `all` where things are picked."""

    async def put(self, approval: Approval, place: str) -> None:
        hint = "numbers such as 1,3 or all: approve these" if approval.shown.pick else "a: approve"
        hint += ", only to tell the reason" if approval.shown.problem else ""
        while True:
            await asyncio.sleep(SETTLE_S)
            drop_typed_ahead()
            self.screen.rows([("label", f"{place}{one_line(approval.tool, 80)}?  {hint} · d REASON: deny")])
            answer = await self.unless_decided(approval, _read_line())
            decision = _read(answer, approval)
            if decision is not None:
                return await self.settle(approval, decision)


def _read(answer: str | None, approval: Approval) -> Decision | None:
    """A written answer; None: it is none. The end of the input is a no."""
    if answer is None:
        return Decision(False)
    word, _, rest = answer.strip().partition(" ")
    if word.lower() in ("d", "deny", "n", "no"):
        return Decision(False, reason=rest.strip())
    if not approval.shown.pick:
        return Decision(True) if word.lower() in ("a", "approve", "y", "yes") else None
    touched = approval.shown.touched
    if word.lower() == "all":
        return Decision(True, picked=tuple(one.key for one in touched if not one.missing))
    if re.fullmatch(r"[\d ,]+", answer.strip()):
        numbers = [int(number) for number in re.findall(r"\d+", answer)]
        if all(0 < number <= len(touched) for number in numbers):
            return Decision(True, picked=tuple(touched[number - 1].key for number in dict.fromkeys(numbers)))
    return None


async def _read_line() -> str | None:
    """A line of stdin, without holding the loop up. None: it is closed."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sys.stdin.fileno(), lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(sys.stdin.fileno())
    return sys.stdin.readline() or None


def surface_for(
    approvals: Approvals,
    allowed: Sequence[rules.Rule],
    toolbox: Callable[[], Toolbox | None],
    screen: Screen,
    stop: Callable[[], object],
    *,
    person: bool,
    by: str,
) -> RuleSurface:
    """Asks a person where there is one, and in the best way that this installation has."""
    if not person:
        return RuleSurface(approvals, allowed, toolbox)
    kind = KeySurface if has_extra() else LineSurface
    return kind(approvals, allowed, toolbox, screen, stop, by)

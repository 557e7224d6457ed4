"""Decides tool calls by the `--allow` rules, or asks a person.

The person answers by single keys or by lines. Each class is a `Surface` of the approvals. An approval
contains the token of what the person was shown. It is valid for one call, unless the person presses the key
that remembers it. Ctrl-C is not a decision: the turn stops, and its questions expire.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from toolwire.core.display import as_json, one_line
from toolwire.core.errors import ToolwireError
from toolwire.surfaces import cards
from toolwire.surfaces.terminal.screen import Screen, drop_typed_ahead
from toolwire.tools import rules
from toolwire.tools.approvals import Approvals
from toolwire.tools.consent import Signer
from toolwire.tools.contract import (
    DENY,
    LATER,
    Approval,
    Arguments,
    Decision,
    Preview,
    Scope,
    Tool,
    ToolFailed,
    approve_label,
    folder_of,
    same_arguments,
)
from toolwire.tools.executor import Toolbox

T = TypeVar("T")
SETTLE_S = 0.5


class _Elsewhere(Exception):
    """Raised if the question was decided elsewhere, for example on a web page, or has expired."""


class _Later(Exception):
    """Raised if the person chooses to decide later. The question then waits in the inbox."""


@dataclass
class RuleSurface:
    """Decides by the `--allow` rules alone, because nobody can be asked. Denies calls that no rule allows."""

    approvals: Approvals
    allowed: Sequence[rules.Rule]
    toolbox: Callable[[], Toolbox | None]

    async def ask(self, approvals: Sequence[Approval]) -> bool:
        for approval in approvals:
            decision, by = self.by_rule(approval)
            await self.approvals.decide_unless_decided(approval, decision, by=by)
        return False

    def by_rule(self, approval: Approval) -> tuple[Decision, str]:
        tool = self.tool(approval)
        return rules.decision(self.allowed, approval, tool.effect if tool is not None else None)

    def tool(self, approval: Approval) -> Tool | None:
        toolbox = self.toolbox()
        return toolbox.tools.get(approval.tool) if toolbox is not None else None


@dataclass
class PersonSurface(RuleSurface):
    """Approves calls that the `--allow` rules cover, and asks a person about all other calls.

    `stop` stops the turn. `by`: the name that is stored with each decision, to show where it was made.
    """

    screen: Screen
    stop: Callable[[], object]
    by: str
    signer: Signer | None = None
    """Signs remembered approvals, so that they stay valid after this command has ended.

    None until the person has entered the approval code.
    """

    async def ask(self, approvals: Sequence[Approval]) -> bool:
        asked = []
        for approval in approvals:
            decision, by = self.by_rule(approval)
            shown = approval.shown
            if decision.approved and (decision.picked or not shown.pick or not shown.touched):
                await self.approvals.decide_unless_decided(approval, decision, by=by)
            else:  # also if a rule approves the call but shares none of its results
                asked.append(approval)
        places = [
            f"{number} of {len(asked)}" if len(asked) > 1 else "" for number in range(1, len(asked) + 1)
        ]
        for approval, place in zip(asked, places, strict=True):
            self.screen.card(cards.card(approval, self.tool(approval), place=place, here=True))
        waits = False
        for approval, place in zip(asked, places, strict=True):
            name = one_line(approval.tool, 80)
            try:
                await self.put(approval, f"{place} {name}?".lstrip())
            except _Elsewhere:
                self.screen.rows([("dim", f"{name}: decided elsewhere, or expired")])
            except _Later:
                waits = True
                line = f"{name}: waits in the inbox: toolwire approvals show {approval.id} · ctrl-c stops"
                self.screen.rows([("label", line)])
        return waits

    async def put(self, approval: Approval, question: str) -> None:
        """Asks the person, and stores the decision. Raises `_Later` if the person decides later."""
        raise NotImplementedError

    async def unless_decided(self, approval: Approval, asking: Coroutine[Any, Any, T]) -> T:
        """Waits for the person's answer and returns it.

        Raises `_Elsewhere` if the question is decided elsewhere, or expires, before the person answers.
        """
        decided = asyncio.ensure_future(self.approvals.decided([approval]))
        answer = asyncio.ensure_future(asking)
        try:
            await asyncio.wait({decided, answer}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise _Elsewhere
            return answer.result()
        finally:
            decided.cancel()
            answer.cancel()
            await asyncio.gather(decided, answer, return_exceptions=True)

    async def settle(self, approval: Approval, decision: Decision) -> None:
        """Stores the decision and shows it."""
        try:
            signer = self.signer if decision.remember != "once" else None
            await self.approvals.decide(approval, decision, by=self.by, signer=signer)
        except ToolwireError as error:
            self.screen.rows([("warning", str(error))])
            return
        text = "approved" if decision.approved else "denied"
        if decision.remember != "once":
            text += f", remembered for {_scope_text(decision.remember, decision.folder)}"
            if self.signer is None and decision.remember != "session":
                text += " until this command ends"
        if decision.reason:
            text += f": {one_line(decision.reason)}"
        self.screen.rows([("dim", f"{one_line(approval.tool, 80)}: {text}")])


class KeySurface(PersonSurface):
    """Asks a person by single keys. Needs the extra `chat`."""

    async def put(self, approval: Approval, question: str) -> None:
        from toolwire.surfaces.terminal import keyboard

        self._keyboard = keyboard
        draft = _Draft(approval, approval.shown)
        actions = {
            "a": self._approve,
            "d": self._deny,
            "e": self._edit,
            "r": self._remember,
            "v": self._view,
            "l": self._later,
        }
        try:
            while not draft.done:
                choices = draft.choices()
                text = " · ".join(f"{key} {label}" for key, label in choices.items())
                choosing = keyboard.choose(f"{question}  {text} · ctrl-c stop", choices)
                await actions[await self.unless_decided(approval, choosing)](draft)
        except keyboard.Stopped:
            self.stop()
            await asyncio.Event().wait()  # until the turn is cancelled

    async def _approve(self, draft: _Draft) -> None:
        picked: tuple[str, ...] | None = None
        if draft.picks:
            picker = self._keyboard.Picker(draft.shown, draft.approval.stage)
            picked = await self.unless_decided(draft.approval, picker.run())
            if picked is None:
                return
        seen = draft.shown.digest if draft.edited is not None else ""
        decision = Decision(
            True, "", draft.edited, picked, remember=draft.remember, folder=draft.folder, seen=seen
        )
        await self.settle(draft.approval, decision)
        draft.done = True

    async def _deny(self, draft: _Draft) -> None:
        asking = self._keyboard.line("Reason (optional; esc: back): ")
        reason = await self.unless_decided(draft.approval, asking)
        if reason is not None:
            await self.settle(draft.approval, Decision(False, reason=reason.strip()))
            draft.done = True

    async def _later(self, draft: _Draft) -> None:
        raise _Later

    async def _edit(self, draft: _Draft) -> None:
        tool, toolbox = self.tool(draft.approval), self.toolbox()
        if tool is None or toolbox is None:
            return

        def check(text: str) -> Arguments:
            return toolbox.arguments(tool.name, text or "not JSON")

        before = as_json(dict(draft.now().arguments))
        asking = self._keyboard.line("Arguments (JSON; esc: back): ", before, check)
        written = await self.unless_decided(draft.approval, asking)
        if written is None or written == before:
            return
        try:
            arguments = check(written)
            shown = await toolbox.preview(tool.name, arguments)
        except ToolFailed as error:
            self.screen.rows([("warning", one_line(str(error), 300))])
            return
        draft.edited = None if same_arguments(arguments, draft.approval.arguments) else arguments
        draft.shown = shown
        self.screen.card(cards.card(draft.now(), tool, place="as edited", here=True))

    async def _remember(self, draft: _Draft) -> None:
        folder = folder_of(draft.shown)
        scopes: dict[str, Scope] = {"s": "session", **({"f": "folder"} if folder else {}), "t": "tool"}
        choices = " · ".join(f"{key} {_scope_text(scope, folder)}" for key, scope in scopes.items())
        text = f"Remember, once you approve, for: {choices} · o only once · esc back"
        asking = self._keyboard.choose(text, {*scopes, "o", self._keyboard.ESCAPE})
        key = await self.unless_decided(draft.approval, asking)
        if key != self._keyboard.ESCAPE:
            draft.remember = scopes.get(key, "once")
            draft.folder = folder if draft.remember == "folder" else ""
            if draft.remember in ("folder", "tool"):
                await self._unlock(draft)

    async def _unlock(self, draft: _Draft) -> None:
        """Asks for the approval code, which makes a remembered approval last.

        Without the code, the approval is remembered only until this command ends.
        """
        code = self.approvals.proofs.code
        if self.signer is not None:
            return
        if not await code.trusted():
            line = "remembered until this command ends; to keep it longer, first run toolwire approvals code"
            self.screen.rows([("dim", line)])
            return
        text = "Approval code (esc: remember until this command ends): "
        given = await self.unless_decided(draft.approval, self._keyboard.line(text, hidden=True))
        if given:
            self.signer = await code.signer(given)
            if self.signer is None:
                line = "this is not the approval code: remembered until this command ends"
                self.screen.rows([("warning", line)])

    async def _view(self, draft: _Draft) -> None:
        self.screen.card(
            cards.card(draft.now(), self.tool(draft.approval), place="whole", whole=True, here=True)
        )


@dataclass(slots=True)
class _Draft:
    """The decision about a call that the person is making."""

    approval: Approval
    shown: Preview
    edited: Arguments | None = None
    remember: Scope = "once"
    folder: str = ""
    done: bool = False

    @property
    def picks(self) -> bool:
        return self.approval.shown.pick and self.edited is None

    @property
    def label(self) -> str:
        """The text that says what approving does.

        After an edit, the person picks nothing: approving allows everything that the edited arguments name.
        """
        count = None if self.picks else len(self.shown.pickable)
        return approve_label(self.shown, self.approval.stage, count) + ("…" if self.picks else "")

    def now(self) -> Approval:
        """Returns the question with the arguments and the preview that the person would approve now."""
        arguments = self.approval.arguments if self.edited is None else self.edited
        return replace(self.approval, shown=self.shown, arguments=arguments)

    def choices(self) -> dict[str, str]:
        """Returns the keys that the person can press, each with a text that says what the key does."""
        approve = self.label
        if self.remember != "once":
            approve += f", remembered for {_scope_text(self.remember, self.folder)}"
        edit = {"e": "edit"} if self.approval.stage == "run" else {}
        view = {"v": "view all"} if cards.clipped(self.now()) else {}
        return {"a": approve, "d": DENY, **edit, "r": "remember…", **view, "l": LATER}


def _scope_text(scope: Scope, folder: str) -> str:
    texts = {"session": "this session", "folder": f"the folder {one_line(folder, 80)}/"}
    return texts.get(scope, "this tool, always")


class LineSurface(PersonSurface):
    """Asks a person by lines of text, without the extra `chat`.

    The person writes `a` to approve, `d REASON` to deny, or `l` to decide later. If the question has files or
    results to pick from, the person approves by writing their numbers, or `all`.
    """

    async def put(self, approval: Approval, question: str) -> None:
        shown, label = approval.shown, approve_label(approval.shown, approval.stage)
        key = "numbers such as 1,3 or all" if shown.pickable else "all"
        hint = f"{key if shown.pick else 'a'}: {label}"
        decision = None
        while decision is None:
            await asyncio.sleep(SETTLE_S)
            drop_typed_ahead()
            self.screen.rows([("label", f"{question}  {hint} · d REASON: {DENY} · l: {LATER}")])
            answer = await self.unless_decided(approval, read_line())
            if answer is not None and answer.strip().lower() in ("l", "later"):
                raise _Later
            decision = read_answer(answer, approval)
        await self.settle(approval, decision)


def read_answer(answer: str | None, approval: Approval) -> Decision | None:
    """Returns the decision in a written answer; None if the answer contains no decision.

    If `answer` is None, because the input has ended, the decision is to deny.
    """
    if answer is None:
        return Decision(False)
    word, _, rest = answer.strip().partition(" ")
    if word.lower() in ("d", "deny", "n", "no"):
        return Decision(False, reason=rest.strip())
    if not approval.shown.pick:
        return Decision(True) if word.lower() in ("a", "approve", "y", "yes") else None
    touched = approval.shown.touched
    if word.lower() == "all":
        return Decision(True, picked=approval.shown.pickable)
    numbers = [int(number) for number in re.findall(r"\d+", answer)]
    is_list = bool(numbers) and re.fullmatch(r"[\d ,]+", answer.strip())
    if is_list and all(0 < number <= len(touched) for number in numbers):
        return Decision(True, picked=tuple(touched[number - 1].key for number in dict.fromkeys(numbers)))
    return None


async def read_line() -> str | None:
    """Reads a line of stdin without blocking the event loop; None if stdin is closed."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    return sys.stdin.readline() or None

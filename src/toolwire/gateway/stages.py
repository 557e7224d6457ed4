"""The stages between a backend's events and the client's bytes, for one choice of an answer.

    batch ─▶ interpret ─▶ required call ─▶ policy ─▶ output mode ─▶ writer ─▶ block

The stages do no I/O and know nothing of time, tasks or transports (law 1 in docs/architecture.md). The loop
in `run.py` feeds them. The journal uses the same stages to compute the events of a recorded turn.

If no stage would change a batch of text, the batch goes straight to the writer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from toolwire.core.events import CallArgs, CallBegin, CallEnd, Dropped, Event, Failure, Finish, Text, Usage
from toolwire.core.ids import IdFactory
from toolwire.core.policy import NO_RULES, Policy
from toolwire.gateway.account import Account
from toolwire.gateway.interpret import Interpreter
from toolwire.gateway.plan import Plan
from toolwire.gateway.served import TakenCalls
from toolwire.wire.obsidian import ObsidianXml

HELD_LIMIT = 4 * 1024 * 1024
"""How many characters are held back while a required call is missing.

An attempt that exceeds this limit is rejected, because its call is still missing.
"""
EVENT_SIZE = 100
"""The number of characters that an event counts as, in addition to its text."""
_TEXT = frozenset({Text})
NOTHING = Usage(0, 0)
SLICE = 256
"""How many characters of a long text are read at once. Other turns may run between two slices."""


class Writer(Protocol):
    """Writes events for the client: the encoder of a stream, or the builder of a whole body."""

    def feed(self, events: list[Event], choice: int) -> bytes: ...

    def say(self, text: str) -> bytes:
        """Writes one text, like `feed` with a single `Text`. Only for answers with one choice."""
        ...


class Stages:
    """The steps from a backend's events to the client's bytes, for one choice under one plan.

    Call `begin` before the batches of each run.
    """

    def __init__(
        self,
        plan: Plan,
        writer: Writer,
        account: Account,
        ids: IdFactory,
        choice: int = 0,
        alone: bool = True,
        xml: ObsidianXml | None = None,
        taken: TakenCalls | None = None,
        opening: list[Event] | None = None,
        used: Usage = NOTHING,
        part: int = 0,
    ) -> None:
        """`alone`: the answer has only this choice.

        `taken`: removes the calls of MCP tools, which the gateway runs itself. `opening`: the first events of
        the answer. `used`: the usage of earlier runs of this answer. `part`: the number of earlier rounds of
        MCP calls (`rounds.py`).
        """
        self.taken, self._opening = taken, opening
        self.plan, self.choice = plan, choice
        self.policy = None if plan.rules == NO_RULES else Policy(plan.rules, account.dropped)
        if not part or self.policy is not None:
            account.policies[choice, part] = self.policy
        self._writer, self._account, self._ids, self._alone, self._xml = writer, account, ids, alone, xml
        is_counted = account.ticket is not None or account.contents is not None  # each text, not only usage
        self._say = self._say_and_count if is_counted else writer.say
        self._has_logprobs = plan.turn.sampling.logprobs is not None
        self._attempts = 0
        self._used = used
        self.is_direct = False
        """Whether text goes straight to the writer (the shortcut)."""

    def begin(self, parks: bool = False) -> None:
        """Starts reading a run.

        `parks`: the calls of the run may wait for results after the response has ended.
        """
        self._parks = parks
        self._interpreter = Interpreter(self.plan, self._ids, mint=parks)
        is_judged = self.plan.required or self.plan.strict
        self._required = RequiredCall(self.plan, self._used) if is_judged else None
        self._text: list[str] = []
        self.names: dict[str, str] = {}
        """The names of the calls by the client's call ids. Filled only for a run that may be parked."""
        self._finished = False
        self._settle()

    # --- the batches of a run ---

    def feed(self, batch: list[Event]) -> bytes:
        """Returns the client's bytes for a batch of the backend."""
        if self.is_direct:
            if len(batch) == 1 and type(batch[0]) is Text:
                return self._say(batch[0].text)
            if _TEXT.issuperset(map(type, batch)):
                return b"".join([self._say(piece.text) for piece in batch])  # type: ignore[union-attr]
        events = self._interpreter.feed(batch)
        if self._has_logprobs and self._interpreter.splits:
            self._account.drops_logprobs = True
        if not events:  # the interpreter waits for more, so nothing changes for the other stages
            return b""
        if self._parks:
            self._remember(events)
        elif self._rest_passes and len(events) == 1 and type(events[0]) is Text:
            self.is_direct = self._interpreter.as_it_is
            return self._say(events[0].text)
        if self._required is not None:
            events = self._required.feed(events)
        elif self._used is not NOTHING:
            events = [self._used + one if isinstance(one, Usage) else one for one in events]
        return self._send(events)

    def is_quick(self, batch: list[Event]) -> bool:
        """Whether the batch has no long text, so that it can be read at once.

        Looking for calls may take microseconds per character.
        """
        for event in batch:
            if type(event) is Text and len(event.text) > SLICE:
                return False
        return True

    def slices(self, batch: list[Event]) -> Iterator[list[Event]]:
        """Yields the batch in parts that are quick to read."""
        for event in batch:
            if not isinstance(event, Text) or event.logprobs:
                yield [event]
                continue
            for start in range(0, len(event.text), SLICE):
                if self.is_direct:
                    yield [Text(event.text[start:])]
                    break
                yield [Text(event.text[start : start + SLICE])]

    def stop(self) -> bytes:
        """Ends a run that was silent for `tools.stop_grace_ms` after its calls. Returns its last bytes."""
        assert self.policy is not None  # a rule set the grace time
        self.policy.stop()
        return self._send([])

    def fail(self, failure: Failure) -> bytes:
        """Ends the answer with a failure and returns its last bytes. Later events are ignored."""
        self._finished = True
        return self._send([failure])

    # --- what the loop asks ---

    @property
    def is_parkable(self) -> bool:
        """Whether the response ended normally, so that the run's calls may wait for their results."""
        return self._parks and self._finished and self.is_complete

    @property
    def minted(self) -> dict[str, str]:
        """Maps the client's call ids to the backend's call ids."""
        return self._interpreter.minted

    @property
    def said(self) -> str:
        """The text of this response. Collected only for a run that may be parked."""
        return "".join(self._text)

    @property
    def may_ask_again(self) -> bool:
        return self._attempts == 0 and self._required is not None and not self._required.sent

    def ask_again(self, parks: bool) -> bytes:
        """Begins the second attempt and returns the client's bytes for it.

        The text of the first attempt is dropped and counted as dropped.
        """
        rejected = self._required
        assert rejected is not None
        self._attempts, self._used = 1, rejected.used
        self.begin(parks)
        return self._send([Dropped("retry", max(1, len(rejected.answer)))])

    # --- internals ---

    def _send(self, events: list[Event]) -> bytes:
        if (policy := self.policy) is not None:
            events = policy.feed(events)
            if policy.cut:
                events = [*events, *policy.end()]
        if self.taken is not None:
            events = self.taken.feed(events)
        if self._opening and events:
            events = [*self._opening, *events]
            self._opening.clear()
        if self._xml is not None:
            events = self._xml.feed(events)
        self._account.saw(events, self.choice)
        self._settle()
        return self._writer.feed(events, self.choice) if events else b""

    def _say_and_count(self, text: str) -> bytes:
        self._account.saw([Text(text)], self.choice)
        return self._writer.say(text)

    def _settle(self) -> None:
        """Updates the attributes that the loop reads."""
        policy, required = self.policy, self._required
        self.rejected = required if required is not None and required.rejected else None
        """The current attempt, if it lacks the required call or has an invalid call; otherwise None."""
        self.is_complete = self._interpreter.ended
        """Whether the backend itself ended the answer."""
        is_cut = policy is not None and policy.cut
        self.over = self.is_complete or is_cut or self._finished or self.rejected is not None
        """Whether the loop can stop reading this run."""
        self.is_between_calls = (
            policy is not None and policy.rules.stop_after == "burst" and policy.between_calls
        )
        """Whether a group of calls ends here if the backend is silent for `tools.stop_grace_ms`."""
        is_open = required is None or required.satisfied
        self._rest_passes = (
            self._alone
            and is_open
            and (policy is None or policy.passes_text)
            and self._xml is None
            and self.taken is None
            and not self._parks
            and not self._has_logprobs  # the shortcut sends text without them
        )
        self.is_direct = self._rest_passes and self._interpreter.as_it_is

    def _remember(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Text):
                self._text.append(event.text)
            elif isinstance(event, CallBegin):
                self.names[event.id or ""] = event.name
            elif isinstance(event, Finish):
                self._finished = True


class RequiredCall:
    """Checks the calls of one attempt before they are sent.

    While a required call is missing, all events except usage are held back, so an answer without the call is
    never sent. The attempt is also rejected if a call in scanned text does not fit its tool's strict schema.
    The gateway never invents a call.
    """

    def __init__(self, plan: Plan, before: Usage) -> None:
        """`before`: the usage of an earlier attempt, which is added to the usage of this attempt."""
        self._plan = plan
        self._waiting = plan.required
        self._checks = plan.scanner is not None  # calls found in text arrive complete, in one batch
        self._before = self.used = before
        self._held: list[Event] = []
        self._size = 0
        self._answer: list[str] = []
        self.sent = False
        self.issues: tuple[str, ...] = ()
        self._without_call = False

    @property
    def rejected(self) -> bool:
        return self._without_call or bool(self.issues)

    @property
    def satisfied(self) -> bool:
        """Whether nothing has to be held back or checked any more, so that text passes unchanged."""
        return not self._waiting and not self._checks

    @property
    def answer(self) -> str:
        """What the model has written in this attempt, including an invalid call."""
        return "".join(self._answer)

    @property
    def failure(self) -> Failure:
        if self.issues:
            words = f"The model's tool call does not fit the tool's strict schema: {self.issues[0]}"
            return Failure("invalid_tool_call", words)
        choice = self._plan.choice
        wanted = f"the tool '{choice.name}'" if choice.name else "a tool"
        words = (
            f"tool_choice requires a call, but the model did not call {wanted}, not even when asked again."
        )
        return Failure("no_tool_call", words, param="tool_choice")

    def feed(self, batch: list[Event]) -> list[Event]:
        out: list[Event] = []
        counted = [event for event in batch if isinstance(event, Usage)]
        if counted:
            batch = [event for event in batch if not isinstance(event, Usage)]
            self.used = self._before + counted[-1]
        for place, event in enumerate(batch):
            if isinstance(event, Text):
                self._answer.append(event.text)
            if isinstance(event, CallBegin):
                if self._checks and self._is_invalid(event, batch[place:]):
                    break
                self._waiting = False
                out += self._held
                self._held = []
            elif isinstance(event, Finish) and self._waiting:
                if event.reason in ("stop", "tool_calls"):
                    self._without_call = True
                    break
                self._waiting = False  # cut by the length limit or a filter: the incomplete answer is sent
                out += self._held
            elif isinstance(event, Failure):
                self._waiting = False
            (self._held if self._waiting else out).append(event)
            if self._waiting:
                tokens = len(getattr(event, "logprobs", ()))
                self._size += EVENT_SIZE * (1 + tokens) + len(getattr(event, "text", ""))
                if self._size > HELD_LIMIT:
                    self._without_call = True
                    break
        self.sent = self.sent or bool(out)
        return [self.used, *out] if counted else out

    def _is_invalid(self, begin: CallBegin, rest: list[Event]) -> bool:
        end = next((one for one in rest if isinstance(one, CallEnd) and one.index == begin.index), None)
        if end is None or end.status != "invalid":
            return False
        arguments = "".join(
            one.delta for one in rest if isinstance(one, CallArgs) and one.index == begin.index
        )
        self._answer.append(f'{{"name": "{begin.name}", "arguments": {arguments}}}')
        self.issues = end.issues or ("the arguments are not a JSON object",)
        return True

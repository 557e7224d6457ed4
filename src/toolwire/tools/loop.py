"""A conversation with any model of the gateway, with rounds of tool calls in each turn.

Text is streamed. A turn ends when the model answers without calls, when the budget of the turn is spent, or
when the person stops the turn. A stopped turn keeps the text so far. The model gets the results of tools in
messages with the role `tool`, between marks that are new for every result. The marks say that the text
between them is data, not instructions (law 12 in `docs/architecture.md`).
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from toolwire.core import events, marks
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Event
from toolwire.gateway.pipeline import Caller, Gateway
from toolwire.tools.contract import Arguments, Asking, Outcome, Ruled, ToolCall
from toolwire.tools.executor import Executor
from toolwire.wire.chat.encode import usage_object

Message = dict[str, Any]
REPEATED = "The model repeated itself without end, so Toolwire ended the answer."
SPENT = "The answer reached its limit for tool calls or for the size of their results."
LEAST_S = 30.0
"""The minimum time that the model has for its last answer, even if the budget is spent."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of one turn.

    `rounds`: how often the model may call tools. `seconds`: how long the model may take in all its answers.
    The time of the tools and of the person does not count. `shared_bytes`: if all results together have this
    size, the model may call no more tools.
    """

    rounds: int = 8
    seconds: float = 300.0
    shared_bytes: int = 1_000_000


# --- events of a turn ---


@dataclass(frozen=True, slots=True)
class SaidText:
    text: str


@dataclass(frozen=True, slots=True)
class ThoughtText:
    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """The event that the model has called tools. `calls`: all calls of one answer."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Did:
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Ended:
    """The event that a turn has ended, and why. `words`: details.

    If `why` is `length`, the answer was cut off: at the token limit if `words` is empty, otherwise for the
    reason in `words`.
    """

    why: Literal["done", "length", "budget", "failed"]
    words: str = ""
    usage: dict[str, Any] = field(default_factory=dict)


Happening = SaidText | ThoughtText | Called | Did | Ended


class Model(Protocol):
    """A model that takes chat completions requests.

    `events` yields the events of its answer, and raises `ModelFailed` if the model cannot answer.
    """

    def events(self, body: dict[str, Any]) -> AsyncGenerator[list[Event], None]: ...


class ModelFailed(Exception):
    """Raised if the model could not answer. The message is for the person."""


class Conversation:
    """The messages of a conversation, and its turns. `executor` is None if there are no tools."""

    def __init__(
        self,
        model: Model,
        name: str,
        executor: Executor | None,
        asking: Asking,
        *,
        messages: Sequence[Message] = (),
        budget: Budget | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`options`: further fields of every request, such as `temperature`."""
        self.model = model
        self.name = name
        self.executor = executor
        self.asking = asking
        self.messages: list[Message] = list(messages)
        self.budget = budget or Budget()
        self.options = dict(options or {})
        self.edited: dict[str, tuple[Arguments, Arguments]] = {}
        """By call id: the arguments as asked and as run, if the person edited them."""

    async def turn(self, text: str | None) -> AsyncGenerator[Happening, None]:
        """Runs one turn.

        `text`: the person's message; None if it is already in the history. Closing the generator stops the
        model and the tools; the history stays valid.
        """
        if text is not None:
            self.messages.append({"role": "user", "content": text})
        spent = shared = 0.0
        for round_number in range(self.budget.rounds + 1):
            started = time.monotonic()
            answer = _Answer()
            tools = self.executor.toolbox.definitions() if self.executor is not None else []
            used_up = spent >= self.budget.seconds or shared >= self.budget.shared_bytes
            last = used_up or round_number == self.budget.rounds
            until = started + max(self.budget.seconds - spent, LEAST_S if last else 0)
            calls: tuple[ToolCall, ...] = ()
            ended: Ended | None = None
            try:
                async with aclosing(self.model.events(self._request(tools, final=last))) as batches:
                    while (batch := await _next(batches, until)) is not None:
                        for happening in answer.read(batch):
                            yield happening
                calls = answer.calls() if self.executor is not None else ()
            except TimeoutError:
                ended = Ended("budget", "The answer reached its time limit.", answer.usage)
            except ModelFailed as error:
                ended = Ended("failed", str(error), answer.usage)
            finally:  # also when the turn is stopped
                message = answer.message(calls)
                self.messages += [message] if message is not None else []
            spent += time.monotonic() - started
            if ended is None and last and (calls or not answer.said):
                ended = Ended("budget", SPENT, answer.usage)
            elif ended is None and not calls:
                why: Literal["length", "done"] = "length" if answer.finish == "length" else "done"
                ended = Ended(why, REPEATED if answer.repeats else "", answer.usage)
            # Every call gets a placeholder as its result at once: without a result the conversation could not
            # continue.
            not_run = "not run: the budget for tools in this turn is used up" if last else "interrupted"
            self.messages += [_result(call, json.dumps({"error": not_run})) for call in calls]
            if ended is not None:
                yield ended
                return
            yield Called(calls)
            for outcome in await self._execute(calls):
                if outcome.edited is not None:
                    self.edited[outcome.call.id] = outcome.edited
                yield Did(outcome)
                if outcome.status == "done":
                    shared += len(json.dumps(outcome.result, ensure_ascii=False).encode("utf-8", "replace"))

    def _request(self, tools: list[dict[str, Any]], final: bool) -> dict[str, Any]:
        """Returns the next request. `final`: the model must answer without further calls."""
        body: dict[str, Any] = {**self.options, "model": self.name, "messages": self.messages, "stream": True}
        return {**body, "tools": tools, **({"tool_choice": "none"} if final else {})} if tools else body

    async def _execute(self, calls: tuple[ToolCall, ...]) -> list[Outcome]:
        """Runs the calls of an answer, and replaces their placeholder results in the history."""
        assert self.executor is not None
        first = len(self.messages) - len(calls)
        outcomes = await self.executor.execute(calls, self.asking)
        results = ((one.call, marked(one.result, self._origin(one.call))) for one in outcomes)
        self.messages[first:] = [_result(call, content) for call, content in results]
        return outcomes

    def _origin(self, call: ToolCall) -> str:
        """Returns where the result of a call comes from."""
        assert self.executor is not None
        tool = self.executor.toolbox.tools.get(call.name)
        return f"from the MCP server {tool.source.partition(':')[2]}" if isinstance(tool, Ruled) else NOTES


def _result(call: ToolCall, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call.id, "content": content}


async def _next(batches: AsyncGenerator[list[Event], None], until: float) -> list[Event] | None:
    """Returns the next batch; None at the end. Raises `TimeoutError` at the time `until`."""
    async with asyncio.timeout(until - time.monotonic()):
        return await anext(batches, None)


NOTES = "contents of the person's notes"


def marked(result: Any, of: str = NOTES) -> str:
    """Returns a tool's result for the model, as data between random marks.

    The result cannot contain the marks, because nobody can know them in advance. `of`: describes the data.
    """
    return marks.marked(json.dumps(result, ensure_ascii=False), of, secrets.token_hex(6))


class _Answer:
    """Assembles one streamed answer."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: dict[int, ToolCall] = {}
        self.finish: str | None = None
        self.repeats = False
        self.usage: dict[str, Any] = {}

    def read(self, batch: list[Event]) -> list[Happening]:
        out: list[Happening] = []
        for event in batch:
            if isinstance(event, events.Thought):
                out.append(ThoughtText(event.text))
            elif isinstance(event, events.Text | events.Refusal):
                self._text.append(event.text)
                out.append(SaidText(event.text))
            elif isinstance(event, events.CallBegin):
                self._calls[event.index] = ToolCall(event.id or "", event.name, "")
            elif isinstance(event, events.CallArgs) and event.index in self._calls:
                call = self._calls[event.index]
                self._calls[event.index] = replace(call, arguments=call.arguments + event.delta)
            elif isinstance(event, events.Usage):
                self.usage = usage_object(event)
            elif isinstance(event, events.Finish):
                self.finish, self.repeats = event.reason, event.repeats
        return out

    @property
    def said(self) -> bool:
        return bool(self._text)

    def calls(self) -> tuple[ToolCall, ...]:
        return () if self.finish == "length" else tuple(self._calls[index] for index in sorted(self._calls))

    def message(self, calls: Sequence[ToolCall]) -> Message | None:
        """Returns the answer as a message for the history; None if it is empty."""
        text = "".join(self._text)
        if not text and not calls:
            return None
        message: Message = {"role": "assistant", "content": text or None}
        for call in calls:
            function = {"name": call.name, "arguments": call.arguments or "{}"}
            written = {"id": call.id, "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(written)
        return message


# --- models ---


class GatewayModel:
    """A model of the gateway in this process. Requests take the same path as those of clients."""

    def __init__(self, gateway: Gateway, caller: Caller | None = None) -> None:
        self._gateway = gateway
        self._caller = caller or Caller()

    async def events(self, body: dict[str, Any]) -> AsyncGenerator[list[Event], None]:
        failure: events.Failure | None = None
        raw = json.dumps(body).encode("utf-8", "replace")
        try:
            async with aclosing(self._gateway.events(raw, self._caller)) as batches:
                async for batch in batches:
                    failure = next((event for event in batch if isinstance(event, events.Failure)), failure)
                    yield batch
        except ToolwireError as error:
            failure = error.failure
        if failure is not None:
            raise ModelFailed(failure.message)

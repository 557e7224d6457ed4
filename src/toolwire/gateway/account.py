"""Counts the calls and the usage of a turn, for its headers, last comment and summary."""

from __future__ import annotations

import json
from functools import lru_cache, reduce
from time import perf_counter
from typing import TYPE_CHECKING

from toolwire.access.limits import Ticket
from toolwire.backends.base import Batch
from toolwire.core.errors import status_of
from toolwire.core.events import CallBegin, Dropped, Failure, Finish, McpAsk, McpCall, Usage
from toolwire.core.policy import Policy
from toolwire.gateway.records import EVENT_STREAM, JSON, TurnSummary
from toolwire.observe.tracing import Contents

if TYPE_CHECKING:
    from toolwire.gateway.run import Run

CALLS = frozenset({CallBegin, McpCall, McpAsk})
Headers = tuple[tuple[bytes, bytes], ...]


class Account:
    """Calls and usage of one turn.

    Call `saw` with each batch that is sent. `policies` maps (index of the choice, number of earlier rounds of
    calls) to a `Policy`, or to None if no rules apply.
    """

    __slots__ = (
        "_started",
        "_usages",
        "call_ids",
        "call_names",
        "call_times",
        "contents",
        "dropped",
        "drops_logprobs",
        "finish",
        "model",
        "policies",
        "repeats",
        "ticket",
    )

    def __init__(self, started: float, contents: Contents | None) -> None:
        self._started = started
        self._usages: dict[int, Usage] = {}
        self.contents = contents
        """The texts of the turn; None unless telemetry or the log wants them."""
        self.ticket: Ticket | None = None
        """The part of the key's limits that this turn has reserved; None if the key has no limits."""
        self.policies: dict[tuple[int, int], Policy | None] = {}
        self.dropped: dict[str, int] = {}
        """The number of dropped characters or calls, by reason. Each `Policy` adds to this dict too."""
        self.call_names: list[str] = []
        self.call_ids: list[str] = []
        self.call_times: list[float] = []
        self.finish: str | None = None
        self.model = ""
        """The id of the model that answers; "" if it is the requested one."""
        self.drops_logprobs = False
        """Whether log probabilities were dropped, because a thought was cut out of the answer's text."""
        self.repeats = False
        """Whether Toolwire ended the answer, because the answer repeated itself."""

    def saw(self, batch: Batch, choice: int) -> None:
        if self.ticket is not None:
            self.ticket.saw(batch)
        if self.contents is not None:
            self.contents.saw(batch, choice)
        for event in batch:
            kind = type(event)
            if kind in CALLS:
                server = "" if kind is CallBegin else f"{event.server}__"  # type: ignore[union-attr]
                self.call_names.append(server + event.name)  # type: ignore[union-attr]
                self.call_ids.append(event.id or "")  # type: ignore[union-attr]
                self.call_times.append(perf_counter() - self._started)
            elif kind is Finish:
                self.finish = event.reason  # type: ignore[union-attr]
                self.repeats = self.repeats or event.repeats  # type: ignore[union-attr]
            elif kind is Usage:
                self._usages[choice] = event  # type: ignore[assignment]
            elif kind is Dropped and self._policy(choice) is None:
                self.dropped[event.kind] = self.dropped.get(event.kind, 0) + event.count  # type: ignore[union-attr]

    def _policy(self, choice: int) -> Policy | None:
        """Returns the policy that was added last for this choice."""
        return next(policy for (at, _), policy in reversed(self.policies.items()) if at == choice)

    def settled(self, ran: bool, answered: bool) -> Usage:
        """Settles the key's limits and returns the usage of all choices together.

        `ran`: a model ran, so an estimate is charged if the backend reported no usage. `answered`: if False,
        the request does not count for the key's budget.
        """
        usage = reduce(Usage.beside, self._usages.values()) if self._usages else Usage(0, 0)
        return usage if self.ticket is None else self.ticket.settle(usage, ran, answered)

    def called(self) -> tuple[int, bool, str]:
        """Returns the number of calls sent, whether any were dropped, and the `stop_after` rule."""
        truncated, mode = False, "off"
        for policy in filter(None, self.policies.values()):
            truncated = truncated or policy.truncated
            mode = policy.rules.stop_after if mode == "off" else mode
        return len(self.call_names), truncated, mode

    def comment(self) -> str:
        """Returns the comment that reports the calls at the end of a stream.

        The headers of a stream cannot report the calls, because the headers are sent before the first call.
        """
        count, truncated, mode = self.called()
        cut = "true" if truncated else "false"
        calls = f'"tool_call_count":{count},"tool_call_truncated":{cut}'
        dropped = ',"logprobs":"ignored"' if self.drops_logprobs else ""
        dropped += ',"answer":"repetition"' if self.repeats else ""
        model = f',"model":{json.dumps(self.model)}' if self.model else ""
        return f'{{{calls},"stop_after_tools_mode":"{mode}"{dropped}{model}}}'


def headers(run: Run, ended: TurnSummary | None = None) -> list[tuple[bytes, bytes]]:
    """Returns the HTTP headers of the answer.

    `ended`: the summary of the turn, if the answer is one whole body; None if it is a stream.
    """
    report = run.final_report() if ended is None else ended.report
    if ended is not None and run.answer is not None and not run.answer.stored:
        report = "; ".join(filter(None, (report, "store=failed")))
    out = [
        EVENT_STREAM if ended is None else JSON,
        (b"x-toolwire-report", report.encode()),
        (b"x-toolwire-turn", run.kind.encode()),
    ]
    if run.fell_back:
        out.append((b"x-toolwire-model", run.model.encode("ascii", "replace")))
    if ended is not None:
        out += _of_calls(ended.tool_call_count, ended.tool_call_truncated, ended.stop_after)
    return out


@lru_cache(64)
def _of_calls(count: int, truncated: bool, mode: str) -> Headers:
    """Returns the headers about calls: Toolwire's own, and the same values under other proxies' names."""
    number, cut, stop = str(count).encode(), b"true" if truncated else b"false", mode.encode()
    return (
        (b"x-toolwire-tools", b"count=%b; truncated=%b; stop_after=%b" % (number, cut, stop)),
        (b"x-codex-tool-call-count", number),
        (b"x-codex-tool-call-truncated", cut),
        (b"x-codex-stop-after-tools-mode", stop),
    )


def summary(run: Run, failure: Failure | None, cancelled: bool, usage: Usage) -> TurnSummary:
    """Returns the facts of a turn that has ended."""
    account, turn, plan, caller, trace = run.account, run.turn, run.plan, run.caller, run.trace
    answer, first_byte = run.answer, run.first_byte
    count, truncated, mode = account.called()
    if trace is not None:
        trace.failure = failure
    return TurnSummary(
        request_id=caller.request_id,
        key_id=caller.key_id,
        api=run.api,
        model=run.model,
        backend=run.backend_kind,
        strategy="none" if plan is None else plan.strategy,
        stream=turn is not None and turn.stream,
        status=status_of(failure, run.api)
        if failure is not None and first_byte is None and not run.committed
        else 200,
        finish=account.finish,
        error_kind=failure.kind if failure is not None else None,
        tool_call_count=count,
        tool_call_names=tuple(account.call_names),
        tool_call_ids=tuple(account.call_ids),
        tool_call_truncated=truncated,
        stop_after=mode,
        output_mode=run.output_mode,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        first_byte_s=None if first_byte is None else first_byte - run.started,
        duration_s=perf_counter() - run.started,
        report=run.final_report(),
        cancelled=cancelled,
        dropped=account.dropped,
        cached_tokens=usage.cached_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        kind=run.kind,
        key_name=caller.key_name,
        turn_id="" if trace is None else trace.id,
        answer_id="" if answer is None else answer.id,
        started_at=run.started_at,
        tool_call_s=tuple(account.call_times),
        trace_parent=caller.trace_parent,
        turn=turn,
        contents=account.contents,
        trace=trace,
        hold=None if account.ticket is None else account.ticket.hold,
    )

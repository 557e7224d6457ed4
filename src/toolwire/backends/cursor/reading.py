"""What the bridge streams of a run → the run.

- Text and thoughts arrive twice, as deltas and as whole messages. The reader passes each character on once.
- An empty message is a keep-alive, but not while the agent waits for a consent that nobody here can give.
- An agent that uses a tool of Cursor's own is stopped: nothing may run on this machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from toolwire.backends.agents.run import AgentRun
from toolwire.backends.cursor.client import clean, run_failure
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure, Usage

STATUS = "RUN_LIFECYCLE_STATUS_"
ENDS: dict[str, tuple[str, str]] = {
    "CANCELLED": ("backend_cut", "Cursor cancelled the run."),
    "EXPIRED": ("timeout", "Cursor let the run expire."),
}
OWN_TOOLS = frozenset(
    (
        "shell writeshellstdin read write edit delete ls glob grep readlints semsearch applyagentdiff "
        "fetch webfetch websearch xsearch task computeruse recordscreen generateimage generatevideo "
        "createagent sendtoagent stopagent writecanvas setactivebranch setupvmenvironment prmanagement "
        "connectscm"
    ).split()
)
"""Cursor's tools that touch files, processes or the network, as `_plain` spells them."""


class _TwoChannels:
    """A text that arrives on two channels."""

    def __init__(self) -> None:
        self._counts = {"delta": 0, "message": 0}
        self.sent = 0

    def news(self, channel: str, text: str) -> str:
        """The end of `text` that the other channel has not brought."""
        self._counts[channel] += len(text)
        fresh = max(0, self._counts[channel] - self.sent)
        self.sent += fresh
        return text[len(text) - fresh :]


class SendReader:
    """One Send: `feed` it every message, then `check` how it ended."""

    def __init__(self, run: AgentRun, tools: frozenset[str]) -> None:
        self.run_id = ""
        self.over = False
        self.heard = False
        """The run has sent a message of its own."""
        self._run = run
        self._tools = tools
        self._text = _TwoChannels()
        self._thoughts = _TwoChannels()
        self._order: dict[str, int] = {}
        self._waits_for_consent = False
        self._failure: Failure | None = None
        self._status = ""
        self._usages: dict[str, list[int]] = {}
        self._reported = [0, 0, 0, 0]

    def feed(self, message: Mapping[str, Any]) -> None:
        kinds = ("sdkMessage", "interactionUpdate", "result", "done")
        kind = next((name for name in kinds if isinstance(message.get(name), Mapping)), None)
        if kind is None:
            if not self._waits_for_consent:
                self._run.alive()
            return
        self.heard = True
        self._waits_for_consent = False
        inner: Mapping[str, Any] = message[kind]
        self.run_id = self.run_id or _string(inner, "runId", "run_id")
        if kind == "sdkMessage":
            self._message(_payload(inner, "message"))
        elif kind == "interactionUpdate":
            self._update(_payload(inner, "update"))
        elif kind == "result":
            self._result(inner)
        self._run.alive()

    def check(self) -> None:
        """Raises the failure of the run."""
        if self._failure is not None:
            raise ToolwireError.of(self._failure)
        if not self.over:
            problem = "Cursor's bridge ended the stream before the agent's answer was complete."
            raise ToolwireError("backend_cut", problem)

    def order(self, call_id: str | None) -> int:
        """The position of a call: calls are ordered by their first mention."""
        return self._order.setdefault(call_id or f" {len(self._order)}", len(self._order) + 1)

    def answered(self) -> None:
        """A response ended, and reported the usage so far."""
        self._reported = self._used()

    def _message(self, payload: Mapping[str, Any]) -> None:
        kind = payload.get("type")
        self.run_id = self.run_id or _string(payload, "run_id", "runId")
        if kind == "assistant":
            for block in _blocks(payload):
                if block.get("type") == "text":
                    self._run.text(self._text.news("message", _string(block, "text")))
        elif kind == "thinking":
            self._run.thought(self._thoughts.news("message", _string(payload, "text")))
        elif kind == "tool_call":
            self._tool(payload)
        elif kind == "status":
            self._status = _string(payload, "message") or self._status
        elif kind == "usage":
            self._use("message", payload.get("usage"))
        elif kind == "request":
            self._waits_for_consent = True

    def _update(self, payload: Mapping[str, Any]) -> None:
        kind = payload.get("type")
        if kind == "text-delta":
            self._run.text(self._text.news("delta", _string(payload, "text")))
        elif kind == "thinking-delta":
            self._run.thought(self._thoughts.news("delta", _string(payload, "text")))
        elif kind in ("tool-call-started", "partial-tool-call"):
            if call_id := _string(payload, "callId"):
                self.order(call_id)
        elif kind == "turn-ended":
            self._use("turn", payload.get("usage"))

    def _tool(self, payload: Mapping[str, Any]) -> None:
        name = _string(payload, "name")
        if call_id := _string(payload, "call_id", "callId"):
            self.order(call_id)
        if name not in self._tools and _plain(name) in OWN_TOOLS:
            raise ToolwireError(
                "backend",
                f"Cursor's agent used its own tool '{clean(name)}', which nobody granted. The run stopped.",
            )

    def _result(self, inner: Mapping[str, Any]) -> None:
        nested = inner.get("result")
        result = nested if isinstance(nested, Mapping) else inner
        status = (_string(inner, "status") or _string(result, "status")).removeprefix(STATUS)
        self.over = True
        self._use("result", result.get("usage"))
        if status == "FINISHED":
            if not self._text.sent:
                self._run.text(self._text.news("message", _string(result, "result")))
        elif status in ENDS:
            self._failure = Failure(*ENDS[status])
        else:
            code = _string(result, "errorCode") or _string(inner, "errorCode")
            self._failure = run_failure(code, _string(result, "errorMessage") or self._status)

    def _use(self, source: str, usage: Any) -> None:
        counts = _counts(usage) if isinstance(usage, Mapping) else None
        if counts is None:
            return
        known = self._usages.get(source, [0, 0, 0, 0])
        self._usages[source] = (
            counts if source == "result" else [a + b for a, b in zip(known, counts, strict=True)]
        )
        total, output, cached, reasoning = (
            max(0, a - b) for a, b in zip(self._used(), self._reported, strict=True)
        )
        self._run.usage(Usage(max(0, total - output), output, cached, reasoning))

    def _used(self) -> list[int]:
        """The usage of the whole run, from the best source there is."""
        return next(
            (self._usages[one] for one in ("result", "message", "turn") if one in self._usages), [0, 0, 0, 0]
        )


def _counts(usage: Mapping[str, Any]) -> list[int] | None:
    """Total, output, cached and reasoning tokens. Only the total shows if the input includes the cache."""
    given, output, cached, reasoning, total = (
        _number(usage, f"{name}Tokens", f"{name.replace('R', '_r')}_tokens")
        for name in ("input", "output", "cacheRead", "reasoning", "total")
    )
    if given is None and output is None:
        return None
    return [max(total or 0, (given or 0) + (output or 0)), output or 0, cached or 0, reasoning or 0]


def _number(value: Mapping[str, Any], *names: str) -> int | None:
    """Protobuf's JSON has 64-bit integers as strings."""
    for name in names:
        try:
            return max(0, int(value[name]))
        except (KeyError, TypeError, ValueError):
            continue
    return None


def _plain(name: str) -> str:
    """`shell_tool_call`, `shellToolCall` and `Shell` are one tool."""
    return re.sub(r"tool(?:call)?$", "", re.sub(r"[^a-z]", "", name.lower()))


def _string(value: Mapping[str, Any], *names: str) -> str:
    return next((value[name] for name in names if isinstance(value.get(name), str)), "")


def _payload(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The message or update, which may be wrapped in an envelope of its own."""
    inner = value.get(name)
    if isinstance(inner, Mapping) and (name == "update" or "type" in inner):
        return {"type": value.get("type"), **inner}
    return value


def _blocks(payload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    message = payload.get("message")
    blocks = message.get("content") if isinstance(message, Mapping) else None
    return [block for block in blocks if isinstance(block, Mapping)] if isinstance(blocks, list) else []

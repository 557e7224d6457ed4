"""What the bridge streams of a run → the run.

- Text and thoughts come twice: as deltas, and as whole messages. Both are counted, and what either brings beyond the other goes out, once.
- An empty message is a sign of life; while the agent waits for somebody's consent, which nobody here can give, it is none.
- A tool of Cursor's own that the agent uses in spite of what it was given ends the run: nothing may run on this machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from toolwire.backends.agents.run import AgentRun
from toolwire.backends.cursor.client import clean, of_run
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure, Usage

STATUS = "RUN_LIFECYCLE_STATUS_"
FINISHED = "FINISHED"
ENDS: dict[str, tuple[str, str]] = {
    "CANCELLED": ("backend_cut", "Cursor cancelled the run."),
    "EXPIRED": ("timeout", "Cursor let the run expire."),
}
OWN_TOOLS = frozenset(
    (
        *("shell", "writeshellstdin", "read", "write", "edit", "delete", "ls", "glob", "grep", "readlints", "semsearch", "applyagentdiff"),
        *("fetch", "webfetch", "websearch", "xsearch", "task", "computeruse", "recordscreen", "generateimage", "generatevideo", "createagent"),
        *("sendtoagent", "stopagent", "writecanvas", "setactivebranch", "setupvmenvironment", "prmanagement", "connectscm"),
    )
)
"""Cursor's tools that touch files, processes or the network, as the bridge names them, in small letters."""
_OTHER, _ENDING = re.compile(r"[^a-z]"), re.compile(r"tool(?:call)?$")


class _Doubled:
    """One text that comes on two ways."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self.sent = 0

    def news(self, way: str, text: str) -> str:
        count = self._counts[way] = self._counts.get(way, 0) + len(text)
        fresh = max(0, count - self.sent)
        self.sent += fresh
        return text[len(text) - fresh :] if fresh else ""


class SendReader:
    """One Send. `feed` it what comes, then `check` how it ended."""

    def __init__(self, run: AgentRun, tools: frozenset[str]) -> None:
        self.run_id = ""
        self.over = False
        self.heard = False
        """Whether the run gave any sign of its own."""
        self._run = run
        self._tools = tools
        self._said = _Doubled()
        self._thought = _Doubled()
        self._places: dict[str, int] = {}
        self._asking = False
        self._failure: Failure | None = None
        self._told: str = ""
        self._usages: dict[str, list[int]] = {}
        self._reported = [0, 0, 0, 0]

    def feed(self, message: Mapping[str, Any]) -> None:
        kind = next((name for name in ("sdkMessage", "interactionUpdate", "result", "done") if isinstance(message.get(name), Mapping)), None)
        if kind is None:
            if not self._asking:
                self._run.alive()
            return
        self.heard = True
        self._asking = False
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
        """Raises what the run failed with."""
        if self._failure is not None:
            raise ToolwireError.of(self._failure)
        if not self.over:
            raise ToolwireError("backend_cut", "Cursor's bridge ended the stream before the agent's answer was complete.")

    def place(self, call_id: str | None) -> int:
        """The order of calls is that in which they are first heard of."""
        return self._places.setdefault(call_id or f" {len(self._places)}", len(self._places) + 1)

    def answered(self) -> None:
        """A response ended: what was used so far has been told with it."""
        self._reported = self._used()

    # --- inside --------------------------------------------------------------------------------------------------------------------------------

    def _message(self, payload: Mapping[str, Any]) -> None:
        kind = payload.get("type")
        self.run_id = self.run_id or _string(payload, "run_id", "runId")
        if kind == "assistant":
            for block in _blocks(payload):
                if block.get("type") == "text":
                    self._run.text(self._said.news("message", _string(block, "text")))
        elif kind == "thinking":
            self._run.thought(self._thought.news("message", _string(payload, "text")))
        elif kind == "tool_call":
            self._tool(payload)
        elif kind == "status":
            self._told = _string(payload, "message") or self._told
        elif kind == "usage":
            self._use("message", payload.get("usage"))
        elif kind == "request":
            self._asking = True

    def _update(self, payload: Mapping[str, Any]) -> None:
        kind = payload.get("type")
        if kind == "text-delta":
            self._run.text(self._said.news("delta", _string(payload, "text")))
        elif kind == "thinking-delta":
            self._run.thought(self._thought.news("delta", _string(payload, "text")))
        elif kind in ("tool-call-started", "partial-tool-call"):
            if call_id := _string(payload, "callId"):
                self.place(call_id)
        elif kind == "turn-ended":
            self._use("turn", payload.get("usage"))

    def _tool(self, payload: Mapping[str, Any]) -> None:
        name = _string(payload, "name")
        if call_id := _string(payload, "call_id", "callId"):
            self.place(call_id)
        if name not in self._tools and _plain(name) in OWN_TOOLS:
            raise ToolwireError("backend", f"Cursor's agent used its own tool '{clean(name)}', which nobody granted; the run was stopped.")

    def _result(self, inner: Mapping[str, Any]) -> None:
        nested = inner.get("result")
        result = nested if isinstance(nested, Mapping) else inner
        status = (_string(inner, "status") or _string(result, "status")).removeprefix(STATUS)
        self.over = True
        self._use("result", result.get("usage"))
        if status == FINISHED:
            if not self._said.sent and isinstance(result.get("result"), str):
                self._run.text(self._said.news("message", result["result"]))
        elif status in ENDS:
            self._failure = Failure(*ENDS[status])
        else:
            code = _string(result, "errorCode") or _string(inner, "errorCode")
            self._failure = of_run(code, _string(result, "errorMessage") or self._told)

    def _use(self, way: str, usage: Any) -> None:
        counts = _counts(usage) if isinstance(usage, Mapping) else None
        if counts is None:
            return
        known = self._usages.get(way, [0, 0, 0, 0])
        self._usages[way] = counts if way == "result" else [a + b for a, b in zip(known, counts, strict=True)]
        total, output, cached, reasoning = (max(0, a - b) for a, b in zip(self._used(), self._reported, strict=True))
        self._run.usage(Usage(max(0, total - output), output, cached, reasoning))

    def _used(self) -> list[int]:
        """The whole run, by the best that was told: its result, else its messages, else its turns."""
        return next((self._usages[way] for way in ("result", "message", "turn") if way in self._usages), [0, 0, 0, 0])


def _counts(usage: Mapping[str, Any]) -> list[int] | None:
    """Total, output, cached and reasoning tokens. What was read from a cache may or may not be part of the input: the total tells."""
    given, output = _number(usage, "inputTokens", "input_tokens"), _number(usage, "outputTokens", "output_tokens")
    if given is None and output is None:
        return None
    cached, reasoning = _number(usage, "cacheReadTokens", "cache_read_tokens"), _number(usage, "reasoningTokens", "reasoning_tokens")
    total = _number(usage, "totalTokens", "total_tokens") or 0
    return [max(total, (given or 0) + (output or 0)), output or 0, cached or 0, reasoning or 0]


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
    return _ENDING.sub("", _OTHER.sub("", name.lower()))


def _string(value: Mapping[str, Any], *names: str) -> str:
    return next((value[name] for name in names if isinstance(value.get(name), str)), "")


def _payload(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What a message or an update says: it stands inside an envelope of its own, or is the envelope."""
    inner = value.get(name)
    wrapped = isinstance(inner, Mapping) and (name == "update" or "type" in inner)
    return {"type": value.get("type"), **inner} if wrapped and isinstance(inner, Mapping) else value


def _blocks(payload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    message = payload.get("message")
    blocks = message.get("content") if isinstance(message, Mapping) else None
    return [block for block in blocks if isinstance(block, Mapping)] if isinstance(blocks, list) else []

"""Converts Codex's notifications and errors to events.

- Text and thoughts come from deltas. When an item is complete, Codex also sends it as the provider sent it (a
  raw item). If the raw item contains more text than its deltas, the rest becomes an event too. If the raw
  item contradicts its deltas, its text is ignored.
- Calls come from the raw items, in the model's order and with unchanged arguments. Only calls of a declared
  tool with a JSON object as arguments reach the client. All other calls become a `Dropped` event: Codex
  answers most of them itself, and the model continues.
- Token counts come from the response's own usage if Codex reports it, otherwise from the increase of the
  thread's totals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from toolwire.backends.agents.processes import clean
from toolwire.backends.codex import protocol
from toolwire.backends.codex.protocol import RpcMessage, TurnError
from toolwire.core.events import (
    CallArgs,
    CallBegin,
    CallEnd,
    Dropped,
    Event,
    Failure,
    Finish,
    Text,
    Thought,
    Usage,
)
from toolwire.emulate.arguments import load_object

REFUSALS = {
    "unknown": "There is no such tool.",
    "malformed": "The arguments must be one JSON object. Call the tool again with such arguments.",
    "parallel": "This call was not made: only one at a time is allowed. "
    "Ask for it again, alone, if it is still needed.",
}
"""Reasons why the client does not get a call (kinds of `Dropped`), with the answer that the model gets."""
FORBIDDEN = frozenset({"view_image"})
"""Codex's own tools that read files of this machine, and that some versions cannot disable."""
ANSWER = frozenset({"user", "function_call_output", "custom_tool_call_output", "reasoning", "assistant"})
"""The kinds of items of a response without calls. After such a response, the turn should end."""
DEPTH = 127
_MARKS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
COUNTED = "thread/tokenUsage/updated"
BETWEEN = "\n\n"
"""Separates two messages of one answer, and the parts of a reasoning summary."""


class ThreadReader:
    """Converts the notifications of one Codex thread: `feed` returns the events of a notification.

    `tools` maps Codex's name for a tool to the client's name. `ended`: how the turn ended; None while it
    runs. `complete`: whether Codex reported the end of the model's response.
    """

    def __init__(self, tools: Mapping[str, str], parallel: bool = True) -> None:
        self._tools = tools
        self._parallel = parallel
        self._total = Usage(0, 0)
        self.turn_id = ""
        self._no_item()
        self.begin()

    def begin(self) -> None:
        """Begins a new response on the same thread."""
        self._before = self._total
        self._error: TurnError | None = None
        self._spoke = self._summarizing = False
        self.calls: list[str] = []
        """The ids of this response's calls, in model order."""
        self.refused: list[tuple[str, str]] = []
        """The ids of calls that the client does not get, each with the result that Codex gets."""
        self.forbidden = False
        """Whether the model called a tool of Codex that reads files of this machine."""
        self.complete = False
        self.answered = False
        """Whether the last response has no calls and its tokens were counted, so that the turn should end."""
        self._items: set[str] = set()
        self.ended: Finish | Failure | None = None

    def _no_item(self) -> None:
        self._item: str | None = None
        self._part: tuple[str, int] | None = None
        # what the deltas of the current item have contained so far
        self._text_sent: list[str] = []
        self._summary_sent: list[str] = []
        self._thought_sent: list[str] = []

    def feed(self, message: RpcMessage) -> list[Event]:
        if message.method != COUNTED:
            self.answered = False
        kind, read = NOTIFICATIONS[message.method]
        news = protocol.decode(kind, message.params)
        return (read(self, news) or []) if news is not None else []

    @property
    def failing(self) -> bool:
        """Whether Codex reported an error, but not yet the end of the turn."""
        return self._error is not None and self.ended is None

    def close(self) -> None:
        """Ends a turn whose end Codex did not report."""
        finished = self.answered and self._error is None
        self.ended = Finish("stop") if finished else end_of(self._error or TurnError())

    def usage(self) -> list[Event]:
        """Returns the usage of this response so far, or nothing if it is unknown."""
        if self._total == self._before:
            return []
        return [self._total - self._before]

    # --- by method ---

    def _text(self, news: protocol.CodexDelta) -> list[Event]:
        if not news.delta:
            return []
        start = ""
        if news.item_id != self._item:
            start = BETWEEN if self._spoke else ""
            self._text_sent.clear()
        self._item, self._spoke = news.item_id, True
        self._text_sent.append(news.delta)
        return [Text(start + news.delta)]

    def _summarized(self, news: protocol.CodexDelta) -> list[Event]:
        if not news.delta:
            return []
        part = (news.item_id, news.summary_index)
        if self._part is not None and self._part[0] != news.item_id:
            self._summary_sent.clear()
        start = BETWEEN if self._summarizing and part != self._part else ""
        self._part, self._summarizing = part, True
        self._summary_sent.append(start + news.delta if self._summary_sent else news.delta)
        return [Thought(start + news.delta, summary=True)]

    def _thought(self, news: protocol.CodexDelta) -> list[Event]:
        self._thought_sent.append(news.delta)
        return [Thought(news.delta)] if news.delta else []

    def _message_end(self, item: protocol.RawItem) -> list[Event]:
        start = BETWEEN if self._spoke and not self._text_sent else ""
        rest = _rest(_texts(item.content), self._text_sent)
        self._item = None
        self._spoke = self._spoke or bool(rest)
        return [Text(start + rest)] if rest else []

    def _reasoning_end(self, item: protocol.RawItem) -> list[Event]:
        start = BETWEEN if self._summarizing and not self._summary_sent else ""
        summary = _rest(_texts(item.summary, BETWEEN), self._summary_sent)
        thought = _rest(_texts(item.content), self._thought_sent)
        self._part = None
        self._summarizing = self._summarizing or bool(summary)
        out: list[Event] = [Thought(start + summary, summary=True)] if summary else []
        return [*out, Thought(thought)] if thought else out

    def _raw_item(self, news: protocol.RawItemNews) -> list[Event]:
        item = news.item
        if not self.turn_id or news.turn_id != self.turn_id:
            return []  # an echo of the history, or an item of Codex itself
        self._items.add(item.role or item.type)
        if item.type == "message" and item.role == "assistant":
            return self._message_end(item)
        if item.type == "reasoning":
            return self._reasoning_end(item)
        if item.type not in ("function_call", "custom_tool_call"):
            return []
        if item.name in FORBIDDEN and item.name not in self._tools:
            self.forbidden = True
        why = self._refusal(item)
        if why:
            self.refused.append((item.call_id, REFUSALS[why]))
            return [Dropped(why)]
        index = len(self.calls)
        self.calls.append(item.call_id)
        begin = CallBegin(index, self._tools[item.name], item.call_id)
        return [begin, CallArgs(index, item.arguments), CallEnd(index)]

    def _refusal(self, item: protocol.RawItem) -> str:
        if item.type != "function_call" or item.name not in self._tools:
            return "unknown"
        if not is_object(item.arguments):
            return "malformed"
        return "parallel" if self.calls and not self._parallel else ""

    def _raw_response(self, news: protocol.RawResponseNews) -> None:
        if news.turn_id == self.turn_id:
            self.complete = True
            if news.usage is not None:
                self._total += news.usage.usage()

    def _tokens(self, news: protocol.TokenNews) -> None:
        total = news.token_usage.total.usage()
        if total.total_tokens > self._total.total_tokens:
            self._total = total
            self.answered = "assistant" in self._items and self._items <= ANSWER
            self._items.clear()

    def _started(self, news: protocol.TurnNews) -> None:
        self.turn_id = news.turn.id
        self._no_item()

    def _failed(self, news: protocol.ErrorNews) -> None:
        if not news.will_retry:
            self._error = news.error

    def _completed(self, news: protocol.TurnNews) -> None:
        turn = news.turn
        if self.turn_id and turn.id != self.turn_id:
            return
        if turn.status == "completed":
            self.ended = Finish("stop")
        elif turn.status == "interrupted":
            self.ended = Failure("backend_cut", "Codex interrupted the turn.")
        else:
            self.ended = end_of(turn.error or self._error or TurnError())


NOTIFICATIONS: dict[str, tuple[type[Any], Callable[[ThreadReader, Any], list[Event] | None]]] = {
    "item/agentMessage/delta": (protocol.CodexDelta, ThreadReader._text),
    "item/reasoning/summaryTextDelta": (protocol.CodexDelta, ThreadReader._summarized),
    "item/reasoning/textDelta": (protocol.CodexDelta, ThreadReader._thought),
    "rawResponseItem/completed": (protocol.RawItemNews, ThreadReader._raw_item),
    "rawResponse/completed": (protocol.RawResponseNews, ThreadReader._raw_response),
    COUNTED: (protocol.TokenNews, ThreadReader._tokens),
    "turn/started": (protocol.TurnNews, ThreadReader._started),
    "turn/completed": (protocol.TurnNews, ThreadReader._completed),
    "error": (protocol.ErrorNews, ThreadReader._failed),
}
"""The notifications that a run reads. The worker drops all others without decoding them."""


def _texts(parts: Iterable[protocol.RawPart] | None, between: str = "") -> str:
    return between.join(part.text for part in parts or () if part.text)


def _rest(whole: str, sent: list[str]) -> str:
    """Returns what follows the deltas `sent` in an item's text; "" if the text does not begin with them.

    Clears `sent`.
    """
    start = "".join(sent)
    sent.clear()
    return whole[len(start) :] if whole.startswith(start) else ""


def is_object(text: str) -> bool:
    """Returns whether Codex accepts the text as a JSON object: it is valid and not nested too deeply."""
    try:
        msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return text.count("{") + text.count("[") <= DEPTH or _depth(text) <= DEPTH


def _depth(text: str) -> int:
    deepest = depth = 0
    for mark in _MARKS.findall(text):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(mark, 0)
        deepest = max(deepest, depth)
    return deepest


# --- failures: in each table the first row that matches decides ---

INFO_KINDS: dict[str, str] = {
    "contextWindowExceeded": "context_length",
    "usageLimitExceeded": "quota",
    "sessionBudgetExceeded": "quota",
    "rateLimitExceeded": "rate_limit",
    "serverOverloaded": "overloaded",
    "internalServerError": "backend",
    "unauthorized": "backend_auth",
    "badRequest": "invalid_request",
    "cyberPolicy": "content_filter",
    "responseStreamDisconnected": "backend_cut",
    "responseStreamConnectionFailed": "backend_unavailable",
}
"""Error kinds by `codexErrorInfo`. For any other value, the HTTP status decides."""

STATUS_KINDS: dict[int, str] = {
    401: "backend_auth",
    402: "quota",
    403: "backend_auth",
    404: "model_not_found",
    408: "timeout",
    413: "body_too_large",
    429: "rate_limit",
    503: "overloaded",
    529: "overloaded",
}

WORD_KINDS: tuple[tuple[str, str], ...] = (
    (r"missing environment variable", "backend_auth"),
    (r"stream disconnected before completion: .*rate limit", "rate_limit"),
    (r"idle timeout waiting", "timeout"),
    (r"stream (?:disconnected|closed) before", "backend_cut"),
    (r"error sending request|connection (?:refused|failed)|dns error", "backend_unavailable"),
    (r"selected model is at capacity|server is overloaded", "overloaded"),
    (r"context (?:window|length)", "context_length"),
)
"""Error kinds by patterns in the message, if `codexErrorInfo` is `other`."""

_EFFORT = r"effort|unknown variant `[^`]*`, expected one of `(?:none|minimal|low)`"
REQUEST_KINDS: tuple[tuple[str, str, str | None], ...] = (
    (r"overloaded; retry later", "overloaded", None),
    (_EFFORT, "unsupported_value", "reasoning_effort"),
    (r"reasoning.?summary|expected one of `auto`", "unsupported_value", "reasoning.summary"),
    (r"dynamic.?tool|tool name", "invalid_request", "tools"),
    (r"input.?too.?large|exceeds the maximum length", "context_length", None),
    (r"remote image|image", "unsupported_value", None),
)
"""Patterns in the message about a refused request, each with an error kind and the field that is at fault."""

INCOMPLETE = re.compile(r"incomplete response returned, reason: (\w+)", re.IGNORECASE)
FINISHES = {"max_output_tokens": Finish("length"), "content_filter": Finish("content_filter")}
_STATUS = re.compile(r"unexpected status (\d{3})")
_RETRY = re.compile(r"try again in (\d+(?:\.\d+)?) ?(ms|s)\b")

SUMMARIES: dict[str, str] = {
    "backend_auth": "The provider did not accept Codex's credentials.",
    "backend_cut": "The model's answer broke off before it was complete.",
    "overloaded": "The provider is overloaded.",
}


def end_of(error: TurnError) -> Finish | Failure:
    found = INCOMPLETE.search(error.message)
    if found and found[1] in FINISHES:
        return FINISHES[found[1]]
    body = _body(error.message)
    kind = _kind(error, body)
    retry = _RETRY.search(error.message) if kind == "rate_limit" else None
    seconds = float(retry[1]) / (1000 if retry[2] == "ms" else 1) if retry else None
    code = body.get("code") if kind == "invalid_request" else None
    summary, words = SUMMARIES.get(kind), clean(str(body.get("message") or error.message))
    message = f"{summary} Codex said: {words}" if summary and words else summary or words
    code = code if isinstance(code, str) else None
    return Failure(kind, message or "Codex failed silently.", code=code, retry_after_s=seconds)


def refused(method: str, message: str) -> Failure:
    said = f"Codex refused {method}: {message[:500]}"
    for pattern, kind, param in REQUEST_KINDS:
        if re.search(pattern, message, re.IGNORECASE):
            return Failure(kind, said, param)
    return Failure("backend", said)


def _kind(error: TurnError, body: dict[str, Any]) -> str:
    word, status = _info(error.codex_error_info)
    if word in INFO_KINDS:
        return INFO_KINDS[word]
    if status is None and (found := _STATUS.search(error.message)):
        status = int(found[1])
    if status is not None:
        return STATUS_KINDS.get(status, "invalid_request" if 400 <= status < 500 else "backend")
    for pattern, kind in WORD_KINDS:
        if re.search(pattern, error.message, re.IGNORECASE):
            return kind
    # if the provider answers with 400, the message is the body of that response
    return "invalid_request" if body else "backend"


def _info(info: Any) -> tuple[str, int | None]:
    if isinstance(info, str):
        return info, None
    if isinstance(info, dict) and len(info) == 1:
        word, facts = next(iter(info.items()))
        status = facts.get("httpStatusCode") if isinstance(facts, dict) else None
        return str(word), status if isinstance(status, int) else None
    return "", None


def _body(message: str) -> dict[str, Any]:
    """Returns the error object in a message that is the JSON body of a response, otherwise {}."""
    value = load_object(message) or {}
    inner = value.get("error", value.get("detail"))
    return inner if isinstance(inner, dict) else {"message": str(inner)} if inner else {}

"""Codex's notifications of a thread → events. Pure: the run decides what an end means.

- Text and thoughts come from their deltas, and what these did not bring from the raw items, where they do not contradict (laws 5 and 6). Calls come
  from the raw items: in model order, with their arguments verbatim.
- Only calls to a declared tool, with a JSON object for arguments, are calls. Codex answers the others itself and lets the model go on (arguments that
  are JSON, but no object, it passes on to us); they are counted as dropped.
- Tokens are counted by the response's own usage where Codex tells it, else by the differences of the thread's totals, which it repeats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import msgspec

from toolwire.backends.codex import protocol
from toolwire.backends.codex.failures import end_of
from toolwire.backends.codex.protocol import Notification
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

REFUSALS = {
    "unknown": "There is no such tool.",
    "malformed": "The arguments must be one JSON object. Call the tool again with such arguments.",
    "parallel": "This call was not made: only one at a time is allowed. Ask for it again, alone, if it is still needed.",
}
"""Why a call is not passed on, as a kind of `Dropped`, and what the model is told."""
FORBIDDEN = frozenset({"view_image"})
"""Tools of Codex's own that read this machine's files, and that some versions can not be made to leave out."""
ANSWER = frozenset({"user", "function_call_output", "custom_tool_call_output", "reasoning", "assistant"})
"""What there is between two counts where Codex asks the model no more: what it was told last, and a response that leaves nothing to be done."""
DEPTH = 127
"""How deeply Codex's JSON may be nested."""
_MARKS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
COUNTED = "thread/tokenUsage/updated"
BETWEEN = "\n\n"
"""Between two messages of one answer, and between the parts of a summary."""


class ThreadReader:
    """`feed` returns the events of one notification. `tools`: the client's names by those that Codex knows.

    `ended`: the turn is over, and how. `complete`: Codex reported the end of the model's response.
    """

    def __init__(self, tools: Mapping[str, str], parallel: bool = True) -> None:
        self._tools = tools
        self._parallel = parallel
        self._total = Usage(0, 0)
        self.turn_id = ""
        self._no_item()
        self.begin()

    def begin(self) -> None:
        """A new answer of ours begins, on the same thread."""
        self._before = self._total
        self._error: protocol.TurnError | None = None
        self._spoke = self._summarizing = False
        self._index = 0
        self.calls: list[str] = []
        """The calls of this answer that wait, in model order."""
        self.refused: list[tuple[str, str]] = []
        """Calls that the client does not get, with what the model is told, should Codex ask: most of them it answers itself."""
        self.trespass = False
        """The model asked Codex for something on this machine."""
        self.complete = False
        self.answered = False
        """The model has said all it will say: its last response was counted, and asks for nothing. The end of the turn follows at once, if at all."""
        self._items: set[str] = set()
        self.ended: Finish | Failure | None = None

    def _no_item(self) -> None:
        self._item: str | None = None
        self._part: tuple[str, int] | None = None
        self._text_told: list[str] = []
        self._summary_told: list[str] = []
        self._thought_told: list[str] = []
        """What the deltas of the item under way have brought."""

    def feed(self, message: Notification) -> list[Event]:
        if message.method != COUNTED:
            self.answered = False
        kind = protocol.NEWS.get(message.method)
        news = protocol.decode(kind, message.params) if kind is not None else None
        return _READ[message.method](self, news) if news is not None else []

    @property
    def failing(self) -> bool:
        """Codex reported an error; the end of the turn follows at once, if at all."""
        return self._error is not None and self.ended is None

    def close(self) -> None:
        """The end did not follow."""
        self.ended = (
            Finish("stop")
            if self.answered and self._error is None
            else end_of(self._error or protocol.TurnError())
        )

    def usage(self) -> list[Event]:
        """The tokens of this answer so far, where they are known."""
        if self._total == self._before:
            return []
        pairs = zip(astuple(self._total), astuple(self._before), strict=True)
        return [Usage(*(max(0, now - before) for now, before in pairs))]

    # --- by method -----------------------------------------------------------------------------------------------------------------------------

    def _text(self, news: protocol.CodexDelta) -> list[Event]:
        if not news.delta:
            return []
        start = ""
        if news.item_id != self._item:
            start = BETWEEN if self._spoke else ""
            self._text_told.clear()
        self._item, self._spoke = news.item_id, True
        self._text_told.append(news.delta)
        return [Text(start + news.delta)]

    def _summarized(self, news: protocol.CodexDelta) -> list[Event]:
        if not news.delta:
            return []
        part = (news.item_id, news.summary_index)
        if self._part is not None and self._part[0] != news.item_id:
            self._summary_told.clear()
        start = BETWEEN if self._summarizing and part != self._part else ""
        self._part, self._summarizing = part, True
        self._summary_told.append(start + news.delta if self._summary_told else news.delta)
        return [Thought(start + news.delta, summary=True)]

    def _thought(self, news: protocol.CodexDelta) -> list[Event]:
        self._thought_told.append(news.delta)
        return [Thought(news.delta)] if news.delta else []

    def _message_end(self, item: protocol.RawItem) -> list[Event]:
        rest = _rest(_texts(item.content), self._text_told)
        start = BETWEEN if self._spoke and not self._text_told else ""
        self._item = None
        self._text_told.clear()
        self._spoke = self._spoke or bool(rest)
        return [Text(start + rest)] if rest else []

    def _reasoning_end(self, item: protocol.RawItem) -> list[Event]:
        summary, thought = (
            _rest(_texts(item.summary, BETWEEN), self._summary_told),
            _rest(_texts(item.content), self._thought_told),
        )
        start = BETWEEN if self._summarizing and not self._summary_told else ""
        self._part = None
        self._summary_told.clear()
        self._thought_told.clear()
        self._summarizing = self._summarizing or bool(summary)
        return [
            *([Thought(start + summary, summary=True)] if summary else ()),
            *([Thought(thought)] if thought else ()),
        ]

    def _raw_item(self, news: protocol.RawItemNews) -> list[Event]:
        item = news.item
        if not self.turn_id or news.turn_id != self.turn_id:
            return []  # an echo of the history, or of Codex's own
        self._items.add(item.role or item.type)
        if item.type == "message" and item.role == "assistant":
            return self._message_end(item)
        if item.type == "reasoning":
            return self._reasoning_end(item)
        if item.type not in ("function_call", "custom_tool_call"):
            return []
        if item.name in FORBIDDEN and item.name not in self._tools:
            self.trespass = True
        why = self._refusal(item)
        if why:
            self.refused.append((item.call_id, REFUSALS[why]))
            return [Dropped(why)]
        index, self._index = self._index, self._index + 1
        name = self._tools[item.name]
        self.calls.append(item.call_id)
        return [CallBegin(index, name, item.call_id), CallArgs(index, item.arguments), CallEnd(index)]

    def _refusal(self, item: protocol.RawItem) -> str:
        if item.type != "function_call" or item.name not in self._tools:
            return "unknown"
        if not is_object(item.arguments):
            return "malformed"
        return "parallel" if self.calls and not self._parallel else ""

    def _raw_response(self, news: protocol.RawResponseNews) -> list[Event]:
        if news.turn_id == self.turn_id:
            self.complete = True
            if news.usage is not None:
                self._total += news.usage.usage()
        return []

    def _tokens(self, news: protocol.TokenNews) -> list[Event]:
        total = news.token_usage.total.usage()
        if total.total_tokens > self._total.total_tokens:
            self._total = total
            self.answered = "assistant" in self._items and self._items <= ANSWER
            self._items.clear()
        return []

    def _started(self, news: protocol.TurnNews) -> list[Event]:
        self.turn_id = news.turn.id
        self._no_item()
        return []

    def _failed(self, news: protocol.ErrorNews) -> list[Event]:
        if not news.will_retry:
            self._error = news.error
        return []

    def _completed(self, news: protocol.TurnNews) -> list[Event]:
        turn = news.turn
        if self.turn_id and turn.id != self.turn_id:
            return []
        if turn.status == "completed":
            self.ended = Finish("stop")
        elif turn.status == "interrupted":
            self.ended = Failure("backend_cut", "Codex interrupted the turn.")
        else:
            self.ended = end_of(turn.error or self._error or protocol.TurnError())
        return []


_READ: dict[str, Callable[[ThreadReader, Any], list[Event]]] = {
    "item/agentMessage/delta": ThreadReader._text,
    "item/reasoning/summaryTextDelta": ThreadReader._summarized,
    "item/reasoning/textDelta": ThreadReader._thought,
    "rawResponseItem/completed": ThreadReader._raw_item,
    "rawResponse/completed": ThreadReader._raw_response,
    COUNTED: ThreadReader._tokens,
    "turn/started": ThreadReader._started,
    "turn/completed": ThreadReader._completed,
    "error": ThreadReader._failed,
}


def _texts(parts: Iterable[protocol.RawPart] | None, between: str = "") -> str:
    return between.join(part.text for part in parts or () if part.text)


def _rest(whole: str, told: Sequence[str]) -> str:
    """What is still to be told; nothing where what was told says something else."""
    said = "".join(told)
    return whole[len(said) :] if whole.startswith(said) else ""


def is_object(text: str) -> bool:
    """Whether Codex reads it as a JSON object: strictly, and not nested too deeply."""
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

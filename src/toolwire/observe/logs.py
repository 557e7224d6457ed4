"""What is logged: one line a request, at level info. What was said stands in a line of its own, at level debug only. No secret stands anywhere.

Rules: a line is told as data (`record.fields`) beside its JSON, and the handler writes it as JSON or as text, whichever `--log-format` asks for; the
lines of everything else are written the same way. Words of a client are cut, and can not break a line. Whatever is written goes through the mask.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO

import msgspec

from toolwire.core.shown import as_json, clean
from toolwire.wire.sse import scrub

if TYPE_CHECKING:
    from toolwire.access.keys import KeyHolder
    from toolwire.core.events import Failure
    from toolwire.gateway.records import TurnSummary
    from toolwire.observe.masking import Mask

LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = ("text", "json")
LONGEST_PATH = 200
LONGEST_MODEL, LONGEST_NAME = 128, 64
MOST_CALLS = 128
QUIET = ("/healthz", "/livez", "/readyz", "/metrics", "/ui/static/")
"""Paths that machines ask for again and again: their lines stand at level debug."""

OWN_WORDS = frozenset({"turn_id", "answer_id", "key", "api", "backend", "strategy", "turn", "status", "finish", "output_mode"})
"""Fields in whose values nobody else had a say: they need no quotes."""
SHARED = {
    "key": "key_id",
    "key_name": "key_name",
    "api": "api",
    "model": "model",
    "backend": "backend",
    "strategy": "strategy",
    "turn": "kind",
    "stream": "stream",
    "status": "status",
    "finish": "finish",
    "error": "error_kind",
    "cancelled": "cancelled",
    "output_mode": "output_mode",
    "report": "report",
}
"""Fields that many turns have in common, and what a summary calls them: a line of text tells them together."""
OWN = ("turn_id", "answer_id", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
"""Fields that are each turn's own, and in whose values nobody else had a say."""
CALLED = ("has_tool_calls", "tool_call_count", "tool_call_names", "tool_call_ids", "tool_call_truncated", "dropped")
_shared, _own = attrgetter(*SHARED.values()), attrgetter(*OWN)


@cache
def _form(*there: bool) -> str:
    """The words for those of `OWN` that there are."""
    return " ".join(f"{name}=%s" for name, is_there in zip(OWN, there, strict=True) if is_there)


MOST_COMMON, LONGEST_COMMON = 256, 2048
_OWN_ID = re.compile(r"req_[0-9a-f]{24}")
"""A request's id as this server makes them."""
_NUMBERS = (int, float)
_BARE = re.compile(r"[!#-<>-~]+")
"""A value that needs no quotes."""

access = logging.getLogger("toolwire.access")
_package, _root = logging.getLogger("toolwire"), logging.getLogger()
_SAME: dict[str, Any] = logging.LogRecord(access.name, logging.INFO, __file__, 0, "%s", (), None).__dict__
"""What is the same in every line: finding it out anew would cost more than the line."""
_encode = msgspec.json.Encoder().encode


class LoggedRequest(Protocol):
    """What a log line says about a request that is no turn."""

    scope: Any
    request_id: str
    began: float
    holder: KeyHolder | None
    status: int | None
    failure: Failure | None


class RequestLog:
    """One server's lines. `node` is this node's id, where there are several."""

    def __init__(self) -> None:
        self.node = ""

    def turn(self, summary: TurnSummary) -> None:
        """A turn that has ended, by whatever end. Goes into the gateway's observers."""
        if not access.isEnabledFor(logging.INFO):
            return
        handler = _only_handler()
        if handler is not None:
            handler.turn(summary, self.node)
        else:
            now = time.time()
            record = TurnLine.__new__(TurnLine)
            record.__dict__ = told = _SAME.copy()
            told["created"], told["msecs"], told["summary"], told["node"] = now, now % 1 * 1000, summary, self.node
            access.handle(record)
        if summary.contents is not None and access.isEnabledFor(logging.DEBUG):
            told = {"input": summary.contents.asked(summary.turn) if summary.turn is not None else [], "output": summary.contents.said()}
            self._tell(logging.DEBUG, {"event": "contents", "request_id": summary.request_id, **told, "left_out": summary.contents.left_out})

    def request(self, exchange: LoggedRequest) -> None:
        """Any other request: one that was refused before a turn began, or that was no turn."""
        path: str = exchange.scope["path"]
        level = logging.DEBUG if path.startswith(QUIET) and exchange.failure is None else logging.INFO
        if not access.isEnabledFor(level):
            return
        holder, failure = exchange.holder, exchange.failure
        line: dict[str, Any] = {
            "event": "refused" if failure is not None else "request",
            "request_id": exchange.request_id,
            "key": holder.key_id if holder is not None else "",
            "key_name": holder.name if holder is not None else "",
            "method": exchange.scope["method"],
            "path": scrub(path[:LONGEST_PATH]),
            "status": exchange.status,
            "error": failure.kind if failure is not None else None,
            "duration_ms": round((time.perf_counter() - exchange.began) * 1000, 2),
        }
        if failure is not None:
            line["client"] = (exchange.scope.get("client") or ("",))[0]
        self._tell(level, line)

    def passed_on(self, request_id: str, key_id: str, api: str, to: str, outcome: str) -> None:
        """A turn that another node ran, or did not."""
        if access.isEnabledFor(logging.INFO):
            told = {"request_id": request_id, "key": key_id, "api": api, "passed_on_to": to, "outcome": outcome}
            self._tell(logging.INFO, {"event": "passed_on", **told})

    def _tell(self, level: int, fields: dict[str, Any]) -> None:
        access.handle(_record(level, _with_node(fields, self.node)))


def _record(level: int, fields: dict[str, Any]) -> logging.LogRecord:
    now = time.time()
    record = logging.LogRecord.__new__(logging.LogRecord)
    told = {"levelno": level, "levelname": logging.getLevelName(level), "created": now, "msecs": now % 1 * 1000, "fields": fields}
    record.__dict__ = {**_SAME, **told, "args": (_Line(now, fields),)}
    return record


class _Line:
    """A line that is made into JSON when somebody reads it."""

    __slots__ = ("_at", "_fields")

    def __init__(self, at: float, fields: dict[str, Any]) -> None:
        self._at = at
        self._fields = fields

    def __str__(self) -> str:
        return _encode({"time": _now(self._at), **self._fields}).decode()


class TurnLine(logging.LogRecord):
    """The line of a turn: its `fields`, and its JSON, are made when somebody reads them."""

    summary: TurnSummary
    node: str

    @property
    def fields(self) -> dict[str, Any]:
        return _with_node(turn_fields(self.summary), self.node)

    def getMessage(self) -> str:
        return _turn_line(self.summary, self.node, self.created)


def _turn_line(summary: TurnSummary, node: str, at: float) -> str:
    return str(_Line(at, _with_node(turn_fields(summary), node)))


def _with_node(fields: dict[str, Any], node: str) -> dict[str, Any]:
    return {"node": node, **fields} if node else fields


def turn_fields(summary: TurnSummary) -> dict[str, Any]:
    """How a turn went: no contents, no key, no client's words beyond the model's and the tools' names."""
    return {
        "event": "turn",
        "request_id": summary.request_id,
        "turn_id": summary.turn_id,
        "answer_id": summary.answer_id,
        "key": summary.key_id,
        "key_name": summary.key_name,
        "api": summary.api,
        "model": scrub(summary.model[:LONGEST_MODEL]),
        "backend": summary.backend,
        "strategy": summary.strategy,
        "turn": summary.kind,
        "stream": summary.stream,
        "status": summary.status,
        "finish": summary.finish,
        "error": summary.error_kind,
        "cancelled": summary.cancelled,
        "has_tool_calls": summary.tool_call_count > 0,
        "tool_call_count": summary.tool_call_count,
        "tool_call_names": [scrub(name[:LONGEST_NAME]) for name in summary.tool_call_names[:MOST_CALLS]],
        "tool_call_ids": [scrub(id[:LONGEST_MODEL]) for id in summary.tool_call_ids[:MOST_CALLS]],
        "tool_call_truncated": summary.tool_call_truncated,
        "output_mode": summary.output_mode,
        "input_tokens": summary.input_tokens,
        "cached_tokens": summary.cached_tokens,
        "output_tokens": summary.output_tokens,
        "reasoning_tokens": summary.reasoning_tokens,
        "first_byte_ms": None if summary.first_byte_s is None else round(summary.first_byte_s * 1000, 2),
        "duration_ms": round(summary.duration_s * 1000, 2),
        "dropped": dict(summary.dropped),
        "report": summary.report,
    }


# --- writing -----------------------------------------------------------------------------------------------------------------------------------


class _Formatter(logging.Formatter):
    """Ends every line of the log: formats it, and masks it."""

    def __init__(self, mask: Mask | None) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._mask = mask
        self._second, self._told = -1, ""
        self._common: dict[tuple[Any, ...], str] = {}

    def format(self, record: logging.LogRecord) -> str:
        if type(record) is TurnLine:
            return self.turn(record.summary, record.node, record.created)
        line = self._line(record, getattr(record, "fields", None))
        return line if self._mask is None else self._mask.text(line)

    def turn(self, summary: TurnSummary, node: str, at: float) -> str:
        """As any other line with fields; but what most turns have in common is put into words, and masked, once."""
        key = _shared(summary)
        common = self._common.get(key)
        if common is None:
            common = self._common_words(key, turn_fields(summary))
        values = _own(summary)
        own = [_form(*map(bool, values)) % tuple(filter(None, values))]
        if summary.tool_call_count or summary.tool_call_truncated or summary.dropped:
            fields = turn_fields(summary)
            called = " ".join(_shown((name, fields[name]) for name in CALLED))
            own.append(called if self._mask is None else self._mask.text(called))
        if summary.first_byte_s is not None:
            own.append(f"first_byte_ms={summary.first_byte_s * 1000:.2f}")
        id = summary.request_id
        if not _OWN_ID.fullmatch(id):
            id = _plain(id) if self._mask is None else self._mask.text(_plain(id))
        told = f"{f'node={node} ' if node else ''}request_id={id} {common} {' '.join(own)} duration_ms={summary.duration_s * 1000:.2f}"
        return f"{self._time(at)} INFO turn {told}"

    def _common_words(self, key: tuple[Any, ...], fields: dict[str, Any]) -> str:
        words = " ".join(_shown((name, fields[name]) for name in SHARED))
        words = words if self._mask is None else self._mask.text(words)
        if len(self._common) >= MOST_COMMON:
            self._common.clear()
        if len(words) <= LONGEST_COMMON:
            self._common[key] = words
        return words

    def _line(self, record: logging.LogRecord, fields: dict[str, Any] | None) -> str:
        if fields is None:
            return clean(super().format(record))
        shown = _shown((name, value) for name, value in fields.items() if name != "event")
        return f"{self.formatTime(record)} {record.levelname} {fields.get('event', 'request')} {' '.join(shown)}"

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return self._time(record.created)

    def _time(self, at: float) -> str:
        """As the base does, but the second, which many lines share, is put into words once."""
        second = int(at)
        if second != self._second:
            self._second, self._told = second, time.strftime(self.default_time_format, self.converter(second))
        return f"{self._told},{int(at % 1 * 1000):03d}"


class _JsonFormatter(_Formatter):
    def turn(self, summary: TurnSummary, node: str, at: float) -> str:
        line = _turn_line(summary, node, at)
        return line if self._mask is None or not self._mask.spans(_words(summary)) else self._mask.text(line)

    def _line(self, record: logging.LogRecord, fields: dict[str, Any] | None) -> str:
        if fields is not None:
            return record.getMessage()
        line = {"time": _now(record.created), "event": "log", "level": record.levelname.lower(), "logger": record.name}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class _Handler(logging.StreamHandler[TextIO]):
    """Lines that come in one turn of the event loop are written together, at its next; a warning, and what comes from elsewhere, at once."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._waiting: deque[str] = deque()

    def handle(self, record: logging.LogRecord) -> Any:
        """Without the lock, which only who writes needs."""
        if self.filters:
            return super().handle(record)
        self.emit(record)
        return True

    def turn(self, summary: TurnSummary, node: str) -> None:
        """A turn's line, without a record of it: for where nobody else would see that."""
        try:
            formatter = self.formatter
            assert isinstance(formatter, _Formatter)
            self._waiting.append(formatter.turn(summary, node, time.time()) + self.terminator)
            if not self._comes_around():
                self.flush()
        except Exception:
            self.handleError(TurnLine("toolwire.access", logging.INFO, __file__, 0, "a turn", (), None))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._waiting.append(self.format(record) + self.terminator)
            if record.levelno > logging.INFO or not self._comes_around():
                self.flush()
        except Exception:
            self.handleError(record)

    def _comes_around(self) -> bool:
        """Whether the event loop will write what waits."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        if len(self._waiting) == 1:
            loop.call_soon(self._write)
        return True

    def _write(self) -> None:
        with suppress(OSError, ValueError):  # a full disk, a closed pipe: what can not be logged costs nothing else
            self.flush()

    def flush(self) -> None:
        with self.lock:  # type: ignore[union-attr]
            lines = []
            while self._waiting:  # until none is left: who adds one to others leaves it to who is here
                lines.append(self._waiting.popleft())
            if lines:
                self.stream.write("".join(lines))
            super().flush()


def _only_handler() -> _Handler | None:
    """Ours, where a line of the access log reaches no other one, and nothing stands between."""
    if access.handlers or access.filters or access.disabled or _package.handlers or not (access.propagate and _package.propagate):
        return None
    handlers = _root.handlers
    return handlers[0] if len(handlers) == 1 and type(handlers[0]) is _Handler and not handlers[0].filters else None


def configure(level: str, format: LogFormat = "text", mask: Mask | None = None) -> None:
    """Everything goes to stderr, in one format. Others' logs stay out: the surface reports whatever a person needs to know."""
    handler = _Handler(sys.stderr)
    handler.setFormatter((_JsonFormatter if format == "json" else _Formatter)(mask))
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # what no line of ours tells, no record need find out
    root = logging.getLogger()
    for earlier in [one for one in root.handlers if isinstance(one.formatter, _Formatter)]:
        earlier.flush()
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(level.upper())
    if level != "debug":
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
        logging.getLogger("asyncio").setLevel(logging.ERROR)


def say(text: str, **fields: Any) -> None:
    """Tells the person at the terminal something, whatever the level: `text` as it is, or `fields` where every line is an object."""
    handler = next((one for one in _root.handlers if isinstance(one.formatter, _JsonFormatter)), None)
    if handler is None:
        print(text, file=sys.stderr, flush=True)
    else:
        handler.handle(_record(logging.INFO, fields))
        handler.flush()


def as_object(fields: dict[str, Any]) -> str:
    """A line of JSON, for where no log is set up yet."""
    return str(_Line(time.time(), fields))


def _shown(fields: Iterable[tuple[str, Any]]) -> list[str]:
    """What there is to tell, as words of a line."""
    return [f"{name}={value}" if name in OWN_WORDS or type(value) in _NUMBERS else f"{name}={_plain(value)}" for name, value in fields if value]


def _words(summary: TurnSummary) -> str:
    """All that a client, or a model, had a say in."""
    words = f"{summary.request_id} {summary.model}"
    if summary.tool_call_count:
        words = " ".join((words, *summary.tool_call_names[:MOST_CALLS], *summary.tool_call_ids[:MOST_CALLS]))
    return words


def _plain(value: Any) -> str:
    """A value that has no space, quote or end of line in it, or stands in quotes."""
    if isinstance(value, list):
        value = ",".join(map(str, value))
    if isinstance(value, str):
        return value if _BARE.fullmatch(value) else as_json(value)
    return repr(value) if type(value) in _NUMBERS else _plain(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _now(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""The log: a line per request at level info, contents at level debug, in text or JSON.

Text from a client or a model is limited in length. In a text line it cannot break the line or control a
terminal. Secrets are masked in every line. If the log cannot be written, requests continue.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TextIO

from toolwire.core.display import as_json, clean, escaped
from toolwire.core.ids import is_own
from toolwire.wire.sse import encode, scrub

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
"""Paths that machines request frequently. They are logged at level debug."""
SHARED = (
    *("key", "key_name", "api", "model", "backend", "strategy", "turn", "stream"),
    *("status", "finish", "error", "cancelled", "output_mode", "report"),
)
"""Fields that have the same values in many turns."""
TOKENS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
OWN = ("turn_id", "answer_id", *TOKENS)
CALLS = (
    *("has_tool_calls", "tool_call_count", "tool_call_names", "tool_call_ids", "tool_call_truncated"),
    "dropped",
)
TURN_TEXT_ORDER = ("node", "request_id", *SHARED, *OWN, *CALLS, "first_byte_ms", "duration_ms")
"""The order of the fields in a turn's text line: the result comes before ids and counts."""
UNMASKED = {
    *("event", "key", "api", "backend", "strategy", "turn", "stream", "status", "finish", "cancelled", *OWN),
    *("output_mode", "has_tool_calls", "tool_call_count", "tool_call_truncated"),
    *("first_byte_ms", "duration_ms"),
}
"""Fields whose values the gateway chooses.

They are not searched for secrets, because the search would take more time than the rest of the line.
"""
_BARE = re.compile(r"[!#-<>-~]+")
"""Matches a value that needs no quotes."""

access = logging.getLogger("toolwire.access")


class LogMessage:
    """The message of a log record with fields.

    The fields are encoded as JSON only if a handler asks for the message. Toolwire's own handler does not.
    """

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def __str__(self) -> str:
        return as_object(self._fields)


class RequestLog:
    """Logs the requests of one server. `node`: the id of this node, if there are several nodes."""

    def __init__(self) -> None:
        self.node = ""

    def turn(self, summary: TurnSummary) -> None:
        """Logs a turn that has ended. The gateway calls it as an observer."""
        if not access.isEnabledFor(logging.INFO):
            return
        if (handler := _only_handler()) is not None:
            handler.turn(summary, self.node)
        else:
            self._log(logging.INFO, turn_fields(summary))
        contents = summary.contents
        if contents is not None and access.isEnabledFor(logging.DEBUG):
            fields = {
                "event": "contents",
                "request_id": summary.request_id,
                "input": contents.asked(summary.turn) if summary.turn is not None else [],
                "output": contents.said(),
                "left_out": contents.left_out,
            }
            self._log(logging.DEBUG, fields)

    def request(
        self,
        request_id: str,
        method: str,
        path: str,
        *,
        status: int | None,
        failure: Failure | None,
        holder: KeyHolder | None,
        client: str,
        duration_s: float,
    ) -> None:
        """Logs a request that is not a turn, or that was refused before a turn started."""
        fields: dict[str, Any] = {
            "event": "refused" if failure is not None else "request",
            "request_id": request_id,
            "key": holder.key_id if holder is not None else "",
            "key_name": holder.name if holder is not None else "",
            "method": method,
            "path": scrub(path[:LONGEST_PATH]),
            "status": status,
            "error": failure.kind if failure is not None else None,
            "duration_ms": round(duration_s * 1000, 2),
        }
        if failure is not None:
            fields["client"] = client
        self._log(logging.DEBUG if path.startswith(QUIET) and failure is None else logging.INFO, fields)

    def passed_on(self, request_id: str, key_id: str, api: str, to: str, outcome: str) -> None:
        """Logs a turn that was forwarded to another node."""
        fields = {"event": "passed_on", "request_id": request_id, "key": key_id, "api": api}
        self._log(logging.INFO, {**fields, "passed_on_to": to, "outcome": outcome})

    def _log(self, level: int, fields: dict[str, Any]) -> None:
        if self.node:
            fields = {"node": self.node, **fields}
        access.log(level, LogMessage(fields), extra={"fields": fields})


def turn_fields(summary: TurnSummary) -> dict[str, Any]:
    """Returns the fields of the log line about a turn: no messages and no arguments of calls."""
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


# --- writing -------------------------------------------------------------


class _Formatter(logging.Formatter):
    def __init__(self, mask: Mask | None = None) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._mask = mask


class TextFormatter(_Formatter):
    """Lines for people: `TIME LEVEL EVENT name=value …`, without empty fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", None)
        if fields is None:
            line = clean(super().format(record))
            return line if self._mask is None else self._mask.text(line)
        fields = _masked(fields, self._mask)
        event = fields.pop("event", "request")
        shown = ((name, fields.get(name)) for name in (TURN_TEXT_ORDER if event == "turn" else fields))
        return f"{self.formatTime(record)} {record.levelname} {event}{_words(shown)}"

    def turn_line(self, s: TurnSummary, node: str, at: float) -> str:
        """Returns the log line of a turn. Faster than `format`, because it needs no log record.

        Parts of the line that are equal in many turns are cached.
        """
        mask, model, second = self._mask, scrub(s.model[:LONGEST_MODEL]), int(at)
        run = (s.key_id, s.key_name, s.api, model, s.backend, s.strategy, s.kind, s.stream)
        end = (s.status, s.finish, s.error_kind, s.cancelled, s.output_mode, s.report)
        request_id = s.request_id if mask is None or is_own(s.request_id) else mask.text(s.request_id)
        asked = f" request_id={_word(request_id)}" if request_id else ""
        ids = _words((("turn_id", s.turn_id), ("answer_id", s.answer_id)))
        tokens = (s.input_tokens, s.cached_tokens, s.output_tokens, s.reasoning_tokens)
        counts = "".join([f" {name}={count}" for name, count in zip(TOKENS, tokens, strict=True) if count])
        calls = ""
        if s.tool_call_count or s.tool_call_names or s.tool_call_ids or s.tool_call_truncated or s.dropped:
            fields = _masked(turn_fields(s), mask)
            calls = _words((name, fields[name]) for name in CALLS)
        first = "" if s.first_byte_s is None else f" first_byte_ms={s.first_byte_s * 1000:.2f}"
        return (
            f"{_clock(second)},{int((at - second) * 1000):03d} INFO turn"
            f"{_shared(mask, ('node',), node) if node else ''}{asked}"
            f"{_shared(mask, SHARED, *run, *end)}{ids}{counts}"
            f"{calls}{first} duration_ms={s.duration_s * 1000:.2f}"
        )


class JsonFormatter(_Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", None)
        if fields is None:
            fields = {"event": "log", "level": record.levelname.lower(), "logger": record.name}
            fields["message"] = record.getMessage()
            if record.exc_info:
                fields["error"] = self.formatException(record.exc_info)
        return as_object(_masked(fields, self._mask), record.created)

    def turn_line(self, summary: TurnSummary, node: str, at: float) -> str:
        """Returns the log line of a turn. Faster than `format`, because it needs no log record."""
        fields = turn_fields(summary)
        return as_object(_masked({"node": node, **fields} if node else fields, self._mask), at)


class Handler(logging.StreamHandler[TextIO]):
    """Writes log lines to a stream. If the stream cannot be written, lines are lost.

    To save time, `turn` creates no log record, and writes all lines of one iteration of the event loop at
    once. This is possible only if there is no other handler for the access log.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lines: list[str] = []

    def turn(self, summary: TurnSummary, node: str) -> None:
        """Writes a turn's log line in the event loop's next iteration, or at once if no loop runs."""
        assert isinstance(self.formatter, TextFormatter | JsonFormatter)
        line = self.formatter.turn_line(summary, node, time.time())
        with self.lock:  # type: ignore[union-attr]
            self._lines.append(line + self.terminator)
            if len(self._lines) == 1:
                try:
                    asyncio.get_running_loop().call_soon(self.flush)
                except RuntimeError:
                    self.flush()

    def emit(self, record: logging.LogRecord) -> None:
        self.flush()
        super().emit(record)

    def flush(self) -> None:
        with self.lock, suppress(OSError, ValueError):  # type: ignore[union-attr]
            lines, self._lines = self._lines, []
            if lines:
                self.stream.write("".join(lines))
            super().flush()

    def handleError(self, record: logging.LogRecord) -> None:
        if not (isinstance(sys.exc_info()[1], OSError) or self.stream.closed):
            super().handleError(record)


def _only_handler() -> Handler | None:
    """Returns Toolwire's handler if it alone receives the log records of turns, otherwise None."""
    logger, handlers = access, [*access.handlers]
    while logger.propagate and logger.parent is not None:
        logger = logger.parent
        handlers += logger.handlers
    one = handlers[0] if len(handlers) == 1 and not access.filters else None
    return one if isinstance(one, Handler) and not one.filters and one.level <= logging.INFO else None


def configure(level: str, format: LogFormat = "text", mask: Mask | None = None) -> None:
    """Sends all logs to stderr.

    Unless the level is debug, uvicorn logs nothing and asyncio logs errors only.
    """
    # Lines contain no process or thread, and finding them for every record costs system calls.
    logging.logProcesses = logging.logThreads = logging.logMultiprocessing = False
    handler = Handler(sys.stderr)
    handler.setFormatter(JsonFormatter(mask) if format == "json" else TextFormatter(mask))
    root = logging.getLogger()
    for earlier in [one for one in root.handlers if isinstance(one, Handler)]:
        earlier.flush()
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(level.upper())
    if level != "debug":
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
        logging.getLogger("asyncio").setLevel(logging.ERROR)


def say(text: str, **fields: Any) -> None:
    """Writes to stderr regardless of the log level: `text`, or `fields` if the log is JSON."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, JsonFormatter):
            handler.handle(logging.makeLogRecord({"fields": fields}))
            return
    print(text, file=sys.stderr, flush=True)


def as_object(fields: dict[str, Any], at: float | None = None) -> str:
    """Returns the fields as a JSON line, with the time first."""
    moment = datetime.fromtimestamp(time.time() if at is None else at, UTC).isoformat(timespec="milliseconds")
    return escaped(encode({"time": moment.replace("+00:00", "Z"), **fields}).decode())


def _masked(fields: dict[str, Any], mask: Mask | None) -> dict[str, Any]:
    """Returns a copy of the fields with secrets masked."""
    masked = fields.copy()
    for name, value in fields.items():
        if mask is not None and value and name not in UNMASKED:
            masked[name] = mask.value(value)
    return masked


@lru_cache(maxsize=1)
def _clock(second: int) -> str:
    return time.strftime(logging.Formatter.default_time_format, time.localtime(second))


@lru_cache(maxsize=256)
def _shared(mask: Mask | None, names: tuple[str, ...], *values: Any) -> str:
    return _words(_masked(dict(zip(names, values, strict=True)), mask).items())


def _words(fields: Iterable[tuple[str, Any]]) -> str:
    """Returns ` name=value` for each field that is not empty, joined to one text."""
    return "".join([f" {name}={_word(value)}" for name, value in fields if value or type(value) is float])


def _word(value: Any) -> str:
    """Returns a value as text. It is quoted if it contains spaces, quotes or line ends."""
    if type(value) is int:
        return str(value)
    if type(value) is float:
        return f"{value:.2f}"
    if isinstance(value, list):
        value = ",".join(map(str, value))
    if not isinstance(value, str):
        value = encode(value).decode()
    return value if _BARE.fullmatch(value) else as_json(value)

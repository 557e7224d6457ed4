"""GET /v1/usage: what was used, in pages of time buckets as OpenAI's own usage pages have them. A key sees its own, an admin key all."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from toolwire.errors import ToolwireError
from toolwire.gateway.keys import KeyHolder
from toolwire.gateway.usage import COUNTS, DAY, GROUPS, HOUR, Counts, Question, UsageBook

WIDTHS = {"hour": HOUR, "1h": HOUR, "day": DAY, "1d": DAY}
MOST_BUCKETS = {HOUR: 24 * 31, DAY: 366}
DEFAULT_BUCKETS = {HOUR: 24, DAY: 7}
MOST_NAMES = 100
LATEST = 253_402_300_800
"""The year 10000: no time lies behind it."""


class Usage:
    def __init__(self, book: UsageBook, clock: Callable[[], float] = time.time) -> None:
        self._book = book
        self._clock = clock

    async def page(self, request: Request, holder: KeyHolder) -> JSONResponse:
        question, last = self._question(request, holder)
        found: dict[int, list[dict[str, Any]]] = {}
        for bucket, group, counts in await self._book.ask(question):
            found.setdefault(bucket, []).append(_result(dict(zip(question.group_by, group, strict=True)), counts))
        width = question.width
        buckets = [
            {"object": "bucket", "start_time": at, "end_time": at + width, "results": found.get(at, [])}
            for at in range(question.start, question.end, width)
        ]
        more = question.end < last
        return JSONResponse({"object": "page", "data": buckets, "has_more": more, "next_page": f"page_{question.end}" if more else None})

    def _question(self, request: Request, holder: KeyHolder) -> tuple[Question, int]:
        """What is asked, cut to one page; and where the last page ends."""
        query = request.query_params
        name = query.get("bucket") or query.get("bucket_width") or "day"
        if name not in WIDTHS:
            raise ToolwireError("invalid_value", "Expected 'hour' or 'day'.", param="bucket")
        width, now = WIDTHS[name], int(self._clock())
        last = _up(_time(request, ("end", "end_time"), now + 1), width)
        start = _time(request, ("start", "start_time"), last - DEFAULT_BUCKETS[width] * width) // width * width
        if start >= last:
            raise ToolwireError("invalid_value", "'start' must lie before 'end'.", param="start")
        page = query.get("page")
        if page is not None:
            start = max(start, _number(page.removeprefix("page_"), "page") // width * width)
        limit = query.get("limit")
        most = MOST_BUCKETS[width] if limit is None else min(_number(limit, "limit"), MOST_BUCKETS[width])
        if most < 1:
            raise ToolwireError("invalid_value", "Expected a number from 1.", param="limit")
        end = min(last, start + most * width)
        return Question(start, end, width, _keys(request, holder), _names(request, "model", "models") or None, _groups(request)), last


def _keys(request: Request, holder: KeyHolder) -> tuple[str, ...] | None:
    asked = _names(request, "key", "api_key_ids")
    if holder.admin:
        return asked or None
    return (holder.key_id,) if not asked or holder.key_id in asked else ()


def _groups(request: Request) -> tuple[str, ...]:
    asked = _names(request, "group_by")
    unknown = [name for name in asked if name not in GROUPS]
    if unknown:
        raise ToolwireError("invalid_value", f"Unknown group '{unknown[0][:80]}'. Expected 'model' or 'key'.", param="group_by")
    return tuple(dict.fromkeys(GROUPS[name] for name in asked))


def _names(request: Request, *parameters: str) -> tuple[str, ...]:
    """Given once or several times, with or without commas, with or without `[]` behind the parameter's name."""
    given = [value for name in parameters for spelling in (name, f"{name}[]") for value in request.query_params.getlist(spelling)]
    names = tuple(dict.fromkeys(name.strip() for value in given for name in value.split(",") if name.strip()))
    if len(names) > MOST_NAMES:
        raise ToolwireError("invalid_value", f"More than {MOST_NAMES} names.", param=parameters[0])
    return names


def _time(request: Request, parameters: tuple[str, ...], default: int) -> int:
    """Unix seconds, or a date or time as ISO 8601 writes it; UTC where it does not say."""
    name = next((one for one in parameters if one in request.query_params), None)
    if name is None:
        return max(0, default)
    text = request.query_params[name].strip()
    if text.isascii() and text.isdigit():
        return _number(text, name)
    try:
        told = datetime.fromisoformat(text)
        seconds = int((told if told.tzinfo is not None else told.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        raise ToolwireError("invalid_value", "Expected Unix seconds or an ISO 8601 time, such as 2026-08-01.", param=name) from None
    return max(0, seconds)


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and int(text) < LATEST):
        raise ToolwireError("invalid_value", "Expected a whole number.", param=name)
    return int(text)


def _up(seconds: int, width: int) -> int:
    return -(-seconds // width) * width


def _result(group: dict[str, str], counts: Counts) -> dict[str, Any]:
    told = dict(zip(COUNTS, counts, strict=True))
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": told["input_tokens"],
        "input_cached_tokens": told["cached_tokens"],
        "output_tokens": told["output_tokens"],
        "num_model_requests": told["requests"],
        "num_failed_requests": told["failed"],
        "num_tool_calls": told["tool_calls"],
        "api_key_id": group.get("key_id"),
        "model": group.get("model"),
        "project_id": None,
        "user_id": None,
        "batch": None,
    }

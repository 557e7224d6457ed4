"""The routes for models, stored responses, usage and health.

A key sees only the models that it may use. Listing models does not wait for any backend.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, cast

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from toolwire.access.keys import KeyHolder, not_available
from toolwire.access.usage import COUNTS, DAY, GROUPS, HOUR, Counts, UsageBook, UsageQuery
from toolwire.core.errors import ToolwireError
from toolwire.gateway.catalog import Catalog

if TYPE_CHECKING:
    from toolwire.gateway.pipeline import Gateway
    from toolwire.store.store import Store

ANTHROPIC_VERSION = "anthropic-version"
"""The header by which clients of Anthropic's API are recognized. They get models in Anthropic's format."""
CREATED = 1_763_164_800
"""The creation time that is shown for every model.

Models have no real creation time. A constant keeps the list the same between requests.
"""
DEFAULT_PAGE = 20
MAX_MODELS = 1000


def model_object(id: str) -> dict[str, Any]:
    return {"id": id, "object": "model", "created": CREATED, "owned_by": "toolwire"}


def anthropic_model(id: str) -> dict[str, Any]:
    created = datetime.fromtimestamp(CREATED, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": id, "display_name": id, "created_at": created, "lifecycle": "active"}


def anthropic_page(ids: list[str], query: QueryParams) -> dict[str, Any]:
    """Returns a page of models in Anthropic's format.

    The page begins after the model `after_id`, or ends before the model `before_id`.
    """
    limit = query.get("limit", str(DEFAULT_PAGE))
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 9 and 1 <= int(limit) <= MAX_MODELS):
        raise ToolwireError("invalid_value", f"limit: expected an integer from 1 to {MAX_MODELS}.")
    size, after, before = int(limit), query.get("after_id"), query.get("before_id")
    if before in ids:
        rest = ids[: ids.index(before)]
        page = rest[-size:]
    else:
        rest = ids[ids.index(after) + 1 :] if after in ids else ids
        page = rest[:size]
    return {
        "data": [anthropic_model(id) for id in page],
        "has_more": len(rest) > len(page),
        "first_id": page[0] if page else None,
        "last_id": page[-1] if page else None,
    }


class ModelRoutes:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def all(self, request: Request, holder: KeyHolder) -> JSONResponse:
        grant = holder.grant
        listed = (
            self._catalog.listed()
            if grant is None
            else [id for id in self._catalog.listed() if grant.may_use(id, self._catalog.serving(id))]
        )
        if ANTHROPIC_VERSION in request.headers:
            return JSONResponse(anthropic_page(listed, request.query_params))
        return JSONResponse({"object": "list", "data": [model_object(id) for id in listed]})

    async def one(self, request: Request, holder: KeyHolder) -> JSONResponse:
        id = request.path_params["id"]
        may = holder.grant is None or holder.grant.may_use(id, self._catalog.serving(id))
        if may and id not in self._catalog and (reason := self._catalog.problem(id)):
            raise not_available(id, reason)
        if id not in self._catalog or not may:
            raise ToolwireError(
                "model_not_found",
                f"The model '{id[:200]}' does not exist or you do not have access to it.",
                param="model",
            )
        return JSONResponse(anthropic_model(id) if ANTHROPIC_VERSION in request.headers else model_object(id))


# --- responses ---
#
# Stored responses, in OpenAI's format. A key sees only its own.

MAX_PAGE = 100


class ResponseRoutes:
    def __init__(self, store: Store | None) -> None:
        self._store = store

    async def one(self, request: Request, key_id: str) -> Response:
        """Serves GET and DELETE /v1/responses/{id}."""
        id = request.path_params["id"]
        if request.method == "DELETE":
            if self._store is None or not await self._store.delete(id, key_id):
                raise _not_found(id)
            return JSONResponse({"id": id, "object": "response", "deleted": True})
        if request.query_params.get("stream", "").lower() == "true":
            raise ToolwireError(
                "unsupported_value",
                "Only responses created in the background can be streamed again.",
                param="stream",
            )
        stored = await self._store.get(id, key_id) if self._store is not None else None
        if stored is None:
            raise _not_found(id)
        return Response(stored.response, media_type="application/json; charset=utf-8")

    async def input_items(self, request: Request, key_id: str) -> JSONResponse:
        id, query = request.path_params["id"], request.query_params
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise ToolwireError("invalid_value", "Expected 'asc' or 'desc'.", param="order")
        limit = query.get("limit", str(DEFAULT_PAGE))
        if not (limit.isascii() and limit.isdigit() and len(limit) <= 9 and 1 <= int(limit) <= MAX_PAGE):
            raise ToolwireError("invalid_value", f"Expected an integer from 1 to {MAX_PAGE}.", param="limit")
        page = None
        if self._store is not None:
            page = await self._store.input_items(
                id,
                key_id,
                limit=int(limit),
                order=cast(Literal["asc", "desc"], order),
                after=query.get("after"),
            )
        if page is None:
            raise _not_found(id)
        ids = [item.get("id") for item in page.data]
        return JSONResponse(
            {
                "object": "list",
                "data": page.data,
                "first_id": ids[0] if ids else None,
                "last_id": ids[-1] if ids else None,
                "has_more": page.has_more,
            }
        )

    async def cancel(self, request: Request, key_id: str) -> Response:
        id = request.path_params["id"]
        stored = await self._store.get(id, key_id) if self._store is not None else None
        if stored is None:
            raise _not_found(id)
        raise ToolwireError("invalid_request", "Cannot cancel a synchronous response.")


def _not_found(id: str) -> ToolwireError:
    return ToolwireError("not_found", f"Response with id '{id[:200]}' not found.", param="response_id")


# --- usage ---
#
# GET /v1/usage returns usage in pages of time buckets, like OpenAI's usage API. A key sees its own usage, an
# admin key the usage of all keys.

WIDTHS = {"hour": HOUR, "1h": HOUR, "day": DAY, "1d": DAY}
MOST_BUCKETS = {HOUR: 24 * 31, DAY: 366}
DEFAULT_BUCKETS = {HOUR: 24, DAY: 7}
MOST_NAMES = 100
LATEST = 253_402_300_800
"""Unix time of the year 10000. A later time in a query is refused."""


class UsageRoutes:
    def __init__(self, book: UsageBook, clock: Callable[[], float] = time.time) -> None:
        self._book = book
        self._clock = clock

    async def page(self, request: Request, holder: KeyHolder) -> JSONResponse:
        question, last = self._question(request, holder)
        found: dict[int, list[dict[str, Any]]] = {}
        for bucket, group, counts in await self._book.ask(question):
            found.setdefault(bucket, []).append(
                _result(dict(zip(question.group_by, group, strict=True)), counts)
            )
        width = question.width
        buckets = [
            {"object": "bucket", "start_time": at, "end_time": at + width, "results": found.get(at, [])}
            for at in range(question.start, question.end, width)
        ]
        more = question.end < last
        return JSONResponse(
            {
                "object": "page",
                "data": buckets,
                "has_more": more,
                "next_page": f"page_{question.end}" if more else None,
            }
        )

    def _question(self, request: Request, holder: KeyHolder) -> tuple[UsageQuery, int]:
        """Returns the usage query for one page of results, and the end of the requested period."""
        query = request.query_params
        name = query.get("bucket") or query.get("bucket_width") or "day"
        if name not in WIDTHS:
            raise ToolwireError("invalid_value", "Expected 'hour' or 'day'.", param="bucket")
        width, now = WIDTHS[name], int(self._clock())
        last = _up(_time(request, ("end", "end_time"), now + 1), width)
        start = (
            _time(request, ("start", "start_time"), last - DEFAULT_BUCKETS[width] * width) // width * width
        )
        if start >= last:
            raise ToolwireError("invalid_value", "'start' must lie before 'end'.", param="start")
        page = query.get("page")
        if page is not None:
            start = max(start, _number(page.removeprefix("page_"), "page") // width * width)
        limit = query.get("limit")
        most = MOST_BUCKETS[width] if limit is None else min(_number(limit, "limit"), MOST_BUCKETS[width])
        if most < 1:
            raise ToolwireError("invalid_value", "Expected a number of at least 1.", param="limit")
        end = min(last, start + most * width)
        return UsageQuery(
            start,
            end,
            width,
            _keys(request, holder),
            _names(request, "model", "models") or None,
            _groups(request),
        ), last


def _keys(request: Request, holder: KeyHolder) -> tuple[str, ...] | None:
    asked = _names(request, "key", "api_key_ids")
    if holder.admin:
        return asked or None
    return (holder.key_id,) if not asked or holder.key_id in asked else ()


def _groups(request: Request) -> tuple[str, ...]:
    asked = _names(request, "group_by")
    unknown = [name for name in asked if name not in GROUPS]
    if unknown:
        raise ToolwireError(
            "invalid_value",
            f"Unknown group '{unknown[0][:80]}'. Expected 'model' or 'key'.",
            param="group_by",
        )
    return tuple(dict.fromkeys(GROUPS[name] for name in asked))


def _names(request: Request, *parameters: str) -> tuple[str, ...]:
    """Returns the values of query parameters that may be repeated.

    Each parameter may occur several times, may have `[]` after its name, and may contain several values with
    commas.
    """
    given = [
        value
        for name in parameters
        for spelling in (name, f"{name}[]")
        for value in request.query_params.getlist(spelling)
    ]
    names = tuple(dict.fromkeys(name.strip() for value in given for name in value.split(",") if name.strip()))
    if len(names) > MOST_NAMES:
        raise ToolwireError("invalid_value", f"More than {MOST_NAMES} names.", param=parameters[0])
    return names


def _time(request: Request, parameters: tuple[str, ...], default: int) -> int:
    """Returns the time in a query parameter as Unix seconds; `default` if it is missing.

    `parameters`: the names that the parameter may have. The value is a number of Unix seconds or an ISO 8601
    time. A time without a time zone is in UTC.
    """
    name = next((one for one in parameters if one in request.query_params), None)
    if name is None:
        return max(0, default)
    text = request.query_params[name].strip()
    if text.isascii() and text.isdigit():
        return _number(text, name)
    try:
        time = datetime.fromisoformat(text)
        seconds = int((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        raise ToolwireError(
            "invalid_value", "Expected Unix seconds or an ISO 8601 time, such as 2026-08-01.", param=name
        ) from None
    return max(0, seconds)


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and int(text) < LATEST):
        raise ToolwireError("invalid_value", "Expected a whole number.", param=name)
    return int(text)


def _up(seconds: int, width: int) -> int:
    return -(-seconds // width) * width


def _result(group: dict[str, str], counts: Counts) -> dict[str, Any]:
    named = dict(zip(COUNTS, counts, strict=True))
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": named["input_tokens"],
        "input_cached_tokens": named["cached_tokens"],
        "output_tokens": named["output_tokens"],
        "num_model_requests": named["requests"],
        "num_failed_requests": named["failed"],
        "num_tool_calls": named["tool_calls"],
        "api_key_id": group.get("key_id"),
        "model": group.get("model"),
        "project_id": None,
        "user_id": None,
        "batch": None,
    }


# --- health ---
#
# Live: the process answers. Ready: at least one model can serve, and the server is not draining. No key is
# needed, because the answer is only yes or no.

READY_WITHIN_S = 3.0
log = logging.getLogger("toolwire.http")


def routes(gateway: Gateway, draining: Callable[[], bool]) -> list[Route]:
    async def live(request: Request) -> JSONResponse:
        return JSONResponse({"ok": True})

    async def ready(request: Request) -> JSONResponse:
        if draining():
            return JSONResponse({"ok": False, "reason": "draining"}, 503)
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                ok = await gateway.ready()
        except Exception as error:
            log.warning("readiness check failed: %r", error)
            ok = False
        return JSONResponse(
            {"ok": True} if ok else {"ok": False, "reason": "no model can serve"}, 200 if ok else 503
        )

    return [Route("/healthz", live), Route("/livez", live), Route("/readyz", ready)]

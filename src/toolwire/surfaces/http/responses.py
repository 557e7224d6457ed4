"""The cold routes of the Responses API: what was stored, as OpenAI gives it back. A key sees only its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from toolwire.errors import ToolwireError

if TYPE_CHECKING:
    from toolwire.gateway.store import Store

MAX_PAGE = 100
DEFAULT_PAGE = 20


class Responses:
    def __init__(self, store: Store | None) -> None:
        self._store = store

    async def one(self, request: Request, key_id: str) -> Response:
        """GET and DELETE /v1/responses/{id}."""
        id = request.path_params["id"]
        if request.method == "DELETE":
            if self._store is None or not await self._store.delete(id, key_id):
                raise _not_found(id)
            return JSONResponse({"id": id, "object": "response", "deleted": True})
        if request.query_params.get("stream", "").lower() == "true":
            raise ToolwireError("unsupported_value", "Only responses created in the background can be streamed again.", param="stream")
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
            page = await self._store.input_items(id, key_id, limit=int(limit), order=cast(Literal["asc", "desc"], order), after=query.get("after"))
        if page is None:
            raise _not_found(id)
        ids = [item.get("id") for item in page.data]
        return JSONResponse(
            {"object": "list", "data": page.data, "first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None, "has_more": page.has_more}
        )

    async def cancel(self, request: Request, key_id: str) -> Response:
        id = request.path_params["id"]
        stored = await self._store.get(id, key_id) if self._store is not None else None
        if stored is None:
            raise _not_found(id)
        raise ToolwireError("invalid_request", "Cannot cancel a synchronous response.")


def _not_found(id: str) -> ToolwireError:
    return ToolwireError("not_found", f"Response with id '{id[:200]}' not found.", param="response_id")

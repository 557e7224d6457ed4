"""GET /v1/models and /v1/models/{id}: the configured models and those that servers told of, without touching a backend.

A key sees only the models that it may use.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from toolwire.errors import ToolwireError
from toolwire.gateway.catalog import Catalog
from toolwire.gateway.keys import KeyHolder

CREATED = 1_763_164_800
"""Models are configured, not made: one constant for all, so that the list never changes between two requests."""


def model_object(id: str) -> dict[str, Any]:
    return {"id": id, "object": "model", "created": CREATED, "owned_by": "toolwire"}


class Models:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def all(self, request: Request, holder: KeyHolder) -> JSONResponse:
        grant = holder.grant
        listed = self._catalog.listed() if grant is None else [id for id in self._catalog.listed() if grant.may_use(id, self._catalog.serving(id))]
        return JSONResponse({"object": "list", "data": [model_object(id) for id in listed]})

    async def one(self, request: Request, holder: KeyHolder) -> JSONResponse:
        id = request.path_params["id"]
        if id not in self._catalog or not (holder.grant is None or holder.grant.may_use(id, self._catalog.serving(id))):
            raise ToolwireError("model_not_found", f"The model '{id[:200]}' does not exist or you do not have access to it.", param="model")
        return JSONResponse(model_object(id))

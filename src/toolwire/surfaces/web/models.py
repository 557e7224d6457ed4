"""The API of the settings page's models: shows, adds, tests, changes and removes them.

Every session of the pages belongs to the owner, because it began with a one-time link of this machine or with
an admin key. Changes are in the file that the page writes (`settings.page_file`). The page can set only the
model, the address and the key of a backend. It cannot set a command, and the only file that it can name is a
file with a key. The server never sends a secret to the page. Backends do not follow redirects, so a key
reaches only the address that was typed.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.requests import Request

from toolwire.backends import registry
from toolwire.core.display import counted
from toolwire.core.errors import ToolwireError
from toolwire.gateway.pipeline import Gateway
from toolwire.gateway.records import TurnSummary
from toolwire.observe import masking
from toolwire.settings import page_file
from toolwire.settings.models import page_model
from toolwire.settings.types import JournalSettings, ModelSettings, Settings
from toolwire.surfaces.web.connect import GatewayTrip
from toolwire.surfaces.web.context import PageApi, Row, Web, body, field, invalid
from toolwire.surfaces.web.folders import Folders
from toolwire.surfaces.web.model_form import KINDS, id_of, kind_of, kind_that_wrote, pasted_key, table_of
from toolwire.surfaces.web.page_settings import locked, page_change, page_settings, restart_needed

TEST_S = 120.0
CHECK_S = 5.0
NAMES_S = 10.0
MOST_TESTS = 2
MOST_NAMES = 500
MOST_MODELS = 200
DRAFT_ID = "draft"


class ModelsApi(PageApi):
    def __init__(self, web: Web, test_s: float = TEST_S) -> None:
        super().__init__(web)
        self._test_s = test_s
        self._tests = 0
        self._last: dict[str, dict[str, Any]] = {}
        """The last turn of each model: its time, its id, whether it succeeded, and why it failed."""
        self._folders = Folders()

    def routes(self) -> list[Row]:
        return [
            ("GET", "/settings/models", self.all),
            ("POST", "/settings/models", self.add),
            ("GET", "/settings/health", self.health),
            ("POST", "/settings/names", self.names),
            ("POST", "/settings/test", self.test),
            ("GET", "/settings/folders", self.folders),
            ("PUT", "/settings/vault", self.set_vault),
            ("PUT", "/settings/models/{id:path}", self.change),
            ("DELETE", "/settings/models/{id:path}", self.remove),
        ]

    async def start(self) -> None:
        self._web.gateway.observers.append(self._observe)

    def _observe(self, summary: TurnSummary) -> None:
        if summary.model not in self._web.gateway.catalog or summary.cancelled:
            return
        trace = summary.trace
        failure = trace.failure if trace is not None else None
        reason = failure.message if failure is not None else summary.error_kind or ""
        self._last[summary.model] = {
            "at": summary.started_at,
            "ok": summary.error_kind is None,
            "reason": reason[:500],
            "turn": summary.turn_id,
        }

    # --- reading

    async def all(self, request: Request) -> dict[str, Any]:
        settings, catalog = self._web.settings, self._web.gateway.catalog
        rows = [self._row(model) for model in settings.models]
        if not settings.models:
            rows = [{"id": id, "backend": catalog.kind(id), "origin": ""} for id in catalog.models]
        return {
            "models": rows,
            "kinds": [kind.as_json() for kind in KINDS],
            "locked": locked(self._web.settings),
            "restart": restart_needed(self._web.settings),
            "file": settings.page_file,
            "problem": settings.page_problem,
        }

    def _row(self, model: ModelSettings) -> dict[str, Any]:
        settings, id = self._web.settings, model.id
        origin = settings.origins.get(f"models.{id}", "")
        is_page = bool(origin) and origin == settings.page_file
        last = [self._last[name] for name in self._last if name == id or name.startswith(f"{id}/")]
        row: dict[str, Any] = {
            "id": id,
            "backend": model.backend,
            "name": str(model.options.get("model") or ""),
            "origin": "page" if is_page else origin,
            "last": max(last, key=lambda one: one["at"]) if last else None,
        }
        return {**row, "draft": self._written(id)} if is_page else row

    def _written(self, id: str) -> dict[str, str]:
        """Returns the form's fields for a model that the page has added. The key is only a reference."""
        table = page_settings(self._web).models.get(id, {})
        kind = kind_that_wrote(table)
        model = str(table.get("model", "")).removeprefix(f"{kind.provider}:" if kind.provider else "")
        texts = {"base_url": table.get("base_url", ""), "key": table.get("api_key", "")}
        return {
            "id": id,
            "kind": kind.id,
            "model": model,
            **{name: str(text) for name, text in texts.items()},
        }

    async def health(self, request: Request) -> dict[str, Any]:
        """Returns for each model whether it can answer now. The check generates no text."""
        ids = [model.id for model in self._web.settings.models] or list(self._web.gateway.models)
        states = await asyncio.gather(*(self._state(id) for id in ids))
        return {"health": dict(zip(ids, states, strict=True))}

    async def _state(self, id: str) -> dict[str, Any]:
        catalog = self._web.gateway.catalog
        try:
            async with asyncio.timeout(CHECK_S):
                if reason := await catalog.trouble(id):
                    return {"ok": False, "reason": reason}
        except TimeoutError:
            return {"ok": False, "reason": f"the model did not answer within {CHECK_S:g} s"}
        listed = counted(len(catalog.listed_of(id)), "model") if id in catalog.sources else ""
        return {"ok": True, "reason": listed}

    async def folders(self, request: Request) -> dict[str, Any]:
        return await self._folders.listed(request.query_params.get("path", "")[:2000])

    # --- changing

    async def add(self, request: Request) -> dict[str, Any]:
        draft = await body(request)
        async with page_change(self._web) as (path, kept):
            id = id_of(draft)
            known = {model.id for model in self._web.settings.models} | set(self._web.gateway.models)
            if id in known or id in kept.models:
                raise invalid(f"There is already a model {id}. Choose another name.", "id")
            if len(kept.models) >= MOST_MODELS:
                raise invalid(f"The page keeps at most {MOST_MODELS} models.", "id")
            await self._save(id, draft, path, kept)
        return await self.all(request)

    async def change(self, request: Request) -> dict[str, Any]:
        draft, id = await body(request), request.path_params["id"]
        async with page_change(self._web) as (path, kept):
            self._check_own(id, kept)
            await self._save(id, draft, path, kept)
        return await self.all(request)

    async def remove(self, request: Request) -> dict[str, Any]:
        id = request.path_params["id"]
        async with page_change(self._web) as (path, kept):
            self._check_own(id, kept)
            self._check_unused(id)
            del kept.models[id]
            await asyncio.to_thread(page_file.write, path, kept)
            await asyncio.to_thread(page_file.drop_secrets, path, kept)
            self._replace(id, None)
        return await self.all(request)

    async def set_vault(self, request: Request) -> dict[str, Any]:
        typed = field(await body(request), "root", str, required=True)
        async with page_change(self._web) as (path, kept):
            if where := self._vault_fixed():
                raise invalid(f"vault.root is set in {where}. Change it there.", "root")
            root = str(await self._folders.vault(typed))
            kept.root = root
            await asyncio.to_thread(page_file.write, path, kept)
            settings = self._web.settings
            origins = {**settings.origins, "vault.root": str(path)}
            vault = replace(settings.vault, root=root)
            self._web.settings = replace(settings, vault=vault, origins=origins, page_problem="")
            await self._web.tools.use(self._web.settings)
        self._web.hub.publish("settings", {})
        return {}

    def _vault_fixed(self) -> str:
        settings = self._web.settings
        where = settings.origins.get("vault.root", "")
        return "" if where == settings.page_file else where

    async def _save(self, id: str, draft: dict[str, Any], path: Path, kept: page_file.PageSettings) -> None:
        table, pasted = table_of(draft), pasted_key(draft)
        tested = {**table, "api_key": pasted} if pasted else table
        self._model(id, tested)  # raises before anything is written if the draft is not valid
        if pasted:
            table["api_key"] = await asyncio.to_thread(page_file.keep_secret, path, id, pasted)
        kept.models[id] = table
        await asyncio.to_thread(page_file.write, path, kept)
        await asyncio.to_thread(page_file.drop_secrets, path, kept)
        self._replace(id, self._model(id, table))

    def _replace(self, id: str, model: ModelSettings | None) -> None:
        """Adds a model of the settings page to the models in use, or replaces it there.

        If `model` is None, removes it.
        """
        settings = self._web.settings
        others = tuple(one for one in settings.models if one.id != id)
        origins = {name: where for name, where in settings.origins.items() if name != f"models.{id}"}
        if model is not None:
            masking.learn(str(model.options[name]) for name in model.secret)
            others, origins = (*others, model), {**origins, f"models.{id}": settings.page_file}
        self._web.settings = replace(settings, models=others, origins=origins, page_problem="")
        catalog = self._web.gateway.catalog
        if model is not None:
            catalog.add(model)
        else:
            catalog.remove(id)
            self._last.pop(id, None)
        self._web.hub.publish("settings", {})

    def _model(self, id: str, table: dict[str, Any]) -> ModelSettings:
        model = page_model(id, table, self._web.settings.page_file, os.environ)
        if model.problem:
            raise invalid(model.problem, "draft")
        return model

    def _check_own(self, id: str, kept: page_file.PageSettings) -> None:
        origin = self._web.settings.origins.get(f"models.{id}", "")
        if id not in kept.models or origin not in ("", self._web.settings.page_file):
            where = f"It is set in {origin}." if origin else "It was found on this machine."
            raise invalid(f"You cannot change the model {id[:100]} on this page. {where}", "id")

    def _check_unused(self, id: str) -> None:
        """Raises an error if an alias, or a fallback of another model, names the model.

        After the next start of the server, that setting would name an unknown model, which is a mistake.
        """
        settings = self._web.settings
        for name, target in settings.aliases:
            if target.partition("/")[0] == id:
                raise invalid(f'The alias "{name}" refers to {id}. Remove the alias first.', "id")
        for model in settings.models:
            if id in model.fallback:
                raise invalid(
                    f"{id} is a fallback of {model.id}. Change the fallback of {model.id} first.", "id"
                )

    # --- trying

    async def names(self, request: Request) -> dict[str, Any]:
        """Returns the names of the models that the server in an unsaved form (`draft`) offers."""
        draft = await body(request)
        kind, table = kind_of(draft), table_of({**draft, "model": registry.EVERY})
        if kind.backend not in registry.SOURCES:
            return {"names": []}
        if pasted := pasted_key(draft):
            table["api_key"] = pasted
        model = self._model(DRAFT_ID, table)
        source = registry.build_source(model.id, model.backend, model.options)
        try:
            async with asyncio.timeout(NAMES_S):
                return {"names": sorted(await source.names())[:MOST_NAMES]}
        except TimeoutError:
            raise ToolwireError("timeout", f"The server did not answer within {NAMES_S:g} s.") from None
        finally:
            await source.close()

    async def test(self, request: Request) -> dict[str, Any]:
        """Makes a real tool call with a model in use (`id`) or an unsaved model (`draft`)."""
        given = await body(request)
        id, draft = field(given, "id", str, ""), field(given, "draft", dict)
        if self._tests >= MOST_TESTS:
            raise ToolwireError("overloaded", "Other tests are running. Try again when they have ended.")
        self._tests += 1
        began = time.perf_counter()
        try:
            if draft is None:
                return await self._tested(self._web.gateway, id, began)
            table = table_of(draft)
            if pasted := pasted_key(draft):
                table["api_key"] = pasted
            gateway = Gateway(_alone(self._web.settings, self._model(DRAFT_ID, table)))
            await gateway.start()
            try:
                return await self._tested(gateway, DRAFT_ID, began)
            finally:
                await gateway.close()
        finally:
            self._tests -= 1

    async def _tested(self, gateway: Gateway, id: str, began: float) -> dict[str, Any]:
        catalog = gateway.catalog
        if id in catalog.sources:
            await catalog.refresh(id)
            listed = catalog.listed_of(id)
            if not listed:
                step = {
                    "name": "Tool call",
                    "ok": False,
                    "ms": 0,
                    "detail": "The model's server lists no models.",
                }
                return {"ok": False, "model": id, "ms": 0, "steps": [step]}
            id = f"{id}/{listed[0]}"
        backend = catalog.find(id)
        if backend is None:
            raise ToolwireError("not_found", f"There is no model {id[:100]}.")
        trip = GatewayTrip(gateway, id, forced=backend.strategy != "parked")
        steps = await trip.run(self._test_s)
        ms = round((time.perf_counter() - began) * 1000)
        return {"ok": all(step["ok"] for step in steps), "model": id, "ms": ms, "steps": steps}


def _alone(settings: Settings, model: ModelSettings) -> Settings:
    """Returns settings for a gateway that has only this model and records nothing."""
    off = JournalSettings(contents="off", max_mb=0)
    telemetry = replace(settings.telemetry, otlp="")
    return replace(settings, models=(model,), aliases=(), journal=off, telemetry=telemetry)

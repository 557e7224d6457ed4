"""The models that the gateway serves: those in the settings, and those of servers.

A model with `model = "*"` in its settings is a server. Each of its models is offered as `ID/NAME` and opened
when it is first requested. A background task asks each server for the names of its models, and the catalog
keeps them. So `/v1/models` answers at once, and still lists the models of a server that is down for a moment.

A model with a mistake in its settings is not built. If a fallback can answer instead, the model is still
listed. Otherwise it is not listed, and the error for a request names the mistake.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from toolwire.backends import registry
from toolwire.backends.base import About, Backend, Source
from toolwire.core.errors import ToolwireError
from toolwire.settings.types import ModelSettings

log = logging.getLogger("toolwire.gateway")
FRESH_S = 30.0
"""How many seconds a server's list of models counts as current."""
FIRST_LOOK_S = 1.0
OPENED = 64
"""How many backends are kept for the models of servers.

If there are more, the gateway closes the least recently requested of those that no turn uses.
"""
LONGEST_NAME = 200
LONGEST_REASON = 500
RETIRE_S = 600.0
"""How many seconds the backend of a removed model is kept at most, while turns still use it."""
RETIRE_LOOK_S = 0.2


class User(Protocol):
    """A running turn. `backend`: the backend that the turn uses now."""

    @property
    def backend(self) -> Backend | None: ...


class Catalog:
    def __init__(
        self,
        settings: Iterable[ModelSettings],
        given: Mapping[str, Backend] | None = None,
        aliases: Iterable[tuple[str, str]] = (),
        discover: Callable[[], Awaitable[Sequence[ModelSettings]]] | None = None,
    ) -> None:
        """`discover` finds further models on this machine. It is called in the background."""
        settings, self._aliases = tuple(settings), tuple(aliases)
        self.kinds = {model.id: model.backend for model in settings}
        self.models: dict[str, Backend] = dict(given or {})
        self._unlisted: dict[str, Backend] = {}
        self.sources: dict[str, Source] = {}
        self.unavailable: dict[str, str] = {}
        """Why a model of the settings cannot be used, by its id."""
        self._fallbacks = {model.id: model.fallback for model in settings if model.fallback}
        self._names: dict[str, tuple[str, ...]] = {}
        self._discover = discover
        self._finding: asyncio.Task[None] | None = None
        self.found: set[str] = set()
        """The ids of models that `discover` found."""
        for model in settings:
            if model.problem:
                self.unavailable[model.id] = model.problem
            elif not given:
                self._build(model)
        self._known: frozenset[str] | None = None
        self._looked = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._opened: OrderedDict[str, Backend] = OrderedDict()
        self.users: set[User] = set()
        """The turns that are running. Their backends are kept for `RETIRE_S` if their models are removed."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._retiring: set[asyncio.Task[None]] = set()

    # --- changes while the server runs ---

    def add(self, model: ModelSettings) -> None:
        """Adds a model, or replaces the one with the same id."""
        self.remove(model.id)
        self.kinds[model.id] = model.backend
        if model.problem:
            self.unavailable[model.id] = model.problem
        else:
            self._build(model)
        if model.id in self.sources:
            self._looked = 0.0

    def remove(self, id: str) -> None:
        """Removes a model. Closes its backend when no turn uses it any more, or after `RETIRE_S` seconds."""
        self.kinds.pop(id, None)
        self._names.pop(id, None)
        self.unavailable.pop(id, None)
        gone: list[Backend | Source] = []
        if id in self.models:
            gone.append(self.models.pop(id))
        if id in self.sources:
            names = [name for name in self._opened if name.partition("/")[0] == id]
            gone += [*(self._opened.pop(name) for name in names), self.sources.pop(id)]
        self._known = None
        if gone:
            task = asyncio.ensure_future(self._retire(gone))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def _retire(self, gone: list[Backend | Source]) -> None:
        try:
            async with asyncio.timeout(RETIRE_S):
                while any(map(self._is_used, gone)):
                    await asyncio.sleep(RETIRE_LOOK_S)
        except TimeoutError:
            pass
        finally:
            for one in gone:
                await one.close()

    def _build(self, model: ModelSettings) -> None:
        try:
            if registry.is_source(model.backend, model.options):
                source = registry.build_source(model.id, model.backend, model.options)
                self.sources[model.id], self._names[model.id] = source, ()
            else:
                self.models[model.id] = registry.build(model.id, model.backend, model.options)
        except (ValueError, TypeError, KeyError, ImportError, ToolwireError) as error:
            self.unavailable[model.id] = " ".join(str(error).split())

    # --- finding a model ---

    def find(self, name: str) -> Backend | None:
        """Returns the model with this id or alias, or the server's model with this name (`ID/NAME`).

        Returns None if no model has the name.
        """
        own = self._unlisted.get(name) or self.models.get(name)
        return own or self._of_source(name) or self._by_alias(name)

    def add_unlisted(self, backend: Backend, kind: str) -> None:
        """Adds one of Toolwire's own models, such as the model of the tour. No list contains this model."""
        self._unlisted[backend.id] = backend
        self.kinds[backend.id] = kind

    def problem(self, name: str) -> str:
        """Returns the reason why the model with this id or alias cannot be used.

        Returns "" if the model can be used, or if it is unknown.
        """
        for id in (name, self._target(name) or ""):
            if reason := self.unavailable.get(id) or self.unavailable.get(id.partition("/")[0], ""):
                return reason
        return ""

    def fallbacks(self, id: str) -> list[str]:
        """Returns the ids of the models to try instead of this model, in order.

        Each fallback is followed by its own fallbacks.
        """
        if not self._fallbacks:
            return []
        out, left = [id], list(reversed(self._own_fallbacks(id)))
        while left:
            other = left.pop()
            if other not in out:
                out.append(other)
                left += reversed(self._own_fallbacks(other))
        return out[1:]

    def _own_fallbacks(self, id: str) -> tuple[str, ...]:
        return self._fallbacks.get(id) or self._fallbacks.get(id.partition("/")[0], ())

    def lacking(self, id: str) -> tuple[str, str] | None:
        """Returns what a model lacks on this machine, such as a program, and how to get it.

        Returns None if nothing is known to be missing.
        """
        backend = self.models.get(id)
        if backend is None or self.kind(id) not in registry.BACKENDS:
            return None
        return registry.lacking(self.kind(id), getattr(backend, "options", None))

    async def trouble(self, id: str) -> str:
        """Returns why a model or a server cannot answer now; "" if it can. Does not run the model."""
        if reason := self.problem(id):
            return reason
        backend = self.models.get(id)
        try:
            if id in self.sources:
                await self._list(id, self.sources[id])
                return "" if self._names[id] else "the server lists no models"
            if backend is None:
                return "it is not loaded: restart the server"
            if lacks := self.lacking(id):
                return f"{lacks[0]}; {lacks[1]}"
            await backend.prepare()
            return "" if await backend.ready() else "it does not answer, or its server refuses the key"
        except Exception as error:
            return " ".join(str(error).split())[:LONGEST_REASON] or type(error).__name__

    def about(self, name: str) -> About:
        """Returns what a person should know about a model before they choose it."""
        id = self.serving(name)
        backend = self.models.get(id)
        if backend is None or self.kind(id) not in registry.BACKENDS:
            return About()
        return registry.about(self.kind(id), getattr(backend, "options", None))

    def _by_alias(self, name: str) -> Backend | None:
        target = self._target(name)
        return None if target is None else self.models.get(target) or self._of_source(target)

    def _target(self, name: str) -> str | None:
        """Returns the model id of the first alias that matches the name; None if no alias does."""
        return next((id for pattern, id in self._aliases if fnmatchcase(name, pattern)), None)

    def _of_source(self, name: str) -> Backend | None:
        server, _, inner = name.partition("/")
        source = self.sources.get(server)
        if source is None or not inner or len(inner) > LONGEST_NAME:
            return None
        if name in self._opened:
            self._opened.move_to_end(name)
            return self._opened[name]
        backend = self._opened[name] = source.model(inner)
        idle = (one for one, open in self._opened.items() if one != name and not self._is_used(open))
        if len(self._opened) > OPENED and (oldest := next(idle, None)) is not None:
            task = asyncio.ensure_future(self._opened.pop(oldest).close())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        return backend

    def _is_used(self, backend: Backend | Source) -> bool:
        return any(user.backend is backend for user in self.users)

    def __contains__(self, name: object) -> bool:
        """Whether `/v1/models` lists this id."""
        if self._known is None:
            self._known = frozenset(self._ids())
        return name in self._known

    def serving(self, name: str) -> str:
        """Returns the id of the model that has this name in `/v1/models`. The name may be an alias."""
        if name in self.models or ("/" in name and name.partition("/")[0] in self.sources):
            return name
        own = next((id for id, backend in self.models.items() if name in backend.aliases), None)
        return own or self._target(name) or name

    def kind(self, id: str) -> str:
        """Returns the backend kind of a model id, such as "openai"; "" if unknown."""
        return self.kinds.get(id) or self.kinds.get(id.partition("/")[0], "")

    def offered(self) -> Iterable[tuple[str, Backend]]:
        """Yields every model id with its backend, without aliases."""
        yield from self.models.items()
        for id, source in self.sources.items():
            yield from ((f"{id}/{name}", source.model(name)) for name in self._names[id])

    def all(self) -> Iterable[Backend]:
        yield from self.models.values()
        yield from self._opened.values()

    # --- listing ---

    def listed(self) -> list[str]:
        """Returns the ids and aliases that `/v1/models` shows: those that can be used.

        If the lists of the servers' models are outdated, they are refreshed in the background.
        """
        if (self.sources or self._discover) and time.monotonic() - self._looked > FRESH_S:
            self._look()
            self._find()
        missing = {id for id in self.models if not self._fallbacks.get(id) and self.lacking(id)}
        return [id for id in self._ids() if not missing or self.serving(id) not in missing]

    def _ids(self) -> Iterable[str]:
        for id, backend in self.models.items():
            yield id
            yield from (name for name in backend.aliases if name not in self.models)
        served = [id for id in self.unavailable if any(map(self.find, self.fallbacks(id)))]
        yield from served
        for name, id in self._aliases:
            if "*" not in name and name not in self.models and (id in served or not self.problem(id)):
                yield name
        for id, names in self._names.items():
            yield from (f"{id}/{name}" for name in names)

    def listed_of(self, id: str) -> tuple[str, ...]:
        return self._names[id]

    async def start(self) -> None:
        """Lists the servers' models for the first time. Waits at most `FIRST_LOOK_S` for slow servers."""
        self._find()
        if self.sources:
            await asyncio.wait({self._look()}, timeout=FIRST_LOOK_S)

    def _find(self) -> None:
        if self._discover is not None and (self._finding is None or self._finding.done()):
            self._finding = asyncio.ensure_future(self._add_found(self._discover))

    async def _add_found(self, discover: Callable[[], Awaitable[Sequence[ModelSettings]]]) -> None:
        """Adds models that `discover` found. A found model is skipped if its id is already in use."""
        try:
            new = [model for model in await discover() if model.id not in self.kinds]
        except Exception:
            log.exception("the models of this machine could not be found")
            return
        for model in new:
            self.kinds[model.id] = model.backend
            self.found.add(model.id)
            self._build(model)
        self._known = None
        await asyncio.gather(
            *(self._refresh_one(one.id, self.sources[one.id]) for one in new if one.id in self.sources)
        )

    def _look(self) -> asyncio.Task[None]:
        if self._looking is None or self._looking.done():
            self._looked = time.monotonic()
            self._looking = asyncio.ensure_future(self._refresh())
        return self._looking

    async def refresh(self, id: str) -> None:
        """Lists the models of one server again."""
        if id in self.sources:
            await self._refresh_one(id, self.sources[id])

    async def _refresh(self) -> None:
        await asyncio.gather(*(self._refresh_one(id, source) for id, source in self.sources.items()))

    async def _refresh_one(self, id: str, source: Source) -> None:
        try:
            await self._list(id, source)
        except ToolwireError as error:
            log.info("the models of %s could not be listed: %s", id, error)
        except Exception:
            log.exception("the models of %s could not be listed", id)

    async def _list(self, id: str, source: Source) -> None:
        names = tuple(await source.names())
        if self.sources.get(id) is source:  # the server may have been removed meanwhile
            self._names[id], self._known = names, None

    async def close(self) -> None:
        for task in filter(None, (self._finding, self._looking, *self._retiring)):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(*self._leaving, return_exceptions=True)
        for backend in self.all():
            await backend.close()
        for source in self.sources.values():
            await source.close()

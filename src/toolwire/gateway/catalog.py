"""The models that the gateway serves: those in the settings, and those of servers.

A model with `model = "*"` in its settings is a server. Each of its models is offered as `ID/NAME` and opened
when it is first requested. The names are listed in the background and kept. So `/v1/models` answers at once,
and still lists the models of a server that is down for a moment.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from toolwire.backends import registry
from toolwire.backends.base import Backend, Source
from toolwire.core.errors import ToolwireError
from toolwire.settings.types import ModelSettings

log = logging.getLogger("toolwire.gateway")
FRESH_S = 30.0
"""How many seconds a server's list of models counts as current."""
FIRST_LOOK_S = 1.0
OPENED = 64
"""How many models of servers stay open.

Above that, the one that was unused longest is closed.
"""
LONGEST_NAME = 200


class Catalog:
    def __init__(
        self,
        settings: Iterable[ModelSettings],
        given: Mapping[str, Backend] | None = None,
        aliases: Iterable[tuple[str, str]] = (),
    ) -> None:
        settings, self._aliases = tuple(settings), tuple(aliases)
        self.kinds = {model.id: model.backend for model in settings}
        self.models: dict[str, Backend] = dict(given or {})
        self.sources: dict[str, Source] = {}
        for model in () if given else settings:
            if registry.is_source(model.backend, model.options):
                self.sources[model.id] = registry.build_source(model.id, model.backend, model.options)
            else:
                self.models[model.id] = registry.build(model.id, model.backend, model.options)
        self._names: dict[str, tuple[str, ...]] = dict.fromkeys(self.sources, ())
        self._known: frozenset[str] | None = None
        self._looked = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._opened: OrderedDict[str, Backend] = OrderedDict()
        self._used: dict[str, int] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    # --- finding a model ---

    def find(self, name: str) -> Backend | None:
        """Returns the model with this id or alias, or a server's model; None if there is none."""
        return self.models.get(name) or self._of_source(name) or self._by_alias(name)

    def _by_alias(self, name: str) -> Backend | None:
        target = self._target(name)
        return None if target is None else self.models.get(target) or self._of_source(target)

    def _target(self, name: str) -> str | None:
        """Returns the model id of the first alias pattern that matches; None if none does."""
        return next((id for pattern, id in self._aliases if fnmatchcase(name, pattern)), None)

    def _of_source(self, name: str) -> Backend | None:
        id, _, inner = name.partition("/")
        source = self.sources.get(id)
        if source is None or not inner or len(inner) > LONGEST_NAME:
            return None
        if name in self._opened:
            self._opened.move_to_end(name)
            return self._opened[name]
        backend = self._opened[name] = source.model(inner)
        idle = (one for one in self._opened if one != name and one not in self._used)
        if len(self._opened) > OPENED and (oldest := next(idle, None)) is not None:
            task = asyncio.ensure_future(self._opened.pop(oldest).close())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        return backend

    def hold(self, backend: Backend) -> None:
        """Keeps a model of a server open until `release`. Models in the settings are never closed."""
        self._used[backend.id] = self._used.get(backend.id, 0) + 1

    def release(self, backend: Backend) -> None:
        left = self._used.pop(backend.id) - 1
        if left:
            self._used[backend.id] = left

    def __contains__(self, name: object) -> bool:
        """Whether `/v1/models` lists this id."""
        if self._known is None:
            self._known = frozenset(self._ids())
        return name in self._known

    def serving(self, name: str) -> str:
        """Returns the id of the model that serves a listed name, which may be an alias."""
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
        """Returns the ids that `/v1/models` shows. Outdated lists are refreshed in the background."""
        if self.sources and time.monotonic() - self._looked > FRESH_S:
            self._look()
        return list(self._ids())

    def _ids(self) -> Iterable[str]:
        for id, backend in self.models.items():
            yield id
            yield from (name for name in backend.aliases if name not in self.models)
        yield from (name for name, _ in self._aliases if "*" not in name and name not in self.models)
        for id, names in self._names.items():
            yield from (f"{id}/{name}" for name in names)

    def listed_of(self, id: str) -> tuple[str, ...]:
        return self._names[id]

    async def start(self) -> None:
        """Lists the servers' models for the first time. A slow server does not delay the start."""
        if self.sources:
            await asyncio.wait({self._look()}, timeout=FIRST_LOOK_S)

    def _look(self) -> asyncio.Task[None]:
        if self._looking is None or self._looking.done():
            self._looked = time.monotonic()
            self._looking = asyncio.ensure_future(self._refresh())
        return self._looking

    async def _refresh(self) -> None:
        await asyncio.gather(*(self._refresh_one(id, source) for id, source in self.sources.items()))

    async def _refresh_one(self, id: str, source: Source) -> None:
        try:
            self._names[id] = tuple(await source.names())
            self._known = None
        except ToolwireError as error:
            log.info("the models of %s could not be listed: %s", id, error)
        except Exception:
            log.exception("the models of %s could not be listed", id)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await asyncio.gather(*self._leaving, return_exceptions=True)
        for backend in self.all():
            await backend.close()
        for source in self.sources.values():
            await source.close()

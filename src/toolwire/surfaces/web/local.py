"""The API with which the empty chat page downloads a model that runs inside Toolwire.

A download runs in a thread of this process, and continues if no tab is open. Only one download runs at a
time. The live stream sends the progress to the tabs. After the download, the model can be used without a
restart.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from toolwire.backends.local.pull import BETTER, MODELS, PullStopped, importable, pull
from toolwire.core.errors import ToolwireError
from toolwire.settings.discover import embedded
from toolwire.settings.extras import add_extra
from toolwire.surfaces.web.context import PageApi, Row, Web, body, field
from toolwire.surfaces.web.page_settings import locked

log = logging.getLogger("toolwire.web")
PUBLISH_EVERY_S = 0.25


@dataclass(slots=True)
class Download:
    """The state of the last download in this process."""

    name: str
    state: Literal["running", "stopped", "failed", "done"] = "running"
    phase: str = "check"
    done: int = 0
    total: int = 0
    error: str = ""


class LocalApi(PageApi):
    def __init__(self, web: Web) -> None:
        super().__init__(web)
        self._download: Download | None = None
        self._stop = threading.Event()

    def routes(self) -> list[Row]:
        return [
            ("GET", "/local", self.show),
            ("POST", "/local/download", self.begin),
            ("DELETE", "/local/download", self.stop),
        ]

    async def close(self) -> None:
        self._stop.set()  # a later download continues this one

    async def show(self, request: Request) -> dict[str, Any]:
        return self._state()

    async def begin(self, request: Request) -> Response:
        name = field(await body(request), "name", str, BETTER)
        if name not in MODELS:
            raise ToolwireError("not_found", f"There is no model {name[:80]} to download.")
        if why := locked(self._web.settings):
            raise ToolwireError("conflict", why)
        if not importable():
            raise ToolwireError("conflict", f"llama.cpp is not installed, run: {add_extra('local')}")
        if self._running:
            raise ToolwireError("conflict", "A download is running already.")
        self._stop = threading.Event()
        self._download = Download(name, total=MODELS[name].size)
        given = (asyncio.get_running_loop(), self._download, self._stop)
        # a daemon, so that a connection that hangs does not delay the end of the process
        threading.Thread(target=self._run, args=given, name="toolwire-pull", daemon=True).start()
        self._publish()
        return JSONResponse(self._state(), 202)

    async def stop(self, request: Request) -> dict[str, Any]:
        self._stop.set()
        return self._state()

    # --- the state

    @property
    def _running(self) -> bool:
        return self._download is not None and self._download.state == "running"

    def _state(self) -> dict[str, Any]:
        known, settings = MODELS[BETTER], self._web.settings
        return {
            "model": {
                "name": BETTER,
                "id": known.id,
                "title": known.title,
                "use": known.use,
                "size": known.size,
                "memory": known.memory_mb * 1_000_000,
                "licence": known.licence,
            },
            "offered": self._offers(known.id),
            "lacks": "" if importable() else add_extra("local"),
            "locked": locked(settings),
            "download": None if self._download is None else asdict(self._download),
        }

    def _offers(self, id: str) -> bool:
        """Whether the page offers to download the model.

        It does if no model is configured and every model that Toolwire found is only for trials.
        """
        catalog = self._web.gateway.catalog
        if id in catalog.models or not all(model.found for model in self._web.settings.models):
            return False
        return all(catalog.about(other).is_trial for other, _ in catalog.offered())

    # --- the download

    def _run(self, loop: asyncio.AbstractEventLoop, download: Download, stop: threading.Event) -> None:
        """Downloads in a thread. Everything else happens in the event loop."""
        published = 0.0

        def tell(function: Any, *given: Any) -> None:
            try:
                loop.call_soon_threadsafe(function, download, *given)
            except RuntimeError:  # the server has ended
                stop.set()

        def progress(phase: str, done: int, total: int) -> None:
            nonlocal published
            now = time.monotonic()
            if now - published >= PUBLISH_EVERY_S:
                published = now
                tell(self._progressed, phase, done, total)

        try:
            pull(download.name, progress=progress, stopped=stop.is_set)
            tell(self._ended, "done", "")
        except PullStopped:
            tell(self._ended, "stopped", "")
        except ToolwireError as error:
            tell(self._ended, "failed", str(error))
        except Exception as error:
            log.exception("the download of %s failed", download.name)
            tell(self._ended, "failed", f"The server had an error: {type(error).__name__}.")

    def _progressed(self, download: Download, phase: str, done: int, total: int) -> None:
        download.phase, download.done, download.total = phase, done, total
        self._publish()

    def _ended(self, download: Download, state: Any, error: str) -> None:
        download.state, download.error = state, error
        if state == "done":
            download.done = download.total
            self._use()
        self._publish()

    def _use(self) -> None:
        """Adds all downloaded models to the models that clients can use."""
        catalog, settings = self._web.gateway.catalog, self._web.settings
        new = [replace(one, found=True) for one in embedded() if one.id not in catalog.kinds]
        for model in new:
            catalog.add(model)
        self._web.settings = replace(settings, models=(*settings.models, *new))
        self._web.hub.publish("settings", {})

    def _publish(self) -> None:
        self._web.hub.publish("local", self._state())

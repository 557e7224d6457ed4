"""The provider library: pydantic-ai, imported when a hosted model is first used.

Importing it takes about two seconds, so it happens in a thread, once, and only this module names what is imported. `load` runs in that thread.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from toolwire.backends.base import Batch, frame_tap
from toolwire.backends.hosted.options import PROVIDERS, HostedOptions
from toolwire.backends.hosted.thinking import CallMemory
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Turn

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model, StreamedResponse
    from pydantic_ai.providers import Provider

log = logging.getLogger("toolwire.hosted")
INSTALL = "pip install 'toolwire[hosted]'"
CONNECT_S = 10.0
_opened: ContextVar[list[httpx2.Response]] = ContextVar("_opened")
"""The HTTP answers of the running request."""


def installed() -> bool:
    return find_spec("pydantic_ai") is not None


def missing(what: str, install: str = INSTALL) -> ToolwireError:
    return ToolwireError("backend_unavailable", f"{what} is not installed at the gateway: {install}")


@dataclass(slots=True)
class Loaded:
    """A model of the library's, ready to be asked."""

    options: HostedOptions
    model: Model
    client: httpx2.AsyncClient | None
    secrets: tuple[str, ...]
    entered: bool = False

    @property
    def profile(self) -> Mapping[str, Any]:
        return self.model.profile

    async def run(
        self, turn: Turn, fields: frozenset[str], memory: CallMemory
    ) -> AsyncGenerator[Batch, None]:
        """One run. The library's stream is closed when this is, and with it the connection."""
        from pydantic_ai.exceptions import AgentRunError

        from toolwire.backends.hosted.failures import failure_of
        from toolwire.backends.hosted.read import usage
        from toolwire.backends.hosted.render import Target, render

        provider = self.model.provider
        if not self.entered and provider is not None:
            self.entered = True
            await provider.__aenter__()
        response: StreamedResponse | None = None
        started = False
        opened: list[httpx2.Response] = []
        _opened.set(opened)
        try:
            target = Target(
                self.options, self.profile, fields, self.model.system, self.model.canonical_system
            )
            request = render(turn, target, memory)
            for last in (False, True):
                try:
                    async with aclosing(self._ask(request, memory)) as asked:
                        async for answering, batch in asked:
                            response, started = answering, True
                            if batch:
                                yield batch
                    return
                except Exception as error:
                    if last or started or not _closed_while_idle(error):
                        raise
        except Exception as error:
            failure = failure_of(error, started, self.secrets)
            if failure.kind == "backend" and not isinstance(error, AgentRunError):
                log.exception("the provider library failed for %s", self.options.model)
            yield [*(usage(response) if response is not None else ()), failure]
        finally:
            for one in opened:  # the SDKs leave a stream that is not read to its end to the garbage collector
                await one.aclose()

    async def _ask(
        self, request: Any, memory: CallMemory
    ) -> AsyncGenerator[tuple[StreamedResponse, Batch], None]:
        from pydantic_ai.direct import model_request_stream

        from toolwire.backends.hosted.read import HostedReader

        reader = HostedReader(memory, PROVIDERS[self.options.provider].summaries)
        opened = model_request_stream(
            self.model,
            request.messages,
            model_settings=request.settings,
            model_request_parameters=request.parameters,
            instrument=False,
        )
        tap = frame_tap()
        async with opened as response:
            async for event in response:
                if tap is not None:
                    tap(type(event).__name__, event)
                yield response, reader.feed(event, response)
            yield response, reader.finish(response)

    async def close(self) -> None:
        if self.entered and self.model.provider is not None:
            await self.model.provider.__aexit__(None, None, None)
        if self.client is not None:
            await self.client.aclose()


def load(options: HostedOptions, key: str) -> Loaded:
    """Imports the library and makes the model. Raises `ToolwireError` for what is missing."""
    if not installed():
        raise missing("The provider library")
    row = PROVIDERS[options.provider]
    if row.keys and not key:
        raise ToolwireError(
            "backend_auth",
            f"The gateway has no key for {options.provider}: set api_key, or {row.keys[0]} in its environment.",
        )
    try:
        from pydantic_ai.models import infer_model
        from pydantic_ai.providers import infer_provider_class

        from toolwire.backends.hosted import failures, read, render  # noqa: F401

        made = infer_provider_class(options.provider)
    except ImportError:
        install = (
            INSTALL
            if row.extra in ("anthropic", "google")
            else f"pip install 'pydantic-ai-slim[{row.extra}]'"
        )
        raise missing(f"The SDK of {options.provider}", install) from None
    client = _client(options) if row.client else None
    model = infer_model(options.model, lambda _: _provider(made, options, key, client))
    return Loaded(options, model, client, tuple(filter(None, (key, options.api_key))))


def _provider(
    made: type[Provider[Any]], options: HostedOptions, key: str, client: httpx2.AsyncClient | None
) -> Provider[Any]:
    wanted: dict[str, Any] = {
        "api_key": key or None,
        "base_url": options.base_url or None,
        "http_client": client,
    }
    wanted = {name: value for name, value in wanted.items() if value is not None}
    taken = inspect.signature(made.__init__).parameters
    refused = [name for name in wanted if name not in taken]
    if refused:
        raise ToolwireError(
            "backend_unavailable", f"The provider {options.provider} does not take {' and '.join(refused)}."
        )
    return made(**wanted)


def _client(options: HostedOptions) -> httpx2.AsyncClient:
    import httpx2
    from pydantic_ai.models import create_async_httpx2_client

    client = create_async_httpx2_client(
        timeout=httpx2.Timeout(options.timeout_s, connect=min(CONNECT_S, options.timeout_s)),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=30),
    )

    async def one_user_agent(request: httpx2.Request) -> None:
        # The library and Google's SDK both add theirs, and HTTP servers may refuse a request that has two.
        request.headers["User-Agent"] = request.headers.get_list("User-Agent")[-1]

    async def remember(response: httpx2.Response) -> None:
        _opened.get([]).append(response)

    hooks = client.event_hooks
    hooks["request"].append(one_user_agent)
    hooks["response"].append(remember)
    client.event_hooks = hooks
    return client


def _closed_while_idle(error: BaseException) -> bool:
    """Whether a kept connection turned out to be closed when the request was sent on it: nothing was answered, so it may be sent again, once."""
    from pydantic_ai.exceptions import ModelConnectionError, ModelTimeoutError

    seen = 0
    if not isinstance(error, ModelConnectionError) or isinstance(error, ModelTimeoutError):
        return False
    cause: BaseException | None = error
    while cause is not None and seen < 10:
        if type(cause).__name__ in ("RemoteProtocolError", "WriteError"):
            return True
        cause, seen = cause.__cause__ or cause.__context__, seen + 1
    return False

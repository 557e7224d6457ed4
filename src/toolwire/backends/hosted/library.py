"""A model of pydantic-ai.

Importing this module takes about two seconds, so `backend.load` does it in a thread.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

import httpx2
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import AgentRunError, ModelConnectionError, ModelTimeoutError
from pydantic_ai.models import StreamedResponse, create_async_httpx2_client, infer_model
from pydantic_ai.providers import Provider, infer_provider_class

from toolwire.backends.base import Batch, frame_tap
from toolwire.backends.hosted.options import PROVIDERS, HostedOptions
from toolwire.backends.hosted.read import HostedReader, failure_of, usage
from toolwire.backends.hosted.render import HostedRequest, Target, render
from toolwire.backends.hosted.thinking import CallMemory
from toolwire.core.errors import unavailable
from toolwire.core.turn import Turn

log = logging.getLogger("toolwire.hosted")
CONNECT_S = 10.0
_opened: ContextVar[list[httpx2.Response]] = ContextVar("_opened")


class LibraryModel:
    """Raises `ImportError` if the provider's SDK is not installed."""

    def __init__(self, options: HostedOptions, key: str) -> None:
        provider_class = infer_provider_class(options.provider)
        self._options = options
        self._secrets = tuple(filter(None, (key, options.api_key)))
        self._client = _client(options) if PROVIDERS[options.provider].client else None
        self._model = infer_model(
            options.model, lambda _: _provider(provider_class, options, key, self._client)
        )
        self._entered = False

    @property
    def profile(self) -> Mapping[str, Any]:
        return self._model.profile

    async def run(
        self, turn: Turn, fields: frozenset[str], memory: CallMemory
    ) -> AsyncGenerator[Batch, None]:
        """One run. Closing the generator closes the connection."""
        model = self._model
        if not self._entered and model.provider is not None:
            self._entered = True
            await model.provider.__aenter__()
        response: StreamedResponse | None = None
        opened: list[httpx2.Response] = []
        _opened.set(opened)
        try:
            target = Target(self._options, self.profile, fields, model.system, model.canonical_system)
            request = render(turn, target, memory)
            for last in (False, True):
                try:
                    async with aclosing(self._ask(request, memory)) as batches:
                        async for current, batch in batches:
                            response = current
                            if batch:
                                yield batch
                    return
                except Exception as error:
                    if last or response is not None or not _closed_while_idle(error):
                        raise
        except Exception as error:
            failure = failure_of(error, response is not None, self._secrets)
            if failure.kind == "backend" and not isinstance(error, AgentRunError):
                log.exception("the provider library failed for %s", self._options.model)
            yield [*(usage(response) if response is not None else ()), failure]
        finally:
            for one in opened:  # the SDKs leave unfinished streams to the garbage collector
                await one.aclose()

    async def _ask(
        self, request: HostedRequest, memory: CallMemory
    ) -> AsyncGenerator[tuple[StreamedResponse, Batch], None]:
        reader = HostedReader(memory, PROVIDERS[self._options.provider].summaries)
        stream = model_request_stream(
            self._model,
            request.messages,
            model_settings=request.settings,
            model_request_parameters=request.parameters,
            instrument=False,
        )
        tap = frame_tap()
        async with stream as response:
            async for event in response:
                if tap is not None:
                    tap(type(event).__name__, event)
                yield response, reader.feed(event, response)
            yield response, reader.finish(response)

    async def close(self) -> None:
        if self._entered and self._model.provider is not None:
            await self._model.provider.__aexit__(None, None, None)
        if self._client is not None:
            await self._client.aclose()


def _provider(
    provider_class: type[Provider[Any]], options: HostedOptions, key: str, client: httpx2.AsyncClient | None
) -> Provider[Any]:
    given = {"api_key": key or None, "base_url": options.base_url or None, "http_client": client}
    given = {name: value for name, value in given.items() if value is not None}
    taken = inspect.signature(provider_class.__init__).parameters
    refused = [name for name in given if name not in taken]
    if refused:
        problem = f"The provider {options.provider} does not take {' and '.join(refused)}."
        raise unavailable(problem)
    return provider_class(**given)


def _client(options: HostedOptions) -> httpx2.AsyncClient:
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
    """Whether the provider had closed the kept connection: then the request may be sent again, once."""
    if not isinstance(error, ModelConnectionError) or isinstance(error, ModelTimeoutError):
        return False
    cause: BaseException | None = error
    for _ in range(10):
        if cause is None:
            break
        if type(cause).__name__ in ("RemoteProtocolError", "WriteError"):
            return True
        cause = cause.__cause__ or cause.__context__
    return False

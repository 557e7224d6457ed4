"""A model of pydantic-ai.

The import of this module takes about two seconds, so `backend.load` imports it in a thread.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx2
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import AgentRunError, ModelConnectionError, ModelTimeoutError
from pydantic_ai.models import create_async_httpx2_client, infer_model
from pydantic_ai.providers import Provider, infer_provider_class

from toolwire.backends.base import Batch, frame_tap
from toolwire.backends.hosted.options import PROVIDERS, HostedOptions
from toolwire.backends.hosted.read import HostedReader, failure_of, usage
from toolwire.backends.hosted.render import HostedRequest, Target, render
from toolwire.backends.hosted.thinking import CallMemory
from toolwire.core.capabilities import Capabilities
from toolwire.core.errors import ToolwireError, unavailable
from toolwire.core.events import Failure
from toolwire.core.turn import Turn

if TYPE_CHECKING:
    from toolwire.backends.hosted.messages import MessagesModel

log = logging.getLogger("toolwire.hosted")
CONNECT_S = 10.0
_opened: ContextVar[list[httpx2.Response]] = ContextVar("_opened")


class LibraryModel:
    """A model of pydantic-ai at one provider.

    Creating it raises `ImportError` if the provider's SDK is not installed.
    """

    def __init__(self, options: HostedOptions, key: str) -> None:
        provider_class = infer_provider_class(options.provider)
        self._options = options
        self._secrets = tuple(filter(None, (key, options.api_key)))
        self._client = _client(options) if PROVIDERS[options.provider].client else None
        self._model = infer_model(
            options.model, lambda _: _provider(provider_class, options, key, self._client)
        )
        self._entered = False
        self._messages = self._messages_model() if PROVIDERS[options.provider].speaks else None

    def _messages_model(self) -> MessagesModel:
        from toolwire.backends.hosted.messages import MessagesModel

        assert self._model.provider is not None
        options = self._options
        return MessagesModel(self._model.provider.client, options.name, self._secrets, options.timeout_s)

    @property
    def profile(self) -> Mapping[str, Any]:
        return self._model.profile

    async def run(self, turn: Turn, able: Capabilities, memory: CallMemory) -> AsyncGenerator[Batch, None]:
        """Runs a turn. Closing the generator closes the connection."""
        await self._enter()
        begun = False
        opened: list[httpx2.Response] = []
        _opened.set(opened)
        try:
            ask = self._asking(turn, able, memory)
            for last in (False, True):
                try:
                    async with aclosing(ask()) as batches:
                        async for batch in batches:
                            begun = True
                            if batch:
                                yield batch
                    return
                except Exception as error:
                    if last or begun or not _closed_while_idle(error):
                        raise
        except Exception as error:
            yield [self._failure(error, begun)]
        finally:
            for one in opened:  # the SDKs leave unfinished streams to the garbage collector
                await one.aclose()

    async def count(self, turn: Turn, able: Capabilities, memory: CallMemory) -> int | None:
        """Returns the number of input tokens of the turn; None if Toolwire cannot ask the provider for it."""
        if self._messages is None:
            return None
        await self._enter()
        try:
            if _is_spoken(turn, able):
                return await self._messages.count(turn)
            request = render(turn, self._target(able), memory)
            counted = await self._model.count_tokens(request.messages, request.settings, request.parameters)
            return counted.input_tokens
        except Exception as error:
            raise ToolwireError.of(self._failure(error, begun=False)) from None

    async def _enter(self) -> None:
        if not self._entered and self._model.provider is not None:
            self._entered = True
            await self._model.provider.__aenter__()

    def _target(self, able: Capabilities) -> Target:
        model = self._model
        return Target(self._options, self.profile, able.fields, model.system, model.canonical_system)

    def _failure(self, error: Exception, begun: bool) -> Failure:
        failure = failure_of(error, begun, self._secrets)
        if failure.kind == "backend" and not isinstance(error, AgentRunError | ToolwireError):
            log.exception("the provider library failed for %s", self._options.model)
        return failure

    def _asking(
        self, turn: Turn, able: Capabilities, memory: CallMemory
    ) -> Callable[[], AsyncGenerator[Batch, None]]:
        """Returns a function that sends the request once and yields the batches of its answer.

        The first batch means that the answer has begun. This batch may be empty.
        """
        if self._messages is not None and _is_spoken(turn, able):
            return partial(self._messages.ask, turn)
        return partial(self._ask, render(turn, self._target(able), memory), memory)

    async def _ask(self, request: HostedRequest, memory: CallMemory) -> AsyncGenerator[Batch, None]:
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
            try:
                async for event in response:
                    if tap is not None:
                        tap(type(event).__name__, event)
                    yield reader.feed(event, response)
                yield reader.finish(response)
            except Exception:
                if counted := usage(response):
                    yield counted
                raise

    async def close(self) -> None:
        if self._entered and self._model.provider is not None:
            await self._model.provider.__aexit__(None, None, None)
        if self._client is not None:
            await self._client.aclose()


def _is_spoken(turn: Turn, able: Capabilities) -> bool:
    """Whether the client and the provider use the same API.

    The provider then gets the client's own request body.
    """
    return turn.body is not None and turn.api in able.speaks


def _provider(
    provider_class: type[Provider[Any]], options: HostedOptions, key: str, client: httpx2.AsyncClient | None
) -> Provider[Any]:
    given = {"api_key": key or None, "base_url": options.base_url or None, "http_client": client}
    given = {name: value for name, value in given.items() if value is not None}
    taken = inspect.signature(provider_class.__init__).parameters
    refused = [name for name in given if name not in taken]
    if refused:
        problem = f"The provider {options.provider} does not support the settings: {', '.join(refused)}."
        raise unavailable(problem)
    return provider_class(**given)


def _client(options: HostedOptions) -> httpx2.AsyncClient:
    client = create_async_httpx2_client(
        timeout=httpx2.Timeout(options.timeout_s, connect=min(CONNECT_S, options.timeout_s)),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=30),
    )

    async def one_user_agent(request: httpx2.Request) -> None:
        # pydantic-ai and Google's SDK both add this header, and some servers refuse a request that has two.
        request.headers["User-Agent"] = request.headers.get_list("User-Agent")[-1]

    async def remember(response: httpx2.Response) -> None:
        _opened.get([]).append(response)

    hooks = client.event_hooks
    hooks["request"].append(one_user_agent)
    hooks["response"].append(remember)
    client.event_hooks = hooks
    return client


def _closed_while_idle(error: BaseException) -> bool:
    """Whether the request failed because the provider had closed an idle connection.

    Such a request may be sent once more.
    """
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

"""One model at an OpenAI-compatible server.

- All models share the connections (`transport.py`). They use no cookies, follow no redirects, and use a proxy
  only if the option `proxy_from_env` is set.
- The events of each network read become one batch.
- Closing the iterator of `run` closes the connection at once, so that the server stops generating.
- If the client does not request a stream, Toolwire requests a single JSON body from the server. This costs
  less than a stream.
- The kind of server is identified before the first turn. If the server refuses tools, or the schema or
  grammar that constrains calls, the backend remembers this, and the turn fails with `tools_unsupported`. The
  gateway then plans the turn again with another strategy.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import aiohttp
from yarl import URL

from toolwire.backends.base import Batch, FrameTap, frame_tap
from toolwire.backends.openai import context, ollama
from toolwire.backends.openai.discover import ServerProbe, facts_of, identify, list_models
from toolwire.backends.openai.failures import (
    TransportFault,
    error_message,
    http_failure,
    presentable,
    transport_failure,
)
from toolwire.backends.openai.http1 import Request
from toolwire.backends.openai.options import OpenAIOptions
from toolwire.backends.openai.profiles import ServerProfile
from toolwire.backends.openai.read import AnswerReader, PrefillEcho, prefill_of
from toolwire.backends.openai.render import Body, render
from toolwire.backends.openai.strategy import FORGET_S, STATUSES, Refused, ToolSupport, refused
from toolwire.backends.openai.transport import Transport, UpstreamReply, decoded, shared_transport
from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure
from toolwire.core.turn import Turn
from toolwire.wire.sse import encode

END_MARK_S = 5.0
"""How long Toolwire waits for usage and the end mark (`[DONE]`) after the finish reason."""
READY_S = 2.0
ASKED = ("ollama", "lmstudio")
"""Kinds of servers from which Toolwire always requests the context length of a model."""
ASK_AGAIN_S = 10.0
"""After this time, Toolwire again asks a server that did not say what it is, or what its model can do."""
BODY_LIMIT = 64 * 1024 * 1024
ERROR_BODY_LIMIT = 64 * 1024


class OpenAIBackend:
    """A configured model.

    `options`: the table `[models.ID]`. Raises `ValueError` if an option is invalid.
    """

    def __init__(self, id: str, options: Mapping[str, Any] | OpenAIOptions) -> None:
        self.id = id
        self.options = options if isinstance(options, OpenAIOptions) else OpenAIOptions.parse(options)
        self.model = self.options.model or id
        base = self.options.base_url.rstrip("/")
        self._models_url = URL(base + "/models")
        self._headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "toolwire",
            **self.options.auth_headers,
        }
        self._secrets = tuple(filter(None, (self.options.api_key, *self.options.headers.values())))
        url, times = URL(base + "/chat/completions"), (self.options.connect_timeout_s, self.options.timeout_s)
        self._request = Request(url, self._headers, *times)
        own = URL(base.removesuffix("/v1") + "/api/chat")
        self._ollama_request = Request(own, self._headers, *times)
        self._window = 0  # the context length of the last request to Ollama
        self._transport: Transport | None = None
        self.support = ToolSupport(self.options, self.model, time.monotonic, self._offers)
        self._ask_after = 0.0
        self._asking: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    strategy: Strategy
    capabilities: Capabilities

    def _offers(self, support: ToolSupport) -> None:
        self.strategy, self.capabilities = support.strategy, support.capabilities

    @property
    def profile(self) -> ServerProfile:
        """The profile of the server, as far as it is known, without features that the server refused."""
        return self.support.profile

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        """Runs the turn. The last event is a `Finish` or `Failure`."""
        profile = self.support.profile
        rendered = render(turn, self.model, self.options, profile)
        asked = _asked(turn, rendered) if turn.tools or turn.constraint is not None else frozenset()
        own_api = profile.name == "ollama" and self.support.facts.own_api
        echo = PrefillEcho(prefill_of(turn)) if profile.prefill else None
        reader: AnswerReader | ollama.OllamaReader | None = None
        response: UpstreamReply | None = None
        tap = frame_tap()
        try:
            least = await self._fitting(rendered) if profile.drops_prompt else 0
            body = encode(self._ollama_body(rendered) if own_api else rendered)
            if tap is not None:
                tap("sent", body)
            request = self._ollama_request if own_api else self._request
            response = await self._connected().post(request, body)
            response = decoded(response) if "content-encoding" in response.headers else response
            if response.status != 200:
                yield [await self._failed(response, asked, tap)]
            else:
                reader, streams = self._reader(turn, own_api), _is_stream(response, turn)
                size, last_by = 0, None
                while not reader.ended:
                    if not streams:
                        batch = reader.read_body(await _read_body(response, tap))
                    else:
                        if not reader.finishing:
                            block = await response.read()
                        else:
                            last_by = last_by or time.monotonic() + END_MARK_S
                            block = await _read_until(response, last_by)
                        if not turn.stream:
                            size = _checked_size(size + len(block))
                        if tap is not None and block:
                            tap("read", block)
                        batch = reader.feed(block) if block else reader.finish()
                    if batch:
                        if least or asked:
                            batch, asked = self._checked(batch, least, asked), frozenset()
                        yield batch if echo is None else echo.feed(batch)
        except (TransportFault, ToolwireError) as error:
            failure = transport_failure(error, started=response is not None)
            if reader is None:
                yield [failure]
            elif not reader.ended:
                yield reader.fail(failure)
        finally:
            if response is not None:
                response.release(whole=reader is not None and reader.whole)

    def _reader(self, turn: Turn, own_api: bool) -> AnswerReader | ollama.OllamaReader:
        reader = AnswerReader(turn, self.options.cumulative_arguments, self._secrets)
        return ollama.OllamaReader(reader) if own_api else reader

    async def _fitting(self, rendered: Body) -> int:
        """Returns the smallest number of tokens that the prompt can have.

        If the prompt does not fit into the context window, asks the server for the window again, because the
        model may have been loaded with a longer one in the meantime. Raises an error if the prompt still does
        not fit.
        """
        try:
            return context.fitting(rendered, self.options.context or self.support.facts.window)
        except ToolwireError:
            if self.options.context or not await self._learn():
                raise
            return context.fitting(rendered, self.support.facts.window)

    def _ollama_body(self, rendered: Body) -> Body:
        """Returns the request for Ollama's own API, with a context length that suffices for the request.

        The context length is never reduced, because Ollama loads the model again for each change.
        """
        facts, fixed = self.support.facts, self.options.context
        current = max(self._window, facts.loaded)
        self._window = fixed or context.window_for(context.needed(rendered), current, facts.window)
        return ollama.request(rendered, self._window)

    aliases: tuple[str, ...] = ()

    def alias(self, name: str) -> str | None:
        return None

    async def prepare(self) -> None:
        """Identifies the server, and asks what the model can do if the strategy depends on the answer."""
        if self.support.refused:
            self.support.refresh()
        if time.monotonic() < self._ask_after:
            return
        loop = asyncio.get_running_loop()
        if self._asking is None or self._asking[0] is not loop:
            self._asking = loop, asyncio.Lock()
        async with self._asking[1]:
            if time.monotonic() >= self._ask_after:
                self._ask_after = time.monotonic() + (FORGET_S if await self._learn() else ASK_AGAIN_S)

    async def _learn(self) -> bool:
        """Identifies the server, and asks it what the model can do.

        Returns False if the server did not answer.
        """
        probe = ServerProbe(self.options.base_url, self._connected().session, self.options.auth_headers)
        found = await identify(probe) if self.options.profile == "auto" else self.options.server
        if found is None:
            return False
        decides = self.options.tools in ("auto", "constrained") or found.name in ASKED
        facts = await facts_of(probe, found, self.model) if decides else None
        self.support.learn(found, facts)
        return facts is not None or not decides

    async def ready(self) -> bool:
        """Returns True if the server answers and accepts the API key.

        Requests only the list of models, so that the server generates nothing.
        """
        try:
            async with self._connected().session.get(
                self._models_url,
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=READY_S),
                allow_redirects=False,
            ) as response:
                return response.status < 500 and response.status not in (401, 403)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.leave(self)

    def _connected(self) -> Transport:
        if self._transport is None or self._transport.loop is not asyncio.get_running_loop():
            self._transport = shared_transport(self.options.proxy_from_env, self)
        return self._transport

    async def _failed(
        self, response: UpstreamReply, asked: frozenset[Refused], tap: FrameTap | None
    ) -> Failure:
        """Returns the failure for a response with a status other than 200."""
        body = b""
        try:
            async with asyncio.timeout(END_MARK_S):
                while len(body) < ERROR_BODY_LIMIT and (more := await response.read()):
                    body += more
        except (TransportFault, TimeoutError):
            body = b""
        body = body[:ERROR_BODY_LIMIT]
        if tap is not None:
            tap(f"status {response.status}", body)
        failure = http_failure(response.status, response.headers, body, self._secrets)
        if response.status not in STATUSES:
            return failure
        return self._refusal(failure, error_message(body), asked, body)

    def _checked(self, batch: Batch, least: int, asked: frozenset[Refused]) -> Batch:
        """Returns a batch of a response with status 200, or a failure in its place.

        The batch becomes a failure if it reports fewer prompt tokens than `least`: the server has then not
        read the whole prompt. A failure that refuses one of the features `asked` becomes `tools_unsupported`.
        """
        if least:
            batch = context.check_read(batch, least)
        first = batch[0] if len(batch) == 1 else None
        if not asked or not isinstance(first, Failure):
            return batch
        named = json.dumps({"message": first.message, "param": first.param, "code": first.code}).encode()
        return [self._refusal(first, first.message, asked, named)]

    def _refusal(self, failure: Failure, message: str, asked: frozenset[Refused], body: bytes) -> Failure:
        """Returns `tools_unsupported` if the server refuses a feature that another strategy can avoid.

        Also remembers the refusal of this feature. Any other failure is returned unchanged.
        """
        what = refused(message, asked, body.decode("utf-8", "replace").strip()) if asked else None
        if what is None or not self.support.has_fallback(what):
            return failure
        self.support.refuse(what)
        return Failure("tools_unsupported", presentable(message, self._secrets))


def _asked(turn: Turn, body: Body) -> frozenset[Refused]:
    """Returns the features of this request for which a refusal can lead to another strategy."""
    if turn.constraint is not None:
        return frozenset({"constraint"})
    if "tools" not in body:
        return frozenset()
    choice = body.get("tool_choice", "auto")
    if choice in ("auto", "none"):
        return frozenset({"tools"})
    return frozenset({"tools", "allowed" if "allowed_tools" in choice else "choice"})


# --- reading ---


def _is_stream(response: UpstreamReply, turn: Turn) -> bool:
    """Returns True if the body of a response is a stream.

    It is a stream if its content type says so, or if a stream was requested and the content type is not JSON.
    """
    media = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return media == "text/event-stream" or (turn.stream and media != "application/json")


async def _read_until(response: UpstreamReply, until: float) -> bytes:
    """Reads the next bytes after the finish reason, waiting at most until the time `until`.

    Returns no bytes on an error or timeout, because the answer is complete without them.
    """
    try:
        async with asyncio.timeout(until - time.monotonic()):
            return await response.read()
    except (TransportFault, TimeoutError):
        return b""


async def _read_body(response: UpstreamReply, tap: FrameTap | None) -> bytes:
    body = await response.read()  # usually the whole body
    if not response.ended:
        blocks, size = [body], len(body)
        while block := await response.read():
            blocks.append(block)
            size = _checked_size(size + len(block))
        body = b"".join(blocks)
    if tap is not None:
        tap("body", body)
    return body


def _checked_size(size: int) -> int:
    """Returns the size of a body that is kept in memory. Raises an error if it exceeds `BODY_LIMIT`."""
    if size > BODY_LIMIT:
        raise ToolwireError("backend", f"The upstream server's answer is larger than {BODY_LIMIT} bytes.")
    return size


# --- all models of a server ---


class OpenAISource:
    """All models of a server, for settings with `model = "*"`. `options`: the table `[models.ID]`."""

    def __init__(self, id: str, options: Mapping[str, Any] | OpenAIOptions) -> None:
        self.id = id
        self.options = options if isinstance(options, OpenAIOptions) else OpenAIOptions.parse(options)

    async def names(self) -> Sequence[str]:
        options = self.options
        async with aiohttp.ClientSession(trust_env=options.proxy_from_env) as session:
            probe = ServerProbe(options.base_url, session, options.auth_headers)
            profile = options.server if options.profile != "auto" else await identify(probe)
            found = [] if profile is None else await list_models(probe, profile)
        if not found:
            nothing = f"The server at {options.base_url} did not list any model."
            raise ToolwireError("backend_unavailable", nothing)
        return [model.id for model in found]

    def model(self, name: str) -> OpenAIBackend:
        return OpenAIBackend(f"{self.id}/{name}", replace(self.options, model=name))

    async def close(self) -> None:
        pass


async def answers(base_url: str, within_s: float) -> bool:
    """Returns True if a server at this address lists its models within `within_s` seconds."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(within_s)) as session:
        try:
            return "data" in await ServerProbe(base_url, session).json(base_url + "/models")
        except ValueError:  # not an address
            return False

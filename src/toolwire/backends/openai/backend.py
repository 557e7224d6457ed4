"""The connection to an OpenAI-compatible server.

- The connections are the carrier's, shared by all models; no cookies, no redirects, no proxies unless asked for.
- One batch of events per network read.
- Closing the iterator closes the connection at once, so that the server stops generating.
- A pooled connection that the server has closed in the meantime is tried again once, on a fresh connection, as long as no answer has begun.
- A client that does not stream gets the answer in one upstream body, which costs less.
- The kind of server is found out before the first turn. A refusal of tools, or of what holds the decoder to them, is remembered, and said by the one
  event `tools_unsupported`, so that the turn is planned anew.
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
from toolwire.backends.openai.carrier import Carrier, Reply, carrier, decoded
from toolwire.backends.openai.direct import Request
from toolwire.backends.openai.discover import Asker, facts_of, identify, list_models
from toolwire.backends.openai.failures import TransportFault, http_failure, presentable, transport_failure, words_of
from toolwire.backends.openai.options import OpenAIOptions
from toolwire.backends.openai.profiles import Profile
from toolwire.backends.openai.read import AnswerReader, Echo, given_beginning, plain
from toolwire.backends.openai.render import Body, render
from toolwire.backends.openai.strategy import FORGET_S, STATUSES, Refused, Ways, refused
from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure
from toolwire.core.turn import Turn
from toolwire.wire.sse import encode

USER_AGENT = "toolwire"
END_MARK_S = 5.0
"""How long usage and the end mark are awaited once the finish reason has come, whatever else comes."""
READY_S = 2.0
ASK_AGAIN_S = 10.0
"""How long a server that did not say who it is, or what its model can do, is not asked again."""
BODY_LIMIT = 64 * 1024 * 1024
ERROR_BODY_LIMIT = 64 * 1024


class OpenAIBackend:
    """One configured model at an OpenAI-compatible server. `options` is the model's table; a bad one raises `ValueError`."""

    def __init__(self, id: str, options: Mapping[str, Any] | OpenAIOptions) -> None:
        self.id = id
        self.options = options if isinstance(options, OpenAIOptions) else OpenAIOptions.parse(options)
        self.model = self.options.model or id
        base = self.options.base_url.rstrip("/")
        self._chat_url = URL(base + "/chat/completions")
        self._models_url = URL(base + "/models")
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": USER_AGENT}
        if self.options.api_key:
            self._headers["Authorization"] = f"Bearer {self.options.api_key}"
        self._headers.update(self.options.headers)
        self._secrets = tuple(filter(None, (self.options.api_key, *self.options.headers.values())))
        self._request = Request(self._chat_url, self._headers, self.options.connect_timeout_s, self.options.timeout_s)
        self._carrier: Carrier | None = None
        self.ways = Ways(self.options, self.model, time.monotonic)
        self._ask_after = 0.0
        self._asking: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    @property
    def strategy(self) -> Strategy:
        return self.ways.strategy

    @property
    def capabilities(self) -> Capabilities:
        return self.ways.capabilities

    @property
    def profile(self) -> Profile:
        """The kind of server, as far as it is known."""
        return self.ways.profile

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        """Runs the turn; ends with exactly one `Finish` or `Failure`."""
        profile = self.ways.profile
        rendered = render(turn, self.model, self.options, profile)
        body, asked = encode(rendered), _asked(turn, rendered)
        echo = Echo(given_beginning(turn)) if profile.prefill else None
        reader: AnswerReader | None = None
        response: Reply | None = None
        tap = frame_tap()
        if tap is not None:
            tap("sent", body)
        try:
            response = await self._way().post(self._chat_url, self._headers, self._request, body)
            if "content-encoding" in response.headers:
                response = decoded(response)
            if response.status != 200:
                yield [await self._failed(response, asked, tap)]
            elif _is_stream(response, turn):
                reader = self._reader(turn)
                blocks = _Blocks(response, reader, tap, limit=None if turn.stream else BODY_LIMIT)
                while not reader.ended:
                    batch = blocks.read(await (blocks.last() if reader.finishing else response.read()))
                    if batch:
                        if asked:
                            batch, asked = self._healed(batch, asked), frozenset()
                        yield batch if echo is None else echo.feed(batch)
            else:
                whole = await _read_body(response, tap)
                batch = plain(whole) or self._healed(self._reader(turn).read_body(whole), asked)
                yield batch if echo is None else echo.feed(batch)
        except (TransportFault, ToolwireError) as error:
            failure = transport_failure(error, started=response is not None)
            if reader is None:
                yield [failure]
            elif not reader.ended:
                yield reader.fail(failure)
        finally:
            if response is not None:
                response.release()

    def _reader(self, turn: Turn) -> AnswerReader:
        return AnswerReader(turn, self.options.cumulative_arguments, self._secrets)

    aliases: tuple[str, ...] = ()

    def alias(self, name: str) -> str | None:
        return None

    async def prepare(self) -> None:
        """Finds out what kind of server it is, and what it says of the model, where that decides anything."""
        if time.monotonic() < self._ask_after:
            return
        loop = asyncio.get_running_loop()
        if self._asking is None or self._asking[0] is not loop:
            self._asking = loop, asyncio.Lock()
        async with self._asking[1]:
            if time.monotonic() >= self._ask_after:
                self._ask_after = time.monotonic() + (FORGET_S if await self._learn() else ASK_AGAIN_S)

    async def _learn(self) -> bool:
        """Whether the server said all that was asked."""
        asker = Asker(self.options.base_url, self.options.api_key, self._way().session, self.options.headers)
        found = await identify(asker) if self.options.profile == "auto" else self.options.server
        if found is None:
            return False
        decides = self.options.tools in ("auto", "constrained")
        facts = await facts_of(asker, found, self.model) if decides else None
        self.ways.learn(found, facts)
        return facts is not None or not decides

    async def ready(self) -> bool:
        """Whether the server answers and takes the key; it is not asked to generate anything."""
        try:
            timeout = aiohttp.ClientTimeout(total=READY_S)
            async with self._way().session.get(self._models_url, headers=self._headers, timeout=timeout, allow_redirects=False) as response:
                return response.status < 500 and response.status not in (401, 403)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def close(self) -> None:
        way, self._carrier = self._carrier, None
        if way is not None:
            await way.leave(self)

    def _way(self) -> Carrier:
        if self._carrier is None or not self._carrier.usable():
            self._carrier = carrier(self.options.proxy_from_env)
            self._carrier.users.add(self)
        return self._carrier

    async def _failed(self, response: Reply, asked: frozenset[Refused], tap: FrameTap | None) -> Failure:
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
        return self._refusal(failure, words_of(body), asked, body) if response.status in STATUSES else failure

    def _healed(self, batch: Batch, asked: frozenset[Refused]) -> Batch:
        """The first batch of an answer; an error that stands in its place may be a refusal too."""
        first = batch[0] if len(batch) == 1 else None
        if not asked or not isinstance(first, Failure):
            return batch
        named = json.dumps({"message": first.message, "param": first.param, "code": first.code}).encode()
        return [self._refusal(first, first.message, asked, named)]

    def _refusal(self, failure: Failure, words: str, asked: frozenset[Refused], body: bytes) -> Failure:
        """The failure as it is, or, where it refuses what another strategy can do without, the sign to take that one."""
        what = refused(words, asked, body.decode("utf-8", "replace").strip()) if asked else None
        if what is None or not self.ways.heals(what):
            return failure
        self.ways.refuse(what)
        return Failure("tools_unsupported", presentable(words, self._secrets))


def _asked(turn: Turn, body: Body) -> frozenset[Refused]:
    """What of this request a server may refuse, and another way can do without."""
    if turn.constraint is not None:
        return frozenset({"constraint"})
    if "tools" not in body:
        return frozenset()
    choice = body.get("tool_choice", "auto")
    if isinstance(choice, dict) and "allowed_tools" in choice:
        return frozenset({"tools", "allowed"})
    return frozenset({"tools", "choice"}) if choice not in ("auto", "none") else frozenset({"tools"})


# --- reading -----------------------------------------------------------------------------------------------------------------------------------


def _is_stream(response: Reply, turn: Turn) -> bool:
    """Whether the answer comes in pieces: what says that it does, and what was asked to and does not say that it is one body."""
    media = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return media == "text/event-stream" or (turn.stream and media != "application/json")


class _Blocks:
    """The blocks of a stream, and what becomes of each. A `limit` of bytes holds where the answer is not passed on as it comes."""

    __slots__ = ("_left", "_reader", "_response", "_tap", "_until")

    def __init__(self, response: Reply, reader: AnswerReader, tap: FrameTap | None, limit: int | None) -> None:
        self._response, self._reader, self._tap, self._left = response, reader, tap, limit
        self._until: float | None = None

    async def last(self) -> bytes:
        """What may still follow the finish reason is not awaited for long, and is not worth a failure."""
        now = asyncio.get_running_loop().time()
        if self._until is None:
            self._until = now + END_MARK_S
        if now >= self._until:
            return b""
        try:
            async with asyncio.timeout_at(self._until):
                return await self._response.read()
        except (TransportFault, TimeoutError):
            return b""

    def read(self, block: bytes) -> Batch:
        if not block:
            return self._reader.finish()
        if self._left is not None:
            self._left -= len(block)
            if self._left < 0:
                raise _too_large()
        if self._tap is not None:
            self._tap("read", block)
        return self._reader.feed(block)


async def _read_body(response: Reply, tap: FrameTap | None) -> bytes:
    blocks: list[bytes] = []
    size = 0
    while (rest := response.rest()) is None:
        blocks.append(await response.read())
        size += len(blocks[-1])
        if size > BODY_LIMIT:
            raise _too_large()
    body = b"".join((*blocks, rest)) if blocks else rest
    if tap is not None:
        tap("body", body)
    return body


def _too_large() -> ToolwireError:
    return ToolwireError("backend", f"The upstream server's answer is larger than {BODY_LIMIT} bytes.")


# --- source ------------------------------------------------------------
#
# Every model of an OpenAI-compatible server: `model = "*"`.


class OpenAISource:
    """`options` is the model's table, with `*` for the name."""

    def __init__(self, id: str, options: Mapping[str, Any] | OpenAIOptions) -> None:
        self.id = id
        self.options = options if isinstance(options, OpenAIOptions) else OpenAIOptions.parse(options)

    async def names(self) -> Sequence[str]:
        async with aiohttp.ClientSession(trust_env=self.options.proxy_from_env, headers=self.options.headers) as session:
            asker = Asker(self.options.base_url, self.options.api_key, session)
            profile = self.options.server if self.options.profile != "auto" else await identify(asker)
            found = await list_models(self.options.base_url, self.options.api_key, profile, session) if profile is not None else []
        if not found:
            raise ToolwireError("backend_unavailable", f"The server at {self.options.base_url} did not list any model.")
        return [model.id for model in found]

    def model(self, name: str) -> OpenAIBackend:
        return OpenAIBackend(f"{self.id}/{name}", replace(self.options, model=name))

    async def close(self) -> None:
        pass


async def answers(base_url: str, within_s: float) -> bool:
    """Whether a server with models listens at this address."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(within_s)) as session:
        return "data" in await Asker(base_url, "", session).json(base_url + "/models")

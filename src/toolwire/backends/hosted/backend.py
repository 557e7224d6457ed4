"""A model at a hosted provider.

- The provider is always asked to stream, whatever the client asked: one path, an answer that can be cancelled, and no limit on its length.
- The library loads when the first turn comes (`prepare`), in a thread. Until then capabilities are what the provider's row says.
- Closing the iterator closes the connection, so that the provider stops generating.
- Nothing is tried again, but for a kept connection that had been closed: clients have their own patience.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import fields, replace
from typing import Any, NamedTuple

import aiohttp

from toolwire.backends.base import Batch
from toolwire.backends.hosted import library
from toolwire.backends.hosted.options import PROVIDERS, HostedOptions, capabilities
from toolwire.backends.hosted.thinking import CallMemory
from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Turn


class HostedBackend:
    """One configured model. `options` is the model's table; a bad one raises `ValueError`."""

    aliases: tuple[str, ...] = ()

    def __init__(self, id: str, options: Mapping[str, Any] | HostedOptions) -> None:
        self.id = id
        self.options = options if isinstance(options, HostedOptions) else parsed(options)
        self.memory = CallMemory()
        self._row = PROVIDERS[self.options.provider]
        self._loaded: library.Loaded | None = None
        self._loading = asyncio.Lock()
        self._described: tuple[Strategy, Capabilities] = self._describe({})

    def _describe(self, profile: Mapping[str, Any]) -> tuple[Strategy, Capabilities]:
        native = self.options.tools == "native" or (
            self.options.tools == "auto" and bool(profile.get("supports_tools", True))
        )
        thinks = self.options.thinking not in ("", "off") or self.options.thinking_budget > 0
        able = capabilities(self._row, profile, native=native, thinks=thinks)
        return ("native" if native else "emulated"), replace(able, dialects=self.options.dialects or ())

    @property
    def strategy(self) -> Strategy:
        return self._described[0]

    @property
    def capabilities(self) -> Capabilities:
        return self._described[1]

    def alias(self, name: str) -> str | None:
        return None

    def key(self) -> str:
        """The provider's key: the option, else its usual place in the environment."""
        return self.options.api_key or next(
            (key for name in self._row.keys if (key := os.environ.get(name, "").strip())), ""
        )

    async def prepare(self) -> None:
        await self._load()

    async def _load(self) -> library.Loaded:
        if self._loaded is None:
            async with self._loading:
                if self._loaded is None:
                    loaded = await asyncio.to_thread(library.load, self.options, self.key())
                    self._described = self._describe(loaded.profile)
                    self._loaded = loaded
        return self._loaded

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        """Runs the turn; ends with exactly one `Finish` or `Failure`. Raises `ToolwireError` when the provider can not be asked at all."""
        loaded = await self._load()
        async with aclosing(loaded.run(turn, self.capabilities.fields, self.memory)) as batches:
            async for batch in batches:
                yield batch

    async def ready(self) -> bool:
        """Whether library and key are there. The provider itself is not asked: every look would count as a request."""
        return library.installed() and (bool(self.key()) or not self._row.keys)

    async def close(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            await loaded.close()


def parsed(given: Mapping[str, Any]) -> HostedOptions:
    known = {one.name for one in fields(HostedOptions)}
    for key in given:
        if key not in known:
            raise ValueError(f"unknown key {key}; known: {', '.join(sorted(known))}")
    return HostedOptions(**given)


# --- source ------------------------------------------------------------
#
# Every model of a hosted provider: `model = "anthropic:*"`. The list is asked for with one small request,
# without the provider library.

LIST_S = 5.0
Json = Any


class ModelListing(NamedTuple):
    """Where a provider lists its models, how it is asked, and how the answer names those that write."""

    base_url: str
    path: str
    headers: Callable[[str], Mapping[str, str]]
    names: Callable[[Json], list[str]]


def _claude_names(body: Json) -> list[str]:
    return [str(entry["id"]) for entry in body["data"]]


def _gemini_names(body: Json) -> list[str]:
    writers = (
        entry for entry in body["models"] if "generateContent" in entry.get("supportedGenerationMethods", ())
    )
    return [str(entry["name"]).removeprefix("models/") for entry in writers]


LISTINGS: dict[str, ModelListing] = {
    "anthropic": ModelListing(
        "https://api.anthropic.com",
        "/v1/models?limit=1000",
        lambda key: {"x-api-key": key, "anthropic-version": "2023-06-01"},
        _claude_names,
    ),
    "google": ModelListing(
        "https://generativelanguage.googleapis.com",
        "/v1beta/models?pageSize=1000",
        lambda key: {"x-goog-api-key": key},
        _gemini_names,
    ),
}


class HostedSource:
    """`options` is the model's table, with `*` for the name."""

    def __init__(self, id: str, options: Mapping[str, Any] | HostedOptions) -> None:
        self.id = id
        self.options = options if isinstance(options, HostedOptions) else parsed(options)
        if self.options.provider not in LISTINGS:
            raise ValueError(
                f"model: the models of {self.options.provider} are not listed; name one, or use {' or '.join(LISTINGS)}"
            )

    async def names(self) -> Sequence[str]:
        listing = LISTINGS[self.options.provider]
        key = HostedBackend(self.id, self.options).key()
        url = (self.options.base_url.rstrip("/") or listing.base_url) + listing.path
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(LIST_S), trust_env=True) as session,
                session.get(url, headers=listing.headers(key), allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    raise ToolwireError(
                        "backend", f"{self.options.provider} did not list its models (HTTP {answer.status})."
                    )
                return listing.names(await answer.json(content_type=None))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError, AttributeError):
            raise ToolwireError(
                "backend_unavailable", f"{self.options.provider} did not list its models."
            ) from None

    def model(self, name: str) -> HostedBackend:
        return HostedBackend(
            f"{self.id}/{name}", replace(self.options, model=f"{self.options.provider}:{name}")
        )

    async def close(self) -> None:
        pass

"""A model at a hosted provider, and all models of a provider.

- Toolwire always requests a stream from the provider, even if the client did not. So there is only one code
  path, every request can be cancelled, and answers can have any length.
- The library pydantic-ai is loaded with the first turn. Until then, the capabilities are those that Toolwire
  knows of the provider.
- Toolwire does not retry requests, because clients have their own retries. The only exception is a request on
  an idle connection that the provider had already closed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp

from toolwire.backends.base import Batch
from toolwire.backends.hosted.options import PROVIDERS, HostedOptions, capabilities
from toolwire.backends.hosted.thinking import CallMemory
from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.errors import ToolwireError, unavailable
from toolwire.core.turn import Turn
from toolwire.settings.extras import add_extra, add_packages

if TYPE_CHECKING:
    from toolwire.backends.hosted.library import LibraryModel


def installed() -> bool:
    return find_spec("pydantic_ai") is not None


def load(options: HostedOptions, key: str) -> LibraryModel:
    """Imports pydantic-ai and creates the model. Raises `ToolwireError` if something is missing."""
    if not installed():
        raise _missing("The provider library", add_extra("hosted"))
    provider = PROVIDERS[options.provider]
    if provider.keys and not key:
        problem = f"The gateway has no key for {options.provider}"
        how = f"set api_key, or {provider.keys[0]} in its environment."
        raise ToolwireError("backend_auth", f"{problem}: {how}")
    try:
        from toolwire.backends.hosted.library import LibraryModel

        return LibraryModel(options, key)
    except ImportError:
        bundled = provider.extra in ("anthropic", "google")
        how = add_extra("hosted") if bundled else add_packages(f"pydantic-ai-slim[{provider.extra}]")
        raise _missing(f"The SDK of {options.provider}", how) from None


def _missing(what: str, install: str) -> ToolwireError:
    return unavailable(f"{what} is not installed at the gateway: {install}")


class HostedBackend:
    aliases: tuple[str, ...] = ()

    def __init__(self, id: str, options: HostedOptions) -> None:
        self.id = id
        self.options = options
        self.memory = CallMemory()
        self._provider = PROVIDERS[self.options.provider]
        self._loaded: LibraryModel | None = None
        self._loading = asyncio.Lock()
        self._describe({})

    def _describe(self, profile: Mapping[str, Any]) -> None:
        options = self.options
        native = options.tools == "native" or (
            options.tools == "auto" and bool(profile.get("supports_tools", True))
        )
        thinks = options.thinking not in ("", "off") or options.thinking_budget > 0
        able = capabilities(self._provider, profile, native=native, thinks=thinks)
        self.strategy: Strategy = "native" if native else "emulated"
        self.capabilities: Capabilities = replace(able, dialects=options.dialects or ())

    def alias(self, name: str) -> str | None:
        return None

    def key(self) -> str:
        """Returns the provider's key: the option `api_key`, or else the provider's environment variable."""
        found = (os.environ.get(name, "").strip() for name in self._provider.keys)
        return self.options.api_key or next(filter(None, found), "")

    async def prepare(self) -> None:
        await self._load()

    async def _load(self) -> LibraryModel:
        if self._loaded is None:
            async with self._loading:
                if self._loaded is None:
                    loaded = await asyncio.to_thread(load, self.options, self.key())
                    self._describe(loaded.profile)
                    self._loaded = loaded
        return self._loaded

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        loaded = await self._load()
        async with aclosing(loaded.run(turn, self.capabilities, self.memory)) as batches:
            async for batch in batches:
                yield batch

    async def count(self, turn: Turn) -> int | None:
        loaded = await self._load()
        return await loaded.count(turn, self.capabilities, self.memory)

    async def ready(self) -> bool:
        """Returns whether pydantic-ai and the key exist. Does not ask the provider: this could cost money."""
        return installed() and (bool(self.key()) or not self._provider.keys)

    async def close(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            await loaded.close()


def lacking(options: HostedOptions) -> tuple[str, str] | None:
    """Returns what a model lacks (pydantic-ai or the key) and how to get it; None if it lacks nothing."""
    if not installed():
        return "the provider library is not installed", add_extra("hosted")
    keys = PROVIDERS[options.provider].keys
    if keys and not HostedBackend("", options).key():
        return f"there is no key for {options.provider}", f"set {' or '.join(keys)}, or the model's api_key"
    return None


# --- all models of a provider: `model = "anthropic:*"` ---

LIST_S = 5.0
Json = Any


class ModelListing(NamedTuple):
    """The request that lists a provider's models, and a function that reads the names from the response.

    `names` returns only models that generate text.
    """

    base_url: str
    path: str
    headers: Callable[[str], Mapping[str, str]]
    names: Callable[[Json], list[str]]


def _claude_names(body: Json) -> list[str]:
    return [str(entry["id"]) for entry in body["data"]]


def _gemini_names(body: Json) -> list[str]:
    method, key = "generateContent", "supportedGenerationMethods"
    generating = (entry for entry in body["models"] if method in entry.get(key, ()))
    return [str(entry["name"]).removeprefix("models/") for entry in generating]


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
    """All models of a provider. `options`: the table `[models.ID]`, in which the model's name is `*`."""

    def __init__(self, id: str, options: Mapping[str, Any]) -> None:
        self.id = id
        self.options = HostedOptions(**options)
        provider = self.options.provider
        if provider not in LISTINGS:
            others = " or ".join(LISTINGS)
            problem = f"Toolwire cannot list the models of {provider}; name a model, or use {others}"
            raise ValueError(f"model: {problem}")

    async def names(self) -> Sequence[str]:
        provider = self.options.provider
        listing, key = LISTINGS[provider], HostedBackend(self.id, self.options).key()
        url = (self.options.base_url.rstrip("/") or listing.base_url) + listing.path
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(LIST_S), trust_env=True) as session,
                session.get(url, headers=listing.headers(key), allow_redirects=False) as response,
            ):
                if response.status != 200:
                    problem = f"{provider} did not list its models (HTTP {response.status})."
                    raise ToolwireError("backend", problem)
                return listing.names(await response.json(content_type=None))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError, AttributeError):
            raise unavailable(f"{provider} did not list its models.") from None

    def model(self, name: str) -> HostedBackend:
        options = replace(self.options, model=f"{self.options.provider}:{name}")
        return HostedBackend(f"{self.id}/{name}", options)

    async def close(self) -> None:
        pass

"""Every model of a hosted provider: `model = "anthropic:*"`. The list is asked for with one small request, without the provider library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import aiohttp

from toolwire.backends.hosted.backend import HostedBackend, parsed
from toolwire.backends.hosted.options import HostedOptions
from toolwire.errors import ToolwireError

LIST_S = 5.0
Json = Any


class Listing(NamedTuple):
    """Where a provider lists its models, how it is asked, and how the answer names those that write."""

    base_url: str
    path: str
    headers: Callable[[str], Mapping[str, str]]
    names: Callable[[Json], list[str]]


def _claude_names(body: Json) -> list[str]:
    return [str(entry["id"]) for entry in body["data"]]


def _gemini_names(body: Json) -> list[str]:
    writers = (entry for entry in body["models"] if "generateContent" in entry.get("supportedGenerationMethods", ()))
    return [str(entry["name"]).removeprefix("models/") for entry in writers]


LISTINGS: dict[str, Listing] = {
    "anthropic": Listing(
        "https://api.anthropic.com",
        "/v1/models?limit=1000",
        lambda key: {"x-api-key": key, "anthropic-version": "2023-06-01"},
        _claude_names,
    ),
    "google": Listing(
        "https://generativelanguage.googleapis.com", "/v1beta/models?pageSize=1000", lambda key: {"x-goog-api-key": key}, _gemini_names
    ),
}


class HostedSource:
    """`options` is the model's table, with `*` for the name."""

    def __init__(self, id: str, options: Mapping[str, Any] | HostedOptions) -> None:
        self.id = id
        self.options = options if isinstance(options, HostedOptions) else parsed(options)
        if self.options.provider not in LISTINGS:
            raise ValueError(f"model: the models of {self.options.provider} are not listed; name one, or use {' or '.join(LISTINGS)}")

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
                    raise ToolwireError("backend", f"{self.options.provider} did not list its models (HTTP {answer.status}).")
                return listing.names(await answer.json(content_type=None))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError, AttributeError):
            raise ToolwireError("backend_unavailable", f"{self.options.provider} did not list its models.") from None

    def model(self, name: str) -> HostedBackend:
        return HostedBackend(f"{self.id}/{name}", replace(self.options, model=f"{self.options.provider}:{name}"))

    async def close(self) -> None:
        pass

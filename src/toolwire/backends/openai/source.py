"""Every model of an OpenAI-compatible server: `model = "*"`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import aiohttp

from toolwire.backends.openai.backend import OpenAIBackend
from toolwire.backends.openai.discover import Asker, identify, list_models
from toolwire.backends.openai.options import OpenAIOptions
from toolwire.errors import ToolwireError


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

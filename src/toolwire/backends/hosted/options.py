"""The keys of [models.ID] with `backend = "hosted"`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from toolwire.backends.hosted.providers import PROVIDERS
from toolwire.emulate.dialects import select

ToolsSetting = Literal["auto", "native", "emulated"]
ThinkingSetting = Literal["", "off", "minimal", "low", "medium", "high", "xhigh", "max"]

SMALLEST_BUDGET = 1024
_MODEL = re.compile(r"([a-z][a-z0-9-]*):(\S+)")
_KEY = re.compile(r"[\x21-\x7e]*")


@dataclass(frozen=True, slots=True)
class HostedOptions:
    """`model` is `provider:name`. `api_key` empty: the provider's usual environment variable. `thinking`: how much the model thinks where a client
    does not say; empty: as the provider has it. `thinking_budget`: so many tokens for thoughts at most, where the model takes a number. `cache`: the
    provider is asked to keep the beginning of a conversation in its cache, where that must be asked for."""

    model: str = ""
    api_key: str = field(default="", repr=False)
    base_url: str = ""
    tools: ToolsSetting = "auto"
    dialects: tuple[str, ...] | None = None
    thinking: ThinkingSetting = ""
    thinking_budget: int = 0
    cache: bool = False
    timeout_s: float = 300.0

    @property
    def provider(self) -> str:
        return self.model.partition(":")[0]

    @property
    def name(self) -> str:
        """The provider's own name for the model."""
        return self.model.partition(":")[2]

    def __post_init__(self) -> None:
        if not _MODEL.fullmatch(self.model):
            raise ValueError(f'model: expected "provider:name" such as "anthropic:claude-haiku-4-5", got {self.model[:80]!r}')
        if self.provider not in PROVIDERS:
            raise ValueError(f"model: unknown provider {self.provider!r}; known: {', '.join(PROVIDERS)}")
        if not _KEY.fullmatch(self.api_key):
            raise ValueError("api_key: holds a character that a header can not carry")
        if self.base_url:
            _check_url(self.base_url)
        if self.thinking_budget and self.thinking_budget < SMALLEST_BUDGET:
            raise ValueError(f"thinking_budget: expected {SMALLEST_BUDGET} tokens or more, or 0 for none")
        if self.thinking_budget and self.thinking == "off":
            raise ValueError('thinking_budget: thinking is "off"')
        if not self.timeout_s > 0:
            raise ValueError("timeout_s: expected a number above 0")
        try:
            select(self.dialects)
        except ValueError as unknown:
            raise ValueError(f"dialects: {unknown}") from None


def _check_url(address: str) -> None:
    """What is wrong with the address is said without showing what may be a secret in it."""
    try:
        url = urlsplit(address)
        _ = url.port  # a bad one raises
    except ValueError:
        url = None
    if url is None or url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        raise ValueError("base_url: expected an address such as https://gateway.example, without query or fragment")
    if url.username or url.password:
        raise ValueError("base_url: must not hold a user or password; use api_key")

"""The keys of `[models.ID]` with `backend = "hosted"`, and what differs between the providers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from toolwire.core.capabilities import Capabilities
from toolwire.core.turn import Api
from toolwire.emulate.dialects import select

# --- providers: what differs between them, as data ---
#
# Only this module and `thinking.py` distinguish providers by name. `fields` are the request fields that reach
# the provider. The gateway reports every other field as ignored.

LENGTH = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens"})
SAMPLING = frozenset({"temperature", "top_p"})
STOP = frozenset({"stop"})
THINKING = frozenset({"reasoning_effort", "reasoning"})
SEEDED = frozenset({"seed", "presence_penalty", "frequency_penalty"})
USUAL = LENGTH | SAMPLING | THINKING
BIASED = USUAL | STOP | SEEDED | {"logit_bias"}


@dataclass(frozen=True, slots=True)
class Provider:
    """What Toolwire knows about a provider.

    The defaults are those of a provider that speaks OpenAI's API.
    """

    keys: tuple[str, ...]
    """Environment variables that may contain the key. The first variable that is set is used."""
    fields: frozenset[str] = USUAL | STOP | SEEDED
    extra: str = "openai"
    """The extra of pydantic-ai-slim with the provider's SDK."""
    parallel: bool = True
    """Whether a request can limit the model to one call at a time."""
    image_urls: bool = False
    audio: bool = False
    summaries: bool = False
    """Whether the provider sends summaries of thoughts instead of the thoughts themselves."""
    tools_with_history: bool = False
    """Whether a request whose history contains calls must also declare tools."""
    empty_results: bool = False
    """Whether a tool result without text must be an empty list."""
    closed_schemas: bool = False
    """Whether the provider enforces only schemas with `additionalProperties: false` in every object."""
    client: bool = False
    speaks: frozenset[Api] = frozenset()
    """The APIs that the provider itself has. A client's own request to such an API goes to the provider."""


PROVIDERS: dict[str, Provider] = {
    "anthropic": Provider(
        ("ANTHROPIC_API_KEY",),
        USUAL | STOP,
        extra="anthropic",
        image_urls=True,
        summaries=True,
        tools_with_history=True,
        empty_results=True,
        closed_schemas=True,
        client=True,
        speaks=frozenset({"messages"}),
    ),
    "google": Provider(
        ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
        extra="google",
        parallel=False,
        audio=True,
        summaries=True,
        client=True,
    ),
    "bedrock": Provider(
        (), USUAL | STOP, "bedrock", parallel=False, tools_with_history=True, empty_results=True
    ),
    "cohere": Provider(("CO_API_KEY",), extra="cohere", parallel=False),
    "groq": Provider(("GROQ_API_KEY",), BIASED, "groq", image_urls=True),
    "huggingface": Provider(("HF_TOKEN",), BIASED, "huggingface", parallel=False),
    "mistral": Provider(("MISTRAL_API_KEY",), extra="mistral", image_urls=True),
    "openai": Provider(("OPENAI_API_KEY",), USUAL, image_urls=True, summaries=True),
    "openai-chat": Provider(("OPENAI_API_KEY",), BIASED, image_urls=True),
    "cerebras": Provider(("CEREBRAS_API_KEY",)),
    "deepseek": Provider(("DEEPSEEK_API_KEY",)),
    "fireworks": Provider(("FIREWORKS_API_KEY",)),
    "moonshotai": Provider(("MOONSHOTAI_API_KEY",)),
    "openrouter": Provider(("OPENROUTER_API_KEY",), BIASED, "openrouter", image_urls=True),
    "together": Provider(("TOGETHER_API_KEY",)),
    "xai": Provider(("XAI_API_KEY",), extra="xai", image_urls=True),
    "zai": Provider(("ZAI_API_KEY",), BIASED, "zai"),
}


def capabilities(
    provider: Provider, profile: Mapping[str, Any], *, native: bool, thinks: bool
) -> Capabilities:
    """Returns what a model can do.

    `profile`: pydantic-ai's profile of the model; it is empty before pydantic-ai is loaded. `native`: whether
    the provider gets the tools, so that they need not be emulated. `thinks`: whether the options make the
    model think.
    """
    fields = provider.fields
    if not profile.get("supports_thinking", True):
        fields -= THINKING
    if profile.get("anthropic_disallows_sampling_settings") or (thinks and provider.closed_schemas):
        fields -= SAMPLING
    schema = bool(profile.get("supports_json_schema_output", True))
    return Capabilities(
        tools=native,
        tool_choice=native and bool(profile.get("supports_forced_tool_choice", True)),
        parallel=native and provider.parallel,
        strict=native and (schema or bool(profile.get("google_supports_strict_tool_definition"))),
        schema=schema,
        images=True,
        image_urls=provider.image_urls,
        reasoning=bool(profile.get("supports_thinking", True)),
        fields=fields,
        speaks=provider.speaks if native else frozenset(),
    )


ToolsSetting = Literal["auto", "native", "emulated"]
ThinkingSetting = Literal["", "off", "minimal", "low", "medium", "high", "xhigh", "max"]

SMALLEST_BUDGET = 1024
_MODEL = re.compile(r"([a-z][a-z0-9-]*):(\S+)")
_KEY = re.compile(r"[\x21-\x7e]*")


@dataclass(frozen=True, slots=True)
class HostedOptions:
    model: str = ""
    """The provider and the model, as `provider:name`."""
    api_key: str = field(default="", repr=False)
    """The provider's key. If it is not set, the provider's environment variable is used."""
    base_url: str = ""
    tools: ToolsSetting = "auto"
    dialects: tuple[str, ...] | None = None
    thinking: ThinkingSetting = ""
    """How much the model thinks if the request sets no effort. "": the provider decides."""
    thinking_budget: int = 0
    """The maximum number of tokens for thoughts, for models that accept such a number."""
    cache: bool = False
    """Whether to ask the provider to cache the beginning of a conversation. Claude caches only if asked."""
    timeout_s: float = 300.0

    @property
    def provider(self) -> str:
        return self.model.partition(":")[0]

    @property
    def name(self) -> str:
        return self.model.partition(":")[2]

    def __post_init__(self) -> None:
        if not _MODEL.fullmatch(self.model):
            wanted = '"provider:name" such as "anthropic:claude-haiku-4-5"'
            raise ValueError(f"model: expected {wanted}, got {self.model[:80]!r}")
        if self.provider not in PROVIDERS:
            raise ValueError(f"model: unknown provider {self.provider!r}; known: {', '.join(PROVIDERS)}")
        if not _KEY.fullmatch(self.api_key):
            raise ValueError("api_key: contains a character that a header cannot carry")
        if self.base_url:
            _check_url(self.base_url)
        if self.thinking_budget and self.thinking_budget < SMALLEST_BUDGET:
            raise ValueError(f"thinking_budget: expected {SMALLEST_BUDGET} tokens or more, or 0 (no budget)")
        if self.thinking_budget and self.thinking == "off":
            raise ValueError('thinking_budget: cannot be set, because thinking is "off"')
        if not self.timeout_s > 0:
            raise ValueError("timeout_s: expected a number above 0")
        try:
            select(self.dialects)
        except ValueError as unknown:
            raise ValueError(f"dialects: {unknown}") from None


def _check_url(address: str) -> None:
    """Raises an error if the address is not a plain HTTP URL.

    The error does not show the address, which may contain a secret.
    """
    try:
        url = urlsplit(address)
        _ = url.port  # raises a ValueError if the port is invalid
    except ValueError:
        url = None
    if url is None or url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        wanted = "an address such as https://gateway.example, without query or fragment"
        raise ValueError(f"base_url: expected {wanted}")
    if url.username or url.password:
        raise ValueError("base_url: must not contain a user or password; use api_key")

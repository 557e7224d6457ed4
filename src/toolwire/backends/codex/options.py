"""The keys of `[models.ID]` with `backend = "codex"`. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from toolwire.backends.agents.options import check_numbers

PROVIDER_KEYS = ("base_url", "env_key", "name")


@dataclass(frozen=True, slots=True)
class CodexOptions:
    """A bad value raises `ValueError` with one line that names the key."""

    bin: str = "codex"
    """The command, by name or path."""
    home: str = ""
    """Codex's home for Toolwire; empty: a private folder of Toolwire's own. The person's own home is never written."""
    model: str = ""
    """Empty: what Codex uses by default."""
    effort: str = ""
    """The reasoning effort where the request names none."""
    efforts: tuple[str, ...] = ("low", "medium", "high", "xhigh")
    """The efforts that have a model name of their own: `codex-low` …"""
    workers: int = 1
    """How many app-server processes at most."""
    tools: Literal["parked", "replay", "emulated"] = "parked"
    """The best that the installed version allows, up to this."""
    provider: dict[str, Any] | None = None
    """Another Responses provider than OpenAI's: base_url, env_key (the name of a variable), name."""
    settle_ms: int = 150
    """How long silence must last to end a response with calls, where Codex does not say that it is complete."""
    max_threads: int = 200
    """A process is replaced after so many threads …"""
    max_rss_mb: int = 600
    """… or when it holds so much memory."""
    timeout_s: float = 300.0
    """How long Codex may be silent while the model works."""
    start_timeout_s: float = 20.0
    dialects: tuple[str, ...] | None = None
    """What the scanner accepts when tools are emulated."""

    def __post_init__(self) -> None:
        check_numbers(self, {"workers": 1, "settle_ms": 0, "max_threads": 1, "max_rss_mb": 1}, ("timeout_s", "start_timeout_s"))
        if not self.bin:
            raise ValueError("bin: expected the command that starts Codex")
        if self.provider is not None:
            _check_provider(self.provider)


def _check_provider(provider: Mapping[str, Any]) -> None:
    for key, value in provider.items():
        if key not in PROVIDER_KEYS:
            raise ValueError(f"provider: unknown key {key!r}; known: {', '.join(PROVIDER_KEYS)}")
        if not isinstance(value, str):
            raise ValueError(f"provider.{key}: expected a string")
    url = urlsplit(provider.get("base_url", ""))
    if url.scheme not in ("http", "https") or not url.hostname or url.username or url.password:
        raise ValueError("provider.base_url: expected an address such as https://gateway.example/v1, without user or password")

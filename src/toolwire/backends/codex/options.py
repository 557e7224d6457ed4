"""The keys of `[models.ID]` with `backend = "codex"`. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from toolwire.backends.agents import check_numbers

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


# --- version ------------------------------------------------------------
#
# What a version of Codex can do, as data: nothing is assumed that the installed version was not seen to
# have. Standard library only.


class Version(NamedTuple):
    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


_NUMBER = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})")


def parse_version(text: str) -> Version | None:
    """The first version in a text such as `codex-cli 0.166.0` or `toolwire/0.166.0 (Debian …)`."""
    found = _NUMBER.search(text)
    return Version(*map(int, found.groups())) if found else None


@dataclass(frozen=True, slots=True)
class Features:
    """`native_tools`: the client's tools and history as they are (dynamicTools,
    thread/inject_items, and turns without an input). `response_mark`: Codex says when the model's
    response is complete. `ephemeral`: threads that leave nothing on disk. `model_catalog`: `codex debug models --bundled` and `model_catalog_json`.
    `capabilities`: initialize takes them. `follow_ups`: a response may say that the model has more to say, and Codex asks it again by itself."""

    native_tools: bool = False
    response_mark: bool = False
    ephemeral: bool = False
    model_catalog: bool = False
    capabilities: bool = False
    follow_ups: bool = False


SINCE: dict[str, Version] = {
    "ephemeral": Version(0, 90),
    "capabilities": Version(0, 95),
    "model_catalog": Version(0, 121),
    "follow_ups": Version(0, 126),
    "native_tools": Version(0, 133),  # the first that begins a turn without an input
    "response_mark": Version(0, 145),
}


def features_of(version: Version) -> Features:
    return replace(Features(), **{name: version >= since for name, since in SINCE.items()})

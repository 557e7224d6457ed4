"""The keys of `[models.ID]` with `backend = "codex"`, and what each Codex version can do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from toolwire.backends.agents import check_numbers

PROVIDER_KEYS = ("base_url", "env_key", "name")


@dataclass(frozen=True, slots=True)
class CodexOptions:
    """The options of a Codex model. An invalid value raises a `ValueError` that names the key."""

    bin: str = "codex"
    home: str = ""
    """A folder for Toolwire's Codex homes, or a person's Codex home, of which only the login is used.

    If it is not set, Toolwire uses a private folder and the login in CODEX_HOME or ~/.codex.
    """
    model: str = ""
    effort: str = ""
    """The reasoning effort for requests that specify no effort."""
    efforts: tuple[str, ...] = ("low", "medium", "high", "xhigh")
    """The efforts that get their own model names, such as `codex-low`."""
    workers: int = 1
    """The maximum number of app-server processes that run at the same time."""
    tools: Literal["parked", "replay", "emulated"] = "parked"
    """The tool calling strategy. Versions of Codex without native tools always use `emulated`."""
    provider: dict[str, Any] | None = None
    """A Responses provider other than OpenAI: base_url, env_key (the name of a variable), name."""
    settle_ms: int = 150
    """How long Codex must be silent after a call before Toolwire ends the response with this call.

    Used only for versions of Codex that do not report the end of the model's response.
    """
    max_threads: int = 200
    """How many Codex threads a process starts before Toolwire replaces the process."""
    max_rss_mb: int = 600
    """How much memory a process may use before Toolwire replaces the process."""
    timeout_s: float = 300.0
    """How long Codex may be silent while the model works."""
    start_timeout_s: float = 20.0
    dialects: tuple[str, ...] | None = None
    """The formats of tool calls that Toolwire recognizes in the model's text when tools are emulated."""

    def __post_init__(self) -> None:
        least = {"workers": 1, "settle_ms": 0, "max_threads": 1, "max_rss_mb": 1}
        check_numbers(self, least, ("timeout_s", "start_timeout_s"))
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
        wanted = "an address such as https://gateway.example/v1, without user or password"
        raise ValueError(f"provider.base_url: expected {wanted}")


# --- versions ---


class Version(NamedTuple):
    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return ".".join(map(str, self))


def parse_version(text: str) -> Version | None:
    """Returns the first version in a text such as `codex-cli 0.166.0`, or None."""
    found = re.search(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", text)
    return Version(*map(int, found.groups())) if found else None


@dataclass(frozen=True, slots=True)
class Features:
    """The features of a Codex version."""

    ephemeral: bool = False
    """Whether this version has threads that write nothing to disk."""
    capabilities: bool = False
    """Whether this version accepts capabilities in `initialize`."""
    model_catalog: bool = False
    """Whether this version has `codex debug models --bundled` and `model_catalog_json`."""
    follow_ups: bool = False
    """Whether this version asks the model again if a response says that the model has more to say."""
    native_tools: bool = False
    """Whether this version accepts the client's tools and history as items, and a turn without input."""
    response_mark: bool = False
    """Whether this version reports the end of the model's response."""


SINCE: dict[str, Version] = {
    "ephemeral": Version(0, 90),
    "capabilities": Version(0, 95),
    "model_catalog": Version(0, 121),
    "follow_ups": Version(0, 126),
    "native_tools": Version(0, 133),
    "response_mark": Version(0, 145),
}


def features_of(version: Version) -> Features:
    return Features(**{name: version >= since for name, since in SINCE.items()})

"""What a version of Codex can do, as data: nothing is assumed that the installed version was not seen to have. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NamedTuple


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

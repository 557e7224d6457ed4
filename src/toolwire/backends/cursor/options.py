"""The keys of `[models.ID]` with `backend = "cursor"`. Standard library only.

What is empty is looked for in Cursor's own variables: CURSOR_API_KEY, CURSOR_SDK_BRIDGE_URL, CURSOR_SDK_BRIDGE_TOKEN, CURSOR_SDK_BRIDGE_BIN.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from toolwire.backends.agents import check_numbers


@dataclass(frozen=True, slots=True)
class CursorOptions:
    """A bad value raises `ValueError` with one line that names the key."""

    model: str = "auto"
    """What Cursor calls the model; "*": all of them, each as ID/NAME."""
    params: dict[str, str] = field(default_factory=dict)
    """Parameters of the model, as Cursor lists them."""
    api_key: str = ""
    """Cursor's API key; empty: CURSOR_API_KEY."""
    bridge_url: str = ""
    """A bridge that runs already, on this machine, with its token."""
    bridge_token: str = ""
    bridge_bin: str = ""
    """The command that starts the bridge; empty: that of the extra `cursor`, or the one on PATH."""
    sandbox: bool = True
    """Whether the bridge shall confine what its agents could do beside the client's tools."""
    settle_ms: int = 100
    """How long silence must last to end a response with calls."""
    repeats: int = 8
    """So often an agent may make the same call before it is stopped."""
    idle_s: float = 300.0
    """How long an agent waits for the next turn of its conversation …"""
    sessions: int = 16
    """… and how many of them wait at most; 0: none."""
    timeout_s: float = 300.0
    """How long the agent may be silent while it works."""
    request_timeout_s: float = 30.0
    """How long the bridge may take for a request that is no run."""
    start_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        check_numbers(self, {"settle_ms": 0, "repeats": 1, "sessions": 0}, ("idle_s", "timeout_s", "request_timeout_s", "start_timeout_s"))
        if not self.model:
            raise ValueError('model: expected the name of a model, such as "auto"')
        if not all(isinstance(value, str) for value in self.params.values()):
            raise ValueError("params: expected a table of strings")
        if self.bridge_url:
            check_address(self.bridge_url)

    def key(self, environ: Mapping[str, str]) -> str:
        """The API key that is used."""
        return self.api_key or environ.get("CURSOR_API_KEY", "")


def check_address(url: str) -> None:
    """A bridge calls back to a server of ours, which listens on loopback only: it must be on this machine too."""
    parts = urlsplit(url)
    try:
        local = parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        local = False
    if parts.scheme != "http" or not local or parts.username or parts.password:
        raise ValueError("bridge_url: expected an address on this machine, such as http://127.0.0.1:4000")

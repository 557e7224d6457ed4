"""The keys of `[models.ID]` with `backend = "cursor"`, and how the bridge is found.

Empty keys fall back to Cursor's own variables: CURSOR_API_KEY, CURSOR_SDK_BRIDGE_URL, CURSOR_SDK_BRIDGE_TOKEN
and CURSOR_SDK_BRIDGE_BIN.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from toolwire.backends.agents import AgentOptions, check_numbers
from toolwire.core.errors import ToolwireError, unavailable
from toolwire.settings.extras import add_extra


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorOptions(AgentOptions):
    """The options of a Cursor model. An invalid value raises a `ValueError` that names the key."""

    model: str = "auto"
    """Cursor's name for the model. "*" selects all models; each gets the id `ID/NAME`."""
    params: dict[str, str] = field(default_factory=dict)
    """The model's parameters, as Cursor lists them."""
    api_key: str = field(default="", repr=False)
    """Cursor's API key. If it is not set, CURSOR_API_KEY is used."""
    bridge_url: str = ""
    bridge_token: str = field(default="", repr=False)
    bridge_bin: str = ""
    """The command that starts the bridge. If it is not set, see `find_bridge`."""
    sandbox: bool = True
    """Whether the bridge runs its agents in a sandbox. The client's tools run outside it, at the client."""
    settle_ms: int = 100
    sessions: int = 16
    start_timeout_s: float = 30.0
    request_timeout_s: float = 30.0
    """How long the bridge may take to answer a request. Runs are not limited by this."""

    def __post_init__(self) -> None:
        AgentOptions.__post_init__(self)
        check_numbers(self, {}, ("request_timeout_s",))
        if not self.model:
            raise ValueError('model: expected the name of a model, such as "auto"')
        if not all(isinstance(value, str) for value in self.params.values()):
            raise ValueError("params: expected a table of strings")
        if self.bridge_url:
            check_address(self.bridge_url)

    def key(self, environ: Mapping[str, str]) -> str:
        return self.api_key or environ.get("CURSOR_API_KEY", "")


def check_address(url: str) -> None:
    """Raises an error if the address of the bridge is not on this machine.

    The bridge must reach Toolwire's callback server, which listens on loopback only.
    """
    parts = urlsplit(url)
    try:
        local = parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        local = False
    if parts.scheme != "http" or not local or parts.username or parts.password:
        raise ValueError("bridge_url: expected an address on this machine, such as http://127.0.0.1:4000")


COMMAND = "cursor-sdk-bridge"


@dataclass(frozen=True, slots=True)
class BridgeTarget:
    """A running bridge to attach to (`url` and `token`), or the command that starts a bridge."""

    url: str = ""
    token: str = field(default="", repr=False)
    command: str = ""


def find_bridge(options: CursorOptions, environ: Mapping[str, str]) -> BridgeTarget:
    """Returns the bridge to use.

    Looks in this order: the settings, Cursor's environment variables, the extra `cursor`, and PATH.
    """
    for url, command, key in (
        (options.bridge_url, options.bridge_bin, "bridge_bin"),
        (*map(environ.get, ("CURSOR_SDK_BRIDGE_URL", "CURSOR_SDK_BRIDGE_BIN")), "CURSOR_SDK_BRIDGE_BIN"),
    ):
        if url:
            return _attached(url, options.bridge_token or environ.get("CURSOR_SDK_BRIDGE_TOKEN", ""))
        if command:
            found = shutil.which(os.path.expanduser(command), path=environ.get("PATH"))
            if found is None:
                problem = f"Cannot start Cursor's bridge: {key} names {command!r}, which is not a command."
                raise unavailable(problem)
            return BridgeTarget(command=os.path.abspath(found))
    found = bundled() or shutil.which(COMMAND, path=environ.get("PATH"))
    if found is None:
        problem = f"Cursor's bridge is not installed: {COMMAND} was not found."
        how = f"Install it with: {add_extra('cursor')}"
        raise unavailable(f"{problem} {how}")
    return BridgeTarget(command=found)


def bundled() -> str | None:
    """Returns the path of the bridge inside the package `cursor-sdk`, or None.

    The package is located without importing it.
    """
    try:
        found = importlib.util.find_spec("cursor_sdk")
    except (ImportError, ValueError):
        return None
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        launcher = Path(folder, "_vendor", "bridge", "bin", COMMAND)
        if launcher.is_file():
            return str(launcher)
    return None


def _attached(url: str, token: str) -> BridgeTarget:
    try:
        check_address(url)
    except ValueError as error:
        raise unavailable(f"Cannot use Cursor's bridge: {error}") from None
    if not token:
        problem = "Cursor's bridge needs its token: set bridge_token, or CURSOR_SDK_BRIDGE_TOKEN."
        raise ToolwireError("backend_auth", problem)
    return BridgeTarget(url=url.rstrip("/"), token=token)

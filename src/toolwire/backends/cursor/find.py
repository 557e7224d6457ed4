"""Where the bridge is: one that runs already, a command that was named, the one that the extra brings, or one on PATH, in this order."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from toolwire.backends.cursor.options import CursorOptions, check_address
from toolwire.core.errors import ToolwireError

COMMAND = "cursor-sdk-bridge"
BUNDLED = Path("_vendor") / "bridge" / "bin" / COMMAND
INSTALL = "pip install 'toolwire[cursor]'"


@dataclass(frozen=True, slots=True)
class Where:
    """A bridge to attach to (`url` and `token`), or one to start (`command`)."""

    url: str = ""
    token: str = field(default="", repr=False)
    command: str = ""


def find_bridge(options: CursorOptions, environ: Mapping[str, str]) -> Where:
    """What the settings name comes before what the environment names."""
    if options.bridge_url:
        return _attached(options.bridge_url, options.bridge_token or environ.get("CURSOR_SDK_BRIDGE_TOKEN", ""))
    if options.bridge_bin:
        return Where(command=_command(options.bridge_bin, "bridge_bin", environ))
    if environ.get("CURSOR_SDK_BRIDGE_URL"):
        return _attached(environ["CURSOR_SDK_BRIDGE_URL"], options.bridge_token or environ.get("CURSOR_SDK_BRIDGE_TOKEN", ""))
    if environ.get("CURSOR_SDK_BRIDGE_BIN"):
        return Where(command=_command(environ["CURSOR_SDK_BRIDGE_BIN"], "CURSOR_SDK_BRIDGE_BIN", environ))
    found = bundled() or shutil.which(COMMAND, path=environ.get("PATH"))
    if found is None:
        raise ToolwireError("backend_unavailable", f"Cursor's bridge is not installed: {COMMAND} was not found. Install it with: {INSTALL}")
    return Where(command=found)


def bundled() -> str | None:
    """The bridge inside the package `cursor-sdk`, which is looked up and never imported."""
    try:
        found = importlib.util.find_spec("cursor_sdk")
    except (ImportError, ValueError):
        return None
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        launcher = Path(folder) / BUNDLED
        if launcher.is_file():
            return str(launcher)
    return None


def _attached(url: str, token: str) -> Where:
    try:
        check_address(url)
    except ValueError as error:
        raise ToolwireError("backend_unavailable", f"Cursor's bridge can not be used: {error}") from None
    if not token:
        raise ToolwireError("backend_auth", "Cursor's bridge needs its token: set bridge_token, or CURSOR_SDK_BRIDGE_TOKEN.")
    return Where(url=url.rstrip("/"), token=token)


def _command(named: str, where: str, environ: Mapping[str, str]) -> str:
    found = shutil.which(os.path.expanduser(named), path=environ.get("PATH"))
    if found is None:
        raise ToolwireError("backend_unavailable", f"Cursor's bridge can not be started: {where} names {named!r}, which is no command here.")
    return os.path.abspath(found)

"""What an agent may do: call the client's tools, and nothing else. Pure.

A request for permission names what it is about only by a title, which a model can shape. So a title counts only where it is exactly the name of a
client's tool, and where nothing about the call says that it is of another kind. A name that agents give to tools of their own, without anything that
tells the client's tool from it, does not count: a client's `bash` is no reason to let an agent run its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from toolwire.backends.acp.updates import Announced

Json = Any
ALLOW, REFUSE = ("allow_once", "allow_always"), ("reject_once", "reject_always")
HARMLESS_KINDS = ("", "other")
"""Kinds that a call of an MCP tool has: agents mark their own tools as read, edit, execute …"""

OWN_NAMES = frozenset(
    (
        "bash shell sh terminal exec execute run run_command command cmd powershell python read read_file write write_file edit edit_file "
        "create_file patch apply_patch delete delete_file move list ls list_directory grep glob find search fetch webfetch web_fetch websearch "
        "web_search task agent"
    ).split()
)
"""Names that agents give to their own tools."""


def is_clients(tool_call: Mapping[str, Json], names: Mapping[str, str], announced: Announced | None, approvals: Collection[str] = ()) -> bool:
    """Whether a permission is asked for a tool of the client's. `approvals` are titles that say nothing of the tool."""
    kinds = {str(tool_call.get("kind") or ""), announced.kind if announced is not None else ""}
    told = (tool_call.get("title"), announced.title if announced is not None else "")
    titles = {title for title in told if isinstance(title, str) and title and title not in approvals}
    known = all(title in names and title.lower() not in OWN_NAMES for title in titles)
    return bool(titles) and known and kinds <= set(HARMLESS_KINDS)


def outcome(options: Sequence[Json], allow: bool) -> dict[str, Json]:
    """The answer to a request for permission: the mildest option of the right kind, or cancelled where there is none."""
    for kind in ALLOW if allow else REFUSE:
        for option in options:
            if isinstance(option, Mapping) and option.get("kind") == kind and option.get("optionId") is not None:
                return {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}
    return {"outcome": {"outcome": "cancelled"}}

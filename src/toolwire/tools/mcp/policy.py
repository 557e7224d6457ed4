"""The rules of an MCP server: which calls run, which are asked, which are refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from toolwire.settings.types import McpServerSettings

Action = Literal["deny", "ask", "allow"]


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the rules say about a call.

    `rule`: the rule as written; "default" if none fits; "" if the server has no rules at all.
    """

    action: Action
    rule: str


class Policy:
    """The rules of one server."""

    def __init__(self, default: Action = "ask") -> None:
        self._default = default

    @classmethod
    def of(cls, server: McpServerSettings) -> Policy:
        """Raises `ConfigError` if a rule cannot be understood."""
        return cls(server.default)

    def decide(self, tool: str, arguments: Mapping[str, Any]) -> Ruling:
        return Ruling(self._default, "default")

    def never(self, tool: str) -> bool:
        """Whether no call of this tool can ever run."""
        return False

    def dead(self, tools: Sequence[Any]) -> list[str]:
        """Returns a line for each rule that names no tool, or an argument that is not there."""
        return []

"""`toolwire mcp explain SERVER TOOL '{…}'`: shows which rule decides a call. The server is not started."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches

from toolwire.core.display import as_json, one_line
from toolwire.settings.load import load
from toolwire.settings.types import ConfigError, McpServerSettings, McpSettings
from toolwire.surfaces.tables import table
from toolwire.tools.mcp.dead_rules import METHODS
from toolwire.tools.mcp.known import known_tools
from toolwire.tools.mcp.policy import Policy, Ruling, Step, read_arguments

OUTCOMES = {"deny": "refused", "ask": "needs your approval", "allow": "runs without a question"}


def explain_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("server", metavar="SERVER", help="the server's name in the settings, [mcp.NAME]")
    add("tool", metavar="TOOL", help="the tool's name on the server, or SERVER__TOOL")
    add("arguments", metavar="ARGUMENTS", nargs="?", default="{}", help="the call's arguments as JSON")
    add("--json", action="store_true", help="JSON, for scripts")


def run_explain(arguments: argparse.Namespace) -> int:
    settings = load(arguments.config, os.environ, {}, exposed=False)
    server = server_named(arguments.server, settings.mcp)
    tool = arguments.tool.removeprefix(f"{server.name}__")
    policy, given = Policy.of(server), read_arguments(arguments.arguments)
    ruling, steps = policy.decide(tool, given), policy.explain(tool, given)
    if arguments.json:
        value = {"action": ruling.action, "rule": ruling.rule, "rules": [step._asdict() for step in steps]}
        print(as_json(value))
    else:
        print("\n".join(_lines(tool, ruling, steps)))
    if hint := _unknown(tool, [known.name for known in known_tools(settings.store.url, server.source)]):
        print(f"note: {server.name} {hint}", file=sys.stderr)
    return 0


def _unknown(tool: str, known: Sequence[str]) -> str:
    """Returns a hint if a person has agreed to tools of the server, but not to `tool`."""
    if not known or tool in (*known, *METHODS):
        return ""
    near = get_close_matches(tool, known, 1)
    similar = f"; did you mean {one_line(near[0], 80)}?" if near else ""
    return f"has no tool {one_line(tool, 80)} that you have agreed to{similar}"


def server_named(name: str, settings: McpSettings) -> McpServerSettings:
    """Returns the server of this name. If there is none, raises `ConfigError` with the most similar name."""
    names = [server.name for server in settings.servers]
    if name in names:
        return settings.servers[names.index(name)]
    near = get_close_matches(name, names, 1)
    known = f"known: {', '.join(names)}" if names else "the settings have no [mcp.NAME]"
    raise ConfigError(
        f"there is no MCP server {one_line(name, 80)}; {f'did you mean {near[0]}?' if near else known}"
    )


def _lines(tool: str, ruling: Ruling, steps: Sequence[Step]) -> list[str]:
    by_default = ruling.rule in ("", "default")
    why = (
        f"because no rule fits and the default is {ruling.action}"
        if by_default
        else f"by the rule {ruling.rule}"
    )
    lines = [one_line(f"{tool}: {OUTCOMES[ruling.action]}, {why}", 1000)]
    if steps:
        decided = False
        rows = []
        for step in steps:
            mark = "→" if step.fits and not decided else ""
            decided = decided or step.fits
            rows.append((mark, step.action, step.rule, step.why or "fits"))
        lines += table(rows)
    return lines

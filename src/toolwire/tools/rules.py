"""`--allow` rules: which calls run without asking a person.

A rule is `TOOL`, or `TOOL:GLOB` for matching paths only. A rule for a search limits the search to matching
paths and shares the matching results. If a call lets the person pick files or results, the rule picks those
that match. Any other call is approved only if everything that it touches matches.

A rule for a tool of an MCP server begins with `SERVER__TOOL`. Conditions can follow, as in an allow rule of
the settings (`tools/mcp/policy.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from toolwire.settings.types import ConfigError
from toolwire.tools.contract import Approval, Decision, Effect
from toolwire.tools.mcp import policy

# --- patterns: `*` and `?` stay within one folder, `**` crosses folders, case counts ---

_PIECES = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def compiled(glob: str) -> re.Pattern[str]:
    pieces = re.split(r"(\*\*/|\*\*|\*|\?)", glob)
    return re.compile("".join(_PIECES.get(piece) or re.escape(piece) for piece in pieces), re.DOTALL)


def fits(pattern: re.Pattern[str], path: str) -> bool:
    """Whether the pattern matches the path.

    A path with a backslash, or with a name that is empty, `.` or `..`, never matches.
    """
    plain = "\\" not in path and not {"", ".", ".."} & set(path.split("/"))
    return plain and pattern.fullmatch(path) is not None


@dataclass(frozen=True, slots=True)
class Rule:
    written: str
    tool: str
    glob: str = ""
    pattern: re.Pattern[str] | None = None
    words: policy.Rule | None = None
    """The parsed rule, if it is for tools of MCP servers."""

    def allows(self, path: str) -> bool:
        return self.pattern is None or fits(self.pattern, path)


def parse(written: Iterable[str], known: Iterable[str]) -> list[Rule]:
    """Returns the rules of a command line. Raises `ConfigError` for an unknown tool."""
    names = list(known)
    rules = []
    for one in written:
        words = _words(one) if "__" in one.partition(" ")[0] else None
        tool, colon, glob = (words.tool_name, "", "") if words else one.partition(":")
        if not (any(words.names(name) for name in names) if words else tool in names):
            near = get_close_matches(tool, names, 1)
            hint = f"known: {', '.join(names) or 'none, there is no vault'}"
            hint = f"did you mean {near[0]}?" if near else hint
            raise ConfigError(f"--allow {one}: there is no tool {tool or '(empty)'}; {hint}")
        if colon and not glob:
            raise ConfigError(f"--allow {one}: a pattern is missing after the colon")
        rules.append(Rule(one, tool, glob, compiled(glob) if glob else None, words))
    return rules


def _words(written: str) -> policy.Rule:
    try:
        return policy.Rule.parse(written)
    except ConfigError as error:
        raise ConfigError(f"--allow: {error}") from None


def decision(rules: Sequence[Rule], approval: Approval, effect: Effect | None) -> tuple[Decision, str]:
    """Returns the decision of the rules, and the rules that allow the call.

    A call that no rule covers is denied, with the reason.
    """
    shown, call = approval.shown, policy.Call(approval.tool, approval.arguments)
    for rule in rules:
        # A rule cannot judge a result, so it does not share a result that the person should see first.
        fitting_call = rule.words is not None and not rule.words.misfit(call, surely=True)
        if fitting_call and approval.stage == "run":
            return Decision(True, standing=True), f"rule {rule.written}"
    meant = [rule for rule in rules if rule.words is None and rule.tool == approval.tool]
    whole = any(rule.pattern is None for rule in meant)
    fitting = tuple(one.key for one in shown.touched if any(rule.allows(one.path) for rule in meant))
    by = f"rule {', '.join(rule.written for rule in meant)}"
    searches = effect == "search" and approval.stage == "run"
    if not meant:
        pass
    elif shown.pick:
        # The results of a search are always decided: those that fit are shared, which may be none.
        if fitting or not shown.touched or whole or approval.stage == "share":
            return Decision(True, picked=fitting, standing=True), by
    elif (shown.touched or whole or searches) and len(fitting) == len(shown.touched):
        within = tuple(rule.glob for rule in meant) if searches and not whole else ()
        return Decision(True, within=within, standing=True), by
    return Decision(False, reason="no --allow rule covers this call, and there is nobody to ask"), "no rule"

"""The rules of an MCP server: which calls run, need approval, or are refused.

A rule is a line of words: the tool's name (with `*` and `?`), then conditions on its arguments, all of which
must hold: `read_text_file path=/srv/docs/** *`. Deny rules are tried first, then ask rules, then allow rules.
If no rule fits, the default decides.

- An allow rule with conditions must name every argument of the call, or end in `*`. Otherwise
  `send to=*@me.org` would also allow a call with a `bcc`.
- A call that has a key with a dot fits no allow rule with conditions: `to.bcc` is not the `bcc` in `to`.
- Sometimes the text of a value does not show what the value means, for example the path `../a`. Such a value
  fits no condition of an allow rule, but every condition of a deny or ask rule (`tools/mcp/patterns.py`).
- All values of a list must fit a condition of an allow rule. For a deny or ask rule, one value is enough.
- Instead of conditions, a JSON object allows exactly these arguments: `read_text_file {"path": "/srv/a.md"}`.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from toolwire.core.display import as_json, hides, one_line
from toolwire.settings.types import ConfigError
from toolwire.tools.mcp.dead_rules import Listed, reports
from toolwire.tools.mcp.patterns import ORDERS, Pattern, folded, glob, pattern

Action = Literal["deny", "ask", "allow"]
ACTIONS: tuple[Action, ...] = ("deny", "ask", "allow")
DEFAULT = "default"
MOST_VALUES, DEEPEST = 20_000, 64
"""Calls whose arguments have more values than this, or are nested deeper, are not judged."""
_WORDS = re.compile(r"\s*(\S+)\s*(.*)", re.DOTALL)
_CONDITION = re.compile(r"([^=<>!]+)(!=|<=|>=|=|<|>)(.*)", re.DOTALL)


class Configured(Protocol):
    """The part of a server's settings from which `Policy.of` reads the rules."""

    @property
    def name(self) -> str: ...
    @property
    def deny(self) -> Sequence[str]: ...
    @property
    def ask(self) -> Sequence[str]: ...
    @property
    def allow(self) -> Sequence[str]: ...
    @property
    def page_allow(self) -> Sequence[str]: ...
    @property
    def default(self) -> Action: ...


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the rules say about a call.

    `rule`: the rule as written; "default" if none fits; "" if the server has no rules and its default is
    `ask`.
    """

    action: Action
    rule: str


class Step(NamedTuple):
    """One line of `Policy.explain`. `why`: why the rule does not fit the call; "" if it fits."""

    action: Action
    rule: str
    fits: bool
    why: str


class Call:
    """The arguments of a call, taken apart once for all rules.

    Values are found by their dotted names. Case is ignored, because some servers ignore it too. Lists are
    opened: `{"files": [{"path": "/a"}]}` has the value "/a" under `files.path`.
    """

    def __init__(self, tool: str, arguments: Mapping[str, Any]) -> None:
        self.tool, self.arguments, self.problem = tool, arguments, ""
        self.values: dict[str, list[Any]] = {}
        self.leaves: dict[str, None] = {}
        self.dotted = ""
        """A key that contains a dot, and so reads like a key inside another argument; "" if there is none."""
        self._written: dict[Callable[[str], str], str] = {}
        waiting: list[tuple[str, Any, int]] = [("", arguments, 0)]
        for _ in range(MOST_VALUES):
            if not waiting:
                return
            name, value, depth = waiting.pop()
            if depth > DEEPEST:
                self.problem = "the arguments are nested too deeply"
                return
            if isinstance(value, Mapping) and depth:
                self.values.setdefault(folded(name), []).append(value)
            if isinstance(value, Mapping):
                self.dotted = self.dotted or next((str(key) for key in value if "." in folded(str(key))), "")
                inside = [(f"{name}.{key}" if depth else str(key), one) for key, one in value.items()]
            elif isinstance(value, list | tuple):
                inside = [(name, one) for one in value]
            else:
                self.values.setdefault(folded(name), []).append(value)
                inside = []
            if not inside and depth:
                self.leaves[name] = None
            waiting += [(key, one, depth + 1) for key, one in inside]
        self.problem = "the call has too many values"

    def canonical(self, text: Callable[[str], str]) -> str:
        """Returns the arguments as JSON in one normal form. `text` is applied to every text in them."""
        if text not in self._written:
            self._written[text] = canonical(self.arguments, text)
        return self._written[text]


@dataclass(frozen=True, slots=True)
class Condition:
    written: str
    name: str
    op: str
    pattern: Pattern

    def fits(self, call: Call, *, surely: bool) -> bool:
        """Whether the condition holds.

        In doubt, the result is False if `surely` is set (for allow rules), and True if it is not set.
        """
        steps = folded(self.name).split(".")
        outer = (".".join(steps[:count]) for count in range(1, len(steps)))
        through = (value for name in outer for value in call.values.get(name, ()))
        if any(value is not None and not isinstance(value, Mapping) for value in through):
            return not surely  # for example JSON in a text, which some servers parse
        found = call.values.get(".".join(steps), [])
        if self.pattern.kind not in ("any", "null") and not surely:
            found = [value for value in found if value is not None]  # null counts as no value
        if not found:
            return self.op == "!=" and not surely
        return (all if surely else any)(self._holds(value, surely) for value in found)

    def _holds(self, value: Any, surely: bool) -> bool:
        if self.op == "!=":
            return not (self.pattern.possibly(value) if surely else self.pattern.surely(value))
        return self.pattern.surely(value) if surely else self.pattern.possibly(value)

    def names(self, leaf: str) -> bool:
        """Whether the condition is about this argument, or about the whole object that contains it."""
        return leaf == self.name or leaf.startswith(self.name + ".")

    def is_inside(self, argument: str) -> bool:
        return self.name.startswith(argument + ".")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule.

    `open`: whether the call may have arguments that the rule does not name. `exactly`: if given, the rule
    fits only calls with exactly these arguments.
    """

    written: str
    tool: re.Pattern[str]
    conditions: tuple[Condition, ...] = ()
    open: bool = False
    exactly: Mapping[str, Any] | None = None

    @classmethod
    def parse(cls, written: str) -> Rule:
        """Returns the rule. Raises `ConfigError` with one clear line."""
        try:
            return cls._parse(written)
        except ConfigError as error:
            raise ConfigError(f"the rule {one_line(written)!r}: {error}") from None

    @classmethod
    def _parse(cls, written: str) -> Rule:
        if hides(written) or "\n" in written or "\t" in written:
            raise ConfigError("must be one line without invisible characters")
        found = _WORDS.fullmatch(written)
        if found is None:
            raise ConfigError("is empty; write a tool's name, or * for all tools")
        if found[2].startswith("{"):
            return cls(written, _tool(found[1]), exactly=read_arguments(found[2]))
        try:
            name, *words = shlex.split(written)
        except ValueError as error:
            raise ConfigError(f"{str(error).lower()}: close the quote, or double the backslash") from None
        is_open = words[-1:] == ["*"]
        conditions = tuple(_condition(word) for word in words[: -1 if is_open else None])
        return cls(written, _tool(name), conditions, is_open)

    @property
    def tool_name(self) -> str:
        return self.written.split(maxsplit=1)[0]

    @property
    def has_conditions(self) -> bool:
        return bool(self.conditions) or self.exactly is not None

    def names(self, tool: str) -> bool:
        """Whether the rule is about this tool."""
        return self.tool.fullmatch(tool) is not None

    def misfit(self, call: Call, *, surely: bool) -> str:
        """Returns why the rule does not fit the call; "" if it does. `surely`: True for allow rules."""
        if not self.names(call.tool):
            return "it is about other tools"
        if not self.has_conditions:
            return ""
        if call.problem:
            return call.problem if surely else ""
        if self.exactly is not None:
            text = str if surely else folded
            same = canonical(self.exactly, text) == call.canonical(text)
            return "" if same else "the arguments differ"
        if surely and call.dotted:
            return f"the key {one_line(call.dotted)} contains a dot; only a rule with a JSON object allows it"
        if surely and not self.open:
            for leaf in call.leaves:
                if not any(one.names(leaf) for one in self.conditions):
                    return f"it does not name the argument {leaf}: add {leaf}=* or end the rule with *"
        for one in self.conditions:
            if not one.fits(call, surely=surely):
                return f"{one.written} {'does not surely hold' if surely else 'does not hold'}"
        return ""


def _tool(written: str) -> re.Pattern[str]:
    if re.search("[=<>!]", written):
        raise ConfigError(f"begins with the condition {written}; write the tool's name first, or * for all")
    # The names of MCP's methods have a slash, so `*` means tools only.
    return re.compile(glob(written, "[^/]"), re.DOTALL)


def _condition(word: str) -> Condition:
    found = _CONDITION.fullmatch(word)
    if word == "*":
        raise ConfigError("* must be the last word")
    if found is None:
        raise ConfigError(f"{word} is not a condition; write ARGUMENT=VALUE")
    name, op, want = found.groups()
    return Condition(word, name, op, pattern(want, op if op in ORDERS else ""))


def read_arguments(written: str) -> Mapping[str, Any]:
    """Returns the arguments that are written as a JSON object.

    Raises `ConfigError` if the text is not a JSON object, or if a key occurs twice in it.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key occurs twice")
        return dict(pairs)

    def refused(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    def finite(number: str) -> float:
        return float(number) if math.isfinite(float(number)) else refused(number)

    try:
        value = json.loads(written, object_pairs_hook=once, parse_constant=refused, parse_float=finite)
        if isinstance(value, dict):
            return value
        raise ValueError('write {"NAME": VALUE, …}')
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the arguments are not a JSON object: {error}") from None


def canonical(value: Any, text: Callable[[str], str] = str) -> str:
    """Returns a value as JSON, in one normal form.

    Equal values give equal texts, for example 1 and 1.0, or objects with their keys in different orders.
    `text`: a function that is applied to every text in the value.
    """
    return json.dumps(_normal(value, text), sort_keys=True, ensure_ascii=False)


def _normal(value: Any, text: Callable[[str], str]) -> Any:
    if isinstance(value, Mapping):
        return {text(str(key)): _normal(one, text) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_normal(one, text) for one in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return text(value) if isinstance(value, str) else value


def exact_rule(tool: str, arguments: Mapping[str, Any]) -> str:
    """Returns the rule that allows exactly this call; "" if no rule can express this."""
    if not tool or re.search(r"[\s*?\\'\"/]", tool):
        return ""
    try:
        written = f"{tool} {as_json(dict(arguments))}"
        rule, call = Rule.parse(written), Call(tool, arguments)
        return written if not rule.misfit(call, surely=True) else ""
    except (ConfigError, RecursionError, ValueError):
        return ""


class Policy:
    """The rules of one server."""

    def __init__(
        self,
        *,
        deny: Iterable[str] = (),
        ask: Iterable[str] = (),
        allow: Iterable[str] = (),
        default: Action = "ask",
    ) -> None:
        """Raises `ConfigError` for the first rule that cannot be read."""
        written = {"deny": deny, "ask": ask, "allow": allow}
        self.default = default
        self.rules: list[tuple[Action, Rule]] = []
        for action in ACTIONS:
            try:
                self.rules += [(action, Rule.parse(one)) for one in written[action]]
            except ConfigError as error:
                raise ConfigError(f"{action}: {error}") from None

    @classmethod
    def of(cls, server: Configured) -> Policy:
        """Returns the rules of a server's settings. Raises `ConfigError`, which names the server."""
        try:
            allow = (*server.allow, *server.page_allow)
            return cls(deny=server.deny, ask=server.ask, allow=allow, default=server.default)
        except ConfigError as error:
            raise ConfigError(f"[mcp.{server.name}] {error}") from None

    def decide(self, tool: str, arguments: Mapping[str, Any]) -> Ruling:
        call = Call(tool, arguments)
        for action, rule in self.rules:
            if not rule.misfit(call, surely=action == "allow"):
                return Ruling(action, rule.written)
        return Ruling(self.default, DEFAULT if self.rules or self.default != "ask" else "")

    def never(self, tool: str) -> bool:
        """Whether no call of this tool can run, whatever its arguments are."""
        named = [(action, rule) for action, rule in self.rules if rule.names(tool)]
        if any(action == "deny" and not rule.has_conditions for action, rule in named):
            return True
        return self.default == "deny" and all(action == "deny" for action, _ in named)

    def explain(self, tool: str, arguments: Mapping[str, Any]) -> list[Step]:
        """Returns every rule in the order in which they are tried. The first that fits decides."""
        call = Call(tool, arguments)
        found = ((action, rule, rule.misfit(call, surely=action == "allow")) for action, rule in self.rules)
        return [Step(action, rule.written, not why, why) for action, rule, why in found]

    def dead(self, tools: Sequence[Listed]) -> list[str]:
        """Returns a line for each rule that can never decide, and for each pattern on code or a query.

        A pattern cannot judge code or a query, because both can be written in many ways.
        """
        return reports(self.rules, tools)

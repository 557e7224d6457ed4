"""Reports rules with mistakes: rules that can never decide a call, and patterns on code or queries.

Without these reports, a mistyped rule would be noticed only when it is needed. A pattern cannot judge code or
a query, because both can be written in many ways. The module has no side effects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from toolwire.tools.mcp.policy import Action, Condition, Rule

METHODS = ("prompts/get", "resources/read")
"""What a rule may name besides tools: prompts and resources, by the names of MCP's methods."""
LANGUAGES = frozenset(
    "bash cmd code command commands expression function javascript python query script shell sql".split()
)
"""Names of arguments that usually contain code or a query. No pattern can say what such a text does."""
_TYPES = {
    "number": {"number", "integer"},
    "boolean": {"boolean"},
    "null": {"null"},
    "path": {"string"},
    "url": {"string"},
    "text": {"string"},
}
"""For each kind of pattern, the JSON schema types of the values that the pattern can judge."""
_OPEN = ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "patternProperties")


class Listed(Protocol):
    """A tool of a server: the fields of `mcp.types.Tool` that this module reads."""

    @property
    def name(self) -> str: ...
    @property
    def input_schema(self) -> Mapping[str, Any]: ...


def reports(rules: Sequence[tuple[Action, Rule]], tools: Sequence[Listed]) -> list[str]:
    """Returns one line for each rule that never decides, and for each pattern on code or a query."""
    covered: dict[str, str] = {}
    lines = []
    for action, rule in rules:
        named = [tool for tool in tools if rule.names(tool.name)]
        lines += [
            f'{action} "{rule.written}": {why}' for why in _problems(action, rule, named, tools, covered)
        ]
        if not rule.has_conditions:
            covered = {tool.name: f'{action} "{rule.written}"' for tool in named} | covered
    return lines


def _problems(
    action: Action, rule: Rule, named: Sequence[Listed], tools: Sequence[Listed], covered: Mapping[str, str]
) -> Iterator[str]:
    if not named:
        if not any(rule.names(method) for method in METHODS):
            name = rule.tool_name
            yield f"the server has no tool {name}{_near(name, [one.name for one in tools])}"
    elif all(tool.name in covered for tool in named):
        yield f"never decides, because {covered[named[0].name]} comes first"
    else:
        found = [_unusable(action, rule, tool) for tool in named]
        if all(found):
            yield found[0]
    for one in rule.conditions:
        if (
            one.pattern.is_glob
            and one.pattern.kind == "text"
            and one.name.split(".")[-1].lower() in LANGUAGES
        ):
            yield (
                f"a pattern on {one.name} also allows any other code that fits it"
                if action == "allow"
                else f"a pattern on {one.name} misses code that does the same in other words"
            )


def _unusable(action: Action, rule: Rule, tool: Listed) -> str:
    """Returns why the rule never decides a call of this tool; "" if it can."""
    schema = tool.input_schema
    for one in rule.conditions:
        if why := _unknown(schema, one, tool.name, action):
            return why
    for name in rule.exactly or ():
        if _is_closed(schema) and name not in _properties(schema):
            return f"{tool.name} has no argument {name}{_near(name, _properties(schema))}"
    if action == "allow" and rule.has_conditions and not rule.open:
        required = schema.get("required")
        given = rule.exactly or ()
        for name in required if isinstance(required, list) else ():
            if name not in given and not any(
                one.names(name) or one.is_inside(name) for one in rule.conditions
            ):
                return f"every call has the argument {name}: add {name}=* or end the rule with *"
    return ""


def _unknown(schema: Any, condition: Condition, tool: str, action: Action) -> str:
    """Returns why the condition can never hold (an unknown argument, or another type); "" if it can."""
    for step in condition.name.split("."):
        schema = _items(schema)
        if not _is_closed(schema):
            return ""
        if step not in _properties(schema):
            return f"{tool} has no argument {condition.name}{_near(step, _properties(schema))}"
        schema = _properties(schema)[step]
    schema = _items(schema)
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    fitting = _TYPES.get(condition.pattern.kind)
    if action != "allow" or not fitting or not isinstance(kind, str) or kind in fitting:
        return ""
    return f"{condition.name} of {tool} is of the type {kind}, so {condition.written} never holds"


def _items(schema: Any) -> Any:
    while isinstance(schema, Mapping) and schema.get("type") == "array":
        schema = schema.get("items")
    return schema


def _properties(schema: Any) -> Mapping[str, Any]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def _is_closed(schema: Any) -> bool:
    """Whether the schema seems to name all arguments: nothing in it allows other arguments."""
    if not isinstance(schema, Mapping) or any(key in schema for key in _OPEN):
        return False
    return schema.get("type", "object") == "object" and not schema.get("additionalProperties")


def _near(name: str, known: Any) -> str:
    near = get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""

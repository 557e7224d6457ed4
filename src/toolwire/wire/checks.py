"""Checks of single request fields, and the errors they raise.

A rule is a function of (path, value) that raises `ToolwireError` if the value is wrong. The table `FIELDS` of
each API's `decode.py` has the rules for the API's fields; `check` applies such a table to a body. Null counts
as absent. A path, such as `messages[0].role`, contains no text of the client. An error message shortens and
escapes a client's value. If this value is an object, the message does not contain its keys. `leftover` notes
the members of objects that are not read, so that the report can name them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolwire.core.errors import ToolwireError

Rule = Callable[[str, Any], None]
Note = tuple[str, str]

ALIASES = {"toolChoice": "tool_choice", "parallelToolCalls": "parallel_tool_calls"}
_ALIAS_OF = {name: alias for alias, name in ALIASES.items()}

NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
MAX_SHOWN = 64
MAX_TOKENS = 2**31 - 1
LONGEST_CALLED = 1024

_TYPES: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal number",
    str: "a string",
    list: "an array",
    dict: "an object",
}
TEXT_OR_PARTS = "one of a string or array of objects"


# --- errors ---


def json_type(value: Any) -> str:
    return _TYPES.get(type(value), "an unknown type")


def shown(value: Any) -> str:
    """Returns a client's value for an error message: shortened, and with control characters escaped."""
    text = value if isinstance(value, str) else str(value)
    cut = text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


def missing(path: str) -> ToolwireError:
    return ToolwireError("missing", f"Missing required parameter: '{path}'.", param=path)


def wrong_type(path: str, expected: str, value: Any) -> ToolwireError:
    message = f"Invalid type for '{path}': expected {expected}, but got {json_type(value)} instead."
    return ToolwireError("invalid_type", message, param=path)


def invalid(path: str, reason: str) -> ToolwireError:
    return ToolwireError("invalid_value", f"Invalid '{path}': {reason}", param=path)


def not_one_of(path: str, value: str, values: Sequence[str]) -> ToolwireError:
    quoted = [f"'{one}'" for one in values]
    comma = "," if len(values) > 2 else ""
    listed = f"{', '.join(quoted[:-1])}{comma} and {quoted[-1]}"
    message = f"Invalid value: '{shown(value)}'. Supported values are: {listed}."
    return ToolwireError("invalid_value", message, param=path)


def needs_logprobs() -> ToolwireError:
    message = "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled."
    return ToolwireError("invalid_request", message, param="top_logprobs")


def empty(path: str, noun: str) -> ToolwireError:
    article = "an" if noun == "array" else "a"
    expected = f"Expected {article} {noun} with minimum length 1, but got an empty {noun} instead."
    return invalid(path, f"empty {noun}. {expected}")


# --- rules ---


def boolean(path: str, value: Any) -> None:
    if type(value) is not bool:
        raise wrong_type(path, "a boolean", value)


def string(path: str, value: Any) -> None:
    if type(value) is not str:
        raise wrong_type(path, "a string", value)


def array(path: str, value: Any) -> None:
    if type(value) is not list:
        raise wrong_type(path, "an array", value)


def object_(path: str, value: Any) -> None:
    if type(value) is not dict:
        raise wrong_type(path, "an object", value)


TYPE_OF: dict[Rule, type] = {boolean: bool, string: str, array: list, object_: dict}
"""The type that a rule requires, for rules that check only the type.

For a value of exactly this type, the rule can be skipped.
"""


def strings(path: str, value: Any) -> None:
    array(path, value)
    for i, entry in enumerate(value):
        string(f"{path}[{i}]", entry)


def _bounds(path: str, value: float, low: float, high: float, noun: str) -> None:
    if not low <= value <= high:
        broken, limit = ("below minimum", f">= {low}") if value < low else ("above maximum", f"<= {high}")
        expected = f"Expected a value {limit}, but got {shown(value)} instead."
        raise invalid(path, f"{noun} {broken} value. {expected}")


def number(low: float, high: float) -> Rule:
    def rule(path: str, value: Any) -> None:
        if type(value) is not float and type(value) is not int:
            raise wrong_type(path, "a decimal number", value)
        _bounds(path, value, low, high, "decimal")

    return rule


def integer(low: int, high: int = MAX_TOKENS) -> Rule:
    def rule(path: str, value: Any) -> None:
        if type(value) is not int:
            raise wrong_type(path, "an integer", value)
        _bounds(path, value, low, high, "integer")

    return rule


def one_of(*values: str) -> Rule:
    def rule(path: str, value: Any) -> None:
        if value not in values:
            string(path, value)
            raise not_one_of(path, value, values)

    return rule


def members(rules: Mapping[str, Rule]) -> Rule:
    """Returns a rule that applies `rules` to the members of an object. Missing members are allowed."""

    def rule(path: str, value: Any) -> None:
        object_(path, value)
        for name, of_member in rules.items():
            optional(value, name, path, of_member)

    return rule


def metadata(path: str, value: Any) -> None:
    object_(path, value)
    if len(value) > 16:
        expected = f"Expected an object with at most 16, but got {len(value)} instead."
        raise invalid(path, f"too many properties. {expected}")
    for key, entry in value.items():
        if type(entry) is not str:
            raise wrong_type(path, "an object with string values", entry)
        if len(key) > 64 or len(entry) > 512:
            raise invalid(path, "string too long. Keys have at most 64 characters and values at most 512.")


def logit_bias(path: str, value: Any) -> None:
    object_(path, value)
    for bias in value.values():
        _BIAS(path, bias)


_BIAS = number(-100, 100)


def stop(path: str, value: Any) -> None:
    if type(value) is str:
        return
    if type(value) is not list:
        raise wrong_type(path, "one of a string or array of strings", value)
    strings(path, value)
    if len(value) > 4:
        expected = f"Expected an array with maximum length 4, but got {len(value)} instead."
        raise invalid(path, f"array too long. {expected}")


EFFORT = one_of("none", "minimal", "low", "medium", "high", "xhigh", "max")
VERBOSITY = one_of("low", "medium", "high")
SUMMARY = one_of("auto", "concise", "detailed")

COMMON: dict[str, Rule] = {
    "model": string,
    "stream": boolean,
    "store": boolean,
    "temperature": number(0, 2),
    "top_p": number(0, 1),
    "top_logprobs": integer(0, 20),
    "metadata": metadata,
    "user": string,
    "safety_identifier": string,
    "prompt_cache_key": string,
    "service_tier": string,
    "parallel_tool_calls": boolean,
}


HOLDERS: dict[str, str] = {"text": "format", "reasoning": "effort", "stream_options": "include_usage"}
"""Fields whose members are reported one by one.

The value of an entry is the member that the report calls by the field's own name: in the report, `text` means
`text.format`.
"""
MOST_NOTES = 16
"""The maximum number of unread fields that one report names."""
_SAFE = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,47}\Z")
_INDEX = re.compile(r"\[\d+\]")


# --- reading ---


def check(body: Mapping[str, Any], rules: Mapping[str, Rule]) -> frozenset[str]:
    """Applies the rules to the fields of the body. Returns the names of all fields that are not null.

    For the fields in `HOLDERS`, it also returns the names of their non-empty members, such as
    `text.verbosity`. A camelCase alias is returned under OpenAI's name.
    """
    sent = []
    for name, value in body.items():
        if value is None:
            continue
        name = ALIASES.get(name, name)
        sent.append(name)
        rule = rules.get(name)
        if rule is not None and type(value) is not TYPE_OF.get(rule):
            rule(name, value)
    for name, own in HOLDERS.items():
        if isinstance(held := body.get(name), dict):
            sent += [f"{name}.{member}" for member in held if member != own and held[member]]
    return frozenset(sent)


def is_safe(name: str) -> bool:
    """Returns True if a client's field name may appear in the report, which is an HTTP header."""
    return all(map(_SAFE.match, name.split(".", 1)))


def leftover(holder: Mapping[str, Any], read: frozenset[str], path: str, notes: list[Note]) -> None:
    """Adds a note for each non-empty member of `holder` that is not in `read`.

    The note names the member by its path without indexes, e.g. `messages.audio`.
    """
    if holder.keys() <= read:
        return
    where = _INDEX.sub("", path)
    for name in sorted(holder.keys() - read):
        note = (f"{where}.{name if is_safe(name) else 'unknown'}", "ignored")
        if holder[name] and note not in notes and len(notes) < MOST_NOTES:
            notes.append(note)


def note(notes: list[Note], name: str, disposition: str) -> None:
    """Adds a note, unless it is already there."""
    if (name, disposition) not in notes:
        notes.append((name, disposition))


def aliased(body: Mapping[str, Any], name: str) -> Any:
    """Returns a field that clients may also send in camelCase. OpenAI's spelling takes precedence."""
    value = body.get(name)
    return body.get(_ALIAS_OF[name]) if value is None else value


def model(body: Mapping[str, Any]) -> str:
    value: str | None = body.get("model")
    if not value:
        raise missing("model")
    return value


def required(holder: Mapping[str, Any], name: str, path: str, rule: Rule) -> Any:
    """Returns `holder[name]`. Raises an error if it is null, or if the rule refuses it.

    `path` is the path of the holder.
    """
    value = holder.get(name)
    if value is None:
        raise missing(f"{path}.{name}")
    if type(value) is not TYPE_OF.get(rule):
        rule(f"{path}.{name}", value)
    return value


def required_string(holder: Mapping[str, Any], name: str, path: str) -> str:
    """Returns the string `holder[name]`, which may be empty. Raises an error if it is no string."""
    value: str = required(holder, name, path, string)
    return value


def optional(holder: Mapping[str, Any], name: str, path: str, rule: Rule = string) -> Any:
    """Returns `holder[name]`, or None if it is null. Raises an error if the rule refuses the value."""
    value = holder.get(name)
    if value is not None and type(value) is not TYPE_OF.get(rule):
        rule(f"{path}.{name}", value)
    return value


def nested(holder: dict[str, Any], name: str, path: str, flat: str | None) -> tuple[dict[str, Any], str]:
    """Returns the object `holder[name]` and its path.

    Some clients write the members of that object directly into the holder. In this case, returns the holder
    and its path. `flat`: the name of a member that such a holder must have, or None.
    """
    inner = holder.get(name)
    if inner is None and (flat is None or holder.get(flat) is not None):
        return holder, path
    return required(holder, name, path, object_), f"{path}.{name}"


def required_id(holder: Mapping[str, Any], name: str, path: str) -> str:
    value = required_string(holder, name, path)
    if not value:
        raise empty(f"{path}.{name}", "string")
    return value


def required_name(holder: Mapping[str, Any], path: str) -> str:
    """Returns the name of a tool, a namespace or a schema. Raises an error if it does not match `NAME`."""
    value = required_string(holder, "name", path)
    if NAME.fullmatch(value) is None:
        expected = f"Expected a string that matches the pattern '^{NAME.pattern}$'."
        raise invalid(f"{path}.name", f"string does not match pattern. {expected}")
    return value


def called_name(holder: Mapping[str, Any], path: str) -> str:
    """Returns the name of a past call. Any printable name is accepted.

    Models write names that no tool may have (`functions.look:0`), and such a conversation must be able to
    continue.
    """
    value = required_string(holder, "name", path)
    if not value or len(value) > LONGEST_CALLED or not value.isprintable():
        raise invalid(f"{path}.name", f"expected a printable name of at most {LONGEST_CALLED} characters.")
    return value

"""The demo model: what it does with a turn, as steps of a script. Without anybody's script the scripted backend plays these."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jsonschema_rs

from toolwire.backends.scripted.script import Step
from toolwire.core.turn import Call, Message, Result, TextPart, ToolChoice, ToolSpec, Turn
from toolwire.emulate.arguments import load_object

# --- sample ------------------------------------------------------------
#
# Small valid instances of a JSON schema, for the demo model's calls. Pure. Patterns are tried by the
# schema library, whose engine can not be made to run long.

_DEEPEST = 12
_LONGEST = 10_000
_FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "email": "someone@example.com",
    "uri": "https://example.com/",
    "url": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "hostname": "example.com",
}


def sample(
    schema: Any, words: Sequence[str] = (), root: Mapping[str, Any] | None = None, depth: int = 0
) -> Any:
    """An instance with the required keys only.

    `words` are preferred for free strings (a demo that echoes the person's own words is easier to follow).
    """
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return {} if depth == 0 else None
    root = root if root is not None else schema
    schema = _resolved(schema, root)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            return sample(schema[key][0], words, root, depth + 1)
    return _typed(schema, words, root, depth)


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = root
        for step in reference[2:].split("/"):
            target = target.get(step) if isinstance(target, Mapping) else None
        if isinstance(target, Mapping):
            return target
    for part in schema.get("allOf") or () if isinstance(schema.get("allOf"), list) else ():
        if isinstance(part, Mapping):
            schema = {**schema, **_resolved(part, root)}
    return schema


def _typed(schema: Mapping[str, Any], words: Sequence[str], root: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    if kind == "array":
        return [
            sample(schema.get("items"), words, root, depth + 1)
            for _ in range(min(_length(schema.get("minItems")), 16))
        ]
    if kind == "boolean":
        return False
    if kind in ("integer", "number"):
        return _number(schema, kind)
    if kind == "string":
        return _string(schema, words)
    if kind == "null":
        return None
    properties, required = schema.get("properties"), schema.get("required")
    known = properties if isinstance(properties, Mapping) else {}
    keys = [key for key in required if isinstance(key, str)] if isinstance(required, list) else []
    return {key: sample(known.get(key), words, root, depth + 1) for key in keys}


def _number(schema: Mapping[str, Any], kind: str) -> float | int:
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    value: float = 1
    if isinstance(least, int | float) and value <= least:
        value = least + (1 if "exclusiveMinimum" in schema else 0)
    elif isinstance(most, int | float) and value >= most:
        value = most - (1 if "exclusiveMaximum" in schema else 0)
    step = schema.get("multipleOf")
    if isinstance(step, int | float) and step:
        value = step * max(1, -(-value // step))
    return int(value) if kind == "integer" or float(value).is_integer() else value


def _string(schema: Mapping[str, Any], words: Sequence[str]) -> str:
    known = _FORMATS.get(str(schema.get("format")))
    if known:
        return known
    least = _length(schema.get("minLength"))
    most = schema.get("maxLength")
    pattern = schema.get("pattern")
    for word in (*words, "text"):
        if len(word) < least or (isinstance(most, int) and len(word) > most):
            continue
        if isinstance(pattern, str) and not _matches(pattern, word):
            continue
        return word
    return "x" * least


def _length(value: Any) -> int:
    """A length that a demo can honour."""
    return min(value, _LONGEST) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _matches(pattern: str, word: str) -> bool:
    try:
        return bool(jsonschema_rs.is_valid({"type": "string", "pattern": pattern}, word))
    except (ValueError, RecursionError):
        return False


_ECHO = 2000  # characters of the request that the demo model repeats


def words_of(item: Message | Result | None) -> str:
    return "\n".join(part.text for part in item.parts if isinstance(part, TextPart)) if item else ""


def demo(turn: Turn) -> Iterator[Step]:
    """What the demo model does with a turn."""
    yield Step("chunk", number=8)
    results = _last_results(turn)
    user = words_of(
        next(
            (item for item in reversed(turn.items) if isinstance(item, Message) and item.role == "user"), None
        )
    )
    tool = (
        None
        if turn.tool_choice.mode == "none" or (results and turn.tool_choice.mode == "auto")
        else _choose(turn, user)
    )
    spelled = _spelled_out(turn, user) if tool is not None else []
    if spelled:
        first = _SAY_FIRST.search(user)
        if first:
            yield Step("raw", first[1])
        yield from spelled
    elif tool is not None:
        if tool.kind == "custom":
            yield Step("custom", user[:_ECHO], tool.name)
        else:
            yield Step(
                "call", json.dumps(sample(tool.parameters, _own_words(user)), ensure_ascii=False), tool.name
            )
    elif turn.output.type != "text" and turn.output.schema:
        yield Step("raw", json.dumps(sample(turn.output.schema, _own_words(user)), ensure_ascii=False))
    elif turn.output.type != "text":
        yield Step("raw", json.dumps({"answer": user}, ensure_ascii=False))
    elif results:
        names = {item.call_id: item.name for item in turn.items if isinstance(item, Call)}
        told = "; ".join(
            f"{result.name or names.get(result.call_id, 'the tool')} answered: {words_of(result)}"
            for result in results
        )
        yield Step("raw", told[:_ECHO])
    else:
        yield Step(
            "raw",
            f"You said: {user[:_ECHO]}\n\nI am Toolwire's demo model. I answer from a script; send me tools and I will call one.",
        )


def _last_results(turn: Turn) -> list[Result]:
    out: list[Result] = []
    for item in reversed(turn.items):
        if not isinstance(item, Result):
            break
        out.insert(0, item)
    return out


def _choose(turn: Turn, user: str) -> ToolSpec | None:
    """The named tool; for `required` the first that fits, or the first; else the first whose name or description shares a word with the request."""
    tools = [
        tool
        for tool in turn.tools
        if turn.tool_choice.allowed is None or tool.name in turn.tool_choice.allowed
    ]
    if turn.tool_choice.name:
        return next((tool for tool in tools if tool.name == turn.tool_choice.name), None)
    asked = set(_split(user))
    fitting = next((tool for tool in tools if asked & set(_split(tool.name + " " + tool.description))), None)
    return fitting or (tools[0] if tools and turn.tool_choice.mode == "required" else None)


_SAY_FIRST = re.compile(r'First write the sentence "([^"\n]{1,200})"')
_CALL_THIS = re.compile(r"[Cc]all the tool ([\w-]{1,64}) with the arguments (\{[^{}\n]{0,500}\})")


def _spelled_out(turn: Turn, user: str) -> list[Step]:
    """The calls that a request spells out, of the tools that may be called."""
    choice = turn.tool_choice
    may = {
        tool.name
        for tool in turn.tools
        if tool.kind == "function" and (choice.allowed is None or tool.name in choice.allowed)
    }
    may &= {choice.name} if choice.name else may
    found = [
        (name, arguments)
        for name, arguments in _CALL_THIS.findall(user[:_ECHO])
        if name in may and load_object(arguments) is not None
    ]
    return [Step("call", arguments, name) for name, arguments in found]


def _split(text: str) -> list[str]:
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", text)
    return [word for word in re.findall(r"[^\W_]{3,}", spaced.lower()) if word not in _COMMON]


_COMMON = frozenset(
    "the and for you your with what how does are can this that from get set tool call use now has have not all any please about".split()
)


def _own_words(user: str) -> list[str]:
    """Names in the request first (a word with a capital that does not begin a sentence), then the whole of it."""
    user = user[:_ECHO]
    names = re.findall(r"(?<![.!?]\s)(?<!^)\b[A-Z]\w+", user)
    return [*reversed(names[-8:]), user[:_ECHO]] if user else []


def as_read(turn: Turn) -> Turn:
    """What a text-only model makes of its prompt: the tools it was told of, whether it must call, and the results in the last message."""
    prompt = words_of(
        next((item for item in turn.items if isinstance(item, Message) and item.role == "system"), None)
    )
    listing = re.search(r"<tools>\n(.*?)\n</tools>", prompt, re.DOTALL)
    nonce = re.search(r"<tool_call:([0-9a-z]+)>", prompt)
    if listing is None or nonce is None:
        return turn
    tools = []
    for line in listing[1].splitlines():
        tool = json.loads(line)
        tools.append(ToolSpec(tool["name"], tool.get("description", ""), tool["parameters"]))
    named = re.search(r"You must call the tool (\S+) now", prompt)
    must = named is not None or "You must call at least one" in prompt
    choice = ToolChoice("required" if must else "auto", named[1] if named else None)
    items = [item for item in turn.items if not (isinstance(item, Message) and item.role == "system")]
    last = items[-1] if items else None
    blocks = re.findall(
        rf'<tool_result:{nonce[1]} id="([^"]*)"(?: name="([^"]*)")?>\n(.*?)\n</tool_result:{nonce[1]}>',
        words_of(last) if isinstance(last, Message) else "",
        re.DOTALL,
    )
    if blocks:
        items = items[:-1] + [Result(id, (TextPart(text),), name=name or None) for id, name, text in blocks]
    return replace(turn, tools=tuple(tools), tool_choice=choice, items=tuple(items))

"""The demo model: returns the steps with which it answers a turn."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import jsonschema_rs

from toolwire.backends.scripted.demo_vault import ABOUT, vault_answer, vault_call
from toolwire.backends.scripted.script import Step
from toolwire.core.turn import Call, Message, Result, TextPart, ToolChoice, ToolSpec, Turn
from toolwire.emulate.arguments import load_object

_ECHO = 2000
"""The maximum number of characters of the request that the demo model repeats."""


def text_of(item: Message | Result | None) -> str:
    return "\n".join(part.text for part in item.parts if isinstance(part, TextPart)) if item else ""


def users_text(turn: Turn) -> str:
    """Returns the text of the user's last message."""
    users = (item for item in reversed(turn.items) if isinstance(item, Message) and item.role == "user")
    return text_of(next(users, None))


def demo(turn: Turn) -> Iterator[Step]:
    """Yields the steps of an answer: calls, an example of the output schema, the results, or an echo."""
    yield Step("chunk", number=8)
    results, user, mode = _last_results(turn), users_text(turn), turn.tool_choice.mode
    may_call = mode != "none" and not (results and mode == "auto")
    suggested = vault_call(_allowed(turn), user) if may_call and mode == "auto" else None
    tool = _choose(turn, user) if may_call else None
    written = _written_calls(turn, user) if tool is not None else []
    thought = _THINK_FIRST.search(user)
    if thought and not results:
        yield Step("think", thought[1])
    if written:
        first = _SAY_FIRST.search(user)
        if first:
            yield Step("raw", first[1])
        yield from written
    elif suggested is not None:
        yield suggested
    elif tool is not None and tool.kind == "custom":
        yield Step("custom", user[:_ECHO], tool.name)
    elif tool is not None:
        yield Step("call", _json(sample(tool.parameters, _own_words(user))), tool.name)
    elif turn.output.type != "text":
        schema = turn.output.schema
        yield Step("raw", _json(sample(schema, _own_words(user)) if schema else {"answer": user}))
    elif results:
        yield Step("raw", _repeated(turn, results))
    else:
        about = (
            "I am Toolwire's demo model. I follow a script and understand nothing: I repeat your message, or "
            "call a tool if one fits. For real answers, choose another model."
        )
        yield Step("raw", f"You said: {user[:_ECHO]}\n\n{about}")


def _repeated(turn: Turn, results: Sequence[Result]) -> str:
    """Returns the tools' results: in prose if they come from the tools on notes, otherwise verbatim."""
    names = {item.call_id: item.name for item in turn.items if isinstance(item, Call)}
    named = [(result.name or names.get(result.call_id, "the tool"), text_of(result)) for result in results]
    prose = [vault_answer(name, text) for name, text in named]
    if all(one is not None for one in prose):
        return "\n\n".join([*(one[:_ECHO] for one in prose if one is not None), ABOUT])
    return "; ".join(f"{name} answered: {text}" for name, text in named)[:_ECHO]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _last_results(turn: Turn) -> list[Result]:
    last = takewhile(lambda item: isinstance(item, Result), reversed(turn.items))
    return [item for item in last if isinstance(item, Result)][::-1]


def _allowed(turn: Turn) -> list[ToolSpec]:
    choice = turn.tool_choice
    tools = [tool for tool in turn.tools if choice.allowed is None or tool.name in choice.allowed]
    return [tool for tool in tools if tool.name == choice.name] if choice.name else tools


def _choose(turn: Turn, user: str) -> ToolSpec | None:
    """Returns the tool to call, or None.

    - If the request requires a tool by name, returns this tool.
    - If the request names no tool, returns the first tool whose name or description shares a word with the
      user's message.
    - If there is no such tool and a call is required, returns the first tool.
    """
    tools = _allowed(turn)
    if turn.tool_choice.name:
        return next(iter(tools), None)
    asked = set(_split(user))
    fitting = (tool for tool in tools if asked & set(_split(f"{tool.name} {tool.description}")))
    return next(fitting, tools[0] if tools and turn.tool_choice.mode == "required" else None)


_THINK_FIRST = re.compile(r'Think the sentence "([^"\n]{1,200})"')
_SAY_FIRST = re.compile(r'First write the sentence "([^"\n]{1,200})"')
_CALL_THIS = re.compile(r"[Cc]all the tool ([\w-]{1,64}) with the arguments (\{[^{}\n]{0,500}\})")


def _written_calls(turn: Turn, user: str) -> list[Step]:
    """Returns the calls that the user's message contains literally, if their tools may be called."""
    names = {tool.name for tool in _allowed(turn) if tool.kind == "function"}
    return [
        Step("call", arguments, name)
        for name, arguments in _CALL_THIS.findall(user[:_ECHO])
        if name in names and load_object(arguments) is not None
    ]


def _split(text: str) -> list[str]:
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", text)
    return [word for word in re.findall(r"[^\W_]{3,}", spaced.lower()) if word not in _COMMON]


_COMMON = frozenset(
    (
        "the and for you your with what how does are can this that from get set tool call use now has have "
        "not all any please about"
    ).split()
)


def _own_words(user: str) -> list[str]:
    """Returns the names in the message (capitalized words inside a sentence), and then the whole message."""
    user = user[:_ECHO]
    names = re.findall(r"(?<![.!?]\s)(?<!^)\b[A-Z]\w+", user)
    return [*reversed(names[-8:]), user] if user else []


def as_read(turn: Turn) -> Turn:
    """Restores the fields of a turn whose tools were written into its prompt.

    For a model without tool calling, the gateway writes the tools, the required call and the results into the
    prompt. This function reads them from the prompt.
    """
    system = (item for item in turn.items if isinstance(item, Message) and item.role == "system")
    prompt = text_of(next(system, None))
    listing = re.search(r"<tools>\n(.*?)\n</tools>", prompt, re.DOTALL)
    nonce = re.search(r"<tool_call:([0-9a-z]+)>", prompt)
    if listing is None or nonce is None:
        return turn
    tools = [
        ToolSpec(tool["name"], tool.get("description", ""), tool["parameters"])
        for tool in map(json.loads, listing[1].splitlines())
    ]
    named = re.search(r"You must call the tool (\S+) now", prompt)
    must = named is not None or "You must call at least one" in prompt
    choice = ToolChoice("required" if must else "auto", named[1] if named else None)
    items = [item for item in turn.items if not (isinstance(item, Message) and item.role == "system")]
    last = items[-1] if items else None
    blocks = re.findall(
        rf'<tool_result:{nonce[1]} id="([^"]*)"(?: name="([^"]*)")?>\n(.*?)\n</tool_result:{nonce[1]}>',
        text_of(last) if isinstance(last, Message) else "",
        re.DOTALL,
    )
    if blocks:
        items = items[:-1] + [Result(id, (TextPart(text),), name=name or None) for id, name, text in blocks]
    return replace(turn, tools=tuple(tools), tool_choice=choice, items=tuple(items))


# --- small valid instances of a JSON schema, for the demo model's calls ---

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
    """Returns an instance of the schema with the required keys only.

    A string is the first of `words` that the schema allows.
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
    parts = schema.get("allOf")
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, Mapping):
            schema = {**schema, **_resolved(part, root)}
    return schema


def _typed(schema: Mapping[str, Any], words: Sequence[str], root: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    if kind == "array":
        count = min(_length(schema.get("minItems")), 16)
        return [sample(schema.get("items"), words, root, depth + 1) for _ in range(count)]
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
    least, most, pattern = _length(schema.get("minLength")), schema.get("maxLength"), schema.get("pattern")
    for word in (*words, "text"):
        fits = len(word) >= least and not (isinstance(most, int) and len(word) > most)
        if fits and (not isinstance(pattern, str) or _matches(pattern, word)):
            return word
    return "x" * least


def _length(value: Any) -> int:
    return min(value, _LONGEST) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _matches(pattern: str, word: str) -> bool:
    """Returns whether the word matches. Uses the schema library, whose regexes take linear time."""
    try:
        return bool(jsonschema_rs.is_valid({"type": "string", "pattern": pattern}, word))
    except (ValueError, RecursionError):
        return False

"""The demo model: what it does with a turn, as steps of a script. Without anybody's script the scripted backend plays these."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

from toolwire.backends.sample import sample
from toolwire.backends.script import Step
from toolwire.emulate.arguments import load_object
from toolwire.turn import Call, Message, Result, TextPart, ToolChoice, ToolSpec, Turn

_ECHO = 2000  # characters of the request that the demo model repeats


def words_of(item: Message | Result | None) -> str:
    return "\n".join(part.text for part in item.parts if isinstance(part, TextPart)) if item else ""


def demo(turn: Turn) -> Iterator[Step]:
    """What the demo model does with a turn."""
    yield Step("chunk", number=8)
    results = _last_results(turn)
    user = words_of(next((item for item in reversed(turn.items) if isinstance(item, Message) and item.role == "user"), None))
    tool = None if turn.tool_choice.mode == "none" or (results and turn.tool_choice.mode == "auto") else _choose(turn, user)
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
            yield Step("call", json.dumps(sample(tool.parameters, _own_words(user)), ensure_ascii=False), tool.name)
    elif turn.output.type != "text" and turn.output.schema:
        yield Step("raw", json.dumps(sample(turn.output.schema, _own_words(user)), ensure_ascii=False))
    elif turn.output.type != "text":
        yield Step("raw", json.dumps({"answer": user}, ensure_ascii=False))
    elif results:
        names = {item.call_id: item.name for item in turn.items if isinstance(item, Call)}
        told = "; ".join(f"{result.name or names.get(result.call_id, 'the tool')} answered: {words_of(result)}" for result in results)
        yield Step("raw", told[:_ECHO])
    else:
        yield Step("raw", f"You said: {user[:_ECHO]}\n\nI am Toolwire's demo model. I answer from a script; send me tools and I will call one.")


def _last_results(turn: Turn) -> list[Result]:
    out: list[Result] = []
    for item in reversed(turn.items):
        if not isinstance(item, Result):
            break
        out.insert(0, item)
    return out


def _choose(turn: Turn, user: str) -> ToolSpec | None:
    """The named tool; for `required` the first that fits, or the first; else the first whose name or description shares a word with the request."""
    tools = [tool for tool in turn.tools if turn.tool_choice.allowed is None or tool.name in turn.tool_choice.allowed]
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
    may = {tool.name for tool in turn.tools if tool.kind == "function" and (choice.allowed is None or tool.name in choice.allowed)}
    may &= {choice.name} if choice.name else may
    found = [(name, arguments) for name, arguments in _CALL_THIS.findall(user[:_ECHO]) if name in may and load_object(arguments) is not None]
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
    prompt = words_of(next((item for item in turn.items if isinstance(item, Message) and item.role == "system"), None))
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

"""The payload shapes that carry tool calls, as a table: what each is known by, and how its fragments are read.

Known shapes: Codex's JSON-RPC notifications and requests (also the older `codex/event/*`), Responses events and items, chat deltas and messages with
`tool_calls` or `function_call`. Envelopes are opened to any depth; an object that contains itself is visited once. Nothing is parsed or changed.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from toolwire.assemble import Fragment
from toolwire.events import CallKind

ENVELOPES = ("params", "msg", "message", "delta", "deltas", "event", "data", "payload", "item", "items", "choices", "response", "output", "result")
ID_KEYS = ("id", "tool_call_id", "toolCallId", "call_id", "callId", "item_id")
INDEX_KEYS = ("index", "tool_call_index", "toolCallIndex")
ARGUMENT_KEYS = ("arguments", "arguments_chunk", "argumentsChunk")
ITEM_KINDS: dict[str, tuple[CallKind, str]] = {"function_call": ("function", "arguments"), "custom_tool_call": ("custom", "input")}
RESULT_TYPES = ("function_call_output", "custom_tool_call_output")
GROWING: dict[str, tuple[CallKind, str, bool]] = {
    "function_call_arguments.delta": ("function", "delta", False),
    "function_call_arguments.done": ("function", "arguments", True),
    "custom_tool_call_input.delta": ("custom", "delta", False),
    "custom_tool_call_input.done": ("custom", "input", True),
}
PHANTOM = "resources/list failed"
ECHO = "auto-compact"


Payload = Mapping[str, Any]


def _text(node: Payload, *keys: str) -> str | None:
    return next((node[key] for key in keys if isinstance(node.get(key), str) and node[key]), None)


def _number(node: Payload, *keys: str) -> int | None:
    for key in keys:
        value = node.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        if isinstance(value, str) and value.isdecimal():
            return int(value)
    return None


def _type(node: Payload) -> str:
    kind = node.get("type")
    return kind if isinstance(kind, str) else ""


def _event_type(node: Payload) -> str:
    return _type(node).removeprefix("response.")


def _read_item(item: Payload, complete: bool) -> Fragment:
    kind, key = ITEM_KINDS[item["type"]]
    call_id, item_id = _text(item, "call_id", "callId"), _text(item, "id")
    arguments = item.get(key)
    return Fragment(None, call_id, _text(item, "name"), arguments if arguments != "" else None, kind, complete, alias=item_id)


def _item(node: Payload, whole: bool) -> list[Fragment]:
    """A call as an item: in Codex's raw items, and in the output of a response."""
    return [_read_item(node, complete=node.get("status") != "in_progress")]


def _item_event(node: Payload, whole: bool) -> list[Fragment]:
    item = node.get("item")
    if not isinstance(item, Mapping) or _type(item) not in ITEM_KINDS:
        return []
    fragment = _read_item(item, complete=_event_type(node).endswith("done"))
    if fragment.id is None and fragment.alias is None:
        fragment.index = _number(node, "output_index")
    return [fragment]


def _growing(node: Payload, whole: bool) -> list[Fragment]:
    kind, key, complete = GROWING[_event_type(node)]
    call_id, item_id = _text(node, "call_id", "callId"), _text(node, "item_id", "itemId")
    index = _number(node, "output_index") if call_id is None and item_id is None else None
    value = node.get(key)
    return [Fragment(index, call_id, _text(node, "name"), value if isinstance(value, str) else None, kind, complete, alias=item_id)]


def _agent_call(node: Payload, whole: bool) -> list[Fragment]:
    """Codex asks for a dynamic tool: `item/tool/call`, its item, or the older `dynamic_tool_call_request`. The arguments are parsed JSON."""
    return [Fragment(None, _text(node, "callId", "call_id", "id"), _text(node, "tool"), node.get("arguments"), complete=True)]


def _entry(entry: Payload, whole: bool, position: int | None) -> Fragment:
    kind: CallKind = "custom" if isinstance(entry.get("custom"), Mapping) else "function"
    inner = entry.get(kind)
    places: list[Payload] = [inner, entry] if isinstance(inner, Mapping) else [entry]
    keys = (*ARGUMENT_KEYS, "input") if kind == "custom" else ARGUMENT_KEYS
    arguments = next((place[key] for place in places for key in keys if place.get(key) is not None), None)
    name = next((found for place in places if (found := _text(place, "name"))), None)
    return Fragment(_number(entry, *INDEX_KEYS), _text(entry, *ID_KEYS), name, arguments, kind, whole, position=position)


def _chat(node: Payload, whole: bool) -> list[Fragment]:
    """`tool_calls` and the older `function_call`, in a chunk's delta or in a message."""
    entries = node.get("tool_calls") or node.get("toolCalls")
    entries = [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list | tuple) else []
    out = [_entry(entry, whole, at if whole or len(entries) > 1 else None) for at, entry in enumerate(entries)]
    legacy = node.get("function_call") or node.get("functionCall")
    if isinstance(legacy, Mapping):
        out.append(_entry(legacy, whole, len(entries) or None))
    return out


def _is_agent_call(node: Payload) -> bool:
    return isinstance(node.get("tool"), str) and "arguments" in node and _text(node, "callId", "call_id", "id") is not None and "server" not in node


Shape = tuple[Callable[[Payload], bool], Callable[[Payload, bool], list[Fragment]]]
SHAPES: tuple[Shape, ...] = (
    (lambda node: _event_type(node) in GROWING, _growing),
    (lambda node: _event_type(node) in ("output_item.added", "output_item.done"), _item_event),
    (lambda node: _type(node) in ITEM_KINDS, _item),
    (_is_agent_call, _agent_call),
    (lambda node: any(node.get(key) for key in ("tool_calls", "toolCalls", "function_call", "functionCall")), _chat),
)
"""Each row: what the shape is known by, and how its fragments are read. The first row that fits a node counts."""


def fragments(node: Payload, whole: bool) -> list[Fragment]:
    """The fragments of calls in one object. `whole`: it belongs to a final message, whose arguments are complete."""
    read = next((read for fits, read in SHAPES if fits(node)), None)
    return [] if read is None else read(node, whole)


def is_result(node: Payload) -> bool:
    """Whether the object is a tool's answer, which is no call."""
    return _type(node) in RESULT_TYPES or str(node.get("method", "")).endswith(RESULT_TYPES)


def is_phantom(node: Payload) -> bool:
    """Whether a result is Codex's own start-up probe, which no client asked for."""
    return PHANTOM in str(node.get("output", node))


def forbids_parallel(node: Payload) -> bool:
    return node.get("parallel_tool_calls") is False or node.get("parallelToolCalls") is False


# --- the way through the envelopes -------------------------------------------------------------------------------------------------------------

_READ_WHOLE = ("output_item.added", "output_item.done", *GROWING, *ITEM_KINDS)


def nodes(payload: Any, choice: int) -> Iterator[tuple[Payload, int]]:
    """Every object in the payload's envelopes, outermost first, with the choice it belongs to. What a shape has read whole is not opened again."""
    seen: set[int] = set()
    queue: list[tuple[Any, int, bool]] = [(payload, choice, False)]
    for node, number, in_choices in queue:
        if isinstance(node, list | tuple):
            queue += [(entry, number, in_choices) for entry in node]
        elif isinstance(node, Mapping) and id(node) not in seen:
            seen.add(id(node))
            if str(node.get("turnId", "")).startswith(ECHO):
                continue  # Codex repeats injected history under this turn
            number += (_number(node, "index") or 0) if in_choices else 0
            yield node, number
            if _event_type(node) not in _READ_WHOLE and not is_result(node):
                queue += [(node[key], number, key == "choices") for key in ENVELOPES if key in node]


def content(payload: Any) -> str:
    """The text of a message: a string, or parts."""
    if isinstance(payload, str):
        return payload
    if isinstance(payload, list | tuple):
        return "".join(content(part) for part in payload)
    if not isinstance(payload, Mapping):
        return ""
    text = next((payload[key] for key in ("content", "text") if payload.get(key)), None)
    if text is not None:
        return content(text)
    return next((found for node, _ in nodes(payload, 0) if (found := content(node.get("content") or node.get("text")))), "")

"""The payload shapes that contain tool calls, as a table: how each is recognized and read.

Known shapes: Codex's JSON-RPC notifications and requests (also the older `codex/event/*`), Responses events
and items, chat deltas and messages with `tool_calls` or `function_call`. Payloads may be wrapped in other
objects, called envelopes here (`params`, `delta`, `choices`, …), to any depth. An object that contains itself
is read once, and at most `STEPS` objects are read. Unknown shapes are ignored.
Payloads are never changed, and the text of arguments is never parsed. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from toolwire.core.assemble import Fragment
from toolwire.core.events import CallKind

ENVELOPES = tuple(
    "params msg message delta deltas event data payload item items choices response output result".split()
)
ID_KEYS = ("id", "tool_call_id", "toolCallId", "call_id", "callId", "item_id")
AGENT_ID_KEYS = ("callId", "call_id", "id")
INDEX_KEYS = ("index", "tool_call_index", "toolCallIndex")
ARGUMENT_KEYS = ("arguments", "arguments_chunk", "argumentsChunk")
ITEM_KINDS: dict[str, tuple[CallKind, str]] = {
    "function_call": ("function", "arguments"),
    "custom_tool_call": ("custom", "input"),
}
CHAT_KEYS = ("tool_calls", "toolCalls", "function_call", "functionCall")
RESULT_TYPES = ("function_call_output", "custom_tool_call_output")
GROWING: dict[str, tuple[CallKind, str, bool]] = {
    "function_call_arguments.delta": ("function", "delta", False),
    "function_call_arguments.done": ("function", "arguments", True),
    "custom_tool_call_input.delta": ("custom", "delta", False),
    "custom_tool_call_input.done": ("custom", "input", True),
}
STEPS = 20_000
NUMBER_LIMIT = 10**9
PHANTOM = "resources/list failed"
ECHO = "auto-compact"


Payload = Mapping[str, Any]


def _text(node: Payload, *keys: str) -> str | None:
    return next((node[key] for key in keys if isinstance(node.get(key), str) and node[key]), None)


def _number(node: Payload, *keys: str) -> int | None:
    for key in keys:
        value = node.get(key)
        if isinstance(value, str) and value.isdecimal() and len(value) < 10:
            return int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < NUMBER_LIMIT:
            return value
    return None


def _arguments(value: Any) -> Any:
    """Returns the arguments if they are text or a JSON value, otherwise None."""
    return value if isinstance(value, str | dict | list | tuple | int | float) else None


def _type(node: Payload) -> str:
    kind = node.get("type")
    return kind if isinstance(kind, str) else ""


def _event_type(node: Payload) -> str:
    return _type(node).removeprefix("response.")


def _read_item(item: Payload, complete: bool) -> Fragment:
    kind, key = ITEM_KINDS[item["type"]]
    call_id, item_id = _text(item, "call_id", "callId"), _text(item, "id")
    arguments = _arguments(item.get(key))
    arguments = None if arguments == "" else arguments
    return Fragment(None, call_id, _text(item, "name"), arguments, kind, complete, alias=item_id)


def _item(node: Payload, whole: bool) -> list[Fragment]:
    """Reads a call that is an item, as in Codex's raw items and in the output of a response."""
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
    value = node.get(key) if isinstance(node.get(key), str) else None
    return [Fragment(index, call_id, _text(node, "name"), value, kind, complete, alias=item_id)]


def _agent_call(node: Payload, whole: bool) -> list[Fragment]:
    """Reads Codex's call of a dynamic tool, whose arguments are already parsed.

    The object is a request `item/tool/call`, its item, or the older event `dynamic_tool_call_request`.
    """
    call_id, arguments = _text(node, *AGENT_ID_KEYS), _arguments(node.get("arguments"))
    return [Fragment(None, call_id, _text(node, "tool"), arguments, complete=True)]


def _entry(entry: Payload, whole: bool, position: int | None) -> Fragment:
    kind: CallKind = "custom" if isinstance(entry.get("custom"), Mapping) else "function"
    inner = entry.get(kind)
    places: list[Payload] = [inner, entry] if isinstance(inner, Mapping) else [entry]
    keys = (*ARGUMENT_KEYS, "input") if kind == "custom" else ARGUMENT_KEYS
    arguments = next((place[key] for place in places for key in keys if place.get(key) is not None), None)
    name = next((found for place in places if (found := _text(place, "name"))), None)
    index, id = _number(entry, *INDEX_KEYS), _text(entry, *ID_KEYS)
    return Fragment(index, id, name, _arguments(arguments), kind, whole, position=position)


def _chat(node: Payload, whole: bool) -> list[Fragment]:
    """Reads `tool_calls` and the older `function_call` of a chunk's delta or of a message."""
    listed = node.get("tool_calls") or node.get("toolCalls")
    listed = listed if isinstance(listed, list | tuple) else ()
    entries = [entry for entry in listed if isinstance(entry, Mapping)]
    many = whole or len(entries) > 1
    out = [_entry(entry, whole, at if many else None) for at, entry in enumerate(entries)]
    if whole:
        _distinguish(out)
    legacy = node.get("function_call") or node.get("functionCall")
    if isinstance(legacy, Mapping):
        out.append(_entry(legacy, whole, len(entries) or None))
    return out


def _distinguish(entries: list[Fragment]) -> None:
    """Makes every entry of a final message a separate call.

    If an earlier entry has the same index, this entry's index is removed. If an earlier entry has the same
    id, this entry's id and index are removed. The entry is then identified by its id or its position.
    """
    ids: set[str | None] = {None}
    indexes: set[int | None] = {None}
    for entry in entries:
        repeats_id, repeats_index = entry.id is not None and entry.id in ids, entry.index in indexes
        ids.add(entry.id)
        indexes.add(entry.index)
        if repeats_id or repeats_index:
            entry.index = None
        if repeats_id:
            entry.id = None


def _is_agent_call(node: Payload) -> bool:
    is_call = isinstance(node.get("tool"), str) and "arguments" in node and "server" not in node
    return is_call and _text(node, *AGENT_ID_KEYS) is not None


Shape = tuple[Callable[[Payload], bool], Callable[[Payload, bool], list[Fragment]]]
SHAPES: tuple[Shape, ...] = (
    (lambda node: _event_type(node) in GROWING, _growing),
    (lambda node: _event_type(node) in ("output_item.added", "output_item.done"), _item_event),
    (lambda node: _type(node) in ITEM_KINDS, _item),
    (_is_agent_call, _agent_call),
    (lambda node: any(map(node.get, CHAT_KEYS)), _chat),
)
"""For each shape, a function that recognizes it and one that reads it. The first match counts."""


def fragments(node: Payload, whole: bool) -> list[Fragment]:
    """Returns the fragments of calls in one object. `whole`: the object is part of a final message."""
    read = next((read for fits, read in SHAPES if fits(node)), None)
    return [] if read is None else read(node, whole)


def is_result(node: Payload) -> bool:
    """Returns True if the object is a tool's result."""
    return _type(node) in RESULT_TYPES or (_text(node, "method") or "").endswith(RESULT_TYPES)


def is_phantom(node: Payload) -> bool:
    """Returns True if a result belongs to the probe that Codex itself makes at start-up."""
    return any(PHANTOM in text for text in _texts(node.get("output", node)))


def _texts(value: Any) -> Iterator[str]:
    """Yields every text in a value, at any depth."""
    seen: set[int] = set()
    queue = [value]
    for inner in islice(queue, STEPS):
        if isinstance(inner, str):
            yield inner
        elif isinstance(inner, list | tuple | Mapping) and id(inner) not in seen:
            seen.add(id(inner))
            queue += islice(inner.values() if isinstance(inner, Mapping) else inner, STEPS)


def forbids_parallel(node: Payload) -> bool:
    return node.get("parallel_tool_calls") is False or node.get("parallelToolCalls") is False


# --- envelopes ---

_READ_WHOLE = ("output_item.added", "output_item.done", *GROWING, *ITEM_KINDS)


def nodes(payload: Any, choice: int) -> Iterator[tuple[Payload, int]]:
    """Yields the payload and the objects inside it, outermost first, each with its choice's index.

    Only the keys of `ENVELOPES` are followed. Tool results are not searched, and neither are the events and
    items in `_READ_WHOLE`. `choice`: the index of the payload's first choice.
    """
    seen: set[int] = set()
    queue: list[tuple[Any, int, bool]] = [(payload, choice, False)]
    for node, number, in_choices in islice(queue, STEPS):
        if not isinstance(node, list | tuple | Mapping) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, list | tuple):
            queue += [(entry, number, in_choices) for entry in islice(node, STEPS)]
        else:
            if (_text(node, "turnId") or "").startswith(ECHO):
                continue  # Codex repeats injected history in this turn
            number += (_number(node, "index") or 0) if in_choices else 0
            yield node, number
            if _event_type(node) not in _READ_WHOLE and not is_result(node):
                queue += [(node[key], number, key == "choices") for key in ENVELOPES if key in node]


def content(payload: Any) -> str:
    """Returns the text of a message: its string or its text parts, even if `ENVELOPES` wrap the message."""
    texts: list[str] = []
    path: set[int] = set()  # the values that are being read, so that a cycle is read once
    stack: list[tuple[Any, bool]] = [(payload, False)]
    steps = iter(range(STEPS))
    while stack and next(steps, None) is not None:
        value, is_read = stack.pop()
        if is_read:
            path.discard(id(value))
        elif isinstance(value, str):
            texts.append(value)
        elif isinstance(value, list | tuple | Mapping) and id(value) not in path:
            path.add(id(value))
            stack.append((value, True))
            parts = reversed(value) if isinstance(value, list | tuple) else [_text_of(value, steps)]
            stack += [(part, False) for part in parts]
    return "".join(texts)


def _text_of(node: Payload, steps: Iterator[int]) -> Any:
    """Returns the content or text of the object itself.

    If this is empty or missing, returns the first content or text of an object inside it (under a key of
    `ENVELOPES`), or None.
    """
    own = node.get("content") or node.get("text")
    if own or not any(key in node for key in ENVELOPES):
        return own
    for _, (inner, _) in zip(steps, nodes(node, 0), strict=False):
        if found := inner.get("content") or inner.get("text"):
            return found
    return None

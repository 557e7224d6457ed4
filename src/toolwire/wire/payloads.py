"""The payload shapes that carry tool calls, as a table: how each is recognized and read.

Known shapes: Codex's JSON-RPC notifications and requests (also the older `codex/event/*`), Responses events
and items, chat deltas and messages with `tool_calls` or `function_call`. Envelopes are opened to any depth,
cyclic ones once, in at most `STEPS` steps. Unknown shapes are ignored. Nothing is parsed or changed. Standard
library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from toolwire.core.assemble import Fragment
from toolwire.core.events import CallKind

ENVELOPES = (
    "params",
    "msg",
    "message",
    "delta",
    "deltas",
    "event",
    "data",
    "payload",
    "item",
    "items",
    "choices",
    "response",
    "output",
    "result",
)
ID_KEYS = ("id", "tool_call_id", "toolCallId", "call_id", "callId", "item_id")
INDEX_KEYS = ("index", "tool_call_index", "toolCallIndex")
ARGUMENT_KEYS = ("arguments", "arguments_chunk", "argumentsChunk")
ITEM_KINDS: dict[str, tuple[CallKind, str]] = {
    "function_call": ("function", "arguments"),
    "custom_tool_call": ("custom", "input"),
}
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
    """The arguments, if they are text or a JSON value."""
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
    return Fragment(
        None,
        call_id,
        _text(item, "name"),
        None if arguments == "" else arguments,
        kind,
        complete,
        alias=item_id,
    )


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
    return [
        Fragment(
            index,
            call_id,
            _text(node, "name"),
            value if isinstance(value, str) else None,
            kind,
            complete,
            alias=item_id,
        )
    ]


def _agent_call(node: Payload, whole: bool) -> list[Fragment]:
    """Codex's call of a dynamic tool, with parsed arguments.

    This is `item/tool/call`, its item, or the older `dynamic_tool_call_request`.
    """
    return [
        Fragment(
            None,
            _text(node, "callId", "call_id", "id"),
            _text(node, "tool"),
            _arguments(node.get("arguments")),
            complete=True,
        )
    ]


def _entry(entry: Payload, whole: bool, position: int | None) -> Fragment:
    kind: CallKind = "custom" if isinstance(entry.get("custom"), Mapping) else "function"
    inner = entry.get(kind)
    places: list[Payload] = [inner, entry] if isinstance(inner, Mapping) else [entry]
    keys = (*ARGUMENT_KEYS, "input") if kind == "custom" else ARGUMENT_KEYS
    arguments = next((place[key] for place in places for key in keys if place.get(key) is not None), None)
    name = next((found for place in places if (found := _text(place, "name"))), None)
    return Fragment(
        _number(entry, *INDEX_KEYS),
        _text(entry, *ID_KEYS),
        name,
        _arguments(arguments),
        kind,
        whole,
        position=position,
    )


def _chat(node: Payload, whole: bool) -> list[Fragment]:
    """`tool_calls` and the older `function_call`, in a chunk's delta or in a message."""
    entries = node.get("tool_calls") or node.get("toolCalls")
    entries = (
        [entry for entry in entries if isinstance(entry, Mapping)]
        if isinstance(entries, list | tuple)
        else []
    )
    out = [
        _entry(entry, whole, at if whole or len(entries) > 1 else None) for at, entry in enumerate(entries)
    ]
    if whole:
        _tell_apart(out)
    legacy = node.get("function_call") or node.get("functionCall")
    if isinstance(legacy, Mapping):
        out.append(_entry(legacy, whole, len(entries) or None))
    return out


def _tell_apart(entries: list[Fragment]) -> None:
    """Makes every entry of a message its own call. A repeated id or index is replaced by the position."""
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
    return (
        isinstance(node.get("tool"), str)
        and "arguments" in node
        and _text(node, "callId", "call_id", "id") is not None
        and "server" not in node
    )


Shape = tuple[Callable[[Payload], bool], Callable[[Payload, bool], list[Fragment]]]
SHAPES: tuple[Shape, ...] = (
    (lambda node: _event_type(node) in GROWING, _growing),
    (lambda node: _event_type(node) in ("output_item.added", "output_item.done"), _item_event),
    (lambda node: _type(node) in ITEM_KINDS, _item),
    (_is_agent_call, _agent_call),
    (
        lambda node: any(
            node.get(key) for key in ("tool_calls", "toolCalls", "function_call", "functionCall")
        ),
        _chat,
    ),
)
"""How each shape is recognized and read. The first row that matches counts."""


def fragments(node: Payload, whole: bool) -> list[Fragment]:
    """The fragments of calls in one object.

    `whole`: it is part of a final message with complete arguments.
    """
    read = next((read for fits, read in SHAPES if fits(node)), None)
    return [] if read is None else read(node, whole)


def is_result(node: Payload) -> bool:
    """Whether the object is a tool's result."""
    return _type(node) in RESULT_TYPES or (_text(node, "method") or "").endswith(RESULT_TYPES)


def is_phantom(node: Payload) -> bool:
    """Whether a result belongs to Codex's own start-up probe."""
    return any(PHANTOM in text for text in _texts(node.get("output", node)))


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value, at any depth."""
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
    """Every object in the payload's envelopes, outermost first, with its choice.

    An object that a shape reads whole is not opened again.
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
    """The text of a message: a string or parts, also inside its envelopes."""
    texts: list[str] = []
    path: set[int] = set()  # values being read, so that a cycle is read once
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
            stack += [
                (part, False)
                for part in (reversed(value) if isinstance(value, list | tuple) else [_spoken(value, steps)])
            ]
    return "".join(texts)


def _spoken(node: Payload, steps: Iterator[int]) -> Any:
    """The object's own text or parts, else those of the first object in its envelopes that has some."""
    own = node.get("content") or node.get("text")
    if own or not any(key in node for key in ENVELOPES):
        return own
    return next(
        (
            found
            for _, (inner, _) in zip(steps, nodes(node, 0), strict=False)
            if (found := inner.get("content") or inner.get("text"))
        ),
        None,
    )

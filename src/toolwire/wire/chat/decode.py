"""Decodes a chat completions request into a `Turn`.

Accepts the shapes that OpenAI documents, and further shapes that clients send: empty assistant messages,
messages with calls and the `content` null or "", `name` on tool messages, flat tools, `toolChoice` and
`parallelToolCalls` in camelCase, and legacy `functions`. All fields that are not in `READ`, including unknown
fields, are kept in `Turn.rest` for backends that accept them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolwire.core.events import CallKind
from toolwire.core.turn import (
    NO_SAMPLING,
    Call,
    Item,
    Message,
    Reasoning,
    Result,
    Sampling,
    TextPart,
    ToolChoice,
    ToolSpec,
    Turn,
)
from toolwire.wire import content
from toolwire.wire.checks import (
    COMMON,
    EFFORT,
    VERBOSITY,
    Note,
    Rule,
    aliased,
    array,
    boolean,
    called_name,
    check,
    empty,
    integer,
    leftover,
    logit_bias,
    members,
    missing,
    model,
    needs_logprobs,
    number,
    object_,
    one_of,
    optional,
    required,
    required_id,
    required_string,
    stop,
    strings,
    wrong_type,
)
from toolwire.wire.history import LEGACY_ID, pair
from toolwire.wire.tools import NOTHING, RequestTools

MAX_N = 128
"""OpenAI's limit for `n`. `gateway/source.py` runs only a few choices at a time."""

FIELDS: dict[str, Rule] = {
    **COMMON,
    "messages": array,
    "n": integer(1, MAX_N),
    "stream_options": members({"include_usage": boolean, "include_obfuscation": boolean}),
    "max_tokens": integer(1),
    "max_completion_tokens": integer(1),
    "stop": stop,
    "seed": integer(-(2**63), 2**63 - 1),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "logit_bias": logit_bias,
    "logprobs": boolean,
    "reasoning_effort": EFFORT,
    "verbosity": VERBOSITY,
    "modalities": strings,
    "audio": object_,
    "prediction": object_,
    "web_search_options": object_,
}
SAMPLED = frozenset(
    "temperature top_p max_tokens max_completion_tokens stop seed presence_penalty frequency_penalty "
    "logit_bias reasoning_effort verbosity logprobs top_logprobs".split()
)
TOOLED = frozenset({"tools", "functions", "tool_choice", "function_call"})
READ = (
    SAMPLED
    | TOOLED
    | {"model", "messages", "n", "stream", "stream_options", "parallel_tool_calls", "response_format", "user"}
)
"""The fields that this module reads. All other fields are kept in `Turn.rest`."""
_OF_SPEAKER = frozenset({"role", "content", "name"})
OF_ROLE: dict[str, frozenset[str]] = {
    "system": _OF_SPEAKER,
    "assistant": _OF_SPEAKER | {"refusal", "tool_calls", "function_call", "reasoning_content"},
    "user": _OF_SPEAKER,
    "function": _OF_SPEAKER,
    "tool": _OF_SPEAKER | {"tool_call_id"},
    "developer": _OF_SPEAKER,
}
"""The members of a message that are read, by the message's role."""
_ROLE = one_of(*OF_ROLE)
OF_CALL = frozenset({"id", "type", "function", "custom", "index"})
OF_FUNCTION = frozenset({"name", "arguments", "input"})
_CALL_KIND = one_of("function", "custom")


def decode(body: Mapping[str, Any], caller: str = "") -> Turn:
    """Returns the turn of a chat completions request. `caller` is the id of the caller's API key."""
    sent = check(body, FIELDS)
    name = model(body)
    noted: list[Note] = []
    items, repairs = _history(body.get("messages"), noted)
    specs: tuple[ToolSpec, ...] = ()
    choice, legacy = NOTHING, False
    if not sent.isdisjoint(TOOLED):
        specs, choice, legacy, of_tools = _tools(body)
        noted += of_tools
    parallel = aliased(body, "parallel_tool_calls") if "parallel_tool_calls" in sent else None
    shape, options, output = body.get("response_format"), body.get("stream_options"), content.TEXT
    if shape is not None:
        output = content.read_format(shape, "response_format", "chat", noted)
    return Turn(
        api="chat",
        caller=caller,
        model=name,
        items=items,
        tools=specs,
        tool_choice=choice,
        parallel=not legacy and parallel is not False,
        output=output,
        sampling=NO_SAMPLING if sent.isdisjoint(SAMPLED) else _sampling(body),
        n=body.get("n") or 1,
        stream=body.get("stream") is True,
        include_usage=options is not None and options.get("include_usage") is True,
        legacy_functions=legacy,
        store=body.get("store") is True,
        metadata=body.get("metadata") or {},
        user=body.get("user"),
        sent=sent,
        notes=(*repairs, *noted),
        rest={} if sent <= READ else {field: body[field] for field in sent - READ if field in body},
    )


def _sampling(body: Mapping[str, Any]) -> Sampling:
    limit, stops = body.get("max_completion_tokens"), body.get("stop") or ()
    logprobs, top = body.get("logprobs") is True, body.get("top_logprobs") or 0
    if top and not logprobs:
        raise needs_logprobs()
    return Sampling(
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        max_tokens=body.get("max_tokens") if limit is None else limit,
        stop=(stops,) if type(stops) is str else tuple(filter(None, stops)),
        seed=body.get("seed"),
        presence_penalty=body.get("presence_penalty"),
        frequency_penalty=body.get("frequency_penalty"),
        logit_bias=body.get("logit_bias"),
        effort=body.get("reasoning_effort"),
        verbosity=body.get("verbosity"),
        logprobs=top if logprobs else None,
    )


def _tools(body: Mapping[str, Any]) -> tuple[tuple[ToolSpec, ...], ToolChoice, bool, tuple[Note, ...]]:
    box = RequestTools("chat")
    tools, functions, function_call = body.get("tools"), body.get("functions"), body.get("function_call")
    legacy = tools is None and functions is not None
    if tools is not None:
        box.read(tools)
        box.notes += [
            (name, "ignored") for name in ("functions", "function_call") if body.get(name) is not None
        ]
    elif legacy:
        box.read_legacy(functions)
    if tools is None and function_call is not None:
        choice = box.choose_legacy(function_call)
    else:
        choice = box.choose(aliased(body, "tool_choice"))[0]
    return box.specs, choice, legacy, tuple(box.notes)


# --- messages ---


def _history(messages: Any, notes: list[Note]) -> tuple[tuple[Item, ...], tuple[Note, ...]]:
    if messages is None:
        raise missing("messages")
    if not messages:
        raise empty("messages", "array")
    items: list[Item] = []
    paths: list[str] = []
    legacy_calls = 0
    for i, message in enumerate(messages):
        path = f"messages[{i}]"
        if type(message) is not dict:
            raise wrong_type(path, "an object", message)
        role: Any = message.get("role")
        if type(role) is not str or role not in OF_ROLE:
            required(message, "role", path, _ROLE)  # raises the error
        if not message.keys() <= OF_ROLE[role]:
            leftover(message, OF_ROLE[role], "messages", notes)
        if role == "assistant":
            legacy_calls = _assistant(message, path, items, paths, legacy_calls, notes)
        elif role == "tool" or role == "function":
            items.append(_result(message, role, path, notes))
            paths.append(f"{path}.tool_call_id" if role == "tool" else f"{path}.name")
        else:
            said, name = (
                message.get("content"),
                optional(message, "name", path) if "name" in message else None,
            )
            if said and type(said) is str:
                items.append(Message(role, (TextPart(said),), name))
            else:
                parts, refusal = content.read(said, f"{path}.content", notes)
                items.append(Message(role, parts, name, refusal))
            paths.append("")
    if not any(paths):  # no call and no result
        return tuple(items), ()
    return pair(items, paths, "messages")


def _result(message: dict[str, Any], role: str, path: str, notes: list[Note]) -> Result:
    text, where = message.get("content"), f"{path}.content"
    if role == "tool":
        call_id = required_id(message, "tool_call_id", path)
        name = optional(message, "name", path)
        return Result(call_id, content.read_parts(text, where, notes), name=name)
    name = called_name(message, path)
    return Result(LEGACY_ID, content.read_parts("" if text is None else text, where, notes), name=name)


def _assistant(
    message: dict[str, Any],
    path: str,
    items: list[Item],
    paths: list[str],
    legacy_calls: int,
    notes: list[Note],
) -> int:
    """Adds the items of an assistant message to `items`. Returns `legacy_calls` plus the legacy calls in it.

    `paths` gets one entry per item: for a call, the path of its id, such as
    `messages[2].tool_calls[0].id`, or the path of the legacy call. For any other item, the entry is "".
    """
    text = message.get("content")
    parts, refused = content.read("" if text is None else text, f"{path}.content", notes)
    refusal = optional(message, "refusal", path) or refused
    calls = optional(message, "tool_calls", path, array)
    legacy = optional(message, "function_call", path, object_)
    thoughts = message.get(
        "reasoning_content"
    )  # clients of open models send reasoning back, so that the model still has it in a tool loop
    if type(thoughts) is str and thoughts:
        items.append(Reasoning(content=(thoughts,)))
        paths.append("")
    if parts or refusal or not (calls or legacy):
        items.append(Message("assistant", parts, optional(message, "name", path), refusal))
        paths.append("")
    for k, call in enumerate(calls or ()):
        where = f"{path}.tool_calls[{k}]"
        items.append(_call(call, where, notes))
        paths.append(f"{where}.id")
    if legacy is not None:
        where = f"{path}.function_call"
        name, arguments = called_name(legacy, where), required_string(legacy, "arguments", where)
        items.append(Call(f"call_legacy_{legacy_calls}", name, arguments))
        paths.append(where)
        legacy_calls += 1
    return legacy_calls


def _call(call: Any, path: str, notes: list[Note]) -> Call:
    object_(path, call)
    leftover(call, OF_CALL, path, notes)
    call_id = required_id(call, "id", path)
    kind: CallKind = optional(call, "type", path, _CALL_KIND) or "function"
    inner, where = required(call, kind, path, object_), f"{path}.{kind}"
    leftover(inner, OF_FUNCTION, where, notes)
    arguments = "input" if kind == "custom" else "arguments"
    return Call(call_id, called_name(inner, where), required_string(inner, arguments, where), kind)

"""Decodes a chat completions request into a `Turn`.

Accepts the shapes that OpenAI documents and those that clients send besides: empty assistant messages,
`content` null or "" with calls, `name` on tool messages, flat tools, camelCase `toolChoice` and
`parallelToolCalls`, legacy `functions`. Fields that are not read here, unknown ones included, are kept in
`Turn.rest` for backends that accept them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    integer,
    invalid,
    leftover,
    logit_bias,
    members,
    missing,
    model,
    not_one_of,
    number,
    object_,
    optional_string,
    required_id,
    required_string,
    stop,
    strings,
    wrong_type,
)
from toolwire.wire.history import LEGACY_ID, pair
from toolwire.wire.tools import NOTHING, RequestTools

MAX_N = 128
"""OpenAI's limit. `gateway/choices.py` runs only a few at a time."""

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
    {
        "temperature",
        "top_p",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "reasoning_effort",
        "verbosity",
    }
)
TOOLED = frozenset({"tools", "functions", "tool_choice", "function_call"})
READ = (
    SAMPLED
    | TOOLED
    | {"model", "messages", "n", "stream", "stream_options", "parallel_tool_calls", "response_format", "user"}
)
"""The fields that this module reads. The others are kept in `Turn.rest`."""
OF_ROLE: dict[str, frozenset[str]] = {
    **dict.fromkeys(("system", "developer", "user", "function"), frozenset({"role", "content", "name"})),
    "assistant": frozenset(
        {"role", "content", "name", "refusal", "tool_calls", "function_call", "reasoning_content"}
    ),
    "tool": frozenset({"role", "content", "name", "tool_call_id"}),
}
"""The members of a message that are read, by its role."""
OF_CALL = frozenset({"id", "type", "function", "custom", "index"})
OF_FUNCTION = frozenset({"name", "arguments", "input"})
SPEAKERS = frozenset({"system", "developer", "user"})
ROLES = ("system", "assistant", "user", "function", "tool", "developer")

_LEGACY_PREFIX = "call_legacy_"


def decode(body: Mapping[str, Any], caller: str = "") -> Turn:
    """The turn of a chat completions request. `caller` is the id of the caller's key."""
    sent = check(body, FIELDS)
    name = model(body)
    noted: list[Note] = []
    items, healed = _history(body.get("messages"), noted)
    specs: tuple[ToolSpec, ...] = ()
    choice, legacy = NOTHING, False
    if not sent.isdisjoint(TOOLED):
        specs, choice, legacy, of_tools = _tools(body)
        noted += of_tools
    parallel = aliased(body, "parallel_tool_calls")
    response_format, options = body.get("response_format"), body.get("stream_options")
    return Turn(
        api="chat",
        caller=caller,
        model=name,
        items=items,
        tools=specs,
        tool_choice=choice,
        parallel=not legacy and parallel is not False,
        output=content.TEXT
        if response_format is None
        else content.read_format(response_format, "response_format", "chat", noted),
        sampling=NO_SAMPLING if sent.isdisjoint(SAMPLED) else _sampling(body),
        n=body.get("n") or 1,
        stream=body.get("stream") is True,
        include_usage=options is not None and options.get("include_usage") is True,
        legacy_functions=legacy,
        store=body.get("store") is True,
        metadata=body.get("metadata") or {},
        user=body.get("user"),
        sent=sent,
        notes=(*healed, *noted),
        rest={} if sent <= READ else {field: body[field] for field in sent - READ if field in body},
    )


def _sampling(body: Mapping[str, Any]) -> Sampling:
    limit, stops = body.get("max_completion_tokens"), body.get("stop")
    return Sampling(
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        max_tokens=body.get("max_tokens") if limit is None else limit,
        stop=()
        if not stops
        else (stops,)
        if type(stops) is str
        else tuple(entry for entry in stops if entry),
        seed=body.get("seed"),
        presence_penalty=body.get("presence_penalty"),
        frequency_penalty=body.get("frequency_penalty"),
        logit_bias=body.get("logit_bias"),
        effort=body.get("reasoning_effort"),
        verbosity=body.get("verbosity"),
    )


def _tools(body: Mapping[str, Any]) -> tuple[tuple[ToolSpec, ...], ToolChoice, bool, tuple[Note, ...]]:
    box = RequestTools("chat")
    tools, functions, function_call = body.get("tools"), body.get("functions"), body.get("function_call")
    legacy = tools is None and functions is not None
    if tools is not None:
        box.read(tools)
        box.notes += [
            (name, "ignored")
            for name, value in (("functions", functions), ("function_call", function_call))
            if value is not None
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
        raise invalid(
            "messages",
            "empty array. Expected an array with minimum length 1, but got an empty array instead.",
        )
    items: list[Item] = []
    paths: list[str] = []
    legacy_calls = 0
    for i, message in enumerate(messages):
        if type(message) is not dict:
            raise wrong_type(f"messages[{i}]", "an object", message)
        role = message.get("role")
        if type(role) is not str:
            raise (
                missing(f"messages[{i}].role")
                if role is None
                else wrong_type(f"messages[{i}].role", "a string", role)
            )
        if role in OF_ROLE:
            leftover(message, OF_ROLE[role], "messages", notes)
        if role in SPEAKERS:
            text = message.get("content")
            if type(text) is str and "name" not in message:
                items.append(Message(role, (TextPart(text),) if text else ()))  # type: ignore[arg-type]
            else:
                parts, refusal = content.read(text, f"messages[{i}].content", notes)
                name = optional_string(message, "name", f"messages[{i}]")
                items.append(Message(role, parts, name, refusal))  # type: ignore[arg-type]
            paths.append("")
        elif role == "assistant":
            legacy_calls = _assistant(message, i, items, paths, legacy_calls, notes)
        elif role == "tool" or role == "function":
            items.append(_result(message, role, f"messages[{i}]", notes))
            paths.append(f"messages[{i}].tool_call_id" if role == "tool" else f"messages[{i}].name")
        else:
            raise not_one_of(f"messages[{i}].role", role, ROLES)
    return (
        pair(items, paths, "messages") if any(paths) else (tuple(items), ())
    )  # only calls and results have a path


def _result(message: dict[str, Any], role: str, path: str, notes: list[Note]) -> Result:
    text = message.get("content")
    if role == "tool":
        return Result(
            required_id(message, "tool_call_id", path),
            content.read_parts(text, f"{path}.content", notes),
            name=optional_string(message, "name", path),
        )
    name = called_name(message, path)
    return Result(
        LEGACY_ID, content.read_parts("" if text is None else text, f"{path}.content", notes), name=name
    )


def _assistant(
    message: dict[str, Any], i: int, items: list[Item], paths: list[str], legacy_calls: int, notes: list[Note]
) -> int:
    """Adds the reasoning, text and calls of an assistant message.

    Returns the number of legacy calls so far.
    """
    path = f"messages[{i}]"
    text = message.get("content")
    parts, refused = content.read("" if text is None else text, f"{path}.content", notes)
    refusal = optional_string(message, "refusal", path) or refused
    calls = message.get("tool_calls")
    legacy = message.get("function_call")
    if calls is not None:
        array(f"{path}.tool_calls", calls)
    thoughts = message.get(
        "reasoning_content"
    )  # clients of open models send it back, so that reasoning survives a tool loop
    if type(thoughts) is str and thoughts:
        items.append(Reasoning(content=(thoughts,)))
        paths.append("")
    if parts or refusal or not (calls or legacy):
        items.append(Message("assistant", parts, optional_string(message, "name", path), refusal))
        paths.append("")
    for k, call in enumerate(calls or ()):
        where = f"{path}.tool_calls[{k}]"
        items.append(_call(call, where, notes))
        paths.append(f"{where}.id")
    if legacy is not None:
        where = f"{path}.function_call"
        object_(where, legacy)
        items.append(
            Call(
                f"{_LEGACY_PREFIX}{legacy_calls}",
                called_name(legacy, where),
                required_string(legacy, "arguments", where),
            )
        )
        paths.append(where)
        legacy_calls += 1
    return legacy_calls


def _call(call: Any, path: str, notes: list[Note]) -> Call:
    object_(path, call)
    leftover(call, OF_CALL, path, notes)
    call_id = required_id(call, "id", path)
    kind = call.get("type")
    if kind is None:
        kind = "function"
    if kind != "function" and kind != "custom":
        raise (
            not_one_of(f"{path}.type", kind, ("function", "custom"))
            if type(kind) is str
            else wrong_type(f"{path}.type", "a string", kind)
        )
    inner = call.get(kind)
    where = f"{path}.{kind}"
    if inner is None:
        raise missing(where)
    object_(where, inner)
    leftover(inner, OF_FUNCTION, where, notes)
    return Call(
        call_id,
        called_name(inner, where),
        required_string(inner, "input" if kind == "custom" else "arguments", where),
        kind,
    )

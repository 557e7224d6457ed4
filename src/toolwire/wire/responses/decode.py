"""Decodes a Responses request into a `Turn`.

| input item                                    | becomes                                         |
|-----------------------------------------------|-------------------------------------------------|
| message, with or without its type             | Message                                         |
| function_call, custom_tool_call               | Call                                            |
| function_call_output, custom_tool_call_output | Result                                          |
| reasoning                                     | Reasoning                                       |
| item_reference                                | the stored item; skipped, if there is no store  |
| compaction                                    | the Message that the gateway opened; or refused |
| hosted calls and their outputs                | skipped, with a note                            |
| anything else                                 | refused                                         |

The items of the chain of `previous_response_id` precede the request's own; instructions do not carry over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Call, Item, Message, Reasoning, Result, Sampling, TextPart, Turn
from toolwire.wire import content
from toolwire.wire.checks import (
    COMMON,
    EFFORT,
    SUMMARY,
    VERBOSITY,
    Note,
    Rule,
    aliased,
    array,
    boolean,
    called_name,
    check,
    integer,
    leftover,
    members,
    missing,
    model,
    not_one_of,
    object_,
    one_of,
    optional_string,
    required_id,
    required_string,
    shown,
    string,
    strings,
    wrong_type,
)
from toolwire.wire.history import pair
from toolwire.wire.tools import RequestTools

FIELDS: dict[str, Rule] = {
    **COMMON,
    "previous_response_id": string,
    "max_output_tokens": integer(1),
    "max_tool_calls": integer(1),
    "truncation": one_of("auto", "disabled"),
    "include": strings,
    "background": boolean,
    "generate": boolean,
    "stream_options": members({"include_obfuscation": boolean}),
    "reasoning": members({"effort": EFFORT, "summary": SUMMARY, "generate_summary": SUMMARY}),
    "text": members({"format": object_, "verbosity": VERBOSITY}),
}
ECHOED = (
    "truncation",
    "max_output_tokens",
    "max_tool_calls",
    "temperature",
    "top_p",
    "top_logprobs",
    "metadata",
    "parallel_tool_calls",
    "instructions",
    "previous_response_id",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)
READ_HERE = frozenset(
    "model input instructions previous_response_id tools tool_choice parallel_tool_calls text reasoning "
    "temperature top_p max_output_tokens stream "
    "stream_options store generate metadata user include truncation".split()
)
"""The fields that this module or the gateway reads. The others are kept in `Turn.rest`."""
OF_ITEM: dict[str, frozenset[str]] = {
    "message": frozenset({"type", "id", "status", "role", "content"}),
    "function_call": frozenset({"type", "id", "status", "call_id", "name", "arguments", "namespace"}),
    "custom_tool_call": frozenset({"type", "id", "status", "call_id", "name", "input", "namespace"}),
    **dict.fromkeys(
        ("function_call_output", "custom_tool_call_output"),
        frozenset({"type", "id", "status", "call_id", "name", "namespace", "output"}),
    ),
    "reasoning": frozenset({"type", "id", "status", "summary", "content", "encrypted_content"}),
}
"""The members of an input item that are read, by its type."""
ROLES = ("assistant", "system", "developer", "user")
SKIPPED = frozenset(
    {
        "additional_tools",
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "file_search_call",
        "image_generation_call",
        "item_reference",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)
READ = (
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
)

REFUSED = {
    "background": "Unsupported parameter: 'background'. This gateway answers while the client waits; send "
    "the "
    "request without it.",
    "conversation": "Unsupported parameter: 'conversation'. Continue a conversation with "
    "'previous_response_id' or "
    "send its items as 'input'.",
    "prompt": "Unsupported parameter: 'prompt'. Prompt templates live at OpenAI; send their text as "
    "'instructions' and 'input'.",
}
SUMMARY_OF = "The conversation before this point was shortened. My notes of it:\n\n"
MAX_RESOLVED = 32 * 1024 * 1024
"""The most text that references may expand to: a small request must not become a huge one."""
MESSAGES_HINT = (
    "Unsupported parameter: 'messages'. In the Responses API, this parameter has moved to 'input'. "
    "Send 'input', or send this request to /v1/chat/completions."
)


def previous_id(body: Mapping[str, Any]) -> str | None:
    """The id of the response whose chain must be loaded before `decode`."""
    value: str | None = body.get("previous_response_id")
    if value is not None:
        string("previous_response_id", value)
    return value or None


def references(body: Mapping[str, Any]) -> list[str]:
    """The ids of stored items that the input refers to. Load them and call `resolved` before `decode`."""
    given = body.get("input")
    entries = given if type(given) is list else []
    return [id for entry in entries if type(entry) is dict and type(id := _reference(entry)) is str]


def _reference(entry: dict[str, Any]) -> Any:
    kind = entry.get("type")
    return entry.get("id") if kind == "item_reference" or (kind is None and "role" not in entry) else None


def compactions(body: Mapping[str, Any]) -> dict[str, str]:
    """The sealed contents of the input's compaction items, with their paths.

    Open them and call `resolved` before `decode`.
    """
    given, out = body.get("input"), {}
    for i, entry in enumerate(given if type(given) is list else ()):
        if type(entry) is dict and entry.get("type") == "compaction":
            out[required_string(entry, "encrypted_content", f"input[{i}]")] = f"input[{i}].encrypted_content"
    return out


def opened(summary: str) -> dict[str, Any]:
    """The item of an opened compaction: an assistant message, because the model wrote the summary."""
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": SUMMARY_OF + summary}],
    }


def resolved(body: Mapping[str, Any], items: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The body with references and compactions replaced by their items.

    A reference to an unknown item is refused, because part of the conversation would be lost. All compactions
    must be in `items`.
    """
    out, size = [], 0
    for i, entry in enumerate(body["input"]):
        if type(entry) is dict and entry.get("type") == "compaction":
            out.append(items[entry["encrypted_content"]])
            continue
        id = _reference(entry) if type(entry) is dict else None
        if type(id) is str and id not in items:
            raise ToolwireError("not_found", f"Item with id '{shown(id)}' not found.", param=f"input[{i}].id")
        if type(id) is str:
            size += len(str(items[id]))
            if size > MAX_RESOLVED:
                raise ToolwireError(
                    "context_length", "The items that the input refers to are too large.", param="input"
                )
        out.append(items[id] if type(id) is str else entry)
    return {**body, "input": out}


def decode(
    body: Mapping[str, Any], previous: tuple[Item, ...] = (), caller: str = "", open_responses: bool = False
) -> Turn:
    """The turn of a Responses request.

    `previous` are the stored items of the chain that it continues, `caller` is the id of the caller's key.
    """
    sent = check(body, FIELDS)
    for refused, message in REFUSED.items():
        if refused in sent and (refused != "background" or body["background"]):
            raise ToolwireError("unsupported", message, param=refused)
    name = model(body)
    reader = _Reader()
    instructions = body.get("instructions")
    if type(instructions) is list:
        reader.read(instructions, "instructions")
    elif instructions is not None and type(instructions) is not str:
        raise wrong_type("instructions", "one of a string or array of objects", instructions)
    reader.stored(previous)
    _input(body, reader)
    items, healed = pair(reader.items, reader.paths, "input")
    box = RequestTools("responses")
    tools = body.get("tools")
    if tools is not None:
        box.read(tools)
    choice, choice_echo = box.choose(aliased(body, "tool_choice"))
    text, reasoning = body.get("text") or {}, body.get("reasoning") or {}
    output = (
        content.TEXT
        if text.get("format") is None
        else content.read_format(text["format"], "text.format", "responses", box.notes)
    )
    verbosity, effort = text.get("verbosity"), reasoning.get("effort")
    summary = reasoning.get("summary") or reasoning.get("generate_summary")
    parallel = aliased(body, "parallel_tool_calls")

    echo: dict[str, Any] = {key: body[key] for key in ECHOED if body.get(key) is not None}
    if parallel is not None:
        echo["parallel_tool_calls"] = parallel
    if box.echo:
        echo["tools"] = box.echo
    if choice_echo is not None:
        echo["tool_choice"] = choice_echo
    if "text" in sent:
        echo["text"] = (
            {"format": content.echo(output)}
            if verbosity is None
            else {"format": content.echo(output), "verbosity": verbosity}
        )
    if "reasoning" in sent:
        echo["reasoning"] = {"effort": effort, "summary": summary}

    return Turn(
        api="responses",
        caller=caller,
        open_responses=open_responses,
        model=name,
        items=items,
        instructions=instructions if type(instructions) is str else None,
        tools=box.specs,
        tool_choice=choice,
        parallel=parallel is not False,
        output=output,
        sampling=Sampling(
            temperature=body.get("temperature"),
            top_p=body.get("top_p"),
            max_tokens=body.get("max_output_tokens"),
            effort=effort,
            summary=summary,
            verbosity=verbosity,
        ),
        stream=body.get("stream") is True,
        store=body.get("store") is not False,
        generate=body.get("generate") is not False,
        previous_response_id=body.get("previous_response_id") or None,
        metadata=body.get("metadata") or {},
        user=body.get("user"),
        sent=sent,
        notes=(*reader.notes, *healed, *box.notes, *_unknown_n(body)),
        echo=echo,
        rest={} if sent <= READ_HERE else {field: body[field] for field in sent - READ_HERE if field in body},
    )


def _input(body: Mapping[str, Any], reader: _Reader) -> None:
    value = body.get("input")
    if type(value) is str:
        reader.add(Message("user", (TextPart(value),) if value else ()))
    elif type(value) is list:
        if not value and not body.get("previous_response_id") and body.get("generate") is not False:
            raise missing("input")
        reader.read(value, "input")
    elif value is not None:
        raise wrong_type("input", "one of a string or array of input items", value)
    elif body.get("messages") is not None:
        raise ToolwireError("unsupported", MESSAGES_HINT, param="messages")
    elif not body.get("previous_response_id"):
        raise missing("input")


def stored_items(body: Mapping[str, Any], output: list[Any]) -> tuple[Item, ...]:
    """The items that a later turn of this conversation repeats: the request's own input, then the output."""
    reader = _Reader()
    _input({**body, "previous_response_id": body.get("previous_response_id") or "-"}, reader)
    reader.read(output, "output")
    return tuple(reader.items)


def _unknown_n(body: Mapping[str, Any]) -> tuple[Note, ...]:
    """The Responses API has no `n` and returns one answer."""
    n = body.get("n")
    return () if n is None or (type(n) is int and n == 1) else (("n", "ignored"),)


class _Reader:
    """Collects items, the paths of their ids, and notes."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.paths: list[str] = []
        self.notes: list[Note] = []

    def add(self, item: Item, path: str = "") -> None:
        self.items.append(item)
        self.paths.append(path)

    def stored(self, previous: tuple[Item, ...]) -> None:
        self.items += previous
        self.paths += [""] * len(previous)

    def read(self, entries: list[Any], field: str) -> None:
        for i, entry in enumerate(entries):
            path = f"{field}[{i}]"
            if type(entry) is not dict:
                raise wrong_type(path, "an object", entry)
            kind = entry.get("type")
            if kind is None:
                kind = (
                    "message"
                    if "role" in entry
                    else "item_reference"
                    if type(entry.get("id")) is str
                    else None
                )
            if type(kind) is str and kind in OF_ITEM:
                leftover(entry, OF_ITEM[kind], field, self.notes)
            if kind == "message":
                self.add(_message(entry, path, self.notes))
            elif kind == "function_call" or kind == "custom_tool_call":
                self._call(entry, kind, path)
            elif kind == "function_call_output" or kind == "custom_tool_call_output":
                self.add(_result(entry, kind, path, self.notes), f"{path}.call_id")
            elif kind == "reasoning":
                self.add(_reasoning(entry, path))
            elif type(kind) is not str:
                raise (
                    missing(f"{path}.type") if kind is None else wrong_type(f"{path}.type", "a string", kind)
                )
            elif kind in SKIPPED:
                note = (f"input.{kind}", "ignored")
                if note not in self.notes:
                    self.notes.append(note)
            else:
                raise not_one_of(f"{path}.type", kind, READ)

    def _call(self, entry: dict[str, Any], kind: str, path: str) -> None:
        # Some clients write "no text" as an empty assistant message before a call, like chat's `content: ""`.
        last = self.items[-1] if self.items else None
        if type(last) is Message and last.role == "assistant" and not last.parts and not last.refusal:
            self.items.pop()
            self.paths.pop()
        custom = kind == "custom_tool_call"
        call = Call(
            required_id(entry, "call_id", path),
            called_name(entry, path),
            required_string(entry, "input" if custom else "arguments", path),
            "custom" if custom else "function",
            optional_string(entry, "namespace", path),
        )
        self.add(call, f"{path}.call_id")


def _message(entry: dict[str, Any], path: str, notes: list[Note]) -> Message:
    role = required_string(entry, "role", path)
    if role not in ROLES:
        raise not_one_of(f"{path}.role", role, ROLES)
    text = entry.get("content")
    if text is None and role == "assistant":
        text = ""
    parts, refusal = content.read(text, f"{path}.content", notes)
    phase = optional_string(entry, "phase", path)
    return Message(role, parts, None, refusal, phase)  # type: ignore[arg-type]


def _result(entry: dict[str, Any], kind: str, path: str, notes: list[Note]) -> Result:
    return Result(
        required_id(entry, "call_id", path),
        content.read_parts(entry.get("output"), f"{path}.output", notes),
        "custom" if kind == "custom_tool_call_output" else "function",
        optional_string(entry, "name", path),
    )


def _reasoning(entry: dict[str, Any], path: str) -> Reasoning:
    return Reasoning(
        _texts(entry.get("summary"), f"{path}.summary"),
        _texts(entry.get("content"), f"{path}.content"),
        optional_string(entry, "encrypted_content", path),
        optional_string(entry, "id", path),
    )


def _texts(value: Any, path: str) -> tuple[str, ...]:
    if value is None:
        return ()
    array(path, value)
    for i, part in enumerate(value):
        object_(f"{path}[{i}]", part)
    return tuple(required_string(part, "text", f"{path}[{i}]") for i, part in enumerate(value))

"""Decodes a Responses request into a `Turn`.

| input item                                    | becomes                                         |
|-----------------------------------------------|-------------------------------------------------|
| message, with or without its type             | Message                                         |
| function_call, custom_tool_call               | Call                                            |
| function_call_output, custom_tool_call_output | Result                                          |
| reasoning                                     | Reasoning                                       |
| item_reference                                | the stored item; skipped, if there is no store  |
| compaction                                    | a Message with the summary, after `resolved`    |
| items about MCP servers                       | calls and results (`mcp.py`)                    |
| hosted calls and their outputs                | skipped, with a note                            |
| anything else                                 | refused                                         |

With `previous_response_id`, the items of that response, and of all responses before it, come before the
request's own items. Instructions of earlier responses do not apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolwire.core.errors import ToolwireError
from toolwire.core.items import StoredItem
from toolwire.core.mcp import McpListed, McpPart
from toolwire.core.turn import Call, Item, Message, Reasoning, Result, Sampling, TextPart, Turn
from toolwire.wire import content
from toolwire.wire.checks import (
    COMMON,
    EFFORT,
    SUMMARY,
    TEXT_OR_PARTS,
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
    optional,
    required,
    required_id,
    required_string,
    shown,
    string,
    strings,
    wrong_type,
)
from toolwire.wire.history import pair
from toolwire.wire.responses import mcp
from toolwire.wire.responses.mcp import McpItems
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
LOGPROBS = "message.output_text.logprobs"
"""The value of `include` with which a client asks for log probabilities."""
ECHOED = (
    "truncation",
    "max_tool_calls",
    "top_logprobs",
    "instructions",
    "prompt_cache_key",
    "safety_identifier",
)
READ_HERE = frozenset(
    "model input instructions previous_response_id tools tool_choice parallel_tool_calls text reasoning "
    "temperature top_p max_output_tokens stream stream_options store generate metadata user include "
    "truncation top_logprobs".split()
)
"""The fields that this module or the gateway reads. All others are kept in `Turn.rest`."""
_OF_ANY = frozenset({"type", "id", "status"})
_OF_CALL = _OF_ANY | {"call_id", "name", "namespace"}
OF_ITEM: dict[str, frozenset[str]] = {
    "message": _OF_ANY | {"role", "content"},
    "function_call": _OF_CALL | {"arguments"},
    "function_call_output": _OF_CALL | {"output"},
    "custom_tool_call": _OF_CALL | {"input"},
    "custom_tool_call_output": _OF_CALL | {"output"},
    "reasoning": _OF_ANY | {"summary", "content", "encrypted_content"},
}
"""The members of an input item that are read, by the item's type."""
_ROLE = one_of("assistant", "system", "developer", "user")
SKIPPED = frozenset(
    "additional_tools apply_patch_call apply_patch_call_output code_interpreter_call compaction_trigger "
    "computer_call computer_call_output file_search_call image_generation_call item_reference "
    "local_shell_call local_shell_call_output program program_output shell_call shell_call_output "
    "tool_search_call tool_search_output web_search_call".split()
)
REFUSED = {
    "background": "This gateway answers while the client waits; send the request without 'background'.",
    "conversation": "Continue a conversation with 'previous_response_id' or send its items as 'input'.",
    "prompt": "OpenAI stores prompt templates; send the template's text as 'instructions' and 'input'.",
}
SUMMARY_OF = "The conversation before this point was shortened. My notes of it:\n\n"
MAX_RESOLVED = 32 * 1024 * 1024
"""The maximum size of all referenced items, in characters: a small request must not become a huge one."""
MESSAGES_HINT = (
    "Unsupported parameter: 'messages'. In the Responses API, this parameter has moved to 'input'. "
    "Send 'input', or send this request to /v1/chat/completions."
)


def previous_id(body: Mapping[str, Any]) -> str | None:
    """Returns the id of the response whose items `decode` needs as `previous`, or None."""
    value = body.get("previous_response_id")
    if value is not None:
        string("previous_response_id", value)
    return value or None


def references(body: Mapping[str, Any]) -> list[str]:
    """Returns the ids of the stored items to which the input refers.

    Load these items and call `resolved` before `decode`.
    """
    given = body.get("input")
    entries = given if type(given) is list else []
    return [id for entry in entries if type(entry) is dict and type(id := _reference(entry)) is str]


def _reference(entry: dict[str, Any]) -> Any:
    kind = entry.get("type")
    return entry.get("id") if kind == "item_reference" or (kind is None and "role" not in entry) else None


def compactions(body: Mapping[str, Any]) -> dict[str, str]:
    """Returns the encrypted content of each compaction item in the input, with its path.

    Decrypt these contents and call `resolved` before `decode`.
    """
    given, out = body.get("input"), {}
    for i, entry in enumerate(given if type(given) is list else ()):
        if type(entry) is dict and entry.get("type") == "compaction":
            out[required_string(entry, "encrypted_content", f"input[{i}]")] = f"input[{i}].encrypted_content"
    return out


def opened(summary: str) -> dict[str, Any]:
    """Returns the input item for a decrypted compaction.

    The item is a message of the assistant, because the model wrote the summary.
    """
    text = {"type": "output_text", "text": SUMMARY_OF + summary}
    return {"type": "message", "role": "assistant", "content": [text]}


def resolved(body: Mapping[str, Any], items: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns the body with each reference and each compaction replaced by its item.

    `items` has stored items by id, and the items of compactions by their encrypted content. A reference to an
    unknown item is refused, because part of the conversation would be missing. `items` must have all
    compactions.
    """
    out, size = [], 0
    for i, entry in enumerate(body["input"]):
        if type(entry) is dict and entry.get("type") == "compaction":
            out.append(items[entry["encrypted_content"]])
            continue
        id = _reference(entry) if type(entry) is dict else None
        if type(id) is str:
            if id not in items:
                message = f"Item with id '{shown(id)}' not found."
                raise ToolwireError("not_found", message, param=f"input[{i}].id")
            entry = items[id]
            size += len(str(entry))
            if size > MAX_RESOLVED:
                message = "The items that the input refers to are too large."
                raise ToolwireError("context_length", message, param="input")
        out.append(entry)
    return {**body, "input": out}


def decode(
    body: Mapping[str, Any],
    previous: tuple[StoredItem, ...] = (),
    caller: str = "",
    open_responses: bool = False,
) -> Turn:
    """Returns the turn of a Responses request.

    `previous` are the stored items of the responses that the request continues, `caller` is the id of the
    caller's API key, and `open_responses` is `Turn.open_responses`.
    """
    sent = check(body, FIELDS)
    for refused, advice in REFUSED.items():
        if refused in sent and (refused != "background" or body["background"]):
            message = f"Unsupported parameter: '{refused}'. {advice}"
            raise ToolwireError("unsupported", message, param=refused)
    name = model(body)
    reader = _Reader()
    instructions = body.get("instructions")
    if type(instructions) is list:
        reader.read(instructions, "instructions")
    elif instructions is not None and type(instructions) is not str:
        raise wrong_type("instructions", TEXT_OR_PARTS, instructions)
    _conversation(body, previous, reader)
    items, repairs = pair(reader.items, reader.paths, "input")
    box = RequestTools("responses")
    tools = body.get("tools")
    if tools is not None:
        box.read(tools)
    choice, choice_echo = box.choose(aliased(body, "tool_choice"))
    text, reasoning = body.get("text") or {}, body.get("reasoning") or {}
    output = content.TEXT
    if text.get("format") is not None:
        output = content.read_format(text["format"], "text.format", "responses", box.notes)
    verbosity, effort = text.get("verbosity"), reasoning.get("effort")
    summary = reasoning.get("summary") or reasoning.get("generate_summary")
    parallel = aliased(body, "parallel_tool_calls")
    n = body.get("n")  # the Responses API has no `n` and returns one answer
    extra = [] if n is None or (type(n) is int and n == 1) else [("n", "ignored")]
    include, top = body.get("include") or (), body.get("top_logprobs") or 0
    if LOGPROBS in include:
        sent = sent - ({"include"} if set(include) == {LOGPROBS} else set()) | {f"include.{LOGPROBS}"}
    elif top:
        extra.append(("top_logprobs", "ignored"))

    echo: dict[str, Any] = {key: body[key] for key in ECHOED if body.get(key) is not None}
    if box.echo:
        echo["tools"] = box.echo
    if choice_echo is not None:
        echo["tool_choice"] = choice_echo
    if "text" in sent:
        echo["text"] = {"format": content.echo(output)}
        if verbosity is not None:
            echo["text"]["verbosity"] = verbosity
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
            logprobs=top if LOGPROBS in include else None,
        ),
        stream=body.get("stream") is True,
        store=body.get("store") is not False,
        generate=body.get("generate") is not False,
        previous_response_id=body.get("previous_response_id") or None,
        metadata=body.get("metadata") or {},
        user=body.get("user"),
        sent=sent,
        notes=(*reader.notes, *repairs, *box.notes, *extra),
        mcp=_mcp(reader, box, previous),
        echo=echo,
        rest={} if sent <= READ_HERE else {field: body[field] for field in sent - READ_HERE if field in body},
    )


def _mcp(reader: _Reader, box: RequestTools, previous: tuple[StoredItem, ...]) -> McpPart | None:
    """Returns what the request says about MCP servers; None for nearly all requests."""
    if reader.mcp is None and not box.servers:
        return None
    items = reader.mcp or McpItems()
    return items.part(tuple(box.servers.values()), box.chosen, previous)


def _conversation(body: Mapping[str, Any], previous: tuple[StoredItem, ...], reader: _Reader) -> None:
    """Reads the items of earlier responses, then the items of the request."""
    for item in previous:
        if not isinstance(item, McpListed):
            reader.add(item)
    _input(body, reader)
    if reader.mcp is not None:
        reader.items, reader.paths = reader.mcp.settle(reader.items, reader.paths)


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


def stored_items(body: Mapping[str, Any], output: list[Any]) -> tuple[StoredItem, ...]:
    """Returns the items to store for later turns: the input of the request, then the output."""
    reader = _Reader()
    _input({**body, "previous_response_id": body.get("previous_response_id") or "-"}, reader)
    reader.read(output, "output")
    return tuple(reader.items if reader.mcp is None else reader.mcp.stored(reader.items))


class _Reader:
    """Collects the items of an input. Also collects notes for the report about items that it skips.

    `paths` has one entry per item: the path of the field that holds the item's id, such as
    `input[2].call_id`. The entry is "" if the id is not needed.
    """

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.paths: list[str] = []
        self.notes: list[Note] = []
        self.mcp: McpItems | None = None

    def add(self, item: Item, path: str = "") -> None:
        self.items.append(item)
        self.paths.append(path)

    def read(self, entries: list[Any], field: str) -> None:
        for i, entry in enumerate(entries):
            path = f"{field}[{i}]"
            object_(path, entry)
            kind = entry.get("type")
            if kind is None and "role" in entry:
                kind = "message"
            elif kind is None and type(entry.get("id")) is str:
                kind = "item_reference"
            else:
                required_string(entry, "type", path)
            if kind in OF_ITEM:
                leftover(entry, OF_ITEM[kind], field, self.notes)
            if kind == "message":
                self.add(_message(entry, path, self.notes))
            elif kind == "function_call" or kind == "custom_tool_call":
                self._call(entry, kind, path)
            elif kind == "function_call_output" or kind == "custom_tool_call_output":
                self.add(_result(entry, kind, path, self.notes), f"{path}.call_id")
            elif kind == "reasoning":
                self.add(_reasoning(entry, path))
            elif kind in mcp.ITEMS:
                self.mcp = self.mcp or McpItems()
                for item, at in self.mcp.read(entry, kind, path):
                    self.add(item, at)
            elif kind in SKIPPED:
                note = (f"input.{kind}", "ignored")
                if note not in self.notes:
                    self.notes.append(note)
            else:
                raise not_one_of(f"{path}.type", kind, tuple(OF_ITEM))

    def _call(self, entry: dict[str, Any], kind: str, path: str) -> None:
        # Some clients send an empty assistant message before a call, as they send `content: ""` in chat. This
        # message is removed.
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
            optional(entry, "namespace", path),
        )
        self.add(call, f"{path}.call_id")


def _message(entry: dict[str, Any], path: str, notes: list[Note]) -> Message:
    role = required(entry, "role", path, _ROLE)
    text = entry.get("content")
    if text is None and role == "assistant":
        text = ""
    parts, refusal = content.read(text, f"{path}.content", notes)
    return Message(role, parts, None, refusal, optional(entry, "phase", path))


def _result(entry: dict[str, Any], kind: str, path: str, notes: list[Note]) -> Result:
    return Result(
        required_id(entry, "call_id", path),
        content.read_parts(entry.get("output"), f"{path}.output", notes),
        "custom" if kind == "custom_tool_call_output" else "function",
        optional(entry, "name", path),
    )


def _reasoning(entry: dict[str, Any], path: str) -> Reasoning:
    return Reasoning(
        _texts(entry, "summary", path),
        _texts(entry, "content", path),
        optional(entry, "encrypted_content", path),
        optional(entry, "id", path),
    )


def _texts(entry: dict[str, Any], name: str, path: str) -> tuple[str, ...]:
    value, path = optional(entry, name, path, array), f"{path}.{name}"
    for i, part in enumerate(value or ()):
        object_(f"{path}[{i}]", part)
    return tuple(required_string(part, "text", f"{path}[{i}]") for i, part in enumerate(value or ()))

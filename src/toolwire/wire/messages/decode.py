"""Decodes a Messages request into a `Turn`.

| content block                          | becomes                                                         |
|----------------------------------------|-----------------------------------------------------------------|
| text                                   | TextPart                                                        |
| image                                  | ImagePart                                                       |
| document with text                     | TextPart                                                        |
| document with base64 data or a file id | OtherPart: a file in the form of OpenAI's API                   |
| document with a URL                    | OtherPart: the unchanged block                                  |
| search_result                          | TextPart                                                        |
| tool_use                               | Call                                                            |
| tool_result                            | Result; a `tool_reference` in it is a text                      |
| thinking, redacted_thinking            | Reasoning with its signature or its sealed data                 |
| server tools, their results, and       | skipped, with a note                                            |
| unknown types                          |                                                                 |

`system` becomes the instructions. At the beginning of the messages, a message with the role `system` stays a
system message; later, it becomes text of the user. Anthropic's server shows the model only the tools without
`defer_loading` and the tools that a `tool_reference` names. All other tools are `Turn.hidden_tools`.
`Turn.body` keeps the request for a backend that speaks this API itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from toolwire.core.errors import ToolwireError
from toolwire.core.turn import (
    Call,
    ImagePart,
    Item,
    Message,
    OtherPart,
    OutputFormat,
    Part,
    Reasoning,
    Result,
    Role,
    Sampling,
    TextPart,
    Turn,
)
from toolwire.wire.checks import (
    EFFORT,
    TEXT_OR_PARTS,
    Note,
    Rule,
    array,
    boolean,
    called_name,
    check,
    empty,
    integer,
    invalid,
    leftover,
    members,
    missing,
    model,
    note,
    number,
    object_,
    one_of,
    optional,
    required,
    required_id,
    required_string,
    string,
    strings,
    wrong_type,
)
from toolwire.wire.history import pair
from toolwire.wire.messages.tools import read_choice, read_tools

FIELDS: dict[str, Rule] = {
    "model": string,
    "messages": array,
    "max_tokens": integer(1),
    "stream": boolean,
    "temperature": number(0, 1),
    "top_p": number(0, 1),
    "top_k": integer(0),
    "stop_sequences": strings,
    "tools": array,
    "tool_choice": object_,
    "metadata": members({"user_id": string}),
    "thinking": members({"type": string, "budget_tokens": integer(1), "display": string}),
    "output_config": members({"effort": EFFORT, "format": object_}),
    "output_format": object_,
    "service_tier": string,
    "thread": object_,
}
READ = frozenset(
    "model messages max_tokens stream temperature top_p stop_sequences tools tool_choice metadata thinking "
    "output_config output_format system thread".split()
)
"""The fields that this module reads."""
KNOWN = READ | frozenset(
    "service_tier speed inference_geo container mcp_servers context_management cache_control compaction "
    "fallbacks diagnostics safeguards user_profile_id workspace_id".split()
)
"""Fields of Anthropic's API. Any other field is kept in `Turn.rest`, for a backend that takes it."""
_ROLE = one_of("user", "assistant", "system")
BILLING = "x-anthropic-billing-header:"
"""The beginning of a block of accounting data, which Claude Code puts at the start of its system prompt.

The block is not an instruction for a model.
"""
REMINDER = "<system-reminder>\n{}\n</system-reminder>"
BUDGETS = ((2048, "low"), (8192, "medium"), (32_768, "high"))
"""The largest thinking budget for each effort, in tokens. A larger budget means the effort `max`."""
THINKS = ("adaptive", "enabled", "between_tools")
NO_THREADS = (
    "This server keeps no message threads. Send the whole conversation in 'messages', without 'thread'."
)


def decode(
    body: Mapping[str, Any], caller: str = "", headers: Mapping[str, str] | None = None, count: bool = False
) -> Turn:
    """Returns the turn of a Messages request.

    `caller` is the id of the caller's API key, `headers` are `Turn.headers`. `count`: the request only asks
    for the number of its tokens, so `max_tokens` is not required.
    """
    sent = check(body, FIELDS)
    name = model(body)
    if "fallbacks" in sent:  # they name models that the client's key may not be allowed to use
        body = {name: value for name, value in body.items() if name != "fallbacks"}
    if "thread" in sent:  # this wording makes the SDKs' tool runners continue without threads
        raise ToolwireError("unsupported", NO_THREADS, param="thread", code="thread_unsupported_request")
    if body.get("max_tokens") is None and not count:
        raise missing("max_tokens")
    reader = _Reader()
    instructions = _system(body.get("system"), reader.notes)
    reader.read(body.get("messages"))
    items, repairs = pair(reader.items, reader.paths, "messages.content")
    shown_tools, hidden = read_tools(body.get("tools") or (), reader.loaded, reader.notes)
    choice, parallel, failure = read_choice(body.get("tool_choice"), shown_tools, body.get("tools") or ())
    config, thinking = body.get("output_config") or {}, body.get("thinking") or {}
    kind, display = thinking.get("type"), thinking.get("display")
    if "fallbacks" in sent:
        note(reader.notes, "fallbacks", "ignored")
    return Turn(
        api="messages",
        caller=caller,
        model=name,
        items=items,
        instructions=instructions,
        tools=shown_tools,
        hidden_tools=hidden,
        tool_choice=choice,
        parallel=parallel,
        only_spoken=failure,
        output=_format(config.get("format") or body.get("output_format"), config, reader.notes),
        sampling=Sampling(
            temperature=body.get("temperature"),
            top_p=body.get("top_p"),
            max_tokens=body.get("max_tokens"),
            stop=tuple(filter(None, body.get("stop_sequences") or ())),
            effort=reader.effort or config.get("effort") or _effort(thinking),
        ),
        stream=body.get("stream") is True,
        thoughts="hidden" if kind not in THINKS else "signed" if display == "omitted" else "shown",
        user=(body.get("metadata") or {}).get("user_id"),
        sent=_sent(sent, body, reader.effort is not None, headers or {}),
        notes=(*repairs, *reader.notes),
        body=body,
        headers=headers or {},
        rest={field: body[field] for field in sent - KNOWN if field in body},
    )


def extended(body: Mapping[str, Any], messages: Iterable[Message]) -> dict[str, Any]:
    """Returns the body with the texts of further messages added to `messages`."""
    added = [
        {
            "role": message.role,
            "content": "\n".join(part.text for part in message.parts if type(part) is TextPart),
        }
        for message in messages
    ]
    return {**body, "messages": [*body["messages"], *added]}


def _sent(
    sent: frozenset[str], body: Mapping[str, Any], effort: bool, headers: Mapping[str, str]
) -> frozenset[str]:
    """Returns the field names for the report.

    `effort`: whether a message sets the effort. The members of `metadata` and `output_config` are reported
    one by one. All `cache_control` markers are reported once, as `cache_control`. The header `anthropic-beta`
    is reported as `betas`.
    """
    split = [f"{name}.{member}" for name in ("metadata", "output_config") for member in body.get(name) or ()]
    if effort:
        split.append("output_config.effort")
    if "anthropic-beta" in headers:
        split.append("betas")
    lists = [body.get("system"), body.get("tools"), *(message["content"] for message in body["messages"])]
    if any("cache_control" in block for blocks in lists if type(blocks) is list for block in blocks):
        split.append("cache_control")
    return sent.difference(("metadata", "output_config")).union(split)


def _effort(thinking: Mapping[str, Any]) -> str | None:
    budget = thinking.get("budget_tokens")
    if thinking.get("type") != "enabled" or budget is None:
        return None
    return next((effort for most, effort in BUDGETS if budget <= most), "max")


def _format(value: Any, config: Mapping[str, Any], notes: list[Note]) -> OutputFormat:
    if value is None:
        return OutputFormat()
    path = "output_config.format" if config.get("format") is not None else "output_format"
    object_(path, value)
    required(value, "type", path, one_of("json_schema"))
    leftover(value, frozenset({"type", "schema", "name"}), path, notes)
    schema = required(value, "schema", path, object_)
    return OutputFormat("json_schema", optional(value, "name", path) or "answer", schema, strict=True)


def _system(value: Any, notes: list[Note]) -> str | None:
    if value is None or type(value) is str:
        return value or None
    if type(value) is not list:
        raise wrong_type("system", TEXT_OR_PARTS, value)
    texts = []
    for i, block in enumerate(value):
        object_(f"system[{i}]", block)
        required(block, "type", f"system[{i}]", one_of("text"))
        text = required_string(block, "text", f"system[{i}]")
        if text.startswith(BILLING):
            note(notes, "system.billing_header", "ignored")
        elif text.strip():
            texts.append(text)
    return "\n\n".join(texts) or None


# --- messages ---

SKIPPED = frozenset(
    "server_tool_use web_search_tool_result web_fetch_tool_result code_execution_tool_result "
    "bash_code_execution_tool_result text_editor_code_execution_tool_result tool_search_tool_result "
    "advisor_tool_result mcp_tool_use mcp_tool_result container_upload compaction fallback tool_addition "
    "tool_removal".split()
)
"""Blocks that only Anthropic's server can use. They are skipped, and so are unknown types."""
OF_BLOCK: dict[str, frozenset[str]] = {
    "text": frozenset({"type", "text", "cache_control"}),
    "image": frozenset({"type", "source", "cache_control"}),
    "tool_use": frozenset({"type", "id", "name", "input", "cache_control"}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error", "cache_control"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "redacted_thinking": frozenset({"type", "data"}),
}
"""The members of a block that are read, or that only control caching."""
OF_MESSAGE = frozenset({"role", "content", "output_config"})


class _Reader:
    """Collects the items of a history, and notes on skipped blocks.

    `paths` has one entry per item: the path of the field that holds the id of a call or result, such as
    `messages[2].content[0].id`. For any other item, the entry is "".
    """

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.paths: list[str] = []
        self.notes: list[Note] = []
        self.loaded: set[str] = set()  # tools that a `tool_reference` names
        self.effort: str | None = None  # from the last system message that sets it

    def read(self, messages: Any) -> None:
        if messages is None:
            raise missing("messages")
        if not messages:
            raise empty("messages", "array")
        for i, message in enumerate(messages):
            path = f"messages[{i}]"
            object_(path, message)
            role: Role = required(message, "role", path, _ROLE)
            leftover(message, OF_MESSAGE, "messages", self.notes)
            config = optional(message, "output_config", path, members({"effort": EFFORT})) or {}
            self.effort = config.get("effort") or self.effort
            content, where = message.get("content"), f"{path}.content"
            if role == "system":
                self._read_system(content, where)
            elif type(content) is str:
                self._add(Message(role, (TextPart(content),) if content else ()))
            elif type(content) is list:
                self._read_blocks(role, content, where)
            else:
                raise missing(where) if content is None else wrong_type(where, TEXT_OR_PARTS, content)

    def _add(self, item: Item, path: str = "") -> None:
        self.items.append(item)
        self.paths.append(path)

    def _read_system(self, content: Any, path: str) -> None:
        """Adds a message with the role `system`.

        Many models take such a message only at the beginning. A later one is therefore added to the user's
        message before it, in tags, as Claude Code does. An empty message is left out.
        """
        if type(content) is list:
            parts: list[Part] = []
            for i, block in enumerate(content):
                object_(f"{path}[{i}]", block)
                kind = required_string(block, "type", f"{path}[{i}]")
                parts += self._part(kind, block, f"{path}[{i}]")
            content = "\n\n".join(part.text for part in parts if isinstance(part, TextPart))
        if type(content) is not str:
            raise missing(path) if content is None else wrong_type(path, TEXT_OR_PARTS, content)
        if not content:
            return
        if all(isinstance(item, Message) and item.role == "system" for item in self.items):
            self._add(Message("system", (TextPart(content),)))
            return
        note(self.notes, "messages.system", "emulated")
        reminder = TextPart(REMINDER.format(content))
        last = self.items[-1]
        if isinstance(last, Message) and last.role == "user":
            self.items[-1] = replace(last, parts=(*last.parts, reminder))
        else:
            self._add(Message("user", (reminder,)))

    def _read_blocks(self, role: Role, blocks: list[Any], path: str) -> None:
        """Adds the items of a message's content blocks.

        Texts, images and documents become one `Message`, unless a call, a result or a thought comes between.
        """
        parts: list[Part] = []
        before = len(self.items)
        for i, block in enumerate(blocks):
            where = f"{path}[{i}]"
            object_(where, block)
            kind = required_string(block, "type", where)
            if kind in OF_BLOCK:
                leftover(block, OF_BLOCK[kind], f"messages.{kind}", self.notes)
            if role == "assistant" and kind in ("tool_use", "thinking", "redacted_thinking"):
                self._flush(role, parts)
                self._add(*_of_assistant(kind, block, where))
            elif role == "user" and kind == "tool_result":
                self._flush(role, parts)
                self._add(self._result(block, where), f"{where}.tool_use_id")
            else:
                parts += self._part(kind, block, where)
        if parts or len(self.items) == before:
            self._flush(role, parts, always=True)

    def _flush(self, role: Role, parts: list[Part], always: bool = False) -> None:
        if parts or always:
            self._add(Message(role, tuple(parts)))
            parts.clear()

    def _result(self, block: dict[str, Any], path: str) -> Result:
        call_id, content = required_id(block, "tool_use_id", path), block.get("content")
        failed = optional(block, "is_error", path, boolean) is True
        if content is None or type(content) is str:
            return Result(call_id, (TextPart(content),) if content else (), is_error=failed)
        where = f"{path}.content"
        if type(content) is not list:
            raise wrong_type(where, TEXT_OR_PARTS, content)
        parts: list[Part] = []
        for i, inner in enumerate(content):
            object_(f"{where}[{i}]", inner)
            kind = required_string(inner, "type", f"{where}[{i}]")
            parts += self._part(kind, inner, f"{where}[{i}]")
        return Result(call_id, tuple(parts), is_error=failed)

    def _part(self, kind: str, block: dict[str, Any], path: str) -> list[Part]:
        """Returns the parts of a block that is not a call, a result or a thought."""
        if kind == "text":
            text = required_string(block, "text", path)
            return [TextPart(text)] if text else []
        if kind == "image":
            return [_image(required(block, "source", path, object_), f"{path}.source")]
        if kind == "document":
            return _document(block, path)
        if kind == "search_result":
            head = [optional(block, name, path) for name in ("title", "source")]
            return [TextPart("\n".join(filter(None, [*head, _text_of(block.get("content"))])))]
        if kind == "tool_reference":
            name = required_string(block, "tool_name", path)
            self.loaded.add(name)
            return [TextPart(f"The tool {name} is now available.")]
        note(self.notes, f"messages.{kind if kind in SKIPPED else 'unknown'}", "ignored")
        return []


def _of_assistant(kind: str, block: dict[str, Any], path: str) -> tuple[Item, str]:
    """Returns a call or thought of the assistant, and the path of the id's field ("" for a thought)."""
    if kind == "thinking":
        text, signature = required_string(block, "thinking", path), optional(block, "signature", path)
        return Reasoning(content=(text,) if text else (), signature=signature or None), ""
    if kind == "redacted_thinking":
        return Reasoning(redacted=required_string(block, "data", path)), ""
    arguments = json.dumps(required(block, "input", path, object_), ensure_ascii=False)
    return Call(required_id(block, "id", path), called_name(block, path), arguments), f"{path}.id"


def _image(source: dict[str, Any], path: str) -> ImagePart:
    kind = required(source, "type", path, one_of("base64", "url", "file"))
    if kind == "file":
        return ImagePart(None, file_id=required_id(source, "file_id", path))
    if kind == "url":
        url = required_string(source, "url", path)
        if not url[:8].lower().startswith(("https://", "http://")):
            raise invalid(f"{path}.url", "expected a URL that begins with https:// or http://.")
        return ImagePart(url)
    return ImagePart(_data_url(source, path))


def _data_url(source: dict[str, Any], path: str) -> str:
    return (
        f"data:{required_string(source, 'media_type', path)};base64,{required_string(source, 'data', path)}"
    )


def _text_of(content: Any) -> str:
    """Returns the content if it is a string, or the texts of its blocks, one per line."""
    if type(content) is str:
        return content
    blocks = content if type(content) is list else ()
    texts = [block.get("text") for block in blocks if type(block) is dict]
    return "\n".join(text for text in texts if type(text) is str)


def _document(block: dict[str, Any], path: str) -> list[Part]:
    source = required(block, "source", path, object_)
    path = f"{path}.source"
    kind = required(source, "type", path, one_of("base64", "text", "content", "url", "file"))
    title = block.get("title") if type(block.get("title")) is str else None
    if kind in ("text", "content"):
        content = _text_of(source.get("data" if kind == "text" else "content"))
        texts = (title, optional(block, "context", path), content)
        return [TextPart("\n".join(filter(None, texts)))]
    file: dict[str, Any] = {"filename": title or "document.pdf"}
    if kind == "base64":
        file["file_data"] = _data_url(source, path)
    elif kind == "file":
        file["file_id"] = required_id(source, "file_id", path)
    else:
        return [OtherPart("document", block)]
    return [OtherPart("file", {"type": "file", "file": file})]

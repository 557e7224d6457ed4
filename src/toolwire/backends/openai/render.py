"""Converts a `Turn` to the body of a chat completions request, exactly as OpenAI defines it.

- Instructions come first. Text and calls of the assistant in one step become one message.
- Tool results contain only text. Their images follow in a user message.
- If a `tool_choice` lists allowed tools, it is sent unchanged to a server that supports this. Other servers
  get only the allowed tools. `n` is never sent, because the gateway runs a turn n times.
- A field that the client did not send is not sent. Fields that Toolwire does not read are forwarded unchanged
  if they are in `Turn.rest`. They never replace a field that this module sets.
- If `Turn.constraint` constrains the output, the fields of the constraint replace the response format.
- If the server cannot stream log probabilities with tools, no stream is requested.
- If the server ignores or refuses a field (`profiles.py`), the body contains an equivalent if possible:

      a named `tool_choice`          `required`, and only that tool
      `tool_choice: "none"`          no tools
      `json_object`                  a JSON schema
      a content of several texts     one string
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolwire.backends.openai.options import OpenAIOptions
from toolwire.backends.openai.profiles import ServerProfile
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import (
    NO_SAMPLING,
    Call,
    Constraint,
    ImagePart,
    Message,
    OutputFormat,
    Part,
    Result,
    Sampling,
    TextPart,
    ToolSpec,
    Turn,
)
from toolwire.emulate.schemas.bounding import arguments_schema
from toolwire.emulate.schemas.constrain import call_schema, lark

Body = dict[str, Any]

SAMPLING_FIELDS = tuple(
    "temperature top_p seed presence_penalty frequency_penalty logit_bias verbosity".split()
)
"""Fields of `turn.Sampling` that have the same name in the request body."""

EMPTY_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}

PASSED_ON = frozenset(SAMPLING_FIELDS) | frozenset(
    "model messages input instructions stream stream_options n user stop reasoning_effort reasoning logprobs "
    "max_tokens max_completion_tokens max_output_tokens response_format text".split()
)
"""Request fields of Chat Completions and Responses that reach the server or decide how the turn runs."""

TOOL_FIELDS = frozenset({"tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"})
"""Request fields that reach the server only with the strategy `native`."""


def render(
    turn: Turn, model: str, options: OpenAIOptions | None = None, profile: ServerProfile | None = None
) -> Body:
    """Returns the body of the request.

    `model`: the model's name at the server. If `profile` is None, the options decide the kind of server.
    """
    options = options or OpenAIOptions()
    profile = profile or options.server
    body: Body = {"model": model, "messages": _messages(turn, options)}
    if not profile.text_parts:
        _join_texts(body["messages"])
    if turn.tools:
        _add_tools(body, turn, profile)
    if turn.constraint is not None:
        body.update(constraint_fields(turn.constraint, profile))
    elif turn.output.type != "text":
        body["response_format"] = _response_format(turn.output, profile)
    if turn.sampling is not NO_SAMPLING:
        _add_sampling(body, turn.sampling, options, profile)
    if turn.user is not None:
        body["user"] = turn.user
    for name, value in turn.rest.items():
        body.setdefault(name, value)  # does not replace a field that is set above
    is_whole = "logprobs" in body and "tools" in body and not profile.streams_logprobs
    body["stream"] = turn.stream and not is_whole
    if body["stream"] and options.stream_usage:
        body["stream_options"] = {"include_usage": True}
    return body


def _add_sampling(body: Body, sampling: Sampling, options: OpenAIOptions, profile: ServerProfile) -> None:
    for name in SAMPLING_FIELDS:
        value = getattr(sampling, name)
        if value is not None:
            body[name] = value
    if sampling.max_tokens is not None:
        field = profile.max_tokens if options.max_tokens_field == "auto" else options.max_tokens_field
        body[field] = sampling.max_tokens
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.effort is not None and "reasoning_effort" not in profile.ignores:
        body["reasoning_effort"] = sampling.effort
    if sampling.logprobs is not None:
        body["logprobs"] = True
        if sampling.logprobs:  # llama.cpp reads 0 as no log probabilities at all
            body["top_logprobs"] = sampling.logprobs


# --- messages ---


def _messages(turn: Turn, options: OpenAIOptions) -> list[Body]:
    out: list[Body] = []
    if turn.instructions:
        role = "developer" if options.system_role == "developer" else "system"
        out.append({"role": role, "content": turn.instructions})
    images: list[Body] = []  # images of tool results, which are sent after the last result
    thoughts: list[str] = []  # for the next assistant message; if results follow, for the message before them
    for item in turn.items:
        if images and not isinstance(item, Result):
            out.append({"role": "user", "content": images})
            images = []
        if isinstance(item, Message):
            if item.role == "assistant":
                _add_assistant(out, item, thoughts, options)
            else:
                thoughts.clear()
                out.append(_message(item, options))
        elif isinstance(item, Result):
            if thoughts:
                _think(out[-1], thoughts, options)
            images += _add_result(out, item)
        elif isinstance(item, Call):
            _add_call(_assistant(out, thoughts, options), item)
        else:
            thoughts += item.content or item.summary
    if images:
        out.append({"role": "user", "content": images})
    return out


def _message(message: Message, options: OpenAIOptions) -> Body:
    role: str = message.role
    if role in ("system", "developer") and options.system_role != "keep":
        role = options.system_role
    body: Body = {"role": role, "content": _content(message.parts)}
    if message.name:
        body["name"] = message.name
    return body


def _assistant(out: list[Body], thoughts: list[str], options: OpenAIOptions) -> Body:
    """Returns the assistant message to which a call is added: the last message, or a new message.

    Adds a new message without text if the last message is not the assistant's.
    """
    if not out or out[-1]["role"] != "assistant":
        out.append({"role": "assistant", "content": None})
    _think(out[-1], thoughts, options)
    return out[-1]


def _add_assistant(out: list[Body], message: Message, thoughts: list[str], options: OpenAIOptions) -> None:
    content = _content(message.parts)
    if out and out[-1]["role"] == "assistant" and "tool_calls" in out[-1]:
        out[-1]["content"] = _joined(out[-1]["content"], content) or None
    else:
        out.append({"role": "assistant", "content": content})
    if message.name:
        out[-1].setdefault("name", message.name)
    if message.refusal is not None:
        out[-1]["refusal"] = message.refusal
        out[-1]["content"] = out[-1]["content"] or None
    _think(out[-1], thoughts, options)


def _think(message: Body, thoughts: list[str], options: OpenAIOptions) -> None:
    if thoughts and options.reasoning_history:
        message["reasoning_content"] = message.get("reasoning_content", "") + "".join(thoughts)
    thoughts.clear()


def _add_call(message: Body, call: Call) -> None:
    message["content"] = message["content"] or None
    function = {"name": call.name, "arguments": call.arguments or "{}"}
    calls = message.setdefault("tool_calls", [])
    calls.append({"id": call.call_id, "type": "function", "function": function})


def _add_result(out: list[Body], result: Result) -> list[Body]:
    """Adds the text of a result as a tool message.

    Returns the parts that only a user message can have, such as images.
    """
    texts = [part for part in result.parts if isinstance(part, TextPart)]
    others = [part for part in result.parts if not isinstance(part, TextPart)]
    out.append({"role": "tool", "tool_call_id": result.call_id, "content": _content(texts)})
    about = {"type": "text", "text": f"Attached to the result of tool call {result.call_id}:"}
    return [about, *map(_part, others)] if others else []


def _content(parts: Sequence[Part]) -> str | list[Body]:
    """Returns the content as a list of parts, or as a string if it is a single text."""
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return [_part(part) for part in parts] if parts else ""


def _joined(first: str | list[Body] | None, second: str | list[Body]) -> str | list[Body]:
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_as_parts(first), *_as_parts(second)]


def _join_texts(messages: list[Body]) -> None:
    """Joins the content of each message that consists only of texts into one string."""
    for message in messages:
        content = message["content"]
        if isinstance(content, list) and all(part["type"] == "text" for part in content):
            message["content"] = "\n\n".join(part["text"] for part in content)


def _as_parts(content: str | list[Body]) -> list[Body]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _part(part: Part) -> Body:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, ImagePart):
        if part.url is None:
            return {"type": "file", "file": {"file_id": part.file_id}}
        detail = {"detail": part.detail} if part.detail else {}
        return {"type": "image_url", "image_url": {"url": part.url, **detail}}
    raw = dict(part.raw)
    if raw.get("type") == "input_file":  # the Responses form of chat's `file` part
        if raw.get("file_url") is not None:
            message = "This model takes no file by its URL: send its contents as file_data."
            raise ToolwireError("unsupported_value", message, param="input")
        keys = ("file_id", "file_data", "filename")
        return {"type": "file", "file": {key: raw[key] for key in keys if raw.get(key) is not None}}
    return raw


# --- tools and format ---


def _add_tools(body: Body, turn: Turn, profile: ServerProfile) -> None:
    choice = turn.tool_choice
    sent = _choice(turn, profile)
    names = None
    if not isinstance(sent, dict):  # the server cannot choose, so only the chosen or allowed tools are sent
        names = choice.allowed if choice.name is None else (choice.name,)
    tools = [tool for tool in turn.tools if names is None or tool.name in names]
    if not tools or (choice.mode == "none" and sent is None):
        return
    body["tools"] = [{"type": "function", "function": _function(tool)} for tool in tools]
    if sent is not None:
        body["tool_choice"] = sent
    if not turn.parallel or "parallel_tool_calls" in turn.sent:
        body["parallel_tool_calls"] = turn.parallel


def _choice(turn: Turn, profile: ServerProfile) -> str | Body | None:
    """Returns the `tool_choice` to send, or None if the field is not sent.

    If the result is an object, the server restricts the tools, and the request contains all of them.
    """
    choice, taken = turn.tool_choice, profile.choices
    if choice.name is not None and "named" in taken:
        return _named(choice.name)
    if choice.allowed is not None and "allowed" in taken and choice.mode != "none":
        allowed = {"mode": choice.mode, "tools": [_named(name) for name in choice.allowed]}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    if choice.mode in taken or (choice.mode == "auto" and "tool_choice" in turn.sent and taken):
        return choice.mode
    return None


def _named(name: str) -> Body:
    return {"type": "function", "function": {"name": name}}


def _function(tool: ToolSpec) -> Body:
    function: Body = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or EMPTY_SCHEMA
    if tool.strict:
        function["strict"] = True
    return function


def _response_format(output: OutputFormat, profile: ServerProfile) -> Body:
    if output.type == "json_object":
        if profile.json_object:
            return {"type": "json_object"}
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
    form = _json_schema(output.name or "answer", output.schema or {}, output.strict)
    if output.description:
        form["json_schema"]["description"] = output.description
    return form


# --- constraints ---
#
# Converts `Turn.constraint` to the request fields that constrain the model's output. A constraint without an
# opening marker becomes a JSON schema for the whole answer. Any other constraint is for text that contains
# calls. It becomes a Lark grammar (llguidance) or a structural tag (xgrammar). The beginning of each tag is
# the text of a call up to its arguments.


def _json_schema(name: str, schema: Mapping[str, Any], strict: bool) -> Body:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": strict}}


def constraint_fields(constraint: Constraint, profile: ServerProfile) -> Body:
    """Returns the request fields that express the constraint, or {} if the server has no such fields."""
    if not constraint.opening:
        schema = call_schema(constraint)
        forms: Body = {
            "response_format": _json_schema("tool_call", schema, profile.strict_schema),
            "structured_outputs": {"json": schema},
        }
        return {profile.schema: forms.get(profile.schema, schema)}
    if profile.grammar == "lark":
        return {"grammar": lark(constraint)}
    if profile.grammar == "structural_tag":
        return {"response_format": structural_tag(constraint)}
    return {}


def structural_tag(constraint: Constraint) -> Body:
    """Returns the constraint as a structural tag of xgrammar.

    If a call is required, the tag allows only calls (`tags_with_separator`). If no call is required, the tag
    also allows text (`triggered_tags`).
    """
    tags = [
        {
            "type": "tag",
            "begin": constraint.opening + constraint.head(tool),
            "content": {"type": "json_schema", "json_schema": arguments_schema(tool.parameters)},
            "end": "}" + constraint.closing,
        }
        for tool in constraint.tools
    ]
    once = constraint.calls == 1
    form: Body = {"type": "triggered_tags", "triggers": [constraint.opening]}
    if constraint.required:
        form = {"type": "tags_with_separator", "separator": "\n"}
    form |= {"tags": tags, "at_least_one": constraint.required, "stop_after_first": once}
    return {"type": "structural_tag", "format": form}

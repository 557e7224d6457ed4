"""Converts a `Turn` to messages, settings and tools of the library pydantic-ai.

The messages have a form that every provider accepts: the first and the last message are the user's, roles
alternate, results follow their calls directly, and no message is empty. The assistant's text precedes its
calls. Signed thoughts of earlier calls are sent back in their position. Reasoning items without a signature
are not sent, because no provider accepts them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.messages import TextPart as SaidPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from toolwire.backends.hosted import thinking
from toolwire.backends.hosted.options import PROVIDERS, SAMPLING, HostedOptions, Provider
from toolwire.backends.hosted.thinking import CallMemory, Signed
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import (
    Call,
    ImagePart,
    Item,
    Message,
    OtherPart,
    Part,
    Result,
    TextPart,
    ToolSpec,
    Turn,
)
from toolwire.emulate.prompt import output_prompt
from toolwire.wire.history import NO_RESULT

# --- content: a part that a provider cannot accept raises an error, and is never dropped ---

Content = str | BinaryContent | ImageUrl


def contents(parts: Iterable[Part], provider: Provider) -> list[Content]:
    """Returns the parts as pydantic-ai's content, without empty texts, which some providers refuse."""
    out: list[Content] = []
    for part in parts:
        if isinstance(part, TextPart):
            if part.text.strip():
                out.append(part.text)
        elif isinstance(part, ImagePart):
            out.append(_image(part, provider))
        else:
            out.append(_other(part, provider))
    return out


def _image(part: ImagePart, provider: Provider) -> Content:
    if part.url is None:
        message = "This model cannot get an image that is stored at another provider; send the image itself."
        raise ToolwireError("unsupported_value", message)
    if part.url.startswith("data:"):
        return inline(part.url)
    if not provider.image_urls:
        message = "This model does not take image URLs; send the image itself as a data: URL."
        raise ToolwireError("unsupported_value", message)
    return ImageUrl(part.url)


def inline(url: str) -> BinaryContent:
    head, comma, data = url.removeprefix("data:").partition(",")
    media_type, *parameters = head.split(";")
    try:
        raw = base64.b64decode(data, validate=True) if "base64" in parameters else unquote_to_bytes(data)
    except (binascii.Error, ValueError):
        raw = b""
    if not comma or not raw or "/" not in media_type:
        problem = "A data: URL has the wrong form; expected data:MEDIA/TYPE;base64,DATA."
        raise ToolwireError("invalid_value", problem)
    return BinaryContent(raw, media_type=media_type.strip().lower())


def _other(part: OtherPart, provider: Provider) -> Content:
    raw = part.raw
    file = raw.get("file")  # chat has the data in `file`, Responses beside the type
    data = (file if isinstance(file, Mapping) else raw).get("file_data")
    if part.kind in ("file", "input_file") and isinstance(data, str):
        return inline(data if data.startswith("data:") else f"data:application/pdf;base64,{data}")
    if part.kind == "input_audio" and provider.audio:
        audio = raw.get("input_audio")
        if isinstance(audio, Mapping):
            return inline(f"data:audio/{audio.get('format', 'wav')};base64,{audio.get('data', '')}")
    kind = "".join(letter for letter in part.kind if letter.isalnum() or letter == "_")[:40]
    problem = f"This model does not take content of type {kind!r} in this form."
    raise ToolwireError("unsupported_value", problem)


def result(parts: Iterable[Part], provider: Provider) -> Any:
    """Returns the content of a tool result: its text, or a list if it contains more than text."""
    found = contents(parts, provider)
    texts = [item for item in found if isinstance(item, str)]
    if len(texts) < len(found):
        return found
    return [] if not texts and provider.empty_results else "\n".join(texts)


OPENING = "(The conversation starts here.)"
CONTINUE = "Continue."
EMPTY_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}
SAMPLING_SETTINGS = ("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias")
"""Fields of `turn.Sampling` that have the same name in pydantic-ai. Only supported fields are sent."""
_STRANGE = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class Target:
    """The model for which `render` converts a turn.

    `profile`: pydantic-ai's profile of the model. `fields`: the request fields that the model supports.
    `system`, `canonical_system`: pydantic-ai's names for the provider, used for messages with signed
    thoughts.
    """

    options: HostedOptions
    profile: Mapping[str, Any]
    fields: frozenset[str]
    system: str = ""
    canonical_system: str | None = None

    @property
    def provider(self) -> Provider:
        return PROVIDERS[self.options.provider]

    @property
    def forces_calls(self) -> bool:
        return bool(self.profile.get("supports_forced_tool_choice", True))


@dataclass(frozen=True, slots=True)
class HostedRequest:
    messages: list[ModelMessage]
    settings: ModelSettings
    parameters: ModelRequestParameters


def render(turn: Turn, target: Target, memory: CallMemory) -> HostedRequest:
    calls = [item for item in turn.items if isinstance(item, Call)]
    signed = {call.call_id: memory.recall(call.call_id, call.name) for call in calls}
    thought = thinking.decide(turn, target.options, target.profile, _loop_is_signed(turn.items, signed))
    instructions = [turn.instructions] if turn.instructions and turn.instructions.strip() else []
    native = _native_output(turn, target)
    if turn.output.type != "text" and native is None:
        instructions.append(output_prompt(turn.output))
    tools, settings = _tools(turn, target)
    if turn.tools and turn.tool_choice.mode == "required" and not target.forces_calls:
        names = " or ".join(f"the tool `{tool.name}`" for tool in turn.offered())
        instructions.append(f"Answer with a call of {names}, and with nothing else.")
    settings |= _settings(turn, target, thought)
    messages = _Conversation(target, signed, thought.replay).read(instructions, turn.items)
    parameters = ModelRequestParameters(function_tools=tools, allow_text_output=True)
    if native is not None:
        parameters = replace(parameters, output_mode="native", output_object=native)
    return HostedRequest(messages, settings, parameters)


# --- messages ---


def _loop_is_signed(items: tuple[Item, ...], signed: Mapping[str, Signed | None]) -> bool:
    """Whether the first call of the current tool loop has signed thoughts; True if there is no loop.

    A tool loop is a series of calls and results. A user's message ends it, unless the message directly
    follows a result.
    """
    state: bool | None = None
    after_result = False
    for item in items:
        if isinstance(item, Call):
            found = signed[item.call_id]
            state = (found is not None and bool(found.thoughts)) if state is None else state
        elif isinstance(item, Message) and item.role == "user" and not after_result:
            state = None
        if isinstance(item, Result):
            after_result = True
        elif isinstance(item, Call) or (isinstance(item, Message) and item.role == "assistant"):
            after_result = False
    return state is not False


class _Conversation:
    """Groups items into alternating requests and responses."""

    def __init__(self, target: Target, signed: Mapping[str, Signed | None], replay: bool) -> None:
        self._target = target
        self._signed = signed if replay else {}
        self._details = signed
        self._names: dict[str, str] = {}
        self._asked: list[ModelRequestPart] = []
        self._texts: list[SaidPart] = []
        self._calls: list[Call] = []
        self._out: list[ModelMessage] = []

    def read(self, instructions: list[str], items: tuple[Item, ...]) -> list[ModelMessage]:
        self._asked += map(SystemPromptPart, instructions)
        for item in items:
            self._take(item)
        for call in tuple(self._calls):
            self._take(Result(call.call_id, (TextPart(NO_RESULT),)))
        if self._texts or not any(isinstance(part, UserPromptPart | ToolReturnPart) for part in self._asked):
            self._ask(UserPromptPart(CONTINUE if self._out or self._texts else OPENING))
        self._close_request()
        return self._out

    def _take(self, item: Item) -> None:
        provider = self._target.provider
        if isinstance(item, Call):
            self._answer()
            self._calls.append(item)
            self._names[item.call_id] = item.name
        elif isinstance(item, Result):
            name, found = self._names.get(item.call_id, item.name or "tool"), result(item.parts, provider)
            outcome: Literal["failed", "success"] = "failed" if item.is_error else "success"
            self._ask(ToolReturnPart(_name(name), found, tool_call_id=_id(item.call_id), outcome=outcome))
        elif isinstance(item, Message):
            if item.role == "assistant":
                self._say(item)
            elif item.role == "user":
                found = contents(item.parts, provider)
                if found:
                    text = found[0] if len(found) == 1 else None
                    self._ask(UserPromptPart(text if isinstance(text, str) else found))
            else:
                text = "\n".join(part.text for part in item.parts if isinstance(part, TextPart))
                if text.strip():
                    self._ask(SystemPromptPart(text))

    def _say(self, message: Message) -> None:
        texts = [part.text for part in message.parts if isinstance(part, TextPart)]
        texts += [message.refusal] if message.refusal else []
        for text in texts:
            if text.strip():
                self._answer()
                self._texts.append(SaidPart(text))

    def _ask(self, part: ModelRequestPart) -> None:
        self._close_response()
        self._asked.append(part)

    def _answer(self) -> None:
        """Begins a response of the model, and ends the request before it.

        If this request has no message and no result, a message of the user is added to it first.
        """
        if self._texts or self._calls:
            return
        if not any(isinstance(part, UserPromptPart | ToolReturnPart) for part in self._asked):
            self._asked.append(UserPromptPart(CONTINUE if self._out else OPENING))
        self._close_request()

    def _close_request(self) -> None:
        if self._asked:
            self._out.append(ModelRequest(parts=self._asked))
            self._asked = []

    def _close_response(self) -> None:
        if not self._texts and not self._calls:
            return
        first: list[ModelResponsePart] = []
        calls: list[ModelResponsePart] = []
        for call in self._calls:
            signed = self._signed.get(call.call_id)
            for thought in signed.thoughts if signed is not None else ():
                (first if not calls and not thought.after_text else calls).append(thought.part)
            calls.append(self._call(call))
        parts = [*first, *self._texts, *calls]
        name, system = self._target.system or None, self._target.canonical_system
        self._out.append(ModelResponse(parts=parts, provider_name=name, canonical_system=system))
        self._texts, self._calls = [], []

    def _call(self, call: Call) -> ToolCallPart:
        part = ToolCallPart(_name(call.name), call.arguments, tool_call_id=_id(call.call_id))
        signed = self._details.get(call.call_id)
        if signed is not None and signed.details:
            part = replace(part, provider_name=signed.provider_name, provider_details=dict(signed.details))
        return part


def _id(call_id: str) -> str:
    """Returns the id in characters that every provider accepts. Different ids stay different."""
    return _STRANGE.sub(lambda found: f"_{ord(found[0]):x}_", call_id)


def _name(name: str) -> str:
    return _STRANGE.sub("_", name)


# --- tools, settings and output ---


def _tools(turn: Turn, target: Target) -> tuple[list[ToolDefinition], ModelSettings]:
    choice = turn.tool_choice
    tools = [tool for tool in turn.tools if choice.allowed is None or tool.name in choice.allowed]
    forced = target.forces_calls
    if choice.name is not None and not forced:
        tools = [tool for tool in tools if tool.name == choice.name]
    if not tools:
        if not target.provider.tools_with_history:
            return [], {}
        called = dict.fromkeys(_name(item.name) for item in turn.items if isinstance(item, Call))
        made = [ToolDefinition(name=name, parameters_json_schema=dict(EMPTY_SCHEMA)) for name in called]
        return made, {"tool_choice": "none"} if called else {}
    settings: ModelSettings = {}
    if choice.name is not None and forced:
        settings["tool_choice"] = [choice.name]
    elif choice.mode == "none" or (choice.mode == "required" and forced):
        settings["tool_choice"] = choice.mode
    if not turn.parallel and target.provider.parallel:
        settings["parallel_tool_calls"] = False
    return [_definition(tool) for tool in tools], settings


def _definition(tool: ToolSpec) -> ToolDefinition:
    schema = dict(tool.parameters)
    if schema.get("type", "object") == "object":
        schema = {**EMPTY_SCHEMA, **schema}
    return ToolDefinition(
        name=tool.name,
        description=tool.description or None,
        parameters_json_schema=schema,
        strict=True if tool.strict else None,
    )


def _settings(turn: Turn, target: Target, thought: thinking.Thinking) -> ModelSettings:
    sampling, fields = turn.sampling, target.fields
    settings: dict[str, Any] = {"timeout": target.options.timeout_s, "max_retries": 0, **thought.settings}
    for name in SAMPLING_SETTINGS:
        value = getattr(sampling, name)
        if value is not None and name in fields and not (thought.drop_sampling and name in SAMPLING):
            settings[name] = value
    if target.provider.closed_schemas and "temperature" in settings and "top_p" in settings:
        # Claude accepts only one of the two. A value of 1 has no effect, so it is not sent if both are set.
        for name in ("top_p", "temperature"):
            if settings[name] == 1 and len(SAMPLING & set(settings)) == 2:
                del settings[name]
    if sampling.max_tokens is not None:
        settings["max_tokens"] = sampling.max_tokens
    if sampling.stop and "stop" in fields:
        settings["stop_sequences"] = list(sampling.stop)
    if target.options.cache:
        settings["cache"] = True
    made: ModelSettings = settings  # type: ignore[assignment]
    return made


def _native_output(turn: Turn, target: Target) -> OutputObjectDefinition | None:
    """Returns the schema that the provider enforces, or None if the instructions describe the output."""
    output, profile = turn.output, target.profile
    if output.type != "json_schema" or not output.schema or not profile.get("supports_json_schema_output"):
        return None
    if turn.tools and not profile.get("google_supports_tool_combination", True):
        return None
    if target.provider.closed_schemas and not _is_closed(output.schema):
        return None
    return OutputObjectDefinition(
        json_schema=dict(output.schema), name=output.name, description=output.description, strict=True
    )


def _is_closed(schema: Any) -> bool:
    """Whether no object in the schema allows additional keys.

    If an object in a schema allows additional keys, Claude returns an empty object.
    """
    if isinstance(schema, list):
        return all(map(_is_closed, schema))
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        return False
    plain = ("enum", "const", "default", "examples")
    return all(_is_closed(value) for key, value in schema.items() if key not in plain)

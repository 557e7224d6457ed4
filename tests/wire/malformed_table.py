"""Malformed requests and the error object that each must get, from the decoders and from the gateway.

Every case has the model `MODEL`, except those about the model itself. Load this module by its path: tests are
not a package.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MODEL = "demo"

VALUE = "invalid_value"
TYPE = "invalid_type"
MISSING = "missing_required_parameter"
UNSUPPORTED = "unsupported_parameter"
JSON = "invalid_json"


@dataclass(frozen=True)
class Case:
    id: str
    path: str
    body: bytes
    status: int
    type: str
    param: str | None
    code: str | None


CASES: list[Case] = []

USER = {"role": "user", "content": "Hi"}
FUNCTION = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
FLAT = {"type": "function", "name": "look", "parameters": {"type": "object"}}


def raw(id: str, path: str, body: bytes, param: str | None, code: str | None) -> None:
    CASES.append(Case(id, path, body, 400, "invalid_request_error", param, code))


def chat(id: str, param: str | None, code: str | None, **fields: Any) -> None:
    body = {"model": MODEL, "messages": [USER], **fields}
    raw(f"chat-{id}", CHAT, json.dumps(body).encode(), param, code)


def messages(id: str, param: str, code: str | None, *after: Any) -> None:
    chat(id, param, code, messages=[USER, *after])


def responses(id: str, param: str | None, code: str | None, **fields: Any) -> None:
    body = {"model": MODEL, "input": "Hi", **fields}
    raw(f"responses-{id}", RESPONSES, json.dumps(body).encode(), param, code)


def items(id: str, param: str, code: str | None, *after: Any) -> None:
    responses(id, param, code, input=[USER, *after])


def calls(*entries: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(entries)}


def call(id: str = "call_1", arguments: str = "{}", name: str = "look") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


# --- the body, on both endpoints ---

for where, path in (("chat", CHAT), ("responses", RESPONSES)):
    raw(f"{where}-empty-body", path, b"", None, JSON)
    raw(f"{where}-truncated-json", path, b'{"model": "demo", "messages": [', None, JSON)
    raw(f"{where}-trailing-comma", path, b'{"model": "demo",}', None, JSON)
    raw(f"{where}-trailing-characters", path, b"{} {}", None, JSON)
    raw(f"{where}-invalid-utf8", path, b'{"model": "\xff"}', None, JSON)
    raw(f"{where}-utf8-encoded-surrogate", path, b'{"model": "\xed\xa0\x80"}', None, JSON)
    raw(f"{where}-lone-high-surrogate", path, b'{"model": "\\ud800"}', None, JSON)
    raw(f"{where}-lone-low-surrogate", path, b'{"model": "\\udc00 and more text"}', None, JSON)
    raw(f"{where}-lone-surrogate-key", path, b'{"model": "demo", "\\udc00 key": 1}', None, JSON)
    raw(f"{where}-raw-control-character", path, b'{"model": "a\nb"}', None, JSON)
    raw(f"{where}-nan", path, b'{"temperature": NaN}', None, JSON)
    raw(f"{where}-number-out-of-range", path, b'{"temperature": 1e999}', None, JSON)
    raw(f"{where}-byte-order-mark", path, b'\xef\xbb\xbf{"model": "demo"}', None, JSON)
    raw(f"{where}-nested-too-deep", path, b'{"x": ' + b"[" * 250 + b"]" * 250 + b"}", None, JSON)
    raw(f"{where}-nested-absurdly-deep", path, b'{"x":' * 100_000 + b"1" + b"}" * 100_000, None, JSON)
    raw(f"{where}-array-body", path, b"[]", None, TYPE)
    raw(f"{where}-string-body", path, b'"hello"', None, TYPE)
    raw(f"{where}-null-body", path, b"null", None, TYPE)

# --- single fields, on both endpoints ---

for about in (chat, responses):
    about("model-missing", "model", MISSING, model=None)
    about("model-empty", "model", MISSING, model="")
    about("model-not-a-string", "model", TYPE, model=7)
    about("temperature-a-string", "temperature", TYPE, temperature="hot")
    about("temperature-a-boolean", "temperature", TYPE, temperature=True)
    about("temperature-too-high", "temperature", VALUE, temperature=2.1)
    about("temperature-negative", "temperature", VALUE, temperature=-0.1)
    about("top-p-too-high", "top_p", VALUE, top_p=1.5)
    about("top-logprobs-too-many", "top_logprobs", VALUE, top_logprobs=21)
    about("stream-a-string", "stream", TYPE, stream="true")
    about("stream-a-number", "stream", TYPE, stream=1)
    about("store-a-string", "store", TYPE, store="no")
    about("parallel-a-string", "parallel_tool_calls", TYPE, parallel_tool_calls="false")
    about("parallel-in-camel-case", "parallel_tool_calls", TYPE, parallelToolCalls=0)
    about("metadata-an-array", "metadata", TYPE, metadata=[])
    about("metadata-value-a-number", "metadata", TYPE, metadata={"a": 1})
    about("metadata-too-many", "metadata", VALUE, metadata={f"k{i}": "v" for i in range(17)})
    about("metadata-value-too-long", "metadata", VALUE, metadata={"a": "v" * 513})
    about("user-a-number", "user", TYPE, user=1)
    about("stream-options-a-boolean", "stream_options", TYPE, stream_options=True)
    about("tools-an-object", "tools", TYPE, tools={})
    about("tool-a-string", "tools[0]", TYPE, tools=["look"])
    about("tool-without-type", "tools[0].type", MISSING, tools=[{"function": {"name": "look"}}])
    about("tool-choice-unknown-word", "tool_choice", VALUE, tools=[FUNCTION], tool_choice="maybe")
    about(
        "tool-choice-unknown-word-in-camel-case", "tool_choice", VALUE, tools=[FUNCTION], toolChoice="maybe"
    )
    about("tool-choice-a-number", "tool_choice", TYPE, tools=[FUNCTION], tool_choice=1)
    about(
        "tool-choice-without-type",
        "tool_choice.type",
        MISSING,
        tools=[FUNCTION],
        tool_choice={"name": "look"},
    )
    about(
        "tool-choice-unknown-type",
        "tool_choice.type",
        VALUE,
        tools=[FUNCTION],
        tool_choice={"type": "telepathy"},
    )
    about("tool-choice-required-without-tools", "tool_choice", VALUE, tool_choice="required")
    about(
        "tool-choice-required-with-hosted-tools-only",
        "tool_choice",
        VALUE,
        tools=[{"type": "web_search"}],
        tool_choice="required",
    )

# --- chat: fields ---

chat("messages-missing", "messages", MISSING, messages=None)
chat("messages-empty", "messages", VALUE, messages=[])
chat("messages-a-string", "messages", TYPE, messages="Hi")
chat("message-a-string", "messages[0]", TYPE, messages=["Hi"])
chat("n-zero", "n", VALUE, n=0)
chat("n-too-many", "n", VALUE, n=129)
chat("n-a-decimal", "n", TYPE, n=1.5)
chat("n-a-boolean", "n", TYPE, n=True)
chat("max-tokens-zero", "max_tokens", VALUE, max_tokens=0)
chat("max-tokens-a-decimal", "max_tokens", TYPE, max_tokens=10.5)
chat("max-completion-tokens-negative", "max_completion_tokens", VALUE, max_completion_tokens=-1)
chat("stop-a-number", "stop", TYPE, stop=7)
chat("stop-too-many", "stop", VALUE, stop=["a", "b", "c", "d", "e"])
chat("stop-entry-a-number", "stop[1]", TYPE, stop=["a", 1])
chat("seed-a-string", "seed", TYPE, seed="7")
chat("presence-penalty-too-high", "presence_penalty", VALUE, presence_penalty=2.5)
chat("frequency-penalty-too-low", "frequency_penalty", VALUE, frequency_penalty=-3)
chat("logit-bias-an-array", "logit_bias", TYPE, logit_bias=[1])
chat("logit-bias-too-strong", "logit_bias", VALUE, logit_bias={"50256": -101})
chat("logprobs-a-number", "logprobs", TYPE, logprobs=1)
chat("top-logprobs-alone", "top_logprobs", None, top_logprobs=2)
chat("top-logprobs-without-logprobs", "top_logprobs", None, top_logprobs=2, logprobs=False)
chat("effort-unknown", "reasoning_effort", VALUE, reasoning_effort="heroic")
chat("verbosity-unknown", "verbosity", VALUE, verbosity="chatty")
chat(
    "include-usage-a-string",
    "stream_options.include_usage",
    TYPE,
    stream=True,
    stream_options={"include_usage": "yes"},
)
chat("response-format-a-string", "response_format", TYPE, response_format="json_object")
chat("response-format-without-type", "response_format.type", MISSING, response_format={})
chat("response-format-unknown", "response_format.type", VALUE, response_format={"type": "xml"})
chat("schema-missing", "response_format.json_schema", MISSING, response_format={"type": "json_schema"})
chat(
    "schema-unnamed",
    "response_format.json_schema.name",
    MISSING,
    response_format={"type": "json_schema", "json_schema": {"schema": {}}},
)
chat(
    "schema-an-array",
    "response_format.json_schema.schema",
    TYPE,
    response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": []}},
)

# --- chat: tools ---

chat("tool-without-function", "tools[0].function", MISSING, tools=[{"type": "function"}])
chat("tool-function-a-string", "tools[0].function", TYPE, tools=[{"type": "function", "function": "look"}])
chat(
    "tool-without-name",
    "tools[1].function.name",
    MISSING,
    tools=[FUNCTION, {"type": "function", "function": {}}],
)
chat(
    "tool-name-empty", "tools[0].function.name", VALUE, tools=[{"type": "function", "function": {"name": ""}}]
)
chat(
    "tool-name-with-a-space",
    "tools[0].function.name",
    VALUE,
    tools=[{"type": "function", "function": {"name": "look up"}}],
)
chat(
    "tool-name-with-a-line-end",
    "tools[0].function.name",
    VALUE,
    tools=[{"type": "function", "function": {"name": "look\n"}}],
)
chat(
    "tool-name-with-markup",
    "tools[0].function.name",
    VALUE,
    tools=[{"type": "function", "function": {"name": "<tool_call>"}}],
)
chat(
    "tool-name-too-long",
    "tools[0].function.name",
    VALUE,
    tools=[{"type": "function", "function": {"name": "n" * 129}}],
)
chat("tool-name-twice", "tools[1].function.name", VALUE, tools=[FUNCTION, FUNCTION])
chat(
    "tool-parameters-a-string",
    "tools[0].function.parameters",
    TYPE,
    tools=[{"type": "function", "function": {"name": "a", "parameters": "{}"}}],
)
chat(
    "tool-strict-a-string",
    "tools[0].function.strict",
    TYPE,
    tools=[{"type": "function", "function": {"name": "a", "strict": "yes"}}],
)
chat(
    "tool-description-a-number",
    "tools[0].function.description",
    TYPE,
    tools=[{"type": "function", "function": {"name": "a", "description": 1}}],
)
chat("custom-tool-without-name", "tools[0].custom.name", MISSING, tools=[{"type": "custom", "custom": {}}])
chat(
    "custom-tool-format-unknown",
    "tools[0].custom.format.type",
    VALUE,
    tools=[{"type": "custom", "custom": {"name": "a", "format": {"type": "x"}}}],
)
chat(
    "choice-undeclared",
    "tool_choice.function.name",
    VALUE,
    tools=[FUNCTION],
    tool_choice={"type": "function", "function": {"name": "other"}},
)
chat(
    "choice-named-without-tools",
    "tool_choice.function.name",
    VALUE,
    tool_choice={"type": "function", "function": {"name": "look"}},
)
chat(
    "choice-without-function",
    "tool_choice.function",
    MISSING,
    tools=[FUNCTION],
    tool_choice={"type": "function"},
)
chat(
    "choice-function-as-custom",
    "tool_choice.custom.name",
    VALUE,
    tools=[FUNCTION],
    tool_choice={"type": "custom", "custom": {"name": "look"}},
)
chat(
    "choice-allowed-missing",
    "tool_choice.allowed_tools",
    MISSING,
    tools=[FUNCTION],
    tool_choice={"type": "allowed_tools"},
)
chat(
    "choice-allowed-undeclared",
    "tool_choice.allowed_tools.tools[0].function.name",
    VALUE,
    tools=[FUNCTION],
    tool_choice={
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "other"}}]},
    },
)
chat(
    "choice-allowed-mode-unknown",
    "tool_choice.allowed_tools.mode",
    VALUE,
    tools=[FUNCTION],
    tool_choice={
        "type": "allowed_tools",
        "allowed_tools": {"mode": "none", "tools": [{"type": "function", "function": {"name": "look"}}]},
    },
)
chat("functions-an-object", "functions", TYPE, functions={})
chat("function-name-invalid", "functions[0].name", VALUE, functions=[{"name": "a b"}])
chat(
    "function-call-undeclared",
    "function_call.name",
    VALUE,
    functions=[{"name": "look"}],
    function_call={"name": "other"},
)
chat("function-call-required", "function_call", VALUE, functions=[{"name": "look"}], function_call="required")

# --- chat: messages ---

messages("role-missing", "messages[1].role", MISSING, {"content": "x"})
messages("role-unknown", "messages[1].role", VALUE, {"role": "wizard", "content": "x"})
messages("role-a-number", "messages[1].role", TYPE, {"role": 1, "content": "x"})
messages("content-missing", "messages[1].content", MISSING, {"role": "user"})
messages("content-null-of-a-user", "messages[1].content", MISSING, {"role": "user", "content": None})
messages("content-a-number", "messages[1].content", TYPE, {"role": "user", "content": 5})
messages("content-part-a-string", "messages[1].content[0]", TYPE, {"role": "user", "content": ["x"]})
messages(
    "content-part-without-type",
    "messages[1].content[0].type",
    MISSING,
    {"role": "user", "content": [{"text": "x"}]},
)
messages(
    "content-part-without-text",
    "messages[1].content[0].text",
    MISSING,
    {"role": "user", "content": [{"type": "text"}]},
)
messages(
    "image-missing",
    "messages[1].content[0].image_url",
    MISSING,
    {"role": "user", "content": [{"type": "image_url"}]},
)
messages(
    "image-of-a-local-file",
    "messages[1].content[0].image_url.url",
    VALUE,
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]},
)
messages("message-name-a-number", "messages[1].name", TYPE, {"role": "user", "content": "x", "name": 1})
messages("tool-calls-an-object", "messages[1].tool_calls", TYPE, {"role": "assistant", "tool_calls": {}})
messages(
    "call-without-id",
    "messages[1].tool_calls[0].id",
    MISSING,
    calls({"type": "function", "function": {"name": "a", "arguments": "{}"}}),
)
messages("call-id-empty", "messages[1].tool_calls[0].id", VALUE, calls(call(id="")))
messages("call-type-unknown", "messages[1].tool_calls[0].type", VALUE, calls({**call(), "type": "magic"}))
messages(
    "call-without-function",
    "messages[1].tool_calls[0].function",
    MISSING,
    calls({"id": "call_1", "type": "function"}),
)
messages("call-name-invalid", "messages[1].tool_calls[0].function.name", VALUE, calls(call(name="a\r\nb")))
messages(
    "call-arguments-an-object",
    "messages[1].tool_calls[0].function.arguments",
    TYPE,
    calls({"id": "call_1", "type": "function", "function": {"name": "look", "arguments": {}}}),
)
messages(
    "call-id-for-two-calls", "messages[1].tool_calls[1].id", VALUE, calls(call(), call(arguments='{"a": 1}'))
)
messages("result-without-id", "messages[1].tool_call_id", MISSING, {"role": "tool", "content": "x"})
messages(
    "result-without-content",
    "messages[2].content",
    MISSING,
    calls(call()),
    {"role": "tool", "tool_call_id": "call_1"},
)
messages(
    "result-without-call",
    "messages[1].tool_call_id",
    None,
    {"role": "tool", "tool_call_id": "call_9", "content": "x"},
)
messages(
    "function-result-without-call",
    "messages[1].name",
    None,
    {"role": "function", "name": "look", "content": "x"},
)
messages("function-result-without-name", "messages[1].name", MISSING, {"role": "function", "content": "x"})
messages(
    "function-result-twice",
    "messages[3].name",
    None,
    {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
    {"role": "function", "name": "look", "content": "x"},
    {"role": "function", "name": "look", "content": "y"},
)

# --- Responses: fields ---

responses("input-missing", "input", MISSING, input=None)
responses("input-empty", "input", MISSING, input=[])
responses("input-a-number", "input", TYPE, input=5)
responses("messages-instead-of-input", "messages", UNSUPPORTED, input=None, messages=[USER])
responses("instructions-a-number", "instructions", TYPE, instructions=5)
responses("background", "background", UNSUPPORTED, background=True)
responses("background-a-string", "background", TYPE, background="yes")
responses("conversation", "conversation", UNSUPPORTED, conversation="conv_1")
responses("prompt", "prompt", UNSUPPORTED, prompt={"id": "pmpt_1"})
responses("previous-a-number", "previous_response_id", TYPE, previous_response_id=5)
responses("max-output-tokens-zero", "max_output_tokens", VALUE, max_output_tokens=0)
responses("max-tool-calls-a-string", "max_tool_calls", TYPE, max_tool_calls="3")
responses("truncation-unknown", "truncation", VALUE, truncation="sometimes")
responses("include-a-string", "include", TYPE, include="reasoning.encrypted_content")
responses("reasoning-a-string", "reasoning", TYPE, reasoning="high")
responses("effort-unknown", "reasoning.effort", VALUE, reasoning={"effort": "heroic"})
responses("summary-unknown", "reasoning.summary", VALUE, reasoning={"summary": "short"})
responses("text-a-string", "text", TYPE, text="json")
responses("format-a-string", "text.format", TYPE, text={"format": "json_object"})
responses("format-unknown", "text.format.type", VALUE, text={"format": {"type": "xml"}})
responses(
    "schema-unnamed", "text.format.name", MISSING, text={"format": {"type": "json_schema", "schema": {}}}
)
responses(
    "schema-missing",
    "text.format.schema",
    MISSING,
    text={"format": {"type": "json_schema", "name": "answer"}},
)
responses("verbosity-unknown", "text.verbosity", VALUE, text={"verbosity": "chatty"})

# --- Responses: tools ---

responses("tool-without-name", "tools[0].name", MISSING, tools=[{"type": "function"}])
responses("tool-name-invalid", "tools[1].name", VALUE, tools=[FLAT, {"type": "function", "name": 'a"b'}])
responses("tool-name-twice-in-two-shapes", "tools[1].function.name", VALUE, tools=[FLAT, FUNCTION])
responses(
    "tool-parameters-an-array",
    "tools[0].parameters",
    TYPE,
    tools=[{"type": "function", "name": "a", "parameters": []}],
)
responses("namespace-without-tools", "tools[0].tools", MISSING, tools=[{"type": "namespace", "name": "crm"}])
responses(
    "namespace-tool-name-invalid",
    "tools[0].tools[0].name",
    VALUE,
    tools=[
        {
            "type": "namespace",
            "name": "crm",
            "description": "d",
            "tools": [{"type": "function", "name": "a b"}],
        }
    ],
)
responses(
    "grammar-without-definition",
    "tools[0].format.definition",
    MISSING,
    tools=[{"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark"}}],
)
responses(
    "choice-undeclared",
    "tool_choice.name",
    VALUE,
    tools=[FLAT],
    tool_choice={"type": "function", "name": "other"},
)
responses(
    "choice-allowed-empty",
    "tool_choice.tools",
    VALUE,
    tools=[FLAT],
    tool_choice={"type": "allowed_tools", "mode": "auto", "tools": []},
)
responses(
    "choice-allowed-hosted-only-but-required",
    "tool_choice.tools",
    VALUE,
    tools=[FLAT, {"type": "web_search"}],
    tool_choice={"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
)

# --- Responses: items ---

items("item-a-string", "input[1]", TYPE, "Hi")
items("item-without-type", "input[1].type", MISSING, {"content": "x"})
items("item-type-unknown", "input[1].type", VALUE, {"type": "mesage", "role": "user", "content": "x"})
items("item-type-a-number", "input[1].type", TYPE, {"type": 1})
items("role-of-chat", "input[1].role", VALUE, {"role": "tool", "tool_call_id": "call_1", "content": "x"})
items("content-missing", "input[1].content", MISSING, {"type": "message", "role": "user"})
items(
    "content-part-without-text",
    "input[1].content[0].text",
    MISSING,
    {"role": "user", "content": [{"type": "input_text"}]},
)
items(
    "image-url-a-number",
    "input[1].content[0].image_url",
    TYPE,
    {"role": "user", "content": [{"type": "input_image", "image_url": 1}]},
)
items(
    "call-without-call-id",
    "input[1].call_id",
    MISSING,
    {"type": "function_call", "id": "fc_1", "name": "look", "arguments": "{}"},
)
items(
    "call-without-name",
    "input[1].name",
    MISSING,
    {"type": "function_call", "call_id": "call_1", "arguments": "{}"},
)
items(
    "call-without-arguments",
    "input[1].arguments",
    MISSING,
    {"type": "function_call", "call_id": "call_1", "name": "look"},
)
items(
    "custom-call-without-input",
    "input[1].input",
    MISSING,
    {"type": "custom_tool_call", "call_id": "call_1", "name": "patch"},
)
items("output-missing", "input[1].output", MISSING, {"type": "function_call_output", "call_id": "call_1"})
items(
    "output-an-object",
    "input[1].output",
    TYPE,
    {"type": "function_call_output", "call_id": "call_1", "output": {"a": 1}},
)
items(
    "output-without-call",
    "input[1].call_id",
    None,
    {"type": "function_call_output", "call_id": "call_9", "output": "x"},
)
items(
    "custom-output-without-call",
    "input[1].call_id",
    None,
    {"type": "custom_tool_call_output", "call_id": "call_9", "output": "x"},
)
items(
    "call-id-for-two-calls",
    "input[2].call_id",
    VALUE,
    {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
    {"type": "function_call", "call_id": "call_1", "name": "other", "arguments": "{}"},
)
items("summary-a-string", "input[1].summary", TYPE, {"type": "reasoning", "summary": "thought"})
items(
    "summary-part-without-text",
    "input[1].summary[0].text",
    MISSING,
    {"type": "reasoning", "summary": [{"type": "summary_text"}]},
)

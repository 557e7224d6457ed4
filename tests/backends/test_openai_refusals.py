"""Errors by which servers refuse tools, a `tool_choice` or a schema, and other errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolwire.backends.openai.failures import error_message
from toolwire.backends.openai.strategy import Refused, refused

TOOLS: frozenset[Refused] = frozenset({"tools"})
REQUIRED: frozenset[Refused] = frozenset({"tools", "choice"})
ALLOWED: frozenset[Refused] = frozenset({"tools", "allowed"})
HELD: frozenset[Refused] = frozenset({"constraint"})


def found(body: Any, asked: frozenset[Refused] = REQUIRED) -> Refused | None:
    raw = body if isinstance(body, str) else json.dumps(body)
    return refused(error_message(raw.encode()), asked, raw)


def error(message: str, **more: Any) -> dict[str, Any]:
    return {
        "error": {"message": message, "type": "invalid_request_error", "param": None, "code": None, **more}
    }


def loc(
    *path: str | int, type: str = "extra_forbidden", msg: str = "Extra inputs are not permitted"
) -> dict[str, Any]:
    return {"type": type, "loc": list(path), "msg": msg, "input": []}


REFUSED: dict[str, Any] = {
    # by structure alone, with unknown wording
    "param and code": error("Hm.", param="tools", code="unknown_parameter"),
    "unsupported parameter": error("Hm.", param="tools", code="unsupported_parameter"),
    "the first tool": error("Hm.", param="tools[0]", code="unsupported_parameter"),
    "unsupported value": error("Hm.", param="tools", code="unsupported_value"),
    "the legacy field": error("Hm.", param="functions", code="unknown_parameter"),
    "param and words": error("This argument is not supported here.", param="tools"),
    "FastAPI": {"detail": [loc("body", "tools")]},
    "FastAPI, pydantic 1": {
        "detail": [loc("body", "tools", type="value_error.extra", msg="extra fields not permitted")]
    },
    "FastAPI, among others": {"detail": [loc("body", "seed"), loc("body", "tools")]},
    "Mistral": {
        "object": "Error",
        "detail": [loc("body", "tools")],
        "message": [loc("body", "tools")],
        "type": "invalid_request_error",
        "code": 3001,
    },
    "a nested error": {
        "error": {"message": "Bad request", "details": [{"param": "tools", "code": "unsupported_parameter"}]}
    },
    "an error in a list": [error("Hm.", param="tools", code="unsupported_parameter")],
    "OpenRouter quotes its provider": {
        "error": {
            "message": "Provider returned error",
            "code": 400,
            "metadata": {
                "raw": '{"code":400, "reason":"INVALID_REQUEST_BODY", "message":"model features function '
                'calling not support"}'
            },
        }
    },
    "OpenRouter quotes a structure": {
        "error": {
            "message": "Provider returned error",
            "metadata": {"raw": json.dumps({"detail": [loc("body", "tools")]})},
        }
    },
    # by wording
    "OpenAI": error("Unknown parameter: 'tools'."),
    "OpenAI, a model": error("Unsupported parameter: 'tools' is not supported with this model."),
    "OpenAI, chat models": error(
        "tools is not supported in this model. For a list of supported models, refer to "
        "https://platform.openai.com/docs"
    ),
    "Azure": error("Unrecognized request argument supplied: tools"),
    "Azure, several": error("Unrecognized request arguments supplied: tool_choice, tools"),
    "Groq": error("property 'tools' is unsupported"),
    "Groq, a model": error("`tool calling` is not supported with this model"),
    "Cerebras": error("Tools are not supported for this model."),
    "a bare text": {"error": "tools are not supported for this model"},
    "llama.cpp, early": {
        "error": {"code": 500, "message": "Unsupported param: tools", "type": "server_error"}
    },
    "not implemented": error("tool calls not implemented"),
    "Ollama": error("registry.ollama.ai/library/gemma:2b does not support tools"),
    "Ollama, native API": {"error": "hf.co/empower-dev/llama3-small-gguf does not support tools"},
    "DeepSeek": error("deepseek-reasoner does not support Function Calling", code="invalid_request_error"),
    "Bedrock": {"message": "This model doesn't support tool use in streaming mode."},
    "Bedrock by LiteLLM": error(
        'litellm.BadRequestError: BedrockException - {"message":"This model doesn\'t support tool use."}'
    ),
    "NVIDIA NIM": {
        "object": "error",
        "message": "Tool use has not been enabled, because it is unsupported by meta/llama3-8b.",
    },
    "LiteLLM": error(
        "litellm.UnsupportedParamsError: nvidia_nim does not support parameters: {'tools': [{'type': "
        "'function'}]}"
    ),
    "vLLM, strict fields": {
        "object": "error",
        "message": "[{'type': 'extra_forbidden', 'loc': ('body', 'tools'), 'msg': 'Extra inputs are not "
        "permitted'}]",
    },
    "pydantic in words": error(
        "1 validation error for ChatRequest\ntools\n  Extra inputs are not permitted [type=extra_forbidden]"
    ),
    "jsonschema": error("Additional properties are not allowed ('stream', 'tools' were unexpected)"),
    "Python": error("create_chat_completion() got an unexpected keyword argument 'tools'"),
    "Go": error('json: unknown field "tools"'),
    "Perplexity": error("Tool calling is not supported for this model."),
    "Fireworks": error("Function calling is not supported by model accounts/fireworks/models/x"),
    "not JSON": "This model does not support function calling.",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refusal_of_tools(kind: str) -> None:
    for asked in (TOOLS, REQUIRED, ALLOWED):
        assert found(REFUSED[kind], asked) == "tools"
    assert found(REFUSED[kind], HELD) is None, "tools were not asked for"


GENUINE: dict[str, Any] = {
    "schema": error(
        "Invalid schema for function 'f': In context=(), object schema missing properties.",
        param="tools[0].function.parameters",
        code="invalid_function_parameters",
    ),
    "schema, keyword": error(
        "Invalid schema for function 'f': 'uniqueItems' is not permitted.",
        param="tools[0].parameters",
        code="invalid_function_parameters",
    ),
    "schema, in words": error(
        "Invalid schema for function 'f': schema must be a JSON Schema of 'type: \"object\"', got 'type: "
        "null'."
    ),
    "schema, a keyword that is unsupported": error(
        "tools[0].function.parameters: unsupported keyword 'oneOf'", param="tools[0].function.parameters"
    ),
    "SGLang": error("Tool 17 function has invalid 'parameters' schema: None is not of type 'array'"),
    "a field of a tool": {
        "type": "error",
        "error": {"message": "tools.3.custom.input_examples: Extra inputs are not permitted"},
    },
    "a field of a tool, by its place": {"detail": [loc("body", "tools", 0, "function", "strict")]},
    "JSON": error(
        "tools[50].function.parameters must be valid JSON (line 1, column 1)",
        code="InvalidParameter",
        param="",
    ),
    "too many": error(
        "Invalid 'tools': array too long. Expected an array with maximum length 128.",
        param="tools",
        code="array_above_max_length",
    ),
    "too many, in words": error("Too many tools: this model does not support tools beyond 64."),
    "name": error(
        "Invalid 'tools[0].function.name': string does not match pattern.",
        param="tools[0].function.name",
        code="invalid_value",
    ),
    "name, in words": error("Invalid tool name: functions are not supported with a dot in their name"),
    "duplicate": error("Duplicate tool name 'f' in tools", param="tools"),
    "parallel": error("Parallel tool calls are not supported with this model."),
    "history": error("messages[2].tool_calls is not supported for this role", param="messages[2].tool_calls"),
    "ids": error("messages: tool call ids must be unique"),
    "another field": error("Unknown parameter: 'seed'.", param="seed", code="unknown_parameter"),
    "another field, FastAPI": {"detail": [loc("body", "stream_options")]},
    "a field with a like name": error("Unknown parameter: 'tools_config'."),
    "a missing field": {
        "detail": [loc("body", "tools", 0, "function", type="missing", msg="Field required")]
    },
    "context": error(
        "This model's maximum context length is 8192 tokens, however you requested 9000 tokens (in the "
        "tools).",
        code="context_length_exceeded",
    ),
    "rate": error("Rate limit reached for requests"),
    "auth": error("Incorrect API key provided"),
    "model": error("The model `tools-7b` does not exist", code="model_not_found"),
    "model, unknown": error("unknown model 'tools'"),
    "server": error("internal error in tool parser"),
    "groq, generation": error(
        "Failed to call a function. Please adjust your prompt.", code="tool_use_failed"
    ),
    "nothing": "",
    "a page": "<html><body><h1>502 Bad Gateway</h1></body></html>",
}


@pytest.mark.parametrize("kind", GENUINE)
def test_an_error_that_is_no_refusal(kind: str) -> None:
    for asked in (TOOLS, REQUIRED, ALLOWED):
        assert found(GENUINE[kind], asked) is None


CHOICES: dict[str, Any] = {
    "OpenAI": error(
        "Unsupported value: 'tool_choice' does not support 'required' with this model.",
        param="tool_choice",
        code="unsupported_value",
    ),
    "an invalid value": error(
        "Invalid value: 'required'. Supported values are: 'none' and 'auto'.",
        param="tool_choice",
        code="invalid_value",
    ),
    "by its place": {
        "detail": [loc("body", "tool_choice", type="literal_error", msg="Input should be 'none' or 'auto'")]
    },
    "DeepSeek": error("Thinking mode does not support this tool_choice"),
    "Groq": error("Only allowed string values for 'tool_choice' are none, auto, and required"),
    "OpenRouter": error("No endpoints found that support the provided 'tool_choice' value."),
    "in words": error("tool_choice 'required' is not supported by this server"),
    "unknown": error("Unrecognized request argument supplied: tool_choice"),
}


@pytest.mark.parametrize("kind", CHOICES)
def test_a_refusal_of_the_choice(kind: str) -> None:
    assert found(CHOICES[kind], REQUIRED) == "choice" and found(CHOICES[kind], ALLOWED) == "allowed"
    assert found(CHOICES[kind], TOOLS) is None


@pytest.mark.parametrize(
    "body",
    [
        error("Hm.", param="response_format", code="unsupported_parameter"),
        error("Hm.", param="response_format.json_schema", code="invalid_value"),
        {"detail": [loc("body", "guided_json")]},
        error("This response_format type is unavailable now"),
    ],
)
def test_a_refusal_of_the_schema(body: Any) -> None:
    assert found(body, HELD) == "constraint" and found(body, REQUIRED) is None


@pytest.mark.parametrize(
    "body",
    [
        "[" * 5000,
        json.dumps([error("x")] * 5000),
        '{"error": ' * 100 + "1" + "}" * 100,
        json.dumps({"message": "{" * 5000}),
    ],
)
def test_a_strange_error_costs_little_and_is_no_refusal(body: str) -> None:
    assert found(body) is None

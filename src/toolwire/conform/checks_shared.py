"""The type `Check`, and the checks that all APIs share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from toolwire.conform import judging as say
from toolwire.conform import keeping
from toolwire.conform.exchange import Family, family_of
from toolwire.conform.judging import Judge
from toolwire.conform.problems import UNREADABLE
from toolwire.core.turn import Api

Level = Literal["required", "optional"]


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the catalogue.

    `demands`: what must be true. `source`: where this is specified. `fails`: what goes wrong for a client if
    it is not true. `asks`: the names of the questions whose exchanges `judge` gets, in this order. `level`:
    "required" if clients break when the check fails, otherwise "optional".
    """

    id: str
    demands: str
    source: str
    fails: str
    asks: tuple[str, ...]
    judge: Judge
    level: Level = "required"

    @property
    def family(self) -> Family:
        return family_of(self.id)


SCHEMAS = "OpenAPI #/components/schemas/"
SDK = "Anthropic SDK "
"""Prefix for the name of a type in Anthropic's SDKs."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The terms and the specifications of one API, for the texts of the shared checks."""

    path: str
    choice: str
    choices: tuple[str, str, str]
    """The values of tool_choice for no call, a free choice, and at least one call."""
    parallel: str
    single: str
    parameters: str
    arguments: str
    readers: str
    """How clients read the arguments."""
    results: str
    clients: str
    structured: str
    whose: str
    error: str
    fields: str
    """The keys of the error object."""
    ends: str


_OF_BOTH: dict[str, Any] = {
    "choices": ('"none"', '"auto"', '"required"'),
    "parallel": f"{SCHEMAS}ParallelToolCalls",
    "single": "parallel_tool_calls: false",
    "parameters": f"{SCHEMAS}FunctionObject, parameters",
    "arguments": "a string with JSON; {} if there are none",
    "readers": "LangChain parses the arguments; AI SDK marks a call with other arguments as invalid",
    "results": 'LangChain sends content "" with a call, and a name with a result; AI SDK sends items without '
    "id and status; results may be lists of parts",
    "whose": "OpenAI's",
    "error": f"{SCHEMAS}ErrorResponse",
    "fields": "message, type, param, code",
    "ends": "openai-python and AI SDK treat a stream without an end marker as a success; mistral.rs#1874; "
    "tracker#544",
}
SOURCES: Mapping[Api, Sources] = {
    "chat": Sources(
        path="OpenAPI /chat/completions",
        choice=f"{SCHEMAS}ChatCompletionToolChoiceOption",
        clients="AI SDK and LangChain send $schema, developer messages, lists of parts",
        structured=f"{SCHEMAS}ResponseFormatJsonSchema",
        **_OF_BOTH,
    ),
    "responses": Sources(
        path="OpenAPI /responses",
        choice=f"{SCHEMAS}ToolChoiceParam",
        clients="Codex sends namespace and web_search tools, include, prompt_cache_key, reasoning",
        structured=f"{SCHEMAS}TextResponseFormatJsonSchema",
        **_OF_BOTH,
    ),
    "messages": Sources(
        path=f"{SDK}MessageCreateParams",
        choice=f"{SDK}ToolChoice",
        choices=("none", "auto", "any"),
        parallel=f"{SDK}ToolChoice, disable_parallel_tool_use",
        single="disable_parallel_tool_use",
        parameters=f"{SDK}Tool, input_schema",
        arguments="a JSON object; {} if there are none",
        readers=f"{SDK}ToolUseBlock, input; BerriAI/litellm#25321, BerriAI/litellm#29491; openclaude#1259",
        results="Claude Code sends results as lists of blocks, with is_error and cache_control, and then "
        "texts and system messages",
        clients="Claude Code sends a billing block, $schema, thinking, context_management, output_config, "
        "metadata, betas",
        structured=f"{SDK}JSONOutputFormat",
        whose="Anthropic's",
        error=f"{SDK}ErrorResponse",
        fields="type, message",
        ends="anthropic-python treats a stream that breaks off in a block as a success",
    ),
}


def asks(api: Api, *names: str) -> tuple[str, ...]:
    return tuple(f"{api}.{name}" for name in names)


def both(api: Api, *names: str) -> tuple[str, ...]:
    """Returns the names of the questions, each in two forms: for a body and for a stream."""
    return tuple(f"{api}.{name}.{form}" for name in names for form in ("body", "stream"))


TURNS = ("text", "call", "parallel", "both")
"""The questions for each kind of answer: text, a call, two calls, text and a call."""


def bodies(api: Api) -> tuple[str, ...]:
    return tuple(f"{api}.{name}.body" for name in TURNS)


def streams(api: Api) -> tuple[str, ...]:
    return tuple(f"{api}.{name}.stream" for name in TURNS)


def alike(api: Api) -> list[Check]:
    """Returns the shared checks, with the texts and questions of one API."""
    of = SOURCES[api]
    path, choice, error, whose = of.path, of.choice, of.error, of.whose
    none, auto, required = of.choices
    plain, tools = both(api, "text"), both(api, "call")
    everything, with_calls = both(api, *TURNS), both(api, *TURNS[1:])
    rows = [
        Check(
            "answers",
            "a plain request gets an answer, streamed and not streamed",
            path,
            "nothing works",
            plain,
            say.each(say.answered),
        ),
        Check(
            "tools.answers",
            "a request with tools gets an answer, streamed and not streamed",
            path,
            "no tool can be used",
            tools,
            say.each(say.answered),
        ),
        Check(
            "body.content-type",
            "an answer that is not streamed is application/json",
            path,
            "strict clients read the body as text",
            bodies(api),
            say.content_type("application/json"),
        ),
        Check(
            "stream.content-type",
            "a stream is text/event-stream",
            path,
            "browsers and proxies buffer the stream, or clients read it as one body",
            streams(api),
            say.content_type("text/event-stream"),
        ),
        Check(
            "stream.sse",
            "a stream is server-sent events in UTF-8: each event has one data line with JSON, and ends with "
            "a blank line",
            "the SSE standard",
            "the client's parser drops or joins events",
            streams(api),
            say.wire("sse_syntax", "encoding", "unterminated_event", "not_json", UNREADABLE),
        ),
        Check(
            "call.arguments",
            f"the arguments of a call are {of.arguments}",
            of.readers,
            "the tool runs without arguments, or not at all",
            with_calls,
            say.wire_of_calls("invalid_arguments", "empty_arguments"),
        ),
        Check(
            "call.arguments-fit",
            "the arguments match the schema of the tool",
            of.parameters,
            "the client's validation refuses the call",
            tools,
            say.each(say.arguments_fit, lenient=True),
        ),
        Check(
            "call.declared",
            "only tools that the request declares are called",
            "openclaw#65152; CLIProxyAPI#1399: agents that call their own tools",
            "the client has no such tool and the turn is lost",
            with_calls,
            say.wire_of_calls("undeclared_tool"),
        ),
        Check(
            "call.no-markup",
            "an answer with a call does not also have the call as markup in its text",
            "continue#11094; QwenPaw#4066; sglang#31763",
            "users see the markup, and the model reads its own markup in the next turn",
            with_calls,
            say.each(say.no_markup, lenient=True),
        ),
        Check(
            "call.ids-fresh",
            "the id of a call or an answer is never used again",
            "clients match a result to its call by the id alone",
            "a result is assigned to the call of another turn",
            everything,
            say.fresh_ids,
        ),
        Check(
            "parallel",
            "two calls of one turn arrive complete, each with its own id, streamed and not streamed",
            f"{of.parallel}; ollama#7881; openai/openai-python#2806",
            "clients merge the calls into one, or run only the first",
            both(api, "parallel"),
            say.each(say.done_well),
        ),
        Check(
            "parallel.off",
            f"with {of.single} there is at most one call",
            of.parallel,
            "a client that can run only one call at a time loses the other calls",
            asks(api, "single.body"),
            say.each(say.calls_once),
        ),
        Check(
            "text-and-call",
            "an answer may contain text and a call, and both arrive complete, streamed and not streamed",
            "BerriAI/litellm#17246 (the call is dropped); obsidian-copilot#2233",
            "the call or the text before it is lost",
            both(api, "both"),
            say.each(say.done_well),
        ),
        Check(
            "choice.none",
            f"tool_choice {none}: no tool is called, whatever the user asks for",
            f"{choice}; ollama#8421",
            "a tool runs although the client has forbidden it",
            asks(api, "choice.none"),
            say.each(say.calls_nothing),
        ),
        Check(
            "choice.auto",
            f"tool_choice {auto}: a request that needs no tool gets a text answer",
            choice,
            "the client runs tools again and again without need",
            asks(api, "choice.auto"),
            say.each(say.calls_nothing),
        ),
        Check(
            "choice.required",
            f"tool_choice {required}: the answer contains a call",
            f"{choice}; ollama#8421; mlx-vlm#1045; LiteRT-LM#2471",
            "a client that needs a call receives plain text",
            asks(api, "choice.required"),
            say.calls("get_weather", "get_time"),
        ),
        Check(
            "choice.named",
            "tool_choice with a name: this tool is called and no other",
            f"{choice}; vllm-project/vllm#49712",
            "a tool runs that the client did not choose",
            asks(api, "choice.named"),
            say.calls("get_time"),
        ),
        Check(
            "loop",
            "the result of a tool reaches the model: the second answer repeats the result, streamed "
            "and not streamed",
            "claude-code#13964; OmniRoute#4413: results that are lost",
            "the model answers as if the tool had never run, and calls it again",
            both(api, "loop.second"),
            say.each(say.result_reached_model),
        ),
        Check(
            "loop.clients",
            "the endpoint accepts calls and results in the forms that clients send",
            of.results,
            "these clients get an error when they send the result of a tool",
            asks(api, "loop.clients"),
            say.each(say.clean),
        ),
        Check(
            "request.clients",
            "a request with all fields that real clients send gets an answer",
            of.clients,
            "the client does not work at all",
            asks(api, "clients"),
            say.each(say.clean),
        ),
        Check(
            "structured",
            "a strict json_schema is enforced: the text is JSON that matches it, streamed and not streamed",
            f"{of.structured}; ollama#10001; llama.cpp#10732",
            "the client tries to parse plain text as JSON",
            both(api, "structured"),
            say.each(say.fits_schema),
        ),
        Check(
            "stream-is-body",
            "an answer has the same calls, arguments, text and reason for its end, whether it is streamed or "
            "not",
            "vllm-project/vllm#9053, vllm-project/vllm#47137; ollama#9092; BerriAI/litellm#21090",
            "a client that uses streams misses what other clients receive",
            everything,
            say.same_meaning,
        ),
        Check(
            "errors.bad-json",
            f"a body that is not JSON returns HTTP 400 or 422 with {whose} error object: {of.fields}",
            error,
            "the SDK raises an unreadable error",
            asks(api, "bad-json"),
            say.refused(400, 422),
        ),
        Check(
            "errors.unknown-model",
            f"an unknown model returns HTTP 404 or 400 with {whose} error object",
            error,
            "the client retries, or shows an empty answer",
            asks(api, "unknown-model"),
            say.refused(404, 400),
        ),
        Check(
            "errors.bad-field",
            f"a field of the wrong type returns HTTP 400 or 422 with {whose} error object",
            error,
            "the field is ignored, and the client does not notice",
            asks(api, "bad-field"),
            say.refused(400, 422),
        ),
        Check(
            "errors.before-stream",
            f"an error before the first byte is an HTTP error with {whose} error object, even if a stream "
            "was requested",
            f"{error}; BerriAI/litellm#39748; opencode#39968",
            "the client mistakes the error for an empty answer",
            asks(api, "unknown-model.stream", "missing-field"),
            say.refused(400, 404, 422),
        ),
        Check(
            "errors.in-stream",
            f"a stream always ends with its end marker or with {whose} error object",
            of.ends,
            "the client mistakes half an answer or half a call for a complete one",
            (*streams(api), *both(api, "loop.second")[1:]),
            say.ends_in_band,
        ),
        Check(
            "disconnect",
            "after a client disconnects in the middle of a stream, the next request gets an answer",
            "users press Stop",
            "the endpoint hangs, or sends the rest to the next client",
            asks(api, "left", "after-left"),
            keeping.continues_after_disconnect,
        ),
    ]
    return [replace(row, id=f"{api}.{row.id}") for row in rows]


def allowed(api: Api, schema: str) -> Check:
    """Returns the check of `allowed_tools`, which OpenAI's APIs have and Anthropic's does not."""
    return Check(
        f"{api}.choice.allowed",
        "tool_choice of the type allowed_tools, with mode required and one tool: this tool is called and no "
        "other",
        f"{SCHEMAS}{schema}",
        "a tool runs that the client excluded for this turn",
        asks(api, "choice.allowed"),
        say.calls("get_time"),
        "optional",
    )

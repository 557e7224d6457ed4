"""The type `Check`, and the checks that both APIs share, or that concern HTTP in general."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

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

    `demands`: what must be true. `source`: where this is specified. `fails`: what goes wrong for a client
    otherwise. `asks`: the names of the questions; `judge` gets their exchanges in this order. A failed
    `required` check breaks clients, a failed `optional` one does not.
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


def asks(api: Api, *names: str) -> tuple[str, ...]:
    return tuple(f"{api}.{name}" for name in names)


def both(api: Api, *names: str) -> tuple[str, ...]:
    """Returns the names of the questions, each for a body and for a stream."""
    return tuple(f"{api}.{name}.{form}" for name in names for form in ("body", "stream"))


TURNS = ("text", "call", "parallel", "both")
"""The questions for each kind of answer: text, a call, two calls, text and a call."""


def bodies(api: Api) -> tuple[str, ...]:
    return tuple(f"{api}.{name}.body" for name in TURNS)


def streams(api: Api) -> tuple[str, ...]:
    return tuple(f"{api}.{name}.stream" for name in TURNS)


def alike(api: Api) -> list[Check]:
    """Returns the checks that both APIs have, for one of them."""
    chat = api == "chat"
    path = f"OpenAPI /{'chat/completions' if chat else 'responses'}"
    choice = f"{SCHEMAS}{'ChatCompletionToolChoiceOption' if chat else 'ToolChoiceParam'}"
    error = f"{SCHEMAS}ErrorResponse"
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
            "browsers and proxies hold the stream back, clients read it as one body",
            streams(api),
            say.content_type("text/event-stream"),
        ),
        Check(
            "stream.sse",
            "a stream is server-sent events in UTF-8: one data line an event, JSON in it, a blank line "
            "after it",
            "the SSE standard",
            "the client's parser drops or joins events",
            streams(api),
            say.wire("sse_syntax", "encoding", "unterminated_event", "not_json", UNREADABLE),
        ),
        Check(
            "call.arguments",
            "the arguments of a call are a string with JSON; {} if there are none",
            "AI SDK marks a call with other arguments invalid; vercel/ai and LangChain parse them",
            "the tool runs without arguments, or not at all",
            with_calls,
            say.wire_of_calls("invalid_arguments", "empty_arguments"),
        ),
        Check(
            "call.arguments-fit",
            "the arguments match the schema of the tool",
            f"{SCHEMAS}FunctionObject, parameters",
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
            "a call does not also appear in the text of the answer as markup",
            "continue#11094; QwenPaw#4066; sglang#31763",
            "people see markup, and the model reads its own markup in the next turn",
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
            f"{SCHEMAS}ParallelToolCalls; ollama#7881; openai/openai-python#2806",
            "clients merge the calls into one, or run only the first",
            both(api, "parallel"),
            say.each(say.done_well),
        ),
        Check(
            "parallel.off",
            "with parallel_tool_calls: false there is at most one call",
            f"{SCHEMAS}ParallelToolCalls",
            "a client that runs one tool at a time loses the others",
            asks(api, "single.body"),
            say.each(say.calls_once),
        ),
        Check(
            "text-and-call",
            "an answer may contain text and a call, and both arrive complete, streamed and not streamed",
            "BerriAI/litellm#17246 (the call is dropped); obsidian-copilot#2233",
            "the call is lost, or the text before it",
            both(api, "both"),
            say.each(say.done_well),
        ),
        Check(
            "choice.none",
            'tool_choice "none": no tool is called, whatever the user asks for',
            f"{choice}; ollama#8421",
            "a tool runs although the client said no",
            asks(api, "choice.none"),
            say.each(say.calls_nothing),
        ),
        Check(
            "choice.auto",
            'tool_choice "auto": a request that needs no tool gets a text answer',
            choice,
            "the client loops over unneeded calls",
            asks(api, "choice.auto"),
            say.each(say.calls_nothing),
        ),
        Check(
            "choice.required",
            'tool_choice "required": the answer contains a call',
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
            "choice.allowed",
            "tool_choice allowed_tools, required, with one tool: this tool is called and no other",
            f"{SCHEMAS}{'ChatCompletionAllowedToolsChoice' if chat else 'ToolChoiceAllowed'}",
            "a tool runs that the client excluded for this turn",
            asks(api, "choice.allowed"),
            say.calls("get_time"),
            "optional",
        ),
        Check(
            "loop",
            "the result of a tool reaches the model: the second answer repeats its content, streamed "
            "and not streamed",
            "claude-code#13964; OmniRoute#4413: results that are lost",
            "the model answers as if the tool had never run, and calls it again",
            both(api, "loop.second"),
            say.each(say.result_reached_model),
        ),
        Check(
            "loop.clients",
            "the endpoint accepts calls and results in the forms that clients send",
            'LangChain sends content "" and a name beside a result; AI SDK sends items without id and '
            "status; results may be lists of parts",
            "the second step of these clients is refused",
            asks(api, "loop.clients"),
            say.each(say.clean),
        ),
        Check(
            "request.clients",
            "a request with all fields that real clients send gets an answer",
            "AI SDK and LangChain send $schema, developer messages, lists of parts"
            if chat
            else "Codex sends namespace and web_search tools, include, prompt_cache_key, reasoning",
            "the client does not work at all",
            asks(api, "clients"),
            say.each(say.clean),
        ),
        Check(
            "structured",
            "a strict json_schema is enforced: the text is JSON that matches it, streamed and not streamed",
            f"{SCHEMAS}{'ResponseFormatJsonSchema' if chat else 'TextResponseFormatJsonSchema'}; "
            "ollama#10001; llama.cpp#10732",
            "the client tries to parse plain text as JSON",
            both(api, "structured"),
            say.each(say.fits_schema),
        ),
        Check(
            "stream-is-body",
            "a streamed and a non-streamed answer agree: calls, arguments, text, and how it ended",
            "vllm-project/vllm#9053, vllm-project/vllm#47137; ollama#9092; BerriAI/litellm#21090",
            "a client that streams misses what another client receives",
            everything,
            say.same_meaning,
        ),
        Check(
            "errors.bad-json",
            "a body that is not JSON returns HTTP 400 with OpenAI's error object: message, type, param, code",
            error,
            "the SDK raises an unreadable error",
            asks(api, "bad-json"),
            say.refused(400, 422),
        ),
        Check(
            "errors.unknown-model",
            "an unknown model returns HTTP 404 or 400 with OpenAI's error object",
            error,
            "the client retries, or shows an empty answer",
            asks(api, "unknown-model"),
            say.refused(404, 400),
        ),
        Check(
            "errors.bad-field",
            "a field of the wrong type returns HTTP 400 or 422 with OpenAI's error object",
            error,
            "the field is ignored, and the client does not notice",
            asks(api, "bad-field"),
            say.refused(400, 422),
        ),
        Check(
            "errors.before-stream",
            "an error before the first byte is an HTTP error with OpenAI's error object, also for a stream",
            f"{error}; BerriAI/litellm#39748; opencode#39968",
            "the client mistakes the error for an empty answer",
            asks(api, "unknown-model.stream", "missing-field"),
            say.refused(400, 404, 422),
        ),
        Check(
            "errors.in-stream",
            "a stream ends with its end marker or with OpenAI's error object; it never just breaks off",
            "openai-python and AI SDK treat a stream that just ends as a success; mistral.rs#1874; "
            "tracker#544",
            "the client mistakes half an answer or half a call for a complete one",
            (*streams(api), *both(api, "loop.second")[1:]),
            say.ends_in_band,
        ),
        Check(
            "disconnect",
            "after a client disconnects in the middle of a stream, the next request gets an answer",
            "people press Stop",
            "the endpoint hangs, or sends the rest to the next client",
            asks(api, "left", "after-left"),
            keeping.continues_after_disconnect,
        ),
    ]
    return [replace(row, id=f"{api}.{row.id}") for row in rows]


# --- models, CORS and keys ---

HTTP = [
    Check(
        "http.models.list",
        "GET /models lists at least one model with id, object, created and owned_by",
        f"{SCHEMAS}ListModelsResponse; Obsidian Copilot verifies a provider by this list",
        "the client shows no models and reports that the endpoint is broken",
        ("http.models",),
        keeping.lists_models,
    ),
    Check(
        "http.models.one",
        "GET /models/ID returns that model",
        f"OpenAPI /models/{{model}}; {SCHEMAS}Model",
        "clients that look up a model before they use it stop working",
        ("http.model",),
        keeping.returns_model,
        "optional",
    ),
    Check(
        "http.models.unknown",
        "GET /models/ID of an unknown model returns HTTP 404 with OpenAI's error object",
        f"OpenAPI /models/{{model}}; {SCHEMAS}Error",
        "the client cannot distinguish a wrong name from a broken server",
        ("http.no-model",),
        say.refused(404),
        "optional",
    ),
    Check(
        "http.cors.preflight",
        "a preflight from app://obsidian.md returns 2xx without a key, and allows the origin and "
        "every requested header",
        "Fetch standard; logancyang/obsidian-copilot#2810, logancyang/obsidian-copilot#2877; "
        "bramses/chatgpt-md#176",
        "no web page and no Obsidian plugin can use the endpoint",
        ("http.preflight",),
        keeping.preflight_allows,
        "optional",
    ),
    Check(
        "http.cors.answers",
        "an answer allows the origin of the request",
        "Fetch standard",
        "the page cannot read the answer",
        ("http.from-page",),
        say.each(keeping.origin_allowed),
        "optional",
    ),
    Check(
        "http.cors.errors",
        "an error allows the origin of the request",
        "Fetch standard",
        "the page shows a network failure instead of the error",
        ("http.error-to-page",),
        say.each(keeping.origin_allowed),
        "optional",
    ),
    Check(
        "http.errors.no-key",
        "if a key is required, a request without one returns HTTP 401 or 403 with OpenAI's error object",
        f"{SCHEMAS}Error; Obsidian Copilot reads 401 and 403 as a wrong key",
        "the client cannot tell its user that the key is wrong",
        ("http.without-key",),
        say.needs_key,
    ),
]

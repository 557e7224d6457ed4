"""The checks that are alike for both APIs."""

from __future__ import annotations

from typing import Literal

from toolwire.conform import judging as say
from toolwire.conform import keeping
from toolwire.conform.check import SCHEMAS, Check, Level, asks, both, check
from toolwire.conform.judging import Judge
from toolwire.conform.problems import UNREADABLE

_PATH = {"chat": "chat/completions", "responses": "responses"}


def alike(api: Literal["chat", "responses"]) -> list[Check]:
    choice = f"{SCHEMAS}{'ChatCompletionToolChoiceOption' if api == 'chat' else 'ToolChoiceParam'}"
    error = f"{SCHEMAS}ErrorResponse"
    plain, tools = both(api, "text"), both(api, "call")
    everything = both(api, "text", "call", "parallel", "both")
    with_calls = both(api, "call", "parallel", "both")
    bodies = tuple(name for name in everything if name.endswith(".body"))
    streams = tuple(name for name in everything if name.endswith(".stream"))

    def row(
        name: str,
        demands: str,
        source: str,
        fails: str,
        asks: tuple[str, ...],
        judge: Judge,
        level: Level = "required",
    ) -> Check:
        return check(f"{api}.{name}", demands, source, fails, asks, judge, level)

    return [
        row(
            "answers",
            "a plain request is answered, streamed and not",
            f"OpenAPI /{_PATH[api]}",
            "nothing works",
            plain,
            say.each(say.answered),
        ),
        row(
            "tools.answers",
            "a request that declares tools is answered, streamed and not",
            f"OpenAPI /{_PATH[api]}",
            "no tool can be used",
            tools,
            say.each(say.answered),
        ),
        row(
            "body.content-type",
            "a response that is not streamed is application/json",
            f"OpenAPI /{_PATH[api]}",
            "strict clients read the body as text",
            bodies,
            say.content_type("application/json"),
        ),
        row(
            "stream.content-type",
            "a stream is text/event-stream",
            f"OpenAPI /{_PATH[api]}",
            "browsers and proxies buffer the stream, clients read it as one body",
            streams,
            say.content_type("text/event-stream"),
        ),
        row(
            "stream.sse",
            "a stream is server-sent events in UTF-8: one data line with JSON per event, then a blank line",
            "the SSE standard",
            "the client's parser drops or joins events",
            streams,
            say.wire("sse_syntax", "encoding", "unterminated_event", "not_json", UNREADABLE),
        ),
        row(
            "call.arguments",
            "the arguments of a call are a string with JSON, {} if there are none",
            "AI SDK marks a call with other arguments invalid; vercel/ai and LangChain parse them",
            "the tool runs without arguments, or not at all",
            with_calls,
            say.wire_of_calls("invalid_arguments", "empty_arguments"),
        ),
        row(
            "call.arguments-fit",
            "the arguments match the declared schema of the tool",
            f"{SCHEMAS}FunctionObject, parameters",
            "the client's validation rejects the call",
            tools,
            say.each(say.arguments_fit, lenient=True),
        ),
        row(
            "call.declared",
            "only tools that the request declares are called",
            "openclaw#65152; CLIProxyAPI#1399: agents that call their own tools",
            "the client has no such tool and the turn fails",
            with_calls,
            say.wire_of_calls("undeclared_tool"),
        ),
        row(
            "call.no-markup",
            "a call does not also appear as markup in the text",
            "continue#11094; QwenPaw#4066; sglang#31763",
            "users see markup, and the model reads its own markup in the next turn",
            with_calls,
            say.each(say.no_markup, lenient=True),
        ),
        row(
            "call.ids-fresh",
            "the id of a call or a response is never reused",
            "clients match a result to its call by the id alone",
            "a result is assigned to the call of another turn",
            everything,
            say.fresh_ids,
        ),
        row(
            "parallel",
            "two calls of one turn arrive complete, each with its own id, streamed and not",
            f"{SCHEMAS}ParallelToolCalls; ollama#7881; openai/openai-python#2806",
            "clients merge the calls into one, or run only the first",
            both(api, "parallel"),
            say.each(say.done_well),
        ),
        row(
            "parallel.off",
            "with parallel_tool_calls: false there is at most one call",
            f"{SCHEMAS}ParallelToolCalls",
            "a client that runs one tool at a time loses the others",
            asks(api, "single.body"),
            say.each(say.calls_once),
        ),
        row(
            "text-and-call",
            "a response may contain text and a call, and both arrive complete, streamed and not",
            "BerriAI/litellm#17246 (the call is dropped); obsidian-copilot#2233",
            "the call is lost, or the text before it",
            both(api, "both"),
            say.each(say.done_well),
        ),
        row(
            "choice.none",
            'tool_choice "none": nothing is called, whatever the user asks for',
            f"{choice}; ollama#8421",
            "a tool runs although the client forbade it",
            asks(api, "choice.none"),
            say.each(say.calls_nothing),
        ),
        row(
            "choice.auto",
            'tool_choice "auto": a request that needs no tool is answered with text',
            choice,
            "the client loops over unwanted calls",
            asks(api, "choice.auto"),
            say.each(say.calls_nothing),
        ),
        row(
            "choice.required",
            'tool_choice "required": the response contains a call',
            f"{choice}; ollama#8421; mlx-vlm#1045; LiteRT-LM#2471",
            "a client that expects a call gets prose",
            asks(api, "choice.required"),
            say.calls("get_weather", "get_time"),
        ),
        row(
            "choice.named",
            "tool_choice with a name: this tool is called and no other",
            f"{choice}; vllm-project/vllm#49712",
            "a tool runs that the client did not choose",
            asks(api, "choice.named"),
            say.calls("get_time"),
        ),
        row(
            "choice.allowed",
            "tool_choice allowed_tools, required, with one tool: this tool is called and no other",
            f"{SCHEMAS}{'ChatCompletionAllowedToolsChoice' if api == 'chat' else 'ToolChoiceAllowed'}",
            "a tool runs that the client excluded for this turn",
            asks(api, "choice.allowed"),
            say.calls("get_time"),
            "optional",
        ),
        row(
            "loop",
            "the result of a tool reaches the model: the second response repeats the result, streamed and not",
            "claude-code#13964; OmniRoute#4413: lost results",
            "the model answers as if the tool had never run, and calls it again",
            both(api, "loop.second"),
            say.each(say.told_again),
        ),
        row(
            "loop.clients",
            "calls and results are accepted in the formats that clients send",
            'LangChain sends content "" and a name with a result; AI SDK sends items without id and status; results may be lists of parts',
            "the second request of these clients is refused",
            asks(api, "loop.clients"),
            say.each(say.clean),
        ),
        row(
            "request.clients",
            "a request with the fields that real clients send is answered",
            "AI SDK and LangChain send $schema, developer messages, lists of parts"
            if api == "chat"
            else "Codex sends namespace and web_search tools, include, prompt_cache_key, reasoning",
            "the client does not work at all",
            asks(api, "clients"),
            say.each(say.clean),
        ),
        row(
            "structured",
            "a strict json_schema is enforced: the text is JSON that matches it, streamed and not",
            f"{SCHEMAS}{'ResponseFormatJsonSchema' if api == 'chat' else 'TextResponseFormatJsonSchema'}; ollama#10001; llama.cpp#10732",
            "the client parses prose",
            both(api, "structured"),
            say.each(say.fits_schema),
        ),
        row(
            "stream-is-body",
            "streaming and non-streaming responses agree: calls, arguments, text, finish",
            "vllm-project/vllm#9053, vllm-project/vllm#47137; ollama#9092; BerriAI/litellm#21090",
            "a client that streams gets a different result",
            everything,
            say.same_meaning,
        ),
        row(
            "errors.bad-json",
            "a body that is not JSON returns HTTP 400 with OpenAI's error object: message, type, param, code",
            error,
            "the SDK raises an error without a readable message",
            asks(api, "bad-json"),
            say.refused(400, 422),
        ),
        row(
            "errors.unknown-model",
            "an unknown model returns HTTP 404 or 400 with OpenAI's error object",
            error,
            "the client retries, or shows an empty answer",
            asks(api, "unknown-model"),
            say.refused(404, 400),
        ),
        row(
            "errors.bad-field",
            "a field with a wrong type returns HTTP 400 or 422 with OpenAI's error object",
            error,
            "the field is silently ignored",
            asks(api, "bad-field"),
            say.refused(400, 422),
        ),
        row(
            "errors.before-stream",
            "a failure before the first byte is an HTTP error with OpenAI's error object, also for a streaming request",
            f"{error}; BerriAI/litellm#39748; opencode#39968",
            "the client mistakes an error for an empty response",
            asks(api, "unknown-model.stream", "missing-field"),
            say.refused(400, 404, 422),
        ),
        row(
            "errors.in-stream",
            "a stream ends with its end marker or an error in OpenAI's format; it never just breaks off",
            "openai-python and AI SDK treat a bare end of the stream as success; mistral.rs#1874; tracker#544",
            "the client mistakes half a response or call for a complete one",
            (*streams, *both(api, "loop.second")[1:]),
            say.ends_in_band,
        ),
        row(
            "disconnect",
            "after a client disconnects in the middle of a stream, the next request is answered",
            "users press Stop",
            "the endpoint hangs, or sends the rest to the next client",
            asks(api, "left", "after-left"),
            keeping.goes_on,
        ),
    ]


# --- checks http ------------------------------------------------------------
#
# The checks beside the two APIs: models, pages, keys.

HTTP = [
    check(
        "http.models.list",
        "GET /models lists at least one model with id, object, created and owned_by",
        f"{SCHEMAS}ListModelsResponse; Obsidian Copilot verifies a provider by this list",
        "the client shows no model and treats the endpoint as broken",
        ("http.models",),
        keeping.lists_models,
    ),
    check(
        "http.models.one",
        "GET /models/ID returns that model",
        f"OpenAPI /models/{{model}}; {SCHEMAS}Model",
        "clients that look up a model before they use it stop",
        ("http.model",),
        keeping.tells_model,
        "optional",
    ),
    check(
        "http.models.unknown",
        "GET /models/ID of an unknown model returns HTTP 404 with OpenAI's error object",
        f"OpenAPI /models/{{model}}; {SCHEMAS}Error",
        "the client cannot distinguish a wrong name from a broken server",
        ("http.no-model",),
        say.refused(404),
        "optional",
    ),
    check(
        "http.cors.preflight",
        "a preflight from app://obsidian.md returns 2xx without a key and allows the origin and every requested header",
        "Fetch standard; logancyang/obsidian-copilot#2810, logancyang/obsidian-copilot#2877; bramses/chatgpt-md#176",
        "no web page and no Obsidian plugin can use the endpoint",
        ("http.preflight",),
        keeping.preflight_allows,
        "optional",
    ),
    check(
        "http.cors.answers",
        "a response allows the requesting origin",
        "Fetch standard",
        "the browser does not give the page the response",
        ("http.from-page",),
        say.each(keeping.page_may_read),
        "optional",
    ),
    check(
        "http.cors.errors",
        "an error allows the requesting origin",
        "Fetch standard",
        "the page shows a network failure instead of the error",
        ("http.error-to-page",),
        say.each(keeping.page_may_read),
        "optional",
    ),
    check(
        "http.errors.no-key",
        "if a key is required, a request without one returns HTTP 401 or 403 with OpenAI's error object",
        f"{SCHEMAS}Error; Obsidian Copilot reads 401 and 403 as a wrong key",
        "the client cannot report that the key is wrong",
        ("http.without-key",),
        say.refuses_strangers,
    ),
]

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
            "an answer that is not streamed is application/json",
            f"OpenAPI /{_PATH[api]}",
            "strict clients read the body as text",
            bodies,
            say.content_type("application/json"),
        ),
        row(
            "stream.content-type",
            "a stream is text/event-stream",
            f"OpenAPI /{_PATH[api]}",
            "browsers and proxies hold the stream back, clients read it as one body",
            streams,
            say.content_type("text/event-stream"),
        ),
        row(
            "stream.sse",
            "a stream is server-sent events in UTF-8: one data line an event, JSON in it, a blank line after it",
            "the SSE standard",
            "the client's parser drops or joins events",
            streams,
            say.wire("sse_syntax", "encoding", "unterminated_event", "not_json", UNREADABLE),
        ),
        row(
            "call.arguments",
            "the arguments of a call are a string that holds JSON, {} where there are none",
            "AI SDK marks a call with other arguments invalid; vercel/ai and LangChain parse them",
            "the tool runs with nothing, or not at all",
            with_calls,
            say.wire_of_calls("invalid_arguments", "empty_arguments"),
        ),
        row(
            "call.arguments-fit",
            "the arguments fit the schema that the tool was declared with",
            f"{SCHEMAS}FunctionObject, parameters",
            "the client's validation refuses the call",
            tools,
            say.each(say.arguments_fit, lenient=True),
        ),
        row(
            "call.declared",
            "only tools that the request declares are called",
            "openclaw#65152; CLIProxyAPI#1399: agents that call tools of their own",
            "the client has no such tool and the turn is lost",
            with_calls,
            say.wire_of_calls("undeclared_tool"),
        ),
        row(
            "call.no-markup",
            "a call does not also stand in the text of the answer as markup",
            "continue#11094; QwenPaw#4066; sglang#31763",
            "people see markup, and the model reads its own markup in the next turn",
            with_calls,
            say.each(say.no_markup, lenient=True),
        ),
        row(
            "call.ids-fresh",
            "the id of a call or an answer is never used again",
            "clients match a result to its call by the id alone",
            "a result lands at the call of another turn",
            everything,
            say.fresh_ids,
        ),
        row(
            "parallel",
            "two calls of one turn come whole, each with an id of its own, streamed and not",
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
            "an answer may hold text and a call, and both come whole, streamed and not",
            "BerriAI/litellm#17246 (the call is dropped); obsidian-copilot#2233",
            "the call is lost, or what was said before it",
            both(api, "both"),
            say.each(say.done_well),
        ),
        row(
            "choice.none",
            'tool_choice "none": nothing is called, whatever the person asks for',
            f"{choice}; ollama#8421",
            "a tool runs although the client said no",
            asks(api, "choice.none"),
            say.each(say.calls_nothing),
        ),
        row(
            "choice.auto",
            'tool_choice "auto": a request that needs no tool is answered with text',
            choice,
            "the client loops over calls that nobody asked for",
            asks(api, "choice.auto"),
            say.each(say.calls_nothing),
        ),
        row(
            "choice.required",
            'tool_choice "required": the answer holds a call',
            f"{choice}; ollama#8421; mlx-vlm#1045; LiteRT-LM#2471",
            "a client that counts on a call gets prose",
            asks(api, "choice.required"),
            say.calls("get_weather", "get_time"),
        ),
        row(
            "choice.named",
            "tool_choice with a name: this tool is called and no other",
            f"{choice}; vllm-project/vllm#49712",
            "another tool runs than the client chose",
            asks(api, "choice.named"),
            say.calls("get_time"),
        ),
        row(
            "choice.allowed",
            "tool_choice allowed_tools, required, with one tool: this tool is called and no other",
            f"{SCHEMAS}{'ChatCompletionAllowedToolsChoice' if api == 'chat' else 'ToolChoiceAllowed'}",
            "a tool runs that the client took away for this turn",
            asks(api, "choice.allowed"),
            say.calls("get_time"),
            "optional",
        ),
        row(
            "loop",
            "the result of a tool reaches the model: the second answer repeats what the result said, streamed and not",
            "claude-code#13964; OmniRoute#4413: results that are lost on the way",
            "the model answers as if the tool had never run, and calls it again",
            both(api, "loop.second"),
            say.each(say.told_again),
        ),
        row(
            "loop.clients",
            "calls and results are taken back in the shapes that clients send them",
            'LangChain sends content "" and a name beside a result; AI SDK sends items without id and status; results may be lists of parts',
            "the second step of these clients is refused",
            asks(api, "loop.clients"),
            say.each(say.clean),
        ),
        row(
            "request.clients",
            "a request with what real clients put in is answered",
            "AI SDK and LangChain send $schema, developer messages, lists of parts"
            if api == "chat"
            else "Codex sends namespace and web_search tools, include, prompt_cache_key, reasoning",
            "the client does not work at all",
            asks(api, "clients"),
            say.each(say.clean),
        ),
        row(
            "structured",
            "a strict json_schema is kept: the text is JSON that fits it, streamed and not",
            f"{SCHEMAS}{'ResponseFormatJsonSchema' if api == 'chat' else 'TextResponseFormatJsonSchema'}; ollama#10001; llama.cpp#10732",
            "the client parses prose",
            both(api, "structured"),
            say.each(say.fits_schema),
        ),
        row(
            "stream-is-body",
            "streamed and not streamed say the same: calls, arguments, text or none, and how it ended",
            "vllm-project/vllm#9053, vllm-project/vllm#47137; ollama#9092; BerriAI/litellm#21090",
            "a client that streams loses what another one gets",
            everything,
            say.same_meaning,
        ),
        row(
            "errors.bad-json",
            "a body that is no JSON is HTTP 400 with OpenAI's error object: message, type, param, code",
            error,
            "the SDK raises something that nobody can read",
            asks(api, "bad-json"),
            say.refused(400, 422),
        ),
        row(
            "errors.unknown-model",
            "a model that is not there is HTTP 404 or 400 with OpenAI's error object",
            error,
            "the client retries, or shows an empty answer",
            asks(api, "unknown-model"),
            say.refused(404, 400),
        ),
        row(
            "errors.bad-field",
            "a field of a wrong type is HTTP 400 or 422 with OpenAI's error object",
            error,
            "the field is ignored, and the client never learns of it",
            asks(api, "bad-field"),
            say.refused(400, 422),
        ),
        row(
            "errors.before-stream",
            "what is wrong before the first byte is an HTTP error with OpenAI's error object, also when a stream was asked for",
            f"{error}; BerriAI/litellm#39748; opencode#39968",
            "the client takes an error for an empty answer",
            asks(api, "unknown-model.stream", "missing-field"),
            say.refused(400, 404, 422),
        ),
        row(
            "errors.in-stream",
            "a stream ends with its end mark or with an error of OpenAI's shape; it is never just cut",
            "openai-python and AI SDK take a bare end of the stream for success; mistral.rs#1874; tracker#544",
            "half an answer, or half a call, is taken for a whole one",
            (*streams, *both(api, "loop.second")[1:]),
            say.ends_in_band,
        ),
        row(
            "disconnect",
            "a client that hangs up in the middle of a stream does no harm: the next request is answered",
            "people press Stop",
            "the endpoint hangs, or answers the next person with the rest",
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
        "the client shows no model and takes the endpoint for broken",
        ("http.models",),
        keeping.lists_models,
    ),
    check(
        "http.models.one",
        "GET /models/ID gives that model",
        f"OpenAPI /models/{{model}}; {SCHEMAS}Model",
        "clients that look a model up before they use it stop",
        ("http.model",),
        keeping.tells_model,
        "optional",
    ),
    check(
        "http.models.unknown",
        "GET /models/ID of a model that is not there is HTTP 404 with OpenAI's error object",
        f"OpenAPI /models/{{model}}; {SCHEMAS}Error",
        "the client can not tell a wrong name from a broken server",
        ("http.no-model",),
        say.refused(404),
        "optional",
    ),
    check(
        "http.cors.preflight",
        "a preflight from app://obsidian.md is answered 2xx without a key, allowing the origin and every header that is asked for",
        "Fetch standard; logancyang/obsidian-copilot#2810, logancyang/obsidian-copilot#2877; bramses/chatgpt-md#176",
        "no page and no Obsidian plugin reaches the endpoint",
        ("http.preflight",),
        keeping.preflight_allows,
        "optional",
    ),
    check(
        "http.cors.answers",
        "an answer allows the origin that asked",
        "Fetch standard",
        "the page asks, and is not given what came",
        ("http.from-page",),
        say.each(keeping.page_may_read),
        "optional",
    ),
    check(
        "http.cors.errors",
        "an error allows the origin that asked",
        "Fetch standard",
        "the page shows a network failure in place of what is wrong",
        ("http.error-to-page",),
        say.each(keeping.page_may_read),
        "optional",
    ),
    check(
        "http.errors.no-key",
        "where a key is needed, a request without one is HTTP 401 or 403 with OpenAI's error object",
        f"{SCHEMAS}Error; Obsidian Copilot reads 401 and 403 as a wrong key",
        "the client can not say that the key is wrong",
        ("http.without-key",),
        say.refuses_strangers,
    ),
]

"""The checks of Messages only: its bodies, the order of its events, and requests of its clients."""

from __future__ import annotations

from toolwire.conform import judging as say
from toolwire.conform import keeping
from toolwire.conform.checks_shared import SDK, Check, asks, bodies, both, streams
from toolwire.conform.problems import UNREADABLE

EVENT = f"{SDK}RawMessageStreamEvent"
_BODIES, _STREAMS = bodies("messages"), streams("messages")
_CALLS = _STREAMS[1:]

MESSAGES = [
    Check(
        "messages.body.shape",
        "a message has id, type, role, model, content, stop_reason, stop_sequence and usage, and its "
        "blocks have all of their keys",
        f"{SDK}Message, ContentBlock",
        "typed clients raise an error",
        _BODIES,
        say.wire("shape", "thought_shape", UNREADABLE),
    ),
    Check(
        "messages.body.stop",
        "stop_reason is tool_use if there are calls, and only then; stop_sequence is set only if a stop "
        "sequence ended the answer",
        "BerriAI/litellm#34692, BerriAI/litellm#12481; bifrost#3638; the SDKs' tool runners rely on it",
        "the tool never runs, and the turn ends",
        _BODIES,
        say.wire("untruthful_finish", "stop_sequence"),
    ),
    Check(
        "messages.body.usage",
        "usage has input_tokens and output_tokens",
        f"{SDK}Usage",
        "the SDKs raise an error, or compute wrong costs and context lengths",
        _BODIES[:2],
        say.usage_given("input_tokens", "output_tokens"),
    ),
    Check(
        "messages.body.no-extras",
        "there are no keys that Anthropic does not send",
        f"{SDK}Message",
        "if a client sends the answer back in its next request, the extra keys cause an error",
        _BODIES,
        say.wire("unknown_key"),
        "optional",
    ),
    Check(
        "messages.call.ids",
        "no two calls of an answer have the same id",
        "Claude Code drops the second call with its result",
        "one of the tools never runs",
        both("messages", "call", "parallel", "both"),
        say.wire_of_calls("call_id_repeated"),
    ),
    Check(
        "messages.stream.event-names",
        "every event has an event line with its type",
        "Claude Code and both SDKs drop data without an event line",
        "the client drops the whole answer",
        _STREAMS,
        say.wire("event_name"),
    ),
    Check(
        "messages.stream.events",
        "the endpoint sends only events that Anthropic sends, each with its keys",
        EVENT,
        "typed clients raise an error",
        _STREAMS,
        say.wire("unknown_event", "shape", "thought_shape"),
    ),
    Check(
        "messages.stream.start",
        "a stream begins with a message_start without content, and has no second message_start",
        "BerriAI/litellm#33859; Kimi-K2.5#33; new-api#1502; CLIProxyAPI#530; the TypeScript SDK raises an "
        "error",
        "the client rejects the stream",
        _STREAMS,
        say.wire("start_missing", "start_repeated", "start_content"),
    ),
    Check(
        "messages.stream.blocks",
        "blocks are numbered from 0 without a gap, each is started and stopped, and only one is open at "
        "a time",
        f"{EVENT}; CLIProxyAPI#3776",
        "arguments become {}, the SDK raises an error, or Claude Code loses the call",
        _STREAMS,
        say.wire("block_index", "block_open"),
    ),
    Check(
        "messages.stream.deltas",
        "a block has only deltas of its own type: no thoughts in a text block, no text in a call",
        "BerriAI/litellm#32357, BerriAI/litellm#29518, BerriAI/litellm#34433; sglang#26795",
        "the SDKs drop the delta, and Claude Code repeats the whole request",
        (*_STREAMS, "messages.thinking.stream"),
        say.wire("delta_type", "after_signature"),
    ),
    Check(
        "messages.stream.content",
        "text, thoughts and arguments are sent in deltas, never in content_block_start",
        "ccrelay#119; Claude Code reads arguments only from input_json_delta",
        "the tool runs with {}, and the text is lost",
        _STREAMS,
        say.wire("block_content"),
    ),
    Check(
        "messages.stream.increments",
        "each input_json_delta is an increment: together they are the JSON object of the arguments",
        "BerriAI/litellm#25321; CLIProxyAPI#3748; the SDKs raise an error, Claude Code reports an input "
        "error",
        "the client rejects the call, or runs it with {}",
        _CALLS,
        say.wire_of_calls("cumulative_arguments", "invalid_arguments"),
    ),
    Check(
        "messages.stream.stop",
        "stop_reason is tool_use if there are calls, and only then; stop_sequence is set only if a stop "
        "sequence ended the answer",
        "BerriAI/litellm#34692, BerriAI/litellm#12481; bifrost#3638; the SDKs' tool runners rely on it",
        "the tool never runs, and the turn ends",
        _STREAMS,
        say.wire("untruthful_finish", "stop_sequence"),
    ),
    Check(
        "messages.stream.finish-once",
        "an answer has one message_delta, and no block follows it",
        f"{SDK}RawMessageDeltaEvent",
        "stop_reason stays null",
        _STREAMS,
        say.wire("finish_missing", "finish_repeated", "after_finish"),
    ),
    Check(
        "messages.stream.end",
        "a stream ends with message_stop, once, and nothing follows",
        f"{SDK}RawMessageStopEvent; the TypeScript SDK raises an error without it",
        "the client reports a broken answer, or appends what follows",
        _STREAMS,
        say.wire("done_missing", "after_done"),
    ),
    Check(
        "messages.stream.usage",
        "message_start and message_delta have a usage",
        f"{SDK}Usage, MessageDeltaUsage; both SDKs crash without one of them",
        "the stream cannot be read at all",
        _STREAMS,
        say.wire("usage_shape"),
    ),
    Check(
        "messages.stream.no-extras",
        "there are no keys that Anthropic does not send, and no [DONE]",
        EVENT,
        "if a client sends the answer back in its next request, the extra keys cause an error",
        _STREAMS,
        say.wire("unknown_key", "done_unknown"),
        "optional",
    ),
    Check(
        "messages.thinking",
        "thoughts are in thinking blocks with a signature, not in the text, streamed and not streamed",
        f"{SDK}ThinkingBlock; BerriAI/litellm#32357, BerriAI/litellm#30765; llm-gateway#1907",
        "users read the thoughts as part of the answer, and the next request lacks them",
        both("messages", "thinking"),
        say.each(say.thinks_apart),
    ),
    Check(
        "messages.thinking.returned",
        "the endpoint accepts thoughts that the client sends back with a tool's result, and the result "
        "reaches the model",
        "Claude Code sends thoughts back unchanged, also with an empty signature; llm-gateway#1907",
        "the client of a thinking model gets an error when it sends the result of a tool",
        asks("messages", "thinking.second"),
        say.each(say.result_reached_model),
    ),
    Check(
        "messages.system.inline",
        "the endpoint accepts messages with the role system after the first message: with text, with blocks, "
        "or with an output_config and no content",
        "Claude Code sends them; CLIProxyAPI#3608, CLIProxyAPI#3625; grok2api#598; cc-router#33",
        "Claude Code does not work at all",
        asks("messages", "system"),
        say.each(say.clean),
    ),
    Check(
        "messages.cache",
        "the endpoint accepts cache_control in system, tools, messages and results, and the marked blocks "
        "reach the model",
        f"{SDK}CacheControlEphemeral; Claude Code marks three blocks of every request",
        "every request fails, or costs the full price",
        asks("messages", "cached"),
        say.each(say.result_reached_model),
    ),
    Check(
        "messages.cache.counted",
        "usage has the number of tokens that were read from the cache",
        f"{SDK}Usage, cache_read_input_tokens",
        "the client does not notice that the cache is not used",
        asks("messages", "cached"),
        say.usage_given("cache_read_input_tokens"),
        "optional",
    ),
    Check(
        "messages.result.failed",
        "the endpoint accepts a result with is_error",
        f"{SDK}ToolResultBlockParam; Claude Code sends it when a tool fails",
        "a failed tool ends the conversation",
        asks("messages", "failed"),
        say.each(say.clean),
    ),
    Check(
        "messages.tools.deferred",
        "the model can call a tool with defer_loading after a tool_reference has loaded it",
        "Claude Code's ToolSearch; CLIProxyAPI#1725, CLIProxyAPI#1892; claude-code#89211",
        "most of Claude Code's tools cannot be used",
        asks("messages", "deferred"),
        say.calls("get_time", may_decline=False),
    ),
    Check(
        "messages.tools.server",
        "a request with a tool that Anthropic's server runs gets an answer",
        "Claude Code's WebSearch sends such a request, and accepts plain text as the result",
        "a web search fails",
        asks("messages", "server-tool"),
        say.each(say.clean),
        "optional",
    ),
    Check(
        "messages.threads",
        "the endpoint supports the field thread, or refuses it with HTTP 400 and the error_code "
        "thread_unsupported_request",
        "the SDKs' tool runners request a thread; after this error, they continue without it",
        "the second request contains only the result of the tool, and fails",
        asks("messages", "thread.first", "thread.next"),
        keeping.serves_threads,
        "optional",
    ),
    Check(
        "messages.key.bearer",
        "the endpoint also accepts the key in Authorization: Bearer",
        "the SDKs send it there (Python from 2.0, TypeScript from 1.0), Claude Code in x-api-key",
        "requests of the newer SDKs fail",
        asks("messages", "bearer"),
        say.each(say.answered),
    ),
    Check(
        "messages.errors.no-key",
        "if a key is required, a request without one returns HTTP 401 or 403 with Anthropic's error object",
        f"{SDK}AuthenticationError",
        "the client cannot report to its user that the key is wrong",
        asks("messages", "without-key"),
        say.needs_key,
    ),
    Check(
        "messages.count",
        "POST /messages/count_tokens returns input_tokens",
        f"{SDK}MessageTokensCount; without it, Claude Code estimates the number",
        "the client does not know how full the context is",
        ("http.count-tokens",),
        keeping.counts_tokens,
        "optional",
    ),
    Check(
        "messages.models",
        "GET /models with anthropic-version lists models with type, display_name and created_at",
        f"{SDK}ModelInfo; Claude Code's model discovery",
        "the SDKs list no models, or raise an error",
        ("http.anthropics-models",),
        keeping.lists_anthropics_models,
        "optional",
    ),
]

"""The checks of chat completions only: its bodies and the order of its chunks."""

from __future__ import annotations

from toolwire.conform import judging as say
from toolwire.conform.checks_shared import SCHEMAS, Check, allowed, bodies, streams
from toolwire.conform.problems import UNREADABLE

CHUNK = f"{SCHEMAS}CreateChatCompletionStreamResponse"
COMPLETION = f"{SCHEMAS}CreateChatCompletionResponse"
_BODIES, _STREAMS = bodies("chat"), streams("chat")
_CALLS = _STREAMS[1:]

CHAT = [
    allowed("chat", "ChatCompletionAllowedToolsChoice"),
    Check(
        "chat.body.shape",
        "a completion has id, object, created, model and choices; a choice has index, message, logprobs and "
        "finish_reason; a message has content and refusal",
        COMPLETION,
        "typed clients raise an error",
        _BODIES,
        say.wire("shape", "choice_index", "null_content", UNREADABLE),
    ),
    Check(
        "chat.body.calls",
        "a call has id, type and function, with name and arguments inside function; no two "
        "calls have the same id",
        f"{SCHEMAS}ChatCompletionMessageToolCall",
        "the client drops the call, or cannot send its result",
        _BODIES[1:],
        say.wire_of_calls("call_shape", "call_id", "call_id_repeated", "wrong_dialect"),
    ),
    Check(
        "chat.body.finish",
        "finish_reason is tool_calls if there are calls, and only then; if tool_choice names the tool, "
        "stop is allowed, too",
        f"{COMPLETION}; vllm-project/vllm#53269, vllm-project/vllm#49496; ollama#9092",
        "agents that rely on finish_reason stop before the tool runs",
        _BODIES,
        say.wire("untruthful_finish"),
    ),
    Check(
        "chat.body.usage",
        "usage has prompt_tokens, completion_tokens, and total_tokens, which is the sum of the two",
        f"{SCHEMAS}CompletionUsage; zed#45812",
        "the client computes wrong costs and context lengths",
        _BODIES[:2],
        say.usage_given("prompt_tokens", "completion_tokens", "total_tokens"),
    ),
    Check(
        "chat.body.no-extras",
        "there are no keys that OpenAI does not send, and no keys with null or empty values that "
        "OpenAI leaves out",
        COMPLETION,
        "if a client sends the answer back in its next request, the extra keys cause an error",
        _BODIES,
        say.wire("unknown_key", "null_key", "usage_details"),
        "optional",
    ),
    Check(
        "chat.stream.shape",
        "a chunk has id, object, created, model and choices; a choice has index, delta and finish_reason",
        CHUNK,
        "typed clients raise an error",
        _STREAMS,
        say.wire("shape", "no_choices", "empty_choices", "choice_index"),
    ),
    Check(
        "chat.stream.envelope",
        "id, object, created and model are the same in every chunk",
        CHUNK,
        "clients that group by id split the answer",
        _STREAMS,
        say.wire("envelope_changed"),
    ),
    Check(
        "chat.stream.no-event-names",
        "the events of a stream have data lines, but no event line",
        "OpenAI's streams; the browser's EventSource does not deliver named events to its message handler",
        "browsers drop the chunks",
        _STREAMS,
        say.wire("event_name"),
    ),
    Check(
        "chat.stream.role",
        "the first delta has the role",
        f"{SCHEMAS}ChatCompletionStreamResponseDelta",
        "LangChain builds a message without a role",
        _STREAMS,
        say.wire("role_missing"),
    ),
    Check(
        "chat.stream.role-once",
        "the role is sent once",
        "OpenAI's streams",
        "clients that concatenate the roles get assistantassistant",
        _STREAMS,
        say.wire("role_repeated"),
        "optional",
    ),
    Check(
        "chat.stream.opener",
        "the first delta of a call has index, id, type and name; name and arguments are inside function",
        f"{SCHEMAS}ChatCompletionMessageToolCallChunk; tested with AI SDK and LangChain",
        "the call is invalid, or runs with {}",
        _CALLS,
        say.wire_of_calls("call_shape", "wrong_dialect"),
    ),
    Check(
        "chat.stream.index",
        "every delta of a call has its index; indexes count from 0 without a gap, and calls come one "
        "after the other",
        f"{SCHEMAS}ChatCompletionMessageToolCallChunk; ollama#7881; openai/openai-python#2806; "
        "apache/maka#1967",
        "Obsidian Copilot merges two calls into one; the SDK raises an error if indexes start at 1",
        _CALLS,
        say.wire_of_calls("call_index", "calls_mixed", "call_reopened"),
    ),
    Check(
        "chat.stream.ids",
        "every call has its own id, which is not empty and does not change",
        f"{SCHEMAS}ChatCompletionMessageToolCallChunk",
        "the result cannot be matched to the call",
        _CALLS,
        say.wire_of_calls("call_id", "call_id_repeated"),
    ),
    Check(
        "chat.stream.names-once",
        "id and name of a call are sent once, in its first delta",
        "Obsidian Copilot concatenates names: nativeToolCalling.ts",
        "the name appears twice, and the client does not find the tool",
        _CALLS,
        say.wire_of_calls("call_repeated"),
    ),
    Check(
        "chat.stream.increments",
        "each delta of the arguments has only new text, never the text that was already sent",
        "every client concatenates the deltas; tested with AI SDK and LangChain",
        "the arguments are not valid JSON, or a tool runs with {}",
        _CALLS,
        say.wire_of_calls("cumulative_arguments", "invalid_arguments"),
    ),
    Check(
        "chat.stream.finish-once",
        "each choice has one finish_reason, in its last chunk; it is null in all earlier chunks",
        f"{CHUNK}; AI SDK raises an error if it is missing",
        "the client never ends the answer, or drops its last part",
        _STREAMS,
        say.wire("finish_missing", "after_finish"),
    ),
    Check(
        "chat.stream.finish",
        "finish_reason is tool_calls if there are calls, and only then; if tool_choice names the tool, "
        "stop is allowed, too",
        f"{CHUNK}; vllm-project/vllm#53269, vllm-project/vllm#49496; ollama#9092",
        "agents that rely on finish_reason stop before the tool runs",
        _STREAMS,
        say.wire("untruthful_finish"),
    ),
    Check(
        "chat.stream.finish-empty",
        "the chunk with the finish_reason has an empty delta, and no other chunk is empty",
        "OpenAI's streams",
        "clients that stop reading at the finish_reason lose the rest of the chunk",
        _STREAMS,
        say.wire("finish_delta", "empty_delta"),
        "optional",
    ),
    Check(
        "chat.stream.done",
        "a stream ends with data: [DONE], once, and nothing follows",
        "OpenAPI /chat/completions, stream: terminated by a data: [DONE] message",
        "clients wait forever",
        _STREAMS,
        say.wire("done_missing", "after_done"),
    ),
    Check(
        "chat.stream.no-extras",
        "there are no keys that OpenAI does not send, and no keys with null or empty values that OpenAI "
        "leaves out; the type of a call is sent once",
        CHUNK,
        "if a client sends the answer back in its next request, the extra keys cause an error",
        (*_STREAMS, "chat.usage.stream"),
        say.wire("unknown_key", "null_key", "null_delta", "type_repeated"),
        "optional",
    ),
    Check(
        "chat.usage.asked",
        "with include_usage, one chunk without choices follows the finish_reason and contains the usage",
        f"{SCHEMAS}ChatCompletionStreamOptions; CLIProxyAPI#3076; zed#45812",
        "agents do not know how full the context is",
        ("chat.usage.stream",),
        say.usage_given("prompt_tokens", "completion_tokens", "total_tokens"),
    ),
    Check(
        "chat.usage.null",
        "with include_usage, every other chunk has usage: null",
        f"{SCHEMAS}ChatCompletionStreamOptions",
        "clients that add up the usage of all chunks count tokens twice",
        ("chat.usage.stream",),
        say.wire("usage_null", "usage_details"),
        "optional",
    ),
    Check(
        "chat.usage.unasked",
        "without include_usage, a stream has no usage",
        f"{SCHEMAS}ChatCompletionStreamOptions",
        "clients fail at the chunk with the usage, which has no choices",
        _STREAMS,
        say.wire("usage_unasked"),
    ),
    Check(
        "chat.legacy",
        "a request with functions gets a function_call and the finish_reason function_call (or stop, if the "
        "request named the function), streamed and not streamed",
        f"{SCHEMAS}ChatCompletionFunctionCallOption (deprecated)",
        "clients that use the old functions cannot read the answer",
        ("chat.legacy.body", "chat.legacy.stream"),
        say.each(say.done_well),
        "optional",
    ),
    Check(
        "chat.legacy.none",
        'function_call "none": no function is called',
        f"{SCHEMAS}ChatCompletionFunctionCallOption (deprecated)",
        "a function runs although the client has forbidden it",
        ("chat.legacy.none",),
        say.each(say.calls_nothing),
        "optional",
    ),
    Check(
        "chat.legacy.loop",
        "the endpoint accepts the result of a function in a message with the role function",
        f"{SCHEMAS}ChatCompletionRequestFunctionMessage (deprecated)",
        "the client cannot send the result",
        ("chat.legacy.second",),
        say.each(say.clean),
        "optional",
    ),
]

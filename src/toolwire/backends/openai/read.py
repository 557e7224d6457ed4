"""Converts the bytes of a server's response to events. Streams and whole bodies use the same code.

Rules:

- Only choice 0 is read, and an empty text is ignored. `reasoning_content` and `reasoning` are two names for
  the same field; `reasoning_details` is read if neither is present. Content parts of type `thinking` are
  reasoning.
- Text that arrives while the arguments of a call are incomplete is sent after the call, because an encoder
  cannot interleave a text and a call.
- A response ends with a finish reason, or with `[DONE]` after complete content. A stream that ends in any
  other way was cut off, which is a failure, never `stop`.
- A `data:` line that does not begin with `{` or `[` is a ping and is ignored. Invalid JSON is a failure,
  because a part of the answer is lost.
- In a whole body, every entry of `tool_calls` is a separate call, even if ids or indexes are equal.
- The name of a call is not changed, except if it is a declared tool's name with one of the known additions
  ("functions.look:0", "look<|channel|>commentary"). `NativeArguments` repairs the arguments.
- If arguments are not complete when the finish reason arrives, the reader waits for them until the stream
  ends. A call that stays incomplete ends the response with `length`. If arguments arrive for a call that was
  already sent without arguments, the response fails.
- Log probabilities are read if the turn requests them. They belong to the text or refusal in their chunk. If
  the chunk has none, they belong to the next text or refusal.
- Half of a surrogate pair is kept until its other half arrives, or until other content arrives.
- The size of deferred text and the size of all calls are limited.
"""

from __future__ import annotations

import re
from typing import Any

from toolwire.backends.openai.chunks import (
    NOT_AS_EXPECTED,
    Chunk,
    ChunkDelta,
    ChunkToolCall,
    PartsDelta,
    WireUsage,
    decode,
    details_text,
    parse,
    token_logprobs,
)
from toolwire.backends.openai.failures import stream_failure
from toolwire.core.assemble import CallAssembler, Fragment
from toolwire.core.events import (
    CallEnd,
    CallKind,
    Event,
    Failure,
    Finish,
    FinishReason,
    Refusal,
    Text,
    Thought,
    TokenLogprob,
    Usage,
)
from toolwire.core.partial_call import NOT_JSON, join_surrogates
from toolwire.core.turn import Message, TextPart, Turn
from toolwire.emulate.native import NativeArguments
from toolwire.emulate.tools import ToolRegistry
from toolwire.wire.sse import EMPTY_LINE, SseEvent, SseReader

_FINISH_WORDS: dict[FinishReason, str] = {
    "stop": "stop completed complete finished done halt cancelled end_turn eos stop_sequence",
    "length": "length max_tokens max_output_tokens model_length token_limit token_limit_reached "
    "max_tokens_reached truncated context_length model_context_window_exceeded",
    "tool_calls": "tool_calls tool_call tool_use tool_completion tool_execution requires_tool "
    "function_call function_calls function_execution",
    "content_filter": "content_filter filtered safety safety_filter moderation policy_filter "
    "recitation refusal",
}
FINISH_REASONS = {word: reason for reason, words in _FINISH_WORDS.items() for word in words.split()}
"""Maps servers' finish reasons, in lower case, to OpenAI's.

The reason `error` is a failure. A reason that is not in this table counts as `stop`.
"""

HELD_LIMIT = 8 * 1024 * 1024
"""The maximum number of characters that are deferred until a call ends."""
CALLS_LIMIT = 64 * 1024 * 1024
"""The maximum number of characters of all calls together."""
CUT_OFF = "The upstream server's answer broke off before it was complete."
NOT_WHOLE = "The upstream server sent a chunk that is not complete JSON."
LATE_ARGUMENTS = "The upstream server sent arguments of a tool call after the call had ended."
ERROR_AS_REASON = "The upstream server reported an error and ended its answer."
ENDED_EARLY = "The upstream server ended its answer before it was complete."
TOO_LARGE = "The upstream server's tool calls need too much memory until they can be sent in order."
TOO_DEEP = "The upstream server's answer is nested too deeply."
MOST_TOKENS = 2**53 - 1
_NUMBERED = re.compile(r"(.+):\d{1,9}", re.DOTALL)


class AnswerReader:
    """Reads one response.

    For a stream, call `feed` with its bytes, and `finish` at its end. For a whole body, call `read_body`.
    `ended`: whether the last event was returned. `finishing`: whether the finish reason was read, so that
    usage and the end mark follow. `whole`: whether the end mark was read.
    """

    _frames: SseReader | None = None

    def __init__(self, turn: Turn, cumulative: bool = False, secrets: tuple[str, ...] = ()) -> None:
        declared = _DeclaredNames(turn) if turn.tools else None
        names, rename = (declared.names, declared.resolve) if declared else (None, None)
        self._calls = CallAssembler(cumulative, names, rename=rename, repair=NativeArguments)
        self._secrets = secrets
        self._deferred: list[Event] = []  # events that arrived while a call was open
        self._deferred_size = 0
        self.ended = False
        self.finishing = self.whole = False
        self._reason = ""
        self._stop: str | None = None
        self._usage: Usage | None = None
        self._most_logprobs = turn.sampling.logprobs
        self._tokens: dict[type[Event], list[TokenLogprob]] = {}  # for the next text or refusal
        self._half = ""  # half of a surrogate pair
        self._half_of: type[Text | Thought | Refusal] = Text
        self._has_content = self._has_broken_call = self._is_body = False

    def feed(self, block: bytes) -> list[Event]:
        out: list[Event] = []
        if self._frames is None:
            self._frames = SseReader()
        for frame in self._frames.feed(block):
            if self.ended:
                break
            data = frame.data if isinstance(frame, SseEvent) else frame
            try:
                chunk = decode(data)
                if chunk.choices is None and chunk.usage is None and chunk.error is None:
                    chunk = parse(data)  # an error in another shape, or an empty chunk
                self._take(chunk, out)
            except NOT_AS_EXPECTED:
                self._take_unexpected(data, isinstance(frame, SseEvent) and frame.name == "error", out)
        return out

    def finish(self) -> list[Event]:
        """Returns the last events of a stream that has ended, with or without its end mark."""
        out = self.feed(EMPTY_LINE)
        if not self.ended:
            out += self._end() if self._reason else self.fail(Failure("backend_cut", CUT_OFF))
        return out

    def read_body(self, body: bytes) -> list[Event]:
        out: list[Event] = []
        self._is_body, rough = True, False
        try:
            try:
                chunk = decode(body)
            except NOT_AS_EXPECTED:
                chunk, rough = parse(body), True
        except RecursionError:
            return self.fail(Failure("backend", TOO_DEEP))
        except ValueError:
            return self.fail(Failure("backend", "The upstream server's answer is not JSON."))
        if chunk.error is None and not chunk.choices:
            return self.fail(Failure("backend", "The upstream server's answer contains no choices."))
        self._take(chunk, out, rough)
        return out if self.ended else out + self._end()

    def _take_unexpected(self, data: bytes, is_error: bool, out: list[Event]) -> None:
        """Reads a server-sent event that the typed decoder (`chunks.decode`) does not accept."""
        data = data.strip()
        if data == b"[DONE]":
            out += self._done()
        elif data[:1] in (b"{", b"["):
            try:
                self._take(parse(data), out, rough=True)
            except RecursionError:
                out += self.fail(Failure("backend", TOO_DEEP))
            except ValueError:
                out += self.fail(Failure("backend", NOT_WHOLE))
        elif is_error and data:
            out += self.fail(stream_failure(data.decode("utf-8", "replace"), self._secrets))

    # --- one chunk ---

    def _take(self, chunk: Chunk, out: list[Event], rough: bool = False) -> None:
        """Reads a chunk or a body. `rough`: the chunk's texts may contain halves of surrogate pairs."""
        if chunk.error:
            out += self.fail(stream_failure(chunk.error, self._secrets))
            return
        if chunk.usage is not None:
            self._usage = _usage(chunk.usage) or self._usage
        for choice in chunk.choices or ():
            if choice.index != 0:
                continue
            word = choice.finish_reason if choice.finish_reason not in (None, "null", "none") else ""
            if word:
                self._calls.reason = FINISH_REASONS.get(word.strip().lower(), "stop")
                self._stop = choice.stop_reason if isinstance(choice.stop_reason, str) else None
            whole = choice.message is not None and (choice.delta is None or self._is_body)
            delta = choice.message if whole else choice.delta
            if self._most_logprobs is not None:
                rough = True  # the fast path in `_say` does not add log probabilities
                self._take_logprobs(choice.logprobs, self._most_logprobs, delta)
            if delta is not None:
                self._take_delta(delta, whole or self._is_body, rough, out)
            if self.ended:
                return
            if word and not self._reason:
                self._close(word, out)

    def _take_logprobs(self, logprobs: Any, most: int, delta: ChunkDelta | None) -> None:
        """Stores log probabilities until the reader sends their text.

        Log probabilities of reasoning and calls are dropped.
        """
        if delta is None or (
            not delta.content and (delta.reasoning_content or delta.reasoning or delta.tool_calls)
        ):
            return
        for kind, key in ((Text, "content"), (Refusal, "refusal")):
            found = token_logprobs(logprobs.get(key), most) if isinstance(logprobs, dict) else []
            if found:
                self._tokens.setdefault(kind, []).extend(found)

    def _take_delta(self, delta: ChunkDelta, whole: bool, rough: bool, out: list[Event]) -> None:
        thought = delta.reasoning_content or delta.reasoning
        if not thought and delta.reasoning_details:
            thought = details_text(delta.reasoning_details)
        if thought:
            self._say(Thought, thought, rough, out)
        if delta.content:
            self._say(Text, delta.content, rough, out)
        elif isinstance(delta, PartsDelta):
            for is_thought, text in delta.parts:
                self._say(Thought if is_thought else Text, text, rough, out)
        if delta.refusal:
            self._say(Refusal, delta.refusal, rough, out)
        entries = delta.tool_calls or ()
        for at, entry in enumerate(entries):
            fragment = _fragment(entry, whole, at if len(entries) > 1 else None)
            if fragment.name and fragment.name.startswith("<|"):
                fragment.name = None  # a special token of the model, not a tool's name
            self._call(fragment, rough, out)
        if delta.function_call is not None:
            function = delta.function_call
            self._call(Fragment(name=function.name, arguments=function.arguments, complete=whole), rough, out)

    def _say(self, kind: type[Text | Thought | Refusal], text: str, rough: bool, out: list[Event]) -> None:
        """Sends a piece of text, reasoning or refusal. Joins halves of surrogate pairs first."""
        self._has_content = True
        if not (rough or self._half or self._calls.calls):  # nearly always
            out.append(kind(text))
            return
        if self._half and kind is not self._half_of:
            self._flush_half(out)
        if rough or self._half:
            text, self._half = join_surrogates(self._half, text, more=not self._is_body)
            self._half_of = kind
        if text:
            self._put(self._with_logprobs(kind, text), len(text), out)

    def _with_logprobs(self, kind: type[Text | Thought | Refusal], text: str) -> Event:
        tokens = tuple(self._tokens.pop(kind, ()))
        return kind(text, tokens) if tokens and (kind is Text or kind is Refusal) else kind(text)

    def _flush_half(self, out: list[Event]) -> None:
        """Sends half of a surrogate pair as U+FFFD, because its other half cannot follow any more."""
        if self._half:
            text, self._half = join_surrogates(self._half, "", more=False)
            self._put(self._half_of(text), len(text), out)

    def _put(self, event: Event, size: int, out: list[Event]) -> None:
        """Sends an event, or defers it while a call is open."""
        if self.ended:
            return
        if self._calls.open:
            out += self._calls.settle()
            if self._calls.open:
                self._deferred.append(event)
                tokens = len(getattr(event, "logprobs", ()))
                self._deferred_size += size + 100 * (1 + tokens)  # an event itself needs memory too
                self._limit(out)
                return
        out.append(event)

    def _call(self, fragment: Fragment, rough: bool, out: list[Event]) -> None:
        """Adds a fragment of a call, and sends deferred events if no call is open afterwards."""
        if self.ended:
            return
        fragment.own, fragment.rough = self._is_body, rough
        self._flush_half(out)
        out += self._calls.add(fragment)
        if self._deferred:
            out += self._calls.settle()
            if not self._calls.open:
                self._put_deferred(out)
        self._limit(out)
        if self._calls.lost and not self.ended:
            out += self.fail(Failure("backend", LATE_ARGUMENTS))

    def _put_deferred(self, out: list[Event]) -> None:
        out += self._deferred
        self._deferred.clear()
        self._deferred_size = 0

    def _limit(self, out: list[Event]) -> None:
        """Ends the response with a failure if the deferred text or the calls are too large."""
        held = self._deferred_size + self._calls.held
        if not self.ended and (held > HELD_LIMIT or self._calls.size > CALLS_LIMIT):
            self._deferred.clear()
            out += self.fail(Failure("backend", TOO_LARGE))

    # --- the end ---

    def _close(self, word: str, out: list[Event]) -> None:
        """Records the finish reason. Usage and the rest of a call's arguments can still follow."""
        self._reason = word.strip().lower()
        self.finishing = bool(self._reason)
        if self._reason == "error":
            out += self.fail(Failure("backend", ERROR_AS_REASON))
            return
        has_more = self._calls.calls or self._deferred or self._half
        if has_more and not self._calls.unfinished:
            self._end_calls(out)

    def _end_calls(self, out: list[Event]) -> None:
        self._flush_half(out)
        if self.ended:
            return
        if self._calls.calls:
            ends = self._calls.finish(self._finish_reason())
            issues = [event.issues for event in ends if isinstance(event, CallEnd)]
            self._has_broken_call = any(NOT_JSON in found for found in issues)
            out += ends
        self._put_deferred(out)

    def _finish_reason(self) -> FinishReason:
        reason = FINISH_REASONS.get(self._reason, "stop")
        if self._calls.truncated and reason in ("stop", "tool_calls"):
            return "length"  # even if the server sent another reason
        return "stop" if reason == "tool_calls" and not self._calls.calls else reason

    def _done(self) -> list[Event]:
        """Returns the last events, after the end mark.

        A response without a finish reason fails if it has no content, or if a call in it is incomplete.
        """
        out: list[Event] = []
        self.whole = True
        if not self._reason:
            self._close("tool_calls" if self._calls.calls else "stop", out)
            if self._calls.calls and self._calls.open:
                self._end_calls(out)
            if self._has_broken_call or not (self._has_content or self._calls.calls):
                return self.fail(Failure("backend_cut", ENDED_EARLY))
        return out if self.ended else out + self._end()

    def _end(self) -> list[Event]:
        out: list[Event] = []
        if not self._reason:
            self._close("stop", out)
        elif self._half or (self._calls.calls and self._calls.open):  # still open after the finish reason
            self._end_calls(out)
        if self.ended:
            return out
        if Text in self._tokens and not self._calls.calls:
            out.append(self._with_logprobs(Text, ""))
        if self._usage is not None:
            out.append(self._usage)
        self.ended = True
        reason = self._finish_reason()
        return [*out, Finish(reason, self._stop if reason == "stop" else None)]

    def fail(self, failure: Failure) -> list[Event]:
        self.ended = True
        return [failure] if self._usage is None else [self._usage, failure]


class _DeclaredNames:
    """The names of the declared tools.

    The assembler calls this object and not its reader, which avoids a reference cycle.
    """

    def __init__(self, turn: Turn) -> None:
        self.names = frozenset(tool.name for tool in turn.tools)
        self._tools = turn.tools
        self._registry: ToolRegistry | None = None

    def resolve(self, name: str) -> str:
        """Returns the name of the declared tool that `name` means, or `name` itself if there is none."""
        if name in self.names:
            return name
        if self._registry is None:
            self._registry = ToolRegistry(self._tools)
        numbered = _NUMBERED.fullmatch(name)
        tool = self._registry.resolve(name) or (self._registry.resolve(numbered[1]) if numbered else None)
        return name if tool is None else tool.name


def _usage(usage: WireUsage) -> Usage | None:
    """Returns the server's token counts, or None if it sent no counts. An impossible number becomes 0."""
    if usage.prompt_tokens is None and usage.completion_tokens is None:
        return None
    read, written = usage.prompt_tokens_details, usage.completion_tokens_details
    cached = read.cached_tokens if read is not None else 0
    reasoning = written.reasoning_tokens if written is not None else 0
    counts = (usage.prompt_tokens, usage.completion_tokens, cached, reasoning)
    given, said, cached, reasoning = [
        count if count is not None and 0 <= count <= MOST_TOKENS else 0 for count in counts
    ]
    return Usage(given, said, cached, reasoning)


def _fragment(entry: ChunkToolCall, whole: bool, position: int | None) -> Fragment:
    """Returns an entry of `tool_calls` as a fragment.

    `whole`: whether the entry's arguments are complete. `position`: the entry's position in its chunk; None
    if the chunk has only one entry.
    """
    kind: CallKind = "function"
    name, arguments = entry.name, entry.arguments
    if entry.function is not None:
        name = entry.function.name or name
        arguments = entry.function.arguments if entry.function.arguments is not None else arguments
    elif entry.custom is not None:
        kind, name, arguments = "custom", entry.custom.name, entry.custom.input
    return Fragment(entry.index, entry.id, name, arguments, kind, whole, None, position)


# --- prefill ---
#
# A request can end with the beginning of the assistant's answer, the prefill. Some servers (llama.cpp since
# 2026) repeat the prefill before the text that they add, others do not. A repeated prefill is removed.


def prefill_of(turn: Turn) -> str:
    """Returns the text of the turn's last message if the message is the assistant's, otherwise ""."""
    last = turn.items[-1] if turn.items else None
    if not isinstance(last, Message) or last.role != "assistant":
        return ""
    return "".join(part.text for part in last.parts if isinstance(part, TextPart))


class PrefillEcho:
    """Removes the prefill from the beginning of an answer that repeats it.

    The first text of an answer is held back until it is clear whether it repeats the prefill.
    """

    def __init__(self, prefill: str) -> None:
        self._prefill = prefill
        self._held = ""
        self._tokens: tuple[TokenLogprob, ...] = ()

    def feed(self, batch: list[Event]) -> list[Event]:
        if not self._prefill:
            return batch
        out: list[Event] = []
        for at, event in enumerate(batch):
            if isinstance(event, Text):
                self._held += event.text
                self._tokens += event.logprobs
                if len(self._held) < len(self._prefill) and self._prefill.startswith(self._held):
                    continue
                out += self._release(self._held.removeprefix(self._prefill))
                return out + batch[at + 1 :]
            return out + self._release(self._held) + batch[at:]
        return out

    def _release(self, text: str) -> list[Event]:
        self._prefill = self._held = ""
        return [Text(text, self._tokens)] if text else []

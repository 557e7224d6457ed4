"""The upstream's bytes → events. Streams and whole bodies take the same way through the same assembler.

Rules:
  - Only choice 0 counts. Empty texts are nothing. `reasoning_content` and `reasoning` are the same thing under two names;
    `reasoning_details` count where neither is there. Content parts of type `thinking` are reasoning too.
  - What is said while a call's arguments are still open comes out behind the call: an encoder can have only one of them open.
  - The end: a finish reason, or `[DONE]` after a whole answer. A stream that ends otherwise has been cut, which is a failure, never `stop`.
  - A `data:` line that is not JSON at all is a ping. JSON that breaks off is a failure: something of the answer is lost.
  - In a whole body every entry is a call of its own, whatever ids and indexes say.
  - A call's name is passed on as it is, unless it is a declared tool's name in a habitual disguise ("functions.look:0",
    "look<|channel|>commentary"). Its arguments go through `NativeArguments`.
  - Arguments that are not complete when the finish reason comes are awaited until the end of the stream. A call that stays
    incomplete ends the answer with `length`. Arguments that come after their call was sent without any are a failure.
  - Half of a surrogate pair waits for the other half, as long as nothing else is said.
  - What waits, and what is kept of calls, is limited.
"""

from __future__ import annotations

import re

from toolwire.backends.openai.failures import stream_failure
from toolwire.backends.openai.wire import ODD, Chunk, Delta, PartsDelta, ToolCall, decode, decode_piece, decode_plain, details_text, parse, usage_of
from toolwire.core.assemble import NOT_JSON, CallAssembler, Fragment, mend
from toolwire.core.events import CallEnd, Event, Failure, Finish, FinishReason, Refusal, Text, Thought, Usage
from toolwire.core.turn import Message, TextPart, Turn
from toolwire.emulate.native import NativeArguments
from toolwire.emulate.registry import ToolRegistry
from toolwire.wire.sse import SseEvent, SseReader

FINISH_REASONS: dict[str, FinishReason] = {
    **dict.fromkeys(("stop", "completed", "complete", "finished", "done", "halt", "cancelled", "end_turn", "eos", "stop_sequence"), "stop"),
    **dict.fromkeys(
        ("length", "max_tokens", "max_output_tokens", "model_length", "token_limit", "token_limit_reached", "max_tokens_reached"), "length"
    ),
    **dict.fromkeys(("truncated", "context_length", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(("tool_calls", "tool_call", "tool_use", "tool_completion", "tool_execution", "requires_tool"), "tool_calls"),
    **dict.fromkeys(("function_call", "function_calls", "function_execution"), "tool_calls"),
    **dict.fromkeys(
        ("content_filter", "filtered", "safety", "safety_filter", "moderation", "policy_filter", "recitation", "refusal"), "content_filter"
    ),
}
"""Words that servers use, in lower case. `error` is a failure; any other word means that the answer ended, `stop`."""

HELD_LIMIT = 8 * 1024 * 1024
"""How many characters may wait for a call to end."""
CALLS_LIMIT = 64 * 1024 * 1024
"""How many characters all calls may have together."""
TOO_DEEP = "The upstream server's answer is nested too deeply."
_NUMBERED = re.compile(r"(.+):\d{1,9}", re.DOTALL)


def plain(body: bytes) -> list[Event] | None:
    """A whole answer that is a text and its end, as most are, without a reader. None: it is something else, which `AnswerReader` reads."""
    try:
        answer = decode_plain(body)
    except ODD:
        return None
    choice, used = answer.choices[0], answer.usage
    text, end = choice.message.content, Finish(choice.finish_reason)
    if not text:
        return None
    if used is None:
        return [Text(text), end]
    read, written = used.prompt_tokens_details, used.completion_tokens_details
    cached, reasoning = (read and read.cached_tokens) or 0, (written and written.reasoning_tokens) or 0
    return [Text(text), Usage(used.prompt_tokens, used.completion_tokens, cached, reasoning), end]


# --- the reader --------------------------------------------------------------------------------------------------------------------------------


class AnswerReader:
    """Reads one answer. `feed` takes a stream's bytes, `read_body` a whole body, `finish` says that no more comes. After `ended` nothing follows."""

    def __init__(self, turn: Turn, cumulative: bool = False, secrets: tuple[str, ...] = ()) -> None:
        self._sse = SseReader()
        declared = _Declared(turn) if turn.tools else None
        names, rename = (declared.names, declared.name_of) if declared else (None, None)
        self._calls = CallAssembler(cumulative, names, rename=rename, repair=NativeArguments)
        self._secrets = secrets
        self._behind: list[Event] = []  # said while a call was open
        self._behind_size = 0
        self.ended = False
        self.finishing = False
        """The finish reason has come: only usage and the end mark are awaited."""
        self._reason = ""
        self._usage: Usage | None = None
        self._half = ""  # half of a surrogate pair that waits for the other
        self._half_of: type[Text | Thought | Refusal] = Text
        self._said = self._broken = self._whole = False
        self._pieces = False  # the last chunk was a piece of text, so that the next one will be
        self._odd_pieces = self._tried = False  # they have more in them than the short way takes; it was tried for the chunk that is read

    def feed(self, block: bytes) -> list[Event]:
        if self._pieces and (one := self._sse.one(block)) and (piece := self._piece(one[1])):  # the hot path: it, and nothing else
            return [piece]
        return self._read(self._sse.feed(block))

    def finish(self) -> list[Event]:
        """The stream ended, with or without its end mark."""
        out = self._read(self._sse.finish())
        if not self.ended:
            out += (
                self._end() if self._reason else self.fail(Failure("backend_cut", "The upstream server's answer broke off before it was complete."))
            )
        return out

    def read_body(self, body: bytes) -> list[Event]:
        """The whole answer in one body."""
        out: list[Event] = []
        self._whole, rough = True, False
        try:
            try:
                chunk = decode(body)
            except ODD:
                chunk, rough = parse(body), True
        except RecursionError:
            return self.fail(Failure("backend", TOO_DEEP))
        except ValueError:
            return self.fail(Failure("backend", "The upstream server's answer is not JSON."))
        if chunk.error is None and not chunk.choices:
            return self.fail(Failure("backend", "The upstream server's answer holds no choices."))
        self._take(chunk, out, rough)
        return out if self.ended else out + self._end()

    def _read(self, frames: list[bytes | SseEvent]) -> list[Event]:
        out: list[Event] = []
        for frame in frames:
            if self.ended:
                break
            if self._pieces and type(frame) is bytes and (piece := self._piece(frame)):
                out.append(piece)
                continue
            data = frame.data if isinstance(frame, SseEvent) else frame
            try:
                chunk = decode(data)
                if chunk.choices is None and chunk.usage is None and chunk.error is None:
                    chunk = parse(data)  # an error in a shape of its own, or nothing
                before = len(out)
                self._take(chunk, out)
                self._expect(len(out) == before + 1 and type(out[-1]) is Text)
            except ODD:
                self._pieces = False
                self._odd(data, isinstance(frame, SseEvent) and frame.name == "error", out)
        return out

    def _piece(self, data: bytes) -> Text | None:
        """One more piece of text, where the chunk is that and nothing else."""
        try:
            content = decode_piece(data).choices[0].delta.content
        except ODD:
            self._pieces, self._tried = False, True
            return None
        return Text(content) if content else None

    def _expect(self, piece: bool) -> None:
        """A chunk was read by the slow way. Where pieces of text are such that the fast one does not take them, it is not tried again and again."""
        self._odd_pieces = self._odd_pieces or (piece and self._tried)
        self._tried = False
        self._pieces = piece and not (self._odd_pieces or self._half or self._reason or self._calls.calls)

    def _odd(self, data: bytes, is_error: bool, out: list[Event]) -> None:
        """A frame that the typed decoder does not take."""
        data = data.strip()
        if data == b"[DONE]":
            out += self._done()
        elif data[:1] in (b"{", b"["):
            try:
                self._take(parse(data), out, rough=True)
            except RecursionError:
                out += self.fail(Failure("backend", TOO_DEEP))
            except ValueError:
                out += self.fail(Failure("backend", "The upstream server sent a chunk that is not whole JSON."))
        elif is_error and data:
            out += self.fail(stream_failure(data.decode("utf-8", "replace"), self._secrets))

    # --- one chunk ----------------------------------------------------------------------------------------------------------------------------

    def _take(self, chunk: Chunk, out: list[Event], rough: bool = False) -> None:
        """`rough`: the chunk's texts may hold halves of surrogate pairs."""
        if chunk.error:
            out += self.fail(stream_failure(chunk.error, self._secrets))
            return
        if chunk.usage is not None:
            self._usage = usage_of(chunk.usage) or self._usage
        for choice in chunk.choices or ():
            if choice.index != 0:
                continue
            word = choice.finish_reason
            if word in ("null", "none"):
                word = None
            if word:
                self._calls.reason = FINISH_REASONS.get(word.strip().lower(), "stop")
            whole = choice.message is not None and (choice.delta is None or self._whole)
            delta = choice.message if whole else choice.delta
            if delta is not None:
                self._take_delta(delta, whole or self._whole, rough, out)
            if self.ended:
                return
            if word and not self._reason:
                self._close(word, out)

    def _take_delta(self, delta: Delta, whole: bool, rough: bool, out: list[Event]) -> None:
        thought = delta.reasoning_content or delta.reasoning or (delta.reasoning_details and details_text(delta.reasoning_details))
        if thought:
            self._say(Thought, thought, rough, out)
        if delta.content:
            self._say(Text, delta.content, rough, out)
        elif isinstance(delta, PartsDelta):
            for is_thought, text in delta.parts:
                self._say(Thought if is_thought else Text, text, rough, out)
        if delta.refusal:
            self._say(Refusal, delta.refusal, rough, out)
        entries = delta.tool_calls
        if entries:
            alone = len(entries) == 1
            for at, entry in enumerate(entries):
                fragment = _fragment(entry, whole, None if alone else at)
                fragment.own, fragment.rough = self._whole, rough
                if fragment.name and fragment.name.startswith("<|"):
                    fragment.name = None  # a special token of the model's, not a name
                self._call(fragment, out)
        if delta.function_call is not None:
            function = delta.function_call
            self._call(Fragment(None, None, function.name, function.arguments, complete=whole, own=self._whole, rough=rough), out)

    def _say(self, kind: type[Text | Thought | Refusal], text: str, rough: bool, out: list[Event]) -> None:
        self._said = True
        if self._half and kind is not self._half_of:
            self._drop_half(out)
        if rough or self._half:
            text, self._half = mend(self._half, text, more=not self._whole)
            self._half_of = kind
        if text:
            self._put(kind(text), len(text), out)

    def _drop_half(self, out: list[Event]) -> None:
        """Something else follows: the other half will not come."""
        if self._half:
            text, self._half = mend(self._half, "", more=False)
            self._put(self._half_of(text), len(text), out)

    def _put(self, event: Event, size: int, out: list[Event]) -> None:
        if self.ended:
            return
        if self._calls.open:
            out += self._calls.settle()
            if self._calls.open:
                self._behind.append(event)
                self._behind_size += size + 100  # an event of one character costs more than that character
                self._limit(out)
                return
        out.append(event)

    def _call(self, fragment: Fragment, out: list[Event]) -> None:
        if self.ended:
            return
        if self._half:
            self._drop_half(out)
        out += self._calls.add(fragment)
        if self._behind:
            out += self._calls.settle()
            if not self._calls.open:
                self._put_behind(out)
        if self._calls.held > HELD_LIMIT or self._calls.size > CALLS_LIMIT:
            self._limit(out)
        if self._calls.lost and not self.ended:
            out += self.fail(Failure("backend", "The upstream server sent arguments of a tool call after the call had ended."))

    def _put_behind(self, out: list[Event]) -> None:
        out += self._behind
        self._behind.clear()
        self._behind_size = 0

    def _limit(self, out: list[Event]) -> None:
        if not self.ended and (self._behind_size + self._calls.held > HELD_LIMIT or self._calls.size > CALLS_LIMIT):
            self._behind.clear()
            out += self.fail(Failure("backend", "The upstream server's tool calls can not be put in order within the limits of memory."))

    # --- the end ------------------------------------------------------------------------------------------------------------------------------

    def _close(self, word: str, out: list[Event]) -> None:
        """A finish reason has come: every complete call is over. Usage may still follow, and the rest of arguments."""
        self._reason = word.strip().lower()
        self.finishing = bool(self._reason)
        if self._reason == "error":
            out += self.fail(Failure("backend", "The upstream server reported an error and ended its answer."))
            return
        if not self._calls.unfinished:
            self._end_calls(out)

    def _end_calls(self, out: list[Event]) -> None:
        self._drop_half(out)
        if self.ended:
            return
        if self._calls.calls:
            ends = self._calls.finish(self._finish_reason())
            self._broken = any(isinstance(event, CallEnd) and NOT_JSON in event.issues for event in ends)
            out += ends
        self._put_behind(out)

    def _finish_reason(self) -> FinishReason:
        reason = FINISH_REASONS.get(self._reason, "stop")
        if self._calls.truncated and reason in ("stop", "tool_calls"):
            return "length"  # whatever the server says: a call that broke off is not complete
        return "stop" if reason == "tool_calls" and not self._calls.calls else reason

    def _done(self) -> list[Event]:
        """The end mark. Without a finish reason the answer itself must show that it is whole."""
        out: list[Event] = []
        if not self._reason:
            self._close("tool_calls" if self._calls.calls else "stop", out)
            if self._calls.open:
                self._end_calls(out)
            if self._broken or not (self._said or self._calls.calls):
                return self.fail(Failure("backend_cut", "The upstream server ended its answer before it was complete."))
        return out if self.ended else out + self._end()

    def _end(self) -> list[Event]:
        out: list[Event] = []
        if not self._reason:
            self._close("stop", out)
        elif self._calls.open or self._half:  # what came behind the finish reason
            self._end_calls(out)
        if self.ended:
            return out
        if self._usage is not None:
            out.append(self._usage)
        self.ended = True
        return [*out, Finish(self._finish_reason())]

    def fail(self, failure: Failure) -> list[Event]:
        self.ended = True
        return [failure] if self._usage is None else [self._usage, failure]


class _Declared:
    """The declared tools. Apart from the reader, so that nothing refers to itself: what a turn leaves behind is gone with it."""

    def __init__(self, turn: Turn) -> None:
        self.names = frozenset(tool.name for tool in turn.tools)
        self._tools = turn.tools
        self._registry: ToolRegistry | None = None

    def name_of(self, name: str) -> str:
        """The declared tool that a name means, else the name as it is."""
        if name in self.names:
            return name
        if self._registry is None:
            self._registry = ToolRegistry(self._tools)
        numbered = _NUMBERED.fullmatch(name)
        tool = self._registry.resolve(name) or (self._registry.resolve(numbered[1]) if numbered else None)
        return name if tool is None else tool.name


def _fragment(entry: ToolCall, whole: bool, position: int | None) -> Fragment:
    function = entry.function
    if function is not None:
        arguments = function.arguments if function.arguments is not None else entry.arguments
        return Fragment(entry.index, entry.id, function.name or entry.name, arguments, "function", whole, None, position)
    if entry.custom is not None:
        return Fragment(entry.index, entry.id, entry.custom.name, entry.custom.input, "custom", whole, None, position)
    return Fragment(entry.index, entry.id, entry.name, entry.arguments, "function", whole, None, position)


# --- echo ------------------------------------------------------------
#
# The beginning of an answer that was given to the server as the assistant's last message. Some servers
# (llama.cpp since 2026) repeat it in front of what they add, others do not: it is taken away where it
# stands.


def given_beginning(turn: Turn) -> str:
    """What the turn's last message makes the answer begin with."""
    last = turn.items[-1] if turn.items else None
    if not isinstance(last, Message) or last.role != "assistant":
        return ""
    return "".join(part.text for part in last.parts if isinstance(part, TextPart))


class Echo:
    """Holds text back only as long as it may be the beginning that was given."""

    def __init__(self, beginning: str) -> None:
        self._beginning = beginning
        self._held = ""

    def feed(self, batch: list[Event]) -> list[Event]:
        if not self._beginning:
            return batch
        out: list[Event] = []
        for at, event in enumerate(batch):
            if isinstance(event, Text):
                self._held += event.text
                if len(self._held) < len(self._beginning) and self._beginning.startswith(self._held):
                    continue
                out += self._release(self._held.removeprefix(self._beginning))
            else:
                out += self._release(self._held)
            return [*out, *(batch[at + 1 :] if isinstance(event, Text) else batch[at:])]
        return out

    def _release(self, text: str) -> list[Event]:
        self._beginning = self._held = ""
        return [Text(text)] if text else []

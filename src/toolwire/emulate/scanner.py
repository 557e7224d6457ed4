"""The scanner: text in pieces of any size → text and tool calls.

The kernel keeps these laws, for every dialect at once:

- Law 4, split invariance: every decision is a function of the characters, never of where the pieces were cut. A limit is judged at the character
  that exceeds it.
- Law 5, nothing is lost: a character is in `Text`, in a call's arguments, or markup of a call that came out. A block that breaks its grammar before
  a known tool was named goes back to being text, and scanning resumes one character behind its marker.
- Law 6: arguments leave as verbatim slices; what was sent is never contradicted.
- Law 7: what is held is bounded by `Limits`; a failed candidate is scanned again only while it is short, so the cost stays linear.
- Law 12: recovery dialects do not fire inside code, or on a block that stands in `quoted`, the request's own input.

The machine is TEXT → candidate → block → TEXT. Grammars are generators in the `*_block.py` modules that ask for more text by yielding.
Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from toolwire.core.events import CallArgs, CallBegin, CallEnd, CallStatus, Event, Text, Thought
from toolwire.core.turn import ToolSpec
from toolwire.emulate.dialects import Dialect, JsonBlock, Opener, TagBlock, select
from toolwire.emulate.dialects.shapes import ElementBlock, GemmaBlock, HeadedBlock, PythonBlock
from toolwire.emulate.grammars.gemma_block import gemma_block
from toolwire.emulate.grammars.json_block import headed_block, json_block
from toolwire.emulate.grammars.python_block import python_block
from toolwire.emulate.grammars.reading import LONGEST, Reading, peek
from toolwire.emulate.grammars.tag_block import element_block, tag_block
from toolwire.emulate.openers import Openers
from toolwire.emulate.quotations import FenceTracker, Quotations
from toolwire.emulate.registry import ToolRegistry
from toolwire.emulate.thoughts import Markers, Mentions, opening, thought

Check = Callable[[ToolSpec, str], Sequence[str]]
"""Judges complete arguments against the tool's schema; the codes of what is wrong, empty when all is well."""

GRAMMARS: dict[type, Callable[[ToolCallParser, Any], Reading]] = {
    JsonBlock: json_block,
    TagBlock: tag_block,
    HeadedBlock: headed_block,
    ElementBlock: element_block,
    PythonBlock: python_block,
    GemmaBlock: gemma_block,
}
"""What reads the block of an opener, by its shape."""
_MANY = 1024  # so many small pieces are joined into one
RESCAN = 4096  # a failed candidate up to this long is scanned again from behind its marker; a longer one is text as a whole


@dataclass(frozen=True, slots=True)
class Limits:
    """What the scanner holds at most, in characters. A block that exceeds its limit is text."""

    header: int = 65_536
    """From the marker to a known tool's name."""
    held: int = 8_388_608
    """A call whose arguments are held until they are complete; at least as much as `header`."""
    calls: int = 1024
    """Calls of one run; what looks like a further one is text."""


@dataclass(slots=True)
class OpenCall:
    """The call being read. `held`: its events wait until it is complete."""

    tool: ToolSpec
    name: str
    held: bool
    parts: list[str]
    issues: list[str]
    refused: bool = False
    sent: bool = False
    id: str | None = None


class ToolCallParser:
    """Finds the calls of `tools` in a model's text. `feed` and `finish` never raise on any `str`.

    `arguments`: `eager` sends arguments while they are written, `validated` once they are complete. `quoted` are the request's own input texts.
    Calls of a strict tool are always held; `check` judges them.

    `thoughts`: reasoning is separated from the answer; the function says whether the request's own messages contain a text. None: it stays text.
    """

    def __init__(
        self,
        tools: Iterable[ToolSpec | Mapping[str, Any]],
        dialects: Iterable[str] | None = None,
        arguments: Literal["eager", "validated"] = "eager",
        nonce: str | None = None,
        quoted: Iterable[str] = (),
        limits: Limits | None = None,
        *,
        unknown_tool: Literal["text", "forward", "error"] = "text",
        check: Check | None = None,
        thoughts: Mentions | None = None,
    ) -> None:
        self.registry = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools)
        self.unknown: list[str] = []
        self._validated = arguments == "validated"
        self.limits = limits or Limits()
        self._small = self.limits.header - 2 * LONGEST  # so short a piece can not take a candidate over its limit unseen
        self._unknown_tool = unknown_tool
        self._check = check
        self._openers = Openers.of(select(dialects), nonce, self.registry.tools)
        self._quoted = Quotations(quoted, list(self._openers.table))
        self._leading = self._openers.leading  # till the answer has a word, every piece is looked at
        self._hot: Callable[[str], Any] = bool if self._leading else self._openers.hot
        self._hot_inline: Callable[[str], Any] = bool if self._leading else self._openers.hot_inline
        self._fence = FenceTracker()
        self._count = 0
        self._out: list[Event] = []
        self._said: list[str] = []  # text that goes out next, as one event
        # the buffer: text not consumed yet, from `start` on while a candidate may still go back to being text
        self.buffer = ""
        self.position = 0
        self.ended = False
        self.reason = "eof"
        self.call: OpenCall | None = None
        self._start = -1
        self._spill: list[str] = []
        self._spilled = 0
        self._finished = False
        self.mentions = thoughts
        self._fresh = thoughts is not None  # a thought may open here
        self._scanning = bool(self._openers) and (bool(self.registry) or unknown_tool == "forward")
        self._machine: Generator[None, None, None] | None = self._scan() if self._scanning or self._fresh else None
        self._idle = self._scanning and not self._fresh

    # --- what others call ----------------------------------------------------------------------------------------------------------------------

    def feed(self, text: str) -> list[Event]:
        """The events of the next piece of text."""
        if self._machine is None or self._finished:
            return [Text(text)] if text else []
        if self._idle and not (self._hot if self._fence.blank or "\n" in text else self._hot_inline)(text):
            if not text:
                return []
            self._fence.feed(text)
            return [Text(text)]
        if len(text) <= self._small and (self._start < 0 or (self.call is not None and self._held_size() + len(text) <= self.limits.held)):
            self._push(text)
            return self._taken()
        start = 0
        while start < len(text):
            if self._machine is None:  # only thoughts were looked for, and none opened
                self._said.append(text[start:])
                break
            room = self._room()
            if room == 0:
                self._overflow()
                continue
            self._push(text[start : start + room])
            start += room
        return self._taken()

    def finish(self, reason: str = "eof") -> list[Event]:
        """The text ends here; `reason` is `eof`, `length` or `cancelled`. What was held back comes out."""
        if self._machine is None or self._finished:
            return []
        self._finished = True
        self.ended = True
        self.reason = reason
        for _ in self._machine:  # it does not ask for more once the end is known
            break
        return self._taken()

    def _taken(self) -> list[Event]:
        """What goes out now."""
        self._end_text()
        out, self._out = self._out, []
        return out

    def _end_text(self) -> None:
        if self._said:
            self._out.append(Text(self._said[0] if len(self._said) == 1 else "".join(self._said)))
            self._said.clear()

    @property
    def transparent(self) -> bool:
        """All further text passes as it is."""
        return self._machine is None or self._finished

    def no_thoughts(self) -> None:
        """The backend itself separates reasoning from text: what looks like a thought is text."""
        self.mentions = None

    # --- the buffer ----------------------------------------------------------------------------------------------------------------------------

    def _push(self, text: str) -> None:
        cut = self.position
        if cut == len(self.buffer) and (self._start < 0 or self.call is not None):
            if self._start >= 0:  # a call that is held never goes back to be scanned: what is read is put aside at once
                self._put_aside(cut)
            self.buffer = text
            self.position = 0
            self._idle = False
            next(self._machine)  # type: ignore[arg-type]
            return
        if self._start >= 0:
            if cut - self._start > RESCAN:
                self._put_aside(cut)
            else:
                cut = self._start
                self._start = 0
        self.buffer = self.buffer[cut:] + text if cut < len(self.buffer) else text
        self.position -= cut
        self._idle = False
        next(self._machine)  # type: ignore[arg-type]

    def _put_aside(self, cut: int) -> None:
        spill = self._spill
        spill.append(self.buffer[self._start : cut])
        self._spilled += cut - self._start
        self._start = 0
        if len(spill) % _MANY == 0:
            spill[-_MANY:] = ["".join(spill[-_MANY:])]

    def _held_size(self) -> int:
        return self._spilled + len(self.buffer) - self._start

    def _room(self) -> int:
        """How much more text may come before the candidate exceeds its limit.

        Without one: so much that none can begin and exceed its limit unseen.
        """
        stride = max(1, self.limits.header - (len(self.buffer) - self.position))
        if self._start < 0:
            return stride
        limit = max(self.limits.header, self.limits.held) if self.call is not None else self.limits.header
        return max(0, min(stride, limit - self._held_size()))

    def _overflow(self) -> None:
        """The candidate reached its limit: all of it is text."""
        self.position = len(self.buffer)
        self._machine = self._scan()
        self.call = None
        self._say(self._raw())
        self._settle()
        next(self._machine)

    def _raw(self) -> str:
        return "".join(self._spill) + self.buffer[self._start : self.position]

    def _settle(self) -> None:
        """No candidate any more: what was consumed is accounted for."""
        self._start = -1
        self._spill = []
        self._spilled = 0

    @property
    def full(self) -> bool:
        """No further call may be made."""
        return self._count >= self.limits.calls

    @property
    def started(self) -> bool:
        """Whether a candidate is open whose text may still go back."""
        return self._start >= 0

    def checkpoint(self) -> None:
        """A call is complete; if what follows does not go on with the block, it is text from here."""
        self._start = self.position
        self._spill = []
        self._spilled = 0

    def _say(self, text: str) -> None:
        if text:
            self._fresh = False
            self._said.append(text)
            self._fence.feed(text)
            if self._leading and not text.isspace():
                self._begun()

    def _begun(self) -> None:
        """The answer has its first word: openers that count only before it are not looked for any more."""
        self._leading = False
        self._openers = self._openers.later()
        self._hot = self._openers.hot
        self._hot_inline = self._openers.hot_inline

    # --- TEXT ----------------------------------------------------------------------------------------------------------------------------------

    def _scan(self) -> Generator[None, None, None]:
        while True:
            while self._fresh:
                markers = yield from opening(self)
                if markers is None:
                    self._fresh = False
                else:
                    yield from self._thought(markers)
            if not self._scanning:
                self._say(self.buffer[self.position :])
                self.position = len(self.buffer)
                self._machine = None
                yield
                return
            found = self._next_opener()
            if found is None:
                tail = len(self.buffer) if self.ended else self._openers.hold_back(self.buffer, self.position)
                self._say(self.buffer[self.position : tail])
                self.position = tail
                if self.ended:
                    return
                self._idle = tail == len(self.buffer)
                yield
                continue
            self._say(self.buffer[self.position : found.start()])
            self.position = found.start()
            marker = found.group()
            openers = [pair for pair in self._openers.table.get(marker, ()) if self._may_open(*pair)]
            if openers:
                yield from self._candidate(marker, openers)
            else:
                self.position += 1
                self._say(marker[0])

    def _next_opener(self) -> re.Match[str] | None:
        """The next marker. Those that count only at the start of a line are passed over elsewhere, all those of a line at once."""
        if not self._fence.line_start:
            stop = self.buffer.find("\n", self.position) + 1
            found = self._openers.search_inline(self.buffer, self.position, stop or len(self.buffer))
            if found is not None or not stop:
                return found
            self._say(self.buffer[self.position : stop])
            self.position = stop
        return self._openers.search(self.buffer, self.position)

    def _may_open(self, dialect: Dialect, opener: Opener) -> bool:
        if self.full or (opener.line_start and not self._fence.line_start) or (opener.answer_start and not self._leading):
            return False
        return not dialect.recovery or not self._fence.inside

    # --- thoughts ------------------------------------------------------------------------------------------------------------------------------

    def _thought(self, markers: Markers) -> Generator[None, None, None]:
        self._fence = FenceTracker()
        if self._leading:
            self._begun()
        yield from thought(self, markers)
        self._fence = FenceTracker()

    def think(self, text: str) -> None:
        """The next piece of the open thought."""
        if text:
            self._end_text()
            self._out.append(Thought(text))
            self._fence.feed(text)

    def hold_back(self) -> int:
        """From where on the end of the buffer may become the marker of a call."""
        return self._openers.hold_back(self.buffer, self.position) if self._scanning else len(self.buffer)

    def at_call(self, stop: int) -> bool:
        """Whether a call may open before `stop`; the open thought goes on up to there."""
        while self._scanning and (found := self._openers.search(self.buffer, self.position, stop)) is not None:
            marker, start = found.group(), found.start()
            self.think(self.buffer[self.position : start])
            self.position = start
            if any(self._may_open(*pair) for pair in self._openers.table.get(marker, ())):
                return True
            self.think(marker[0])
            self.position += 1
        return False

    def reread(self, text: str) -> Generator[None, None, None]:
        """The answer ended inside a thought: `text`, its end, is read for calls. What comes before the first one is thought."""
        before = self._taken()
        self.buffer, self.position, self._fresh = text, 0, False
        yield from self._scan()
        out, self._out = self._taken(), before
        calls = [place for place, event in enumerate(out) if type(event) is CallBegin]
        thoughts = out[: calls[0] if calls else len(out)]
        self._out += [Thought(event.text) if isinstance(event, Text) else event for event in thoughts]
        self._out += out[len(thoughts) :]

    # --- a candidate ---------------------------------------------------------------------------------------------------------------------------

    def _candidate(self, marker: str, openers: list[tuple[Dialect, Opener]]) -> Generator[None, None, None]:
        self._start = self.position
        self.position += len(marker)
        dialect, opener = openers[0]
        if opener.whole:
            self.position -= len(marker)
        else:
            first = yield from peek(self)
            chosen = next((pair for pair in openers if first and first in pair[1].block.first), None)
            if chosen is None:
                self._fail()
                return
            dialect, opener = chosen
        self._dialect = dialect
        before = self._count
        block = opener.block
        kept = yield from GRAMMARS[type(block)](self, block)
        self.call = None
        if self._start < 0:
            return
        if kept or self._count > before:
            # behind the last complete call: a block that ended is done, one that did not go on ends there
            if not kept:
                if self._spilled or self.position - self._start > RESCAN:
                    self._say(self._raw())
                else:
                    self.position = self._start
            self._settle()
        else:
            self._fail()

    def _fail(self) -> None:
        """Not a call: back to text. Scanned again from behind the marker's first character while that is cheap."""
        self.call = None
        if self._spilled or self.position - self._start > RESCAN:
            self._say(self._raw())
        else:
            self.position = self._start + 1
            self._say(self.buffer[self._start])
        self._settle()

    # --- what a block does with a call -------------------------------------------------------------------------------------------------------

    def open_call(self, written: str, hold: bool = False, id: str | None = None) -> None:
        """The block named a tool, and wrote an `id` where its dialect has ids. A call that need not be held is sent from here on."""
        tool = self.registry.resolve(written)
        refused = False
        if tool is None:
            self.unknown.append(written)
            refused = self._unknown_tool != "forward"
            tool = ToolSpec(written)
        held = hold or refused or self._validated or tool.strict or (self._dialect.recovery and bool(self._quoted))
        self.call = OpenCall(tool, tool.name, held, [], [], refused, id=id)
        if not held:
            self._end_text()
            self._out.append(CallBegin(self._count, tool.name, id))
            self._settle()

    def write(self, text: str) -> None:
        """The next piece of the call's arguments."""
        call = self.call
        assert call is not None
        if not text:
            return
        call.sent = True
        if call.held:
            call.parts.append(text)
        else:
            self._out.append(CallArgs(self._count, text))

    def close_call(self, status: CallStatus = "ok") -> bool:
        """The call is complete. False: it is not a call after all, and all of it is text."""
        call = self.call
        assert call is not None
        self.call = None
        if call.held and (call.refused or status == "invalid" or (status == "truncated" and self.reason != "length") or self._is_quoted()):
            self._say(self._raw())
            self._settle()
            return False
        self._end_text()
        if not call.sent and status != "truncated":
            call.parts = ["{}"]
        if call.held:
            self._out.append(CallBegin(self._count, call.name, call.id))
        if call.parts:
            self._out.append(CallArgs(self._count, "".join(call.parts)))
        if call.held and status in ("ok", "repaired") and call.tool.strict and self._check is not None:
            wrong = self._check(call.tool, "".join(call.parts))
            if wrong:
                status = "invalid"
                call.issues += wrong
        if status == "ok" and call.issues:
            status = "repaired"
        self._out.append(CallEnd(self._count, status, tuple(call.issues)))
        self._count += 1
        self._fresh = self.mentions is not None
        self.checkpoint()
        return True

    def _is_quoted(self) -> bool:
        return self._dialect.recovery and bool(self._quoted) and self._raw() in self._quoted


def parse(text: str, tools: Iterable[ToolSpec | Mapping[str, Any]], dialects: Iterable[str] | None = None, **options: Any) -> list[Event]:
    """Feed and finish: the only way to read a whole text."""
    parser = ToolCallParser(tools, dialects, **options)
    return parser.feed(text) + parser.finish()

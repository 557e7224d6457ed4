"""The scanner finds tool calls in a model's text, which arrives in chunks of any size.

A marker (`openers.py`) begins a *candidate*: a block that may be a call. The shape of the block, which the
marker determines, selects the grammar. The grammar reads the block and calls `open_call`, `write` and
`close_call`. A candidate that breaks its grammar before a known tool's name is text:

- If it has at most `RESCAN` characters, scanning resumes one character after its start, so that a call inside
  it is found (law 5 in docs/architecture.md).
- A longer candidate becomes text as a whole and is not scanned again, so that the cost stays linear (law 7).

Recovery dialects, which the prompt does not teach, are ignored in code and in quotations of the request (law
12). The cuts between chunks make no difference (law 4).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Literal

from toolwire.core.events import CallBegin, Event, Text, Thought
from toolwire.core.turn import ToolSpec
from toolwire.emulate.dialects import DEFAULT, Dialect, JsonBlock, Opener, TagBlock
from toolwire.emulate.dialects.shapes import ElementBlock, GemmaBlock, HeadedBlock, PythonBlock
from toolwire.emulate.grammars.json_block import headed_block, json_block
from toolwire.emulate.grammars.literals import gemma_block
from toolwire.emulate.grammars.python_block import python_block
from toolwire.emulate.grammars.reading import LONGEST, Check, Reading, Scan, ScanLimits, peek
from toolwire.emulate.grammars.tag_block import element_block, tag_block
from toolwire.emulate.openers import FenceTracker, Quotations, openers_of
from toolwire.emulate.thoughts import Markers, Mentions, opening, thought
from toolwire.emulate.tools import ToolRegistry

__all__ = ["Check", "ScanLimits", "ToolCallParser", "parse"]

GRAMMARS: dict[type, Callable[[Any, Any], Reading]] = {
    JsonBlock: json_block,
    TagBlock: tag_block,
    HeadedBlock: headed_block,
    ElementBlock: element_block,
    PythonBlock: python_block,
    GemmaBlock: gemma_block,
}
"""The grammar that reads each shape.

A grammar returns True if all that it consumed is markup. If it returns False, the text after its last
checkpoint becomes text again.
"""
_MANY = 1024  # this many small slices are joined into one
RESCAN = 4096  # a failed candidate up to this length is scanned again; a longer one is text as a whole


class ToolCallParser(Scan):
    """Finds calls of `tools` in a model's text. `feed` and `finish` never raise.

    `arguments`: `eager` sends arguments while the model writes them, `validated` when they are complete.
    Calls of a strict tool are always held back until `check` has seen them. `quoted`: the request's input
    texts. `thoughts`: a function that returns whether the request contains a given text; if it is set,
    reasoning is separated from the answer.
    """

    def __init__(
        self,
        tools: Iterable[ToolSpec | Mapping[str, Any]] | ToolRegistry,
        dialects: Iterable[str] | None = None,
        arguments: Literal["eager", "validated"] = "eager",
        nonce: str | None = None,
        quoted: Iterable[str] = (),
        limits: ScanLimits | None = None,
        *,
        unknown_tool: Literal["text", "forward", "error"] = "text",
        check: Check | None = None,
        thoughts: Mentions | None = None,
    ) -> None:
        registry = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools)
        chosen = DEFAULT if dialects is None else tuple(dialects)
        self._openers = openers_of(chosen, nonce, registry.tools)
        quotations = Quotations(quoted, self._openers.words)
        super().__init__(registry, limits or ScanLimits(), quotations, check)
        self._validated, self._unknown_tool = arguments == "validated", unknown_tool
        # A chunk this short cannot exceed a limit before the next check.
        self._small = self.limits.header - 2 * LONGEST
        self._at_answer_start = self._openers.has_answer_start
        self._fence = FenceTracker()
        self._finished = False
        self.mentions = thoughts
        self._thought_may_open = thoughts is not None
        self._scanning = bool(self._openers) and (bool(self.registry) or unknown_tool == "forward")
        self._machine: Generator[None, None, None] | None = None
        if self._scanning or self._thought_may_open:
            self._machine = self._scan()
        self._idle = self._scanning and not self._thought_may_open

    # --- public ---

    def feed(self, text: str) -> list[Event]:
        """Takes the next chunk of text and returns its events."""
        if self._machine is None or self._finished or not text:
            return [Text(text)] if text else []
        if self._idle and not self._at_answer_start:
            openers = self._openers
            anywhere = self._fence.blank or "\n" in text
            if not (openers.may_begin if anywhere else openers.may_begin_inline)(text):
                self._fence.feed(text)
                return [Text(text)]
        fits = self._start < 0 or (
            self.call is not None and self._held_size() + len(text) <= self.limits.held
        )
        if fits and len(text) <= self._small:
            self._push(text)
            return self._taken()
        start = 0
        while start < len(text):
            if self._machine is None:  # only thoughts were searched for, and none opened
                self._pending.append(text[start:])
                break
            room = self._room()
            if room == 0:
                self._overflow()
                continue
            self._push(text[start : start + room])
            start += room
        return self._taken()

    def finish(self, reason: str = "eof") -> list[Event]:
        """Ends the text and returns what was held back.

        `reason`: why the text ended: `eof`, `length` or `cancelled`.
        """
        if self._machine is None or self._finished:
            return []
        self._finished = True
        self.ended = True
        self.reason = reason
        for _ in self._machine:  # a generator that knows the end of the text no longer yields
            break
        return self._taken()

    def _taken(self) -> list[Event]:
        self._end_text()
        out, self._out = self._out, []
        return out

    @property
    def transparent(self) -> bool:
        """Whether all further text passes unchanged."""
        return self._machine is None or self._finished

    def no_thoughts(self) -> None:
        """Stops looking for thoughts: the backend itself separates reasoning from text."""
        self.mentions = None

    # --- the buffer ---

    def _push(self, text: str) -> None:
        cut = self.position
        if self._start >= 0:
            # A held call and a long candidate are never scanned again: drop their text from the buffer.
            if cut - self._start > RESCAN or (self.call is not None and cut == len(self.buffer)):
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
        """Returns how many characters may be added before a limit must be checked again."""
        stride = max(1, self.limits.header - (len(self.buffer) - self.position))
        if self._start < 0:
            return stride
        limit = max(self.limits.header, self.limits.held) if self.call is not None else self.limits.header
        return max(0, min(stride, limit - self._held_size()))

    def _overflow(self) -> None:
        """Handles a candidate (a block that may be a call) that exceeds its limit: it becomes text."""
        self.position = len(self.buffer)
        self._machine = self._scan()
        self.call = None
        self.add_text(self._candidate_text())
        self._end_candidate()
        next(self._machine)

    def add_text(self, text: str) -> None:
        if text:
            self._thought_may_open = False
            self._pending.append(text)
            self._fence.feed(text)
            if self._at_answer_start and not text.isspace():
                self._answer_began()

    def _answer_began(self) -> None:
        """Drops the openers that count only before the first word of the answer."""
        self._at_answer_start = False
        self._openers = self._openers.without_answer_start()

    # --- text ---

    def _scan(self) -> Generator[None, None, None]:
        while True:
            while self._thought_may_open:  # `opening` returns None if thoughts are not separated
                markers = yield from opening(self)
                if markers is None:
                    self._thought_may_open = False
                else:
                    yield from self._thought(markers)
            if not self._scanning:
                self.add_text(self.buffer[self.position :])
                self.position = len(self.buffer)
                self._machine = None
                yield
                return
            found = self._next_opener()
            if found is None:
                tail = len(self.buffer) if self.ended else self._openers.hold_back(self.buffer, self.position)
                self.add_text(self.buffer[self.position : tail])
                self.position = tail
                if self.ended:
                    return
                self._idle = tail == len(self.buffer)
                yield
                continue
            self.add_text(self.buffer[self.position : found.start()])
            self.position = found.start()
            marker = found.group()
            openers = [pair for pair in self._openers.table.get(marker, ()) if self._may_open(*pair)]
            if openers:
                yield from self._candidate(marker, openers)
            else:
                self.position += 1
                self.add_text(marker[0])

    def _next_opener(self) -> re.Match[str] | None:
        """Returns the match of the next marker in the buffer; None if there is none.

        If the current line has already begun, its rest is searched only for markers that may be inside a
        line. If the rest contains none, it is sent as text, and the search continues in the next line.
        """
        if not self._fence.line_start:
            stop = self.buffer.find("\n", self.position) + 1
            found = self._openers.search_inline(self.buffer, self.position, stop or len(self.buffer))
            if found is not None or not stop:
                return found
            self.add_text(self.buffer[self.position : stop])
            self.position = stop
        return self._openers.search(self.buffer, self.position)

    def _may_open(self, dialect: Dialect, opener: Opener) -> bool:
        if self.at_call_limit or (opener.line_start and not self._fence.line_start):
            return False
        if opener.answer_start and not self._at_answer_start:
            return False
        return not (dialect.recovery and self._fence.inside)

    # --- thoughts ---

    def _thought(self, markers: Markers) -> Generator[None, None, None]:
        self._fence = FenceTracker()
        if self._at_answer_start:
            self._answer_began()
        yield from thought(self, markers)
        self._fence = FenceTracker()

    def add_thought(self, text: str) -> None:
        """Sends the next piece of the open thought."""
        if text:
            self._end_text()
            self._out.append(Thought(text))
            self._fence.feed(text)

    def hold_back(self) -> int:
        """Returns the position where an incomplete marker at the end of the buffer may begin."""
        return self._openers.hold_back(self.buffer, self.position) if self._scanning else len(self.buffer)

    def call_may_open(self, stop: int) -> bool:
        """Whether a call may begin before `stop`. Sends the thought before the first possible marker."""
        while self._scanning:
            found = self._openers.search(self.buffer, self.position, stop)
            if found is None:
                break
            marker, start = found.group(), found.start()
            self.add_thought(self.buffer[self.position : start])
            self.position = start
            if any(self._may_open(*pair) for pair in self._openers.table.get(marker, ())):
                return True
            self.add_thought(marker[0])
            self.position += 1
        return False

    def reread(self, text: str) -> Generator[None, None, None]:
        """Scans the end of a thought for calls, because the answer ended inside the thought.

        Text before the first call is sent as thought.
        """
        before = self._taken()
        self.buffer, self.position, self._thought_may_open = text, 0, False
        yield from self._scan()
        out, self._out = self._taken(), before
        calls = [index for index, event in enumerate(out) if type(event) is CallBegin]
        thoughts = out[: calls[0] if calls else len(out)]
        self._out += [Thought(event.text) if isinstance(event, Text) else event for event in thoughts]
        self._out += out[len(thoughts) :]

    # --- candidates ---

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
        if not kept and self._count == before:
            self._fail()
            return
        # Without its closer, a block ends after its last complete call, and the text after that is scanned
        # again.
        if not kept:
            self._to_text(self._start)
        self._end_candidate()

    def _fail(self) -> None:
        """Turns the candidate (a block that may be a call) into text.

        A short candidate is scanned again from its second character on.
        """
        self.call = None
        self._to_text(self._start + 1)
        self._end_candidate()

    def _to_text(self, again: int) -> None:
        """Sends the candidate (a block that may be a call) as text.

        If the candidate is short, sends only the part before the position `again`; the rest is scanned
        again.
        """
        if self._spilled or self.position - self._start > RESCAN:
            self.add_text(self._candidate_text())
        else:
            self.position = again
            self.add_text(self.buffer[self._start : again])


def parse(
    text: str,
    tools: Iterable[ToolSpec | Mapping[str, Any]],
    dialects: Iterable[str] | None = None,
    **options: Any,
) -> list[Event]:
    """Returns the events of a complete text."""
    parser = ToolCallParser(tools, dialects, **options)
    return parser.feed(text) + parser.finish()

"""ToolCallAggregator: collects tool calls from payloads of any known shape.

It returns immutable records of the calls, and the deltas that a server may send to its client.

- Arguments are never parsed or changed, and payloads are never mutated. Deltas are increments, which a client
  concatenates; records hold the whole text.
- Records only grow: a closing event or a final message adds what is missing. No text is in two deltas.
- Records are in order of creation. The calls of different choices are kept apart.
- No payload makes the aggregator raise an error or loop forever. Unknown payloads are ignored. `unreadable`
  counts the payloads that cannot be read.
- Results of tools are not calls. The failed start-up probes of Codex ("resources/list failed") are counted in
  `phantoms`.

`payloads.py` knows the shapes of payloads, `core/assemble.py` puts the fragments together. Standard library
only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from toolwire.core.assemble import EVERY_NAME, CallAssembler, Fragment
from toolwire.core.events import CallArgs, CallBegin, CallEnd, CallKind, Event, Text
from toolwire.core.ids import random_id
from toolwire.core.partial_call import PartialCall
from toolwire.wire import payloads

CallIdFactory = Callable[[int, int], str]
"""A function that takes the index of a choice and the number of a call in it, and returns a unique id."""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next piece of a call, to be sent to the client. Only a call's first delta has `id` and `name`."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    type: CallKind = "function"
    choice: int = 0

    def wire(self) -> dict[str, Any]:
        """Returns the delta as an entry of `tool_calls` in a chat chunk."""
        key = "input" if self.type == "custom" else "arguments"
        body = {"name": self.name, key: self.arguments} if self.name is not None else {key: self.arguments}
        opener = {"id": self.id, "type": self.type} if self.id is not None else {}
        return {"index": self.index, **opener, self.type: body}


@dataclass(frozen=True, slots=True)
class ToolCallRecord:
    """A call as far as it has arrived. `name` may still be empty.

    `arguments` is the text as it was sent; for a custom tool, the tool's input.
    """

    index: int
    id: str
    name: str
    arguments: str
    type: CallKind = "function"

    def wire(self) -> dict[str, Any]:
        """Returns the record as an entry of `tool_calls` in a chat message."""
        key = "input" if self.type == "custom" else "arguments"
        return {"id": self.id, "type": self.type, self.type: {"name": self.name, key: self.arguments}}


@dataclass(frozen=True, slots=True)
class Update:
    """The effect of a payload: whether any record changed, and the deltas to send, in order."""

    updated: bool = False
    deltas: tuple[ToolCallDelta, ...] = ()


@dataclass(frozen=True, slots=True)
class TextBlock:
    """A call found in text. `start` and `end` are its position; -1: unknown."""

    name: str
    arguments: str
    start: int = -1
    end: int = -1


# --- calls in text ---

Matcher = Callable[[str], Iterable[TextBlock] | tuple[Iterable[TextBlock], int]]
_patterns: dict[str, Matcher] = {}


def register_text_pattern(name: str, matcher: Matcher) -> Callable[[], None]:
    """Adds a matcher that finds calls in text. Returns a function that removes it.

    Matchers are tried only if the text has no `<use_tool>` block. An empty name, or a matcher that is not
    callable, is ignored.
    """
    if not name or not callable(matcher):
        return lambda: None
    _patterns[name] = matcher

    def unsubscribe() -> None:
        if _patterns.get(name) is matcher:
            del _patterns[name]

    return unsubscribe


def extract_use_tool_blocks(text: str, start: int = 0) -> tuple[tuple[TextBlock, ...], int]:
    """Returns the complete `<use_tool>` blocks from `start` on, and the position after them.

    Without a block, the position is `start`.
    """
    from toolwire.emulate.scanner import ToolCallParser

    start = max(start, 0)
    if "<use_tool" not in text[start:]:
        return (), start
    parser = ToolCallParser((), dialects=("use_tool",), unknown_tool="forward")
    blocks: list[TextBlock] = []
    name, pieces, after, plain, at = "", [""], start, 0, start
    while at < len(text):
        end = text.find(">", at) + 1 or len(text)  # every block ends with ">", so feed up to each ">"
        for event in parser.feed(text[at:end]):
            if isinstance(event, CallBegin):
                name, pieces = event.name, []
            elif isinstance(event, CallArgs):
                pieces.append(event.delta)
            elif isinstance(event, CallEnd):
                begin = text.find("<use_tool", after + plain)
                blocks.append(TextBlock(name, "".join(pieces), begin, end))
                after, plain = end, 0
            elif isinstance(event, Text):
                plain += len(event.text)
        at = end
    return tuple(blocks), after


# --- the aggregator ---


class _Choice:
    """The calls of one choice.

    `held`: events from a final message, by the number of their call. No `Update` has returned them as deltas
    yet.
    """

    def __init__(self) -> None:
        self.assembler = CallAssembler(names=EVERY_NAME, ordered=False)
        self.ids: dict[int, str] = {}
        self.held: dict[int, list[Event]] = {}


class ToolCallAggregator:
    """Collects the calls of a turn, separately for each choice.

    `id_factory(choice, number)` creates the ids of calls that came without one. Default: random ids.
    """

    def __init__(self, id_factory: CallIdFactory | None = None) -> None:
        self.phantoms = 0
        self.matcher_failures = 0
        self.unreadable = 0
        self._mint: CallIdFactory = id_factory or (lambda choice, number: random_id("call_"))
        self._choices: dict[int, _Choice] = {}
        self._parallel = True

    def ingest_delta(self, payload: Any, choice: int = 0) -> Update:
        """Reads a piece of a stream. `choice` is the index of the payload's first choice."""
        return self._ingest(payload, choice, whole=False, emit=True)

    def ingest_message(self, payload: Any, choice: int = 0, emit_if_missing: bool = False) -> Update:
        """Reads a final message, which completes the records.

        With `emit_if_missing`, the update has the deltas that were not returned yet. If no call is known, the
        message's text is then searched for calls.
        """
        update = self._ingest(payload, choice, whole=True, emit=emit_if_missing)
        if emit_if_missing and not self.has_calls(choice):
            found = [
                Fragment(at, None, block.name, block.arguments, complete=True)
                for at, block in enumerate(self._blocks(self._text(payload)))
                if block.name
            ]
            if found:
                update = self._take(found, max(choice, 0), emit=True, all_held=True)
        return update

    def snapshot(self, choice: int = 0) -> tuple[ToolCallRecord, ...]:
        """Returns the records of a choice, in order of creation."""
        choice = max(choice, 0)
        state = self._choices.get(choice, _Choice())
        return tuple(
            ToolCallRecord(call.number, self._id(state, choice, call), call.name, call.arguments, call.kind)
            for call in state.assembler.calls
        )

    def has_calls(self, choice: int | None = None) -> bool:
        return any(
            state.assembler.calls
            for number, state in self._choices.items()
            if choice is None or number == max(choice, 0)
        )

    def supports_parallel_calls(self) -> bool:
        """Returns False once a payload contained `parallel_tool_calls: false`, otherwise True."""
        return self._parallel

    def reset_turn(self, choice: int | None = None) -> None:
        """Removes the calls of one choice; None: of all choices. Registered text patterns stay."""
        if choice is None:
            self._choices.clear()
            self._parallel = True
        else:
            self._choices.pop(max(choice, 0), None)

    def _ingest(self, payload: Any, choice: int, whole: bool, emit: bool) -> Update:
        found: dict[int, list[Fragment]] = {max(choice, 0): []} if whole and emit else {}
        try:
            for node, number in payloads.nodes(payload, max(choice, 0)):
                if payloads.forbids_parallel(node):
                    self._parallel = False
                if payloads.is_result(node):
                    self.phantoms += payloads.is_phantom(node)
                elif fragments := payloads.fragments(node, whole):
                    found.setdefault(number, []).extend(fragments)
        except Exception:  # a foreign object may raise anything
            self.unreadable += 1
        updates = [self._take(fragments, number, emit, all_held=whole) for number, fragments in found.items()]
        deltas = tuple(delta for update in updates for delta in update.deltas)
        return Update(any(update.updated for update in updates), deltas)

    def _take(self, fragments: list[Fragment], choice: int, emit: bool, all_held: bool) -> Update:
        """Adds fragments to the calls of a choice.

        `emit`: return deltas. `all_held`: also return the deltas that are held back (`_Choice.held`) for
        calls that these fragments do not change.
        """
        if not fragments and choice not in self._choices:
            return Update()
        state = self._choices.setdefault(choice, _Choice())
        before = state.assembler.changes
        touched: dict[int, None] = {}
        for fragment in fragments:
            for event in state.assembler.add(fragment):
                if isinstance(event, CallBegin | CallArgs):
                    state.held.setdefault(event.index, []).append(event)
                    touched[event.index] = None
        deltas: list[ToolCallDelta] = []
        for number in sorted(state.held if all_held else touched) if emit else ():
            deltas += self._deltas(state, choice, number)
        return Update(state.assembler.changes > before, tuple(deltas))

    def _deltas(self, state: _Choice, choice: int, number: int) -> Iterator[ToolCallDelta]:
        """Yields the events of a call that are held back (`_Choice.held`) as deltas.

        The first delta of a call also has the arguments that are held back.
        """
        call = state.assembler.calls[number]
        opener: ToolCallDelta | None = None
        for event in state.held.pop(number, ()):
            if isinstance(event, CallBegin):
                id = self._id(state, choice, call)
                opener = ToolCallDelta(number, id, event.name, "", event.kind, choice)
            elif isinstance(event, CallArgs):
                if opener is None:
                    yield ToolCallDelta(number, arguments=event.delta, type=call.kind, choice=choice)
                else:
                    opener = replace(opener, arguments=opener.arguments + event.delta)
        if opener is not None:
            yield opener

    def _id(self, state: _Choice, choice: int, call: PartialCall) -> str:
        """Returns the call's id. It never changes, even if the upstream sends its own id later."""
        if call.number not in state.ids:
            state.ids[call.number] = call.id or call.alias or self._mint(choice, call.number)
        return state.ids[call.number]

    def _text(self, payload: Any) -> str:
        try:
            return payloads.content(payload)
        except Exception:  # a foreign object may raise anything
            self.unreadable += 1
            return ""

    def _blocks(self, text: str) -> list[TextBlock]:
        """Returns the `<use_tool>` blocks of a text. If there are none, returns what the matchers find."""
        if not text:
            return []
        found = list(extract_use_tool_blocks(text)[0])
        for matcher in () if found else tuple(_patterns.values()):
            try:
                blocks = matcher(text)
                if isinstance(blocks, tuple) and blocks and not isinstance(blocks[0], TextBlock):
                    blocks = blocks[0]
                found += [block for block in blocks if isinstance(block, TextBlock)]
            except Exception:  # a foreign matcher must not break the turn
                self.matcher_failures += 1
        return found

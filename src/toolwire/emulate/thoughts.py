"""Separates reasoning that a model writes into its answer, such as `<think>…</think>`.

A thought may begin at the start of the answer, or right after another thought or a call, with only white
space between them. Anywhere else, the markers of a thought are ordinary text, so an answer that only mentions
`<think>` does not change. White space around a marker belongs to the markup.

A call inside a closed thought does not count: the model only considered it. Whether a thought is closed is
known only when its closing marker arrives, so the text is held from the first possible call on. If the answer
ends without the closing marker, the held text is scanned for calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolwire.emulate.grammars.reading import LONGEST, Reading, literal, peek, until

if TYPE_CHECKING:
    from toolwire.emulate.scanner import ToolCallParser

Mentions = Callable[[str], bool]
"""A function that returns whether the request's own messages contain a text."""
_WHITE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class Markers:
    """The markers around a thought, and the models that write them.

    `then`: markup that may follow the closer. `plain`: prompts may ask for the opener as an ordinary tag, so
    it is text if the request mentions it.
    """

    opener: str
    closer: str
    models: str
    then: tuple[str, ...] = ()
    plain: bool = False


_FINAL = "<|channel|>final<|message|>"
_ANALYSIS = "<|channel|>analysis<|message|>"
_HARMONY = ("<|end|>", "gpt-oss", ("<|start|>assistant" + _FINAL, _FINAL))

THOUGHTS: tuple[Markers, ...] = (
    Markers(
        "<think>", "</think>", "DeepSeek, Qwen, GLM, MiniMax M2, Nemotron, Kimi K2, OLMo 3 and most others"
    ),
    Markers("<thinking>", "</thinking>", "Claude-trained habit", plain=True),
    Markers("<thought>", "</thought>", "EXAONE Deep, some fine-tunes", plain=True),
    Markers("<reasoning>", "</reasoning>", "some fine-tunes", plain=True),
    Markers("[THINK]", "[/THINK]", "Magistral, Ministral 3"),
    Markers("<seed:think>", "</seed:think>", "Seed-OSS"),
    Markers("<longcat_think>", "</longcat_think>", "LongCat"),
    Markers("<mm:think>", "</mm:think>", "MiniMax M3"),
    Markers("◁think▷", "◁/think▷", "Kimi-VL, Kimi 1.5"),
    Markers("<|open|>think<|sep|>", "<|close|>think<|sep|>", "Kimi K3"),
    Markers("<|START_THINKING|>", "<|END_THINKING|>", "Command A Reasoning"),
    Markers("<|begin_of_thought|>", "<|end_of_thought|>", "Sky-T1, OpenThinker"),
    Markers("<|channel>thought", "<channel|>", "Gemma 4"),
    Markers(_ANALYSIS, *_HARMONY),
    Markers("<|start|>assistant" + _ANALYSIS, *_HARMONY),
)
_BY_OPENER = {markers.opener: markers for markers in THOUGHTS}
_OPENER = re.compile("|".join(map(re.escape, _BY_OPENER)))  # no opener is the beginning of another opener
MAY_OPEN = re.compile(r"\s*(?:\Z|[" + "".join(sorted({re.escape(opener[0]) for opener in _BY_OPENER})) + "])")
"""Matches the first text of an answer if the answer may begin with a thought."""
_BEGINNINGS = frozenset(opener[:size] for opener in _BY_OPENER for size in range(len(opener)))


def opening(scan: ToolCallParser) -> Reading:
    """Consumes the opener of a thought and returns its markers; None if no thought opens here."""
    while scan.mentions is not None:
        start = _WHITE.match(scan.buffer, scan.position).end()  # type: ignore[union-attr]
        if start - scan.position > LONGEST:
            return None
        opener = _OPENER.match(scan.buffer, start)
        if opener is not None:
            found = _BY_OPENER[opener.group()]
            if found.plain and scan.mentions(found.opener):
                return None
            scan.position = opener.end()
            return found
        if scan.ended or scan.buffer[start : start + LONGEST] not in _BEGINNINGS:
            return None
        yield
    return None


def thought(scan: ToolCallParser, markers: Markers) -> Reading:
    """Reads a thought and the white space after it.

    Sends the thought as it arrives, up to a possible call.
    """
    closer = markers.closer
    yield from peek(scan)
    while True:
        close = scan.buffer.find(closer, scan.position)
        if close >= 0:
            scan.add_thought(_trimmed(scan.buffer[scan.position : close]))
            scan.position = close + len(closer)
            break
        tail = len(scan.buffer) if scan.ended else min(scan.hold_back(), _partial(scan.buffer, closer))
        if scan.call_may_open(tail):
            if not (yield from held_thought(scan, closer)):
                return
            break
        piece = scan.buffer[scan.position : tail]
        if not scan.ended:
            piece = _trimmed(piece)
        scan.add_thought(piece)
        scan.position += len(piece)
        if scan.ended:
            return
        yield
    yield from peek(scan)
    if markers.then:
        yield from literal(scan, markers.then)
        yield from peek(scan)


def held_thought(scan: ToolCallParser, closer: str) -> Reading:
    """Reads the rest of a thought, beginning with a possible call. Returns whether the thought closes.

    If the thought closes, all of the text belongs to it. If the answer ends first, the text is scanned for
    calls, unless the text or the answer was cut off by a limit.
    """
    held = _Held(scan)
    closed: bool = yield from until(scan, (closer,), len(closer) - 1, held.push)
    text = "".join(held.pieces)
    if closed or held.full or scan.reason != "eof":
        scan.add_thought(_trimmed(text) if closed else text)  # white space before a closer is markup
    else:
        yield from scan.reread(text)
    return closed


class _Held:
    """Text that may belong to a thought or to the answer.

    Text beyond the scanner's limit is sent as thought.
    """

    def __init__(self, scan: ToolCallParser) -> None:
        self._scan = scan
        self._left = scan.limits.held
        self.pieces: list[str] = []
        self.full = False

    def push(self, text: str) -> None:
        self.pieces.append(text)
        self._left -= len(text)
        if self._left < 0:
            self.full = True
            held = "".join(self.pieces)
            sent = _trimmed(held)
            self._scan.add_thought(sent)
            self.pieces = [held[len(sent) :]]


def _trimmed(text: str) -> str:
    """Returns the text without white space at its end. Cuts off at most `LONGEST` characters."""
    return text[: max(len(text.rstrip()), len(text) - LONGEST)]


def _partial(buffer: str, closer: str) -> int:
    """Returns the position where an incomplete closer at the end of the buffer begins.

    Returns the buffer's length if the buffer does not end with an incomplete closer.
    """
    for size in range(min(len(closer) - 1, len(buffer)), 0, -1):
        if buffer.endswith(closer[:size]):
            return len(buffer) - size
    return len(buffer)

"""Reasoning that a model writes into its answer, such as `<think>…</think>`: which markers there are, and how a thought is read.

A thought opens where models open one: at the start of the answer, or right after another thought or a call, white space apart. Anywhere else the
markers are ordinary text, so an answer that only mentions `<think>` is not changed. White space on both sides of a marker belongs to the markup.

A call inside a closed thought is not made: the model only weighed it. Only the end of a thought shows whether it closes, so the text is held from the
first possible call on. If the answer ends first, and the model ended it, the held text is read as part of the answer. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING

from toolwire.emulate.grammars.reading import LONGEST, Reading, literal, peek, until

if TYPE_CHECKING:
    from toolwire.emulate.scanner import ToolCallParser

Mentions = Callable[[str], bool]
"""Whether the request's own messages contain this text."""
_WHITE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class Markers:
    """`then`: markup that may follow the closer. `plain`: a tag that prompts ask for too, so it is text where the request mentions it."""

    opener: str
    closer: str
    models: str
    then: tuple[str, ...] = ()
    plain: bool = False


_FINAL = "<|channel|>final<|message|>"
_ANALYSIS = "<|channel|>analysis<|message|>"
_HARMONY = ("<|end|>", "gpt-oss", ("<|start|>assistant" + _FINAL, _FINAL))

THOUGHTS: tuple[Markers, ...] = (
    Markers("<think>", "</think>", "DeepSeek, Qwen, GLM, MiniMax M2, Nemotron, Kimi K2, OLMo 3 and most others"),
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
_OPENERS = tuple(markers.opener for markers in THOUGHTS)
_MOST = max(map(len, _OPENERS))


_FIRST = frozenset(opener[0] for opener in _OPENERS)


def may_open(text: str) -> bool:
    """Whether an answer that begins with this text may begin with a thought."""
    words = text.lstrip()
    return not words or words[0] in _FIRST


def opening(scan: ToolCallParser) -> Reading:
    """The markers of the thought that opens here, consumed; else None, and nothing is consumed."""
    while scan.mentions is not None:
        start = _WHITE.match(scan.buffer, scan.position).end()  # type: ignore[union-attr]
        if start - scan.position > LONGEST:
            return None
        rest = scan.buffer[start : start + _MOST]
        found = next((markers for markers in THOUGHTS if rest.startswith(markers.opener)), None)
        if found is not None:
            if found.plain and scan.mentions(found.opener):
                return None
            scan.position = start + len(found.opener)
            return found
        if scan.ended or not any(opener.startswith(rest) for opener in _OPENERS):
            return None
        yield
    return None


def thought(scan: ToolCallParser, markers: Markers) -> Reading:
    """Everything up to the closer, and the white space after it. Sent while it is written, up to the first possible call."""
    closer = markers.closer
    yield from peek(scan)
    while True:
        close = scan.buffer.find(closer, scan.position)
        if close >= 0:
            scan.think(_trimmed(scan.buffer[scan.position : close]))
            scan.position = close + len(closer)
            break
        tail = len(scan.buffer) if scan.ended else min(scan.hold_back(), _partial(scan.buffer, closer))
        if scan.at_call(tail):
            if not (yield from weighed(scan, closer)):
                return
            break
        piece = scan.buffer[scan.position : tail]
        if not scan.ended:
            piece = _trimmed(piece)
        scan.think(piece)
        scan.position += len(piece)
        if scan.ended:
            return
        yield
    yield from peek(scan)
    if markers.then:
        yield from literal(scan, markers.then)
        yield from peek(scan)


def weighed(scan: ToolCallParser, closer: str) -> Reading:
    """The rest of a thought, from a possible call on. True: it closed, so all of it is thought."""
    held = _Held(scan)
    closed: bool = yield from until(scan, (closer,), len(closer) - 1, held.push)
    if closed or held.full or scan.reason != "eof":
        held.release(closed)
    else:
        yield from scan.reread(held.text())
    return closed


class _Held:
    """Text that is either thought or answer. Above the scanner's limit it is thought, and is sent from then on."""

    __slots__ = ("_left", "_scan", "_text", "full")

    def __init__(self, scan: ToolCallParser) -> None:
        self._scan = scan
        self._text = StringIO(newline="")
        self._left = scan.limits.held
        self.full = False

    def push(self, text: str) -> None:
        self._text.write(text)
        self._left -= len(text)
        if self._left < 0:
            self.full = True
            held = self.text()
            sent = _trimmed(held)
            self._scan.think(sent)
            self._text = StringIO(newline="")
            self._text.write(held[len(sent) :])

    def text(self) -> str:
        return self._text.getvalue()

    def release(self, closed: bool) -> None:
        """All of it is thought; the white space before a closer is markup."""
        self._scan.think(_trimmed(self.text()) if closed else self.text())


def _trimmed(text: str) -> str:
    """Without the white space at its end, of which at most `LONGEST` characters count as markup."""
    return text[: max(len(text.rstrip()), len(text) - LONGEST)]


def _partial(buffer: str, closer: str) -> int:
    """From where on the end of the buffer may become the closer."""
    for size in range(min(len(closer) - 1, len(buffer)), 0, -1):
        if buffer.endswith(closer[:size]):
            return len(buffer) - size
    return len(buffer)

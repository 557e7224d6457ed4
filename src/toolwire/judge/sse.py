"""Server-sent events as the two APIs use them: the syntax is judged while the frames are cut out.

An event is a block of lines that ends with a blank line and holds exactly one `data:` line. Responses puts `event:` with the frame's type before it,
chat has no `event:`. Comments stand between events, never inside one. The standard allows more, which does no client harm and which other servers
send: it is read in any case, and told unless `whole_standard` says that it is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from toolwire.judge.problem import Problem

DONE = "[DONE]"
BYTE_ORDER_MARK = "\ufeff"
OF_THE_STANDARD = ("id", "retry")
"""Fields that the two APIs do not use."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of the stream: the text of its `data:` line and the name of its `event:` line."""

    data: str
    event: str | None = None


def split_sse(raw: bytes | str, *, whole_standard: bool = False) -> tuple[list[Frame], list[Problem]]:
    """The frames of a stream, and what is wrong with its syntax. Goes on after a problem as a client would.

    `whole_standard`: `id`, `retry`, a byte order mark and comments inside an event are right."""
    problems: list[Problem] = []
    if isinstance(raw, bytes):
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            problems.append(Problem("encoding", f"the stream is not UTF-8: {error.reason} at byte {error.start}"))
            text = raw.decode("utf-8", "replace")
    else:
        text = raw
    if text.startswith(BYTE_ORDER_MARK):
        text = text.removeprefix(BYTE_ORDER_MARK)
        if not whole_standard:
            problems.append(Problem("sse_syntax", "the stream begins with a byte order mark"))
    frames: list[Frame] = []
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for block, ended in _blocks(lines if lines[-1] else lines[:-1]):
        position = len(frames)
        frame, faults = _read(block, whole_standard)
        problems += [Problem("sse_syntax", fault, position) for fault in faults]
        if frame is None:
            continue
        if not ended:
            problems.append(Problem("unterminated_event", "the last event is not ended by a blank line", position))
        frames.append(frame)
    return frames, problems


def _blocks(lines: Iterable[str]) -> Iterator[tuple[list[str], bool]]:
    block: list[str] = []
    for line in lines:
        if line:
            block.append(line)
        elif block:
            yield block, True
            block = []
    if block:
        yield block, False


def _read(block: list[str], whole_standard: bool) -> tuple[Frame | None, list[str]]:
    faults: list[str] = []
    fields: dict[str, list[str]] = {"event": [], "data": []}
    for line in block:
        name, colon, value = line.partition(":")
        if name == "":
            if any(fields.values()) and not whole_standard:
                faults.append(f"a comment stands inside an event: {line[:80]!r}")
        elif name in OF_THE_STANDARD and whole_standard:
            continue
        elif name not in fields or not colon:
            faults.append(f"neither event, data nor comment: {line[:80]!r}")
        else:
            fields[name].append(value.removeprefix(" "))
    events, data = fields["event"], fields["data"]
    if not events and not data:
        return None, faults
    if len(events) > 1:
        faults.append("an event has two names")
    if len(data) != 1:
        faults.append(f"an event has {len(data)} data lines, not one")
    return Frame("\n".join(data), events[-1] if events else None), faults

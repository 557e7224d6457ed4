"""Grammars of calls in JSON: an object that contains the tool's name, or a header and then an object."""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolwire.emulate.arguments import SPACE, SURROGATE, JsonFlow, StringDecoder
from toolwire.emulate.dialects import JsonBlock
from toolwire.emulate.dialects.shapes import HeadedBlock
from toolwire.emulate.grammars.reading import (
    CLOSED,
    CUT,
    FAIL,
    LONGEST,
    OK,
    Reading,
    Scan,
    cut_off,
    discard,
    end_call,
    give_up,
    is_complete,
    json_value,
    literal,
    more,
    object_arguments,
    peek,
    string,
)


class Envelope:
    """One `{"name": …, "arguments": …}` as far as it has been read."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.parts: list[str] = []  # arguments that were read before the name
        self.complete = False
        self.object = True  # whether the arguments are an object
        self.issues: list[str] = []
        self.other = False  # whether the object has a key that is not in `known_keys`
        # Whether objects are nested inside the arguments. A missing closing brace may then be that of such an
        # object.
        self.nested = False


def json_block(scan: Scan, block: JsonBlock) -> Reading:
    """Reads one or more envelopes (see `Envelope`), or an array of them, and the closer.

    Returns False if there is no closer.
    """
    array = False
    calls = 0
    ready = True  # a call may begin here
    while True:
        char = yield from peek(scan)
        if char == "{" and ready and not (calls and scan.at_call_limit):
            if not (yield from envelope_call(scan, block)):
                return False
            calls += 1
            ready = array or not block.separated
        elif char == "[" and not array and not calls:
            array = True
            scan.position += 1
        elif not calls or not char:
            return False
        elif char in block.separators or (char == "}" and ready):
            scan.position += 1
            ready = True
        elif char == "]" and array:
            array = False
            scan.position += 1
            scan.checkpoint()
        else:
            return bool(block.closers) and (yield from literal(scan, block.closers)) is not None


def envelope_call(scan: Scan, block: JsonBlock) -> Reading:
    """Tries to read one envelope (see `Envelope`). Returns whether a call was read."""
    envelope = Envelope()
    read = yield from members(scan, block, envelope, nested=False)
    if read == CLOSED:
        return scan.candidate_open
    if envelope.name is None or (not envelope.complete and (read != OK or block.exact or envelope.other)):
        return False
    if scan.call is None:
        scan.open_call(envelope.name, hold=block.exact)
        for part in envelope.parts:
            scan.write(part)
    call = scan.open
    call.issues += envelope.issues
    if read == CUT and envelope.nested:  # the missing brace may belong to the arguments
        return scan.close_call("truncated")
    if read == FAIL:
        call.issues.append("unclosed_envelope")
    followed = scan.buffer.startswith(("<", "]"), scan.position)
    only_brace_missing = followed and not block.exact and not envelope.nested
    if (read == FAIL and not only_brace_missing) or not (yield from is_complete(scan)):
        yield from give_up(scan, (*block.closers, "\n"))
        return scan.candidate_open
    return scan.close_call("ok" if envelope.object else "invalid")


def members(scan: Scan, block: JsonBlock, envelope: Envelope, nested: bool) -> Reading:
    """Reads the members of the object that begins here.

    Returns how the step ended: `OK`, `CUT`, `FAIL` or `CLOSED` (see `reading.py`). `nested`: the object is
    the value of the key `function`.
    """
    scan.position += 1
    char = yield from peek(scan)
    while char != "}":
        if not char:
            return CUT
        read = yield from member(scan, block, envelope, nested)
        if read != OK:
            return read
        char = yield from peek(scan)
        if char == ",":
            scan.position += 1
            char = yield from peek(scan)
        elif char and char != "}":
            return FAIL
    scan.position += 1
    return OK


def member(scan: Scan, block: JsonBlock, envelope: Envelope, nested: bool) -> Reading:
    """Reads one key and its value.

    Returns how the step ended: `OK`, `CUT`, `FAIL` or `CLOSED` (see `reading.py`).
    """
    key = yield from string(scan, bare=True)
    if key is None:
        return CUT if scan.ended else FAIL
    colon = yield from peek(scan)
    if colon != ":":
        return FAIL if colon else CUT
    scan.position += 1
    char = yield from peek(scan)
    if not char:
        return CUT
    if block.exact and key not in block.known_keys:
        return FAIL
    if key in block.name_keys:
        name = yield from string(scan)
        if not isinstance(name, str) or envelope.name is not None:
            return FAIL
        envelope.name = name
        return OK
    if key in block.arguments_keys:
        return (yield from arguments(scan, block, envelope, char))
    if key == "function" and char == "{" and not nested:
        return (yield from members(scan, block, envelope, nested=True))
    if key not in block.known_keys:
        if envelope.complete and _may_be_argument(scan, envelope, key):
            return FAIL
        envelope.other = True
    return (yield from json_value(scan, JsonFlow(), discard))  # a value that is not part of the call


def _may_be_argument(scan: Scan, envelope: Envelope, key: str) -> bool:
    """Whether a key that comes after the arguments may belong to the arguments.

    Models sometimes close the arguments too early, with an extra brace.
    """
    tool = scan.registry.resolve(envelope.name or "")
    properties = tool.parameters.get("properties") if tool is not None else None
    return not properties or not isinstance(properties, Mapping) or key in properties


def arguments(scan: Scan, block: JsonBlock, envelope: Envelope, char: str) -> Reading:
    """Reads the arguments of a call: an object, a string that contains JSON, or null if there are none.

    Returns how the step ended: `OK`, `CUT`, `FAIL` or `CLOSED` (see `reading.py`). `char`: the first
    character of the value.
    """
    if envelope.complete:
        return FAIL
    if envelope.name is not None:
        scan.open_call(envelope.name, hold=block.exact)
    in_string = char == '"'
    scan.position += in_string
    flow: JsonFlow | StringFlow = StringFlow() if in_string else JsonFlow()
    emit = scan.write if scan.call is not None else envelope.parts.append
    read = yield from json_value(scan, flow, discard if char in "nN" else emit)
    if read == FAIL and scan.call is not None:
        return (yield from give_up(scan, ends(block, *block.closers)))
    if read == CUT and scan.call is not None:
        return cut_off(scan, with_rest=char not in "nN")
    if read != OK:
        return read
    envelope.complete = True
    envelope.issues += flow.issues
    if isinstance(flow, JsonFlow):
        envelope.nested, envelope.object = flow.nested, char in "{nN"
    else:
        envelope.object = not flow.bad and flow.first in ("", "{")
    return OK


def ends(block: JsonBlock | HeadedBlock, *closers: str) -> tuple[str, ...]:
    """Returns the texts that end the arguments if the arguments are not valid JSON."""
    return (*closers, "\n") if block.open_ended or not closers else closers


# --- arguments in a string ---


class StringFlow:
    """Reads arguments that are a JSON string with JSON inside.

    Begins after the opening quote, removes one level of escapes, and passes the text to a `JsonFlow`.
    """

    failed = False

    def __init__(self) -> None:
        self.inner = JsonFlow()
        self.out: list[str] = []
        self.done = False
        self.bad = False  # whether the string is found not to contain JSON; from then on it passes unchanged
        self.first = ""  # the first character that is not white space
        self._rest = ""
        self._decoder = StringDecoder()

    @property
    def issues(self) -> list[str]:
        return self.inner.issues

    def take(self) -> str:
        """Returns the strict JSON that was written since the last `take`.

        Half a surrogate pair is written as an escape.
        """
        text = "".join(self.out)
        self.out.clear()
        return SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text)

    def run(self, buffer: str, position: int) -> int:
        if self.done:
            return position
        text, stop = self._decoder.run(buffer, position)
        self._pass(text)
        self.done = self._decoder.done
        if self.done:
            self._settle()
        return stop

    def _pass(self, text: str) -> None:
        text = self._rest + text
        if self.bad:
            self.out.append(text)
            return
        if not self.first:
            text = text.lstrip(SPACE)  # a string of only white space means no arguments
        position = 0 if self.inner.done else self.inner.run(text, 0)
        self.out.extend(self.inner.out)
        self.inner.out.clear()
        self.first = self.first or text.lstrip(SPACE)[:1]
        self._rest = text[position:]
        if self.inner.failed or (self.inner.done and self._rest.strip(SPACE)):
            self.bad = True
            self.out.append(self._rest)
            self._rest = ""

    def _settle(self) -> None:
        self.inner.finish()
        self.out.extend(self.inner.out)
        self.inner.out.clear()
        if self.first and not self.inner.done:
            self.bad = True
            self.out.append(self._rest)


# --- headed blocks ---
#
# The name is in a header of markers, at most `LONGEST` long; the arguments follow as JSON, and then closers
# that may be missing.

_FENCE = "```"


def headed_block(scan: Scan, block: HeadedBlock) -> Reading:
    """Reads calls one after another.

    Always returns False: all closers are optional, so the block ends after the last call or closer.
    """
    calls = 0
    while (yield from peek(scan)):
        if calls and scan.at_call_limit:
            break
        opened = (yield from literal(scan, block.call_openers)) if block.call_openers else None
        if (calls and opened is None) or not (yield from headed_call(scan, block)):
            break
        calls += 1
    return False


def headed_call(scan: Scan, block: HeadedBlock) -> Reading:
    """Tries to read one call and its closers. Returns whether a call was read."""
    text = yield from header(scan, block)
    char = yield from peek(scan)
    found = match_header(scan, block, text)
    if found is None:
        return False
    if char:
        if char != "{" and (yield from literal(scan, closers(block, text))) is None:
            return False
    elif not (scan.reason == "length" and text.rstrip().endswith(block.marks)) or (
        scan.registry.resolve(found["name"]) is None
    ):
        return False
    scan.open_call(found["name"], id=found.groupdict().get("id") or None)
    if char != "{":  # no arguments, or the text ended before them
        is_call = scan.close_call("ok" if char else "truncated")
    else:
        closing = (block.call_close, *block.wrapper_closers)
        read = yield from object_arguments(scan, ends(block, *closing))
        is_call = yield from end_call(scan, read, closing)
    if is_call:
        yield from skip_closers(scan, closers(block, text))
    return is_call


def header(scan: Scan, block: HeadedBlock) -> Reading:
    """Consumes the words and markers of a header and returns them; "" if they exceed `LONGEST`."""
    text = ""
    marks = block.marks
    while len(text) <= LONGEST:
        if not (yield from more(scan)):
            return text
        words = block.words.match(scan.buffer, scan.position, scan.position + LONGEST + 1 - len(text))
        if words is not None:
            text += words.group()
            scan.position = words.end()
            continue
        found = yield from literal(scan, marks)
        if found is None:
            return text
        text += found
        marks = tuple(mark for mark in marks if mark != found)
    return ""


def match_header(scan: Scan, block: HeadedBlock, text: str) -> re.Match[str] | None:
    """Returns the match of a header, or None if no pattern matches.

    Prefers a match with the name of a known tool, because names may contain separators.
    """
    readings = [found for pattern in block.headers if (found := pattern.fullmatch(text))]
    known = [found for found in readings if scan.registry.resolve(found["name"]) is not None]
    return next(iter(known or readings), None)


def closers(block: HeadedBlock, header: str) -> tuple[str, ...]:
    """Returns the closers that may follow the arguments.

    If the header opened a code fence, the end of the fence is one of them.
    """
    return (*((_FENCE,) if _FENCE in header else ()), block.call_close, *block.wrapper_closers)


def skip_closers(scan: Scan, left: tuple[str, ...]) -> Reading:
    while left:
        yield from peek(scan)
        found = yield from literal(scan, left)
        if found is None:
            return
        scan.checkpoint()
        left = tuple(closer for closer in left if closer != found)

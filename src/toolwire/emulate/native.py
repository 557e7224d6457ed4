"""Repairs the arguments of a server's own tool calls, so that they are one JSON object.

`NativeArguments` takes chunks of any size and returns what can be sent. A valid JSON object passes verbatim.
These deviations are repaired; the text after the arrow is sent instead:

    null, None                            → {}
    {} or null, then the arguments        → the arguments
    a JSON string that contains an object → the object
    mistakes that `JsonFlow` repairs      → strict JSON

Anything else passes unchanged. Text is sent at once, except for:

- `{` at the beginning: held back until the next character shows whether the object is empty
- an empty object: held back until more text arrives or the call ends
- a comma: held back until the next token
- a JSON string: held back until it is complete

Text that was sent is never changed later, and it makes no difference how the text is cut into chunks (laws 6
and 4 in docs/architecture.md).
"""

from __future__ import annotations

import json

from toolwire.emulate.arguments import JsonFlow

NULL = "null_arguments"
EMPTY_FIRST = "empty_object_first"
ENCODED = "encoded_twice"
MOST_LAYERS = 3
"""The maximum number of times that arguments are decoded, if they are a JSON string in a JSON string."""
MOST_EMPTY = 8
"""The maximum number of empty values (`{}` or null) before the arguments."""
_NULLS = ("null", "None")
_FAILED = ("malformed_json", "too_deep")

UNDECIDED, STRING, OBJECT, RAW = range(4)


class NativeArguments:
    """Repairs the arguments of one call. `feed` and `finish` return what can be sent."""

    def __init__(self, layers: int = MOST_LAYERS) -> None:
        self._state = UNDECIDED
        self._held: list[str] = []
        self._flow = JsonFlow()
        self._rest = ""
        self._issues: list[str] = []
        self._layers = layers
        self.cut = False
        """After `finish`: whether the arguments broke off before they were complete."""

    @property
    def issues(self) -> tuple[str, ...]:
        """The repairs that were made; empty if the output is the same as the input."""
        return (*self._issues, *(issue for issue in self._flow.issues if issue not in _FAILED))

    @property
    def hollow(self) -> bool:
        """Whether nothing but empty values (`{}` or null) has arrived so far."""
        return self._state == UNDECIDED

    def feed(self, text: str) -> str:
        if self._state == OBJECT:
            return self._run(text)
        if self._state == RAW:
            return text
        self._held.append(text)
        if self._state == STRING or not text or text.isspace():
            return ""
        held = "".join(self._held)
        self._held = [held]
        return self._decide(held)

    def finish(self) -> str:
        """Ends the arguments and returns what was held back."""
        state, self._state = self._state, RAW
        if state == OBJECT:
            self.cut = True
            return self._flow.flush() + self._rest
        held = "".join(self._held)
        self._held = []
        if state == STRING:
            return self._decode_string(held)
        return self._finish_empty(held) if state == UNDECIDED else ""

    def _decide(self, held: str) -> str:
        """Decides by the first characters how to read the arguments.

        Drops empty values that come before the arguments. Returns what can be sent.
        """
        text = first = held.lstrip()
        for _ in range(MOST_EMPTY):
            if text[0] == '"':
                self._state = STRING
                return ""
            size = _empty_size(text)
            if size is None:
                return ""  # undecided
            rest = text[size:].lstrip()
            if not rest:
                return ""
            if not size or rest[0] not in '{"nN':
                break
            text = rest
        if size or text[0] != "{":
            self._state = RAW
            return held
        self._state, self._held = OBJECT, []
        if text is first:
            return self._run(held)
        self._issues.append(EMPTY_FIRST)
        return self._run(text)

    def _run(self, text: str) -> str:
        buffer, flow = self._rest + text if self._rest else text, self._flow
        stop = flow.run(buffer, 0)
        self._rest = buffer[stop:]
        if not (flow.done or flow.failed):
            return flow.take()
        self._state = RAW  # text after the object, or from the error on, passes unchanged
        return flow.take() + self._rest

    def _finish_empty(self, held: str) -> str:
        """Returns what to send if all the text was empty values, or ended inside an empty value."""
        text = held.strip()
        while (size := _empty_size(text)) and (rest := text[size:].lstrip()):
            text = rest
        if text in _NULLS:
            self._issues.append(NULL)
            return "{}"
        if size is None:
            self.cut = bool(text)
            return held
        if text != held.strip():
            self._issues.append(EMPTY_FIRST)
            return text
        return held

    def _decode_string(self, held: str) -> str:
        """Returns the object inside a JSON string; if the string contains no object, returns it unchanged."""
        text = held[held.index('"') :].strip()
        try:
            inner = json.loads(text)
        except (ValueError, RecursionError) as error:
            self.cut = "Unterminated" in str(error)
            return held
        if not inner.strip():
            inner = "{}"
        if not self._layers or not _is_object(opened := normalized(inner, self._layers - 1)):
            return held
        self._issues.append(ENCODED)
        return opened


def _empty_size(text: str) -> int | None:
    """Returns the length of the empty value (`{}` or null) that the text begins with.

    Returns 0 if there is none, and None if more text is needed to decide.
    """
    if text[:1] == "{":
        inner = text[1:].lstrip()
        return None if not inner else len(text) - len(inner) + 1 if inner[0] == "}" else 0
    if any(text.startswith(word) for word in _NULLS):
        return 4
    return None if any(word.startswith(text) for word in _NULLS) else 0


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def normalized(arguments: str, layers: int = MOST_LAYERS) -> str:
    """Returns complete arguments after repairing them."""
    flow = NativeArguments(layers)
    return flow.feed(arguments) + flow.finish()

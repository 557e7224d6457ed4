r"""The language of the scripted backend: one step per line, `---` between turns.

    # a comment
    think The person wants the weather.
    say Let me look.
    call get_weather {"city": "Paris"}
    ---
    chunk 3
    say It is {result}.
    usage 9 5

The first part answers the first turn, the second part the next turn (after the tool's result), and so on. The
last part answers all further turns. A text in double quotes is a JSON string: `say "two\nlines"`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from toolwire.core.errors import KINDS


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `word` is a key of `STEPS`. It decides what the other fields mean."""

    word: str
    text: str = ""
    name: str = ""
    number: float = 0
    second: int = 0


class ScriptError(ValueError):
    """Raised for an invalid script. The message is one line that says where and why."""


_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s)?\Z")
_FINISHES = ("stop", "length", "content_filter", "tool_calls", "context_window")


def _text(word: str, rest: str) -> Step:
    if rest.startswith('"'):
        try:
            value = json.loads(rest)
        except ValueError as error:
            raise ScriptError(f"{word}: not a JSON string: {error}") from None
        return Step(word, str(value))
    return Step(word, rest)


def _call(word: str, rest: str) -> Step:
    name, _, arguments = rest.partition(" ")
    if not name:
        raise ScriptError(f"{word}: the name of a tool is missing")
    return Step(word, _text(word, arguments.strip()).text if word == "custom" else arguments.strip(), name)


def _pause(word: str, rest: str) -> Step:
    found = _DURATION.match(rest)
    if found is None:
        raise ScriptError(f"{word}: expected a duration such as 50ms or 2s, got {rest!r}")
    return Step(word, number=float(found[1]) / (1000 if found[2] == "ms" else 1))


def _count(word: str, rest: str) -> Step:
    if not rest.isdigit():
        raise ScriptError(f"{word}: expected a whole number, got {rest!r}")
    return Step(word, number=int(rest))


def _usage(word: str, rest: str) -> Step:
    numbers = rest.split()
    if len(numbers) != 2 or not all(number.isdigit() for number in numbers):
        raise ScriptError(f"{word}: expected two whole numbers, input and output tokens")
    return Step(word, number=int(numbers[0]), second=int(numbers[1]))


def _finish(word: str, rest: str) -> Step:
    reason, _, sequence = rest.partition(" ")
    if reason not in _FINISHES or (sequence and reason != "stop"):
        raise ScriptError(f"{word}: expected one of {', '.join(_FINISHES)}, got {rest!r}")
    return Step(word, reason, sequence.strip())


def _fail(word: str, rest: str) -> Step:
    kind, _, message = rest.partition(" ")
    if kind not in KINDS:
        raise ScriptError(f"{word}: unknown kind {kind!r}; known: {', '.join(sorted(KINDS))}")
    return Step(word, message.strip() or "The script says so.", kind)


STEPS: dict[str, Callable[[str, str], Step]] = {
    "say": _text,  # text of the answer; {result}, {user} and {model} are replaced
    "raw": _text,  # text of the answer, verbatim
    "think": _text,  # raw thoughts
    "summarize": _text,  # a summary of thoughts
    "sign": _text,  # the signature of the thought before it
    "redact": _text,  # a thought that only its provider can read
    "refuse": _text,  # a refusal
    "call": _call,  # call NAME JSON: the arguments verbatim, even if they are not valid JSON
    "custom": _call,  # custom NAME TEXT: a call of a custom tool
    "pause": _pause,  # pause 50ms
    "chunk": _count,  # further text is sent in chunks of this many characters; 0: not cut into chunks
    "usage": _usage,  # usage INPUT OUTPUT
    "finish": _finish,  # ends the turn with this reason; finish stop SEQUENCE names a stop sequence
    "fail": _fail,  # fail KIND MESSAGE: ends the turn with an error
    "cut": lambda word, rest: Step(word),  # ends without a finish event, like a lost connection
    "hang": lambda word, rest: Step(word),  # never ends
}


def parse_script(script: str) -> list[list[Step]]:
    """Parses a script. Returns its turns, each as a list of steps."""
    turns: list[list[Step]] = [[]]
    for number, line in enumerate(script.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if set(line) == {"-"} and len(line) >= 3:
            turns.append([])
            continue
        word, _, rest = line.partition(" ")
        if word not in STEPS:
            raise ScriptError(f"line {number}: unknown word {word!r}; known: {', '.join(STEPS)}")
        try:
            turns[-1].append(STEPS[word](word, rest.strip()))
        except ScriptError as error:
            raise ScriptError(f"line {number}: {error}") from None
    return turns

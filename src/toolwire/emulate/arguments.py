"""Reads JSON as models write it and turns it into strict JSON, in one pass.

`JsonFlow` takes chunks of any size and returns strict JSON. Strict input passes verbatim (laws 6 and 7 in
docs/architecture.md). Common mistakes are repaired on the way, without changing anything that was already
sent:

    control character in a string     escaped                  single-quoted string      double-quoted
    unknown escape, e.g. \\d           the backslash doubled     unquoted key              quoted
    trailing comma                    left out                 True, False, None         true, false, null

`issues` names each repair. Any other mistake, such as a repeated key in one object, is an error: `JsonFlow`
stops at that character, no matter where the chunks were cut (law 4). It uses no recursion; `MAX_DEPTH` limits
the nesting.
"""

from __future__ import annotations

import json
import re
from typing import Any

MAX_DEPTH = 512

SPACE = " \t\r\n"
_WHITE = re.compile(f"[{SPACE}]*")
_DOUBLE_RUN = re.compile(r'[^"\\\x00-\x1f]*')
_SINGLE_RUN = re.compile(r"[^'\"\\\x00-\x1f]*")
_WORD = re.compile(r"[A-Za-z0-9_$]*")
_DIGITS = re.compile(r"[0-9]*")
_HEX = frozenset("0123456789abcdefABCDEF")
_ESCAPES = frozenset('"\\/bfnrt')
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_WORD_PREFIXES = frozenset(word[:size] for word in _WORDS for size in range(1, len(word) + 1))

# What `JsonFlow` expects next. Strings, words and numbers are states, because a chunk may end inside them.
VALUE, FIRST_VALUE, KEY, FIRST_KEY, COLON, MORE, STRING, WORD, KEY_WORD, NUMBER, DONE, FAILED = range(12)

# Numbers: state → (whether more digits may follow, whether the number may end here, next state by character).
_NUMBER: dict[str, tuple[bool, bool, dict[str, str]]] = {
    "-": (False, False, {**dict.fromkeys("123456789", "int"), "0": "zero"}),
    "zero": (False, True, {".": "dot", "e": "exp", "E": "exp"}),
    "int": (True, True, {".": "dot", "e": "exp", "E": "exp"}),
    "dot": (False, False, dict.fromkeys("0123456789", "frac")),
    "frac": (True, True, {"e": "exp", "E": "exp"}),
    "exp": (False, False, {"+": "sign", "-": "sign", **dict.fromkeys("0123456789", "digits")}),
    "sign": (False, False, dict.fromkeys("0123456789", "digits")),
    "digits": (True, True, {}),
}


class JsonFlow:
    """Reads one JSON value that arrives in chunks, and writes it as strict JSON.

    Pass each chunk to `run`; `take` returns the output. `done`: the value is complete. `failed`: the
    text is not JSON, even after repair.
    """

    def __init__(self) -> None:
        self.state = VALUE
        self.out: list[str] = []
        self.issues: list[str] = []
        self.nested = False
        """Whether an object is nested inside the value."""
        self._stack: list[str] = []
        self._quote = '"'
        self._word = ""
        self._number = ""
        # A comma and the white space after it, until the next token shows whether the comma is trailing.
        self._held: list[str] = []
        self._mark = 0  # the buffer up to here has been written
        self._in_key = False  # whether the string being read is a key
        self._keys: list[set[str]] = []  # the keys of every open object so far
        self._key: list[str] = []  # the parts of the current key that were in earlier chunks
        self._key_from = 0  # where the part of the current key in this chunk begins

    @property
    def done(self) -> bool:
        return self.state == DONE

    @property
    def failed(self) -> bool:
        return self.state == FAILED

    def take(self) -> str:
        """Returns the strict JSON that was written since the last `take`."""
        text = self.out[0] if len(self.out) == 1 else "".join(self.out)
        self.out.clear()
        return text

    def run(self, buffer: str, position: int) -> int:
        """Consumes `buffer` from `position` on, up to the end of the value or the first error.

        Returns the position where it stopped.
        """
        end = len(buffer)
        self._key_from = position
        in_value = self.state == STRING and not self._in_key and self._quote == '"'
        if in_value and _DOUBLE_RUN.match(buffer, position).end() == end:  # type: ignore[union-attr]
            if position < end:
                self.out.append(buffer[position:] if position else buffer)
            return end  # the whole chunk is inside a long string, as most chunks are
        self._mark = position
        while position < end:
            state = self.state
            if state == STRING:
                position = self._string(buffer, position, end)
                if position < 0:  # the chunk ends inside an escape: wait for the rest
                    position = ~position
                    break
                continue
            if state >= DONE:
                break
            if state == NUMBER:
                position = self._digits(buffer, position, end)
                continue
            if state == WORD or state == KEY_WORD:
                position = self._letters(buffer, position, end)
                continue
            if buffer[position] in SPACE:
                position = _WHITE.match(buffer, position).end()  # type: ignore[union-attr]
                continue
            position = self._token(buffer, position, state)
        if self._in_key and self.state in (STRING, KEY_WORD):
            self._key.append(buffer[self._key_from : position])
        if self.state in (WORD, KEY_WORD):
            self._mark = position  # a word is sent when it is complete
        elif self._held and self.state in (KEY, VALUE) and position > self._mark:
            self._held.append(buffer[self._mark : position])
            self._mark = position
        self._flush(buffer, position)
        return position

    def finish(self) -> None:
        """Marks the end of the text. This completes a number or a word at the top level."""
        if self.state == NUMBER and not self._stack and _NUMBER[self._number][1]:
            self.state = DONE
        elif self.state == WORD and not self._stack:
            self._end_word(0)

    def flush(self) -> str:
        """Marks the end of the text and returns what was held back: a comma, or part of a word."""
        self._release()
        if self.state == WORD:
            self.out.append(self._word)
        return self.take()

    # --- one token ---

    def _token(self, buffer: str, position: int, state: int) -> int:
        char = buffer[position]
        if state == MORE:
            return self._more(buffer, position, char)
        if state == COLON:
            if char == ":":
                self.state = VALUE
                return position + 1
            return self._fail(position)
        if char in "}]" and (
            state == FIRST_KEY or state == FIRST_VALUE or (self._held and state in (KEY, VALUE))
        ):
            return self._close(buffer, position, char)
        self._release()
        if state == KEY or state == FIRST_KEY:
            return self._open_key(buffer, position, char)
        return self._value(buffer, position, char)

    def _open_key(self, buffer: str, position: int, char: str) -> int:
        self._in_key = True
        self._key.clear()
        self._key_from = position + (char in "\"'")
        if char == '"' or char == "'":
            return self._open_string(buffer, position, char)
        if char.isascii() and (char.isalpha() or char in "_$"):
            self._replace(buffer, position, '"', 0)
            self.note_repair("unquoted_key")
            self.state = KEY_WORD
            return position
        return self._fail(position)

    def _value(self, buffer: str, position: int, char: str) -> int:
        self._in_key = False
        if char == '"' or char == "'":
            return self._open_string(buffer, position, char)
        if char == "{" or char == "[":
            if len(self._stack) >= MAX_DEPTH:
                return self._fail(position, "too_deep")
            self.nested = self.nested or (char == "{" and bool(self._stack))
            self._stack.append("}" if char == "{" else "]")
            if char == "{":
                self._keys.append(set())
            self.state = FIRST_KEY if char == "{" else FIRST_VALUE
            return position + 1
        if char in "-0123456789":
            self._number = "-" if char == "-" else "zero" if char == "0" else "int"
            self.state = NUMBER
            return position + 1
        if char in "tfnTFN":
            self._flush(buffer, position)
            self._word = ""
            self.state = WORD
            return position
        return self._fail(position)

    def _more(self, buffer: str, position: int, char: str) -> int:
        if char == ",":
            self._flush(buffer, position)
            self._held = [","]
            self._mark = position + 1
            self.state = KEY if self._stack[-1] == "}" else VALUE
            return position + 1
        if char in "}]":
            return self._close(buffer, position, char)
        return self._fail(position)

    def _close(self, buffer: str, position: int, char: str) -> int:
        if self._stack[-1] != char:
            return self._fail(position)
        if self._held:  # [1, ]: drop the comma, keep the white space
            self.out.append("".join(self._held)[1:])
            self._held = []
            self.note_repair("trailing_comma")
        if self._stack.pop() == "}":
            self._keys.pop()
        self.state = MORE if self._stack else DONE
        return position + 1

    def _release(self) -> None:
        if self._held:
            self.out.extend(self._held)
            self._held = []

    # --- strings ---

    def _open_string(self, buffer: str, position: int, quote: str) -> int:
        self._quote = quote
        self.state = STRING
        if quote == "'":
            self._replace(buffer, position, '"', 1)
            self.note_repair("single_quotes")
        return position + 1

    def _string(self, buffer: str, position: int, end: int) -> int:
        """Continues to read inside a string and returns the new position.

        If the chunk ends inside an escape, returns `~start` instead, where `start` is the position of the
        escape.
        """
        run = _DOUBLE_RUN if self._quote == '"' else _SINGLE_RUN
        position = run.match(buffer, position).end()  # type: ignore[union-attr]
        if position == end:
            return position
        char = buffer[position]
        if char == self._quote:
            if self._in_key and not self._add_key(buffer, position):
                return self._fail(position, "duplicate_key")
            if char == "'":
                self._replace(buffer, position, '"', 1)
            self.state = COLON if self._in_key else MORE if self._stack else DONE
            return position + 1
        if char == "\\":
            return self._escape(buffer, position, end)
        if char == '"':  # inside single quotes
            self._replace(buffer, position, '\\"', 1)
            return position + 1
        self._replace(buffer, position, json.dumps(char)[1:-1], 1)
        self.note_repair("control_character")
        return position + 1

    def _add_key(self, buffer: str, position: int) -> bool:
        """Adds the key that ends at `position` to its object. Returns False if it is a repeated key.

        A repeated key makes the arguments ambiguous.
        """
        key = "".join(self._key) + buffer[self._key_from : position]
        if "\\" in key:
            try:
                key = json.loads(f'"{key}"')
            except ValueError:
                pass  # an escape that is repaired: compare the key as it was written
        keys = self._keys[-1]
        if key in keys:
            return False
        keys.add(key)
        return True

    def _escape(self, buffer: str, position: int, end: int) -> int:
        if position + 1 >= end:
            return ~position
        char = buffer[position + 1]
        if char == "u":
            stop = position + 2
            while stop < end and stop < position + 6 and buffer[stop] in _HEX:
                stop += 1
            if stop == position + 6:
                return stop
            if stop == end:
                return ~position
        elif char in _ESCAPES:
            return position + 2
        elif char == "'":
            self._replace(buffer, position, "'", 2)
            if self._quote == '"':
                self.note_repair("bad_escape")
            return position + 2
        self._replace(buffer, position, "\\\\", 1)
        self.note_repair("bad_escape")
        return position + 1

    # --- words and numbers ---

    def _letters(self, buffer: str, position: int, end: int) -> int:
        if self.state == KEY_WORD:
            stop = _WORD.match(buffer, position).end()  # type: ignore[union-attr]
            self.out.append(buffer[position:stop])
            self._mark = stop
            if stop < end:
                if not self._add_key(buffer, stop):
                    return self._fail(stop, "duplicate_key")
                self.out.append('"')
                self.state = COLON
            return stop
        while position < end and (self._word + buffer[position]) in _WORD_PREFIXES:
            self._word += buffer[position]
            position += 1
        self._mark = position
        return position if position == end else self._end_word(position)

    def _end_word(self, position: int) -> int:
        strict = _WORDS.get(self._word)
        self.out.append(strict or self._word)
        if strict is None:
            return self._fail(position)
        if strict != self._word:
            self.note_repair("python_literal")
        self.state = MORE if self._stack else DONE
        return position

    def _digits(self, buffer: str, position: int, end: int) -> int:
        run, may_end, following = _NUMBER[self._number]
        if run:
            position = _DIGITS.match(buffer, position).end()  # type: ignore[union-attr]
            if position == end:
                return position
        following_state = following.get(buffer[position])
        if following_state is not None:
            self._number = following_state
            return position + 1
        if not may_end or buffer[position] in "0123456789":
            return self._fail(position)
        self.state = MORE if self._stack else DONE
        return position

    # --- output ---

    def _flush(self, buffer: str, position: int) -> None:
        if position > self._mark:
            self.out.append(buffer[self._mark : position])
        self._mark = position

    def _replace(self, buffer: str, position: int, by: str, count: int) -> None:
        """Writes the text `by` in place of the `count` characters at `position`."""
        self._flush(buffer, position)
        self.out.append(by)
        self._mark = position + count

    def note_repair(self, issue: str) -> None:
        """Adds a repair to `issues`, unless it is already there."""
        if issue not in self.issues:
            self.issues.append(issue)

    def _fail(self, position: int, issue: str = "malformed_json") -> int:
        self._release()
        self.state = FAILED
        self.note_repair(issue)
        return position


def load_object(arguments: str) -> dict[str, Any] | None:
    """Returns the arguments as a dict, or None if they are not a JSON object."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


# --- the inside of a JSON string ---

_BODY = re.compile(r'(?:[^"\\]+|\\u(?![0-9a-fA-F]{0,3}\Z)|\\[^u])*', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_UNESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/", "'": "'"}
SURROGATE = re.compile("[\ud800-\udfff]")


class StringDecoder:
    """Decodes the inside of a JSON string in chunks, up to its closing quote."""

    def __init__(self) -> None:
        self.done = False
        self._high = ""  # the first half of a surrogate pair

    def run(self, buffer: str, position: int) -> tuple[str, int]:
        """Decodes `buffer` from `position` on. Returns the text and the position where decoding stopped.

        Decoding stops after the closing quote, or before an escape that is not complete yet.
        """
        stop = _BODY.match(buffer, position).end()  # type: ignore[union-attr]
        text = self._high + _ESCAPE.sub(_unescape, buffer[position:stop])
        self.done, self._high = buffer.startswith('"', stop), ""
        if not self.done and "\ud800" <= text[-1:] <= "\udbff":
            text, self._high = text[:-1], text[-1]
        if SURROGATE.search(text):  # joins surrogate pairs; half a pair stays as it is
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return text, stop + self.done


def _unescape(escape: re.Match[str]) -> str:
    code, char = escape.groups()
    return chr(int(code, 16)) if code else _UNESCAPED.get(char, escape.group())

"""Reads and writes a conversation as a Markdown note, in the format of the plugin ChatGPT MD.

    ---
    model: qwen
    system_commands: ['I am a helpful assistant.']
    temperature: 0.3
    ---
    A question.

    <hr class="__chatgpt_plugin">

    ### role::assistant<span style="font-size: small;"> (qwen)</span>

    The answer.

    <hr class="__chatgpt_plugin">

    ### role::user

When a note is read, each `<hr>` of this class begins a message. So does each heading `role::…` that has no
`<hr>` before it. Text without a role is the user's. Text between `=begin-chatgpt-md-comment` and
`=end-chatgpt-md-comment` is a comment, which is not sent to the model. When a note is written, tool calls
become comments, and the model's answers are escaped, so that no part of them begins a message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from toolwire.core.display import clean, prose
from toolwire.surfaces import cards
from toolwire.vault.frontmatter import Value, frontmatter, texts

CLASS = "__chatgpt_plugin"
RULE = f'<hr class="{CLASS}">'
HEADING = 3
OPTIONS = ("temperature", "top_p", "max_tokens", "presence_penalty", "frequency_penalty", "seed")
"""Properties of a note that are sent to the model as options."""
Role = Literal["user", "assistant", "system"]
_ROLES: Mapping[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}

_RULE_LINE = re.compile(r"""[ ]{0,3}<hr class=["']__chatgpt_plugin["']\s*/?>\s*""")
_ANY_RULE = re.compile(r"[ ]{0,3}(?:-{3,}|\*{3,}|_{3,}|<hr[^>]*>)\s*")
_ROLE_LINE = re.compile(r"[ ]{0,3}(#{1,6}[ \t]+)?role::[ \t]*([A-Za-z]+)(.*)")
_COMMENT = ("=begin-chatgpt-md-comment", "=end-chatgpt-md-comment")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_MARKS = ("role::", "=begin-chatgpt-md-comment", "=end-chatgpt-md-comment")


@dataclass(frozen=True, slots=True)
class NoteConversation:
    """The conversation in a note.

    `messages` contains no empty messages. `heading` is the level of the headings with roles. `open` is True
    if the last message is the user's, so that a model can answer it.
    """

    model: str | None
    system: tuple[str, ...]
    options: Mapping[str, Any]
    messages: tuple[dict[str, Any], ...]
    heading: int = HEADING
    open: bool = True
    properties: Mapping[str, Value] = field(default_factory=dict)

    def history(self) -> list[dict[str, Any]]:
        return [*({"role": "system", "content": text} for text in self.system), *self.messages]


def parse(text: str) -> NoteConversation:
    """Parses a note. A text without `<hr>` and `role::` is one message of the user."""
    text = text.replace("\r\n", "\n").removeprefix("\ufeff")
    head = frontmatter(text)
    sections, heading = _sections(text[head.end :])
    messages: list[dict[str, Any]] = []
    for role, written in sections:
        content = _without_comments(written).strip()
        if content:
            messages.append({"role": role, "content": content})
    options = {
        key: value
        for key in OPTIONS
        if isinstance(value := head.properties.get(key), int | float) and not isinstance(value, bool)
    }
    model = head.properties.get("model")
    is_open = bool(messages) and messages[-1]["role"] == "user"
    system = tuple(texts(head.properties.get("system_commands")))
    return NoteConversation(
        str(model) if model else None, system, options, tuple(messages), heading, is_open, head.properties
    )


def _sections(body: str) -> tuple[list[tuple[Role, str]], int]:
    """Returns the messages in order, as (role, text), and the level of their headings."""
    out: list[tuple[Role, list[str]]] = [("user", [])]
    heading, fence, after_rule = HEADING, "", False
    for line in body.split("\n"):
        if _RULE_LINE.fullmatch(
            line
        ):  # in a code fence too, because an interrupted answer may have left one open
            out.append(("user", []))
            fence, after_rule = "", True
            continue
        fence = _fence(fence, line)
        role = None if fence else _ROLE_LINE.fullmatch(line)
        if role is not None and (role[1] or after_rule) and role[2].lower() in _ROLES:
            _without_rule(out[-1][1])
            out.append((_ROLES[role[2].lower()], []))
            heading, after_rule = len((role[1] or "").strip()), False
            continue
        after_rule = bool(_ANY_RULE.fullmatch(line)) or (after_rule and not line.strip())
        out[-1][1].append(line)
    return [(role_name, "\n".join(lines)) for role_name, lines in out], heading


def _without_comments(text: str) -> str:
    out, place = [], 0
    while (begin := text.find(_COMMENT[0], place)) >= 0 and (end := text.find(_COMMENT[1], begin)) >= 0:
        out.append(text[place:begin])
        place = end + len(_COMMENT[1])
    return "".join([*out, text[place:]])


def _without_rule(lines: list[str]) -> None:
    """Removes a horizontal rule at the end of a message, because it belongs to the next heading."""
    while lines and not lines[-1].strip():
        lines.pop()
    if lines and _ANY_RULE.fullmatch(lines[-1]):
        lines.pop()


def _fence(open: str, line: str) -> str:
    """Returns the marker of the code fence that is open after this line; "" if none is open.

    `open` is the marker of the fence that was open before the line.
    """
    found = _FENCE.match(line)
    if found is None:
        return open
    if not open:
        return found[1]
    return "" if line.strip().startswith(open) and not line.strip().strip(open[0]) else open


# --- writing ---


def header(role: Role, level: int = HEADING, model: str = "") -> str:
    """Returns the text with which a message begins: a rule and a heading with the role."""
    label = f'<span style="font-size: small;"> ({_harmless(model)})</span>' if model else ""
    return f"\n\n{RULE}\n\n{'#' * level + ' ' if level else ''}role::{role}{label}\n\n"


def _harmless(name: str) -> str:
    return re.sub(r"[^\w./:@+-]", "_", clean(name))[:100]


class Guard:
    """Escapes a model's text, so that no part of it begins a message or a comment in a note.

    Neither `parse` nor the plugin ChatGPT MD finds a marker of a message or comment in the escaped text.
    """

    def __init__(self) -> None:
        self._held = ""
        self._at_start = True

    def feed(self, text: str) -> str:
        """Returns the text that can be written now. Holds back its end if that could begin a marker."""
        self._held += prose(text.replace("\r", ""))
        keep = len(self._held)
        start = self._held.rfind("\n") + 1
        if (start or self._at_start) and self._could_be_mark(self._held[start:]):
            keep = start
        keep = min(keep, len(self._held) - _overlap(self._held, CLASS))
        ready, self._held = self._held[:keep], self._held[keep:]
        return self._write(ready)

    def finish(self) -> str:
        """Returns the text that was held back. Text that is fed after this begins a new line."""
        ready, self._held = self._held, ""
        written = self._write(ready)
        self._at_start = True
        return written

    def _write(self, text: str) -> str:
        if not text:
            return ""
        lines = text.replace(CLASS, CLASS.strip("_")).split("\n")
        for place, line in enumerate(lines):
            if (place or self._at_start) and _bare(line).startswith(_MARKS):
                lines[place] = "\\" + line
        self._at_start = not lines[-1]
        return "\n".join(lines)

    def _could_be_mark(self, line: str) -> bool:
        bare = _bare(line)
        return any(mark.startswith(bare) for mark in _MARKS)


def _bare(line: str) -> str:
    return line.lstrip(" \t>#").lower()


def _overlap(text: str, mark: str) -> int:
    """Returns how many characters at the end of `text` are the beginning of `mark`."""
    return next(
        (size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0
    )


def render(
    messages: Sequence[Mapping[str, Any]], model: str, edited: Mapping[str, cards.Edited] | None = None
) -> str:
    """Returns a conversation as a new note. Tool calls become comments; their results are left out.

    `edited`: by call id, the calls whose arguments a person has edited.
    """
    quoted = "'" + _harmless(model) + "'"
    out, first = [f"---\nmodel: {quoted}\n---\n"], True
    for message in messages:
        role, content = message["role"], message.get("content")
        calls = message.get("tool_calls") or ()
        if role not in ("user", "assistant") or not (content or calls):
            continue
        if not (first and role == "user"):
            out.append(header(role, model=model if role == "assistant" else ""))
        guard = Guard()
        parts = [guard.feed(str(content)) + guard.finish()] if content else []
        parts += [_comment(call["function"], (edited or {}).get(call["id"])) for call in calls]
        out.append("\n\n".join(parts))
        first = False
    return "".join(out) + header("user")


def _comment(function: Mapping[str, str], edited: cards.Edited | None) -> str:
    """Returns a call as a comment with its arguments. Values that a person replaced are struck out."""
    lines = [f"Tool call: {_harmless(function['name'])}"]
    for name, asked, ran in cards.changes(function["arguments"], edited):
        values = [f"~~{_in_comment(asked)}~~"] if asked is not None and asked != ran else []
        values += [_in_comment(ran)] if ran is not None else []
        lines.append(f"- {_in_comment(name)}: {' '.join(values)}".rstrip())
    return "\n".join([_COMMENT[0], *lines, _COMMENT[1]])


def _in_comment(text: str) -> str:
    """Returns the text on one line, without anything that would end the comment or the message."""
    flat = clean(text).replace("\n", "\\n").replace(CLASS, CLASS.strip("_"))
    return flat.replace("chatgpt-md-comment", "chatgpt-md comment").replace("~~", "~ ~")

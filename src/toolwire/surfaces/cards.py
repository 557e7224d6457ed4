"""Approval requests as rows of (style, text), for a terminal or as plain text.

A card shows the model, the tool, its arguments, and what would be shared or changed. All of this is untrusted
text, so `core/display.py` removes control characters from it. The module has no side effects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from toolwire.core.display import LONGEST, as_json, clean, counted, one_line, size
from toolwire.tools.contract import (
    FOREIGN,
    Approval,
    Outcome,
    Preview,
    Tool,
    ToolCall,
    Touched,
    place_of,
    privacy_note,
    problem_note,
)

Style = Literal["title", "label", "plain", "dim", "path", "warning", "added", "removed", "hunk"]
Edited = tuple[Mapping[str, Any], Mapping[str, Any]]
"""The arguments of a call: those that the model asked for, and those with which the call ran."""
Row = tuple[Style, str]

MOST_LINES = 40
"""The most lines of a diff, and the most files, on a card. Pressing `v` shows the rest."""
MOST_ARGUMENT = 400


def card(
    approval: Approval, tool: Tool | None, *, place: str = "", whole: bool = False, here: bool = False
) -> list[Row]:
    """Returns the card of an approval request as rows; the first row is the title.

    `place`: a text before the title, such as "1 of 2". `whole`: nothing is shortened. `here`: the question is
    shown in the terminal in which it was asked.
    """
    name = one_line(approval.tool, 80)
    title = (
        f"{name}: {'may the result' if approval.shown.content else 'which results may'} be shared?"
        if approval.stage == "share"
        else f"{name}: {tool.title if tool else 'a tool call'}"
    )
    rows: list[Row] = [("title", f"{place + '  ' if place else ''}{title}")]
    if tool is not None and approval.stage == "run":
        rows.append(("plain", one_line(tool.purpose)))
    rows.append(("dim", f"asked by {who(approval, here)} ({approval.id})"))
    rows += _facts(approval.shown, whole)
    decided = approval.decision.arguments if approval.decision is not None else None
    rows += [("label", "Arguments"), *_arguments(approval.arguments, whole, decided)]
    rows += body(approval.shown, whole=whole)
    if note := problem_note(approval.shown, one_line(approval.model, 80)):
        rows += [
            ("warning", f"This call cannot work: {one_line(approval.shown.problem, 600)}"),
            ("warning", note),
        ]
    if tool is not None and (note := privacy_note(tool.effect, approval.stage, one_line(approval.model, 80))):
        rows.append(("warning", note))
    return rows


def who(approval: Approval, here: bool = False) -> str:
    """Returns who asks, and where, such as "claude-desktop via MCP".

    `here`: the question is shown in the terminal in which it was asked.
    """
    return f"{one_line(approval.model, 80)} {place_of(approval.surface, here)}"


def changes(written: str, edited: Edited | None) -> list[tuple[str, str | None, str | None]]:
    """Returns a call's arguments as (name, as asked, as run). A missing argument is None.

    `written`: the JSON text of the model. `edited`: both versions, if a person edited the arguments.
    """
    if edited is None:
        try:
            value = json.loads(written or "{}")
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            return [("arguments", written, written)]
        edited = (value, value)
    asked, ran = ({str(name): as_json(value) for name, value in side.items()} for side in edited)
    return [(name, asked.get(name), ran.get(name)) for name in {**asked, **ran}]


def body(shown: Preview, *, whole: bool = False) -> list[Row]:
    """Returns rows for what a call would touch: files with sizes and snippets, and the diff."""
    rows: list[Row] = [("plain", one_line(shown.summary, 400))] if shown.summary else []
    if shown.content:
        lines = clean(shown.content).splitlines()
        rows.append(("label", "Result, as the server sent it"))
        rows += [("plain", f"  {line}") for line in (lines if whole else lines[:MOST_LINES])]
        rows += _more(0 if whole else len(lines) - MOST_LINES, "line")
    if shown.touched:
        rows.append(("label", "Results" if any(one.snippet for one in shown.touched) else "Files"))
        some = shown.touched if whole else shown.touched[:MOST_LINES]
        for number, one in enumerate(some, 1):
            rows.append(("path", f"{number:>3}. {touched(one)}"))
            if one.snippet:
                rows.append(("dim", f"     {snippet(one, 600)}"))
        rows += _more(len(shown.touched) - len(some), "file")
    if shown.diff:
        rows.append(("label", "Changes"))
        lines = clean(shown.diff).splitlines()
        rows += [(_diff_style(line), line) for line in (lines if whole else lines[:MOST_LINES])]
        rows += _more(0 if whole else len(lines) - MOST_LINES, "line")
    return rows


def clipped(approval: Approval) -> bool:
    """Whether the card of this approval request is shortened if it is created without `whole`."""
    shown = approval.shown
    longest = max((len(_written(value)) for value in approval.arguments.values()), default=0)
    return (
        len(shown.touched) > MOST_LINES
        or len(shown.diff.splitlines()) > MOST_LINES
        or len(shown.content.splitlines()) > MOST_LINES
        or any(len(text) > MOST_ARGUMENT for _, text in shown.facts)
        or longest > MOST_ARGUMENT
    )


def _facts(shown: Preview, whole: bool) -> list[Row]:
    """Returns rows for the facts of a call. Marks text that a server wrote about itself."""
    rows: list[Row] = []
    for label, text in shown.facts:
        name, is_cut = one_line(label, 40), not whole and len(text) > MOST_ARGUMENT
        if label in FOREIGN:
            lines = clean(text[:MOST_ARGUMENT] if is_cut else text).splitlines()
            rows += [
                ("label", f"{name}, which Toolwire has not checked"),
                *(("dim", f"  │ {it}") for it in lines),
            ]
        else:
            rows.append(
                ("plain", f"{name}: {one_line(text, MOST_ARGUMENT if is_cut else len(text) * LONGEST + 1)}")
            )
        if is_cut:
            rows.append(("warning", f"  … {len(text):,} characters: v shows all"))
    return rows


def snippet(one: Touched, width: int) -> str:
    """Returns the piece of a note that would be shared, on one line."""
    return one_line(re.sub(r"\s*\n\s*", "\n", one.snippet), width)


def touched(one: Touched) -> str:
    facts = (
        one_line(one.reason or "not found") if one.missing else size(one.size) if one.size is not None else ""
    )
    return one_line(one.path, 300) + (f"  ({facts})" if facts else "")


def _more(count: int, what: str) -> list[Row]:
    shown = f"… and {counted(count, f'more {what}')}: v shows {'it' if count == 1 else 'them'}"
    return [("warning", shown)] if count > 0 else []


def _arguments(
    arguments: Mapping[str, Any], whole: bool, edited: Mapping[str, Any] | None = None
) -> list[Row]:
    """Returns rows for the arguments of a call.

    If a person `edited` them, each argument that differs appears in both versions.
    """
    rows: list[Row] = []
    for key, value in arguments.items():
        if edited is None or (key in edited and edited[key] == value):
            rows += _argument("plain", "  ", key, value, whole)
            continue
        rows += _argument("removed", "- ", key, value, whole)
        if key in edited:
            rows += _argument("added", "+ ", key, edited[key], whole)
    for key in edited or ():
        if key not in arguments:
            rows += _argument("added", "+ ", key, (edited or {})[key], whole)
    return rows or [("dim", "  none")]


def _argument(style: Style, sign: str, key: str, value: Any, whole: bool) -> list[Row]:
    written = _written(value)
    text = one_line(written, len(written) * LONGEST + 1 if whole else MOST_ARGUMENT)
    quoted = f'"{text}"' if isinstance(value, str) else text
    rows: list[Row] = [(style, f"{sign}{one_line(str(key), 80)}: {quoted}")]
    if not whole and len(written) > MOST_ARGUMENT:
        rows.append(("warning", f"  … {len(written):,} characters: v shows all"))
    return rows


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _diff_style(line: str) -> Style:
    if line.startswith(("+++", "---", "@@")):
        return "hunk"
    return "added" if line.startswith("+") else "removed" if line.startswith("-") else "plain"


# --- other lines ---


def called(calls: Iterable[ToolCall]) -> list[Row]:
    """Returns one row for each call."""
    return [("dim", f"⚙ {one_line(call.name, 80)} {one_line(call.arguments, 120)}") for call in calls]


def did(outcome: Outcome) -> list[Row]:
    """Returns rows for the outcome of a call.

    If the call ran, the rows show what was shared or changed, and what could not be read. Otherwise they show
    the notice of the outcome. If the person edited the arguments, the rows also show the arguments that ran.
    """
    if outcome.edited is not None:
        edited, (asked, ran) = replace(outcome, edited=None), outcome.edited
        return [*did(edited), ("label", "Arguments, as you edited them"), *_arguments(asked, False, ran)]
    if outcome.status == "done":
        unread: list[Row] = [
            ("warning", f"not read: {one_line(path, 80)}: {one_line(reason, 200)}")
            for path, reason in outcome.unread[:5]
        ]
        unread += (
            [("warning", f"not read: {len(outcome.unread) - 5} more")] if len(outcome.unread) > 5 else []
        )
        if unread and not outcome.shared:
            return [("dim", f"{one_line(outcome.call.name, 80)}: nothing was read"), *unread]
        paths = f": {', '.join(one_line(path, 80) for path in outcome.shared[:5])}" if outcome.shared else ""
        more = f" and {len(outcome.shared) - 5} more" if len(outcome.shared) > 5 else ""
        return [("dim", f"✓ {one_line(outcome.call.name, 80)}{paths}{more}"), *unread]
    return [("warning", one_line(outcome.notice, 300))] if outcome.notice else []


def plain(rows: Sequence[Row]) -> str:
    """Returns the rows as plain text."""
    return "\n".join(f"== {text}" if style == "title" else text for style, text in rows)

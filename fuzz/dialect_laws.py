"""Laws of the dialects: calls are read back exactly, and a call that was cut off is never completed.

A case has calls in one dialect, as `render` writes them, with prose between them. `bench/dialects.py` tries
both laws on every dialect.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from random import Random
from typing import Any, NamedTuple

from fuzz import generate
from fuzz.law import Broken, Case, Law, holds
from fuzz.scanner_laws import Plain, exact, plain, scan
from toolwire.core.events import Finish
from toolwire.core.ids import counting_ids
from toolwire.emulate.dialects import DIALECTS
from toolwire.emulate.dialects.render import render
from toolwire.emulate.scanner import ToolCallParser
from toolwire.wire.chat.encode import ChatBody

NAMES = ("look", "get_weather", "write-file", "a")
PLAIN, TRUNCATED, WHOLE = range(3)
"""How a call that was cut off is read: as text, as truncated, or (with all arguments) as complete."""


class Written(NamedTuple):
    """One call in a text: its position, its name and its arguments."""

    start: int
    stop: int
    name: str
    value: dict[str, Any]


def draw_calls(rng: Random, dialect: str | None = None, most: int = 3) -> Case:
    """Draws calls between prose, all in one dialect."""
    dialect = dialect or rng.choice(generate.RENDERED)
    calls = [(rng.choice(NAMES), generate.arguments(rng)) for _ in range(rng.randint(1, most))]
    names = sorted({name for name, _ in calls})
    schemas = {
        name: generate.schema_for(rng, [values for other, values in calls if other == name]) for name in names
    }
    others = sorted(DIALECTS) if rng.random() < 0.2 else rng.sample(sorted(DIALECTS), rng.randint(0, 2))
    before = [generate.prose(rng) for _ in range(len(calls) + 1)]
    if dialect in generate.LINE_START:
        before = [text if not text or text.endswith("\n") else text + "\n" for text in before]
    return {
        "dialect": dialect,
        "dialects": [dialect, *(other for other in others if other != dialect)],
        "tools": [generate.tool(rng, name, schemas[name], rng.random() < 0.2) for name in names],
        "calls": [[name, generate.dumped(rng, value)] for name, value in calls],
        "prose": before,
        "arguments": rng.choice(("eager", "validated")),
        "cuts": [rng.random() for _ in range(rng.randint(0, 10))],
    }


def _schema(tools: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next(
        (inner["parameters"] for tool in tools if (inner := tool.get("function", tool))["name"] == name), None
    )


def _object(written: str) -> dict[str, Any] | None:
    try:
        value = json.loads(written)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def written(case: Case) -> tuple[str, list[Written]] | None:
    """Returns the text of a case and its calls; None if a shrunk case has no valid calls."""
    text, found = case["prose"][0], []
    for (name, arguments), after in zip(case["calls"], case["prose"][1:], strict=False):
        value, schema = _object(arguments), _schema(case["tools"], name)
        if value is None or schema is None:
            return None
        block = render(case["dialect"], name, arguments, schema=schema, nonce=generate.TOKEN)
        found.append(Written(len(text), len(text) + len(block), name, value))
        text += block + after
    return text, found


# --- round trip ---


def judge_round_trip(case: Case) -> None:
    made = written(case)
    if made is None:
        return
    text, calls = made
    expected: Plain = [["text", text[: calls[0].start] if calls else text]]
    behind = [*(call.start for call in calls[1:]), len(text)]
    for number, (call, end) in enumerate(zip(calls, behind, strict=False)):
        expected += [
            ["begin", number, call.name],
            ["value", call.value],
            ["end", number, "ok", []],
            ["text", text[call.stop : end]],
        ]
    settings = {
        **case,
        "nonce": generate.TOKEN,
        "quoted": [],
        "limits": None,
        "unknown_tool": "text",
        "checked": False,
        "reason": "eof",
    }
    got, _ = scan(settings, generate.pieces(text, sorted(int(cut * len(text)) for cut in case["cuts"])))
    read: Plain = []
    for event in got:
        if event[0] != "arguments":
            read.append(event)
            continue
        value = _object(event[2])
        read.append(["no object", event[2]] if value is None else ["value", value])
    wanted = [event for event in expected if event != ["text", ""]]
    if exact(read) != exact(wanted):
        raise Broken(
            f"calls and prose come back as they were ({case['dialect']})", f"{wanted!r} of {text!r}", read
        )


# --- cut off ---


def draw_cut(rng: Random, dialect: str | None = None) -> Case:
    return draw_calls(rng, dialect, most=2)


def judge_some_cuts(case: Case) -> None:
    """Judges a few positions of the text, given by the case's cuts. This is enough for many cases."""
    made = written(case)
    if made is not None:
        judge_cuts(case, made, sorted(int(cut * len(made[0])) for cut in case["cuts"]))


def judge_every_cut(case: Case) -> list[int]:
    """Judges every position of the text.

    Returns how many of the calls that were cut off were read as text, as truncated and as complete.
    """
    made = written(case)
    return judge_cuts(case, made, range(len(made[0]) + 1)) if made is not None else [0, 0, 0]


def judge_cuts(case: Case, made: tuple[str, list[Written]], places: Iterable[int]) -> list[int]:
    """Cuts the text at each of `places`, and judges how the call at this position is read.

    The more of a call is left, the more must be read: first text, then a truncated call, then a complete one.
    Returns the number of cuts with each of these results.
    """
    text, calls = made
    state, last, counts = PLAIN, -1, [0, 0, 0]
    for place in places:
        complete = sum(call.stop <= place for call in calls)
        cut = calls[complete] if complete < len(calls) and calls[complete].start < place else None
        now = _outcome(case, text[:place], calls[:complete], cut)
        if complete == last and now < state:
            raise Broken(
                f"of a longer part of a call, not less is read ({case['dialect']})",
                f"at least {state} at position {place} of {text!r}",
                now,
            )
        state, last = now, complete
        if cut is not None:
            counts[now] += 1
    return counts


def _outcome(case: Case, text: str, complete: list[Written], cut: Written | None) -> int:
    """Returns how the call that was cut off is read. Also judges the other calls and the finish reason."""
    parser = ToolCallParser(case["tools"], case["dialects"], case["arguments"], generate.TOKEN)
    events = parser.feed(text) + parser.finish("length")
    answer = ChatBody("m", id="c", created=0, ids=counting_ids())
    answer.feed([*events, Finish("length")])
    rule = f"a text that was cut off ends by length ({case['dialect']})"
    holds(rule, "length", answer.body()["choices"][0]["finish_reason"])
    read: list[list[Any]] = []
    behind = ""
    for event in plain(events):
        if event[0] == "begin":
            read.append([event[2], "", ""])
            behind = ""
        elif event[0] == "arguments":
            read[-1][1] += event[2]
        elif event[0] == "end":
            read[-1][2] = event[2]
        else:
            behind += event[1]
    for number, call in enumerate(complete):
        got = read[number] if number < len(read) else ["", "", "missing"]
        if (got[0], got[2], exact(_object(got[1]))) != (call.name, "ok", exact(call.value)):
            raise Broken(
                f"a call that ended before the cut is whole ({case['dialect']})", f"{call} of {text!r}", got
            )
    if len(read) == len(complete):
        if cut is not None and not behind.endswith(text[cut.start :]):
            raise Broken(f"a call that is not read is text ({case['dialect']})", text[cut.start :], behind)
        return PLAIN
    return _told_call(case, text, cut, read[len(complete) :])


def _told_call(case: Case, text: str, cut: Written | None, read: list[list[Any]]) -> int:
    name, arguments, status = read[0]
    if cut is None or len(read) > 1 or name != cut.name or status not in ("truncated", "ok"):
        raise Broken(
            f"only the call that was cut off is read, as truncated or complete ({case['dialect']})",
            f"{cut} of {text!r}",
            read,
        )
    value = _object(arguments)
    if status == "ok" or value is not None:
        holds(
            f"arguments are never completed by invention ({case['dialect']})", exact(cut.value), exact(value)
        )
    return WHOLE if status == "ok" else TRUNCATED


CALLS = ("calls", "prose", "cuts")
LAWS: dict[str, Law] = {
    "round_trip": Law(
        draw_calls, judge_round_trip, "calls and prose in any dialect are read back exactly", CALLS
    ),
    "cut_off": Law(
        draw_cut,
        judge_some_cuts,
        "a call that was cut off is never completed; the finish reason is length",
        CALLS,
    ),
}

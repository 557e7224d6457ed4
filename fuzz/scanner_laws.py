"""Laws of the scanner and of the JSON flows.

How the input is split makes no difference, nothing is lost, and text passes verbatim.
"""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

from fuzz import generate
from fuzz.law import Broken, Case, Law, holds
from toolwire.core.events import CallArgs, CallBegin, CallEnd, Event, Text, Thought
from toolwire.core.turn import ToolSpec
from toolwire.emulate.arguments import JsonFlow
from toolwire.emulate.grammars.json_block import StringFlow
from toolwire.emulate.scanner import ScanLimits, ToolCallParser, parse
from toolwire.emulate.thoughts import THOUGHTS
from toolwire.emulate.tools import INPUT, Unwrap, wrap
from toolwire.wire.sse import scrub

Plain = list[list[Any]]
"""Events as a client sees them: adjacent texts, and adjacent pieces of arguments, are joined."""


def exact(value: Any) -> str:
    """Returns a text by which values are compared: 1 and 1.0, True and 1, -0.0 and 0 are different."""
    return json.dumps(value)


def plain(events: list[Event]) -> Plain:
    out: Plain = []
    for event in events:
        if isinstance(event, Text | Thought):
            kind = "text" if isinstance(event, Text) else "thought"
            if out and out[-1][0] == kind:
                out[-1][1] += event.text
            else:
                out.append([kind, event.text])
        elif isinstance(event, CallBegin):
            out.append(["begin", event.index, event.name])
        elif isinstance(event, CallArgs):
            if out[-1][0] == "arguments" and out[-1][1] == event.index:
                out[-1][2] += event.delta
            else:
                out.append(["arguments", event.index, event.delta])
        elif isinstance(event, CallEnd):
            out.append(["end", event.index, event.status, list(event.issues)])
        else:
            raise Broken(
                "the scanner produces texts, thoughts and calls only", "Text, Thought or a call", event
            )
    return out


def _odd_length(tool: ToolSpec, arguments: str) -> list[str]:
    return ["odd"] if len(arguments) % 2 else []


def _parser(case: Case) -> ToolCallParser:
    return ToolCallParser(
        case["tools"],
        case["dialects"],
        case["arguments"],
        case["nonce"],
        case["quoted"],
        ScanLimits(*case["limits"]) if case["limits"] else None,
        unknown_tool=case["unknown_tool"],
        check=_odd_length if case["checked"] else None,
        thoughts=_thoughts(case),
    )


def _thoughts(case: Case) -> Any:
    """Returns the parser's function `thoughts`; None if the parser does not separate reasoning.

    The function says whether the request mentions a marker. In one case, it says the same for every marker.
    """
    mentioned = case.get("thoughts")
    return None if mentioned is None else lambda marker: mentioned


def scan(case: Case, pieces: list[str]) -> tuple[Plain, list[str]]:
    parser = _parser(case)
    events: list[Event] = []
    for piece in pieces:
        events += parser.feed(piece)
    events += parser.finish(case["reason"])
    late = parser.finish("eof")
    holds("a parser that has finished has nothing more to say", [], late)
    return plain(events), parser.unknown


# --- split invariance ---


def draw_text(rng: Random) -> Case:
    text = generate.model_text(rng)
    case = {**generate.parser_settings(rng), "text": text, "cuts": generate.cuts(rng, len(text))}
    if rng.random() < 0.25:
        start = rng.randint(0, len(text))
        case["quoted"] = [
            generate.prose(rng) + text[start : rng.randint(start, len(text))] + generate.text(rng),
            text if rng.random() < 0.3 else "",
        ]
    return case


def judge_splits(case: Case) -> None:
    text = case["text"]
    whole = scan(case, [text])
    holds("the cuts do not show", whole, scan(case, generate.pieces(text, case["cuts"])))
    holds("single characters give the same result", whole, scan(case, list(text)))


def judge_one_shot(case: Case) -> None:
    options = {key: case[key] for key in ("arguments", "nonce", "quoted", "unknown_tool")}
    limits = ScanLimits(*case["limits"]) if case["limits"] else None
    whole = plain(
        parse(
            case["text"], case["tools"], case["dialects"], limits=limits, thoughts=_thoughts(case), **options
        )
    )
    streamed = scan({**case, "checked": False, "reason": "eof"}, generate.pieces(case["text"], case["cuts"]))[
        0
    ]
    holds("the whole text gives the same result as the stream", whole, streamed)


# --- nothing is lost ---


_MARKUP = re.compile(
    "|".join([r"\s", *(re.escape(mark) for one in THOUGHTS for mark in (one.opener, one.closer, *one.then))])
)


def _markup_end(text: str, start: int) -> int:
    while (found := _MARKUP.match(text, start)) is not None:
        start = found.end()
    return start


def _end_of(text: str, start: int, piece: str) -> int | None:
    """Returns where a piece that begins at `start` ends, or None if it is not there.

    Adjacent thoughts are one piece.
    """
    place = start
    for character in piece:
        if text[place : place + 1] != character:
            place = _markup_end(text, place)
        if text[place : place + 1] != character:
            return None
        place += 1
    return place


def judge_nothing_lost(case: Case) -> None:
    """Judges that nothing is lost.

    Every text and thought of the output is in the input, in order, with only calls and markers between them.
    """
    text = case["text"]
    events = [
        event
        for event in scan(case, generate.pieces(text, case["cuts"]))[0]
        if event[0] in ("text", "thought", "begin")
    ]
    if case.get("thoughts") is None and all(event[0] == "text" for event in events):
        holds("without calls the text is the input", text, "".join(event[1] for event in events))
        return
    places, called = {0}, False  # the positions at which the last event may have ended
    for event in events:
        if event[0] == "begin":
            called = True
            continue
        piece = event[1]
        if called:
            starts = {
                found.start()
                for found in re.finditer(f"(?={re.escape(piece)})", text)
                if found.start() > min(places)
            }
        else:
            starts = {
                start
                for place in places
                for start in range(place, _markup_end(text, place) + 1)
                if text.startswith(piece, start)
            }
        ends = {start + len(piece) for start in starts}
        if not ends and event[0] == "thought":
            ends = {
                end for place in places if (end := _end_of(text, _markup_end(text, place), piece)) is not None
            }
        places, called = ends, False
        if not places:
            raise Broken("texts and thoughts are in the input, in their order", text, events)
    if not called and not any(_markup_end(text, place) == len(text) for place in places):
        raise Broken("what comes after the last call is the end of the input", text, events)


def judge_legal(case: Case) -> None:
    """Judges that the events are legal.

    Calls come one at a time, counted from 0. Arguments that are marked `ok` or `repaired` are a JSON object.
    """
    open_call, count, written, texts = -1, 0, "", 0
    for event in scan(case, generate.pieces(case["text"], case["cuts"]))[0]:
        if event[0] == "begin":
            holds("calls are counted from 0, one at a time", (-1, count), (open_call, event[1]))
            open_call, count, written = count, count + 1, ""
        elif event[0] == "arguments":
            holds("arguments belong to the open call", open_call, event[1])
            written += event[2]
        elif event[0] == "end":
            holds("the open call ends", open_call, event[1])
            open_call = -1
            if event[2] in ("ok", "repaired"):
                _is_object(written)
            holds("a call with issues is not ok", event[2] == "ok", event[2] == "ok" and not event[3])
        else:
            holds("text comes between calls", -1, open_call)
            texts += 1
            holds(
                "without the setting there are no thoughts",
                True,
                event[0] == "text" or case.get("thoughts") is not None,
            )
    holds("every call ends", -1, open_call)
    if case["limits"]:
        holds("there are no more calls than the limit allows", True, count <= case["limits"][2])


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _is_object(written: str) -> None:
    try:
        value = json.loads(written, parse_constant=_refuse)
    except ValueError as error:
        raise Broken(
            "arguments that are called good are JSON", "a JSON object", f"{written!r}: {error}"
        ) from None
    if not isinstance(value, dict):
        raise Broken("arguments that are called good are a JSON object", "a JSON object", written)


# --- off ---


def judge_off(case: Case) -> None:
    """Judges that without tools, or without a dialect, every piece passes at once and unchanged."""
    case = {**case, "thoughts": None}
    for settings in ({**case, "tools": [], "unknown_tool": "text"}, {**case, "dialects": []}):
        parser = _parser(settings)
        for piece in generate.pieces(case["text"], case["cuts"]):
            holds(
                "without tools every piece passes unchanged",
                [Text(piece)] if piece else [],
                parser.feed(piece),
            )
        holds("without tools nothing is held", [], parser.finish(case["reason"]))


# --- JSON ---


def flow_through(flow: JsonFlow | StringFlow, pieces: list[str]) -> tuple[str, int]:
    """Returns the output, and the number of characters that the flow took."""
    rest, out, taken = "", [], 0
    for piece in pieces:
        buffer = rest + piece
        stop = flow.run(buffer, 0)
        taken += stop
        rest = buffer[stop:]
        out.append(flow.take())
    if isinstance(flow, JsonFlow):
        flow.finish()
    out.append(flow.take())
    return "".join(out), taken


def draw_json(rng: Random) -> Case:
    text = generate.dumped(rng, generate.value(rng, 4))
    return {"text": text, "cuts": generate.cuts(rng, len(text))}


def judge_verbatim(case: Case) -> None:
    try:
        json.loads(case["text"], parse_constant=_refuse)
    except ValueError:
        return  # a shrunk case that is no longer JSON
    flow = JsonFlow()
    out, taken = flow_through(flow, generate.pieces(case["text"], case["cuts"]))
    text = case["text"].rstrip(" \t\r\n")
    holds(
        "strict JSON goes through verbatim",
        (text, len(text), True, []),
        (out[: len(text)], min(taken, len(text)), flow.done, flow.issues),
    )


def draw_jsonish(rng: Random) -> Case:
    text = generate.jsonish(rng)
    return {"text": text, "cuts": generate.cuts(rng, len(text))}


def judge_repaired(case: Case) -> None:
    """Judges repaired JSON, for any input.

    The output of a finished flow is strict JSON, and does not depend on how the input was cut.
    """
    whole = JsonFlow()
    out, taken = flow_through(whole, [case["text"]])
    if whole.done:
        try:
            json.loads(out, parse_constant=_refuse)
        except ValueError as error:
            raise Broken("a flow that is done has written JSON", "JSON", f"{out!r}: {error}") from None
        if not whole.issues:
            holds(
                "without issues the flow is verbatim",
                case["text"][:taken].strip(" \t\r\n"),
                out.strip(" \t\r\n"),
            )
    for pieces in (generate.pieces(case["text"], case["cuts"]), list(case["text"])):
        cut = JsonFlow()
        again, stop = flow_through(cut, pieces)
        holds(
            "the cuts do not show",
            (out, taken, whole.state, whole.issues),
            (again, stop, cut.state, cut.issues),
        )


def judge_string(case: Case) -> None:
    """Judges that JSON inside a JSON string is unescaped once, wherever the pieces were cut."""
    quoted = json.dumps(case["text"], ensure_ascii=bool(len(case["text"]) % 2))[1:] + " tail"
    flow = StringFlow()
    out, taken = flow_through(flow, [quoted])
    holds("the string ends at its quote", (True, len(quoted) - len(" tail")), (flow.done, taken))
    for pieces in (generate.pieces(quoted, case["cuts"]), list(quoted)):
        cut = StringFlow()
        again, stop = flow_through(cut, pieces)
        holds("the cuts do not show", (out, taken, flow.bad, flow.issues), (again, stop, cut.bad, cut.issues))
    if not flow.bad and not flow.issues and case["text"].strip():
        holds("JSON in a string means what it says", exact(json.loads(case["text"])), exact(json.loads(out)))


def draw_input(rng: Random) -> Case:
    text = generate.text(rng, 8)
    return {"text": text, "cuts": generate.cuts(rng, len(wrap(text))), "escaped": rng.random() < 0.5}


def judge_custom_input(case: Case) -> None:
    """Judges that a custom tool's input is unchanged after it was sent as a function's argument.

    Lone surrogates are sent as escapes only, because UTF-8 cannot represent them.
    """
    unwrap = Unwrap(("free",))
    written = json.dumps({INPUT: case["text"]}) if case["escaped"] else wrap(scrub(case["text"]))
    events: list[Event] = [
        CallBegin(0, "free"),
        *(CallArgs(0, piece) for piece in generate.pieces(written, case["cuts"])),
        CallEnd(0),
    ]
    out = [after for event in events for after in unwrap.feed([event])]
    holds("the call is a custom call", CallBegin(0, "free", None, "custom"), out[0])
    got = "".join(scrub(event.delta) for event in out if isinstance(event, CallArgs))
    holds(f"the {INPUT} is the text, as UTF-8 can carry it", scrub(case["text"]), got)


SCANNED = ("text", "cuts", "quoted")
LAWS: dict[str, Law] = {
    "scanner_splits": Law(
        draw_text,
        judge_splits,
        "however a text is split into chunks, the text and the calls are the same",
        SCANNED,
    ),
    "scanner_one_shot": Law(
        draw_text,
        judge_one_shot,
        "a text gives the same events, whether it is read at once or in chunks",
        SCANNED,
    ),
    "scanner_nothing_lost": Law(
        draw_text, judge_nothing_lost, "every character is text or belongs to a call or a marker", SCANNED
    ),
    "scanner_legal": Law(
        draw_text, judge_legal, "calls come one at a time, and valid arguments are JSON objects", SCANNED
    ),
    "tools_off": Law(draw_text, judge_off, "without tools the text is unchanged", SCANNED),
    "json_verbatim": Law(draw_json, judge_verbatim, "strict JSON is unchanged"),
    "json_repaired": Law(draw_jsonish, judge_repaired, "repaired JSON is strict JSON, however it is split"),
    "json_in_string": Law(draw_jsonish, judge_string, "JSON inside a JSON string is unescaped exactly once"),
    "custom_input": Law(
        draw_input,
        judge_custom_input,
        "the input of a custom tool does not change when it is sent as an argument of a function",
    ),
}

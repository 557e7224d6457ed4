"""Random cases. Every case is made of dicts, lists, texts, numbers, booleans and None, so that a failing one can be printed, shrunk and pasted into
a test.

Nothing here knows what is right: that is `properties.py`. The vocabulary of markers is read from the dialects' own table, so that a dialect that is
added is fuzzed from its first day.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

from toolwire.emulate.dialects import DIALECTS, NONCE, JsonBlock
from toolwire.emulate.dialects.render import RENDER, render

T = TypeVar("T")
Case = dict[str, Any]
TOKEN = "k7Qz"
RENDERED = ("sentinel", *RENDER)
"""The dialects that the project can write as well as read."""
LINE_START = frozenset(name for name, dialect in DIALECTS.items() if any(opener.line_start for opener in dialect.openers))

# --- texts -------------------------------------------------------------------------------------------------------------------------------------


def _markers() -> list[str]:
    found: set[str] = {"</think>", "```", "```json\n", "~~~\n", "<tool_call", "tool_call>", "<function=look>", '<invoke name="look">', "<parameter=q>"}
    found |= {'<parameter name="q">', "</parameter>", "<name>look</name>", "<q>", "</q>", "&lt;", "&#x3c;", "&#99999999;"}
    for dialect in DIALECTS.values():
        for opener in dialect.openers:
            block = opener.block
            found |= {opener.marker, *(block.closers if isinstance(block, JsonBlock) else (block.call_close, *block.wrapper_closers))}
    return sorted(marker.replace(NONCE, TOKEN) for marker in found)


MARKERS = _markers()
NAMES = ("look", "get_weather", "write-file", "a", "functions.look", "Look", "nobody")
JSONISH = (
    *('{"name": "look", "arguments": {"q": 1}}', '{"name": "look", "arguments": {', '{"name":"a"}', '"arguments": "{\\"q\\": 2}"', '{"type": "function", "function": {'),
    *("{", "}", "[", "]", ",", ":", '"', "'", "\\", '\\"', "\\u00", "\\ud83d", "\\ude00", "\\d", "null", "None", "True", "false", "-", "0", "1e5", "0.5", "q: 1"),
)
ODD = ("\n", "\n\n", " ", "\t", "\r\n", "\x00", "\x1f", "\x7f", "é", "\u2028", "\u2029", "\ufeff", "\ufffd", "😀", "\ud800", "\udc00", "\u202e", "`", "<", ">", "&", "</")
WORDS = ("The", "cat", "sat", "on", "a", "mat.", "So", "x", "Ich", "gehe", "weiß", "日本", "1 < 2", "5 > 3", "ok;", "then:", "…", "<b>", "</p>", "<tool", "<us")


def text(rng: Random, most: int = 6) -> str:
    """Any text at all."""
    return "".join(rng.choice(rng.choice((MARKERS, JSONISH, ODD, WORDS))) for _ in range(rng.randint(0, most)))


def prose(rng: Random) -> str:
    """Text that no dialect may take for a call, though it may begin like one. Never ends inside a line that matters to what follows."""
    size = rng.randint(0, 6)
    return "".join(rng.choice(WORDS) + rng.choice((" ", " ", " ", "\n", "\n\n")) for _ in range(size))


def cuts(rng: Random, size: int) -> list[int]:
    """Where a text is cut into pieces: often everywhere, else at a few places."""
    if rng.random() < 0.3:
        return list(range(1, size))
    return sorted(rng.randint(0, size) for _ in range(rng.randint(0, 12)))


def pieces(whole: str, places: Sequence[int]) -> list[str]:
    bounds = [0, *(min(place, len(whole)) for place in places), len(whole)]
    return [whole[start:stop] for start, stop in zip(bounds, bounds[1:], strict=False)]


def batches(whole: Sequence[T], places: Sequence[int]) -> list[list[T]]:
    bounds = [0, *(min(place, len(whole)) for place in places), len(whole)]
    return [list(whole[start:stop]) for start, stop in zip(bounds, bounds[1:], strict=False)]


def mutated(rng: Random, whole: str) -> str:
    """The text with a few accidents: pieces lost, doubled, swapped, cut off, or something foreign between."""
    for _ in range(rng.randint(1, 3)):
        start = rng.randint(0, len(whole))
        stop = min(len(whole), start + rng.choice((1, 1, 1, 2, 5, 20)))
        accident = rng.randrange(5)
        if accident == 0:
            whole = whole[:start] + whole[stop:]
        elif accident == 1:
            whole = whole[:stop] + whole[start:stop] + whole[stop:]
        elif accident == 2:
            whole = whole[:start] + whole[start:stop][::-1] + whole[stop:]
        elif accident == 3:
            whole = whole[:start] + text(rng, 2) + whole[start:]
        else:
            whole = whole[:start] if rng.random() < 0.4 else whole[start:]
    return whole


# --- JSON --------------------------------------------------------------------------------------------------------------------------------------


def key(rng: Random) -> str:
    return rng.choice(("q", "path", "b", "n", "city", "name", "x-y", "a.b")) if rng.random() < 0.8 else text(rng, 2)


def scalar(rng: Random) -> Any:
    kind = rng.randrange(7)
    if kind < 3:
        return text(rng, 4)
    if kind == 3:
        return rng.choice((0, -0.0, 1, -1, 7, 2**53, -(2**63), 10**40, 0.1, 1e-300, 1.5e300, 123456.75))
    if kind == 4:
        return rng.choice(("", " ", "true", "null", "12", "-1.5", '"quoted"', "[1]", "{}", "None", " padded ", "\nline\n", "'single'"))
    return rng.choice((True, False, None))


def value(rng: Random, depth: int = 3) -> Any:
    kind = rng.random()
    if depth <= 0 or kind < 0.65:
        return scalar(rng)
    if kind < 0.82:
        return [value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {key(rng): value(rng, depth - 1) for _ in range(rng.randint(0, 3))}


def arguments(rng: Random) -> dict[str, Any]:
    return {key(rng): value(rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))}


def dumped(rng: Random, what: Any) -> str:
    """One of the many ways to write the same JSON: white space, escapes, separators."""
    style = rng.randrange(4)
    if style == 0:
        return json.dumps(what, ensure_ascii=False)
    if style == 1:
        return json.dumps(what, ensure_ascii=True, separators=(",", ":"))
    if style == 2:
        return json.dumps(what, ensure_ascii=False, indent=rng.randint(0, 3))
    return json.dumps(what, ensure_ascii=True, indent="\t", separators=(" ,\r\n", " : ")).replace("/", "\\/")


SLOPPY: tuple[Callable[[str], str], ...] = (
    lambda text: text.replace('"', "'"),
    lambda text: text.replace("}", ",}").replace("]", ", ]"),
    lambda text: text.replace("true", "True").replace("null", "None"),
    lambda text: text.replace('"q"', "q").replace('"n"', "n"),
    lambda text: text.replace("\\n", "\n"),
    lambda text: text.replace("\\", "\\d"),
    lambda text: "[" * 600 + text,
)


def jsonish(rng: Random) -> str:
    """JSON, JSON as models get it wrong, or something like it."""
    whole = dumped(rng, value(rng))
    kind = rng.randrange(4)
    if kind == 1:
        whole = rng.choice(SLOPPY)(whole)
    elif kind == 2:
        whole = mutated(rng, whole)
    elif kind == 3:
        whole = "".join(rng.choice(JSONISH) if rng.random() < 0.8 else rng.choice(ODD) for _ in range(rng.randint(0, 9)))
    return whole


# --- tools and calls ---------------------------------------------------------------------------------------------------------------------------

_TYPES: tuple[tuple[type, str], ...] = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"), (dict, "object"), (type(None), "null"))


def schema_for(rng: Random, values: dict[str, Any]) -> dict[str, Any]:
    """A schema that allows these values: every key typed, some, or none."""
    typed = rng.choice((0.0, 0.5, 1.0))
    properties: dict[str, Any] = {}
    for name, held in values.items():
        if rng.random() < typed:
            properties[name] = {"type": next(word for kind, word in _TYPES if isinstance(held, kind))}
            if rng.random() < 0.2:
                properties[name]["type"] = [properties[name]["type"]]
    return {"type": "object", "properties": properties} if properties or rng.random() < 0.5 else {}


def tool(rng: Random, name: str, parameters: dict[str, Any], strict: bool = False) -> dict[str, Any]:
    flat: dict[str, Any] = {"name": name, "parameters": parameters, "strict": strict}
    return {"type": "function", **flat} if rng.random() < 0.3 else {"type": "function", "function": flat}


def toolbox(rng: Random) -> list[dict[str, Any]]:
    parameters = ({}, {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}})
    return [tool(rng, name, rng.choice(parameters), rng.random() < 0.15) for name in ("look", *rng.sample(NAMES, rng.randint(0, 2)))]


def parser_settings(rng: Random) -> Case:
    """Everything a parser is told, beside the text and its cuts."""
    names = list(DIALECTS)
    roll = rng.random()
    return {
        "tools": toolbox(rng),
        "dialects": None if roll < 0.2 else names if roll < 0.5 else rng.sample(names, rng.randint(1, 3)),
        "arguments": rng.choice(("eager", "validated")),
        "nonce": TOKEN if rng.random() < 0.9 else None,
        "limits": [rng.choice((1, 3, 17, 40, 90, 4095, 4200)), rng.choice((1, 20, 60, 200, 8192)), rng.randint(0, 3)] if rng.random() < 0.25 else None,
        "unknown_tool": rng.choice(("text", "text", "forward", "error")),
        "checked": rng.random() < 0.5,
        "quoted": [],
        "reason": rng.choice(("eof", "eof", "length", "cancelled")),
    }


def call_text(rng: Random, dialect: str, sloppy: bool = True) -> str:
    name = rng.choice(NAMES) if rng.random() < 0.4 else "look"
    written = dumped(rng, arguments(rng))
    if sloppy and rng.random() < 0.2:
        written = rng.choice(SLOPPY)(written)
    if rng.random() < 0.75:
        return render(dialect, name, written, nonce=TOKEN)
    return rng.choice(ENVELOPES)(rng, name, written)


def _block(rng: Random, *inner: str) -> str:
    """Envelopes between the markers of a dialect that takes them."""
    opener, closer = rng.choice((("<tool_call>", "</tool_call>"), (f"<tool_call:{TOKEN}>\n", f"\n</tool_call:{TOKEN}>"), ("```json\n", "\n```"), ("\n", "\n")))
    whole = rng.choice(("\n", " ", ",")).join(inner)
    return opener + (f"[{whole}]" if rng.random() < 0.3 else whole) + (closer if rng.random() < 0.9 else "")


def _any_order(rng: Random, name: str, written: str) -> str:
    if rng.random() < 0.4:
        written = json.dumps(written if rng.random() < 0.6 else dumped(rng, value(rng, 1)), ensure_ascii=rng.random() < 0.5)
    members = [f'"name": {json.dumps(name)}', f'"{rng.choice(("arguments", "parameters"))}": {written}', '"type": "function"', '"id": "c"', '"note": [1, {}]']
    members = members[: rng.randint(1, 5)]
    rng.shuffle(members)
    return "{" + ", ".join(members) + rng.choice(("}", "}", "}", "}}", ",}"))


def _one(rng: Random, name: str, written: str) -> str:
    return _block(rng, _any_order(rng, name, written))


def _nested(rng: Random, name: str, written: str) -> str:
    return _block(rng, f'{{"type": "function", "function": {_any_order(rng, name, written)}}}')


def _several(rng: Random, name: str, written: str) -> str:
    return _block(rng, *(_any_order(rng, name, written) for _ in range(rng.randint(2, 3))))


def _tagged(rng: Random, name: str, written: str) -> str:
    """Tags, one wrapper around several calls, with values that are not always closed."""
    tags = "".join(f"<parameter={key(rng)}>{rng.choice(('', chr(10)))}{text(rng, 3)}</parameter>" for _ in range(rng.randint(0, 2)))
    xml = "".join(f"<{inner}>{text(rng, 3)}</{inner}>" for inner in rng.sample(("q", "n", "name", "path"), rng.randint(0, 3)))
    attributes = "".join(f'<parameter name="{key(rng)}">{text(rng, 3)}</parameter>' for _ in range(rng.randint(0, 2)))
    return rng.choice(
        (
            f"<tool_call><function={name}>{tags}</function><function={name}>{tags}</function></tool_call>",
            f"<function={name}>{tags}</function>",
            f"<tool_call><function={name}>{written}</function></tool_call>",
            f"<use_tool><name>{name}</name>{xml}</use_tool>",
            f'<use_tool name="{name}">{xml}</use_tool>',
            f"<use_tool>{_any_order(rng, name, written)}</use_tool>",
            f'<function_calls><invoke name="{name}">{attributes}</invoke>\n<invoke name="{name}">{written}</invoke></function_calls>',
            f"<invoke name='{name}'>{attributes}</invoke>",
        )
    )


ENVELOPES: tuple[Callable[[Random, str, str], str], ...] = (_one, _nested, _several, _tagged, _tagged)


def model_text(rng: Random) -> str:
    """What a model may write: soup, calls between prose, or calls with accidents; now and then long enough to meet the limits."""
    kind = rng.random()
    if kind < 0.25:
        return text(rng, 14)
    whole = "".join(rng.choice((prose, text))(rng) + call_text(rng, rng.choice(RENDERED)) for _ in range(rng.randint(1, 3))) + prose(rng)
    if kind > 0.55:
        whole = mutated(rng, whole)
    if rng.random() < 0.03:
        place = rng.randint(0, len(whole))
        whole = whole[:place] + rng.choice(("x", "<", " ", "\n", "a b ", "{", "\\")) * rng.choice((500, 4090, 4100)) + whole[place:]
    return whole


# --- events ------------------------------------------------------------------------------------------------------------------------------------


def _short(rng: Random) -> str:
    return text(rng, 2) if rng.random() < 0.5 else rng.choice(WORDS)


def call_events(rng: Random, index: int, custom: bool) -> list[list[Any]]:
    kind = "custom" if custom and rng.random() < 0.3 else "function"
    written = json.dumps(arguments(rng), ensure_ascii=False)
    parts = pieces(written, sorted(rng.randint(0, len(written)) for _ in range(rng.randint(0, 4))))
    own = None if rng.random() < 0.5 else f"call_own{index}"
    events = [["CallBegin", index, rng.choice(NAMES), own, kind], *(["CallArgs", index, part] for part in parts)]
    return [*events, ["CallEnd", index, rng.choice(("ok", "ok", "repaired", "truncated", "invalid")), []]] if rng.random() < 0.9 else events


def run_events(rng: Random, wild: bool, custom: bool = True) -> list[list[Any]]:
    """The events of a run, as lists of a class name and its values: as a good backend sends them, or `wild`, with repetitions and strays."""
    events: list[list[Any]] = []
    calls = 0
    for _ in range(rng.randint(0, 7)):
        kind = rng.randrange(8)
        if kind < 3:
            events.append(["Text", _short(rng)])
        elif kind == 3:
            events.append(["Thought", _short(rng), rng.random() < 0.5])
        elif kind == 4 and rng.random() < 0.3:
            events.append(["Refusal", _short(rng)])
        elif kind == 5:
            events.append(["Usage", rng.randint(0, 9), rng.randint(0, 9), rng.randint(0, 3), rng.randint(0, 3)])
        else:
            events += call_events(rng, calls, custom)
            calls += 1
    if rng.random() < 0.9:
        events.append(["Finish", rng.choice(("stop", "stop", "tool_calls", "length", "content_filter"))])
    elif rng.random() < 0.8:
        events.append(["Failure", rng.choice(("backend", "timeout", "rate_limit", "server")), "!" + _short(rng)])
    if wild:
        for _ in range(rng.randint(1, 4)):
            events.insert(rng.randint(0, len(events)), rng.choice(events) if events and rng.random() < 0.7 else ["CallArgs", rng.randint(0, 3), _short(rng)])
    return events


# --- requests ----------------------------------------------------------------------------------------------------------------------------------

_FUNCTION = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"q": "x"}'}}
_FORMAT = {"name": "answer", "schema": {"type": "object", "properties": {}, "additionalProperties": False}, "strict": True}
_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}

CHAT_BODY: Case = {
    "model": "demo",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, _IMAGE], "name": "ann"},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [_CALL, {"id": "call_2", "type": "custom", "custom": {"name": "free", "input": "x"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "a cat"},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "So.", "reasoning_content": "Hm."},
        {"role": "user", "content": "Go on."},
    ],
    "tools": [{"type": "function", "function": {**_FUNCTION, "strict": True}}, {"type": "custom", "custom": {"name": "free", "format": {"type": "text"}}}],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "parallel_tool_calls": True,
    "response_format": {"type": "json_schema", "json_schema": _FORMAT},
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "top_p": 1,
    "max_completion_tokens": 100,
    "n": 2,
    "stop": ["END"],
    "seed": 7,
    "presence_penalty": 0.1,
    "logit_bias": {"50256": -100},
    "reasoning_effort": "low",
    "metadata": {"a": "b"},
    "user": "u",
    "store": False,
}
LEGACY_BODY: Case = {
    "model": "demo",
    "messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "function", "name": "look", "content": "nothing"},
    ],
    "functions": [_FUNCTION],
    "function_call": {"name": "look"},
}
RESPONSES_BODY: Case = {
    "model": "demo",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": "Hi"},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "e"},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "y"}]},
        {"type": "custom_tool_call", "id": "ct_1", "call_id": "call_2", "name": "free", "input": "text"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "z"},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "so", "annotations": []}]},
        {"type": "item_reference", "id": "x"},
        {"role": "user", "content": [{"type": "input_image", "image_url": "https://example.com/a.png", "detail": "auto"}, {"type": "input_text", "text": "?"}]},
    ],
    "tools": [
        {"type": "function", **_FUNCTION, "strict": False},
        {"type": "custom", "name": "free", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x+/"}},
        {"type": "web_search"},
        {"type": "namespace", "name": "team", "tools": [{"type": "function", "name": "ask", "parameters": {}}]},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
    "parallel_tool_calls": False,
    "text": {"format": {"type": "json_schema", **_FORMAT}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "truncation": "disabled",
    "include": ["reasoning.encrypted_content"],
    "max_output_tokens": 50,
    "max_tool_calls": 3,
    "temperature": 1.0,
    "previous_response_id": None,
    "store": True,
    "stream": True,
    "metadata": {},
}
_STRANGE = (None, True, False, 0, -1, 1, 2.5, 1e308, 2**70, "", "x", "auto", "none", "look", "\u2028\x00", [], [None], [[]], {}, {"type": "x"}, {"": {}}, "a" * 300)


def _places(what: Any, out: list[tuple[Any, Any]]) -> None:
    entries = list(what.items()) if isinstance(what, dict) else list(enumerate(what)) if isinstance(what, list) else []
    for place, inner in entries:
        out.append((what, place))
        _places(inner, out)


def strange_body(rng: Random, body: Case) -> Case:
    """A request with a few of its values replaced, lost, doubled or swapped with one another."""
    fresh: Case = json.loads(json.dumps(body))
    for name in [name for name in fresh if rng.random() < 0.3 and name not in ("model", "messages", "input")]:
        del fresh[name]
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        places: list[tuple[Any, Any]] = []
        _places(fresh, places)
        if not places:
            break
        holder, place = rng.choice(places)
        accident = rng.randrange(6)
        if accident == 0:
            del holder[place]
        elif accident == 1 and isinstance(holder, list):
            holder.insert(place, json.loads(json.dumps(holder[place])))
        elif accident == 2:
            other, there = rng.choice(places)
            holder[place] = json.loads(json.dumps(other[there]))
        elif accident == 3 and isinstance(holder, dict):
            holder[rng.choice(("type", "id", "name", "content", "role", "zz", "n", "tools", "stop", "function"))] = rng.choice(_STRANGE)
        elif accident == 4:
            holder[place] = value(rng, 2)
        else:
            holder[place] = rng.choice(_STRANGE)
    return fresh


def strange_bytes(rng: Random, raw: bytes) -> bytes:
    """The bytes of a request with a few accidents, some of them no UTF-8 and no JSON any more."""
    for _ in range(rng.randint(0, 3)):
        place = rng.randint(0, len(raw))
        junk = rng.choice((b"", b"\xff", b"\x00", b"\\ud800", b'"', b"{", b"[" * 300, b"1e999", b",", b"\xed\xa0\x80", b"NaN", b"\xef\xbb\xbf"))
        raw = raw[:place] + junk + raw[place + rng.choice((0, 1, 5)) :]
    return raw

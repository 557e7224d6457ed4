"""Draws random cases, made of dicts, lists, texts, numbers, booleans and None.

A failing case can therefore be printed, made smaller and pasted into a test. This module does not know what
is right; the laws in `properties.py` do. The markers come from the dialects' own table, so that a new dialect
is tested automatically.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise
from random import Random
from typing import Any, TypeVar

from toolwire.emulate.dialects import DIALECTS, NONCE
from toolwire.emulate.dialects.render import RENDER, render
from toolwire.emulate.dialects.shapes import TOOL
from toolwire.emulate.thoughts import THOUGHTS

T = TypeVar("T")
Case = dict[str, Any]
TOKEN = "k7Qz"
RENDERED = ("sentinel", *RENDER)
"""The dialects that Toolwire can write as well as read."""
LINE_START = frozenset(
    name for name, dialect in DIALECTS.items() if any(opener.line_start for opener in dialect.openers)
)

# --- texts ---


_NO_MARKERS = ("first", "separators", "name_keys", "arguments_keys", "known_keys")
_TAGS = re.compile(r"<\|open\|>.*?<\|sep\|>|<[^<>\n]+>|\[[A-Z_]+\]|\w+\(\w+=|call:\w+\{")
_LOOSE = """</think>|```|```json\n|~~~\n|<tool_call|tool_call>|<name>look</name>|<q>|</q>\
|&lt;|&#x3c;|&#99999999;|assistant|</s>|**{|to=look"""


def _texts_of(shape: Any) -> Iterator[str]:
    """Yields every text in a dialect's data: openers, closers, marks and tags of any grammar."""
    if isinstance(shape, str):
        yield shape
    elif isinstance(shape, tuple):
        for inner in shape:
            yield from _texts_of(inner)
    elif is_dataclass(shape):
        for field in fields(shape):
            if field.name not in _NO_MARKERS:
                yield from _texts_of(getattr(shape, field.name))


def _markers() -> list[str]:
    """Returns the dialects' markers, and the tags of a call that the data has only as patterns."""
    found = {*_LOOSE.split("|"), *_texts_of(tuple(dialect.openers for dialect in DIALECTS.values()))}
    for written in ('{"q": "x", "n": 1}', '{"<": 1}'):
        for dialect in DIALECTS:
            found |= set(_TAGS.findall(render(dialect, "look", written, nonce=TOKEN)))
    return sorted(
        {marker.replace(NONCE, TOKEN).replace(TOOL, "look").replace("{key}", "q") for marker in found} - {""}
    )


MARKERS = _markers()
NAMES = (
    "look",
    "get_weather",
    "write-file",
    "a",
    "functions.look",
    "Look",
    "tool_call",
    "use_tool",
    "nobody",
)
JSONISH = [
    *'{"name": "look", "arguments": {"q": 1}}|{"name": "look", "arguments": {|{"name":"a"}|{"type": '
    '"function", "function": {'.split("|"),
    *'"arguments": "{\\"q\\": '
    '2}"|{|}|[|]|,|:|"|\\|\\"|\\u00|\\ud83d|\\ude00|\\d|null|None|True|false|-|0|1e5|0.5|q: 1|\''.split("|"),
]
ODD = [
    *"\n\t\x00\x1f\x7f é\u2028\u2029\ufeff\ufffd😀\ud800\udc00\u202e`<>&",
    "\r\n",
    "\n\n",
    "</",
    "\udc00\udc00",
    "\ud83d\ude00",
]
WORDS = "The|cat|sat|on|a|mat.|So|x|Ich|gehe|weiß|日本|1 < 2|5 > 3|ok;|then:|…|<b>|</p>|<tool|<us".split("|")


def text(rng: Random, most: int = 6) -> str:
    """Returns any text at all."""
    return "".join(
        rng.choice(rng.choice((MARKERS, JSONISH, ODD, WORDS))) for _ in range(rng.randint(0, most))
    )


def prose(rng: Random) -> str:
    """Returns text that no dialect may read as a call, though it may begin like one.

    It never ends in a way that changes how the text after it is read.
    """
    size = rng.randint(0, 6)
    return "".join(rng.choice(WORDS) + rng.choice((" ", " ", " ", "\n", "\n\n")) for _ in range(size))


def cuts(rng: Random, size: int) -> list[int]:
    """Returns the positions at which a text is cut into pieces: often all of them, otherwise a few."""
    if rng.random() < 0.3:
        return list(range(1, size))
    return sorted(rng.randint(0, size) for _ in range(rng.randint(0, 12)))


def pieces(whole: str, places: Sequence[int]) -> list[str]:
    bounds = [0, *(min(place, len(whole)) for place in places), len(whole)]
    return [whole[start:stop] for start, stop in pairwise(bounds)]


def batches(whole: Sequence[T], places: Sequence[int]) -> list[list[T]]:
    bounds = [0, *(min(place, len(whole)) for place in places), len(whole)]
    return [list(whole[start:stop]) for start, stop in pairwise(bounds)]


def mutated(rng: Random, whole: str) -> str:
    """Returns the text with a few pieces removed, doubled, swapped, cut off or inserted."""
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


# --- JSON ---


def key(rng: Random) -> str:
    return (
        rng.choice(("q", "path", "b", "n", "city", "name", "x-y", "a.b"))
        if rng.random() < 0.8
        else text(rng, 2)
    )


def scalar(rng: Random) -> Any:
    kind = rng.randrange(7)
    if kind < 3:
        return text(rng, 4)
    if kind == 3:
        return rng.choice((0, -0.0, 1, -1, 7, 2**53, -(2**63), 10**40, 0.1, 1e-300, 1.5e300, 123456.75))
    if kind == 4:
        return rng.choice(
            (
                "",
                " ",
                "true",
                "null",
                "12",
                "-1.5",
                '"quoted"',
                "[1]",
                "{}",
                "None",
                " padded ",
                "\nline\n",
                "'single'",
            )
        )
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
    """Returns the value as JSON, with random white space, escapes and separators."""
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
    """Returns JSON, JSON with the mistakes that models make, or a text that resembles JSON."""
    whole = dumped(rng, value(rng))
    kind = rng.randrange(4)
    if kind == 1:
        whole = rng.choice(SLOPPY)(whole)
    elif kind == 2:
        whole = mutated(rng, whole)
    elif kind == 3:
        whole = "".join(
            rng.choice(JSONISH) if rng.random() < 0.8 else rng.choice(ODD) for _ in range(rng.randint(0, 9))
        )
    return whole


# --- tools and calls ---

_TYPES: dict[type, str] = {
    **{bool: "boolean", int: "integer", float: "number", str: "string"},
    **{list: "array", dict: "object", type(None): "null"},
}


def schema_for(rng: Random, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns a schema that allows the arguments of all calls. All, some or no keys have a type."""
    typed = rng.choice((0.0, 0.5, 1.0))
    properties: dict[str, Any] = {}
    for name in dict.fromkeys(key for values in calls for key in values):
        words = {_TYPES[type(values[name])] for values in calls if name in values}
        if rng.random() < typed:
            properties[name] = {
                "type": sorted(words) if len(words) > 1 or rng.random() < 0.2 else words.pop()
            }
    return {"type": "object", "properties": properties} if properties or rng.random() < 0.5 else {}


def tool(rng: Random, name: str, parameters: dict[str, Any], strict: bool = False) -> dict[str, Any]:
    flat: dict[str, Any] = {"name": name, "parameters": parameters, "strict": strict}
    return {"type": "function", **flat} if rng.random() < 0.3 else {"type": "function", "function": flat}


def toolbox(rng: Random) -> list[dict[str, Any]]:
    parameters: tuple[dict[str, Any], ...] = (
        {},
        {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}},
    )
    return [
        tool(rng, name, rng.choice(parameters), rng.random() < 0.15)
        for name in ("look", *rng.sample(NAMES, rng.randint(0, 2)))
    ]


def parser_settings(rng: Random) -> Case:
    """Returns all arguments of a parser, except the text and its cuts."""
    names = list(DIALECTS)
    roll = rng.random()
    limits = [
        rng.choice((1, 3, 17, 40, 90, 4095, 4200)),
        rng.choice((1, 20, 60, 200, 8192)),
        rng.randint(0, 3),
    ]
    return {
        "tools": toolbox(rng),
        "dialects": None if roll < 0.2 else names if roll < 0.5 else rng.sample(names, rng.randint(1, 3)),
        "arguments": rng.choice(("eager", "validated")),
        "nonce": TOKEN if rng.random() < 0.9 else None,
        "limits": limits if rng.random() < 0.25 else None,
        "unknown_tool": rng.choice(("text", "text", "forward", "error")),
        "checked": rng.random() < 0.5,
        "quoted": [],
        "thoughts": rng.choice((None, False, False, True)),
        "reason": rng.choice(("eof", "eof", "length", "cancelled")),
    }


def call_text(rng: Random, dialect: str, sloppy: bool = True) -> str:
    name = rng.choice(NAMES) if rng.random() < 0.4 else "look"
    written = dumped(rng, arguments(rng))
    if sloppy and rng.random() < 0.2:
        written = rng.choice(SLOPPY)(written)
    if rng.random() < 0.6:
        return render(dialect, name, written, nonce=TOKEN)
    return rng.choice(ENVELOPES)(rng, name, written)


def _block(rng: Random, *inner: str) -> str:
    """Returns calls as JSON between the markers of a dialect that accepts JSON calls."""
    sentinel = (f"<tool_call:{TOKEN}>\n", f"\n</tool_call:{TOKEN}>")
    opener, closer = rng.choice(
        (("<tool_call>", "</tool_call>"), sentinel, ("```json\n", "\n```"), ("\n", "\n"))
    )
    whole = rng.choice(("\n", " ", ",")).join(inner)
    return opener + (f"[{whole}]" if rng.random() < 0.3 else whole) + (closer if rng.random() < 0.9 else "")


def _any_order(rng: Random, name: str, written: str) -> str:
    if rng.random() < 0.4:
        written = json.dumps(
            written if rng.random() < 0.6 else dumped(rng, value(rng, 1)), ensure_ascii=rng.random() < 0.5
        )
    members = [f'"name": {json.dumps(name)}', f'"{rng.choice(("arguments", "parameters"))}": {written}']
    members = [*members, '"type": "function"', '"id": "c"', '"note": [1, {}]'][: rng.randint(1, 5)]
    rng.shuffle(members)
    return "{" + ", ".join(members) + rng.choice(("}", "}", "}", "}}", ",}"))


def _one(rng: Random, name: str, written: str) -> str:
    return _block(rng, _any_order(rng, name, written))


def _nested(rng: Random, name: str, written: str) -> str:
    return _block(rng, f'{{"type": "function", "function": {_any_order(rng, name, written)}}}')


def _several(rng: Random, name: str, written: str) -> str:
    return _block(rng, *(_any_order(rng, name, written) for _ in range(rng.randint(2, 3))))


def _tagged(rng: Random, name: str, written: str) -> str:
    """Returns calls in tags, several in one wrapper, with values that are not always closed."""
    tags = "".join(
        f"<parameter={key(rng)}>{rng.choice(('', chr(10)))}{text(rng, 3)}</parameter>"
        for _ in range(rng.randint(0, 2))
    )
    xml = "".join(
        f"<{inner}>{text(rng, 3)}</{inner}>"
        for inner in rng.sample(("q", "n", "name", "path"), rng.randint(0, 3))
    )
    attributes = "".join(
        f'<parameter name="{key(rng)}">{text(rng, 3)}</parameter>' for _ in range(rng.randint(0, 2))
    )
    return rng.choice(
        (
            f"<tool_call><function={name}>{tags}</function><function={name}>{tags}</function></tool_call>",
            f"<function={name}>{tags}</function>",
            f"<tool_call><function={name}>{written}</function></tool_call>",
            f"<use_tool><name>{name}</name>{xml}</use_tool>",
            f'<use_tool name="{name}">{xml}</use_tool>',
            f"<use_tool>{_any_order(rng, name, written)}</use_tool>",
            f'<function_calls><invoke name="{name}">{attributes}</invoke>\n'
            f'<invoke name="{name}">{written}</invoke></function_calls>',
            f"<invoke name='{name}'>{attributes}</invoke>",
        )
    )


WRAPPED: tuple[tuple[str, str, str, str], ...] = (
    (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nJSON\n```<｜tool▁call▁end｜>",
        "\n",
        "<｜tool▁calls▁end｜>",
    ),
    (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>JSON<｜tool▁call▁end｜>",
        "",
        "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
    ),
    (
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>JSON<|tool_call_end|>",
        "",
        "<|tool_calls_section_end|>",
    ),
    (
        "",
        "<|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>JSON<|call|>",
        "",
        "",
    ),
    (
        "<|channel|>analysis<|message|>VALUE<|end|>",
        "<|start|>assistant to=functions.NAME<|channel|>commentary json<|message|>JSON<|call|>",
        "",
        "",
    ),
    ("", "to=functions.NAME <|channel|>commentary<|message|>JSON<|call|>", "", ""),
    ("", "[TOOL_CALLS]NAME[CALL_ID]c1[ARGS]JSON", "", "</s>"),
    ("", "[TOOL_CALLS]NAMEJSON", "", ""),
    ("[", "NAME(KEY=JSON, n=-1.5)", ", ", "]"),
    ("[", "NAME(**JSON)", ",", "]"),
    ("<|python_start|>", '[NAME(KEY=\'VALUE\', n=(1, None), q=r"""VALUE""")]', "", "<|python_end|>"),
    ("<function_calls>", "NAME(KEY=[True, {}])", "\n", "</function_calls>"),
    ("<|tool_call_start|>[", "NAME(KEY=JSON)", ", ", "]<|tool_call_end|>"),
    ("<|tool_call_start|>", '[{"name": "NAME", "arguments": JSON}]', "", "<|tool_call_end|>"),
    ("<|tool_call>", 'call:NAME{KEY:<|"|>VALUE<|"|>,n:-1.5,b:[JSON]}', "", "<tool_call|>"),
    (
        "<start_function_call>",
        "call:NAME{KEY:<escape>VALUE<escape>,n:<escape>7<escape>}",
        "",
        "<end_function_call>",
    ),
    (
        "<tool_call>",
        "NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>",
        "</tool_call>\n<tool_call>",
        "</tool_call>",
    ),
    ("<tool_call>", "NAME", "</tool_call><tool_call>", "</tool_call>"),
    (
        "<minimax:tool_call>\n",
        "<invoke name=NAME>\n<parameter name='KEY'>VALUE</parameter>\n</invoke>",
        "\n",
        "\n</minimax:tool_call>",
    ),
    (
        "<｜DSML｜tool_calls>\n",
        '<｜DSML｜invoke name="NAME">\n'
        '<｜DSML｜parameter name="KEY" string="true">VALUE</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>",
        "\n",
        "</｜DSML｜tool_calls>",
    ),
    ("", '<｜DSML｜invoke name="NAME">JSON</｜DSML｜invoke>', "\n", ""),
    (
        "<|open|>tools<|sep|>",
        '<|open|>call tool="NAME" index="1"<|sep|><|open|>argument key="KEY" '
        'type="string"<|sep|>VALUE<|close|>argument<|sep|><|close|>call<|sep|>',
        "",
        "<|close|>tools<|sep|>",
    ),
    (
        "",
        '<|open|>call tool="NAME"<|sep|><|open|>json<|sep|>JSON<|close|>json<|sep|><|close|>call<|sep|>',
        "",
        "",
    ),
    ("", "<NAME>\n<KEY>VALUE</KEY>\n</NAME>", "\n", ""),
    ("", "<NAME>\nKEY: VALUE\nn: [1, 'b']\nb: |\n  VALUE\n</NAME>", "\n", ""),
    ("", "<NAME>JSON</NAME>", "", ""),
    ("<|python_tag|>", '{"name": "NAME", "parameters": JSON}', "; ", "<|eom_id|>"),
    (
        "<|START_ACTION|>[",
        '{"tool_call_id": "0", "tool_name": "NAME", "parameters": JSON}',
        ",\n",
        "]<|END_ACTION|>",
    ),
    ("<|tool_call|>[", '{"arguments": JSON, "name": "NAME"}', ", ", "]"),
)
"""Calls as models write them.

Each entry has the text before the calls, one call, the text between two calls, and the text after them.
"""


def _wrapped(rng: Random, name: str, written: str) -> str:
    before, call, between, behind = rng.choice(WRAPPED)
    calls = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        one = (
            call.replace("NAME", name)
            .replace("KEY", rng.choice(("q", "n", "path", "x-y")))
            .replace("JSON", written)
        )
        calls.append(one.replace("VALUE", text(rng, 3)))
    return before + between.join(calls) + (behind if rng.random() < 0.9 else "")


ENVELOPES: tuple[Callable[[Random, str, str], str], ...] = (
    _one,
    _nested,
    _several,
    _tagged,
    _tagged,
    *[_wrapped] * 6,
)


def thought(rng: Random, around: str = "") -> str:
    """Returns reasoning between the markers of a model. Sometimes, the closing marker is missing."""
    markers = rng.choice(THOUGHTS)
    closer = markers.closer + rng.choice(("", "", *markers.then)) if rng.random() < 0.8 else ""
    space = rng.choice(("", "\n", " ", "\n\n"))
    return (
        rng.choice(("", space))
        + markers.opener
        + space
        + (around or rng.choice((prose, text))(rng))
        + space
        + closer
        + space
    )


def model_text(rng: Random) -> str:
    """Returns a text that a model may write; sometimes very long.

    It is random markup, or calls between prose, or damaged calls.
    """
    kind = rng.random()
    if kind < 0.25:
        return text(rng, 14)
    whole = "".join(
        rng.choice((prose, text))(rng) + call_text(rng, rng.choice(RENDERED))
        for _ in range(rng.randint(1, 3))
    ) + prose(rng)
    if rng.random() < 0.4:
        whole = thought(rng, whole) if rng.random() < 0.5 else thought(rng) + whole
    if kind > 0.55:
        whole = mutated(rng, whole)
    if rng.random() < 0.03:
        place = rng.randint(0, len(whole))
        whole = (
            whole[:place]
            + rng.choice(("x", "<", " ", "\n", "a b ", "{", "\\")) * rng.choice((500, 4090, 4100))
            + whole[place:]
        )
    return whole

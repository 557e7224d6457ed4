"""Law: any JSON arguments survive every dialect, with every marker inside strings, however the text is cut; and the text around them stays as it
is.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from toolwire.emulate.dialects import DIALECTS, NONCE
from toolwire.emulate.dialects.render import render
from toolwire.emulate.scanner import ToolCallParser
from toolwire.events import CallArgs, CallEnd, Text

MARKERS = [opener.marker.replace(NONCE, "k7") for dialect in DIALECTS.values() for opener in dialect.openers] + [
    "</tool_call>",
    "</tool_call:k7>",
    "</function>",
    "</parameter>",
    "</invoke>",
    "</function_calls>",
    "</use_tool>",
    "</a>",
    "<name>",
    "```",
    "&lt;",
    "\\u003c",
    '"',
    "\\",
    "\n",
    "\x00",
    "\u2028",
    "😀",
]
texts = st.text(max_size=12) | st.lists(st.sampled_from(MARKERS) | st.text(max_size=4), max_size=6).map("".join)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
plain_keys = st.sampled_from(["a", "b", "name", "city_2", "x-y", "input"])
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "city_2": {"type": "string"}}}


@st.composite
def argument_objects(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments that the schema allows: `a` and `city_2` are strings, all else is anything under any key."""
    out: dict[str, Any] = draw(st.dictionaries(plain_keys | texts, values, max_size=4))
    return {key: (draw(texts) if key in ("a", "city_2") else value) for key, value in out.items()}


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(sorted(DIALECTS)),
    argument_objects(),
    st.booleans(),
    st.sampled_from(["eager", "validated"]),
    st.lists(st.integers(0, 400), max_size=8),
)
@example("qwen_xml", {"a": '"quoted"', "b": "5"}, False, "eager", [])
@example("use_tool", {"a": "</a> & <b>", "b": "null"}, False, "eager", [3, 9])
def test_any_arguments_survive_every_dialect(dialect: str, arguments: dict[str, Any], ascii_only: bool, mode: Any, cuts: list[int]) -> None:
    written = render(dialect, "f", json.dumps(arguments, ensure_ascii=ascii_only), schema=SCHEMA, nonce="k7")
    text = "Before it.\n" + written + "\nBehind it."
    parser = ToolCallParser([{"type": "function", "name": "f", "parameters": SCHEMA}], [dialect], mode, "k7")
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    events = [event for start, end in pairwise(places) for event in parser.feed(text[start:end])] + parser.finish()
    assert [event.status for event in events if isinstance(event, CallEnd)] == ["ok"]
    assert json.loads("".join(event.delta for event in events if isinstance(event, CallArgs))) == arguments
    assert "".join(event.text for event in events if isinstance(event, Text)) == "Before it.\n\nBehind it."

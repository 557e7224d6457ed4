"""The law of damaged calls: a call with damaged markup is never read as a valid call with other arguments.

In each case, one accident changes the markup. The text must then be read as the same call, as text, or as a
call that is marked as broken. Values and keys are plain words, so that every position outside of them is
markup. An accident inside a value is tried only if the dialect quotes values, because in other dialects the
result is simply another valid value.
"""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

from fuzz import generate
from fuzz.dialect_laws import _object
from fuzz.law import Broken, Case, Law
from fuzz.scanner_laws import exact, plain
from toolwire.emulate.dialects import DIALECTS
from toolwire.emulate.dialects.render import render
from toolwire.emulate.scanner import ToolCallParser

NAME = "get_weather"
KEYS = {"city": "string", "unit": "string", "days": "integer", "tags": "array", "where": "object"}
WORDS = ("Alpha", "Bravo", "Delta", "Echo", "Golf")
TAGGED = frozenset({"use_tool", "qwen_xml", "anthropic", "glm", "minimax", "dsml", "kimi_k3", "tag_is_tool"})
"""Dialects whose values are text between tags: everything outside of tags belongs to a value."""
QUOTED = frozenset(generate.RENDERED) - TAGGED - {"gemma"}
"""Dialects whose values are JSON or Python, so that a quotation mark inside a value has a meaning."""
JOINING = frozenset({"pythonic", "lfm2"})
"""Dialects in which adjacent strings are joined: a list that lost a comma is a different valid list."""
TWIN = "cityTwin"
_TOKEN = re.compile(r"<\|[^<>]*\|>|<[^<>\n]+>|\[/?[A-Z_]+\]|```\w*|\"[}\]]+|[{}\[\]():,=\"\n;]")
_WORD = re.compile(r"\w+")
ACCIDENTS = ("drop", "lose", "double", "swap", "quote", "close", "cut")


def draw(rng: Random, dialect: str | None = None) -> Case:
    dialect = dialect or rng.choice(generate.RENDERED)
    calls = []
    kept = rng.sample(sorted(KEYS), rng.randint(1, 4))
    for _ in range(rng.choice((1, 1, 2))):
        values: dict[str, Any] = {
            "city": rng.choice(WORDS),
            "unit": rng.choice(WORDS),
            "days": rng.randint(10, 99),
        }
        values |= {"tags": rng.sample(WORDS, 2), "where": {"city": rng.choice(WORDS), "days": 7}}
        calls.append({key: values[key] for key in kept})
    accident = rng.choice((*ACCIDENTS, "twin"))
    if accident == "twin":
        calls[0] |= {"city": "Alpha", TWIN: "Golf"}
    return {
        "dialect": dialect,
        "dialects": sorted(DIALECTS) if rng.random() < 0.3 else [dialect],
        "declared": rng.random() < 0.7,
        "calls": calls,
        "accident": accident,
        "place": rng.random(),
        "mark": rng.choice(('"', "'")),
        "compact": rng.random() < 0.5,
        "behind": rng.choice(("", "\nThat is it.", " and so on")),
        "arguments": rng.choice(("eager", "validated")),
    }


def schema(case: Case) -> dict[str, Any]:
    """Returns the schema of the case's tool. All keys are required.

    Therefore, a call that lost some keys cannot be read as a call that only lost its closing tags.
    """
    required = sorted(set(case["calls"][0]) - {TWIN}) if case["calls"] else []
    properties = {key: {"type": kind} for key, kind in KEYS.items()} if case["declared"] else {}
    return {"type": "object", "properties": properties, "required": required}


def damaged(case: Case) -> str | None:
    """Returns the damaged text of a case, or None if this accident is not possible in it."""
    separators = (",", ":") if case["compact"] else (", ", ": ")
    written = [
        render(
            case["dialect"],
            NAME,
            json.dumps(call, separators=separators),
            schema=schema(case),
            nonce=generate.TOKEN,
        )
        for call in case["calls"]
    ]
    text = "\n".join(written)
    if case["accident"] == "twin":
        return text.replace(TWIN, "city") + case["behind"]
    kept = {word for call in case["calls"] for word in _WORD.findall(json.dumps(call))}
    words = [found.span() for found in _WORD.finditer(text) if found.group() in kept]
    if case["dialect"] in TAGGED:
        words += [found.span() for found in re.finditer(r"(?<=>)[^<>]*[^<>\s][^<>]*(?=<)", text)]
    inside = {place for start, stop in words for place in range(start, stop)}
    values = {
        place
        for start, stop in words
        for place in range(start + 1, stop)
        if text[start:stop] in " ".join(WORDS)
    }
    text = _accident(case, text, inside, values) or ""
    return text + case["behind"] if text else None


def _accident(case: Case, text: str, inside: set[int], values: set[int]) -> str | None:
    kind, quoted = case["accident"], case["dialect"] in QUOTED
    tokens = [found.span() for found in _TOKEN.finditer(text) if found.start() not in inside]
    if kind == "drop":
        places = [place for place in range(len(text)) if place not in inside]
        place = places[int(case["place"] * len(places))]
        return text[:place] + text[place + 1 :] if not _joins(case, text[place]) else None
    if kind == "cut":
        return text[: int(case["place"] * len(text))]
    if kind in ("quote", "close"):
        places = (
            sorted(values)
            if kind == "close"
            else [place for place in range(len(text)) if quoted or _in_tag(text, place)]
        )
        if not places or (kind == "close" and not quoted):
            return None
        place = places[int(case["place"] * len(places))]
        only = quoted or case["dialect"] in (
            "dsml",
            "kimi_k3",
        )  # an apostrophe has no meaning there: it results in another value or key
        mark = (
            ('"' if only else case["mark"])
            if kind == "quote"
            else '"' + ("}", "}}", ")", "]", ")]", "}]")[int(case["place"] * 997) % 6]
        )
        return text[:place] + mark + text[place:]
    at = int(case["place"] * (len(tokens) - 1))
    (start, stop), (after, end) = tokens[at], tokens[at + 1]
    if _joins(case, text[start:stop]) or _joins(case, text[after:end]):
        return None
    if kind == "lose":
        return text[:start] + text[stop:]
    if kind == "double":
        return text[:stop] + text[start:]
    if "\n" in text[start:end] or '"' in text[start:end]:
        return None  # markup would move into a value, and so make another valid value
    return text[:start] + text[after:end] + text[stop:after] + text[start:stop] + text[end:]


def _joins(case: Case, token: str) -> bool:
    return token == "," and case["dialect"] in JOINING


def _in_tag(text: str, place: int) -> bool:
    return text.rfind("<", 0, place) > text.rfind(">", 0, place)


def judge(case: Case) -> None:
    text = damaged(case)
    if text is None:
        return
    parser = ToolCallParser(
        [{"name": NAME, "parameters": schema(case)}], case["dialects"], case["arguments"], generate.TOKEN
    )
    whole = plain(parser.feed(text) + parser.finish())
    wanted = [] if case["accident"] == "twin" else [exact(call) for call in case["calls"]]
    if case["accident"] == "twin" and len(case["calls"]) > 1:
        wanted = [exact(case["calls"][1])]
    written = ""
    for event in whole:
        if event[0] == "begin":
            written = ""
        elif event[0] == "arguments":
            written = event[2]
        elif (
            event[0] == "end"
            and event[2] in ("ok", "repaired")
            and _sorted(written) not in map(_sorted, wanted)
        ):
            raise Broken(
                f"a damaged call never has other arguments ({case['dialect']})",
                f"{wanted} or no call of {text!r}",
                (written, event),
            )


def _sorted(written: str) -> str:
    return json.dumps(_object(written), sort_keys=True)


LAWS: dict[str, Law] = {
    "damaged_calls": Law(
        draw, judge, "a damaged call is read as the same call, as text, or as a broken call", ("calls",)
    )
}

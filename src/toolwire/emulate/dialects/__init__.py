"""How models write tool calls in text. Every format is data, and one scanner reads them all.

A dialect has openers: markers that may begin a block, each with the shape of the block. A block is only a
candidate for a call: if it breaks its grammar before the name of a known tool, it is text. No marker is the
beginning of another marker.

shapes.py    the data types: openers and the shapes of blocks
formats.py   the formats themselves
render.py    writes calls in each format
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from toolwire.emulate.dialects.formats import ENVELOPED, HEADED, LITERAL, TAGGED
from toolwire.emulate.dialects.shapes import NONCE, Dialect, JsonBlock, Opener, TagBlock

__all__ = ["DEFAULT", "DIALECTS", "NONCE", "Dialect", "JsonBlock", "Opener", "TagBlock", "select"]

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (*ENVELOPED, *HEADED, *TAGGED, *LITERAL)}

DEFAULT = ("sentinel", "hermes", "use_tool")


def select(names: Iterable[str] | None) -> list[Dialect]:
    """Returns the dialects with these names, in this order; for None, the default dialects.

    Raises a `ValueError` with all known names if a name is unknown.
    """
    chosen = []
    for name in DEFAULT if names is None else names:
        if name not in DIALECTS:
            raise ValueError(f"unknown dialect {name!r}; known: {', '.join(DIALECTS)}")
        chosen.append(DIALECTS[name])
    return chosen


# --- model families ---
#
# The prompt teaches every model the dialect `sentinel`. The scanner also looks for the dialect that the
# model's family was trained on, because models often write this one in spite of the prompt. The data comes
# from the families' chat templates.

# The first row whose pattern is found in the model's name decides, so more specific patterns come first.
FAMILIES: tuple[tuple[str, str], ...] = (
    (r"qwen-?3[._-]?[5-9]|qwen3?[._-]?coder|qwen3-next|nemotron-?3|step-?3\.5|mimo|seed-?oss", "qwen_xml"),
    (r"glm-?4|glm-?5|chatglm", "glm"),
    (r"kimi-?k3", "kimi_k3"),
    (r"kimi|moonshot", "kimi"),
    (r"deepseek-?(?:v3\.2|v4)", "dsml"),
    (r"deepseek-?v3\.1", "deepseek_v31"),
    (r"deepseek", "deepseek_v3"),
    (r"minimax", "minimax"),
    (r"gpt-oss", "harmony"),
    (r"functiongemma|gemma-?[4-9]", "gemma"),
    (r"llama-?4|llama-?3\.2-?[13]b|toolace|olmo-?3", "pythonic"),
    (r"llama-?3", "llama_json"),
    (
        r"devstral|ministral|magistral|mistral-small-?(?:3|24|latest)|mistral-(?:medium|large)",
        "mistral_compact",
    ),
    (r"mistral|mixtral|nemo\b", "mistral"),
    (r"lfm-?2", "lfm2"),
    (r"command-?(?:r|a)|cohere|\baya\b", "cohere"),
    (r"granite-?4", "hermes"),
    (r"granite", "granite"),
    (r"claude", "anthropic"),
    (r"hermes|qwen|trinity|smollm", "hermes"),
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), dialect) for pattern, dialect in FAMILIES)


def family_of(model: str) -> str | None:
    """Returns the dialect of the model's family, or None if the name matches no family."""
    return next((dialect for pattern, dialect in _COMPILED if pattern.search(model)), None)


def dialects_of(model: str, chosen: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the dialects to look for in a model's text.

    These are the dialects that the settings name (`chosen`). If the settings name none, they are those in
    `DEFAULT` and the dialect of the model's family.
    """
    if chosen:
        return tuple(chosen)
    own = family_of(model)
    return DEFAULT if own is None or own in DEFAULT else (*DEFAULT, own)

"""The dialect that each model family was trained on, by the model's name.

The prompt teaches every model the sentinel. The scanner also looks for the family's own dialect, because
models fall back to it. The data comes from the families' chat templates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from toolwire.emulate.dialects import DEFAULT

# The first row whose pattern is found in the model's name decides. Narrow rows come before wide ones.
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
    """The dialect of a model's family; None if the name matches no family."""
    return next((dialect for pattern, dialect in _COMPILED if pattern.search(model)), None)


def dialects_of(model: str, chosen: Sequence[str] | None) -> tuple[str, ...]:
    """The dialects to look for: those of the settings, else the default ones and the family's own."""
    if chosen:
        return tuple(chosen)
    own = family_of(model)
    return DEFAULT if own is None or own in DEFAULT else (*DEFAULT, own)

"""Which dialect a model writes by habit, known by its name: data, read from the families' own chat templates. Standard library only.

A model is taught the sentinel whatever its family is; its own dialect is looked for beside it, since habits outlive instructions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from toolwire.emulate.dialects import DEFAULT

# The first row whose pattern stands in the model's name decides. Narrow rows come before wide ones.
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
    (r"devstral|ministral|magistral|mistral-small-?(?:3|24|latest)|mistral-(?:medium|large)", "mistral_compact"),
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
    """The dialect of a model's family, None where its name says nothing."""
    return next((dialect for pattern, dialect in _COMPILED if pattern.search(model)), None)


def dialects_of(model: str, chosen: Sequence[str] | None) -> tuple[str, ...]:
    """What is looked for in a model's text: what the settings say, else the default and the family's own."""
    if chosen:
        return tuple(chosen)
    own = family_of(model)
    return DEFAULT if own is None or own in DEFAULT else (*DEFAULT, own)

"""Words by which servers refuse tools, a `tool_choice`, or a schema or grammar for a model. A refusal that is known here is healed: the way that was
refused is left for a while, and the turn is served in another way. Any other error stays an error.
"""

from __future__ import annotations

import re
from typing import Literal

Refused = Literal["tools", "choice", "constraint"]

STATUSES = frozenset({400, 404, 405, 422, 500, 501})
"""Statuses of answers that may be refusals. 200 too, where an error stands in the answer."""

_LISTED = r"does not support parameters: [\[{{][^\]}}]*['\"](?:{0})['\"]"

# The order counts: the first that matches holds.
REFUSALS: tuple[tuple[Refused, str, str], ...] = (
    ("tools", "ollama", r"does not support tools\b"),  # 400: "registry.ollama.ai/library/gemma3:4b does not support tools"
    ("tools", "openrouter", r"no endpoints found that support tool use"),  # 404
    ("choice", "openrouter", r"no endpoints found that support the provided 'tool_choice'"),  # 404
    ("constraint", "openrouter", r"no endpoints found that can handle the requested parameters"),  # 404, with require_parameters
    ("tools", "vllm", r'"auto" tool choice requires --enable-auto-tool-choice'),  # 400
    ("tools", "vllm", r"tool_choice=.{0,200} requires --tool-call-parser to be set"),  # 400
    ("tools", "llamacpp", r"\b(?:tools|tool_choice) param requires --jinja flag"),  # 500
    ("choice", "lmstudio", r"invalid tool_choice type: '?object"),  # 400
    ("choice", "llamacpp", r"\binvalid tool_choice: "),  # 400
    ("tools", "litellm", _LISTED.format("tools|functions")),  # 400
    ("choice", "litellm", _LISTED.format("tool_choice")),
    ("constraint", "litellm", _LISTED.format("response_format")),
    ("tools", "openai", r"\btools is not supported in this model"),  # 400
    ("tools", "openai", r"unsupported parameter: 'tools'"),  # 400
    ("choice", "openai", r"unsupported (?:parameter|value): 'tool_choice'"),
    ("tools", "azure", r"functions are not supported for this api version or this model"),  # 400
    ("tools", "google", r"(?:tool use with function calling is unsupported|function calling is not enabled for)"),  # 400
    ("tools", "others", r"(?:tool|function)[ _]?(?:call(?:ing|s)?|use)`? (?:is|are) not (?:supported|enabled) (?:for|with|by|in) (?:\w+ )?model"),
    ("tools", "others", r"model[^.]{0,120} does(?: not|n't) support (?:tool|function)[ _]?(?:call(?:ing|s)?|use)\b"),
    ("constraint", "openai", r"invalid parameter: 'response_format' of type 'json_schema' is not supported"),
    ("constraint", "openai", r"invalid schema for response_format"),
    ("constraint", "deepseek", r"response_format type is unavailable"),
    ("constraint", "lmstudio", r"'?response_format(?:\.\w+)*'? must be"),
    ("constraint", "llamacpp", r"response_format type must be one of|failed to (?:parse|initialize) (?:grammar|samplers)|json_schema_to_grammar"),
    ("constraint", "ollama", r"\binvalid (?:json )?schema in format|failed to load model vocabulary required for format"),
    ("constraint", "vllm", r"structural[_ ]tag|structured[_ ]outputs?.{0,80}(?:not supported|unsupported|invalid)"),
    ("constraint", "vllm", r"grammar error|failed to convert the grammar"),
    ("constraint", "others", r"(?:response_format|json_schema|grammar)\b.{0,80}(?:not supported|unsupported|unavailable|not available|not allowed)"),
    ("constraint", "others", r"(?:not support|unsupported|unrecognized|unknown).{0,60}\b(?:response[_ ]format|json_schema|grammar|structured out)"),
)
_PATTERNS = tuple((what, re.compile(pattern, re.IGNORECASE)) for what, _, pattern in REFUSALS)
WORDS_LIMIT = 8192


def refused(words: str, asked: frozenset[Refused]) -> Refused | None:
    """What of the things `asked` for a server's words refuse."""
    words = words[:WORDS_LIMIT]
    return next((what for what, pattern in _PATTERNS if what in asked and pattern.search(words)), None)

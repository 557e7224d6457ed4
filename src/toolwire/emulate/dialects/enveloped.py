"""Dialects whose calls are JSON objects that hold the name: `{"name": …, "arguments": …}` behind a marker, or bare. Standard library only."""

from __future__ import annotations

from toolwire.emulate.dialects.shapes import NONCE, Dialect, JsonBlock, Opener

_FENCED = JsonBlock(closers=("```",), exact=True)
_FENCE_WORDS = ("json", "tool_call", "tool_calls", "tool", "")

ENVELOPED = (
    Dialect(
        "sentinel",
        (Opener(f"<tool_call:{NONCE}>", JsonBlock(closers=(f"</tool_call:{NONCE}>", "</tool_call>"))),),
        recovery=False,
        note="what Toolwire teaches; its token is fresh for every request",
    ),
    Dialect("hermes", (Opener("<tool_call>", JsonBlock(closers=("</tool_call>",))),), note="Hermes 2/3, Qwen2.5, Qwen3 and many fine-tunes"),
    Dialect("bare", (Opener("{", JsonBlock(exact=True), whole=True, line_start=True),), note="small models that leave the markers out"),
    Dialect(
        "fenced",
        tuple(Opener(f"```{word}\n", _FENCED, line_start=True) for word in _FENCE_WORDS),
        note="a call in a code fence",
    ),
)

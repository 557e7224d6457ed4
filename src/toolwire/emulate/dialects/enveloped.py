"""Dialects whose calls are JSON objects that hold the name: `{"name": …, "arguments": …}` behind a marker, or bare. Standard library only."""

from __future__ import annotations

from toolwire.emulate.dialects.shapes import NONCE, Dialect, JsonBlock, Opener

_FENCED = JsonBlock(closers=("```",), exact=True)
_FENCE_WORDS = ("json", "tool_call", "tool_calls", "tool", "")
_HERMES = Opener("<tool_call>", JsonBlock(closers=("</tool_call>",)))
_LLAMA_CLOSERS = ("<|eom_id|>", "<|eot_id|>")
_BARE = Opener(
    "{",
    JsonBlock(closers=_LLAMA_CLOSERS, exact=True, separators=";", separated=True, open_ended=True),
    whole=True,
    line_start=True,
)

ENVELOPED = (
    Dialect(
        "sentinel",
        (Opener(f"<tool_call:{NONCE}>", JsonBlock(closers=(f"</tool_call:{NONCE}>", "</tool_call>"))),),
        recovery=False,
        note="what Toolwire teaches; its token is fresh for every request",
    ),
    Dialect("hermes", (_HERMES,), note="Hermes 2/3, Qwen2.5, Qwen3, Granite 4 and many fine-tunes"),
    Dialect("bare", (_BARE,), note="small models that leave the markers out"),
    Dialect(
        "fenced",
        tuple(Opener(f"```{word}\n", _FENCED, line_start=True) for word in _FENCE_WORDS),
        note="a call in a code fence",
    ),
    Dialect(
        "llama_json",
        (Opener("<|python_tag|>", JsonBlock(closers=_LLAMA_CLOSERS, separators=",;", open_ended=True)), _BARE),
        note="Llama 3.1, 3.2, 3.3",
    ),
    Dialect(
        "cohere",
        (Opener("<|START_ACTION|>", JsonBlock(closers=("<|END_ACTION|>",), name_keys=frozenset({"tool_name", "name"}))),),
        note="Command R7B, Command A and later",
    ),
    Dialect(
        "granite",
        (Opener("<|tool_call|>", JsonBlock(closers=("<|end_of_text|>",), open_ended=True)), _HERMES),
        note="Granite 3; Granite 4 writes hermes",
    ),
)

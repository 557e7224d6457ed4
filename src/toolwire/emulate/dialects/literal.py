"""Dialects with a value grammar of their own: Python calls, and Gemma's literals. Standard library only."""

from __future__ import annotations

from toolwire.emulate.dialects.shapes import TOOL, Dialect, GemmaBlock, Opener, PythonBlock

LITERAL: tuple[Dialect, ...] = (
    Dialect(
        "pythonic",
        (
            Opener(f"[{TOOL}(", PythonBlock(exact=True), whole=True, line_start=True),
            Opener("<|python_start|>", PythonBlock(("<|python_end|>",))),
            Opener("<function_calls>", PythonBlock(("</function_calls>",))),
        ),
        note="Llama 4, Llama 3.2, ToolACE, Gemma 3; OLMo 3 between tags",
    ),
    Dialect("lfm2", (Opener("<|tool_call_start|>", PythonBlock(("<|tool_call_end|>",))),), note="LiquidAI LFM2 and LFM2.5"),
    Dialect(
        "gemma",
        (
            Opener("<|tool_call>", GemmaBlock('<|"|>', ("<tool_call|>", "<turn|>"))),
            Opener("<start_function_call>", GemmaBlock("<escape>", ("<end_function_call>",), untyped=True)),
        ),
        note="Gemma 4, FunctionGemma",
    ),
)

"""Toolwire: OpenAI-grade tool calling for any model or coding agent.

The library part (the parser of textual tool calls, the aggregator of fragments, the judge of wire streams) needs the standard library only; the
gateway is `toolwire serve`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolwire.emulate.scanner import Limits, ToolCallParser, parse

if TYPE_CHECKING:
    from toolwire.aggregator import ToolCallAggregator
    from toolwire.judge import OrderJudge

__all__ = ["Limits", "OrderJudge", "ToolCallAggregator", "ToolCallParser", "__version__", "parse"]
__version__ = "0.1.0"

_LAZY = {"ToolCallAggregator": "toolwire.aggregator", "OrderJudge": "toolwire.judge"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

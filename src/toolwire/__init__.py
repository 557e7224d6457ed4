"""Toolwire: OpenAI-grade tool calling for any model or coding agent.

The library needs only the standard library: a parser of tool calls in text, an aggregator of fragments of
tool calls, and a checker of OpenAI streams (`OrderJudge`). The gateway is `toolwire serve`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolwire.emulate.scanner import ScanLimits, ToolCallParser, parse

if TYPE_CHECKING:
    from toolwire.conform.judge import OrderJudge
    from toolwire.wire.aggregator import ToolCallAggregator

__all__ = [
    "Limits",
    "OrderJudge",
    "ScanLimits",
    "ToolCallAggregator",
    "ToolCallParser",
    "__version__",
    "parse",
]
__version__ = "0.2.0"

Limits = ScanLimits
"""The name that `ScanLimits` had in version 0.1."""

_LAZY = {"ToolCallAggregator": "toolwire.wire.aggregator", "OrderJudge": "toolwire.conform.judge"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

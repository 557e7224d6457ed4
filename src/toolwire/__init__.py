"""Toolwire: OpenAI-grade tool calling for any model or coding agent.

The library needs only the standard library: a parser of tool calls in text, an aggregator of fragments of
tool calls, and a checker of OpenAI streams (`OrderJudge`). The gateway is `toolwire serve`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolwire.conform.judge import OrderJudge
    from toolwire.emulate.scanner import ScanLimits, ToolCallParser, parse
    from toolwire.emulate.scanner import ScanLimits as Limits
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

_HOMES = {
    "OrderJudge": ("toolwire.conform.judge", "OrderJudge"),
    "ScanLimits": ("toolwire.emulate.scanner", "ScanLimits"),
    "ToolCallAggregator": ("toolwire.wire.aggregator", "ToolCallAggregator"),
    "ToolCallParser": ("toolwire.emulate.scanner", "ToolCallParser"),
    "parse": ("toolwire.emulate.scanner", "parse"),
    "Limits": ("toolwire.emulate.scanner", "ScanLimits"),  # its name in version 0.1
}
"""The module and the original name of each public name.

A module is imported only when its name is first used, because most commands need none of them.
"""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        module, original = _HOMES[name]
        return getattr(import_module(module), original)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

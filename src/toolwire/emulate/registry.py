"""The tools of one request, and how a name that a model wrote is matched to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toolwire.core.turn import ToolSpec

_PREFIXES = ("functions.", "functions/", "function.", "tools.", "default_api.")


def _fold(name: str) -> str:
    return name.casefold().replace("-", "_").replace(".", "_")


def spec_of(tool: ToolSpec | Mapping[str, Any]) -> ToolSpec | None:
    """A tool in either of OpenAI's shapes (nested under `function`, or flat); None if it has no name."""
    if isinstance(tool, ToolSpec):
        return tool
    inner = tool.get("function") or tool.get("custom") or tool
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str) or not name:
        return None
    parameters = inner.get("parameters")
    return ToolSpec(
        name=name,
        description=str(inner.get("description") or ""),
        parameters=parameters if isinstance(parameters, Mapping) else {},
        strict=inner.get("strict") is True,
        kind="custom" if tool.get("type") == "custom" else "function",
    )


class ToolRegistry:
    """The declared tools, in the client's order.

    `resolve` tries, in this order: the exact name; the name before a special token
    (`look<|channel|>commentary`); the name without a common prefix (`functions.` …); the name without regard
    to case, `-`, `_` and `.`, if exactly one tool matches. Nothing else is a known tool.
    """

    def __init__(self, tools: Iterable[ToolSpec | Mapping[str, Any]]) -> None:
        self.tools: dict[str, ToolSpec] = {}
        folded: dict[str, list[str]] = {}
        for tool in tools:
            spec = spec_of(tool)
            if spec is not None and spec.name not in self.tools:
                self.tools[spec.name] = spec
                folded.setdefault(_fold(spec.name), []).append(spec.name)
        self._folded = {key: names[0] for key, names in folded.items() if len(names) == 1}

    def __bool__(self) -> bool:
        return bool(self.tools)

    def resolve(self, written: str) -> ToolSpec | None:
        """The tool that a model means by this name; None if there is none."""
        tool = self.tools.get(written)
        if tool is not None:
            return tool
        written = written.partition("<|")[0].strip()
        for prefix in _PREFIXES:
            if written.startswith(prefix) and written[len(prefix) :] in self.tools:
                return self.tools[written[len(prefix) :]]
        for candidate in (written, *(written[len(p) :] for p in _PREFIXES if written.startswith(p))):
            name = self._folded.get(_fold(candidate))
            if name is not None:
                return self.tools[name]
        return None

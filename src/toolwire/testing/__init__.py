"""Public test doubles: a scripted model and a fake upstream.

`toolwire.conform.judge` checks what they produce.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolwire.backends.scripted.backend import ScriptedBackend, ScriptedOptions
from toolwire.backends.scripted.script import Step, parse_script

if TYPE_CHECKING:
    from toolwire.testing.upstream import FakeUpstream

__all__ = ["FakeUpstream", "ScriptedBackend", "ScriptedOptions", "Step", "parse_script"]


def __getattr__(name: str) -> Any:
    if name == "FakeUpstream":  # it needs a web server, so it is imported on first use
        from toolwire.testing.upstream import FakeUpstream

        return FakeUpstream
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

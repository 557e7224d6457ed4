"""Public test doubles: a model that follows a script, and a fake model server.

`toolwire.conform.judge` can check the answers that they produce.
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

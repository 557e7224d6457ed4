"""A model that follows a script, and the demo model, which needs no script."""

from toolwire.backends.scripted.backend import ScriptedBackend, ScriptedOptions

__all__ = ["ScriptedBackend", "ScriptedOptions"]

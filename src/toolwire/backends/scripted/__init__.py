"""A model that does what a script says, and the demo model that needs no script."""

from toolwire.backends.scripted.backend import ScriptedBackend, ScriptedOptions

__all__ = ["ScriptedBackend", "ScriptedOptions"]

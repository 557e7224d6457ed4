"""A model that follows a script from the settings, and the demo model, which needs no script."""

from toolwire.backends.base import About
from toolwire.backends.scripted.backend import ScriptedBackend, ScriptedOptions

__all__ = ["ScriptedBackend", "ScriptedOptions", "about"]


def about(options: ScriptedOptions) -> About:
    return About(is_trial=True)

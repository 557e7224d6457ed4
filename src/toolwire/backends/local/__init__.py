"""The embedded model: llama.cpp in this process, with calls constrained to their schema."""

from toolwire.backends.local.backend import LocalBackend
from toolwire.backends.local.model import LocalOptions, about, lacking

__all__ = ["LocalBackend", "LocalOptions", "about", "lacking"]

"""The embedded model: llama.cpp in this process, any GGUF file, calls held to their schema while they are decoded."""

from toolwire.backends.local.backend import LocalBackend
from toolwire.backends.local.options import LocalOptions

__all__ = ["LocalBackend", "LocalOptions"]

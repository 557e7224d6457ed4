"""Providers that do not speak OpenAI's API: Anthropic, Google, and the others that pydantic-ai supports."""

from toolwire.backends.hosted.backend import HostedBackend, lacking
from toolwire.backends.hosted.options import HostedOptions

__all__ = ["HostedBackend", "HostedOptions", "lacking"]

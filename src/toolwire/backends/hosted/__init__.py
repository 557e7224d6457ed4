"""Hosted providers that do not speak OpenAI's wire: Anthropic, Google, and what else pydantic-ai knows.

options.py    the keys of [models.ID]
providers.py  what differs between providers, as data
library.py    the provider library, loaded when a hosted model is first used, and never on the event loop
thinking.py   how much a request thinks, and when it may not
render.py     Turn → the library's messages, settings and tools
content.py    texts, images and files → the library's content
read.py       the library's events → events
memory.py     signed thoughts, kept until their call comes back
failures.py   what can go wrong → one kind of `errors.KINDS`
backend.py    a run
source.py     every model of a provider
"""

from toolwire.backends.hosted.backend import HostedBackend
from toolwire.backends.hosted.options import HostedOptions

__all__ = ["HostedBackend", "HostedOptions"]

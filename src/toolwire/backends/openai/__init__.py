"""Any OpenAI-compatible HTTP server as a backend: Ollama, LM Studio, vLLM, llama.cpp, OpenRouter, OpenAI.

options.py   the keys of [models.ID]
render.py    Turn → the body of a chat completions request
read.py      the server's bytes → events
wire.py      the shapes of that server's JSON
failures.py  what can go wrong → one kind of `errors.KINDS`
profiles.py  what is known of each kind of server, as data
discover.py  asking a server who it is and which models it has
refusals.py  the words by which servers refuse tools
constraints.py  how a decoder is held to calls
echo.py      the given beginning of an answer
ways.py      native, constrained or emulated, and what follows from that
backend.py   the connection: pool, timeouts, retry, cancel
"""

from toolwire.backends.openai.backend import OpenAIBackend
from toolwire.backends.openai.discover import Probe, ListedModel, identify, list_models
from toolwire.backends.openai.options import OPTIONS, OpenAIOptions
from toolwire.backends.openai.profiles import PROFILES, Profile
from toolwire.backends.openai.render import render

__all__ = ["OPTIONS", "PROFILES", "ListedModel", "OpenAIBackend", "OpenAIOptions", "Probe", "Profile", "identify", "list_models", "render"]

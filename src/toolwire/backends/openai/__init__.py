"""Any OpenAI-compatible HTTP server as a backend: Ollama, LM Studio, vLLM, llama.cpp, OpenRouter, OpenAI.

options.py   the keys of [models.ID]
render.py    Turn → the body of a chat completions request
read.py      the server's bytes → events
wire.py      the shapes of that server's JSON
failures.py  what can go wrong → one kind of `errors.KINDS`
backend.py   the connection: pool, timeouts, retry, cancel
"""

from toolwire.backends.openai.backend import OpenAIBackend
from toolwire.backends.openai.options import OPTIONS, OpenAIOptions
from toolwire.backends.openai.render import render

__all__ = ["OPTIONS", "OpenAIBackend", "OpenAIOptions", "render"]

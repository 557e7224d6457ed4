"""Any OpenAI-compatible HTTP server as a backend: Ollama, llama.cpp, OpenRouter, OpenAI, …

backend.py    one model: runs a turn, or all models of a server
options.py    the keys of [models.ID]
profiles.py   what is known of each kind of server, as data
discover.py   identifies a server and lists its models
strategy.py   native, constrained or emulated tools, and how servers refuse them
render.py     Turn → the body of a chat completions request
transport.py  sends the request: directly, or through a proxy
http1.py      the HTTP/1.1 client for direct requests
read.py       the bytes of the response → events
chunks.py     the JSON of the response, as types
failures.py   errors of the server and the connection → one kind of `errors.KINDS`
"""

from toolwire.backends.openai.backend import OpenAIBackend
from toolwire.backends.openai.options import OpenAIOptions

__all__ = ["OpenAIBackend", "OpenAIOptions"]

"""Any OpenAI-compatible HTTP server as a backend: Ollama, llama.cpp, OpenRouter, OpenAI, …

backend.py    one model, which runs turns; or all models of a server
options.py    the keys of [models.ID]
profiles.py   what Toolwire knows about each kind of server, as data
discover.py   identifies a server and lists its models
strategy.py   chooses native, constrained or emulated tool calling; recognizes refusals of tools
context.py    checks that a prompt fits into the context window, and that the server read all of it
ollama.py     converts requests and answers for Ollama's own API
render.py     converts a `Turn` to the body of a chat completions request
transport.py  sends the request directly or through a proxy
http1.py      the HTTP/1.1 client for direct requests
read.py       converts the bytes of the response to events
chunks.py     the JSON of the response, as types
failures.py   finds the kind (`errors.KINDS`) and the message for an error of the server or connection
"""

from toolwire.backends.openai.backend import OpenAIBackend
from toolwire.backends.openai.options import OpenAIOptions

__all__ = ["OpenAIBackend", "OpenAIOptions"]

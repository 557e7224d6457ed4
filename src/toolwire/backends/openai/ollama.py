"""Converts chat completions requests and answers for Ollama's own API (`POST /api/chat`).

Ollama's OpenAI endpoint has no field for the context length, and silently drops the oldest messages of a
prompt that does not fit (openai/openai.go: FromChatRequest; server/prompt.go: chatPrompt). Ollama's own API
has the field `num_ctx`, and refuses such a prompt if `truncate` is false (api/types.go: ChatRequest; since
0.12.6).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec

from toolwire.backends.openai.profiles import OLLAMA_OPTIONS
from toolwire.backends.openai.read import AnswerReader
from toolwire.backends.openai.render import Body
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Event, Failure
from toolwire.wire.sse import encode

LINE_LIMIT = 64 * 1024 * 1024
_SAME = ("temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty", *OLLAMA_OPTIONS)
OPTIONS = {name: name for name in _SAME}
OPTIONS |= {"max_tokens": "num_predict", "max_completion_tokens": "num_predict"}
"""The names in Ollama's `options`, by the names of the fields of a chat completions body."""
EFFORTS: dict[str, Any] = {"none": False, "minimal": "low", "xhigh": "max"}
"""Reasoning efforts that have another value in Ollama's field `think` (openai/openai.go)."""


def request(body: Body, num_ctx: int | None) -> Body:
    """Returns the request for `/api/chat`. If `num_ctx` is None, Ollama decides the context length."""
    names: dict[str, str] = {}  # by call id
    out: Body = {
        "model": body["model"],
        "messages": [_message(message, names) for message in body["messages"]],
        "stream": body["stream"],
        "truncate": False,
        "shift": False,
        "options": {OPTIONS[name]: value for name, value in body.items() if name in OPTIONS},
    }
    if num_ctx is not None:
        out["options"]["num_ctx"] = num_ctx
    if "tools" in body:
        out["tools"] = body["tools"]
    form = body.get("response_format")
    if form is not None:
        out["format"] = form["json_schema"]["schema"] if form["type"] == "json_schema" else "json"
    if "reasoning_effort" in body:
        out["think"] = EFFORTS.get(body["reasoning_effort"], body["reasoning_effort"])
    for name in ("logprobs", "top_logprobs"):
        if name in body:
            out[name] = body[name]
    return out


def _message(message: Body, names: dict[str, str]) -> Body:
    out: Body = {"role": message["role"]}
    content = message["content"] or ""
    if isinstance(content, list):
        out["content"] = "\n\n".join(part["text"] for part in content if part["type"] == "text")
        out["images"] = [_image(part) for part in content if part["type"] != "text"]
    else:
        out["content"] = content
    if message.get("reasoning_content"):
        out["thinking"] = message["reasoning_content"]
    if "tool_calls" in message:
        names |= {call["id"]: call["function"]["name"] for call in message["tool_calls"]}
        out["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    if "tool_call_id" in message:
        out |= {"tool_call_id": message["tool_call_id"], "tool_name": names.get(message["tool_call_id"], "")}
    return out


def _image(part: Body) -> str:
    """Returns an image as base64. The gateway has already fetched images that the client sent by URL."""
    url = part.get("image_url", {}).get("url", "")
    head, comma, data = url.partition(";base64,")
    if not comma or not head.startswith("data:"):
        message = f"Ollama takes only text and images, not a content part of type {part['type']!r}."
        raise ToolwireError("unsupported_value", message, param="messages")
    return str(data)


def _call(call: Body) -> Body:
    """Returns a call from the conversation's history in Ollama's format: its arguments are an object."""
    text = call["function"]["arguments"]
    try:
        arguments = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {"arguments": text}  # the text that the model wrote, so that it can see its mistake
    return {"id": call["id"], "function": {"name": call["function"]["name"], "arguments": arguments}}


# --- the answer ---


class _Function(msgspec.Struct, gc=False):
    name: str = ""
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class _Call(msgspec.Struct, gc=False):
    function: _Function
    id: str = ""


class _Message(msgspec.Struct, gc=False):
    content: str = ""
    thinking: str = ""
    tool_calls: list[_Call] | None = None


class _Line(msgspec.Struct, gc=False):
    message: _Message | None = None
    done: bool = False
    done_reason: str = ""
    prompt_eval_count: int | None = None  # includes tokens from the cache
    prompt_eval_cached_count: int | None = None
    eval_count: int | None = None
    logprobs: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(_Line).decode


class OllamaReader:
    """Reads one answer of `/api/chat`, as `AnswerReader` reads an answer of chat completions."""

    def __init__(self, inner: AnswerReader) -> None:
        self._inner = inner
        self._waiting = bytearray()  # the start of a line whose end has not arrived
        self._calls = 0

    @property
    def ended(self) -> bool:
        return self._inner.ended

    @property
    def whole(self) -> bool:
        return self._inner.whole

    @property
    def finishing(self) -> bool:
        return self._inner.finishing

    def fail(self, failure: Failure) -> list[Event]:
        return self._inner.fail(failure)

    def feed(self, block: bytes) -> list[Event]:
        end = block.rfind(b"\n") + 1
        lines = bytes(self._waiting + block[:end]) if end else b""
        self._waiting = bytearray(block[end:]) if end else self._waiting + block
        if len(self._waiting) > LINE_LIMIT:
            raise ToolwireError("backend", f"Ollama sent a line of more than {LINE_LIMIT} bytes.")
        return self._inner.feed(b"".join(self._frames(lines))) if lines else []

    def finish(self) -> list[Event]:
        """Returns the last events of a stream that has ended. A line that was cut off is dropped."""
        rest, self._waiting = bytes(self._waiting), bytearray()
        out = self._inner.feed(b"".join(self._frames(rest))) if rest.rstrip().endswith(b"}") else []
        return out if self.ended else out + self._inner.finish()

    def read_body(self, body: bytes) -> list[Event]:
        try:
            chunk = self._chunk(_decode(body), "message")
        except msgspec.MsgspecError:
            return self._inner.read_body(body)
        return self._inner.read_body(encode(chunk))

    def _frames(self, lines: bytes) -> Iterator[bytes]:
        """Yields each line as a server-sent event with a chat chunk. An invalid line is not changed."""
        for line in filter(None, map(bytes.strip, lines.split(b"\n"))):
            try:
                found = _decode(line)
            except msgspec.MsgspecError:
                yield b"data: " + line + b"\n\n"
                continue
            yield b"data: " + encode(self._chunk(found, "delta")) + b"\n\n"
            if found.done:
                yield b"data: [DONE]\n\n"

    def _chunk(self, line: _Line, key: str) -> Body:
        if line.error is not None:
            return {"error": line.error if isinstance(line.error, dict) else {"message": str(line.error)}}
        message = line.message or _Message()
        said: Body = {"role": "assistant", "content": message.content}
        if message.thinking:
            said["reasoning_content"] = message.thinking
        if message.tool_calls:
            said["tool_calls"] = [self._tool_call(call) for call in message.tool_calls]
        choice: Body = {"index": 0, key: said}
        if line.logprobs:
            choice["logprobs"] = {"content": line.logprobs}
        out: Body = {"choices": [choice]}
        if line.done:
            choice["finish_reason"] = "tool_calls" if self._calls else line.done_reason or "stop"
            if line.prompt_eval_count is not None or line.eval_count is not None:
                counts = (line.prompt_eval_count or 0, line.eval_count or 0)
                out["usage"] = dict(zip(("prompt_tokens", "completion_tokens"), counts, strict=True))
                if line.prompt_eval_cached_count is not None:
                    out["usage"]["prompt_tokens_details"] = {"cached_tokens": line.prompt_eval_cached_count}
        return out

    def _tool_call(self, call: _Call) -> Body:
        index, self._calls = self._calls, self._calls + 1
        function = {"name": call.function.name, "arguments": bytes(call.function.arguments).decode()}
        return {"index": index, "id": call.id, "type": "function", "function": function}


def window_of(shown: Any, loaded: Any, model: str) -> tuple[int | None, int]:
    """Returns a model's largest context length (None: unknown), and its current context length (0: unknown).

    `shown`: the answer of `/api/show`. `loaded`: the answer of `/api/ps`.
    """
    info, text = shown.get("model_info") or {}, shown.get("parameters") or ""
    most = next((value for key, value in info.items() if key.endswith(".context_length")), None)
    words = text.split() if isinstance(text, str) else []
    own = next((int(value) for name, value in pairwise(words) if name == "num_ctx" and value.isdecimal()), 0)
    running = loaded.get("models")
    for entry in running if isinstance(running, list) else []:
        if isinstance(entry, dict) and model in (entry.get("model"), entry.get("name")):
            length = entry.get("context_length")
            own = max(own, length if isinstance(length, int) else 0)
    return (most if isinstance(most, int) and most > 0 else None), own

"""A fake Ollama server: it truncates prompts and answers as Ollama's sources do.

- server/prompt.go: if the messages do not fit into the context window, the oldest are dropped, except system
  messages and the last message. With `truncate: false`, none is dropped.
- llm/llama_server.go: a prompt that is still too long is refused. `prompt_eval_count` counts the tokens that
  were read.
- openai/openai.go: the OpenAI endpoint has no `num_ctx` and always truncates.

Versions before 0.12.6 do not know `truncate` (`strict=False`).
"""

from __future__ import annotations

import json
import re
from typing import Any

from toolwire.testing.upstream import FakeUpstream, Recorded, Reply

TOO_LONG = (
    "the prompt is longer than the context length currently available to the model; shorten the prompt, "
    "adjust the context length in settings, or use a model with a longer context length"
)


def tokens(text: str) -> int:
    return len(re.findall(r"\w+|[^\w\s]", text))


class FakeOllama:
    """A fake Ollama server with one model.

    `window`: the value of `OLLAMA_CONTEXT_LENGTH`. `most`: the model's own context length. `says`: the
    messages of the answer, one for each line of a stream.
    """

    def __init__(self, window: int = 4096, most: int = 32_768, strict: bool = True, *says: Any) -> None:
        self.window, self.strict = window, strict
        self.says = says or ({"content": "I read "}, {"content": "it all."})
        self.read: list[Any] = []
        """The messages that the model saw."""
        self.upstream = FakeUpstream(self._answer)
        self.upstream.pages = {
            "/": "Ollama is running",
            "/api/show": {
                "capabilities": ["completion", "tools", "thinking"],
                "model_info": {"general.architecture": "qwen3", "qwen3.context_length": most},
            },
            "/api/ps": {"models": []},
        }

    def _answer(self, request: Recorded) -> Reply:
        body, own = request.body, request.path == "/api/chat"
        window = body.get("options", {}).get("num_ctx", self.window) if own else self.window
        messages = body["messages"]
        if not own or not self.strict or body.get("truncate", True):
            while len(messages) > 1 and self._count(messages) > window:
                oldest = next(at for at, one in enumerate(messages) if one["role"] != "system")
                messages = [*messages[:oldest], *messages[oldest + 1 :]]
        count = self._count(messages)
        if count > window:
            if self.strict:
                return Reply.body({"error": TOO_LONG}, 400)
            count = window // 2 + 2  # the runner keeps the last half (ollama/ollama issue 17889)
        self.read = messages
        return self._lines(body, count) if own else self._chunks(body, count)

    def _count(self, messages: list[Any]) -> int:
        return sum(tokens(message["content"] or "") + 5 for message in messages)

    def _lines(self, body: Any, count: int) -> Reply:
        counts = {"prompt_eval_count": count, "eval_count": 4}
        end = {"done": True, "done_reason": "stop", **counts}
        if not body["stream"]:
            message: dict[str, Any] = {"role": "assistant", "content": ""}
            for said in self.says:
                message["content"] += said.get("content", "")
                message |= {key: value for key, value in said.items() if key != "content"}
            return Reply.body({"model": body["model"], "message": message, **end})
        lines = [
            {"message": {"role": "assistant", "content": "", **said}, "done": False} for said in self.says
        ]
        last = {"message": {"role": "assistant", "content": ""}, **end}
        frames = tuple(json.dumps(line).encode() + b"\n" for line in [*lines, last])
        return Reply(frames, headers={"Content-Type": "application/x-ndjson"})

    def _chunks(self, body: Any, count: int) -> Reply:
        text = "".join(said.get("content", "") for said in self.says)
        usage = {"prompt_tokens": count, "completion_tokens": 4, "total_tokens": count + 4}
        whole = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        if not body["stream"]:
            return Reply.body({"choices": [whole], "usage": usage})
        delta = {"index": 0, "delta": {"role": "assistant", "content": text}}
        end = {"index": 0, "delta": {}, "finish_reason": "stop"}
        return Reply.stream([{"choices": [delta]}, {"choices": [end]}, {"choices": [], "usage": usage}])

"""Checks that a prompt fits into a model's context window, and that the server read all of it.

Some servers silently drop a part of a prompt that is too long, and answer as if they had read the whole
prompt. Toolwire notices this when a server reports fewer prompt tokens than the prompt has words, because a
token never contains two words. If a server's window can be set, Toolwire estimates how large a window the
prompt needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from toolwire.backends.base import Batch
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure, Usage

WITHOUT_SPACES = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]")
"""Characters of scripts that have no spaces, or only few spaces, between words."""
PER_TOKEN = 6
"""The largest average number of characters per token in a text without spaces (`WITHOUT_SPACES`)."""
CHARACTERS_PER_TOKEN = 3
PER_MESSAGE = 8
"""An estimate of the tokens that a chat template adds to each message."""
ANSWER, LARGEST_ANSWER = 4096, 8192
"""How many tokens of the window are reserved for the answer.

If the request sets no limit for the answer, this is `ANSWER`. Otherwise it is the request's limit, but at
most `LARGEST_ANSWER`: coding agents allow answers of 32,000 tokens and more, and a window for such an answer
may not fit into memory.
"""
SMALLEST_WINDOW = 4096

READ = frozenset({"system", "developer", "user", "tool"})
"""Roles whose messages every chat template contains in full.

Some templates drop parts of the assistant's messages.
"""

Body = dict[str, Any]


def _texts(body: Body, roles: frozenset[str]) -> Iterator[str]:
    for message in body["messages"]:
        content = message["content"] if message["role"] in roles else None
        if isinstance(content, str):
            yield content
        elif content:
            yield from (part["text"] for part in content if part["type"] == "text")


def fitting(body: Body, window: int | None) -> int:
    """Returns the smallest number of tokens that the messages can have.

    Raises an error if this number is larger than the window. `window`: None if the window is unknown.
    """
    least = sum(len(text.split()) + _unspaced(text) // PER_TOKEN for text in _texts(body, READ))
    if window is not None and least > window:
        message = (
            f"The prompt has at least {least} tokens, but the model's context length is {window} tokens."
        )
        raise ToolwireError("context_length", message, param="messages")
    return least


def _unspaced(text: str) -> int:
    return 0 if text.isascii() else len(WITHOUT_SPACES.findall(text))


def needed(body: Body) -> int:
    """Returns an estimate of the tokens that the request and its answer need."""
    texts = [*_texts(body, READ | {"assistant"}), *([repr(body["tools"])] if "tools" in body else ())]
    characters = sum(len(text) + (CHARACTERS_PER_TOKEN - 1) * _unspaced(text) for text in texts)
    limits = (body.get(name) for name in ("max_tokens", "max_completion_tokens"))
    answer = next((limit for limit in limits if isinstance(limit, int)), ANSWER)
    prompt = characters // CHARACTERS_PER_TOKEN + PER_MESSAGE * len(body["messages"])
    return prompt + min(answer, LARGEST_ANSWER)


def window_for(need: int, current: int, most: int | None) -> int:
    """Returns the context window to request: `current`, doubled until the window suffices.

    The steps are large, because Ollama loads a model again for each new window. `most`: the limit, or None.
    """
    window = max(current, SMALLEST_WINDOW)
    while window < need:
        window *= 2
    return window if most is None else min(window, most)


def check_read(batch: Batch, least: int) -> Batch:
    """Returns the batch, or a failure in its place if the server did not read the whole prompt.

    If the server reports fewer prompt tokens than `least`, it has dropped a part of the prompt. In a stream,
    the text that was already sent stays, and the response ends with the failure.
    """
    usage = next((event for event in batch if isinstance(event, Usage)), None)
    if usage is None or not 0 < usage.input_tokens < least:  # 0: not counted
        return batch
    message = (
        f"The model's server read only {usage.input_tokens} tokens of a prompt with at least {least}: it "
        "dropped the rest because its context length is too small. Increase the context length, or shorten "
        "the prompt."
    )
    return [usage, Failure("context_length", message, "messages")]

"""Laws 3 and 4 for log probabilities: how the server splits its stream does not matter.

The tokens are always the same. If a thought is separated from the text, no tokens are sent, however the
stream was split.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from toolwire.backends.openai.backend import OpenAIBackend
from toolwire.backends.openai.read import AnswerReader
from toolwire.conform.judge.fold import fold
from toolwire.core.ids import counting_ids
from toolwire.core.turn import Message, Sampling, TextPart, ToolSpec, Turn
from toolwire.gateway.account import Account
from toolwire.gateway.plan import make_plan
from toolwire.gateway.stages import Stages
from toolwire.settings.types import ToolSettings
from toolwire.testing.upstream import chunk
from toolwire.wire.chat.encode import ChatBody, ChatEncoder
from toolwire.wire.responses.encode import ResponsesEncoder

BACKEND = OpenAIBackend("m", {"tools": "native", "profile": "generic"})
WORDS = st.lists(
    st.sampled_from(["a", "Hello ", "\n", "<", "<think>", "</think>", "é", "😀", "x < y", "word " * 80]),
    min_size=1,
    max_size=12,
)
KINDS = ("chat", "body", "responses")


def token(text: str) -> dict[str, Any]:
    return {"token": text, "logprob": -1.0, "bytes": list(text.encode()), "top_logprobs": []}


def upstream(groups: list[list[str]]) -> bytes:
    """Returns a stream with one chunk for each group of tokens."""
    chunks = [chunk({"role": "assistant", "content": ""})]
    for group in groups:
        chunks.append(chunk({"content": "".join(group)}))
        chunks[-1]["choices"][0]["logprobs"] = {"content": list(map(token, group)), "refusal": None}
    chunks.append(chunk({}, "stop"))
    return b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in chunks) + b"data: [DONE]\n\n"


def cut(values: Any, cuts: list[int]) -> list[Any]:
    places = sorted({place % (len(values) + 1) for place in cuts} | {0, len(values)})
    return [values[start:end] for start, end in pairwise(places)]


def answered(kind: str, turn: Turn, blocks: list[bytes], slowly: bool) -> tuple[str, list[str], bool]:
    """Returns the answer's text, its tokens, and whether their log probabilities were dropped."""
    made: dict[str, Any] = {"id": "x_1", "created": 1, "ids": counting_ids()}
    writer: Any = (
        ResponsesEncoder(turn, **made)
        if kind == "responses"
        else ChatEncoder("m", **made)
        if kind == "chat"
        else ChatBody("m", **made)
    )
    account = Account(0.0, None)
    stages = Stages(make_plan(turn, BACKEND, ToolSettings(), counting_ids()), writer, account, counting_ids())
    stages.begin()
    reader, out = AnswerReader(turn), []
    for block in blocks:
        batch = reader.feed(block)
        out += [stages.feed(part) for part in (stages.slices(batch) if slowly else [batch])]
    if kind == "body":
        choice = writer.body()["choices"][0]
    else:
        out.append(writer.finish(""))
        whole = fold(b"".join(out))
        choice = whole["choices"][0] if kind == "chat" else None
    if choice is not None:
        tokens = (choice["logprobs"] or {}).get("content") or []
        return choice["message"]["content"], [one["token"] for one in tokens], account.drops_logprobs
    parts = [item["content"][0] for item in whole["output"] if item["type"] == "message"]
    tokens = [one["token"] for part in parts for one in part["logprobs"]]
    return "".join(part["text"] for part in parts), tokens, account.drops_logprobs


@given(
    words=WORDS,
    groups=st.lists(st.integers(0, 20), max_size=6),
    blocks=st.lists(st.integers(0, 10_000), max_size=12),
    tools=st.booleans(),
    slowly=st.booleans(),
)
def test_the_same_tokens_come_out_however_they_are_cut_and_grouped(
    words: list[str], groups: list[int], blocks: list[int], tools: bool, slowly: bool
) -> None:
    turn = Turn(
        "chat",
        "m",
        (Message("user", (TextPart("Hi"),)),),
        tools=(ToolSpec("look"),) if tools else (),
        sampling=Sampling(logprobs=0),
        sent=frozenset({"logprobs"}),
    )
    raw = upstream(cut(words, groups))
    is_dropped = "".join(words).lstrip().startswith("<think>")
    found = [answered(kind, turn, cut(raw, blocks), slowly) for kind in KINDS]
    assert found == [found[0]] * len(KINDS)
    text, tokens, dropped = found[0]
    assert dropped == is_dropped
    assert tokens == ([] if is_dropped else words)
    assert is_dropped or text == "".join(words)

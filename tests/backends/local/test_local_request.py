"""Requests to llama.cpp, without a model."""

from __future__ import annotations

import json

import pytest

from toolwire.backends.local import LocalOptions
from toolwire.backends.local.backend import LocalReader, render
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Constraint, Message, OtherPart, Sampling, TextPart, ToolSpec, Turn

HELD = Constraint((ToolSpec("f"),), "<tool_call:k>\n", "\n</tool_call:k>", True)
FREE = Constraint((ToolSpec("f"),), "<tool_call:k>\n", "\n</tool_call:k>", False)


@pytest.mark.parametrize(
    ("constraint", "sent", "most"),
    [(None, None, 1024), (FREE, None, 1024), (HELD, None, 4096), (HELD, 50, 50), (None, 50, 50)],
    ids=["text", "text or a call", "a required call ends by itself", "the client's own limit", "of text too"],
)
def test_how_long_an_answer_may_be(constraint: Constraint | None, sent: int | None, most: int) -> None:
    turn = Turn(
        "chat",
        "m",
        (Message("user", (TextPart("?"),)),),
        sampling=Sampling(max_tokens=sent),
        constraint=constraint,
    )
    assert json.loads(render(turn, LocalOptions(), ""))["max_tokens"] == most


def test_content_that_the_model_cannot_read_is_refused() -> None:
    turn = Turn(
        "chat", "m", (Message("user", (TextPart("hear"), OtherPart("input_audio", {"type": "input_audio"}))),)
    )
    with pytest.raises(
        ToolwireError,
        match=r"^The embedded model does not take content of the type 'input_audio': text only\.$",
    ) as refused:
        render(turn, LocalOptions(), "")
    assert LocalReader("chat").read([refused.value]) == [
        refused.value.failure
    ]  # as the decoding thread reports it


def test_limits_for_open_schemas_depend_on_the_models_size() -> None:
    small, large = LocalOptions().limits(98_000_000), LocalOptions().limits(4_000_000_000)
    assert (small.string, small.items) == (96, 4) and (large.string, large.items) == (8192, 64)
    assert LocalOptions(max_string=7, max_items=2).limits(98_000_000).string == 7

"""Requests to llama.cpp, without a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolwire.backends.local import LocalOptions, about, lacking
from toolwire.backends.local.backend import LocalReader, render
from toolwire.backends.local.model import key_of
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Finish, Text, Usage
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


def chunk(text: str, **more: object) -> bytes:
    return json.dumps({"choices": [{"delta": {"content": text}, "finish_reason": None}], **more}).encode()


def test_an_answer_that_repeats_itself_is_ended_with_what_it_used() -> None:
    reader, sentence = LocalReader("chat"), "I cannot help with that, my friend. "
    assert reader.read([chunk("", prompt_progress={"total": 12, "processed": 12})]) == []
    pieces = 0
    while not reader.ended:
        pieces += 1
        assert pieces < 100
        batch = reader.read([chunk(sentence)])
    assert batch == [Text(sentence), Usage(12, pieces), Finish("length", repeats=True)]
    assert 1000 < pieces * len(sentence) < 1200


def test_an_answer_at_the_token_limit_is_not_a_repetition() -> None:
    reader = LocalReader("chat")
    end = json.dumps({"choices": [{"delta": {}, "finish_reason": "length"}]}).encode()
    assert reader.read([chunk("Hello"), end, None]) == [Text("Hello"), Finish("length")]


@pytest.mark.parametrize(
    ("gguf", "title", "gets_tools"),
    [
        ("", "SmolLM2 135M", False),
        ("smollm2-135m", "SmolLM2 135M", False),
        ("/models/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2 135M", False),
        ("qwen2.5-coder-1.5b", "Qwen2.5 Coder 1.5B", True),
        ("~/models/Qwen3-8B-Q4_K_M.gguf", "", True),
    ],
)
def test_a_known_model_is_recognized_by_its_name_or_file(gguf: str, title: str, gets_tools: bool) -> None:
    known = about(LocalOptions(gguf=gguf))
    assert (known.title, not known.no_tools, not known.is_trial) == (title, gets_tools, gets_tools)


def test_gguf_can_name_a_model_that_can_be_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLWIRE_DATA", str(tmp_path))
    monkeypatch.setattr("toolwire.backends.local.model.importable", lambda: True)
    options = LocalOptions(gguf="qwen2.5-coder-1.5b")
    lacks = lacking(options)
    assert lacks is not None and lacks[1].endswith("toolwire local pull qwen2.5-coder-1.5b")
    file = tmp_path / "models" / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
    file.parent.mkdir()
    file.write_bytes(b"GGUF")
    assert lacking(options) is None and key_of(options)[0] == str(file.resolve())

"""The reproduced bugs of an earlier proxy (codex-completions-api) do not occur here.

Numbers are those of its published list.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolwire import ToolCallAggregator
from toolwire.conform.judge import fold
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Call, Result, TextPart

F = {"type": "function", "function": {"name": "f"}}
USER = [{"role": "user", "content": "q"}]
NESTED = '{"a":{"b":1},"n":1000}'


def arguments(body: dict[str, Any]) -> str:
    text: str = body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    return text


@pytest.mark.check("chat.stream.increments")
async def test_1_argument_deltas_are_increments(table: Any) -> None:
    raw = await table.play(f"chunk 1\ncall f {NESTED}").stream("chat", {"messages": USER, "tools": [F]})
    assert arguments(fold(raw, "chat")) == NESTED


@pytest.mark.check("chat.stream.increments")
@pytest.mark.parametrize("pieces", [list(NESTED), ['{"a":', "{", '"b":1}', ',"n":10', "0", "0", "}"]])
def test_2_equal_or_prefix_fragments_are_appended_never_replaced(pieces: list[str]) -> None:
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta(
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]}
    )
    sent = ""
    for piece in pieces:
        update = aggregator.ingest_delta({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
        sent += "".join(delta.arguments or "" for delta in update.deltas)
    assert aggregator.snapshot()[0].arguments == NESTED == sent


@pytest.mark.check("responses.stream.increments")
async def test_2_deltas_done_and_item_have_the_same_arguments_on_responses(table: Any) -> None:
    raw = (
        await table.play(f"chunk 1\ncall f {NESTED}").stream(
            "responses", {"input": "q", "tools": [F], "store": False}
        )
    ).decode()
    frames = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: ")]
    deltas = "".join(
        frame["delta"] for frame in frames if frame["type"] == "response.function_call_arguments.delta"
    )
    done = next(
        frame["arguments"] for frame in frames if frame["type"] == "response.function_call_arguments.done"
    )
    assert deltas == done == frames[-1]["response"]["output"][0]["arguments"] == NESTED


@pytest.mark.check("chat.stream-is-body")
@pytest.mark.parametrize(
    ("size", "text"), [(2, "book"), (2, "hahaha"), (2, "1000"), (1, "aaaa"), (3, "abcabcabc")]
)
async def test_3_repeated_text_is_kept(table: Any, size: int, text: str) -> None:
    raw = await table.play(f"chunk {size}\nraw {json.dumps(text)}").stream("chat", {"messages": USER})
    assert fold(raw, "chat")["choices"][0]["message"]["content"] == text


@pytest.mark.check("chat.call.no-markup")
@pytest.mark.parametrize("text", ["x <", "x <use_too", "x <tool_call", "if a <"])
@pytest.mark.parametrize("mode", ["openai-json", "obsidian-xml"])
async def test_4_text_that_ends_like_a_marker_is_flushed(table: Any, text: str, mode: str) -> None:
    body = await table.play(f"raw {json.dumps(text)}", tools="emulated").body(
        "chat", {"messages": USER, "tools": [F]}, output_mode=mode
    )
    assert body["choices"][0]["message"]["content"] == text


@pytest.mark.check("chat.loop", "responses.loop")
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_5_the_whole_tool_history_reaches_the_backend(table: Any, api: Any) -> None:
    chat: list[dict[str, Any]] = [
        {"role": "system", "content": "Be kind."},
        *USER,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "SUNNY-42"},
    ]
    items: list[dict[str, Any]] = [
        {"role": "system", "content": "Be kind."},
        *USER,
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "SUNNY-42"},
    ]
    table.play("say ok")
    await table.body(
        api,
        {"messages": chat, "tools": [F]} if api == "chat" else {"input": items, "tools": [F], "store": False},
    )
    system, _, call, result = table.backend.seen[0].items
    assert system.parts == (TextPart("Be kind."),)
    assert isinstance(call, Call) and isinstance(result, Result)
    assert (call.call_id, call.name, result.call_id, result.parts) == (
        "c1",
        "f",
        "c1",
        (TextPart("SUNNY-42"),),
    )


@pytest.mark.check("chat.tools.answers")
async def test_6_a_request_is_submitted_once(table: Any) -> None:
    await table.play("say ok").body("chat", {"messages": USER, "tools": [F]})
    assert len(table.backend.seen) == 1


@pytest.mark.check("chat.body.usage")
async def test_10_n_choices_are_real_and_usage_is_counted(table: Any) -> None:
    body = await table.play("say hello\nusage 9 5").body("chat", {"messages": USER, "n": 2})
    assert [choice["message"]["content"] for choice in body["choices"]] == ["hello", "hello"]
    assert body["usage"]["completion_tokens"] == 10 and body["usage"]["prompt_tokens"] == 9


@pytest.mark.check("chat.request.clients")
async def test_11_fields_that_cannot_be_honoured_are_reported(table: Any) -> None:
    answer = await table.play("say x").answer(
        "chat", {"messages": USER, "stop": ["x"], "temperature": 1, "seed": 5}
    )
    assert dict(answer.headers)[b"x-toolwire-report"] == b"seed=ignored; stop=ignored; temperature=ignored"


@pytest.mark.check("chat.errors.before-stream", "responses.errors.before-stream")
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize(
    ("kind", "status"), [("backend_auth", 502), ("backend_unavailable", 503), ("rate_limit", 429)]
)
async def test_13_a_backend_that_refuses_is_an_http_error_not_a_stream(
    table: Any, api: Any, kind: str, status: int
) -> None:
    from toolwire.core.errors import status_of

    request = {"messages": USER} if api == "chat" else {"input": "q", "store": False}
    with pytest.raises(ToolwireError) as caught:
        await table.play(f"fail {kind} no").answer(api, {**request, "stream": True})
    assert status_of(caught.value.failure) == status


@pytest.mark.check("responses.errors.in-stream", "responses.stream.terminal")
async def test_13_a_failed_responses_stream_ends_with_response_failed_and_no_chat_frame(table: Any) -> None:
    raw = (
        await table.play("say a\npause 1ms\nfail backend no").stream(
            "responses", {"input": "q", "store": False}
        )
    ).decode()
    assert raw.rstrip().split("event: ")[-1].startswith("response.failed\n")
    assert '"object":"chat' not in raw and "[DONE]" not in raw


@pytest.mark.check("chat.call.ids-fresh")
async def test_14_the_model_is_echoed_as_sent_and_ids_never_repeat(table: Any) -> None:
    table.play("call f")
    bodies = [await table.body("chat", {"messages": USER, "tools": [F]}) for _ in range(3)]
    assert {body["model"] for body in bodies} == {"m"}
    assert len({body["choices"][0]["message"]["tool_calls"][0]["id"] for body in bodies}) == 3


@pytest.mark.check("chat.answers")
async def test_15_no_words_of_the_prompt_change_what_is_done(table: Any) -> None:
    text = (
        'Generate a concise title and a summary, max 5 words, output format {"title":"", "summary":""} '
        "<conversation_text>conversation: x"
    )
    body = await table.play("say {user}").body("chat", {"messages": [{"role": "user", "content": text}]})
    assert body["choices"][0]["message"]["content"] == text


@pytest.mark.check("chat.call.declared")
def test_phantom_probe_results_are_no_calls() -> None:
    aggregator = ToolCallAggregator()
    noise = {
        "type": "function_call_output",
        "call_id": "x",
        "output": "resources/list failed: unknown MCP server 'obsidian'",
    }
    assert not aggregator.ingest_delta(noise).updated and not aggregator.has_calls()

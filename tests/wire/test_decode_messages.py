"""Messages requests become turns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolwire.core.capabilities import Capabilities
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Call, ImagePart, Message, OtherPart, Reasoning, Result, TextPart, Turn
from toolwire.wire.fields import report
from toolwire.wire.messages.decode import decode

TOOL = {"name": "read", "description": "Reads a file.", "input_schema": {"type": "object"}}
USER = {"role": "user", "content": "hello"}


def turn_of(**fields: Any) -> Turn:
    return decode({"model": "m", "max_tokens": 10, "messages": [USER], **fields})


def refused(**fields: Any) -> ToolwireError:
    with pytest.raises(ToolwireError) as caught:
        turn_of(**fields)
    return caught.value


def test_a_plain_request() -> None:
    turn = turn_of(stream=True, temperature=0.5, stop_sequences=["END", ""], top_k=4)
    assert (turn.api, turn.model, turn.stream) == ("messages", "m", True)
    assert turn.items == (Message("user", (TextPart("hello"),)),)
    assert turn.sampling.max_tokens == 10
    assert turn.sampling.stop == ("END",)
    assert turn.rest == {"top_k": 4}
    assert turn.body is not None
    assert turn.body["top_k"] == 4


def test_betas_are_in_the_report() -> None:
    body = {"model": "m", "max_tokens": 10, "messages": [USER]}
    turn = decode(body, headers={"anthropic-version": "2023-06-01", "anthropic-beta": "a-1,b-2"})
    assert ("betas", "ignored") in report(turn, Capabilities(), "none")
    assert report(turn, Capabilities(speaks=frozenset({"messages"})), "none") == ()
    assert "betas" not in decode(body, headers={"anthropic-version": "2023-06-01"}).sent


def test_system_blocks_become_instructions_without_accounting_data() -> None:
    blocks = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1;"},
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be brief."},
    ]
    turn = turn_of(system=blocks)
    assert turn.instructions == "You are an agent.\n\nBe brief."
    assert ("system.billing_header", "ignored") in turn.notes
    assert turn_of(system="Be brief.").instructions == "Be brief."


def test_later_system_messages_become_reminders_and_may_set_the_effort() -> None:
    system = {
        "role": "system",
        "content": [{"type": "text", "text": "now"}],
        "output_config": {"effort": "high"},
    }
    empty = {"role": "system", "content": [], "output_config": {"effort": "low"}}
    turn = turn_of(messages=[USER, system, empty], output_config={"effort": "max"})
    reminder = TextPart("<system-reminder>\nnow\n</system-reminder>")
    assert turn.items == (Message("user", (TextPart("hello"), reminder)),)
    assert ("messages.system", "emulated") in turn.notes
    first = turn_of(messages=[{"role": "system", "content": "Be brief."}, USER])
    assert [item.role for item in first.items if isinstance(item, Message)] == ["system", "user"]
    assert turn.sampling.effort == "low"


def test_calls_results_and_thoughts() -> None:
    assistant = [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "redacted_thinking", "data": "sealed"},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "a", "name": "read", "input": {"path": "ü.txt"}},
    ]
    results = [
        {
            "type": "tool_result",
            "tool_use_id": "a",
            "content": [{"type": "text", "text": "no"}],
            "is_error": True,
        },
        {"type": "text", "text": "Go on."},
    ]
    turn = turn_of(
        messages=[USER, {"role": "assistant", "content": assistant}, {"role": "user", "content": results}]
    )
    thought, sealed, text, call, result, more = turn.items[1:]
    assert thought == Reasoning(content=("hm",), signature="sig")
    assert sealed == Reasoning(redacted="sealed")
    assert text == Message("assistant", (TextPart("Let me look."),))
    assert isinstance(call, Call)
    assert json.loads(call.arguments) == {"path": "ü.txt"}
    assert result == Result("a", (TextPart("no"),), is_error=True)
    assert more == Message("user", (TextPart("Go on."),))


def test_a_result_without_a_call_is_refused_in_the_words_of_the_api() -> None:
    error = refused(
        messages=[{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "y"}]}]
    )
    assert "unexpected `tool_use_id`" in str(error)
    assert error.failure.param == "messages[0].content[0].tool_use_id"


def test_images_and_documents() -> None:
    blocks = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
        {
            "type": "document",
            "title": "T",
            "source": {"type": "text", "media_type": "text/plain", "data": "text"},
        },
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "hologram"},
    ]
    turn = turn_of(messages=[{"role": "user", "content": blocks}])
    (message,) = turn.items
    assert isinstance(message, Message)
    inline, linked, text, file = message.parts
    assert inline == ImagePart("data:image/png;base64,AAAA")
    assert linked == ImagePart("https://x.test/a.png")
    assert text == TextPart("T\ntext")
    assert isinstance(file, OtherPart)
    assert file.raw["file"]["file_data"] == "data:application/pdf;base64,JVBE"
    assert {("messages.server_tool_use", "ignored"), ("messages.unknown", "ignored")} <= set(turn.notes)


def test_deferred_tools_are_hidden_until_a_result_names_them() -> None:
    deferred = {**TOOL, "name": "fetch", "defer_loading": True}
    turn = turn_of(tools=[TOOL, deferred])
    assert [tool.name for tool in turn.tools] == ["read"]
    assert [tool.name for tool in turn.hidden_tools] == ["fetch"]
    loaded = [
        USER,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "read", "input": {}}]},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "content": [{"type": "tool_reference", "tool_name": "fetch"}],
                }
            ],
        },
    ]
    turn = turn_of(tools=[TOOL, deferred], messages=loaded)
    assert [tool.name for tool in turn.tools] == ["read", "fetch"]
    assert turn.items[-1] == Result("a", (TextPart("The tool fetch is now available."),))


def test_tools_by_type() -> None:
    turn = turn_of(
        tools=[
            {"type": "bash_20250124", "name": "bash"},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
            {"type": "custom", **TOOL, "cache_control": {"type": "ephemeral"}, "strict": True},
        ]
    )
    assert [tool.name for tool in turn.tools] == ["bash", "read"]
    assert "command" in turn.tools[0].parameters["properties"]
    assert turn.tools[1].strict
    assert dict(turn.notes) == {"tools.bash_20250124": "emulated", "tools.web_search_20250305": "ignored"}


@pytest.mark.parametrize(
    ("choice", "mode", "name"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "any"}, "required", None),
        ({"type": "tool", "name": "read"}, "required", "read"),
        ({"type": "none"}, "none", None),
    ],
)
def test_tool_choice(choice: dict[str, str], mode: str, name: str | None) -> None:
    turn = turn_of(tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": True})
    assert (turn.tool_choice.mode, turn.tool_choice.name, turn.parallel) == (mode, name, False)


def test_thinking_decides_whether_thoughts_are_shown() -> None:
    assert turn_of().thoughts == "hidden"
    assert turn_of(thinking={"type": "disabled"}).thoughts == "hidden"
    assert turn_of(thinking={"type": "adaptive", "display": "omitted"}).thoughts == "signed"
    assert turn_of(thinking={"type": "adaptive", "display": "updates"}).thoughts == "shown"
    budget = turn_of(thinking={"type": "enabled", "budget_tokens": 4000})
    assert (budget.thoughts, budget.sampling.effort) == ("shown", "medium")


def test_output_format() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    turn = turn_of(output_config={"format": {"type": "json_schema", "schema": schema}})
    assert (turn.output.type, turn.output.schema, turn.output.strict) == ("json_schema", schema, True)
    assert "output_config.format" in turn.sent
    assert turn_of(output_format={"type": "json_schema", "schema": schema}).output.schema == schema


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"tools": [{"name": "read"}]}, "tools[0].input_schema"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"temperature": 2}, "temperature"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"thread": {"type": "create"}}, "thread"),
    ],
)
def test_bad_requests_are_refused_by_the_field(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).failure.param == param


def test_threads_are_refused_so_that_the_sdks_continue_without_them() -> None:
    assert refused(thread={"type": "create"}).failure.code == "thread_unsupported_request"

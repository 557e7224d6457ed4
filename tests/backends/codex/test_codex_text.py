"""The real Codex before native tools: text in, text out, and its additions to every request."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from toolwire.backends.base import Batch
from toolwire.backends.codex import CodexBackend
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Event, Failure, Finish, Text, Thought, Usage
from toolwire.core.turn import ImagePart, Item, Message, OutputFormat, Sampling, TextPart, Turn

Make = Callable[..., CodexBackend]
IMAGE = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
LEFT_OVER_TOOLS = {
    "list_mcp_resources",
    "list_mcp_resource_templates",
    "read_mcp_resource",
    "update_plan",
    "view_image",
}
LEFT_OVER_TEXTS = ("<permissions instructions>", "<environment_context>")
"""What Codex 0.89 adds to every request."""


def message(role: Any, words: str) -> Message:
    return Message(role, (TextPart(words),))


def turn(*items: Item, **fields: Any) -> Turn:
    return Turn("chat", "codex", items or (message("user", "hi"),), **fields)


async def gather(batches: AsyncGenerator[Batch, None]) -> list[Event]:
    async with aclosing(batches):
        return [event async for batch in batches for event in batch]


def said(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def own(texts: list[str]) -> list[str]:
    return [text for text in texts if not text.startswith(LEFT_OVER_TEXTS)]


async def ready(make: Make, binary: str, **options: Any) -> CodexBackend:
    backend = make(binary, **options)
    await backend.prepare()
    return backend


async def test_the_strategy_follows_from_the_version_that_is_installed(make: Make, old_codex: str) -> None:
    backend = make(old_codex, tools="parked")
    assert backend.capabilities.tools
    await backend.prepare()
    assert backend.strategy == "emulated" and not backend.capabilities.tools
    with pytest.raises(ToolwireError):
        backend.open(turn())


async def test_text_is_sent_once_although_codex_sends_it_three_times(
    make: Make, old_codex: str, provider: Any
) -> None:
    provider.play(provider.text("Hello, wörld!", size=5))
    events = await gather((await ready(make, old_codex)).run(turn()))
    assert [event.text for event in events if isinstance(event, Text)] == ["Hello", ", wör", "ld!"]
    assert events[-2:] == [Usage(11, 7, 4, 2), Finish("stop")]


async def test_the_provider_sees_the_turn_and_the_documented_remainder(
    make: Make, old_codex: str, provider: Any, homes: Path
) -> None:
    provider.play(provider.text("ok"))
    backend = await ready(make, old_codex, model="some-model")
    items = (
        message("system", "Be brief."),
        message("user", "one"),
        message("assistant", "two"),
        message("user", "three"),
    )
    await gather(backend.run(turn(*items)))
    asked = provider.seen[0]
    assert not asked.body.get("instructions")
    assert own(asked.texts("developer")) == ["Be brief."]
    assert own(asked.texts("user")) == ["one", "three"]
    assert asked.texts("assistant") == ["two"]
    assert asked.texts("user")[-1] == "three"
    assert set(asked.tool_names()) == LEFT_OVER_TOOLS
    assert "a-secret-of-ours" not in json.dumps(asked.body)
    assert list(homes.rglob("rollout-*")) == [], "the conversation stays on disk"


async def test_a_long_history_is_not_replaced_by_a_summary(make: Make, old_codex: str, provider: Any) -> None:
    full = {
        "input_tokens": 600_000,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 9,
        "total_tokens": 600_009,
    }
    provider.play(
        [*provider.call("nothing", "{}", "call_a"), provider.completed(full)], provider.text("Done.")
    )
    assert said(await gather((await ready(make, old_codex)).run(turn(message("user", "long"))))) == "Done."
    assert len(provider.seen) == 2 and own(provider.seen[1].texts()) == ["long"]
    assert "call_a" in provider.seen[1].outputs()


async def test_images_reasoning_and_a_schema_are_passed_on(make: Make, old_codex: str, provider: Any) -> None:
    provider.play(provider.thought(["Thinking."]) + provider.text("{}"))
    backend = await ready(make, old_codex)
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    asked = turn(
        Message("user", (TextPart("see"), ImagePart(IMAGE))),
        output=OutputFormat("json_schema", "x", schema),
        sampling=Sampling(effort="high", summary="auto"),
    )
    events = await gather(backend.run(asked))
    assert [event for event in events if isinstance(event, Thought)] == [Thought("Thinking.", summary=True)]
    body = provider.seen[0].body
    assert body["reasoning"] == {"effort": "high", "summary": "auto"}
    assert body["text"]["format"]["schema"] == schema
    assert any(part.get("image_url") == IMAGE for item in body["input"] for part in item["content"])


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda p: p.status(401), "backend_auth"),
        (lambda p: p.status(429), "rate_limit"),
        (lambda p: p.status(503), "overloaded"),
        (lambda p: [p.failed("context_length_exceeded")], "context_length"),
        (lambda p: [p.failed("insufficient_quota")], "quota"),
        (lambda p: [p.failed("rate_limit_exceeded", "Rate limit reached.")], "rate_limit"),
        (lambda p: [*p.text("Half")[:-1], {"type": "cut"}], "backend_cut"),
    ],
)
async def test_failures_have_their_kind(
    make: Make, old_codex: str, provider: Any, answer: Callable[[Any], Any], kind: str
) -> None:
    provider.play(answer(provider))
    events = await gather((await ready(make, old_codex)).run(turn()))
    assert isinstance(events[-1], Failure) and events[-1].kind == kind
    assert len(provider.seen) == 1


async def test_a_model_that_asks_for_this_machines_files_gets_none(
    make: Make, old_codex: str, provider: Any, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(base64.b64decode(IMAGE.partition(",")[2]))
    backend = await ready(make, old_codex)
    provider.play(
        provider.call("view_image", json.dumps({"path": str(secret)}), "call_v"), provider.text("I see.")
    )
    events = []
    async for batch in backend.run(turn()):
        events += batch
        await asyncio.sleep(0.5)  # on a busy gateway, Codex must have been stopped before
    assert isinstance(events[-1], Failure) and "does not allow" in events[-1].message
    assert len(provider.seen) == 1
    target = tmp_path / "written"
    for name, arguments in {
        "apply_patch": {"input": f"*** Begin Patch\n*** Add File: {target}\n+x\n*** End Patch"},
        "shell_command": {"command": f"touch {target}"},
        "shell": {"command": ["touch", str(target)]},
        "exec_command": {"cmd": f"touch {target}"},
    }.items():
        provider.play(provider.call(name, json.dumps(arguments), "call_x"), provider.text("Well."))
        assert said(await gather(backend.run(turn()))) == "Well."
        assert (
            "rejected" in provider.seen[1].outputs()["call_x"]
            or "unsupported" in provider.seen[1].outputs()["call_x"]
        )
    assert not target.exists()


async def test_an_effort_that_this_version_does_not_know_is_a_clear_error(
    make: Make, old_codex: str, provider: Any
) -> None:
    events = await gather((await ready(make, old_codex)).run(turn(sampling=Sampling(effort="bogus"))))
    assert len(events) == 1 and isinstance(events[0], Failure)
    assert events[0].kind == "unsupported_value" and "bogus" in events[0].message


async def test_closing_a_run_in_mid_stream_hangs_up_on_the_provider(
    make: Make, old_codex: str, provider: Any
) -> None:
    provider.play(provider.dripping("Once "))  # this version disconnects at the next event
    run = (await ready(make, old_codex)).run(turn())
    assert said(await anext(run)).startswith("Once")
    await run.aclose()
    async with asyncio.timeout(5):
        await provider.seen[0].gone.wait()


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
        },
    }
]


async def test_the_gateway_finds_the_calls_in_its_text(
    table: Any, make: Make, old_codex: str, provider: Any
) -> None:
    async def model(exchange: Any) -> Any:
        prompt = "\n".join(exchange.texts("developer"))
        token = re.search(r"<tool_call:([0-9a-z]+)>", prompt)
        assert token is not None and '"look"' in prompt
        block = (
            f'Looking. <tool_call:{token[1]}>{{"name": "look", "arguments": {{"q": '
            f'"a"}}}}</tool_call:{token[1]}>'
        )
        done = any("result 1" in text for text in exchange.texts("user"))
        return await provider.stream(exchange, provider.text("It is result 1." if done else block, size=3))

    provider.play(model)
    table.serve(make(old_codex))
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is it?"}]
    body = await table.body("chat", {"messages": messages, "tools": TOOLS})
    answer = body["choices"][0]["message"]
    assert body["choices"][0]["finish_reason"] == "tool_calls" and answer["content"].strip() == "Looking."
    assert [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in answer["tool_calls"]
    ] == [("look", {"q": "a"})]
    result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "result 1"}
    body = await table.body("chat", {"messages": [*messages, answer, result], "tools": TOOLS})
    assert body["choices"][0]["message"]["content"] == "It is result 1."
    assert provider.seen[1].texts("assistant")[0].startswith("Looking.")
    await table.gateway.close()

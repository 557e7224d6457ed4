"""Haystack: its Agent, which runs the tools, on its chat completions and Responses generators."""

from __future__ import annotations

import os
from typing import Any

# Haystack sends usage data to its maker unless this is set before the import.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage, ChatRole
from haystack.tools import Tool
from haystack.utils import Secret

from jobs import DESCRIPTIONS, MAX_STEPS, PROMPT, SCHEMAS, Api, Job, Step, main, run_tool


def tools(job: Job) -> list[Tool]:
    def tool(name: str) -> Tool:
        return Tool(name, DESCRIPTIONS[name], SCHEMAS[name], lambda **given: run_tool(name, given, job))

    return [tool(name) for name in SCHEMAS]


def step(message: ChatMessage) -> Step:
    usage = message.meta.get("usage") or {}
    return {
        "text": message.text or "",
        "calls": [
            {"id": call.id, "name": call.tool_name, "arguments": call.arguments}
            for call in message.tool_calls
        ],
        "finish": message.meta.get("finish_reason") or message.meta.get("status"),
        "usage": {
            "input": usage.get("prompt_tokens", usage.get("input_tokens")),
            "output": usage.get("completion_tokens", usage.get("output_tokens")),
        },
    }


def loop(job: Job, base_url: str, steps: list[Step], kind: Any) -> None:
    options: dict[str, Any] = {}
    if job["stream"] and kind is OpenAIChatGenerator:  # Responses always send the usage
        options["generation_kwargs"] = {"stream_options": {"include_usage": True}}
    key = Secret.from_token(job.get("apiKey", "unused"))
    generator = kind(
        model=job["model"], api_key=key, api_base_url=base_url, max_retries=0, timeout=20, **options
    )
    agent = Agent(
        chat_generator=generator,
        tools=tools(job),
        max_agent_steps=MAX_STEPS,
        raise_on_tool_invocation_failure=True,
        streaming_callback=(lambda chunk: None) if job["stream"] else None,
    )
    history: list[ChatMessage] = []
    for question in (PROMPT, *job.get("then", ())):
        history.append(ChatMessage.from_user(question))
        seen, history = len(history), agent.run(messages=history)["messages"]
        steps += [step(message) for message in history[seen:] if message.is_from(ChatRole.ASSISTANT)]


def on(kind: Any) -> Api:
    return lambda job, base_url, steps: loop(job, base_url, steps, kind)


if __name__ == "__main__":
    main({"chat": on(OpenAIChatGenerator), "responses": on(OpenAIResponsesChatGenerator)})

"""pydantic-ai: an Agent whose tools the package runs, on OpenAI's chat and Responses models."""

from __future__ import annotations

from collections.abc import AsyncIterable
from functools import cache
from typing import Any

from openai import AsyncOpenAI
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from jobs import DESCRIPTIONS, PROMPT, SCHEMAS, Api, Job, Step, await_on, main, run_tool, running_loop


def tool(name: str) -> Any:
    return Tool.from_schema(lambda **given: run_tool(name, given), name, DESCRIPTIONS[name], SCHEMAS[name])


TOOLS = [tool(name) for name in SCHEMAS]


def step(response: ModelResponse) -> Step:
    return {
        "text": response.text or "",
        "thought": response.thinking,
        "calls": [
            {"id": call.tool_call_id, "name": call.tool_name, "arguments": call.args_as_dict()}
            for call in response.tool_calls
        ],
        "finish": response.finish_reason,
        "usage": {"input": response.usage.input_tokens, "output": response.usage.output_tokens},
    }


async def watch(context: Any, events: AsyncIterable[Any]) -> None:
    """The package only streams if it has an event handler."""
    async for _ in events:
        pass


LOOP = running_loop()


@cache
def connected(base_url: str, key: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=20)


async def loop(job: Job, base_url: str, steps: list[Step], kind: Any) -> None:
    client = connected(base_url, job.get("apiKey", "unused"))
    agent: Any = Agent(kind(job["model"], provider=OpenAIProvider(openai_client=client)), tools=TOOLS)
    history: list[Any] = []
    for question in (PROMPT, *job.get("then", ())):
        answer = await agent.run(
            question, message_history=history, event_stream_handler=watch if job["stream"] else None
        )
        steps += [step(message) for message in answer.new_messages() if isinstance(message, ModelResponse)]
        history = answer.all_messages()


def on(kind: Any) -> Api:
    return lambda job, base_url, steps: await_on(LOOP, loop(job, base_url, steps, kind))


if __name__ == "__main__":
    main({"chat": on(OpenAIChatModel), "responses": on(OpenAIResponsesModel)})

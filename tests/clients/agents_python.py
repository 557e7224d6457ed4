"""openai-agents: an Agent whose tools the package runs, on its chat completions and Responses models."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from jobs import (
    DESCRIPTIONS,
    MAX_STEPS,
    PROMPT,
    SCHEMAS,
    Api,
    Job,
    Step,
    await_on,
    main,
    run_tool,
    running_loop,
)


def tool(name: str) -> Any:
    async def invoke(context: Any, arguments: str) -> str:
        return run_tool(name, json.loads(arguments))

    return FunctionTool(name, DESCRIPTIONS[name], SCHEMAS[name], invoke, strict_json_schema=False)


TOOLS = [tool(name) for name in SCHEMAS]


def step(response: Any) -> Step:
    calls = [item for item in response.output if item.type == "function_call"]
    parts = [part for item in response.output if item.type == "message" for part in item.content]
    return {
        "text": "".join(part.text for part in parts if part.type == "output_text"),
        "calls": [
            {"id": call.call_id, "name": call.name, "arguments": json.loads(call.arguments)} for call in calls
        ],
        "finish": None,  # the package does not report it
        "usage": {"input": response.usage.input_tokens, "output": response.usage.output_tokens},
    }


LOOP = running_loop()


@cache
def connected(base_url: str, key: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=20)


async def loop(job: Job, base_url: str, steps: list[Step], kind: Any) -> None:
    client = connected(base_url, job.get("apiKey", "unused"))
    settings = ModelSettings(include_usage=True)
    agent = Agent(
        name="Weather",
        model=kind(model=job["model"], openai_client=client),
        tools=TOOLS,
        model_settings=settings,
    )
    history: list[Any] = []
    for question in (PROMPT, *job.get("then", ())):
        history.append({"role": "user", "content": question})
        if job["stream"]:
            answer = Runner.run_streamed(agent, history, max_turns=MAX_STEPS)
            async for _ in answer.stream_events():
                pass
        else:
            answer = await Runner.run(agent, history, max_turns=MAX_STEPS)
        steps += map(step, answer.raw_responses)
        history = answer.to_input_list()


def on(kind: Any) -> Api:
    return lambda job, base_url, steps: await_on(LOOP, loop(job, base_url, steps, kind))


if __name__ == "__main__":
    set_tracing_disabled(True)
    main({"chat": on(OpenAIChatCompletionsModel), "responses": on(OpenAIResponsesModel)})

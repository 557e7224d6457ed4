"""The anthropic package: Messages by hand and with its tool runner, counting tokens, listing models.

A job may have `more`, further fields of the request, and end after `once`, the first answer. A step also has
the whole `message`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import anthropic
from anthropic.lib.tools import BetaFunctionTool, beta_tool

from jobs import DESCRIPTIONS, MAX_STEPS, PROMPT, SCHEMAS, Job, Step, main, run_tool

MAX_TOKENS = 1000
TOOLS: Any = [
    {"name": name, "description": DESCRIPTIONS[name], "input_schema": schema}
    for name, schema in SCHEMAS.items()
]


@cache
def connect(base_url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=base_url.removesuffix("/v1"), api_key="unused", max_retries=0, timeout=20
    )


def step_of(message: Any) -> Step:
    blocks = message.content
    return {
        "text": "".join(block.text for block in blocks if block.type == "text"),
        "calls": [
            {"id": block.id, "name": block.name, "arguments": block.input}
            for block in blocks
            if block.type == "tool_use"
        ],
        "finish": message.stop_reason,
        "usage": {"input": message.usage.input_tokens, "output": message.usage.output_tokens},
        "message": message.to_dict(mode="json"),
    }


def messages(job: Job, base_url: str, steps: list[Step]) -> None:
    client = connect(base_url)
    history: list[Any] = [{"role": "user", "content": PROMPT}]
    questions = list(job.get("then", ()))
    while len(steps) < MAX_STEPS:
        request: Any = {
            "model": job["model"],
            "max_tokens": MAX_TOKENS,
            "messages": history,
            "tools": TOOLS,
            **job.get("more", {}),
        }
        if job["stream"]:
            with client.messages.stream(**request) as stream:
                message: Any = stream.get_final_message()
        else:
            message = client.messages.create(**request)
        step = step_of(message)
        steps.append(step)
        if job.get("once"):
            return
        results = [
            {
                "type": "tool_result",
                "tool_use_id": call["id"],
                "content": run_tool(call["name"], call["arguments"]),
            }
            for call in step["calls"]
        ]
        if not (results or questions):
            return
        asked = results or [{"type": "text", "text": questions.pop(0)}]
        history += [{"role": "assistant", "content": message.content}, {"role": "user", "content": asked}]


def runnable(name: str, job: Job) -> BetaFunctionTool[Any]:
    def run(**given: Any) -> str:
        return run_tool(name, given, job)

    return beta_tool(run, name=name, description=DESCRIPTIONS[name], input_schema=SCHEMAS[name])


def runner(job: Job, base_url: str, steps: list[Step]) -> None:
    """The package's own loop. It first asks for a thread that the server keeps."""
    history: list[Any] = []
    for question in (PROMPT, *job.get("then", ())):
        history.append({"role": "user", "content": question})
        request: Any = {
            "model": job["model"],
            "max_tokens": MAX_TOKENS,
            "messages": history,
            "tools": [runnable(name, job) for name in SCHEMAS],
            "max_iterations": MAX_STEPS,
            "stream": job["stream"],
        }
        for answer in connect(base_url).beta.messages.tool_runner(**request):
            message: Any = answer.get_final_message() if job["stream"] else answer
            steps.append(step_of(message))
            history = [*history, {"role": "assistant", "content": message.content}]


def count(job: Job, base_url: str, steps: list[Step]) -> None:
    counted = connect(base_url).messages.count_tokens(
        model=job["model"], messages=[{"role": "user", "content": PROMPT}], tools=TOOLS
    )
    steps.append({"tokens": counted.input_tokens})


def models(job: Job, base_url: str, steps: list[Step]) -> None:
    """All models, in pages, and one by its id."""
    client = connect(base_url)
    listed = [model.id for model in client.models.list(limit=job["limit"])]
    one = client.models.retrieve(job["model"])
    steps.append({"models": listed, "one": one.to_dict(mode="json")})


if __name__ == "__main__":
    main({"messages": messages, "runner": runner, "count": count, "models": models})

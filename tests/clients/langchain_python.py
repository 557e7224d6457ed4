"""langchain-openai: ChatOpenAI with bind_tools, on chat completions and on Responses."""

from __future__ import annotations

import json
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from jobs import DESCRIPTIONS, MAX_STEPS, PROMPT, SCHEMAS, Api, Job, Step, main, run_tool

TOOLS = [
    {"type": "function", "function": {"name": name, "description": DESCRIPTIONS[name], "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


def gather(calls: dict[int, dict[str, str]], chunk: Any) -> None:
    """Calls as a client accumulates them: by index, with names, ids and arguments appended."""
    for piece in chunk.tool_call_chunks:
        call = calls.setdefault(piece["index"], {"id": "", "name": "", "arguments": ""})
        call["id"] += piece["id"] or ""
        call["name"] += piece["name"] or ""
        call["arguments"] += piece["args"] or ""


def ask(model: Any, messages: list[Any], stream: bool) -> tuple[Any, list[Any] | None]:
    if not stream:
        return model.invoke(messages), None
    answer, calls = None, dict[int, dict[str, str]]()
    for chunk in model.stream(messages):
        gather(calls, chunk)
        answer = chunk if answer is None else answer + chunk
    return answer, [{**call, "arguments": json.loads(call["arguments"] or "{}")} for call in calls.values()]


def loop(job: Job, base_url: str, steps: list[Step], responses: bool) -> None:
    options = {
        "api_key": job.get("apiKey", "unused"),
        "max_retries": 0,
        "use_responses_api": responses,
        "stream_usage": True,
    }
    model = ChatOpenAI(model=job["model"], base_url=base_url, **options).bind_tools(TOOLS)
    messages: list[Any] = [HumanMessage(PROMPT)]
    questions = list(job.get("then", ()))
    while len(steps) < MAX_STEPS:
        answer, gathered = ask(model, messages, job["stream"])
        metadata, usage = answer.response_metadata, answer.usage_metadata
        steps.append(
            {
                "text": answer.text,
                "calls": [
                    {"id": call["id"], "name": call["name"], "arguments": call["args"]}
                    for call in answer.tool_calls
                ],
                "invalid": answer.invalid_tool_calls,
                "gathered": gathered,
                "finish": metadata.get("finish_reason") or metadata.get("status"),
                "usage": usage and {"input": usage["input_tokens"], "output": usage["output_tokens"]},
            }
        )
        messages.append(answer)
        messages += [
            ToolMessage(
                content=run_tool(call["name"], call["args"]), tool_call_id=call["id"], name=call["name"]
            )
            for call in answer.tool_calls
        ]
        if answer.tool_calls:
            continue
        if not questions:
            return
        messages.append(HumanMessage(questions.pop(0)))


def on(responses: bool) -> Api:
    return lambda job, base_url, steps: loop(job, base_url, steps, responses)


if __name__ == "__main__":
    main({"chat": on(False), "responses": on(True)})

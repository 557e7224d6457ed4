"""The openai package for Python: all its kinds of requests, on both APIs, as whole tool loops.

As a program it runs jobs; tests use the loops too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import openai

import jobs

QUESTION: dict[str, Any] = {"role": "user", "content": "What is the weather?"}

SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "array"}},
        "required": ["city"],
    },
    "list_notes": {"type": "object", "properties": {}},
}
CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()
]
RESPONSES_TOOLS: Any = [
    {"type": "function", "name": name, "parameters": schema, "strict": False}
    for name, schema in SCHEMAS.items()
]


def run_tool(name: str, arguments: str) -> str:
    given = json.loads(arguments)
    return (
        f"rain in {given['city']}"
        if name == "get_weather"
        else f"one note, Ideas.md, for {len(given)} arguments"
    )


@dataclass(frozen=True)
class Called:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Step:
    """One answer of the model.

    `items` are what the client sends back before the results in its next request.
    """

    text: str
    calls: list[Called]
    finish: str
    usage: tuple[int, int]
    items: list[Any]
    response_id: str = ""


# --- kinds of requests ---


def chat_created(client: openai.OpenAI, model: str, messages: list[Any]) -> Step:
    return _chat_step(client.chat.completions.create(model=model, messages=messages, tools=CHAT_TOOLS))


def chat_iterated(client: openai.OpenAI, model: str, messages: list[Any]) -> Step:
    """Accumulates chunks as many clients do: text and arguments appended, calls by index."""
    stream = client.chat.completions.create(
        model=model, messages=messages, tools=CHAT_TOOLS, stream=True, stream_options={"include_usage": True}
    )
    text, finish, usage = "", [], (0, 0)
    calls: dict[int, dict[str, str]] = {}
    for chunk in stream:
        if chunk.usage is not None:
            usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish += [choice.finish_reason] if choice.finish_reason else []
            for piece in choice.delta.tool_calls or []:
                call = calls.setdefault(piece.index, {"id": "", "name": "", "arguments": ""})
                call["id"] += piece.id or ""
                if piece.function is not None:
                    call["name"] += piece.function.name or ""
                    call["arguments"] += piece.function.arguments or ""
    (reason,) = finish
    found = [Called(**calls[index]) for index in range(len(calls))]
    wire = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in found
    ]
    message = {"role": "assistant", "content": text or None, **({"tool_calls": wire} if wire else {})}
    return Step(text, found, reason, usage, [message])


def chat_accumulated(client: openai.OpenAI, model: str, messages: list[Any]) -> Step:
    """The package's accumulator. Its events must add up to its final result."""
    heard: dict[int, str] = {}
    options: Any = {"include_usage": True}
    with client.chat.completions.stream(
        model=model, messages=messages, tools=CHAT_TOOLS, stream_options=options
    ) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.delta":
                heard[event.index] = heard.get(event.index, "") + event.arguments_delta
            elif event.type == "tool_calls.function.arguments.done":
                assert event.arguments == heard[event.index]
        step = _chat_step(stream.get_final_completion())
    assert [heard[index] for index in sorted(heard)] == [call.arguments for call in step.calls]
    return step


def _chat_step(completion: Any) -> Step:
    (choice,) = completion.choices
    calls = [
        Called(call.id, call.function.name, call.function.arguments)
        for call in choice.message.tool_calls or []
    ]
    usage = (completion.usage.prompt_tokens, completion.usage.completion_tokens)
    return Step(
        choice.message.content or "",
        calls,
        choice.finish_reason,
        usage,
        [choice.message.model_dump(exclude_none=True)],
    )


def response_created(client: openai.OpenAI, model: str, **request: Any) -> Step:
    return _response_step(client.responses.create(model=model, tools=RESPONSES_TOOLS, **request))


def response_iterated(client: openai.OpenAI, model: str, **request: Any) -> Step:
    """The events as they arrive; the last one contains the response."""
    *_, last = client.responses.create(model=model, tools=RESPONSES_TOOLS, stream=True, **request)
    assert last.type in ("response.completed", "response.incomplete"), last
    return _response_step(last.response)


def response_accumulated(client: openai.OpenAI, model: str, **request: Any) -> Step:
    heard: dict[int, str] = {}
    with client.responses.stream(model=model, tools=RESPONSES_TOOLS, **request) as stream:
        for event in stream:
            if event.type == "response.function_call_arguments.delta":
                heard[event.output_index] = heard.get(event.output_index, "") + event.delta
                assert event.snapshot == heard[event.output_index]
        step = _response_step(stream.get_final_response())
    assert [heard[index] for index in sorted(heard)] == [call.arguments for call in step.calls]
    return step


def _response_step(response: Any) -> Step:
    calls = [
        Called(item.call_id, item.name, item.arguments)
        for item in response.output
        if item.type == "function_call"
    ]
    usage = (response.usage.input_tokens, response.usage.output_tokens)
    items = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
    return Step(response.output_text, calls, response.status, usage, items, response.id)


# --- loops ---

Loop = Callable[[openai.OpenAI, str], list[Step]]


def chat_loop(
    ask: Callable[..., Step], rewrite: Callable[[list[Any]], list[Any]] = lambda messages: messages
) -> Loop:
    def loop(client: openai.OpenAI, model: str) -> list[Step]:
        messages, steps = [QUESTION], [ask(client, model, [QUESTION])]
        while steps[-1].calls:
            results = [
                {"role": "tool", "tool_call_id": call.id, "content": run_tool(call.name, call.arguments)}
                for call in steps[-1].calls
            ]
            messages += rewrite([*steps[-1].items, *results])
            steps.append(ask(client, model, messages))
        return steps

    return loop


def respaced(messages: list[Any]) -> list[Any]:
    """A history rewritten by a client: empty text, respaced arguments, named results in reverse order."""
    first, *results = messages
    for call in first["tool_calls"]:
        call["function"]["arguments"] = json.dumps(
            json.loads(call["function"]["arguments"]), indent=4, sort_keys=True
        )
    names = {call["id"]: call["function"]["name"] for call in first["tool_calls"]}
    return [
        {**first, "content": ""},
        *({**result, "name": names[result["tool_call_id"]]} for result in reversed(results)),
    ]


def response_loop(ask: Callable[..., Step], *, chained: bool = False) -> Loop:
    def loop(client: openai.OpenAI, model: str) -> list[Step]:
        history, steps = [QUESTION], [ask(client, model, input=[QUESTION])]
        while steps[-1].calls:
            last = steps[-1]
            results = [
                {
                    "type": "function_call_output",
                    "call_id": call.id,
                    "output": run_tool(call.name, call.arguments),
                }
                for call in last.calls
            ]
            history += [*last.items, *results]
            more = (
                {"input": results, "previous_response_id": last.response_id}
                if chained
                else {"input": history}
            )
            steps.append(ask(client, model, **more))
        return steps

    return loop


CHAT_LOOPS = {
    "chat-create": chat_loop(chat_created),
    "chat-create-streamed": chat_loop(chat_iterated),
    "chat-stream": chat_loop(chat_accumulated),
    "chat-respaced": chat_loop(chat_created, respaced),
    "chat-respaced-streamed": chat_loop(chat_iterated, respaced),
}
RESPONSES_LOOPS = {
    "responses-create": response_loop(response_created),
    "responses-create-streamed": response_loop(response_iterated),
    "responses-stream": response_loop(response_accumulated),
    "responses-create-chained": response_loop(response_created, chained=True),
    "responses-create-streamed-chained": response_loop(response_iterated, chained=True),
    "responses-stream-chained": response_loop(response_accumulated, chained=True),
}
LOOPS = CHAT_LOOPS | RESPONSES_LOOPS


# --- program ---

WAYS = {
    ("chat", False): "chat-create",
    ("chat", True): "chat-stream",
    ("responses", False): "responses-create",
    ("responses", True): "responses-stream",
    ("chained", False): "responses-create-chained",
    ("chained", True): "responses-stream-chained",
}


@cache
def connected(base_url: str, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=20)


def run(job: jobs.Job, base_url: str, steps: list[jobs.Step]) -> None:
    for step in LOOPS[WAYS[job["api"], job["stream"]]](
        connected(base_url, job.get("apiKey", "unused")), job["model"]
    ):
        calls = [
            {"id": call.id, "name": call.name, "arguments": json.loads(call.arguments)} for call in step.calls
        ]
        usage = {"input": step.usage[0], "output": step.usage[1]}
        steps.append({"text": step.text, "calls": calls, "finish": step.finish, "usage": usage})


if __name__ == "__main__":
    jobs.main({api: run for api, _ in WAYS})

"""semantic-kernel: OpenAIChatCompletion with automatic function choice, and OpenAIResponsesAgent.

Its functions belong to a plugin, so the model knows them as `tools-get_weather`; the steps have the plain
name. With the server's store (its default) the agent sends the question again with every result, together
with `previous_response_id`. It also runs without a store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Annotated, Any, TypeVar

from openai import AsyncOpenAI
from semantic_kernel import Kernel
from semantic_kernel.agents import OpenAIResponsesAgent, ResponsesAgentThread
from semantic_kernel.connectors.ai import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import (
    ChatHistory,
    ChatMessageContent,
    FunctionCallContent,
    StreamingChatMessageContent,
)
from semantic_kernel.functions import kernel_function

from jobs import DESCRIPTIONS, MAX_STEPS, PROMPT, Api, Job, Step, await_on, main, run_tool, running_loop

Rounds = dict[int, Step]


Function = TypeVar("Function", bound=Callable[..., str])
City = Annotated[str, "A city"]
Days = list | None  # type: ignore[type-arg]


def _tool(name: str) -> Callable[[Function], Function]:
    decorate: Callable[[Function], Function] = kernel_function(name=name, description=DESCRIPTIONS[name])
    return decorate


class Tools:
    def __init__(self, job: Job) -> None:
        self.job = job

    @_tool("get_weather")
    def get_weather(self, city: City, days: Days = None) -> str:
        return run_tool(
            "get_weather", {"city": city} if days is None else {"city": city, "days": days}, self.job
        )

    @_tool("list_notes")
    def list_notes(self) -> str:
        return run_tool("list_notes", {}, self.job)


def called(call: FunctionCallContent) -> dict[str, Any]:
    return {
        "id": call.call_id or call.id,
        "name": call.function_name,
        "arguments": call.parse_arguments() or {},
    }


def step(message: ChatMessageContent) -> Step:
    return {
        "text": message.content,
        "calls": [called(item) for item in message.items if isinstance(item, FunctionCallContent)],
        "finish": message.finish_reason or message.status,
        "usage": usage_of(message),
    }


def usage_of(message: ChatMessageContent) -> dict[str, Any]:
    """Usage: an object with other names on chat completions, a copy of the server's on Responses."""
    usage = message.metadata.get("usage")
    if isinstance(usage, dict):
        return {"input": usage["input_tokens"], "output": usage["output_tokens"]}
    return {
        "input": getattr(usage, "prompt_tokens", None),
        "output": getattr(usage, "completion_tokens", None),
    }


async def gather(chunks: AsyncIterator[StreamingChatMessageContent], rounds: Rounds) -> None:
    async for chunk in chunks:
        # Chat completions and Responses count the rounds in different places.
        answer = rounds[(chunk.function_invoke_attempt or 0) + chunk.choice_index]
        if chunk.role == "assistant":
            answer["text"] += chunk.content
        answer["finish"] = chunk.finish_reason or answer["finish"]
        used = usage_of(chunk)
        answer["usage"] = used if used["input"] is not None else answer["usage"]


def equipped(job: Job, rounds: Rounds) -> Kernel:
    """A kernel that reports each call before it runs, because its streams do not always."""
    kernel = Kernel()
    kernel.add_plugin(Tools(job), "tools")

    @kernel.filter("auto_function_invocation")  # type: ignore[untyped-decorator]
    async def watch(context: Any, next: Callable[[Any], Any]) -> None:
        rounds[context.request_sequence_index]["calls"].append(called(context.function_call_content))
        await next(context)

    return kernel


LOOP = running_loop()
CHOICE = FunctionChoiceBehavior.Auto(maximum_auto_invoke_attempts=MAX_STEPS)


@cache
def connected(base_url: str, key: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=20)


async def ask_chat(job: Job, client: AsyncOpenAI) -> AsyncIterator[list[Step]]:
    service = OpenAIChatCompletion(ai_model_id=job["model"], async_client=client)
    history = ChatHistory()
    for question in (PROMPT, *job.get("then", ())):
        history.add_user_message(question)
        rounds, seen = empty(), len(history)
        options: Any = {
            "settings": OpenAIChatPromptExecutionSettings(function_choice_behavior=CHOICE),
            "kernel": equipped(job, rounds),
        }
        if job["stream"]:
            await gather(service.get_streaming_chat_message_content(history, **options), rounds)
            yield list(rounds.values())
            history.add_assistant_message(rounds[max(rounds)]["text"])
        else:
            history.add_message(await service.get_chat_message_content(history, **options))
            yield [step(message) for message in history.messages[seen:] if message.role == "assistant"]


async def ask_agent(job: Job, client: AsyncOpenAI, store: bool) -> AsyncIterator[list[Step]]:
    thread = ResponsesAgentThread(client=client, enable_store=store)
    for question in (PROMPT, *job.get("then", ())):
        rounds, messages = empty(), list[ChatMessageContent]()
        options: Any = {
            "ai_model_id": job["model"],
            "client": client,
            "store_enabled": store,
            "function_choice_behavior": CHOICE,
        }
        agent = OpenAIResponsesAgent(**options, name="Weather", kernel=equipped(job, rounds))

        async def between(message: ChatMessageContent, messages: list[ChatMessageContent] = messages) -> None:
            messages.append(message)

        if job["stream"]:
            answer = agent.invoke_stream(question, thread=thread, on_intermediate_message=between)
            await gather((item.message async for item in answer), rounds)
            yield list(rounds.values())
        else:
            messages += [
                item.message
                async for item in agent.invoke(question, thread=thread, on_intermediate_message=between)
            ]
            own = [message for message in messages if message.role == "assistant" and message.inner_content]
            yield [step(message) for message in own]


def empty() -> Rounds:
    return defaultdict(
        lambda: {"text": "", "calls": [], "finish": None, "usage": {"input": None, "output": None}}
    )


async def loop(ask: Any, steps: list[Step]) -> None:
    try:
        async for answers in ask:
            steps += answers
    except Exception as error:
        raised: BaseException = error
        while raised.__cause__ is not None:  # wraps the exception of the openai package
            raised = raised.__cause__
        raise raised from None


def on(ask: Any, *options: Any) -> Api:
    def run(job: Job, base_url: str, steps: list[Step]) -> None:
        client = connected(base_url, job.get("apiKey", "unused"))
        await_on(LOOP, loop(ask(job, client, *options), steps))

    return run


if __name__ == "__main__":
    main({"chat": on(ask_chat), "responses": on(ask_agent, True), "stateless": on(ask_agent, False)})

"""The HTTP surface, the real gateway and the store together, used by OpenAI's client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import openai
import pytest

from toolwire.gateway.pipeline import Gateway
from toolwire.settings.types import ModelSettings, ServerSettings, Settings
from toolwire.store.store import Store

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASK: Any = [{"role": "user", "content": "weather in Rome?"}]


Served = Callable[..., AbstractAsyncContextManager[str]]


@pytest.fixture
def served(on_a_socket: Served) -> Served:
    """`async with served(*keys) as url`: the demo model."""

    def start(*keys: str) -> AbstractAsyncContextManager[str]:
        settings = Settings(server=ServerSettings(keys=keys), models=(ModelSettings("demo", "scripted"),))
        store = Store("sqlite://")
        return on_a_socket(Gateway(settings, store=store), settings, store)

    return start


async def test_a_call_comes_the_same_streamed_and_whole(served: Served) -> None:
    async with served() as url, openai.AsyncOpenAI(base_url=url + "/v1", api_key="any") as client:
        whole = await client.chat.completions.with_raw_response.create(
            model="demo", messages=ASK, tools=[TOOL]
        )
        assert whole.headers["x-toolwire-tools"].startswith("count=1")
        calls: Any = whole.parse().choices[0].message.tool_calls
        async with client.chat.completions.stream(model="demo", messages=ASK, tools=[TOOL]) as stream:
            streamed = await stream.get_final_completion()
        again: Any = streamed.choices[0].message.tool_calls
        assert [(call.function.name, call.function.arguments) for call in calls] == [
            ("get_weather", '{"city": "Rome"}')
        ]
        assert [(call.function.name, call.function.arguments) for call in again] == [
            ("get_weather", '{"city": "Rome"}')
        ]


async def test_a_response_is_kept_continued_listed_and_deleted(served: Served) -> None:
    async with served() as url, openai.AsyncOpenAI(base_url=url + "/v1", api_key="any") as client:
        first = await client.responses.create(model="demo", input="one")
        second = await client.responses.create(model="demo", input="two", previous_response_id=first.id)
        assert (await client.responses.retrieve(second.id)).output_text == second.output_text
        assert [item.type async for item in client.responses.input_items.list(second.id)] == ["message"]
        await client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="demo", input="three", previous_response_id=second.id)
        assert caught.value.code == "previous_response_not_found"


async def test_a_key_cannot_continue_the_response_of_another_key(served: Served) -> None:
    async with (
        served("mine", "theirs") as url,
        openai.AsyncOpenAI(base_url=url + "/v1", api_key="mine") as client,
    ):
        first = await client.responses.create(model="demo", input="one")
        other = client.with_options(api_key="theirs")
        with pytest.raises(openai.NotFoundError):
            await other.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError):
            await other.responses.create(model="demo", input="two", previous_response_id=first.id)
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="nobody").models.list()


async def test_an_unknown_model_is_openai_s_404(served: Served) -> None:
    async with served() as url, openai.AsyncOpenAI(base_url=url + "/v1", api_key="any") as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="none", messages=ASK)
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_many_turns_at_once_do_not_mix(served: Served) -> None:
    async with served() as url, openai.AsyncOpenAI(base_url=url + "/v1", api_key="any") as client:

        async def ask(number: int) -> str:
            answer = await client.chat.completions.create(
                model="demo", messages=[{"role": "user", "content": f"number {number}."}]
            )
            return answer.choices[0].message.content or ""

        answers = await asyncio.gather(*(ask(number) for number in range(40)))
        assert all(f"number {number}." in answer for number, answer in enumerate(answers))

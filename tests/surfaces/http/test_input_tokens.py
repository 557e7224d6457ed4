"""POST /v1/responses/input_tokens: the size of a request, without running it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from openai.types.responses import InputTokenCountResponse

from doubles.judges import SdkJudge

PATH = "/v1/responses/input_tokens"
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": {"type": "object", "properties": {}},
}


@pytest.mark.parametrize("path", [PATH, "/responses/input_tokens", PATH + "/"])
async def test_the_answer_has_openais_shape_and_nothing_is_run(place: Callable[..., Any], path: str) -> None:
    async with place("say Hi") as it:
        status, counted = await it.post(path, {"model": "m", "input": "Tell me a joke."})
        assert (status, counted) == (200, {"object": "response.input_tokens", "input_tokens": 4})
        assert SdkJudge().validate(counted, InputTokenCountResponse) == []
        assert not it.backend.seen


async def test_everything_that_the_model_reads_counts(place: Callable[..., Any]) -> None:
    async with place("say Hi") as it:

        async def count(**body: Any) -> int:
            status, counted = await it.post(PATH, {"model": "m", **body})
            assert status == 200, counted
            return int(counted["input_tokens"])

        plain = await count(input="Tell me a joke.")
        assert await count() == 0
        assert await count(instructions="Be brief and kind.") > 0
        assert await count(input="Tell me a joke.", tools=[TOOL]) > plain
        assert await count(input="Tell me a joke.", instructions="Be brief.") > plain
        assert await count(input="Tell me a joke." * 1000) > 900 * plain


async def test_the_count_is_an_estimate_and_is_labelled_as_one(place: Callable[..., Any]) -> None:
    async with (
        place("say Hi") as it,
        it.client.post(f"http://127.0.0.1:{it.port}{PATH}", json={"model": "m", "input": "a"}) as response,
    ):
        assert response.headers["x-toolwire-report"] == "input_tokens=estimated"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"input": "a"}, 400, "model"),
        ({"model": "other", "input": "a"}, 404, "model"),
        ({"model": "m", "input": 5}, 400, "input"),
        ({"model": "m", "previous_response_id": "resp_x"}, 400, "previous_response_id"),
    ],
)
async def test_what_is_wrong_is_refused_as_on_other_routes(
    place: Callable[..., Any], body: Any, status: int, param: str
) -> None:
    async with place("say Hi") as it:
        got, error = await it.post(PATH, body)
        assert (got, error["error"]["param"]) == (status, param), error


async def test_it_needs_a_key_where_the_server_has_some(place: Callable[..., Any]) -> None:
    async with place("say Hi", keys=("secret",)) as it:
        url = f"http://127.0.0.1:{it.port}{PATH}"
        async with it.client.post(url, json={"model": "m", "input": "a"}) as response:
            assert response.status == 401
        async with it.client.post(
            url, json={"model": "m", "input": "a"}, headers={"authorization": "Bearer secret"}
        ) as response:
            assert response.status == 200

"""The openai package for Python in whole tool loops against the running gateway, on both APIs.

Assertions are about the package's own objects and exceptions. The loops are in
tests/clients/openai_python.py, the models in tests/clients/scripts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from openai_python import (
    CHAT_LOOPS,
    CHAT_TOOLS,
    LOOPS,
    QUESTION,
    RESPONSES_TOOLS,
    SCHEMAS,
    Step,
    response_accumulated,
    run_tool,
)

every_loop = pytest.mark.parametrize("way", LOOPS)
every_model = pytest.mark.parametrize("tools", ["native", "emulated"])


@pytest.fixture(scope="session")
def client(gateway: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway, api_key="unused", max_retries=0, timeout=20) as connected:
        yield connected


# --- successes ---


def calls_of(steps: list[Step]) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for step in steps for call in step.calls]


@every_loop
@every_model
def test_a_tool_loop_ends_in_an_answer_with_the_tools_result(
    client: openai.OpenAI, way: str, tools: str
) -> None:
    steps = LOOPS[way](client, f"weather-{tools}")
    assert calls_of(steps) == [("get_weather", {"city": "Paris"})]
    assert [step.text for step in steps] == ["", "The tool said: rain in Paris."]
    assert [step.finish for step in steps] == (
        ["tool_calls", "stop"] if way in CHAT_LOOPS else ["completed", "completed"]
    )
    assert [step.usage for step in steps] == [(11, 7), (23, 9)]


@every_loop
@every_model
def test_two_calls_of_one_answer_stay_two_calls_and_find_their_results(
    client: openai.OpenAI, way: str, tools: str
) -> None:
    steps = LOOPS[way](client, f"parallel-{tools}")
    assert calls_of(steps[:1]) == [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Oslo"})]
    assert len({call.id for call in steps[0].calls}) == 2
    assert steps[1].text == "The last tool said: rain in Oslo."


@every_loop
@every_model
def test_a_call_without_arguments_has_an_empty_object_for_them(
    client: openai.OpenAI, way: str, tools: str
) -> None:
    steps = LOOPS[way](client, f"nothing-{tools}")
    assert [(call.name, call.arguments) for call in steps[0].calls] == [("list_notes", "{}")]
    assert steps[1].text == "The tool said: one note, Ideas.md, for 0 arguments."


@every_loop
@every_model
@pytest.mark.parametrize(("scenario", "text"), [("spoken", "Let me look outside."), ("thoughtful", "")])
def test_text_or_thoughts_before_a_call_leave_the_call_whole(
    client: openai.OpenAI, way: str, tools: str, scenario: str, text: str
) -> None:
    steps = LOOPS[way](client, f"{scenario}-{tools}")
    assert (steps[0].text, calls_of(steps)) == (text, [("get_weather", {"city": "Paris"})])
    assert steps[1].text == "The tool said: rain in Paris."


@every_loop
@every_model
def test_a_loop_may_take_several_rounds(client: openai.OpenAI, way: str, tools: str) -> None:
    steps = LOOPS[way](client, f"twice-{tools}")
    assert [[call.name for call in step.calls] for step in steps] == [["get_weather"], ["list_notes"], []]
    assert steps[2].text == "The last tool said: one note, Ideas.md, for 0 arguments."


@every_loop
@every_model
def test_arguments_arrive_as_the_model_wrote_them(client: openai.OpenAI, way: str, tools: str) -> None:
    steps = LOOPS[way](client, f"unicode-{tools}")
    (call,) = steps[0].calls
    assert (
        call.arguments
        == r'{"city": "S\u00e3o \"Paulo\"\n\\ ☃ 🌧 </tool_call>", "days": [1, 2.50, {"a": null}]}'
    )
    assert steps[1].text.startswith('Said: rain in São "Paulo"\n\\ ☃ 🌧 ')


ACCUMULATORS = {
    "chat-stream": openai.LengthFinishReasonError,
    "responses-stream": RuntimeError,
    "responses-stream-chained": RuntimeError,
}


@pytest.mark.parametrize("way", [way for way in LOOPS if way not in ACCUMULATORS])
@every_model
def test_an_answer_that_reached_the_token_limit_reports_it(
    client: openai.OpenAI, way: str, tools: str
) -> None:
    (only,) = LOOPS[way](client, f"short-{tools}")
    assert (only.text, only.finish) == (
        "This sentence has no",
        "length" if way in CHAT_LOOPS else "incomplete",
    )


@pytest.mark.parametrize("way", ACCUMULATORS)
@every_model
def test_the_accumulators_refuse_an_answer_that_ran_out_of_room(
    client: openai.OpenAI, way: str, tools: str
) -> None:
    with pytest.raises(ACCUMULATORS[way]):
        LOOPS[way](client, f"short-{tools}")


@every_model
def test_usage_is_sent_only_on_request(client: openai.OpenAI, tools: str) -> None:
    request: dict[str, Any] = {
        "model": f"weather-{tools}",
        "messages": [QUESTION],
        "tools": CHAT_TOOLS,
        "stream": True,
    }
    assert all(chunk.usage is None and chunk.choices for chunk in client.chat.completions.create(**request))
    *_, last = client.chat.completions.create(**request, stream_options={"include_usage": True})
    assert last.choices == [] and last.usage is not None and last.usage.total_tokens == 18


@every_model
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_of_legacy_functions_gets_a_function_call_and_answers_it_by_name(
    client: openai.OpenAI, tools: str, stream: bool
) -> None:
    functions: Any = [{"name": name, "parameters": schema} for name, schema in SCHEMAS.items()]
    request: dict[str, Any] = {"model": f"weather-{tools}", "functions": functions}

    def ask(messages: list[Any]) -> tuple[str, dict[str, str] | None, str]:
        if not stream:
            (choice,) = client.chat.completions.create(messages=messages, **request).choices
            assert not choice.message.tool_calls
            called = choice.message.function_call
            return choice.message.content or "", called and called.model_dump(), choice.finish_reason
        text, call, reasons = "", {"name": "", "arguments": ""}, []
        for chunk in client.chat.completions.create(messages=messages, stream=True, **request):
            (piece,) = chunk.choices
            assert not piece.delta.tool_calls
            text += piece.delta.content or ""
            reasons += [piece.finish_reason] if piece.finish_reason else []
            if piece.delta.function_call is not None:
                call["name"] += piece.delta.function_call.name or ""
                call["arguments"] += piece.delta.function_call.arguments or ""
        (reason,) = reasons
        return text, call if call["name"] else None, reason

    text, call, reason = ask([QUESTION])
    assert call is not None
    assert (text, call["name"], json.loads(call["arguments"]), reason) == (
        "",
        "get_weather",
        {"city": "Paris"},
        "function_call",
    )
    result = {"role": "function", "name": call["name"], "content": run_tool(**call)}
    answer = ask([QUESTION, {"role": "assistant", "content": None, "function_call": call}, result])
    assert answer == ("The tool said: rain in Paris.", None, "stop")


@every_model
async def test_the_asynchronous_client_runs_a_loop_on_both_apis(gateway: str, tools: str) -> None:
    async with openai.AsyncOpenAI(base_url=gateway, api_key="unused", max_retries=0, timeout=20) as client:
        model, messages = f"weather-{tools}", [QUESTION]
        for expected in ("", "The tool said: rain in Paris."):
            async with client.chat.completions.stream(
                model=model,
                messages=messages,  # type: ignore[arg-type]
                tools=CHAT_TOOLS,
            ) as stream:
                step = (await stream.get_final_completion()).choices[0].message
            assert (step.content or "") == expected
            calls: list[Any] = step.tool_calls or []
            results = [
                {
                    "role": "tool",
                    "tool_call_id": c.id,
                    "content": run_tool(c.function.name, c.function.arguments),
                }
                for c in calls
            ]
            messages = [*messages, step.model_dump(exclude_none=True), *results]
        assert messages[-1]["content"] == "The tool said: rain in Paris."

        async with client.responses.stream(
            model=model, input="What is the weather?", tools=RESPONSES_TOOLS
        ) as events:
            first = await events.get_final_response()
        (call,) = [item for item in first.output if item.type == "function_call"]
        output: Any = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": run_tool(call.name, call.arguments),
            }
        ]
        last = await client.responses.create(
            model=model, input=output, previous_response_id=first.id, tools=RESPONSES_TOOLS
        )
        assert last.output_text == "The tool said: rain in Paris."
        assert (await client.responses.retrieve(last.id)).output_text == last.output_text


# --- failures ---

BROKEN = {
    "breaks": "The engine lost power.",
    "breaks_after_call": "The engine lost power.",
    "cut": "The model's answer broke off before it was complete.",
}


@every_model
@pytest.mark.parametrize("scenario", BROKEN)
@pytest.mark.parametrize("way", ["chat-create", "chat-create-streamed", "chat-stream", "responses-create"])
def test_an_answer_that_breaks_off_raises_with_its_message(
    client: openai.OpenAI, way: str, scenario: str, tools: str
) -> None:
    with pytest.raises(openai.APIError) as caught:
        LOOPS[way](client, f"{scenario}-{tools}")
    assert BROKEN[scenario] in caught.value.message
    if way.endswith("create"):
        assert isinstance(caught.value, openai.APIStatusError) and caught.value.status_code == 502


@every_model
@pytest.mark.parametrize("scenario", BROKEN)
def test_a_streamed_response_that_breaks_off_ends_in_a_failure_with_its_message(
    client: openai.OpenAI, scenario: str, tools: str
) -> None:
    seen: list[Any] = []
    try:
        for event in client.responses.create(
            model=f"{scenario}-{tools}",
            input=[QUESTION],  # type: ignore[list-item]
            tools=RESPONSES_TOOLS,
            stream=True,
        ):
            seen.append(event)
        assert seen[-1].type == "response.failed" and seen[-1].response.status == "failed"
        message = seen[-1].response.error.message
    except openai.APIError as error:
        message = error.message
    assert message == BROKEN[scenario]
    assert not any(event.type == "response.completed" for event in seen)
    with pytest.raises((openai.APIError, RuntimeError)):
        response_accumulated(client, f"{scenario}-{tools}", input=[QUESTION])


@every_loop
@every_model
def test_an_error_before_the_first_word_has_its_status_and_message(
    client: openai.OpenAI, way: str, tools: str
) -> None:
    with pytest.raises(openai.RateLimitError) as limited:
        LOOPS[way](client, f"refuses-{tools}")
    assert limited.value.status_code == 429 and "Too many questions today." in limited.value.message
    with pytest.raises(openai.NotFoundError) as absent:
        LOOPS[way](client, f"missing-{tools}")
    assert absent.value.code == "model_not_found" and f"missing-{tools}" in absent.value.message


def test_a_result_without_a_call_is_refused_with_the_name_of_the_field(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        result = {"role": "tool", "tool_call_id": "call_of_nobody", "content": "rain"}
        messages = [QUESTION, result]
        client.chat.completions.create(model="weather-native", messages=messages)  # type: ignore[arg-type]
    assert refused.value.param == "messages[1].tool_call_id"
    with pytest.raises(openai.BadRequestError) as unknown:
        client.responses.create(
            model="weather-native", input="And now?", previous_response_id="resp_of_nobody"
        )
    assert unknown.value.code == "previous_response_not_found"

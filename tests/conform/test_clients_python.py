"""The openai package for Python through whole tool loops against the running gateway: every way it has to ask, on both APIs.

Every assertion is about what the package's own objects and exceptions say. `tests/clients/scripts` holds what the models do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

CLIENTS = Path(__file__).parents[1] / "clients"
QUESTION: dict[str, Any] = {"role": "user", "content": "What is the weather?"}

SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array"}}, "required": ["city"]},
    "list_notes": {"type": "object", "properties": {}},
}
CHAT_TOOLS: Any = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
RESPONSES_TOOLS: Any = [{"type": "function", "name": name, "parameters": schema, "strict": False} for name, schema in SCHEMAS.items()]


def run_tool(name: str, arguments: str) -> str:
    given = json.loads(arguments)
    return f"rain in {given['city']}" if name == "get_weather" else f"one note, Ideas.md, for {len(given)} arguments"


@dataclass(frozen=True)
class Called:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Step:
    """One answer of the model. `items` are what the client sends back with its next request, before the results."""

    text: str
    calls: list[Called]
    finish: str
    usage: tuple[int, int]
    items: list[Any]
    response_id: str = ""


# --- the ways to ask -----------------------------------------------------------------------------------------------------------------------------


def chat_created(client: openai.OpenAI, model: str, messages: list[Any]) -> Step:
    return _chat_step(client.chat.completions.create(model=model, messages=messages, tools=CHAT_TOOLS))


def chat_iterated(client: openai.OpenAI, model: str, messages: list[Any]) -> Step:
    """Chunks put together by hand, as many clients do: text and arguments appended, calls by index, id and name from where they stand."""
    stream = client.chat.completions.create(model=model, messages=messages, tools=CHAT_TOOLS, stream=True, stream_options={"include_usage": True})
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
    wire = [{"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in found]
    message = {"role": "assistant", "content": text or None, **({"tool_calls": wire} if wire else {})}
    return Step(text, found, reason, usage, [message])


def chat_accumulated(client: openai.OpenAI, model: str, messages: list[Any]) -> Step:
    """The package's accumulator; what its events told piece by piece is what stands in the end."""
    heard: dict[int, str] = {}
    options: Any = {"include_usage": True}
    with client.chat.completions.stream(model=model, messages=messages, tools=CHAT_TOOLS, stream_options=options) as stream:
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
    calls = [Called(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    usage = (completion.usage.prompt_tokens, completion.usage.completion_tokens)
    return Step(choice.message.content or "", calls, choice.finish_reason, usage, [choice.message.model_dump(exclude_none=True)])


def response_created(client: openai.OpenAI, model: str, **request: Any) -> Step:
    return _response_step(client.responses.create(model=model, tools=RESPONSES_TOOLS, **request))


def response_iterated(client: openai.OpenAI, model: str, **request: Any) -> Step:
    """The events as they come; the last one holds the response."""
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
    calls = [Called(item.call_id, item.name, item.arguments) for item in response.output if item.type == "function_call"]
    usage = (response.usage.input_tokens, response.usage.output_tokens)
    items = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
    return Step(response.output_text, calls, response.status, usage, items, response.id)


# --- the loops -----------------------------------------------------------------------------------------------------------------------------------

Loop = Callable[[openai.OpenAI, str], list[Step]]


def chat_loop(ask: Callable[..., Step], rewrite: Callable[[list[Any]], list[Any]] = lambda messages: messages) -> Loop:
    def loop(client: openai.OpenAI, model: str) -> list[Step]:
        messages, steps = [QUESTION], [ask(client, model, [QUESTION])]
        while steps[-1].calls:
            results = [{"role": "tool", "tool_call_id": call.id, "content": run_tool(call.name, call.arguments)} for call in steps[-1].calls]
            messages += rewrite([*steps[-1].items, *results])
            steps.append(ask(client, model, messages))
        return steps

    return loop


def respaced(messages: list[Any]) -> list[Any]:
    """A history in a client's own hand: empty text, arguments spaced anew, names on the results, and those the other way round."""
    first, *results = messages
    for call in first["tool_calls"]:
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=4, sort_keys=True)
    names = {call["id"]: call["function"]["name"] for call in first["tool_calls"]}
    return [{**first, "content": ""}, *({**result, "name": names[result["tool_call_id"]]} for result in reversed(results))]


def response_loop(ask: Callable[..., Step], *, chained: bool = False) -> Loop:
    def loop(client: openai.OpenAI, model: str) -> list[Step]:
        history, steps = [QUESTION], [ask(client, model, input=[QUESTION])]
        while steps[-1].calls:
            last = steps[-1]
            results = [{"type": "function_call_output", "call_id": call.id, "output": run_tool(call.name, call.arguments)} for call in last.calls]
            history += [*last.items, *results]
            more = {"input": results, "previous_response_id": last.response_id} if chained else {"input": history}
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

every_loop = pytest.mark.parametrize("way", LOOPS)
every_model = pytest.mark.parametrize("tools", ["native", "emulated"])


@pytest.fixture(scope="session")
def client(gateway: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway, api_key="unused", max_retries=0, timeout=20) as connected:
        yield connected


# --- what works ----------------------------------------------------------------------------------------------------------------------------------


def told(steps: list[Step]) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for step in steps for call in step.calls]


@every_loop
@every_model
def test_a_tool_loop_ends_in_an_answer_that_tells_the_tools_result(client: openai.OpenAI, way: str, tools: str) -> None:
    steps = LOOPS[way](client, f"weather-{tools}")
    assert told(steps) == [("get_weather", {"city": "Paris"})]
    assert [step.text for step in steps] == ["", "The tool said: rain in Paris."]
    assert [step.finish for step in steps] == (["tool_calls", "stop"] if way in CHAT_LOOPS else ["completed", "completed"])
    assert [step.usage for step in steps] == [(11, 7), (23, 9)]


@every_loop
@every_model
def test_two_calls_of_one_answer_stay_two_calls_and_find_their_results(client: openai.OpenAI, way: str, tools: str) -> None:
    steps = LOOPS[way](client, f"parallel-{tools}")
    assert told(steps[:1]) == [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Oslo"})]
    assert len({call.id for call in steps[0].calls}) == 2
    assert steps[1].text == "The last tool said: rain in Oslo."


@every_loop
@every_model
def test_a_call_without_arguments_has_an_empty_object_for_them(client: openai.OpenAI, way: str, tools: str) -> None:
    steps = LOOPS[way](client, f"nothing-{tools}")
    assert [(call.name, call.arguments) for call in steps[0].calls] == [("list_notes", "{}")]
    assert steps[1].text == "The tool said: one note, Ideas.md, for 0 arguments."


@every_loop
@every_model
@pytest.mark.parametrize(("scenario", "text"), [("spoken", "Let me look outside."), ("thoughtful", "")])
def test_text_or_thoughts_before_a_call_leave_the_call_whole(client: openai.OpenAI, way: str, tools: str, scenario: str, text: str) -> None:
    steps = LOOPS[way](client, f"{scenario}-{tools}")
    assert (steps[0].text, told(steps)) == (text, [("get_weather", {"city": "Paris"})])
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
    assert call.arguments == r'{"city": "S\u00e3o \"Paulo\"\n\\ ☃ 🌧 </tool_call>", "days": [1, 2.50, {"a": null}]}'
    assert steps[1].text.startswith('Said: rain in São "Paulo"\n\\ ☃ 🌧 ')


ACCUMULATORS = {"chat-stream": openai.LengthFinishReasonError, "responses-stream": RuntimeError, "responses-stream-chained": RuntimeError}


@pytest.mark.parametrize("way", [way for way in LOOPS if way not in ACCUMULATORS])
@every_model
def test_an_answer_that_ran_out_of_room_says_so(client: openai.OpenAI, way: str, tools: str) -> None:
    (only,) = LOOPS[way](client, f"short-{tools}")
    assert (only.text, only.finish) == ("This sentence has no", "length" if way in CHAT_LOOPS else "incomplete")


@pytest.mark.parametrize("way", ACCUMULATORS)
@every_model
def test_the_accumulators_refuse_an_answer_that_ran_out_of_room(client: openai.OpenAI, way: str, tools: str) -> None:
    with pytest.raises(ACCUMULATORS[way]):
        LOOPS[way](client, f"short-{tools}")


@every_model
def test_usage_comes_only_to_those_who_ask_for_it(client: openai.OpenAI, tools: str) -> None:
    request: dict[str, Any] = {"model": f"weather-{tools}", "messages": [QUESTION], "tools": CHAT_TOOLS, "stream": True}
    assert all(chunk.usage is None and chunk.choices for chunk in client.chat.completions.create(**request))
    *_, last = client.chat.completions.create(**request, stream_options={"include_usage": True})
    assert last.choices == [] and last.usage is not None and last.usage.total_tokens == 18


@every_model
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_of_legacy_functions_gets_a_function_call_and_answers_it_by_name(client: openai.OpenAI, tools: str, stream: bool) -> None:
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
    assert (text, call["name"], json.loads(call["arguments"]), reason) == ("", "get_weather", {"city": "Paris"}, "function_call")
    result = {"role": "function", "name": call["name"], "content": run_tool(**call)}
    answer = ask([QUESTION, {"role": "assistant", "content": None, "function_call": call}, result])
    assert answer == ("The tool said: rain in Paris.", None, "stop")


@every_model
async def test_the_asynchronous_client_goes_through_a_loop_on_both_apis(gateway: str, tools: str) -> None:
    async with openai.AsyncOpenAI(base_url=gateway, api_key="unused", max_retries=0, timeout=20) as client:
        model, messages = f"weather-{tools}", [QUESTION]
        for expected in ("", "The tool said: rain in Paris."):
            async with client.chat.completions.stream(model=model, messages=messages, tools=CHAT_TOOLS) as stream:  # type: ignore[arg-type]
                step = (await stream.get_final_completion()).choices[0].message
            assert (step.content or "") == expected
            calls: list[Any] = step.tool_calls or []
            results = [{"role": "tool", "tool_call_id": c.id, "content": run_tool(c.function.name, c.function.arguments)} for c in calls]
            messages = [*messages, step.model_dump(exclude_none=True), *results]
        assert messages[-1]["content"] == "The tool said: rain in Paris."

        async with client.responses.stream(model=model, input="What is the weather?", tools=RESPONSES_TOOLS) as events:
            first = await events.get_final_response()
        (call,) = [item for item in first.output if item.type == "function_call"]
        output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": run_tool(call.name, call.arguments)}]
        last = await client.responses.create(model=model, input=output, previous_response_id=first.id, tools=RESPONSES_TOOLS)
        assert last.output_text == "The tool said: rain in Paris."
        assert (await client.responses.retrieve(last.id)).output_text == last.output_text


# --- what fails ----------------------------------------------------------------------------------------------------------------------------------

BROKEN = {
    "breaks": "The engine lost power.",
    "breaks_after_call": "The engine lost power.",
    "cut": "The model's answer broke off before it was complete.",
}


@every_model
@pytest.mark.parametrize("scenario", BROKEN)
@pytest.mark.parametrize("way", ["chat-create", "chat-create-streamed", "chat-stream", "responses-create"])
def test_an_answer_that_breaks_off_raises_with_its_message(client: openai.OpenAI, way: str, scenario: str, tools: str) -> None:
    with pytest.raises(openai.APIError) as caught:
        LOOPS[way](client, f"{scenario}-{tools}")
    assert BROKEN[scenario] in caught.value.message
    if way.endswith("create"):
        assert isinstance(caught.value, openai.APIStatusError) and caught.value.status_code == 502


@every_model
@pytest.mark.parametrize("scenario", BROKEN)
def test_a_streamed_response_that_breaks_off_ends_in_a_failure_with_its_message(client: openai.OpenAI, scenario: str, tools: str) -> None:
    seen: list[Any] = []
    try:
        for event in client.responses.create(model=f"{scenario}-{tools}", input=[QUESTION], tools=RESPONSES_TOOLS, stream=True):  # type: ignore[list-item]
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
def test_an_error_before_the_first_word_has_its_status_and_message(client: openai.OpenAI, way: str, tools: str) -> None:
    with pytest.raises(openai.RateLimitError) as limited:
        LOOPS[way](client, f"refuses-{tools}")
    assert limited.value.status_code == 429 and "Too many questions today." in limited.value.message
    with pytest.raises(openai.NotFoundError) as absent:
        LOOPS[way](client, f"missing-{tools}")
    assert absent.value.code == "model_not_found" and f"missing-{tools}" in absent.value.message


def test_a_result_for_a_call_that_nobody_made_is_refused_by_name_of_the_field(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="weather-native",
            messages=[QUESTION, {"role": "tool", "tool_call_id": "call_of_nobody", "content": "rain"}],  # type: ignore[list-item]
        )
    assert refused.value.param == "messages[1].tool_call_id"
    with pytest.raises(openai.BadRequestError) as unknown:
        client.responses.create(model="weather-native", input="And now?", previous_response_id="resp_of_nobody")
    assert unknown.value.code == "previous_response_not_found"

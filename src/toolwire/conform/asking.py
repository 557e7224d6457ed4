"""How an endpoint is asked: requests as data, for both APIs.

A question is a request, or a function that makes it from the answers to earlier questions. Where a model must
be made to do something, the question says it in plain words, lists the ways to ask for it (`ways`: fields laid
over the request, tried in order) and knows whether it was done (`done`). The words spell calls out (`Call the
tool NAME with the arguments {…}`), which any model understands and a scripted one can read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolwire.conform.exchange import Family, ProbeExchange, ProbeRequest
from toolwire.core.turn import Api

Earlier = Mapping[str, ProbeExchange]
Build = Callable[[str, Earlier], ProbeRequest | None]
"""From the model's name and the exchanges named in `after`; None: an earlier answer lacks what is needed."""

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "get_weather", "description": "Looks up the weather code of a city.", "parameters": CITY}
TIME = {"name": "get_time", "description": "Looks up the clock code of a city.", "parameters": CITY}
TOOL_NAMES = (WEATHER["name"], TIME["name"])
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "inhabitants": {"type": "integer"}},
    "required": ["city", "inhabitants"],
    "additionalProperties": False,
}
ARGUMENTS = {"city": "Paris"}
SECRET = "ZEPHYR-4711"
LOST_ID = "resp_0123456789abcdef0123456789abcdef0123456789abcdef"
ORIGIN = "app://obsidian.md"
ASKED_HEADERS = (
    "authorization",
    "content-type",
    "x-stainless-os",
    "x-stainless-retry-count",
    "x-a-header-of-tomorrow",
)

GREET = "Reply with one short sentence that greets me."
CALL_WEATHER = 'Call the tool get_weather with the arguments {"city": "Paris"}.'
CALL_TIME = 'Call the tool get_time with the arguments {"city": "Tokyo"}.'
ONE_CALL = f"{CALL_WEATHER} Call it once, and write nothing."
TWO_CALLS = (
    f"{CALL_WEATHER} {CALL_TIME} Make both calls at once, in this one turn, before any result is there."
)
SAY_AND_CALL = f'First write the sentence "Let me look that up." Then, in the same turn: {CALL_WEATHER}'
THEN_TELL = f"{CALL_WEATHER} When its result is there, repeat the code that it holds."
DESCRIBE = "Describe Paris as a JSON object: its name as city, and how many inhabitants it has as inhabitants, a whole number."


@dataclass(frozen=True, slots=True)
class Question:
    """`wants` says what the model should do, for the sentence that it would not."""

    name: str
    family: Family
    build: Build
    after: tuple[str, ...] = ()
    ways: tuple[Mapping[str, Any], ...] = ({},)
    done: Callable[[ProbeExchange], bool] | None = None
    wants: str = ""
    tools: bool = field(default=False)
    """It declares get_weather and get_time, so that no other name may be called."""


# --- the two APIs, told alike ---

PATHS = {"chat": "/chat/completions", "responses": "/responses"}


def tools(api: Api, **more: Any) -> list[dict[str, Any]]:
    both = ({**WEATHER, **more}, {**TIME, **more})
    return (
        [{"type": "function", "function": tool} for tool in both]
        if api == "chat"
        else [{"type": "function", **tool} for tool in both]
    )


def named(api: Api, name: str) -> dict[str, Any]:
    return (
        {"type": "function", "function": {"name": name}}
        if api == "chat"
        else {"type": "function", "name": name}
    )


def allowed(api: Api, name: str) -> dict[str, Any]:
    inner = {"mode": "required", "tools": [named(api, name)]}
    return (
        {"type": "allowed_tools", "allowed_tools": inner}
        if api == "chat"
        else {"type": "allowed_tools", **inner}
    )


def structured(api: Api) -> dict[str, Any]:
    if api == "chat":
        return {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "city", "schema": SCHEMA, "strict": True},
            }
        }
    return {"text": {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}}}


def ask(api: Api, model: str, words: str, *, with_tools: bool = False, **more: Any) -> ProbeRequest:
    """A request of one user message. Nothing of it is kept by the endpoint unless a question is about that."""
    body: dict[str, Any] = {"model": model}
    body |= (
        {"messages": [{"role": "user", "content": words}]}
        if api == "chat"
        else {"input": [{"role": "user", "content": words}], "store": False}
    )
    if with_tools:
        body["tools"] = tools(api)
    return ProbeRequest(PATHS[api], {**body, **more})


def asking(api: Api, words: str, *, with_tools: bool = False, **more: Any) -> Build:
    return lambda model, earlier: ask(api, model, words, with_tools=with_tools, **more)


def called(exchange: ProbeExchange) -> bool:
    return bool(exchange.answer.calls)


def called_twice(exchange: ProbeExchange) -> bool:
    return len(exchange.answer.calls) > 1


def said_and_called(exchange: ProbeExchange) -> bool:
    return bool(exchange.answer.calls) and bool(exchange.answer.text.strip())


# --- the second step ---


def result_text(city: str = "Paris") -> str:
    return f"The weather code of {city} is {SECRET}."


def _told(api: Api, first: ProbeExchange, *, as_clients_do: bool = False, **more: Any) -> ProbeRequest | None:
    """The conversation so far with the results of the calls: as the documentation shows it, or in the other shapes that clients send."""
    calls = first.answer.calls
    if not calls:
        return None
    body = dict(first.request.asked) | {"tool_choice": None, "stream": None} | more
    if api == "chat":
        made = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
        assistant = {"role": "assistant", "content": "" if as_clients_do else None, "tool_calls": made}
        results = [_chat_result(call.id, call.name, as_clients_do) for call in calls]
        body["messages"] = [*body["messages"], assistant, *results]
    else:
        again = [_item_again(item, as_clients_do) for item in first.body.get("output", [])]
        outputs = [
            {"type": "function_call_output", "call_id": call.id, "output": _output(as_clients_do)}
            for call in calls
        ]
        body["input"] = [*body["input"], *again, *outputs]
    return ProbeRequest(PATHS[api], {key: value for key, value in body.items() if value is not None})


def _chat_result(call_id: str, name: str, as_clients_do: bool) -> dict[str, Any]:
    if not as_clients_do:
        return {"role": "tool", "tool_call_id": call_id, "content": result_text()}
    return {
        "role": "tool",
        "tool_call_id": call_id,
        "name": name,
        "content": [{"type": "text", "text": result_text()}],
    }


def _output(as_clients_do: bool) -> Any:
    return [{"type": "input_text", "text": result_text()}] if as_clients_do else result_text()


def _item_again(item: Any, as_clients_do: bool) -> Any:
    """Some clients send an item back as it was, others only what the call was."""
    if not as_clients_do or not isinstance(item, dict) or item.get("type") != "function_call":
        return item
    return {key: item.get(key) for key in ("type", "call_id", "name", "arguments")}


def telling(api: Api, first: str, **more: Any) -> Build:
    return lambda model, earlier: _told(api, earlier[first], **more)


def tells(exchange: ProbeExchange) -> bool:
    return SECRET in exchange.answer.text


def _called_legacy(model: str, earlier: Earlier) -> ProbeRequest | None:
    first = earlier["chat.legacy.body"]
    if not first.answer.calls:
        return None
    call = first.answer.calls[0]
    assistant = {
        "role": "assistant",
        "content": None,
        "function_call": {"name": call.name, "arguments": call.arguments},
    }
    result = {"role": "function", "name": call.name, "content": result_text()}
    body = {key: value for key, value in first.request.asked.items() if key != "function_call"}
    return ProbeRequest(PATHS["chat"], {**body, "messages": [*body["messages"], assistant, result]})


# --- what is kept ---


def _id_of(earlier: Earlier, name: str) -> str | None:
    return earlier[name].answer.id or None if earlier[name].ok else None


def kept(name: str, method: str = "GET", tail: str = "") -> Build:
    def build(model: str, earlier: Earlier) -> ProbeRequest | None:
        id = _id_of(earlier, name)
        return None if id is None else ProbeRequest(f"{PATHS['responses']}/{id}{tail}", method=method)

    return build


def _continued(model: str, earlier: Earlier) -> ProbeRequest | None:
    first = earlier["responses.kept.call"]
    id = _id_of(earlier, "responses.kept.call")
    if id is None or not first.answer.calls:
        return None
    outputs = [
        {"type": "function_call_output", "call_id": call.id, "output": result_text()}
        for call in first.answer.calls
    ]
    return ProbeRequest(
        PATHS["responses"],
        {
            "model": model,
            "previous_response_id": id,
            "input": outputs,
            "tools": tools("responses"),
            "store": True,
        },
    )

"""The texts of the questions, and functions that build requests of each API.

The texts write each call in full, as in `Call the tool NAME with the arguments {…}`. Every model understands
this, and a scripted model can parse it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toolwire.conform.exchange import ProbeExchange, ProbeRequest, mappings
from toolwire.core.turn import Api

Earlier = Mapping[str, ProbeExchange]
Build = Callable[[str, Earlier], ProbeRequest | None]
"""A function that builds a request from the model's name and the exchanges of `Question.after`.

It returns None if an earlier answer lacks something that the request needs.
"""


def _object(**properties: str) -> dict[str, Any]:
    kinds = {name: {"type": kind} for name, kind in properties.items()}
    return {"type": "object", "properties": kinds, "required": list(kinds), "additionalProperties": False}


CITY = _object(city="string")
WEATHER = {"name": "get_weather", "description": "Looks up the weather code of a city.", "parameters": CITY}
TIME = {"name": "get_time", "description": "Looks up the clock code of a city.", "parameters": CITY}
SCHEMA = _object(city="string", inhabitants="integer")
SECRET = "ZEPHYR-4711"
RESULT = f"The weather code of Paris is {SECRET}."
LOST_ID = "resp_0123456789abcdef0123456789abcdef0123456789abcdef"
NO_MODEL = "no-such-model-of-toolwire-conform"
ORIGIN = "app://obsidian.md"
_COMMON_HEADERS = ("authorization", "content-type", "x-stainless-os", "x-stainless-retry-count")
ASKED_HEADERS = (*_COMMON_HEADERS, "x-a-header-of-tomorrow")
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": ", ".join(ASKED_HEADERS),
}

GREET = "Reply with one short sentence that greets me."
CALL_WEATHER = 'Call the tool get_weather with the arguments {"city": "Paris"}.'
CALL_TIME = 'Call the tool get_time with the arguments {"city": "Tokyo"}.'
ONE_CALL = f"{CALL_WEATHER} Call it once, and write nothing."
TWO_CALLS = (
    f"{CALL_WEATHER} {CALL_TIME} Make both calls at once, in this one turn, before any result is there."
)
SAY_AND_CALL = f'First write the sentence "Let me look that up." Then, in the same turn: {CALL_WEATHER}'
THEN_REPEAT = f"{CALL_WEATHER} When its result is there, repeat the code that it holds."
THINK = 'Think the sentence "Clouds are light." to yourself before you answer, but do not write it.'
DESCRIBE = (
    "Describe Paris as a JSON object: its name as city, "
    "and how many inhabitants it has as inhabitants, a whole number."
)

# --- requests of each API ---

PATHS: Mapping[Api, str] = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}
ANTHROPIC = {"anthropic-version": "2023-06-01"}
"""The header that all clients of Messages send."""
MAX_TOKENS = 1024
"""`max_tokens`, which Messages requires."""


def request(api: Api, body: Any = None, tail: str = "", **fields: Any) -> ProbeRequest:
    """Returns a request of the API, with the API key in the header that the API's clients use."""
    if api == "messages":
        fields = {"headers": ANTHROPIC, "x_api_key": True, **fields}
    return ProbeRequest(f"{PATHS[api]}{tail}", body, **fields)


def tools(api: Api, **more: Any) -> list[dict[str, Any]]:
    if api == "messages":
        return [{**_messages_tool(tool), **more} for tool in (WEATHER, TIME)]
    return [_of_kind(api, "function", {**tool, **more}) for tool in (WEATHER, TIME)]


def _messages_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}


def choice(api: Api, mode: str) -> Any:
    """Returns the tool choice `auto`, `none` or `required` in the format of the API."""
    return mode if api != "messages" else {"type": "any" if mode == "required" else mode}


def one_at_a_time(api: Api) -> dict[str, Any]:
    """Returns the fields that require a call and allow only one."""
    if api == "messages":
        return {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    return {"tool_choice": "required", "parallel_tool_calls": False}


def named(api: Api, name: str) -> dict[str, Any]:
    return {"type": "tool", "name": name} if api == "messages" else _of_kind(api, "function", {"name": name})


def allowed(api: Api, name: str) -> dict[str, Any]:
    return _of_kind(api, "allowed_tools", {"mode": "required", "tools": [named(api, name)]})


def _of_kind(api: Api, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a tool or a tool choice. In chat, the fields are in a nested object."""
    return {"type": kind, kind: dict(fields)} if api == "chat" else {"type": kind, **fields}


def structured(api: Api) -> dict[str, Any]:
    if api == "messages":
        return {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    form = _of_kind(api, "json_schema", {"name": "city", "schema": SCHEMA, "strict": True})
    return {"response_format": form} if api == "chat" else {"text": {"format": form}}


def ask(api: Api, model: str, words: str, **more: Any) -> ProbeRequest:
    """Returns a request with one user message. In Responses, `store` is false unless `more` sets it."""
    messages = [{"role": "user", "content": words}]
    own: dict[str, Any] = {"messages": messages}
    if api == "responses":
        own = {"input": messages, "store": False}
    elif api == "messages":
        own["max_tokens"] = MAX_TOKENS
    return request(api, {"model": model, **own, **more})


def asking(api: Api, words: str, **more: Any) -> Build:
    return lambda model, earlier: ask(api, model, words, **more)


def sending(api: Api, body: Mapping[str, Any], tail: str = "", **fields: Any) -> Build:
    """Returns a function that builds a request from the fields in `body` and the model's name.

    `tail`: the rest of the path after the path of the API. `fields`: fields of `ProbeRequest`.
    """
    return lambda model, earlier: request(api, {"model": model, **body}, tail, **fields)


def called(exchange: ProbeExchange) -> bool:
    return bool(exchange.answer.calls)


def called_twice(exchange: ProbeExchange) -> bool:
    return len(exchange.answer.calls) > 1


def said_and_called(exchange: ProbeExchange) -> bool:
    return called(exchange) and bool(exchange.answer.text.strip())


def thought(exchange: ProbeExchange) -> bool:
    blocks = mappings(exchange.body.get("content"))
    return any(block.get("type") == "thinking" and block.get("thinking") for block in blocks)


def thought_and_called(exchange: ProbeExchange) -> bool:
    return thought(exchange) and called(exchange)


def repeats_result(exchange: ProbeExchange) -> bool:
    return SECRET in exchange.answer.text


# --- requests with tool results ---

CACHED = {"type": "ephemeral"}
REMINDER = "<system-reminder>The task list is empty.</system-reminder>"


def with_results(
    api: Api, first: str, *, as_clients_do: bool = False, needs: Callable[[ProbeExchange], bool] = called
) -> Build:
    """Returns a function that builds the request with the results of the calls in the answer to `first`.

    `as_clients_do`: send calls and results in other valid forms, which some clients use. `needs`: a test of
    that answer; if it is false, no request is built.
    """
    extend = _WITH_RESULTS[api]

    def build(model: str, earlier: Earlier) -> ProbeRequest | None:
        exchange = earlier[first]
        changes = extend(exchange, as_clients_do)
        return exchange.request.but(tool_choice=None, **changes) if needs(exchange) else None

    return build


def _chat_with_results(first: ProbeExchange, as_clients_do: bool) -> dict[str, Any]:
    calls = first.answer.calls
    made = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]
    assistant = {"role": "assistant", "content": "" if as_clients_do else None, "tool_calls": made}
    results: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": call.id, "content": RESULT} for call in calls
    ]
    if as_clients_do:
        for call, result in zip(calls, results, strict=True):
            result.update(name=call.name, content=[{"type": "text", "text": RESULT}])
    return {"messages": [*first.request.asked["messages"], assistant, *results]}


def _responses_with_results(first: ProbeExchange, as_clients_do: bool) -> dict[str, Any]:
    items = first.body.get("output", [])
    result: Any = [{"type": "input_text", "text": RESULT}] if as_clients_do else RESULT
    if as_clients_do:  # some clients send back only the call's main fields, not the whole item
        items = [_call_alone(item) for item in items]
    return {"input": [*first.request.asked["input"], *items, *_outputs(first, result)]}


def _messages_with_results(first: ProbeExchange, as_clients_do: bool) -> dict[str, Any]:
    """Returns the `messages` of a Messages request, with the results at the end.

    `as_clients_do`: as Claude Code sends them, with a text and a system message after the results.
    """
    answer = {"role": "assistant", "content": first.body.get("content", [])}
    results: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": call.id, "content": RESULT} for call in first.answer.calls
    ]
    messages = [*first.request.asked["messages"], answer, {"role": "user", "content": results}]
    if as_clients_do:
        for result in results:
            result.update(content=[{"type": "text", "text": RESULT}], is_error=False)
        results.append({"type": "text", "text": REMINDER, "cache_control": CACHED})
        messages.append({"role": "system", "content": "Available agent types: none."})
    return {"messages": messages}


def _call_alone(item: Any) -> Any:
    if not isinstance(item, dict) or item.get("type") != "function_call":
        return item
    return {key: item.get(key) for key in ("type", "call_id", "name", "arguments")}


def _outputs(first: ProbeExchange, result: Any) -> list[dict[str, Any]]:
    return [
        {"type": "function_call_output", "call_id": call.id, "output": result} for call in first.answer.calls
    ]


def legacy_with_result(model: str, earlier: Earlier) -> ProbeRequest | None:
    first = earlier["chat.legacy.body"]
    if not first.answer.calls:
        return None
    call = first.answer.calls[0]
    function_call = {"name": call.name, "arguments": call.arguments}
    assistant = {"role": "assistant", "content": None, "function_call": function_call}
    result = {"role": "function", "name": call.name, "content": RESULT}
    messages = [*first.request.asked["messages"], assistant, result]
    return first.request.but(function_call=None, messages=messages)


_WITH_RESULTS: Mapping[Api, Callable[[ProbeExchange, bool], dict[str, Any]]] = {
    "chat": _chat_with_results,
    "responses": _responses_with_results,
    "messages": _messages_with_results,
}

# --- stored responses and threads ---


def _id_of(exchange: ProbeExchange) -> str | None:
    return exchange.answer.id or None if exchange.ok else None


def stored(name: str, method: str = "GET", tail: str = "") -> Build:
    def build(model: str, earlier: Earlier) -> ProbeRequest | None:
        id = _id_of(earlier[name])
        return None if id is None else ProbeRequest(f"{PATHS['responses']}/{id}{tail}", method=method)

    return build


def continued(model: str, earlier: Earlier) -> ProbeRequest | None:
    first = earlier["responses.kept.call"]
    id = _id_of(first)
    if id is None or not called(first):
        return None
    body = {"model": model, "previous_response_id": id, "input": _outputs(first, RESULT), "store": True}
    return ProbeRequest(PATHS["responses"], {**body, "tools": tools("responses")})


def in_thread(name: str) -> Build:
    """Returns a function that builds the second request of a thread, as the SDKs' tool runners send it.

    The request contains the results, and the id of the first answer in place of the thread's earlier
    messages.
    """

    def build(model: str, earlier: Earlier) -> ProbeRequest | None:
        first = earlier[name]
        id = _id_of(first)
        if id is None or not called(first):
            return None
        results = _messages_with_results(first, False)["messages"][-1:]
        thread = {"type": "continue", "previous_message_id": id}
        return request(
            "messages", {"model": model, "max_tokens": MAX_TOKENS, "messages": results, "thread": thread}
        )

    return build

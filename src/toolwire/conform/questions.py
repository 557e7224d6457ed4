"""What an endpoint is asked, as data.

A question is a request, or a function that makes it from the answers to earlier questions. Where a model must be made to do something, the question
says it in plain words, lists the ways to ask for it (`ways`: fields laid over the request, tried in order) and knows whether it was done (`done`).
The words spell calls out: `Call the tool NAME with the arguments {…}`, which any model understands and a scripted one can read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolwire.conform.exchange import Family, ProbeExchange, ProbeRequest
from toolwire.core.turn import Api

Earlier = Mapping[str, ProbeExchange]
Build = Callable[[str, Earlier], ProbeRequest | None]
"""From the model's name and the exchanges named in `after`; None: an earlier answer lacks what is needed."""

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
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
ASKED_HEADERS = ("authorization", "content-type", "x-stainless-os", "x-stainless-retry-count", "x-a-header-of-tomorrow")

GREET = "Reply with one short sentence that greets me."
CALL_WEATHER = 'Call the tool get_weather with the arguments {"city": "Paris"}.'
CALL_TIME = 'Call the tool get_time with the arguments {"city": "Tokyo"}.'
ONE_CALL = f"{CALL_WEATHER} Call it once, and write nothing."
TWO_CALLS = f"{CALL_WEATHER} {CALL_TIME} Make both calls at once, in this one turn, before any result is there."
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


# --- the two APIs, told alike ------------------------------------------------------------------------------------------------------------------

PATHS = {"chat": "/chat/completions", "responses": "/responses"}


def tools(api: Api, **more: Any) -> list[dict[str, Any]]:
    both = ({**WEATHER, **more}, {**TIME, **more})
    return [{"type": "function", "function": tool} for tool in both] if api == "chat" else [{"type": "function", **tool} for tool in both]


def named(api: Api, name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}} if api == "chat" else {"type": "function", "name": name}


def allowed(api: Api, name: str) -> dict[str, Any]:
    inner = {"mode": "required", "tools": [named(api, name)]}
    return {"type": "allowed_tools", "allowed_tools": inner} if api == "chat" else {"type": "allowed_tools", **inner}


def structured(api: Api) -> dict[str, Any]:
    if api == "chat":
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}}
    return {"text": {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}}}


def ask(api: Api, model: str, words: str, *, with_tools: bool = False, **more: Any) -> ProbeRequest:
    """A request of one user message. Nothing of it is kept by the endpoint unless a question is about that."""
    body: dict[str, Any] = {"model": model}
    body |= {"messages": [{"role": "user", "content": words}]} if api == "chat" else {"input": [{"role": "user", "content": words}], "store": False}
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


# --- the second step ---------------------------------------------------------------------------------------------------------------------------


def result_text(city: str = "Paris") -> str:
    return f"The weather code of {city} is {SECRET}."


def _told(api: Api, first: ProbeExchange, *, as_clients_do: bool = False, **more: Any) -> ProbeRequest | None:
    """The conversation so far with the results of the calls: as the documentation shows it, or in the other shapes that clients send."""
    calls = first.answer.calls
    if not calls:
        return None
    body = dict(first.request.asked) | {"tool_choice": None, "stream": None} | more
    if api == "chat":
        made = [{"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls]
        assistant = {"role": "assistant", "content": "" if as_clients_do else None, "tool_calls": made}
        results = [_chat_result(call.id, call.name, as_clients_do) for call in calls]
        body["messages"] = [*body["messages"], assistant, *results]
    else:
        again = [_item_again(item, as_clients_do) for item in first.body.get("output", [])]
        outputs = [{"type": "function_call_output", "call_id": call.id, "output": _output(as_clients_do)} for call in calls]
        body["input"] = [*body["input"], *again, *outputs]
    return ProbeRequest(PATHS[api], {key: value for key, value in body.items() if value is not None})


def _chat_result(call_id: str, name: str, as_clients_do: bool) -> dict[str, Any]:
    if not as_clients_do:
        return {"role": "tool", "tool_call_id": call_id, "content": result_text()}
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": [{"type": "text", "text": result_text()}]}


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
    assistant = {"role": "assistant", "content": None, "function_call": {"name": call.name, "arguments": call.arguments}}
    result = {"role": "function", "name": call.name, "content": result_text()}
    body = {key: value for key, value in first.request.asked.items() if key != "function_call"}
    return ProbeRequest(PATHS["chat"], {**body, "messages": [*body["messages"], assistant, result]})


# --- what is kept ------------------------------------------------------------------------------------------------------------------------------


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
    outputs = [{"type": "function_call_output", "call_id": call.id, "output": result_text()} for call in first.answer.calls]
    return ProbeRequest(
        PATHS["responses"], {"model": model, "previous_response_id": id, "input": outputs, "tools": tools("responses"), "store": True}
    )


# --- the questions -----------------------------------------------------------------------------------------------------------------------------


def _both_forms(name: str, family: Family, build: Build, **more: Any) -> list[Question]:
    """The same, streamed and not."""

    def streaming(model: str, earlier: Earlier) -> ProbeRequest | None:
        request = build(model, earlier)
        return None if request is None else request.but(stream=True)

    return [Question(f"{name}.body", family, build, **more), Question(f"{name}.stream", family, streaming, **more)]


def _of(api: Api) -> list[Question]:
    """What both APIs are asked alike."""
    forced = ({"tool_choice": named(api, "get_weather")}, {"tool_choice": "required"}, {"tool_choice": "auto"})
    required = ({"tool_choice": "required"}, {"tool_choice": "auto"}, {"tool_choice": "auto", "parallel_tool_calls": True})
    free = ({"tool_choice": "auto"}, {"tool_choice": "auto"}, {"tool_choice": "required"})
    twice: dict[str, Any] = {"ways": required, "done": called_twice, "wants": "make two calls in one turn", "tools": True}
    questions = [
        *_both_forms(f"{api}.text", api, asking(api, GREET)),
        *_both_forms(f"{api}.call", api, asking(api, ONE_CALL, with_tools=True), ways=forced, done=called, wants="call the tool", tools=True),
        *_both_forms(f"{api}.parallel", api, asking(api, TWO_CALLS, with_tools=True), **twice),
        *_both_forms(
            f"{api}.both",
            api,
            asking(api, SAY_AND_CALL, with_tools=True),
            ways=free,
            done=said_and_called,
            wants="write and call in one turn",
            tools=True,
        ),
        *_both_forms(f"{api}.structured", api, asking(api, DESCRIBE, **structured(api))),
        Question(f"{api}.single.body", api, asking(api, TWO_CALLS, with_tools=True, tool_choice="required", parallel_tool_calls=False), tools=True),
        Question(f"{api}.choice.none", api, asking(api, ONE_CALL, with_tools=True, tool_choice="none"), tools=True),
        Question(f"{api}.choice.auto", api, asking(api, GREET, with_tools=True, tool_choice="auto"), tools=True),
        Question(f"{api}.choice.required", api, asking(api, ONE_CALL, with_tools=True, tool_choice="required"), tools=True),
        Question(f"{api}.choice.named", api, asking(api, ONE_CALL, with_tools=True, tool_choice=named(api, "get_time")), tools=True),
        Question(f"{api}.choice.allowed", api, asking(api, ONE_CALL, with_tools=True, tool_choice=allowed(api, "get_time")), tools=True),
        Question(f"{api}.loop.first", api, asking(api, THEN_TELL, with_tools=True), ways=forced, done=called, wants="call the tool", tools=True),
        *_both_forms(
            f"{api}.loop.second",
            api,
            telling(api, f"{api}.loop.first"),
            after=(f"{api}.loop.first",),
            ways=({}, {}),
            done=tells,
            wants="repeat what the tool's result said",
            tools=True,
        ),
        Question(f"{api}.loop.clients", api, telling(api, f"{api}.loop.first", as_clients_do=True), after=(f"{api}.loop.first",), tools=True),
        Question(f"{api}.bad-json", api, lambda model, earlier: ProbeRequest(PATHS[api], b'{"model": "x", ')),
        Question(f"{api}.unknown-model", api, lambda model, earlier: ask(api, "no-such-model-of-toolwire-conform", GREET)),
        Question(f"{api}.unknown-model.stream", api, lambda model, earlier: ask(api, "no-such-model-of-toolwire-conform", GREET, stream=True)),
        Question(f"{api}.bad-field", api, lambda model, earlier: ask(api, model, GREET).but(tools="none at all")),
        Question(f"{api}.missing-field", api, lambda model, earlier: ProbeRequest(PATHS[api], {"model": model, "stream": True})),
        Question(f"{api}.left", api, lambda model, earlier: replace(ask(api, model, GREET, stream=True), leave=True)),
        Question(f"{api}.after-left", api, asking(api, GREET), after=(f"{api}.left",)),
    ]
    return questions


_JSON_SCHEMA = "https://json-schema.org/draft/2020-12/schema"
FUNCTIONS: dict[str, Any] = {"functions": [WEATHER, TIME]}
_BY_NAME = ({"function_call": {"name": "get_weather"}}, {"function_call": "auto"})
_PATCH = {"type": "custom", "name": "note", "description": "Takes down a text, word by word."}
_CODEX_TOOLS = [
    *tools("responses", strict=False),
    {"type": "namespace", "name": "agents", "description": "Others.", "tools": [{"type": "function", **TIME, "name": "wait", "strict": False}]},
    {"type": "web_search", "external_web_access": False},
]

_CHAT = [
    Question("chat.usage.stream", "chat", asking("chat", GREET, stream=True, stream_options={"include_usage": True})),
    *_both_forms("chat.legacy", "chat", asking("chat", ONE_CALL, **FUNCTIONS), ways=_BY_NAME, done=called, wants="call the function"),
    Question("chat.legacy.none", "chat", asking("chat", ONE_CALL, **FUNCTIONS, function_call="none")),
    Question("chat.legacy.second", "chat", _called_legacy, after=("chat.legacy.body",)),
    Question(
        "chat.clients",
        "chat",
        lambda model, earlier: ProbeRequest(
            PATHS["chat"],
            {
                "model": model,
                "messages": [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": GREET}]}],
                "tools": tools("chat", parameters={"$schema": _JSON_SCHEMA, **CITY}),
                **{"tool_choice": "auto", "parallel_tool_calls": True, "temperature": 1, "user": "someone", "max_tokens": 400},
            },
        ),
        tools=True,
    ),
]

_RESPONSES = [
    Question(
        "responses.string", "responses", lambda model, earlier: ProbeRequest(PATHS["responses"], {"model": model, "input": GREET, "store": False})
    ),
    Question(
        "responses.clients",
        "responses",
        lambda model, earlier: ProbeRequest(
            PATHS["responses"],
            {
                "model": model,
                "input": [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": [{"type": "input_text", "text": GREET}]}],
                "tools": _CODEX_TOOLS,
                **{"tool_choice": "auto", "parallel_tool_calls": True, "store": False, "include": ["reasoning.encrypted_content"]},
                **{"prompt_cache_key": "one", "reasoning": {"summary": "auto"}, "stream": True},
            },
        ),
    ),
    Question(
        "responses.custom.stream",
        "responses",
        asking("responses", "Call the tool note with the text: It rains.", tools=[_PATCH], stream=True),
        ways=({"tool_choice": {"type": "custom", "name": "note"}}, {"tool_choice": "required"}),
        done=called,
        wants="call the custom tool",
    ),
    Question(
        "responses.kept.call",
        "responses",
        asking("responses", THEN_TELL, with_tools=True, store=True),
        ways=({"tool_choice": named("responses", "get_weather")}, {"tool_choice": "required"}, {"tool_choice": "auto"}),
        done=called,
        wants="call the tool",
        tools=True,
    ),
    Question("responses.kept.next", "responses", _continued, after=("responses.kept.call",), ways=({}, {}), done=tells, wants="repeat the result"),
    Question("responses.kept.get", "responses", kept("responses.kept.call"), after=("responses.kept.call",)),
    Question("responses.kept.items", "responses", kept("responses.kept.call", tail="/input_items"), after=("responses.kept.call",)),
    Question(
        "responses.kept.delete",
        "responses",
        kept("responses.kept.call", "DELETE"),
        after=("responses.kept.call", "responses.kept.next", "responses.kept.get", "responses.kept.items"),
    ),
    Question("responses.kept.gone", "responses", kept("responses.kept.call"), after=("responses.kept.call", "responses.kept.delete")),
    Question("responses.unkept.get", "responses", kept("responses.text.body"), after=("responses.text.body",)),
    Question("responses.lost-id", "responses", lambda model, earlier: ask("responses", model, GREET, previous_response_id=LOST_ID)),
]

PREFLIGHT = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": ", ".join(ASKED_HEADERS)}

_HTTP = [
    Question("http.models", "http", lambda model, earlier: ProbeRequest("/models", method="GET")),
    Question("http.model", "http", lambda model, earlier: ProbeRequest(f"/models/{model}", method="GET")),
    Question("http.no-model", "http", lambda model, earlier: ProbeRequest("/models/no-such-model-of-toolwire-conform", method="GET")),
    Question("http.preflight", "http", lambda model, earlier: ProbeRequest(PATHS["chat"], method="OPTIONS", headers=PREFLIGHT, bare=True)),
    Question("http.from-page", "http", lambda model, earlier: ProbeRequest("/models", method="GET", headers={"Origin": ORIGIN})),
    Question("http.error-to-page", "http", lambda model, earlier: ProbeRequest(PATHS["chat"], b"{", headers={"Origin": ORIGIN})),
    Question("http.without-key", "http", lambda model, earlier: replace(ask("chat", model, GREET), bare=True)),
]

QUESTIONS: dict[str, Question] = {question.name: question for question in (*_HTTP, *_of("chat"), *_CHAT, *_of("responses"), *_RESPONSES)}


def shown(request: ProbeRequest) -> str:
    """The request in one line, for documents and reports; nothing of its headers."""
    body = "" if request.body is None else " " + (request.body.decode() if isinstance(request.body, bytes) else json.dumps(request.body))
    return f"{request.method} {request.path}{body}"

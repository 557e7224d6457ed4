"""The questions that an endpoint is asked: requests as data, for both APIs.

A question builds its request from the model's name and the answers to earlier questions. If the model must do
something, the question says so in plain words, has `variants` (fields that are changed in the request, tried
in order) and a function `done`, which recognizes success. The words spell calls out (`Call the tool NAME with
the arguments {…}`): every model understands this, and a scripted model can parse it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from toolwire.conform.exchange import Family, ProbeExchange, ProbeRequest, family_of
from toolwire.core.turn import Api

Earlier = Mapping[str, ProbeExchange]
Build = Callable[[str, Earlier], ProbeRequest | None]
"""Builds a request from the model's name and the exchanges of the questions in `after`.

Returns None if an earlier answer does not contain what is needed.
"""


@dataclass(frozen=True, slots=True)
class Question:
    """A question. `wants` completes the sentence "the model would not …"."""

    name: str
    build: Build
    after: tuple[str, ...] = ()
    variants: tuple[Mapping[str, Any], ...] = ({},)
    done: Callable[[ProbeExchange], bool] | None = None
    wants: str = ""

    @property
    def family(self) -> Family:
        return family_of(self.name)


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
DESCRIBE = (
    "Describe Paris as a JSON object: its name as city, "
    "and how many inhabitants it has as inhabitants, a whole number."
)

# --- requests of both APIs ---

PATHS = {"chat": "/chat/completions", "responses": "/responses"}


def tools(api: Api, **more: Any) -> list[dict[str, Any]]:
    return [_of_kind(api, "function", {**tool, **more}) for tool in (WEATHER, TIME)]


def named(api: Api, name: str) -> dict[str, Any]:
    return _of_kind(api, "function", {"name": name})


def allowed(api: Api, name: str) -> dict[str, Any]:
    return _of_kind(api, "allowed_tools", {"mode": "required", "tools": [named(api, name)]})


def _of_kind(api: Api, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a tool or a choice. Chat nests the fields under their kind, Responses does not."""
    return {"type": kind, kind: dict(fields)} if api == "chat" else {"type": kind, **fields}


def structured(api: Api) -> dict[str, Any]:
    form = _of_kind(api, "json_schema", {"name": "city", "schema": SCHEMA, "strict": True})
    return {"response_format": form} if api == "chat" else {"text": {"format": form}}


def ask(api: Api, model: str, words: str, **more: Any) -> ProbeRequest:
    """Returns a request with one user message. For Responses, storing is off by default."""
    messages = [{"role": "user", "content": words}]
    own = {"messages": messages} if api == "chat" else {"input": messages, "store": False}
    return ProbeRequest(PATHS[api], {"model": model, **own, **more})


def asking(api: Api, words: str, **more: Any) -> Build:
    return lambda model, earlier: ask(api, model, words, **more)


def _body(api: Api, body: Mapping[str, Any]) -> Build:
    return lambda model, earlier: ProbeRequest(PATHS[api], {"model": model, **body})


def called(exchange: ProbeExchange) -> bool:
    return bool(exchange.answer.calls)


def called_twice(exchange: ProbeExchange) -> bool:
    return len(exchange.answer.calls) > 1


def said_and_called(exchange: ProbeExchange) -> bool:
    return called(exchange) and bool(exchange.answer.text.strip())


def repeats_result(exchange: ProbeExchange) -> bool:
    return SECRET in exchange.answer.text


# --- requests with tool results ---


def with_results(api: Api, first: str, *, as_clients_do: bool = False) -> Build:
    """Builds the request that returns the results of the calls in the answer to `first`.

    `as_clients_do`: with other valid shapes that some clients send.
    """
    extend = _chat_with_results if api == "chat" else _responses_with_results

    def build(model: str, earlier: Earlier) -> ProbeRequest | None:
        exchange = earlier[first]
        changes = extend(exchange, as_clients_do)
        return exchange.request.but(tool_choice=None, **changes) if called(exchange) else None

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


def _call_alone(item: Any) -> Any:
    if not isinstance(item, dict) or item.get("type") != "function_call":
        return item
    return {key: item.get(key) for key in ("type", "call_id", "name", "arguments")}


def _outputs(first: ProbeExchange, result: Any) -> list[dict[str, Any]]:
    return [
        {"type": "function_call_output", "call_id": call.id, "output": result} for call in first.answer.calls
    ]


def _legacy_with_result(model: str, earlier: Earlier) -> ProbeRequest | None:
    first = earlier["chat.legacy.body"]
    if not first.answer.calls:
        return None
    call = first.answer.calls[0]
    function_call = {"name": call.name, "arguments": call.arguments}
    assistant = {"role": "assistant", "content": None, "function_call": function_call}
    result = {"role": "function", "name": call.name, "content": RESULT}
    messages = [*first.request.asked["messages"], assistant, result]
    return first.request.but(function_call=None, messages=messages)


# --- stored responses ---


def _id_of(exchange: ProbeExchange) -> str | None:
    return exchange.answer.id or None if exchange.ok else None


def stored(name: str, method: str = "GET", tail: str = "") -> Build:
    def build(model: str, earlier: Earlier) -> ProbeRequest | None:
        id = _id_of(earlier[name])
        return None if id is None else ProbeRequest(f"{PATHS['responses']}/{id}{tail}", method=method)

    return build


def _continued(model: str, earlier: Earlier) -> ProbeRequest | None:
    first = earlier["responses.kept.call"]
    id = _id_of(first)
    if id is None or not called(first):
        return None
    body = {"model": model, "previous_response_id": id, "input": _outputs(first, RESULT), "store": True}
    return ProbeRequest(PATHS["responses"], {**body, "tools": tools("responses")})


# --- the questions ---


def _both_forms(name: str, build: Build, **more: Any) -> list[Question]:
    """Returns the question twice: not streamed and streamed."""

    def streaming(model: str, earlier: Earlier) -> ProbeRequest | None:
        request = build(model, earlier)
        return None if request is None else request.but(stream=True)

    return [Question(f"{name}.body", build, **more), Question(f"{name}.stream", streaming, **more)]


def _choices(*choices: Any) -> tuple[dict[str, Any], ...]:
    return tuple({"tool_choice": choice} for choice in choices)


def _one_call(api: Api) -> dict[str, Any]:
    variants = _choices(named(api, "get_weather"), "required", "auto")
    return {"variants": variants, "done": called, "wants": "call the tool"}


def _shared(api: Api) -> list[Question]:
    """Returns the questions that both APIs have."""
    both = tools(api)
    two_calls: dict[str, Any] = {
        "variants": (*_choices("required", "auto"), {"tool_choice": "auto", "parallel_tool_calls": True}),
        "done": called_twice,
        "wants": "make two calls in one turn",
    }
    text_and_call: dict[str, Any] = {
        "variants": _choices("auto", "auto", "required"),
        "done": said_and_called,
        "wants": "write and call in one turn",
    }
    repeat: dict[str, Any] = {
        "variants": ({}, {}),
        "done": repeats_result,
        "wants": "repeat what the tool's result said",
    }
    choices = {"none": "none", "required": "required", "named": named(api, "get_time")}
    choices["allowed"] = allowed(api, "get_time")
    first = f"{api}.loop.first"
    single = asking(api, TWO_CALLS, tools=both, tool_choice="required", parallel_tool_calls=False)
    return [
        *_both_forms(f"{api}.text", asking(api, GREET)),
        *_both_forms(f"{api}.call", asking(api, ONE_CALL, tools=both), **_one_call(api)),
        *_both_forms(f"{api}.parallel", asking(api, TWO_CALLS, tools=both), **two_calls),
        *_both_forms(f"{api}.both", asking(api, SAY_AND_CALL, tools=both), **text_and_call),
        *_both_forms(f"{api}.structured", asking(api, DESCRIBE, **structured(api))),
        Question(f"{api}.single.body", single),
        Question(f"{api}.choice.auto", asking(api, GREET, tools=both, tool_choice="auto")),
        *(
            Question(f"{api}.choice.{name}", asking(api, ONE_CALL, tools=both, tool_choice=choice))
            for name, choice in choices.items()
        ),
        Question(first, asking(api, THEN_REPEAT, tools=both), **_one_call(api)),
        *_both_forms(f"{api}.loop.second", with_results(api, first), after=(first,), **repeat),
        Question(f"{api}.loop.clients", with_results(api, first, as_clients_do=True), after=(first,)),
        Question(f"{api}.bad-json", lambda model, earlier: ProbeRequest(PATHS[api], b'{"model": "x", ')),
        Question(f"{api}.unknown-model", lambda model, earlier: ask(api, NO_MODEL, GREET)),
        Question(
            f"{api}.unknown-model.stream", lambda model, earlier: ask(api, NO_MODEL, GREET, stream=True)
        ),
        Question(f"{api}.bad-field", asking(api, GREET, tools="none at all")),
        Question(f"{api}.missing-field", _body(api, {"stream": True})),
        Question(
            f"{api}.left", lambda model, earlier: replace(ask(api, model, GREET, stream=True), leave=True)
        ),
        Question(f"{api}.after-left", asking(api, GREET), after=(f"{api}.left",)),
    ]


FUNCTIONS: dict[str, Any] = {"functions": [WEATHER, TIME]}
_CHAT_CLIENTS = {
    "messages": [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": GREET}]},
    ],
    "tools": tools("chat", parameters={"$schema": "https://json-schema.org/draft/2020-12/schema", **CITY}),
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "temperature": 1,
    "user": "someone",
    "max_tokens": 400,
}
_RESPONSES_CLIENTS = {
    "input": [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": GREET}]},
    ],
    "tools": [
        *tools("responses", strict=False),
        {
            "type": "namespace",
            "name": "agents",
            "description": "Others.",
            "tools": [{"type": "function", **TIME, "name": "wait", "strict": False}],
        },
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "one",
    "reasoning": {"summary": "auto"},
    "stream": True,
}


def _get(path: str, **fields: Any) -> Build:
    return lambda model, earlier: ProbeRequest(path.format(model=model), method="GET", **fields)


_CHAT = [
    Question("chat.usage.stream", asking("chat", GREET, stream=True, stream_options={"include_usage": True})),
    *_both_forms(
        "chat.legacy",
        asking("chat", ONE_CALL, **FUNCTIONS),
        variants=({"function_call": {"name": "get_weather"}}, {"function_call": "auto"}),
        done=called,
        wants="call the function",
    ),
    Question("chat.legacy.none", asking("chat", ONE_CALL, **FUNCTIONS, function_call="none")),
    Question("chat.legacy.second", _legacy_with_result, after=("chat.legacy.body",)),
    Question("chat.clients", _body("chat", _CHAT_CLIENTS)),
]

_NOTE = {"type": "custom", "name": "note", "description": "Takes down a text, word by word."}
_KEPT = "responses.kept.call"
_RESPONSES = [
    Question("responses.string", _body("responses", {"input": GREET, "store": False})),
    Question("responses.clients", _body("responses", _RESPONSES_CLIENTS)),
    Question(
        "responses.custom.stream",
        asking("responses", "Call the tool note with the text: It rains.", tools=[_NOTE], stream=True),
        variants=_choices({"type": "custom", "name": "note"}, "required"),
        done=called,
        wants="call the custom tool",
    ),
    Question(
        _KEPT,
        asking("responses", THEN_REPEAT, tools=tools("responses"), store=True),
        **_one_call("responses"),
    ),
    Question(
        "responses.kept.next",
        _continued,
        after=(_KEPT,),
        variants=({}, {}),
        done=repeats_result,
        wants="repeat the result",
    ),
    Question("responses.kept.get", stored(_KEPT), after=(_KEPT,)),
    Question("responses.kept.items", stored(_KEPT, tail="/input_items"), after=(_KEPT,)),
    Question(
        "responses.kept.delete",
        stored(_KEPT, "DELETE"),
        after=(_KEPT, "responses.kept.next", "responses.kept.get", "responses.kept.items"),
    ),
    Question("responses.kept.gone", stored(_KEPT), after=(_KEPT, "responses.kept.delete")),
    Question("responses.unkept.get", stored("responses.text.body"), after=("responses.text.body",)),
    Question("responses.lost-id", asking("responses", GREET, previous_response_id=LOST_ID)),
]

_HTTP = [
    Question("http.models", _get("/models")),
    Question("http.model", _get("/models/{model}")),
    Question("http.no-model", _get(f"/models/{NO_MODEL}")),
    Question(
        "http.preflight",
        lambda model, earlier: ProbeRequest(PATHS["chat"], method="OPTIONS", headers=PREFLIGHT, bare=True),
    ),
    Question("http.from-page", _get("/models", headers={"Origin": ORIGIN})),
    Question(
        "http.error-to-page",
        lambda model, earlier: ProbeRequest(PATHS["chat"], b"{", headers={"Origin": ORIGIN}),
    ),
    Question("http.without-key", lambda model, earlier: replace(ask("chat", model, GREET), bare=True)),
]

QUESTIONS: dict[str, Question] = {
    question.name: question
    for question in (*_HTTP, *_shared("chat"), *_CHAT, *_shared("responses"), *_RESPONSES)
}

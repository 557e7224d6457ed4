"""Every question that an endpoint is asked."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from toolwire.conform.asking import (
    ASKED_HEADERS,
    CITY,
    DESCRIBE,
    GREET,
    LOST_ID,
    ONE_CALL,
    ORIGIN,
    PATHS,
    SAY_AND_CALL,
    THEN_TELL,
    TIME,
    TWO_CALLS,
    WEATHER,
    Build,
    Earlier,
    Question,
    _called_legacy,
    _continued,
    allowed,
    ask,
    asking,
    called,
    called_twice,
    kept,
    named,
    said_and_called,
    structured,
    telling,
    tells,
    tools,
)
from toolwire.conform.exchange import Family, ProbeRequest
from toolwire.core.turn import Api


def _both_forms(name: str, family: Family, build: Build, **more: Any) -> list[Question]:
    """The same, streamed and not."""

    def streaming(model: str, earlier: Earlier) -> ProbeRequest | None:
        request = build(model, earlier)
        return None if request is None else request.but(stream=True)

    return [
        Question(f"{name}.body", family, build, **more),
        Question(f"{name}.stream", family, streaming, **more),
    ]


def _of(api: Api) -> list[Question]:
    """What both APIs are asked alike."""
    forced = (
        {"tool_choice": named(api, "get_weather")},
        {"tool_choice": "required"},
        {"tool_choice": "auto"},
    )
    required = (
        {"tool_choice": "required"},
        {"tool_choice": "auto"},
        {"tool_choice": "auto", "parallel_tool_calls": True},
    )
    free = ({"tool_choice": "auto"}, {"tool_choice": "auto"}, {"tool_choice": "required"})
    twice: dict[str, Any] = {
        "ways": required,
        "done": called_twice,
        "wants": "make two calls in one turn",
        "tools": True,
    }
    questions = [
        *_both_forms(f"{api}.text", api, asking(api, GREET)),
        *_both_forms(
            f"{api}.call",
            api,
            asking(api, ONE_CALL, with_tools=True),
            ways=forced,
            done=called,
            wants="call the tool",
            tools=True,
        ),
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
        Question(
            f"{api}.single.body",
            api,
            asking(api, TWO_CALLS, with_tools=True, tool_choice="required", parallel_tool_calls=False),
            tools=True,
        ),
        Question(
            f"{api}.choice.none", api, asking(api, ONE_CALL, with_tools=True, tool_choice="none"), tools=True
        ),
        Question(
            f"{api}.choice.auto", api, asking(api, GREET, with_tools=True, tool_choice="auto"), tools=True
        ),
        Question(
            f"{api}.choice.required",
            api,
            asking(api, ONE_CALL, with_tools=True, tool_choice="required"),
            tools=True,
        ),
        Question(
            f"{api}.choice.named",
            api,
            asking(api, ONE_CALL, with_tools=True, tool_choice=named(api, "get_time")),
            tools=True,
        ),
        Question(
            f"{api}.choice.allowed",
            api,
            asking(api, ONE_CALL, with_tools=True, tool_choice=allowed(api, "get_time")),
            tools=True,
        ),
        Question(
            f"{api}.loop.first",
            api,
            asking(api, THEN_TELL, with_tools=True),
            ways=forced,
            done=called,
            wants="call the tool",
            tools=True,
        ),
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
        Question(
            f"{api}.loop.clients",
            api,
            telling(api, f"{api}.loop.first", as_clients_do=True),
            after=(f"{api}.loop.first",),
            tools=True,
        ),
        Question(f"{api}.bad-json", api, lambda model, earlier: ProbeRequest(PATHS[api], b'{"model": "x", ')),
        Question(
            f"{api}.unknown-model",
            api,
            lambda model, earlier: ask(api, "no-such-model-of-toolwire-conform", GREET),
        ),
        Question(
            f"{api}.unknown-model.stream",
            api,
            lambda model, earlier: ask(api, "no-such-model-of-toolwire-conform", GREET, stream=True),
        ),
        Question(
            f"{api}.bad-field", api, lambda model, earlier: ask(api, model, GREET).but(tools="none at all")
        ),
        Question(
            f"{api}.missing-field",
            api,
            lambda model, earlier: ProbeRequest(PATHS[api], {"model": model, "stream": True}),
        ),
        Question(
            f"{api}.left",
            api,
            lambda model, earlier: replace(ask(api, model, GREET, stream=True), leave=True),
        ),
        Question(f"{api}.after-left", api, asking(api, GREET), after=(f"{api}.left",)),
    ]
    return questions


_JSON_SCHEMA = "https://json-schema.org/draft/2020-12/schema"
FUNCTIONS: dict[str, Any] = {"functions": [WEATHER, TIME]}
_BY_NAME = ({"function_call": {"name": "get_weather"}}, {"function_call": "auto"})
_PATCH = {"type": "custom", "name": "note", "description": "Takes down a text, word by word."}
_CODEX_TOOLS = [
    *tools("responses", strict=False),
    {
        "type": "namespace",
        "name": "agents",
        "description": "Others.",
        "tools": [{"type": "function", **TIME, "name": "wait", "strict": False}],
    },
    {"type": "web_search", "external_web_access": False},
]

_CHAT = [
    Question(
        "chat.usage.stream",
        "chat",
        asking("chat", GREET, stream=True, stream_options={"include_usage": True}),
    ),
    *_both_forms(
        "chat.legacy",
        "chat",
        asking("chat", ONE_CALL, **FUNCTIONS),
        ways=_BY_NAME,
        done=called,
        wants="call the function",
    ),
    Question("chat.legacy.none", "chat", asking("chat", ONE_CALL, **FUNCTIONS, function_call="none")),
    Question("chat.legacy.second", "chat", _called_legacy, after=("chat.legacy.body",)),
    Question(
        "chat.clients",
        "chat",
        lambda model, earlier: ProbeRequest(
            PATHS["chat"],
            {
                "model": model,
                "messages": [
                    {"role": "developer", "content": "Be kind."},
                    {"role": "user", "content": [{"type": "text", "text": GREET}]},
                ],
                "tools": tools("chat", parameters={"$schema": _JSON_SCHEMA, **CITY}),
                **{
                    "tool_choice": "auto",
                    "parallel_tool_calls": True,
                    "temperature": 1,
                    "user": "someone",
                    "max_tokens": 400,
                },
            },
        ),
        tools=True,
    ),
]

_RESPONSES = [
    Question(
        "responses.string",
        "responses",
        lambda model, earlier: ProbeRequest(
            PATHS["responses"], {"model": model, "input": GREET, "store": False}
        ),
    ),
    Question(
        "responses.clients",
        "responses",
        lambda model, earlier: ProbeRequest(
            PATHS["responses"],
            {
                "model": model,
                "input": [
                    {"role": "developer", "content": "Be kind."},
                    {"role": "user", "content": [{"type": "input_text", "text": GREET}]},
                ],
                "tools": _CODEX_TOOLS,
                **{
                    "tool_choice": "auto",
                    "parallel_tool_calls": True,
                    "store": False,
                    "include": ["reasoning.encrypted_content"],
                },
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
        ways=(
            {"tool_choice": named("responses", "get_weather")},
            {"tool_choice": "required"},
            {"tool_choice": "auto"},
        ),
        done=called,
        wants="call the tool",
        tools=True,
    ),
    Question(
        "responses.kept.next",
        "responses",
        _continued,
        after=("responses.kept.call",),
        ways=({}, {}),
        done=tells,
        wants="repeat the result",
    ),
    Question("responses.kept.get", "responses", kept("responses.kept.call"), after=("responses.kept.call",)),
    Question(
        "responses.kept.items",
        "responses",
        kept("responses.kept.call", tail="/input_items"),
        after=("responses.kept.call",),
    ),
    Question(
        "responses.kept.delete",
        "responses",
        kept("responses.kept.call", "DELETE"),
        after=("responses.kept.call", "responses.kept.next", "responses.kept.get", "responses.kept.items"),
    ),
    Question(
        "responses.kept.gone",
        "responses",
        kept("responses.kept.call"),
        after=("responses.kept.call", "responses.kept.delete"),
    ),
    Question(
        "responses.unkept.get", "responses", kept("responses.text.body"), after=("responses.text.body",)
    ),
    Question(
        "responses.lost-id",
        "responses",
        lambda model, earlier: ask("responses", model, GREET, previous_response_id=LOST_ID),
    ),
]

PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": ", ".join(ASKED_HEADERS),
}

_HTTP = [
    Question("http.models", "http", lambda model, earlier: ProbeRequest("/models", method="GET")),
    Question("http.model", "http", lambda model, earlier: ProbeRequest(f"/models/{model}", method="GET")),
    Question(
        "http.no-model",
        "http",
        lambda model, earlier: ProbeRequest("/models/no-such-model-of-toolwire-conform", method="GET"),
    ),
    Question(
        "http.preflight",
        "http",
        lambda model, earlier: ProbeRequest(PATHS["chat"], method="OPTIONS", headers=PREFLIGHT, bare=True),
    ),
    Question(
        "http.from-page",
        "http",
        lambda model, earlier: ProbeRequest("/models", method="GET", headers={"Origin": ORIGIN}),
    ),
    Question(
        "http.error-to-page",
        "http",
        lambda model, earlier: ProbeRequest(PATHS["chat"], b"{", headers={"Origin": ORIGIN}),
    ),
    Question(
        "http.without-key", "http", lambda model, earlier: replace(ask("chat", model, GREET), bare=True)
    ),
]

QUESTIONS: dict[str, Question] = {
    question.name: question for question in (*_HTTP, *_of("chat"), *_CHAT, *_of("responses"), *_RESPONSES)
}


def shown(request: ProbeRequest) -> str:
    """The request in one line, for documents and reports; nothing of its headers."""
    body = (
        ""
        if request.body is None
        else " " + (request.body.decode() if isinstance(request.body, bytes) else json.dumps(request.body))
    )
    return f"{request.method} {request.path}{body}"

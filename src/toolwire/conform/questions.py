"""The questions that an endpoint is asked, for all APIs.

A question builds its request from the model's name and the answers to earlier questions. Some questions need
the model to do something, such as calling a tool. Their texts ask for it in plain words. `done` tests whether
the model did it. `variants` contains changes of the request's fields, which are tried in order until `done`
is true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from toolwire.conform.asking import (
    ANTHROPIC,
    CACHED,
    CALL_TIME,
    CITY,
    DESCRIBE,
    GREET,
    LOST_ID,
    NO_MODEL,
    ONE_CALL,
    ORIGIN,
    PATHS,
    PREFLIGHT,
    REMINDER,
    RESULT,
    SAY_AND_CALL,
    THEN_REPEAT,
    THINK,
    TIME,
    TWO_CALLS,
    WEATHER,
    Build,
    Earlier,
    allowed,
    ask,
    asking,
    called,
    called_twice,
    choice,
    continued,
    in_thread,
    legacy_with_result,
    named,
    one_at_a_time,
    repeats_result,
    request,
    said_and_called,
    sending,
    stored,
    structured,
    thought_and_called,
    tools,
    with_results,
)
from toolwire.conform.exchange import Family, ProbeExchange, ProbeRequest, family_of
from toolwire.core.turn import Api


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the endpoint. `wants` completes the sentence "the model did not …"."""

    name: str
    build: Build
    after: tuple[str, ...] = ()
    variants: tuple[Mapping[str, Any], ...] = ({},)
    done: Callable[[ProbeExchange], bool] | None = None
    wants: str = ""

    @property
    def family(self) -> Family:
        return family_of(self.name)


def _both_forms(name: str, build: Build, **more: Any) -> list[Question]:
    """Returns the question in two forms: not streamed and streamed."""

    def streaming(model: str, earlier: Earlier) -> ProbeRequest | None:
        request = build(model, earlier)
        return None if request is None else request.but(stream=True)

    return [Question(f"{name}.body", build, **more), Question(f"{name}.stream", streaming, **more)]


def _choices(*choices: Any) -> tuple[dict[str, Any], ...]:
    return tuple({"tool_choice": choice} for choice in choices)


def _one_call(api: Api) -> dict[str, Any]:
    variants = _choices(named(api, "get_weather"), choice(api, "required"), choice(api, "auto"))
    return {"variants": variants, "done": called, "wants": "call the tool"}


def _shared(api: Api) -> list[Question]:
    """Returns the questions that all APIs have."""
    both = tools(api)
    auto, required = choice(api, "auto"), choice(api, "required")
    explicit = {} if api == "messages" else {"parallel_tool_calls": True}
    two_calls: dict[str, Any] = {
        "variants": (*_choices(required, auto), {"tool_choice": auto, **explicit}),
        "done": called_twice,
        "wants": "make two calls in one turn",
    }
    text_and_call: dict[str, Any] = {
        "variants": _choices(auto, auto, required),
        "done": said_and_called,
        "wants": "write a text and make a call in one turn",
    }
    repeat: dict[str, Any] = {
        "variants": ({}, {}),
        "done": repeats_result,
        "wants": "repeat what the tool's result said",
    }
    choices = {"none": choice(api, "none"), "required": required, "named": named(api, "get_time")}
    if api != "messages":
        choices["allowed"] = allowed(api, "get_time")
    first = f"{api}.loop.first"
    single = asking(api, TWO_CALLS, tools=both, **one_at_a_time(api))
    return [
        *_both_forms(f"{api}.text", asking(api, GREET)),
        *_both_forms(f"{api}.call", asking(api, ONE_CALL, tools=both), **_one_call(api)),
        *_both_forms(f"{api}.parallel", asking(api, TWO_CALLS, tools=both), **two_calls),
        *_both_forms(f"{api}.both", asking(api, SAY_AND_CALL, tools=both), **text_and_call),
        *_both_forms(f"{api}.structured", asking(api, DESCRIBE, **structured(api))),
        Question(f"{api}.single.body", single),
        Question(f"{api}.choice.auto", asking(api, GREET, tools=both, tool_choice=auto)),
        *(
            Question(f"{api}.choice.{name}", asking(api, ONE_CALL, tools=both, tool_choice=chosen))
            for name, chosen in choices.items()
        ),
        Question(first, asking(api, THEN_REPEAT, tools=both), **_one_call(api)),
        *_both_forms(f"{api}.loop.second", with_results(api, first), after=(first,), **repeat),
        Question(f"{api}.loop.clients", with_results(api, first, as_clients_do=True), after=(first,)),
        Question(f"{api}.bad-json", lambda model, earlier: request(api, b'{"model": "x", ')),
        Question(f"{api}.unknown-model", lambda model, earlier: ask(api, NO_MODEL, GREET)),
        Question(
            f"{api}.unknown-model.stream", lambda model, earlier: ask(api, NO_MODEL, GREET, stream=True)
        ),
        Question(f"{api}.bad-field", asking(api, GREET, tools="none at all")),
        Question(f"{api}.missing-field", sending(api, {"stream": True})),
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
    Question("chat.legacy.second", legacy_with_result, after=("chat.legacy.body",)),
    Question("chat.clients", sending("chat", _CHAT_CLIENTS)),
]

_NOTE = {"type": "custom", "name": "note", "description": "Takes down a text, word by word."}
_KEPT = "responses.kept.call"
_RESPONSES = [
    Question("responses.string", sending("responses", {"input": GREET, "store": False})),
    Question("responses.clients", sending("responses", _RESPONSES_CLIENTS)),
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
        continued,
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

# --- Messages, with requests of Claude Code and Anthropic's SDKs ---

_SEARCH = {"name": "ToolSearch", "description": "Loads tools.", "input_schema": CITY}
_SYSTEM = [
    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.326; cc_entrypoint=cli;"},
    {"type": "text", "text": "You are a kind assistant.", "cache_control": CACHED},
]
_INLINE = [
    {"role": "user", "content": [{"type": "text", "text": REMINDER}, {"type": "text", "text": GREET}]},
    {
        "role": "system",
        "content": [{"type": "text", "text": "The platform is Linux.", "cache_control": CACHED}],
    },
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": GREET},
    {"role": "system", "content": "The date is 2026-11-18.", "output_config": {"effort": "medium"}},
    {"role": "system", "content": [], "output_config": {"effort": "low"}},
]
_MESSAGES_CLIENTS = {
    "system": _SYSTEM,
    "messages": [*_INLINE[:2]],
    "tools": tools(
        "messages", input_schema={"$schema": "https://json-schema.org/draft/2020-12/schema", **CITY}
    ),
    "metadata": {"user_id": '{"device_id":"d","account_uuid":"","session_id":"s"}'},
    "max_tokens": 32000,
    "thinking": {"type": "adaptive", "display": "updates"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "medium"},
    "stream": True,
}
_BETAS = (
    "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,effort-2025-11-24"
)


def _history(use: dict[str, Any], result: dict[str, Any], words: str) -> list[dict[str, Any]]:
    """Returns the messages of a conversation: the user's text, a call of the assistant, and its result."""
    call = {"type": "tool_use", "id": "toolu_01A09q90qw90lq917835lq9", **use}
    content = [{"type": "tool_result", "tool_use_id": call["id"], **result}]
    return [
        {"role": "user", "content": words},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": content},
    ]


_WEATHER_CALL = {"name": "get_weather", "input": {"city": "Paris"}}
_LOADED = _history(
    {"name": "ToolSearch", "input": {"city": "get_time"}},
    {
        "content": [
            {"type": "tool_reference", "tool_name": "get_time"},
            {"type": "text", "text": "Tool loaded."},
        ]
    },
    CALL_TIME,
)
_FAILED = _history(_WEATHER_CALL, {"content": "No such city.", "is_error": True}, ONE_CALL)
_MARKED = _history(_WEATHER_CALL, {"content": RESULT, "cache_control": CACHED}, THEN_REPEAT)
_PLAIN = {"max_tokens": 1024}
_THINKING = {"max_tokens": 4096, "thinking": {"type": "enabled", "budget_tokens": 1024}}
_THREAD = "messages.thread.first"
_MESSAGES = [
    Question(
        "messages.clients",
        sending(
            "messages", _MESSAGES_CLIENTS, query="beta=true", headers={**ANTHROPIC, "anthropic-beta": _BETAS}
        ),
    ),
    Question(
        "messages.bearer", lambda model, earlier: replace(ask("messages", model, GREET), x_api_key=False)
    ),
    Question(
        "messages.without-key", lambda model, earlier: replace(ask("messages", model, GREET), bare=True)
    ),
    Question("messages.system", sending("messages", {**_PLAIN, "system": _SYSTEM, "messages": _INLINE})),
    Question(
        "messages.cached",
        sending(
            "messages",
            {
                **_PLAIN,
                "system": _SYSTEM,
                "messages": _MARKED,
                "tools": tools("messages", cache_control={**CACHED, "ttl": "1h"}),
            },
        ),
        variants=({}, {}),
        done=repeats_result,
        wants="repeat what the tool's result said",
    ),
    Question(
        "messages.failed", sending("messages", {**_PLAIN, "messages": _FAILED, "tools": tools("messages")})
    ),
    Question(
        "messages.deferred",
        sending(
            "messages",
            {
                **_PLAIN,
                "messages": _LOADED,
                "tools": [_SEARCH, *tools("messages", defer_loading=True)],
                "tool_choice": named("messages", "get_time"),
            },
        ),
    ),
    Question(
        "messages.server-tool",
        asking(
            "messages", GREET, tools=[{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]
        ),
    ),
    *_both_forms(
        "messages.thinking",
        asking("messages", f"{THINK} {THEN_REPEAT}", tools=tools("messages"), **_THINKING),
        variants=({}, {"thinking": {"type": "adaptive"}}),
        done=thought_and_called,
        wants="think and call the tool",
    ),
    Question(
        "messages.thinking.second",
        with_results("messages", "messages.thinking.body", needs=thought_and_called),
        after=("messages.thinking.body",),
        variants=({}, {}),
        done=repeats_result,
        wants="repeat what the tool's result said",
    ),
    Question(
        _THREAD,
        asking("messages", THEN_REPEAT, tools=tools("messages"), thread={"type": "create"}),
        **_one_call("messages"),
    ),
    Question("messages.thread.next", in_thread(_THREAD), after=(_THREAD,)),
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
    Question(
        "http.count-tokens",
        sending("messages", {"messages": [{"role": "user", "content": GREET}]}, "/count_tokens"),
    ),
    Question("http.anthropics-models", _get("/models", headers=ANTHROPIC, x_api_key=True)),
    Question("http.without-key", lambda model, earlier: replace(ask("chat", model, GREET), bare=True)),
]

QUESTIONS: dict[str, Question] = {
    question.name: question
    for question in (
        *_HTTP,
        *_shared("chat"),
        *_CHAT,
        *_shared("responses"),
        *_RESPONSES,
        *_shared("messages"),
        *_MESSAGES,
    )
}

"""A server that refuses tools or constraints is served by another strategy, and that is remembered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toolwire.backends.openai import OpenAIBackend, OpenAIOptions
from toolwire.backends.openai.profiles import PROFILES
from toolwire.backends.openai.strategy import FORGET_S, REFUSALS, ToolSupport, refused
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Event, Failure, Finish, Text
from toolwire.core.turn import Constraint, Message, TextPart, ToolChoice, ToolSpec, Turn
from toolwire.testing.upstream import FakeUpstream, Recorded, Reply, Script, answer, completion

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CLOCK = ToolSpec("clock", "The time.", CITY)
TOOL = {"type": "function", "function": {"name": "clock", "description": "The time.", "parameters": CITY}}
KEY = "secret-key-0123456789"


def turn(stream: bool = True, choice: ToolChoice | None = None) -> Turn:
    return Turn(
        "chat",
        "m",
        (Message("user", (TextPart("hi"),)),),
        tools=(CLOCK,),
        tool_choice=choice or ToolChoice(),
        stream=stream,
    )


def held() -> Turn:
    return Turn(
        "chat", "m", (Message("user", (TextPart("hi"),)),), constraint=Constraint((CLOCK,), "", "", True)
    )


@asynccontextmanager
async def serving(*script: Script, **options: Any) -> AsyncIterator[tuple[OpenAIBackend, FakeUpstream]]:
    async with FakeUpstream(*script) as upstream:
        backend = OpenAIBackend("m", {"base_url": upstream.base_url, "api_key": KEY, **options})
        try:
            yield backend, upstream
        finally:
            await backend.close()


async def events(backend: OpenAIBackend, request: Turn) -> list[Event]:
    return [event async for batch in backend.run(request) for event in batch]


def way(model: OpenAIBackend | ToolSupport) -> str:
    return model.strategy


# --- wordings of refusals ---

NO_TOOLS = {
    "ollama": Reply.body(
        {
            "error": {
                "message": "registry.ollama.ai/library/gemma3:4b does not support tools",
                "type": "api_error",
                "param": None,
                "code": None,
            }
        },
        400,
    ),
    "openrouter": Reply.body(
        {
            "error": {
                "message": "No endpoints found that support tool use. To learn more about provider routing, "
                "visit: https://openrouter.ai/docs",
                "code": 404,
            }
        },
        404,
    ),
    "vllm": Reply.body(
        {
            "error": {
                "message": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser '
                "to be set",
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            }
        },
        400,
    ),
    "vllm, required": Reply.body(
        {"error": {"message": 'tool_choice="required" requires --tool-call-parser to be set', "code": 400}},
        400,
    ),
    "llamacpp": Reply.body(
        {"error": {"code": 500, "message": "tools param requires --jinja flag", "type": "server_error"}}, 500
    ),
    "litellm": Reply.body(
        {
            "error": {
                "message": "litellm.UnsupportedParamsError: perplexity does not support parameters: "
                "['tools', "
                "'tool_choice'], for model=sonar.",
                "type": "None",
                "code": "400",
            }
        },
        400,
    ),
    "openai": Reply.error(
        400,
        "tools is not supported in this model. For a list of supported models, refer to "
        "https://platform.openai.com/docs/guides",
    ),
    "deepinfra": Reply.error(
        405, "Tool calling is not supported for model: NousResearch/Hermes-3-Llama-3.1-70B"
    ),
    "google": Reply.body(
        [
            {
                "error": {
                    "code": 400,
                    "message": "Function calling is not enabled for models/gemma-3-27b-it",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
        400,
    ),
    "in a body of 200": Reply.body(
        {"error": {"message": "No endpoints found that support tool use.", "code": 404}}
    ),
    "in a stream of 200": Reply.stream(
        [{"error": {"message": "qwen:4b does not support tools", "code": 400}}]
    ),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("server", NO_TOOLS)
async def test_a_refusal_of_tools_is_the_only_event_and_the_strategy_changes(
    server: str, stream: bool
) -> None:
    async with serving(NO_TOOLS[server], Reply.stream(answer("Hello"))) as (backend, upstream):
        assert way(backend) == "native"
        (failure,) = await events(backend, turn(stream))
        assert isinstance(failure, Failure) and failure.kind == "tools_unsupported" and failure.message
        assert (
            way(backend) == "constrained"
            and not backend.capabilities.tools
            and backend.capabilities.constrain == {"call"}
        )
        assert "tools" in upstream.requests[0].body


@pytest.mark.parametrize("tools", ["native", "auto"])
async def test_with_native_tools_a_refusal_is_an_error_like_any_other(tools: str) -> None:
    async with serving(NO_TOOLS["ollama"], tools=tools) as (backend, _):
        (failure,) = await events(backend, turn())
        assert isinstance(failure, Failure) and failure.kind == (
            "invalid_request" if tools == "native" else "tools_unsupported"
        )
        assert way(backend) == ("native" if tools == "native" else "constrained")


@pytest.mark.parametrize(
    "reply",
    [
        Reply.error(400, "Invalid 'tools[0].function.name': string does not match pattern."),
        Reply.error(400, "messages: tool call ids must be unique"),
        Reply.error(500, "internal error in tool parser"),
        Reply.error(404, "The model `m` does not exist"),
        Reply.error(401, "does not support tools"),
        Reply.error(429, "does not support tools"),
        Reply.body("", 500),
    ],
)
async def test_any_other_error_stays_what_it_is(reply: Reply) -> None:
    async with serving(reply) as (backend, _):
        (failure,) = await events(backend, turn())
        assert (
            isinstance(failure, Failure) and failure.kind != "tools_unsupported" and way(backend) == "native"
        )


async def test_a_router_without_a_provider_is_quoted() -> None:
    async with serving(
        Reply.body({"error": {"message": "No allowed providers are available.", "code": 404}}, 404)
    ) as (backend, _):
        (failure,) = await events(backend, turn())
        assert (
            isinstance(failure, Failure)
            and failure.kind == "backend"
            and "No allowed providers" in failure.message
        )


async def test_a_turn_without_tools_is_refused_nothing() -> None:
    async with serving(NO_TOOLS["ollama"]) as (backend, _):
        (failure,) = await events(backend, Turn("chat", "m", (Message("user", (TextPart("hi"),)),)))
        assert isinstance(failure, Failure) and failure.kind == "invalid_request" and way(backend) == "native"


async def test_words_in_an_answer_that_went_well_refuse_nothing() -> None:
    async with serving(Reply.stream(answer("gemma3 does not support tools"))) as (backend, _):
        run = await events(backend, turn())
        assert isinstance(run[0], Text) and run[-1] == Finish("stop") and way(backend) == "native"


async def test_the_words_of_a_refusal_hold_no_secret() -> None:
    async with serving(Reply.error(400, f"key {KEY}: model x does not support tools")) as (backend, _):
        (failure,) = await events(backend, turn())
        assert (
            isinstance(failure, Failure)
            and failure.kind == "tools_unsupported"
            and KEY not in failure.message
        )


@pytest.mark.parametrize(
    "words",
    [
        "No endpoints found that support the provided 'tool_choice' value. To learn more about provider "
        "routing, visit: https://openrouter.ai/docs",
        "Invalid tool_choice type: 'object'. Supported string values: none, auto, required",
        "litellm.UnsupportedParamsError: x does not support parameters: ['tool_choice'], for model=y.",
    ],
)
async def test_a_refused_choice_leaves_the_tools_and_constrains_the_turns_that_need_it(words: str) -> None:
    async with serving(Reply.error(404, words)) as (backend, upstream):
        (failure,) = await events(backend, turn(choice=ToolChoice("required")))
        assert isinstance(failure, Failure) and failure.kind == "tools_unsupported"
        assert (
            way(backend) == "native"
            and not backend.capabilities.tool_choice
            and backend.capabilities.constrain
        )
        await events(backend, turn(choice=ToolChoice("required")))
        assert "tool_choice" in upstream.requests[0].body and "tool_choice" not in upstream.requests[1].body


@pytest.mark.parametrize("tools", ["auto", "constrained"])
@pytest.mark.parametrize(
    "words",
    [
        "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
        "This response_format type is unavailable now",
        "'response_format.type' must be 'json_schema' or 'text'",
        "litellm.UnsupportedParamsError: x does not support parameters: ['response_format'], for model=y.",
        "Failed to initialize samplers: failed to parse grammar",
        "Unrecognized request argument supplied: response_format",
    ],
)
async def test_a_refused_schema_leaves_nothing_but_words(words: str, tools: str) -> None:
    async with serving(Reply.error(400, words), tools=tools) as (backend, _):
        backend.support.refuse("tools")
        assert way(backend) == "constrained"
        (failure,) = await events(backend, held())
        assert isinstance(failure, Failure) and failure.kind == "tools_unsupported"
        assert way(backend) == "emulated" and not backend.capabilities.constrain


async def test_a_native_model_whose_schema_is_refused_keeps_its_tools() -> None:
    async with serving(Reply.error(400, "response_format is not supported"), profile="ollama") as (
        backend,
        _,
    ):
        assert backend.capabilities.constrain == {"call"}
        (failure,) = await events(backend, held())
        assert isinstance(failure, Failure) and failure.kind == "tools_unsupported"
        assert way(backend) == "native" and not backend.capabilities.constrain


def test_every_pattern_is_found_in_what_was_asked_for_and_nowhere_else() -> None:
    assert {what for what, _, _ in REFUSALS} == {"tools", "choice", "constraint"}
    words = "m does not support tools"
    assert (
        refused(words, frozenset({"tools"})) == "tools"
        and refused(words, frozenset({"constraint"})) is None
        and refused(words, frozenset()) is None
    )


# --- memory ---


def test_a_refusal_is_forgotten_after_an_hour() -> None:
    now = [0.0]
    ways = ToolSupport(OpenAIOptions(), "m", lambda: now[0])
    ways.refuse("tools")
    now[0] = FORGET_S / 2
    ways.refuse("constraint")
    assert way(ways) == "emulated" and not ways.capabilities.constrain
    now[0] = FORGET_S
    ways.refresh()
    assert way(ways) == "native" and not ways.capabilities.constrain
    now[0] = FORGET_S * 1.5
    ways.refresh()
    assert way(ways) == "native" and ways.capabilities.constrain == {"call"} and ways.capabilities.tools


def test_models_are_remembered_apart() -> None:
    one, other = OpenAIBackend("a", {"profile": "ollama"}), OpenAIBackend("b", {"profile": "ollama"})
    one.support.refuse("tools")
    assert (way(one), way(other)) == ("constrained", "native") and other.profile == PROFILES["ollama"]


# --- through the whole gateway ---


def refuses_tools(then: Reply, refusal: Reply) -> Script:
    def script(request: Recorded) -> Reply:
        return refusal if "tools" in request.body else then

    return script


CALL = completion(answer('{"name": "clock", "arguments": {"city": "Rome"}}'))


@pytest.mark.parametrize("server", ["ollama", "openrouter", "vllm", "llamacpp", "litellm"])
async def test_a_refusal_is_resolved_within_one_client_request(table: Any, server: str) -> None:
    async with serving(refuses_tools(Reply.body(CALL), NO_TOOLS[server])) as (backend, upstream):
        asked = {
            "messages": [{"role": "user", "content": "What time is it in Rome?"}],
            "tools": [TOOL],
            "tool_choice": "required",
        }
        said = await table.serve(backend).answer("chat", {**asked, "stream": False})
        choice = json.loads(said.body)["choices"][0]
        (call,) = choice["message"]["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
            "clock",
            {"city": "Rome"},
        )
        assert choice["finish_reason"] == "tool_calls"
        chats = [request.body for request in upstream.requests if request.path.endswith("/chat/completions")]
        assert ["tools" in body for body in chats] == [True, False] and "response_format" in chats[1]
        await table.answer("chat", {**asked, "stream": False})
        chats = [request.body for request in upstream.requests if request.path.endswith("/chat/completions")]
        assert len(chats) == 3 and "tools" not in chats[2], "the refusal is remembered"


async def test_a_server_that_refuses_both_is_taught_in_words(table: Any) -> None:
    def script(request: Recorded) -> Reply:
        if "tools" in request.body:
            return NO_TOOLS["openrouter"]
        if "response_format" in request.body:
            return Reply.error(400, "response_format is not supported by this model")
        taught = request.body["messages"][0]["content"]
        opening = next(word for word in taught.split() if word.startswith("<tool_call"))
        closing = opening.replace("<", "</")
        return Reply.body(
            completion(answer(f'{opening}\n{{"name": "clock", "arguments": {{"city": "Rome"}}}}\n{closing}'))
        )

    async with serving(script) as (backend, _):
        asked = {
            "messages": [{"role": "user", "content": "What time is it in Rome?"}],
            "tools": [TOOL],
            "tool_choice": "required",
        }
        body = await table.serve(backend).body("chat", asked)
        (call,) = body["choices"][0]["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"city": "Rome"} and way(backend) == "emulated"


async def test_ollama_is_held_to_a_schema_where_a_call_is_required(table: Any) -> None:
    called = '{"name": "clock", "arguments": {"city": "Rome"}}'
    reply = {"message": {"role": "assistant", "content": called}, "done": True, "done_reason": "stop"}
    async with serving(Reply.body(reply), profile="ollama") as (backend, upstream):
        upstream.pages["/api/show"] = {"capabilities": ["completion", "tools"]}
        asked = {"messages": [{"role": "user", "content": "What time is it in Rome?"}], "tools": [TOOL]}
        await table.serve(backend).body("chat", asked)
        await table.body("chat", {**asked, "tool_choice": "required"})
        native, forced = (request.body for request in upstream.requests if request.path == "/api/chat")
        assert "tools" in native and "tools" not in forced and isinstance(forced["format"], dict)


async def test_a_choice_that_is_refused_where_nothing_else_can_be_held_leaves_the_tools(table: Any) -> None:
    """The server accepts no schema, which is known, and no `required`, which is not.

    The tools are offered without it in the same request.
    """

    def script(request: Recorded) -> Reply:
        if request.body.get("tool_choice") == "required":
            return Reply.error(404, "No endpoints found that support the provided 'tool_choice' value.")
        return Reply.body(completion(answer("Hello") if silent else answer(calls=[("c1", "clock", "{}")])))

    for silent in (False, True):
        asked = {"messages": [{"role": "user", "content": "?"}], "tools": [TOOL], "tool_choice": "required"}
        async with serving(script) as (backend, upstream):
            backend.support.refuse("constraint")
            if silent:
                with pytest.raises(ToolwireError, match="did not call a tool, not even when asked again"):
                    await table.serve(backend).answer("chat", asked)
            else:
                said = await table.serve(backend).answer("chat", asked)
                assert (
                    dict(said.headers)[b"x-toolwire-report"] == b"tool_choice=emulated"
                    and b'"clock"' in said.body
                )
            chats = [
                request.body for request in upstream.requests if request.path.endswith("/chat/completions")
            ]
            sent = [("tools" in body, body.get("tool_choice")) for body in chats]
            assert sent == [(True, "required"), (True, None), *[(True, None)] * silent]


# --- a structured answer together with tools ---


@pytest.mark.parametrize(
    ("tools", "choice"), [("emulated", "auto"), ("emulated", "required"), ("constrained", "auto")]
)
async def test_an_answer_whose_calls_are_text_is_not_held_to_a_format_that_has_no_place_for_them(
    table: Any, tools: str, choice: str
) -> None:
    def script(request: Recorded) -> Reply:
        assert "response_format" not in request.body
        taught = request.body["messages"][0]["content"]
        assert ("fits this JSON schema" in taught) == (choice == "auto")
        opening = next(word for word in taught.split() if word.startswith("<tool_call"))
        return Reply.body(
            completion(
                answer(
                    f'{opening}\n{{"name": "clock", "arguments": {{"city": "Rome"}}}}\n'
                    f"{opening.replace('<', '</')}"
                )
            )
        )

    async with serving(script, tools=tools) as (backend, _):
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": CITY}}
        asked = {
            "messages": [{"role": "user", "content": "?"}],
            "tools": [TOOL],
            "tool_choice": choice,
            "response_format": form,
        }
        said = await table.serve(backend).answer("chat", asked)
        assert ("response_format=emulated" in dict(said.headers)[b"x-toolwire-report"].decode()) == (
            choice == "auto"
        )
        assert json.loads(said.body)["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_sequence_ends_text_and_never_a_call(table: Any, stream: bool) -> None:
    def script(request: Recorded) -> Reply:
        assert "stop" not in request.body
        taught = request.body["messages"][0]["content"]
        opening = next(word for word in taught.split() if word.startswith("<tool_call"))
        call = (
            f'{opening}\n{{"name": "clock", "arguments": {{"city": "Rome"}}}}\n{opening.replace("<", "</")}'
        )
        said = answer(f"Here.\n{call}" if "look" in str(request.body["messages"]) else "One. Two: } Three.")
        return Reply.stream(said) if stream else Reply.body(completion(said))

    async with serving(script, tools="emulated") as (backend, _):
        table.serve(backend)
        ask = table.stream if stream else table.body
        asked = {"tools": [TOOL], "stop": ["}", "Rome"]}
        text = str(await ask("chat", {**asked, "messages": [{"role": "user", "content": "count"}]}))
        assert "One" in text and "Two" in text and "Three" not in text and "tool_calls" not in text
        text = str(await ask("chat", {**asked, "messages": [{"role": "user", "content": "look"}]}))
        assert "Rome" in text and "tool_calls" in text

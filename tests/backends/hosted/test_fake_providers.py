"""The fake providers against the providers' own SDKs: what the SDKs read and the fakes refuse."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from doubles.anthropic import DEFAULT_KEY as CLAUDE_KEY
from doubles.anthropic import Answer as Message
from doubles.anthropic import FakeAnthropic, Redacted, Said, Thinking, Use
from doubles.anthropic import error as claude_error
from doubles.google import DEFAULT_KEY as GEMINI_KEY
from doubles.google import SIGNATURE, Answer, Call, FakeGoogle, Thought
from doubles.google import Said as Text
from doubles.google import error as gemini_error

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

ARGUMENTS = '{"q": "Rüst 👋", "n": 1.50, "deep": [{"a": null}]}'
TOOL = {"name": "search", "input_schema": {"type": "object"}}
USER = {"role": "user", "content": "hi"}
WHOLE = Message(
    Thinking("Hm, let me see."),
    Redacted(),
    Said("Let me look. 👋"),
    Use("toolu_1", "search", ARGUMENTS),
    Use("toolu_2", "search"),
    usage={
        "input_tokens": 9,
        "cache_read_input_tokens": 4,
        "output_tokens": 70,
        "output_tokens_details": {"thinking_tokens": 30},
    },
)


def claude(server: FakeAnthropic, **fields: Any) -> Any:
    import anthropic

    return anthropic.AsyncAnthropic(
        api_key=fields.pop("key", CLAUDE_KEY), base_url=server.base_url, max_retries=0, **fields
    )


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "claude-haiku-4-5", "max_tokens": 4000, "messages": [USER], "tools": [TOOL], **fields}


# --- Anthropic ---


async def test_anthropics_sdk_accumulates_the_fakes_stream_to_the_fakes_body() -> None:
    async with FakeAnthropic(WHOLE) as server, claude(server) as client:
        async with client.messages.stream(**asked()) as stream:
            events = [event async for event in stream]
            streamed = await stream.get_final_message()
        whole = await client.messages.create(**asked())
    assert [block.type for block in streamed.content] == [
        "thinking",
        "redacted_thinking",
        "text",
        "tool_use",
        "tool_use",
    ]
    assert streamed.content[3].input == {"q": "Rüst 👋", "n": 1.5, "deep": [{"a": None}]}
    assert streamed.content[0].signature == Thinking("").signature
    assert streamed.stop_reason == "tool_use"
    read = [
        message.model_dump(exclude_none=True, exclude={"content": {"__all__": {"parsed_output", "caller"}}})
        for message in (streamed, whole)
    ]
    assert read[0] == read[1]
    assert streamed.usage.cache_read_input_tokens == 4 and streamed.usage.output_tokens == 70
    assert {event.type for event in events} >= {
        "message_start",
        "content_block_delta",
        "input_json",
        "thinking",
        "signature",
        "message_stop",
    }


async def test_the_pieces_of_a_calls_arguments_are_verbatim() -> None:
    async with FakeAnthropic(WHOLE) as server, claude(server) as client:
        stream = await client.messages.create(**asked(), stream=True)
        pieces = [
            event.delta.partial_json
            async for event in stream
            if event.type == "content_block_delta" and event.delta.type == "input_json_delta"
        ]
    assert "".join(pieces) == ARGUMENTS + "{}" and len(pieces) > 10


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "AuthenticationError"),
        (429, "RateLimitError"),
        (529, "OverloadedError"),
        (400, "BadRequestError"),
    ],
)
async def test_anthropics_sdk_knows_the_fakes_errors(status: int, kind: str) -> None:
    import anthropic

    async with (
        FakeAnthropic(claude_error(status, "no", headers={"retry-after": "7"})) as server,
        claude(server) as client,
    ):
        with pytest.raises(anthropic.APIStatusError) as caught:
            await client.messages.create(**asked())
    assert kind in {one.__name__ for one in type(caught.value).__mro__} and caught.value.status_code == status
    assert (
        caught.value.response.json()["error"]["message"] == "no"
        and caught.value.response.headers["retry-after"] == "7"
    )


async def test_anthropics_sdk_raises_an_error_event_in_the_stream() -> None:
    import anthropic

    broken = Message(Said("Let me"), error=("overloaded_error", "Overloaded"))
    async with FakeAnthropic(broken) as server, claude(server) as client:
        with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
            async with client.messages.stream(**asked()) as stream:
                async for _ in stream:
                    pass


USE = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {}}
USES = {"role": "assistant", "content": [USE]}
INVALID_ID = {"role": "assistant", "content": [{**USE, "id": "a.b"}]}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"}]}
THINKS = {"type": "enabled", "budget_tokens": 2000}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "at least one message"),
    ({"messages": [{"role": "assistant", "content": "hi"}]}, "first message"),
    ({"messages": [{"role": "system", "content": "hi"}]}, "Unexpected role"),
    ({"messages": [{"role": "user", "content": " "}]}, "non-whitespace"),
    ({"messages": [{"role": "user", "content": []}]}, "non-empty content"),
    ({"messages": [USER, USES]}, "without `tool_result`"),
    ({"messages": [USER, USES, USER]}, "without `tool_result`"),
    ({"messages": [USER, RESULT]}, "unexpected `tool_use_id`"),
    ({"messages": [USER, USES, RESULT], "tools": []}, "must define tools"),
    ({"messages": [USER, INVALID_ID, RESULT]}, "unexpected|match pattern"),
    ({"messages": [USER, USES, RESULT, USES, RESULT]}, "ids must be unique"),
    ({"tools": [TOOL, TOOL]}, "names must be unique"),
    ({"tools": [{"name": "a b", "input_schema": {"type": "object"}}]}, "match pattern"),
    ({"tools": [{"name": "a", "input_schema": {}}]}, "input_schema.type"),
    ({"tool_choice": {"type": "tool", "name": "nope"}}, "not found in provided tools"),
    ({"extra_body": {"seed": 1}}, "seed: Extra inputs"),
    ({"extra_body": {"temperature": 1.5}}, "range: 0..1"),
    ({"extra_body": {"temperature": 0.5, "top_p": 0.5}}, "cannot both be specified"),
    ({"thinking": {"type": "enabled", "budget_tokens": 500}}, "greater than or equal to 1024"),
    ({"thinking": {"type": "enabled", "budget_tokens": 4000}}, "`max_tokens` must be greater"),
    ({"thinking": THINKS, "extra_body": {"temperature": 0.5}}, "may only be set to 1"),
    (
        {"thinking": THINKS, "tool_choice": {"type": "any"}},
        "Thinking may not be enabled when tool_choice forces",
    ),
    ({"thinking": THINKS, "messages": [USER, USES, RESULT]}, "Expected `thinking`"),
    (
        {
            "thinking": THINKS,
            "messages": [
                USER,
                {
                    **USES,
                    "content": [{"type": "thinking", "thinking": "x", "signature": "y"}, *USES["content"]],
                },
                RESULT,
            ],
        },
        "Invalid `signature`",
    ),
    (
        {
            "messages": [
                USER,
                {
                    **USES,
                    "content": [{"type": "thinking", "thinking": "x", "signature": "y"}, *USES["content"]],
                },
                RESULT,
            ]
        },
        "When thinking is disabled",
    ),
]


@pytest.mark.parametrize(("fields", "words"), REFUSED, ids=[words for _, words in REFUSED])
async def test_what_anthropic_refuses_the_fake_refuses(fields: dict[str, Any], words: str) -> None:
    import anthropic

    async with FakeAnthropic(Message(Said("Hi"))) as server, claude(server) as client:
        with pytest.raises(anthropic.BadRequestError, match=words):
            await client.messages.create(**asked(**fields))
        assert len(server.refused) == 1
        assert (await client.messages.create(**asked())).content[0].text == "Hi"


async def test_a_signed_thought_may_come_back_as_it_was() -> None:
    async with (
        FakeAnthropic(Message(Thinking("Hm."), Use("toolu_1", "search")), Message(Said("Done"))) as server,
        claude(server) as client,
    ):
        first = await client.messages.create(**asked(thinking=THINKS))
        again = {
            "role": "assistant",
            "content": [block.model_dump(exclude_none=True) for block in first.content],
        }
        second = await client.messages.create(**asked(thinking=THINKS, messages=[USER, again, RESULT]))
    assert second.content[0].text == "Done" and not server.refused


async def test_a_wrong_key_and_an_unknown_model_are_refused() -> None:
    import anthropic

    async with FakeAnthropic(Message(Said("Hi")), models=("claude-x",)) as server:
        async with claude(server) as client:
            with pytest.raises(anthropic.NotFoundError, match="model: claude-haiku-4-5"):
                await client.messages.create(**asked())
            assert [model.id async for model in client.models.list()] == ["claude-x"]
        async with claude(server, key="wrong") as client:
            with pytest.raises(anthropic.AuthenticationError):
                await client.messages.create(**asked())


# --- Google ---

CALLS = Answer(
    Thought("Let me see."),
    Text("Let me look. 👋"),
    Call("search", {"q": "Rüst 👋", "n": 1.5}, signature=SIGNATURE),
    Call("read", {}, id="call-2"),
    usage={"thoughtsTokenCount": 30, "cachedContentTokenCount": 4, "totalTokenCount": 70},
)


def gemini(server: FakeGoogle, key: str = GEMINI_KEY) -> Any:
    from google import genai
    from google.genai import types

    return genai.Client(api_key=key, http_options=types.HttpOptions(base_url=server.base_url))


def declared(*names: str) -> list[Any]:
    return [
        {
            "function_declarations": [
                {"name": name, "parameters_json_schema": {"type": "object"}} for name in names
            ]
        }
    ]


@pytest.mark.parametrize("together", [False, True])
async def test_googles_sdk_reads_the_fakes_stream_and_body_alike(together: bool) -> None:
    answer = Answer(*CALLS.parts, usage=CALLS.usage, together=together)
    async with FakeGoogle(answer) as server:
        client = gemini(server)
        config = {"tools": declared("search", "read"), "thinking_config": {"include_thoughts": True}}
        chunks = [
            chunk
            async for chunk in await client.aio.models.generate_content_stream(
                model="gemini-2.5-flash", contents="hi", config=config
            )
        ]
        whole = await client.aio.models.generate_content(
            model="gemini-2.5-flash", contents="hi", config=config
        )
        await client.aio.aclose()
    parts = [part for chunk in chunks for part in (chunk.candidates[0].content.parts or ())]
    assert "".join(part.text for part in parts if part.thought) == "Let me see."
    assert (
        "".join(part.text for part in parts if part.text and not part.thought)
        == "Let me look. 👋"
        == whole.text
    )
    calls = [part.function_call for part in parts if part.function_call]
    assert [(call.name, call.args, call.id) for call in calls] == [
        ("search", {"q": "Rüst 👋", "n": 1.5}, None),
        ("read", {}, "call-2"),
    ]
    assert [part.thought_signature for part in parts if part.function_call] == [
        base64.b64decode(SIGNATURE),
        None,
    ]
    assert (
        chunks[-1].candidates[0].finish_reason.value == "STOP"
        and chunks[-1].usage_metadata.thoughts_token_count == 30
    )
    assert whole.usage_metadata.cached_content_token_count == 4 and [
        call.name for call in whole.function_calls
    ] == ["search", "read"]


async def test_googles_sdk_reads_a_blocked_prompt_and_a_cut_by_length() -> None:
    async with FakeGoogle(Answer(blocked="SAFETY"), Answer(Text("Trunca"), finish="MAX_TOKENS")) as server:
        client = gemini(server)
        blocked = await client.aio.models.generate_content(model="gemini-2.5-flash", contents="hi")
        cut = await client.aio.models.generate_content(model="gemini-2.5-flash", contents="hi")
        await client.aio.aclose()
    assert blocked.prompt_feedback.block_reason.value == "SAFETY" and not blocked.candidates
    assert cut.candidates[0].finish_reason.value == "MAX_TOKENS"


@pytest.mark.parametrize(
    ("status", "name"), [(429, "RESOURCE_EXHAUSTED"), (503, "UNAVAILABLE"), (404, "NOT_FOUND")]
)
async def test_googles_sdk_knows_the_fakes_errors(status: int, name: str) -> None:
    from google.genai import errors

    async with FakeGoogle(gemini_error(status, "no")) as server:
        client = gemini(server)
        with pytest.raises(errors.APIError) as caught:
            await client.aio.models.generate_content(
                model="gemini-2.5-flash",
                contents="hi",
                config={"http_options": {"retry_options": {"attempts": 1}}},
            )
        await client.aio.aclose()
    assert (caught.value.code, caught.value.status, caught.value.message) == (status, name, "no")


ASKS = {"role": "user", "parts": [{"text": "hi"}]}
CALL_PART = {"function_call": {"name": "search", "args": {}}}
CALLED = {"role": "model", "parts": [CALL_PART]}
FORGED = {"role": "model", "parts": [{**CALL_PART, "thought_signature": b"forged"}]}
ANSWERED = {
    "role": "user",
    "parts": [{"function_response": {"name": "search", "response": {"result": "ok"}}}],
}
GEMINI_REFUSED: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("gemini-2.5-flash", [ASKS, CALLED], {}, "ends with a user role"),
    ("gemini-2.5-flash", [ASKS, CALLED, ASKS], {}, "number of function response parts"),
    ("gemini-2.5-flash", [ASKS, ANSWERED], {}, "immediately after a function call turn"),
    ("gemini-2.5-flash", [CALLED, ANSWERED], {}, "immediately after a user turn"),
    ("gemini-2.5-flash", [{"role": "user", "parts": []}], {}, "must not be empty"),
    ("gemini-2.5-flash", [ASKS], {"tools": declared("a b")}, "Invalid function name"),
    (
        "gemini-2.5-flash",
        [ASKS],
        {"tools": declared("a"), "response_mime_type": "application/json"},
        "response mime type",
    ),
    (
        "gemini-2.5-flash",
        [ASKS],
        {
            "tools": declared("a"),
            "tool_config": {"function_calling_config": {"mode": "AUTO", "allowed_function_names": ["a"]}},
        },
        "mode",
    ),
    ("gemini-2.5-flash", [ASKS], {"thinking_config": {"thinking_level": "LOW"}}, "not supported"),
    ("gemini-2.5-pro", [ASKS], {"thinking_config": {"thinking_budget": 0}}, "Budget 0 is invalid"),
    ("gemini-3-pro-preview", [ASKS, CALLED, ANSWERED], {}, "missing a thought_signature"),
    ("gemini-3-pro-preview", [ASKS, FORGED, ANSWERED], {}, "Corrupted"),
]


@pytest.mark.parametrize(
    ("model", "contents", "config", "words"), GEMINI_REFUSED, ids=[words for *_, words in GEMINI_REFUSED]
)
async def test_what_google_refuses_the_fake_refuses(
    model: str, contents: list[Any], config: dict[str, Any], words: str
) -> None:
    from google.genai import errors

    async with FakeGoogle(Answer(Text("Hi"))) as server:
        client = gemini(server)
        with pytest.raises(errors.ClientError, match=words):
            await client.aio.models.generate_content(model=model, contents=contents, config=config)
        assert (await client.aio.models.generate_content(model=model, contents="hi")).text == "Hi"
        await client.aio.aclose()


async def test_a_wrong_google_key_is_refused_and_models_are_listed() -> None:
    from google.genai import errors

    async with FakeGoogle(Answer(Text("Hi"))) as server:
        client = gemini(server, "wrong")
        with pytest.raises(errors.ClientError, match="API key not valid"):
            await client.aio.models.generate_content(model="gemini-2.5-flash", contents="hi")
        assert "models/gemini-2.5-flash" in [model.name async for model in await client.aio.models.list()]
        await client.aio.aclose()

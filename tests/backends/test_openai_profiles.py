"""The profile of each kind of server: detection, requests, model lists and repaired quirks.

The streams are as those servers send them.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from toolwire.backends.openai import OpenAIBackend, OpenAIOptions
from toolwire.backends.openai.backend import ASK_AGAIN_S
from toolwire.backends.openai.discover import (
    ListedModel,
    ProbeAnswer,
    ServerProbe,
    facts_of,
    identify,
    list_models,
)
from toolwire.backends.openai.profiles import PROFILES, by_address, by_models, is_near
from toolwire.backends.openai.read import AnswerReader
from toolwire.backends.openai.render import render
from toolwire.backends.openai.strategy import Facts
from toolwire.core.events import CallArgs, CallBegin, CallEnd, Event, Failure, Finish, Text, Usage
from toolwire.core.turn import (
    Constraint,
    Message,
    OutputFormat,
    Result,
    Sampling,
    TextPart,
    ToolChoice,
    ToolSpec,
    Turn,
)
from toolwire.testing.upstream import FakeUpstream, Reply, answer

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
WEATHER, CLOCK = ToolSpec("get_weather", "The weather.", CITY), ToolSpec("clock", "The time.", CITY)
LOCAL = ("ollama", "lmstudio", "vllm", "sglang", "llamacpp", "litellm")


def turn(**fields: Any) -> Turn:
    items = fields.pop("items", (Message("user", (TextPart("hi"),)),))
    return Turn(
        "chat",
        "m",
        items,
        tools=fields.pop("tools", (WEATHER, CLOCK)),
        tool_choice=fields.pop("tool_choice", ToolChoice()),
        **fields,
    )


def body(profile: str, **fields: Any) -> dict[str, Any]:
    return render(turn(**fields), "m", OpenAIOptions(profile=profile))


def way(model: OpenAIBackend) -> str:
    return model.strategy


# --- the table ---


def test_every_server_has_its_row_and_its_page() -> None:
    assert set(PROFILES) == {"openai", "openrouter", "generic", *LOCAL}
    page = (Path(__file__).parents[2] / "docs" / "servers.md").read_text()
    for profile in PROFILES.values():
        assert f'profile = "{profile.name}"' in page, profile.name
        assert all(deviation in page for deviation in profile.deviations), profile.name


@pytest.mark.parametrize("name", PROFILES)
def test_a_named_profile_brings_its_address(name: str) -> None:
    options = OpenAIOptions.parse({"profile": name})
    assert options.base_url == PROFILES[name].base_url and options.server is PROFILES[name]
    assert (
        OpenAIOptions.parse({"profile": name, "base_url": "http://10.0.0.7/v1"}).base_url
        == "http://10.0.0.7/v1"
    )


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("http://localhost:11434/v1", "ollama"),
        ("http://192.168.1.20:11434/v1", "ollama"),
        ("http://127.0.0.1:1234/v1", "lmstudio"),
        ("http://127.0.0.1:8000/v1", None),
        ("http://127.0.0.1:8080/v1", None),
        ("https://evilopenrouter.ai/v1", None),
        ("https://api.groq.com/openai/v1", None),
    ],
)
def test_an_address_identifies_the_server_only_if_it_is_certain(address: str, name: str | None) -> None:
    found = by_address(address)
    assert (found.name if found else None) == name


def test_owners_and_headers_identify_the_server() -> None:
    found = [
        by_models([owner], server)
        for owner, server in (
            ("vllm", ""),
            ("sglang", "uvicorn"),
            ("llamacpp", ""),
            ("x", "llama.cpp"),
            ("x", "nginx"),
        )
    ]
    assert [profile.name if profile else None for profile in found] == [
        "vllm",
        "sglang",
        "llamacpp",
        "llamacpp",
        None,
    ]


def test_only_local_servers_are_probed() -> None:
    near = (
        "http://localhost/v1",
        "http://127.0.0.1:1/v1",
        "http://10.1.2.3/v1",
        "http://[::1]:9/v1",
        "http://gpu-box:8000/v1",
        "http://nas.local/v1",
    )
    assert all(map(is_near, near))
    assert not any(map(is_near, ("https://api.groq.com/openai/v1", "http://8.8.8.8/v1")))


def models(owner: str, **more: Any) -> dict[str, Any]:
    return {
        "object": "list",
        "data": [{"id": "m", "object": "model", "created": 1, "owned_by": owner, **more}],
    }


@pytest.mark.parametrize(
    ("pages", "name"),
    [
        ({"/v1/models": models("vllm", max_model_len=4096)}, "vllm"),
        ({"/v1/models": models("sglang")}, "sglang"),
        ({"/v1/models": models("llamacpp")}, "llamacpp"),
        ({"/": "Ollama is running"}, "ollama"),
        (
            {
                "/api/v0/models": {
                    "object": "list",
                    "data": [{"id": "q", "type": "llm", "compatibility_type": "gguf"}],
                }
            },
            "lmstudio",
        ),
        ({"/v1/models": None, "/health/liveliness": json.dumps("I'm alive!")}, "litellm"),
        ({}, "generic"),
        ({"/v1/models": "<html>"}, "generic"),
        ({"/v1/models": {"data": [1, {"owned_by": 5}]}}, "generic"),
    ],
)
async def test_a_server_is_identified_by_a_probe(pages: dict[str, Any], name: str) -> None:
    async with FakeUpstream(Reply(), pages=pages) as upstream, aiohttp.ClientSession() as session:
        found = await identify(ServerProbe(upstream.base_url, session))
        assert found is PROFILES[name]
        assert all(request.method == "GET" for request in upstream.requests)


async def test_a_missing_server_stays_unknown_and_a_remote_one_is_not_probed() -> None:
    async with aiohttp.ClientSession() as session:
        assert await identify(ServerProbe("http://127.0.0.1:1/v1", session)) is None
        assert await identify(ServerProbe("https://api.example.com/v1", session)) is PROFILES["generic"]


async def test_a_model_is_asked_about_once_and_the_answer_decides_its_way() -> None:
    props = {"chat_template_caps": {"supports_tools": False}}
    built = {"generation_settings": {"grammar": '%llguidance {}\nstart: %json {"type":"null"}'}}
    async with FakeUpstream(
        Reply(), pages={"/v1/models": models("llamacpp"), "/props": props, "/completion": built}
    ) as upstream:
        backend = OpenAIBackend("m", {"base_url": upstream.base_url})
        assert way(backend) == "native"
        await backend.prepare()
        assert way(backend) == "constrained" and backend.capabilities.constrain == {"text", "call"}
        asked = len(upstream.requests)
        await backend.prepare()
        assert len(upstream.requests) == asked
        await backend.close()


@pytest.mark.parametrize("tools", ["emulated", "native", "auto", "constrained"])
async def test_a_model_is_not_asked_about_where_its_tools_are_settled(tools: str) -> None:
    async with FakeUpstream(
        Reply(), pages={"/v1/models": models("llamacpp"), "/props": {}, "/completion": {}}
    ) as upstream:
        backend = OpenAIBackend("m", {"base_url": upstream.base_url, "tools": tools})
        await backend.prepare()
        assert backend.profile.name == "llamacpp"
        assert any(request.path == "/props" for request in upstream.requests) == (
            tools in ("auto", "constrained")
        )
        await backend.close()


async def test_a_grammar_is_sent_to_llama_cpp_only_if_it_is_surely_supported() -> None:
    """A server built without llguidance aborts on one."""
    gbnf = {"generation_settings": {"grammar": 'root ::= "null" space'}}
    for page in (gbnf, {}, None, "oops"):
        async with (
            FakeUpstream(Reply(), pages={"/props": {}, "/completion": page}) as upstream,
            aiohttp.ClientSession() as session,
        ):
            assert await facts_of(
                ServerProbe(upstream.base_url, session), PROFILES["llamacpp"], "m"
            ) == Facts(None, False)
    backend = OpenAIBackend("m", {"profile": "llamacpp", "tools": "constrained"})
    assert backend.capabilities.constrain == {"call"} and backend.profile.grammar == "none"
    assert OpenAIBackend("m", {"profile": "llamacpp", "grammar": "lark"}).capabilities.constrain == {
        "text",
        "call",
    }


@pytest.mark.parametrize("profile", ["llamacpp", "ollama"])
async def test_a_server_that_was_not_there_is_asked_again_soon(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = OpenAIBackend("m", {"base_url": "http://127.0.0.1:1/v1", "profile": profile})
    await backend.prepare()
    assert way(backend) == "native"
    pages = {
        "/props": {"chat_template_caps": {"supports_tools": False}},
        "/completion": {},
        "/api/show": {"capabilities": ["completion"]},
    }
    async with FakeUpstream(Reply(), pages=pages) as upstream:
        backend.options = replace(backend.options, base_url=upstream.base_url)
        await backend.prepare()
        assert way(backend) == "native", "but not before every turn"
        later = time.monotonic() + ASK_AGAIN_S + 1
        monkeypatch.setattr(time, "monotonic", lambda: later)
        await backend.prepare()
        assert way(backend) == "constrained"
        await backend.close()


async def test_a_llama_cpp_that_still_loads_is_asked_again() -> None:
    async with (
        FakeUpstream(Reply(), pages={"/props": None, "/completion": {}}) as upstream,
        aiohttp.ClientSession() as session,
    ):
        assert await facts_of(ServerProbe(upstream.base_url, session), PROFILES["llamacpp"], "m") is None


class Busy(ServerProbe):
    """Lists its loaded models, and is too busy for anything else."""

    async def ask(self, url: str, body: Any = None) -> ProbeAnswer | None:
        return ProbeAnswer("{}", "llama.cpp") if body is None else None


async def test_a_server_that_is_too_busy_to_be_tried_is_asked_again() -> None:
    async with aiohttp.ClientSession() as session:
        assert await facts_of(Busy("http://127.0.0.1:1/v1", session), PROFILES["llamacpp"], "m") is None


async def test_ollama_reports_whether_a_model_has_tools() -> None:
    for capabilities, tools in ((["completion"], False), (["completion", "tools"], True), (None, None)):
        page = {"capabilities": capabilities} if capabilities else {}
        async with (
            FakeUpstream(Reply(), pages={"/api/show": page}) as upstream,
            aiohttp.ClientSession() as session,
        ):
            assert await facts_of(
                ServerProbe(upstream.base_url, session), PROFILES["ollama"], "gemma3:4b"
            ) == Facts(tools, own_api=tools is not None, thinks=None if tools is None else False)
            assert upstream.requests[0].body == {"model": "gemma3:4b"}


# --- capabilities ---


@pytest.mark.parametrize(
    ("name", "tool_choice", "strict", "constrain", "image_urls"),
    [
        ("openai", True, True, {"call"}, True),
        ("openrouter", True, True, {"call"}, True),
        ("ollama", False, False, {"call"}, False),
        ("lmstudio", False, False, {"call"}, True),
        ("vllm", True, True, {"text", "call"}, True),
        ("sglang", True, False, {"text", "call"}, True),
        ("llamacpp", False, False, {"call"}, True),
        ("litellm", True, False, {"call"}, True),
        ("generic", True, True, {"call"}, True),
    ],
)
def test_capabilities_are_the_profiles(
    name: str, tool_choice: bool, strict: bool, constrain: set[str], image_urls: bool
) -> None:
    native = OpenAIBackend("m", {"profile": name}).capabilities
    assert (native.tools, native.tool_choice, native.strict, native.image_urls) == (
        True,
        tool_choice,
        strict,
        image_urls,
    )
    assert native.constrain == constrain and not native.prefill
    constrained = OpenAIBackend("m", {"profile": name, "tools": "constrained"}).capabilities
    assert constrained.constrain == constrain and not constrained.tools and "tools" not in constrained.fields
    for tools in ("native", "emulated"):
        assert not OpenAIBackend("m", {"profile": name, "tools": tools}).capabilities.constrain
    assert OpenAIBackend("m", {"profile": name, "tools": "native"}).capabilities.tool_choice == (
        name != "ollama"
    )


def test_fields_that_a_server_does_not_read_are_not_said_to_be_honoured() -> None:
    assert "logit_bias" not in OpenAIBackend("m", {"profile": "ollama"}).capabilities.fields
    assert "logit_bias" in OpenAIBackend("m", {"profile": "vllm"}).capabilities.fields


# --- the request ---

NAMED = ToolChoice("required", "clock")


@pytest.mark.parametrize("name", PROFILES)
def test_a_named_choice_is_said_in_words_that_the_server_knows(name: str) -> None:
    sent = body(name, tool_choice=NAMED)
    tools = [tool["function"]["name"] for tool in sent["tools"]]
    if name in ("lmstudio", "llamacpp"):
        assert (sent["tool_choice"], tools) == ("required", ["clock"])
    elif name == "ollama":
        assert "tool_choice" not in sent and tools == ["clock"]
    else:
        assert sent["tool_choice"] == {"type": "function", "function": {"name": "clock"}} and tools == [
            "get_weather",
            "clock",
        ]


def test_a_server_that_does_not_read_the_choice_gets_no_tools_for_none() -> None:
    assert "tools" not in body("ollama", tool_choice=ToolChoice("none"))
    assert body("vllm", tool_choice=ToolChoice("none"))["tool_choice"] == "none"


def test_the_name_of_the_token_limit_is_the_servers() -> None:
    limit = Sampling(max_tokens=7)
    assert {
        name: next(key for key in body(name, sampling=limit) if key.startswith("max_")) for name in PROFILES
    } == {**dict.fromkeys(PROFILES, "max_tokens"), "openai": "max_completion_tokens"}


def test_lm_studio_gets_a_schema_for_any_json_object() -> None:
    assert body("lmstudio", output=OutputFormat("json_object"))["response_format"]["type"] == "json_schema"
    assert body("ollama", output=OutputFormat("json_object"))["response_format"] == {"type": "json_object"}


def test_ollama_gets_one_text_where_it_would_make_several_messages() -> None:
    items = (Result("call_1", (TextPart("a"), TextPart("b"))),)
    assert body("ollama", items=items)["messages"] == [
        {"role": "tool", "tool_call_id": "call_1", "content": "a\n\nb"}
    ]
    assert len(body("vllm", items=items)["messages"][0]["content"]) == 2


# --- constraints ---

BARE = Constraint((WEATHER, CLOCK), "", "", True)
FREE = Constraint((WEATHER, CLOCK), "<tool_call:x1>\n", "\n</tool_call:x1>", False, 3)


def constrained(constraint: Constraint, **options: Any) -> dict[str, Any]:
    backend = OpenAIBackend("m", options)
    return render(
        turn(tools=(), constraint=constraint, output=OutputFormat("json_object")),
        "m",
        backend.options,
        backend.profile,
    )


@pytest.mark.parametrize("name", PROFILES)
def test_a_bare_call_is_a_schema_for_the_whole_answer(name: str) -> None:
    sent = constrained(BARE, profile=name)
    asked = sent["response_format"]["json_schema"]
    assert (
        sent["response_format"]["type"] == "json_schema" and asked["strict"] == PROFILES[name].strict_schema
    )
    assert "get_weather" in json.dumps(asked["schema"]) and "clock" in json.dumps(asked["schema"])
    assert not {"tools", "tool_choice", "grammar"} & set(sent)


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("json_schema", ("json_schema",)),
        ("structured_outputs", ("structured_outputs", "json")),
        ("guided_json", ("guided_json",)),
    ],
)
def test_the_field_of_the_schema_can_be_set(field: str, path: tuple[str, ...]) -> None:
    sent: Any = constrained(BARE, profile="generic", schema_field=field)
    assert "response_format" not in sent
    for key in path:
        sent = sent[key]
    assert "clock" in json.dumps(sent)


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_text_with_calls_is_held_by_structural_tags(name: str) -> None:
    form = constrained(FREE, profile=name)["response_format"]
    assert form["type"] == "structural_tag" and form["format"]["type"] == "triggered_tags"
    assert (
        form["format"]["triggers"] == ["<tool_call:x1>\n"]
        and not form["format"]["stop_after_first"]
        and not form["format"]["at_least_one"]
    )
    first = form["format"]["tags"][0]
    assert (first["begin"], first["end"]) == (
        '<tool_call:x1>\n{"name": "get_weather", "arguments": ',
        "}\n</tool_call:x1>",
    )
    assert first["content"]["json_schema"]["required"] == ["city"]


def test_calls_alone_are_tags_with_nothing_between_them() -> None:
    form = constrained(Constraint((CLOCK,), "<c>", "</c>", True, 1), profile="vllm")["response_format"][
        "format"
    ]
    assert form["type"] == "tags_with_separator" and form["at_least_one"] and form["stop_after_first"]


def test_llama_cpp_gets_a_lark_grammar() -> None:
    sent = constrained(FREE, profile="llamacpp", grammar="lark")
    assert sent["grammar"].startswith("%llguidance") and "response_format" not in sent


# --- listing ---

LISTS: dict[str, tuple[dict[str, Any], list[ListedModel]]] = {
    "openai": (
        {
            "/v1/models": {
                "object": "list",
                "data": [
                    {"id": "gpt-5"},
                    {"id": "text-embedding-3-small"},
                    {"id": "whisper-1"},
                    {"id": 5},
                    "x",
                ],
            }
        },
        [ListedModel("gpt-5")],
    ),
    "openrouter": (
        {
            "/v1/models": {
                "data": [
                    {
                        "id": "a/tools",
                        "context_length": 131072,
                        "supported_parameters": ["tools", "tool_choice"],
                    },
                    {"id": "a/plain", "context_length": 8192, "supported_parameters": ["temperature"]},
                    {
                        "id": "a/image",
                        "architecture": {"output_modalities": ["image"]},
                        "supported_parameters": [],
                    },
                ]
            }
        },
        [ListedModel("a/tools", True, 131072), ListedModel("a/plain", False, 8192)],
    ),
    "ollama": (
        {
            "/api/tags": {
                "models": [
                    {
                        "name": "qwen3:8b",
                        "model": "qwen3:8b",
                        "details": {"context_length": 40960},
                        "capabilities": ["completion", "tools"],
                    },
                    {
                        "name": "gemma3:4b",
                        "model": "gemma3:4b",
                        "details": {"family": "gemma3"},
                        "capabilities": ["completion", "vision"],
                    },
                    {"name": "bge-m3:latest", "model": "bge-m3:latest", "capabilities": ["embedding"]},
                ]
            }
        },
        [ListedModel("qwen3:8b", True, 40960), ListedModel("gemma3:4b", False)],
    ),
    "lmstudio": (
        {
            "/api/v0/models": {
                "object": "list",
                "data": [
                    {
                        "id": "qwen2.5-7b",
                        "type": "llm",
                        "capabilities": ["tool_use"],
                        "max_context_length": 32768,
                        "loaded_context_length": 4096,
                    },
                    {"id": "qwen2-vl", "object": "model", "type": "vlm", "max_context_length": 32768},
                    {
                        "id": "text-embedding-nomic-embed-text-v1.5",
                        "type": "embeddings",
                        "max_context_length": 2048,
                    },
                ],
            }
        },
        [ListedModel("qwen2.5-7b", True, 4096), ListedModel("qwen2-vl", None, 32768)],
    ),
    "vllm": ({"/v1/models": models("vllm", max_model_len=4096)}, [ListedModel("m", None, 4096)]),
    "sglang": ({"/v1/models": models("sglang", max_model_len=8192)}, [ListedModel("m", None, 8192)]),
    "llamacpp": (
        {
            "/v1/models": models("llamacpp", meta={"n_ctx": 2048, "n_ctx_train": 8192}),
            "/props": {"chat_template_caps": {"supports_tools": True}},
        },
        [ListedModel("m", True, 2048)],
    ),
    "litellm": (
        {
            "/v1/model/info": {
                "data": [
                    {
                        "model_name": "gpt",
                        "model_info": {
                            "mode": "chat",
                            "supports_function_calling": True,
                            "max_input_tokens": 100,
                        },
                    },
                    {
                        "model_name": "gpt",
                        "model_info": {
                            "mode": "chat",
                            "supports_function_calling": True,
                            "max_input_tokens": 100,
                        },
                    },
                    {"model_name": "embed", "model_info": {"mode": "embedding"}},
                ]
            }
        },
        [ListedModel("gpt", True, 100)],
    ),
    "generic": ({"/v1/models": models("me")}, [ListedModel("m")]),
}


@pytest.mark.parametrize("name", PROFILES)
async def test_models_are_listed_and_embeddings_left_out(name: str) -> None:
    pages, expected = LISTS[name]
    async with FakeUpstream(Reply(), pages=pages) as upstream, aiohttp.ClientSession() as session:
        probe = ServerProbe(upstream.base_url, session, OpenAIOptions(api_key="key").auth_headers)
        assert await list_models(probe, PROFILES[name]) == expected
        assert upstream.requests[0].headers["Authorization"] == "Bearer key"


async def test_an_older_ollama_is_asked_about_each_model() -> None:
    tags = {"models": [{"name": "llama3.2:latest"}, {"name": "nomic-embed-text:latest"}]}
    shown = {
        "capabilities": ["completion", "tools"],
        "model_info": {"general.architecture": "llama", "llama.context_length": 131072},
    }
    async with (
        FakeUpstream(Reply(), pages={"/api/tags": tags, "/api/show": shown}) as upstream,
        aiohttp.ClientSession() as session,
    ):
        assert await list_models(ServerProbe(upstream.base_url, session), PROFILES["ollama"]) == [
            ListedModel("llama3.2:latest", True, 131072)
        ]


@pytest.mark.parametrize("name", PROFILES)
async def test_a_missing_vendor_list_is_replaced_by_the_common_one(name: str) -> None:
    missing = dict.fromkeys(("/api/tags", "/api/v0/models", "/v1/model/info", "/props", "/api/show"))
    async with FakeUpstream(Reply(), pages=missing) as upstream, aiohttp.ClientSession() as session:
        assert [
            model.id for model in await list_models(ServerProbe(upstream.base_url, session), PROFILES[name])
        ] == ["fake"]


async def test_a_server_that_is_not_there_has_no_models() -> None:
    async with aiohttp.ClientSession() as session:
        assert await list_models(ServerProbe("http://127.0.0.1:1/v1", session), PROFILES["ollama"]) == []


# --- quirks, as the servers send them ---


def wire(*frames: str) -> bytes:
    return "".join(
        frame + "\n\n" if frame.startswith(":") else f"data: {frame}\n\n" for frame in frames
    ).encode()


def read(*frames: str) -> list[Event]:
    reader = AnswerReader(turn())
    events = reader.feed(wire(*frames, "[DONE]"))
    return events if reader.ended else events + reader.finish()


def calls(run: list[Event]) -> list[tuple[str | None, str, str]]:
    out: list[tuple[str | None, str, str]] = []
    for event in run:
        if isinstance(event, CallBegin):
            out.append((event.id, event.name, ""))
        elif isinstance(event, CallArgs):
            out[-1] = (*out[-1][:2], out[-1][2] + event.delta)
        elif isinstance(event, CallEnd):
            assert event.status == "ok", event
    return out


OLLAMA = (
    '{"id":"chatcmpl-9","object":"chat.completion.chunk","created":1,"model":"q",'
    '"system_fingerprint":"fp_ollama",'
    '"choices":[{"index":0,"delta":%s,"finish_reason":%s}]}'
)


@pytest.mark.parametrize("index", ['"index":0,', ""])
@pytest.mark.parametrize("finish", ["tool_calls", "stop"])
def test_ollama_counts_every_call_as_the_first(index: str, finish: str) -> None:
    one = (
        '{"role":"assistant","content":"","tool_calls":[{"id":"call_a",%s"type":"function",'
        '"function":{"name":"clock",'
        '"arguments":"{\\"city\\":\\"Rome\\"}"}}]}'
    )
    two = (
        '{"content":"","tool_calls":[{"id":"call_b",%s"type":"function","function":{"name":"clock",'
        '"arguments":"{\\"city\\":\\"Oslo\\"}"}}]}'
    )
    run = read(OLLAMA % (one % index, "null"), OLLAMA % (two % index, "null"), OLLAMA % ("{}", f'"{finish}"'))
    assert calls(run) == [("call_a", "clock", '{"city":"Rome"}'), ("call_b", "clock", '{"city":"Oslo"}')]


LM_STUDIO = (
    '{"id":"chatcmpl-8c","object":"chat.completion.chunk","created":1,"model":"q","system_fingerprint":"q",'
    '"choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}]}'
)


def test_lm_studio_repeats_an_empty_name() -> None:
    piece = '{"tool_calls":[{"index":0,"type":"function","function":{"name":"","arguments":"%s"}}]}'
    run = read(
        LM_STUDIO
        % (
            '{"tool_calls":[{"index":0,"id":"365174485","type":"function","function":{"name":"clock",'
            '"arguments":""}}]}',
            "null",
        ),
        *(LM_STUDIO % (piece % text, "null") for text in ('{\\"', "city", '\\":', '\\"Rome\\"}')),
        LM_STUDIO % ("{}", '"tool_calls"'),
    )
    assert calls(run) == [("365174485", "clock", '{"city":"Rome"}')] and run[-1] == Finish("tool_calls")


def test_lm_studio_ends_an_answer_with_calls_that_are_none() -> None:
    nothing = '{"tool_calls":[{"index":0,"id":"","type":"function","function":{}}]}'
    run = read(
        LM_STUDIO % ('{"role":"assistant","content":"Done."}', "null"),
        LM_STUDIO % (nothing, "null"),
        LM_STUDIO % ("{}", '"tool_calls"'),
    )
    assert calls(run) == [] and Text("Done.") in run and run[-1] == Finish("stop")


def test_lm_studio_gives_no_id() -> None:
    run = read(
        LM_STUDIO
        % (
            '{"tool_calls":[{"index":0,"id":"","type":"function","function":{"name":"clock",'
            '"arguments":"{}"}}]}',
            "null",
        ),
        LM_STUDIO % ("{}", '"tool_calls"'),
    )
    assert calls(run) == [(None, "clock", "{}")]


def test_vllm_ends_a_named_call_with_stop() -> None:
    chunk = (
        '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"q","choices":[{"index":0,'
        '"delta":%s,'
        '"logprobs":null,"finish_reason":%s}]}'
    )
    run = read(
        chunk % ('{"role":"assistant","content":""}', "null"),
        chunk
        % (
            '{"tool_calls":[{"id":"chatcmpl-tool-7","type":"function","index":0,"function":{"name":"clock",'
            '"arguments":"{\\"city\\": "}}]}',
            "null",
        ),
        chunk % ('{"tool_calls":[{"index":0,"function":{"arguments":"\\"Rome\\"}"}}]}', "null"),
        chunk % ('{"content":""}', '"stop"'),
        '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"q","choices":[],'
        '"usage":{"prompt_tokens":5,"total_tokens":9,"completion_tokens":4}}',
    )
    assert (
        calls(run) == [("chatcmpl-tool-7", "clock", '{"city": "Rome"}')]
        and Usage(5, 4) in run
        and isinstance(run[-1], Finish)
    )


def test_sglang_sends_name_and_arguments_apart_with_nulls() -> None:
    chunk = (
        '{"id":"6b","object":"chat.completion.chunk","created":1,"model":"q","choices":[{"index":0,'
        '"delta":%s,'
        '"logprobs":null,"finish_reason":%s,"matched_stop":%s}],"usage":null}'
    )
    named = (
        '{"role":null,"content":null,"reasoning_content":null,"tool_calls":[{"id":"call_1","index":0,'
        '"type":"function","function":{"name":"clock","arguments":""}}]}'
    )
    piece = (
        '{"role":null,"content":null,"reasoning_content":null,"tool_calls":[{"id":null,"index":0,'
        '"type":"function",'
        '"function":{"name":null,"arguments":"%s"}}]}'
    )
    run = read(
        chunk % ('{"role":"assistant","content":""}', "null", "null"),
        chunk % (named, "null", "null"),
        *(chunk % (piece % text, "null", "null") for text in ('{\\"city\\": \\"', 'Rome\\"}')),
        chunk % ('{"role":null,"content":null,"tool_calls":null}', '"tool_calls"', "151645"),
    )
    assert calls(run) == [("call_1", "clock", '{"city": "Rome"}')] and run[-1] == Finish("tool_calls")


def test_litellm_passes_objects_on_as_arguments() -> None:
    chunk = (
        '{"id":"chatcmpl-2","created":1,"model":"q","object":"chat.completion.chunk","choices":[{"index":0,'
        '"delta":%s,"finish_reason":%s}]}'
    )
    call = (
        '{"role":"assistant","content":"","tool_calls":[{"id":"%s","function":{"arguments":{"city":"%s"},'
        '"name":"clock"},"type":"function","index":0}]}'
    )
    run = read(
        chunk % (call % ("u1", "Rome"), "null"),
        chunk % (call % ("u2", "Oslo"), "null"),
        chunk % ("{}", '"stop"'),
    )
    assert calls(run) == [("u1", "clock", '{"city":"Rome"}'), ("u2", "clock", '{"city":"Oslo"}')]


def test_openrouter_sends_comments_while_waiting_and_fails_mid_stream() -> None:
    chunk = (
        '{"id":"gen-1","object":"chat.completion.chunk","created":1,"model":"q","provider":"P",'
        '"choices":[{"index":0,'
        '"delta":{"role":"assistant","content":"Hm"},"finish_reason":null,"native_finish_reason":null}]}'
    )
    error = (
        '{"id":"gen-1","object":"chat.completion.chunk","created":1,"model":"q","provider":"P",'
        '"error":{"code":502,'
        '"message":"Provider '
        'disconnected"},"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}'
    )
    run = read(": OPENROUTER PROCESSING", ": OPENROUTER PROCESSING", chunk, error)
    assert (
        run[0] == Text("Hm") and isinstance(run[-1], Failure) and "Provider disconnected" in run[-1].message
    )


def test_llama_cpp_opens_a_call_with_its_first_piece() -> None:
    chunk = (
        '{"choices":[{"finish_reason":%s,"index":0,"delta":%s}],"created":1,"id":"chatcmpl-O","model":"q",'
        '"system_fingerprint":"b0","object":"chat.completion.chunk"}'
    )
    run = read(
        chunk % ("null", '{"role":"assistant","content":null}'),
        chunk
        % (
            "null",
            '{"tool_calls":[{"index":0,"id":"pi0PndcV","type":"function","function":{"name":"clock",'
            '"arguments":"{"}}]}',
        ),
        *(
            chunk
            % ("null", f'{{"tool_calls":[{{"index":0,"function":{{"arguments":{json.dumps(text)}}}}}]}}')
            for text in ('"city":', ' "Rome"', "}")
        ),
        chunk % ('"tool_calls"', "{}"),
    )
    assert calls(run) == [("pi0PndcV", "clock", '{"city": "Rome"}')] and run[-1] == Finish("tool_calls")


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ('<call>{"name": "clock"', ' "clock"'),
        (' "clock"', ' "clock"'),
        ('<call>{"name":', ""),
        ("<call>{", "<call>{"),
        ("<b> 5", "<b> 5"),
    ],
)
async def test_a_beginning_that_was_given_is_not_said_twice(said: str, kept: str, size: int) -> None:
    """Whether llama.cpp repeats it depends on its version."""
    begun = (Message("user", (TextPart("hi"),)), Message("assistant", (TextPart('<call>{"name":'),)))
    async with FakeUpstream(Reply.stream(answer(said, size=size))) as upstream:
        backend = OpenAIBackend(
            "m", {"base_url": upstream.base_url, "profile": "llamacpp", "tools": "emulated"}
        )
        assert backend.capabilities.prefill
        run = [
            event async for batch in backend.run(turn(items=begun, tools=(), stream=True)) for event in batch
        ]
        assert "".join(event.text for event in run if isinstance(event, Text)) == kept and run[-1] == Finish(
            "stop"
        )
        await backend.close()


def test_a_well_behaved_answer_is_read_the_same_way() -> None:
    frames = [json.dumps(chunk) for chunk in answer("Hi", [("call_1", "clock", '{"city":"Rome"}')])]
    assert calls(read(*frames)) == [("call_1", "clock", '{"city":"Rome"}')]

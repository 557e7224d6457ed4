"""The whole gateway with a scripted agent that does everything an ACP agent might do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolwire.backends.acp import AcpBackend
from toolwire.core.turn import Api
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.types import Settings

Agent = Callable[..., AcpBackend]
Talks = Callable[..., Any]
EVERYWHERE = [(api, stream) for api in ("chat", "responses") for stream in (False, True)]
OSLO: dict[str, Any] = {"call": "get_weather", "arguments": {"city": "Oslo"}}
ROME: dict[str, Any] = {"call": "get_weather", "arguments": {"city": "Rome"}}
TIME: dict[str, Any] = {"call": "get_time", "arguments": {}}
LOOP = [{"think": "hm"}, {"say": "Let me look."}, OSLO, {"say": "It is {result}."}]


# --- the loop ---


@pytest.mark.parametrize(("api", "stream"), EVERYWHERE)
async def test_a_tool_loop_is_one_run_over_two_requests(
    agent: Agent, talk: Talks, log: Any, api: Api, stream: bool
) -> None:
    client = talk(agent(LOOP), api, stream)
    first = await client.say("Weather?")
    assert (first.kind, first.text, first.calls) == (
        "new",
        "Let me look.",
        [("get_weather", {"city": "Oslo"})],
    )
    second = await client.answer("sunny")
    assert (second.kind, second.text, second.calls) == ("resumed", "It is sunny.", [])
    assert log.prompts() == ["Weather?"]
    tools = next(entry["tools"] for entry in log.entries() if "tools" in entry)
    assert (tools[0]["name"], tools[0]["description"]) == ("get_weather", "does get_weather")


async def test_a_follow_up_continues_in_the_same_session(agent: Agent, talk: Talks, log: Any) -> None:
    client = talk(agent(LOOP, [{"say": "Again: {prompt}"}]))
    await client.say("Weather?")
    await client.answer("sunny")
    assert (await client.say("And tomorrow?")).text == "Again: And tomorrow?"
    assert len(log.sent("session/new")) == 1 and log.prompts() == ["Weather?", "And tomorrow?"]


async def test_an_edited_history_is_sent_whole_to_a_fresh_agent(agent: Agent, talk: Talks, log: Any) -> None:
    client = talk(agent(LOOP))
    await client.say("Weather?")
    await client.answer("sunny")
    client.items[0]["content"] = "Weather, please?"
    await client.say("And tomorrow?")
    assert len(log.sent("session/new")) == 2
    prompt = log.prompts()[-1]
    for words in ("Weather, please?", "get_weather", '"Oslo"', "sunny", "It is sunny.", "And tomorrow?"):
        assert words in prompt


async def test_other_tools_mean_another_session(agent: Agent, talk: Talks, log: Any) -> None:
    client = talk(agent([{"say": "ok"}]))
    await client.say("Hello.")
    client.tools = client.tools[:1]
    await client.say("Go on.")
    assert len(log.sent("session/new")) == 2


async def test_without_tools_there_is_no_server(agent: Agent, talk: Talks, log: Any) -> None:
    assert (await talk(agent(), tools=()).say("Hello.")).text == "You said: Hello."
    assert log.sent("session/new")[0]["mcpServers"] == []


async def test_a_result_without_its_parked_run_is_sent_to_a_fresh_agent(
    agent: Agent, talk: Talks, table: Any, log: Any
) -> None:
    client = talk(agent(LOOP))
    await client.say("Weather?")
    table.gateway.parking.drop_all()
    table.gateway.parking.closed = False
    second = await client.answer("sunny")
    assert second.kind == "replayed" and "sunny" in log.prompts()[-1]


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


async def test_a_fresh_agent_gets_the_images_of_the_whole_conversation(
    agent: Agent, talk: Talks, table: Any, log: Any
) -> None:
    backend = agent([{"call": "get_weather", "arguments": {}}, {"say": "A cat."}])
    client = talk(backend)
    await client.say([{"type": "text", "text": "What is it?"}, PICTURE])
    table.serve(backend)  # a gateway that does not have the parked run
    assert (await client.answer("x")).kind == "replayed"
    assert [[part["type"] for part in sent["prompt"]] for sent in log.sent("session/prompt")] == [
        ["image", "text"]
    ] * 2


async def test_an_agent_without_images_gets_placeholders_for_old_ones_and_refuses_new_ones(
    agent: Agent, talk: Talks, log: Any
) -> None:
    backend = agent(
        [{"say": "Fine."}], script={"initialize": {"agentCapabilities": {"mcpCapabilities": {"http": True}}}}
    )
    client = talk(backend)
    client.items = [{"role": "user", "content": [PICTURE]}, {"role": "assistant", "content": "A cat."}]
    assert (await client.say("And?")).text == "Fine." and "[image]" in log.prompts()[0]
    assert (await talk(backend).failure([PICTURE])).kind == "unsupported_value"


async def test_read_then_write_in_one_run(agent: Agent, talk: Talks) -> None:
    steps = [
        {"call": "read", "arguments": {"filePath": "README.md"}},
        {"call": "write", "arguments": {"content": "{result}!"}},
        {"say": "{result}"},
    ]
    client = talk(agent(steps))
    assert (await client.say("Add a mark.")).calls == [("read", {"filePath": "README.md"})]
    assert (await client.answer("# Title")).calls == [("write", {"content": "# Title!"})]
    assert (await client.answer("written")).text == "written"


SEED_TOOL = {
    "type": "function",
    "function": {
        "name": "read",
        "description": "Read file",
        "parameters": {
            "type": "object",
            "properties": {"filePath": {"type": "string"}},
            "required": ["filePath"],
        },
    },
}
SEED_HISTORY = [
    {"role": "user", "content": "Read README.md"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_0",
                "type": "function",
                "function": {"name": "read", "arguments": '{"filePath":"README.md"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_0", "content": "# README\n..."},
]


async def test_the_quick_tests_of_older_proxies_work_by_curl(agent: Agent, on_a_socket: Any) -> None:
    """A streamed request with a tool, then follow-ups with the client's own ids, with and without `tools`."""
    call = {"call": "read", "arguments": {"filePath": "README.md"}}
    backend = agent(
        [{"when": "# README", "then": [{"say": "It is a readme."}], "else": [call, {"say": "{result}"}]}]
    )
    settings = Settings()

    async def curl(root: str, **body: Any) -> str:
        words = (
            "curl",
            "-s",
            f"{root}/v1/chat/completions",
            "-H",
            "Content-Type: application/json",
            "-d",
            json.dumps({"model": "gpt-4o", **body}),
        )
        child = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        return (await child.communicate())[0].decode()

    async with on_a_socket(Gateway(settings, backends={"gpt-4o": backend}), settings) as root:
        first = await curl(root, messages=SEED_HISTORY[:1], tools=[SEED_TOOL], stream=True)
        assert '"name":"read"' in first and '"finish_reason":"tool_calls"' in first and "README.md" in first
        for tools in ({}, {"tools": [SEED_TOOL]}):
            answer = await curl(root, messages=SEED_HISTORY, stream=True, **tools)
            assert (
                "It is a readme." in answer
                and '"finish_reason":"stop"' in answer
                and "data: [DONE]" in answer
            )


# --- several calls ---


@pytest.mark.parametrize("stream", [False, True])
async def test_parallel_calls_go_out_together_in_model_order(agent: Agent, talk: Talks, stream: bool) -> None:
    """Calls reach the MCP server in another order than the agent announced them."""
    client = talk(
        agent([{"parallel": [OSLO, TIME, ROME], "order": [2, 0, 1]}, {"say": "{result}"}]), "chat", stream
    )
    first = await client.say("Weather?")
    assert first.calls == [
        ("get_weather", {"city": "Oslo"}),
        ("get_time", {}),
        ("get_weather", {"city": "Rome"}),
    ]
    second = await client.answer("cold", "noon", "warm")
    assert (second.kind, second.text) == ("resumed", "cold | noon | warm")


async def test_parallel_calls_of_an_agent_that_announces_nothing_go_out_as_they_come(
    agent: Agent, talk: Talks
) -> None:
    quiet = [{**one, "announce": False} for one in (OSLO, ROME)]
    client = talk(agent([{"parallel": quiet}, {"say": "{result}"}], profile="other"))
    assert (await client.say("Weather?")).calls == [
        ("get_weather", {"city": "Oslo"}),
        ("get_weather", {"city": "Rome"}),
    ]
    assert (await client.answer("cold", "warm")).text == "cold | warm"


async def test_a_repeated_call_ends_the_run_with_an_explaining_error(agent: Agent, talk: Talks) -> None:
    client = talk(agent([OSLO, OSLO, OSLO, OSLO], repeats=2))
    await client.say("Weather?")
    await client.answer("sunny")
    client.items.append({"role": "tool", "tool_call_id": client.last.ids[0], "content": "sunny"})
    with pytest.raises(Exception, match="same arguments 3 times"):
        await client._send()


# --- tools of the agent ---


def _permission(title: str, kind: str | None = "other", options: Any = None) -> dict[str, Any]:
    given = [
        {"optionId": name, "kind": name, "name": name}
        for name in ("allow_always", "allow_once", "reject_once", "reject_always")
    ]
    call = {"toolCallId": "p1", "title": title, **({"kind": kind} if kind else {})}
    return {
        "ask": "session/request_permission",
        "params": {
            "sessionId": "{session}",
            "toolCall": call,
            "options": given if options is None else options,
        },
    }


@pytest.mark.parametrize(
    ("step", "outcome"),
    [
        (_permission("client_get_weather"), {"outcome": "selected", "optionId": "allow_once"}),
        (_permission("client_get_weather", None), {"outcome": "selected", "optionId": "allow_once"}),
        (_permission("bash"), {"outcome": "selected", "optionId": "reject_once"}),
        (_permission("client_get_weather", "execute"), {"outcome": "selected", "optionId": "reject_once"}),
        (_permission("client_get_weather; rm -rf /"), {"outcome": "selected", "optionId": "reject_once"}),
        (
            _permission("rm -rf /", "execute", [{"optionId": "x", "kind": "allow_once", "name": "x"}]),
            {"outcome": "cancelled"},
        ),
        (_permission("rm -rf /", "execute", "nonsense"), {"outcome": "cancelled"}),
    ],
)
async def test_only_the_clients_own_tools_are_permitted(
    agent: Agent, talk: Talks, log: Any, step: Any, outcome: Any
) -> None:
    await talk(agent([step, {"say": "done"}])).say("Go.")
    assert [answer["result"]["outcome"] for answer in log.answers()] == [outcome]


@pytest.mark.parametrize(
    ("title", "option"),
    [
        ("get_weather", "allow_once"),
        ("bash", "reject_once"),
        ("Read", "reject_once"),
        ("client_bash", "allow_once"),
    ],
)
async def test_a_clients_tool_is_no_permission_for_an_agents_own_of_the_same_name(
    agent: Agent, talk: Talks, log: Any, title: str, option: str
) -> None:
    await talk(
        agent([_permission(title, None), {"say": "done"}], profile="other"),
        tools=("get_weather", "bash", "Read"),
    ).say("Go.")
    assert log.answers()[0]["result"]["outcome"]["optionId"] == option


async def test_a_title_that_a_model_shaped_does_not_open_a_door(agent: Agent, talk: Talks, log: Any) -> None:
    """The call was announced as something else, and then permission is requested under a client's name."""
    announced = {"sessionUpdate": "tool_call", "toolCallId": "p1", "title": "rm -rf /", "kind": "execute"}
    await talk(agent([{"update": announced}, _permission("client_get_weather", None), {"say": "done"}])).say(
        "Go."
    )
    assert log.answers()[0]["result"]["outcome"]["optionId"] == "reject_once"


ASKS: list[tuple[dict[str, Any], str, dict[str, Any], str, Any]] = [
    (
        {"ask": "fs/read_text_file", "params": {"path": "/a", "line": 2}},
        "read",
        {"filePath": "/a", "offset": 2},
        "words",
        {"content": "words"},
    ),
    (
        {"ask": "fs/write_text_file", "params": {"path": "/a", "content": "x"}},
        "write",
        {"filePath": "/a", "content": "x"},
        "ok",
        {},
    ),
]


@pytest.mark.parametrize(("step", "tool", "arguments", "result", "back"), ASKS)
async def test_an_agents_editor_request_becomes_a_call_of_the_clients_tool(
    agent: Agent, talk: Talks, log: Any, step: Any, tool: str, arguments: Any, result: str, back: Any
) -> None:
    client = talk(agent([step, {"say": "done"}]))
    assert (await client.say("Go.")).calls == [(tool, arguments)]
    assert (await client.answer(result)).text == "done"
    assert log.answers()[0]["result"] == back
    assert log.sent("initialize")[0]["clientCapabilities"] == {
        "fs": {"readTextFile": True, "writeTextFile": True},
        "terminal": True,
    }


@pytest.mark.parametrize(
    "step",
    [
        *(case[0] for case in ASKS),
        {"ask": "terminal/create", "params": {"command": "touch", "args": ["canary"]}},
        {"ask": "terminal/output", "params": {"terminalId": "t"}},
        {"ask": "cursor/ask_question", "params": {}},
        {"ask": "elicitation/create", "params": {"message": "?", "mode": "form"}},
        {"ask": "no/such_method", "params": None},
    ],
)
async def test_a_request_without_a_matching_client_tool_gets_an_error_at_once(
    agent: Agent, talk: Talks, log: Any, step: Any
) -> None:
    client = talk(agent([step, {"say": "done"}]), tools=("get_weather",))
    assert (await client.say("Go.")).text == "done"
    error = log.answers()[0]["error"]
    assert error["code"] in (-32601, -32603) and (
        "not available" in error["message"] or "no such terminal" in error["message"]
    )
    assert log.sent("initialize")[0]["clientCapabilities"] == {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
    }


@pytest.mark.parametrize(
    "params", [{"command": "ls", "args": 5}, {"command": "ls", "env": ["x"]}, {"args": ["x"]}]
)
async def test_a_request_that_makes_no_sense_gets_an_error_and_no_noise_in_the_log(
    agent: Agent, talk: Talks, log: Any, params: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = talk(agent([{"ask": "terminal/create", "params": params}, {"say": "done"}]))
    assert (await client.say("Go.")).text == "done"
    assert log.answers()[0]["error"]["code"] == -32603 and "Traceback" not in caplog.text


async def test_a_write_that_failed_at_the_client_is_an_error_for_the_agent(
    agent: Agent, talk: Talks, log: Any
) -> None:
    client = talk(agent([ASKS[1][0], {"say": "done"}]))
    await client.say("Go.")
    await client.answer('{"error": "the disk is full"}')
    assert log.answers()[0]["error"]["message"] == "the disk is full"


async def test_a_terminal_is_a_call_of_the_clients_shell(agent: Agent, talk: Talks, log: Any) -> None:
    terminal = {"sessionId": "{session}", "terminalId": "terminal-1"}
    steps = [
        {
            "ask": "terminal/create",
            "params": {"command": "make", "args": ["a b"], "cwd": "/w", "outputByteLimit": 5},
        },
        {"ask": "terminal/output", "params": terminal},
        {"ask": "terminal/wait_for_exit", "params": terminal},
        {"ask": "terminal/output", "params": terminal},
        {"ask": "terminal/release", "params": terminal},
        {"ask": "terminal/output", "params": terminal},
        {"say": "done"},
    ]
    client = talk(agent(steps))
    assert (await client.say("Go.")).calls == [("bash", {"command": "make 'a b'", "cwd": "/w"})]
    assert (
        await client.answer(json.dumps({"stdout": "built it", "stderr": "", "exitCode": 2}))
    ).text == "done"
    created, before, exit_, after, released, gone = log.answers()
    assert created["result"] == {"terminalId": "terminal-1"} and before["result"] == {
        "output": "",
        "truncated": False,
    }
    assert exit_["result"] == {"exitCode": 2, "signal": None}
    assert after["result"] == {
        "output": "lt it",
        "truncated": True,
        "exitStatus": {"exitCode": 2, "signal": None},
    }
    assert released["result"] == {} and "no such terminal" in gone["error"]["message"]


async def test_a_killed_terminal_is_no_call_any_more(agent: Agent, talk: Talks, log: Any) -> None:
    terminal = {"terminalId": "terminal-1"}
    steps = [
        {"ask": "terminal/create", "params": {"command": "sleep 9"}},
        {"ask": "terminal/kill", "params": terminal},
        {"ask": "terminal/wait_for_exit", "params": terminal},
        {"say": "done"},
    ]
    reply = await talk(agent(steps)).say("Go.")
    assert (reply.text, reply.calls) == ("done", []) and log.answers()[2]["result"] == {
        "exitCode": None,
        "signal": "SIGKILL",
    }


async def test_a_tool_that_the_client_did_not_declare_is_unknown_to_the_server(
    agent: Agent, talk: Talks
) -> None:
    client = talk(agent([{"call": "rm", "arguments": {}}, {"say": "{result}"}]))
    assert (await client.say("Go.")).text == "MCP error: Unknown tool: rm"


# --- endings ---


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("max_turn_requests", "length"),
        ("refusal", "content_filter"),
        ("new", "stop"),
    ],
)
async def test_stop_reasons_and_usage_are_passed_on(
    agent: Agent, talk: Talks, reason: str, finish: str
) -> None:
    usage = {
        "inputTokens": 10,
        "outputTokens": 4,
        "cachedReadTokens": 5,
        "thoughtTokens": 2,
        "totalTokens": 21,
    }
    body = (await talk(agent([{"say": "half"}, {"stop": reason, "usage": usage}])).say("Go.")).body
    assert body["choices"][0]["finish_reason"] == finish
    assert (
        body["usage"]["prompt_tokens"],
        body["usage"]["completion_tokens"],
        body["usage"]["total_tokens"],
    ) == (15, 6, 21)
    assert (
        body["usage"]["prompt_tokens_details"]["cached_tokens"] == 5
        and body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": -32000, "message": "Authentication required"}, "backend_auth"),
        (
            {"code": -32603, "message": "Internal error", "data": {"details": "rate limit exceeded"}},
            "rate_limit",
        ),
        ({"code": -32603, "message": "The prompt is too long: context window exceeded"}, "context_length"),
        (
            {
                "code": -32603,
                "message": "ProviderModelNotFoundError",
                "data": {"message": "model x not found"},
            },
            "model_not_found",
        ),
        ({"code": -32603, "message": "something else at https://secret.example/x?key=1"}, "backend"),
    ],
)
async def test_an_error_of_the_agent_is_a_clear_error(
    agent: Agent, talk: Talks, error: Any, kind: str
) -> None:
    failure = await talk(agent([{"error": error}])).failure("Go.")
    assert failure.kind == kind and "OpenCode" in failure.message and "secret.example" not in failure.message


async def test_an_agent_that_wants_a_login_is_given_the_key_that_is_there(
    agent: Agent, talk: Talks, log: Any
) -> None:
    hello = {
        "authMethods": [
            {"id": "person"},
            {"id": "by-key", "type": "env_var", "vars": [{"name": "AGENT_KEY"}]},
        ]
    }
    script = {"needs": "by-key", "initialize": hello}
    failure = await talk(agent(script=script)).failure("Go.")
    assert failure.kind == "backend_auth" and "opencode auth login" in failure.message
    assert (
        await talk(agent(script=script, env={"AGENT_KEY": "sk-12345678"})).say("Go.")
    ).text == "You said: Go."
    assert log.sent("authenticate") == [{"methodId": "by-key"}]


async def test_an_agent_without_mcp_over_http_cannot_have_tools(agent: Agent, talk: Talks) -> None:
    deaf: dict[str, Any] = {"initialize": {"agentCapabilities": {}}}
    failure = await talk(agent(script=deaf)).failure("Go.")
    assert failure.kind == "backend" and "MCP" in failure.message
    assert (await talk(agent(script=deaf), tools=()).say("Go.")).text == "You said: Go."


async def test_a_required_call_is_asked_for_again_and_then_fails_clearly(
    agent: Agent, talk: Talks, log: Any
) -> None:
    client = talk(agent([{"say": "I would rather talk."}], [OSLO, {"say": "{result}"}]))
    first = await client.say("Weather?", tool_choice="required")
    assert first.calls == [("get_weather", {"city": "Oslo"})] and first.text == ""
    assert (
        "must call one of your tools" in log.prompts()[0] and "did not make the tool call" in log.prompts()[1]
    )
    failure = await talk(agent([{"say": "No."}])).failure("Weather?", tool_choice="required")
    assert failure.kind == "no_tool_call"


async def test_an_agent_that_never_lists_the_tools_is_logged(
    agent: Agent, talk: Talks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("toolwire.backends.acp.session.LIST_S", 0.1)
    client = talk(agent([{"say": "No tools here."}], script={"deaf": True}))
    assert (await client.say("Weather?")).text == "No tools here."
    assert [record.getMessage() for record in caplog.records if record.name == "toolwire.acp"] == [
        "OpenCode has not listed the client's tools: it may know none of them."
    ]
    failure = await client.failure("Weather?", tool_choice="required")
    assert "seems to ignore the MCP servers" in failure.message


# --- broken agents ---


async def test_garbage_on_stdout_is_passed_over(agent: Agent, talk: Talks) -> None:
    lines = [
        "not json",
        "[]",
        "42",
        '"text"',
        "{}",
        '{"method": 5}',
        "\x00\xff",
        "{" * 5000,
        '{"id": 99, "result": 1}',
        '{"method": "what/ever"}',
        "",
    ]
    updates = [
        {},
        {"sessionUpdate": 3},
        {"sessionUpdate": "agent_message_chunk"},
        {"sessionUpdate": "agent_message_chunk", "content": 1},
        {"sessionUpdate": "x"},
    ]
    steps = [
        *({"raw": line} for line in lines),
        *({"update": update} for update in updates),
        {"note": "noise"},
        *LOOP,
    ]
    client = talk(agent(steps))
    assert (await client.say("Go.")).text == "Let me look."
    assert (await client.answer("sunny")).text == "It is sunny."


async def test_an_agent_that_dies_at_once_is_reported_with_the_reason(agent: Agent, talk: Talks) -> None:
    backend = agent(env={"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere"})
    failure = await talk(backend).failure("Go.")
    assert (
        failure.kind == "backend_unavailable"
        and "exit status" in failure.message
        and "It said" in failure.message
    )


async def test_paths_of_this_machine_are_the_operators(
    agent: Agent, talk: Talks, caplog: pytest.LogCaptureFixture
) -> None:
    steps = [
        {"note": "can not read ~/.agent/login.json of /home/ada (see https://example.org/login)"},
        {"say": "half"},
        {"crash": 7},
    ]
    failure = await talk(agent(steps)).failure("Go.")
    assert failure.message.endswith("It said: can not read (path) of (path) (see https://example.org/login)")
    assert caplog.text.count("can not read ~/.agent/login.json of /home/ada") == 1


async def test_a_crash_in_the_middle_cuts_the_answer(agent: Agent, talk: Talks) -> None:
    failure = await talk(
        agent([{"note": "my key is sk-aaaaaaaaaaaa"}, {"say": "half"}, {"crash": 7}])
    ).failure("Go.")
    assert (
        failure.kind == "backend_cut"
        and "exit status 7" in failure.message
        and "sk-aaaa" not in failure.message
    )


@pytest.mark.parametrize(("api", "stream"), EVERYWHERE)
async def test_an_agent_that_died_while_it_was_parked_is_replayed(
    agent: Agent, talk: Talks, log: Any, api: Api, stream: bool
) -> None:
    backend = agent(LOOP)
    client = talk(backend, api, stream)
    await client.say("Weather?")
    session = next(iter(backend.live))
    os.killpg(session.pid, signal.SIGKILL)
    while session.alive:
        await asyncio.sleep(0.01)
    second = await client.answer("sunny")
    assert second.kind == "replayed" and second.calls == [("get_weather", {"city": "Oslo"})]
    assert "sunny" in log.prompts()[1]


async def test_a_session_that_died_while_it_waited_is_replaced(agent: Agent, talk: Talks, log: Any) -> None:
    backend = agent([{"say": "ok"}])
    client = talk(backend)
    await client.say("Hello.")
    os.killpg(next(iter(backend.live)).pid, signal.SIGKILL)
    assert (await client.say("Go on.")).text == "ok"
    assert len(log.sent("session/new")) == 2


async def test_a_silent_agent_times_out(agent: Agent, talk: Talks, log: Any) -> None:
    failure = await talk(agent([{"hang": True}], timeout_s=0.4)).failure("Go.")
    assert failure.kind == "timeout" and "silent for 0.4 s" in failure.message
    assert log.sent("session/cancel")  # cancelled before it was ended


async def test_an_agent_that_never_answers_times_out_at_the_start(agent: Agent, talk: Talks) -> None:
    failure = await talk(agent(script={"silent": True}, start_timeout_s=0.6)).failure("Go.")
    assert failure.kind == "timeout" and "did not open a session" in failure.message


async def test_the_error_of_a_missing_command_explains_how_to_install_it(
    talk: Talks, backends: list[AcpBackend]
) -> None:
    from toolwire.backends.acp import AcpOptions

    backends.append(AcpBackend("m", AcpOptions(("/nowhere/opencode", "acp"))))
    failure = await talk(backends[0]).failure("Go.")
    assert failure.kind == "backend_unavailable" and "npm install -g opencode-ai" in failure.message
    assert await backends[0].ready() is False


async def test_a_client_that_disconnects_ends_the_agent(
    agent: Agent, talk: Talks, log: Any, table: Any
) -> None:
    backend = agent([{"say": "one"}, {"hang": True}])
    client = talk(backend, "chat", True)
    answer = await table.answer(
        "chat", {"messages": [{"role": "user", "content": "Go."}], "tools": client.tools, "stream": True}
    )
    assert b"one" in await anext(answer.stream)
    (session,) = backend.live
    folder: Path = session.folder
    await answer.stream.aclose()
    assert not session.alive and not folder.exists() and log.sent("session/cancel")

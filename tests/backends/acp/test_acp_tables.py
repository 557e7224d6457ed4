"""The tables of the ACP backend: profiles, launch, updates, failures, options."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.backends.acp.process import find, launch, merged, without
from toolwire.backends.acp.profiles import PROFILES, AcpOptions, listed_names, profile_of, shown_names
from toolwire.backends.acp.requests import is_clients, outcome
from toolwire.backends.acp.updates import AgentCalls, Announced, failure_of, text_of, usage_of
from toolwire.backends.registry import OptionError, check
from toolwire.core.errors import KINDS, ToolwireError
from toolwire.core.events import Usage

# --- options and profiles ---


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "'command' is missing"),
        ({"command": []}, "command: expected"),
        ({"command": "opencode"}, "command: expected a list"),
        ({"command": ["x"], "profile": "nobody"}, "profile: expected one of auto, opencode"),
        ({"command": ["x"], "env": {"A": 1}}, "env: expected a table of strings"),
        ({"command": ["x"], "idle_s": 0}, "idle_s: expected a number above 0"),
        ({"command": ["x"], "repeats": 0}, "repeats: expected at least 1"),
        ({"command": ["x"], "comand": 1}, "did you mean 'command'"),
    ],
)
def test_a_bad_option_is_one_line_that_names_it(options: dict[str, Any], words: str) -> None:
    with pytest.raises((OptionError, ValueError), match=words.replace("(", r"\(")):
        check("acp", options)


@pytest.mark.parametrize(
    ("command", "profile"),
    [
        (["opencode", "acp"], "opencode"),
        (["/usr/local/bin/gemini", "--acp"], "gemini"),
        (["npx", "-y", "@zed-industries/codex-acp@0.16.0"], "codex-acp"),
        (["npx", "@google/gemini-cli", "--acp"], "gemini"),
        (["npx", "opencode-ai@latest", "acp"], "opencode"),
        (["claude-agent-acp"], "claude-code-acp"),
        (["node", "/x/claude-code-acp.js"], "claude-code-acp"),
        (["agent", "acp"], "cursor"),
        (["cursor-agent", "acp"], "cursor"),
        (["goose", "acp"], "other"),
    ],
)
def test_the_profile_is_found_by_the_command(command: list[str], profile: str) -> None:
    assert profile_of("auto", command).name == profile
    assert profile_of("other", command).name == "other"


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_names_of_tools_survive_the_prefix(profile: Any) -> None:
    long = ["x" * 60 + "_a", "x" * 60 + "_b", "short", "a.b"]
    listed = listed_names(profile, long)
    assert sorted(listed.values()) == sorted(long) and len(listed) == len(long)
    for name in listed:
        assert len(profile.shown[0].format(server="client", tool=name)) <= profile.longest
    shown = shown_names(profile, tuple(listed))
    assert {
        shown[pattern.format(server="client", tool=name)] for pattern in profile.shown for name in listed
    } == set(listed)


# --- launch ---


def _launched(options: AcpOptions, tools: tuple[str, ...] = ()) -> Any:
    environ = {
        "PATH": "/bin",
        "OPENAI_API_KEY": "ours",
        "TOOLWIRE_API_KEY": "ours",
        "HOME": "/home/me",
        "LANG": "C",
        "NO_PROXY": "intern",
    }
    return launch(
        options,
        profile_of(options.profile, options.command),
        "/bin/" + options.command[0],
        "/h",
        "/t",
        environ,
        tools,
    )


def test_an_agent_sees_little_of_our_environment() -> None:
    started = _launched(AcpOptions(("agent-x",), env={"KEY": "given"}))
    assert dict(started.env) == {
        "PATH": "/bin",
        "LANG": "C",
        "HOME": "/h",
        "TMPDIR": "/t",
        "KEY": "given",
        "NO_PROXY": "intern,127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }


def test_opencodes_config_is_merged_into_the_operators_and_takes_its_tools_away() -> None:
    given = {
        "provider": {"p": {"name": "P"}},
        "model": "p/m",
        "permission": {"bash": "allow"},
        "tools": {"bash": True},
        "mcp": {"x": {"type": "local", "command": ["x"]}},
        "agent": {
            "build": {"temperature": 0.1, "tools": {"bash": True}, "permission": {"bash": "allow"}},
            "mine": {"tools": {"write": True}},
        },
        "experimental": {"other": 1, "mcp_timeout": 5},
    }
    env = {"OPENCODE_CONFIG_CONTENT": json.dumps(given), "OPENCODE_DB": "opencode.db"}
    started = _launched(AcpOptions(("opencode", "acp"), env=env, model="p/other"))
    config = json.loads(started.env["OPENCODE_CONFIG_CONTENT"])
    assert config["permission"] == {"*": "deny", "client_*": "allow"} and list(config["permission"]) == [
        "*",
        "client_*",
    ]
    assert "tools" not in config and "mcp" not in config
    assert config["agent"]["build"]["temperature"] == 0.1 and config["agent"]["mine"] == {}
    assert "tools" not in config["agent"]["build"] and "permission" not in config["agent"]["build"]
    assert config["provider"] == given["provider"] and config["model"] == "p/other"
    assert config["experimental"]["other"] == 1 and config["experimental"]["mcp_timeout"] > 3600_000
    assert started.env["OPENCODE_DB"] == "opencode.db"  # the operator's setting


def test_a_config_that_is_no_json_is_a_clear_error() -> None:
    with pytest.raises(ToolwireError, match="OPENCODE_CONFIG_CONTENT"):
        _launched(AcpOptions(("opencode", "acp"), env={"OPENCODE_CONFIG_CONTENT": "{"}))


def test_the_model_is_passed_as_each_agent_wants_it() -> None:
    assert _launched(AcpOptions(("gemini", "--acp"), model="g")).command == (
        "/bin/gemini",
        "--acp",
        "--model",
        "g",
    )
    assert _launched(AcpOptions(("codex-acp",), model="c")).command[-2:] == ("-c", 'model="c"')
    assert _launched(AcpOptions(("claude-code-acp",), model="o")).env["ANTHROPIC_MODEL"] == "o"


def test_geminis_settings_allow_the_clients_tools_by_name() -> None:
    files = _launched(AcpOptions(("gemini", "--acp")), ("read", "write")).files
    assert json.loads(files["/h/.gemini/settings.json"])["tools"]["core"] == [
        "mcp_client_read",
        "mcp_client_write",
    ]
    assert (
        json.loads(_launched(AcpOptions(("gemini", "--acp"))).files["/h/.gemini/settings.json"])["tools"][
            "core"
        ]
        == []
    )


def test_tables_are_merged_with_ours_last() -> None:
    assert merged({"a": 1, "b": {"x": 1, "y": 2}}, {"b": {"y": 3}, "a": 2}) == {"b": {"x": 1, "y": 3}, "a": 2}
    assert merged({"a": 1}, {"a": {"b": 1}}) == {"a": {"b": 1}}
    assert without({"a": {"b": 1, "c": 2}, "d": {"e": {"b": 1}}, "f": 3}, ("a.b", "d.*.b", "f.g", "h")) == {
        "a": {"c": 2},
        "d": {"e": {}},
        "f": 3,
    }


def test_a_program_is_found_by_path_and_by_the_agents_own_path(tmp_path: Any) -> None:
    program = tmp_path / "agent-x"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find(AcpOptions((sys.executable,)), PROFILES["other"]) == sys.executable
    assert find(AcpOptions(("agent-x",), env={"PATH": str(tmp_path)}), PROFILES["other"]) == str(program)


# --- updates ---

NAMES = {"client_get_weather": "get_weather", "client_get_time": "get_time"}


def _announcement(
    id: str, title: str = "client_get_weather", given: Any = None, **more: Any
) -> dict[str, Any]:
    return {"toolCallId": id, "title": title, "kind": "other", "rawInput": given or {}, **more}


def test_calls_find_their_announcements_by_name_and_arguments() -> None:
    calls = AgentCalls(NAMES)
    calls.announce(_announcement("a", given={"city": "Oslo"}))
    calls.announce(_announcement("b", given={"city": "Rome"}))
    calls.announce(_announcement("c", "client_get_time"))
    assert calls.expected
    assert [
        calls.called("get_time", {}),
        calls.called("get_weather", {"city": "Rome"}),
        calls.called("get_weather", {"city": "Oslo"}),
    ] == [("c", 3), ("b", 2), ("a", 1)]
    assert not calls.expected


def test_an_announcement_that_comes_late_takes_its_call_over() -> None:
    calls = AgentCalls(NAMES)
    assert calls.called("get_weather", {"city": "Oslo"}) == (None, 1) and calls.expected
    calls.announce(_announcement("a"))
    assert not calls.expected
    calls.announce(_announcement("a", given={"city": "Oslo"}))
    calls.announce(_announcement("b", given={"city": "Rome"}))
    assert calls.expected and calls.called("get_weather", {"city": "Rome"}) == ("b", 2)
    assert not calls.expected


def test_failed_calls_and_an_agents_own_calls_are_not_expected() -> None:
    calls = AgentCalls(NAMES)
    calls.announce(_announcement("a", "bash", kind="execute"))
    calls.announce(_announcement("b"))
    assert calls.expected
    calls.announce({"toolCallId": "b", "status": "failed"})
    assert not calls.expected


def test_codexs_announcements_hold_their_arguments_one_level_below() -> None:
    calls = AgentCalls({"Tool: client/get_weather": "get_weather"})
    calls.announce(
        _announcement(
            "a",
            "Tool: client/get_weather",
            {"server": "client", "tool": "get_weather", "arguments": {"city": "Rome"}},
        )
    )
    calls.announce(
        _announcement(
            "b",
            "Tool: client/get_weather",
            {"server": "client", "tool": "get_weather", "arguments": {"city": "Oslo"}},
        )
    )
    assert calls.called("get_weather", {"city": "Oslo"}) == ("b", 2)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(
    st.dictionaries(
        st.sampled_from(["toolCallId", "title", "kind", "rawInput", "status", "content", "sessionUpdate"]),
        JSON,
    )
)
def test_no_update_breaks_the_reader(update: dict[str, Any]) -> None:
    calls = AgentCalls(NAMES)
    calls.announce(update)
    calls.called("get_weather", {})
    calls.announce(update)
    assert isinstance(text_of(update), str)


@pytest.mark.parametrize(
    ("result", "usage"),
    [
        ({}, None),
        ({"usage": None}, None),
        ({"usage": {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}}, Usage(10, 5)),
        (
            {"usage": {"inputTokens": 10, "outputTokens": 5, "cachedReadTokens": 4, "totalTokens": 15}},
            Usage(10, 5, 4),
        ),
        (
            {
                "usage": {
                    "inputTokens": 10,
                    "outputTokens": 5,
                    "cachedReadTokens": 4,
                    "cachedWriteTokens": 1,
                    "totalTokens": 20,
                }
            },
            Usage(15, 5, 4),
        ),
        ({"_meta": {"usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}}}, Usage(1, 2)),
        ({"_meta": {"quota": {"token_count": {"input_tokens": 50, "output_tokens": 30}}}}, Usage(50, 30)),
        ({"usage": {"inputTokens": "x", "outputTokens": -3, "totalTokens": True}}, None),
    ],
)
def test_tokens_are_read_as_agents_count_them(result: Any, usage: Usage | None) -> None:
    assert usage_of(result) == usage


# --- permissions and failures ---


def test_an_approval_without_a_name_is_matched_by_the_announced_call() -> None:
    names = {"Tool: client/read": "read"}
    mine, other = (
        Announced("1", 1, "read", "", "Tool: client/read"),
        Announced("2", 2, "", "execute", "rm -rf /"),
    )
    asked = {"toolCallId": "1", "title": "Approve MCP tool call"}
    assert is_clients(asked, names, mine, ("Approve MCP tool call",))
    assert not is_clients(asked, names, other, ("Approve MCP tool call",))
    assert not is_clients(asked, names, None, ("Approve MCP tool call",))
    assert not is_clients({}, names, None)


@given(JSON)
def test_no_options_break_the_answer_to_a_request_for_permission(options: Any) -> None:
    assert outcome(options if isinstance(options, list) else (), allow=False) == {
        "outcome": {"outcome": "cancelled"}
    }


@given(st.integers(), st.text(), JSON)
def test_every_error_has_a_kind_and_words(code: int, message: str, data: Any) -> None:
    failure = failure_of(code, message, data, "The agent", "")
    assert failure.kind in KINDS and failure.message

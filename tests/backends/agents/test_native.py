"""What agents ask for in their own words becomes the client's tools, or is refused."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.backends.agents.native import KINDS, Refused, answer, tools_of, translate

EVERY = frozenset(tool for kind in KINDS for tool in tools_of(kind)) | {"get_weather"}

CASES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("shell", {"command": "ls -l"}, "bash", {"command": "ls -l"}),
    ("shell", {"command": "ls", "cwd": "/w"}, "bash", {"command": "ls", "cwd": "/w"}),
    ("shell_stream", {"command": "make", "cwd": ""}, "bash", {"command": "make"}),
    ("background_shell", {"command": "serve"}, "bash", {"command": "serve"}),
    (
        "write",
        {"path": "a.txt", "fileText": "x", "toolCallId": "1"},
        "write",
        {"filePath": "a.txt", "content": "x"},
    ),
    ("write", {"path": "empty", "fileText": ""}, "write", {"filePath": "empty", "content": ""}),
    ("grep", {"pattern": "x", "path": "src", "glob": "*.py"}, "glob", {"pattern": "*.py", "path": "src"}),
    ("grep", {"pattern": "x", "path": "src"}, "grep", {"pattern": "x", "path": "src"}),
    ("grep", {"pattern": "x", "glob": ""}, "grep", {"pattern": "x"}),
    ("read", {"path": "README.md"}, "read", {"filePath": "README.md"}),
    ("ls", {"path": "."}, "list", {"path": "."}),
    (
        "mcp",
        {"name": "client-get_weather", "toolName": "get_weather", "args": {"city": "Oslo"}},
        "get_weather",
        {"city": "Oslo"},
    ),
    ("delete", {"path": "a b"}, "delete", {"filePath": "a b"}),
    ("fetch", {"url": "https://x.example"}, "webfetch", {"url": "https://x.example"}),
    (
        "subagent",
        {"description": "d", "prompt": "p", "subagent_type": "t"},
        "task",
        {"description": "d", "prompt": "p", "subagent_type": "t"},
    ),
    ("diagnostics", {"path": "a.py"}, "read_lints", {"path": "a.py"}),
    ("fs/read_text_file", {"sessionId": "s", "path": "/w/a"}, "read", {"filePath": "/w/a"}),
    (
        "fs/read_text_file",
        {"path": "/w/a", "line": 10, "limit": 5},
        "read",
        {"filePath": "/w/a", "offset": 10, "limit": 5},
    ),
    ("fs/write_text_file", {"path": "/w/a", "content": "x"}, "write", {"filePath": "/w/a", "content": "x"}),
    (
        "terminal/create",
        {"command": "ls -l | wc", "cwd": "/w"},
        "bash",
        {"command": "ls -l | wc", "cwd": "/w"},
    ),
    ("terminal/create", {"command": "rm", "args": ["-f", "a b"]}, "bash", {"command": "rm -f 'a b'"}),
    (
        "terminal/create",
        {"command": "env", "env": [{"name": "A", "value": "b c"}]},
        "bash",
        {"command": "export A='b c'; env"},
    ),
]


@pytest.mark.parametrize(("kind", "request_", "tool", "arguments"), CASES)
def test_a_kind_becomes_the_clients_tool(
    kind: str, request_: dict[str, Any], tool: str, arguments: dict[str, Any]
) -> None:
    call = translate(kind, request_, EVERY)
    assert (call.tool, call.arguments) == (tool, arguments)


def test_every_kind_of_the_table_is_tried_above() -> None:
    assert {case[0] for case in CASES} == set(KINDS)


@pytest.mark.parametrize(("kind", "request_", "tool", "arguments"), CASES)
def test_nothing_is_served_that_the_client_did_not_declare(
    kind: str, request_: dict[str, Any], tool: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(Refused, match="no tool"):
        translate(kind, request_, {"another"})


def test_a_deletion_is_a_bash_command_where_the_client_has_no_tool_for_it() -> None:
    call = translate("delete", {"path": "it's -rf"}, {"bash"})
    assert shlex.split(call.arguments["command"]) == ["rm", "-f", "--", "it's -rf"]
    assert answer(call, '{"stdout": "", "stderr": "denied", "exitCode": 1}') == {"error": "denied"}
    assert answer(call, "") == {"path": "it's -rf"}


@given(st.text())
def test_a_path_can_not_leave_the_quotes(path: str) -> None:
    words = translate("delete", {"path": path}, {"bash"}).arguments["command"]
    assert shlex.split(words)[3:] == [path]


@pytest.mark.parametrize("kind", ["record_screen", "computer_use", "hook", "", "fs/unknown"])
def test_an_unknown_kind_is_refused(kind: str) -> None:
    with pytest.raises(Refused, match="not available"):
        translate(kind, {}, EVERY)


def test_a_request_that_lacks_what_the_tool_needs_is_refused() -> None:
    with pytest.raises(Refused, match="path"):
        translate("read", {}, EVERY)
    with pytest.raises(Refused, match="environment variable"):
        translate("terminal/create", {"command": "x", "env": [{"name": "A;rm", "value": ""}]}, EVERY)


ANSWERS: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    (
        "shell",
        {"command": "x"},
        "plain",
        {"stdout": "plain", "stderr": "", "exitCode": 0, "executionTimeMs": 0},
    ),
    (
        "shell",
        {"command": "x"},
        json.dumps({"stdout": "o", "stderr": "e", "exitCode": 3, "executionTimeMs": 7}),
        {"stdout": "o", "stderr": "e", "exitCode": 3, "executionTimeMs": 7},
    ),
    (
        "shell",
        {"command": "x"},
        '{"a": 1}',
        {"stdout": '{"a": 1}', "stderr": "", "exitCode": 0, "executionTimeMs": 0},
    ),
    (
        "write",
        {"path": "p", "fileText": "a\nb"},
        "ok",
        {"linesCreated": 2, "fileSize": 3, "fileContentAfterWrite": "a\nb"},
    ),
    ("write", {"path": "p", "fileText": "a"}, '{"error": "full"}', {"error": "full"}),
    (
        "write",
        {"path": "p", "fileText": "a"},
        '{"linesCreated": 9, "fileSize": 8, "fileContentAfterWrite": "z"}',
        {"linesCreated": 9, "fileSize": 8, "fileContentAfterWrite": "z"},
    ),
    ("grep", {"pattern": "x"}, "a.py\n\nb.py\n", {"files_with_matches": ["a.py", "b.py"]}),
    ("read", {"path": "p"}, "words", {"content": "words"}),
    ("ls", {"path": "p"}, "a\nb", {"files_string": "a\nb"}),
    (
        "mcp",
        {"toolName": "get_weather"},
        "sun",
        {"content": [{"type": "text", "text": "sun"}], "isError": False},
    ),
    ("fs/read_text_file", {"path": "p"}, "[1, 2]", {"content": "[1, 2]"}),
]


@pytest.mark.parametrize(("kind", "request_", "text", "back"), ANSWERS)
def test_what_the_clients_tool_answered_goes_back_in_the_agents_words(
    kind: str, request_: dict[str, Any], text: str, back: dict[str, Any]
) -> None:
    assert answer(translate(kind, request_, EVERY), text) == back


@given(st.sampled_from(sorted(KINDS)), st.text())
def test_no_answer_of_a_tool_breaks_the_way_back(kind: str, text: str) -> None:
    request = next(case[1] for case in CASES if case[0] == kind)
    assert isinstance(answer(translate(kind, request, EVERY), text), dict)

"""File and terminal requests of agents become calls of the client's tools, or are refused."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.backends.acp.profiles import PROFILES
from toolwire.backends.acp.requests import TOOLS, AgentRequests, Refused, arguments_of, shell_result

READ, WRITE, TERMINAL = "fs/read_text_file", "fs/write_text_file", "terminal/create"
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (READ, {"sessionId": "s", "path": "/w/a"}, {"filePath": "/w/a"}),
    (READ, {"path": "/w/a", "line": 10, "limit": 5}, {"filePath": "/w/a", "offset": 10, "limit": 5}),
    (WRITE, {"path": "/w/a", "content": "x"}, {"filePath": "/w/a", "content": "x"}),
    (WRITE, {"path": "/w/a", "content": ""}, {"filePath": "/w/a", "content": ""}),
    (TERMINAL, {"command": "ls -l | wc", "cwd": "/w"}, {"command": "ls -l | wc", "cwd": "/w"}),
    (TERMINAL, {"command": "make", "cwd": ""}, {"command": "make"}),
    (TERMINAL, {"command": "rm", "args": ["-f", "a b"]}, {"command": "rm -f 'a b'"}),
    (
        TERMINAL,
        {"command": "env", "env": [{"name": "A", "value": "b c"}]},
        {"command": "export A='b c'; env"},
    ),
]


@pytest.mark.parametrize(("method", "params", "arguments"), CASES)
def test_a_request_becomes_arguments_of_the_clients_tool(
    method: str, params: dict[str, Any], arguments: dict[str, Any]
) -> None:
    assert arguments_of(method, params) == arguments


@pytest.mark.parametrize("method", TOOLS)
async def test_nothing_is_served_that_the_client_did_not_declare(method: str) -> None:
    params = next(case[1] for case in CASES if case[0] == method)
    requests = AgentRequests(
        PROFILES["other"], {}, {"another"}, lambda: pytest.fail("a run"), lambda id: None
    )
    assert not requests.serves(method)
    with pytest.raises(Refused, match="no tool"):
        await requests._call(method, params)


@given(st.text())
def test_an_argument_cannot_leave_its_quotes(path: str) -> None:
    line = arguments_of(TERMINAL, {"command": "rm", "args": ["--", path]})["command"]
    assert shlex.split(line) == ["rm", "--", path]


def test_a_request_that_lacks_what_the_tool_needs_is_refused() -> None:
    with pytest.raises(Refused, match="path, content"):
        arguments_of(WRITE, {})
    with pytest.raises(Refused, match="environment variable"):
        arguments_of(TERMINAL, {"command": "x", "env": [{"name": "A;rm", "value": ""}]})


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain", ("plain", 0)),
        (json.dumps({"stdout": "o", "stderr": "e", "exitCode": 3}), ("o\ne", 3)),
        ('{"stdout": "o", "exitCode": "x"}', ("o", 0)),
        ('{"a": 1}', ('{"a": 1}', 0)),
    ],
)
def test_the_result_of_a_shell_tool_is_output_and_exit_code(text: str, result: tuple[str, int]) -> None:
    assert shell_result(text) == result


@given(st.text())
def test_no_result_of_a_tool_breaks_the_reader(text: str) -> None:
    assert isinstance(shell_result(text), tuple)

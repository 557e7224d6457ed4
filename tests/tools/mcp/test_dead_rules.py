"""A rule that can never decide is reported, with what was probably meant; a rule that works is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from toolwire.tools.mcp.policy import Policy


@dataclass(frozen=True)
class Listed:
    name: str
    input_schema: Mapping[str, Any]


def tool(name: str, required: tuple[str, ...] = (), **properties: Any) -> Listed:
    return Listed(name, {"type": "object", "properties": properties, "required": list(required)})


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
FILES = {"type": "array", "items": {"type": "object", "properties": {"path": TEXT}}}
TOOLS = [
    tool("read_text_file", ("path",), path=TEXT, head=NUMBER, force={"type": "boolean"}),
    tool("write_file", ("path", "content"), path=TEXT, content=TEXT),
    tool("upload", ("files",), files=FILES),
    tool("run", ("command",), command=TEXT),
    Listed("free", {"type": "object"}),
    Listed("loose", {"type": "object", "properties": {}, "additionalProperties": True}),
    Listed("choice", {"anyOf": [{"type": "object"}]}),
    Listed("odd", {"type": "object", "properties": None, "required": 5}),
]


@pytest.mark.parametrize(
    ("lists", "report"),
    [
        ({"deny": ["raed_text_file"]}, "the server has no tool raed_text_file; did you mean read_text_file?"),
        ({"ask": ["github_*"]}, "the server has no tool github_*"),
        ({"allow": ["read_text_file pth=/a *"]}, "no argument pth; did you mean path?"),
        ({"deny": ["*_file forse=true"]}, "no argument forse"),
        ({"allow": ["upload files.pth=/a"]}, "no argument files.pth; did you mean path?"),
        ({"allow": ['read_text_file {"pth": "/a"}']}, "no argument pth; did you mean path?"),
        ({"allow": ['write_file {"path": "/a"}']}, "every call has the argument content"),
        ({"allow": ["write_file path=/a/**"]}, "add content=* or end the rule with *"),
        ({"allow": ["read_text_file path=/a head=/b"]}, "is of the type integer"),
        ({"allow": ["read_text_file path=5"]}, "so path=5 never holds"),
        ({"allow": ["free x=1"]}, "has no argument x"),
        ({"deny": ["read_*"], "allow": ["read_text_file path=/a *"]}, 'because deny "read_*" comes first'),
        ({"ask": ["*"], "allow": ["upload"]}, 'because ask "*" comes first'),
        ({"allow": ["run command=git*"]}, "a pattern on command also allows any other code"),
        ({"deny": ["run command=*rm*"]}, "a pattern on command misses code that does the same"),
    ],
)
def test_a_rule_that_never_decides_is_reported(lists: dict[str, list[str]], report: str) -> None:
    (line,) = Policy(**lists).dead(TOOLS)  # type: ignore[arg-type]
    ((action, (rule,)),) = list(lists.items())[-1:]
    assert line.startswith(f'{action} "{rule}": ') and report in line and "\n" not in line


def test_a_rule_that_works_is_not_reported() -> None:
    policy = Policy(
        deny=["write_file path=/a/.git/**", "* force=true", "resources/read uri=file:///etc/**"],
        ask=["write_file", "prompts/get"],
        allow=[
            "read_* path=/a/** *",
            "read_text_file path=/a",
            'read_text_file {"path": "/a"}',
            "upload files.path=/a/**",
            "upload files=*",
            "run command=*",
            "run command=ls",
            "loose anything=1",
            "choice anything=1",
            "odd *",
            "* *",
        ],
    )
    assert policy.dead(TOOLS) == []


def test_without_tools_every_rule_is_about_nothing() -> None:
    assert len(Policy(deny=["a"], allow=["b", "resources/read"]).dead([])) == 2

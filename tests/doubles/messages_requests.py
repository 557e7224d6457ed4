"""Requests of the Messages API in the shapes that its real clients send, with texts written for these tests.

The shapes are those of Claude Code 2.1.326 in many situations, of both Anthropic SDKs, of Claude's Agent SDK
and of Copilot CLI. A text describes what a real client sends in its place, so that a test can look for it in
the decoded turn.
"""

from __future__ import annotations

import json
from typing import Any

Body = dict[str, Any]
MARK: Body = {"cache_control": {"type": "ephemeral"}}
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"file_path": {"type": "string", "description": "an absolute path"}},
    "required": ["file_path"],
    "additionalProperties": False,
}


def text(words: str, **more: Any) -> Body:
    return {"type": "text", "text": words, **more}


def tool(name: str, **more: Any) -> Body:
    return {"name": name, "description": f"what {name} does", "input_schema": SCHEMA, **more}


def user(*blocks: Body) -> Body:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Body) -> Body:
    return {"role": "assistant", "content": list(blocks)}


def call(name: str = "Read", id: str = "toolu_1", **given: Any) -> Body:
    return {"type": "tool_use", "id": id, "name": name, "input": given or {"file_path": "/work/a.txt"}}


def result(content: Any = "1\tthe first line", id: str = "toolu_1", **more: Any) -> Body:
    return {"tool_use_id": id, "type": "tool_result", "content": content, **more}


TOOLS = [
    *map(tool, ("Agent", "Bash", "Edit", "Read", "ToolSearch")),
    tool("DeferredToolPlaceholder", defer_loading=True),
    tool("Write"),
]
SYSTEM = [
    text("x-anthropic-billing-header: cc_version=2.1.326.abc; cc_entrypoint=sdk-cli;"),
    text("who the agent is", **MARK),
    text("how the agent works", **MARK),
]
QUESTION = user(text("<system-reminder>\na reminder\n</system-reminder>"), text("the question"))
NEWS: Body = {
    "role": "system",
    "content": [text("the environment, the names of hidden tools, the date", **MARK)],
    "output_config": {"effort": "medium"},
}
LATER: Body = {**NEWS, "content": NEWS["content"][0]["text"]}
"""The message `NEWS`, as a later request of the conversation has it."""
ADAPTIVE = {"type": "adaptive", "display": "updates"}
BUDGET = {"type": "enabled", "budget_tokens": 31999, "display": "updates"}
CLEARING = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
FIRST: Body = {
    "model": "claude-opus-5-5",
    "messages": [QUESTION, NEWS],
    "system": SYSTEM,
    "tools": TOOLS,
    "metadata": {"user_id": json.dumps({"device_id": "device", "account_uuid": "", "session_id": "session"})},
    "max_tokens": 128_000,
    "thinking": ADAPTIVE,
    "context_management": CLEARING,
    "output_config": {"effort": "medium"},
    "stream": True,
}
SDK: Body = {
    "model": "m",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "hello"}],
    "tools": [tool("Read")],
    "stream": True,
}


def without(body: Body, *names: str) -> Body:
    return {name: value for name, value in body.items() if name not in names}


def after(*messages: Body, **more: Any) -> Body:
    """Returns a later request of the conversation, with `messages` at its end."""
    return {**FIRST, "messages": [QUESTION, LATER, *messages], **more}


def done(*blocks: Body, **more: Any) -> Body:
    """Returns the request with a call's result, after an answer with `blocks` that ended with the call."""
    return after(assistant(*blocks), user(result(**{**MARK, **more})))


IMAGE = {"type": "base64", "data": "aW1hZ2U=", "media_type": "image/png"}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "cGRm"}
UNPARSED: Body = {"__unparsedToolInput": {"raw": '{"file_path": "/wor', "len": 19}}
WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
TITLE = {
    "type": "json_schema",
    "schema": {
        "type": "object",
        "properties": {"title": {"type": "string"}},
        "required": ["title"],
        "additionalProperties": False,
    },
}
SAFEGUARD = {
    "type": "dangerous_tool_use",
    "classifier_context": {"v": 1, "permission_mode": "auto", "live_cwd": "/work"},
}
REQUESTS: dict[str, Body] = {
    "first": FIRST,
    "after two parallel tools": after(
        assistant(text("both at once"), call(), call("Bash", "toolu_2", command="echo two")),
        user(result(), result("two", "toolu_2", is_error=False, **MARK)),
    ),
    "after thinking": done({"type": "thinking", "thinking": "a thought", "signature": "signed=="}, call()),
    "after redacted thinking": done(
        {"type": "redacted_thinking", "data": "sealed=="},
        {"type": "thinking", "thinking": "a thought", "signature": "signed=="},
        text("looking"),
        call(),
    ),
    "after unsigned thinking": done({"type": "thinking", "thinking": "a thought", "signature": ""}, call()),
    "after unparsable arguments": done(
        call(**UNPARSED), content="<tool_use_error>not JSON</tool_use_error>", is_error=True
    ),
    "after a failing tool": done(
        call("Bash", command="exit 3", description="fails"), content="Exit code 3\nout", is_error=True
    ),
    "after an image": done(call(), content=[{"type": "image", "source": IMAGE}]),
    "after a PDF": done(call(), content=[text("PDF file read"), {"type": "document", "source": PDF}]),
    "after loading tools": after(
        assistant(call("ToolSearch", query="select:WebFetch,NotebookEdit", max_results=5)),
        user(
            result(
                [
                    {"type": "tool_reference", "tool_name": "WebFetch"},
                    {"type": "tool_reference", "tool_name": "NotebookEdit"},
                ]
            ),
            text("Tool loaded.", **MARK),
        ),
        tools=[*TOOLS, tool("WebFetch", defer_loading=True), tool("NotebookEdit", defer_loading=True)],
    ),
    "web search": {
        **without(FIRST, "thinking", "context_management"),
        "system": [SYSTEM[0], text("who the agent is"), text("search the web")],
        "messages": [user(text("search for rain"))],
        "tools": [WEB_SEARCH],
        "tool_choice": {"type": "auto"},
    },
    "subagent": {**FIRST, "thinking": {"type": "adaptive", "display": "omitted"}},
    "system message last": after(
        assistant(call("Agent", prompt="say hi", subagent_type="general-purpose")),
        user(result([text("the agent has started")])),
        {"role": "system", "content": [text("the agent's state", **MARK)]},
    ),
    "after an MCP tool": done(call("mcp__demo__add", a=1, b=2), content=[text("3")]),
    "with a schema": {**FIRST, "tools": [*TOOLS, tool("StructuredOutput")]},
    "after max tokens": after(assistant(text("cut here")), user(text("resume directly", **MARK))),
    "after an empty answer": {
        **FIRST,
        "messages": [
            user(text("a reminder"), text("the question\n"), text("there was no visible output")),
            NEWS,
        ],
    },
    "not streamed": {**FIRST, "max_tokens": 64_000, "stream": False},
    "compaction": {
        **FIRST,
        "messages": [
            {"role": "user", "content": "a reminder and the question"},
            {"role": "system", "content": "the environment", "output_config": {"effort": "medium"}},
            assistant({**call("Bash", command="echo one"), **MARK}),
            user(result("one", is_error=False), text("summarize the conversation")),
        ],
    },
    "after compaction": {**FIRST, "messages": [user(text("a reminder"), text("the summary")), NEWS]},
    "unknown model": {
        **FIRST,
        "model": "qwen3:4b",
        "max_tokens": 32_000,
        "output_config": {"effort": "high"},
        "messages": [QUESTION, without(NEWS, "output_config")],
    },
    "older model": {
        **without(FIRST, "output_config"),
        "model": "claude-sonnet-4-5",
        "max_tokens": 32_000,
        "thinking": BUDGET,
        "messages": [user(text("a reminder"), text("another one"), text("the question", **MARK))],
    },
    "bare": {
        **FIRST,
        "tools": TOOLS[1:4],
        "messages": [
            user(text("the question", **MARK)),
            {"role": "system", "content": [], "output_config": {"effort": "medium"}},
        ],
    },
    "without experimental betas": {
        **without(FIRST, "context_management"),
        "thinking": {"type": "adaptive"},
        "tools": [*map(tool, ("Bash", "CronCreate", "WebFetch"))],
        "messages": [
            user(text("a reminder"), text("the question", **MARK)),
            {"role": "system", "content": "the environment"},
        ],
    },
    "title": {
        **without(FIRST, "thinking", "context_management"),
        "system": [SYSTEM[0], text("who the agent is"), text("write a title")],
        "messages": [user(text("the first words"))],
        "tools": [],
        "output_config": {"effort": "medium", "format": TITLE},
    },
    "interactive": {**FIRST, "safeguards": [SAFEGUARD]},
    "older title": {
        **without(FIRST, "thinking", "context_management", "output_config", "tools"),
        "model": "claude-haiku-4-5-20251001",
        "messages": [user(text("the first words"))],
        "temperature": 1,
    },
    "agent SDK": {
        **without(FIRST, "output_config"),
        "model": "claude-sonnet-4-5",
        "thinking": BUDGET,
        "tools": [tool("mcp__client__get_weather")],
        "messages": [
            {"role": "user", "content": "weather in Oslo"},
            assistant(text("let me see"), call("mcp__client__get_weather", "call_h1", city="Oslo")),
            user({"type": "tool_result", "tool_use_id": "call_h1", "content": "rain"}),
            assistant(text("rain there")),
            user(text("a reminder"), text("and in Rome", **MARK)),
        ],
    },
    "python SDK": SDK,
    "node SDK": {**SDK, "stream": False},
    "copilot": {
        **SDK,
        "model": "claude-sonnet-4-5",
        "max_tokens": 32_000,
        "temperature": 1,
        "thinking": {"type": "enabled", "budget_tokens": 2048, "display": "summarized"},
        "system": [text("a test", **MARK)],
        "tools": [tool("get_weather", **MARK)],
        "messages": [
            user(text("weather in Paris")),
            assistant(
                {"type": "thinking", "thinking": "a thought", "signature": "signed=="},
                text("let me look"),
                call("get_weather", city="Paris"),
            ),
            user(result("sunny", **MARK)),
        ],
    },
}
COUNTED: dict[str, Body] = {
    "one text": {"model": "claude-opus-5-5", "messages": [{"role": "user", "content": "a result of a tool"}]},
    "tools": {
        "model": "claude-opus-5-5",
        "messages": [{"role": "user", "content": "foo"}],
        "tools": [tool("Read"), tool("Bash")],
    },
}
"""Requests of POST /v1/messages/count_tokens."""
THREADS: dict[str, Body] = {
    "new": {**without(SDK, "stream"), "thread": {"type": "create"}},
    "next": {
        "model": "m",
        "max_tokens": 100,
        "messages": [user(result("rain"))],
        "thread": {"type": "continue", "previous_message_id": "msg_1"},
    },
}
"""Requests of the SDKs' tool runners.

They must be refused, so that the runners then send the whole conversation.
"""

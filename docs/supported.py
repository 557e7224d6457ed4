"""Writes docs/supported.md from the code: what is supported, by field and by backend.

No cell is written by hand. For each row, the real decoder reads a small request, the real planner plans it,
and the cell is the plan's report. Repaired histories, repaired JSON and dialects are shown by running them.
`--check` only reports whether the page is up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from toolwire import parse
from toolwire.backends import registry
from toolwire.backends.base import Backend
from toolwire.backends.openai.profiles import PASSABLE, VENDOR
from toolwire.core.errors import KINDS, ToolwireError
from toolwire.core.events import CallArgs, CallBegin, CallEnd
from toolwire.core.ids import counting_ids
from toolwire.core.turn import Api, Message
from toolwire.emulate import dialects
from toolwire.emulate.dialects.render import render
from toolwire.gateway.approval_requests import RequestTable
from toolwire.gateway.images import ImageLimits
from toolwire.gateway.plan import Plan, make_plan
from toolwire.gateway.records import Caller
from toolwire.gateway.rounds import ServedTurn
from toolwire.gateway.served import ServedTool, ServedTools
from toolwire.settings.types import ToolSettings
from toolwire.wire import content, tools
from toolwire.wire.chat import decode as chat
from toolwire.wire.checks import MOST_NOTES
from toolwire.wire.fields import FIELDS
from toolwire.wire.messages import decode as messages
from toolwire.wire.responses import decode as responses
from toolwire.wire.responses import mcp

PAGE = Path(__file__).with_name("supported.md")
APIS: tuple[Api, ...] = ("chat", "responses")
BACKENDS: dict[str, Backend] = {
    "openai, native": registry.build("m", "openai", {"tools": "native"}),
    "openai, constrained": registry.build("m", "openai", {"tools": "constrained", "profile": "vllm"}),
    "openai, emulated": registry.build("m", "openai", {"tools": "emulated"}),
    "local": registry.build("m", "local", {}),
    "hosted, Claude": registry.build("m", "hosted", {"model": "anthropic:m"}),
    "hosted, Gemini": registry.build("m", "hosted", {"model": "google:m"}),
    "codex, native": registry.build("m", "codex", {}),
    "codex, emulated": registry.build("m", "codex", {"tools": "emulated"}),
    "cursor": registry.build("m", "cursor", {}),
    "acp": registry.build("m", "acp", {"command": ["agent", "acp"]}),
    "scripted": registry.build("m", "scripted", {}),
}
Body = dict[str, Any]

# --- requests ---

SCHEMA: Body = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ANSWER: Body = {"name": "answer", "schema": SCHEMA}


def function(api: Api, **more: Any) -> Body:
    if api == "messages":
        return {"name": "get_weather", "input_schema": SCHEMA, **more}
    inner = {"name": "get_weather", "parameters": SCHEMA, **more}
    return {"type": "function", "function": inner} if api == "chat" else {"type": "function", **inner}


def custom(api: Api) -> Body:
    return (
        {"type": "custom", "custom": {"name": "run"}} if api == "chat" else {"type": "custom", "name": "run"}
    )


def named(api: Api, kind: str, name: str) -> Body:
    return {"type": kind, kind: {"name": name}} if api == "chat" else {"type": kind, "name": name}


def allowed(api: Api, mode: str) -> Body:
    inner = {"mode": mode, "tools": [named(api, "function", "get_weather")]}
    return (
        {"type": "allowed_tools", "allowed_tools": inner}
        if api == "chat"
        else {"type": "allowed_tools", **inner}
    )


def base(api: Api) -> Body:
    if api == "responses":
        return {"model": "m", "input": "Hello"}
    limit = {"max_tokens": 100} if api == "messages" else {}
    return {"model": "m", "messages": [{"role": "user", "content": "Hello"}], **limit}


def fields_of(api: Api) -> dict[str, Body]:
    """Returns for each field the part of a request that uses it."""
    tools_beside = {"tools": [function(api)]}
    functions = {"functions": [{"name": "get_weather", "parameters": SCHEMA}]}
    logprobs = {"include": ["message.output_text.logprobs"]}
    plain: Body = {
        "stream": True,
        "n": 2,
        "previous_response_id": "resp_1",
        "generate": False,
        "store": True,
        "metadata": {"topic": "weather"},
        "instructions": "Be brief.",
        "response_format": {"type": "json_schema", "json_schema": ANSWER},
        "text": {"format": {"type": "json_schema", **ANSWER}},
        "temperature": 0.5,
        "top_p": 0.5,
        "max_tokens": 100,
        "max_completion_tokens": 100,
        "max_output_tokens": 100,
        "stop": ["END"],
        "seed": 1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "logit_bias": {"50256": -100},
        "logprobs": True,
        "reasoning_effort": "low",
        "reasoning": {"effort": "low"},
        "verbosity": "low",
        "user": "someone",
        "safety_identifier": "someone",
        "prompt_cache_key": "key",
        "prompt_cache_retention": "24h",
        "service_tier": "flex",
        "truncation": "auto",
        "include": ["reasoning.encrypted_content"],
        "max_tool_calls": 3,
        "modalities": ["text"],
        "audio": {"voice": "alloy", "format": "wav"},
        "prediction": {"type": "content", "content": "Hello"},
        "web_search_options": {},
        "background": True,
        "conversation": "conv_1",
        "prompt": {"id": "pmpt_1"},
        "prompt_cache_options": {"ttl": "30m"},
        "context_management": [{"type": "compaction"}],
        "moderation": {"model": "omni-moderation-latest"},
        "access_programs": {"cyber": "x"},
        "image": {"context_compression": "auto"},
        "system": "Be brief.",
        "thread": {"type": "create"},
        "output_format": {"type": "json_schema", "schema": SCHEMA},
        "stop_sequences": ["END"],
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "speed": "fast",
        "inference_geo": "eu",
        "container": "container_1",
        "mcp_servers": [{"type": "url", "name": "x", "url": "https://example.com/mcp"}],
        "cache_control": {"type": "ephemeral"},
        "compaction": {"type": "auto"},
        "fallbacks": [{"model": "m"}],
        "diagnostics": {},
        "safeguards": [{"type": "x"}],
        "user_profile_id": "profile_1",
        "workspace_id": "workspace_1",
        BETAS: "fine-grained-tool-streaming-2025-05-14",
    }
    return {
        **{name: {name: value} for name, value in plain.items()},
        **{name: {} for name in ("model", "messages", "input")},
        "stream_options.include_obfuscation": {
            "stream": True,
            "stream_options": {"include_obfuscation": True},
        },
        **{
            f"reasoning.{name}": {"reasoning": {"effort": "low", name: "auto"}}
            for name in ("summary", "generate_summary", "context", "mode")
        },
        "text.verbosity": {"text": {"verbosity": "low"}},
        "output_config.format": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        "output_config.effort": {"output_config": {"effort": "low"}},
        "metadata.user_id": {"metadata": {"user_id": "someone"}},
        "top_logprobs": {**({"logprobs": True} if api == "chat" else logprobs), "top_logprobs": 2},
        "include.message.output_text.logprobs": logprobs,
        "stream_options": {
            "stream": True,
            "stream_options": {"include_usage": True} if api == "chat" else {"include_obfuscation": False},
        },
        "tools": tools_beside,
        "tool_choice": {**tools_beside, "tool_choice": {"type": "any"} if api == "messages" else "required"},
        "parallel_tool_calls": {**tools_beside, "parallel_tool_calls": False},
        "functions": functions,
        "function_call": {**functions, "function_call": {"name": "get_weather"}},
    }


BETAS = "betas"
"""The report's name for a header of Messages requests, which is part of the samples like a field."""


def plan_of(api: Api, body: Body, backend: Backend) -> Plan:
    if api == "messages":
        headers = {"anthropic-beta": body[BETAS]} if BETAS in body else {}
        turn = messages.decode({name: body[name] for name in body if name != BETAS}, headers=headers)
    else:
        turn = (chat.decode if api == "chat" else responses.decode)(body)
    return make_plan(turn, backend, ToolSettings(), counting_ids())


def verdict(api: Api, more: Body, backend: Backend, field: str) -> str:
    try:
        report = dict(plan_of(api, {**base(api), **more}, backend).report)
    except ToolwireError:
        return "refused"
    holder = field.partition(".")[0]  # the report names an unsupported field without its members
    return report.get(field, report.get(holder, "honoured")).partition(":")[0]


def on_both(cell: dict[Api, str]) -> str:
    """Returns one word if both APIs agree, otherwise both."""
    return " / ".join(dict.fromkeys(cell.values()))


# --- tables ---


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [tuple(head), *map(tuple, rows)]
    lines.insert(1, tuple("---" for _ in lines[0]))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def fields_table(api: Api) -> str:
    """Returns the fields that all backends treat alike as a list, and the others as a table."""
    alike: dict[str, list[str]] = {"honoured": [], "ignored": [], "refused": []}  # in this order
    rows: list[tuple[str, ...]] = []
    for name, (_, apis) in FIELDS.items():
        if api not in apis:
            continue
        if name not in fields_of(api):
            raise SystemExit(
                f"docs/supported.py: the field {name!r} of toolwire.wire.fields.FIELDS has no sample in "
                "fields_of"
            )
        cells = tuple(verdict(api, fields_of(api)[name], backend, name) for backend in BACKENDS.values())
        if len(set(cells)) == 1:
            alike.setdefault(cells[0], []).append(name)
        else:
            rows.append((f"`{name}`", *cells))
    same = "\n".join(f"- **{word}** by all backends: {code(names)}" for word, names in alike.items() if names)
    return f"{same}\n\n{table(('field', *BACKENDS), rows)}"


def served_cell(backend: Backend) -> str:
    """Returns how the tools of an MCP server are offered to the model."""
    turn = responses.decode({**base("responses"), "tools": [{"type": "mcp", "server_label": "files"}]})
    served = ServedTurn(cast(ServedTools, None), cast(RequestTable, None), Caller(), counting_ids())
    turn = served.arranged(turn, [[ServedTool("files__read", "files", "read", "", SCHEMA)]], {})
    plan = make_plan(turn, backend, ToolSettings(), counting_ids())
    return plan.strategy if plan.strategy in ("emulated", "constrained") else "honoured"


def tools_table() -> str:
    kinds: dict[str, dict[Api, Any]] = {
        "`function`": {api: [function(api)] for api in APIS},
        "`function` with `strict: true`": {api: [function(api, strict=True)] for api in APIS},
        "`custom`": {api: [custom(api)] for api in APIS},
        "`namespace`": {
            api: [{"type": "namespace", "name": "notes", "tools": [function("responses")]}] for api in APIS
        },
        f"hosted: {code(sorted(tools.HOSTED - {'mcp'}))}": {api: [{"type": "web_search"}] for api in APIS},
        "any other type": {api: [{"type": "something_new"}] for api in APIS},
    }

    def cell(api: Api, wire: Any, backend: Backend) -> str:
        plan = plan_of(api, {**base(api), "tools": wire}, backend)
        if plan.strategy == "none":
            return next(what for name, what in plan.report if name.startswith("tools."))
        if plan.strategy in ("emulated", "constrained"):
            return plan.strategy
        unbound = ", `strict` ignored" if ("tools.strict", "ignored") in plan.report else ""
        return ("emulated" if plan.customs else "honoured") + unbound

    rows = [
        (
            kind,
            *(on_both({api: cell(api, wire[api], backend) for api in APIS}) for backend in BACKENDS.values()),
        )
        for kind, wire in kinds.items()
    ]
    legacy = {
        name: verdict("chat", fields_of("chat")["functions"], backend, "functions")
        for name, backend in BACKENDS.items()
    }
    offered = "`mcp` (Responses), if the settings [offer the server](mcp-servers.md#from-the-responses-api)"
    served = (offered, *map(served_cell, BACKENDS.values()))
    return table(("tool", *BACKENDS), [*rows, served, ("legacy `functions` (chat)", *legacy.values())])


def choices_table() -> str:
    declared: dict[Api, Any] = {api: [function(api), custom(api), {"type": "web_search"}] for api in APIS}
    forms: dict[str, dict[Api, Body]] = {
        **{f'`"{mode}"`': {api: {"tool_choice": mode} for api in APIS} for mode in tools.MODES},
        "a named function": {api: {"tool_choice": named(api, "function", "get_weather")} for api in APIS},
        "a named custom tool": {api: {"tool_choice": named(api, "custom", "run")} for api in APIS},
        "`allowed_tools`, mode `auto`": {api: {"tool_choice": allowed(api, "auto")} for api in APIS},
        "`allowed_tools`, mode `required`": {api: {"tool_choice": allowed(api, "required")} for api in APIS},
        "a hosted tool": {api: {"tool_choice": {"type": "web_search"}} for api in APIS},
        "a tool that was not declared": {
            api: {"tool_choice": named(api, "function", "other")} for api in APIS
        },
        '`"required"` without `tools`': {api: {"tools": [], "tool_choice": "required"} for api in APIS},
    }
    return table(
        ("tool_choice", *BACKENDS),
        (
            (
                form,
                *(
                    on_both(
                        {
                            api: verdict(api, {"tools": declared[api], **wire[api]}, backend, "tool_choice")
                            for api in APIS
                        }
                    )
                    for backend in BACKENDS.values()
                ),
            )
            for form, wire in forms.items()
        ),
    )


def roles_table() -> str:
    call = {
        "role": "assistant",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    legacy_call = {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}
    before: dict[str, list[Body]] = {"tool": [call], "function": [legacy_call]}
    extra: dict[str, Body] = {"tool": {"tool_call_id": "call_1"}, "function": {"name": "f"}}

    def became(role: str) -> str:
        messages = [*before.get(role, ()), {"role": role, "content": "Hello", **extra.get(role, {})}]
        return type(chat.decode({"model": "m", "messages": messages}).items[-1]).__name__

    return table(("role", "is read as"), ((f"`{role}`", became(role)) for role in chat.OF_ROLE))


def items_table() -> str:
    samples: dict[str, list[Body]] = {
        "message": [{"type": "message", "role": "user", "content": "Hello"}],
        "function_call": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}],
        "custom_tool_call": [{"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}],
        "reasoning": [{"type": "reasoning", "summary": []}],
    }
    samples["function_call_output"] = [
        *samples["function_call"],
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    ]
    samples["custom_tool_call_output"] = [
        *samples["custom_tool_call"],
        {"type": "custom_tool_call_output", "call_id": "c", "output": "x"},
    ]
    rows = [
        (f"`{kind}`", type(responses.decode({"model": "m", "input": samples[kind]}).items[-1]).__name__)
        for kind in responses.OF_ITEM
    ]
    stored: Body = {"type": "message", "role": "user", "content": "Hello"}
    found = responses.resolved(
        {"model": "m", "input": [{"type": "item_reference", "id": "msg_1"}]}, {"msg_1": stored}
    )
    rows.append(
        (
            "`item_reference`",
            f"the stored item, for example a {type(responses.decode(found).items[0]).__name__}; refused if "
            "no item with this id is stored",
        )
    )
    summary = responses.resolved(
        {"model": "m", "input": [{"type": "compaction", "encrypted_content": "x"}]},
        {"x": responses.opened("Notes.")},
    )
    became = responses.decode(summary).items[0]
    assert isinstance(became, Message), became
    rows.append(
        (
            "`compaction`",
            "the summary of a conversation that this server has compacted, as a Message of the "
            f"{became.role}; summaries of other servers are refused",
        )
    )
    rows += [(f"`{kind}`", became) for kind, became in MCP_ITEMS.items()]
    skipped = sorted(responses.SKIPPED - {"item_reference"})
    for kind in skipped:
        notes = responses.decode({"model": "m", "input": [{"type": kind}]}).notes
        assert notes == ((f"input.{kind}", "ignored"),), notes
    return table(
        ("input item", "is read as"),
        [*rows, (code(skipped), "ignored and reported"), ("anything else", "refused")],
    )


MCP_ITEMS = {
    mcp.LISTS: "Toolwire does not list the server's tools again; the model receives nothing",
    mcp.CALLS: "Call and Result",
    mcp.QUESTIONS: "Call; refused if this server did not create the item, or if the client changed it",
    mcp.ANSWERS: "Result. If the client approved the call, Toolwire runs the call first",
}
assert set(MCP_ITEMS) == mcp.ITEMS


OTHER_PARTS = (
    "kept unchanged. `openai` passes the part on, and so does `hosted` if the provider accepts it. `codex` "
    "and `local` refuse a request with such a part. `cursor` and `acp` receive only the name of the part's "
    "type, as text. An `input_file` with a URL is refused by all backends except `cursor` and `acp`"
)


def parts_table() -> str:
    rows = [
        (code(sorted(content.TEXTS)), "text"),
        (code(sorted(content.IMAGES)), "image"),
        ("`refusal`", "the message's refusal"),
    ]
    return table(("content part", "is read as"), [*rows, ("any other", OTHER_PARTS)])


def images() -> str:
    limits = ImageLimits()
    takers = code(name for name, backend in BACKENDS.items() if not backend.capabilities.image_urls)
    return (
        "If a backend accepts URLs of images, Toolwire passes the URLs on. These backends do not accept "
        f"them:\n{takers}. For them, Toolwire downloads the images\nover http or https, from public "
        "addresses only. "
        f"It downloads at most {limits.images} images. Each can have at most\n{limits.bytes // 2**20} MB and "
        f"{limits.pixels // 10**6} million pixels, and must be PNG, JPEG, GIF or WebP. The embedded model\n"
        "(`local`) does not support images."
    )


# --- repairs ---


def called(id: str, name: str = "f", arguments: str = "{}") -> Body:
    return {"type": "function_call", "call_id": id, "name": name, "arguments": arguments}


def result(id: str, output: str = "x") -> Body:
    return {"type": "function_call_output", "call_id": id, "output": output}


def chat_call(id: str) -> Body:
    return {"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}}


SAID: Body = {"role": "user", "content": "Go on."}
SPOKE: Body = {"role": "assistant", "content": "Let me look."}
HISTORIES: tuple[tuple[str, str, list[Body]], ...] = (
    (
        "results in a different order than their calls",
        "Toolwire sorts the results into the order of the calls",
        [called("a"), called("b"), result("b"), result("a"), SAID],
    ),
    (
        "in Responses, text or reasoning between the calls and their results",
        "the model receives one assistant message with the text and the calls, then the results",
        [called("a"), called("b"), SPOKE, result("a"), result("b"), SAID],
    ),
    (
        "in chat completions, an assistant message directly after an assistant message with calls",
        "Toolwire joins the two messages",
        [
            {"role": "assistant", "tool_calls": [chat_call("a")]},
            SPOKE,
            {"role": "tool", "tool_call_id": "a", "content": "x"},
            SAID,
        ],
    ),
    (
        "other messages between a call and its result, for example a user message",
        "the call moves down to its result",
        [called("a"), SAID, result("a")],
    ),
    ("a result before its call", "the result moves down to its call", [result("a"), SAID, called("a")]),
    ("the same result twice", "the first one counts", [called("a"), result("a"), SPOKE, result("a"), SAID]),
    (
        "several different results for one call",
        "the last one counts",
        [called("a"), result("a"), result("a", "y"), SAID],
    ),
    (
        "a call without a result, followed by further messages",
        "Toolwire adds a result that says that the call has no result",
        [called("a"), SAID],
    ),
    ("no result for any call of the last step", "the calls stay open", [SAID, called("a")]),
    (
        "the same call twice, with the same id",
        "Toolwire drops the second call",
        [called("a"), called("a"), result("a"), SAID],
    ),
    (
        "a new call with the id of an earlier call that already has its result",
        "the new call and its result get a new id",
        [called("a"), result("a"), called("a"), result("a"), SAID],
    ),
    (
        "the same id for two different calls, without a result between them",
        "–",
        [called("a"), called("a", "g"), result("a"), SAID],
    ),
    ("a result without a call", "–", [SAID, result("a")]),
)


def repairs_table() -> str:
    def row(history: str, rule: str, items: list[Body]) -> tuple[str, str, str]:
        try:
            on_chat = any("tool_calls" in one for one in items)
            notes = (
                chat.decode({"model": "m", "messages": items})
                if on_chat
                else responses.decode({"model": "m", "input": items})
            ).notes
        except ToolwireError as error:
            return history, "refused", f"error, `param` is `{error.failure.param}`"
        return history, rule, code(f"{name}={what}" for name, what in notes) or "nothing to report"

    return table(("what the client sent", "what happens", "in the report"), (row(*one) for one in HISTORIES))


MISTAKES: tuple[tuple[str, str], ...] = (
    ("a trailing comma", '{"city": "Paris",}'),
    ("single quotes", "{'city': 'Paris'}"),
    ("a key without quotes", '{city: "Paris"}'),
    ("Python literals", '{"city": "Paris", "now": True, "then": None}'),
    ("an unknown escape", r'{"city": "\d"}'),
    ("a line break inside a string", '{"city": "Paris\nFrance"}'),
)


def mistakes_table() -> str:
    def row(what: str, arguments: str) -> tuple[str, str, str, str]:
        events = parse(
            f'<tool_call>{{"name": "get_weather", "arguments": {arguments}}}</tool_call>', [function("chat")]
        )
        repaired = "".join(event.delta for event in events if isinstance(event, CallArgs))
        end = next(event for event in events if isinstance(event, CallEnd))
        return what, f"`{arguments}`".replace("\n", "↵"), f"`{repaired}`", code(end.issues)

    return table(
        ("the model wrote", "for example", "the client receives", "name of the issue"),
        (row(*one) for one in MISTAKES),
    )


# --- dialects and failures ---

TOKEN = "7c41d09be2"


def example(name: str) -> str:
    """Returns a call as the dialect writes it. The scanner must be able to read it back."""
    text = render(name, "get_weather", '{"city": "Paris"}', schema=SCHEMA, nonce=TOKEN)
    events = parse(text, [function("chat")], [name], nonce=TOKEN)
    assert [event.name for event in events if isinstance(event, CallBegin)] == ["get_weather"], (name, events)
    return text


def dialects_table() -> str:
    return table(
        ("dialect", "by default", "kind", "used by"),
        (
            (
                f"`{one.name}`",
                "on" if one.name in dialects.DEFAULT else "off",
                "recovery" if one.recovery else "taught",
                one.note,
            )
            for one in dialects.DIALECTS.values()
        ),
    )


def dialects_examples() -> str:
    return "\n\n".join(f"`{name}`\n\n````text\n{example(name)}\n````" for name in dialects.DIALECTS)


def kinds_table() -> str:
    return table(
        ("kind", "HTTP status", "`type`", "`code`", "code of `response.failed`"),
        (
            (
                f"`{name}`",
                str(kind.status),
                f"`{kind.type}`",
                f"`{kind.code}`" if kind.code else "null",
                f"`{kind.response_code}`",
            )
            for name, kind in KINDS.items()
        ),
    )


# --- the page ---


def page() -> str:
    return f"""<!-- Written by docs/supported.py from the code. Do not edit: run `make supported`. -->

# What is supported

The tables on this page are generated from the code: for each entry, Toolwire reads a small request, and the
table shows how Toolwire handles it. The response header
[`x-toolwire-report`](wire.md#the-report), which this page calls *the report*, uses the same words.

- **honoured**: the field has the same effect as with OpenAI (for Messages, as with Anthropic). Either the
  model's server or Toolwire implements it.
- **constrained**: the prompt describes the tools, and the decoder is constrained to calls that match their
  schema.
- **emulated**: Toolwire reaches the effect of the field by other means, for example with instructions in the
  prompt: [Emulation](emulation.md).
- **passed**: Toolwire sends the field unchanged to a server that may support it.
- **ignored**: the field has no effect, and the report lists it.
- **refused**: the request returns an error that names the field.

The columns:

- `openai, native`, `openai, constrained`, `openai, emulated`: an OpenAI-compatible server, with the option
  `tools` set to `native`, `constrained` or `emulated`. The column `openai, constrained` shows vLLM, which can
  constrain calls within text. Some servers can constrain a response only as a whole. With these servers,
  Toolwire constrains required and named calls, and emulates tools if `tool_choice` is `auto`:
  [Servers](servers.md#how-tools-are-served).
- `local`: the [embedded model](local.md).
- `hosted, Claude`, `hosted, Gemini`: [hosted providers](hosted.md). If one of their models does not support a
  field, the report says so.
- `codex, native`: a [Codex](codex.md) version that supports the client's tools. `codex, emulated`: an [older
  version](codex.md#versions).
- `cursor`, `acp`: [Cursor](cursor.md) and [other agents](acp.md). Toolwire cannot force these agents to call
  a tool. If a required call is missing, Toolwire asks once more. If the call is still missing, the request
  fails.
- `scripted`: [models that follow a script](scripted.md), such as `demo`.

## Request fields

Chat completions:

{fields_table("chat")}

Responses:

{fields_table("responses")}

Messages:

{fields_table("messages")}

If a request contains a field that exists only in one of the other two APIs, the field has no effect.
`toolChoice` and `parallelToolCalls` are accepted as `tool_choice` and `parallel_tool_calls`. In a Responses
request, `max_tool_calls` has an effect only with the [tool
`mcp`](mcp-servers.md#from-the-responses-api).

In the `openai` columns, *honoured* means that Toolwire sends the field to the server. If Toolwire [knows the
server](servers.md) and the server does not support a field, the field is *ignored*. Toolwire sends the
following fields to OpenAI's own servers. It sends them to another server only if you list them in
[`pass_fields`](configuration.md#backend--openai): {code(sorted(PASSABLE))}. In a Responses request, Toolwire
itself handles `store` and `metadata`.

Log probabilities are requested with `logprobs` and `top_logprobs`, or with `message.output_text.logprobs` in
`include`. The tables show these fields for a request without tools. In two cases, Toolwire changes the
model's text before the client receives it. The log probabilities then no longer fit the text, so Toolwire
leaves them out, and the report says `ignored`:

- The request has emulated or constrained tools, so Toolwire scans the text for calls.
- Toolwire separates `<think>` reasoning from the text. In a stream, the headers may already have been sent
  when this happens, so a [comment](wire.md) at the end of the stream also says `ignored`.

In a Responses request, `top_logprobs` has an effect only together with `message.output_text.logprobs` in
`include`, as with OpenAI.

If a request has fields that are not part of the API, the report lists them as `passed` or `ignored`. It lists
at most {MOST_NOTES} of them. If there are more, or if a name does not fit into a header, the report adds
`unknown_fields=ignored`. Some servers define fields that OpenAI's API does not have. Toolwire passes the
following ones on to every server except OpenAI's and Ollama's: {code(sorted(VENDOR))}. A passed field never
overrides a field that Toolwire sets itself.

The report also names unsupported members of messages, parts, input items and tools, for example
`tools.defer_loading=ignored`, `messages.audio=ignored` or `input.content.annotations=ignored`. If the model
does not receive the reasoning that a client sends back, the report says `input.reasoning=ignored` or
`messages.reasoning_content=ignored`.

## Tools

{tools_table()}

If a backend supports only functions, Toolwire converts a custom tool into a function with one text parameter,
and converts calls of this function back into calls of the custom tool. Codex, Cursor and ACP agents do not
support `strict`, so Toolwire declares every tool to them as not strict. If a model calls a tool that the
request does not declare, Toolwire by default [sends the call as text](configuration.md#tools). With Codex,
the model receives an error instead and continues.

## tool_choice

{choices_table()}

## Messages and input items

Toolwire converts each message and each input item into one of four kinds of items: *Message*, *Call* (a call
of a tool), *Result* (the result of a call) or *Reasoning*.

{roles_table()}

{items_table()}

{parts_table()}

{images()}

## Histories that are repaired

A step is a sequence of reasoning, text and calls of the assistant. Servers expect the results of these calls
directly after the step, but some clients lose results, send them twice, or send them in another position.
Toolwire repairs such a history if it can do so without inventing facts. The report lists each repair as
`healed`, under `input` (Responses) or `messages` (chat completions).

{repairs_table()}

## JSON that is repaired

Toolwire repairs the common mistakes in this table while it streams the arguments of a call. It never changes
what it has already sent. If the arguments are invalid JSON in any other way, an emulated call becomes plain
text, and a native call is passed on unchanged.

{mistakes_table()}

## Dialects

A dialect is a format in which models write tool calls as text. *Taught* means that Toolwire's prompt
describes the format to the model. *Recovery* means that some models write the format by habit, without such a
description: [What counts as a call](emulation.md#what-counts-as-a-call). A dialect that is *on* is recognised
in the text of every model. A dialect that is *off* is recognised only in models of the backend `openai` whose
names show that they use it. If you set the option `dialects`, Toolwire recognises only the dialects that this
option lists.

{dialects_table()}

One call in each dialect. The token of the dialect `sentinel` is `{TOKEN}` in this example:

{dialects_examples()}

## Failures

Before the first byte of a response, a failure becomes an HTTP error with OpenAI's error object. After the
first byte, the last event of the stream reports the failure. In chat completions, this event is the same
error object; in Responses, it is `response.failed`. The Messages API uses [Anthropic's types and
statuses](wire.md#messages). The *kind* of a failure is its name in [logs and metrics](observability.md).

{kinds_table()}
"""


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: python docs/supported.py [--check]", file=sys.stderr)
        return 2
    text = page()
    if not arguments:
        PAGE.write_text(text, "utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text("utf-8") == text:
        return 0
    print("docs/supported.md does not match the code: run `make supported`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

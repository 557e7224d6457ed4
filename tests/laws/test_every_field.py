"""Law 10 for every field and sub-field that OpenAI's own SDK can send.

The test walks through the SDK's typed dicts, so it fails for a field of a newer SDK until Toolwire handles
that field. Each field is added to the same small request. It must change the request to the upstream or the
gateway's own behaviour, or the report must name it, or it must be refused.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import typing_extensions
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

from toolwire.backends.openai.backend import OpenAIBackend
from toolwire.backends.openai.render import render
from toolwire.core.errors import ToolwireError
from toolwire.core.ids import counting_ids
from toolwire.gateway.plan import make_plan
from toolwire.settings.types import ToolSettings
from toolwire.wire.chat import decode as chat
from toolwire.wire.responses import decode as responses

Body = dict[str, Any]
BOOKKEEPING = {
    "type": "says which object it is",
    "role": "says which message it is",
    "id": "an output item's id means nothing when the item is sent back",
    "status": "so does its status",
    "input.name": "a result belongs to the call with its call_id",
    "input.namespace": "tools of a namespace go upstream by their own names",
    "input.summary": "reasoning is named as a whole: input.reasoning",
    "input.content": "so is its content",
    "input.encrypted_content": "and what its provider encrypted",
    "input.tools.annotations": "a list of an MCP server's tools only says that they were listed",
    "input.tools.description": "so the tools in it have no effect",
    "input.error": "nor has the reason why there are none",
    "input.approval_request_id": "says which request an MCP call was approved with",
}
"""Sub-fields that have no effect by themselves, and why."""
ID = "x"
CHAT_TOOL: Body = {
    "type": "function",
    "function": {"name": ID, "parameters": {"type": "object", "properties": {}}},
}
TOOL: Body = {"type": "function", "name": ID, "parameters": {"type": "object", "properties": {}}}
CALL: Body = {"type": "function_call", "call_id": ID, "name": ID, "arguments": "{}"}
OUTPUT: Body = {"type": "function_call_output", "call_id": ID, "output": "y"}
CUSTOM_CALL: Body = {"type": "custom_tool_call", "call_id": ID, "name": ID, "input": "z"}
USER: Body = {"role": "user", "content": "hi"}
BEFORE: dict[str, list[Body]] = {
    "tool": [
        {
            "role": "assistant",
            "tool_calls": [{"id": ID, "type": "function", "function": {"name": ID, "arguments": "{}"}}],
        }
    ],
    "function": [{"role": "assistant", "function_call": {"name": ID, "arguments": "{}"}}],
    "function_call_output": [CALL],
    "custom_tool_call_output": [CUSTOM_CALL],
}
BASES: dict[str, Body] = {
    "chat": {"model": "m", "messages": [USER], "tools": [CHAT_TOOL]},
    "responses": {"model": "m", "input": [USER], "tools": [TOOL], "store": False},
}
BACKENDS = {name: OpenAIBackend("m", {"tools": "native", "profile": name}) for name in ("generic", "openai")}


class Outcome(typing.NamedTuple):
    effect: Any
    report: dict[str, str]

    def names(self, path: str) -> bool:
        """Whether the report names the field, or an object that contains it."""
        field = path.rpartition(".")[2]
        return any(
            name == path or path.startswith(f"{name}.") or name.endswith(f".{field}") for name in self.report
        )


def send(api: str, backend: str, body: Body) -> Outcome | None:
    """Returns the outcome of a request; None if it is refused."""
    chosen = BACKENDS[backend]
    try:
        turn = chat.decode(body) if api == "chat" else responses.decode(body)
        plan = make_plan(turn, chosen, ToolSettings(), counting_ids())
        upstream = render(plan.turn, "m", chosen.options, chosen.profile)
    except ToolwireError:
        return None
    own = (turn.n, turn.include_usage, turn.previous_response_id, turn.generate, turn.mcp)
    stored = (turn.store, dict(turn.metadata)) if api == "responses" else ()
    return Outcome((upstream, own, stored), dict(plan.report))


# --- values of a type ---


def bare(hint: Any) -> Any:
    while typing.get_origin(hint) in (
        typing.Required,
        typing.NotRequired,
        typing.Annotated,
        typing_extensions.Required,
    ):
        hint = typing.get_args(hint)[0]
    return bare(hint.__value__) if isinstance(hint, typing_extensions.TypeAliasType) else hint


def arms(hint: Any) -> list[Any]:
    hint = bare(hint)
    if hint is None:
        return []
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [arm for one in typing.get_args(hint) for arm in arms(one)]
    return [] if hint is type(None) else [hint]


def is_list(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    return inspect.isclass(origin) and not issubclass(origin, Mapping) and issubclass(list, origin)


ADDRESS = "https://example.com/x.png"
SPECIAL: Body = {"url": ADDRESS, "image_url": ADDRESS, "call_id": ID}
"""Values for members that need a certain format.

OpenAI no longer requires `call_id`, but here a result needs it to find its call.
"""


def samples(hint: Any) -> Iterator[Any]:
    """Yields values of a type: one for each variant."""
    for arm in arms(hint):
        origin = typing.get_origin(arm)
        if typing_extensions.is_typeddict(arm):
            yield minimal(arm)
        elif origin is typing.Literal or origin is typing_extensions.Literal:
            yield from typing.get_args(arm)
        elif is_list(arm):
            yield from ([value] for value in samples(typing.get_args(arm)[0]))
        elif inspect.isclass(origin) and issubclass(origin, Mapping):
            yield {ID: next(samples(typing.get_args(arm)[1]), ID)}
        else:
            yield {bool: True, int: 2, float: 0.5}.get(arm, ID)


def minimal(kind: Any) -> Body:
    """Returns an object of this type with only its required members."""
    hints = typing_extensions.get_type_hints(kind, include_extras=True)
    needed = {name: next(samples(hint)) for name, hint in hints.items() if is_required(kind, hint)}
    return {**needed, **{name: value for name, value in SPECIAL.items() if str in arms(hints.get(name))}}


def is_required(kind: Any, hint: Any) -> bool:
    """Whether a member of a typed dict is required.

    `__required_keys__` is wrong for annotations that are strings.
    """
    origin = typing.get_origin(hint)
    return origin in (typing.Required, typing_extensions.Required) or (
        kind.__total__ and origin not in (typing.NotRequired,)
    )


# --- the walk ---


class Walk:
    """Sends every field of a type.

    `silent` collects the fields that have no effect and are neither reported nor refused. `probed` is the
    number of fields sent.
    """

    def __init__(self, api: str, backend: str) -> None:
        self.api, self.backend = api, backend
        self.silent: list[str] = []
        self.probed = 0

    def request(self, kind: Any) -> None:
        base = BASES[self.api]
        self._fields(kind, base, lambda body: body, "")

    def _object(self, kind: Any, embed: Callable[[Any], Body], path: str) -> None:
        base = minimal(kind)
        found = send(self.api, self.backend, embed(base))
        named = {base.get("type"), base.get("role"), path.rpartition(".")[2]}
        if found is None or any(
            name == path or name in {f"{path}.{one}" for one in named} for name in found.report
        ):
            return  # the whole object is refused or reported
        self._fields(kind, base, embed, path)

    def _fields(self, kind: Any, base: Body, embed: Callable[[Any], Body], path: str) -> None:
        without = send(self.api, self.backend, embed(base))
        for name, hint in typing_extensions.get_type_hints(kind, include_extras=True).items():
            here = f"{path}.{name}".removeprefix(".")
            values = [
                value for value in samples(hint) if value != {}
            ]  # an empty object has no effect; its members are tested by themselves
            if values and name not in base and name not in BOOKKEEPING and here not in BOOKKEEPING:
                self.probed += 1
                outcomes = [send(self.api, self.backend, embed({**base, name: value})) for value in values]
                if not any(
                    one is None or one.names(here) or one.effect != without.effect
                    for one in outcomes
                    if without
                ):
                    self.silent.append(here)
            for arm in arms(hint):
                listed = is_list(arm)
                for inner in arms(typing.get_args(arm)[0]) if listed else [arm]:
                    if typing_extensions.is_typeddict(inner):
                        self._object(inner, self._embedded(base, name, embed, listed), here)

    def _embedded(
        self, base: Body, name: str, embed: Callable[[Any], Body], listed: bool
    ) -> Callable[[Any], Body]:
        def within(value: Any) -> Body:
            if name in ("messages", "input") and base is BASES[self.api]:
                before = BEFORE.get(value.get("type") or value.get("role"), [])
                after = [OUTPUT] if value.get("type") == "function_call" else []
                return embed({**base, name: [USER, *before, value, *after]})
            return embed({**base, name: [value] if listed else value})

        return within


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("api", "kind", "least"),
    [("chat", CompletionCreateParamsStreaming, 60), ("responses", ResponseCreateParamsStreaming, 60)],
)
def test_every_field_of_the_sdk_has_an_effect_or_is_in_the_report(
    api: str, kind: Any, least: int, backend: str
) -> None:
    walk = Walk(api, backend)
    walk.request(kind)
    assert walk.silent == []
    assert walk.probed >= least


# --- fields that OpenAI does not have ---


def upstream(body: Body, **options: Any) -> tuple[Body, str]:
    """Returns the request to the upstream for a chat request, and the report."""
    backend = OpenAIBackend("m", {"tools": "native", **options})
    plan = make_plan(
        chat.decode({"model": "m", "messages": [USER], **body}), backend, ToolSettings(), counting_ids()
    )
    return render(plan.turn, "m", backend.options, backend.profile), plan.report_header()


VENDORS: Body = {
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "chat_template_kwargs": {"enable_thinking": False},
}


@pytest.mark.parametrize(
    "profile", ["generic", "vllm", "sglang", "llamacpp", "lmstudio", "openrouter", "litellm"]
)
def test_vendor_fields_reach_servers_that_accept_them_and_are_reported(profile: str) -> None:
    sent, report = upstream(VENDORS, profile=profile)
    assert {name: sent.get(name) for name in VENDORS} == VENDORS
    assert report == "; ".join(f"{name}=passed" for name in sorted(VENDORS))


@pytest.mark.parametrize("profile", ["openai", "ollama"])
def test_vendor_fields_are_reported_if_the_server_does_not_accept_them(profile: str) -> None:
    sent, report = upstream(VENDORS, profile=profile)
    assert not VENDORS.keys() & sent.keys()
    assert report == "; ".join(f"{name}=ignored" for name in sorted(VENDORS))


RISKY: Body = {
    "models": ["dearer"],
    "api_base": "http://evil",
    "api_key": "k",
    "extra_headers": {"a": "b"},
    "chat_template": "{{ x }}",
    "best_of": 9,
}


def test_other_fields_pass_only_if_the_operator_allows_them() -> None:
    assert not RISKY.keys() & upstream(RISKY, profile="litellm")[0].keys()
    sent, report = upstream(RISKY, profile="generic", pass_fields=["best_of"])
    assert sent["best_of"] == 9 and not {*RISKY} - {"best_of"} & sent.keys()
    assert "best_of=passed" in report and "api_base=ignored" in report
    assert upstream(RISKY, profile="generic", pass_fields=["*"])[0].items() >= RISKY.items()


def test_a_passed_field_never_replaces_what_toolwire_sets() -> None:
    own = {
        "n": 3,
        "stream": True,
        "stream_options": {"include_usage": False},
        "max_tokens": 5,
        "response_format": {"type": "json_object"},
    }
    plain, _ = upstream(own, profile="generic")
    every = dict.fromkeys(
        ("input", "instructions", "previous_response_id", "conversation", "background", "logprobs_x"), "mine"
    )
    sent, _ = upstream(
        {**own, **every}, profile="generic", pass_fields=["*", "model", "messages", "n", "input", "stream"]
    )
    assert {name: sent[name] for name in plain} == plain
    assert set(sent) - set(plain) == {"logprobs_x"}


KNOWN: Body = {
    "service_tier": "flex",
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "store": True,
    "metadata": {"a": "b"},
}


def test_openais_own_fields_reach_openai() -> None:
    sent, report = upstream(KNOWN, profile="openai")
    assert sent.items() >= KNOWN.items() and report == ""
    sent, report = upstream(KNOWN, profile="generic")
    assert not KNOWN.keys() & sent.keys() and report == "; ".join(f"{name}=ignored" for name in sorted(KNOWN))
    assert upstream(KNOWN, profile="generic", pass_fields=["service_tier"])[0]["service_tier"] == "flex"


def test_the_report_names_a_limited_number_of_unknown_fields_and_only_safe_names() -> None:
    many = {f"field_{n}": 1 for n in range(40)}
    report = upstream({**many, "x\r\nevil: 1": 1, "ünïcode": 2}, profile="generic")[1]
    assert (
        len(report.split("; ")) == 17
        and report.endswith("unknown_fields=ignored")
        and report.isascii()
        and report.isprintable()
    )


@pytest.mark.parametrize(("keeps", "report"), [(False, "messages.reasoning_content=ignored"), (True, "")])
def test_reasoning_that_is_not_sent_back_to_the_model_is_in_the_report(keeps: bool, report: str) -> None:
    thought = {"role": "assistant", "content": "yo", "reasoning_content": "R"}
    sent, reported = upstream({"messages": [USER, thought, USER]}, profile="generic", reasoning_history=keeps)
    assert (reported, sent["messages"][1].get("reasoning_content")) == (report, "R" if keeps else None)


def test_an_unset_strict_is_echoed_as_false() -> None:
    turn = responses.decode({"model": "m", "input": "hi", "tools": [{"type": "function", "name": "f"}]})
    assert turn.echo["tools"][0]["strict"] is False is turn.tools[0].strict

"""Tools and tool choices in every shape, on both APIs."""

from __future__ import annotations

from typing import Any

import pytest

from toolwire.core.errors import ToolwireError
from toolwire.core.turn import ToolChoice, ToolSpec, Turn
from toolwire.wire.chat import decode as chat
from toolwire.wire.responses import decode as responses
from toolwire.wire.tools import HOSTED

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
LOOK = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA, "strict": True},
}
LOOK_FLAT = {
    "type": "function",
    "name": "look",
    "description": "Looks.",
    "parameters": SCHEMA,
    "strict": True,
}
PATCH_FLAT = {"type": "custom", "name": "patch", "description": "Patches.", "format": {"type": "text"}}
CRM = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [
        {"type": "function", "name": "find"},
        {"type": "custom", "name": "note"},
        {"type": "web_search"},
    ],
}


def over_chat(**fields: Any) -> Turn:
    return chat.decode({"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields})


def over_responses(**fields: Any) -> Turn:
    return responses.decode({"model": "m", "input": "Hi", **fields})


both = pytest.mark.parametrize("decode", [over_chat, over_responses])


@both
@pytest.mark.parametrize("tool", [LOOK, LOOK_FLAT])
def test_functions_are_read_nested_and_flat(decode: Any, tool: dict[str, Any]) -> None:
    assert decode(tools=[tool]).tools == (ToolSpec("look", "Looks.", SCHEMA, True),)


@both
@pytest.mark.parametrize(
    "bare", [{}, {"parameters": None, "description": None, "strict": None}, {"parameters": {}}]
)
def test_a_function_needs_no_more_than_a_name(decode: Any, bare: dict[str, Any]) -> None:
    assert decode(tools=[{"type": "function", "function": {"name": "look", **bare}}]).tools == (
        ToolSpec("look"),
    )


@both
@pytest.mark.parametrize("name", ["a", "mcp__server__tool", "with-dash", "with.dot", "n" * 128, "9"])
def test_names_that_real_clients_send_are_accepted(decode: Any, name: str) -> None:
    assert decode(tools=[{"type": "function", "name": name}]).tools[0].name == name


@both
def test_custom_tools_are_read_nested_and_flat(decode: Any) -> None:
    nested = {"type": "custom", "custom": {key: value for key, value in PATCH_FLAT.items() if key != "type"}}
    spec = ToolSpec("patch", "Patches.", kind="custom", format={"type": "text"})
    assert decode(tools=[nested]).tools == decode(tools=[PATCH_FLAT]).tools == (spec,)
    assert decode(tools=[{"type": "custom", "name": "raw"}]).tools == (ToolSpec("raw", kind="custom"),)


@both
def test_a_grammar_is_kept_in_the_flat_shape(decode: Any) -> None:
    flat = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
    nested = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /x/"}}
    assert decode(
        tools=[
            {"type": "custom", "name": "a", "format": flat},
            {"type": "custom", "custom": {"name": "b", "format": nested}},
        ]
    ).tools == (ToolSpec("a", kind="custom", format=flat), ToolSpec("b", kind="custom", format=flat))


@both
def test_a_namespace_gives_its_tools(decode: Any) -> None:
    turn = decode(tools=[CRM])
    assert turn.tools == (ToolSpec("find", namespace="crm"), ToolSpec("note", kind="custom", namespace="crm"))
    assert turn.notes == (("tools.namespace.description", "ignored"), ("tools.web_search", "ignored"))


def test_a_namespace_and_custom_tools_are_echoed_as_sent_and_nested_custom_ones_flat() -> None:
    nested = {"type": "custom", "custom": {"name": "b"}}
    assert over_responses(tools=[CRM, PATCH_FLAT, nested]).echo["tools"] == [
        CRM,
        PATCH_FLAT,
        {"type": "custom", "name": "b"},
    ]


@both
def test_where_a_namespace_collides_the_first_tool_holds_and_the_other_is_noted(decode: Any) -> None:
    find = {"type": "function", "name": "find", "description": "Mine."}
    for tools, description in (([find, CRM], "Mine."), ([CRM, find], "")):
        turn = decode(tools=tools)
        assert [tool.description for tool in turn.tools if tool.name == "find"] == [description]
        assert ("tools.namespace", "ignored:duplicate_name") in turn.notes


@both
@pytest.mark.parametrize("kind", sorted(HOSTED - {"mcp"}))
def test_hosted_tools_are_skipped_and_noted_once(decode: Any, kind: str) -> None:
    turn = decode(tools=[{"type": kind}, LOOK, {"type": kind}])
    assert [tool.name for tool in turn.tools] == ["look"]
    assert turn.notes == ((f"tools.{kind}", "ignored"),)


@both
def test_a_tool_of_an_unknown_type_is_skipped_without_repeating_the_clients_word(decode: Any) -> None:
    assert decode(tools=[{"type": "tele\r\npathy"}]).notes == (("tools.unknown", "ignored"),)


# --- the choice ---


@both
def test_the_default_is_auto_with_tools_and_none_without(decode: Any) -> None:
    assert decode().tool_choice == decode(tools=[]).tool_choice == ToolChoice("none")
    assert decode(tools=[{"type": "web_search"}]).tool_choice == ToolChoice("none")
    assert decode(tools=[LOOK]).tool_choice == ToolChoice("auto")


@both
@pytest.mark.parametrize("field", ["tool_choice", "toolChoice"])
@pytest.mark.parametrize("mode", ["none", "auto", "required"])
def test_a_mode_is_read_in_both_spellings(decode: Any, field: str, mode: Any) -> None:
    turn = decode(tools=[LOOK], **{field: mode})
    assert turn.tool_choice == ToolChoice(mode)
    assert "tool_choice" in turn.sent and "toolChoice" not in turn.sent


@both
def test_openais_spelling_wins_over_camel_case(decode: Any) -> None:
    assert decode(tools=[LOOK], tool_choice="none", toolChoice="required").tool_choice == ToolChoice("none")


@both
def test_auto_and_none_need_no_tools(decode: Any) -> None:
    assert (
        decode(tool_choice="auto").tool_choice == decode(tool_choice="none").tool_choice == ToolChoice("none")
    )


@both
@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "function", "function": {"name": "look"}}, "look"),
        ({"type": "function", "name": "look"}, "look"),
        ({"type": "custom", "custom": {"name": "patch"}}, "patch"),
        ({"type": "custom", "name": "patch"}, "patch"),
        ({"type": "function", "name": "find"}, "find"),
    ],
)
def test_a_named_choice_is_read_nested_and_flat(decode: Any, choice: dict[str, Any], name: str) -> None:
    turn = decode(tools=[LOOK, PATCH_FLAT, CRM], tool_choice=choice)
    assert turn.tool_choice == ToolChoice("required", name)
    assert turn.echo.get("tool_choice") in (None, {"type": choice["type"], "name": name})


@both
@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("nested", [True, False])
def test_allowed_tools_are_read_nested_and_flat(decode: Any, mode: Any, nested: bool) -> None:
    allowed = {
        "mode": mode,
        "tools": [
            {"type": "function", "function": {"name": "look"}},
            {"type": "custom", "name": "patch"},
            {"type": "mcp"},
        ],
    }
    choice = {"type": "allowed_tools", **({"allowed_tools": allowed} if nested else allowed)}
    turn = decode(tools=[LOOK, PATCH_FLAT, CRM], tool_choice=choice)
    assert turn.tool_choice == ToolChoice(mode, None, ("look", "patch"))
    assert ("tool_choice.mcp", "ignored") in turn.notes
    if turn.api == "responses":
        names = [{"type": "function", "name": "look"}, {"type": "custom", "name": "patch"}]
        assert turn.echo["tool_choice"] == {"type": "allowed_tools", "mode": mode, "tools": names}


@both
def test_when_only_hosted_tools_are_allowed_nothing_may_be_called(decode: Any) -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}
    assert decode(tools=[LOOK, {"type": "web_search"}], tool_choice=choice).tool_choice == ToolChoice("none")


@both
@pytest.mark.parametrize(
    "choice", [{"type": "web_search_preview"}, {"type": "mcp", "server_label": "x"}, {"type": "new_thing"}]
)
def test_a_choice_that_forces_a_hosted_tool_counts_as_auto_and_is_noted(
    decode: Any, choice: dict[str, Any]
) -> None:
    turn = decode(tools=[LOOK, {"type": "new_thing"}], tool_choice=choice)
    assert turn.tool_choice == ToolChoice("auto")
    assert ("tool_choice", "ignored:hosted_tool") in turn.notes


@both
@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "look"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
    ],
)
def test_a_call_cannot_be_required_where_nothing_can_be_called(decode: Any, choice: Any) -> None:
    for tools in (None, [], [{"type": "web_search"}]):
        with pytest.raises(ToolwireError) as caught:
            decode(tools=tools, tool_choice=choice)
        assert (caught.value.failure.param or "").startswith("tool_choice")

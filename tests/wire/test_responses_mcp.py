"""The tool `mcp` of the Responses API on the wire: what a request says, and what its items become."""

from __future__ import annotations

from typing import Any

import pytest

from toolwire.core.errors import ToolwireError
from toolwire.core.mcp import McpAnswer, McpFilter, McpListed, McpServer, call_name
from toolwire.core.turn import Call, Message, Result, ToolChoice, Turn
from toolwire.wire.responses import decode as responses

FILES: dict[str, Any] = {"type": "mcp", "server_label": "files"}
ALL = McpFilter()
ASK: dict[str, Any] = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "server_label": "files",
    "name": "read",
    "arguments": '{"path":"a"}',
}
YES: dict[str, Any] = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
DONE: dict[str, Any] = {
    **{"type": "mcp_call", "id": "mcp_1", "server_label": "files", "name": "read"},
    **{"arguments": '{"path":"a"}', "output": "hello", "error": None, "approval_request_id": "mcpr_1"},
}
USER: dict[str, Any] = {"role": "user", "content": "hi"}


def decoded(input: Any = "hi", **more: Any) -> Turn:
    return responses.decode({"model": "m", "input": input, "tools": [FILES], **more})


def refused(input: Any = "hi", **more: Any) -> ToolwireError:
    with pytest.raises(ToolwireError) as raised:
        decoded(input, **more)
    return raised.value


def results(turn: Turn) -> list[tuple[str, str]]:
    return [(one.call_id, one.parts[0].text) for one in turn.items if isinstance(one, Result)]  # type: ignore[union-attr]


# --- the tool ---


def test_a_server_is_named_by_its_label_and_the_client_is_asked_by_default() -> None:
    turn = decoded()
    assert turn.mcp is not None
    assert turn.mcp.servers == (McpServer("files", "tools[0]", always=ALL),)
    assert turn.mcp.servers[0].asks("anything", True)
    assert turn.tool_choice == ToolChoice("auto")
    assert turn.notes == ()


def test_a_request_without_servers_has_nothing_about_them() -> None:
    assert responses.decode({"model": "m", "input": "hi"}).mcp is None


def test_credentials_go_to_a_url_and_never_into_the_echo() -> None:
    tool = {**FILES, "server_url": "https://x.example/mcp?token=t", "authorization": "abc"}
    turn = decoded(tools=[{**tool, "headers": {"X-A": "b", "authorization": "other"}}])
    assert turn.mcp is not None
    (server,) = turn.mcp.servers
    assert server.headers == {"X-A": "b", "Authorization": "Bearer abc"}
    assert "abc" not in repr(server)
    (echo,) = turn.echo["tools"]
    assert echo == {
        **FILES,
        **{"server_url": "https://x.example/mcp", "headers": None},
        **{"allowed_tools": None, "require_approval": "always"},
    }


def test_a_connector_is_ignored_and_reported() -> None:
    turn = decoded(tools=[{**FILES, "connector_id": "connector_gmail"}])
    assert (turn.mcp, turn.notes) == (None, (("tools.mcp", "ignored"),))


def test_what_is_not_read_of_the_tool_is_reported() -> None:
    turn = decoded(tools=[{**FILES, "server_description": "My files", "defer_loading": True}])
    assert ("tools.mcp.server_description", "ignored") in turn.notes
    assert ("tools.mcp.defer_loading", "ignored") in turn.notes


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "mcp"}, "tools[0].server_label"),
        ({**FILES, "server_label": "a b"}, "tools[0].server_label"),
        ({**FILES, "server_label": "x" * 65}, "tools[0].server_label"),
        ({**FILES, "server_url": 5}, "tools[0].server_url"),
        ({**FILES, "headers": {"A b": "c"}, "server_url": "https://x/"}, "tools[0].headers"),
        ({**FILES, "headers": {"A": "b\r\nC: d"}, "server_url": "https://x/"}, "tools[0].headers"),
        ({**FILES, "headers": {"A": 1}, "server_url": "https://x/"}, "tools[0].headers"),
        ({**FILES, "authorization": ["x"]}, "tools[0].authorization"),
        ({**FILES, "allowed_tools": "read"}, "tools[0].allowed_tools"),
        ({**FILES, "allowed_tools": {"names": ["read"]}}, "tools[0].allowed_tools"),
        ({**FILES, "allowed_tools": [1]}, "tools[0].allowed_tools[0]"),
        ({**FILES, "allowed_tools": {"read_only": "yes"}}, "tools[0].allowed_tools.read_only"),
    ],
)
def test_a_malformed_tool_is_refused_with_its_path(tool: dict[str, Any], param: str) -> None:
    assert refused(tools=[tool]).failure.param == param


@pytest.mark.parametrize(
    "name",
    [
        *("Host", "HOST", "Content-Length", "transfer-encoding", "Connection", "Upgrade", "Accept-Encoding"),
        *("TE", "Trailer", "Expect", "Keep-Alive", "Proxy-Authorization", "proxy-x", "Mcp-Session-Id"),
        "mcp-protocol-version",
    ],
)
def test_a_client_cannot_set_the_headers_of_the_transport(name: str) -> None:
    tool = {**FILES, "server_url": "https://x.example/mcp", "headers": {name: "internal.example"}}
    failure = refused(tools=[tool]).failure
    assert failure.param == "tools[0].headers"
    assert name in failure.message


def test_a_label_names_one_server() -> None:
    assert refused(tools=[FILES, FILES]).failure.param == "tools[1].server_label"


def test_a_call_can_be_demanded_if_there_are_servers_only() -> None:
    assert decoded(tool_choice="required").tool_choice == ToolChoice("required")


@pytest.mark.parametrize("name", ["with/slash", "ünï", "a b", "x" * 200])
def test_a_past_call_has_a_name_that_every_model_accepts(name: str) -> None:
    made = call_name("my-server", name)
    assert len(made) <= 64
    assert made.isascii()
    assert made.startswith("my-server__")


# --- items ---


def test_an_approved_call_is_one_call_with_one_result_in_every_order_of_requests() -> None:
    turn = decoded([USER, ASK, YES, DONE])
    calls = [one for one in turn.items if isinstance(one, Call)]
    assert [(one.call_id, one.name) for one in calls] == [("mcpr_1", "files__read")]
    ((id, text),) = results(turn)
    assert id == "mcpr_1"
    assert "\nhello\n" in text
    assert turn.mcp is not None
    assert (turn.mcp.answers, turn.mcp.questions) == ((), ())
    assert turn.notes == ()


def test_a_yes_waits_for_the_gateway_and_a_no_is_already_the_result() -> None:
    turn = decoded([USER, ASK, YES])
    assert turn.mcp is not None
    assert turn.mcp.answers == (McpAnswer("mcpr_1", True, "input[2].approval_request_id"),)
    assert [type(one) for one in turn.items] == [Message, Call, Result]
    turn = decoded([USER, ASK, {**YES, "approve": False, "reason": "later"}])
    ((_, text),) = results(turn)
    assert "later" in text


def test_a_conversation_that_continues_a_response_pairs_its_approval() -> None:
    body = {"model": "m", "input": "hi", "tools": [FILES]}
    lists = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "files", "tools": []}
    first = responses.stored_items(body, [lists, ASK])
    assert first[0] == McpListed("files")
    answer = {"model": "m", "input": [YES], "tools": [FILES], "previous_response_id": "resp_1"}
    turn = responses.decode(answer, first)
    assert turn.mcp is not None
    assert turn.mcp.listed == {"files"}
    second = responses.stored_items(answer, [DONE])
    last = responses.decode({**body, "previous_response_id": "resp_2"}, (*first, *second))
    assert [type(one) for one in last.items] == [Message, Call, Result, Message]
    assert last.notes == ()


def test_a_failed_call_gives_the_model_its_error() -> None:
    error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "no such file"}]}
    turn = decoded([USER, {**DONE, "approval_request_id": None, "output": None, "error": error}])
    ((id, text),) = results(turn)
    assert (id, "no such file" in text) == ("mcp_1", True)


def test_an_image_in_a_result_is_not_written_out_for_the_model() -> None:
    blocks = '[{"type": "image", "mimeType": "image/png", "data": "' + "A" * 5000 + '"}]'
    turn = decoded([USER, {**DONE, "approval_request_id": None, "output": blocks}])
    ((_, text),) = results(turn)
    assert "AAAA" not in text
    assert "image/png" in text


def test_a_huge_result_is_cut_for_the_model() -> None:
    turn = decoded([USER, {**DONE, "approval_request_id": None, "output": "x" * 300_000}])
    ((_, text),) = results(turn)
    assert len(text) < 110_000
    assert "[cut" in text


@pytest.mark.parametrize(
    ("input", "param"),
    [
        ([USER, YES], "input[1].approval_request_id"),
        ([USER, ASK, {**YES, "approve": "yes"}], "input[2].approve"),
        ([USER, ASK, YES, {**YES, "approve": False}], "input[3].approval_request_id"),
        ([USER, ASK, {**ASK, "arguments": "{}"}], "input[2].id"),
        ([USER, {**ASK, "arguments": None}], "input[1].arguments"),
        ([USER, {**DONE, "id": "", "approval_request_id": None}], "input[1].id"),
        ([USER, {"type": "mcp_list_tools"}], "input[1].server_label"),
    ],
)
def test_malformed_items_are_refused_with_their_path(input: Any, param: str) -> None:
    assert refused(input).failure.param == param


def test_the_same_request_twice_is_one_call() -> None:
    turn = decoded([USER, ASK, ASK, YES])
    assert sum(isinstance(one, Call) for one in turn.items) == 1

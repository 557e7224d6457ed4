"""Calls of MCP servers through the executor: rules, questions, edits, grants, results, and the audit log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from doubles.notes import Person
from tools.mcp.conftest import hostile, until
from toolwire.settings.types import McpServerSettings
from toolwire.store.store import Store
from toolwire.tools.approvals import Approvals
from toolwire.tools.contract import Asking, Decision, Outcome, ToolCall
from toolwire.tools.executor import NOT_SHARED, RULED_OUT, Executor, Toolbox
from toolwire.tools.mcp.policy import Policy
from toolwire.tools.mcp.servers import McpServers
from toolwire.tools.mcp.tool import MOST_RESULT, McpTool, for_model, hints, whole

ASKING = Asking("s", "m", "test", source="vault:/notes")
YES, NO = Decision(True), Decision(False, reason="not now")
Make = Callable[..., McpServers]
process = pytest.mark.process


class Desk:
    """One server, an executor over its tools, and a person."""

    def __init__(self, servers: McpServers, store: Store, log: Path) -> None:
        self.servers = servers
        self.approvals = Approvals(store, lifetime_s=20)
        self.log = log
        self.person = Person(self.approvals)
        self.tools: list[McpTool] = []

    async def call(self, arguments: str, *decisions: Any, before: Any = lambda: None) -> Outcome:
        self.tools = self.tools or await self.servers.tools()
        self.person = Person(self.approvals, *decisions, before=before)
        executor = Executor(Toolbox(self.tools), self.approvals, self.person)
        (outcome,) = await executor.execute([ToolCall("c", "evil__t", arguments)], ASKING)
        return outcome

    def sent(self) -> list[dict[str, Any]]:
        """Returns the arguments of the calls that have reached the server."""
        lines = [json.loads(line) for line in self.log.read_bytes().splitlines()]
        return [one["params"]["arguments"] for one in lines if one.get("method") == "tools/call"]

    async def audit(self) -> list[tuple[str, str, str]]:
        rows = reversed(await self.approvals.records.audit())
        return [(row["event"], row["note"], row["decided_by"]) for row in rows]


@pytest.fixture
async def desk(servers_of: Make, store: Store, tmp_path: Path) -> Callable[..., Desk]:
    def make(mode: str = "echo", **changes: Any) -> Desk:
        log = tmp_path / "log"
        return Desk(servers_of(hostile(mode, log, **changes)), store, log)

    return make


@process
async def test_a_call_is_asked_with_its_server_and_runs_exactly_as_shown(desk: Callable[..., Desk]) -> None:
    at = desk()
    written = '{"b": [1.0, null, {"c": true}], "a": "\\u202e"}'
    outcome = await at.call(written, YES)
    assert outcome.status == "done" and json.loads(outcome.result["result"]) == json.loads(written)
    ((asked,),) = at.person.shown
    assert (asked.source, asked.pin) == ("mcp:evil", at.tools[0].pin)
    assert dict(asked.arguments) == json.loads(written) and at.sent() == [json.loads(written)]
    facts = dict(asked.shown.facts)
    assert facts["Server"] == "evil" and "hostile_mcp.py" in facts["Command"] and facts["Tool"] == "t"
    assert "A tool." in facts["The server says"]
    assert isinstance(outcome.raw, types.CallToolResult)
    assert await at.audit() == [("approved", "", "test"), ("ran", "", "test")]
    (line, _) = await at.approvals.records.audit()
    assert (line["source"], line["pin"]) == ("mcp:evil", at.tools[0].pin)


@process
@pytest.mark.parametrize("decision", [NO, "leave"])
async def test_a_call_that_is_not_approved_does_not_reach_the_server(
    desk: Callable[..., Desk], decision: Any, store: Store
) -> None:
    at = desk()
    at.approvals = Approvals(store, lifetime_s=0.2)
    outcome = await at.call("{}", decision)
    assert outcome.status == ("denied" if decision is NO else "expired")
    assert at.sent() == []


@process
async def test_an_edited_call_arrives_edited(desk: Callable[..., Desk]) -> None:
    at = desk("strict")
    outcome = await at.call('{"x": "a"}', Decision(True, arguments={"x": "b", "y": None}))
    assert at.sent() == [{"x": "b", "y": None}] and outcome.edited == ({"x": "a"}, {"x": "b", "y": None})
    outcome = await at.call('{"x": "a"}', Decision(True, arguments={}))
    assert outcome.status == "failed" and len(at.sent()) == 1


@process
async def test_an_edit_with_a_number_that_would_be_sent_as_null_runs_nothing(
    desk: Callable[..., Desk],
) -> None:
    at = desk()
    outcome = await at.call('{"n": 1}', Decision(True, arguments={"n": float("nan")}))
    assert outcome.status == "failed" and "JSON does not have" in outcome.result["error"]
    assert at.sent() == []


@process
@pytest.mark.parametrize("value", [True, 1.0])
async def test_an_edit_of_a_value_that_python_takes_for_the_same_is_an_edit(
    desk: Callable[..., Desk], value: Any
) -> None:
    at = desk()
    outcome = await at.call('{"n": 1}', Decision(True, arguments={"n": value}))
    assert json.dumps(at.sent()) == json.dumps([{"n": value}]) != '[{"n": 1}]'
    assert outcome.edited is not None and json.dumps(value) in outcome.result["note"]


@process
async def test_defaults_of_a_servers_schema_are_not_filled_in(desk: Callable[..., Desk]) -> None:
    at = desk("defaults")
    await at.call('{"to": "me"}', YES)
    assert at.sent() == [{"to": "me"}]
    ((asked,),) = at.person.shown
    assert dict(asked.arguments) == {"to": "me"}


@process
async def test_arguments_that_do_not_fit_are_refused_without_a_question(desk: Callable[..., Desk]) -> None:
    at = desk("strict")
    for written in ("{}", '{"x": 1}', '{"x": "a", "x": "b"}', f'{{"x": "{"y" * 1_000_001}"}}'):
        outcome = await at.call(written, YES)
        assert outcome.status == "failed"
    assert at.person.shown == [] and at.sent() == []
    assert {row[0] for row in await at.audit()} == {"refused"}


# --- rules ---


@process
async def test_a_rule_allows_a_call_without_a_question(desk: Callable[..., Desk]) -> None:
    at = desk(allow=("t path=/srv/**",))
    outcome = await at.call('{"path": "/srv/a"}')
    assert outcome.status == "done" and at.person.shown == [] and len(at.sent()) == 1
    by = "rule t path=/srv/**"
    assert await at.audit() == [("approved", "", by), ("ran", "", by)]
    assert (await at.call('{"path": "/etc"}', NO)).status == "denied"
    assert (await at.call('{"path": "/srv/a", "bcc": "x"}', NO)).status == "denied"
    assert len(at.sent()) == 1


@process
async def test_a_rule_denies_a_call_that_a_grant_would_allow(desk: Callable[..., Desk]) -> None:
    at = desk()
    await at.call("{}", replace(YES, remember="tool"))
    assert (await at.call("{}")).status == "done", "remembered"
    for server in at.servers._servers.values():
        server.policy = Policy(deny=("t force=true",))
    outcome = await at.call('{"force": true}', YES)
    assert (outcome.status, outcome.result) == ("denied", {"error": RULED_OUT})
    assert "t force=true" in outcome.notice and at.person.shown == []
    assert (await at.audit())[-1] == ("refused", "a rule denies it", "rule t force=true")
    assert len(at.sent()) == 2


@process
async def test_a_rule_that_changes_while_a_call_waits_counts(desk: Callable[..., Desk]) -> None:
    at = desk()
    (server,) = at.servers._servers.values()

    def deny() -> None:
        server.policy = Policy(deny=("t",))

    outcome = await at.call("{}", YES, before=deny)
    assert (outcome.status, outcome.result) == ("failed", {"error": RULED_OUT})
    assert at.sent() == [] and (await at.audit())[-1] == ("refused", "rule t", "test")


@process
async def test_an_edit_cannot_pass_a_deny_rule(desk: Callable[..., Desk]) -> None:
    at = desk(deny=("t path=/etc/**",))
    outcome = await at.call('{"path": "/srv"}', Decision(True, arguments={"path": "/etc/passwd"}))
    assert outcome.status == "failed" and at.sent() == []


@process
async def test_a_grant_holds_for_its_server_and_its_definition(
    desk: Callable[..., Desk], servers_of: Make, store: Store, tmp_path: Path
) -> None:
    at = desk()
    await at.call("{}", replace(YES, remember="tool"))
    (grant,) = await at.approvals.records.grants()
    assert (grant.source, grant.pin, grant.tool) == ("mcp:evil", at.tools[0].pin, "evil__t")
    changed = Desk(servers_of(hostile("strict", tmp_path / "log")), store, tmp_path / "log")
    changed.approvals = at.approvals
    await changed.servers.tools()
    await changed.servers.agree(changed.servers.withheld())
    changed.tools = await changed.servers.tools()
    assert (await changed.call('{"x": "a"}', NO)).status == "denied", "a changed tool is asked again"
    other = replace(hostile("echo", tmp_path / "log"), ad_hoc=True)
    elsewhere = Desk(servers_of(other), store, tmp_path / "log")
    elsewhere.approvals = at.approvals
    assert (await elsewhere.call("{}", NO)).status == "denied", "another server of the same name too"


@process
async def test_a_definition_that_changes_while_a_call_waits_stops_it(desk: Callable[..., Desk]) -> None:
    at = desk("becomes:schema")
    at.tools = await at.servers.tools()

    async def change() -> None:
        await at.tools[0].call({})

    class Slow(Person):
        async def ask(self, approvals: Any) -> bool:
            await change()
            await until(lambda: at.servers.upstream("evil").listed is None)
            return await super().ask(approvals)

    executor = Executor(Toolbox(at.tools), at.approvals, Slow(at.approvals, YES))
    (outcome,) = await executor.execute([ToolCall("c", "evil__t", '{"bcc": "x"}')], ASKING)
    assert outcome.status == "failed" and "has changed since it was agreed to" in outcome.result["error"]
    assert at.sent() == [{}]


# --- results ---


@process
async def test_a_result_is_shown_before_it_is_shared(desk: Callable[..., Desk]) -> None:
    at = desk(share="ask")
    outcome = await at.call('{"a": "from the server"}', YES, YES)
    ((run,), (share,)) = at.person.shown
    assert (run.stage, share.stage, share.source) == ("run", "share", "mcp:evil")
    assert share.shown.content == '{"a": "from the server"}' and share.shown.action == "Share the result"
    assert outcome.result == {"result": '{"a": "from the server"}'} and outcome.raw is not None


@process
async def test_no_more_of_a_large_result_is_shared_than_was_shown(desk: Callable[..., Desk]) -> None:
    at = desk("big", share="ask", allow=("t *",))
    outcome = await at.call('{"n": 300000}', YES)
    ((share,),) = at.person.shown
    assert share.shown.summary == "The result has 300,000 characters."
    assert outcome.result == {"result": share.shown.content} and len(share.shown.content) == MOST_RESULT
    assert outcome.raw.content == [types.TextContent(text=share.shown.content)]


@process
async def test_the_words_of_an_error_are_shown_before_they_are_shared(desk: Callable[..., Desk]) -> None:
    at = desk("secret-error", share="ask", env={"TOKEN": "contents"}, allow=("t *",))
    outcome = await at.call("{}", NO)
    assert outcome.result["error"] == NOT_SHARED and outcome.raw is None
    assert "contents" not in json.dumps(outcome.result)
    outcome = await at.call("{}", YES)
    ((share,),) = at.person.shown
    assert "token contents is wrong" in share.shown.content
    assert outcome.result == {"result": {"is_error": True, "text": share.shown.content}}


@process
@pytest.mark.parametrize("decision", [NO, "leave"])
async def test_a_result_that_is_not_shared_does_not_reach_the_model(
    desk: Callable[..., Desk], decision: Any, store: Store
) -> None:
    at = desk(share="ask")
    at.approvals = Approvals(store, lifetime_s=0.3)
    outcome = await at.call('{"a": "s3cret"}', YES, decision)
    assert outcome.result["error"] == NOT_SHARED and "s3cret" not in json.dumps(outcome.result)
    assert outcome.raw is None and len(at.sent()) == 1
    assert ("ran", "nothing shared", "test") in await at.audit()


@process
async def test_a_rule_for_calls_does_not_share_their_results(desk: Callable[..., Desk]) -> None:
    at = desk(share="ask", allow=("t *",))
    outcome = await at.call('{"a": 1}', NO)
    assert [one.stage for (one,) in at.person.shown] == ["share"]
    assert outcome.result["error"] == NOT_SHARED


@process
async def test_a_call_that_may_have_run_is_logged_so_and_is_not_repeated(desk: Callable[..., Desk]) -> None:
    at = desk("die")
    outcome = await at.call("{}", YES)
    assert outcome.status == "failed" and "may have run" in outcome.result["error"]
    assert "a last word" in outcome.notice and "\x1b" not in outcome.notice
    assert len(at.sent()) == 1 and (await at.audit())[-1][0] == "stopped"


@process
async def test_a_stopped_turn_cancels_the_call_at_the_server(desk: Callable[..., Desk]) -> None:
    at = desk("hang")
    calling = asyncio.ensure_future(at.call("{}", YES))
    await until(lambda: at.log.exists() and at.sent())
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    await until(lambda: b"notifications/cancelled" in at.log.read_bytes())
    assert (await at.audit())[-1][0] == "stopped"


@process
async def test_a_hundred_calls_at_once_leave_at_most_fifty_questions(
    servers_of: Make, store: Store, tmp_path: Path
) -> None:
    servers = servers_of(hostile("echo", tmp_path / "log"))
    approvals = Approvals(store, lifetime_s=0.5)
    executor = Executor(Toolbox(await servers.tools()), approvals, None)
    calls = [ToolCall(f"c{n}", "evil__t", json.dumps({"n": n})) for n in range(100)]
    outcomes = await executor.execute(calls, ASKING)
    assert [one.status for one in outcomes].count("expired") == 50
    assert [one.status for one in outcomes].count("failed") == 50
    refused = [row for row in await approvals.records.audit() if row["event"] == "refused"]
    assert {(row["source"], row["pin"] != "") for row in refused} == {("mcp:evil", True)}
    assert b"tools/call" not in (tmp_path / "log").read_bytes()


# --- what a model gets, without a server ---


def result(*blocks: Any, **more: Any) -> types.CallToolResult:
    return types.CallToolResult.model_validate({"content": list(blocks), **more})


def test_text_for_a_model() -> None:
    image = {"type": "image", "data": "AAAA" * 100, "mimeType": "image/png"}
    link = {"type": "resource_link", "uri": "https://evil.example/x?q=1", "name": "a\x1b[31m"}
    inside = {"type": "resource", "resource": {"uri": "notes://a", "text": "Inside."}}
    blob = {"type": "resource", "resource": {"uri": "notes://b", "blob": "AAAA"}}
    said = for_model(result({"type": "text", "text": "One."}, image, link, inside, blob))
    assert said == (
        "One.\n[image/png, 300 B: not shown]\n"
        "[a link to the resource a␛[31m: https://evil.example/x?q=1]\n"
        "[the resource notes://a]\nInside.\n[the resource notes://b, which is no text: not shown]"
    )
    assert for_model(result(structuredContent={"a": 1})) == '{"a": 1}'
    assert for_model(result({"type": "text", "text": "no"}, isError=True)) == {"is_error": True, "text": "no"}


def test_a_long_result_is_cut_and_says_so() -> None:
    said = for_model(result({"type": "text", "text": "x" * (MOST_RESULT + 5)}))
    assert len(said) == MOST_RESULT and "\n[cut: the result has 100,005 characters" in said[-100:]
    assert for_model(result({"type": "text", "text": said})) == said


def test_all_of_a_result_that_leaves_is_shown_for_the_second_question() -> None:
    link = {"type": "resource_link", "uri": "a://b", "name": "a", "description": "Hidden one."}
    inside = {
        "type": "resource",
        "resource": {"uri": "a://c", "text": "Line 1\nLine 2"},
        "_meta": {"a": "Two."},
    }
    image = {"type": "image", "data": "AAAA" * 100, "mimeType": "image/png", "_meta": {"data": "Three."}}
    told = {"type": "text", "text": "said", "annotations": {"audience": ["assistant"]}}
    meta = {"peer/x": "Four.", "io.modelcontextprotocol/serverInfo": {"name": "of the connection"}}
    shown = whole(result(link, inside, image, told, structuredContent={"a": "Five."}, _meta=meta))
    for words in ("Hidden one.", "Two.", "Three.", "Four.", "Five.", "Line 1\nLine 2", '"assistant"'):
        assert words in shown
    assert "300 B: not shown" in shown and "AAAA" not in shown and "of the connection" not in shown


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, ""),
        ({"readOnlyHint": True}, "only reads"),
        ({"readOnlyHint": True, "destructiveHint": True}, "only reads"),
        (
            {"destructiveHint": True, "openWorldHint": True},
            "may destroy or overwrite, may contact other systems",
        ),
    ],
)
def test_hints_are_words_only(given: Any, words: str) -> None:
    tool = types.Tool.model_validate({"name": "t", "inputSchema": {"type": "object"}, "annotations": given})
    assert hints(tool) == words


def test_the_source_of_an_ad_hoc_server_has_its_address() -> None:
    one = McpServerSettings("files", ("run", "/a"), ad_hoc=True)
    assert one.source != replace(one, command=("run", "/b")).source
    assert one.source.startswith("mcp:files@") and replace(one, ad_hoc=False).source == "mcp:files"

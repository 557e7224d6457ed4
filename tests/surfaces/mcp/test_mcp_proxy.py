"""MCP servers behind Toolwire: what reaches them, and what comes back. Both protocol eras on both sides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from doubles.mcp_proxied import peer, proxied, received
from toolwire.store.store import Store
from toolwire.surfaces.mcp.reading import Reading
from toolwire.tools.contract import Decision, ToolFailed
from toolwire.tools.executor import RULED_OUT
from toolwire.tools.mcp.connection import UpstreamFailed

pytestmark = pytest.mark.process
both_eras = pytest.mark.parametrize("mode", ["legacy", "auto"])
both_sides = pytest.mark.parametrize("era", ["legacy", "modern"])
YES = {"approve": True}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with Store(f"sqlite:///{tmp_path}/state/toolwire.db") as one:
        yield one


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "stdin.log"


# --- what a client sees -------------------------------------------------------------------------


@both_eras
@both_sides
async def test_tools_are_listed_as_the_server_defines_them_with_its_name_in_front(
    store: Store, log: Path, mode: str, era: str
) -> None:
    async with proxied(store, peer(log, era=era)) as proxy, proxy.client(mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert {"peer__echo", "peer__add_note", "peer__picture"} <= set(tools)
    assert tools["peer__echo"].description == "Returns its text."
    assert tools["peer__echo"].annotations == types.ToolAnnotations(read_only_hint=True)
    assert (tools["peer__add_note"].output_schema or {})["required"] == ["id"]
    assert tools["peer__add_note"].input_schema["properties"]["tag"]["default"] == "none"


async def test_the_tools_of_several_servers_and_of_a_vault_are_one_list(
    store: Store, log: Path, serve: Any
) -> None:
    own = serve().server._own
    other = peer(log.with_name("other.log"), name="other", era="modern", allow=("echo",))
    async with (
        proxied(store, peer(log, allow=("echo",)), other, tools=own) as proxy,
        proxy.client() as client,
    ):
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"vault_search", "peer__echo", "other__echo"} <= names
        assert not (await client.call_tool("other__echo", {"text": "to the other"})).is_error
    assert received(log) == []
    (sent,) = received(log.with_name("other.log"))
    assert (sent["name"], sent["arguments"]) == ("echo", {"text": "to the other"})


@both_eras
@both_sides
async def test_an_allowed_call_returns_what_the_server_returned(
    store: Store, log: Path, mode: str, era: str
) -> None:
    async with proxied(store, peer(log, era=era, allow=("*",))) as proxy, proxy.client(mode) as client:
        note = await client.call_tool("peer__add_note", {"text": "a"})
        shown = await client.call_tool("peer__picture", {})
    assert note.structured_content == {"id": 7} and note.content == [types.TextContent(text="added")]
    image, link = shown.content
    assert isinstance(image, types.ImageContent) and image.mime_type == "image/png"
    assert isinstance(link, types.ResourceLink) and link.uri == "https://peer.example/plan.png"
    meta = dict(shown.meta or {})
    assert meta.pop("peer/mine") == 1
    told = meta.pop("io.modelcontextprotocol/serverInfo", {"name": "toolwire"})
    assert told["name"] == "toolwire" and meta == {}
    assert [one["arguments"] for one in received(log)] == [{"text": "a"}, {}]  # no default is filled in


@both_eras
@both_sides
async def test_errors_pass_through(store: Store, log: Path, mode: str, era: str) -> None:
    async with proxied(store, peer(log, era=era, allow=("*",))) as proxy, proxy.client(mode) as client:
        failed = await client.call_tool("peer__fail", {})
        with pytest.raises(MCPError) as broken:
            await client.call_tool("peer__broken", {})
        unknown = await client.call_tool("peer__gone", {})
    assert failed.is_error and failed.content == [types.TextContent(text="no such note")]
    assert (broken.value.error.code, broken.value.error.message) == (-32050, "the peer is broken")
    assert broken.value.error.data == {"why": "a test"}
    assert unknown.is_error and [one["name"] for one in received(log)] == ["fail", "broken"]


@both_eras
@both_sides
async def test_progress_passes_through(store: Store, log: Path, mode: str, era: str) -> None:
    heard: list[tuple[float, float | None, str | None]] = []
    reached = asyncio.Event()

    async def reported(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))
        if progress >= 3:
            reached.set()

    async with proxied(store, peer(log, era=era, allow=("*",))) as proxy, proxy.client(mode) as client:
        calling = asyncio.ensure_future(
            client.call_tool("peer__slow", {"steps": 3}, progress_callback=reported)
        )
        async with asyncio.timeout(30):
            await reached.wait()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
    assert heard[-1] == (3.0, 3.0, "3") and heard == sorted(set(heard))  # of reports at once, the last counts
    assert set(heard) <= {(1.0, 3.0, "1"), (2.0, 3.0, "2"), (3.0, 3.0, "3")}


async def test_progress_rises_also_after_a_person_was_waited_for(
    store: Store, log: Path, inbox: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolwire.surfaces.mcp.server.PROGRESS_EVERY_S", 0.05)
    heard: list[tuple[float, str | None]] = []
    last = asyncio.Event()

    async def reported(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))
        if message == "3":
            last.set()

    async with proxied(store, peer(log)) as proxy, proxy.client() as client:
        calling = asyncio.ensure_future(
            client.call_tool("peer__slow", {"steps": 3}, progress_callback=reported)
        )
        question = await inbox.next()
        while len(heard) < 3:
            await asyncio.sleep(0.01)
        await proxy.approvals.decide(question, Decision(True), by="test")
        async with asyncio.timeout(30):
            await last.wait()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
    values = [done for done, _ in heard]
    assert values == sorted(set(values))
    assert any("Waiting for the person's decision" in str(said) for _, said in heard)


@both_eras
@both_sides
async def test_a_cancelled_call_is_cancelled_at_the_server(
    store: Store, log: Path, mode: str, era: str
) -> None:
    async with proxied(store, peer(log, era=era, allow=("*",))) as proxy, proxy.client(mode) as client:
        calling = asyncio.ensure_future(client.call_tool("peer__slow", {}))
        while not received(log):
            await asyncio.sleep(0.01)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        async with asyncio.timeout(20):
            while "cancelled: slow" not in log.read_text():
                await asyncio.sleep(0.01)
        audit = [line["event"] for line in await proxy.approvals.records.audit()]
    assert "stopped" in audit


# --- consent ------------------------------------------------------------------------------------


@both_eras
@both_sides
async def test_a_declined_call_never_reaches_the_server(
    store: Store, log: Path, form: Any, mode: str, era: str
) -> None:
    person = form("decline", {"approve": False, "reason": "not this one"}, {**YES})
    async with proxied(store, peer(log, era=era)) as proxy, proxy.client(mode, person) as client:
        for _ in range(2):
            refused = await client.call_tool("peer__add_note", {"text": "secret"})
            assert refused.is_error and refused.structured_content is None
        assert received(log) == []
        added = await client.call_tool("peer__add_note", {"text": "shown"})
    assert added.structured_content == {"id": 7}
    assert [one["arguments"] for one in received(log)] == [{"text": "shown"}]
    assert "secret" in person.shown[0].message and "peer" in person.shown[0].message


@both_eras
@both_sides
async def test_an_edited_call_arrives_edited_and_the_client_is_told(
    store: Store, log: Path, inbox: Any, text: Any, mode: str, era: str
) -> None:
    async with proxied(store, peer(log, era=era)) as proxy, proxy.client(mode) as client:
        calling = asyncio.ensure_future(client.call_tool("peer__add_note", {"text": "asked"}))
        question = await inbox.next()
        edited = Decision(True, arguments={"text": "edited", "tag": "x"})
        await proxy.approvals.decide(question, edited, by="test")
        added = await calling
    assert [one["arguments"] for one in received(log)] == [{"text": "edited", "tag": "x"}]
    assert added.structured_content == {"id": 7}
    assert text(added) == 'addedThe person changed the arguments to: {"text": "edited", "tag": "x"}'


@both_eras
async def test_what_a_rule_denies_is_refused_without_a_question(
    store: Store, log: Path, form: Any, text: Any, mode: str
) -> None:
    person = form()
    settings = peer(log, allow=("*",), deny=("echo text=*secret*",))
    async with proxied(store, settings) as proxy, proxy.client(mode, person) as client:
        assert text(await client.call_tool("peer__echo", {"text": "a secret"})) == RULED_OUT
        assert not (await client.call_tool("peer__echo", {"text": "a word"})).is_error
    assert [one["arguments"] for one in received(log)] == [{"text": "a word"}]
    assert person.shown == []


async def test_without_any_way_to_ask_nothing_reaches_the_server(store: Store, log: Path) -> None:
    async with proxied(store, peer(log), inbox=False) as proxy, proxy.client() as client:
        assert (await client.call_tool("peer__echo", {"text": "a"})).is_error
    assert received(log) == []


@both_sides
async def test_arguments_that_do_not_fit_the_schema_never_reach_the_server(
    store: Store, log: Path, era: str
) -> None:
    async with proxied(store, peer(log, era=era, allow=("*",))) as proxy, proxy.client() as client:
        assert (await client.call_tool("peer__echo", {"text": 7})).is_error
    assert received(log) == []


async def test_a_request_state_is_worth_nothing_for_another_call(store: Store, log: Path, form: Any) -> None:
    async with proxied(store, peer(log)) as proxy, proxy.client("auto", form()) as client:
        asked = await client.session.call_tool("peer__echo", {"text": "a"}, allow_input_required=True)
        assert isinstance(asked, types.InputRequiredResult)
        yes = dict.fromkeys(asked.input_requests or (), types.ElicitResult(action="accept", content={**YES}))
        again: dict[str, Any] = {"input_responses": yes, "request_state": asked.request_state}
        other = await client.session.call_tool("peer__echo", {"text": "b"}, **again)
        assert other.is_error and received(log) == []
        same = await client.session.call_tool("peer__echo", {"text": "a"}, **again)
        replayed = await client.session.call_tool("peer__echo", {"text": "a"}, **again)
    assert not same.is_error and replayed.is_error
    assert [one["arguments"] for one in received(log)] == [{"text": "a"}]


# --- servers that misbehave ---------------------------------------------------------------------


@both_eras
@both_sides
async def test_a_changed_definition_is_withheld_and_clients_are_told(
    store: Store, log: Path, mode: str, era: str
) -> None:
    told = asyncio.Event()

    async def heard(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            told.set()

    async with (
        proxied(store, peer(log, era=era, allow=("*",))) as proxy,
        proxy.client(mode, message_handler=heard) as client,
    ):
        before = {tool.name for tool in (await client.list_tools()).tools}
        listening = asyncio.ensure_future(_listen(client, told)) if mode == "auto" else None
        if listening is not None:
            await asyncio.sleep(0)
        await client.call_tool("peer__rug", {})
        await client.call_tool("peer__grow", {})
        async with asyncio.timeout(30):
            await told.wait()
        after = {tool.name for tool in (await client.list_tools()).tools}
        changed = await client.call_tool("peer__echo", {"text": "a"})
        if listening is not None:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
    assert before - after == {"peer__echo"} and not after - before
    assert changed.is_error
    assert [one["name"] for one in received(log)] == ["rug", "grow"]


async def _listen(client: Any, told: asyncio.Event) -> None:
    async with client.listen(tools_list_changed=True) as events:
        async for _ in events:
            told.set()


@both_eras
@both_sides
@pytest.mark.parametrize("what", ["elicit", "sample"])
async def test_a_server_s_own_questions_are_never_shown_as_approvals(
    store: Store, log: Path, form: Any, mode: str, era: str, what: str
) -> None:
    person = form({**YES}, {**YES})
    async with (
        proxied(store, peer(log, era=era, allow=("*",))) as proxy,
        proxy.client(mode, person) as client,
    ):
        with suppress(MCPError):
            answer = await client.call_tool(f"peer__{what}", {})
            assert answer.is_error or era == "legacy"  # there, the server goes on without an answer
    assert person.shown == []
    assert await proxy.approvals.records.grants() == []
    assert [one["name"] for one in received(log)] == [what]


@pytest.mark.parametrize("tool", ["unfinished", "task"])
async def test_a_server_cannot_make_a_client_call_again_or_wait(store: Store, log: Path, tool: str) -> None:
    settings = peer(log, era="modern", allow=("*",))
    async with proxied(store, settings) as proxy, proxy.client("auto") as client:
        result = await client.session.call_tool(f"peer__{tool}", {}, allow_input_required=True)
    assert isinstance(result, types.CallToolResult)
    assert result.is_error and result.result_type == "complete"
    assert len(received(log)) == 1


@both_eras
@both_sides
async def test_a_web_page_that_a_server_wants_opened_is_not_shown_as_a_question(
    store: Store, log: Path, form: Any, text: Any, mode: str, era: str
) -> None:
    person = form({**YES})
    settings = peer(log, era=era, allow=("*",))
    async with proxied(store, settings) as proxy, proxy.client(mode, person) as client:
        refused = await client.call_tool("peer__sign_in", {})
    assert refused.is_error and "sign in first" in text(refused)
    assert "evil.example" not in refused.model_dump_json() and person.shown == []


async def test_a_call_does_not_wait_for_the_list_of_another_server(store: Store, log: Path) -> None:
    other = peer(log.with_name("other.log"), name="other", allow=("*",))
    async with proxied(store, peer(log, allow=("*",)), other) as proxy, proxy.client() as client:
        await client.list_tools()
        proxy.servers._patience_s = 600
        changed = asyncio.Event()
        proxy.servers.on_change.append(changed.set)
        await client.call_tool("other__stall", {})
        async with asyncio.timeout(60):
            await changed.wait()
            assert not (await client.call_tool("peer__echo", {"text": "a"})).is_error


@both_sides
async def test_a_server_that_dies_ends_its_call_and_no_other(store: Store, log: Path, era: str) -> None:
    other = peer(log.with_name("other.log"), name="other", allow=("*",))
    settings = peer(log, era=era, allow=("*",))
    async with proxied(store, settings, other) as proxy, proxy.client() as client:
        waiting = asyncio.ensure_future(client.call_tool("other__slow", {}))
        while not received(log.with_name("other.log")):
            await asyncio.sleep(0.01)
        async with asyncio.timeout(20):
            died = await client.call_tool("peer__die", {})
        assert died.is_error and not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert len(received(log)) == 1  # never repeated


async def test_a_flood_of_reports_and_changes_reaches_no_client(store: Store, log: Path) -> None:
    reports: list[float] = []
    changes: list[Any] = []

    async def reported(progress: float, total: float | None, message: str | None) -> None:
        reports.append(progress)

    async def heard(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changes.append(message)

    async with (
        proxied(store, peer(log, allow=("*",))) as proxy,
        proxy.client("legacy", message_handler=heard) as client,
    ):
        async with asyncio.timeout(60):
            flooded = await client.call_tool("peer__flood", {}, progress_callback=reported)
    assert not flooded.is_error
    assert reports == sorted(set(reports)) and len(reports) < 1000
    assert len(changes) < 100


async def test_a_server_that_starts_slowly_does_not_hold_up_the_others(store: Store, log: Path) -> None:
    late = peer(log.with_name("late.log"), "--slow-start", "20", name="late")
    async with proxied(store, peer(log, allow=("*",)), late) as proxy, proxy.client() as client:
        async with asyncio.timeout(15):
            names = {tool.name for tool in (await client.list_tools()).tools}
    assert "peer__echo" in names and not any(name.startswith("late__") for name in names)


# --- prompts and resources ----------------------------------------------------------------------


@both_eras
@both_sides
async def test_prompts_and_resources_are_asked_for_like_calls(
    store: Store, log: Path, form: Any, mode: str, era: str
) -> None:
    person = form("decline", {**YES}, "decline", {**YES})
    async with proxied(store, peer(log, era=era)) as proxy, proxy.client(mode, person) as client:
        prompts = [one.name for one in (await client.list_prompts()).prompts]
        resources = [one.uri for one in (await client.list_resources()).resources]
        with pytest.raises(MCPError, match="cancelled"):
            await client.get_prompt("peer__review", {"code": "x = 1"})
        assert received(log, "prompts/get") == []
        prompt = await client.get_prompt("peer__review", {"code": "x = 1"})
        with pytest.raises(MCPError, match="cancelled"):
            await client.read_resource("notes://work/plan.md")
        assert received(log, "resources/read") == []
        read = await client.read_resource("notes://work/plan.md")
    assert prompts == ["peer__review", "peer__secret"]
    assert resources == ["notes://work/plan.md", "notes://private/diary.md"]
    assert "x = 1" in prompt.messages[0].content.text  # type: ignore[union-attr]
    assert read.contents[0].text == "of notes://work/plan.md"  # type: ignore[union-attr]
    assert "prompts/get" in person.shown[0].message and "x = 1" in person.shown[0].message
    assert "notes://work/plan.md" in person.shown[2].message


@both_eras
async def test_rules_decide_about_prompts_and_resources(
    store: Store, log: Path, form: Any, mode: str
) -> None:
    person = form()
    settings = peer(
        log,
        allow=("prompts/get name=review *", "resources/read uri=notes://work/*"),
        deny=("prompts/get name=secret", "resources/read uri=notes://private/*"),
    )
    async with proxied(store, settings) as proxy, proxy.client(mode, person) as client:
        assert [one.name for one in (await client.list_prompts()).prompts] == ["peer__review"]
        assert [one.uri for one in (await client.list_resources()).resources] == ["notes://work/plan.md"]
        await client.get_prompt("peer__review", {"code": "x"})
        await client.read_resource("notes://work/other.md")  # not listed, but of a template
        with pytest.raises(MCPError):
            await client.get_prompt("peer__secret")
        with pytest.raises(MCPError):
            await client.read_resource("notes://private/diary.md")
        with pytest.raises(MCPError, match="No server lists"):
            await client.read_resource("file:///etc/passwd")
    assert person.shown == []
    assert [one["name"] for one in received(log, "prompts/get")] == ["review"]
    assert [one["uri"] for one in received(log, "resources/read")] == ["notes://work/other.md"]


async def test_a_rule_for_all_tools_allows_no_prompt_and_no_resource(
    store: Store, log: Path, form: Any
) -> None:
    person = form("decline", "decline")
    async with proxied(store, peer(log, allow=("*",))) as proxy, proxy.client("auto", person) as client:
        with pytest.raises(MCPError):
            await client.get_prompt("peer__review", {"code": "x"})
        with pytest.raises(MCPError):
            await client.read_resource("notes://work/plan.md")
    assert len(person.shown) == 2
    assert received(log, "prompts/get") == received(log, "resources/read") == []


@both_eras
async def test_what_was_read_is_shown_before_it_is_shared_if_the_settings_say_so(
    store: Store, log: Path, form: Any, mode: str
) -> None:
    person = form("decline", {**YES}, "decline", {**YES})
    rules = ("prompts/get *", "resources/read *")
    settings = peer(log, share="ask", allow=rules)
    async with proxied(store, settings) as proxy, proxy.client(mode, person) as client:
        with pytest.raises(MCPError, match="not share") as kept:
            await client.read_resource("notes://work/plan.md")
        read = await client.read_resource("notes://work/plan.md")
        with pytest.raises(MCPError, match="not share"):
            await client.get_prompt("peer__review", {"code": "x = 1"})
        prompt = await client.get_prompt("peer__review", {"code": "x = 1"})
    assert "of notes" not in str(kept.value.error)
    assert read.contents[0].text == "of notes://work/plan.md"  # type: ignore[union-attr]
    assert "x = 1" in prompt.messages[0].content.text  # type: ignore[union-attr]
    assert "of notes://work/plan.md" in person.shown[0].message and "x = 1" in person.shown[2].message


async def test_structured_content_and_progress_are_shared_only_as_far_as_they_were_shown(
    store: Store, log: Path, form: Any
) -> None:
    person, heard = form("decline", {**YES}), []
    reached = asyncio.Event()

    async def reported(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)
        if progress >= 3:
            reached.set()

    settings = peer(log, share="ask", allow=("*",))
    async with proxied(store, settings) as proxy, proxy.client("auto", person) as client:
        kept = await client.call_tool("peer__add_note", {})
        note = await client.call_tool("peer__add_note", {})
        slow = asyncio.ensure_future(client.call_tool("peer__slow", {"steps": 3}, progress_callback=reported))
        async with asyncio.timeout(30):
            await reached.wait()
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
    assert kept.is_error and kept.structured_content is None
    assert '"id": 7' in person.shown[0].message and note.structured_content == {"id": 7}
    assert set(heard) == {None}, "its words could be a part of the result"


@pytest.mark.parametrize(
    "edited",
    [
        {"name": "review", "arguments": {"code": 1}},
        {"name": "review", "arguments": ["code"]},
        {"name": "review", "arguments": None},
        {"name": "review", "arguments": {}, "more": 1},
        {"name": "secret", "arguments": {}},
    ],
)
async def test_a_prompt_is_not_read_if_an_edit_would_not_arrive_as_it_was_shown(
    store: Store, log: Path, inbox: Any, edited: Any
) -> None:
    async with proxied(store, peer(log)) as proxy, proxy.client() as client:
        reading = asyncio.ensure_future(client.get_prompt("peer__review", {"code": "x"}))
        question = await inbox.next()
        await proxy.approvals.decide(question, Decision(True, arguments=edited), by="test")
        with pytest.raises(MCPError, match="not run"):
            await reading
    assert received(log, "prompts/get") == []


async def test_the_words_of_an_error_of_a_resource_are_not_shared_unseen(store: Store, log: Path) -> None:
    async def failing(arguments: Any) -> Any:
        failure = types.ErrorData(code=-32000, message="contents")
        raise UpstreamFailed("peer answered with an error: contents", error=failure)

    for share, words in (("ask", "not shared"), ("run", "contents")):
        reading = Reading(peer(log, share=share), "resources/read", {"uri": "a://b"}, "uri", failing)
        with pytest.raises(ToolFailed, match=words) as failed:
            await reading.run({"uri": "a://b"}, None, await reading.preview({}))
        assert "contents" in failed.value.person


async def test_a_resource_is_read_by_the_first_server_that_lists_it_under_its_present_rules(
    store: Store, log: Path, form: Any
) -> None:
    other = peer(log.with_name("other.log"), name="other")
    person = form("decline")
    async with proxied(store, peer(log), other) as proxy, proxy.client("auto", person) as client:
        listed = [one.uri for one in (await client.list_resources()).resources]
        assert len(listed) == len(set(listed)) == 2
        proxy.servers.set_page_rules("peer", ["resources/read uri=notes://work/*"])
        await client.read_resource("notes://work/plan.md")
    assert person.shown == []
    assert len(received(log, "resources/read")) == 1
    assert received(log.with_name("other.log"), "resources/read") == []


async def test_an_endless_list_of_resources_is_cut(
    store: Store, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolwire.surfaces.mcp.reading.MOST_LISTED_BYTES", 100)
    async with proxied(store, peer(log)) as proxy, proxy.client() as client:
        assert (await client.list_resources()).resources == []
        monkeypatch.setattr("toolwire.surfaces.mcp.reading.MOST_LISTED_BYTES", 10_000)
        monkeypatch.setattr("toolwire.surfaces.mcp.reading.LONGEST_URI", len("notes://work/plan.md"))
        assert [one.uri for one in (await client.list_resources()).resources] == ["notes://work/plan.md"]


async def test_a_call_beyond_the_limit_is_logged_with_its_server_and_definition(
    store: Store, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolwire.surfaces.mcp.calls.MOST_OPEN", 0)
    async with proxied(store, peer(log)) as proxy, proxy.client() as client:
        assert (await client.call_tool("peer__echo", {"text": "a"})).is_error
        (line,) = await proxy.approvals.records.audit()
    assert (line["event"], line["source"], line["pin"] != "") == ("refused", "mcp:peer", True)
    assert received(log) == []

"""The API of the chat page: turns that run without a tab, operations, stored conversations."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolwire.surfaces.web.context import MOST_CHARACTERS, Tab

SEARCH = 'say Let me look.\ncall vault_search {"query": "tea"}\n---\nsay Green tea: 80 degrees.\nusage 20 5'


async def begun(house: Any, text: str = "How hot?", model: str = "m") -> str:
    id: str = (await house.call("POST", "/conversations", {"model": model}, status=201))["id"]
    await house.call("POST", f"/conversations/{id}/turns", {"text": text}, status=202)
    return id


def applied(state: dict[str, Any], heard: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The state after the operations, as a tab applies them."""
    entries = [dict(entry) for entry in state["entries"]]
    seq = state["seq"]
    for kind, op in heard:
        if kind != "chat" or op["conversation"] != state["id"] or op["seq"] <= seq:
            continue
        assert op["prev"] == seq, "an operation was missed"
        seq = op["seq"]
        name = op["op"]
        if name in ("user", "answer"):
            entries.append(op["entry"])
        elif name in ("text", "thought"):
            parts = entries[-1]["parts"]
            if not parts or parts[-1]["type"] != name:
                parts.append({"type": name, "text": ""})
            parts[-1]["text"] += op["text"]
        elif name == "calls":
            entries[-1]["parts"] += op["parts"]
        elif name == "call":
            part = next(p for p in entries[-1]["parts"] if p["type"] == "call" and p["id"] == op["id"])
            part.update({k: v for k, v in op.items() if k in part and k != "id"})
        elif name == "ended":
            entries[-1]["ended"] = op["ended"]
        elif name == "cut":
            del entries[op["entries"] :]
    return {**state, "entries": entries, "seq": seq}


async def test_the_operations_of_a_turn_lead_to_the_stored_state(open_house: Any) -> None:
    script = "think Hm.\nchunk 3\nsay A longer answer in small pieces.\nusage 7 9"
    async with open_house(script) as house, house.listening() as heard:
        id = (await house.call("POST", "/conversations", {"model": "m"}))["id"]
        before = await house.call("GET", f"/conversations/{id}")
        await house.call("POST", f"/conversations/{id}/turns", {"text": "Hello"}, status=202)
        state = await house.ended(id)

        async def caught_up() -> bool:
            return any(kind == "chat" and op["op"] == "ended" for kind, op in heard)

        await house.until(caught_up)
        followed = applied(before, heard)
        assert followed["entries"] == state["entries"]
        answer = state["entries"][1]
        assert [part["type"] for part in answer["parts"]] == ["thought", "text"]
        assert answer["parts"][1]["text"] == "A longer answer in small pieces."
        assert answer["ended"]["why"] == "done" and answer["ended"]["usage"]["total_tokens"] == 16
        assert state["title"] == "Hello"


async def test_tools_are_offered_only_when_switched_on_and_only_to_models_that_may(open_house: Any) -> None:
    async with open_house("say Hi.") as house:
        backend = house.app._gateway.models["m"]
        await house.ended(await begun(house))
        assert not backend.seen[-1].tools
        await house.call("PUT", "/settings", {"tool_calling": True})
        await house.ended(await begun(house))
        assert {tool.name for tool in backend.seen[-1].tools} >= {"vault_search", "file_read"}
        await house.call("PUT", "/settings", {"tool_models": ["other*"]})
        await house.ended(await begun(house))
        assert not backend.seen[-1].tools


async def test_the_switch_and_the_models_survive_a_restart(open_house: Any) -> None:
    async with open_house() as house:
        assert (await house.call("GET", "/settings"))["tool_calling"] is False
        await house.call("PUT", "/settings", {"tool_calling": True, "tool_models": ["m"]})
    async with open_house() as house:
        settings = await house.call("GET", "/settings")
        assert (
            settings["tool_calling"] is True
            and settings["tool_models"] == ["m"]
            and settings["vault"]["open"] is True
        )


async def test_a_call_waits_for_its_approvals_and_then_the_loop_continues(open_house: Any) -> None:
    async with open_house(SEARCH, on=True) as house:
        id = await begun(house)
        question = (await house.until(house.pending))[0]
        assert (question["tool"], question["stage"], question["session"], question["surface"]) == (
            "vault_search",
            "run",
            id,
            "web",
        )
        assert question["title"] == "Search the vault" and question["editable"]
        await house.call(
            "POST", f"/approvals/{question['id']}/decision", {"token": question["token"], "approved": True}
        )

        async def share() -> Any:
            return [one for one in await house.pending() if one["stage"] == "share"]

        results = (await house.until(share))[0]
        assert (
            results["shown"]["pick"]
            and results["shown"]["touched"][0]["path"] == "Tea.md"
            and not results["editable"]
        )
        picked = [results["shown"]["touched"][0]["key"]]
        await house.call(
            "POST",
            f"/approvals/{results['id']}/decision",
            {"token": results["token"], "approved": True, "picked": picked},
        )
        state = await house.ended(id)
        parts = state["entries"][1]["parts"]
        assert [part["type"] for part in parts] == ["text", "call", "text"]
        assert parts[1]["state"] == "done" and parts[1]["shared"] == ["Tea.md"]
        assert parts[2]["text"] == "Green tea: 80 degrees."


async def test_stopping_ends_the_turn_and_its_open_questions(open_house: Any) -> None:
    async with open_house(SEARCH, on=True) as house:
        id = await begun(house)
        question = (await house.until(house.pending))[0]
        await house.call("POST", f"/conversations/{id}/stop")
        state = await house.call("GET", f"/conversations/{id}")
        assert not state["running"] and state["entries"][1]["ended"]["why"] == "stopped"
        assert state["entries"][1]["parts"][1]["state"] == "stopped"
        late = {"token": question["token"], "approved": True}
        refused = await house.call("POST", f"/approvals/{question['id']}/decision", late, status=409)
        assert "expired" in refused["error"]["message"]
        assert (await house.call("GET", f"/approvals/{question['id']}"))["status"] == "expired"


async def test_a_second_turn_is_refused_while_one_runs(open_house: Any) -> None:
    async with open_house("say One moment.\nhang") as house:
        id = await begun(house)
        for path in ("turns", "retry"):
            await house.call("POST", f"/conversations/{id}/{path}", {"text": "again"}, status=409)
        await house.call("POST", f"/conversations/{id}/stop")
        assert (await house.call("GET", f"/conversations/{id}"))["entries"][1]["parts"] == [
            {"type": "text", "text": "One moment."}
        ]


async def test_retry_asks_the_last_question_again_of_another_model(open_house: Any) -> None:
    async with open_house("say First.") as house:
        id = await begun(house)
        await house.ended(id)
        await house.call("POST", f"/conversations/{id}/retry", {"model": "other"}, status=202)
        state = await house.ended(id)
        assert [entry["kind"] for entry in state["entries"]] == ["user", "answer"]
        assert state["entries"][1]["model"] == "other" and state["entries"][1]["parts"][0]["text"] == "Other."
        seen = house.app._gateway.models["other"].seen[-1]
        assert sum(getattr(item, "role", "") == "user" for item in seen.items) == 1


async def test_a_failure_of_the_model_is_shown_in_the_answer(open_house: Any) -> None:
    async with open_house("say Half an\nfail overloaded The model is busy.") as house:
        ended = (await house.ended(await begun(house)))["entries"][1]
        assert ended["ended"]["why"] == "failed" and ended["ended"]["words"] == "The model is busy."
        assert ended["parts"][0]["text"] == "Half an"


async def test_conversations_are_stored_found_renamed_and_deleted(open_house: Any) -> None:
    async with open_house("say The kettle sings.") as house:
        first, second = await begun(house, "About 100% tea_leaves"), await begun(house, "About coffee")
        await asyncio.gather(house.ended(first), house.ended(second))
        await house.call("PATCH", f"/conversations/{second}", {"title": "Beans"})

    async with open_house("say The kettle sings.") as house:

        async def found(words: str) -> list[str]:
            return [
                row["id"] for row in (await house.call("GET", f"/conversations?q={words}"))["conversations"]
            ]

        assert await found("") == [second, first]
        assert await found("KETTLE") == [second, first]
        assert await found("100%25") == await found("tea_leaves") == [first]
        assert await found("beans") == [second] and await found("tea%25leaves") == []
        await house.call("DELETE", f"/conversations/{first}")
        assert await found("") == [second]
        await house.call("GET", f"/conversations/{first}", status=404)


async def test_a_turn_that_a_crash_cut_off_is_ended_in_the_next_process(
    open_house: Any, tmp_path: Any
) -> None:
    async with open_house(SEARCH, on=True) as house:
        id = await begun(house)
        await house.until(house.pending)
        rows = await house.pages.web.store.run(
            lambda c: c.execute("SELECT * FROM conversations").fetchall(), "read"
        )
    async with open_house(SEARCH) as house:  # the row as the crash left it
        await house.pages.web.store.run(lambda c: c.execute("DELETE FROM conversations"), "write")
        await house.pages.web.store.run(
            lambda c: c.executemany("INSERT INTO conversations VALUES (?,?,?,?,?,?,?,?,?)", rows), "write"
        )
        state = await house.call("GET", f"/conversations/{id}")
        assert (
            not state["running"]
            and state["entries"][1]["ended"]["words"] == "The server stopped during the answer."
        )
        assert state["entries"][1]["parts"][1]["state"] == "stopped"
        await house.call("POST", f"/conversations/{id}/turns", {"text": "And now?"}, status=202)
        assert (await house.ended(id))["entries"][3]["ended"]["why"] == "done"


async def test_a_conversation_is_exported_as_a_note_that_can_be_continued(open_house: Any) -> None:
    from toolwire.surfaces.conversation_note import parse

    async with open_house("say Use **80** degrees.") as house:
        id = await begun(house, 'Grüner Tea? "quoted"/\r\nx')
        await house.ended(id)
        async with house.client.get(
            f"{house.url}/ui/api/conversations/{id}/note?page={house.key}"
        ) as response:
            assert response.headers["content-type"].startswith("text/markdown")
            assert response.headers["content-disposition"].endswith(
                "filename*=UTF-8''Gr%C3%BCner%20Tea%20quoted%20x.md"
            )
            note = parse(await response.text())
        assert [message["role"] for message in note.messages] == ["user", "assistant"]
        assert note.model == "m" and note.messages[1]["content"] == "Use **80** degrees."


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/conversations", {}, 400),
        ("POST", "/conversations", {"model": "nothing"}, 404),
        ("POST", "/conversations", {"model": 3}, 400),
        ("POST", "/conversations", [1], 400),
        ("GET", "/conversations/none", None, 404),
        ("POST", "/conversations/none/turns", {"text": "x"}, 404),
        ("GET", "/conversations?limit=many", None, 400),
        ("PUT", "/settings", {"tool_calling": "yes"}, 400),
        ("PUT", "/settings", {"tool_models": [1]}, 400),
    ],
)
async def test_bad_requests_get_one_clear_error(
    open_house: Any, method: str, path: str, body: Any, status: int
) -> None:
    async with open_house() as house:
        refused = await house.call(method, path, body, status=status)
        assert refused["error"]["message"]


@pytest.mark.parametrize("text", ["", "  \n", "x" * 1_000_001])
async def test_an_empty_or_endless_message_is_refused(open_house: Any, text: str) -> None:
    async with open_house() as house:
        id = (await house.call("POST", "/conversations", {"model": "m"}))["id"]
        assert (await house.call("POST", f"/conversations/{id}/turns", {"text": text}, status=400))["error"][
            "param"
        ] == "text"


async def test_draining_ends_the_streams_of_the_tabs(open_house: Any) -> None:
    async with (
        open_house() as house,
        house.client.get(f"{house.url}/ui/api/events?page={house.key}") as response,
    ):
        await response.content.readuntil(b"\n\n")
        house.app.drain()
        rest = await asyncio.wait_for(response.content.read(), 5)
        assert rest == b""


async def test_a_tab_that_does_not_read_costs_bounded_memory_and_gets_the_event_lost(open_house: Any) -> None:
    from toolwire.surfaces.web.context import MOST_WAITING, Hub

    hub = Hub()
    tab = hub.subscribe()
    for number in range(MOST_WAITING * 3):
        hub.publish("turn", {"n": number})
    assert len(tab._waiting) <= MOST_WAITING
    frames = tab.frames({})
    await anext(frames)
    assert b"event: lost" in await anext(frames)


async def test_pieces_that_wait_together_become_one_operation() -> None:
    from toolwire.surfaces.web.context import Hub

    hub = Hub()
    tab = hub.subscribe()
    for number in range(500):
        hub.publish(
            "chat", {"conversation": "c", "prev": number, "seq": number + 1, "op": "text", "text": "ab"}
        )
    frames = tab.frames({})
    await anext(frames)
    block = await anext(frames)
    assert block.count(b"event: chat") == 1
    assert b'"prev": 0' in block and b'"seq": 500' in block and b"ab" * 500 in block


async def test_a_turn_that_arrives_slowly_does_not_bring_a_deleted_conversation_back(open_house: Any) -> None:
    async with open_house() as house:
        id = (await house.call("POST", "/conversations", {"model": "m"}))["id"]
        deleted = asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield b'{"text": '
            await deleted.wait()
            yield b'"Hello"}'

        async def asks(method: str, path: str) -> int:
            headers = {"x-toolwire-page": house.key}
            async with house.client.request(
                method, f"{house.url}/ui/api/conversations/{id}{path}", data=slowly(), headers=headers
            ) as response:
                return int(response.status)

        asked = [
            asyncio.ensure_future(asks(*one))
            for one in (("POST", "/turns"), ("POST", "/retry"), ("PATCH", ""))
        ]
        for _ in range(20):  # meanwhile they arrive, but for their bodies
            await house.call("GET", "/session")
        await house.call("DELETE", f"/conversations/{id}")
        deleted.set()
        assert await asyncio.gather(*asked) == [404, 404, 404]
        assert (await house.call("GET", "/conversations"))["conversations"] == []


async def test_a_turn_that_is_stopped_before_its_first_step_ends(open_house: Any) -> None:
    async with open_house("hang") as house:
        state = await house.call("POST", "/conversations", {"model": "m"})
        talk = next(api for api in house.pages._apis if hasattr(api, "_talks"))._talks[state["id"]]
        beginning = asyncio.ensure_future(talk.begin("Hello"))
        await asyncio.sleep(0)  # the turn is made, and has not run so far
        assert talk.running
        await talk.stop()
        await beginning
        assert not talk.running and talk.kept.entries[-1]["ended"]["why"] == "stopped"


async def test_switching_tool_calling_off_ends_pending_questions_and_nothing_runs(open_house: Any) -> None:
    async with open_house(SEARCH, on=True) as house:
        id = await begun(house)
        question = (await house.until(house.pending))[0]
        await house.call("PUT", "/settings", {"tool_calling": False})
        await house.call(
            "POST",
            f"/approvals/{question['id']}/decision",
            {"token": question["token"], "approved": True},
            status=409,
        )
        state = await house.ended(id)
        assert state["entries"][-1]["ended"]["why"] == "stopped"
        assert [part["state"] for part in state["entries"][-1]["parts"] if part["type"] == "call"] == [
            "stopped"
        ]


def _op(op: str, **data: Any) -> dict[str, Any]:
    return {"conversation": "c", "prev": 0, "seq": 1, "op": op, **data}


@pytest.mark.parametrize(
    "op",
    [
        _op("text", text="x" * 10_000),
        _op("call", id="i", result={"result": [{"note": {"content": "x" * 10_000}}]}),
    ],
)
def test_a_tab_that_does_not_read_holds_a_bounded_amount_of_text(op: dict[str, Any]) -> None:
    tab = Tab()
    for _ in range(MOST_CHARACTERS // 10_000 + 1):
        tab.put("chat", op)
    assert tab._waiting[0].type == "lost" and len(tab._waiting) < 200


async def test_a_server_that_ends_does_not_wait_for_a_tab_that_does_not_read(open_house: Any) -> None:
    async with open_house() as house:
        cookie = next(iter(house.client.cookie_jar))
        host, _, port = house.url.removeprefix("http://").partition(":")
        tab = socket.create_connection((host, int(port)))
        lines = (
            f"GET /ui/api/events?page={house.key} HTTP/1.1",
            f"host: {host}:{port}",
            f"cookie: {cookie.key}={cookie.value}",
        )
        tab.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode())
        hub = house.pages.web.hub

        async def falls_behind() -> bool:
            hub.publish(
                "chat", {"conversation": "c", "prev": 0, "seq": 1, "op": "text", "text": "x" * 100_000}
            )
            return any(len(one._waiting) and one._characters > 1_000_000 for one in hub._tabs)

        await house.until(falls_behind)
        began = time.monotonic()
    assert time.monotonic() - began < 4  # it may take 5 s for answers that are read
    tab.close()

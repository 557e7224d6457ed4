"""The wire inspector's API: turns as they went, from the request to the bytes, without secrets."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from toolwire.observe.fixture import read
from toolwire.observe.journal_files import TurnRecord
from toolwire.observe.replay import replay
from toolwire.surfaces.web.context import Json
from toolwire.surfaces.web.inspector import charts

OpenHouse = Callable[..., AbstractAsyncContextManager[Any]]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SCRIPT = 'chunk 4\nsay Let me look.\ncall get_weather {"city": "Paris"}\n---\nsay It is {result}.'
KEY = "a-plain-key-of-some-length"


async def complete(house: Any, *, key: str = "", request_id: str = "", **extra: Any) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": "Weather?"}], "tools": [TOOL], **extra}
    headers = {
        **({"authorization": f"Bearer {key}"} if key else {}),
        **({"x-request-id": request_id} if request_id else {}),
    }
    async with house.client.post(f"{house.url}/v1/chat/completions", json=body, headers=headers) as response:
        text: str = await response.text()
        return text


async def newest(house: Any) -> dict[str, Any]:
    found: dict[str, Any] = (await house.call("GET", "/turns?limit=1"))["turns"][0]
    return found


@pytest.mark.parametrize("tools", ["native", "emulated"])
async def test_a_turn_is_shown_from_the_request_to_the_bytes(open_house: OpenHouse, tools: str) -> None:
    async with open_house(SCRIPT, tools=tools) as house:
        raw = await complete(house, stream=True)
        turn = await newest(house)
        assert (turn["state"], turn["model"], turn["strategy"], turn["calls"], turn["status"]) == (
            "ended",
            "m",
            tools,
            ["get_weather"],
            200,
        )
        shown = await house.call("GET", f"/turns/{turn['id']}")
        assert shown["request"]["messages"] == [{"role": "user", "content": "Weather?"}]
        assert shown["turn"]["items"][0]["role"] == "user" and shown["plan"]["strategy"] == tools
        assert {row["field"]: row["how"] for row in shown["plan"]["report"]}["tools"] == (
            "honoured" if tools == "native" else "emulated"
        )
        assert (
            shown["got"]["text"].strip() == "Let me look."
            and shown["got"]["calls"][0]["name"] == "get_weather"
        )
        assert "Let me look." in shown["wrote"] and shown["contents"] == "memory" and shown["parked"] == []
        for kind, count in shown["counts"].items():
            page = await house.call("GET", f"/turns/{turn['id']}/frames?kind={kind}")
            assert page["total"] == count == len(page["rows"]) > 0
            assert [row[0] for row in page["rows"]] == sorted(row[0] for row in page["rows"])
        wire = (await house.call("GET", f"/turns/{turn['id']}/frames?kind=wire"))["rows"]
        assert "".join(text + "\n\n" for _, _, text in wire) == raw


async def test_rows_come_in_pages(open_house: OpenHouse) -> None:
    async with open_house("chunk 1\nsay " + "x" * 100) as house:
        await complete(house, stream=True)
        id = (await newest(house))["id"]
        whole = await house.call("GET", f"/turns/{id}/frames?kind=events")
        pages = [
            await house.call("GET", f"/turns/{id}/frames?kind=events&from={start}&count=40")
            for start in (0, 40, 80, 120)
        ]
        assert [row for page in pages for row in page["rows"]] == whole["rows"] and {
            page["total"] for page in pages
        } == {whole["total"]}
        await house.call("GET", f"/turns/{id}/frames?kind=nothing", status=400)


async def test_turns_are_listed_newest_first_by_pages_and_filters(open_house: OpenHouse) -> None:
    async with open_house(SCRIPT) as house:
        for number in range(5):
            await complete(
                house,
                model="other" if number == 2 else "m",
                **({"temperature": "hot"} if number == 4 else {}),
            )
        everything = (await house.call("GET", "/turns"))["turns"]
        assert [turn["at"] for turn in everything] == sorted(
            (turn["at"] for turn in everything), reverse=True
        ) and len(everything) == 5
        first = await house.call("GET", "/turns?limit=3")
        rest = await house.call("GET", f"/turns?limit=3&before={first['turns'][-1]['id']}")
        assert first["more"] and not rest["more"] and first["turns"] + rest["turns"] == everything
        assert [turn["model"] for turn in (await house.call("GET", "/turns?model=other"))["turns"]] == [
            "other"
        ]
        assert len((await house.call("GET", "/turns?tool=get_weather"))["turns"]) == 3
        assert [turn["error"] for turn in (await house.call("GET", "/turns?status=error"))["turns"]] == [
            "invalid_type"
        ]
        assert len((await house.call("GET", "/turns?status=ok"))["turns"]) == 4
        await house.call("GET", "/turns?before=yesterday", status=400)


async def test_a_parked_turn_shows_when_it_waited_and_which_turn_resumed_it(open_house: OpenHouse) -> None:
    async with open_house(SCRIPT, tools="parked") as house:
        message = json.loads(await complete(house))["choices"][0]["message"]
        parked = (await house.call("GET", "/turns?status=parked"))["turns"][0]
        assert (await house.call("GET", f"/turns/{parked['id']}"))["parked"][0]["to_ms"] is None
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
        assert "sunny" in await complete(
            house, messages=[{"role": "user", "content": "Weather?"}, message, result]
        )
        later = await newest(house)
        assert (later["kind"], later["resumed_from"]) == ("resumed", parked["id"])
        (before,) = (await house.call("GET", f"/turns/{later['id']}"))["parked"]
        (wait,) = (await house.call("GET", f"/turns/{parked['id']}"))["parked"]
        assert before == {"from_ms": -later["parked_ms"], "to_ms": 0, "turn": parked["id"]}
        assert wait["turn"] == later["id"] and wait["to_ms"] - wait["from_ms"] == pytest.approx(
            later["parked_ms"], abs=0.01
        )


async def test_a_turn_is_exported_as_a_command_and_a_fixture_and_replays_the_same(
    open_house: OpenHouse,
) -> None:
    async with open_house(SCRIPT) as house:
        raw = await complete(
            house, stream=True, messages=[{"role": "user", "content": "It's $HOME `id` \\ ünï"}]
        )
        id = (await newest(house))["id"]
        words = shlex.split((await house.call("GET", f"/turns/{id}/curl"))["curl"].replace("\\\n", ""))
        assert words[:3] == ["curl", "-N", f"{house.url}/v1/chat/completions"] and not any(
            "Authorization" in word for word in words
        )
        assert json.loads(words[-1])["messages"][0]["content"] == "It's $HOME `id` \\ ünï"
        async with house.client.get(f"{house.url}/ui/api/turns/{id}/fixture?page={house.key}") as response:
            assert response.headers["content-disposition"] == f'attachment; filename="{id}.jsonl"'
            fixture = await response.text()
        assert (await asyncio.to_thread(replay, read(fixture.splitlines()))).wire_now == raw
        shown = await house.call("POST", f"/turns/{id}/replay", {})
        assert shown == {"same": True, "differences": [], "wire_then": raw, "wire_now": raw}


async def test_keys_are_shown_nowhere(keyed_house: OpenHouse) -> None:
    async with keyed_house() as house:
        asked = {
            "messages": [{"role": "user", "content": f"my key is {KEY}"}],
            "metadata": {"password": "hunter2"},
        }
        await complete(house, key=KEY, request_id=KEY, **asked)
        turn = await newest(house)
        id = turn["id"]
        curl = (await house.call("GET", f"/turns/{id}/curl"))["curl"]
        assert "$TOOLWIRE_API_KEY" in curl
        shown = [
            curl,
            json.dumps(turn),
            json.dumps(await house.call("GET", f"/turns/{id}")),
            await house.call("GET", f"/turns/{id}/fixture"),
        ]
        shown += [
            json.dumps(await house.call("GET", f"/turns/{id}/frames?kind={kind}"))
            for kind in ("frames", "events", "wire")
        ]
        shown += [
            json.dumps(await house.call("POST", f"/turns/{id}/replay", {})),
            json.dumps(await house.call("GET", "/charts")),
        ]
        assert not any(KEY in text or "hunter2" in text for text in shown)


async def test_tabs_get_turns_as_events(open_house: OpenHouse) -> None:
    async with open_house(SCRIPT) as house, house.listening() as heard:
        await complete(house)

        async def ended() -> Any:
            return [data["turn"]["state"] for kind, data in heard if kind == "turn"] == ["running", "ended"]

        await house.until(ended)


async def test_an_unknown_turn_is_not_found(open_house: OpenHouse) -> None:
    async with open_house() as house:
        for path in ("", "/frames", "/curl", "/fixture"):
            await house.call("GET", f"/turns/turn_00{path}", status=404)
        await house.call("POST", "/turns/turn_00/replay", {}, status=404)
        await house.call("GET", "/charts?window=1y", status=400)


async def test_a_turn_whose_contents_are_deleted_still_has_its_line(open_house: OpenHouse) -> None:
    async with open_house() as house:
        await complete(house)
    async with open_house() as house:
        turn = await newest(house)
        shown = await house.call("GET", f"/turns/{turn['id']}")
        assert (shown["contents"], shown["request"], shown["counts"]) == (
            "gone",
            None,
            {"frames": 0, "events": 0, "wire": 0},
        )
        await house.call("GET", f"/turns/{turn['id']}/fixture", status=404)


async def test_the_charts_count_the_turns(open_house: OpenHouse) -> None:
    async with open_house(SCRIPT) as house:
        await complete(house)
        await complete(house, temperature="hot")
        await complete(house, model="other")
        shown = await house.call("GET", "/charts?window=1h")
        assert (shown["bucket_s"], len(shown["buckets"])) == (60, 60)
        assert (shown["totals"]["requests"], shown["totals"]["errors"], shown["totals"]["calls"]) == (3, 1, 1)
        assert sum(bucket["requests"] for bucket in shown["buckets"]) == 3
        assert shown["by_tool"] == [{"tool": "get_weather", "calls": 1}]
        assert {row["model"]: row["requests"] for row in shown["by_model"]} == {"m": 1, "other": 1, "": 1}
        assert (await house.call("GET", "/charts?window=1h&model=other"))["totals"]["requests"] == 1


def test_buckets_hold_their_own_turns_and_percentiles_are_of_those_that_answered() -> None:
    now = 10 * 24 * 3600.0 + 30
    records = [
        TurnRecord(
            f"turn_{n:x}", now - n * 60, status=200, first_byte_ms=float(n), input_tokens=n, output_tokens=1
        )
        for n in range(1, 21)
    ]
    records += [
        TurnRecord("turn_a0", now, error="server", status=500),
        TurnRecord("turn_a1", now - 7200, model="old"),
        TurnRecord("turn_a2", now, "running"),
    ]
    shown = charts(records, "1h", now)
    assert (
        shown["totals"]["requests"] == 21
        and shown["totals"]["errors"] == 1
        and shown["totals"]["tokens_in"] == 210
    )
    assert (shown["totals"]["ttft_ms_p50"], shown["totals"]["ttft_ms_p95"]) == (10.0, 19.0)
    assert [bucket["requests"] for bucket in shown["buckets"][-21:]] == [1] * 21
    assert shown["buckets"][-1]["errors"] == 1 and shown["buckets"][-1]["ttft_ms_p50"] is None


@pytest.mark.parametrize(
    "inside",
    [b'"\\ud800"', b"NaN", b"1e999", b"[" * 900 + b"]" * 900, b'"\xff"'],
    ids=["half a character", "no number", "beyond all numbers", "too deep", "no text"],
)
async def test_a_request_that_could_not_be_decoded_is_shown_and_replayed(
    open_house: OpenHouse, inside: bytes
) -> None:
    raw = b'{"model": "m", "messages": [], "user": ' + inside + b"}"
    async with open_house() as house:
        async with house.client.post(
            f"{house.url}/v1/chat/completions", data=raw, headers={"content-type": "application/json"}
        ) as response:
            assert response.status == 400
        id = (await newest(house))["id"]
        shown = await house.call("GET", f"/turns/{id}")
        assert shown["request"] == raw.decode("utf-8", "backslashreplace")
        assert shown["request"] in (await house.call("GET", f"/turns/{id}/curl"))["curl"]
        await house.call("GET", f"/turns/{id}/frames?kind=wire")
        assert (
            read((await house.call("GET", f"/turns/{id}/fixture")).splitlines()).request["raw"]
            == shown["request"]
        )
        replayed = await house.call("POST", f"/turns/{id}/replay")
        assert replayed["same"] or inside == b'"\xff"'


def test_an_answer_may_contain_half_a_character() -> None:
    answer = bytes(Json({"text": "ü \ud800"}).body)
    assert answer == '{"text":"ü \\ud800"}'.encode()
    assert json.loads(answer) == {"text": "ü \ud800"}

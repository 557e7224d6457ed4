"""Streamable HTTP: access, and clients that disconnect."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from toolwire.tools.contract import Decision

both_eras = pytest.mark.parametrize("mode", ["legacy", "auto"])
CALL = {
    "jsonrpc": "2.0",
    "id": 7,
    "method": "tools/call",
    "params": {"name": "file_read", "arguments": {"filePaths": ["Diary.md"]}},
}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}
HEADERS = {"authorization": "Bearer a-bearer-for-the-tests", "accept": "application/json, text/event-stream"}


@both_eras
async def test_a_client_searches_and_reads_with_consent(
    serve: Any, on_http: Any, connect: Any, form: Any, data: Any, mode: str
) -> None:
    person = form({"approve": True}, {"approve": True, "share_1": True}, {"approve": True, "share_1": True})
    async with on_http(serve()) as url, connect(url, mode, person) as client:
        found = data(await client.call_tool("vault_search", {"query": "launch code"}))
        path = found["result"]["results"][0]["path"]
        read = data(await client.call_tool("file_read", {"filePaths": [path]}))
    assert path == "Diary.md"
    assert "Zulu-4711" in read["result"][0]["content"]


@both_eras
async def test_a_call_of_a_client_without_forms_is_decided_in_the_inbox(
    serve: Any, on_http: Any, connect: Any, inbox: Any, data: Any, mode: str
) -> None:
    async with on_http(serve()) as url, connect(url, mode) as client:
        calling = asyncio.ensure_future(client.call_tool("file_read", {"filePaths": ["Diary.md"]}))
        await inbox.decide(await inbox.next(), Decision(True, picked=("Diary.md",)))
        assert "Zulu-4711" in data(await calling)["result"][0]["content"]


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"authorization": ""}, 401, "invalid_api_key"),
        ({"authorization": "Bearer wrong"}, 401, "invalid_api_key"),
        ({"authorization": "Basic a-bearer-for-the-tests"}, 401, "invalid_api_key"),
        ({"host": "evil.example"}, 403, "forbidden_host"),
        ({"host": "127.0.0.1.evil.example"}, 403, "forbidden_host"),
        ({"origin": "https://evil.example"}, 403, "forbidden_origin"),
        ({"origin": "null"}, 403, "forbidden_origin"),
    ],
)
async def test_unauthorized_requests_are_refused_before_anything_runs(
    serve: Any, on_http: Any, headers: dict[str, str], status: int, code: str
) -> None:
    served = serve()
    async with on_http(served) as url, httpx2.AsyncClient() as http:
        for body in (HELLO, CALL):
            answer = await http.post(url, json=body, headers={**HEADERS, **headers})
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
            if status == 401:
                assert answer.headers["www-authenticate"].startswith("Bearer")
    assert await served.approvals.records.listed() == []


async def test_a_header_that_controls_access_may_be_sent_only_once(serve: Any, on_http: Any) -> None:
    sent, other = list(HEADERS.items()), ("authorization", "Bearer other")
    async with on_http(serve()) as url, httpx2.AsyncClient() as http:
        assert (await http.post(url, json=HELLO, headers=sent)).status_code == 200
        for doubled in ([other, *sent], [*sent, other]):
            assert (await http.post(url, json=HELLO, headers=doubled)).status_code == 400


async def test_other_paths_than_the_endpoint_are_not_found(serve: Any, on_http: Any) -> None:
    async with on_http(serve()) as url, httpx2.AsyncClient() as http:
        assert (
            await http.post(url.replace("/mcp", "/v1/models"), json=HELLO, headers=HEADERS)
        ).status_code == 404
        assert (await http.post(url.replace("/mcp", "/v1/models"), json=HELLO)).status_code == 401


async def test_a_page_on_this_machine_may_ask_with_the_bearer_and_reads_the_session_header(
    serve: Any, on_http: Any
) -> None:
    async with on_http(serve()) as url, httpx2.AsyncClient() as http:
        asked = {
            "origin": "http://localhost:6274",
            "access-control-request-headers": "authorization, mcp-protocol-version",
        }
        preflight = await http.options(url, headers=asked)
        assert preflight.status_code == 204
        assert "mcp-protocol-version" in preflight.headers["access-control-allow-headers"]
        answer = await http.post(url, json=HELLO, headers={**HEADERS, "origin": "http://localhost:6274"})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "http://localhost:6274"
        assert "mcp-session-id" in answer.headers["access-control-expose-headers"]


async def test_a_question_expires_if_its_client_drops_the_connection(
    serve: Any, on_http: Any, inbox: Any
) -> None:
    served = serve()
    async with on_http(served) as url:
        async with httpx2.AsyncClient() as http:
            hello = await http.post(url, json=HELLO, headers=HEADERS)
            session = {
                **HEADERS,
                "mcp-session-id": hello.headers["mcp-session-id"],
                "mcp-protocol-version": "2025-11-25",
            }
            await http.post(
                url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session
            )
            async with http.stream("POST", url, json=CALL, headers=session) as answer:
                assert answer.status_code == 200
                approval = await inbox.next()
        await _expired(inbox, approval.id)


async def test_a_question_of_the_newer_protocol_expires_if_its_client_drops_the_connection(
    serve: Any, on_http: Any, connect: Any, inbox: Any
) -> None:
    async with on_http(serve()) as url:
        async with connect(url, "auto") as client:
            calling = asyncio.ensure_future(client.call_tool("file_read", {"filePaths": ["Diary.md"]}))
            approval = await inbox.next()
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
        await _expired(inbox, approval.id)


async def _expired(inbox: Any, id: str) -> None:
    for _ in range(500):
        found = await inbox.approvals.records.get(id)
        if found.status != "pending":
            break
        await asyncio.sleep(0.02)
    assert found.status == "expired"


async def test_a_client_cannot_use_the_session_of_another(
    serve: Any, on_http: Any, connect: Any, form: Any, inbox: Any
) -> None:
    """A grant for a session answers that client's calls and no other's."""
    served = serve()
    async with on_http(served) as url:
        async with connect(url, "legacy") as first:
            calling = asyncio.ensure_future(first.call_tool("vault_tags", {}))
            await inbox.decide(await inbox.next(), Decision(True, remember="session"))
            assert not (await calling).is_error
            assert not (await first.call_tool("vault_tags", {})).is_error
        person = form("decline")
        async with connect(url, "legacy", person) as second:
            assert (await second.call_tool("vault_tags", {})).is_error
        assert len(person.shown) == 1


async def test_without_a_session_an_approval_for_the_session_answers_no_other_request(
    serve: Any, on_http: Any, connect: Any, form: Any, inbox: Any
) -> None:
    async with on_http(serve()) as url:
        async with connect(url, "auto") as first:
            calling = asyncio.ensure_future(first.call_tool("vault_tags", {}))
            await inbox.decide(await inbox.next(), Decision(True, remember="session"))
            assert not (await calling).is_error
        person = form("decline")
        async with connect(url, "auto", person) as second:
            assert (await second.call_tool("vault_tags", {})).is_error
        assert len(person.shown) == 1

"""The routes other than turns: models, stored responses, health, metrics, the access log."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from toolwire.access.keys import key_id_of
from toolwire.core.turn import Message, TextPart
from toolwire.gateway.pipeline import TurnSummary
from toolwire.store.store import StoredResponse

PLAIN_SUMMARY: dict[str, Any] = {
    "request_id": "req_1",
    "key_id": "",
    "api": "chat",
    "model": "demo",
    "backend": "scripted",
    "strategy": "native",
    "stream": True,
    "status": 200,
    "finish": "tool_calls",
    "error_kind": None,
    "tool_call_count": 2,
    "tool_call_names": ("get_weather", "get_time"),
    "tool_call_ids": ("call_1", "call_2"),
    "tool_call_truncated": False,
    "output_mode": "openai-json",
    "input_tokens": 10,
    "output_tokens": 5,
    "first_byte_s": 0.02,
    "duration_s": 0.5,
    "report": "seed=ignored",
    "cancelled": False,
}


def summary(**changes: Any) -> TurnSummary:
    return TurnSummary(**{**PLAIN_SUMMARY, **changes})


def stored(id: str, key_id: str = "", items: int = 3) -> StoredResponse:
    wire = [
        {
            "id": f"msg_{n}",
            "type": "message",
            "role": "user",
            "status": "completed",
            "content": [{"type": "input_text", "text": str(n)}],
        }
        for n in range(1, items + 1)
    ]
    body = json.dumps({"id": id, "object": "response", "status": "completed"}).encode()
    return StoredResponse(
        id, key_id, 1, "demo", "completed", None, body, wire, (Message("user", (TextPart("x"),)),)
    )


# --- models ---


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/v1/models/"])
async def test_models_are_listed_in_the_order_of_the_configuration(
    serving: Callable[..., Any], path: str
) -> None:
    async with serving(models=("zeta", "acme/alpha")) as site, site.client.get(site.url(path)) as answer:
        body = await answer.json()
        assert body["object"] == "list"
        assert [model["id"] for model in body["data"]] == ["zeta", "acme/alpha"]
        assert all(
            set(m) == {"id", "object", "created", "owned_by"}
            and m["object"] == "model"
            and m["owned_by"] == "toolwire"
            for m in body["data"]
        )


@pytest.mark.parametrize("path", ["/v1/models/acme/alpha", "/v1/models/acme%2Falpha", "/models/acme/alpha/"])
async def test_a_model_s_id_may_contain_slashes(serving: Callable[..., Any], path: str) -> None:
    async with serving(models=("acme/alpha",)) as site, site.client.get(site.url(path)) as answer:
        assert answer.status == 200
        assert (await answer.json())["id"] == "acme/alpha"


async def test_an_unknown_model_is_a_404_with_openai_s_code(site: Any) -> None:
    async with site.client.get(site.url("/v1/models/none")) as answer:
        assert answer.status == 404
        assert (await answer.json())["error"]["code"] == "model_not_found"


# --- stored responses ---


async def test_a_stored_response_comes_back_byte_for_byte_and_can_be_deleted(site: Any) -> None:
    await site.store.put(stored("resp_1"))
    async with site.client.get(site.url("/v1/responses/resp_1")) as answer:
        assert answer.status == 200 and answer.content_type == "application/json"
        assert await answer.read() == stored("resp_1").response
    async with site.client.delete(site.url("/v1/responses/resp_1")) as answer:
        assert await answer.json() == {"id": "resp_1", "object": "response", "deleted": True}
    for method in ("GET", "DELETE"):
        async with site.client.request(method, site.url("/responses/resp_1")) as answer:
            assert answer.status == 404
            assert "resp_1" in (await answer.json())["error"]["message"]


@pytest.mark.parametrize(
    ("query", "ids", "has_more"),
    [
        ("", ["msg_5", "msg_4", "msg_3", "msg_2", "msg_1"], False),
        ("?order=asc", ["msg_1", "msg_2", "msg_3", "msg_4", "msg_5"], False),
        ("?order=asc&limit=2", ["msg_1", "msg_2"], True),
        ("?order=asc&limit=2&after=msg_2", ["msg_3", "msg_4"], True),
        ("?order=asc&limit=2&after=msg_4", ["msg_5"], False),
        ("?limit=1&after=msg_2", ["msg_1"], False),
        ("?after=msg_1", [], False),
    ],
)
async def test_input_items_are_paged_as_openai_pages(
    site: Any, query: str, ids: list[str], has_more: bool
) -> None:
    await site.store.put(stored("resp_1", items=5))
    async with site.client.get(site.url(f"/v1/responses/resp_1/input_items{query}")) as answer:
        body = await answer.json()
    assert [item["id"] for item in body["data"]] == ids
    assert (body["object"], body["has_more"]) == ("list", has_more)
    assert (body["first_id"], body["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("order=up", "order"),
        ("after=zz", "after"),
    ],
)
async def test_a_bad_page_names_its_parameter(site: Any, query: str, param: str) -> None:
    await site.store.put(stored("resp_1"))
    async with site.client.get(site.url(f"/v1/responses/resp_1/input_items?{query}")) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["param"] == param


async def test_a_completed_response_cannot_be_cancelled(site: Any) -> None:
    await site.store.put(stored("resp_1"))
    for id, status in (("resp_1", 400), ("resp_none", 404)):
        async with site.client.post(site.url(f"/v1/responses/{id}/cancel"), json={}) as answer:
            assert answer.status == status
            assert (await answer.json())["error"]["type"] == "invalid_request_error"


async def test_a_key_sees_only_its_own_responses(serving: Callable[..., Any]) -> None:
    async with serving(keys=("mine", "theirs")) as site:
        await site.store.put(stored("resp_1", key_id_of("mine")))
        for method, path in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
            url = site.url(f"/v1/responses/resp_1{path}")
            async with site.client.request(method, url, headers={"Authorization": "Bearer theirs"}) as answer:
                assert answer.status == 404
        async with site.client.get(
            site.url("/v1/responses/resp_1"), headers={"Authorization": "Bearer mine"}
        ) as answer:
            assert answer.status == 200


# --- health and metrics ---


async def test_readiness_follows_the_gateway(site: Any) -> None:
    for is_ready, status in ((True, 200), (False, 503)):
        site.gateway.is_ready = is_ready
        async with site.client.get(site.url("/readyz")) as answer:
            assert answer.status == status
            assert (await answer.json())["ok"] is is_ready
        async with site.client.get(site.url("/healthz")) as answer:
            assert answer.status == 200


async def test_the_root_describes_the_server(site: Any) -> None:
    for path in ("/", "/v1"):
        async with site.client.get(site.url(path), headers={"accept": "application/json"}) as answer:
            assert (await answer.json())["name"] == "toolwire"


async def test_metrics_count_turns_tokens_calls_and_times(site: Any) -> None:
    for observer in site.gateway.observers:
        observer(summary())
        observer(summary(cancelled=True, tool_call_truncated=True))
        observer(summary(api="responses", status=502, first_byte_s=None, input_tokens=0, tool_call_count=0))
    async with site.client.get(site.url("/metrics")) as answer:
        assert answer.content_type == "text/plain"
        page = await answer.text()
    for line in (
        'toolwire_requests_total{api="chat",model="demo",status="200",strategy="native"} 2.0',
        'toolwire_requests_total{api="responses",model="demo",status="502",strategy="native"} 1.0',
        'toolwire_requests_cancelled_total{api="chat",model="demo"} 1.0',
        'toolwire_input_tokens_total{api="chat",model="demo"} 20.0',
        'toolwire_output_tokens_total{api="chat",model="demo"} 10.0',
        'toolwire_tool_calls_total{api="chat",model="demo"} 4.0',
        'toolwire_turns_truncated_total{api="chat",model="demo"} 1.0',
        'toolwire_first_byte_seconds_count{api="chat",model="demo"} 2.0',
        'toolwire_request_seconds_count{api="responses",model="demo"} 1.0',
        "toolwire_streams_open 0.0",
    ):
        assert line in page


async def test_models_that_are_not_configured_share_one_label(site: Any) -> None:
    for number in range(50):
        site.app.metrics.observe(summary(model=f"made-up-{number}", status=404))
    page = site.app.metrics.page("")[0].decode()
    assert 'model="unknown",status="404",strategy="native"} 50.0' in page and "made-up" not in page


async def test_refusals_of_the_surface_are_counted_apart_from_turns(site: Any) -> None:
    async with site.client.get(site.url("/nope")):
        pass
    assert site.app.metrics.registry.get_sample_value("toolwire_http_refusals_total", {"status": "404"}) == 1


async def test_a_turn_is_one_json_line_at_level_info(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    def turn_ends() -> list[str]:
        caplog.clear()
        for observer in site.gateway.observers:
            observer(summary(model="x" * 1000))
        return [record.getMessage() for record in caplog.records if record.name == "toolwire.access"]

    with caplog.at_level(logging.WARNING, "toolwire.access"):
        assert turn_ends() == []
    with caplog.at_level(logging.INFO, "toolwire.access"):
        (line,) = turn_ends()
    fields = json.loads(line)
    assert "\n" not in line and len(fields["model"]) == 128
    assert (
        fields["tool_call_names"] == ["get_weather", "get_time"]
        and fields["duration_ms"] == 500.0
        and fields["first_byte_ms"] == 20.0
    )

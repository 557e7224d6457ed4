"""Authentication: the gate as tables, and through a real socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from toolwire.access.gate import Gate
from toolwire.access.keys import key_id_of
from toolwire.core.errors import ToolwireError
from toolwire.settings.types import ServerSettings

CHAT = "/v1/chat/completions"
LOOPBACK_HOST = {b"host": b"127.0.0.1:8788"}


def _check_place(gate: Gate, headers: dict[bytes, bytes], version: str = "1.1") -> None:
    gate.check_place(headers, {"headers": list(headers.items()), "http_version": version})


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        (b"localhost", True),
        (b"localhost:8788", True),
        (b"LOCALHOST:1", True),
        (b"localhost.", True),
        (b"127.0.0.1:8788", True),
        (b"127.9.8.7", True),
        (b"[::1]:8788", True),
        (b"gateway.lan:80", True),
        (b"evil.example", False),
        (b"evil.example:8788", False),
        (b"localhost.evil.example", False),
        (b"127.0.0.1.evil.example", False),
        (b"128.0.0.1", False),
        (b"[::2]", False),
        (b"localhost@evil.example", False),
        (b"", False),
        (b"\xff\xfe", False),
    ],
)
def test_a_loopback_server_answers_only_to_its_own_names(host: bytes, allowed: bool) -> None:
    gate = Gate(ServerSettings(hosts=("Gateway.lan",)))
    for _ in range(2):  # checked, then cached
        if allowed:
            _check_place(gate, {b"host": host})
        else:
            with pytest.raises(ToolwireError) as caught:
                _check_place(gate, {b"host": host})
            assert caught.value.failure.kind == "forbidden_host"


def test_a_missing_host_is_only_forgiven_to_old_http() -> None:
    gate = Gate(ServerSettings())
    _check_place(gate, {}, "1.0")
    with pytest.raises(ToolwireError):
        _check_place(gate, {}, "1.1")


def test_a_public_server_answers_to_any_name() -> None:
    _check_place(Gate(ServerSettings(host="0.0.0.0", keys=("k",))), {b"host": b"api.example.com"})


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (b"app://obsidian.md", True),
        (b"capacitor://localhost", True),
        (b"http://localhost", True),
        (b"http://localhost:5173", True),
        (b"https://127.0.0.1:8443", True),
        (b"http://[::1]:3000", True),
        (b"https://notes.example", True),
        (b"https://notes.example/", True),
        (b"https://notes.example:444", False),
        (b"http://notes.example", False),
        (b"https://evil.example", False),
        (b"https://localhost.evil.example", False),
        (b"https://evil.example/?http://localhost", False),
        (b"http://localhost@evil.example", False),
        (b"app://evil", False),
        (b"app://obsidian.md.evil", False),
        (b"file://localhost", False),
        (b"null", False),
        (b"", False),
    ],
)
def test_an_origin_is_allowed_by_list_or_by_loopback(origin: bytes, allowed: bool) -> None:
    gate = Gate(ServerSettings(origins=("https://notes.example",)))
    headers = {**LOOPBACK_HOST, b"origin": origin}
    for _ in range(2):
        if allowed:
            _check_place(gate, headers)
            assert (b"access-control-allow-origin", origin) in gate.cors(headers)
        else:
            with pytest.raises(ToolwireError) as caught:
                _check_place(gate, headers)
            assert caught.value.failure.kind == "forbidden_origin"
            assert not any(name == b"access-control-allow-origin" for name, _ in gate.cors(headers))


def test_a_server_s_own_pages_are_not_foreign() -> None:
    gate = Gate(ServerSettings(host="0.0.0.0", keys=("k",)))
    _check_place(gate, {b"host": b"gw.example", b"origin": b"https://gw.example"})
    with pytest.raises(ToolwireError):
        _check_place(gate, {b"host": b"gw.example", b"origin": b"https://other.example"})


def test_the_star_opens_all_origins_only_with_keys() -> None:
    for keys, allowed in ((("k",), True), ((), False)):
        gate = Gate(ServerSettings(origins=("*",), keys=keys))
        assert gate.origin_allowed(b"https://anything.example", b"localhost") is allowed


def test_verdicts_do_not_grow_without_bound() -> None:
    gate = Gate(ServerSettings())
    for number in range(2000):
        gate.origin_allowed(b"https://h%d.example" % number, None)
    assert len(gate._origin_verdicts) <= 256


@pytest.mark.parametrize(
    ("authorization", "who"),
    [
        (b"Bearer first", "first"),
        (b"bearer first", "first"),
        (b"BEARER   second ", "second"),
        (b"Bearer firs", None),
        (b"Bearer first2", None),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"Basic first", None),
        (b"first", None),
        (None, None),
    ],
)
def test_a_key_is_known_by_its_whole_text(authorization: bytes | None, who: str | None) -> None:
    gate = Gate(ServerSettings(keys=("first", "second")))
    headers = {} if authorization is None else {b"authorization": authorization}
    if who is None:
        with pytest.raises(ToolwireError) as caught:
            gate.check_caller(headers, ("127.0.0.1", 1))
        assert caught.value.failure.kind == "authentication"
    else:
        assert gate.check_caller(headers, ("192.0.2.1", 1)) == key_id_of(who)


@pytest.mark.parametrize(
    ("peer", "allowed"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.0.2.7", False),
        ("fe80::1%eth0", False),
    ],
)
def test_without_keys_only_this_machine_is_served(peer: str, allowed: bool) -> None:
    gate = Gate(ServerSettings())
    if allowed:
        assert gate.check_caller({b"authorization": b"Bearer whatever"}, (peer, 1)) == ""
    else:
        with pytest.raises(ToolwireError) as caught:
            gate.check_caller({}, (peer, 1))
        assert caught.value.failure.kind == "permission"


def test_a_key_s_id_does_not_show_the_key() -> None:
    assert "secret" not in key_id_of("secret-key") and len(key_id_of("secret-key")) == 12


# --- through the socket ---


async def test_a_preflight_is_answered_before_anything_else_and_echoes_the_headers_it_asks_for(
    serving: Callable[..., Any],
) -> None:
    asked = "authorization, content-type, x-stainless-os, x-some-new-header"
    async with serving(keys=("k",)) as site:
        headers = {
            "Origin": "app://obsidian.md",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": asked,
        }
        for path in (CHAT, "/v1/models", "/no/such/route"):
            async with site.client.options(site.url(path), headers=headers) as answer:
                assert answer.status == 204
                assert answer.headers["Access-Control-Allow-Origin"] == "app://obsidian.md"
                assert answer.headers["Access-Control-Allow-Headers"] == asked
                assert (
                    "POST" in answer.headers["Access-Control-Allow-Methods"]
                    and "DELETE" in answer.headers["Access-Control-Allow-Methods"]
                )
                assert await answer.read() == b""
        assert site.gateway.calls == []


@pytest.mark.parametrize(
    ("origin", "granted"), [("app://obsidian.md", True), ("https://evil.example", False)]
)
async def test_private_network_access_is_granted_to_allowed_origins_only(
    site: Any, origin: str, granted: bool
) -> None:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Private-Network": "true",
    }
    async with site.client.options(site.url(CHAT), headers=headers) as answer:
        assert answer.status == 204
        assert ("Access-Control-Allow-Private-Network" in answer.headers) is granted
        assert ("Access-Control-Allow-Origin" in answer.headers) is granted


async def test_a_foreign_origin_is_refused_before_anything_runs_even_with_a_key(
    serving: Callable[..., Any],
) -> None:
    async with serving(keys=("k",)) as site:
        headers = {"Origin": "https://evil.example", "Authorization": "Bearer k"}
        for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/healthz")):
            async with site.client.request(
                method, site.url(path), headers=headers, json={} if method == "POST" else None
            ) as answer:
                assert answer.status == 403
                assert (await answer.json())["error"]["code"] == "forbidden_origin"
        assert site.gateway.calls == []


async def test_a_rebound_host_name_is_refused(site: Any) -> None:
    async with site.client.post(site.url(CHAT), json={}, headers={"Host": "evil.example:8788"}) as answer:
        assert answer.status == 403
        assert (await answer.json())["error"]["code"] == "forbidden_host"
    assert site.gateway.calls == []


async def test_answers_and_errors_have_cors_headers(serving: Callable[..., Any]) -> None:
    async with serving(keys=("k",)) as site:
        for headers, status in (
            ({"Authorization": "Bearer k"}, 200),
            ({}, 401),
            ({"Authorization": "Bearer k", "Content-Type": "text/plain"}, 415),
        ):
            headers = {"Content-Type": "application/json", "Origin": "app://obsidian.md", **headers}
            async with site.client.post(site.url(CHAT), data=b"{}", headers=headers) as answer:
                assert answer.status == status
                assert answer.headers["Access-Control-Allow-Origin"] == "app://obsidian.md"
                exposed = answer.headers["Access-Control-Expose-Headers"]
                assert (
                    "x-toolwire-report" in exposed
                    and "x-request-id" in exposed
                    and "x-codex-tool-call-count" in exposed
                )


async def test_a_wrong_key_gets_openai_s_401(serving: Callable[..., Any]) -> None:
    async with serving(keys=("right",)) as site:
        posts, gets = (CHAT, "/v1/responses"), ("/v1/models", "/v1/responses/resp_1", "/metrics")
        for method, path in [
            *(("POST", path) for path in posts),
            *(("GET", path) for path in gets),
            ("HEAD", CHAT),
        ]:
            async with site.client.request(
                method, site.url(path), headers={"Authorization": "Bearer wrong"}
            ) as answer:
                assert answer.status == 401, path
                assert answer.headers["WWW-Authenticate"].startswith("Bearer")
                if method != "HEAD":
                    error = (await answer.json())["error"]
                    assert (
                        error["code"] == "invalid_api_key"
                        and error["type"] == "invalid_request_error"
                        and error["param"] is None
                    )
                    assert "wrong" not in error["message"]
        assert site.gateway.calls == []


async def test_the_gateway_gets_the_name_of_the_key_and_never_the_key(serving: Callable[..., Any]) -> None:
    async with serving(keys=("one", "two")) as site:
        for key in ("one", "two"):
            async with site.client.post(
                site.url(CHAT), json={}, headers={"Authorization": f"Bearer {key}"}
            ) as answer:
                assert answer.status == 200
        assert [caller.key_id for _, _, caller in site.gateway.calls] == [key_id_of("one"), key_id_of("two")]


async def test_health_needs_no_key(serving: Callable[..., Any]) -> None:
    async with serving(keys=("k",)) as site:
        for path in ("/healthz", "/livez", "/readyz"):
            async with site.client.get(site.url(path)) as answer:
                assert answer.status == 200

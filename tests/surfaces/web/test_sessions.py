"""The pages' API is open only to a session, from the server's own pages, with its page key."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from toolwire.surfaces.web.routes import enter_path
from toolwire.surfaces.web.sessions import LIFETIME_S, LINK_S, Sessions

ADMIN = "an-admin-key-of-some-length"


def stranger() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))


async def test_a_local_program_without_a_session_reaches_nothing_of_the_api(open_house: Any) -> None:
    async with open_house() as house, stranger() as client:
        rows = [row for api in house.pages._apis for row in api.routes()]
        assert len(rows) > 20
        for method, path, _ in rows:
            async with client.request(
                method, f"{house.url}/ui/api{path.replace('{id}', 'x').replace('{client}', 'x')}", json={}
            ) as response:
                assert response.status == 401, (method, path)
                assert (await response.json())["error"]["code"] == "invalid_api_key"


async def test_the_one_time_link_works_once(open_house: Any) -> None:
    async with open_house() as house, stranger() as first, stranger() as second:
        link = house.url + enter_path(await house.pages.sessions.link())
        async with first.get(link, allow_redirects=False) as response:
            assert response.status == 303 and re.fullmatch(
                "/#page=[0-9a-f]{40}", response.headers["location"]
            )
            cookie = response.headers["set-cookie"]
        assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower() and "Path=/" in cookie
        async with second.get(link, allow_redirects=False) as response:
            assert response.headers["location"] == "/?link=used"
            assert "set-cookie" not in response.headers
        async with second.get(f"{house.url}/ui/api/session") as response:
            assert response.status == 401


async def test_opening_a_used_link_keeps_an_existing_session(open_house: Any) -> None:
    async with open_house() as house:
        async with house.client.get(f"{house.url}/ui/enter?token=old", allow_redirects=False) as response:
            assert response.headers["location"] == "/"
        await house.call("GET", "/session")


async def test_a_session_can_make_a_link_for_another_browser(open_house: Any) -> None:
    async with open_house() as house, stranger() as phone:
        link = (await house.call("POST", "/session/link"))["url"]
        async with phone.get(link, allow_redirects=False) as response:
            page = response.headers["location"].removeprefix("/#page=")
        async with phone.get(f"{house.url}/ui/api/session?page={page}") as response:
            assert response.status == 200


async def test_an_admin_key_starts_a_session_and_a_plain_key_does_not(keyed_house: Any) -> None:
    async with keyed_house() as house, stranger() as client:
        for key in ("wrong", "a-plain-key-of-some-length", ""):
            async with client.post(f"{house.url}/ui/api/session", json={"key": key}) as response:
                assert response.status == 401
        async with client.post(f"{house.url}/ui/api/session", json={"key": ADMIN}) as response:
            assert response.status == 200
            page = (await response.json())["page"]
        async with client.get(f"{house.url}/ui/api/session", headers={"x-toolwire-page": page}) as response:
            assert response.status == 200
        async with client.get(
            f"{house.url}/v1/models", headers={"authorization": f"Bearer {ADMIN}"}
        ) as response:
            assert response.status == 200


@pytest.mark.parametrize("key", ["", "0" * 40, "ü"])
async def test_the_cookie_alone_opens_nothing(open_house: Any, key: str) -> None:
    """A browser sends the cookie to every port of its host, so a server on another port gets it."""
    async with open_house() as house:
        for method, path in (
            ("GET", "/session"),
            ("GET", "/events"),
            ("GET", "/approvals"),
            ("PUT", "/settings"),
            ("POST", "/session/link"),
        ):
            await house.call(
                method,
                path,
                {"tool_calling": True},
                status=401,
                headers={"x-toolwire-page": key.encode().decode("latin-1")},
            )
        await house.call(
            "PUT",
            f"/settings?page={house.key}",
            {"tool_calling": True},
            status=401,
            headers={"x-toolwire-page": ""},
        )
        assert (await house.call("GET", "/settings"))["tool_calling"] is False


async def test_the_page_key_of_one_session_does_not_open_another(open_house: Any) -> None:
    async with open_house() as house, stranger() as phone:
        async with phone.get((await house.call("POST", "/session/link"))["url"]) as response:
            assert response.status == 200
        async with phone.get(
            f"{house.url}/ui/api/session", headers={"x-toolwire-page": house.key}
        ) as response:
            assert response.status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {
            "origin": "http://localhost:3000"
        },  # another port of this machine: allowed to the model API, never here
        {"origin": "app://obsidian.md"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site"},
    ],
)
async def test_no_other_origin_reaches_the_api_even_with_the_cookie_and_the_token(
    open_house: Any, headers: dict[str, str]
) -> None:
    async with open_house() as house:
        for method, path in (
            ("GET", "/session"),
            ("GET", "/events"),
            ("PUT", "/settings"),
            ("POST", "/session"),
        ):
            async with house.client.request(
                method,
                f"{house.url}/ui/api{path}",
                json={},
                headers={"x-toolwire-page": house.key, **headers},
            ) as response:
                assert response.status == 403
                assert "access-control-allow-origin" not in response.headers


async def test_the_page_itself_and_its_own_origin_are_admitted(open_house: Any) -> None:
    async with open_house() as house:
        await house.call("GET", "/session", headers={"origin": house.url, "sec-fetch-site": "same-origin"})


@pytest.mark.parametrize(
    "path", ["/", "/ui/inbox", "/ui/api/session", "/ui/static/app.js", "/ui/enter?token=x"]
)
async def test_a_rebound_host_gets_403(open_house: Any, path: str) -> None:
    async with (
        open_house() as house,
        house.client.get(house.url + path, headers={"host": "evil.example"}) as response,
    ):
        assert response.status == 403
        assert (await response.json())["error"]["code"] == "forbidden_host"


async def test_signing_out_ends_the_session(open_house: Any) -> None:
    async with open_house() as house:
        cookie = {c.key: c.value for c in house.client.cookie_jar}
        await house.call("DELETE", "/session")
        async with (
            stranger() as client,
            client.get(f"{house.url}/ui/api/session", cookies=cookie) as response,
        ):
            assert response.status == 401


async def test_a_session_outlives_a_restart_and_the_store_knows_only_its_hash(open_house: Any) -> None:
    async with open_house() as house:
        cookie = next(iter(house.client.cookie_jar))
        dump = await house.pages.web.store.run(lambda c: "\n".join(c.iterdump()), "read")
        assert cookie.value not in dump and house.key not in dump
        token = cookie.value
    async with open_house() as house:
        assert await house.pages.sessions.valid(token)


async def test_links_and_sessions_end_with_their_time() -> None:
    from toolwire.store.store import Store

    now = 1000.0
    store = Store("sqlite://")
    sessions = Sessions(store, (), lambda: now)
    try:
        late, token = await sessions.link(), await sessions.enter(await sessions.link())
        assert token is not None and await sessions.valid(token)
        now += LINK_S + 1
        assert await sessions.enter(late) is None
        assert await sessions.valid(token)
        now += LIFETIME_S - 10  # seen in between: it goes on
        assert await sessions.valid(token)
        now += LIFETIME_S + 1
        assert not await sessions.valid(token)
    finally:
        await store.close()


async def test_every_page_is_one_shell_whose_policy_runs_only_its_own_files(open_house: Any) -> None:
    async with open_house() as house, stranger() as client:
        for path in (
            "/",
            "/ui/",
            "/ui/inbox/",
            "/ui/chat/x",
            "/ui/inbox",
            "/ui/wire",
            "/ui/wire/t",
            "/ui/connect",
            "/ui/settings",
        ):
            async with client.get(house.url + path) as response:
                assert response.status == 200
                assert response.headers["content-type"].startswith("text/html")
                policy = response.headers["content-security-policy"]
                assert (
                    "default-src 'none'" in policy
                    and "unsafe" not in policy
                    and "require-trusted-types-for 'script'" in policy
                )
                assert response.headers["x-frame-options"] == "DENY"
                tag = response.headers["etag"]
            async with client.get(house.url + path, headers={"if-none-match": tag}) as response:
                assert response.status == 304


async def test_the_root_as_json_names_the_api(open_house: Any) -> None:
    async with (
        open_house() as house,
        house.client.get(house.url + "/", headers={"accept": "application/json"}) as response,
    ):
        assert await response.json() == {"name": "toolwire", "api": "/v1"}


@pytest.mark.parametrize(
    "path",
    [
        "/ui/nothing",
        "/ui/static/nothing.js",
        "/ui/static/..%2f..%2froutes.py",
        "/ui/api/nothing",
        "/ui/static/",
    ],
)
async def test_an_unknown_path_is_an_error_object(open_house: Any, path: str) -> None:
    from yarl import URL

    async with open_house() as house, house.client.get(URL(house.url + path, encoded=True)) as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "unknown_url"


@pytest.mark.parametrize(
    ("method", "headers"),
    [("HEAD", {}), ("GET", {"sec-purpose": "prefetch;prerender"}), ("GET", {"purpose": "prefetch"})],
)
async def test_a_prefetch_does_not_use_up_the_link(
    open_house: Any, method: str, headers: dict[str, str]
) -> None:
    async with open_house() as house, stranger() as ahead, stranger() as person:
        link = house.url + enter_path(await house.pages.sessions.link())
        async with ahead.request(method, link, headers=headers, allow_redirects=False) as response:
            assert response.status in (204, 503) and "set-cookie" not in response.headers
        async with person.get(link, allow_redirects=False) as response:
            assert response.headers["location"].startswith("/#page=") and "set-cookie" in response.headers


PROXIED = {"x-forwarded-proto": "https", "x-forwarded-for": "192.0.2.7"}


async def test_behind_a_trusted_proxy_with_tls_the_cookie_is_secure_and_addresses_are_those_of_the_proxy(
    open_house: Any,
) -> None:
    async with open_house(proxies=("127.0.0.1",)) as house, stranger() as client:
        link = house.url + enter_path(await house.pages.sessions.link())
        async with client.get(link, headers=PROXIED, allow_redirects=False) as response:
            assert "secure" in response.headers["set-cookie"].lower().split("; ")
        session = await house.call("GET", "/session", headers=PROXIED)
        assert session["base_url"] == house.url.replace("http:", "https:") + "/v1"


async def test_headers_of_an_untrusted_proxy_change_no_address(open_house: Any) -> None:
    async with open_house() as house:
        session = await house.call("GET", "/session", headers={"x-forwarded-proto": "https"})
        assert session["base_url"] == house.url + "/v1"


async def test_a_session_that_ends_while_a_request_is_checked_stays_ended(tmp_path: Path) -> None:
    from toolwire.store.store import Store

    store = Store(f"sqlite:///{tmp_path}/store.db")
    try:
        before = Sessions(store)
        token = await before.enter(await before.link())
        assert token is not None
        sessions = Sessions(store)  # a process that has to ask the store
        await asyncio.gather(sessions.valid(token), sessions.end(token))
        assert not await sessions.valid(token)
    finally:
        await store.close()


async def test_an_invalid_number_is_refused(open_house: Any) -> None:
    async with open_house() as house:
        for wrong in ("²", "x", "-1", "٣"):
            refused = await house.call("GET", f"/conversations?limit={wrong}", status=400)
            assert refused["error"]["param"] == "limit"


async def test_a_client_that_disconnects_in_its_body_is_no_server_error(
    open_house: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_house() as house:
        host = house.url.removeprefix("http://").encode()
        messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
        sent: list[Any] = []

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        where = {
            "type": "http",
            "method": "POST",
            "path": "/ui/api/session",
            "query_string": b"",
            "client": ("127.0.0.1", 1),
        }
        await house.app({**where, "headers": [(b"host", host)]}, receive, send)
        assert not sent and not [record for record in caplog.records if record.levelname == "ERROR"]

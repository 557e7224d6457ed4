"""Connecting a client: what to paste agrees with the documentation, and the round trip is a real one."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import tomllib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from yarl import URL

from toolwire.access.gate import OWN
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Call, Message, Result
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.types import ServerSettings, Settings
from toolwire.store.store import Store
from toolwire.surfaces.web.clients import BY_ID, CLIENTS, KEY, fill, values_of
from toolwire.surfaces.web.connect import NAME, QUESTION, RESULT, ConnectApi
from toolwire.surfaces.web.context import Hub, Web
from toolwire.surfaces.web.tools import Preferences, WebTools
from toolwire.surfaces.web.tours import Tours
from toolwire.testing import ScriptedBackend, ScriptedOptions
from toolwire.tools.approvals import Approvals

PAGE = (Path(__file__).parents[3] / "docs" / "clients.md").read_text("utf-8")
SECRET = "sk-a-real-key"
CALLS = f'call {NAME} {{"word": "ping"}}\n---\nsay It said: {{result}}'
STRATEGIES = ("native", "parked", "emulated", "constrained")
IDS = [client.id for client in CLIENTS]

Serve = Callable[..., AbstractAsyncContextManager["Desk"]]


class Desk:
    """The API over a gateway that serves on a socket."""

    def __init__(self, web: Web, url: str, limit_s: float, models: dict[str, ScriptedBackend]) -> None:
        self.api = ConnectApi(web, limit_s)
        self.url = url
        self.named = ""
        """The Host header, where it is another one."""
        self.models = models

    async def all(self, query: str = "") -> dict[str, Any]:
        return await self.api.all(self._request(query))

    async def test(self, client: str, model: Any = "m") -> dict[str, Any]:
        return await self.api.test(
            self._request("", {"client": client}, json.dumps({"model": model}).encode())
        )

    def _request(self, query: str, params: dict[str, str] | None = None, body: bytes = b"") -> Request:
        host = self.url.partition("//")[2]
        address, _, port = host.partition(":")

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        scope = {
            "type": "http",
            "method": "POST",
            "scheme": "http",
            "path": "/ui/api/connect",
            "query_string": query.encode(),
            "headers": [(b"host", (self.named or host).encode())],
            "path_params": params or {},
            OWN: ("http", (address, int(port))),
        }
        return Request(scope, receive)


@pytest.fixture
def desk(on_a_socket: Callable[..., AbstractAsyncContextManager[str]]) -> Serve:
    """`async with desk(script, tools="native") as one`: a server with a model `m` that plays the script."""

    @asynccontextmanager
    async def serve(
        script: str = CALLS,
        tools: str = "native",
        keys: tuple[str, ...] = (),
        limit_s: float = 20,
        id: str = "m",
    ) -> AsyncIterator[Desk]:
        backend = ScriptedBackend(id, ScriptedOptions(script=script, tools=tools))  # type: ignore[arg-type]
        settings, store = Settings(server=ServerSettings(keys=keys)), Store("sqlite://")
        gateway = Gateway(settings, backends={id: backend}, store=store)
        async with on_a_socket(gateway, settings, store) as url:
            preferences = Preferences(store)
            web = Web(
                gateway,
                settings,
                store,
                Approvals(store),
                Hub(),
                preferences,
                WebTools(settings, preferences),
                Tours(gateway),
                boot="boot_1",
            )
            yield Desk(web, url, limit_s, {id: backend})

    return serve


def names(result: dict[str, Any]) -> list[str]:
    return [step["name"] for step in result["steps"]]


# --- the round trip


@pytest.mark.parametrize("tools", STRATEGIES)
@pytest.mark.parametrize("client", IDS)
async def test_every_client_gets_through_its_tool_loop_with_every_kind_of_model(
    desk: Serve, client: str, tools: str
) -> None:
    async with desk(tools=tools) as one:
        result = await one.test(client)
        assert result["ok"], result
        assert names(result)[-3:] == ["List of models", "Tool call", "Answer with the result"]
        assert all(step["ms"] > 0 for step in result["steps"])
        assert NAME in result["steps"][-2]["detail"] and "ping" in result["steps"][-2]["detail"]
        assert "It said:" in result["steps"][-1]["detail"]


async def test_the_demo_model_makes_the_call_and_repeats_its_result(desk: Serve) -> None:
    async with desk(script="") as one:
        result = await one.test("opencode")
        assert result["ok"] and RESULT in result["steps"][-1]["detail"]


@pytest.mark.parametrize("client", IDS)
async def test_the_model_sees_the_check_alone_and_its_result_as_that_client_sends_it(
    desk: Serve, client: str
) -> None:
    async with desk() as one:
        await one.test(client)
        first, second = one.models["m"].seen
    assert [tool.name for tool in first.tools] == [NAME] and first.tool_choice.name == NAME
    if BY_ID[client].shape.results == "user":
        assert second.tools == () and not [item for item in second.items if isinstance(item, Call | Result)]
        assert RESULT in "".join(second.texts())
    else:
        called, result = (
            next(item for item in second.items if isinstance(item, kind)) for kind in (Call, Result)
        )
        assert called.name == NAME and result.call_id == called.call_id
        assert [tool.name for tool in second.tools] == [NAME] and second.tool_choice.name is None
    assert any(isinstance(item, Message) and QUESTION in first.texts() for item in first.items)


async def test_a_browser_app_is_checked_for_its_preflight_first(desk: Serve) -> None:
    async with desk() as one:
        assert names(await one.test("obsidian-copilot"))[0] == "Preflight"
        assert "app://obsidian.md" in (await one.test("obsidian-copilot"))["steps"][0]["detail"]
        assert "Preflight" not in names(await one.test("curl"))


async def test_a_parked_run_is_resumed_and_the_step_says_so(desk: Serve) -> None:
    async with desk(tools="parked") as one:
        assert "waiting run continued" in (await one.test("ai-sdk"))["steps"][-1]["detail"]


@pytest.mark.parametrize(
    ("script", "tools", "words"),
    [
        ("say I would rather talk.", "native", "made no call"),
        ("say I would rather talk.", "emulated", "made no call"),
        (f'call {NAME} {{"word": "a"}}\ncall {NAME} {{"word": "b"}}', "native", "received 2"),
        (f"call {NAME} {{}}", "native", "do not match"),
        (f'call {NAME} {{"wor', "native", ""),
        ("fail rate_limit Too many at once.", "native", "Too many at once."),
        ("say x\nfail backend It fell over.", "native", "It fell over."),
        ("cut", "native", ""),
    ],
)
@pytest.mark.parametrize("client", ["opencode", "openai-python"])
async def test_a_model_that_does_not_call_as_expected_fails_the_step(
    desk: Serve, client: str, script: str, tools: str, words: str
) -> None:
    async with desk(script, tools) as one:
        result = await one.test(client)
    assert not result["ok"]
    assert (
        result["steps"][-2]["ok"] is False
        and words in result["steps"][-2]["detail"]
        and result["steps"][-2]["detail"]
    )
    assert result["steps"][-1] == {
        "name": "Answer with the result",
        "ok": None,
        "ms": 0,
        "detail": "Not tried.",
    }


async def test_a_model_that_calls_again_instead_of_answering_fails_the_step(desk: Serve) -> None:
    async with desk(f'call {NAME} {{"word": "ping"}}') as one:
        result = await one.test("curl")
    assert not result["ok"] and "called the tool again" in result["steps"][-1]["detail"]


async def test_a_model_that_never_ends_costs_no_more_than_the_limit(desk: Serve) -> None:
    async with desk("hang", limit_s=0.4) as one:
        result = await one.test("curl")
    assert not result["ok"] and "0.4 s" in result["steps"][1]["detail"]


async def test_an_unknown_model_is_missing_from_the_list(desk: Serve) -> None:
    async with desk() as one:
        result = await one.test("curl", "nobody")
    assert [step["ok"] for step in result["steps"]] == [False, None, None] and "nobody" in result["steps"][0][
        "detail"
    ]


async def test_the_round_trip_goes_to_this_server_whatever_host_the_request_names(desk: Serve) -> None:
    async with desk(keys=(SECRET,)) as one:
        one.named = "192.0.2.1:9"  # no server is there, and the key is not sent there
        assert (await one.test("curl"))["ok"]


async def test_a_server_that_cannot_be_reached_fails_the_step(desk: Serve) -> None:
    async with desk() as one:
        one.url = "http://127.0.0.1:9"
        result = await one.test("curl")
    assert [step["ok"] for step in result["steps"]] == [
        False,
        None,
        None,
    ] and "cannot reach its own address" in result["steps"][0]["detail"]


@pytest.mark.parametrize("client", IDS)
async def test_a_server_with_keys_is_sent_one_and_it_is_never_shown(desk: Serve, client: str) -> None:
    async with desk(keys=(SECRET, "sk-another")) as one:
        tested, shown = await one.test(client), await one.all()
    assert tested["ok"], tested
    assert shown["needs_key"]
    assert SECRET not in json.dumps(tested) + json.dumps(shown)


async def test_an_unknown_client_and_a_missing_model_are_refused(desk: Serve) -> None:
    async with desk() as one:
        with pytest.raises(ToolwireError, match="no such client"):
            await one.test("nobody")
        with pytest.raises(ToolwireError, match="model"):
            await one.test("curl", None)


# --- what to paste


async def test_what_to_paste_has_this_servers_address_and_the_chosen_model(desk: Serve) -> None:
    async with desk() as one:
        first, chosen = await one.all(), await one.all("model=another")
    assert (first["model"], chosen["model"]) == ("m", "another")
    assert first["base_url"] == f"{one.url}/v1" and [row["id"] for row in first["models"]] == ["m"]
    assert [client["id"] for client in first["clients"]] == IDS
    for client in chosen["clients"]:
        pasted = json.dumps(client["steps"])
        assert one.url in pasted and "another" in pasted and "«" not in pasted
        assert all(step.get("value") or step.get("code") or step.get("note") for step in client["steps"])


def rendered(client: str, needs_key: bool = False, model: str = "demo") -> list[dict[str, str]]:
    steps: list[dict[str, str]] = BY_ID[client].rendered(
        values_of("http://127.0.0.1:8788/v1", model, needs_key), needs_key
    )["steps"]
    return steps


@pytest.mark.parametrize("client", IDS)
def test_the_page_of_the_documentation_says_the_same(client: str) -> None:
    heading = BY_ID[client].anchor
    sections = {
        re.sub(r"[^\w\- ]", "", part.partition("\n")[0].lower()).replace(" ", "-"): part
        for part in PAGE.split("\n## ")
    }
    assert heading in sections
    for step in rendered(client):
        shown, label = step.get("code", "").strip() or step.get("value", ""), step["label"]
        assert shown.replace('"hello"', "") in sections[heading].replace('"hello"', "") or shown in (
            "unused",
        ), f"{label}: {shown}"


@pytest.mark.parametrize("needs_key", [False, True])
@pytest.mark.parametrize("model", ["demo", "ollama/qwen3:4b", 'it\'s "odd" $(id) `x` \\ ünï'])
def test_a_models_name_is_written_as_each_language_writes_it(model: str, needs_key: bool) -> None:
    codes = {
        client.id: [step["code"] for step in rendered(client.id, needs_key, model) if "code" in step]
        for client in CLIENTS
    }
    assert tomllib.loads(codes["codex"][1])["model"] == model
    assert ("env_key" in codes["codex"][1]) == needs_key
    provider = json.loads(codes["opencode"][1])["provider"]["toolwire"]
    assert (
        provider["models"] == {model: {"name": f"Toolwire {model}"}}
        and ("apiKey" in provider["options"]) == needs_key
    )
    assert shlex.split(codes["codex"][0]) == ["toolwire", "launch", "codex", "--model", model]
    assert shlex.split(codes["opencode"][-1]) == ["opencode", "run", "--model", f"toolwire/{model}", "hello"]
    words = shlex.split(codes["curl"][0])
    assert json.loads(words[-1])["model"] == model and words[2] == "http://127.0.0.1:8788/v1/chat/completions"
    compile(codes["openai-python"][0], "program", "exec")
    assert (
        json.dumps(model, ensure_ascii=False) in codes["openai-python"][0]
        and json.dumps(model, ensure_ascii=False) in codes["ai-sdk"][0]
    )
    assert (KEY in codes["openai-python"][0]) == needs_key


def test_a_client_that_sends_no_key_gets_other_settings_if_one_is_needed() -> None:
    assert any("lmstudio@demo" in step.get("code", "") for step in rendered("chatgpt-md"))
    assert any("openai@demo" in step.get("code", "") for step in rendered("chatgpt-md", needs_key=True))
    assert BY_ID["chatgpt-md"].shaped(True).sends_key and not BY_ID["chatgpt-md"].shaped(False).sends_key


def test_localhost_is_written_as_an_address_for_clients_that_need_it() -> None:
    values = values_of("http://localhost:8788/v1", "m", False)
    assert values["root"] == "http://127.0.0.1:8788" and values["base"] == "http://localhost:8788/v1"
    assert fill("«root» «base»", "", values, False) == "http://127.0.0.1:8788 http://localhost:8788/v1"


async def test_the_round_trip_goes_to_this_server_whatever_the_host_header_says(open_house: Any) -> None:
    heard: list[bytes] = []

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1000))
        writer.close()

    foreign = await asyncio.start_server(other, "127.0.0.1", 0)
    try:
        async with open_house(CALLS) as house:
            port = foreign.sockets[0].getsockname()[1]
            mine = next(cookie for cookie in house.client.cookie_jar if cookie.key.startswith("toolwire_"))
            house.client.cookie_jar.update_cookies(
                {f"toolwire_{port}": mine.value}, URL(house.url)
            )  # as a session at that address has it
            result = await house.call(
                "POST", "/connect/opencode/test", {"model": "m"}, headers={"host": f"127.0.0.1:{port}"}
            )
            assert result["ok"], result
        assert heard == []
    finally:
        foreign.close()
        await foreign.wait_closed()

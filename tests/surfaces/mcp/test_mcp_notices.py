"""A question of `toolwire mcp` reaches a phone and is approved there, through a running `toolwire serve`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession
from mcp import Client

from doubles.receivers import FakeNtfy, post, served_receiver, tap
from toolwire.surfaces.web.link import SECRET

pytestmark = pytest.mark.process
TOKEN = "tk_abc"


@asynccontextmanager
async def serving(process: Any) -> AsyncIterator[str]:
    """`toolwire serve` on the store of the MCP server. Yields its address."""
    command = [sys.executable, "-m", "toolwire", "serve", "--port", "0"]
    pipe = subprocess.PIPE
    server = subprocess.Popen(
        command, stdout=pipe, stderr=subprocess.DEVNULL, env=process.environment, cwd=process.tmp_path
    )
    assert server.stdout is not None
    try:
        line = (await asyncio.to_thread(server.stdout.readline)).decode()
        yield line.split()[-1].removesuffix("/v1")
    finally:
        server.terminate()
        await asyncio.to_thread(server.communicate, timeout=20)


@pytest.mark.parametrize("how", ["link", "deny"])
async def test_a_call_over_stdio_waits_for_the_phone(
    process: Any, data: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("TOOLWIRE_APPROVALS__COMMAND_LINE", "code")
    async with serving(process) as pages, served_receiver(phone := FakeNtfy({TOKEN: "wo"})) as url:
        table = {"kind": "ntfy", "url": url, "topic": "t", "token": TOKEN, "pages": pages, "after_s": 0}
        monkeypatch.setenv("TOOLWIRE_NOTICES", json.dumps({"phone": table | {"level": "buttons"}}))
        parameters = process.parameters("--inbox")
        assert parameters.env is not None
        parameters.env["TOOLWIRE_APPROVALS__COMMAND_LINE"] = "code"
        async with Client(parameters) as client:
            calling = asyncio.ensure_future(client.call_tool("file_read", {"filePaths": ["Diary.md"]}))
            await phone.until(1, within_s=60)
            if how == "deny":
                assert (await tap(phone.got[0], "Deny"))[0] == 200
                assert (await calling).is_error
                return
            link, _, secret = phone.got[0]["click"].partition("#")
            url = link.replace("/ui/link/", "/ui/api/link/")
            async with ClientSession() as browser, browser.get(url, headers={SECRET: secret}) as page:
                shown = (await page.json())["approval"]["token"]
            given = {"token": secret, "shown": shown, "approved": True, "picked": ["Diary.md"]}
            status, answer = await post(url, json.dumps(given).encode(), {})
            assert (status, answer["status"]) == (200, "approved")
            assert "Zulu-4711" in data(await calling)["result"][0]["content"]

"""A question in a terminal reaches a phone only if the person wants it, and the phone can answer it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from doubles.receivers import FakeNtfy, served_receiver
from toolwire.store.store import Store
from toolwire.tools.approvals import Approvals
from toolwire.tools.consent import shown_token
from toolwire.tools.contract import Decision
from toolwire.tools.links import Links

TOKEN = "tk_abc"
WRITE = 'call note_write {"path": "Inbox/A.md", "content": "new"}\n---\nsay I was told {result}'


async def _pressed(url: str, message: dict[str, Any]) -> None:
    """Approves by a message's link, as the server of the web pages does."""
    path, _, secret = message["click"].partition("#")
    async with Store(url) as store:
        links = Links(store, Approvals(store))
        link, approval = await links.opened(path.rpartition("/")[2], secret)
        await links.decide(link, approval, secret, Decision(True), shown_token(approval))


@pytest.mark.parametrize("wanted", [True, False])
async def test_a_chat_waits_for_the_phone(place: Any, terminal: Callable[..., Any], wanted: bool) -> None:
    place.script(WRITE)
    place.environment.pop("TOOLWIRE_APPROVALS__COMMAND_LINE")
    async with served_receiver(phone := FakeNtfy({TOKEN: "wo"})) as url:
        table: dict[str, Any] = {"kind": "ntfy", "url": url, "topic": "t", "token": TOKEN}
        table |= {"pages": "https://x", "level": "link", "after_s": 0, "terminal": wanted}
        place.environment["TOOLWIRE_NOTICES"] = json.dumps({"phone": table})
        window = terminal("ask", "Write it.", "--vault", str(place.vault), "--model", "m")
        await asyncio.to_thread(window.see, "note_write?", "Deny")
        if wanted:
            await phone.until(1, within_s=60)
            await _pressed(place.environment["TOOLWIRE_STORE__URL"], phone.got[0])
            await asyncio.to_thread(window.see, "I was told")
            assert await asyncio.to_thread(window.end) == 0
            assert place.steps and (await asyncio.to_thread(place.asked))[0].decided_by == "link phone"
        else:
            await asyncio.to_thread(window.answer, "note_write?", "d")
            await asyncio.to_thread(window.see, "Reason")
            window.press("\r")
            await asyncio.to_thread(window.end)
            assert phone.requests == []

"""Links over HTTP: the page, reading, deciding, signed answers, and everything that must not decide."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from doubles.receivers import FakeNtfy, Webhook, post, served_receiver, tap
from surfaces.web.conftest import House, OpenHouse
from toolwire.settings.types import (
    ModelSettings,
    NoticeSettings,
    ServerSettings,
    Settings,
    StoreSettings,
    VaultSettings,
)
from toolwire.store.store import Store
from toolwire.surfaces.notices.notifier import Notices
from toolwire.surfaces.notices.signature import HEADER, signature
from toolwire.tools import links as links_module
from toolwire.tools.approvals import Approvals, Question
from toolwire.tools.consent import Proofs
from toolwire.tools.contract import Approval, Asking, Preview, Touched

SECRET, TOKEN = "a-webhook-secret-of-some-length", "tk_abc"
ASKING = Asking("s", "claude", "mcp")
WRITE = Question(
    "note_write", "run", {"path": "Plan.md", "text": "x"}, Preview(diff="+x", action="Create note")
)
READ = Question(
    "file_read",
    "run",
    {"filePaths": ["A.md", "B.md"]},
    Preview((Touched("a", "A.md", 1), Touched("b", "B.md", 2)), pick=True),
)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "WRONG_S", 0.0)


class Left:
    async def ask(self, asked: Any) -> bool:
        return True


@dataclass
class Scene:
    """A server, another process that asks (with its own key), and the receivers of its notices."""

    house: House
    approvals: Approvals
    ntfy: FakeNtfy
    hook: Webhook

    def ask(self, question: Any = WRITE) -> asyncio.Task[list[Approval]]:
        return asyncio.ensure_future(self.approvals.ask(ASKING, [question], Left()))

    async def put(self, arguments: dict[str, Any]) -> None:
        """Writes other arguments into the stored question."""
        query, values = "UPDATE approvals SET arguments = ?", (json.dumps(arguments),)
        await self.approvals.records._store.run(lambda c: c.execute(query, values), "write")

    async def link(self) -> tuple[str, str]:
        """The id and the secret of the link in the phone's first message."""
        await self.ntfy.until(1)
        path, _, secret = self.ntfy.got[0]["click"].partition("#")
        return path.rpartition("/")[2], secret

    async def read(self, id: str, secret: str, **more: Any) -> tuple[int, dict[str, Any], Any]:
        url, headers = f"{self.house.url}/ui/api/link/{id}", {"x-toolwire-link": secret}
        async with self.house.client.get(url, headers=headers, **more) as response:
            return response.status, await response.json(), response.headers

    async def decide(self, id: str, **given: Any) -> tuple[int, dict[str, Any]]:
        """Decides as the page does: an approval names the question that was read before."""
        if given.get("approved") and "shown" not in given:
            _, answer, _ = await self.read(id, str(given.get("token", "")))
            given["shown"] = answer.get("approval", {}).get("token", "")
        return await post(f"{self.house.url}/ui/api/link/{id}", json.dumps(given).encode(), {})


@pytest.fixture
async def scene(tmp_path: Path, house_of: OpenHouse) -> AsyncIterator[Any]:
    """`async with scene(level=…) as it`: with these settings for both notices."""
    ntfy, hook = FakeNtfy({TOKEN: "wo"}), Webhook(SECRET)

    @asynccontextmanager
    async def opened(**more: Any) -> AsyncIterator[Scene]:
        url = f"sqlite:///{tmp_path}/store.db"
        common: dict[str, Any] = {"level": "link", "after_s": 0.0, **more}
        notices = [NoticeSettings("hook", url=f"{hook.url}/h", secret=SECRET, **common)]
        settings = Settings(
            server=ServerSettings(port=0),
            store=StoreSettings(url),
            models=(ModelSettings("m", "scripted", {"script": "say Hello."}),),
            notices=tuple(notices),
        )
        async with house_of(settings) as house, Store(url) as store:
            approvals = Approvals(store, proofs=Proofs(store, b"another process's key............"))
            phone = NoticeSettings("phone", "ntfy", ntfy.url, topic="t", token=TOKEN, **common)
            sent = [replace(one, pages=house.url) for one in (*notices, phone)]
            outgoing = approvals.notices = Notices(sent, store, approvals)
            try:
                yield Scene(house, approvals, ntfy, hook)
            finally:
                await outgoing.close()

    async with served_receiver(ntfy), served_receiver(hook):
        yield opened


async def test_the_page_is_the_same_for_everybody_and_may_not_be_stored(scene: Any) -> None:
    async with scene() as it, it.house.client.get(f"{it.house.url}/ui/link/link_any") as response:
        assert response.status == 200 and "link.js" in await response.text()
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]


async def test_reading_shows_the_whole_question_without_a_session_and_decides_nothing(
    scene: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with scene() as it:
        task = it.ask()
        id, secret = await it.link()
        for _ in range(3):
            status, answer, headers = await it.read(id, secret, cookies={})
        assert status == 200 and headers["cache-control"] == "no-store"
        shown = answer["approval"]
        assert shown["arguments"] == WRITE.arguments and shown["shown"]["diff"] == "+x"
        assert shown["once"] is True and shown["editable"] is False
        assert not task.done()
        status, answer = await it.decide(id, token=secret, approved=True)
        assert (status, answer["status"]) == (200, "approved")
        assert (await task)[0].decided_by == "link phone"
        assert secret not in caplog.text and SECRET not in caplog.text


async def test_a_call_that_the_page_did_not_show_is_not_approved(scene: Any) -> None:
    """A program of the same user changes the question while the page is read."""
    async with scene() as it:
        task = it.ask()
        id, secret = await it.link()
        real = (await it.approvals.pending())[0]
        await it.put({"path": "Harmless.md", "text": ""})
        shown = (await it.read(id, secret))[1]["approval"]
        assert shown["arguments"]["path"] == "Harmless.md"
        await it.put(dict(real.arguments))
        for sent in (shown["token"], "", real.token):
            status, answer = await it.decide(id, token=secret, approved=True, shown=sent)
            assert status == 409 and "Reload the page" in answer["error"]["message"]
        assert not task.done()
        assert (await it.decide(id, token=secret, approved=True))[0] == 200
        assert (await task)[0].status == "approved"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_prefetch_decides_nothing(scene: Any, method: str) -> None:
    async with scene(level="buttons") as it:
        task = it.ask()
        id, secret = await it.link()
        action = it.ntfy.got[0]["actions"][0]["url"]
        for url in (it.ntfy.got[0]["click"], f"{it.house.url}/ui/api/link/{id}", action):
            headers = {"x-toolwire-link": secret, "sec-purpose": "prefetch"}
            async with it.house.client.request(method, url, headers=headers) as response:
                await response.read()
        assert not task.done() and (await it.approvals.pending())[0].status == "pending"
        task.cancel()


@pytest.mark.parametrize("given", [{}, {"token": "x"}, {"approved": True}, {"token": 1, "approved": True}])
async def test_an_incomplete_decision_is_refused_and_costs_nothing(scene: Any, given: Any) -> None:
    async with scene() as it:
        task = it.ask()
        id, secret = await it.link()
        for _ in range(6):
            status, _ = await it.decide(id, shown="", **given)
            assert status in (400, 403)
        if "token" not in given or given["token"] == 1:
            assert (await it.decide(id, token=secret, approved=False))[0] == 200
        task.cancel()


async def test_a_link_that_was_used_says_that_it_is_over(scene: Any) -> None:
    async with scene() as it:
        task = it.ask()
        id, secret = await it.link()
        results = await asyncio.gather(
            *(it.decide(id, token=secret, approved=yes) for yes in (True, False) * 3)
        )
        assert sorted(status for status, _ in results) == [200] + [410] * 5
        status, answer, headers = await it.read(id, secret)
        assert (status, answer["error"]["code"]) == (410, "gone") and headers["cache-control"] == "no-store"
        assert "already" in answer["error"]["message"] and "link phone" in answer["error"]["message"]
        assert (await task)[0].decided_by == "link phone"


async def test_a_question_that_was_decided_in_the_inbox_is_over(scene: Any) -> None:
    async with scene() as it:
        task = it.ask()
        id, secret = await it.link()
        one = (await it.house.pending())[0]
        await it.house.call(
            "POST", f"/approvals/{one['id']}/decision", {"token": one["token"], "approved": False}
        )
        assert (await it.decide(id, token=secret, approved=True))[0] == 410
        assert (await task)[0].status == "denied"


async def test_guessing_makes_a_link_void(scene: Any) -> None:
    async with scene() as it:
        task = it.ask()
        id, secret = await it.link()
        for _ in range(3):
            assert (await it.read(id, "guess"))[0] == 403
        for _ in range(2):
            assert (await it.decide(id, token="guess", shown="", approved=True))[0] == 403
        assert (await it.decide(id, token=secret, approved=True))[0] == 410
        assert not task.done()
        assert "voided" in [line["event"] for line in await it.approvals.records.audit()]
        task.cancel()


async def test_a_session_or_a_page_key_is_no_secret_of_a_link(scene: Any) -> None:
    async with scene() as it:
        task = it.ask()
        id, _ = await it.link()
        token = (await it.house.pending())[0]["token"]
        for secret in ("", it.house.key, token):
            status, _ = await it.decide(id, token=secret, shown=token, approved=True)
            assert status == 403
        assert not task.done()
        task.cancel()


async def test_a_link_can_neither_edit_nor_remember(scene: Any) -> None:
    async with scene() as it:
        task = it.ask()
        id, secret = await it.link()
        more = {
            "arguments": {"path": "Other.md"},
            "remember": "tool",
            "seen": "x",
            "folder": "P",
            "standing": True,
        }
        assert (await it.decide(id, token=secret, approved=True, **more))[0] == 200
        asked = (await task)[0]
        assert asked.status == "approved" and asked.decision is not None and asked.decision.is_plain
        assert await it.approvals.valid_grants() == []


async def test_the_person_picks_on_the_page(scene: Any) -> None:
    async with scene(level="buttons", detail="full", approve=True) as it:
        task = it.ask(READ)
        id, secret = await it.link()
        assert [one["label"] for one in it.ntfy.got[0]["actions"]] == ["Deny", "Open"]
        assert (await it.decide(id, token=secret, approved=True))[0] == 400
        assert (await it.decide(id, token=secret, approved=True, picked=["zzz"]))[0] == 400
        assert (await it.decide(id, token=secret, approved=True, picked=[1]))[0] == 400
        assert (await it.decide(id, token=secret, approved=True, picked=["b"]))[0] == 200
        asked = (await task)[0]
        assert asked.decision is not None and asked.decision.picked == ("b",)


async def test_a_large_body_is_refused(scene: Any) -> None:
    async with scene() as it:
        id = "link_any"
        status, answer = await it.decide(id, token="x", approved=True, reason="x" * 70_000)
        assert status == 413 and "64 kB" in answer["error"]["message"]


async def test_another_origin_cannot_use_a_link(scene: Any) -> None:
    async with scene() as it:
        task = it.ask()
        id, secret = await it.link()
        body = json.dumps({"token": secret, "approved": True}).encode()
        url = f"{it.house.url}/ui/api/link/{id}"
        status, _ = await post(url, body, {"origin": "https://evil.example.com"})
        assert status == 403 and not task.done()
        task.cancel()


# --- buttons ---


async def test_a_button_denies(scene: Any) -> None:
    async with scene(level="buttons") as it:
        task = it.ask()
        await it.ntfy.until(1)
        status, answer = await tap(it.ntfy.got[0], "Deny")
        assert (status, answer["status"]) == (200, "denied")
        assert (await task)[0].decided_by == "button phone"
        assert (await tap(it.ntfy.got[0], "Deny"))[0] == 410


async def test_a_button_approves_if_the_message_has_the_whole_call_and_the_owner_wants_it(scene: Any) -> None:
    async with scene(level="buttons", detail="full", approve=True) as it:
        task = it.ask()
        await it.ntfy.until(1)
        assert "Plan.md" in it.ntfy.got[0]["message"]
        assert (await tap(it.ntfy.got[0], "Create note"))[0] == 200
        asked = (await task)[0]
    assert (asked.status, asked.decided_by) == ("approved", "button phone")


async def test_a_deny_button_cannot_be_made_to_approve(scene: Any) -> None:
    async with scene(level="buttons", detail="full") as it:
        task = it.ask()
        await it.ntfy.until(1)
        deny = it.ntfy.got[0]["actions"][0]
        body = json.loads(deny["body"]) | {"approved": True}
        assert (await post(deny["url"], json.dumps(body).encode(), {}))[0] == 403
        id, secret = deny["url"].rpartition("/")[2], body["token"]
        assert (await it.read(id, secret))[0] == 403  # nor does it show the call
        assert not task.done()
        task.cancel()


# --- the answers of a webhook ---


async def test_a_receiver_decides_with_a_signed_answer(scene: Any) -> None:
    async with scene(level="buttons", detail="full", approve=True) as it:
        task = it.ask()
        await it.hook.until(1)
        message = it.hook.got[0]
        assert message["answer"]["may_approve"] is True
        status, answer = await it.hook.answer(message, True)
        assert (status, answer) == (200, {"id": message["question"]["id"], "status": "approved"})
        asked = (await task)[0]
        assert (asked.status, asked.decided_by) == ("approved", "webhook hook")
        assert (await it.hook.answer(message, True))[0] == 410  # replayed


BAD_ANSWERS: dict[str, dict[str, Any]] = {
    "no signature": {"header": ""},
    "another secret": {"secret": "another-secret-of-some-length"},
    "an old time": {"away_s": -301},
    "a time in the future": {"away_s": 400},
    "a changed body": {"body": b'{"approved": true}'},
    "another id": {"id": "appr_other"},
}


@pytest.mark.parametrize("bad", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
async def test_an_answer_that_is_not_signed_for_this_question_decides_nothing(scene: Any, bad: Any) -> None:
    async with scene(level="buttons", detail="full", approve=True) as it:
        task = it.ask()
        await it.hook.until(1)
        message = it.hook.got[0]
        if "away_s" in bad:
            bad = {"at": time.time() + bad["away_s"]}
        if bad.get("body"):
            bad = {
                "body": json.dumps({**json.loads(bad["body"]), "token": message["answer"]["token"]}).encode()
            }
        status, _ = await it.hook.answer(message, True, **bad)
        assert status in (400, 403) and not task.done()
        assert (await it.hook.answer(message, False))[0] == 200  # a correct one still counts
        assert (await task)[0].status == "denied"


async def test_a_correct_signature_without_the_token_decides_nothing(scene: Any) -> None:
    """A program of the same user may read the secret, and the question's own token in the store."""
    async with scene(level="buttons", detail="full", approve=True) as it:
        task = it.ask()
        await it.hook.until(1)
        answer = it.hook.got[0]["answer"]
        stored = await it.approvals.records.get(answer["id"])
        body = json.dumps({"id": answer["id"], "token": stored.token, "approved": True}).encode()
        headers = {HEADER: signature(SECRET, int(time.time()), body)}
        assert (await post(answer["url"], body, headers))[0] == 403 and not task.done()
        task.cancel()


async def test_five_wrong_signatures_make_the_answer_void(scene: Any) -> None:
    async with scene(level="buttons") as it:
        task = it.ask()
        await it.hook.until(1)
        for _ in range(5):
            assert (await it.hook.answer(it.hook.got[0], False, header="t=1,v1=" + "0" * 64))[0] == 403
        assert (await it.hook.answer(it.hook.got[0], False))[0] == 410
        assert not task.done()
        task.cancel()


async def test_a_server_that_does_not_know_the_webhook_refuses_its_answers(scene: Any) -> None:
    async with scene(level="buttons") as it:
        task = it.ask()
        await it.hook.until(1)
        query = "UPDATE notice_links SET notice = 'other'"
        await it.house.pages.web.store.run(lambda c: c.execute(query), "write")
        status, answer = await it.hook.answer(it.hook.got[0], False)
        assert status == 403 and "have no webhook other" in answer["error"]["message"]
        task.cancel()


# --- the server's own questions ---


async def test_a_question_of_the_web_chat_is_approved_from_a_phone(
    tmp_path: Path, vault: Path, house_of: OpenHouse
) -> None:
    ntfy = FakeNtfy({TOKEN: "wo"})
    script = 'call file_read {"filePaths": ["Tea.md"]}\n---\nsay Done.'
    async with served_receiver(ntfy):
        settings = Settings(
            server=ServerSettings(port=0),
            store=StoreSettings(f"sqlite:///{tmp_path}/store.db"),
            vault=VaultSettings(root=str(vault), enabled=True),
            models=(ModelSettings("m", "scripted", {"script": script}),),
            notices=(
                NoticeSettings(
                    *("phone", "ntfy", ntfy.url),
                    topic="t",
                    token=TOKEN,
                    level="link",
                    pages="https://x",
                    after_s=0.0,
                ),
            ),
        )
        async with house_of(settings) as house:
            talk = await house.call("POST", "/conversations", {"model": "m"})
            await house.call("POST", f"/conversations/{talk['id']}/turns", {"text": "Read it."})
            await ntfy.until(1)
            path, _, secret = ntfy.got[0]["click"].partition("#")
            url = f"{house.url}/ui/api/link/{path.rpartition('/')[2]}"
            async with house.client.get(url, headers={"x-toolwire-link": secret}) as response:
                shown = (await response.json())["approval"]
            picked = [one["key"] for one in shown["shown"]["touched"]]
            given = {"token": secret, "shown": shown["token"], "approved": True, "picked": picked}
            body = json.dumps(given).encode()
            assert (await post(url, body, {}))[0] == 200
            await house.ended(talk["id"])
            audit = (await house.call("GET", "/audit"))["audit"]
            events = [line["event"] for line in reversed(audit)]
            assert events[-3:] == ["notified", "approved", "ran"]

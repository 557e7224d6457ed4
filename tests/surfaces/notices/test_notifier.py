"""Messages to real receivers on loopback: when they are sent, how often, and what a bad receiver can do."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from doubles.receivers import FakeNtfy, Receiver, Webhook, served_receiver
from surfaces.notices.conftest import SECRET
from toolwire.settings.types import NoticeSettings
from toolwire.store.store import Store
from toolwire.surfaces.notices import delivery, messages, notifier
from toolwire.surfaces.notices.notifier import MOST_SINGLE, Notices, notices_of
from toolwire.tools.approvals import Approvals, Question
from toolwire.tools.contract import Approval, Asking, Decision, Preview
from toolwire.tools.links import Links

Notice = Callable[..., NoticeSettings]
YES = Decision(True)
TOKEN = "tk_abc"


class Left:
    """A surface that leaves every question in the inbox."""

    async def ask(self, asked: Sequence[Approval]) -> bool:
        return True


class House:
    """A process that asks, with notices."""

    def __init__(self, store: Store, approvals: Approvals, *notices: NoticeSettings, **more: Any) -> None:
        self.approvals = approvals
        self.notices = Notices(notices, store, approvals, first_pause_s=0.05, **more)
        approvals.notices = self.notices
        self.tasks: list[asyncio.Task[list[Approval]]] = []

    def ask(self, count: int = 1, surface: str = "mcp", **arguments: Any) -> asyncio.Task[list[Approval]]:
        asking = Asking("s", "claude", surface)
        shown = Preview(diff="+x")
        questions = [Question("note_write", "run", {**arguments, "n": n}, shown) for n in range(count)]
        task = asyncio.ensure_future(self.approvals.ask(asking, questions, Left()))
        self.tasks.append(task)
        return task

    async def pending(self, count: int = 1) -> list[Approval]:
        async with asyncio.timeout(10):
            while len(found := await self.approvals.pending()) < count:
                await asyncio.sleep(0)
        return found

    async def decide(self) -> None:
        for one in await self.approvals.pending():
            await self.approvals.decide(one, YES, by="test")

    async def until_event(self, event: str) -> str:
        async with asyncio.timeout(10):
            while True:
                for line in await self.approvals.records.audit():
                    if line["event"] == event:
                        return str(line["note"])
                await asyncio.sleep(0.01)


@pytest.fixture
async def house(store: Store) -> AsyncIterator[Callable[..., House]]:
    made: list[House] = []

    def make(*notices: NoticeSettings, lifetime_s: float = 600, **more: Any) -> House:
        made.append(House(store, Approvals(store, lifetime_s=lifetime_s), *notices, **more))
        return made[-1]

    yield make
    for one in made:
        for task in one.tasks:
            task.cancel()
        await asyncio.gather(*one.tasks, return_exceptions=True)
        await one.notices.close()


@asynccontextmanager
async def both(*tokens: Any) -> AsyncIterator[tuple[FakeNtfy, Webhook]]:
    ntfy, hook = FakeNtfy({TOKEN: "wo"}), Webhook(SECRET)
    async with served_receiver(ntfy), served_receiver(hook):
        yield ntfy, hook


async def test_a_question_that_waits_is_sent_to_every_notice(
    house: Callable[..., House], ntfy: Notice, webhook: Notice
) -> None:
    async with both() as (phone, hook):
        one = house(ntfy(phone.url), webhook(f"{hook.url}/toolwire"))
        one.ask(path="Plan.md")
        await asyncio.gather(phone.until(1), hook.until(1))
        assert "note_write" in phone.got[0]["message"] and phone.got[0]["topic"] == "toolwire-x7"
        assert hook.got[0]["question"]["tool"] == "note_write"
        assert await one.until_event("notified") in ("phone", "hook")


async def test_a_question_that_is_decided_at_once_sends_nothing(
    house: Callable[..., House], ntfy: Notice
) -> None:
    async with both() as (phone, _):
        one = house(ntfy(phone.url, after_s=30.0))
        task = one.ask()
        await one.pending()
        await one.decide()
        assert (await task)[0].status == "approved"
        one.notices._outboxes[0]._notice = ntfy(phone.url)  # the next one is sent at once
        one.ask(second=True)
        await phone.until(1)
        assert len(phone.requests) == 1


async def test_a_slow_receiver_delays_neither_the_question_nor_other_notices(
    house: Callable[..., House], ntfy: Notice, webhook: Notice
) -> None:
    async with both() as (phone, hook):
        hook.script = ["slow"] * 9
        one = house(webhook(hook.url), ntfy(phone.url))
        task = one.ask()
        await asyncio.gather(phone.until(1), hook.until(1, requests=True))
        began = time.monotonic()
        await one.decide()
        assert (await task)[0].status == "approved" and time.monotonic() - began < 2


async def test_a_busy_receiver_gets_the_message_again_and_then_no_more(
    house: Callable[..., House], ntfy: Notice
) -> None:
    async with both() as (phone, _):
        phone.script = [503, 429, "close"]
        one = house(ntfy(phone.url, level="link"))
        one.ask()
        await phone.until(1)
        assert len(phone.requests) == 4 and len({body for *_, body in phone.requests}) == 1
        assert await one.until_event("notified") == "phone"
        assert "status 503: not ␛[31mnow" in await one.until_event("not notified")


async def test_retries_end_when_the_question_is_decided(house: Callable[..., House], ntfy: Notice) -> None:
    async with both() as (phone, _):
        phone.script = [500] * 1000
        one = house(ntfy(phone.url))
        task = one.ask()
        await phone.until(2, requests=True)
        await one.decide()
        await task
        outbox = one.notices._outboxes[0]
        assert outbox._task is not None
        await asyncio.wait_for(outbox._task, 10)
        assert phone.got == []


async def test_retries_end_when_the_question_expires(house: Callable[..., House], ntfy: Notice) -> None:
    async with both() as (phone, _):
        phone.script = [500] * 1000
        one = house(ntfy(phone.url), lifetime_s=1.0)
        assert (await one.ask())[0].status == "expired"
        outbox = one.notices._outboxes[0]
        assert outbox._task is not None
        await asyncio.wait_for(outbox._task, 10)


async def test_a_refusal_is_final(
    house: Callable[..., House], ntfy: Notice, caplog: pytest.LogCaptureFixture
) -> None:
    async with both() as (phone, _):
        one = house(ntfy(phone.url, token="tk_wrong"))
        one.ask()
        assert "refused the token or the topic (status 401: unauthorized)" in await one.until_event(
            "not notified"
        )
        assert len(phone.requests) == 1
    assert "tk_wrong" not in caplog.text and "toolwire-x7" not in caplog.text


async def test_a_redirect_is_not_followed(
    house: Callable[..., House], webhook: Notice, caplog: pytest.LogCaptureFixture
) -> None:
    async with both() as (_, hook):
        hook.script = ["redirect"]
        one = house(webhook(f"{hook.url}/secret-path", level="link"))
        one.ask()
        assert "answered with a redirect (status 307)" in await one.until_event("not notified")
        assert [path for _, path, *_ in hook.requests] == ["/secret-path"]
    assert "secret-path" not in caplog.text


async def test_an_endless_answer_is_cut_off(house: Callable[..., House], webhook: Notice) -> None:
    async with both() as (_, hook):
        hook.script = ["huge"]
        one = house(webhook(hook.url), send_s=5.0)
        one.ask()
        await hook.until(1)  # the second attempt
        assert len(hook.requests) == 2


async def test_a_slow_receiver_is_given_up_and_asked_again(
    house: Callable[..., House], webhook: Notice
) -> None:
    async with both() as (_, hook):
        hook.script = ["slow"]
        one = house(webhook(hook.url), send_s=0.2)
        one.ask()
        await hook.until(1)
        assert "did not answer within 0.2 s" in await one.until_event("not notified")


async def test_many_questions_at_once_are_one_message(house: Callable[..., House], ntfy: Notice) -> None:
    async with both() as (phone, _):
        one = house(ntfy(phone.url, level="link", after_s=0.3))
        for _ in range(4):
            one.ask(10)
        await one.pending(40)
        await phone.until(1)
        assert phone.got[0]["title"] == "40 calls wait for your decision"
        assert "#" not in phone.got[0]["click"]
        await one.decide()
        one.ask(MOST_SINGLE)
        await phone.until(1 + MOST_SINGLE)
        assert all("#" in message["click"] for message in phone.got[1:])


async def test_the_queue_is_bounded(
    house: Callable[..., House],
    ntfy: Notice,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(notifier, "MOST_WAITING", 3)
    async with both() as (phone, _):
        one = house(ntfy(phone.url))
        with caplog.at_level(logging.WARNING):
            one.ask(5)
            await phone.until(3)
        assert "too many questions wait" in caplog.text
        assert len(await one.pending(5)) == 5  # the questions themselves wait


async def test_a_question_that_outlives_its_call_is_sent_once_also_if_the_call_comes_again(
    house: Callable[..., House], ntfy: Notice
) -> None:
    async with both() as (phone, _):
        one = house(ntfy(phone.url, after_s=0.4))
        asking, question = Asking("s", "claude", "mcp"), Question("note_write", "run", {}, Preview())
        for _ in range(3):  # the client gives up before the message is due
            (asked,) = await one.approvals.ask(asking, [question], Left(), wait_s=0.05)
            assert asked.status == "pending"
        await phone.until(1)
        (asked,) = await one.approvals.ask(asking, [question], Left(), wait_s=0.05)
        one.ask(other=True)
        await phone.until(2)
        ids = {line["approval_id"] for line in await one.approvals.records.audit()}
        assert asked.id in ids and len(phone.got) == 2


@pytest.mark.parametrize(("terminal", "sent"), [(False, ["web"]), (True, ["chat", "web"])])
async def test_a_question_in_a_terminal_is_sent_only_if_the_person_wants_it(
    house: Callable[..., House], webhook: Notice, terminal: bool, sent: list[str]
) -> None:
    async with both() as (_, hook):
        one = house(webhook(hook.url, terminal=terminal))
        one.ask(surface="chat")
        await one.pending()
        one.ask(surface="web")
        await hook.until(len(sent))
        assert sorted(message["question"]["surface"] for message in hook.got) == sent


async def test_a_store_that_fails_fails_no_question(
    house: Callable[..., House],
    ntfy: Notice,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with both() as (phone, _):
        one = house(ntfy(phone.url, level="link"))
        broken = True
        add = Links.add

        async def sometimes(*given: Any, **more: Any) -> Any:
            if broken:
                raise OSError("the disk is full")
            return await add(*given, **more)

        monkeypatch.setattr(Links, "add", sometimes)
        task = one.ask()
        async with asyncio.timeout(10):
            while "the disk is full" not in caplog.text:
                await asyncio.sleep(0.01)
        broken = False
        await phone.until(1)
        await one.decide()
        assert (await task)[0].status == "approved"


async def test_secrets_are_in_no_log_no_error_and_no_row(
    house: Callable[..., House], store: Store, ntfy: Notice, webhook: Notice, caplog: pytest.LogCaptureFixture
) -> None:
    async with both() as (phone, hook):
        phone.script, hook.script = [500, "close"], [403]
        one = house(ntfy(phone.url, level="buttons"), webhook(f"{hook.url}/hook-path", level="buttons"))
        with caplog.at_level(logging.DEBUG):
            one.ask(path="Plan.md")
            await asyncio.gather(phone.until(1), one.until_event("not notified"))
        rows = []
        for table in ("approvals", "audit", "notice_links", "preferences"):
            query = f"SELECT * FROM {table}"
            rows += await store.run(lambda c, q=query: c.execute(q).fetchall(), "read")  # type: ignore[misc]
        secret = phone.got[0]["click"].partition("#")[2]
        button = phone.got[0]["actions"][0]["body"].split('"token":"')[1][:43]
        assert len(secret) == len(button) == 43 and secret != button
        for hidden in (secret, button, TOKEN, SECRET, "hook-path", "toolwire-x7"):
            assert hidden not in caplog.text and hidden not in repr(rows)


async def test_closing_ends_everything(house: Callable[..., House], ntfy: Notice) -> None:
    async with both() as (phone, _):
        phone.script = ["slow"]
        one = house(ntfy(phone.url))
        one.ask()
        await phone.until(1, requests=True)
        await asyncio.wait_for(one.notices.close(), 5)
        assert one.notices._outboxes[0]._task is not None and one.notices._outboxes[0]._task.done()


def test_notices_with_a_problem_are_reported_and_left_out(
    store: Store, approvals: Approvals, ntfy: Notice
) -> None:
    lines: list[str] = []
    bad = NoticeSettings("bad", problem="url: expected an address", where="toolwire.toml")
    assert notices_of([bad], store, approvals, lines.append) is None
    assert lines == ["notice bad is not available: url: expected an address (toolwire.toml)"]
    assert notices_of([], store, approvals) is None
    assert notices_of([bad, ntfy()], store, approvals, lines.append) is not None


# --- one attempt ---


async def sent(receiver: Receiver | None, notice: NoticeSettings, send_s: float = 5.0) -> delivery.Delivery:
    async with delivery.client(send_s) as session:
        return await delivery.deliver(session, notice, messages.test(notice, time.time()))


async def test_what_a_receiver_says_is_shown_clean(ntfy: Notice) -> None:
    async with both() as (phone, _):
        phone.script = [418]
        found = await sent(phone, ntfy(phone.url))
    assert (found.problem, found.again) == (
        "127.0.0.1 did not accept the message (status 418: not ␛[31mnow)",
        False,
    )


@pytest.mark.parametrize(
    ("asked", "wait_s"), [("7", 7.0), ("1e9", 300.0), ("nan", 0.0), ("-5", 0.0), ("soon", 0.0), ("", 0.0)]
)
async def test_a_receiver_can_ask_to_wait_but_not_for_long(ntfy: Notice, asked: str, wait_s: float) -> None:
    async with both() as (phone, _):
        phone.script, phone.retry_after = [429], asked
        found = await sent(phone, ntfy(phone.url))
    assert (found.again, found.retry_after_s) == (True, wait_s)


async def test_a_receiver_that_is_not_there_is_tried_again(webhook: Notice) -> None:
    async with served_receiver(Webhook(SECRET)) as url:
        pass
    found = await sent(None, webhook(f"{url}/secret-path"))
    assert (found.problem, found.again) == ("127.0.0.1 cannot be reached", True)


async def test_a_receiver_that_does_not_speak_http_is_no_crash(webhook: Notice) -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"\x00\xffSSH-2.0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(garbage, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        found = await sent(None, webhook(f"http://127.0.0.1:{port}/secret-path"))
    assert found.problem.startswith("127.0.0.1 ") and found.again and "secret-path" not in found.problem


async def test_passwords_in_netrc_are_not_sent(
    ntfy: Notice, webhook: Notice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("default login me password a-password-of-mine\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with both() as (phone, hook):
        assert [(await sent(phone, one)).problem for one in (ntfy(phone.url), webhook(hook.url))] == ["", ""]
        assert "authorization" not in {name.lower() for name in hook.requests[0][2]}
        assert phone.requests[0][2]["Authorization"] == f"Bearer {TOKEN}"


async def test_a_proxy_in_the_environment_is_used(webhook: Notice, monkeypatch: pytest.MonkeyPatch) -> None:
    async with both() as (_, hook):
        monkeypatch.setenv("http_proxy", hook.url)
        assert (await sent(hook, webhook("http://hooks.invalid/x"))).problem == ""
        assert hook.requests[0][2]["Host"] == "hooks.invalid"
        monkeypatch.setenv("no_proxy", "hooks.invalid")
        assert "can be resolved" in (await sent(hook, webhook("http://hooks.invalid/x"))).problem


@pytest.mark.parametrize(("rights", "readable"), [("wo", False), ("rw", True)])
async def test_a_token_that_can_read_the_topic_is_noticed(ntfy: Notice, rights: Any, readable: bool) -> None:
    async with served_receiver(phone := FakeNtfy({TOKEN: rights})), delivery.client() as session:
        assert await delivery.can_read(session, ntfy(phone.url)) is readable
    async with delivery.client() as session:
        assert await delivery.can_read(session, ntfy(phone.url)) is None

"""`toolwire notices`: what it lists, what a test message says, and what doctor reports of notices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doubles.receivers import Access, FakeNtfy, Webhook, served_receiver
from toolwire.cli.checks import Finding, _notices
from toolwire.cli.main import main
from toolwire.settings.load import load

SECRET, TOKEN = "a-webhook-secret-of-some-length", "tk_abc"
Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `toolwire notices`, beside the receivers of the test. Returns the status and the output."""
    monkeypatch.setenv("HOME", str(tmp_path))

    async def notices(config: str, *arguments: str) -> tuple[int, str]:
        (tmp_path / "toolwire.toml").write_text(config)
        command = ["notices", *arguments, "--config", str(tmp_path / "toolwire.toml")]
        status = await asyncio.to_thread(main, command)
        out, errors = capsys.readouterr()
        return status, out + errors

    return notices


def ntfy(url: str, level: str = "link", pages: str = "https://toolwire.example.com") -> str:
    return (
        f'[server]\nhosts = ["toolwire.example.com"]\n[notices.phone]\nkind = "ntfy"\nurl = "{url}"\n'
        f'topic = "toolwire-x7"\ntoken = "{TOKEN}"\nlevel = "{level}"\npages = "{pages}"\n'
    )


def hook(url: str) -> str:
    return f'[notices.hook]\nurl = "{url}/secret-path"\nsecret = "{SECRET}"\n'


async def test_the_list_shows_each_notice_and_why_one_is_not_available(run: Run) -> None:
    assert (await run(""))[1].startswith("there are no notices")
    status, page = await run(ntfy("https://ntfy.example.com") + '[notices.bad]\nkind = "ntfy"\n')
    assert status == 0 and "url: expected an address" in page
    assert ["phone", "ntfy", "link", "name", "ok"] in [line.split() for line in page.splitlines()]
    rows = json.loads((await run(hook("https://h.example.com"), "list", "--json"))[1])
    assert [(row["name"], row["kind"], row["problem"]) for row in rows] == [("hook", "webhook", "")]


async def test_a_test_message_arrives_and_asks_for_nothing(run: Run) -> None:
    receiver = Webhook(SECRET)
    async with served_receiver(receiver) as url:
        status, page = await run(hook(url), "test", "hook")
    assert status == 0 and "✓ hook: 127.0.0.1 accepted the message (204, " in page
    assert receiver.got[0]["type"] == "test" and "Nothing waits for your decision" in receiver.got[0]["text"]


async def test_a_test_message_of_links_has_a_link_that_shows_whether_the_pages_are_reached(run: Run) -> None:
    async with served_receiver(receiver := FakeNtfy({TOKEN: "wo"})) as url:
        status, page = await run(ntfy(url), "test")
    assert status == 0 and "Open the message's link on your phone" in page and "!" not in page
    assert receiver.got[0]["click"] == "https://toolwire.example.com/ui/link/test"


@pytest.mark.parametrize(
    ("rights", "pages", "warning"),
    [
        ("rw", "https://toolwire.example.com", "the token can also read the topic"),
        ("wo", "http://toolwire.example.com", "pages is not https"),
        ("wo", "https://other.example.com", "does not accept the host name other.example.com"),
        ("wo", "http://127.0.0.1:8788", "which a phone cannot reach"),
    ],
)
async def test_what_makes_links_unsafe_or_useless_is_said_with_what_to_do(
    run: Run, tmp_path: Path, rights: Access, pages: str, warning: str
) -> None:
    async with served_receiver(FakeNtfy({TOKEN: rights})) as url:
        status, page = await run(ntfy(url, pages=pages), "test", "phone")
        assert status == 0 and warning in page and page.count("→ ") == 1
        facts = json.loads((await run(ntfy(url, pages=pages), "test", "phone", "--json"))[1])
        assert facts["sent"] is True and len(facts["warnings"]) == 1
        settings = load(str(tmp_path / "toolwire.toml"), {}, {})
        (finding,) = [one async for one in _notices(settings)]
    assert (finding.subject, finding.mark) == ("notice phone", "problem") and finding.fix


async def test_a_receiver_that_refuses_is_status_1_with_its_reason(run: Run) -> None:
    async with served_receiver(FakeNtfy({"tk_other": "rw"})) as url:
        status, page = await run(ntfy(url), "test", "phone")
    assert status == 1 and "✗ phone: not sent: 127.0.0.1 refused the token" in page
    assert TOKEN not in page and "toolwire-x7" not in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("test", "phnoe"), "unknown notice phnoe; did you mean phone?"),
        (("test",), "name one of phone, hook"),
        (("send",), "there is no action 'send'"),
    ],
)
async def test_a_wrong_command_is_one_line(run: Run, arguments: Any, said: str) -> None:
    config = ntfy("https://ntfy.example.com") + hook("https://h.example.com")
    try:
        status, page = await run(config, *arguments)
    except SystemExit as ended:
        assert ended.code == 2
        return
    assert status == 2 and said in page and page.count("\n") == 1


async def test_doctor_reports_each_notice(tmp_path: Path) -> None:
    config = hook("https://h.example.com") + '[notices.bad]\nkind = "ntfy"\n'
    (tmp_path / "toolwire.toml").write_text(config)
    settings = load(str(tmp_path / "toolwire.toml"), {}, {})
    found = [one async for one in _notices(settings)]
    assert [(one.subject, one.mark) for one in found] == [("notice hook", "ok"), ("notice bad", "problem")]
    assert isinstance(found[0], Finding) and "toolwire notices test hook" in found[0].text
    assert found[1].fix.startswith("correct [notices.bad] in ")

"""What a notice says, what it leaves out, and its signature."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest

from doubles.receivers import _is_action
from surfaces.notices.conftest import PAGES, SECRET, question
from toolwire.settings.types import NoticeSettings
from toolwire.surfaces.notices import messages, signature
from toolwire.surfaces.notices.messages import Keys
from toolwire.tools.consent import LinkKey
from toolwire.tools.contract import Approval, Preview, Touched

LINK, ANSWER = LinkKey("S" * 43, "link phone", "link_1"), LinkKey("B" * 43, "button phone", "link_2")
BOTH, NONE = Keys(LINK, ANSWER), Keys()
Notice = Callable[..., NoticeSettings]
NOW = 1300.0


def sent(notice: NoticeSettings, approval: Approval, keys: Keys = NONE) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(messages.about(notice, approval, keys, NOW).body)
    return found


def labels_of(message: dict[str, Any]) -> list[str]:
    return [one["label"] for one in message["actions"]]


def test_a_notice_says_who_asks_for_which_tool_and_nothing_else(ntfy: Notice, webhook: Notice) -> None:
    for notice in (ntfy(), webhook()):
        body = messages.about(notice, question(), Keys(), NOW).body.decode()
        assert "claude via MCP: note_write waits for your decision." in body
        assert "within 5 minutes" in body and "secret words" not in body and "Plan.md" not in body


def test_an_ntfy_message_is_what_its_server_documents(ntfy: Notice) -> None:
    message = messages.about(ntfy(), question(), Keys(), NOW)
    assert message.url == "https://ntfy.example.com/"
    assert message.headers["Authorization"] == "Bearer tk_abc"
    assert json.loads(message.body) == {
        "topic": "toolwire-x7",
        "title": "Approve note_write?",
        "message": "claude via MCP: note_write waits for your decision.\n"
        "Decide in the inbox within 5 minutes.",
        "priority": 4,
        "click": f"{PAGES}/ui/inbox",
    }


def test_a_link_has_its_secret_in_the_fragment(ntfy: Notice) -> None:
    message = sent(ntfy(level="link"), question(), Keys(LINK))
    assert message["click"] == f"{PAGES}/ui/link/link_1#{LINK.secret}"
    assert "actions" not in message


def test_buttons_deny_and_open_and_approve_only_what_the_message_shows_whole(ntfy: Notice) -> None:
    plain = ntfy(level="buttons")
    assert labels_of(sent(plain, question(), BOTH)) == ["Deny", "Open"]
    full = ntfy(level="buttons", detail="full")
    assert labels_of(sent(full, question(), BOTH)) == ["Deny", "Open"]
    opted = ntfy(level="buttons", detail="full", approve=True)
    message = sent(opted, question(), BOTH)
    assert labels_of(message) == ["Create note", "Deny", "Open"] and all(map(_is_action, message["actions"]))
    assert "Plan.md" in message["message"] and "+secret words" in message["message"]
    assert json.loads(message["actions"][0]["body"]) == {
        "id": "appr_1",
        "token": ANSWER.secret,
        "approved": True,
    }
    assert all(LINK.secret not in json.dumps(one) for one in message["actions"][:2])
    long = question(arguments={"path": "Plan.md", "text": "x" * 2000})
    assert labels_of(sent(opted, long, BOTH)) == ["Deny", "Open"]
    picks = question(shown=Preview((Touched("a", "A.md"),), pick=True))
    assert labels_of(sent(opted, picks, BOTH)) == ["Deny", "Open"]


def test_a_button_secret_is_in_no_address(ntfy: Notice) -> None:
    for action in sent(ntfy(level="buttons"), question(), BOTH)["actions"][:1]:
        assert ANSWER.secret not in action["url"] and action["method"] == "POST"


@pytest.mark.parametrize(
    "text", ["x" * 100_000, "é" * 50_000, '"\\\n' * 30_000, "😀" * 20_000, "\u202e" * 9_000]
)
def test_no_message_exceeds_what_ntfy_accepts(ntfy: Notice, text: str) -> None:
    notice = ntfy(level="buttons", detail="full", approve=True)
    message = messages.about(notice, question(arguments={"text": text}), BOTH, NOW)
    assert len(message.body) <= 8192
    shown = json.loads(message.body)["message"]
    assert len(shown.encode()) <= 4096 and shown.endswith("The rest of the call is on the page.")


def test_hidden_characters_in_names_and_arguments_are_visible(ntfy: Notice) -> None:
    one = question(model="cla\u200bude", tool="note\u202ewrite", arguments={"p\u00ad": "a\x1b[31mb\u2066"})
    shown = json.dumps(sent(ntfy(detail="full"), one), ensure_ascii=False)
    assert not set("\u200b\u202e\u00ad\x1b\u2066") & set(shown)
    assert "⟨U+200B⟩" in shown and "⟨U+202E⟩" in shown


def test_unpaired_surrogates_and_odd_values_can_be_sent(webhook: Notice) -> None:
    one = question(arguments={"text": "\ud800", "n": float("inf")}, shown=Preview(diff="\udfff"))
    message = sent(webhook(detail="full"), one)
    assert message["question"]["arguments"]["text"] == "\ud800"


def test_a_webhook_carries_the_question_as_data(webhook: Notice) -> None:
    plain = sent(webhook(), question())
    assert (plain["type"], plain["notice"], plain["sent_at"]) == ("approval.waiting", "hook", 1300)
    assert set(plain["question"]) == {
        *("id", "created_at", "expires_at", "session", "surface", "model", "tool", "stage")
    }
    full = sent(webhook(detail="full", level="buttons"), question(), BOTH)
    assert full["question"]["arguments"]["text"] == "secret words"
    assert full["answer"] == {
        "url": f"{PAGES}/ui/api/link/link_2",
        "id": "appr_1",
        "token": ANSWER.secret,
        "may_approve": False,
    }
    huge = sent(webhook(detail="full"), question(arguments={"text": "x" * 2_000_000}))
    assert "arguments" not in huge["question"] and huge["question"]["cut"] is True


def test_many_questions_are_one_message_without_links(ntfy: Notice) -> None:
    many = [question(id=f"appr_{n}", tool="file_read" if n else "note_write") for n in range(12)]
    message = json.loads(messages.about_many(ntfy(level="buttons"), many, NOW).body)
    assert message["title"] == "12 calls wait for your decision"
    assert "file_read ×11, note_write" in message["message"]
    assert message["click"] == f"{PAGES}/ui/inbox" and "actions" not in message


# --- signatures ---


def test_a_signature_is_an_hmac_over_time_and_exact_bytes(webhook: Notice) -> None:
    message = messages.about(webhook(), question(), Keys(), NOW)
    header = message.headers["Toolwire-Signature"]
    mac = hmac.new(SECRET.encode(), b"1300." + message.body, hashlib.sha256).hexdigest()
    assert header == f"t=1300,v1={mac}"
    assert signature.wrong(SECRET, header, message.body, NOW) == ""


@pytest.mark.parametrize("away", [-299, 0, 300])
def test_a_signature_counts_for_300_seconds(away: float) -> None:
    header = signature.signature(SECRET, 1000, b"x")
    assert signature.wrong(SECRET, header, b"x", 1000 + away) == ""


@pytest.mark.parametrize(
    ("header", "body", "now", "said"),
    [
        (None, b"x", 1301, "300 s old"),
        (None, b"x", 699, "clock"),
        (None, b"x ", 1000, "does not fit"),
        ("", b"x", 1000, "missing"),
        ("t=1000", b"x", 1000, "missing"),
        ("t=1000,v1=", b"x", 1000, "missing"),
        ("t=-1,v1=" + "0" * 64, b"x", 1000, "missing"),
        ("t=1000,v1=" + "0" * 64, b"x", 1000, "does not fit"),
        ("t=1000,v1=" + "0" * 64 + ",v1=" + "0" * 64, b"x", 1000, "missing"),
        ("t=٣,v1=" + "0" * 64, b"x", 1000, "missing"),
    ],
)
def test_other_signatures_do_not_count(header: str | None, body: bytes, now: float, said: str) -> None:
    header = signature.signature(SECRET, 1000, b"x") if header is None else header
    assert said in signature.wrong(SECRET, header, body, now)


def test_a_signature_by_another_secret_does_not_count() -> None:
    assert "does not fit" in signature.wrong(
        SECRET, signature.signature(SECRET + "x", 1000, b"x"), b"x", 1000
    )

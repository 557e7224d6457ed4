"""The messages of a notice: their text, and the HTTP requests that send them to a webhook or to ntfy.

Names, arguments and previews are untrusted text: `core/display.py` makes invisible characters visible. The
module has no side effects.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolwire.core.display import clean, counted, one_line
from toolwire.settings.types import NoticeSettings
from toolwire.surfaces import cards
from toolwire.surfaces.notices.signature import HEADER, signature
from toolwire.tools.consent import LinkKey
from toolwire.tools.contract import DENY, Approval, approve_label

INBOX = "/ui/inbox"
LINK = "/ui/link/"
ANSWER = "/ui/api/link/"
TEST_LINK = "test"
MOST_BYTES = {"webhook": 100_000, "ntfy": 3_000}
"""For each kind of notice, the longest text in bytes. (ntfy accepts 4,096 bytes.)"""
MOST_JSON = {"webhook": 1_000_000, "ntfy": 8_000}
"""For each kind of notice, the longest body of a request in bytes. (ntfy accepts 8,192 bytes.)"""
MOST_ON_BUTTON = 1_500
"""The longest text of a call, in bytes, that a button can approve: a phone must show the whole text."""
CUT = "\n… The rest of the call is on the page."


@dataclass(frozen=True, slots=True)
class Keys:
    """The secrets of the links in one message; None for a link that the message does not have.

    `link`: the secret of the link to the page of the question. `answer`: the secret with which a button, or
    the receiver of the webhook, sends a decision.
    """

    link: LinkKey | None = None
    answer: LinkKey | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """The request that sends a notice."""

    url: str
    body: bytes
    headers: dict[str, str]


def fits_button(notice: NoticeSettings, approval: Approval) -> bool:
    """Whether the notice may have a button that approves this call.

    The settings must allow it, the message must show the whole call, and there must be nothing to pick.
    """
    allowed = notice.approve and notice.level == "buttons" and notice.detail == "full"
    return allowed and not approval.shown.pick and len(whole(approval).encode()) <= MOST_ON_BUTTON


def whole(approval: Approval) -> str:
    """Returns the whole call as text: its arguments, and the files that it would read or change."""
    return cards.plain(cards.card(approval, None, whole=True)[1:])


# --- the text ---


def _text(notice: NoticeSettings, approval: Approval, now: float) -> str:
    minutes = max(1, round((approval.expires_at - now) / 60))
    where = {"notice": "Decide in the inbox", "link": "Open the link to decide", "buttons": "Decide"}
    ends = f"{where[notice.level]} within {counted(minutes, 'minute')}."
    asks = (
        "may results be shared with the model?" if approval.stage == "share" else "waits for your decision."
    )
    lines = [f"{cards.who(approval)}: {one_line(approval.tool, 80)} {asks}", ends]
    if notice.detail == "full":
        lines += ["", whole(approval)]
    return _cut("\n".join(lines), MOST_BYTES[notice.kind])


def _cut(text: str, most: int) -> str:
    raw = text.encode()
    return text if len(raw) <= most else raw[: most - len(CUT.encode())].decode("utf-8", "ignore") + CUT


def _title(approval: Approval) -> str:
    return f"Approve {one_line(approval.tool, 60)}?"


# --- messages ---


def about(notice: NoticeSettings, approval: Approval, keys: Keys, now: float) -> Message:
    """Returns the message about one question."""
    page = _page(notice, keys.link)
    question: dict[str, Any] = {
        **{name: getattr(approval, name) for name in ("id", "created_at", "expires_at", "session")},
        **{name: clean(getattr(approval, name)) for name in ("surface", "model", "tool", "stage")},
    }
    if notice.detail == "full" or approval.source.startswith("mcp:"):
        question["source"] = approval.source
    if notice.detail == "full":
        question |= {"arguments": dict(approval.arguments), "shown": approval.shown.to_json()}
    extra: dict[str, Any] = {"question": question}
    actions: list[dict[str, Any]] = []
    if keys.answer is not None:
        url = f"{notice.pages}{ANSWER}{keys.answer.id}"
        given = {"id": approval.id, "token": keys.answer.secret}
        may_approve = fits_button(notice, approval)
        extra["answer"] = {"url": url, **given, "may_approve": may_approve}
        if may_approve:
            label = one_line(approve_label(approval.shown, approval.stage), 40)
            actions.append(_button(label, url, given | {"approved": True}))
        actions.append(_button(DENY, url, given | {"approved": False}))
    if page and notice.level == "buttons":
        actions.append({"action": "view", "label": "Open", "url": page})
    text = _text(notice, approval, now)
    return _message(notice, "approval.waiting", _title(approval), text, page, extra, actions, now)


def about_many(notice: NoticeSettings, approvals: Sequence[Approval], now: float) -> Message:
    """Returns one message about many questions. It has no link to a single question."""
    tools = Counter(one_line(one.tool, 60) for one in approvals).most_common(8)
    named = ", ".join(f"{tool} ×{count}" if count > 1 else tool for tool, count in tools)
    text = f"{cards.who(approvals[0])} and others: {named}. Decide in the inbox."
    title = f"{counted(len(approvals), 'call')} wait for your decision"
    extra = {"count": len(approvals)}
    return _message(notice, "approvals.waiting", title, text, _page(notice, None), extra, [], now)


def test(notice: NoticeSettings, now: float) -> Message:
    """Returns a message that tests the delivery. It is not about a tool call."""
    page = _page(notice, None)
    text = "This is a test of Toolwire's notices. Nothing waits for your decision."
    if notice.level != "notice":
        page = f"{notice.pages}{LINK}{TEST_LINK}"
        text += " Open the link to see whether you can reach Toolwire's pages from here."
    return _message(notice, "test", "Toolwire: a test", text, page, {}, [], now)


def _page(notice: NoticeSettings, key: LinkKey | None) -> str:
    """Returns the URL of the page to open: the page of a link or, without `key`, the inbox.

    Returns "" if the settings of the notice have no `pages`. The secret of a link is in the fragment of the
    URL, which browsers do not send to a server.
    """
    if not notice.pages:
        return ""
    return f"{notice.pages}{INBOX if key is None else f'{LINK}{key.id}#{key.secret}'}"


def _button(label: str, url: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    content = json.dumps(body, separators=(",", ":"))
    return {
        "action": "http",
        "label": label,
        "url": url,
        "method": "POST",
        "headers": headers,
        "body": content,
        "clear": True,
    }


# --- the requests ---


def _message(
    notice: NoticeSettings,
    type: str,
    title: str,
    text: str,
    page: str,
    extra: dict[str, Any],
    actions: list[dict[str, Any]],
    now: float,
) -> Message:
    headers = {"Content-Type": "application/json", "User-Agent": "toolwire"}
    if notice.kind == "ntfy":
        if notice.token:
            headers["Authorization"] = f"Bearer {notice.token}"
        sent: dict[str, Any] = {"topic": notice.topic, "title": title, "message": text, "priority": 4}
        if page:
            sent["click"] = page
        if actions:
            sent["actions"] = actions
        body = _json(sent)
        if len(body) > MOST_JSON["ntfy"]:  # escapes in JSON make a text longer
            body = _json(sent | {"message": text[:400] + CUT})
        return Message(f"{notice.url}/", body, headers)
    sent = {"type": type, "notice": notice.name, "sent_at": int(now), "title": title, "text": text, **extra}
    if page:
        sent["page"] = page
    body = _json(sent)
    if len(body) > MOST_JSON["webhook"] and "question" in sent:
        small = {key: value for key, value in sent["question"].items() if key not in ("arguments", "shown")}
        body = _json(sent | {"question": small | {"cut": True}})
    headers[HEADER] = signature(notice.secret, int(now), body)
    return Message(notice.url, body, headers)


def _json(value: Any) -> bytes:
    """Returns JSON in UTF-8. Unpaired surrogates are escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return text.encode("utf-8", "backslashreplace")

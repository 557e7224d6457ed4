"""Questions, and settings of notices that fit together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from toolwire.settings.types import NoticeSettings
from toolwire.store.store import Store
from toolwire.tools.approvals import Approvals
from toolwire.tools.contract import Approval, Preview

SECRET = "a-webhook-secret-of-some-length"
PAGES = "https://toolwire.example.com"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    kept = Store(f"sqlite:///{tmp_path}/toolwire.db")
    yield kept
    await kept.close()


@pytest.fixture
def approvals(store: Store) -> Approvals:
    return Approvals(store)


@pytest.fixture
def webhook() -> Callable[..., NoticeSettings]:
    """`webhook(url, level=…)`: the settings of a webhook that sends at once."""

    def made(url: str = "https://hooks.example.com/x", **more: Any) -> NoticeSettings:
        given = {"secret": SECRET, "pages": PAGES, "after_s": 0.0, **more}
        return NoticeSettings("hook", "webhook", url, **given)

    return made


@pytest.fixture
def ntfy() -> Callable[..., NoticeSettings]:
    """`ntfy(url, level=…)`: the settings of an ntfy notice that sends at once."""

    def made(url: str = "https://ntfy.example.com", **more: Any) -> NoticeSettings:
        given = {"topic": "toolwire-x7", "token": "tk_abc", "pages": PAGES, "after_s": 0.0, **more}
        return NoticeSettings("phone", "ntfy", url, **given)

    return made


def question(**more: Any) -> Approval:
    given: dict[str, Any] = {
        "id": "appr_1",
        "created_at": 1000.0,
        "expires_at": 1600.0,
        "owner": "",
        "session": "s",
        "surface": "mcp",
        "model": "claude",
        "tool": "note_write",
        "stage": "run",
        "arguments": {"path": "Plan.md", "text": "secret words"},
        "shown": Preview(diff="+secret words", action="Create note"),
        "token": "t",
        **more,
    }
    return Approval(**given)

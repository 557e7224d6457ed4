"""Walks through the tour in a browser, as a person would. `bench/tour_time.py` uses this module too."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect

PLAN, HOTELS = "Lisbon plan.md", "Lisbon hotels.md"
Step = Callable[[Page, Locator], None]


def question(page: Page, step: int) -> Locator:
    """Waits until the question of this step can be decided. Returns its dialog."""
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("note").filter(has_text=f"Step {step} of 5")).to_be_visible()
    expect(denying(dialog)).to_have_attribute("aria-disabled", "false")
    return dialog


def approving(dialog: Locator) -> Locator:
    return dialog.locator(".button.primary")


def denying(dialog: Locator) -> Locator:
    return dialog.get_by_role("button", name="Deny", exact=True)


def approve(page: Page, dialog: Locator) -> None:
    approving(dialog).click()


def deny(page: Page, dialog: Locator) -> None:
    denying(dialog).click()


def share(page: Page, dialog: Locator) -> None:
    """Shares the plan and the hotels, and not the diary."""
    for name in (PLAN, HOTELS):
        dialog.get_by_role("checkbox", name=re.compile(f"^{name}")).check()
    approving(dialog).click()


SUGGESTED: tuple[Step, ...] = (approve, share, approve, approve, deny)


def finish(page: Page, steps: tuple[Step, ...] = SUGGESTED) -> None:
    """Decides at every step, and waits for the end of the tour."""
    for number, step in enumerate(steps, 1):
        step(page, question(page, number))
    expect(page.get_by_text("That was the tour.")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)

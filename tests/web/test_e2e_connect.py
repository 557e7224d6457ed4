"""Connecting a client, in Chromium: what is shown is what is copied, and the model test is truthful."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

CALLS = 'call toolwire_check {"word": "ping"}\n---\nsay It said: {result}'
KEY = "a-server-key-of-some-length"
CONNECT = """model => {
  const headers = {'x-toolwire-page': localStorage.getItem('toolwire-page')}
  const url = '/ui/api/connect?model=' + encodeURIComponent(model)
  return fetch(url, {headers}).then(answer => answer.json())
}"""


def clients(page: Page) -> list[str]:
    tabs = page.get_by_role("tablist", name="Clients").get_by_role("tab")
    expect(tabs.first).to_be_visible()
    return tabs.all_inner_texts()


def pick(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()
    expect(page.get_by_role("tabpanel").get_by_role("heading", name=name, exact=True)).to_be_visible()


def test_every_client_is_shown_this_address_and_the_chosen_model_and_copies_exactly_that(
    site: Any, browse: Any
) -> None:
    here = site({"first": {"script": CALLS}, "acme/odd model": {"script": CALLS}})
    browsing = browse(here)
    browsing.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=here.url)
    page = browsing.tab("/ui/connect?client=codex")
    expect(page.get_by_role("tab", name="Codex")).to_have_attribute("aria-selected", "true")
    page.get_by_label("Model").select_option("acme/odd model")
    expect(page.get_by_role("tabpanel")).to_contain_text('model = "acme/odd model"')
    page.get_by_role("button", name="Copy the address").click()
    assert page.evaluate("navigator.clipboard.readText()") == f"{here.url}/v1"
    expected = page.evaluate(CONNECT, "acme/odd model")
    assert clients(page) == [client["name"] for client in expected["clients"]]
    assert len(expected["clients"]) >= 8
    for client in expected["clients"]:
        pick(page, client["name"])
        panel = page.get_by_role("tabpanel")
        expect(panel).to_contain_text(f"127.0.0.1:{here.port}")
        expect(panel).to_contain_text("acme/odd model")
        wanted = [
            step.get("value") or step["code"].removesuffix("\n")
            for step in client["steps"]
            if step.get("value") or step.get("code")
        ]
        buttons = panel.get_by_role("button", name=re.compile("^Cop(y|ied)"))
        expect(buttons).to_have_count(len(wanted))
        for place, text in enumerate(wanted):
            assert text in panel.locator("code").nth(place).inner_text()
            page.evaluate("navigator.clipboard.writeText('')")
            buttons.nth(place).click()
            expect(buttons.nth(place)).to_have_accessible_name("Copied")
            assert page.evaluate("navigator.clipboard.readText()") == text
    assert f"client={expected['clients'][-1]['id']}" in page.url
    expect(page.get_by_role("button", name="Copy the address")).to_be_visible()  # its name came back
    page.reload()
    expect(page.get_by_label("Model")).to_have_value("acme/odd model")  # stored by this browser
    tabs = page.get_by_role("tablist", name="Clients")
    tabs.get_by_role("tab", selected=True).focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    expect(
        page.get_by_role("tabpanel").get_by_role("heading", name=expected["clients"][1]["name"], exact=True)
    ).to_be_visible()


@pytest.mark.parametrize("tools", ["native", "emulated"])
def test_the_round_trip_passes_step_by_step_for_every_client(site: Any, browse: Any, tools: str) -> None:
    here = site(
        {"m": {"script": CALLS, "tools": tools}}, server={"keys": [KEY]} if tools == "emulated" else {}
    )
    page = browse(here).tab("/ui/connect")
    for name in clients(page):
        pick(page, name)
        page.get_by_role("button", name="Test the round trip").click()
        result = page.get_by_role("region", name=f"Test of {name}")
        expect(result).to_contain_text("It works: m called the tool and answered with the tool’s result.")
        steps = result.get_by_role("listitem")
        assert all(step.startswith("Passed:") for step in steps.all_inner_texts()), steps.all_inner_texts()
        expect(steps.filter(has_text="List of models")).to_contain_text("m is listed (1 in total).")
        expect(steps.filter(has_text="Tool call")).to_contain_text('toolwire_check with {"word": "ping"}')
        expect(steps.filter(has_text="Answer with the result")).to_contain_text("It said: ")
        expect(result.get_by_role("button", name="Test again")).to_be_enabled()
    if tools == "emulated":
        expect(page.get_by_role("status").filter(has_text="This server requires an API key")).to_be_visible()
        assert KEY not in page.content()


def test_a_model_that_does_not_call_or_fails_is_said_to_be_just_that(site: Any, browse: Any) -> None:
    here = site(
        {
            "mute": {"script": "say I would rather not.", "tools": "emulated"},
            "gone": {"script": "fail backend_unavailable Nobody is at home."},
        }
    )
    page = browse(here).tab("/ui/connect?client=curl")
    page.get_by_label("Model").select_option("mute")
    expect(page.get_by_role("tabpanel")).to_contain_text('"model": "mute"')
    page.get_by_role("button", name="Test the round trip").click()
    result = page.get_by_role("region", name="Test of curl")
    expect(result.get_by_role("alert")).to_contain_text("It does not work yet: Tool call failed.")
    steps = result.get_by_role("listitem")
    expect(steps.filter(has_text="Failed: Tool call")).to_contain_text("The model made no call")
    expect(steps.filter(has_text="Not tried: Answer with the result")).to_have_count(1)
    page.get_by_label("Model").select_option("gone")
    expect(page.get_by_role("tabpanel")).to_contain_text('"model": "gone"')
    page.get_by_role("button", name="Test the round trip").click()
    expect(steps.filter(has_text="Failed: Tool call")).to_contain_text("Nobody is at home.")
    page.get_by_label("Model").select_option("mute")  # the result stays
    expect(steps.filter(has_text="Failed: Tool call")).to_contain_text("The model made no call")

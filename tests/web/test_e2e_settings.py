"""The settings in Chromium: the switch for tool calling, models with tools, sign-in and the theme."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect

WARNING = "Experimental feature - tools may access your vault data."


def section(page: Page, name: str) -> Locator:
    return page.locator("section").filter(has=page.get_by_role("heading", name=name, exact=True))


def switch(page: Page) -> Locator:
    return page.get_by_role("switch", name="Tools in the chat (experimental)")


def test_tool_calling_is_off_at_first_and_a_confirmed_yes_outlives_the_server(
    site: Any, browse: Any, tmp_path: Path
) -> None:
    root = tmp_path / "site0" / "vault"
    here = site(
        on=False,
        vault={"root": str(root), "enabled": False, "include": ["*.md"], "exclude": ["Private/*", "*.tmp"]},
    )
    browsing = browse(here)
    page = browsing.tab("/ui/settings")
    expect(switch(page)).not_to_be_checked()
    expect(page.get_by_text(WARNING)).to_be_visible()
    expect(page.get_by_text("Off: models in the chat cannot use tools.")).to_be_visible()
    expect(switch(page)).to_have_accessible_description(
        "Lets models in the chat on these pages ask to search, read and change your notes, and to call the "
        "tools of your MCP servers. You approve each call in a dialog, unless a remembered approval or a "
        "rule that you set for an MCP server allows it. This switch does not affect clients of the API and "
        "their tools. ⚠️ " + WARNING
    )
    vault = section(page, "Vault")
    for words in (
        str(root),
        "closed",
        "*.md",
        "Private/*",
        "*.tmp",
        "To change the folder or which notes are included, edit",
        "toolwire.toml",
    ):
        expect(vault).to_contain_text(words)
    expect(vault.get_by_role("button", name="Choose a folder")).to_be_hidden()  # the file sets the folder

    switch(page).focus()
    page.keyboard.press("Space")
    asked = page.get_by_role("dialog", name="Enable tools in the chat?")
    for words in (str(root), "Private/*", WARNING):
        expect(asked).to_contain_text(words)
    expect(asked.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Escape")
    expect(switch(page)).not_to_be_checked()
    switch(page).click()
    asked.get_by_role("button", name="Enable and index").click()
    expect(page.get_by_text("On. This folder is indexed on this machine:")).to_be_visible()
    expect(switch(page)).to_be_checked()
    expect(vault).to_contain_text("open")

    browsing.expected += ["ERR_", "Failed to load"]
    here.restart()
    after = browsing.tab("/ui/settings")  # still signed in, and still on
    expect(switch(after)).to_be_checked()
    expect(after.get_by_text("On. This folder is indexed on this machine:")).to_be_visible()
    switch(after).click()  # turning off needs no confirmation
    expect(after.get_by_text("Off: models in the chat cannot use tools.")).to_be_visible()
    expect(switch(page)).not_to_be_checked()  # the other tab reconnected, and was notified
    here.restart()
    expect(switch(browsing.tab("/ui/settings"))).not_to_be_checked()


def say(page: Page, model: str, words: str) -> None:
    page.get_by_role("button", name="Model:").click()
    page.get_by_role("combobox", name="Search models").fill(model)
    page.keyboard.press("Enter")
    page.get_by_role("textbox", name="Message").fill(words)
    page.keyboard.press("Enter")


def test_only_models_that_fit_a_pattern_are_offered_tools(site: Any, browse: Any) -> None:
    here = site({id: {"script": f"say Hello from {id}."} for id in ("small/one", "small/two", "large")})
    browsing = browse(here)
    other, page = browsing.tab("/ui/settings"), browsing.tab("/ui/settings")
    lines = page.get_by_label("One model or pattern per line")
    expect(lines).to_have_value("*")
    models = page.get_by_role("region", name="Models of this server").get_by_role("listitem")
    expect(page.get_by_text("3 of 3 models may use tools")).to_be_visible()
    save = page.get_by_role("button", name="Save")
    expect(save).to_be_disabled()
    lines.fill("sm*/[!t]*\n\n  nothing-like-it  ")
    expect(page.get_by_text("1 of 3 models may use tools")).to_be_visible()
    assert {" ".join(words.split()) for words in models.all_inner_texts()} == {
        "May use tools: small/one",
        "May not use tools: small/two",
        "May not use tools: large",
    }
    page.get_by_role("button", name="Undo").click()
    expect(lines).to_have_value("*")
    lines.fill("small/*")
    expect(page.get_by_text("2 of 3 models may use tools")).to_be_visible()
    save.click()
    expect(save).to_be_disabled()
    expect(other.get_by_text("2 of 3 models may use tools")).to_be_visible()
    expect(other.get_by_label("One model or pattern per line")).to_have_value("small/*")

    chat = browsing.tab()
    chat.get_by_role("button", name="Model:").click()
    large = chat.get_by_role("option", name="large")
    expect(large).to_contain_text("is not allowed to use tools in the chat")
    chat.keyboard.press("Escape")
    say(chat, "small/one", "Hello")
    expect(chat.get_by_text("Hello from small/one.", exact=True)).to_be_visible()
    say(chat, "large", "Hello again")
    expect(chat.get_by_text("Hello from large.", exact=True)).to_be_visible()
    wire = browsing.tab("/ui/wire")
    expect(wire.get_by_role("row").filter(has_text="small/one")).to_contain_text("native")
    expect(wire.get_by_role("row").filter(has_text="large")).to_contain_text("no tools")


def test_a_further_link_signs_in_one_other_browser_and_signing_out_ends_only_this_one(
    site: Any, browse: Any
) -> None:
    here = site()
    browsing, other = browse(here), browse(here, sign_in=False)
    page = browsing.tab("/ui/settings")
    page.get_by_role("button", name="Link for another browser").click()
    link = page.get_by_label("One-time link").input_value()
    assert link.startswith(f"{here.url}/ui/enter?token=") and link != here.link
    guest = other.context.new_page()
    guest.goto(link)
    expect(guest.get_by_role("textbox", name="Message")).to_be_visible()
    assert "token" not in guest.url

    page.get_by_role("button", name="Sign out").click()
    asked = page.get_by_role("dialog", name="Sign out of this browser?")
    asked.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("heading", name="Settings", exact=True)).to_be_visible()
    browsing.expected.append("401")
    page.get_by_role("button", name="Sign out").click()
    asked.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in to Toolwire")).to_be_visible()
    page.goto(f"{here.url}/ui/settings")
    expect(page.get_by_role("heading", name="Sign in to Toolwire")).to_be_visible()
    page.goto(link)
    expect(page.get_by_text("This link was already used")).to_be_visible()
    guest.reload()
    expect(guest.get_by_role("textbox", name="Message")).to_be_visible()


BACKGROUND = "getComputedStyle(document.body).backgroundColor"


def test_the_chosen_theme_is_kept_and_the_system_s_can_be_had_again(site: Any, browse: Any) -> None:
    here = site(server={"keys": ["a-server-key-of-some-length"]})
    browsing = browse(here, theme="light")
    page = browsing.tab("/ui/settings")
    expect(page.get_by_role("radio", name="Same as the system")).to_be_checked()
    light = page.evaluate(BACKGROUND)
    page.get_by_role("radio", name="Dark").check()
    expect(page.get_by_role("button", name="Use the light theme")).to_be_visible()
    page.reload()
    expect(page.get_by_role("radio", name="Dark")).to_be_checked()
    dark = page.evaluate(BACKGROUND)
    assert dark != light
    later = browsing.tab("/ui/inbox")
    assert later.evaluate(BACKGROUND) == dark
    page.get_by_role("button", name="Use the light theme").click()
    expect(page.get_by_role("radio", name="Light", exact=True)).to_be_checked()
    assert page.evaluate(BACKGROUND) == light
    page.get_by_role("radio", name="Same as the system").check()
    page.reload()
    assert page.evaluate(BACKGROUND) == light
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(BACKGROUND) == dark

    page.get_by_text("Show the settings").click()
    shown = section(page, "Settings in use")
    expect(shown).to_contain_text("[server]")
    assert "a-server-key-of-some-length" not in page.content()


def test_a_model_is_added_tested_and_removed_by_keyboard_and_the_vault_folder_is_chosen(
    site: Any, browse: Any
) -> None:
    here = site({"m": {"script": "say Hello."}}, on=False, vault={"enabled": False})
    (here.folder / "notes").mkdir(exist_ok=True)
    browsing = browse(here)
    page = browsing.tab("/ui/settings")
    models = page.get_by_role("list", name="Models and their state")
    expect(models.get_by_role("listitem").filter(has_text="toolwire.toml")).to_contain_text("available")
    page.get_by_role("button", name="Add a model").focus()
    page.keyboard.press("Enter")
    form = page.get_by_role("dialog", name="Add a model")
    expect(form.get_by_label("Kind of model")).to_be_focused()
    form.get_by_label("Kind of model").select_option("compatible")
    form.get_by_label("Address").fill("http://127.0.0.1:9/v1")
    form.get_by_label("Model", exact=True).fill("x")
    form.get_by_role("button", name="Test", exact=True).click()
    expect(form.get_by_text("Tool call: failed")).to_be_visible()
    form.get_by_label("Kind of model").select_option("scripted")
    expect(form.get_by_label("Address")).to_be_hidden()
    form.get_by_label("Name", exact=True).fill("added")
    form.get_by_role("button", name="Test", exact=True).click()
    expect(form.get_by_text("works: a tool call took")).to_be_visible()
    form.get_by_label("Name", exact=True).press("Enter")
    added = models.get_by_role("listitem").filter(has_text="added on this page")
    expect(added).to_contain_text("added")
    expect(added.locator(".badge")).to_have_text("available")
    added.get_by_role("button", name="Remove added").click()
    page.get_by_role("dialog", name="Remove this model?").get_by_role("button", name="Remove").click()
    expect(added).to_have_count(0)

    page.get_by_role("button", name="Choose a folder").click()
    chooser = page.get_by_role("dialog", name="Choose the vault’s folder")
    chooser.get_by_label("Folder", exact=True).fill(f"{here.folder}/nothing-here")
    chooser.get_by_role("button", name="Use this folder").click()
    expect(chooser.get_by_text("does not exist. Create the folder first.")).to_be_visible()
    chooser.get_by_label("Folder", exact=True).fill(f"{here.folder}/no")
    chooser.get_by_role("button", name="notes", exact=True).click()
    chooser.get_by_role("button", name="Use this folder").click()
    expect(section(page, "Vault")).to_contain_text(f"{here.folder}/notes")
    browsing.expected += ["400"]

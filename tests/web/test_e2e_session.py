"""Signing in, and what a browser is refused, in a real Chromium."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect


def test_the_printed_link_signs_in_once_and_a_second_browser_is_shown_how(site: Any, browse: Any) -> None:
    here = site()
    browsing = browse(here, sign_in=False)
    for path in (here.link.removeprefix(here.url), "/"):
        page = browsing.tab(path)
        expect(page.get_by_role("textbox", name="Message")).to_be_visible()
        assert "token" not in page.url
    other = browse(here, sign_in=False)
    other.expected.append("401")
    late = other.tab()
    late.goto(here.link)
    expect(late.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(late.get_by_text("used")).to_be_visible()
    expect(late.get_by_text("toolwire open --print prints a link")).to_be_visible()


def test_an_admin_key_signs_in_and_a_wrong_one_is_refused(site: Any, browse: Any) -> None:
    here = site(server={"admin_keys": ["an-admin-key-of-some-length"]})
    browsing = browse(here, sign_in=False)
    browsing.expected.append("401")
    page = browsing.tab()
    field = page.get_by_label("Admin key")
    field.fill("wrong")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("admin key")
    field.fill("an-admin-key-of-some-length")
    field.press("Enter")
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()


@pytest.fixture
def foreign() -> Iterator[str]:
    """A page of another origin: `localhost` with another port, which is the same site to a browser."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>foreign</title>")

        def log_message(self, *words: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


TRY = """async ([url, method]) => {
  const out = [];
  for (const mode of ['cors', 'no-cors']) {
    try {
      const headers = mode === 'cors' ? {'content-type': 'application/json'} : {};
      const body = method === 'GET' ? undefined : '{"tool_calling": true}';
      const answer = await fetch(url, {method, mode, credentials: 'include', headers, body});
      out.push([mode, answer.type, answer.status, await answer.text()]);
    } catch (error) { out.push([mode, 'blocked', 0, '']); }
  }
  return out;
}"""


def test_a_page_of_another_origin_reads_and_changes_nothing_though_the_browser_has_the_cookie(
    site: Any, browse: Any, foreign: str
) -> None:
    here = site(on=False)
    browsing = browse(here)
    browsing.expected += ["CORS", "403", "Failed to load"]
    page = browsing.context.new_page()
    page.goto(foreign)
    for method, path in (
        ("GET", "/ui/api/session"),
        ("GET", "/ui/api/settings"),
        ("POST", "/ui/api/session/link"),
        ("PUT", "/ui/api/settings"),
    ):
        for _, kind, status, text in page.evaluate(TRY, [here.url + path, method]):
            assert kind in ("blocked", "opaque") or status == 403, (method, path, kind, status)
            assert "boot" not in text and "http" not in text
    own = browsing.tab("/ui/settings")
    expect(own.get_by_role("switch", name="Tools in the chat")).not_to_be_checked()


def test_no_page_can_be_framed(site: Any, browse: Any, foreign: str) -> None:
    here = site()
    browsing = browse(here)
    browsing.expected += ["frame", "Refused", "ERR_BLOCKED"]
    page = browsing.context.new_page()
    page.goto(foreign)
    page.evaluate(
        "url => { const f = document.createElement('iframe'); f.src = url; document.body.append(f); }",
        here.url + "/ui/inbox",
    )
    page.wait_for_function(
        "document.querySelector('iframe').contentDocument === null"
    )  # its content is from no origin: an error page
    assert [frame.url for frame in page.frames[1:]] == ["chrome-error://chromewebdata/"]

"""The pages in a real browser: a `toolwire serve` process, and Debian's Chromium driven by Playwright.

`site(…)` starts the server; `tab()` opens a signed-in tab of a fresh browser profile. A page that logs an
error or violates its content security policy fails the test. A worker starts the browser once for all
consecutive files of this folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
READY_S = 30.0

expect.set_options(timeout=20_000)  # the machine may be busy


def missing(what: str) -> None:
    """Skips with what is missing, or fails where nothing may be missing."""
    pytest.skip(f"{what} is missing; make test installs it where it may")


HERE = Path(__file__).parent
_kept = contextlib.ExitStack()
_browsers: list[Browser] = []
_open: list[Browsing] = []
"""The open browser profiles of the running test."""


@pytest.fixture(scope="module")
def chromium() -> Browser:
    if CHROMIUM is None:
        missing("Chromium")
    if not _browsers:
        playwright = _kept.enter_context(sync_playwright())
        _kept.callback(_browsers.clear)
        _browsers.append(
            _kept.enter_context(playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET))
        )
    return _browsers[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Closes the browser after its files: Playwright occupies the thread's event loop, which others need."""
    yield
    if nextitem is None or not nextitem.path.is_relative_to(HERE):
        _kept.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds what its pages showed, and the server's log, to the report of a failure."""
    report = yield
    if report.when == "call" and report.failed:
        for browsing in _open:
            with contextlib.suppress(Exception):
                report.sections.append(("the pages", browsing.shown()))
    return report


def pytest_sessionfinish() -> None:
    """Also if a run ends early."""
    _kept.close()


@dataclass
class Site:
    """A server process that can be stopped and restarted on the same port and store."""

    folder: Path
    config: dict[str, Any]
    port: int = 0
    link: str = ""
    program: tuple[str, ...] = ("-m", "toolwire")
    environ: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def vault(self) -> Path:
        return self.folder / "vault"

    def start(self) -> Site:
        self.config["server"]["port"] = self.port
        (self.folder / "toolwire.toml").write_text(_toml(self.config))
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TOOLWIRE_", "PROXY_")) and name != "PORT"
        }
        self.process = subprocess.Popen(
            [sys.executable, *self.program, "serve", "--config", "toolwire.toml"],
            cwd=self.folder,
            env={
                **inherited,
                "HOME": str(self.folder),
                "XDG_CACHE_HOME": str(self.folder / "cache"),
                **self.environ,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        ready = self._read(self.process, rb"listening on http://127\.0\.0\.1:(\d+)/v1", "stdout")
        self.port = int(ready[1])
        self.link = self._read(self.process, rb"(http://\S+/ui/enter\?token=\S+)", "stderr")[1].decode()
        return self

    def _read(self, process: subprocess.Popen[bytes], pattern: bytes, stream: str) -> re.Match[bytes]:
        pipe = getattr(process, stream)
        seen, until = b"", time.monotonic() + READY_S
        while time.monotonic() < until:
            if select.select([pipe], [], [], 0.1)[0]:
                seen += os.read(pipe.fileno(), 65536)
                if found := re.search(pattern, seen):
                    return found
            if process.poll() is not None and not select.select([pipe], [], [], 0)[0]:
                break
        raise AssertionError(f"the server did not start: {seen.decode('utf-8', 'replace')}")

    def kill(self) -> None:
        """Kills the server, as in a crash."""
        assert self.process is not None
        self.process.kill()
        self.process.communicate()

    def stop(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.communicate()

    def logged(self) -> str:
        """What the server has logged and no test has read."""
        assert self.process is not None and self.process.stderr is not None
        return (
            os.read(self.process.stderr.fileno(), 65536).decode("utf-8", "replace")
            if select.select([self.process.stderr], [], [], 0)[0]
            else ""
        )

    def restart(self) -> Site:
        self.kill()
        return self.start()


OpenSite = Callable[..., Site]
NOTES = {
    "Tea.md": "# Tea\n\nGreen tea wants 80 degrees.\n",
    "Coffee.md": "# Coffee\n\nCoffee wants 94 degrees.\n",
    "Journal/Monday.md": "# Monday\n\nTea with Ada.\n",
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[OpenSite]:
    """`site(models={"m": {"script": …}}, notes={path: text}, on=True, **sections)`: the server.

    `on`: tool calling is on in the configuration file.
    """
    started: list[Site] = []

    def open_site(
        models: dict[str, Any] | None = None,
        notes: dict[str, str] | None = None,
        on: bool = True,
        program: tuple[str, ...] = ("-m", "toolwire"),
        environ: dict[str, str] | None = None,
        **sections: Any,
    ) -> Site:
        folder = tmp_path / f"site{len(started)}"
        vault = folder / "vault"
        for path, text in (NOTES if notes is None else notes).items():
            (vault / path).parent.mkdir(parents=True, exist_ok=True)
            (vault / path).write_text(text)
        vault.mkdir(parents=True, exist_ok=True)
        config: dict[str, Any] = {
            "server": {"host": "127.0.0.1", "drain_s": 2, **sections.pop("server", {})},
            "models": {
                id: {"backend": "scripted", **options}
                for id, options in ({"m": {"script": "say Hello."}} if models is None else models).items()
            },
            "vault": {"root": str(vault), "enabled": on},
            "store": {"url": f"sqlite:///{folder}/toolwire.db"},
            **sections,
        }
        opened = Site(folder, config, program=program, environ=environ or {}).start()
        started.append(opened)
        return opened

    try:
        yield open_site
    finally:
        for one in started:
            one.stop()


@dataclass
class Browsing:
    """One browser profile at one site."""

    context: BrowserContext
    site: Site
    problems: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    """Parts of console messages that the test itself causes, such as those of a stopped server."""

    def tab(self, path: str = "/") -> Page:
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on(
            "console",
            lambda message: (
                self.problems.append(f"console: {message.text}") if message.type == "error" else None
            ),
        )
        page.goto(self.site.url + path)
        return page

    def shown(self) -> str:
        """For the report of a failure: each tab's address, text and fields, and the server's log."""
        report = []
        for page in self.context.pages:
            fields = page.evaluate(
                "[...document.querySelectorAll('input, textarea')].map((one) => one.value).filter(Boolean)"
            )
            focused = page.evaluate("document.activeElement?.outerHTML.slice(0, 200)")
            report += [page.url, f"fields: {fields}", f"focus: {focused}", page.inner_text("body")]
        return "\n".join([*report, *self.problems, self.site.logged()])

    def unexpected(self) -> list[str]:
        return [one for one in self.problems if not any(part in one for part in self.expected)]


Browse = Callable[..., Browsing]


def _sign_in(context: BrowserContext, site: Site) -> None:
    """Signs in with the one-time link.

    Stores what the page after the link would store, without drawing that page, which tests do not use.
    """
    answer = context.request.get(site.link, max_redirects=0)
    name, _, key = urlsplit(answer.headers["location"]).fragment.partition("=")
    assert (answer.status, name) == (303, "page") and key, answer.headers
    page = context.new_page()
    page.goto(f"{site.url}/ui/static/favicon.svg")
    page.evaluate("key => localStorage.setItem('toolwire-page', key)", key)
    page.close()


@pytest.fixture
def browse(chromium: Browser) -> Iterator[Browse]:
    """`browse(site, width=1280, theme="light")`: signed in with the one-time link."""
    opened = _open

    def open_profile(
        site: Site, width: int = 1280, height: int = 800, theme: Any = "light", sign_in: bool = True
    ) -> Browsing:
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
        context.set_default_timeout(20_000)
        browsing = Browsing(context, site)
        opened.append(browsing)
        if sign_in:
            _sign_in(context, site)
        return browsing

    opened.clear()
    yield open_profile
    for one in opened:
        with contextlib.suppress(Exception):
            one.context.close()
        assert not one.unexpected(), one.unexpected()


def _toml(config: dict[str, Any]) -> str:
    lines = []
    for section, table in config.items():
        tables = (
            {f"{section}.{json.dumps(id)}": options for id, options in table.items()}
            if section in ("models", "mcp")
            else {section: table}
        )
        for name, values in tables.items():
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, to be run in a page."""
    if not AXE.is_file():
        missing("axe-core")
    return AXE.read_text("utf-8")

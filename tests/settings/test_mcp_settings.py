"""The tables [mcp.NAME]: a mistake in one server leaves the others usable."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolwire.observe.masking import Mask
from toolwire.settings.load import load
from toolwire.settings.types import ConfigError, McpServerSettings, Settings, print_config

SAMPLE = """
[mcp]
urls = ["https://*.example.com/mcp"]

[mcp.files]
command = ["mcp-server-filesystem", "/srv/docs"]
env = { TOKEN = "env:FILES_TOKEN", MODE = "plain" }
tools = ["read_*"]
default = "deny"
allow = ["list_*"]
share = "ask"
start_s = 5

[mcp.tracker]
url = "https://mcp.example.com/mcp"
headers = { Authorization = "file:tracker.key" }
api = true
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tracker.key").write_text("Bearer s3cret\n")


def from_toml(text: str, **environ: str) -> Settings:
    Path("settings.toml").write_text(text)
    return load("settings.toml", environ, {})


def servers(text: str, **environ: str) -> dict[str, McpServerSettings]:
    return {one.name: one for one in from_toml(text, **environ).mcp.servers}


def problem(table: str) -> str:
    found = servers(f"[mcp.a]\n{table}\n[mcp.good]\ncommand = ['x']\n")
    assert found["good"].problem == ""
    assert "\n" not in found["a"].problem
    return found["a"].problem


def test_servers_with_every_key(tmp_path: Path) -> None:
    settings = from_toml(SAMPLE, FILES_TOKEN="t0ken-value")
    files, tracker = settings.mcp.servers
    assert settings.mcp.urls == ("https://*.example.com/mcp",)
    assert (files.command, files.url) == (("mcp-server-filesystem", "/srv/docs"), "")
    assert dict(files.env) == {"TOKEN": "t0ken-value", "MODE": "plain"}
    assert (files.tools, files.default, files.allow, files.share) == (("read_*",), "deny", ("list_*",), "ask")
    assert (files.start_s, files.call_s, files.folder, files.problem) == (5.0, 60.0, str(tmp_path), "")
    assert dict(tracker.headers) == {"Authorization": "Bearer s3cret"} and tracker.api
    assert (tracker.default, tracker.share, tracker.tools) == ("ask", "run", ("*",))


def test_secrets_are_neither_printed_nor_logged() -> None:
    settings = from_toml(SAMPLE, FILES_TOKEN="t0ken-value")
    printed = print_config(settings)
    assert 'MODE = "plain"' in printed and "t0ken" not in printed and "s3cret" not in printed
    masked = Mask.of(settings).text("t0ken-value and Bearer s3cret")
    assert masked == "*** and ***"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("", "expected a table [mcp.a] with a command or a url"),
        ("default = 'ask'", "set a command, or a url"),
        ("command = ['x']\nurl = 'https://x'", "set only one of them"),
        ("command = 'x'", "command: expected a list of strings"),
        ("command = ['']", "the name of the program is empty"),
        ("url = 'ftp://x'", "expected an address"),
        ("url = 'https://'", "expected an address"),
        ("url = 'https://x:99999/'", "expected an address"),
        ("comand = ['x']", "did you mean command?"),
        ("command = ['x']\nenv = { A = 'env:NOT_SET' }", "environment variable NOT_SET is not set"),
        ("command = ['x']\nenv = { A = 1 }", "expected a table of strings"),
        ("command = ['x']\nenv = { 'A=B' = 'x' }", "cannot be a name or value"),
        ("url = 'https://x'\nheaders = { 'X Y' = 'x' }", "cannot be a name or value"),
        ('url = "https://x"\nheaders = { X = "a\\r\\nY: b" }', "cannot be a name or value"),
        ("command = ['x']\ndefault = 'maybe'", "expected one of ask, allow, deny"),
        ("command = ['x']\ncall_s = 0", "expected a number from"),
        ("command = ['x', \"a\\u0000\"]", "NUL"),
    ],
)
def test_a_mistake_makes_its_server_unavailable(table: str, words: str) -> None:
    assert words in problem(table)


@pytest.mark.parametrize("name", ["'a__b'", "'a_'", "'-a'", "'a.b'", "'ä'", f"'{'x' * 33}'", "''"])
def test_a_name_that_would_be_ambiguous_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match="this name of a server cannot be used"):
        from_toml(f"[mcp.{name}]\ncommand = ['x']\n")


def test_the_environment_adds_and_overrides() -> None:
    text = "[mcp.my-files]\ncommand = ['x']\n[mcp.other]\ncommand = ['y']\n"
    found = servers(
        text,
        TOOLWIRE_MCP__MY_FILES__CALL_S="5",
        TOOLWIRE_MCP__MY_FILES__ALLOW='["list_*"]',
        TOOLWIRE_MCP__WEB='{"url": "https://x/mcp"}',
    )
    assert (found["my-files"].call_s, found["my-files"].allow) == (5.0, ("list_*",))
    assert found["my-files"].command == ("x",) and found["web"].url == "https://x/mcp"
    whole = from_toml(text, TOOLWIRE_MCP='{"only": {"command": ["z"]}}', TOOLWIRE_MCP__URLS='["https://y"]')
    assert [one.name for one in whole.mcp.servers] == ["only"] and whole.mcp.urls == ("https://y",)


def test_servers_of_a_file_in_the_working_folder_are_used_only_if_the_file_is_named() -> None:
    """Somebody else may have put the file there, with a command that would run."""
    Path("toolwire.toml").write_text("[server]\nport = 1\n[mcp.a]\ncommand = ['evil']\n")
    found = load(None, {}, {})
    assert found.server.port == 1
    assert "may not be yours" in found.mcp.servers[0].problem and "--config" in found.mcp.servers[0].problem
    for path, environ in (("toolwire.toml", {}), (None, {"TOOLWIRE_CONFIG": "toolwire.toml"})):
        assert load(path, environ, {}).mcp.servers[0].problem == ""


LOOSE = """
[approvals]
command_line = "open"
[mcp]
urls = ["*"]
"""


def test_an_unnamed_file_in_the_working_folder_does_not_loosen_consent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Somebody else may have put the file there, to approve calls or to admit addresses."""
    Path("toolwire.toml").write_text(f"[server]\nport = 1\n{LOOSE}")
    found = load(None, {}, {})
    assert (found.server.port, found.approvals.command_line, found.mcp.urls) == (1, "code", ())
    (line,) = caplog.messages
    assert "approvals.command_line, mcp.urls: not used" in line and "--config" in line and "\n" not in line
    for path, environ in (("toolwire.toml", {}), (None, {"TOOLWIRE_CONFIG": "toolwire.toml"})):
        named = load(path, environ, {})
        assert (named.approvals.command_line, named.mcp.urls) == ("open", ("*",))
    own = {"TOOLWIRE_APPROVALS__COMMAND_LINE": "open", "TOOLWIRE_MCP__URLS": '["https://x"]'}
    told = load(None, own, {})
    assert (told.approvals.command_line, told.mcp.urls) == ("open", ("https://x",))
    problems: list[str] = []
    load(None, {}, {}, problems=problems)
    assert problems == [line] and len(caplog.messages) == 1


def test_the_rules_beside_the_store_of_an_unnamed_file_do_not_count(tmp_path: Path) -> None:
    """The store itself is used: the server that was started in this folder needs its own."""
    (tmp_path / "settings.page.toml").write_text('[mcp.files]\nallow = ["*"]\n')
    server = {"HOME": str(tmp_path / "home"), "TOOLWIRE_MCP__FILES": '{"command": ["x"]}'}
    url = f"sqlite:///{tmp_path}/t.db"
    Path("toolwire.toml").write_text(f'[store]\nurl = "{url}"\n')
    found = load(None, server, {})
    assert found.store.url == url and found.mcp.servers[0].page_allow == ()
    assert load("toolwire.toml", server, {}).mcp.servers[0].page_allow == ("*",)
    chosen = load(None, {**server, "TOOLWIRE_STORE__URL": url}, {})
    assert chosen.mcp.servers[0].page_allow == ("*",)


def test_what_cannot_loosen_consent_is_used_from_an_unnamed_file(caplog: pytest.LogCaptureFixture) -> None:
    Path("toolwire.toml").write_text('[approvals]\ncommand_line = "code"\n[mcp]\nurls = []\n')
    load(None, {}, {})
    assert caplog.messages == []

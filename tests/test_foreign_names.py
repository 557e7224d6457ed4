"""Names and errors from servers cannot drive the terminal, whichever command prints them."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from toolwire.cli.main import main
from toolwire.observe import logs
from toolwire.surfaces.tables import table

EVIL = "m\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\u202ex"
DRIVES = set("\x1b\x07\x9b\u202e")


class _Upstream(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"object": "list", "data": [{"id": EVIL, "object": "model"}]}).encode()
        self.send_response(200 if self.path.endswith("/models") else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def upstream() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Upstream)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("command", [["models"], ["doctor"], ["models", "--json"], ["doctor", "--json"]])
def test_a_server_s_names_are_shown_and_drive_nothing(
    command: list[str],
    upstream: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "toolwire.toml").write_text(
        f'[models.up]\nbackend = "openai"\nbase_url = "{upstream}"\nmodel = "*"\n'
    )
    main([*command, "--config", str(tmp_path / "toolwire.toml")])
    told = capfd.readouterr()
    assert "up/m" in told.out and not DRIVES & set(told.out + told.err)


@pytest.mark.parametrize("command", [["ask", "hi", "--model", EVIL], ["models"]])
def test_a_complaint_drives_nothing(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "toolwire.toml").write_text(
        '[models.up]\nbackend = "scripted"\nwrong\u009b31m = 1\n' if command == ["models"] else ""
    )
    main([*command, "--config", str(tmp_path / "toolwire.toml")])
    assert not DRIVES & set("".join(capfd.readouterr()))


def test_a_table_drives_nothing_and_lines_up() -> None:
    head, row = table([("A", "B"), (EVIL, "b\nc")])
    assert not DRIVES & set(row) and "\n" not in row
    assert head.index("B") == row.index("b ⏎ c")


def test_a_line_of_the_log_drives_nothing() -> None:
    formatter = logs.TextFormatter()
    record = logging.LogRecord(
        "toolwire.mcp", logging.WARNING, __file__, 1, "the client said %s", (EVIL,), None
    )
    assert not DRIVES & set(formatter.format(record))
    record.fields = {"event": "request", "model": EVIL, "names": [EVIL]}
    assert not DRIVES & set(formatter.format(record))

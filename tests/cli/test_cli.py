"""The command line: help with an example, errors in one line, and no slow import before it is needed."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from toolwire.cli.main import COMMANDS, main


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("TOOLWIRE_CONFIG", "XDG_CONFIG_HOME", "PORT", "PROXY_API_KEY", "PROXY_HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"example: toolwire {command}" in capsys.readouterr().out


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"toolwire {version('toolwire')}\n"


def test_without_a_command_the_help_is_shown_and_the_status_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and all(command.name in shown.err for command in COMMANDS)


@pytest.mark.parametrize(
    "arguments",
    [["serve", "--bogus"], ["serve", "--port", "x"], ["nonsense"], ["serve", "--log-level", "loud"]],
)
def test_a_wrong_call_is_one_line_and_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "arguments", "word"),
    [
        ("[server]\nprot = 1\n", ["serve"], "server.port"),
        ("[server]\nprot = 1\n", ["models"], "server.port"),
        ("", ["serve", "--host", "0.0.0.0"], "server.keys"),
        ("", ["serve", "--port", "99999"], "server.port"),
        ("", ["serve", "--config", "gone.toml"], "gone.toml"),
        ('[store]\nurl = "postgresql://h/db"\n', ["serve", "--port", "0"], "postgresql"),
    ],
)
def test_a_wrong_setting_is_one_line_and_status_2(
    text: str, arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("toolwire.toml").write_text(text)
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert (
        shown.out == ""
        and shown.err.startswith("toolwire: ")
        and shown.err.count("\n") == 1
        and word in shown.err
    )


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ('script = "say a\\nsya b"', "script: line 2: unknown word 'sya'"),
        ('script = "parts.txt"', "script parts.txt: line 3: pause: expected a duration"),
        ('writes = "klingon"', "writes: unknown dialect 'klingon'"),
        ('dialects = ["klingon"]', "dialects: unknown dialect 'klingon'"),
    ],
)
def test_a_typo_in_a_script_is_one_line_with_the_model_and_the_place(
    model: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("toolwire.toml").write_text(f'[models.m]\nbackend = "scripted"\n{model}\n')
    Path("parts.txt").write_text("say a\n\npause long\n")
    assert main(["models"]) == 0
    shown = capsys.readouterr()
    rows = [line for line in shown.out.splitlines() if line.startswith("m ")]
    assert len(rows) == 1 and f"unavailable: {words}" in rows[0] and shown.err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["models"],
        ["models", "--json"],
        ["doctor"],
        ["approvals", "audit"],
        ["keys"],
        ["ask", "hi"],
        ["--version"],
        ["--help"],
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_output_ends_the_command_quietly(arguments: list[str], unbuffered: str) -> None:
    Path("toolwire.toml").write_text('[models.demo]\nbackend = "scripted"\n')
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-m", "toolwire", *arguments]
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert done.stderr == "" and (done.returncode == 141 or arguments == ["--help"])


@pytest.mark.parametrize("arguments", [["models"], ["--help"]])
def test_an_output_that_cannot_be_written_is_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "toolwire", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (
        2,
        "toolwire: the output could not be written: the disk is full\n",
    )


@pytest.mark.parametrize(
    "arguments",
    [["--debug", "serve", "--config", "gone.toml"], ["serve", "--config", "gone.toml", "--debug"]],
)
def test_debug_shows_the_traceback(arguments: list[str]) -> None:
    with pytest.raises(Exception, match=r"gone\.toml"):
        main(arguments)


def test_print_config_shows_the_current_settings_without_secrets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("toolwire.toml").write_text('[server]\nkeys = ["sk-secret"]\nport = 1\n')
    monkeypatch.setenv("TOOLWIRE_SERVER__PORT", "2")
    monkeypatch.setenv("TOOLWIRE_TOOLS__DEDUP", "true")
    assert main(["serve", "--print-config", "--host", "0.0.0.0"]) == 0
    text = capsys.readouterr().out
    shown = tomllib.loads(text)
    assert (shown["server"]["host"], shown["server"]["port"], shown["tools"]["dedup"]) == ("0.0.0.0", 2, True)
    assert "sk-secret" not in text


def test_models_are_listed_with_backend_strategy_and_capabilities(capsys: pytest.CaptureFixture[str]) -> None:
    Path("toolwire.toml").write_text(
        '[models."acme/one"]\nbackend = "scripted"\n[models.two]\nbackend = "scripted"\n'
    )
    assert main(["models"]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["MODEL", "BACKEND", "TOOLS", "DIALECT", "STATE", "CAPABILITIES"]
    assert first.split()[:3] == ["acme/one", "scripted", "native"] and second.split()[0] == "two"
    assert main(["models", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in rows] == ["acme/one", "two"] and "tools" in rows[0]["capabilities"]


def test_images_by_url_are_listed_only_for_models_that_take_images(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("toolwire.toml").write_text(
        '[models.seeing]\nbackend = "openai"\nbase_url = "http://127.0.0.1:9/v1"\n'
        '[models.blind]\nbackend = "local"\ngguf = "none.gguf"\n'
    )
    assert main(["models", "--json"]) == 0
    can = {row["id"]: row["capabilities"] for row in json.loads(capsys.readouterr().out)}
    assert {"images", "image_urls"} <= set(can["seeing"]) and not {"images", "image_urls"} & set(can["blind"])


def test_the_command_line_imports_nothing_heavy_before_a_command_runs() -> None:
    heavy = {"uvicorn", "starlette", "aiohttp", "msgspec", "prometheus_client", "sqlite3", "asyncio"}
    code = "import sys, toolwire.cli.main as m; m.build_parser('serve'); "
    code += f"print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["serv"], "toolwire: there is no command 'serv'; did you mean serve? (see toolwire --help)\n"),
        (
            ["lanch", "claude"],
            "toolwire: there is no command 'lanch'; did you mean launch? (see toolwire --help)\n",
        ),
        (["keys", "ad"], "toolwire: there is no action 'ad'; did you mean add? (see toolwire keys --help)\n"),
        (
            ["vault", "serch", "notes", "x"],
            "toolwire: there is no action 'serch'; did you mean search? (see toolwire vault --help)\n",
        ),
    ],
)
def test_a_mistyped_command_or_action_is_answered_with_the_nearest_one(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert (ended.value.code, capsys.readouterr().err) == (2, line)


def test_a_command_that_resembles_none_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["xyzzy"])
    shown = capsys.readouterr().err
    assert "did you mean" not in shown and all(command.name in shown for command in COMMANDS)


def test_a_system_error_is_shown_without_the_name_of_an_exception(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> int:
        raise PermissionError(13, "Permission denied", "/some/file")

    monkeypatch.setattr("toolwire.cli.models.run_models", fails)
    assert main(["models"]) == 2
    assert (
        capsys.readouterr().err == "toolwire: /some/file: Permission denied (--debug shows the traceback)\n"
    )


@pytest.mark.parametrize(
    "arguments", [["ask", "--model", "gone", "hi"], ["conform", "http://127.0.0.1:9/v1"]]
)
def test_a_server_that_is_not_there_is_one_readable_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("toolwire.toml").write_text(
        '[models.gone]\nbackend = "openai"\nbase_url = "http://127.0.0.1:9/v1"\n'
    )
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    assert main(arguments) in (1, 2)
    shown = capsys.readouterr().err
    assert "http://127.0.0.1:9/v1" in shown and shown.count("\n") == 1
    assert "Error" not in shown and "Errno" not in shown and "Connect call" not in shown
    assert "toolwire doctor" in shown or "is the server running?" in shown


def test_mcp_at_a_terminal_explains_itself_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    import pty
    import select
    import signal
    import time

    (tmp_path / "notes").mkdir()
    person, terminal = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "toolwire", "mcp", "--vault", "notes"],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    try:
        shown = b""
        while b"Ctrl-C ends" not in shown:
            assert select.select([person], [], [], 40)[0], shown
            shown += os.read(person, 4096)
        assert b"waits for a client" in shown and f"{tmp_path}/notes".encode() in shown
        began = time.monotonic()
        os.killpg(child.pid, signal.SIGINT)
        assert child.wait(30) in (0, 130) and time.monotonic() - began < 10
        assert child.stdout is not None and child.stdout.read() == b""
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()
        os.close(person)

"""`toolwire launch`: the real clients against the demo model, and the person's own files afterwards.

Keys, signals and exit status are tested with a small program in the place of a client.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doubles.home import DEMO, Home
from matrix import BY_NAME, installed
from toolwire.cli.launch import Gateway, _without_proxy
from toolwire.cli.launchers import BY_ID, LAUNCHERS
from toolwire.cluster import running

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

ELSEWHERE = "http://127.0.0.1:9"
"""Nothing listens here: a client that used the person's own configuration would fail."""
PERSONS = {
    ".claude.json": {"hasCompletedOnboarding": True, "numStartups": 7, "mcpServers": {}},
    ".claude/settings.json": {
        "env": {
            "ANTHROPIC_BASE_URL": ELSEWHERE,
            "ANTHROPIC_AUTH_TOKEN": "persons",
            "ANTHROPIC_MODEL": "opus",
        },
        "model": "opus",
    },
    ".claude/agents/reviewer.json": {"kept": "in a folder, which is linked"},
    ".claude/.credentials.json": {"claudeAiOauth": {"accessToken": "a", "refreshToken": "b", "expiresAt": 1}},
    ".config/opencode/opencode.json": {
        "$schema": "https://opencode.ai/config.json",
        "model": "corp/m",
        "small_model": "corp/m",
        "provider": {
            "corp": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": f"{ELSEWHERE}/v1"},
                "models": {"m": {}},
            }
        },
    },
}
CODEX = f"""\
model = "gpt-5.5"
model_provider = "corp"

[model_providers.corp]
name = "Corp"
base_url = "{ELSEWHERE}/v1"
wire_api = "responses"
"""
RUNS: dict[str, tuple[str, list[str], str]] = {
    "claude": (
        "claude-code",
        ["-p", "{question}", "--allowedTools", "Read", "--output-format", "stream-json", "--verbose"],
        'Call the tool Read with the arguments {"file_path": "a.txt"}',
    ),
    "codex": (
        "codex",
        [
            *("exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            "{question}",
        ],
        'Call the tool exec_command with the arguments {"cmd": "cat a.txt"}',
    ),
    "opencode": (
        "opencode",
        ["run", "--format", "json"],
        'Call the tool bash with the arguments {"command": "cat a.txt", "description": "Shows it"}',
    ),
}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    (home.work / "a.txt").write_text("rain in Paris\n")
    return home


def program(client: str) -> Path:
    there = installed()
    lacking = there.lacking(BY_NAME[RUNS[client][0]])
    if lacking:
        pytest.skip(lacking)
    return {"claude": there.claude_code, "codex": there.codex, "opencode": there.opencode}[client]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def with_persons_files(home: Home) -> dict[str, bytes]:
    for name, value in PERSONS.items():
        path = home.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=1), "utf-8")
    (home.path / ".codex").mkdir()
    (home.path / ".codex/config.toml").write_text(CODEX, "utf-8")
    names = (*PERSONS, ".codex/config.toml")
    return {name: (home.path / name).read_bytes() for name in names}


def with_program(home: Home, command: str, target: Path) -> None:
    folder = home.path / "bin"
    folder.mkdir(exist_ok=True)
    (folder / command).symlink_to(target)
    home.variables["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def launched(home: Home, client: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    child = subprocess.Popen(
        [sys.executable, "-m", "toolwire", "launch", client, *arguments],
        cwd=home.work,
        env=home.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, error = child.communicate(given, timeout=120)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    return subprocess.CompletedProcess(arguments, child.returncode, out, error)


QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_MAX_RETRIES": "0",
    "DISABLE_TELEMETRY": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
}


@pytest.mark.parametrize("client", RUNS)
def test_a_real_client_completes_a_tool_loop_and_leaves_the_persons_files_alone(
    home: Home, client: str
) -> None:
    with_program(home, client, program(client))
    home.variables |= QUIET
    before = with_persons_files(home)
    _, arguments, question = RUNS[client]
    given = "" if "{question}" in arguments else question
    done = launched(
        home, client, "--", *(each.replace("{question}", question) for each in arguments), given=given
    )
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
    assert "answered" in done.stdout and "rain in Paris" in done.stdout, done.stdout[-2000:]
    assert "started a gateway" in done.stderr
    assert {name: (home.path / name).read_bytes() for name in before} == before
    assert home.records() == []


def test_a_gateway_that_runs_is_used_and_serves_on(home: Home) -> None:
    with_program(home, "claude", program("claude"))
    home.variables |= QUIET
    _, arguments, question = RUNS["claude"]
    with home.serving() as (url, child):
        done = launched(home, "claude", "--", *(each.replace("{question}", question) for each in arguments))
        assert done.returncode == 0 and "rain in Paris" in done.stdout
        assert "started a gateway" not in done.stderr
        assert child.poll() is None and len(home.records()) == 1
        shown = home.run("launch", "claude", "--print").stdout
        assert f"ANTHROPIC_BASE_URL={url}\n" in shown and "ANTHROPIC_AUTH_TOKEN=unused" in shown


# --- with a small program in the place of a client ---

SHOW = """\
import json, os, pathlib, sys
folder = os.environ.get("CLAUDE_CONFIG_DIR")
files = {os.path.relpath(os.path.join(at, name), folder): open(os.path.join(at, name)).read()
         for at, _, names in os.walk(folder, followlinks=True) for name in names}
settings = json.loads(pathlib.Path(sys.argv[sys.argv.index("--settings") + 1]).read_text())
print(json.dumps({"args": sys.argv[1:], "env": dict(os.environ), "files": files, "settings": settings}))
"""


def with_script(home: Home, text: str, command: str = "claude") -> None:
    folder = home.path / "bin"
    folder.mkdir(exist_ok=True)
    script = folder / command
    script.write_text(f"#!{sys.executable}\n{text}", "utf-8")
    script.chmod(0o755)
    home.variables["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def shown_by(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_claude_gets_the_persons_settings_without_the_login_and_a_copy_of_the_state(home: Home) -> None:
    with_script(home, SHOW)
    before = with_persons_files(home)
    home.variables |= {"ANTHROPIC_API_KEY": "persons-key", "CLAUDE_CODE_USE_BEDROCK": "1"}
    seen = shown_by(launched(home, "claude", "--", "-p", "hi", "--", "x"))
    assert seen["args"][-4:] == ["-p", "hi", "--", "x"] and seen["args"][2:4] == ["--model", "demo"]
    assert not {"ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK"} & set(seen["env"])
    assert seen["settings"]["env"]["ANTHROPIC_BASE_URL"] == seen["env"]["ANTHROPIC_BASE_URL"]
    assert seen["files"].keys() == {".claude.json", "settings.json", "agents/reviewer.json"}
    assert seen["files"][".claude.json"].encode() == before[".claude.json"]
    assert not Path(seen["env"]["CLAUDE_CONFIG_DIR"]).exists()


def test_arguments_before_and_after_options_reach_the_client(home: Home) -> None:
    with_script(home, SHOW)
    seen = shown_by(launched(home, "claude", "--model", "demo", "--", "--model", "mine"))
    assert seen["args"][2:] == ["--model", "demo", "--model", "mine"]


def test_a_mistyped_model_starts_no_client_and_one_of_a_server_may_be_unlisted(home: Home) -> None:
    with_script(home, SHOW)
    mistyped = launched(home, "claude", "--model", "demi")
    assert mistyped.returncode == 2 and not mistyped.stdout
    assert "no model demi; did you mean demo?" in mistyped.stderr
    assert "no model" not in launched(home, "claude", "--model", "demo").stderr
    unlisted = launched(home, "claude", "--model", "ollama/qwen3:4b")
    assert "no model ollama/qwen3:4b" in unlisted.stderr and "ollama/qwen3:4b" in unlisted.stdout


def test_with_aliases_claude_code_asks_for_its_own_models(home: Home) -> None:
    with_script(home, SHOW)
    home.settings(f'{DEMO}[aliases]\n"claude-*" = "demo"\n')
    seen = shown_by(launched(home, "claude"))
    assert "--model" not in seen["args"] and "ANTHROPIC_DEFAULT_OPUS_MODEL" not in seen["env"]


@pytest.mark.parametrize("status", [0, 3, 77])
def test_the_exit_status_of_the_client_is_returned(home: Home, status: int) -> None:
    with_script(home, f"raise SystemExit({status})")
    assert launched(home, "claude").returncode == status


WAIT = """\
import os, signal, sys, time
def got(number, frame):
    os.write(1, b"got %d\\n" % number)
    raise SystemExit(40 + number)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, got)
os.write(1, b"ready\\n")
time.sleep(100)
"""


def waiting(home: Home) -> subprocess.Popen[str]:
    """Launches a client that waits for a signal. Returns the process of launch, once the client waits."""
    child = subprocess.Popen(
        [sys.executable, "-m", "toolwire", "launch", "claude"],
        cwd=home.work,
        env=home.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline().startswith("ready")
    return child


def gone(look: Callable[[], bool], within_s: float = 30) -> bool:
    deadline = time.monotonic() + within_s
    while not look():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_launch_reaches_the_client(home: Home, number: signal.Signals) -> None:
    with_script(home, WAIT)
    child = waiting(home)
    child.send_signal(number)
    assert child.communicate(timeout=30)[0] == f"got {int(number)}\n"
    assert child.returncode == 40 + number and home.records() == []


def test_ctrl_c_goes_to_the_client_and_the_gateway_ends_with_it(home: Home) -> None:
    with_script(home, WAIT)
    child = waiting(home)
    (record,) = home.records()
    gateway = json.loads(record.read_text())
    assert gateway["temporary"] is True
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    assert child.communicate(timeout=30)[0] == f"got {int(signal.SIGINT)}\n"
    assert child.returncode == 40 + signal.SIGINT
    assert not running._is_alive(gateway["pid"]) and home.records() == []


def test_a_client_that_a_signal_ends_has_the_status_of_a_shell(home: Home) -> None:
    with_script(home, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert launched(home, "claude").returncode == 128 + signal.SIGKILL


def test_the_gateway_ends_if_launch_is_killed(home: Home) -> None:
    with_script(home, WAIT)
    child = waiting(home)
    gateway = json.loads(home.records()[0].read_text())
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate(timeout=30)
    assert gone(lambda: home.records() == [])
    assert gone(lambda: not running._is_alive(gateway["pid"]))


def test_a_second_launch_does_not_use_a_gateway_that_ends_with_another_client(home: Home) -> None:
    with_script(home, WAIT)
    first = waiting(home)
    try:
        second = waiting(home)
        assert len(home.records()) == 2
        second.terminate()
        second.communicate(timeout=30)
        assert len(home.records()) == 1
    finally:
        first.terminate()
        first.communicate(timeout=30)


def test_the_log_of_a_started_gateway_contains_no_link(home: Home) -> None:
    with_script(home, "")
    assert launched(home, "claude").returncode == 0
    log = home.data / "launch.log"
    assert log.stat().st_mode & 0o777 == 0o600 and "token" not in log.read_text()


# --- keys, and what is refused ---


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_a_client_that_is_not_installed_is_one_line_with_the_command(home: Home) -> None:
    home.variables["PATH"] = "/nowhere"
    for one in LAUNCHERS:
        assert one.install in refused(home.run("launch", one.id))
    assert "claude" in refused(home.run("launch", "clade"))
    listed = home.run("launch").stdout
    assert all(one.id in listed and one.install in listed for one in LAUNCHERS)


def test_the_key_of_the_settings_is_used_and_never_shown(home: Home) -> None:
    with_script(home, SHOW)
    home.settings(f'[server]\nkeys = ["a-secret-key"]\n{DEMO}')
    with home.serving():
        assert shown_by(launched(home, "claude"))["env"]["ANTHROPIC_AUTH_TOKEN"] == "a-secret-key"
        for one in LAUNCHERS:
            shown = home.run("launch", one.id, "--print")
            assert shown.returncode == 0 and "a-secret-key" not in shown.stdout + shown.stderr
            assert "********" in shown.stdout


def test_a_gateway_with_unknown_keys_needs_one_by_option_or_environment(home: Home) -> None:
    with_script(home, SHOW)
    home.settings(f'[server]\nkeys = ["a-secret-key"]\n{DEMO}')
    with home.serving() as (url, _):
        home.settings(DEMO)
        assert "needs a key: use --key or TOOLWIRE_API_KEY" in refused(home.run("launch", "claude"))
        home.variables["TOOLWIRE_API_KEY"] = "a-secret-key"
        assert shown_by(launched(home, "claude"))["env"]["ANTHROPIC_AUTH_TOKEN"] == "a-secret-key"
        home.variables |= {"TOOLWIRE_API_KEY": "wrong", "K": "a-secret-key"}
        assert "refuses the key" in refused(home.run("launch", "claude"))
        seen = shown_by(launched(home, "claude", "--key", "env:K", "--url", f"{url}/v1"))
        assert seen["env"]["ANTHROPIC_AUTH_TOKEN"] == "a-secret-key"


def test_the_keys_of_the_settings_are_not_sent_to_another_address(home: Home) -> None:
    with_script(home, SHOW)
    home.settings(f'[server]\nkeys = ["a-secret-key"]\n{DEMO}')
    with home.serving() as (url, _):
        assert "needs a key" in refused(home.run("launch", "claude", "--url", url))


@pytest.mark.parametrize("url", ["127.0.0.1:8788", "ftp://x", "http://"])
def test_an_address_that_is_none_is_one_line(home: Home, url: str) -> None:
    assert "--url" in refused(home.run("launch", "claude", "--print", "--url", url))


def test_an_address_where_nothing_answers_is_one_line(home: Home) -> None:
    line = refused(home.run("launch", "claude", "--print", "--url", ELSEWHERE))
    assert f"{ELSEWHERE} cannot be reached: Connection refused" in line


def test_a_gateway_that_cannot_start_is_one_line_with_its_reason(home: Home) -> None:
    with_script(home, SHOW)
    home.settings(f'{DEMO}[store]\nurl = "sqlite:////dev/null/store.db"\n')
    assert "the gateway could not start: " in refused(home.run("launch", "claude"))


def test_print_starts_nothing_and_writes_nothing(home: Home) -> None:
    with_script(home, SHOW)
    before = contents(home.path)
    for one in LAUNCHERS:
        done = home.run("launch", one.id, "--model", "m", "--print", "--", "x y")
        assert done.returncode == 0 and "free port" in done.stderr and "'x y'" in done.stdout
        assert "THROWAWAY" in done.stdout and "PORT" in done.stdout
    assert contents(home.path) == before


# --- choosing a model, and proxies ---


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ({"local": "local", "ollama/qwen3:4b": "openai", "demo": "scripted"}, "ollama/qwen3:4b"),
        ({"demo": "scripted", "local": "local"}, "local"),
        ({"demo": "scripted"}, "demo"),
        ({"a": "codex", "b": "openai"}, "a"),
    ],
)
def test_the_default_model_is_the_first_that_is_not_tiny(kinds: dict[str, str], expected: str) -> None:
    assert Gateway("r", "k", list(kinds), kinds=kinds).default_model(BY_ID["codex"]) == expected
    assert Gateway("r", "k", list(kinds)).default_model(BY_ID["codex"]) == expected  # of another machine


def test_requests_to_this_machine_avoid_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert _without_proxy("http://127.0.0.1:1") == {}
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "corp.example")
    assert _without_proxy("http://127.0.0.1:1")["NO_PROXY"] == "corp.example,127.0.0.1,localhost,::1"
    assert _without_proxy("http://far.example:1") == {}

"""What the documents show is true: their commands and programs run, their settings load, their links lead
somewhere, their tables match the code.

A fenced block that follows a command or program is what it prints. `text` is the whole output, `json` and
`sse` may leave members out, `http` names some of the headers. One gateway serves them all, with the demo
model and every scripted model that a document configures.

A sample that can not be run here says why, in a comment before its fence: `<!-- not run: REASON -->`. There
is no other way out: every language that the pages use is known to one of these tests.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, replace
from functools import cache
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest

from matrix import installed
from toolwire.access.gate import EXPOSED
from toolwire.backends import registry
from toolwire.backends.codex import CodexBackend
from toolwire.backends.codex.options import SINCE
from toolwire.backends.scripted.script import STEPS
from toolwire.core.errors import KINDS
from toolwire.settings.load import CODEX_FLAGS, SEED_FLAGS, load
from toolwire.settings.types import SECTIONS, ModelSettings, Settings, print_config
from toolwire.tools.contract import Scope
from toolwire.wire.responses.encode import SHAPES

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
OTHER_FILES = [ROOT / ".env.example", ROOT / "toolwire.example.toml", ROOT / "docs" / "supported.py"]
CLIENTS = ROOT / "tests" / "clients"
ADDRESS = "127.0.0.1:8788"
SHOWS = ("text", "json", "sse", "http")
IN_FORCE = tuple(SECTIONS)


# --- reading the pages ---


@dataclass(frozen=True)
class Block:
    """A fenced block; `shown` is the block that follows it, when that one shows output."""

    page: str
    line: int
    language: str
    text: str
    excuse: str = ""
    """Why it is not run."""
    end: int = 0
    shown: Block | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def fenced(page: Path) -> list[Block]:
    out: list[Block] = []
    fence, start, language, lines, excuse, before = "", 0, "", list[str](), "", ""
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        mark = re.match(r"(`{3,})(.*)", line)
        if fence and line == fence:
            out.append(
                Block(
                    page.relative_to(ROOT).as_posix(),
                    start,
                    language,
                    "\n".join(lines) + "\n",
                    excuse,
                    number,
                )
            )
            fence = ""
        elif fence:
            lines.append(line)
        elif mark:
            fence, start, language, lines = mark[1], number, mark[2].strip(), []
            excuse = told[1] if (told := re.fullmatch(r"<!-- not run: (.+) -->", before)) else ""
        before = line
    assert not fence, f"{page}: a fence is not closed"
    return [replace(one, shown=following) for one, following in zip_longest(out, out[1:]) if one is not None]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"(?ms)^(`{3,}).*?^\1$", "", page.read_text("utf-8"))


BLOCKS = [block for page in PAGES for block in fenced(page)]


def of_language(*languages: str) -> list[Block]:
    """Those that are run or checked."""
    return [block for block in BLOCKS if block.language in languages and not block.excuse]


SETTINGS = [block for block in of_language("toml") if not re.match(r"# ~/", block.text)]
COMMANDS = [block for block in of_language("sh", "bash") if block.text.startswith("curl ")]
SCRIPTS = [block for block in of_language("sh", "bash") if not block.text.startswith("curl ")]
COMMANDS += [
    Block(page.relative_to(ROOT).as_posix(), 0, "sh", command)
    for page in PAGES
    for command in re.findall(r"`(curl [^`]+)`", prose(page))
]


def missing(what: str) -> None:
    """A component that is not on this machine: the test skips and says so, where it must not be missing it
    fails.
    """
    pytest.skip(f"{what} is missing")


# --- running what they show ---


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def environment(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONUTF8": "1", "NO_COLOR": "1"}


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    """HOST:PORT of a gateway with the models that the documents talk of."""
    models: dict[str, dict[str, Any]] = {"demo": {"backend": "scripted"}}
    for block in SETTINGS:
        for id, table in tomllib.loads(block.text).get("models", {}).items():
            if table["backend"] == "scripted":
                assert models.setdefault(id, table) == table, f"{block}: two models are called {id}"
    process = subprocess.Popen(
        [sys.executable, "-m", "toolwire", "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        env={**environment(home), "TOOLWIRE_MODELS": json.dumps(models)},
        cwd=home,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert select.select([process.stdout], [], [], 30)[0], "the gateway did not start"
        line = process.stdout.readline()
        found = re.fullmatch(r"listening on http://(127\.0\.0\.1:\d+)/v1\n", line)
        assert found, line
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        process.stdout.close()


def run(command: list[str], home: Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        env=environment(home),
        cwd=cwd or home,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def contains(whole: Any, part: Any, at: str = "$") -> None:
    """Everything that is shown is there. Ids are compared by their prefix."""
    if isinstance(part, dict):
        assert isinstance(whole, dict), at
        for key, value in part.items():
            assert key in whole, f"{at}.{key}"
            contains(whole[key], value, f"{at}.{key}")
    elif isinstance(part, list):
        assert isinstance(whole, list) and len(whole) == len(part), at
        for number, (one, other) in enumerate(zip(whole, part, strict=True)):
            contains(one, other, f"{at}[{number}]")
    elif isinstance(part, str) and (prefix := re.match(r"(call_|chatcmpl-|resp_|msg_|fc_)\w+\Z", part)):
        assert isinstance(whole, str) and whole.startswith(prefix[1]) and len(whole) == len(part), (
            f"{at}: {whole!r} is not such an id as {part!r}"
        )
    else:
        assert whole == part, at


def compare(output: str, shown: Block | None) -> None:
    if shown is None or shown.language not in SHOWS:
        return
    if shown.language == "text":
        assert output == shown.text
    elif shown.language == "json":
        contains(json.loads(output), json.loads(shown.text))
    elif shown.language == "http":
        head = {line.lower() for line in output.partition("\n\n")[0].splitlines()}
        assert {line.lower() for line in shown.text.splitlines()} <= head
    else:
        sent, told = [line for line in output.splitlines() if line], shown.text.splitlines()
        assert len(sent) == len(told)
        for one, other in zip(sent, told, strict=True):
            if other.startswith("data: {"):
                contains(json.loads(one.removeprefix("data: ")), json.loads(other.removeprefix("data: ")))
            else:
                assert one == other


APART = {
    "agents": "python",
    "haystack": "python",
    "langchain_openai": "python",
    "pydantic_ai": "python",
    "semantic_kernel": "semantic-kernel",
}
"""The modules of Python clients that have an environment apart, and which."""


def interpreter(block: Block) -> str:
    found = re.search(rf"(?m)^(?:from|import) ({'|'.join(APART)})\b", block.text)
    if found is None:
        return sys.executable
    python = installed().pythons[APART[found[1]]]
    if not python.exists():
        missing(f"The environment of {found[1]}")
    return str(python)


@pytest.mark.parametrize("block", of_language("python"), ids=str)
def test_a_python_program_runs_and_prints_what_is_shown(block: Block, address: str, home: Path) -> None:
    compare(run([interpreter(block), "-c", block.text.replace(ADDRESS, address)], home), block.shown)


@pytest.mark.parametrize("block", of_language("js"), ids=str)
def test_a_javascript_program_runs_and_prints_what_is_shown(block: Block, address: str, home: Path) -> None:
    node = shutil.which("node")
    if node is None or not (CLIENTS / "node_modules").is_dir():
        missing("Node, or tests/clients/node_modules,")
    assert node is not None
    compare(
        run([node, "--input-type=module", "-e", block.text.replace(ADDRESS, address)], home, CLIENTS),
        block.shown,
    )


@pytest.mark.parametrize("block", COMMANDS, ids=str)
def test_a_curl_command_gets_the_answer_that_is_shown(block: Block, address: str, home: Path) -> None:
    curl = shutil.which("curl")
    if curl is None:
        missing("curl")
    assert ADDRESS in block.text
    compare(run(shlex.split(block.text.replace(ADDRESS, address)), home), block.shown)


# --- what is typed into a shell ---

NOTES = {
    "Projects/Alpha.md": "# Alpha\n\nThe alpha plan: a greenhouse.\n",
    "Projects/Beta.md": "# Beta\n\nAfter alpha.\n",
    "Projects/Gamma.md": "# Gamma\n\nNot before alpha.\n",
    "Bread.md": "# Bread\n\nNothing of alpha in it.\n",
    "Talk.md": "What is a park?\n",
}
TOOLWIRE = """#!{python}
# The command as a person has it; one that serves is ended when it listens.
import os, signal, subprocess, sys

words = sys.argv[1:]
if words[:1] != ["serve"] and "--http" not in words:
    os.execv(sys.executable, [sys.executable, "-m", "toolwire", *words])
command = [sys.executable, "-m", "toolwire", *words, "--port", "0"]
run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
heard = next((line for line in run.stdout if "listening" in line), "")
run.send_signal(signal.SIGTERM)
run.stdout.read()
sys.exit(run.wait(30) if heard else "it never listened")
"""


async def asked_before(home: Path, environ: dict[str, str]) -> None:
    """Two questions and a grant, under the ids that the documents name."""
    from toolwire.store.store import Store
    from toolwire.tools.approvals import Approvals
    from toolwire.tools.contract import Approval, Decision, Preview, Touched

    vault = str(home / "notes")
    store = Store(load(None, environ, {}).store.url)
    now = time.time()
    shown = Preview(
        tuple(Touched(path, path) for path in ("Projects/Alpha.md", "Projects/Beta.md", "Projects/Gamma.md")),
        pick=True,
    )
    made = []
    for id in ("appr_61f8", "appr_9d02", "appr_77aa"):
        one = Approval(
            id + "0" * 20,
            now,
            now + 600,
            "",
            "session",
            "chat",
            "demo",
            "vault_search",
            "share",
            {"query": "alpha"},
            shown,
            "",
            source=f"vault:{vault}",
        )
        made.append(one)
    approvals = Approvals(store, ids=lambda prefix: prefix + "0c2e" + "0" * 20)
    made = [replace(one, token=approvals.proofs.token(one)) for one in made]
    await approvals.records.add(made)
    await approvals.decide(made[2], Decision(True, picked=("Projects/Beta.md",), remember="tool"), by="shell")
    await store.close()


@pytest.fixture(scope="module")
def lived_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with notes, a checkout's commands, and questions that wait."""
    home = tmp_path_factory.mktemp("lived-in")
    for path, text in NOTES.items():
        (home / "notes" / path).parent.mkdir(parents=True, exist_ok=True)
        (home / "notes" / path).write_text(text, "utf-8")
    for folder in (home / "bin", home / "checkout" / ".venv" / "bin"):
        folder.mkdir(parents=True)
        (folder / "toolwire").write_text(TOOLWIRE.format(python=sys.executable), "utf-8")
        (folder / "toolwire").chmod(0o755)
    return home


@pytest.mark.parametrize("block", SCRIPTS, ids=str)
def test_what_is_typed_into_a_shell_works(
    block: Block, address: str, lived_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bash = shutil.which("bash")
    if bash is None:
        missing("bash")
    home = tmp_path / "home"
    shutil.copytree(lived_in, home)
    environ = {**environment(home), "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    if "appr_" in block.text or "grant_" in block.text:
        environ["TOOLWIRE_APPROVALS__COMMAND_LINE"] = "open"  # no terminal to enter the approval code
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.chdir(tmp_path)
        asyncio.run(asked_before(home, environ))
    script = block.text.replace(ADDRESS, address)
    done = subprocess.run(
        [str(bash), "-e", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env=environ,
        cwd=home / "checkout",
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    at_once = block.shown is not None and block.shown.line == block.end + 2
    if at_once and block.page != "docs/codex.md":  # that one has a test of its own below
        compare(done.stdout, block.shown)


def test_the_documents_show_programs_commands_and_settings() -> None:
    assert (
        len(of_language("python")) >= 5
        and len(of_language("js")) >= 3
        and len(COMMANDS) >= 5
        and len(SETTINGS) >= 4
        and len(SCRIPTS) >= 10
    )
    assert all(block.shown is not None and block.shown.language in SHOWS for block in COMMANDS if block.line)


def test_every_sample_is_run_or_says_why_not() -> None:
    assert {block.language for block in BLOCKS} <= {"sh", "bash", "python", "js", "toml", "", *SHOWS}
    for block in BLOCKS:
        assert not block.excuse or (len(block.excuse.split()) >= 2 and block.language), (
            f"{block}: why is it not run?"
        )
        looks_like_one = re.match(
            r"(?:\$ |toolwire |curl |import |from \w+ import |\[\w+\]\n|\{\n)", block.text
        )
        assert block.language or not looks_like_one, f"{block}: a sample without a language is not run"
    excused = [block for block in BLOCKS if block.excuse]
    written = sum(page.read_text("utf-8").count("<!-- not run: ") for page in PAGES)
    assert len(excused) == written, "an excuse stands right before its fence"
    assert len(excused) < len(BLOCKS) / 8


def test_json_that_no_command_prints_is_json() -> None:
    printed = {str(block.shown) for block in BLOCKS if block.language in ("sh", "bash", "python", "js")}
    others = [block for block in of_language("json") if str(block) not in printed]
    assert others
    for block in others:
        json.loads(block.text)


def test_every_route_that_the_wire_page_names_answers(address: str) -> None:
    routes = re.findall(r"`GET (/[\w/]+)`", (ROOT / "docs" / "wire.md").read_text("utf-8"))
    assert {"/v1/models", "/healthz", "/livez", "/readyz", "/metrics"} <= set(routes)
    for route in routes:
        with urllib.request.urlopen(f"http://{address}{route}", timeout=10) as answer:
            assert answer.status == 200, route


# --- settings ---


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without any settings file."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(text: str, folder: Path, environ: dict[str, str] | None = None) -> Settings:
    file = folder / "given.toml"
    file.write_text(text, "utf-8")
    settings = load(str(file), environ or {}, {})
    for model in settings.models:
        registry.build(model.id, model.backend, model.options)
    return settings


@pytest.mark.parametrize("block", SETTINGS, ids=str)
def test_settings_that_are_shown_load(block: Block, nowhere: Path) -> None:
    assert loaded(block.text, nowhere).models


def test_the_settings_of_other_programs_are_toml_and_lead_here() -> None:
    others = [block for block in of_language("toml") if block not in SETTINGS]
    assert others
    for block in others:
        told = tomllib.loads(block.text)
        if servers := told.get("mcp_servers"):
            assert all(
                (server["command"], server["args"][0]) == ("toolwire", "mcp") for server in servers.values()
            )
            continue
        provider = told["model_providers"][told["model_provider"]]
        assert (provider["base_url"], provider["wire_api"]) == (f"http://{ADDRESS}/v1", "responses")


def test_the_example_file_holds_the_defaults(nowhere: Path) -> None:
    text = (ROOT / "toolwire.example.toml").read_text("utf-8")
    settings = loaded(text, nowhere)
    assert (*(getattr(settings, name) for name in SECTIONS),) == (
        *(section() for section in SECTIONS.values()),
    )
    assert set(tomllib.loads(text)) == {*IN_FORCE, "models"}
    assert [model.id for model in settings.models] == ["demo"]
    for name, told in tomllib.loads(text).items():
        if name in SECTIONS:
            assert {field.name for field in fields(SECTIONS[name])} - set(told) <= {"workers", "redis"}, (
                "a key is not shown"
            )


def test_the_models_of_the_example_file_can_be_switched_on(nowhere: Path) -> None:
    text = re.sub(
        r"(?m)^# (\[(?:models|notices)\b|\w+ = )", r"\1", (ROOT / "toolwire.example.toml").read_text("utf-8")
    )
    assert len(loaded(text, nowhere, {"OPENAI_API_KEY": "k"}).models) >= 4


def test_every_name_in_the_example_environment_is_known(nowhere: Path) -> None:
    text = (ROOT / ".env.example").read_text("utf-8")
    assignments = dict(re.findall(r"(?m)^#?([A-Z][A-Z0-9_]*)=(.*)$", text))
    environ = {name: shlex.split(value)[0] for name, value in assignments.items()}
    assert environ.pop("TOOLWIRE_CONFIG")
    assert all("__" in name or name in CODEX_FLAGS or f"env:{name}" in text for name in environ)
    models = {
        model.id: model for model in load(None, environ, {}).models
    }  # an unknown name would be an error
    assert set(models) == {"qwen", "codex"}
    assert {models["codex"].options[option] for option in CODEX_FLAGS.values()} == {
        environ[name] for name in CODEX_FLAGS
    }


def test_the_example_environment_as_it_stands_changes_nothing(nowhere: Path) -> None:
    text = (ROOT / ".env.example").read_text("utf-8")
    assert load(None, dict(re.findall(r"(?m)^([A-Z][A-Z0-9_]*)=(.*)$", text)), {}) == load(None, {}, {})


# --- the tables of keys ---


def as_toml(value: Any) -> str:
    if value is None:
        return "–"
    return (
        print_config(Settings(models=(ModelSettings("m", "x", {"value": value}),)))
        .strip()
        .rpartition("\nvalue = ")[2]
    )


def defaults(cls: type[Any]) -> dict[str, str]:
    def default(field: Field[Any]) -> Any:
        if field.default_factory is not MISSING:
            return field.default_factory()
        return None if field.default is MISSING else field.default

    return {field.name: as_toml(default(field)) for field in fields(cls)}


def rows_under(heading: str) -> dict[str, str]:
    """Key and default of each row of the table under a heading of the configuration page."""
    page = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    part = re.search(rf"(?ms)^#+ {re.escape(heading)}\n(.*?)(?=^##)", page + "\n##")
    assert part, heading
    return dict(re.findall(r"(?m)^\| `([\w.]+)` \| `(.*?)` \|", part[1]))


@pytest.mark.parametrize("section", IN_FORCE)
def test_the_configuration_page_names_every_key_of_a_section_with_its_default(section: str) -> None:
    assert rows_under(f"[{section}]") == defaults(SECTIONS[section])


@pytest.mark.parametrize("backend", registry.BACKENDS)
def test_the_configuration_page_names_every_option_of_a_backend_with_its_default(backend: str) -> None:
    module, options, _ = registry.BACKENDS[backend]
    kind = getattr(importlib.import_module(module), options)
    assert set(rows_under(f'backend = "{backend}"')) == set(get_type_hints(kind))
    assert rows_under(f'backend = "{backend}"') == defaults(kind)


def test_the_configuration_page_names_the_flags_of_other_proxies() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    for name, key in [*((name, ".".join(path)) for name, path, _ in SEED_FLAGS), *CODEX_FLAGS.items()]:
        row = next(line for line in page.splitlines() if line.startswith("| `") and f"`{name}`" in line)
        assert f"`{key}`" in row


# --- the page about Codex ---

CODEX = ROOT / "docs" / "codex.md"


def rows(heading: str) -> list[list[str]]:
    """The cells of the rows under a heading of the page, without the table's head."""
    part = re.search(rf"(?ms)^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", CODEX.read_text("utf-8"))
    assert part, heading
    lines = [line for line in part[1].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_the_codex_page_tells_the_versions_of_the_code_and_of_the_tests() -> None:
    told = [(re.findall(r"0\.(\d+)", codex), tools.split(",")[0]) for codex, tools, _ in rows("Versions")]
    bare, native, marked = (SINCE[name].minor for name in ("model_catalog", "native_tools", "response_mark"))
    assert [([*map(int, minors)], tools) for minors, tools in told] == [
        ([bare], "emulated"),
        ([bare, native - 1], "emulated"),
        ([native, marked - 1], "native"),
        ([marked], "native"),
    ]
    packages = [
        json.loads((ROOT / "tests" / "codex" / which / "package.json").read_text("utf-8"))
        for which in ("old", "new")
    ]
    old, new = (package["dependencies"]["@openai/codex"] for package in packages)
    assert f"real binaries of {old} and {new} " in CODEX.read_text("utf-8")


def test_the_names_on_the_codex_page_stand_for_their_effort() -> None:
    backend = CodexBackend("codex")
    own, *aliases = (re.findall(r"`([^`]+)`", names) for names, _ in rows("Names and efforts"))
    assert own == ["codex"]
    assert aliases[0] == list(backend.aliases) and [backend.alias(name) for name in aliases[0]] == [
        "low",
        "medium",
        "high",
        "xhigh",
    ]
    assert {backend.alias(name) for name in aliases[1]} == {""}
    assert [backend.alias(name) for name in aliases[2]] == ["low", "low", "xhigh"]


def test_the_errors_on_the_codex_page_are_those_of_the_code() -> None:
    known = {(str(kind.status), kind.code) for kind in KINDS.values()}
    told = [(status, code.strip("`")) for _, status, code, _ in rows("When something is wrong")]
    assert len(told) >= 5 and set(told) <= known


def test_the_doctor_says_what_the_codex_page_shows(home: Path, tmp_path: Path) -> None:
    folder = ROOT / "tests" / "codex" / "new" / "node_modules" / ".bin"
    if not (folder / "codex").exists():
        missing("Codex, in tests/codex/new/node_modules,")
    block = next(block for block in fenced(CODEX) if "toolwire doctor" in block.text)
    (tmp_path / "toolwire.toml").write_text('[models.codex]\nbackend = "codex"\n', "utf-8")
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "auth.json").write_text('{"OPENAI_API_KEY": "sk-none"}', "utf-8")
    path = os.pathsep.join((str(folder), os.environ["PATH"]))
    command = ["env", f"HOME={tmp_path}", f"PATH={path}", sys.executable, "-m", "toolwire", "doctor"]
    told = run(command, home, tmp_path)
    assert block.shown is not None
    for line in block.shown.text.splitlines():
        assert re.sub(r"\s+", " ", line) in re.sub(r"[^\S\n]+", " ", told), (
            "what the page shows is among what the doctor says"
        )


# --- the pages about the wire and about parked turns ---


def test_the_wire_page_names_every_event_of_every_kind_of_item() -> None:
    page = (ROOT / "docs" / "wire.md").read_text("utf-8")
    row = re.compile(
        r"(?m)^\| .+? \| (?:–|`(response\.\w+)\.added`, `\.done`) \| `(response\.\w+)\.delta`, `\.done` \| "
        r"`(\w+_)` \|$"
    )
    told = set(row.findall(page))
    assert told == {
        (shape.part.events if shape.part else "", shape.events, shape.id_prefix) for shape in SHAPES.values()
    }


def test_the_wire_page_names_every_header_that_browsers_may_read() -> None:
    page = (ROOT / "docs" / "wire.md").read_text("utf-8")
    for name in EXPOSED.decode().split(", "):
        assert f"`{name}`" in page or "-ratelimit-" in name, name


def test_the_parked_page_shows_the_defaults() -> None:
    block = next(block for block in fenced(ROOT / "docs" / "parked.md") if block.text.startswith("[parked]"))
    assert {name: as_toml(value) for name, value in tomllib.loads(block.text)["parked"].items()} == defaults(
        SECTIONS["parked"]
    )


def test_the_approvals_page_names_every_scope() -> None:
    page = (ROOT / "docs" / "approvals.md").read_text("utf-8")
    assert set(re.findall(r"(?m)^\| `(session|folder|tool)` \|", page)) == set(get_args(Scope)) - {"once"}


# --- links, names, versions ---


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        if anchor:
            assert anchor in {slug(heading) for heading in re.findall(r"(?m)^#+ (.*)$", prose(file))}, target


@pytest.mark.parametrize("page", [*PAGES, *OTHER_FILES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_document_names_a_development_machine_or_a_registry(page: Path) -> None:
    text = page.read_text("utf-8")
    found = re.findall(
        r"(?<!bench)/work/|/root/|/tmp/|/home/\w|pypi\.org|registry\.npmjs|(?<![\w&])#\d+\b", text
    )
    assert found == []


def test_the_version_is_the_same_everywhere() -> None:
    assert f"## [{version('toolwire')}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"\nVersion {version('toolwire')}. " in (ROOT / "README.md").read_text("utf-8")


def test_every_make_target_that_is_named_is_there() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8")))
    for page in PAGES:
        named = re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text("utf-8"), re.MULTILINE)
        assert set(named) <= targets, page
    assert {"serve", "test"} <= set(re.findall(r"make ([a-z]+)", (ROOT / "README.md").read_text("utf-8")))


def test_every_source_file_that_is_named_is_there() -> None:
    for page in PAGES:
        text = page.read_text("utf-8")
        for path in re.findall(r"`((?:src|tests|docs)/[\w./]+)`", text) + re.findall(
            r"`([\w/]+\.py)\b", text
        ):
            assert (ROOT / path).exists() or (ROOT / "src" / "toolwire" / path).exists(), f"{page}: {path}"


def tree(block: Block) -> Iterator[str]:
    """The paths of a tree: a folder's line ends in a slash, and what is in the folder is indented by two
    spaces.
    """
    folders: list[str] = []
    for line in block.text.splitlines():
        found = re.fullmatch(r"((?:  )*)([\w/.]+)(?: +(\S.*))?", line)
        assert found, f"{block}: {line!r} is not an entry of a tree"
        indent, name, words = found.groups()
        folders[len(indent) // 2 :] = [name]
        assert words or name.endswith("/"), f"{block}: what is {name}?"
        yield "".join(folders)


def test_the_architecture_page_names_every_package_and_module() -> None:
    source = ROOT / "src" / "toolwire"
    overview, *packages = [
        block for block in BLOCKS if block.page == "docs/architecture.md" and not block.language
    ]
    top = {
        path.removeprefix("src/toolwire/") for path in tree(overview) if path.startswith("src/toolwire/")
    } - {""}
    assert top == {path.parent.name + "/" for path in source.glob("*/__init__.py")} | {
        path.name for path in source.glob("*.py")
    }
    named = [path for block in packages for path in tree(block) if path.endswith(".py")]
    modules = {
        path.relative_to(source).as_posix() for path in source.glob("*/**/*.py") if path.name != "__init__.py"
    }
    assert len(named) == len(set(named))
    assert sorted(set(named) - modules) == [], "these modules are not there any more"
    assert sorted(modules - set(named)) == [], "these modules are missing on the page"


def test_the_scripted_page_names_every_step() -> None:
    page = (ROOT / "docs" / "scripted.md").read_text("utf-8")
    assert {
        word for row in re.findall(r"(?m)^\| (`.*?`) \|", page) for word in re.findall(r"`(\w+)", row)
    } == set(STEPS)


def test_the_dependencies_page_names_every_dependency_with_its_range() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    told = dict(re.findall(r"(?m)^\| `([\w-]+)` \| `(.*?)` \|", page))
    assert told == dict(re.findall(r"(?m)^([\w-]+)([^;\s]*)", "\n".join(project["dependencies"])))
    extras = {
        re.split(r"[\[<>=]", entry)[0]
        for entries in project["optional-dependencies"].values()
        for entry in entries
    }
    assert set(re.findall(r"\*\*([\w-]+)\*\*", page)) == extras


# --- the generated page ---


@cache
def supported() -> ModuleType:
    spec = importlib.util.spec_from_file_location("supported", ROOT / "docs" / "supported.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_supported_page_is_what_the_code_says() -> None:
    assert supported().main(["--check"]) == 0


def test_a_page_that_differs_is_one_line_and_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supported(), "PAGE", tmp_path / "supported.md")
    assert supported().main(["--check"]) == 1
    assert supported().main([]) == 0
    assert supported().main(["--check"]) == 0
    (tmp_path / "supported.md").write_text("old", "utf-8")
    assert supported().main(["--check"]) == 1
    assert capsys.readouterr().err.count("\n") == 2


def test_the_supported_page_knows_which_fields_belong_to_which_api() -> None:
    """As the official SDK's own types have it."""
    from anthropic.types.beta.message_create_params import MessageCreateParamsStreaming
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

    chat, responses, messages = (
        get_type_hints(params)
        for params in (
            CompletionCreateParamsStreaming,
            ResponseCreateParamsStreaming,
            MessageCreateParamsStreaming,
        )
    )
    known = {name: apis for name, (_, apis) in supported().FIELDS.items() if "." not in name}
    of_older_types = {"output_format", "temperature", "top_p"}
    # `generate` belongs to the WebSocket transport: the types of the HTTP client do not have it.
    for name in set(known) - {"generate"}:
        assert ("chat" in known[name]) == (name in chat), name
        assert ("responses" in known[name]) == (name in responses), name
        if "messages" in known[name]:
            assert name in messages or name in of_older_types or name == "safeguards", name

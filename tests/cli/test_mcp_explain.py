"""`toolwire mcp explain` names the rule that decides, without starting the server."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from toolwire.cli.mcp_explain import explain_arguments, run_explain
from toolwire.settings.types import ConfigError
from toolwire.store.store import Store
from toolwire.tools.mcp.pins import Pinned, Pins

Explain = Callable[..., str]
SETTINGS = """
[mcp.files]
command = ["/no/such/program"]
deny = ["write_file path=/srv/docs/.git/** *"]
allow = ["list_*", "read_text_file path=/srv/docs/** *"]

[mcp.bare]
url = "http://127.0.0.1:9/mcp"

[mcp.broken]
command = ["x"]
allow = ["read path"]
"""


@pytest.fixture
def explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Explain:
    file = tmp_path / "toolwire.toml"
    file.write_text(f'[store]\nurl = "sqlite:///{tmp_path}/t.db"\n{SETTINGS}')

    def run(*words: str) -> str:
        assert run_explain(parse("--config", str(file), *words)) == 0
        return capsys.readouterr().out

    return run


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    explain_arguments(parser)
    return parser.parse_args(words)


def test_it_names_the_rule_that_decides_and_why_the_others_do_not_fit(explain: Explain) -> None:
    assert explain("files", "read_text_file", '{"path": "/srv/docs/a.md"}').splitlines() == [
        "read_text_file: runs without a question, by the rule read_text_file path=/srv/docs/** *",
        "   deny   write_file path=/srv/docs/.git/** *  it is about other tools",
        "   allow  list_*                               it is about other tools",
        "→  allow  read_text_file path=/srv/docs/** *   fits",
    ]
    assert explain("files", "files__read_text_file", '{"path": "/srv/docs/../a"}').splitlines()[0] == (
        "read_text_file: needs your approval, because no rule fits and the default is ask"
    )
    assert explain("files", "write_file", '{"path": "a"}').startswith("write_file: refused, by the rule ")


def test_a_server_without_rules_asks(explain: Explain) -> None:
    assert (
        explain("bare", "anything")
        == "anything: needs your approval, because no rule fits and the default is ask\n"
    )


def test_as_json_it_is_for_scripts(explain: Explain) -> None:
    found = json.loads(explain("files", "list_directory", '{"path": "/"}', "--json"))
    assert (found["action"], found["rule"]) == ("allow", "list_*")
    assert [step["fits"] for step in found["rules"]] == [False, True, False]


async def test_a_tool_that_nobody_agreed_to_gets_a_hint(
    explain: Explain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Store(f"sqlite:///{tmp_path}/t.db") as store:
        await Pins(store).first("mcp:files", [Pinned("read_text_file", "sha256:1", "{}")])

    def hint(tool: str) -> str:
        run_explain(parse("--config", str(tmp_path / "toolwire.toml"), "files", tool, "--json"))
        out, err = capsys.readouterr()
        assert json.loads(out)["action"]
        return err

    assert hint("read_text_fil") == (
        "note: files has no tool read_text_fil that you have agreed to; did you mean read_text_file?\n"
    )
    assert hint("xyz") == "note: files has no tool xyz that you have agreed to\n"
    assert hint("files__read_text_file") == hint("resources/read") == ""


def test_what_it_prints_hides_nothing(explain: Explain) -> None:
    assert explain("files", "a\u202eb").startswith("a⟨U+202E⟩b: needs your approval")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("fils", "x"), "there is no MCP server fils; did you mean files?"),
        (("zzz", "x"), "known: files, bare, broken"),
        (("broken", "x"), "[mcp.broken] allow: the rule 'read path': path is not a condition"),
        (("files", "x", "[1]"), 'not a JSON object: write {"NAME": VALUE, …}'),
        (("files", "x", "{"), "the arguments are not a JSON object"),
        (("files", "x", '{"a": 1, "a": 2}'), "a key occurs twice"),
    ],
)
def test_a_mistake_is_one_clear_line(explain: Explain, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        explain(*words)
    assert message in str(caught.value) and "\n" not in str(caught.value)

"""`toolwire ask`: one question, for pipes and for people."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

READ = 'call file_read {"filePaths": ["Projects/Alpha.md", "Diary.md"]}'
SEARCH = 'call vault_search {"query": "alpha"}'
WRITE = 'call note_write {"path": "Inbox/A.md", "content": "new"}'
ANSWER = "---\nsay I was told {result}"


@pytest.fixture(autouse=True)
def vault(place: Any) -> None:
    place.note("Projects/Alpha.md", "The alpha plan.")
    place.note("Diary.md", "alpha was hard")


def ask(
    place: Any, script: str, *arguments: str, stdin: str = "", status: int = 0
) -> subprocess.CompletedProcess[str]:
    place.script(script)
    done: subprocess.CompletedProcess[str] = place.run(
        "ask", "What is alpha?", "--vault", str(place.vault), *arguments, stdin=stdin, status=status
    )
    return done


def test_the_answer_is_written_to_stdout_unchanged_and_the_status_is_0(place: Any) -> None:
    done = ask(place, 'think Hm.\nchunk 3\nsay "**Alpha** is 漢字\\nand more"')
    assert (done.stdout, done.stderr) == ("**Alpha** is 漢字\nand more\n", "")


def test_piped_input_is_appended_to_the_question(place: Any) -> None:
    done = ask(place, "say Asked: {user}", stdin="some context\n")
    assert done.stdout == "Asked: What is alpha?\n\nsome context\n"


def test_a_model_failure_is_status_1_and_a_line_on_stderr(place: Any) -> None:
    done = ask(place, "fail backend The model is down.", status=1)
    line = "the model failed: The model is down. (model m; toolwire doctor shows what is wrong)\n"
    assert (done.stdout, done.stderr) == ("", line)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "nobody"], "there is no model nobody; known: m, other"),
        (["--allow", "file_raed"], "did you mean file_read?"),
        (["--vault", "/nowhere"], "--vault: /nowhere is not a folder"),
        (["--bogus"], "--bogus"),
    ],
)
def test_a_wrong_command_line_prints_one_line_with_status_2(
    place: Any, arguments: list[str], words: str
) -> None:
    done = ask(place, "say x", *arguments, status=2)
    assert done.stdout == "" and done.stderr.count("\n") == 1 and words in done.stderr


def test_a_missing_question_is_reported(place: Any) -> None:
    place.script("say x")
    assert "there is no question" in place.run("ask", status=2).stderr


# --- consent in a pipe --------------------------------------------------------------------------


def test_in_a_pipe_every_call_is_denied_by_default(place: Any) -> None:
    done = ask(place, f"{READ}\n{SEARCH}\n{ANSWER}")
    assert place.steps == [] and "no --allow rule covers this call" in done.stdout
    assert (
        "Tool execution cancelled: file_read" in done.stderr
        and "Tool execution cancelled: vault_search" in done.stderr
    )
    assert {approval.status for approval in place.asked()} == {"denied"}


def test_a_rule_allows_only_what_it_names(place: Any) -> None:
    done = ask(
        place, f"{READ}\n{ANSWER}", "--allow", "file_read:Projects/**", "--allow", "note_write:Inbox/*.md"
    )
    assert place.steps == ["read Projects/Alpha.md"]
    assert (
        "The alpha plan." in done.stdout
        and "alpha was hard" not in done.stdout
        and "allowed 1 of the 2" in done.stdout
    )
    (approval,) = place.asked()
    assert approval.decided_by == "rule file_read:Projects/**"


def test_a_rule_for_a_search_shares_matching_results(place: Any) -> None:
    done = ask(place, f"{SEARCH}\n{ANSWER}", "--allow", "vault_search:Projects/**")
    assert (
        place.steps == ["search alpha"]
        and "The alpha plan." in done.stdout
        and "alpha was hard" not in done.stdout
    )


def test_a_write_needs_a_rule_that_matches_its_path(place: Any) -> None:
    ask(place, f"{WRITE}\n{ANSWER}", "--allow", "note_write:Outbox/*.md")
    assert place.steps == []
    ask(place, f"{WRITE}\n{ANSWER}", "--allow", "note_write:Inbox/*.md")
    assert place.steps == ["write Inbox/A.md"]


def test_a_model_that_the_settings_do_not_name_is_offered_no_tools(place: Any) -> None:
    place.environment["TOOLWIRE_VAULT__MODELS"] = '["other", "codex*"]'
    done = ask(place, f"{WRITE}\n{ANSWER}", "--json", "--allow", "note_write")
    assert json.loads(done.stdout)["calls"] == [] and place.steps == []
    assert done.stderr == "m is not in vault.models, so it gets no tools\n"
    assert ask(place, "say x", "--model", "other").stderr == ""


def test_remembered_grants_count_in_a_pipe_too(place: Any, terminal: Callable[..., Any]) -> None:
    place.script(f"{WRITE}\n{ANSWER}")
    one = terminal("chat", "--vault", str(place.vault))
    one.say("Write it")
    one.answer("ctrl-c stop", "r")
    one.answer("t this tool, always", "t")
    one.answer("a Run, remembered for this tool, always", "a")
    one.see("I was told")
    ask(place, f"{WRITE}\n{ANSWER}")
    assert place.steps == ["write Inbox/A.md"] * 2


def test_json_prints_everything_as_one_object(place: Any) -> None:
    told = json.loads(
        ask(
            place,
            f"say Let me look.\n{READ}\n---\nsay Done.\nusage 9 5",
            "--json",
            "--allow",
            "file_read:Diary.md",
        ).stdout
    )
    assert (told["model"], told["answer"], told["ended"], told["error"], told["usage"]["total_tokens"]) == (
        "m",
        "Done.",
        "done",
        None,
        14,
    )
    (call,) = told["calls"]
    assert (call["name"], call["status"], call["shared"]) == ("file_read", "done", ["Diary.md"])
    failed = json.loads(ask(place, "fail backend Down.", "--json", status=1).stdout)
    assert (failed["ended"], failed["error"]) == ("failed", "Down.")


def test_a_closed_output_ends_the_command_quietly(place: Any) -> None:
    place.script("chunk 1\n" + "\n".join(["say " + "word " * 2000] * 5))
    command = place.command("ask", "Talk")
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=place.environment,
        cwd=place.folder,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(4)
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait(60) == 141


# --- at a terminal ------------------------------------------------------------------------------


def test_on_a_terminal_it_asks(place: Any, terminal: Callable[..., Any]) -> None:
    place.script(f"{WRITE}\n{ANSWER}")
    one = terminal("ask", "Write it", "--vault", str(place.vault))
    one.answer("ctrl-c stop", "a")
    one.see("✓ note_write: Inbox/A.md", "I was told")
    assert one.end() == 0 and place.steps == ["write Inbox/A.md"]


def test_ctrl_c_ends_the_command_and_the_question_expires(place: Any, terminal: Callable[..., Any]) -> None:
    place.script(f"{WRITE}\n{ANSWER}")
    one = terminal("ask", "Write it", "--vault", str(place.vault))
    one.see("ctrl-c stop")
    one.press("\x03")
    assert one.end() == 130 and place.steps == []
    assert [approval.status for approval in place.asked()] == ["expired"]


WITHOUT = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("prompt_toolkit", "rich"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
import importlib.util
found = importlib.util.find_spec
def find_spec(name, package=None):
    return None if name in ("prompt_toolkit", "rich") else found(name, package)
importlib.util.find_spec = find_spec
"""


@pytest.fixture
def without_extra(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without prompt_toolkit and rich."""
    command = place.command

    def hidden(*arguments: str, **options: Any) -> list[str]:
        python, flag, program, *rest = command(*arguments, **options)
        return [python, flag, WITHOUT + program, *rest]

    monkeypatch.setattr(place, "command", hidden)


@pytest.mark.usefixtures("without_extra")
def test_without_the_extra_ask_works_in_a_pipe_and_chat_names_what_is_missing(place: Any) -> None:
    assert ask(place, "say plain").stdout == "plain\n"
    assert "pip install -e " in place.run("chat", status=2).stderr


@pytest.mark.usefixtures("without_extra")
def test_without_the_extra_ask_asks_by_lines(place: Any, terminal: Callable[..., Any]) -> None:
    place.script(f"{READ}\n{WRITE}\n{ANSWER}")
    one = terminal("ask", "Read it", "--vault", str(place.vault))
    one.see("file_read: Read notes", "1. Projects/Alpha.md  (15 B)")
    one.see("numbers such as 1,3 or all: approve these")
    one.press("2\n")
    one.see("2 of 2 note_write?")
    one.press("d not now\n")
    one.see("file_read: approved", "note_write: denied: not now", "User cancelled tool execution")
    assert one.end() == 0 and place.steps == ["read Diary.md"]


@pytest.mark.parametrize(
    ("modules", "unloaded"),
    [
        (("cli.terminal",), ("rich", "prompt_toolkit", "asyncio", "sqlite3", "aiohttp", "jsonschema_rs")),
        (
            ("surfaces.terminal.ask", "surfaces.terminal.chat", "surfaces.terminal.note"),
            ("rich", "prompt_toolkit"),
        ),
    ],
)
def test_modules_are_not_loaded_before_they_are_needed(
    modules: tuple[str, ...], unloaded: tuple[str, ...]
) -> None:
    program = "import sys, " + ", ".join(f"toolwire.{name}" for name in modules) + "; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not set(unloaded) & set(loaded)

"""`toolwire chat` on a real terminal with a scripted model: output, keys, decisions and their effects."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from typing import Any

import pytest

READ = 'call file_read {"filePaths": ["Projects/Alpha.md", "Diary.md"]}'
SEARCH = 'call vault_search {"query": "alpha"}'
WRITE = 'call note_write {"path": "Inbox.md", "content": "new line"}'
ANSWER = "---\nsay I was told {result}"
QUESTION = "ctrl-c stop"
PICKER = "space toggles"
Start = Callable[..., Any]


@pytest.fixture(autouse=True)
def vault(place: Any) -> None:
    place.note("Projects/Alpha.md", "The alpha plan.")
    place.note("Diary.md", "alpha was hard")
    place.note("Inbox.md", "old line")


@pytest.fixture
def chat(place: Any, terminal: Start) -> Start:
    """A chat with an open vault and a scripted model."""

    def start(script: str, *arguments: str, **options: Any) -> Any:
        place.script(script)
        return terminal("chat", "--vault", str(place.vault), *arguments, **options)

    return start


def test_an_answer_is_streamed_as_markdown_and_thoughts_are_separate(chat: Start) -> None:
    one = chat(
        'think Hm, a greeting.\nchunk 3\nsay "# Hello\\n\\nThis is **bold** and 漢字 is wide.\\n\\n- one\\n- '
        'two"'
    )
    one.say("Hi")
    shown = one.see("Hm, a greeting.", "Hello", "This is bold and 漢字 is wide.", " • two")
    assert "**" not in shown
    one.prompted()
    one.press("\x04")
    assert one.end() == 0


# --- consent ------------------------------------------------------------------------------------


def test_the_question_shows_everything_and_nothing_is_touched_before_the_answer(
    chat: Start, place: Any
) -> None:
    one = chat(f"say Let me look.\n{READ}\n{ANSWER}")
    one.say("What is alpha?")
    shown = one.see(QUESTION)
    for words in (
        "Let me look.",
        "file_read: Read notes",
        "asked by m",
        "Projects/Alpha.md  (15 B)",
        "Diary.md  (14 B)",
        "Nothing has been read yet",
    ):
        assert words in shown
    assert place.steps == [] and [approval.status for approval in place.asked()] == ["pending"]


def test_approve_runs_what_was_picked_and_the_conversation_continues_with_it(chat: Start, place: Any) -> None:
    one = chat(f"{READ}\n{ANSWER}")
    one.say("What is alpha?")
    one.answer(QUESTION, "a")
    shown = one.see(PICKER)
    assert "[ ] Projects/Alpha.md" in shown and "[ ] Diary.md" in shown and "0 of 2 picked" in shown
    one.answer(PICKER, " ")
    one.see("[x] Projects/Alpha.md", "1 of 2 picked")
    one.press("\r")
    shown = one.see("✓ file_read: Projects/Alpha.md", "The alpha plan.", "allowed 1 of the 2")
    assert place.steps == ["read Projects/Alpha.md"] and "alpha was hard" not in shown


def test_all_and_none_have_a_key_each_and_escape_goes_back(chat: Start, place: Any) -> None:
    one = chat(f"{READ}\n{ANSWER}")
    one.say("What is alpha?")
    one.answer(QUESTION, "a")
    one.answer(PICKER, "a")
    one.see("2 of 2 picked")
    one.press("n")
    one.see("0 of 2 picked")
    one.press("\x1b")
    one.answer(QUESTION, "a")
    one.answer(PICKER, "a")
    one.see("2 of 2 picked")
    one.press("\r")
    one.see("alpha was hard")
    assert place.steps == ["read Projects/Alpha.md", "read Diary.md"]


def test_deny_prevents_the_execution_and_the_reason_reaches_the_model(chat: Start, place: Any) -> None:
    one = chat(f"{READ}\n{ANSWER}")
    one.say("What is alpha?")
    one.answer(QUESTION, "d")
    one.see("Reason (optional")
    one.press("it is private\r")
    one.see(
        "file_read: denied: it is private",
        "Tool execution cancelled: file_read",
        "User cancelled tool execution",
        "I was told",
    )
    assert place.steps == []
    (approval,) = place.asked()
    assert (approval.status, approval.decision.reason) == ("denied", "it is private")


def test_edited_arguments_are_shown_again_and_run_as_edited(chat: Start, place: Any) -> None:
    one = chat(f"{READ}\n{ANSWER}")
    one.say("What is alpha?")
    one.answer(QUESTION, "e")
    one.see("Arguments (JSON")
    one.press("\x01\x0b" + '{"filePaths": "wrong"}' + "\r")  # to the start of the line, cut it, write another
    one.see("filePaths:")
    one.press("\x01\x0b" + '{"filePaths": ["Inbox.md"]}' + "\r")
    shown = one.see("as edited", "Inbox.md  (8 B)")
    assert place.steps == [] and shown.count("file_read: Read notes") == 2
    one.answer(QUESTION, "a")
    one.see("old line", "person changed the arguments to")
    assert place.steps == ["read Inbox.md"]


def test_a_search_asks_twice_and_shares_only_what_was_picked(chat: Start, place: Any) -> None:
    one = chat(f"{SEARCH}\n{ANSWER}")
    one.say("Find alpha")
    one.answer(QUESTION, "a")
    one.see("which results may be shared?", "alpha was hard")
    assert place.steps == ["search alpha"]
    one.answer("a Share results…", "a")
    one.answer(PICKER, "\x1b[B ")  # down, space
    one.see("1 of 2 picked", "[x] Projects/Alpha.md")
    one.press("\r")
    shown = one.see("I was told")
    one.prompted()
    told = shown.partition("I was told")[2] + one.shown.partition("I was told")[2]
    assert "The alpha plan." in told and "alpha was hard" not in told


def test_a_write_shows_its_diff_and_changes_the_note_once_approved(chat: Start, place: Any) -> None:
    one = chat(f"{WRITE}\n{ANSWER}")
    one.say("Write it")
    shown = one.see("-old line", "+new line", QUESTION, "Nothing has been changed yet.")
    assert (place.vault / "Inbox.md").read_text() == "old line" and "pick" not in shown
    red, green = (
        next(place for place, line in enumerate(one.screen.display) if words in line)
        for words in ("-old line", "+new line")
    )
    assert (one.screen.buffer[red][2].fg, one.screen.buffer[green][2].fg) == ("red", "green")
    one.answer(QUESTION, "a")
    one.see("✓ note_write: Inbox.md")
    assert (place.vault / "Inbox.md").read_text() == "new line"


def test_two_calls_of_one_turn_are_shown_together_and_decided_one_by_one(chat: Start, place: Any) -> None:
    one = chat(f"{WRITE}\n{READ}\n{ANSWER}")
    one.say("Do both")
    one.see("1 of 2  note_write", "2 of 2  file_read", "1 of 2 note_write?")
    one.answer("1 of 2 note_write?", "a")
    one.answer("2 of 2 file_read?", "d")
    one.see("Reason (optional")
    assert place.steps == []
    one.press("\r")
    one.see("✓ note_write: Inbox.md", "Tool execution cancelled: file_read", "I was told")
    assert place.steps == ["write Inbox.md"]


def test_an_unknown_tool_and_a_tool_error_are_reported_to_the_person_and_the_model(
    chat: Start, place: Any
) -> None:
    place.environment["TOOLWIRE_TOOLS__UNKNOWN_TOOL"] = "forward"
    one = chat(f'call rm_rf {{}}\ncall fails {{"how": "told"}}\ncall fails {{"how": "preview"}}\n{ANSWER}')
    one.say("Fail")
    one.see("This call cannot work: it can not be planned")
    one.answer(QUESTION, "a")
    one.answer("a Tell the model why", "a")
    one.see(
        "Unknown tool: rm_rf",
        "Tool execution error: the disk is full",
        "Tool execution error: it can not be planned",
        "I was told",
    )


def test_keys_typed_before_the_question_was_shown_do_not_answer_it(chat: Start, place: Any) -> None:
    one = chat(f"pause 300ms\n{WRITE}\n{ANSWER}")
    one.say("Write it")
    one.press("aaa")
    one.see(QUESTION)
    one.press("aaa")  # and those in the first half second
    one.answer(QUESTION, "")
    assert [approval.status for approval in place.asked()] == ["pending"] and place.steps == []
    one.press("a")
    one.see("✓ note_write: Inbox.md")


def test_a_grant_is_remembered_only_by_separate_keys_and_can_be_listed_and_revoked(
    chat: Start, place: Any
) -> None:
    one = chat(f"{WRITE}\n---\nsay First.\n---\n{WRITE}\n---\nsay Second.\n---\n{WRITE}\n---\nsay Third.")
    one.say("Write it")
    one.answer(QUESTION, "r")
    one.answer("Remember, once you approve", "s")
    one.see("a Run, remembered for this session")
    assert place.steps == [] and place.json("approvals", "grants") == []
    one.answer("a Run, remembered for this session", "a")
    one.see("approved, remembered for this session", "First.")
    one.say("Again")
    assert "Second." in one.see("Second.") and one.shown.count("Nothing has been changed yet.") == 1
    assert place.steps == ["write Inbox.md"] * 2
    one.say("/grants")
    one.see("note_write", "session", "/grants revoke NUMBER")
    one.say("/grants revoke 1")
    one.see("revoked: grant_")
    one.say("Once more")
    one.answer(QUESTION, "d")
    one.see("Reason (optional")
    one.press("\r")
    one.see("Third.")
    assert place.steps == ["write Inbox.md"] * 2


def test_deciding_later_and_escape_decide_nothing(chat: Start, place: Any) -> None:
    one = chat(f"{WRITE}\n{ANSWER}")
    one.say("Write it")
    one.see("asked by m in this chat", "a Run · d Deny · e edit · r remember… · l Decide later")
    one.answer(QUESTION, "\x1b")
    one.answer(QUESTION, "l")
    one.see("note_write: waits in the inbox: toolwire approvals show appr_")
    (left,) = place.asked()
    assert left.status == "pending" and place.steps == []
    place.run("approvals", "deny", left.id, "--reason", "not now")
    one.see("Tool execution cancelled: note_write", "I was told", "not now")
    one.prompted()
    assert place.steps == []


def test_a_folder_can_be_remembered_if_there_is_one(chat: Start, place: Any) -> None:
    one = chat('call note_write {"path": "Projects/Alpha.md", "content": "x"}\n---\nsay ok')
    one.say("Write it")
    one.answer(QUESTION, "r")
    one.answer("f the folder Projects/", "f")
    one.answer("remembered for the folder Projects/", "a")
    one.see("ok")
    (grant,) = place.json("approvals", "grants")
    assert (grant["scope"], grant["target"], grant["tool"]) == ("folder", "Projects", "note_write")


# --- stopping -----------------------------------------------------------------------------------


def test_ctrl_c_stops_an_answer_and_keeps_the_chat(chat: Start) -> None:
    one = chat("say Half of it\nhang\n---\nsay Then {user}")
    one.say("Talk")
    one.see("Half of it")
    one.press("\x03")
    one.see("stopped")
    one.say("go on")
    one.see("Then go on")


def test_ctrl_c_at_a_question_stops_the_turn_and_the_question_expires(chat: Start, place: Any) -> None:
    one = chat(f"{WRITE}\n---\nsay Still here.")
    one.say("Write it")
    one.see(QUESTION)
    one.press("\x03")
    one.see("stopped")
    one.say("Are you there?")
    one.see("Still here.")
    assert place.steps == [] and [approval.status for approval in place.asked()] == ["expired"]


def test_ctrl_c_at_the_prompt_clears_the_line_and_ctrl_d_ends_the_chat(chat: Start) -> None:
    one = chat("say Hello")
    one.prompted()
    one.press("half a thou\x03")
    one.see("ctrl-d or /quit ends the chat")
    one.prompted()
    one.press("\x04")
    assert one.end() == 0


def test_a_model_failure_is_shown_and_the_chat_continues(chat: Start) -> None:
    one = chat("fail backend The model is down.")
    one.say("Hi")
    one.see("the model failed: The model is down.")
    one.say("/quit")
    assert one.end() == 0


# --- elsewhere ----------------------------------------------------------------------------------


def test_a_question_can_be_decided_from_another_process(chat: Start, place: Any) -> None:
    one = chat(f"{WRITE}\n{ANSWER}")
    one.say("Write it")
    one.see(QUESTION)
    (approval,) = place.json("approvals", "list")
    assert approval["tool"] == "note_write" and "token" not in approval
    place.run("approvals", "approve", approval["id"])
    one.see("✓ note_write: Inbox.md", "I was told")
    one.prompted()
    (kept,) = place.asked()
    assert (kept.status, kept.decided_by) == ("approved", "shell")


@pytest.mark.parametrize("first", ["approve", "list"])
def test_the_question_of_a_killed_chat_cannot_be_approved(chat: Start, place: Any, first: str) -> None:
    one = chat(f"{WRITE}\n{ANSWER}")
    one.say("Write it")
    one.see(QUESTION)
    (asked,) = place.json("approvals", "list")
    assert asked["status"] == "pending"
    os.kill(one.process.pid, signal.SIGKILL)
    one.process.wait()
    if first == "list":
        assert place.json("approvals", "list") == []
    late = place.run("approvals", "approve", asked["id"], status=2)
    assert "is already expired" in late.stderr and place.asked()[0].status == "expired"
    assert place.steps == [] and (place.vault / "Inbox.md").read_text() == "old line"


def test_a_question_that_expires_while_it_is_shown_is_not_a_denial(chat: Start, place: Any) -> None:
    one = chat(f"{WRITE}\n{ANSWER}", lifetime_s=2)
    one.say("Write it")
    one.see(QUESTION)
    one.see("Tool execution cancelled: note_write", "Nobody decided about this tool call in time")
    assert place.asked()[0].status == "expired"


# --- the slash commands -------------------------------------------------------------------------


def test_model_vault_help_and_new_do_what_they_say(chat: Start, place: Any) -> None:
    one = chat("say I am {model}")
    one.say("/help")
    one.see("/model [ID]", "/save NOTE", "/grants [revoke NUMBER]")
    one.say("/model")
    one.see("› m", "  other")
    one.say("/model nobody")
    one.see("there is no model nobody; known: m, other")
    one.say("/model other")
    one.see("model: other")
    one.say("Hello")
    one.see("I am Toolwire's demo model")
    one.say("/vault")
    one.see(f"vault: {place.vault}", "tools: vault_search, file_read")
    one.say("/vault off")
    one.see("no vault is open")
    one.say("/nonsense")
    one.see("there is no command /nonsense; /help lists the commands")


def test_a_model_that_may_not_use_the_vault_is_reported_wherever_the_vault_is_shown(
    chat: Start, place: Any
) -> None:
    place.environment["TOOLWIRE_VAULT__MODELS"] = '["other"]'
    told = "m is not in vault.models, so it gets no tools"
    one = chat("say Hello")
    one.see(f"vault: {place.vault}", told)
    one.say("/vault")
    shown = one.until(lambda shown: shown.count(told) == 2, "the same, by /vault")
    assert "tools: " not in shown
    one.say("/model other")
    one.say("/vault")
    assert one.see("tools: vault_search").count(told) == 2
    one.say("/model m")
    one.until(lambda shown: shown.count(told) == 3, "the same, by /model")


def test_a_conversation_is_saved_into_a_new_note_and_overwrites_none(chat: Start, place: Any) -> None:
    one = chat("say The answer.")
    one.say("The question?")
    one.see("The answer.")
    one.say("/save Talk")
    one.see("saved:", "Talk.md")
    saved = (place.vault / "Talk.md").read_text()
    assert (
        "The question?" in saved
        and "role::assistant" in saved
        and "The answer." in saved
        and "model: 'm'" in saved
    )
    one.say("/save Inbox.md")
    one.see("exists; choose another name")
    assert (place.vault / "Inbox.md").read_text() == "old line"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../x.md", "../x.md: a path must not have the segments . or .."),
        ("~/x", "x.md: a path must be relative to the vault"),
        ("con", "con.md: the name is reserved for a device on some systems"),
        (".hidden", ".hidden.md: hidden files and folders are not part of the vault"),
        ("Private/x", "Private/x.md: excluded by the vault's patterns"),
        ("Nowhere/x", "Nowhere/x.md: there is no folder Nowhere in the vault"),
        ("linked/x", "linked/x.md: a symbolic link; links are not followed"),
        ("inbox", "inbox.md: Inbox.md already exists"),
    ],
)
def test_a_conversation_is_saved_by_the_vaults_own_rules(place: Any, name: str, words: str) -> None:
    place.environment["TOOLWIRE_VAULT__EXCLUDE"] = '["Private"]'
    place.note("Inbox.md", "old line")
    (place.vault / "Private").mkdir()
    (place.vault / "linked").symlink_to(place.folder)
    place.script("say ok")
    before = {path.name for path in place.folder.rglob("*.md")}
    done = place.run("chat", "--vault", str(place.vault), stdin=f"Hello\n/save {name}\n/save Talks\n/quit\n")
    (refused,) = [line for line in done.stderr.splitlines() if "not saved" in line]
    assert words in refused and "saved: " in done.stderr
    assert {path.name for path in place.folder.rglob("*.md")} - before == {"Talks.md"}


def test_the_history_is_kept_for_its_owner_only(chat: Start, place: Any) -> None:
    one = chat("say ok")
    one.say("remember me")
    one.see("ok")
    one.say("/quit")
    assert one.end() == 0
    kept = place.folder / "state" / "chat_history"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600 and "remember me" in kept.read_text()


def test_without_a_vault_no_tools_are_offered(place: Any, terminal: Start) -> None:
    place.script(SEARCH)
    one = terminal("chat")
    one.say("search")
    one.prompted()
    assert "ctrl-c stop" not in one.shown and place.steps == []


def test_without_a_terminal_chat_reads_lines_writes_plain_text_and_denies_tools(place: Any) -> None:
    place.script(f"say Let me **look**.\n{WRITE}\n{ANSWER}")
    done = place.run("chat", "--vault", str(place.vault), stdin="Write it\n/quit\n")
    assert (
        "Let me **look**." in done.stdout
        and "no --allow rule covers this call" in done.stdout
        and "\x1b" not in done.stdout
    )
    assert "Tool execution cancelled: note_write" in done.stderr and place.steps == []


def test_a_slash_command_that_fails_does_not_end_the_chat(place: Any) -> None:
    place.script("say still here")
    done = place.run(
        "chat",
        stdin="/save ~nobody-of-that-name/x\n/vault ~nobody-of-that-name\n/save no/such/folder\nhello\n",
    )
    assert (
        "still here" in done.stdout
        and "home directory" in done.stderr
        and "is not a folder" in done.stderr
        and "No such file" in done.stderr
    )

"""The arguments of `toolwire chat`, `ask`, `note` and `approvals`.

The code of a command is imported when the command runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module

ACTIONS = ("list", "show", "approve", "deny", "grants", "revoke", "audit", "code")


def _run(command: str) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        from toolwire.tools.consent import hide_memory

        hide_memory()
        module = import_module(f"toolwire.surfaces.terminal.{command}")
        status: int = getattr(module, f"run_{command}")(arguments)
        return status

    return run


run_chat, run_ask, run_note, run_approvals = map(_run, ("chat", "ask", "note", "approvals"))


def chat_arguments(parser: argparse.ArgumentParser) -> None:
    vault = "offer the tools of this folder of notes; default: vault.root, if vault.enabled is true"
    parser.add_argument("--vault", metavar="DIR", help=vault)
    model = "the model to use; default: the first that toolwire models lists"
    parser.add_argument("--model", metavar="M", help=model)


def _allow_argument(parser: argparse.ArgumentParser) -> None:
    rule = (
        "let these calls run without your approval, for example vault_search, file_read:Projects/** or "
        "note_edit:Inbox/*.md; may be repeated"
    )
    parser.add_argument("--allow", metavar="RULE", action="append", default=[], help=rule)


def ask_arguments(parser: argparse.ArgumentParser) -> None:
    question = "the question; text from a pipe is appended to it"
    parser.add_argument("question", nargs="*", metavar="QUESTION", help=question)
    chat_arguments(parser)
    _allow_argument(parser)
    as_json = "print one JSON object at the end, with answer, model, calls and usage"
    parser.add_argument("--json", action="store_true", help=as_json)


def note_arguments(parser: argparse.ArgumentParser) -> None:
    note = "the note; its frontmatter may set model, system_commands and temperature"
    parser.add_argument("note", metavar="NOTE.md", help=note)
    chat_arguments(parser)
    _allow_argument(parser)


def approvals_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    action = (
        "list (default): the pending approval requests; show, approve, deny: one of these requests; grants: "
        "the remembered approvals; revoke: end one of these grants; audit: the log of decisions; code: set "
        "or change your approval code"
    )
    add("action", nargs="?", choices=ACTIONS, default="list", help=action)
    add("id", nargs="?", metavar="ID", help="the id of a request or a grant, or the beginning of the id")
    add("--reason", metavar="TEXT", default="", help="deny: the reason, which the model reads")
    pick = "approve: allow only these: paths or numbers from the list that `show` prints, or all, or none"
    add("--pick", metavar="WHICH", nargs="+", help=pick)
    add("--arguments", metavar="JSON", help="approve: run the call with these arguments instead")
    remember = (
        "approve: also allow later calls of this tool: in the same session, in a folder, or all of them"
    )
    add("--remember", choices=("session", "folder", "tool"), help=remember)
    folder = "with --remember folder: which folder; default: the one that contains all files shown"
    add("--folder", metavar="F", default="", help=folder)
    add("--all", action="store_true", help="list: also show requests that are decided")
    add("--limit", metavar="N", type=int, default=20, help="audit: show the newest N entries; default 20")
    add("--json", action="store_true", help="print JSON, for scripts")

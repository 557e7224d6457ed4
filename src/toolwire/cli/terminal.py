"""The arguments of chat, ask, note and approvals. Their code is imported when they run."""

from __future__ import annotations

import argparse

ACTIONS = ("list", "show", "approve", "deny", "grants", "revoke", "audit")


def _session_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--vault",
        metavar="DIR",
        help="the folder of notes whose tools are offered; default: vault.root where vault.enabled is set",
    )
    parser.add_argument(
        "--model", metavar="M", help="the model to talk to; default: the first that toolwire models lists"
    )


def _allow_argument(parser: argparse.ArgumentParser) -> None:
    examples = "vault_search, file_read:Projects/**, note_edit:Inbox/*.md"
    parser.add_argument(
        "--allow",
        metavar="RULE",
        action="append",
        default=[],
        help=f"a tool that may run unasked: {examples}",
    )


def chat_arguments(parser: argparse.ArgumentParser) -> None:
    _session_arguments(parser)


def run_chat(arguments: argparse.Namespace) -> int:
    from toolwire.surfaces.terminal import chat

    return chat.run_chat(arguments)


def ask_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "question",
        nargs="*",
        metavar="QUESTION",
        help="what to ask; what comes in by a pipe is appended to it",
    )
    _session_arguments(parser)
    _allow_argument(parser)
    parser.add_argument(
        "--json", action="store_true", help="one JSON object at the end: answer, model, calls, usage"
    )


def run_ask(arguments: argparse.Namespace) -> int:
    from toolwire.surfaces.terminal import ask

    return ask.run_ask(arguments)


def note_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "note",
        metavar="NOTE.md",
        help="the note; its frontmatter may name model, system_commands and temperature",
    )
    _session_arguments(parser)
    _allow_argument(parser)


def run_note(arguments: argparse.Namespace) -> int:
    from toolwire.surfaces.terminal import note

    return note.run_note(arguments)


def approvals_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", nargs="?", choices=ACTIONS, default="list", help="default: list what is pending"
    )
    parser.add_argument(
        "id", nargs="?", metavar="ID", help="an approval's or a grant's id, or the beginning of it"
    )
    parser.add_argument("--reason", metavar="TEXT", default="", help="deny: why; the model is told")
    parser.add_argument(
        "--pick",
        metavar="WHICH",
        nargs="+",
        help="approve: numbers of the list that show gives, paths, or the words all or none",
    )
    parser.add_argument("--arguments", metavar="JSON", help="approve: with these arguments instead")
    parser.add_argument(
        "--remember", choices=("session", "folder", "tool"), help="approve: and whatever is alike from now on"
    )
    parser.add_argument(
        "--folder",
        metavar="F",
        default="",
        help="with --remember folder: which one; default: the one that holds everything shown",
    )
    parser.add_argument("--all", action="store_true", help="list: those that are decided too")
    parser.add_argument(
        "--limit", metavar="N", type=int, default=20, help="audit: so many of the newest entries"
    )
    parser.add_argument("--json", action="store_true", help="JSON, for scripts")


def run_approvals(arguments: argparse.Namespace) -> int:
    from toolwire.surfaces.terminal import approvals

    return approvals.run_approvals(arguments)

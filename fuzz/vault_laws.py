"""Laws of the vault: which files a path can reach, and how notes and queries are handled."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from zlib import crc32

from fuzz.law import Broken, Case, Law, holds
from toolwire.vault.frontmatter import frontmatter
from toolwire.vault.notes import parse
from toolwire.vault.paths import Vault
from toolwire.vault.policy import PathPolicy, PathRefused
from toolwire.vault.words import expression, parse_query

_NAMES = (
    "a b.md C.md é.md e\u0301.md .. . .git .obsidian link link.md pipe.md inner.md secret.md ~ %2e%2e "
    "con.md x. etc - NUL C: ..\\ \\"
).split(" ")
_NAMES += ["", "a ", "\u200b", "\u202e", "\0", "\uff0e\uff0e", "\u2024\u2024", "\ud800", "\n", "x" * 260]
_JOINS = ["/", "/", "/", "\\", "//", "", "/./", "\u2215", ":"]
_MARKUP = [
    "#",
    "# ",
    "`",
    "```",
    "~~~",
    "\n",
    "\n\n",
    "---\n",
    "a: ",
    "[[",
    "]]",
    "](",
    "[",
    ")",
    "|",
    "- [ ] ",
    "- ",
    '"',
    "'",
    "é",
    "日",
    " ",
    "===",
]
_QUERY = '" - # tag: path: * ( ) ^ : + C++ 日本 a word \0 \ud800 🎉 { } NEAR('.split(" ")
_QUERY += [" ", " ", " OR ", " AND ", " NOT "]
_WORK = Path(__file__).resolve().parent.parent / "bench" / "work"
_FOLDERS = ("a/a", ".git", ".obsidian", "x")
_FILES = ("b.md", "C.md", "e\u0301.md", "a/inner.md", "a/a/b.md", ".git/b.md", ".obsidian/b.md", "x/é.md")


def _make(outside: Path) -> None:
    """Creates a small vault, and files outside of it that a path must not reach."""
    root = outside / "vault"
    for folder in _FOLDERS:
        (root / folder).mkdir(parents=True)
    for file in _FILES:
        (root / file).write_text("inside")
    (outside / "secret.md").write_text("outside")
    (outside / "b.md").write_text("outside")
    os.symlink("..", root / "link")
    os.symlink("../secret.md", root / "link.md")
    os.symlink("../..", root / "a" / "link")
    os.mkfifo(root / "pipe.md")


@cache
def _vault() -> tuple[Vault, Path]:
    """Returns the vault, which is created once and shared by all processes.

    A temporary vault of one process would stay on the disk if the process is killed.
    """
    _WORK.mkdir(parents=True, exist_ok=True)
    kept = _WORK / f"fuzz-vault-{crc32(repr((_FOLDERS, _FILES)).encode()):08x}"
    if not kept.exists():
        made = Path(tempfile.mkdtemp(dir=_WORK))
        _make(made)
        try:
            os.rename(made, kept)
        except OSError:  # another process was faster
            shutil.rmtree(made)
    return Vault(kept / "vault"), kept / "vault"


def _drawn(pieces: list[str], most: int) -> Callable[[Random], Case]:
    return lambda rng: {
        "text": "".join(
            rng.choice(pieces) if rng.random() < 0.95 else chr(rng.randrange(0x3000))
            for _ in range(rng.randrange(most))
        )
    }


def _draw_path(rng: Random) -> Case:
    return {
        "text": "".join(
            part for _ in range(rng.randrange(1, 7)) for part in (rng.choice(_NAMES), rng.choice(_JOINS))
        )[: rng.choice((None, -1))]
    }


def _judge_path(case: Case) -> None:
    vault, root = _vault()
    try:
        note = vault.read(case["text"])
    except PathRefused as refused:
        holds("a refusal is one line", True, "\n" not in str(refused) and bool(refused.reason))
        return
    holds("only what is inside is read", "inside", note.text)
    holds("no link is followed", str(root / note.path), os.path.realpath(root / note.path))
    holds("nothing hidden is read", False, any(name.startswith(".") for name in note.path.split("/")))


def _judge_policy(case: Case) -> None:
    policy = PathPolicy(exclude=["a/a", "*.secret.md", "Ä"])
    try:
        names = policy.segments(case["text"])
    except PathRefused:
        holds("what is refused is not allowed", False, policy.allows(case["text"]))
        return
    holds("a path is its names", case["text"], "/".join(names))
    holds("no name leads up or is hidden", False, any(name.startswith(".") or not name for name in names))
    if "\\" in case["text"] or "\0" in case["text"]:
        raise Broken("no backslash and no NUL", None, case["text"])


def _judge_note(case: Case) -> None:
    text = case["text"]
    note = parse(text)
    holds("the chunks cover the text", text, "".join(text[chunk.start : chunk.end] for chunk in note.chunks))
    line = 1
    for chunk in note.chunks:
        holds("a chunk begins where the one before ended", line, chunk.first_line)
        line += text.count("\n", chunk.start, chunk.end)
    holds(
        "frontmatter ends at a line",
        True,
        frontmatter(text).end in (0, len(text)) or text[frontmatter(text).end - 1] == "\n",
    )


def _judge_query(case: Case) -> None:
    query = parse_query(case["text"])
    written = expression(query.groups, query.without)
    holds("quotes are balanced", 0, written.count('"') % 2)
    holds("a term has something to look for", True, all(term.words or term.literal for term in query.terms))


LAWS: dict[str, Law] = {
    "vault_paths": Law(
        _draw_path, _judge_path, "any path is refused, or names a file inside the vault", ("text",)
    ),
    "vault_policy": Law(
        _draw_path,
        _judge_policy,
        "a path that the policy allows contains no `..` and no hidden names",
        ("text",),
    ),
    "vault_notes": Law(
        _drawn(_MARKUP, 60), _judge_note, "any text is a valid note, and its chunks cover it", ("text",)
    ),
    "vault_queries": Law(_drawn(_QUERY, 14), _judge_query, "any text is a valid query", ("text",)),
}

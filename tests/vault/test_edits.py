"""Changes: a plan touches no file, applying it does exactly that, a kill leaves no partial note."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.vault.edits import Change, Edits, clean_leftovers, dominant, replaced
from toolwire.vault.paths import Vault, unix
from toolwire.vault.policy import PathRefused, VaultLimits

KILL_ROUNDS = int(os.environ.get("TOOLWIRE_KILL_ROUNDS", "6"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "vault"
    root.mkdir()
    (root / "a.md").write_text("one\ntwo\nthree\n")
    return root


@pytest.fixture
def edits(root: Path) -> Iterator[Edits]:
    with Vault(root) as vault:
        yield Edits(vault)


def tree(root: Path) -> dict[str, bytes | None]:
    """Everything in a folder, hidden files too."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- plans --------------------------------------------------------------------------------------


def test_a_plan_touches_nothing_and_shows_the_change(root: Path, edits: Edits) -> None:
    before = tree(root)
    change = edits.plan_edit("a.md", [("two", "TWO")])
    new = edits.plan_write("Folder/Sub/new.md", "fresh\n")
    assert tree(root) == before
    assert change.diff.splitlines() == [
        "--- a/a.md",
        "+++ b/a.md",
        "@@ -1,3 +1,3 @@",
        " one",
        "-two",
        "+TWO",
        " three",
    ]
    assert (change.creates, change.count("+"), change.count("-"), change.before_sha256) == (
        False,
        1,
        1,
        sha(root / "a.md"),
    )
    assert (new.creates, new.new_folders, new.count("+"), new.before_sha256) == (
        True,
        ("Folder", "Folder/Sub"),
        1,
        None,
    )
    assert new.diff.splitlines()[:2] == ["--- /dev/null", "+++ b/Folder/Sub/new.md"]


def test_what_was_planned_is_what_is_written(root: Path, edits: Edits) -> None:
    change = edits.plan_edit("a.md", [("two", "TWO"), ("TWO\nthree", "2\n3")], sha(root / "a.md"))
    edits.apply(change)
    assert (root / "a.md").read_text() == "one\n2\n3\n" == change.content.decode()
    assert sha(root / "a.md") == change.after_sha256
    edits.apply(edits.plan_write("Folder/Sub/new.md", "fresh\n"))
    assert tree(root) == {
        "Folder": None,
        "Folder/Sub": None,
        "Folder/Sub/new.md": b"fresh\n",
        "a.md": b"one\n2\n3\n",
    }


def test_a_note_that_changed_since_is_not_overwritten(root: Path, edits: Edits) -> None:
    base = sha(root / "a.md")
    change = edits.plan_write("a.md", "mine\n", base)
    (root / "a.md").write_text("theirs\n")
    for attempt in (
        lambda: edits.apply(change),
        lambda: edits.plan_write("a.md", "mine", base),
        lambda: edits.plan_edit("a.md", [("one", "1")], base),
    ):
        with pytest.raises(PathRefused, match="has changed since") as refused:
            attempt()
        assert refused.value.kind == "changed"
    assert tree(root) == {"a.md": b"theirs\n"}


def test_a_note_that_was_removed_since_is_not_created_again(root: Path, edits: Edits) -> None:
    change = edits.plan_write("a.md", "mine\n")
    (root / "a.md").unlink()
    with pytest.raises(PathRefused, match="removed since"):
        edits.apply(change)
    with pytest.raises(PathRefused, match="removed since"):
        edits.plan_write("a.md", "x", "0" * 64)
    assert tree(root) == {}


def test_a_new_note_never_replaces_another(root: Path, edits: Edits) -> None:
    change = edits.plan_write("New/b.md", "mine\n")
    (root / "New").mkdir()
    (root / "New" / "b.md").write_text("theirs\n")
    with pytest.raises(PathRefused) as refused:
        edits.apply(change)
    assert refused.value.kind == "exists"
    assert tree(root)["New/b.md"] == b"theirs\n"


def test_only_one_of_many_concurrent_creations_succeeds(root: Path) -> None:
    outcomes: list[str] = []

    def create(number: int) -> None:
        with Vault(root) as vault:
            own = Edits(vault, clean=False)
            change = plans[number]
            start.wait()
            try:
                own.apply(change)
                outcomes.append(f"text {number}\n")
            except PathRefused as refused:
                outcomes.append(refused.kind)

    with Vault(root) as vault:
        plans = [Edits(vault).plan_write("n/x.md", f"text {number}\n") for number in range(8)]
    start = threading.Barrier(8)
    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("exists") == 7
    assert (root / "n" / "x.md").read_text() in outcomes
    assert os.listdir(root / "n") == ["x.md"]


@pytest.mark.parametrize("name", ["A.md", "A.MD", "a.Md"])
def test_a_new_name_that_some_file_systems_treat_as_an_existing_one_is_refused(
    edits: Edits, name: str
) -> None:
    with pytest.raises(PathRefused, match="already exists"):
        edits.plan_write(name, "x")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("../x.md", "path"),
        ("/x.md", "path"),
        (".obsidian/plugins/evil/main.md", "path"),
        (".x.md", "path"),
        ("x\\y.md", "path"),
        ("con.md", "path"),
        ("x.js", "type"),
        ("x.canvas", "type"),
        ("x.base", "type"),
        ("a.md/x.md", "exists"),
        ("link/x.md", "link"),
        ("link.md", "link"),
        ("Private/x.md", "excluded"),
    ],
)
def test_writes_follow_the_same_policy_as_reads(root: Path, path: str, kind: str) -> None:
    (root.parent / "outside").mkdir()
    os.symlink(root.parent / "outside", root / "link")
    os.symlink(root.parent / "outside" / "x.md", root / "link.md")
    before = tree(root.parent)
    with Vault(root, exclude=["private"]) as vault:
        with pytest.raises(PathRefused) as refused:
            Edits(vault).plan_write(path, "x")
        assert refused.value.kind == kind
        forged = Change(path, True, None, hashlib.sha256(b"x").hexdigest(), b"x", "")
        with pytest.raises(PathRefused):
            Edits(vault).apply(forged)
    assert tree(root.parent) == before


def test_a_folder_that_became_a_link_since_is_not_entered(root: Path, edits: Edits) -> None:
    (root / "f").mkdir()
    (root / "f" / "n.md").write_text("old")
    replace, create = edits.plan_write("f/n.md", "new"), edits.plan_write("f/other.md", "new")
    outside = root.parent / "outside"
    os.rename(root / "f", outside)
    os.symlink(outside, root / "f")
    for change in (replace, create):
        with pytest.raises(PathRefused):
            edits.apply(change)
    assert tree(outside) == {"n.md": b"old"}


def test_content_that_is_not_the_planned_one_is_refused(edits: Edits) -> None:
    planned = edits.plan_write("b.md", "planned")
    with pytest.raises(PathRefused, match="not what was planned"):
        edits.apply(replace(planned, content=b"other"))


@pytest.mark.parametrize(
    ("steps", "word"),
    [
        ([("absent", "x")], "not in the note"),
        ([("o", "x")], "more than once"),
        ([("", "x")], "empty"),
        ([("one", "1"), ("one", "1")], "edit 2: "),
    ],
)
def test_an_edit_that_does_not_match_is_refused(
    edits: Edits, steps: list[tuple[str, str]], word: str
) -> None:
    with pytest.raises(PathRefused, match=word):
        edits.plan_edit("a.md", steps)


def test_content_that_is_not_text_or_too_large_is_refused(root: Path) -> None:
    with Vault(root, limits=VaultLimits(file_bytes=100)) as vault:
        edits = Edits(vault)
        for content, kind in (("x" * 101, "size"), ("a\0b", "binary"), ("a\ud800", "encoding")):
            with pytest.raises(PathRefused) as refused:
                edits.plan_write("b.md", content)
            assert refused.value.kind == kind


# --- what stays as it was -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"one\r\ntwo\r\n", b"one\r\n2\r\n3\r\n"),
        (b"\xef\xbb\xbfone\ntwo\n", b"\xef\xbb\xbfone\n2\n3\n"),
        (b"\xef\xbb\xbfone\r\ntwo", b"\xef\xbb\xbfone\r\n2\r\n3"),
        (b"one\rtwo\r", b"one\r2\r3\r"),
        (b"a\r\nb\r\none\ntwo\rx\r\n", b"a\r\nb\r\none\n2\r\n3\rx\r\n"),
    ],
)
def test_line_ends_and_byte_order_mark_are_kept(
    root: Path, edits: Edits, before: bytes, after: bytes
) -> None:
    (root / "w.md").write_bytes(before)
    edits.apply(edits.plan_edit("w.md", [("two", "2\n3")]))
    assert (root / "w.md").read_bytes() == after


def test_a_new_text_gets_the_line_ends_of_the_old_one(root: Path, edits: Edits) -> None:
    (root / "w.md").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    edits.apply(edits.plan_write("w.md", "x\ny\n"))
    assert (root / "w.md").read_bytes() == b"\xef\xbb\xbfx\r\ny\r\n"


def test_an_edit_across_lines_matches_any_line_ends(root: Path, edits: Edits) -> None:
    (root / "w.md").write_bytes(b"one\r\ntwo\r\nthree")
    edits.apply(edits.plan_edit("w.md", [("one\ntwo", "1")]))
    assert (root / "w.md").read_bytes() == b"1\r\nthree"


def test_the_mode_is_kept(root: Path, edits: Edits) -> None:
    (root / "a.md").chmod(0o640)
    edits.apply(edits.plan_edit("a.md", [("two", "2")]))
    assert stat.S_IMODE((root / "a.md").stat().st_mode) == 0o640


def test_a_missing_last_line_end_shows_in_the_diff(edits: Edits) -> None:
    assert "\\ No newline at end of file" in edits.plan_write("a.md", "one\ntwo\nthree").diff
    assert edits.plan_write("a.md", "one\ntwo\nthree\n").diff == ""
    same = edits.plan_write("a.md", "one\ntwo\nthree\n")
    assert same.before_sha256 == same.after_sha256


LINES = st.lists(st.sampled_from(["a", "b", "\r", "\n", "\r\n", "é"]), max_size=12).map("".join)


@given(LINES, LINES, LINES, LINES)
def test_an_edit_changes_no_other_byte(before: str, old: str, new: str, after: str) -> None:
    marked = f"{before}<{old}>{after}"
    changed = replaced(marked, (f"<{old}>", f"<{new}>"), dominant(marked))
    assert changed.startswith(f"{before}<") and changed.endswith(f">{after}")
    assert unix(changed) == unix(f"{before}<{new}>{after}")


# --- kills and failures -------------------------------------------------------------------------

WRITER = """
import sys
from toolwire.vault.edits import Edits
from toolwire.vault.paths import Vault
with Vault(sys.argv[1]) as vault:
    edits = Edits(vault, clean=False)
    print("begins", flush=True)
    turn = 0
    while True:
        turn += 1
        text = f"turn {turn}\\n" + f"line {turn}\\n" * 4000
        edits.apply(edits.plan_write("note.md", text))
        edits.apply(edits.plan_write(f"made {sys.argv[2]} {turn}.md", text))
"""


def whole(text: str) -> bool:
    first, *lines = text.splitlines()
    return len(lines) == 4000 and set(lines) == {first.replace("turn", "line")}


def kill_while_writing(root: Path, rounds: int, seed: int) -> int:
    """Kills writers at random moments; returns the number of temporary files that were left and removed."""
    rng = random.Random(seed)
    (root / "note.md").write_text("turn 0\n" + "line 0\n" * 4000)
    left = 0
    for turn in range(rounds):
        child = subprocess.Popen([sys.executable, "-c", WRITER, str(root), str(turn)], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == b"begins\n"
        time.sleep(rng.uniform(0, 0.1))  # the random moment
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        with Vault(root) as vault:
            for entry, _ in vault.scan():
                assert whole((root / entry.path).read_text()), entry.path
            left += clean_leftovers(vault)
        assert [name for name in os.listdir(root) if name.startswith(".")] == []
        for path in root.glob("made *"):
            path.unlink()
    return left


@pytest.mark.process
def test_a_killed_writer_leaves_the_old_or_the_new_note_and_no_temporary_files(tmp_path: Path) -> None:
    root = tmp_path / "vault"
    root.mkdir()
    left = kill_while_writing(root, KILL_ROUNDS, 5)
    print(
        f"outcomes: {KILL_ROUNDS} writers killed, {left} unfinished files removed; no note was half-written"
    )


@pytest.mark.process
def test_temporary_files_are_removed_when_the_vault_is_next_edited_unless_in_use(root: Path) -> None:
    left = root / ".toolwire-0123456789abcdef.tmp"
    left.write_text("half")
    (root / "deep").mkdir()
    (root / "deep" / left.name).write_text("half")
    (root / ".toolwire-not-ours.tmp").write_text("theirs")
    used = root / ".toolwire-aaaaaaaaaaaaaaaa.tmp"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import fcntl; f = open({str(used)!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('held', "
            "flush=True); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with Vault(root) as vault:
        Edits(vault)
        assert sorted(tree(root)) == [
            ".toolwire-aaaaaaaaaaaaaaaa.tmp",
            ".toolwire-not-ours.tmp",
            "a.md",
            "deep",
        ]
        holder.communicate("\n")
        assert clean_leftovers(vault) == 1


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "fchmod"])
def test_a_failing_disk_leaves_the_old_note(
    root: Path, edits: Edits, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    change = edits.plan_write("a.md", "new\n")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(PathRefused, match="No space left"):
        edits.apply(change)
    monkeypatch.undo()
    assert tree(root) == {"a.md": b"one\ntwo\nthree\n"}


def test_a_failed_creation_removes_its_new_folders(
    root: Path, edits: Edits, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = edits.plan_write("New/Sub/b.md", "x")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(PathRefused, match="broken"):
        edits.apply(change)
    assert tree(root) == {"a.md": b"one\ntwo\nthree\n"}


def test_a_file_system_without_links_creates_notes_too(
    root: Path, edits: Edits, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", fail)
    edits.apply(edits.plan_write("b.md", "x"))
    assert tree(root) == {"a.md": b"one\ntwo\nthree\n", "b.md": b"x"}
    assert (root / "b.md").stat().st_nlink == 1


def test_no_file_descriptor_stays_open(root: Path, edits: Edits) -> None:
    before = len(os.listdir("/dev/fd"))
    for number in range(3):
        edits.apply(edits.plan_write(f"x/y{number}/z.md", "x"))
        edits.apply(edits.plan_write("a.md", f"turn {number}"))
    with pytest.raises(PathRefused):
        edits.plan_write("a.md/x.md", "x")
    assert len(os.listdir("/dev/fd")) == before

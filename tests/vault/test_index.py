"""The index follows the files, is rebuilt after any damage, and only its owner can read it."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from toolwire.vault import refresh as refreshing
from toolwire.vault.index import _SETTINGS, Index, Location, watch
from toolwire.vault.paths import Vault
from toolwire.vault.policy import PathRefused, VaultLimits
from toolwire.vault.search import search

KILL_ROUNDS = int(os.environ.get("TOOLWIRE_KILL_ROUNDS", "4"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "vault"
    root.mkdir()
    for number in range(6):
        (root / f"n{number}.md").write_text(
            f"# Note {number}\n\nword{number} common [[n0]] #tag{number % 2}\n"
        )
    return root


@pytest.fixture
def index(root: Path, tmp_path: Path) -> Iterator[Index]:
    with Vault(root) as vault, Index(vault, tmp_path / "cache") as made:
        yield made


def paths(index: Index, query: str) -> list[str]:
    return sorted(hit.path for hit in search(index, query, 50).hits)


def database(index: Index) -> Path:
    found = index.location.current()
    assert found is not None
    return found


def intact(index: Index) -> None:
    """Checks that the index answers like a newly built one."""
    with closing(sqlite3.connect(database(index))) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.execute("INSERT INTO words (words) VALUES ('integrity-check')")
        rows = connection.execute("SELECT path, sha256 FROM notes ORDER BY path").fetchall()
        chunks = connection.execute("SELECT count(*) FROM chunks").fetchone()[0]
        words = (
            dict(connection.execute("SELECT term, cnt FROM vocabulary")) if _vocabulary(connection) else {}
        )
    with (
        Vault(index.vault.root) as vault,
        Index(vault, index.location.folder.parent.parent / "fresh") as fresh,
    ):
        fresh.refresh()
        with closing(sqlite3.connect(database(fresh))) as connection:
            assert connection.execute("SELECT path, sha256 FROM notes ORDER BY path").fetchall() == rows
            assert connection.execute("SELECT count(*) FROM chunks").fetchone()[0] == chunks
            _vocabulary(connection)
            assert dict(connection.execute("SELECT term, cnt FROM vocabulary")) == words, (
                "no word of a note that is gone is left"
            )


def _vocabulary(connection: sqlite3.Connection) -> bool:
    connection.execute("CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab (main, words, row)")
    return True


# --- keeping up ---------------------------------------------------------------------------------


def test_a_first_refresh_reads_all_notes_and_a_second_none(index: Index) -> None:
    first, second = index.refresh(), index.refresh()
    assert (
        first.added,
        first.rebuilt,
        second.added,
        second.changed,
        second.removed,
        second.unchanged,
        second.rebuilt,
    ) == (6, True, 0, 0, 0, 6, False)
    assert index.count() == 6


def test_changed_new_and_deleted_notes_are_noticed(root: Path, index: Index) -> None:
    index.refresh()
    (root / "n1.md").write_text("rewritten entirely")
    (root / "n2.md").unlink()
    (root / "new.md").write_text("brandnew")
    done = index.refresh()
    assert (done.added, done.changed, done.removed, done.unchanged) == (1, 1, 1, 4)
    assert (
        paths(index, "rewritten") == ["n1.md"] and paths(index, "word1") == [] and paths(index, "word2") == []
    )
    assert paths(index, "brandnew") == ["new.md"]
    intact(index)


def test_a_renamed_note_is_found_under_its_new_name_only(root: Path, index: Index) -> None:
    index.refresh()
    (root / "Folder").mkdir()
    os.rename(root / "n3.md", root / "Folder" / "moved.md")
    done = index.refresh()
    assert (done.added, done.removed) == (1, 1)
    assert paths(index, "word3") == ["Folder/moved.md"] and paths(index, "moved") == ["Folder/moved.md"]
    intact(index)


def test_a_change_with_the_same_size_and_time_is_noticed(root: Path, index: Index) -> None:
    (root / "n1.md").write_text("aaaa")
    index.refresh()
    found = os.stat(root / "n1.md")
    (root / "n1.md").write_text("bbbb")
    os.utime(root / "n1.md", ns=(found.st_atime_ns, found.st_mtime_ns))
    index.refresh()
    assert paths(index, "bbbb") == ["n1.md"] and paths(index, "aaaa") == []


def test_a_touched_note_is_not_indexed_again(root: Path, index: Index) -> None:
    index.refresh()
    os.utime(root / "n1.md", (1, 1))
    done = index.refresh()
    assert (done.changed, done.unchanged) == (0, 6)


def test_a_note_that_is_no_longer_text_is_removed_from_the_index(root: Path, index: Index) -> None:
    index.refresh()
    (root / "n1.md").write_bytes(b"\0binary")
    (root / "n2.md").write_bytes(b"\xff\xfe")
    done = index.refresh()
    assert (done.removed, done.skipped) == (2, 2) and "binary" in done.reasons[0]
    assert paths(index, "word1") == paths(index, "word2") == []


def test_after_random_changes_the_index_equals_a_new_one(root: Path, index: Index) -> None:
    rng = random.Random(7)
    words = ["alpha", "beta", "日本", "gamma", "# Head\n", "\n\n", "#tag ", "[[n1]] ", "- [ ] task\n", "é"]
    for _ in range(8):
        for _ in range(10):
            path = root / f"{'sub/' if rng.random() < 0.3 else ''}n{rng.randrange(12)}.md"
            path.parent.mkdir(exist_ok=True)
            if rng.random() < 0.25:
                path.unlink(missing_ok=True)
            else:
                path.write_text("".join(rng.choice(words) + " " for _ in range(rng.randrange(60))))
        index.refresh()
    intact(index)


def test_notes_on_several_pages_of_the_table_are_compared_correctly(
    root: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refreshing, "PAGE", 3)
    monkeypatch.setattr(refreshing, "BATCH", 4)
    monkeypatch.setattr(refreshing, "FLUSH", 2)
    index.refresh()
    for number in range(20):
        (root / f"n{number:02}x.md").write_text(f"late{number}")
    (root / "n3.md").unlink()
    done = index.refresh()
    assert (done.added, done.removed, done.unchanged) == (20, 1, 5)
    assert index.refresh().touched == 0
    intact(index)


def test_progress_is_reported_and_a_build_can_be_stopped(root: Path, index: Index) -> None:
    for number in range(300):
        (root / f"many{number}.md").write_text(f"text {number}")
    told: list[tuple[int, int]] = []
    done = index.refresh(
        progress=lambda seen, total: told.append((seen, total)), cancelled=lambda: len(told) >= 2
    )
    assert done.cancelled and 100 <= done.added < 306
    assert all(seen <= total == 306 for seen, total in told)
    assert index.count() == done.added
    rest = index.refresh(progress=lambda seen, total: told.append((seen, total)))
    assert done.added + rest.added == 306 and told[-1] == (306, 306)


def test_excluded_notes_are_not_in_the_index(root: Path, tmp_path: Path) -> None:
    (root / "Private").mkdir()
    (root / "Private" / "x.md").write_text("hushhush")
    with Vault(root) as vault, Index(vault, tmp_path / "cache") as everything:
        everything.refresh()
        assert paths(everything, "hushhush") == ["Private/x.md"]
    with Vault(root, exclude=["private"]) as vault, Index(vault, tmp_path / "cache") as some:
        some.refresh()
        assert paths(some, "hushhush") == []
        assert b"hushhush" not in database(some).read_bytes()


def test_the_index_of_another_policy_is_removed_after_some_time(root: Path, tmp_path: Path) -> None:
    with Vault(root) as vault, Index(vault, tmp_path / "cache") as old:
        old.refresh()
        forgotten = old.location.folder
    for file in forgotten.iterdir():
        os.utime(file, (1, 1))
    with Vault(root, exclude=["x"]) as vault, Index(vault, tmp_path / "cache") as new:
        new.refresh()
    assert not forgotten.exists()


# --- the file -----------------------------------------------------------------------------------


def test_only_the_owner_can_read_the_index(index: Index) -> None:
    index.refresh()
    with index.reading():
        files = list(index.location.folder.iterdir())
        assert len(files) >= 3
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(index.location.folder.stat().st_mode) == 0o700


def test_the_index_is_in_the_cache_under_a_name_that_reveals_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    os.symlink(root, tmp_path / "alias")
    with Vault(root) as one, Vault(tmp_path / "alias") as two:
        assert Location(one).folder == Location(two).folder
        assert Location(one).folder.parent == tmp_path / "xdg" / "toolwire" / "vaults"
        assert "vault" not in Location(one).folder.name


def _garbage(path: Path) -> None:
    path.write_bytes(os.urandom(5000))


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _old_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET value = 'older' WHERE key = 'fingerprint'")


def _other_vault(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET value = '/other' WHERE key = 'root'")


def _foreign(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")


def _holes(path: Path) -> None:
    """Overwrites pages in the middle; the head of the file stays intact."""
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xa5" * (size - 4096 * 3))


def _textless(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM texts")
        connection.execute("UPDATE notes SET sha256 = x'00', size = 0")


DAMAGES = (_textless, _garbage, _empty, _truncated, _old_version, _other_vault, _foreign, _holes, Path.unlink)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_a_damaged_old_or_foreign_index_is_rebuilt(root: Path, tmp_path: Path, damage: object) -> None:
    with Vault(root) as vault, Index(vault, tmp_path / "cache") as index:
        index.refresh()
        path = database(index)
    assert callable(damage)
    damage(path)
    with Vault(root) as vault, Index(vault, tmp_path / "cache") as index:
        index.refresh()
        assert paths(index, "word3") == ["n3.md"] and index.count() == 6
        intact(index)


@pytest.mark.parametrize("damage", [_holes, _garbage], ids=["holes", "garbage"])
def test_a_search_that_finds_damage_rebuilds_the_index(root: Path, tmp_path: Path, damage: object) -> None:
    with Vault(root) as vault, Index(vault, tmp_path / "cache") as index:
        index.refresh()
        path = database(index)
    assert callable(damage)
    damage(path)
    with Vault(root) as vault, Index(vault, tmp_path / "cache") as index:
        search(index, "word3")
        index.refresh()
        assert paths(index, "word3") == ["n3.md"]


def test_a_reader_continues_when_the_index_is_replaced(root: Path, index: Index) -> None:
    index.refresh()
    assert paths(index, "word1") == ["n1.md"]
    with Vault(root) as vault, Index(vault, index.location.folder.parent) as other:
        _old_version(database(other))
        (root / "n9.md").write_text("word9")
        assert other.refresh().rebuilt
    assert paths(index, "word9") == ["n9.md"]


# --- where no index can be kept -----------------------------------------------------------------


def test_an_index_folder_that_cannot_be_created_is_reported_in_one_line_with_a_remedy(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    with Vault(root) as vault, pytest.raises(PathRefused) as refused:
        Index(vault, tmp_path / "file" / "cache")
    words = str(refused.value)
    assert (
        refused.value.kind == "index"
        and words.startswith(str(tmp_path / "file"))
        and "Not a directory" in words
        and "XDG_CACHE_HOME" in words
    )


@pytest.mark.parametrize(
    ("pages", "left"), [(4, ["lock"]), (60, None)], ids=["at the beginning", "while notes are added"]
)
def test_a_full_disk_is_reported_in_one_line_and_leaves_no_extra_files(
    root: Path, index: Index, monkeypatch: pytest.MonkeyPatch, pages: int, left: list[str] | None
) -> None:
    (root / "large.md").write_text(" ".join(f"word{number}" for number in range(100_000)))
    with monkeypatch.context() as full:
        full.setattr("toolwire.vault.index._SETTINGS", (*_SETTINGS, f"PRAGMA max_page_count = {pages}"))
        for _ in range(3):
            with pytest.raises(
                PathRefused, match=r"index cannot be stored here: database or disk is full .*XDG_CACHE_HOME"
            ) as refused:
                index.refresh()
            assert refused.value.path == str(index.location.folder)
        files = sorted(file.name for file in index.location.folder.iterdir())
        assert files == left if left else sum(name.endswith(".db") for name in files) == 1
    assert index.refresh().added == 7 and paths(index, "word99999") == ["large.md"]


def test_a_query_without_an_index_is_reported_in_one_line_too(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: Path) -> sqlite3.Connection:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    index.refresh()
    monkeypatch.setattr("toolwire.vault.index.connect", read_only)
    with pytest.raises(PathRefused, match="Read-only file system"):
        search(index, "word1")


def test_a_wrong_query_is_not_reported_as_a_full_disk(index: Index) -> None:
    index.refresh()
    with pytest.raises(sqlite3.OperationalError, match="no such column"):
        index.ask(lambda connection: connection.execute("SELECT absent FROM notes"))


def test_an_unreadable_folder_is_skipped_and_reported(
    root: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("closed", "gone", "torn"):
        (root / name).mkdir()
        (root / name / "x.md").write_text("word7")
    open_as_ever, scan_as_ever = os.open, os.scandir
    torn = (root / "torn").stat().st_ino

    def opening(path: str, *rest: int, **options: int) -> int:
        number = {"closed": errno.EACCES, "gone": errno.ENOENT}.get(str(path))
        if number is not None:
            raise OSError(number, os.strerror(number), path)
        return open_as_ever(path, *rest, **options)

    def scanning(folder: Any) -> Any:
        if os.stat(folder).st_ino == torn:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return scan_as_ever(folder)

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "scandir", scanning)
    done = index.refresh()
    assert (done.added, done.skipped) == (6, 2)
    assert done.reasons == (
        "closed/: the folder cannot be read: Permission denied",
        "torn/: the folder cannot be read: Input/output error",
    )


# --- several at a time --------------------------------------------------------------------------


def test_readers_see_whole_notes_while_another_writes(root: Path, index: Index) -> None:
    index.refresh()
    stop = threading.Event()
    odd: list[object] = []

    def read() -> None:
        with Vault(root) as vault, Index(vault, index.location.folder.parent) as own:
            while not stop.is_set():
                found = search(own, "common", 50)
                odd.extend(hit for hit in found.hits if hit.matches < 1 or "common" not in hit.preview)
                if len(found.hits) != 6:
                    odd.append(len(found.hits))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(25):
        for number in range(6):
            (root / f"n{number}.md").write_text(f"# Note {number}\n\ncommon turn{turn}\n" + "filler " * turn)
        index.refresh()
    stop.set()
    for thread in threads:
        thread.join()
    assert odd == []
    intact(index)


def test_one_process_writes_at_a_time_and_others_may_wait_or_not(root: Path, index: Index) -> None:
    with index.location.writing() as held:
        assert held
        with Vault(root) as vault, Index(vault, index.location.folder.parent) as other:
            assert other.refresh(wait=False).busy
            waiting = other.refresh(cancelled=lambda: True)
            assert waiting.busy and waiting.cancelled
    assert index.refresh().added == 6


@pytest.mark.process
def test_two_processes_build_at_the_same_time(root: Path, tmp_path: Path) -> None:
    for number in range(200):
        (root / f"many{number}.md").write_text(f"text {number}")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD, str(root), str(tmp_path / "cache")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    added = [int(child.communicate()[0].split()[-1]) for child in children]
    assert sum(added) == 206 and [child.returncode for child in children] == [0, 0, 0]
    with Vault(root) as vault, Index(vault, tmp_path / "cache") as index:
        assert index.refresh().added == 0
        intact(index)


BUILD = """
import sys
from pathlib import Path
from toolwire.vault import refresh
from toolwire.vault.index import Index
from toolwire.vault.paths import Vault
refresh.BATCH = 40
print("begins", flush=True)
with Vault(sys.argv[1]) as vault, Index(vault, Path(sys.argv[2])) as index:
    print(index.refresh().added, flush=True)
"""


def kill_while_building(root: Path, cache: Path, rounds: int, seed: int) -> int:
    """Kills builders at random moments and completes the build after each; returns how many were interrupted.

    If none was, for example on a busy machine, more are killed as soon as they begin."""
    rng = random.Random(seed)
    middle = 0
    for turn in range(5 * rounds):
        if turn >= rounds and middle:
            break
        for number in range(150):
            (root / f"k{number}.md").write_text(
                f"# turn {turn}\n\nkilled{number} turn{turn} " + "filler " * rng.randrange(200)
            )
        child = subprocess.Popen([sys.executable, "-c", BUILD, str(root), str(cache)], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == b"begins\n"
        if turn < rounds:
            time.sleep(rng.uniform(0, 0.15))  # the random moment
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        middle += child.returncode == -signal.SIGKILL
        with Vault(root) as vault, Index(vault, cache) as index:
            index.refresh()
            found = search(index, f'turn{turn} "killed7"', 50)
            assert [hit.path for hit in found.hits] == ["k7.md"]
            assert turn == 0 or search(index, f'"turn{turn - 1}"').hits == ()
    return middle


@pytest.mark.process
def test_an_index_is_completed_after_its_builder_was_killed(root: Path, tmp_path: Path) -> None:
    middle = kill_while_building(root, tmp_path / "cache", KILL_ROUNDS, 3)
    print(
        f"outcomes: {KILL_ROUNDS} builders killed, {middle} of them before they were done; each index was "
        "completed afterwards"
    )
    assert middle > 0
    with Vault(root) as vault, Index(vault, tmp_path / "cache") as index:
        intact(index)


# --- watching -----------------------------------------------------------------------------------


async def test_watching_updates_the_index_and_reports_changes(root: Path, index: Index) -> None:
    changes: asyncio.Queue[int] = asyncio.Queue()
    task = asyncio.create_task(watch(index, lambda done: changes.put_nowait(done.touched), interval_s=0.01))
    assert await asyncio.wait_for(changes.get(), 30) == 6
    (root / "seen.md").write_text("watched")
    assert await asyncio.wait_for(changes.get(), 30) == 1
    assert paths(index, "watched") == ["seen.md"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert index.refresh().touched == 0


async def test_watching_ends_in_the_middle_of_a_build(root: Path, index: Index) -> None:
    for number in range(400):
        (root / f"many{number}.md").write_text("text " * 50)
    task = asyncio.create_task(watch(index))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    index.refresh()
    intact(index)


def test_a_vault_that_becomes_unreadable_does_not_empty_the_index(root: Path, tmp_path: Path) -> None:
    vault = Vault(root)
    with Index(vault, tmp_path / "cache") as index:
        index.refresh()
        vault.close()
        with pytest.raises(PathRefused, match="cannot be read"):
            index.refresh()
        assert index.count() == 6


def test_a_large_file_is_skipped_and_reported(root: Path, tmp_path: Path) -> None:
    (root / "big.md").write_text("x" * 5000)
    with Vault(root, limits=VaultLimits(file_bytes=1000)) as vault, Index(vault, tmp_path / "cache") as index:
        done = index.refresh()
        assert done.skipped == 1 and "too large" in done.reasons[0] and done.added == 6

"""Opening a store: an error says what the operator can fix."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sqlite3
import sys
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from toolwire.core.errors import ToolwireError
from toolwire.store.engine import disk_error
from toolwire.store.sqlite import not_writable
from toolwire.store.store import Store


@pytest.fixture
def no_side_files(tmp_path: Path) -> Path:
    """A store whose folder does not allow SQLite to write, as on a full disk."""
    path = tmp_path / "toolwire.db"
    (tmp_path / "toolwire.db-wal").mkdir()
    return path


async def test_a_full_disk_is_named_with_the_file(
    no_side_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=0))
    with pytest.raises(ToolwireError, match=rf"^store {no_side_files}: cannot be opened: the disk is full$"):
        async with Store(f"sqlite:///{no_side_files}"):
            pass


FULL = """
import resource, shutil, sys
from types import SimpleNamespace
from toolwire.cli.main import main

resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
shutil.disk_usage = lambda folder: SimpleNamespace(free=0)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", [("keys", "add", "laptop"), ("serve", "--port", "0")])
async def test_a_full_disk_is_one_line_if_the_side_files_exist_already(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    path = tmp_path / "toolwire.db"
    environment = {**os.environ, "TOOLWIRE_STORE__URL": f"sqlite:///{path}", "HOME": str(tmp_path)}
    async with Store(f"sqlite:///{path}") as store:  # keeps the side files
        assert await store.get("resp_1", "") is None and (tmp_path / "toolwire.db-wal").exists()
        started = asyncio.create_subprocess_exec(
            sys.executable, "-c", FULL, *command, stderr=PIPE, stdout=DEVNULL, cwd=tmp_path, env=environment
        )
        _, errors = await (await started).communicate()
    assert errors.decode() == f"toolwire: store {path}: cannot be opened: the disk is full\n"


async def test_a_store_that_another_process_writes_to_still_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolwire.store.sqlite.LOCKED_S", 0.05)
    path = tmp_path / "toolwire.db"
    async with Store(f"sqlite:///{path}"):
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            async with Store(f"sqlite:///{path}") as store:
                assert await store.get("resp_1", "") is None


async def test_a_folder_that_cannot_be_written_is_named(
    no_side_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != no_side_files.parent)
    with pytest.raises(
        ToolwireError, match=rf"cannot be opened: the folder {no_side_files.parent} cannot be written$"
    ):
        async with Store(f"sqlite:///{no_side_files}"):
            pass


async def test_an_error_that_is_not_the_disks_is_reported_unchanged(no_side_files: Path) -> None:
    with pytest.raises(
        ToolwireError, match=r"cannot be opened: (disk I/O error|unable to open database file)$"
    ):
        async with Store(f"sqlite:///{no_side_files}"):
            pass


async def test_a_store_that_opens_is_open_until_the_end(tmp_path: Path) -> None:
    async with Store(f"sqlite:///{tmp_path}/toolwire.db") as store:
        assert await store.get("resp_1", "") is None
    with pytest.raises(ToolwireError, match="closed"):
        await store.get("resp_1", "")


def test_disk_errors_are_readable() -> None:
    assert (
        disk_error(OSError(errno.ENOSPC, "No space left on device"))
        == disk_error(OSError(errno.EDQUOT, "x"))
        == "the disk is full"
    )
    assert disk_error(OSError(errno.EROFS, "x")) == "the disk is read-only"
    assert (
        disk_error(OSError(errno.EIO, "Input/output error")) == "Input/output error"
        and disk_error(OSError("so")) == "so"
    )


def test_for_a_missing_folder_the_nearest_existing_one_is_checked(tmp_path: Path) -> None:
    assert not_writable(tmp_path / "a" / "b" / "c.db", 1) == ""
    (tmp_path / "file").touch()
    assert not_writable(tmp_path / "file" / "c.db", 1) == f"{tmp_path}/file is not a folder"
    assert not_writable(tmp_path / "c.db", 1 << 62) == "the disk is full"


WRITES = """
import sqlite3, sys
try:
    sqlite3.connect(sys.argv[1], timeout=0).execute("BEGIN IMMEDIATE")
    print("begun")
except sqlite3.OperationalError as error:
    print(error)
"""


async def test_opening_a_store_twice_in_one_process_keeps_the_locks_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing any handle of a file releases all locks of the process on it: two could then write."""
    monkeypatch.setattr("toolwire.store.sqlite.LOCKED_S", 0.05)
    path = tmp_path / "toolwire.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as first:
        first.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ToolwireError, match="locked"):
            async with Store(f"sqlite:///{path}"):
                pass
        started = asyncio.create_subprocess_exec(sys.executable, "-c", WRITES, str(path), stdout=PIPE)
        said, _ = await (await started).communicate()
    assert said == b"database is locked\n"


OPENS = """
import asyncio, sys
from toolwire.store.store import Store

async def main():
    stores = [Store(f"sqlite:///{sys.argv[1]}") for _ in range(3)]
    sys.stdin.readline()
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(store.close() for store in stores))

asyncio.run(main())
"""


async def test_processes_that_open_the_same_new_store_at_once_all_succeed(tmp_path: Path) -> None:
    command = (sys.executable, "-c", OPENS)
    for round in range(4):
        started = (
            asyncio.create_subprocess_exec(*command, str(tmp_path / f"{round}.db"), stdin=PIPE, stderr=PIPE)
            for _ in range(3)
        )
        processes = await asyncio.gather(*started)
        ended = await asyncio.gather(*(process.communicate(b"\n") for process in processes))
        assert [errors for _, errors in ended] == [b""] * 3

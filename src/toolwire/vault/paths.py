"""Opens the files of a vault so that no path leads out of the vault. POSIX only.

The vault is opened once, as the descriptor of its folder. A path is followed from there, one name at a time.

- Each folder is opened relative to the one before it (`openat`) with O_NOFOLLOW, so no step leaves the vault,
  even if an entry is replaced meanwhile.
- An entry must be a regular file. This is checked before it is opened, because opening a device can have side
  effects, and again afterwards.
- Opening never waits, for example for the other end of a pipe (O_NONBLOCK).
- If a folder has no entry with exactly the given name, names are compared after Unicode normalization (NFC),
  because macOS stores decomposed names (NFD), but models write composed names. Exactly one entry must then be
  equal. Results contain the names as on disk.
- Only the vault's descriptor stays open after a call.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from toolwire.core.display import counted
from toolwire.vault.policy import READABLE, PathPolicy, PathRefused, VaultLimits, extension, name_refused
from toolwire.vault.words import composed

_COMMON = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
OPEN_FILE = _COMMON | getattr(os, "O_NOCTTY", 0)
OPEN_FOLDER = _COMMON | os.O_DIRECTORY
KINDS = (
    (stat.S_ISLNK, "a symbolic link; links are not followed", "link"),
    (stat.S_ISDIR, "a folder, not a file", "type"),
    (stat.S_ISFIFO, "a pipe, not a file", "type"),
    (stat.S_ISSOCK, "a socket, not a file", "type"),
    (stat.S_ISCHR, "a device, not a file", "type"),
    (stat.S_ISBLK, "a device, not a file", "type"),
)
GONE = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR, errno.ELOOP)
"""The errors that occur if an entry is opened that was removed or replaced after its name was read."""
Skip = Callable[[PathRefused], None]


class Entry(NamedTuple):
    """A file that a scan found. `path` is spelled as on disk."""

    path: str
    size: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class Raw:
    """The bytes of a file, and the status that the file had after it was read.

    `settled`: the file did not change while it was read.
    """

    path: str
    data: bytes
    stat: os.stat_result
    settled: bool


@dataclass(frozen=True, slots=True)
class NoteText:
    """The text of a file, or some of its lines.

    `text` has `\\n` between lines and no byte order mark. `size` and `sha256`: the size and the hash of the
    whole file. Lines count from 1. `truncated`: the end of the requested text was left out.
    """

    path: str
    text: str
    size: int
    sha256: str
    start_line: int
    end_line: int
    total_lines: int
    truncated: bool = False


def decoded(path: str, data: bytes) -> str:
    """Returns the text of a file without a byte order mark. Line ends stay as they are.

    Raises `PathRefused` if the file is binary or not UTF-8.
    """
    if b"\0" in data:
        raise PathRefused(path, "a binary file, not text", "binary")
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise PathRefused(path, f"not valid UTF-8 (byte {error.start})", "encoding") from None


def unix(text: str) -> str:
    """Returns the text with `\\n` as the only line end."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def readable_size(size: int) -> str:
    if size < 1024:
        return f"{size:,} bytes"
    power = 3 if size >= 1024**3 else 2 if size >= 1024**2 else 1
    return f"{size / 1024**power:,.1f} {('KB', 'MB', 'GB')[power - 1]}"


def too_large(size: int, most: int) -> str:
    """Returns why a file of this size is refused."""
    return f"too large: {readable_size(size)}, the limit is {readable_size(most)}"


class Vault:
    """A folder of notes. Close it, or use it in a `with` statement. Safe for several threads."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        include: Iterable[str] = (),
        exclude: Iterable[str] = (),
        limits: VaultLimits | None = None,
    ) -> None:
        self.root = Path(os.path.realpath(os.path.expanduser(root)))
        self.policy = PathPolicy(include, exclude, limits)
        self.limits = self.policy.limits
        try:
            self._fd = os.open(self.root, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        except OSError as error:
            kind = "missing" if error.errno == errno.ENOENT else "unreadable"
            raise PathRefused(str(root), f"the folder cannot be opened: {error.strerror}", kind) from None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Vault:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- opening ---

    def open_folder(self, names: Sequence[str], path: str) -> tuple[int, list[str]]:
        """Returns a descriptor of the folder, which the caller closes, and the names in its path as on disk.

        `names`: the folder's path, one name per level. `path`: the path that error messages show.
        """
        try:
            fd = os.open(".", OPEN_FOLDER, dir_fd=self._fd)
        except OSError as error:  # the vault was closed, or its disk was removed
            raise PathRefused(path, f"the vault cannot be read: {error.strerror}", "unreadable") from None
        spelled: list[str] = []
        try:
            for name in names:
                name, status = self._entry(fd, name, path)
                if stat.S_ISLNK(status.st_mode):
                    raise PathRefused(path, *KINDS[0][1:])
                inner = _opened(fd, name, path, OPEN_FOLDER)
                os.close(fd)
                fd = inner
                spelled.append(name)
        except BaseException:
            os.close(fd)
            raise
        return fd, spelled

    def _entry(self, folder: int, name: str, path: str) -> tuple[str, os.stat_result]:
        """Returns the name of an entry as on disk, and its status."""
        try:
            try:
                return name, os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                name = self._respelled(folder, name, path)
                return name, os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            raise _refusal(error, path) from None

    def _respelled(self, folder: int, name: str, path: str) -> str:
        """Returns the only entry that equals the name after normalization, or the name itself if none does.

        Raises `PathRefused` if several entries equal the name.
        """
        if name.isascii():
            return name
        wanted = composed(name)
        with os.scandir(folder) as entries:
            found = [entry.name for entry in entries if composed(entry.name) == wanted]
        if len(found) > 1:
            reason = "several files have this name and differ only in how accents are spelled"
            raise PathRefused(path, reason, "missing")
        return found[0] if found and name_refused(found[0], self.limits) is None else name

    @contextmanager
    def _located(self, path: str) -> Iterator[tuple[int, str, os.stat_result]]:
        """Yields the descriptor of a file's folder, the file's path as on disk, and its status."""
        names = self.policy.segments(path)
        folder, spelled = self.open_folder(names[:-1], path)
        try:
            name, status = self._entry(folder, names[-1], path)
            yield folder, "/".join([*spelled, name]), status
        finally:
            os.close(folder)

    # --- reading ---

    def size(self, path: str) -> int | None:
        """Returns the size of a file; None if the vault does not serve it.

        Opens the file's folder, but not the file.
        """
        with suppress(PathRefused), self._located(path) as (_, _, status):
            return status.st_size if stat.S_ISREG(status.st_mode) else None
        return None

    def read_raw(self, path: str) -> Raw:
        """Returns the bytes of a file. Raises `PathRefused`, also for a file over the size limit."""
        with self._located(path) as (folder, spelled, status):
            return self._read(folder, spelled, status)

    def read_found(self, entry: Entry, folder: int) -> Raw:
        """Returns the bytes of a file that `scan` has just found.

        `folder`: the descriptor that `scan` yielded with the entry.
        """
        _, status = self._entry(folder, entry.path.rpartition("/")[2], entry.path)
        return self._read(folder, entry.path, status)

    def _read(self, folder: int, path: str, status: os.stat_result) -> Raw:
        _check_regular(status, path)
        fd = _opened(folder, path.rpartition("/")[2], path, OPEN_FILE)
        most = self.limits.file_bytes
        data = b""
        try:
            before = os.fstat(fd)
            _check_regular(before, path)
            if before.st_size <= most:
                with open(fd, "rb", closefd=False) as file:
                    data = file.read(before.st_size + 1)
                    if len(data) > before.st_size:  # the file is growing
                        data += file.read(most + 1 - len(data))
            after = os.fstat(fd)
        except OSError as error:
            raise PathRefused(path, f"cannot be read: {error.strerror}", "unreadable") from None
        finally:
            os.close(fd)
        size = max(before.st_size, len(data))
        if size > most:
            raise PathRefused(path, too_large(size, most), "size")
        unchanged = (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
        return Raw(path, data, after, settled=unchanged and len(data) == after.st_size)

    def read(
        self,
        path: str,
        start_line: int | None = None,
        end_line: int | None = None,
        max_bytes: int | None = None,
    ) -> NoteText:
        """Returns the text of a file, or its lines from `start_line` to `end_line`.

        A text of more than `max_bytes` is cut after the last line that fits. If not even the first line
        fits, the text is cut within this line.
        """
        first = 1 if start_line is None else start_line
        if first < 1 or (end_line is not None and end_line < first):
            reason = "lines are counted from 1, and the last must not come before the first"
            raise PathRefused(path, reason, "limit")
        raw = self.read_raw(path)
        text = unix(decoded(path, raw.data))
        total = text.count("\n") + (not text.endswith("\n") and text != "")
        last = total if end_line is None else min(end_line, total)
        if first > max(1, total):
            raise PathRefused(path, f"the file has {counted(total, 'line')}", "limit")
        if (first, last) != (1, total):
            text = "".join(line + "\n" for line in text.split("\n")[first - 1 : last])
        truncated = max_bytes is not None and len(text.encode()) > max_bytes
        if truncated:
            kept = text.encode()[:max_bytes].decode("utf-8", "ignore")
            text = kept[: kept.rfind("\n") + 1] or kept
            last = first + max(0, text.count("\n") - text.endswith("\n"))
        digest = hashlib.sha256(raw.data).hexdigest()
        return NoteText(raw.path, text, len(raw.data), digest, first, last, total, truncated)

    # --- walking ---

    def folders(self) -> Iterator[tuple[str, int]]:
        """Yields every folder with its descriptor, parents first.

        A descriptor is valid only until the walk continues.
        """
        for path, fd in self._walk():
            if not path or path.endswith("/"):
                yield path.rstrip("/"), fd

    def scan(
        self, extensions: tuple[str, ...] = READABLE, skip: Skip | None = None
    ) -> Iterator[tuple[Entry, int]]:
        """Yields every file that the vault serves, in path order, with its folder's descriptor.

        A descriptor is valid only until the walk continues. `skip` is called for each folder that cannot be
        read. If the vault itself cannot be read, raises `PathRefused`.
        """
        for path, fd in self._walk(skip):
            name = path.rpartition("/")[2]
            if extension(name) not in extensions or not self.policy.covers(path):
                continue
            try:
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode):
                yield Entry(path, found.st_size, found.st_mtime_ns, found.st_ino), fd

    def _walk(self, skip: Skip | None = None) -> Iterator[tuple[str, int]]:
        fd, _ = self.open_folder((), "")
        yield from self._inside("", fd, skip or (lambda refused: None))

    def _inside(self, prefix: str, fd: int, skip: Skip) -> Iterator[tuple[str, int]]:
        """Yields the paths of a folder and of everything in it, each with a descriptor.

        The path of a folder ends with a slash and comes with the folder's own descriptor. The path of a file
        comes with the descriptor of the folder that contains the file.
        """
        try:
            yield prefix, fd
            for name in self._names(fd, prefix, skip):
                if not name.endswith("/"):
                    yield prefix + name, fd
                elif prefix.count("/") + 1 < self.limits.depth:
                    try:
                        inner = os.open(name[:-1], OPEN_FOLDER, dir_fd=fd)
                    except OSError as error:
                        if error.errno not in GONE:
                            skip(_unreadable(prefix + name, error))
                        continue
                    yield from self._inside(prefix + name, inner, skip)
        finally:
            os.close(fd)

    def _names(self, fd: int, prefix: str, skip: Skip) -> list[str]:
        """Returns the sorted names in a folder.

        The names of folders end with a slash, so that a walk through the vault is in path order.
        """
        room = self.limits.path_bytes - len(prefix.encode())
        found = []
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    name, is_folder = entry.name, entry.is_dir(follow_symlinks=False)
                    if name_refused(name, self.limits) is not None or len(name.encode()) > room:
                        continue
                    if not is_folder:
                        found.append(name)
                    elif self.policy.open_to(prefix + name):
                        found.append(name + "/")
        except OSError as error:
            if not prefix:
                raise PathRefused("", f"the vault cannot be read: {error.strerror}", "unreadable") from None
            skip(_unreadable(prefix, error))
            return []
        return sorted(found)


def _opened(folder: int, name: str, path: str, flags: int) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        raise _refusal(error, path) from None


def _refusal(error: OSError, path: str) -> PathRefused:
    """Returns the refusal that explains why an entry could not be opened."""
    if error.errno in GONE:
        return PathRefused(path, "not found", "missing")
    return PathRefused(path, f"cannot be opened: {error.strerror}", "unreadable")


def _unreadable(folder: str, error: OSError) -> PathRefused:
    return PathRefused(folder, f"the folder cannot be read: {error.strerror}", "unreadable")


def _check_regular(status: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        found = (of_kind[1:] for of_kind in KINDS if of_kind[0](status.st_mode))
        raise PathRefused(path, *next(found, ("not a regular file", "type")))

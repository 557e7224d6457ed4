"""Confinement: no path leads out of the vault. POSIX only.

The vault is opened once, as the descriptor of its folder. Every file is opened from there, name by name,
without following links.

- Each folder is opened relative to the one before it (`openat`) with O_NOFOLLOW, so no step leaves the vault,
  even if something is swapped meanwhile.
- A file must be a regular file after it was opened, not only when the folder was listed. Its size is known
  before it is read.
- Opening never waits (O_NONBLOCK): a FIFO is refused, not read. A device is refused before it is opened.
- A path names the entry with the same spelling, else the only entry that is equal after Unicode normalization
  (NFC). macOS keeps decomposed names (NFD) and models write composed ones; both find the note. Results have
  the folder's spelling. If two entries differ only in normalization, each is found by its exact spelling
  alone.
- Only the vault's descriptor stays open after a call.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from toolwire.vault.policy import (
    READABLE,
    PathPolicy,
    PathRefused,
    VaultLimits,
    extension,
    name_refused,
    same,
)

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
"""The errors of opening a folder that was removed or replaced after its name was read."""


class Entry(NamedTuple):
    """A file that a walk found, in the folder's spelling."""

    path: str
    size: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class Raw:
    """The bytes of a file and its status after reading. `settled`: it did not change while it was read."""

    path: str
    data: bytes
    stat: os.stat_result
    settled: bool


@dataclass(frozen=True, slots=True)
class NoteText:
    """The text of a file, or some of its lines.

    `text` has `\\n` between lines and no byte order mark. `size` and `sha256` are those of the whole file's
    bytes. Lines count from 1. `truncated`: requested lines after `end_line` were left out.
    """

    path: str
    text: str
    size: int
    sha256: str
    mtime_ns: int
    start_line: int
    end_line: int
    total_lines: int
    truncated: bool = False


def decoded(path: str, data: bytes) -> str:
    """The text of a file with its own line ends and no byte order mark; raises `PathRefused` for binary."""
    if b"\0" in data:
        raise PathRefused(path, "a binary file, not text", "binary")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PathRefused(path, f"not valid UTF-8 (byte {error.start})", "encoding") from None
    return text.removeprefix("\ufeff")


def unix(text: str) -> str:
    """The text with `\\n` as the only line end."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def size_shown(size: int) -> str:
    value, unit = float(size), "bytes"
    for unit in ("bytes", "KB", "MB", "GB"):
        if value < 1024 or unit == "GB":
            break
        value /= 1024
    return f"{value:,.0f} {unit}" if unit == "bytes" else f"{value:,.1f} {unit}"


def too_large(size: int, most: int) -> str:
    """The reason to refuse a file of this size."""
    return f"too large: {size_shown(size)}, the limit is {size_shown(most)}"


class Vault:
    """A folder of notes. Close it, or use it in a `with` statement. Safe for several threads."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        include: Iterable[str] = (),
        exclude: Iterable[str] = (),
        limits: VaultLimits | None = None,
    ) -> None:
        if os.open not in os.supports_dir_fd or os.scandir not in os.supports_fd:
            raise OSError("a vault needs a system that opens files relative to a folder (POSIX)")
        self.root = Path(os.path.realpath(os.path.expanduser(root)))
        self.policy = PathPolicy(include, exclude, limits)
        self.limits = self.policy.limits
        try:
            self._fd = os.open(self.root, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        except OSError as error:
            kind = "missing" if error.errno == errno.ENOENT else "unreadable"
            raise PathRefused(str(root), f"the vault cannot be opened: {error.strerror}", kind) from None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Vault:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- opening ---------------------------------------------------------------------------------

    def open_folder(self, names: Sequence[str], path: str) -> tuple[int, list[str]]:
        """A descriptor of the folder, which the caller closes, and its names in the disk's spelling."""
        try:
            fd = os.open(".", OPEN_FOLDER, dir_fd=self._fd)
        except OSError as error:  # the vault was closed, or its disk was removed
            raise PathRefused(path, f"the vault cannot be read: {error.strerror}", "unreadable") from None
        spelled: list[str] = []
        try:
            for name in names:
                real = name
                try:
                    following = os.open(name, OPEN_FOLDER, dir_fd=fd)
                except OSError as error:
                    found = self._respelled(fd, name, path) if error.errno == errno.ENOENT else None
                    if found is None:
                        _refuse(error, fd, name, path, folder=True)
                    real = found
                    try:
                        following = os.open(real, OPEN_FOLDER, dir_fd=fd)
                    except OSError as again:
                        _refuse(again, fd, real, path, folder=True)
                os.close(fd)
                fd = following
                spelled.append(real)
        except BaseException:
            os.close(fd)
            raise
        return fd, spelled

    def open_file(self, path: str) -> tuple[int, str, os.stat_result]:
        """A descriptor of the file, which the caller closes, its path in the disk's spelling, and its status."""
        names = self.policy.segments(path)
        folder, spelled = self.open_folder(names[:-1], path)
        try:
            fd, real = self._open_in(folder, names[-1], path)
        finally:
            os.close(folder)
        try:
            found = os.fstat(fd)
            _regular(found, path)
        except BaseException:
            os.close(fd)
            raise
        return fd, "/".join([*spelled, real]), found

    def _open_in(self, folder: int, name: str, path: str) -> tuple[int, str]:
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            respelled = self._respelled(folder, name, path) if error.errno == errno.ENOENT else None
            if respelled is None:
                _refuse(error, folder, name, path)
            name = respelled
            try:
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError as again:
                _refuse(again, folder, name, path)
        _regular(found, path)  # before it is opened: opening a device can have an effect
        try:
            return os.open(name, OPEN_FILE, dir_fd=folder), name
        except OSError as error:
            _refuse(error, folder, name, path)

    def _respelled(self, folder: int, name: str, path: str) -> str | None:
        """The only entry that is equal to the name after normalization."""
        wanted = same(name)
        if name.isascii():
            return None
        try:
            with os.scandir(folder) as entries:
                found = [
                    entry.name for entry in entries if not entry.name.isascii() and same(entry.name) == wanted
                ]
        except OSError:
            return None
        if len(found) > 1:
            raise PathRefused(
                path, "several files have this name and differ only in how accents are spelled", "missing"
            )
        return found[0] if found and name_refused(found[0], self.limits) is None else None

    # --- reading ---------------------------------------------------------------------------------

    def read_raw(self, path: str) -> Raw:
        """The bytes of a file; raises `PathRefused`, also for a file over the limit."""
        fd, real, found = self.open_file(path)
        return self._all_of(fd, found, real)

    def read_found(self, entry: Entry, folder: int) -> Raw:
        """The bytes of a file that `scan` has just found, in the folder that it yielded."""
        fd, _ = self._open_in(folder, entry.path.rpartition("/")[2], entry.path)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            _regular(found, entry.path)
        return self._all_of(fd, found, entry.path)

    def _all_of(self, fd: int, found: os.stat_result, path: str) -> Raw:
        """Reads the whole file and closes the descriptor."""
        try:
            most = self.limits.file_bytes
            if found.st_size > most:
                raise PathRefused(path, too_large(found.st_size, most), "size")
            data = os.read(fd, found.st_size + 1)
            parts = [data] if data else []
            total = len(data)
            while len(data) and (
                total != found.st_size or len(parts) > 1
            ):  # a short read, or a file that grows
                data = os.read(fd, most + 1 - total)
                parts.append(data)
                total += len(data)
                if total > most:
                    raise PathRefused(path, f"too large: more than the limit of {size_shown(most)}", "size")
            after = os.fstat(fd)
        except OSError as error:
            raise PathRefused(path, f"cannot be read: {error.strerror}", "unreadable") from None
        finally:
            os.close(fd)
        settled = (
            (after.st_mtime_ns, after.st_size)
            == (found.st_mtime_ns, found.st_size)
            == (found.st_mtime_ns, total)
        )
        return Raw(path, parts[0] if len(parts) == 1 else b"".join(parts), after, settled)

    def read(
        self,
        path: str,
        start_line: int | None = None,
        end_line: int | None = None,
        max_bytes: int | None = None,
    ) -> NoteText:
        """The text of a file, or its lines from `start_line` to `end_line`.

        `max_bytes` cuts after a whole line.
        """
        if (start_line is not None and start_line < 1) or (
            end_line is not None and end_line < (start_line or 1)
        ):
            raise PathRefused(
                path, "lines are counted from 1, and the last must not come before the first", "limit"
            )
        raw = self.read_raw(path)
        text = unix(decoded(path, raw.data))
        total = text.count("\n") + (not text.endswith("\n") and text != "")
        first, last, truncated = start_line or 1, total if end_line is None else min(end_line, total), False
        if first > max(1, total):
            raise PathRefused(path, f"the file has {total} lines", "limit")
        if (first, last) != (1, total):
            text = "".join(line + "\n" for line in text.split("\n")[first - 1 : last])
        if max_bytes is not None and len(text.encode()) > max_bytes:
            kept = text.encode()[:max_bytes].decode("utf-8", "ignore")
            text, truncated = kept[: kept.rfind("\n") + 1] or kept, True
            last = first + max(0, text.count("\n") - text.endswith("\n"))
        found = raw.stat
        digest = hashlib.sha256(raw.data).hexdigest()
        return NoteText(
            raw.path, text, len(raw.data), digest, found.st_mtime_ns, first, last, total, truncated
        )

    # --- walking ---------------------------------------------------------------------------------

    def folders(self, under: str = "") -> Iterator[tuple[str, int]]:
        """Every folder with its descriptor, which is closed when the walk continues.

        Parents come before children.
        """
        stack = [under]
        self.policy.segments(under, folder=True)
        while stack:
            path = stack.pop()
            try:
                fd, _ = self.open_folder(path.split("/") if path else (), path)
            except PathRefused:
                if not path:
                    raise
                continue
            try:
                yield path, fd
                stack += [
                    f"{path}/{name}" if path else name
                    for name, is_folder in self._names(fd, path)
                    if is_folder
                ]
            finally:
                os.close(fd)

    def walk(self, under: str = "", extensions: tuple[str, ...] = READABLE) -> Iterator[Entry]:
        """Every file that the vault serves, ordered by path.

        Skips unreadable folders; an unreadable vault raises.
        """
        for entry, _ in self.scan(under, extensions):
            yield entry

    def scan(
        self,
        under: str = "",
        extensions: tuple[str, ...] = READABLE,
        left_out: Callable[[PathRefused], None] | None = None,
    ) -> Iterator[tuple[Entry, int]]:
        """The same, with the descriptor of the file's folder, which is valid until the walk continues.

        `left_out` is called for each folder that cannot be read.
        """
        self.policy.segments(under, folder=True)
        prefix = f"{under}/" if under else ""
        try:
            fd, _ = self.open_folder(under.split("/") if under else (), under)
        except PathRefused:
            if not under:
                raise
            return
        stack = [(prefix, fd, self._sorted(fd, prefix, left_out))]
        try:
            while stack:
                prefix, fd, names = stack[-1]
                for name, is_folder in names:
                    path = prefix + name
                    if is_folder:
                        if len(stack) >= self.limits.depth:
                            continue
                        try:
                            inner = os.open(name, OPEN_FOLDER, dir_fd=fd)
                        except OSError as error:
                            if left_out is not None and error.errno not in GONE:
                                left_out(
                                    PathRefused(
                                        path + "/",
                                        f"the folder cannot be read: {error.strerror}",
                                        "unreadable",
                                    )
                                )
                            continue
                        stack.append((path + "/", inner, self._sorted(inner, path + "/", left_out)))
                        break
                    if (name.endswith(extensions) or extension(name) in extensions) and self.policy.covers(
                        path
                    ):
                        try:
                            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                        except OSError:
                            continue
                        if stat.S_ISREG(found.st_mode):
                            yield Entry(path, found.st_size, found.st_mtime_ns, found.st_ino), fd
                else:
                    os.close(fd)
                    stack.pop()
        finally:
            for _, fd, _ in stack:
                os.close(fd)

    def _sorted(
        self, fd: int, prefix: str, left_out: Callable[[PathRefused], None] | None
    ) -> Iterator[tuple[str, bool]]:
        """The entries of a folder in an order that makes the walk yield sorted paths."""
        names = self._names(fd, prefix.rstrip("/"), left_out)
        return iter(sorted(names, key=lambda found: found[0] + "/" if found[1] else found[0]))

    def _names(
        self, fd: int, folder: str, left_out: Callable[[PathRefused], None] | None = None
    ) -> list[tuple[str, bool]]:
        prefix = f"{folder}/" if folder else ""
        room = self.limits.path_bytes - len(prefix.encode("utf-8", "surrogateescape"))
        found = []
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    name = entry.name
                    is_folder = entry.is_dir(follow_symlinks=False)
                    if name_refused(name, self.limits) is None and (
                        len(name) * 4 < room or len(name.encode()) <= room
                    ):
                        if not is_folder or self.policy.open_to(prefix + name):
                            found.append((name, is_folder))
        except OSError as error:
            if not folder:
                raise PathRefused("", f"the vault cannot be read: {error.strerror}", "unreadable") from None
            if left_out is not None:
                left_out(PathRefused(prefix, f"the folder cannot be read: {error.strerror}", "unreadable"))
            return []
        return found


def _regular(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        reason, kind = next(
            ((reason, kind) for is_kind, reason, kind in KINDS if is_kind(found.st_mode)),
            ("not a regular file", "type"),
        )
        raise PathRefused(path, reason, kind)


def _refuse(error: OSError, at: int, name: str, path: str, folder: bool = False) -> NoReturn:
    """Raises the refusal that explains why an entry could not be opened."""
    if error.errno in (errno.ENOENT, errno.ESTALE):
        raise PathRefused(path, "not found", "missing") from None
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EMLINK):
        try:
            mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
        except OSError:
            raise PathRefused(path, "not found", "missing") from None
        if stat.S_ISLNK(mode):
            raise PathRefused(path, "a symbolic link; links are not followed", "link") from None
        if folder:
            raise PathRefused(path, "not found", "missing") from None
    raise PathRefused(path, f"cannot be opened: {error.strerror}", "unreadable") from None

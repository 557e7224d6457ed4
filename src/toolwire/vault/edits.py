"""Changes notes in two steps: a plan, which changes nothing and can be shown, and its application.

- A plan has the hash of the note that it was made from. It is refused if the note has changed since, so that
  no change of someone else is lost.
- A note is replaced as a whole: a new file is written beside it, synced, and renamed. If the process is
  killed, either the old or the new note exists, never half of one. Creating a note never replaces another.
- Line ends, byte order mark and mode stay as they were. An edit changes no other byte of the note.
- Temporary files begin with a dot (`TEMPORARY`), so no vault shows them, and are locked while they are
  written. `Edits` removes those of a killed process when it is created.
"""

from __future__ import annotations

import difflib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from toolwire.vault.paths import OPEN_FOLDER, Raw, Vault, decoded, too_large, unix
from toolwire.vault.policy import SEARCHED, PathRefused, key, shown

TEMPORARY = re.compile(r"\.toolwire-[0-9a-f]{16}\.tmp")
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces `old`, which must occur in the note exactly once, by `new`. Both have `\\n` as line end."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Change:
    """A planned write.

    `content`: the exact bytes of the file after it. `diff`: a unified diff of the texts.
    """

    path: str
    creates: bool
    before_sha256: str | None
    after_sha256: str
    after_text: str = field(repr=False)
    content: bytes = field(repr=False)
    diff: str = field(repr=False)
    added: int = 0
    removed: int = 0
    new_folders: tuple[str, ...] = ()


class Edits:
    """Plans and applies the changes of one vault."""

    def __init__(self, vault: Vault, clean: bool = True) -> None:
        self.vault = vault
        if clean:
            clean_leftovers(vault)

    # --- checks of the request alone; no file is touched -----------------------------------------

    def check_write(self, path: str, content: str) -> None:
        """Raises `PathRefused` for a write that is invalid for any note."""
        self.vault.policy.segments(path, extensions=SEARCHED)
        size = len(content.encode("utf-8", "surrogatepass"))
        if size > self.vault.limits.file_bytes:
            raise PathRefused(path, too_large(size, self.vault.limits.file_bytes), "size")
        if "\0" in content:
            raise PathRefused(path, "the content has a NUL character", "binary")

    def check_edit(self, path: str, edits: Iterable[tuple[str, str]]) -> None:
        """Raises `PathRefused` for edits that are invalid for any note."""
        self.vault.policy.segments(path, extensions=SEARCHED)
        for number, (old, new) in enumerate(edits, 1):
            if not unix(old):
                raise PathRefused(path, f"edit {number}: the text to replace is empty", "limit")
            if unix(old) == unix(new):
                raise PathRefused(path, f"edit {number}: the old and the new text are the same", "limit")

    # --- plans -----------------------------------------------------------------------------------

    def plan_write(self, path: str, content: str, base_sha256: str | None = None) -> Change:
        """Plans a new text for a note, or a new note. `base_sha256`: the hash that the note must have."""
        self.vault.policy.segments(path, extensions=SEARCHED)
        raw = self._raw(path)
        self._check_base(path, raw, base_sha256)
        if raw is None:
            return self._change(path, None, content.encode("utf-8", "surrogatepass"), self._new_folders(path))
        before = decoded(path, raw.data)
        text = unix(content.removeprefix("\ufeff"))
        newline = dominant(before)
        body = (text if newline == "\n" else text.replace("\n", newline)).encode("utf-8", "surrogatepass")
        return self._change(raw.path, raw, (BOM if raw.data.startswith(BOM) else b"") + body, ())

    def plan_edit(
        self, path: str, edits: Sequence[Edit] | Iterable[tuple[str, str]], base_sha256: str | None = None
    ) -> Change:
        """Plans replacements in an existing note, in order; each old text must occur exactly once."""
        self.vault.policy.segments(path, extensions=SEARCHED)
        raw = self._raw(path)
        if raw is None:
            raise PathRefused(path, "not found", "missing")
        self._check_base(path, raw, base_sha256)
        text = decoded(path, raw.data)
        newline = dominant(text)
        steps = [edit if isinstance(edit, Edit) else Edit(*edit) for edit in edits]
        if not steps:
            raise PathRefused(path, "there is no edit", "limit")
        for number, edit in enumerate(steps, 1):
            text = replaced(path, text, edit, newline, f"edit {number}: " if len(steps) > 1 else "")
        return self._change(
            raw.path,
            raw,
            (BOM if raw.data.startswith(BOM) else b"") + text.encode("utf-8", "surrogatepass"),
            (),
        )

    def _raw(self, path: str) -> Raw | None:
        try:
            return self.vault.read_raw(path)
        except PathRefused as refused:
            if refused.kind != "missing":
                raise
            return None

    def _check_base(self, path: str, raw: Raw | None, base: str | None) -> None:
        if base is not None and raw is None:
            raise PathRefused(path, "the note is gone since it was read", "changed")
        if base is not None and raw is not None and hashlib.sha256(raw.data).hexdigest() != base.lower():
            raise PathRefused(path, "the note has changed since it was read", "changed")

    def _change(self, path: str, raw: Raw | None, content: bytes, new_folders: tuple[str, ...]) -> Change:
        if len(content) > self.vault.limits.file_bytes:
            raise PathRefused(path, too_large(len(content), self.vault.limits.file_bytes), "size")
        after = unix(decoded(path, content))
        before = unix(decoded(path, raw.data)) if raw is not None else ""
        diff = unified(path, before, after, raw is None)
        lines = diff.splitlines()[2:]
        return Change(
            path,
            raw is None,
            hashlib.sha256(raw.data).hexdigest() if raw is not None else None,
            hashlib.sha256(content).hexdigest(),
            after,
            content,
            diff,
            sum(line.startswith("+") for line in lines),
            sum(line.startswith("-") for line in lines),
            new_folders,
        )

    def _new_folders(self, path: str) -> tuple[str, ...]:
        """The folders to create for a new note; raises `PathRefused` if they cannot be created."""
        names = path.split("/")[:-1]
        for depth in range(len(names), 0, -1):
            try:
                fd, _ = self.vault.open_folder(names[:depth], path)
            except PathRefused as refused:
                if refused.kind != "missing":
                    raise
                continue
            try:
                self._no_twin(fd, names[depth] if depth < len(names) else path.rpartition("/")[2], path)
            finally:
                os.close(fd)
            return tuple("/".join(names[: number + 1]) for number in range(depth, len(names)))
        fd, _ = self.vault.open_folder((), path)
        try:
            self._no_twin(fd, path.split("/")[0], path)
        finally:
            os.close(fd)
        return tuple("/".join(names[: number + 1]) for number in range(len(names)))

    @staticmethod
    def _no_twin(folder: int, name: str, path: str) -> None:
        """Refuses a new name that is equal to another entry on some system, where the two would become one."""
        with os.scandir(folder) as entries:
            twin = next((entry.name for entry in entries if key(entry.name) == key(name)), None)
        if twin is not None:
            raise PathRefused(path, f"{shown(twin)} is there already", "exists")

    # --- application -----------------------------------------------------------------------------

    def apply(self, change: Change) -> str:
        """Applies a plan and returns the note's path; raises `PathRefused` if the note has changed since."""
        names = self.vault.policy.segments(change.path, extensions=SEARCHED)
        if hashlib.sha256(change.content).hexdigest() != change.after_sha256:
            raise PathRefused(change.path, "the content is not what was planned", "changed")
        if len(change.content) > self.vault.limits.file_bytes:
            raise PathRefused(change.path, "too large", "size")
        made: list[tuple[int, str]] = []
        folder = self._folder_for(names, change, made)
        try:
            self._write(folder, names[-1], change)
        except BaseException:
            for parent, name in reversed(made):
                with suppress(OSError):
                    os.rmdir(name, dir_fd=parent)
            raise
        finally:
            os.close(folder)
            for parent, _ in made:
                os.close(parent)
        return change.path

    def _folder_for(self, names: tuple[str, ...], change: Change, made: list[tuple[int, str]]) -> int:
        """Opens the folder of the note; creates it for a new note."""
        if not change.creates:
            return self.vault.open_folder(names[:-1], change.path)[0]
        fd, _ = self.vault.open_folder((), change.path)
        try:
            for depth, name in enumerate(names[:-1], 1):
                try:
                    following, _ = self.vault.open_folder(names[:depth], change.path)
                except PathRefused as refused:
                    if refused.kind != "missing":
                        raise
                    self._no_twin(fd, name, change.path)
                    with suppress(FileExistsError):
                        os.mkdir(name, 0o777, dir_fd=fd)
                        made.append((os.dup(fd), name))
                    try:
                        following = os.open(name, OPEN_FOLDER, dir_fd=fd)
                    except OSError as error:
                        raise PathRefused(
                            change.path, f"the folder cannot be made: {error.strerror}", "unreadable"
                        ) from None
                os.close(fd)
                fd = following
        except OSError as error:
            os.close(fd)
            raise PathRefused(
                change.path, f"the folder cannot be made: {error.strerror}", "unreadable"
            ) from None
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _write(self, folder: int, name: str, change: Change) -> None:
        temporary = f".toolwire-{secrets.token_hex(8)}.tmp"
        mode = 0o666
        if not change.creates:
            mode = self._unchanged(folder, name, change)
        try:
            fd = os.open(temporary, _NEW_FILE, 0o600 if not change.creates else 0o666, dir_fd=folder)
        except OSError as error:
            raise PathRefused(change.path, f"cannot be written: {error.strerror}", "unreadable") from None
        try:
            with suppress(OSError):  # not every file system has locks
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left = memoryview(change.content)
            while left:
                left = left[os.write(fd, left) :]
            if not change.creates:
                os.fchmod(fd, mode)
            os.fsync(fd)
            if change.creates:
                self._take_new_name(folder, temporary, name, change.path)
            else:
                self._unchanged(folder, name, change)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        except OSError as error:
            raise PathRefused(change.path, f"cannot be written: {error.strerror}", "unreadable") from None
        finally:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            os.close(fd)

    def _unchanged(self, folder: int, name: str, change: Change) -> int:
        """Checks that the note is still the one that the plan was made from, and returns its mode."""
        try:
            raw = self.vault.read_raw(change.path)
            here = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except PathRefused as refused:
            raise PathRefused(
                change.path,
                "the note is gone since it was read" if refused.kind == "missing" else refused.reason,
                "changed",
            ) from None
        except OSError:
            raise PathRefused(change.path, "the note is gone since it was read", "changed") from None
        if hashlib.sha256(raw.data).hexdigest() != change.before_sha256 or (here.st_dev, here.st_ino) != (
            raw.stat.st_dev,
            raw.stat.st_ino,
        ):
            raise PathRefused(change.path, "the note has changed since it was read", "changed")
        return stat.S_IMODE(raw.stat.st_mode)

    def _take_new_name(self, folder: int, temporary: str, name: str, path: str) -> None:
        """Gives the finished file its name, unless another file has it."""
        self._no_twin(folder, name, path)
        try:
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            raise PathRefused(path, "is there already", "exists") from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # The file system has no links: reserve the name with an empty file and replace it.
            try:
                os.close(os.open(name, _NEW_FILE, 0o666, dir_fd=folder))
            except FileExistsError:
                raise PathRefused(path, "is there already", "exists") from None
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def clean_leftovers(vault: Vault) -> int:
    """Removes temporary files of killed processes. Files that are being written are locked and stay."""
    removed = 0
    for _, folder in vault.folders():
        with os.scandir(folder) as entries:
            names = [
                entry.name
                for entry in entries
                if TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            ]
        for name in names:
            with suppress(OSError):
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(name, dir_fd=folder)
                    removed += 1
                finally:
                    os.close(fd)
    return removed


# --- texts ---------------------------------------------------------------------------------------


def dominant(text: str) -> str:
    """The most frequent line end of a text; `\\n` for a text without any."""
    windows = text.count("\r\n")
    return max(
        (("\n", text.count("\n") - windows), ("\r\n", windows), ("\r", text.count("\r") - windows)),
        key=lambda found: found[1],
    )[0]


def replaced(path: str, text: str, edit: Edit, newline: str, which: str = "") -> str:
    """The text with the edit applied. All other text stays, also mixed line ends."""
    old = unix(edit.old)
    if not old:
        raise PathRefused(path, f"{which}the text to replace is empty", "limit")
    plain = unix(text)
    position = plain.find(old)
    if position < 0:
        raise PathRefused(path, f"{which}the text to replace is not in the note", "changed")
    if plain.find(old, position + 1) >= 0:
        raise PathRefused(path, f"{which}the text to replace stands in the note more than once", "limit")
    start, stop = raw_position(text, position), raw_position(text, position + len(old))
    new = unix(edit.new)
    return text[:start] + (new if newline == "\n" else new.replace("\n", newline)) + text[stop:]


def raw_position(text: str, position: int) -> int:
    """The position in `text` of a position in `unix(text)`."""
    if "\r" not in text:
        return position
    pairs = 0
    for found in re.finditer("\r\n", text):
        if found.start() - pairs >= position:
            break
        pairs += 1
    return position + pairs


def unified(path: str, before: str, after: str, creates: bool) -> str:
    """A unified diff of two texts; it shows a missing newline at the end."""
    old, new = before.split("\n"), after.split("\n")
    ends = [text == "" or text.endswith("\n") for text in (before, after)]
    old, new = (lines[:-1] if lines[-1] == "" else lines for lines in (old, new))
    if not ends[0] and old:
        old = [*old[:-1], old[-1] + "\n\\ No newline at end of file"]
    if not ends[1] and new:
        new = [*new[:-1], new[-1] + "\n\\ No newline at end of file"]
    lines = difflib.unified_diff(old, new, "/dev/null" if creates else f"a/{path}", f"b/{path}", lineterm="")
    return "\n".join(lines)

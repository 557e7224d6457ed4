"""Changes notes in two steps: plans a change, which can be shown, and applies the plan.

- A plan contains the hash of the note that it was made from. If the note has another hash when the plan is
  applied, the plan is refused.
- A note is replaced as a whole: a new file is written beside it, synced, and renamed. If the process is
  killed, either the old or the new note exists, never half of one. Creating a note never replaces another.
- Line ends, byte order mark and mode stay as they were. An edit changes no other byte of the note.
- The names of temporary files begin with a dot (`TEMPORARY`), so no vault shows these files. They are locked
  while they are written. A new `Edits` object removes the temporary files of processes that were killed.
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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from toolwire.vault.paths import OPEN_FILE, OPEN_FOLDER, Raw, Vault, decoded, too_large, unix
from toolwire.vault.policy import SEARCHED, PathRefused, key, printable

TEMPORARY = re.compile(r"\.toolwire-[0-9a-f]{16}\.tmp")
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
BOM = b"\xef\xbb\xbf"
CHANGED = "the note has changed since it was read"
REMOVED = "the note was removed since it was read"
Edit = tuple[str, str]
"""The text to replace, which must occur in the note exactly once, and the new text."""


@dataclass(frozen=True, slots=True)
class Change:
    """A planned write.

    `before_sha256`: the hash of the note before the write; None for a new note. `content`: the exact bytes of
    the file after the write. `diff`: a unified diff of the note's text before and after the write.
    """

    path: str
    creates: bool
    before_sha256: str | None
    after_sha256: str
    content: bytes = field(repr=False)
    diff: str = field(repr=False)
    new_folders: tuple[str, ...] = ()

    def count(self, sign: str) -> int:
        """Returns the number of lines that are added (`+`) or removed (`-`)."""
        return sum(line.startswith(sign) for line in self.diff.splitlines()[2:])


class Edits:
    """Plans and applies the changes of one vault."""

    def __init__(self, vault: Vault, clean: bool = True) -> None:
        self.vault = vault
        if clean:
            clean_leftovers(vault)

    # --- checks of the request alone; no file is touched ---

    def check_write(self, path: str, content: str) -> None:
        """Raises `PathRefused` for a write that is invalid, whatever the vault contains."""
        self.vault.policy.segments(path, extensions=SEARCHED)
        self._check_size(path, len(content.encode("utf-8", "surrogatepass")))
        if "\0" in content:
            raise PathRefused(path, "the content has a NUL character", "binary")

    def _check_size(self, path: str, size: int) -> None:
        if size > self.vault.limits.file_bytes:
            raise PathRefused(path, too_large(size, self.vault.limits.file_bytes), "size")

    def check_edit(self, path: str, edits: Sequence[Edit]) -> None:
        """Raises `PathRefused` for edits that are invalid, whatever the note contains."""
        self.vault.policy.segments(path, extensions=SEARCHED)
        for number, (old, new) in enumerate(edits, 1):
            if not unix(old):
                raise PathRefused(path, f"edit {number}: the text to replace is empty", "limit")
            if unix(old) == unix(new):
                raise PathRefused(path, f"edit {number}: the old and the new text are the same", "limit")

    # --- plans ---

    def plan_write(self, path: str, content: str, base_sha256: str | None = None) -> Change:
        """Plans a new text for a note, or a new note.

        `base_sha256`: the hash that the existing note must have; None for any.
        """
        self.vault.policy.segments(path, extensions=SEARCHED)
        raw = self._raw(path, base_sha256)
        if raw is None:
            data = content.encode("utf-8", "surrogatepass")
            self._check_size(path, len(data))
            diff = unified(path, "", unix(decoded(path, data)), creates=True)
            return Change(path, True, None, _sha(data), data, diff, self._new_folders(path))
        before = decoded(path, raw.data)
        text = unix(content.removeprefix("\ufeff")).replace("\n", dominant(before))
        return self._change(raw, before, text)

    def plan_edit(self, path: str, edits: Sequence[Edit], base_sha256: str | None = None) -> Change:
        """Plans replacements in a note, in the given order. Each old text must occur exactly once."""
        self.check_edit(path, edits)
        raw = self._raw(path, base_sha256)
        if raw is None:
            raise PathRefused(path, "not found", "missing")
        before = text = decoded(path, raw.data)
        for number, edit in enumerate(edits, 1):
            try:
                text = replaced(text, edit, dominant(before))
            except ValueError as error:
                which = f"edit {number}: " if len(edits) > 1 else ""
                raise PathRefused(path, f"{which}the text to replace {error}", "changed") from None
        return self._change(raw, before, text)

    def _raw(self, path: str, base_sha256: str | None) -> Raw | None:
        """Returns the bytes of the note, or None if the note does not exist.

        Raises `PathRefused` if `base_sha256` is given and the note has another hash.
        """
        try:
            raw = self.vault.read_raw(path)
        except PathRefused as refused:
            if refused.kind != "missing":
                raise
            if base_sha256 is not None:
                raise PathRefused(path, REMOVED, "changed") from None
            return None
        if base_sha256 is not None and _sha(raw.data) != base_sha256.lower():
            raise PathRefused(path, CHANGED, "changed")
        return raw

    def _change(self, raw: Raw, before: str, after: str) -> Change:
        mark = BOM if raw.data.startswith(BOM) else b""
        content = mark + after.encode("utf-8", "surrogatepass")
        self._check_size(raw.path, len(content))
        diff = unified(raw.path, unix(before), unix(decoded(raw.path, content)), creates=False)
        return Change(raw.path, False, _sha(raw.data), _sha(content), content, diff)

    def _new_folders(self, path: str) -> tuple[str, ...]:
        """Returns the folders to create for a new note.

        Raises `PathRefused` if they cannot be created.
        """
        names = path.split("/")
        depth = len(names) - 1
        while True:
            try:
                fd, _ = self.vault.open_folder(names[:depth], path)
                break
            except PathRefused as refused:
                if refused.kind != "missing" or depth == 0:
                    raise
                depth -= 1
        try:
            self._refuse_twin(fd, names[depth], path)
        finally:
            os.close(fd)
        return tuple("/".join(names[:count]) for count in range(depth + 1, len(names)))

    @staticmethod
    def _refuse_twin(folder: int, name: str, path: str) -> None:
        """Refuses a new name that some file systems treat as equal to the name of another entry."""
        with os.scandir(folder) as entries:
            twin = next((entry.name for entry in entries if key(entry.name) == key(name)), None)
        if twin is not None:
            raise PathRefused(path, f"{printable(twin)} already exists", "exists")

    # --- application ---

    def apply(self, change: Change) -> str:
        """Applies a plan and returns the note's path.

        Raises `PathRefused` if the note has changed since the plan was made.
        """
        names = self.vault.policy.segments(change.path, extensions=SEARCHED)
        if _sha(change.content) != change.after_sha256:  # write only what the person was shown
            raise PathRefused(change.path, "the content is not what was planned", "changed")
        made: list[tuple[int, str]] = []
        try:
            folder = self._folder_for(names, change, made)
            try:
                self._write(folder, names[-1], change)
            finally:
                os.close(folder)
        except BaseException:
            for parent, name in reversed(made):
                with suppress(OSError):
                    os.rmdir(name, dir_fd=parent)
            raise
        finally:
            for parent, _ in made:
                os.close(parent)
        return change.path

    def _folder_for(self, names: tuple[str, ...], change: Change, made: list[tuple[int, str]]) -> int:
        """Returns a descriptor of the note's folder. For a new note, creates the folder if necessary.

        Appends to `made`, for each created folder, the descriptor of its parent and its name.
        """
        if not change.creates:
            return self.vault.open_folder(names[:-1], change.path)[0]
        fd, _ = self.vault.open_folder((), change.path)
        try:
            for depth, name in enumerate(names[:-1], 1):
                try:
                    inner, _ = self.vault.open_folder(names[:depth], change.path)
                except PathRefused as refused:
                    if refused.kind != "missing":
                        raise
                    self._refuse_twin(fd, name, change.path)
                    with suppress(FileExistsError):
                        os.mkdir(name, 0o777, dir_fd=fd)
                        made.append((os.dup(fd), name))
                    inner = os.open(name, OPEN_FOLDER, dir_fd=fd)
                os.close(fd)
                fd = inner
        except BaseException as error:
            os.close(fd)
            if not isinstance(error, OSError):
                raise
            reason = f"the folder cannot be created: {error.strerror}"
            raise PathRefused(change.path, reason, "unreadable") from None
        return fd

    def _write(self, folder: int, name: str, change: Change) -> None:
        temporary = f".toolwire-{secrets.token_hex(8)}.tmp"
        mode = None if change.creates else self._unchanged_mode(folder, name, change)
        try:
            fd = os.open(temporary, _NEW_FILE, 0o666 if mode is None else 0o600, dir_fd=folder)
        except OSError as error:
            raise PathRefused(change.path, f"cannot be written: {error.strerror}", "unreadable") from None
        try:
            with suppress(OSError):  # not every file system has locks
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left = memoryview(change.content)
            while left:
                left = left[os.write(fd, left) :]
            if mode is not None:
                os.fchmod(fd, mode)
            os.fsync(fd)
            if mode is None:
                self._take_new_name(folder, temporary, name, change.path)
            else:
                self._unchanged_mode(folder, name, change)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        except OSError as error:
            raise PathRefused(change.path, f"cannot be written: {error.strerror}", "unreadable") from None
        finally:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            os.close(fd)

    def _unchanged_mode(self, folder: int, name: str, change: Change) -> int:
        """Checks that the note has not changed since the plan was made. Returns the mode of its file."""
        try:
            raw = self.vault.read_raw(change.path)
            here = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except PathRefused as refused:
            reason = REMOVED if refused.kind == "missing" else refused.reason
            raise PathRefused(change.path, reason, "changed") from None
        except OSError:
            raise PathRefused(change.path, REMOVED, "changed") from None
        if _sha(raw.data) != change.before_sha256 or not os.path.samestat(here, raw.stat):
            raise PathRefused(change.path, CHANGED, "changed")
        return stat.S_IMODE(raw.stat.st_mode)

    def _take_new_name(self, folder: int, temporary: str, name: str, path: str) -> None:
        """Gives the finished file its name. Raises `PathRefused` if another file has this name."""
        self._refuse_twin(folder, name, path)
        try:
            try:
                os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                # The file system has no links: reserve the name with an empty file and replace it.
                os.close(os.open(name, _NEW_FILE, 0o666, dir_fd=folder))
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileExistsError:
            raise PathRefused(path, "already exists", "exists") from None


def clean_leftovers(vault: Vault) -> int:
    """Removes the temporary files of killed processes and returns their number.

    Keeps files that another process is still writing; these files are locked.
    """
    removed = 0
    for _, folder in vault.folders():
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if TEMPORARY.fullmatch(entry.name)]
            names = [entry.name for entry in found if entry.is_file(follow_symlinks=False)]
        for name in names:
            with suppress(OSError):
                fd = os.open(name, OPEN_FILE, dir_fd=folder)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(name, dir_fd=folder)
                    removed += 1
                finally:
                    os.close(fd)
    return removed


# --- texts ---


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def dominant(text: str) -> str:
    """Returns the most frequent line end of a text; `\\n` if the text has none."""
    windows = text.count("\r\n")
    counts = {"\n": text.count("\n") - windows, "\r\n": windows, "\r": text.count("\r") - windows}
    return max(counts, key=lambda newline: counts[newline])


def replaced(text: str, edit: Edit, newline: str) -> str:
    """Returns the text with the edit applied. All other text stays, even mixed line ends.

    Raises `ValueError` if the old text does not occur exactly once.
    """
    old, new = map(unix, edit)
    plain = unix(text)
    position = plain.find(old)
    if position < 0:
        raise ValueError("is not in the note")
    if plain.find(old, position + 1) >= 0:
        raise ValueError("occurs in the note more than once")
    start, stop = _raw_position(text, position), _raw_position(text, position + len(old))
    return text[:start] + new.replace("\n", newline) + text[stop:]


def _raw_position(text: str, position: int) -> int:
    """Converts a position in `unix(text)` to the position in `text`."""
    pairs = 0
    for found in re.finditer("\r\n", text):
        if found.start() - pairs >= position:
            break
        pairs += 1
    return position + pairs


def unified(path: str, before: str, after: str, creates: bool) -> str:
    """Returns a unified diff of two texts. The diff shows a missing newline at the end."""
    old, new = _diff_lines(before), _diff_lines(after)
    lines = difflib.unified_diff(old, new, "/dev/null" if creates else f"a/{path}", f"b/{path}", lineterm="")
    return "\n".join(lines)


def _diff_lines(text: str) -> list[str]:
    *lines, last = text.split("\n")
    return [*lines, f"{last}\n\\ No newline at end of file"] if last else lines

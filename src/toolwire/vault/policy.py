"""Decides which paths a vault serves: one policy for search, read, list and write.

A path is relative, with slashes, and spelled as on disk. The policy refuses a path by its text alone, before
any file is touched, and in the same way on every system. A vault may be synced to another system, where a
name that is harmless here is a device or a hidden folder. The rules are the tables `PATH_RULES` and
`NAME_RULES`. Nothing is decoded, expanded or cleaned: `%2e%2e` and `~` are ordinary names. `paths.py` opens
the files.

Patterns: `*` and `?` stay within a name, `**` crosses folders, a pattern without a slash (except at its end)
matches at any depth, and the pattern of a folder covers its content. Patterns ignore case, the spelling of
accents and invisible characters, as some file systems do.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass

NOTES = (".md", ".markdown")
SEARCHED = (*NOTES, ".txt")
"""The extensions of files that are indexed and may be written."""
READABLE = (*SEARCHED, ".canvas", ".base")
"""The extensions of files that may be read and listed, including Obsidian's canvases and bases."""


@dataclass(frozen=True, slots=True)
class VaultLimits:
    """The limits of one file, one path and one call."""

    file_bytes: int = 4 * 1024 * 1024
    call_bytes: int = 8 * 1024 * 1024
    path_bytes: int = 1024
    name_bytes: int = 255
    depth: int = 32


class PathRefused(Exception):
    """Raised for a path or file that the vault does not serve. The message is one line.

    `kind` is for programs: `path` (the path itself is not allowed, whatever is there), `excluded`, `missing`,
    `link`, `type`, `size`, `binary`, `encoding`, `unreadable`, `changed`, `exists`, `limit`, or `index` (the
    folder of the index is unusable).
    """

    def __init__(self, path: str, reason: str, kind: str = "path") -> None:
        super().__init__(f"{printable(path)}: {reason}")
        self.path = path
        self.reason = reason
        self.kind = kind


def printable(path: object, most: int = 160) -> str:
    """Returns a path for a message: on one line, without invisible characters, not too long."""
    text = path if isinstance(path, str) else repr(path)
    text = text if len(text) <= most else text[:most] + "…"
    escaped = (letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    return "".join(escaped) or "(empty)"


# --- rules ---

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
_RESERVED = re.compile(
    r"(?:con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(?:[ .].*)?", re.I | re.S
)
_RESERVED_BEGIN = frozenset("CPANLcpanl")
_DRIVE = re.compile(r"[A-Za-z]:")
_ORDINARY = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_ ()&,'+=@!.-]*[A-Za-z0-9_)])?", re.A)
"""Names that only the rules on reserved names and on length can refuse."""


def _has(*categories: str) -> Callable[[str], bool]:
    return lambda name: any(unicodedata.category(letter) in categories for letter in name)


def visible(name: str) -> str:
    """Returns the name without invisible characters, which some file systems ignore."""
    if name.isascii():
        return name
    return "".join(letter for letter in name if unicodedata.category(letter) != "Cf")


Rule = tuple[str, Callable[[str], bool]]
PATH_RULES: tuple[Rule, ...] = (
    ("a path must not be empty", lambda path: not path),
    ("a path must not have a NUL character", lambda path: "\0" in path),
    ("a path must not have a backslash; folders are separated by /", lambda path: "\\" in path),
    ("a path must be relative to the vault", lambda path: path.startswith("/")),
    ("a path must not name a drive", lambda path: _DRIVE.match(path) is not None),
)
NAME_RULES: tuple[Rule, ...] = (
    ("a path must not have empty segments", lambda name: not name),
    ("a path must not have the segments . or ..", lambda name: name in (".", "..")),
    (
        "hidden files and folders are not part of the vault",
        lambda name: visible(name).lstrip().startswith("."),
    ),
    ("a name must be valid Unicode", _has("Cs")),
    ("a name must not have control characters", _has("Cc", "Zl", "Zp")),
    (
        "a name must not have characters that change the direction of writing",
        lambda name: not _BIDI.isdisjoint(name),
    ),
    (
        "a name must not begin or end with a space, nor end with a dot",
        lambda name: name != name.strip() or name.endswith("."),
    ),
    ("a name must be visible", lambda name: not visible(name).strip()),
    (
        "the name is reserved for a device on some systems",
        lambda name: _RESERVED.fullmatch(visible(name)) is not None,
    ),
)


def name_refused(name: str, limits: VaultLimits) -> str | None:
    """Returns the reason to refuse a name; None if the name is allowed."""
    if _ORDINARY.fullmatch(name) and len(name) <= limits.name_bytes and name.isascii():
        return NAME_RULES[-1][0] if name[0] in _RESERVED_BEGIN and _RESERVED.fullmatch(name) else None
    for reason, broken in NAME_RULES:
        if broken(name):
            return reason
    too_long = len(name.encode()) > limits.name_bytes
    return f"a name must not be longer than {limits.name_bytes} bytes" if too_long else None


def extension(name: str) -> str:
    """Returns the extension in lower case, with its dot; empty if there is none."""
    stem, dot, end = name.rpartition(".")
    return f".{end.lower()}" if dot and stem else ""


def key(path: str) -> str:
    """Returns a key for a path. Paths that some file system treats as equal have the same key."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", visible(path)).casefold())


# --- patterns ---

_GLOB = re.compile(r"\*\*/|\*\*|\*|\?|[^*?]+")
_GLOBS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def glob(pattern: str) -> str:
    """Returns a pattern as a regular expression, which is matched against `key(path)`."""
    text = key(pattern.strip().removeprefix("./"))
    anchored = "/" in text.rstrip("/")
    body = "".join(_GLOBS.get(part) or re.escape(part) for part in _GLOB.findall(text.strip("/")))
    return f"{'' if anchored else '(?:.*/)?'}{body}(?:/.*)?"


def _any(patterns: Iterable[str]) -> re.Pattern[str] | None:
    found = [glob(pattern) for pattern in patterns if pattern.strip().strip("/")]
    return re.compile("|".join(found), re.S) if found else None


class PathPolicy:
    """Applies the rules, the patterns and the limits of one vault to paths."""

    def __init__(
        self, include: Iterable[str] = (), exclude: Iterable[str] = (), limits: VaultLimits | None = None
    ) -> None:
        self.include = tuple(include)
        self.exclude = tuple(exclude)
        self.limits = limits or VaultLimits()
        self._included = _any(self.include)
        self._excluded = _any(self.exclude)

    def segments(
        self, path: str, folder: bool = False, extensions: tuple[str, ...] = READABLE
    ) -> tuple[str, ...]:
        """Returns the names in a path. Raises `PathRefused` if the policy refuses the path.

        `folder`: whether the path is that of a folder. The empty path is the vault itself.
        """
        if not isinstance(path, str):
            raise PathRefused(printable(path), "a path must be text")
        if folder and path == "":
            return ()
        if len(path.encode("utf-8", "surrogatepass")) > self.limits.path_bytes:
            raise PathRefused(path, f"a path must not be longer than {self.limits.path_bytes} bytes")
        for reason, broken in PATH_RULES:
            if broken(path):
                raise PathRefused(path, reason)
        names = tuple(path.split("/"))
        for name in names:
            refused = name_refused(name, self.limits)
            if refused is not None:
                raise PathRefused(path, refused)
        if len(names) > self.limits.depth:
            raise PathRefused(path, f"a path must not have more than {self.limits.depth} segments")
        if not folder and extension(names[-1]) not in extensions:
            raise PathRefused(path, f"only these files are served: {', '.join(extensions)}", "type")
        if not (self.open_to(path) if folder else self.covers(path)):
            raise PathRefused(path, "excluded by the vault's patterns", "excluded")
        return names

    def open_to(self, path: str) -> bool:
        """Returns True unless a pattern excludes the path."""
        return self._excluded is None or not self._excluded.fullmatch(key(path))

    def covers(self, path: str) -> bool:
        """Whether a file with this path is included, and not excluded, by the patterns."""
        included = self._included is None or self._included.fullmatch(key(path)) is not None
        return included and self.open_to(path)

    def allows(self, path: str) -> bool:
        """Whether the vault serves a file with this path."""
        try:
            self.segments(path)
        except PathRefused:
            return False
        return True

    def described(self) -> str:
        """Returns a text that identifies the policy: equal policies have the same text."""
        patterns = sorted(map(key, self.include)), sorted(map(key, self.exclude))
        return repr((*patterns, self.limits.file_bytes, self.limits.depth))

"""What the right side of a rule's condition matches: text, paths, URLs, numbers and constants.

Often the text of a value does not say what a server makes of it: `..`, a relative path, an encoded dot, a
number where a text was expected. A pattern therefore answers two questions:

- `surely`: is the value what the rule means, whatever the server does with it? An allow rule needs this.
- `possibly`: could the value be what the rule means? For a deny or ask rule, this is enough.

`surely` compares exactly. `possibly` ignores case, Unicode's compatibility forms, invisible characters and
spaces at the ends, because file systems and servers may ignore them. It also compares percent-decoded paths
and texts, because some servers decode them. Text alone does not show symbolic links, host names that mean the
same address, or what a command does.
"""

from __future__ import annotations

import ipaddress
import math
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from toolwire.core.display import hides
from toolwire.settings.types import ConfigError

Verdict = bool | None
"""None: the value cannot be judged by its text."""
Judge = Callable[[Any], Verdict]

LONGEST = 100_000
"""Longer texts are not judged."""
MOST_DECODED = 4
"""A text that is percent-encoded more than this many times is not judged."""
ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda value, want: bool(value < want),
    "<=": lambda value, want: bool(value <= want),
    ">": lambda value, want: bool(value > want),
    ">=": lambda value, want: bool(value >= want),
}
_CONSTANTS = {"true": True, "false": False, "null": None}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ENCODED = re.compile("%(25)*(2e|2f|5c|00|25)", re.I)
"""Percent-encoded dots, slashes, backslashes, NULs and percent signs, which some servers decode."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The right side of a condition in a rule. `kind`: any, null, boolean, number, path, url or text."""

    kind: str
    is_glob: bool
    _exact: Judge
    _loose: Judge

    def surely(self, value: Any) -> bool:
        """Whether the value certainly matches."""
        hidden = self.kind not in ("any", "null") and isinstance(value, str) and hides(value)
        return not hidden and self._exact(value) is True

    def possibly(self, value: Any) -> bool:
        """Whether the value matches or might match."""
        if self._exact(value) is not False:
            return True
        forms = _decoded(value) if self.kind in ("path", "text") else (folded(value),)
        return any(form is None or self._loose(form) is not False for form in forms)


def pattern(written: str, order: str = "") -> Pattern:
    """Returns the pattern for the text after the operator of a condition.

    `order`: the operator, if it compares numbers. Raises `ConfigError`.
    """
    if order:
        return Pattern("number", False, *[_number(written, ORDERS[order])] * 2)
    if written in ("*", "**"):
        return Pattern("any", True, *[_anything] * 2)
    if written in _CONSTANTS:
        kind = "null" if written == "null" else "boolean"
        return Pattern(kind, False, *[_constant(_CONSTANTS[written])] * 2)
    if _NUMBER.fullmatch(written):
        return Pattern("number", False, *[_number(written, lambda value, want: bool(value == want))] * 2)
    kind = "path" if written.startswith(("/", "~/")) else "url" if "://" in written else "text"
    build = {"path": _path, "url": _url, "text": _text}[kind]
    return Pattern(kind, "*" in written or "?" in written, build(written), build(folded(written)))


def folded(value: Any) -> Any:
    """Returns a text in a normal form: without case and other details that servers may ignore.

    Returns any other value unchanged.
    """
    if not isinstance(value, str) or len(value) > LONGEST:
        return value
    if value.isascii():
        return value.casefold().strip()
    if hides(value):
        value = "".join(letter for letter in value if not hides(letter) or _CONTROL.match(letter))
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", value).casefold()).strip()


def _decoded(value: Any) -> Iterator[Any]:
    """Yields the folded value. For a text, also yields the results of repeated percent-decoding.

    If decoding still changes the text after `MOST_DECODED` times, yields None at the end.
    """
    form = folded(value)
    yield form
    for _ in range(MOST_DECODED):
        form, before = folded(unquote(form)) if isinstance(form, str) else form, form
        if form == before:
            return
        yield form
    yield None


# --- globs as regular expressions ---


def glob(written: str, letter: str = ".") -> str:
    """Returns a regular expression for a pattern in which `*` is any text and `?` one character.

    `letter`: the regular expression for a character that `*` and `?` match. The result uses atomic groups, so
    matching takes a time that is linear in the length of the value.
    """
    first, *rest = (
        "".join(letter if one == "?" else re.escape(one) for one in piece)
        for piece in re.split(r"\*+", written)
    )
    if not rest:
        return first
    found = "".join(f"(?>{letter}*?{piece})" for piece in rest[:-1])
    return f"{first}{found}{letter}*{rest[-1]}"


def path_glob(written: str) -> re.Pattern[str]:
    """Returns a regular expression for the paths that a pattern matches, without a slash at the end.

    `*` and `?` match within one name, `**` matches any number of folders. `/a/**` also matches `/a`.
    """
    runs: list[list[str]] = [[]]
    for name in written.rstrip("/").split("/")[1:]:
        if name == "**":
            runs.append([])
        elif "**" in name:
            raise ConfigError("** must be a whole name: write **/*.md, for example, instead of **.md")
        elif name in ("", ".", ".."):
            raise ConfigError(f"{written} must not contain empty names, . or ..")
        else:
            runs[-1].append("/" + glob(name, "[^/]"))
    first, *rest = ("".join(run) for run in runs)
    if not rest:
        return re.compile(first, re.DOTALL)
    found = "".join(f"(?>(?:/[^/]++)*?{run}(?=/|\\Z))" for run in rest[:-1] if run)
    last = f"(?:/[^/]++)*?{rest[-1]}" if rest[-1] else "(?:/.*)?"
    return re.compile(first + found + last, re.DOTALL)


# --- one judge for each kind ---


def _anything(value: Any) -> Verdict:
    return True


def _constant(want: Any) -> Judge:
    def judge(value: Any) -> Verdict:
        return value is want if want is None or isinstance(value, bool) else None

    return judge


def _number(written: str, compare: Callable[[Any, Any], bool]) -> Judge:
    try:
        want = int(written) if re.fullmatch("-?[0-9]+", written) else float(written)
    except ValueError:
        want = math.nan
    if not _NUMBER.fullmatch(written) or not math.isfinite(want):
        raise ConfigError(f"{written or 'nothing'} is not a number")

    def judge(value: Any) -> Verdict:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return None if isinstance(value, float) and not math.isfinite(value) else compare(value, want)

    return judge


def _readable(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST and _CONTROL.search(value) is None


def _text(written: str) -> Judge:
    pattern = re.compile(glob(written), re.DOTALL)

    def judge(value: Any) -> Verdict:
        if value == written and isinstance(value, str):
            return True
        if not _readable(value):
            return None
        if ".." in map(str.strip, re.split(r"[/\\]", unicodedata.normalize("NFKC", value))):
            return None
        if "/" in written and not _is_plain("/" + value):
            return None  # a relative path, or a name such as OWNER/REPOSITORY
        return pattern.fullmatch(value) is not None

    return judge


def _is_plain(path: str) -> bool:
    """Whether the text of an absolute path says by itself which file or page it means.

    The same must be true for the path's Unicode compatibility form, in which a full-width slash or dot
    becomes an ordinary one.
    """
    if _ENCODED.search(path) or "\\" in path:
        return False
    normal = unicodedata.normalize("NFKC", path)
    names = [*path.rstrip("/").split("/")[1:], *normal.rstrip("/").split("/")[1:]]
    if normal.count("/") != path.count("/") or "\\" in normal or {"", ".", ".."} & set(names):
        return False
    # Some servers and file systems ignore a blank or a dot at the end of a name, so `.. ` could be `..`.
    ends = {name[-1] for name in (*names, *unquote(normal).rstrip("/").split("/")[1:]) if name}
    return "." not in ends and not any(map(str.isspace, ends))


def _path(written: str) -> Judge:
    home = written.startswith("~")
    if "\\" in written:
        raise ConfigError(f"{written} must not contain a backslash")
    pattern = path_glob(written.removeprefix("~"))

    def judge(value: Any) -> Verdict:
        if not _readable(value) or not value.startswith("~/" if home else "/"):
            return None
        path = value.removeprefix("~")
        if path.endswith("//") or not _is_plain(path):
            return None
        return pattern.fullmatch(path.rstrip("/")) is not None

    return judge


# --- URLs: scheme, host and port, then the path ---

_URL = re.compile(r"(\*|[A-Za-z][A-Za-z0-9+.\-]*)://([^/?#]*)([^?#]*)(\?[^#]*)?(#.*)?", re.DOTALL)
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._\-*]*)(?::([0-9]{0,5}|\*))?")
_PORTS = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21"}


def _host(written: str) -> str | None:
    """Returns the host in the form in which hosts are compared; None if its meaning is not certain.

    Returns None for `127.1`, `0x7f.0.0.1` and `2130706433`, for example, because only some clients read them
    as the address 127.0.0.1.
    """
    name = written.lower().removesuffix(".")
    try:
        if name.startswith("["):
            six = ipaddress.IPv6Address(name[1:-1])
            return str(six.ipv4_mapped or six)
        labels = name.split(".")
        if re.fullmatch("[0-9]+|0x[0-9a-f]*", labels[-1]):
            return str(ipaddress.IPv4Address(name))
    except ValueError:
        return None
    return None if "" in labels and name else name


def _page(path: str) -> str | None:
    """Returns the decoded path of a URL; None if its meaning is not certain."""
    if not _is_plain(path) or ";" in path or path.endswith("//"):
        return None
    try:
        page = unquote(path, errors="strict")
    except UnicodeDecodeError:
        return None
    return page if _is_plain(page) and not _CONTROL.search(page) else None


def _url(written: str) -> Judge:
    parts = _URL.fullmatch(written)
    authority = _AUTHORITY.fullmatch(parts[2]) if parts else None
    if parts is None or authority is None or parts[5] or _ENCODED.search(parts[3]):
        message = "is not SCHEME://HOST[:PORT][/PATH], with the host in ASCII and without a user name"
        raise ConfigError(f"{written} {message}")
    scheme = parts[1].lower()
    name = _host(authority[1]) if "*" not in authority[1] else authority[1].lower()
    if name is None or not (name or scheme == "file"):
        raise ConfigError(f"{written}: {authority[1] or 'an empty host'} is not a plain host name or address")
    host = re.compile(glob(name), re.DOTALL)
    port = authority[2] or _PORTS.get(scheme, "*" if scheme == "*" else "")
    path = path_glob(unquote(parts[3]) or "/**")
    query = re.compile(glob(parts[4][1:], "[^&;]")) if parts[4] else None
    below = not parts[3] or parts[3].endswith("/**")

    def judge(value: Any) -> Verdict:
        if not _readable(value) or any(letter.isspace() or letter == "\\" for letter in value):
            return None
        url = _URL.fullmatch(value)
        site = _AUTHORITY.fullmatch(url[2]) if url else None
        if url is None or site is None or "*" in site[0] or "*" in url[1]:
            return None
        kind, where = url[1].lower(), _host(site[1])
        if where is None or not (where or kind == "file"):
            return None
        door = str(int(site[2])) if site[2] else _PORTS.get(kind, "")
        if scheme not in ("*", kind) or port not in ("*", door):
            return False
        elsewhere = host.fullmatch(where) is None
        if elsewhere and kind != "file":  # `file://localhost/a` is the file `/a` too
            return False
        page = _page(url[3])
        if page is None:
            return None
        if path.fullmatch(page.rstrip("/")) is None:
            return False
        if elsewhere:
            return None
        asked = (url[4] or "?")[1:]
        if query is not None:
            return bool(asked) and (True if query.fullmatch(asked) and not url[5] else None)
        # Without a query in the pattern, a query could change what the address means.
        return True if below or not (asked or url[5]) else None

    return judge

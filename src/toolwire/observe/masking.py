"""Masks secrets in text that leaves memory: in logs, traces, pages, files and exports.

Secrets are: the secrets in the settings and the environment; text that looks like a well-known kind of key;
the value of a JSON member with a secret's name (also in JSON inside a JSON string); the body of a PEM private
key; a password in a URL; and a value that is assigned to a secret's name, as in `password=…`. A secret that
is split over several pieces is found in the joined pieces. Every search takes linear time. This module is
pure.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from weakref import WeakSet

from toolwire.settings.types import MASK, Settings

SHORTEST = 4
"""Values in the settings that are shorter than this are not masked."""
SHORTEST_OUTSIDE = 8
"""Values of environment variables that are shorter than this are not masked."""
WORD = 12
"""Secrets that are shorter than this are masked only if they are a whole word."""

SECRET_NAME = re.compile(
    r"(?i)(?:(?:api|access|private)[_-]?keys?|authorization|tokens?|passwords?|passwd|secrets?|cookie)$"
)
_KEYS = (
    r"sk-[A-Za-z0-9_-]{16,}",
    r"tw_[A-Za-z0-9_-]{40}",
    r"(?:gh[pousr]|gsk|hf)_[A-Za-z0-9]{30,}",
    r"github_pat_[A-Za-z0-9_]{30,}",
    r"(?:glpat|xai|xox[abeoprs])-[A-Za-z0-9-]{20,}",
    r"AIza[A-Za-z0-9_-]{35}",
    r"A[KS]IA[A-Z0-9]{16}",
    r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    r"(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,}",
    r"npm_[A-Za-z0-9]{36}",
    r"pypi-[A-Za-z0-9_-]{32,}",
    r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    r"ya29\.[A-Za-z0-9_-]{20,}",
    r"GOCSPX-[A-Za-z0-9_-]{20,}",
    r"hv[sbr]\.[A-Za-z0-9_-]{24,}",
    r"do[opr]_v1_[a-f0-9]{64}",
    r"AGE-SECRET-KEY-1[A-Z0-9]{58}",
    r"nvapi-[A-Za-z0-9_-]{20,}",
    r"[0-9]{8,10}:AA[A-Za-z0-9_-]{33}",
)
"""The formats of well-known providers' keys, and of JSON web tokens."""
_SCHEMES = r"(?i:\bbearer\s+)[A-Za-z0-9._~+/=-]{16,}|(?i:\bauthorization:\s*basic\s+)[A-Za-z0-9+/=_-]{4,}"
_LOOKS = rf"(?<![A-Za-z0-9])(?:{'|'.join(_KEYS)})|{_SCHEMES}"
_MEMBER_WORDS = "(?:api|access|private)[_-]?key|authorization|token|password|passwd|secret"
_MEMBER_NAMES = f"[a-z0-9_-]{{0,64}}?(?:{_MEMBER_WORDS})"
_OUTSIDE_NAME = re.compile(r"(?i)_key$|password$|_auth$")
_MEMBER = re.compile(
    rf'(?i)(?<!\\)(?P<quote>\\*+"){_MEMBER_NAMES}(?P=quote)\s*:\s*(?P=quote)(?P<value>.*?)(?<!\\)(?P=quote)',
    re.DOTALL,
)
_URL_PASSWORD = re.compile(r"://(?:[^/@:\s\"\\]*:(?P<value>[^/@\s\"\\]+)|(?P<user>[A-Za-z0-9_.~%+-]{20,}))@")

_PEM = re.compile(r"-----BEGIN (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----")
_PEM_END = "-----END "
_PEM_HEADER = r"[A-Za-z][A-Za-z-]{1,30}: [^\s\\]{1,80}(?: [^\s\\]{1,80})?"
_PEM_LINES = re.compile(
    rf"(?:(?:(?:\s|\\+[nr])++(?:{_PEM_HEADER}|[A-Za-z0-9+/=]{{16,}}+))++"
    r"(?:(?:[\r\n]|\\+[nr])++[A-Za-z0-9+/]{1,76}={0,2})?)?"
)
"""Matches the header lines and base64 lines of a PEM key whose end is missing."""
LONGEST_PEM = 64 * 1024

_PASSWORDS = r"pass(?:word|wd|phrase|code)|pwd|secret"
_KEY_NAMES = r"(?:api|access|account|private|secret|auth|client)[_-]?(?:key|token|secret)|token"
_NAME = rf"(?:{_PASSWORDS}|{_KEY_NAMES})"
_WORD = r"""[^\s"'`\\&;,<>{}]"""
_OPEN = r"(?P<quote>\\*+[\"'`])"
_ASSIGNED = re.compile(
    rf"""(?ix)
    (?:
        {_NAME}\\*+["'`]?+ (?: [ ]{{0,2}}+ (?: =>? | :=? ) [ ]{{0,2}}+
                             {_OPEN} (?P<quoted>(?:(?!(?P=quote)).){{1,512}}) (?P=quote)
                           | =(?![=>~]) (?P<plain>[^\s"'`\\&;,<>(){{}}\[\]|$*]{{1,512}}+) )
      | (?:{_PASSWORDS})["'`]?+ [ ]{{0,2}}+ (?: =>? | :=? ) [ ]{{0,2}}+
        (?P<worded>(?={_WORD}{{0,60}}[0-9!@#$%^*+?~])(?![/~$<{{(\[*]){_WORD}{{4,512}}+)
      | (?:{_KEY_NAMES})["'`]?+ [ ]{{0,2}}+ (?: =>? | :=? ) [ ]{{0,2}}+
        (?P<long>(?=[^\s]{{0,60}}[0-9])[A-Za-z0-9_.+/=~-]{{16,512}}+)
      | --(?:password|passwd|token|secret|api-key) [ ]++ (?P<option>[^\s"'`\\$<-][^\s"'`\\]{{0,512}}+)
      | [?&](?:sig|signature|x-amz-signature)= (?P<signature>[^\s"'\\&]{{8,512}}+)
    )"""
)
"""Values that are assigned to a secret's name.

`name=value` without spaces is an assignment in a shell, a URL or a connection string. After a colon or a
space, the value must be quoted or must not look like a word, because prose has colons too.
"""
_ASSIGNED_SIGNS = ("pass", "pwd", "secret", "token", "key", "sig")
"""Every match of `_ASSIGNED` contains one of these words.

The words are searched first, because this is cheap.
"""
_ASSIGNED_VALUES = ("quoted", "plain", "worded", "long", "option", "signature")
Span = tuple[int, int]
_masks: WeakSet[Mask] = WeakSet()


def learn(values: Iterable[str]) -> None:
    """Adds secrets, such as the API key of a new model, to every mask in this process."""
    known = tuple(values)
    for mask in tuple(_masks):
        mask.learn(known)


class Mask:
    """Finds and masks secrets. `values`: secrets that are masked wherever they appear."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._known: set[str] = set()
        self.learn(values)
        _masks.add(self)

    def learn(self, values: Iterable[str]) -> None:
        """Adds secrets that are masked from now on."""
        long = [value for value in values if len(value) >= SHORTEST]
        known = self._known = self._known | {form for one in long for form in (one, json.dumps(one)[1:-1])}
        patterns = [_LOOKS, *(_pattern(value) for value in sorted(known, key=len, reverse=True))]
        self._values = re.compile("|".join(patterns))

    @classmethod
    def of(cls, settings: Settings, environ: Mapping[str, str] | None = None) -> Mask:
        """Returns a mask that knows the secrets in the settings and the environment."""
        return cls((*secrets_of(settings), *secrets_among(environ or {})))

    def spans(self, text: str) -> list[Span]:
        """Returns the start and end of each secret, in order, without overlaps."""
        found = [match.span() for match in self._values.finditer(text)]
        if '"' in text:
            found += [match.span("value") for match in _MEMBER.finditer(text)]
        if "://" in text:
            found += [match.span(match.lastgroup or 0) for match in _URL_PASSWORD.finditer(text)]
        if "-----BEGIN " in text:
            found += _pem_spans(text)
        lower = text.lower()
        if any(sign in lower for sign in _ASSIGNED_SIGNS):
            for match in _ASSIGNED.finditer(text):
                found += [match.span(name) for name in _ASSIGNED_VALUES if match[name] not in (None, MASK)]
        return _merged(found) if found else found

    def text(self, text: str) -> str:
        """Returns the text with every secret masked."""
        spans = self.spans(text)
        return _without(text, spans) if spans else text

    def value(self, value: Any) -> Any:
        """Returns a copy of a value (text, or nested dicts and lists) in which every secret is masked."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            if value.get("type") == "mcp" and isinstance(value.get("headers"), Mapping):
                value = {**value, "headers": dict.fromkeys(value["headers"], MASK)}  # a client's credentials
            return {self.text(key): self._member(key, inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(inner) for inner in value]
        return value

    def _member(self, name: str, value: Any) -> Any:
        return MASK if value and isinstance(value, str) and _is_secret(name) else self.value(value)

    def pieces(self, pieces: Sequence[str]) -> tuple[list[str], set[int]]:
        """Masks a text that is given in pieces.

        Returns the masked pieces, and the indices of the pieces that contained a secret or a part of one.
        """
        whole = "".join(pieces)
        spans = deque(self.spans(whole))
        out, touched = [], set()
        start = 0
        for place, piece in enumerate(pieces):
            end = start + len(piece)
            kept, at = "", start
            while spans and spans[0][0] < end:
                left, right = spans[0]
                touched.add(place)
                kept += whole[at : max(left, start)] + (MASK if left >= start else "")
                at = min(right, end)
                if right > end:
                    break  # the secret continues in the next piece
                spans.popleft()
            out.append(kept + whole[at:end])
            start = end
        return out, touched


def _pem_spans(text: str) -> Iterator[Span]:
    """Yields the start and end of the bodies of PEM private keys."""
    at, last = 0, -1
    while (begin := _PEM.search(text, at)) is not None:
        start = begin.end()
        if last < start:
            last = text.find(_PEM_END, start)
            last = len(text) if last < 0 else last
        is_whole = last < len(text) and last - start <= LONGEST_PEM
        at = last if is_whole else _PEM_LINES.match(text, start).end()  # type: ignore[union-attr]
        yield start, at


def secrets_of(settings: Settings) -> Iterator[str]:
    """Yields every secret in the settings."""
    yield from settings.server.keys
    yield from settings.server.admin_keys
    if settings.server.node_secret:
        yield settings.server.node_secret
    for url in (settings.store.url, settings.store.redis, settings.telemetry.otlp):
        yield from _of_url(url)
    for notice in settings.notices:
        yield from notice.hidden
    for server in settings.mcp.servers:
        yield from server.secret
        yield from _of_url(server.url)
    for model in settings.models:
        for name, value in model.options.items():
            yield from _secrets_in(value, name in model.secret or name == "headers" or _is_secret(name))


def secrets_among(environ: Mapping[str, str]) -> Iterator[str]:
    """Yields the secrets in environment variables.

    These are the values of variables with a secret's name, and passwords in URLs of other variables.
    """
    for name, value in environ.items():
        named = SECRET_NAME.search(name) or _OUTSIDE_NAME.search(name)
        if named and len(value.strip()) >= SHORTEST_OUTSIDE:
            yield value.strip()
        elif "://" in value:
            yield from (found for found in _of_url(value) if len(found) >= SHORTEST_OUTSIDE)


def _of_url(url: str) -> Iterator[str]:
    """Yields the secrets in a URL, as written and percent-decoded.

    These are the URL's password, and the values of query parameters with a secret's name.
    """
    try:
        parts = urlsplit(url)
        password = parts.password
        named = [value for name, value in parse_qsl(parts.query) if SECRET_NAME.search(name)]
    except ValueError:
        return
    for found in (*((password,) if password else ()), *named):
        yield from dict.fromkeys((found, unquote(found)))


def _secrets_in(value: Any, is_secret: bool) -> Iterator[str]:
    """Yields the secrets in the value of an option.

    With `is_secret`, every text in the value is a secret. Otherwise, the secrets are the members with a
    secret's name and the passwords in URLs.
    """
    if isinstance(value, str):
        yield from dict.fromkeys((value, value.removeprefix("Bearer "))) if is_secret else _of_url(value)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _secrets_in(inner, is_secret or _is_secret(str(name)))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _secrets_in(inner, is_secret)


def _pattern(value: str) -> str:
    escaped = re.escape(value)
    return escaped if len(value) >= WORD else rf"(?<![A-Za-z0-9_-]){escaped}(?![A-Za-z0-9_-])"


def _is_secret(name: str) -> bool:
    return SECRET_NAME.search(name) is not None


def _merged(spans: list[Span]) -> list[Span]:
    out: list[Span] = []
    for left, right in sorted(spans):
        if left == right:
            continue
        if out and left < out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], right))
        else:
            out.append((left, right))
    return out


def _without(text: str, spans: list[Span]) -> str:
    out, at = [], 0
    for left, right in spans:
        out += [text[at:left], MASK]
        at = right
    return "".join([*out, text[at:]])

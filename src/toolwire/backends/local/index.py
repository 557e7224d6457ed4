"""Downloads wheels from the Python package index that the person configured for pip or uv.

This module follows the environment variables and files of pip (`PIP_INDEX_URL`, `pip.conf`, …) and of uv
(`UV_DEFAULT_INDEX`, `uv.toml`, …). It also uses netrc, proxies and certificate authorities. It reads the
HTML and the JSON form of the simple API, folders of wheels and `file:` URLs. It works without pip, because it
needs only the standard library.
"""

from __future__ import annotations

import base64
import configparser
import http.client
import importlib.util
import json
import netrc
import os
import re
import ssl
import sys
import sysconfig
import tomllib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from toolwire.core.display import one_line

PIPS_CONSTANT = "pip/_internal/models/index.py", re.compile(r'PyPI = PackageIndex\(\s*"([^"]+)"')
"""The file and line in pip's source code with the index that pip uses if no index is configured."""
ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
TIMEOUT_S = 30.0
BLOCK = 1 << 17
MOST_PAGE = 32 << 20
_LATER = frozenset({408, 425, 429})
"""HTTP statuses below 500 after which another attempt may succeed."""


class IndexProblem(Exception):
    """Raised if a wheel cannot be downloaded. The message is one line.

    `lasting`: whether another attempt would fail too.
    """

    def __init__(self, message: str, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting


# --- configuration ---


@dataclass(frozen=True, slots=True)
class Source:
    """Where wheels come from."""

    indexes: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    """Folders of wheels, and pages with links to wheels (pip's `find-links`)."""
    proxy: str = ""
    authorities: str = ""
    """A file or folder with certificates of authorities. If it is empty, the system's are used."""
    timeout_s: float = TIMEOUT_S
    netrc: str = ""

    @classmethod
    def configured(cls, environ: Mapping[str, str]) -> Source:
        home = Path(environ.get("HOME") or Path("~").expanduser())
        settings = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        pip = {**_pip_files(environ, home, settings), **_pip_variables(environ)}
        uv = _uv_files(settings)
        first = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL")
        first = first or pip.get("index-url") or uv.first or pips_index()
        named = (environ.get("UV_INDEX", ""), environ.get("UV_EXTRA_INDEX_URL", ""))
        more = [*" ".join(named).split(), *pip.get("extra-index-url", "").split(), *uv.more]
        none = _is_true(pip.get("no-index", "")) or _is_true(environ.get("UV_NO_INDEX", ""))
        certificates = (pip.get("cert"), *map(environ.get, ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")))
        return cls(
            indexes=() if none else tuple(dict.fromkeys(map(_url, filter(None, (first, *more))))),
            links=(
                *pip.get("find-links", "").split(),
                *filter(None, environ.get("UV_FIND_LINKS", "").split(",")),
            ),
            proxy=pip.get("proxy", ""),
            authorities=next(filter(None, certificates), ""),
            timeout_s=_seconds(pip.get("timeout") or pip.get("default-timeout") or ""),
            netrc=environ.get("NETRC") or str(home / ".netrc"),
        )


def pips_index() -> str:
    """Returns the index that pip uses if no index is configured; "" if this Python has no pip.

    The index is a constant in the source code of the installed pip, or of the pip that Python adds to new
    environments.
    """
    member, constant = PIPS_CONSTANT
    for source in _pips_sources(member):
        if found := constant.search(source):
            return found[1].rstrip("/") + "/simple"
    return ""


def _pips_sources(member: str) -> Iterator[str]:
    for folder in _package_folders("pip"):
        with suppress(OSError):
            yield (folder.parent / member).read_text("utf-8")
    folders = [folder / "_bundled" for folder in _package_folders("ensurepip")]
    if packaged := sysconfig.get_config_var("WHEEL_PKG_DIR"):  # where some Linux distributions have the wheel
        folders.append(Path(packaged))
    for wheel in (wheel for folder in folders for wheel in sorted(folder.glob("pip-*.whl"))):
        with suppress(OSError, KeyError, zipfile.BadZipFile), zipfile.ZipFile(wheel) as archive:
            yield archive.read(member).decode("utf-8")


def _package_folders(name: str) -> list[Path]:
    """Returns the folders of an installed package, without importing the package."""
    found = importlib.util.find_spec(name)
    return [Path(folder) for folder in (found.submodule_search_locations or () if found else ())]


def _url(written: str) -> str:
    """Returns the URL in the setting of an index: `URL` or, for uv, `NAME=URL`."""
    name, is_named, url = written.partition("=")
    return url if is_named and name.replace("-", "").replace("_", "").isalnum() else written


def _is_true(text: str) -> bool:
    return text.strip().lower() in ("1", "true", "yes", "on", "y", "t")


def _seconds(text: str) -> float:
    try:
        return max(float(text), 1.0)
    except ValueError:
        return TIMEOUT_S


def _pip_variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix("PIP_").lower().replace("_", "-"): value
        for name, value in environ.items()
        if name.startswith("PIP_") and value
    }


def _pip_files(environ: Mapping[str, str], home: Path, settings: Path) -> dict[str, str]:
    """Returns the options in pip's files. As in pip, a later file overrides an earlier one."""
    own = environ.get("PIP_CONFIG_FILE", "")
    if own == os.devnull:
        return {}
    files = [Path(folder) / "pip" / "pip.conf" for folder in _folders(environ)] + [Path("/etc/pip.conf")]
    if sys.platform == "darwin":
        files.append(home / "Library/Application Support/pip/pip.conf")
    files += [home / ".pip" / "pip.conf", settings / "pip" / "pip.conf", Path(sys.prefix) / "pip.conf"]
    if environ.get("APPDATA"):
        files += [Path(environ["APPDATA"]) / "pip" / "pip.ini", Path(sys.prefix) / "pip.ini"]
    if own:
        files.append(Path(own))
    parser = configparser.RawConfigParser()
    for file in files:
        try:
            parser.read(file, "utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise IndexProblem(f"{file} cannot be read: {one_line(str(error), 200)}", lasting=True) from None
        except OSError:  # pip ignores such files too
            continue
    sections = [parser[name] for name in ("global", "install", "download") if parser.has_section(name)]
    return {name.replace("_", "-"): value for section in sections for name, value in section.items() if value}


def _folders(environ: Mapping[str, str]) -> list[str]:
    folders = environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    return [folder for folder in reversed(folders.split(os.pathsep)) if folder]


@dataclass(frozen=True, slots=True)
class _Uv:
    first: str = ""
    more: tuple[str, ...] = ()


def _uv_files(settings: Path) -> _Uv:
    """Returns the indexes in uv's settings files. Only the first file that exists is read."""
    for file in (settings / "uv" / "uv.toml", Path("/etc/uv/uv.toml")):
        try:
            table: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
        except OSError:
            continue
        except ValueError as error:
            raise IndexProblem(f"{file} cannot be read: {one_line(str(error), 200)}", lasting=True) from None
        rows = [row for row in table.get("index", []) if isinstance(row, dict) and row.get("url")]
        first = [row["url"] for row in rows if row.get("default")] or [table.get("index-url", "")]
        more = [row["url"] for row in rows if not row.get("default")]
        return _Uv(first[0], (*more, *table.get("extra-index-url", [])))
    return _Uv()


# --- downloading ---


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Index:
    """Finds wheels and opens them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._opener = _opener(source)
        self._asked = ""
        """The host of the last request."""

    @contextmanager
    def wheel(self, distribution: str, name: str) -> Iterator[Iterator[bytes]]:
        """Opens a wheel and yields its blocks. Opening it or reading a block may raise an `IndexProblem`."""
        with self._errors(name):
            found = self._find(distribution, name)
            with closing(open(found, "rb") if isinstance(found, Path) else self._get(found)) as file:
                yield self._blocks(file, name)

    def _blocks(self, file: _Readable, name: str) -> Iterator[bytes]:
        with self._errors(name):
            while block := file.read(BLOCK):
                yield block

    @contextmanager
    def _errors(self, wheel: str) -> Iterator[None]:
        try:
            yield
        except urllib.error.HTTPError as error:
            error.close()
            lasting = error.code < 500 and error.code not in _LATER
            reason = f"{self._asked} answers {error.code} {error.reason}"
            raise IndexProblem(f"{wheel}: {one_line(reason, 200)}", lasting) from None
        except urllib.error.URLError as error:
            reason = f"{self._asked} cannot be reached: {error.reason}"
            raise IndexProblem(f"{wheel}: {one_line(reason, 300)}") from None
        except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
            reason = f"the connection to {self._asked} was lost: {error or type(error).__name__}"
            raise IndexProblem(f"{wheel}: {one_line(reason, 300)}") from None

    def _find(self, distribution: str, wheel: str) -> Path | str:
        """Returns the file or URL of a wheel, from the first page that has the wheel."""
        pages = [
            *self.source.links,
            *(f"{index.rstrip('/')}/{distribution}/" for index in self.source.indexes),
        ]
        problem: Exception | None = None
        for page in pages:
            try:
                if found := self._on_page(page, wheel):
                    return found
            except urllib.error.HTTPError as error:
                error.close()
                problem = problem if error.code == 404 else error
            except (OSError, http.client.HTTPException) as error:
                problem = error
        if problem is not None:
            raise problem
        where = ", ".join(dict.fromkeys(map(_host, pages))) or "no index is configured: set UV_DEFAULT_INDEX"
        raise IndexProblem(f"{wheel} is not on the package index ({where})", lasting=True)

    def _on_page(self, page: str, wheel: str) -> Path | str | None:
        if (folder := _local(page)) is not None:
            if (folder / wheel).is_file():
                return folder / wheel
            folder = folder / "index.html" if folder.is_dir() else folder
            if not folder.is_file():
                return None
            base, kind, content = folder.as_uri(), "text/html", folder.read_bytes()[:MOST_PAGE]
        else:
            with closing(self._get(page)) as response:
                base, kind = response.url, response.headers.get_content_type()
                content = response.read(MOST_PAGE)
        urls = _links(content, kind)
        url = next((one for one in urls if unquote(urlsplit(one).path).rpartition("/")[2] == wheel), None)
        if url is None:
            return None
        url = urljoin(base, url)
        return (_local(url) if base.startswith("file:") else None) or url

    def _get(self, url: str) -> Any:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise IndexProblem(f"{one_line(url, 200)} is not an HTTP address", lasting=True)
        host = parts.netloc.rpartition("@")[2]
        self._asked = parts.hostname or ""
        request = urllib.request.Request(urlunsplit((*parts[:1], host, *parts[2:4], "")))
        request.add_header("Accept", ACCEPT)
        request.add_header("Accept-Encoding", "identity")
        request.add_header("User-Agent", "toolwire")
        if login := self._login(parts):
            request.add_unredirected_header("Authorization", login)  # not after a redirect to another host
        return self._opener.open(request, timeout=self.source.timeout_s)

    def _login(self, parts: Any) -> str:
        """Returns the credentials for a URL: from the URL, from an index on the same host, or from netrc."""
        for url in (parts, *map(urlsplit, self.source.indexes)):
            same = (url.scheme, url.hostname, url.port) == (parts.scheme, parts.hostname, parts.port)
            if same and url.username is not None:
                return _basic(unquote(url.username), unquote(url.password or ""))
        try:
            found = netrc.netrc(self.source.netrc).authenticators(parts.hostname or "")
        except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
            return ""
        return _basic(found[0], found[2]) if found else ""


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _opener(source: Source) -> urllib.request.OpenerDirector:
    context = ssl.create_default_context()  # follows SSL_CERT_FILE and SSL_CERT_DIR
    try:
        if source.authorities:
            is_folder = os.path.isdir(source.authorities)
            context.load_verify_locations(**{"capath" if is_folder else "cafile": source.authorities})
        elif not any(ssl.get_default_verify_paths()[:2]) and importlib.util.find_spec("certifi"):
            context.load_verify_locations(importlib.import_module("certifi").where())
    except (OSError, ssl.SSLError) as error:
        problem = f"the certificates in {source.authorities} cannot be read: {error}"
        raise IndexProblem(one_line(problem, 300), lasting=True) from None
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
    if source.proxy:
        proxy = source.proxy if "://" in source.proxy else f"http://{source.proxy}"
        handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
    return urllib.request.build_opener(*handlers)


def _local(written: str) -> Path | None:
    """Returns the path of a `file:` URL or of a folder; None for other URLs."""
    parts = urlsplit(written)
    if parts.scheme == "file":
        return Path(urllib.request.url2pathname(parts.path))
    return None if "://" in written else Path(written).expanduser()


def _host(url: str) -> str:
    """Returns the host of a URL, or the path of a file or folder."""
    return urlsplit(url).hostname or str(_local(url) or "")


def _links(content: bytes, kind: str) -> list[str]:
    """Returns the links on a page of the simple API, which may be JSON or HTML."""
    if kind.endswith("json"):
        try:
            rows = json.loads(content)["files"]
            return [row["url"] for row in rows if isinstance(row["url"], str)]
        except (ValueError, KeyError, TypeError):
            raise IndexProblem("the package index sent a page that is not valid JSON") from None
    parser = _Anchors()
    parser.feed(content.decode("utf-8", "replace"))
    return [urljoin(parser.base, link) for link in parser.links]


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        href = dict(attributes).get("href")
        if href and tag == "a":
            self.links.append(href)
        elif href and tag == "base":
            self.base = self.base or href

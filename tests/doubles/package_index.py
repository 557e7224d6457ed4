"""A package index on loopback, with wheels that this module creates."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import json
import random
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from toolwire.backends.local.pull import Known, Part

CONTENT = b"GGUF" + random.Random(1).randbytes(700_000)
CUTS = (0, 300_000, 600_000, len(CONTENT))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _part(number: int, content: bytes) -> Part:
    name = f"tiny_part{number}"
    distribution, wheel = name.replace("_", "-"), f"{name}-0.2.0-py3-none-any.whl"
    return Part(distribution, wheel, f"{name}/data/part.bin", len(content), sha256(content))


PIECES = tuple(CONTENT[begin:end] for begin, end in itertools.pairwise(CUTS))
PARTS = tuple(_part(number, piece) for number, piece in enumerate(PIECES, 1))
TINY = Known(
    id="tiny",
    title="Tiny",
    use="for tests",
    file="tiny.gguf",
    size=len(CONTENT),
    sha256=sha256(CONTENT),
    memory_mb=1,
    licence="Apache-2.0",
    author="Nobody",
    no_tools="",
    parts=PARTS,
)


class Unseekable(io.BytesIO):
    """Makes `zipfile` write the sizes after each member."""

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise io.UnsupportedOperation


def wheel(part: Part, content: bytes, *, streamed: bool = False, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Returns a wheel with the member of `part`, one member before it, and one after it."""
    file = Unseekable() if streamed else io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in (
            ("tiny/__init__.py", b"raise ImportError\n"),
            (part.member, content),
            ("END", b""),
        ):
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return file.getvalue()


@dataclass
class FakeIndex:
    """What the index serves, and the requests that it received. `form` of its pages: `html` or `json`."""

    url: str = ""
    form: str = "html"
    wheels: dict[str, bytes] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)
    """For each distribution, the wheel to which its page links."""
    links: dict[str, str] = field(default_factory=dict)
    """For a distribution whose wheel is on another server, the wheel's URL."""
    asked: list[str] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    login: str = ""
    status: int = 200
    cuts: dict[str, int] = field(default_factory=dict)
    """For each wheel, how many of the next downloads end half-way."""
    on_wheel: Callable[[str], object] = lambda name: None

    def add(self, part: Part, content: bytes) -> None:
        self.wheels[part.wheel] = content
        self.pages[part.distribution] = part.wheel

    def times(self, part: Part) -> int:
        return self.asked.count(f"/files/{part.wheel}")


def _answer(index: FakeIndex, handler: BaseHTTPRequestHandler) -> None:
    kind, _, name = handler.path.strip("/").partition("/")
    index.asked.append(handler.path)
    index.logins.append(handler.headers.get("authorization", ""))
    expected = "Basic " + base64.b64encode(index.login.encode()).decode()
    if index.login and handler.headers.get("authorization") != expected:
        handler.send_error(401)
    elif index.status != 200:
        handler.send_error(index.status)
    elif kind == "simple" and name in index.pages:
        file = index.pages[name]
        url = index.links.get(name, f"../../files/{file}#sha256=0")
        page = f'<!DOCTYPE html><a href="{url.replace(file, "other.whl")}">x</a><a href="{url}">{file}</a>'
        content_type = "text/html"
        if index.form == "json":
            page = json.dumps({"files": [{"filename": file, "url": url}]})
            content_type = "application/vnd.pypi.simple.v1+json"
        _send(handler, page.encode(), content_type)
    elif kind == "files" and name in index.wheels:
        index.on_wheel(name)
        content = index.wheels[name]
        half = len(content) // 2 if index.cuts.get(name, 0) else None
        index.cuts[name] = index.cuts.get(name, 0) - 1 if half else 0
        _send(handler, content, "application/octet-stream", half)
    else:
        handler.send_error(404)


def _send(handler: BaseHTTPRequestHandler, content: bytes, kind: str, only: int | None = None) -> None:
    handler.send_response(200)
    handler.send_header("content-type", kind)
    handler.send_header("content-length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content[:only])


@contextmanager
def fake_index() -> Iterator[FakeIndex]:
    """Runs an index that has the three wheels of `TINY`."""
    index = FakeIndex()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                _answer(index, self)
            except ConnectionError:
                pass  # the client has stopped

        def log_message(self, format: str, *values: Any) -> None:
            pass

    for part, piece in zip(PARTS, PIECES, strict=True):
        index.add(part, wheel(part, piece))
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        index.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
        try:
            yield index
        finally:
            server.shutdown()
            thread.join()

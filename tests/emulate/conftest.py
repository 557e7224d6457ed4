"""What the scanner returns, as a reader sees it. A test module that reads has a table TOOLS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from toolwire.core.events import CallArgs, CallBegin, CallEnd, Event, Text
from toolwire.emulate.dialects import DIALECTS
from toolwire.emulate.scanner import ToolCallParser

Rows = list[tuple[str, ...]]
EVERY = tuple(DIALECTS)


def _rows(events: list[Event]) -> Rows:
    out: Rows = []
    name = arguments = ""
    for event in events:
        if isinstance(event, Text):
            before = out.pop()[1] if out and out[-1][0] == "text" else ""
            out.append(("text", before + event.text))
        elif isinstance(event, CallBegin):
            name, arguments = event.name, ""
        elif isinstance(event, CallArgs):
            arguments += event.delta
        elif isinstance(event, CallEnd):
            out.append((name, arguments, event.status))
    return out


@pytest.fixture(scope="session")
def rows() -> Callable[[list[Event]], Rows]:
    """`rows(events)`: texts and calls in order, as ("text", …) and (name, arguments, status)."""
    return _rows


@pytest.fixture(scope="module")
def read(request: pytest.FixtureRequest) -> Callable[..., Rows]:
    """`read(pieces, reason=…, dialects=…, **options)`: the result for these chunks."""

    def read(
        pieces: list[str], *, reason: str = "eof", dialects: tuple[str, ...] = EVERY, **options: Any
    ) -> Rows:
        parser = ToolCallParser(request.module.TOOLS, dialects, nonce="k7", **options)
        return _rows([event for piece in pieces for event in parser.feed(piece)] + parser.finish(reason))

    return read


@pytest.fixture(scope="module")
def agreed(read: Callable[..., Rows]) -> Callable[..., Rows]:
    """`agreed(text, **options)`: the result, which must not depend on the splits."""

    def agreed(text: str, **options: Any) -> Rows:
        whole = read([text], **options)
        assert read(list(text), **options) == whole
        for cut in range(1, len(text)):
            assert read([text[:cut], text[cut:]], **options) == whole, cut
        return whole

    return agreed

"""What the command line shows of models: rows, and columns that line up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from toolwire.core.display import one_line
from toolwire.emulate.dialects import DEFAULT

if TYPE_CHECKING:
    from toolwire.core.capabilities import Capabilities, Strategy
    from toolwire.gateway.catalog import Catalog


WIDEST = 1000


def model_rows(catalog: Catalog) -> list[dict[str, Any]]:
    """One row a model: id, backend, how its tools are served, in which dialect, and what it can do."""
    rows = []
    for id, backend in catalog.offered():
        held = backend.capabilities
        can = [
            f.name
            for f in fields(held)
            if f.type == "bool" and getattr(held, f.name) and (held.images or f.name != "image_urls")
        ]
        rows.append(
            {
                "id": id,
                "backend": catalog.kind(id),
                "tools": backend.strategy,
                "dialect": dialect(held, backend.strategy),
                "capabilities": can,
            }
        )
    return rows


def dialect(capabilities: Capabilities, strategy: Strategy) -> str:
    """The dialect that a model is taught, and behind a plus sign those that are understood too; "" where calls are no text."""
    if strategy not in ("emulated", "constrained"):
        return ""
    known = capabilities.dialects or DEFAULT
    taught = "sentinel" if "sentinel" in known or strategy == "constrained" else known[0]
    return "+".join([taught, *(name for name in known if name != taught)])


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines with columns as wide as their widest cell. Names come from servers: nothing in a cell can drive the terminal."""
    rows = [[one_line(cell, WIDEST) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]

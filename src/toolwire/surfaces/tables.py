"""Tables for the terminal: rows about the models, and the alignment of columns."""

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
    """Returns one row per model: id, backend, tool-calling strategy, dialect and capabilities."""
    rows = []
    for id, backend in catalog.offered():
        has, strategy = backend.capabilities, backend.strategy
        names = [one.name for one in fields(has) if one.type == "bool" and getattr(has, one.name)]
        if not has.images:
            names = [name for name in names if name != "image_urls"]
        row = {"id": id, "backend": catalog.kind(id), "tools": strategy, "dialect": dialect(has, strategy)}
        rows.append({**row, "capabilities": names})
    return rows


def dialect(capabilities: Capabilities, strategy: Strategy) -> str:
    """Returns the dialects of a model, joined with "+"; "" if the model does not write its calls as text.

    The prompt teaches the model the first dialect. Toolwire also recognizes calls in the other dialects.
    """
    if strategy not in ("emulated", "constrained"):
        return ""
    known = capabilities.dialects or DEFAULT
    taught = "sentinel" if "sentinel" in known or strategy == "constrained" else known[0]
    return "+".join([taught, *(name for name in known if name != taught)])


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the rows as lines with aligned columns.

    Control characters are removed, because cells come from servers.
    """
    rows = [[one_line(cell, WIDEST) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return ["  ".join(cells).rstrip() for cells in padded]

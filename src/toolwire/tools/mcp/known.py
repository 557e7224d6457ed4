"""The tools of MCP servers that a person has agreed to, read from the store without starting a server.

This module only reads: it neither creates the store nor migrates it to a newer version. It reads only an
SQLite store on this machine.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from toolwire.settings.page_file import path_beside


@dataclass(frozen=True, slots=True)
class KnownTool:
    """The parts of a tool's definition that `dead_rules` needs."""

    name: str
    input_schema: dict[str, Any]


def known_tools(store_url: str, source: str) -> list[KnownTool]:
    """Returns the pinned tools of a server; none if the store cannot be read."""
    beside = path_beside(store_url, os.environ)
    if beside is None:
        return []
    file = beside.parent / store_url.rpartition("/")[2]
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
            query = "SELECT tool, definition FROM mcp_pins WHERE server = ? ORDER BY tool"
            rows = connection.execute(query, (source,)).fetchall()
        return [KnownTool(str(tool), _schema(json.loads(text))) for tool, text in rows]
    except (sqlite3.Error, ValueError):
        return []


def _schema(definition: Any) -> dict[str, Any]:
    schema = definition.get("inputSchema") if isinstance(definition, dict) else None
    return schema if isinstance(schema, dict) else {}

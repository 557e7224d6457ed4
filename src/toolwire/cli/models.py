"""`toolwire models`: lists every model, and each server of the settings that cannot be used."""

from __future__ import annotations

import argparse
import asyncio
import json
import os

from toolwire.gateway.catalog import Catalog
from toolwire.settings.discover import with_discovered
from toolwire.settings.load import load
from toolwire.surfaces.tables import model_rows, table

COLUMNS = ("id", "backend", "tools", "dialect", "state", "capabilities")
TITLES = ("MODEL", "BACKEND", "TOOLS", "DIALECT", "STATE", "CAPABILITIES")


def models_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="a JSON list, for scripts")


def run_models(arguments: argparse.Namespace) -> int:
    settings = with_discovered(load(arguments.config, os.environ, {}, exposed=False))
    catalog = Catalog(settings.models, aliases=settings.aliases)
    problems = asyncio.run(_problems(catalog))
    rows = model_rows(catalog)
    shown = {row["id"] for row in rows}
    for id in (id for id in problems if id not in shown):
        kind = catalog.kind(id.removesuffix("/*"))
        rows.append({"id": id, "backend": kind, "tools": "", "dialect": "", "capabilities": []})
    for row in rows:
        row["reason"] = problems.get(row["id"], "")
        row["state"] = "unavailable" if row["reason"] else "available"
    if arguments.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        row["capabilities"] = ", ".join(row["capabilities"])
        row["state"] += f": {row['reason']}" if row["reason"] else ""
    print("\n".join(table([TITLES, *([row[name] or "-" for name in COLUMNS] for row in rows)])))
    return 0


async def _problems(catalog: Catalog) -> dict[str, str]:
    """Returns the reason for each model or server that cannot be used now. A server's key is `ID/*`."""
    ids = [*catalog.unavailable, *catalog.models, *catalog.sources]
    try:
        found = await asyncio.gather(*map(catalog.trouble, ids))
    finally:
        await catalog.close()
    names = [f"{id}/*" if id in catalog.sources else id for id in ids]
    return {name: problem for name, problem in zip(names, found, strict=True) if problem}

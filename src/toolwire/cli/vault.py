"""`toolwire vault index DIR` and `toolwire vault search DIR QUERY`. Neither command needs a model."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolwire.core import display
from toolwire.core.display import clean, counted
from toolwire.settings.load import load
from toolwire.settings.types import ConfigError
from toolwire.surfaces.terminal.indexing import refreshed
from toolwire.vault.index import Index
from toolwire.vault.paths import Vault
from toolwire.vault.policy import PathRefused
from toolwire.vault.refresh import Refresh
from toolwire.vault.results import Found
from toolwire.vault.search import MOST_RESULTS, search

_EXCLUDED = re.compile(r"-(?!h\Z)[^-]", re.S)
"""An argument that excludes a word from the search, such as `-draft`.

No option of the command has a single minus, except -h.
"""


def vault_arguments(parser: argparse.ArgumentParser) -> None:
    add, actions = parser.add_argument, "index: build or refresh the index; search: find notes"
    add("action", choices=("index", "search"), help=actions)
    add("folder", metavar="DIR", help="the folder of notes")
    add(
        "query",
        nargs="*",
        metavar="QUERY",
        help='words, a "phrase", tag:NAME, path:FOLDER; -WORD excludes a word',
    )
    add("--limit", type=int, default=10, metavar="N", help="at most N results; default 10, at most 50")
    add("--json", action="store_true", help="JSON, for scripts")
    _allow_query_words(parser)


def _allow_query_words(parser: argparse.ArgumentParser) -> None:
    """Changes the parser: words of the query may follow options, and may begin with a minus."""
    parse = parser.parse_known_args

    def parsed(given: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        excluded = [one for one in given or () if _EXCLUDED.match(one)]
        found, others = parse([one for one in given or () if not _EXCLUDED.match(one)], namespace)
        words = [one for one in others if not one.startswith("--")]
        found.query = [*found.query, *words, *excluded]
        return found, [one for one in others if one.startswith("--")]

    parser.parse_known_args = parsed  # type: ignore[method-assign, assignment]


def run_vault(arguments: argparse.Namespace) -> int:
    query = " ".join(arguments.query)
    if arguments.action == "search" and not query.strip():
        example = 'example: toolwire vault search ~/notes "machine learning"'
        raise ConfigError(f"vault search: the query is missing ({example})")
    root = Path(arguments.folder).expanduser()
    patterns = load(arguments.config, os.environ, {}).vault
    configured = Path(patterns.root).expanduser().resolve() == root.resolve()
    include, exclude = (patterns.include, patterns.exclude) if configured else ((), ())
    try:
        with Vault(root, include, exclude) as vault, Index(vault) as index:
            done = refreshed(index)
            if arguments.action == "index":
                _print_refresh(done, index.count(), arguments.json)
                return 0
            return _print_found(search(index, query, arguments.limit), arguments.json)
    except PathRefused as refused:
        raise ConfigError(str(refused)) from None


def _print_refresh(done: Refresh, count: int, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"notes": count, **asdict(done)}))
        return
    changes = f"{done.added} new, {done.changed} changed, {done.removed} removed"
    rebuilt = ", rebuilt" if done.rebuilt else ""
    print(f"{counted(count, 'note')} indexed: {changes}; {done.seconds:.2f} s{rebuilt}")
    for reason in done.reasons:
        print(f"  skipped {clean(reason)}")


def _print_found(found: Found, as_json: bool) -> int:
    """Prints the results. Returns exit status 1 if nothing was found, as grep does."""
    if as_json:
        print(display.as_json(asdict(found)))
    else:
        for hit in found.hits:
            where = f" › {' › '.join(hit.headings)}" if hit.headings else ""
            print(f"{clean(hit.path)}:{hit.line}{clean(where)}  ({hit.matches})\n    {clean(hit.preview)}")
        hint = found.hint or ("" if found.hits else "no note matches")
        if found.truncated:
            more = "; --limit N shows more" if len(found.hits) < MOST_RESULTS else ""
            hint = f"{len(found.hits)} of {found.total} results{more}"
        if hint:
            print(clean(hint), file=sys.stderr)
    return 0 if found.hits else 1

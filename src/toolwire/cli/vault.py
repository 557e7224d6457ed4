"""`toolwire vault index DIR` and `toolwire vault search DIR …`: a vault's index, without a model."""

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
from toolwire.core.display import clean
from toolwire.settings.load import load
from toolwire.settings.types import ConfigError
from toolwire.surfaces.terminal.indexing import refreshed
from toolwire.vault.index import Index
from toolwire.vault.paths import Vault
from toolwire.vault.policy import PathRefused
from toolwire.vault.refresh import Refresh
from toolwire.vault.results import Found
from toolwire.vault.search import MOST_RESULTS, search

_WITHOUT = re.compile(r"-(?!h\Z)[^-]", re.S)
"""An argument that is a word of the query: no option of the command has a single minus, but for -h."""


def vault_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=("index", "search"),
        help="index: build or refresh the index; search: look for notes",
    )
    parser.add_argument("folder", metavar="DIR", help="the folder of notes")
    parser.add_argument(
        "query", nargs="*", metavar="QUERY", help='words, a "phrase", tag:name, path:folder, -word'
    )
    parser.add_argument(
        "--limit", type=int, default=10, metavar="N", help="so many results at most; default 10, 50 at most"
    )
    parser.add_argument("--json", action="store_true", help="JSON, for scripts")
    _take_words(parser)


def _take_words(parser: argparse.ArgumentParser) -> None:
    """Allows words of the query after options and with a leading minus, unlike argparse."""
    parse = parser.parse_known_args

    def parsed(given: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        without = [one for one in given or () if _WITHOUT.match(one)]
        found, others = parse([one for one in given or () if not _WITHOUT.match(one)], namespace)
        words = [one for one in others if not one.startswith("--")]
        found.query = [*found.query, *words, *without]
        return found, [one for one in others if one.startswith("--")]

    parser.parse_known_args = parsed  # type: ignore[method-assign, assignment]


def run_vault(arguments: argparse.Namespace) -> int:
    query = " ".join(arguments.query)
    if arguments.action == "search" and not query.strip():
        raise ConfigError(
            "vault search: there is nothing to look for "
            '(example: toolwire vault search ~/notes "machine learning")'
        )
    root = Path(arguments.folder).expanduser()
    patterns = load(arguments.config, os.environ, {}).vault
    configured = Path(patterns.root).expanduser().resolve() == root.resolve()
    include, exclude = (patterns.include, patterns.exclude) if configured else ((), ())
    try:
        with Vault(root, include, exclude) as vault, Index(vault) as index:
            done = refreshed(index)
            if arguments.action == "index":
                _tell_refresh(done, index.count(), arguments.json)
                return 0
            return _tell_found(search(index, query, arguments.limit), arguments.json)
    except PathRefused as refused:
        raise ConfigError(str(refused)) from None


def _tell_refresh(done: Refresh, count: int, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"notes": count, **asdict(done)}))
        return
    changes = f"{done.added} new, {done.changed} changed, {done.removed} gone"
    print(f"{count} notes indexed: {changes}; {done.seconds:.2f} s{', rebuilt' if done.rebuilt else ''}")
    for reason in done.reasons:
        print(f"  skipped {clean(reason)}")


def _tell_found(found: Found, as_json: bool) -> int:
    """Exit status 1 when nothing was found, as grep has it."""
    if as_json:
        print(display.as_json(asdict(found)))
    else:
        for hit in found.hits:
            where = f" › {' › '.join(hit.headings)}" if hit.headings else ""
            print(f"{clean(hit.path)}:{hit.line}{clean(where)}  ({hit.matches})\n    {clean(hit.preview)}")
        told = found.hint or ("" if found.hits else "no note matches")
        if found.truncated:
            told = f"{len(found.hits)} of {found.total}" + (
                "; --limit N shows more" if len(found.hits) < MOST_RESULTS else ""
            )
        if told:
            print(clean(told), file=sys.stderr)
    return 0 if found.hits else 1

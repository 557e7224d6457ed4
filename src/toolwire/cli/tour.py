"""`toolwire tour`: a two-minute walk through approvals, in the web page or in the terminal.

The tour has its own sample vault, scripted model and store, in a temporary folder that is deleted at the end.
The tour reads none of the person's settings.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from toolwire.cli.open import has_browser, open_in_browser
from toolwire.settings.types import DEFAULT_MODELS, ServerSettings, Settings, StoreSettings, VaultSettings

FOLDER = "toolwire-tour-"


def tour_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--terminal", action="store_true", help="take the tour here, not in a browser")
    parser.add_argument(
        "--port", metavar="P", type=int, default=0, help="port of the web page; default: a free one"
    )
    parser.add_argument("--no-open", action="store_true", help="print the link, but open no browser")


def run_tour(arguments: argparse.Namespace) -> int:
    from toolwire.tools.tour import write_notes

    with tempfile.TemporaryDirectory(prefix=FOLDER, ignore_cleanup_errors=True) as made:
        folder = Path(made).resolve()
        # The folders for the index of the sample vault, and for the record of the running server.
        os.environ |= {"XDG_CACHE_HOME": str(folder / "cache"), "TOOLWIRE_DATA": str(folder / "data")}
        vault = write_notes(folder / "Sample vault")
        settings = Settings(
            server=ServerSettings(port=arguments.port, drain_s=1),
            models=DEFAULT_MODELS,
            vault=VaultSettings(root=str(vault), enabled=True),
            store=StoreSettings(url=f"sqlite:///{folder}/tour.db"),
        )
        if arguments.terminal:
            from toolwire.surfaces.terminal.tour import run_tour as run_in_terminal

            return run_in_terminal(settings)
        return _serve(settings, opens=not arguments.no_open)


def _serve(settings: Settings, opens: bool) -> int:
    from toolwire.observe import logs
    from toolwire.surfaces.http.server import serve

    def show(link: str) -> None:
        link += "&tour"
        print(f"the tour: {link}  (works once)", flush=True)
        print("Ctrl-C ends the tour and deletes its sample vault.", file=sys.stderr, flush=True)
        if opens and sys.stdout.isatty() and has_browser():
            open_in_browser(link)

    logs.configure("warning", "text")
    return serve(settings, on_link=show)

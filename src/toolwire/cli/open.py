"""`toolwire open`: opens the web pages of a running server, signed in by a new one-time link."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser

from toolwire.cluster.running import RunningServer, ask, running
from toolwire.settings.load import load
from toolwire.settings.types import ConfigError

START = "toolwire serve starts one"


def open_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--print", action="store_true", help="print the link instead of opening it")
    port = "the server's port; default: server.port, or the port of the server that started last"
    parser.add_argument("--port", metavar="P", type=int, help=port)


def run_open(arguments: argparse.Namespace) -> int:
    server = chosen(running(), arguments.config, arguments.port)
    if server is None:
        on = f" on port {arguments.port}" if arguments.port is not None else ""
        raise ConfigError(f"no Toolwire server of your user account runs{on}; {START}")
    answer = ask(server, link=True)
    if answer is None:
        raise ConfigError(f"the server at {server.url} stopped answering; {START}")
    link = server.url + str(answer["link"])
    if arguments.print or not has_browser() or not open_in_browser(link):
        print(link)
        return 0
    print(f"opened {server.url} in your browser; toolwire open --print shows a link instead", file=sys.stderr)
    return 0


def chosen(servers: list[RunningServer], config: str | None, port: int | None) -> RunningServer | None:
    """Returns the server on `port`, or None if no server runs there.

    If `port` is None, returns the server on the port in the settings. If none runs there, returns the newest
    server, or None if no server runs at all.
    """
    if port is not None:
        return next((server for server in servers if server.port == port), None)
    try:
        preferred = load(config, os.environ, {}, exposed=False).server.port
    except ConfigError:  # a server that runs can be opened with settings that are invalid now
        preferred = 0
    usual = (server for server in servers if server.port == preferred and not server.temporary)
    return next(usual, servers[0] if servers else None)


def has_browser() -> bool:
    """Returns whether a browser with a window can open. A text browser would not run the pages."""
    if sys.platform in ("darwin", "win32") or os.environ.get("BROWSER"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_in_browser(link: str) -> bool:
    try:
        return webbrowser.open(link)
    except webbrowser.Error:
        return False

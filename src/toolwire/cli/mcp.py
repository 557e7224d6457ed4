"""`toolwire mcp --vault DIR`: an MCP server with the vault's tools.

Each call needs an approval.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolwire.core.display import one_line
from toolwire.settings.extras import add_extra
from toolwire.settings.load import load, secret
from toolwire.settings.types import ConfigError, Settings
from toolwire.tools.approvals import LIFETIME_S

if TYPE_CHECKING:
    from toolwire.surfaces.mcp.server import VaultServer

HOST, PORT = "127.0.0.1", 8789


def mcp_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--vault", metavar="DIR", required=True, help="the folder of notes whose tools are offered")
    add("--http", action="store_true", help="serve streamable HTTP with a bearer instead of stdio")
    add("--host", metavar="H", help=f"with --http: address to listen on; default {HOST}")
    add("--port", metavar="P", type=int, help=f"with --http: port, 0 picks a free one; default {PORT}")
    bearer = "with --http: env:NAME or file:PATH; default: a fresh one, printed once"
    add("--bearer", metavar="SECRET", help=bearer)
    question = parser.add_mutually_exclusive_group()
    inbox = "ask only in the inbox (toolwire approvals); default: in the client's form, or else in the inbox"
    question.add_argument("--inbox", action="store_true", default=None, help=inbox)
    form = "ask only in the client's own form"
    question.add_argument("--no-inbox", action="store_false", dest="inbox", default=None, help=form)
    lifetime = "seconds that a question waits for its decision; default 600"
    add("--lifetime", metavar="S", type=float, default=LIFETIME_S, help=lifetime)


def run_mcp(arguments: argparse.Namespace) -> int:
    from toolwire.observe.logs import configure
    from toolwire.tools.consent import hide_memory

    hide_memory()
    root = Path(arguments.vault).expanduser()
    if not root.is_dir():
        raise ConfigError(f"--vault: {root} is not a folder")
    if not arguments.lifetime > 0:
        raise ConfigError("--lifetime: expected more than 0 seconds")
    for name in ("host", "port", "bearer"):
        if not arguments.http and getattr(arguments, name) is not None:
            raise ConfigError(f"--{name}: only with --http")
    bearer = _bearer(arguments.bearer) if arguments.http else ""
    settings = load(arguments.config, os.environ, {})
    if find_spec("mcp") is None:
        raise ConfigError(f"toolwire mcp needs the MCP SDK: {add_extra('mcp')}")
    configure("warning")
    vault = _opened(arguments, settings, root.resolve())
    if arguments.http:
        return asyncio.run(_serve_http(arguments, vault, settings, bearer))
    return asyncio.run(_serve_stdio(vault, root.resolve()))


@asynccontextmanager
async def _opened(
    arguments: argparse.Namespace, settings: Settings, root: Path
) -> AsyncIterator[VaultServer]:
    """Opens the vault and the store, and yields the server.

    At the end, every running call is cancelled and every open question expires.
    """
    from toolwire.store.store import Store
    from toolwire.surfaces.mcp.server import VaultServer
    from toolwire.tools.approvals import Approvals
    from toolwire.tools.consent import Proofs
    from toolwire.tools.executor import Toolbox
    from toolwire.tools.vault_tools import opened
    from toolwire.vault.policy import PathRefused

    try:
        async with Store(settings.store.url) as store, opened(settings, root) as tools:
            proofs = Proofs(store, unproven=settings.approvals.command_line == "open")
            approvals = Approvals(store, lifetime_s=arguments.lifetime, proofs=proofs)
            ways = {"form": arguments.inbox is not True, "inbox": arguments.inbox is not False}
            server = VaultServer(Toolbox(tools), approvals, vault=str(root), notify=_say, **ways)
            try:
                yield server
            finally:
                await server.calls.close()
    except PathRefused as refused:
        raise ConfigError(str(refused)) from None


def _say(line: str) -> None:
    print(f"toolwire mcp: {one_line(line, 1000)}", file=sys.stderr, flush=True)


# --- stdio


def _explain(vault: Path) -> None:
    """Explains to a person at a terminal why nothing happens."""
    client = json.dumps({"command": "toolwire", "args": ["mcp", "--vault", str(vault)]}, ensure_ascii=False)
    for line in (
        "this is an MCP server: it waits for a client's messages on standard input.",
        "Clients such as Claude Desktop or Cursor start it themselves. Add it there as:",
        f"  {client}",
        "For clients that connect by HTTP, use --http. Ctrl-C ends the server.",
    ):
        _say(line)


async def _serve_stdio(opened: AbstractAsyncContextManager[VaultServer], vault: Path) -> int:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    if sys.stdin.isatty():
        _explain(vault)
    from mcp.server.stdio import stdio_server

    async def serve() -> None:
        async with opened as here, stdio_server() as (reading, writing):
            await here.server.run(reading, writing, here.server.create_initialization_options())

    serving = asyncio.ensure_future(serve())
    stopping = asyncio.ensure_future(stopped.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        serving.cancel()
        await asyncio.wait({serving}, timeout=5)
        os._exit(0)  # a thread still reads stdin and cannot be interrupted
    stopping.cancel()
    await serving
    return 0


# --- HTTP


async def _serve_http(
    arguments: argparse.Namespace,
    opened: AbstractAsyncContextManager[VaultServer],
    settings: Settings,
    bearer: str,
) -> int:
    from toolwire.surfaces.http.server import DrainingServer, bind
    from toolwire.surfaces.mcp.http import DRAIN_S, PATH, HttpApp

    host = HOST if arguments.host is None else arguments.host
    server_settings = replace(settings.server, host=host)
    async with opened as vault:
        sockets = bind(host, PORT if arguments.port is None else arguments.port)
        try:
            app: Any = HttpApp(vault, server_settings, bearer)
            shown = f"[{host.strip('[]')}]" if ":" in host else host
            line = f"listening on http://{shown}:{sockets[0].getsockname()[1]}{PATH}"
            if arguments.bearer is None:
                _say(f"bearer for this run: {bearer}")
            async with app.running():
                await DrainingServer(app, DRAIN_S, lambda: print(line, flush=True)).serve(sockets=sockets)
        finally:
            for each in sockets:
                each.close()
    return 0


def _bearer(written: str | None) -> str:
    """Returns the secret that `--bearer` refers to, or a new random one without the option."""
    if written is None:
        return secrets.token_urlsafe(32)
    found = secret(written, "--bearer", os.environ)
    if found is None:
        others = "a secret on the command line can be read by others"
        raise ConfigError(f"--bearer: write env:NAME or file:PATH; {others}")
    return found

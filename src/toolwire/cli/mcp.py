"""`toolwire mcp`: an MCP server with the tools of a vault and of other MCP servers.

Each call needs an approval, or a rule that allows it. `toolwire mcp list`, `agree` and `explain` are in their
own modules.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from toolwire.core.display import one_line
from toolwire.settings.extras import add_extra
from toolwire.settings.load import load, secret
from toolwire.settings.mcp import NAME, NAMES
from toolwire.settings.types import ConfigError, McpServerSettings, McpSettings, Settings
from toolwire.tools.approvals import LIFETIME_S

if TYPE_CHECKING:
    from toolwire.surfaces.mcp.server import ToolServer

HOST, PORT = "127.0.0.1", 8789
SUBCOMMANDS = ("list", "explain", "agree")
OF_COMMAND = ("name", "env", "allow", "ask", "deny")
"""Options that apply only to the server whose command follows `--`."""


def mcp_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "%(prog)s [options] [-- COMMAND ...] | list | agree SERVER | explain SERVER TOOL [ARGUMENTS]"
    )
    add = parser.add_argument
    add("--vault", metavar="DIR", help="offer the tools of this folder of notes")
    servers = "offer the tools of the MCP server [mcp.NAME] of the settings; may be repeated"
    add("--server", metavar="NAME", action="append", default=[], help=servers)
    add("--http", action="store_true", help="serve streamable HTTP, with a bearer token, instead of stdio")
    add("--host", metavar="H", help=f"with --http: address to listen on; default {HOST}")
    add("--port", metavar="P", type=int, help=f"with --http: port, 0 picks a free one; default {PORT}")
    bearer = "with --http: the bearer token, as env:NAME or file:PATH; default: a new one, printed once"
    add("--bearer", metavar="SECRET", help=bearer)
    question = parser.add_mutually_exclusive_group()
    inbox = (
        "ask for approvals only in the inbox (toolwire approvals); default: in a form that the client shows, "
        "or in the inbox if the client has no forms"
    )
    question.add_argument("--inbox", action="store_true", default=None, help=inbox)
    form = "ask for approvals only in a form of the client; if the client has no forms, refuse the call"
    question.add_argument("--no-inbox", action="store_false", dest="inbox", default=None, help=form)
    lifetime = "seconds that an approval request waits for your decision; default 600"
    add("--lifetime", metavar="S", type=float, default=LIFETIME_S, help=lifetime)
    wait = (
        "if you have not decided after S seconds, answer the client so; it can then send the call again to "
        "get your decision"
    )
    add("--wait", metavar="S", type=float, help=wait)
    add("--name", metavar="NAME", help="with a command: the server's name; default: derived from the command")
    env = "with a command: pass this environment variable to the server; may be repeated"
    add("--env", metavar="VARIABLE", action="append", help=env)
    for action, does in (
        ("allow", "runs without your approval"),
        ("ask", "needs your approval"),
        ("deny", "is refused"),
    ):
        rule = f"with a command: a call that matches this rule {does}; may be repeated"
        add(f"--{action}", metavar="RULE", action="append", help=rule)
    command = "offer the tools of an MCP server: the command that starts it, or its URL"
    add("command", nargs="*", metavar="-- COMMAND", help=command)
    _split_command(parser)


def _split_command(parser: argparse.ArgumentParser) -> None:
    """Changes the parser: all words after `--` are the command that starts an MCP server.

    If the first word is a subcommand, the subcommand parses all other words.
    """
    parse = parser.parse_known_args

    def parsed(given: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        words = list(given or ())
        if words and words[0] in SUBCOMMANDS:
            return _subcommand(parser, words[0], words[1:], namespace)
        at = words.index("--") if "--" in words else len(words)
        found, others = parse(words[:at], namespace)
        if found.command:
            parser.error(f"unknown word {found.command[0]!r}; write the command of a server after --")
        found.command = words[at + 1 :]
        return found, others

    parser.parse_known_args = parsed  # type: ignore[method-assign, assignment]


def _subcommand(
    parser: argparse.ArgumentParser, name: str, words: Sequence[str], namespace: Any
) -> tuple[Any, list[str]]:
    module = import_module(f"toolwire.cli.mcp_{name}")
    sub = type(parser)(prog=f"{parser.prog} {name}", description=module.__doc__)
    for option, kwargs in (("--config", {"metavar": "F"}), ("--debug", {"action": "store_true"})):
        sub.add_argument(option, **kwargs)  # type: ignore[arg-type]
    getattr(module, f"{name}_arguments")(sub)
    found, others = sub.parse_known_args(words, namespace)
    found.run = getattr(module, f"run_{name}")
    return found, others


def run_mcp(arguments: argparse.Namespace) -> int:
    from toolwire.observe.logs import configure
    from toolwire.tools.consent import hide_memory

    hide_memory()
    _check(arguments)
    root = Path(arguments.vault).expanduser() if arguments.vault is not None else None
    if root is not None and not root.is_dir():
        raise ConfigError(f"--vault: {root} is not a folder")
    bearer = _bearer(arguments.bearer) if arguments.http else ""
    settings = load(arguments.config, os.environ, {})
    servers = _chosen(arguments, settings.mcp)
    if find_spec("mcp") is None:
        raise ConfigError(f"toolwire mcp needs the MCP SDK: {add_extra('mcp')}")
    configure("warning")
    served = _opened(arguments, settings, _Offered(root.resolve() if root is not None else None, servers))
    if arguments.http:
        return asyncio.run(_serve_http(arguments, served, settings, bearer))
    return asyncio.run(_serve_stdio(served, arguments))


def _check(arguments: argparse.Namespace) -> None:
    """Raises `ConfigError` for options that do not fit together."""
    if arguments.vault is None and not arguments.server and not arguments.command:
        raise ConfigError("mcp: name what to offer: --vault DIR, --server NAME, or -- COMMAND of a server")
    if not arguments.lifetime > 0:
        raise ConfigError("--lifetime: expected more than 0 seconds")
    if arguments.wait is not None and not 0 < arguments.wait < arguments.lifetime:
        raise ConfigError(
            f"--wait: expected more than 0 and less than {arguments.lifetime:g} seconds (--lifetime)"
        )
    if arguments.wait is not None and arguments.inbox is False:
        raise ConfigError("--wait: applies only to questions in the inbox, which --no-inbox turns off")
    for name in ("host", "port", "bearer"):
        if not arguments.http and getattr(arguments, name) is not None:
            raise ConfigError(f"--{name}: only with --http")
    for name in OF_COMMAND:
        if not arguments.command and getattr(arguments, name) is not None:
            also = "for a server of the settings, edit [mcp.NAME]"
            raise ConfigError(f"--{name}: only for a server whose command follows --; {also}")


# --- which servers


def _chosen(arguments: argparse.Namespace, configured: McpSettings) -> tuple[McpServerSettings, ...]:
    """Returns the servers to offer: those that --server names, and the one whose command follows `--`."""
    by_name = {server.name: server for server in configured.servers}
    chosen = []
    for name in dict.fromkeys(arguments.server):
        if name not in by_name:
            close = get_close_matches(name, by_name, 1)
            known = f"known: {', '.join(by_name)}" if by_name else "the settings have no table [mcp.NAME]"
            raise ConfigError(f"--server {name}: {f'did you mean {close[0]}?' if close else known}")
        if problem := by_name[name].problem:
            raise ConfigError(f"--server {name}: it cannot be used: {problem}")
        chosen.append(by_name[name])
    if arguments.command:
        ad_hoc = _ad_hoc(arguments)
        if ad_hoc.name in by_name:
            taken = f"[mcp.{ad_hoc.name}] is another server of your settings"
            raise ConfigError(f"mcp: {taken}; use --server {ad_hoc.name}, or choose another --name")
        chosen.append(ad_hoc)
    return tuple(chosen)


def _ad_hoc(arguments: argparse.Namespace) -> McpServerSettings:
    words = tuple(arguments.command)
    name = arguments.name if arguments.name is not None else server_name(words)
    if not NAME.fullmatch(name) or "__" in name:
        raise ConfigError(f"--name {name}: {NAMES}")
    env = {}
    for variable in arguments.env or ():
        if variable not in os.environ:
            raise ConfigError(f"--env {variable}: this variable is not set")
        env[variable] = os.environ[variable]
    remote = words[0].startswith(("http://", "https://")) and len(words) == 1
    given: dict[str, Any] = {"url": words[0]} if remote else {"command": words, "folder": os.getcwd()}
    given |= {action: tuple(getattr(arguments, action) or ()) for action in ("allow", "ask", "deny")}
    return McpServerSettings(name, env=env, secret=tuple(env.values()), ad_hoc=True, **given)


_STARTERS = re.compile(r"npx|bunx|uvx|uv|pipx|pnpm|yarn|bun|deno|node|docker|podman|python[\d.]*")
_STEPS = ("run", "tool", "dlx", "exec", "x")
_AFFIX = re.compile(r"^(mcp[-_])?(server[-_])?|([-_]mcp)?([-_]server)?$")


def server_name(words: Sequence[str]) -> str:
    """Derives a server's name from its command or URL.

    For example, the name for `npx -y @scope/server-files@1.2 /srv` is "files".
    """
    if words[0].startswith(("http://", "https://")):
        found = (urlsplit(words[0]).hostname or "").removeprefix("mcp.").removeprefix("www.")
    else:
        program, *rest = [Path(words[0]).name, *words[1:]]
        if _STARTERS.fullmatch(program):
            plain = (word for word in rest if not word.startswith("-") and word not in _STEPS)
            program = next(plain, program)
        scope, _, found = re.sub(r"(?<=.)@.*", "", program.removeprefix("@")).rpartition("/")
        found = Path(scope).name if scope and found in ("mcp", "server", "mcp-server") else found
        found = re.sub(r"\.(py|m?js|ts|exe|sh)$", "", found)
    found = re.sub(r"[^A-Za-z0-9-]+", "-", found).strip("-")
    return (_AFFIX.sub("", found).strip("-") or found or "server")[:32].strip("-")


@dataclass(frozen=True, slots=True)
class _Offered:
    """What `toolwire mcp` offers: the tools of a vault, and the tools of other MCP servers."""

    vault: Path | None
    servers: tuple[McpServerSettings, ...]


@asynccontextmanager
async def _opened(
    arguments: argparse.Namespace, settings: Settings, offered: _Offered
) -> AsyncIterator[ToolServer]:
    """Opens the store, the vault and the offered servers, and yields the `ToolServer` with their tools.

    At the end, every running call is cancelled, and the offered servers end. Every open question expires,
    except for questions in the inbox if --wait is used.
    """
    from toolwire.store.store import Store
    from toolwire.surfaces.mcp.server import ToolServer, Ways
    from toolwire.surfaces.notices.notifier import notices_of
    from toolwire.tools.approvals import Approvals
    from toolwire.tools.consent import Proofs
    from toolwire.tools.contract import source_of_vault
    from toolwire.tools.mcp.servers import McpServers
    from toolwire.tools.vault_tools import opened
    from toolwire.vault.policy import PathRefused

    try:
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(Store(settings.store.url))
            tools: Sequence[Any] = ()
            if offered.vault is not None:
                tools = await stack.enter_async_context(opened(settings, offered.vault))
            servers = None
            if offered.servers:
                servers = McpServers(replace(settings.mcp, servers=offered.servers), store)
                stack.push_async_callback(servers.close)
            proofs = Proofs(store, unproven=settings.approvals.command_line == "open")
            approvals = Approvals(store, lifetime_s=arguments.lifetime, proofs=proofs)
            if (notices := notices_of(settings.notices, store, approvals, _say)) is not None:
                approvals.notices = notices
                stack.push_async_callback(notices.close)
            ways = Ways(arguments.inbox is not True, arguments.inbox is not False, arguments.wait)
            source = source_of_vault(str(offered.vault or ""))
            server = ToolServer(approvals, tools, servers, source=source, ways=ways, notify=_say)
            stack.push_async_callback(server.close)
            yield server
    except PathRefused as refused:
        raise ConfigError(str(refused)) from None


def _say(line: str) -> None:
    print(f"toolwire mcp: {one_line(line, 1000)}", file=sys.stderr, flush=True)


# --- stdio


def _explain(arguments: argparse.Namespace) -> None:
    """Explains to a person who starts the server at a terminal why nothing seems to happen there."""
    given = ["mcp"]
    if arguments.vault is not None:
        given += ["--vault", str(Path(arguments.vault).expanduser().resolve())]
    for name in arguments.server:
        given += ["--server", name]
    given += ["--", *arguments.command] if arguments.command else []
    client = json.dumps({"command": "toolwire", "args": given}, ensure_ascii=False)
    for line in (
        "this is an MCP server: it waits for a client's messages on standard input.",
        "Clients such as Claude Desktop or Cursor start the server themselves. Add this to their settings:",
        f"  {client}",
        "For clients that connect by HTTP, use --http. Ctrl-C ends the server.",
    ):
        _say(line)


async def _serve_stdio(opened: AbstractAsyncContextManager[ToolServer], arguments: argparse.Namespace) -> int:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    if sys.stdin.isatty():
        _explain(arguments)
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
    opened: AbstractAsyncContextManager[ToolServer],
    settings: Settings,
    bearer: str,
) -> int:
    from toolwire.surfaces.http.server import DrainingServer, bind
    from toolwire.surfaces.mcp.http import DRAIN_S, PATH, HttpApp

    host = HOST if arguments.host is None else arguments.host
    server_settings = replace(settings.server, host=host)
    async with opened as here:
        sockets = bind(host, PORT if arguments.port is None else arguments.port)
        try:
            app: Any = HttpApp(here, server_settings, bearer)
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
    """Returns the secret that `--bearer` refers to; a new random secret if the option is not given."""
    if written is None:
        return secrets.token_urlsafe(32)
    found = secret(written, "--bearer", os.environ)
    if found is None:
        others = "other users of this machine can read a secret on the command line"
        raise ConfigError(f"--bearer: write env:NAME or file:PATH; {others}")
    return found

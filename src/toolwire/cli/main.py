"""The command line. Each command is a row of `COMMANDS`; what it needs is imported when it runs.

Rules: every command has --help with an example. What a person can mend is one clear line on stderr and exit status 2; --debug shows the traceback.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from toolwire.settings.types import DEFAULT_MODELS

if TYPE_CHECKING:
    from toolwire.gateway.pipeline import Gateway
    from toolwire.observe.logs import LogFormat
    from toolwire.observe.masking import Mask
    from toolwire.settings.types import Settings

USAGE_ERROR = 2
INTERRUPTED = 130
NO_READER = 141
"""As a shell tells of a program whose output nobody reads any more."""
MOST_ROWS = 16
WIDEST = 1000
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")


@dataclass(frozen=True, slots=True)
class Command:
    """`place`: the module that has `NAME_arguments` and `run_NAME`, where they are not here."""

    name: str
    help: str
    example: str
    arguments: Callable[[argparse.ArgumentParser], None] | None = None
    run: Callable[[argparse.Namespace], int] | None = None
    place: str = ""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = self.arguments or getattr(import_module(self.place), f"{self.name}_arguments")
        add(parser)

    def start(self, arguments: argparse.Namespace) -> int:
        run = self.run or getattr(import_module(self.place), f"run_{self.name}")
        status: int = run(arguments)
        return status


# --- serve -------------------------------------------------------------------------------------------------------------------------------------


def _serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", metavar="H", help="address to listen on; another one than loopback needs server.keys")
    parser.add_argument("--port", metavar="P", type=int, help="port to listen on; 0 picks a free one")
    parser.add_argument("--print-config", action="store_true", help="show the settings in force, secrets masked, and exit")
    levels = f"{', '.join(LOG_LEVELS)}; info logs one line a request"
    parser.add_argument("--log-level", metavar="L", choices=LOG_LEVELS, default="warning", help=levels)
    parser.add_argument("--log-format", metavar="F", choices=LOG_FORMATS, default="text", help="text, or json: every line is an object")


def _serve(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments, {"server.host": arguments.host, "server.port": arguments.port}, exposed=False)
    _check_exposed(settings)
    if arguments.print_config:
        from toolwire.settings.discover import with_discovered
        from toolwire.settings.types import print_config

        print(print_config(with_discovered(settings)), end="")
        return 0
    from toolwire.observe.masking import Mask

    configure_logging(arguments.log_level, arguments.log_format, Mask.of(settings, os.environ))
    first_run = settings.models is DEFAULT_MODELS
    from toolwire.settings.discover import with_discovered
    from toolwire.surfaces.http.server import serve

    return serve(with_discovered(settings), announce=_tell_found if first_run else None)


def _check_exposed(settings: Settings) -> None:
    """Raises where other machines would reach a server that has no key, neither in its settings nor in its store."""
    import asyncio

    from toolwire.settings.load import check_exposure
    from toolwire.settings.types import ConfigError

    try:
        check_exposure(settings.server)
    except ConfigError:
        from toolwire.access.keys import any_stored

        if not asyncio.run(any_stored(settings.store.url)):
            raise


def _tell_found(gateway: Gateway) -> None:
    """The first run's table: what is there to talk to."""
    from toolwire.observe.logs import say
    from toolwire.surfaces.tables import model_rows, table

    rows = model_rows(gateway.catalog)
    shown, more = rows[:MOST_ROWS], len(rows) - MOST_ROWS
    cells = [("MODEL", "BACKEND", "TOOLS"), *((row["id"], row["backend"], row["tools"]) for row in shown)]
    lines = [*table(cells), *([f"… and {more} more: toolwire models"] if more > 0 else [])]
    if not any(row["backend"] == "local" for row in rows):
        lines.append("no embedded model: pip install 'toolwire[local]', then toolwire local pull; until then the scripted demo answers")
    lines += ["nothing is configured: this is what was found; toolwire doctor explains the rest", ""]
    say("\n".join(lines), event="models", models=rows)


def configure_logging(level: str, format: LogFormat = "text", mask: Mask | None = None) -> None:
    """Logs go to stderr; what the mask knows never does."""
    from toolwire.observe.logs import configure

    configure(level, format, mask)


# --- models ------------------------------------------------------------------------------------------------------------------------------------


def _models_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="a JSON list, for scripts")


def _models(arguments: argparse.Namespace) -> int:
    import asyncio
    import json

    from toolwire.gateway.pipeline import Gateway
    from toolwire.settings.discover import with_discovered
    from toolwire.surfaces.tables import model_rows, table

    gateway = Gateway(with_discovered(_settings(arguments, {})))
    rows = asyncio.run(_prepared(gateway, lambda: model_rows(gateway.catalog)))
    if arguments.json:
        print(json.dumps(rows))
        return 0
    cells = [("MODEL", "BACKEND", "TOOLS", "DIALECT", "CAPABILITIES")]
    cells += [(row["id"], row["backend"], row["tools"], row["dialect"] or "-", ", ".join(row["capabilities"]) or "-") for row in rows]
    print("\n".join(table(cells)))
    return 0


async def _prepared(gateway: Gateway, then: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Lets every backend find out what it can do; one that can not be reached is shown as it would like to be."""
    from toolwire.core.errors import ToolwireError
    from toolwire.core.shown import one_line

    try:
        await gateway.start()
        for backend in gateway.models.values():
            try:
                await backend.prepare()
            except ToolwireError as error:
                print(f"toolwire: {one_line(f'{backend.id}: {error}', WIDEST)}", file=sys.stderr)
        return then()
    finally:
        await gateway.close()


# --- doctor ------------------------------------------------------------------------------------------------------------------------------------


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="a JSON list, for scripts")


def _doctor(arguments: argparse.Namespace) -> int:
    import asyncio
    import json
    from dataclasses import asdict

    from toolwire.cli.doctor import examine, report

    findings = asyncio.run(examine(_settings(arguments, {})))
    print(json.dumps([asdict(finding) for finding in findings]) if arguments.json else report(findings))
    return 1 if any(finding.mark == "problem" for finding in findings) else 0


# --- local -------------------------------------------------------------------------------------------------------------------------------------


def _local_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("pull",), help="pull: fetch the embedded model, with a progress bar and a checksum")
    parser.add_argument("name", nargs="?", metavar="NAME", help="which one; default: the small one that toolwire serve uses")


def _local(arguments: argparse.Namespace) -> int:
    from toolwire.backends.local.pull import pull

    print(pull(arguments.name))
    return 0


COMMANDS = (
    Command("serve", "run the gateway", "toolwire serve --port 8788", _serve_arguments, _serve),
    Command("models", "list the configured models", "toolwire models --config toolwire.toml", _models_arguments, _models),
    Command("chat", "chat with a model, over your notes", "toolwire chat --vault ~/notes", place="toolwire.cli.terminal"),
    Command("ask", "ask one question", 'toolwire ask "What is a park?"', place="toolwire.cli.terminal"),
    Command("note", "go on with a conversation that lives in a note", "toolwire note Ideas.md", place="toolwire.cli.terminal"),
    Command("vault", "index or search a folder of notes", 'toolwire vault search ~/notes "plan"', place="toolwire.cli.vault"),
    Command("mcp", "offer a vault's tools over MCP", "toolwire mcp --vault ~/notes", place="toolwire.cli.mcp"),
    Command("approvals", "decide what tools may do", "toolwire approvals list", place="toolwire.cli.terminal"),
    Command("keys", "API keys with names, scopes and budgets", "toolwire keys add laptop", place="toolwire.cli.keys"),
    Command("replay", "run a turn of the journal again, and compare", "toolwire replay turn.jsonl", place="toolwire.cli.replay"),
    Command("conform", "judge an endpoint's tool calling", "toolwire conform http://127.0.0.1:8788/v1", place="toolwire.cli.conform"),
    Command("local", "fetch the model that runs inside Toolwire", "toolwire local pull", _local_arguments, _local),
    Command("doctor", "say what works, what is missing, and how to fix it", "toolwire doctor", _doctor_arguments, _doctor),
)


# --- the frame around the commands -------------------------------------------------------------------------------------------------------------


def _settings(arguments: argparse.Namespace, overrides: dict[str, Any], exposed: bool = True) -> Settings:
    """`exposed` false: whether an exposed server has keys is not asked here; they may stand in the store."""
    from toolwire.settings.load import load

    return load(arguments.config, os.environ, {key: value for key, value in overrides.items() if value is not None}, exposed=exposed)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"toolwire: {message} (see {self.prog} --help)\n")


def build_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """`chosen`: only this command's arguments are needed, so that the modules of others need not be loaded."""
    parser = _Parser(prog="toolwire", description="OpenAI-grade tool calling for any model.", epilog="example: toolwire serve")
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for command in COMMANDS:
        sub = commands.add_parser(command.name, help=command.help, description=command.help, epilog=f"example: {command.example}")
        sub.add_argument("--config", metavar="F", help="settings file; default: TOOLWIRE_CONFIG, ./toolwire.toml, the user's config directory")
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error")
        if chosen is None or command.name == chosen:
            command.add_arguments(sub)
        sub.set_defaults(run=command.start)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; gives the exit status."""
    try:
        try:
            return _main(sys.argv[1:] if argv is None else list(argv))
        finally:
            _flush()
    except BrokenPipeError:
        broken = _broken_outputs()
        if not broken:
            raise
        for stream in broken:
            _silence(stream)
        return NO_READER


def _flush() -> None:
    """Here, where it can still be told that nobody reads it, or that its disk is full."""
    try:
        print(end="", flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        from toolwire.store.disk import why

        _silence(sys.stdout)
        print(f"toolwire: the output could not be written: {why(error)}", file=sys.stderr)
        raise SystemExit(USAGE_ERROR) from None


def _silence(stream: TextIO) -> None:
    """Nothing more is written to it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _main(given: list[str]) -> int:
    names = {command.name for command in COMMANDS}
    parser = build_parser(next((word for word in given if word in names), ""))
    arguments = parser.parse_args(given)
    if arguments.version:
        from importlib.metadata import version

        print(f"toolwire {version('toolwire')}")
        return 0
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return USAGE_ERROR
    try:
        status: int = arguments.run(arguments)
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if arguments.debug or (isinstance(error, BrokenPipeError) and _broken_outputs()):
            raise
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            _flush()  # where it was the output's disk, that is told
        _complain(_one_line(error), getattr(arguments, "log_format", "text"))
        return USAGE_ERROR


def _complain(line: str, format: str) -> None:
    if format == "json":
        from toolwire.observe.logs import as_object

        print(as_object({"event": "log", "level": "error", "logger": "toolwire", "message": line}), file=sys.stderr)
    else:
        from toolwire.core.shown import clean

        print(f"toolwire: {clean(line)}", file=sys.stderr)


def _broken_outputs() -> list[TextIO]:
    """Those of the outputs whose reader is gone, as that of `toolwire models | head`."""
    import select

    broken = []
    for stream in (sys.stdout, sys.stderr):
        looking = select.poll()
        looking.register(stream, 0)  # errors are told without being asked for
        broken += [stream] if looking.poll(0) else []
    return broken


def _one_line(error: Exception) -> str:
    from toolwire.core.errors import ToolwireError
    from toolwire.settings.types import ConfigError

    text = " ".join(str(error).split())
    if isinstance(error, ConfigError | ToolwireError):
        return text
    return f"unexpected {type(error).__name__}: {text} (--debug shows the traceback)"

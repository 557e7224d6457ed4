"""The command line. Each command is a row of `COMMANDS`; what it needs is imported when it runs.

Every command has --help with an example. An error is one line on stderr and exit status 2.
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
"""The exit status that a shell reports for SIGPIPE."""
MOST_ROWS = 16
WIDEST = 1000
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")


@dataclass(frozen=True, slots=True)
class Command:
    """`module`: has `NAME_arguments` and `run_NAME`, unless `arguments` and `run` are given."""

    name: str
    help: str
    example: str
    arguments: Callable[[argparse.ArgumentParser], None] | None = None
    run: Callable[[argparse.Namespace], int] | None = None
    module: str = ""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        (self.arguments or getattr(import_module(self.module), f"{self.name}_arguments"))(parser)

    def start(self, arguments: argparse.Namespace) -> int:
        run = self.run or getattr(import_module(self.module), f"run_{self.name}")
        status: int = run(arguments)
        return status


# --- serve


def _serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", metavar="H", help="address to listen on; another one than loopback needs server.keys"
    )
    parser.add_argument("--port", metavar="P", type=int, help="port to listen on; 0 picks a free one")
    parser.add_argument(
        "--print-config", action="store_true", help="show the settings in force, secrets masked, and exit"
    )
    levels = f"{', '.join(LOG_LEVELS)}; info logs one line a request"
    parser.add_argument("--log-level", metavar="L", choices=LOG_LEVELS, default="warning", help=levels)
    parser.add_argument(
        "--log-format",
        metavar="F",
        choices=LOG_FORMATS,
        default="text",
        help="text, or json: every line is an object",
    )


def _serve(arguments: argparse.Namespace) -> int:
    settings = _settings(
        arguments, {"server.host": arguments.host, "server.port": arguments.port}, exposed=False
    )
    _check_exposed(settings)
    from toolwire.settings.discover import with_discovered

    if arguments.print_config:
        from toolwire.settings.types import print_config

        print(print_config(with_discovered(settings)), end="")
        return 0
    from toolwire.observe.masking import Mask

    configure_logging(arguments.log_level, arguments.log_format, Mask.of(settings, os.environ))
    from toolwire.surfaces.http.server import serve

    first_run = settings.models is DEFAULT_MODELS
    return serve(with_discovered(settings), announce=_show_found if first_run else None)


def _check_exposed(settings: Settings) -> None:
    """Raises if other machines would reach a server without a key in its settings or its store."""
    import asyncio

    from toolwire.settings.load import check_exposure
    from toolwire.settings.types import ConfigError

    try:
        check_exposure(settings.server)
    except ConfigError:
        from toolwire.access.keys import any_stored

        if not asyncio.run(any_stored(settings.store.url)):
            raise


def _show_found(gateway: Gateway) -> None:
    """Prints the models that the first run found."""
    from toolwire.observe.logs import say
    from toolwire.surfaces.tables import model_rows, table

    rows = model_rows(gateway.catalog)
    shown, more = rows[:MOST_ROWS], len(rows) - MOST_ROWS
    cells = [("MODEL", "BACKEND", "TOOLS"), *((row["id"], row["backend"], row["tools"]) for row in shown)]
    lines = [*table(cells), *([f"… and {more} more: toolwire models"] if more > 0 else [])]
    if not any(row["backend"] == "local" for row in rows):
        lines.append(
            "no embedded model: pip install 'toolwire[local]', then toolwire local pull; "
            "until then the scripted demo answers"
        )
    lines += ["nothing is configured: this is what was found; toolwire doctor explains the rest", ""]
    say("\n".join(lines), event="models", models=rows)


def configure_logging(level: str, format: LogFormat = "text", mask: Mask | None = None) -> None:
    """Logs go to stderr, masked."""
    from toolwire.observe.logs import configure

    configure(level, format, mask)


# --- models


def _models_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="a JSON list, for scripts")


_doctor_arguments = _models_arguments


def _models(arguments: argparse.Namespace) -> int:
    import asyncio
    import json

    from toolwire.gateway.pipeline import Gateway
    from toolwire.settings.discover import with_discovered
    from toolwire.surfaces.tables import model_rows, table

    gateway = Gateway(with_discovered(_settings(arguments, {})))
    asyncio.run(_prepare(gateway))
    rows = model_rows(gateway.catalog)
    if arguments.json:
        print(json.dumps(rows))
        return 0
    cells: list[tuple[str, ...]] = [("MODEL", "BACKEND", "TOOLS", "DIALECT", "CAPABILITIES")]
    cells += [
        (
            *(row[key] or "-" for key in ("id", "backend", "tools", "dialect")),
            ", ".join(row["capabilities"]) or "-",
        )
        for row in rows
    ]
    print("\n".join(table(cells)))
    return 0


async def _prepare(gateway: Gateway) -> None:
    """Every backend finds out what it can do; one that cannot be reached keeps what it assumes."""
    from toolwire.core.display import one_line
    from toolwire.core.errors import ToolwireError

    try:
        await gateway.start()
        for backend in gateway.models.values():
            try:
                await backend.prepare()
            except ToolwireError as error:
                print(f"toolwire: {one_line(f'{backend.id}: {error}', WIDEST)}", file=sys.stderr)
    finally:
        await gateway.close()


# --- doctor


def _doctor(arguments: argparse.Namespace) -> int:
    import asyncio
    import json
    from dataclasses import asdict

    from toolwire.cli.doctor import examine, report

    findings = asyncio.run(examine(_settings(arguments, {})))
    print(json.dumps([asdict(finding) for finding in findings]) if arguments.json else report(findings))
    return 1 if any(finding.mark == "problem" for finding in findings) else 0


# --- local


def _local_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=("pull",), help="pull: fetch the embedded model, with a progress bar and a checksum"
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="which one; default: the small one that toolwire serve uses"
    )


def _local(arguments: argparse.Namespace) -> int:
    from toolwire.backends.local.pull import pull

    print(pull(arguments.name))
    return 0


def _command(name: str, help: str, example: str, module: str = "") -> Command:
    return Command(name, help, f"toolwire {example}", module=f"toolwire.cli.{module or name}")


COMMANDS = (
    Command("serve", "run the gateway", "toolwire serve --port 8788", _serve_arguments, _serve),
    Command(
        "models",
        "list the configured models",
        "toolwire models --config toolwire.toml",
        _models_arguments,
        _models,
    ),
    _command("chat", "chat with a model, over your notes", "chat --vault ~/notes", "terminal"),
    _command("ask", "ask one question", 'ask "What is a park?"', "terminal"),
    _command("note", "continue a conversation that is in a note", "note Ideas.md", "terminal"),
    _command("vault", "index or search a folder of notes", 'vault search ~/notes "plan"'),
    _command("mcp", "offer a vault's tools over MCP", "mcp --vault ~/notes"),
    _command("approvals", "decide what tools may do", "approvals list", "terminal"),
    _command("keys", "API keys with names, scopes and budgets", "keys add laptop"),
    _command("replay", "run a turn of the journal again, and compare", "replay turn.jsonl"),
    _command("conform", "judge an endpoint's tool calling", "conform http://127.0.0.1:8788/v1"),
    Command(
        "local", "fetch the model that runs inside Toolwire", "toolwire local pull", _local_arguments, _local
    ),
    Command(
        "doctor",
        "show what works, what is missing, and how to fix it",
        "toolwire doctor",
        _doctor_arguments,
        _doctor,
    ),
)


# --- the frame around the commands


def _settings(arguments: argparse.Namespace, overrides: dict[str, Any], exposed: bool = True) -> Settings:
    """`exposed` False: does not check that an exposed server has keys; they may be in the store."""
    from toolwire.settings.load import load

    given = {key: value for key, value in overrides.items() if value is not None}
    return load(arguments.config, os.environ, given, exposed=exposed)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"toolwire: {message} (see {self.prog} --help)\n")


def build_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """`chosen`: adds only this command's arguments, so that the modules of the others are not loaded."""
    about = "OpenAI-grade tool calling for any model."
    parser = _Parser(prog="toolwire", description=about, epilog="example: toolwire serve")
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for command in COMMANDS:
        sub = commands.add_parser(
            command.name, help=command.help, description=command.help, epilog=f"example: {command.example}"
        )
        sub.add_argument(
            "--config",
            metavar="F",
            help="settings file; default: TOOLWIRE_CONFIG, ./toolwire.toml, the user's config directory",
        )
        sub.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )
        if chosen is None or command.name == chosen:
            command.add_arguments(sub)
        sub.set_defaults(run=command.start)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status."""
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
    """Flushes stdout while a closed pipe or a full disk can still be reported."""
    try:
        print(end="", flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        from toolwire.store.engine import disk_error

        _silence(sys.stdout)
        print(f"toolwire: the output could not be written: {disk_error(error)}", file=sys.stderr)
        raise SystemExit(USAGE_ERROR) from None


def _silence(stream: TextIO) -> None:
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
            _flush()  # reports the error, if the disk of the output is full
        _complain(_one_line(error), getattr(arguments, "log_format", "text"))
        return USAGE_ERROR


def _complain(line: str, format: str) -> None:
    if format == "json":
        from toolwire.observe.logs import as_object

        fields = {"event": "log", "level": "error", "logger": "toolwire", "message": line}
        print(as_object(fields), file=sys.stderr)
    else:
        from toolwire.core.display import clean

        print(f"toolwire: {clean(line)}", file=sys.stderr)


def _broken_outputs() -> list[TextIO]:
    """The outputs whose reader is gone, as in `toolwire models | head`."""
    import select

    broken = []
    for stream in (sys.stdout, sys.stderr):
        poll = select.poll()
        poll.register(stream, 0)  # errors are reported in any case
        broken += [stream] if poll.poll(0) else []
    return broken


def _one_line(error: Exception) -> str:
    from toolwire.core.errors import ToolwireError
    from toolwire.settings.types import ConfigError

    text = " ".join(str(error).split())
    if isinstance(error, ConfigError | ToolwireError):
        return text
    return f"unexpected {type(error).__name__}: {text} (--debug shows the traceback)"

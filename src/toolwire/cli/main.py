"""The command line. `COMMANDS` lists the commands; the module of a command is imported when it runs.

Every command has --help with an example. An error is one line on stderr, with exit status 2.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from toolwire.settings.types import DEFAULT_MODELS

if TYPE_CHECKING:
    from toolwire.gateway.pipeline import Gateway
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
    """A command of `toolwire`.

    `module`: a module of `toolwire.cli` with the functions `NAME_arguments`, which adds the command's
    arguments to a parser, and `run_NAME`, which runs the command and returns the exit status.
    """

    name: str
    help: str
    example: str
    module: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        getattr(import_module(f"toolwire.cli.{self.module}"), f"{self.name}_arguments")(parser)

    def start(self, arguments: argparse.Namespace) -> int:
        status: int = getattr(import_module(f"toolwire.cli.{self.module}"), f"run_{self.name}")(arguments)
        return status


COMMANDS = (
    Command("serve", "run the gateway", "serve --port 8788", "main"),
    Command("open", "open the web pages, signed in", "open", "open"),
    Command("tour", "see approvals at work, with a sample vault and a scripted model", "tour", "tour"),
    Command("launch", "start a coding agent that uses the gateway", "launch claude", "launch"),
    Command(
        "models", "list the models, and whether each can answer", "models --config toolwire.toml", "models"
    ),
    Command("chat", "chat with a model that can use your notes", "chat --vault ~/notes", "terminal"),
    Command("ask", "ask one question", 'ask "What is a park?"', "terminal"),
    Command("note", "continue the conversation in a note", "note Ideas.md", "terminal"),
    Command("vault", "index or search a folder of notes", 'vault search ~/notes "plan"', "vault"),
    Command(
        "mcp", "run an MCP server: tools for notes, or tools of other servers", "mcp --vault ~/notes", "mcp"
    ),
    Command("approvals", "decide whether tool calls may run", "approvals list", "terminal"),
    Command(
        "notices", "list the notices about approval requests, or send a test", "notices test phone", "notices"
    ),
    Command("keys", "manage API keys with names, scopes and budgets", "keys add laptop", "keys"),
    Command("replay", "replay a recorded request, and show what changed", "replay turn.jsonl", "main"),
    Command("conform", "check an endpoint's tool calling", "conform http://127.0.0.1:8788/v1", "conform"),
    Command("local", "list and download models that run inside Toolwire", "local list", "local"),
    Command("doctor", "show what works, what is missing, and how to fix it", "doctor", "doctor"),
)


# --- serve


def serve_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", metavar="H", help="address to listen on; if it is not loopback, an API key must exist")
    add("--port", metavar="P", type=int, help="port to listen on; 0 picks a free one")
    add("--print-config", action="store_true", help="show the settings, with secrets masked, and exit")
    levels = f"{', '.join(LOG_LEVELS)}; info logs one line for each request"
    add("--log-level", metavar="L", choices=LOG_LEVELS, default="warning", help=levels)
    formats = "text, or json: one JSON object on each line"
    add("--log-format", metavar="F", choices=LOG_FORMATS, default="text", help=formats)
    # The reading end of a pipe. When the process that started this server ends, the pipe closes, and the
    # server ends too.
    add("--lifeline", metavar="FD", type=int, default=-1, help=argparse.SUPPRESS)


def run_serve(arguments: argparse.Namespace) -> int:
    given = {"server.host": arguments.host, "server.port": arguments.port}
    given = {key: value for key, value in given.items() if value is not None}
    settings = _settings(arguments, given, exposed=False)
    _check_exposed(settings)
    from toolwire.settings.discover import with_discovered

    if arguments.print_config:
        from toolwire.settings.types import print_config

        print(print_config(with_discovered(settings)), end="")
        return 0
    from toolwire.observe import logs
    from toolwire.observe.masking import Mask
    from toolwire.surfaces.http.server import serve

    logs.configure(arguments.log_level, arguments.log_format, Mask.of(settings, os.environ))
    for model in settings.models:
        if model.problem:
            line = f"model {model.id} is not available: {model.problem} ({model.where})"
            logs.say(f"toolwire: {line}", event="unavailable", model=model.id, reason=model.problem)
    first_run = settings.models is DEFAULT_MODELS
    announce = _show_found if first_run else None
    # If it is not the first run, the server discovers models later.
    offered = with_discovered(settings) if first_run else settings
    return serve(offered, announce=announce, lifeline=arguments.lifeline)


def _check_exposed(settings: Settings) -> None:
    """Raises an error if other machines could reach the server and no API key exists.

    A key may be in the settings or in the store.
    """
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
    """Prints the models that Toolwire found because the settings contain no model."""
    from toolwire.backends.local.pull import BETTER, MODELS, importable, megabytes
    from toolwire.observe.logs import say
    from toolwire.settings.extras import add_extra, own_command
    from toolwire.surfaces.tables import model_rows, table

    rows = model_rows(gateway.catalog)
    cells = [(row["id"], row["backend"], row["tools"]) for row in rows[:MOST_ROWS]]
    lines = table([("MODEL", "BACKEND", "TOOLS"), *cells])
    if len(rows) > MOST_ROWS:
        lines.append(f"… and {len(rows) - MOST_ROWS} more: toolwire models")
    about = {row["id"]: gateway.catalog.about(row["id"]) for row in rows}
    if all(one.is_trial for one in about.values()):
        better = MODELS[BETTER]
        steps = [own_command(f"local pull {BETTER}")]
        if not importable():
            steps.insert(0, add_extra("local"))
        small = (f"{id} is {one.title}, a tiny model {one.use}" for id, one in about.items() if one.title)
        now = next(small, "only the scripted demo answers")
        lines.append(f"{now}; to get {better.title} ({megabytes(better.size)}): {', then '.join(steps)}")
    lines += ["no model is configured: using the models above; run toolwire doctor for details", ""]
    say("\n".join(lines), event="models", models=rows)


# --- replay


def replay_arguments(parser: argparse.ArgumentParser) -> None:
    fixture = "a recording: downloaded from the Wire page (Download fixture), or a file in journal/turns"
    parser.add_argument("file", metavar="FILE", help=fixture)
    parser.add_argument("--json", action="store_true", help="one JSON object, for scripts")


def run_replay(arguments: argparse.Namespace) -> int:
    """Replays a recorded request and prints how the response would differ now.

    Exit status 0: the client would receive the same response as when the request was recorded; 1: the client
    would receive a different response; 2: the file cannot be read or replayed.
    """
    import json

    from toolwire.observe.fixture import read
    from toolwire.observe.recording import RecordingError
    from toolwire.observe.replay import replay

    try:
        with open(arguments.file, "rb") as file:
            result = replay(read(file.read().splitlines()))
    except (OSError, RecordingError) as error:
        from toolwire.core.display import one_line

        reason = error.strerror if isinstance(error, OSError) else None
        print(f"toolwire: {arguments.file}: {one_line(reason or str(error), 400)}", file=sys.stderr)
        return USAGE_ERROR
    print(json.dumps(result.as_json()) if arguments.json else _compared(result.differences))
    return 0 if result.same else 1


def _compared(differences: list[dict[str, Any]]) -> str:
    if not differences:
        return "same: the client would receive the same response"
    lines = []
    for one in differences:
        lines += [
            _visible(one["where"]),
            f"  then  {_visible(one['then'])}",
            f"  now   {_visible(one['now'])}",
        ]
    return "\n".join(
        [*lines, f"different: {len(differences)} {'place' if len(differences) == 1 else 'places'}"]
    )


def _visible(text: str, width: int = 400) -> str:
    """Returns the text on one line, with control characters escaped."""
    shown = text[:width].replace("\r", "\\r").replace("\n", "\\n")
    shown = "".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in shown)
    return shown + ("…" if len(text) > width else "") or "(nothing)"


# --- parsing and error handling


def _settings(
    arguments: argparse.Namespace, overrides: dict[str, Any] | None = None, exposed: bool = True
) -> Settings:
    """Loads the settings.

    `exposed`: raise an error if other machines could reach the server and the settings contain no key. False
    for a command that also looks for keys in the store.
    """
    from toolwire.settings.load import load

    return load(arguments.config, os.environ, overrides or {}, exposed=exposed)


_CHOICE = re.compile(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)", re.S)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        match = _CHOICE.fullmatch(message)
        if match is not None:
            message = _unknown(match[1], match[2], re.findall(r"[^\s',]+", match[3]))
        self.exit(USAGE_ERROR, f"toolwire: {message} (see {self.prog} --help)\n")


def _unknown(what: str, given: str, known: list[str]) -> str:
    """Returns the message for an unknown word, with the known word that is most similar."""
    from difflib import get_close_matches

    from toolwire.core.display import one_line

    close = get_close_matches(given, known, 1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
    return f"there is no {what.lower()} {one_line(given, 80)!r}; {hint}"


def build_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """Builds the parser of the command line.

    `chosen`: the command whose arguments are added, so that no other command's module has to be imported;
    None: the arguments of every command.
    """
    about = "OpenAI-grade tool calling for any model."
    parser = _Parser(prog="toolwire", description=about, epilog="example: toolwire serve")
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    traceback = "show the traceback of an error"
    parser.add_argument("--debug", action="store_true", help=traceback)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    config = "settings file; default: $TOOLWIRE_CONFIG, ./toolwire.toml or ~/.config/toolwire/toolwire.toml"
    for command in COMMANDS:
        about, example = command.help, f"example: toolwire {command.example}"
        sub = commands.add_parser(command.name, help=about, description=about, epilog=example)
        sub.add_argument("--config", metavar="F", help=config)
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=traceback)
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
    """Flushes stdout early, so that a closed pipe or a full disk can still be reported."""
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
            _flush()  # if the disk of stdout is full, this reports the error and exits
        _report(_one_line(error), getattr(arguments, "log_format", "text"))
        return USAGE_ERROR


def _report(line: str, format: str) -> None:
    if format == "json":
        from toolwire.observe.logs import as_object

        fields = {"event": "log", "level": "error", "logger": "toolwire", "message": line}
        print(as_object(fields), file=sys.stderr)
    else:
        from toolwire.core.display import clean

        print(f"toolwire: {clean(line)}", file=sys.stderr)


def _broken_outputs() -> list[TextIO]:
    """Returns the outputs whose reader has closed the pipe, as in `toolwire models | head`."""
    import select

    broken = []
    for stream in (sys.stdout, sys.stderr):
        poll = select.poll()
        poll.register(stream, 0)  # `poll` reports errors even if no events are requested
        if poll.poll(0):
            broken.append(stream)
    return broken


def _one_line(error: Exception) -> str:
    from toolwire.core.errors import ToolwireError
    from toolwire.settings.types import ConfigError

    text = " ".join(str(error).split())
    if isinstance(error, ConfigError | ToolwireError):
        return text
    if isinstance(error, OSError) and error.errno:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or os.strerror(error.errno)} (--debug shows the traceback)"
    return f"unexpected {type(error).__name__}: {text} (--debug shows the traceback)"

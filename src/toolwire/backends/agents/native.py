"""What agents ask for by kinds of their own → the client's tools, as one table.

A row says which tool of the client's a kind means, how its arguments are called there, and what of the tool's answer goes back. It is used only where
the client declared that very tool; everything else is refused with an error that says so. Nothing is ever run on the gateway's host. Pure.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = Any
Arguments = dict[str, Json]
Build = Callable[[Mapping[str, Json]], Arguments]
Read = Callable[[str, Mapping[str, Json]], dict[str, Json]]


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A call of a client's tool that stands for a request of the agent's. `kind` and `request` are what `answer` needs."""

    kind: str
    tool: str
    arguments: Arguments
    request: Mapping[str, Json]


class Refused(Exception):
    """The agent asked for what the client does not offer. The message is for the agent."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to serve a kind: `tool` with the arguments that `build` makes, the answer read by `read`; `when` decides by the request."""

    tool: str
    build: Build
    read: Read
    when: Callable[[Mapping[str, Json]], bool] = lambda request: True


def _fields(*needed: tuple[str, str], optional: Sequence[tuple[str, str]] = ()) -> Build:
    """Arguments by name: (the client's name, the agent's name). A needed one that is missing is refused; an optional one is left out."""

    def build(request: Mapping[str, Json]) -> Arguments:
        missing = [theirs for _, theirs in needed if request.get(theirs) is None]
        if missing:
            raise Refused(f"The request lacks {', '.join(missing)}.")
        out = {ours: request[theirs] for ours, theirs in needed}
        out.update(
            {ours: request[theirs] for ours, theirs in optional if request.get(theirs) not in (None, "")}
        )
        return out

    return build


# --- arguments that are more than names ------------------------------------------------------------------------------------------------------------

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_COMMAND = _fields(("command", "command"), optional=(("cwd", "cwd"),))


def _terminal(request: Mapping[str, Json]) -> Arguments:
    """A program with its arguments, or a whole line, and its variables, as one command for a shell."""
    built = _COMMAND(request)
    words = [str(word) for word in request.get("args") or ()]
    line = shlex.join([str(built["command"]), *words]) if words else str(built["command"])
    for variable in request.get("env") or ():
        name = str(variable.get("name", ""))
        if not _VARIABLE.match(name):
            raise Refused(f"{name[:40]!r} is no name of an environment variable.")
        line = f"export {name}={shlex.quote(str(variable.get('value', '')))}; {line}"
    return {**built, "command": line}


def _remove(request: Mapping[str, Json]) -> Arguments:
    return {"command": f"rm -f -- {shlex.quote(str(_fields(('path', 'path'))(request)['path']))}"}


def _verbatim(request: Mapping[str, Json]) -> Arguments:
    given = request.get("args")
    return dict(given) if isinstance(given, Mapping) else {}


# --- what goes back --------------------------------------------------------------------------------------------------------------------------------


def _object(text: str) -> Mapping[str, Json] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _shell(text: str, request: Mapping[str, Json]) -> dict[str, Json]:
    """JSON with one of the known keys, else the text is what was printed by a command that went well."""
    found = _object(text)
    if found is None or not {"stdout", "stderr", "exitCode"} & set(found):
        return {"stdout": text, "stderr": "", "exitCode": 0, "executionTimeMs": 0}
    code, took = found.get("exitCode"), found.get("executionTimeMs")
    return {
        "stdout": str(found.get("stdout") or ""),
        "stderr": str(found.get("stderr") or ""),
        "exitCode": code if isinstance(code, int) else 0,
        "executionTimeMs": took if isinstance(took, int) else 0,
    }


def _written(text: str, request: Mapping[str, Json]) -> dict[str, Json]:
    found = _object(text) or {}
    if found.get("error"):
        return {"error": str(found["error"])}
    content = str(request.get("fileText", request.get("content")) or "")
    return {
        "linesCreated": found.get("linesCreated", len(content.splitlines())),
        "fileSize": found.get("fileSize", len(content.encode("utf-8", "surrogatepass"))),
        "fileContentAfterWrite": found.get("fileContentAfterWrite", content),
    }


def _deleted(text: str, request: Mapping[str, Json]) -> dict[str, Json]:
    found = _object(text) or {}
    code = found.get("exitCode")
    if found.get("error") or (isinstance(code, int) and code):
        return {"error": str(found.get("error") or found.get("stderr") or f"exit status {code}")}
    return {"path": request.get("path")}


def _file_list(text: str, request: Mapping[str, Json]) -> dict[str, Json]:
    return {"files_with_matches": [line for line in text.splitlines() if line.strip()]}


def _mcp(text: str, request: Mapping[str, Json]) -> dict[str, Json]:
    return {"content": [{"type": "text", "text": text}], "isError": False}


def _text(key: str) -> Read:
    return lambda text, request: {key: text}


# --- the table -------------------------------------------------------------------------------------------------------------------------------------

_SHELL = (Way("bash", _COMMAND, _shell),)
KINDS: dict[str, tuple[Way, ...]] = {
    "shell": _SHELL,
    "shell_stream": _SHELL,
    "background_shell": _SHELL,
    "write": (Way("write", _fields(("filePath", "path"), ("content", "fileText")), _written),),
    "grep": (
        Way(
            "glob",
            _fields(("pattern", "glob"), optional=(("path", "path"),)),
            _file_list,
            lambda request: bool(request.get("glob")),
        ),
        Way(
            "grep",
            _fields(("pattern", "pattern"), optional=(("path", "path"),)),
            _file_list,
            lambda request: not request.get("glob"),
        ),
    ),
    "read": (Way("read", _fields(("filePath", "path")), _text("content")),),
    "ls": (Way("list", _fields(("path", "path")), _text("files_string")),),
    "mcp": (Way("", _verbatim, _mcp),),
    "delete": (Way("delete", _fields(("filePath", "path")), _deleted), Way("bash", _remove, _deleted)),
    "fetch": (Way("webfetch", _fields(("url", "url")), _text("content")),),
    "subagent": (
        Way(
            "task",
            _fields(
                ("description", "description"),
                ("prompt", "prompt"),
                optional=(("subagent_type", "subagent_type"),),
            ),
            _text("result"),
        ),
    ),
    "diagnostics": (Way("read_lints", _fields(("path", "path")), _text("diagnostics")),),
    "fs/read_text_file": (
        Way(
            "read",
            _fields(("filePath", "path"), optional=(("offset", "line"), ("limit", "limit"))),
            _text("content"),
        ),
    ),
    "fs/write_text_file": (Way("write", _fields(("filePath", "path"), ("content", "content")), _written),),
    "terminal/create": (Way("bash", _terminal, _shell),),
}
"""By kind, the ways in the order in which they are tried. A way without a tool's name means the tool that the request names by `toolName`."""


def _tool(way: Way, request: Mapping[str, Json]) -> str:
    return way.tool or str(request.get("toolName") or "")


def tools_of(kind: str) -> tuple[str, ...]:
    """The tools one of which must be declared for a kind to be served."""
    return tuple(way.tool for way in KINDS.get(kind, ()))


def translate(kind: str, request: Mapping[str, Json], declared: Collection[str]) -> NativeCall:
    """The call of the client's tool that a request means; `Refused` where there is none."""
    fitting = [way for way in KINDS.get(kind, ()) if way.when(request)]
    for way in fitting:
        tool = _tool(way, request)
        if tool in declared:
            return NativeCall(kind, tool, way.build(request), request)
    wanted = " or ".join(f"'{_tool(way, request)}'" for way in fitting)
    raise Refused(
        f"{kind} is not available here: "
        + (f"the client has no tool {wanted}." if wanted else "no tool of the client's does this.")
    )


def answer(call: NativeCall, text: str) -> dict[str, Json]:
    """What the agent gets back for the text that the client's tool answered. A key `error` says that it failed."""
    way = next(
        way for way in KINDS[call.kind] if _tool(way, call.request) == call.tool and way.when(call.request)
    )
    return way.read(text, call.request)

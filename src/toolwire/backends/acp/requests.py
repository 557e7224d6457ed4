"""Answers an agent's requests for permissions, files and terminals.

A request for a file or a terminal becomes a call of the client's tool for files or shell commands, if the
client has declared such a tool. Permission is granted only for calls of the client's tools (`is_clients`).
Every other request gets an error at once. Nothing runs on the gateway's host.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
import shlex
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from acp.exceptions import RequestError

from toolwire.backends.acp.profiles import AgentProfile
from toolwire.backends.acp.updates import Announced
from toolwire.backends.agents.history import plain_text
from toolwire.backends.agents.run import AgentRun
from toolwire.core.errors import ToolwireError
from toolwire.emulate.arguments import load_object

log = logging.getLogger("toolwire.acp")
Json = Any
Params = Mapping[str, Json]
NO_METHOD, FAILED = -32601, -32603


class Refused(Exception):
    """Raised if the client has no tool for the agent's request. The message is for the agent."""


# --- permissions ---
#
# An agent may call the client's tools and nothing else. A permission request names its tool only in a title,
# which a model can influence. So the title must be exactly the name of a client's tool, and the kind of the
# call must be one that MCP tools have. Names that agents use for their own tools are always refused: if the
# client has a tool `bash`, the agent must not run its own `bash` instead.

ALLOW, REFUSE = ("allow_once", "allow_always"), ("reject_once", "reject_always")
HARMLESS_KINDS = {"", "other"}
"""The kinds (`ToolCall.kind`) that agents give calls of MCP tools, such as a client's tools.

Agents use other kinds (read, edit, execute…) for their own tools.
"""

OWN_NAMES = frozenset(
    (
        "bash shell sh terminal exec execute run run_command command cmd powershell python read read_file "
        "write write_file edit edit_file create_file patch apply_patch delete delete_file move list ls "
        "list_directory grep glob find search fetch webfetch web_fetch websearch web_search task agent"
    ).split()
)


def is_clients(
    tool_call: Params, names: Mapping[str, str], announced: Announced | None, approvals: Collection[str] = ()
) -> bool:
    """Returns whether a permission request is for a client's tool.

    `names` maps the agent's name for a tool to the client's name. `announced`: the announcement of the call
    for which the agent requests permission. `approvals`: titles that are ignored, because they are the same
    for every tool.
    """
    kinds, given = {str(tool_call.get("kind") or "")}, [tool_call.get("title")]
    if announced is not None:
        kinds.add(announced.kind)
        given.append(announced.title)
    titles = [title for title in given if isinstance(title, str) and title and title not in approvals]
    known = all(title in names and title.lower() not in OWN_NAMES for title in titles)
    return bool(titles) and known and kinds <= HARMLESS_KINDS


def outcome(options: Sequence[Json], allow: bool) -> dict[str, Json]:
    """Returns the option that allows or refuses the request, preferably for this one call only.

    If the agent offers no such option, the outcome is "cancelled".
    """
    usable = [one for one in options if isinstance(one, Mapping) and one.get("optionId") is not None]
    for kind in ALLOW if allow else REFUSE:
        for option in usable:
            if option.get("kind") == kind:
                return {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}
    return {"outcome": {"outcome": "cancelled"}}


# --- files and terminals as calls of the client's tools ---

TOOLS = {"fs/read_text_file": "read", "fs/write_text_file": "write", "terminal/create": "bash"}
"""The name of the client's tool that serves a request, by ACP method."""
NEEDED = {
    "fs/read_text_file": ("path",),
    "fs/write_text_file": ("path", "content"),
    "terminal/create": ("command",),
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def arguments_of(method: str, params: Params) -> dict[str, Json]:
    missing = [key for key in NEEDED[method] if params.get(key) is None]
    if missing:
        raise Refused(f"The request lacks {', '.join(missing)}.")
    if method == "fs/write_text_file":
        return {"filePath": params["path"], "content": params["content"]}
    if method == "fs/read_text_file":
        optional = {"offset": params.get("line"), "limit": params.get("limit")}
        given = {key: value for key, value in optional.items() if value is not None}
        return {"filePath": params["path"], **given}
    command = {"command": _shell_line(params)}
    return {**command, "cwd": params["cwd"]} if params.get("cwd") else command


def _shell_line(params: Params) -> str:
    """Returns a shell command line for the request's program, arguments and variables."""
    line = str(params["command"])
    if params.get("args"):
        line = shlex.join([line, *map(str, params["args"])])
    for variable in params.get("env") or ():
        name = str(variable.get("name", ""))
        if not _VARIABLE.match(name):
            raise Refused(f"{name[:40]!r} is not a name of an environment variable.")
        line = f"export {name}={shlex.quote(str(variable.get('value', '')))}; {line}"
    return line


def shell_result(text: str) -> tuple[str, int]:
    """Returns the output and the exit code of a shell tool's result.

    If the text is not JSON with a known key, the text itself is the output, and the exit code is 0.
    """
    found = load_object(text) or {}
    if not {"stdout", "stderr", "exitCode"} & set(found):
        return text, 0
    code = found.get("exitCode")
    output = "\n".join(str(found[key]) for key in ("stdout", "stderr") if found.get(key))
    return output, code if isinstance(code, int) else 0


class Terminal:
    """A terminal that the agent has requested. It is one call of the client's shell tool.

    The terminal has no output until the client has returned the result of the call.
    """

    LIMIT = 2**20

    def __init__(self, work: Coroutine[Any, Any, str], limit: Json) -> None:
        self._task = asyncio.ensure_future(self._run(work))
        self._limit = limit if isinstance(limit, int) else self.LIMIT

    async def _run(self, work: Coroutine[Any, Any, str]) -> tuple[str, int]:
        try:
            return shell_result(await work)
        except (Refused, ToolwireError) as error:
            return f"error: {error}", 1

    async def wait(self) -> dict[str, Json]:
        await asyncio.wait({self._task})
        return self._status()

    def output(self) -> dict[str, Json]:
        """Returns the output so far. If the output is longer than the limit, its beginning is cut off."""
        if not self._task.done():
            return {"output": "", "truncated": False}
        text = "" if self._task.cancelled() else self._task.result()[0]
        whole = text.encode("utf-8", "replace")
        kept = whole[max(0, len(whole) - self._limit) :].decode("utf-8", "ignore")
        return {"output": kept, "truncated": len(whole) > self._limit, "exitStatus": self._status()}

    def kill(self) -> dict[str, Json]:
        self._task.cancel()
        return {}

    def _status(self) -> dict[str, Json]:
        if self._task.cancelled():
            return {"exitCode": None, "signal": "SIGKILL"}
        return {"exitCode": self._task.result()[1], "signal": None}


class AgentRequests:
    """Answers the requests of one session.

    `names` maps the agent's name for a tool to the client's name. `declared`: the names of the tools that the
    client has declared. `running` returns the current run, or raises an error. `seen` returns the
    announcement of the call with the given id.
    """

    def __init__(
        self,
        profile: AgentProfile,
        names: Mapping[str, str],
        declared: Collection[str],
        running: Callable[[], AgentRun],
        seen: Callable[[str], Announced | None],
    ) -> None:
        self._profile = profile
        self._names = names
        self._declared = declared
        self._running = running
        self._seen = seen
        self._terminals: dict[str, Terminal] = {}
        self._numbers = itertools.count(1)
        self._methods: Mapping[str, Callable[[Params], Json]] = {
            "session/request_permission": self._permission,
            "fs/read_text_file": self._read_file,
            "fs/write_text_file": self._write_file,
            "terminal/create": self._create,
            "terminal/output": lambda params: self._terminal(params).output(),
            "terminal/wait_for_exit": lambda params: self._terminal(params).wait(),
            "terminal/kill": lambda params: self._terminal(params).kill(),
            "terminal/release": self._release,
        }
        """The handler of each ACP method. A handler returns the result, or an awaitable of the result."""

    def serves(self, method: str) -> bool:
        """Returns whether the client declared the tool that serves this request."""
        return TOOLS[method] in self._declared

    async def answer(self, method: str, params: Params) -> Json:
        """Returns the result for the agent. Raises `RequestError` if the request is refused."""
        handler = self._methods.get(method)
        if handler is None:
            log.info("%s asked for %s, which is refused", self._profile.title, method[:80])
            raise RequestError(NO_METHOD, f"{method[:80]} is not available here.", {"method": method[:80]})
        try:
            result = handler(params)
            return await result if isinstance(result, Awaitable) else result
        except (Refused, ToolwireError) as refused:
            raise RequestError(FAILED, str(refused)) from None
        except asyncio.CancelledError:
            raise RequestError(FAILED, "The call was cancelled.") from None

    def close(self) -> None:
        for terminal in self._terminals.values():
            terminal.kill()
        self._terminals.clear()

    def _permission(self, params: Params) -> Json:
        call, options = params.get("toolCall"), params.get("options")
        call = call if isinstance(call, Mapping) else {}
        announced = self._seen(str(call.get("toolCallId") or ""))
        allowed = is_clients(call, self._names, announced, self._profile.approvals)
        return outcome(options if isinstance(options, Sequence) else (), allowed)

    def _call(self, method: str, params: Params) -> Coroutine[Any, Any, str]:
        """Calls the client's tool that serves an agent's request. Raises `Refused` if there is none."""
        if not self.serves(method):
            raise Refused(f"{method} is not available here: the client has no tool '{TOOLS[method]}'.")
        try:
            arguments = json.dumps(arguments_of(method, params), ensure_ascii=False)
        except (AttributeError, TypeError):
            raise Refused(f"The parameters of {method} do not follow the protocol.") from None
        run = self._running()

        async def call() -> str:
            return plain_text((await run.call(TOOLS[method], arguments)).parts)

        return call()

    async def _read_file(self, params: Params) -> Json:
        return {"content": await self._call("fs/read_text_file", params)}

    async def _write_file(self, params: Params) -> Json:
        answer = load_object(await self._call("fs/write_text_file", params)) or {}
        if answer.get("error"):
            raise Refused(str(answer["error"]))
        return {}

    def _create(self, params: Params) -> Json:
        id = f"terminal-{next(self._numbers)}"
        self._terminals[id] = Terminal(self._call("terminal/create", params), params.get("outputByteLimit"))
        return {"terminalId": id}

    def _terminal(self, params: Params) -> Terminal:
        terminal = self._terminals.get(str(params.get("terminalId")))
        if terminal is None:
            raise Refused("There is no such terminal.")
        return terminal

    def _release(self, params: Params) -> Json:
        terminal = self._terminals.pop(str(params.get("terminalId")), None)
        return terminal.kill() if terminal is not None else {}

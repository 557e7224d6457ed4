"""What an agent requests besides the client's tools: permissions, files, terminals.

Each request becomes a parked call, or gets an error at once. Nothing runs here.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from acp.exceptions import RequestError

from toolwire.backends.acp.profiles import AgentProfile
from toolwire.backends.acp.updates import Announced
from toolwire.backends.agents.history import words
from toolwire.backends.agents.native import NativeCall, Refused, answer, translate
from toolwire.backends.agents.run import AgentRun
from toolwire.core.errors import ToolwireError

# --- permissions ---
#
# An agent may call the client's tools and nothing else. A request for permission names its tool only by a
# title, which a model can shape. So the title must be exactly the name of a client's tool, and the call must
# not be of another kind. A plain name that agents give to their own tools is refused: a client's `bash` is
# no reason to let an agent run its own.

Json = Any
ALLOW, REFUSE = ("allow_once", "allow_always"), ("reject_once", "reject_always")
HARMLESS_KINDS = ("", "other")
"""Kinds that a call of an MCP tool has: agents mark their own tools as read, edit, execute …"""

OWN_NAMES = frozenset(
    (
        "bash shell sh terminal exec execute run run_command command cmd powershell python read read_file "
        "write write_file edit edit_file create_file patch apply_patch delete delete_file move list ls "
        "list_directory grep glob find search fetch webfetch web_fetch websearch web_search task agent"
    ).split()
)
"""Names that agents give to their own tools."""


def is_clients(
    tool_call: Mapping[str, Json],
    names: Mapping[str, str],
    announced: Announced | None,
    approvals: Collection[str] = (),
) -> bool:
    """Whether the permission is for a client's tool. `approvals` are titles that name no tool."""
    kinds = {str(tool_call.get("kind") or ""), announced.kind if announced is not None else ""}
    told = (tool_call.get("title"), announced.title if announced is not None else "")
    titles = {title for title in told if isinstance(title, str) and title and title not in approvals}
    known = all(title in names and title.lower() not in OWN_NAMES for title in titles)
    return bool(titles) and known and kinds <= set(HARMLESS_KINDS)


def outcome(options: Sequence[Json], allow: bool) -> dict[str, Json]:
    """The mildest option that allows or refuses; cancelled where there is none."""
    for kind in ALLOW if allow else REFUSE:
        for option in options:
            if (
                isinstance(option, Mapping)
                and option.get("kind") == kind
                and option.get("optionId") is not None
            ):
                return {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}
    return {"outcome": {"outcome": "cancelled"}}


# --- terminals ---
#
# A terminal is one call of the client's shell tool. It has no output until the client has answered.

LIMIT = 1024 * 1024


class Terminal:
    def __init__(self, work: Coroutine[Any, Any, dict[str, Json]], limit: int | None) -> None:
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(
            lambda task: task.cancelled() or task.exception()
        )  # looked at, whether or not the agent asks
        self._limit = limit if limit is not None else LIMIT

    async def wait(self) -> dict[str, Json]:
        """`exitCode` and `signal`."""
        await asyncio.wait({self._task})
        return self._status()

    def output(self) -> dict[str, Json]:
        """What there is now. Cut from the beginning where it is more than was asked for."""
        if not self._task.done():
            return {"output": "", "truncated": False}
        whole = self._words().encode("utf-8", "replace")
        kept = whole[max(0, len(whole) - self._limit) :].decode("utf-8", "ignore")
        return {"output": kept, "truncated": len(whole) > self._limit, "exitStatus": self._status()}

    def kill(self) -> None:
        self._task.cancel()

    def _status(self) -> dict[str, Json]:
        if self._task.cancelled():
            return {"exitCode": None, "signal": "SIGKILL"}
        return {
            "exitCode": 1 if self._task.exception() is not None else self._task.result()["exitCode"],
            "signal": None,
        }

    def _words(self) -> str:
        if self._task.cancelled():
            return ""
        error = self._task.exception()
        if error is not None:
            return f"error: {error}"
        done = self._task.result()
        return "\n".join(filter(None, (done["stdout"], done["stderr"])))


log = logging.getLogger("toolwire.acp")
Params = Mapping[str, Json]
NO_METHOD, FAILED = -32601, -32603


class AgentRequests:
    """`names`: the client's tools by the agent's names; `declared`: by their own names.

    `running` returns the current run, or raises. `seen` returns what a call was announced as.
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
        self._methods: Mapping[str, Callable[[Params], Awaitable[Json]]] = {
            "session/request_permission": self._permission,
            "fs/read_text_file": self._read_file,
            "fs/write_text_file": self._write_file,
            "terminal/create": self._create,
            "terminal/output": self._output,
            "terminal/wait_for_exit": self._wait,
            "terminal/kill": self._kill,
            "terminal/release": self._release,
        }

    async def answer(self, method: str, params: Params) -> Json:
        """The result, or a `RequestError` for the agent."""
        handler = self._methods.get(method)
        if handler is None:
            log.info("%s asked for %s, which is refused", self._profile.title, method[:80])
            raise RequestError(NO_METHOD, f"{method[:80]} is not available here.", {"method": method[:80]})
        try:
            return await handler(params)
        except Refused as refused:
            raise RequestError(FAILED, str(refused)) from None
        except ToolwireError as error:
            raise RequestError(FAILED, error.failure.message) from None
        except asyncio.CancelledError:
            raise RequestError(FAILED, "The call was given up.") from None

    def close(self) -> None:
        for terminal in self._terminals.values():
            terminal.kill()
        self._terminals.clear()

    async def _permission(self, params: Params) -> Json:
        call, options = params.get("toolCall"), params.get("options")
        call = call if isinstance(call, Mapping) else {}
        allowed = is_clients(
            call, self._names, self._seen(str(call.get("toolCallId") or "")), self._profile.approvals
        )
        return outcome(options if isinstance(options, Sequence) else (), allowed)

    async def _call(self, call: NativeCall, run: AgentRun) -> dict[str, Json]:
        result = await run.call(call.tool, json.dumps(call.arguments, ensure_ascii=False))
        back = answer(call, words(result.parts))
        if "error" in back:
            raise Refused(str(back["error"]))
        return back

    def _meant(self, kind: str, params: Params) -> tuple[NativeCall, AgentRun]:
        try:
            return translate(kind, params, self._declared), self._running()
        except (AttributeError, TypeError):  # of what the agent sent
            raise Refused(f"The parameters of {kind} are not as the protocol has them.") from None

    async def _read_file(self, params: Params) -> Json:
        return await self._call(*self._meant("fs/read_text_file", params))

    async def _write_file(self, params: Params) -> Json:
        await self._call(*self._meant("fs/write_text_file", params))
        return {}

    async def _create(self, params: Params) -> Json:
        call, run = self._meant("terminal/create", params)
        limit = params.get("outputByteLimit")
        id = f"terminal-{next(self._numbers)}"
        self._terminals[id] = Terminal(self._call(call, run), limit if isinstance(limit, int) else None)
        return {"terminalId": id}

    def _terminal(self, params: Params) -> Terminal:
        terminal = self._terminals.get(str(params.get("terminalId")))
        if terminal is None:
            raise Refused("There is no such terminal.")
        return terminal

    async def _output(self, params: Params) -> Json:
        return self._terminal(params).output()

    async def _wait(self, params: Params) -> Json:
        return await self._terminal(params).wait()

    async def _kill(self, params: Params) -> Json:
        self._terminal(params).kill()
        return {}

    async def _release(self, params: Params) -> Json:
        terminal = self._terminals.pop(str(params.get("terminalId")), None)
        if terminal is not None:
            terminal.kill()
        return {}

"""What an agent asks of its client beside the client's tools: permissions, files, terminals.

All of it is answered, by a call that is parked or by an error at once. Nothing runs here.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from acp.exceptions import RequestError

from toolwire.backends.acp.permissions import is_clients, outcome
from toolwire.backends.acp.profiles import Profile
from toolwire.backends.acp.terminals import Terminal, Terminals
from toolwire.backends.acp.updates import Announced
from toolwire.backends.agents.history import words
from toolwire.backends.agents.native import NativeCall, Refused, answer, translate
from toolwire.backends.agents.run import AgentRun
from toolwire.errors import ToolwireError

log = logging.getLogger("toolwire.acp")
Json = Any
Params = Mapping[str, Json]
NO_METHOD, FAILED = -32601, -32603


class Asked:
    """`names`: the client's tools by what the agent calls them; `declared`: by their own names. `running` gives the run that is under way, or raises;
    `seen` what a call was announced as."""

    def __init__(
        self,
        profile: Profile,
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
        self._terminals = Terminals()
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
        self._terminals.close()

    async def _permission(self, params: Params) -> Json:
        call, options = params.get("toolCall"), params.get("options")
        call = call if isinstance(call, Mapping) else {}
        allowed = is_clients(call, self._names, self._seen(str(call.get("toolCallId") or "")), self._profile.approvals)
        return outcome(options if isinstance(options, Sequence) else (), allowed)

    # --- requests that mean a tool of the client's ---------------------------------------------------------------------------------------------

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
        return {"terminalId": self._terminals.create(self._call(call, run), limit if isinstance(limit, int) else None)}

    def _terminal(self, params: Params) -> Terminal:
        terminal = self._terminals.find(params.get("terminalId"))
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
        self._terminals.release(params.get("terminalId"))
        return {}

"""A scripted agent for tests that speaks the Agent Client Protocol on stdin and stdout.

    python -m doubles.acp_agent script.json

The script is a JSON object. Every key is optional:

    prompts     a list of steps for each prompt; the last one is repeated. Default: echo the prompt
    log         a file that gets each incoming message, and each response to the agent, as a line of JSON
    initialize  merged into the response to `initialize`
    needs       the id of the method that must authenticate before a session can open
    error       {"code", "message", "data"}: the error with which `session/new` is refused
    silent      true: nothing is ever answered
    deaf        true: the agent does not ask the MCP server for its tools

A step is an object with one of these keys:

    say, think  a chunk of text or of a thought. {result} is the result of the last call or request, {prompt}
                the prompt's text
    call        calls a client's tool by name, with `arguments`: announced, sent over MCP and awaited.
                `announce`: false, or the id to announce
    parallel    a list of calls made at once; `order` is the order in which they reach the MCP server
    ask         a request to the client with `params`; {session} and {result} are filled in
    update      a session update, sent as it is
    raw         a line on stdout, sent as it is
    note        a line on stderr
    error       {"code", "message", "data"}: the prompt ends with this error
    stop        the stop reason; `usage` next to it is reported too
    crash       the process ends with this exit status
    hang        true: nothing is sent until the prompt is cancelled
    sleep       seconds
    when        a part of the prompt: `then` are the steps if the prompt contains it, `else` those if not

Standard library only.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import urllib.request
from collections.abc import Mapping
from typing import Any

Json = Any
DEFAULT_PROMPTS: Json = [[{"say": "You said: {prompt}"}]]


class Stopped(Exception):
    """Ends the prompt, with a result or with an error."""

    def __init__(self, result: Json = None, error: Json = None) -> None:
        super().__init__()
        self.result = result
        self.error = error


class Tools:
    """The client's tools, on the MCP server that `session/new` named.

    Every call has its own thread, so that it can block.
    """

    def __init__(self, server: Mapping[str, Json]) -> None:
        self._url = str(server["url"])
        self._headers = {str(one["name"]): str(one["value"]) for one in server.get("headers") or ()}
        self._number = 0

    async def start(self) -> list[Json]:
        await self.ask(
            "initialize",
            {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "scripted", "version": "1"},
            },
        )
        await asyncio.to_thread(self._post, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        return list((await self.ask("tools/list", {}))["result"]["tools"])

    async def ask(self, method: str, params: Json) -> Json:
        self._number += 1
        return await asyncio.to_thread(
            self._post, {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        )

    async def call(self, name: str, arguments: Json) -> str:
        """Calls a tool and returns the text of its result."""
        answer = await self.ask(
            "tools/call", {"name": name, "arguments": arguments, "_meta": {"progressToken": self._number + 1}}
        )
        if "error" in answer:
            return f"MCP error: {answer['error']['message']}"
        return "".join(part.get("text", "") for part in answer["result"]["content"])

    def _post(self, message: Json) -> Json:
        headers = {
            **self._headers,
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        request = urllib.request.Request(self._url, json.dumps(message).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            if answer.headers.get_content_type() != "text/event-stream":
                body = answer.read()
                return json.loads(body) if body else None
            for line in answer:
                if line.startswith(b"data: "):
                    received = json.loads(line[6:])
                    if received.get("id") == message.get("id"):
                        return received
        return None


class ScriptedAgent:
    """Reads messages and plays the script."""

    def __init__(self, script: Mapping[str, Json]) -> None:
        self._script = script
        self._prompts: list[list[Json]] = script.get("prompts") or DEFAULT_PROMPTS
        self._prompted = 0
        self._calls = 0
        self._authenticated = False
        self._tools: Tools | None = None
        self._waiting: dict[str, asyncio.Future[Json]] = {}
        self._numbers = 0
        self._result = ""
        self._cancelled = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    # --- the wire ---

    def send(self, message: Json) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def log(self, entry: Json) -> None:
        if self._script.get("log"):
            with open(self._script["log"], "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    def receive(self, line: bytes) -> None:
        message = json.loads(line)
        self.log(message)
        if self._script.get("silent"):
            return
        if "method" not in message:
            waiting = self._waiting.pop(str(message.get("id")), None)
            if waiting is not None:
                waiting.set_result(message)
        elif message["method"] == "session/cancel":
            self._cancelled.set()
        elif "id" in message:
            task = asyncio.ensure_future(self._answer(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: Json) -> None:
        try:
            result = await self._handle(message["method"], message.get("params") or {})
        except Stopped as stopped:
            self.send(
                {
                    "id": message["id"],
                    **({"error": stopped.error} if stopped.error else {"result": stopped.result}),
                }
            )
        else:
            self.send({"id": message["id"], "result": result})

    async def ask(self, method: str, params: Json) -> Json:
        self._numbers += 1
        id = f"agent-{self._numbers}"
        self._waiting[id] = asyncio.get_running_loop().create_future()
        self.send({"id": id, "method": method, "params": params})
        return await self._waiting[id]

    def update(self, **update: Json) -> None:
        self.send({"method": "session/update", "params": {"sessionId": "session-1", "update": update}})

    # --- what the client asks ---

    async def _handle(self, method: str, params: Json) -> Json:
        if method == "initialize":
            can = {
                "mcpCapabilities": {"http": True, "sse": False},
                "promptCapabilities": {"image": True},
                "loadSession": False,
            }
            hello = {
                "protocolVersion": 1,
                "agentCapabilities": can,
                "authMethods": [],
                "agentInfo": {"name": "scripted", "version": "1"},
            }
            return {**hello, **self._script.get("initialize", {})}
        if method == "authenticate":
            self._authenticated = params.get("methodId") == self._script.get("needs")
            return {}
        if method == "session/new":
            return await self._open(params)
        if method == "session/prompt":
            return await self._prompt("".join(part.get("text", "") for part in params["prompt"]))
        raise Stopped(error={"code": -32601, "message": f"Method not found: {method}"})

    async def _open(self, params: Json) -> Json:
        if self._script.get("needs") and not self._authenticated:
            raise Stopped(error={"code": -32000, "message": "Authentication required"})
        if self._script.get("error"):
            raise Stopped(error=self._script["error"])
        for server in () if self._script.get("deaf") else params.get("mcpServers") or ():
            self._tools = Tools(server)
            self.log({"tools": await self._tools.start()})
        return {"sessionId": "session-1"}

    async def _prompt(self, prompt: str) -> Json:
        self._cancelled.clear()
        steps = self._prompts[min(self._prompted, len(self._prompts) - 1)]
        self._prompted += 1
        for step in steps:
            await self._play(step, prompt)
        return {"stopReason": "end_turn"}

    # --- the script ---

    def _filled(self, value: Json, prompt: str) -> Json:
        if isinstance(value, str):
            known = {"result": self._result, "prompt": prompt, "session": "session-1"}
            return re.sub(r"\{(result|prompt|session)\}", lambda found: known[found[1]], value)
        if isinstance(value, dict):
            return {key: self._filled(one, prompt) for key, one in value.items()}
        return [self._filled(one, prompt) for one in value] if isinstance(value, list) else value

    async def _play(self, step: Json, prompt: str) -> None:
        if "when" in step:
            for chosen in step.get("then" if step["when"] in prompt else "else", ()):
                await self._play(chosen, prompt)
            return
        kind = next(key for key in _STEPS if key in step)
        await _STEPS[kind](self, self._filled(step, prompt))

    async def _say(self, step: Json) -> None:
        self.update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": step["say"]})

    async def _think(self, step: Json) -> None:
        self.update(sessionUpdate="agent_thought_chunk", content={"type": "text", "text": step["think"]})

    def _announce(self, step: Json) -> str:
        self._calls += 1
        id = step.get("announce", f"call-{self._calls}")
        if id is not False:
            title = step.get("title", f"client_{step['call']}")
            self.update(
                sessionUpdate="tool_call",
                toolCallId=id,
                title=title,
                kind="other",
                status="pending",
                rawInput=step.get("arguments", {}),
            )
        return str(id)

    async def _called(self, step: Json) -> str:
        if self._tools is None:
            return "error: there are no tools"
        return await self._tools.call(step["call"], step.get("arguments", {}))

    async def _call(self, step: Json) -> None:
        id = self._announce(step)
        self._result = await self._called(step)
        self.log({"result": self._result})
        self.update(sessionUpdate="tool_call_update", toolCallId=id, status="completed")

    async def _parallel(self, step: Json) -> None:
        calls = step["parallel"]
        for call in calls:
            self._announce(call)
        running: dict[int, asyncio.Future[str]] = {}
        for number in step.get("order", range(len(calls))):
            running[number] = asyncio.ensure_future(self._called(calls[number]))
            await asyncio.sleep(0.02)
        results = [await running[number] for number in range(len(calls))]
        self._result = " | ".join(results)
        self.log({"result": self._result})

    async def _ask(self, step: Json) -> None:
        answer = await self.ask(step["ask"], step.get("params", {}))
        self.log({"answer": answer, "to": step["ask"]})
        found = answer.get("result")
        self._result = (
            json.dumps(answer.get("error") or found)
            if not (isinstance(found, dict) and "terminalId" in found)
            else found["terminalId"]
        )

    async def _update(self, step: Json) -> None:
        self.update(**step["update"])

    async def _raw(self, step: Json) -> None:
        sys.stdout.write(step["raw"] + "\n")
        sys.stdout.flush()

    async def _note(self, step: Json) -> None:
        print(step["note"], file=sys.stderr, flush=True)

    async def _error(self, step: Json) -> None:
        raise Stopped(error=step["error"])

    async def _stop(self, step: Json) -> None:
        raise Stopped({"stopReason": step["stop"], **({"usage": step["usage"]} if "usage" in step else {})})

    async def _crash(self, step: Json) -> None:
        sys.stdout.flush()
        os._exit(int(step["crash"]))

    async def _hang(self, step: Json) -> None:
        await self._cancelled.wait()
        raise Stopped({"stopReason": "cancelled"})

    async def _sleep(self, step: Json) -> None:
        await asyncio.sleep(float(step["sleep"]))


_STEPS = {
    "say": ScriptedAgent._say,
    "think": ScriptedAgent._think,
    "call": ScriptedAgent._call,
    "parallel": ScriptedAgent._parallel,
    "ask": ScriptedAgent._ask,
    "update": ScriptedAgent._update,
    "raw": ScriptedAgent._raw,
    "note": ScriptedAgent._note,
    "error": ScriptedAgent._error,
    "stop": ScriptedAgent._stop,
    "crash": ScriptedAgent._crash,
    "hang": ScriptedAgent._hang,
    "sleep": ScriptedAgent._sleep,
}


async def serve(script: Mapping[str, Json]) -> None:
    """Plays the script until stdin ends. Then ends the process, even if calls are pending."""
    agent = ScriptedAgent(script)
    reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    async for line in reader:
        if line.strip():
            agent.receive(line)
    os._exit(0)


def main() -> None:
    script: Json = {}
    if len(sys.argv) > 1:
        with open(sys.argv[1], encoding="utf-8") as file:
            script = json.load(file)
    asyncio.run(serve(script))


if __name__ == "__main__":
    main()

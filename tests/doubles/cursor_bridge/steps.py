"""Plays the steps of a scripted agent, and reports them in a stream."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

Step = Mapping[str, Any]
CALLBACK = "sdk.v1.SdkCustomToolCallbackService/CallCustomTool"


class Refused(Exception):
    """Raised to answer a request with this Connect error."""

    def __init__(self, code: str, message: str, sdk: str = "", retry: str = "") -> None:
        super().__init__(message)
        self.code = code
        details = {
            "message": message,
            **({"sdkErrorCode": sdk} if sdk else {}),
            **({"retryAfter": retry} if retry else {}),
        }
        shown = [{"type": "sdk.v1.SdkErrorDetails", "debug": details, "value": ""}] if sdk else []
        self.body: dict[str, Any] = {
            "code": code,
            "message": message,
            **({"details": shown} if shown else {}),
        }


class Dropped(Exception):
    """Raised to cut the stream."""


@dataclass
class Agent:
    id: str
    options: dict[str, Any]
    prompts: list[str] = field(default_factory=list)
    busy: bool = False

    @property
    def tools(self) -> dict[str, Any]:
        found: dict[str, Any] = self.options.get("local", {}).get("customTools") or {}
        return found


@dataclass
class Run:
    id: str
    agent: Agent
    prompt: str
    deltas: bool
    results: list[str] = field(default_factory=list)
    said: str = ""
    status: str = "RUNNING"
    task: asyncio.Task[None] | None = None


class Player:
    """Plays the steps of runs. Tool calls are sent to `callback` with its token."""

    def __init__(self, callback: tuple[str, str]) -> None:
        self.callback = callback
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0)
        )

    async def close(self) -> None:
        await self._session.close()

    async def play(self, run: Run, stream: Stream, steps: Sequence[Step]) -> None:
        await stream.send(sdk_message(run, "status", status="RUNNING"))
        for step in steps:
            await getattr(self, f"_do_{next(iter(step))}")(run, stream, step)
            if run.status != "RUNNING":
                return
        run.status = "FINISHED"

    async def _do_text(self, run: Run, stream: Stream, step: Step) -> None:
        text = _filled(step["text"], run)
        run.said += text
        if run.deltas:
            for at in range(0, len(text), 4):
                await stream.send(_update("text-delta", text=text[at : at + 4]))
        content = [{"type": "text", "text": text}]
        await stream.send(sdk_message(run, "assistant", message={"role": "assistant", "content": content}))

    async def _do_think(self, run: Run, stream: Stream, step: Step) -> None:
        if run.deltas:
            await stream.send(_update("thinking-delta", text=step["think"]))
        await stream.send(sdk_message(run, "thinking", text=step["think"]))

    async def _do_call(self, run: Run, stream: Stream, step: Step) -> None:
        await self._do_calls(run, stream, {"calls": [step]})

    async def _do_calls(self, run: Run, stream: Stream, step: Step) -> None:
        calls = [(one, str(one.get("id") or f"tool_{uuid.uuid4()}")) for one in step["calls"]]
        for one, id in calls:
            if run.deltas:
                await stream.send(_update("tool-call-started", callId=id, toolCall={}, modelCallId=id))
            await stream.send(
                sdk_message(
                    run,
                    "tool_call",
                    call_id=id,
                    name=one["call"],
                    status="running",
                    args=one.get("args") or {},
                )
            )
        results = await asyncio.gather(*(self._call(run, one, id) for one, id in calls))
        for (one, id), result in zip(calls, results, strict=True):
            run.results.append(result[1])
            await stream.send(
                sdk_message(
                    run,
                    "tool_call",
                    call_id=id,
                    name=one["call"],
                    status="error" if result[0] else "completed",
                    result=result[1],
                )
            )

    async def _call(self, run: Run, step: Step, id: str) -> tuple[bool, str]:
        """Calls a tool. Returns whether the call failed, and the text of its result."""
        url, token = self.callback
        body = {
            "agentId": step.get("agent") or run.agent.id,
            "toolName": step["call"],
            "args": step.get("args") or {},
            "toolCallId": id,
        }
        headers = {
            "Authorization": f"Bearer {step.get('token') or token}",
            "Connect-Protocol-Version": "1",
            "Content-Type": "application/json",
        }

        async def chunked() -> Any:  # the real bridge sends no Content-Length either
            yield json.dumps(body).encode()

        try:
            async with asyncio.timeout(step.get("within")):
                async with self._session.post(
                    url.rstrip("/") + "/" + CALLBACK, data=chunked(), headers=headers
                ) as response:
                    answer = await response.json()
                    if response.status != 200:
                        return True, f"{answer.get('code')}: {answer.get('message')}"
        except TimeoutError:
            return True, "gave up"
        except aiohttp.ClientError as error:
            return True, f"no answer: {error}"
        result = answer["result"]
        return bool(result.get("isError")), "\n".join(
            str(part.get("text", part.get("mimeType"))) for part in result["content"]
        )

    async def _do_usage(self, run: Run, stream: Stream, step: Step) -> None:
        await stream.send(sdk_message(run, "usage", usage=step["usage"]))

    async def _do_own(self, run: Run, stream: Stream, step: Step) -> None:
        await stream.send(
            sdk_message(
                run, "tool_call", call_id=f"tool_{uuid.uuid4()}", name=step["own"], status="running", args={}
            )
        )

    async def _do_request(self, run: Run, stream: Stream, step: Step) -> None:
        await stream.send(sdk_message(run, "request", request_id=step["request"]))

    async def _do_status(self, run: Run, stream: Stream, step: Step) -> None:
        run.status = f"{step['status']} {step.get('code', '')} {step.get('message', '')}".rstrip()

    async def _do_error(self, run: Run, stream: Stream, step: Step) -> None:
        raise Refused(
            step["error"],
            str(step.get("message", "as scripted")),
            str(step.get("sdk", "")),
            str(step.get("retry", "")),
        )

    async def _do_sleep(self, run: Run, stream: Stream, step: Step) -> None:
        await asyncio.sleep(step["sleep"])

    async def _do_hang(self, run: Run, stream: Stream, step: Step) -> None:
        await asyncio.Event().wait()

    async def _do_drop(self, run: Run, stream: Stream, step: Step) -> None:
        raise Dropped

    async def _do_die(self, run: Run, stream: Stream, step: Step) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Stream:
    """A server stream. If nothing was sent for `keepalive_s`, it sends an empty envelope."""

    def __init__(self, response: web.StreamResponse, keepalive_s: float) -> None:
        self._response = response
        self._keepalive_s = keepalive_s
        self._sent = time.monotonic()
        self._alive = asyncio.ensure_future(self._keep_alive())

    async def send(self, message: Mapping[str, Any], flags: int = 0) -> None:
        body = json.dumps(message).encode()
        self._sent = time.monotonic()
        try:
            await self._response.write(bytes([flags]) + len(body).to_bytes(4, "big") + body)
        except ConnectionError:
            self._alive.cancel()

    async def end(self, error: dict[str, Any] | None) -> None:
        self._alive.cancel()
        await self.send({"error": error} if error else {}, 2)

    async def _keep_alive(self) -> None:
        while True:
            rest = self._sent + self._keepalive_s - time.monotonic()
            if rest > 0:
                await asyncio.sleep(rest)
            else:
                await self.send({})


def sdk_message(run: Run, kind: str, **facts: Any) -> dict[str, Any]:
    return {
        "sdkMessage": {
            "type": kind,
            "message": {"type": kind, "agent_id": run.agent.id, "run_id": run.id, **facts},
        },
        "offset": "1",
    }


def _update(kind: str, **facts: Any) -> dict[str, Any]:
    return {"interactionUpdate": {"type": kind, "update": {"type": kind, **facts}}}


def _filled(text: str, run: Run) -> str:
    values = {
        "prompt": run.prompt,
        "tools": ",".join(run.agent.tools),
        "results": " ".join(run.results),
        "result": run.results[-1] if run.results else "",
    }
    return re.sub(r"\{(prompt|tools|results|result)\}", lambda found: values[found[1]], text)

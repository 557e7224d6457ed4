"""FakeUpstream: an OpenAI-compatible server on loopback that plays a script, for tests.

    async with FakeUpstream(Reply.stream(answer(text="Hello"))) as upstream:
        ...  # talk to upstream.base_url
        assert upstream.requests[0].body["messages"]

An answer is a list of chat chunks as OpenAI sends them. Each of `QUIRKS` turns it into the same answer as a server
with that deviation sends it. Faults of the connection (cuts, resets, silence) are fields of `Reply`.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from aiohttp import web

Chunk = dict[str, Any]
CallScript = tuple[str, str, str]
"""A scripted call: id, name, arguments."""


# --- answers -----------------------------------------------------------------------------------------------------------------------------------


def chunk(delta: Mapping[str, Any], finish_reason: str | None = None, index: int = 0) -> Chunk:
    choice = {"index": index, "delta": dict(delta), "logprobs": None, "finish_reason": finish_reason}
    return {
        "id": "chatcmpl-fake",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "fake",
        "choices": [choice],
    }


def pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def answer(
    text: str = "",
    calls: Sequence[CallScript] = (),
    *,
    thought: str = "",
    refusal: str = "",
    finish: str | None = None,
    usage: Mapping[str, Any] | None = None,
    size: int = 4,
) -> list[Chunk]:
    """A well-behaved answer, in pieces of `size` characters. `finish` None: what the answer calls for."""
    out = [chunk({"role": "assistant", "content": "" if text else None, "refusal": None})]
    out += [chunk({"reasoning_content": piece}) for piece in pieces(thought, size)]
    out += [chunk({"content": piece}) for piece in pieces(text, size)]
    out += [chunk({"refusal": piece}) for piece in pieces(refusal, size)]
    for index, (call_id, name, arguments) in enumerate(calls):
        out.append(
            chunk(
                {
                    "tool_calls": [
                        {
                            "index": index,
                            "id": call_id,
                            "type": "function",
                            "function": {"name": name, "arguments": ""},
                        }
                    ]
                }
            )
        )
        out += [
            chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            for piece in pieces(arguments, size)
        ]
    out.append(chunk({}, finish or ("tool_calls" if calls else "stop")))
    if usage is not None:
        out.append({**chunk({}), "choices": [], "usage": dict(usage)})
    return out


def completion(chunks: Sequence[Chunk]) -> dict[str, Any]:
    """The same answer as the body of a request that does not stream."""
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    calls: dict[int, dict[str, Any]] = {}
    finish, usage = None, None
    for entry in chunks:
        usage = entry.get("usage") or usage
        for choice in entry["choices"]:
            finish = choice["finish_reason"] or finish
            delta = choice["delta"]
            for key in ("content", "refusal", "reasoning_content"):
                if delta.get(key):
                    message[key] = (message.get(key) or "") + delta[key]
            for call in delta.get("tool_calls") or ():
                known = calls.setdefault(
                    call["index"], {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
                )
                known["id"] = call.get("id") or known["id"]
                known["function"]["name"] += call["function"].get("name") or ""
                known["function"]["arguments"] += call["function"].get("arguments") or ""
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    body = {
        "id": "chatcmpl-fake",
        "object": "chat.completion",
        "created": 1,
        "model": "fake",
        "choices": [choice],
    }
    return body if usage is None else {**body, "usage": usage}


# --- quirks ------------------------------------------------------------

Quirk = Callable[[list[Chunk]], list[Chunk]]


def _each_call(change: Callable[[dict[str, Any], dict[str, str]], None]) -> Quirk:
    """A quirk of every entry of `tool_calls`; `seen` holds the call's id, name and arguments so far."""

    def quirk(chunks: list[Chunk]) -> list[Chunk]:
        seen: dict[int, dict[str, str]] = {}
        for entry in chunks:
            for choice in entry["choices"]:
                for call in choice["delta"].get("tool_calls") or ():
                    known = seen.setdefault(
                        call["index"],
                        {
                            "id": call.get("id") or "",
                            "name": call["function"].get("name") or "",
                            "arguments": "",
                        },
                    )
                    known["arguments"] += call["function"].get("arguments") or ""
                    change(call, known)
        return chunks

    return quirk


def _whole_calls(chunks: list[Chunk]) -> list[Chunk]:
    calls = completion(chunks)["choices"][0]["message"].get("tool_calls") or []
    rest = [
        entry for entry in chunks if not any(choice["delta"].get("tool_calls") for choice in entry["choices"])
    ]
    at = next(
        (n for n, entry in enumerate(rest) if entry["choices"] and entry["choices"][0]["finish_reason"]),
        len(rest),
    )
    return [
        *rest[:at],
        *[chunk({"tool_calls": [{**call, "index": index}]}) for index, call in enumerate(calls)],
        *rest[at:],
    ]


def _all_in_one_chunk(chunks: list[Chunk]) -> list[Chunk]:
    whole = _whole_calls(chunks)
    entries = [
        call
        for entry in whole
        for choice in entry["choices"]
        for call in choice["delta"].get("tool_calls") or ()
    ]
    rest = [
        entry for entry in whole if not any(choice["delta"].get("tool_calls") for choice in entry["choices"])
    ]
    for entry in entries:
        entry.pop("index")
    return [*rest[:-1], chunk({"tool_calls": entries}), rest[-1]] if entries else rest


def _legacy(chunks: list[Chunk]) -> list[Chunk]:
    for entry in chunks:
        for choice in entry["choices"]:
            calls = choice["delta"].pop("tool_calls", None)
            if calls:
                choice["delta"]["function_call"] = calls[0]["function"]
            if choice["finish_reason"] == "tool_calls":
                choice["finish_reason"] = "function_call"
    return chunks


def _interleaved(chunks: list[Chunk]) -> list[Chunk]:
    """All openers first, then the pieces of all calls in turn."""
    of_calls = [
        entry for entry in chunks if any(choice["delta"].get("tool_calls") for choice in entry["choices"])
    ]
    rest = [entry for entry in chunks if entry not in of_calls]
    queues: dict[int, list[Chunk]] = {}
    for entry in of_calls:
        queues.setdefault(entry["choices"][0]["delta"]["tool_calls"][0]["index"], []).append(entry)
    mixed: list[Chunk] = []
    while any(queues.values()):
        mixed += [queue.pop(0) for queue in queues.values() if queue]
    at = next(n for n, entry in enumerate(rest) if entry["choices"] and entry["choices"][0]["finish_reason"])
    return [*rest[:at], *mixed, *rest[at:]]


def _finish_as(word: str | None) -> Quirk:
    def quirk(chunks: list[Chunk]) -> list[Chunk]:
        for entry in chunks:
            for choice in entry["choices"]:
                choice["finish_reason"] = word if choice["finish_reason"] else None
        return chunks

    return quirk


def _content_parts(chunks: list[Chunk]) -> list[Chunk]:
    for entry in chunks:
        for choice in entry["choices"]:
            if choice["delta"].get("content"):
                choice["delta"]["content"] = [{"type": "text", "text": choice["delta"]["content"]}]
    return chunks


def _numbers_as_strings(chunks: list[Chunk]) -> list[Chunk]:
    for entry in chunks:
        for choice in entry["choices"]:
            choice["index"] = str(choice["index"])
            for call in choice["delta"].get("tool_calls") or ():
                call["index"] = str(call["index"])
        if entry.get("usage"):
            entry["usage"] = {
                key: str(value) if isinstance(value, int) else value for key, value in entry["usage"].items()
            }
    return chunks


def _name_in_pieces(chunks: list[Chunk]) -> list[Chunk]:
    out: list[Chunk] = []
    for entry in chunks:
        calls = entry["choices"][0]["delta"].get("tool_calls") if entry["choices"] else None
        name = calls[0]["function"].get("name") if calls else None
        if not calls or not name:
            out.append(entry)
            continue
        opener = {**calls[0], "function": {"name": name[:3]}}
        out += [
            chunk({"tool_calls": [opener]}),
            chunk({"tool_calls": [{"index": calls[0]["index"], "function": {"name": name[3:]}}]}),
        ]
    return out


QUIRKS: dict[str, Quirk] = {
    "missing_index": _each_call(lambda call, seen: call.pop("index")),
    "index_from_one": _each_call(lambda call, seen: call.update(index=call["index"] + 1)),
    "every_index_zero": lambda chunks: _each_call(lambda call, seen: call.update(index=0))(
        _whole_calls(chunks)
    ),
    "whole_calls": _whole_calls,
    "all_calls_in_one_chunk": _all_in_one_chunk,
    "repeated_names": _each_call(
        lambda call, seen: call.update(id=seen["id"], function={**call["function"], "name": seen["name"]})
    ),
    "missing_ids": _each_call(lambda call, seen: call.update(id=None)),
    "empty_strings": _each_call(
        lambda call, seen: call.update(id=call.get("id", ""), function={"name": "", **call["function"]})
    ),
    "fresh_ids": _each_call(
        lambda call, seen: call.update(id=call.get("id") or f"{seen['id']}-{len(seen['arguments'])}")
    ),
    "object_arguments": lambda chunks: _each_call(
        lambda call, seen: call["function"].update(arguments=json.loads(call["function"]["arguments"]))
    )(_whole_calls(chunks)),
    "arguments_beside_function": _each_call(
        lambda call, seen: call.update(arguments=call["function"].pop("arguments", None))
    ),
    "null_arguments": _each_call(
        lambda call, seen: call["function"].update(arguments=call["function"]["arguments"] or None)
    ),
    "cumulative_arguments": _each_call(
        lambda call, seen: call["function"].update(arguments=seen["arguments"])
    ),
    "name_in_pieces": _name_in_pieces,
    "interleaved": _interleaved,
    "legacy_function_call": _legacy,
    "stop_with_calls": _finish_as("stop"),
    "upper_case_finish": lambda chunks: _finish_as(
        "TOOL_USE" if completion(chunks)["choices"][0]["message"].get("tool_calls") else "STOP"
    )(chunks),
    "no_finish_chunk": _finish_as(None),
    "content_parts": _content_parts,
    "numbers_as_strings": _numbers_as_strings,
    "second_choice": lambda chunks: [
        one for entry in chunks for one in (entry, chunk({"content": "other"}, index=1)) if one["choices"]
    ],
}
"""What servers do to answers, by name."""


def with_quirk(name: str, chunks: Sequence[Chunk]) -> list[Chunk]:
    return QUIRKS[name](copy.deepcopy(list(chunks)))


# --- replies -----------------------------------------------------------------------------------------------------------------------------------

Ending = Literal["eof", "cut", "reset", "hang"]


@dataclass(frozen=True)
class Reply:
    """One scripted answer. `ending`: `eof` ends the body properly, `cut` closes the connection in the middle of it, `reset` aborts it, `hang` sends
    nothing more. `write_size` cuts the body into writes of so many bytes (0: one write per frame); `gate` is awaited before the last frame;
    `refuse_reused` closes a connection that has served before, without an answer."""

    frames: tuple[bytes, ...] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "text/event-stream"})
    ending: Ending = "eof"
    write_size: int = 0
    gate: asyncio.Event | None = None
    refuse_reused: bool = False

    @classmethod
    def stream(cls, chunks: Sequence[Any], done: bool = True, newline: str = "\n", **fields: Any) -> Reply:
        """An event stream. A chunk that is a string or bytes is sent as the `data` it is."""
        frames = [
            entry
            if isinstance(entry, bytes)
            else entry.encode()
            if isinstance(entry, str)
            else json.dumps(entry).encode()
            for entry in chunks
        ]
        end = newline.encode()
        return cls(
            tuple(b"data: " + frame + end + end for frame in [*frames, *([b"[DONE]"] if done else [])]),
            **fields,
        )

    @classmethod
    def body(cls, value: Any, status: int = 200, **fields: Any) -> Reply:
        """A body: JSON of the value, or the text or bytes it is."""
        raw = (
            value
            if isinstance(value, bytes)
            else value.encode()
            if isinstance(value, str)
            else json.dumps(value).encode()
        )
        headers = {
            "Content-Type": "application/json" if not isinstance(value, str | bytes) else "text/html",
            **fields.pop("headers", {}),
        }
        return cls((raw,), status, headers, **fields)

    @classmethod
    def error(
        cls, status: int, message: str, code: str | None = None, param: str | None = None, **fields: Any
    ) -> Reply:
        return cls.body(
            {"error": {"message": message, "type": "error", "code": code, "param": param}}, status, **fields
        )

    def but(self, **fields: Any) -> Reply:
        return replace(self, **fields)


@dataclass(frozen=True)
class Recorded:
    """A request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


Script = Reply | Callable[[Recorded], Reply]


class FakeUpstream:
    """Plays its replies in order and repeats the last one. `gone` is set when a client leaves before its answer ended.

    `pages` are the answers of other paths, by path: a text, or what becomes JSON; None is a 404. `port` 0: any that is free."""

    def __init__(self, *script: Script, pages: Mapping[str, Any] | None = None, port: int = 0) -> None:
        self.script = list(script)
        self.pages = dict(pages or {})
        self.requests: list[Recorded] = []
        self.gone = asyncio.Event()
        self.sending = asyncio.Event()
        self._served: set[asyncio.BaseTransport] = set()
        self._runner: web.AppRunner | None = None
        self._port = port

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def connections(self) -> int:
        """How many connections have brought a request to answer."""
        return len(self._served)

    async def __aenter__(self) -> FakeUpstream:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        recorded = Recorded(
            request.method, request.path, dict(request.headers), json.loads(raw) if raw else None
        )
        if request.path in self.pages:
            self.requests.append(recorded)
            page = self.pages[request.path]
            return (
                web.Response(status=404)
                if page is None
                else web.Response(text=page)
                if isinstance(page, str)
                else web.json_response(page)
            )
        if request.method == "GET":
            self.requests.append(recorded)
            return web.json_response(
                {
                    "object": "list",
                    "data": [{"id": "fake", "object": "model", "created": 1, "owned_by": "fake"}],
                }
            )
        step = self.script[0]
        reply = step if isinstance(step, Reply) else step(recorded)
        transport = request.transport
        if transport is not None:
            reused = transport in self._served
            self._served.add(transport)
            if reused and reply.refuse_reused:
                transport.close()
                return web.Response()
        self.requests.append(recorded)
        if len(self.script) > 1:
            self.script.pop(0)
        try:
            return await self._play(request, reply)
        except (asyncio.CancelledError, ConnectionError):
            self.gone.set()
            raise

    async def _play(self, request: web.Request, reply: Reply) -> web.StreamResponse:
        response = web.StreamResponse(status=reply.status, headers=reply.headers)
        response.enable_chunked_encoding()
        await response.prepare(request)
        blocks = list(reply.frames)
        if reply.write_size:
            whole = b"".join(blocks)
            blocks = [whole[at : at + reply.write_size] for at in range(0, len(whole), reply.write_size)]
        for at, block in enumerate(blocks):
            if reply.gate is not None and at == len(blocks) - 1:
                await reply.gate.wait()
            await response.write(block)
            self.sending.set()
        if reply.ending == "hang":
            await asyncio.Event().wait()
        transport = request.transport
        if reply.ending != "eof" and transport is not None:
            transport.abort() if reply.ending == "reset" else transport.close()
            return response
        await response.write_eof()
        return response

"""FakeUpstream: an OpenAI-compatible server on loopback that follows a script, for tests.

    async with FakeUpstream(Reply.stream(answer(text="Hello"))) as upstream:
        ...  # send requests to upstream.base_url
        assert upstream.requests[0].body["messages"]

An answer is a list of chat chunks as OpenAI sends them. Each function in `QUIRKS` changes these chunks to
imitate one deviation of a real server. Faults of the connection (interruptions, resets, silence) are fields
of `Reply`.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from aiohttp import web

from toolwire.conform.judge.fold import fold_chat

Chunk = dict[str, Any]
CallScript = tuple[str, str, str]
"""A scripted call: id, name, arguments."""


# --- answers ---


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
    """Returns the chunks of a correct answer, with texts in pieces of `size` characters.

    If `finish` is None, the finish reason is `tool_calls` if there are calls, otherwise `stop`.
    """
    out = [chunk({"role": "assistant", "content": "" if text else None, "refusal": None})]
    for key, whole in (("reasoning_content", thought), ("content", text), ("refusal", refusal)):
        out += [chunk({key: piece}) for piece in pieces(whole, size)]
    for index, (call_id, name, arguments) in enumerate(calls):
        function = {"name": name, "arguments": ""}
        deltas = [{"index": index, "id": call_id, "type": "function", "function": function}]
        deltas += [{"index": index, "function": {"arguments": piece}} for piece in pieces(arguments, size)]
        out += [chunk({"tool_calls": [delta]}) for delta in deltas]
    out.append(chunk({}, finish or ("tool_calls" if calls else "stop")))
    if usage is not None:
        out.append({**chunk({}), "choices": [], "usage": dict(usage)})
    return out


def completion(chunks: Sequence[Chunk]) -> dict[str, Any]:
    """Returns the same answer as `chunks`, in the form of a response that is not streamed."""
    return fold_chat(chunks)


# --- quirks ---

Quirk = Callable[[list[Chunk]], list[Chunk]]


def _calls(entry: Chunk) -> list[dict[str, Any]]:
    return [call for choice in entry["choices"] for call in choice["delta"].get("tool_calls") or ()]


def _split(chunks: list[Chunk]) -> tuple[list[Chunk], list[Chunk], list[Chunk]]:
    """Splits the chunks into three lists: before the finish reason, with calls, and the rest.

    The first and third list contain no calls. The third list begins with the chunk that has the finish
    reason.
    """
    rest = [entry for entry in chunks if not _calls(entry)]
    ends = [
        at for at, entry in enumerate(rest) if any(choice["finish_reason"] for choice in entry["choices"])
    ]
    at = ends[0] if ends else len(rest)
    return rest[:at], [entry for entry in chunks if _calls(entry)], rest[at:]


def _each_call(change: Callable[[dict[str, Any], dict[str, str]], None]) -> Quirk:
    """Returns a quirk that applies `change(call, seen)` to every entry of `tool_calls`.

    `seen`: the id, name and arguments of this call in the entries so far, including this one.
    """

    def quirk(chunks: list[Chunk]) -> list[Chunk]:
        seen: dict[int, dict[str, str]] = {}
        for call in [call for entry in chunks for call in _calls(entry)]:
            name, arguments = (call["function"].get(key) or "" for key in ("name", "arguments"))
            opened = {"id": call.get("id") or "", "name": name, "arguments": ""}
            known = seen.setdefault(call["index"], opened)
            known["arguments"] += arguments
            change(call, known)
        return chunks

    return quirk


def _each_choice(change: Callable[[dict[str, Any]], None]) -> Quirk:
    def quirk(chunks: list[Chunk]) -> list[Chunk]:
        for entry in chunks:
            for choice in entry["choices"]:
                change(choice)
        return chunks

    return quirk


def _whole_calls(chunks: list[Chunk]) -> list[Chunk]:
    calls = completion(chunks)["choices"][0]["message"].get("tool_calls") or []
    before, _, after = _split(chunks)
    whole = [chunk({"tool_calls": [{**call, "index": index}]}) for index, call in enumerate(calls)]
    return [*before, *whole, *after]


def _all_in_one_chunk(chunks: list[Chunk]) -> list[Chunk]:
    before, whole, after = _split(_whole_calls(chunks))
    calls = [call for entry in whole for call in _calls(entry)]
    for call in calls:
        call.pop("index")
    return [*before, *([chunk({"tool_calls": calls})] if calls else []), *after]


@_each_choice
def _legacy(choice: dict[str, Any]) -> None:
    calls = choice["delta"].pop("tool_calls", None)
    if calls:
        choice["delta"]["function_call"] = calls[0]["function"]
    if choice["finish_reason"] == "tool_calls":
        choice["finish_reason"] = "function_call"


def _interleaved(chunks: list[Chunk]) -> list[Chunk]:
    """Reorders the chunks of calls: the first chunk of every call, then the second of each, and so on."""
    before, of_calls, after = _split(chunks)
    queues: dict[int, list[Chunk]] = {}
    for entry in of_calls:
        queues.setdefault(_calls(entry)[0]["index"], []).append(entry)
    mixed: list[Chunk] = []
    while any(queues.values()):
        mixed += [queue.pop(0) for queue in queues.values() if queue]
    return [*before, *mixed, *after]


def _finish_as(word: str | None) -> Quirk:
    return _each_choice(lambda choice: choice.update(finish_reason=word if choice["finish_reason"] else None))


@_each_choice
def _content_parts(choice: dict[str, Any]) -> None:
    if choice["delta"].get("content"):
        choice["delta"]["content"] = [{"type": "text", "text": choice["delta"]["content"]}]


def _numbers_as_strings(chunks: list[Chunk]) -> list[Chunk]:
    for entry in chunks:
        for numbered in (*entry["choices"], *_calls(entry)):
            numbered["index"] = str(numbered["index"])
        usage = entry.get("usage") or {}
        usage.update({key: str(value) for key, value in usage.items() if isinstance(value, int)})
    return chunks


def _name_in_pieces(chunks: list[Chunk]) -> list[Chunk]:
    out: list[Chunk] = []
    for entry in chunks:
        call = next(iter(_calls(entry)), None)
        name = call["function"].get("name") if call else None
        if not call or not name:
            out.append(entry)
            continue
        opener = {**call, "function": {"name": name[:3]}}
        rest = {"index": call["index"], "function": {"name": name[3:]}}
        out += [chunk({"tool_calls": [opener]}), chunk({"tool_calls": [rest]})]
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
"""Functions that imitate the deviations of real servers, by name."""


def with_quirk(name: str, chunks: Sequence[Chunk]) -> list[Chunk]:
    return QUIRKS[name](copy.deepcopy(list(chunks)))


# --- replies ---

Ending = Literal["eof", "cut", "reset", "hang"]


def _bytes(value: Any) -> bytes:
    """Returns bytes unchanged, text in UTF-8, and everything else as JSON."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


@dataclass(frozen=True)
class Reply:
    """One scripted answer.

    `ending`: `eof` ends the body properly, `cut` closes the connection before the body has ended, `reset`
    aborts the connection, `hang` keeps it open and sends nothing more. `write_size`: the body is written in
    pieces of that many bytes (0: one write for each entry of `frames`). `gate`: an event to wait for before
    the last write. `refuse_reused`: closes a connection that was already used for a request.
    """

    frames: tuple[bytes, ...] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "text/event-stream"})
    ending: Ending = "eof"
    write_size: int = 0
    gate: asyncio.Event | None = None
    refuse_reused: bool = False

    @classmethod
    def stream(cls, chunks: Sequence[Any], done: bool = True, newline: str = "\n", **fields: Any) -> Reply:
        """Returns an event stream. A chunk that is a string or bytes is sent as `data` unchanged."""
        data = [*map(_bytes, chunks), *([b"[DONE]"] if done else [])]
        return cls(tuple(b"data: " + frame + 2 * newline.encode() for frame in data), **fields)

    @classmethod
    def body(cls, value: Any, status: int = 200, **fields: Any) -> Reply:
        """Returns a body: the value as JSON, or a text or bytes unchanged."""
        kind = "text/html" if isinstance(value, str | bytes) else "application/json"
        headers = {"Content-Type": kind, **fields.pop("headers", {})}
        return cls((_bytes(value),), status, headers, **fields)

    @classmethod
    def error(
        cls, status: int, message: str, code: str | None = None, param: str | None = None, **fields: Any
    ) -> Reply:
        error = {"message": message, "type": "error", "code": code, "param": param}
        return cls.body({"error": error}, status, **fields)

    def but(self, **fields: Any) -> Reply:
        return replace(self, **fields)


@dataclass(frozen=True)
class Recorded:
    """A request that the upstream received."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


Script = Reply | Callable[[Recorded], Reply]
_MODELS = {"object": "list", "data": [{"id": "fake", "object": "model", "created": 1, "owned_by": "fake"}]}


class FakeUpstream:
    """A server that sends its replies in order and repeats the last reply.

    `pages`: fixed responses by path: a text, a value that is sent as JSON, or None for status 404. Requests
    for these paths use up no reply. `port`: 0 means any free port. `gone`: an event that is set when a client
    disconnects before its answer has ended.
    """

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
        """The number of connections that have sent a request."""
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
        body = json.loads(raw) if raw else None
        recorded = Recorded(request.method, request.path, dict(request.headers), body)
        if request.path in self.pages:
            self.requests.append(recorded)
            page = self.pages[request.path]
            if page is None:
                return web.Response(status=404)
            return web.Response(text=page) if isinstance(page, str) else web.json_response(page)
        if request.method == "GET":
            self.requests.append(recorded)
            return web.json_response(_MODELS)
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
            whole, size = b"".join(blocks), reply.write_size
            blocks = [whole[at : at + size] for at in range(0, len(whole), size)]
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

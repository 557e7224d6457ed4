"""Connecting a client: what to paste into it, and a real round trip over HTTP to this very server, in the shape in which that client asks.

The round trip offers one harmless tool of its own, `toolwire_check`, which runs nowhere: its call is looked at, a fixed text is sent back for it.
No tool of the vault is ever part of it. Whatever goes wrong is a step's words, never an error of the page. A key goes to this server only, and no
answer of this module holds one.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from starlette.requests import Request

from toolwire.access.gate import OWN
from toolwire.core.errors import KINDS, ToolwireError
from toolwire.surfaces.tables import model_rows
from toolwire.surfaces.web.clients import BY_ID, CLIENTS, ClientShape, values_of
from toolwire.surfaces.web.context import Row, Web, body
from toolwire.surfaces.web.context import field as member
from toolwire.wire.sse import SseReader

LIMIT_S = 60.0
LONGEST_ANSWER = 4 * 1024 * 1024
LONGEST_NAME = 500
QUOTED = 160

NAME = "toolwire_check"
ABOUT = "Checks the connection between a client and its model. It only answers."
PARAMETERS = {
    "type": "object",
    "properties": {"word": {"type": "string"}},
    "required": ["word"],
    "additionalProperties": False,
}
QUESTION = f'Call the tool {NAME} with the word "ping". When it has answered, tell me in one short sentence what it said.'
RESULT = "The check has arrived."


class ConnectApi:
    def __init__(self, web: Web, limit_s: float = LIMIT_S) -> None:
        self._web = web
        self._limit_s = limit_s

    def routes(self) -> list[Row]:
        return [("GET", "/connect", self.all), ("POST", "/connect/{client}/test", self.test)]

    async def all(self, request: Request) -> dict[str, Any]:
        """Every client with what to paste into it, for the model of the query or else the first."""
        models = model_rows(self._web.gateway.catalog)
        model = request.query_params.get("model", "")[:LONGEST_NAME] or (models[0]["id"] if models else "")
        base_url, needs_key = self._web.base_url(request), bool(self._key)
        values = values_of(base_url, model, needs_key)
        clients = [client.rendered(values, needs_key) for client in CLIENTS]
        return {
            "base_url": base_url,
            "models": models,
            "model": model,
            "needs_key": needs_key,
            "clients": clients,
        }

    async def test(self, request: Request) -> dict[str, Any]:
        client = BY_ID.get(request.path_params["client"])
        if client is None:
            raise ToolwireError("not_found", "There is no such client.")
        model = member(await body(request), "model", str, required=True)[:LONGEST_NAME]
        key = self._key
        connector = aiohttp.TCPConnector(
            ssl=False
        )  # it is this very server, by its address, which no certificate names
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(
            timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), connector=connector
        ) as session:
            # a run that was made to call can not go on when it is not any more: one that waits is asked as the client asks
            waits = any(
                row["id"] == model and row["tools"] == "parked"
                for row in model_rows(self._web.gateway.catalog)
            )
            trip = RoundTrip(
                session, _own_address(request), client.shaped(bool(key)), model, key, forced=not waits
            )
            steps = await trip.run(self._limit_s)
        return {"ok": all(step["ok"] for step in steps), "model": model, "steps": steps}

    @property
    def _key(self) -> str:
        return next(iter((*self._web.settings.server.keys, *self._web.settings.server.admin_keys)), "")


def _own_address(request: Request) -> str:
    """This server's own socket. Never the host that the request names: a key is sent there."""
    scheme, (host, port) = request.scope[OWN]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


class Failed(Exception):
    """A step did not go as it must; the message says how."""


@dataclass(slots=True)
class Heard:
    """A streamed answer, put together as a client does that trusts the stream."""

    text: str = ""
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    finish: list[str] = field(default_factory=list)
    ended: bool = False
    response_id: str = ""
    first_ms: float = 0
    turn: str = ""


class RoundTrip:
    """A tool loop of two turns. `root` is the server's address without `/v1`; `key` is "" where none is wanted; `forced`: the model must call."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        root: str,
        shape: ClientShape,
        model: str,
        key: str,
        forced: bool = True,
    ) -> None:
        self._forced = forced
        self._session = session
        self._root = root
        self._shape = shape
        self._model = model
        origin = {"origin": shape.origin} if shape.origin else {}
        caller = {"authorization": f"Bearer {key or 'unused'}"} if shape.sends_key else {}
        self._headers = {**shape.headers, **origin, **caller}
        self._first = Heard()

    async def run(self, limit_s: float) -> list[dict[str, Any]]:
        """Each step with how it went; what comes after a step that failed is not tried (`ok` is None)."""
        browser: list[tuple[str, Callable[[], Awaitable[str]]]] = (
            [("Preflight", self._preflight)] if self._shape.origin else []
        )
        plan = [
            *browser,
            ("List of models", self._listing),
            ("Tool call", self._call),
            ("Answer with the result", self._answer),
        ]
        deadline, out = time.monotonic() + limit_s, list[dict[str, Any]]()
        for name, step in plan:
            if out and not out[-1]["ok"]:
                out.append({"name": name, "ok": None, "ms": 0, "detail": "Not tried."})
                continue
            began = time.perf_counter()
            ok, detail = await _tried(step, deadline - time.monotonic(), limit_s)
            out.append(
                {
                    "name": name,
                    "ok": ok,
                    "ms": round((time.perf_counter() - began) * 1000, 1),
                    "detail": detail,
                }
            )
        return out

    # --- the steps -----------------------------------------------------------------------------------------------------------------------------

    async def _preflight(self) -> str:
        asked = sorted({"content-type", *self._headers} - {"origin"})
        headers = {
            "origin": self._shape.origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": ",".join(asked),
        }
        async with self._session.options(self._root + self._shape.turns, headers=headers) as answer:
            _check_origin(answer, self._shape.origin)
            allowed = {
                name.strip().lower()
                for name in answer.headers.get("access-control-allow-headers", "").split(",")
            }
        if answer.status >= 300 or not set(asked) <= allowed:
            raise Failed(
                f"The preflight is refused ({answer.status}); not allowed: {', '.join(sorted(set(asked) - allowed)) or 'nothing'}."
            )
        return f"{self._shape.origin} may ask, with all its {len(asked)} headers."

    async def _listing(self) -> str:
        async with self._session.get(self._root + self._shape.listing, headers=self._headers) as answer:
            if answer.status != 200:
                raise Failed(_refusal(answer.status, await answer.read()))
            if self._shape.origin:
                _check_origin(answer, self._shape.origin)
            ids = [entry["id"] for entry in (await answer.json())["data"]]
        if self._model not in ids:
            raise Failed(f"{self._model} is not among the {len(ids)} models that are listed.")
        return f"{len(ids)} models, {self._model} among them."

    async def _call(self) -> str:
        shape = self._shape
        if shape.api == "chat":
            function = {"name": NAME, "description": ABOUT, "parameters": PARAMETERS}
            asked: dict[str, Any] = {
                "messages": [self._question],
                "tools": [{"type": "function", "function": function}],
            }
            choice: dict[str, Any] = {"type": "function", "function": {"name": NAME}}
        else:
            asked = {"input": [self._question], "tools": [self._responses_tool]}
            choice = {"type": "function", "name": NAME}
        heard = self._first = await self._heard(
            {**shape.body, **asked, **({"tool_choice": choice} if self._forced else {})}
        )
        if not heard.calls:
            raise Failed(
                f"The model made no call. It wrote: {_quoted(heard.text)}"
                if heard.text.strip()
                else "The model made no call, and wrote nothing."
            )
        if len(heard.calls) > 1:
            raise Failed(
                f"One call was asked for, {len(heard.calls)} came: {', '.join(call['name'] for call in heard.calls.values())}."
            )
        call = next(iter(heard.calls.values()))
        _check_call(call)
        expected = "tool_calls" if shape.api == "chat" else "completed"
        if heard.finish != [expected]:
            raise Failed(
                f"The call came, but the answer ended with {', '.join(heard.finish) or 'nothing'} instead of {expected}."
            )
        return f"One call, {NAME} {_quoted(call['arguments'])}, ended with {expected}; first bytes after {heard.first_ms:.0f} ms."

    async def _answer(self) -> str:
        call = next(iter(self._first.calls.values()))
        chat = self._shape.api == "chat"
        asked = self._chat_result(call) if chat else self._responses_result(call)
        if self._shape.results == "user":
            asked.pop("tool_choice", None)
        heard = await self._heard(asked)
        if not heard.text.strip():
            called = "It called again instead of answering." if heard.calls else "The answer is empty."
            raise Failed(f"The result was taken, but there is no answer. {called}")
        resumed = " The run that waited for it went on." if heard.turn == "resumed" else ""
        return f"{_quoted(heard.text)} First bytes after {heard.first_ms:.0f} ms.{resumed}"

    # --- what is sent --------------------------------------------------------------------------------------------------------------------------

    @property
    def _question(self) -> dict[str, Any]:
        return {"role": "user", "content": QUESTION}

    @property
    def _responses_tool(self) -> dict[str, Any]:
        return {
            "type": "function",
            "name": NAME,
            "description": ABOUT,
            "parameters": PARAMETERS,
            "strict": False,
        }

    @property
    def _as_words(self) -> dict[str, Any]:
        return {"role": "user", "content": f"[{NAME} result]\n\n{RESULT}"}

    def _chat_result(self, call: Mapping[str, str]) -> dict[str, Any]:
        shape = self._shape
        if shape.results == "user":
            return {
                **shape.body,
                "messages": [self._question, {"role": "assistant", "content": shape.content}, self._as_words],
            }
        named = shape.results == "named"
        arguments = json.dumps(json.loads(call["arguments"])) if named else call["arguments"]
        called = {"id": call["id"], "type": "function", "function": {"name": NAME, "arguments": arguments}}
        result = {
            "role": "tool",
            "tool_call_id": call["id"],
            "content": RESULT,
            **({"name": NAME} if named else {}),
        }
        messages = [
            self._question,
            {"role": "assistant", "content": shape.content, "tool_calls": [called]},
            result,
        ]
        function = {"name": NAME, "description": ABOUT, "parameters": PARAMETERS}
        return {**shape.body, "messages": messages, "tools": [{"type": "function", "function": function}]}

    def _responses_result(self, call: Mapping[str, str]) -> dict[str, Any]:
        shape = self._shape
        result = {"type": "function_call_output", "call_id": call["id"], "output": RESULT}
        if shape.results == "user":
            said = {"role": "assistant", "content": [{"type": "output_text", "text": shape.content or ""}]}
            return {**shape.body, "input": [self._question, said, self._as_words]}
        if shape.results == "chained":
            return {
                **shape.body,
                "previous_response_id": self._first.response_id,
                "input": [result],
                "tools": [self._responses_tool],
            }
        called = {
            "type": "function_call",
            "call_id": call["id"],
            "name": NAME,
            "arguments": call["arguments"],
        }
        return {**shape.body, "input": [self._question, called, result], "tools": [self._responses_tool]}

    async def _heard(self, asked: dict[str, Any]) -> Heard:
        asked = {"model": self._model, "stream": True, **asked}
        began, heard, gather = time.perf_counter(), Heard(), _GATHER[self._shape.api]
        async with self._session.post(
            self._root + self._shape.turns, json=asked, headers=self._headers
        ) as answer:
            if answer.status != 200:
                raise Failed(_refusal(answer.status, await answer.read()))
            if self._shape.origin:
                _check_origin(answer, self._shape.origin)
            if not answer.content_type == "text/event-stream":
                raise Failed(f"A stream was asked for, {answer.content_type} came.")
            heard.turn = answer.headers.get("x-toolwire-turn", "")
            async for data in _events(answer):
                heard.first_ms = heard.first_ms or (time.perf_counter() - began) * 1000
                if data == b"[DONE]":
                    heard.ended = True
                else:
                    gather(heard, json.loads(data))
        if not heard.ended:
            raise Failed("The stream broke off before its end.")
        return heard


# --- what comes back -------------------------------------------------------------------------------------------------------------------------------


async def _tried(step: Callable[[], Awaitable[str]], left_s: float, limit_s: float) -> tuple[bool, str]:
    try:
        async with asyncio.timeout(max(0, left_s)):
            return True, await step()
    except Failed as failed:
        return False, str(failed)
    except TimeoutError:
        return False, f"No end within {limit_s:g} s."
    except aiohttp.ClientError as error:
        return False, f"The server cannot be reached at its own address: {error or type(error).__name__}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return False, f"The answer is not what this client understands: {error!r}"


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    reader, size = SseReader(), 0
    async for block in answer.content.iter_any():
        size += len(block)
        if size > LONGEST_ANSWER:
            raise Failed("The answer does not end; it was cut off.")
        for event in reader.feed(block):
            yield event if isinstance(event, bytes) else event.data


def _gather_chat(heard: Heard, chunk: dict[str, Any]) -> None:
    if "error" in chunk:
        raise Failed(_failure(chunk["error"]))
    for choice in chunk["choices"]:
        delta = choice["delta"]
        heard.text += delta.get("content") or ""
        for piece in delta.get("tool_calls") or ():
            call = heard.calls.setdefault(piece["index"], {"id": "", "name": "", "arguments": ""})
            function = piece.get("function") or {}
            call["id"] += piece.get("id") or ""
            call["name"] += function.get("name") or ""
            call["arguments"] += function.get("arguments") or ""
        if choice.get("finish_reason"):
            heard.finish.append(choice["finish_reason"])


def _gather_responses(heard: Heard, event: dict[str, Any]) -> None:
    kind = event["type"]
    if kind == "error":
        raise Failed(_failure(event))
    if kind == "response.output_text.delta":
        heard.text += event["delta"]
    elif kind == "response.output_item.added" and event["item"]["type"] == "function_call":
        item = event["item"]
        heard.calls[event["output_index"]] = {
            "id": item["call_id"],
            "name": item["name"],
            "arguments": item.get("arguments") or "",
        }
    elif kind == "response.function_call_arguments.delta":
        heard.calls[event["output_index"]]["arguments"] += event["delta"]
    elif kind in ("response.completed", "response.incomplete", "response.failed"):
        response = event["response"]
        if response.get("error"):
            raise Failed(_failure(response["error"]))
        heard.response_id, heard.ended = response["id"], True
        heard.finish.append(response["status"])


_GATHER: dict[str, Callable[[Heard, dict[str, Any]], None]] = {
    "chat": _gather_chat,
    "responses": _gather_responses,
}


def _check_call(call: Mapping[str, str]) -> None:
    if call["name"] != NAME or not call["id"]:
        raise Failed(f"{NAME} was asked for, {_quoted(call['name'] or 'a call without a name')} was called.")
    try:
        arguments = json.loads(call["arguments"])
    except ValueError:
        raise Failed(f"The call's arguments are no JSON: {_quoted(call['arguments'])}") from None
    if not isinstance(arguments, dict) or not isinstance(arguments.get("word"), str):
        raise Failed(f"The call's arguments do not fit the tool: {_quoted(call['arguments'])}")


def _check_origin(answer: aiohttp.ClientResponse, origin: str) -> None:
    allowed = answer.headers.get("access-control-allow-origin", "")
    if allowed not in (origin, "*"):
        raise Failed(f"The origin {origin} is not allowed; add it to server.origins.")


def _refusal(status: int, raw: bytes) -> str:
    try:
        error = json.loads(raw)["error"]
    except (ValueError, KeyError, TypeError):
        return f"The server answered {status}."
    return _failure(error, f"The server answered {status}: ")


def _failure(error: Any, before: str = "") -> str:
    """A failure in words. That a model would not call is no fault of the connection, and is said as what it is."""
    told = error if isinstance(error, dict) else {}
    words = _quoted(str(told.get("message") or "no words"), 400)
    return (
        f"The model made no call: {words}"
        if told.get("code") == KINDS["no_tool_call"].code
        else before + words
    )


def _quoted(text: str, most: int = QUOTED) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"

"""The API of the connect page: what to paste into a client, and a test of its connection.

The test sends real HTTP requests to this server, in the client's own form. It offers only the tool
`toolwire_check`, which never runs: the test checks the call and sends a fixed text as its result. If the test
fails, the API returns no error: the detail of the failed step says what went wrong. The test sends a key only
to this server, and shows it nowhere.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import aiohttp
from starlette.requests import Request

from toolwire.access.gate import OWN
from toolwire.backends.openai.failures import connection_error
from toolwire.conform.judge import fold
from toolwire.core.display import counted
from toolwire.core.errors import KINDS, ToolwireError
from toolwire.gateway.pipeline import Gateway
from toolwire.gateway.records import Caller
from toolwire.surfaces.tables import model_rows
from toolwire.surfaces.web.clients import BY_ID, CLIENTS, ClientShape, values_of
from toolwire.surfaces.web.context import PageApi, Row, Web, body, field

LIMIT_S = 60.0
LONGEST_ANSWER = 4 * 1024 * 1024
LONGEST_NAME = 500
QUOTED = 160

NAME = "toolwire_check"
QUESTION = f'Call the tool {NAME} with the word "ping". Then tell me in one short sentence what it answered.'
RESULT = "The check has arrived."
ASKED = {"role": "user", "content": QUESTION}
PARAMETERS = {
    "type": "object",
    "properties": {"word": {"type": "string"}},
    "required": ["word"],
    "additionalProperties": False,
}
_FUNCTION = {
    "name": NAME,
    "description": "Checks the connection between a client and its model. It only answers.",
    "parameters": PARAMETERS,
}
TOOL: dict[str, dict[str, Any]] = {
    "chat": {"type": "function", "function": _FUNCTION},
    "responses": {"type": "function", **_FUNCTION, "strict": False},
    "messages": {"name": NAME, "description": _FUNCTION["description"], "input_schema": PARAMETERS},
}
CHOICE: dict[str, dict[str, Any]] = {
    "chat": {"type": "function", "function": {"name": NAME}},
    "responses": {"type": "function", "name": NAME},
    "messages": {"type": "tool", "name": NAME},
}
INPUT = {"chat": "messages", "responses": "input", "messages": "messages"}
FINISHES = {"chat": "tool_calls", "responses": "completed", "messages": "tool_use"}
"""By API: the finish reason or status of an answer with a call."""
ENDED = ("completed", "incomplete", "failed")
Step = tuple[str, Callable[[], Awaitable[str]]]
"""A step of the test: its name, and a function that returns what happened or raises `Failed`."""


class ConnectApi(PageApi):
    def __init__(self, web: Web, limit_s: float = LIMIT_S) -> None:
        super().__init__(web)
        self._limit_s = limit_s

    def routes(self) -> list[Row]:
        return [("GET", "/connect", self.all), ("POST", "/connect/{client}/test", self.test)]

    async def all(self, request: Request) -> dict[str, Any]:
        """Returns what to paste into each client.

        The texts contain the model that the query names, or the first model if the query names none.
        """
        models = model_rows(self._web.gateway.catalog)
        model = request.query_params.get("model", "")[:LONGEST_NAME] or (models[0]["id"] if models else "")
        base_url, needs_key = self._web.base_url(request), bool(self._key)
        values = values_of(base_url, model, needs_key)
        clients = [client.rendered(values, needs_key) for client in CLIENTS]
        shown = {"base_url": base_url, "models": models, "model": model, "needs_key": needs_key}
        return {**shown, "clients": clients}

    async def test(self, request: Request) -> dict[str, Any]:
        client = BY_ID.get(request.path_params["client"])
        if client is None:
            raise ToolwireError("not_found", "There is no such client.")
        model = field(await body(request), "model", str, required=True)[:LONGEST_NAME]
        rows = model_rows(self._web.gateway.catalog)
        # A parked run cannot continue if the next request does not force the call any more.
        parked = any(row["id"] == model and row["tools"] == "parked" for row in rows)
        shape, key = client.shaped(bool(self._key)), self._key
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            # this server's own address, for which a certificate is not valid
            connector=aiohttp.TCPConnector(ssl=False),
        ) as session:
            trip = RoundTrip(session, _own_address(request), shape, model, key, forced=not parked)
            steps = await trip.run(self._limit_s)
        return {"ok": all(step["ok"] for step in steps), "model": model, "steps": steps}

    @property
    def _key(self) -> str:
        return next(iter((*self._web.settings.server.keys, *self._web.settings.server.admin_keys)), "")


def _own_address(request: Request) -> str:
    """Returns the address of this server's own socket.

    The request's Host header is not used, because a key is sent to this address.
    """
    scheme, (host, port) = request.scope[OWN]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


class Failed(Exception):
    """Raised when a step fails. The message says why."""


@dataclass(slots=True)
class StreamedAnswer:
    """A streamed answer, as a client assembles it."""

    text: str
    calls: list[dict[str, str]]
    finish: str
    response_id: str = ""
    first_ms: float = 0
    resumed: bool = False


class RoundTrip:
    """A test of two turns with a tool call.

    `root`: the server's address. `forced`: whether the request forces the model to call the tool.
    """

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
        if shape.api == "messages":
            caller = {"x-api-key": key or "unused"}
        self._headers = {**shape.headers, **origin, **caller}
        self._first = StreamedAnswer("", [], "")
        self._resumed = False

    async def run(self, limit_s: float) -> list[dict[str, Any]]:
        """Runs the steps and returns their results.

        After a failed step, no further step runs. The steps that did not run have `ok` None.
        """
        deadline, out = time.monotonic() + limit_s, list[dict[str, Any]]()
        for name, step in self._plan():
            if out and not out[-1]["ok"]:
                out.append({"name": name, "ok": None, "ms": 0, "detail": "Not tried."})
                continue
            began = time.perf_counter()
            ok, detail = await _tried(step, deadline - time.monotonic(), limit_s)
            ms = round((time.perf_counter() - began) * 1000, 1)
            out.append({"name": name, "ok": ok, "ms": ms, "detail": detail})
        return out

    def _plan(self) -> list[Step]:
        plan: list[Step] = [
            ("Preflight", self._preflight),
            ("List of models", self._listing),
            ("Tool call", self._call),
            ("Answer with the result", self._answer),
        ]
        return plan if self._shape.origin else plan[1:]

    # --- steps

    async def _preflight(self) -> str:
        asked = {"content-type", *self._headers} - {"origin"}
        headers = {
            "origin": self._shape.origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": ",".join(sorted(asked)),
        }
        async with self._session.options(self._root + self._shape.turns, headers=headers) as answer:
            self._check_origin(answer)
            allowed = answer.headers.get("access-control-allow-headers", "").lower().split(",")
        refused = asked - {name.strip() for name in allowed}
        if answer.status >= 300 or refused:
            missing = ", ".join(sorted(refused)) or "none"
            raise Failed(
                f"The preflight was refused ({answer.status}). Headers that are not allowed: {missing}."
            )
        return f"{self._shape.origin} may send requests with all of its {len(asked)} headers."

    async def _listing(self) -> str:
        url = f"{self._root}/v1/models" + ("?limit=1000" if self._shape.api == "messages" else "")
        async with self._session.get(url, headers=self._headers) as answer:
            await self._check_answer(answer)
            ids = [entry["id"] for entry in (await answer.json())["data"]]
        if self._model not in ids:
            raise Failed(f"{self._model} is not among the {counted(len(ids), 'listed model')}.")
        return f"{self._model} is listed ({len(ids)} in total)."

    async def _call(self) -> str:
        api = self._shape.api
        asked: dict[str, Any] = {INPUT[api]: [ASKED], "tools": [TOOL[api]]}
        if self._forced:
            asked["tool_choice"] = CHOICE[api]
        answered = self._first = await self._ask({**self._shape.body, **asked})
        if not answered.calls:
            wrote = f"It wrote: {_quoted(answered.text)}" if answered.text.strip() else "It wrote nothing."
            raise Failed(f"The model made no call. {wrote}")
        if len(answered.calls) > 1:
            names = ", ".join(call["name"] for call in answered.calls)
            raise Failed(f"Expected one call, received {len(answered.calls)}: {names}.")
        call = answered.calls[0]
        _check_call(call)
        expected = FINISHES[api]
        if answered.finish != expected:
            ended = answered.finish or "nothing"
            raise Failed(f"The call arrived, but the response ended with {ended} instead of {expected}.")
        arguments, first = _quoted(call["arguments"]), f"{answered.first_ms:.0f} ms"
        ended = f"The response ended with “{expected}”."
        return f"The model called {NAME} with {arguments}. First bytes after {first}. {ended}"

    async def _answer(self) -> str:
        answered = await self._ask(self._with_result(self._first.calls[0]))
        if not answered.text.strip():
            called = "The model called the tool again." if answered.calls else "The answer is empty."
            raise Failed(f"The server accepted the result, but the model did not answer. {called}")
        resumed = " The agent's waiting run continued with the result." if answered.resumed else ""
        return f"{_quoted(answered.text)} First bytes after {answered.first_ms:.0f} ms.{resumed}"

    # --- requests

    def _with_result(self, call: dict[str, str]) -> dict[str, Any]:
        """Returns the second request: the history and the call's result, as this client sends them."""
        shape = self._shape
        items_of = {
            "chat": self._chat_items,
            "responses": self._responses_items,
            "messages": self._messages_items,
        }
        items = items_of[shape.api](call)
        asked = {**shape.body, INPUT[shape.api]: items, "tools": [TOOL[shape.api]]}
        if shape.results == "user":
            asked = {name: value for name, value in asked.items() if name not in ("tools", "tool_choice")}
        if shape.results == "chained":
            asked["previous_response_id"] = self._first.response_id
        return asked

    def _chat_items(self, call: dict[str, str]) -> list[dict[str, Any]]:
        said: dict[str, Any] = {"role": "assistant", "content": self._shape.content}
        if self._shape.results == "user":
            return [ASKED, said, _result_as_text()]
        result = {"role": "tool", "tool_call_id": call["id"], "content": RESULT}
        arguments = call["arguments"]
        if self._shape.results == "named":
            result["name"] = NAME
            arguments = json.dumps(json.loads(arguments))
        function = {"name": NAME, "arguments": arguments}
        said["tool_calls"] = [{"id": call["id"], "type": "function", "function": function}]
        return [ASKED, said, result]

    def _responses_items(self, call: dict[str, str]) -> list[dict[str, Any]]:
        if self._shape.results == "user":
            text = {"type": "output_text", "text": self._shape.content or ""}
            return [ASKED, {"role": "assistant", "content": [text]}, _result_as_text()]
        result = {"type": "function_call_output", "call_id": call["id"], "output": RESULT}
        if self._shape.results == "chained":
            return [result]
        called = {"type": "function_call", "call_id": call["id"], "name": NAME}
        return [ASKED, {**called, "arguments": call["arguments"]}, result]

    def _messages_items(self, call: dict[str, str]) -> list[dict[str, Any]]:
        used = {"type": "tool_use", "id": call["id"], "name": NAME, "input": json.loads(call["arguments"])}
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": RESULT}
        return [ASKED, {"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]

    async def _ask(self, asked: dict[str, Any]) -> StreamedAnswer:
        began, first_ms, raw = time.perf_counter(), 0.0, bytearray()
        async with aclosing(self._sent({"model": self._model, "stream": True, **asked})) as blocks:
            async for block in blocks:
                raw += block
                if not first_ms and b"data:" in block:
                    first_ms = (time.perf_counter() - began) * 1000
                if len(raw) > LONGEST_ANSWER:
                    raise Failed("The response did not end. The test stopped reading it.")
        answered = _FOLDED[self._shape.api](bytes(raw))
        answered.first_ms, answered.resumed = first_ms, self._resumed
        return answered

    async def _sent(self, asked: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        """Sends a request and yields the blocks of its stream. Raises `Failed` if it is refused."""
        url = self._root + self._shape.turns
        async with self._session.post(url, json=asked, headers=self._headers) as answer:
            await self._check_answer(answer)
            if answer.content_type != "text/event-stream":
                raise Failed(f"Expected a stream, received {answer.content_type}.")
            self._resumed = answer.headers.get("x-toolwire-turn") == "resumed"
            async for block in answer.content.iter_any():
                yield block

    async def _check_answer(self, answer: aiohttp.ClientResponse) -> None:
        if answer.status != 200:
            raise Failed(_refusal(answer.status, await answer.read()))
        if self._shape.origin:
            self._check_origin(answer)

    def _check_origin(self, answer: aiohttp.ClientResponse) -> None:
        origin = self._shape.origin
        if answer.headers.get("access-control-allow-origin", "") not in (origin, "*"):
            raise Failed(f"The origin {origin} is not allowed. Add it to server.origins in your settings.")


def _result_as_text() -> dict[str, Any]:
    return {"role": "user", "content": f"[{NAME} result]\n\n{RESULT}"}


# --- answers


class GatewayTrip(RoundTrip):
    """A test of two turns without HTTP: sends chat completions requests to the gateway directly."""

    def __init__(self, gateway: Gateway, model: str, forced: bool) -> None:
        self._gateway = gateway
        self._shape = ClientShape()
        self._model = model
        self._forced = forced
        self._first = StreamedAnswer("", [], "")
        self._resumed = False

    def _plan(self) -> list[Step]:
        return [("Tool call", self._call), ("Answer with the result", self._answer)]

    async def _sent(self, asked: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        try:
            answer = await self._gateway.respond("chat", json.dumps(asked).encode(), Caller())
        except ToolwireError as error:
            raise Failed(_failure({"message": str(error), "code": error.failure.code})) from None
        assert answer.stream is not None
        self._resumed = (b"x-toolwire-turn", b"resumed") in answer.headers
        async with aclosing(answer.stream) as blocks:  # type: ignore[type-var]
            async for block in blocks:
                yield block


async def _tried(step: Callable[[], Awaitable[str]], left_s: float, limit_s: float) -> tuple[bool, str]:
    try:
        async with asyncio.timeout(max(0, left_s)):
            return True, await step()
    except Failed as failed:
        return False, str(failed)
    except TimeoutError:
        return False, f"The step did not end within {limit_s:g} s."
    except aiohttp.ClientError as error:
        return False, f"The server cannot reach its own address: {connection_error(error)}."
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        return False, f"The client cannot read this response: {error!r}"


def _chat_answer(raw: bytes) -> StreamedAnswer:
    body = fold(raw, "chat")
    _check_ended(body, b"data: [DONE]" in raw)
    choice = body["choices"][0]
    message = choice["message"]
    calls = [{"id": call.get("id") or "", **call["function"]} for call in message.get("tool_calls") or ()]
    return StreamedAnswer(message["content"] or "", calls, choice["finish_reason"] or "")


def _responses_answer(raw: bytes) -> StreamedAnswer:
    body = fold(raw, "responses")
    _check_ended(body, body.get("status") in ENDED)
    parts = [part for item in body["output"] if item["type"] == "message" for part in item["content"]]
    calls = [
        {"id": item["call_id"], "name": item["name"], "arguments": item["arguments"]}
        for item in body["output"]
        if item["type"] == "function_call"
    ]
    text = "".join(part.get("text") or "" for part in parts)
    return StreamedAnswer(text, calls, body["status"], body["id"])


def _messages_answer(raw: bytes) -> StreamedAnswer:
    body = fold(raw, "messages")
    _check_ended(body, b"event: message_stop" in raw)
    calls = [
        {"id": block["id"], "name": block["name"], "arguments": json.dumps(block["input"])}
        for block in body["content"]
        if block["type"] == "tool_use"
    ]
    text = "".join(block["text"] for block in body["content"] if block["type"] == "text")
    return StreamedAnswer(text, calls, body["stop_reason"] or "")


_FOLDED: dict[str, Callable[[bytes], StreamedAnswer]] = {
    "chat": _chat_answer,
    "responses": _responses_answer,
    "messages": _messages_answer,
}


def _check_ended(body: dict[str, Any], ended: bool) -> None:
    if body.get("error"):
        raise Failed(_failure(body["error"]))
    if not ended:
        raise Failed("The stream broke off before its end.")


def _check_call(call: dict[str, str]) -> None:
    if call["name"] != NAME or not call["id"]:
        raise Failed(f"Expected a call of {NAME} with an id, received {_quoted(str(call))}.")
    try:
        arguments = json.loads(call["arguments"])
    except ValueError:
        raise Failed(f"The call's arguments are not JSON: {_quoted(call['arguments'])}") from None
    if not isinstance(arguments, dict) or not isinstance(arguments.get("word"), str):
        raise Failed(f"The call's arguments do not match the tool's schema: {_quoted(call['arguments'])}")


def _refusal(status: int, raw: bytes) -> str:
    try:
        error = json.loads(raw)["error"]
    except (ValueError, KeyError, TypeError):
        return f"The server answered {status}."
    return _failure(error, f"The server answered {status}: ")


def _failure(error: Any, before: str = "") -> str:
    """Returns the message of an error.

    The message begins with `before`, or with "The model made no call" if that is the error.
    """
    error = error if isinstance(error, dict) else {}
    message = _quoted(str(error.get("message") or "no message"), 400)
    no_call = error.get("code") == KINDS["no_tool_call"].code or "requires a call" in message
    return f"The model made no call: {message}" if no_call else before + message


def _quoted(text: str, most: int = QUOTED) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"

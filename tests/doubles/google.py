"""FakeGoogle: a scripted server for tests, with the wire format of the Gemini API.

    answer = Answer(Said("Let me look."), Call("search", {"q": "Rust"}, signature="c2lnbmVk"))
    async with FakeGoogle(answer) as server:
        ...  # point the official SDK, or Toolwire, at server.base_url
        assert server.requests[0].body["contents"]

`:streamGenerateContent?alt=sse` streams an answer, `:generateContent` returns it whole. The table `RULES`
checks requests as the real service does: a request that Google would refuse gets Google's error, and the
script does not advance.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from doubles.provider import Body, FakeProvider, Problem, first_problem
from toolwire.testing.upstream import Recorded, Reply, pieces

DEFAULT_KEY = "AIzaSyFake-Key-0123456789abcdefghijklmn"
SIGNATURE = base64.b64encode(b"\x12\x88\x05a signed thought").decode()
DUMMY_SIGNATURES = ("skip_thought_signature_validator", "context_engineering_is_the_way_to_go")
"""Signatures that Google documents for calls that were not made by a Gemini model."""

STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


# --- answers ---


@dataclass(frozen=True)
class Said:
    """A text, sent in chunks."""

    text: str
    signature: str | None = None


@dataclass(frozen=True)
class Thought:
    """A summary of a thought, sent in chunks."""

    text: str


@dataclass(frozen=True)
class Call:
    """A function call, which Gemini sends whole.

    Older models send no id. Of parallel calls, only the first has a signature.
    """

    name: str
    args: Mapping[str, Any]
    id: str | None = None
    signature: str | None = None


Part = Said | Thought | Call


class Answer:
    """A candidate: its parts and how it ends.

    `finish` "": the stream ends without a finish reason. `blocked`: the prompt is refused for this reason.
    `error`: the answer ends with an error chunk, given as (status, message). `together`: consecutive calls
    share one chunk.
    """

    def __init__(
        self,
        *parts: Part,
        finish: str = "STOP",
        usage: Mapping[str, Any] | None = None,
        size: int = 4,
        blocked: str | None = None,
        error: tuple[int, str] | None = None,
        together: bool = False,
        model: str = "gemini-2.5-flash",
        **reply: Any,
    ) -> None:
        self.parts, self.finish, self.size = parts, finish, size
        self.usage = {
            "promptTokenCount": 25,
            "candidatesTokenCount": 15,
            "totalTokenCount": 40,
            **(usage or {}),
        }
        self.blocked, self.error, self.together, self.model, self.reply = (
            blocked,
            error,
            together,
            model,
            reply,
        )

    def _chunk(self, parts: list[Body] | None, finish: str | None = None, usage: bool = True) -> Body:
        chunk: Body = {"modelVersion": self.model, "responseId": "Xk0aZ-fake"}
        if parts is not None:
            candidate: Body = {
                "content": {"parts": parts, "role": "model"} if parts else {"role": "model"},
                "index": 0,
            }
            chunk["candidates"] = [{**candidate, **({"finishReason": finish} if finish else {})}]
        return {**chunk, "usageMetadata": self.usage} if usage else chunk

    def body(self) -> Body:
        if self.blocked is not None:
            return {**self._chunk(None), "promptFeedback": {"blockReason": self.blocked}}
        return self._chunk([_wire(part) for part in self.parts], self.finish or None)

    def chunks(self) -> Iterator[Body]:
        if self.blocked is not None:
            yield self.body()
            return
        calls: list[Body] = []
        for part in self.parts:
            if isinstance(part, Call) and self.together:
                calls.append(_wire(part))
                continue
            for piece in self._pieces(part):
                yield self._chunk([_wire(piece)], usage=False)
        if self.error is not None:
            yield _error_body(*self.error)
        elif self.finish or calls:
            yield self._chunk(calls or ([{"text": ""}] if self.finish == "STOP" else []), self.finish)

    def _pieces(self, part: Part) -> Iterator[Part]:
        if isinstance(part, Call):
            yield part
        elif isinstance(part, Thought):
            yield from map(Thought, pieces(part.text, self.size))
        else:
            texts = pieces(part.text, self.size)
            yield from (
                Said(text, part.signature if at == len(texts) - 1 else None) for at, text in enumerate(texts)
            )

    def as_reply(self, stream: bool) -> Reply:
        if not stream:
            return Reply.body(self.body(), **self.reply)
        frames = tuple(f"data: {json.dumps(chunk)}\r\n\r\n".encode() for chunk in self.chunks())
        return Reply(frames, headers={"Content-Type": "text/event-stream"}, **self.reply)


def _wire(part: Part) -> Body:
    if isinstance(part, Thought):
        return {"text": part.text, "thought": True}
    if isinstance(part, Call):
        body: Body = {
            "functionCall": {
                "name": part.name,
                "args": dict(part.args),
                **({"id": part.id} if part.id else {}),
            }
        }
    else:
        body = {"text": part.text}
    return {**body, "thoughtSignature": part.signature} if part.signature else body


def _error_body(status: int, message: str, details: list[Body] | None = None) -> Body:
    found: Body = {"code": status, "message": message, "status": STATUS_NAMES[status]}
    return {"error": {**found, "details": details} if details else found}


def error(status: int, message: str, details: list[Body] | None = None, **fields: Any) -> Reply:
    """Returns an error response in Google's format."""
    return Reply.body(_error_body(status, message, details), status, **fields)


# --- rules for requests ---

FIELDS = frozenset(
    "contents systemInstruction tools toolConfig safetySettings generationConfig cachedContent "
    "serviceTier labels".split()
)
CONFIG_FIELDS = frozenset(
    "temperature topP topK maxOutputTokens stopSequences candidateCount seed presencePenalty "
    "frequencyPenalty responseMimeType responseSchema "
    "responseJsonSchema responseModalities thinkingConfig mediaResolution responseLogprobs logprobs "
    "speechConfig imageConfig".split()
)
_DATA = (
    "text",
    "inlineData",
    "fileData",
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
)
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")

_OPAQUE = frozenset(
    "args response parameters parametersJsonSchema parameters_json_schema responseSchema "
    "responseJsonSchema response_json_schema".split()
)


def camel(value: Any) -> Any:
    """Returns a body with its keys in camelCase, as documented.

    The service also accepts snake_case (`thinking_budget`), and clients send both.
    """
    if isinstance(value, list):
        return [camel(item) for item in value]
    if not isinstance(value, dict):
        return value
    names = {name: re.sub(r"_([a-z])", lambda found: found[1].upper(), name) for name in value}
    return {names[name]: inner if name in _OPAQUE else camel(inner) for name, inner in value.items()}


def _declared(body: Body) -> list[Body]:
    return [
        function for tool in body.get("tools") or () for function in tool.get("functionDeclarations") or ()
    ]


def _of(kind: str, content: Body) -> list[Body]:
    return [part[kind] for part in content["parts"] if kind in part]


def fields_known(body: Body, model: str) -> Problem:
    for place, known in ((body, FIELDS), (body.get("generationConfig") or {}, CONFIG_FIELDS)):
        unknown = sorted(set(place) - known)
        if unknown:
            return f'Invalid JSON payload received. Unknown name "{unknown[0]}": Cannot find field.'
    return None


def contents(body: Body, model: str) -> Problem:
    if not body.get("contents"):
        return "* GenerateContentRequest.contents: contents is not specified\n"
    for at, content in enumerate(body["contents"]):
        if content.get("role") not in ("user", "model"):
            return "Please use a valid role: user, model."
        if not content.get("parts"):
            return f"* GenerateContentRequest.contents[{at}].parts: contents.parts must not be empty.\n"
        for place, part in enumerate(content["parts"]):
            if not any(kind in part for kind in _DATA):
                return (
                    f"* GenerateContentRequest.contents[{at}].parts[{place}].data: required oneof field "
                    "'data' must have one initialized field\n"
                )
    return None


def turns(body: Body, model: str) -> Problem:
    """Checks that calls follow a user turn, and are followed by the same number of results."""
    before: Body | None = None
    for content in body["contents"]:
        calls, results = _of("functionCall", content), _of("functionResponse", content)
        if calls and (before is None or before["role"] != "user"):
            return (
                "Please ensure that function call turn comes immediately after a user turn or after a "
                "function response turn."
            )
        open_calls = _of("functionCall", before) if before is not None else []
        if results and not open_calls:
            return "Please ensure that function response turn comes immediately after a function call turn."
        if len(results) != len(open_calls):
            return (
                "Please ensure that the number of function response parts is equal to the number of "
                "function call parts of the function call turn."
            )
        if sorted(result["name"] for result in results) != sorted(call["name"] for call in open_calls):
            return "Please ensure that every function response has the name of its function call."
        before = content
    if before is not None and before["role"] != "user":
        return "Please ensure that multiturn requests ends with a user role or a function response."
    return None


def tools(body: Body, model: str) -> Problem:
    names = [function["name"] for function in _declared(body)]
    for name in names:
        if not _NAME.fullmatch(name):
            return (
                "Invalid function name. Must start with a letter or an underscore. Must be alphanumeric "
                "(a-z, A-Z, 0-9), underscores (_), dots (.), "
                "colons (:), or dashes (-), with a maximum length of 64."
            )
    if len(set(names)) != len(names):
        return f"Duplicate function declaration found: {names[0]}"
    config = (body.get("toolConfig") or {}).get("functionCallingConfig") or {}
    if config and not names:
        return "Function calling config is set without function_declarations."
    allowed = config.get("allowedFunctionNames") or []
    if allowed and config.get("mode") not in ("ANY", "VALIDATED"):
        return "allowed_function_names should be set only when function calling mode is ANY or VALIDATED."
    if not set(allowed) <= set(names):
        return "allowed_function_names must be a subset of the declared functions."
    mime = (body.get("generationConfig") or {}).get("responseMimeType")
    if names and mime == "application/json" and not _is_gemini_3(model):
        return "Function calling with a response mime type: 'application/json' is unsupported"
    return None


def thinking(body: Body, model: str) -> Problem:
    config = (body.get("generationConfig") or {}).get("thinkingConfig") or {}
    if "thinkingLevel" in config and not _is_gemini_3(model):
        return "Thinking level is not supported for this model."
    if "thinkingLevel" in config and "thinkingBudget" in config:
        return "You can only set only one of thinking budget and thinking level."
    if config.get("thinkingBudget") == 0 and "-pro" in model:
        return "Budget 0 is invalid. This model only works in thinking mode."
    return None


def signatures(body: Body, model: str) -> Problem:
    """Checks signatures, for Gemini 3.

    The first call of every step in the current turn must be sent back with its signature.
    """
    if not _is_gemini_3(model):
        return None
    asked = max(
        (
            at
            for at, content in enumerate(body["contents"])
            if content["role"] == "user" and not _of("functionResponse", content)
        ),
        default=0,
    )
    for content in body["contents"][asked:]:
        calls = [part for part in content["parts"] if "functionCall" in part]
        if calls and "thoughtSignature" not in calls[0]:
            return (
                "Function call is missing a thought_signature in functionCall parts. This is required for "
                "tools to work correctly, and missing "
                "thought_signature may lead to degraded model performance. Additional data, function call "
                f"`default_api:{calls[0]['functionCall']['name']}` , position 2. Please refer to "
                "https://ai.google.dev/gemini-api/docs/thought-signatures for more details."
            )
    return None


def _is_gemini_3(model: str) -> bool:
    return model.startswith("gemini-3")


RULES: tuple[Callable[[Body, str], Problem], ...] = (
    fields_known,
    contents,
    turns,
    tools,
    thinking,
    signatures,
)
"""The checks of a request, in the service's order. Each returns the service's message, or None."""


# --- the server ---

_PATH = re.compile(r"/v1(?:beta|alpha)?/models/([^/:]+):(?:generateContent|streamGenerateContent)")


class FakeGoogle(FakeProvider[Answer]):
    """A fake of the Gemini API, with its list of models."""

    def __init__(
        self, *script: Answer | Reply, key: str = DEFAULT_KEY, models: tuple[str, ...] | None = None
    ) -> None:
        super().__init__(*script, key=key, models=models)
        self._issued = {base64.b64encode(dummy.encode()).decode() for dummy in DUMMY_SIGNATURES}

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            names = [*(self.models or ("gemini-2.5-flash",)), "gemini-embedding-001"]
            methods = {name: "embedContent" if "embedding" in name else "generateContent" for name in names}
            listed = [
                {"name": f"models/{name}", "supportedGenerationMethods": [methods[name]]} for name in names
            ]
            return web.json_response({"models": listed})
        if request.path.endswith(":streamGenerateContent") and request.query.get("alt") != "sse":
            return web.json_response(
                _error_body(400, "This server streams server-sent events only: ask with alt=sse."), status=400
            )
        return await super()._serve(request)

    def _issue(self, answer: Answer) -> None:
        self._issued |= {
            part.signature for part in answer.parts if not isinstance(part, Thought) and part.signature
        }

    def _streams(self, request: Recorded) -> bool:
        return request.path.endswith(":streamGenerateContent")

    def _refusal(self, request: Recorded) -> Reply | None:
        path = _PATH.fullmatch(request.path)
        if path is None:
            return error(404, "Requested entity was not found.")
        model = path[1]
        headers = {name.lower(): value for name, value in request.headers.items()}
        if "x-goog-api-key" not in headers:
            return error(
                403,
                "Method doesn't allow unregistered callers (callers without established identity). Please "
                "use API Key.",
            )
        if headers["x-goog-api-key"] != self.key:
            detail = {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "API_KEY_INVALID",
                "domain": "googleapis.com",
            }
            return error(400, "API key not valid. Please pass a valid API key.", [detail])
        timeout = float(headers.get("x-server-timeout", "600"))
        if timeout < 10:
            return error(
                400, f"Manually set deadline {timeout:g}s is too short. Minimum allowed deadline is 10s."
            )
        body = camel(request.body)
        problem = first_problem(RULES, body, model)
        if problem is not None:
            return error(400, problem)
        for content in body["contents"]:
            if any(
                "thoughtSignature" in part and part["thoughtSignature"] not in self._issued
                for part in content["parts"]
            ):
                return error(400, "Corrupted thought signature.")
        if self.models is not None and model not in self.models:
            return error(
                404,
                f"models/{model} is not found for API version v1beta, or is not supported for "
                "generateContent.",
            )
        return None

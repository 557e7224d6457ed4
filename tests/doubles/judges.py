"""Judges of an OpenAI-compatible endpoint: the SDK's types, the SDK itself, and `toolwire.conform.judge`.

No judge finds every problem: types do not check the order, the SDK's accumulators are lenient, and
`toolwire.conform.judge` knows only its tables. `Judge` combines all of them. Needs the `openai` package,
which is imported on first use.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from typing import Any, Unpack

from toolwire.conform.judge import JudgeOptions, Problem, fold, frames_of, judge_body, judge_error, judge_sse
from toolwire.core.turn import Api

if typing.TYPE_CHECKING:
    import httpx2
    from openai import OpenAI
    from pydantic import BaseModel


# --- the SDK's types ---

KNOWN_EXTRAS = {
    ("ChoiceDelta", "reasoning_content"),  # a common vendor extension
    ("ChatCompletionMessage", "reasoning_content"),
    (
        "ResponseFunctionCallArgumentsDoneEvent",
        "name",
    ),  # required by OpenAI's schema, but missing in the SDK's types
    ("ResponseCustomToolCall", "status"),  # sent by OpenAI
    ("Response", "store"),
    ("Response", "presence_penalty"),
    ("Response", "frequency_penalty"),
}


class SdkJudge:
    """Validates strictly against openai-python's pydantic types, and reports unknown keys."""

    def stream(self, frames: list[dict[str, Any]], api: Api) -> list[Problem]:
        return [
            problem for position, frame in enumerate(frames) for problem in self._frame(frame, api, position)
        ]

    def body(self, body: dict[str, Any], api: Api) -> list[Problem]:
        from openai.types.chat import ChatCompletion
        from openai.types.responses import Response

        return self.validate(body, ChatCompletion if api == "chat" else Response)

    def error(self, body: dict[str, Any], position: int = -1) -> list[Problem]:
        from openai.types.shared import ErrorObject

        return self.validate(body.get("error"), ErrorObject, position)

    def _frame(self, frame: dict[str, Any], api: Api, position: int) -> list[Problem]:
        from openai.types.chat import ChatCompletionChunk

        if api == "chat":
            if "error" in frame:
                return self.error(frame, position)
            return self.validate(_plain_chunk(frame), ChatCompletionChunk, position)
        model = _event_models().get(str(frame.get("type")))
        return (
            self.validate(frame, model, position)
            if model
            else [Problem("sdk", f"no type for {frame.get('type')!r}", position)]
        )

    def validate(self, value: object, model: type[BaseModel], position: int = -1) -> list[Problem]:
        """Returns the problems of a value, judged by one of the SDK's types."""
        from pydantic import ValidationError

        try:
            parsed = model.model_validate(value, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(step) for step in first["loc"])
            return [
                Problem(
                    "sdk",
                    f"{model.__name__}.{where}: {first['msg'][:200]} ({error.error_count()} errors)",
                    position,
                )
            ]
        return [
            Problem("sdk", f"{path} is no key of the SDK's types", position)
            for path in _extras(parsed, model.__name__)
        ]


def _plain_chunk(chunk: dict[str, Any]) -> dict[str, Any]:
    """Returns the chunk without calls of custom tools, which the SDK's chunk types do not have."""
    if not isinstance(chunk.get("choices"), list):
        return chunk
    return {**chunk, "choices": [_without_custom_calls(choice) for choice in chunk["choices"]]}


def _without_custom_calls(choice: Any) -> Any:
    delta = choice.get("delta") if isinstance(choice, dict) else None
    calls = delta.get("tool_calls") if isinstance(delta, dict) else None
    if not isinstance(calls, list) or not isinstance(delta, dict):
        return choice
    return {
        **choice,
        "delta": {
            **delta,
            "tool_calls": [call for call in calls if not (isinstance(call, dict) and "custom" in call)],
        },
    }


@cache
def _event_models() -> dict[str, type[BaseModel]]:
    from openai.types.responses import ResponseStreamEvent

    union = typing.get_args(ResponseStreamEvent)[0]
    return {
        kind: model
        for model in typing.get_args(union)
        for kind in typing.get_args(model.model_fields["type"].annotation)
    }


def _extras(value: Any, path: str) -> Iterator[str]:
    from pydantic import BaseModel

    if isinstance(value, BaseModel):
        for key in value.model_extra or {}:
            if (type(value).__name__, key) not in KNOWN_EXTRAS and key != "obfuscation":
                yield f"{path}.{key}"
        for key in type(value).model_fields:
            yield from _extras(getattr(value, key), f"{path}.{key}")
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _extras(entry, f"{path}[{index}]")


# --- the SDK as a client ---


class ReplayJudge:
    """Sends the bytes to the real openai-python client, and compares its result with `fold`."""

    def __init__(self) -> None:
        self._status = 200
        self._answer = b""
        self._type = "text/event-stream"

    @cached_property
    def _client(self) -> OpenAI:
        import httpx2
        from openai import OpenAI

        transport = httpx2.MockTransport(self._respond)
        return OpenAI(
            api_key="unused",
            base_url="http://judge.invalid/v1",
            max_retries=0,
            http_client=httpx2.Client(transport=transport),
        )

    def _respond(self, request: httpx2.Request) -> httpx2.Response:
        import httpx2

        return httpx2.Response(self._status, headers={"content-type": self._type}, content=self._answer)

    def final(self, raw: bytes, api: Api) -> dict[str, Any]:
        """Returns what the SDK accumulates: a completion, or the response of the terminal event.

        Raises the SDK's errors.
        """
        self._status, self._answer, self._type = 200, raw, "text/event-stream"
        if api == "chat":
            with self._client.chat.completions.stream(model="judge", messages=[]) as stream:
                stream.until_done()
                # Not the parsed completion: the SDK does not build it from a truncated answer.
                return _as_sent(stream.current_completion_snapshot)
        last = None
        for event in self._client.responses.create(model="judge", input="", stream=True):
            last = event
        response = getattr(last, "response", None)
        if response is None:
            raise RuntimeError("the SDK saw no terminal event")
        if response.status != "completed":
            return _as_sent(response)
        with self._client.responses.stream(model="judge", input="") as accumulated:
            return _as_sent(accumulated.get_final_response())

    def stream(self, raw: bytes, api: Api) -> list[Problem]:
        from openai import APIError

        folded = fold(raw, api)
        view = _completion_view if api == "chat" else _response_view
        try:
            held, due = view(self.final(raw, api)), view(folded)
        except APIError as error:
            failure = folded.get("error")
            message = failure.get("message") if api == "chat" and isinstance(failure, dict) else None
            return (
                []
                if error.message == message
                else [Problem("replay", f"the SDK raises {type(error).__name__}: {error.message}")]
            )
        except Exception as error:
            return [Problem("replay", f"the SDK raises {type(error).__name__}: {error}")]
        if api == "chat" and "error" in folded:
            return [Problem("replay", "the SDK does not see the error")]
        differing = [key for key in due if held.get(key) != due[key]]
        return [
            Problem("replay", f"{key}: the SDK holds {held.get(key)!r}, the stream says {due[key]!r}"[:400])
            for key in differing
        ]

    def body(self, body: dict[str, Any], api: Api) -> list[Problem]:
        self._status, self._answer, self._type = 200, json.dumps(body).encode(), "application/json"
        try:
            if api == "chat":
                held = _as_sent(self._client.chat.completions.create(model="judge", messages=[]))
            else:
                held = _as_sent(self._client.responses.create(model="judge", input=""))
        except Exception as error:
            return [Problem("replay", f"the SDK raises {type(error).__name__}: {error}")]
        return (
            [] if held == _unparsed(body) else [Problem("replay", "the SDK holds another body than was sent")]
        )

    def error(self, status: int, body: dict[str, Any]) -> list[Problem]:
        from openai import APIStatusError

        self._status, self._answer, self._type = status, json.dumps(body).encode(), "application/json"
        try:
            self._client.chat.completions.create(model="judge", messages=[])
        except APIStatusError as error:
            right = error.status_code == status and error.body == body.get("error")
            return [] if right else [Problem("replay", f"the SDK sees {error.status_code} {error.body!r}")]
        except Exception as error:
            return [Problem("replay", f"the SDK raises {type(error).__name__}: {error}")]
        return [Problem("replay", "the SDK takes the error for an answer")]


def _as_sent(model: Any) -> dict[str, Any]:
    """Returns an SDK object as plain data, without what the SDK adds."""
    return typing.cast("dict[str, Any]", _unparsed(model.to_dict(warnings=False)))


def _unparsed(value: Any) -> Any:
    if isinstance(value, list):
        return [_unparsed(entry) for entry in value]
    if isinstance(value, dict):
        return {
            key: _unparsed(entry) for key, entry in value.items() if key not in ("parsed", "parsed_arguments")
        }
    return value


def _completion_view(completion: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts of a completion on which clients act."""
    view: dict[str, Any] = {key: completion.get(key) for key in ("id", "created", "model", "usage")}
    for choice in completion.get("choices") or []:
        message, index = choice["message"], choice["index"]
        for key in ("role", "content", "refusal", "reasoning_content", "function_call"):
            view[f"choice {index} {key}"] = message.get(key)
        calls = message.get("tool_calls") or []
        view[f"choice {index} calls"] = [
            {key: value for key, value in call.items() if key != "index" and value is not None}
            for call in calls
        ]
        view[f"choice {index} finish_reason"] = choice.get("finish_reason")
    return view


def _response_view(response: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: response.get(key)
        for key in ("id", "created_at", "model", "status", "error", "incomplete_details", "usage", "output")
    }


# --- stream = body: ids and times differ between two answers to the same request ---

_API_OF: dict[Any, Api] = {"response": "responses", "chat.completion": "chat"}
IGNORED = {
    "chat": ("id", "created", "system_fingerprint", "metadata"),
    "responses": ("id", "created_at", "completed_at", "call_id"),
    "messages": ("id",),
}


def same(stream_raw: bytes | str, body: dict[str, Any], api: Api | None = None) -> list[Problem]:
    """Returns the differences between the stream and the body.

    Usage is compared only if the stream has it.
    """
    if api is None:
        api = _API_OF.get(body.get("object"))
    folded = fold(stream_raw, api)
    api = api or ("responses" if "created_at" in folded else "chat")
    if "error" in body and set(body) <= {"error", "type"}:
        sent, due = (_mapping(error).get("message") for error in (folded.get("error"), body["error"]))
        return [] if sent == due else [Problem("stream_differs", f"error: stream {sent!r}, body {due!r}")]
    if "usage" not in folded and api == "chat":
        body = {key: value for key, value in body.items() if key != "usage"}
    lines = _differences(_comparable(folded, api), _comparable(body, api), "")
    return [Problem("stream_differs", line) for line in lines]


def _comparable(value: Any, api: Api) -> Any:
    """Returns a value without ids and times, for a comparison. An absent text equals an empty text."""
    if isinstance(value, list):
        return [_comparable(entry, api) for entry in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _comparable(entry, api) for key, entry in value.items() if key not in IGNORED[api]}
    if api == "chat" and "role" in plain:
        for key in ("content", "refusal", "reasoning_content"):
            plain[key] = plain.get(key) or None
        if plain.get("annotations") == []:  # only a body says explicitly that there are no annotations
            del plain["annotations"]
    return plain


def _differences(stream: Any, body: Any, path: str) -> list[str]:
    if isinstance(stream, dict) and isinstance(body, dict):
        keys = sorted(stream.keys() | body.keys())
        steps = [(f".{key}", stream.get(key, _ABSENT), body.get(key, _ABSENT)) for key in keys]
    elif isinstance(stream, list) and isinstance(body, list) and len(stream) == len(body):
        steps = [(f"[{index}]", *pair) for index, pair in enumerate(zip(stream, body, strict=True))]
    else:
        line = f"{path.lstrip('.')}: stream {str(stream)[:80]!r}, body {str(body)[:80]!r}"
        return [] if stream == body else [line]
    return [line for step, left, right in steps for line in _differences(left, right, path + step)]


class _Absent:
    def __repr__(self) -> str:
        return "absent"


_ABSENT = _Absent()


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# --- all judges ---


class Judge:
    """Applies all judges to a stream or a body."""

    def __init__(self) -> None:
        self.sdk = SdkJudge()
        self.replay = ReplayJudge()

    def stream_verdicts(
        self, raw: bytes, api: Api, expected: dict[str, Any] | None = None, **options: Unpack[JudgeOptions]
    ) -> Iterator[tuple[str, list[Problem]]]:
        """Yields the name and the problems of each judge, the cheapest judge first."""
        yield "order", judge_sse(raw, api, **options)
        if expected is not None:
            yield "body", same(raw, expected, api)
        frames = frames_of(raw)
        yield "sdk", self.sdk.stream(frames, api)
        yield "replay", self.replay.stream(raw, api)

    def stream_problems(
        self, raw: bytes, api: Api, expected: dict[str, Any] | None = None, **options: Unpack[JudgeOptions]
    ) -> list[Problem]:
        return [
            problem
            for _, problems in self.stream_verdicts(raw, api, expected, **options)
            for problem in problems
        ]

    def body_problems(self, body: dict[str, Any], api: Api, **options: Unpack[JudgeOptions]) -> list[Problem]:
        return [*judge_body(body, api, **options), *self.sdk.body(body, api), *self.replay.body(body, api)]

    def error_problems(self, status: int, body: dict[str, Any]) -> list[Problem]:
        return [*judge_error(status, body), *self.sdk.error(body), *self.replay.error(status, body)]

    def stream(
        self, raw: bytes, api: Api, expected: dict[str, Any] | None = None, **options: Unpack[JudgeOptions]
    ) -> None:
        """Asserts that the stream is correct and, if `expected` is given, that it equals this body."""
        _assert_none(self.stream_problems(raw, api, expected, **options), raw.decode("utf-8", "replace"))

    def body(self, body: dict[str, Any], api: Api, **options: Unpack[JudgeOptions]) -> None:
        _assert_none(self.body_problems(body, api, **options), json.dumps(body, indent=1))

    def error(self, status: int, body: dict[str, Any]) -> None:
        _assert_none(self.error_problems(status, body), f"HTTP {status} {json.dumps(body)}")


def _assert_none(problems: list[Problem], evidence: str) -> None:
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems[:20])
        raise AssertionError(
            f"{len(problems)} problems on the wire:\n{listed}\n--- what was sent ---\n{evidence[:6000]}"
        )

"""The keys of the objects in OpenAI's APIs, as tables (`ObjectShape`), and the code that checks objects.

A table has the required and the optional keys of an object, and the values that each key may have. A key that
is not in the object's table is reported as unknown. The tables of Messages are in `messages`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict


@dataclass(frozen=True, slots=True)
class Problem:
    """One deviation: a code, a sentence, and the position of the frame.

    Frames are numbered from 0. The position -1 means the whole answer.
    """

    code: str
    message: str
    position: int = -1
    subject: str = field(default="", compare=False)
    """For a missing, wrong or unknown key: the name of the key's object."""
    key: str = field(default="", compare=False)
    empty: bool = field(default=False, compare=False)
    """Whether the key's value is null or empty."""

    def __str__(self) -> str:
        where = f"frame {self.position}" if self.position >= 0 else "whole"
        return f"[{self.code}] {where}: {self.message}"


@dataclass(frozen=True, slots=True)
class ValueCheck:
    """A test of a value. `expected` describes in words what `holds` tests."""

    expected: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class ObjectShape:
    name: str
    required: Mapping[str, ValueCheck]
    optional: Mapping[str, ValueCheck] = field(default_factory=dict)


def misfits(shape: ObjectShape, value: object, position: int = -1) -> Iterator[Problem]:
    """Yields every deviation of the value from the shape."""

    def wrong(code: str, message: str, key: str = "", found: object = "x") -> Problem:
        return Problem(code, shape.name + message, position, shape.name, key, found in (None, "", []))

    if not isinstance(value, dict):
        yield wrong("wrong_value", f" must be an object, not {_show(value)}")
        return
    for key in shape.required:
        if key not in value:
            yield wrong("missing_key", f" lacks {key!r}", key)
    for key, found in value.items():
        check = shape.required.get(key) or shape.optional.get(key)
        if check is None:
            yield wrong("unknown_key", f" has the unknown key {key!r}", key)
        elif not check.holds(found):
            yield wrong("wrong_value", f".{key} must be {check.expected}, not {_show(found)}", key, found)


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def only(*values: Any) -> ValueCheck:
    return ValueCheck(
        " or ".join(repr(value) for value in values),
        lambda found: any(found == value and type(found) is type(value) for value in values),
    )


def or_null(check: ValueCheck) -> ValueCheck:
    return ValueCheck(f"{check.expected} or null", lambda found: found is None or check.holds(found))


def _number(found: Any, *kinds: type) -> bool:
    return isinstance(found, kinds) and not isinstance(found, bool)


ANY = ValueCheck("anything", lambda found: True)
TEXT = ValueCheck("a string", lambda found: isinstance(found, str))
FILLED = ValueCheck("a non-empty string", lambda found: isinstance(found, str) and found != "")
COUNT = ValueCheck("an integer from 0", lambda found: _number(found, int) and found >= 0)
TIME = ValueCheck("seconds from 0", lambda found: _number(found, int, float) and found >= 0)
NUMBER = ValueCheck("a number", lambda found: _number(found, int, float))
FLAG = ValueCheck("true or false", lambda found: isinstance(found, bool))
OBJECT = ValueCheck("an object", lambda found: isinstance(found, dict))
LIST = ValueCheck("a list", lambda found: isinstance(found, list))
FILLED_LIST = ValueCheck("a non-empty list", lambda found: isinstance(found, list) and len(found) > 0)


def list_of(shape: ObjectShape) -> ValueCheck:
    return ValueCheck(
        f"a list of {shape.name}s",
        lambda found: isinstance(found, list) and not any(any(misfits(shape, one)) for one in found),
    )


# --- log probabilities, in chat completions and Responses ---

_LOGPROB: dict[str, ValueCheck] = {"token": TEXT, "logprob": NUMBER}
_TOP = list_of(ObjectShape("top logprob", {**_LOGPROB, "bytes": or_null(LIST)}))
LOGPROBS = list_of(ObjectShape("logprob", {**_LOGPROB, "bytes": or_null(LIST), "top_logprobs": _TOP}))
BRIEF_LOGPROBS = list_of(
    ObjectShape("logprob", _LOGPROB, {"top_logprobs": list_of(ObjectShape("top logprob", {}, _LOGPROB))})
)
"""The shape of log probabilities without `bytes`, as in the events of a Responses stream."""

# --- errors, in chat completions and Responses ---

ERROR_BODY = ObjectShape("error body", {"error": OBJECT})
ERROR = ObjectShape(
    "error", {"message": FILLED, "type": FILLED, "param": or_null(TEXT), "code": or_null(TEXT)}
)

# --- chat completions ---

FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter", "function_call")
_CHAT_EXTRAS = {"service_tier": or_null(TEXT), "system_fingerprint": or_null(TEXT), "moderation": ANY}

_CHAT_ENVELOPE = {"id": FILLED, "created": COUNT, "model": FILLED}

CHUNK = ObjectShape(
    "chunk",
    {**_CHAT_ENVELOPE, "object": only("chat.completion.chunk"), "choices": LIST},
    {"usage": or_null(OBJECT), "obfuscation": TEXT, **_CHAT_EXTRAS},
)
_OF_CHOICE = ObjectShape("logprobs", {"content": or_null(LOGPROBS), "refusal": or_null(LOGPROBS)})
_CHOICE_LOGPROBS = ValueCheck(
    "null or an object with the tokens of content and refusal",
    lambda found: found is None or not any(misfits(_OF_CHOICE, found)),
)
CHUNK_CHOICE = ObjectShape(
    "choice",
    {"index": COUNT, "delta": OBJECT, "finish_reason": or_null(only(*FINISH_REASONS))},
    {"logprobs": _CHOICE_LOGPROBS},
)
DELTA = ObjectShape(
    "delta",
    {},
    {
        "role": only("assistant"),
        "content": or_null(TEXT),
        "refusal": or_null(TEXT),
        "reasoning_content": or_null(TEXT),
        "tool_calls": FILLED_LIST,
        "function_call": OBJECT,
    },
)
COMPLETION = ObjectShape(
    "completion",
    {**_CHAT_ENVELOPE, "object": only("chat.completion"), "choices": FILLED_LIST},
    {"usage": OBJECT, "metadata": ANY, **_CHAT_EXTRAS},
)
COMPLETION_CHOICE = ObjectShape(
    "choice",
    {"index": COUNT, "message": OBJECT, "finish_reason": only(*FINISH_REASONS), "logprobs": _CHOICE_LOGPROBS},
)
MESSAGE = ObjectShape(
    "message",
    {"role": only("assistant"), "content": or_null(TEXT), "refusal": or_null(TEXT)},
    {
        "tool_calls": FILLED_LIST,
        "function_call": OBJECT,
        "reasoning_content": or_null(TEXT),
        "annotations": LIST,
        "audio": or_null(OBJECT),
    },
)
FUNCTION_CALL = ObjectShape("function_call", {"name": FILLED, "arguments": TEXT})
FUNCTION_CALL_FRAGMENT = ObjectShape("function_call", {"arguments": TEXT})


@dataclass(frozen=True, slots=True)
class UsageShapes:
    """The shapes of a usage object and its details. `parts`: the two counts whose sum is the total."""

    usage: ObjectShape
    details: Mapping[str, ObjectShape]
    parts: tuple[str, str]


def _details(name: str, *keys: str) -> ObjectShape:
    return ObjectShape(name, {}, dict.fromkeys(keys, COUNT))


_PREDICTION = ("accepted_prediction_tokens", "rejected_prediction_tokens")
_PROMPT = ("cached_tokens", "audio_tokens", "text_tokens", "image_tokens", "cache_write_tokens")
CHAT_USAGE = UsageShapes(
    ObjectShape(
        "usage",
        {"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT},
        {"prompt_tokens_details": OBJECT, "completion_tokens_details": OBJECT},
    ),
    {
        "prompt_tokens_details": _details("prompt_tokens_details", *_PROMPT),
        "completion_tokens_details": _details(
            "completion_tokens_details", "reasoning_tokens", "audio_tokens", "text_tokens", *_PREDICTION
        ),
    },
    ("prompt_tokens", "completion_tokens"),
)


@dataclass(frozen=True, slots=True)
class CallShapes:
    """The shapes of one kind of call in chat. `text`: the key whose value grows in a stream."""

    kind: str
    text: str

    def _shapes(
        self, name: str, outer: Mapping[str, ValueCheck], named: bool
    ) -> tuple[ObjectShape, ObjectShape]:
        inner = {"name": FILLED, self.text: TEXT} if named else {self.text: TEXT}
        return ObjectShape(name, {**outer, self.kind: OBJECT}), ObjectShape(f"call.{self.kind}", inner)

    @property
    def whole(self) -> tuple[ObjectShape, ObjectShape]:
        return self._shapes("call", {"id": FILLED, "type": only(self.kind)}, True)

    @property
    def opener(self) -> tuple[ObjectShape, ObjectShape]:
        return self._shapes("call opener", {"index": COUNT, "id": FILLED, "type": only(self.kind)}, True)

    @property
    def fragment(self) -> tuple[ObjectShape, ObjectShape]:
        return self._shapes("call fragment", {"index": COUNT}, False)


CALL_KINDS = {"function": CallShapes("function", "arguments"), "custom": CallShapes("custom", "input")}

# --- Responses ---

RESPONSE = ObjectShape(
    "response",
    {
        "id": FILLED,
        "object": only("response"),
        "created_at": TIME,
        "status": only("completed", "failed", "in_progress", "cancelled", "queued", "incomplete"),
        "error": or_null(OBJECT),
        "incomplete_details": or_null(OBJECT),
        "instructions": ANY,
        "model": FILLED,
        "tools": LIST,
        "output": LIST,
        "parallel_tool_calls": FLAG,
        "metadata": or_null(OBJECT),
        "tool_choice": ANY,
        "temperature": or_null(NUMBER),
        "top_p": or_null(NUMBER),
    },
    {
        **dict.fromkeys(("usage", "reasoning"), or_null(OBJECT)),
        **dict.fromkeys(("max_output_tokens", "max_tool_calls", "top_logprobs"), or_null(COUNT)),
        **dict.fromkeys(("truncation", "service_tier", "prompt_cache_key"), or_null(TEXT)),
        **dict.fromkeys(("prompt_cache_retention", "safety_identifier", "user"), or_null(TEXT)),
        **dict.fromkeys(("prompt", "prompt_cache_options", "conversation", "moderation"), ANY),
        "completed_at": or_null(TIME),
        "text": OBJECT,
        "store": FLAG,
        "background": or_null(FLAG),
        "previous_response_id": or_null(FILLED),
        # not in OpenAI's schema, but OpenAI sends them and Open Responses requires them
        **dict.fromkeys(("presence_penalty", "frequency_penalty"), or_null(NUMBER)),
    },
)
RESPONSE_ERROR = ObjectShape(
    "response.error", {"code": FILLED, "message": FILLED}, {"param": or_null(TEXT), "type": or_null(TEXT)}
)
INCOMPLETE_DETAILS = ObjectShape(
    "incomplete_details", {"reason": only("max_output_tokens", "content_filter")}
)
_TOKENS = ("input_tokens", "output_tokens", "total_tokens")
RESPONSE_USAGE = UsageShapes(
    ObjectShape(
        "usage",
        {
            **dict.fromkeys(_TOKENS, COUNT),
            **dict.fromkeys(("input_tokens_details", "output_tokens_details"), OBJECT),
        },
    ),
    {
        "input_tokens_details": ObjectShape(
            "input_tokens_details", {"cached_tokens": COUNT, "cache_write_tokens": COUNT}
        ),
        "output_tokens_details": ObjectShape("output_tokens_details", {"reasoning_tokens": COUNT}),
    },
    ("input_tokens", "output_tokens"),
)

STATUS = only("in_progress", "completed", "incomplete")
_CALL = {"id": FILLED, "call_id": FILLED, "name": FILLED}
_CALL_EXTRAS = {"namespace": TEXT, "caller": ANY}
_MESSAGE = {"id": FILLED, "type": ANY, "status": STATUS, "role": only("assistant"), "content": LIST}
_REASONING = {"content": LIST, "status": STATUS, "encrypted_content": or_null(TEXT)}


def _shapes(*shapes: ObjectShape) -> dict[str, ObjectShape]:
    return {shape.name: shape for shape in shapes}


ITEMS = _shapes(
    ObjectShape("message", _MESSAGE, {"phase": or_null(only("commentary", "final_answer"))}),
    ObjectShape("function_call", {"type": ANY, "status": STATUS, "arguments": TEXT, **_CALL}, _CALL_EXTRAS),
    ObjectShape(
        "custom_tool_call", {"type": ANY, "input": TEXT, **_CALL}, {"status": STATUS, **_CALL_EXTRAS}
    ),
    ObjectShape("reasoning", {"id": FILLED, "type": ANY, "summary": LIST}, _REASONING),
)
PARTS = _shapes(
    ObjectShape("output_text", {"type": ANY, "text": TEXT, "annotations": LIST, "logprobs": LOGPROBS}),
    ObjectShape("refusal", {"type": ANY, "refusal": TEXT}),
    ObjectShape("summary_text", {"type": ANY, "text": TEXT}),
    ObjectShape("reasoning_text", {"type": ANY, "text": TEXT}),
)


# --- options and findings of a judge ---


@dataclass(frozen=True, slots=True)
class Options:
    """The facts about a client's request that decide which answers are correct."""

    include_usage: bool = False
    legacy: bool = False
    tools: Sequence[str] | None = None
    """The names of the declared tools; None: any name is accepted."""
    allow_done_on_responses: bool = False
    may_stop: bool = False
    """Whether `finish_reason` may be `stop` although there are calls.

    OpenAI sends `stop` if the request requires a tool by name.
    """


class JudgeOptions(TypedDict, total=False):
    """The fields of `Options` as keyword arguments."""

    include_usage: bool
    legacy: bool
    tools: Sequence[str] | None
    allow_done_on_responses: bool
    may_stop: bool


class Findings:
    """Collects the problems of the current frame."""

    def __init__(self) -> None:
        self.position = -1
        self._found: list[Problem] = []

    def add(self, code: str, message: str) -> None:
        self._found.append(Problem(code, message, self.position))

    def fits(self, shape: ObjectShape, value: object) -> bool:
        """Reports every deviation of the value. Returns whether the content of the value can be checked.

        The content can be checked if the value only has unknown keys, and no other deviation.
        """
        found = list(misfits(shape, value, self.position))
        self._found += found
        return all(problem.code == "unknown_key" for problem in found)

    def check(self, condition: bool, code: str, message: str) -> bool:
        if not condition:
            self.add(code, message)
        return condition

    def take(self) -> list[Problem]:
        found, self._found = self._found, []
        return found


def check_declared(findings: Findings, options: Options, name: Any) -> None:
    """Reports a call of a tool that the client did not declare."""
    if options.tools is not None and name not in options.tools:
        findings.add("undeclared_tool", f"the called tool {name!r} was not declared")


def check_usage(findings: Findings, shapes: UsageShapes, usage: Mapping[str, Any]) -> None:
    """Checks a usage object and its details, and that the total is the sum of the two other counts."""
    if not findings.fits(shapes.usage, usage):
        return
    for key, shape in shapes.details.items():
        if usage.get(key) is not None and not findings.fits(shape, usage[key]):
            return
    first, second = shapes.parts
    if usage["total_tokens"] != usage[first] + usage[second]:
        findings.add("usage_total", f"total_tokens {usage['total_tokens']} is not {first} + {second}")


def check_arguments(findings: Findings, name: str, verdict: tuple[str, str] | None) -> None:
    """Reports what is wrong with a call's arguments. `verdict`: the result of `Growing.verdict`."""
    if verdict:
        findings.add(verdict[0], f"call {name!r}: {verdict[1]}")

"""The keys of every object on the wire, as tables, and one engine that compares an object with its table.

A table says which keys must be there, which may be there, and what each may hold. Keys that stand in no table are unknown and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ValueCheck:
    """`expected` says in words what `holds` tests."""

    expected: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class ObjectShape:
    name: str
    required: Mapping[str, ValueCheck]
    optional: Mapping[str, ValueCheck] = field(default_factory=dict)


def misfits(shape: ObjectShape, value: object) -> Iterator[tuple[str, str]]:
    """Every way in which the value departs from the shape, as (code, message)."""
    if not isinstance(value, dict):
        yield "wrong_value", f"{shape.name} must be an object, not {_show(value)}"
        return
    for key, check in shape.required.items():
        if key not in value:
            yield "missing_key", f"{shape.name} lacks {key!r}"
        elif not check.holds(value[key]):
            yield "wrong_value", f"{shape.name}.{key} must be {check.expected}, not {_show(value[key])}"
    for key in value:
        if key in shape.required:
            continue
        known = shape.optional.get(key)
        if known is None:
            yield "unknown_key", f"{shape.name} has the unknown key {key!r}"
        elif not known.holds(value[key]):
            yield "wrong_value", f"{shape.name}.{key} must be {known.expected}, not {_show(value[key])}"


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


ANY = ValueCheck("anything", lambda found: True)
TEXT = ValueCheck("a string", lambda found: isinstance(found, str))
FILLED = ValueCheck("a non-empty string", lambda found: isinstance(found, str) and found != "")
COUNT = ValueCheck(
    "an integer from 0", lambda found: isinstance(found, int) and not isinstance(found, bool) and found >= 0
)
TIME = ValueCheck(
    "seconds from 0",
    lambda found: isinstance(found, (int, float)) and not isinstance(found, bool) and found >= 0,
)
NUMBER = ValueCheck("a number", lambda found: isinstance(found, (int, float)) and not isinstance(found, bool))
FLAG = ValueCheck("true or false", lambda found: isinstance(found, bool))
OBJECT = ValueCheck("an object", lambda found: isinstance(found, dict))
LIST = ValueCheck("a list", lambda found: isinstance(found, list))
FILLED_LIST = ValueCheck("a non-empty list", lambda found: isinstance(found, list) and len(found) > 0)

# --- errors, in both APIs ---

ERROR_BODY = ObjectShape("error body", {"error": OBJECT})
ERROR = ObjectShape(
    "error", {"message": FILLED, "type": FILLED, "param": or_null(TEXT), "code": or_null(TEXT)}
)

# --- chat completions ---

FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter", "function_call")
_CHAT_EXTRAS = {"service_tier": or_null(TEXT), "system_fingerprint": or_null(TEXT), "moderation": ANY}

CHUNK = ObjectShape(
    "chunk",
    {
        "id": FILLED,
        "object": only("chat.completion.chunk"),
        "created": COUNT,
        "model": FILLED,
        "choices": LIST,
    },
    {"usage": or_null(OBJECT), "obfuscation": TEXT, **_CHAT_EXTRAS},
)
CHUNK_CHOICE = ObjectShape(
    "choice",
    {"index": COUNT, "delta": OBJECT, "finish_reason": or_null(only(*FINISH_REASONS))},
    {"logprobs": or_null(OBJECT)},
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
    {
        "id": FILLED,
        "object": only("chat.completion"),
        "created": COUNT,
        "model": FILLED,
        "choices": FILLED_LIST,
    },
    {"usage": OBJECT, "metadata": ANY, **_CHAT_EXTRAS},
)
COMPLETION_CHOICE = ObjectShape(
    "choice",
    {"index": COUNT, "message": OBJECT, "finish_reason": only(*FINISH_REASONS), "logprobs": or_null(OBJECT)},
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

CHAT_USAGE = ObjectShape(
    "usage",
    {"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT},
    {"prompt_tokens_details": OBJECT, "completion_tokens_details": OBJECT},
)
_PROMPT_DETAILS = ("cached_tokens", "audio_tokens", "text_tokens", "image_tokens", "cache_write_tokens")
_COMPLETION_DETAILS = (
    "reasoning_tokens",
    "audio_tokens",
    "text_tokens",
    "accepted_prediction_tokens",
    "rejected_prediction_tokens",
)
CHAT_USAGE_SHAPES = (
    (None, CHAT_USAGE),
    (
        "prompt_tokens_details",
        ObjectShape("prompt_tokens_details", {}, dict.fromkeys(_PROMPT_DETAILS, COUNT)),
    ),
    (
        "completion_tokens_details",
        ObjectShape("completion_tokens_details", {}, dict.fromkeys(_COMPLETION_DETAILS, COUNT)),
    ),
)


@dataclass(frozen=True, slots=True)
class CallShapes:
    """The shapes of one kind of call on chat: its whole in a body, its opener and its fragments in a stream. `text` is what grows."""

    kind: str
    text: str

    def _inner(self, required: Mapping[str, ValueCheck]) -> ObjectShape:
        return ObjectShape(f"call.{self.kind}", required)

    @property
    def whole(self) -> tuple[ObjectShape, ObjectShape]:
        return ObjectShape("call", {"id": FILLED, "type": only(self.kind), self.kind: OBJECT}), self._inner(
            {"name": FILLED, self.text: TEXT}
        )

    @property
    def opener(self) -> tuple[ObjectShape, ObjectShape]:
        outer = ObjectShape(
            "call opener", {"index": COUNT, "id": FILLED, "type": only(self.kind), self.kind: OBJECT}
        )
        return outer, self._inner({"name": FILLED, self.text: TEXT})

    @property
    def fragment(self) -> tuple[ObjectShape, ObjectShape]:
        return ObjectShape("call fragment", {"index": COUNT, self.kind: OBJECT}), self._inner(
            {self.text: TEXT}
        )


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
        **{
            "usage": or_null(OBJECT),
            "completed_at": or_null(TIME),
            "text": OBJECT,
            "reasoning": or_null(OBJECT),
            "store": FLAG,
        },
        **{
            "background": or_null(FLAG),
            "previous_response_id": or_null(FILLED),
            "max_output_tokens": or_null(COUNT),
        },
        **{
            "max_tool_calls": or_null(COUNT),
            "top_logprobs": or_null(COUNT),
            "truncation": or_null(TEXT),
            "service_tier": or_null(TEXT),
        },
        **{
            "prompt_cache_key": or_null(TEXT),
            "prompt_cache_retention": or_null(TEXT),
            "safety_identifier": or_null(TEXT),
            "user": or_null(TEXT),
        },
        **{"prompt": ANY, "prompt_cache_options": ANY, "conversation": ANY, "moderation": ANY},
        # not in OpenAI's schema, but sent by OpenAI and demanded by Open Responses
        **{"presence_penalty": or_null(NUMBER), "frequency_penalty": or_null(NUMBER)},
    },
)
RESPONSE_ERROR = ObjectShape(
    "response.error", {"code": FILLED, "message": FILLED}, {"param": or_null(TEXT), "type": or_null(TEXT)}
)
INCOMPLETE_DETAILS = ObjectShape(
    "incomplete_details", {"reason": only("max_output_tokens", "content_filter")}
)
RESPONSE_USAGE_SHAPES = (
    (
        None,
        ObjectShape(
            "usage",
            {
                **{"input_tokens": COUNT, "output_tokens": COUNT, "total_tokens": COUNT},
                **{"input_tokens_details": OBJECT, "output_tokens_details": OBJECT},
            },
        ),
    ),
    (
        "input_tokens_details",
        ObjectShape("input_tokens_details", {"cached_tokens": COUNT, "cache_write_tokens": COUNT}),
    ),
    ("output_tokens_details", ObjectShape("output_tokens_details", {"reasoning_tokens": COUNT})),
)

STATUS = only("in_progress", "completed", "incomplete")
_CALL = {"id": FILLED, "call_id": FILLED, "name": FILLED}
_CALL_EXTRAS = {"namespace": TEXT, "caller": ANY}
ITEMS: dict[str, ObjectShape] = {
    "message": ObjectShape(
        "message",
        {"id": FILLED, "type": ANY, "status": STATUS, "role": only("assistant"), "content": LIST},
        {"phase": or_null(only("commentary", "final_answer"))},
    ),
    "function_call": ObjectShape(
        "function_call", {"type": ANY, "status": STATUS, "arguments": TEXT, **_CALL}, _CALL_EXTRAS
    ),
    "custom_tool_call": ObjectShape(
        "custom_tool_call", {"type": ANY, "input": TEXT, **_CALL}, {"status": STATUS, **_CALL_EXTRAS}
    ),
    "reasoning": ObjectShape(
        "reasoning",
        {"id": FILLED, "type": ANY, "summary": LIST},
        {"content": LIST, "status": STATUS, "encrypted_content": or_null(TEXT)},
    ),
}
PARTS: dict[str, ObjectShape] = {
    "output_text": ObjectShape(
        "output_text", {"type": ANY, "text": TEXT, "annotations": LIST, "logprobs": LIST}
    ),
    "refusal": ObjectShape("refusal", {"type": ANY, "refusal": TEXT}),
    "summary_text": ObjectShape("summary_text", {"type": ANY, "text": TEXT}),
    "reasoning_text": ObjectShape("reasoning_text", {"type": ANY, "text": TEXT}),
}


# --- problem ---
#
# What a judge says: problems, each with a code for machines, a sentence for people, and the place where it
# was seen.


@dataclass(frozen=True, slots=True)
class Problem:
    """One departure from the wire. `position` counts the frames from 0; -1 means the stream or body as a whole."""

    code: str
    message: str
    position: int = -1

    def __str__(self) -> str:
        where = f"frame {self.position}" if self.position >= 0 else "whole"
        return f"[{self.code}] {where}: {self.message}"


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for, as far as it decides which answer is right. `may_stop`: an answer that calls may say `stop`, as OpenAI's does where the
    request names the tool."""

    include_usage: bool = False
    legacy: bool = False
    tools: Sequence[str] | None = None
    allow_done_on_responses: bool = False
    may_stop: bool = False


class Findings:
    """Collects the problems of the frame that is being judged."""

    def __init__(self) -> None:
        self.position = -1
        self._found: list[Problem] = []

    def add(self, code: str, message: str) -> None:
        self._found.append(Problem(code, message, self.position))

    def fits(self, shape: ObjectShape, value: object) -> bool:
        """Reports every misfit. False: the value can not be looked at further (an unknown key alone does no harm)."""
        usable = True
        for code, message in misfits(shape, value):
            self.add(code, message)
            usable = usable and code == "unknown_key"
        return usable

    def check(self, condition: bool, code: str, message: str) -> bool:
        if not condition:
            self.add(code, message)
        return condition

    def take(self) -> list[Problem]:
        found, self._found = self._found, []
        return found


def declared(findings: Findings, options: Options, name: Any) -> None:
    """A call may only name a tool that the client declared."""
    if options.tools is not None and name not in options.tools:
        findings.add("undeclared_tool", f"the called tool {name!r} was not declared")


def check_usage(
    findings: Findings,
    shapes: Sequence[tuple[str | None, ObjectShape]],
    usage: Mapping[str, Any],
    parts: tuple[str, str],
) -> None:
    """Judges a usage object: its own shape, its detail objects, and that the total is the sum."""
    for key, shape in shapes:
        value = usage if key is None else usage.get(key)
        if (key is None or value is not None) and not findings.fits(shape, value):
            return
    if usage["total_tokens"] != usage[parts[0]] + usage[parts[1]]:
        findings.add("usage_total", f"total_tokens {usage['total_tokens']} is not {parts[0]} + {parts[1]}")

"""A check, and the names that its rows share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from toolwire.conform.exchange import Family
from toolwire.conform.judging import Judge

Level = Literal["required", "optional"]


@dataclass(frozen=True, slots=True)
class Check:
    """`fails`: what goes wrong for a client. `asks`: the names of the questions whose exchanges are judged, in this order."""

    id: str
    family: Family
    demands: str
    source: str
    fails: str
    asks: tuple[str, ...]
    judge: Judge
    level: Level = "required"


SCHEMAS = "OpenAPI #/components/schemas/"
CHUNK, COMPLETION, RESPONSE = (
    f"{SCHEMAS}CreateChatCompletionStreamResponse",
    f"{SCHEMAS}CreateChatCompletionResponse",
    f"{SCHEMAS}Response",
)
EVENT = f"{SCHEMAS}ResponseStreamEvent"
FORMS = ("body", "stream")


def asks(family: Family, *names: str) -> tuple[str, ...]:
    return tuple(f"{family}.{name}" for name in names)


def both(family: Family, *names: str) -> tuple[str, ...]:
    return tuple(f"{family}.{name}.{form}" for name in names for form in FORMS)


def check(
    id: str,
    demands: str,
    source: str,
    fails: str,
    asks: tuple[str, ...],
    judge: Judge,
    level: Level = "required",
) -> Check:
    family = id.partition(".")[0]
    assert family in ("http", "chat", "responses"), id
    return Check(id, family, demands, source, fails, asks, judge, level)  # type: ignore[arg-type]

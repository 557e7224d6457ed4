"""What a judge says: problems, each with a code for machines, a sentence for people, and the place where it was seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolwire.judge.shape import Shape, misfits


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

    def fits(self, shape: Shape, value: object) -> bool:
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


def check_usage(findings: Findings, shapes: Sequence[tuple[str | None, Shape]], usage: Mapping[str, Any], parts: tuple[str, str]) -> None:
    """Judges a usage object: its own shape, its detail objects, and that the total is the sum."""
    for key, shape in shapes:
        value = usage if key is None else usage.get(key)
        if (key is None or value is not None) and not findings.fits(shape, value):
            return
    if usage["total_tokens"] != usage[parts[0]] + usage[parts[1]]:
        findings.add("usage_total", f"total_tokens {usage['total_tokens']} is not {parts[0]} + {parts[1]}")

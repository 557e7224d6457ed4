"""FakeProvider: the base of fake hosted providers, which check requests and play a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, Self, TypeVar

from toolwire.testing.upstream import FakeUpstream, Recorded, Reply

Body = dict[str, Any]
Problem = str | None
"""The service's message on why a request is refused; None: it is accepted."""


class Scripted(Protocol):
    """An answer that can be sent as a stream or as one body."""

    def as_reply(self, stream: bool) -> Reply: ...


Answer = TypeVar("Answer", bound=Scripted)


class FakeProvider(FakeUpstream, Generic[Answer]):
    """Plays its answers in order and repeats the last one.

    `refused` lists the refused requests with the reason. `models`: the known model names.
    """

    def __init__(self, *script: Answer | Reply, key: str, models: tuple[str, ...] | None = None) -> None:
        super().__init__(self._respond)
        self.answers = list(script)
        self.key, self.models = key, models
        self.refused: list[tuple[Recorded, str]] = []

    @property
    def base_url(self) -> str:
        return super().base_url.removesuffix("/v1")

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    def _refusal(self, request: Recorded) -> Reply | None:
        """Returns the service's error for a request that it would refuse, otherwise None."""
        raise NotImplementedError

    def _streams(self, request: Recorded) -> bool:
        """Returns True if the request asks for a stream."""
        raise NotImplementedError

    def _issue(self, answer: Answer) -> None:
        """Remembers the signatures of an answer, which the service checks when they are sent back."""
        raise NotImplementedError

    def _respond(self, request: Recorded) -> Reply:
        refusal = self._refusal(request)
        if refusal is not None:
            self.refused.append((request, json.loads(refusal.frames[0])["error"]["message"]))
            return refusal
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Reply):
            return answer
        self._issue(answer)
        return answer.as_reply(self._streams(request))


def first_problem(rules: Iterable[Callable[..., Problem]], *facts: Any) -> Problem:
    return next((problem for rule in rules if (problem := rule(*facts)) is not None), None)

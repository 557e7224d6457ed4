"""A model that follows a script, or the demo model.

Both are deterministic and work offline. The demo model is offered if no model is configured. With
`tools = "emulated"` or `"constrained"`, they act like models without tool calling: they read the tools from
their prompt, and write calls as text, in the dialect of the option `writes`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from toolwire.backends.base import Batch
from toolwire.backends.scripted.demo import as_read, demo, text_of, users_text
from toolwire.backends.scripted.script import ScriptError, Step, parse_script
from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.errors import ToolwireError
from toolwire.core.events import (
    CallArgs,
    CallBegin,
    CallEnd,
    Event,
    Failure,
    Finish,
    Refusal,
    Signature,
    Text,
    Thought,
    Usage,
)
from toolwire.core.turn import Call, Message, Result, TextPart, Turn
from toolwire.emulate.arguments import load_object
from toolwire.emulate.dialects import DIALECTS, select
from toolwire.emulate.prompt import BARE, Form

_TEXT_ONLY = Capabilities(strict=True, schema=True, images=True, reasoning=True)
_NATIVE = replace(
    _TEXT_ONLY, tools=True, tool_choice=True, allowed_tools=True, parallel=True, custom_tools=True
)
KEPT = 16
_TOKEN = 4
"""How many characters are counted as one token if the script has no step `usage`."""


@dataclass(frozen=True, slots=True)
class ScriptedOptions:
    """The keys of `[models.ID]` with `backend = "scripted"`."""

    script: str = ""
    """A script, or the path of a file with a script. If it is not set, the model is the demo model."""
    tools: Literal["native", "parked", "constrained", "emulated"] = "native"
    """The tool calling strategy. With `parked`, a call keeps the run open until its result arrives."""
    holds: tuple[str, ...] = ("text", "call")
    """What the model can be forced to write with the strategy `constrained`."""
    writes: str = "sentinel"
    prefill: bool = False
    dialects: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        try:
            select(self.dialects)
        except ValueError as unknown:
            raise ValueError(f"dialects: {unknown}") from None
        if self.writes not in DIALECTS:
            raise ValueError(f"writes: unknown dialect {self.writes!r}; known: {', '.join(DIALECTS)}")
        self.turns()

    def turns(self) -> list[list[Step]]:
        """Returns the parts of the script, or [] if there is no script. Raises `ScriptError`."""
        text, source = self.script, "script"
        if not text:
            return []
        try:
            if "\n" not in text and " " not in text.strip() and (file := Path(text).expanduser()).is_file():
                text, source = file.read_text("utf-8"), f"script {file}"
            return parse_script(text)
        except ScriptError as error:
            raise ScriptError(f"{source}: {error}") from None
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise ScriptError(f"script {text}: cannot be read: {reason}") from error


class ScriptedBackend:
    def __init__(
        self, id: str, options: ScriptedOptions | None = None, answer: Callable[[Turn], Iterable[Step]] = demo
    ) -> None:
        """If the options have no script, `answer` returns the steps of the answer to a turn."""
        self.id = id
        self.options = options or ScriptedOptions()
        self._answer = answer
        self._turns = self.options.turns()
        self.seen: deque[Turn] = deque(maxlen=KEPT)
        """The last turns that the model received."""
        self.live: deque[ScriptedRun] = deque(maxlen=KEPT)
        """The last runs of a model with `tools = "parked"`."""

    @property
    def capabilities(self) -> Capabilities:
        if not self._text_only:
            return _NATIVE
        holds: Any = frozenset(self.options.holds) if self.strategy == "constrained" else frozenset()
        return replace(
            _TEXT_ONLY,
            prefill=self.options.prefill,
            dialects=self.options.dialects or (),
            constrain=holds,
            parallel=bool(holds),
        )

    @property
    def _text_only(self) -> bool:
        return self.strategy in ("emulated", "constrained")

    @property
    def strategy(self) -> Strategy:
        return self.options.tools

    aliases: tuple[str, ...] = ()

    def alias(self, name: str) -> str | None:
        return None

    async def prepare(self) -> None:
        pass

    async def ready(self) -> bool:
        return True

    async def close(self) -> None:
        pass

    def open(self, turn: Turn) -> ScriptedRun:
        self.seen.append(turn)
        live = ScriptedRun(self, turn)
        self.live.append(live)
        return live

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        self.seen.append(turn)
        async with aclosing(self._play(turn)) as batches:
            async for batch in batches:
                yield batch

    async def _play(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        if self._turns:
            steps = self._turns[min(_answers(turn), len(self._turns) - 1)]
        else:
            steps = list(self._answer(turn if turn.tools else as_read(turn)))
        write = _Writer(turn, self.options.writes if self._text_only else None)
        for step in steps:
            if step.word == "pause":
                await asyncio.sleep(step.number)
            elif step.word == "hang":
                await asyncio.Event().wait()
            elif step.word == "cut":
                return
            else:
                for batch in write.step(step):
                    yield batch
                    await asyncio.sleep(0)  # let other tasks run
            if write.ended:
                return
        for batch in write.end():
            yield batch


class ScriptedRun:
    """A run of a scripted model that can wait for results. Each part of the script is one response.

    When the results of a response's calls arrive, the run continues with the next part.
    """

    def __init__(self, backend: ScriptedBackend, turn: Turn) -> None:
        self._backend = backend
        self._turn = turn
        self._calls: list[Call] = []
        self.segments = 0
        self.cancelled = False

    @property
    def pending(self) -> tuple[str, ...]:
        return tuple(call.call_id for call in self._calls)

    async def segment(self) -> AsyncGenerator[Batch, None]:
        self._check()
        self.segments += 1
        texts: list[str] = []
        async for batch in self._backend._play(self._turn):
            for index, event in enumerate(batch):
                if isinstance(event, CallBegin):
                    call = Call(f"native_{self.segments}_{event.index}", event.name, "", event.kind)
                    self._calls.append(call)
                    batch[index] = replace(event, id=call.call_id)
                elif isinstance(event, Text):
                    texts.append(event.text)
                elif isinstance(event, Finish):
                    text = (Message("assistant", (TextPart("".join(texts)),)),) if texts else ()
                    self._turn = replace(self._turn, items=(*self._turn.items, *text, *self._calls))
            yield batch

    def _check(self) -> None:
        if self.cancelled:
            raise ToolwireError("backend_cut", "The run was cancelled.")

    async def answer(self, results: Mapping[str, Result]) -> None:
        self._check()
        assert set(results) == set(self.pending)
        given = (replace(results[call.call_id], call_id=call.call_id) for call in self._calls)
        self._turn = replace(self._turn, items=(*self._turn.items, *given))
        self._calls = []

    async def cancel(self) -> None:
        self.cancelled = True


class _Writer:
    """Converts the steps of a script to batches of events. With a `dialect`, calls are written as text."""

    def __init__(self, turn: Turn, dialect: str | None) -> None:
        self._turn = turn
        self._dialect = dialect
        self._prompt = "\n".join(turn.words())
        self._chunk = 0
        self._calls = 0
        self._written = 0
        self._usage: Usage | None = None
        self._prefill = _prefilled(turn)
        self.ended = False

    def step(self, step: Step) -> Iterator[Batch]:
        word = step.word
        if word == "chunk":
            self._chunk = int(step.number)
        elif word == "usage":
            self._usage = Usage(int(step.number), step.second)
        elif word == "finish":
            yield from self.end(step.text, step.name)
        elif word == "fail":
            self.ended = True
            yield [Failure(step.name, step.text)]
        elif word in ("call", "custom"):
            yield from self._call(step)
        else:
            text = _filled(step.text, self._turn) if word == "say" else step.text
            if word in ("sign", "redact"):  # one event contains the whole text
                yield [_EVENTS[word](text)]
                return
            for piece in self._pieces(self._continued(text) if word in ("say", "raw") else text):
                yield [_EVENTS[word](piece)]

    def end(self, reason: str = "stop", sequence: str = "") -> Iterator[Batch]:
        self.ended = True
        usage = self._usage or Usage(len(self._prompt) // _TOKEN + 1, self._written // _TOKEN + 1)
        window = reason == "context_window"
        yield [usage, Finish("length" if window else reason, sequence or None, window)]  # type: ignore[arg-type]

    def _call(self, step: Step) -> Iterator[Batch]:
        if self._dialect is not None:
            arguments = step.text or "{}"
            if step.word == "custom":
                arguments = json.dumps({"input": step.text}, ensure_ascii=False)
            for piece in self._pieces(self._continued(self._as_text(step.name, arguments))):
                yield [Text(piece)]
            return
        begin = CallBegin(self._calls, step.name, None, "custom" if step.word == "custom" else "function")
        pieces: list[Event] = [CallArgs(self._calls, piece) for piece in self._pieces(step.text)]
        broken = begin.kind == "function" and bool(step.text) and load_object(step.text) is None
        end = CallEnd(self._calls, "truncated" if broken else "ok")
        self._calls += 1
        if self._chunk:
            yield [begin]
            yield from ([piece] for piece in pieces)
            yield [end]
        else:
            yield [begin, *pieces, end]

    def _as_text(self, name: str, arguments: str) -> str:
        assert self._dialect is not None
        nonce = re.search(r"<tool_call:([0-9a-z]+)>", self._prompt)
        bare = self._turn.constraint is not None and not self._turn.constraint.opening
        if self._dialect == "sentinel" and nonce is None and not bare:
            return ""
        form = Form(BARE if bare else self._dialect, nonce[1] if nonce else "")
        if load_object(arguments) is None:  # the arguments are incomplete, so the call is not closed either
            return form.write(name, "{}").partition("{}")[0] + arguments
        return form.write(name, arguments)

    def _continued(self, text: str) -> str:
        """Removes the part of the text that the client prefilled."""
        start, self._prefill = self._prefill, ""
        return text.removeprefix(start)

    def _pieces(self, text: str) -> list[str]:
        self._written += len(text)
        if not text:
            return []
        size = self._chunk or len(text)
        return [text[start : start + size] for start in range(0, len(text), size)]


_EVENTS: dict[str, Callable[[str], Event]] = {
    "say": Text,
    "raw": Text,
    "think": Thought,
    "summarize": lambda text: Thought(text, summary=True),
    "sign": Signature,
    "redact": lambda text: Signature(text, redacted=True),
    "refuse": Refusal,
}


def _answers(turn: Turn) -> int:
    count, before = 0, False
    for item in turn.items:
        own = isinstance(item, Call) or (isinstance(item, Message) and item.role == "assistant")
        count += own and not before
        before = own
    return count - bool(_prefilled(turn))


def _prefilled(turn: Turn) -> str:
    """Returns the text of the assistant's last message, which the model continues; "" if there is none."""
    last = turn.items[-1] if turn.items else None
    if isinstance(last, Message) and last.role == "assistant":
        return "".join(part.text for part in last.parts if isinstance(part, TextPart))
    return ""


def _filled(text: str, turn: Turn) -> str:
    turn = turn if turn.tools else as_read(turn)
    result = next((item for item in reversed(turn.items) if isinstance(item, Result)), None)
    values = {"{result}": text_of(result), "{user}": users_text(turn), "{model}": turn.model}
    for name, value in values.items():
        text = text.replace(name, value)
    return text

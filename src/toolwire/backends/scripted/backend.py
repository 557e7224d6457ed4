"""A model that does what a script says: deterministic, offline, and the default that `toolwire serve` shows a new user.

With a script it plays the script's parts. Without one it is the demo model: it answers with text, calls the required, named or first fitting tool
with minimal valid arguments, makes the calls that a request spells out (`Call the tool NAME with the arguments {…}`), and tells what a tool's result
said. With `tools = "emulated"` it is a model that knows nothing of tools: it reads the prompt it is given, like any text-only model, and writes its
calls as text in the dialect named by `writes`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from toolwire.backends.base import Batch
from toolwire.backends.scripted.demo import as_read, demo, words_of
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
    Text,
    Thought,
    Usage,
)
from toolwire.core.turn import Call, Message, Result, TextPart, Turn
from toolwire.emulate.arguments import load_object
from toolwire.emulate.dialects import DIALECTS, select
from toolwire.emulate.prompt import BARE, Form

_NATIVE = Capabilities(
    tools=True,
    tool_choice=True,
    allowed_tools=True,
    parallel=True,
    custom_tools=True,
    strict=True,
    schema=True,
    images=True,
    reasoning=True,
)
_TEXT_ONLY = replace(
    _NATIVE, tools=False, tool_choice=False, allowed_tools=False, parallel=False, custom_tools=False
)
KEPT = 16
_TOKEN = 4  # characters that count as a token where the script does not say


@dataclass(frozen=True, slots=True)
class ScriptedOptions:
    """`[models.ID]` with `backend = "scripted"`."""

    script: str = ""
    """The script itself, or the path of a file that holds it; empty: the demo model."""
    tools: Literal["native", "parked", "constrained", "emulated"] = "native"
    """`parked`: a call holds the run open, and the script goes on with its next part when the results are there."""
    holds: tuple[str, ...] = ("text", "call")
    """What the decoder of a constrained model can be held to; the script keeps it, or does not."""
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
        """The script's parts; none where there is no script. Raises `ScriptError`."""
        text, place = self.script, "script"
        if not text:
            return []
        try:
            if "\n" not in text and " " not in text.strip() and (file := Path(text).expanduser()).is_file():
                text, place = file.read_text("utf-8"), f"script {file}"
            return parse_script(text)
        except ScriptError as error:
            raise ScriptError(f"{place}: {error}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ScriptError(
                f"script {text}: can not be read: {getattr(error, 'strerror', None) or 'not UTF-8 text'}"
            ) from error


class ScriptedBackend:
    def __init__(self, id: str, options: ScriptedOptions | None = None) -> None:
        self.id = id
        self.options = options or ScriptedOptions()
        self._turns = self.options.turns()
        self.seen: deque[Turn] = deque(maxlen=KEPT)
        """The last turns this backend was asked to run: what the model saw."""
        self.live: deque[ScriptedRun] = deque(maxlen=KEPT)
        """The last runs that were opened to be parked."""

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
        """A run that can be parked."""
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
        steps = (
            self._turns[min(_answers(turn), len(self._turns) - 1)]
            if self._turns
            else list(demo(as_read(turn) if not turn.tools else turn))
        )
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
                    await asyncio.sleep(0)  # others want to run too
            if write.ended:
                return
        for batch in write.end():
            yield batch


class ScriptedRun:
    """A live run: each part of the script is one response, and the next one is played when the calls of the last have their results."""

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
        if self.cancelled:
            raise ToolwireError("backend_cut", "The run is gone.")
        self.segments += 1
        said: list[str] = []
        async for batch in self._backend._play(self._turn):
            for place, event in enumerate(batch):
                if isinstance(event, CallBegin):
                    call = Call(f"native_{self.segments}_{event.index}", event.name, "", event.kind)
                    self._calls.append(call)
                    batch[place] = replace(event, id=call.call_id)
                elif isinstance(event, Text):
                    said.append(event.text)
                elif isinstance(event, Finish):
                    text = (Message("assistant", (TextPart("".join(said)),)),) if said else ()
                    self._turn = replace(self._turn, items=(*self._turn.items, *text, *self._calls))
            yield batch

    async def answer(self, results: Mapping[str, Result]) -> None:
        if self.cancelled:
            raise ToolwireError("backend_cut", "The run is gone.")
        assert set(results) == set(self.pending)
        given = (replace(results[call.call_id], call_id=call.call_id) for call in self._calls)
        self._turn = replace(self._turn, items=(*self._turn.items, *given))
        self._calls = []

    async def cancel(self) -> None:
        self.cancelled = True


class _Writer:
    """Turns steps into batches of events; for a text-only model, calls into text."""

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
            yield from self.end(step.text)
        elif word == "fail":
            self.ended = True
            yield [Failure(step.name, step.text)]
        elif word in ("call", "custom"):
            yield from self._call(step)
        else:
            text = _filled(step.text, self._turn) if word == "say" else step.text
            for piece in self._pieces(self._continued(text) if word in ("say", "raw") else text):
                yield [_EVENTS[word](piece)]

    def end(self, reason: str = "stop") -> Iterator[Batch]:
        self.ended = True
        usage = self._usage or Usage(len(self._prompt) // _TOKEN + 1, self._written // _TOKEN + 1)
        yield [usage, Finish(reason)]  # type: ignore[arg-type]

    def _call(self, step: Step) -> Iterator[Batch]:
        if self._dialect is not None:
            arguments = (
                json.dumps({"input": step.text}, ensure_ascii=False) if step.word == "custom" else step.text
            )
            for piece in self._pieces(self._continued(self._as_text(step.name, arguments or "{}"))):
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
        if load_object(arguments) is None:  # a call that was cut: up to where it was cut
            return form.write(name, "{}").partition("{}")[0] + arguments
        return form.write(name, arguments)

    def _continued(self, text: str) -> str:
        """What is left to write when the answer's beginning was given."""
        start, self._prefill = self._prefill, ""
        return text.removeprefix(start)

    def _pieces(self, text: str) -> list[str]:
        self._written += len(text)
        if not text:
            return []
        size = self._chunk or len(text)
        return [text[place : place + size] for place in range(0, len(text), size)]


_EVENTS: dict[str, Callable[[str], Event]] = {
    "say": Text,
    "raw": Text,
    "think": Thought,
    "summarize": lambda text: Thought(text, summary=True),
    "refuse": Refusal,
}


def _answers(turn: Turn) -> int:
    """How often the assistant has answered so far."""
    count, before = 0, False
    for item in turn.items:
        own = isinstance(item, Call) or (isinstance(item, Message) and item.role == "assistant")
        count += own and not before
        before = own
    return count - bool(_prefilled(turn))


def _prefilled(turn: Turn) -> str:
    """A conversation that ends with the assistant's own words is to be continued."""
    last = turn.items[-1] if turn.items else None
    if isinstance(last, Message) and last.role == "assistant":
        return "".join(part.text for part in last.parts if isinstance(part, TextPart))
    return ""


def _filled(text: str, turn: Turn) -> str:
    turn = turn if turn.tools else as_read(turn)
    user = next(
        (item for item in reversed(turn.items) if isinstance(item, Message) and item.role == "user"), None
    )
    result = next((item for item in reversed(turn.items) if isinstance(item, Result)), None)
    for name, value in (("{result}", words_of(result)), ("{user}", words_of(user)), ("{model}", turn.model)):
        text = text.replace(name, value)
    return text

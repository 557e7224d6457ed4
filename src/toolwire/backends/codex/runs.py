"""A run on a Codex that has the client's tools natively (0.133 and later): it can hold its calls open between two HTTP requests.

The thread starts bare: the turn's items are injected as they are, and the turn begins without an input of its own. What Codex can not be told
(`tool_choice`) is done by what it is told of: no tools, or only these tools.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from toolwire.backends.base import Batch, FrameTap, frame_tap
from toolwire.backends.codex import items
from toolwire.backends.codex.options import CodexOptions, Features
from toolwire.backends.codex.reading import ThreadReader
from toolwire.backends.codex.thread import AFTER_ANSWER_S, OpenThread, Thread, ending, next_message, opened
from toolwire.backends.codex.worker import RequestError
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Event, Failure, Finish
from toolwire.core.turn import ImagePart, Item, Message, Result, TextPart, Turn


def thread_params(turn: Turn, options: CodexOptions, cwd: str, features: Features) -> dict[str, Any]:
    """What every thread starts with: nothing of Codex's own."""
    params: dict[str, Any] = {"baseInstructions": "", "approvalPolicy": "never", "sandbox": "read-only", "cwd": cwd}
    if options.model:
        params["model"] = options.model
    if features.ephemeral:
        params["ephemeral"] = True
    if turn.sampling.verbosity:
        params["config"] = {"model_verbosity": turn.sampling.verbosity}
    return params


def turn_params(turn: Turn, options: CodexOptions) -> dict[str, Any]:
    params: dict[str, Any] = {"input": []}
    effort = turn.sampling.effort or options.effort
    if effort:
        params["effort"] = effort
    if turn.sampling.summary:
        params["summary"] = turn.sampling.summary
    schema = items.output_schema(turn.output)
    if schema is not None:
        params["outputSchema"] = schema
    return params


class DynamicRun:
    """A `LiveRun`. Nothing is asked of Codex before the first segment is read."""

    def __init__(self, turn: Turn, options: CodexOptions, features: Features, cwd: str, open_thread: OpenThread) -> None:
        self._turn = turn
        self._options = options
        self._features = features
        self._cwd = cwd
        self._open_thread = open_thread
        self._tools = turn.offered()  # Codex knows no tool_choice, so it is told of no others
        self._reader = ThreadReader(frozenset(tool.name for tool in self._tools), turn.parallel)
        self._thread: Thread | None = None
        self._over = False
        self._pending: tuple[str, ...] = ()
        self._tap = frame_tap()

    @property
    def pending(self) -> tuple[str, ...]:
        return self._pending

    async def segment(self) -> AsyncGenerator[Batch, None]:
        """One response, up to its calls or to the end of the turn."""
        if self._over or self._pending:
            raise ToolwireError("conflict", "The run is over, or its calls are not answered yet.")
        self._tap = frame_tap()
        end: Event | None = None
        try:
            if self._thread is None:
                await self._start()
            while end is None:
                batch = await self._read()
                if batch and isinstance(batch[-1], Finish | Failure):
                    end = batch[-1]
                    if not self._pending:
                        await self._close(served=True)
                if batch:
                    yield batch
        except ToolwireError as error:
            failure = error.failure
            if self._thread is not None and self._thread.turn_id and failure.kind == "backend_unavailable":
                failure = Failure("backend_cut", failure.message)
            await self._close(served=False)
            if end is None:
                yield [failure]

    async def answer(self, results: Mapping[str, Result]) -> None:
        """Hands the waiting calls their results, in whatever order Codex asks for them."""
        answers = {call_id: items.answer_json(results.get(call_id)) for call_id in self._pending}
        self._pending = ()
        assert self._thread is not None
        self._reader.begin()
        for call_id, answer in answers.items():
            self._thread.answer(call_id, answer)

    async def cancel(self) -> None:
        self._pending = ()
        await self._close(served=True)

    # --- inside --------------------------------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        extra = (items.output_words(self._turn.output), items.demand(self._turn.tool_choice) if self._tools else "")
        injected = items.history(self._turn, extra)
        begin = turn_params(self._turn, self._options)
        params = {**thread_params(self._turn, self._options, self._cwd, self._features), "experimentalRawEvents": True, "environments": []}
        if self._tools:
            params["dynamicTools"] = [items.tool_json(tool) for tool in self._tools]

        async def start(thread: Thread) -> None:
            await thread.start("thread/start", params)
            if injected:
                await thread.inject(injected)

        self._thread = await opened(self._open_thread, start)
        await self._begin(begin)

    async def _begin(self, params: Mapping[str, Any]) -> None:
        assert self._thread is not None
        self._reader.turn_id = ""
        await self._thread.begin(params)
        self._reader.turn_id = self._thread.turn_id

    async def _read(self) -> Batch:
        """What is there now; the end with it, once it is known."""
        thread, reader = self._thread, self._reader
        assert thread is not None
        batch: Batch = []
        while not batch or thread.waiting():
            settling = bool(reader.calls) and not self._features.response_mark
            message = await next_message(thread, reader, self._options, self._options.settle_ms / 1000 if settling else None)
            if message is not None:
                if self._tap is not None:
                    self._tap(message.method, message.params)
                batch += reader.feed(message)
            elif reader.ended is None:
                return [*batch, *self._calls_end()]
            for call_id, words in reader.refused:
                thread.answer(call_id, items.refusal_json(words))
            reader.refused.clear()
            if reader.ended is not None:
                reader.calls.clear()
                return [*batch, *reader.usage(), await ending(thread, reader, self._options)]
            if reader.complete:
                reader.complete = False
                if reader.calls and self._features.response_mark:
                    return [*batch, *self._calls_end()]
        return batch

    def _calls_end(self) -> Batch:
        self._pending = tuple(self._reader.calls)
        return [*self._reader.usage(), Finish("tool_calls")]

    async def _close(self, served: bool) -> None:
        self._over = True
        if self._thread is not None:
            await self._thread.end(served)


# --- text ------------------------------------------------------------
#
# A run on a Codex without tools of the client's own (before 0.133): text in, text out; the pipeline
# emulates the tools. The system text goes into `developerInstructions` (the base instructions stay empty),
# the history into the thread as items, the last user message is the turn's input. Where a version does not
# take a history, it is told in the input's text. A model that asks for a tool of Codex's own which reads
# this machine's files is stopped before it gets an answer (law 9). One turn in some hundred is never ended
# by 0.89 on a busy machine: its answer is there and counted, then the thread is silent for ever, though
# its process serves others. Such a turn ends by our own clock.

GO_ON = "Go on."
_NAMES = {"user": "User", "assistant": "Assistant", "system": "System", "developer": "System"}


def split(turn: Turn) -> tuple[str, tuple[Item, ...], list[dict[str, Any]]]:
    """The system text, the history, and the input."""
    rest = list(turn.items)
    words = [turn.instructions] if turn.instructions else []
    while rest and isinstance(first := rest[0], Message) and first.role in ("system", "developer"):
        words.append(_words(first))
        rest.pop(0)
    last = rest[-1] if rest else None
    if isinstance(last, Message) and last.role == "user":
        return _joined(words, turn), tuple(rest[:-1]), [_input(part) for part in last.parts]
    return _joined(words, turn), tuple(rest), [{"type": "text", "text": GO_ON}]


def as_text(history: tuple[Item, ...]) -> str:
    """The history for a Codex that takes none."""
    told = [f"{_NAMES[item.role]}: {_words(item)}" for item in history if isinstance(item, Message)]
    return "The conversation so far:\n\n" + "\n\n".join(told) + "\n\nThe person's next message follows."


def _joined(words: list[str], turn: Turn) -> str:
    return "\n\n".join(filter(None, [*words, items.output_words(turn.output)]))


def _words(message: Message) -> str:
    return "\n\n".join(part.text for part in message.parts if isinstance(part, TextPart))


def _input(part: Any) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, ImagePart):
        return {"type": "image", "url": items.image_url(part)}
    raise ToolwireError("unsupported_value", f"Codex can not take content of the type {part.kind!r}: text and images only.")


async def run_text(turn: Turn, options: CodexOptions, features: Features, cwd: str, open_thread: OpenThread) -> AsyncGenerator[Batch, None]:
    """Runs the turn; ends with `Finish` or `Failure`. Closing it interrupts the turn."""
    system, history, words = split(turn)
    before = [entry for item in history for entry in items.item_json(item)]
    params = {**thread_params(turn, options, cwd, features), "experimentalRawEvents": True}
    if system:
        params["developerInstructions"] = system
    begin = turn_params(turn, options)
    reader = ThreadReader()
    tap = frame_tap()
    thread: Thread | None = None

    async def start(thread: Thread) -> None:
        nonlocal before, words
        if before:
            try:
                await thread.start("thread/resume", {"threadId": str(uuid.uuid4()), "history": before, **params})
                return
            except RequestError:
                words = [{"type": "text", "text": as_text(history)}, *words]
                before = []
        await thread.start("thread/start", params)

    try:
        thread = await opened(open_thread, start)
        await thread.begin({**begin, "input": words})
        while reader.ended is None:
            batch = await _read(thread, reader, options, tap, ends_itself=not features.follow_ups)
            if batch:
                yield batch
    except ToolwireError as error:
        failure = error.failure
        if thread is not None and thread.turn_id and failure.kind == "backend_unavailable":
            failure = Failure("backend_cut", failure.message)
        yield [failure]
    finally:
        if thread is not None:
            await thread.end(served=reader.ended is not None)


async def _read(thread: Thread, reader: ThreadReader, options: CodexOptions, tap: FrameTap | None, ends_itself: bool) -> Batch:
    """What is there now; the end with it, once it is known. `ends_itself`: an answer that asks for nothing is the last one."""
    batch: Batch = []
    while not batch or thread.waiting():
        message = await next_message(thread, reader, options, AFTER_ANSWER_S if ends_itself and reader.answered else None)
        if message is not None:
            if tap is not None:
                tap(message.method, message.params)
            batch += reader.feed(message)
        elif reader.answered:
            thread.stuck()
            reader.close()
        if reader.trespass:
            await thread.end(served=False)  # before anything is told of it: Codex is about to send the file
            raise ToolwireError("backend", "The model asked Codex to read a file of this machine, which Toolwire does not allow.")
        if reader.ended is not None:
            return [*batch, *reader.usage(), await ending(thread, reader, options)]
    return batch

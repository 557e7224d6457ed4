"""One turn on Codex.

Codex 0.133 and later gets the conversation as items, and knows the client's tools. Its calls can stay open
between two HTTP requests. An older version gets the conversation as text, and the gateway emulates the tools.
If the model of an older version calls a tool of Codex that reads files of this machine, the turn is stopped
before this tool answers.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from toolwire.backends.agents.history import demand
from toolwire.backends.base import Batch, frame_tap
from toolwire.backends.codex import items
from toolwire.backends.codex.home import CodexHome
from toolwire.backends.codex.options import CodexOptions, Features
from toolwire.backends.codex.reading import ThreadReader
from toolwire.backends.codex.thread import Thread
from toolwire.backends.codex.worker import RequestError
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Event, Failure, Finish
from toolwire.core.turn import Result, Turn

AFTER_ERROR_S = 1.0
AFTER_ANSWER_S = 2.0
"""How long Toolwire waits for Codex to report the end of a turn after the turn's error or answer.

Some versions of Codex do not always report it: 0.89 on a busy machine omits it in about 1 % of all turns.
"""
Json = dict[str, Any]


def thread_params(turn: Turn, options: CodexOptions, cwd: str, features: Features) -> Json:
    params: Json = {"baseInstructions": "", "approvalPolicy": "never", "sandbox": "read-only", "cwd": cwd}
    if options.model:
        params["model"] = options.model
    if features.ephemeral:
        params["ephemeral"] = True
    if turn.sampling.verbosity:
        params["config"] = {"model_verbosity": turn.sampling.verbosity}
    return params


def turn_params(turn: Turn, options: CodexOptions) -> Json:
    params = {
        "effort": turn.sampling.effort or options.effort,
        "summary": turn.sampling.summary,
        "outputSchema": items.output_schema(turn.output),
    }
    return {"input": [], **{key: value for key, value in params.items() if value not in (None, "")}}


class CodexRun:
    """A run on Codex that can wait for the client's tool results between two HTTP requests.

    Nothing is sent to Codex before the caller reads the first response (`segment`).
    """

    def __init__(
        self, turn: Turn, options: CodexOptions, home: CodexHome, open_thread: Callable[[], Awaitable[Thread]]
    ) -> None:
        self._turn, names = items.renamed(turn)
        self._options = options
        self._features = home.features
        self._cwd = str(home.cwd)
        self._open_thread = open_thread
        self._tools = self._turn.offered() if home.features.native_tools else ()
        tools = {tool.name: names.get(tool.name, tool.name) for tool in self._tools}
        self._reader = ThreadReader(tools, turn.parallel)
        self._thread: Thread | None = None
        self._over = False
        self._pending: tuple[str, ...] = ()
        self._tap = frame_tap()

    @property
    def pending(self) -> tuple[str, ...]:
        return self._pending

    async def segment(self) -> AsyncGenerator[Batch, None]:
        """Yields the events of one response, up to its calls or to the end of the turn."""
        if self._over or self._pending:
            raise ToolwireError("conflict", "The run is over, or its calls are not answered yet.")
        self._tap = frame_tap()
        end: Event | None = None
        try:
            thread = self._thread or await self._start()
            while end is None:
                batch = await self._read(thread)
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
        """Gives the waiting calls their results. Codex may ask for the results in any order."""
        answers = {call_id: items.answer_json(results.get(call_id)) for call_id in self._pending}
        self._pending = ()
        assert self._thread is not None
        self._reader.begin()
        for call_id, answer in answers.items():
            self._thread.answer(call_id, answer)

    async def cancel(self) -> None:
        self._pending = ()
        await self._close(served=True)

    async def _close(self, served: bool) -> None:
        self._over = True
        if self._thread is not None:
            await self._thread.end(served)

    # --- the start ---

    async def _start(self) -> Thread:
        """Starts the turn. If the process dies before a model gets the request, tries another process."""
        native = self._features.native_tools
        start = self._native() if native else self._text()
        begin = turn_params(self._turn, self._options)
        for last in (False, True):
            self._thread = thread = await self._open_thread()
            try:
                begin["input"] = await start(thread)
                break
            except ToolwireError:
                if last or thread.worker.alive:
                    raise
                await thread.end(served=False)
        await thread.begin(begin)
        if native:
            self._reader.turn_id = thread.turn_id
        return thread

    def _params(self) -> Json:
        params = thread_params(self._turn, self._options, self._cwd, self._features)
        return {**params, "experimentalRawEvents": True}

    def _native(self) -> Callable[[Thread], Awaitable[list[Json]]]:
        wanted = demand(self._turn.tool_choice) if self._tools else ""
        injected = items.history(self._turn, (items.output_words(self._turn.output), wanted))
        params = {**self._params(), "environments": []}
        if self._tools:
            params["dynamicTools"] = [items.tool_json(tool) for tool in self._tools]

        async def start(thread: Thread) -> list[Json]:
            await thread.start("thread/start", params)
            if injected:
                await thread.inject(injected)
            return []

        return start

    def _text(self) -> Callable[[Thread], Awaitable[list[Json]]]:
        system, history, input = items.split(self._turn)
        before = [entry for item in history for entry in items.item_json(item)]
        params = self._params()
        if system:
            params["developerInstructions"] = system

        async def start(thread: Thread) -> list[Json]:
            words: list[Json] = []
            if before:
                try:
                    resumed = {"threadId": str(uuid.uuid4()), "history": before, **params}
                    await thread.start("thread/resume", resumed)
                    return input
                except RequestError:  # this version does not accept a history
                    words = [{"type": "text", "text": items.as_text(history)}]
            await thread.start("thread/start", params)
            return [*words, *input]

        return start

    # --- messages from Codex ---

    async def _read(self, thread: Thread) -> Batch:
        """Returns the events that are available now. At the end of the response, adds its last event."""
        reader, features, options = self._reader, self._features, self._options
        batch: Batch = []
        while not batch or thread.inbox:
            settling = bool(reader.calls) and not features.response_mark
            answered = reader.answered and not features.follow_ups
            limit = AFTER_ANSWER_S if answered else options.timeout_s
            limit = options.settle_ms / 1000 if settling else limit
            try:
                message = await thread.receive(AFTER_ERROR_S if reader.failing else limit)
            except TimeoutError:
                if not reader.failing:
                    if settling:
                        return [*batch, *self._calls_end()]
                    if not answered:
                        problem = f"Codex was silent for {options.timeout_s:g} s."
                        raise ToolwireError("timeout", problem) from None
                    thread.stuck()
                reader.close()
            else:
                if self._tap is not None:
                    self._tap(message.method, bytes(message.params))
                batch += reader.feed(message)
            for call_id, words in reader.refused:
                thread.answer(call_id, items.refusal_json(words))
            reader.refused.clear()
            if reader.forbidden and not features.native_tools:
                problem = "The model asked Codex to read a file of this machine"
                raise ToolwireError("backend", f"{problem}, which Toolwire does not allow.")
            if reader.ended is not None:
                reader.calls.clear()
                thread.running = False
                end = reader.ended
                if isinstance(end, Failure):
                    end = await thread.worker.explained(end, options.provider)
                return [*batch, *reader.usage(), end]
            if reader.complete:
                reader.complete = False
                if reader.calls and features.response_mark:
                    return [*batch, *self._calls_end()]
        return batch

    def _calls_end(self) -> Batch:
        self._pending = tuple(self._reader.calls)
        return [*self._reader.usage(), Finish("tool_calls")]

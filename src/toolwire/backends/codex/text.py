"""A run on a Codex without tools of the client's own (before 0.133): text in, text out; the pipeline emulates the tools.

The system text goes into `developerInstructions` (the base instructions stay empty), the history into the thread as items, the last user message is
the turn's input. Where a version does not take a history, it is told in the input's text. A model that asks for a tool of Codex's own which reads
this machine's files is stopped before it gets an answer (law 9).

One turn in some hundred is never ended by 0.89 on a busy machine: its answer is there and counted, then the thread is silent for ever, though its
process serves others. Such a turn ends by our own clock.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from typing import Any

from toolwire.backends.base import Batch
from toolwire.backends.codex import items
from toolwire.backends.codex.dynamic import thread_params, turn_params
from toolwire.backends.codex.options import CodexOptions
from toolwire.backends.codex.reading import Reader
from toolwire.backends.codex.thread import AFTER_ANSWER_S, OpenThread, Thread, ending, next_message, opened
from toolwire.backends.codex.version import Features
from toolwire.backends.codex.worker import RequestError
from toolwire.errors import ToolwireError
from toolwire.events import Failure
from toolwire.trace import FrameTap, frame_tap
from toolwire.turn import ImagePart, Item, Message, TextPart, Turn

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
    reader = Reader()
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


async def _read(thread: Thread, reader: Reader, options: CodexOptions, tap: FrameTap | None, ends_itself: bool) -> Batch:
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

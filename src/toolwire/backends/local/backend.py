"""The embedded model as a backend: tools by `constrained` decoding, text as it is decoded.

One batch of events for all tokens that came while the loop was busy. Closing the iterator stops the decoding at the next token, or at the next batch
of the prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from toolwire.backends.base import Batch, frame_tap
from toolwire.backends.local.completions import FIELDS, LocalReader, grammar_of, render
from toolwire.backends.local.model import LocalModel, Stream, give_back, lacking, take
from toolwire.backends.local.options import SMALL, LocalOptions
from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.turn import Turn

_CAPABILITIES = Capabilities(
    strict=True,
    schema=True,
    prefill=True,
    constrain=frozenset({"text", "call"}),
    reasoning=True,
    fields=FIELDS,
)


class LocalBackend:
    """One model that runs in this process."""

    strategy: Strategy = "constrained"
    capabilities = _CAPABILITIES
    aliases: tuple[str, ...] = ()

    def __init__(self, id: str, options: LocalOptions | None = None) -> None:
        self.id = id
        self.options = options or LocalOptions()
        self._model: LocalModel | None = None

    def alias(self, name: str) -> str | None:
        return None

    async def prepare(self) -> None:
        pass

    async def ready(self) -> bool:
        """Whether llama.cpp and the file are there; nothing is loaded."""
        return lacking(self.options) is None

    async def close(self) -> None:
        model, self._model = self._model, None
        if model is not None:
            await give_back(model)

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        """Runs the turn; ends with exactly one `Finish` or `Failure`."""
        if self._model is None:
            self._model = take(self.options)
        model = self._model
        await model.load()
        stream, reader = Stream(asyncio.get_running_loop()), LocalReader(turn.api)
        job = model.submit(lambda: self._body(turn, model), stream)
        tap = frame_tap()
        try:
            while not reader.ended:
                chunks = await stream.get()
                if tap is not None:
                    for chunk in chunks:
                        tap("chunk", chunk if isinstance(chunk, bytes) else repr(chunk))
                batch = reader.read(chunks)
                if batch:
                    yield batch
        finally:
            stream.cancelled = True
            job.cancel()

    def _body(self, turn: Turn, model: LocalModel) -> bytes:
        """The request, with a grammar that is known to be read. In the thread that decodes."""
        limits, small = self.options.limits(model.size), model.size < SMALL
        grammar = grammar_of(turn, limits, small=small)
        refused = model.refused(grammar) if grammar else set()
        return render(
            turn, self.options, grammar_of(turn, limits, refused, small) if refused else grammar, small=small
        )

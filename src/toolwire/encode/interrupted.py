"""A stream that passes by, written elsewhere by the encoders of this package, and its end when whoever wrote it is gone.

Law 6 holds for the end too: what has passed is not contradicted. Of a Responses stream the open item closes as incomplete with the text that has
passed, the numbers go on, and `response.failed` lists every item; a chat stream ends in an error object. A stream that has had its end gets no second
one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from toolwire.encode.responses import SHAPES, Shape
from toolwire.encode.sse import encode, joined
from toolwire.errors import error_object, response_error
from toolwire.events import Failure
from toolwire.turn import Api

TERMINALS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_SHAPES = {(shape.item["type"], shape.part.part["type"] if shape.part is not None else ""): shape for shape in SHAPES.values()}
_PARTS = {f"{shape.part.events}.{verb}": verb for shape in SHAPES.values() if shape.part is not None for verb in ("added", "done")}
_TEXTS = {f"{shape.events}.done" for shape in SHAPES.values()}


class _Frame(msgspec.Struct):
    """What has to be known of an event; all else passes unseen."""

    type: str
    sequence_number: int
    output_index: int = 0
    delta: str = ""
    item: dict[str, Any] | None = None
    part: dict[str, Any] | None = None
    response: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Frame).decode


class Passing:
    """`feed` it whole blocks as they pass; `end` is what is still to be sent when no more will come."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._number = 0
        self._ended = False
        self._response: dict[str, Any] = {}
        self._output: list[dict[str, Any]] = []
        self._item: dict[str, Any] | None = None
        self._index = 0
        self._part: str | None = None
        """The type of the open item's part, once it is there."""
        self._closed: set[str] = set()
        """What of the open item is done: its text, its part."""
        self._pieces: list[str] = []

    def feed(self, block: bytes) -> None:
        if self._api == "chat":
            self._ended = self._ended or b"data: [DONE]" in block
            return
        for line in block.split(b"\n"):
            if line.startswith(b"data: "):
                try:
                    self._passed(_decode(line[len(b"data: ") :]))
                except msgspec.MsgspecError:
                    continue

    def _passed(self, frame: _Frame) -> None:
        self._number = frame.sequence_number + 1
        kind = frame.type
        if kind.endswith(".delta"):
            self._pieces.append(frame.delta)
        elif kind == "response.created":
            self._response = frame.response or {}
        elif kind == "response.output_item.added":
            self._item, self._index, self._part, self._closed, self._pieces = frame.item, frame.output_index, None, set(), []
        elif kind == "response.output_item.done":
            self._output.append(frame.item or {})
            self._item = None
        elif kind in _TEXTS:
            self._closed.add("text")
        elif _PARTS.get(kind) == "added":
            self._part = str((frame.part or {}).get("type"))
        elif _PARTS.get(kind) == "done":
            self._closed.add("part")
        elif kind in TERMINALS:
            self._ended = True

    # --- the end -------------------------------------------------------------------------------------------------------------------------------

    def end(self, failure: Failure) -> bytes:
        if self._ended:
            return b""
        self._ended = True
        if self._api == "chat":
            return b"data: " + encode(error_object(failure)) + b"\n\n"
        return b"".join(self._ending(failure))

    def _ending(self, failure: Failure) -> Iterator[bytes]:
        if self._number == 1:
            yield self._frame("response.in_progress", response=self._response)
        if self._item is not None:
            yield from self._closing(self._item)
        response = {**self._response, "status": "failed", "error": response_error(failure), "output": self._output}
        yield self._frame("response.failed", response=response)

    def _closing(self, item: dict[str, Any]) -> Iterator[bytes]:
        shape, text = self._shape(item), joined(self._pieces)
        where: dict[str, Any] = {"item_id": item.get("id"), "output_index": self._index}
        if shape.part is not None:
            where[shape.part.index] = 0
            if self._part is None:
                yield self._frame(f"{shape.part.events}.added", **where, part=shape.part.part)
        if "text" not in self._closed:
            name = {"name": item.get("name")} if shape.names_call else {}
            yield self._frame(f"{shape.events}.done", **where, **name, **{shape.text_field: text}, **(shape.also or {}))
        if shape.part is None:
            done = {**item, shape.text_field: text}
        else:
            part = {**shape.part.part, shape.part.field: text}
            done = {**item, shape.holder: [part]}
            if "part" not in self._closed:
                yield self._frame(f"{shape.part.events}.done", **where, part=part)
        done["status"] = "incomplete"
        yield self._frame("response.output_item.done", output_index=self._index, item=done)
        self._output.append(done)

    def _shape(self, item: dict[str, Any]) -> Shape:
        """By the item's part, or, where that has not passed yet, the one that the item was opened for."""
        kind = str(item.get("type"))
        opened = (shape for shape in SHAPES.values() if shape.item["type"] == kind and shape.item.keys() == shape.item.keys() & item.keys())
        return _SHAPES.get((kind, self._part or "")) or next(opened, SHAPES["text"])

    def _frame(self, event: str, **body: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return b"event: " + event.encode() + b"\ndata: " + encode({"type": event, "sequence_number": number, **body}) + b"\n\n"

"""Answers of servers that compress although they were asked not to (`Accept-Encoding: identity`).

`gzip` and `deflate` are decoded as they come, a bounded block at a time. An answer that grows more than `EXPANSION` times is
refused, and so is any other encoding.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from toolwire.backends.openai.carrier import Reply
from toolwire.backends.openai.faults import CutOff
from toolwire.errors import ToolwireError

BLOCK = 256 * 1024
"""The most bytes that one read returns."""
EXPANSION = 256
FREE = 1024 * 1024
"""Bytes that an answer may have in any case."""
GZIP, ZLIB, BARE = 31, 15, -15
ENCODINGS = ("gzip", "x-gzip", "deflate")


def decoded(reply: Reply) -> Reply:
    """The reply, decoded where it is compressed. Raises `ToolwireError` for an encoding that is not supported."""
    encoding = reply.headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return reply
    if encoding not in ENCODINGS:
        told = f"The upstream server's answer has the encoding {encoding[:40]!r}, which was not asked for and is not supported."
        raise ToolwireError("backend", told)
    return _Decoded(reply, deflate=encoding == "deflate")


class _Decoded:
    def __init__(self, reply: Reply, deflate: bool) -> None:
        self._reply = reply
        self.status = reply.status
        self.headers: Mapping[str, str] = reply.headers
        self._deflate = deflate
        self._stream: Any = None if deflate else zlib.decompressobj(GZIP)
        self._waiting = b""  # compressed bytes that were read and not decoded yet
        self._more = False  # the last block was full: the decoder may hold more
        self._read = self._made = 0
        self._ended = False

    def rest(self) -> bytes | None:
        return b"" if self._ended else None

    async def read(self) -> bytes:
        while not self._ended:
            if not self._more:
                block = await self._reply.read()
                self._read += len(block)
                self._waiting += block
                if not block:
                    self._ended = True
                    if self._read and (self._stream is None or not self._stream.eof):
                        raise CutOff
                    return b""
            if block := self._decode():
                return block
        return b""

    def release(self) -> None:
        self._reply.release()

    def _decode(self) -> bytes:
        data = self._waiting
        if self._stream is None:
            if len(data) < 2:
                return b""
            framed = data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0  # some servers leave the frame of `deflate` out
            self._stream = zlib.decompressobj(ZLIB if framed else BARE)
        elif self._stream.eof and not self._deflate:  # gzip allows several members, one after another
            self._stream = zlib.decompressobj(GZIP)
        try:
            block: bytes = self._stream.decompress(data, BLOCK)
        except zlib.error:
            raise ToolwireError("backend", "The upstream server's compressed answer is damaged.") from None
        self._waiting = self._stream.unused_data if self._stream.eof and not self._deflate else self._stream.unconsumed_tail
        self._more = bool(self._waiting) or len(block) == BLOCK
        self._made += len(block)
        if self._made > FREE + EXPANSION * self._read:
            raise ToolwireError("backend", f"The upstream server's compressed answer grows more than {EXPANSION} times.")
        return block

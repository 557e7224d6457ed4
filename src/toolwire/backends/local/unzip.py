"""Reads one member of a ZIP archive while the archive is still being downloaded.

`zipfile` needs the directory at the end of the archive, so the whole archive would have to be stored. This
reader goes through the archive from its beginning, and only the member has to be stored.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator

_FILE, _DESCRIPTOR = b"PK\x03\x04", b"PK\x07\x08"
_STORED, _DEFLATED = 0, 8
_ENCRYPTED, _SIZE_FOLLOWS = 1, 8
_PIECE = 1 << 20
"""The maximum number of bytes that are inflated at once."""
_IN_EXTRA = 0xFFFFFFFF


class DamagedArchive(Exception):
    """Raised if the data is not a ZIP archive, ends early, or does not contain the member."""


def member(blocks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yields the content of the member `name`, in pieces.

    Does not read the archive beyond the end of the member.
    """
    source = _Source(blocks)
    while (signature := source.take(4)) == _FILE:
        _, flags, method, _, _, _, size, _, name_size, extra_size = struct.unpack("<5H3I2H", source.take(26))
        found = source.take(name_size).decode("utf-8", "replace")
        source.take(extra_size)
        if flags & _ENCRYPTED:
            raise DamagedArchive("it is encrypted")
        if method == _DEFLATED:
            pieces = source.inflated()
        elif method == _STORED and not flags & _SIZE_FOLLOWS and size != _IN_EXTRA:
            pieces = source.counted(size)
        else:
            raise DamagedArchive(f"it is compressed in an unknown way ({method})")
        if found == name:
            yield from pieces
            return
        for _ in pieces:
            pass
        if flags & _SIZE_FOLLOWS:
            source.skip_descriptor()
    is_archive = signature == b"PK\x01\x02"
    raise DamagedArchive(f"it does not contain {name}" if is_archive else "it is not a ZIP archive")


class _Source:
    """The bytes of an archive, read from the front."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self._held = b""

    def _more(self) -> bytes:
        block = next(self._blocks, b"")
        if not block:
            raise DamagedArchive("it ends early")
        return block

    def take(self, size: int) -> bytes:
        while len(self._held) < size:
            self._held += self._more()
        taken, self._held = self._held[:size], self._held[size:]
        return taken

    def counted(self, size: int) -> Iterator[bytes]:
        while size:
            held = self._held or self._more()
            piece, self._held = held[:size], held[size:]
            size -= len(piece)
            yield piece

    def inflated(self) -> Iterator[bytes]:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        left = self._held
        try:
            while not inflate.eof:
                yield inflate.decompress(left or self._more(), _PIECE)
                left = inflate.unconsumed_tail
        except zlib.error:
            raise DamagedArchive("its compressed data is damaged") from None
        self._held = inflate.unused_data

    def skip_descriptor(self) -> None:
        """Skips the checksum and the sizes after a member.

        A size has 4 or 8 bytes. The archive does not say which.
        """
        if (first := self.take(4)) != _DESCRIPTOR:
            self._held = first + self._held
        short = self.take(14)  # the checksum, two sizes of 4 bytes, and what follows
        if short.endswith(b"PK"):
            self._held = short[12:] + self._held
        else:
            self.take(6)

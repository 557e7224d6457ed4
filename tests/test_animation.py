"""The animated picture of the documentation: a valid animated PNG that is small enough for a README."""

from __future__ import annotations

import importlib.util
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"


def loaded() -> Any:
    """docs/animation.py, which is not part of a package."""
    spec = importlib.util.spec_from_file_location("animation", DOCS / "animation.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)

    sys.modules["animation"] = module
    spec.loader.exec_module(module)
    return module


def chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    found, at = [], 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + content)
        found.append((kind, content))
        at += 12 + size
    return found


def decoded(data: bytes) -> list[tuple[bytes, int]]:
    """Every frame as a decoder shows it: its pixels, and its time in milliseconds."""
    parts = chunks(data)
    width, height = struct.unpack(">II", parts[0][1][:8])
    canvas, shown, place, numbers = bytearray(width * height), [], (0,) * 9, []
    for kind, content in parts:
        if kind == b"fcTL":
            place = struct.unpack(">IIIIIHHBB", content)
            numbers.append(place[0])
        if kind in (b"IDAT", b"fdAT"):
            if kind == b"fdAT":
                numbers.append(struct.unpack(">I", content[:4])[0])
            raw = zlib.decompress(content if kind == b"IDAT" else content[4:])
            _, wide, high, left, top, ms, *_ = place
            for row in range(high):
                start = (top + row) * width + left
                canvas[start : start + wide] = raw[row * (wide + 1) + 1 : (row + 1) * (wide + 1)]
            shown.append((bytes(canvas), ms))
    assert numbers == list(range(len(numbers))), "the sequence numbers have no gaps"
    assert struct.unpack(">II", dict(parts)[b"acTL"]) == (len(shown), 0)
    return shown


def test_every_frame_is_restored_from_what_changed() -> None:
    animation = loaded()
    pictures = [bytes(12), bytes(5) + b"\1\2" + bytes(5), bytes(5) + b"\1\2" + bytes(5), b"\3" * 12]
    frames = [animation.Frame(pixels, 4, 3, 100 * at) for at, pixels in enumerate(pictures, 1)]
    data = animation.animated(frames, [[0, 0, 0], [255, 255, 255], [1, 2, 3], [4, 5, 6]])
    assert decoded(data) == [(pixels, 100 * at) for at, pixels in enumerate(pictures, 1)]


def test_the_picture_of_an_approval_is_animated_and_small() -> None:
    data = (DOCS / "screenshots" / "approval.png").read_bytes()
    assert len(data) < 600_000
    shown = decoded(data)
    assert len(shown) == 5 and len({pixels for pixels, _ in shown}) == 5
    assert all(ms >= 1000 for _, ms in shown)

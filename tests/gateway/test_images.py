"""Images by URL: only from public addresses, identified by their bytes, limited in size."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from toolwire.core.errors import ToolwireError
from toolwire.core.turn import ImagePart, Message, Result, TextPart, Turn
from toolwire.gateway.images import ImageFetcher, ImageLimits, is_public, size_of


def png(width: int = 2, height: int = 3) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(b"".join(b"\x00" + b"\x00" * 3 * min(width, 4) for _ in range(min(height, 4))))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", rows)
        + chunk(b"IEND", b"")
    )


@pytest.fixture
async def site() -> AsyncIterator[str]:
    async def serve(request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name.isdigit():
            return web.Response(status=int(name), headers={"Location": "/ok"})
        if name.startswith("to-"):
            raise web.HTTPFound(
                {
                    "to-ok": "/ok",
                    "to-file": "file:///etc/passwd",
                    "to-inside": "http://10.0.0.1/x",
                    "to-self": "/to-self",
                }[name]
            )
        bodies = {"ok": png(), "bomb": png(100_000, 100_000), "html": b"<html>", "big": png() + b"\0" * 5000}
        return (
            web.Response(body=bodies[name], content_type="image/png")
            if name in bodies
            else web.Response(status=404)
        )

    app = web.Application()
    app.router.add_get("/{name}", serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize(
    "address",
    "127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 "
    "255.255.255.255 198.18.0.1 240.0.0.1 "
    "::1 :: fe80::1%eth0 fc00::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 2002:7f00:1:: ff02::1".split(),
)
def test_these_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111"])
def test_these_addresses_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost/x",
        "http://127.0.0.1:1/x",
        "http://[::1]/x",
        "http://2130706433/x",
        "http://0x7f.1/x",
        "http://127.1/x",
    ],
)
async def test_an_internal_host_is_refused_in_every_spelling(url: str) -> None:
    with pytest.raises(ToolwireError, match=r"not a public address|cannot be found"):
        await ImageFetcher().fetch(url)


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://1.1.1.1/x", "http://user:pw@1.1.1.1/x", "http:///x", "gopher://1.1.1.1"],
)
async def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ToolwireError, match="only plain http"):
        await ImageFetcher().fetch(url)


async def test_an_image_becomes_a_data_url(site: str) -> None:
    fetcher = ImageFetcher(allowed=lambda address: address == "127.0.0.1")
    assert (
        await fetcher.fetch(site + "/ok")
        == await fetcher.fetch(site + "/to-ok")
        == "data:image/png;base64," + base64.b64encode(png()).decode()
    )


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_every_kind_of_redirect_is_followed(site: str, status: int) -> None:
    fetcher = ImageFetcher(allowed=lambda address: address == "127.0.0.1")
    assert await fetcher.fetch(f"{site}/{status}") == await fetcher.fetch(site + "/ok")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("to-file", "only plain http"),
        ("to-inside", "not a public address"),
        ("to-self", "redirects too often"),
        ("bomb", "million pixels"),
        ("html", "not a PNG"),
        ("big", "larger than"),
        ("missing", "answered 404"),
    ],
)
async def test_an_unsuitable_image_is_refused_with_the_reason(site: str, name: str, why: str) -> None:
    fetcher = ImageFetcher(ImageLimits(bytes=2000), allowed=lambda address: address == "127.0.0.1")
    with pytest.raises(ToolwireError, match=why) as caught:
        await fetcher.fetch(f"{site}/{name}", "messages")
    assert caught.value.failure.param == "messages" and caught.value.failure.code == "invalid_image_url"


async def test_a_turn_gets_its_images_inline(site: str) -> None:
    fetcher = ImageFetcher(allowed=lambda address: address == "127.0.0.1")
    data = ImagePart("data:image/png;base64,AA")
    message: Any = Message("user", (TextPart("look"), ImagePart(site + "/ok", "low"), data))
    turn = Turn("chat", "m", (message, Result("c", (ImagePart(site + "/ok"),))))
    inline = await fetcher.inline(turn)
    first, second = inline.items
    assert isinstance(first, Message) and isinstance(second, Result)
    assert first.parts[0] == TextPart("look") and first.parts[2] == data
    assert (
        isinstance(first.parts[1], ImagePart)
        and (first.parts[1].url or "").startswith("data:image/png")
        and first.parts[1].detail == "low"
    )
    assert isinstance(second.parts[0], ImagePart) and (second.parts[0].url or "").startswith("data:")


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (png(7, 9), ("image/png", 7, 9)),
        (b"GIF89a" + struct.pack("<HH", 4, 5) + b"\0" * 10, ("image/gif", 4, 5)),
        (
            b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08\x00\x09\x00\x07" + b"\0" * 10,
            ("image/jpeg", 7, 9),
        ),
        (b"RIFF\0\0\0\0WEBPVP8X" + b"\0" * 8 + b"\x06\0\0\x08\0\0" + b"\0", ("image/webp", 7, 9)),
        (b"not an image", None),
        (b"", None),
        (b"\xff\xd8", None),
    ],
)
def test_sizes_are_read_from_headers(data: bytes, size: tuple[str, int, int] | None) -> None:
    assert size_of(data) == size

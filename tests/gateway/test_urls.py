"""URLs in content parts: only data: URLs and plain http(s) URLs with a public host pass."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.core.capabilities import Capabilities
from toolwire.core.errors import ToolwireError, status_of
from toolwire.core.turn import Message, OtherPart, Turn
from toolwire.gateway.images import LOOKED_AT, checked, problem, urls_in
from toolwire.gateway.pipeline import Caller, Gateway
from toolwire.settings.types import Settings
from toolwire.testing import ScriptedBackend, ScriptedOptions

INSIDE = "169.254.169.254"
REFUSED = [
    "http://127.0.0.1/x.png",
    f" http://{INSIDE}/x",
    f"\nhttp://{INSIDE}/x",
    f"\x00http://{INSIDE}/x",
    f"\x1f \t http://{INSIDE}/x",
    f"\u00a0http://{INSIDE}/x",
    f"http://{INSIDE}/x ",
    f"ht\ntp://{INSIDE}/x",
    "http://169.254.\t169.254/x",
    f"http:\r//{INSIDE}/x",
    "https://example.com/a\r\nHost: inside",
    "file:///etc/passwd",
    "file:/etc/passwd",
    "FILE:///etc/passwd",
    "\tfile:///etc/passwd",
    f"//{INSIDE}/x",
    "//example.com/x",
    f"\\\\{INSIDE}\\x",
    f"/\\{INSIDE}/x",
    f"http:/{INSIDE}/x",
    f"http:{INSIDE}/x",
    f"http:///{INSIDE}/x",
    f"http:////{INSIDE}/x",
    f"http:\\\\{INSIDE}\\x",
    f"http:/\\{INSIDE}/x",
    f"hTTp://{INSIDE}/x",
    f"HTTPS://{INSIDE}./x",
    f"http://example.com@{INSIDE}/x",
    f"http://user:pass@{INSIDE}/x",
    "http://user:pass@example.com/x",
    f"http://example.com\\@{INSIDE}/x",
    f"http://{INSIDE}\\@example.com/x",
    f"http://example.com:80@{INSIDE}/x",
    "http://[::1]/x",
    "http://[::ffff:169.254.169.254]/x",
    "http://[::ffff:a9fe:a9fe]/x",
    "http://[64:ff9b::a9fe:a9fe]/x",
    "http://[2002:a9fe:a9fe::]/x",
    "http://[fe80::1%25eth0]/x",
    "http://[fe80::1%eth0]/x",
    "http://[::]/x",
    "http://[1.1.1.1]/x",
    "http://2852039166/x",
    "http://0xa9fea9fe/x",
    "http://0xa9.0xfe.0xa9.0xfe/x",
    "http://0251.0376.0251.0376/x",
    "http://0127.0.0.1/x",
    "http://0169.0254.0169.0254/x",
    "http://169.16689662/x",
    "http://169.254.43518/x",
    "http://127.1/x",
    "http://0/x",
    "http://0x/x",
    "http://1.1.1.1.1/x",
    "http://256.256.256.256/x",
    f"http://{INSIDE}.:80/x",
    "http://%31%36%39.254.169.254/x",
    "http://169%2e254%2e169%2e254/x",
    "http://localhost%00.example.com/x",
    "http://１６９.254.169.254/x",
    "http://①⑥⑨.254.169.254/x",
    "http://169。254。169。254/x",
    "http://169．254｡169.254/x",
    "http://loc\u00adalhost/x",
    "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/x",
    "http://localhost/x",
    "http://LOCALHOST:8080/x",
    "http://a.localhost./x",
    "http://redis/x",
    "http://printer.local/x",
    "http://metadata.google.internal/x",
    "http://example.com:99999/x",
    "http://example.com:65536/x",
    "http://example.com:8 0/x",
    "http://exa mple.com/x",
    "http://example..com/x",
    "http:///x",
    "http://",
    "http:",
    "https://?x",
    "gopher://1.1.1.1/x",
    "ftp://1.1.1.1/x",
    "ws://example.com/x",
    "jar:http://example.com!/x",
    "view-source:http://127.0.0.1/x",
    "blob:http://127.0.0.1/x",
    "javascript:alert(1)",
    "/etc/passwd",
    "passwd",
    "http://" + "a." * 5000 + f"@{INSIDE}/",
    " " * 20_000 + f"http://{INSIDE}/",
    "h" + "\n" * 20_000 + f"ttp://{INSIDE}/",
]
ALLOWED = [
    "https://example.com/a.png",
    "HTTPS://Example.COM/a.png",
    "http://example.com",
    "https://example.com.:443/a?b=c#d",
    "https://example.com:65535/a",
    "https://example.com?x=http://127.0.0.1/",
    "https://example.com/a b\\c@d",
    "https://93.184.216.34/a.pdf",
    "https://[2606:4700:4700::1111]:8443/a",
    "https://münchen.de/a.png",
    "https://xn--mnchen-3ya.de/a.png",
    "https://my_bucket.s3.amazonaws.com/a?X-Amz-Signature=" + "f" * 2000,
    "https://3com.com/a",
    "data:image/png;base64,AAAA",
    "DATA:image/png;base64,AAAA",
    "data:application/pdf;base64," + "A" * 100_000,
]


@pytest.mark.parametrize("url", REFUSED, ids=lambda url: ascii(url)[:60])
def test_any_url_that_is_not_plain_and_public_is_refused(url: str) -> None:
    assert problem(url)


@pytest.mark.parametrize("url", ALLOWED, ids=lambda url: ascii(url)[:60])
def test_plain_public_urls_and_data_are_passed_on(url: str) -> None:
    assert not problem(url)


def carrying(url: str) -> Iterator[dict[str, Any]]:
    """Yields content parts in which a URL can reach an upstream."""
    yield {"type": "video_url", "video_url": {"url": url}}
    yield {"type": "video_url", "video_url": url}
    yield {"type": "audio_url", "audio_url": {"url": url}}
    yield {"type": "file", "file": {"file_url": url}}
    yield (
        {"type": "file", "file": {"file_data": url}}
        if "://" in url
        else {"type": "file", "file": {"fileUrl": url}}
    )
    yield {"type": "input_file", "file_url": url}
    yield {"type": "video_url", "video_url": {"list": [{"url": "https://example.com/"}, {"url": url}]}}
    yield {"type": "video", "video_urls": ["https://example.com/", url]}
    yield {"type": "document", "source": {"type": "url", "url": url}}
    yield {"type": "unheard_of", "a": [{"b": [[{"imageUri": url}]]}]}
    yield {"type": "unheard_of", "image": {"HREF": url}}


@pytest.mark.parametrize("url", REFUSED, ids=lambda url: ascii(url)[:60])
def test_a_part_is_refused_wherever_it_contains_the_url(url: str) -> None:
    for part in carrying(url):
        with pytest.raises(ToolwireError, match=r"cannot be passed on|not a public address"):
            checked(Turn("chat", "m", (Message("user", (OtherPart(part["type"], part),)),)))


@pytest.mark.parametrize(
    "value",
    [url for url in REFUSED if "//" in url[:40] or "\\\\" in url[:9]],
    ids=lambda url: ascii(url)[:60],
)
def test_a_value_that_looks_like_a_url_is_checked_under_any_member_name(value: str) -> None:
    for part in ({"type": "file", "file": {"file_data": value}}, {"type": "x", "anything": [value]}):
        assert any(map(problem, urls_in(part))), part


@pytest.mark.parametrize(
    "part",
    [
        {
            "type": "input_audio",
            "input_audio": {"data": base64.b64encode(b"\xff\xfb\x90" * 999).decode(), "format": "mp3"},
        },
        {"type": "input_audio", "input_audio": {"data": "//uQ" * 3000, "format": "mp3"}},
        {
            "type": "file",
            "file": {
                "file_data": base64.b64encode(bytes(range(256))).decode(),
                "filename": "http://127.0.0.1/a.pdf",
            },
        },
        {
            "type": "file",
            "file": {"file_data": "data:application/pdf;base64,AA==", "filename": "C:\\notes.pdf"},
        },
        {"type": "file", "file": {"file_id": "file-abc"}},
        {"type": "note", "text": "http://localhost:3000 does not answer", "title": "//todo"},
        {
            "type": "note",
            "remark": "todo: look at http://localhost:3000",
            "ratio": "16:9",
            "at": "12:30",
            "count": 3,
            "none": None,
        },
        {"type": "note", "remark": " " * (LOOKED_AT - 64) + "x" * 100},
        {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4", "detail": "low"}},
        {"type": "input_file", "file_url": ""},
    ],
    ids=lambda part: json.dumps(part)[:60],
)
def test_parts_without_such_a_url_are_passed_on(part: dict[str, Any]) -> None:
    turn = Turn("chat", "m", (Message("user", (OtherPart(part["type"], part),)),))
    assert checked(turn) is turn


@given(
    st.lists(
        st.sampled_from(["\t", "\n", "\r", " ", "\x00", "\\", "/", "@", "%", "x", ".", ":"]), max_size=3
    ),
    st.integers(0, 30),
    st.sampled_from(
        [
            f"http://{INSIDE}/x",
            "http://localhost/x",
            "file:///etc/passwd",
            "http://[::1]/x",
            "http://10.0.0.1:80/x",
        ]
    ),
)
def test_no_inserted_character_lets_an_internal_host_pass(put: list[str], at: int, url: str) -> None:
    """An independent parser finds no internal host in any URL that passes."""
    from yarl import URL

    changed = url[:at] + "".join(put) + url[at:]
    if not problem(changed):
        host = URL(changed).host or ""
        assert (host and INSIDE not in host.split("/")[0].strip(".")) or host not in (
            INSIDE,
            "localhost",
            "::1",
            "10.0.0.1",
        )
        assert host.rstrip(".") not in (INSIDE, "localhost", "::1", "10.0.0.1")


def test_large_values_are_checked_quickly() -> None:
    part = {
        "type": "x",
        "data": "A" * 20_000_000,
        "more": "\n" * 20_000_000,
        "url": "data:image/png;base64," + "A" * 20_000_000,
    }
    began = time.process_time()
    list(map(problem, urls_in(part)))
    assert time.process_time() - began < 0.5


# --- through the gateway ---


def requests(url: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    for part in ({"type": "image_url", "image_url": {"url": url}}, *carrying(url)):
        yield (
            "chat",
            {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, part]}]},
        )
    for part in ({"type": "input_image", "image_url": url}, *carrying(url)):
        yield (
            "responses",
            {
                "model": "m",
                "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}, part]}],
            },
        )


@pytest.mark.parametrize("takes_urls", [True, False])
@pytest.mark.parametrize(
    "url", [url for url in REFUSED if len(url) < 60][::4], ids=lambda url: ascii(url)[:60]
)
async def test_a_refused_url_is_a_400_on_both_apis_and_never_reaches_the_backend(
    url: str, takes_urls: bool
) -> None:
    class Backend(ScriptedBackend):
        capabilities = Capabilities(images=True, image_urls=takes_urls)

    backend = Backend("m", ScriptedOptions(script="say fine"))
    gateway = Gateway(Settings(), backends={"m": backend})
    for api, body in requests(url):
        with pytest.raises(ToolwireError) as caught:
            await gateway.respond(api, json.dumps(body).encode(), Caller())
        assert status_of(caught.value.failure) == 400, (body, caught.value.failure)
    await gateway.close()

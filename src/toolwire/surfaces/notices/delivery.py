"""Sends one message of a notice, once. The receiver of the message is not trusted.

Redirects are not followed. The receiver must answer within `SEND_S` seconds, and at most `MOST_READ` bytes of
its answer are read. An error message contains the receiver's host name, but no full address and no secret.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from toolwire.core.display import one_line
from toolwire.settings.types import NoticeSettings
from toolwire.surfaces.notices.messages import Message

SEND_S = 10.0
MOST_READ = 4096
MOST_RETRY_AFTER_S = 300.0
_BUSY = (408, 425, 429)
"""The HTTP statuses below 500 after which the message is sent again."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of sending a message. `problem`: why the receiver did not accept it; "" if it did.

    `again`: whether to send the message again, after `retry_after_s` seconds or more. `status`: the HTTP
    status; 0 if there was no answer.
    """

    problem: str = ""
    again: bool = False
    retry_after_s: float = 0.0
    status: int = 0
    took_s: float = 0.0


def client(send_s: float = SEND_S) -> aiohttp.ClientSession:
    """Returns a new HTTP client for sending notices."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=send_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


def _proxy(url: str) -> str | None:
    """Returns the proxy in the environment for this address; None if there is none.

    aiohttp's `trust_env` would also send the passwords in `~/.netrc` to the receiver.
    """
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


async def deliver(session: aiohttp.ClientSession, notice: NoticeSettings, message: Message) -> Delivery:
    """Sends the message. Errors of the receiver or of the network are in the result, never raised."""
    began = time.perf_counter()
    host = one_line(urlsplit(message.url).hostname or "", 80)
    try:
        async with session.post(
            message.url,
            data=message.body,
            headers=message.headers,
            allow_redirects=False,
            proxy=_proxy(message.url),
        ) as response:
            took_s = time.perf_counter() - began
            if 200 <= response.status < 300:
                return Delivery(status=response.status, took_s=took_s)
            problem = _refusal(notice, response.status, await _said(response))
            again = response.status in _BUSY or response.status >= 500
            wait_s = _retry_after(response.headers.get("retry-after", ""))
            return Delivery(f"{host} {problem}", again, wait_s, response.status, took_s)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        return Delivery(f"{host} {_failure(error, session.timeout.total)}", again=True)


async def _said(response: aiohttp.ClientResponse) -> str:
    """Returns the value of `error` in an answer in JSON, as ntfy sends it; "" if there is none."""
    try:
        found = json.loads(await response.content.read(MOST_READ))
        said = found.get("error") if isinstance(found, dict) else None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError):
        return ""
    return f": {one_line(said, 200)}" if isinstance(said, str) else ""


def _refusal(notice: NoticeSettings, status: int, said: str) -> str:
    if status in (401, 403):
        what = "the token or the topic" if notice.kind == "ntfy" else "the message"
        return f"refused {what} (status {status}{said})"
    if 300 <= status < 400:
        return f"answered with a redirect (status {status}), which is not followed; correct url"
    return f"did not accept the message (status {status}{said})"


def _failure(error: Exception, send_s: float | None) -> str:
    kinds: tuple[tuple[Any, str], ...] = (
        (TimeoutError, f"did not answer within {send_s:g} s"),
        (aiohttp.ClientConnectorDNSError, "is not a host name that can be resolved"),
        (aiohttp.ClientConnectorCertificateError, "has a TLS certificate that is not valid"),
        (aiohttp.ClientSSLError, "cannot be reached with TLS"),
        (aiohttp.ClientConnectorError, "cannot be reached"),
        (aiohttp.ServerDisconnectedError, "closed the connection without an answer"),
    )
    return next((text for kind, text in kinds if isinstance(error, kind)), "did not answer with HTTP")


def _retry_after(header: str) -> float:
    """Returns the seconds that the receiver asks to wait; 0 if it does not say."""
    try:
        seconds = float(header)
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), MOST_RETRY_AFTER_S) if math.isfinite(seconds) else 0.0


async def can_read(session: aiohttp.ClientSession, notice: NoticeSettings) -> bool | None:
    """Whether Toolwire's own token can read the topic of an ntfy notice; None if that is unknown.

    If the token can read the topic, a program that finds the token can read the links in the messages.
    """
    headers = {"Authorization": f"Bearer {notice.token}"} if notice.token else {}
    url = f"{notice.url}/{notice.topic}/auth"
    try:
        given: dict[str, Any] = {"headers": headers, "allow_redirects": False, "proxy": _proxy(url)}
        async with session.get(url, **given) as response:
            return {200: True, 401: False, 403: False}.get(response.status)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None

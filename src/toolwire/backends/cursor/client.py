"""The bridge's services over loopback HTTP. `ConnectError`: the bridge said no. `Unreachable`: it said nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import aiohttp

from toolwire.backends.cursor.connect import HEADERS, STREAM, UNARY, ConnectError, Envelopes, Malformed, envelope, error_of, parse
from toolwire.errors import ToolwireError

PROTOCOL = "sdk.v1"
CONTROL, CURSOR, AGENT = (f"{PROTOCOL}.{name}" for name in ("SdkBridgeControlService", "SdkCursorService", "SdkAgentService"))
CHUNK = 64 * 1024


class Unreachable(ToolwireError):
    """The bridge is not there, or broke off."""


class Client:
    def __init__(self, url: str, token: str, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        headers = {**HEADERS, "Authorization": f"Bearer {token}"}
        self._session = aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0), trust_env=False)

    async def close(self) -> None:
        await self._session.close()

    async def unary(self, method: str, message: Mapping[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """`method` is SERVICE/METHOD."""
        seconds = timeout_s or self._timeout_s
        name = method.rpartition("/")[2]
        try:
            async with self._session.post(
                f"{self._url}/{method}",
                data=json.dumps(message).encode(),
                headers={"Content-Type": UNARY},
                timeout=aiohttp.ClientTimeout(total=seconds),
            ) as response:
                body = await response.read()
                if response.status != 200:
                    raise _refused(name, response.status, body)
                return parse(body)
        except TimeoutError:
            raise Unreachable("timeout", f"Cursor's bridge did not answer {name} within {seconds:g} s.") from None
        except aiohttp.ClientError as error:
            raise Unreachable("backend_unavailable", f"Cursor's bridge does not answer {name}: {_words(error)}") from error
        except Malformed as error:
            raise ToolwireError("backend", f"Cursor's bridge answered {name} with {error}.") from error

    async def stream(self, method: str, message: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The messages as they come; an empty one is a sign of life. A stream that breaks off raises `Unreachable`. Closing it hangs up."""
        name = method.rpartition("/")[2]
        envelopes = Envelopes()
        try:
            async with self._session.post(
                f"{self._url}/{method}",
                data=envelope(message),
                headers={"Content-Type": STREAM},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s),
            ) as response:
                if response.status != 200:
                    raise _refused(name, response.status, await response.read())
                async for data in response.content.iter_any():
                    for one in envelopes.feed(data):
                        yield one
                    if envelopes.ended:
                        return
        except (aiohttp.ClientError, asyncio.IncompleteReadError) as error:
            raise Unreachable("backend_cut", f"Cursor's bridge broke off: {_words(error)}") from error
        except Malformed as error:
            raise ToolwireError("backend", f"Cursor's bridge streamed {error}.") from error
        raise Unreachable("backend_cut", "Cursor's bridge broke off.")


def _refused(name: str, status: int, body: bytes) -> Exception:
    try:
        error = parse(body)
    except Malformed:
        error = {}
    if "code" in error or "error" in error:
        return error_of(error, status)
    if status == 401:
        return ConnectError("unauthenticated", "", status=status)
    return ToolwireError("backend", f"Cursor's bridge answered {name} with HTTP {status}.")


def _words(error: BaseException) -> str:
    """aiohttp's messages hold the address at most; it is on this machine."""
    return str(error) or type(error).__name__

"""The gateway's models as the loop talks to them: in this process, by the same path that every client takes."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from toolwire.encode.sse import SseReader
from toolwire.errors import ToolwireError
from toolwire.gateway.pipeline import Caller, Gateway
from toolwire.tools.loop import ModelFailed


class GatewayModel:
    """`caller` is who the turns belong to."""

    def __init__(self, gateway: Gateway, caller: Caller | None = None) -> None:
        self._gateway = gateway
        self._caller = caller or Caller()

    async def stream(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        try:
            answer = await self._gateway.respond("chat", json.dumps(body).encode("utf-8", "replace"), self._caller)
        except ToolwireError as error:
            raise ModelFailed(error.failure.message) from error
        assert answer.stream is not None
        reader, failed = SseReader(), ""
        async with aclosing(answer.stream) as blocks:  # type: ignore[type-var]
            async for block in blocks:  # to its very end: who leaves a stream before has cancelled it
                for event in reader.feed(block):
                    data = event if isinstance(event, bytes) else event.data
                    if data == b"[DONE]" or failed:
                        continue
                    chunk: dict[str, Any] = json.loads(data)
                    if "error" in chunk:
                        failed = str((chunk["error"] or {}).get("message") or "the model failed")
                    else:
                        yield chunk
        if failed:
            raise ModelFailed(failed)

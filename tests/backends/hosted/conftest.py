"""The provider library, or a line that says it is missing, and backends over the fake providers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from typing import Any

import pytest

from doubles import anthropic, google
from toolwire.backends.hosted import HostedBackend, HostedOptions

SERVERS: dict[str, Any] = {"anthropic": anthropic.FakeAnthropic, "google": google.FakeGoogle}
MODELS = {"anthropic": "claude-haiku-4-5", "google": "gemini-2.5-flash"}


@pytest.fixture(autouse=True)
def library() -> None:
    lacking = [name for name in ("pydantic_ai", "anthropic", "google.genai") if not _there(name)]
    if lacking:
        line = f"the extra [hosted] is not installed: {', '.join(lacking)} missing"
        pytest.skip(line)


def _there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


Serving = Callable[..., AbstractAsyncContextManager[tuple[HostedBackend, Any]]]


@asynccontextmanager
async def _serving(
    provider: str, *answers: Any, model: str = "", key: str = "", models: Any = None, **options: Any
) -> AsyncIterator[Any]:
    async with SERVERS[provider](*answers, models=models) as server:
        table = {
            "model": f"{provider}:{model or MODELS[provider]}",
            "base_url": server.base_url,
            "api_key": key or server.key,
            **options,
        }
        backend = HostedBackend("m", HostedOptions(**table))
        try:
            yield backend, server
        finally:
            await backend.close()


@pytest.fixture
def serving() -> Serving:
    """`async with serving("anthropic", answer, …, model=…, **options) as (backend, server)`."""
    return _serving

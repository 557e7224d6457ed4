"""The small real model, loaded once per process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from toolwire.backends.local import LocalBackend, LocalOptions
from toolwire.backends.local.pull import default_path, importable, pull
from toolwire.core.errors import ToolwireError
from toolwire.settings.extras import add_extra


def _missing(reason: str) -> None:
    pytest.skip(reason)


@pytest.fixture(scope="session")
def gguf() -> Path:
    """The file of the small model: TOOLWIRE_TEST_GGUF, or the one pulled earlier, or pulled now."""
    if not importable():
        _missing(f"llama.cpp is missing: {add_extra('local')}")
    named = os.environ.get("TOOLWIRE_TEST_GGUF", "")
    for file in (Path(named), default_path()):
        if file.is_file():
            return file
    try:
        return pull()
    except ToolwireError as error:
        _missing(str(error))
        raise


@pytest.fixture(scope="session")
def options(gguf: Path) -> LocalOptions:
    return LocalOptions(gguf=str(gguf), context=2048)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def keeper(options: LocalOptions) -> AsyncIterator[None]:
    """Keeps the model loaded between tests."""
    from toolwire.backends.local.model import give_back, take

    model = take(options)
    yield
    await give_back(model)


@pytest.fixture
async def local(options: LocalOptions, keeper: None) -> AsyncIterator[LocalBackend]:
    backend = LocalBackend("m", options)
    yield backend
    await backend.close()

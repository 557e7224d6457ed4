"""The judges, for every test that has an answer to judge."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolwire.testing.judges import Judge, OpenApiJudge

OPENAPI = Path(__file__).resolve().parents[3] / "shared" / "data" / "openai-openapi.json"


@pytest.fixture(scope="session")
def judge() -> Judge:
    """All judges: `.stream(raw, api, …)`, `.body(body, api, …)` and `.error(status, body)` assert that nothing is wrong."""
    if not OPENAPI.exists() and os.environ.get("CI") == "true":
        pytest.fail(f"OpenAI's OpenAPI file is missing: {OPENAPI}")
    return Judge(OPENAPI if OPENAPI.exists() else None)


@pytest.fixture(scope="session")
def openapi_judge(judge: Judge) -> OpenApiJudge:
    if judge.openapi is None:
        pytest.skip(f"OpenAI's OpenAPI file is missing: {OPENAPI}")
    return judge.openapi

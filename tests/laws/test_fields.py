"""Law 10: no field is ignored in silence.

Every field of both APIs is honoured, or the report names it. The report also names fields that OpenAI does
not have, if their names are safe in a header.
"""

from __future__ import annotations

from typing import Any

import pytest

from doubles.sdk_requests import BODIES, body_schemas
from toolwire.wire.fields import FIELDS

VALUES: dict[str, Any] = {
    "temperature": 1,
    "top_p": 1,
    "max_tokens": 5,
    "max_completion_tokens": 5,
    "max_output_tokens": 50,
    "stop": "x",
    "seed": 1,
    "presence_penalty": 1,
    "frequency_penalty": 1,
    "logit_bias": {"5": 1},
    "logprobs": True,
    "top_logprobs": 2,
    "reasoning_effort": "low",
    "reasoning": {"effort": "low"},
    "verbosity": "low",
    "user": "me",
    "safety_identifier": "me",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "service_tier": "auto",
    "truncation": "auto",
    "include": ["reasoning.encrypted_content"],
    "max_tool_calls": 3,
    "modalities": ["text"],
    "audio": {"voice": "alloy", "format": "wav"},
    "prediction": {"type": "content", "content": "x"},
    "web_search_options": {},
}


@pytest.mark.parametrize("field", sorted(VALUES))
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_field_that_the_backend_lacks_is_in_the_report(table: Any, api: Any, field: str) -> None:
    table.play("say x")
    request = (
        {"messages": [{"role": "user", "content": "?"}]} if api == "chat" else {"input": "?", "store": False}
    )
    if field == "top_logprobs" and api == "chat":
        request = {**request, "logprobs": True}  # `top_logprobs` alone is refused
    answer = await table.answer(api, {**request, field: VALUES[field]})
    report = dict(answer.headers)[b"x-toolwire-report"].decode()
    honoured = field in table.backend.capabilities.fields
    assert (f"{field}=ignored" in report) != honoured


async def test_unsafe_names_of_unknown_fields_are_not_repeated(table: Any) -> None:
    answer = await table.play("say x").answer(
        "chat", {"messages": [{"role": "user", "content": "?"}], "x\r\nevil: 1": 1}
    )
    assert dict(answer.headers)[b"x-toolwire-report"] == b"unknown_fields=ignored"


async def test_only_the_holder_and_its_member_may_be_separated_by_a_dot_in_the_report(table: Any) -> None:
    asked = {"input": "?", "store": False, "text": {"tone": "warm", "tone.voice": "warm"}}
    answer = await table.play("say x").answer("responses", asked)
    report = dict(answer.headers)[b"x-toolwire-report"]
    assert b"text.tone=ignored" in report and b"unknown_fields=ignored" in report and b"voice" not in report


@pytest.mark.parametrize("path", BODIES)
def test_every_field_of_the_official_sdks_requests_is_known(path: str) -> None:
    bodies, _ = body_schemas()
    assert len(bodies[path]["properties"]) > 30
    assert bodies[path]["properties"].keys() - FIELDS.keys() == set()

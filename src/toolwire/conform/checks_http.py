"""The checks beside the APIs: models, CORS, keys."""

from __future__ import annotations

from toolwire.conform import judging as say
from toolwire.conform import keeping
from toolwire.conform.checks_shared import SCHEMAS, Check

HTTP = [
    Check(
        "http.models.list",
        "GET /models lists at least one model with id, object, created and owned_by",
        f"{SCHEMAS}ListModelsResponse; Obsidian Copilot verifies a provider by this list",
        "the client shows no model and takes the endpoint for broken",
        ("http.models",),
        keeping.lists_models,
    ),
    Check(
        "http.models.one",
        "GET /models/ID returns that model",
        f"OpenAPI /models/{{model}}; {SCHEMAS}Model",
        "clients that look a model up before they use it stop",
        ("http.model",),
        keeping.returns_model,
        "optional",
    ),
    Check(
        "http.models.unknown",
        "GET /models/ID of an unknown model is HTTP 404 with OpenAI's error object",
        f"OpenAPI /models/{{model}}; {SCHEMAS}Error",
        "the client cannot tell a wrong name from a broken server",
        ("http.no-model",),
        say.refused(404),
        "optional",
    ),
    Check(
        "http.cors.preflight",
        "a preflight from app://obsidian.md is answered 2xx without a key, allowing the origin and every "
        "header that is asked for",
        "Fetch standard; logancyang/obsidian-copilot#2810, logancyang/obsidian-copilot#2877; "
        "bramses/chatgpt-md#176",
        "no page and no Obsidian plugin reaches the endpoint",
        ("http.preflight",),
        keeping.preflight_allows,
        "optional",
    ),
    Check(
        "http.cors.answers",
        "an answer allows the origin that asked",
        "Fetch standard",
        "the page cannot read the answer",
        ("http.from-page",),
        say.each(keeping.origin_allowed),
        "optional",
    ),
    Check(
        "http.cors.errors",
        "an error allows the origin that asked",
        "Fetch standard",
        "the page shows a network failure instead of the error",
        ("http.error-to-page",),
        say.each(keeping.origin_allowed),
        "optional",
    ),
    Check(
        "http.errors.no-key",
        "where a key is needed, a request without one is HTTP 401 or 403 with OpenAI's error object",
        f"{SCHEMAS}Error; Obsidian Copilot reads 401 and 403 as a wrong key",
        "the client cannot say that the key is wrong",
        ("http.without-key",),
        say.needs_key,
    ),
]

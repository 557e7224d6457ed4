"""The checks of HTTP in general: models, CORS and keys."""

from __future__ import annotations

from toolwire.conform import judging as say
from toolwire.conform import keeping
from toolwire.conform.checks_shared import SCHEMAS, Check

HTTP = [
    Check(
        "http.models.list",
        "GET /models lists at least one model with id, object, created and owned_by",
        f"{SCHEMAS}ListModelsResponse; Obsidian Copilot verifies a provider by this list",
        "the client shows no models and reports that the endpoint is broken",
        ("http.models",),
        keeping.lists_models,
    ),
    Check(
        "http.models.one",
        "GET /models/ID returns the model with this id",
        f"OpenAPI /models/{{model}}; {SCHEMAS}Model",
        "clients that look up a model before they use it stop working",
        ("http.model",),
        keeping.returns_model,
        "optional",
    ),
    Check(
        "http.models.unknown",
        "GET /models/ID of an unknown model returns HTTP 404 with OpenAI's error object",
        f"OpenAPI /models/{{model}}; {SCHEMAS}Error",
        "the client cannot distinguish a wrong name from a broken server",
        ("http.no-model",),
        say.refused(404),
        "optional",
    ),
    Check(
        "http.cors.preflight",
        "a preflight from app://obsidian.md returns 2xx without a key, and allows the origin and "
        "every requested header",
        "Fetch standard; logancyang/obsidian-copilot#2810, logancyang/obsidian-copilot#2877; "
        "bramses/chatgpt-md#176",
        "no web page and no Obsidian plugin can use the endpoint",
        ("http.preflight",),
        keeping.preflight_allows,
        "optional",
    ),
    Check(
        "http.cors.answers",
        "the CORS headers of an answer allow the origin of the request",
        "Fetch standard",
        "a web page cannot read the answer",
        ("http.from-page",),
        say.each(keeping.origin_allowed),
        "optional",
    ),
    Check(
        "http.cors.errors",
        "the CORS headers of an error allow the origin of the request",
        "Fetch standard",
        "a web page shows a network failure instead of the error",
        ("http.error-to-page",),
        say.each(keeping.origin_allowed),
        "optional",
    ),
    Check(
        "http.errors.no-key",
        "if a key is required, a request without one returns HTTP 401 or 403 with OpenAI's error object",
        f"{SCHEMAS}Error; Obsidian Copilot reads 401 and 403 as a wrong key",
        "the client cannot report to its user that the key is wrong",
        ("http.without-key",),
        say.needs_key,
    ),
]

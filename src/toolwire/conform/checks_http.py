"""The checks beside the two APIs: models, pages, keys."""

from __future__ import annotations

from toolwire.conform import judging as say
from toolwire.conform import keeping
from toolwire.conform.check import SCHEMAS, check

HTTP = [
    check(
        "http.models.list",
        "GET /models lists at least one model with id, object, created and owned_by",
        f"{SCHEMAS}ListModelsResponse; Obsidian Copilot verifies a provider by this list",
        "the client shows no model and takes the endpoint for broken",
        ("http.models",),
        keeping.lists_models,
    ),
    check(
        "http.models.one",
        "GET /models/ID gives that model",
        f"OpenAPI /models/{{model}}; {SCHEMAS}Model",
        "clients that look a model up before they use it stop",
        ("http.model",),
        keeping.tells_model,
        "optional",
    ),
    check(
        "http.models.unknown",
        "GET /models/ID of a model that is not there is HTTP 404 with OpenAI's error object",
        f"OpenAPI /models/{{model}}; {SCHEMAS}Error",
        "the client can not tell a wrong name from a broken server",
        ("http.no-model",),
        say.refused(404),
        "optional",
    ),
    check(
        "http.cors.preflight",
        "a preflight from app://obsidian.md is answered 2xx without a key, allowing the origin and every header that is asked for",
        "Fetch standard; logancyang/obsidian-copilot#2810, logancyang/obsidian-copilot#2877; bramses/chatgpt-md#176",
        "no page and no Obsidian plugin reaches the endpoint",
        ("http.preflight",),
        keeping.preflight_allows,
        "optional",
    ),
    check(
        "http.cors.answers",
        "an answer allows the origin that asked",
        "Fetch standard",
        "the page asks, and is not given what came",
        ("http.from-page",),
        say.each(keeping.page_may_read),
        "optional",
    ),
    check(
        "http.cors.errors",
        "an error allows the origin that asked",
        "Fetch standard",
        "the page shows a network failure in place of what is wrong",
        ("http.error-to-page",),
        say.each(keeping.page_may_read),
        "optional",
    ),
    check(
        "http.errors.no-key",
        "where a key is needed, a request without one is HTTP 401 or 403 with OpenAI's error object",
        f"{SCHEMAS}Error; Obsidian Copilot reads 401 and 403 as a wrong key",
        "the client can not say that the key is wrong",
        ("http.without-key",),
        say.refuses_strangers,
    ),
]

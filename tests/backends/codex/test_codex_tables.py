"""The tables of the Codex backend: features of versions, generated config, meanings of errors."""

from __future__ import annotations

import json
import os
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from toolwire.backends.codex.home import _sweep, config_toml, patched_catalog
from toolwire.backends.codex.items import answer_json, output_schema, output_words, tool_json
from toolwire.backends.codex.options import SINCE, CodexOptions, Features, Version, features_of, parse_version
from toolwire.backends.codex.protocol import TurnError
from toolwire.backends.codex.reading import (
    INFO_KINDS,
    REQUEST_KINDS,
    STATUS_KINDS,
    WORD_KINDS,
    end_of,
    is_object,
    refused,
)
from toolwire.backends.registry import check
from toolwire.core.errors import KINDS
from toolwire.core.events import Failure, Finish
from toolwire.core.turn import OutputFormat, Result, TextPart, ToolSpec


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("codex-cli 0.166.0\n", Version(0, 166)),
        ("toolwire/0.89.0 (Debian 12.0.0; x86_64) unknown (toolwire; 1)", Version(0, 89)),
        ("codex-cli 1.2.3-alpha.4", Version(1, 2, 3)),
        ("codex", None),
    ],
)
def test_a_version_is_found_in_the_output_of_codex(text: str, version: Version | None) -> None:
    assert parse_version(text) == version


def test_features_depend_on_the_version() -> None:
    assert features_of(Version(0, 89)) == Features()
    assert not features_of(Version(0, 132, 9)).native_tools and features_of(Version(0, 133)).native_tools
    assert not features_of(Version(0, 125, 9)).follow_ups and features_of(Version(0, 126)).follow_ups
    assert not features_of(Version(0, 144, 5)).response_mark and features_of(Version(0, 145)).response_mark
    assert features_of(Version(0, 166)) == Features(**dict.fromkeys(SINCE, True))


@pytest.mark.parametrize("version", [Version(0, 89), Version(0, 166)])
def test_the_config_is_toml_with_the_intended_values(version: Version) -> None:
    options = CodexOptions(
        provider={"base_url": "https://a.example/v1", "env_key": "K", "name": 'An "odd"\tname'}
    )
    home = '/a home/with \\ and "'
    meant = tomllib.loads(config_toml(options, version, home=home, catalog="/c.json"))
    provider = meant["model_providers"]["toolwire"]
    assert (provider["base_url"], provider["env_key"], provider["name"]) == tuple(
        (options.provider or {})[key] for key in ("base_url", "env_key", "name")
    )
    assert meant["model_catalog_json"] == "/c.json"
    assert all(skill["path"].startswith(home + "/skills/") for skill in meant["skills"].get("config", ()))
    assert (
        meant["model_providers"]["toolwire"]["request_max_retries"]
        == meant["model_providers"]["toolwire"]["stream_max_retries"]
        == 0
    )
    assert meant["approval_policy"] == "never" and meant["features"]["shell_tool"] is False
    assert ("config" in meant["skills"]) == (version < Version(0, 121))


def test_a_model_of_the_catalog_loses_codexs_own_tools_and_prompts_and_gains_no_key() -> None:
    model = {
        "slug": "m",
        "tool_mode": "code",
        "apply_patch_tool_type": "freeform",
        "base_instructions": "You are",
        "use_responses_lite": True,
        "x": 1,
    }
    ours, _ = patched_catalog({"models": [model]}, foreign=False)["models"]
    foreign, _ = patched_catalog({"models": [model]}, foreign=True)["models"]
    assert ours == {
        "slug": "m",
        "apply_patch_tool_type": None,
        "base_instructions": "",
        "use_responses_lite": True,
        "x": 1,
    }
    assert foreign == {**ours, "use_responses_lite": False}


def test_the_catalog_has_an_entry_for_every_other_model_with_the_common_fields() -> None:
    one = {
        "slug": "a",
        "context_window": 1,
        "default_reasoning_level": "high",
        "upgrade": {"model": "b"},
        "x": 1,
        "only_here": 1,
    }
    other = {"slug": "b", "context_window": 2, "default_reasoning_level": "low", "upgrade": None, "x": 1}
    *_, rest = patched_catalog({"models": [one, other]}, foreign=False)["models"]
    assert rest == {
        "slug": "",
        "context_window": 100_000_000,
        "default_reasoning_level": None,
        "upgrade": None,
        "x": 1,
    }
    assert patched_catalog({"models": []}, foreign=False) == {"models": []}


def test_every_kind_of_the_tables_is_known() -> None:
    kinds = {
        *INFO_KINDS.values(),
        *STATUS_KINDS.values(),
        *(kind for _, kind in WORD_KINDS),
        *(kind for _, kind, _ in REQUEST_KINDS),
    }
    assert kinds <= set(KINDS)


@pytest.mark.parametrize(
    ("info", "message", "kind"),
    [
        ("unauthorized", "m", "backend_auth"),
        ({"httpConnectionFailed": {"httpStatusCode": 401}}, "m", "backend_auth"),
        (
            {"httpConnectionFailed": {"httpStatusCode": None}},
            "error sending request for url (http://127.0.0.1:9/v1)",
            "backend_unavailable",
        ),
        ({"responseTooManyFailedAttempts": {"httpStatusCode": 502}}, "m", "backend"),
        ({"responseStreamDisconnected": {"httpStatusCode": None}}, "m", "backend_cut"),
        ("other", "unexpected status 418 I'm a teapot: ", "invalid_request"),
        ("other", '{"error": {"message": "Bad", "code": "c"}}', "invalid_request"),
        ("other", '{"detail": "The model is not supported with this account."}', "invalid_request"),
        ("other", "Missing environment variable: `K`.", "backend_auth"),
        ("other", "stream disconnected before completion: idle timeout waiting for SSE", "timeout"),
        ("a-new-word", "what", "backend"),
        (["odd"], "", "backend"),
        (None, "[" * 5000, "backend"),
    ],
)
def test_an_error_has_one_kind(info: Any, message: str, kind: str) -> None:
    end = end_of(TurnError(message, info))
    assert isinstance(end, Failure) and end.kind == kind
    assert end.message and "http" not in end.message


def test_an_incomplete_answer_is_no_error() -> None:
    assert end_of(TurnError("Incomplete response returned, reason: max_output_tokens", "other")) == Finish(
        "length"
    )
    assert isinstance(end_of(TurnError("Incomplete response returned, reason: boredom", "other")), Failure)


def test_a_refusal_of_codex_names_the_clients_field() -> None:
    assert (
        refused("turn/start", "Invalid request: unknown variant `x`, expected one of `none`, `minimal`").param
        == "reasoning_effort"
    )
    assert refused("thread/start", "dynamic tool name is invalid: a b").kind == "invalid_request"
    assert refused("thread/start", "no idea").kind == "backend"


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("{}", True),
        (' {"a": [1.5e3, null]} ', True),
        ('{"a":' * 127 + "1" + "}" * 127, True),
        ('{"a":' * 128 + "1" + "}" * 128, False),
        (json.dumps({"a": "[{" * 300}), True),
        ("", False),
        ("[]", False),
        ('{"a": NaN}', False),
        ("{'a': 1}", False),
        ('{"a": "\\ud800"}', False),
        ("{}{}", False),
    ],
)
def test_arguments_are_read_as_codex_reads_them(text: str, fits: bool) -> None:
    assert is_object(text) is fits


def test_a_schema_is_asked_for_where_it_can_be_held_to() -> None:
    closed = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert output_schema(OutputFormat("json_schema", "x", closed)) == closed
    for loose in (
        {**closed, "required": []},
        {**closed, "properties": {"a": {"type": "object"}}},
        {"anyOf": [{"type": "object"}]},
    ):
        assert output_schema(OutputFormat("json_schema", "x", loose)) is None
        assert output_words(OutputFormat("json_schema", "x", loose))
        assert output_schema(OutputFormat("json_schema", "x", loose, strict=True)) == loose
    assert output_words(OutputFormat()) == ""


def test_a_tool_always_has_a_schema_of_an_object() -> None:
    assert tool_json(ToolSpec("t"))["inputSchema"] == {"type": "object", "properties": {}}
    assert tool_json(ToolSpec("t", "", {"anyOf": [{}]}))["inputSchema"] == {
        "type": "object",
        "properties": {},
        "anyOf": [{}],
    }


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"tools": "native"}, "tools"),
        ({"workers": 0}, "workers"),
        ({"provider": {"base_url": "ftp://x"}}, "base_url"),
        ({"provider": {"base_url": "https://user:pass@x/v1"}}, "base_url"),
        ({"provider": {"base_url": "https://x/v1", "env_ky": "K"}}, "env_ky"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"bin": ""}, "bin"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        check("codex", options)


def test_conversations_that_a_killed_process_left_are_removed_once_they_are_old(tmp_path: Path) -> None:
    folder = tmp_path / "sessions" / "2026"
    folder.mkdir(parents=True)
    (folder / "rollout-old.jsonl").touch()
    (folder / "rollout-new.jsonl").touch()
    os.utime(folder / "rollout-old.jsonl", (time.time() - 7200,) * 2)
    _sweep(tmp_path)
    assert [file.name for file in folder.iterdir()] == ["rollout-new.jsonl"]


def test_codex_learns_that_a_tool_failed() -> None:
    for failed in (True, False):
        answer = answer_json(Result("c", (TextPart("x"),), is_error=failed))
        assert answer == {"contentItems": [{"type": "inputText", "text": "x"}], "success": not failed}

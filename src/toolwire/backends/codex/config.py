"""Codex's config.toml and model catalog, as data: a bare pipe to a model.

Codex brings no tool and no prompt of its own, fetches nothing at start and never retries. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from toolwire.backends.codex.options import CodexOptions, Version

HEADER = "# Written by Toolwire for its own use of Codex; written anew whenever it starts."
PROVIDER = "toolwire"
BARE = Version(0, 121)
"""From this version on, Codex's own prompts can be switched off."""
WINDOW = 100_000_000
"""The provider judges the context window: by its own figure Codex would replace a long history by a summary."""


def _off(prefix: str, names: str) -> dict[str, Any]:
    return {prefix + name: False for name in names.split()}


ALWAYS: dict[str, Any] = {
    "model_provider": PROVIDER,
    "approval_policy": "never",
    "sandbox_mode": "read-only",
    "check_for_update_on_startup": False,
    "web_search": "disabled",
    "project_doc_max_bytes": 0,
    "tool_output_token_limit": 2_000_000,
    "hide_agent_reasoning": False,
    "analytics.enabled": False,
    "history.persistence": "none",
    **_off("features.", "shell_tool unified_exec shell_snapshot"),
}
BEFORE_BARE: dict[str, Any] = {
    "model_context_window": WINDOW,
    "model_auto_compact_token_limit": WINDOW,
    "tools.view_image": False,
    **_off("features.", "apply_patch_freeform collab collaboration_modes remote_models"),
}
SINCE_BARE: dict[str, Any] = {
    **_off("include_", "permissions_instructions apps_instructions"),
    **_off("include_", "collaboration_mode_instructions environment_context"),
    "feedback.enabled": False,
    "skills.include_instructions": False,
    "skills.bundled.enabled": False,
    "tools.update_plan.enabled": False,
    "tools.experimental_request_user_input.enabled": False,
    **_off("features.", "view_image multi_agent goals image_generation apps plugins remote_plugin"),
    **_off("features.", "plugin_sharing tool_suggest hooks memories skill_search sleep_tool browser_use"),
    **_off("features.", "computer_use in_app_browser code_mode_host workspace_dependencies"),
    **_off("features.", "api_key_model_discovery"),
}
OLD_SKILLS = ("skill-creator", "skill-installer")
"""Skills that Codex before 0.121 unpacks into its home and describes to the model, unless switched off by path."""

MODEL_PATCH: dict[str, Any] = {
    "apply_patch_tool_type": None,
    "experimental_supported_tools": [],
    "supports_search_tool": False,
    "base_instructions": "",
    "model_messages": None,
    "default_verbosity": None,
    "include_skills_usage_instructions": False,
    "include_plugin_usage_instructions": False,
    "include_apps_usage_instructions": False,
    "context_window": WINDOW,
    "max_context_window": WINDOW,
}
"""Replaces these keys in every model of Codex's own catalog that has them."""
MODEL_DROPPED = (
    "tool_mode",
    "multi_agent_version",
    "multi_agent_reasoning_effort",
    "auto_compact_token_limit",
)
ANY_MODEL: dict[str, Any] = {
    "slug": "",
    "display_name": "",
    "description": None,
    "visibility": "hide",
    "priority": 1000,
    "default_reasoning_level": None,
    "supported_reasoning_levels": [],
    "default_reasoning_summary": "auto",
    "additional_speed_tiers": [],
    "service_tiers": [],
    "availability_nux": None,
    "upgrade": None,
    "use_responses_lite": False,
}
"""The entry of all models that the catalog does not name, without which Codex guesses their context window.

Codex takes the entry whose slug is the longest prefix of the model's name.
"""


def patched_catalog(catalog: Mapping[str, Any], foreign: bool) -> dict[str, Any]:
    """The catalog without Codex's own tools and prompts. `foreign`: the provider is not OpenAI."""
    patch = {**MODEL_PATCH, "use_responses_lite": False} if foreign else MODEL_PATCH
    models = []
    for model in catalog["models"]:
        kept = {key: value for key, value in model.items() if key not in MODEL_DROPPED}
        models.append({**kept, **{key: value for key, value in patch.items() if key in kept}})
    if models:
        common = set(models[0]).intersection(*models)
        models.append({key: ANY_MODEL.get(key, value) for key, value in models[0].items() if key in common})
    return {**catalog, "models": models}


def config_toml(options: CodexOptions, version: Version, *, home: str, catalog: str = "") -> str:
    """The whole file, one dotted key a line."""
    out = {**ALWAYS, **(BEFORE_BARE if version < BARE else SINCE_BARE)}
    if catalog:
        out["model_catalog_json"] = catalog
    if version < BARE:
        paths = [f"{home}/skills/.system/{name}/SKILL.md" for name in OLD_SKILLS]
        out["skills.config"] = [{"path": path, "enabled": False} for path in paths]
    out[f"model_providers.{PROVIDER}"] = _provider(options.provider)
    return "\n".join([HEADER, *(f"{key} = {_toml(value)}" for key, value in out.items())]) + "\n"


def _provider(given: Mapping[str, Any] | None) -> dict[str, Any]:
    table: dict[str, Any] = {
        "name": "OpenAI by Toolwire",
        "wire_api": "responses",
        "request_max_retries": 0,
        "stream_max_retries": 0,
        "stream_idle_timeout_ms": 24 * 3600 * 1000,  # the run has its own limit of silence
    }
    if given is None:  # the base URL follows from the kind of login, which Codex knows
        return {**table, "requires_openai_auth": True}
    table["name"] = given.get("name") or "Toolwire's provider"
    table["base_url"] = given["base_url"]
    if given.get("env_key"):
        table["env_key"] = given["env_key"]
    return table


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

"""Codex's config.toml for Toolwire, as data: a bare pipe to a model. No tool of Codex's own, no prompt, nothing fetched at start, retries ours.

A row is in force where the installed version lies in its range. Pure; standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from toolwire.backends.codex.options import CodexOptions, Version

HEADER = "# Written by Toolwire for its own use of Codex; written anew whenever it starts."
PROVIDER = "toolwire"
_FIRST, _BARE, _NEVER = Version(0, 0), Version(0, 121), Version(1_000_000, 0)  # _BARE: from here on Codex's own prompts can be switched off

WINDOW = 100_000_000
"""The context window is the provider's to judge: with its own figure Codex would replace a long history by a summary. From 0.121 on it stands in the
catalog, which limits what the settings may say."""


class Row(NamedTuple):
    key: str
    value: Any
    since: Version = _FIRST
    before: Version = _NEVER


ROWS: tuple[Row, ...] = (
    Row("model_provider", PROVIDER),
    Row("approval_policy", "never"),
    Row("sandbox_mode", "read-only"),
    Row("check_for_update_on_startup", False),
    Row("web_search", "disabled"),
    Row("project_doc_max_bytes", 0),
    Row("tool_output_token_limit", 2_000_000),
    Row("model_context_window", WINDOW, before=_BARE),
    Row("model_auto_compact_token_limit", WINDOW, before=_BARE),
    Row("hide_agent_reasoning", False),
    *(
        Row(f"include_{what}", False, _BARE)
        for what in ("permissions_instructions", "apps_instructions", "collaboration_mode_instructions", "environment_context")
    ),
    Row("analytics.enabled", False),
    Row("feedback.enabled", False, _BARE),
    Row("history.persistence", "none"),
    Row("skills.include_instructions", False, _BARE),
    Row("skills.bundled.enabled", False, _BARE),
    Row("tools.view_image", False, before=_BARE),
    Row("tools.update_plan.enabled", False, _BARE),
    Row("tools.experimental_request_user_input.enabled", False, _BARE),
    *(Row(f"features.{name}", False) for name in ("shell_tool", "unified_exec", "shell_snapshot")),
    *(Row(f"features.{name}", False, before=_BARE) for name in ("apply_patch_freeform", "collab", "collaboration_modes", "remote_models")),
    *(
        Row(f"features.{name}", False, _BARE)
        for name in (
            "view_image multi_agent goals image_generation apps plugins remote_plugin plugin_sharing tool_suggest hooks memories skill_search "
            "sleep_tool browser_use computer_use in_app_browser code_mode_host workspace_dependencies api_key_model_discovery"
        ).split()
    ),
)
OLD_SKILLS = ("skill-creator", "skill-installer")
"""What Codex before 0.121 unpacks into its home and tells the model of, unless each is switched off by its path."""

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
"""What is changed in every model of Codex's own catalog, where the key is there."""
MODEL_DROPPED = ("tool_mode", "multi_agent_version", "multi_agent_reasoning_effort", "auto_compact_token_limit")
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
"""The entry of all models that the catalog does not name: Codex takes the one whose slug is the longest beginning of the model's name. Without it the
context window of such a model is Codex's own guess."""


def patched_catalog(catalog: Mapping[str, Any], foreign: bool) -> dict[str, Any]:
    """The catalog without Codex's own tools and prompts. `foreign`: the provider is not OpenAI's and takes tools in their usual place only."""
    patch = {**MODEL_PATCH, "use_responses_lite": False} if foreign else MODEL_PATCH
    models = []
    for model in catalog["models"]:
        kept = {key: value for key, value in model.items() if key not in MODEL_DROPPED}
        models.append({**kept, **{key: value for key, value in patch.items() if key in kept}})
    if models:
        common = set(models[0]).intersection(*models)
        models.append({key: ANY_MODEL.get(key, value) for key, value in models[0].items() if key in common})
    return {**catalog, "models": models}


def settings(options: CodexOptions, version: Version, *, home: str, catalog: str = "") -> dict[str, Any]:
    """The whole of config.toml as nested tables."""
    out: dict[str, Any] = {}
    for row in ROWS:
        if row.since <= version < row.before:
            put(out, row.key, row.value)
    if catalog:
        out["model_catalog_json"] = catalog
    if version < _BARE:
        put(out, "skills.config", [{"path": f"{home}/skills/.system/{name}/SKILL.md", "enabled": False} for name in OLD_SKILLS])
    put(out, f"model_providers.{PROVIDER}", provider_table(options))
    return out


def provider_table(options: CodexOptions) -> dict[str, Any]:
    given = options.provider
    table: dict[str, Any] = {
        "name": "OpenAI by Toolwire",
        "wire_api": "responses",
        "request_max_retries": 0,
        "stream_max_retries": 0,
        "stream_idle_timeout_ms": 24 * 3600 * 1000,  # silence is judged by the run
    }
    if given is None:  # the base URL follows from the kind of login, which Codex knows
        return {**table, "requires_openai_auth": True}
    table["name"] = given.get("name") or "Toolwire's provider"
    table["base_url"] = given["base_url"]
    if given.get("env_key"):
        table["env_key"] = given["env_key"]
    return table


def put(table: dict[str, Any], path: str, value: Any) -> None:
    *folders, last = path.split(".")
    for folder in folders:
        table = table.setdefault(folder, {})
    table[last] = value


# --- TOML --------------------------------------------------------------------------------------------------------------------------------------


def to_toml(table: Mapping[str, Any]) -> str:
    """Nested tables, lists of tables, strings, numbers and flags as TOML."""
    return "\n".join([HEADER, *_table(table, ())]) + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {key: value for key, value in table.items() if not _is_table(value) and not _is_tables(value)}
    lines = [f"[{'.'.join(path)}]"] if path and (plain or not table) else []
    lines += [f"{key} = {_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if _is_table(value):
            lines += _table(value, (*path, key))
        elif _is_tables(value):
            for one in value:
                lines += [f"[[{'.'.join((*path, key))}]]", *(f"{name} = {_value(entry)}" for name, entry in one.items())]
    return lines


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_table, value))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

"""Toolwire's own Codex home: a private folder with config, model catalog and login.

- The config disables Codex's own tools, its prompts, its requests at startup, and its retries.
- Toolwire never writes to the person's own Codex home. If the provider is OpenAI, Toolwire's home contains a
  link to the person's login (auth.json). Toolwire never copies, reads or logs the login.
- Files are written atomically and are readable only by their owner. Codex logs tool results into databases.
  Each process has its databases in a private folder, in memory where possible.
- Only one process at a time may start in a home. `warming` makes sure of this, even if several gateways use
  the home.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolwire.backends.agents.processes import PROXIES, in_memory, private_folder
from toolwire.backends.codex.options import CodexOptions, Features, Version, features_of, parse_version
from toolwire.core.errors import ToolwireError, unavailable

COMMAND_S = 20.0
LEFT_OVER_S = 3600.0
PASSED_ON = ("PATH", "HOME", *PROXIES)
"""The gateway's environment variables that Codex gets, in addition to its home and a key."""
INSTALL = "npm install -g @openai/codex"


@dataclass(frozen=True, slots=True)
class CodexHome:
    path: Path
    binary: str
    version: Version
    features: Features
    env: Mapping[str, str]

    @property
    def cwd(self) -> Path:
        """The empty folder that is the working folder of all Codex threads."""
        return self.path / "empty"

    @asynccontextmanager
    async def warming(self) -> AsyncIterator[None]:
        with open(self.path / ".toolwire.lock", "w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(0.05)
            yield


def scratch() -> Path:
    """Creates a private folder for the databases of one process."""
    return private_folder("toolwire-codex-", in_memory())


def find_binary(options: CodexOptions) -> str:
    found = shutil.which(os.path.expanduser(options.bin))
    if found is None:
        problem = f"Codex is not installed: the command {options.bin!r} was not found."
        raise unavailable(f"{problem} Install it with: {INSTALL}")
    return os.path.abspath(found)


def home_path(options: CodexOptions, binary: str) -> tuple[Path, Path]:
    """Returns the paths of Toolwire's Codex home, and of the person's Codex home with the login.

    Models with different providers get different homes, because a home contains the config.
    """
    own = Path(os.environ.get("CODEX_HOME") or "~/.codex").expanduser().absolute()
    parent = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "toolwire" / "codex"
    if options.home:
        wanted = Path(options.home).expanduser().absolute()
        if wanted == own or (wanted / "config.toml").exists() or (wanted / "auth.json").exists():
            own = wanted  # the option names a person's home: only its login is used
        else:
            parent = wanted
    facts = json.dumps([binary, options.provider, str(own)], sort_keys=True)
    return parent.absolute() / hashlib.sha256(facts.encode()).hexdigest()[:16], own


def environment(options: CodexOptions, path: Path) -> dict[str, str]:
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    env["CODEX_HOME"] = str(path)
    key = (options.provider or {}).get("env_key", "")
    if key and key in os.environ:
        env[key] = os.environ[key]
    return env


async def prepare_home(options: CodexOptions) -> CodexHome:
    binary = find_binary(options)
    path, own = home_path(options, binary)
    env = environment(options, path)
    try:
        for folder in (path, path / "empty"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
        output = await command(binary, "--version", env=env)
        version = parse_version(output)
        if version is None:
            problem = f"{options.bin!r} does not say which version of Codex it is."
            raise unavailable(problem)
        features = features_of(version)
        home = CodexHome(path, binary, version, features, env)
        catalog = await _catalog(options, home) if features.model_catalog else ""
        write(path / "config.toml", config_toml(options, version, home=str(path), catalog=catalog))
        _link_login(path, own, needed=options.provider is None)
        _sweep(path)
    except OSError as error:
        problem = f"Codex's home {path} cannot be prepared: {error.strerror or error}"
        raise unavailable(problem) from error
    return home


def write(path: Path, text: str) -> None:
    """Writes the file atomically, readable only by its owner. A file that has this text already is kept."""
    with suppress(FileNotFoundError):
        if path.read_text("utf-8") == text:
            return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _sweep(path: Path) -> None:
    """Removes old conversations that a killed process of an older Codex version has left on disk."""
    before = time.time() - LEFT_OVER_S
    for folder in ("sessions", "archived_sessions"):
        for file in (path / folder).rglob("rollout-*"):
            with suppress(OSError):
                if file.stat().st_mtime < before:
                    file.unlink()


def _link_login(path: Path, own: Path, needed: bool) -> None:
    link, target = path / "auth.json", own / "auth.json"
    if link.is_symlink():
        if needed and os.readlink(link) == str(target):
            return
        link.unlink()
    if needed and not link.exists():  # also if the person has not logged in yet
        link.symlink_to(target)


async def _catalog(options: CodexOptions, home: CodexHome) -> str:
    """Returns the path of the patched model catalog, or "" if Codex cannot print its catalog."""
    foreign = options.provider is not None
    facts = json.dumps([MODEL_PATCH, MODEL_DROPPED, ANY_MODEL, foreign], sort_keys=True)
    path = home.path / f"models-{home.version}-{hashlib.sha256(facts.encode()).hexdigest()[:8]}.json"
    if not path.exists():
        try:
            catalog = json.loads(await command(home.binary, "debug", "models", "--bundled", env=home.env))
            write(path, json.dumps(patched_catalog(catalog, foreign)))
        except (ToolwireError, ValueError, KeyError, TypeError):
            return ""
    return str(path)


async def command(binary: str, *words: str, env: Mapping[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        binary,
        *words,
        env=dict(env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(COMMAND_S):
            output, errors = await process.communicate()
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if not isinstance(error, TimeoutError):
            raise
        problem = f"codex {' '.join(words)} did not answer within {COMMAND_S:g} s."
        raise unavailable(problem) from None
    if process.returncode != 0:
        lines = errors.decode("utf-8", "replace").strip().splitlines() or [
            f"exit status {process.returncode}"
        ]
        raise unavailable(f"codex {' '.join(words)} failed: {lines[-1]}")
    return output.decode("utf-8", "replace")


# --- config.toml and the model catalog, as data ---

HEADER = "# Written by Toolwire for its own use of Codex, whenever it starts."
PROVIDER = "toolwire"
BARE = Version(0, 121)
"""The first version in which Codex's own prompts can be disabled."""
WINDOW = 100_000_000
"""A context window that is never reached, so that the provider decides whether a history is too long.

If Codex knew the real window, it would replace a long history by a summary.
"""


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
"""Skills that Codex before 0.121 describes to the model, unless they are disabled by path."""

MODEL_PATCH: dict[str, Any] = {
    "apply_patch_tool_type": None,
    "experimental_supported_tools": [],
    "supports_search_tool": False,
    "base_instructions": "",
    "model_messages": None,
    "default_verbosity": None,
    **{f"include_{name}_usage_instructions": False for name in ("skills", "plugin", "apps")},
    "context_window": WINDOW,
    "max_context_window": WINDOW,
}
"""New values for keys of Codex's model catalog. They replace the values in every model that has the key."""
MODEL_DROPPED = tuple(
    "tool_mode multi_agent_version multi_agent_reasoning_effort auto_compact_token_limit".split()
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
"""A catalog entry for all models that the catalog does not contain.

Codex uses the entry whose slug is the longest prefix of the model's name. Without this entry, Codex would
guess the context window.
"""


def patched_catalog(catalog: Mapping[str, Any], foreign: bool) -> dict[str, Any]:
    """Returns Codex's model catalog without Codex's own tools and prompts.

    `foreign`: whether the provider is not OpenAI.
    """
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
        "stream_idle_timeout_ms": 24 * 3600 * 1000,  # the run has its own timeout
    }
    if given is None:  # Codex chooses the base URL by the kind of login
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

"""The clients that `toolwire launch` can start: how to install, set up and run each of them.

A client is in this list only if one process of it can be set up without changing its configuration: by
environment variables, arguments, or files in a temporary folder. Google's Gemini CLI is not in the list,
because it uses only Google's API. Cursor's agent is not in the list, because it uses only Cursor's servers.
"""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolwire.surfaces.web.clients import CODEX_TOML, OPENCODE_JSON, fill

KEY_VARIABLE = "TOOLWIRE_API_KEY"


@dataclass(frozen=True, slots=True)
class Target:
    """The gateway and the model that a client uses.

    If `model` is "", the client requests models by its own names, and the gateway's aliases map these names
    to models. `folder`: a temporary folder that is deleted when the client has ended.
    """

    root: str
    model: str
    models: Sequence[str]
    key: str
    folder: Path

    @property
    def values(self) -> dict[str, str]:
        return {"base": f"{self.root}/v1", "root": self.root, "model": self.model, "key": self.key}


@dataclass(frozen=True, slots=True)
class Setup:
    """How a client is started.

    `environment`: variables to set, or to remove if the value is None. `files`, `copies` and `links` describe
    the content of a temporary folder: their keys are paths in this folder. The values of `files` are texts.
    The values of `copies` and `links` are the person's files to copy or to link to.
    """

    arguments: Sequence[str] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, Path] = field(default_factory=dict)
    links: Mapping[str, Path] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Creates the files, copies and links in the temporary folder."""
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
        for name, source in self.copies.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.copy(source, folder / name)
        for name, target in self.links.items():
            (folder / name).symlink_to(target)


@dataclass(frozen=True, slots=True)
class Launcher:
    id: str
    title: str
    command: str
    install: str
    setup: Callable[[Target, Mapping[str, str]], Setup]
    """Returns the setup for a target and the person's environment."""
    own_models: str = ""
    """The name of a model that the client requests by default; "" if the client has no default model."""

    @property
    def path(self) -> str | None:
        return shutil.which(self.command)


# --- Claude Code
#
# The person's settings.json may set variables, which take precedence over the environment; the file that
# --settings names takes precedence over both. Claude Code also writes its state to .claude.json, which
# contains settings such as MCP servers, and it rewrites settings.json after an update. So Claude Code gets a
# temporary configuration folder: copies of the person's .json and .md files, and links to everything else,
# such as the folders with sessions, agents, skills and plugins. The person's login is left out.

CLAUDE_STATE, CLAUDE_LOGIN = ".claude.json", ".credentials.json"
CLAUDE_CLEARED = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_MODEL",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_FOUNDRY",
    "CLAUDE_CODE_USE_VERTEX",
)
CLAUDE_MODELS = (
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
)


def _claude(target: Target, environ: Mapping[str, str]) -> Setup:
    variables = {"ANTHROPIC_BASE_URL": target.root, "ANTHROPIC_AUTH_TOKEN": target.key}
    arguments = ["--settings", str(target.folder / "settings.json")]
    if target.model:
        variables |= dict.fromkeys(CLAUDE_MODELS, target.model)
        arguments += ["--model", target.model]
    settings: dict[str, Any] = {"env": {**variables, **dict.fromkeys(CLAUDE_CLEARED, "")}}
    home = Path(environ.get("HOME") or "~").expanduser()
    own = Path(environ["CLAUDE_CONFIG_DIR"]) if environ.get("CLAUDE_CONFIG_DIR") else home / ".claude"
    state = own / CLAUDE_STATE if environ.get("CLAUDE_CONFIG_DIR") else home / CLAUDE_STATE
    names = sorted(os.listdir(own)) if own.is_dir() else []
    others = [name for name in names if name not in (CLAUDE_STATE, CLAUDE_LOGIN)]
    copies = {f"claude/{name}": own / name for name in others if (own / name).suffix in (".json", ".md")}
    links = {f"claude/{name}": own / name for name in others if f"claude/{name}" not in copies}
    copied = f"claude/{CLAUDE_STATE}"
    new = {} if state.is_file() else {copied: json.dumps({"hasCompletedOnboarding": True})}
    return Setup(
        arguments,
        {**variables, **dict.fromkeys(CLAUDE_CLEARED), "CLAUDE_CONFIG_DIR": str(target.folder / "claude")},
        {"settings.json": json.dumps(settings), **new},
        {**copies, **({} if new else {copied: state})},
        links,
    )


# --- other clients


def _codex(target: Target, environ: Mapping[str, str]) -> Setup:
    """Passes each setting of the config.toml on the web page Connect as an argument.

    An argument takes precedence over the person's own config.toml.
    """
    settings = tomllib.loads(fill(CODEX_TOML, "toml", target.values, needs_key=True))
    arguments: list[str] = []
    for name, value in _leaves(settings):
        arguments += ["-c", f"{name}={json.dumps(value)}"]
    return Setup(arguments, {KEY_VARIABLE: target.key})


def _leaves(table: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for name, value in table.items():
        out += _leaves(value, f"{before}{name}.") if isinstance(value, dict) else [(before + name, value)]
    return out


def _opencode(target: Target, environ: Mapping[str, str]) -> Setup:
    """Sets `OPENCODE_CONFIG_CONTENT`, which takes precedence over all configuration files of OpenCode.

    Its value is the opencode.json that the web page Connect shows, with all models instead of one.
    """
    config = json.loads(fill(OPENCODE_JSON, "json", target.values, needs_key=True))
    models = config["provider"]["toolwire"]["models"]
    models |= {id: {"name": f"Toolwire {id}"} for id in target.models if id not in models}
    config |= dict.fromkeys(("model", "small_model"), f"toolwire/{target.model}")
    return Setup((), {"OPENCODE_CONFIG_CONTENT": json.dumps(config), KEY_VARIABLE: target.key})


def _copilot(target: Target, environ: Mapping[str, str]) -> Setup:
    variables: dict[str, str | None] = {
        "COPILOT_PROVIDER_BASE_URL": target.values["base"],
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_PROVIDER_API_KEY": target.key,
        "COPILOT_MODEL": target.model,
    }
    others = ("API_KEY_COMMAND", "BEARER_TOKEN", "HEADERS", "MODEL_ID", "TRANSPORT", "WIRE_API", "WIRE_MODEL")
    return Setup((), {**{f"COPILOT_PROVIDER_{name}": None for name in others}, **variables})


def _qwen(target: Target, environ: Mapping[str, str]) -> Setup:
    arguments = ["--auth-type", "openai", "--openai-base-url", target.values["base"], "--model", target.model]
    return Setup(arguments, {"OPENAI_API_KEY": target.key})


def _aider(target: Target, environ: Mapping[str, str]) -> Setup:
    model = f"openai/{target.model}"
    arguments = ["--openai-api-base", target.values["base"], "--model", model, "--weak-model", model]
    return Setup(arguments, {"AIDER_OPENAI_API_KEY": target.key})


LAUNCHERS = (
    Launcher(
        "claude",
        "Claude Code",
        "claude",
        "npm install -g @anthropic-ai/claude-code",
        _claude,
        own_models="claude-sonnet-5-5",
    ),
    Launcher("codex", "Codex", "codex", "npm install -g @openai/codex", _codex),
    Launcher("opencode", "OpenCode", "opencode", "npm install -g opencode-ai", _opencode),
    Launcher("copilot", "GitHub Copilot CLI", "copilot", "npm install -g @github/copilot", _copilot),
    Launcher("aider", "Aider", "aider", "pip install aider-chat", _aider),
    Launcher("qwen", "Qwen Code", "qwen", "npm install -g @qwen-code/qwen-code", _qwen),
)
BY_ID = {launcher.id: launcher for launcher in LAUNCHERS}

"""The options of ACP agents, and what Toolwire knows about each agent, as data.

A profile only takes powers away. Where one is outdated, Toolwire still refuses what the agent requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

from toolwire.backends.agents import AgentOptions
from toolwire.backends.codex.home import ALWAYS, SINCE_BARE

SERVER = "client"
"""The name of the MCP server with the client's tools."""
PLAIN = "You are a helpful assistant. Follow the instructions and use the tools that you are given."
DAY_MS = 24 * 3600 * 1000
_STRANGE = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """`name` is the value of the option `profile`. `start` is the agent's usual command."""

    name: str
    title: str
    start: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    """Other names of its program."""
    install: str = ""
    log_in: str = ""
    arguments: tuple[str, ...] = ()
    """More arguments of the command."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the operator did not set. {home} is the agent's home."""
    config: tuple[str, Mapping[str, Any]] | None = None
    """A variable with JSON, and what is merged into the operator's value."""
    config_dropped: tuple[str, ...] = ()
    """Keys that are removed from the operator's value, because they give powers back. `a.*.b` is a path."""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """JSON files in the agent's home. A list entry with {tool} is repeated for each of the client's tools."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """`_meta` of session/new."""
    mode: str = ""
    """The session's mode, if the agent has it."""
    shown: tuple[str, ...] = ("{server}_{tool}",)
    """The agent's names of a client's tool: first for its model, then in requests for permission."""
    approvals: tuple[str, ...] = ()
    """Titles of requests for permission that name no tool: the announcement with the same id does."""
    longest: int = 64
    """The longest name of a tool, including the agent's prefix."""
    announces: bool = False
    """Session updates announce the calls of one answer together, about when they reach the MCP server."""
    login: tuple[str, ...] = ()
    """Login files below the person's home: linked into the agent's home, never read."""
    authenticate: Mapping[str, str] = field(default_factory=dict)
    """Authentication without a person: method → its variable. The agent may describe more methods."""
    model_by: tuple[Literal["arguments", "environment", "config", "session"], tuple[str, ...]] = (
        "session",
        (),
    )
    """Where the model goes: {model} in arguments, a variable, a key of the config, or a session option."""


_CODEX_OFF = "apply_patch_freeform view_image_tool collab js_repl code_mode".split()
_CODEX_SETTINGS: dict[str, Any] = {
    **{key: value for key, value in {**ALWAYS, **SINCE_BARE}.items() if key != "model_provider"},
    **dict.fromkeys(("include_apply_patch_tool", "tools.view_image"), False),
    **{f"features.{name}": False for name in _CODEX_OFF},
}
"""Those of Codex's app-server, and more for what the adapter adds."""

_KNOWN = (
    AgentProfile(
        "opencode",
        "OpenCode",
        ("opencode", "acp"),
        ("opencode-ai",),
        install="npm install -g opencode-ai",
        log_in="opencode auth login",
        environment={
            **dict.fromkeys(
                (
                    "OPENCODE_DISABLE_AUTOUPDATE OPENCODE_DISABLE_LSP_DOWNLOAD OPENCODE_DISABLE_MODELS_FETCH "
                    "OPENCODE_DISABLE_PROJECT_CONFIG OPENCODE_DISABLE_CLAUDE_CODE OPENCODE_PURE "
                    "OPENCODE_DISABLE_EXTERNAL_SKILLS"
                ).split(),
                "1",
            ),
            "OPENCODE_DB": ":memory:",
        },
        config=(
            "OPENCODE_CONFIG_CONTENT",
            {
                "permission": {"*": "deny", f"{SERVER}_*": "allow"},  # the last rule that fits decides
                "agent": {"title": {"disable": True}, "build": {"prompt": PLAIN}},
                "default_agent": "build",
                "share": "disabled",
                **dict.fromkeys(("autoupdate", "snapshot", "lsp", "formatter"), False),
                "tool_output": {"max_lines": 100_000_000, "max_bytes": 1_000_000_000},
                "experimental": {"mcp_timeout": DAY_MS},
            },
        ),
        config_dropped=tuple("permission tools mcp plugin mode agent.*.permission agent.*.tools".split()),
        announces=True,
        login=(".local/share/opencode/auth.json",),
        model_by=("config", ("model",)),
    ),
    AgentProfile(
        "gemini",
        "Gemini CLI",
        ("gemini", "--acp"),
        ("gemini-cli",),
        install="npm install -g @google/gemini-cli",
        log_in="set GEMINI_API_KEY in the model's env, or log in once with: gemini",
        environment={"GEMINI_CLI_HOME": "{home}", "GEMINI_CLI_TRUST_WORKSPACE": "true"},
        files={
            ".gemini/settings.json": {
                "tools": {"core": [f"mcp_{SERVER}_{{tool}}"]},  # an allowlist: everything else is denied
                "context": {"fileName": "none", "loadMemoryFromIncludeDirectories": False},
                "general": {
                    "enableAutoUpdate": False,
                    "disableAutoUpdate": True,
                    "checkpointing": {"enabled": False},
                },
                "privacy": {"usageStatisticsEnabled": False},
                "telemetry": {"enabled": False},
                "security": {"folderTrust": {"enabled": False}},
                "skills": {"enabled": False},
                "experimental": {"enableAgents": False, "skills": False},
                "hooksConfig": {"enabled": False},
            }
        },
        shown=("mcp_{server}_{tool}", "{tool} ({server} MCP Server)", "{server}__{tool}"),
        login=(".gemini/oauth_creds.json", ".gemini/google_accounts.json"),
        authenticate={
            "gemini-api-key": "GEMINI_API_KEY",
            "vertex-ai": "GOOGLE_API_KEY",
            "oauth-personal": "GOOGLE_GENAI_USE_GCA",
        },
        model_by=("arguments", ("--model", "{model}")),
    ),
    AgentProfile(
        "codex-acp",
        "Codex",
        ("codex-acp",),
        install="npm install -g @zed-industries/codex-acp",
        log_in="codex login, or set OPENAI_API_KEY in the model's env",
        arguments=tuple(
            word for key, value in _CODEX_SETTINGS.items() for word in ("-c", f"{key}={json.dumps(value)}")
        ),
        shown=("mcp__{server}__{tool}", "Tool: {server}/{tool}", "{server}.{tool}"),
        approvals=("Approve MCP tool call",),
        login=(".codex/auth.json",),
        authenticate={"openai-api-key": "OPENAI_API_KEY", "codex-api-key": "CODEX_API_KEY"},
        model_by=("arguments", ("-c", 'model="{model}"')),
    ),
    AgentProfile(
        "claude-code-acp",
        "Claude Code",
        ("claude-code-acp",),
        ("claude-agent-acp",),
        install="npm install -g @zed-industries/claude-code-acp",
        log_in="claude /login, or set ANTHROPIC_API_KEY in the model's env",
        environment={
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "MCP_TOOL_TIMEOUT": str(DAY_MS),
            "MAX_MCP_OUTPUT_TOKENS": "10000000",
        },
        meta={
            "disableBuiltInTools": True,
            "systemPrompt": PLAIN,
            "claudeCode": {"options": {"settingSources": [], "tools": []}},
        },
        shown=("mcp__{server}__{tool}",),
        login=(".claude/.credentials.json",),
        model_by=("environment", ("ANTHROPIC_MODEL",)),
    ),
    AgentProfile(
        "cursor",
        "Cursor's agent",
        ("cursor-agent", "acp"),
        ("agent",),
        install="curl https://cursor.com/install -fsS | bash",
        log_in="agent login, or set CURSOR_API_KEY in the model's env",
        mode="ask",
        shown=("{server}-{tool}", "{server}_{tool}", "{server}: {tool}", "MCP: {tool}"),
        login=(".config/cursor/auth.json",),
        authenticate={"cursor_login": "CURSOR_API_KEY"},
        model_by=("arguments", ("--model", "{model}")),
    ),
)
_ANY_SHOWN = tuple(dict.fromkeys(shown for profile in _KNOWN for shown in profile.shown))
_OTHER = AgentProfile("other", "The agent", shown=("{tool}", *_ANY_SHOWN), longest=50)
PROFILES: dict[str, AgentProfile] = {profile.name: profile for profile in (*_KNOWN, _OTHER)}


def profile_of(name: str, command: Sequence[str]) -> AgentProfile:
    """By name, or for "auto" by the first known program in the command, which may begin with npx."""
    if name != "auto":
        return PROFILES[name]
    programs = {program: profile for profile in _KNOWN for program in (profile.start[0], *profile.programs)}
    for word in command:
        program = re.sub(r"@[^/@]*\Z", "", PurePath(word).name).removesuffix(".js").removesuffix(".exe")
        if program in programs:
            return programs[program]
    return _OTHER


def shown_names(profile: AgentProfile, tools: Collection[str]) -> dict[str, str]:
    """The client's tool by every name that the agent may show it under."""
    out: dict[str, str] = {}
    for tool in tools:
        for pattern in profile.shown:
            out.setdefault(pattern.format(server=SERVER, tool=tool), tool)
            out.setdefault(pattern.format(server=SERVER, tool=_STRANGE.sub("_", tool)), tool)
    return out


def listed_names(profile: AgentProfile, tools: Sequence[str]) -> dict[str, str]:
    """Name on the MCP server → own name. Names that are too long with the agent's prefix are cut."""
    room = profile.longest - len(profile.shown[0].format(server=SERVER, tool=""))
    out: dict[str, str] = {tool: tool for tool in tools if len(tool) <= room}
    for tool in tools:
        number, name = 1, tool
        while len(name) > room or (name in out and out[name] != tool):
            end = f"_{number}"
            name, number = tool[: room - len(end)] + end, number + 1
        out[name] = tool
    return out


@dataclass(frozen=True, slots=True)
class AcpOptions(AgentOptions):
    """The keys of `[models.ID]` with `backend = "acp"`."""

    command: tuple[str, ...]
    """The command that starts the agent, and its arguments: ["opencode", "acp"]."""
    cwd: str = ""
    """The folder that the agent works in; empty: a fresh, empty one for every session."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables for the agent. With a `HOME` the agent uses that home, else a private one."""
    profile: str = "auto"
    """The name of a profile; "auto": by the command's name."""
    model: str = ""
    """The agent's name of the model to use; empty: its own choice."""

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            raise ValueError('command: expected the words that start the agent, such as ["opencode", "acp"]')
        if self.profile != "auto" and self.profile not in PROFILES:
            raise ValueError(f"profile: expected one of auto, {', '.join(PROFILES)}")
        if not all(isinstance(value, str) for value in self.env.values()):
            raise ValueError("env: expected a table of strings")
        AgentOptions.__post_init__(self)

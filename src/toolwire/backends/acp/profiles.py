"""The options of ACP agents, and what Toolwire knows about each agent, as data.

A profile disables an agent's own tools. If a profile is outdated, an agent may still request permission for
such tools, and Toolwire refuses these requests.
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
    """An agent that Toolwire knows.

    `name` is the value of the option `profile`. `start` is the agent's usual command.
    """

    name: str
    title: str
    start: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    """Other names of the agent's program."""
    install: str = ""
    log_in: str = ""
    arguments: tuple[str, ...] = ()
    """Arguments that Toolwire adds to the agent's command."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for the agent, unless the operator sets them. {home} means the agent's home."""
    config: tuple[str, Mapping[str, Any]] | None = None
    """An environment variable that contains JSON, and the values that are merged into it."""
    config_dropped: tuple[str, ...] = ()
    """Paths of keys that are removed from the operator's JSON, because they enable features.

    `*` in a path matches any key: `a.*.b`.
    """
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """JSON files in the agent's home.

    A list entry with {tool} is repeated for each of the client's tools.
    """
    meta: Mapping[str, Any] = field(default_factory=dict)
    """The field `_meta` of the request session/new."""
    mode: str = ""
    """The session mode to set, if the agent offers it."""
    shown: tuple[str, ...] = ("{server}_{tool}",)
    """Patterns of the names that the agent gives a client's tool.

    The agent's model sees the name of the first pattern. Requests for permission may use any of the names.
    """
    approvals: tuple[str, ...] = ()
    """Titles of permission requests that do not contain the tool's name.

    For such a request, Toolwire finds the tool by the id of the call, which the agent has announced.
    """
    longest: int = 64
    """The maximum number of characters in a tool's name, including the agent's prefix."""
    announces: bool = False
    """Whether the agent announces all calls of an answer before the first call is made, or soon after.

    Toolwire then waits until all announced calls have reached the MCP server.
    """
    login: tuple[str, ...] = ()
    """Paths of login files, below the person's home.

    They are linked into the agent's home. Toolwire never reads them.
    """
    authenticate: Mapping[str, str] = field(default_factory=dict)
    """Authentication methods that need no person, each with the environment variable that it needs."""
    model_by: tuple[Literal["arguments", "environment", "config", "session"], tuple[str, ...]] = (
        "session",
        (),
    )
    """How the agent gets the model's name, and the details of this method.

    The name is passed in an argument that contains {model}, in an environment variable, in the config, or as
    a session option.
    """


_CODEX_OFF = "apply_patch_freeform view_image_tool collab js_repl code_mode".split()
_CODEX_SETTINGS: dict[str, Any] = {
    **{key: value for key, value in {**ALWAYS, **SINCE_BARE}.items() if key != "model_provider"},
    **dict.fromkeys(("include_apply_patch_tool", "tools.view_image"), False),
    **{f"features.{name}": False for name in _CODEX_OFF},
}
"""The settings of Codex's app-server, and settings against features that the ACP adapter adds."""

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
                "permission": {"*": "deny", f"{SERVER}_*": "allow"},  # the last rule that matches decides
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
    """Returns the profile with this name.

    For "auto", returns the profile of the first known program in the command. The command may begin with npx
    or another launcher.
    """
    if name != "auto":
        return PROFILES[name]
    programs = {program: profile for profile in _KNOWN for program in (profile.start[0], *profile.programs)}
    for word in command:
        program = re.sub(r"@[^/@]*\Z", "", PurePath(word).name).removesuffix(".js").removesuffix(".exe")
        if program in programs:
            return programs[program]
    return _OTHER


def shown_names(profile: AgentProfile, tools: Collection[str]) -> dict[str, str]:
    """Returns a mapping from each name that the agent may use for a tool to the client's name."""
    out: dict[str, str] = {}
    for tool in tools:
        for pattern in profile.shown:
            out.setdefault(pattern.format(server=SERVER, tool=tool), tool)
            out.setdefault(pattern.format(server=SERVER, tool=_STRANGE.sub("_", tool)), tool)
    return out


def listed_names(profile: AgentProfile, tools: Sequence[str]) -> dict[str, str]:
    """Returns a mapping from each tool's name on the MCP server to the client's name.

    A name that would be too long with the agent's prefix is shortened.
    """
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
    """The command that starts the agent, with its arguments, such as ["opencode", "acp"]."""
    cwd: str = ""
    """The agent's working folder. If it is not set, each session gets a new, empty folder."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables for the agent.

    If `HOME` is one of them, the agent uses that home, otherwise a private one.
    """
    profile: str = "auto"
    """The name of a profile. "auto" chooses a profile by the name of the program in `command`."""
    model: str = ""
    """The agent's own name for the model. If it is not set, the agent chooses a model."""

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            raise ValueError('command: expected the words that start the agent, such as ["opencode", "acp"]')
        if self.profile != "auto" and self.profile not in PROFILES:
            raise ValueError(f"profile: expected one of auto, {', '.join(PROFILES)}")
        if not all(isinstance(value, str) for value in self.env.values()):
            raise ValueError("env: expected a table of strings")
        AgentOptions.__post_init__(self)

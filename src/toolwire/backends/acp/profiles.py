"""What is known of each agent, as data, and the options and launch of an agent. Standard library only.

A profile only takes powers away. Where one is outdated, Toolwire still refuses what the agent requests.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

from toolwire.backends.agents import check_numbers
from toolwire.core.errors import ToolwireError

SERVER = "client"
"""What the agent knows the client's tools by: the name of their MCP server."""
PLAIN = "You are a helpful assistant. Follow the instructions and use the tools that you are given."
_STRANGE = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """`name` is what `profile = …` takes, `commands` are the programs that it is chosen by."""

    name: str
    title: str
    commands: tuple[str, ...] = ()
    install: str = ""
    """The command that installs the agent."""
    log_in: str = ""
    """What a person does who must log in."""
    arguments: tuple[str, ...] = ()
    """More arguments of the command."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables, where the operator did not give them. {home} is the agent's home."""
    config: tuple[str, Mapping[str, Any]] | None = None
    """A variable with JSON, and what is merged into the operator's value, ours last."""
    config_dropped: tuple[str, ...] = ()
    """Keys of that JSON that would give powers back: the operator's are dropped. `a.*.b` is a path."""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """JSON files in the agent's home. A list entry with {tool} is repeated for each of the client's tools."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """`_meta` of session/new."""
    mode: str = ""
    """The session's mode, where the agent has such a one."""
    shown: tuple[str, ...] = ("{server}_{tool}",)
    """The agent's names of a client's tool: first to its model, then in requests for permission."""
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


_CODEX_OFF: tuple[str, ...] = (
    'web_search="disabled"',
    'approval_policy="never"',
    'sandbox_mode="read-only"',
    "check_for_update_on_startup=false",
    "project_doc_max_bytes=0",
    "tool_output_token_limit=2000000",
    "analytics.enabled=false",
    'history.persistence="none"',
    "skills.include_instructions=false",
    "skills.bundled.enabled=false",
    "tools.view_image=false",
    "tools.update_plan.enabled=false",
    "tools.experimental_request_user_input.enabled=false",
    "include_apply_patch_tool=false",
    *(
        f"include_{what}=false"
        for what in (
            "permissions_instructions",
            "apps_instructions",
            "collaboration_mode_instructions",
            "environment_context",
        )
    ),
    *(
        f"features.{name}=false"
        for name in (
            "shell_tool unified_exec shell_snapshot apply_patch_freeform view_image_tool multi_agent collab "
            "goals image_generation apps plugins tool_suggest hooks memories skill_search js_repl code_mode "
            "view_image"
        ).split()
    ),
)

_KNOWN = (
    AgentProfile(
        "opencode",
        "OpenCode",
        ("opencode",),
        install="npm install -g opencode-ai",
        log_in="opencode auth login",
        environment={
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
            "OPENCODE_DISABLE_CLAUDE_CODE": "1",
            "OPENCODE_DISABLE_EXTERNAL_SKILLS": "1",
            "OPENCODE_DB": ":memory:",
            "OPENCODE_PURE": "1",
        },
        config=(
            "OPENCODE_CONFIG_CONTENT",
            {
                "permission": {"*": "deny", f"{SERVER}_*": "allow"},  # the last rule that fits holds
                "agent": {"title": {"disable": True}, "build": {"prompt": PLAIN}},
                "default_agent": "build",
                "share": "disabled",
                "autoupdate": False,
                "snapshot": False,
                "lsp": False,
                "formatter": False,
                "tool_output": {"max_lines": 100_000_000, "max_bytes": 1_000_000_000},
                "experimental": {"mcp_timeout": 24 * 3600 * 1000},
            },
        ),
        config_dropped=(
            "permission",
            "tools",
            "mcp",
            "plugin",
            "mode",
            "agent.*.permission",
            "agent.*.tools",
        ),
        announces=True,
        login=(".local/share/opencode/auth.json",),
        model_by=("config", ("model",)),
    ),
    AgentProfile(
        "gemini",
        "Gemini CLI",
        ("gemini",),
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
        arguments=tuple(word for setting in _CODEX_OFF for word in ("-c", setting)),
        shown=("mcp__{server}__{tool}", "Tool: {server}/{tool}", "{server}.{tool}"),
        approvals=("Approve MCP tool call",),
        login=(".codex/auth.json",),
        authenticate={"openai-api-key": "OPENAI_API_KEY", "codex-api-key": "CODEX_API_KEY"},
        model_by=("arguments", ("-c", 'model="{model}"')),
    ),
    AgentProfile(
        "claude-code-acp",
        "Claude Code",
        ("claude-code-acp", "claude-agent-acp"),
        install="npm install -g @zed-industries/claude-code-acp",
        log_in="claude /login, or set ANTHROPIC_API_KEY in the model's env",
        environment={
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "MCP_TOOL_TIMEOUT": str(24 * 3600 * 1000),
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
        ("agent", "cursor-agent"),
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
PROFILES: dict[str, AgentProfile] = {
    profile.name: profile
    for profile in (*_KNOWN, AgentProfile("other", "The agent", shown=("{tool}", *_ANY_SHOWN), longest=50))
}


def profile_of(name: str, command: Sequence[str]) -> AgentProfile:
    """By name, or for "auto" by the first known program in the command, which may begin with npx."""
    if name != "auto":
        return PROFILES[name]
    programs = {program: profile for profile in _KNOWN for program in profile.commands}
    for word in command:
        program = re.sub(r"@[^/@]*\Z", "", PurePath(word).name).removesuffix(".js").removesuffix(".exe")
        if program in programs:
            return programs[program]
        if program in ("opencode-ai", "gemini-cli"):
            return programs[program.removesuffix("-ai").removesuffix("-cli")]
    return PROFILES["other"]


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
        number = 1
        cut = tool
        while len(cut) > room or (cut in out and out[cut] != tool):
            end = f"_{number}"
            cut, number = tool[: room - len(end)] + end, number + 1
        out[cut] = tool
    return out


# --- options ---
#
# The keys of `[models.ID]` with `backend = "acp"`. Standard library only.


@dataclass(frozen=True, slots=True)
class AcpOptions:
    """A bad value raises `ValueError` with one line that names the key."""

    command: tuple[str, ...]
    """The command that starts the agent, and its arguments: ["opencode", "acp"]."""
    cwd: str = ""
    """The folder that the agent works in; empty: a fresh, empty one for every session."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables for the agent. With a `HOME` the agent uses that home, else a private one."""
    profile: str = "auto"
    """What is known of the agent: "auto" goes by the command's name."""
    model: str = ""
    """The model that the agent shall use, as it calls it; empty: its own choice."""
    settle_ms: int = 200
    """How long silence must last to end a response with calls."""
    repeats: int = 8
    """How often an agent may repeat the same call before it is stopped."""
    idle_s: float = 300.0
    """How long an agent waits for the next turn of its conversation."""
    sessions: int = 4
    """How many agents wait for their next turn at most; each is a process. 0: none."""
    timeout_s: float = 300.0
    """How long the agent may be silent while it works."""
    start_timeout_s: float = 60.0
    """How long the agent may take to start, and to open a session."""

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            raise ValueError('command: expected the words that start the agent, such as ["opencode", "acp"]')
        if self.profile != "auto" and self.profile not in PROFILES:
            raise ValueError(f"profile: expected one of auto, {', '.join(PROFILES)}")
        if not all(isinstance(value, str) for value in self.env.values()):
            raise ValueError("env: expected a table of strings")
        check_numbers(
            self, {"settle_ms": 0, "repeats": 1, "sessions": 0}, ("idle_s", "timeout_s", "start_timeout_s")
        )


# --- launch ---
#
# Profile × options → command, environment and files. Pure. Toolwire's settings override those of the
# operator that would give the agent tools of its own.

PASSED_ON = (
    "PATH LANG LC_ALL TZ SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS "
    "HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy"
).split()
"""The gateway's variables that an agent gets."""
LOOPBACK = "127.0.0.1,localhost"


@dataclass(frozen=True, slots=True)
class Launch:
    """`secrets` are the values that must not stand in any message."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]
    secrets: frozenset[str]


def find(options: AcpOptions, profile: AgentProfile) -> str:
    """The program's path, or a clear error."""
    word = os.path.expanduser(options.command[0])
    found = shutil.which(word, path=options.env.get("PATH"))
    if found is None:
        how = f" Install it with: {profile.install}" if profile.install else ""
        raise ToolwireError(
            "backend_unavailable",
            f"{profile.title} is not installed: the command {word!r} was not found.{how}",
        )
    return os.path.abspath(found)


def launch(
    options: AcpOptions,
    profile: AgentProfile,
    program: str,
    home: str,
    tmp: str,
    environ: Mapping[str, str],
    tools: Sequence[str] = (),
) -> Launch:
    """`home` and `tmp` are the agent's private folders, `tools` the client's tools as listed."""
    env = {name: environ[name] for name in PASSED_ON if name in environ}
    env |= {
        "HOME": home,
        "TMPDIR": tmp,
        **{name: value.format(home=home) for name, value in profile.environment.items()},
        **options.env,
    }
    for name in ("NO_PROXY", "no_proxy"):  # the client's tools are on loopback
        env[name] = ",".join(filter(None, (env.get(name, ""), LOOPBACK)))
    command = [program, *options.command[1:], *profile.arguments]
    overlay: dict[str, Any] = {}
    how, words = profile.model_by
    if options.model and how == "arguments":
        command += [word.format(model=options.model) for word in words]
    elif options.model and how == "environment":
        env[words[0]] = options.model
    elif options.model and how == "config":
        overlay[words[0]] = options.model
    if profile.config is not None:
        variable, ours = profile.config
        env[variable] = json.dumps(
            merged(without(_given(variable, options.env), profile.config_dropped), {**ours, **overlay})
        )
    files = {
        f"{home}/{path}": json.dumps(_for_each(content, tools)) for path, content in profile.files.items()
    }
    secrets = frozenset(value for value in options.env.values() if len(value) >= 8)
    return Launch(tuple(command), env, files, secrets)


def _for_each(value: Any, tools: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _for_each(one, tools) for key, one in value.items()}
    if not isinstance(value, list):
        return value
    patterns = [one for one in value if isinstance(one, str) and "{tool}" in one]
    return [
        *(one for one in value if one not in patterns),
        *(pattern.replace("{tool}", tool) for pattern in patterns for tool in tools),
    ]


def _given(variable: str, env: Mapping[str, str]) -> dict[str, Any]:
    if not env.get(variable):
        return {}
    try:
        value = json.loads(env[variable])
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ToolwireError("backend_unavailable", f"env.{variable} of the model is not a JSON object.")
    return value


def merged(given: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged, anything else is ours. Ours stand last, also in order: some agents go by it."""
    out = {key: value for key, value in given.items() if key not in ours}
    for key, value in ours.items():
        theirs = given.get(key)
        out[key] = (
            merged(theirs, value) if isinstance(theirs, Mapping) and isinstance(value, Mapping) else value
        )
    return out


def without(given: Mapping[str, Any], dropped: Sequence[str]) -> dict[str, Any]:
    """The table without some keys: `a`, `a.b`, or `a.*.b`."""
    out = dict(given)
    for path in dropped:
        head, _, rest = path.partition(".")
        for key in list(out) if head == "*" else [head] if head in out else []:
            if not rest:
                del out[key]
            elif isinstance(out[key], Mapping):
                out[key] = without(out[key], (rest,))
    return out

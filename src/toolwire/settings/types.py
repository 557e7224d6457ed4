"""The settings as types: sections, keys, defaults and ranges.

Precedence, highest first: command line, environment (`TOOLWIRE_SECTION__KEY`), settings file, the settings
page's file. Secrets are written as `env:NAME` or `file:PATH`; `settings.load` resolves them. This module
imports only the standard library.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple


class ConfigError(Exception):
    """Raised for invalid settings.

    The one-line message says where the mistake is, in which key, and what was expected.
    """


class Range(NamedTuple):
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ServerSettings:
    host: str = "127.0.0.1"
    port: Annotated[int, Range(0, 65535)] = 8788
    keys: tuple[str, ...] = ()
    admin_keys: tuple[str, ...] = ()
    """Keys that may also use the web pages."""
    workers: Annotated[int, Range(1, 256)] = 1
    commit_after_s: Annotated[float, Range(0, 3600)] = 10.0
    keep_alive_s: Annotated[float, Range(0.01, 3600)] = 15.0
    drain_s: Annotated[float, Range(0, 86400)] = 30.0
    max_body_mb: Annotated[float, Range(0.001, 1024)] = 32.0
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    discover: Literal["auto", "on", "off"] = "auto"
    """Whether to offer the models found on this machine. auto: only if the server is for one person."""
    open_responses: bool = False
    """Whether responses contain keys that only the Open Responses specification requires."""
    advertise: str = ""
    """The address for other nodes: `host:port` or a URL. If it is empty, they use `host` and `port`."""
    node_secret: str = ""
    """The secret with which the nodes sign their requests to each other. It is the same on all nodes."""
    tls_cert: str = ""
    """A PEM file with the certificate and its chain. With `tls_key`, the server uses TLS."""
    tls_key: str = ""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies whose X-Forwarded-For, -Proto and -Host are trusted."""


@dataclass(frozen=True, slots=True)
class ToolSettings:
    stop_after: Literal["auto", "off", "first", "burst"] = "auto"
    stop_grace_ms: Annotated[int, Range(0, 600_000)] = 0
    max_calls: Annotated[int, Range(0, 1_000_000)] = 0
    dedup: bool = False
    suppress_tail: Literal["auto", "on", "off"] = "auto"
    parallel: bool = True
    unknown_tool: Literal["text", "forward", "error"] = "text"
    arguments: Literal["auto", "eager", "validated"] = "auto"
    strict_sentinel: bool = False
    reasoning: Literal["split", "text"] = "split"
    output_mode: Literal["openai-json", "obsidian-xml"] = "openai-json"
    delimiter: str = ""


@dataclass(frozen=True, slots=True)
class ParkedSettings:
    ttl_s: Annotated[float, Range(0, 30 * 86400)] = 600.0
    max_per_key: Annotated[int, Range(0, 1_000_000)] = 64


@dataclass(frozen=True, slots=True)
class JournalSettings:
    contents: Literal["memory", "disk", "off"] = "memory"
    max_mb: Annotated[float, Range(0, 1_000_000)] = 256.0
    max_days: Annotated[int, Range(0, 36_500)] = 0
    """After how many days a turn is deleted. 0: only when the journal has reached `max_mb`."""


@dataclass(frozen=True, slots=True)
class VaultSettings:
    root: str = "~/notes"
    enabled: bool = False
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    models: tuple[str, ...] = ("*",)
    """The models that may get the vault's tools: ids, or patterns with `*`."""


@dataclass(frozen=True, slots=True)
class ApprovalSettings:
    command_line: Literal["code", "open"] = "code"
    """What `toolwire approvals approve` needs: the approval code, or nothing.

    With "open", every program of the same user can approve calls.
    """


@dataclass(frozen=True, slots=True)
class NoticeSettings:
    """A notice, from the table `[notices.NAME]`: where to send messages about waiting approval requests."""

    name: str
    kind: Literal["webhook", "ntfy"] = "webhook"
    url: str = ""
    """webhook: the address that receives the messages. ntfy: the address of the ntfy server."""
    secret: str = ""
    """webhook: the secret that signs the messages and the receiver's answers."""
    topic: str = ""
    token: str = ""
    """ntfy: an access token. It should be able to write to the topic, but not to read it."""
    level: Literal["notice", "link", "buttons"] = "notice"
    """notice: the message says who asks for which tool.

    link: the message also has a link to a page for the decision. buttons: the message has this link and
    buttons.
    """
    detail: Literal["name", "full"] = "name"
    """full: the message also has the call's arguments, and says what the call would touch."""
    approve: bool = False
    """Whether messages that show the whole call may have a button that approves it."""
    pages: str = ""
    """The address at which the person who gets the message can open Toolwire's web pages."""
    after_s: Annotated[float, Range(0, 3600)] = 10.0
    """How long a question waits before the message is sent."""
    terminal: bool = False
    """Whether to send messages also for questions that `toolwire chat`, `ask`, `note` or `tour` shows."""
    hidden: tuple[str, ...] = field(default=(), repr=False)
    """Values that are never shown: secret, topic and token, and a url that came from `env:` or `file:`."""
    problem: str = ""
    """Why no messages are sent, such as a missing secret; "" if the settings are valid."""
    where: str = field(default="", compare=False)
    """Where the notice is configured: a file or an environment variable."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    url: str = "sqlite:///~/.local/share/toolwire/toolwire.db"
    redis: str = ""
    retention_days: Annotated[int, Range(0, 36_500)] = 0
    """After how many days stored responses and unchanged conversations are deleted. 0: never."""


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Limits. 0 means no limit, except for `queue`: `queue = 0` means that no turn may wait.

    The first four limits apply to each key that has no such limit of its own.
    """

    requests_per_minute: Annotated[int, Range(0, 10_000_000)] = 0
    tokens_per_minute: Annotated[int, Range(0, 100_000_000)] = 0
    concurrent: Annotated[int, Range(0, 1_000_000)] = 0
    parked: Annotated[int, Range(0, 1_000_000)] = 0
    queue: Annotated[int, Range(0, 1_000_000)] = 64
    backend_concurrent: Annotated[int, Range(0, 1_000_000)] = 0
    first_token_s: Annotated[float, Range(0, 86400)] = 0.0
    idle_s: Annotated[float, Range(0, 86400)] = 0.0
    total_s: Annotated[float, Range(0, 7 * 86400)] = 0.0
    slow_reader_s: Annotated[float, Range(0, 86400)] = 60.0
    body_nodes: Annotated[int, Range(0, 100_000_000)] = 200_000
    messages: Annotated[int, Range(0, 10_000_000)] = 10_000
    tools: Annotated[int, Range(0, 1_000_000)] = 1_000


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """OpenTelemetry traces.

    `otlp`: the URL of a collector (OTLP over HTTP). If it is empty, no traces are sent.
    """

    otlp: str = ""
    service: str = "toolwire"
    sample_percent: Annotated[float, Range(0, 100)] = 100.0
    with_contents: bool = False
    """Whether spans include the text of messages."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """A model: the table `[models.ID]`.

    `options`: the keys of the model's backend, checked by that backend's options class. `secret`: the names
    of options whose value came from `env:` or `file:`. These values are never shown.
    """

    id: str
    backend: str
    options: dict[str, Any] = field(default_factory=dict)
    secret: frozenset[str] = frozenset()
    fallback: tuple[str, ...] = ()
    """The ids of the models to use if this model fails before the first byte, in order."""
    problem: str = ""
    """Why the model cannot be used, such as a missing key; "" if its settings are valid."""
    where: str = field(default="", compare=False)
    """Where the model is configured: a file or an environment variable."""
    found: bool = field(default=False, compare=False)
    """Whether Toolwire found the model on this machine. Such a model is not in the settings."""


@dataclass(frozen=True, slots=True)
class McpServerSettings:
    """An MCP server: the table `[mcp.NAME]`. Either `command` (stdio) or `url` (streamable HTTP) is set."""

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for the command. It also gets `PATH`, locale and time zone, but no others."""
    headers: Mapping[str, str] = field(default_factory=dict)
    tools: tuple[str, ...] = ("*",)
    """Patterns for names of tools. Only tools that match a pattern are offered."""
    default: Literal["ask", "allow", "deny"] = "ask"
    """What happens to a call to which no rule applies."""
    deny: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    page_allow: tuple[str, ...] = ()
    """Further allow rules, which the web pages have saved (`settings/page_file.py`)."""
    share: Literal["run", "ask"] = "run"
    """"ask": after each call, a second question shows the result before the model gets it."""
    api: bool = False
    """Whether API clients may use the server, by its name, in the Responses tool `mcp`."""
    start_s: Annotated[float, Range(0.1, 3600)] = 30.0
    call_s: Annotated[float, Range(0.1, 86400)] = 60.0
    ad_hoc: bool = False
    """Whether the server is not in the settings, but was named by a command line or an API client."""
    folder: str = field(default="", compare=False)
    """The working folder of the command: the settings file's folder, or "" for the user's home folder."""
    secret: tuple[str, ...] = field(default=(), repr=False)
    """Values that came from `env:` or `file:`, and the values of all headers. They are never shown."""
    problem: str = ""
    """Why the server cannot be used, such as a missing secret; "" if its settings are valid."""
    where: str = field(default="", compare=False)
    """Where the server is configured: a file or an environment variable."""

    @property
    def source(self) -> str:
        """The identity of the server, which is stored with pins (`tools/mcp/pins.py`) and approvals.

        Two ad hoc servers may have the same name, so the identity of an ad hoc server contains its address.
        """
        if not self.ad_hoc:
            return f"mcp:{self.name}"
        address = json.dumps([*self.command, self.url])
        return f"mcp:{self.name}@{hashlib.sha256(address.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class McpSettings:
    """MCP servers. `urls`: patterns of URLs that API clients may use in the Responses tool `mcp`."""

    servers: tuple[McpServerSettings, ...] = ()
    urls: tuple[str, ...] = ()


DEFAULT_MODELS = (ModelSettings("demo", "scripted"),)
"""The models if the settings have none: only the demo, which needs no key, account or network."""


@dataclass(frozen=True, slots=True)
class Settings:
    server: ServerSettings = ServerSettings()
    tools: ToolSettings = ToolSettings()
    parked: ParkedSettings = ParkedSettings()
    journal: JournalSettings = JournalSettings()
    vault: VaultSettings = VaultSettings()
    approvals: ApprovalSettings = ApprovalSettings()
    store: StoreSettings = StoreSettings()
    limits: LimitSettings = LimitSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    mcp: McpSettings = McpSettings()
    notices: tuple[NoticeSettings, ...] = ()
    models: tuple[ModelSettings, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    """Other names of models: a name or pattern, and the id of the model. The first match is used."""
    file: str = ""
    """The path of the settings file; "" if there is none."""
    page_file: str = field(default="", compare=False)
    """The path of the file that the settings page writes; "" if the page cannot write a file."""
    page_problem: str = field(default="", compare=False)
    """Why the settings page's file is ignored; "" if there is no problem."""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Where `vault.root` and each model (`models.ID`) is set: a file or an environment variable."""


SECTIONS: dict[str, type[Any]] = {
    one.name: type(one.default) for one in fields(Settings) if is_dataclass(one.default) and one.name != "mcp"
}
"""The tables of the settings file with fixed keys, by name.

The tables `mcp`, `models`, `notices` and `aliases` are not here, because users choose names in them.
"""


@lru_cache(1024)
def is_loopback(host: str) -> bool:
    """Returns whether a host name or address always means this machine.

    These are `localhost`, 127.0.0.0/8 and ::1.
    """
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


# --- printing

MASK = "***"
_SECRET_NAME = re.compile(r"(?i)(^|[_-])(api_?keys?|keys?|tokens?|secrets?|passwords?|authorization|cookie)$")
_PUBLIC_NAMES = ("env_key", "max_per_key", "tls_key")  # their values are not secrets
_URL_PASSWORD = re.compile(r"(?<=://)([^/@:\s]*):([^/@\s]*)@")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def print_config(settings: Settings) -> str:
    """Returns the current settings as TOML, with secrets masked."""
    lines: list[str] = []
    for name, cls in SECTIONS.items():
        section = getattr(settings, name)
        lines.append(f"[{name}]")
        lines += [f"{f.name} = {to_toml(_masked(f.name, getattr(section, f.name)))}" for f in fields(cls)]
        lines.append("")
    for model in settings.models:
        if model.problem:
            lines.append(f"# not available: {model.problem}")
        lines += [f"[models.{toml_key(model.id)}]", f"backend = {to_toml(model.backend)}"]
        if model.fallback:
            lines.append(f"fallback = {to_toml(model.fallback)}")
        for key, value in model.options.items():
            shown = _hide(value) if key in model.secret else _masked(key, value)
            lines.append(f"{toml_key(key)} = {to_toml(shown)}")
        lines.append("")
    if settings.mcp != McpSettings():
        lines += ["[mcp]", f"urls = {to_toml(settings.mcp.urls)}", ""]
    for server in settings.mcp.servers:
        lines += [*([f"# not available: {server.problem}"] if server.problem else []), *_mcp_lines(server)]
    for notice in settings.notices:
        if notice.problem:
            lines.append(f"# not available: {notice.problem}")
        lines.append(f"[notices.{notice.name}]")
        given = {one.name: getattr(notice, one.name) for one in fields(notice)[1:-3]}
        shown = {key: _hide(value) if value in notice.hidden else value for key, value in given.items()}
        lines += [f"{key} = {to_toml(value)}" for key, value in shown.items() if value != ""]
        lines.append("")
    if settings.aliases:
        lines.append("[aliases]")
        lines += [f"{toml_key(name)} = {to_toml(model)}" for name, model in settings.aliases]
        lines.append("")
    return "\n".join(lines)


def _mcp_lines(server: McpServerSettings) -> list[str]:
    lines = [f"[mcp.{toml_key(server.name)}]"]
    server = replace(server, allow=(*server.allow, *server.page_allow), page_allow=())
    for one in fields(server)[1:]:
        value = getattr(server, one.name)
        if one.compare and one.name not in ("secret", "problem", "ad_hoc") and value:
            shown = (
                {key: _hide(text) if text in server.secret else text for key, text in value.items()}
                if isinstance(value, Mapping)
                else value
            )
            lines.append(f"{one.name} = {to_toml(_masked(one.name, shown))}")
    return [*lines, ""]


def _masked(name: str, value: Any) -> Any:
    """Returns the value with its secrets masked: all values of secret keys, and passwords in URLs."""
    if name == "headers" or (name not in _PUBLIC_NAMES and _SECRET_NAME.search(name)):
        return _hide(value)
    if isinstance(value, Mapping):
        return {k: _masked(k, v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_masked("", v) for v in value]
    return _URL_PASSWORD.sub(rf"\1:{MASK}@", value) if isinstance(value, str) else value


def _hide(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _hide(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_hide(v) for v in value]
    return MASK if isinstance(value, str) and value else value


def to_toml(value: Any) -> str:
    """Returns a value as TOML."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_key(k)} = {to_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(to_toml(v) for v in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e6:
        return f"{value:g}"
    return str(value)


def toml_key(key: str) -> str:
    """Returns a key as TOML, in quotes if necessary."""
    return key if _BARE_KEY.fullmatch(key) else to_toml(key)

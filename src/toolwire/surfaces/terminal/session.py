"""The parts that chat, ask, note and tour share: gateway, store, approvals, and the tools."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolwire.core.display import counted, one_line
from toolwire.core.ids import random_id
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.discover import with_discovered
from toolwire.settings.extras import add_extra
from toolwire.settings.load import load
from toolwire.settings.types import ConfigError, Settings
from toolwire.store.store import Store
from toolwire.surfaces.notices.notifier import notices_of
from toolwire.surfaces.terminal.screen import Screen, has_extra
from toolwire.surfaces.terminal.surface import KeySurface, LineSurface, RuleSurface
from toolwire.tools import rules
from toolwire.tools.approvals import LIFETIME_S, Approvals, Surface
from toolwire.tools.consent import Proofs
from toolwire.tools.contract import Asking, Tool, source_of_vault, system_prompt
from toolwire.tools.executor import Executor, Toolbox
from toolwire.tools.loop import Conversation, GatewayModel, Message
from toolwire.tools.mcp import servers_of
from toolwire.vault.policy import PathRefused

if TYPE_CHECKING:
    from toolwire.tools.mcp.servers import McpServers, ServerState

MOST_MODELS = 12
"""How many models an error message lists."""
ToolSource = Callable[[Settings, Path], AbstractAsyncContextManager[Sequence[Tool]]]
"""A function that opens the tools of a vault. Its async context manager closes them at the end."""


@asynccontextmanager
async def vault_source(settings: Settings, root: Path) -> AsyncIterator[Sequence[Tool]]:
    """Yields the tools of a vault.

    On a terminal, a missing index is built first, with a progress bar.
    """
    if sys.stderr.isatty():
        from toolwire.surfaces.terminal.indexing import first_build

        await first_build(root, settings.vault.include, settings.vault.exclude)
    from toolwire.tools import vault_tools

    async with vault_tools.opened(settings, root) as tools:
        yield tools


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Returns the settings that `toolwire serve` would use, with the models found on this machine."""
    return with_discovered(load(arguments.config, os.environ, {}))


class TerminalSession:
    """The gateway, the store and the tools of one command, such as chat. `opened` creates a session.

    `name`: the name of the command.
    """

    def __init__(
        self,
        settings: Settings,
        gateway: Gateway,
        store: Store,
        source: ToolSource,
        name: str,
        lifetime_s: float,
    ) -> None:
        self.settings = settings
        self.gateway = gateway
        self.store = store
        proofs = Proofs(store, unproven=settings.approvals.command_line == "open")
        self.approvals = Approvals(store, lifetime_s=lifetime_s, proofs=proofs)
        self.id = random_id(f"{name}_")
        self.name = name
        self.vault: Path | None = None
        self.servers: McpServers | None = servers_of(settings.mcp, store)
        self.toolbox: Toolbox | None = None
        """The tools of the vault, and the tools that MCP servers last listed; None if there are no tools."""
        self._vault_tools: Toolbox | None = None
        self._foreign: Sequence[Tool] = ()
        self._shown_problems: set[str] = set()
        self._source = source
        self._tools = AsyncExitStack()

    # --- the vault ---

    async def open_vault(self, named: str | None) -> None:
        """Opens the vault `named`. If `named` is None, opens the vault in the settings.

        The vault in the settings is opened only if `vault.enabled` is set. A vault that the person names does
        not need this setting.
        """
        if named is None and not self.settings.vault.enabled:
            return
        root = Path(os.path.expanduser(named if named is not None else self.settings.vault.root))
        if not root.is_dir():
            raise ConfigError(f"{'--vault' if named is not None else 'vault.root'}: {root} is not a folder")
        stack = AsyncExitStack()
        try:
            toolbox = Toolbox(await stack.enter_async_context(self._source(self.settings, root.resolve())))
        except (OSError, PathRefused) as error:
            raise ConfigError(f"the vault {root} cannot be opened: {error}") from error
        await self.close_vault()
        self._tools, self._vault_tools, self.vault = stack, toolbox, root.resolve()
        self._join()

    async def close_vault(self) -> None:
        self._vault_tools = self.vault = None
        self._join()
        await self._tools.aclose()

    # --- MCP servers ---

    async def refresh_tools(self, *, wait: bool = False) -> bool:
        """Updates the tools of MCP servers. Returns whether they have changed.

        Starts the servers that are not running. `wait`: wait until every server has started or failed.
        """
        before = self._foreign
        if self.servers is not None:
            self._foreign = await self.servers.tools(wait=wait)
        if self._foreign != before:
            self._join()
        return self._foreign != before

    def _join(self) -> None:
        own, foreign = self._vault_tools, self._foreign
        self.toolbox = (own or Toolbox(())).joined(foreign) if foreign else own

    def server_states(self) -> list[ServerState]:
        return self.servers.states() if self.servers is not None else []

    def new_problems(self) -> list[str]:
        """Returns a line for each problem of an MCP server that no earlier call has returned."""
        lines = [
            f"MCP server {one_line(one.name, 40)}: {one_line(one.error, 300)}"
            for one in self.server_states()
            if one.error
        ]
        for one in self.server_states():
            if one.withheld:
                count = counted(len(one.withheld), "tool")
                how = f"toolwire mcp agree {one.name} shows the change"
                lines.append(f"MCP server {one.name}: not offered: {count}, new or changed; {how}")
        if self.settings.mcp.servers and find_spec("mcp") is None:
            lines.append(f"MCP servers need an extra: {add_extra('mcp')}")
        lines = [line for line in lines if line not in self._shown_problems]
        self._shown_problems.update(lines)
        return lines

    def print_problems(self) -> None:
        for line in self.new_problems():
            print(line, file=sys.stderr, flush=True)

    # --- the model ---

    def model(self, named: str | None) -> str:
        """Returns the model id or alias that `named` means; if `named` is None, the id of the first model.

        Raises `ConfigError` with a list of known ids if no model has this name.
        """
        known = self.gateway.catalog.listed()
        if named is None:
            if not known:
                raise ConfigError("there is no model to talk to: see toolwire doctor")
            return known[0]
        for name in _spellings(named):
            aliased = any(one.alias(name) is not None for one in self.gateway.models.values())
            if aliased or self.gateway.catalog.find(name) is not None:
                return name
        names = ", ".join(one_line(one, 80) for one in known[:MOST_MODELS])
        more = " …" if len(known) > MOST_MODELS else ""
        raise ConfigError(f"there is no model {one_line(named, 80)}; known: {names}{more}")

    def location(self, model: str) -> str:
        """Returns a text for error messages: the model, its address, and what to do."""
        ids = (model, model.partition("/")[0])
        options = next((one.options for one in self.settings.models if one.id in ids), {})
        url = f" at {options['base_url']}" if options.get("base_url") else ""
        return f"model {one_line(model, 80)}{url}; toolwire doctor shows what is wrong"

    def may_use_tools(self, model: str) -> bool:
        """Whether the model may use tools: `vault.models` allows this, and the model is large enough."""
        allowed = any(fnmatchcase(model, pattern) for pattern in self.settings.vault.models)
        return allowed and not self.gateway.catalog.about(model).no_tools

    def withheld(self, model: str) -> str:
        """Returns why the model gets no tools although the session has tools; "" if it gets them."""
        if self.toolbox is None or self.may_use_tools(model):
            return ""
        if reason := self.gateway.catalog.about(model).no_tools:
            return f"{one_line(model, 80)} gets no tools: {reason}"
        return f"{one_line(model, 80)} is not in vault.models, so it gets no tools"

    def print_withheld(self, model: str) -> None:
        if line := self.withheld(model):
            print(line, file=sys.stderr, flush=True)

    def surface(
        self, screen: Screen, stop: Callable[[], object], *, person: bool, allow: Sequence[str] = ()
    ) -> RuleSurface:
        """Returns the surface that decides calls by the `--allow` rules and, if `person`, by asking."""
        allowed = rules.parse(allow, self.toolbox.tools if self.toolbox is not None else ())
        if not person:
            return RuleSurface(self.approvals, allowed, lambda: self.toolbox)
        kind = KeySurface if has_extra() else LineSurface
        return kind(self.approvals, allowed, lambda: self.toolbox, screen, stop, self.name)

    def conversation(
        self,
        model: str,
        surface: Surface,
        *,
        messages: Sequence[Message] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Conversation:
        executor = None
        if self.toolbox is not None and self.may_use_tools(model):
            executor = Executor(self.toolbox, self.approvals, surface)
            prompt = system_prompt(self.toolbox.tools.values())
            if not any(one["role"] == "system" for one in messages):
                messages = [{"role": "system", "content": prompt}, *messages]
        asking = Asking(self.id, model, self.name, source=source_of_vault(str(self.vault or "")))
        gateway = GatewayModel(self.gateway)
        return Conversation(gateway, model, executor, asking, messages=messages, options=options)


def _spellings(named: str) -> list[str]:
    """Returns the ids that a name may mean.

    `provider@name`, which some clients write, may mean `provider/name` or only `name`.
    """
    provider, at, name = named.partition("@")
    return [named, f"{provider}/{name}", name] if at else [named]


@asynccontextmanager
async def opened(
    settings: Settings,
    vault: str | None,
    name: str,
    source: ToolSource | None = None,
    lifetime_s: float = LIFETIME_S,
) -> AsyncIterator[TerminalSession]:
    """Yields a session whose vault is open, and closes the session afterwards."""
    async with Store(settings.store.url) as store, AsyncExitStack() as closing:
        gateway = Gateway(settings, store=store)
        closing.push_async_callback(gateway.close)
        session = TerminalSession(settings, gateway, store, source or vault_source, name, lifetime_s)
        if session.servers is not None:
            closing.push_async_callback(session.servers.close)
        closing.push_async_callback(session.close_vault)
        if notices := notices_of([one for one in settings.notices if one.terminal], store, session.approvals):
            session.approvals.notices = notices
            closing.push_async_callback(notices.close)
        await gateway.start()
        await session.approvals.proofs.code.pin()
        await session.open_vault(vault)
        yield session


def person_is_here() -> bool:
    """Whether a person is at the keyboard and sees the output."""
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()


def interrupt() -> None:
    """Sends the signal of Ctrl-C, because a Ctrl-C that is read as a key sends none."""
    signal.raise_signal(signal.SIGINT)

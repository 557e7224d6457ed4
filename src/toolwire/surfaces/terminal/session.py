"""What chat, ask and note have in common: the gateway in this process, the store with its approvals, and the tools of the opened vault."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from toolwire.core.display import one_line
from toolwire.core.ids import random_id
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.discover import with_discovered
from toolwire.settings.load import load
from toolwire.settings.types import ConfigError, Settings
from toolwire.store.store import Store
from toolwire.tools.approvals import LIFETIME_S, Approvals, Surface
from toolwire.tools.contract import WITH_TOOLS, Asking, Tool
from toolwire.tools.executor import Executor, Toolbox
from toolwire.tools.loop import Budget, Conversation, GatewayModel, Message
from toolwire.vault.policy import PathRefused

ToolSource = Callable[[Settings, Path], AbstractAsyncContextManager[Sequence[Tool]]]
"""Opens the tools of a vault, and closes them."""


@asynccontextmanager
async def vault_source(settings: Settings, root: Path) -> AsyncIterator[Sequence[Tool]]:
    """The vault's own tools. The first build of its index is waited for, and shown, where somebody looks on."""
    if sys.stderr.isatty():
        from toolwire.surfaces.terminal.indexing import first_build

        await first_build(root, settings.vault.include, settings.vault.exclude)
    from toolwire.tools import vault_tools

    async with vault_tools.opened(settings, root) as tools:
        yield tools


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The same settings that `toolwire serve` has, the first run's discovery included."""
    return with_discovered(load(arguments.config, os.environ, {}))


class TerminalSession:
    """One conversation's surroundings. `opened` makes one."""

    def __init__(
        self,
        settings: Settings,
        gateway: Gateway,
        store: Store,
        approvals: Approvals,
        source: ToolSource,
        name: str,
    ) -> None:
        self.settings = settings
        self.gateway = gateway
        self.store = store
        self.approvals = approvals
        self.id = random_id(f"{name}_")
        self.name = name
        self.vault: Path | None = None
        self.toolbox: Toolbox | None = None
        self._source = source
        self._tools: AsyncExitStack | None = None

    # --- the vault -----------------------------------------------------------------------------------------------------------------------------

    async def open_vault(self, named: str | None) -> None:
        """The vault of the command line, which is itself the opt-in, or the one that the settings enable."""
        if named is None and not self.settings.vault.enabled:
            return
        root = Path(os.path.expanduser(named if named is not None else self.settings.vault.root))
        if not root.is_dir():
            raise ConfigError(f"{'--vault' if named is not None else 'vault.root'}: {root} is not a folder")
        stack = AsyncExitStack()
        try:
            toolbox = Toolbox(await stack.enter_async_context(self._source(self.settings, root.resolve())))
        except (OSError, PathRefused) as error:
            raise ConfigError(f"the vault {root} can not be opened: {error}") from error
        await self.close_vault()
        self._tools, self.toolbox, self.vault = stack, toolbox, root.resolve()

    async def close_vault(self) -> None:
        stack, self._tools, self.toolbox, self.vault = self._tools, None, None, None
        if stack is not None:
            await stack.aclose()

    # --- the model -----------------------------------------------------------------------------------------------------------------------------

    def model(self, named: str | None) -> str:
        """The id of a model that can be asked. Raises `ConfigError`, with the ids that there are."""
        known = self.gateway.catalog.listed()
        if named is None:
            if not known:
                raise ConfigError("no model is there to talk to: see toolwire doctor")
            return known[0]
        for name in _spellings(named):
            if self.gateway.catalog.find(name) is not None or any(
                one.alias(name) is not None for one in self.gateway.models.values()
            ):
                return name
        told = ", ".join(one_line(one, 80) for one in known[:12])
        raise ConfigError(
            f"there is no model {one_line(named, 80)}; known: {told}{' …' if len(known) > 12 else ''}"
        )

    def may_use_tools(self, model: str) -> bool:
        """The allow-list of models, `vault.models`."""
        return any(fnmatchcase(model, pattern) for pattern in self.settings.vault.models)

    def withheld(self, model: str) -> str:
        """That the opened vault is kept from this model, in words; "" where it is not, or where none is open."""
        if self.toolbox is None or self.may_use_tools(model):
            return ""
        return f"{one_line(model, 80)} is not in vault.models, so it gets no tools"

    def tell_withheld(self, model: str) -> None:
        if told := self.withheld(model):
            print(told, file=sys.stderr, flush=True)

    def conversation(
        self,
        model: str,
        surface: Surface | None,
        *,
        messages: Sequence[Message] = (),
        options: Mapping[str, Any] | None = None,
        budget: Budget | None = None,
    ) -> Conversation:
        executor = (
            Executor(self.toolbox, self.approvals, surface)
            if self.toolbox is not None and self.may_use_tools(model)
            else None
        )
        told = (
            [{"role": "system", "content": WITH_TOOLS}]
            if executor is not None and not any(one["role"] == "system" for one in messages)
            else []
        )
        asking = Asking(self.id, model, self.name, vault=str(self.vault or ""))
        return Conversation(
            GatewayModel(self.gateway),
            model,
            executor,
            asking,
            messages=[*told, *messages],
            budget=budget,
            options=options,
        )


def _spellings(named: str) -> list[str]:
    """As clients write a model: `provider@name` is `provider/name` here, or the name alone."""
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
    """A session, with its vault opened. Closing it closes all."""
    async with Store(settings.store.url) as store:
        gateway = Gateway(settings, store=store)
        try:
            await gateway.start()
            session = TerminalSession(
                settings,
                gateway,
                store,
                Approvals(store, lifetime_s=lifetime_s),
                source or vault_source,
                name,
            )
            try:
                await session.open_vault(vault)
                yield session
            finally:
                await session.close_vault()
        finally:
            await gateway.close()


def person_is_here() -> bool:
    """Whether somebody sits at both ends: at the keys and before the answer."""
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()


def interrupt() -> None:
    """Ctrl-C, where the terminal gave it as a key."""
    signal.raise_signal(signal.SIGINT)

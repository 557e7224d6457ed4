"""What there is of Codex on this machine: the facts that `toolwire doctor` tells."""

from __future__ import annotations

from typing import Any

from toolwire.backends.codex.backend import strategy_of
from toolwire.backends.codex.home import find_binary, prepare_home
from toolwire.backends.codex.login import HOW
from toolwire.backends.codex.options import CodexOptions
from toolwire.backends.codex.worker import Worker
from toolwire.errors import ToolwireError


async def inspect(options: CodexOptions) -> dict[str, Any]:
    """`installed`, `path`, `version`, `home`, `strategy`, `logged_in` (None: not known, or another provider's business), and in `problem` one line
    where something is missing. Nothing is asked of a model."""
    facts: dict[str, Any] = dict.fromkeys(("path", "version", "home", "strategy", "logged_in", "problem"))
    facts["installed"] = False
    try:
        facts["path"] = find_binary(options)
        facts["installed"] = True
        home = await prepare_home(options)
        facts.update(version=str(home.version), home=str(home.path), strategy=strategy_of(options, home.features))
        worker = Worker(home)
        try:
            async with home.warming():
                await worker.start(options.start_timeout_s)
            if options.provider is None:
                account = await worker.account()
                facts["logged_in"] = account.account is not None
                if not facts["logged_in"]:
                    facts["problem"] = f"Codex is not logged in. {HOW}"
        finally:
            await worker.close()
    except ToolwireError as error:
        facts["problem"] = error.failure.message
    return facts

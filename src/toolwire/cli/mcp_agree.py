"""`toolwire mcp agree SERVER`: shows tools that are new or have changed, and asks whether to offer them.

The command asks in the terminal. If you have set an approval code, it also asks for the code, because other
programs can run the command too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolwire.cli.mcp_list import chosen, opened
from toolwire.core.display import clean, counted, one_line
from toolwire.settings.load import load
from toolwire.settings.types import ConfigError, Settings

if TYPE_CHECKING:
    from toolwire.tools.mcp.pins import Withheld


def agree_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="the server's name in the settings, [mcp.NAME]")


def run_agree(arguments: argparse.Namespace) -> int:
    settings = chosen(load(arguments.config, os.environ, {}, exposed=False), arguments.server)
    return asyncio.run(_agree(settings, arguments.server))


async def _agree(settings: Settings, name: str) -> int:
    async with opened(settings) as servers:
        await servers.tools(wait=True)
        (state,) = servers.states()
        if state.error:
            raise ConfigError(f"MCP server {name}: {one_line(state.error, 600)}")
        if not state.withheld:
            print(f"{name}: no tool is new or has changed since you agreed")
            return 0
        agreed = [one for one in state.withheld if _asked(one)]
        if agreed:
            await _check_code(settings)
            await servers.agree(agreed)
        print(f"{name}: you agreed to {counted(len(agreed), 'tool')}: {_names(agreed)}")
    return 0


def _names(agreed: Sequence[Withheld]) -> str:
    return ", ".join(one_line(one.tool, 80) for one in agreed) or "nothing has changed"


def _asked(one: Withheld) -> bool:
    """Shows a definition, and returns whether the person agrees to it."""
    print(f"\n== {one.server}: {one_line(one.tool, 80)} is {one.why}. The text below comes from the server:")
    print(clean(one.diff))
    return _answer(f"Offer {one_line(one.tool, 80)}? Type yes to agree: ").strip().lower() == "yes"


def _answer(question: str) -> str:
    """Reads a line from the terminal of this process, never from a pipe."""
    try:
        with open("/dev/tty", "r+b", buffering=0) as terminal:
            terminal.write(question.encode())
            return terminal.readline().decode("utf-8", "replace")
    except OSError:
        raise ConfigError("mcp agree needs a terminal, where you see the change and answer") from None


async def _check_code(settings: Settings) -> None:
    """Asks for the approval code, if one is set."""
    from toolwire.store.store import Store
    from toolwire.surfaces.terminal.approvals import entered_code
    from toolwire.tools.consent import ApprovalCode, process_key

    async with Store(settings.store.url) as store:
        code = ApprovalCode(store, process_key())
        if await code.record() is not None:
            await entered_code(code)

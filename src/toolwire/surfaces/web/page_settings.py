"""Changes the file that the settings page writes (`settings/page_file.py`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from toolwire.core.errors import ToolwireError
from toolwire.settings import page_file
from toolwire.settings.types import Settings
from toolwire.surfaces.web.context import Web


def locked(settings: Settings) -> str:
    """Returns why the pages cannot change settings; "" if they can."""
    if settings.store.url.startswith("postgres"):
        return "This server shares its database with others. Set models and the vault in toolwire.toml."
    return "" if settings.page_file else "This server has no folder in which this page could save settings."


def restart_needed(settings: Settings) -> str:
    """Returns a message if a change on the page needs a restart of the server; "" if not."""
    several = settings.server.workers > 1
    return "This server has several worker processes. Restart it to apply a change." if several else ""


@asynccontextmanager
async def page_change(web: Web) -> AsyncIterator[tuple[Path, page_file.PageSettings]]:
    """Yields the path and the content of the page's file.

    Other changes of the file wait until the `with` block ends.
    """
    if why := locked(web.settings):
        raise ToolwireError("invalid_request", why)
    async with web.changing:
        try:
            yield Path(web.settings.page_file), page_settings(web)
        except page_file.PageFileError as error:
            raise ToolwireError("server", f"The settings were not saved: {error}.") from None


def page_settings(web: Web) -> page_file.PageSettings:
    try:
        return page_file.read(Path(web.settings.page_file))
    except page_file.PageFileError:
        return page_file.PageSettings()  # `write` keeps the damaged file under another name

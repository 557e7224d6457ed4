"""The API of the settings page: the switch for tool calling, and the models that may use tools."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from toolwire.core.errors import ToolwireError
from toolwire.settings.types import print_config
from toolwire.surfaces.web.context import Row, Web, body, field

MOST_PATTERNS = 1000


class SettingsApi:
    def __init__(self, web: Web) -> None:
        self._web = web

    def routes(self) -> list[Row]:
        return [("GET", "/settings", self.show), ("PUT", "/settings", self.change)]

    async def show(self, request: Request) -> dict[str, Any]:
        settings, tools = self._web.settings, self._web.tools
        journal = self._web.gateway.journal
        return {
            "tool_calling": tools.enabled,
            "tool_models": tools.models,
            "vault": {
                "root": str(tools.root),
                "exists": tools.root.is_dir(),
                "include": list(settings.vault.include),
                "exclude": list(settings.vault.exclude),
                "enabled_in_file": settings.vault.enabled,
                "open": tools.toolbox is not None,
                "error": tools.error,
            },
            "journal": {
                "contents": settings.journal.contents,
                "max_mb": settings.journal.max_mb,
                "path": str(getattr(journal, "folder", None) or ""),
            },
            "config": print_config(settings),
            "config_path": settings.file,
        }

    async def change(self, request: Request) -> dict[str, Any]:
        given, preferences = await body(request), self._web.preferences
        enabled, models = field(given, "tool_calling", bool), field(given, "tool_models", list)
        if models is not None:
            patterns = [one.strip() for one in models if isinstance(one, str) and one.strip()]
            if (
                len(patterns) > MOST_PATTERNS
                or any(len(one) > 200 for one in patterns)
                or not all(isinstance(one, str) for one in models)
            ):
                raise ToolwireError(
                    "invalid_value", "Expected a list of model ids, or patterns with *.", param="tool_models"
                )
            await preferences.set("tool_models", patterns)
        if enabled is not None:
            await preferences.set("tool_calling", enabled)
            await self._web.tools.refresh()
        self._web.hub.publish("settings", {})
        return await self.show(request)

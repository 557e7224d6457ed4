"""`toolwire doctor`: what is there, what works, what is missing, and the command that fixes it.

Each check is a row of `CHECKS`: it looks, quickly and without changing anything of the person's own, and tells findings. Nothing is asked of a model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from toolwire.config import Settings

Mark = Literal["ok", "missing", "problem"]
LOOK_S = 30.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `fix` is a command, or what to do in words."""

    subject: str
    mark: Mark
    told: str
    fix: str = ""


async def _configured(settings: Settings) -> list[Finding]:
    """The configured models: could each serve now?"""
    from toolwire.gateway.pipeline import Gateway

    out = []
    gateway = Gateway(settings)
    try:
        for id, backend in gateway.models.items():
            if gateway.catalog.kind(id) == "codex":
                continue  # looked at more closely below
            try:
                await backend.prepare()
                ready = await backend.ready()
            except Exception as error:
                out.append(Finding(f"model {id}", "problem", str(error).splitlines()[0] if str(error) else type(error).__name__))
                continue
            kind = gateway.catalog.kind(id)
            told = f"{kind}, tools {backend.strategy}"
            out.append(
                Finding(f"model {id}", "ok", told) if ready else Finding(f"model {id}", "problem", f"{told}: does not answer", _REPAIR.get(kind, ""))
            )
    finally:
        await gateway.close()
    return out


_REPAIR = {"openai": "start its server, or correct base_url and api_key of the model"}


async def _codex(settings: Settings) -> list[Finding]:
    """Codex: every model that uses it, or the one on PATH."""
    from toolwire.backends.codex import CodexOptions
    from toolwire.backends.registry import check

    models: dict[str, Any] = {f"model {model.id}": check("codex", model.options) for model in settings.models if model.backend == "codex"}
    return [await _one_codex(subject, options) for subject, options in (models or {"codex": CodexOptions()}).items()]


async def _one_codex(subject: str, options: Any) -> Finding:
    from toolwire.backends.codex import inspect

    facts = await inspect(options)
    if not facts["installed"]:
        return Finding(subject, "problem" if subject != "codex" else "missing", f"no command {options.bin!r}", "npm install -g @openai/codex")
    told = f"codex {facts['version']}, tools {facts['strategy']}"
    if facts["logged_in"] is False:
        return Finding(subject, "problem", f"{told}, not logged in", "codex login")
    if facts["problem"]:
        return Finding(subject, "problem", f"{told}: {facts['problem']}")
    return Finding(subject, "ok", told + (", logged in" if facts["logged_in"] else ", another provider"))


CHECKS: tuple[Callable[[Settings], Awaitable[list[Finding]]], ...] = (_configured, _codex)


async def examine(settings: Settings) -> list[Finding]:
    """Every finding, in the order of the checks. A check that fails or takes too long is a finding of its own."""
    out: list[Finding] = []
    for look in CHECKS:
        name = look.__name__.strip("_")
        try:
            async with asyncio.timeout(LOOK_S):
                out += await look(settings)
        except TimeoutError:
            out.append(Finding(name, "problem", f"no answer within {LOOK_S:g} s"))
        except Exception as error:
            out.append(Finding(name, "problem", f"{type(error).__name__}: {error}".splitlines()[0]))
    return out


def report(findings: list[Finding]) -> str:
    """The findings as a page for people."""
    signs = {"ok": "✓", "missing": "–", "problem": "✗"}
    width = max((len(finding.subject) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{signs[finding.mark]} {finding.subject.ljust(width)}  {finding.told}")
        if finding.fix:
            lines.append(f"  {' ' * width}  → {finding.fix}")
    return "\n".join(lines)

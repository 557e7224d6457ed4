"""`toolwire ask`: one question, answered once. In a pipe it asks nobody: what no --allow rule covers is denied.

Exit status: 0 an answer, 1 the model failed or the budget is spent, 2 a wrong call, 141 nobody reads it any more. Needs no extra.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import sys
from contextlib import aclosing, nullcontext
from typing import Any

from toolwire.core.display import as_json
from toolwire.settings.types import ConfigError, Settings
from toolwire.surfaces.terminal.screen import (
    PlainScreen,
    Screen,
    TerminalScreen,
    quiet_keyboard,
    screen_for_person,
    show,
)
from toolwire.surfaces.terminal.session import ToolSource, interrupt, opened, person_is_here, settings_of
from toolwire.surfaces.terminal.surface import surface_for
from toolwire.tools import rules
from toolwire.tools.loop import Conversation, Did, Ended, SaidText

LARGEST = 2 * 1024 * 1024
"""So many characters of stdin are taken as context."""


def run_ask(arguments: argparse.Namespace, source: ToolSource | None = None) -> int:
    question = _question(" ".join(arguments.question))
    return asyncio.run(_ask(arguments, question, settings_of(arguments), source))


def _question(asked: str) -> str:
    piped = ""
    if not sys.stdin.isatty():
        piped = sys.stdin.buffer.read(4 * LARGEST + 1).decode("utf-8", "replace")
        if len(piped) > LARGEST:
            raise ConfigError(f"stdin: more than {LARGEST:,} characters")
    question = "\n\n".join(part for part in (asked.strip(), piped.strip()) if part)
    if not question:
        raise ConfigError(
            'ask: there is no question, see toolwire ask --help (example: toolwire ask "What is a park?")'
        )
    return question


async def _ask(
    arguments: argparse.Namespace, question: str, settings: Settings, source: ToolSource | None
) -> int:
    async with opened(settings, arguments.vault, "ask", source) as session:
        model = session.model(arguments.model)
        session.tell_withheld(model)
        allowed = rules.parse(arguments.allow, session.toolbox.tools if session.toolbox is not None else ())
        person = person_is_here()
        screen: Screen = PlainScreen(io.StringIO()) if arguments.json else screen_for_person()
        surface = surface_for(
            session.approvals, allowed, lambda: session.toolbox, screen, interrupt, person=person, by="ask"
        )
        conversation = session.conversation(model, surface)
        with quiet_keyboard() if isinstance(screen, TerminalScreen) else nullcontext():
            told = await _turn(conversation, question, screen)
    if arguments.json:
        print(as_json({"model": model, **told}))
    return 1 if told["ended"] in ("failed", "budget") else 0


async def _turn(conversation: Conversation, question: str, screen: Screen) -> dict[str, Any]:
    said: list[str] = []
    calls: list[dict[str, Any]] = []
    last = Ended("failed", "the model did not answer")
    async with aclosing(conversation.turn(question)) as happenings:
        async for happening in happenings:
            show(screen, happening)
            if isinstance(happening, SaidText):
                said.append(happening.text)
            elif isinstance(happening, Did):
                said.clear()  # what was said before a tool answered is no answer
                call, outcome = happening.outcome.call, happening.outcome
                read = {"shared": list(outcome.shared), "unread": dict(outcome.unread)}
                calls.append(
                    {"name": call.name, "arguments": call.arguments, "status": outcome.status, **read}
                )
            elif isinstance(happening, Ended):
                last = happening
    return {
        "answer": "".join(said),
        "ended": last.why,
        "error": last.words or None,
        "calls": calls,
        "usage": last.usage,
    }

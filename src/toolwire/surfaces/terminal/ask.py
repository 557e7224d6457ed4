"""`toolwire ask`: one question, one answer.

If input or output is not a terminal, nobody can be asked, so every tool call that no --allow rule covers is
denied. Exit status 0: the model answered; 1: the model failed, or the turn reached its budget; 2: the command
line was wrong; 141: the reader of the output closed the pipe. The command needs no extra.
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
from toolwire.tools.loop import Conversation, Did, Ended, SaidText

LARGEST = 2 * 1024 * 1024
"""The most characters that stdin may have."""


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
        example = '(example: toolwire ask "What is a park?")'
        raise ConfigError(f"ask: there is no question; see toolwire ask --help {example}")
    return question


async def _ask(
    arguments: argparse.Namespace, question: str, settings: Settings, source: ToolSource | None
) -> int:
    async with opened(settings, arguments.vault, "ask", source) as session:
        model = session.model(arguments.model)
        await session.refresh_tools(wait=True)
        session.print_problems()
        session.print_withheld(model)
        screen: Screen = PlainScreen(io.StringIO()) if arguments.json else screen_for_person()
        surface = session.surface(screen, interrupt, person=person_is_here(), allow=arguments.allow)
        conversation = session.conversation(model, surface)
        with quiet_keyboard() if isinstance(screen, TerminalScreen) else nullcontext():
            answer = await _turn(conversation, question, screen, session.location(model))
    if arguments.json:
        print(as_json({"model": model, **answer}))
    return 1 if answer["ended"] in ("failed", "budget") else 0


async def _turn(conversation: Conversation, question: str, screen: Screen, location: str) -> dict[str, Any]:
    said: list[str] = []
    calls: list[dict[str, Any]] = []
    last = Ended("failed", "the model did not answer")
    async with aclosing(conversation.turn(question)) as happenings:
        async for happening in happenings:
            show(screen, happening, location)
            if isinstance(happening, SaidText):
                said.append(happening.text)
            elif isinstance(happening, Did):
                said.clear()  # text before a tool's result is not the answer
                outcome = happening.outcome
                call = {"name": outcome.call.name, "arguments": outcome.call.arguments}
                read = {"shared": list(outcome.shared), "unread": dict(outcome.unread)}
                calls.append({**call, "status": outcome.status, **read})
            elif isinstance(happening, Ended):
                last = happening
    ended = {"ended": last.why, "error": last.words or None}
    return {"answer": "".join(said), **ended, "calls": calls, "usage": last.usage}

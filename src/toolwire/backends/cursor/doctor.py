"""What there is of Cursor on this machine: the facts that `toolwire doctor` tells."""

from __future__ import annotations

import os
from typing import Any

from toolwire.backends.cursor.backend import CursorBackend, require_key
from toolwire.backends.cursor.find import find_bridge
from toolwire.backends.cursor.options import CursorOptions
from toolwire.errors import ToolwireError


async def inspect(options: CursorOptions) -> dict[str, Any]:
    """`installed`, `path` (or the address of a bridge that runs), `answers` (it started and speaks the protocol), `key`, and in `problem` one line
    where something is missing. Nothing is asked of Cursor's servers."""
    facts: dict[str, Any] = {"installed": False, "path": None, "answers": False, "key": bool(options.key(os.environ)), "problem": None}
    backend = CursorBackend("doctor", options)
    try:
        where = find_bridge(options, os.environ)
        facts.update(installed=True, path=where.url or where.command)
        await backend.bridge.line()
        facts["answers"] = True
        require_key(options, backend.bridge)
    except ToolwireError as error:
        facts["problem"] = error.failure.message
    finally:
        await backend.close()
    return facts

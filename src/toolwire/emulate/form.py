"""How calls are written in one turn: in a dialect of `dialects/`, or as a bare JSON object that is the whole answer.

The same form is taught in the prompt, used for the calls of the history, and looked for in the answer. Pure; standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolwire.emulate.dialects.render import envelope, render

BARE = ""
"""In place of a dialect's name: the whole answer is one call as JSON."""

MARKUP = ("<tool_call:", "</tool_call:", "<tool_result", "</tool_result")
"""What only we write, up to the token, which a small model copies with faults: barred from the text of an answer where the decoder can be held."""


@dataclass(frozen=True, slots=True)
class Form:
    dialect: str
    nonce: str

    @property
    def opening(self) -> str:
        """What a sentinel's call begins with; the answer in another form can not be made to begin."""
        return f"<tool_call:{self.nonce}>\n"

    @property
    def closing(self) -> str:
        return f"\n</tool_call:{self.nonce}>"

    def write(self, name: str, arguments: str, schema: Mapping[str, Any] | None = None) -> str:
        """One call."""
        if self.dialect == BARE:
            return envelope(name, arguments)
        return render(self.dialect, name, arguments, schema=schema, nonce=self.nonce)
